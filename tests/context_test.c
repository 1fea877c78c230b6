// SPDX-License-Identifier: Apache-2.0
// What the library does with the driver: opening it, contexts that are lost, images that are loaded
// once, late, twice at a time, under capture or not at all, and forks. Cases that need a process in
// which no driver was opened yet run in children, forked before the library has touched it.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/rig.h"

static const struct rig_shape DENSE = {KDA_GATE_PRECOMPUTED, 1, false, 3, 2, 4, 8};
static const char *const BODY = "d128_t1_precomputed_direct_split16", *const TARGET = "sm_100f";

static kda_context *create(const kda_bundle *bundle)
{
    kda_context *context = NULL;
    kda_error err;
    rig_ok(kda_context_create(bundle, rig.cuda, NULL, &context, &err), &err);
    return context;
}

static kda_problem problem(void)
{
    return (kda_problem){.op = KDA_OP_RECURRENT,
                         .gate = KDA_GATE_PRECOMPUTED,
                         .tokens = 1,
                         .rows = 3,
                         .heads = 2,
                         .value_heads = 4};
}

static CUcontext current(void)
{
    CUcontext context = NULL;
    assert_int_equal(rig.cuCtxGetCurrent(&context), 0);
    return context;
}

// ------------------------------------------------------------------------------ opening the driver

// In a child nothing may return to the runner: a failed check is an exit status, printed first.
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static void run_in_child(void (*body)(void))
{
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        body();
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static bool says(const kda_error *err, kda_status status, const char *words)
{
    if (err->status == status && strstr(err->text, words)) return true;
    fprintf(stderr, "found %s: %s\n", kda_status_name(err->status), err->text);
    return false;
}

static void create_succeeds(void)
{
    kda_context *context = NULL;
    kda_error err;
    CHECK(rig.cuInit(0) == 0);
    CHECK(rig.cuCtxCreate_v2(&rig.cuda, 0, 0) == 0);
    CHECK(kda_context_create(rig.bundle, rig.cuda, NULL, &context, &err) == KDA_OK);
    kda_context_close(&context);
    CHECK(context == NULL);
}

static void refuse_stub(void)
{
    kda_context *context = NULL;
    kda_error err;
    rig.soft_reset();
    rig.soft_set_stub(true);
    CHECK(kda_context_create(rig.bundle, NULL, NULL, &context, &err) == KDA_E_NO_DRIVER);
    CHECK(says(&err, KDA_E_NO_DRIVER, "is a stub") && context == NULL);
    rig.soft_set_stub(false);
    create_succeeds();
    // The driver is open now; a stub shows at the first call instead.
    rig.soft_set_stub(true);
    CHECK(kda_context_create(rig.bundle, NULL, NULL, &context, &err) == KDA_E_NO_DRIVER);
    CHECK(says(&err, KDA_E_NO_DRIVER, "cuInit") && err.cuda == 34);
}

static void refuse_hidden_symbols(void)
{
    static const char *const names[] = {
#define KDA_SYMBOL(name, version, parameters) #name,
#include "loader/symbols.inc"
#undef KDA_SYMBOL
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        kda_context *context = NULL;
        kda_error err;
        rig.soft_reset();
        rig.soft_hide_symbol(names[i]);
        CHECK(kda_context_create(rig.bundle, NULL, NULL, &context, &err) == KDA_E_NO_DRIVER);
        CHECK(says(&err, KDA_E_NO_DRIVER, names[i]) && context == NULL);
    }
    rig.soft_hide_symbol(NULL);
    create_succeeds();
}

static void exec_without_driver(void)
{
    unsetenv("LD_LIBRARY_PATH");
    execl("/proc/self/exe", rig.program, rig.path, "--no-driver", (char *)NULL);
    CHECK(false);  // exec does not return
}

// The program's other mode, run where libcuda.so.1 cannot be found.
static int refuse_missing_driver(const char *path)
{
    kda_bundle *bundle = NULL;
    kda_context *context = NULL;
    kda_error err;
    CHECK(kda_bundle_open_file(path, &bundle, &err) == KDA_OK);
    if (kda_context_create(bundle, NULL, NULL, &context, &err) != KDA_E_NO_DRIVER) {
        // A machine with a driver in the default path cannot show this.
        CHECK(err.status != KDA_E_NO_DRIVER);
        return 0;
    }
    CHECK(says(&err, KDA_E_NO_DRIVER, "libcuda.so.1") && context == NULL);
    kda_bundle_close(&bundle);
    return 0;
}

static void *create_and_close(void *barrier)
{
    kda_context *context = NULL;
    (void)pthread_barrier_wait(barrier);
    const kda_status status = kda_context_create(rig.bundle, rig.cuda, NULL, &context, NULL);
    kda_context_close(&context);
    return status == KDA_OK ? barrier : NULL;
}

static void open_from_many_threads(void)
{
    enum { THREADS = 16 };
    rig.soft_reset();
    CHECK(rig.cuInit(0) == 0 && rig.cuCtxCreate_v2(&rig.cuda, 0, 0) == 0);
    pthread_barrier_t barrier;
    CHECK(pthread_barrier_init(&barrier, NULL, THREADS) == 0);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, create_and_close, &barrier) == 0);
    for (int i = 0; i < THREADS; i++) {
        void *good = NULL;
        CHECK(pthread_join(threads[i], &good) == 0 && good);
    }
    CHECK(pthread_barrier_destroy(&barrier) == 0);
}

