// SPDX-License-Identifier: Apache-2.0
// Owns the memory of fused trials and their judge. Invariant: a slot's data depend on the key of
// its row alone, and the judge compares every byte that is held.
#include "tests/fused_trial.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// -------------------------------------------------------------------------------------------- data

struct fused_trial fused_trial_of(kda_gate gate, kda_dtype state_type, int64_t rows, int64_t heads)
{
    return (struct fused_trial){
        .gate = gate,
        .state_type = state_type,
        .mode = KDA_MODE_UNIQUE_OR_NULL,
        .rows = rows,
        .heads = heads,
        .lower_bound = gate == KDA_GATE_LOWER_BOUND ? -2.75f : 0.0f,
        .norm_eps = 1e-5f,
    };
}

static void *reserve(size_t size)
{
    uint8_t *memory = malloc(size);
    assert_non_null(memory);
    for (size_t i = 0; i + 1 < size; i += 2) memcpy(memory + i, &(uint16_t){ORACLE_POISON}, 2);
    return memory;
}

static void make(struct fused_trial *trial, enum fused_tensor tensor, int64_t count, size_t width)
{
    struct fused_buffer *buffer = &trial->buffers[tensor];
    // The output's guards keep its alignment; an input has its shift before it.
    buffer->width = width;
    buffer->base = tensor == FUSED_OUT ? FUSED_GUARD : trial->shift[tensor] * (int64_t)width;
    buffer->size = (size_t)buffer->base + (size_t)count * width + FUSED_GUARD;
    buffer->host = reserve(buffer->size);
    buffer->device = machine_alloc(&suite.machine, buffer->size);
}

static void *first(const struct fused_trial *trial, enum fused_tensor tensor)
{
    return trial->buffers[tensor].host + trial->buffers[tensor].base;
}

static int64_t pitch(const struct fused_trial *trial, enum fused_tensor tensor)
{
    const int64_t width = trial->heads * ORACLE_D;
    switch (tensor) {
    case FUSED_X:
        return 3 * width + trial->x_pad;
    case FUSED_BETA:
        return trial->heads + trial->beta_pad;
    case FUSED_OUTPUT_GATE:
        return width + trial->output_gate_pad;
    default:
        return width;
    }
}

void *fused_at(const struct fused_trial *trial, enum fused_tensor tensor, int64_t row)
{
    return (uint8_t *)first(trial, tensor) +
           row * pitch(trial, tensor) * (int64_t)trial->buffers[tensor].width;
}

uint16_t *fused_window(const struct fused_trial *trial, int64_t slot)
{
    return (uint16_t *)(void *)(trial->conv.before + (size_t)slot * trial->conv.held);
}

static void open_cache(struct fused_cache *cache, int64_t slots, size_t block, int64_t pad)
{
    cache->block = block;
    cache->held = block + (size_t)(pad < FUSED_GUARD ? pad : FUSED_GUARD);
    cache->stride = (int64_t)block + pad;
    cache->before = reserve((size_t)slots * cache->held);
    cache->after = reserve((size_t)slots * cache->held);
}

static void open_caches(struct fused_trial *trial)
{
    const int64_t slots = trial->num_slots, width = trial->heads * ORACLE_D;
    const size_t element = trial->state_type == KDA_F32 ? 4 : 2;
    struct fused_cache *const conv = &trial->conv, *const state = &trial->state;
    open_cache(conv, slots, (size_t)(9 * width) * 2, trial->conv_pad * 2);
    open_cache(state, slots, (size_t)(width * ORACLE_D) * element,
               trial->state_pad * (int64_t)element);
    if (trial->pages) {
        conv->held = conv->block;
        conv->stride = state->stride += (int64_t)conv->block;
        trial->memory[0] = machine_alloc(&suite.machine, (size_t)(slots * conv->stride));
        conv->device = trial->memory[0];
        state->device = conv->device + conv->block;
        return;
    }
    trial->memory[0] = machine_alloc(&suite.machine, (size_t)(slots * conv->stride));
    trial->memory[1] = machine_alloc(&suite.machine, (size_t)(slots * state->stride));
    conv->device = trial->memory[0];
    state->device = trial->memory[1];
}

