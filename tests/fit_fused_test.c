// SPDX-License-Identifier: Apache-2.0
// Fused calls that are accepted at once: the rules, asked one by one, accept every one of them.
// Includes the operation itself, because which way accepted a call cannot be seen from outside.
#include "loader/fused.c"

#include "tests/rig.h"

#define ARGS kda_fused_args
#define operands operands_f32  // their offsets

static const struct shape {
    int64_t rows, heads;
    kda_dtype state;
    bool pages;  // conv_state and state in one page per slot
    bool flat;   // output_gate without its first extent
} shapes[] = {{1, 8, KDA_BF16, false, true},
              {3, 12, KDA_F32, true, false},
              {40, 24, KDA_BF16, true, true},
              {2, 8, KDA_F32, false, false}};

static kda_fused_args make(struct shape shape)
{
    kda_fused_args args = rig_fused(shape.rows, shape.heads, 2 * shape.rows, shape.state);
    if (!shape.flat) {
        const uint64_t address = kda_tensor_address(&args.output_gate);
        args.output_gate = RIG_TENSOR(address, KDA_BF16, 1, shape.rows, shape.heads, 128);
    }
    if (shape.pages) {  // the state behind the window, both at multiples of 32 bytes
        const int64_t window = 9 * 128 * shape.heads * 2, size = kda_type_size(shape.state);
        const int64_t page = window + shape.heads * 128 * 128 * size;
        args.conv_state.stride[0] = page / 2;
        args.state.stride[0] = page / size;
        args.state.data = (void *)((uintptr_t)args.conv_state.data + (uintptr_t)window);
    }
    return args;
}

// 1: fits, 0: refused by a rule about tensors, -1: neither.
static int agree(kda_context *context, const kda_fused_args *args)
{
    const struct kda_call call = {"fused",
                                  args->state.dtype == KDA_F32 ? operands_f32 : operands_bf16,
                                  OPERANDS,
                                  args,
                                  {0, 0}};
    const kda_problem problem = {.op = KDA_OP_FUSED,
                                 .gate = args->gate,
                                 .tokens = 1,
                                 .rows = args->x.extent[0],
                                 .heads = args->state.extent[1],
                                 .value_heads = args->state.extent[1],
                                 .state_type = args->state.dtype,
                                 .mode = (int32_t)args->mode};
    struct kda_choice choice;
    if (!kda_call_plain(&call) || check_arguments(&call, args, NULL) != KDA_OK ||
        check_scalars(&call, args, NULL) != KDA_OK ||
        check_accepted(context, &problem, args, NULL) != KDA_OK ||
        kda_launch_limits(context, &problem, args->state.extent[0], &choice, NULL) != KDA_OK)
        return -1;
    const bool fits = tensors_fit(&call, &problem);
    kda_error err;
    const kda_status status = check_tensors(&call, &problem, &err);
    if (fits && status != KDA_OK) fail_msg("accepted at once, but: %s", err.text);
    return fits ? 1 : status == KDA_OK ? -1 : 0;
}

#include "tests/fit.inc"