static void missing_driver(void **state) { (void)state, run_in_child(exec_without_driver); }
static void stub_driver(void **state) { (void)state, run_in_child(refuse_stub); }
static void hidden_symbols(void **state) { (void)state, run_in_child(refuse_hidden_symbols); }
static void racing_opens(void **state) { (void)state, run_in_child(open_from_many_threads); }

// ---------------------------------------------------------------------------------------- identity

static void create_arguments(void **state)
{
    (void)state;
    rig_start(10, 0);
    kda_context *context = NULL;
    kda_error err;
    rig_refused(kda_context_create(NULL, rig.cuda, NULL, &context, &err), &err, KDA_E_ARGUMENT,
                "bundle is null");
    rig_refused(kda_context_create(rig.bundle, rig.cuda, NULL, NULL, &err), &err, KDA_E_ARGUMENT,
                "out is null");
    kda_device device = {.overridden = KDA_OVERRIDDEN_SMS};
    rig_refused(kda_context_create(rig.bundle, rig.cuda, &device, &context, &err), &err,
                KDA_E_ARGUMENT, "SM count is 0");
    device = (kda_device){.overridden = 8};
    rig_refused(kda_context_create(rig.bundle, rig.cuda, &device, &context, &err), &err,
                KDA_E_ARGUMENT, "0x8");
    device = (kda_device){.reserved = {0, 1, 0}};
    rig_refused(kda_context_create(rig.bundle, rig.cuda, &device, &context, &err), &err,
                KDA_E_ARGUMENT, "overrides.reserved[1] is 0x1, must be 0");
    assert_int_equal(rig.cuCtxSetCurrent(NULL), 0);
    rig_refused(kda_context_create(rig.bundle, NULL, NULL, &context, &err), &err, KDA_E_ARGUMENT,
                "none is current");
    rig_refused(kda_context_prepare(NULL, NULL, &err), &err, KDA_E_ARGUMENT, "context is null");
    assert_null(context);
    assert_int_equal(rig.cuCtxDestroy_v2(rig.cuda), 0);
    rig_refused(kda_context_create(rig.bundle, rig.cuda, NULL, &context, &err), &err,
                KDA_E_CONTEXT_LOST, "cuCtxGetId");
    kda_context_close(NULL);
    kda_context_close(&context);
}

