// SPDX-License-Identifier: Apache-2.0
// Owns the life of a kda_context: identity, device facts, and the images loaded into one CUDA
// context. Knows no operators. Invariants: no handle is used before the CUDA context is known to be
// the bound one; every function leaves the caller's current context as it was; a child of fork
// touches no driver.
#include "loader/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/error.h"
#include "loader/route.h"

// A handle that was once good fails in more ways than a launch does.
static kda_status fail_identity(const struct kda_driver *driver, int result, const char *operation,
                                const char *call, kda_error *err)
{
    if (result == KDA_CU_INVALID_CONTEXT || result == KDA_CU_INVALID_VALUE)
        return kda_fail_driver(err, KDA_E_CONTEXT_LOST, result,
                               "%s: %s returned %d, not a live CUDA context", operation, call,
                               result);
    return kda_driver_fail(driver, result, operation, call, err, "%s", "");
}

static kda_status enter(const struct kda_driver *driver, CUcontext cuda, const char *operation,
                        kda_error *err)
{
    const int result = driver->cuCtxPushCurrent(cuda);
    return result == KDA_CU_SUCCESS
               ? KDA_OK
               : fail_identity(driver, result, operation, "cuCtxPushCurrent", err);
}

static kda_status leave(const struct kda_driver *driver, const char *operation, kda_error *err)
{
    CUcontext popped;
    const int result = driver->cuCtxPopCurrent(&popped);
    return result == KDA_CU_SUCCESS
               ? KDA_OK
               : kda_driver_fail(driver, result, operation, "cuCtxPopCurrent", err, "%s", "");
}

kda_status kda_context_refuse_fork(const char *operation, kda_error *err)
{
    return kda_fail(err, KDA_E_FORKED, "%s: the process is a fork of the one that made the context",
                    operation);
}

kda_status kda_context_check(const kda_context *context, const char *operation, kda_error *err)
{
    if (kda_context_forked(context)) return kda_context_refuse_fork(operation, err);
    unsigned long long id = 0;
    const int result = context->driver->cuCtxGetId(context->cuda, &id);
    if (result != KDA_CU_SUCCESS)
        return fail_identity(context->driver, result, operation, "cuCtxGetId", err);
    if (id != context->id)
        return kda_fail(
            err, KDA_E_CONTEXT_LOST,
            "%s: the CUDA context at this handle has id %llu, the one that was bound had %llu",
            operation, id, context->id);
    return KDA_OK;
}

// -------------------------------------------------------------------------------- create and close

// Reads the facts of the current context's device.
static kda_status read_device(const struct kda_driver *driver, CUdevice *ordinal, kda_device *out,
                              kda_error *err)
{
    const char *const operation = "context create";
    const char *call = "cuCtxGetDevice";
    int result = driver->cuCtxGetDevice(ordinal);
    const struct {
        int attribute, *value;
    } facts[] = {{KDA_CU_CC_MAJOR, &out->cc_major},
                 {KDA_CU_CC_MINOR, &out->cc_minor},
                 {KDA_CU_SM_COUNT, &out->sm_count}};
    for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]) && result == KDA_CU_SUCCESS; i++) {
        call = "cuDeviceGetAttribute";
        result = driver->cuDeviceGetAttribute(facts[i].value, facts[i].attribute, *ordinal);
    }
    if (result == KDA_CU_SUCCESS) {
        call = "cuDriverGetVersion";
        result = driver->cuDriverGetVersion(&out->cuda_version);
    }
    return result == KDA_CU_SUCCESS
               ? KDA_OK
               : kda_driver_fail(driver, result, operation, call, err, "%s", "");
}

static kda_status check_overrides(const kda_device *overrides, kda_error *err)
{
    if (!overrides) return KDA_OK;
    const kda_status status = kda_device_words("context create", "overrides.", overrides, err);
    if (status) return status;
    if ((overrides->overridden & KDA_OVERRIDDEN_SMS) && overrides->sm_count <= 0)
        return kda_fail(err, KDA_E_ARGUMENT,
                        "context create: the overridden SM count is %d, must be at least 1",
                        overrides->sm_count);
    return KDA_OK;
}

