// SPDX-License-Identifier: Apache-2.0
// The long run: threads with two streams each launch small calls of mixed kinds and random shapes,
// eagerly and by plans, and now and then stop to hold one of them against the float64 oracle and
// the untouched part of the pool against its digest. Memory must stay where it was.
//   kda-soak [BUNDLE] [--launches N] [--seconds S] [--threads N] [--rows N] [--heads H] [--seed N]
// It ends at N launches or after S seconds, whichever comes first. Exit status: 0 passed, 77 no
// device that the bundle serves, 1 failed, 2 usage.
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/machine.h"
#include "tools/oracle.h"
#include "tools/oracle_fused.h"
#include "tools/oracle_verify.h"

enum { STREAMS = 2, KINDS = 13, MOST_THREADS = 16, FUSED_HEADS = 8 };

static const struct kind {
    kda_op op;
    kda_gate gate;
    int32_t tokens;
} kinds[KINDS] = {
    {KDA_OP_RECURRENT, KDA_GATE_PRECOMPUTED, 1},
    {KDA_OP_RECURRENT, KDA_GATE_PRECOMPUTED, 2},
    {KDA_OP_RECURRENT, KDA_GATE_PRECOMPUTED, 4},
    {KDA_OP_RECURRENT, KDA_GATE_PRECOMPUTED, 5},
    {KDA_OP_RECURRENT, KDA_GATE_PRECOMPUTED, 6},
    {KDA_OP_RECURRENT, KDA_GATE_LOWER_BOUND, 3},
    {KDA_OP_RECURRENT, KDA_GATE_SOFTPLUS, 1},
    {KDA_OP_PACKED, KDA_GATE_LOWER_BOUND, 1},
    // A verify and the commit of what it left in the caches.
    {KDA_OP_VERIFY, KDA_GATE_PRECOMPUTED, 2},
    {KDA_OP_VERIFY, KDA_GATE_LOWER_BOUND, 8},
    {KDA_OP_VERIFY, KDA_GATE_SOFTPLUS, 16},
    // bf16 states of one slot per row; f32 states, two rows to a slot.
    {KDA_OP_FUSED, KDA_GATE_LOWER_BOUND, 1},
    {KDA_OP_FUSED, KDA_GATE_SOFTPLUS, 1},
};

static struct {
    struct machine machine;
    kda_bundle *bundle;
    kda_context *context;
    long launches, sample;  // launches between two samples of a thread
    double seconds;
    int threads;
    int64_t rows, heads;
    uint64_t seed;
    struct timespec start;
    atomic_long launched, judged;
    atomic_int failed;
} soak = {.launches = 10000000,
          .sample = 2000,
          .seconds = 480,
          .threads = 4,
          .rows = 8,
          .heads = 2,
          .seed = 1};

static double elapsed(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - soak.start.tv_sec) +
           1e-9 * (double)(now.tv_nsec - soak.start.tv_nsec);
}

static void report(const char *what, const char *detail)
{
    atomic_store(&soak.failed, 1);
    fprintf(stderr, "kda-soak: %s: %s\n", what, detail);
}

static void *reserve(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (!memory) {
        fprintf(stderr, "kda-soak: out of memory\n");
        exit(1);
    }
    return memory;
}

// --------------------------------------------------------------------------------------------
// lanes

struct buffer {
    void *host;
    CUdeviceptr device;
    size_t size;
};

// One kind of call on one stream, with memory of its own for the most rows.
struct lane {
    const struct kind *kind;
    CUstream stream;
    int64_t h, hv, rows, slots;
    struct buffer q, k, v, g, beta, a_log, dt_bias, state, out, indices, accepted;
    struct buffer correction, kg;
    struct buffer weight, windows, output_gate, norm_weight;
    int64_t q_stride, g_stride;
};

static struct buffer make(size_t elements, size_t width)
{
    struct buffer buffer = {.host = reserve(elements, width), .size = elements * width};
    buffer.device = machine_alloc(&soak.machine, buffer.size);
    return buffer;
}
static void drop(struct buffer *buffer)
{
    if (buffer->device) machine_free(&soak.machine, buffer->device);
    free(buffer->host);
}
static void put(const struct buffer *buffer)
{
    machine_put(&soak.machine, buffer->device, buffer->host, buffer->size);
}
static void get(const struct buffer *buffer)
{
    machine_get(&soak.machine, buffer->host, buffer->device, buffer->size);
}

