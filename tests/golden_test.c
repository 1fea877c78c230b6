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
    kda_error err;
    if (call(golden, files, out, &err)) fail_msg("%s: %s", golden->name, err.text);
    machine_sync(machine, NULL);

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
