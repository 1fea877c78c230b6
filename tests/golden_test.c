// SPDX-License-Identifier: Apache-2.0
// The golden vectors through the public API: every case of the folder whose bodies the bundle
// holds, exactly as it is on disk, cases outside the intended use included. Judged by the numbers
// of the case, not by the oracle.
//   golden-test FOLDER [arguments of suite.h]
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/golden.h"
#include "tests/suite.h"
#include "tools/oracle_verify.h"

static kda_tensor tensor(const struct golden *golden, const CUdeviceptr *files, const char *name)
{
    const struct golden_tensor *found = golden_find(golden, name);
    if (!found) return (kda_tensor){.data = NULL};
    size_t width = found->dtype == KDA_BF16 ? 2 : 4;
    kda_tensor view = {.dtype = found->dtype, .rank = found->rank};
    view.data = (void *)(uintptr_t)(files[found->file] + (CUdeviceptr)found->offset * width);
    memcpy(view.extent, found->extent, sizeof view.extent);
    memcpy(view.stride, found->stride, sizeof view.stride);
    return view;
}

// The dense form has a dimension of one token that the cases, in the packed view, leave out.
static kda_tensor dense(kda_tensor view, int64_t tokens)
{
    if (tokens != 1) return view;
    for (uint32_t i = view.rank; i > 0; i--) {
        view.extent[i] = view.extent[i - 1];
        view.stride[i] = view.stride[i - 1];
    }
    view.extent[1] = 1;
    view.rank++;
    return view;
}

static kda_tensor output(const struct golden *golden, CUdeviceptr out)
{
    return (kda_tensor){.data = (void *)(uintptr_t)out,
                        .dtype = KDA_BF16,
                        .rank = 3,
                        .extent = {golden->tok, golden->value_heads, ORACLE_D},
                        .stride = {golden->value_heads * ORACLE_D, ORACLE_D, 1}};
}

static kda_status call(const struct golden *golden, const CUdeviceptr *files, CUdeviceptr out,
                       kda_error *err)
{
    if (golden->op == KDA_OP_PACKED) {
        kda_packed_args args = {
            .mixed_qkv = tensor(golden, files, "mixed_qkv"),
            .raw_gate = tensor(golden, files, "raw_gate"),
            .raw_beta = tensor(golden, files, "raw_beta"),
            .a_log = tensor(golden, files, "A_log"),
            .dt_bias = tensor(golden, files, "dt_bias"),
            .state = tensor(golden, files, "state"),
            .state_indices = tensor(golden, files, "state_indices"),
            .out = dense(output(golden, out), 1),
        };
        return kda_packed(suite.context, &args, NULL, err);
    }
    int64_t tokens = golden->tokens;
    kda_recurrent_args args = {
        .q = dense(tensor(golden, files, "q"), tokens),
        .k = dense(tensor(golden, files, "k"), tokens),
        .v = dense(tensor(golden, files, "v"), tokens),
        .g = dense(tensor(golden, files, "g"), tokens),
        .beta = dense(tensor(golden, files, "beta"), tokens),
        .a_log = tensor(golden, files, "A_log"),
        .dt_bias = tensor(golden, files, "dt_bias"),
        .state = tensor(golden, files, "state"),
        .out = dense(output(golden, out), tokens),
        .ssm_state_indices = tensor(golden, files, "ssm_state_indices"),
        .cu_seqlens = tensor(golden, files, "cu_seqlens"),
        .num_accepted_tokens = tensor(golden, files, "num_accepted_tokens"),
        .gate = golden->gate,
        .num_spec_tokens = tokens > 1 ? (int32_t)tokens - 1 : 0,
        .beta_is_logit = (int32_t)golden->beta_is_logit,
        .scale = (float)golden->scale,
        .lower_bound = (float)golden->lower_bound,
        .flags = tokens > 1 ? KDA_FLAG_SPECULATIVE : 0,
    };
    return kda_recurrent(suite.context, &args, NULL, err);
}

// [H*128] in the cases.
static kda_tensor bias(const struct golden *golden, const CUdeviceptr *files)
{
    kda_tensor view = tensor(golden, files, "dt_bias");
    if (!view.data) return view;
    view.rank = 2;
    view.extent[0] = golden->heads;
    view.extent[1] = ORACLE_D;
    view.stride[0] = ORACLE_D;
    view.stride[1] = 1;
    return view;
}