static void apply_overrides(const kda_device *overrides, kda_device *device)
{
    if (!overrides) return;
    device->overridden = overrides->overridden;
    if (overrides->overridden & KDA_OVERRIDDEN_CC) {
        device->cc_major = overrides->cc_major;
        device->cc_minor = overrides->cc_minor;
    }
    if (overrides->overridden & KDA_OVERRIDDEN_CUDA) device->cuda_version = overrides->cuda_version;
    if (overrides->overridden & KDA_OVERRIDDEN_SMS) device->sm_count = overrides->sm_count;
}

kda_status kda_context_create(const kda_bundle *bundle, CUcontext cuda, const kda_device *overrides,
                              kda_context **out, kda_error *err)
{
    const char *const operation = "context create";
    if (!bundle || !out)
        return kda_fail(err, KDA_E_ARGUMENT, "%s: %s is null", operation,
                        bundle ? "out" : "bundle");
    const struct kda_driver *driver = NULL;
    kda_status status = check_overrides(overrides, err);
    if (status == KDA_OK) status = kda_driver_open(&driver, err);
    if (status != KDA_OK) return status;
    int result = driver->cuInit(0);
    if (result != KDA_CU_SUCCESS)
        return kda_driver_fail(driver, result, operation, "cuInit", err, "%s", "");
    if (!cuda) {
        result = driver->cuCtxGetCurrent(&cuda);
        if (result != KDA_CU_SUCCESS)
            return kda_driver_fail(driver, result, operation, "cuCtxGetCurrent", err, "%s", "");
        if (!cuda)
            return kda_fail(err, KDA_E_ARGUMENT,
                            "%s: no CUDA context was given and none is current", operation);
    }
    unsigned long long id = 0;
    result = driver->cuCtxGetId(cuda, &id);
    if (result != KDA_CU_SUCCESS)
        return fail_identity(driver, result, operation, "cuCtxGetId", err);

    status = enter(driver, cuda, operation, err);
    if (status != KDA_OK) return status;
    CUdevice ordinal = 0;
    kda_device device = {0};
    status = read_device(driver, &ordinal, &device, err);
    const kda_status left = leave(driver, operation, status == KDA_OK ? err : NULL);
    if (status == KDA_OK) status = left;
    if (status != KDA_OK) return status;

    kda_context *context =
        calloc(1, sizeof(*context) + bundle->cubin_count * sizeof(context->images[0]));
    if (!context)
        return kda_fail(err, KDA_E_NO_MEMORY, "%s: no memory for %u images", operation,
                        bundle->cubin_count);
    if (pthread_mutex_init(&context->lock, NULL)) {
        free(context);
        return kda_fail(err, KDA_E_NO_MEMORY, "%s: no memory for a lock", operation);
    }
    context->bundle = bundle;
    context->driver = driver;
    context->cuda = cuda;
    context->id = id;
    context->generation = kda_driver_generation();
    context->chip = (uint32_t)(10 * device.cc_major + device.cc_minor);
    context->ordinal = ordinal;
    context->device = device;
    apply_overrides(overrides, &context->device);
    *out = context;
    return KDA_OK;
}

void kda_context_close(kda_context **context)
{
    if (!context || !*context) return;
    kda_context *const closing = *context;
    *context = NULL;
    const struct kda_driver *const driver = closing->driver;
    const bool forked = kda_context_forked(closing);
    if (kda_context_check(closing, "context close", NULL) == KDA_OK &&
        enter(driver, closing->cuda, "context close", NULL) == KDA_OK) {
        for (uint32_t i = 0; i < closing->bundle->cubin_count; i++) {
            // A close has nobody to tell that an unload failed.
            if (closing->images[i].module) (void)driver->cuModuleUnload(closing->images[i].module);
        }
        (void)leave(driver, "context close", NULL);
    }
    // In a child of fork another thread of the parent may have held the lock: it is not to be
    // destroyed there.
    if (!forked) (void)pthread_mutex_destroy(&closing->lock);
    free(closing);
}

kda_device kda_context_device(const kda_context *context)
{
    return context ? context->device : (kda_device){0};
}

// ------------------------------------------------------------------------------------------ images

