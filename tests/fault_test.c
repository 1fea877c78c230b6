// SPDX-License-Identifier: Apache-2.0
// Every function of the library with its k-th allocation, file call, thread call and driver call
// failing, for every k until it succeeds: the right status, outputs untouched, nothing leaked, the
// caller's context still current, and a retry that works.
//   fault-test BUNDLE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/faults.h"
#include "tests/rig.h"

// LeakSanitizer's own check, where it is built in.
extern int __lsan_do_recoverable_leak_check(void) __attribute__((weak));
// What a coverage build has counted: a child that ends by _exit must write it down itself.
extern void __gcov_dump(void) __attribute__((weak));

static struct {
    kda_bundle *bundle;
    kda_context *context;
    kda_plan plan;
    void *image;
    size_t image_size;
    uint8_t *bytes;  // of the bundle file
    size_t size;
} world;

static const kda_plan untouched = {.opaque = {0x5a5a, 1, 2, 3}};

// ------------------------------------------------------------------------------------------
// actions

static kda_recurrent_args recurrent_args(void)
{
    return rig_recurrent((struct rig_shape){KDA_GATE_PRECOMPUTED, 2, false, 2, 2, 4, 8});
}

static void no_world(void) { rig_start(10, 0); }
static void with_bundle(void)
{
    no_world();
    kda_error err;
    rig_ok(kda_bundle_open(world.bytes, world.size, &world.bundle, &err), &err);
}
static void with_context(void)
{
    with_bundle();
    kda_error err;
    rig_ok(kda_context_create(world.bundle, rig.cuda, NULL, &world.context, &err), &err);
}
static kda_status recurrent(kda_error *err);
static kda_status packed(kda_error *err);
static kda_status window(kda_error *err);
static kda_status commit(kda_error *err);
static kda_status fused(kda_error *err);
static void with_images(void)  // that the calls below need
{
    with_context();
    kda_error err;
    rig_ok(recurrent(&err), &err);
    rig_ok(packed(&err), &err);
    rig_ok(window(&err), &err);
    rig_ok(commit(&err), &err);
    rig_ok(fused(&err), &err);
}
static void with_plan(void)
{
    with_images();
    const kda_recurrent_args args = recurrent_args();
    kda_error err;
    rig_ok(kda_recurrent_plan(world.context, &args, NULL, NULL, &world.plan, &err), &err);
}

