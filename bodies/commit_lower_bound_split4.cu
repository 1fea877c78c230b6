// SPDX-License-Identifier: Apache-2.0
// Generated from gen/commit.cu.in, what it includes, and manifest/params.h for the row
// commit_lower_bound_split4 of manifest/schedules.inc.
// Frozen: edit the template or the row, then run `ninja -C build regen`.
//
// Commit in closed form. With a accepted tokens, R_t the product of the decays after token t and P
// that of all of them:
//
//   S <- S*P + sum_t w_t * (kn_t*R_t)
//
//   1. Keys. Every thread has one key channel of the cached keys and gates. From the last accepted
//      token to the first it sums the log decays, and leaves k_t*R_t in shared memory; the squares
//      of the keys are summed over each warp. The corrections of the CTA's rows go to shared memory
//      as pairs of bf16, the upper half of the number and what it leaves out.
//   2. Product, on the matrix units. A warp scales the keys of its channels with their norms and
//      cuts them in two as well; S*P is what the accumulators start with.
//
// R is e to a sum of log decays: no product of decays, so nothing overflows on the way. All loads
// are under way at once, and one barrier stands between the steps. Bounded by the bandwidth of
// reading and writing the state.
//
// Lanes of the product. With g = lane / 4 and t = lane % 4, a lane has of value rows g and g + 8 of
// a tile the 8 channels from 8*t: column 2*t + e of key tile j is channel 8*t + 2*j + e, so that
// four tiles give the lane 16 bytes of a row.

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
constexpr int TOKENS = 16, SPLIT = 4, THREADS = 128, SMEM = 11136;
constexpr int OCCUPANCY = 6;

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

// Of the lanes: what one of them has left in shared memory is there for the others.
HELPER void sync_warp()
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

HELPER u32 find_query_head(const kda_commit_params &p, u32 head)
{
    return (u32)((u64)head * p.query.magic >> p.query.shift);
}

// The logarithm to base 2 of a decay. So is the rate, e^a_log * LOG2E.
HELPER float log2_decay(const kda_commit_params &p, float rate, float x)
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

// A sum with k or q, times the scale of its norm. Where that overflows the scale is zero, and so is
// the result, whatever the sum became.
HELPER float scaled(float x, float scale) { return scale == 0.0f ? 0.0f : x * scale; }


// ----------------------------------------------------------------------------------------- kernel

constexpr u32 WARPS = THREADS / 32;
constexpr u32 PAIRS = TOKENS / 2;
constexpr u32 TILE_ROWS = 16, KEY_TILES = 4, ROW_TILES = ROWS / TILE_ROWS;
constexpr u32 STEP_CHANNELS = KEY_TILES * 8;
// A warp takes two steps of channels, whole lines of the state, and every second row tile.
constexpr u32 WARP_STEPS = 2, WARP_TILES = ROW_TILES / WARP_STEPS;
static_assert(THREADS == DIM && DIM / STEP_CHANNELS == WARPS && PAIRS == 8 &&
                  ROW_TILES * SPLIT == 8 && WARP_TILES * WARP_STEPS == ROW_TILES,
              "a thread per channel, one step of the matrix unit for all tokens");

// Shared memory: for each pair of tokens, k*R of each channel, with a padding that keeps the four
// pairs that a warp reads at once off each other's banks; w of each row tile, upper halves and what
// they leave out, as the matrix unit takes them, a quad per lane; P; for each token, the warps'
// sums of k*k.
constexpr u32 KEY_BYTES = (DIM + 2) * 8, QUADS_BYTES = 32 * sizeof(quad);
constexpr u32 KEYS = 0, W = KEYS + PAIRS * KEY_BYTES, P = W + ROW_TILES * 2 * QUADS_BYTES;
constexpr u32 SQUARES = P + DIM * sizeof(float);
static_assert(SMEM == SQUARES + TOKENS * WARPS * sizeof(float), "the row's smem");

// Of products of decays, for `hold`: 2^120.
constexpr float LIMIT = 1.329227995784916e36f;

