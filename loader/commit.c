// SPDX-License-Identifier: Apache-2.0
// Owns commit: its operands, what their extents, strides and addresses may be, and the parameters
// that its bodies take. A call has as many rows as accepted counts. Invariant: once the limits have
// passed, every product of N, HV and 128*128 fits 64 bits.
#include <inttypes.h>

#include "loader/error.h"
#include "loader/launch.h"
#include "loader/parts.h"
#include "loader/route.h"

enum { STATE, CORRECTION, KG, INDICES, ACCEPTED, A_LOG, DT_BIAS, OPERANDS };
_Static_assert(OPERANDS <= KDA_MAX_OPERANDS, "operands");

#define AT(field) offsetof(kda_commit_args, field)
static const struct kda_operand operands[OPERANDS] = {
    [STATE] = {"state", AT(state), KDA_BF16, 16, false, true},
    [CORRECTION] = {"correction_cache", AT(correction_cache), KDA_F32, 16, false, false},
    [KG] = {"kg_cache", AT(kg_cache), KDA_BF16, 2, false, false},
    [INDICES] = {"ssm_state_indices", AT(ssm_state_indices), KDA_I32, 4, true, false},
    [ACCEPTED] = {"num_accepted_tokens", AT(num_accepted_tokens), KDA_I32, 4, false, false},
    [A_LOG] = {"A_log", AT(a_log), KDA_F32, 4, true, false},
    [DT_BIAS] = {"dt_bias", AT(dt_bias), KDA_F32, 4, true, false},
};
#undef AT

static kda_status check_arguments(const struct kda_call *call, const kda_commit_args *args,
                                  kda_error *err)
{
    const char *const operation = call->operation;
    kda_status status = kda_parts_words(operation, args->reserved32, args->reserved, args->flags,
                                        KDA_FLAG_PDL, err);
    if (status != KDA_OK) return status;
    if (args->state.rank != 4)
        return kda_fail(err, KDA_E_SHAPE, "%s: state has rank %u, must be 4", operation,
                        args->state.rank);
    const int64_t *const extent = args->state.extent;
    status = kda_parts_pool_heads(operation, &args->state, err);
    return status == KDA_OK
               ? kda_parts_heads(operation, args->heads, "heads", extent[1], "state", err)
               : status;
}

static kda_status check_scalars(const struct kda_call *call, const kda_commit_args *args,
                                kda_error *err)
{
    const struct kda_scalars scalars = {
        .gate = args->gate,
        .lower_bound = args->lower_bound,
        .a_log = kda_tensor_given(&args->a_log),
        .dt_bias = kda_tensor_given(&args->dt_bias),
        .bias_optional = true,
    };
    const kda_status status = kda_parts_scalars(call->operation, &scalars, err);
    return status == KDA_OK ? kda_parts_null_min(call->operation, args->null_min, err) : status;
}

// A body serves windows, and a cache may be longer than any of them.
static int32_t window_length(const kda_tensor *cache)
{
    const int64_t tokens = cache->rank == 4 ? cache->extent[2] : 1;
    return tokens < 1 ? 1 : tokens > KDA_WINDOW_MAX ? KDA_WINDOW_MAX : (int32_t)tokens;
}

static kda_status check_limits(const struct kda_call *call, const kda_commit_args *args,
                               kda_error *err)
{
    const int64_t tokens = args->correction_cache.extent[2];
    if (args->correction_cache.rank != 4 || tokens <= INT32_MAX) return KDA_OK;
    return kda_fail(err, KDA_E_LIMIT,
                    "%s: T_cache = %" PRId64 " of correction_cache, must be at most %d",
                    call->operation, tokens, INT32_MAX);
}

static kda_status check_shapes(const struct kda_call *call, const kda_problem *problem,
                               kda_error *err)
{
    kda_status status = kda_parts_pool_shape(call, STATE, problem->value_heads, err);
    if (status == KDA_OK) status = kda_parts_cache_shapes(call, CORRECTION, STATE, 1, err);
    if (status == KDA_OK) status = kda_parts_row_slots(call, INDICES, STATE, problem->rows, err);
    if (status == KDA_OK)
        status = kda_operand_shape(call, ACCEPTED, 1, (const int64_t[]){problem->rows}, "N", err);
    return status == KDA_OK ? kda_parts_gate_shapes(call, A_LOG, DT_BIAS, problem->heads, err)
                            : status;
}

static kda_status check_strides(const struct kda_call *call, const kda_problem *problem,
                                kda_error *err)
{
    kda_status status = kda_parts_pool_stride(call, STATE, problem->value_heads, err);
    if (status == KDA_OK) status = kda_parts_cache_stride(call, CORRECTION, 4, err);
    if (status == KDA_OK) status = kda_parts_cache_stride(call, KG, 1, err);
    for (uint32_t i = INDICES; i < OPERANDS && status == KDA_OK; i++)
        status = kda_operand_compact(call, i, 0, err);
    return status;
}

