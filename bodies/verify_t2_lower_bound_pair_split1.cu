// SPDX-License-Identifier: Apache-2.0
// Generated from gen/verify_pair.cu.in, what it includes, and manifest/params.h for the row
// verify_t2_lower_bound_pair_split1 of manifest/schedules.inc.
// Frozen: edit the template or the row, then run `ninja -C build regen`.
//
// Frozen verify of two tokens, a warp alone: from the tokens to the outputs of its value rows it waits
// for no other one. With d the decay of a token, and its number behind each name:
//
//   khat0 = d0*k0    khat1 = d0*d1*k1    G = sum d1*k0*k1
//   qhat0 = d0*q0    qhat1 = d0*d1*q1    Q = sum d1*k0*q1
//
//   w0 = beta0 * (v0 - S0.khat0)           o0 = S0.qhat0 + w0*(k0.q0)
//   w1 = beta1 * (v1 - S0.khat1 - G*w0)    o1 = S0.qhat1 + w1*(k1.q1) + Q*w0
//
// q and k are normalized in what they become. The state after the tokens is nobody's.
//
//   1. Tokens. A half-warp has one of them, lane l of its 16 the channels 8*l to 8*l + 7. They become
//      hats, in shared memory, and the lane's parts of the sums without a state.
//   2. The state by the hats, on the matrix unit.
//   3. A lane collects all products of one value row and takes it through both tokens. So does the
//      lane beside it; each stores what becomes of one token.
//
// Matrix unit. Value rows are rows, 16 in a tile. Columns are the hats, each as a bf16 and as what its
// rounding lost: khat0, khat1, qhat0, qhat1, then what these lost. With g = lane / 4 and t = lane % 4
// a lane has of column g, of row g and of row g + 8 the channels 32*i + 8*t to 32*i + 8*t + 7: 16
// bytes, which serve two steps of 16 channels.
//
// Bounded at small N by the latency of the slot and then of tokens and state; at large N by the
// bandwidth of one read of the state. The tokens are asked for first, for what becomes of them takes
// longer than the state.

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
constexpr int TOKENS = 2, SPLIT = 1, THREADS = 128, SMEM = 43008;
constexpr int OCCUPANCY = 5;

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