static struct buffer normals(struct oracle_rng *rng, size_t count, double scale, double shift)
{
    struct buffer buffer = make(count, sizeof(uint16_t));
    uint16_t *host = buffer.host;
    for (size_t i = 0; i < count; i++) host[i] = oracle_bf16(scale * oracle_normal(rng) + shift);
    put(&buffer);
    return buffer;
}
static struct buffer floats(struct oracle_rng *rng, size_t count)
{
    struct buffer buffer = make(count, sizeof(float));
    float *host = buffer.host;
    for (size_t i = 0; i < count; i++) host[i] = (float)(0.3 * oracle_normal(rng));
    put(&buffer);
    return buffer;
}

static bool repeats(const struct kind *kind)
{
    return kind->op == KDA_OP_FUSED && kind->gate == KDA_GATE_SOFTPLUS;
}

static bool has_f32_state(const struct kind *kind) { return repeats(kind); }

// Slots that n rows have: one per token, one per row, or one for two of them.
static int64_t slots_of(const struct kind *kind, int64_t n)
{
    if (repeats(kind)) return (n + 1) / 2;
    return kind->op == KDA_OP_VERIFY ? n : n * kind->tokens;
}

// Bytes of a slot's state.
static size_t slot_bytes(const struct lane *lane)
{
    return (size_t)lane->hv * ORACLE_HEAD * (has_f32_state(lane->kind) ? 4 : 2);
}

static size_t window_bytes(const struct lane *lane)
{
    return (size_t)(ORACLE_TAPS * ORACLE_PARTS * lane->h * ORACLE_D) * sizeof(uint16_t);
}

static bool takes_logit(const struct kind *kind)
{
    return kind->op != KDA_OP_RECURRENT || kind->gate == KDA_GATE_SOFTPLUS;
}

static void open_lane(struct lane *lane, const struct kind *kind, CUstream stream,
                      struct oracle_rng *rng)
{
    const bool fused = kind->op == KDA_OP_FUSED, packed = kind->op == KDA_OP_PACKED || fused,
               bound = kind->tokens == 3, window = kind->op == KDA_OP_VERIFY;
    *lane = (struct lane){.kind = kind, .stream = stream};
    lane->h = fused ? FUSED_HEADS : packed ? 12 : bound ? 16 : soak.heads;
    lane->hv = kind->gate == KDA_GATE_PRECOMPUTED ? 2 * lane->h : lane->h;
    lane->rows = soak.rows;
    lane->slots = slots_of(kind, lane->rows) + 2;
    const size_t tok = (size_t)(lane->rows * kind->tokens), d = ORACLE_D;
    const size_t h = (size_t)lane->h, hv = (size_t)lane->hv;
    const bool in_kernel = kind->gate != KDA_GATE_PRECOMPUTED;
    // Packed and fused decode have q, k and v side by side in one row.
    lane->q_stride = (int64_t)((packed ? 3 : 1) * h * d);
    lane->g_stride = (int64_t)(hv * d);
    lane->q = normals(rng, tok * (size_t)lane->q_stride, 1, 0);
    if (!packed) lane->k = normals(rng, tok * h * d, 1, 0);
    if (!packed) lane->v = normals(rng, tok * hv * d, 1, 0);
    lane->g = normals(rng, tok * hv * d, in_kernel ? 1 : 0.02, in_kernel ? 0 : -0.1);
    lane->beta = normals(rng, tok * hv, takes_logit(kind) ? 1 : 0.1, takes_logit(kind) ? 0 : 0.5);
    if (in_kernel) {
        lane->a_log = floats(rng, h);
        lane->dt_bias = floats(rng, h * d);
    }
    lane->state = has_f32_state(kind)
                      ? floats(rng, (size_t)lane->slots * hv * ORACLE_HEAD)
                      : normals(rng, (size_t)lane->slots * hv * ORACLE_HEAD, 0.2, 0);
    lane->out = make(tok * hv * d, sizeof(uint16_t));
    lane->indices = make(tok, sizeof(int32_t));
    lane->accepted = make((size_t)lane->rows, sizeof(int32_t));
    if (window) {
        const size_t lines = (size_t)lane->slots * hv * (size_t)kind->tokens;
        lane->correction = make(lines * d, sizeof(float));
        lane->kg = make(lines * 2 * d, sizeof(uint16_t));
    }
    if (fused) {
        lane->weight = floats(rng, ORACLE_PARTS * (ORACLE_TAPS + 1) * h * d);
        lane->windows = normals(rng, (size_t)lane->slots * window_bytes(lane) / 2, 1, 0);
        lane->output_gate = normals(rng, tok * h * d, 1, 0);
        lane->norm_weight = floats(rng, d);
    }
    int32_t *const slots = lane->indices.host, *const accepted = lane->accepted.host;
    // The first and last stay unused.
    for (size_t i = 0; i < tok; i++) slots[i] = (int32_t)(repeats(kind) ? i / 2 : i) + 1;
    for (int64_t i = 0; i < lane->rows; i++)
        accepted[i] = (int32_t)(oracle_bits(rng) % (uint64_t)(kind->tokens + 1));
    put(&lane->indices);
    put(&lane->accepted);
}

