// SPDX-License-Identifier: Apache-2.0
// Owns the way from stored bytes to images: frame digest, decompression, image digest, in this
// order and always. Refuses to know what an image is for. Invariant: nothing is decompressed before
// its frame has its digest, nothing is handed out before the image has its own, and no more memory
// is asked for than the proved index allows.
#include "loader/bundle.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "loader/digest.h"
#include "loader/error.h"

static const char *body_name(const kda_bundle *bundle, uint32_t cubin)
{
    return bundle->strings + bundle->bodies[bundle->cubins[cubin].body].name;
}

static const char *target_name(const kda_bundle *bundle, uint32_t cubin)
{
    return bundle->strings + bundle->targets[bundle->cubins[cubin].target].name;
}

static kda_status check_image(const kda_bundle *bundle, uint32_t index, const uint8_t *raw,
                              kda_error *err)
{
    const struct kda_format_cubin *cubin = &bundle->cubins[index];
    uint8_t digest[32];
    kda_sha256(raw + cubin->offset, (size_t)cubin->size, digest);
    if (!memcmp(digest, cubin->sha256, sizeof digest)) return KDA_OK;
    return kda_fail(err, KDA_E_DIGEST, "bundle: cubin %u (%s.%s): sha256 expected %s, found %s",
                    index, body_name(bundle, index), target_name(bundle, index),
                    kda_hex_of(cubin->sha256).text, kda_hex_of(digest).text);
}

static kda_status decompress(const kda_bundle *bundle, uint32_t index, uint8_t **out_raw,
                             kda_error *err)
{
    const struct kda_format_frame *frame = &bundle->frames[index];
    const uint8_t *stored = bundle->data + frame->offset;
    size_t stored_size = (size_t)frame->stored_size, raw_size = (size_t)frame->raw_size;
    uint8_t digest[32];
    kda_sha256(stored, stored_size, digest);
    if (memcmp(digest, frame->sha256, sizeof digest) != 0)
        return kda_fail(err, KDA_E_DIGEST, "bundle: frame %u: sha256 expected %s, found %s", index,
                        kda_hex_of(frame->sha256).text, kda_hex_of(digest).text);
    unsigned long long content = ZSTD_getFrameContentSize(stored, stored_size);
    if (content != raw_size)
        return kda_fail(
            err, KDA_E_FORMAT,
            "bundle: frame %u: content size expected %zu, found %lld (-1 none, -2 not zstd)", index,
            raw_size, (long long)content);
    size_t whole = ZSTD_findFrameCompressedSize(stored, stored_size);
    if (ZSTD_isError(whole) || whole != stored_size)
        return kda_fail(
            err, KDA_E_FORMAT, "bundle: frame %u: expected one zstd frame of %zu bytes, found %s",
            index, stored_size, ZSTD_isError(whole) ? ZSTD_getErrorName(whole) : "another length");

    kda_status status = KDA_OK;
    ZSTD_DCtx *zstd = ZSTD_createDCtx();
    uint8_t *raw = malloc(raw_size);
    if (!zstd || !raw) {
        status = kda_fail(err, KDA_E_NO_MEMORY, "bundle: frame %u: no memory for %zu bytes", index,
                          raw_size);
        goto fail;
    }
    size_t got = ZSTD_decompressDCtx(zstd, raw, raw_size, stored, stored_size);
    if (ZSTD_isError(got) || got != raw_size) {
        bool memory = ZSTD_isError(got) && ZSTD_getErrorCode(got) == ZSTD_error_memory_allocation;
        status = kda_fail(err, memory ? KDA_E_NO_MEMORY : KDA_E_FORMAT,
                          "bundle: frame %u: decompression of %zu bytes: %s", index, raw_size,
                          ZSTD_isError(got) ? ZSTD_getErrorName(got) : "too few came out");
        goto fail;
    }
    ZSTD_freeDCtx(zstd);
    *out_raw = raw;
    return KDA_OK;
fail:
    ZSTD_freeDCtx(zstd);
    free(raw);
    return status;
}

void kda_frame_close(struct kda_open_frame *frame)
{
    free(frame->raw);
    *frame = (struct kda_open_frame){KDA_NONE, NULL};
}

kda_status kda_bundle_load(const kda_bundle *bundle, uint32_t index, struct kda_open_frame *frame,
                           void **out_data, size_t *out_size, kda_error *err)
{
    const struct kda_format_cubin *cubin = &bundle->cubins[index];
    kda_status status;
    if (frame->index != cubin->frame) {
        kda_frame_close(frame);
        status = decompress(bundle, cubin->frame, &frame->raw, err);
        if (status) return status;
        frame->index = cubin->frame;
    }
    status = check_image(bundle, index, frame->raw, err);
    if (status) return status;
    size_t size = (size_t)cubin->size;
    void *image = malloc(size);
    if (!image)
        return kda_fail(err, KDA_E_NO_MEMORY, "bundle: cubin %u (%s.%s): no memory for %zu bytes",
                        index, body_name(bundle, index), target_name(bundle, index), size);
    memcpy(image, frame->raw + cubin->offset, size);
    *out_data = image;
    *out_size = size;
    return KDA_OK;
}

