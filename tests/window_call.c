// SPDX-License-Identifier: Apache-2.0
// Owns the public API's view of a window: its argument structs, plans and launches.
#include "tests/window.h"

static kda_tensor view(const struct window *window, enum window_tensor tensor, const void *data,
                       uint32_t rank, const int64_t *extent, const int64_t *stride)
{
    const struct trial_buffer *buffer = &window->buffers[tensor];
    if (!buffer->size) return (kda_tensor){.data = NULL};
    const char *host =
        data ? data : (const char *)buffer->host + buffer->base * (int64_t)buffer->width;
    const CUdeviceptr address = buffer->device + (CUdeviceptr)(host - (const char *)buffer->host);
    kda_tensor result = {.data = (void *)(uintptr_t)address, .rank = rank};
    result.dtype =
        buffer->width == 2 ? KDA_BF16
        : tensor == WINDOW_A_LOG || tensor == WINDOW_DT_BIAS || tensor == WINDOW_CORRECTION
            ? KDA_F32
            : KDA_I32;
    for (uint32_t i = 0; i < rank; i++) {
        result.extent[i] = extent[i];
        result.stride[i] = stride[i];
    }
    return result;
}

static kda_tensor vector(const struct window *window, enum window_tensor tensor, int64_t count)
{
    return view(window, tensor, NULL, 1, &count, &(int64_t){1});
}

// A per-token tensor in the form of the call; `inner` is 128, or 0 for beta.
static kda_tensor tokens(const struct window *window, enum window_tensor tensor, const void *data,
                         int64_t heads, int64_t inner, int64_t stride)
{
    const int64_t per_head = inner ? inner : 1;
    // q, k and v may be slices of one buffer.
    if (window->slices && tensor <= WINDOW_V) tensor = WINDOW_Q;
    if (window->cu_form)
        return view(window, tensor, data, inner ? 3 : 2,
                    (int64_t[]){window->call.tok, heads, inner}, (int64_t[]){stride, per_head, 1});
    return view(window, tensor, data, inner ? 4 : 3,
                (int64_t[]){window->rows, window->tokens, heads, inner},
                (int64_t[]){window->tokens * stride, stride, per_head, 1});
}

static kda_tensor pool_view(const struct window *window)
{
    return view(window, WINDOW_STATE, NULL, 4,
                (int64_t[]){window->num_slots, window->value_heads, ORACLE_D, ORACLE_D},
                (int64_t[]){window->slot_stride, ORACLE_HEAD, ORACLE_D, 1});
}

static kda_tensor cache_view(const struct window *window, enum window_tensor tensor)
{
    const int64_t *strides = tensor == WINDOW_KG ? window->kg_strides : window->correction_strides;
    return view(window, tensor, NULL, 4,
                (int64_t[]){window->num_slots, window->value_heads, window->cache_tokens,
                            tensor == WINDOW_KG ? 2 * ORACLE_D : ORACLE_D},
                (int64_t[]){strides[0], strides[1], strides[2], 1});
}

static kda_tensor bias_view(const struct window *window)
{
    return view(window, WINDOW_DT_BIAS, NULL, 2, (int64_t[]){window->heads, ORACLE_D},
                (int64_t[]){ORACLE_D, 1});
}

kda_verify_args window_verify_args(const struct window *window)
{
    const struct oracle_call *call = &window->call;
    const int64_t heads = window->heads, value_heads = window->value_heads;
    return (kda_verify_args){
        .q = tokens(window, WINDOW_Q, call->q, heads, ORACLE_D, call->q_stride),
        .k = tokens(window, WINDOW_K, call->k, heads, ORACLE_D, call->k_stride),
        .v = tokens(window, WINDOW_V, call->v, value_heads, ORACLE_D, call->v_stride),
        .g = tokens(window, WINDOW_G, call->g, value_heads, ORACLE_D, call->g_stride),
        .beta = tokens(window, WINDOW_BETA, call->beta, value_heads, 0, call->beta_stride),
        .a_log = vector(window, WINDOW_A_LOG, heads),
        .dt_bias = bias_view(window),
        .state = pool_view(window),
        .out = tokens(window, WINDOW_OUT, NULL, value_heads, ORACLE_D, window->out_stride),
        .ssm_state_indices = vector(window, WINDOW_INDICES, window->rows),
        .cu_seqlens = vector(window, WINDOW_CU, window->rows + 1),
        .correction_cache = cache_view(window, WINDOW_CORRECTION),
        .kg_cache = cache_view(window, WINDOW_KG),
        .gate = window->gate,
        .num_spec_tokens = window->cu_form ? window->tokens - 1 : 0,
        .null_min = window->null_min,
        .beta_is_logit = window->beta_is_logit,
        .scale = window->scale,
        .lower_bound = window->lower_bound,
        .flags = window->cu_form ? KDA_FLAG_SPECULATIVE : 0,
    };
}

