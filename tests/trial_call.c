// SPDX-License-Identifier: Apache-2.0
// Owns the public API's view of a trial: its argument structs, its plans and launches. Nothing else
// in the suites spells them.
#include "tests/trial.h"

static kda_tensor view(const struct trial *trial, enum trial_tensor tensor, int64_t offset,
                       uint32_t rank, const int64_t *extent, const int64_t *stride)
{
    const struct trial_buffer *buffer = &trial->buffers[tensor];
    if (!buffer->size) return (kda_tensor){.data = NULL};
    uintptr_t address =
        (uintptr_t)buffer->device + (uintptr_t)(buffer->base + offset) * buffer->width;
    kda_tensor result = {.data = (void *)address, .rank = rank};
    result.dtype = trial_kinds[tensor].bf16                           ? KDA_BF16
                   : tensor == TRIAL_A_LOG || tensor == TRIAL_DT_BIAS ? KDA_F32
                                                                      : KDA_I32;
    for (uint32_t i = 0; i < rank; i++) {
        result.extent[i] = extent[i];
        result.stride[i] = stride[i];
    }
    return result;
}

static kda_tensor vector(const struct trial *trial, enum trial_tensor tensor, int64_t count)
{
    return view(trial, tensor, 0, 1, &count, &(int64_t){1});
}

static kda_tensor pool_view(const struct trial *trial)
{
    return view(trial, TRIAL_STATE, 0, 4,
                (int64_t[]){trial->num_slots, trial->value_heads, ORACLE_D, ORACLE_D},
                (int64_t[]){trial->slot_stride, ORACLE_HEAD, ORACLE_D, 1});
}

// A per-token tensor of `heads` heads in the form of the call; `inner` is 128, or 0 for beta, which
// has no channels.
static kda_tensor tokens(const struct trial *trial, enum trial_tensor tensor, int64_t offset,
                         int64_t heads, int64_t inner, int64_t stride)
{
    int64_t per_head = inner ? inner : 1;
    if (trial->cu_form)
        return view(trial, tensor, offset, inner ? 3 : 2,
                    (int64_t[]){trial->call.tok, heads, inner}, (int64_t[]){stride, per_head, 1});
    return view(trial, tensor, offset, inner ? 4 : 3,
                (int64_t[]){trial->rows, trial->tokens, heads, inner},
                (int64_t[]){trial->tokens * stride, stride, per_head, 1});
}

static uint32_t flags_of(const struct trial *trial) { return trial->dependent ? KDA_FLAG_PDL : 0; }

kda_recurrent_args trial_recurrent(const struct trial *trial)
{
    const struct oracle_call *call = &trial->call;
    int64_t heads = trial->heads, value_heads = trial->value_heads, part = heads * ORACLE_D;
    enum trial_tensor k = trial->slices ? TRIAL_Q : TRIAL_K, v = trial->slices ? TRIAL_Q : TRIAL_V;
    bool speculative = trial->tokens > 1;
    return (kda_recurrent_args){
        .q = tokens(trial, TRIAL_Q, 0, heads, ORACLE_D, call->q_stride),
        .k = tokens(trial, k, trial->slices ? part : 0, heads, ORACLE_D, call->k_stride),
        .v = tokens(trial, v, trial->slices ? 2 * part : 0, value_heads, ORACLE_D, call->v_stride),
        .g = tokens(trial, TRIAL_G, 0, value_heads, ORACLE_D, call->g_stride),
        .beta = tokens(trial, TRIAL_BETA, 0, value_heads, 0, call->beta_stride),
        .a_log = vector(trial, TRIAL_A_LOG, heads),
        .dt_bias = view(trial, TRIAL_DT_BIAS, 0, 2, (int64_t[]){heads, ORACLE_D},
                        (int64_t[]){ORACLE_D, 1}),
        .state = pool_view(trial),
        .out = tokens(trial, TRIAL_OUT, 0, value_heads, ORACLE_D, value_heads * ORACLE_D),
        .ssm_state_indices = trial->tokens == 1 ? vector(trial, TRIAL_INDICES, trial->rows)
                                                : view(trial, TRIAL_INDICES, 0, 2,
                                                       (int64_t[]){trial->rows, trial->tokens},
                                                       (int64_t[]){trial->tokens, 1}),
        .cu_seqlens = vector(trial, TRIAL_CU, trial->rows + 1),
        .num_accepted_tokens = vector(trial, TRIAL_ACCEPTED, trial->rows),
        .gate = trial->gate,
        .num_spec_tokens = speculative ? trial->tokens - 1 : 0,
        .beta_is_logit = trial->beta_is_logit,
        .scale = trial->scale,
        .lower_bound = trial->lower_bound,
        .flags = (speculative ? KDA_FLAG_SPECULATIVE : 0) | flags_of(trial),
    };
}

