// SPDX-License-Identifier: Apache-2.0
// Owns packed decode of Kimi K3: its operands, their shapes and strides, and how they map to the
// parameters that it shares with recurrent decode. The geometry is part of the operation, not of a
// body. Invariant: nothing is demanded of an address beyond the alignment of its element type.
#include "loader/error.h"
#include "loader/launch.h"
#include "loader/parts.h"
#include "loader/route.h"
#include "loader/tensor.h"

enum { D = 128, HEADS = 12, WIDTH = HEADS * D, SLOT = WIDTH * D };

static const float SCALE = 0x1.6a09e6p-4f;  // 128^-0.5
static const float LOWER_BOUND = -5.0f;

enum { MIXED, GATE, BETA, A_LOG, DT_BIAS, STATE, INDICES, OUT, OPERANDS };
_Static_assert(OPERANDS <= KDA_MAX_OPERANDS, "operands");

#define AT(field) offsetof(kda_packed_args, field)
static const struct kda_operand operands[OPERANDS] = {
    [MIXED] = {"mixed_qkv", AT(mixed_qkv), KDA_BF16, 2, false, false},
    [GATE] = {"raw_gate", AT(raw_gate), KDA_BF16, 2, false, false},
    [BETA] = {"raw_beta", AT(raw_beta), KDA_BF16, 2, false, false},
    [A_LOG] = {"A_log", AT(a_log), KDA_F32, 4, false, false},
    [DT_BIAS] = {"dt_bias", AT(dt_bias), KDA_F32, 4, false, false},
    [STATE] = {"state", AT(state), KDA_BF16, 2, false, true},
    [INDICES] = {"state_indices", AT(state_indices), KDA_I32, 4, false, false},
    [OUT] = {"output", AT(out), KDA_BF16, 2, false, true},
};
#undef AT

static kda_status check_arguments(const struct kda_call *call, const kda_packed_args *args,
                                  kda_error *err)
{
    const kda_status status = kda_parts_words(call->operation, args->reserved32, args->reserved,
                                              args->flags, KDA_FLAG_PDL, err);
    if (status != KDA_OK) return status;
    return args->state.rank == 4 ? kda_parts_pool_heads(call->operation, &args->state, err)
                                 : KDA_OK;
}

static kda_status check_shapes(const struct kda_call *call, int64_t rows, int64_t slots,
                               kda_error *err)
{
    if (slots < 1)
        return kda_fail(err, KDA_E_SHAPE,
                        "%s: state shape[0] (num_slots) is %lld, must be at least 1",
                        call->operation, (long long)slots);
    const struct {
        uint32_t rank;
        int64_t extents[4];
    } shapes[OPERANDS] = {
        [MIXED] = {2, {rows, 3 * WIDTH}}, [GATE] = {2, {rows, WIDTH}},
        [BETA] = {2, {rows, HEADS}},      [A_LOG] = {1, {HEADS}},
        [DT_BIAS] = {1, {WIDTH}},         [STATE] = {4, {slots, HEADS, D, D}},
        [INDICES] = {1, {rows}},          [OUT] = {4, {rows, 1, HEADS, D}},
    };
    kda_status status = KDA_OK;
    for (uint32_t i = 0; i < OPERANDS && status == KDA_OK; i++)
        status = kda_operand_shape(call, i, shapes[i].rank, shapes[i].extents,
                                   i == INDICES ? "shape[0] is the N of mixed_qkv" : "", err);
    return status;
}

static kda_status check_strides(const struct kda_call *call, kda_error *err)
{
    static const int64_t pitches[OPERANDS] = {
        [MIXED] = 3 * WIDTH, [GATE] = WIDTH, [BETA] = HEADS, [STATE] = SLOT};
    kda_status status = KDA_OK;
    for (uint32_t i = 0; i < OPERANDS && status == KDA_OK; i++) {
        status = kda_operand_compact(call, i, pitches[i] ? 1 : 0, err);
        if (status == KDA_OK && pitches[i])
            status = kda_operand_pitch(call, i, 0, pitches[i], 1, err);
    }
    return status;
}

// True for a call whose tensors are plainly right: check_tensors would accept it, but looks at each
// of them several times.
static bool tensors_fit(const struct kda_call *call, int64_t rows, int64_t slots)
{
    static const struct {
        uint32_t rank;
        int64_t extents[4];
        bool free;
    } shapes[OPERANDS] = {
        [MIXED] = {2, {0, 3 * WIDTH}, true}, [GATE] = {2, {0, WIDTH}, true},
        [BETA] = {2, {0, HEADS}, true},      [A_LOG] = {1, {0}, false},
        [DT_BIAS] = {1, {0}, false},         [STATE] = {4, {0, HEADS, D, D}, true},
        [INDICES] = {1, {0}, false},         [OUT] = {4, {0, 1, HEADS, D}, false},
    };
    const int64_t counts[OPERANDS] = {
        [MIXED] = rows,    [GATE] = rows,   [BETA] = rows,    [A_LOG] = HEADS,
        [DT_BIAS] = WIDTH, [STATE] = slots, [INDICES] = rows, [OUT] = rows};
    struct kda_range ranges[OPERANDS];
    if (slots < 1) return false;
    for (uint32_t i = 0; i < OPERANDS; i++) {
        if (!kda_operand_fits(call, i, shapes[i].rank, shapes[i].extents, counts[i], shapes[i].free,
                              &ranges[i]))
            return false;
    }
    return kda_range_alone(ranges, OPERANDS, STATE) && kda_range_alone(ranges, OPERANDS, OUT);
}

