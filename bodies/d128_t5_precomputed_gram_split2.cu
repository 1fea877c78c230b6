// SPDX-License-Identifier: Apache-2.0
// Generated from gen/recurrent.cu.in, what it includes, and manifest/params.h for the row
// d128_t5_precomputed_gram_split2 of manifest/schedules.inc.
// Frozen: edit the template or the row, then run `ninja -C build regen`.
//
// Recurrent decode, T >= 1: the warps of a CTA share the ROWS value rows of one head. While the
// first rows of the state are on their way, half-warps make the vectors of one token each and leave
// them in shared memory; what these are made of was asked for before the slots were known. After the
// only barrier every warp carries its own rows through the tokens, PASS_ROWS rows per half-warp at a
// time, and stores a checkpoint per token. At large N it is bound by the bandwidth of one read and T
// writes of the state; at small N by two dependent loads and then T rounds of dot, butterfly and
// update.
//
// Row 2*i + (upper half-warp) of a pass is row i of a half-warp: an access of the warp covers 512
// bytes in a row. An element belongs to one thread for all tokens: its stores to a slot that occurs
// twice keep their order, and its load comes before them.

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
constexpr int TOKENS = 5, SPLIT = 2, THREADS = 512, SMEM = 9040;
constexpr int OCCUPANCY = 2;

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

// 16 bytes at an address that is only known to be a multiple of 8.
HELPER quad load64x2(u64 address)
{
    quad x;
#ifdef KDA_SOFT_DEVICE
    memcpy(&x.x, soft_global(address, 8, __LINE__), 8);
    memcpy(&x.z, soft_global(address + 8, 8, __LINE__), 8);
#else
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(address));
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2 + 8];" : "=r"(x.z), "=r"(x.w) : "l"(address));
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

// A lane's 8 channels of an activation.
template <bool ALIGNED = false> HELPER quad load_channels(u64 address)
{
    return load64x2(address);
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

// ---- before the wait of a dependent launch, when the grid before this one may be writing anything

// A word that may be about to change. It is read at the L2, where the writes of all SMs meet, so
// that the L1 keeps no stale line of it. In PTX's terms the load is strong; where the write is weak
// the two race, which is defined for accesses of one size: some value that was written there. Others
// may tear. Either is good enough for a hint.
HELPER u32 hint32(u64 address)
{
    u32 x;
#ifdef KDA_SOFT_DEVICE
    x = soft_hint(address, __LINE__);
#else
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(address));
#endif
    return x;
}

// To the L2, where nothing is ever stale: later writes meet there what was prefetched. It is no
// access in the terms of the memory model. Of a block, address and size are multiples of 16.
HELPER void prefetch_line(u64 address)
{
#ifdef KDA_SOFT_DEVICE
    soft_prefetch(address, 1, __LINE__);
#else
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
#endif
}

HELPER void prefetch_block(u64 address, u32 size)
{
#ifdef KDA_SOFT_DEVICE
    soft_prefetch(address, size, __LINE__);
#else
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(address), "r"(size));
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

// A word of an index array. EARLY: a hint, before the wait.
template <bool EARLY> HELPER int load_index(u64 address)
{
    if constexpr (EARLY)
        return (int)hint32(address);
    else
        return load_i32(address);
}

struct sequence {
    u32 token;    // the row's first packed token; a call has fewer than 2^19
    u32 present;  // how many of the row's tokens exist: always the first ones
    u32 live;     // bit t: token t exists and its slot is live. 0 is a null row
    int slot[TOKENS];
    int initial;  // slot of the initial state
};

