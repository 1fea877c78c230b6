// SPDX-License-Identifier: Apache-2.0
// What only a driver decides: contexts and devices, their loss, and captures, R14 and R16 of
// CHECKLIST.md. The same program asks the soft device, where everything is scripted, and a real
// driver, which is what the scripts imitate.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "tests/trial.h"

static const struct {
    int mode;
    const char *name;
} captures[] = {{KDA_CU_CAPTURE_GLOBAL, "global"},
                {KDA_CU_CAPTURE_THREAD_LOCAL, "thread-local"},
                {KDA_CU_CAPTURE_RELAXED, "relaxed"}};
enum { CAPTURES = sizeof captures / sizeof captures[0] };

// Of recurrent decode.
static int all_families(struct suite_family out[SUITE_FAMILIES])
{
    int count = suite_families(KDA_OP_RECURRENT, out);
    if (!count) suite_skip("the bundle has no body of recurrent decode");
    return count;
}

static int64_t heads(void) { return suite_size(1, 16); }
static int64_t value_heads(void) { return suite_size(2, 32); }

// ---------------------------------------------------------------------------------------- captures

static void capture_cold_image(int mode)
{
    struct suite_family all[SUITE_FAMILIES];
    kda_context *fresh;
    kda_error err;
    all_families(all);
    assert_int_equal(kda_context_create(suite.bundle, suite.machine.context, NULL, &fresh, &err),
                     KDA_OK);
    struct trial trial = trial_of(&all[0], 1, heads(), value_heads());
    trial_open(&trial);
    trial_fill_all(&trial, 2000, TRIAL_NORMAL);
    trial_upload(&trial);
    CUstream stream = machine_stream(&suite.machine);
    machine_capture_in(&suite.machine, stream, mode);
    assert_int_equal(trial_call(&trial, fresh, stream, &err), KDA_E_NOT_PREPARED);
    struct machine_graph graph = machine_captured(&suite.machine, stream);  // the capture survived
    assert_int_equal(graph.nodes, 0);
    machine_graph_close(&suite.machine, &graph);

    kda_problem problem = trial_problem(&trial);
    kda_route_result route;
    assert_int_equal(kda_route(suite.bundle, &suite.device, &problem, &route, NULL), KDA_OK);
    assert_non_null(strstr(err.text, route.body));
    assert_non_null(strstr(err.text, route.target));
    assert_int_equal(kda_context_prepare(fresh, &problem, NULL), KDA_OK);
    machine_capture_in(&suite.machine, stream, mode);
    assert_int_equal(trial_call(&trial, fresh, stream, NULL), KDA_OK);
    graph = machine_captured(&suite.machine, stream);
    assert_int_equal(graph.nodes, 1);
    machine_replay(&suite.machine, &graph, stream);
    machine_sync(&suite.machine, stream);
    machine_graph_close(&suite.machine, &graph);
    trial_download(&trial);
    trial_expect(&trial, "after prepare");
    machine_stream_close(&suite.machine, stream);
    trial_close(&trial);
    kda_context_close(&fresh);
}

static void r14_cold_image_under_capture(void **state)
{
    (void)state;
    for (int i = 0; i < CAPTURES; i++) capture_cold_image(captures[i].mode);
}

// The launch of one image, captured, replayed and judged.
static void capture_image(const struct suite_family *family, const struct suite_image *image,
                          int capture)
{
    struct trial trial = trial_of(family, 1, heads(), value_heads());
    kda_plan plan;
    kda_error err;
    trial_open(&trial);
    trial_fill_all(&trial, 2050, TRIAL_NORMAL);
    trial_upload(&trial);
    assert_int_equal(trial_plan(&trial, suite.context, image->body, image->target, &plan, &err),
                     KDA_OK);
    CUstream stream = machine_stream(&suite.machine);
    machine_capture_in(&suite.machine, stream, captures[capture].mode);
    assert_int_equal(kda_plan_launch(&plan, stream, &err), KDA_OK);
    struct machine_graph graph = machine_captured(&suite.machine, stream);
    assert_int_equal(graph.nodes, 1);
    machine_replay(&suite.machine, &graph, stream);
    machine_sync(&suite.machine, stream);
    machine_graph_close(&suite.machine, &graph);
    machine_stream_close(&suite.machine, stream);
    trial_download(&trial);
    trial_expect(&trial, image->body);
    trial_close(&trial);
}

