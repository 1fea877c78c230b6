// SPDX-License-Identifier: Apache-2.0
// Generated from gen/verify_wy.cu.in, what it includes, and manifest/params.h for the row
// verify_t9_16_lower_bound_wy_split4 of manifest/schedules.inc.
// Frozen: edit the template or the row, then run `ninja -C build regen`.
//
// Frozen verify in closed form: all tokens of a window meet the state in one matrix product. With
// P_t the product of the decays up to token t, R_ts that of the decays after token s up to t,
// khat_t = P_t*kn_t, qhat_t = P_t*qn_t, G_ts = sum kn_t*kn_s*R_ts and Q_ts = sum qn_t*kn_s*R_ts:
//
//   u_t = v_t - S0.khat_t    w = T u with T = (1 + diag(beta) G)^-1 diag(beta)    o = S0.qhat + QT u
//
//   1. Tokens. A warp takes a quarter of the channels of all tokens from the words in memory to the
//      hats and to its part of G and Q, all in registers.
//   2. A warp per tile of 8 tokens adds the parts, inverts and multiplies by Q, in f32: one of its own
//      where registers allow, while the others are at the product with the state already.
//   3. All others: product of the state with the hats, then of u with T and QT, on the matrix units.
//      What the first tile's w does to u and o of the second one is one more product, with G and Q
//      where rows of the second tile meet columns of the first.
//
// Lanes. With g = lane / 4 and t = lane % 4, a lane has of token g of each TILE of 8 tokens the
// channels 32*warp + 8*t to 32*warp + 8*t + 7: 16 bytes of q, k and g. This is what the operands of
// the matrix unit ask for, k_g and q_g as rows g and g + 8, k_g as column g, so that no operand ever
// moves to another lane before the hats go to the other warps. A value row of the state is a column,
// and its 16 bytes serve two steps of 16 channels.
//
// Grams. The later one of two tokens brings what decayed since an anchor, k_t or q_t times the decays
// from there to t, the earlier one k_s times the decays after s up to the anchor; all pairs of an
// anchor are one product of the warp in tf32, whose rounding is lost in the sum over channels. Where
// no channel decays by more than 60 bits in a tile, its beginning is the anchor of all pairs: the
// later operands are the hats and the earlier one grows instead. Else by levels, and nothing is ever
// divided: tokens whose numbers differ in bit 0 only meet at level 1, then blocks of two tokens at
// level 2, blocks of four at 4, anchored between the blocks, so that both sides are products of
// decays and nothing overflows where the gate does not grow. In the same way the tiles meet.
//
// Scales. q and k are normalized in what they become: G, Q and the products with the state.
//
// Bounded by the bandwidth of one read of the state where there are many heads.

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
constexpr int TOKENS = 16, SPLIT = 4, THREADS = 224, SMEM = 31440;
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
struct pair {
    float x, y;
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

// The one in the upper half, hidden in the same way.
HELPER float widen_upper(u32 bits)
{
#ifdef KDA_SOFT_DEVICE
    return as_float(bits & 0xffff0000u);
#else
    u32 x;
    asm("and.b32 %0, %1, 0xffff0000;" : "=r"(x) : "r"(bits));
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

// x * y where it is so, else x: one instruction under a predicate, and no copy of x. \100 is the at
// sign, which means something else in a template.
HELPER float multiply_if(bool so, float x, float y)
{
#ifdef KDA_SOFT_DEVICE
    return so ? x * y : x;
#else
    asm("{ .reg .pred p; setp.ne.u32 p, %1, 0; \100p mul.rn.f32 %0, %0, %2; }"
        : "+f"(x)
        : "r"((u32)so), "f"(y));
    return x;
#endif
}

// x + y where it is so, in the same way.
HELPER float add_if(bool so, float x, float y)
{
#ifdef KDA_SOFT_DEVICE
    return so ? x + y : x;
#else
    asm("{ .reg .pred p; setp.ne.u32 p, %1, 0; \100p add.rn.f32 %0, %0, %2; }"
        : "+f"(x)
        : "r"((u32)so), "f"(y));
    return x;
#endif
}

// Two bf16, each within +-its half of `limit`; a NaN stays one.
HELPER u32 limit_bf16(u32 x, u32 limit)
{
#ifdef KDA_SOFT_DEVICE
    u32 y = 0;
    for (u32 shift = 0; shift < 32; shift += 16) {
        const u32 half = x >> shift & 0xffff, size = half & 0x7fff, most = limit >> shift & 0xffff;
        y |= (size > most && size <= 0x7f80 ? (half & 0x8000) | most : half) << shift;
    }
    return y;
#else
    u32 y;
    asm("min.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(limit));
    return y;
#endif
}

// Two numbers as bf16, and what the rounding lost.
struct parts {
    u32 high, lost;
};

HELPER parts split_bf16(float low, float high)
{
    const u32 bits = pack_bf16(low, high);
    return {bits, pack_bf16(low - as_float(bits << 16), high - as_float(bits & 0xffff0000u))};
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

HELPER float load_f32(u64 address) { return as_float(load32(address)); }
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

HELPER pair lds_pair(u32 address)
{
    pair x;
#ifdef KDA_SOFT_DEVICE
    memcpy(&x, soft_shared(address, 8, __LINE__), 8);
#else
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address));
#endif
    return x;
}

HELPER void sts_pair(u32 address, const pair &x)
{
    sts64(address, (u64)as_bits(x.y) << 32 | as_bits(x.x));
}

HELPER quad lds_quad(u32 address)
{
    quad x;
#ifdef KDA_SOFT_DEVICE
    memcpy(&x, soft_shared(address, 16, __LINE__), 16);
#else
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(address));
#endif
    return x;
}

HELPER void sts_quad(u32 address, const quad &x)
{
#ifdef KDA_SOFT_DEVICE
    memcpy(soft_shared(address, 16, __LINE__), &x, 16);
#else
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.x), "r"(x.y),
                 "r"(x.z), "r"(x.w)
                 : "memory");
