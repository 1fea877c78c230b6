// SPDX-License-Identifier: Apache-2.0
//
// libkda: decode kernels of Kimi Delta Attention (KDA), compiled ahead of time into one bundle, and
// the small library that opens the bundle, picks the image for a problem and launches it with the
// CUDA Driver API.
//
// Rules that hold for every function:
//   - A fallible function returns a kda_status and takes an optional kda_error last. On failure its
//     outputs, and all device memory, are as they were; on success the error is not touched.
//   - There is no fallback: a device, shape, gate, layout or option that no image serves is an
//     error, with its reason.
//   - The library never prints, aborts, reads environment variables, starts threads or calls back.
//   - Strings handed out are borrowed: from the bundle (valid until it is closed) or from static
//     storage.
//   - Device addresses are never dereferenced by the host. Sizes and strides count elements unless
//     bytes are said.
//   - Structs are filled by designated initialisers; fields not named must be zero, the `reserved`
//     ones above all.
//
// Notation: N rows (sequences), T tokens per row, H query/key heads, HV value heads, D = 128,
// tok = N*T packed tokens. Value head hv reads query/key head hv / (HV/H).
#ifndef KDA_H
#define KDA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KDA_VERSION_MAJOR 0
#define KDA_VERSION_MINOR 1

#if defined(__GNUC__)
#define KDA_API __attribute__((visibility("default")))
#else
#define KDA_API
#endif

// -------------------------------------------------------------------------------------------- CUDA

// The handles of cuda.h, which need not be included. Repeating these typedefs beside cuda.h is
// legal.
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;

// ------------------------------------------------------------------------------------------ errors

// Numbers are pinned; gaps are for later. The sentence says when a status is used.
typedef enum kda_status {
    KDA_OK = 0,
    KDA_E_ARGUMENT = 1,     // missing pointer, contradictory or out-of-domain scalar or flag
    KDA_E_TYPE = 2,         // wrong element type
    KDA_E_SHAPE = 3,        // wrong count or extent
    KDA_E_UNSUPPORTED = 4,  // well-formed, but not one of the accepted calls
    KDA_E_LIMIT = 5,        // N, HV*split, num_slots or 64-bit arithmetic out of range
    KDA_E_STRIDE = 6,       // stride too small, not compact, or not a required multiple
    KDA_E_ALIGNMENT = 7,    // base address not aligned
    KDA_E_OVERLAP = 8,      // a written tensor overlaps another
    KDA_E_NAME = 9,         // unknown body or target, or a body of another T, gate or operator
    KDA_E_NO_ROUTE = 20,    // no rows for this device in the bundle, or the bundle lacks the image
    KDA_E_CUDA_VERSION = 21,  // CUDA version below the target's floor or the image's minimum
    KDA_E_NOT_PREPARED = 22,  // the image is not loaded and the stream is being captured
    KDA_E_IO = 40,            // a file could not be read
    KDA_E_FORMAT = 41,        // not a bundle, or one whose index contradicts itself
    KDA_E_VERSION = 42,       // a bundle of another format version, or params of another version
    KDA_E_DIGEST = 43,        // bytes do not have the digest that the bundle states
    KDA_E_NO_DRIVER = 60,     // libcuda.so.1 is missing, a stub, or lacks a symbol
    KDA_E_DRIVER = 61,        // a driver call failed; kda_error.cuda has its number
    KDA_E_CONTEXT_LOST = 62,  // the bound CUDA context was destroyed or reset
    KDA_E_FORKED = 63,        // the process is a fork of the one that made the kda_context
    KDA_E_NO_MEMORY = 80      // the host is out of memory
} kda_status;

#define KDA_ERROR_TEXT 1024

// Owned by the caller, written on failure only. `text` is one line: the operation, what was found,
// what is allowed.
typedef struct kda_error {
    kda_status status;
    int cuda;  // the CUresult of the driver call that failed, else 0
    char text[KDA_ERROR_TEXT];
} kda_error;

// The name of a status, "KDA_E_SHAPE" for example; "KDA_E_?" for a number that is none. Any thread.
KDA_API const char *kda_status_name(kda_status status);

// ----------------------------------------------------------------------------------------- tensors

typedef enum kda_dtype {
    KDA_BF16 = 1,
    KDA_F32 = 2,
    KDA_I32 = 3,
    KDA_F16 = 4,
    KDA_I64 = 5
} kda_dtype;

#define KDA_MAX_RANK 4

