// SPDX-License-Identifier: Apache-2.0
// The float64 reference of decode, and the rule by which results are judged. It knows nothing of
// kernels, bundles or devices: a call is plain host memory. Packed decode is a recurrent call of
// one token whose q, k and v are slices of one row, so one description serves both operators. State
// and arithmetic are never rounded here; what an ideal kernel would store is the bf16 nearest to
// these numbers.
#ifndef KDA_TOOLS_ORACLE_H
#define KDA_TOOLS_ORACLE_H

#include <stdbool.h>
#include <stdint.h>

#include "loader/kda.h"

enum {
    ORACLE_D = 128,
    ORACLE_HEAD = ORACLE_D * ORACLE_D
};  // channels; elements of the state of one head

// A bf16 NaN. Memory that a kernel must not read or must not write holds it.
#define ORACLE_POISON 0xFFC1u

// ----------------------------------------------------------------------------------------- numbers

// Deterministic on every host. Seed by value: `struct oracle_rng rng = {.state = seed}`.
struct oracle_rng {
    uint64_t state;
};
uint64_t oracle_bits(struct oracle_rng *rng);
double oracle_uniform(struct oracle_rng *rng);  // [0, 1)
double oracle_normal(struct oracle_rng *rng);   // mean 0, variance 1

uint16_t oracle_bf16(double x);  // through f32, nearest even both times
double oracle_value(uint16_t bf16);
double oracle_sigmoid(double x);
double oracle_softplus(double x);
void oracle_normalize(const uint16_t *x, double scale, double out[ORACLE_D]);  // epsilon inside

// ------------------------------------------------------------------------------------------- calls

// One call in host memory. Token strides count elements; the channels and heads of a token lie side
// by side.
struct oracle_call {
    kda_gate gate;
    int32_t tokens;              // T
    int64_t rows, tok;           // N; tokens of the packed view
    int64_t heads, value_heads;  // H, HV
    int64_t num_slots;
    const uint16_t *q, *k, *v, *g, *beta;
    int64_t q_stride, k_stride, v_stride, g_stride, beta_stride;
    const float *a_log, *dt_bias;  // gates computed in the kernel only; dt_bias may be NULL: 0
    const int32_t *cu_seqlens;     // [N+1], or NULL: 0, T, 2T, ..
    const int32_t *indices;        // [N,T], or NULL: n*T + t
    const int32_t *accepted;       // [N], or NULL: 1
    bool beta_is_logit;
    double scale, lower_bound;
    int64_t null_min;  // of a verify call: its first live slot
};

// A packed token, -1 if absent; the slot of a checkpoint, -1 if null; the initial slot, -1 if null.
int64_t oracle_token(const struct oracle_call *call, int64_t n, int32_t t);
int64_t oracle_slot(const struct oracle_call *call, int64_t n, int32_t t);
int64_t oracle_start(const struct oracle_call *call, int64_t n);
// Has row n a present token with a live slot?
bool oracle_live(const struct oracle_call *call, int64_t n);

// Of key channel c of query head h, from the gate input g.
double oracle_log_decay(const struct oracle_call *call, int64_t h, int c, double g);

// One present token of one value head: replaces `state` [128][128] and writes `out` [128].
void oracle_step(const struct oracle_call *call, int64_t token, int64_t hv, double *state,
                 double *out);
// The same, and `corrections` [128]: w = beta*(v - S'k).
void oracle_correct(const struct oracle_call *call, int64_t token, int64_t hv, double *state,
                    double *out, double *corrections);

// Value head `hv` of a live row, from `initial` (bf16, or NULL: zero). For every present token t,
// whatever its slot, writes out[t*128 ..] and states[t*128*128 ..].
void oracle_row(const struct oracle_call *call, int64_t n, int64_t hv, const uint16_t *initial,
                double *out, double *states);

// ------------------------------------------------------------------------------------------- judge

#define ORACLE_NORM_LIMIT 2.2e-3  // N1
#define ORACLE_ABSOLUTE 1e-2      // N2: |a-b| <= absolute + relative*|b|
#define ORACLE_RELATIVE 1e-2
#define ORACLE_FLOOR_LIMIT 1.9e-3  // data whose own rounding costs more prove nothing

// Sums over the elements of one tensor. Start from all zero.
struct oracle_error {
    double difference2, reference2, floor2;  // sums of (a-b)^2, b^2, (bf16(b)-b)^2
    double worst;    // max of |a-b| / (absolute + relative*|b|); infinite after a NaN
    double max_abs;  // max of |a-b|
    int64_t count, nonfinite;
};
void oracle_add(struct oracle_error *error, uint16_t got, double want);
// An f32 keeps what a bf16 would round away: |a-b| <= this + relative*|b|.
#define ORACLE_F32_ABSOLUTE 2e-3
void oracle_add_f32(struct oracle_error *error, float got, double want);
// With other bounds than those of N2.
void oracle_add_within(struct oracle_error *error, double got, double want, double absolute,
                       double relative);
void oracle_add_many(struct oracle_error *error, const uint16_t *got, const double *want,
                     int64_t count);
double oracle_norm(const struct oracle_error *error);   // N1
double oracle_floor(const struct oracle_error *error);  // N1 of an ideal kernel
// N1, N2 and finite; true when nothing was added.
bool oracle_within(const struct oracle_error *error);

#endif