#endif
}

// From global memory, past the registers. What it brings may be read by the same thread after
// wait_copies.
HELPER void copy_quad(u32 to, u64 from)
{
#ifdef KDA_SOFT_DEVICE
    memcpy(soft_shared(to, 16, __LINE__), soft_global(from, 16, __LINE__), 16);
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#endif
}

HELPER void wait_copies()
{
#ifndef KDA_SOFT_DEVICE
    asm volatile("cp.async.wait_all;" ::: "memory");
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

// Lanes below `distance` get their own.
HELPER float shuffle_up(float x, u32 distance)
{
#ifdef KDA_SOFT_DEVICE
    const u32 lane = threadIdx.x % 32;
    return as_float(soft_shuffle(as_bits(x), lane < distance ? lane : lane - distance, __LINE__));
#else
    return __shfl_up_sync(0xffffffffu, x, distance);
#endif
}

HELPER bool any_lane(bool x)
{
#ifdef KDA_SOFT_DEVICE
    u32 any = x;
    for (u32 distance = 16; distance > 0; distance /= 2)
        any |= soft_shuffle(any, (threadIdx.x % 32) ^ distance, __LINE__);
    return any;
#else
    return __any_sync(0xffffffffu, x);
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

// c += a * b on the matrix unit: m16n8k16, bf16 operands, f32 accumulators. With g = lane / 4 and
// t = lane % 4, a lane holds of a the words (row g, k 2t), (g + 8, 2t), (g, 2t + 8), (g + 8,
// 2t + 8), of b the words (k 2t, column g), (2t + 8, g), of c the columns 2t and 2t + 1 of row g,
// then of row g + 8. Any permutation of k that a and b share is as good.
HELPER void multiply_tile(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
#ifdef KDA_SOFT_DEVICE
    const u32 b[2] = {b0, b1};
    soft_mma(c, a, b, __LINE__);
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// The same with half as many columns of a and rows of b: the words (row g, k 2t), (g + 8, 2t), and
// (k 2t, column g).
HELPER void multiply_half_tile(float (&c)[4], u32 a0, u32 a1, u32 b0)
{
#ifdef KDA_SOFT_DEVICE
    const u32 a[4] = {a0, a1, 0, 0};
    multiply_tile(c, a, b0, 0);
#else
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, "
                 "{%6}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(b0));
#endif
}

// m16n8k8 with tf32 operands, of which the lower 13 bits do not count: of a the lane holds (row g,
// k t), (g + 8, t), (g, t + 4), (g + 8, t + 4), of b (k t, column g), (t + 4, g).
HELPER void multiply_tf32(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
#ifdef KDA_SOFT_DEVICE
    const u32 b[2] = {b0, b1};
    soft_mma_tf32(c, a, b, __LINE__);
#else
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// To nearest, ties away from zero: half of the last bit that counts, added to the magnitude.
HELPER u32 round_tf32(float x) { return as_bits(x) + 0x1000u; }

// 8 rows of 8 halves of words, a row in four lanes: rows become columns.
HELPER u32 transpose(u32 x, u32 lane)
{
#ifdef KDA_SOFT_DEVICE
    const u32 upper = lane / 4 % 2 * 16, source = lane % 4 * 8 + lane / 8;
    const u32 a = soft_shuffle(x, source, __LINE__) >> upper & 0xffff;
    const u32 b = soft_shuffle(x, source + 4, __LINE__) >> upper & 0xffff;
    return b << 16 | a;
#else
    (void)lane;
    u32 y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
#endif
}

// Of the lanes: what one of them has left in shared memory is there for the others.
HELPER void sync_warp()
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
    SMEM == 0 ? 2 :
    1;
constexpr int GATE_CHANNELS = LANE_CHANNELS / GATE_PARTS;

struct gate {
    float a_log;
    float bias[GATE_CHANNELS];
};

template <bool ALIGNED = false>
HELPER gate load_gate(const kda_verify_params &p, u32 query_head, u32 lane)
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

// The logarithm to base 2 of a decay. So is the rate, e^a_log * LOG2E.
HELPER float log2_decay(const kda_verify_params &p, float rate, float x)
{
    return p.lower_bound * LOG2E * sigmoid_log2(rate * x);
}

// Where the gate may grow, what comes of its decays is held within a limit: a zero never meets an
// infinity.
HELPER float hold(float x, float limit)
{
    (void)limit;
    return x;
}

// From raw gates to the logarithms of the decays.
HELPER void make_log2_decays(const kda_verify_params &p, const gate &gate, float (&g)[GATE_CHANNELS])
{
    const float rate = exp_fast(gate.a_log) * LOG2E;
#pragma unroll
    for (int c = 0; c < GATE_CHANNELS; c++) g[c] = log2_decay(p, rate, g[c] + gate.bias[c]);
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

// The CTA's rows of a null row's tokens. Its inputs are not read.
HELPER void store_null(const kda_verify_params &p, const window &w, u32 head, u32 first_row)
{
#pragma unroll 1
    for (u32 i = threadIdx.x; i < w.present * ROWS; i += THREADS)
        store16(out_address(p, w.token + i / ROWS, head, first_row + i % ROWS), 0);
}
// The state of ROWS_OF_WARP rows, 16 bytes per lane and turn: two rows. Of each odd row the other
// half of its steps comes first, off the banks of the even row before it.
template <u32 ROWS_OF_WARP> HELPER void copy_state(u32 to, u64 from, u32 lane)
{
    const u32 half = lane / 16;
    const u32 place = half * (u32)ROW_BYTES + (lane % 16 ^ 4 * half) * (u32)sizeof(quad);
#pragma unroll
    for (u32 i = 0; i < ROWS_OF_WARP / 2; i++)
        copy_quad(to + place + i * 2 * (u32)ROW_BYTES, from + i * 2 * ROW_BYTES);
}

// ----------------------------------------------------------------------------------------- kernel

constexpr u32 TILE = 8, TILES = TOKENS / TILE;
constexpr u32 GRAMS = TILES == 1 ? 1 : 3;  // products of two tiles: 0 with 0, 1 with 1, 1 with 0
constexpr u32 WARPS = 4;                   // a quarter of the channels each
constexpr u32 STEPS = DIM / 16;            // of 16 channels in the product with the state
constexpr u32 WARP_ROWS = ROWS / WARPS;
constexpr u32 COLUMNS = WARP_ROWS / 8;     // tiles of 8 value rows of a warp
constexpr u32 LANE_ROWS = 2 * COLUMNS;     // value rows of a lane, side by side, in u, w and o
// Warps that only solve, a block each, while the others multiply; without them the first ones do both.
constexpr u32 SOLVERS = THREADS / 32 - WARPS;
static_assert(SOLVERS == 0 || SOLVERS == GRAMS, "a warp for each block");
static_assert(TILES * TILE == TOKENS && TILES <= 2, "whole tiles");

// Shared memory. The state, in each odd row the other half of its 8 steps first: off the banks of
// the even row before it. The hats of all steps, as the lanes of the product want them: 16 bytes of
// the rounded numbers, then of what their rounding lost. The warps' parts of the grams; over them,
// once they are added, G and T of a tile, then T and QT as operands. The warps' parts of k.k and q.q;
// beta and the scales of k and q; what is needed of the window at the end.
constexpr u32 FRAGMENT = 32 * sizeof(quad);
constexpr u32 STATE = 0, HATS = STATE + ROWS * (u32)ROW_BYTES;
constexpr u32 LOST = FRAGMENT, HAT_BYTES = 2 * FRAGMENT, TILE_HATS = STEPS * HAT_BYTES;
constexpr u32 PARTS = HATS + TILES * TILE_HATS;
constexpr u32 SQUARES = PARTS + GRAMS * WARPS * FRAGMENT;
// 8: off the banks of the next rows
constexpr u32 MATRIX_ROW = (TILE + 8) * sizeof(float), MATRIX = TILE * MATRIX_ROW;
constexpr u32 GRAM_PARTS = WARPS * FRAGMENT, G = PARTS, T = G + MATRIX, OPERANDS = T + MATRIX;
constexpr u32 BETA = SQUARES + WARPS * TOKENS * sizeof(pair);
constexpr u32 K_SCALE = BETA + TOKENS * sizeof(float), Q_SCALE = K_SCALE + TOKENS * sizeof(float);
constexpr u32 WINDOW = Q_SCALE + TOKENS * sizeof(float);
static_assert(SMEM == WINDOW + sizeof(quad), "the row's smem");
static_assert(OPERANDS + FRAGMENT <= PARTS + GRAM_PARTS, "what comes of a gram fits over its parts");

HELPER u32 hat_address(u32 step, u32 tile, u32 lane)
{
    return HATS + tile * TILE_HATS + step * HAT_BYTES + lane * (u32)sizeof(quad);
}

// For `hold`: of hats 2^40, of G, of Q without its scale and of T without its beta 2^14, far beyond
// what becomes of gates that cannot grow. A sum with the state is then 2^47 times its numbers, and
// what it turns into meets T, then G, then T or QT: with their sums 2^17, 2^17 and 2^34. So results
// are within 2^115 times the state, and never an infinity that meets a zero.
constexpr float HAT_LIMIT = 1.099511627776e12f, MATRIX_LIMIT = 16384.0f;

HELPER quad choose(bool first, const quad &a, const quad &b)
{
    return {first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w};
}

// ---- tokens

// What a CTA asks for early, the tokens of other CTAs queue behind. Where there are 16, it asks for v
// and the state when its gates have come; with 8 the state's latency is worth more.
constexpr bool LATE = TILES == 2;

// What is a lane's of the CTA's head: its token of a tile and its first value row; in token 0 of the
// call and in slot 0 its channels, its values, and its part of the warp's rows of the state.
struct place {
    u32 token, row;
    token_address words;
    u64 v, state;
};

// Of a lane's token of each tile its channels, and its value rows. What is not there is zero.
struct inputs {
    token_words words[TILES];
    u32 v[TILES][COLUMNS];
};

// A lane's rows of v.
template <bool WIDE> HELPER void load_rows(u64 address, u32 (&x)[COLUMNS])
{
    if (!WIDE) {
#pragma unroll 1
        for (u32 i = 0; i < LANE_ROWS; i++) {
#pragma unroll
            for (u32 j = 0; j + 1 < COLUMNS; j++) x[j] = x[j] >> 16 | x[j + 1] << 16;
            x[COLUMNS - 1] = x[COLUMNS - 1] >> 16 | load16(address + 2 * i) << 16;
        }
    } else if constexpr (COLUMNS == 4) {
        const quad words = load128(address);
        x[0] = words.x, x[1] = words.y, x[2] = words.z, x[3] = words.w;
    } else {
        x[0] = load32(address);
    }
}

template <bool WIDE, bool WORDS, bool VALUES>
HELPER void load_inputs(const kda_verify_params &p, const window &w, const place &place, inputs &x)
{
#pragma unroll
    for (u32 i = 0; i < TILES; i++) {
        if (i * TILE + place.token >= w.present) continue;
        const u32 token = w.token + i * TILE + place.token;
        if (WORDS) {
            token_address address = place.words;
            move_token(p, address, token);
            x.words[i] = load_words<WIDE>(address);
        }
        if (VALUES) load_rows<WIDE>(place.v + 2 * token * (u64)p.v_stride, x.v[i]);
    }
}

// At once where all of the call is known to be aligned.
template <bool WORDS, bool VALUES>
HELPER void load_inputs(const kda_verify_params &p, const window &w, const place &place, inputs &x)
{
    if (p.wide)
        load_inputs<true, WORDS, VALUES>(p, w, place, x);
    else
        load_inputs<false, WORDS, VALUES>(p, w, place, x);
}

// Within 2^64. Beyond it a sum of squares overflows and the scale that comes of it is zero; within
// it, what is scaled is finite.
HELPER quad limit_squares(const quad &x)
{
    return {limit_bf16(x.x, 0x5f805f80u), limit_bf16(x.y, 0x5f805f80u),
            limit_bf16(x.z, 0x5f805f80u), limit_bf16(x.w, 0x5f805f80u)};
}

// The most that the decays of a tile may come to if its pairs are to be multiplied at once, to base
// 2: as much times what limit_squares leaves is finite.
constexpr float NARROW = 60.0f;

// The later operands and the earlier one of a lane's token for an anchor, and the product of all
// decays of its block of tokens, at last of the tile.
struct factors {
    float k[LANE_CHANNELS], q[LANE_CHANNELS];  // times the decays from the anchor to the token
    float earlier[LANE_CHANNELS];              // k times the decays after the token
    float block[LANE_CHANNELS];
};

// From blocks of LEVEL tokens to blocks of twice as many.
template <u32 LEVEL> HELPER void join_blocks(factors &x, u32 lane)
{
    const bool later = lane / 4 & LEVEL;
#pragma unroll
    for (int c = 0; c < LANE_CHANNELS; c++) {
        const float other = shuffle_xor(x.block[c], 4 * LEVEL);
        x.k[c] = hold(multiply_if(later, x.k[c], other), HAT_LIMIT);
        x.q[c] = hold(multiply_if(later, x.q[c], other), HAT_LIMIT);
        x.earlier[c] = hold(multiply_if(!later, x.earlier[c], other), HAT_LIMIT);
        x.block[c] = hold(x.block[c] * other, HAT_LIMIT);
    }
}

// Rows k_g and q_g of one tile, columns of another one. EXACT: the latter are bf16 still.
template <bool EXACT>
HELPER void multiply_tokens(float (&gram)[4], const factors &later,
                            const float (&earlier)[LANE_CHANNELS])
{
#pragma unroll
    for (int c = 0; c < LANE_CHANNELS; c += 2) {
        const u32 a[4] = {round_tf32(later.k[c]), round_tf32(later.q[c]),
                          round_tf32(later.k[c + 1]), round_tf32(later.q[c + 1])};
        const float b0 = earlier[c], b1 = earlier[c + 1];
        multiply_tf32(gram, a, EXACT ? as_bits(b0) : round_tf32(b0),
                      EXACT ? as_bits(b1) : round_tf32(b1));
    }
}

// What decays from the beginning of a tile to a lane's token, as logarithms. Returns whether all of
// the warp's lie within NARROW and fall from token to token.
HELPER bool add_decays(const kda_verify_params &p, float (&d)[LANE_CHANNELS], u32 lane)
{
#pragma unroll
    for (u32 distance = 1; distance < TILE; distance *= 2) {
#pragma unroll
        for (int c = 0; c < LANE_CHANNELS; c++)
            d[c] = add_if(lane / 4 >= distance, d[c], shuffle_up(d[c], 4 * distance));
    }
    return p.lower_bound * LOG2E * (float)TILE >= -NARROW;
}

// All pairs of a tile, from its beginning; then, for the tile behind it, from its end.
HELPER void multiply_at_once(float (&gram)[4], factors &x, const float (&sums)[LANE_CHANNELS],
                             u32 tile, u32 lane)
{
#pragma unroll
    for (int c = 0; c < LANE_CHANNELS; c++) {
        const float d = exp2_fast(sums[c]);
        x.k[c] = x.earlier[c] * d;
        x.q[c] = x.q[c] * d;
        x.earlier[c] = x.earlier[c] * exp2_fast(-sums[c]);
        x.block[c] = d;
    }
    float all[4] = {};
    multiply_tokens<false>(all, x, x.earlier);
#pragma unroll
    for (u32 i = 0; i < 4; i++)
        if ((lane / 4 ^ lane % 4 * 2) != i % 2) gram[i] = all[i];
    if (TILES == 2 && tile == 0) {
#pragma unroll
        for (int c = 0; c < LANE_CHANNELS; c++) {
            x.block[c] = shuffle_from(x.block[c], (TILE - 1) * 4 + lane % 4);
            x.earlier[c] = x.earlier[c] * x.block[c];
        }
    }
}

// Of the pairs of a tile, those of one level.
template <u32 LEVEL> HELPER void multiply_level(float (&gram)[4], const factors &x, u32 lane)
{
    const u32 differ = lane / 4 ^ lane % 4 * 2;  // from the lower of its columns
    float all[4] = {};
    multiply_tokens<LEVEL == 1>(all, x, x.earlier);
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const u32 d = differ ^ i % 2;
        if (d >= LEVEL && d < 2 * LEVEL) gram[i] = all[i];
    }
}

HELPER void multiply_by_levels(float (&gram)[4], factors &x, u32 lane)
{
#pragma unroll
    for (int c = 0; c < LANE_CHANNELS; c++) {
        x.k[c] = hold(x.earlier[c] * x.block[c], HAT_LIMIT);
        x.q[c] = hold(x.q[c] * x.block[c], HAT_LIMIT);
    }
    multiply_level<1>(gram, x, lane);
    join_blocks<1>(x, lane);
    multiply_level<2>(gram, x, lane);
    join_blocks<2>(x, lane);
    multiply_level<4>(gram, x, lane);
    join_blocks<4>(x, lane);
}

// Both steps of a warp's channels of the hats.
HELPER void store_hats(u32 shared, const factors &x, u32 tile, u32 warp, u32 lane)
{
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const u32 address = shared + hat_address(2 * warp + i, tile, lane);
        const parts a = split_bf16(x.k[4 * i], x.k[4 * i + 1]);
        const parts b = split_bf16(x.q[4 * i], x.q[4 * i + 1]);
        const parts c = split_bf16(x.k[4 * i + 2], x.k[4 * i + 3]);
        const parts d = split_bf16(x.q[4 * i + 2], x.q[4 * i + 3]);
        sts_quad(address, {a.high, b.high, c.high, d.high});
        sts_quad(address + LOST, {a.lost, b.lost, c.lost, d.lost});
    }
}

HELPER void store_part(u32 shared, const float (&gram)[4], u32 number, u32 warp, u32 lane)
{
    sts128(shared + PARTS + number * GRAM_PARTS + warp * FRAGMENT + lane * (u32)sizeof(quad),
           {gram[0], gram[1], gram[2], gram[3]});
}

// What a warp knows of a tile before its decays: k and q, and what meets itself exactly, k.k and
// q.k on the diagonal, and q.q. The norms' parts and beta go to shared memory.
HELPER void begin_factors(factors &x, float (&gram)[4], const token_words &words, u32 shared,
                          u32 tile, u32 warp, u32 lane)
{
    const quad k = limit_squares(words.k), q = limit_squares(words.q);
    const u32 low[4] = {k.x, q.x, k.y, q.y}, high[4] = {k.z, q.z, k.w, q.w};
    float squares[4] = {};
    multiply_tile(gram, low, k.x, k.y);
    multiply_tile(squares, low, q.x, q.y);
    multiply_tile(gram, high, k.z, k.w);
    multiply_tile(squares, high, q.z, q.w);
    if (lane % 4 == lane / 8)
        sts_pair(shared + SQUARES + (warp * TOKENS + tile * TILE + lane / 4) * (u32)sizeof(pair),
                 lane / 4 % 2 ? pair{gram[1], squares[3]} : pair{gram[0], squares[2]});
    if (warp == 0 && lane % 4 == 0)
        sts(shared + BETA + (tile * TILE + lane / 4) * (u32)sizeof(float),
            widen_bf16(words.beta));
    unpack_bf16(k, x.earlier);
    unpack_bf16(q, x.q);
}

// What the second tile needs of the first one.
struct before {
    float earlier[LANE_CHANNELS], block[LANE_CHANNELS];
};

// The warp's part of the gram of both tiles, and the second tile's factors become hats. FALLS: no
// decay grows.
template <bool FALLS>
HELPER void join_tiles(u32 shared, const before &first, factors &x, u32 warp, u32 lane)
{
    float gram[4] = {};
    multiply_tokens<false>(gram, x, first.earlier);
#pragma unroll
    for (u32 c = 0; c < LANE_CHANNELS; c++) {
        const float k = x.k[c] * first.block[c], q = x.q[c] * first.block[c];
        x.k[c] = FALLS ? k : hold(k, HAT_LIMIT);
        x.q[c] = FALLS ? q : hold(q, HAT_LIMIT);
    }
    store_part(shared, gram, 2, warp, lane);
}

// What becomes of a tile whose factors are there. The first one comes first.
template <bool FALLS>
HELPER void end_factors(factors &x, const float (&gram)[4], before &first, u32 shared, u32 tile,
                        u32 warp, u32 lane)
{
    store_part(shared, gram, tile, warp, lane);
    if (tile == 1) join_tiles<FALLS>(shared, first, x, warp, lane);
    store_hats(shared, x, tile, warp, lane);
#pragma unroll
    for (u32 c = 0; c < LANE_CHANNELS; c++) {
        first.earlier[c] = x.earlier[c];
        first.block[c] = x.block[c];
    }
}

// Between the tiles, in the places of this lane in the second one's hats.
HELPER u32 place_before(u32 shared, u32 i, u32 warp, u32 lane)
{
    return shared + hat_address(2 * warp + i / 2, 1, lane) + i % 2 * LOST;
}

HELPER void store_before(u32 shared, const before &x, u32 warp, u32 lane)
{
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const float *from = (i < 2 ? x.earlier : x.block) + i % 2 * 4;
        sts128(place_before(shared, i, warp, lane), {from[0], from[1], from[2], from[3]});
    }
}

HELPER before load_before(u32 shared, u32 warp, u32 lane)
{
    before x;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const vec4 four = lds128(place_before(shared, i, warp, lane));
        float *to = (i < 2 ? x.earlier : x.block) + i % 2 * 4;
        to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    }
    return x;
}

// What decays up to a lane's token of each tile, as logarithms. Returns whether the tiles may be
// multiplied at once.
HELPER bool sum_decays(const kda_verify_params &p, const token_words (&words)[TILES],
                       const gate &gate, u32 present, float (&sums)[TILES][LANE_CHANNELS],
                       u32 lane)
{
    bool narrow = true;
#pragma unroll
    for (u32 i = 0; i < TILES; i++) {
        unpack_bf16(words[i].g, sums[i]);
        make_log2_decays(p, gate, sums[i]);
        (void)present;
        narrow = add_decays(p, sums[i], lane) && narrow;
    }
    return narrow;
}

// The hats, and the warp's part of the grams.
HELPER void make_hats(const kda_verify_params &p, const token_words (&words)[TILES],
                      const gate &gate, const float (&sums)[TILES][LANE_CHANNELS], bool narrow,
                      u32 shared, u32 warp, u32 lane)
{
    if (narrow) {
        before first = {};
#pragma unroll
        for (u32 i = 0; i < TILES; i++) {
            factors x;
            float gram[4] = {};
            begin_factors(x, gram, words[i], shared, i, warp, lane);
            multiply_at_once(gram, x, sums[i], i, lane);
            end_factors<true>(x, gram, first, shared, i, warp, lane);
        }
    } else {
        // One tile after the other, in a loop, or they do not fit into the registers.
#pragma unroll 1
        for (u32 i = 0; i < TILES; i++) {
            const token_words &a = words[0], &b = words[TILES - 1];
            const token_words own = {choose(i == 0, a.q, b.q), choose(i == 0, a.k, b.k),
                                     choose(i == 0, a.g, b.g),
                                     i == 0 ? a.beta : b.beta};
            factors x;
            float gram[4] = {};
            begin_factors(x, gram, own, shared, i, warp, lane);
            make_decays(p, gate, own.g, lane, x.block);
            multiply_by_levels(gram, x, lane);
            before first = {};
            if (i == 1) first = load_before(shared, warp, lane);
            end_factors<false>(x, gram, first, shared, i, warp, lane);
            if (i == 0 && TILES == 2) store_before(shared, first, warp, lane);
        }
    }
}

// ---- grams, T and QT, a block of 8 by 8 by one warp
//
// The first tile has block 0, the second one block 1, and block 2 is where rows of the second meet
// columns of the first. Of row g a lane holds the columns 2*t and 2*t + 1.

HELPER u32 block_address(u32 shared, u32 number) { return shared + number * GRAM_PARTS; }

// G and Q of a block, from the warps' parts: of a lane G, G, Q, Q.
HELPER void add_parts(float (&x)[4], u32 block, u32 lane)
{
    const u32 parts = block + PARTS + lane * (u32)sizeof(quad);
    const vec4 part = lds128(parts);
    x[0] = part.x, x[1] = part.y, x[2] = part.z, x[3] = part.w;
#pragma unroll
    for (u32 warp = 1; warp < WARPS; warp++) {
        const vec4 part = lds128(parts + warp * FRAGMENT);
        x[0] = x[0] + part.x;
        x[1] = x[1] + part.y;
        x[2] = x[2] + part.z;
        x[3] = x[3] + part.w;
    }
    sync_warp();  // what is solved takes their place
}

// By the scales of row g and by that of column g's k.
HELPER void scale_block(const kda_verify_params &p, float (&x)[4], const pair &row, float column,
                        u32 lane)
{
    const float limits[2] = {MATRIX_LIMIT, MATRIX_LIMIT * fabsf(p.scale)};
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        const float k = shuffle_from(column, (lane % 4 * 2 + j % 2) * 4);
        x[j] = hold(scaled(scaled(x[j], k), j < 2 ? row.x : row.y), limits[j / 2]);
    }
}