static void close_lane(struct lane *lane)
{
    struct buffer *const all[] = {
        &lane->q,           &lane->k,          &lane->v,     &lane->g,      &lane->beta,
        &lane->a_log,       &lane->dt_bias,    &lane->state, &lane->out,    &lane->indices,
        &lane->accepted,    &lane->correction, &lane->kg,    &lane->weight, &lane->windows,
        &lane->output_gate, &lane->norm_weight};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) drop(all[i]);
}

// --------------------------------------------------------------------------------------------
// calls

static kda_tensor tensor(CUdeviceptr address, kda_dtype type, const int64_t extent[4])
{
    kda_tensor out = {.data = (void *)(uintptr_t)address, .dtype = type};
    while (out.rank < 4 && extent[out.rank]) {
        out.extent[out.rank] = extent[out.rank];
        out.rank++;
    }
    int64_t stride = 1;
    for (uint32_t i = out.rank; i-- > 0;) {
        out.stride[i] = stride;
        stride *= out.extent[i];
    }
    return out;
}
#define TENSOR(buffer, type, ...) tensor((buffer).device, type, (const int64_t[4]){__VA_ARGS__})

static const float SCALE = 0x1.6a09e6p-4F;

static kda_recurrent_args recurrent_args(const struct lane *l, int64_t n)
{
    const struct kind *const kind = l->kind;
    const int64_t t = kind->tokens, h = l->h, hv = l->hv, d = ORACLE_D;
    kda_recurrent_args args = {
        .q = TENSOR(l->q, KDA_BF16, n, t, h, d),
        .k = TENSOR(l->k, KDA_BF16, n, t, h, d),
        .v = TENSOR(l->v, KDA_BF16, n, t, hv, d),
        .g = TENSOR(l->g, KDA_BF16, n, t, hv, d),
        .beta = TENSOR(l->beta, KDA_BF16, n, t, hv),
        .state = TENSOR(l->state, KDA_BF16, l->slots, hv, d, d),
        .out = TENSOR(l->out, KDA_BF16, n, t, hv, d),
        .ssm_state_indices = TENSOR(l->indices, KDA_I32, n, t),
        .num_accepted_tokens = TENSOR(l->accepted, KDA_I32, n),
        .gate = kind->gate,
        .num_spec_tokens = kind->tokens - 1,
        .beta_is_logit = takes_logit(kind),
        .scale = SCALE,
        .lower_bound = kind->gate == KDA_GATE_LOWER_BOUND ? -5.0F : 0.0F,
        .flags = t > 1 ? KDA_FLAG_SPECULATIVE : 0,
    };
    if (kind->gate != KDA_GATE_PRECOMPUTED) {
        args.a_log = TENSOR(l->a_log, KDA_F32, h);
        args.dt_bias = TENSOR(l->dt_bias, KDA_F32, h, d);
    }
    return args;
}

static kda_packed_args packed_args(const struct lane *l, int64_t n)
{
    const int64_t d = ORACLE_D;
    return (kda_packed_args){.mixed_qkv = TENSOR(l->q, KDA_BF16, n, 36 * d),
                             .raw_gate = TENSOR(l->g, KDA_BF16, n, 12 * d),
                             .raw_beta = TENSOR(l->beta, KDA_BF16, n, 12),
                             .a_log = TENSOR(l->a_log, KDA_F32, 12),
                             .dt_bias = TENSOR(l->dt_bias, KDA_F32, 12 * d),
                             .state = TENSOR(l->state, KDA_BF16, l->slots, 12, d, d),
                             .state_indices = TENSOR(l->indices, KDA_I32, n),
                             .out = TENSOR(l->out, KDA_BF16, n, 1, 12, d)};
}

