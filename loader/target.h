// SPDX-License-Identifier: Apache-2.0
// The last step of a route: from a body to one of its images.
#ifndef KDA_LOADER_TARGET_H
#define KDA_LOADER_TARGET_H

#include "loader/bundle.h"

// Is the body of this operator, T and gate, and does it take this H, HV and N?
bool kda_body_serves(const struct kda_format_body *body, const kda_problem *problem);

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
