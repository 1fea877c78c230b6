// SPDX-License-Identifier: Apache-2.0
// Owns what is measured: the standard shapes, and the bodies and routes that belong to a shape. It
// knows nothing of time. A shape is a point that a stored table has, so that runs compare.
#include <stdlib.h>
#include <string.h>

#include "tools/bench.h"

static const struct bench_kind kinds[] = {
    {"precomputed", KDA_OP_RECURRENT, KDA_GATE_PRECOMPUTED, KDA_BF16, 0, false},
    {"lower_bound", KDA_OP_RECURRENT, KDA_GATE_LOWER_BOUND, KDA_BF16, 0, false},
    {"softplus", KDA_OP_RECURRENT, KDA_GATE_SOFTPLUS, KDA_BF16, 0, false},
    {"packed", KDA_OP_PACKED, KDA_GATE_LOWER_BOUND, KDA_BF16, 0, false},
    {"fused_bf16", KDA_OP_FUSED, KDA_GATE_LOWER_BOUND, KDA_BF16, KDA_MODE_UNIQUE_OR_NULL, false},
    {"fused_f32", KDA_OP_FUSED, KDA_GATE_LOWER_BOUND, KDA_F32, KDA_MODE_UNIQUE_OR_NULL, false},
    {"fused_repeated_bf16", KDA_OP_FUSED, KDA_GATE_LOWER_BOUND, KDA_BF16,
     KDA_MODE_REPEATED_POSITIVE, false},
    {"fused_repeated_f32", KDA_OP_FUSED, KDA_GATE_LOWER_BOUND, KDA_F32, KDA_MODE_REPEATED_POSITIVE,
     false},
    {"fused_softplus_bf16", KDA_OP_FUSED, KDA_GATE_SOFTPLUS, KDA_BF16, KDA_MODE_UNIQUE_OR_NULL,
     false},
    {"fused_softplus_f32", KDA_OP_FUSED, KDA_GATE_SOFTPLUS, KDA_F32, KDA_MODE_UNIQUE_OR_NULL,
     false},
    {"fused_softplus_repeated_bf16", KDA_OP_FUSED, KDA_GATE_SOFTPLUS, KDA_BF16,
     KDA_MODE_REPEATED_POSITIVE, false},
    {"fused_softplus_repeated_f32", KDA_OP_FUSED, KDA_GATE_SOFTPLUS, KDA_F32,
     KDA_MODE_REPEATED_POSITIVE, false},
    {"verify", KDA_OP_VERIFY, KDA_GATE_LOWER_BOUND, KDA_BF16, 0, false},
    {"verify_cached", KDA_OP_VERIFY, KDA_GATE_LOWER_BOUND, KDA_BF16, 0, true},
    {"verify_precomputed", KDA_OP_VERIFY, KDA_GATE_PRECOMPUTED, KDA_BF16, 0, true},
    {"verify_softplus", KDA_OP_VERIFY, KDA_GATE_SOFTPLUS, KDA_BF16, 0, true},
    {"commit", KDA_OP_COMMIT, KDA_GATE_LOWER_BOUND, KDA_BF16, 0, true},
    {"commit_precomputed", KDA_OP_COMMIT, KDA_GATE_PRECOMPUTED, KDA_BF16, 0, true},
    {"commit_softplus", KDA_OP_COMMIT, KDA_GATE_SOFTPLUS, KDA_BF16, 0, true},
};