static kda_status check_capture(const kda_context *context, const char *operation, const char *body,
                                const char *target, CUstream stream, kda_error *err)
{
    int capture = KDA_CU_CAPTURE_NONE;
    const int result = context->driver->cuStreamIsCapturing(stream, &capture);
    // IMPLICIT: the legacy stream was asked while another stream of the context captures.
    if (result != KDA_CU_SUCCESS && result != KDA_CU_STREAM_CAPTURE_IMPLICIT)
        return kda_driver_fail(context->driver, result, operation, "cuStreamIsCapturing", err,
                               "body %s, target %s", body, target);
    if (result == KDA_CU_STREAM_CAPTURE_IMPLICIT || capture != KDA_CU_CAPTURE_NONE)
        return kda_fail(
            err, KDA_E_NOT_PREPARED,
            "%s: the image of body %s for target %s is not loaded and a stream is being captured, "
            "prepare it before the capture",
            operation, body, target);
    return KDA_OK;
}

// Overridden facts may route to an image that this chip cannot run.
static kda_status check_chip(const kda_context *context, const char *operation, const char *body,
                             const struct kda_format_target *target, kda_error *err)
{
    char list[64] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < target->cc_count; i++) {
        if (target->ccs[i] == context->chip) return KDA_OK;
        const int length = snprintf(list + used, sizeof(list) - used, " %u.%u", target->ccs[i] / 10,
                                    target->ccs[i] % 10);
        if (length > 0 && (size_t)length < sizeof(list) - used) used += (size_t)length;
    }
    return kda_fail(err, KDA_E_NO_ROUTE,
                    "%s: body %s, target %s runs on CC%s, the device is CC %u.%u", operation, body,
                    context->bundle->strings + target->name, list, context->chip / 10,
                    context->chip % 10);
}

// Verified bytes -> module -> function, in the current context.
static kda_status load(const kda_context *context, const char *operation, uint32_t cubin,
                       struct kda_open_frame *frame, CUmodule *out_module, CUfunction *out_function,
                       kda_error *err)
{
    const kda_bundle *const bundle = context->bundle;
    const struct kda_driver *const driver = context->driver;
    const struct kda_format_cubin *const record = &bundle->cubins[cubin];
    const struct kda_format_body *const body = &bundle->bodies[record->body];
    void *image = NULL;
    size_t size = 0;
    struct kda_open_frame own = {KDA_NONE, NULL};
    const kda_status status =
        kda_bundle_load(bundle, cubin, frame ? frame : &own, &image, &size, err);
    kda_frame_close(&own);
    if (status != KDA_OK) return status;

    CUmodule module = NULL;
    CUfunction function = NULL;
    const char *call = "cuModuleLoadData";
    int result = driver->cuModuleLoadData(&module, image);
    free(image);
    if (result != KDA_CU_SUCCESS) goto fail;
    call = "cuModuleGetFunction";
    result = driver->cuModuleGetFunction(&function, module, bundle->strings + body->entry);
    if (result != KDA_CU_SUCCESS) goto fail;
    if (body->smem > KDA_CU_SMEM_DEFAULT) {
        call = "cuFuncSetAttribute";
        result = driver->cuFuncSetAttribute(function, KDA_CU_FUNC_SMEM, (int)body->smem);
        if (result != KDA_CU_SUCCESS) goto fail;
    }
    *out_module = module;
    *out_function = function;
    return KDA_OK;

fail:
    if (module) (void)driver->cuModuleUnload(module);  // the first failure is the one to report
    return kda_driver_fail(
        driver, result, operation, call, err,
        "body %s, target %s: the image of toolkit %s needs CUDA %u.%u or newer, the driver has "
        "%d.%d",
        bundle->strings + body->name, bundle->strings + bundle->targets[record->target].name,
        bundle->strings + record->toolkit, record->min_cuda / 1000, record->min_cuda % 1000 / 10,
        context->device.cuda_version / 1000, context->device.cuda_version % 1000 / 10);
}

