// SPDX-License-Identifier: Apache-2.0
// Generated from gen/commit.cu.in, what it includes, and manifest/params.h for the row
// commit_softplus_split2 of manifest/schedules.inc.
// Frozen: edit the template or the row, then run `ninja -C build regen`.
//
// Commit: S <- S*d + w*kn, token after token in f32, for the accepted tokens of a window, rounded
// once. While the CTA's rows of the state are on their way, half-warps make kn and d of one token
// each from the cached key and gate and leave them in shared memory, a CHUNK of tokens at a time;
// then every half-warp carries its own rows through them. Bounded by the bandwidth of reading and
// writing the state.
//
// Row 2*i + (upper half-warp) of a warp is row i of a half-warp: an access of the warp covers 512
// bytes in a row.

// ---------------------------------------------------------------------------------------- prelude
//
// What all bodies share: the schedule's constants, access to memory and the machine, and the
// arithmetic contract that makes bodies of one T and gate agree bit for bit whatever their split.
//
// Lanes. A half-warp of 16 lanes holds a value row of 128 key channels: lane l has the channels
// 8*(l%16) to 8*(l%16) + 7, 16 bytes of state. The halves of a warp hold different rows.
//
// Dot. The lane's 8 channels in ascending order, a product and then 7 fused multiply-adds; then a
// butterfly over the half-warp at distances 8, 4, 2, 1. Addition commutes, so a transposing sum of
// many rows at the same distances has the same bits. This holds for q.q, k.k, kn.qn and the state.
//
// Rounding to bf16 happens at stores only. Every fused operation is spelled, and a compiler must
// not make others.
//
// Every helper that is PTX or a CUDA built-in has a second definition for a host, over the
// primitives soft_*, under KDA_SOFT_DEVICE: the same file runs on a CPU. All memory is reached
// through these helpers.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// x / d as x * magic >> shift in 64 bits, exact for every x below 2^31: with s = ceil(log2(d)) the
// shift is 31 + s, and the magic ceil(2^shift / d) fits 32 bits.
struct kda_divisor {
    unsigned magic, shift;
};

struct kda_commit_params {
    unsigned long long state;                   // [num_slots, HV, 128, 128] bf16, key channel fastest
    unsigned long long correction, kg;          // [num_slots, HV, T_cache, 128] f32 and [.., 256] bf16
    unsigned long long indices;                 // [rows] i32, or 0: slot n
    unsigned long long accepted;                // [rows] i32
    unsigned long long a_log, dt_bias;          // [H] and [H, 128] f32, or 0; an omitted dt_bias is zero
    long long slot_stride;                      // between two slots of the pool
    long long correction_strides[3], kg_strides[3];  // slot, value head, token
    int num_slots, null_min, rows;              // slots of the pool; the first live slot; N
    int tokens;                                 // T_cache
    int heads, value_heads;                     // H, HV; HV is a multiple of H
    struct kda_divisor query;                   // head hv reads query head hv / (HV/H)
    float lower_bound;                          // of the gate, 0 where it has none
    int reserved;                               // 0
};

// Of the row. OCCUPANCY is how many CTAs per SM the register cap must allow.
constexpr int TOKENS = 16, SPLIT = 2, THREADS = 256, SMEM = 20480;
constexpr int OCCUPANCY = 3;

constexpr int DIM = 128;           // key channels and value rows of a head
constexpr int ROWS = DIM / SPLIT;  // value rows of the CTA
constexpr int LANE_CHANNELS = 8;   // DIM / 16 lanes of a half-warp
constexpr float FLOAT_MAX = 3.402823466e38f;
constexpr float EPSILON = 1e-6f;   // added to a sum of squares
constexpr u64 ROW_BYTES = DIM * sizeof(u16);
constexpr u64 HEAD_BYTES = DIM * ROW_BYTES;

#define HELPER static __device__ __forceinline__

// 16 bytes: the 8 bf16 channels of a lane, the lower channel in the lower half of a word.
struct quad {
    u32 x, y, z, w;
};
struct vec4 {
    float x, y, z, w;
};

