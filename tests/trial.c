// SPDX-License-Identifier: Apache-2.0
// Owns the host image of a call and its way to the device and back. Host and device hold the same
// bytes at the same offsets; large calls are sparse, in reserved but untouched host memory. It
// neither forms a call nor judges one: see trial_call.c and trial_judge.c.
#include "tests/trial.h"

#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

const struct trial_kind trial_kinds[TRIAL_TENSORS] = {
    [TRIAL_Q] = {true, true},    [TRIAL_K] = {true, true},    [TRIAL_V] = {true, true},
    [TRIAL_G] = {true, true},    [TRIAL_BETA] = {true, true}, [TRIAL_STATE] = {true, false},
    [TRIAL_OUT] = {true, false},
};

static void *reserve(size_t size)
{
    void *memory = mmap(NULL, size ? size : 1, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail_msg("%zu bytes of host memory are not to be had", size);
    return memory;
}

static void *first(const struct trial *trial, enum trial_tensor tensor)
{
    const struct trial_buffer *buffer = &trial->buffers[tensor];
    return buffer->size ? (char *)buffer->host + buffer->base * (int64_t)buffer->width : NULL;
}

static void make(struct trial *trial, enum trial_tensor tensor, int64_t elements)
{
    struct trial_buffer *buffer = &trial->buffers[tensor];
    int64_t guard = tensor == TRIAL_OUT || tensor == TRIAL_STATE ? TRIAL_GUARD : 0;
    buffer->width = trial_kinds[tensor].bf16 ? 2 : 4;
    buffer->base = trial->shift[tensor];
    buffer->size = (size_t)(buffer->base + elements + guard) * buffer->width;
    buffer->host = reserve(buffer->size);
    bool lazily = trial->sparse && (tensor == TRIAL_STATE || tensor == TRIAL_G);
    if (trial_kinds[tensor].bf16 && !lazily)
        for (size_t i = 0; i < buffer->size / 2; i++) ((uint16_t *)buffer->host)[i] = ORACLE_POISON;
    buffer->device = machine_alloc(&suite.machine, buffer->size);
}

struct trial trial_of(const struct suite_family *family, int64_t rows, int64_t heads,
                      int64_t value_heads)
{
    const struct kda_format_body *body = family->body;
    bool packed = family->op == KDA_OP_PACKED;
    struct trial trial = {
        .op = family->op,
        .gate = family->gate,
        .tokens = family->tokens,
        .rows = rows,
        .heads = kda_heads_least(body->head_set, heads),
        .slices = packed,
        .beta_is_logit = packed || (body->flags & KDA_BODY_LOGIT_BETA),
        .scale = (float)(1 / sqrt(ORACLE_D)),
        .lower_bound = packed                                 ? -5.0f
                       : family->gate == KDA_GATE_LOWER_BOUND ? -2.75f
                                                              : 0.0f,
    };
    bool equal = body->head_set || (body->flags & KDA_BODY_EQUAL_HEADS);
    trial.value_heads = equal ? trial.heads : value_heads;
    if (body->row_set && trial.rows > 31) trial.rows = 31;  // its highest bit
    while (body->row_set && !(body->row_set >> trial.rows & 1))
        trial.rows += body->row_set >> trial.rows ? 1 : -1;
    return trial;
}

static void fill_parameters(struct trial *trial)
{
    struct oracle_rng rng = {.state = 77};
    for (int64_t h = 0; h < trial->heads; h++) {
        double x = oracle_normal(&rng);
        trial->a_log[h] = (float)(trial->op == KDA_OP_PACKED ? 0.2 * x - 2 : log1p(fabs(x) / 2));
    }
    double spread = trial->op == KDA_OP_PACKED ? 0.25 : 1.0;
    for (int64_t i = 0; i < trial->heads * ORACLE_D; i++)
        trial->dt_bias[i] = (float)(spread * oracle_normal(&rng));
}

void trial_open(struct trial *trial)
{
    int64_t tok = trial->rows * trial->tokens, wide = trial->value_heads * ORACLE_D,
            narrow = trial->heads * ORACLE_D;
    if (!trial->num_slots) trial->num_slots = tok;
    int64_t qk = narrow + trial->qkv_pad, v = wide + trial->qkv_pad, g = wide + trial->gate_pad;
    int64_t beta = trial->value_heads + trial->beta_pad;
    if (trial->slices) qk = v = 3 * narrow + trial->qkv_pad;
    trial->slot_stride = trial->value_heads * ORACLE_HEAD + trial->slot_pad;

    make(trial, TRIAL_Q, tok * qk);
    if (!trial->slices) make(trial, TRIAL_K, tok * qk);
    if (!trial->slices) make(trial, TRIAL_V, tok * v);
    make(trial, TRIAL_G, tok * g);
    make(trial, TRIAL_BETA, tok * beta);
    make(trial, TRIAL_STATE, trial->num_slots * trial->slot_stride);
    make(trial, TRIAL_OUT, tok * wide);
    if (trial->cu_form) make(trial, TRIAL_CU, trial->rows + 1);
    if (!trial->no_indices) make(trial, TRIAL_INDICES, tok);
    if (!trial->no_accepted && trial->op == KDA_OP_RECURRENT)
        make(trial, TRIAL_ACCEPTED, trial->rows);
    if (trial->gate != KDA_GATE_PRECOMPUTED) {
        make(trial, TRIAL_A_LOG, trial->heads);
        make(trial, TRIAL_DT_BIAS, narrow);
    }
    trial->out = reserve(trial->buffers[TRIAL_OUT].size);
    trial->pool = reserve(trial->buffers[TRIAL_STATE].size);
    trial->cu = first(trial, TRIAL_CU);
    trial->indices = first(trial, TRIAL_INDICES);
    trial->accepted = first(trial, TRIAL_ACCEPTED);
    trial->a_log = first(trial, TRIAL_A_LOG);
    trial->dt_bias = first(trial, TRIAL_DT_BIAS);
    for (int64_t n = 0; trial->cu && n <= trial->rows; n++)
        trial->cu[n] = (int32_t)(n * trial->tokens);
    for (int64_t i = 0; trial->indices && i < tok; i++) trial->indices[i] = (int32_t)i;
    for (int64_t n = 0; trial->accepted && n < trial->rows; n++) trial->accepted[n] = 1;
    if (trial->a_log) fill_parameters(trial);

    const uint16_t *q = first(trial, TRIAL_Q);
    trial->call = (struct oracle_call){
        .gate = trial->gate,
        .tokens = trial->tokens,
        .rows = trial->rows,
        .tok = tok,
        .heads = trial->heads,
        .value_heads = trial->value_heads,
        .num_slots = trial->num_slots,
        .q = q,
        .k = trial->slices ? q + narrow : first(trial, TRIAL_K),
        .v = trial->slices ? q + 2 * narrow : first(trial, TRIAL_V),
        .g = first(trial, TRIAL_G),
        .beta = first(trial, TRIAL_BETA),
        .q_stride = qk,
        .k_stride = qk,
        .v_stride = v,
        .g_stride = g,
        .beta_stride = beta,
        .a_log = trial->a_log,
        .dt_bias = trial->dt_bias,
        .cu_seqlens = trial->cu,
        .indices = trial->indices,
        .accepted = trial->accepted,
        .beta_is_logit = trial->beta_is_logit != 0,
        .scale = (double)trial->scale,
        .lower_bound = (double)trial->lower_bound,
    };
}

void trial_close(struct trial *trial)
{
    munmap(trial->out, trial->buffers[TRIAL_OUT].size);
    munmap(trial->pool, trial->buffers[TRIAL_STATE].size);
    for (int i = 0; i < TRIAL_TENSORS; i++) {
        struct trial_buffer *buffer = &trial->buffers[i];
        if (!buffer->size) continue;
        munmap(buffer->host, buffer->size);
        machine_free(&suite.machine, buffer->device);
        *buffer = (struct trial_buffer){.size = 0};
    }
}

uint16_t *trial_at(const struct trial *trial, enum trial_tensor tensor, int64_t token, int64_t head)
{
    const struct oracle_call *call = &trial->call;
    const struct {
        const uint16_t *data;
        int64_t stride, head;
    } views[] = {
        [TRIAL_Q] = {call->q, call->q_stride, ORACLE_D},
        [TRIAL_K] = {call->k, call->k_stride, ORACLE_D},
        [TRIAL_V] = {call->v, call->v_stride, ORACLE_D},
        [TRIAL_G] = {call->g, call->g_stride, ORACLE_D},
        [TRIAL_BETA] = {call->beta, call->beta_stride, 1},
    };
    assert_true(trial_kinds[tensor].per_token);
    return (uint16_t *)(uintptr_t)views[tensor].data + token * views[tensor].stride +
           head * views[tensor].head;
}

int64_t trial_slot_offset(const struct trial *trial, int64_t slot, int64_t hv)
{
    return trial->buffers[TRIAL_STATE].base + slot * trial->slot_stride + hv * ORACLE_HEAD;
}

uint16_t *trial_slot(const struct trial *trial, int64_t slot, int64_t hv)
{
    return (uint16_t *)trial->buffers[TRIAL_STATE].host + trial_slot_offset(trial, slot, hv);
}

const uint16_t *trial_pool(const struct trial *trial, int64_t slot, int64_t hv)
{
    return trial->pool + trial_slot_offset(trial, slot, hv);
}

const uint16_t *trial_out(const struct trial *trial, int64_t token)
{
    return trial->out + trial->buffers[TRIAL_OUT].base + token * trial->value_heads * ORACLE_D;
}

void trial_null_row(struct trial *trial, int64_t n)
{
    for (int32_t t = 0; t < trial->tokens; t++) trial->indices[n * trial->tokens + t] = -1;
}

static double log_gate(struct oracle_rng *rng, const struct trial *trial, enum trial_data data,
                       int64_t c)
{
    static const double side_by_side[] = {0, -1, -40, -1e4};
    double x = oracle_normal(rng), u = oracle_uniform(rng);
    if (trial->gate != KDA_GATE_PRECOMPUTED) return data == TRIAL_SMALL ? 0.5 * x : x;
    if (data == TRIAL_STRONG) return -30 - 30 * u;
    if (data == TRIAL_MIXED) return side_by_side[c % 4];
    return -oracle_softplus(data == TRIAL_SMALL ? -x - 2 : -x);
}

void trial_fill(struct trial *trial, int64_t n, uint64_t key, enum trial_data data)
{
    struct oracle_rng rng = {.state = key * 0x2545F4914F6CDD1Du};
    double size = data == TRIAL_SMALL ? 0.5 : 1, large = data == TRIAL_STRONG ? 8 : size;
    int64_t start = oracle_start(&trial->call, n);
    for (int64_t hv = 0; hv < trial->value_heads; hv++) {
        uint16_t *state = start < 0 ? NULL : trial_slot(trial, start, hv);
        for (int i = 0; i < ORACLE_HEAD; i++) {
            double x = oracle_normal(&rng);
            if (state) state[i] = oracle_bf16(data == TRIAL_SMALL ? 0.05 * x : x);
        }
    }
    for (int32_t t = 0; t < trial->tokens; t++) {
        int64_t token = oracle_token(&trial->call, n, t);
        if (token < 0) return;
        for (int64_t c = 0; c < trial->heads * ORACLE_D; c++) {
            trial_at(trial, TRIAL_Q, token, 0)[c] = oracle_bf16(size * oracle_normal(&rng));
            trial_at(trial, TRIAL_K, token, 0)[c] = oracle_bf16(size * oracle_normal(&rng));
        }
        for (int64_t c = 0; c < trial->value_heads * ORACLE_D; c++) {
            trial_at(trial, TRIAL_V, token, 0)[c] = oracle_bf16(large * oracle_normal(&rng));
            trial_at(trial, TRIAL_G, token, 0)[c] = oracle_bf16(log_gate(&rng, trial, data, c));
        }
        for (int64_t hv = 0; hv < trial->value_heads; hv++) {
            double x = oracle_normal(&rng), u = 0.05 + 0.9 * oracle_uniform(&rng);
            double beta = trial->beta_is_logit ? x : data == TRIAL_SMALL ? oracle_sigmoid(x) : u;
            *trial_at(trial, TRIAL_BETA, token, hv) = oracle_bf16(beta);
        }
    }
}

void trial_fill_all(struct trial *trial, uint64_t key, enum trial_data data)
{
    for (int64_t n = 0; n < trial->rows; n++)
        if (oracle_live(&trial->call, n)) trial_fill(trial, n, key + (uint64_t)n, data);
}

// -------------------------------------------------------------------------------------- to and fro

static void put(const struct trial *trial, enum trial_tensor tensor, int64_t at, int64_t count)
{
    const struct trial_buffer *buffer = &trial->buffers[tensor];
    size_t offset = (size_t)at * buffer->width;
    machine_put(&suite.machine, buffer->device + offset, (const char *)buffer->host + offset,
                (size_t)count * buffer->width);
}

void trial_upload(struct trial *trial)
{
    for (int i = 0; i < TRIAL_TENSORS; i++) {
        const struct trial_buffer *buffer = &trial->buffers[i];
        if (!buffer->size) continue;
        bool sparse = trial->sparse && (i == TRIAL_STATE || i == TRIAL_G);
        if (!sparse)
            put(trial, (enum trial_tensor)i, 0, (int64_t)(buffer->size / buffer->width));
        else if (!suite.machine.soft)  // would fill every reserved page of a soft device
            machine_fill(&suite.machine, buffer->device, ORACLE_POISON, buffer->size / 2);
    }
    if (!trial->sparse) return;
    for (int64_t token = 0; token < trial->call.tok; token++)
        put(trial, TRIAL_G, trial->buffers[TRIAL_G].base + token * trial->call.g_stride,
            trial->value_heads * ORACLE_D);
    for (int i = 0; i < trial->held_count; i++)
        put(trial, TRIAL_STATE, trial_slot_offset(trial, trial->held[i], 0), trial->slot_stride);
}

void trial_clear(struct trial *trial)
{
    const struct trial_buffer *buffer = &trial->buffers[TRIAL_OUT];
    machine_fill(&suite.machine, buffer->device, ORACLE_POISON, buffer->size / 2);
}

void trial_download_out(struct trial *trial)
{
    const struct trial_buffer *buffer = &trial->buffers[TRIAL_OUT];
    machine_get(&suite.machine, trial->out, buffer->device, buffer->size);
}

void trial_download(struct trial *trial)
{
    const struct trial_buffer *state = &trial->buffers[TRIAL_STATE];
    trial_download_out(trial);
    if (!trial->sparse) machine_get(&suite.machine, trial->pool, state->device, state->size);
    for (int i = 0; trial->sparse && i < trial->held_count; i++) {
        int64_t at = trial_slot_offset(trial, trial->held[i], 0);
        machine_get(&suite.machine, trial->pool + at, state->device + (CUdeviceptr)at * 2,
                    (size_t)trial->slot_stride * 2);
    }
}