// Into caches of the case's tokens, which it fills with poison, and from these into the pool.
static kda_status verify_and_commit(const struct golden *golden, const CUdeviceptr *files,
                                    CUdeviceptr out, const CUdeviceptr *caches, kda_error *err)
{
    const int64_t heads = golden->value_heads, tokens = golden->tokens;
    const bool packed = golden_find(golden, "cu_seqlens") != NULL;
    kda_tensor views[] = {tensor(golden, files, "q"),    tensor(golden, files, "k"),
                          tensor(golden, files, "v"),    tensor(golden, files, "g"),
                          tensor(golden, files, "beta"), output(golden, out)};
    for (int i = 0; i < 6 && !packed; i++) {  // [tok, ..] is [N, T, ..]
        const kda_tensor flat = views[i];
        for (uint32_t j = flat.rank; j > 1; j--) {
            views[i].extent[j] = flat.extent[j - 1];
            views[i].stride[j] = flat.stride[j - 1];
        }
        views[i].rank++;
        views[i].extent[0] = golden->rows;
        views[i].extent[1] = tokens;
        views[i].stride[1] = flat.stride[0];
        views[i].stride[0] = tokens * flat.stride[0];
    }
    kda_tensor cache[2];
    for (int i = 0; i < 2; i++) {
        const int64_t width = (i + 1) * ORACLE_D;
        cache[i] = (kda_tensor){.data = (void *)(uintptr_t)caches[i],
                                .dtype = i ? KDA_BF16 : KDA_F32,
                                .rank = 4,
                                .extent = {golden->num_slots, heads, tokens, width},
                                .stride = {heads * tokens * width, tokens * width, width, 1}};
    }
    const kda_verify_args verify = {
        .q = views[0],
        .k = views[1],
        .v = views[2],
        .g = views[3],
        .beta = views[4],
        .out = views[5],
        .a_log = tensor(golden, files, "A_log"),
        .dt_bias = bias(golden, files),
        .state = tensor(golden, files, "state"),
        .ssm_state_indices = tensor(golden, files, "ssm_state_indices"),
        .cu_seqlens = tensor(golden, files, "cu_seqlens"),
        .correction_cache = cache[0],
        .kg_cache = cache[1],
        .gate = golden->gate,
        .null_min = (int32_t)golden->null_min,
        .beta_is_logit = (int32_t)golden->beta_is_logit,
        .scale = (float)golden->scale,
        .lower_bound = (float)golden->lower_bound,
    };
    const kda_commit_args commit = {
        .state = verify.state,
        .correction_cache = cache[0],
        .kg_cache = cache[1],
        .ssm_state_indices = verify.ssm_state_indices,
        .num_accepted_tokens = tensor(golden, files, "num_accepted_tokens"),
        .a_log = verify.a_log,
        .dt_bias = verify.dt_bias,
        .gate = golden->gate,
        .heads = (int32_t)golden->heads,
        .null_min = verify.null_min,
        .lower_bound = verify.lower_bound,
    };
    const kda_status status = kda_verify(suite.context, &verify, NULL, err);
    return status == KDA_OK ? kda_commit(suite.context, &commit, NULL, err) : status;
}

static void judge_corrections(const struct golden *golden, const float *cache)
{
    struct oracle_error error = {.count = 0};
    for (int i = 0; i < golden->line_count; i++) {
        const int64_t *line = golden->lines[i];
        const float *got =
            cache +
            ((line[0] * golden->value_heads + line[1]) * golden->tokens + line[2]) * ORACLE_D;
        for (int c = 0; c < ORACLE_D; c++)
            oracle_add_within(&error, (double)got[c], golden->correction[i * ORACLE_D + c],
                              ORACLE_CORRECTION_ABSOLUTE, ORACLE_CORRECTION_RELATIVE);
    }
    if (!oracle_within(&error))
        fail_msg("%s: corrections: norm %.3g, worst %.3g", golden->name, oracle_norm(&error),
                 error.worst);
}

static void judge_out(const struct golden *golden, const uint16_t *out)
{
    struct oracle_error error = {.count = 0};
    int64_t wide = golden->value_heads * ORACLE_D;
    for (int64_t token = 0; token < golden->tok; token++) {
        uint16_t bits = golden->classes[token] == GOLDEN_ZERO ? 0 : ORACLE_POISON;
        if (golden->classes[token] == GOLDEN_VALUE)
            oracle_add_many(&error, out + token * wide, golden->out + token * wide, wide);
        else
            for (int64_t c = 0; c < wide; c++) assert_int_equal(out[token * wide + c], bits);
    }
    assert_true(error.count > 0 && oracle_floor(&error) <= ORACLE_FLOOR_LIMIT);
    if (!oracle_within(&error))
        fail_msg("%s: out: norm %.3g, worst %.3g", golden->name, oracle_norm(&error), error.worst);
}

