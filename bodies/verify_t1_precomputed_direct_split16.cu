// SPDX-License-Identifier: Apache-2.0
// Generated from gen/verify_direct.cu.in, what it includes, and manifest/params.h for the row
// verify_t1_precomputed_direct_split16 of manifest/schedules.inc.
// Frozen: edit the template or the row, then run `ninja -C build regen`.
//
// Frozen verify of one token by the plain recurrence: the warps of a CTA take WARP_ROWS value rows
// of one head each, with no shared memory and no barrier. With p = S0.(d*kn) and r = S0.(d*qn):
// w = beta * (v - p), o = r + w * (kn.qn). The state after the token is nobody's. At small N it is
// bound by the latency of slot and state, one after the other; at large N by the bandwidth of one
// read of the state.
//
// A null row's inputs must not be read, so the token comes with the state and nothing is made in
// its shadow. What needs neither token nor slot is done before they are there, and q and k are
// normalized in their products: the norms are summed beside the products with the state, not before
// them.
//
// Row 2*i + (upper half-warp) is row i of a half-warp: a load of the warp is 512 bytes in a row.

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

struct kda_verify_params {
    unsigned long long indices;                 // [rows] i32, or 0: slot n
    unsigned long long cu_seqlens;              // [rows + 1] i32, or 0: row n owns tokens n*T .. n*T + T - 1
    int tokens;                                 // T_max: a longer row is cut there
    int num_slots, null_min;                    // slots of the pool; the first live slot
    int wide;                                   // 1: all channels of q, k, v and g lie at multiples of 16 bytes
    long long tok;                              // packed tokens of the call
    struct kda_divisor query;                   // head hv reads query head hv / (HV/H)
    unsigned long long state;                   // [num_slots, HV, 128, 128] bf16, key channel fastest, only read
    long long slot_stride;                      // between two slots of the pool
    unsigned long long a_log, dt_bias;          // [H] and [H, 128] f32, or 0; an omitted dt_bias is zero
    unsigned long long q, k;                    // [tok, H, 128] bf16
    unsigned long long v, g;                    // [tok, HV, 128] bf16
    long long q_stride, k_stride;               // token strides
    long long v_stride, g_stride;
    unsigned long long beta;                    // [tok, HV] bf16
    long long beta_stride;
    float scale, lower_bound;                   // q scale; lower bound of the gate, 0 where it has none
    int beta_is_logit;                          // 1: beta goes through a sigmoid in the kernel
    int rows;                                   // N
    unsigned long long out;                     // [tok, HV, 128] bf16
    long long out_stride;
    unsigned long long correction, kg;          // [num_slots, HV, T_cache, 128] f32 and [.., 256] bf16, or both 0
    long long correction_strides[3], kg_strides[3];  // slot, value head, token
    int heads, value_heads;                     // H, HV; HV is a multiple of H
};

// Of the row. OCCUPANCY is how many CTAs per SM the register cap must allow.
constexpr int TOKENS = 1, SPLIT = 16, THREADS = 64, SMEM = 0;
constexpr int OCCUPANCY = 16;

constexpr int DIM = 128;           // key channels and value rows of a head
constexpr int ROWS = DIM / SPLIT;  // value rows of the CTA
constexpr int LANE_CHANNELS = 8;   // DIM / 16 lanes of a half-warp
constexpr float FLOAT_MAX = 3.402823466e38f;
constexpr float EPSILON = 1e-6f;   // added to a sum of squares
constexpr float LOG2E = 1.4426950408889634f;
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
#else
HELPER u32 as_bits(float value) { return __float_as_uint(value); }
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

// 2^x; results below FLT_MIN become 0.
HELPER float exp2_fast(float x)
{
#ifdef KDA_SOFT_DEVICE
    const float e = exp2f(x);
    return e < 1.17549435e-38f ? 0.0f : e;
#else
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x));
    return e;
#endif
}

// e^x. The rounding of the product costs |x| * 2^-24 of the result: 5e-6 where it vanishes.
HELPER float exp_fast(float x) { return exp2_fast(x * LOG2E); }

