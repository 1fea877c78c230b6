// SPDX-License-Identifier: Apache-2.0
// Owns the way from a plain call to the same one over DLPack. Knows no operation: both argument
// structs begin with their tensors, in the same order.
#include "tests/dlpack.h"

#include <string.h>

#include "tests/rig.h"

enum { TENSORS_MAX = 16 };

// Over DLPack a dimension of extent 1 or 0 has no stride.
static bool has_free_stride(const kda_tensor *tensor)
{
    int64_t compact = 1;
    for (uint32_t i = tensor->rank < KDA_MAX_RANK ? tensor->rank : KDA_MAX_RANK; i-- > 0;) {
        if (tensor->extent[i] <= 1 && tensor->stride[i] != compact) return true;
        compact = (int64_t)((uint64_t)compact * (uint64_t)tensor->extent[i]);
    }
    return false;
}

// False for what only a kda_tensor can say: an unknown type, a rank without an address, a stride
// that leads nowhere.
static bool say(const kda_tensor *tensor, kda_dl_tensor *out)
{
    static const struct {
        kda_dtype type;
        uint8_t code, bits;
    } types[] = {
        {KDA_BF16, 4, 16}, {KDA_F32, 2, 32}, {KDA_I32, 0, 32}, {KDA_F16, 2, 16}, {KDA_I64, 0, 64}};
    for (size_t i = 0; tensor->data && i < sizeof(types) / sizeof(types[0]); i++) {
        if (types[i].type != tensor->dtype || has_free_stride(tensor)) continue;
        // The library only reads what these point to; DLPack's declaration lacks the const.
        *out = (kda_dl_tensor){.data = tensor->data,
                               .device = {2, 0},
                               .ndim = (int32_t)tensor->rank,
                               .dtype = {types[i].code, types[i].bits, 1},
                               .shape = (int64_t *)(uintptr_t)tensor->extent,
                               .strides = (int64_t *)(uintptr_t)tensor->stride};
        return true;
    }
    return false;
}

// Moves what DLPack can say out of the plain struct.
static void move_all(void *addresses, void *plain, const void *args, size_t count,
                     kda_dl_tensor *views)
{
    assert_true(count <= TENSORS_MAX);
    for (size_t i = 0; i < count; i++) {
        const kda_tensor *const tensor = (const kda_tensor *)args + i;
        const kda_dl_tensor *const view = &views[i];
        if (!say(tensor, &views[i])) continue;
        memcpy((char *)addresses + i * sizeof(view), &view, sizeof(view));
        memset((char *)plain + i * sizeof(*tensor), 0, sizeof(*tensor));
    }
}

#define X(op)                                                                                      \
    void dlpack_same_##op(kda_context *context, const kda_##op##_args *args, kda_status status,    \
                          const kda_error *err)                                                    \
    {                                                                                              \
        kda_##op##_dlpack_args over = {.plain = *args};                                            \
        kda_dl_tensor views[TENSORS_MAX];                                                          \
        kda_error found;                                                                           \
        move_all(&over, &over.plain, args,                                                         \
                 offsetof(kda_##op##_dlpack_args, read) / sizeof(void *), views);                  \
        assert_int_equal(kda_##op##_dlpack(context, &over, NULL, &found), status);                 \
        if (status == KDA_OK) return;                                                              \
        assert_int_equal(found.status, status);                                                    \
        assert_string_equal(found.text, err->text);                                                \
    }
DLPACK_OPERATIONS(X)
#undef X
