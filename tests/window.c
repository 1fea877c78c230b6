// SPDX-License-Identifier: Apache-2.0
// Owns the host image of a window and its way to the device and back. Host and device hold the same
// bytes at the same offsets. It neither forms a call nor judges one: see window_call.c and
// window_judge.c.
#include "tests/window.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static bool is_bf16(enum window_tensor tensor)
{
    return tensor <= WINDOW_BETA || tensor == WINDOW_OUT || tensor == WINDOW_STATE ||
           tensor == WINDOW_KG;
}

static bool is_sparse(const struct window *window, enum window_tensor tensor)
{
    return window->sparse && tensor >= WINDOW_STATE;
}

static void *reserve(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail_msg("%zu bytes of host memory are not to be had", size);
    return memory;
}

static void poison(void *memory, size_t size)
{
    for (size_t i = 0; i < size / 2; i++) ((uint16_t *)memory)[i] = ORACLE_POISON;
}

static void make(struct window *window, enum window_tensor tensor, int64_t elements)
{
    struct trial_buffer *buffer = &window->buffers[tensor];
    const bool written = tensor >= WINDOW_OUT;
    buffer->width = is_bf16(tensor) ? 2 : 4;
    buffer->base = window->shift[tensor];
    buffer->size = (size_t)(buffer->base + elements + (written ? TRIAL_GUARD : 0)) * buffer->width;
    buffer->host = reserve(buffer->size);
    if (written) {
        window->after[tensor] = reserve(buffer->size);
        window->rest[tensor] = reserve(buffer->size);
    }
    if (!is_sparse(window, tensor)) poison(buffer->host, buffer->size);
    buffer->device = machine_alloc(&suite.machine, buffer->size);
}

static void *first(const struct window *window, enum window_tensor tensor)
{
    const struct trial_buffer *buffer = &window->buffers[tensor];
    return buffer->size ? (char *)buffer->host + buffer->base * (int64_t)buffer->width : NULL;
}

struct window window_of(kda_gate gate, int32_t tokens, int64_t rows, int64_t heads,
                        int64_t value_heads)
{
    return (struct window){
        .gate = gate,
        .tokens = tokens,
        .rows = rows,
        .heads = heads,
        .value_heads = value_heads,
        .scale = (float)(1 / sqrt(ORACLE_D)),
        .lower_bound = gate == KDA_GATE_LOWER_BOUND ? -2.75f : 0.0f,
    };
}

static void fill_parameters(struct window *window)
{
    struct oracle_rng rng = {.state = 77};
    for (int64_t h = 0; h < window->heads; h++)
        window->a_log[h] = (float)log1p(fabs(oracle_normal(&rng)) / 2);
    for (int64_t i = 0; window->dt_bias && i < window->heads * ORACLE_D; i++)
        window->dt_bias[i] = (float)oracle_normal(&rng);
}

