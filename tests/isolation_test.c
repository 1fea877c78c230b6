// SPDX-License-Identifier: Apache-2.0
// What one CUDA context, device or capture must not notice of another: two devices with the second
// used first, shared-memory opt-in per context from a bundle of its own, handles whose address came
// back, and captures of every mode that a cold image may not end.
//   isolation-test BUNDLE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/pair.h"
#include "tests/rig.h"

static const struct rig_shape DENSE = {KDA_GATE_PRECOMPUTED, 1, false, 3, 2, 4, 8};
static const char *const BODY = "d128_t1_precomputed_direct_split16";

static kda_context *create_on(const kda_bundle *bundle, CUcontext cuda)
{
    kda_context *context = NULL;
    kda_error err;
    rig_ok(kda_context_create(bundle, cuda, NULL, &context, &err), &err);
    return context;
}

static CUcontext current(void)
{
    CUcontext context = NULL;
    assert_int_equal(rig.cuCtxGetCurrent(&context), 0);
    return context;
}

// ------------------------------------------------------------------------------- devices, contexts

static bool is_active(CUdevice device)
{
    unsigned flags = 0;
    int active = -1;
    assert_int_equal(rig.cuDevicePrimaryCtxGetState(device, &flags, &active), 0);
    return active != 0;
}

static void two_devices(void **state)
{
    (void)state;
    rig_start(10, 0);
    rig.soft_set_device_count(3);
    rig.soft_set_device(1, 10, 3, 152);
    rig.soft_set_device(2, 10, 0, 148);
    CUcontext const first = rig.cuda;
    CUcontext second = NULL;
    assert_int_equal(rig.cuCtxCreate_v2(&second, 0, 1), 0);
    kda_context *a = create_on(rig.bundle, first), *b = create_on(rig.bundle, second);
    assert_ptr_equal(current(), second);
    assert_int_equal(kda_context_device(a).cc_minor, 0);
    assert_int_equal(kda_context_device(b).cc_minor, 3);
    assert_int_equal(kda_context_device(b).sm_count, 152);
    const kda_recurrent_args args = rig_recurrent(DENSE);
    kda_error err;
    soft_launch_record last;
    rig_ok(kda_recurrent(b, &args, NULL, &err), &err);
    assert_true(rig.soft_last_launch(&last));
    assert_string_equal(last.target, "sm_103a");
    assert_int_equal(rig.soft_count().loads, 1);
    // The first one's image is loaded although the second is current, which it stays; its null
    // stream is not to be had that way.
    rig_refused(kda_recurrent(a, &args, NULL, &err), &err, KDA_E_CONTEXT_LOST, "recurrent");
    assert_ptr_equal(current(), second);
    assert_int_equal(rig.soft_count().loads, 2);
    assert_int_equal(rig.cuCtxSetCurrent(first), 0);
    rig_ok(kda_recurrent(a, &args, NULL, &err), &err);
    assert_true(rig.soft_last_launch(&last));
    assert_string_equal(last.target, "sm_100f");

    // The end of one is none of the other's business, and the third was never woken.
    assert_int_equal(rig.cuCtxDestroy_v2(first), 0);
    assert_int_equal(rig.cuCtxSetCurrent(second), 0);
    rig_ok(kda_recurrent(b, &args, NULL, &err), &err);
    rig_ok(kda_context_prepare(b, NULL, &err), &err);
    kda_context_close(&a);
    assert_true(rig.soft_count().live_modules > 1);
    kda_context_close(&b);
    assert_int_equal(rig.soft_count().live_modules, 0);
    assert_int_equal(rig.soft_count().live_contexts, 1);
    for (CUdevice i = 0; i < 3; i++) assert_false(is_active(i));
    assert_ptr_equal(current(), second);
    assert_int_equal(rig.soft_count().caller_errors, 0);
}

// The product's bundle, in which one body asks for this much shared memory.
static struct blob hungry_bundle(uint32_t smem)
{
    struct blob blob = {.data = malloc(rig.bundle->size), .size = rig.bundle->size};
    assert_non_null(blob.data);
    memcpy(blob.data, rig.bundle->data, blob.size);
    struct kda_format_header *const header = (void *)blob.data;
    struct kda_format_body *const bodies =
        (void *)(blob.data + header->spans[KDA_SPAN_BODIES].offset);
    bodies[kda_bundle_find_body(rig.bundle, BODY)].smem = smem;
    pair_sign(blob.data, blob.size);
    return blob;
}

