// SPDX-License-Identifier: Apache-2.0
// The floor of a decode step: a kernel that only moves the state. For each row and value head it reads the slot of the
// row's first token once and writes the slots of all its tokens, 16 bytes per access. Grid (heads*split, rows): a CTA
// moves 1/split of a head. The lowest bit of what is written changes, so that no write can be left out.
//
// No schedule: it computes nothing, is in no bundle, and kda-bench carries its images. It also runs on the soft device.

struct kda_floor_params {  // tools/floor.h
    unsigned long long state, slots;
    long long slot_stride;
    int tokens, heads;
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
constexpr unsigned HEAD_BYTES = 128 * 128 * 2, HEAD_QUADS = HEAD_BYTES / 16;

extern "C" __global__ void __launch_bounds__(THREADS) kda_floor(const __grid_constant__ kda_floor_params p)
{
    const unsigned split = gridDim.x / p.heads, head = blockIdx.x / split, tile = blockIdx.x % split;
    const unsigned quads = HEAD_QUADS / split;
    const unsigned long long offset = (unsigned long long)head * HEAD_BYTES + tile * quads * 16;
    const unsigned long long slots = p.slots + 4ull * blockIdx.y * p.tokens, base = p.state + offset;
    const unsigned long long from = base + (long long)load_slot(slots) * p.slot_stride;
    for (unsigned i = threadIdx.x; i < quads; i += THREADS * IN_FLIGHT) {
        quad x[IN_FLIGHT];
#pragma unroll
        for (unsigned u = 0; u < IN_FLIGHT; u++)
            if (i + u * THREADS < quads) x[u] = load(from + 16ull * (i + u * THREADS));
        for (int t = 0; t < p.tokens; t++) {
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
