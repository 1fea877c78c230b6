// SPDX-License-Identifier: Apache-2.0
// Owns the proof of what the records of an index say: strings, indices, ranges, and the few rules
// of sense that later readers rely on. Refuses to know any body, target or device by name: a bundle
// of tomorrow must pass. Invariant: runs on proved sections only; every refusal names the record
// with expected and found.
#include "loader/proof.h"

#include <string.h>

#include "loader/checked.h"
#include "loader/error.h"

#define REFUSE(...) return kda_fail(err, KDA_E_FORMAT, __VA_ARGS__)

static kda_status prove_strings(const kda_bundle *bundle, kda_error *err)
{
    uint64_t size = bundle->header->spans[KDA_SPAN_STRINGS].count;
    const char *strings = bundle->strings;
    if (size == 0 || strings[0] != 0 || strings[size - 1] != 0)
        REFUSE("bundle: strings: expected to begin and end with NUL, found otherwise in %llu bytes",
               (unsigned long long)size);
    for (uint64_t i = 0; i < size; ++i) {
        unsigned char c = (unsigned char)strings[i];
        if (c && (c < 0x20 || c > 0x7e))
            REFUSE("bundle: strings: byte %llu: expected printable ASCII, found %#x",
                   (unsigned long long)i, c);
    }
    return KDA_OK;
}