static void device_facts(void **state)
{
    (void)state;
    rig_start(10, 3);
    rig.soft_set_device(0, 10, 3, 152);
    rig.soft_set_driver_version(12090);
    kda_context *context = create(rig.bundle);
    kda_device device = kda_context_device(context);
    assert_int_equal(device.cc_major, 10);
    assert_int_equal(device.cc_minor, 3);
    assert_int_equal(device.sm_count, 152);
    assert_int_equal(device.cuda_version, 12090);
    assert_int_equal(device.overridden, 0);
    kda_context_close(&context);
    const kda_device overrides = {
        .sm_count = 16, .cuda_version = 1, .overridden = KDA_OVERRIDDEN_SMS};
    kda_error err;
    rig_ok(kda_context_create(rig.bundle, NULL, &overrides, &context, &err), &err);
    device = kda_context_device(context);
    assert_int_equal(device.sm_count, 16);
    assert_int_equal(device.cuda_version, 12090);
    assert_int_equal(device.overridden, KDA_OVERRIDDEN_SMS);
    kda_context_close(&context);
    device = kda_context_device(NULL);
    assert_memory_equal(&device, &(kda_device){0}, sizeof(device));
}

// Facts that are overridden to another chip route to images that this one cannot run: no driver
// call may be made.
static void foreign_chip(void **state)
{
    (void)state;
    rig_start(12, 0);
    const kda_device overrides = {.cc_major = 10, .overridden = KDA_OVERRIDDEN_CC};
    kda_context *context = NULL;
    kda_error err;
    rig_ok(kda_context_create(rig.bundle, rig.cuda, &overrides, &context, &err), &err);
    const kda_recurrent_args args = rig_recurrent(DENSE);
    const soft_counters before = rig.soft_count();
    rig_refused(kda_recurrent(context, &args, NULL, &err), &err, KDA_E_NO_ROUTE,
                "the device is CC 12.0");
    assert_int_equal(rig.soft_count().calls, before.calls);
    kda_context_close(&context);
}

static void expect_lost(kda_context *context, const kda_plan *plan)
{
    const kda_recurrent_args args = rig_recurrent(DENSE);
    const kda_problem wanted = problem();
    kda_plan other;
    kda_error err;
    const soft_counters before = rig.soft_count();
    rig_refused(kda_context_prepare(context, NULL, &err), &err, KDA_E_CONTEXT_LOST,
                "context prepare");
    rig_refused(kda_context_prepare(context, &wanted, &err), &err, KDA_E_CONTEXT_LOST,
                "context prepare");
    rig_refused(kda_recurrent_plan(context, &args, NULL, NULL, &other, &err), &err,
                KDA_E_CONTEXT_LOST, "recurrent");
    if (plan) {
        rig_refused(kda_plan_launch(plan, NULL, &err), &err, KDA_E_CONTEXT_LOST, BODY);
        assert_true(err.cuda == 400 || err.cuda == 709 || err.cuda == 4);
        rig_refused(kda_recurrent(context, &args, NULL, &err), &err, KDA_E_CONTEXT_LOST,
                    "cuLaunchKernel");
    } else {
        rig_refused(kda_recurrent(context, &args, NULL, &err), &err, KDA_E_CONTEXT_LOST,
                    "recurrent");
    }
    assert_int_equal(rig.soft_count().loads, before.loads);
    assert_int_equal(rig.soft_count().launches, before.launches);
    const soft_counters refused =
        rig.soft_count();  // a stale launch is the caller's error, a close must not be
    kda_context_close(&context);
    assert_int_equal(rig.soft_count().unloads, before.unloads);
    assert_int_equal(rig.soft_count().caller_errors, refused.caller_errors);
}

static void destroyed_context(void **state)
{
    (void)state;
    for (int warm = 0; warm < 2; warm++) {
        rig_start(10, 0);
        kda_context *context = create(rig.bundle);
        const kda_recurrent_args args = rig_recurrent(DENSE);
        kda_plan plan;
        kda_error err;
        if (warm) rig_ok(kda_recurrent_plan(context, &args, NULL, NULL, &plan, &err), &err);
        assert_int_equal(rig.cuCtxDestroy_v2(rig.cuda), 0);
        expect_lost(context, warm ? &plan : NULL);
    }
}

