// SPDX-License-Identifier: Apache-2.0
// Owns fused decode: its operands, their shapes and strides, the pages that its two caches may
// share, and how a call maps to kernel parameters. The geometry is part of the operation; which
// head counts, gates and modes there are is the bundle's. Invariant: a caller's number is used only
// after the check that bounds it.
#include <inttypes.h>
#include <math.h>

#include "loader/error.h"
#include "loader/explain.h"
#include "loader/launch.h"
#include "loader/parts.h"
#include "loader/route.h"

enum { TAPS = 3 };  // values that conv_state keeps of a channel

static const float SCALE = 0x1.6a09e6p-4f;  // 128^-0.5

enum {
    X,
    WEIGHT,
    CONV_STATE,
    GATE,
    BETA,
    A_LOG,
    DT_BIAS,
    INDICES,
    STATE,
    OUTPUT_GATE,
    NORM_WEIGHT,
    OUT,
    OPERANDS
};
_Static_assert(OPERANDS <= KDA_MAX_OPERANDS, "operands");

// clang-format off
#define AT(field) offsetof(kda_fused_args, field)
#define OPERANDS_WITH(state_type, state_alignment)                                                 \
    {                                                                                              \
        [X] = {"x", AT(x), KDA_BF16, 2, false, false},                                             \
        [WEIGHT] = {"weight", AT(weight), KDA_F32, 4, false, false},                               \
        [CONV_STATE] = {"conv_state", AT(conv_state), KDA_BF16, 8, false, true},                   \
        [GATE] = {"raw_gate", AT(raw_gate), KDA_BF16, 2, false, false},                            \
        [BETA] = {"raw_beta", AT(raw_beta), KDA_BF16, 2, false, false},                            \
        [A_LOG] = {"A_log", AT(a_log), KDA_F32, 4, false, false},                                  \
        [DT_BIAS] = {"dt_bias", AT(dt_bias), KDA_F32, 4, false, false},                            \
        [INDICES] = {"state_indices", AT(state_indices), KDA_I32, 4, false, false},                \
        [STATE] = {"state", AT(state), state_type, state_alignment, false, true},                  \
        [OUTPUT_GATE] = {"output_gate", AT(output_gate), KDA_BF16, 2, false, false},               \
        [NORM_WEIGHT] = {"norm_weight", AT(norm_weight), KDA_F32, 4, false, false},                \
        [OUT] = {"output", AT(out), KDA_BF16, 8, false, true},                                     \
    }
// clang-format on
static const struct kda_operand operands_bf16[OPERANDS] = OPERANDS_WITH(KDA_BF16, 16);
static const struct kda_operand operands_f32[OPERANDS] = OPERANDS_WITH(KDA_F32, 32);
#undef OPERANDS_WITH
#undef AT

// ------------------------------------------------------------------------------- 1 to 3: arguments

static kda_status check_arguments(const struct kda_call *call, const kda_fused_args *args,
                                  kda_error *err)
{
    const kda_status status = kda_parts_words(call->operation, args->reserved32, args->reserved,
                                              args->flags, KDA_FLAG_PDL, err);
    if (status != KDA_OK) return status;
    if (args->state.rank != 4)
        return kda_fail(err, KDA_E_SHAPE, "%s: state has rank %u, must be 4", call->operation,
                        args->state.rank);
    return kda_parts_pool_heads(call->operation, &args->state, err);
}

static kda_status check_types(const struct kda_call *call, const kda_fused_args *args,
                              kda_error *err)
{
    const kda_dtype type = args->state.dtype;
    if (type != KDA_BF16 && type != KDA_F32)
        return kda_fail(err, KDA_E_TYPE, "%s: state has type %s (%d), must be bf16 or f32",
                        call->operation, kda_type_name(type), (int)type);
    return kda_call_types(call, err);
}

static kda_status check_scalars(const struct kda_call *call, const kda_fused_args *args,
                                kda_error *err)
{
    if (args->mode < KDA_MODE_POSITIVE_UNIQUE || args->mode > KDA_MODE_REPEATED_POSITIVE) {
        kda_text modes = {0};
        kda_explain_modes(&modes, KDA_MODES_UNIQUE | KDA_MODES_REPEATED);
        return kda_fail(err, KDA_E_ARGUMENT,
                        args->mode ? "%s: the state_indices_mode is %d, must be one of %s"
                                   : "%s: requires the host-known state_indices_mode, found %d, "
                                     "must be one of %s",
                        call->operation, (int)args->mode, modes.data);
    }
    if (!isfinite(args->norm_eps) || args->norm_eps < 0)
        return kda_fail(err, KDA_E_ARGUMENT, "%s: norm_eps is %g, must be finite and at least 0",
                        call->operation, (double)args->norm_eps);
    // Gate parameters are mandatory: a gate that takes none is refused as such.
    const bool given = args->gate != KDA_GATE_PRECOMPUTED;
    const struct kda_scalars scalars = {
        .gate = args->gate, .lower_bound = args->lower_bound, .a_log = given, .dt_bias = given};
    return kda_parts_scalars(call->operation, &scalars, err);
}

