// SPDX-License-Identifier: Apache-2.0
// Every refusal of the host contract of verify and commit, each alone, and the calls that they must
// accept: as args_test.c does for the operations that decode. A verify of no tokens succeeds
// without asking the driver for anything.
#include <math.h>

#include "tests/args.h"
#include "tests/dlpack.h"

static const struct rig_shape ONE = {KDA_GATE_PRECOMPUTED, 1, false, 3, 2, 4, 8},
                              BATCHED = {KDA_GATE_PRECOMPUTED, 4, false, 2, 2, 4, 8},
                              PACKED = {KDA_GATE_PRECOMPUTED, 8, true, 2, 2, 4, 8},
                              BOUND = {KDA_GATE_LOWER_BOUND, 16, true, 2, 2, 4, 8},
                              SOFTPLUS = {KDA_GATE_SOFTPLUS, 3, false, 2, 2, 2, 8};

static void clear_tokens(kda_verify_args *a)
{
    kda_tensor *const tensors[] = {&a->q, &a->k, &a->v, &a->g, &a->beta, &a->out};
    for (int i = 0; i < 6; i++) tensors[i]->extent[0] = 0;
}

static void loosen_tokens(kda_verify_args *a, uint32_t dim, int64_t stride)
{
    kda_tensor *const tensors[] = {&a->q, &a->k, &a->v, &a->g, &a->beta, &a->out};
    for (int i = 0; i < 6; i++) loosen(tensors[i], dim, stride);
}

// ------------------------------------------------------------------------------------------ tables

enum outcome { IS_REFUSED, IS_LAUNCHED, IS_EMPTY };

union args {
    kda_verify_args verify;
    kda_commit_args commit;
};

struct window_case {
    const char *name;
    kda_op op;
    struct rig_shape shape;
    enum outcome outcome;
    kda_status status;
    const char *words;
    void (*verify)(kda_verify_args *);
    void (*commit)(kda_commit_args *);
};

#define REFUSED(name, shape, status, words, ...)                                                   \
    static void verify_##name(kda_verify_args *a) { __VA_ARGS__; }
#define LAUNCHED(name, shape, ...)                                                                 \
    static void verify_##name(kda_verify_args *a) { __VA_ARGS__; }
#define EMPTY(name, shape, ...)                                                                    \
    static void verify_empty_##name(kda_verify_args *a) { __VA_ARGS__; }
#include "tests/args_verify.inc"
#undef REFUSED
#undef LAUNCHED
#undef EMPTY
#define REFUSED(name, shape, status, words, ...)                                                   \
    static void commit_##name(kda_commit_args *a) { __VA_ARGS__; }
#define LAUNCHED(name, shape, ...)                                                                 \
    static void commit_##name(kda_commit_args *a) { __VA_ARGS__; }
#include "tests/args_commit.inc"
#undef REFUSED
#undef LAUNCHED

// ----------------------------------------------------------------------------------------- runners

static union args make(const struct window_case *row)
{
    union args args;
    if (row->op == KDA_OP_VERIFY) {
        args.verify = rig_verify(row->shape);
        row->verify(&args.verify);
    } else {
        args.commit = rig_commit(row->shape);
        row->commit(&args.commit);
    }
    return args;
}

static kda_status call(kda_context *on, kda_op op, const union args *args, kda_error *err)
{
    return op == KDA_OP_VERIFY ? kda_verify(on, &args->verify, NULL, err)
                               : kda_commit(on, &args->commit, NULL, err);
}

static void same_over_dlpack(kda_op op, const union args *args, kda_status status,
                             const kda_error *err)
{
    if (op == KDA_OP_VERIFY)
        dlpack_same_verify(context, &args->verify, status, err);
    else
        dlpack_same_commit(context, &args->commit, status, err);
}

static kda_status plan_call(kda_op op, const union args *args, const char *body, const char *target,
                            kda_plan *out, kda_error *err)
{
    return op == KDA_OP_VERIFY ? kda_verify_plan(context, &args->verify, body, target, out, err)
                               : kda_commit_plan(context, &args->commit, body, target, out, err);
}