// x within +-limit; a NaN stays one.
HELPER float saturate(float x, float limit)
{
#ifdef KDA_SOFT_DEVICE
    return x != x ? x : copysignf(fminf(fabsf(x), limit), x);
#else
    float y;
    asm("min.NaN.xorsign.abs.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(limit));
    return y;
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

// Where e^-x overflows, below -88, its reciprocal is the limit: both are reached without a NaN.
HELPER float sigmoid(float x) { return reciprocal_fast(1.0f + exp_fast(-x)); }

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

HELPER u64 load64(u64 address)
{
    u64 x;
#ifdef KDA_SOFT_DEVICE
    memcpy(&x, soft_global(address, 8, __LINE__), 8);
#else
    asm volatile("ld.global.u64 %0, [%1];" : "=l"(x) : "l"(address));
#endif
    return x;
}

HELPER void store64(u64 address, u64 x)
{
#ifdef KDA_SOFT_DEVICE
    memcpy(soft_global(address, 8, __LINE__), &x, 8);
#else
    asm volatile("st.global.u64 [%0], %1;" ::"l"(address), "l"(x) : "memory");
#endif
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

HELPER int load_i32(u64 address) { return (int)load32(address); }
HELPER void store_bf16(u64 address, float x) { store16(address, (u16)pack_bf16(x, 0.0f)); }

// 16 bytes, one element at a time: for addresses that are only known to be even. In a loop, which
// the compiler must branch around: unrolled, its loads would be in everybody's way.
HELPER quad load16x8(u64 address)
{
    quad x = {};
#pragma unroll 1
    for (int i = 0; i < 8; i++)
        x = {x.x >> 16 | x.y << 16, x.y >> 16 | x.z << 16, x.z >> 16 | x.w << 16,
             x.w >> 16 | load16(address + 2 * i) << 16};
    return x;
}

HELPER void store16x8(u64 address, const quad &words)
{
    quad x = words;
#pragma unroll 1
    for (int i = 0; i < 8; i++) {
        store16(address + 2 * i, (u16)x.x);
        x = {x.x >> 16 | x.y << 16, x.y >> 16 | x.z << 16, x.z >> 16 | x.w << 16, x.w >> 16};
    }
}

// A lane's 8 channels of an activation.
template <bool ALIGNED = false> HELPER quad load_channels(u64 address)
{
    return ALIGNED || address % 16 == 0 ? load128(address) : load16x8(address);
}

HELPER void store32(u64 address, u32 x)
{
#ifdef KDA_SOFT_DEVICE
    memcpy(soft_global(address, 4, __LINE__), &x, 4);
#else
    asm volatile("st.global.u32 [%0], %1;" ::"l"(address), "r"(x) : "memory");
#endif
}

// A lane's 8 channels of a cache.
HELPER void store_channels(u64 address, const quad &x)
{
    if (address % 16 == 0)
        store_state(address, x);
    else
        store16x8(address, x);
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


// Loads stay on their side of it: what is written first is asked for first. Without it the compiler
// sinks loads towards their use, to save registers.
HELPER void keep_order()
{
#ifdef KDA_SOFT_DEVICE
    soft_sync_warp(__LINE__);
#else
    __syncwarp();
#endif
}

// The compiler would compute an address in the branch that uses it, which waits for its condition.
HELPER void compute_here(u64 &address)
{
#ifdef KDA_SOFT_DEVICE
    (void)address;
#else
    asm volatile("" : "+l"(address));
#endif
}

// Programmatic dependent launch. No result may depend on global memory before the wait, for it may
// still be written by the grid before this one. Releasing the dependents at once is safe although
// this grid has stored nothing yet: they wait in the same way, until this grid is complete and its
// memory visible. Without the launch attribute neither does anything.
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

HELPER u64 value_address(const kda_verify_params &p, u32 token, u32 head, u32 row)
{
    return p.v + (token * (u64)p.v_stride + (u64)head * DIM + row) * sizeof(u16);
}

// An element of v, for widen_bf16.
HELPER u32 load_value(const kda_verify_params &p, u32 token, u32 head, u32 row)
{
    return load16(value_address(p, token, head, row));
}

HELPER u32 find_query_head(const kda_verify_params &p, u32 head)
{
    return (u32)((u64)head * p.query.magic >> p.query.shift);
}

// ---- the vectors of one token

struct token_words {
    quad q, k, g;
    u32 beta;  // for widen_bf16
};

// Where a lane's channels of a token lie, and beta.
struct token_address {
    u64 q, k, g, beta;
};

HELPER token_address find_token(const kda_verify_params &p, u32 index, u32 query_head, u32 head,
                                u32 lane)
{
    const u64 channel = (lane % 16) * LANE_CHANNELS;
    const u64 query = (u64)query_head * DIM + channel, value = (u64)head * DIM + channel;
    return {p.q + 2 * (index * (u64)p.q_stride + query),
            p.k + 2 * (index * (u64)p.k_stride + query),
            p.g + 2 * (index * (u64)p.g_stride + value),
            p.beta + 2 * (index * (u64)p.beta_stride + head)};
}

template <bool WIDE> HELPER token_words load_words(const token_address &x)
{
    if (WIDE) return {load128(x.q), load128(x.k), load128(x.g), load16(x.beta)};
    return {load16x8(x.q), load16x8(x.k), load16x8(x.g), load16(x.beta)};
}

// From token 0 of the call to that one.
HELPER void move_token(const kda_verify_params &p, token_address &x, u32 index)
{
    x.q += 2 * index * (u64)p.q_stride;
    x.k += 2 * index * (u64)p.k_stride;
    x.g += 2 * index * (u64)p.g_stride;
    x.beta += 2 * index * (u64)p.beta_stride;
}

template <bool ALIGNED = false>
HELPER token_words load_token(const kda_verify_params &p, const token_address &x)
{
    // One branch for all of them: a load with a second form of its own waits for the one before.
    return p.wide ? load_words<true>(x) : load_words<false>(x);
}

// Where both halves of a warp have the same token, each makes the decay of four of a lane's
// channels for both.
constexpr int GATE_PARTS =
    1;
constexpr int GATE_CHANNELS = LANE_CHANNELS / GATE_PARTS;

struct gate {};  // g is the log decay

template <bool ALIGNED = false> HELPER gate load_gate(const kda_verify_params &, u32, u32) { return {}; }

// The logarithm to base 2 of a decay. So is the rate, e^a_log * LOG2E.
HELPER float log2_decay(const kda_verify_params &p, float rate, float x)
{
    (void)p, (void)rate;
    return x * LOG2E;
}

// Where the gate may grow, what comes of its decays is held within a limit: a zero never meets an
// infinity.
HELPER float hold(float x, float limit)
{
    return saturate(x, limit);
}

// From raw gates to the logarithms of the decays.
HELPER void make_log2_decays(const kda_verify_params &p, const gate &gate, float (&g)[GATE_CHANNELS])
{
    (void)gate;
#pragma unroll
    for (int c = 0; c < GATE_CHANNELS; c++) g[c] = log2_decay(p, 0.0f, g[c]);
}

// The decays of a lane's channels.
HELPER void make_decays(const kda_verify_params &p, const gate &gate, const quad &words, u32 lane,
                        float (&d)[LANE_CHANNELS])
{
    constexpr int REST = LANE_CHANNELS - GATE_CHANNELS;
    const bool upper = GATE_PARTS == 2 && lane & 16;
    float g[GATE_CHANNELS];
    unpack_bf16(words, d);
#pragma unroll
    for (int c = 0; c < GATE_CHANNELS; c++) g[c] = upper ? d[c + REST] : d[c];
    make_log2_decays(p, gate, g);
#pragma unroll
    for (int c = 0; c < GATE_CHANNELS; c++) {
        const float mine = exp2_fast(g[c]);
        const float other = GATE_PARTS == 2 ? shuffle_xor(mine, 16) : mine;
        d[c] = upper ? other : mine;
        d[c + REST] = upper ? mine : other;
    }
}

// A sum with k or q, times the scale of its norm. Where that overflows the scale is zero, and so is
// the result, whatever the sum became.
HELPER float scaled(float x, float scale) { return scale == 0.0f ? 0.0f : x * scale; }


// ----------------------------------------------------------------------------------------- window
//
// What the bodies of frozen verify share: which tokens a row has, where its slot lies in the pool
// and in the caches, and what becomes of a null row. The pool is only read, and a window starts
// from one slot: nothing here depends on another row.

struct window {
    u32 token;    // the row's first packed token; a call has fewer than 2^20
    u32 present;  // how many of the row's tokens exist, at most TOKENS: always the first ones
    int slot;
    bool live;
};

HELPER window find_window(const kda_verify_params &p, u32 n)
{
    window w;
    w.slot = p.indices ? load_i32(p.indices + 4 * (u64)n) : (int)n;
    int begin = (int)n * p.tokens, end = begin + p.tokens;
    if (p.cu_seqlens) {
        begin = load_i32(p.cu_seqlens + 4 * (u64)n);
        end = load_i32(p.cu_seqlens + 4 * (u64)n + 4);
    }
    if (end > (int)p.tok) end = (int)p.tok;
    w.token = (u32)begin;
    w.present = begin < 0 || end < begin ? 0 : (u32)(end - begin);
    if (w.present > (u32)p.tokens) w.present = (u32)p.tokens;
    w.live = w.slot >= p.null_min && w.slot < p.num_slots;
    return w;
}

HELPER u64 state_address(const kda_verify_params &p, int slot, u32 head, u32 row)
{
    return p.state + (u32)slot * (u64)p.slot_stride * sizeof(u16) + head * HEAD_BYTES +
           row * ROW_BYTES;
}

HELPER u64 out_address(const kda_verify_params &p, u32 token, u32 head, u32 row)
{
    return p.out + (token * (u64)p.out_stride + (u64)head * DIM + row) * sizeof(u16);
}

// Of token t of the window; 0 when the call has no caches.
HELPER u64 correction_address(const kda_verify_params &p, int slot, u32 head, u32 t)
{
    if (p.correction == 0) return 0;
    return p.correction + ((u32)slot * (u64)p.correction_strides[0] +
                           head * (u64)p.correction_strides[1] +
                           t * (u64)p.correction_strides[2]) * sizeof(float);
}

HELPER u64 kg_address(const kda_verify_params &p, int slot, u32 head, u32 t)
{
    if (p.kg == 0) return 0;
    return p.kg + ((u32)slot * (u64)p.kg_strides[0] + head * (u64)p.kg_strides[1] +
                   t * (u64)p.kg_strides[2]) * sizeof(u16);
}

// A half-warp keeps the raw key and the raw gate of its token, bit for bit.
HELPER void store_kg(u64 address, const token_words &words, u32 lane)
{
    const u64 channels = address + lane % 16 * sizeof(quad);
    store_channels(channels, words.k);
    store_channels(channels + DIM * sizeof(u16), words.g);
}

// Of q, for `scaled`. Finite, so that a zero that it meets stays zero.
HELPER float make_q_scale(const kda_verify_params &p, float squares)
{
    return saturate(rsqrt_fast(squares + EPSILON) * p.scale, FLOAT_MAX);
}

HELPER float make_beta(const kda_verify_params &p, float beta)
{
    if (p.beta_is_logit) beta = sigmoid(beta);
    return beta;
}


// ----------------------------------------------------------------------------------------- kernel

constexpr int WARPS = THREADS / 32;
constexpr int WARP_ROWS = ROWS / WARPS;
constexpr int HALF_ROWS = WARP_ROWS / 2;   // rows of a half-warp
constexpr u32 ROW_LANES = 16 / HALF_ROWS;  // lanes that end with the sums of one row
static_assert(TOKENS == 1 && 2 * HALF_ROWS * WARPS == ROWS && 16 % HALF_ROWS == 0, "whole rows");

// Of d*k and d*q, for `hold`: 2^64. Where no norm overflows only a growing gate goes beyond it, and
// times a state a sum over channels is finite.
constexpr float LIMIT = 1.8446744073709552e19f;

extern "C" __global__ void __launch_bounds__(THREADS, OCCUPANCY)
    kda_verify_t1_precomputed_direct_split16(const __grid_constant__ struct kda_verify_params p)
{
    begin_grid();
    const u32 lane = threadIdx.x % 32, half = lane / 16, warp = threadIdx.x / 32;
    const u32 head = blockIdx.x / SPLIT, tile_row = blockIdx.x % SPLIT * ROWS;
    const u32 first_row = tile_row + warp * WARP_ROWS;
    // The row whose sums this lane gets.
    const u32 own = first_row + lane % 16 / ROW_LANES * 2 + half;
    const u32 query_head = find_query_head(p, head);
    const window w = find_window(p, blockIdx.y);
    // In the shadow of token and slot: what the addresses have from neither, and the gate.
    token_address address = find_token(p, 0, query_head, head, lane);
    u64 state = state_address(p, 0, head, first_row + half) + lane % 16 * sizeof(quad);
    u64 value = value_address(p, 0, head, own);
    u64 out = out_address(p, 0, head, own);
    compute_here(address.q), compute_here(address.k), compute_here(address.g);
    compute_here(address.beta), compute_here(state), compute_here(value), compute_here(out);
    const gate gate = load_gate(p, query_head, lane);
    // A null row goes on without its inputs and without a state, and stores nothing but zeros.
    token_words words = {};
    u32 v = 0;
    quad rows[HALF_ROWS] = {};
    if (w.present != 0 && w.live) {
        state += (u32)w.slot * (u64)p.slot_stride * sizeof(u16);
        value += 2 * w.token * (u64)p.v_stride;
        move_token(p, address, w.token);
#pragma unroll
        for (int i = 0; i < HALF_ROWS; i++) rows[i] = load_state(state + i * 2 * ROW_BYTES);
        v = load16(value);
        words = load_token(p, address);
    }
    keep_order();
    if (w.present == 0) return;

    float q[LANE_CHANNELS], k[LANE_CHANNELS], d[LANE_CHANNELS];
    unpack_bf16(words.q, q);
    unpack_bf16(words.k, k);
    const float qq[1] = {dot(q, q)}, kk[1] = {dot(k, k)}, kq[1] = {dot(k, q)};
    const float k_scale = rsqrt_fast(sum_half(kk, lane) + EPSILON);
    const float q_scale = make_q_scale(p, sum_half(qq, lane));
    make_decays(p, gate, words.g, lane, d);
#pragma unroll
    for (int c = 0; c < LANE_CHANNELS; c++) {
        k[c] = hold(k[c] * d[c], LIMIT);
        q[c] = hold(q[c] * d[c], LIMIT);
    }
    float predicted[HALF_ROWS], read[HALF_ROWS];
#pragma unroll
    for (int i = 0; i < HALF_ROWS; i++) {
        float x[LANE_CHANNELS];
        unpack_bf16(rows[i], x);
        predicted[i] = dot(x, k);
        read[i] = dot(x, q);
    }
    const float beta = make_beta(p, widen_bf16(words.beta));
    const float kn_qn = scaled(scaled(sum_half(kq, lane), k_scale), q_scale);
    const float correction =
        beta * (widen_bf16(v) - scaled(sum_half(predicted, lane), k_scale));
    const float o = fmaf(correction, kn_qn, scaled(sum_half(read, lane), q_scale));
    out += 2 * w.token * (u64)p.out_stride;
    if (lane % ROW_LANES == 0) store_bf16(out, w.live ? o : 0.0f);
    if (p.correction == 0 || !w.live) return;
    if (lane % ROW_LANES == 0)
        store32(correction_address(p, w.slot, head, 0) + own * sizeof(float), as_bits(correction));
    if (tile_row == 0 && threadIdx.x < 16) store_kg(kg_address(p, w.slot, head, 0), words, lane);
}
