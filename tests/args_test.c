// SPDX-License-Identifier: Apache-2.0
// Every refusal of the host contract, each alone: a valid call, one change, and what must come of
// it: status, words of the message, no driver call at all, and an untouched plan. The same valid
// calls, unchanged or changed in ways that are allowed, must launch exactly once. One row is one
// test.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/args.h"
#include "tests/dlpack.h"

// ------------------------------------------------------------------------------------- valid calls

static const struct rig_shape DENSE = {KDA_GATE_PRECOMPUTED, 1, false, 3, 2, 4, 8},
                              BATCHED = {KDA_GATE_PRECOMPUTED, 2, false, 2, 2, 4, 8},
                              PACKED = {KDA_GATE_PRECOMPUTED, 4, true, 2, 2, 4, 8},
                              FIVE = {KDA_GATE_PRECOMPUTED, 5, true, 2, 1, 2, 10},
                              BOUND = {KDA_GATE_LOWER_BOUND, 3, true, 2, 16, 16, 6},
                              SOFTPLUS = {KDA_GATE_SOFTPLUS, 1, false, 3, 2, 2, 8};

// q, k and v as slices of rows of 3*H*128 + pad elements.
static void slice(kda_recurrent_args *a, int64_t pad)
{
    const int64_t width = a->q.extent[2] * 128;
    kda_tensor *const tensors[] = {&a->q, &a->k, &a->v};
    for (int i = 0; i < 3; i++) {
        tensors[i]->data = a->q.data;
        move(tensors[i], (uint64_t)(2 * width * i));
        tensors[i]->stride[0] = tensors[i]->stride[1] = 3 * width + pad;
    }
}

static void loosen_tokens(kda_recurrent_args *a, uint32_t dim, int64_t stride)
{
    kda_tensor *const tensors[] = {&a->q, &a->k, &a->v, &a->g, &a->beta, &a->out};
    for (int i = 0; i < 6; i++) loosen(tensors[i], dim, stride);
}

static void loosen_all(kda_recurrent_args *a, uint32_t dim, int64_t stride)
{
    loosen_tokens(a, dim, stride);
    loosen(&a->state, dim, stride);
}

// ------------------------------------------------------------------------------------------ tables

#define REFUSED(name, shape, status, words, ...)                                                   \
    static void recurrent_##name(kda_recurrent_args *a) { __VA_ARGS__; }
#define LAUNCHED(name, shape, ...)                                                                 \
    static void recurrent_##name(kda_recurrent_args *a) { __VA_ARGS__; }
#include "tests/args_recurrent.inc"
#undef REFUSED
#undef LAUNCHED
#define REFUSED(name, status, words, ...)                                                          \
    static void packed_##name(kda_packed_args *a) { __VA_ARGS__; }
#define LAUNCHED(name, ...)                                                                        \
    static void packed_##name(kda_packed_args *a) { __VA_ARGS__; }
#include "tests/args_packed.inc"
#undef REFUSED
#undef LAUNCHED

struct recurrent_case {
    const char *name;
    struct rig_shape shape;
    kda_status status;
    const char *words;
    void (*change)(kda_recurrent_args *);
};

struct packed_case {
    const char *name;
    kda_status status;
    const char *words;
    void (*change)(kda_packed_args *);
};

// ----------------------------------------------------------------------------------------- runners

static void recurrent_refused(void **state)
{
    const struct recurrent_case *const row = *state;
    kda_recurrent_args args = rig_recurrent(row->shape);
    row->change(&args);
    kda_error err;
    kda_plan plan = untouched;
    const soft_counters before = rig.soft_count();
    kda_status status = kda_recurrent(context, &args, NULL, &err);
    check_refusal(status, &err, row->status, row->words, "recurrent", &plan, before);
    status = kda_recurrent_plan(context, &args, NULL, NULL, &plan, &err);
    check_refusal(status, &err, row->status, row->words, "recurrent", &plan, before);
    assert_int_equal(kda_recurrent(context, &args, NULL, NULL), row->status);
    dlpack_same_recurrent(context, &args, status, &err);
}