// True for a call whose tensors are plainly right: check_tensors would accept it, but looks at each
// of them several times.
static bool tensors_fit(const struct kda_call *call, const kda_problem *problem)
{
    const int64_t heads = problem->heads, value_heads = problem->value_heads, rows = problem->rows,
                  slots = kda_call_tensor(call, STATE)->extent[0];
    const int64_t pool[4] = {slots, value_heads, KDA_D, KDA_D}, bias[2] = {heads, KDA_D};
    struct kda_range ranges[OPERANDS] = {{0, 0}};
    if (slots < 1 || !kda_operand_fits(call, STATE, 4, pool, slots, 8, &ranges[STATE]) ||
        !kda_parts_caches_fit(call, CORRECTION, slots, value_heads, 1, &ranges[CORRECTION]) ||
        !kda_vector_fits(call, INDICES, rows, &ranges[INDICES]) ||
        !(kda_tensor_given(kda_call_tensor(call, INDICES)) || slots >= rows) ||
        !kda_vector_fits(call, ACCEPTED, rows, &ranges[ACCEPTED]) ||
        !kda_vector_fits(call, A_LOG, heads, &ranges[A_LOG]))
        return false;
    if (kda_tensor_given(kda_call_tensor(call, DT_BIAS)) &&
        !kda_operand_fits(call, DT_BIAS, 2, bias, heads, 0, &ranges[DT_BIAS]))
        return false;
    return kda_range_alone(ranges, OPERANDS, STATE);
}

static kda_status check_tensors(const struct kda_call *call, const kda_problem *problem,
                                kda_error *err)
{
    struct kda_range ranges[OPERANDS];
    kda_status status = kda_call_ranges(call, ranges, err);
    if (status == KDA_OK) status = check_shapes(call, problem, err);
    if (status == KDA_OK) status = check_strides(call, problem, err);
    if (status == KDA_OK) status = kda_call_alignments(call, err);
    return status == KDA_OK ? kda_call_overlaps(call, ranges, err) : status;
}

static void fill(const kda_problem *problem, const kda_commit_args *args,
                 struct kda_commit_params *out)
{
    const int64_t *const correction = args->correction_cache.stride, *const kg =
                                                                         args->kg_cache.stride;
    // With every member named, nothing is cleared first.
    *out = (struct kda_commit_params){
        .state = kda_tensor_address(&args->state),
        .correction = kda_tensor_address(&args->correction_cache),
        .kg = kda_tensor_address(&args->kg_cache),
        .indices = kda_tensor_address(&args->ssm_state_indices),
        .accepted = kda_tensor_address(&args->num_accepted_tokens),
        .a_log = kda_tensor_address(&args->a_log),
        .dt_bias = kda_tensor_address(&args->dt_bias),
        .slot_stride = args->state.stride[0],
        .correction_strides = {correction[0], correction[1], correction[2]},
        .kg_strides = {kg[0], kg[1], kg[2]},
        .num_slots = (int)args->state.extent[0],
        .null_min = args->null_min,
        .rows = (int)problem->rows,
        .tokens = (int)args->correction_cache.extent[2],
        .heads = (int)problem->heads,
        .value_heads = (int)problem->value_heads,
        .query = kda_query_divisor(problem->heads, problem->value_heads),
        .lower_bound = args->lower_bound,
        .reserved = 0,
    };
}

// All that can be refused before the image is needed.
static kda_status validate(kda_context *context, const kda_commit_args *args, const char *body,
                           const char *target, struct kda_launch *out, kda_error *err)
{
    static const char operation[] = "commit";
    kda_status status = kda_launch_begin(context, args, operation, err);
    if (status != KDA_OK) return status;

    const struct kda_call call = {operation, operands, OPERANDS, args, {0, 0}};
    const kda_problem problem = {
        .op = KDA_OP_COMMIT,
        .gate = args->gate,
        .tokens = window_length(&args->correction_cache),
        .rows = args->num_accepted_tokens.extent[0],
        .heads = args->heads,
        .value_heads = args->state.extent[1],
        .state_type = KDA_BF16,
        .body = body,
        .target = target,
    };
    struct kda_choice choice;
    uint32_t any_body;
    const bool plain = kda_call_plain(&call);
    status = plain ? KDA_OK : kda_call_present(&call, err);
    if (status == KDA_OK) status = check_arguments(&call, args, err);
    if (status == KDA_OK && !plain) status = kda_call_types(&call, err);
    if (status == KDA_OK) status = check_scalars(&call, args, err);
    if (status == KDA_OK) status = kda_route_accept(context->bundle, &problem, &any_body, err);
    if (status == KDA_OK) status = kda_parts_bound(operation, args->gate, args->lower_bound, err);
    if (status == KDA_OK)
        status = kda_launch_limits(context, &problem, args->state.extent[0], &choice, err);
    if (status == KDA_OK) status = check_limits(&call, args, err);
    if (status == KDA_OK && !tensors_fit(&call, &problem))
        status = check_tensors(&call, &problem, err);
    if (status == KDA_OK)
        status = kda_launch_describe(context, operation, &problem, &choice, args->flags, out, err);
    if (status != KDA_OK) return status;
    fill(&problem, args, &out->params.commit);
    return KDA_OK;
}

kda_status kda_commit(kda_context *context, const kda_commit_args *args, CUstream stream,
                      kda_error *err)
{
    struct kda_launch launch;
    const kda_status status = validate(context, args, NULL, NULL, &launch, err);
    return status == KDA_OK ? kda_launch_now(&launch, stream, err) : status;
}

kda_status kda_commit_plan(kda_context *context, const kda_commit_args *args, const char *body,
                           const char *target, kda_plan *out, kda_error *err)
{
    if (!out) return kda_fail(err, KDA_E_ARGUMENT, "commit: out is null, it is mandatory");
    struct kda_launch launch = {0};
    const kda_status status = validate(context, args, body, target, &launch, err);
    return status == KDA_OK ? kda_launch_plan(&launch, out, err) : status;
}
