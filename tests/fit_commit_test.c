// SPDX-License-Identifier: Apache-2.0
// Commit calls that are accepted at once: the rules, asked one by one, accept every one of them.
// Includes the operation itself, because which way accepted a call cannot be seen from outside.
#include "loader/commit.c"

#include "tests/rig.h"

#define ARGS kda_commit_args
#define make rig_commit

static const struct rig_shape shapes[] = {
    {KDA_GATE_PRECOMPUTED, 4, false, 2, 2, 4, 8},
    {KDA_GATE_LOWER_BOUND, 16, true, 3, 4, 4, 6},
    {KDA_GATE_SOFTPLUS, 20, true, 1, 1, 8, 2},
};

// 1: fits, 0: refused by a rule about tensors, -1: neither.
static int agree(kda_context *context, const kda_commit_args *args)
{
    const struct kda_call call = {"commit", operands, OPERANDS, args, {0, 0}};
    const kda_problem problem = {.op = KDA_OP_COMMIT,
                                 .gate = args->gate,
                                 .tokens = window_length(&args->correction_cache),
                                 .rows = args->num_accepted_tokens.extent[0],
                                 .heads = args->heads,
                                 .value_heads = args->state.extent[1]};
    struct kda_choice choice;
    uint32_t any_body;
    if (!kda_call_plain(&call) || check_arguments(&call, args, NULL) != KDA_OK ||
        check_scalars(&call, args, NULL) != KDA_OK ||
        kda_route_accept(context->bundle, &problem, &any_body, NULL) != KDA_OK ||
        kda_launch_limits(context, &problem, args->state.extent[0], &choice, NULL) != KDA_OK ||
        check_limits(&call, args, NULL) != KDA_OK)
        return -1;
    const bool fits = tensors_fit(&call, &problem);
    kda_error err;
    const kda_status status = check_tensors(&call, &problem, &err);
    if (fits && status != KDA_OK) fail_msg("accepted at once, but: %s", err.text);
    return fits ? 1 : status == KDA_OK ? -1 : 0;
}

#include "tests/fit.inc"
