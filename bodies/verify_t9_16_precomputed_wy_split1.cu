// SPDX-License-Identifier: Apache-2.0
// Generated from gen/verify_wy.cu.in, what it includes, and manifest/params.h for the row
// verify_t9_16_precomputed_wy_split1 of manifest/schedules.inc.
// Frozen: edit the template or the row, then run `ninja -C build regen`.
//
// Frozen verify in closed form: all tokens of a window meet the state in one matrix product. With
// P_t the product of the decays up to token t, khat_t = P_t*kn_t, qhat_t = P_t*qn_t, R_ts the product
// of the decays after token s up to t, G_ts = sum kn_t*kn_s*R_ts and Q_ts = sum qn_t*kn_s*R_ts:
//
//   w_t = beta_t * (v_t - S0.khat_t - sum_{s<t} G_ts*w_s)    o_t = S0.qhat_t + sum_{s<=t} Q_ts*w_s
//
//   1. State, tokens. Every warp asks for its tokens and its value rows of the state; half-warps
//      make the vectors of one token each and leave them in shared memory.
//   2. Grams, hats. A half-warp carries COLUMNS columns kn_s*R_ts from token to token, in f32; the
//      last warp also carries P_t and leaves the hats as pairs of bf16, the number and what its
//      rounding lost.
//   3. Product, on the matrix units: 16 value rows by 8 vectors, the state exact, the hats twice.
//   4. Solve. One thread per value row substitutes forward through all tokens in f32.
//
// Every factor is a product of single decays, so nothing is divided and nothing overflows where the
// gate does not grow. Bounded by the bandwidth of one read of the state when there are many heads.
//
// Lanes of the product. With g = lane / 4 and t = lane % 4, a lane has of value rows g and g + 8 of
// a tile, and of vector g of a tile, the channels 32*c + 8*t to 32*c + 8*t + 7 for c = 0 .. 3: 16
// bytes serve two steps of 16 channels, and the state needs no shared memory. Vectors 2*t and 2*t + 1
// are khat and qhat of token t.

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
    unsigned long long q, k;                    // [tok, H, 128] bf16
    unsigned long long v, g;                    // [tok, HV, 128] bf16
    unsigned long long beta;                    // [tok, HV] bf16
    unsigned long long a_log, dt_bias;          // [H] and [H, 128] f32, or 0; an omitted dt_bias is zero
    unsigned long long state;                   // [num_slots, HV, 128, 128] bf16, key channel fastest, only read
    unsigned long long out;                     // [tok, HV, 128] bf16
    unsigned long long cu_seqlens;              // [rows + 1] i32, or 0: row n owns tokens n*T .. n*T + T - 1
    unsigned long long indices;                 // [rows] i32, or 0: slot n
    unsigned long long correction, kg;          // [num_slots, HV, T_cache, 128] f32 and [.., 256] bf16, or both 0
    long long q_stride, k_stride;               // token strides
    long long v_stride, g_stride, beta_stride, out_stride;
    long long slot_stride;                      // between two slots of the pool
    long long correction_strides[3], kg_strides[3];  // slot, value head, token
    long long tok;                              // packed tokens of the call
    int num_slots, null_min, rows;              // slots of the pool; the first live slot; N
    int tokens;                                 // T_max: a longer row is cut there
    int heads, value_heads;                     // H, HV; HV is a multiple of H
    struct kda_divisor query;                   // head hv reads query head hv / (HV/H)
    int beta_is_logit;                          // 1: beta goes through a sigmoid in the kernel
    float scale, lower_bound;                   // q scale; lower bound of the gate, 0 where it has none
    int reserved;                               // 0
};

// Of the row. OCCUPANCY is how many CTAs per SM the register cap must allow.
constexpr int TOKENS = 16, SPLIT = 1, THREADS = 128, SMEM = 43088;
constexpr int OCCUPANCY = 5;

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