kda_status kda_context_load(kda_context *context, const char *operation, uint32_t cubin,
                            CUstream stream, struct kda_open_frame *frame, CUfunction *out,
                            kda_error *err)
{
    const kda_bundle *const bundle = context->bundle;
    const struct kda_format_cubin *const record = &bundle->cubins[cubin];
    const struct kda_format_target *const target = &bundle->targets[record->target];
    const char *const body = bundle->strings + bundle->bodies[record->body].name;
    struct kda_image *const slot = &context->images[cubin];

    kda_status status = check_chip(context, operation, body, target, err);
    if (status == KDA_OK) status = kda_context_check(context, operation, err);
    if (status != KDA_OK) return status;

    CUmodule module = NULL;
    (void)pthread_mutex_lock(&context->lock);  // fails only for a lock that is none
    CUfunction function = atomic_load_explicit(&slot->function, memory_order_relaxed);
    if (function) goto done;
    status = enter(context->driver, context->cuda, operation, err);
    if (status != KDA_OK) goto done;
    status = check_capture(context, operation, body, bundle->strings + target->name, stream, err);
    if (status == KDA_OK) status = load(context, operation, cubin, frame, &module, &function, err);
    if (status == KDA_OK) {
        slot->module = module;
        atomic_store_explicit(&slot->function, function, memory_order_release);
    }
    const kda_status left = leave(context->driver, operation, status == KDA_OK ? err : NULL);
    if (status == KDA_OK) status = left;
done:
    (void)pthread_mutex_unlock(&context->lock);
    if (status == KDA_OK) *out = function;
    return status;
}

// ----------------------------------------------------------------------------------------- prepare

static kda_status prepare_problem(kda_context *context, const kda_problem *problem,
                                  struct kda_open_frame *frame, kda_error *err)
{
    const kda_bundle *const bundle = context->bundle;
    kda_route_result route;
    const kda_status status = kda_route(bundle, &context->device, problem, &route, err);
    if (status != KDA_OK) return status;
    const uint32_t cubin = kda_bundle_find_cubin(bundle, kda_bundle_find_body(bundle, route.body),
                                                 kda_bundle_find_target(bundle, route.target));
    CUfunction function =
        atomic_load_explicit(&context->images[cubin].function, memory_order_acquire);
    if (function) return KDA_OK;
    return kda_context_load(context, "context prepare", cubin, NULL, frame, &function, err);
}

// Some problem that `body` serves.
static kda_problem sample(const kda_bundle *bundle, const struct kda_format_body *body)
{
    const int64_t heads = kda_heads_least(body->head_set, 1);
    return (kda_problem){
        .op = (kda_op)body->op,
        .gate = (kda_gate)body->gate,
        .tokens = (int32_t)body->tokens_min,
        .rows = body->row_set ? __builtin_ctz(body->row_set) : 1,
        .heads = heads,
        .value_heads = heads,
        .state_type = (kda_dtype)body->state_type,
        .mode = body->mode_set ? __builtin_ctz(body->mode_set) : 0,
        .body = bundle->strings + body->name,
    };
}

// Every body that a rule for this device names. A body without an image for it is no route, and no
// reason to fail unless it is the only one.
static kda_status prepare_all(kda_context *context, struct kda_open_frame *frame, kda_error *err)
{
    const kda_bundle *const bundle = context->bundle;
    const uint32_t cc = (uint32_t)(10 * context->device.cc_major + context->device.cc_minor);
    uint32_t loaded = 0, refused = KDA_NONE;
    for (uint32_t i = 0; i < bundle->route_count; i++) {
        const struct kda_format_route *const route = &bundle->routes[i];
        if (route->cc != cc) continue;
        for (uint32_t j = 0; j < route->rule_count; j++) {
            const uint32_t body = bundle->rules[route->rule_first + j].body;
            const kda_problem problem = sample(bundle, &bundle->bodies[body]);
            kda_error found;
            const kda_status status = prepare_problem(context, &problem, frame, &found);
            if (status == KDA_OK) {
                loaded++;
            } else if (status == KDA_E_NO_ROUTE || status == KDA_E_CUDA_VERSION) {
                refused = body;
            } else {
                if (err) *err = found;
                return status;
            }
        }
    }
    if (loaded) return KDA_OK;
    if (!bundle->body_count)
        return kda_fail(err, KDA_E_NO_ROUTE, "context prepare: the bundle holds no bodies");
    const kda_problem problem = sample(bundle, &bundle->bodies[refused == KDA_NONE ? 0 : refused]);
    return prepare_problem(context, &problem, frame, err);
}

kda_status kda_context_prepare(kda_context *context, const kda_problem *problem, kda_error *err)
{
    if (!context) return kda_fail(err, KDA_E_ARGUMENT, "context prepare: context is null");
    kda_status status = kda_context_check(context, "context prepare", err);
    if (status != KDA_OK) return status;
    struct kda_open_frame frame = {KDA_NONE, NULL};
    status = problem ? prepare_problem(context, problem, &frame, err)
                     : prepare_all(context, &frame, err);
    kda_frame_close(&frame);
    return status;
}
