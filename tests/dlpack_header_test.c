// SPDX-License-Identifier: Apache-2.0
// kda_dlpack.h stands alone, as C11 and as C++17, and where the project's own structs are used they
// are those of dlpack.h. Compiled with it before (DLPACK_FIRST), after (DLPACK_LAST) and not at
// all.
#ifdef DLPACK_FIRST
#include <dlpack/dlpack.h>
#endif
#include "loader/kda_dlpack.h"
#ifdef DLPACK_LAST
#include <dlpack/dlpack.h>
#endif

#ifdef __cplusplus
#define CHECK(condition) static_assert(condition, #condition)
#else
#define CHECK(condition) _Static_assert(condition, #condition)
#endif
CHECK(sizeof(kda_dl_tensor) == 48);
CHECK(sizeof(kda_recurrent_dlpack_args) == 14 * 8 + sizeof(kda_recurrent_args));

#ifdef DLPACK_LAST
#define SAME(member)                                                                               \
    CHECK(offsetof(kda_dl_tensor, member) == offsetof(DLTensor, member));                          \
    CHECK(sizeof(((kda_dl_tensor *)0)->member) == sizeof(((DLTensor *)0)->member))
CHECK(sizeof(kda_dl_tensor) == sizeof(DLTensor));
SAME(data);
SAME(device);
SAME(device.device_type);
SAME(device.device_id);
SAME(ndim);
SAME(dtype);
SAME(dtype.code);
SAME(dtype.bits);
SAME(dtype.lanes);
SAME(shape);
SAME(strides);
SAME(byte_offset);
#if defined(DLPACK_MAJOR_VERSION) && DLPACK_MINOR_VERSION >= 3
CHECK(offsetof(DLPackExchangeAPI, dltensor_from_py_object_no_sync) == 40);
#endif
CHECK(kDLCUDA == 2 && kDLInt == 0 && kDLFloat == 2 && kDLBfloat == 4);
#endif

int main(void)
{
#ifdef DLPACK_FIRST
    const DLTensor tensor = {NULL, {kDLCPU, 0}, 0, {0, 0, 0}, NULL, NULL, 0};
#else
    const kda_dl_tensor tensor = {NULL, {1, 0}, 0, {0, 0, 0}, NULL, NULL, 0};
#endif
    kda_tensor out;
    return kda_tensor_from_dlpack(NULL, &tensor, "header", "tensor", &out, NULL) != KDA_E_ARGUMENT;
}