// The handle of a primary context stays valid across a reset; only its id tells.
static void reset_context(void **state)
{
    (void)state;
    for (int warm = 0; warm < 2; warm++) {
        rig_start(10, 0);
        CUcontext primary = NULL;
        assert_int_equal(rig.cuDevicePrimaryCtxRetain(&primary, 0), 0);
        assert_int_equal(rig.cuCtxSetCurrent(primary), 0);
        rig.cuda = primary;
        kda_context *context = create(rig.bundle);
        const kda_recurrent_args args = rig_recurrent(DENSE);
        kda_plan plan;
        kda_error err;
        if (warm) rig_ok(kda_recurrent_plan(context, &args, NULL, NULL, &plan, &err), &err);
        assert_int_equal(rig.cuDevicePrimaryCtxReset_v2(0), 0);
        CUcontext again = NULL;
        assert_int_equal(rig.cuDevicePrimaryCtxRetain(&again, 0), 0);
        assert_ptr_equal(again, primary);
        assert_int_equal(rig.cuCtxSetCurrent(again), 0);
        expect_lost(context, warm ? &plan : NULL);
    }
}

static void current_context_is_kept(void **state)
{
    (void)state;
    rig_start(10, 0);
    CUcontext other = NULL;
    assert_int_equal(rig.cuCtxCreate_v2(&other, 0, 0), 0);
    CUcontext const currents[] = {other, NULL};
    for (size_t i = 0; i < 2; i++) {
        // Setting none only uncovers what is below it on the thread's stack.
        do assert_int_equal(rig.cuCtxSetCurrent(currents[i]), 0);
        while (current() != currents[i]);
        kda_context *context = create(rig.bundle);
        assert_ptr_equal(current(), currents[i]);
        const kda_recurrent_args args = rig_recurrent(DENSE);
        const kda_problem wanted = problem();
        kda_plan plan;
        kda_error err;
        rig_ok(kda_recurrent_plan(context, &args, NULL, NULL, &plan, &err), &err);
        assert_ptr_equal(current(), currents[i]);
        rig_ok(kda_context_prepare(context, &wanted, &err), &err);
        rig_ok(kda_context_prepare(context, NULL, &err), &err);
        assert_ptr_equal(current(), currents[i]);
        // The null stream is that of the current context, which is not the bound one.
        rig_refused(kda_plan_launch(&plan, NULL, &err), &err, i ? KDA_E_DRIVER : KDA_E_CONTEXT_LOST,
                    BODY);
        assert_ptr_equal(current(), currents[i]);
        kda_context_close(&context);
        assert_ptr_equal(current(), currents[i]);
    }
}

// Images and the shared-memory opt-in belong to a context, whichever is used first.
static void two_contexts(void **state)
{
    (void)state;
    rig_start(10, 0);
    struct kda_format_body *const bodies = malloc(rig.bundle->body_count * sizeof(*bodies));
    assert_non_null(bodies);
    memcpy(bodies, rig.bundle->bodies, rig.bundle->body_count * sizeof(*bodies));
    bodies[kda_bundle_find_body(rig.bundle, BODY)].smem = 65536;
    kda_bundle bundle = *rig.bundle;
    bundle.bodies = bodies;

    CUcontext const first = rig.cuda;
    CUcontext second = NULL;
    assert_int_equal(rig.cuCtxCreate_v2(&second, 0, 0), 0);
    kda_context *const a = create(&bundle);
    rig.cuda = second;
    kda_context *const b = create(&bundle);
    kda_context *order[] = {b, a};
    CUcontext const owners[] = {second, first};
    const kda_recurrent_args args = rig_recurrent(DENSE);
    kda_error err;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(rig.cuCtxSetCurrent(owners[i]), 0);
        rig_ok(kda_recurrent(order[i], &args, NULL, &err), &err);
        soft_launch_record last;
        assert_true(rig.soft_last_launch(&last));
        assert_int_equal(last.smem, 65536);
        assert_int_equal(rig.soft_count().loads, i + 1);
    }
    for (int i = 0; i < 2; i++) kda_context_close(&order[i]);
    assert_int_equal(rig.soft_count().live_modules, 0);
    free(bodies);
}

