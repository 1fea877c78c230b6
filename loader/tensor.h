// SPDX-License-Identifier: Apache-2.0
// The rules that every tensor of every operation obeys, each written once: presence, type, shape,
// stride, alignment, address range, overlap. An operation is a table of operands; a call is that
// table over one args struct. Each rule is a function, because the order of the rules is the
// operation's to keep.
#ifndef KDA_LOADER_TENSOR_H
#define KDA_LOADER_TENSOR_H

#include <stdbool.h>
#include <stddef.h>

#include "loader/kda.h"

#define KDA_MAX_OPERANDS 12

struct kda_operand {
    const char *name;
    size_t offset;  // of its kda_tensor in the args struct
    kda_dtype type;
    uint8_t alignment;  // of the base address, bytes, a power of two
    bool optional;
    bool written;
};

struct kda_range {
    uint64_t begin, end;  // device addresses; empty for an omitted tensor
};

struct kda_call {
    const char *operation;  // begins every message
    const struct kda_operand *operands;
    uint32_t count;
    const void *args;
    // Per rule over all operands the first one that breaks it, else `count`.
    uint32_t not_present, not_typed, not_ranged, not_aligned;
    struct kda_range ranges[KDA_MAX_OPERANDS];   // good once kda_call_ranges has passed
    uint8_t compact_from[KDA_MAX_OPERANDS];      // dimensions from this one on are compact
};

static inline const kda_tensor *kda_call_tensor(const struct kda_call *call, uint32_t i)
{
    return (const kda_tensor *)(const void *)((const char *)call->args + call->operands[i].offset);
}

static inline bool kda_tensor_given(const kda_tensor *tensor) { return tensor->data != NULL; }

// Fills `out`. Looks at every operand once, so that a rule over all of them that holds costs a
// single comparison; which broken rule is reported is decided by who asks for them, in order.
void kda_call_survey(const char *operation, const struct kda_operand *operands, uint32_t count,
                     const void *args, struct kda_call *out);

// Over all operands. ARGUMENT: a mandatory tensor without address, an omitted one with a shape, a
// rank out of range.
kda_status kda_call_present(const struct kda_call *call, kda_error *err);
// TYPE: an element type that is not the operand's.
kda_status kda_call_types(const struct kda_call *call, kda_error *err);
// LIMIT: a byte range that does not fit 64 bits.
kda_status kda_call_ranges(const struct kda_call *call, kda_error *err);
// ALIGNMENT: of the base addresses.
kda_status kda_call_alignments(const struct kda_call *call, kda_error *err);
// OVERLAP: a written tensor and any other one share a byte. Ranges that touch do not.
kda_status kda_call_overlaps(const struct kda_call *call, kda_error *err);

// Of operand `i`. SHAPE: rank and extents must be exactly these; `note` (may be "") ends the
// message.
kda_status kda_operand_misshapen(const struct kda_call *call, uint32_t i, uint32_t rank,
                                 const int64_t *extents, const char *note, kda_error *err);
static inline kda_status kda_operand_shape(const struct kda_call *call, uint32_t i, uint32_t rank,
                                           const int64_t *extents, const char *note, kda_error *err)
{
    const kda_tensor *const tensor = kda_call_tensor(call, i);
    bool same = tensor->rank == rank;
    for (uint32_t j = 0; same && j < rank; j++) same = tensor->extent[j] == extents[j];
    return same ? KDA_OK : kda_operand_misshapen(call, i, rank, extents, note, err);
}
// SHAPE: rank 1 or 2, and at least so many elements.
kda_status kda_operand_least(const struct kda_call *call, uint32_t i, int64_t elements,
                             kda_error *err);
// STRIDE: dimensions from `inner` on must be compact, every stride at least 1.
kda_status kda_operand_compact(const struct kda_call *call, uint32_t i, uint32_t inner,
                               kda_error *err);
// STRIDE: stride[dim] must be at least `least` and a multiple of `multiple`, a power of two.
kda_status kda_operand_pitch(const struct kda_call *call, uint32_t i, uint32_t dim, int64_t least,
                             int64_t multiple, kda_error *err);

#endif
