// SPDX-License-Identifier: Apache-2.0
// The context as the operations see it: a bundle bound to one CUDA context, and the images that are
// loaded into it. An image's function is published once, with release, by whoever loads it; warm
// readers need one acquire load.
#ifndef KDA_LOADER_CONTEXT_H
#define KDA_LOADER_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "loader/bundle.h"
#include "loader/driver.h"

struct kda_image {
    _Atomic(CUfunction) function;  // null: not loaded
    CUmodule module;               // under the lock
};

struct kda_context {
    const kda_bundle *bundle;  // borrowed
    const struct kda_driver *driver;
    CUcontext cuda;             // borrowed; its identity is the handle together with
    unsigned long long id;      // what cuCtxGetId said of it
    unsigned generation;        // of the process that made it
    uint32_t chip;              // compute capability that the driver reports, 10*major + minor
    CUdevice ordinal;           // number of the device
    kda_device device;          // facts to route by
    pthread_mutex_t lock;       // held while an image is loaded, never by a warm launch
    struct kda_image images[];  // one per cubin of the bundle
};

static inline bool kda_context_forked(const kda_context *context)
{
    return context->generation != kda_driver_generation();
}

// Fails with FORKED.
kda_status kda_context_refuse_fork(const char *operation, kda_error *err);

// FORKED, or CONTEXT_LOST if the CUDA context is no longer the one that was bound.
kda_status kda_context_check(const kda_context *context, const char *operation, kda_error *err);

// Loads image `cubin` unless `stream` is being captured. Exactly one of several concurrent callers
// loads; a failure is that caller's alone. The caller's current CUDA context is kept. `frame` (may
// be NULL) is the caller's between loads.
kda_status kda_context_load(kda_context *context, const char *operation, uint32_t cubin,
                            CUstream stream, struct kda_open_frame *frame, CUfunction *out,
                            kda_error *err);

// The function of image `cubin`, loaded if it is not yet.
static inline kda_status kda_context_function(kda_context *context, const char *operation,
                                              uint32_t cubin, CUstream stream, CUfunction *out,
                                              kda_error *err)
{
    const CUfunction function =
        atomic_load_explicit(&context->images[cubin].function, memory_order_acquire);
    if (!function) return kda_context_load(context, operation, cubin, stream, NULL, out, err);
    *out = function;
    return KDA_OK;
}

#endif
