// SPDX-License-Identifier: Apache-2.0
// The floor kernel on a device: the image of tools/floor.cu that it runs, and its launch.
#ifndef KDA_TOOLS_BENCH_FLOOR_H
#define KDA_TOOLS_BENCH_FLOOR_H

#include "tools/bench_call.h"
#include "tools/machine.h"

struct bench_floor {
    const struct machine *machine;
    CUmodule module;
    CUfunction function;
};

bool bench_floor_open(const struct machine *machine, struct bench_floor *out);  // false: no image
void bench_floor_close(const struct bench_floor *floor);

// Moves what a call must move, `split` CTAs per head; of a call without inputs that is the states
// alone.
void bench_floor_launch(const struct bench_floor *floor, const struct bench_call *call,
                        unsigned split, CUstream stream);

#endif