// Every N of a line with every T and pair of heads of it; 0 ends a list.
enum { MAX_LIST = 16 };
static const struct {
    const char *kind;
    int tokens[MAX_LIST], heads[MAX_LIST], heads_ratio, rows[MAX_LIST];
} standard[] = {
    {"precomputed", {1, 2, 4, 5, 6}, {16}, 2, {1, 2, 4, 8, 16, 32, 64, 128}},
    {"precomputed", {1, 2, 4, 5, 6}, {8}, 1, {1, 4, 16, 64}},
    {"lower_bound", {3}, {16}, 1, {1, 2, 4, 8, 16}},
    {"softplus", {1}, {4, 8, 16, 32}, 1, {1, 4, 16, 64, 128}},
    {"packed", {1}, {12}, 1, {1, 2, 4, 8, 16, 31, 32, 64, 128, 256}},
    {"fused_bf16", {1}, {8, 12, 24, 32, 48, 96}, 1, {1, 2, 4, 8, 16, 32, 64, 128, 256}},
    {"fused_f32", {1}, {8, 12, 24, 32, 48, 96}, 1, {1, 2, 4, 8, 16, 32, 64, 128, 256}},
    {"fused_repeated_bf16", {1}, {24}, 1, {1, 32}},
    {"fused_repeated_f32", {1}, {24}, 1, {1, 32}},
    {"fused_softplus_bf16", {1}, {24}, 1, {1, 32}},
    {"fused_softplus_f32", {1}, {24}, 1, {1, 32}},
    {"fused_softplus_repeated_bf16", {1}, {24}, 1, {1, 32}},
    {"fused_softplus_repeated_f32", {1}, {24}, 1, {1, 32}},
    {"verify", {1, 2, 4, 5, 6, 8, 12, 16}, {16}, 2, {1, 2, 4, 8, 16, 32, 64, 128}},
    {"verify", {1, 2, 4, 5, 6, 8, 12, 16}, {12}, 1, {1, 8, 64, 256}},
    {"verify_cached", {1, 2, 4, 5, 6, 8, 12, 16}, {16}, 2, {1, 2, 4, 8, 16, 32, 64, 128}},
    {"verify_cached", {1, 2, 4, 5, 6, 8, 12, 16}, {12}, 1, {1, 8, 64, 256}},
    {"verify_precomputed", {1, 2, 4, 5, 6, 8, 16}, {16}, 2, {1, 2, 4, 32}},
    {"verify_precomputed", {1, 2, 4, 5, 6}, {8}, 1, {1, 2, 4}},
    {"verify_softplus", {1, 2, 4, 8, 16}, {16}, 2, {1, 32}},
    {"commit", {1, 2, 4, 5, 6, 8, 12, 16}, {16}, 2, {1, 2, 4, 8, 16, 32, 64, 128}},
    {"commit", {1, 2, 4, 5, 6, 8, 12, 16}, {12}, 1, {1, 8, 64, 256}},
    {"commit_precomputed", {1, 4, 8, 16}, {16}, 2, {1, 32}},
    {"commit_softplus", {1, 4, 8, 16}, {16}, 2, {1, 32}},
};

const struct bench_kind *bench_kind_find(const char *name)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i].name, name)) return &kinds[i];
    return NULL;
}

static void append(struct bench_shapes *shapes, const struct bench_shape *shape)
{
    struct bench_shape *grown = bench_memory(shapes->count + 1, sizeof *grown);
    if (shapes->count) memcpy(grown, shapes->shapes, shapes->count * sizeof *grown);
    grown[shapes->count] = *shape;
    free(shapes->shapes);
    shapes->shapes = grown;
    shapes->count++;
}

static void keep_least(struct bench_shapes *shapes, const struct bench_shape *shape)
{
    for (size_t i = 0; i < shapes->count; i++) {
        struct bench_shape *known = &shapes->shapes[i];
        if (known->kind != shape->kind || known->tokens != shape->tokens) continue;
        if (bench_bytes(shape) < bench_bytes(known)) *known = *shape;
        return;
    }
    append(shapes, shape);
}

struct bench_shapes bench_shapes_standard(bool quick)
{
    struct bench_shapes shapes = {.count = 0};
    for (size_t i = 0; i < sizeof standard / sizeof *standard; i++)
        for (const int *t = standard[i].tokens; *t; t++)
            for (const int *h = standard[i].heads; *h; h++)
                for (const int *n = standard[i].rows; *n; n++) {
                    struct bench_shape shape = {
                        .kind = bench_kind_find(standard[i].kind),
                        .tokens = *t,
                        .rows = *n,
                        .heads = *h,
                        .value_heads = *h * standard[i].heads_ratio,
                    };
                    if (quick)
                        keep_least(&shapes, &shape);
                    else
                        append(&shapes, &shape);
                }
    return shapes;
}

bool bench_shapes_add(struct bench_shapes *shapes, const char *text)
{
    char kind[32];
    long long t, n, h, hv;
    int end = 0;
    if (sscanf(text, "%31[a-z_0-9],%lld,%lld,%lld,%lld%n", kind, &t, &n, &h, &hv, &end) != 5 ||
        text[end])
        return false;
    struct bench_shape shape = {
        .kind = bench_kind_find(kind), .tokens = t, .rows = n, .heads = h, .value_heads = hv};
    if (!shape.kind || t < 1 || t > 16 || n < 1 || n > KDA_ROWS_MAX || h < 1 || hv < h ||
        hv > 65536)
        return false;
    append(shapes, &shape);
    return true;
}

void bench_shapes_free(struct bench_shapes *shapes)
{
    free(shapes->shapes);
    *shapes = (struct bench_shapes){.count = 0};
}