// A view of device memory, passed by value. The memory is borrowed for the work queued on the
// stream, not only for the call. An omitted tensor is all zero. dtypes that no operator takes exist
// so that they can be refused by name. In a dimension of extent 1 or 0 any stride from 1 on is
// compact. Checked whatever the extent are those that reach a kernel: slot and cache strides, and
// token (row) strides but for those of a compact out or raw_gate.
typedef struct kda_tensor {
    void *data;  // device address of the first element
    kda_dtype dtype;
    uint32_t rank;                 // 1..KDA_MAX_RANK
    int64_t extent[KDA_MAX_RANK];  // outermost first
    int64_t stride[KDA_MAX_RANK];  // elements, >= 1
} kda_tensor;

// ----------------------------------------------------------------------------------------- bundles

// An opened bundle. Immutable: any number of threads may use it. Opening proves that the index is
// well-formed and has its digest; image bytes are proved when they are read.
typedef struct kda_bundle kda_bundle;

// Opens `size` bytes at `data`, which must be 8-byte aligned, are borrowed until the bundle is
// closed and must not change. Errors: ARGUMENT, FORMAT, VERSION, DIGEST, NO_MEMORY.
KDA_API kda_status kda_bundle_open(const void *data, size_t size, kda_bundle **out, kda_error *err);

// Reads a file whole into private memory and opens that. A file that changes later changes nothing
// here. Errors: those of kda_bundle_open, and IO.
KDA_API kda_status kda_bundle_open_file(const char *path, kda_bundle **out, kda_error *err);

// Opens the bundle that is linked into the library, without a copy. Errors: those of
// kda_bundle_open.
KDA_API kda_status kda_bundle_open_builtin(kda_bundle **out, kda_error *err);

// Closes and sets *bundle to NULL; NULL and pointer to NULL are fine. Every context made from it
// must be closed first.
KDA_API void kda_bundle_close(kda_bundle **bundle);

// sha256 over what the bundle means: bodies, images and routes, however they are compressed. All
// zero if `bundle` is NULL.
KDA_API void kda_bundle_id(const kda_bundle *bundle, uint8_t out[32]);

// Proves every byte: all frames, all images, all padding. Errors: FORMAT, DIGEST, NO_MEMORY, each
// naming the entry.
KDA_API kda_status kda_bundle_verify(const kda_bundle *bundle, kda_error *err);

// The exact bytes of the image of `body` for `target`, verified, in memory from malloc that the
// caller frees. Errors: NAME, NO_ROUTE (the bundle has no such image), FORMAT, DIGEST, NO_MEMORY.
KDA_API kda_status kda_bundle_image(const kda_bundle *bundle, const char *body, const char *target,
                                    void **out_data, size_t *out_size, kda_error *err);

// ------------------------------------------------------------------------------------------ routes

typedef enum kda_op {
    KDA_OP_RECURRENT = 1,  // T = 1..6 tokens per row, one checkpoint per token
    KDA_OP_PACKED = 2,     // Kimi K3: T = 1, H = HV = 12, packed projections
    KDA_OP_FUSED = 3,      // convolution, KDA and gated RMS norm of one token
    KDA_OP_VERIFY = 4,     // outputs of up to 16 tokens per row; the pool is only read
    KDA_OP_COMMIT = 5      // folds the accepted ones of these tokens into the pool
} kda_op;

// How the log decay gl of a key channel comes from the gate input g.
typedef enum kda_gate {
    KDA_GATE_PRECOMPUTED = 0,  // gl = g
    KDA_GATE_LOWER_BOUND = 1,  // gl = lower_bound * sigmoid(exp(A_log[h]) * (g + dt_bias[h]))
    KDA_GATE_SOFTPLUS = 2      // gl = -exp(A_log[h]) * softplus(g + dt_bias[h])
} kda_gate;

#define KDA_OVERRIDDEN_CC 1u
#define KDA_OVERRIDDEN_CUDA 2u
#define KDA_OVERRIDDEN_SMS 4u

// What the caller of fused decode asserts about the slots of a call. It selects a schedule only.
typedef enum kda_mode {
    KDA_MODE_POSITIVE_UNIQUE = 1,   // all are live and distinct
    KDA_MODE_UNIQUE_OR_NULL = 2,    // the live ones are distinct
    KDA_MODE_REPEATED_POSITIVE = 3  // live ones may repeat: rows of a slot act in ascending order
} kda_mode;

