// SPDX-License-Identifier: Apache-2.0
// Owns recurrent decode: its operands, what their extents, strides and addresses may be, and the
// parameters that its bodies take. What the call is has been decided by form.c. Invariant: once the
// limits have passed, every product of N, T, H, HV and 128*128 fits 64 bits.
#include <inttypes.h>

#include "loader/error.h"
#include "loader/form.h"
#include "loader/launch.h"
#include "loader/route.h"

enum { Q, K, V, G, BETA, A_LOG, DT_BIAS, STATE, OUT, INDICES, CU_SEQLENS, ACCEPTED, OPERANDS };
_Static_assert(OPERANDS <= KDA_MAX_OPERANDS, "operands");

#define AT(field) offsetof(kda_recurrent_args, field)
static const struct kda_operand operands[OPERANDS] = {
    [Q] = {"q", AT(q), KDA_BF16, 8, false, false},
    [K] = {"k", AT(k), KDA_BF16, 8, false, false},
    [V] = {"v", AT(v), KDA_BF16, 2, false, false},
    [G] = {"g", AT(g), KDA_BF16, 8, false, false},
    [BETA] = {"beta", AT(beta), KDA_BF16, 2, false, false},
    [A_LOG] = {"A_log", AT(a_log), KDA_F32, 4, true, false},
    [DT_BIAS] = {"dt_bias", AT(dt_bias), KDA_F32, 4, true, false},
    [STATE] = {"state", AT(state), KDA_BF16, 16, false, true},
    [OUT] = {"out", AT(out), KDA_BF16, 2, false, true},
    [INDICES] = {"ssm_state_indices", AT(ssm_state_indices), KDA_I32, 4, true, false},
    [CU_SEQLENS] = {"cu_seqlens", AT(cu_seqlens), KDA_I32, 4, true, false},
    [ACCEPTED] = {"num_accepted_tokens", AT(num_accepted_tokens), KDA_I32, 4, true, false},
};
#undef AT

// ------------------------------------------------------------------------------------------ shapes

static kda_status check_shapes(const struct kda_form *form, kda_error *err)
{
    const struct kda_call *const call = &form->call;
    const int64_t rows = form->problem.rows, heads = form->problem.heads,
                  value_heads = form->problem.value_heads;
    const struct kda_tokens *const layout = &form->layout;
    kda_status status = KDA_OK;
    for (uint32_t i = Q; i <= OUT && status == KDA_OK; i++) {
        if (i > BETA && i < OUT) continue;
        status = kda_parts_token_shape(call, i, layout, i == Q || i == K ? heads : value_heads,
                                       i == BETA, err);
    }
    if (status == KDA_OK) status = kda_parts_pool_shape(call, STATE, value_heads, err);
    if (status != KDA_OK) return status;

    const kda_tensor *const indices = kda_call_tensor(call, INDICES);
    if (kda_tensor_given(indices)) {
        const bool one = layout->tokens == 1;
        status = kda_operand_shape(
            call, INDICES, one && indices->rank == 1 ? 1 : 2,
            (const int64_t[]){rows, layout->tokens},
            one ? "shape[0] is N (1D or 2D)" : "2D with shape[0] = N, shape[1] = T", err);
    } else {
        status = kda_parts_default_slots(call, STATE, layout->total, "N*T", err);
    }
    if (status != KDA_OK) return status;
    if (kda_tensor_given(kda_call_tensor(call, CU_SEQLENS))) {
        status = kda_operand_shape(call, CU_SEQLENS, 1, (const int64_t[]){rows + 1}, "N+1", err);
        if (status != KDA_OK) return status;
    }
    if (kda_tensor_given(kda_call_tensor(call, ACCEPTED))) {
        status = kda_operand_shape(call, ACCEPTED, 1, (const int64_t[]){rows}, "N", err);
        if (status != KDA_OK) return status;
    }
    if (!kda_tensor_given(kda_call_tensor(call, A_LOG))) return KDA_OK;
    status = kda_operand_least(call, A_LOG, heads, err);
    return status == KDA_OK ? kda_operand_least(call, DT_BIAS, heads * KDA_D, err) : status;
}

// ----------------------------------------------------------------------------------------- strides

