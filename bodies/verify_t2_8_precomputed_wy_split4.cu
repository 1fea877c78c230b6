// SPDX-License-Identifier: Apache-2.0
// Generated from gen/verify_wy.cu.in, what it includes, and manifest/params.h for the row
// verify_t2_8_precomputed_wy_split4 of manifest/schedules.inc.
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
//   2. The first warp adds the parts, inverts and multiplies by Q, in f32.
//   3. All warps: product of the state with the hats, of u with T and QT, on the matrix units.
//
// Lanes. With g = lane / 4 and t = lane % 4, a lane has of token g of each TILE of 8 tokens the
// channels 32*warp + 8*t to 32*warp + 8*t + 7: 16 bytes of q, k and g. This is what the operands of
// the matrix unit ask for, k_g and q_g as rows g and g + 8, k_g as column g, so that no operand ever
// moves to another lane before the hats go to the other warps. A value row of the state is a column,
// and its 16 bytes serve two steps of 16 channels.
//
// Grams. Two tokens meet at the level of the highest bit in which their numbers differ: tokens that
// differ in bit 0 only at level 1, then blocks of two tokens at level 2, blocks of four at 4, the
// tiles at 8. There the later one brings what decayed since the boundary between the two blocks, k_t
// or q_t times the decays from the boundary to t, the earlier one k_s times the decays after s up to
// the boundary, both single products of decays: nothing is divided, and nothing overflows where the
// gate does not grow. All pairs of a level are one product of the warp in tf32, whose rounding is
// lost in the sum over channels. At the last level the later operands are the hats.
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
    unsigned long long state;                   // [num_slots, HV, 128, 128] bf16, key channel fastest, only read
    long long slot_stride;                      // between two slots of the pool
    unsigned long long q, k;                    // [tok, H, 128] bf16
    unsigned long long v, g;                    // [tok, HV, 128] bf16
    long long q_stride, k_stride;               // token strides
    long long v_stride, g_stride;
    unsigned long long beta;                    // [tok, HV] bf16
    long long beta_stride;
    struct kda_divisor query;                   // head hv reads query head hv / (HV/H)
    float scale, lower_bound;                   // q scale; lower bound of the gate, 0 where it has none
    int beta_is_logit;                          // 1: beta goes through a sigmoid in the kernel
    int rows;                                   // N
    unsigned long long out;                     // [tok, HV, 128] bf16
    long long out_stride;
    unsigned long long correction, kg;          // [num_slots, HV, T_cache, 128] f32 and [.., 256] bf16, or both 0
    long long correction_strides[3], kg_strides[3];  // slot, value head, token
    long long tok;                              // packed tokens of the call
    unsigned long long a_log, dt_bias;          // [H] and [H, 128] f32, or 0; an omitted dt_bias is zero
    int heads, value_heads;                     // H, HV; HV is a multiple of H
};

// Of the row. OCCUPANCY is how many CTAs per SM the register cap must allow.
constexpr int TOKENS = 8, SPLIT = 4, THREADS = 128, SMEM = 18672;
constexpr int OCCUPANCY = 6;

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

HELPER u16 lds16(u32 address)
{
    u16 x;
#ifdef KDA_SOFT_DEVICE
    memcpy(&x, soft_shared(address, 2, __LINE__), 2);
#else
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(address));
#endif
    return x;
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

template <bool ALIGNED = false>
HELPER token_words load_token(const kda_verify_params &p, const token_address &x)
{
    // One branch for all of them: a load with a second form of its own waits for the one before.
    if (!p.wide) return {load16x8(x.q), load16x8(x.k), load16x8(x.g), load16(x.beta)};
    return {load128(x.q), load128(x.k), load128(x.g), load16(x.beta)};
}

// Where both halves of a warp have the same token, each makes the decay of four of a lane's
// channels for both.
constexpr int GATE_PARTS = 1;

struct gate {};  // g is the log decay

template <bool ALIGNED = false> HELPER gate load_gate(const kda_verify_params &, u32, u32) { return {}; }

