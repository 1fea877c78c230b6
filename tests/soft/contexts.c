// SPDX-License-Identifier: Apache-2.0
// Owns contexts, primary and created, and each thread's stack of them. Invariants: a context gets a
// new id each time it comes to life; with it die its modules, functions, streams, events and
// memory. A primary context that is reset keeps its handle and stays dead (709) until it is
// retained again; the handle of a destroyed context is given to the next one that is created, as an
// address would be.
#include "tests/soft/state.h"

#include <string.h>

static unsigned long long last_id, epoch = 1;
static struct soft_context *primaries[SOFT_MAX_DEVICES];
static struct soft_context *graveyard;  // the last one destroyed: its handle is the next to be used

enum { MAX_DEPTH = 64 };
static _Thread_local struct {
    unsigned long long epoch;
    size_t depth;
    struct {
        struct soft_context *context;
        unsigned long long id;
    } entries[MAX_DEPTH];
} stack;

// The calling thread's stack, empty after a soft_reset.
static void refresh(void)
{
    if (stack.epoch != epoch) {
        stack.depth = 0;
        stack.epoch = epoch;
    }
}

void soft_contexts_reset(void)
{
    epoch++;
    memset(primaries, 0, sizeof primaries);
    graveyard = NULL;
}

int soft_current(struct soft_context **out)
{
    refresh();
    if (stack.depth == 0) return KDA_CU_INVALID_CONTEXT;
    struct soft_context *top = stack.entries[stack.depth - 1].context;
    // A primary context that was reset and retained again is the same one to the threads that have
    // it current.
    if (!top->object.alive || (!top->primary && top->id != stack.entries[stack.depth - 1].id))
        return KDA_CU_CONTEXT_IS_DESTROYED;
    *out = top;
    return KDA_CU_SUCCESS;
}

// A context named by the caller: 201 for what never was one, 709 for a dead one.
static int find(CUcontext handle, struct soft_context **out)
{
    struct soft_context *context = soft_object_trace(SOFT_CONTEXT, handle);
    if (context == NULL) return KDA_CU_INVALID_CONTEXT;
    if (!context->object.alive) return KDA_CU_CONTEXT_IS_DESTROYED;
    *out = context;
    return KDA_CU_SUCCESS;
}

static CUcontext handle_of(const struct soft_context *context)
{
    return (CUcontext)context->object.handle;
}

static void revive(struct soft_context *context, int device)
{
    context->object.alive = true;
    context->id = ++last_id;
    context->device = device;
    soft_totals.live_contexts++;
}

static void kill(struct soft_context *context)
{
    static const enum soft_kind kinds[] = {SOFT_MODULE, SOFT_FUNCTION, SOFT_STREAM, SOFT_EVENT,
                                           SOFT_EXEC};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct soft_object *object;
        for (size_t cursor = 0; (object = soft_object_next(kinds[i], &cursor)) != NULL;) {
            if (object->owner != context) continue;
            object->alive = false;
            object->owner = NULL;
            if (kinds[i] == SOFT_MODULE) soft_totals.live_modules--;
            if (kinds[i] == SOFT_STREAM) soft_stream_release((struct soft_stream *)object);
            if (kinds[i] == SOFT_EXEC) soft_graph_clear((struct soft_graph *)object);
        }
    }
    soft_memory_release(context);
    context->object.alive = false;
    soft_totals.live_contexts--;
}

// -------------------------------------------------------------------------------- primary contexts

int cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    if (out == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    if (device < 0 || device >= soft_settings.device_count)
        return soft_leave(KDA_CU_INVALID_DEVICE);
    struct soft_context *context = primaries[device];
    if (context == NULL) {
        context = soft_object_new(SOFT_CONTEXT, sizeof *context, NULL);
        if (context == NULL) return soft_leave(KDA_CU_OUT_OF_MEMORY);
        context->object.alive = false;
        context->primary = true;
        primaries[device] = context;
    }
    if (!context->object.alive) revive(context, device);
    context->retained++;
    *out = handle_of(context);
    return soft_leave(KDA_CU_SUCCESS);
}

// The living primary context of a device.
static int find_primary(CUdevice device, struct soft_context **out)
{
    if (device < 0 || device >= soft_settings.device_count) return KDA_CU_INVALID_DEVICE;
    struct soft_context *context = primaries[device];
    if (context == NULL || !context->object.alive) return KDA_CU_INVALID_CONTEXT;
    *out = context;
    return KDA_CU_SUCCESS;
}

// Also of one that was reset: that takes no reference away.
int cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    if (device < 0 || device >= soft_settings.device_count)
        return soft_leave(KDA_CU_INVALID_DEVICE);
    struct soft_context *context = primaries[device];
    if (context == NULL || context->retained == 0) return soft_leave(KDA_CU_INVALID_CONTEXT);
    if (--context->retained == 0 && context->object.alive) kill(context);
    return soft_leave(KDA_CU_SUCCESS);
}

int cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    struct soft_context *context;
    result = find_primary(device, &context);
    if (result == KDA_CU_SUCCESS) kill(context);
    if (result == KDA_CU_INVALID_CONTEXT) result = KDA_CU_SUCCESS;  // there is nothing to reset
    return soft_leave(result);
}

int cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    if (flags == NULL || active == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    struct soft_context *context;
    result = find_primary(device, &context);
    if (result == KDA_CU_INVALID_DEVICE) return soft_leave(result);
    *flags = 0;
    *active = result == KDA_CU_SUCCESS;
    return soft_leave(KDA_CU_SUCCESS);
}

// -------------------------------------------------------------------------------- created contexts

static int push(struct soft_context *context)
{
    refresh();
    if (stack.depth == MAX_DEPTH) return KDA_CU_OUT_OF_MEMORY;
    stack.entries[stack.depth].context = context;
    stack.entries[stack.depth].id = context->id;
    stack.depth++;
    return KDA_CU_SUCCESS;
}

int cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device)
{
    (void)flags;  // scheduling hints
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    if (out == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    if (device < 0 || device >= soft_settings.device_count)
        return soft_leave(KDA_CU_INVALID_DEVICE);
    struct soft_context *context = graveyard;
    if (context != NULL) {
        graveyard = NULL;
    } else {
        context = soft_object_new(SOFT_CONTEXT, sizeof *context, NULL);
        if (context == NULL) return soft_leave(KDA_CU_OUT_OF_MEMORY);
    }
    revive(context, device);
    result = push(context);
    if (result != KDA_CU_SUCCESS) {
        kill(context);
        graveyard = context;
        return soft_leave(result);
    }
    *out = handle_of(context);
    return soft_leave(KDA_CU_SUCCESS);
}

int cuCtxDestroy_v2(CUcontext handle)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    struct soft_context *context;
    result = find(handle, &context);
    if (result != KDA_CU_SUCCESS) return soft_leave(result);
    if (context->primary) return soft_leave(KDA_CU_INVALID_CONTEXT);
    refresh();
    if (stack.depth > 0 && stack.entries[stack.depth - 1].context == context) stack.depth--;
    kill(context);
    graveyard = context;
    return soft_leave(KDA_CU_SUCCESS);
}

// --------------------------------------------------------------------------------- the current one

int cuCtxSetCurrent(CUcontext handle)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    struct soft_context *context = NULL;
    if (handle != NULL) {
        result = find(handle, &context);
        if (result != KDA_CU_SUCCESS) return soft_leave(result);
    }
    refresh();
    if (stack.depth > 0) stack.depth--;
    if (context != NULL) result = push(context);
    return soft_leave(result);
}

int cuCtxGetCurrent(CUcontext *out)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    if (out == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    refresh();
    *out = stack.depth > 0 ? handle_of(stack.entries[stack.depth - 1].context) : NULL;
    return soft_leave(KDA_CU_SUCCESS);
}

int cuCtxPushCurrent_v2(CUcontext handle)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    struct soft_context *context;
    result = find(handle, &context);
    if (result == KDA_CU_SUCCESS) result = push(context);
    return soft_leave(result);
}

int cuCtxPopCurrent_v2(CUcontext *out)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    refresh();
    if (stack.depth == 0) return soft_leave(KDA_CU_INVALID_CONTEXT);
    stack.depth--;
    if (out != NULL) *out = handle_of(stack.entries[stack.depth].context);
    return soft_leave(KDA_CU_SUCCESS);
}

int cuCtxGetDevice(CUdevice *out)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    if (out == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    struct soft_context *context;
    result = soft_current(&context);
    if (result == KDA_CU_SUCCESS) *out = context->device;
    return soft_leave(result);
}

int cuCtxGetId(CUcontext handle, unsigned long long *out)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    if (out == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    struct soft_context *context;
    result = handle != NULL ? find(handle, &context) : soft_current(&context);
    if (result == KDA_CU_SUCCESS) *out = context->id;
    return soft_leave(result);
}

int cuCtxSynchronize(void)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    struct soft_context *context;
    result = soft_current(&context);
    if (result != KDA_CU_SUCCESS) return soft_leave(result);
    struct soft_stream *stream;
    for (size_t cursor = 0; (stream = soft_object_next(SOFT_STREAM, &cursor)) != NULL;) {
        if (stream->object.owner != context || stream->capture != KDA_CU_CAPTURE_ACTIVE) continue;
        soft_capture_invalidate(stream);
        result = KDA_CU_STREAM_CAPTURE_UNSUPPORTED;
    }
    return soft_leave(result);
}
