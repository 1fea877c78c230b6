// SPDX-License-Identifier: Apache-2.0
// The rules that every tensor of every operation obeys, each written once: presence, type, shape,
// stride, alignment, address range, overlap. An operation is a table of operands; a call is that
// table over one args struct. Each rule is a function, because the order of the rules is the
// operation's to keep.
#ifndef KDA_LOADER_TENSOR_H
#define KDA_LOADER_TENSOR_H

#include <stdbool.h>
#include <stddef.h>

#include "loader/checked.h"
#include "loader/kda.h"

#define KDA_MAX_OPERANDS 13

struct kda_operand {
    const char *name;
    size_t offset;  // of its kda_tensor in the args struct
    kda_dtype type;
    uint8_t alignment;  // of the base address, bytes, a power of two
    bool optional;
    bool alone;  // shares no byte with another one: what is written, and the pool
};

struct kda_call {
    const char *operation;  // begins every message
    const struct kda_operand *operands;
    uint32_t count;
    const void *args;
    uint32_t apart[2];  // two operands that are known to be disjoint, or twice the same
};

struct kda_range {
    uint64_t begin, end;  // device addresses; empty for an omitted tensor
};

static inline const kda_tensor *kda_call_tensor(const struct kda_call *call, uint32_t i)
{
    return (const kda_tensor *)(const void *)((const char *)call->args + call->operands[i].offset);
}

static inline uint32_t kda_type_size(kda_dtype type)
{
    return type == KDA_I64 ? 8 : type == KDA_F32 || type == KDA_I32 ? 4 : 2;
}

// "bf16"; "unknown" if it is no type.
const char *kda_type_name(kda_dtype type);

static inline bool kda_tensor_given(const kda_tensor *tensor) { return tensor->data != NULL; }

// Does every operand pass kda_call_present and kda_call_types?
bool kda_call_plain(const struct kda_call *call);

// Over all operands. ARGUMENT: a mandatory tensor without address, an omitted one with a shape, a
// rank out of range.
kda_status kda_call_present(const struct kda_call *call, kda_error *err);
// TYPE: an element type that is not the operand's.
kda_status kda_call_types(const struct kda_call *call, kda_error *err);
// LIMIT: a byte range that does not fit 64 bits. Writes call->count ranges.
kda_status kda_call_ranges(const struct kda_call *call, struct kda_range *out, kda_error *err);
// ALIGNMENT: of the base addresses.
kda_status kda_call_alignments(const struct kda_call *call, kda_error *err);
// OVERLAP: a tensor that must lie alone and any other one, not known to be apart, share a byte.
// Ranges that touch do not.
kda_status kda_call_overlaps(const struct kda_call *call, const struct kda_range *ranges,
                             kda_error *err);

// Of operand `i`. SHAPE: rank and extents must be exactly these; `note` (may be "") ends the
// message.
kda_status kda_operand_shape(const struct kda_call *call, uint32_t i, uint32_t rank,
                             const int64_t *extents, const char *note, kda_error *err);
// SHAPE: rank 1 or 2, and at least so many elements.
kda_status kda_operand_least(const struct kda_call *call, uint32_t i, int64_t elements,
                             kda_error *err);
// STRIDE: dimensions from `inner` on must be compact, every stride at least 1. One of a dimension
// of extent 1 or 0 leads nowhere, so any is compact there.
kda_status kda_operand_compact(const struct kda_call *call, uint32_t i, uint32_t inner,
                               kda_error *err);
// STRIDE: stride[dim] must be exactly this.
kda_status kda_operand_stride(const struct kda_call *call, uint32_t i, uint32_t dim, int64_t wanted,
                              kda_error *err);
// STRIDE: stride[dim] must be at least `least` and a multiple of `multiple`, a power of two.
kda_status kda_operand_pitch(const struct kda_call *call, uint32_t i, uint32_t dim, int64_t least,
                             int64_t multiple, kda_error *err);

// ------------------------------------------------------------------------------------ all at once

// Range, shape, strides and alignment of an operand that is plainly right. It has `count` blocks of
// extents[1..rank), which are compact; stride[0] is the size of a block, or with a `multiple` at
// least that. False says nothing: only the rules know what is wrong, if anything is. `extents` and
// `count` must have passed the limits, so that no product of theirs overflows.
static inline bool kda_operand_fits(const struct kda_call *call, uint32_t i, uint32_t rank,
                                    const int64_t *extents, int64_t count, int64_t multiple,
                                    struct kda_range *out)
{
    const struct kda_operand *const operand = &call->operands[i];
    const kda_tensor *const tensor = kda_call_tensor(call, i);
    const uint64_t begin = (uint64_t)(uintptr_t)tensor->data;
    if (tensor->rank != rank || begin & (operand->alignment - 1U)) return false;
    int64_t size = 1, wrong = tensor->extent[0] ^ count;
    for (uint32_t j = rank - 1; j > 0; j--) {
        wrong |= (tensor->extent[j] ^ extents[j]) | (tensor->stride[j] ^ size);
        size *= extents[j];
    }
    const int64_t stride = tensor->stride[0];
    // Below 2^30, so that 2^31 blocks fit 64 bits.
    if (wrong ||
        (multiple ? stride < size || stride >> 30 || stride & (multiple - 1) : stride != size))
        return false;
    const uint64_t elements = (uint64_t)((count - 1) * stride + size);
    *out = (struct kda_range){begin, begin + elements * kda_type_size(operand->type)};
    return out->end > begin;
}

// The same of a vector of `count`, which may be omitted.
static inline bool kda_vector_fits(const struct kda_call *call, uint32_t i, int64_t count,
                                   struct kda_range *out)
{
    *out = (struct kda_range){0, 0};
    return !kda_tensor_given(kda_call_tensor(call, i)) ||
           kda_operand_fits(call, i, 1, NULL, count, 0, out);
}

// Does operand `a` share no byte with any other one?
static inline bool kda_range_alone(const struct kda_range *ranges, uint32_t count, uint32_t a)
{
    const struct kda_range x = ranges[a];
    bool meet = false;
    for (uint32_t i = 0; i < count; i++)
        meet |= i != a && x.begin < ranges[i].end && ranges[i].begin < x.end;
    return !meet;
}

static inline unsigned long long kda_tensor_address(const kda_tensor *tensor)
{
    return (unsigned long long)(uintptr_t)tensor->data;
}

#endif
