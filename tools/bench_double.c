// SPDX-License-Identifier: Apache-2.0
// Owns the driver double and the counts. The linker's --wrap sends here what the library asks of
// the C library, see meson.build; nothing is intercepted at run time and no file is needed. The
// double knows only the functions that the library calls, with the library's own types.
#include "tools/bench_double.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static int device_cc;  // 0: not installed
static struct bench_tally tally;

void bench_double_install(int cc) { device_cc = cc; }
struct bench_tally bench_double_tally(void) { return tally; }

// ------------------------------------------------------------------------------------------ driver

// A double takes what the driver takes and needs little of it.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define KDA_SYMBOL(name, version, parameters) static int name parameters;
#include "loader/symbols.inc"
#undef KDA_SYMBOL

static char handles[3];  // whose addresses are a context, a module and a function

static int succeed(void)
{
    tally.driver_calls++;
    return KDA_CU_SUCCESS;
}

static int cuGetErrorName(int result, const char **out_text)
{
    *out_text = "double";
    return succeed();
}

static int cuInit(unsigned flags) { return succeed(); }

static int cuDriverGetVersion(int *out_version)
{
    *out_version = 13000;
    return succeed();
}

static int cuDeviceGetAttribute(int *out_value, int attribute, CUdevice device)
{
    switch (attribute) {
    case KDA_CU_CC_MAJOR:
        *out_value = device_cc / 10;
        break;
    case KDA_CU_CC_MINOR:
        *out_value = device_cc % 10;
        break;
    case KDA_CU_SMEM_OPTIN:
        *out_value = 232448;
        break;
    default:
        *out_value = 148;
    }
    return succeed();
}

static int cuCtxGetCurrent(CUcontext *out_context)
{
    *out_context = (CUcontext)&handles[0];
    return succeed();
}

static int cuCtxPushCurrent(CUcontext context) { return succeed(); }

static int cuCtxPopCurrent(CUcontext *out_context) { return cuCtxGetCurrent(out_context); }

static int cuCtxGetDevice(CUdevice *out_device)
{
    *out_device = 0;
    return succeed();
}

static int cuCtxGetId(CUcontext context, unsigned long long *out_id)
{
    *out_id = 1;
    return succeed();
}

static int cuModuleLoadData(CUmodule *out_module, const void *image)
{
    *out_module = (CUmodule)&handles[1];
    return succeed();
}

static int cuModuleUnload(CUmodule module) { return succeed(); }

static int cuModuleGetFunction(CUfunction *out_function, CUmodule module, const char *name)
{
    *out_function = (CUfunction)&handles[2];
    return succeed();
}

static int cuFuncSetAttribute(CUfunction function, int attribute, int value) { return succeed(); }

static int cuStreamIsCapturing(CUstream stream, int *out_status)
{
    *out_status = KDA_CU_CAPTURE_NONE;
    return succeed();
}

static int cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned smem,
                          CUstream stream, void **params, void **extra)
{
    return succeed();
}

static int cuLaunchKernelEx(const struct kda_cu_launch_config *config, CUfunction function,
                            void **params, void **extra)
{
    return succeed();
}
#pragma GCC diagnostic pop

static int get_proc_address(const char *name, void **out_function, int version, uint64_t flags,
                            int *out_status)
{
    (void)version;  // there is one of each
    (void)flags;
    static const struct kda_driver table = {
#define KDA_SYMBOL(name, version, parameters) .name = name,
#include "loader/symbols.inc"
#undef KDA_SYMBOL
    };
    *out_status = KDA_CU_PROC_MISSING;
#define KDA_SYMBOL(symbol, version, parameters)                                                    \
    if (!strcmp(name, #symbol)) {                                                                  \
        memcpy(out_function, &table.symbol, sizeof *out_function);                                 \
        *out_status = KDA_CU_PROC_FOUND;                                                           \
    }
#include "loader/symbols.inc"
#undef KDA_SYMBOL
    return KDA_CU_SUCCESS;
}

// ------------------------------------------------------------------------------------------- wraps

static char library;  // whose address is the handle of the double

void *__real_dlopen(const char *path, int flags);
void *__real_dlsym(void *handle, const char *name);
int __real_dlclose(void *handle);
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
int __real_pthread_mutex_lock(pthread_mutex_t *mutex);

void *__wrap_dlopen(const char *path, int flags);
void *__wrap_dlsym(void *handle, const char *name);
int __wrap_dlclose(void *handle);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);

void *__wrap_dlopen(const char *path, int flags)
{
    if (device_cc && path && !strcmp(path, "libcuda.so.1")) return &library;
    return __real_dlopen(path, flags);
}

void *__wrap_dlsym(void *handle, const char *name)
{
    if (handle != &library) return __real_dlsym(handle, name);
    kda_cu_get_proc_address *entry = get_proc_address;
    void *symbol = NULL;
    if (!strcmp(name, "cuGetProcAddress_v2")) memcpy(&symbol, &entry, sizeof symbol);
    return symbol;
}

int __wrap_dlclose(void *handle) { return handle == &library ? 0 : __real_dlclose(handle); }

void *__wrap_malloc(size_t size)
{
    tally.allocations++;
    return __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    tally.allocations++;
    return __real_calloc(count, size);
}

void *__wrap_realloc(void *memory, size_t size)
{
    tally.allocations++;
    return __real_realloc(memory, size);
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    tally.locks++;
    return __real_pthread_mutex_lock(mutex);
}