// Two numbers, as the pair of their upper halves and the pair of what these leave out. Cut off and
// not rounded: a correction near the largest number would round to an infinity.
HELPER u64 cut(float a, float b)
{
    const u32 x = as_bits(a), y = as_bits(b);
    const u32 lost = pack_bf16(a - as_float(x & 0xffff0000u), b - as_float(y & 0xffff0000u));
    return (u64)lost << 32 | (y & 0xffff0000u) | x >> 16;
}

// The keys of a window of at most N tokens; the fewest, a power of two, that hold them all. Tokens
// that were not accepted have zero keys.
template <u32 N>
HELPER void make_keys(const kda_commit_params &p, const u32 (&k)[TOKENS], const u32 (&g)[TOKENS],
                      u32 accepted, float rate, float bias, u32 shared)
{
    if constexpr (N > 2) {
        if (accepted <= N / 2) return make_keys<N / 2>(p, k, g, accepted, rate, bias, shared);
    }
    const u32 channel = threadIdx.x, lane = channel % 32, warp = channel / 32;
    constexpr u32 SUMS = N < 8 ? N : 8;  // squares that are summed at a time
#pragma unroll
    for (u32 first = 0; first < N; first += SUMS) {
        float squares[SUMS];
#pragma unroll
        for (u32 i = 0; i < SUMS; i++)
            squares[i] = widen_bf16(k[first + i]) * widen_bf16(k[first + i]);
        const float kk = sum_half<SUMS, 16>(squares, lane);
        const u32 token = first + lane / (32 / SUMS);
        if (lane % (32 / SUMS) == 0)
            sts(shared + SQUARES + (token * WARPS + warp) * sizeof(float), kk);
    }
    float keys[N], sum = 0.0f;  // of the logarithms of the later decays
#pragma unroll
    for (u32 i = 1; i <= N; i++) {
        const u32 t = N - i;
        keys[t] = hold(widen_bf16(k[t]) * hold(exp2_fast(sum), LIMIT), LIMIT);
        if (t < accepted) sum += log2_decay(p, rate, widen_bf16(g[t]) + bias);
    }
#pragma unroll
    for (u32 t = 0; t < N; t += 2)
        sts64(shared + KEYS + t / 2 * KEY_BYTES + channel * 8,
              (u64)as_bits(keys[t + 1]) << 32 | as_bits(keys[t]));
    sts(shared + P + channel * sizeof(float), hold(exp2_fast(sum), LIMIT));
}

HELPER float key_scale(u32 shared, u32 token)
{
    const vec4 kk = lds128(shared + SQUARES + token * WARPS * sizeof(float));
    return rsqrt_fast((kk.x + kk.y) + (kk.z + kk.w) + EPSILON);
}

// Of a warp's tile i the rows g, step after step, and then the rows g + 8.
HELPER u64 tile_address(u64 tiles, u32 i, u32 s)
{
    return tiles + (i * WARP_STEPS * TILE_ROWS + s / WARP_STEPS * 8) * ROW_BYTES +
           s % WARP_STEPS * STEP_CHANNELS * sizeof(u16);
}

