// SPDX-License-Identifier: Apache-2.0
// Owns the way to the driver: libcuda.so.1 by dlopen, cuGetProcAddress by dlsym, all else through
// that, each function with the version that its declaration belongs to. Owns the table from results
// to statuses. Knows no contexts. Invariant: a published table is complete and never changes. No
// lock: racing callers each open, one result is kept.
#include "loader/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/error.h"

static _Atomic(const struct kda_driver *) published;
static atomic_uint generation;

static const struct symbol {
    const char *name;
    int version;
    size_t offset;
} symbols[] = {
#define KDA_SYMBOL(name, version, parameters) {#name, version, offsetof(struct kda_driver, name)},
#include "loader/symbols.inc"
#undef KDA_SYMBOL
};

// Results that have a status of their own; every other failure is KDA_E_DRIVER.
static const struct {
    int result;
    kda_status status;
    const char *meaning;
} meanings[] = {
    {KDA_CU_STUB_LIBRARY, KDA_E_NO_DRIVER, "libcuda.so.1 is a stub"},
    {KDA_CU_DEINITIALIZED, KDA_E_CONTEXT_LOST, "the driver is shutting down"},
    {KDA_CU_INVALID_HANDLE, KDA_E_CONTEXT_LOST, "the CUDA context was reset or is not current"},
    {KDA_CU_CONTEXT_IS_DESTROYED, KDA_E_CONTEXT_LOST, "the CUDA context was destroyed"},
};

static void count_fork(void) { atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed); }

unsigned kda_driver_generation(void)
{
    return atomic_load_explicit(&generation, memory_order_relaxed);
}

static kda_status resolve(void *library, struct kda_driver *driver, kda_error *err)
{
    void *entry = dlsym(library, "cuGetProcAddress_v2");
    if (!entry)
        return kda_fail(
            err, KDA_E_NO_DRIVER,
            "libcuda.so.1 lacks cuGetProcAddress_v2, a driver of CUDA 12.0 or newer is needed");
    kda_cu_get_proc_address *lookup;
    memcpy(&lookup, &entry, sizeof(lookup));

    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        const struct symbol *symbol = &symbols[i];
        void *function = NULL;
        int found = KDA_CU_PROC_FOUND;
        const int result =
            lookup(symbol->name, &function, symbol->version, KDA_CU_PROC_LEGACY_STREAM, &found);
        if (result == KDA_CU_STUB_LIBRARY)
            return kda_fail_driver(err, KDA_E_NO_DRIVER, result,
                                   "libcuda.so.1 is a stub, the driver itself is needed");
        if (result != KDA_CU_SUCCESS || found != KDA_CU_PROC_FOUND || !function)
            return kda_fail_driver(err, KDA_E_NO_DRIVER, result,
                                   "libcuda.so.1 lacks %s of CUDA %d.%d (result %d, status %d)",
                                   symbol->name, symbol->version / 1000,
                                   symbol->version % 1000 / 10, result, found);
        memcpy((char *)driver + symbol->offset, &function, sizeof(function));
    }
    return KDA_OK;
}

kda_status kda_driver_open(const struct kda_driver **out, kda_error *err)
{
    const struct kda_driver *driver = atomic_load_explicit(&published, memory_order_acquire);
    if (driver) {
        *out = driver;
        return KDA_OK;
    }

    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *reason = dlerror();
        return kda_fail(err, KDA_E_NO_DRIVER, "cannot open libcuda.so.1: %s",
                        reason ? reason : "unknown reason");
    }
    kda_status status;
    struct kda_driver *fresh = calloc(1, sizeof(*fresh));
    if (!fresh) {
        status = kda_fail(err, KDA_E_NO_MEMORY, "no memory for the driver's function table");
        goto fail;
    }
    status = resolve(library, fresh, err);
    if (status != KDA_OK) goto fail;
    if (pthread_atfork(NULL, NULL, count_fork)) {
        status = kda_fail(err, KDA_E_NO_MEMORY, "no memory to watch for forks");
        goto fail;
    }

    const struct kda_driver *expected = NULL;
    if (!atomic_compare_exchange_strong(&published, &expected, fresh)) {
        // Another thread was first. Its table is the same; a second fork handler only counts twice.
        free(fresh);
        (void)dlclose(library);  // drops our reference, the winner's stays
        *out = expected;
        return KDA_OK;
    }
    *out = fresh;
    return KDA_OK;

fail:
    free(fresh);
    (void)dlclose(library);  // nothing to do about a failure to close
    return status;
}

kda_status kda_driver_fail(const struct kda_driver *driver, int result, const char *operation,
                           const char *call, kda_error *err, const char *rest_format, ...)
{
    kda_status status = KDA_E_DRIVER;
    const char *meaning = "";
    for (size_t i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++) {
        if (meanings[i].result == result) {
            status = meanings[i].status;
            meaning = meanings[i].meaning;
        }
    }
    const char *name = NULL;
    if (driver->cuGetErrorName(result, &name) != KDA_CU_SUCCESS || !name) name = "(no name)";

    char rest[KDA_ERROR_TEXT / 2];
    va_list list;
    va_start(list, rest_format);
    (void)vsnprintf(rest, sizeof(rest), rest_format, list);
    va_end(list);
    return kda_fail_driver(err, status, result, "%s: %s returned %d %s%s%s%s%s", operation, call,
                           result, name, *meaning ? ", " : "", meaning, *rest ? ", " : "", rest);
}
