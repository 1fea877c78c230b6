// SPDX-License-Identifier: Apache-2.0
// Owns the rules that parts.h lists, and the wording of their messages. Knows no operation and no
// accepted combinations. Invariant: a caller's number is used only after the check that bounds it.
#include "loader/parts.h"

#include <inttypes.h>
#include <math.h>

#include "loader/bundle.h"
#include "loader/error.h"

// ------------------------------------------------------------------------------ heads and scalars

kda_status kda_parts_words(const char *operation, uint32_t reserved32, const uint64_t reserved[4],
                           uint32_t flags, uint32_t known, kda_error *err)
{
    if (reserved32)
        return kda_fail(err, KDA_E_ARGUMENT, "%s: reserved32 is 0x%x, must be 0", operation,
                        reserved32);
    const kda_status status = kda_check_reserved(operation, "", reserved, 4, err);
    if (status || !(flags & ~known)) return status;
    return kda_fail(err, KDA_E_ARGUMENT, "%s: flags is 0x%x, %s 0x%x", operation, flags,
                    known & (known - 1) ? "known bits are" : "the known bit is", known);
}

kda_status kda_parts_head_size(const char *operation, struct kda_extent key,
                               struct kda_extent value, kda_error *err)
{
    if (key.size == KDA_D && value.size == KDA_D) return KDA_OK;
    return kda_fail(err, KDA_E_UNSUPPORTED,
                    "%s: does not support K = %" PRId64 ", V = %" PRId64
                    "; supported: K = V = %d, shape[%u] of %s and shape[%u] of %s",
                    operation, key.size, value.size, KDA_D, key.dim, key.of, value.dim, value.of);
}

kda_status kda_parts_heads(const char *operation, int64_t heads, const char *of,
                           int64_t value_heads, const char *value_of, kda_error *err)
{
    if (heads >= 1 && value_heads >= heads && value_heads % heads == 0) return KDA_OK;
    return kda_fail(err, KDA_E_ARGUMENT,
                    "%s: H = %" PRId64 " of %s and HV = %" PRId64
                    " of %s, must be HV >= H >= 1 with HV a multiple of H",
                    operation, heads, of, value_heads, value_of);
}

kda_status kda_parts_projections(const char *operation, const kda_tensor *q, const kda_tensor *v,
                                 kda_problem *out, kda_error *err)
{
    if (q->rank < 3 || v->rank < 3)
        return kda_fail(err, KDA_E_SHAPE, "%s: %s has rank %u, must be 3 or 4", operation,
                        q->rank < 3 ? "q" : "v", q->rank < 3 ? q->rank : v->rank);
    const kda_status status = kda_parts_head_size(operation, kda_extent_of("q", q, q->rank - 1),
                                                  kda_extent_of("v", v, v->rank - 1), err);
    if (status != KDA_OK) return status;
    out->heads = q->extent[q->rank - 2];
    out->value_heads = v->extent[v->rank - 2];
    return kda_parts_heads(operation, out->heads, "q", out->value_heads, "v", err);
}

static kda_status check_gate(const char *operation, const struct kda_scalars *scalars,
                             kda_error *err)
{
    const kda_gate gate = scalars->gate;
    const bool in_kernel = gate == KDA_GATE_LOWER_BOUND || gate == KDA_GATE_SOFTPLUS;
    const struct {
        const char *name;
        bool given, optional;
    } parameters[] = {{"A_log", scalars->a_log, false},
                      {"dt_bias", scalars->dt_bias, scalars->bias_optional}};
    for (size_t i = 0; i < sizeof(parameters) / sizeof(parameters[0]); i++) {
        if (in_kernel && !parameters[i].given && !parameters[i].optional)
            return kda_fail(err, KDA_E_ARGUMENT,
                            "%s: %s is missing, the %s gate is computed in the kernel and needs it",
                            operation, parameters[i].name, kda_gate_name(gate));
        if (gate == KDA_GATE_PRECOMPUTED && parameters[i].given)
            return kda_fail(err, KDA_E_ARGUMENT,
                            "%s: %s is extra, must be omitted with the precomputed gate", operation,
                            parameters[i].name);
    }
    const float bound = scalars->lower_bound;
    if (!isfinite(bound) || bound > 0)
        return kda_fail(err, KDA_E_ARGUMENT,
                        "%s: lower_bound is %g, must be finite and below 0 (0 stands for none)",
                        operation, (double)bound);
    if (gate == KDA_GATE_LOWER_BOUND && bound >= 0)
        return kda_fail(err, KDA_E_ARGUMENT,
                        "%s: lower_bound is missing (%g), must be below 0 with its gate", operation,
                        (double)bound);
    if (gate == KDA_GATE_PRECOMPUTED && bound < 0)
        return kda_fail(err, KDA_E_ARGUMENT,
                        "%s: lower_bound %g is extra, must be 0 with the precomputed gate",
                        operation, (double)bound);
    return KDA_OK;
}