// ------------------------------------------------------------------------------- 4: accepted calls

static kda_status check_accepted(const kda_context *context, const kda_problem *problem,
                                 const kda_fused_args *args, kda_error *err)
{
    uint32_t any_body;
    const kda_status status = kda_route_accept(context->bundle, problem, &any_body, err);
    return status == KDA_OK ? kda_parts_bound("fused", args->gate, args->lower_bound, err) : status;
}

// --------------------------------------------------------------------------------- 5 to 8: tensors

static kda_status check_shapes(const struct kda_call *call, const kda_problem *problem,
                               kda_error *err)
{
    const int64_t rows = problem->rows, heads = problem->heads, width = heads * KDA_D;
    const int64_t slots = kda_call_tensor(call, STATE)->extent[0];
    const kda_tensor *const conv = kda_call_tensor(call, CONV_STATE);
    kda_status status = kda_parts_pool_shape(call, STATE, heads, err);
    if (status != KDA_OK) return status;
    if (conv->extent[0] != slots)
        return kda_fail(err, KDA_E_SHAPE,
                        "%s: conv_state has %" PRId64 " slots and state has %" PRId64
                        ", must have as many",
                        call->operation, conv->extent[0], slots);
    const uint32_t gate_rank = kda_call_tensor(call, OUTPUT_GATE)->rank == 3 ? 3 : 4;
    const struct {
        uint32_t rank;
        int64_t extents[4];
    } shapes[OPERANDS] = {
        [X] = {2, {rows, 3 * width}},
        [WEIGHT] = {3, {3, TAPS + 1, width}},
        [CONV_STATE] = {3, {slots, 3 * width, TAPS}},
        [GATE] = {4, {1, rows, heads, KDA_D}},
        [BETA] = {3, {1, rows, heads}},
        [A_LOG] = {1, {heads}},
        [DT_BIAS] = {1, {width}},
        [INDICES] = {1, {rows}},
        [OUTPUT_GATE] = {gate_rank,
                         {gate_rank == 3 ? rows : 1, gate_rank == 3 ? heads : rows,
                          gate_rank == 3 ? KDA_D : heads, KDA_D}},
        [NORM_WEIGHT] = {1, {KDA_D}},
        [OUT] = {4, {1, rows, heads, KDA_D}},
    };
    for (uint32_t i = 0; i < OPERANDS && status == KDA_OK; i++) {
        if (i == STATE) continue;
        status = kda_operand_shape(call, i, shapes[i].rank, shapes[i].extents,
                                   i == INDICES       ? "shape[0] is the N of x"
                                   : i == OUTPUT_GATE ? "or without the first extent"
                                                      : "",
                                   err);
    }
    return status;
}

static kda_status check_strides(const struct kda_call *call, int64_t heads, kda_error *err)
{
    // The first dimension from which a tensor is compact.
    const uint32_t inner[OPERANDS] = {[X] = 1,
                                      [CONV_STATE] = 3,
                                      [BETA] = 2,
                                      [OUTPUT_GATE] = kda_call_tensor(call, OUTPUT_GATE)->rank - 2};
    const int64_t width = heads * KDA_D;
    kda_status status = KDA_OK;
    for (uint32_t i = 0; i < OPERANDS && status == KDA_OK; i++)
        status = i == STATE ? kda_parts_pool_stride(call, i, heads, err)
                            : kda_operand_compact(call, i, inner[i], err);
    if (status == KDA_OK) status = kda_operand_stride(call, CONV_STATE, 1, 1, err);
    if (status == KDA_OK) status = kda_operand_stride(call, CONV_STATE, 2, 3 * width, err);
    return status == KDA_OK ? kda_operand_pitch(call, CONV_STATE, 0, 9 * width, 4, err) : status;
}

// Do slots of both caches that repeat at the same distance lie apart in every page of that size?
// Their byte ranges then interleave.
static bool pages_apart(const struct kda_call *call, int64_t heads)
{
    const kda_tensor *const conv = kda_call_tensor(call, CONV_STATE);
    const kda_tensor *const state = kda_call_tensor(call, STATE);
    const uint64_t conv_bytes = (uint64_t)(3 * heads * KDA_D * TAPS) * kda_type_size(conv->dtype);
    const uint64_t state_bytes = (uint64_t)(heads * KDA_D * KDA_D) * kda_type_size(state->dtype);
    // The ranges fit 64 bits, so with a second slot these do.
    const uint64_t page = (uint64_t)conv->stride[0] * kda_type_size(conv->dtype);
    if (conv->extent[0] < 2 || page != (uint64_t)state->stride[0] * kda_type_size(state->dtype))
        return false;
    const uint64_t from = kda_tensor_address(conv), to = kda_tensor_address(state);
    const uint64_t at = to >= from ? (to - from) % page : (page - (from - to) % page) % page;
    return at >= conv_bytes && state_bytes <= page - at;
}