// ---- numbers

HELPER float as_float(u32 bits)
{
#ifdef KDA_SOFT_DEVICE
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
#else
    return __uint_as_float(bits);
#endif
}

#ifdef KDA_SOFT_DEVICE
HELPER u32 as_bits(float value)
{
    u32 bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
#endif

// Two bf16, round to nearest even; any NaN becomes 0x7fff.
HELPER u32 pack_bf16(float low, float high)
{
#ifdef KDA_SOFT_DEVICE
    const u32 l = as_bits(low), h = as_bits(high);
    const u32 a = low != low ? 0x7fff : (l + 0x7fff + ((l >> 16) & 1)) >> 16;
    const u32 b = high != high ? 0x7fff : (h + 0x7fff + ((h >> 16) & 1)) >> 16;
    return b << 16 | a;
#else
    u32 bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
#endif
}

// A bf16 in the lower half of a word. The shift is hidden from the compiler, which would move it up
// to the load of the word: there it waits, and with it every load behind.
HELPER float widen_bf16(u32 bits)
{
#ifdef KDA_SOFT_DEVICE
    return as_float(bits << 16);
#else
    u32 x;
    asm("shl.b32 %0, %1, 16;" : "=r"(x) : "r"(bits));
    return as_float(x);
#endif
}

HELPER void unpack_bf16(const quad &bits, float (&out)[LANE_CHANNELS])
{
    const u32 words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[2 * i] = as_float(words[i] << 16);
        out[2 * i + 1] = as_float(words[i] & 0xffff0000u);
    }
}

HELPER quad pack_row(const float (&x)[LANE_CHANNELS])
{
    quad bits;
    bits.x = pack_bf16(x[0], x[1]);
    bits.y = pack_bf16(x[2], x[3]);
    bits.z = pack_bf16(x[4], x[5]);
    bits.w = pack_bf16(x[6], x[7]);
    return bits;
}

// e^x; results below FLT_MIN become 0. The rounding of the product costs |x| * 2^-24 of the result:
// 5e-6 where it vanishes.
HELPER float exp_fast(float x)
{
    const float y = x * 1.4426950408889634f;
#ifdef KDA_SOFT_DEVICE
    const float e = exp2f(y);
    return e < 1.17549435e-38f ? 0.0f : e;
#else
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(y));
    return e;
#endif
}

// One of two values that are both there. A branch would put their latencies one after another, and
// loads whose values are used behind it wait for all others.
HELPER float select(bool first, float a, float b)
{
#ifdef KDA_SOFT_DEVICE
    return first ? a : b;
#else
    float x;
    asm("{ .reg .pred p; setp.ne.u32 p, %1, 0; selp.f32 %0, %2, %3, p; }"
        : "=f"(x)
        : "r"((u32)first), "f"(a), "f"(b));
    return x;
#endif
}

HELPER float rsqrt_fast(float x)
{
#ifdef KDA_SOFT_DEVICE
    return 1.0f / sqrtf(x);
#else
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

HELPER float reciprocal_fast(float x)
{
#ifdef KDA_SOFT_DEVICE
    return 1.0f / x;
#else
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// Branches on the sign: e^-|x| cannot overflow, so both limits are reached without a NaN.
HELPER float sigmoid(float x)
{
    const float e = exp_fast(-fabsf(x));
    const float s = reciprocal_fast(1.0f + e);
    return x >= 0.0f ? s : e * s;
}

// log(1 + e). The hardware logarithm is good to 2^-22 absolute; below 1/16 the series is better, to
// 3e-6 relative.
HELPER float log1p_fast(float e)
{
    const float series = e * fmaf(e, fmaf(e, fmaf(e, -0.25f, 0.33333333f), -0.5f), 1.0f);
    float l;
#ifdef KDA_SOFT_DEVICE
    l = log2f(1.0f + e);
#else
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(l) : "f"(1.0f + e));
#endif
    return e < 0.0625f ? series : l * 0.69314718f;
}

HELPER float softplus(float x) { return select(x > 20.0f, x, log1p_fast(exp_fast(x))); }

// ---- global memory, by 64-bit address

// Into the lower half of a word.
HELPER u32 load16(u64 address)
{
    u32 x = 0;
#ifdef KDA_SOFT_DEVICE
    memcpy(&x, soft_global(address, 2, __LINE__), 2);
#else
    asm volatile("ld.global.u16 %0, [%1];" : "=r"(x) : "l"(address));
#endif
    return x;
}

HELPER u32 load32(u64 address)
{
    u32 x;
#ifdef KDA_SOFT_DEVICE
    memcpy(&x, soft_global(address, 4, __LINE__), 4);
#else
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(x) : "l"(address));
#endif
    return x;
}

