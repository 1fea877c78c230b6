// SPDX-License-Identifier: Apache-2.0
// Every refusal of the host contract of fused decode, each alone, and the calls that it must
// accept: as args_test.c does for the operations that decode.
#include <math.h>

#include "tests/args.h"
#include "tests/dlpack.h"

// Both caches in pages of one slot: the state lies `offset` bytes after the window, in pages that
// are `pad` bytes larger than both need.
static void pages(kda_fused_args *a, kda_dtype type, int64_t offset, int64_t pad)
{
    const int64_t width = type == KDA_F32 ? 4 : 2;
    *a = rig_fused(4, 8, 6, type);
    const int64_t page = 9 * 1024 * 2 + 131072 * width + pad;
    a->conv_state.stride[0] = page / 2;
    a->state.stride[0] = page / width;
    a->state.data = (char *)a->conv_state.data + offset;
}

#define REFUSED(name, status, words, ...)                                                          \
    static void fused_##name(kda_fused_args *a) { __VA_ARGS__; }
#define LAUNCHED(name, ...)                                                                        \
    static void fused_##name(kda_fused_args *a) { __VA_ARGS__; }
#include "tests/args_fused.inc"
#undef REFUSED
#undef LAUNCHED

struct fused_case {
    const char *name;
    kda_status status;
    const char *words;
    void (*change)(kda_fused_args *);
};

static void test_case(void **state)
{
    const struct fused_case *const row = *state;
    kda_fused_args args = rig_fused(4, 8, 6, KDA_BF16);
    row->change(&args);
    kda_error err = {.cuda = 77};
    kda_plan plan = untouched;
    const soft_counters before = rig.soft_count();
    kda_status status = kda_fused(context, &args, NULL, &err);
    if (row->words) {
        check_refusal(status, &err, row->status, row->words, "fused", &plan, before);
        status = kda_fused_plan(context, &args, NULL, NULL, &plan, &err);
        check_refusal(status, &err, row->status, row->words, "fused", &plan, before);
        assert_int_equal(kda_fused(context, &args, NULL, NULL), row->status);
        dlpack_same_fused(context, &args, status, &err);
        return;
    }
    rig_ok(status, &err);
    assert_int_equal(rig.soft_count().calls, before.calls + 1);
    rig_ok(kda_fused_plan(context, &args, NULL, NULL, &plan, &err), &err);
    const soft_counters planned = rig.soft_count();
    rig_ok(kda_plan_launch(&plan, NULL, &err), &err);
    assert_int_equal(rig.soft_count().calls, planned.calls + 1);
    assert_int_equal(rig.soft_count().launches, before.launches + 2);
    assert_int_equal(err.cuda, 77);
    soft_launch_record last;
    assert_true(rig.soft_last_launch(&last));
    assert_int_equal(last.pdl, (args.flags & KDA_FLAG_PDL) != 0);
    assert_int_equal(last.grid[1], args.x.extent[0]);
    assert_int_equal(last.grid[0], args.state.extent[1]);
    dlpack_same_fused(context, &args, KDA_OK, &err);
    assert_int_equal(rig.soft_count().launches, before.launches + 3);
}

static void null_arguments(void **state)
{
    (void)state;
    const kda_fused_args args = rig_fused(4, 8, 6, KDA_BF16);
    kda_plan plan;
    kda_error err;
    rig_refused(kda_fused(NULL, &args, NULL, &err), &err, KDA_E_ARGUMENT, "context is null");
    rig_refused(kda_fused(context, NULL, NULL, &err), &err, KDA_E_ARGUMENT, "args is null");
    rig_refused(kda_fused_plan(context, &args, NULL, NULL, NULL, &err), &err, KDA_E_ARGUMENT,
                "out is null");
    rig_refused(kda_fused_plan(context, NULL, NULL, NULL, &plan, &err), &err, KDA_E_ARGUMENT,
                "args is null");
}