// The decays of a lane's channels.
HELPER void make_decays(const kda_verify_params &p, const gate &gate, const quad &words, u32 lane,
                        float (&d)[LANE_CHANNELS])
{
    float g[LANE_CHANNELS];
    unpack_bf16(words, g);
    (void)p, (void)gate, (void)lane;
#pragma unroll
    for (int c = 0; c < LANE_CHANNELS; c++) d[c] = exp_fast(g[c]);
}

HELPER token make_token(const kda_verify_params &p, const token_words &words, const gate &gate,
                        u32 lane)
{
    token t;
    unpack_bf16(words.q, t.q);
    unpack_bf16(words.k, t.k);
    make_decays(p, gate, words.g, lane, t.d);
    const float qq[1] = {dot(t.q, t.q)}, kk[1] = {dot(t.k, t.k)};
    // With the norms, not after them. Where it overflows so does a norm, whose scale is then zero.
    const float kq[1] = {dot(t.k, t.q)};
    t.kq = fmaxf(fminf(sum_half(kq, lane), FLOAT_MAX), -FLOAT_MAX);
    const float q_scale = rsqrt_fast(sum_half(qq, lane) + EPSILON);
    const float k_scale = rsqrt_fast(sum_half(kk, lane) + EPSILON);
#pragma unroll
    for (int c = 0; c < LANE_CHANNELS; c++) {
        t.q[c] = t.q[c] * q_scale * p.scale;
        t.k[c] = t.k[c] * k_scale;
    }
    t.kq = t.kq * (q_scale * p.scale) * k_scale;
    t.beta = widen_bf16(words.beta);
    if (p.beta_is_logit) t.beta = sigmoid(t.beta);
    return t;
}


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

// The CTA's rows of a null row's tokens. Its inputs are not read.
HELPER void store_null(const kda_verify_params &p, const window &w, u32 head, u32 first_row)
{
#pragma unroll 1
    for (u32 i = threadIdx.x; i < w.present * ROWS; i += THREADS)
        store16(out_address(p, w.token + i / ROWS, head, first_row + i % ROWS), 0);
}

// ----------------------------------------------------------------------------------------- kernel

constexpr u32 TILE = 8, TILES = TOKENS / TILE;
constexpr u32 GRAMS = TILES == 1 ? 1 : 3;  // products of two tiles: 0 with 0, 1 with 1, 1 with 0
constexpr u32 WARPS = 4;                   // a quarter of the channels each
constexpr u32 STEPS = DIM / 16;            // of 16 channels in the product with the state
constexpr u32 WARP_ROWS = ROWS / WARPS;
constexpr u32 COLUMNS = WARP_ROWS / 8;     // tiles of 8 value rows of a warp
constexpr u32 LANE_ROWS = 2 * COLUMNS;     // value rows of a lane, side by side, in u, w and o
static_assert(THREADS == 32 * WARPS && TILES * TILE == TOKENS && TILES <= 2, "whole tiles");

// Shared memory. The state, in each odd row the other half of its 8 steps first: off the banks of
// the even row before it. The hats of all steps, as the lanes of the product want them: 16 bytes of
// the rounded numbers, then of what their rounding lost. The warps' parts of the grams; over them,
// once they are added, G and T of each tile, then T and QT as operands. The warps' parts of q.q;
// beta and the scales of k and q; what is needed of the window at the end.
constexpr u32 FRAGMENT = 32 * sizeof(quad);
constexpr u32 STATE = 0, HATS = STATE + ROWS * (u32)ROW_BYTES;
constexpr u32 LOST = FRAGMENT, HAT_BYTES = 2 * FRAGMENT, TILE_HATS = STEPS * HAT_BYTES;
constexpr u32 PARTS = HATS + TILES * TILE_HATS;
constexpr u32 SQUARES = PARTS + GRAMS * WARPS * FRAGMENT;
// 8: off the banks of the next rows
constexpr u32 MATRIX_ROW = (TILE + 8) * sizeof(float), MATRIX = TOKENS * MATRIX_ROW;
constexpr u32 G = PARTS, T = G + MATRIX, SOLVE = T + MATRIX;
constexpr u32 BETA = SQUARES + WARPS * TOKENS * sizeof(float);
constexpr u32 K_SCALE = BETA + TOKENS * sizeof(float), Q_SCALE = K_SCALE + TOKENS * sizeof(float);
constexpr u32 WINDOW = Q_SCALE + TOKENS * sizeof(float);
static_assert(SMEM == WINDOW + sizeof(quad), "the row's smem");
static_assert(SOLVE + GRAMS * FRAGMENT <= SQUARES, "what is solved fits over the parts");