// Rows g and g + 8 of an operand, and what their rounding lost.
HELPER void store_operands(u32 block, const parts &a, const parts &b, u32 lane)
{
    sts_quad(block + OPERANDS + lane * (u32)sizeof(quad), {a.high, b.high, a.lost, b.lost});
}

HELPER quad load_operands(u32 shared, u32 number, u32 lane)
{
    return lds_quad(block_address(shared, number) + OPERANDS + lane * (u32)sizeof(quad));
}

// The block's T as an operand of columns.
HELPER parts load_columns(u32 block, u32 lane)
{
    const u32 first = block + T + lane % 4 * 2 * MATRIX_ROW + lane / 4 * (u32)sizeof(float);
    return split_bf16(lds(first), lds(first + MATRIX_ROW));
}

// The operands times the block whose columns are in `columns`, in two bf16 each.
HELPER void multiply_block(float (&c)[4], const quad &rows, const parts &columns)
{
    const u32 both[4] = {rows.x, rows.y, rows.z, rows.w};
    multiply_half_tile(c, rows.x, rows.y, columns.lost);
    multiply_tile(c, both, columns.high, columns.high);
}

// Column lane % 8 of T from G, by forward substitution.
HELPER void substitute(u32 block, u32 beta, u32 lane)
{
    const u32 column = lane % TILE;
    float x[TILE];
#pragma unroll
    for (u32 t = 0; t < TILE; t++) {
        float rest = column == t ? 1.0f : 0.0f;
#pragma unroll
        for (u32 s = 0; s < t; s += 4) {
            const vec4 four = lds128(block + G + t * MATRIX_ROW + s * (u32)sizeof(float));
            const float g[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                if (s + i < t) rest = fmaf(-g[i], x[s + i], rest);
        }
        x[t] = hold(rest, MATRIX_LIMIT) * lds(beta + t * (u32)sizeof(float));
    }
    if (lane < TILE) {
#pragma unroll
        for (u32 t = 0; t < TILE; t++)
            sts(block + T + t * MATRIX_ROW + column * (u32)sizeof(float), x[t]);
    }
    sync_warp();
}

// The scales of a token's k and q.
HELPER pair make_scales(const kda_verify_params &p, u32 shared, u32 token)
{
    const u32 squares = shared + SQUARES + token * (u32)sizeof(pair);
    pair sum = lds_pair(squares);
#pragma unroll
    for (u32 warp = 1; warp < WARPS; warp++) {
        const pair part = lds_pair(squares + warp * TOKENS * (u32)sizeof(pair));
        sum = {sum.x + part.x, sum.y + part.y};
    }
    return {rsqrt_fast(sum.x + EPSILON), make_q_scale(p, sum.y)};
}

// T and QT of one tile, and the scales of its tokens.
HELPER void solve_tile(const kda_verify_params &p, u32 present, u32 tile, u32 shared, u32 lane)
{
    const u32 g = lane / 4, t = lane % 4, block = block_address(shared, tile);
    const u32 first = shared + tile * TILE * (u32)sizeof(float);  // of what is one number per token
    const u32 own = first + g * (u32)sizeof(float);
    const pair scales = make_scales(p, shared, tile * TILE + g);
    float x[4];
    add_parts(x, block, lane);
    scale_block(p, x, scales, scales.x, lane);
#pragma unroll
    for (u32 j = 0; j < 4; j++)
        if (2 * t + j % 2 > g) x[j] = 0.0f;  // a later token
    sts_pair(block + G + g * MATRIX_ROW + t * (u32)sizeof(pair), {x[0], x[1]});
    if (t == 0) {
        const float beta = make_beta(p, lds(own + BETA));
        sts(own + BETA, tile * TILE + g < present ? beta : 0.0f);
        sts(own + K_SCALE, scales.x);
        sts(own + Q_SCALE, scales.y);
    }
    sync_warp();
    substitute(block, first + BETA, lane);

    const pair row = lds_pair(block + T + g * MATRIX_ROW + t * (u32)sizeof(pair));
    const parts q = split_bf16(x[2], x[3]);
    float read[4] = {};
    multiply_block(read, {q.high, 0, q.lost, 0}, load_columns(block, lane));
    store_operands(block, split_bf16(row.x, row.y), split_bf16(read[0], read[1]), lane);
}

// Where rows of the second tile meet columns of the first: G and Q, as operands.
HELPER void scale_across(const kda_verify_params &p, u32 shared, u32 lane)
{
    const u32 block = block_address(shared, 2);
    float x[4];
    add_parts(x, block, lane);
    scale_block(p, x, make_scales(p, shared, TILE + lane / 4),
                make_scales(p, shared, lane / 4).x, lane);
    store_operands(block, split_bf16(x[0], x[1]), split_bf16(x[2], x[3]), lane);
}

HELPER void solve_block(const kda_verify_params &p, u32 present, u32 number, u32 shared, u32 lane)
{
    if (number < TILES)
        solve_tile(p, present, number, shared, lane);
    else
        scale_across(p, shared, lane);
}

// ---- the state

// S0.khat and S0.qhat of all tokens and of the value rows that are the lane's columns.
HELPER void multiply_state(u32 shared, float (&product)[TILES][COLUMNS][4], u32 lane)
{
    wait_copies();
    sync_warp();
    const u32 odd = lane / 4 % 2, first = threadIdx.x / 32 * WARP_ROWS + lane / 8 * LANE_ROWS;
    const u32 row = shared + STATE + (first + odd) * (u32)ROW_BYTES + lane % 4 * (u32)sizeof(quad);
#pragma unroll
    for (u32 quarter = 0; quarter < 4; quarter++) {
        quad columns[COLUMNS];
#pragma unroll
        for (u32 j = 0; j < COLUMNS; j++)
            columns[j] = lds_quad(row + (quarter ^ odd) * 4 * (u32)sizeof(quad) +
                                  j * 2 * (u32)ROW_BYTES);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
#pragma unroll
            for (u32 i = 0; i < TILES; i++) {
                const u32 address = shared + hat_address(2 * quarter + half, i, lane);
                const quad hat = lds_quad(address), lost = lds_quad(address + LOST);
                const u32 high[4] = {hat.x, hat.y, hat.z, hat.w};
                const u32 low[4] = {lost.x, lost.y, lost.z, lost.w};
#pragma unroll
                for (u32 j = 0; j < COLUMNS; j++) {
                    const quad &s = columns[j];
                    multiply_tile(product[i][j], low, half ? s.z : s.x, half ? s.w : s.y);
                    multiply_tile(product[i][j], high, half ? s.z : s.x, half ? s.w : s.y);
                }
            }
        }
    }
}