// More tokens than a step of the matrix unit holds, which is more than a window has: one after the
// other, for the thread's channel of a few rows at a time.
HELPER void commit_serially(const kda_commit_params &p, u64 state, u64 keys, u64 corrections,
                            u32 accepted, float rate, float bias, u32 shared)
{
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 1
    for (u32 first = 0; first < ROWS; first += TILE_ROWS) {
        const u64 rows = state + first * ROW_BYTES;
        u64 key = keys, correction = corrections + first * sizeof(float);
        float x[TILE_ROWS];
#pragma unroll
        for (u32 i = 0; i < TILE_ROWS; i++) x[i] = widen_bf16(load16(rows + i * ROW_BYTES));
#pragma unroll 1
        for (u32 t = 0; t < accepted; t++) {
            const float k = widen_bf16(load16(key)), g = widen_bf16(load16(key + DIM * 2));
            const float square[1] = {k * k};
            const float kk = sum_half<1, 16>(square, lane);
            if (lane == 0) sts(shared + SQUARES + warp * sizeof(float), kk);
            sync_cta();
            const float kn = k * key_scale(shared, 0);
            const float d = exp2_fast(log2_decay(p, rate, g + bias));
#pragma unroll
            for (u32 i = 0; i < TILE_ROWS; i++)
                x[i] = fmaf(as_float(load32(correction + i * sizeof(float))), kn, x[i] * d);
            key += (u64)p.kg_strides[2] * sizeof(u16);
            correction += (u64)p.correction_strides[2] * sizeof(float);
            sync_cta();  // everybody has the sums
        }
#pragma unroll
        for (u32 i = 0; i < TILE_ROWS; i++) store_bf16(rows + i * ROW_BYTES, x[i]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, OCCUPANCY)
    kda_commit_lower_bound_split4(const __grid_constant__ struct kda_commit_params p)
{
    begin_grid();
    const u32 lane = threadIdx.x % 32, warp = uniform(threadIdx.x / 32);
    const u32 n = blockIdx.y, head = blockIdx.x / SPLIT, first_row = blockIdx.x % SPLIT * ROWS;
    const int slot = p.indices ? load_i32(p.indices + 4 * (u64)n) : (int)n;
    const int wanted = load_i32(p.accepted + 4 * (u64)n);
    const int clamped = wanted < p.tokens ? wanted : p.tokens;
    if (clamped <= 0 || slot < p.null_min || slot >= p.num_slots) return;
    const u32 accepted = uniform((u32)clamped);

    const u32 shared = shared_base(), channel = threadIdx.x;
    const u64 state = p.state + (u32)slot * (u64)p.slot_stride * sizeof(u16) + head * HEAD_BYTES +
                      first_row * ROW_BYTES;
    const u64 cached = p.kg + ((u32)slot * (u64)p.kg_strides[0] + head * (u64)p.kg_strides[1] +
                            channel) * sizeof(u16);
    const u64 correction = p.correction + ((u32)slot * (u64)p.correction_strides[0] +
                                           head * (u64)p.correction_strides[1] + first_row) *
                                              sizeof(float);
    float rate = 0.0f, bias = 0.0f;
    const u32 query_head = find_query_head(p, head);
    rate = exp_fast(load_f32(p.a_log + 4 * (u64)query_head)) * LOG2E;
    if (p.dt_bias) bias = load_f32(p.dt_bias + 4 * ((u64)query_head * DIM + channel));
    if (accepted > TOKENS) {
        commit_serially(p, state + channel * sizeof(u16), cached, correction, accepted,
                        rate, bias, shared);
        return;
    }

    u64 key = cached;
    u32 k[TOKENS] = {}, g[TOKENS] = {};
#pragma unroll
    for (u32 t = 0; t < TOKENS; t++) {
        if (t == accepted) break;
        k[t] = load16(key);
        g[t] = load16(key + DIM * sizeof(u16));
        key += (u64)p.kg_strides[2] * sizeof(u16);
    }
    // A thread has one pair of tokens of every 16th row.
    const u32 pair = threadIdx.x / TILE_ROWS, row = threadIdx.x % TILE_ROWS;
    u32 w[ROW_TILES][2] = {};
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        if (2 * pair + h >= accepted) continue;
        const u64 rows_of_token =
            correction + ((2 * pair + h) * (u64)p.correction_strides[2] + row) * sizeof(float);
#pragma unroll
        for (u32 i = 0; i < ROW_TILES; i++)
            w[i][h] = load32(rows_of_token + i * TILE_ROWS * sizeof(float));
    }
    // Of the warp's tiles, step after step, the rows g and g + 8.
    const u32 first_tile = warp % WARP_STEPS, first_step = warp / WARP_STEPS * WARP_STEPS;
    const u64 tiles = state + (first_tile * TILE_ROWS + lane / 4) * ROW_BYTES +
                      (first_step * STEP_CHANNELS + lane % 4 * LANE_CHANNELS) * sizeof(u16);
    quad rows[WARP_TILES][WARP_STEPS][2];
#pragma unroll
    for (u32 i = 0; i < WARP_TILES; i++) {
#pragma unroll
        for (u32 s = 0; s < 2 * WARP_STEPS; s++)
            rows[i][s % WARP_STEPS][s / WARP_STEPS] = load_state(tile_address(tiles, i, s));
    }

    make_keys<TOKENS>(p, k, g, accepted, rate, bias, shared);
    const u32 word = (row % 8 * 4 + pair % 4) * sizeof(quad) + (pair / 4 * 2 + row / 8) * 4;
#pragma unroll
    for (u32 i = 0; i < ROW_TILES; i++) {
        const u64 x = cut(as_float(w[i][0]), as_float(w[i][1]));
        sts(shared + W + i * 2 * QUADS_BYTES + word, as_float((u32)x));
        sts(shared + W + (i * 2 + 1) * QUADS_BYTES + word, as_float((u32)(x >> 32)));
    }
    sync_cta();

    // The two pairs of tokens that a lane has of every operand, and their scales.
    const u32 pairs[2] = {lane % 4, lane % 4 + 4};
    const bool given[2] = {2 * pairs[0] < accepted, 2 * pairs[1] < accepted};
    float scale[2][2] = {};
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        if (!given[h]) continue;
        scale[h][0] = key_scale(shared, 2 * pairs[h]);
        scale[h][1] = key_scale(shared, 2 * pairs[h] + 1);
    }
#pragma unroll
    for (u32 s = 0; s < WARP_STEPS; s++) {
        const u32 first = (first_step + s) * STEP_CHANNELS;
        const u32 own = first + lane / 8 * LANE_CHANNELS + lane / 4 % 2;
        u32 k_high[KEY_TILES][2] = {}, k_lost[KEY_TILES][2] = {};
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            if (!given[h]) continue;
#pragma unroll
            for (u32 j = 0; j < KEY_TILES; j++) {
                const u64 x = lds64(shared + KEYS + pairs[h] * KEY_BYTES + (own + 2 * j) * 8);
                const u64 y =
                    cut(as_float((u32)x) * scale[h][0], as_float((u32)(x >> 32)) * scale[h][1]);
                k_high[j][h] = (u32)y;
                k_lost[j][h] = (u32)(y >> 32);
            }
        }
        const u32 decays = shared + P + (first + lane % 4 * LANE_CHANNELS) * sizeof(float);
#pragma unroll
        for (u32 i = 0; i < WARP_TILES; i++) {
            const u32 quads = shared + W + (i * WARP_STEPS + first_tile) * 2 * QUADS_BYTES +
                              lane * sizeof(quad);
            const quad x = lds_quad(quads), y = lds_quad(quads + QUADS_BYTES);
            const u32 w_high[4] = {x.x, x.y, x.z, x.w}, w_lost[4] = {y.x, y.y, y.z, y.w};
            // Of rows g and g + 8, a word is the lane's two channels of a key tile.
            const quad &a = rows[i][s][0], &b = rows[i][s][1];
            u32 upper[KEY_TILES] = {a.x, a.y, a.z, a.w}, lower[KEY_TILES] = {b.x, b.y, b.z, b.w};
#pragma unroll
            for (u32 j = 0; j < KEY_TILES; j++) {
                const u64 pair = lds64(decays + j * 8);
                const float d0 = as_float((u32)pair), d1 = as_float((u32)(pair >> 32));
                float z[4] = {
                    as_float(upper[j] << 16) * d0, as_float(upper[j] & 0xffff0000u) * d1,
                    as_float(lower[j] << 16) * d0, as_float(lower[j] & 0xffff0000u) * d1};
                multiply_tile(z, w_lost, k_high[j][0], k_high[j][1]);
                multiply_tile(z, w_high, k_lost[j][0], k_lost[j][1]);
                multiply_tile(z, w_high, k_high[j][0], k_high[j][1]);
                upper[j] = pack_bf16(z[0], z[1]);
                lower[j] = pack_bf16(z[2], z[3]);
            }
            store_state(tile_address(tiles, i, s), {upper[0], upper[1], upper[2], upper[3]});
            store_state(tile_address(tiles, i, s + WARP_STEPS),
                        {lower[0], lower[1], lower[2], lower[3]});
        }
    }
}