static void shared_memory_opt_in(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {49152, 49153, 65536, 232448};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        rig_start(10, 0);
        struct blob blob = hungry_bundle(sizes[k]);
        kda_bundle *bundle = NULL;
        kda_error err;
        rig_ok(kda_bundle_open(blob.data, blob.size, &bundle, &err), &err);
        CUcontext second = NULL;
        assert_int_equal(rig.cuCtxCreate_v2(&second, 0, 0), 0);
        CUcontext const owners[] = {second, rig.cuda};
        kda_context *contexts[2];
        for (int i = 0; i < 2; i++) contexts[i] = create_on(bundle, owners[i]);
        const kda_recurrent_args args = rig_recurrent(DENSE);
        for (int i = 0; i < 2; i++) {
            const long calls = rig.soft_count().calls;
            rig_ok(kda_context_prepare(contexts[i], NULL, &err), &err);
            assert_true(rig.soft_count().calls > calls);
            assert_int_equal(rig.cuCtxSetCurrent(owners[i]), 0);
            rig_ok(kda_recurrent(contexts[i], &args, NULL, &err), &err);
            soft_launch_record last;
            assert_true(rig.soft_last_launch(&last));
            assert_string_equal(last.body, BODY);
            assert_int_equal(last.smem, sizes[k]);
        }
        for (int i = 0; i < 2; i++) kda_context_close(&contexts[i]);
        kda_bundle_close(&bundle);
        free(blob.data);
    }
    // More than the device has: refused at the load, which is undone.
    rig_start(10, 0);
    struct blob blob = hungry_bundle(232449);
    kda_bundle *bundle = NULL;
    kda_error err;
    rig_ok(kda_bundle_open(blob.data, blob.size, &bundle, &err), &err);
    kda_context *context = create_on(bundle, rig.cuda);
    const kda_recurrent_args args = rig_recurrent(DENSE);
    rig_refused(kda_recurrent(context, &args, NULL, &err), &err, KDA_E_DRIVER,
                "cuFuncSetAttribute returned 1");
    assert_non_null(strstr(err.text, BODY));
    assert_int_equal(rig.soft_count().live_modules, 0);
    kda_context_close(&context);
    kda_bundle_close(&bundle);
    free(blob.data);
}

// A context is destroyed and another one gets its address: nothing of the old one may be used.
static void address_comes_back(void **state)
{
    (void)state;
    for (int warm = 0; warm < 2; warm++) {
        rig_start(10, 0);
        CUcontext const old = rig.cuda;
        kda_context *context = create_on(rig.bundle, old);
        const kda_recurrent_args args = rig_recurrent(DENSE);
        const kda_problem problem = {
            .op = KDA_OP_RECURRENT, .tokens = 1, .rows = 3, .heads = 2, .value_heads = 4};
        kda_plan plan, other = {.opaque = {7}};
        kda_error err;
        if (warm) rig_ok(kda_recurrent_plan(context, &args, NULL, NULL, &plan, &err), &err);
        assert_int_equal(rig.cuCtxDestroy_v2(old), 0);
        assert_int_equal(rig.cuCtxCreate_v2(&rig.cuda, 0, 0), 0);
        assert_ptr_equal(rig.cuda, old);
        const soft_counters before = rig.soft_count();
        rig_refused(kda_context_prepare(context, &problem, &err), &err, KDA_E_CONTEXT_LOST, "id");
        rig_refused(kda_context_prepare(context, NULL, &err), &err, KDA_E_CONTEXT_LOST, "id");
        rig_refused(kda_recurrent_plan(context, &args, NULL, NULL, &other, &err), &err,
                    KDA_E_CONTEXT_LOST, "id");
        rig_refused(kda_recurrent(context, &args, NULL, &err), &err, KDA_E_CONTEXT_LOST,
                    "recurrent");
        if (warm) rig_refused(kda_plan_launch(&plan, NULL, &err), &err, KDA_E_CONTEXT_LOST, BODY);
        assert_int_equal(other.opaque[0], 7);
        assert_int_equal(rig.soft_count().launches, before.launches);
        assert_int_equal(rig.soft_count().loads, before.loads);
        assert_ptr_equal(current(), rig.cuda);
        kda_context_close(&context);
        // A new one on the same address knows nothing of it.
        context = create_on(rig.bundle, rig.cuda);
        rig_ok(kda_recurrent(context, &args, NULL, &err), &err);
        assert_int_equal(rig.soft_count().loads, before.loads + 1);
        kda_context_close(&context);
    }
}

