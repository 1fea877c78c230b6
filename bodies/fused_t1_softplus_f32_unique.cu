// SPDX-License-Identifier: Apache-2.0
// Generated from gen/fused.cu.in, what it includes, and manifest/params.h for the row
// fused_t1_softplus_f32_unique of manifest/schedules.inc.
// Frozen: edit the template or the row, then run `ninja -C build regen`.
//
// Fused decode: one token of one head, from the projection before its convolution to the gated
// norm, by one CTA. At many rows it is bound by the bandwidth of reading and writing the state; at
// few by the latency of two dependent loads, slot index and state, and of what follows the second.
// So what does not depend on the slot is asked for before it is known, all of the state as soon as
// it is, and the token's vectors are made in the shadow of the state: warps 0 to 2 convolve q, k and
// v, warp 3 makes the decay, 4 channels per lane, and leave them in shared memory. After the barrier
// every warp carries its own rows through the token. The state goes to shared memory past the
// registers: a CTA has all of its state under way, and an SM several CTAs.
//
// Lanes. A half-warp holds a value row. bf16 lies over it as the prelude says; of an f32 row lane l
// has the channels 4*(l%16) to 4*(l%16) + 3 and the same of the upper 64, so that an access of the
// half-warp is 256 bytes in a row. Row 2*i + (upper half-warp) of a pass is row i of a half-warp.
//
// Norm. A pass of a warp is 8 rows. Their squares are summed over the lanes, and the 16 sums of a
// head in one order, whatever warp they come from.

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

struct kda_fused_params {
    unsigned long long x;                       // [rows, 3, H, 128] bf16: q, k, v before the convolution
    unsigned long long weight;                  // [3, 4, H, 128] f32: q, k, v; tap 3 multiplies x, tap 0 the oldest value
    unsigned long long conv_state;              // [num_slots, 3 taps, 3, H, 128] bf16, tap 0 is the oldest
    unsigned long long raw_gate, raw_beta;      // [rows, H, 128] and [rows, H] bf16
    unsigned long long a_log, dt_bias;          // [H] and [H, 128] f32
    unsigned long long norm_weight;             // [128] f32
    unsigned long long indices;                 // [rows] i32
    unsigned long long state;                   // [num_slots, H, 128, 128] f32 or bf16, key channel fastest
    unsigned long long output_gate, out;        // [rows, H, 128] bf16
    long long x_stride, beta_stride, output_gate_stride;  // between rows
    long long conv_slot_stride, slot_stride;    // between two slots of conv_state and of state
    int num_slots, rows, heads;
    float scale, lower_bound, norm_eps;         // lower bound of the gate, 0 where it has none
};

// Of the row. OCCUPANCY is how many CTAs per SM the register cap must allow.
constexpr int TOKENS = 1, SPLIT = 1, THREADS = 256, SMEM = 68176;
constexpr int OCCUPANCY = 3;

constexpr int DIM = 128;           // key channels and value rows of a head
constexpr int ROWS = DIM / SPLIT;  // value rows of the CTA
constexpr int LANE_CHANNELS = 8;   // DIM / 16 lanes of a half-warp
constexpr float FLOAT_MAX = 3.402823466e38f;
constexpr float EPSILON = 1e-6f;   // added to a sum of squares
constexpr float LOG2E = 1.4426950408889634f;
constexpr u64 ROW_BYTES = DIM * sizeof(float);
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
HELPER float load_bf16(u64 address) { return widen_bf16(load16(address)); }
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

// The logarithm to base 2 of a decay. So is the rate, e^a_log * LOG2E.
HELPER float log2_decay(const kda_fused_params &p, float rate, float x)
{
    (void)p;
    return -rate * softplus(x);
}

// ------------------------------------------------------------------------------------------ layout

constexpr int WARPS = THREADS / 32;
constexpr int WARP_ROWS = DIM / WARPS;
constexpr int PASS_ROWS = 4;  // rows of a half-warp that are in registers at a time
constexpr int PASSES = WARP_ROWS / (2 * PASS_ROWS);
constexpr u32 ROW_LANES = 16 / PASS_ROWS;              // lanes that end with the sums of one row
constexpr int ROW_QUADS = (int)(ROW_BYTES / 16 / 16);  // of a row, per lane
constexpr u32 QUAD_PITCH = 16 * sizeof(quad);          // between two quads of a lane
constexpr int SUMS = DIM / (2 * PASS_ROWS);            // of squares
static_assert(SPLIT == 1 && PASSES * 2 * PASS_ROWS * WARPS == DIM && SUMS == 16, "whole passes");

