// SPDX-License-Identifier: Apache-2.0
// What the kernel of tools/floor.cu takes, for those who launch it. The kernel, which can include
// nothing, repeats the structs.
#ifndef KDA_TOOLS_FLOOR_H
#define KDA_TOOLS_FLOOR_H

#define KDA_FLOOR_THREADS 256

struct kda_floor_part {
    unsigned long long base;    // device address
    unsigned row_quads, quads;  // 16 bytes each: between rows; of a head, heads side by side
};

struct kda_floor_params {
    unsigned long long state, slots;  // device addresses: the pool, and [rows, row_slots] i32
    long long slot_stride;            // bytes
    int row_slots, writes, heads;     // slots of a row; of these, how many are written; HV
    unsigned head_quads;              // 16 bytes each: of the state of a head
    // Beside the state, nothing where `quads` is 0: a block of the slot that is read and written,
    // whose row_quads are not used; what each row reads; what all rows read, once; what each row
    // writes.
    struct kda_floor_part window, read, shared, written;
};

#endif