// What routing needs to know of a device. A plain value: filled by hand, or by kda_context_device.
typedef struct kda_device {
    int cc_major, cc_minor;
    int cuda_version;     // of the driver, 1000*major + 10*minor
    int sm_count;         // may be fewer than the chip has, for a partition; 0 is an error
    uint32_t overridden;  // KDA_OVERRIDDEN_*: which of them the caller stated instead of the driver
    uint32_t reserved[3];
} kda_device;

// The host-known part of a call.
typedef struct kda_problem {
    kda_op op;
    kda_gate gate;
    int32_t tokens;              // T
    int64_t rows;                // N
    int64_t heads, value_heads;  // H, HV
    kda_dtype state_type;        // 0 stands for KDA_BF16
    int32_t mode;                // kda_mode of fused decode, else 0
    const char *body;            // force this body; NULL: as routed
    const char *target;          // force this target; NULL: as preferred
    uint64_t reserved[4];
} kda_problem;

// The answer to a route query: one image of the bundle, and the facts that chose it.
typedef struct kda_route_result {
    const char *body, *target, *entry;
    uint32_t split;           // CTAs that share one value head
    uint32_t grid[3], block;  // CTAs; threads per CTA
    uint32_t smem;            // dynamic shared memory per CTA, bytes
    uint32_t registers;       // per thread
    const char *toolkit;      // that built the image
    int min_cuda;             // oldest driver of the image, 1000*major + 10*minor
    uint8_t sha256[32];       // of the image
    uint8_t body_sha256[32];  // of the body file
    kda_device facts;
    uint64_t reserved[4];
} kda_route_result;

// Chooses the image for a problem. Pure: needs no GPU and no driver, any thread. The first matching
// route wins, then the first target of the device's preference list that qualifies; nothing outside
// the list is tried. Errors: ARGUMENT, UNSUPPORTED, LIMIT, NAME, NO_ROUTE, CUDA_VERSION. A refusal
// gives the facts used and, per target tried, why it fell out.
KDA_API kda_status kda_route(const kda_bundle *bundle, const kda_device *device,
                             const kda_problem *problem, kda_route_result *out, kda_error *err);

// ---------------------------------------------------------------------------------------- contexts

// A bundle bound to one CUDA context. Any number of threads may prepare, plan and launch with it.
typedef struct kda_context kda_context;

// Binds `bundle`, which must outlive the context, to `cuda`, or to the calling thread's current
// context when `cuda` is NULL. `overrides` (optional): facts whose `overridden` bit is set replace
// what the driver reports. Opens libcuda.so.1 on first use in the process. No image is loaded. The
// caller's current context is the same afterwards. Errors: ARGUMENT, NO_DRIVER, DRIVER,
// CONTEXT_LOST, NO_MEMORY.
KDA_API kda_status kda_context_create(const kda_bundle *bundle, CUcontext cuda,
                                      const kda_device *overrides, kda_context **out,
                                      kda_error *err);

// Unloads the images and sets *context to NULL; NULL and pointer to NULL are fine. No launch may be
// in flight or be queued, no graph that holds one of its kernels may live, and no capture may be
// active: the library cannot see these. A context whose CUDA context is gone closes silently.
KDA_API void kda_context_close(kda_context **context);

// The facts that the context routes by. All zero, which is no device, if `context` is NULL.
KDA_API kda_device kda_context_device(const kda_context *context);

// Loads the image of one problem's route, or with NULL every image that the device could be routed
// to. After it the launches of that problem make no driver call but the launch itself: no load,
// allocation, lock or synchronisation. May synchronise the device; must not be called while a
// stream of this context is being captured: a capture that the driver can see makes it
// KDA_E_NOT_PREPARED where an image is not loaded yet, and goes on. Errors: those of kda_route,
// NOT_PREPARED, FORMAT, DIGEST, DRIVER, CONTEXT_LOST, FORKED, NO_MEMORY.
KDA_API kda_status kda_context_prepare(kda_context *context, const kda_problem *problem,
                                       kda_error *err);

// -------------------------------------------------------------------------------------- operations

