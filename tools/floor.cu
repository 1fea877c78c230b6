// SPDX-License-Identifier: Apache-2.0
// The floor of a decode step: a kernel that only moves the state. For each row and value head it reads the slot of the
// row's first token once and writes the slots of all its tokens, none or one where the operation does, 16 bytes per
// access. Grid (heads*split, rows): a CTA moves 1/split of a head. The lowest bit of what is written changes, so that no
// write can be left out. Where an operation has more to move than its state counts for, as all but recurrent and packed
// decode have, it moves as many bytes of that too, and the others have no more to do than before they could.
//
// No schedule: it computes nothing, is in no bundle, and kda-bench carries its images. It also runs on the soft device.

struct kda_floor_part {  // tools/floor.h
    unsigned long long base;
    unsigned row_quads, quads;
};

struct kda_floor_params {
    unsigned long long state, slots;
    long long slot_stride;
    int row_slots, writes, heads;
    unsigned head_quads, parts;
    kda_floor_part window, read, shared, written;
};

struct quad {
    unsigned x, y, z, w;
};

#ifdef KDA_SOFT_DEVICE
#define HELPER static inline

HELPER int load_slot(unsigned long long address) { return *(const int *)soft_global(address, 4, __LINE__); }
HELPER quad load(unsigned long long address) { return *(const quad *)soft_global(address, 16, __LINE__); }
HELPER void store(unsigned long long address, const quad &x) { *(quad *)soft_global(address, 16, __LINE__) = x; }
#else
#define HELPER static __device__ __forceinline__

// Volatile, to keep the order of the program: all loads of a round before its stores.
HELPER int load_slot(unsigned long long address)
{
    int slot;
    asm volatile("ld.global.s32 %0, [%1];" : "=r"(slot) : "l"(address));
    return slot;
}

HELPER quad load(unsigned long long address)
{
    quad x;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(address));
    return x;
}

HELPER void store(unsigned long long address, const quad &x)
{
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}
#endif

constexpr unsigned THREADS = 256, IN_FLIGHT = 4;

// The sum of what this CTA's part of `quads` holds from `from` on: loads that are not left out.
HELPER unsigned read(unsigned long long from, unsigned quads, unsigned tile, unsigned split)
{
    unsigned sum = 0;
    for (unsigned i = tile * THREADS + threadIdx.x; i < quads; i += split * THREADS) {
        const quad x = load(from + 16ull * i);
        sum ^= x.x ^ x.y ^ x.z ^ x.w;
    }
    return sum;
}

// A CTA's part of a state, from its slot to those of the row.
HELPER void move(const kda_floor_params &p, unsigned long long from, unsigned long long slots, unsigned long long base,
                 unsigned quads)
{
    for (unsigned i = threadIdx.x; i < quads; i += THREADS * IN_FLIGHT) {
        quad x[IN_FLIGHT];
#pragma unroll
        for (unsigned u = 0; u < IN_FLIGHT; u++)
            if (i + u * THREADS < quads) x[u] = load(from + 16ull * (i + u * THREADS));
        for (int t = 0; t < p.writes; t++) {
            const unsigned long long to = base + (long long)load_slot(slots + 4ull * t) * p.slot_stride;
#pragma unroll
            for (unsigned u = 0; u < IN_FLIGHT; u++)
                if (i + u * THREADS < quads) {
                    x[u].x ^= 1;
                    store(to + 16ull * (i + u * THREADS), x[u]);
                }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) kda_floor(const __grid_constant__ kda_floor_params p)
{
    const unsigned long long slots = p.slots + 4ull * blockIdx.y * p.row_slots;
    // With nothing before the state its slot is on the way while the divisions are made.
    long long from = 0;
    if (!p.parts) from = load_slot(slots);
    const unsigned split = gridDim.x / p.heads, head = blockIdx.x / split, tile = blockIdx.x % split;
    const unsigned quads = p.head_quads / split;
    const unsigned long long offset = 16ull * (head * p.head_quads + tile * quads), base = p.state + offset;
    if (!p.parts) {
        move(p, base + from * p.slot_stride, slots, base, quads);
        return;
    }
    const unsigned first = tile * THREADS + threadIdx.x;
    unsigned sum = 0;
    if (blockIdx.y == 0) sum = read(p.shared.base + 16ull * head * p.shared.quads, p.shared.quads, tile, split);
    const long long slot = load_slot(slots) * p.slot_stride;
    sum ^= read(p.read.base + 16ull * blockIdx.y * p.read.row_quads + 16ull * head * p.read.quads, p.read.quads, tile,
                split);
    const unsigned long long window = p.window.base + slot + 16ull * head * p.window.quads;
    quad side = {};
    if (first < p.window.quads) side = load(window + 16ull * first);
    move(p, base + slot, slots, base, quads);
    side.x ^= 1;
    if (first < p.window.quads) store(window + 16ull * first, side);
    side.y ^= sum;
    const unsigned long long out = p.written.base + 16ull * blockIdx.y * p.written.row_quads;
    for (unsigned i = first; i < p.written.quads; i += split * THREADS)
        store(out + 16ull * (head * p.written.quads + i), side);
    // Never so: a sum that is needed nowhere else.
    if (p.heads == 0) store(out, {sum, sum, sum, sum});
}
