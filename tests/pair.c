// SPDX-License-Identifier: Apache-2.0
// Owns the bytes of the two-body bundle, written from manifest/format.h alone: what the packer and
// the loader believe in common cannot hide here. The same call gives the same bytes.
#include "tests/pair.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zstd.h>

#include "loader/digest.h"
#include "loader/kda.h"
#include "manifest/format.h"
#include "manifest/params.h"

enum { IMAGE_SIZE = 160, CAPACITY = 8192 };

const char *const pair_bodies[2] = {"first", "second"};

static const char strings[] =
    "\0first\0second\0kda_first\0kda_second\0" PAIR_TARGET "\0row major\00012.9.86";

// Offset of a text in the strings.
static uint32_t text(const char *wanted)
{
    for (uint32_t at = 1; at < sizeof strings; at += (uint32_t)strlen(strings + at) + 1) {
        if (!strcmp(strings + at, wanted)) return at;
    }
    fprintf(stderr, "pair: no string %s\n", wanted);
    exit(1);
}

// Incompressible, so that both frames are stored in the same number of bytes.
static void make_image(uint32_t which, uint8_t out[IMAGE_SIZE])
{
    uint32_t x = 12345 + which;
    for (int i = 0; i < IMAGE_SIZE; ++i) {
        x = x * 1664525u + 1013904223u;
        out[i] = (uint8_t)(x >> 24);
    }
}

static uint64_t aligned(uint64_t offset)
{
    return (offset + KDA_ALIGN - 1) / KDA_ALIGN * KDA_ALIGN;
}

void pair_sign(uint8_t *data, size_t size)
{
    struct kda_format_header *header = (void *)data;
    const size_t first = offsetof(struct kda_format_header, file_size);
    if (size < sizeof *header || header->index_size < first || header->index_size > size) return;
    const struct kda_format_span span = header->spans[KDA_SPAN_FRAMES];
    if (span.offset % 8 == 0 && span.offset <= size &&
        span.count <= (size - span.offset) / sizeof(struct kda_format_frame)) {
        struct kda_format_frame *frames = (void *)(data + span.offset);
        for (uint64_t i = 0; i < span.count; ++i) {
            if (frames[i].offset > size || frames[i].stored_size > size - frames[i].offset)
                continue;
            kda_sha256(data + frames[i].offset, (size_t)frames[i].stored_size, frames[i].sha256);
        }
    }
    kda_sha256(data + first, (size_t)header->index_size - first, header->index_sha256);
}

static void fill_body(uint32_t i, struct kda_format_body *out)
{
    *out = (struct kda_format_body){.name = text(pair_bodies[i]),
                                    .entry = text(i ? "kda_second" : "kda_first"),
                                    .layout = text("row major"),
                                    .op = KDA_OP_RECURRENT,
                                    .tokens_min = i + 1,
                                    .tokens_max = i + 1,
                                    .split = 4,
                                    .threads = 128,
                                    .smem = 1024,
                                    .flags = KDA_BODY_PDL,
                                    .params_version = 1,
                                    .params_size = sizeof(struct kda_recurrent_params),
                                    .state_type = KDA_BF16};
    kda_sha256(pair_bodies[i], strlen(pair_bodies[i]), out->sha256);
}

