// SPDX-License-Identifier: Apache-2.0
// The CUDA driver as the library sees it: our own declarations of its types and numbers, and the
// table of its functions. Handles have the names and definitions of cuda.h, so that both headers
// may be included in one file, in any order; all else has the prefix kda_cu_. Opening the driver is
// the library's only process-wide state: a table that never changes once it is published.
#ifndef KDA_LOADER_DRIVER_H
#define KDA_LOADER_DRIVER_H

#include <stdint.h>

#include "loader/kda.h"

#ifdef __cplusplus
extern "C" {
#define KDA_CU_ASSERT static_assert
#else
#define KDA_CU_ASSERT _Static_assert
#endif

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;

enum kda_cu_result {  // of CUresult, which is an int to us
    KDA_CU_SUCCESS = 0,
    KDA_CU_INVALID_VALUE = 1,
    KDA_CU_OUT_OF_MEMORY = 2,
    KDA_CU_NOT_INITIALIZED = 3,
    KDA_CU_DEINITIALIZED = 4,
    KDA_CU_STUB_LIBRARY = 34,
    KDA_CU_NO_DEVICE = 100,
    KDA_CU_INVALID_DEVICE = 101,
    KDA_CU_INVALID_IMAGE = 200,
    KDA_CU_INVALID_CONTEXT = 201,
    KDA_CU_NO_BINARY_FOR_GPU = 209,
    KDA_CU_INVALID_HANDLE = 400,
    KDA_CU_NOT_FOUND = 500,
    KDA_CU_ILLEGAL_ADDRESS = 700,
    KDA_CU_LAUNCH_OUT_OF_RESOURCES = 701,
    KDA_CU_CONTEXT_IS_DESTROYED = 709,
    KDA_CU_LAUNCH_FAILED = 719,
    KDA_CU_NOT_SUPPORTED = 801,
    KDA_CU_STREAM_CAPTURE_UNSUPPORTED = 900,
    KDA_CU_STREAM_CAPTURE_INVALIDATED = 901,
    KDA_CU_STREAM_CAPTURE_IMPLICIT = 906,
    KDA_CU_UNKNOWN = 999
};

enum {  // of CUdevice_attribute
    KDA_CU_SM_COUNT = 16,
    KDA_CU_CC_MAJOR = 75,
    KDA_CU_CC_MINOR = 76,
    KDA_CU_SMEM_OPTIN = 97
};
enum { KDA_CU_FUNC_SMEM = 8 };  // of CUfunction_attribute: the most dynamic shared memory
enum { KDA_CU_CAPTURE_NONE = 0, KDA_CU_CAPTURE_ACTIVE = 1, KDA_CU_CAPTURE_INVALIDATED = 2 };
enum { KDA_CU_CAPTURE_GLOBAL = 0, KDA_CU_CAPTURE_THREAD_LOCAL = 1, KDA_CU_CAPTURE_RELAXED = 2 };
enum { KDA_CU_LAUNCH_PDL = 6 };  // of CUlaunchAttributeID: programmatic stream serialization
enum { KDA_CU_PROC_LEGACY_STREAM = 1 };                   // flags of cuGetProcAddress
enum { KDA_CU_PROC_FOUND = 0, KDA_CU_PROC_MISSING = 1 };  // its status

// Dynamic shared memory that a function may use without the opt-in attribute, in bytes.
#define KDA_CU_SMEM_DEFAULT 49152u

struct kda_cu_launch_attribute {
    uint32_t id, padding;
    union {
        char bytes[64];
        int pdl;  // 1: allow
    } value;
};

struct kda_cu_launch_config {
    unsigned grid[3], block[3], smem;
    CUstream stream;
    const struct kda_cu_launch_attribute *attributes;
    unsigned attribute_count;
};

KDA_CU_ASSERT(sizeof(struct kda_cu_launch_attribute) == 72, "ABI of CUlaunchAttribute");
KDA_CU_ASSERT(sizeof(struct kda_cu_launch_config) == 56, "ABI of CUlaunchConfig");

typedef int kda_cu_get_proc_address(const char *name, void **out_function, int version,
                                    uint64_t flags, int *out_status);

struct kda_driver {
#define KDA_SYMBOL(name, version, parameters) int(*name) parameters;
#include "loader/symbols.inc"
#undef KDA_SYMBOL
};

// The driver of this process, opened by the first call. A failed attempt leaves nothing behind and
// may be repeated. Any thread. Errors: NO_DRIVER, NO_MEMORY.
kda_status kda_driver_open(const struct kda_driver **out, kda_error *err);

// A number that changes when the process forks: a child finds another one than its parent stored.
// No system call.
unsigned kda_driver_generation(void);

// Fails with the status that belongs to `result` of the driver call `call`: NO_DRIVER for a stub,
// CONTEXT_LOST for a context that is gone, else DRIVER. The text is "OPERATION: CALL returned
// NUMBER NAME", and ", " and the rest if any.
kda_status kda_driver_fail(const struct kda_driver *driver, int result, const char *operation,
                           const char *call, kda_error *err, const char *rest_format, ...)
    __attribute__((format(printf, 6, 7)));

#undef KDA_CU_ASSERT
#ifdef __cplusplus
}
#endif
#endif