static kda_status open_memory(kda_error *err)
{
    return kda_bundle_open(world.bytes, world.size, &world.bundle, err);
}
static kda_status open_file(kda_error *err)
{
    return kda_bundle_open_file(rig.path, &world.bundle, err);
}
static kda_status open_builtin(kda_error *err)
{
    return kda_bundle_open_builtin(&world.bundle, err);
}
static kda_status verify(kda_error *err) { return kda_bundle_verify(world.bundle, err); }
static kda_status image(kda_error *err)
{
    return kda_bundle_image(world.bundle, "packed_t1_tile8", "sm_100f", &world.image,
                            &world.image_size, err);
}
static kda_status create(kda_error *err)
{
    return kda_context_create(world.bundle, rig.cuda, NULL, &world.context, err);
}
static kda_status create_current(kda_error *err)
{
    return kda_context_create(world.bundle, NULL, NULL, &world.context, err);
}
static kda_status prepare_one(kda_error *err)
{
    const kda_problem problem = {
        .op = KDA_OP_RECURRENT, .tokens = 2, .rows = 2, .heads = 2, .value_heads = 4};
    return kda_context_prepare(world.context, &problem, err);
}
static kda_status prepare_all(kda_error *err)
{
    return kda_context_prepare(world.context, NULL, err);
}
static kda_status recurrent(kda_error *err)
{
    const kda_recurrent_args args = recurrent_args();
    return kda_recurrent(world.context, &args, NULL, err);
}
static kda_status recurrent_pdl(kda_error *err)
{
    kda_recurrent_args args = recurrent_args();
    args.flags |= KDA_FLAG_PDL;
    return kda_recurrent(world.context, &args, NULL, err);
}
static kda_status recurrent_plan(kda_error *err)
{
    const kda_recurrent_args args = recurrent_args();
    return kda_recurrent_plan(world.context, &args, NULL, NULL, &world.plan, err);
}
static kda_status packed(kda_error *err)
{
    const kda_packed_args args = rig_packed(4, 8);
    return kda_packed(world.context, &args, NULL, err);
}
static kda_status packed_plan(kda_error *err)
{
    const kda_packed_args args = rig_packed(4, 8);
    return kda_packed_plan(world.context, &args, NULL, NULL, &world.plan, err);
}
static const struct rig_shape eight = {KDA_GATE_SOFTPLUS, 8, true, 2, 2, 4, 8};
static kda_status window(kda_error *err)
{
    const kda_verify_args args = rig_verify(eight);
    return kda_verify(world.context, &args, NULL, err);
}
static kda_status window_plan(kda_error *err)
{
    const kda_verify_args args = rig_verify(eight);
    return kda_verify_plan(world.context, &args, NULL, NULL, &world.plan, err);
}
static kda_status commit(kda_error *err)
{
    const kda_commit_args args = rig_commit(eight);
    return kda_commit(world.context, &args, NULL, err);
}
static kda_status commit_plan(kda_error *err)
{
    const kda_commit_args args = rig_commit(eight);
    return kda_commit_plan(world.context, &args, NULL, NULL, &world.plan, err);
}
static kda_fused_args fused_args(void)
{
    kda_fused_args args = rig_fused(4, 8, 8, KDA_F32);
    args.mode = KDA_MODE_REPEATED_POSITIVE;
    return args;
}
static kda_status fused(kda_error *err)
{
    const kda_fused_args args = fused_args();
    return kda_fused(world.context, &args, NULL, err);
}
static kda_status fused_plan(kda_error *err)
{
    const kda_fused_args args = fused_args();
    return kda_fused_plan(world.context, &args, NULL, NULL, &world.plan, err);
}
static kda_status plan_launch(kda_error *err) { return kda_plan_launch(&world.plan, NULL, err); }
static kda_status close_context(kda_error *err)
{
    (void)err;
    kda_context_close(&world.context);
    return KDA_OK;
}
static kda_status close_bundle(kda_error *err)
{
    (void)err;
    kda_bundle_close(&world.bundle);
    return KDA_OK;
}

static const struct action {
    const char *name;
    void (*set_up)(void);
    kda_status (*act)(kda_error *err);
    bool fallible;
} actions[] = {
    {"open", no_world, open_memory, true},
    {"open file", no_world, open_file, true},
    {"open builtin", no_world, open_builtin, true},
    {"verify", with_bundle, verify, true},
    {"image", with_bundle, image, true},
    {"create", with_bundle, create, true},
    {"create on the current context", with_bundle, create_current, true},
    {"prepare one", with_context, prepare_one, true},
    {"prepare all", with_context, prepare_all, true},
    {"cold recurrent", with_context, recurrent, true},
    {"cold recurrent plan", with_context, recurrent_plan, true},
    {"cold packed", with_context, packed, true},
    {"cold packed plan", with_context, packed_plan, true},
    {"cold verify", with_context, window, true},
    {"cold verify plan", with_context, window_plan, true},
    {"cold commit", with_context, commit, true},
    {"cold commit plan", with_context, commit_plan, true},
    {"cold fused", with_context, fused, true},
    {"cold fused plan", with_context, fused_plan, true},
    {"warm recurrent", with_images, recurrent, true},
    {"warm recurrent, dependent launch", with_images, recurrent_pdl, true},
    {"warm recurrent plan", with_images, recurrent_plan, true},
    {"warm packed", with_images, packed, true},
    {"warm packed plan", with_images, packed_plan, true},
    {"warm verify", with_images, window, true},
    {"warm verify plan", with_images, window_plan, true},
    {"warm commit", with_images, commit, true},
    {"warm commit plan", with_images, commit_plan, true},
    {"warm fused", with_images, fused, true},
    {"warm fused plan", with_images, fused_plan, true},
    {"plan launch", with_plan, plan_launch, true},
    {"context close", with_images, close_context, false},
    {"bundle close", with_bundle, close_bundle, false},
};
enum { ACTIONS = sizeof actions / sizeof actions[0] };