static kda_fused_args fused_args(const struct lane *l, int64_t n)
{
    const int64_t h = l->h, d = ORACLE_D, width = h * d;
    kda_fused_args args = {
        .x = TENSOR(l->q, KDA_BF16, n, 3 * width),
        .weight = TENSOR(l->weight, KDA_F32, 3, 4, width),
        .conv_state = TENSOR(l->windows, KDA_BF16, l->slots, 3 * width, 3),
        .raw_gate = TENSOR(l->g, KDA_BF16, 1, n, h, d),
        .raw_beta = TENSOR(l->beta, KDA_BF16, 1, n, h),
        .a_log = TENSOR(l->a_log, KDA_F32, h),
        .dt_bias = TENSOR(l->dt_bias, KDA_F32, width),
        .state_indices = TENSOR(l->indices, KDA_I32, n),
        .state = TENSOR(l->state, has_f32_state(l->kind) ? KDA_F32 : KDA_BF16, l->slots, h, d, d),
        .output_gate = TENSOR(l->output_gate, KDA_BF16, n, h, d),
        .norm_weight = TENSOR(l->norm_weight, KDA_F32, d),
        .out = TENSOR(l->out, KDA_BF16, 1, n, h, d),
        .gate = l->kind->gate,
        .mode = repeats(l->kind) ? KDA_MODE_REPEATED_POSITIVE : KDA_MODE_UNIQUE_OR_NULL,
        .lower_bound = l->kind->gate == KDA_GATE_LOWER_BOUND ? -5.0F : 0.0F,
        .norm_eps = 1e-5F,
    };
    args.conv_state.stride[1] = 1;
    args.conv_state.stride[2] = 3 * width;
    return args;
}

static kda_verify_args verify_args(const struct lane *l, int64_t n)
{
    const int64_t t = l->kind->tokens, d = ORACLE_D;
    const kda_recurrent_args like = recurrent_args(l, n);
    return (kda_verify_args){
        .q = like.q,
        .k = like.k,
        .v = like.v,
        .g = like.g,
        .beta = like.beta,
        .a_log = like.a_log,
        .dt_bias = like.dt_bias,
        .state = like.state,
        .out = like.out,
        .ssm_state_indices = TENSOR(l->indices, KDA_I32, n),
        .correction_cache = TENSOR(l->correction, KDA_F32, l->slots, l->hv, t, d),
        .kg_cache = TENSOR(l->kg, KDA_BF16, l->slots, l->hv, t, 2 * d),
        .gate = like.gate,
        .beta_is_logit = like.beta_is_logit,
        .scale = like.scale,
        .lower_bound = like.lower_bound,
    };
}

static kda_commit_args commit_args(const struct lane *l, int64_t n)
{
    const kda_verify_args like = verify_args(l, n);
    return (kda_commit_args){
        .state = like.state,
        .correction_cache = like.correction_cache,
        .kg_cache = like.kg_cache,
        .ssm_state_indices = like.ssm_state_indices,
        .num_accepted_tokens = TENSOR(l->accepted, KDA_I32, n),
        .a_log = like.a_log,
        .dt_bias = like.dt_bias,
        .gate = like.gate,
        .heads = (int32_t)l->h,
        .lower_bound = like.lower_bound,
    };
}

// Verify, then commit: the second needs the first.
static kda_status launch_window(const struct lane *lane, int64_t n, bool by_plan, kda_error *err)
{
    const kda_verify_args verify = verify_args(lane, n);
    const kda_commit_args commit = commit_args(lane, n);
    kda_plan plans[2];
    atomic_fetch_add(&soak.launched, 1);
    if (!by_plan) {
        const kda_status status = kda_verify(soak.context, &verify, lane->stream, err);
        return status ? status : kda_commit(soak.context, &commit, lane->stream, err);
    }
    kda_status status = kda_verify_plan(soak.context, &verify, NULL, NULL, &plans[0], err);
    if (!status) status = kda_commit_plan(soak.context, &commit, NULL, NULL, &plans[1], err);
    if (!status) status = kda_plan_launch(&plans[0], lane->stream, err);
    return status ? status : kda_plan_launch(&plans[1], lane->stream, err);
}