static kda_tensor matrix(const struct trial *trial, enum trial_tensor tensor, int64_t width,
                         int64_t stride)
{
    return view(trial, tensor, 0, 2, (int64_t[]){trial->rows, width}, (int64_t[]){stride, 1});
}

kda_packed_args trial_packed(const struct trial *trial)
{
    const struct oracle_call *call = &trial->call;
    int64_t width = trial->heads * ORACLE_D;
    return (kda_packed_args){
        .mixed_qkv = matrix(trial, TRIAL_Q, 3 * width, call->q_stride),
        .raw_gate = matrix(trial, TRIAL_G, width, call->g_stride),
        .raw_beta = matrix(trial, TRIAL_BETA, trial->heads, call->beta_stride),
        .a_log = vector(trial, TRIAL_A_LOG, trial->heads),
        .dt_bias = vector(trial, TRIAL_DT_BIAS, width),
        .state = pool_view(trial),
        .state_indices = vector(trial, TRIAL_INDICES, trial->rows),
        .out = tokens(trial, TRIAL_OUT, 0, trial->heads, ORACLE_D, width),
        .flags = flags_of(trial),
    };
}

kda_problem trial_problem(const struct trial *trial)
{
    return (kda_problem){.op = trial->op,
                         .gate = trial->gate,
                         .tokens = trial->tokens,
                         .rows = trial->rows,
                         .heads = trial->heads,
                         .value_heads = trial->value_heads};
}

kda_status trial_plan(const struct trial *trial, kda_context *context, const char *body,
                      const char *target, kda_plan *out, kda_error *err)
{
    suite.calls++;
    if (trial->op == KDA_OP_PACKED) {
        kda_packed_args args = trial_packed(trial);
        return kda_packed_plan(context, &args, body, target, out, err);
    }
    kda_recurrent_args args = trial_recurrent(trial);
    return kda_recurrent_plan(context, &args, body, target, out, err);
}

kda_status trial_call(const struct trial *trial, kda_context *context, CUstream stream,
                      kda_error *err)
{
    suite.calls++;
    if (trial->op == KDA_OP_PACKED) {
        kda_packed_args args = trial_packed(trial);
        return kda_packed(context, &args, stream, err);
    }
    kda_recurrent_args args = trial_recurrent(trial);
    return kda_recurrent(context, &args, stream, err);
}

void trial_relaunch(struct trial *trial, const char *body, const char *target)
{
    kda_error err = {.status = KDA_OK};
    kda_status status;
    if (body) {
        kda_plan plan;
        status = trial_plan(trial, suite.context, body, target, &plan, &err);
        if (!status) status = kda_plan_launch(&plan, NULL, &err);
    } else {
        kda_problem problem = trial_problem(trial);
        kda_route_result route;
        status = kda_route(suite.bundle, &suite.device, &problem, &route, &err);
        if (!status) status = trial_call(trial, suite.context, NULL, &err);
        if (!status) {
            body = route.body;
            target = route.target;
        }
    }
    if (status) fail_msg("%s: %s", kda_status_name(status), err.text);
    machine_sync(&suite.machine, NULL);
    if (target) suite_note(body, target);
}

void trial_run(struct trial *trial, const char *body, const char *target)
{
    trial_upload(trial);
    trial_relaunch(trial, body, target);
    trial_download(trial);
}

void trial_launch(const struct trial *trial, CUstream stream)
{
    kda_error err = {.status = KDA_OK};
    if (trial_call(trial, suite.context, stream, &err))
        fail_msg("%s: %s", kda_status_name(err.status), err.text);
}

struct machine_graph trial_capture(const struct trial *trial, CUstream stream)
{
    kda_problem problem = trial_problem(trial);
    assert_int_equal(kda_context_prepare(suite.context, &problem, NULL), KDA_OK);
    machine_capture(&suite.machine, stream);
    trial_launch(trial, stream);
    return machine_captured(&suite.machine, stream);
}