HELPER u32 hat_address(u32 step, u32 tile, u32 lane)
{
    return HATS + tile * TILE_HATS + step * HAT_BYTES + lane * (u32)sizeof(quad);
}

// Where the gate may grow, what comes of products of decays is held within 2^50: a sum over channels
// or tokens of products of two of them, or of one with the state, is finite, and so is what becomes
// of it when it meets a zero.
HELPER float hold(float x)
{
    return saturate(x, 1.125899906842624e15f);
}

HELPER float carry(float x, float d) { return hold(x * d); }

HELPER quad choose(bool first, const quad &a, const quad &b)
{
    return {first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w};
}

HELPER float scaled(float x, float scale) { return scale == 0.0f ? 0.0f : x * scale; }

// ---- tokens

// Within 2^64. Beyond it a sum of squares overflows and the scale that comes of it is zero; within
// it, what is scaled is finite.
HELPER quad limit_squares(const quad &x)
{
    return {limit_bf16(x.x, 0x5f805f80u), limit_bf16(x.y, 0x5f805f80u),
            limit_bf16(x.z, 0x5f805f80u), limit_bf16(x.w, 0x5f805f80u)};
}

// The later operands and the earlier one of a lane's token at a level, and the product of all
// decays of its block.
struct factors {
    float k[LANE_CHANNELS], q[LANE_CHANNELS];  // times the decays from the boundary to the token
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
        x.k[c] = hold(multiply_if(later, x.k[c], other));
        x.q[c] = hold(multiply_if(later, x.q[c], other));
        x.earlier[c] = hold(multiply_if(!later, x.earlier[c], other));
        x.block[c] = carry(x.block[c], other);
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
    sts128(shared + PARTS + (number * WARPS + warp) * FRAGMENT + lane * (u32)sizeof(quad),
           {gram[0], gram[1], gram[2], gram[3]});
}

// A warp's part of the gram of a tile and of q.q, from its words, of which `present` are there.
// Leaves the operands of the next level, of which the later ones are the hats in the first tile.
HELPER factors make_factors(const kda_verify_params &p, const token_words &words, const gate &gate,
                            u32 shared, u32 tile, int present, u32 warp, u32 lane)
{
    // What meets itself does so exactly: k.k and q.k on the diagonal, and q.q.
    const quad k = limit_squares(words.k), q = limit_squares(words.q);
    const u32 low[4] = {k.x, q.x, k.y, q.y}, high[4] = {k.z, q.z, k.w, q.w};
    float gram[4] = {}, squares[4] = {};
    multiply_tile(gram, low, k.x, k.y);
    multiply_tile(gram, high, k.z, k.w);
    multiply_tile(squares, low, q.x, q.y);
    multiply_tile(squares, high, q.z, q.w);
    if (lane % 4 == lane / 8)
        sts(shared + SQUARES + (warp * TOKENS + tile * TILE + lane / 4) * (u32)sizeof(float),
            lane / 4 % 2 ? squares[3] : squares[2]);

    factors x;
    make_decays(p, gate, words.g, lane, x.block);
    unpack_bf16(k, x.earlier);
    unpack_bf16(q, x.q);
#pragma unroll
    for (int c = 0; c < LANE_CHANNELS; c++) {
        x.k[c] = carry(x.earlier[c], x.block[c]);
        x.q[c] = carry(x.q[c], x.block[c]);
    }
    multiply_level<1>(gram, x, lane);
    join_blocks<1>(x, lane);
    if (present > 2) {  // else these have no later token and change nothing that is used
        multiply_level<2>(gram, x, lane);
        join_blocks<2>(x, lane);
        multiply_level<4>(gram, x, lane);
        join_blocks<4>(x, lane);
    }
    store_part(shared, gram, tile, warp, lane);
    return x;
}

