// SPDX-License-Identifier: Apache-2.0
// Owns the second view of the driver, apart from the library's own: what a serving program would do
// with cuda.h is done here with the same few functions by name. No call is retried and no failure
// is passed on.
#include "tools/machine.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *resolve(struct machine *machine)
{
    kda_cu_get_proc_address *get = NULL;
    void *symbol = dlsym(machine->library, "cuGetProcAddress_v2"), *found;
    if (!symbol) return "the driver has no cuGetProcAddress_v2";
    memcpy(&get, &symbol, sizeof get);
    int status;
#define KDA_SYMBOL(name, version, parameters)                                                      \
    found = NULL;                                                                                  \
    if (get(#name, &found, version, 0, &status) || !found) return "the driver has no " #name;      \
    memcpy(&machine->driver.name, &found, sizeof found);
#include "tools/machine.inc"
#undef KDA_SYMBOL
    return NULL;
}

static void script(const struct machine *machine, int cc, int sm_count)
{
    void (*set)(int, int, int, int);
    void *symbol = dlsym(machine->library, "soft_set_device");
    if (!symbol || !cc) return;
    memcpy(&set, &symbol, sizeof set);
    set(0, cc / 10, cc % 10, sm_count);
}

const char *machine_open(struct machine *out, int cc, int sm_count)
{
    struct machine machine = {.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)};
    if (!machine.library) return "there is no libcuda.so.1";
    machine.soft = dlsym(machine.library, "soft_reset") != NULL;
    const char *reason = resolve(&machine);
    const struct machine_driver *driver = &machine.driver;
    int count = 0;
    if (!reason && driver->cuInit(0)) reason = "cuInit failed: no device that the driver can use";
    if (!reason && (driver->cuDeviceGetCount(&count) || count < 1)) reason = "there is no device";
    if (reason) {
        dlclose(machine.library);
        return reason;
    }
    if (machine.soft) script(&machine, cc, sm_count);
    MACHINE_CALL(&machine, cuDeviceGet, &machine.device, 0);
    MACHINE_CALL(&machine, cuDeviceGetName, machine.name, (int)sizeof machine.name, machine.device);
    MACHINE_CALL(&machine, cuDeviceGetAttribute, &machine.cc_major, KDA_CU_CC_MAJOR,
                 machine.device);
    MACHINE_CALL(&machine, cuDeviceGetAttribute, &machine.cc_minor, KDA_CU_CC_MINOR,
                 machine.device);
    MACHINE_CALL(&machine, cuDeviceGetAttribute, &machine.sm_count, KDA_CU_SM_COUNT,
                 machine.device);
    MACHINE_CALL(&machine, cuDriverGetVersion, &machine.cuda_version);
    MACHINE_CALL(&machine, cuCtxCreate, &machine.context, 0, machine.device);
    *out = machine;
    return NULL;
}

void machine_close(struct machine *machine)
{
    if (!machine->library) return;
    MACHINE_CALL(machine, cuCtxDestroy, machine->context);
    dlclose(machine->library);
    *machine = (struct machine){.library = NULL};
}

void machine_check(const struct machine *machine, int result, const char *call)
{
    if (result == KDA_CU_SUCCESS) return;
    const char *name = NULL, *(*why)(void);
    if (machine->driver.cuGetErrorName(result, &name) || !name) name = "?";
    fprintf(stderr, "%s: %d %s\n", call, result, name);
    void *symbol = dlsym(machine->library, "soft_last_error");
    if (symbol) {
        memcpy(&why, &symbol, sizeof why);
        fprintf(stderr, "soft device: %s\n", why());
    }
    exit(1);
}

CUdeviceptr machine_alloc(const struct machine *machine, size_t size)
{
    CUdeviceptr address = 0;
    MACHINE_CALL(machine, cuMemAlloc, &address, size ? size : 1);
    return address;
}

void machine_free(const struct machine *machine, CUdeviceptr address)
{
    if (address) MACHINE_CALL(machine, cuMemFree, address);
}

size_t machine_free_memory(const struct machine *machine)
{
    size_t available, total;
    MACHINE_CALL(machine, cuMemGetInfo, &available, &total);
    return available;
}

// A copy or fill need not be over when its call returns, and non-blocking streams do not wait for
// it.
static void settle(const struct machine *machine)
{
    MACHINE_CALL(machine, cuStreamSynchronize, NULL);
}

void machine_put(const struct machine *machine, CUdeviceptr to, const void *from, size_t size)
{
    if (size) MACHINE_CALL(machine, cuMemcpyHtoD, to, from, size);
    settle(machine);
}

void machine_get(const struct machine *machine, void *to, CUdeviceptr from, size_t size)
{
    if (size) MACHINE_CALL(machine, cuMemcpyDtoH, to, from, size);
}

void machine_fill(const struct machine *machine, CUdeviceptr to, uint16_t value, size_t count)
{
    if (count) MACHINE_CALL(machine, cuMemsetD16, to, value, count);
    settle(machine);
}

CUstream machine_stream(const struct machine *machine)
{
    enum { NON_BLOCKING = 1 };
    CUstream stream = NULL;
    MACHINE_CALL(machine, cuStreamCreate, &stream, NON_BLOCKING);
    return stream;
}

void machine_stream_close(const struct machine *machine, CUstream stream)
{
    MACHINE_CALL(machine, cuStreamDestroy, stream);
}

void machine_sync(const struct machine *machine, CUstream stream)
{
    MACHINE_CALL(machine, cuStreamSynchronize, stream);
}

void machine_capture_in(const struct machine *machine, CUstream stream, int mode)
{
    MACHINE_CALL(machine, cuStreamBeginCapture, stream, mode);
}

void machine_capture(const struct machine *machine, CUstream stream)
{
    machine_capture_in(machine, stream, KDA_CU_CAPTURE_THREAD_LOCAL);
}

struct machine_graph machine_captured(const struct machine *machine, CUstream stream)
{
    struct machine_graph graph = {.nodes = 0};
    MACHINE_CALL(machine, cuStreamEndCapture, stream, &graph.graph);
    MACHINE_CALL(machine, cuGraphGetNodes, graph.graph, NULL, &graph.nodes);
    MACHINE_CALL(machine, cuGraphInstantiateWithFlags, &graph.exec, graph.graph, 0);
    return graph;
}

void machine_replay(const struct machine *machine, const struct machine_graph *graph,
                    CUstream stream)
{
    MACHINE_CALL(machine, cuGraphLaunch, graph->exec, stream);
}

double machine_time(const struct machine *machine, const struct machine_graph *graph,
                    CUstream stream, int replays)
{
    CUevent start, end;
    float milliseconds = 0;
    MACHINE_CALL(machine, cuEventCreate, &start, 0);
    MACHINE_CALL(machine, cuEventCreate, &end, 0);
    MACHINE_CALL(machine, cuEventRecord, start, stream);
    for (int i = 0; i < replays; i++) machine_replay(machine, graph, stream);
    MACHINE_CALL(machine, cuEventRecord, end, stream);
    MACHINE_CALL(machine, cuEventSynchronize, end);
    MACHINE_CALL(machine, cuEventElapsedTime, &milliseconds, start, end);
    MACHINE_CALL(machine, cuEventDestroy, start);
    MACHINE_CALL(machine, cuEventDestroy, end);
    return (double)milliseconds * 1e3 / replays;
}

void machine_graph_close(const struct machine *machine, struct machine_graph *graph)
{
    MACHINE_CALL(machine, cuGraphExecDestroy, graph->exec);
    MACHINE_CALL(machine, cuGraphDestroy, graph->graph);
    *graph = (struct machine_graph){.nodes = 0};
}