static void draw(struct oracle_rng *rng, void *out, int64_t count, double mean, double spread)
{
    float *values = out;
    for (int64_t i = 0; i < count; i++) values[i] = (float)(mean + spread * oracle_normal(rng));
}

static void draw_bf16(struct oracle_rng *rng, void *out, int64_t count, double spread)
{
    uint16_t *values = out;
    for (int64_t i = 0; i < count; i++) values[i] = oracle_bf16(spread * oracle_normal(rng));
}

void fused_open(struct fused_trial *trial)
{
    const int64_t rows = trial->rows, width = trial->heads * ORACLE_D;
    if (!trial->num_slots) trial->num_slots = rows + 1;
    make(trial, FUSED_X, rows * pitch(trial, FUSED_X), 2);
    make(trial, FUSED_WEIGHT, 12 * width, 4);
    make(trial, FUSED_GATE, rows * width, 2);
    make(trial, FUSED_BETA, rows * pitch(trial, FUSED_BETA), 2);
    make(trial, FUSED_A_LOG, trial->heads, 4);
    make(trial, FUSED_DT_BIAS, width, 4);
    make(trial, FUSED_INDICES, rows, 4);
    make(trial, FUSED_OUTPUT_GATE, rows * pitch(trial, FUSED_OUTPUT_GATE), 2);
    make(trial, FUSED_NORM_WEIGHT, ORACLE_D, 4);
    make(trial, FUSED_OUT, rows * width, 2);
    open_caches(trial);
    trial->indices = first(trial, FUSED_INDICES);
    trial->out = first(trial, FUSED_OUT);
    for (int64_t n = 0; n < rows; n++) trial->indices[n] = (int32_t)n + 1;

    struct oracle_rng rng = {.state = 77};
    draw(&rng, first(trial, FUSED_WEIGHT), 12 * width, 0, 0.5);
    draw(&rng, first(trial, FUSED_A_LOG), trial->heads, 0.2, 0.3);
    draw(&rng, first(trial, FUSED_DT_BIAS), width, 0, 1);
    draw(&rng, first(trial, FUSED_NORM_WEIGHT), ORACLE_D, 1, 0.2);
    trial->call = (struct oracle_fused){
        .gate = trial->gate,
        .rows = rows,
        .heads = trial->heads,
        .num_slots = trial->num_slots,
        .x = first(trial, FUSED_X),
        .raw_gate = first(trial, FUSED_GATE),
        .raw_beta = first(trial, FUSED_BETA),
        .output_gate = first(trial, FUSED_OUTPUT_GATE),
        .x_stride = pitch(trial, FUSED_X),
        .gate_stride = width,
        .beta_stride = pitch(trial, FUSED_BETA),
        .output_gate_stride = pitch(trial, FUSED_OUTPUT_GATE),
        .weight = first(trial, FUSED_WEIGHT),
        .a_log = first(trial, FUSED_A_LOG),
        .dt_bias = first(trial, FUSED_DT_BIAS),
        .norm_weight = first(trial, FUSED_NORM_WEIGHT),
        .indices = trial->indices,
        .lower_bound = (double)trial->lower_bound,
        .norm_eps = (double)trial->norm_eps,
    };
}

void fused_close(struct fused_trial *trial)
{
    for (int i = 0; i < FUSED_TENSORS; i++) {
        machine_free(&suite.machine, trial->buffers[i].device);
        free(trial->buffers[i].host);
    }
    for (int i = 0; i < 2; i++)
        if (trial->memory[i]) machine_free(&suite.machine, trial->memory[i]);
    struct fused_cache *const caches[] = {&trial->conv, &trial->state};
    for (int i = 0; i < 2; i++) {
        free(caches[i]->before);
        free(caches[i]->after);
    }
}

