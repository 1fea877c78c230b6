// SPDX-License-Identifier: Apache-2.0
// The floor kernel on a device: the image of tools/floor.cu that it runs, and its launch.
#ifndef KDA_TOOLS_BENCH_FLOOR_H
#define KDA_TOOLS_BENCH_FLOOR_H

#include "tools/bench.h"
#include "tools/machine.h"

struct bench_floor {
    const struct machine *machine;
    CUmodule module;
    CUfunction function;
};

bool bench_floor_open(const struct machine *machine, struct bench_floor *out);  // false: no image
void bench_floor_close(const struct bench_floor *floor);

// Moves the states of one call: `slots` [N, T] of the pool at `state`, `split` CTAs per head.
void bench_floor_launch(const struct bench_floor *floor, CUdeviceptr state,
                        const struct bench_shape *shape, unsigned split, CUdeviceptr slots,
                        CUstream stream);

#endif