kda_status kda_parts_scalars(const char *operation, const struct kda_scalars *scalars,
                             kda_error *err)
{
    if (!isfinite(scalars->scale))
        return kda_fail(err, KDA_E_ARGUMENT, "%s: scale is %g, must be finite", operation,
                        (double)scalars->scale);
    if (scalars->beta_is_logit != 0 && scalars->beta_is_logit != 1)
        return kda_fail(err, KDA_E_ARGUMENT, "%s: beta_is_logit is %d, must be 0 or 1", operation,
                        scalars->beta_is_logit);
    const bool speculative = scalars->flags & KDA_FLAG_SPECULATIVE;
    if (speculative && scalars->num_spec_tokens < scalars->least_spec_tokens)
        return kda_fail(err, KDA_E_ARGUMENT, "%s: num_spec_tokens is %d, must be >= %d when given",
                        operation, scalars->num_spec_tokens, scalars->least_spec_tokens);
    if (!speculative && scalars->num_spec_tokens)
        return kda_fail(err, KDA_E_ARGUMENT,
                        "%s: num_spec_tokens is %d, must be 0 without KDA_FLAG_SPECULATIVE",
                        operation, scalars->num_spec_tokens);
    return check_gate(operation, scalars, err);
}

kda_status kda_parts_bound(const char *operation, kda_gate gate, float lower_bound, kda_error *err)
{
    if (gate == KDA_GATE_LOWER_BOUND || !(lower_bound < 0)) return KDA_OK;
    return kda_fail(err, KDA_E_UNSUPPORTED,
                    "%s: does not support lower_bound = %g with the %s gate; supported: 0",
                    operation, (double)lower_bound, kda_gate_name(gate));
}

// ------------------------------------------------------------------------------------------ tokens

kda_status kda_parts_token_shape(const struct kda_call *call, uint32_t i,
                                 const struct kda_tokens *tokens, int64_t heads, bool number,
                                 kda_error *err)
{
    const bool packed = tokens->lead == 1;
    const int64_t extents[2][4] = {{tokens->rows, tokens->tokens, heads, KDA_D},
                                   {tokens->total, heads, KDA_D}};
    return kda_operand_shape(call, i, tokens->lead + (number ? 1 : 2), extents[packed],
                             packed ? tokens->total_is : "", err);
}

kda_status kda_parts_token_stride(const struct kda_call *call, uint32_t i,
                                  const struct kda_tokens *tokens, int64_t least, int64_t multiple,
                                  kda_error *err)
{
    kda_status status = kda_operand_compact(call, i, tokens->lead, err);
    if (status != KDA_OK) return status;
    status = multiple ? kda_operand_pitch(call, i, tokens->dim, least, multiple, err)
                      : kda_operand_stride(call, i, tokens->dim, least, err);
    if (status != KDA_OK || tokens->dim == 0 || tokens->rows <= 1) return status;
    // Rows follow each other as tokens do. A byte range of two rows and more bounds the product.
    const int64_t *const stride = kda_call_tensor(call, i)->stride,
                         row = tokens->tokens * stride[1];
    if (stride[0] == row) return KDA_OK;
    return kda_fail(err, KDA_E_STRIDE,
                    "%s: %s stride[0] is %" PRId64 ", must be T*stride[1] = %" PRId64,
                    call->operation, call->operands[i].name, stride[0], row);
}

// -------------------------------------------------------------------------------- pool and caches

kda_status kda_parts_pool_shape(const struct kda_call *call, uint32_t i, int64_t value_heads,
                                kda_error *err)
{
    const int64_t slots = kda_call_tensor(call, i)->extent[0];
    if (slots < 1)
        return kda_fail(err, KDA_E_SHAPE,
                        "%s: %s shape[0] (num_slots) is %" PRId64 ", must be at least 1",
                        call->operation, call->operands[i].name, slots);
    return kda_operand_shape(call, i, 4, (const int64_t[]){slots, value_heads, KDA_D, KDA_D}, "",
                             err);
}

kda_status kda_parts_pool_stride(const struct kda_call *call, uint32_t i, int64_t value_heads,
                                 kda_error *err)
{
    const kda_status status = kda_operand_compact(call, i, 1, err);
    return status == KDA_OK ? kda_operand_pitch(call, i, 0, value_heads * KDA_D * KDA_D, 8, err)
                            : status;
}