void fused_fill(struct fused_trial *trial, int64_t row, uint64_t key)
{
    const int64_t width = trial->heads * ORACLE_D, slot = oracle_fused_slot(&trial->call, row);
    struct oracle_rng rng = {.state = key};
    draw_bf16(&rng, fused_at(trial, FUSED_X, row), 3 * width, 1);
    draw_bf16(&rng, fused_at(trial, FUSED_GATE, row), width, 1);
    draw_bf16(&rng, fused_at(trial, FUSED_BETA, row), trial->heads, 1);
    draw_bf16(&rng, fused_at(trial, FUSED_OUTPUT_GATE, row), width, 1);
    if (slot < 0) return;
    draw_bf16(&rng, fused_window(trial, slot), 9 * width, 1);
    void *state = trial->state.before + (size_t)slot * trial->state.held;
    if (trial->state_type == KDA_F32)
        draw(&rng, state, width * ORACLE_D, 0, 0.5);
    else
        draw_bf16(&rng, state, width * ORACLE_D, 0.5);
}

// A thread's part of the work on a trial: every `count`-th slot from `first` on.
struct share {
    struct fused_trial trial;  // a copy: what it adds up is its own
    int64_t first, count;
    uint64_t key;
    char wrong[120];  // what it found, if not empty; only the test's own thread may fail
};
enum { MOST_SHARES = 16 };

// One share where the soft device has the processors already.
static int64_t split(const struct fused_trial *trial, uint64_t key,
                     struct share shares[MOST_SHARES])
{
    int64_t count = suite.machine.soft ? 1 : sysconf(_SC_NPROCESSORS_ONLN);
    count = count < 1 ? 1 : count > MOST_SHARES ? MOST_SHARES : count;
    for (int64_t i = 0; i < count; i++)
        shares[i] = (struct share){.trial = *trial, .first = i, .count = count, .key = key};
    return count;
}

static void work_on(struct share shares[], int64_t count, void *(*work)(void *share))
{
    pthread_t threads[MOST_SHARES];
    for (int64_t i = 1; i < count; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &shares[i]), 0);
    work(&shares[0]);
    for (int64_t i = 1; i < count; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
}

static void *fill_share(void *argument)
{
    struct share *const share = argument;
    for (int64_t n = 0; n < share->trial.rows; n++) {
        const int64_t slot = oracle_fused_slot(&share->trial.call, n);
        if (slot >= 0 && slot % share->count == share->first)
            fused_fill(&share->trial, n, share->key + (uint64_t)n);
    }
    return NULL;
}

void fused_fill_all(struct fused_trial *trial, uint64_t key)
{
    struct share shares[MOST_SHARES];
    work_on(shares, split(trial, key, shares), fill_share);
}

void fused_advance(struct fused_trial *trial)
{
    struct fused_cache *const caches[] = {&trial->conv, &trial->state};
    for (int i = 0; i < 2; i++)
        memcpy(caches[i]->before, caches[i]->after, (size_t)trial->num_slots * caches[i]->held);
}

// ------------------------------------------------------------------------------------------ device

static kda_tensor view(CUdeviceptr address, kda_dtype dtype, uint32_t rank, const int64_t *extent,
                       const int64_t *stride)
{
    kda_tensor tensor = {.data = (void *)(uintptr_t)address, .dtype = dtype, .rank = rank};
    int64_t compact = 1;
    for (uint32_t i = rank; i-- > 0;) {
        tensor.extent[i] = extent[i];
        tensor.stride[i] = stride && stride[i] ? stride[i] : compact;
        compact = tensor.stride[i] * extent[i];
    }
    return tensor;
}

#define LIST(...) ((const int64_t[]){__VA_ARGS__})