static void names(void **state)
{
    (void)state;
    const kda_fused_args args = rig_fused(4, 8, 6, KDA_BF16);
    kda_plan plan = untouched;
    kda_error err;
    static const struct {
        const char *body, *target, *words;
        kda_status status;
    } rows[] = {
        {"fused", NULL, "unknown body fused", KDA_E_NAME},
        {"packed_t1_tile8", NULL, "its bodies are fused_t1_lower_bound_bf16_unique", KDA_E_NAME},
        {"fused_t1_lower_bound_f32_unique", NULL, "not for this call", KDA_E_NAME},
        {"fused_t1_lower_bound_bf16_repeated", NULL, "not for this call", KDA_E_NAME},
        {"fused_t1_softplus_bf16_unique", NULL, "not for this call", KDA_E_NAME},
        {NULL, "sm_80", "unknown target sm_80", KDA_E_NAME},
        {NULL, "sm_103a", "CC", KDA_E_NO_ROUTE},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        rig_refused(kda_fused_plan(context, &args, rows[i].body, rows[i].target, &plan, &err), &err,
                    rows[i].status, rows[i].words);
    assert_memory_equal(&plan, &untouched, sizeof plan);
    rig_ok(
        kda_fused_plan(context, &args, "fused_t1_lower_bound_bf16_unique", "sm_100f", &plan, &err),
        &err);
}

// CC and CUDA version: A5 knows two targets, each for its own chip.
static void devices(void **state)
{
    (void)state;
    static const struct {
        int major, minor, cuda;
        kda_status status;
        const char *words;
    } rows[] = {
        {10, 0, 12080, KDA_OK, ""},
        {10, 0, 12070, KDA_E_CUDA_VERSION, "requires CUDA 12.8 or newer"},
        {10, 3, 12090, KDA_OK, ""},
        {10, 3, 12080, KDA_E_CUDA_VERSION, "requires CUDA 12.9 or newer"},
        {9, 0, 13000, KDA_E_NO_ROUTE, "does not have a route"},
        {11, 0, 13000, KDA_E_NO_ROUTE, "does not have a route"},
        {12, 0, 13000, KDA_E_NO_ROUTE, "does not have a route"},
    };
    const kda_fused_args args = rig_fused(4, 8, 6, KDA_F32);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const kda_device facts = {.cc_major = rows[i].major,
                                  .cc_minor = rows[i].minor,
                                  .cuda_version = rows[i].cuda,
                                  .sm_count = 148,
                                  .overridden = KDA_OVERRIDDEN_CC | KDA_OVERRIDDEN_CUDA};
        kda_context *other = NULL;
        kda_error err;
        rig_start(rows[i].major, rows[i].minor);
        rig_ok(kda_context_create(rig.bundle, rig.cuda, &facts, &other, &err), &err);
        const kda_status status = kda_fused(other, &args, NULL, &err);
        if (rows[i].status == KDA_OK)
            rig_ok(status, &err);
        else
            rig_refused(status, &err, rows[i].status, rows[i].words);
        kda_context_close(&other);
    }
    rig_start(10, 0);
}

int main(int argc, char **argv)
{
    rig_open(argc, argv);
#define REFUSED(name, status, words, ...) {#name, KDA_E_##status, words, fused_##name},
#define LAUNCHED(name, ...) {#name, KDA_OK, NULL, fused_##name},
    static const struct fused_case cases[] = {
#include "tests/args_fused.inc"
    };
    enum { CASES = sizeof cases / sizeof cases[0], OTHERS = 2 };
    struct CMUnitTest tests[CASES + OTHERS] = {
        cmocka_unit_test(null_arguments),
        cmocka_unit_test(names),
    };
    for (size_t i = 0; i < CASES; i++)
        tests[OTHERS + i] = (struct CMUnitTest){.name = cases[i].name,
                                                .test_func = test_case,
                                                .initial_state = (void *)(uintptr_t)&cases[i]};
    int failed = cmocka_run_group_tests_name("args_fused", tests, setup, teardown);
    const struct CMUnitTest others[] = {cmocka_unit_test(devices)};
    failed += cmocka_run_group_tests_name("devices", others, NULL, NULL);
    rig_close();
    return failed;
}
