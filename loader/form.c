// SPDX-License-Identifier: Apache-2.0
// Owns the first half of the host contract of recurrent decode: scalars and the form of the call.
// Knows no accepted combinations: those are the bundle's. Invariant: a caller's number is used only
// after the check that bounds it.
#include "loader/form.h"

#include <inttypes.h>

#include "loader/error.h"
#include "loader/route.h"

// ------------------------------------------------------------------------------- 1 to 3: arguments

static kda_status check_arguments(struct kda_form *form, const kda_recurrent_args *args,
                                  kda_error *err)
{
    const char *const operation = form->call.operation;
    const kda_status status = kda_parts_words(operation, 0, args->reserved, args->flags,
                                              KDA_FLAG_SPECULATIVE | KDA_FLAG_PDL, err);
    if (status != KDA_OK) return status;
    return kda_parts_projections(operation, &args->q, &args->v, &form->problem, err);
}

static kda_status check_scalars(const struct kda_form *form, const kda_recurrent_args *args,
                                kda_error *err)
{
    const struct kda_scalars scalars = {
        .gate = args->gate,
        .lower_bound = args->lower_bound,
        .scale = args->scale,
        .beta_is_logit = args->beta_is_logit,
        .num_spec_tokens = args->num_spec_tokens,
        .least_spec_tokens = 1,
        .flags = args->flags,
        .a_log = kda_tensor_given(&args->a_log),
        .dt_bias = kda_tensor_given(&args->dt_bias),
    };
    return kda_parts_scalars(form->call.operation, &scalars, err);
}

// ------------------------------------------------------------------------------- 4: accepted calls

// Decides the form of the call, N and T.
static kda_status check_form(struct kda_form *form, const kda_recurrent_args *args, kda_error *err)
{
    const char *const operation = form->call.operation;
    const bool packed = kda_tensor_given(&args->cu_seqlens);
    const int64_t tokens = 1 + (int64_t)args->num_spec_tokens,
                  cu_extent = args->cu_seqlens.extent[0];
    if (packed && tokens == 1)
        return kda_fail(err, KDA_E_UNSUPPORTED,
                        "%s: does not support explicit T=1 cu_seqlens (extent %" PRId64
                        "), num_spec_tokens is not given; supported: T >= 2 by num_spec_tokens = "
                        "T-1 and KDA_FLAG_SPECULATIVE, or no cu_seqlens and [N,1,..]",
                        operation, cu_extent);
    if (packed && !kda_tensor_given(&args->ssm_state_indices))
        return kda_fail(err, KDA_E_ARGUMENT,
                        "%s: ssm_state_indices is required with cu_seqlens, it was omitted",
                        operation);
    if (packed ? args->q.rank != 3 : args->q.rank != 4)
        return kda_fail(err, KDA_E_UNSUPPORTED,
                        "%s: does not support q of rank %u %s cu_seqlens; supported: [N,T,H,128] "
                        "without, [tok,H,128] "
                        "with cu_seqlens (T >= 2)",
                        operation, args->q.rank, packed ? "with" : "without");
    if (!packed && args->q.extent[1] != tokens)
        return kda_fail(err, KDA_E_SHAPE,
                        "%s: q shape[1] is %" PRId64 ", must equal 1+num_spec_tokens = %" PRId64
                        "%s",
                        operation, args->q.extent[1], tokens,
                        tokens == 1 && args->q.extent[1] > 1
                            ? "; num_spec_tokens is not given, KDA_FLAG_SPECULATIVE is not set"
                            : "");
    form->problem.gate = args->gate;
    form->problem.state_type = KDA_BF16;
    form->problem.mode = 0;
    form->problem.tokens = tokens > INT32_MAX ? INT32_MAX : (int32_t)tokens;
    form->problem.rows = packed ? cu_extent - (cu_extent > 0) : args->q.extent[0];
    if (form->problem.rows < 1 || args->q.extent[0] < 1)
        return kda_fail(err, KDA_E_UNSUPPORTED,
                        "%s: does not support N = %" PRId64 " with q shape[0] = %" PRId64
                        "; supported: N = 1..%d and no empty tensors",
                        operation, form->problem.rows, args->q.extent[0], KDA_ROWS_MAX);
    form->layout = (struct kda_tokens){
        .rows = form->problem.rows,
        .tokens = tokens,
        .lead = packed ? 1 : 2,
        .dim = !packed && tokens > 1,
        .total_is = "where the first extent is N*T and cu_seqlens has N+1 elements",
    };
    return KDA_OK;
}

static kda_status check_accepted(const kda_context *context, struct kda_form *form,
                                 const kda_recurrent_args *args, kda_error *err)
{
    const char *const operation = form->call.operation;
    if (kda_tensor_given(&args->initial_state) || args->initial_state.rank)
        return kda_fail(
            err, KDA_E_UNSUPPORTED,
            "%s: does not support a separate initial_state (rank %u); supported: the pool alone",
            operation, args->initial_state.rank);
    uint32_t body = 0;
    const kda_status status = kda_route_accept(context->bundle, &form->problem, &body, err);
    if (status != KDA_OK) return status;
    form->layout.total = form->layout.rows * form->layout.tokens;
    form->body_flags = context->bundle->bodies[body].flags;
    if (args->beta_is_logit && !(form->body_flags & KDA_BODY_LOGIT_BETA))
        return kda_fail(err, KDA_E_UNSUPPORTED,
                        "%s: does not support beta_is_logit = 1 at T = %" PRId64
                        " with the %s gate; supported: 0",
                        operation, form->layout.tokens, kda_gate_name(args->gate));
    return kda_parts_bound(operation, args->gate, args->lower_bound, err);
}

kda_status kda_form_check(const kda_context *context, const kda_recurrent_args *args,
                          struct kda_form *form, kda_error *err)
{
    const bool plain = kda_call_plain(&form->call);
    kda_status status = plain ? KDA_OK : kda_call_present(&form->call, err);
    if (status == KDA_OK) status = check_arguments(form, args, err);
    if (status == KDA_OK && !plain) status = kda_call_types(&form->call, err);
    if (status == KDA_OK) status = check_scalars(form, args, err);
    if (status == KDA_OK) status = check_form(form, args, err);
    if (status == KDA_OK) status = check_accepted(context, form, args, err);
    return status;
}
