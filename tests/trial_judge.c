// SPDX-License-Identifier: Apache-2.0
// Owns the comparison of what a kernel left in memory with the oracle and with what was there:
// values by the oracle's rule, everything else by its bits. Which tokens and slots a call may write
// follows from oracle_token and oracle_slot.
#include "tests/trial.h"

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

static void judge_figures(struct verdict *verdict, const struct trial *trial, const char *what,
                          const struct oracle_error *error)
{
    if (!error->count) return;
    if (error->nonfinite)
        object(verdict, "%s: %lld elements are not finite", what, (long long)error->nonfinite);
    if (trial->finite_only) return;
    double norm = oracle_norm(error), floor = oracle_floor(error), limit = ORACLE_NORM_LIMIT;
    if (trial->any_floor)
        limit = fmax(limit, floor + 5e-4);
    else if (!(floor <= ORACLE_FLOOR_LIMIT))
        object(verdict, "%s: unfit data, their rounding floor is %.3g", what, floor);
    if (!(norm <= limit && error->worst <= 1))
        object(verdict, "%s: norm-relative error %.3g, worst element %.3g of its tolerance", what,
               norm, error->worst);
}

static bool all_are(const uint16_t *data, int64_t count, uint16_t bits)
{
    for (int64_t i = 0; i < count; i++)
        if (data[i] != bits) return false;
    return true;
}

// Which checkpoint is the last to write each slot, as packed token + 1; 0: none. Frees with free().
static int64_t *find_writers(const struct trial *trial, bool *claimed)
{
    const struct oracle_call *call = &trial->call;
    int64_t *writers = calloc((size_t)trial->num_slots, sizeof *writers);
    assert_non_null(writers);
    for (int64_t n = 0; n < call->rows; n++)
        for (int32_t t = 0; t < call->tokens; t++) {
            int64_t token = oracle_token(call, n, t), slot = oracle_slot(call, n, t);
            if (token < 0) continue;
            assert_false(claimed[token]);  // the trial breaks the caller contract
            claimed[token] = true;
            if (slot >= 0) writers[slot] = token + 1;
        }
    return writers;
}

static void judge_row(struct verdict *verdict, struct trial *trial, int64_t n,
                      const int64_t *writers, double *out, double *states)
{
    const struct oracle_call *call = &trial->call;
    bool row_live = oracle_live(call, n);
    int64_t start = oracle_start(call, n);
    for (int64_t hv = 0; hv < call->value_heads; hv++) {
        if (row_live)
            oracle_row(call, n, hv, start < 0 ? NULL : trial_slot(trial, start, hv), out, states);
        for (int32_t t = 0; t < call->tokens; t++) {
            int64_t token = oracle_token(call, n, t), slot = oracle_slot(call, n, t);
            if (token < 0) continue;
            const uint16_t *got = trial_out(trial, token) + hv * ORACLE_D;
            if (slot < 0) {
                if (!all_are(got, ORACLE_D, 0))
                    object(verdict, "out: row %lld token %d head %lld is not +0", (long long)n,
                           (int)t, (long long)hv);
                continue;
            }
            oracle_add_many(&trial->out_error, got, out + t * ORACLE_D, ORACLE_D);
            if (writers[slot] == token + 1)
                oracle_add_many(&trial->state_error, trial_pool(trial, slot, hv),
                                states + (int64_t)t * ORACLE_HEAD, ORACLE_HEAD);
        }
    }
}

