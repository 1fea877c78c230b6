// SPDX-License-Identifier: Apache-2.0
// Owns the writing of manifest/format.h: which rows go into a bundle, their records, the strings,
// and where all of it lies. It refuses to judge images. Every byte that is not named by a record is
// zero, because the memory is from calloc.
#include "tools/layout.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "tools/files.h"
#include "tools/image.h"
#include "tools/rows.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "records are written as they lie in memory");

// One section while it grows.
struct records {
    uint8_t *data;
    size_t size, capacity;
    uint32_t count;
};

struct writer {
    const struct kda_bundle_plan *plan;
    struct records spans[KDA_SPAN_COUNT];
    uint32_t targets[32];  // row of the manifest -> record, or KDA_NONE
    bool failed;           // memory ran out
};

static const size_t record_sizes[KDA_SPAN_COUNT] = {
    [KDA_SPAN_BODIES] = sizeof(struct kda_format_body),
    [KDA_SPAN_CUBINS] = sizeof(struct kda_format_cubin),
    [KDA_SPAN_FRAMES] = sizeof(struct kda_format_frame),
    [KDA_SPAN_ROUTES] = sizeof(struct kda_format_route),
    [KDA_SPAN_RULES] = sizeof(struct kda_format_rule),
    [KDA_SPAN_PREFERENCES] = sizeof(struct kda_format_preference),
    [KDA_SPAN_TARGETS] = sizeof(struct kda_format_target),
    [KDA_SPAN_STRINGS] = 1,
};

static uint64_t align(uint64_t n) { return (n + KDA_ALIGN - 1) / KDA_ALIGN * KDA_ALIGN; }

static void append(struct writer *writer, int span, const void *data, size_t count)
{
    struct records *records = &writer->spans[span];
    size_t size = count * record_sizes[span];
    if (records->capacity - records->size < size) {
        size_t capacity = 2 * records->capacity + size + 4096;
        uint8_t *grown = realloc(records->data, capacity);
        if (!grown) {
            writer->failed = true;
            return;
        }
        records->data = grown;
        records->capacity = capacity;
    }
    memcpy(records->data + records->size, data, size);
    records->size += size;
    records->count += (uint32_t)count;
}

// The offset of `text` in the strings. What stands there already, if only as the end of a longer
// text, is used again.
static uint32_t intern(struct writer *writer, const char *text)
{
    const struct records *strings = &writer->spans[KDA_SPAN_STRINGS];
    const uint8_t *found = NULL;
    if (strings->size) found = memmem(strings->data, strings->size, text, strlen(text) + 1);
    if (found) return (uint32_t)(found - strings->data);
    uint32_t offset = strings->count;
    append(writer, KDA_SPAN_STRINGS, text, strlen(text) + 1);
    return offset;
}

static bool runs_on(uint32_t target, uint32_t cc)
{
    for (int i = 0; i < KDA_MAX_CCS; i++)
        if (cc && kda_targets[target].ccs[i] == cc) return true;
    return false;
}

static bool served(const struct writer *writer, uint32_t cc)
{
    for (uint32_t t = 0; t < kda_target_count; t++)
        if (writer->plan->included[t] && runs_on(t, cc)) return true;
    return false;
}

static void write_bodies(struct writer *writer)
{
    for (uint32_t i = 0; i < kda_schedule_count; i++) {
        const struct kda_schedule_row *row = &kda_schedules[i];
        char entry[128];
        snprintf(entry, sizeof entry, "kda_%s", row->name);
        struct kda_format_body body = {
            .entry = intern(writer, entry),
            .layout = intern(writer, row->layout),
            .op = row->op,
            .gate = row->gate,
            .tokens_min = row->tokens_min,
            .tokens_max = row->tokens_max,
            .split = row->split,
            .threads = row->threads,
            .smem = row->smem,
            .flags = row->flags,
            .head_set = row->head_set,
            .row_set = row->row_set,
            .params_version = row->params_version,
            .params_size = row->params_size,
            .state_type = row->state_type,
            .mode_set = row->mode_set,
        };
        body.name = intern(writer, row->name);  // after the entry, whose end it is
        memcpy(body.sha256, writer->plan->body_sha256[i], sizeof body.sha256);
        append(writer, KDA_SPAN_BODIES, &body, 1);
    }
}

