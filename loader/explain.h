// SPDX-License-Identifier: Apache-2.0
// The words of a refused route: lists made from the bundle's records, appended to a text of fixed
// size.
#ifndef KDA_LOADER_EXPLAIN_H
#define KDA_LOADER_EXPLAIN_H

#include "loader/bundle.h"

// One line that grows until it is full; what does not fit is cut, which kda_fail then shows.
typedef struct kda_text {
    size_t used;
    char data[KDA_ERROR_TEXT + 1];
} kda_text;

void kda_text_add(kda_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

// "CC 10.3 (reported), CUDA 13.0 (overridden), 152 SMs (reported)".
void kda_explain_device(kda_text *text, const kda_device *device);
// "T=3 with gate lower_bound, H=8, HV=8, N=4, state bf16".
void kda_explain_problem(kda_text *text, const kda_problem *problem);
// "{8,12}" or "16": the numbers of a set's bits, times `step`.
void kda_explain_set(kda_text *text, uint32_t set, uint32_t step);
// The names of a mode set.
void kda_explain_modes(kda_text *text, uint32_t set);

// "T=1 precomputed; T=3 lower_bound with H=16, HV=H, N in {1,2,4,8,16}; ..": what the bundle has
// for operator `op`.
void kda_explain_supported(kda_text *text, const kda_bundle *bundle, uint32_t op);
// "sm_100f, sm_100a": the targets of which the bundle holds an image of `body`, or with KDA_NONE of
// any body.
void kda_explain_held(kda_text *text, const kda_bundle *bundle, uint32_t body);
// "10.0, 10.3": the compute capabilities that have routes.
void kda_explain_ccs(kda_text *text, const kda_bundle *bundle);

// 1000*major + 10*minor as two numbers for "CUDA %d.%d".
#define KDA_CUDA_ARGS(version) (int)(version) / 1000, (int)(version) % 1000 / 10

#endif