// -------------------------------------------------------------------------------------------
// checks

// What the library holds before an action, to be found again after it failed.
static struct {
    kda_bundle *bundle;
    kda_context *context;
    kda_plan plan;
    CUcontext current;
    soft_counters counters;
    long live;
} before;

static CUcontext current(void)
{
    CUcontext context = NULL;
    assert_int_equal(rig.cuCtxGetCurrent(&context), 0);
    return context;
}

static void remember(const struct action *action)
{
    world.plan = untouched;
    action->set_up();
    before.bundle = world.bundle;
    before.context = world.context;
    before.plan = world.plan;
    before.current = current();
    before.counters = rig.soft_count();
    before.live = fault_live();
}

static void expect_untouched(void)
{
    assert_ptr_equal(world.bundle, before.bundle);
    assert_ptr_equal(world.context, before.context);
    assert_memory_equal(&world.plan, &before.plan, sizeof world.plan);
    assert_null(world.image);
    assert_int_equal(world.image_size, 0);
    assert_int_equal(fault_live(), before.live);
    assert_int_equal(rig.soft_count().launches, before.counters.launches);
}

static long kept;  // by the library for the life of the process

static void tear_down(void)
{
    kda_context_close(&world.context);
    kda_bundle_close(&world.bundle);
    free(world.image);
    world.image = NULL;
    world.image_size = 0;
    assert_int_equal(fault_live(), kept);
}

static void expect_error(const struct action *action, kda_status status, const kda_error *err)
{
    assert_int_equal(err->status, status);
    if (!*err->text || strchr(err->text, '\n')) fail_msg("%s: \"%s\"", action->name, err->text);
}

static void check_leaks(void)
{
    if (__lsan_do_recoverable_leak_check) assert_int_equal(__lsan_do_recoverable_leak_check(), 0);
}

// The table of the driver's functions is made once and stays.
static void driver_is_opened_once(void **state)
{
    (void)state;
    kept = 1;
    for (int i = 0; i < 2; i++) {
        with_context();
        tear_down();
    }
    assert_int_equal(fault_calls(FAULT_DLOPEN), 2);  // the other one is this program's
}

// ---------------------------------------------------------------------------- the C library's
// calls

static kda_status status_of(enum fault_kind kind)
{
    switch (kind) {
    case FAULT_OPEN:
    case FAULT_STAT:
    case FAULT_READ:
        return KDA_E_IO;
    case FAULT_DLOPEN:
    case FAULT_DLSYM:
        return KDA_E_NO_DRIVER;
    default:
        return KDA_E_NO_MEMORY;
    }
}

// The number of calls of this kind that failed in turn.
static long fail_each(const struct action *action, enum fault_kind kind)
{
    for (long k = 1;; k++) {
        remember(action);
        kda_error err = {.cuda = 77};
        fault_arm(kind, k);
        kda_status status = action->act(&err);
        const bool fired = fault_disarm();
        if (!fired) {
            rig_ok(status, &err);
            assert_int_equal(err.cuda, 77);
            tear_down();
            return k - 1;
        }
        if (status != status_of(kind))
            fail_msg("%s, %s %ld: %s: %s", action->name, fault_name(kind), k,
                     kda_status_name(status), err.text);
        expect_error(action, status, &err);
        expect_untouched();
        assert_ptr_equal(current(), before.current);
        // What was prepared before the failure stays prepared.
        if (action->act != prepare_all)
            assert_int_equal(rig.soft_count().live_modules, before.counters.live_modules);
        rig_ok(action->act(&err), &err);
        tear_down();
        assert_int_equal(rig.soft_count().live_modules, 0);
        assert_int_equal(rig.soft_count().caller_errors, 0);
    }
}