static bool launch(const struct lane *lane, int64_t n, bool by_plan)
{
    kda_error err;
    kda_plan plan;
    kda_status status;
    if (lane->kind->op == KDA_OP_VERIFY) {
        status = launch_window(lane, n, by_plan, &err);
        by_plan = false;
    } else if (lane->kind->op == KDA_OP_FUSED) {
        const kda_fused_args args = fused_args(lane, n);
        status = by_plan ? kda_fused_plan(soak.context, &args, NULL, NULL, &plan, &err)
                         : kda_fused(soak.context, &args, lane->stream, &err);
    } else if (lane->kind->op == KDA_OP_PACKED) {
        const kda_packed_args args = packed_args(lane, n);
        status = by_plan ? kda_packed_plan(soak.context, &args, NULL, NULL, &plan, &err)
                         : kda_packed(soak.context, &args, lane->stream, &err);
    } else {
        const kda_recurrent_args args = recurrent_args(lane, n);
        status = by_plan ? kda_recurrent_plan(soak.context, &args, NULL, NULL, &plan, &err)
                         : kda_recurrent(soak.context, &args, lane->stream, &err);
    }
    if (!status && by_plan) status = kda_plan_launch(&plan, lane->stream, &err);
    if (status) report(kda_status_name(status), err.text);
    atomic_fetch_add(&soak.launched, 1);
    return !status;
}

// ---------------------------------------------------------------------------------------------
// judge

static struct oracle_call call_of(const struct lane *l, int64_t n)
{
    const bool packed = l->kind->op == KDA_OP_PACKED;
    const uint16_t *const q = l->q.host;
    const int64_t width = l->h * ORACLE_D;
    return (struct oracle_call){
        .gate = l->kind->gate,
        .tokens = l->kind->tokens,
        .rows = n,
        .tok = n * l->kind->tokens,
        .heads = l->h,
        .value_heads = l->hv,
        .num_slots = l->slots,
        .q = q,
        .k = packed ? q + width : l->k.host,
        .v = packed ? q + 2 * width : l->v.host,
        .g = l->g.host,
        .beta = l->beta.host,
        .q_stride = l->q_stride,
        .k_stride = l->q_stride,
        .v_stride = packed ? l->q_stride : l->hv * ORACLE_D,
        .g_stride = l->g_stride,
        .beta_stride = l->hv,
        .a_log = l->a_log.host,
        .dt_bias = l->dt_bias.host,
        .indices = l->indices.host,
        .accepted = l->kind->tokens > 1 ? l->accepted.host : NULL,
        .beta_is_logit = takes_logit(l->kind),
        .scale = (double)SCALE,
        .lower_bound = l->kind->gate == KDA_GATE_LOWER_BOUND ? -5.0 : 0.0,
    };
}

static uint64_t digest(const void *data, size_t size, uint64_t hash)
{
    const unsigned char *bytes = data;
    for (size_t i = 0; i < size; i++) hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

// Of all slots that a call of n rows may not write.
static uint64_t rest_digest(const struct lane *lane, int64_t n)
{
    const struct buffer *const pools[] = {&lane->state, &lane->windows};
    const size_t slots[] = {slot_bytes(lane), window_bytes(lane)};
    const size_t first = (size_t)(1 + slots_of(lane->kind, n));
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int i = 0; i < 2; i++) {
        const char *const pool = pools[i]->host;
        if (!pool) continue;
        hash = digest(pool, slots[i], hash);
        hash = digest(pool + first * slots[i], ((size_t)lane->slots - first) * slots[i], hash);
    }
    return hash;
}

// The norm-relative limit is for data whose own rounding leaves room for it; a row of few values
// may not.
static bool is_right(const struct oracle_error *error)
{
    if (oracle_floor(error) <= ORACLE_FLOOR_LIMIT) return oracle_within(error);
    return error->worst <= 1 && error->nonfinite == 0;
}