static void make_all(struct window *window)
{
    const int64_t wide = window->value_heads * ORACLE_D, narrow = window->heads * ORACLE_D;
    const int64_t tok = window->call.tok, slots = window->num_slots;
    const int64_t *const pad = window->token_pad;
    struct oracle_call *call = &window->call;
    call->q_stride = window->slices ? 2 * narrow + wide + pad[WINDOW_Q] : narrow + pad[WINDOW_Q];
    call->k_stride = window->slices ? call->q_stride : narrow + pad[WINDOW_K];
    call->v_stride = window->slices ? call->q_stride : wide + pad[WINDOW_V];
    call->g_stride = wide + pad[WINDOW_G];
    call->beta_stride = window->value_heads + pad[WINDOW_BETA];
    window->out_stride = wide + pad[WINDOW_OUT];
    window->slot_stride = window->value_heads * ORACLE_HEAD + window->slot_pad;
    int64_t *const w = window->correction_strides, *const kg = window->kg_strides;
    const int64_t lines = window->cache_tokens;
    w[2] = ORACLE_D + window->cache_pad;
    kg[2] = 2 * ORACLE_D + window->cache_pad;
    w[1] = lines * w[2] + window->cache_pad;
    kg[1] = lines * kg[2] + window->cache_pad;
    w[0] = window->value_heads * w[1] + window->cache_pad;
    kg[0] = window->value_heads * kg[1] + window->cache_pad;

    make(window, WINDOW_Q, tok * call->q_stride);
    if (!window->slices) make(window, WINDOW_K, tok * call->k_stride);
    if (!window->slices) make(window, WINDOW_V, tok * call->v_stride);
    make(window, WINDOW_G, tok * call->g_stride);
    make(window, WINDOW_BETA, tok * call->beta_stride);
    make(window, WINDOW_OUT, tok * window->out_stride);
    make(window, WINDOW_STATE, slots * window->slot_stride);
    make(window, WINDOW_ACCEPTED, window->rows);
    if (window->cu_form) make(window, WINDOW_CU, window->rows + 1);
    if (!window->no_indices) make(window, WINDOW_INDICES, window->rows);
    if (!window->no_caches) make(window, WINDOW_CORRECTION, slots * w[0]);
    if (!window->no_caches) make(window, WINDOW_KG, slots * kg[0]);
    if (window->gate != KDA_GATE_PRECOMPUTED) make(window, WINDOW_A_LOG, window->heads);
    if (window->gate != KDA_GATE_PRECOMPUTED && !window->no_bias)
        make(window, WINDOW_DT_BIAS, narrow);
}

void window_open(struct window *window)
{
    if (!window->num_slots) window->num_slots = window->rows;
    if (!window->cache_tokens) window->cache_tokens = window->tokens;
    window->call = (struct oracle_call){
        .gate = window->gate,
        .tokens = window->tokens,
        .rows = window->rows,
        .tok = window->rows * window->tokens,
        .heads = window->heads,
        .value_heads = window->value_heads,
        .num_slots = window->num_slots,
        .null_min = window->null_min,
        .beta_is_logit = window->beta_is_logit != 0,
        .scale = (double)window->scale,
        .lower_bound = (double)window->lower_bound,
    };
    make_all(window);
    window->cu = first(window, WINDOW_CU);
    window->indices = first(window, WINDOW_INDICES);
    window->accepted = first(window, WINDOW_ACCEPTED);
    window->a_log = first(window, WINDOW_A_LOG);
    window->dt_bias = first(window, WINDOW_DT_BIAS);
    for (int64_t n = 0; window->cu && n <= window->rows; n++)
        window->cu[n] = (int32_t)(n * window->tokens);
    for (int64_t n = 0; window->indices && n < window->rows; n++) window->indices[n] = (int32_t)n;
    for (int64_t n = 0; n < window->rows; n++) window->accepted[n] = window->tokens;
    if (window->a_log) fill_parameters(window);

    struct oracle_call *call = &window->call;
    const uint16_t *q = first(window, WINDOW_Q);
    const int64_t narrow = window->heads * ORACLE_D;
    call->q = q;
    call->k = window->slices ? q + narrow : first(window, WINDOW_K);
    call->v = window->slices ? q + 2 * narrow : first(window, WINDOW_V);
    call->g = first(window, WINDOW_G);
    call->beta = first(window, WINDOW_BETA);
    call->a_log = window->a_log;
    call->dt_bias = window->dt_bias;
    call->cu_seqlens = window->cu;
    call->indices = window->indices;
}

void window_close(struct window *window)
{
    for (int i = 0; i < WINDOW_TENSORS; i++) {
        struct trial_buffer *buffer = &window->buffers[i];
        if (!buffer->size) continue;
        munmap(buffer->host, buffer->size);
        if (window->after[i]) {
            munmap(window->after[i], buffer->size);
            munmap(window->rest[i], buffer->size);
        }
        machine_free(&suite.machine, buffer->device);
        *buffer = (struct trial_buffer){.size = 0};
    }
}

void window_lengths(struct window *window, const int32_t *lengths)
{
    window->cu[0] = 0;
    for (int64_t n = 0; n < window->rows; n++) window->cu[n + 1] = window->cu[n] + lengths[n];
    assert_true(window->cu[window->rows] <= window->call.tok);
}