// Every call validates its arguments, routes, and puts exactly one kernel on `stream`, in this
// order of checks: arguments, types, scalars, accepted calls, limits and shapes, strides,
// alignments, overlaps, names, route, image. A cold image is loaded on first use, unless the stream
// is being captured: then the call is KDA_E_NOT_PREPARED and the capture goes on. An explicit
// stream must belong to the bound CUDA context; with NULL that context must be current.
//
// Errors of every operation: ARGUMENT, TYPE, SHAPE, UNSUPPORTED, LIMIT, STRIDE, ALIGNMENT, OVERLAP,
// NO_ROUTE, CUDA_VERSION, VERSION, NOT_PREPARED, FORMAT, DIGEST, DRIVER, CONTEXT_LOST, FORKED,
// NO_MEMORY.
//
// Limits of every operation: N is at most 65535; num_slots, and HV times the split of the body, are
// at most 2147483647; a byte range ends below 2^64. What is beyond is KDA_E_LIMIT. N = 0 is
// KDA_E_UNSUPPORTED; in verify it succeeds as tok = 0 does, and with cu_seqlens it is KDA_E_SHAPE.
//
// Rows and slots. The pool is [num_slots, HV, 128, 128], [value row, key channel] per head, key
// channel fastest. A slot index is live if 0 <= slot < num_slots, else null. A row without a live
// slot reads nothing from the pool and gets outputs of exactly +0. Live slots of different rows
// must differ.

#define KDA_FLAG_SPECULATIVE 1u  // num_spec_tokens is given

// Programmatic dependent launch: the kernel may start while the one before it on the stream still
// runs, which hides what a launch costs; refused for a body that does not wait. It depends on that
// kernel as always: results and writes follow only what memory holds when all of that kernel is
// complete, pool and index arrays included. Earlier than that, recurrent decode may look at the
// index arrays and prefetch what these point to, never outside the tensors of the call: their
// memory must be there while the kernel before runs.
#define KDA_FLAG_PDL 2u

// Recurrent decode. Accepted: T = 1, 2, 4, 5, 6 with precomputed gates; T = 3 with the lower bound
// gate, H = HV = 16, N in {1,2,4,8,16}; T = 1 with the softplus gate and H = HV.
//   dense T = 1     q, k [N,1,H,128]  v, g [N,1,HV,128]  beta [N,1,HV]  out [N,1,HV,128]
//   batched T >= 2  q, k [N,T,H,128]  v, g [N,T,HV,128]  beta [N,T,HV]  out [N,T,HV,128]
//   packed T >= 2   q, k [tok,H,128]  v, g [tok,HV,128]  beta [tok,HV]  out [tok,HV,128]
// The packed form is the one with cu_seqlens; it needs indices.
// bf16 but for A_log, dt_bias (f32) and the index arrays (i32). q, k, v, beta and out are compact;
// g may have a padded token stride, a multiple of 4; the pool a padded slot stride, a multiple
// of 8. With the softplus gate q, k, v, g and beta have free token strides. q, k, g are 8-byte
// aligned, the pool 16-byte, f32 and i32 arrays 4-byte.
typedef struct kda_recurrent_args {
    kda_tensor q, k, v, g, beta;
    kda_tensor a_log;    // [H] or more elements; with a gate that the kernel computes, only then
    kda_tensor dt_bias;  // [H,128] or more elements; likewise
    kda_tensor state;    // read, and updated in place: one checkpoint per token
    kda_tensor out;
    kda_tensor ssm_state_indices;  // optional [N,T] ([N] or [N,1] for T = 1); default slot n*T + t
    kda_tensor cu_seqlens;         // optional [N+1]; T >= 2 only
    kda_tensor num_accepted_tokens;  // optional [N]; a row starts from its slot number
                                     // clamp(accepted - 1, 0, T - 1)
    kda_tensor initial_state;        // must be omitted: the pool is the only source
    kda_gate gate;
    int32_t num_spec_tokens;  // T - 1: for T >= 2, with KDA_FLAG_SPECULATIVE; without it 0
    int32_t beta_is_logit;    // 1: beta = sigmoid(beta), softplus gate only
    float scale;              // finite; of q after normalization, usually 128^-0.5
    float lower_bound;        // < 0 with the lower bound gate, else 0
    uint32_t flags;           // KDA_FLAG_*
    uint64_t reserved[4];
} kda_recurrent_args;

// Packed Kimi K3 decode: T = 1, H = HV = 12, lower bound -5, scale 128^-0.5, logit beta. Strides
// are free, odd ones included, and no address needs more than the alignment of its element type.
typedef struct kda_packed_args {
    kda_tensor mixed_qkv;  // [N,4608] bf16: q, k, v of [12,128] each
    kda_tensor raw_gate;   // [N,1536] bf16
    kda_tensor raw_beta;   // [N,12] bf16
    kda_tensor a_log;      // [12] f32
    kda_tensor dt_bias;    // [1536] f32
    kda_tensor state;  // [num_slots,12,128,128] bf16, updated in place; any slot stride >= 196608
    kda_tensor state_indices;  // [N] i32
    kda_tensor out;            // [N,1,12,128] bf16
    uint32_t flags;            // KDA_FLAG_PDL
    uint32_t reserved32;
    uint64_t reserved[4];
} kda_packed_args;

