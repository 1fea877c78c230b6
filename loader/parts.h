// SPDX-License-Identifier: Apache-2.0
// What several operations are made of, beyond single tensors: heads, scalars and gate parameters,
// tensors with a token dimension, slots, the pool, and the caches between verify and commit. Each
// rule is here once; when it is asked is the operation's to keep.
#ifndef KDA_LOADER_PARTS_H
#define KDA_LOADER_PARTS_H

#include "loader/tensor.h"

enum { KDA_D = 128, KDA_WINDOW_MAX = 16 };  // K and V; tokens of a window

// ARGUMENT: a reserved word that is not zero, a flag that is not in `known`.
kda_status kda_parts_words(const char *operation, uint32_t reserved32, const uint64_t reserved[4],
                           uint32_t flags, uint32_t known, kda_error *err);
// One extent, and where it was found.
struct kda_extent {
    const char *of;
    uint32_t dim;
    int64_t size;
};
static inline struct kda_extent kda_extent_of(const char *name, const kda_tensor *tensor,
                                              uint32_t dim)
{
    return (struct kda_extent){name, dim, tensor->extent[dim]};
}
// UNSUPPORTED: K or V is not 128.
kda_status kda_parts_head_size(const char *operation, struct kda_extent key,
                               struct kda_extent value, kda_error *err);
// The same of a pool, which ends with [V,K].
static inline kda_status kda_parts_pool_heads(const char *operation, const kda_tensor *pool,
                                              kda_error *err)
{
    return kda_parts_head_size(operation, kda_extent_of("state", pool, 3),
                               kda_extent_of("state", pool, 2), err);
}
// ARGUMENT: not HV >= H >= 1 with HV a multiple of H. `of` and `value_of` say where they are from.
kda_status kda_parts_heads(const char *operation, int64_t heads, const char *of,
                           int64_t value_heads, const char *value_of, kda_error *err);
// Both, of q and v, which end with [H,128] and [HV,128]; writes H and HV. SHAPE: their ranks.
kda_status kda_parts_projections(const char *operation, const kda_tensor *q, const kda_tensor *v,
                                 kda_problem *out, kda_error *err);

struct kda_scalars {
    kda_gate gate;
    float lower_bound, scale;
    int32_t beta_is_logit, num_spec_tokens;
    int32_t least_spec_tokens;  // when they are given
    uint32_t flags;             // KDA_FLAG_*
    bool a_log, dt_bias;        // given
    bool bias_optional;         // even with a gate that the kernel computes
};
// ARGUMENT: a scalar out of its domain; a gate parameter that is missing or extra.
kda_status kda_parts_scalars(const char *operation, const struct kda_scalars *scalars,
                             kda_error *err);
// UNSUPPORTED: a lower bound with a gate that has none.
kda_status kda_parts_bound(const char *operation, kda_gate gate, float lower_bound, kda_error *err);

// How the token tensors of a call lie: [N,T,..], or packed [tok,..].
struct kda_tokens {
    int64_t rows, tokens, total;  // N, T, tok
    uint32_t lead;                // leading extents: 2, or packed 1
    uint32_t dim;                 // the dimension whose stride is the token stride
    const char *total_is;         // packed: what tok must be, in words
};
// SHAPE: [N,T,heads,128] or [tok,heads,128]; without the 128 if the operand has one number per
// head.
kda_status kda_parts_token_shape(const struct kda_call *call, uint32_t i,
                                 const struct kda_tokens *tokens, int64_t heads, bool number,
                                 kda_error *err);
// STRIDE: compact but for a token stride of at least `least` and a multiple of `multiple`, a power
// of two; exactly `least` with a `multiple` of 0. It is a kernel's, so the number of tokens does
// not matter.
kda_status kda_parts_token_stride(const struct kda_call *call, uint32_t i,
                                  const struct kda_tokens *tokens, int64_t least, int64_t multiple,
                                  kda_error *err);