uint16_t *window_at(const struct window *window, enum window_tensor tensor, int64_t token,
                    int64_t head)
{
    const struct oracle_call *call = &window->call;
    const struct {
        const uint16_t *data;
        int64_t stride, head;
    } views[] = {
        [WINDOW_Q] = {call->q, call->q_stride, ORACLE_D},
        [WINDOW_K] = {call->k, call->k_stride, ORACLE_D},
        [WINDOW_V] = {call->v, call->v_stride, ORACLE_D},
        [WINDOW_G] = {call->g, call->g_stride, ORACLE_D},
        [WINDOW_BETA] = {call->beta, call->beta_stride, 1},
    };
    assert_true(tensor <= WINDOW_BETA);
    return (uint16_t *)(uintptr_t)views[tensor].data + token * views[tensor].stride +
           head * views[tensor].head;
}

int64_t window_out_offset(const struct window *window, int64_t token, int64_t head)
{
    return window->buffers[WINDOW_OUT].base + token * window->out_stride + head * ORACLE_D;
}

int64_t window_state_offset(const struct window *window, int64_t slot, int64_t head)
{
    return window->buffers[WINDOW_STATE].base + slot * window->slot_stride + head * ORACLE_HEAD;
}

static int64_t line(const struct window *window, enum window_tensor tensor, const int64_t *strides,
                    int64_t slot, int64_t head, int64_t token)
{
    return window->buffers[tensor].base + slot * strides[0] + head * strides[1] +
           token * strides[2];
}

int64_t window_correction_offset(const struct window *window, int64_t slot, int64_t head,
                                 int64_t token)
{
    return line(window, WINDOW_CORRECTION, window->correction_strides, slot, head, token);
}

int64_t window_kg_offset(const struct window *window, int64_t slot, int64_t head, int64_t token)
{
    return line(window, WINDOW_KG, window->kg_strides, slot, head, token);
}

// -------------------------------------------------------------------------------------------- data

static double log_gate(struct oracle_rng *rng, const struct window *window, enum trial_data data,
                       int64_t c)
{
    static const double side_by_side[] = {0, -1, -40, -1e4};
    const double x = oracle_normal(rng), u = oracle_uniform(rng);
    if (window->gate != KDA_GATE_PRECOMPUTED) return x;
    if (data == TRIAL_STRONG) return -30 - 30 * u;
    if (data == TRIAL_MIXED) return side_by_side[c % 4];
    return -oracle_softplus(-x);
}

static void fill_state(struct window *window, int64_t slot, struct oracle_rng *rng)
{
    uint16_t *pool = window->buffers[WINDOW_STATE].host;
    for (int64_t hv = 0; hv < window->value_heads; hv++)
        for (int64_t i = 0; i < ORACLE_HEAD; i++)
            pool[window_state_offset(window, slot, hv) + i] = oracle_bf16(oracle_normal(rng));
}

void window_fill(struct window *window, int64_t n, uint64_t key, enum trial_data data)
{
    struct oracle_rng rng = {.state = key * 0x2545F4914F6CDD1Du};
    const double large = data == TRIAL_STRONG ? 8 : 1;
    const int64_t slot = oracle_window_slot(&window->call, n);
    if (slot >= 0) fill_state(window, slot, &rng);
    for (int32_t t = 0; t < window->tokens; t++) {
        const int64_t token = oracle_token(&window->call, n, t);
        if (token < 0) return;
        for (int64_t c = 0; c < window->heads * ORACLE_D; c++) {
            window_at(window, WINDOW_Q, token, 0)[c] = oracle_bf16(oracle_normal(&rng));
            window_at(window, WINDOW_K, token, 0)[c] = oracle_bf16(oracle_normal(&rng));
        }
        for (int64_t c = 0; c < window->value_heads * ORACLE_D; c++) {
            window_at(window, WINDOW_V, token, 0)[c] = oracle_bf16(large * oracle_normal(&rng));
            window_at(window, WINDOW_G, token, 0)[c] = oracle_bf16(log_gate(&rng, window, data, c));
        }
        for (int64_t hv = 0; hv < window->value_heads; hv++) {
            const double x = oracle_normal(&rng), u = 0.05 + 0.9 * oracle_uniform(&rng);
            *window_at(window, WINDOW_BETA, token, hv) = oracle_bf16(window->beta_is_logit ? x : u);
        }
    }
}