// An offset into the strings; a name has word characters only and is never empty.
static kda_status prove_text(const kda_bundle *bundle, const char *what, uint32_t index,
                             const char *field, uint32_t offset, bool is_name, kda_error *err)
{
    uint64_t size = bundle->header->spans[KDA_SPAN_STRINGS].count;
    if (offset >= size)
        REFUSE("bundle: %s %u: %s: string offset expected below %llu, found %u", what, index, field,
               (unsigned long long)size, offset);
    const char *text = bundle->strings + offset;
    if (!*text) REFUSE("bundle: %s %u: %s expected, found an empty string", what, index, field);
    static const char word[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    if (is_name && (text[strspn(text, word)] || strlen(text) > 255))
        REFUSE("bundle: %s %u: %s expected 1 to 255 of [A-Za-z0-9_], found \"%.80s\"", what, index,
               field, text);
    return KDA_OK;
}

static bool all_zero(const void *data, size_t size)
{
    const uint8_t *bytes = data;
    for (size_t i = 0; i < size; ++i) {
        if (bytes[i]) return false;
    }
    return true;
}

// A number of a record; `name` is the entry's name, or "" where it has none.
static kda_status prove_number(const char *what, uint32_t index, const char *name,
                               const char *field, uint64_t found, uint64_t low, uint64_t high,
                               kda_error *err)
{
    if (found >= low && found <= high) return KDA_OK;
    REFUSE("bundle: %s %u%s%s%s: %s expected %llu..%llu, found %llu", what, index,
           *name ? " (" : "", name, *name ? ")" : "", field, (unsigned long long)low,
           (unsigned long long)high, (unsigned long long)found);
}

// Numbers that this library has no name for are fine: no route of a known problem can reach them.
#define CHECK(field, low, high)                                                                    \
    if ((status = prove_number(what, i, name, #field, record->field, low, high, err))) return status
#define CHECK_INDEX(field, count)                                                                  \
    if (record->field >= (count))                                                                  \
    REFUSE("bundle: %s %u: %s expected below %u, found %u", what, i, #field, count, record->field)
#define CHECK_TEXT(field, is_name)                                                                 \
    if ((status = prove_text(bundle, what, i, #field, record->field, is_name, err))) return status
#define CHECK_ZERO(field)                                                                          \
    if (!all_zero(&record->field, sizeof record->field))                                           \
    REFUSE("bundle: %s %u (%s): %s expected 0, found other bytes", what, i, name, #field)

static kda_status prove_bodies(const kda_bundle *bundle, kda_error *err)
{
    const char *what = "body";
    kda_status status;
    for (uint32_t i = 0; i < bundle->body_count; ++i) {
        const struct kda_format_body *record = &bundle->bodies[i];
        CHECK_TEXT(name, true);
        const char *name = bundle->strings + record->name;
        CHECK_TEXT(entry, true);
        CHECK_TEXT(layout, false);
        CHECK(op, 1, 255);
        CHECK(gate, 0, 255);
        CHECK(tokens_min, 1, 65535);
        CHECK(tokens_max, record->tokens_min, 65535);
        CHECK(split, 1, 128);
        if (128 % record->split)
            REFUSE("bundle: body %u (%s): split expected a divisor of 128, found %u", i, name,
                   record->split);
        CHECK(threads, 32, 1024);
        if (record->threads % 32)
            REFUSE("bundle: body %u (%s): threads expected a multiple of 32, found %u", i, name,
                   record->threads);
        CHECK(smem, 0, 256u << 10);
        CHECK(flags, 0, 2 * KDA_BODY_SPILLS - 1);
        if (record->head_set & 1) REFUSE("bundle: body %u (%s): head_set accepts H = 0", i, name);
        if (record->row_set & 1) REFUSE("bundle: body %u (%s): row_set accepts N = 0", i, name);
        CHECK(params_version, 1, 65535);
        CHECK(params_size, 1, 4096);
        CHECK(state_type, KDA_BF16, KDA_F32);
        if (record->mode_set & 1) REFUSE("bundle: body %u (%s): mode_set accepts mode 0", i, name);
        CHECK_ZERO(reserved);
        for (uint32_t j = 0; j < i; ++j) {
            if (!strcmp(bundle->strings + bundle->bodies[j].name, name))
                REFUSE("bundle: body %u (%s): name expected once, found at body %u too", i, name,
                       j);
        }
    }
    return KDA_OK;
}

static kda_status prove_targets(const kda_bundle *bundle, kda_error *err)
{
    const char *what = "target";
    kda_status status;
    for (uint32_t i = 0; i < bundle->target_count; ++i) {
        const struct kda_format_target *record = &bundle->targets[i];
        CHECK_TEXT(name, true);
        const char *name = bundle->strings + record->name;
        CHECK(floor, 1000, 999990);
        CHECK(cc_count, 1, 4);
        for (uint32_t k = 0; k < 4; ++k) {
            if (k < record->cc_count ? record->ccs[k] - 10 > 9989 : record->ccs[k] != 0)
                REFUSE("bundle: target %u (%s): ccs[%u] expected %s, found %u", i, name, k,
                       k < record->cc_count ? "10..9999" : "0", record->ccs[k]);
        }
        CHECK_ZERO(reserved);
        for (uint32_t j = 0; j < i; ++j) {
            if (!strcmp(bundle->strings + bundle->targets[j].name, name))
                REFUSE("bundle: target %u (%s): name expected once, found at target %u too", i,
                       name, j);
        }
    }
    return KDA_OK;
}

// Frames follow the index, each from the next multiple of KDA_ALIGN; the last may be padded to one.
static kda_status prove_frames(const kda_bundle *bundle, kda_error *err)
{
    const char *what = "frame", *name = "";
    kda_status status;
    uint64_t file_size = bundle->header->file_size, end = bundle->header->index_size;
    for (uint32_t i = 0; i < bundle->frame_count; ++i) {
        const struct kda_format_frame *record = &bundle->frames[i];
        uint64_t expected = (end + KDA_ALIGN - 1) / KDA_ALIGN * KDA_ALIGN;
        CHECK(offset, expected, expected);
        CHECK(raw_size, 1, KDA_FRAME_RAW_MAX);
        if (kda_uadd_overflows(record->offset, record->stored_size, &end) || end > file_size ||
            record->stored_size == 0)
            REFUSE("bundle: frame %u: stored size expected 1..%llu, found %llu", i,
                   (unsigned long long)(file_size > expected ? file_size - expected : 0),
                   (unsigned long long)record->stored_size);
        CHECK_ZERO(padding);
    }
    if (file_size - end >= KDA_ALIGN)
        REFUSE("bundle: end of the last frame expected less than %u bytes before %llu, found %llu",
               KDA_ALIGN, (unsigned long long)file_size, (unsigned long long)end);
    return KDA_OK;
}

static kda_status prove_cubins(const kda_bundle *bundle, kda_error *err)
{
    const char *what = "cubin";
    kda_status status;
    for (uint32_t i = 0; i < bundle->cubin_count; ++i) {
        const struct kda_format_cubin *record = &bundle->cubins[i];
        const char *name = "";
        CHECK_INDEX(body, bundle->body_count);
        CHECK_INDEX(target, bundle->target_count);
        CHECK_INDEX(frame, bundle->frame_count);
        name = bundle->strings + bundle->bodies[record->body].name;
        const struct kda_format_cubin *last = i ? record - 1 : NULL;
        if (last && (last->body > record->body ||
                     (last->body == record->body && last->target >= record->target)))
            REFUSE("bundle: cubin %u (%s.%s): expected in order of body and target and once, "
                   "found after body %u, target %u",
                   i, name, bundle->strings + bundle->targets[record->target].name, last->body,
                   last->target);
        CHECK_TEXT(toolkit, false);
        if (record->options) CHECK_TEXT(options, false);
        CHECK(min_cuda, 1000, 999990);
        CHECK(registers, 1, 255);
        CHECK(stack, 0, 512u << 10);
        CHECK(shared, 0, 256u << 10);
        CHECK(barriers, 0, 16);
        CHECK_ZERO(reserved);
        uint64_t raw_size = bundle->frames[record->frame].raw_size, end = 0;
        if (record->size == 0 || kda_uadd_overflows(record->offset, record->size, &end) ||
            end > raw_size)
            REFUSE("bundle: cubin %u (%s): range expected within the %llu bytes of frame %u, "
                   "found %llu at %llu",
                   i, name, (unsigned long long)raw_size, record->frame,
                   (unsigned long long)record->size, (unsigned long long)record->offset);
        CHECK_ZERO(padding);
    }
    return KDA_OK;
}

static kda_status prove_rules(const kda_bundle *bundle, kda_error *err)
{
    const char *what = "rule", *name = "";
    kda_status status;
    for (uint32_t i = 0; i < bundle->rule_count; ++i) {
        const struct kda_format_rule *record = &bundle->rules[i];
        CHECK(kind, KDA_RULE_WORK, KDA_RULE_ELSE);
        CHECK_INDEX(body, bundle->body_count);
        if (record->kind != KDA_RULE_ELSE && record->den < 1)
            REFUSE("bundle: rule %u: den expected >= 1, found %lld", i, (long long)record->den);
    }
    return KDA_OK;
}

static kda_status prove_routes(const kda_bundle *bundle, kda_error *err)
{
    const char *what = "route", *name = "";
    kda_status status;
    for (uint32_t i = 0; i < bundle->route_count; ++i) {
        const struct kda_format_route *record = &bundle->routes[i];
        CHECK(op, 1, 255);
        CHECK(gate, 0, 255);
        CHECK(tokens_min, 1, 65535);
        CHECK(tokens_max, record->tokens_min, 65535);
        if (record->head_set & 1) REFUSE("bundle: route %u: head_set accepts H = 0", i);
        CHECK(state_type, 0, KDA_F32);
        if (record->mode_set & 1) REFUSE("bundle: route %u: mode_set accepts mode 0", i);
        CHECK(cc, 10, 9999);
        CHECK_ZERO(reserved);
        CHECK(rule_first, 0, bundle->rule_count);
        CHECK(rule_count, 1, bundle->rule_count - record->rule_first);
        for (uint32_t k = 0; k < record->rule_count; ++k) {
            const struct kda_format_rule *rule = &bundle->rules[record->rule_first + k];
            bool last = k + 1 == record->rule_count;
            if ((rule->kind == KDA_RULE_ELSE) != last)
                REFUSE("bundle: route %u: rule %u of %u: kind expected %s, found %u", i, k,
                       record->rule_count, last ? "ELSE" : "a condition", rule->kind);
            const struct kda_format_body *body = &bundle->bodies[rule->body];
            if (body->op != record->op || body->gate != record->gate ||
                body->tokens_min > record->tokens_min || body->tokens_max < record->tokens_max)
                REFUSE("bundle: route %u: rule %u: body expected for op %u, gate %u, T=%u..%u, "
                       "found %s for op %u, gate %u, T=%u..%u",
                       i, k, record->op, record->gate, record->tokens_min, record->tokens_max,
                       bundle->strings + body->name, body->op, body->gate, body->tokens_min,
                       body->tokens_max);
        }
    }
    return KDA_OK;
}

static kda_status prove_preferences(const kda_bundle *bundle, kda_error *err)
{
    const char *what = "preference", *name = "";
    kda_status status;
    for (uint32_t i = 0; i < bundle->preference_count; ++i) {
        const struct kda_format_preference *record = &bundle->preferences[i];
        CHECK(cc, 10, 9999);
        CHECK(op, 1, 255);
        if (record->body != KDA_NONE) {
            CHECK_INDEX(body, bundle->body_count);
            CHECK(op, bundle->bodies[record->body].op, bundle->bodies[record->body].op);
        }
        CHECK(target_count, 1, 4);
        for (uint32_t k = 0; k < 4; ++k) {
            bool used = k < record->target_count;
            if (used ? record->targets[k] >= bundle->target_count : record->targets[k] != 0)
                REFUSE("bundle: preference %u: targets[%u] expected %s %u, found %u", i, k,
                       used ? "below" : "to be", used ? bundle->target_count : 0,
                       record->targets[k]);
            if (!used) continue;
            if (!kda_target_runs_on(&bundle->targets[record->targets[k]], record->cc))
                REFUSE("bundle: preference %u: target expected to run on CC %u.%u, found %s", i,
                       record->cc / 10, record->cc % 10,
                       bundle->strings + bundle->targets[record->targets[k]].name);
        }
    }
    return KDA_OK;
}

kda_status kda_proof_records(const kda_bundle *bundle, kda_error *err)
{
    kda_status status = prove_strings(bundle, err);
    if (!status) status = prove_bodies(bundle, err);
    if (!status) status = prove_targets(bundle, err);
    if (!status) status = prove_frames(bundle, err);
    if (!status) status = prove_cubins(bundle, err);
    if (!status) status = prove_rules(bundle, err);
    if (!status) status = prove_routes(bundle, err);
    if (!status) status = prove_preferences(bundle, err);
    return status;
}
