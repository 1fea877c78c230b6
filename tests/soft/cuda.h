// SPDX-License-Identifier: Apache-2.0
// The driver API of the soft device for programs that link it: a prototype for each row of
// exports.inc, with results as int, and the numbers beyond those of loader/driver.h. Not for use
// beside the vendor's header of the same name.
#ifndef KDA_TESTS_SOFT_CUDA_H
#define KDA_TESTS_SOFT_CUDA_H

#include <stddef.h>

#include "loader/driver.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SOFT_EXPORT(base, symbol, since, until, parameters)                                        \
    __attribute__((visibility("default"))) int symbol parameters;
#include "tests/soft/exports.inc"
#undef SOFT_EXPORT

enum {
    SOFT_CU_ILLEGAL_STATE = 401,
    SOFT_CU_CAPTURE_WRONG_THREAD = 908,

    SOFT_CU_STREAM_NON_BLOCKING = 1,   // flag of cuStreamCreate
    SOFT_CU_EVENT_NO_TIMING = 2,       // flag of cuEventCreate
    SOFT_CU_PROC_VERSION_TOO_OLD = 2,  // status of cuGetProcAddress

    SOFT_CU_FUNC_THREADS = 0,  // of CUfunction_attribute: most threads per CTA
    SOFT_CU_FUNC_STATIC_SMEM = 1
};

// Stream handles that name a default stream, as NULL does.
#define SOFT_CU_STREAM_LEGACY ((CUstream)1)
#define SOFT_CU_STREAM_PER_THREAD ((CUstream)2)

#ifdef __cplusplus
}
#endif
#endif
