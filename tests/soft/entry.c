// SPDX-License-Identifier: Apache-2.0
// Owns the way into the soft driver: lookup by cuGetProcAddress, the prologue of every call (lock,
// counting, stub mode, injected failures), the back doors of soft.h and the counters. Knows no
// semantics of any call. Invariant: a call that is refused here has changed nothing but the
// counters.
#include "tests/soft/state.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char last_error[512];

#define DEFAULTS                                                                                   \
    {                                                                                              \
        .device_count = 1, .driver_version = 13000, .devices = {{.cc = 100, .sm_count = 148}},     \
        .execute = true                                                                            \
    }

struct soft_settings soft_settings = DEFAULTS;
struct soft_counters soft_totals;
struct soft_launch_record soft_launched;
bool soft_has_launched;

void soft_lock(void) { (void)pthread_mutex_lock(&mutex); }
void soft_unlock(void) { (void)pthread_mutex_unlock(&mutex); }

int soft_enter(void)
{
    soft_lock();
    soft_totals.calls++;
    if (soft_settings.fail_in > 0 && --soft_settings.fail_in == 0)
        return soft_leave(soft_settings.fail_result);
    if (soft_settings.stub) return soft_leave(KDA_CU_STUB_LIBRARY);
    if (!soft_settings.initialised) return soft_leave(KDA_CU_NOT_INITIALIZED);
    return KDA_CU_SUCCESS;
}

int soft_leave(int result)
{
    soft_unlock();
    return result;
}

static void report(const char *format, va_list arguments)
{
    (void)vsnprintf(last_error, sizeof last_error, format, arguments);
}

void soft_report(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    report(format, arguments);
    va_end(arguments);
}

void soft_blame(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    report(format, arguments);
    va_end(arguments);
    soft_totals.caller_errors++;
}

// ------------------------------------------------------------------------------------------ lookup

typedef void any_function(void);

static const struct export
{
    const char *name;
    any_function *function;
    int since, until;
}
exports[] = {
#define SOFT_EXPORT(base, symbol, first, last, parameters)                                         \
    {.name = #base, .function = (any_function *)symbol, .since = first, .until = last},
#include "tests/soft/exports.inc"
#undef SOFT_EXPORT
};

static int look_up(const char *name, void **out, int version, int *status)
{
    if (soft_settings.stub) return KDA_CU_STUB_LIBRARY;
    if (name == NULL || out == NULL || version > soft_settings.driver_version)
        return KDA_CU_INVALID_VALUE;
    any_function *found = NULL;
    *status = KDA_CU_PROC_MISSING;
    for (size_t i = 0; i < sizeof exports / sizeof *exports; i++) {
        const struct export *e = &exports[i];
        if (strcmp(e->name, name) != 0 || strcmp(soft_settings.hidden, name) == 0) continue;
        if (e->since > soft_settings.driver_version) continue;
        if (version < e->since) {
            if (found == NULL) *status = SOFT_CU_PROC_VERSION_TOO_OLD;
        } else if (e->until == 0 || version < e->until) {
            found = e->function;
            *status = KDA_CU_PROC_FOUND;
        }
    }
    memcpy(out, &found, sizeof found);
    return KDA_CU_SUCCESS;
}

int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status)
{
    (void)flags;  // both kinds of default stream behave alike here
    int found = KDA_CU_PROC_MISSING;
    soft_lock();
    int result = look_up(name, out, version, &found);
    if (result == KDA_CU_SUCCESS && status != NULL) *status = found;
    if (result == KDA_CU_SUCCESS && status == NULL && found != KDA_CU_PROC_FOUND)
        result = KDA_CU_NOT_FOUND;
    return soft_leave(result);
}

int cuGetProcAddress(const char *name, void **out, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, out, version, flags, NULL);
}

// -------------------------------------------------------------------------------------- back doors

void soft_reset(void)
{
    soft_lock();
    soft_settings = (struct soft_settings)DEFAULTS;
    soft_totals = (struct soft_counters){0};
    soft_has_launched = false;
    last_error[0] = 0;
    soft_memory_release(NULL);  // may still find a caller error
    soft_object_forget_all();
    soft_contexts_reset();
    soft_images_reset();
    soft_unlock();
}

void soft_set_device_count(int count)
{
    soft_lock();
    if (count >= 0 && count <= SOFT_MAX_DEVICES) {
        for (int i = soft_settings.device_count; i < count; i++)
            if (soft_settings.devices[i].cc == 0)
                soft_settings.devices[i] = (struct soft_device){.cc = 100, .sm_count = 148};
        soft_settings.device_count = count;
    }
    soft_unlock();
}

void soft_set_device(int ordinal, int cc_major, int cc_minor, int sm_count)
{
    soft_lock();
    if (ordinal >= 0 && ordinal < SOFT_MAX_DEVICES)
        soft_settings.devices[ordinal] =
            (struct soft_device){.cc = 10 * cc_major + cc_minor, .sm_count = sm_count};
    soft_unlock();
}

#define SETTER(name, type, statement)                                                              \
    void name(type value)                                                                          \
    {                                                                                              \
        soft_lock();                                                                               \
        statement;                                                                                 \
        soft_unlock();                                                                             \
    }
SETTER(soft_set_driver_version, int, soft_settings.driver_version = value)
SETTER(soft_set_stub, bool, soft_settings.stub = value)
SETTER(soft_delay_load, unsigned, soft_settings.load_delay = value)
SETTER(soft_set_load_in_capture, int, soft_settings.load_in_capture = value)
SETTER(soft_set_execute, bool, soft_settings.execute = value)
SETTER(soft_set_hints, bool, soft_settings.exact_hints = value)
SETTER(soft_hide_symbol, const char *,
       (void)snprintf(soft_settings.hidden, sizeof soft_settings.hidden, "%s", value ? value : ""))

void soft_fail_call(long k, int result)
{
    soft_lock();
    soft_settings.fail_in = k;
    soft_settings.fail_result = result;
    soft_unlock();
}

struct soft_counters soft_count(void)
{
    soft_lock();
    struct soft_counters counters = soft_totals;
    soft_unlock();
    return counters;
}

bool soft_hints_exact(void)
{
    soft_lock();
    const bool exact = soft_settings.exact_hints;
    soft_unlock();
    return exact;
}

void soft_count_prefetch(void)
{
    soft_lock();
    soft_totals.prefetches++;
    soft_unlock();
}

bool soft_last_launch(soft_launch_record *out)
{
    soft_lock();
    bool found = soft_has_launched;
    if (found) *out = soft_launched;
    soft_unlock();
    return found;
}

const char *soft_last_error(void)
{
    static _Thread_local char text[sizeof last_error];
    soft_lock();
    memcpy(text, last_error, sizeof text);
    soft_unlock();
    return text;
}