// A lane's rows of the output: at once where they are aligned.
HELPER void store_rows(u64 address, u32 (&x)[COLUMNS])
{
    if (address % sizeof x != 0) {
#pragma unroll 1
        for (u32 i = 0; i < LANE_ROWS; i++) {
            store16(address + 2 * i, (u16)x[0]);
#pragma unroll
            for (u32 j = 0; j + 1 < COLUMNS; j++) x[j] = x[j] >> 16 | x[j + 1] << 16;
            x[COLUMNS - 1] = x[COLUMNS - 1] >> 16;
        }
    } else if constexpr (COLUMNS == 4) {
        store_state(address, {x[0], x[1], x[2], x[3]});
    } else {
        store32(address, x[0]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, OCCUPANCY)
    kda_verify_t9_16_lower_bound_wy_split4(const __grid_constant__ struct kda_verify_params p)
{
    begin_grid();
    const u32 lane = threadIdx.x % 32, warp = uniform(threadIdx.x / 32);
    const u32 head = blockIdx.x / SPLIT, query_head = find_query_head(p, head);
    const u32 first_row = blockIdx.x % SPLIT * ROWS, row = warp * WARP_ROWS;
    const u32 eighth = 4 * warp + lane % 4, own = first_row + row + lane % 4 * LANE_ROWS;
    const window w = find_window(p, blockIdx.y);
    // In the shadow of tokens and slot: what the addresses have from neither.
    place place = {lane / 4, own, find_token(p, 0, query_head, head, eighth),
                   value_address(p, 0, head, own),
                   state_address(p, 0, head, first_row + row) + lane * sizeof(quad)};
    if (!LATE) {
        compute_here(place.words.q), compute_here(place.words.k), compute_here(place.words.g);
        compute_here(place.words.beta), compute_here(place.v), compute_here(place.state);
    }
    if (w.present == 0) return;
    if (!w.live) {
        store_null(p, w, head, first_row);
        return;
    }

    const u32 shared = shared_base();
    const bool solves = SOLVERS != 0 && warp >= WARPS;
    if (threadIdx.x == 0) sts_quad(shared + WINDOW, {w.token, w.present, (u32)w.slot, 0});
    inputs x = {};
    if (!solves) {
        place.state += (u32)w.slot * (u64)p.slot_stride * sizeof(u16);
        const gate gate = load_gate(p, query_head, eighth);
        load_inputs<true, !LATE>(p, w, place, x);
        if (!LATE) copy_state<WARP_ROWS>(shared + STATE + row * (u32)ROW_BYTES, place.state, lane);
        if (p.kg && blockIdx.x % SPLIT == 0) {
#pragma unroll
            for (u32 i = 0; i < TILES; i++) {
                const u32 t = i * TILE + place.token;
                if (t < w.present)
                    store_kg(kg_address(p, w.slot, head, t), x.words[i], eighth);
            }
        }

        float sums[TILES][LANE_CHANNELS];
        const bool narrow = sum_decays(p, x.words, gate, w.present, sums, lane);
        if (LATE) {
            load_inputs<false, true>(p, w, place, x);
            copy_state<WARP_ROWS>(shared + STATE + row * (u32)ROW_BYTES, place.state, lane);
        }
        make_hats(p, x.words, gate, sums, narrow, shared, warp, lane);
    }
    sync_cta();
    const quad end = lds_quad(shared + WINDOW);  // what was in registers lies in shared memory
    const u32 token = end.x, present = end.y;
    const int slot = (int)end.z;
    float product[TILES][COLUMNS][4] = {};
    if (solves) {
        solve_block(p, present, warp - WARPS, shared, lane);
    } else {
        if (SOLVERS == 0 && warp < GRAMS) solve_block(p, present, warp, shared, lane);
        multiply_state(shared, product, lane);
    }
    sync_cta();
    if (solves) return;

    // Of a lane's token and rows: u, and then w on top of o. Tokens are rows, and become columns.
    parts w_before[COLUMNS];
#pragma unroll
    for (u32 i = 0; i < TILES; i++) {
        const u32 scales = shared + (i * TILE + place.token) * (u32)sizeof(float);
        const float k_scale = lds(scales + K_SCALE), q_scale = lds(scales + Q_SCALE);
        const quad solved = load_operands(shared, i, lane);
        const quad across = i == 1 ? load_operands(shared, 2, lane) : quad{};
#pragma unroll
        for (u32 j = 0; j < COLUMNS; j++) {
            float(&y)[4] = product[i][j];
            float z[4] = {0.0f, 0.0f, y[2] * q_scale, y[3] * q_scale};
            if (i == 1) multiply_block(z, across, w_before[j]);
            const parts u =
                split_bf16(fmaf(-k_scale, y[0], widen_bf16(x.v[i][j])) - z[0],
                           fmaf(-k_scale, y[1], widen_upper(x.v[i][j])) - z[1]);
            y[0] = 0.0f, y[1] = 0.0f, y[2] = z[2], y[3] = z[3];
            multiply_block(y, solved, {transpose(u.high, lane), transpose(u.lost, lane)});
            if (i + 1 < TILES) {
                const parts w = split_bf16(y[0], y[1]);
                w_before[j] = {transpose(w.high, lane), transpose(w.lost, lane)};
            }
        }
        const u32 t = i * TILE + place.token;
        if (t < present) {
            u32 out[COLUMNS];
#pragma unroll
            for (u32 j = 0; j < COLUMNS; j++)
                out[j] = pack_bf16(product[i][j][2], product[i][j][3]);
            store_rows(out_address(p, token + t, head, place.row), out);
            const u64 correction = correction_address(p, slot, head, t);
            if (correction) {
#pragma unroll
                for (u32 j = 0; j < COLUMNS; j++)
                    store64(correction + (place.row + 2 * j) * sizeof(float),
                            (u64)as_bits(product[i][j][1]) << 32 | as_bits(product[i][j][0]));
            }
        }
    }
}
