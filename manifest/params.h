// SPDX-License-Identifier: Apache-2.0
// Kernel parameters, one versioned struct per operator family. The loader fills it, the body reads
// it: the generator copies the lines between the markers into every body, so both sides read one
// declaration. Addresses are device addresses; 0 is an omitted array. Strides count elements. A
// changed struct gets a new version and a new name.
#ifndef KDA_MANIFEST_PARAMS_H
#define KDA_MANIFEST_PARAMS_H

#define KDA_RECURRENT_PARAMS_VERSION 1

// clang-format off
// @params begin
// x / d as x * magic >> shift in 64 bits, exact for every x below 2^31: with s = ceil(log2(d)) the
// shift is 31 + s, and the magic ceil(2^shift / d) fits 32 bits.
struct kda_divisor {
    unsigned magic, shift;
};

struct kda_recurrent_params {
    unsigned long long q, k;                    // [tok, H, 128] bf16
    unsigned long long v, g;                    // [tok, HV, 128] bf16
    unsigned long long beta;                    // [tok, HV] bf16
    unsigned long long a_log, dt_bias;          // [H] and [H, 128] f32, or 0 when the gate is precomputed
    unsigned long long state;                   // [num_slots, HV, 128, 128] bf16, key channel fastest
    unsigned long long out;                     // [tok, HV, 128] bf16
    unsigned long long cu_seqlens;              // [rows + 1] i32, or 0: row n owns tokens n*T .. n*T + T - 1
    unsigned long long indices;                 // [rows, T] i32, or 0: slot n*T + t
    unsigned long long accepted;                // [rows] i32, or 0: 1 for every row
    long long q_stride, k_stride;               // token strides
    long long v_stride, g_stride, beta_stride;  // token strides
    long long slot_stride;                      // between two slots of the pool
    long long tok;                              // packed tokens of the call
    int num_slots, rows;                        // slots of the pool; N
    int heads, value_heads;                     // H, HV; HV is a multiple of H
    struct kda_divisor query;                   // head hv reads query head hv / (HV/H)
    int beta_is_logit;                          // 1: beta goes through a sigmoid in the kernel
    float scale, lower_bound;                   // q scale; lower bound of the gate, 0 where it has none
    int reserved;                               // 0
};
// @params end
// clang-format on

static inline struct kda_divisor kda_query_divisor(long long heads, long long value_heads)
{
    const unsigned long long group = (unsigned long long)(value_heads / heads);
    const unsigned shift = 31 + (group > 1 ? 64 - (unsigned)__builtin_clzll(group - 1) : 0);
    const struct kda_divisor divisor = {(unsigned)(((1ull << shift) + group - 1) / group), shift};
    return divisor;
}

#endif
