// SPDX-License-Identifier: Apache-2.0
// What every image of the project must be, given the row and the target it was compiled for.
#ifndef KDA_TOOLS_IMAGE_H
#define KDA_TOOLS_IMAGE_H

#include "tools/elf.h"

// Options given to NVRTC beside -arch, in this order. They are also what the bundle states for an
// image that records none.
#define KDA_IMAGE_OPTIONS "--no-cache", "-default-device", "--std=c++17", "--fmad=false"

// Holds an image against its row and target: one kernel of the right name and parameters, compiled
// for the target by a toolkit that is recorded and not older than the target's floor, without line
// info, static shared memory, or local memory that the row does not allow.
kda_status kda_image_check(uint32_t schedule, uint32_t target, const struct kda_elf *elf,
                           kda_error *err);

// The oldest driver of the image, 1000*major + 10*minor: any 12.x that knows the target for a 12.x
// toolkit.
uint32_t kda_image_min_cuda(uint32_t target, const struct kda_elf *elf);

// The options of the image: as recorded, else those that kda-cc gives. `size` 256 is enough.
void kda_image_options(uint32_t target, const struct kda_elf *elf, char *out, size_t size);

#endif
