// SPDX-License-Identifier: Apache-2.0
// Owns the comparison of what verify and commit left in memory with the oracle and with what was
// there. What a call may write is judged and then struck out of the comparison with what was there
// before; the rest must be the same bytes.
#include "tests/window.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct verdict {
    char *text;
    size_t size;
    bool good;
};

static void object(struct verdict *verdict, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void object(struct verdict *verdict, const char *format, ...)
{
    if (!verdict->good) return;  // the first objection is the one that is told
    verdict->good = false;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(verdict->text, verdict->size, format, arguments);
    va_end(arguments);
}

static void judge_figures(struct verdict *verdict, const struct window *window, const char *what,
                          const struct oracle_error *error, bool rounded)
{
    if (!error->count) return;
    if (error->nonfinite)
        object(verdict, "%s: %lld elements are not finite", what, (long long)error->nonfinite);
    if (window->finite_only) return;
    const double norm = oracle_norm(error), floor = rounded ? oracle_floor(error) : 0.0;
    double limit = ORACLE_NORM_LIMIT;
    if (window->any_floor)
        limit = fmax(limit, floor + 5e-4);
    else if (!(floor <= ORACLE_FLOOR_LIMIT))
        object(verdict, "%s: unfit data, their rounding floor is %.3g", what, floor);
    if (!(norm <= limit && error->worst <= 1))
        object(verdict, "%s: norm-relative error %.3g, worst element %.3g of its tolerance", what,
               norm, error->worst);
}

// Judged already: the comparison of the rest sees it as it was before.
static void strike(struct window *window, enum window_tensor tensor, int64_t offset, int64_t count)
{
    const struct trial_buffer *buffer = &window->buffers[tensor];
    memcpy((char *)window->rest[tensor] + (size_t)offset * buffer->width,
           (const char *)buffer->host + (size_t)offset * buffer->width,
           (size_t)count * buffer->width);
}

static void judge_rest(struct verdict *verdict, const struct window *window)
{
    static const char *const names[] = {"out", "state", "correction_cache", "kg_cache"};
    size_t at, size;
    for (int tensor = WINDOW_OUT; tensor < WINDOW_TENSORS; tensor++)
        for (int i = 0; window_part(window, (enum window_tensor)tensor, i, &at, &size); i++)
            if (memcmp((const char *)window->rest[tensor] + at,
                       (const char *)window->buffers[tensor].host + at, size) != 0)
                object(verdict, "%s: what must not be written was", names[tensor - WINDOW_OUT]);
}

static void judge_caches(struct verdict *verdict, struct window *window, int64_t slot, int64_t hv,
                         int32_t t, int64_t token, const double *corrections)
{
    const int64_t h = hv / (window->value_heads / window->heads);
    const int64_t w_at = window_correction_offset(window, slot, hv, t),
                  kg_at = window_kg_offset(window, slot, hv, t);
    const float *w = (const float *)window->after[WINDOW_CORRECTION] + w_at;
    const uint16_t *kg = (const uint16_t *)window->after[WINDOW_KG] + kg_at;
    for (int c = 0; c < ORACLE_D; c++)
        oracle_add_within(&window->correction_error, (double)w[c], corrections[c],
                          ORACLE_CORRECTION_ABSOLUTE, ORACLE_CORRECTION_RELATIVE);
    if (memcmp(kg, window_at(window, WINDOW_K, token, h), ORACLE_D * 2) != 0 ||
        memcmp(kg + ORACLE_D, window_at(window, WINDOW_G, token, hv), ORACLE_D * 2) != 0)
        object(verdict, "kg_cache: slot %lld token %d head %lld is not the raw key and gate",
               (long long)slot, (int)t, (long long)hv);
    strike(window, WINDOW_CORRECTION, w_at, ORACLE_D);
    strike(window, WINDOW_KG, kg_at, 2 * ORACLE_D);
}

static void judge_row(struct verdict *verdict, struct window *window, int64_t n)
{
    static double out[WINDOW_MOST * ORACLE_D], corrections[WINDOW_MOST * ORACLE_D];
    const struct oracle_call *call = &window->call;
    const int64_t slot = oracle_window_slot(call, n);
    const uint16_t *pool = window->buffers[WINDOW_STATE].host;
    for (int64_t hv = 0; hv < call->value_heads; hv++) {
        if (slot >= 0)
            oracle_window(call, n, hv, pool + window_state_offset(window, slot, hv), out,
                          corrections);
        for (int32_t t = 0; t < call->tokens; t++) {
            const int64_t token = oracle_token(call, n, t);
            if (token < 0) break;
            const int64_t at = window_out_offset(window, token, hv);
            const uint16_t *got = (const uint16_t *)window->after[WINDOW_OUT] + at;
            bool zero = true;
            for (int c = 0; c < ORACLE_D; c++) zero &= got[c] == 0;
            if (slot >= 0)
                oracle_add_many(&window->out_error, got, out + t * ORACLE_D, ORACLE_D);
            else if (!zero)
                object(verdict, "out: row %lld token %d head %lld is not +0", (long long)n, (int)t,
                       (long long)hv);
            strike(window, WINDOW_OUT, at, ORACLE_D);
            if (slot >= 0 && !window->no_caches)
                judge_caches(verdict, window, slot, hv, t, token, corrections + t * ORACLE_D);
        }
    }
}

static void begin(struct window *window)
{
    size_t at, size;
    for (int tensor = WINDOW_OUT; tensor < WINDOW_TENSORS; tensor++)
        for (int i = 0; window_part(window, (enum window_tensor)tensor, i, &at, &size); i++)
            memcpy((char *)window->rest[tensor] + at, (char *)window->after[tensor] + at, size);
    window->out_error = window->correction_error = window->state_error =
        (struct oracle_error){.count = 0};
}

bool window_judge(struct window *window, char *why, size_t size)
{
    struct verdict verdict = {.text = why, .size = size, .good = true};
    begin(window);
    for (int64_t n = 0; n < window->rows; n++) judge_row(&verdict, window, n);
    judge_rest(&verdict, window);
    judge_figures(&verdict, window, "out", &window->out_error, true);
    judge_figures(&verdict, window, "correction_cache", &window->correction_error, false);
    return verdict.good;
}

void window_expect(struct window *window, const char *what)
{
    char why[256];
    if (!window_judge(window, why, sizeof why)) fail_msg("%s: %s", what, why);
}

// The state of a head after `count` tokens of the row, by plain decoding.
static void decode(const struct oracle_call *call, int64_t n, int64_t hv, int64_t count,
                   double *state)
{
    double out[ORACLE_D];
    for (int32_t t = 0; t < count; t++) oracle_step(call, oracle_token(call, n, t), hv, state, out);
}

bool window_judge_commit(struct window *window, bool decoded, char *why, size_t size)
{
    static double state[ORACLE_HEAD];
    const struct oracle_call *call = &window->call;
    const uint16_t *pool = window->buffers[WINDOW_STATE].host, *after = window->after[WINDOW_STATE];
    const float *w = window->buffers[WINDOW_CORRECTION].host;
    const uint16_t *kg = window->buffers[WINDOW_KG].host;
    struct verdict verdict = {.text = why, .size = size, .good = true};
    begin(window);
    for (int64_t n = 0; n < window->rows; n++) {
        const int64_t slot = oracle_window_slot(call, n), wanted = window->accepted[n];
        const int64_t count = wanted < window->cache_tokens ? wanted : window->cache_tokens;
        for (int64_t hv = 0; hv < call->value_heads && slot >= 0 && count > 0; hv++) {
            const int64_t at = window_state_offset(window, slot, hv);
            for (int i = 0; i < ORACLE_HEAD; i++) state[i] = oracle_value(pool[at + i]);
            if (decoded)
                decode(call, n, hv, count, state);
            else
                oracle_commit(call, hv, count, w + window_correction_offset(window, slot, hv, 0),
                              window->correction_strides[2],
                              kg + window_kg_offset(window, slot, hv, 0), window->kg_strides[2],
                              state);
            oracle_add_many(&window->state_error, after + at, state, ORACLE_HEAD);
            strike(window, WINDOW_STATE, at, ORACLE_HEAD);
        }
    }
    judge_rest(&verdict, window);
    judge_figures(&verdict, window, "state", &window->state_error, true);
    return verdict.good;
}

void window_expect_commit(struct window *window, bool decoded, const char *what)
{
    char why[256];
    if (!window_judge_commit(window, decoded, why, sizeof why)) fail_msg("%s: %s", what, why);
}

static bool same_bytes(const struct window *a, int64_t at_a, const struct window *b, int64_t at_b,
                       enum window_tensor tensor, int64_t count)
{
    const size_t width = a->buffers[tensor].width;
    return memcmp((const char *)a->after[tensor] + (size_t)at_a * width,
                  (const char *)b->after[tensor] + (size_t)at_b * width,
                  (size_t)count * width) == 0;
}

bool window_same_row(const struct window *a, int64_t row_a, const struct window *b, int64_t row_b)
{
    const int64_t slot_a = oracle_window_slot(&a->call, row_a),
                  slot_b = oracle_window_slot(&b->call, row_b);
    const bool caches = !a->no_caches && !b->no_caches && slot_a >= 0 && slot_b >= 0;
    assert_true(a->value_heads == b->value_heads);
    int compared = 0;
    for (int32_t t = 0; t < a->tokens && t < b->tokens; t++) {
        const int64_t token_a = oracle_token(&a->call, row_a, t),
                      token_b = oracle_token(&b->call, row_b, t);
        if (token_a < 0 || token_b < 0) break;
        compared++;
        for (int64_t hv = 0; hv < a->value_heads; hv++) {
            if (!same_bytes(a, window_out_offset(a, token_a, hv), b,
                            window_out_offset(b, token_b, hv), WINDOW_OUT, ORACLE_D))
                return false;
            if (!caches) continue;
            if (!same_bytes(a, window_correction_offset(a, slot_a, hv, t), b,
                            window_correction_offset(b, slot_b, hv, t), WINDOW_CORRECTION,
                            ORACLE_D) ||
                !same_bytes(a, window_kg_offset(a, slot_a, hv, t), b,
                            window_kg_offset(b, slot_b, hv, t), WINDOW_KG, 2 * ORACLE_D))
                return false;
        }
    }
    return compared > 0;
}

bool window_same_state(const struct window *a, int64_t row_a, const struct window *b, int64_t row_b)
{
    const int64_t slot_a = oracle_window_slot(&a->call, row_a),
                  slot_b = oracle_window_slot(&b->call, row_b);
    assert_true(slot_a >= 0 && slot_b >= 0 && a->value_heads == b->value_heads);
    return same_bytes(a, window_state_offset(a, slot_a, 0), b, window_state_offset(b, slot_b, 0),
                      WINDOW_STATE, a->value_heads * ORACLE_HEAD);
}
