// SPDX-License-Identifier: Apache-2.0
// Owns the reference of a window and of its commit, both as loops over the token step's equations.
#include "tools/oracle_verify.h"

#include <math.h>

int64_t oracle_window_slot(const struct oracle_call *call, int64_t n)
{
    const int64_t slot = call->indices ? call->indices[n] : n;
    return slot >= call->null_min && slot < call->num_slots ? slot : -1;
}

void oracle_window(const struct oracle_call *call, int64_t n, int64_t hv, const uint16_t *initial,
                   double *out, double *corrections)
{
    static _Thread_local double state[ORACLE_HEAD];
    for (int i = 0; i < ORACLE_HEAD; i++) state[i] = oracle_value(initial[i]);
    for (int32_t t = 0; t < call->tokens; t++) {
        const int64_t token = oracle_token(call, n, t);
        if (token < 0) return;
        oracle_correct(call, token, hv, state, out + (int64_t)t * ORACLE_D,
                       corrections + (int64_t)t * ORACLE_D);
    }
}

void oracle_commit(const struct oracle_call *call, int64_t hv, int64_t count, const float *w,
                   int64_t w_stride, const uint16_t *kg, int64_t kg_stride, double *state)
{
    const int64_t h = hv / (call->value_heads / call->heads);
    for (int64_t t = 0; t < count; t++) {
        const uint16_t *line = kg + t * kg_stride;
        double k[ORACLE_D], decay[ORACLE_D];
        oracle_normalize(line, 1.0, k);
        for (int c = 0; c < ORACLE_D; c++)
            decay[c] = exp(oracle_log_decay(call, h, c, oracle_value(line[ORACLE_D + c])));
        for (int r = 0; r < ORACLE_D; r++) {
            double *row = state + r * ORACLE_D, correction = (double)w[t * w_stride + r];
            for (int c = 0; c < ORACLE_D; c++) row[c] = row[c] * decay[c] + correction * k[c];
        }
    }
}
