// SPDX-License-Identifier: Apache-2.0
// Owns streams, captures and events. Work is done when it is put on a stream that does not capture;
// a capturing stream records it. Invariants: what a real driver forbids during a capture is refused
// here with its number and ends the capture (901 from then on) exactly where the real one would; a
// default stream counts as capturing nothing.
#include "tests/soft/state.h"

#include <string.h>

static _Thread_local int thread_mode = KDA_CU_CAPTURE_GLOBAL;

static bool is_default(CUstream handle)
{
    return handle == NULL || handle == SOFT_CU_STREAM_LEGACY || handle == SOFT_CU_STREAM_PER_THREAD;
}

// A capturing stream of `context` that the legacy default stream would wait for.
static struct soft_stream *blocking_capture(const struct soft_context *context)
{
    struct soft_stream *stream;
    for (size_t cursor = 0; (stream = soft_object_next(SOFT_STREAM, &cursor)) != NULL;)
        if (stream->object.owner == context && stream->capture == KDA_CU_CAPTURE_ACTIVE &&
            (stream->flags & SOFT_CU_STREAM_NON_BLOCKING) == 0)
            return stream;
    return NULL;
}

static int resolve(CUstream handle, struct soft_stream **out, struct soft_context **out_context)
{
    if (is_default(handle)) {
        *out = NULL;
        return soft_current(out_context);
    }
    struct soft_stream *stream = soft_object_find(SOFT_STREAM, handle);
    if (stream == NULL) return KDA_CU_INVALID_HANDLE;
    *out = stream;
    *out_context = stream->object.owner;
    return KDA_CU_SUCCESS;
}

int soft_stream_find(CUstream handle, struct soft_stream **out, struct soft_context **out_context)
{
    int result = resolve(handle, out, out_context);
    if (result != KDA_CU_SUCCESS) return result;
    if (*out != NULL)
        return (*out)->capture == KDA_CU_CAPTURE_INVALIDATED ? KDA_CU_STREAM_CAPTURE_INVALIDATED
                                                             : KDA_CU_SUCCESS;
    struct soft_stream *capturing =
        handle == SOFT_CU_STREAM_PER_THREAD ? NULL : blocking_capture(*out_context);
    if (capturing == NULL) return KDA_CU_SUCCESS;
    soft_capture_invalidate(capturing);
    return KDA_CU_STREAM_CAPTURE_IMPLICIT;
}

int soft_submit(struct soft_stream *stream, const struct soft_work *work)
{
    if (stream != NULL && stream->capture == KDA_CU_CAPTURE_ACTIVE) {
        bool recorded = soft_graph_append(&stream->recorded, work);
        return soft_leave(recorded ? KDA_CU_SUCCESS : KDA_CU_OUT_OF_MEMORY);
    }
    soft_unlock();
    return soft_perform(work);
}

// ---------------------------------------------------------------------------------------- captures

bool soft_capture_active(void)
{
    struct soft_stream *stream;
    for (size_t cursor = 0; (stream = soft_object_next(SOFT_STREAM, &cursor)) != NULL;)
        if (stream->capture == KDA_CU_CAPTURE_ACTIVE) return true;
    return false;
}

void soft_capture_invalidate(struct soft_stream *stream)
{
    if (stream->capture == KDA_CU_CAPTURE_ACTIVE) stream->capture = KDA_CU_CAPTURE_INVALIDATED;
    soft_graph_clear(&stream->recorded);
}

