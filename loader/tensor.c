// SPDX-License-Identifier: Apache-2.0
// Owns the tensor rules that tensor.h lists, and the wording of their messages. Knows no operation:
// what is allowed comes in as an operand table and numbers. Invariant: no rule computes with an
// unchecked product of caller's numbers.
#include "loader/tensor.h"

#include <inttypes.h>
#include <stdio.h>

#include "loader/checked.h"
#include "loader/error.h"

static const struct {
    const char *name;
    int64_t size;
} types[] = {
    [KDA_BF16] = {"bf16", 2}, [KDA_F32] = {"f32", 4}, [KDA_I32] = {"i32", 4},
    [KDA_F16] = {"f16", 2},   [KDA_I64] = {"i64", 8},
};

static const char *type_name(kda_dtype type)
{
    const size_t i = (size_t)type;
    return i < sizeof(types) / sizeof(types[0]) && types[i].name ? types[i].name : "unknown";
}

// "[4,16,128]" in a buffer of at least 96 bytes.
static const char *extents_text(uint32_t rank, const int64_t *extents, char *out, size_t size)
{
    size_t used = 0;
    for (uint32_t i = 0; i < rank && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%c%" PRId64, i ? ',' : '[', extents[i]);
    if (used < size) (void)snprintf(out + used, size - used, "]");
    return out;
}

// ----------------------------------------------------------------------------------------- one operand

static bool is_present(const struct kda_operand *operand, const kda_tensor *tensor)
{
    if (kda_tensor_given(tensor)) return tensor->rank - 1 < KDA_MAX_RANK;
    return operand->optional && !tensor->rank;
}

static bool has_type(const struct kda_operand *operand, const kda_tensor *tensor)
{
    return !kda_tensor_given(tensor) || tensor->dtype == operand->type;
}

static uintptr_t misalignment(const struct kda_operand *operand, const kda_tensor *tensor)
{
    return (uintptr_t)tensor->data & (operand->alignment - 1U);
}

// The byte range, and from which dimension on it is compact. False when the addresses, or a number
// on the way to them, do not fit 64 bits.
static bool measure(const struct kda_operand *operand, const kda_tensor *tensor,
                    struct kda_range *out, uint8_t *out_compact_from)
{
    const uint64_t begin = (uint64_t)(uintptr_t)tensor->data;
    *out = (struct kda_range){begin, begin};
    if (!begin) return true;
    bool empty = false;
    uint32_t compact_from = tensor->rank;
    int64_t span = 1, compact = 1;  // elements from the first to past the last one; if compact
    for (uint32_t i = tensor->rank; i-- > 0;) {
        const int64_t extent = tensor->extent[i], stride = tensor->stride[i];
        int64_t steps, step;
        empty |= extent <= 0;
        if (kda_add_overflows(extent, -1, &steps) || kda_mul_overflows(steps, stride, &step) ||
            kda_add_overflows(span, step, &span))
            return false;
        if (compact_from == i + 1 && stride == compact &&
            !kda_mul_overflows(compact, extent, &compact))
            compact_from = i;
    }
    *out_compact_from = (uint8_t)compact_from;
    // A negative stride is refused later; until then it spans nothing.
    if (empty || span < 0) return true;
    int64_t bytes;
    return !kda_mul_overflows(span, types[operand->type].size, &bytes) &&
           !kda_uadd_overflows(begin, (uint64_t)bytes, &out->end);
}

// ---------------------------------------------------------------------------------------- all operands

void kda_call_survey(const char *operation, const struct kda_operand *operands, uint32_t count,
                     const void *args, struct kda_call *out)
{
    out->operation = operation;
    out->operands = operands;
    out->count = count;
    out->args = args;
    out->not_present = out->not_typed = out->not_ranged = out->not_aligned = count;
    for (uint32_t i = count; i-- > 0;) {  // down: the first offender is written last
        const struct kda_operand *const operand = &operands[i];
        const kda_tensor *const tensor = kda_call_tensor(out, i);
        if (!is_present(operand, tensor)) {
            out->not_present = i;  // its rank bounds nothing, and no other rule will be asked
            continue;
        }
        if (!has_type(operand, tensor)) out->not_typed = i;
        if (misalignment(operand, tensor)) out->not_aligned = i;
        if (!measure(operand, tensor, &out->ranges[i], &out->compact_from[i])) out->not_ranged = i;
    }
}

kda_status kda_call_present(const struct kda_call *call, kda_error *err)
{
    const uint32_t i = call->not_present;
    if (i == call->count) return KDA_OK;
    const char *const name = call->operands[i].name;
    const kda_tensor *const tensor = kda_call_tensor(call, i);
    if (kda_tensor_given(tensor))
        return kda_fail(err, KDA_E_ARGUMENT, "%s: %s has rank %u, must be 1 to %d", call->operation,
                        name, tensor->rank, KDA_MAX_RANK);
    if (!call->operands[i].optional)
        return kda_fail(err, KDA_E_ARGUMENT, "%s: %s is null, it is mandatory", call->operation,
                        name);
    return kda_fail(err, KDA_E_ARGUMENT,
                    "%s: %s is null but has rank %u, an omitted tensor must be all zero",
                    call->operation, name, tensor->rank);
}

kda_status kda_call_types(const struct kda_call *call, kda_error *err)
{
    const uint32_t i = call->not_typed;
    if (i == call->count) return KDA_OK;
    const kda_dtype found = kda_call_tensor(call, i)->dtype;
    return kda_fail(err, KDA_E_TYPE, "%s: %s has type %s (%d), must be %s", call->operation,
                    call->operands[i].name, type_name(found), (int)found,
                    type_name(call->operands[i].type));
}

kda_status kda_call_ranges(const struct kda_call *call, kda_error *err)
{
    const uint32_t i = call->not_ranged;
    if (i == call->count) return KDA_OK;
    const kda_tensor *const tensor = kda_call_tensor(call, i);
    char extents[96], strides[96];
    return kda_fail(err, KDA_E_LIMIT,
                    "%s: the byte range of %s overflows 64 bits: extents %s, strides %s",
                    call->operation, call->operands[i].name,
                    extents_text(tensor->rank, tensor->extent, extents, sizeof(extents)),
                    extents_text(tensor->rank, tensor->stride, strides, sizeof(strides)));
}

kda_status kda_call_alignments(const struct kda_call *call, kda_error *err)
{
    const uint32_t i = call->not_aligned;
    if (i == call->count) return KDA_OK;
    const struct kda_operand *const operand = &call->operands[i];
    return kda_fail(err, KDA_E_ALIGNMENT, "%s: the address of %s modulo %u is %u, must be 0",
                    call->operation, operand->name, operand->alignment,
                    (unsigned)misalignment(operand, kda_call_tensor(call, i)));
}

kda_status kda_call_overlaps(const struct kda_call *call, kda_error *err)
{
    const struct kda_range *const ranges = call->ranges;
    for (uint32_t i = 0; i < call->count; i++) {
        if (!call->operands[i].written) continue;
        const uint64_t begin = ranges[i].begin, end = ranges[i].end;
        for (uint32_t j = 0; j < call->count; j++) {
            if (begin >= ranges[j].end || ranges[j].begin >= end || j == i) continue;
            return kda_fail(err, KDA_E_OVERLAP,
                            "%s: %s [0x%" PRIx64 ", 0x%" PRIx64 ") overlaps %s [0x%" PRIx64
                            ", 0x%" PRIx64 "), they must be disjoint",
                            call->operation, call->operands[i].name, begin, end,
                            call->operands[j].name, ranges[j].begin, ranges[j].end);
        }
    }
    return KDA_OK;
}

// ----------------------------------------------------------------------------------- shapes and strides

kda_status kda_operand_misshapen(const struct kda_call *call, uint32_t i, uint32_t rank,
                                 const int64_t *extents, const char *note, kda_error *err)
{
    const kda_tensor *const tensor = kda_call_tensor(call, i);
    char found[96], wanted[96];
    return kda_fail(err, KDA_E_SHAPE, "%s: %s has shape %s, must be %s%s%s", call->operation,
                    call->operands[i].name,
                    extents_text(tensor->rank, tensor->extent, found, sizeof(found)),
                    extents_text(rank, extents, wanted, sizeof(wanted)), *note ? ", " : "", note);
}

kda_status kda_operand_least(const struct kda_call *call, uint32_t i, int64_t elements,
                             kda_error *err)
{
    const kda_tensor *const tensor = kda_call_tensor(call, i);
    int64_t count = tensor->extent[0];
    if (tensor->rank == 2 && kda_mul_overflows(count, tensor->extent[1], &count))
        return kda_fail(err, KDA_E_LIMIT,
                        "%s: the element count of %s, %" PRId64 " * %" PRId64 ", overflows 64 bits",
                        call->operation, call->operands[i].name, tensor->extent[0],
                        tensor->extent[1]);
    if (tensor->rank <= 2 && tensor->extent[0] > 0 && count >= elements) return KDA_OK;
    char found[96];
    return kda_fail(err, KDA_E_SHAPE,
                    "%s: %s has shape %s, must be of rank 1 or 2 with at least %" PRId64
                    " elements",
                    call->operation, call->operands[i].name,
                    extents_text(tensor->rank, tensor->extent, found, sizeof(found)), elements);
}

static kda_status find_gap(const struct kda_call *call, uint32_t i, uint32_t inner, kda_error *err)
{
    const kda_tensor *const tensor = kda_call_tensor(call, i);
    int64_t compact = 1;
    for (uint32_t j = tensor->rank; j-- > inner;) {
        if (tensor->stride[j] != compact)
            return kda_fail(err, KDA_E_STRIDE, "%s: %s stride[%u] is %" PRId64 ", must be %" PRId64,
                            call->operation, call->operands[i].name, j, tensor->stride[j], compact);
        if (j > inner && kda_mul_overflows(compact, tensor->extent[j], &compact))
            return kda_fail(err, KDA_E_LIMIT, "%s: the extents of %s overflow 64 bits",
                            call->operation, call->operands[i].name);
    }
    return KDA_OK;
}

kda_status kda_operand_compact(const struct kda_call *call, uint32_t i, uint32_t inner,
                               kda_error *err)
{
    const kda_status status =
        call->compact_from[i] <= inner ? KDA_OK : find_gap(call, i, inner, err);
    if (status != KDA_OK) return status;
    const int64_t *const stride = kda_call_tensor(call, i)->stride;
    for (uint32_t j = 0; j < inner; j++) {
        if (stride[j] < 1)
            return kda_fail(err, KDA_E_STRIDE,
                            "%s: %s stride[%u] is %" PRId64 ", must be at least 1", call->operation,
                            call->operands[i].name, j, stride[j]);
    }
    return KDA_OK;
}

kda_status kda_operand_pitch(const struct kda_call *call, uint32_t i, uint32_t dim, int64_t least,
                             int64_t multiple, kda_error *err)
{
    const int64_t stride = kda_call_tensor(call, i)->stride[dim];
    if (stride >= least && !(stride & (multiple - 1))) return KDA_OK;
    return kda_fail(err, KDA_E_STRIDE,
                    "%s: %s stride[%u] is %" PRId64 ", must be at least %" PRId64
                    " and a multiple of %" PRId64,
                    call->operation, call->operands[i].name, dim, stride, least, multiple);
}
