// SPDX-License-Identifier: Apache-2.0
// Many threads that meet at cold images of one and of two devices, on a driver that takes its time
// to load: every image is loaded once per context, a failing load fails its caller and nobody else,
// nobody hangs, and a retry works. ThreadSanitizer sees all of it in the race suite.
//   threads-test BUNDLE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/rig.h"

enum { THREADS = 64, DEVICES = 2 };

struct crowd {
    kda_context *contexts[DEVICES];
    CUcontext cuda[DEVICES];
    int devices;
    pthread_barrier_t barrier;
    kda_status (*call)(struct crowd *, int thread, kda_error *err);
};

struct member {
    struct crowd *crowd;
    int number;
    kda_status status;
    kda_error err;
};

static struct member members[THREADS];

static void *run(void *argument)
{
    struct member *const self = argument;
    struct crowd *const crowd = self->crowd;
    if (rig.cuCtxSetCurrent(crowd->cuda[self->number % crowd->devices]) != 0) abort();
    (void)pthread_barrier_wait(&crowd->barrier);
    self->status = crowd->call(crowd, self->number, &self->err);
    return NULL;
}

// Everybody makes the call at once; the number that succeeded.
static int release(struct crowd *crowd)
{
    pthread_t threads[THREADS];
    assert_int_equal(pthread_barrier_init(&crowd->barrier, NULL, THREADS), 0);
    for (int i = 0; i < THREADS; i++) {
        members[i] = (struct member){.crowd = crowd, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, run, &members[i]), 0);
    }
    int good = 0;
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        good += members[i].status == KDA_OK;
    }
    assert_int_equal(pthread_barrier_destroy(&crowd->barrier), 0);
    return good;
}

static void open_crowd(struct crowd *crowd, int devices)
{
    rig_start(10, 0);
    rig.soft_set_device_count(devices);
    if (devices > 1) rig.soft_set_device(1, 10, 3, 152);
    *crowd = (struct crowd){.devices = devices};
    for (int i = 0; i < devices; i++) {
        kda_error err;
        crowd->cuda[i] = rig.cuda;
        if (i) assert_int_equal(rig.cuCtxCreate_v2(&crowd->cuda[i], 0, i), 0);
        rig_ok(kda_context_create(rig.bundle, crowd->cuda[i], NULL, &crowd->contexts[i], &err),
               &err);
    }
    rig.soft_delay_load(3000);
}

static void close_crowd(struct crowd *crowd)
{
    for (int i = 0; i < crowd->devices; i++) kda_context_close(&crowd->contexts[i]);
    assert_int_equal(rig.soft_count().live_modules, 0);
    assert_int_equal(rig.soft_count().caller_errors, 0);
}

static kda_context *context_of(const struct crowd *crowd, int thread)
{
    return crowd->contexts[thread % crowd->devices];
}

static const struct rig_shape DENSE = {KDA_GATE_PRECOMPUTED, 1, false, 3, 2, 4, 8};

static kda_status same_body(struct crowd *crowd, int thread, kda_error *err)
{
    const kda_recurrent_args args = rig_recurrent(DENSE);
    return kda_recurrent(context_of(crowd, thread), &args, NULL, err);
}

// Every routed body, each thread in an order of its own, by plain calls and by plans.
static kda_status all_bodies(struct crowd *crowd, int thread, kda_error *err)
{
    static const struct {
        kda_gate gate;
        int tokens;
        int64_t heads;
    } kinds[] = {{KDA_GATE_PRECOMPUTED, 1, 4}, {KDA_GATE_PRECOMPUTED, 2, 4},
                 {KDA_GATE_PRECOMPUTED, 4, 4}, {KDA_GATE_PRECOMPUTED, 5, 4},
                 {KDA_GATE_PRECOMPUTED, 6, 4}, {KDA_GATE_LOWER_BOUND, 3, 16},
                 {KDA_GATE_SOFTPLUS, 1, 4}};
    static const int64_t rows[] = {1, 2, 16, 64, 512, 4096};
    enum { KINDS = sizeof kinds / sizeof kinds[0], ROWS = sizeof rows / sizeof rows[0] };
    kda_context *const context = context_of(crowd, thread);
    for (int step = 0; step < KINDS * ROWS; step++) {
        const int pick = (step * 5 + thread * 7) % (KINDS * ROWS), kind = pick % KINDS;
        const int64_t n =
            kinds[kind].tokens == 3 && rows[pick / KINDS] > 16 ? 16 : rows[pick / KINDS];
        const kda_recurrent_args args = rig_recurrent(
            (struct rig_shape){kinds[kind].gate, kinds[kind].tokens, false, n, kinds[kind].heads,
                               kinds[kind].heads, n * kinds[kind].tokens});
        kda_plan plan;
        kda_status status = step % 2 ? kda_recurrent(context, &args, NULL, err)
                                     : kda_recurrent_plan(context, &args, NULL, NULL, &plan, err);
        if (status == KDA_OK && step % 2 == 0) status = kda_plan_launch(&plan, NULL, err);
        if (status != KDA_OK) return status;
        const kda_packed_args packed = rig_packed(pick % 2 ? 4 : 64, 64);
        status = kda_packed(context, &packed, NULL, err);
        if (status != KDA_OK) return status;
    }
    return kda_context_prepare(context, NULL, err);
}