kda_status kda_parts_default_slots(const struct kda_call *call, uint32_t pool, int64_t count,
                                   const char *product, kda_error *err)
{
    const int64_t slots = kda_call_tensor(call, pool)->extent[0];
    if (slots >= count) return KDA_OK;
    return kda_fail(err, KDA_E_SHAPE,
                    "%s: %s has num_slots = %" PRId64
                    ", default indices need at least %s = %" PRId64,
                    call->operation, call->operands[pool].name, slots, product, count);
}

kda_status kda_parts_row_slots(const struct kda_call *call, uint32_t i, uint32_t pool, int64_t rows,
                               kda_error *err)
{
    return kda_tensor_given(kda_call_tensor(call, i))
               ? kda_operand_shape(call, i, 1, (const int64_t[]){rows}, "shape[0] is N", err)
               : kda_parts_default_slots(call, pool, rows, "N", err);
}

kda_status kda_parts_null_min(const char *operation, int32_t null_min, kda_error *err)
{
    if (null_min >= 0) return KDA_OK;
    return kda_fail(err, KDA_E_ARGUMENT, "%s: null_min is %d, must be at least 0", operation,
                    null_min);
}

kda_status kda_parts_gate_shapes(const struct kda_call *call, uint32_t a_log, uint32_t dt_bias,
                                 int64_t heads, kda_error *err)
{
    const int64_t extents[2] = {heads, KDA_D};
    kda_status status = KDA_OK;
    if (kda_tensor_given(kda_call_tensor(call, a_log)))
        status = kda_operand_shape(call, a_log, 1, extents, "shape[0] is H", err);
    if (status == KDA_OK && kda_tensor_given(kda_call_tensor(call, dt_bias)))
        status = kda_operand_shape(call, dt_bias, 2, extents, "shape[0] is H", err);
    return status;
}

kda_status kda_parts_cache_shapes(const struct kda_call *call, uint32_t correction, uint32_t pool,
                                  int64_t tokens, kda_error *err)
{
    const kda_tensor *const cache = kda_call_tensor(call, correction);
    const int64_t *const state = kda_call_tensor(call, pool)->extent, held = cache->extent[2];
    if (cache->rank == 4 && held < tokens)
        return kda_fail(err, KDA_E_SHAPE,
                        "%s: %s shape[2] (T_cache) is %" PRId64 ", must be at least T = %" PRId64,
                        call->operation, call->operands[correction].name, held, tokens);
    kda_status status = KDA_OK;
    for (uint32_t i = 0; i < 2 && status == KDA_OK; i++)
        status = kda_operand_shape(call, correction + i, 4,
                                   (const int64_t[]){state[0], state[1], held, (i + 1) * KDA_D},
                                   "num_slots and HV of state, one T_cache", err);
    return status;
}

kda_status kda_parts_cache_stride(const struct kda_call *call, uint32_t i, int64_t multiple,
                                  kda_error *err)
{
    kda_status status = kda_operand_compact(call, i, 3, err);
    for (uint32_t dim = 0; dim < 3 && status == KDA_OK; dim++)
        status =
            kda_operand_pitch(call, i, dim, kda_call_tensor(call, i)->extent[3], multiple, err);
    return status;
}

bool kda_parts_caches_fit(const struct kda_call *call, uint32_t correction, int64_t slots,
                          int64_t value_heads, int64_t tokens, struct kda_range *out)
{
    const int64_t held = kda_call_tensor(call, correction)->extent[2];
    bool fit = held >= tokens && held <= INT32_MAX;
    for (uint32_t i = 0; i < 2 && fit; i++) {
        const kda_tensor *const cache = kda_call_tensor(call, correction + i);
        const int64_t *const extent = cache->extent, *const stride = cache->stride;
        const int64_t width = (i + 1) * KDA_D, steps = stride[0] | stride[1] | stride[2];
        const uint64_t begin = (uint64_t)(uintptr_t)cache->data;
        // Below 2^28, so that three products with counts below 2^31 fit 64 bits, in bytes too.
        fit = cache->rank == 4 && extent[0] == slots && extent[1] == value_heads &&
              extent[2] == held && extent[3] == width && stride[3] == 1 && stride[0] >= width &&
              stride[1] >= width && stride[2] >= width && !(steps >> 28) && (i || !(steps & 3)) &&
              !(begin & (call->operands[correction + i].alignment - 1U));
        if (!fit) break;
        const int64_t span = (slots - 1) * stride[0] + (value_heads - 1) * stride[1] +
                             (held - 1) * stride[2] + width;
        out[i] = (struct kda_range){begin, begin + (uint64_t)span * (i ? 2 : 4)};
        fit = out[i].end > begin;
    }
    return fit;
}