kda_commit_args window_commit_args(const struct window *window)
{
    return (kda_commit_args){
        .state = pool_view(window),
        .correction_cache = cache_view(window, WINDOW_CORRECTION),
        .kg_cache = cache_view(window, WINDOW_KG),
        .ssm_state_indices = vector(window, WINDOW_INDICES, window->rows),
        .num_accepted_tokens = vector(window, WINDOW_ACCEPTED, window->rows),
        .a_log = vector(window, WINDOW_A_LOG, window->heads),
        .dt_bias = bias_view(window),
        .gate = window->gate,
        .heads = (int32_t)window->heads,
        .null_min = window->null_min,
        .lower_bound = window->lower_bound,
    };
}

static kda_problem problem_of(const struct window *window, kda_op op)
{
    const int64_t tokens = op == KDA_OP_VERIFY ? window->tokens : window->cache_tokens;
    return (kda_problem){.op = op,
                         .gate = window->gate,
                         .tokens = (int32_t)(tokens < WINDOW_MOST ? tokens : WINDOW_MOST),
                         .rows = window->rows,
                         .heads = window->heads,
                         .value_heads = window->value_heads};
}

static kda_status plan(const struct window *window, kda_op op, const char *body, const char *target,
                       kda_plan *out, kda_error *err)
{
    if (op == KDA_OP_COMMIT) {
        const kda_commit_args args = window_commit_args(window);
        return kda_commit_plan(suite.context, &args, body, target, out, err);
    }
    const kda_verify_args args = window_verify_args(window);
    return kda_verify_plan(suite.context, &args, body, target, out, err);
}

static kda_status call(const struct window *window, kda_op op, CUstream stream, kda_error *err)
{
    suite.calls++;
    if (op == KDA_OP_COMMIT) {
        const kda_commit_args args = window_commit_args(window);
        return kda_commit(suite.context, &args, stream, err);
    }
    const kda_verify_args args = window_verify_args(window);
    return kda_verify(suite.context, &args, stream, err);
}

void window_launch(struct window *window, kda_op op, const char *body, const char *target)
{
    kda_error err = {.status = KDA_OK};
    kda_status status;
    if (body) {
        kda_plan planned;
        suite.calls++;
        status = plan(window, op, body, target, &planned, &err);
        if (!status) status = kda_plan_launch(&planned, NULL, &err);
    } else {
        const kda_problem problem = problem_of(window, op);
        kda_route_result route;
        status = kda_route(suite.bundle, &suite.device, &problem, &route, &err);
        if (!status) status = call(window, op, NULL, &err);
        if (!status) {
            body = route.body;
            target = route.target;
        }
    }
    if (status) fail_msg("%s: %s", kda_status_name(status), err.text);
    machine_sync(&suite.machine, NULL);
    suite_note(body, target);
}

void window_verify(struct window *window, const char *body, const char *target)
{
    window_upload(window);
    window_launch(window, KDA_OP_VERIFY, body, target);
    window_download(window);
}

void window_commit(struct window *window, const char *body, const char *target)
{
    window_launch(window, KDA_OP_COMMIT, body, target);
    window_download(window);
}

struct machine_graph window_capture(const struct window *window, kda_op op, CUstream stream)
{
    kda_error err = {.status = KDA_OK};
    const kda_problem problem = problem_of(window, op);
    kda_status status = kda_context_prepare(suite.context, &problem, &err);
    machine_capture(&suite.machine, stream);
    if (!status) status = call(window, op, stream, &err);
    if (status) fail_msg("%s: %s", kda_status_name(status), err.text);
    return machine_captured(&suite.machine, stream);
}
