// SPDX-License-Identifier: Apache-2.0
// One call of the library for a shape: its addresses, and the argument structs over them. At T >= 2
// it is the packed form with cu_seqlens, indices and accepted counts, which is what speculative
// decoding passes.
#ifndef KDA_TOOLS_BENCH_CALL_H
#define KDA_TOOLS_BENCH_CALL_H

#include "tools/bench.h"

struct bench_call {
    struct bench_shape shape;
    // Device addresses. Packed has its q, k and v at q, fused x and both gates of all rows, verify
    // q, k and v of all tokens.
    unsigned long long q, k, v, g, beta;
    unsigned long long weight;  // of fused decode; the norm's is a part of it
    unsigned long long a_log, dt_bias;
    unsigned long long state, out;
    unsigned long long correction, kg;  // caches, or 0
    unsigned long long indices, cu_seqlens, accepted;
    int64_t num_slots;
    uint32_t flags;  // KDA_FLAG_PDL or 0
};

// Elements of a tensor of one call. q and out have room for all that the floor moves in their
// place.
struct bench_counts {
    int64_t q, k, v, g, beta, weight, out, a_log, dt_bias;
    int64_t indices, cu_seqlens, accepted;
};
struct bench_counts bench_counts(const struct bench_shape *shape);

union bench_args {
    kda_recurrent_args recurrent;
    kda_packed_args packed;
    kda_fused_args fused;
    kda_verify_args verify;
    kda_commit_args commit;
};
void bench_args(const struct bench_call *call, union bench_args *out);
kda_status bench_launch(kda_context *context, kda_op op, const union bench_args *args,
                        CUstream stream, kda_error *err);
kda_status bench_plan(kda_context *context, const struct bench_call *call, const char *body,
                      const char *target, kda_plan *out, kda_error *err);

#endif