// SHAPE: [num_slots,HV,128,128] with num_slots >= 1.
kda_status kda_parts_pool_shape(const struct kda_call *call, uint32_t i, int64_t value_heads,
                                kda_error *err);
// STRIDE: compact but for a slot stride, a multiple of 8.
kda_status kda_parts_pool_stride(const struct kda_call *call, uint32_t i, int64_t value_heads,
                                 kda_error *err);
// SHAPE: default slots 0 .. count - 1 on a pool with fewer; `product` says what is counted.
kda_status kda_parts_default_slots(const struct kda_call *call, uint32_t pool, int64_t count,
                                   const char *product, kda_error *err);
// SHAPE: slots [N], or default ones.
kda_status kda_parts_row_slots(const struct kda_call *call, uint32_t i, uint32_t pool, int64_t rows,
                               kda_error *err);
// ARGUMENT: the first live slot is below 0.
kda_status kda_parts_null_min(const char *operation, int32_t null_min, kda_error *err);
// SHAPE: [H] and [H,128], where given.
kda_status kda_parts_gate_shapes(const struct kda_call *call, uint32_t a_log, uint32_t dt_bias,
                                 int64_t heads, kda_error *err);

// SHAPE: the correction cache is [num_slots,HV,T_cache,128] for the pool's num_slots and HV, the
// key and gate cache, which is operand `correction` + 1, [num_slots,HV,T_cache,256], and T_cache is
// at least `tokens`.
kda_status kda_parts_cache_shapes(const struct kda_call *call, uint32_t correction, uint32_t pool,
                                  int64_t tokens, kda_error *err);
// STRIDE: 1 inside a token; the others keep tokens apart and are multiples of `multiple`, a power
// of two.
kda_status kda_parts_cache_stride(const struct kda_call *call, uint32_t i, int64_t multiple,
                                  kda_error *err);

// ------------------------------------------------------------------------------------ all at once

// As kda_operand_fits, of a token tensor; any token stride has a `multiple` of 1. Inline, so that
// each operand's constants are folded in. There must be tokens.
__attribute__((always_inline)) static inline bool
kda_parts_tokens_fit(const struct kda_call *call, uint32_t i, const struct kda_tokens *tokens,
                     int64_t heads, bool number, int64_t multiple, struct kda_range *out)
{
    const kda_tensor *const tensor = kda_call_tensor(call, i);
    const int64_t *const extent = tensor->extent, *const stride = tensor->stride;
    const int64_t step = stride[tokens->dim], size = number ? heads : heads * KDA_D;
    const uint32_t lead = tokens->lead, rank = number ? lead + 1 : lead + 2;
    // Below 2^30, so that the products fit 64 bits.
    if (tensor->rank != rank || step < size || step >> 30 ||
        (multiple ? step & (multiple - 1) : step != size))
        return false;
    int64_t wrong = (extent[lead] ^ heads) | (stride[rank - 1] ^ 1);
    if (!number) wrong |= (extent[lead + 1] ^ KDA_D) | (stride[lead] ^ KDA_D);
    if (lead == 1)
        wrong |= extent[0] ^ tokens->total;
    else
        wrong |= (extent[0] ^ tokens->rows) | (extent[1] ^ tokens->tokens) |
                 (tokens->dim && tokens->rows > 1 ? stride[0] ^ tokens->tokens * step
                                                  : stride[!tokens->dim] < 1);
    const uint64_t begin = (uint64_t)(uintptr_t)tensor->data,
                   bytes = (uint64_t)((tokens->total - 1) * step + size) * 2;
    *out = (struct kda_range){begin, begin + bytes};
    return !wrong && !(begin & (call->operands[i].alignment - 1U)) && out->end > begin;
}

// The same of both caches; writes two ranges.
bool kda_parts_caches_fit(const struct kda_call *call, uint32_t correction, int64_t slots,
                          int64_t value_heads, int64_t tokens, struct kda_range *out);

#endif