static void test_case(void **state)
{
    const struct window_case *const row = *state;
    const char *const operation = row->op == KDA_OP_VERIFY ? "verify" : "commit";
    const union args args = make(row);
    kda_error err = {.cuda = 77};
    kda_plan plan = untouched;
    const soft_counters before = rig.soft_count();
    kda_status status = call(context, row->op, &args, &err);
    if (row->outcome == IS_REFUSED) {
        check_refusal(status, &err, row->status, row->words, operation, &plan, before);
        status = plan_call(row->op, &args, NULL, NULL, &plan, &err);
        check_refusal(status, &err, row->status, row->words, operation, &plan, before);
        assert_int_equal(call(context, row->op, &args, NULL), row->status);
        same_over_dlpack(row->op, &args, status, &err);
        return;
    }
    const unsigned launches = row->outcome == IS_LAUNCHED;
    rig_ok(status, &err);
    assert_int_equal(rig.soft_count().calls, before.calls + launches);
    rig_ok(plan_call(row->op, &args, NULL, NULL, &plan, &err), &err);
    const soft_counters planned = rig.soft_count();
    rig_ok(kda_plan_launch(&plan, NULL, &err), &err);
    assert_int_equal(rig.soft_count().calls, planned.calls + launches);
    assert_int_equal(rig.soft_count().launches, before.launches + 2 * launches);
    assert_int_equal(err.cuda, 77);
    same_over_dlpack(row->op, &args, KDA_OK, &err);
    assert_int_equal(rig.soft_count().launches, before.launches + 3 * launches);
    soft_launch_record last;
    if (!launches) return;
    assert_true(rig.soft_last_launch(&last));
    assert_int_equal(last.grid[1], row->shape.rows);
    assert_int_equal(last.grid[0] % row->shape.value_heads, 0);
}

// ------------------------------------------------------------------------------- devices and names

static void null_arguments(void **state)
{
    (void)state;
    const kda_verify_args verify = rig_verify(BATCHED);
    const kda_commit_args commit = rig_commit(BATCHED);
    kda_plan plan;
    kda_error err;
    rig_refused(kda_verify(NULL, &verify, NULL, &err), &err, KDA_E_ARGUMENT, "context is null");
    rig_refused(kda_verify(context, NULL, NULL, &err), &err, KDA_E_ARGUMENT, "args is null");
    rig_refused(kda_commit(NULL, &commit, NULL, &err), &err, KDA_E_ARGUMENT, "context is null");
    rig_refused(kda_commit_plan(context, NULL, NULL, NULL, &plan, &err), &err, KDA_E_ARGUMENT,
                "args is null");
    rig_refused(kda_verify_plan(context, &verify, NULL, NULL, NULL, &err), &err, KDA_E_ARGUMENT,
                "out is null");
    rig_refused(kda_commit_plan(context, &commit, NULL, NULL, NULL, &err), &err, KDA_E_ARGUMENT,
                "out is null");
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
        union args args = {.verify = rig_verify(BATCHED)};
        rig_refused(call(other, KDA_OP_VERIFY, &args, &err), &err, rows[i].status, rows[i].words);
        // Arguments are refused before the route, and no tokens do not make a route.
        args.verify.out.data = args.verify.v.data;
        rig_refused(call(other, KDA_OP_VERIFY, &args, &err), &err, KDA_E_OVERLAP, "overlaps v");
        clear_tokens(&args.verify);
        args.verify.ssm_state_indices.extent[0] = 0;
        rig_refused(call(other, KDA_OP_VERIFY, &args, &err), &err, rows[i].status, rows[i].words);
        args.commit = rig_commit(BATCHED);
        rig_refused(call(other, KDA_OP_COMMIT, &args, &err), &err, rows[i].status, rows[i].words);
        assert_int_equal(rig.soft_count().calls, before.calls);
        kda_context_close(&other);
    }
}

