// SPDX-License-Identifier: Apache-2.0
// Owns the tensor rules that tensor.h lists, and the wording of their messages. Knows no operation:
// what is allowed comes in as an operand table and numbers. Invariant: no rule computes with an
// unchecked product of caller's numbers.
#include "loader/tensor.h"

#include <inttypes.h>
#include <stdio.h>

#include "loader/checked.h"
#include "loader/error.h"

const char *kda_type_name(kda_dtype type)
{
    static const char *const names[] = {[KDA_BF16] = "bf16",
                                        [KDA_F32] = "f32",
                                        [KDA_I32] = "i32",
                                        [KDA_F16] = "f16",
                                        [KDA_I64] = "i64"};
    const size_t i = (size_t)type;
    return i < sizeof(names) / sizeof(names[0]) && names[i] ? names[i] : "unknown";
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

bool kda_call_plain(const struct kda_call *call)
{
    for (uint32_t i = 0; i < call->count; i++) {
        const struct kda_operand *const operand = &call->operands[i];
        const kda_tensor *const tensor = kda_call_tensor(call, i);
        if (kda_tensor_given(tensor)
                ? tensor->rank - 1 >= KDA_MAX_RANK || tensor->dtype != operand->type
                : !operand->optional || tensor->rank)
            return false;
    }
    return true;
}

kda_status kda_call_present(const struct kda_call *call, kda_error *err)
{
    for (uint32_t i = 0; i < call->count; i++) {
        const struct kda_operand *const operand = &call->operands[i];
        const kda_tensor *const tensor = kda_call_tensor(call, i);
        if (kda_tensor_given(tensor)) {
            if (tensor->rank < 1 || tensor->rank > KDA_MAX_RANK)
                return kda_fail(err, KDA_E_ARGUMENT, "%s: %s has rank %u, must be 1 to %d",
                                call->operation, operand->name, tensor->rank, KDA_MAX_RANK);
        } else if (!operand->optional) {
            return kda_fail(err, KDA_E_ARGUMENT, "%s: %s is null, it is mandatory", call->operation,
                            operand->name);
        } else if (tensor->rank) {
            return kda_fail(err, KDA_E_ARGUMENT,
                            "%s: %s is null but has rank %u, an omitted tensor must be all zero",
                            call->operation, operand->name, tensor->rank);
        }
    }
    return KDA_OK;
}

kda_status kda_call_types(const struct kda_call *call, kda_error *err)
{
    for (uint32_t i = 0; i < call->count; i++) {
        const struct kda_operand *const operand = &call->operands[i];
        const kda_tensor *const tensor = kda_call_tensor(call, i);
        if (kda_tensor_given(tensor) && tensor->dtype != operand->type)
            return kda_fail(err, KDA_E_TYPE, "%s: %s has type %s (%d), must be %s", call->operation,
                            operand->name, kda_type_name(tensor->dtype), (int)tensor->dtype,
                            kda_type_name(operand->type));
    }
    return KDA_OK;
}

// Elements from the first to past the last one, 0 if there are none. True when it does not fit.
static bool span_overflows(const kda_tensor *tensor, int64_t *out)
{
    bool overflow = false, empty = false;
    int64_t span = 1;
    for (uint32_t i = 0; i < tensor->rank; i++) {
        int64_t steps = 0, step = 0;
        empty |= tensor->extent[i] <= 0;
        overflow |= kda_add_overflows(tensor->extent[i], -1, &steps);
        overflow |= kda_mul_overflows(steps, tensor->stride[i], &step);
        overflow |= kda_add_overflows(span, step, &span);
    }
    // A negative stride is refused later; until then it spans nothing.
    *out = empty || span < 0 ? 0 : span;
    return overflow;
}

kda_status kda_call_ranges(const struct kda_call *call, struct kda_range *out, kda_error *err)
{
    for (uint32_t i = 0; i < call->count; i++) {
        const struct kda_operand *const operand = &call->operands[i];
        const kda_tensor *const tensor = kda_call_tensor(call, i);
        const uint64_t begin = (uint64_t)(uintptr_t)tensor->data;
        out[i] = (struct kda_range){begin, begin};
        if (!begin) continue;
        int64_t span = 0, bytes = 0;
        bool overflow = span_overflows(tensor, &span);
        overflow |= kda_mul_overflows(span, kda_type_size(operand->type), &bytes);
        overflow |= kda_uadd_overflows(begin, (uint64_t)bytes, &out[i].end);
        if (overflow) {
            char extents[96], strides[96];
            return kda_fail(err, KDA_E_LIMIT,
                            "%s: the byte range of %s overflows 64 bits: extents %s, strides %s",
                            call->operation, operand->name,
                            extents_text(tensor->rank, tensor->extent, extents, sizeof(extents)),
                            extents_text(tensor->rank, tensor->stride, strides, sizeof(strides)));
        }
    }
    return KDA_OK;
}

kda_status kda_call_alignments(const struct kda_call *call, kda_error *err)
{
    for (uint32_t i = 0; i < call->count; i++) {
        const struct kda_operand *const operand = &call->operands[i];
        const uintptr_t address = (uintptr_t)kda_call_tensor(call, i)->data;
        const uintptr_t excess = address & (operand->alignment - 1U);
        if (excess)
            return kda_fail(err, KDA_E_ALIGNMENT,
                            "%s: the address of %s modulo %u is %u, must be 0", call->operation,
                            operand->name, operand->alignment, (unsigned)excess);
    }
    return KDA_OK;
}

kda_status kda_call_overlaps(const struct kda_call *call, const struct kda_range *ranges,
                             kda_error *err)
{
    for (uint32_t i = 0; i < call->count; i++) {
        if (!call->operands[i].alone) continue;
        const uint64_t begin = ranges[i].begin, end = ranges[i].end;
        for (uint32_t j = 0; j < call->count; j++) {
            const bool empty = begin == end || ranges[j].begin == ranges[j].end;
            if (empty || begin >= ranges[j].end || ranges[j].begin >= end || j == i) continue;
            const uint32_t *const apart = call->apart;
            if ((i == apart[0] && j == apart[1]) || (i == apart[1] && j == apart[0])) continue;
            return kda_fail(err, KDA_E_OVERLAP,
                            "%s: %s [0x%" PRIx64 ", 0x%" PRIx64 ") overlaps %s [0x%" PRIx64
                            ", 0x%" PRIx64 "), they must be disjoint",
                            call->operation, call->operands[i].name, begin, end,
                            call->operands[j].name, ranges[j].begin, ranges[j].end);
        }
    }
    return KDA_OK;
}

kda_status kda_operand_shape(const struct kda_call *call, uint32_t i, uint32_t rank,
                             const int64_t *extents, const char *note, kda_error *err)
{
    const kda_tensor *const tensor = kda_call_tensor(call, i);
    bool same = tensor->rank == rank;
    for (uint32_t j = 0; same && j < rank; j++) same = tensor->extent[j] == extents[j];
    if (same) return KDA_OK;
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

kda_status kda_operand_stride(const struct kda_call *call, uint32_t i, uint32_t dim, int64_t wanted,
                              kda_error *err)
{
    const int64_t stride = kda_call_tensor(call, i)->stride[dim];
    if (stride == wanted) return KDA_OK;
    return kda_fail(err, KDA_E_STRIDE, "%s: %s stride[%u] is %" PRId64 ", must be %" PRId64,
                    call->operation, call->operands[i].name, dim, stride, wanted);
}

kda_status kda_operand_compact(const struct kda_call *call, uint32_t i, uint32_t inner,
                               kda_error *err)
{
    const kda_tensor *const tensor = kda_call_tensor(call, i);
    int64_t compact = 1;
    for (uint32_t j = tensor->rank; j-- > 0;) {
        if (j >= inner && tensor->extent[j] > 1) {
            const kda_status status = kda_operand_stride(call, i, j, compact, err);
            if (status != KDA_OK) return status;
        }
        if (tensor->stride[j] < 1)
            return kda_fail(err, KDA_E_STRIDE,
                            "%s: %s stride[%u] is %" PRId64 ", must be at least 1", call->operation,
                            call->operands[i].name, j, tensor->stride[j]);
        if (j > inner && kda_mul_overflows(compact, tensor->extent[j], &compact))
            return kda_fail(err, KDA_E_LIMIT, "%s: the extents of %s overflow 64 bits",
                            call->operation, call->operands[i].name);
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