static kda_status check_strides(const struct kda_form *form, kda_error *err)
{
    const struct kda_call *const call = &form->call;
    const int64_t keys = form->problem.heads * KDA_D, values = form->problem.value_heads;
    const bool free_strides = form->body_flags & KDA_BODY_TOKEN_STRIDES;
    kda_status status = KDA_OK;
    for (uint32_t i = 0; i < OPERANDS && status == KDA_OK; i++) {
        if (!kda_tensor_given(kda_call_tensor(call, i))) continue;
        if (i <= BETA) {
            const int64_t width = i == Q || i == K ? keys : i == BETA ? values : values * KDA_D;
            const int64_t multiple = i == G ? 4 : !free_strides ? 0 : i == BETA ? 1 : 4;
            status = kda_parts_token_stride(call, i, &form->layout, width, multiple, err);
        } else if (i == STATE) {
            status = kda_parts_pool_stride(call, i, values, err);
        } else {
            status = kda_operand_compact(call, i, 0, err);
        }
    }
    return status;
}

// ----------------------------------------------------------------------------------- all at once

static bool bias_fits(const struct kda_call *call, int64_t heads, struct kda_range *out)
{
    const int64_t extents[2] = {heads, KDA_D};
    return kda_call_tensor(call, DT_BIAS)->rank == 2
               ? kda_operand_fits(call, DT_BIAS, 2, extents, heads, 0, out)
               : kda_vector_fits(call, DT_BIAS, heads * KDA_D, out);
}

static bool indices_fit(const struct kda_form *form, int64_t slots, struct kda_range *out)
{
    const struct kda_call *const call = &form->call;
    const kda_tensor *const indices = kda_call_tensor(call, INDICES);
    const int64_t rows = form->problem.rows, extents[2] = {rows, form->layout.tokens};
    if (!kda_tensor_given(indices) || (form->layout.tokens == 1 && indices->rank == 1))
        return kda_vector_fits(call, INDICES, rows, out) &&
               (kda_tensor_given(indices) || slots >= form->layout.total);
    return kda_operand_fits(call, INDICES, 2, extents, rows, 0, out);
}

// True for a call whose tensors are plainly right: check_tensors would accept it, but looks at each
// of them several times.
static bool tensors_fit(const struct kda_form *form)
{
    const struct kda_call *const call = &form->call;
    const int64_t rows = form->problem.rows, heads = form->problem.heads,
                  value_heads = form->problem.value_heads;
    const int64_t slots = kda_call_tensor(call, STATE)->extent[0];
    const bool free_strides = form->body_flags & KDA_BODY_TOKEN_STRIDES;
    const int64_t multiple = free_strides ? 4 : 0;
    const struct kda_tokens *const layout = &form->layout;
    const int64_t pool[4] = {slots, value_heads, KDA_D, KDA_D};
    struct kda_range ranges[OPERANDS];
    return slots >= 1 &&
           kda_parts_tokens_fit(call, Q, layout, heads, false, multiple, &ranges[Q]) &&
           kda_parts_tokens_fit(call, K, layout, heads, false, multiple, &ranges[K]) &&
           kda_parts_tokens_fit(call, V, layout, value_heads, false, multiple, &ranges[V]) &&
           kda_parts_tokens_fit(call, G, layout, value_heads, false, 4, &ranges[G]) &&
           kda_parts_tokens_fit(call, BETA, layout, value_heads, true, free_strides,
                                &ranges[BETA]) &&
           kda_parts_tokens_fit(call, OUT, layout, value_heads, false, 0, &ranges[OUT]) &&
           kda_operand_fits(call, STATE, 4, pool, slots, 8, &ranges[STATE]) &&
           indices_fit(form, slots, &ranges[INDICES]) &&
           kda_vector_fits(call, A_LOG, heads, &ranges[A_LOG]) &&
           bias_fits(call, heads, &ranges[DT_BIAS]) &&
           kda_vector_fits(call, CU_SEQLENS, rows + 1, &ranges[CU_SEQLENS]) &&
           kda_vector_fits(call, ACCEPTED, rows, &ranges[ACCEPTED]) &&
           kda_range_alone(ranges, OPERANDS, STATE) && kda_range_alone(ranges, OPERANDS, OUT);
}

