// SPDX-License-Identifier: Apache-2.0
// Owns frozen verify: the form of a call and the length of its window, what extents, strides and
// addresses its tensors may have, and the parameters that its bodies take. The pool is only read.
// Invariant: once the limits have passed, every product of N, T, H, HV and 128*128 fits 64 bits.
#include <inttypes.h>

#include "loader/error.h"
#include "loader/launch.h"
#include "loader/parts.h"
#include "loader/route.h"

// clang-format off
enum { Q, K, V, G, BETA, OUT, A_LOG, DT_BIAS, STATE, INDICES, CU_SEQLENS, CORRECTION, KG, OPERANDS };
// clang-format on
_Static_assert(OPERANDS <= KDA_MAX_OPERANDS, "operands");

#define AT(field) offsetof(kda_verify_args, field)
static const struct kda_operand operands[OPERANDS] = {
    [Q] = {"q", AT(q), KDA_BF16, 2, false, false},
    [K] = {"k", AT(k), KDA_BF16, 2, false, false},
    [V] = {"v", AT(v), KDA_BF16, 2, false, false},
    [G] = {"g", AT(g), KDA_BF16, 2, false, false},
    [BETA] = {"beta", AT(beta), KDA_BF16, 2, false, false},
    [OUT] = {"out", AT(out), KDA_BF16, 2, false, true},
    [A_LOG] = {"A_log", AT(a_log), KDA_F32, 4, true, false},
    [DT_BIAS] = {"dt_bias", AT(dt_bias), KDA_F32, 4, true, false},
    [STATE] = {"state", AT(state), KDA_BF16, 16, false, true},
    [INDICES] = {"ssm_state_indices", AT(ssm_state_indices), KDA_I32, 4, true, false},
    [CU_SEQLENS] = {"cu_seqlens", AT(cu_seqlens), KDA_I32, 4, true, false},
    [CORRECTION] = {"correction_cache", AT(correction_cache), KDA_F32, 16, true, true},
    [KG] = {"kg_cache", AT(kg_cache), KDA_BF16, 2, true, true},
};
#undef AT

struct window {
    struct kda_call call;
    kda_problem problem;
    struct kda_tokens layout;
};

// ------------------------------------------------------------------------------- 1 to 3: arguments

static kda_status check_arguments(struct window *window, const kda_verify_args *args,
                                  kda_error *err)
{
    const char *const operation = window->call.operation;
    const kda_status status =
        kda_parts_words(operation, args->reserved32, args->reserved, args->flags,
                        KDA_FLAG_SPECULATIVE | KDA_FLAG_PDL, err);
    if (status != KDA_OK) return status;
    return kda_parts_projections(operation, &args->q, &args->v, &window->problem, err);
}

static kda_status check_scalars(const struct kda_call *call, const kda_verify_args *args,
                                kda_error *err)
{
    const char *const operation = call->operation;
    const struct kda_scalars scalars = {
        .gate = args->gate,
        .lower_bound = args->lower_bound,
        .scale = args->scale,
        .beta_is_logit = args->beta_is_logit,
        .num_spec_tokens = args->num_spec_tokens,
        .least_spec_tokens = 0,
        .flags = args->flags,
        .a_log = kda_tensor_given(&args->a_log),
        .dt_bias = kda_tensor_given(&args->dt_bias),
        .bias_optional = true,
    };
    const kda_status status = kda_parts_scalars(operation, &scalars, err);
    if (status != KDA_OK) return status;
    if (kda_tensor_given(&args->num_accepted_tokens) || args->num_accepted_tokens.rank)
        return kda_fail(err, KDA_E_ARGUMENT,
                        "%s: num_accepted_tokens is given (rank %u), must be omitted: it is the "
                        "commit's",
                        operation, args->num_accepted_tokens.rank);
    const bool correction = kda_tensor_given(&args->correction_cache),
               kg = kda_tensor_given(&args->kg_cache);
    if (correction != kg)
        return kda_fail(err, KDA_E_ARGUMENT,
                        "%s: %s is given without %s, must be both caches or neither", operation,
                        correction ? "correction_cache" : "kg_cache",
                        correction ? "kg_cache" : "correction_cache");
    return kda_parts_null_min(operation, args->null_min, err);
}

// ------------------------------------------------------------------------------- 4: accepted calls