static void any_host_call_fails(void **state)
{
    (void)state;
    long total[FAULT_KINDS] = {0};
    for (size_t i = 0; i < ACTIONS; i++) {
        for (enum fault_kind kind = 0; kind < FAULT_KINDS; kind++)
            total[kind] += fail_each(&actions[i], kind);
    }
    for (enum fault_kind kind = 0; kind < FAULT_KINDS; kind++)
        print_message("failed %ld calls of %s in turn\n", total[kind], fault_name(kind));
    assert_true(total[FAULT_MALLOC] > 0 && total[FAULT_CALLOC] > 0 && total[FAULT_READ] > 0 &&
                total[FAULT_OPEN] > 0 && total[FAULT_STAT] > 0 && total[FAULT_MUTEX] > 0);
    check_leaks();
}

// A launch that is warm asks nothing of anybody but the driver.
static void warm_calls_ask_for_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < ACTIONS; i++) {
        if (strncmp(actions[i].name, "warm", 4) != 0 && actions[i].act != plan_launch) continue;
        remember(&actions[i]);
        long calls[FAULT_KINDS];
        for (enum fault_kind kind = 0; kind < FAULT_KINDS; kind++) calls[kind] = fault_calls(kind);
        kda_error err;
        rig_ok(actions[i].act(&err), &err);
        for (enum fault_kind kind = 0; kind < FAULT_KINDS; kind++)
            assert_int_equal(fault_calls(kind), calls[kind]);
        tear_down();
    }
}

static void strange_reads(void **state)
{
    (void)state;
    rig_start(10, 0);
    static const enum fault_read good[] = {READ_INTERRUPTED, READ_BYTEWISE};
    kda_error err;
    for (size_t i = 0; i < 2; i++) {
        fault_reads(good[i]);
        const kda_status status = open_file(&err);
        fault_reads(READ_WHOLE);
        rig_ok(status, &err);
        tear_down();
    }
    fault_reads(READ_ENDS);
    const kda_status status = open_file(&err);
    fault_reads(READ_WHOLE);
    rig_refused(status, &err, KDA_E_IO, "it shrank");
    assert_null(world.bundle);
    tear_down();
}

// --------------------------------------------------------------------------------- the driver's
// calls

// Every result that has a meaning to the library, and some that have none. Not 3: to the soft
// device's cuInit that is no reason to fail.
static const int results[] = {
    KDA_CU_INVALID_VALUE,
    KDA_CU_OUT_OF_MEMORY,
    KDA_CU_DEINITIALIZED,
    KDA_CU_STUB_LIBRARY,
    KDA_CU_NO_DEVICE,
    KDA_CU_INVALID_DEVICE,
    KDA_CU_INVALID_IMAGE,
    KDA_CU_INVALID_CONTEXT,
    KDA_CU_NO_BINARY_FOR_GPU,
    KDA_CU_INVALID_HANDLE,
    KDA_CU_NOT_FOUND,
    KDA_CU_ILLEGAL_ADDRESS,
    KDA_CU_LAUNCH_OUT_OF_RESOURCES,
    KDA_CU_CONTEXT_IS_DESTROYED,
    KDA_CU_LAUNCH_FAILED,
    KDA_CU_NOT_SUPPORTED,
    KDA_CU_STREAM_CAPTURE_UNSUPPORTED,
    KDA_CU_STREAM_CAPTURE_INVALIDATED,
    KDA_CU_STREAM_CAPTURE_IMPLICIT,
    KDA_CU_UNKNOWN,
};
enum { RESULTS = sizeof results / sizeof results[0] };

static kda_status meaning_of(int result, const kda_error *err)
{
    switch (result) {
    case KDA_CU_STUB_LIBRARY:
        return KDA_E_NO_DRIVER;
    case KDA_CU_DEINITIALIZED:
    case KDA_CU_INVALID_HANDLE:
    case KDA_CU_CONTEXT_IS_DESTROYED:
        return KDA_E_CONTEXT_LOST;
    case KDA_CU_STREAM_CAPTURE_IMPLICIT:  // to the question whether a stream is being captured
        return strstr(err->text, " returned ") ? KDA_E_DRIVER : KDA_E_NOT_PREPARED;
    case KDA_CU_INVALID_CONTEXT:
    case KDA_CU_INVALID_VALUE:  // to a handle that was good once
        return strstr(err->text, "cuCtxGetId ") || strstr(err->text, "cuCtxPushCurrent ")
                   ? KDA_E_CONTEXT_LOST
                   : KDA_E_DRIVER;
    default:
        return KDA_E_DRIVER;
    }
}