struct blob pair_make(void)
{
    struct blob blob = {.data = calloc(1, CAPACITY)};
    if (!blob.data) {
        fprintf(stderr, "pair: no memory\n");
        exit(1);
    }
    static const struct {
        size_t count, size;
    } sections[KDA_SPAN_COUNT] = {
        [KDA_SPAN_BODIES] = {2, sizeof(struct kda_format_body)},
        [KDA_SPAN_CUBINS] = {2, sizeof(struct kda_format_cubin)},
        [KDA_SPAN_FRAMES] = {2, sizeof(struct kda_format_frame)},
        [KDA_SPAN_ROUTES] = {2, sizeof(struct kda_format_route)},
        [KDA_SPAN_RULES] = {3, sizeof(struct kda_format_rule)},
        [KDA_SPAN_PREFERENCES] = {1, sizeof(struct kda_format_preference)},
        [KDA_SPAN_TARGETS] = {1, sizeof(struct kda_format_target)},
        [KDA_SPAN_STRINGS] = {sizeof strings, 1},
    };
    struct kda_format_header *header = (void *)blob.data;
    void *at[KDA_SPAN_COUNT];
    uint64_t end = sizeof *header;
    for (int i = 0; i < KDA_SPAN_COUNT; ++i) {
        header->spans[i] = (struct kda_format_span){aligned(end), sections[i].count};
        at[i] = blob.data + aligned(end);
        end = aligned(end) + sections[i].count * sections[i].size;
    }
    struct kda_format_body *bodies = at[KDA_SPAN_BODIES];
    struct kda_format_cubin *cubins = at[KDA_SPAN_CUBINS];
    struct kda_format_frame *frames = at[KDA_SPAN_FRAMES];
    struct kda_format_route *routes = at[KDA_SPAN_ROUTES];
    struct kda_format_rule *rules = at[KDA_SPAN_RULES];
    memcpy(header->magic, KDA_MAGIC, KDA_MAGIC_SIZE);
    header->version = KDA_FORMAT_VERSION;
    header->header_size = sizeof *header;
    header->index_size = aligned(end);
    header->zstd_version = ZSTD_versionNumber();
    memcpy(at[KDA_SPAN_STRINGS], strings, sizeof strings);
    end = header->index_size;
    for (uint32_t i = 0; i < 2; ++i) {
        uint8_t image[IMAGE_SIZE];
        make_image(i, image);
        fill_body(i, &bodies[i]);
        cubins[i] = (struct kda_format_cubin){.body = i,
                                              .frame = i,
                                              .toolkit = text("12.9.86"),
                                              .min_cuda = 12090,
                                              .registers = 40,
                                              .barriers = 1,
                                              .size = IMAGE_SIZE};
        kda_sha256(image, IMAGE_SIZE, cubins[i].sha256);
        frames[i].offset = aligned(end);
        frames[i].raw_size = IMAGE_SIZE;
        uint8_t frame[2 * IMAGE_SIZE];  // zstd writes beyond what it returns
        size_t stored = ZSTD_compress(frame, sizeof frame, image, IMAGE_SIZE, 3);
        if (ZSTD_isError(stored)) {
            fprintf(stderr, "pair: %s\n", ZSTD_getErrorName(stored));
            exit(1);
        }
        memcpy(blob.data + frames[i].offset, frame, stored);
        frames[i].stored_size = stored;
        end = frames[i].offset + stored;
        routes[i] = (struct kda_format_route){.op = KDA_OP_RECURRENT,
                                              .tokens_min = i + 1,
                                              .tokens_max = i + 1,
                                              .cc = 100,
                                              .rule_first = 2 * i,
                                              .rule_count = 2 - i};
    }
    rules[0] = (struct kda_format_rule){KDA_RULE_WORK, 0, 1, 4, 0};
    rules[1] = (struct kda_format_rule){.kind = KDA_RULE_ELSE, .body = 0};
    rules[2] = (struct kda_format_rule){.kind = KDA_RULE_ELSE, .body = 1};
    *(struct kda_format_preference *)at[KDA_SPAN_PREFERENCES] = (struct kda_format_preference){
        .cc = 100, .op = KDA_OP_RECURRENT, .body = KDA_NONE, .target_count = 1};
    *(struct kda_format_target *)at[KDA_SPAN_TARGETS] = (struct kda_format_target){
        .name = text(PAIR_TARGET), .floor = 12090, .cc_count = 2, .ccs = {100, 103}};
    blob.size = (size_t)end;
    header->file_size = end;
    pair_sign(blob.data, blob.size);
    return blob;
}