// Targets without images are kept when a device that the bundle serves could ask for them: a
// refusal can then name them.
static void write_targets(struct writer *writer)
{
    for (uint32_t t = 0; t < kda_target_count; t++) {
        const struct kda_target_row *row = &kda_targets[t];
        struct kda_format_target target = {.floor = row->floor};
        bool wanted = false;
        while (target.cc_count < KDA_MAX_CCS && row->ccs[target.cc_count]) {
            target.ccs[target.cc_count] = row->ccs[target.cc_count];
            wanted |= served(writer, row->ccs[target.cc_count]);
            target.cc_count++;
        }
        writer->targets[t] = wanted ? writer->spans[KDA_SPAN_TARGETS].count : KDA_NONE;
        if (!wanted) continue;
        target.name = intern(writer, row->name);
        append(writer, KDA_SPAN_TARGETS, &target, 1);
    }
}

static void write_cubins(struct writer *writer)
{
    for (size_t i = 0; i < writer->plan->image_count; i++) {
        const struct kda_image *image = &writer->plan->images[i];
        char options[256];
        kda_image_options(image->target, &image->elf, options, sizeof options);
        struct kda_format_cubin cubin = {
            .body = image->schedule,
            .target = writer->targets[image->target],
            .frame = image->frame,
            .toolkit = intern(writer, image->elf.toolkit),
            .options = intern(writer, options),
            .min_cuda = kda_image_min_cuda(image->target, &image->elf),
            .registers = image->elf.registers,
            .stack = image->elf.stack,
            .shared = image->elf.shared,
            .barriers = image->elf.barriers,
            .offset = image->offset,
            .size = image->size,
        };
        memcpy(cubin.sha256, image->sha256, sizeof cubin.sha256);
        append(writer, KDA_SPAN_CUBINS, &cubin, 1);
    }
}

static kda_status write_rules(struct writer *writer, const struct kda_route_row *row,
                              kda_error *err)
{
    for (int i = 0; i < KDA_MAX_RULES && row->rules[i].kind; i++) {
        const struct kda_rule_row *rule = &row->rules[i];
        uint32_t body = kda_rows_schedule(rule->body, strlen(rule->body));
        if (body == KDA_NONE)
            return kda_fail(err, KDA_E_NAME, "routes.inc: schedules.inc does not declare %s",
                            rule->body);
        struct kda_format_rule record = {
            .kind = rule->kind, .body = body, .den = rule->den, .num = rule->num, .c = rule->c};
        append(writer, KDA_SPAN_RULES, &record, 1);
    }
    return KDA_OK;
}

static kda_status write_routes(struct writer *writer, kda_error *err)
{
    for (uint32_t i = 0; i < kda_route_count; i++) {
        const struct kda_route_row *row = &kda_routes[i];
        for (int k = 0; k < KDA_MAX_CCS && row->ccs[k]; k++) {
            if (!served(writer, row->ccs[k])) continue;
            struct kda_format_route route = {
                .op = row->op,
                .gate = row->gate,
                .tokens_min = row->tokens_min,
                .tokens_max = row->tokens_max,
                .state_type = row->state_type,
                .mode_set = row->mode_set,
                .cc = row->ccs[k],
                .rule_first = writer->spans[KDA_SPAN_RULES].count,
            };
            kda_status status = write_rules(writer, row, err);
            if (status != KDA_OK) return status;
            route.rule_count = writer->spans[KDA_SPAN_RULES].count - route.rule_first;
            append(writer, KDA_SPAN_ROUTES, &route, 1);
        }
    }
    return KDA_OK;
}