// All loads are independent of each other, so the state can be asked for after a single latency.
template <bool EARLY = false> HELPER sequence find_sequence(const kda_recurrent_params &p, u32 n)
{
    sequence s;
    s.token = n * TOKENS;
    s.present = TOKENS;
#pragma unroll
    for (u32 t = 0; t < TOKENS; t++)
        s.slot[t] = p.indices ? load_index<EARLY>(p.indices + 4 * (u64)(s.token + t))
                              : (int)(s.token + t);
    const int accepted = p.accepted ? load_index<EARLY>(p.accepted + 4 * (u64)n) : 1;
    if (p.cu_seqlens) {
        const i64 begin = load_index<EARLY>(p.cu_seqlens + 4 * (u64)n);
        i64 length = load_index<EARLY>(p.cu_seqlens + 4 * (u64)n + 4) - begin;
        if (length > p.tok - begin) length = p.tok - begin;
        if (length > TOKENS) length = TOKENS;
        s.token = (u32)begin;
        s.present = begin < 0 || length < 0 ? 0 : (u32)length;
    }
    s.live = 0;
    s.initial = s.slot[0];
#pragma unroll
    for (u32 t = 0; t < TOKENS; t++) {
        if (t < s.present && is_live(p, s.slot[t])) s.live |= 1u << t;
        if (t > 0 && accepted > (int)t) s.initial = s.slot[t];
    }
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
    return (u32)((u64)head * p.query.magic >> p.query.shift);
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
    1;
constexpr int GATE_CHANNELS = LANE_CHANNELS / GATE_PARTS;

struct gate {};  // g is the log decay

template <bool ALIGNED = false> HELPER gate load_gate(const kda_recurrent_params &, u32, u32) { return {}; }

// The decays of a lane's channels. Channel after channel, and base 2 only at the end: in two loops,
// or with the factor in the rate, the assembler orders the loads of the direct bodies in another way,
// 2 to 6 percent slower where there are many heads.
HELPER void make_decays(const kda_recurrent_params &p, const gate &gate, const quad &words, u32 lane,
                        float (&d)[LANE_CHANNELS])
{
    float g[LANE_CHANNELS];
    unpack_bf16(words, g);
    (void)p, (void)gate, (void)lane;
#pragma unroll
    for (int c = 0; c < LANE_CHANNELS; c++) d[c] = exp_fast(g[c]);
}

// A sum with k or q, times the scale of its norm. Where that overflows the scale is zero, and so is
// the result, whatever the sum became.
HELPER float scaled(float x, float scale) { return scale == 0.0f ? 0.0f : x * scale; }

HELPER token make_token(const kda_recurrent_params &p, const token_words &words, const gate &gate,
                        u32 lane)
{
    token t;
    unpack_bf16(words.q, t.q);
    unpack_bf16(words.k, t.k);
    make_decays(p, gate, words.g, lane, t.d);
    const float qq[1] = {dot(t.q, t.q)}, kk[1] = {dot(t.k, t.k)};
    const float kq[1] = {dot(t.k, t.q)};  // with the norms, not after them
    t.kq = sum_half(kq, lane);
    const float q_scale = rsqrt_fast(sum_half(qq, lane) + EPSILON);
    const float k_scale = rsqrt_fast(sum_half(kk, lane) + EPSILON);
#pragma unroll
    for (int c = 0; c < LANE_CHANNELS; c++) {
        t.q[c] = t.q[c] * q_scale * p.scale;
        t.k[c] = t.k[c] * k_scale;
    }
    t.kq = scaled(scaled(t.kq, q_scale), k_scale) * p.scale;
    t.beta = widen_bf16(words.beta);
    return t;
}

// ---- before the wait of a dependent launch
//
// While the grid before still runs, the first CTA of a head brings to the L2 what all of them will
// read. Indices, bounds and counts may not be written yet; they are checked like the real ones, so
// that a prefetch stays inside pool and tensors, and everything is read again behind the wait: a
// wrong word costs a prefetch and changes nothing.

// CTAs start one after the other, about one per ns: later ones have nothing left to wait for.
constexpr u32 EARLY_CTAS = 512;
// Heads times tokens of a grid whose state is prefetched. A larger one before it writes more than
// 8 MB of checkpoints meanwhile, and what was prefetched is gone again before it is used.
constexpr u32 EARLY_CHECKPOINTS = 256;

// One warp's work: words that many warps ask for at once come out of one slice of the L2.
HELPER void prefetch_head(const kda_recurrent_params &p, u32 head)
{
    const u32 lane = threadIdx.x;
    const sequence s = find_sequence<true>(p, blockIdx.y);
    if (!s.live) return;  // a null row
    if (lane == 0 && is_live(p, s.initial) &&
        gridDim.x * gridDim.y * TOKENS <= EARLY_CHECKPOINTS * SPLIT)
        prefetch_block(state_address(p, s.initial, head, 0), HEAD_BYTES);
    // Two lines of q, k, g and v of each token, one of beta.
    constexpr u32 PARTS = 9, HALF = DIM / 2;
    const u32 query_head = find_query_head(p, head);
    for (u32 i = lane; i < s.present * PARTS; i += 32) {
        const u32 token = s.token + i / PARTS, part = i % PARTS, half = part % 2 * HALF;
        const token_address x = find_token(p, token, query_head, head, half / LANE_CHANNELS);
        const u64 v = value_address(p, token, head, half);
        prefetch_line(part < 2 ? x.q : part < 4 ? x.k : part < 6 ? x.g : part < 8 ? v : x.beta);
    }
}

HELPER void begin_head(const kda_recurrent_params &p, u32 head, u32 warp)
{
    // The rest of the condition behind a branch of its own: other launches go past all of it.
    if (p.dependent && (blockIdx.x % SPLIT == 0 &&
                        blockIdx.y * gridDim.x + blockIdx.x < EARLY_CTAS && warp == 0))
        prefetch_head(p, head);
    begin_grid();
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
    const float row_w = shuffle_from(w, threadIdx.x % 32 / 16 * 16 + i * ROW_LANES);
#pragma unroll
    for (int c = 0; c < LANE_CHANNELS; c++) x[c] = fmaf(row_w, k[c], x[c]);
}

// ---- vectors of 128 f32 in shared memory

constexpr u32 VECTOR_BYTES = DIM * sizeof(float);

// Where a lane's channels begin, from the start of a vector. They are two quads 256 bytes apart, so
// that consecutive lanes are 16 bytes apart: no bank conflicts.
HELPER u32 vector_part(u32 lane) { return lane % 16 * sizeof(quad); }

HELPER void store_vector(u32 part, const float (&x)[LANE_CHANNELS])
{
    sts128(part, {x[0], x[1], x[2], x[3]});
    sts128(part + VECTOR_BYTES / 2, {x[4], x[5], x[6], x[7]});
}

HELPER void load_vector(u32 part, float (&x)[LANE_CHANNELS])
{
    const vec4 a = lds128(part), b = lds128(part + VECTOR_BYTES / 2);
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

// ---- the row's tokens in shared memory

constexpr int VALUES = (TOKENS * ROWS + THREADS - 1) / THREADS;  // of v, per thread
static_assert(TOKENS <= 2 * WARPS, "a half-warp makes one token");

// Shared memory of one token: three vectors, then the scalars, then the CTA's part of v in f32.
constexpr u32 K = 0, Q = VECTOR_BYTES, D = 2 * VECTOR_BYTES;
constexpr u32 BETA = 3 * VECTOR_BYTES, KQ = BETA + 4;
constexpr u32 SLOT = BETA + 8;  // where the CTA's first row goes, 0: nowhere
constexpr u32 V = BETA + 16;
constexpr u32 TOKEN_BYTES = V + ROWS * sizeof(float);
static_assert(TOKEN_BYTES % 16 == 0 && SMEM == TOKENS * TOKEN_BYTES, "the row's smem");

// This thread's part of v.
HELPER void load_values(u32 (&v)[VALUES], const kda_recurrent_params &p, const sequence &s, u32 head,
                        u32 first_row)
{
#pragma unroll
    for (int j = 0; j < VALUES; j++) {
        const u32 i = j * THREADS + threadIdx.x;
        v[j] = i < s.present * ROWS
                   ? load_value(p, s.token + i / ROWS, head, first_row + i % ROWS)
                   : 0;
    }
}

// The same part, in f32; `values` are the elements of the tokens that exist.
HELPER void store_values(u32 shared, const u32 (&v)[VALUES], u32 values)
{
#pragma unroll
    for (int j = 0; j < VALUES; j++) {
        const u32 i = j * THREADS + threadIdx.x;
        if (i < values) sts(shared + i / ROWS * TOKEN_BYTES + V + i % ROWS * sizeof(float),
                            widen_bf16(v[j]));
    }
}

// Takes PASS_ROWS rows through the token at that address, whose vectors are d, k and q. Finds the
// token's slot and stores them there, the first one `lane_rows` beyond; 0: nowhere. Returns o of the
// lane's own row.
HELPER float step_rows(float (&x)[PASS_ROWS][LANE_CHANNELS], const float (&d)[LANE_CHANNELS],
                       const float (&k)[LANE_CHANNELS], const float (&q)[LANE_CHANNELS], u32 token,
                       u32 own, u32 lane_rows, u32 lane, u64 &slot)
{
    float predicted[PASS_ROWS], read[PASS_ROWS];
#pragma unroll
    for (int i = 0; i < PASS_ROWS; i++) decay_row(x[i], d, k, q, predicted[i], read[i]);
    const float v = lds(token + V + own * sizeof(float));
    const float w = lds(token + BETA) * (v - sum_half(predicted, lane));
    const float o = fmaf(w, lds(token + KQ), sum_half(read, lane));
    slot = lds64(token + SLOT);
#pragma unroll
    for (int i = 0; i < PASS_ROWS; i++) update_row(x[i], k, w, i);
    if (slot) {
#pragma unroll
        for (int i = 0; i < PASS_ROWS; i++)
            store_state(slot + lane_rows + i * 2 * ROW_BYTES, pack_row(x[i]));
    }
    return o;
}

// ----------------------------------------------------------------------------------------- kernel

extern "C" __global__ void __launch_bounds__(THREADS, OCCUPANCY)
    kda_d128_t5_precomputed_gram_split2(const __grid_constant__ struct kda_recurrent_params p)
{
    const u32 lane = threadIdx.x % 32, half = lane / 16;
    const u32 warp = uniform(threadIdx.x / 32);
    const u32 head = blockIdx.x / SPLIT, first_row = blockIdx.x % SPLIT * ROWS;
    begin_head(p, head, warp);
    const sequence s = find_sequence(p, blockIdx.y);
    if (s.present == 0) return;

    // The token's words and this thread's part of v are asked for before the slot is known, which
    // the state has to wait for. A half-warp without a token repeats its neighbour's.
    const u32 query_head = find_query_head(p, head);
    const bool makes = 2 * warp < s.present;
    const u32 from = 2 * warp + half < s.present ? 2 * warp + half : 2 * warp;
    token_words words = {};
    gate gate = {};
    if (makes) {
        words = load_token(p, find_token(p, s.token + from, query_head, head, lane));
        gate = load_gate(p, query_head, lane);
    }
    const u32 values = s.present * ROWS;
    u32 v[VALUES];
    load_values(v, p, s, head, first_row);
    if (s.live == 0) {  // a null row
#pragma unroll 1
        for (u32 i = threadIdx.x; i < values; i += THREADS)
            store16(out_address(p, s.token + i / ROWS, head, first_row + i % ROWS), 0);
        return;
    }

    const u32 lane_state =
        (warp * WARP_ROWS + half) * (u32)ROW_BYTES + lane % 16 * (u32)sizeof(quad);
    const bool fresh = !is_live(p, s.initial);  // the zero state
    u64 initial = state_address(p, s.initial, head, first_row) + lane_state;
    quad rows[PASS_ROWS];
#pragma unroll
    for (int i = 0; i < PASS_ROWS; i++)
        rows[i] = fresh ? quad{} : load_state(initial + i * 2 * ROW_BYTES);

    const u32 shared = shared_base();
    if (makes) {
        const token token = make_token(p, words, gate, lane);
        const u32 address = shared + from * TOKEN_BYTES;
        if (from % 2 == half) {  // not a repetition
            store_vector(address + K + vector_part(lane), token.k);
            store_vector(address + Q + vector_part(lane), token.q);
            store_vector(address + D + vector_part(lane), token.d);
            if (lane % 16 == 0) {
                sts(address + BETA, token.beta);
                sts(address + KQ, token.kq);
            }
        }
    }
    int slot = s.slot[0];
#pragma unroll
    for (u32 t = 1; t < TOKENS; t++) slot = threadIdx.x == t ? s.slot[t] : slot;
    if (threadIdx.x < TOKENS)
        sts64(shared + threadIdx.x * TOKEN_BYTES + SLOT,
              s.live >> threadIdx.x & 1 ? state_address(p, slot, head, first_row) : 0);
    store_values(shared, v, values);
    sync_cta();

    const u32 end = shared + s.present * TOKEN_BYTES;
    // The row whose sums this lane gets.
    u32 own = warp * WARP_ROWS + own_row(lane, half);
    u32 lane_rows = lane_state;
#pragma unroll 1
    for (int pass = 0; pass < PASSES; pass++) {
        float x[PASS_ROWS][LANE_CHANNELS];
#pragma unroll
        for (int i = 0; i < PASS_ROWS; i++) unpack_bf16(rows[i], x[i]);
        if (pass + 1 < PASSES && !fresh) {
            initial += 2 * PASS_ROWS * ROW_BYTES;
#pragma unroll
            for (int i = 0; i < PASS_ROWS; i++) rows[i] = load_state(initial + i * 2 * ROW_BYTES);
        }
        u64 out = out_address(p, s.token, head, first_row + own);
#pragma unroll 1
        for (u32 token = shared; token != end; token += TOKEN_BYTES) {
            float k[LANE_CHANNELS], q[LANE_CHANNELS], d[LANE_CHANNELS];
            load_vector(token + D + vector_part(lane), d);
            load_vector(token + K + vector_part(lane), k);
            load_vector(token + Q + vector_part(lane), q);
            u64 slot;
            const float o = step_rows(x, d, k, q, token, own, lane_rows, lane, slot);
            if (lane % ROW_LANES == 0) store_bf16(out, slot ? o : 0.0f);
            out += (u64)p.value_heads * ROW_BYTES;
        }
        own += 2 * PASS_ROWS;
        lane_rows += 2 * PASS_ROWS * (u32)ROW_BYTES;
    }
}