static bool conv_fits(const struct kda_call *call, int64_t slots, int64_t width,
                      struct kda_range *out)
{
    const kda_tensor *const conv = kda_call_tensor(call, CONV_STATE);
    const int64_t *const extent = conv->extent, *const stride = conv->stride;
    const uint64_t begin = kda_tensor_address(conv);
    // Below 2^30, so that 2^31 slots fit 64 bits.
    if (conv->rank != 3 || extent[0] != slots || extent[1] != 3 * width || extent[2] != TAPS ||
        stride[0] < 9 * width || stride[0] >> 30 || stride[0] & 3 || stride[1] != 1 ||
        stride[2] != 3 * width || begin & (call->operands[CONV_STATE].alignment - 1U))
        return false;
    *out = (struct kda_range){begin, begin + (uint64_t)((slots - 1) * stride[0] + 9 * width) * 2};
    return out->end > begin;
}

// The caches may interleave page by page; then each lies apart from all but the other.
static bool lie_apart(const struct kda_call *call, int64_t heads, struct kda_range *ranges)
{
    const struct kda_range conv = ranges[CONV_STATE], none = {0, 0};
    if (!kda_range_alone(ranges, OPERANDS, OUT)) return false;
    if (!pages_apart(call, heads))
        return kda_range_alone(ranges, OPERANDS, CONV_STATE) &&
               kda_range_alone(ranges, OPERANDS, STATE);
    ranges[CONV_STATE] = none;
    if (!kda_range_alone(ranges, OPERANDS, STATE)) return false;
    ranges[CONV_STATE] = conv;
    ranges[STATE] = none;
    return kda_range_alone(ranges, OPERANDS, CONV_STATE);
}

// True for a call whose tensors are plainly right: check_tensors would accept it, but looks at each
// of them several times.
static bool tensors_fit(const struct kda_call *call, const kda_problem *problem)
{
    const int64_t rows = problem->rows, heads = problem->heads, width = heads * KDA_D;
    const int64_t slots = kda_call_tensor(call, STATE)->extent[0];
    // [1,N,H,..] is one row of N tokens to those who check tokens.
    const struct kda_tokens layout = {
        .rows = 1, .tokens = rows, .total = rows, .lead = 2, .dim = rows > 1};
    const int64_t x[2] = {0, 3 * width}, weight[3] = {0, TAPS + 1, width};
    const int64_t gate[3] = {0, heads, KDA_D}, state[4] = {0, heads, KDA_D, KDA_D};
    struct kda_range ranges[OPERANDS];
    if (slots < 1 || !kda_operand_fits(call, X, 2, x, rows, 1, &ranges[X]) ||
        !kda_operand_fits(call, WEIGHT, 3, weight, 3, 0, &ranges[WEIGHT]) ||
        !conv_fits(call, slots, width, &ranges[CONV_STATE]) ||
        !kda_parts_tokens_fit(call, GATE, &layout, heads, false, 0, &ranges[GATE]) ||
        !kda_parts_tokens_fit(call, BETA, &layout, heads, true, 1, &ranges[BETA]) ||
        !kda_vector_fits(call, A_LOG, heads, &ranges[A_LOG]) ||
        !kda_vector_fits(call, DT_BIAS, width, &ranges[DT_BIAS]) ||
        !kda_vector_fits(call, INDICES, rows, &ranges[INDICES]) ||
        !kda_operand_fits(call, STATE, 4, state, slots, 8, &ranges[STATE]) ||
        !kda_vector_fits(call, NORM_WEIGHT, KDA_D, &ranges[NORM_WEIGHT]) ||
        !kda_parts_tokens_fit(call, OUT, &layout, heads, false, 0, &ranges[OUT]))
        return false;
    const bool flat = kda_call_tensor(call, OUTPUT_GATE)->rank == 3;
    struct kda_range *const last = &ranges[OUTPUT_GATE];
    if (flat ? !kda_operand_fits(call, OUTPUT_GATE, 3, gate, rows, 1, last)
             : !kda_parts_tokens_fit(call, OUTPUT_GATE, &layout, heads, false, 1, last))
        return false;
    return lie_apart(call, heads, ranges);
}

