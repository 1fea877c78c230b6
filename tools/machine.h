// SPDX-License-Identifier: Apache-2.0
// Device 0 for programs around the library: memory, streams, graphs and time, on the driver that
// the loader finds, a GPU's or the soft device's. It knows nothing of KDA. Opening can fail with a
// reason; after that a failing driver call is a broken program: it is printed with its name and
// number, and the process exits.
#ifndef KDA_TOOLS_MACHINE_H
#define KDA_TOOLS_MACHINE_H

#include <stdbool.h>
#include <stddef.h>

#include "loader/driver.h"

struct machine_driver {
#define KDA_SYMBOL(name, version, parameters) int(*name) parameters;
#include "tools/machine.inc"
#undef KDA_SYMBOL
};

struct machine {
    void *library;  // of dlopen: back doors of a soft device are found here
    struct machine_driver driver;
    CUdevice device;
    CUcontext context;  // its own, current on the opening thread
    char name[96];
    int cc_major, cc_minor, sm_count, cuda_version;
    bool soft;  // the driver is the soft device
};

// NULL, or why there is no device to use. `cc` (10*major + minor), if not 0, is what a soft device
// is told to be, with `sm_count` SMs; a real one is as it is.
const char *machine_open(struct machine *out, int cc, int sm_count);
void machine_close(struct machine *machine);

// Ends the process with the call's name if `result` is not success.
void machine_check(const struct machine *machine, int result, const char *call);
#define MACHINE_CALL(machine, name, ...)                                                           \
    machine_check(machine, (machine)->driver.name(__VA_ARGS__), #name)

CUdeviceptr machine_alloc(const struct machine *machine,
                          size_t size);  // never 0; at least 16-byte aligned
void machine_free(const struct machine *machine, CUdeviceptr address);
size_t machine_free_memory(const struct machine *machine);
void machine_put(const struct machine *machine, CUdeviceptr to, const void *from, size_t size);
void machine_get(const struct machine *machine, void *to, CUdeviceptr from, size_t size);
void machine_fill(const struct machine *machine, CUdeviceptr to, uint16_t value, size_t count);

CUstream machine_stream(const struct machine *machine);
void machine_stream_close(const struct machine *machine, CUstream stream);
void machine_sync(const struct machine *machine, CUstream stream);  // NULL: the legacy stream

// Capture: between begin and end, work on `stream` goes into a graph.
struct machine_graph {
    CUgraph graph;
    CUgraphExec exec;
    size_t nodes;
};
void machine_capture(const struct machine *machine, CUstream stream);  // thread-local mode
void machine_capture_in(const struct machine *machine, CUstream stream, int mode);
struct machine_graph machine_captured(const struct machine *machine, CUstream stream);
void machine_replay(const struct machine *machine, const struct machine_graph *graph,
                    CUstream stream);
double machine_time(const struct machine *machine, const struct machine_graph *graph,
                    CUstream stream,
                    int replays);  // microseconds per replay
void machine_graph_close(const struct machine *machine, struct machine_graph *graph);

#endif