static void judge_state(const struct golden *golden, const uint16_t *before, const uint16_t *after)
{
    const struct golden_tensor *state = golden_find(golden, "state");
    int64_t stride = state->stride[0], block = golden->value_heads * ORACLE_HEAD;
    for (int64_t slot = 0; slot < golden->num_slots; slot++) {
        bool written = false;
        for (int i = 0; i < golden->written_count; i++) written |= golden->written[i] == slot;
        const uint16_t *b = before + slot * stride, *a = after + slot * stride;
        int64_t kept = written ? block : 0;
        if (memcmp(a + kept, b + kept, (size_t)(stride - kept) * 2) != 0)
            fail_msg("%s: slot %d or its padding changed", golden->name, (int)slot);
        for (int64_t i = 0; i < kept; i++) assert_true((a[i] & 0x7F80) != 0x7F80);
    }
    struct oracle_error error = {.count = 0};
    for (int i = 0; i < golden->pair_count; i++)
        oracle_add_many(&error,
                        after + golden->pairs[i][0] * stride + golden->pairs[i][1] * ORACLE_HEAD,
                        golden->state + (int64_t)i * ORACLE_HEAD, ORACLE_HEAD);
    assert_true(oracle_floor(&error) <= ORACLE_FLOOR_LIMIT);
    if (!oracle_within(&error))
        fail_msg("%s: state: norm %.3g, worst %.3g", golden->name, oracle_norm(&error),
                 error.worst);
}

static void run_case(const struct golden *golden)
{
    const struct machine *machine = &suite.machine;
    CUdeviceptr files[GOLDEN_TENSORS];
    for (int i = 0; i < golden->file_count; i++) {
        files[i] = machine_alloc(machine, golden->files[i].size);
        machine_put(machine, files[i], golden->files[i].data, golden->files[i].size);
    }
    size_t elements = (size_t)(golden->tok * golden->value_heads) * ORACLE_D;
    CUdeviceptr out = machine_alloc(machine, elements * 2);
    machine_fill(machine, out, ORACLE_POISON, elements);
    const size_t lines = (size_t)(golden->num_slots * golden->value_heads * golden->tokens);
    CUdeviceptr caches[2] = {0, 0};
    for (int i = 0; i < 2 && golden->op == KDA_OP_VERIFY; i++) {
        caches[i] = machine_alloc(machine, lines * ORACLE_D * 4);
        machine_fill(machine, caches[i], ORACLE_POISON, lines * ORACLE_D * 2);
    }
    kda_error err;
    if (caches[0] ? verify_and_commit(golden, files, out, caches, &err)
                  : call(golden, files, out, &err))
        fail_msg("%s: %s", golden->name, err.text);
    machine_sync(machine, NULL);
    if (caches[0]) {
        float *corrections = malloc(lines * ORACLE_D * 4);
        assert_non_null(corrections);
        machine_get(machine, corrections, caches[0], lines * ORACLE_D * 4);
        judge_corrections(golden, corrections);
        free(corrections);
        for (int i = 0; i < 2; i++) machine_free(machine, caches[i]);
    }

    int state = golden_find(golden, "state")->file;
    uint16_t *out_after = malloc(elements * 2), *pool_after = malloc(golden->files[state].size);
    assert_true(out_after && pool_after);
    machine_get(machine, out_after, out, elements * 2);
    machine_get(machine, pool_after, files[state], golden->files[state].size);
    judge_out(golden, out_after);
    judge_state(golden, golden->files[state].data, pool_after);
    free(out_after);
    free(pool_after);
    machine_free(machine, out);
    for (int i = 0; i < golden->file_count; i++) machine_free(machine, files[i]);
}

static void one_case(void **state)
{
    const char *path = *state;
    struct golden golden;
    struct suite_family family;
    assert_true(golden_open(path, &golden));
    bool held = suite_family(golden.op, golden.gate, (int32_t)golden.tokens, &family);
    if (held) run_case(&golden);
    golden_close(&golden);
    if (!held) suite_skip("the bundle has no body for it");
}

int main(int argc, char **argv)
{
    enum { CASES = 32 };
    static char names[CASES][64], paths[CASES][512];
    const char *folder = argc > 1 ? argv[1] : "";
    DIR *dir = opendir(folder);
    if (!dir) {
        fprintf(stderr, "usage: golden-test FOLDER [BUNDLE] ..\n");
        return 2;
    }
    struct CMUnitTest tests[CASES];
    size_t count = 0;
    for (struct dirent *entry; (entry = readdir(dir)) && count < CASES;) {
        if (entry->d_name[0] == '.') continue;
        snprintf(names[count], sizeof names[count], "%.63s", entry->d_name);
        snprintf(paths[count], sizeof paths[count], "%s/%s", folder, entry->d_name);
        tests[count] = (struct CMUnitTest){
            .name = names[count], .test_func = one_case, .initial_state = paths[count]};
        count++;
    }
    closedir(dir);
    if (!count) {
        fprintf(stderr, "%s holds no case\n", folder);
        return 2;
    }
    int status = suite_open(argc - 1, argv + 1);
    if (status != SUITE_GO) return status;
    // The group macro counts a whole array; here only the first `count` entries are cases.
    int failed = _cmocka_run_group_tests("golden", tests, count, NULL, NULL);
    suite.record = NULL;  // the contract suites record
    return suite_close(failed);
}
