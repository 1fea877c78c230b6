// SPDX-License-Identifier: Apache-2.0
// Owns the reading of DLPack tensors. Knows of an operation only the names of its tensors, in the
// order of both of its argument structs; what they may be is the plain call's to say. Invariant: a
// call's own struct is filled from a copy, the caller's is never written.
#include "loader/kda_dlpack.h"

#include <inttypes.h>
#include <string.h>

#include "loader/context.h"
#include "loader/error.h"

enum { DL_CUDA = 2, DL_CUDA_MANAGED = 13 };
enum { DL_INT = 0, DL_FLOAT = 2, DL_BFLOAT = 4 };

// What an empty tensor without an address gets: aligned for every operand, and in nobody's range.
#define EMPTY_ADDRESS ((void *)(uintptr_t)4096)

static const struct {
    uint8_t code, bits;
    kda_dtype type;
} types[] = {{DL_BFLOAT, 16, KDA_BF16},
             {DL_FLOAT, 32, KDA_F32},
             {DL_INT, 32, KDA_I32},
             {DL_FLOAT, 16, KDA_F16},
             {DL_INT, 64, KDA_I64}};

static kda_status read_type(const kda_dl_tensor *tensor, const char *operation, const char *name,
                            kda_dtype *out, kda_error *err)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (tensor->dtype.code != types[i].code || tensor->dtype.bits != types[i].bits ||
            tensor->dtype.lanes != 1)
            continue;
        *out = types[i].type;
        return KDA_OK;
    }
    return kda_fail(err, KDA_E_TYPE,
                    "%s: %s has DLPack type code %u of %u bits and %u lanes, must be one lane of "
                    "bfloat (4) of 16, float (2) of 32 or signed integer (0) of 32 bits",
                    operation, name, tensor->dtype.code, tensor->dtype.bits, tensor->dtype.lanes);
}

kda_status kda_tensor_from_dlpack(const kda_context *context, const kda_dl_tensor *tensor,
                                  const char *operation, const char *name, kda_tensor *out,
                                  kda_error *err)
{
    if (!context || !tensor || !operation || !name || !out)
        return kda_fail(err, KDA_E_ARGUMENT, "tensor from dlpack: %s is null",
                        !context     ? "context"
                        : !tensor    ? "tensor"
                        : !operation ? "operation"
                        : !name      ? "name"
                                     : "out");
    const int32_t device = (int32_t)tensor->device.device_type;
    if ((device != DL_CUDA && device != DL_CUDA_MANAGED) ||
        tensor->device.device_id != context->ordinal)
        return kda_fail(err, KDA_E_ARGUMENT,
                        "%s: %s is on DLPack device (%d, %d), must be on the context's, (%d, %d)",
                        operation, name, device, tensor->device.device_id, DL_CUDA,
                        context->ordinal);
    kda_tensor result = {.rank = (uint32_t)tensor->ndim};
    const kda_status status = read_type(tensor, operation, name, &result.dtype, err);
    if (status != KDA_OK) return status;
    const uint32_t rank = result.rank < KDA_MAX_RANK ? result.rank : KDA_MAX_RANK;
    bool empty = false;
    uint64_t compact = 1;
    for (uint32_t i = rank; i-- > 0;) {
        const bool leads = tensor->strides && tensor->shape[i] > 1;
        result.extent[i] = tensor->shape[i];
        result.stride[i] = leads ? tensor->strides[i] : (int64_t)compact;
        // Wraps only for extents whose byte range the call refuses.
        compact *= (uint64_t)tensor->shape[i];
        empty |= tensor->shape[i] == 0;
    }
    result.data = tensor->data || !empty ? tensor->data : EMPTY_ADDRESS;
    if (result.data) result.data = (char *)result.data + tensor->byte_offset;
    *out = result;
    return KDA_OK;
}

// Tensor i of both structs has name i.
static kda_status read_all(const kda_context *context, const char *operation,
                           const char *const *names, size_t count, const void *addresses,
                           kda_dl_reader read, void *plain, kda_error *err)
{
    for (size_t i = 0; i < count; i++) {
        void *address;
        memcpy(&address, (const char *)addresses + i * sizeof(address), sizeof(address));
        if (!address) continue;
        kda_dl_tensor view;
        if (read && read(address, &view))
            return kda_fail(err, KDA_E_ARGUMENT,
                            "%s: %s cannot be read by its framework, must be a tensor of it",
                            operation, names[i]);
        kda_tensor tensor;
        const kda_status status = kda_tensor_from_dlpack(context, read ? &view : address, operation,
                                                         names[i], &tensor, err);
        if (status != KDA_OK) return status;
        memcpy((char *)plain + i * sizeof(tensor), &tensor, sizeof(tensor));
    }
    return KDA_OK;
}

// `next` is the first member of the plain struct that is no tensor.
#define OPERATION(op, next, ...)                                                                   \
    kda_status kda_##op##_dlpack(kda_context *context, const kda_##op##_dlpack_args *args,         \
                                 CUstream stream, kda_error *err)                                  \
    {                                                                                              \
        static const char *const names[] = {__VA_ARGS__};                                          \
        enum { COUNT = sizeof(names) / sizeof(names[0]) };                                         \
        _Static_assert(offsetof(kda_##op##_args, next) == COUNT * sizeof(kda_tensor), #op);        \
        _Static_assert(offsetof(kda_##op##_dlpack_args, read) == COUNT * sizeof(void *), #op);     \
        if (!context || !args) return kda_##op(context, args ? &args->plain : NULL, stream, err);  \
        kda_##op##_args plain = args->plain;                                                       \
        const kda_status status =                                                                  \
            read_all(context, #op, names, COUNT, args, args->read, &plain, err);                   \
        return status == KDA_OK ? kda_##op(context, &plain, stream, err) : status;                 \
    }

OPERATION(recurrent, gate, "q", "k", "v", "g", "beta", "A_log", "dt_bias", "state", "out",
          "ssm_state_indices", "cu_seqlens", "num_accepted_tokens", "initial_state")
OPERATION(packed, flags, "mixed_qkv", "raw_gate", "raw_beta", "A_log", "dt_bias", "state",
          "state_indices", "out")
OPERATION(fused, gate, "x", "weight", "conv_state", "raw_gate", "raw_beta", "A_log", "dt_bias",
          "state_indices", "state", "output_gate", "norm_weight", "out")
OPERATION(verify, gate, "q", "k", "v", "g", "beta", "A_log", "dt_bias", "state", "out",
          "ssm_state_indices", "cu_seqlens", "correction_cache", "kg_cache", "num_accepted_tokens")
OPERATION(commit, gate, "state", "correction_cache", "kg_cache", "ssm_state_indices",
          "num_accepted_tokens", "A_log", "dt_bias")
