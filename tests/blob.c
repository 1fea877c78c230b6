// SPDX-License-Identifier: Apache-2.0
// Owns made-up images and the packing of them. Knows of the format only what tools/layout.h offers.
// The same call gives the same bytes.
#include "tests/blob.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/family.h"
#include "tools/files.h"
#include "tools/layout.h"
#include "tools/rows.h"

static void *take(void *memory)
{
    if (memory) return memory;
    fprintf(stderr, "blob: no memory\n");
    exit(1);
}

static const struct blob_target *wanted(const struct blob_target *targets, uint32_t row)
{
    for (; targets->name; ++targets) {
        if (!strcmp(targets->name, kda_targets[row].name)) return targets;
    }
    return NULL;
}

// Sizes differ from image to image, so that there are gaps between them.
static struct kda_image make_image(uint32_t schedule, uint32_t target,
                                   const struct blob_target *from)
{
    struct kda_image image = {.schedule = schedule, .target = target};
    char text[256];
    int length =
        snprintf(text, sizeof text, "image of %s for %s by %s%.*s", kda_schedules[schedule].name,
                 from->name, from->toolkit, (int)(schedule % 7 + 1), "........");
    image.size = (size_t)length;
    image.data = take(malloc(image.size));
    memcpy(image.data, text, image.size);
    kda_files_sha256(image.data, image.size, image.sha256);
    snprintf(image.elf.target, sizeof image.elf.target, "%s", from->name);
    snprintf(image.elf.toolkit, sizeof image.elf.toolkit, "%s", from->toolkit);
    image.elf.toolkit_version = from->version;
    image.elf.registers = 40 + schedule;
    return image;
}

struct blob blob_make(const struct blob_target *targets)
{
    size_t count = 0, most = (size_t)kda_schedule_count * kda_target_count;
    struct kda_image *images = take(calloc(most, sizeof *images));
    bool *included = take(calloc(kda_target_count, sizeof *included));
    uint8_t(*digests)[32] = take(calloc(kda_schedule_count, sizeof *digests));
    for (uint32_t i = 0; i < kda_schedule_count; ++i) {
        kda_files_sha256(kda_schedules[i].name, strlen(kda_schedules[i].name), digests[i]);
        for (uint32_t k = 0; k < kda_target_count; ++k) {
            const struct blob_target *from = wanted(targets, k);
            if (!from) continue;
            included[k] = true;
            if (from->without && !strcmp(from->without, kda_schedules[i].name)) continue;
            images[count++] = make_image(i, k, from);
        }
    }
    struct blob blob = {0};
    struct kda_frames frames = {0};
    kda_error err;
    kda_status status = kda_family_build(images, count, &frames, &err);
    struct kda_bundle_plan plan = {.images = images,
                                   .image_count = count,
                                   .frames = &frames,
                                   .body_sha256 = (const uint8_t(*)[32])digests,
                                   .included = included,
                                   .pinned = true};
    if (!status) status = kda_layout_write(&plan, &blob.data, &blob.size, &err);
    if (status) {
        fprintf(stderr, "blob: %s\n", err.text);
        exit(1);
    }
    kda_family_free(&frames);
    for (size_t i = 0; i < count; ++i) free(images[i].data);
    free(images);
    free(included);
    free(digests);
    return blob;
}

struct blob blob_default(void)
{
    static const struct blob_target targets[] = {{"sm_100f", "12.9.86", 12090, NULL},
                                                 {"sm_100a", "12.9.86", 12090, NULL},
                                                 {"sm_103a", "12.9.86", 12090, NULL},
                                                 {0}};
    return blob_make(targets);
}
