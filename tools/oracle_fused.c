// SPDX-License-Identifier: Apache-2.0
// Owns what fused decode puts around the token step: convolution before it, norm and gate after it,
// written as their definitions.
#include "tools/oracle_fused.h"

#include <math.h>

int64_t oracle_fused_slot(const struct oracle_fused *call, int64_t row)
{
    const int64_t slot = call->indices[row];
    return slot > 0 && slot < call->num_slots ? slot : -1;
}

// Channels of one part of a head through the convolution, and the window past them.
static void convolve(const struct oracle_fused *call, const uint16_t *x, int64_t part, int64_t head,
                     uint16_t *window, uint16_t out[ORACLE_D])
{
    const int64_t width = call->heads * ORACLE_D;
    for (int c = 0; c < ORACLE_D; c++) {
        const int64_t channel = head * ORACLE_D + c, at = part * width + channel;
        double sum = 0;
        for (int64_t t = 0; t <= ORACLE_TAPS; t++) {
            uint16_t *const kept = window + t * ORACLE_PARTS * width + at;
            const uint16_t value = t < ORACLE_TAPS ? *kept : x[at];
            sum += oracle_value(value) *
                   (double)call->weight[(part * (ORACLE_TAPS + 1) + t) * width + channel];
            if (t > 0) kept[-ORACLE_PARTS * width] = value;
        }
        out[c] = oracle_bf16(sum * oracle_sigmoid(sum));
    }
}

void oracle_fused_step(const struct oracle_fused *call, int64_t row, int64_t head, uint16_t *window,
                       double *state, double *out)
{
    uint16_t parts[ORACLE_PARTS][ORACLE_D];
    for (int64_t i = 0; i < ORACLE_PARTS; i++)
        convolve(call, call->x + row * call->x_stride, i, head, window, parts[i]);
    const struct oracle_call token = {
        .gate = call->gate,
        .heads = 1,
        .value_heads = 1,
        .q = parts[0],
        .k = parts[1],
        .v = parts[2],
        .g = call->raw_gate + row * call->gate_stride + head * ORACLE_D,
        .beta = call->raw_beta + row * call->beta_stride + head,
        .a_log = call->a_log + head,
        .dt_bias = call->dt_bias + head * ORACLE_D,
        .beta_is_logit = true,
        .scale = 0.08838834764831845,  // 128^-0.5
        .lower_bound = call->lower_bound,
    };
    oracle_step(&token, 0, 0, state, out);

    double square = 0;
    for (int c = 0; c < ORACLE_D; c++) {
        out[c] = oracle_value(oracle_bf16(out[c]));
        square += out[c] * out[c];
    }
    // Zeros stay zeros, also without an epsilon.
    const double norm = square > 0 ? 1.0 / sqrt(square / ORACLE_D + call->norm_eps) : 0.0;
    const uint16_t *const gate = call->output_gate + row * call->output_gate_stride;
    for (int c = 0; c < ORACLE_D; c++)
        out[c] *= norm * (double)call->norm_weight[c] *
                  oracle_sigmoid(oracle_value(gate[head * ORACLE_D + c]));
}
