// SPDX-License-Identifier: Apache-2.0
// Routing as the operations use it: three steps whose order is the order of the spec's errors.
#ifndef KDA_LOADER_ROUTE_H
#define KDA_LOADER_ROUTE_H

#include "loader/bundle.h"

// Is there a body for this operator, T and gate that takes H, HV and N? ARGUMENT, UNSUPPORTED (with
// the supported set) or LIMIT. Writes the index of one such body, whose limits and flags speak for
// all bodies of that T and gate.
kda_status kda_route_accept(const kda_bundle *bundle, const kda_problem *problem,
                            uint32_t *out_body, kda_error *err);

// The forced or routed body, its target and image: NAME, NO_ROUTE, CUDA_VERSION, LIMIT (HV*split).
kda_status kda_route_image(const kda_bundle *bundle, const kda_device *device,
                           const kda_problem *problem, uint32_t *out_cubin, kda_error *err);

// Everything a route result says of cubin `index` for this problem.
void kda_route_describe(const kda_bundle *bundle, const kda_device *device,
                        const kda_problem *problem, uint32_t index, kda_route_result *out);

// Are the overridden bits known and the reserved words zero? ARGUMENT; `owner` as
// for kda_check_reserved.
kda_status kda_device_words(const char *operation, const char *owner, const kda_device *device,
                            kda_error *err);

// A one-line rendering of the facts: "CC 10.3 (reported), CUDA 13.0 (overridden), 152 SMs
// (reported)".
void kda_device_text(const kda_device *device, char *out, size_t size);

#endif