static void recurrent_launched(void **state)
{
    const struct recurrent_case *const row = *state;
    kda_recurrent_args args = rig_recurrent(row->shape);
    row->change(&args);
    kda_error err = {.cuda = 77};
    kda_plan plan;
    const soft_counters before = rig.soft_count();
    rig_ok(kda_recurrent(context, &args, NULL, &err), &err);
    assert_int_equal(rig.soft_count().calls, before.calls + 1);
    rig_ok(kda_recurrent_plan(context, &args, NULL, NULL, &plan, &err), &err);
    const soft_counters planned = rig.soft_count();
    rig_ok(kda_plan_launch(&plan, NULL, &err), &err);
    assert_int_equal(rig.soft_count().calls, planned.calls + 1);
    assert_int_equal(rig.soft_count().launches, before.launches + 2);
    assert_int_equal(err.cuda, 77);
    soft_launch_record last;
    assert_true(rig.soft_last_launch(&last));
    assert_int_equal(last.pdl, (args.flags & KDA_FLAG_PDL) != 0);
    assert_int_equal(last.grid[1], row->shape.rows);
    assert_int_equal(last.grid[0] % row->shape.value_heads, 0);
    dlpack_same_recurrent(context, &args, KDA_OK, &err);
    assert_int_equal(rig.soft_count().launches, before.launches + 3);
}

static void packed_refused(void **state)
{
    const struct packed_case *const row = *state;
    kda_packed_args args = rig_packed(4, 8);
    row->change(&args);
    kda_error err;
    kda_plan plan = untouched;
    const soft_counters before = rig.soft_count();
    kda_status status = kda_packed(context, &args, NULL, &err);
    check_refusal(status, &err, row->status, row->words, "packed", &plan, before);
    status = kda_packed_plan(context, &args, NULL, NULL, &plan, &err);
    check_refusal(status, &err, row->status, row->words, "packed", &plan, before);
    dlpack_same_packed(context, &args, status, &err);
}

static void packed_launched(void **state)
{
    const struct packed_case *const row = *state;
    kda_packed_args args = rig_packed(4, 8);
    row->change(&args);
    kda_error err;
    kda_plan plan;
    const soft_counters before = rig.soft_count();
    rig_ok(kda_packed(context, &args, NULL, &err), &err);
    assert_int_equal(rig.soft_count().calls, before.calls + 1);
    rig_ok(kda_packed_plan(context, &args, NULL, NULL, &plan, &err), &err);
    rig_ok(kda_plan_launch(&plan, NULL, &err), &err);
    assert_int_equal(rig.soft_count().launches, before.launches + 2);
    dlpack_same_packed(context, &args, KDA_OK, &err);
    assert_int_equal(rig.soft_count().launches, before.launches + 3);
}

// ------------------------------------------------------------------------------- devices and names

static void null_arguments(void **state)
{
    (void)state;
    const kda_recurrent_args args = rig_recurrent(DENSE);
    const kda_packed_args packed = rig_packed(4, 8);
    kda_plan plan = {0};
    kda_error err;
    rig_refused(kda_recurrent(NULL, &args, NULL, &err), &err, KDA_E_ARGUMENT, "context is null");
    rig_refused(kda_recurrent(context, NULL, NULL, &err), &err, KDA_E_ARGUMENT, "args is null");
    rig_refused(kda_packed(NULL, &packed, NULL, &err), &err, KDA_E_ARGUMENT, "context is null");
    rig_refused(kda_packed(context, NULL, NULL, &err), &err, KDA_E_ARGUMENT, "args is null");
    rig_refused(kda_recurrent_plan(context, &args, NULL, NULL, NULL, &err), &err, KDA_E_ARGUMENT,
                "out is null");
    rig_refused(kda_packed_plan(context, &packed, NULL, NULL, NULL, &err), &err, KDA_E_ARGUMENT,
                "out is null");
    rig_refused(kda_plan_launch(NULL, NULL, &err), &err, KDA_E_ARGUMENT, "plan is null");
    rig_refused(kda_plan_launch(&plan, NULL, &err), &err, KDA_E_ARGUMENT, "not a plan");
}