// ------------------------------------------------------------------------------------------ images

static void prepare_one_and_all(void **state)
{
    (void)state;
    rig_start(10, 0);
    kda_context *context = create(rig.bundle);
    assert_int_equal(rig.soft_count().loads, 0);
    kda_problem wanted = problem();
    kda_error err;
    rig_ok(kda_context_prepare(context, &wanted, &err), &err);
    rig_ok(kda_context_prepare(context, &wanted, &err), &err);
    assert_int_equal(rig.soft_count().loads, 1);
    wanted.tokens = 3;
    rig_refused(kda_context_prepare(context, &wanted, &err), &err, KDA_E_UNSUPPORTED,
                "does not support");
    wanted = problem();
    wanted.reserved[0] = 1;
    rig_refused(kda_context_prepare(context, &wanted, &err), &err, KDA_E_ARGUMENT, "reserved");
    assert_int_equal(rig.soft_count().loads, 1);
    rig_ok(kda_context_prepare(context, NULL, &err), &err);
    const soft_counters all = rig.soft_count();
    assert_true(all.loads > 1);
    rig_ok(kda_context_prepare(context, NULL, &err), &err);
    assert_int_equal(rig.soft_count().loads, all.loads);

    // No routed problem is cold any more: every body that a rule names, for every number of rows.
    static const struct {
        kda_gate gate;
        int tokens;
        int64_t heads;
    } kinds[] = {{KDA_GATE_PRECOMPUTED, 1, 4}, {KDA_GATE_PRECOMPUTED, 2, 4},
                 {KDA_GATE_PRECOMPUTED, 4, 4}, {KDA_GATE_PRECOMPUTED, 5, 4},
                 {KDA_GATE_PRECOMPUTED, 6, 4}, {KDA_GATE_LOWER_BOUND, 3, 16},
                 {KDA_GATE_SOFTPLUS, 1, 4}};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        for (int64_t rows = 1; rows <= 4096; rows *= 2) {
            if (kinds[i].tokens == 3 && rows > 16) break;
            const struct rig_shape shape = {
                kinds[i].gate,  kinds[i].tokens,       false, rows, kinds[i].heads,
                kinds[i].heads, rows * kinds[i].tokens};
            const kda_recurrent_args args = rig_recurrent(shape);
            const soft_counters before = rig.soft_count();
            rig_ok(kda_recurrent(context, &args, NULL, &err), &err);
            assert_int_equal(rig.soft_count().calls, before.calls + 1);
        }
    }
    for (int gate = 0; gate < 3; gate++)
        for (int tokens = 1; tokens <= 16; tokens++)
            for (int64_t rows = 1; rows <= 4096; rows *= 2) {
                const struct rig_shape shape = {(kda_gate)gate, tokens, true, rows, 4, 4, rows};
                const kda_verify_args verify = rig_verify(shape);
                const kda_commit_args commit = rig_commit(shape);
                const soft_counters before = rig.soft_count();
                rig_ok(kda_verify(context, &verify, NULL, &err), &err);
                rig_ok(kda_commit(context, &commit, NULL, &err), &err);
                assert_int_equal(rig.soft_count().calls, before.calls + 2);
            }
    kda_context_close(&context);
    assert_null(context);
    assert_int_equal(rig.soft_count().live_modules, 0);
    assert_int_equal(rig.soft_count().unloads, all.loads);
}