kda_fused_args fused_args(const struct fused_trial *trial)
{
    const int64_t n = trial->rows, h = trial->heads, d = ORACLE_D, width = h * d;
    CUdeviceptr at[FUSED_TENSORS];
    for (int i = 0; i < FUSED_TENSORS; i++)
        at[i] = trial->buffers[i].device + (CUdeviceptr)trial->buffers[i].base;
    const int64_t og = pitch(trial, FUSED_OUTPUT_GATE);
    return (kda_fused_args){
        .x = view(at[FUSED_X], KDA_BF16, 2, LIST(n, 3 * width), LIST(pitch(trial, FUSED_X), 1)),
        .weight = view(at[FUSED_WEIGHT], KDA_F32, 3, LIST(3, 4, width), NULL),
        .conv_state = view(trial->conv.device, KDA_BF16, 3, LIST(trial->num_slots, 3 * width, 3),
                           LIST(trial->conv.stride / 2, 1, 3 * width)),
        .raw_gate = view(at[FUSED_GATE], KDA_BF16, 4, LIST(1, n, h, d), NULL),
        .raw_beta =
            view(at[FUSED_BETA], KDA_BF16, 3, LIST(1, n, h), LIST(0, pitch(trial, FUSED_BETA), 1)),
        .a_log = view(at[FUSED_A_LOG], KDA_F32, 1, LIST(h), NULL),
        .dt_bias = view(at[FUSED_DT_BIAS], KDA_F32, 1, LIST(width), NULL),
        .state_indices = view(at[FUSED_INDICES], KDA_I32, 1, LIST(n), NULL),
        .state = view(trial->state.device, trial->state_type, 4, LIST(trial->num_slots, h, d, d),
                      LIST(trial->state.stride / (trial->state_type == KDA_F32 ? 4 : 2), 0, 0, 0)),
        .output_gate =
            trial->flat_gate
                ? view(at[FUSED_OUTPUT_GATE], KDA_BF16, 3, LIST(n, h, d), LIST(og, 0, 0))
                : view(at[FUSED_OUTPUT_GATE], KDA_BF16, 4, LIST(1, n, h, d), LIST(0, og, 0, 0)),
        .norm_weight = view(at[FUSED_NORM_WEIGHT], KDA_F32, 1, LIST(d), NULL),
        .out = view(at[FUSED_OUT], KDA_BF16, 4, LIST(1, n, h, d), NULL),
        .gate = trial->gate,
        .mode = trial->mode,
        .lower_bound = trial->lower_bound,
        .norm_eps = trial->norm_eps,
    };
}

kda_problem fused_problem(const struct fused_trial *trial)
{
    return (kda_problem){.op = KDA_OP_FUSED,
                         .gate = trial->gate,
                         .tokens = 1,
                         .rows = trial->rows,
                         .heads = trial->heads,
                         .value_heads = trial->heads,
                         .state_type = trial->state_type,
                         .mode = (int32_t)trial->mode};
}

void fused_upload_inputs(struct fused_trial *trial)
{
    struct fused_buffer *const out = &trial->buffers[FUSED_OUT];
    for (size_t i = 0; i + 1 < out->size; i += 2)
        memcpy(out->host + i, &(uint16_t){ORACLE_POISON}, 2);
    for (int i = 0; i < FUSED_TENSORS; i++)
        machine_put(&suite.machine, trial->buffers[i].device, trial->buffers[i].host,
                    trial->buffers[i].size);
}

void fused_upload(struct fused_trial *trial)
{
    const struct fused_cache *const caches[] = {&trial->conv, &trial->state};
    fused_upload_inputs(trial);
    for (int i = 0; i < 2; i++)
        for (int64_t s = 0; s < trial->num_slots; s++)
            machine_put(&suite.machine, caches[i]->device + (CUdeviceptr)(s * caches[i]->stride),
                        caches[i]->before + (size_t)s * caches[i]->held, caches[i]->held);
}

void fused_download(struct fused_trial *trial)
{
    const struct fused_cache *const caches[] = {&trial->conv, &trial->state};
    const struct fused_buffer *const out = &trial->buffers[FUSED_OUT];
    machine_get(&suite.machine, out->host, out->device, out->size);
    for (int i = 0; i < 2; i++)
        for (int64_t s = 0; s < trial->num_slots; s++)
            machine_get(&suite.machine, caches[i]->after + (size_t)s * caches[i]->held,
                        caches[i]->device + (CUdeviceptr)(s * caches[i]->stride), caches[i]->held);
}