int soft_capture_guard(void)
{
    int result = KDA_CU_SUCCESS;
    if (thread_mode == KDA_CU_CAPTURE_RELAXED) return result;
    struct soft_stream *stream;
    for (size_t cursor = 0; (stream = soft_object_next(SOFT_STREAM, &cursor)) != NULL;) {
        if (stream->capture != KDA_CU_CAPTURE_ACTIVE || stream->mode == KDA_CU_CAPTURE_RELAXED)
            continue;
        bool own = pthread_equal(stream->capturer, pthread_self());
        if (!own && (stream->mode != KDA_CU_CAPTURE_GLOBAL || thread_mode != KDA_CU_CAPTURE_GLOBAL))
            continue;
        soft_capture_invalidate(stream);
        result = KDA_CU_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

void soft_stream_release(struct soft_stream *stream)
{
    stream->capture = KDA_CU_CAPTURE_NONE;
    soft_graph_clear(&stream->recorded);
}

int cuThreadExchangeStreamCaptureMode(int *mode)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    if (mode == NULL || *mode < KDA_CU_CAPTURE_GLOBAL || *mode > KDA_CU_CAPTURE_RELAXED)
        return soft_leave(KDA_CU_INVALID_VALUE);
    int old = thread_mode;
    thread_mode = *mode;
    *mode = old;
    return soft_leave(KDA_CU_SUCCESS);
}

int cuStreamBeginCapture_v2(CUstream handle, int mode)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    if (is_default(handle)) return soft_leave(KDA_CU_STREAM_CAPTURE_UNSUPPORTED);
    struct soft_stream *stream = soft_object_find(SOFT_STREAM, handle);
    if (stream == NULL) return soft_leave(KDA_CU_INVALID_HANDLE);
    if (mode < KDA_CU_CAPTURE_GLOBAL || mode > KDA_CU_CAPTURE_RELAXED)
        return soft_leave(KDA_CU_INVALID_VALUE);
    if (stream->capture != KDA_CU_CAPTURE_NONE) return soft_leave(SOFT_CU_ILLEGAL_STATE);
    stream->capture = KDA_CU_CAPTURE_ACTIVE;
    stream->mode = mode;
    stream->capturer = pthread_self();
    return soft_leave(KDA_CU_SUCCESS);
}

int cuStreamEndCapture(CUstream handle, CUgraph *out)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    if (out == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    struct soft_stream *stream = soft_object_find(SOFT_STREAM, handle);
    if (stream == NULL) return soft_leave(KDA_CU_INVALID_HANDLE);
    *out = NULL;
    if (stream->capture == KDA_CU_CAPTURE_NONE) return soft_leave(SOFT_CU_ILLEGAL_STATE);
    if (stream->mode != KDA_CU_CAPTURE_RELAXED &&
        !pthread_equal(stream->capturer, pthread_self())) {
        soft_capture_invalidate(stream);
        return soft_leave(SOFT_CU_CAPTURE_WRONG_THREAD);
    }
    if (stream->capture == KDA_CU_CAPTURE_INVALIDATED) {
        stream->capture = KDA_CU_CAPTURE_NONE;
        return soft_leave(KDA_CU_STREAM_CAPTURE_INVALIDATED);
    }
    struct soft_graph *graph = soft_object_new(SOFT_GRAPH, sizeof *graph, NULL);
    if (graph == NULL) return soft_leave(KDA_CU_OUT_OF_MEMORY);
    struct soft_object object = graph->object;
    *graph = stream->recorded;
    graph->object = object;
    memset(&stream->recorded, 0, sizeof stream->recorded);
    stream->capture = KDA_CU_CAPTURE_NONE;
    *out = (CUgraph)graph->object.handle;
    return soft_leave(KDA_CU_SUCCESS);
}

int cuStreamIsCapturing(CUstream handle, int *status)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    if (status == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    struct soft_stream *stream;
    struct soft_context *context;
    result = resolve(handle, &stream, &context);
    if (result != KDA_CU_SUCCESS) return soft_leave(result);
    // Only asking leaves the capture of another stream valid.
    if (stream == NULL && handle != SOFT_CU_STREAM_PER_THREAD && blocking_capture(context) != NULL)
        return soft_leave(KDA_CU_STREAM_CAPTURE_IMPLICIT);
    *status = stream != NULL ? stream->capture : KDA_CU_CAPTURE_NONE;
    return soft_leave(KDA_CU_SUCCESS);
}

// ----------------------------------------------------------------------------------------- streams

int cuStreamCreate(CUstream *out, unsigned flags)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    struct soft_context *context;
    result = soft_current(&context);
    if (result != KDA_CU_SUCCESS) return soft_leave(result);
    if (out == NULL || flags > SOFT_CU_STREAM_NON_BLOCKING) return soft_leave(KDA_CU_INVALID_VALUE);
    struct soft_stream *stream = soft_object_new(SOFT_STREAM, sizeof *stream, context);
    if (stream == NULL) return soft_leave(KDA_CU_OUT_OF_MEMORY);
    stream->flags = flags;
    *out = (CUstream)stream->object.handle;
    return soft_leave(KDA_CU_SUCCESS);
}