// ---------------------------------------------------------------------------------------- captures

static const int modes[] = {KDA_CU_CAPTURE_GLOBAL, KDA_CU_CAPTURE_THREAD_LOCAL,
                            KDA_CU_CAPTURE_RELAXED};

// Ends a capture of `nodes` launches that must still be good, and replays it.
static void finish_capture(CUstream stream, size_t nodes)
{
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    size_t count = 0;
    assert_int_equal(rig.cuStreamEndCapture(stream, &graph), 0);
    assert_int_equal(rig.cuGraphGetNodes(graph, NULL, &count), 0);
    assert_int_equal(count, nodes);
    assert_int_equal(rig.cuGraphInstantiateWithFlags(&exec, graph, 0), 0);
    const long replays = rig.soft_count().replays;
    assert_int_equal(rig.cuGraphLaunch(exec, stream), 0);
    assert_int_equal(rig.soft_count().replays, replays + 1);
    assert_int_equal(rig.cuGraphExecDestroy(exec), 0);
    assert_int_equal(rig.cuGraphDestroy(graph), 0);
}

static void expect_cold(kda_status status, const kda_error *err, const char *body)
{
    rig_refused(status, err, KDA_E_NOT_PREPARED, body);
    assert_non_null(strstr(err->text, "sm_100f"));
}

static void cold_in_every_mode(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        rig_start(10, 0);
        kda_context *context = create_on(rig.bundle, rig.cuda);
        const kda_recurrent_args args = rig_recurrent(DENSE);
        const kda_packed_args packed = rig_packed(4, 8);
        const kda_recurrent_args four =
            rig_recurrent((struct rig_shape){KDA_GATE_PRECOMPUTED, 4, true, 2, 2, 4, 8});
        CUstream stream = NULL;
        kda_error err;
        assert_int_equal(rig.cuStreamCreate(&stream, 1), 0);
        rig_ok(kda_recurrent(context, &four, stream, &err), &err);  // this one is warm
        rig.soft_set_load_in_capture(KDA_CU_STREAM_CAPTURE_UNSUPPORTED);
        assert_int_equal(rig.cuStreamBeginCapture_v2(stream, modes[i]), 0);
        const soft_counters before = rig.soft_count();
        expect_cold(kda_recurrent(context, &args, stream, &err), &err, BODY);
        rig_ok(kda_recurrent(context, &four, stream, &err), &err);
        expect_cold(kda_packed(context, &packed, stream, &err), &err, "packed_t1_tile");
        assert_int_equal(rig.soft_count().loads, before.loads);
        assert_int_equal(rig.soft_count().loads_in_capture, 0);
        assert_ptr_equal(current(), rig.cuda);
        finish_capture(stream, 1);
        rig_ok(kda_recurrent(context, &args, stream, &err), &err);
        assert_int_equal(rig.cuStreamDestroy_v2(stream), 0);
        kda_context_close(&context);
        assert_int_equal(rig.soft_count().caller_errors, 0);
    }
}

