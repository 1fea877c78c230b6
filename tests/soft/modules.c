// SPDX-License-Identifier: Apache-2.0
// Owns modules and functions. A module is what the bytes of its image say: known by their digest,
// refused by their architecture and age as the real driver refuses them. Knows nothing of kernels
// beyond their entry in the table of images. Invariant: live_modules counts the modules whose
// handle works.
#include "tests/soft/state.h"

#include <sha2.h>
#include <string.h>

static int identify(const void *bytes, const struct soft_context *context, const soft_image **out)
{
    size_t size = soft_image_size(bytes);
    if (size == 0) return KDA_CU_INVALID_IMAGE;
    char digest[SHA256_DIGEST_STRING_LENGTH];
    if (SHA256Data(bytes, size, digest) == NULL) return KDA_CU_OUT_OF_MEMORY;
    const soft_image *image = soft_find_image(digest);
    if (image == NULL) return KDA_CU_INVALID_IMAGE;
    bool runs = false;
    for (const int *cc = image->ccs; *cc != 0; cc++)
        runs = runs || *cc == soft_settings.devices[context->device].cc;
    // Older drivers than the image's target have no number of their own for it.
    if (!runs || soft_settings.driver_version < image->floor) return KDA_CU_NO_BINARY_FOR_GPU;
    *out = image;
    return KDA_CU_SUCCESS;
}

static void invalidate_captures(void)
{
    struct soft_stream *stream;
    for (size_t cursor = 0; (stream = soft_object_next(SOFT_STREAM, &cursor)) != NULL;)
        if (stream->capture == KDA_CU_CAPTURE_ACTIVE) soft_capture_invalidate(stream);
}

int cuModuleLoadData(CUmodule *out, const void *image)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    struct soft_context *context;
    result = soft_current(&context);
    if (result != KDA_CU_SUCCESS) return soft_leave(result);
    if (out == NULL || image == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    if (soft_capture_active()) {
        soft_totals.loads_in_capture++;
        if (soft_settings.load_in_capture != KDA_CU_SUCCESS) {
            invalidate_captures();
            return soft_leave(soft_settings.load_in_capture);
        }
    }
    if (soft_settings.load_delay != 0) {
        unsigned long long id = context->id;
        struct timespec delay = {.tv_sec = soft_settings.load_delay / 1000000,
                                 .tv_nsec = soft_settings.load_delay % 1000000 * 1000L};
        soft_unlock();
        (void)nanosleep(&delay, NULL);
        soft_lock();
        if (!context->object.alive || context->id != id)
            return soft_leave(KDA_CU_CONTEXT_IS_DESTROYED);
    }
    const soft_image *known;
    result = identify(image, context, &known);
    if (result != KDA_CU_SUCCESS) return soft_leave(result);
    struct soft_module *module = soft_object_new(SOFT_MODULE, sizeof *module, context);
    if (module == NULL) return soft_leave(KDA_CU_OUT_OF_MEMORY);
    module->image = known;
    soft_totals.loads++;
    soft_totals.live_modules++;
    *out = (CUmodule)module->object.handle;
    return soft_leave(KDA_CU_SUCCESS);
}

int cuModuleUnload(CUmodule handle)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    struct soft_context *context;
    result = soft_current(&context);
    if (result != KDA_CU_SUCCESS) return soft_leave(result);
    struct soft_module *module = soft_object_find(SOFT_MODULE, handle);
    if (module == NULL) return soft_leave(KDA_CU_INVALID_HANDLE);
    if (soft_capture_active())
        soft_blame("unloading %s while a stream is being captured", module->image->body);
    result = soft_capture_guard();
    if (result != KDA_CU_SUCCESS) return soft_leave(result);
    if (soft_graph_uses(module))
        soft_blame("unloading %s while an executable graph launches it", module->image->body);
    struct soft_function *function;
    for (size_t cursor = 0; (function = soft_object_next(SOFT_FUNCTION, &cursor)) != NULL;)
        if (function->module == module) function->object.alive = false;
    module->object.alive = false;
    soft_totals.unloads++;
    soft_totals.live_modules--;
    return soft_leave(KDA_CU_SUCCESS);
}

int cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    if (out == NULL || name == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    struct soft_module *module = soft_object_find(SOFT_MODULE, handle);
    if (module == NULL) return soft_leave(KDA_CU_INVALID_HANDLE);
    if (strcmp(name, module->image->entry) != 0) return soft_leave(KDA_CU_NOT_FOUND);
    struct soft_function *function;
    for (size_t cursor = 0; (function = soft_object_next(SOFT_FUNCTION, &cursor)) != NULL;)
        if (function->module == module) break;
    if (function == NULL) {
        function = soft_object_new(SOFT_FUNCTION, sizeof *function, module->object.owner);
        if (function == NULL) return soft_leave(KDA_CU_OUT_OF_MEMORY);
        function->module = module;
        function->smem_limit = KDA_CU_SMEM_DEFAULT;
    }
    *out = (CUfunction)function->object.handle;
    return soft_leave(KDA_CU_SUCCESS);
}

int cuFuncGetAttribute(int *out, int attribute, CUfunction handle)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    const struct soft_function *function = soft_object_find(SOFT_FUNCTION, handle);
    if (function == NULL) return soft_leave(KDA_CU_INVALID_HANDLE);
    if (out == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    switch (attribute) {
    case SOFT_CU_FUNC_THREADS:
        *out = function->module->image->threads;
        break;
    case SOFT_CU_FUNC_STATIC_SMEM:
        *out = 0;
        break;
    case KDA_CU_FUNC_SMEM:
        *out = (int)function->smem_limit;
        break;
    default:
        result = KDA_CU_INVALID_VALUE;
    }
    return soft_leave(result);
}

int cuFuncSetAttribute(CUfunction handle, int attribute, int value)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    struct soft_function *function = soft_object_find(SOFT_FUNCTION, handle);
    if (function == NULL) return soft_leave(KDA_CU_INVALID_HANDLE);
    if (attribute != KDA_CU_FUNC_SMEM || value < 0 || (unsigned)value > SOFT_SMEM_MAX)
        return soft_leave(KDA_CU_INVALID_VALUE);
    function->smem_limit = (unsigned)value;
    return soft_leave(KDA_CU_SUCCESS);
}

int cuFuncGetModule(CUmodule *out, CUfunction handle)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    const struct soft_function *function = soft_object_find(SOFT_FUNCTION, handle);
    if (function == NULL) return soft_leave(KDA_CU_INVALID_HANDLE);
    if (out == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    *out = (CUmodule)function->module->object.handle;
    return soft_leave(KDA_CU_SUCCESS);
}