static void other_devices(void **state)
{
    (void)state;
    static const struct {
        kda_device device;
        kda_status status;
        const char *words;
    } rows[] = {
        {{10, 1, 13000, 148, 0, {0}}, KDA_E_NO_ROUTE, "10.1"},
        {{10, 7, 13000, 148, 0, {0}}, KDA_E_NO_ROUTE, "10.7"},
        {{11, 0, 13000, 148, 0, {0}}, KDA_E_NO_ROUTE, "11.0"},
        {{12, 0, 13000, 148, 0, {0}}, KDA_E_NO_ROUTE, "12.0"},
        {{8, 0, 13000, 148, 0, {0}}, KDA_E_NO_ROUTE, "8.0"},
        {{9, 0, 13000, 148, 0, {0}}, KDA_E_NO_ROUTE, "9.0"},
        {{10, 0, 12070, 148, 0, {0}}, KDA_E_CUDA_VERSION, "requires CUDA 12.8 or newer"},
        {{10, 3, 12080, 148, 0, {0}}, KDA_E_CUDA_VERSION, "requires CUDA 12.9 or newer"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        kda_device device = rows[i].device;
        device.overridden = KDA_OVERRIDDEN_CC | KDA_OVERRIDDEN_CUDA;
        kda_context *other = NULL;
        kda_error err;
        rig_ok(kda_context_create(rig.bundle, rig.cuda, &device, &other, &err), &err);
        const soft_counters before = rig.soft_count();
        const kda_recurrent_args args = rig_recurrent(DENSE);
        const kda_packed_args packed = rig_packed(4, 8);
        rig_refused(kda_recurrent(other, &args, NULL, &err), &err, rows[i].status, rows[i].words);
        rig_refused(kda_packed(other, &packed, NULL, &err), &err, rows[i].status, rows[i].words);
        // A refusal of the arguments comes before any of the route.
        kda_recurrent_args wrong = args;
        wrong.out.data = wrong.q.data;
        rig_refused(kda_recurrent(other, &wrong, NULL, &err), &err, KDA_E_OVERLAP, "overlaps q");
        assert_int_equal(rig.soft_count().calls, before.calls);
        rig_refused(kda_context_prepare(other, NULL, &err), &err, rows[i].status, rows[i].words);
        assert_int_equal(rig.soft_count().loads, before.loads);
        kda_context_close(&other);
    }
}

// A stride that leads nowhere reaches no kernel: the plan is that of the compact call.
static void unit_strides(void **state)
{
    (void)state;
    const struct rig_shape shapes[] = {shape_of(KDA_GATE_PRECOMPUTED, 1, false, 4, 1, 1),
                                       shape_of(KDA_GATE_SOFTPLUS, 1, false, 4, 1, 1),
                                       shape_of(KDA_GATE_PRECOMPUTED, 2, false, 1, 1, 1),
                                       shape_of(KDA_GATE_PRECOMPUTED, 4, true, 1, 1, 1)};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        kda_recurrent_args args = rig_recurrent(shapes[i]);
        kda_error err;
        kda_plan compact, loose;
        rig_ok(kda_recurrent_plan(context, &args, NULL, NULL, &compact, &err), &err);
        loosen_all(&args, 1, 12345);
        if (i == 2) loosen_tokens(&args, 0, 12345);
        rig_ok(kda_recurrent_plan(context, &args, NULL, NULL, &loose, &err), &err);
        assert_memory_equal(&loose, &compact, sizeof(loose));
    }
}