// Some call that body `i` serves.
static kda_status plan_of(kda_context *context, uint32_t i, const char *target, kda_plan *plan,
                          kda_error *err)
{
    const struct kda_format_body *const body = &rig.bundle->bodies[i];
    const char *const name = rig.bundle->strings + body->name;
    if (body->op == KDA_OP_PACKED) {
        const kda_packed_args args = rig_packed(2, 8);
        return kda_packed_plan(context, &args, name, target, plan, err);
    }
    const int64_t heads = kda_heads_least(body->head_set, 2);
    const struct rig_shape shape = {
        (kda_gate)body->gate, (int)body->tokens_min, body->tokens_min > 1, 2, heads, heads,
        2 * body->tokens_min};
    if (body->op == KDA_OP_VERIFY) {
        const kda_verify_args args = rig_verify(shape);
        return kda_verify_plan(context, &args, name, target, plan, err);
    }
    if (body->op == KDA_OP_COMMIT) {
        const kda_commit_args args = rig_commit(shape);
        return kda_commit_plan(context, &args, name, target, plan, err);
    }
    const kda_recurrent_args args = rig_recurrent(shape);
    return kda_recurrent_plan(context, &args, name, target, plan, err);
}

// What is warm is captured in any mode, every image of the bundle that the device runs in one
// graph.
static void every_body_is_captured(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        rig_start(10, 0);
        kda_context *context = create_on(rig.bundle, rig.cuda);
        CUstream stream = NULL;
        kda_error err;
        assert_int_equal(rig.cuStreamCreate(&stream, 1), 0);
        static kda_plan plans[256];
        size_t count = 0;
        for (uint32_t body = 0; body < rig.bundle->body_count; body++) {
            static const char *const targets[] = {"sm_100f", "sm_100a"};
            for (int k = 0; k < 2; k++)
                rig_ok(plan_of(context, body, targets[k], &plans[count++], &err), &err);
        }
        assert_int_equal(rig.cuStreamBeginCapture_v2(stream, modes[i]), 0);
        const soft_counters before = rig.soft_count();
        for (size_t k = 0; k < count; k++) rig_ok(kda_plan_launch(&plans[k], stream, &err), &err);
        assert_int_equal(rig.soft_count().calls - before.calls, count);
        finish_capture(stream, count);
        assert_int_equal(rig.cuStreamDestroy_v2(stream), 0);
        kda_context_close(&context);
        assert_int_equal(rig.soft_count().live_modules, 0);
    }
}

// The library cannot see these; the soft device says whose fault they are.
static void closing_too_early(void **state)
{
    (void)state;
    const kda_recurrent_args args = rig_recurrent(DENSE);
    kda_error err;
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        rig_start(10, 0);
        kda_context *context = create_on(rig.bundle, rig.cuda);
        CUstream stream = NULL;
        assert_int_equal(rig.cuStreamCreate(&stream, 1), 0);
        rig_ok(kda_recurrent(context, &args, stream, &err), &err);
        assert_int_equal(rig.cuStreamBeginCapture_v2(stream, modes[i]), 0);
        rig_ok(kda_recurrent(context, &args, stream, &err), &err);
        kda_context_close(&context);
        assert_null(context);
        assert_int_equal(rig.soft_count().caller_errors, 1);
        assert_non_null(strstr(rig.soft_last_error(), "while a stream is being captured"));
        assert_non_null(strstr(rig.soft_last_error(), BODY));
    }
    rig_start(10, 0);
    kda_context *context = create_on(rig.bundle, rig.cuda);
    CUstream stream = NULL;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    assert_int_equal(rig.cuStreamCreate(&stream, 1), 0);
    rig_ok(kda_recurrent(context, &args, stream, &err), &err);
    assert_int_equal(rig.cuStreamBeginCapture_v2(stream, KDA_CU_CAPTURE_GLOBAL), 0);
    rig_ok(kda_recurrent(context, &args, stream, &err), &err);
    assert_int_equal(rig.cuStreamEndCapture(stream, &graph), 0);
    assert_int_equal(rig.cuGraphInstantiateWithFlags(&exec, graph, 0), 0);
    kda_context_close(&context);
    assert_int_equal(rig.soft_count().caller_errors, 1);
    assert_non_null(strstr(rig.soft_last_error(), "executable graph"));
}

int main(int argc, char **argv)
{
    rig_open(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_devices),
        cmocka_unit_test(shared_memory_opt_in),
        cmocka_unit_test(address_comes_back),
        cmocka_unit_test(cold_in_every_mode),
        cmocka_unit_test(every_body_is_captured),
        cmocka_unit_test(closing_too_early),
    };
    const int failed = cmocka_run_group_tests_name("isolation", tests, NULL, NULL);
    rig_close();
    return failed;
}