void window_fill_all(struct window *window, uint64_t key, enum trial_data data)
{
    for (int64_t n = 0; n < window->rows; n++)
        if (oracle_window_slot(&window->call, n) >= 0)
            window_fill(window, n, key + (uint64_t)n, data);
}

void window_fill_caches(struct window *window, uint64_t key)
{
    float *w = window->buffers[WINDOW_CORRECTION].host;
    uint16_t *kg = window->buffers[WINDOW_KG].host;
    for (int64_t n = 0; n < window->rows; n++) {
        struct oracle_rng rng = {.state = (key + (uint64_t)n) * 0x2545F4914F6CDD1Du};
        const int64_t slot = oracle_window_slot(&window->call, n);
        if (slot < 0) continue;
        fill_state(window, slot, &rng);
        for (int64_t hv = 0; hv < window->value_heads; hv++)
            for (int64_t t = 0; t < window->cache_tokens && t < window->accepted[n]; t++)
                for (int64_t c = 0; c < ORACLE_D; c++) {
                    uint16_t *const to = kg + window_kg_offset(window, slot, hv, t) + c;
                    w[window_correction_offset(window, slot, hv, t) + c] =
                        (float)oracle_normal(&rng);
                    to[0] = oracle_bf16(oracle_normal(&rng));
                    to[ORACLE_D] = oracle_bf16(log_gate(&rng, window, TRIAL_NORMAL, c));
                }
    }
}

// -------------------------------------------------------------------------------------- to and fro

// Elements between two slots of pool or caches.
static int64_t slot_size(const struct window *window, enum window_tensor tensor)
{
    return tensor == WINDOW_STATE        ? window->slot_stride
           : tensor == WINDOW_CORRECTION ? window->correction_strides[0]
                                         : window->kg_strides[0];
}

bool window_part(const struct window *window, enum window_tensor tensor, int i, size_t *out_at,
                 size_t *out_size)
{
    const struct trial_buffer *buffer = &window->buffers[tensor];
    if (!buffer->size) return false;
    if (!is_sparse(window, tensor)) {
        *out_at = 0;
        *out_size = buffer->size;
        return i == 0;
    }
    if (i >= window->held_count) return false;
    const int64_t stride = slot_size(window, tensor);
    *out_at = (size_t)(buffer->base + window->held[i] * stride) * buffer->width;
    *out_size = (size_t)stride * buffer->width;
    return true;
}

void window_upload(struct window *window)
{
    size_t at, size;
    for (int tensor = 0; tensor < WINDOW_TENSORS; tensor++) {
        const struct trial_buffer *buffer = &window->buffers[tensor];
        if (is_sparse(window, (enum window_tensor)tensor) && !suite.machine.soft && buffer->size)
            machine_fill(&suite.machine, buffer->device, ORACLE_POISON, buffer->size / 2);
        for (int i = 0; window_part(window, (enum window_tensor)tensor, i, &at, &size); i++)
            machine_put(&suite.machine, buffer->device + at, (const char *)buffer->host + at, size);
    }
}

void window_download(struct window *window)
{
    size_t at, size;
    for (int tensor = WINDOW_OUT; tensor < WINDOW_TENSORS; tensor++)
        for (int i = 0; window_part(window, (enum window_tensor)tensor, i, &at, &size); i++)
            machine_get(&suite.machine, (char *)window->after[tensor] + at,
                        window->buffers[tensor].device + at, size);
}

void window_adopt(struct window *window)
{
    size_t at, size;
    for (int tensor = WINDOW_OUT; tensor < WINDOW_TENSORS; tensor++)
        for (int i = 0; window_part(window, (enum window_tensor)tensor, i, &at, &size); i++)
            memcpy((char *)window->buffers[tensor].host + at,
                   (const char *)window->after[tensor] + at, size);
}