kda_status kda_bundle_image(const kda_bundle *bundle, const char *body, const char *target,
                            void **out_data, size_t *out_size, kda_error *err)
{
    if (!bundle || !body || !target || !out_data || !out_size)
        return kda_fail(err, KDA_E_ARGUMENT, "bundle image: %s expected, found NULL",
                        !bundle     ? "bundle"
                        : !body     ? "body"
                        : !target   ? "target"
                        : !out_data ? "out_data"
                                    : "out_size");
    uint32_t body_index = kda_bundle_find_body(bundle, body);
    if (body_index == KDA_NONE)
        return kda_fail(err, KDA_E_NAME,
                        "bundle image: body expected one of the %u of the bundle, found %.200s",
                        bundle->body_count, body);
    uint32_t target_index = kda_bundle_find_target(bundle, target);
    if (target_index == KDA_NONE)
        return kda_fail(err, KDA_E_NAME,
                        "bundle image: target expected one of the %u of the bundle, found %.200s",
                        bundle->target_count, target);
    uint32_t cubin = kda_bundle_find_cubin(bundle, body_index, target_index);
    if (cubin == KDA_NONE)
        return kda_fail(err, KDA_E_NO_ROUTE, "bundle image: the bundle has no image of %s for %s",
                        body, target);
    struct kda_open_frame frame = {KDA_NONE, NULL};
    kda_status status = kda_bundle_load(bundle, cubin, &frame, out_data, out_size, err);
    kda_frame_close(&frame);
    return status;
}

// -------------------------------------------------------------------------------------- every byte

static kda_status check_zero(const uint8_t *data, uint64_t from, uint64_t to, const char *where,
                             uint32_t index, kda_error *err)
{
    for (uint64_t i = from; i < to; ++i) {
        if (data[i])
            return kda_fail(err, KDA_E_FORMAT,
                            "bundle: %s %u: padding byte %llu: expected 0, found %#x", where, index,
                            (unsigned long long)i, data[i]);
    }
    return KDA_OK;
}

struct piece {
    uint64_t offset, end;
    uint32_t cubin;
};

static int compare_pieces(const void *left, const void *right)
{
    const struct piece *a = left, *b = right;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    return a->cubin < b->cubin ? -1 : a->cubin > b->cubin;
}

// The images of a frame lie side by side, and what is between them is zero. `pieces` holds
// cubin_count entries.
static kda_status verify_frame(const kda_bundle *bundle, uint32_t index, struct piece *pieces,
                               kda_error *err)
{
    uint8_t *raw = NULL;
    kda_status status = decompress(bundle, index, &raw, err);
    if (status) return status;
    size_t count = 0;
    for (uint32_t i = 0; i < bundle->cubin_count; ++i) {
        const struct kda_format_cubin *cubin = &bundle->cubins[i];
        if (cubin->frame != index) continue;
        pieces[count++] = (struct piece){cubin->offset, cubin->offset + cubin->size, i};
    }
    if (count) qsort(pieces, count, sizeof *pieces, compare_pieces);
    uint64_t end = 0;
    for (size_t i = 0; i < count && !status; ++i) {
        if (pieces[i].offset < end) {
            status = kda_fail(
                err, KDA_E_FORMAT,
                "bundle: cubin %u (%s.%s): offset expected at least %llu in frame %u, found %llu",
                pieces[i].cubin, body_name(bundle, pieces[i].cubin),
                target_name(bundle, pieces[i].cubin), (unsigned long long)end, index,
                (unsigned long long)pieces[i].offset);
            break;
        }
        status = check_zero(raw, end, pieces[i].offset, "frame", index, err);
        if (!status) status = check_image(bundle, pieces[i].cubin, raw, err);
        end = pieces[i].end;
    }
    if (!status) status = check_zero(raw, end, bundle->frames[index].raw_size, "frame", index, err);
    free(raw);
    return status;
}

kda_status kda_bundle_verify(const kda_bundle *bundle, kda_error *err)
{
    if (!bundle) return kda_fail(err, KDA_E_ARGUMENT, "bundle verify: bundle expected, found NULL");
    size_t bytes = sizeof(struct piece) * (bundle->cubin_count + (size_t)1);
    struct piece *pieces = malloc(bytes);
    if (!pieces)
        return kda_fail(err, KDA_E_NO_MEMORY, "bundle verify: no memory for %zu bytes", bytes);
    kda_status status = KDA_OK;
    uint64_t end = bundle->header->index_size;
    for (uint32_t i = 0; i < bundle->frame_count && !status; ++i) {
        const struct kda_format_frame *frame = &bundle->frames[i];
        status = check_zero(bundle->data, end, frame->offset, "file before frame", i, err);
        if (!status) status = verify_frame(bundle, i, pieces, err);
        end = frame->offset + frame->stored_size;
    }
    if (!status)
        status = check_zero(bundle->data, end, bundle->size, "file after frame",
                            bundle->frame_count - 1, err);
    free(pieces);
    return status;
}