HELPER quad load128(u64 address)
{
    quad x;
#ifdef KDA_SOFT_DEVICE
    memcpy(&x, soft_global(address, 16, __LINE__), 16);
#else
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(address));
#endif
    return x;
}

// State is read once: it need not displace anything in L1. It may be stored to later by the same
// thread, so this must not become a load of the non-coherent path.
HELPER quad load_state(u64 address)
{
    quad x;
#ifdef KDA_SOFT_DEVICE
    memcpy(&x, soft_global(address, 16, __LINE__), 16);
#else
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(address));
#endif
    return x;
}

HELPER void store_state(u64 address, const quad &x)
{
#ifdef KDA_SOFT_DEVICE
    memcpy(soft_global(address, 16, __LINE__), &x, 16);
#else
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(x.x), "r"(x.y),
                 "r"(x.z), "r"(x.w)
                 : "memory");
#endif
}

HELPER void store16(u64 address, u16 x)
{
#ifdef KDA_SOFT_DEVICE
    memcpy(soft_global(address, 2, __LINE__), &x, 2);
#else
    asm volatile("st.global.u16 [%0], %1;" ::"l"(address), "h"(x) : "memory");
#endif
}

HELPER float load_f32(u64 address) { return as_float(load32(address)); }
HELPER int load_i32(u64 address) { return (int)load32(address); }
HELPER void store_bf16(u64 address, float x) { store16(address, (u16)pack_bf16(x, 0.0f)); }

// 16 bytes, one element at a time: for addresses that are only known to be even.
HELPER quad load16x8(u64 address)
{
    u32 e[8];
#pragma unroll
    for (int i = 0; i < 8; i++) e[i] = load16(address + 2 * i);
    return {e[1] << 16 | e[0], e[3] << 16 | e[2], e[5] << 16 | e[4], e[7] << 16 | e[6]};
}

HELPER void store16x8(u64 address, const quad &x)
{
    const u32 words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        store16(address + 4 * i, (u16)words[i]);
        store16(address + 4 * i + 2, (u16)(words[i] >> 16));
    }
}

// A lane's 8 channels of an activation.
template <bool ALIGNED = false> HELPER quad load_channels(u64 address)
{
    return ALIGNED || address % 16 == 0 ? load128(address) : load16x8(address);
}

// ---- shared memory, by 32-bit address. Volatile keeps the accesses on their side of the barriers.

#ifdef KDA_SOFT_DEVICE
HELPER u32 shared_base() { return 0; }
#else
extern __shared__ __align__(16) u8 kda_shared[];
HELPER u32 shared_base() { return (u32)__cvta_generic_to_shared(kda_shared); }
#endif

HELPER float lds(u32 address)
{
    float x;
#ifdef KDA_SOFT_DEVICE
    memcpy(&x, soft_shared(address, 4, __LINE__), 4);
#else
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address));
#endif
    return x;
}

HELPER u64 lds64(u32 address)
{
    u64 x;
#ifdef KDA_SOFT_DEVICE
    memcpy(&x, soft_shared(address, 8, __LINE__), 8);
#else
    asm volatile("ld.shared.u64 %0, [%1];" : "=l"(x) : "r"(address));
#endif
    return x;
}

