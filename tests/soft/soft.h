// SPDX-License-Identifier: Apache-2.0
// The soft device: a libcuda.so.1 that computes on the CPU. This header is its back door for tests;
// everything else is reached through the driver API, by the unchanged loader. Two halves meet here:
// the driver half (entry.c and its neighbours) scripts devices, contexts, memory, streams and
// graphs; the executor (execute.cc) runs a frozen body, one fibre per CUDA thread. Work is done
// when it is launched, so a launch returns the fault of its kernel.
#ifndef KDA_TESTS_SOFT_H
#define KDA_TESTS_SOFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// -------------------------------------------------------------------------------------- back doors

#define SOFT_API __attribute__((visibility("default")))

// Forgets everything, registered images included: devices are one CC 10.0 device of 148 SMs,
// driver 13.0, cuInit not yet called; no injected fault, counters at zero, but for an overwritten
// guard of an allocation that was still alive. Every handle and allocation dies. No other thread
// may be in a call.
SOFT_API void soft_reset(void);
SOFT_API void soft_set_device_count(int count);
SOFT_API void soft_set_device(int ordinal, int cc_major, int cc_minor, int sm_count);
SOFT_API void soft_set_driver_version(int version);  // as cuDriverGetVersion reports it
SOFT_API void soft_set_stub(bool stub);  // every call returns 34 CUDA_ERROR_STUB_LIBRARY
SOFT_API void
soft_hide_symbol(const char *name);  // cuGetProcAddress does not find it; NULL: hide nothing
SOFT_API void
soft_fail_call(long k, int result);  // the k-th driver call from now (1 = next) returns `result`
SOFT_API void soft_delay_load(unsigned microseconds);  // every module load takes this long
SOFT_API void
soft_set_load_in_capture(int result);  // not 0: a load during a capture returns this and ends it
SOFT_API void
soft_set_execute(bool execute);  // false: launches are checked and counted but not computed
SOFT_API void
soft_set_hints(bool exact);  // true: what a kernel reads before it waits is what it reads later

typedef struct soft_counters {
    long calls;  // driver calls; cuGetProcAddress and the error names are not counted
    long loads, unloads, allocations;  // that succeeded
    long launches, replays;  // launches put on a stream or recorded; launches of executable graphs
    long loads_in_capture;   // loads that met an active capture, refused or not
    long prefetches;         // that kernels made
    long live_modules, live_contexts;
    long caller_errors;  // things a real driver would crash on: reported in soft_last_error
} soft_counters;
SOFT_API soft_counters soft_count(void);

typedef struct soft_launch_record {
    char body[64], target[16];
    unsigned grid[3], block[3];
    size_t smem;
    bool pdl, captured;
} soft_launch_record;
SOFT_API bool soft_last_launch(soft_launch_record *out);  // false: none yet
// Why the last launch or caller error failed; "" if none. The text is the calling thread's until
// its next call of this.
SOFT_API const char *soft_last_error(void);

// -------------------------------------------------------------------------- between the two halves

// A body compiled for the host: its parameter struct comes by address.
typedef void (*soft_kernel)(const void *params);

typedef struct soft_image {
    const char *sha256;  // of the cubin, lower-case hex
    const char *body, *target, *entry;
    const int *ccs;  // 10*major + minor, 0 ends
    int floor;       // first driver that knows the target
    int threads;     // most threads per CTA, from the launch bounds
    soft_kernel kernel;
    size_t params_size;
} soft_image;

// Adds an image beside the bundle's. `image` is borrowed until the next soft_reset. False: the
// table is full.
SOFT_API bool soft_register_image(const soft_image *image);

// Looks a cubin up by its digest among the images of the bundle and the registered ones.
const soft_image *soft_find_image(const char *sha256);
// The length of an ELF image that comes without one; 0 if it is none.
size_t soft_image_size(const void *image);

// Runs a grid; 0, or -1 and a message in `why`: a fault, a divergent collective, an access outside
// allocated memory.
SOFT_API int soft_execute(soft_kernel kernel, const unsigned grid[3], const unsigned block[3],
                          size_t smem, const void *params, char *why, size_t why_size);

// The live allocation that holds `address`, as [*begin, *end); false if there is none. The executor
// asks once per allocation and access site of a launch, and remembers the answer (driver side).
bool soft_memory_range(uint64_t address, uint64_t *begin, uint64_t *end);
// As a kernel is about to look before it waits, or to prefetch: are hints exact? Counts the latter
// (driver side).
bool soft_hints_exact(void);
void soft_count_prefetch(void);

#ifdef __cplusplus
}
#endif
#endif
