// SPDX-License-Identifier: Apache-2.0
// What the files of the driver half share: the lock, the objects behind handles, and the rules that
// more than one of them applies. A handle is a number, never an address: a stale or invented one is
// looked up and refused, not followed. Records live until soft_reset, so pointers between them stay
// good; `alive` says whether their handle does. Unless said otherwise a function is called with the
// lock held.
#ifndef KDA_TESTS_SOFT_STATE_H
#define KDA_TESTS_SOFT_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "tests/soft/cuda.h"
#include "tests/soft/soft.h"

#define SOFT_MAX_DEVICES 8
#define SOFT_SMEM_MAX 232448u  // opt-in shared memory per CTA of CC 9.0 and 10.x
#define SOFT_MEMORY_TOTAL ((size_t)180 << 30)

struct soft_device {
    int cc, sm_count;
};

struct soft_settings {
    int device_count, driver_version;
    struct soft_device devices[SOFT_MAX_DEVICES];
    bool initialised, stub, execute, exact_hints;
    char hidden[64];
    long fail_in;  // calls until the injected failure; 0: none
    int fail_result;
    unsigned load_delay;
    int load_in_capture;
};

// ------------------------------------------------------------------------------- entry and reports

extern struct soft_settings soft_settings;
extern struct soft_counters soft_totals;

// The lock itself; back doors take it, API calls enter and leave.
void soft_lock(void);
void soft_unlock(void);
// Begins an API call: takes the lock and counts. Not 0: the call's result, and the lock is not
// held.
int soft_enter(void);
// Ends it: drops the lock and returns `result`.
int soft_leave(int result);
// Remembers why something failed; the second also counts an error of the caller.
void soft_report(const char *format, ...) __attribute__((format(printf, 1, 2)));
void soft_blame(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern struct soft_launch_record soft_launched;
extern bool soft_has_launched;

// ----------------------------------------------------------------------------------------- objects

enum soft_kind {
    SOFT_CONTEXT = 1,
    SOFT_MODULE,
    SOFT_FUNCTION,
    SOFT_STREAM,
    SOFT_EVENT,
    SOFT_GRAPH,
    SOFT_EXEC
};

struct soft_context;

struct soft_object {
    enum soft_kind kind;
    bool alive;
    uintptr_t handle;
    struct soft_context *owner;  // NULL for contexts and graphs, and for what died with it
};

struct soft_context {
    struct soft_object object;
    unsigned long long id;  // a new one for each life
    int device;
    bool primary;
    int retained;
};

struct soft_module {
    struct soft_object object;
    const soft_image *image;
};

struct soft_function {
    struct soft_object object;
    struct soft_module *module;
    unsigned smem_limit;
};

enum soft_task { SOFT_LAUNCH, SOFT_SET, SOFT_COPY };

// One piece of work for a stream or a graph.
struct soft_work {
    enum soft_task task;
    struct soft_function *function;
    unsigned grid[3], block[3];
    size_t smem;
    void *params;  // in a graph: owned
    void *target;
    const void *source;
    size_t width, count;  // bytes of an element, elements
    uint32_t value;
};

struct soft_graph {  // also an executable one
    struct soft_object object;
    struct soft_work *works;
    size_t count, capacity;
};

struct soft_stream {
    struct soft_object object;
    unsigned flags;
    int capture, mode;  // KDA_CU_CAPTURE_*
    pthread_t capturer;
    struct soft_graph recorded;
};

struct soft_event {
    struct soft_object object;
    unsigned flags;
    bool recorded;
    struct timespec when;
};

// A new zeroed record of `size` bytes with a fresh handle, alive; NULL: no memory.
void *soft_object_new(enum soft_kind kind, size_t size, struct soft_context *owner);
// The live record of a handle, else NULL.
void *soft_object_find(enum soft_kind kind, const void *handle);
// The record of a handle, dead or alive.
void *soft_object_trace(enum soft_kind kind, const void *handle);
// Iterates: the next live record of a kind after `*cursor`, which starts at 0; NULL at the end.
void *soft_object_next(enum soft_kind kind, size_t *cursor);
void soft_object_forget_all(void);

// ---------------------------------------------------------------------------------------- contexts

// The calling thread's context; 0, 201 or 709.
int soft_current(struct soft_context **out);
void soft_contexts_reset(void);

// --------------------------------------------------------------------------- memory (its own lock)

bool soft_memory_holds(uint64_t address, size_t size);
void soft_memory_release(const struct soft_context *owner);  // NULL: all; checks the guards

// ---------------------------------------------------------------------------- streams and captures

// Resolves a stream to record work on: NULL for a default one, and the context of both. 0, 201,
// 709, 400, 901, 906.
int soft_stream_find(CUstream handle, struct soft_stream **out, struct soft_context **out_context);
// Puts work on a stream: recorded if it captures, else done at once with the lock dropped. Leaves
// the call.
int soft_submit(struct soft_stream *stream, const struct soft_work *work);
// What a call that is unsafe during captures returns: 900, having invalidated them, or 0.
int soft_capture_guard(void);
bool soft_capture_active(void);
void soft_capture_invalidate(struct soft_stream *stream);
void soft_stream_release(struct soft_stream *stream);

bool soft_graph_append(struct soft_graph *graph, const struct soft_work *work);
void soft_graph_clear(struct soft_graph *graph);

// Does the work; called without the lock.
int soft_perform(const struct soft_work *work);

// The module `module` goes: is a graph that could still be launched using it?
bool soft_graph_uses(const struct soft_module *module);

void soft_images_reset(void);

#endif