static void expect_driver_error(const struct action *action, long k, int result, kda_status status,
                                kda_error *err)
{
    if (!action->fallible) return;
    const kda_status wanted = meaning_of(result, err);
    if (status != wanted)
        fail_msg("%s, driver call %ld returns %d: expected %s, found %s: %s", action->name, k,
                 result, kda_status_name(wanted), kda_status_name(status), err->text);
    expect_error(action, status, err);
    char number[32];
    (void)snprintf(number, sizeof number, " returned %d", result);
    if (wanted != KDA_E_NOT_PREPARED) {
        assert_int_equal(err->cuda, result);
        assert_non_null(strstr(err->text, number));
    }
    expect_untouched();
}

// 0 when the k-th call did not come; else 1.
static int fail_driver_call(const struct action *action, long k, int result)
{
    remember(action);
    kda_error err = {.cuda = 77};
    rig.soft_fail_call(k, result);
    const kda_status status = action->act(&err);
    rig.soft_fail_call(0, 0);
    if (rig.soft_count().calls - before.counters.calls < k) {
        rig_ok(status, &err);
        tear_down();
        return 0;
    }
    expect_driver_error(action, k, result, status, &err);
    // A pop that failed has left the bound context on the stack, which nobody but the driver can
    // mend. A close has nobody to tell: its modules go with their CUDA context.
    if (action->fallible && !strstr(err.text, "cuCtxPopCurrent"))
        assert_ptr_equal(current(), before.current);
    if (action->fallible) {
        assert_int_equal(rig.cuCtxSetCurrent(before.current), 0);
        rig_ok(action->act(&err), &err);
    } else {
        assert_int_equal(rig.cuCtxDestroy_v2(rig.cuda), 0);
    }
    tear_down();
    assert_int_equal(rig.soft_count().live_modules, 0);
    assert_int_equal(rig.soft_count().caller_errors, 0);
    return 1;
}

static void any_driver_call_fails(void **state)
{
    (void)state;
    long total = 0;
    for (size_t i = 0; i < ACTIONS; i++) {
        for (long k = 1;; k++) {
            int came = 0;
            // Loading everything repeats loading one: one result is enough there.
            const size_t first = actions[i].act == prepare_all ? RESULTS - 1 : 0;
            for (size_t r = first; r < RESULTS; r++)
                came += fail_driver_call(&actions[i], k, results[r]);
            total += came;
            if (!came) break;
        }
    }
    print_message("failed %ld driver calls in turn, with %d results\n", total, RESULTS);
    assert_true(total > 1000);
    check_leaks();
}

// -------------------------------------------------------------------------------- opening the
// driver

static const enum fault_kind opening[] = {FAULT_CALLOC, FAULT_MALLOC, FAULT_DLOPEN,
                                          FAULT_DLSYM,  FAULT_ATFORK, FAULT_MUTEX};

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

