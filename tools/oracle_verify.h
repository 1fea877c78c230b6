// SPDX-License-Identifier: Apache-2.0
// The float64 reference of frozen verify and commit. A verify is an oracle_call of at most `tokens`
// tokens per row whose `indices` hold one slot per row; its pool is not part of it. Serial, token
// by token: it shares no closed form with a kernel.
#ifndef KDA_TOOLS_ORACLE_VERIFY_H
#define KDA_TOOLS_ORACLE_VERIFY_H

#include "tools/oracle.h"

// Corrections of a cache: |a-b| <= absolute + relative*|b|, and the norm limit of outputs.
#define ORACLE_CORRECTION_ABSOLUTE 3e-2
#define ORACLE_CORRECTION_RELATIVE 2e-2

// The row's slot, -1 if null.
int64_t oracle_window_slot(const struct oracle_call *call, int64_t n);

// Value head `hv` of row n from `initial` [128][128] bf16: for every present token t, out[t*128 ..]
// and corrections[t*128 ..].
void oracle_window(const struct oracle_call *call, int64_t n, int64_t hv, const uint16_t *initial,
                   double *out, double *corrections);

// Folds `count` tokens of a head's lines of the caches, w [128] f32 and k, g [2*128] bf16, into
// `state` [128][128]. Of the call, only the gate and the head counts matter.
void oracle_commit(const struct oracle_call *call, int64_t hv, int64_t count, const float *w,
                   int64_t w_stride, const uint16_t *kg, int64_t kg_stride, double *state);

#endif
