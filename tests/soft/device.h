// SPDX-License-Identifier: Apache-2.0
// What a frozen body sees when it is compiled for the CPU: force-included before it, with
// KDA_SOFT_DEVICE defined. The prelude's helpers have a host definition each, and those call the
// few primitives below. `site` is the source line of the collective: all threads that take part
// must come from the same one, or the launch fails with lane numbers.
#ifndef KDA_TESTS_SOFT_DEVICE_H
#define KDA_TESTS_SOFT_DEVICE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__

#ifdef __cplusplus
extern "C" {
#endif

typedef struct soft_dim {
    unsigned x, y, z;
} soft_dim;
soft_dim soft_thread_index(void);
soft_dim soft_block_index(void);
soft_dim soft_grid_size(void);
soft_dim soft_block_size(void);

// The value that `source` (a lane of the caller's warp) passed to the same collective. All 32 lanes
// take part.
unsigned soft_shuffle(unsigned value, unsigned source, int site);
// c += a * b of the warp's m16n8k16 tiles, in fragments as mma.sync has them: bf16 pairs in a and
// b, the products of a column of k added to c one after the other in f32. All 32 lanes take part.
void soft_mma(float c[4], const unsigned a[4], const unsigned b[2], int site);
// The same for m16n8k8 tiles of tf32, of whose words the lower 13 bits do not count.
void soft_mma_tf32(float c[4], const unsigned a[4], const unsigned b[2], int site);
void soft_sync_warp(int site);
void soft_sync_cta(int site);
// The same barrier; 1 if `value` is not 0 for any thread, else 0.
unsigned soft_sync_cta_any(unsigned value, int site);

// Global memory: proves that the access is aligned to its size and inside one live allocation, else
// fails the launch.
void *soft_global(unsigned long long address, unsigned size, int site);
// What a thread sees of a word of global memory before the grid before its own is complete: the
// word, or another one, for that grid may still write it.
unsigned soft_hint(unsigned long long address, int site);
// A prefetch: of bytes that lie in one live allocation, else fails the launch. Of more than one, at
// multiples of 16.
void soft_prefetch(unsigned long long address, unsigned size, int site);
// Dynamic shared memory, by byte offset; poisoned at CTA start, bounds and alignment checked.
void *soft_shared(unsigned offset, unsigned size, int site);

#ifdef __cplusplus
}
#endif
#define threadIdx soft_thread_index()
#define blockIdx soft_block_index()
#define gridDim soft_grid_size()
#define blockDim soft_block_size()

#endif