// x within +-2^120; a NaN stays one.
HELPER float saturate(float x)
{
    const float limit = 1.329227995784916e36f;
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

// Branches on the sign: e^-|x| cannot overflow, so both limits are reached without a NaN.
HELPER float sigmoid(float x)
{
    const float e = exp_fast(-fabsf(x));
    const float s = reciprocal_fast(1.0f + e);
    return x >= 0.0f ? s : e * s;
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

HELPER void store32(u64 address, u32 x)
{
#ifdef KDA_SOFT_DEVICE
    memcpy(soft_global(address, 4, __LINE__), &x, 4);
#else
    asm volatile("st.global.u32 [%0], %1;" ::"l"(address), "r"(x) : "memory");
#endif
}

// Asks for what a later load will find in L2: 16-byte aligned, a multiple of 16 bytes.
HELPER void prefetch(u64 address, u32 size)
{
#ifdef KDA_SOFT_DEVICE
    (void)soft_global(address, 16, __LINE__);
    (void)soft_global(address + size - 16, 16, __LINE__);
#else
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(address), "r"(size));
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

// An element of v, for widen_bf16.
HELPER u32 load_value(const kda_verify_params &p, u32 token, u32 head, u32 row)
{
    return load16(p.v + (token * (u64)p.v_stride + (u64)head * DIM + row) * sizeof(u16));
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

template <bool ALIGNED = false>
HELPER token_words load_token(const kda_verify_params &p, u32 index, u32 query_head, u32 head,
                              u32 lane)
{
    const u64 channel = (lane % 16) * LANE_CHANNELS;
    const u64 query = (u64)query_head * DIM + channel, value = (u64)head * DIM + channel;
    return {load_channels<ALIGNED>(p.q + 2 * (index * (u64)p.q_stride + query)),
            load_channels<ALIGNED>(p.k + 2 * (index * (u64)p.k_stride + query)),
            load_channels<ALIGNED>(p.g + 2 * (index * (u64)p.g_stride + value)),
            load16(p.beta + 2 * (index * (u64)p.beta_stride + head))};
}

// Where both halves of a warp have the same token, each makes the decay of four of a lane's
// channels for both.
constexpr int GATE_PARTS = 1;

struct gate {};  // g is the log decay

template <bool ALIGNED = false> HELPER gate load_gate(const kda_verify_params &, u32, u32) { return {}; }

HELPER token make_token(const kda_verify_params &p, const token_words &words, const gate &gate,
                        u32 lane)
{
    token t;
    float g[LANE_CHANNELS];
    unpack_bf16(words.q, t.q);
    unpack_bf16(words.k, t.k);
    unpack_bf16(words.g, g);
    (void)gate;
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
        t.d[c] = exp_fast(g[c]);
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
    i64 begin = n * (i64)p.tokens, end = begin + p.tokens;
    if (p.cu_seqlens) {
        begin = load_i32(p.cu_seqlens + 4 * (u64)n);
        end = load_i32(p.cu_seqlens + 4 * (u64)n + 4);
    }
    i64 length = end - begin;
    if (length > p.tok - begin) length = p.tok - begin;
    if (length > p.tokens) length = p.tokens;
    w.token = (u32)begin;
    w.present = begin < 0 || length < 0 ? 0 : (u32)length;
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

constexpr u32 WARPS = THREADS / 32;
constexpr u32 ROUNDS = TOKENS / (2 * WARPS);  // tokens that a half-warp makes
constexpr u32 COLUMNS = ROUNDS;               // of G and Q that a half-warp carries

constexpr u32 TILE_ROWS = 16, TILE_TOKENS = 4;
constexpr u32 ROW_TILES = ROWS / TILE_ROWS, TOKEN_TILES = TOKENS / TILE_TOKENS;
// Warps have row tiles of their own, or share one and take every SHARES-th token tile of it.
constexpr u32 WARP_ROW_TILES = ROW_TILES < WARPS ? 1 : ROW_TILES / WARPS;
constexpr u32 SHARES = WARPS * WARP_ROW_TILES / ROW_TILES;
constexpr u32 WARP_TOKEN_TILES = TOKEN_TILES / SHARES;
constexpr u32 STEPS = DIM / 32, STEP_BYTES = 64;  // of 32 channels
constexpr u32 AHEAD = 2;                          // steps of the state that are in registers
static_assert(ROUNDS * 2 * WARPS == TOKENS && SHARES * WARP_TOKEN_TILES == TOKEN_TILES &&
                  SHARES * ROW_TILES == WARPS * WARP_ROW_TILES,
              "whole shares");

// Shared memory. The hats: 2*TOKENS vectors of bf16, then what their rounding lost. The vectors of
// the tokens in f32, and over them, once the Gram matrices are done, the product, which is for each
// value row the pairs S0.khat, S0.qhat of all tokens, and the CTA's part of v in bf16. The pairs G, Q
// of all s, t. Beta. The window's first token, which is not needed until the end.
constexpr u32 HAT_BYTES = DIM * sizeof(u16), VECTOR_BYTES = DIM * sizeof(float);
constexpr u32 HATS = 0, LOST = 2 * TOKENS * HAT_BYTES;
constexpr u32 VECTORS = 2 * LOST, K = 0, Q = VECTOR_BYTES, D = 2 * VECTOR_BYTES;
constexpr u32 TOKEN_BYTES = 3 * VECTOR_BYTES;
constexpr u32 PRODUCT = VECTORS, PRODUCT_BYTES = TOKENS * 8 + 16;  // 16: off the banks of other rows
constexpr u32 V = PRODUCT + ROWS * PRODUCT_BYTES;
constexpr u32 GRAM = VECTORS + TOKENS * TOKEN_BYTES, BETA = GRAM + TOKENS * TOKENS * 8;
constexpr u32 FIRST = BETA + TOKENS * sizeof(float);
static_assert(SMEM == FIRST + 16, "the row's smem");
static_assert(V + TOKENS * ROWS * sizeof(u16) <= GRAM, "product and v fit over the vectors");

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

HELPER u32 vector_offset(u32 channel)
{
    return channel / 8 * 16 + channel % 8 / 4 * (VECTOR_BYTES / 2) + channel % 4 * 4;
}

// Where 8 channels of a hat lie: eight lanes that read two hats reach all banks.
HELPER u32 hat_address(u32 hat, u32 eighth) { return hat * HAT_BYTES + (eighth ^ hat % 2 * 4) * 16; }

// A decay carried into a product of decays. Where the gate may grow, the product stays finite.
HELPER float carry(float x, float d)
{
    return saturate(x * d);
}

// The hats of all tokens: a warp has 32 channels, a lane two of them, of khat in the lower half-warp
// and of qhat in the upper.
HELPER void make_hats(u32 shared, u32 present, u32 warp, u32 lane)
{
    const u32 half = lane / 16, channel = warp * 32 + lane % 16 * 2;
    const u32 place = vector_offset(channel), from = half ? Q : K;
    float low = 1.0f, high = 1.0f;  // P
#pragma unroll 1
    for (u32 t = 0; t < present; t++) {
        const u32 token = shared + VECTORS + t * TOKEN_BYTES + place;
        const pair d = lds_pair(token + D), x = lds_pair(token + from);
        low = carry(low, d.x);
        high = carry(high, d.y);
        const float a = carry(x.x, low), b = carry(x.y, high);
        const u32 hat = pack_bf16(a, b);
        const u32 lost = pack_bf16(a - as_float(hat << 16), b - as_float(hat & 0xffff0000u));
        const u32 address =
            shared + hat_address(2 * t + half, channel / LANE_CHANNELS) + channel % LANE_CHANNELS * 2;
        sts(address + HATS, as_float(hat));
        sts(address + LOST, as_float(lost));
    }
}

// Below the diagonal of the columns that belong to this half-warp.
HELPER void make_grams(u32 shared, u32 present, u32 warp, u32 lane)
{
    const u32 first = (2 * warp + lane / 16) * COLUMNS;
    const u32 value = lane % 16 / (16 / (2 * COLUMNS));  // of the sums below, the lane's
    const u32 own = first + value / 2;
    float y[COLUMNS][LANE_CHANNELS];
#pragma unroll
    for (u32 i = 0; i < COLUMNS; i++)
        load_vector(shared + VECTORS + (first + i) * TOKEN_BYTES + K, lane, y[i]);
#pragma unroll 1
    for (u32 t = 2 * warp * COLUMNS + 1; t < present; t++) {
        const u32 token = shared + VECTORS + t * TOKEN_BYTES;
        float d[LANE_CHANNELS], k[LANE_CHANNELS], q[LANE_CHANNELS], sums[2 * COLUMNS];
        load_vector(token + D, lane, d);
        load_vector(token + K, lane, k);
        load_vector(token + Q, lane, q);
#pragma unroll
        for (u32 i = 0; i < COLUMNS; i++) {
            if (t > first + i) {
#pragma unroll
                for (int c = 0; c < LANE_CHANNELS; c++) y[i][c] = carry(y[i][c], d[c]);
            }
            sums[2 * i] = dot(k, y[i]);
            sums[2 * i + 1] = dot(q, y[i]);
        }
        const float sum = sum_half(sums, lane);
        if (lane % (16 / (2 * COLUMNS)) == 0 && t > own)
            sts(shared + GRAM + (own * TOKENS + t) * 8 + value % 2 * 4, sum);
    }
}

// Of a warp's row tiles, step after step, the two rows of a lane.
HELPER void load_step(u64 state, u32 step, quad (&rows)[2])
{
    const u64 address =
        state + step / STEPS * TILE_ROWS * ROW_BYTES + step % STEPS * STEP_BYTES;
    rows[0] = load_state(address);
    rows[1] = load_state(address + 8 * ROW_BYTES);
}

// Forward substitution for one value row, through at most N tokens; the fewest whole tiles of tokens
// that hold them all.
template <u32 N>
HELPER void solve(const kda_verify_params &p, const window &w, u32 shared, u32 head, u32 row)
{
    if constexpr (N > TILE_TOKENS) {
        if (w.present <= N - TILE_TOKENS) return solve<N - TILE_TOKENS>(p, w, shared, head, row);
    }
    // Of token t, what is left of v and what has been read out.
    float rest[N], read[N];
    const u32 own = row % ROWS;
#pragma unroll
    for (u32 t = 0; t < N; t += 2) {
        const vec4 x = lds128(shared + PRODUCT + own * PRODUCT_BYTES + t * 8);
        const u32 v = shared + V + (t * ROWS + own) * sizeof(u16);
        rest[t] = as_float((u32)lds16(v) << 16) - x.x;
        rest[t + 1] = as_float((u32)lds16(v + ROWS * sizeof(u16)) << 16) - x.z;
        read[t] = x.y;
        read[t + 1] = x.w;
    }
    u64 out = out_address(p, as_bits(lds(shared + FIRST)), head, row);
    u64 correction = correction_address(p, w.slot, head, 0);
    if (correction) correction += row * sizeof(float);
#pragma unroll
    for (u32 s = 0; s < N; s++) {
        if (s >= w.present) return;
        const float x = lds(shared + BETA + s * sizeof(float)) * rest[s];
#pragma unroll
        for (u32 t = s / 2 * 2; t < N; t += 2) {
            const vec4 gq = lds128(shared + GRAM + (s * TOKENS + t) * 8);
            if (t > s) rest[t] = fmaf(-x, gq.x, rest[t]);
            if (t >= s) read[t] = fmaf(x, gq.y, read[t]);
            if (t + 1 > s) rest[t + 1] = fmaf(-x, gq.z, rest[t + 1]);
            read[t + 1] = fmaf(x, gq.w, read[t + 1]);
        }
        store_bf16(out, read[s]);
        out += (u64)p.out_stride * sizeof(u16);
        if (correction) {
            store32(correction, as_bits(x));
            correction += (u64)p.correction_strides[2] * sizeof(float);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, OCCUPANCY)
    kda_verify_t9_16_precomputed_wy_split1(const __grid_constant__ struct kda_verify_params p)
{
    begin_grid();
    const u32 lane = threadIdx.x % 32, half = lane / 16;
    const u32 warp = uniform(threadIdx.x / 32);
    const u32 head = blockIdx.x / SPLIT, first_row = blockIdx.x % SPLIT * ROWS;
    const window w = find_window(p, blockIdx.y);
    if (w.present == 0) return;
    if (!w.live) {
        store_null(p, w, head, first_row);
        return;
    }

    // The state is on its way while the tokens are prepared, but in no register.
    const u32 shared = shared_base();
    if (threadIdx.x == 0) {
        prefetch(state_address(p, w.slot, head, first_row), ROWS * (u32)ROW_BYTES);
        sts(shared + FIRST, as_float(w.token));
    }

    // A half-warp without a token repeats its neighbour's.
    const u32 query_head = find_query_head(p, head);
    token_words words[ROUNDS] = {};
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) {
        const u32 t = 2 * (r * WARPS + warp), own = t + half < w.present ? t + half : t;
        if (t < w.present) words[r] = load_token(p, w.token + own, query_head, head, lane);
    }

    const gate gate = load_gate(p, query_head, lane);
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) {
        const u32 t = 2 * (r * WARPS + warp), own = t + half;
        if (t >= w.present) continue;
        const token token = make_token(p, words[r], gate, lane);
        if (own >= w.present) continue;  // a repetition
        const u32 address = shared + VECTORS + own * TOKEN_BYTES;
        store_vector(address + K, lane, token.k);
        store_vector(address + Q, lane, token.q);
        store_vector(address + D, lane, token.d);
        if (lane % 16 == 0) {
            sts(shared + BETA + own * sizeof(float), token.beta);
            sts(shared + GRAM + own * (TOKENS + 1) * 8 + 4, token.kq);  // the diagonal of Q
        }
        const u64 kg = kg_address(p, w.slot, head, own);
        if (kg && blockIdx.x % SPLIT == 0) store_kg(kg, words[r], lane);
    }
    // v is needed last. The CTA needs a part of it: some lanes have none.
    const u32 channel = lane % 16 * LANE_CHANNELS;
    quad v[ROUNDS] = {};
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) {
        const u32 own = 2 * (r * WARPS + warp) + half;
        if (own < w.present && channel < ROWS)
            v[r] = load_channels(p.v + ((w.token + own) * (u64)p.v_stride + (u64)head * DIM +
                                        first_row + channel) * sizeof(u16));
    }
    sync_cta();

    make_hats(shared, w.present, warp, lane);
    if (2 * warp * COLUMNS < w.present) make_grams(shared, w.present, warp, lane);
    const u32 row_tile = ROW_TILES < WARPS ? warp % ROW_TILES : warp * WARP_ROW_TILES;
    const u32 share = ROW_TILES < WARPS ? warp / ROW_TILES : 0;
    const u64 state = state_address(p, w.slot, head, first_row + row_tile * TILE_ROWS + lane / 4) +
                      lane % 4 * sizeof(quad);
    quad rows[AHEAD][2];
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++) load_step(state, i, rows[i]);

    sync_cta();
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) {
        const u32 own = 2 * (r * WARPS + warp) + half;
        if (own < w.present && channel < ROWS)
            sts_quad(shared + V + (own * ROWS + channel) * sizeof(u16), v[r]);
    }

#pragma unroll
    for (u32 i = 0; i < WARP_ROW_TILES; i++) {
        float product[WARP_TOKEN_TILES][4] = {};
#pragma unroll
        for (u32 c = 0; c < STEPS; c++) {
            const u32 step = i * STEPS + c;
            const quad a = rows[step % AHEAD][0], b = rows[step % AHEAD][1];
            const u32 low[4] = {a.x, b.x, a.y, b.y}, high[4] = {a.z, b.z, a.w, b.w};
            if (step + AHEAD < WARP_ROW_TILES * STEPS)
                load_step(state, step + AHEAD, rows[step % AHEAD]);
#pragma unroll
            for (u32 n = 0; n < WARP_TOKEN_TILES; n++) {
                const u32 tile = n * SHARES + share;
                if (tile * TILE_TOKENS >= w.present) break;
                const u32 address = shared + hat_address(tile * 8 + lane / 4, c * 4 + lane % 4);
                const quad hat = lds_quad(address + HATS), lost = lds_quad(address + LOST);
                multiply_tile(product[n], low, lost.x, lost.y);
                multiply_tile(product[n], low, hat.x, hat.y);
                multiply_tile(product[n], high, lost.z, lost.w);
                multiply_tile(product[n], high, hat.z, hat.w);
            }
        }
#pragma unroll
        for (u32 n = 0; n < WARP_TOKEN_TILES; n++) {
            const u32 tile = n * SHARES + share;
            if (tile * TILE_TOKENS >= w.present) break;
            const u32 row = (row_tile + i) * TILE_ROWS + lane / 4;
            const u32 address = shared + PRODUCT + row * PRODUCT_BYTES +
                                (tile * TILE_TOKENS + lane % 4) * 8;
            const float(&x)[4] = product[n];
            sts64(address, (u64)as_bits(x[1]) << 32 | as_bits(x[0]));
            sts64(address + 8 * PRODUCT_BYTES, (u64)as_bits(x[3]) << 32 | as_bits(x[2]));
        }
    }
    sync_cta();
    if (threadIdx.x >= ROWS) return;
    solve<TOKENS>(p, w, shared, head, first_row + threadIdx.x);
}
