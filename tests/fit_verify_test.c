// SPDX-License-Identifier: Apache-2.0
// Verify calls that are accepted at once: the rules, asked one by one, accept every one of them.
// Includes the operation itself, because which way accepted a call cannot be seen from outside.
#include "loader/verify.c"

#include "tests/rig.h"

#define ARGS kda_verify_args
#define make rig_verify

static const struct rig_shape shapes[] = {
    {KDA_GATE_PRECOMPUTED, 1, false, 3, 2, 4, 8},
    {KDA_GATE_PRECOMPUTED, 4, false, 2, 2, 4, 8},
    {KDA_GATE_LOWER_BOUND, 16, true, 2, 4, 4, 6},
    {KDA_GATE_SOFTPLUS, 5, true, 3, 2, 8, 8},
};

// 1: fits, 0: refused by a rule about tensors, -1: neither.
static int agree(kda_context *context, const kda_verify_args *args)
{
    struct window window = {
        .call = {"verify", operands, OPERANDS, args, {0, 0}},
        .problem = {.op = KDA_OP_VERIFY},
    };
    struct kda_choice choice;
    if (!kda_call_plain(&window.call) || check_arguments(&window, args, NULL) != KDA_OK ||
        check_scalars(&window.call, args, NULL) != KDA_OK ||
        check_form(&window, args, NULL) != KDA_OK ||
        check_accepted(context, &window, args, NULL) != KDA_OK ||
        kda_launch_limits(context, &window.problem, args->state.extent[0], &choice, NULL) != KDA_OK)
        return -1;
    const bool fits = tensors_fit(&window);
    kda_error err;
    const kda_status status = check_tensors(&window, &err);
    if (fits && status != KDA_OK) fail_msg("accepted at once, but: %s", err.text);
    return fits ? 1 : status == KDA_OK ? -1 : 0;
}

#include "tests/fit.inc"
