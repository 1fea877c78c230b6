// SPDX-License-Identifier: Apache-2.0
// Kernel parameters, one versioned struct per operator family. The loader fills it, the body reads
// it: the generator copies the lines between the markers that name its operator into every body, so
// both sides read one declaration. Addresses are device addresses; 0 is an omitted array. Strides count elements. A
// changed struct gets a new version: a loader refuses a body that takes another one.
#ifndef KDA_MANIFEST_PARAMS_H
#define KDA_MANIFEST_PARAMS_H

// Version and size of the parameters of an operator.
#define KDA_PARAMS_RECURRENT 2, sizeof(struct kda_recurrent_params)
#define KDA_PARAMS_PACKED KDA_PARAMS_RECURRENT
#define KDA_PARAMS_FUSED 1, sizeof(struct kda_fused_params)
#define KDA_PARAMS_VERIFY 3, sizeof(struct kda_verify_params)
#define KDA_PARAMS_COMMIT 1, sizeof(struct kda_commit_params)

// clang-format off
// @params begin RECURRENT PACKED VERIFY COMMIT
// x / d as x * magic >> shift in 64 bits, exact for every x below 2^31: with s = ceil(log2(d)) the
// shift is 31 + s, and the magic ceil(2^shift / d) fits 32 bits.
struct kda_divisor {
    unsigned magic, shift;
};
// @params end

// @params begin RECURRENT PACKED
// In the order of first use: a kernel waits for each line of its parameters that it touches first.
struct kda_recurrent_params {
    int dependent;                              // 1: a dependent launch, the grid before may still run
    int num_slots;                              // slots of the pool
    unsigned long long indices;                 // [rows, T] i32, or 0: slot n*T + t
    unsigned long long cu_seqlens;              // [rows + 1] i32, or 0: row n owns tokens n*T .. n*T + T - 1
    unsigned long long accepted;                // [rows] i32, or 0: 1 for every row
    unsigned long long state;                   // [num_slots, HV, 128, 128] bf16, key channel fastest
    long long slot_stride;                      // between two slots of the pool
    unsigned long long q, k;                    // [tok, H, 128] bf16
    unsigned long long v, g;                    // [tok, HV, 128] bf16
    unsigned long long beta;                    // [tok, HV] bf16
    unsigned long long out;                     // [tok, HV, 128] bf16
    struct kda_divisor query;                   // head hv reads query head hv / (HV/H)
    float scale, lower_bound;                   // q scale; lower bound of the gate, 0 where it has none
    long long q_stride, k_stride;               // token strides
    long long v_stride, g_stride, beta_stride;  // token strides
    int tok, value_heads;                       // packed tokens of the call; HV, a multiple of H
    unsigned long long a_log, dt_bias;          // [H] and [H, 128] f32, or 0 when the gate is precomputed
    int rows, heads;                            // N, H
    int beta_is_logit;                          // 1: beta goes through a sigmoid in the kernel
    int reserved;                               // 0
};
// @params end

// @params begin FUSED
struct kda_fused_params {
    unsigned long long x;                       // [rows, 3, H, 128] bf16: q, k, v before the convolution
    unsigned long long weight;                  // [3, 4, H, 128] f32: q, k, v; tap 3 multiplies x, tap 0 the oldest value
    unsigned long long conv_state;              // [num_slots, 3 taps, 3, H, 128] bf16, tap 0 is the oldest
    unsigned long long raw_gate, raw_beta;      // [rows, H, 128] and [rows, H] bf16
    unsigned long long a_log, dt_bias;          // [H] and [H, 128] f32
    unsigned long long norm_weight;             // [128] f32
    unsigned long long indices;                 // [rows] i32
    unsigned long long state;                   // [num_slots, H, 128, 128] f32 or bf16, key channel fastest
    unsigned long long output_gate, out;        // [rows, H, 128] bf16
    long long x_stride, beta_stride, output_gate_stride;  // between rows
    long long conv_slot_stride, slot_stride;    // between two slots of conv_state and of state
    int num_slots, rows, heads;
    float scale, lower_bound, norm_eps;         // lower bound of the gate, 0 where it has none
};
// @params end

// @params begin VERIFY
struct kda_verify_params {
    unsigned long long indices;                 // [rows] i32, or 0: slot n
    unsigned long long cu_seqlens;              // [rows + 1] i32, or 0: row n owns tokens n*T .. n*T + T - 1
    int tokens;                                 // T_max: a longer row is cut there
    int num_slots, null_min;                    // slots of the pool; the first live slot
    int wide;                                   // 1: all channels of q, k, v and g lie at multiples of 16 bytes
    long long tok;                              // packed tokens of the call
    struct kda_divisor query;                   // head hv reads query head hv / (HV/H)
    unsigned long long state;                   // [num_slots, HV, 128, 128] bf16, key channel fastest, only read
    long long slot_stride;                      // between two slots of the pool
    unsigned long long a_log, dt_bias;          // [H] and [H, 128] f32, or 0; an omitted dt_bias is zero
    unsigned long long q, k;                    // [tok, H, 128] bf16
    unsigned long long v, g;                    // [tok, HV, 128] bf16
    long long q_stride, k_stride;               // token strides
    long long v_stride, g_stride;
    unsigned long long beta;                    // [tok, HV] bf16
    long long beta_stride;
    float scale, lower_bound;                   // q scale; lower bound of the gate, 0 where it has none
    int beta_is_logit;                          // 1: beta goes through a sigmoid in the kernel
    int rows;                                   // N
    unsigned long long out;                     // [tok, HV, 128] bf16
    long long out_stride;
    unsigned long long correction, kg;          // [num_slots, HV, T_cache, 128] f32 and [.., 256] bf16, or both 0
    long long correction_strides[3], kg_strides[3];  // slot, value head, token
    int heads, value_heads;                     // H, HV; HV is a multiple of H
};
// @params end

// @params begin COMMIT
struct kda_commit_params {
    unsigned long long state;                   // [num_slots, HV, 128, 128] bf16, key channel fastest
    unsigned long long correction, kg;          // [num_slots, HV, T_cache, 128] f32 and [.., 256] bf16
    unsigned long long indices;                 // [rows] i32, or 0: slot n
    unsigned long long accepted;                // [rows] i32
    unsigned long long a_log, dt_bias;          // [H] and [H, 128] f32, or 0; an omitted dt_bias is zero
    long long slot_stride;                      // between two slots of the pool
    long long correction_strides[3], kg_strides[3];  // slot, value head, token
    int num_slots, null_min, rows;              // slots of the pool; the first live slot; N
    int tokens;                                 // T_cache
    int heads, value_heads;                     // H, HV; HV is a multiple of H
    struct kda_divisor query;                   // head hv reads query head hv / (HV/H)
    float lower_bound;                          // of the gate, 0 where it has none
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
