// SPDX-License-Identifier: Apache-2.0
// Owns the reference arithmetic: the token step written as its definition, one line per equation,
// and the error sums. No closed form and no reuse between tokens, so that it shares no mistake with
// a kernel.
#include "tools/oracle.h"

#include <math.h>
#include <string.h>

#define L2_EPSILON 1e-6

uint64_t oracle_bits(struct oracle_rng *rng)
{
    uint64_t z = rng->state += 0x9E3779B97F4A7C15u;  // splitmix64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

double oracle_uniform(struct oracle_rng *rng) { return (double)(oracle_bits(rng) >> 11) * 0x1p-53; }

double oracle_normal(struct oracle_rng *rng)
{
    double radius = sqrt(-2.0 * log(1.0 - oracle_uniform(rng)));
    return radius * cos(6.283185307179586 * oracle_uniform(rng));
}

uint16_t oracle_bf16(double x)
{
    float f = (float)x;
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7FFFu + (u >> 16 & 1u)) >> 16);
}

double oracle_value(uint16_t bf16)
{
    uint32_t u = (uint32_t)bf16 << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return (double)f;
}

double oracle_sigmoid(double x) { return x >= 0 ? 1.0 / (1.0 + exp(-x)) : exp(x) / (1.0 + exp(x)); }

double oracle_softplus(double x) { return fmax(x, 0.0) + log1p(exp(-fabs(x))); }

static int64_t live_slot(const struct oracle_call *call, int64_t slot)
{
    return slot >= 0 && slot < call->num_slots ? slot : -1;
}

int64_t oracle_token(const struct oracle_call *call, int64_t n, int32_t t)
{
    if (!call->cu_seqlens) return n * call->tokens + t;
    int64_t first = call->cu_seqlens[n], end = call->cu_seqlens[n + 1];
    return first >= 0 && t < end - first && first + t < call->tok ? first + t : -1;
}

int64_t oracle_slot(const struct oracle_call *call, int64_t n, int32_t t)
{
    int64_t at = n * call->tokens + t;
    return live_slot(call, call->indices ? call->indices[at] : at);
}

int64_t oracle_start(const struct oracle_call *call, int64_t n)
{
    int32_t column = 0;
    if (call->accepted && call->accepted[n] > 1) column = call->accepted[n] - 1;
    if (column > call->tokens - 1) column = call->tokens - 1;
    return oracle_slot(call, n, column);
}

bool oracle_live(const struct oracle_call *call, int64_t n)
{
    for (int32_t t = 0; t < call->tokens; t++)
        if (oracle_token(call, n, t) >= 0 && oracle_slot(call, n, t) >= 0) return true;
    return false;
}

void oracle_normalize(const uint16_t *x, double scale, double out[ORACLE_D])
{
    double sum = 0;
    for (int c = 0; c < ORACLE_D; c++) sum += oracle_value(x[c]) * oracle_value(x[c]);
    double factor = scale / sqrt(sum + L2_EPSILON);
    for (int c = 0; c < ORACLE_D; c++) out[c] = oracle_value(x[c]) * factor;
}

double oracle_log_decay(const struct oracle_call *call, int64_t h, int c, double g)
{
    if (call->gate == KDA_GATE_PRECOMPUTED) return g;
    double bias = call->dt_bias ? (double)call->dt_bias[h * ORACLE_D + c] : 0.0;
    double a = exp((double)call->a_log[h]), x = g + bias;
    if (call->gate == KDA_GATE_LOWER_BOUND) return call->lower_bound * oracle_sigmoid(a * x);
    return -a * oracle_softplus(x);
}

void oracle_correct(const struct oracle_call *call, int64_t token, int64_t hv, double *state,
                    double *out, double *corrections)
{
    int64_t h = hv / (call->value_heads / call->heads);
    const uint16_t *v = call->v + token * call->v_stride + hv * ORACLE_D;
    const uint16_t *g = call->g + token * call->g_stride + hv * ORACLE_D;
    double q[ORACLE_D], k[ORACLE_D], decay[ORACLE_D];
    oracle_normalize(call->q + token * call->q_stride + h * ORACLE_D, call->scale, q);
    oracle_normalize(call->k + token * call->k_stride + h * ORACLE_D, 1.0, k);
    for (int c = 0; c < ORACLE_D; c++)
        decay[c] = exp(oracle_log_decay(call, h, c, oracle_value(g[c])));
    double beta = oracle_value(call->beta[token * call->beta_stride + hv]);
    if (call->beta_is_logit) beta = oracle_sigmoid(beta);

    for (int r = 0; r < ORACLE_D; r++) {
        double *row = state + r * ORACLE_D, predicted = 0, sum = 0;
        for (int c = 0; c < ORACLE_D; c++) predicted += (row[c] *= decay[c]) * k[c];
        double correction = beta * (oracle_value(v[r]) - predicted);
        for (int c = 0; c < ORACLE_D; c++) sum += (row[c] += correction * k[c]) * q[c];
        out[r] = sum;
        corrections[r] = correction;
    }
}

void oracle_step(const struct oracle_call *call, int64_t token, int64_t hv, double *state,
                 double *out)
{
    double corrections[ORACLE_D];
    oracle_correct(call, token, hv, state, out, corrections);
}

void oracle_row(const struct oracle_call *call, int64_t n, int64_t hv, const uint16_t *initial,
                double *out, double *states)
{
    const double *last = NULL;
    for (int32_t t = 0; t < call->tokens; t++) {
        int64_t token = oracle_token(call, n, t);
        if (token < 0) continue;
        double *state = states + (int64_t)t * ORACLE_HEAD;
        for (int i = 0; i < ORACLE_HEAD; i++)
            state[i] = last ? last[i] : initial ? oracle_value(initial[i]) : 0.0;
        oracle_step(call, token, hv, state, out + (int64_t)t * ORACLE_D);
        last = state;
    }
}

void oracle_add_within(struct oracle_error *error, double got, double want, double absolute,
                       double relative)
{
    double difference = fabs(got - want), rounded = oracle_value(oracle_bf16(want)) - want;
    error->count++;
    if (!isfinite(got)) {
        error->nonfinite++;
        error->worst = INFINITY;
    }
    error->difference2 += difference * difference;
    error->reference2 += want * want;
    error->floor2 += rounded * rounded;
    error->worst = fmax(error->worst, difference / (absolute + relative * fabs(want)));
    error->max_abs = fmax(error->max_abs, difference);
}

void oracle_add(struct oracle_error *error, uint16_t got, double want)
{
    oracle_add_within(error, oracle_value(got), want, ORACLE_ABSOLUTE, ORACLE_RELATIVE);
}

void oracle_add_f32(struct oracle_error *error, float got, double want)
{
    oracle_add_within(error, (double)got, want, ORACLE_F32_ABSOLUTE, ORACLE_RELATIVE);
}

void oracle_add_many(struct oracle_error *error, const uint16_t *got, const double *want,
                     int64_t count)
{
    for (int64_t i = 0; i < count; i++) oracle_add(error, got[i], want[i]);
}

static double root(double part2, double whole2)
{
    if (whole2 > 0) return sqrt(part2 / whole2);
    return part2 > 0 ? INFINITY : 0.0;
}

double oracle_norm(const struct oracle_error *error)
{
    return root(error->difference2, error->reference2);
}

double oracle_floor(const struct oracle_error *error)
{
    return root(error->floor2, error->reference2);
}

bool oracle_within(const struct oracle_error *error)
{
    // Written so that a NaN in any sum fails.
    return error->nonfinite == 0 && oracle_norm(error) <= ORACLE_NORM_LIMIT && error->worst <= 1.0;
}