HELPER vec4 lds128(u32 address)
{
    vec4 x;
#ifdef KDA_SOFT_DEVICE
    memcpy(&x, soft_shared(address, 16, __LINE__), 16);
#else
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(address));
#endif
    return x;
}

HELPER void sts(u32 address, float x)
{
#ifdef KDA_SOFT_DEVICE
    memcpy(soft_shared(address, 4, __LINE__), &x, 4);
#else
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
#endif
}

HELPER void sts64(u32 address, u64 x)
{
#ifdef KDA_SOFT_DEVICE
    memcpy(soft_shared(address, 8, __LINE__), &x, 8);
#else
    asm volatile("st.shared.u64 [%0], %1;" ::"r"(address), "l"(x) : "memory");
#endif
}

HELPER void sts128(u32 address, const vec4 &x)
{
#ifdef KDA_SOFT_DEVICE
    memcpy(soft_shared(address, 16, __LINE__), &x, 16);
#else
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(x.x), "f"(x.y),
                 "f"(x.z), "f"(x.w)
                 : "memory");
#endif
}

HELPER void sync_cta()
{
#ifdef KDA_SOFT_DEVICE
    soft_sync_cta(__LINE__);
#else
    __syncthreads();
#endif
}

// ---- the warp and the grid

HELPER float shuffle_xor(float x, u32 distance)
{
#ifdef KDA_SOFT_DEVICE
    return as_float(soft_shuffle(as_bits(x), (threadIdx.x % 32) ^ distance, __LINE__));
#else
    return __shfl_xor_sync(0xffffffffu, x, (int)distance);
#endif
}

HELPER float shuffle_from(float x, u32 lane)
{
#ifdef KDA_SOFT_DEVICE
    return as_float(soft_shuffle(as_bits(x), lane, __LINE__));
#else
    return __shfl_sync(0xffffffffu, x, (int)lane);
#endif
}


// A value that is the same in all lanes, so that the compiler knows it: branches on it need no care
// for lanes that part.
HELPER u32 uniform(u32 x)
{
#ifdef KDA_SOFT_DEVICE
    return x;
#else
    return __shfl_sync(0xffffffffu, x, 0);
#endif
}

