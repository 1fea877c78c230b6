// SPDX-License-Identifier: Apache-2.0
// One validated call on its way to the driver, and at the same time what a kda_plan holds. It
// contains no pointer into itself, so that a plan may be copied as bytes.
#ifndef KDA_LOADER_LAUNCH_H
#define KDA_LOADER_LAUNCH_H

#include "loader/context.h"
#include "manifest/params.h"

// may_alias: a plan is declared as an array of words.
struct __attribute__((may_alias)) kda_launch {
    uint64_t magic;  // marks a plan
    kda_context *context;
    const char *operation;  // static
    CUfunction function;
    uint32_t cubin;
    uint32_t grid[2], block, smem;  // a grid of no CTA: succeed and ask the driver for nothing
    bool pdl;
    union kda_params {
        struct kda_recurrent_params recurrent;  // and packed
        struct kda_fused_params fused;
        struct kda_verify_params verify;
        struct kda_commit_params commit;
    } params;
};
_Static_assert(sizeof(struct kda_launch) <= sizeof(kda_plan), "a launch fits in a plan");

// The routed image, or why there is none. A call may not say so before its tensors are checked.
struct kda_choice {
    kda_status status;
    uint32_t cubin;
};

// Of every call, first. ARGUMENT: no context or no args. FORKED.
kda_status kda_launch_begin(const kda_context *context, const void *args, const char *operation,
                            kda_error *err);

// Routes. LIMIT: HV, HV*split or num_slots. Any other refusal waits in the choice.
kda_status kda_launch_limits(const kda_context *context, const kda_problem *problem, int64_t slots,
                             struct kda_choice *out, kda_error *err);

// Fills all but `function`, `magic` and `params`. Refuses what the choice refused; UNSUPPORTED:
// programmatic dependent launch of a body that does not wait. VERSION: a body with other
// parameters.
kda_status kda_launch_describe(kda_context *context, const char *operation,
                               const kda_problem *problem, const struct kda_choice *choice,
                               uint32_t flags, struct kda_launch *out, kda_error *err);

// Finds or loads the image, then launches.
kda_status kda_launch_now(struct kda_launch *launch, CUstream stream, kda_error *err);

// Finds or loads the image, then writes the plan.
kda_status kda_launch_plan(struct kda_launch *launch, kda_plan *out, kda_error *err);

#endif
