// SPDX-License-Identifier: Apache-2.0
// Owns graphs: lists of recorded work, and their executable copies, which replay it in order. Knows
// nothing of how work is done. Invariant: a graph owns copies of its launches' parameters, as they
// were when they were recorded; what their pointers lead to is read at replay.
#include "tests/soft/state.h"

#include <stdlib.h>
#include <string.h>

bool soft_graph_append(struct soft_graph *graph, const struct soft_work *work)
{
    if (graph->count == graph->capacity) {
        size_t capacity = graph->capacity ? 2 * graph->capacity : 8;
        struct soft_work *grown = realloc(graph->works, capacity * sizeof *grown);
        if (grown == NULL) return false;
        graph->works = grown;
        graph->capacity = capacity;
    }
    struct soft_work copy = *work;
    if (work->task == SOFT_LAUNCH && work->params != NULL) {
        size_t size = work->function->module->image->params_size;
        copy.params = malloc(size);
        if (copy.params == NULL) return false;
        memcpy(copy.params, work->params, size);
    }
    graph->works[graph->count++] = copy;
    return true;
}

void soft_graph_clear(struct soft_graph *graph)
{
    for (size_t i = 0; i < graph->count; i++)
        if (graph->works[i].task == SOFT_LAUNCH) free(graph->works[i].params);
    free(graph->works);
    graph->works = NULL;
    graph->count = graph->capacity = 0;
}

static const struct soft_work *find_use(const struct soft_graph *graph,
                                        const struct soft_module *module)
{
    for (size_t i = 0; i < graph->count; i++)
        if (graph->works[i].task == SOFT_LAUNCH && graph->works[i].function->module == module)
            return &graph->works[i];
    return NULL;
}

bool soft_graph_uses(const struct soft_module *module)
{
    const struct soft_graph *graph;
    for (size_t cursor = 0; (graph = soft_object_next(SOFT_EXEC, &cursor)) != NULL;)
        if (find_use(graph, module) != NULL) return true;
    return false;
}

// Launches of the graph whose module is gone.
static const struct soft_work *find_stale(const struct soft_graph *graph)
{
    for (size_t i = 0; i < graph->count; i++)
        if (graph->works[i].task == SOFT_LAUNCH && !graph->works[i].function->object.alive)
            return &graph->works[i];
    return NULL;
}

static void blame_stale(const struct soft_work *work, const char *what)
{
    soft_blame("%s a graph that launches %s, whose module is gone", what,
               work->function->module->image->body);
}

int cuGraphGetNodes(CUgraph handle, CUgraphNode *out, size_t *count)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    const struct soft_graph *graph = soft_object_find(SOFT_GRAPH, handle);
    if (graph == NULL || count == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    if (out != NULL) {
        // A node is its place in the graph: nothing here takes one.
        for (size_t i = 0; i < *count; i++) out[i] = i < graph->count ? (CUgraphNode)(i + 1) : NULL;
        if (*count <= graph->count) return soft_leave(KDA_CU_SUCCESS);
    }
    *count = graph->count;
    return soft_leave(KDA_CU_SUCCESS);
}

int cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph handle, uint64_t flags)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    if (out == NULL || flags != 0) return soft_leave(KDA_CU_INVALID_VALUE);
    const struct soft_graph *graph = soft_object_find(SOFT_GRAPH, handle);
    if (graph == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    const struct soft_work *stale = find_stale(graph);
    if (stale != NULL) {
        blame_stale(stale, "instantiating");
        return soft_leave(KDA_CU_INVALID_HANDLE);
    }
    struct soft_context *context;
    result = soft_current(&context);
    if (result != KDA_CU_SUCCESS) return soft_leave(result);
    struct soft_graph *exec = soft_object_new(SOFT_EXEC, sizeof *exec, context);
    if (exec == NULL) return soft_leave(KDA_CU_OUT_OF_MEMORY);
    for (size_t i = 0; i < graph->count; i++)
        if (!soft_graph_append(exec, &graph->works[i])) {
            soft_graph_clear(exec);
            exec->object.alive = false;
            return soft_leave(KDA_CU_OUT_OF_MEMORY);
        }
    *out = (CUgraphExec)exec->object.handle;
    return soft_leave(KDA_CU_SUCCESS);
}

int cuGraphLaunch(CUgraphExec handle, CUstream stream_handle)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    struct soft_graph *exec = soft_object_find(SOFT_EXEC, handle);
    if (exec == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    struct soft_stream *stream;
    struct soft_context *context;
    result = soft_stream_find(stream_handle, &stream, &context);
    if (result != KDA_CU_SUCCESS) return soft_leave(result);
    const struct soft_work *stale = find_stale(exec);
    if (stale != NULL) {
        blame_stale(stale, "launching");
        return soft_leave(KDA_CU_INVALID_HANDLE);
    }
    if (stream != NULL && stream->capture == KDA_CU_CAPTURE_ACTIVE) {
        // A child graph, inlined.
        for (size_t i = 0; i < exec->count; i++)
            if (!soft_graph_append(&stream->recorded, &exec->works[i]))
                return soft_leave(KDA_CU_OUT_OF_MEMORY);
        return soft_leave(KDA_CU_SUCCESS);
    }
    soft_totals.replays++;
    // Destroying an executable graph while it runs waits for it on a real device: here its work is
    // copied out.
    struct soft_graph copy = {.works = NULL};
    for (size_t i = 0; i < exec->count && result == KDA_CU_SUCCESS; i++)
        if (!soft_graph_append(&copy, &exec->works[i])) result = KDA_CU_OUT_OF_MEMORY;
    soft_unlock();
    for (size_t i = 0; i < copy.count && result == KDA_CU_SUCCESS; i++)
        result = soft_perform(&copy.works[i]);
    soft_graph_clear(&copy);
    return result;
}

int cuGraphExecDestroy(CUgraphExec handle)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    struct soft_graph *exec = soft_object_find(SOFT_EXEC, handle);
    if (exec == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    exec->object.alive = false;
    soft_graph_clear(exec);
    return soft_leave(KDA_CU_SUCCESS);
}

int cuGraphDestroy(CUgraph handle)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    struct soft_graph *graph = soft_object_find(SOFT_GRAPH, handle);
    if (graph == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    graph->object.alive = false;
    soft_graph_clear(graph);
    return soft_leave(KDA_CU_SUCCESS);
}