static void cold_under_capture(void **state)
{
    (void)state;
    rig_start(10, 0);
    kda_context *context = create(rig.bundle);
    CUstream stream = NULL;
    assert_int_equal(rig.cuStreamCreate(&stream, 0), 0);
    const kda_recurrent_args args = rig_recurrent(DENSE);
    kda_error err;
    assert_int_equal(rig.cuStreamBeginCapture_v2(stream, KDA_CU_CAPTURE_GLOBAL), 0);
    const soft_counters before = rig.soft_count();
    rig_refused(kda_recurrent(context, &args, stream, &err), &err, KDA_E_NOT_PREPARED, BODY);
    rig_refused(kda_recurrent(context, &args, stream, &err), &err, KDA_E_NOT_PREPARED, TARGET);
    // The legacy stream may not even be asked meanwhile.
    rig_refused(kda_recurrent(context, &args, NULL, &err), &err, KDA_E_NOT_PREPARED, BODY);
    kda_plan plan;
    rig_refused(kda_recurrent_plan(context, &args, NULL, NULL, &plan, &err), &err,
                KDA_E_NOT_PREPARED, BODY);
    rig_refused(kda_context_prepare(context, NULL, &err), &err, KDA_E_NOT_PREPARED,
                "a stream is being captured");
    assert_int_equal(rig.soft_count().loads, before.loads);
    assert_int_equal(rig.soft_count().loads_in_capture, 0);
    int capture = -1;
    assert_int_equal(rig.cuStreamIsCapturing(stream, &capture), 0);
    assert_int_equal(capture, KDA_CU_CAPTURE_ACTIVE);
    CUgraph graph = NULL;
    assert_int_equal(rig.cuStreamEndCapture(stream, &graph), 0);
    assert_int_equal(rig.cuGraphDestroy(graph), 0);

    rig_ok(kda_context_prepare(context, NULL, &err), &err);
    assert_int_equal(rig.cuStreamBeginCapture_v2(stream, KDA_CU_CAPTURE_GLOBAL), 0);
    rig_ok(kda_recurrent(context, &args, stream, &err), &err);
    assert_int_equal(rig.cuStreamEndCapture(stream, &graph), 0);
    size_t nodes = 0;
    assert_int_equal(rig.cuGraphGetNodes(graph, NULL, &nodes), 0);
    assert_int_equal(nodes, 1);
    assert_int_equal(rig.cuGraphDestroy(graph), 0);
    assert_int_equal(rig.cuStreamDestroy_v2(stream), 0);
    kda_context_close(&context);
    assert_int_equal(rig.soft_count().caller_errors, 0);
}

struct crowd {
    kda_context *context;
    pthread_barrier_t barrier;
};

static void *launch_cold(void *argument)
{
    struct crowd *const crowd = argument;
    const kda_recurrent_args args = rig_recurrent(DENSE);
    if (rig.cuCtxSetCurrent(rig.cuda)) return NULL;
    (void)pthread_barrier_wait(&crowd->barrier);
    return kda_recurrent(crowd->context, &args, NULL, NULL) == KDA_OK ? crowd : NULL;
}

static void one_load_for_many_threads(void **state)
{
    (void)state;
    enum { THREADS = 64 };
    rig_start(10, 0);
    struct crowd crowd = {.context = create(rig.bundle)};
    rig.soft_delay_load(20000);
    assert_int_equal(pthread_barrier_init(&crowd.barrier, NULL, THREADS), 0);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, launch_cold, &crowd), 0);
    for (int i = 0; i < THREADS; i++) {
        void *good = NULL;
        assert_int_equal(pthread_join(threads[i], &good), 0);
        assert_non_null(good);
    }
    assert_int_equal(rig.soft_count().loads, 1);
    assert_int_equal(rig.soft_count().launches, THREADS);
    assert_int_equal(pthread_barrier_destroy(&crowd.barrier), 0);
    kda_context_close(&crowd.context);
}

// ------------------------------------------------------------------------------------------ faults

