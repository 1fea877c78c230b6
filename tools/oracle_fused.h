// SPDX-License-Identifier: Apache-2.0
// The float64 reference of fused decode, over the token step of tools/oracle.h. It rounds where the
// operation rounds: the result of the convolution, and the output before its norm.
#ifndef KDA_TOOLS_ORACLE_FUSED_H
#define KDA_TOOLS_ORACLE_FUSED_H

#include "tools/oracle.h"

enum { ORACLE_PARTS = 3, ORACLE_TAPS = 3 };  // q, k, v; values that a window keeps

// A call in host memory. Strides count elements; the channels and heads of a row lie side by side.
struct oracle_fused {
    kda_gate gate;
    int64_t rows, heads, num_slots;
    const uint16_t *x;  // [N][3][H][128]
    const uint16_t *raw_gate, *raw_beta, *output_gate;
    int64_t x_stride, gate_stride, beta_stride, output_gate_stride;
    const float *weight;  // [3][4][H][128]
    const float *a_log, *dt_bias, *norm_weight;
    const int32_t *indices;
    double lower_bound, norm_eps;
};

// The slot of a row, -1 if null.
int64_t oracle_fused_slot(const struct oracle_fused *call, int64_t row);

// One head of a live row: replaces `window` and `state` [128][128], and writes `out` [128]. A
// window is that of the slot, [3 taps][3][H][128], of which the head's channels are used.
void oracle_fused_step(const struct oracle_fused *call, int64_t row, int64_t head, uint16_t *window,
                       double *state, double *out);

#endif
