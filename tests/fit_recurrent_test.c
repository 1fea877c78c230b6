// SPDX-License-Identifier: Apache-2.0
// Recurrent calls that are accepted at once: the rules, asked one by one, accept every one of them.
// Includes the operation itself, because which way accepted a call cannot be seen from outside.
#include "loader/recurrent.c"

#include "tests/rig.h"

#define ARGS kda_recurrent_args
#define make rig_recurrent

static const struct rig_shape shapes[] = {
    {KDA_GATE_PRECOMPUTED, 1, false, 3, 2, 4, 8},  {KDA_GATE_PRECOMPUTED, 2, false, 2, 2, 4, 8},
    {KDA_GATE_PRECOMPUTED, 4, true, 2, 2, 4, 8},   {KDA_GATE_PRECOMPUTED, 6, false, 1, 1, 2, 6},
    {KDA_GATE_LOWER_BOUND, 3, true, 2, 16, 16, 6}, {KDA_GATE_SOFTPLUS, 1, false, 3, 2, 2, 8},
};

// 1: fits, 0: refused by a rule about tensors, -1: neither.
static int agree(kda_context *context, const kda_recurrent_args *args)
{
    struct kda_form form;
    form.call = (struct kda_call){"recurrent", operands, OPERANDS, args, {0, 0}};
    form.problem = (kda_problem){.op = KDA_OP_RECURRENT};
    struct kda_choice choice;
    if (kda_form_check(context, args, &form, NULL) != KDA_OK ||
        kda_launch_limits(context, &form.problem, args->state.extent[0], &choice, NULL) != KDA_OK)
        return -1;
    const bool fits = tensors_fit(&form);
    kda_error err;
    const kda_status status = check_tensors(&form, &err);
    if (fits && status != KDA_OK) fail_msg("accepted at once, but: %s", err.text);
    return fits ? 1 : status == KDA_OK ? -1 : 0;
}

#include "tests/fit.inc"