// The k-th driver call of a cold launch fails, for every k: the right status, nothing left behind,
// and a retry works.
static void any_call_fails(void **state)
{
    (void)state;
    bool succeeded = false;
    for (long k = 1; !succeeded; k++) {
        assert_true(k < 100);
        rig_start(10, 0);
        const kda_recurrent_args args = rig_recurrent(DENSE);
        kda_context *context = NULL;
        kda_error err;
        rig.soft_fail_call(k, KDA_CU_UNKNOWN);
        kda_status status = kda_context_create(rig.bundle, rig.cuda, NULL, &context, &err);
        const bool created = status == KDA_OK;
        if (created) status = kda_recurrent(context, &args, NULL, &err);
        succeeded = status == KDA_OK;
        if (!succeeded) {
            rig_refused(status, &err, KDA_E_DRIVER, "returned 999");
            assert_int_equal(err.cuda, KDA_CU_UNKNOWN);
            assert_true(created || context == NULL);
        }
        rig.soft_fail_call(0, 0);
        // A pop that failed left the bound context on the stack, which the library cannot mend.
        assert_int_equal(rig.cuCtxSetCurrent(rig.cuda), 0);
        if (!created) context = create(rig.bundle);
        rig_ok(kda_recurrent(context, &args, NULL, &err), &err);
        assert_int_equal(rig.soft_count().live_modules, 1);
        kda_context_close(&context);
        assert_int_equal(rig.soft_count().live_modules, 0);
        assert_int_equal(rig.soft_count().caller_errors, 0);
    }
}

static void failing_load(void **state)
{
    (void)state;
    static const int results[] = {200, 209, 801, 2};
    for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++) {
        rig_start(10, 0);
        kda_context *context = create(rig.bundle);
        const kda_problem wanted = problem();
        kda_error err;
        // Identity twice, push, capture query, load.
        rig.soft_fail_call(5, results[i]);
        const kda_status status = kda_context_prepare(context, &wanted, &err);
        rig_refused(status, &err, KDA_E_DRIVER, "cuModuleLoadData returned");
        assert_int_equal(err.cuda, results[i]);
        assert_non_null(strstr(err.text, BODY));
        assert_non_null(strstr(err.text, TARGET));
        assert_non_null(strstr(err.text, "needs CUDA 12.9 or newer, the driver has 13.0"));
        assert_int_equal(rig.soft_count().live_modules, 0);
        rig.soft_fail_call(0, 0);
        rig_ok(kda_context_prepare(context, &wanted, &err), &err);
        kda_context_close(&context);
    }
}

static void failing_launch(void **state)
{
    (void)state;
    static const struct {
        int result;
        kda_status status;
    } rows[] = {{400, KDA_E_CONTEXT_LOST}, {709, KDA_E_CONTEXT_LOST}, {4, KDA_E_CONTEXT_LOST},
                {719, KDA_E_DRIVER},       {1, KDA_E_DRIVER},         {201, KDA_E_DRIVER},
                {701, KDA_E_DRIVER}};
    rig_start(10, 0);
    kda_context *context = rig_context();
    kda_recurrent_args args = rig_recurrent(DENSE);
    for (size_t i = 0; i < 2 * sizeof(rows) / sizeof(rows[0]); i++) {
        args.flags = i % 2 ? KDA_FLAG_PDL : 0;
        kda_error err;
        rig.soft_fail_call(1, rows[i / 2].result);
        const kda_status status = kda_recurrent(context, &args, NULL, &err);
        rig_refused(status, &err, rows[i / 2].status,
                    i % 2 ? "cuLaunchKernelEx returned" : "cuLaunchKernel returned");
        assert_int_equal(err.cuda, rows[i / 2].result);
        char number[16];
        (void)snprintf(number, sizeof(number), "%d CUDA_ERROR_", rows[i / 2].result);
        assert_non_null(strstr(err.text, number));
        assert_non_null(strstr(err.text, BODY));
        assert_non_null(strstr(err.text, TARGET));
        rig_ok(kda_recurrent(context, &args, NULL, &err), &err);
    }
    kda_context_close(&context);
}

static void pdl_needs_a_waiting_body(void **state)
{
    (void)state;
    rig_start(10, 0);
    struct kda_format_body *const bodies = malloc(rig.bundle->body_count * sizeof(*bodies));
    assert_non_null(bodies);
    memcpy(bodies, rig.bundle->bodies, rig.bundle->body_count * sizeof(*bodies));
    for (uint32_t i = 0; i < rig.bundle->body_count; i++) bodies[i].flags &= ~KDA_BODY_PDL;
    kda_bundle bundle = *rig.bundle;
    bundle.bodies = bodies;
    kda_context *context = create(&bundle);
    kda_recurrent_args args = rig_recurrent(DENSE);
    kda_error err;
    rig_ok(kda_recurrent(context, &args, NULL, &err), &err);
    args.flags = KDA_FLAG_PDL;
    rig_refused(kda_recurrent(context, &args, NULL, &err), &err, KDA_E_UNSUPPORTED, BODY);
    for (uint32_t i = 0; i < rig.bundle->body_count; i++) bodies[i].params_version++;
    args.flags = 0;
    rig_refused(kda_recurrent(context, &args, NULL, &err), &err, KDA_E_VERSION,
                "parameters version");
    assert_int_equal(rig.soft_count().launches, 1);
    kda_context_close(&context);
    free(bodies);
}