// Programmatic dependent launch. Nothing in global memory may be touched before the wait, for it
// may still be written by the grid before this one. Releasing the dependents at once is safe
// although this grid has stored nothing yet: they wait in the same way, until this grid is complete
// and its memory visible. Without the launch attribute neither does anything.
HELPER void begin_grid()
{
#ifndef KDA_SOFT_DEVICE
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- sums over a half-warp

HELPER float dot(const float (&a)[LANE_CHANNELS], const float (&b)[LANE_CHANNELS])
{
    float sum = a[0] * b[0];
#pragma unroll
    for (int c = 1; c < LANE_CHANNELS; c++) sum = fmaf(a[c], b[c], sum);
    return sum;
}

// The sums of N values per lane, all at once: at each distance a lane keeps one half of its values,
// hands the other half over and adds what it is given. Lane l ends with the sum of the values
// number l % 16 / (16 / N); so do the other lanes of its group of 16 / N.
template <int N, u32 DISTANCE = 8> HELPER float sum_half(const float (&x)[N], u32 lane)
{
    if constexpr (DISTANCE == 0) {
        return x[0];
    } else if constexpr (N == 1) {
        const float y[1] = {x[0] + shuffle_xor(x[0], DISTANCE)};
        return sum_half<1, DISTANCE / 2>(y, lane);
    } else {
        const bool upper = lane & DISTANCE;
        float y[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const float keep = upper ? x[i + N / 2] : x[i];
            const float give = upper ? x[i] : x[i + N / 2];
            y[i] = keep + shuffle_xor(give, DISTANCE);
        }
        return sum_half<N / 2, DISTANCE / 2>(y, lane);
    }
}

HELPER u32 find_query_head(const kda_commit_params &p, u32 head)
{
    return (u32)((u64)head * p.query.magic >> p.query.shift);
}

// Where both halves of a warp have the same token, each makes the decay of four of a lane's
// channels for both.
constexpr int GATE_PARTS = 1;

constexpr int GATE_CHANNELS = LANE_CHANNELS / GATE_PARTS;

struct gate {
    float a_log;
    float bias[GATE_CHANNELS];
};

template <bool ALIGNED = false>
HELPER gate load_gate(const kda_commit_params &p, u32 query_head, u32 lane)
{
    gate x;
    x.a_log = load_f32(p.a_log + 4 * (u64)query_head);
    const u32 channel = lane % 16 * LANE_CHANNELS + lane / 16 % GATE_PARTS * GATE_CHANNELS;
    const u64 address = p.dt_bias + 4 * ((u64)query_head * DIM + channel);
    if (p.dt_bias == 0) {  // omitted
#pragma unroll
        for (int c = 0; c < GATE_CHANNELS; c++) x.bias[c] = 0.0f;
    } else
    if (ALIGNED || address % 16 == 0) {
#pragma unroll
        for (int c = 0; c < GATE_CHANNELS; c += 4) {
            const quad a = load128(address + 4 * c);
            x.bias[c] = as_float(a.x), x.bias[c + 1] = as_float(a.y);
            x.bias[c + 2] = as_float(a.z), x.bias[c + 3] = as_float(a.w);
        }
    } else
    {
#pragma unroll
        for (int c = 0; c < GATE_CHANNELS; c++) x.bias[c] = load_f32(address + 4 * c);
    }
    return x;
}

HELPER float log_decay(const kda_commit_params &, float rate, float x)
{
    return -rate * softplus(x);
}


// ----------------------------------------------------------------------------------------- kernel

constexpr u32 WARPS = THREADS / 32;
constexpr int WARP_ROWS = ROWS / WARPS;
constexpr int HALF_ROWS = WARP_ROWS / 2;  // rows of a half-warp
constexpr u32 CHUNK = 2 * WARPS;          // tokens that are made at a time, one by each half-warp
static_assert(2 * HALF_ROWS * WARPS == ROWS, "whole rows");

// Shared memory of one token: kn, d, and the CTA's part of w.
constexpr u32 VECTOR_BYTES = DIM * sizeof(float);
constexpr u32 K = 0, D = VECTOR_BYTES, W = 2 * VECTOR_BYTES;
constexpr u32 TOKEN_BYTES = W + ROWS * sizeof(float);
static_assert(SMEM == CHUNK * TOKEN_BYTES, "the row's smem");

// A lane's channels are two quarters 256 bytes apart, so that consecutive lanes are 16 bytes apart:
// no bank conflicts.
HELPER void store_vector(u32 address, u32 lane, const float (&x)[LANE_CHANNELS])
{
    sts128(address + lane % 16 * 16, {x[0], x[1], x[2], x[3]});
    sts128(address + lane % 16 * 16 + VECTOR_BYTES / 2, {x[4], x[5], x[6], x[7]});
}

HELPER void load_vector(u32 address, u32 lane, float (&x)[LANE_CHANNELS])
{
    const vec4 a = lds128(address + lane % 16 * 16);
    const vec4 b = lds128(address + lane % 16 * 16 + VECTOR_BYTES / 2);
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

// kn and d of a half-warp's token, from its line of the cache.
HELPER void make_vectors(const kda_commit_params &p, u64 kg, const gate &gate, u32 shared, u32 lane)
{
    const u64 address = kg + lane % 16 * sizeof(quad);
    float k[LANE_CHANNELS], d[LANE_CHANNELS];
    unpack_bf16(load_channels(address), k);
    unpack_bf16(load_channels(address + DIM * sizeof(u16)), d);
    const float kk[1] = {dot(k, k)};
    const float scale = rsqrt_fast(sum_half(kk, lane) + EPSILON);
    const float rate = exp_fast(gate.a_log);
#pragma unroll
    for (int c = 0; c < LANE_CHANNELS; c++) {
        k[c] = k[c] * scale;
        d[c] = exp_fast(log_decay(p, rate, d[c] + gate.bias[c]));
    }
    store_vector(shared + K, lane, k);
    store_vector(shared + D, lane, d);
}

extern "C" __global__ void __launch_bounds__(THREADS, OCCUPANCY)
    kda_commit_softplus_split2(const __grid_constant__ struct kda_commit_params p)
{
    begin_grid();
    const u32 lane = threadIdx.x % 32, half = lane / 16;
    const u32 warp = uniform(threadIdx.x / 32);
    const u32 n = blockIdx.y, head = blockIdx.x / SPLIT, first_row = blockIdx.x % SPLIT * ROWS;
    const int slot = p.indices ? load_i32(p.indices + 4 * (u64)n) : (int)n;
    const int wanted = load_i32(p.accepted + 4 * (u64)n);
    const int accepted = wanted < p.tokens ? wanted : p.tokens;
    if (accepted <= 0 || slot < p.null_min || slot >= p.num_slots) return;

    const u64 kg = p.kg + ((u32)slot * (u64)p.kg_strides[0] + head * (u64)p.kg_strides[1]) *
                              sizeof(u16);
    const u64 correction =
        p.correction + ((u32)slot * (u64)p.correction_strides[0] +
                        head * (u64)p.correction_strides[1] + first_row) * sizeof(float);
    const u64 state = p.state + (u32)slot * (u64)p.slot_stride * sizeof(u16) + head * HEAD_BYTES +
                      (first_row + warp * WARP_ROWS + half) * ROW_BYTES + lane % 16 * sizeof(quad);
    quad rows[HALF_ROWS];
#pragma unroll
    for (int i = 0; i < HALF_ROWS; i++) rows[i] = load_state(state + i * 2 * ROW_BYTES);
    const gate gate = load_gate(p, find_query_head(p, head), lane);

    const u32 shared = shared_base();
    float x[HALF_ROWS][LANE_CHANNELS];
#pragma unroll
    for (int i = 0; i < HALF_ROWS; i++) unpack_bf16(rows[i], x[i]);
#pragma unroll 1
    for (u32 first = 0; first < (u32)accepted; first += CHUNK) {
        const u32 left = (u32)accepted - first, count = left < CHUNK ? left : CHUNK;
        if (first) sync_cta();  // everybody is through the last chunk
        if (2 * warp < count) {
            // A half-warp without a token makes its neighbour's again, in a place of its own.
            const u32 own = 2 * warp + half, from = own < count ? own : 2 * warp;
            make_vectors(p, kg + (first + from) * (u64)p.kg_strides[2] * sizeof(u16), gate,
                         shared + own * TOKEN_BYTES, lane);
        }
        for (u32 i = threadIdx.x; i < count * ROWS; i += THREADS)
            sts(shared + i / ROWS * TOKEN_BYTES + W + i % ROWS * sizeof(float),
                as_float(load32(correction + ((first + i / ROWS) * (u64)p.correction_strides[2] +
                                              i % ROWS) * sizeof(float))));
        sync_cta();
#pragma unroll 1
        for (u32 token = shared; token != shared + count * TOKEN_BYTES; token += TOKEN_BYTES) {
            float k[LANE_CHANNELS], d[LANE_CHANNELS];
            load_vector(token + K, lane, k);
            load_vector(token + D, lane, d);
#pragma unroll
            for (int i = 0; i < HALF_ROWS; i++) {
                const u32 row = warp * WARP_ROWS + 2 * i + half;
                const float w = lds(token + W + row * sizeof(float));
#pragma unroll
                for (int c = 0; c < LANE_CHANNELS; c++) x[i][c] = fmaf(w, k[c], x[i][c] * d[c]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < HALF_ROWS; i++) store_state(state + i * 2 * ROW_BYTES, pack_row(x[i]));
}
