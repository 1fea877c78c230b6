// SPDX-License-Identifier: Apache-2.0
// Owns how a shape becomes arguments. It allocates nothing and launches nothing.
#include "tools/bench_call.h"

enum { D = 128 };

static int64_t at_least(int64_t count, size_t bytes)
{
    const int64_t wanted = (int64_t)(bytes / 2);
    return count > wanted ? count : wanted;
}

struct bench_counts bench_counts(const struct bench_shape *shape)
{
    const int64_t tok = shape->rows * shape->tokens, narrow = tok * shape->heads * D,
                  wide = tok * shape->value_heads * D;
    const size_t heads = (size_t)(shape->rows * shape->value_heads);
    struct bench_counts counts = {
        .beta = tok * shape->value_heads,
        .out = wide,
        .a_log = shape->heads,
        .dt_bias = shape->heads * D,
        .indices = shape->rows * bench_row_slots(shape),
        .cu_seqlens = shape->rows + 1,
        .accepted = shape->rows,
    };
    switch (shape->kind->op) {
    case KDA_OP_FUSED:
        counts.q = 5 * narrow;
        counts.weight = 12 * shape->heads * D;
        break;
    case KDA_OP_PACKED:
        counts.q = 3 * narrow;
        counts.g = wide;
        break;
    case KDA_OP_VERIFY:
        counts.q = 2 * narrow + wide;
        counts.g = wide;
        break;
    case KDA_OP_COMMIT:
        counts.beta = counts.out = 0;
        break;
    default:
        counts.q = narrow;
        counts.k = narrow;
        counts.v = counts.g = wide;
    }
    counts.q = at_least(counts.q, heads * bench_read_bytes(shape));
    counts.out = at_least(counts.out, heads * bench_written_bytes(shape));
    return counts;
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

static void fused_args(const struct bench_call *call, kda_fused_args *out)
{
    const struct bench_shape *shape = &call->shape;
    const int64_t n = shape->rows, h = shape->heads, width = h * D;
    const int64_t page = (int64_t)bench_slot_bytes(shape);
    const unsigned long long gate = (unsigned long long)(n * width);  // elements
    *out = (kda_fused_args){
        .x = view(call->q, KDA_BF16, 2, n, 3 * width, 0, 0),
        .weight = view(call->weight, KDA_F32, 3, 3, 4, width, 0),
        .conv_state = view(call->state, KDA_BF16, 3, call->num_slots, 3 * width, 3, 0),
        .raw_gate = view(call->q + 2 * 3 * gate, KDA_BF16, 4, 1, n, h, D),
        .raw_beta = view(call->beta, KDA_BF16, 3, 1, n, h, 0),
        .a_log = view(call->a_log, KDA_F32, 1, h, 0, 0, 0),
        .dt_bias = view(call->dt_bias, KDA_F32, 1, width, 0, 0, 0),
        .state_indices = view(call->indices, KDA_I32, 1, n, 0, 0, 0),
        .state = view(call->state + bench_state_offset(shape), shape->kind->state, 4,
                      call->num_slots, h, D, D),
        .output_gate = view(call->q + 2 * 4 * gate, KDA_BF16, 3, n, h, D, 0),
        .norm_weight = view(call->weight, KDA_F32, 1, D, 0, 0, 0),
        .out = view(call->out, KDA_BF16, 4, 1, n, h, D),
        .gate = shape->kind->gate,
        .mode = shape->kind->mode,
        .lower_bound = shape->kind->gate == KDA_GATE_LOWER_BOUND ? -5.0f : 0.0f,
        .norm_eps = 1e-5f,
        .flags = call->flags,
    };
    out->conv_state.stride[0] = page / 2;
    out->conv_state.stride[1] = 1;
    out->conv_state.stride[2] = 3 * width;
    out->state.stride[0] = page / (shape->kind->state == KDA_F32 ? 4 : 2);
}

static const float SCALE = 0.08838834764831845f;  // 128^-0.5

static float lower_bound(const struct bench_shape *shape)
{
    return shape->kind->gate == KDA_GATE_LOWER_BOUND ? -5.0f : 0.0f;
}

static void window_args(const struct bench_call *call, kda_verify_args *out)
{
    const struct bench_shape *shape = &call->shape;
    const int64_t n = shape->rows, t = shape->tokens, h = shape->heads, hv = shape->value_heads;
    const unsigned long long narrow = 2ull * (unsigned long long)(n * t * h * D);
    *out = (kda_verify_args){
        .q = view(call->q, KDA_BF16, 3, n * t, h, D, 0),
        .k = view(call->q + narrow, KDA_BF16, 3, n * t, h, D, 0),
        .v = view(call->q + 2 * narrow, KDA_BF16, 3, n * t, hv, D, 0),
        .g = view(call->g, KDA_BF16, 3, n * t, hv, D, 0),
        .beta = view(call->beta, KDA_BF16, 2, n * t, hv, 0, 0),
        .state = view(call->state, KDA_BF16, 4, call->num_slots, hv, D, D),
        .out = view(call->out, KDA_BF16, 3, n * t, hv, D, 0),
        .ssm_state_indices = view(call->indices, KDA_I32, 1, n, 0, 0, 0),
        .cu_seqlens = view(call->cu_seqlens, KDA_I32, 1, n + 1, 0, 0, 0),
        .gate = shape->kind->gate,
        .num_spec_tokens = (int32_t)t - 1,
        .scale = SCALE,
        .lower_bound = lower_bound(shape),
        .flags = call->flags | KDA_FLAG_SPECULATIVE,
    };
    if (shape->kind->gate != KDA_GATE_PRECOMPUTED) {
        out->a_log = view(call->a_log, KDA_F32, 1, h, 0, 0, 0);
        out->dt_bias = view(call->dt_bias, KDA_F32, 2, h, D, 0, 0);
    }
    if (shape->kind->caches) {
        out->correction_cache = view(call->correction, KDA_F32, 4, call->num_slots, hv, t, D);
        out->kg_cache = view(call->kg, KDA_BF16, 4, call->num_slots, hv, t, 2 * D);
    }
}

static void commit_args(const struct bench_call *call, kda_commit_args *out)
{
    kda_verify_args window;
    window_args(call, &window);
    *out = (kda_commit_args){
        .state = window.state,
        .correction_cache = window.correction_cache,
        .kg_cache = window.kg_cache,
        .ssm_state_indices = window.ssm_state_indices,
        .num_accepted_tokens = view(call->accepted, KDA_I32, 1, call->shape.rows, 0, 0, 0),
        .a_log = window.a_log,
        .dt_bias = window.dt_bias,
        .gate = window.gate,
        .heads = (int32_t)call->shape.heads,
        .lower_bound = window.lower_bound,
        .flags = call->flags,
    };
}

static void recurrent_args(const struct bench_call *call, kda_recurrent_args *out)
{
    const struct bench_shape *shape = &call->shape;
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
        .scale = SCALE,
        .lower_bound = lower_bound(shape),
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
    *out = args;
}

void bench_args(const struct bench_call *call, union bench_args *out)
{
    switch (call->shape.kind->op) {
    case KDA_OP_PACKED:
        pack_args(call, &out->packed);
        break;
    case KDA_OP_FUSED:
        fused_args(call, &out->fused);
        break;
    case KDA_OP_VERIFY:
        window_args(call, &out->verify);
        break;
    case KDA_OP_COMMIT:
        commit_args(call, &out->commit);
        break;
    default:
        recurrent_args(call, &out->recurrent);
    }
}

kda_status bench_launch(kda_context *context, kda_op op, const union bench_args *args,
                        CUstream stream, kda_error *err)
{
    switch (op) {
    case KDA_OP_PACKED:
        return kda_packed(context, &args->packed, stream, err);
    case KDA_OP_FUSED:
        return kda_fused(context, &args->fused, stream, err);
    case KDA_OP_VERIFY:
        return kda_verify(context, &args->verify, stream, err);
    case KDA_OP_COMMIT:
        return kda_commit(context, &args->commit, stream, err);
    default:
        return kda_recurrent(context, &args->recurrent, stream, err);
    }
}

kda_status bench_plan(kda_context *context, const struct bench_call *call, const char *body,
                      const char *target, kda_plan *out, kda_error *err)
{
    union bench_args args;
    bench_args(call, &args);
    switch (call->shape.kind->op) {
    case KDA_OP_PACKED:
        return kda_packed_plan(context, &args.packed, body, target, out, err);
    case KDA_OP_FUSED:
        return kda_fused_plan(context, &args.fused, body, target, out, err);
    case KDA_OP_VERIFY:
        return kda_verify_plan(context, &args.verify, body, target, out, err);
    case KDA_OP_COMMIT:
        return kda_commit_plan(context, &args.commit, body, target, out, err);
    default:
        return kda_recurrent_plan(context, &args.recurrent, body, target, out, err);
    }
}