// One launch and one row and head of it in float64. Its state is drawn anew: after thousands of
// equal tokens it would have too few different values to be judged.
static void judge(struct lane *lane, int64_t n, struct oracle_rng *rng)
{
    const int64_t t = lane->kind->tokens, row = (int64_t)(oracle_bits(rng) % (uint64_t)n),
                  head = (int64_t)(oracle_bits(rng) % (uint64_t)lane->hv);
    machine_sync(&soak.machine, lane->stream);
    get(&lane->state);
    const uint64_t rest = rest_digest(lane, n);
    const struct oracle_call call = call_of(lane, n);
    const bool window = lane->kind->op == KDA_OP_VERIFY;
    const int64_t start = window ? oracle_window_slot(&call, row) : oracle_start(&call, row);
    double *const out = reserve((size_t)t * ORACLE_D, sizeof *out);
    double *const states = reserve((size_t)t * ORACLE_HEAD, sizeof *states);
    uint16_t *const pool = lane->state.host;
    const uint16_t *const got = lane->out.host;
    const int32_t *const accepted = lane->accepted.host;
    uint16_t *const initial = pool + (start * lane->hv + head) * ORACLE_HEAD;
    for (int i = 0; i < ORACLE_HEAD; i++) initial[i] = oracle_bf16(oracle_normal(rng));
    machine_put(&soak.machine, lane->state.device + (CUdeviceptr)(initial - pool) * sizeof *initial,
                initial, ORACLE_HEAD * sizeof *initial);
    oracle_row(&call, row, head, initial, out, states);
    if (launch(lane, n, false)) {
        machine_sync(&soak.machine, lane->stream);
        get(&lane->state);
        get(&lane->out);
        struct oracle_error out_error = {0}, state_error = {0};
        for (int64_t i = 0; i < t; i++) {
            oracle_add_many(&out_error, got + ((row * t + i) * lane->hv + head) * ORACLE_D,
                            out + i * ORACLE_D, ORACLE_D);
            // A window leaves one state, that after its accepted tokens.
            if (window && i + 1 != accepted[row]) continue;
            const int64_t slot = window ? start : oracle_slot(&call, row, (int32_t)i);
            oracle_add_many(&state_error, pool + (slot * lane->hv + head) * ORACLE_HEAD,
                            states + i * ORACLE_HEAD, ORACLE_HEAD);
        }
        char text[160];
        (void)snprintf(text, sizeof text, "T = %d, gate %d, N = %d: output %.3g, state %.3g",
                       (int)t, (int)lane->kind->gate, (int)n, oracle_norm(&out_error),
                       oracle_norm(&state_error));
        if (!is_right(&out_error) || !is_right(&state_error))
            report("beyond the limits of the oracle", text);
        if (rest_digest(lane, n) != rest) report("a slot of nobody was written", text);
    }
    atomic_fetch_add(&soak.judged, 1);
    free(out);
    free(states);
}

static double state_value(const struct lane *lane, int64_t at)
{
    return has_f32_state(lane->kind) ? (double)((const float *)lane->state.host)[at]
                                     : oracle_value(((const uint16_t *)lane->state.host)[at]);
}