// In a process that has not opened the driver. 0: the call failed and the retry worked; 3: it did
// not come.
static int open_driver(enum fault_kind kind, long k)
{
    kda_bundle *bundle = NULL;
    kda_context *context = NULL;
    kda_error err = {0};
    rig.soft_reset();
    CHECK(rig.cuInit(0) == 0 && rig.cuCtxCreate_v2(&rig.cuda, 0, 0) == 0);
    CHECK(kda_bundle_open(world.bytes, world.size, &bundle, &err) == KDA_OK);
    const long live = fault_live();
    fault_arm(kind, k);
    kda_status status = kda_context_create(bundle, rig.cuda, NULL, &context, &err);
    const bool fired = fault_disarm();
    if (fired) {
        CHECK(status == status_of(kind) && err.status == status && !context);
        // Once the driver is open its table stays; before that nothing may.
        CHECK(fault_live() == live || (kind == FAULT_MUTEX && fault_live() == live + 1) ||
              (kind == FAULT_CALLOC && k > 1 && fault_live() == live + 1));
        status = kda_context_create(bundle, rig.cuda, NULL, &context, &err);
    }
    CHECK(status == KDA_OK && context);
    kda_context_close(&context);
    kda_bundle_close(&bundle);
    if (__lsan_do_recoverable_leak_check) CHECK(__lsan_do_recoverable_leak_check() == 0);
    if (__gcov_dump) __gcov_dump();
    return fired ? 0 : 3;
}

static void opening_the_driver_fails(void **state)
{
    (void)state;
    long total = 0;
    for (size_t i = 0; i < sizeof opening / sizeof opening[0]; i++) {
        int code = 0;
        for (long k = 1; code == 0; k++) {
            fflush(NULL);
            const pid_t child = fork();
            assert_true(child >= 0);
            if (child == 0) _exit(open_driver(opening[i], k));
            int status = 0;
            assert_int_equal(waitpid(child, &status, 0), child);
            assert_true(WIFEXITED(status));
            code = WEXITSTATUS(status);
            if (code != 0 && code != 3) fail_msg("%s %ld: see above", fault_name(opening[i]), k);
            total += code == 0;
        }
    }
    print_message("failed %ld calls while the driver was opened\n", total);
    assert_true(total >= 5);
}

// ---------------------------------------------------------------------------------- old and
// foreign

// A driver that is too old for every image, and one that lost the architecture since.
static void wrong_driver_or_chip(void **state)
{
    (void)state;
    with_context();
    kda_error err;
    rig.soft_set_driver_version(12000);
    kda_status status = recurrent(&err);
    rig_refused(status, &err, KDA_E_DRIVER, "cuModuleLoadData returned 209");
    assert_non_null(strstr(err.text, "needs CUDA 12.9 or newer"));
    rig.soft_set_driver_version(13000);
    rig.soft_set_device(0, 9, 0, 132);
    status = prepare_one(&err);
    rig_refused(status, &err, KDA_E_DRIVER, "cuModuleLoadData returned 209");
    rig.soft_set_device(0, 10, 0, 148);
    rig_ok(recurrent(&err), &err);
    tear_down();

    rig.soft_reset();
    rig.soft_set_driver_version(12070);
    rig_start(10, 0);
    rig.soft_set_driver_version(12070);
    with_bundle();
    rig.soft_set_driver_version(12070);
    rig_ok(create(&err), &err);
    const soft_counters counters = rig.soft_count();
    status = recurrent(&err);
    rig_refused(status, &err, KDA_E_CUDA_VERSION, "12.7");
    assert_int_equal(rig.soft_count().calls, counters.calls);
    tear_down();
}

static void read_bundle(void)
{
    FILE *file = fopen(rig.path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) exit(1);
    world.size = (size_t)ftell(file);
    rewind(file);
    // Not from the wrapped malloc: it is nobody's leak.
    static uint64_t storage[(4u << 20) / 8];
    if (world.size > sizeof storage) exit(1);
    world.bytes = (uint8_t *)storage;
    if (fread(world.bytes, 1, world.size, file) != world.size) exit(1);
    (void)fclose(file);
}

int main(int argc, char **argv)
{
    rig_open(argc, argv);
    rig_close();  // opened again below, by every way there is
    read_bundle();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_the_driver_fails),  // first: later this process has one
        cmocka_unit_test(driver_is_opened_once),      cmocka_unit_test(any_host_call_fails),
        cmocka_unit_test(warm_calls_ask_for_nothing), cmocka_unit_test(strange_reads),
        cmocka_unit_test(any_driver_call_fails),      cmocka_unit_test(wrong_driver_or_chip),
    };
    return cmocka_run_group_tests_name("fault", tests, NULL, NULL);
}