size_t bench_head_bytes(const struct bench_shape *shape)
{
    return 128 * 128 * (shape->kind->state == KDA_F32 ? 4 : 2);
}

size_t bench_state_offset(const struct bench_shape *shape)
{
    return shape->kind->op == KDA_OP_FUSED ? (size_t)shape->heads * BENCH_WINDOW_BYTES : 0;
}

size_t bench_slot_bytes(const struct bench_shape *shape)
{
    return bench_state_offset(shape) + (size_t)shape->value_heads * bench_head_bytes(shape);
}

size_t bench_cache_bytes(const struct bench_shape *shape)
{
    // An f32 per value row, and a bf16 of key and gate per channel.
    const size_t token = 128 * 4;
    return shape->kind->caches ? (size_t)(shape->value_heads * shape->tokens) * token : 0;
}

int64_t bench_row_slots(const struct bench_shape *shape)
{
    return shape->kind->op == KDA_OP_VERIFY || shape->kind->op == KDA_OP_COMMIT ? 1 : shape->tokens;
}

int64_t bench_writes(const struct bench_shape *shape)
{
    return shape->kind->op == KDA_OP_VERIFY ? 0 : bench_row_slots(shape);
}

size_t bench_read_bytes(const struct bench_shape *shape)
{
    const size_t vector = 128 * 2, tokens = (size_t)shape->tokens;
    switch (shape->kind->op) {
    case KDA_OP_FUSED:  // x, raw gate and output gate
        return (3 + 1 + 1) * vector;
    case KDA_OP_VERIFY:  // q and k, shared by the value heads of a query head; v and g
        return tokens * 2 * (vector + vector * (size_t)shape->heads / (size_t)shape->value_heads);
    case KDA_OP_COMMIT:
        return 2 * bench_cache_bytes(shape) / (size_t)shape->value_heads;
    default:
        return 0;
    }
}

size_t bench_written_bytes(const struct bench_shape *shape)
{
    const size_t vector = 128 * 2;
    switch (shape->kind->op) {
    case KDA_OP_FUSED:
        return vector;
    case KDA_OP_VERIFY:
        return (size_t)shape->tokens * vector +
               2 * bench_cache_bytes(shape) / (size_t)shape->value_heads;
    default:
        return 0;
    }
}

double bench_bytes(const struct bench_shape *shape)
{
    const double heads = (double)(shape->rows * shape->value_heads);
    const size_t head = bench_head_bytes(shape) * (size_t)(1 + bench_writes(shape)) +
                        bench_read_bytes(shape) + bench_written_bytes(shape);
    const double fused = (double)shape->heads *
                         (2.0 * (double)shape->rows * BENCH_WINDOW_BYTES + BENCH_WEIGHT_BYTES);
    return heads * (double)head + (shape->kind->op == KDA_OP_FUSED ? fused : 0);
}

kda_problem bench_problem(const struct bench_shape *shape)
{
    return (kda_problem){.op = shape->kind->op,
                         .gate = shape->kind->gate,
                         .tokens = (int32_t)shape->tokens,
                         .rows = shape->rows,
                         .heads = shape->heads,
                         .value_heads = shape->value_heads,
                         .state_type = shape->kind->state,
                         .mode = (int32_t)shape->kind->mode};
}

bool bench_serves(const struct kda_format_body *body, const struct bench_shape *shape)
{
    return body->op == (uint32_t)shape->kind->op && body->gate == (uint32_t)shape->kind->gate &&
           body->state_type == (uint32_t)shape->kind->state &&
           kda_mode_serves(body->mode_set, (int32_t)shape->kind->mode) &&
           (int64_t)body->tokens_min <= shape->tokens && shape->tokens <= (int64_t)body->tokens_max;
}

const char *bench_label(const char *body)
{
    static const char *const starts[] = {"direct_split", "split", "tile", "unique", "repeated"};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        const char *label = strstr(body, starts[i]);
        if (label) return label;
    }
    return body;
}

bool bench_routed(const kda_bundle *bundle, const struct bench_shape *shape, const char *body,
                  int cc, int sm_count)
{
    const kda_device device = {.cc_major = cc / 10,
                               .cc_minor = cc % 10,
                               .cuda_version = 13000,
                               .sm_count = sm_count,
                               .overridden =
                                   KDA_OVERRIDDEN_CC | KDA_OVERRIDDEN_CUDA | KDA_OVERRIDDEN_SMS};
    const kda_problem problem = bench_problem(shape);
    kda_route_result route;
    return kda_route(bundle, &device, &problem, &route, NULL) == KDA_OK &&
           !strcmp(route.body, body);
}
