// SPDX-License-Identifier: Apache-2.0
// Device memory for calls whose data is never in the L2: a large pool of states whose slots are
// walked in random order, and rings of inputs. All of it is random bf16 of ordinary size.
#ifndef KDA_TOOLS_BENCH_POOL_H
#define KDA_TOOLS_BENCH_POOL_H

#include "tools/bench_call.h"
#include "tools/machine.h"

struct bench_ring {
    CUdeviceptr base;
    size_t size, at;
};

struct bench_pool {
    const struct machine *machine;
    CUdeviceptr state;
    size_t state_size;
    struct bench_ring values, decays, unit, out, gates;  // q k v; g; beta; out; A_log dt_bias
                                                         // and the weights of fused decode
    CUdeviceptr ints;                                    // indices, cu_seqlens, accepted counts
    size_t ints_size;                                    // bytes
    int32_t *order;  // slots of the shape, in the order of the walk
    int64_t num_slots, order_count, at;
};

// `size` bytes of states, less where the device is small; rings of `ring` bytes, or as large as one
// call of the largest shape.
void bench_pool_open(const struct machine *machine, size_t size, size_t ring,
                     const struct bench_shapes *shapes, struct bench_pool *out);
void bench_pool_close(struct bench_pool *pool);

// Cuts the pool into slots of this shape. False: one call needs more than there are.
bool bench_pool_begin(struct bench_pool *pool, const struct bench_shape *shape);

// The next `count` slots of the walk: a slot comes back when all others have been used.
void bench_pool_slots(struct bench_pool *pool, int64_t count, int32_t *out);

// `count` calls, one after another in the rings and in the walk. Their slot indices lie in a row,
// the counts are shared, as by the layers of a model; both are overwritten by the next call of
// this.
void bench_pool_calls(struct bench_pool *pool, const struct bench_shape *shape, uint32_t flags,
                      int count, struct bench_call *out);

#endif
