// SPDX-License-Identifier: Apache-2.0
//
// The operations of kda.h over DLPack tensors, for callers that hold a DLTensor: Python frameworks,
// inference runtimes. Each call reads its tensors as kda_tensor, which checks the codes of device
// and type, and then is the plain call: every other rule, its status and its text are those of
// kda.h.
//
// dlpack.h is not needed. Where it was included before this header its DLTensor is what the calls
// take; elsewhere the structs below are, which have the same layout.
#ifndef KDA_DLPACK_H
#define KDA_DLPACK_H

#include "kda.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef DLPACK_DLPACK_H_
typedef DLTensor kda_dl_tensor;
#else
typedef struct kda_dl_tensor {
    void *data;  // of an opaque allocation; on CUDA a device address
    struct {
        int32_t device_type;  // 2: CUDA, 13: CUDA managed
        int32_t device_id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code;  // 0: signed integer, 2: IEEE float, 4: bfloat
        uint8_t bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape;
    int64_t *strides;  // in elements; NULL: compact
    uint64_t byte_offset;
} kda_dl_tensor;
#endif

// Reads `tensor` as *out. `operation` and `name` are what a refusal calls the call and the tensor.
// A tensor without elements may have no address; it gets one that is never read. The stride of a
// dimension of extent 1 or 0, where frameworks leave anything, is not read: it becomes that of a
// compact tensor. Errors: ARGUMENT (not on the context's CUDA device), TYPE (no kda_dtype). More
// dimensions than KDA_MAX_RANK are left to the call, which refuses them.
KDA_API kda_status kda_tensor_from_dlpack(const kda_context *context, const kda_dl_tensor *tensor,
                                          const char *operation, const char *name, kda_tensor *out,
                                          kda_error *err);

// How a framework says what one of its objects is: 0 and *out, whose arrays stay its own, else not
// 0. DLPack's exchange API has one as dltensor_from_py_object_no_sync, to be called with the GIL
// held.
typedef int (*kda_dl_reader)(void *object, kda_dl_tensor *out);

// The tensors of a call by address, and the rest of it. A tensor whose address is NULL is taken
// from `plain`, where an omitted one is all zero. With `read` the addresses are those of a
// framework's objects, and no DLTensor has to be made; an object that cannot be read is ARGUMENT.
typedef struct kda_recurrent_dlpack_args {
    const kda_dl_tensor *q, *k, *v, *g, *beta, *a_log, *dt_bias, *state, *out, *ssm_state_indices,
        *cu_seqlens, *num_accepted_tokens, *initial_state;
    kda_dl_reader read;
    kda_recurrent_args plain;
} kda_recurrent_dlpack_args;

typedef struct kda_packed_dlpack_args {
    const kda_dl_tensor *mixed_qkv, *raw_gate, *raw_beta, *a_log, *dt_bias, *state, *state_indices,
        *out;
    kda_dl_reader read;
    kda_packed_args plain;
} kda_packed_dlpack_args;

typedef struct kda_fused_dlpack_args {
    const kda_dl_tensor *x, *weight, *conv_state, *raw_gate, *raw_beta, *a_log, *dt_bias,
        *state_indices, *state, *output_gate, *norm_weight, *out;
    kda_dl_reader read;
    kda_fused_args plain;
} kda_fused_dlpack_args;

typedef struct kda_verify_dlpack_args {
    const kda_dl_tensor *q, *k, *v, *g, *beta, *a_log, *dt_bias, *state, *out, *ssm_state_indices,
        *cu_seqlens, *correction_cache, *kg_cache, *num_accepted_tokens;
    kda_dl_reader read;
    kda_verify_args plain;
} kda_verify_dlpack_args;

typedef struct kda_commit_dlpack_args {
    const kda_dl_tensor *state, *correction_cache, *kg_cache, *ssm_state_indices,
        *num_accepted_tokens, *a_log, *dt_bias;
    kda_dl_reader read;
    kda_commit_args plain;
} kda_commit_dlpack_args;

// Errors: those of kda_tensor_from_dlpack, then those of the plain call.
KDA_API kda_status kda_recurrent_dlpack(kda_context *context, const kda_recurrent_dlpack_args *args,
                                        CUstream stream, kda_error *err);
KDA_API kda_status kda_packed_dlpack(kda_context *context, const kda_packed_dlpack_args *args,
                                     CUstream stream, kda_error *err);
KDA_API kda_status kda_fused_dlpack(kda_context *context, const kda_fused_dlpack_args *args,
                                    CUstream stream, kda_error *err);
KDA_API kda_status kda_verify_dlpack(kda_context *context, const kda_verify_dlpack_args *args,
                                     CUstream stream, kda_error *err);
KDA_API kda_status kda_commit_dlpack(kda_context *context, const kda_commit_dlpack_args *args,
                                     CUstream stream, kda_error *err);

#ifdef __cplusplus
}
#endif
#endif
