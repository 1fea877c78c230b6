// SPDX-License-Identifier: Apache-2.0
// Generated from gen/packed.cu.in, what it includes, and manifest/params.h for the row
// packed_t1_tile16 of manifest/schedules.inc.
// Frozen: edit the template or the row, then run `ninja -C build regen`.
//
// Packed decode, T = 1: q, k and v are parts of one projected row, and no address is known to be
// more than even. Bounds and lanes are those of direct decode, but for the order: a null row's
// inputs must not be read, so the token waits for the slot as the state does. Where the call's
// addresses and strides are all multiples of 16 bytes, which is the rule, there is no other branch;
// elsewhere it is decided for each slot and each activation whether 16 bytes may be accessed at
// once. The bits that arrive are the same.

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

// In the order of first use: a kernel waits for each line of its parameters that it touches first.
struct kda_recurrent_params {
    int dependent;                              // 1: a dependent launch, the grid before may still run
    int num_slots;                              // slots of the pool
    unsigned long long indices;                 // [rows, T] i32, or 0: slot n*T + t
    unsigned long long cu_seqlens;              // [rows + 1] i32, or 0: row n owns tokens n*T .. n*T + T - 1
    unsigned long long accepted;                // [rows] i32, or 0: 1 for every row
    unsigned long long state;                   // [num_slots, HV, 128, 128] bf16, key channel fastest
    long long slot_stride;                      // between two slots of the pool
    unsigned long long q, k;                    // [tok, H, 128] bf16
    unsigned long long v, g;                    // [tok, HV, 128] bf16
    unsigned long long beta;                    // [tok, HV] bf16
    unsigned long long out;                     // [tok, HV, 128] bf16
    struct kda_divisor query;                   // head hv reads query head hv / (HV/H)
    float scale, lower_bound;                   // q scale; lower bound of the gate, 0 where it has none
    long long q_stride, k_stride;               // token strides
    long long v_stride, g_stride, beta_stride;  // token strides
    int tok, value_heads;                       // packed tokens of the call; HV, a multiple of H
    unsigned long long a_log, dt_bias;          // [H] and [H, 128] f32, or 0 when the gate is precomputed
    int rows, heads;                            // N, H
    int beta_is_logit;                          // 1: beta goes through a sigmoid in the kernel
    int reserved;                               // 0
};

// Of the row. OCCUPANCY is how many CTAs per SM the register cap must allow.
constexpr int TOKENS = 1, SPLIT = 8, THREADS = 64, SMEM = 0;
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

// Where e^-x overflows, below -88, its reciprocal is the limit: both are reached without a NaN.
HELPER float sigmoid(float x) { return reciprocal_fast(1.0f + exp_fast(-x)); }

// Of x / LOG2E.
HELPER float sigmoid_log2(float x) { return reciprocal_fast(1.0f + exp2_fast(-x)); }

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

// ---- the warp and the grid

HELPER float shuffle_xor(float x, u32 distance)
{
#ifdef KDA_SOFT_DEVICE
    return as_float(soft_shuffle(as_bits(x), (threadIdx.x % 32) ^ distance, __LINE__));
#else
    return __shfl_xor_sync(0xffffffffu, x, (int)distance);
#endif
}

