// SPDX-License-Identifier: Apache-2.0
// The images that go into one bundle, and the compressed frames that hold them.
#ifndef KDA_TOOLS_FAMILY_H
#define KDA_TOOLS_FAMILY_H

#include "tools/elf.h"

struct kda_image {
    uint32_t schedule, target;  // rows of the manifest
    uint8_t *data;
    size_t size;
    uint8_t sha256[32];
    struct kda_elf elf;
    uint32_t frame;   // set by kda_family_build, like the next
    uint64_t offset;  // inside the decompressed frame
};

struct kda_frame {
    uint8_t *stored;
    size_t stored_size, raw_size;
};

struct kda_frames {
    struct kda_frame *frames;
    uint32_t count;
};

// Puts all images of one family into one frame: target by target, in each body by body, every image
// at a multiple of KDA_ALIGN. `images` learn where they went.
kda_status kda_family_build(struct kda_image *images, size_t count, struct kda_frames *out,
                            kda_error *err);
void kda_family_free(struct kda_frames *frames);

#endif