// The same of a fused launch: a row, after the rows of its slot before it and before those behind.
static void judge_fused(struct lane *lane, int64_t n, struct oracle_rng *rng)
{
    const int64_t row = (int64_t)(oracle_bits(rng) % (uint64_t)n),
                  slot = repeats(lane->kind) ? row / 2 + 1 : row + 1,
                  head = (int64_t)(oracle_bits(rng) % (uint64_t)lane->h);
    const int64_t width = lane->h * ORACLE_D;
    const struct oracle_fused call = {
        .gate = lane->kind->gate,
        .rows = n,
        .heads = lane->h,
        .num_slots = lane->slots,
        .x = lane->q.host,
        .raw_gate = lane->g.host,
        .raw_beta = lane->beta.host,
        .output_gate = lane->output_gate.host,
        .x_stride = lane->q_stride,
        .gate_stride = width,
        .beta_stride = lane->h,
        .output_gate_stride = width,
        .weight = lane->weight.host,
        .a_log = lane->a_log.host,
        .dt_bias = lane->dt_bias.host,
        .norm_weight = lane->norm_weight.host,
        .indices = lane->indices.host,
        .lower_bound = lane->kind->gate == KDA_GATE_LOWER_BOUND ? -5.0 : 0.0,
        .norm_eps = (double)1e-5F,
    };
    machine_sync(&soak.machine, lane->stream);
    get(&lane->state);
    get(&lane->windows);
    const uint64_t rest = rest_digest(lane, n);
    const size_t window_size = window_bytes(lane), window_at = (size_t)slot * window_size;
    const int64_t first = (slot * lane->h + head) * ORACLE_HEAD;
    double *const state = reserve(ORACLE_HEAD, sizeof *state), wanted[ORACLE_D], out[ORACLE_D];
    uint16_t *const window = reserve(1, window_size);
    memcpy(window, (const char *)lane->windows.host + window_at, window_size);
    for (int i = 0; i < ORACLE_HEAD; i++) {
        const double value = oracle_normal(rng);
        if (has_f32_state(lane->kind))
            ((float *)lane->state.host)[first + i] = (float)value;
        else
            ((uint16_t *)lane->state.host)[first + i] = oracle_bf16(value);
        state[i] = state_value(lane, first + i);
    }
    put(&lane->state);
    for (int64_t i = 0; i < n; i++) {
        if (call.indices[i] != slot) continue;
        oracle_fused_step(&call, i, head, window, state, i == row ? wanted : out);
        for (int c = 0; c < ORACLE_HEAD && !has_f32_state(lane->kind); c++)
            state[c] = oracle_value(oracle_bf16(state[c]));
    }
    if (launch(lane, n, false)) {
        machine_sync(&soak.machine, lane->stream);
        get(&lane->state);
        get(&lane->windows);
        get(&lane->out);
        struct oracle_error out_error = {0}, state_error = {0};
        oracle_add_many(&out_error,
                        (const uint16_t *)lane->out.host + (row * lane->h + head) * ORACLE_D,
                        wanted, ORACLE_D);
        for (int i = 0; i < ORACLE_HEAD; i++)
            if (has_f32_state(lane->kind))
                oracle_add_f32(&state_error, (float)state_value(lane, first + i), state[i]);
            else
                oracle_add(&state_error, ((const uint16_t *)lane->state.host)[first + i], state[i]);
        char text[160];
        (void)snprintf(text, sizeof text, "fused, gate %d, N = %d: output %.3g, state %.3g",
                       (int)lane->kind->gate, (int)n, oracle_norm(&out_error),
                       oracle_norm(&state_error));
        if (!is_right(&out_error) || !is_right(&state_error))
            report("beyond the limits of the oracle", text);
        const uint16_t *const got = (const void *)((const char *)lane->windows.host + window_at);
        for (int64_t i = 0; i < ORACLE_TAPS * ORACLE_PARTS; i++)
            if (memcmp(got + i * width + head * ORACLE_D, window + i * width + head * ORACLE_D,
                       ORACLE_D * sizeof *got))
                report("a window has other bits", text);
        if (rest_digest(lane, n) != rest) report("a slot of nobody was written", text);
    }
    atomic_fetch_add(&soak.judged, 1);
    free(state);
    free(window);
}

static void *run(void *argument)
{
    const uint64_t number = (uint64_t)(uintptr_t)argument;
    struct oracle_rng rng = {.state = soak.seed * 1000 + number};
    MACHINE_CALL(&soak.machine, cuCtxSetCurrent, soak.machine.context);
    CUstream streams[STREAMS];
    struct lane *const lanes = reserve(STREAMS * KINDS, sizeof *lanes);
    for (int i = 0; i < STREAMS; i++) {
        streams[i] = machine_stream(&soak.machine);
        for (int k = 0; k < KINDS; k++)
            open_lane(&lanes[i * KINDS + k], &kinds[k], streams[i], &rng);
    }
    for (long i = 1; !atomic_load(&soak.failed); i++) {
        if (atomic_load(&soak.launched) >= soak.launches || elapsed() > soak.seconds) break;
        const uint64_t bits = oracle_bits(&rng);
        struct lane *const lane = &lanes[bits % (STREAMS * KINDS)];
        int64_t n = 1 + (int64_t)(bits >> 16) % lane->rows;
        if (n < 1) n = 1 - n % lane->rows;
        if (lane->kind->tokens == 3)  // takes 1, 2, 4, 8 or 16 rows
            while (n & (n - 1)) n &= n - 1;
        if (i % soak.sample == 0)
            (lane->kind->op == KDA_OP_FUSED ? judge_fused : judge)(lane, n, &rng);
        else if (!launch(lane, n, bits & 1024))
            break;
        // Streams may run ahead, but not for ever.
        if (i % 1024 == 0) machine_sync(&soak.machine, streams[i / 1024 % STREAMS]);
    }
    for (int i = 0; i < STREAMS * KINDS; i++) {
        machine_sync(&soak.machine, lanes[i].stream);
        close_lane(&lanes[i]);
    }
    for (int i = 0; i < STREAMS; i++) machine_stream_close(&soak.machine, streams[i]);
    free(lanes);
    return NULL;
}