// Of the lanes: what one of them has left in shared memory is there for the others.
HELPER void sync_warp()
{
#ifdef KDA_SOFT_DEVICE
    soft_sync_warp(__LINE__);
#else
    __syncwarp();
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

constexpr u32 WARPS = THREADS / 32;
constexpr u32 WARP_ROWS = ROWS / WARPS;
constexpr u32 TILE = 16, TILES = WARP_ROWS / TILE;
constexpr u32 QUARTERS = 4;  // of a row: 16 bytes of each of its 4 lanes
static_assert(TOKENS == 2 && WARPS * TILES * TILE == (u32)ROWS, "two tokens, whole tiles");

// Shared memory of a warp: the columns, and 64 bytes behind each, so that the lanes of two of them
// meet no bank twice; the state's rows, see copy_state, for the same reason.
constexpr u32 COLUMN = DIM * sizeof(u16) + 64;
constexpr u32 KHAT = 0, QHAT = 2 * COLUMN, LOST = 4 * COLUMN;
constexpr u32 STATE = 8 * COLUMN, WARP_BYTES = STATE + WARP_ROWS * (u32)ROW_BYTES;
static_assert(SMEM == WARPS * WARP_BYTES, "the row's smem");

// For `hold`, where only a growing gate comes to it: of products of decays 2^40, of G and, without its
// scale, Q 2^14. A normalized key's product with the state is then within 2^47 times the state, w1 and
// the outputs within 2^77 times. Of raw vectors times decays 2^64, beyond which a norm overflows; what
// is not normalized yet must stay finite times the state.
constexpr float DECAY_LIMIT = 1.099511627776e12f, ACROSS_LIMIT = 16384.0f;
constexpr float VECTOR_LIMIT = 1.8446744073709552e19f;
// What is within 2^64 is made this much smaller for G and Q: times another such vector it is finite,
// summed over the channels too.
constexpr float SMALLER = 0.00390625f;

// Sums over the channels that need no state: of each token k.k, q.q and k.q; of the second one G
// and Q. What the first one's half-warp has in their places is nothing.
constexpr u32 KK = 0, QQ = 1, KQ = 2, G = 3, Q = 4, SUMS = 8;

// ---- tokens

// What a lane has of its token, and the first token's k.
struct inputs {
    token_words words;
    quad first_k;
};

template <bool WIDE>
HELPER void load_inputs(const token_address &first, const token_address &own, bool there, inputs &x)
{
    x.first_k = WIDE ? load128(first.k) : load16x8(first.k);
    if (there) x.words = load_words<WIDE>(own);
}

HELPER void store_column(u32 address, const float (&x)[LANE_CHANNELS])
{
    const parts a = split_bf16(x[0], x[1]), b = split_bf16(x[2], x[3]);
    const parts c = split_bf16(x[4], x[5]), d = split_bf16(x[6], x[7]);
    sts_quad(address, {a.high, b.high, c.high, d.high});
    sts_quad(address + LOST, {a.lost, b.lost, c.lost, d.lost});
}

// The hats of a lane's token, and its parts of the sums.
HELPER void make_hats(const kda_verify_params &p, const inputs &x, const gate &gate, u32 shared,
                      u32 lane, float (&sums)[SUMS])
{
    const bool second = lane / 16;
    float q[LANE_CHANNELS], k[LANE_CHANNELS], d[LANE_CHANNELS], first_k[LANE_CHANNELS];
    unpack_bf16(x.words.q, q);
    unpack_bf16(x.words.k, k);
    unpack_bf16(x.first_k, first_k);
    sums[KK] = dot(k, k);
    sums[QQ] = dot(q, q);
    sums[KQ] = dot(k, q);
    make_decays(p, gate, x.words.g, lane, d);
#pragma unroll
    for (int c = 0; c < LANE_CHANNELS; c++)
        first_k[c] = hold(first_k[c] * d[c], VECTOR_LIMIT) * SMALLER;
    sums[G] = dot(first_k, k);
    sums[Q] = dot(first_k, q);
#pragma unroll
    for (int c = 0; c < LANE_CHANNELS; c++) {
        const float both = d[c] * shuffle_xor(d[c], 16);
        d[c] = hold(second ? both : d[c], DECAY_LIMIT);
        k[c] = hold(k[c] * d[c], VECTOR_LIMIT);
        q[c] = hold(q[c] * d[c], VECTOR_LIMIT);
    }
    const u32 column = shared + lane / 16 * COLUMN + lane % 16 * (u32)sizeof(quad);
    store_column(column + KHAT, k);
    store_column(column + QHAT, q);
}

// What takes a row through both tokens.
struct terms {
    float k_scale[2], q_scale[2], kq[2], beta[2];
    float g, q;
};

HELPER terms make_terms(const kda_verify_params &p, const float (&sums)[SUMS], float beta, u32 lane)
{
    terms x;
    const float sum = sum_half(sums, lane);
    constexpr u32 LANES = 16 / SUMS;  // that have the same sum
#pragma unroll
    for (u32 t = 0; t < 2; t++) {
        const u32 from = 16 * t;
        x.k_scale[t] = rsqrt_fast(shuffle_from(sum, from + KK * LANES) + EPSILON);
        x.q_scale[t] = make_q_scale(p, shuffle_from(sum, from + QQ * LANES));
        x.kq[t] = scaled(scaled(shuffle_from(sum, from + KQ * LANES), x.k_scale[t]), x.q_scale[t]);
        x.beta[t] = shuffle_from(beta, from);
    }
    const float g = scaled(shuffle_from(sum, 16 + G * LANES), x.k_scale[0]);
    const float q = scaled(shuffle_from(sum, 16 + Q * LANES), x.k_scale[0]);
    x.g = hold(scaled(g, x.k_scale[1]) / SMALLER, ACROSS_LIMIT);
    x.q = hold(scaled(q, x.q_scale[1]) / SMALLER, ACROSS_LIMIT * fabsf(p.scale));
    return x;
}

// ---- the state

// The warp's rows by its columns, in two sums each: a step waits for the one before.
HELPER void multiply_state(u32 shared, float (&product)[TILES][4], u32 lane)
{
    const u32 g = lane / 4, part = lane % 4 * (u32)sizeof(quad);
    float other[TILES][4] = {};
#pragma unroll
    for (u32 quarter = 0; quarter < QUARTERS; quarter++) {
        const quad hat = lds_quad(shared + g * COLUMN + quarter * 4 * (u32)sizeof(quad) + part);
        const u32 row = shared + STATE + g * (u32)ROW_BYTES +
                        (quarter ^ g % 2) * 4 * (u32)sizeof(quad) + part;
#pragma unroll
        for (u32 i = 0; i < TILES; i++) {
            const quad a = lds_quad(row + i * TILE * (u32)ROW_BYTES);
            const quad b = lds_quad(row + (i * TILE + 8) * (u32)ROW_BYTES);
            const u32 low[4] = {a.x, b.x, a.y, b.y}, high[4] = {a.z, b.z, a.w, b.w};
            multiply_tile(product[i], low, hat.x, hat.y);
            multiply_tile(other[i], high, hat.z, hat.w);
        }
    }
#pragma unroll
    for (u32 i = 0; i < TILES; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++) product[i][j] = product[i][j] + other[i][j];
}

// ---- rows

// Of a tile, the row whose products a lane collects.
HELPER u32 own_row(u32 lane) { return lane / 4 + lane / 2 % 2 * 8; }

// That row's products with khat and with qhat of both tokens. Of rows g and g + 8 a lane had two
// columns, of the row it keeps those and what they lost.
HELPER void collect_row(const float (&x)[4], u32 lane, float (&k)[2], float (&q)[2])
{
    const bool upper = lane & 2, odd = lane & 1;
#pragma unroll
    for (u32 t = 0; t < 2; t++) {
        const float keep = upper ? x[t + 2] : x[t], give = upper ? x[t] : x[t + 2];
        const float mine = keep + shuffle_xor(give, 2), other = shuffle_xor(mine, 1);
        k[t] = odd ? other : mine;
        q[t] = odd ? mine : other;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, OCCUPANCY)
    kda_verify_t2_lower_bound_pair_split1(const __grid_constant__ struct kda_verify_params p)
{
    begin_grid();
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 head = blockIdx.x / SPLIT, first_row = blockIdx.x % SPLIT * ROWS + warp * WARP_ROWS;
    const u32 query_head = find_query_head(p, head);
    const window w = find_window(p, blockIdx.y);
    // In the shadow of tokens and slot: what the addresses have from neither, and the gate.
    token_address first = find_token(p, 0, query_head, head, lane);
    u64 state = state_address(p, 0, head, first_row) + lane * sizeof(quad);
    u64 value = value_address(p, 0, head, first_row + own_row(lane));
    u64 out = out_address(p, 0, head, first_row + own_row(lane));
    compute_here(first.q), compute_here(first.k), compute_here(first.g), compute_here(first.beta);
    compute_here(state), compute_here(value), compute_here(out);
    const gate gate = load_gate(p, query_head, lane);
    const u32 shared = shared_base() + warp * WARP_BYTES;
    // A null row goes on without its inputs and with the state that shared memory happens to hold,
    // and stores nothing but zeros. So the loads have a block of their own: where the branch was a
    // return, the assembler asked for the state behind the wait for the tokens.
    inputs x = {};
    u32 v[TILES][2] = {};
    if (w.present != 0 && w.live) {
        move_token(p, first, w.token);
        token_address own = first;
        move_token(p, own, lane / 16);
        const bool both = w.present > 1, there = both || lane / 16 == 0;
        if (p.wide)
            load_inputs<true>(first, own, there, x);
        else
            load_inputs<false>(first, own, there, x);
        value += 2 * w.token * (u64)p.v_stride;
#pragma unroll
        for (u32 i = 0; i < TILES; i++) {
            v[i][0] = load16(value + i * TILE * sizeof(u16));
            if (both) v[i][1] = load16(value + i * TILE * sizeof(u16) + 2 * (u64)p.v_stride);
        }
        state += (u32)w.slot * (u64)p.slot_stride * sizeof(u16);
        copy_state<WARP_ROWS>(shared + STATE, state, lane);
    }
    keep_order();
    if (w.present == 0) return;

    float sums[SUMS] = {};
    make_hats(p, x, gate, shared, lane, sums);
    wait_copies();
    sync_warp();
    float product[TILES][4] = {};
    multiply_state(shared, product, lane);
    const terms terms = make_terms(p, sums, make_beta(p, widen_bf16(x.words.beta)), lane);

    const u32 t = lane % 2;  // the token whose results the lane stores
    out += 2 * (w.token + t) * (u64)p.out_stride;
    u64 correction = 0;
    if (w.live) correction = correction_address(p, w.slot, head, t);
#pragma unroll
    for (u32 i = 0; i < TILES; i++) {
        float k[2], q[2];
        collect_row(product[i], lane, k, q);
        const float w0 = terms.beta[0] * (widen_bf16(v[i][0]) - scaled(k[0], terms.k_scale[0]));
        const float rest = widen_bf16(v[i][1]) - scaled(k[1], terms.k_scale[1]);
        const float w1 = terms.beta[1] * fmaf(-terms.g, w0, rest);
        const float o0 = fmaf(terms.kq[0], w0, scaled(q[0], terms.q_scale[0]));
        const float o1 =
            fmaf(terms.kq[1], w1, fmaf(terms.q, w0, scaled(q[1], terms.q_scale[1])));
        if (t >= w.present) continue;
        store_bf16(out + i * TILE * sizeof(u16), w.live ? t == 0 ? o0 : o1 : 0.0f);
        if (correction)
            store32(correction + (first_row + i * TILE + own_row(lane)) * sizeof(float),
                    as_bits(t == 0 ? w0 : w1));
    }
    if (w.live && first_row == 0 && lane / 16 < w.present) {
        const u64 kg = kg_address(p, w.slot, head, lane / 16);
        if (kg) store_kg(kg, x.words, lane);
    }
}