// From lane `from` of 16 of the same half-warp. A constant lane needs no register.
HELPER float shuffle_half(float x, u32 from)
{
#ifdef KDA_SOFT_DEVICE
    return as_float(soft_shuffle(as_bits(x), threadIdx.x % 32 / 16 * 16 + from, __LINE__));
#else
    return __shfl_sync(0xffffffffu, x, (int)from, 16);
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

// ----------------------------------------------------------------------------------------- decode
//
// What recurrent and packed decode share: which tokens and slots a row has, the vectors of a token,
// and the step of rows through one token, which lies in registers or in shared memory.
//
// Token.   qn = q * rsqrt(q.q + eps) * scale    kn = k * rsqrt(k.k + eps)
//          kq = kn.qn, from T = 2 on k.q times the scales, zero where one of them is
//          S' = S * d    p = S'.kn    r = S'.qn    w = beta * (v - p)
//          o = fma(w, kq, r)    S = fma(w, kn, S')
// Token after token in f32, never a product of decays and never a quotient: what is finite in the
// plain recurrence is finite here.

// ---- which tokens and slots

HELPER bool is_live(const kda_recurrent_params &p, int slot)
{
    return slot >= 0 && slot < p.num_slots;
}

struct sequence {
    u32 token;    // the row's packed token; a call has fewer than 2^19
    u32 present;  // 1 if it exists, else 0
    int slot;
    bool live;
};

// The loads are independent of each other, so the state can be asked for after a single latency.
HELPER sequence find_sequence(const kda_recurrent_params &p, u32 n)
{
    sequence s;
    s.token = n;
    s.present = 1;
    s.slot = p.indices ? load_i32(p.indices + 4 * (u64)n) : (int)n;
    s.live = s.present != 0 && is_live(p, s.slot);
    return s;
}


// Where the CTA's first value row lies in a slot, and in the output of a token.
HELPER u64 state_address(const kda_recurrent_params &p, int slot, u32 head, u32 first_row)
{
    const u64 block = p.state + (u32)slot * (u64)p.slot_stride * sizeof(u16);
    return block + head * HEAD_BYTES + first_row * ROW_BYTES;
}

HELPER u64 out_address(const kda_recurrent_params &p, u32 token, u32 head, u32 first_row)
{
    return p.out + (((u64)token * (u32)p.value_heads + head) * DIM + first_row) * sizeof(u16);
}

HELPER u64 value_address(const kda_recurrent_params &p, u32 token, u32 head, u32 row)
{
    return p.v + (token * (u64)p.v_stride + (u64)head * DIM + row) * sizeof(u16);
}

// An element of v, for widen_bf16.
HELPER u32 load_value(const kda_recurrent_params &p, u32 token, u32 head, u32 row)
{
    return load16(value_address(p, token, head, row));
}

HELPER u32 find_query_head(const kda_recurrent_params &p, u32 head)
{
    (void)p;
    return head;
}

// ---- the vectors of one token

struct token {
    float q[LANE_CHANNELS];  // normalized and scaled
    float k[LANE_CHANNELS];  // normalized
    float d[LANE_CHANNELS];  // decay
    float beta, kq;
};

struct token_words {
    quad q, k, g;
    u32 beta;  // for widen_bf16
};

// Where a lane's channels of a token lie, and beta.
struct token_address {
    u64 q, k, g, beta;
};

HELPER token_address find_token(const kda_recurrent_params &p, u32 index, u32 query_head, u32 head,
                                u32 lane)
{
    const u64 channel = (lane % 16) * LANE_CHANNELS;
    const u64 query = (u64)query_head * DIM + channel, value = (u64)head * DIM + channel;
    return {p.q + 2 * (index * (u64)p.q_stride + query),
            p.k + 2 * (index * (u64)p.k_stride + query),
            p.g + 2 * (index * (u64)p.g_stride + value),
            p.beta + 2 * (index * (u64)p.beta_stride + head)};
}

template <bool ALIGNED = false>
HELPER token_words load_token(const kda_recurrent_params &p, const token_address &x)
{
    (void)p;
    return {load_channels<ALIGNED>(x.q), load_channels<ALIGNED>(x.k), load_channels<ALIGNED>(x.g),
            load16(x.beta)};
}

// Where both halves of a warp have the same token, each makes the decay of four of a lane's
// channels for both.
constexpr int GATE_PARTS =
    SMEM == 0 ? 2 :
    1;
constexpr int GATE_CHANNELS = LANE_CHANNELS / GATE_PARTS;

struct gate {
    float a_log;
    float bias[GATE_CHANNELS];
};

template <bool ALIGNED = false>
HELPER gate load_gate(const kda_recurrent_params &p, u32 query_head, u32 lane)
{
    gate x;
    x.a_log = load_f32(p.a_log + 4 * (u64)query_head);
    const u32 channel = lane % 16 * LANE_CHANNELS + lane / 16 % GATE_PARTS * GATE_CHANNELS;
    const u64 address = p.dt_bias + 4 * ((u64)query_head * DIM + channel);
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

// The logarithm to base 2 of a decay. So is the rate, e^a_log * LOG2E.
HELPER float log2_decay(const kda_recurrent_params &p, float rate, float x)
{
    return p.lower_bound * LOG2E * sigmoid_log2(rate * x);
}

// From raw gates to the logarithms of the decays.
HELPER void make_log2_decays(const kda_recurrent_params &p, const gate &gate, float (&g)[GATE_CHANNELS])
{
    const float rate = exp_fast(gate.a_log) * LOG2E;
#pragma unroll
    for (int c = 0; c < GATE_CHANNELS; c++) g[c] = log2_decay(p, rate, g[c] + gate.bias[c]);
}

// The decays of a lane's channels.
HELPER void make_decays(const kda_recurrent_params &p, const gate &gate, const quad &words, u32 lane,
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

HELPER token make_token(const kda_recurrent_params &p, const token_words &words, const gate &gate,
                        u32 lane)
{
    token t;
    unpack_bf16(words.q, t.q);
    unpack_bf16(words.k, t.k);
    make_decays(p, gate, words.g, lane, t.d);
    const float qq[1] = {dot(t.q, t.q)}, kk[1] = {dot(t.k, t.k)};
    const float q_scale = rsqrt_fast(sum_half(qq, lane) + EPSILON);
    const float k_scale = rsqrt_fast(sum_half(kk, lane) + EPSILON);
#pragma unroll
    for (int c = 0; c < LANE_CHANNELS; c++) {
        t.q[c] = t.q[c] * q_scale * p.scale;
        t.k[c] = t.k[c] * k_scale;
    }
    const float kq[1] = {dot(t.k, t.q)};
    t.kq = sum_half(kq, lane);
    t.beta = widen_bf16(words.beta);
    t.beta = select(p.beta_is_logit, sigmoid(t.beta), t.beta);
    return t;
}

// ---- rows, by passes of a warp

constexpr int WARPS = THREADS / 32;
constexpr int WARP_ROWS = ROWS / WARPS;
constexpr int HALF_ROWS = WARP_ROWS / 2;                  // rows of a half-warp
constexpr int PASS_ROWS = HALF_ROWS < 4 ? HALF_ROWS : 4;  // of these, in f32 registers at a time
constexpr int PASSES = HALF_ROWS / PASS_ROWS;
constexpr u32 ROW_LANES = 16 / PASS_ROWS;  // lanes that end with the sums of one row
static_assert(DIM % SPLIT == 0 && 2 * PASSES * PASS_ROWS * WARPS == ROWS, "whole passes");

// Of each pass, the row whose sums a lane gets.
HELPER u32 own_row(u32 lane, u32 half) { return lane % 16 / ROW_LANES * 2 + half; }

// S' of a row, and what the lane's channels add to its p and r.
HELPER void decay_row(float (&x)[LANE_CHANNELS], const float (&d)[LANE_CHANNELS],
                      const float (&k)[LANE_CHANNELS], const float (&q)[LANE_CHANNELS],
                      float &predicted, float &read)
{
#pragma unroll
    for (int c = 0; c < LANE_CHANNELS; c++) x[c] = x[c] * d[c];
    predicted = dot(x, k);
    read = dot(x, q);
}

// S of row i of a pass; w is the one of the lane's own row. Two forms of one shuffle: each template
// has the one that its order of instructions was measured with.
HELPER void update_row(float (&x)[LANE_CHANNELS], const float (&k)[LANE_CHANNELS], float w, int i)
{
    const float row_w = shuffle_half(w, i * ROW_LANES);
#pragma unroll
    for (int c = 0; c < LANE_CHANNELS; c++) x[c] = fmaf(row_w, k[c], x[c]);
}

// ---- direct decode: one token, rows from bf16 to bf16

static_assert(TOKENS == 1, "one token");

// Takes PASS_ROWS rows through the token and packs them again; returns o of the lane's own row,
// whose element of v is `v`.
HELPER float step_rows(const token &t, float v, quad *rows, u32 lane)
{
    float x[PASS_ROWS][LANE_CHANNELS], predicted[PASS_ROWS], read[PASS_ROWS];
#pragma unroll
    for (int i = 0; i < PASS_ROWS; i++) {
        unpack_bf16(rows[i], x[i]);
        decay_row(x[i], t.d, t.k, t.q, predicted[i], read[i]);
    }
    const float w = t.beta * (v - sum_half(predicted, lane));
    const float o = fmaf(w, t.kq, sum_half(read, lane));
#pragma unroll
    for (int i = 0; i < PASS_ROWS; i++) {
        update_row(x[i], t.k, w, i);
        rows[i] = pack_row(x[i]);
    }
    return o;
}

// ----------------------------------------------------------------------------------------- kernel

// A live row. ALIGNED: every address that is accessed by 16 bytes is known to be a multiple of 16.
template <bool ALIGNED>
HELPER void decode(const kda_recurrent_params &p, const sequence &s, u32 head, u32 first_row,
                   u64 state, u32 lane)
{
    const bool aligned = ALIGNED || state % sizeof(quad) == 0;  // of the slot, for all lanes
    quad rows[HALF_ROWS];
    if (aligned) {
#pragma unroll
        for (int i = 0; i < HALF_ROWS; i++) rows[i] = load_state(state + i * 2 * ROW_BYTES);
    } else {
#pragma unroll
        for (int i = 0; i < HALF_ROWS; i++) rows[i] = load16x8(state + i * 2 * ROW_BYTES);
    }

    keep_order();

    const u32 query_head = find_query_head(p, head), own = first_row + own_row(lane, lane / 16);
    const token_words words =
        load_token<ALIGNED>(p, find_token(p, s.token, query_head, head, lane));
    const gate gate = load_gate<ALIGNED>(p, query_head, lane);
    u32 v[PASSES];
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++)
        v[pass] = load_value(p, s.token, head, own + pass * 2 * PASS_ROWS);
    keep_order();
    const token t = make_token(p, words, gate, lane);
    const u64 out = out_address(p, s.token, head, own);
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++) {
        const float o = step_rows(t, widen_bf16(v[pass]), rows + pass * PASS_ROWS, lane);
#pragma unroll
        for (int i = pass * PASS_ROWS; i < (pass + 1) * PASS_ROWS; i++) {
            if (aligned)
                store_state(state + i * 2 * ROW_BYTES, rows[i]);
            else
                store16x8(state + i * 2 * ROW_BYTES, rows[i]);
        }
        if (lane % ROW_LANES == 0) store_bf16(out + pass * 2 * PASS_ROWS * sizeof(u16), o);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, OCCUPANCY)
    kda_packed_t1_tile16(const __grid_constant__ struct kda_recurrent_params p)
{
    begin_grid();
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 head = blockIdx.x / SPLIT, first_row = blockIdx.x % SPLIT * ROWS + warp * WARP_ROWS;
    const sequence s = find_sequence(p, blockIdx.y);
    if (!s.live) {  // a null row
        if (lane < WARP_ROWS) store16(out_address(p, s.token, head, first_row + lane), 0);
        return;
    }
    const u64 state =
        state_address(p, s.slot, head, first_row + lane / 16) + lane % 16 * sizeof(quad);
    // Of the call, so that it is known before the slot is.
    const u64 parts = p.state | 2 * (u64)p.slot_stride | p.q | 2 * (u64)p.q_stride | p.k |
                      2 * (u64)p.k_stride | p.g | 2 * (u64)p.g_stride | p.dt_bias;
    if (parts % sizeof(quad) == 0)
        decode<true>(p, s, head, first_row, state, lane);
    else
        decode<false>(p, s, head, first_row, state, lane);
}
