// SPDX-License-Identifier: Apache-2.0
// What the kernel of tools/floor.cu takes, for those who launch it. The kernel, which can include
// nothing, repeats the struct.
#ifndef KDA_TOOLS_FLOOR_H
#define KDA_TOOLS_FLOOR_H

#define KDA_FLOOR_THREADS 256

struct kda_floor_params {
    unsigned long long state, slots;  // device addresses: the pool, and [rows, tokens] i32
    long long slot_stride;            // bytes
    int tokens, heads;                // T; HV
};

#endif