// Fused decode of one token per row: a depthwise causal convolution of width 4 with SiLU over the
// projected q, k and v, the recurrent update, and an RMS norm with a sigmoid output gate. H = HV in
// {8, 12, 24, 32, 48, 96}, N = 1..65535; the state is f32 or bf16. q is scaled by 128^-0.5, beta is
// a logit. conv_state and state have the same slots and are updated in place; slot 0 is reserved: a
// slot is live if 1 <= slot < num_slots, else the row's output is +0 and nothing of the row is
// read. conv_state and state may share pages: with equal slot strides in bytes, P, they are
// disjoint when each slot of conv_state and that of state lie apart in every page of P bytes.
typedef struct kda_fused_args {
    kda_tensor x;       // [N,3*H*128] bf16: q, k, v; any row stride
    kda_tensor weight;  // [3,4,H*128] f32: of q, k, v; tap 3 multiplies x, tap 0 the oldest value
    kda_tensor conv_state;  // [num_slots,3*H*128,3] bf16, strides {any multiple of 4, 1, 3*H*128}:
                            // the last three x of each channel, tap 0 the oldest; 8-byte aligned
    kda_tensor raw_gate;    // [1,N,H,128] bf16, compact
    kda_tensor raw_beta;    // [1,N,H] bf16, any row stride
    kda_tensor a_log;       // [H] f32
    kda_tensor dt_bias;     // [H*128] f32
    kda_tensor state_indices;  // [N] i32
    kda_tensor state;  // [num_slots,H,128,128] f32 or bf16; slot stride a multiple of 8; 32-byte
                       // aligned if f32, 16-byte if bf16
    kda_tensor output_gate;  // [N,H,128] or [1,N,H,128] bf16, any row stride
    kda_tensor norm_weight;  // [128] f32
    kda_tensor out;          // [1,N,H,128] bf16, compact, 8-byte aligned
    kda_gate gate;           // KDA_GATE_LOWER_BOUND or KDA_GATE_SOFTPLUS
    kda_mode mode;           // mandatory
    float lower_bound;       // < 0 with the lower bound gate, else 0
    float norm_eps;          // >= 0, added to the mean square of the output
    uint32_t flags;          // KDA_FLAG_PDL
    uint32_t reserved32;
    uint64_t reserved[4];
} kda_fused_args;

// Outputs of a window of T = 1..16 tokens per row, starting from the pool's states, which stay as
// they are. All three gate kinds; beta as given or as a logit.
//   batched  q, k [N,T,H,128]  v, g, out [N,T,HV,128]  beta [N,T,HV]
//   packed   q, k [tok,H,128]  v, g, out [tok,HV,128]  beta [tok,HV], with cu_seqlens; tok <= N*T
// In the packed form T is num_spec_tokens + 1 if given, else the token dimension of the caches if
// given, else 16. A longer row is cut there. tok = 0 is checked as any call and succeeds without a
// launch. Token strides are free, and no token tensor needs more than 2-byte alignment. A slot is
// live if null_min <= slot < num_slots; with caches, live slots of different rows must differ.
// For token t of a live row the caches receive what a later commit needs: the f32 correction
// w = beta*(v - S k), and the raw key and gate, bit for bit. Everything else in them keeps its
// bits. A NaN or an infinity in a token may reach all outputs and corrections of its row, those of
// earlier tokens too, and never those of another row.
typedef struct kda_verify_args {
    kda_tensor q, k, v, g, beta;
    kda_tensor a_log;    // [H] f32; with a gate that the kernel computes, only then
    kda_tensor dt_bias;  // [H,128] f32; optional with such a gate, then 0
    kda_tensor state;    // [num_slots,HV,128,128] bf16, as for recurrent decode; read only, and no
                         // other tensor may lie in it
    kda_tensor out;
    kda_tensor ssm_state_indices;  // optional [N] i32; default slot n
    kda_tensor cu_seqlens;         // optional [N+1] i32: the packed form
    kda_tensor correction_cache;   // optional [num_slots,HV,T_cache,128] f32, T_cache >= T; 16-byte
                                   // aligned, outer strides multiples of 4 and at least 128
    kda_tensor kg_cache;           // [num_slots,HV,T_cache,256] bf16, with correction_cache only;
                                   // outer strides at least 256
    kda_tensor num_accepted_tokens;  // must be omitted: acceptance is the commit's
    kda_gate gate;
    int32_t num_spec_tokens;  // T - 1, >= 0; needs KDA_FLAG_SPECULATIVE
    int32_t null_min;         // the first live slot, >= 0; 1 makes slot 0 null
    int32_t beta_is_logit;    // 1: beta = sigmoid(beta)
    float scale;              // finite; of q after normalization, usually 128^-0.5
    float lower_bound;        // < 0 with the lower bound gate, else 0
    uint32_t flags;           // KDA_FLAG_*
    uint32_t reserved32;
    uint64_t reserved[4];
} kda_verify_args;