static void r14_prepared_images_are_captured(void **state)
{
    (void)state;
    static const kda_op ops[] = {KDA_OP_RECURRENT, KDA_OP_PACKED};
    kda_error err;
    if (kda_context_prepare(suite.context, NULL, &err)) fail_msg("%s", err.text);
    for (int capture = 0; capture < CAPTURES; capture++) {
        int launched = 0;
        for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
            struct suite_family all[SUITE_FAMILIES];
            struct suite_image images[SUITE_IMAGES];
            for (int j = 0, count = suite_families(ops[i], all); j < count; j++)
                for (int k = 0, n = suite_images(&all[j], NULL, images); k < n; k++, launched++)
                    capture_image(&all[j], &images[k], capture);
        }
        printf("  %d images in a %s capture\n", launched, captures[capture].name);
        assert_true(launched > 0);
    }
}

// ---------------------------------------------------------------------------------------- contexts

static void r16_two_contexts(void **state)
{
    (void)state;
    // The body that wants the most dynamic shared memory, so that a missed opt-in shows if any body
    // needs one.
    struct suite_family all[SUITE_FAMILIES];
    struct suite_image images[SUITE_IMAGES], widest = {.body = NULL};
    struct suite_family family = {.tokens = 0};
    int count = all_families(all);
    for (int i = 0; i < count; i++) {
        int image_count = suite_images(&all[i], NULL, images);
        for (int j = 0; j < image_count; j++) {
            if (widest.body && images[j].record->smem <= widest.record->smem) continue;
            widest = images[j];
            family = all[i];
        }
    }
    const struct machine home = suite.machine;
    CUcontext second;
    kda_context *other;
    kda_error err;
    MACHINE_CALL(&home, cuCtxCreate, &second, 0, home.device);
    assert_int_equal(kda_context_create(suite.bundle, NULL, NULL, &other, &err), KDA_OK);
    kda_context *first = suite.context;
    for (int i = 0; i < 4; i++) {  // second, first, second, first
        MACHINE_CALL(&home, cuCtxSetCurrent, i % 2 ? home.context : second);
        suite.context = i % 2 ? first : other;
        struct trial trial = trial_of(&family, 2, heads(), value_heads());
        trial_open(&trial);
        trial_fill_all(&trial, 2200, TRIAL_NORMAL);
        trial_run(&trial, widest.body, widest.target);
        trial_expect(&trial, i % 2 ? "first context" : "second context");
        trial_close(&trial);
    }
    kda_context_close(&other);
    MACHINE_CALL(&home, cuCtxDestroy, second);
    MACHINE_CALL(&home, cuCtxSetCurrent, home.context);
}

// A call planned in `doomed`, which `destroy` takes away: noticed by everything that asks, and by
// the driver at the launch, also when another context has taken the place since.
static void lose(CUcontext doomed, void (*destroy)(CUcontext))
{
    const struct machine *const home = &suite.machine;
    struct suite_family all[SUITE_FAMILIES];
    all_families(all);
    MACHINE_CALL(home, cuCtxSetCurrent, home->context);
    struct trial trial = trial_of(&all[0], 1, heads(), value_heads());
    trial_open(&trial);
    const kda_problem problem = trial_problem(&trial);
    kda_context *lost;
    kda_plan plan, untouched;
    kda_error err;
    MACHINE_CALL(home, cuCtxSetCurrent, doomed);
    assert_int_equal(kda_context_create(suite.bundle, NULL, NULL, &lost, &err), KDA_OK);
    assert_int_equal(trial_plan(&trial, lost, NULL, NULL, &plan, &err), KDA_OK);
    destroy(doomed);
    memset(&untouched, 0, sizeof untouched);
    const kda_plan before = untouched;
    assert_int_equal(kda_context_prepare(lost, &problem, &err), KDA_E_CONTEXT_LOST);
    assert_int_equal(trial_plan(&trial, lost, NULL, NULL, &untouched, &err), KDA_E_CONTEXT_LOST);
    assert_memory_equal(&untouched, &before, sizeof before);
    assert_int_equal(kda_plan_launch(&plan, NULL, &err), KDA_E_CONTEXT_LOST);
    kda_context_close(&lost);
    MACHINE_CALL(home, cuCtxSetCurrent, home->context);
    trial_close(&trial);
}

static CUcontext later;  // made where another one was

static void destroy_and_create(CUcontext context)
{
    MACHINE_CALL(&suite.machine, cuCtxDestroy, context);
    MACHINE_CALL(&suite.machine, cuCtxCreate, &later, 0, suite.machine.device);
}