static kda_status check_tensors(const struct kda_form *form, kda_error *err)
{
    struct kda_range ranges[OPERANDS];
    kda_status status = kda_call_ranges(&form->call, ranges, err);
    if (status == KDA_OK) status = check_shapes(form, err);
    if (status == KDA_OK) status = check_strides(form, err);
    if (status == KDA_OK) status = kda_call_alignments(&form->call, err);
    return status == KDA_OK ? kda_call_overlaps(&form->call, ranges, err) : status;
}

// ---------------------------------------------------------------------------------------- the call

static void fill(const struct kda_form *form, const kda_recurrent_args *args,
                 struct kda_recurrent_params *out)
{
    const uint32_t dim = form->layout.dim;
    // With every member named, nothing is cleared first.
    *out = (struct kda_recurrent_params){
        .dependent = (args->flags & KDA_FLAG_PDL) != 0,
        .q = kda_tensor_address(&args->q),
        .k = kda_tensor_address(&args->k),
        .v = kda_tensor_address(&args->v),
        .g = kda_tensor_address(&args->g),
        .beta = kda_tensor_address(&args->beta),
        .a_log = kda_tensor_address(&args->a_log),
        .dt_bias = kda_tensor_address(&args->dt_bias),
        .state = kda_tensor_address(&args->state),
        .out = kda_tensor_address(&args->out),
        .cu_seqlens = kda_tensor_address(&args->cu_seqlens),
        .indices = kda_tensor_address(&args->ssm_state_indices),
        .accepted = form->layout.tokens > 1 ? kda_tensor_address(&args->num_accepted_tokens) : 0,
        .q_stride = args->q.stride[dim],
        .k_stride = args->k.stride[dim],
        .v_stride = args->v.stride[dim],
        .g_stride = args->g.stride[dim],
        .beta_stride = args->beta.stride[dim],
        .slot_stride = args->state.stride[0],
        .tok = (int)form->layout.total,
        .num_slots = (int)args->state.extent[0],
        .rows = (int)form->problem.rows,
        .heads = (int)form->problem.heads,
        .value_heads = (int)form->problem.value_heads,
        .query = kda_query_divisor(form->problem.heads, form->problem.value_heads),
        .beta_is_logit = args->beta_is_logit,
        .scale = args->scale,
        .lower_bound = args->lower_bound,
        .reserved = 0,
    };
}

// All that can be refused before the image is needed.
static kda_status validate(kda_context *context, const kda_recurrent_args *args, const char *body,
                           const char *target, struct kda_launch *out, kda_error *err)
{
    static const char operation[] = "recurrent";
    kda_status status = kda_launch_begin(context, args, operation, err);
    if (status != KDA_OK) return status;

    struct kda_form form;  // not cleared, most of it is written by the checks
    form.call = (struct kda_call){operation, operands, OPERANDS, args, {0, 0}};
    form.problem.op = KDA_OP_RECURRENT;
    form.problem.body = body;
    form.problem.target = target;
    struct kda_choice choice;
    status = kda_form_check(context, args, &form, err);
    const int64_t slots = args->state.extent[0];
    if (status == KDA_OK) status = kda_launch_limits(context, &form.problem, slots, &choice, err);
    if (status == KDA_OK && !tensors_fit(&form)) status = check_tensors(&form, err);
    if (status == KDA_OK)
        status =
            kda_launch_describe(context, operation, &form.problem, &choice, args->flags, out, err);
    if (status != KDA_OK) return status;
    fill(&form, args, &out->params.recurrent);
    return KDA_OK;
}

kda_status kda_recurrent(kda_context *context, const kda_recurrent_args *args, CUstream stream,
                         kda_error *err)
{
    struct kda_launch launch;
    const kda_status status = validate(context, args, NULL, NULL, &launch, err);
    return status == KDA_OK ? kda_launch_now(&launch, stream, err) : status;
}

kda_status kda_recurrent_plan(kda_context *context, const kda_recurrent_args *args,
                              const char *body, const char *target, kda_plan *out, kda_error *err)
{
    if (!out) return kda_fail(err, KDA_E_ARGUMENT, "recurrent: out is null, it is mandatory");
    struct kda_launch launch = {0};
    const kda_status status = validate(context, args, body, target, &launch, err);
    return status == KDA_OK ? kda_launch_plan(&launch, out, err) : status;
}
