// SPDX-License-Identifier: Apache-2.0
// Owns compression. A family shares a frame because its images are nearly the same bytes; a load
// then decompresses one family and not the bundle. The stored bytes depend on the images and the
// zstd version and on nothing else.
#include "tools/family.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "manifest/format.h"
#include "tools/rows.h"

enum { LEVEL = 19, PARTS = 8, FAMILIES = (KDA_OP_COMMIT + 1) * PARTS };

// What a cold load costs is its family's stored bytes, which it hashes and decompresses: none
// should have much over 40 KB. So a family is one operator's, its kernels without shared memory
// apart, as code of their own; two of recurrent decode and verify, where short and long rows are
// much code; and long rows and commit by gate. Finer ones cost a tenth of the bundle each time,
// since bodies of neighbouring T are nearly the same code; with a single one, every load would
// decompress everything.
static int family_of(uint32_t schedule)
{
    enum { DIRECT, SHORT, LONG, BY_GATE };
    const struct kda_schedule_row *row = &kda_schedules[schedule];
    int part = SHORT;
    if (row->smem == 0)
        part = DIRECT;
    else if (row->op == KDA_OP_COMMIT || (row->op == KDA_OP_VERIFY && row->tokens_max > 8))
        part = BY_GATE + (int)row->gate;
    else if (row->op == KDA_OP_RECURRENT && row->tokens_max > 3)
        part = LONG;
    return (int)row->op * PARTS + part;
}

static kda_status compress(const uint8_t *raw, size_t raw_size, struct kda_frame *out,
                           kda_error *err)
{
    size_t bound = ZSTD_compressBound(raw_size);
    uint8_t *stored = malloc(bound);
    if (!stored) return kda_fail(err, KDA_E_NO_MEMORY, "no memory for a frame of %zu bytes", bound);
    size_t size = ZSTD_compress(stored, bound, raw, raw_size, LEVEL);
    if (ZSTD_isError(size)) {
        free(stored);
        return kda_fail(err, KDA_E_NO_MEMORY, "zstd: %s", ZSTD_getErrorName(size));
    }
    *out = (struct kda_frame){.stored = stored, .stored_size = size, .raw_size = raw_size};
    return KDA_OK;
}

static kda_status build_family(struct kda_image *images, size_t count, int family, uint32_t frame,
                               struct kda_frame *out, kda_error *err)
{
    size_t capacity = 0, size = 0;
    for (size_t i = 0; i < count; i++)
        if (family_of(images[i].schedule) == family) capacity += images[i].size + KDA_ALIGN;
    uint8_t *raw = calloc(capacity, 1);
    if (!raw) return kda_fail(err, KDA_E_NO_MEMORY, "no memory for a frame of %zu bytes", capacity);
    for (uint32_t target = 0; target < kda_target_count; target++) {
        for (size_t i = 0; i < count; i++) {
            struct kda_image *image = &images[i];
            if (image->target != target || family_of(image->schedule) != family) continue;
            size = (size + KDA_ALIGN - 1) / KDA_ALIGN * KDA_ALIGN;
            memcpy(raw + size, image->data, image->size);
            image->frame = frame;
            image->offset = size;
            size += image->size;
        }
    }
    kda_status status = compress(raw, size, out, err);
    free(raw);
    return status;
}

kda_status kda_family_build(struct kda_image *images, size_t count, struct kda_frames *out,
                            kda_error *err)
{
    struct kda_frames frames = {.frames = calloc(FAMILIES, sizeof *frames.frames)};
    if (!frames.frames) return kda_fail(err, KDA_E_NO_MEMORY, "no memory for %d frames", FAMILIES);
    for (int family = 0; family < FAMILIES; family++) {
        bool empty = true;
        for (size_t i = 0; i < count; i++) empty &= family_of(images[i].schedule) != family;
        if (empty) continue;
        kda_status status =
            build_family(images, count, family, frames.count, &frames.frames[frames.count], err);
        if (status != KDA_OK) {
            kda_family_free(&frames);
            return status;
        }
        frames.count++;
    }
    *out = frames;
    return KDA_OK;
}

void kda_family_free(struct kda_frames *frames)
{
    for (uint32_t i = 0; i < frames->count; i++) free(frames->frames[i].stored);
    free(frames->frames);
    *frames = (struct kda_frames){0};
}