// T of the call, as far as it is known without tok.
static int64_t window_length(const kda_verify_args *args, bool packed)
{
    const kda_tensor *const cache = &args->correction_cache;
    if (!packed) return args->q.extent[1];
    if (args->flags & KDA_FLAG_SPECULATIVE) return 1 + (int64_t)args->num_spec_tokens;
    return kda_tensor_given(cache) && cache->rank == 4 ? cache->extent[2] : KDA_WINDOW_MAX;
}

static kda_status check_form(struct window *window, const kda_verify_args *args, kda_error *err)
{
    const char *const operation = window->call.operation;
    const bool packed = kda_tensor_given(&args->cu_seqlens);
    const int64_t first = args->q.extent[0], entries = args->cu_seqlens.extent[0];
    const int64_t tokens = window_length(args, packed), wanted = 1 + (int64_t)args->num_spec_tokens;
    if (packed ? args->q.rank != 3 : args->q.rank != 4)
        return kda_fail(err, KDA_E_UNSUPPORTED,
                        "%s: does not support q of rank %u %s cu_seqlens; supported: [N,T,H,128] "
                        "without, [tok,H,128] with cu_seqlens",
                        operation, args->q.rank, packed ? "with" : "without");
    if (packed && entries < 2)
        return kda_fail(err, KDA_E_SHAPE,
                        "%s: cu_seqlens shape[0] is %" PRId64 ", must be N+1, at least 2",
                        operation, entries);
    if (first < 0)
        return kda_fail(err, KDA_E_SHAPE, "%s: q shape[0] is %" PRId64 ", must be at least 0",
                        operation, first);
    if (!packed && args->flags & KDA_FLAG_SPECULATIVE && tokens != wanted)
        return kda_fail(err, KDA_E_SHAPE,
                        "%s: q shape[1] is %" PRId64 ", must equal 1+num_spec_tokens = %" PRId64,
                        operation, tokens, wanted);
    window->layout = (struct kda_tokens){
        .rows = packed ? entries - 1 : first,
        .tokens = tokens,
        .total = first,
        .lead = packed ? 1 : 2,
        .dim = !packed && tokens > 1,
        .total_is = "where the first extent is that of q",
    };
    window->problem.gate = args->gate;
    window->problem.state_type = KDA_BF16;
    window->problem.mode = 0;
    window->problem.tokens = tokens < 0 ? 0 : tokens > INT32_MAX ? INT32_MAX : (int32_t)tokens;
    // No rows are routed as one row without tokens.
    window->problem.rows = window->layout.rows > 0 ? window->layout.rows : 1;
    return KDA_OK;
}

static kda_status check_accepted(const kda_context *context, struct window *window,
                                 const kda_verify_args *args, kda_error *err)
{
    struct kda_tokens *const layout = &window->layout;
    uint32_t any_body;
    kda_status status = kda_route_accept(context->bundle, &window->problem, &any_body, err);
    if (status == KDA_OK)
        status = kda_parts_bound(window->call.operation, args->gate, args->lower_bound, err);
    if (status == KDA_OK && layout->lead == 2) layout->total = layout->rows * layout->tokens;
    return status;
}

// -------------------------------------------------------------------------------- 5 to 8: tensors

static kda_status check_shapes(const struct window *window, kda_error *err)
{
    const struct kda_call *const call = &window->call;
    const struct kda_tokens *const layout = &window->layout;
    const int64_t heads = window->problem.heads, value_heads = window->problem.value_heads;
    if (layout->total > layout->rows * layout->tokens)
        return kda_fail(err, KDA_E_SHAPE,
                        "%s: q shape[0] (tok) is %" PRId64 ", must be at most N*T = %" PRId64,
                        call->operation, layout->total, layout->rows * layout->tokens);
    kda_status status = KDA_OK;
    for (uint32_t i = Q; i <= OUT && status == KDA_OK; i++)
        status = kda_parts_token_shape(call, i, layout, i == Q || i == K ? heads : value_heads,
                                       i == BETA, err);
    if (status == KDA_OK) status = kda_parts_pool_shape(call, STATE, value_heads, err);
    if (status == KDA_OK) status = kda_parts_row_slots(call, INDICES, STATE, layout->rows, err);
    if (status == KDA_OK && layout->lead == 1)
        status =
            kda_operand_shape(call, CU_SEQLENS, 1, (const int64_t[]){layout->rows + 1}, "N+1", err);
    if (status == KDA_OK) status = kda_parts_gate_shapes(call, A_LOG, DT_BIAS, heads, err);
    if (status != KDA_OK || !kda_tensor_given(kda_call_tensor(call, CORRECTION))) return status;
    return kda_parts_cache_shapes(call, CORRECTION, STATE, layout->tokens, err);
}