static kda_status check_tensors(const struct kda_call *call, const kda_problem *problem,
                                kda_error *err)
{
    struct kda_range ranges[OPERANDS];
    kda_status status = kda_call_ranges(call, ranges, err);
    if (status == KDA_OK) status = check_shapes(call, problem, err);
    if (status == KDA_OK) status = check_strides(call, problem->heads, err);
    if (status == KDA_OK) status = kda_call_alignments(call, err);
    if (status != KDA_OK) return status;
    struct kda_call placed = *call;
    if (pages_apart(call, problem->heads)) {
        placed.apart[0] = CONV_STATE;
        placed.apart[1] = STATE;
    }
    return kda_call_overlaps(&placed, ranges, err);
}

// ---------------------------------------------------------------------------------------- the call

static void fill(const kda_fused_args *args, const kda_problem *problem,
                 struct kda_fused_params *out)
{
    // With every member named, nothing is cleared first.
    *out = (struct kda_fused_params){
        .x = kda_tensor_address(&args->x),
        .weight = kda_tensor_address(&args->weight),
        .conv_state = kda_tensor_address(&args->conv_state),
        .raw_gate = kda_tensor_address(&args->raw_gate),
        .raw_beta = kda_tensor_address(&args->raw_beta),
        .a_log = kda_tensor_address(&args->a_log),
        .dt_bias = kda_tensor_address(&args->dt_bias),
        .norm_weight = kda_tensor_address(&args->norm_weight),
        .indices = kda_tensor_address(&args->state_indices),
        .state = kda_tensor_address(&args->state),
        .output_gate = kda_tensor_address(&args->output_gate),
        .out = kda_tensor_address(&args->out),
        .x_stride = args->x.stride[0],
        .beta_stride = args->raw_beta.stride[1],
        .output_gate_stride = args->output_gate.stride[args->output_gate.rank - 3],
        .conv_slot_stride = args->conv_state.stride[0],
        .slot_stride = args->state.stride[0],
        .num_slots = (int)args->state.extent[0],
        .rows = (int)problem->rows,
        .heads = (int)problem->heads,
        .scale = SCALE,
        .lower_bound = args->lower_bound,
        .norm_eps = args->norm_eps,
    };
}

// All that can be refused before the image is needed.
static kda_status validate(kda_context *context, const kda_fused_args *args, const char *body,
                           const char *target, struct kda_launch *out, kda_error *err)
{
    static const char operation[] = "fused";
    kda_status status = kda_launch_begin(context, args, operation, err);
    if (status != KDA_OK) return status;

    const struct kda_operand *const operands =
        args->state.dtype == KDA_F32 ? operands_f32 : operands_bf16;
    const struct kda_call call = {operation, operands, OPERANDS, args, {0, 0}};
    const kda_problem problem = {
        .op = KDA_OP_FUSED,
        .gate = args->gate,
        .tokens = 1,
        .rows = args->x.extent[0],
        .heads = args->state.extent[1],
        .value_heads = args->state.extent[1],
        .state_type = args->state.dtype,
        .mode = (int32_t)args->mode,
        .body = body,
        .target = target,
    };
    struct kda_choice choice;
    const bool plain = kda_call_plain(&call);
    status = plain ? KDA_OK : kda_call_present(&call, err);
    if (status == KDA_OK) status = check_arguments(&call, args, err);
    if (status == KDA_OK && !plain) status = check_types(&call, args, err);
    if (status == KDA_OK) status = check_scalars(&call, args, err);
    if (status == KDA_OK) status = check_accepted(context, &problem, args, err);
    if (status == KDA_OK)
        status = kda_launch_limits(context, &problem, args->state.extent[0], &choice, err);
    if (status == KDA_OK && !tensors_fit(&call, &problem))
        status = check_tensors(&call, &problem, err);
    if (status == KDA_OK)
        status = kda_launch_describe(context, operation, &problem, &choice, args->flags, out, err);
    if (status != KDA_OK) return status;
    fill(args, &problem, &out->params.fused);
    return KDA_OK;
}

kda_status kda_fused(kda_context *context, const kda_fused_args *args, CUstream stream,
                     kda_error *err)
{
    struct kda_launch launch;
    const kda_status status = validate(context, args, NULL, NULL, &launch, err);
    return status == KDA_OK ? kda_launch_now(&launch, stream, err) : status;
}

kda_status kda_fused_plan(kda_context *context, const kda_fused_args *args, const char *body,
                          const char *target, kda_plan *out, kda_error *err)
{
    if (!out) return kda_fail(err, KDA_E_ARGUMENT, "fused: out is null, it is mandatory");
    struct kda_launch launch = {0};
    const kda_status status = validate(context, args, body, target, &launch, err);
    return status == KDA_OK ? kda_launch_plan(&launch, out, err) : status;
}