static kda_status check_tensors(const struct kda_call *call, int64_t rows, int64_t slots,
                                kda_error *err)
{
    struct kda_range ranges[OPERANDS];
    kda_status status = kda_call_ranges(call, ranges, err);
    if (status == KDA_OK) status = check_shapes(call, rows, slots, err);
    if (status == KDA_OK) status = check_strides(call, err);
    if (status == KDA_OK) status = kda_call_alignments(call, err);
    return status == KDA_OK ? kda_call_overlaps(call, ranges, err) : status;
}

static void fill(const kda_packed_args *args, int64_t rows, struct kda_recurrent_params *out)
{
    const int64_t mixed_stride = args->mixed_qkv.stride[0];
    const unsigned long long element = 2;
    // With every member named, nothing is cleared first.
    *out = (struct kda_recurrent_params){
        .dependent = 0,  // it does nothing before its wait
        .q = kda_tensor_address(&args->mixed_qkv),
        .k = kda_tensor_address(&args->mixed_qkv) + WIDTH * element,
        .v = kda_tensor_address(&args->mixed_qkv) + 2 * WIDTH * element,
        .g = kda_tensor_address(&args->raw_gate),
        .beta = kda_tensor_address(&args->raw_beta),
        .a_log = kda_tensor_address(&args->a_log),
        .dt_bias = kda_tensor_address(&args->dt_bias),
        .state = kda_tensor_address(&args->state),
        .out = kda_tensor_address(&args->out),
        .cu_seqlens = 0,
        .indices = kda_tensor_address(&args->state_indices),
        .accepted = 0,
        .q_stride = mixed_stride,
        .k_stride = mixed_stride,
        .v_stride = mixed_stride,
        .g_stride = args->raw_gate.stride[0],
        .beta_stride = args->raw_beta.stride[0],
        .slot_stride = args->state.stride[0],
        .tok = (int)rows,
        .num_slots = (int)args->state.extent[0],
        .rows = (int)rows,
        .heads = HEADS,
        .value_heads = HEADS,
        .query = kda_query_divisor(HEADS, HEADS),
        .beta_is_logit = 1,
        .scale = SCALE,
        .lower_bound = LOWER_BOUND,
        .reserved = 0,
    };
}

// All that can be refused before the image is needed.
static kda_status validate(kda_context *context, const kda_packed_args *args, const char *body,
                           const char *target, struct kda_launch *out, kda_error *err)
{
    static const char operation[] = "packed";
    kda_status status = kda_launch_begin(context, args, operation, err);
    if (status != KDA_OK) return status;

    const struct kda_call call = {operation, operands, OPERANDS, args, {0, 0}};
    const int64_t rows = args->mixed_qkv.extent[0], slots = args->state.extent[0];
    const kda_problem problem = {
        .op = KDA_OP_PACKED,
        .gate = KDA_GATE_LOWER_BOUND,
        .tokens = 1,
        .rows = rows,
        .heads = HEADS,
        .value_heads = HEADS,
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
    if (status == KDA_OK) status = kda_route_accept(context->bundle, &problem, &any_body, err);
    if (status == KDA_OK) status = kda_launch_limits(context, &problem, slots, &choice, err);
    if (status == KDA_OK && !tensors_fit(&call, rows, slots))
        status = check_tensors(&call, rows, slots, err);
    if (status == KDA_OK)
        status = kda_launch_describe(context, operation, &problem, &choice, args->flags, out, err);
    if (status != KDA_OK) return status;
    fill(args, rows, &out->params.recurrent);
    return KDA_OK;
}

kda_status kda_packed(kda_context *context, const kda_packed_args *args, CUstream stream,
                      kda_error *err)
{
    struct kda_launch launch;
    const kda_status status = validate(context, args, NULL, NULL, &launch, err);
    return status == KDA_OK ? kda_launch_now(&launch, stream, err) : status;
}

kda_status kda_packed_plan(kda_context *context, const kda_packed_args *args, const char *body,
                           const char *target, kda_plan *out, kda_error *err)
{
    if (!out) return kda_fail(err, KDA_E_ARGUMENT, "packed: out is null, it is mandatory");
    struct kda_launch launch = {0};
    const kda_status status = validate(context, args, body, target, &launch, err);
    return status == KDA_OK ? kda_launch_plan(&launch, out, err) : status;
}