static kda_status check_strides(const struct window *window, kda_error *err)
{
    const struct kda_call *const call = &window->call;
    const int64_t keys = window->problem.heads * KDA_D, values = window->problem.value_heads;
    kda_status status = KDA_OK;
    for (uint32_t i = 0; i < OPERANDS && status == KDA_OK; i++) {
        if (!kda_tensor_given(kda_call_tensor(call, i))) continue;
        if (i <= OUT) {
            const int64_t width = i == Q || i == K ? keys : i == BETA ? values : values * KDA_D;
            status = kda_parts_token_stride(call, i, &window->layout, width, 1, err);
        } else if (i == STATE) {
            status = kda_parts_pool_stride(call, i, values, err);
        } else if (i == CORRECTION || i == KG) {
            status = kda_parts_cache_stride(call, i, i == CORRECTION ? 4 : 1, err);
        } else {
            status = kda_operand_compact(call, i, 0, err);
        }
    }
    return status;
}

// True for a call whose tensors are plainly right: check_tensors would accept it, but looks at each
// of them several times.
static bool tensors_fit(const struct window *window)
{
    const struct kda_call *const call = &window->call;
    const struct kda_tokens *const layout = &window->layout;
    const int64_t heads = window->problem.heads, value_heads = window->problem.value_heads,
                  rows = layout->rows, slots = kda_call_tensor(call, STATE)->extent[0];
    const int64_t pool[4] = {slots, value_heads, KDA_D, KDA_D}, bias[2] = {heads, KDA_D};
    struct kda_range ranges[OPERANDS] = {{0, 0}};
    if (slots < 1 || layout->total < 1 || layout->total > rows * layout->tokens) return false;
    if (!kda_parts_tokens_fit(call, Q, layout, heads, false, 1, &ranges[Q]) ||
        !kda_parts_tokens_fit(call, K, layout, heads, false, 1, &ranges[K]) ||
        !kda_parts_tokens_fit(call, V, layout, value_heads, false, 1, &ranges[V]) ||
        !kda_parts_tokens_fit(call, G, layout, value_heads, false, 1, &ranges[G]) ||
        !kda_parts_tokens_fit(call, BETA, layout, value_heads, true, 1, &ranges[BETA]) ||
        !kda_parts_tokens_fit(call, OUT, layout, value_heads, false, 1, &ranges[OUT]) ||
        !kda_operand_fits(call, STATE, 4, pool, slots, 8, &ranges[STATE]) ||
        !kda_vector_fits(call, INDICES, rows, &ranges[INDICES]) ||
        !(kda_tensor_given(kda_call_tensor(call, INDICES)) || slots >= rows) ||
        !kda_vector_fits(call, CU_SEQLENS, rows + 1, &ranges[CU_SEQLENS]) ||
        !kda_vector_fits(call, A_LOG, heads, &ranges[A_LOG]))
        return false;
    if (kda_tensor_given(kda_call_tensor(call, DT_BIAS)) &&
        !kda_operand_fits(call, DT_BIAS, 2, bias, heads, 0, &ranges[DT_BIAS]))
        return false;
    if (kda_tensor_given(kda_call_tensor(call, CORRECTION)) &&
        !kda_parts_caches_fit(call, CORRECTION, slots, value_heads, layout->tokens,
                              &ranges[CORRECTION]))
        return false;
    return kda_range_alone(ranges, OPERANDS, OUT) && kda_range_alone(ranges, OPERANDS, STATE) &&
           kda_range_alone(ranges, OPERANDS, CORRECTION) && kda_range_alone(ranges, OPERANDS, KG);
}

static kda_status check_tensors(const struct window *window, kda_error *err)
{
    struct kda_range ranges[OPERANDS];
    kda_status status = kda_call_ranges(&window->call, ranges, err);
    if (status == KDA_OK) status = check_shapes(window, err);
    if (status == KDA_OK) status = check_strides(window, err);
    if (status == KDA_OK) status = kda_call_alignments(&window->call, err);
    return status == KDA_OK ? kda_call_overlaps(&window->call, ranges, err) : status;
}

// ---------------------------------------------------------------------------------------- the call

