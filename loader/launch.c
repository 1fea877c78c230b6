// SPDX-License-Identifier: Apache-2.0
// Owns plans and the one driver call that starts a kernel. Knows no tensors: parameters arrive
// filled. Invariant: a launch whose image is loaded makes exactly one driver call, takes no lock
// and allocates nothing.
#include "loader/launch.h"

#include <inttypes.h>
#include <string.h>

#include "loader/error.h"
#include "loader/route.h"

#define PLAN_MAGIC UINT64_C(0x6b64612d706c616e)

// What this library fills, by operator.
static const struct known_params {
    uint32_t version;
    size_t size;
} known_params[] = {
#define KNOWN(id, number, text) [number] = {KDA_PARAMS_##id},
    KDA_OPS(KNOWN)
#undef KNOWN
};

static bool is_empty(const struct kda_launch *launch) { return !launch->grid[0]; }

static kda_status run(const struct kda_launch *launch, CUstream stream, kda_error *err)
{
    if (is_empty(launch)) return KDA_OK;
    const struct kda_driver *const driver = launch->context->driver;
    // The driver only reads what these point to; its declaration lacks the const.
    void *params[] = {(void *)(uintptr_t)&launch->params};
    int result;
    if (launch->pdl) {
        const struct kda_cu_launch_attribute attribute = {.id = KDA_CU_LAUNCH_PDL, .value.pdl = 1};
        const struct kda_cu_launch_config config = {
            .grid = {launch->grid[0], launch->grid[1], 1},
            .block = {launch->block, 1, 1},
            .smem = launch->smem,
            .stream = stream,
            .attributes = &attribute,
            .attribute_count = 1,
        };
        result = driver->cuLaunchKernelEx(&config, launch->function, params, NULL);
    } else {
        result = driver->cuLaunchKernel(launch->function, launch->grid[0], launch->grid[1], 1,
                                        launch->block, 1, 1, launch->smem, stream, params, NULL);
    }
    if (result == KDA_CU_SUCCESS) return KDA_OK;
    const kda_bundle *const bundle = launch->context->bundle;
    const struct kda_format_cubin *const cubin = &bundle->cubins[launch->cubin];
    return kda_driver_fail(driver, result, launch->operation,
                           launch->pdl ? "cuLaunchKernelEx" : "cuLaunchKernel", err,
                           "body %s, target %s", bundle->strings + bundle->bodies[cubin->body].name,
                           bundle->strings + bundle->targets[cubin->target].name);
}

kda_status kda_launch_begin(const kda_context *context, const void *args, const char *operation,
                            kda_error *err)
{
    if (!context || !args)
        return kda_fail(err, KDA_E_ARGUMENT, "%s: %s is null", operation,
                        context ? "args" : "context");
    return kda_context_forked(context) ? kda_context_refuse_fork(operation, err) : KDA_OK;
}

kda_status kda_launch_limits(const kda_context *context, const kda_problem *problem, int64_t slots,
                             struct kda_choice *out, kda_error *err)
{
    const char *const operation = kda_op_name(problem->op);
    if (problem->value_heads > INT32_MAX)
        return kda_fail(err, KDA_E_LIMIT, "%s: HV = %" PRId64 ", HV*split must be at most %d",
                        operation, problem->value_heads, INT32_MAX);
    if (slots > INT32_MAX)
        return kda_fail(err, KDA_E_LIMIT,
                        "%s: num_slots = %" PRId64 " of state, must be at most %d", operation,
                        slots, INT32_MAX);
    out->cubin = KDA_NONE;
    out->status = kda_route_image(context->bundle, &context->device, problem, &out->cubin, NULL);
    if (out->status != KDA_E_LIMIT) return KDA_OK;
    return kda_route_image(context->bundle, &context->device, problem, &out->cubin, err);
}

kda_status kda_launch_describe(kda_context *context, const char *operation,
                               const kda_problem *problem, const struct kda_choice *choice,
                               uint32_t flags, struct kda_launch *out, kda_error *err)
{
    const kda_bundle *const bundle = context->bundle;
    uint32_t cubin = choice->cubin;
    if (choice->status != KDA_OK)
        return kda_route_image(bundle, &context->device, problem, &cubin, err);
    const struct kda_format_body *const body = &bundle->bodies[bundle->cubins[cubin].body];
    const bool pdl = flags & KDA_FLAG_PDL;
    if (pdl && !(body->flags & KDA_BODY_PDL))
        return kda_fail(err, KDA_E_UNSUPPORTED,
                        "%s: does not support KDA_FLAG_PDL with body %s, which does not wait for "
                        "its dependencies; "
                        "supported: bodies that the bundle marks pdl",
                        operation, bundle->strings + body->name);
    const struct known_params *const known = &known_params[problem->op];
    if (body->params_version != known->version || body->params_size != known->size)
        return kda_fail(err, KDA_E_VERSION,
                        "%s: body %s takes parameters version %u of %u bytes, known is %u of %zu",
                        operation, bundle->strings + body->name, body->params_version,
                        body->params_size, known->version, known->size);
    out->context = context;
    out->operation = operation;
    out->cubin = cubin;
    out->grid[0] = (uint32_t)problem->value_heads * body->split;
    out->grid[1] = (uint32_t)problem->rows;
    out->block = body->threads;
    out->smem = body->smem;
    out->pdl = pdl;
    return KDA_OK;
}

kda_status kda_launch_now(struct kda_launch *launch, CUstream stream, kda_error *err)
{
    if (is_empty(launch)) return KDA_OK;
    const kda_status status = kda_context_function(launch->context, launch->operation,
                                                   launch->cubin, stream, &launch->function, err);
    return status == KDA_OK ? run(launch, stream, err) : status;
}

kda_status kda_launch_plan(struct kda_launch *launch, kda_plan *out, kda_error *err)
{
    kda_status status = kda_context_check(launch->context, launch->operation, err);
    if (status != KDA_OK) return status;
    status = kda_context_function(launch->context, launch->operation, launch->cubin, NULL,
                                  &launch->function, err);
    if (status != KDA_OK) return status;
    launch->magic = PLAN_MAGIC;
    memset(out, 0, sizeof(*out));
    memcpy(out, launch, sizeof(*launch));
    return KDA_OK;
}

kda_status kda_plan_launch(const kda_plan *plan, CUstream stream, kda_error *err)
{
    const struct kda_launch *const launch = (const void *)plan;
    if (!launch || launch->magic != PLAN_MAGIC)
        return kda_fail(err, KDA_E_ARGUMENT,
                        "plan launch: plan is %s, must be one that a kda_*_plan call wrote",
                        launch ? "not a plan" : "null");
    if (kda_context_forked(launch->context))
        return kda_fail(err, KDA_E_FORKED,
                        "%s: the process is a fork of the one that made the plan",
                        launch->operation);
    return run(launch, stream, err);
}
