// SPDX-License-Identifier: Apache-2.0
// Packed calls that are accepted at once: the rules, asked one by one, accept every one of them.
// Includes the operation itself, because which way accepted a call cannot be seen from outside.
#include "loader/packed.c"

#include "tests/rig.h"

#define ARGS kda_packed_args

static const int64_t shapes[] = {1, 3, 40};

static kda_packed_args make(int64_t rows) { return rig_packed(rows, 2 * rows); }

// 1: fits, 0: refused by a rule about tensors, -1: neither.
static int agree(kda_context *context, const kda_packed_args *args)
{
    const struct kda_call call = {"packed", operands, OPERANDS, args, {0, 0}};
    const int64_t rows = args->mixed_qkv.extent[0], slots = args->state.extent[0];
    const kda_problem problem = {.op = KDA_OP_PACKED,
                                 .gate = KDA_GATE_LOWER_BOUND,
                                 .tokens = 1,
                                 .rows = rows,
                                 .heads = HEADS,
                                 .value_heads = HEADS};
    struct kda_choice choice;
    uint32_t body;
    if (!kda_call_plain(&call) || check_arguments(&call, args, NULL) != KDA_OK ||
        kda_route_accept(context->bundle, &problem, &body, NULL) != KDA_OK ||
        kda_launch_limits(context, &problem, slots, &choice, NULL) != KDA_OK)
        return -1;
    const bool fits = tensors_fit(&call, rows, slots);
    kda_error err;
    const kda_status status = check_tensors(&call, rows, slots, &err);
    if (fits && status != KDA_OK) fail_msg("accepted at once, but: %s", err.text);
    return fits ? 1 : status == KDA_OK ? -1 : 0;
}

#include "tests/fit.inc"