void fused_launch(const struct fused_trial *trial, CUstream stream)
{
    suite.calls++;
    kda_fused_args args = fused_args(trial);
    kda_error err = {.status = KDA_OK};
    if (kda_fused(suite.context, &args, stream, &err))
        fail_msg("%s: %s", kda_status_name(err.status), err.text);
}

static void launch_forced(const struct fused_trial *trial, const char *body, const char *target)
{
    suite.calls++;
    kda_fused_args args = fused_args(trial);
    kda_error err = {.status = KDA_OK};
    kda_plan plan;
    kda_status status = kda_fused_plan(suite.context, &args, body, target, &plan, &err);
    if (!status) status = kda_plan_launch(&plan, NULL, &err);
    if (status) fail_msg("%s: %s", kda_status_name(status), err.text);
    suite_note(body, target);
}

void fused_run(struct fused_trial *trial, const char *body, const char *target)
{
    fused_upload(trial);
    if (body) {
        launch_forced(trial, body, target);
    } else {
        const kda_problem problem = fused_problem(trial);
        kda_route_result route;
        kda_error err;
        fused_launch(trial, NULL);
        if (kda_route(suite.bundle, &suite.device, &problem, &route, &err))
            fail_msg("%s", err.text);
        suite_note(route.body, route.target);
    }
    machine_sync(&suite.machine, NULL);
    fused_download(trial);
}

// ------------------------------------------------------------------------------------------- judge

static double state_value(const struct fused_trial *trial, const uint8_t *head, int i)
{
    if (trial->state_type != KDA_F32)
        return oracle_value(((const uint16_t *)(const void *)head)[i]);
    return (double)((const float *)(const void *)head)[i];
}

static void judge_state(struct fused_trial *trial, const uint8_t *head, const double *want)
{
    for (int i = 0; i < ORACLE_HEAD; i++) {
        if (trial->state_type == KDA_F32)
            oracle_add_f32(&trial->state_error, ((const float *)(const void *)head)[i], want[i]);
        else
            oracle_add(&trial->state_error, ((const uint16_t *)(const void *)head)[i], want[i]);
    }
}

// Head `head` of a slot through all its rows, in ascending order. False: no row has the slot.
static bool judge_head(struct fused_trial *trial, int64_t slot, int64_t head, uint16_t *window)
{
    const size_t size = trial->state.block / (size_t)trial->heads;
    const size_t at = (size_t)slot * trial->state.held + (size_t)head * size;
    double state[ORACLE_HEAD], out[ORACLE_D];
    bool any = false;
    for (int64_t n = 0; n < trial->rows; n++) {
        if (oracle_fused_slot(&trial->call, n) != slot) continue;
        for (int i = 0; i < ORACLE_HEAD; i++) {
            if (!any)
                state[i] = state_value(trial, trial->state.before + at, i);
            else if (trial->state_type != KDA_F32)
                state[i] = oracle_value(oracle_bf16(state[i]));
        }
        any = true;
        oracle_fused_step(&trial->call, n, head, window, state, out);
        oracle_add_many(&trial->out_error, trial->out + (n * trial->heads + head) * ORACLE_D, out,
                        ORACLE_D);
    }
    if (any) judge_state(trial, trial->state.after + at, state);
    return any;
}

static void expect_zero_rows(const struct fused_trial *trial, const char *what)
{
    const int64_t width = trial->heads * ORACLE_D;
    for (int64_t n = 0; n < trial->rows; n++)
        for (int64_t i = 0; i < width && oracle_fused_slot(&trial->call, n) < 0; i++)
            if (trial->out[n * width + i])
                fail_msg("%s: null row %d, output %d is 0x%04x, must be 0", what, (int)n, (int)i,
                         trial->out[n * width + i]);
}