// The warp's part of the gram of both tiles, and the second tile's factors become hats.
HELPER void join_tiles(u32 shared, const factors &first, factors &second, u32 warp, u32 lane)
{
    float gram[4] = {};
    multiply_tokens<false>(gram, second, first.earlier);
#pragma unroll
    for (u32 c = 0; c < LANE_CHANNELS; c++) {
        second.k[c] = carry(second.k[c], first.block[c]);
        second.q[c] = carry(second.q[c], first.block[c]);
    }
    store_part(shared, gram, 2, warp, lane);
}

// ---- grams, T and QT, by one warp

// Blocks of 8 by 8 in the lanes of a product: of row g the columns 2*t and 2*t + 1. The first tile
// has block 0, the second one block 1, and block 2 is where rows of the second meet columns of the
// first.
struct block {
    float x, y;
};

HELPER parts split_block(const block &x) { return split_bf16(x.x, x.y); }

// The operands of the second product with all of T and QT, a block of each: T, QT, and what their
// rounding lost.
HELPER void store_solve(u32 shared, u32 number, const parts &t, const parts &qt, u32 lane)
{
    sts_quad(shared + SOLVE + number * FRAGMENT + lane * (u32)sizeof(quad),
             {t.high, qt.high, t.lost, qt.lost});
}

// a and b times the block whose columns are in `columns`, in two bf16 each.
HELPER void multiply_blocks(float (&c)[4], const parts &a, const parts &b, const parts &columns)
{
    multiply_half_tile(c, a.lost, b.lost, columns.high);
    multiply_half_tile(c, a.high, b.high, columns.lost);
    multiply_half_tile(c, a.high, b.high, columns.high);
}

// G and Q from the warps' parts, scaled; G of a tile also to shared memory, over the parts of the
// first block.
HELPER void add_grams(const kda_verify_params &p, u32 shared, u32 lane, block (&grams)[GRAMS],
                      block (&reads)[GRAMS])
{
    const u32 g = lane / 4, t = lane % 4;
    float k_scale[TILES], q_scale[TILES], columns[TILES][2];
#pragma unroll
    for (u32 i = 0; i < GRAMS; i++) {
        float x[4] = {};
#pragma unroll
        for (u32 warp = 0; warp < WARPS; warp++) {
            const vec4 part = lds128(shared + PARTS + (i * WARPS + warp) * FRAGMENT +
                                     lane * (u32)sizeof(quad));
            x[0] = x[0] + part.x;
            x[1] = x[1] + part.y;
            x[2] = x[2] + part.z;
            x[3] = x[3] + part.w;
        }
        sync_warp();
        if (i < TILES) {
            const u32 own = shared + (i * TILE + g) * (u32)sizeof(float);
            float qq = 0.0f;
#pragma unroll
            for (u32 warp = 0; warp < WARPS; warp++)
                qq = qq + lds(own + SQUARES + warp * TOKENS * (u32)sizeof(float));
            const float kk = shuffle_from(g % 2 ? x[1] : x[0], g * 4 + g / 2);
            k_scale[i] = rsqrt_fast(kk + EPSILON);
            q_scale[i] = rsqrt_fast(qq + EPSILON) * p.scale;
            columns[i][0] = shuffle_from(k_scale[i], 2 * t * 4);
            columns[i][1] = shuffle_from(k_scale[i], (2 * t + 1) * 4);
            if (t == 0) {
                sts(own + K_SCALE, k_scale[i]);
                sts(own + Q_SCALE, q_scale[i]);
            }
        }
        const u32 row = i == 0 ? 0 : 1, column = i == 1 ? 1 : 0;
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            const float scale = j < 2 ? k_scale[row] : q_scale[row];
            x[j] = hold(scaled(scaled(x[j], columns[column][j % 2]), scale));
            if (i < TILES && 2 * t + j % 2 > g) x[j] = 0.0f;  // a later token
        }
        grams[i] = {x[0], x[1]};
        reads[i] = {x[2], x[3]};
        if (i < TILES)
            sts64(shared + G + (i * TILE + g) * MATRIX_ROW + 2 * t * (u32)sizeof(float),
                  (u64)as_bits(x[1]) << 32 | as_bits(x[0]));
    }
}