static kda_status write_preferences(struct writer *writer, kda_error *err)
{
    for (uint32_t i = 0; i < kda_preference_count; i++) {
        const struct kda_prefer_row *row = &kda_preferences[i];
        if (!served(writer, row->cc)) continue;
        struct kda_format_preference record = {
            .cc = row->cc, .op = row->op, .body = KDA_NONE, .target_count = row->target_count};
        if (strcmp(row->body, "KDA_ANY_BODY") != 0) {
            record.body = kda_rows_schedule(row->body, strlen(row->body));
            if (record.body == KDA_NONE)
                return kda_fail(err, KDA_E_NAME, "routes.inc: schedules.inc does not declare %s",
                                row->body);
        }
        for (uint32_t k = 0; k < row->target_count; k++) {
            if (!runs_on(row->targets[k], row->cc))
                return kda_fail(err, KDA_E_NAME, "routes.inc: %s does not run on CC %u.%u",
                                kda_targets[row->targets[k]].name, row->cc / 10, row->cc % 10);
            record.targets[k] = writer->targets[row->targets[k]];
        }
        append(writer, KDA_SPAN_PREFERENCES, &record, 1);
    }
    return KDA_OK;
}

static void write_frames(struct writer *writer)
{
    for (uint32_t i = 0; i < writer->plan->frames->count; i++) {
        const struct kda_frame *frame = &writer->plan->frames->frames[i];
        struct kda_format_frame record = {.stored_size = frame->stored_size,
                                          .raw_size = frame->raw_size};
        kda_files_sha256(frame->stored, frame->stored_size, record.sha256);
        append(writer, KDA_SPAN_FRAMES, &record, 1);
    }
}

// Places sections and frames, and copies them there. Frames learn their offsets here, so their
// records change last.
static kda_status assemble(struct writer *writer, uint8_t **out_data, size_t *out_size,
                           kda_error *err)
{
    const struct kda_frames *frames = writer->plan->frames;
    struct kda_format_header header = {
        .magic = {0},
        .version = KDA_FORMAT_VERSION,
        .header_size = sizeof header,
        .flags = writer->plan->pinned ? KDA_BUNDLE_PINNED : 0,
        .zstd_version = ZSTD_versionNumber(),
    };
    memcpy(header.magic, KDA_MAGIC, KDA_MAGIC_SIZE);
    uint64_t at = sizeof header;
    for (int i = 0; i < KDA_SPAN_COUNT; i++) {
        header.spans[i] = (struct kda_format_span){.offset = at, .count = writer->spans[i].count};
        at = align(at + writer->spans[i].size);
    }
    header.index_size = at;
    struct kda_format_frame *records = (void *)writer->spans[KDA_SPAN_FRAMES].data;
    for (uint32_t i = 0; i < frames->count; i++) {
        records[i].offset = at;
        header.file_size = at + frames->frames[i].stored_size;
        at = align(header.file_size);
    }

    uint8_t *data = calloc(header.file_size, 1);
    if (!data)
        return kda_fail(err, KDA_E_NO_MEMORY, "no memory for a bundle of %zu bytes",
                        (size_t)header.file_size);
    for (int i = 0; i < KDA_SPAN_COUNT; i++)
        if (writer->spans[i].size)
            memcpy(data + header.spans[i].offset, writer->spans[i].data, writer->spans[i].size);
    for (uint32_t i = 0; i < frames->count; i++)
        memcpy(data + records[i].offset, frames->frames[i].stored, frames->frames[i].stored_size);
    memcpy(data, &header, sizeof header);
    size_t signed_from = offsetof(struct kda_format_header, file_size);
    kda_files_sha256(data + signed_from, header.index_size - signed_from, header.index_sha256);
    memcpy(data, &header, sizeof header);
    *out_data = data;
    *out_size = header.file_size;
    return KDA_OK;
}

kda_status kda_layout_write(const struct kda_bundle_plan *plan, uint8_t **out_data,
                            size_t *out_size, kda_error *err)
{
    struct writer writer = {.plan = plan};
    (void)intern(&writer, "");
    write_bodies(&writer);
    write_targets(&writer);
    write_cubins(&writer);
    write_frames(&writer);
    kda_status status = write_routes(&writer, err);
    if (status == KDA_OK) status = write_preferences(&writer, err);
    if (status == KDA_OK && writer.failed)
        status = kda_fail(err, KDA_E_NO_MEMORY, "no memory for the index");
    if (status == KDA_OK) status = assemble(&writer, out_data, out_size, err);
    for (int i = 0; i < KDA_SPAN_COUNT; i++) free(writer.spans[i].data);
    return status;
}