// ------------------------------------------------------------------------------------------- forks

static kda_context *inherited;
static kda_plan inherited_plan;

static void use_inherited(void)
{
    const kda_recurrent_args args = rig_recurrent(DENSE);
    const kda_packed_args packed = rig_packed(4, 8);
    const kda_verify_args verify = rig_verify(DENSE);
    const kda_commit_args commit = rig_commit(DENSE);
    const kda_problem wanted = problem();
    kda_plan plan;
    kda_error err;
    const soft_counters before = rig.soft_count();
    CHECK(kda_recurrent(inherited, &args, NULL, &err) == KDA_E_FORKED &&
          says(&err, KDA_E_FORKED, "recurrent"));
    CHECK(kda_packed(inherited, &packed, NULL, &err) == KDA_E_FORKED &&
          says(&err, KDA_E_FORKED, "packed"));
    CHECK(kda_verify(inherited, &verify, NULL, &err) == KDA_E_FORKED &&
          says(&err, KDA_E_FORKED, "verify"));
    CHECK(kda_commit(inherited, &commit, NULL, &err) == KDA_E_FORKED &&
          says(&err, KDA_E_FORKED, "commit"));
    CHECK(kda_recurrent_plan(inherited, &args, NULL, NULL, &plan, &err) == KDA_E_FORKED);
    CHECK(kda_plan_launch(&inherited_plan, NULL, &err) == KDA_E_FORKED &&
          says(&err, KDA_E_FORKED, "fork"));
    CHECK(kda_context_prepare(inherited, &wanted, &err) == KDA_E_FORKED);
    CHECK(kda_context_prepare(inherited, NULL, &err) == KDA_E_FORKED);
    kda_context_close(&inherited);
    CHECK(inherited == NULL);
    CHECK(rig.soft_count().calls == before.calls);
}

static void forked_process(void **state)
{
    (void)state;
    rig_start(10, 0);
    inherited = rig_context();
    const kda_recurrent_args args = rig_recurrent(DENSE);
    kda_error err;
    rig_ok(kda_recurrent_plan(inherited, &args, NULL, NULL, &inherited_plan, &err), &err);
    run_in_child(use_inherited);
    rig_ok(kda_plan_launch(&inherited_plan, NULL, &err), &err);
    kda_context_close(&inherited);
}

int main(int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[2], "--no-driver")) return refuse_missing_driver(argv[1]);
    rig_open(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_driver),     cmocka_unit_test(stub_driver),
        cmocka_unit_test(hidden_symbols),     cmocka_unit_test(racing_opens),
        cmocka_unit_test(create_arguments),   cmocka_unit_test(device_facts),
        cmocka_unit_test(foreign_chip),       cmocka_unit_test(destroyed_context),
        cmocka_unit_test(reset_context),      cmocka_unit_test(current_context_is_kept),
        cmocka_unit_test(two_contexts),       cmocka_unit_test(prepare_one_and_all),
        cmocka_unit_test(cold_under_capture), cmocka_unit_test(one_load_for_many_threads),
        cmocka_unit_test(any_call_fails),     cmocka_unit_test(failing_load),
        cmocka_unit_test(failing_launch),     cmocka_unit_test(pdl_needs_a_waiting_body),
        cmocka_unit_test(forked_process),
    };
    const int failed = cmocka_run_group_tests_name("context", tests, NULL, NULL);
    rig_close();
    return failed;
}