// Column lane % 8 of a tile's T by forward substitution; the lanes take the tiles in turn.
HELPER void substitute(u32 shared, u32 lane)
{
    const u32 column = lane % TILE, tile = lane / TILE % TILES;
    const u32 matrix = shared + tile * TILE * MATRIX_ROW;
    float x[TILE];
#pragma unroll
    for (u32 t = 0; t < TILE; t++) {
        float rest = column == t ? 1.0f : 0.0f;
#pragma unroll
        for (u32 s = 0; s < t; s += 4) {
            const vec4 four = lds128(matrix + G + t * MATRIX_ROW + s * (u32)sizeof(float));
            const float g[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                if (s + i < t) rest = fmaf(-g[i], x[s + i], rest);
        }
        x[t] = carry(rest, lds(shared + BETA + (tile * TILE + t) * (u32)sizeof(float)));
    }
    sync_warp();
    if (lane < TILES * TILE) {
#pragma unroll
        for (u32 t = 0; t < TILE; t++)
            sts(matrix + T + t * MATRIX_ROW + column * (u32)sizeof(float), x[t]);
    }
    sync_warp();
}

// T and QT, as operands. With tiles 0 and 1:
//   T_10 = -T_11 X    Q_10 T_00 + Q_11 T_10 = Q_10 T_00 - (Q_11 T_11) X    X = G_10 T_00
HELPER void solve(const kda_verify_params &p, u32 shared, u32 lane)
{
    block grams[GRAMS], reads[GRAMS];
    add_grams(p, shared, lane, grams, reads);
    sync_warp();
    substitute(shared, lane);

    parts rows[TILES], columns[TILES];  // of T, as one operand and as the other
#pragma unroll
    for (u32 i = 0; i < TILES; i++) {
        const u32 matrix = shared + T + i * TILE * MATRIX_ROW;
        const pair row = lds_pair(matrix + lane / 4 * MATRIX_ROW + lane % 4 * (u32)sizeof(pair));
        const u32 column = matrix + lane % 4 * 2 * MATRIX_ROW + lane / 4 * (u32)sizeof(float);
        rows[i] = split_bf16(row.x, row.y);
        columns[i] = split_bf16(lds(column), lds(column + MATRIX_ROW));
    }
    const parts none = {0, 0};
    float first[4] = {};  // Q_00 T_00 and Q_10 T_00
    multiply_blocks(first, split_block(reads[0]), TILES == 2 ? split_block(reads[GRAMS - 1]) : none,
                    columns[0]);
    store_solve(shared, 0, rows[0], split_bf16(hold(first[0]), hold(first[1])), lane);
    if (TILES == 2) {
        float second[4] = {}, x[4] = {};
        multiply_blocks(second, split_block(reads[1 % GRAMS]), none, columns[1 % TILES]);
        const parts read = split_bf16(hold(second[0]), hold(second[1]));
        store_solve(shared, 1, rows[1 % TILES], read, lane);
        multiply_blocks(x, split_block(grams[GRAMS - 1]), none, columns[0]);
        const parts minus = split_bf16(-hold(x[0]), -hold(x[1]));
        float across[4] = {0.0f, 0.0f, first[2], first[3]};
        multiply_blocks(across, rows[1 % TILES], read,
                        {transpose(minus.high, lane), transpose(minus.lost, lane)});
        store_solve(shared, 2, split_bf16(hold(across[0]), hold(across[1])),
                    split_bf16(hold(across[2]), hold(across[3])), lane);
    }
}

// ---- the state

// A warp's rows, 16 bytes per lane and turn: two rows.
HELPER void copy_state(u32 to, u64 from, u32 lane)
{
    const u32 half = lane / 16;
    const u32 place = half * (u32)ROW_BYTES + (lane % 16 ^ 4 * half) * (u32)sizeof(quad);
#pragma unroll
    for (u32 i = 0; i < WARP_ROWS / 2; i++)
        copy_quad(to + place + i * 2 * (u32)ROW_BYTES,
                  from + lane * sizeof(quad) + i * 2 * ROW_BYTES);
}

// S0.khat and S0.qhat of all tokens and of the value rows that are the lane's columns.
HELPER void multiply_state(u32 shared, float (&product)[TILES][COLUMNS][4], u32 lane)
{
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

// A lane's rows of v and of the output: at once where that is known to be aligned.
HELPER void load_rows(u64 address, bool wide, u32 (&x)[COLUMNS])
{
    if (!wide) {
#pragma unroll 1
        for (u32 i = 0; i < LANE_ROWS; i++) {
#pragma unroll
            for (u32 j = 0; j + 1 < COLUMNS; j++) x[j] = x[j] >> 16 | x[j + 1] << 16;
            x[COLUMNS - 1] = x[COLUMNS - 1] >> 16 | load16(address + 2 * i) << 16;
        }
    } else if constexpr (COLUMNS == 4) {
        const quad words = load128(address);
        x[0] = words.x, x[1] = words.y, x[2] = words.z, x[3] = words.w;
    } else if constexpr (COLUMNS == 2) {
        const u64 words = load64(address);
        x[0] = (u32)words, x[1] = (u32)(words >> 32);
    } else {
        x[0] = load32(address);
    }
}

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
    } else if constexpr (COLUMNS == 2) {
        store64(address, (u64)x[1] << 32 | x[0]);
    } else {
        store32(address, x[0]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, OCCUPANCY)
    kda_verify_t2_8_precomputed_wy_split4(const __grid_constant__ struct kda_verify_params p)
{
    begin_grid();
    const u32 lane = threadIdx.x % 32, warp = uniform(threadIdx.x / 32);
    const u32 head = blockIdx.x / SPLIT, first_row = blockIdx.x % SPLIT * ROWS;
    const u32 eighth = 4 * warp + lane % 4;
    const u32 query_head = find_query_head(p, head);
    const gate gate = load_gate(p, query_head, eighth);
    const window w = find_window(p, blockIdx.y);
    if (w.present == 0) return;
    if (!w.live) {
        store_null(p, w, head, first_row);
        return;
    }

    // A token that is not there has q = k = 0 and beta = 0.
    const u32 shared = shared_base(), row = warp * WARP_ROWS;
    token_words words[TILES] = {};
#pragma unroll
    for (u32 i = 0; i < TILES; i++) {
        const u32 t = i * TILE + lane / 4;
        if (t < w.present)
            words[i] = load_token(p, find_token(p, w.token + t, query_head, head, eighth));
    }
    copy_state(shared + STATE + row * (u32)ROW_BYTES,
               state_address(p, w.slot, head, first_row + row), lane);
    if (threadIdx.x == 0) sts_quad(shared + WINDOW, {w.token, w.present, (u32)w.slot, 0});
    if (warp == 0 && lane % 4 == 0) {
#pragma unroll
        for (u32 i = 0; i < TILES; i++) {
            const u32 t = i * TILE + lane / 4;
            float beta = widen_bf16(words[i].beta);
            if (p.beta_is_logit) beta = sigmoid(beta);
            sts(shared + BETA + t * sizeof(float), t < w.present ? beta : 0.0f);
        }
    }
    if (p.kg && blockIdx.x % SPLIT == 0) {
#pragma unroll
        for (u32 i = 0; i < TILES; i++) {
            const u32 t = i * TILE + lane / 4;
            if (t < w.present) store_kg(kg_address(p, w.slot, head, t), words[i], eighth);
        }
    }

    // One tile after the other: side by side they do not fit into the registers.
    factors first = {};
#pragma unroll 1
    for (u32 i = 0; i < TILES; i++) {
        const token_words &a = words[0], &b = words[TILES - 1];
        const token_words own = {choose(i == 0, a.q, b.q), choose(i == 0, a.k, b.k),
                                 choose(i == 0, a.g, b.g), 0};
        factors x = make_factors(p, own, gate, shared, i, (int)(w.present - i * TILE), warp, lane);
        if (i == 1) join_tiles(shared, first, x, warp, lane);
        store_hats(shared, x, i, warp, lane);
        first = x;
    }
    const u32 lane_row = first_row + row + lane % 4 * LANE_ROWS;
    u32 v[TILES][COLUMNS] = {};
#pragma unroll
    for (u32 i = 0; i < TILES; i++) {
        const u32 t = i * TILE + lane / 4;
        if (t < w.present)
            load_rows(p.v + ((w.token + t) * (u64)p.v_stride + (u64)head * DIM + lane_row) *
                                sizeof(u16), p.wide, v[i]);
    }
    sync_cta();
    if (warp == 0) solve(p, shared, lane);

    float product[TILES][COLUMNS][4] = {};
    wait_copies();
    sync_warp();
    multiply_state(shared, product, lane);
    sync_cta();
    const quad end = lds_quad(shared + WINDOW);  // what was in registers lies in shared memory
    const u32 token = end.x, present = end.y;
    const int slot = (int)end.z;

    // u of a lane's token and rows, in two bf16, as rows of tokens; then as columns.
    parts u[TILES][COLUMNS];
#pragma unroll
    for (u32 i = 0; i < TILES; i++) {
        const u32 address = shared + (i * TILE + lane / 4) * (u32)sizeof(float);
        const float k_scale = lds(address + K_SCALE), q_scale = lds(address + Q_SCALE);
#pragma unroll
        for (u32 j = 0; j < COLUMNS; j++) {
            float(&y)[4] = product[i][j];
            const parts two =
                split_bf16(fmaf(-k_scale, y[0], as_float(v[i][j] << 16)),
                           fmaf(-k_scale, y[1], as_float(v[i][j] & 0xffff0000u)));
            u[i][j] = {transpose(two.high, lane), transpose(two.lost, lane)};
            y[0] = 0.0f;
            y[1] = 0.0f;
            y[2] = y[2] * q_scale;
            y[3] = y[3] * q_scale;
        }
    }
#pragma unroll
    for (u32 i = 0; i < TILES; i++) {
        // w on top of o, from the tokens of this tile and of those before it.
#pragma unroll
        for (u32 s = 0; s <= i; s++) {
            const quad x = lds_quad(shared + SOLVE + (i == s ? i : 2) * FRAGMENT +
                                    lane * (u32)sizeof(quad));
#pragma unroll
            for (u32 j = 0; j < COLUMNS; j++)
                multiply_blocks(product[i][j], {x.x, x.z}, {x.y, x.w}, u[s][j]);
        }
        const u32 t = i * TILE + lane / 4;
        if (t >= present) continue;
        u32 out[COLUMNS];
#pragma unroll
        for (u32 j = 0; j < COLUMNS; j++) out[j] = pack_bf16(product[i][j][2], product[i][j][3]);
        store_rows(out_address(p, token + t, head, lane_row), out);
        const u64 correction = correction_address(p, slot, head, t);
        if (correction) {
#pragma unroll
            for (u32 j = 0; j < COLUMNS; j++)
                store64(correction + (lane_row + 2 * j) * sizeof(float),
                        (u64)as_bits(product[i][j][1]) << 32 | as_bits(product[i][j][0]));
        }
    }
}