// Folds the first accepted tokens of a verified window into the pool, in place: the state that
// decoding them one by one would have stored. A row of 0 accepted tokens, or of a null slot, keeps
// the bits of its state. Live slots of different rows must differ, and the caches must hold a
// verify, from this very state, of at least as many tokens as are accepted. T_cache may be larger
// than any window: a problem's T is the smaller one of T_cache and 16.
typedef struct kda_commit_args {
    kda_tensor state;             // as for kda_verify; updated
    kda_tensor correction_cache;  // as for kda_verify; read
    kda_tensor kg_cache;
    kda_tensor ssm_state_indices;    // optional [N] i32; default slot n
    kda_tensor num_accepted_tokens;  // [N] i32, clamped to 0 .. T_cache
    kda_tensor a_log, dt_bias;       // those of the verify call
    kda_gate gate;                   // likewise, and the rest
    int32_t heads;                   // H
    int32_t null_min;
    float lower_bound;
    uint32_t flags;  // KDA_FLAG_PDL
    uint32_t reserved32;
    uint64_t reserved[4];
} kda_commit_args;

KDA_API kda_status kda_recurrent(kda_context *context, const kda_recurrent_args *args,
                                 CUstream stream, kda_error *err);
KDA_API kda_status kda_packed(kda_context *context, const kda_packed_args *args, CUstream stream,
                              kda_error *err);
KDA_API kda_status kda_fused(kda_context *context, const kda_fused_args *args, CUstream stream,
                             kda_error *err);
KDA_API kda_status kda_verify(kda_context *context, const kda_verify_args *args, CUstream stream,
                              kda_error *err);
KDA_API kda_status kda_commit(kda_context *context, const kda_commit_args *args, CUstream stream,
                              kda_error *err);

// A validated, routed and bound call: the same addresses can be launched again and again. Owned by
// the caller, plain memory, may be copied; needs no destruction. Valid while its context is open.
// Launching is thread-safe.
typedef struct kda_plan {
    uint64_t opaque[64];
} kda_plan;

// Plans a call. `body` and `target` (optional) force a body of the same operator, T and gate, and a
// target; this is the only way to a body that no route selects. The image is loaded if it is not
// yet, which a capture that the driver can see forbids: then it is KDA_E_NOT_PREPARED. Errors:
// those of the operation, and NAME.
KDA_API kda_status kda_recurrent_plan(kda_context *context, const kda_recurrent_args *args,
                                      const char *body, const char *target, kda_plan *out,
                                      kda_error *err);
KDA_API kda_status kda_packed_plan(kda_context *context, const kda_packed_args *args,
                                   const char *body, const char *target, kda_plan *out,
                                   kda_error *err);
KDA_API kda_status kda_fused_plan(kda_context *context, const kda_fused_args *args,
                                  const char *body, const char *target, kda_plan *out,
                                  kda_error *err);
KDA_API kda_status kda_verify_plan(kda_context *context, const kda_verify_args *args,
                                   const char *body, const char *target, kda_plan *out,
                                   kda_error *err);
KDA_API kda_status kda_commit_plan(kda_context *context, const kda_commit_args *args,
                                   const char *body, const char *target, kda_plan *out,
                                   kda_error *err);

// One driver call: the launch. Errors: ARGUMENT (not a plan), DRIVER, CONTEXT_LOST, FORKED.
KDA_API kda_status kda_plan_launch(const kda_plan *plan, CUstream stream, kda_error *err);

#ifdef __cplusplus
}
#endif
#endif