int cuStreamDestroy_v2(CUstream handle)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    struct soft_stream *stream = soft_object_find(SOFT_STREAM, handle);
    if (stream == NULL) return soft_leave(KDA_CU_INVALID_HANDLE);
    soft_stream_release(stream);
    stream->object.alive = false;
    return soft_leave(KDA_CU_SUCCESS);
}

// Waiting for a stream, or asking whether it is done: all work is, but a capture ends.
static int wait(CUstream handle)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    struct soft_stream *stream;
    struct soft_context *context;
    result = soft_stream_find(handle, &stream, &context);
    if (result == KDA_CU_SUCCESS && stream != NULL && stream->capture == KDA_CU_CAPTURE_ACTIVE) {
        soft_capture_invalidate(stream);
        result = KDA_CU_STREAM_CAPTURE_UNSUPPORTED;
    }
    return soft_leave(result);
}

int cuStreamSynchronize(CUstream handle) { return wait(handle); }
int cuStreamQuery(CUstream handle) { return wait(handle); }

// ------------------------------------------------------------------------------------------ events

int cuEventCreate(CUevent *out, unsigned flags)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    struct soft_context *context;
    result = soft_current(&context);
    if (result != KDA_CU_SUCCESS) return soft_leave(result);
    if (out == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    struct soft_event *event = soft_object_new(SOFT_EVENT, sizeof *event, context);
    if (event == NULL) return soft_leave(KDA_CU_OUT_OF_MEMORY);
    event->flags = flags;
    *out = (CUevent)event->object.handle;
    return soft_leave(KDA_CU_SUCCESS);
}

int cuEventRecord(CUevent handle, CUstream stream_handle)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    struct soft_event *event = soft_object_find(SOFT_EVENT, handle);
    if (event == NULL) return soft_leave(KDA_CU_INVALID_HANDLE);
    struct soft_stream *stream;
    struct soft_context *context;
    result = soft_stream_find(stream_handle, &stream, &context);
    if (result != KDA_CU_SUCCESS) return soft_leave(result);
    if (context != event->object.owner) return soft_leave(KDA_CU_INVALID_HANDLE);
    if (stream != NULL && stream->capture == KDA_CU_CAPTURE_ACTIVE) {
        // A mark for other captured streams, of which there are none: nothing to record.
        return soft_leave(KDA_CU_SUCCESS);
    }
    event->recorded = true;
    (void)clock_gettime(CLOCK_MONOTONIC, &event->when);
    return soft_leave(KDA_CU_SUCCESS);
}

int cuEventSynchronize(CUevent handle)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    bool found = soft_object_find(SOFT_EVENT, handle) != NULL;
    return soft_leave(found ? KDA_CU_SUCCESS : KDA_CU_INVALID_HANDLE);
}

int cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    if (milliseconds == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    const struct soft_event *a = soft_object_find(SOFT_EVENT, start);
    const struct soft_event *b = soft_object_find(SOFT_EVENT, end);
    if (a == NULL || b == NULL || !a->recorded || !b->recorded ||
        ((a->flags | b->flags) & SOFT_CU_EVENT_NO_TIMING) != 0)
        return soft_leave(KDA_CU_INVALID_HANDLE);
    double seconds = (double)(b->when.tv_sec - a->when.tv_sec) +
                     1e-9 * (double)(b->when.tv_nsec - a->when.tv_nsec);
    *milliseconds = (float)(1e3 * seconds);
    return soft_leave(KDA_CU_SUCCESS);
}

int cuEventDestroy_v2(CUevent handle)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    struct soft_event *event = soft_object_find(SOFT_EVENT, handle);
    if (event == NULL) return soft_leave(KDA_CU_INVALID_HANDLE);
    event->object.alive = false;
    return soft_leave(KDA_CU_SUCCESS);
}