// ---------------------------------------------------------------------------------------------
// frame

static size_t resident(void)
{
    (void)malloc_trim(0);  // what is free is not held
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file) return 0;
    if (fscanf(file, "%*d %ld", &pages) != 1) pages = 0;
    (void)fclose(file);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void run_threads(void)
{
    pthread_t threads[MOST_THREADS];
    for (int i = 0; i < soak.threads; i++)
        if (pthread_create(&threads[i], NULL, run, (void *)(uintptr_t)i)) exit(1);
    for (int i = 0; i < soak.threads; i++) (void)pthread_join(threads[i], NULL);
}

static int usage(const char *program)
{
    fprintf(stderr,
            "usage: %s [BUNDLE] [--launches N] [--seconds S] [--threads N] [--rows N] [--heads H] "
            "[--sample N] [--seed N]\n",
            program);
    return 2;
}

static bool parse(int argc, char **argv, const char **path)
{
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] != '-') {
            *path = argv[i];
            continue;
        }
        if (i + 1 == argc) return false;
        const char *const name = argv[i++];
        const long value = strtol(argv[i], NULL, 10);
        if (value < 1) return false;
        if (!strcmp(name, "--launches"))
            soak.launches = value;
        else if (!strcmp(name, "--seconds"))
            soak.seconds = (double)value;
        else if (!strcmp(name, "--threads"))
            soak.threads = (int)value;
        else if (!strcmp(name, "--rows"))
            soak.rows = value;
        else if (!strcmp(name, "--heads"))
            soak.heads = value;
        else if (!strcmp(name, "--sample"))
            soak.sample = value;
        else if (!strcmp(name, "--seed"))
            soak.seed = (uint64_t)value;
        else
            return false;
    }
    return soak.threads <= MOST_THREADS;
}

int main(int argc, char **argv)
{
    const char *path = NULL;
    if (!parse(argc, argv, &path)) return usage(argv[0]);
    kda_error err;
    const kda_status opened = path ? kda_bundle_open_file(path, &soak.bundle, &err)
                                   : kda_bundle_open_builtin(&soak.bundle, &err);
    if (opened) return report(kda_status_name(opened), err.text), 1;
    const char *const reason = machine_open(&soak.machine, 100, 148);
    if (reason) {
        printf("skipped: %s\n", reason);
        return 77;
    }
    kda_status status =
        kda_context_create(soak.bundle, soak.machine.context, NULL, &soak.context, &err);
    if (!status) status = kda_context_prepare(soak.context, NULL, &err);
    if (status == KDA_E_NO_ROUTE) {
        printf("skipped: %s\n", err.text);
        return 77;
    }
    if (status) return report(kda_status_name(status), err.text), 1;

    // A first, short round takes what is kept for good: stacks, pools of the driver, its caches.
    (void)clock_gettime(CLOCK_MONOTONIC, &soak.start);
    const long launches = soak.launches, sample = soak.sample;
    soak.launches = launches / 10;
    if (soak.machine.soft) soak.sample = 10;
    run_threads();
    const size_t device = machine_free_memory(&soak.machine), host = resident();
    soak.launches = launches;
    if (!soak.machine.soft) soak.sample = sample;
    run_threads();
    const size_t device_after = machine_free_memory(&soak.machine), host_after = resident();

    const long slack = 64l << 20;
    printf(
        "%s: %ld launches in %.0f s, %ld of them judged, device memory %+ld KiB, host %+ld KiB\n",
        soak.machine.name, atomic_load(&soak.launched), elapsed(), atomic_load(&soak.judged),
        ((long)device - (long)device_after) / 1024, ((long)host_after - (long)host) / 1024);
    if (device_after + (4u << 20) < device) report("device memory", "it is not flat");
    if ((long)host_after - (long)host > slack) report("host memory", "it is not flat");
    if (!atomic_load(&soak.judged)) report("nothing was judged", "too few launches");
    kda_context_close(&soak.context);
    kda_bundle_close(&soak.bundle);
    machine_close(&soak.machine);
    return atomic_load(&soak.failed) ? 1 : 0;
}
