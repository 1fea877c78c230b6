// SPDX-License-Identifier: Apache-2.0
// Owns how a shape becomes arguments. It allocates nothing and launches nothing.
#include "tools/bench_call.h"

enum { D = 128 };

struct bench_counts bench_counts(const struct bench_shape *shape)
{
    const int64_t tok = shape->rows * shape->tokens, narrow = tok * shape->heads * D,
                  wide = tok * shape->value_heads * D;
    const bool packed = shape->kind->op == KDA_OP_PACKED;
    return (struct bench_counts){
        .q = packed ? 3 * narrow : narrow,
        .k = packed ? 0 : narrow,
        .v = packed ? 0 : wide,
        .g = wide,
        .beta = tok * shape->value_heads,
        .out = wide,
        .a_log = shape->heads,
        .dt_bias = shape->heads * D,
        .indices = tok,
        .cu_seqlens = shape->rows + 1,
        .accepted = shape->rows,
    };
}

static kda_tensor view(unsigned long long address, kda_dtype dtype, uint32_t rank, int64_t a,
                       int64_t b, int64_t c, int64_t d)
{
    kda_tensor result = {
        .data = (void *)(uintptr_t)address, .dtype = dtype, .rank = rank, .extent = {a, b, c, d}};
    int64_t stride = 1;
    for (uint32_t i = rank; i-- > 0;) {
        result.stride[i] = stride;
        stride *= result.extent[i];
    }
    return result;
}

// [tok, heads, 128], or [N, 1, heads, 128] where the call has one token per row.
static kda_tensor tokens_view(const struct bench_shape *shape, unsigned long long address,
                              int64_t heads)
{
    if (shape->tokens == 1) return view(address, KDA_BF16, 4, shape->rows, 1, heads, D);
    return view(address, KDA_BF16, 3, shape->rows * shape->tokens, heads, D, 0);
}

static void pack_args(const struct bench_call *call, kda_packed_args *out)
{
    const int64_t n = call->shape.rows, h = call->shape.heads;
    *out = (kda_packed_args){
        .mixed_qkv = view(call->q, KDA_BF16, 2, n, 3 * h * D, 0, 0),
        .raw_gate = view(call->g, KDA_BF16, 2, n, h * D, 0, 0),
        .raw_beta = view(call->beta, KDA_BF16, 2, n, h, 0, 0),
        .a_log = view(call->a_log, KDA_F32, 1, h, 0, 0, 0),
        .dt_bias = view(call->dt_bias, KDA_F32, 1, h * D, 0, 0, 0),
        .state = view(call->state, KDA_BF16, 4, call->num_slots, h, D, D),
        .state_indices = view(call->indices, KDA_I32, 1, n, 0, 0, 0),
        .out = view(call->out, KDA_BF16, 4, n, 1, h, D),
        .flags = call->flags,
    };
}

void bench_args(const struct bench_call *call, union bench_args *out)
{
    const struct bench_shape *shape = &call->shape;
    if (shape->kind->op == KDA_OP_PACKED) {
        pack_args(call, &out->packed);
        return;
    }
    const int64_t n = shape->rows, t = shape->tokens, h = shape->heads, hv = shape->value_heads;
    const kda_gate gate = shape->kind->gate;
    kda_recurrent_args args = {
        .q = tokens_view(shape, call->q, h),
        .k = tokens_view(shape, call->k, h),
        .v = tokens_view(shape, call->v, hv),
        .g = tokens_view(shape, call->g, hv),
        .beta = t == 1 ? view(call->beta, KDA_BF16, 3, n, 1, hv, 0)
                       : view(call->beta, KDA_BF16, 2, n * t, hv, 0, 0),
        .state = view(call->state, KDA_BF16, 4, call->num_slots, hv, D, D),
        .out = tokens_view(shape, call->out, hv),
        .ssm_state_indices = view(call->indices, KDA_I32, t > 1 ? 2 : 1, n, t, 0, 0),
        .gate = gate,
        .scale = 0.08838834764831845f,  // 128^-0.5
        .lower_bound = gate == KDA_GATE_LOWER_BOUND ? -5.0f : 0.0f,
        .flags = call->flags,
    };
    if (gate != KDA_GATE_PRECOMPUTED) {
        args.a_log = view(call->a_log, KDA_F32, 1, h, 0, 0, 0);
        args.dt_bias = view(call->dt_bias, KDA_F32, 1, h * D, 0, 0, 0);
    }
    if (t > 1) {
        args.cu_seqlens = view(call->cu_seqlens, KDA_I32, 1, n + 1, 0, 0, 0);
        args.num_accepted_tokens = view(call->accepted, KDA_I32, 1, n, 0, 0, 0);
        args.num_spec_tokens = (int32_t)t - 1;
        args.flags |= KDA_FLAG_SPECULATIVE;
    }
    out->recurrent = args;
}

kda_status bench_plan(kda_context *context, const struct bench_call *call, const char *body,
                      const char *target, kda_plan *out, kda_error *err)
{
    union bench_args args;
    bench_args(call, &args);
    return call->shape.kind->op == KDA_OP_PACKED
               ? kda_packed_plan(context, &args.packed, body, target, out, err)
               : kda_recurrent_plan(context, &args.recurrent, body, target, out, err);
}