// Every body of the operation: forced where it serves the call, refused by name where it does not.
static void forced(void **state)
{
    (void)state;
    static const char *const targets[] = {"sm_100f", "sm_100a"};
    const struct rig_shape shapes[] = {BATCHED, PACKED, BOUND, SOFTPLUS, ONE};
    int ran = 0, refused = 0;
    for (kda_op op = KDA_OP_VERIFY; op <= KDA_OP_COMMIT; op++)
        for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
            for (uint32_t b = 0; b < rig.bundle->body_count; b++) {
                const struct kda_format_body *const body = &rig.bundle->bodies[b];
                const char *const name = rig.bundle->strings + body->name;
                const uint32_t tokens = (uint32_t)shapes[s].tokens;
                const bool serves = body->op == (uint32_t)op &&
                                    body->gate == (uint32_t)shapes[s].gate &&
                                    body->tokens_min <= tokens && tokens <= body->tokens_max;
                union args args;
                if (op == KDA_OP_VERIFY)
                    args.verify = rig_verify(shapes[s]);
                else
                    args.commit = rig_commit(shapes[s]);
                kda_error err;
                kda_plan plan = untouched;
                soft_launch_record last;
                const soft_counters before = rig.soft_count();
                if (!serves) {
                    const kda_status status = plan_call(op, &args, name, NULL, &plan, &err);
                    check_refusal(status, &err, KDA_E_NAME, name,
                                  op == KDA_OP_VERIFY ? "verify" : "commit", &plan, before);
                    refused++;
                    continue;
                }
                for (size_t t = 0; t < sizeof(targets) / sizeof(targets[0]); t++, ran++) {
                    rig_ok(plan_call(op, &args, name, targets[t], &plan, &err), &err);
                    rig_ok(kda_plan_launch(&plan, NULL, &err), &err);
                    assert_true(rig.soft_last_launch(&last));
                    assert_string_equal(last.body, name);
                    assert_string_equal(last.target, targets[t]);
                }
            }
    assert_true(ran >= 20 && refused > 0);
    union args args = {.verify = rig_verify(BATCHED)};
    kda_error err;
    kda_plan plan = untouched;
    const soft_counters before = rig.soft_count();
    check_refusal(plan_call(KDA_OP_VERIFY, &args, NULL, "sm_42", &plan, &err), &err, KDA_E_NAME,
                  "sm_100f", "verify", &plan, before);
}

// A window of no tokens needs no image: nothing is loaded, not even by a capture that would refuse.
static void empty_needs_no_image(void **state)
{
    (void)state;
    kda_context *cold = NULL;
    kda_error err;
    CUstream stream;
    CUgraph graph;
    size_t nodes = 1;
    kda_verify_args args = rig_verify(PACKED);
    rig_ok(kda_context_create(rig.bundle, rig.cuda, NULL, &cold, &err), &err);
    assert_int_equal(rig.cuStreamCreate(&stream, 0), 0);
    assert_int_equal(rig.cuStreamBeginCapture_v2(stream, 0), 0);
    rig_refused(kda_verify(cold, &args, stream, &err), &err, KDA_E_NOT_PREPARED, "verify");
    clear_tokens(&args);
    rig_ok(kda_verify(cold, &args, stream, &err), &err);
    assert_int_equal(rig.cuStreamEndCapture(stream, &graph), 0);
    assert_int_equal(rig.cuGraphGetNodes(graph, NULL, &nodes), 0);
    assert_int_equal(nodes, 0);
    assert_int_equal(rig.cuGraphDestroy(graph), 0);
    assert_int_equal(rig.cuStreamDestroy_v2(stream), 0);
    kda_context_close(&cold);
}

int main(int argc, char **argv)
{
    rig_open(argc, argv);
#define REFUSED(name, shape, status, words, ...)                                                   \
    {"verify_" #name, KDA_OP_VERIFY, shape, IS_REFUSED, KDA_E_##status, words, verify_##name, NULL},
#define LAUNCHED(name, shape, ...)                                                                 \
    {"verify_" #name, KDA_OP_VERIFY, shape, IS_LAUNCHED, KDA_OK, "", verify_##name, NULL},
#define EMPTY(name, shape, ...)                                                                    \
    {"verify_empty_" #name, KDA_OP_VERIFY, shape, IS_EMPTY, KDA_OK, "", verify_empty_##name, NULL},
    struct window_case rows[] = {
#include "tests/args_verify.inc"
#undef REFUSED
#undef LAUNCHED
#undef EMPTY
#define REFUSED(name, shape, status, words, ...)                                                   \
    {"commit_" #name, KDA_OP_COMMIT, shape, IS_REFUSED, KDA_E_##status, words, NULL, commit_##name},
#define LAUNCHED(name, shape, ...)                                                                 \
    {"commit_" #name, KDA_OP_COMMIT, shape, IS_LAUNCHED, KDA_OK, "", NULL, commit_##name},
#include "tests/args_commit.inc"
#undef REFUSED
#undef LAUNCHED
    };
    enum { ROWS = sizeof(rows) / sizeof(rows[0]) };
    struct CMUnitTest tests[ROWS + 4] = {
        cmocka_unit_test(null_arguments),
        cmocka_unit_test(other_devices),
        cmocka_unit_test(forced),
        cmocka_unit_test(empty_needs_no_image),
    };
    for (size_t i = 0; i < ROWS; i++)
        tests[4 + i] = (struct CMUnitTest){rows[i].name, test_case, NULL, NULL, &rows[i]};
    const int failed = cmocka_run_group_tests_name("args_window", tests, setup, teardown);
    rig_close();
    return failed;
}