static kda_status prepare_all(struct crowd *crowd, int thread, kda_error *err)
{
    return kda_context_prepare(context_of(crowd, thread), NULL, err);
}

static long routed_images(int devices)
{
    struct crowd crowd;
    open_crowd(&crowd, devices);
    rig.soft_delay_load(0);
    for (int i = 0; i < devices; i++) {
        kda_error err;
        rig_ok(kda_context_prepare(crowd.contexts[i], NULL, &err), &err);
    }
    const long loads = rig.soft_count().loads;
    close_crowd(&crowd);
    return loads;
}

static void one_load_per_image(void **state)
{
    (void)state;
    for (int devices = 1; devices <= DEVICES; devices++) {
        static kda_status (*const calls[])(struct crowd *, int,
                                           kda_error *) = {same_body, all_bodies, prepare_all};
        const long images = routed_images(devices);
        assert_true(images > 10 * devices);
        const long wanted[] = {devices, images, images};
        for (int i = 0; i < 3; i++) {
            struct crowd crowd;
            open_crowd(&crowd, devices);
            crowd.call = calls[i];
            if (release(&crowd) != THREADS) {
                for (int k = 0; k < THREADS; k++)
                    if (members[k].status) fail_msg("thread %d: %s", k, members[k].err.text);
            }
            assert_int_equal(rig.soft_count().loads, wanted[i]);
            close_crowd(&crowd);
        }
    }
}

// No load works: everybody is told, nobody waits for ever. Then the driver recovers.
static void failing_loads(void **state)
{
    (void)state;
    struct crowd crowd;
    open_crowd(&crowd, 1);
    crowd.call = same_body;
    rig.soft_set_driver_version(12000);
    assert_int_equal(release(&crowd), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(members[i].status, KDA_E_DRIVER);
        assert_int_equal(members[i].err.cuda, KDA_CU_NO_BINARY_FOR_GPU);
    }
    assert_int_equal(rig.soft_count().loads, 0);
    rig.soft_set_driver_version(13000);
    assert_int_equal(release(&crowd), THREADS);
    assert_int_equal(rig.soft_count().loads, 1);
    close_crowd(&crowd);
}

// One driver call of the crowd fails, whichever: one caller is told, all others succeed.
static void one_failure_is_one_callers(void **state)
{
    (void)state;
    long failures = 0;
    for (long k = 1; k < 3 * THREADS; k += k < 8 || k > THREADS ? 1 : 9) {
        struct crowd crowd;
        open_crowd(&crowd, 1);
        rig.soft_delay_load(200);
        crowd.call = same_body;
        // The first calls make the context current in each thread, which may not fail.
        rig.soft_fail_call(k + THREADS, KDA_CU_UNKNOWN);
        const int good = release(&crowd);
        rig.soft_fail_call(0, 0);
        assert_true(good >= THREADS - 1);
        for (int i = 0; i < THREADS; i++) {
            if (members[i].status == KDA_OK) continue;
            failures++;
            assert_int_equal(members[i].status, KDA_E_DRIVER);
            assert_int_equal(members[i].err.cuda, KDA_CU_UNKNOWN);
        }
        // A load after which the image was not found again is undone, and made again.
        assert_true(rig.soft_count().loads <= 2);
        assert_int_equal(rig.soft_count().live_modules, 1);
        assert_int_equal(release(&crowd), THREADS);
        close_crowd(&crowd);
    }
    print_message("%ld failures\n", failures);
    assert_true(failures >= 8);  // how many calls there are depends on who comes late
}

int main(int argc, char **argv)
{
    rig_open(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_load_per_image),
        cmocka_unit_test(failing_loads),
        cmocka_unit_test(one_failure_is_one_callers),
    };
    const int failed = cmocka_run_group_tests_name("threads", tests, NULL, NULL);
    rig_close();
    return failed;
}