static void judge_untouched(struct verdict *verdict, const struct trial *trial,
                            const int64_t *writers, const bool *claimed)
{
    int64_t wide = trial->value_heads * ORACLE_D, block = trial->value_heads * ORACLE_HEAD,
            tok = trial->call.tok;
    for (int64_t token = 0; token < tok; token++)
        if (!claimed[token] && !all_are(trial_out(trial, token), wide, ORACLE_POISON))
            object(verdict, "out: absent token %lld was written", (long long)token);
    if (!all_are(trial->out, trial->buffers[TRIAL_OUT].base, ORACLE_POISON) ||
        !all_are(trial_out(trial, tok), TRIAL_GUARD, ORACLE_POISON))
        object(verdict, "out: memory around it was written");
    int64_t slots = trial->sparse ? trial->held_count : trial->num_slots;
    for (int64_t i = 0; i < slots; i++) {
        int64_t slot = trial->sparse ? trial->held[i] : i;
        int64_t kept = writers[slot] ? block : 0;  // elements of the slot that may change
        if (memcmp(trial_pool(trial, slot, 0) + kept, trial_slot(trial, slot, 0) + kept,
                   (size_t)(trial->slot_stride - kept) * 2) != 0)
            object(verdict, "state: %s slot %lld changed", kept ? "the padding after" : "unlisted",
                   (long long)slot);
    }
    if (trial->sparse) return;
    if (memcmp(trial->pool, trial->buffers[TRIAL_STATE].host,
               (size_t)trial->buffers[TRIAL_STATE].base * 2) != 0 ||
        !all_are(trial_pool(trial, trial->num_slots, 0), TRIAL_GUARD, ORACLE_POISON))
        object(verdict, "state: memory around the pool was written");
}

bool trial_judge(struct trial *trial, char *why, size_t size)
{
    struct verdict verdict = {.text = why, .size = size, .good = true};
    trial->out_error = trial->state_error = (struct oracle_error){.count = 0};
    bool *claimed = calloc((size_t)trial->call.tok, sizeof *claimed);
    double *out = calloc((size_t)trial->tokens * ORACLE_D, sizeof *out);
    double *states = calloc((size_t)trial->tokens * ORACLE_HEAD, sizeof *states);
    assert_true(claimed && out && states);
    int64_t *writers = find_writers(trial, claimed);
    for (int64_t n = 0; n < trial->rows; n++) judge_row(&verdict, trial, n, writers, out, states);
    judge_untouched(&verdict, trial, writers, claimed);
    judge_figures(&verdict, trial, "out", &trial->out_error);
    judge_figures(&verdict, trial, "state", &trial->state_error);
    free(claimed);
    free(out);
    free(states);
    free(writers);
    return verdict.good;
}

void trial_expect(struct trial *trial, const char *what)
{
    char why[256];
    if (!trial_judge(trial, why, sizeof why)) fail_msg("%s: %s", what, why);
}

bool trial_same_row(const struct trial *a, int64_t row_a, const struct trial *b, int64_t row_b)
{
    int64_t wide = a->value_heads * ORACLE_D, block = a->value_heads * ORACLE_HEAD, compared = 0;
    assert_true(a->tokens == b->tokens && a->value_heads == b->value_heads);
    for (int32_t t = 0; t < a->tokens; t++) {
        int64_t token_a = oracle_token(&a->call, row_a, t),
                token_b = oracle_token(&b->call, row_b, t);
        int64_t slot_a = oracle_slot(&a->call, row_a, t), slot_b = oracle_slot(&b->call, row_b, t);
        if ((token_a < 0) != (token_b < 0) || (slot_a < 0) != (slot_b < 0)) return false;
        if (token_a < 0) continue;
        compared++;
        if (memcmp(trial_out(a, token_a), trial_out(b, token_b), (size_t)wide * 2) != 0)
            return false;
        if (slot_a < 0) continue;
        if (memcmp(trial_pool(a, slot_a, 0), trial_pool(b, slot_b, 0), (size_t)block * 2) != 0)
            return false;
    }
    return compared > 0;
}

bool trial_same(const struct trial *a, const struct trial *b)
{
    size_t out = a->buffers[TRIAL_OUT].size, state = a->buffers[TRIAL_STATE].size;
    assert_true(out == b->buffers[TRIAL_OUT].size && state == b->buffers[TRIAL_STATE].size);
    return !memcmp(a->out, b->out, out) && !memcmp(a->pool, b->pool, state);
}