static void r16_destroyed_context(void **state)
{
    (void)state;
    CUcontext doomed;
    MACHINE_CALL(&suite.machine, cuCtxCreate, &doomed, 0, suite.machine.device);
    lose(doomed, destroy_and_create);
    MACHINE_CALL(&suite.machine, cuCtxDestroy, later);
    MACHINE_CALL(&suite.machine, cuCtxSetCurrent, suite.machine.context);
}

static int is_active(CUdevice device)
{
    unsigned flags;
    int active;
    MACHINE_CALL(&suite.machine, cuDevicePrimaryCtxGetState, device, &flags, &active);
    return active;
}

// Retaining it again makes the primary context anew, perhaps with the same handle.
static void reset_and_retain(CUcontext context)
{
    (void)context;
    CUcontext again;
    MACHINE_CALL(&suite.machine, cuDevicePrimaryCtxReset, suite.machine.device);
    MACHINE_CALL(&suite.machine, cuDevicePrimaryCtxRetain, &again, suite.machine.device);
    MACHINE_CALL(&suite.machine, cuCtxSetCurrent, again);
}

static void r16_reset_primary_context(void **state)
{
    (void)state;
    CUcontext primary;
    MACHINE_CALL(&suite.machine, cuDevicePrimaryCtxRetain, &primary, suite.machine.device);
    lose(primary, reset_and_retain);
    int releases = 0;
    for (; is_active(suite.machine.device); releases++)
        MACHINE_CALL(&suite.machine, cuDevicePrimaryCtxRelease, suite.machine.device);
    assert_int_equal(releases, 2);  // a reset takes no reference away
}

// ----------------------------------------------------------------------------------------- devices

// A soft device gets a twin; a real one has another or not.
static void need_two_devices(void)
{
    void (*set_count)(int), (*set_device)(int, int, int, int);
    void *count_symbol = dlsym(suite.machine.library, "soft_set_device_count"),
         *device_symbol = dlsym(suite.machine.library, "soft_set_device");
    if (suite.machine.soft) {
        memcpy(&set_count, &count_symbol, sizeof set_count);
        memcpy(&set_device, &device_symbol, sizeof set_device);
        set_count(2);
        set_device(1, suite.machine.cc_major, suite.machine.cc_minor, suite.machine.sm_count);
    }
    int count = 0;
    MACHINE_CALL(&suite.machine, cuDeviceGetCount, &count);
    if (count < 2) suite_skip("there is one device");
}

// The second device is used first, and while one is in use nothing is made on the other.
static void r16_two_devices(void **state)
{
    (void)state;
    need_two_devices();
    const struct machine home = suite.machine;
    struct machine second = home;
    struct suite_family all[SUITE_FAMILIES];
    kda_context *const first = suite.context, *other;
    kda_error err;
    int count = all_families(all);
    MACHINE_CALL(&home, cuDeviceGet, &second.device, 1);
    assert_false(is_active(home.device) || is_active(second.device));
    MACHINE_CALL(&home, cuCtxCreate, &second.context, 0, second.device);
    assert_int_equal(kda_context_create(suite.bundle, NULL, NULL, &other, &err), KDA_OK);
    for (int i = 0; i < 2 * count; i++) {
        const bool on_second = i < count;
        suite.machine = on_second ? second : home;
        suite.context = on_second ? other : first;
        MACHINE_CALL(&home, cuCtxSetCurrent, suite.machine.context);
        struct trial trial = trial_of(&all[i % count], 2, heads(), value_heads());
        trial_open(&trial);
        trial_fill_all(&trial, 2400, TRIAL_NORMAL);
        trial_run(&trial, NULL, NULL);
        trial_expect(&trial, on_second ? "second device" : "first device");
        trial_close(&trial);
    }
    assert_false(is_active(home.device) || is_active(second.device));
    MACHINE_CALL(&home, cuCtxSetCurrent, second.context);
    kda_context_close(&other);
    MACHINE_CALL(&home, cuCtxDestroy, second.context);
    MACHINE_CALL(&home, cuCtxSetCurrent, home.context);
    suite.machine = home;
    suite.context = first;
}

int main(int argc, char **argv)
{
    int status = suite_open(argc, argv);
    if (status != SUITE_GO) return status;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(r14_cold_image_under_capture),
        cmocka_unit_test(r14_prepared_images_are_captured),
        cmocka_unit_test(r16_two_contexts),
        cmocka_unit_test(r16_destroyed_context),
        cmocka_unit_test(r16_reset_primary_context),
        cmocka_unit_test(r16_two_devices),
    };
    return suite_close(cmocka_run_group_tests_name("driver", tests, NULL, NULL));
}