static void expect_guards(const struct fused_trial *trial, const char *what)
{
    const struct fused_buffer *const out = &trial->buffers[FUSED_OUT];
    for (size_t i = 0; i < FUSED_GUARD; i += 2) {
        uint16_t front, back;
        memcpy(&front, out->host + i, 2);
        memcpy(&back, out->host + out->size - FUSED_GUARD + i, 2);
        if (front != ORACLE_POISON || back != ORACLE_POISON)
            fail_msg("%s: memory around the output was written", what);
    }
}

static void expect_within(const struct oracle_error *error, bool any_floor, const char *what,
                          const char *tensor)
{
    if (!any_floor && oracle_floor(error) > ORACLE_FLOOR_LIMIT)
        fail_msg("%s: the data's own rounding costs %.3g in %s", what, oracle_floor(error), tensor);
    if (!oracle_within(error))
        fail_msg("%s: %s is off by %.3g in norm, worst element %.3g of the tolerance, %lld not "
                 "finite",
                 what, tensor, oracle_norm(error), error->worst, (long long)error->nonfinite);
}

static void *judge_share(void *argument)
{
    struct share *const share = argument;
    struct fused_trial *const trial = &share->trial;
    const struct fused_cache *const conv = &trial->conv, *const state = &trial->state;
    uint16_t *const window = malloc(conv->held);
    if (!window) abort();
    for (int64_t s = share->first; s < trial->num_slots; s += share->count) {
        const size_t conv_at = (size_t)s * conv->held, state_at = (size_t)s * state->held;
        memcpy(window, conv->before + conv_at, conv->held);
        bool any = false;
        for (int64_t h = 0; h < trial->heads; h++) any |= judge_head(trial, s, h, window);
        if (memcmp(conv->after + conv_at, window, conv->held))
            (void)snprintf(share->wrong, sizeof share->wrong,
                           "conv_state of slot %d is not what it must be", (int)s);
        const size_t from = any ? state->block : 0;
        if (memcmp(state->after + state_at + from, state->before + state_at + from,
                   state->held - from))
            (void)snprintf(share->wrong, sizeof share->wrong,
                           "state of slot %d was written where nothing may be", (int)s);
    }
    free(window);
    return NULL;
}

static void add_error(struct oracle_error *sum, const struct oracle_error *part)
{
    sum->difference2 += part->difference2;
    sum->reference2 += part->reference2;
    sum->floor2 += part->floor2;
    sum->worst = fmax(sum->worst, part->worst);
    sum->max_abs = fmax(sum->max_abs, part->max_abs);
    sum->count += part->count;
    sum->nonfinite += part->nonfinite;
}

void fused_expect(struct fused_trial *trial, const char *what)
{
    trial->out_error = trial->state_error = (struct oracle_error){.count = 0};
    struct share shares[MOST_SHARES];
    const int64_t count = split(trial, 0, shares);
    work_on(shares, count, judge_share);
    for (int64_t i = 0; i < count; i++) {
        if (*shares[i].wrong) fail_msg("%s: %s", what, shares[i].wrong);
        add_error(&trial->out_error, &shares[i].trial.out_error);
        add_error(&trial->state_error, &shares[i].trial.state_error);
    }
    expect_zero_rows(trial, what);
    expect_guards(trial, what);
    expect_within(&trial->out_error, trial->any_floor, what, "output");
    expect_within(&trial->state_error, trial->any_floor || trial->state_type == KDA_F32, what,
                  "state");
}

bool fused_same_row(const struct fused_trial *a, int64_t row_a, const struct fused_trial *b,
                    int64_t row_b)
{
    const int64_t width = a->heads * ORACLE_D;
    const size_t slot_a = (size_t)oracle_fused_slot(&a->call, row_a),
                 slot_b = (size_t)oracle_fused_slot(&b->call, row_b);
    return !memcmp(a->out + row_a * width, b->out + row_b * width, (size_t)width * 2) &&
           !memcmp(a->conv.after + slot_a * a->conv.held, b->conv.after + slot_b * b->conv.held,
                   a->conv.block) &&
           !memcmp(a->state.after + slot_a * a->state.held, b->state.after + slot_b * b->state.held,
                   a->state.block);
}
