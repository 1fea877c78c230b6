// SPDX-License-Identifier: Apache-2.0
// The soft device: a libcuda.so.1 that computes on the CPU. This header is its back door for tests; everything else is
// reached through the driver API, by the unchanged loader. Two halves meet here: driver.c scripts devices, contexts,
// memory, streams and graphs; execute.cc runs a frozen body, one fibre per CUDA thread.
#ifndef KDA_TESTS_SOFT_H
#define KDA_TESTS_SOFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// ------------------------------------------------------------------------------------------------------- back doors

#define SOFT_API __attribute__((visibility("default")))

// Forgets everything: devices are one CC 10.0 device of 148 SMs, driver 13.0; no injected fault, counters at zero.
// No context may be in use by another thread.
SOFT_API void soft_reset(void);
SOFT_API void soft_set_device_count(int count);
SOFT_API void soft_set_device(int ordinal, int cc_major, int cc_minor, int sm_count);
SOFT_API void soft_set_driver_version(int version);      // as cuDriverGetVersion reports it
SOFT_API void soft_set_stub(bool stub);                  // every call returns 34 CUDA_ERROR_STUB_LIBRARY
SOFT_API void soft_hide_symbol(const char *name);        // cuGetProcAddress does not find it; NULL: hide nothing
SOFT_API void soft_fail_call(long k, int result);        // the k-th driver call from now (1 = next) returns `result`
SOFT_API void soft_delay_load(unsigned microseconds);    // every module load takes this long
SOFT_API void soft_set_execute(bool execute);            // false: launches are checked and counted but not computed

typedef struct soft_counters {
    long calls;       // driver calls, lookups by cuGetProcAddress not counted
    long loads, unloads, launches, allocations;
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
SOFT_API const char *soft_last_error(void);               // why the last launch or caller error failed; "" if none

// ---------------------------------------------------------------------------------------- between the two halves

// A body compiled for the host: its parameter struct comes by address.
typedef void (*soft_kernel)(const void *params);

typedef struct soft_image {
    uint8_t sha256[32];  // of the cubin
    const char *body, *target, *entry;
    int ccs[4];  // 10*major + minor, 0 ends
    soft_kernel kernel;
    size_t params_size;
} soft_image;

// Looks a cubin up by its digest in the table generated with the bundle (execute.cc side).
const soft_image *soft_find_image(const uint8_t sha256[32]);
// The length of an ELF image that comes without one; 0 if it is none.
size_t soft_image_size(const void *image);

// Runs a grid; 0, or a message in `why` (a fault, a divergent collective, an access outside allocated memory).
int soft_execute(soft_kernel kernel, const unsigned grid[3], const unsigned block[3], size_t smem, const void *params,
                 char *why, size_t why_size);

// Is [address, address + size) inside one live allocation? Called on every global access of a body (driver.c side).
bool soft_memory_ok(uint64_t address, size_t size);

#ifdef __cplusplus
}
#endif
#endif