constexpr u32 LANE_CONV = 4;  // channels per lane of the warps that make vectors
enum part : u32 { Q_PART, K_PART, V_PART, GATE_PART };
static_assert(WARPS > GATE_PART, "a warp per part");

// Shared memory: the state as it lies in the pool, four vectors, the output before its norm, beta,
// and the sums of squares.
constexpr u32 VECTOR_BYTES = DIM * sizeof(float);
constexpr u32 K = (u32)HEAD_BYTES, Q = K + VECTOR_BYTES, D = Q + VECTOR_BYTES, V = D + VECTOR_BYTES;
constexpr u32 O = V + VECTOR_BYTES, BETA = O + VECTOR_BYTES, SQUARES = BETA + 16;
static_assert(SMEM == SQUARES + SUMS * sizeof(float), "the row's smem");

// A lane's channels are two quarters 256 bytes apart, so that consecutive lanes are 16 bytes apart:
// no bank conflicts. Writer lane l brings channels 4*l to 4*l + 3.
HELPER void store_vector(u32 address, u32 lane, const float (&x)[LANE_CONV])
{
    sts128(address + lane * 16, {x[0], x[1], x[2], x[3]});
}

HELPER void load_vector(u32 address, u32 lane, float (&x)[LANE_CHANNELS])
{
    const vec4 a = lds128(address + lane % 16 * 16);
    const vec4 b = lds128(address + lane % 16 * 16 + VECTOR_BYTES / 2);
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

// A lane's channels of a value row, as bits.
struct lane_row {
    quad part[ROW_QUADS];
};

HELPER void unpack_row(const lane_row &row, float (&x)[LANE_CHANNELS])
{
#pragma unroll
    for (int i = 0; i < ROW_QUADS; i++) {
        x[4 * i] = as_float(row.part[i].x);
        x[4 * i + 1] = as_float(row.part[i].y);
        x[4 * i + 2] = as_float(row.part[i].z);
        x[4 * i + 3] = as_float(row.part[i].w);
    }
}

HELPER lane_row round_row(const float (&x)[LANE_CHANNELS])
{
    lane_row row;
#pragma unroll
    for (int i = 0; i < ROW_QUADS; i++)
        row.part[i] = {as_bits(x[4 * i]), as_bits(x[4 * i + 1]), as_bits(x[4 * i + 2]),
                       as_bits(x[4 * i + 3])};
    return row;
}

// ----------------------------------------------------------------------------------- vectors, sums

// Four bf16 at an address that is only known to be even: what lies aligned comes at once.
HELPER u64 load_bf16x4(u64 address)
{
    if (address % 8 == 0) return load64(address);
    const u64 a = load16(address), b = load16(address + 2);
    const u64 c = load16(address + 4), d = load16(address + 6);
    return a | b << 16 | c << 32 | d << 48;
}

HELPER void load_f32x4(u64 address, float (&x)[LANE_CONV])
{
    if (address % 16 == 0) {
        const quad bits = load128(address);
        x[0] = as_float(bits.x), x[1] = as_float(bits.y);
        x[2] = as_float(bits.z), x[3] = as_float(bits.w);
    } else {
#pragma unroll
        for (u32 c = 0; c < LANE_CONV; c++) x[c] = load_f32(address + 4 * c);
    }
}

HELPER float bf16_of(u64 four, u32 c) { return as_float((u32)(four >> 16 * c) << 16); }

HELPER float round_bf16(float x) { return as_float(pack_bf16(x, 0.0f) << 16); }

// Four channels of the convolution: three values that are kept, the oldest first, and the new one.
constexpr int TAPS = 4;
struct window {
    u64 value[TAPS];
};

// What a lane needs to make its channels, beside the window: of a row, and of all rows.
struct token {
    u64 input;  // x, or the raw gate
    float logit, output_gate;
};
struct parameters {
    float taps[TAPS][LANE_CONV];  // of the convolution; of the gate's warp taps[0] is dt_bias
    float a_log;
};

HELPER void convolve(const window &w, const float (&taps)[TAPS][LANE_CONV], float (&m)[LANE_CONV])
{
#pragma unroll
    for (u32 c = 0; c < LANE_CONV; c++) {
        float sum = bf16_of(w.value[0], c) * taps[0][c];
#pragma unroll
        for (int t = 1; t < TAPS; t++) sum = fmaf(bf16_of(w.value[t], c), taps[t][c], sum);
        m[c] = round_bf16(sum * sigmoid(sum));
    }
}

// 1 over the norm of the 128 channels of a warp.
HELPER float inverse_norm(const float (&m)[LANE_CONV])
{
    float sum = m[0] * m[0];
#pragma unroll
    for (u32 c = 1; c < LANE_CONV; c++) sum = fmaf(m[c], m[c], sum);
#pragma unroll
    for (u32 distance = 16; distance > 0; distance /= 2) sum += shuffle_xor(sum, distance);
    return rsqrt_fast(sum + EPSILON);
}

// The sums of the passes, added in pairs of pairs.
HELPER float sum_squares(u32 address)
{
    const vec4 a = lds128(address), b = lds128(address + 16);
    const vec4 c = lds128(address + 32), d = lds128(address + 48);
    return (((a.x + b.x) + (c.x + d.x)) + ((a.y + b.y) + (c.y + d.y))) +
           (((a.z + b.z) + (c.z + d.z)) + ((a.w + b.w) + (c.w + d.w)));
}

// Of each pass, the row whose sums a lane gets.
HELPER u32 own_row(u32 lane) { return lane % 16 / ROW_LANES * 2 + lane / 16; }

// ----------------------------------------------------------------------------------------- kernel

HELPER void decode_row(const kda_fused_params &p, u32 row)
{
    const u32 thread = threadIdx.x, head = blockIdx.x;
    const u32 lane = thread % 32, warp = uniform(thread / 32);
    const int slot = load_i32(p.indices + 4 * (u64)row);

    // What depends on the slot neither in its address nor in whether it may be read.
    const bool convolves = warp < GATE_PART, finishes = thread < DIM;
    const u64 width = (u64)(u32)p.heads * DIM;                    // channels of q, of k and of v
    const u64 head_channel = (u64)head * DIM + lane * LANE_CONV;  // the lane's first among these
    const u64 conv_channel = warp * width + head_channel;         // and among all
    const u64 value_row = (u64)head * DIM + thread;               // whose output this thread makes
    parameters parameters;
    if (convolves) {
#pragma unroll
        for (u32 t = 0; t < TAPS; t++)
            load_f32x4(p.weight + 4 * ((warp * TAPS + t) * width + head_channel), parameters.taps[t]);
    } else if (warp == GATE_PART) {
        load_f32x4(p.dt_bias + 4 * head_channel, parameters.taps[0]);
        parameters.a_log = load_f32(p.a_log + 4 * (u64)head);
    }
    const float norm_weight = finishes ? load_f32(p.norm_weight + 4 * (u64)thread) : 0.0f;

    if (slot <= 0 || slot >= p.num_slots) {  // a null row
        if (finishes) store16(p.out + 2 * (row * width + value_row), 0);
        return;
    }

    const u64 conv = p.conv_state + 2 * ((u32)slot * (u64)p.conv_slot_stride + conv_channel);
    const u64 tap_bytes = 2 * 3 * width;
    window w = {};
    token token = {};
    if (convolves) {
#pragma unroll
        for (int t = 0; t < TAPS - 1; t++) w.value[t] = load64(conv + t * tap_bytes);
        token.input = load_bf16x4(p.x + 2 * (row * (u64)p.x_stride + conv_channel));
    } else if (warp == GATE_PART) {
        token.input = load_bf16x4(p.raw_gate + 2 * (row * width + head_channel));
        token.logit = load_bf16(p.raw_beta + 2 * (row * (u64)p.beta_stride + head));
    }
    if (finishes)
        token.output_gate =
            load_bf16(p.output_gate + 2 * (row * (u64)p.output_gate_stride + value_row));

    const u32 shared = shared_base();
    const u32 lane_state =
        (warp * WARP_ROWS + lane / 16) * (u32)ROW_BYTES + lane % 16 * (u32)sizeof(quad);
    const u64 state = p.state + (u32)slot * (u64)p.slot_stride * (ROW_BYTES / DIM) +
                      head * HEAD_BYTES + lane_state;
#pragma unroll
    for (int i = 0; i < WARP_ROWS / 2; i++) {
#pragma unroll
        for (u32 j = 0; j < ROW_QUADS; j++) {
            const u32 at = i * 2 * (u32)ROW_BYTES + j * QUAD_PITCH;
            copy_quad(shared + lane_state + at, state + at);
        }
    }

    if (convolves) {
        float m[LANE_CONV];
        w.value[TAPS - 1] = token.input;
        convolve(w, parameters.taps, m);
#pragma unroll
        for (int t = 0; t < TAPS - 1; t++) store64(conv + t * tap_bytes, w.value[t + 1]);
        if (warp == V_PART) {
            sts128(shared + V + lane * 16, {m[0], m[1], m[2], m[3]});
        } else {
            const float factor = inverse_norm(m) * (warp == Q_PART ? p.scale : 1.0f);
#pragma unroll
            for (u32 c = 0; c < LANE_CONV; c++) m[c] = m[c] * factor;
            store_vector(shared + (warp == Q_PART ? Q : K), lane, m);
        }
    } else if (warp == GATE_PART) {
        const float rate = exp_fast(parameters.a_log) * LOG2E;
        float d[LANE_CONV];
#pragma unroll
        for (u32 c = 0; c < LANE_CONV; c++)
            d[c] = exp2_fast(log2_decay(p, rate, bf16_of(token.input, c) + parameters.taps[0][c]));
        store_vector(shared + D, lane, d);
        if (lane == 0) sts(shared + BETA, sigmoid(token.logit));
    }
    const float gain = norm_weight * sigmoid(token.output_gate);
    sync_cta();

    float k[LANE_CHANNELS], q[LANE_CHANNELS], d[LANE_CHANNELS];
    load_vector(shared + D, lane, d);
    load_vector(shared + K, lane, k);
    load_vector(shared + Q, lane, q);
    const float kq[1] = {dot(k, q)};
    const float kq_sum = sum_half(kq, lane), beta = lds(shared + BETA);
    wait_copies();
#pragma unroll 1
    for (u32 pass = 0; pass < PASSES; pass++) {
        float x[PASS_ROWS][LANE_CHANNELS], predicted[PASS_ROWS], read[PASS_ROWS];
        const u32 first = pass * 2 * PASS_ROWS * (u32)ROW_BYTES;
        const u32 pass_shared = shared + lane_state + first;
#pragma unroll
        for (int i = 0; i < PASS_ROWS; i++) {
            lane_row bits;
#pragma unroll
            for (u32 j = 0; j < ROW_QUADS; j++)
                bits.part[j] = lds_quad(pass_shared + i * 2 * (u32)ROW_BYTES + j * QUAD_PITCH);
            unpack_row(bits, x[i]);
#pragma unroll
            for (int c = 0; c < LANE_CHANNELS; c++) x[i][c] = x[i][c] * d[c];
            predicted[i] = dot(x[i], k);
            read[i] = dot(x[i], q);
        }
        const u32 own = warp * WARP_ROWS + pass * 2 * PASS_ROWS + own_row(lane);
        const float v = lds(shared + V + 4 * own);
        const float correction = beta * (v - sum_half(predicted, lane));
        const float o = round_bf16(fmaf(correction, kq_sum, sum_half(read, lane)));
#pragma unroll
        for (int i = 0; i < PASS_ROWS; i++) {
            const float row_correction = shuffle_from(correction, lane / 16 * 16 + i * ROW_LANES);
#pragma unroll
            for (int c = 0; c < LANE_CHANNELS; c++) x[i][c] = fmaf(row_correction, k[c], x[i][c]);
            const lane_row bits = round_row(x[i]);
#pragma unroll
            for (u32 j = 0; j < ROW_QUADS; j++) {
                const u32 at = i * 2 * (u32)ROW_BYTES + j * QUAD_PITCH;
                store_state(state + (first + at), bits.part[j]);
            }
        }
        float squares = o * o;
        squares += shuffle_xor(squares, ROW_LANES);
        squares += shuffle_xor(squares, 2 * ROW_LANES);
        squares += shuffle_xor(squares, 16);
        if (lane % ROW_LANES == 0) sts(shared + O + 4 * own, o);
        if (lane == 0) sts(shared + SQUARES + 4 * (warp * PASSES + pass), squares);
    }
    sync_cta();

    // A head of zeros has no norm without an epsilon: its output is zero, not NaN.
    if (finishes) {
        const float mean = sum_squares(shared + SQUARES) * (1.0f / DIM);
        const float inverse = fminf(rsqrt_fast(mean + p.norm_eps), FLOAT_MAX);
        const float o = lds(shared + O + 4 * thread);
        store_bf16(p.out + 2 * (row * width + value_row), o * inverse * gain);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, OCCUPANCY)
    kda_fused_t1_softplus_f32_unique(const __grid_constant__ struct kda_fused_params p)
{
    begin_grid();
    decode_row(p, blockIdx.y);
}