// True if a kernel may load 8 channels of q, k, v and g, whatever the token, by one access.
static bool are_wide(const kda_verify_args *args, uint32_t dim)
{
    const uint64_t addresses = kda_tensor_address(&args->q) | kda_tensor_address(&args->k) |
                               kda_tensor_address(&args->v) | kda_tensor_address(&args->g);
    const int64_t strides =
        args->q.stride[dim] | args->k.stride[dim] | args->v.stride[dim] | args->g.stride[dim];
    return addresses % 16 == 0 && strides % 8 == 0;
}

static void fill(const struct window *window, const kda_verify_args *args,
                 struct kda_verify_params *out)
{
    const uint32_t dim = window->layout.dim;
    const int64_t *const correction = args->correction_cache.stride, *const kg =
                                                                         args->kg_cache.stride;
    // With every member named, nothing is cleared first.
    *out = (struct kda_verify_params){
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
        .correction = kda_tensor_address(&args->correction_cache),
        .kg = kda_tensor_address(&args->kg_cache),
        .q_stride = args->q.stride[dim],
        .k_stride = args->k.stride[dim],
        .v_stride = args->v.stride[dim],
        .g_stride = args->g.stride[dim],
        .beta_stride = args->beta.stride[dim],
        .out_stride = args->out.stride[dim],
        .slot_stride = args->state.stride[0],
        .correction_strides = {correction[0], correction[1], correction[2]},
        .kg_strides = {kg[0], kg[1], kg[2]},
        .tok = window->layout.total,
        .num_slots = (int)args->state.extent[0],
        .null_min = args->null_min,
        .rows = (int)window->layout.rows,
        .tokens = (int)window->layout.tokens,
        .heads = (int)window->problem.heads,
        .value_heads = (int)window->problem.value_heads,
        .query = kda_query_divisor(window->problem.heads, window->problem.value_heads),
        .beta_is_logit = args->beta_is_logit,
        .scale = args->scale,
        .lower_bound = args->lower_bound,
        .wide = are_wide(args, dim),
    };
}

// All that can be refused before the image is needed.
static kda_status validate(kda_context *context, const kda_verify_args *args, const char *body,
                           const char *target, struct kda_launch *out, kda_error *err)
{
    static const char operation[] = "verify";
    kda_status status = kda_launch_begin(context, args, operation, err);
    if (status != KDA_OK) return status;

    struct window window = {
        .call = {operation, operands, OPERANDS, args, {0, 0}},
        .problem = {.op = KDA_OP_VERIFY, .body = body, .target = target},
    };
    struct kda_choice choice;
    const bool plain = kda_call_plain(&window.call);
    status = plain ? KDA_OK : kda_call_present(&window.call, err);
    if (status == KDA_OK) status = check_arguments(&window, args, err);
    if (status == KDA_OK && !plain) status = kda_call_types(&window.call, err);
    if (status == KDA_OK) status = check_scalars(&window.call, args, err);
    if (status == KDA_OK) status = check_form(&window, args, err);
    if (status == KDA_OK) status = check_accepted(context, &window, args, err);
    if (status == KDA_OK)
        status = kda_launch_limits(context, &window.problem, args->state.extent[0], &choice, err);
    if (status == KDA_OK && !tensors_fit(&window)) status = check_tensors(&window, err);
    if (status == KDA_OK)
        status = kda_launch_describe(context, operation, &window.problem, &choice, args->flags, out,
                                     err);
    if (status != KDA_OK) return status;
    if (!window.layout.total) out->grid[0] = 0;
    fill(&window, args, &out->params.verify);
    return KDA_OK;
}

kda_status kda_verify(kda_context *context, const kda_verify_args *args, CUstream stream,
                      kda_error *err)
{
    struct kda_launch launch;
    const kda_status status = validate(context, args, NULL, NULL, &launch, err);
    return status == KDA_OK ? kda_launch_now(&launch, stream, err) : status;
}

kda_status kda_verify_plan(kda_context *context, const kda_verify_args *args, const char *body,
                           const char *target, kda_plan *out, kda_error *err)
{
    if (!out) return kda_fail(err, KDA_E_ARGUMENT, "verify: out is null, it is mandatory");
    struct kda_launch launch = {0};
    const kda_status status = validate(context, args, body, target, &launch, err);
    return status == KDA_OK ? kda_launch_plan(&launch, out, err) : status;
}
