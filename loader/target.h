// SPDX-License-Identifier: Apache-2.0
// The last step of a route: from a body to one of its images.
#ifndef KDA_LOADER_TARGET_H
#define KDA_LOADER_TARGET_H

#include "loader/bundle.h"

// Is the body of this operator, T and gate, and does it take this H, HV and N?
static inline bool kda_body_serves(const struct kda_format_body *body, const kda_problem *problem)
{
    // What differs most between bodies comes first: every call goes through many of them.
    if (problem->tokens < 1 || body->tokens_min > (uint32_t)problem->tokens ||
        body->tokens_max < (uint32_t)problem->tokens || body->gate != (uint32_t)problem->gate ||
        body->op != (uint32_t)problem->op)
        return false;
    const uint32_t state = problem->state_type ? (uint32_t)problem->state_type : KDA_BF16;
    if (body->state_type != state || !kda_mode_serves(body->mode_set, problem->mode)) return false;
    if (!kda_heads_serve(body->head_set, problem->heads)) return false;
    if ((body->flags & KDA_BODY_EQUAL_HEADS) && problem->value_heads != problem->heads)
        return false;
    if (!body->row_set) return true;
    return problem->rows >= 0 && problem->rows < 32 && (body->row_set >> problem->rows & 1);
}

// The image of `body` for the device: the preferred target that qualifies, or the forced one unless
// it is KDA_NONE. A body of KDA_NONE means that no row has one. NO_ROUTE or CUDA_VERSION, naming
// every target tried.
kda_status kda_target_choose(const kda_bundle *bundle, const kda_device *device,
                             const kda_problem *problem, uint32_t body, uint32_t forced_target,
                             uint32_t *out_cubin, kda_error *err);

// The form in which records hold a compute capability: 10*major + minor. The minor must be a single
// digit.
static inline uint32_t kda_device_cc(const kda_device *device)
{
    return (uint32_t)(10 * device->cc_major + device->cc_minor);
}

#endif
