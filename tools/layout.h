// SPDX-License-Identifier: Apache-2.0
// The bundle as bytes.
#ifndef KDA_TOOLS_LAYOUT_H
#define KDA_TOOLS_LAYOUT_H

#include "tools/family.h"

struct kda_bundle_plan {
    const struct kda_image *images;  // sorted by schedule, then target
    size_t image_count;
    const struct kda_frames *frames;
    const uint8_t (*body_sha256)[32];  // of every schedule
    const bool *included;              // of every target: the bundle holds its images
    bool pinned;
};

// Writes the whole bundle into memory from malloc. NAME if the manifest's routes name a body that
// it does not declare.
kda_status kda_layout_write(const struct kda_bundle_plan *plan, uint8_t **out_data,
                            size_t *out_size, kda_error *err);

#endif