static void names(void **state)
{
    (void)state;
    static const struct {
        const char *body, *target;
        kda_status status;
        const char *words;
    } rows[] = {
        {"d128_t1", NULL, KDA_E_NAME, "d128_t1_precomputed_direct_split8"},
        {"d128_t2_precomputed_split4", NULL, KDA_E_NAME, "d128_t2_precomputed_split4"},
        {"d128_t1_unbounded_softplus_direct_split8", NULL, KDA_E_NAME, "softplus"},
        {"packed_t1_tile8", NULL, KDA_E_NAME, "packed_t1_tile8"},
        {NULL, "sm_42", KDA_E_NAME, "sm_100f"},
        {"", NULL, KDA_E_NAME, "d128_t1_precomputed_direct_split8"},
        {NULL, "sm_103a", KDA_E_NO_ROUTE, "sm_103a"},
        {"d128_t1_precomputed_split1", "sm_103a", KDA_E_NO_ROUTE, "sm_103a"},
    };
    const kda_recurrent_args args = rig_recurrent(DENSE);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        kda_error err;
        kda_plan plan = untouched;
        const soft_counters before = rig.soft_count();
        const kda_status status =
            kda_recurrent_plan(context, &args, rows[i].body, rows[i].target, &plan, &err);
        check_refusal(status, &err, rows[i].status, rows[i].words, "recurrent", &plan, before);
    }
}

// Every body and target that the bundle holds for the device can be forced, and is what is launched
// then.
static void forced(void **state)
{
    (void)state;
    const kda_recurrent_args args = rig_recurrent(DENSE);
    static const char *const bodies[] = {"d128_t1_precomputed_split1", "d128_t1_precomputed_split8",
                                         "d128_t1_precomputed_direct_split8"};
    static const char *const targets[] = {"sm_100f", "sm_100a"};
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        for (size_t j = 0; j < sizeof(targets) / sizeof(targets[0]); j++) {
            kda_error err;
            kda_plan plan;
            rig_ok(kda_recurrent_plan(context, &args, bodies[i], targets[j], &plan, &err), &err);
            rig_ok(kda_plan_launch(&plan, NULL, &err), &err);
            soft_launch_record last;
            assert_true(rig.soft_last_launch(&last));
            assert_string_equal(last.body, bodies[i]);
            assert_string_equal(last.target, targets[j]);
        }
    }
}

int main(int argc, char **argv)
{
    rig_open(argc, argv);
#define REFUSED(name, shape, status, words, ...)                                                   \
    {"recurrent_" #name, shape, KDA_E_##status, words, recurrent_##name},
#define LAUNCHED(name, shape, ...) {"recurrent_" #name, shape, KDA_OK, "", recurrent_##name},
    struct recurrent_case recurrent_rows[] = {
#include "tests/args_recurrent.inc"
    };
#undef REFUSED
#undef LAUNCHED
#define REFUSED(name, status, words, ...) {"packed_" #name, KDA_E_##status, words, packed_##name},
#define LAUNCHED(name, ...) {"packed_" #name, KDA_OK, "", packed_##name},
    struct packed_case packed_rows[] = {
#include "tests/args_packed.inc"
    };
    enum {
        RECURRENT_ROWS = sizeof(recurrent_rows) / sizeof(recurrent_rows[0]),
        PACKED_ROWS = sizeof(packed_rows) / sizeof(packed_rows[0])
    };
    struct CMUnitTest tests[RECURRENT_ROWS + PACKED_ROWS + 5] = {0};
    size_t count = 0;
    for (size_t i = 0; i < RECURRENT_ROWS; i++) {
        struct recurrent_case *const row = &recurrent_rows[i];
        const bool launched = row->status == KDA_OK;
        tests[count++] = (struct CMUnitTest){
            row->name, launched ? recurrent_launched : recurrent_refused, NULL, NULL, row};
    }
    for (size_t i = 0; i < PACKED_ROWS; i++) {
        struct packed_case *const row = &packed_rows[i];
        const bool launched = row->status == KDA_OK;
        tests[count++] = (struct CMUnitTest){row->name, launched ? packed_launched : packed_refused,
                                             NULL, NULL, row};
    }
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(null_arguments);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(other_devices);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(unit_strides);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(names);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(forced);
    const int failed = cmocka_run_group_tests_name("args", tests, setup, teardown);
    rig_close();
    return failed;
}
