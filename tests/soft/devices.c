// SPDX-License-Identifier: Apache-2.0
// Owns what the soft driver says of itself and its scripted devices, and the names of results.
// Knows no context. Invariant: the calls that a real driver answers before cuInit work before
// cuInit.
#include "tests/soft/state.h"

#include <stdio.h>
#include <string.h>

static const struct {
    int number;
    const char *name, *text;
} results[] = {
    {KDA_CU_SUCCESS, "CUDA_SUCCESS", "no error"},
    {KDA_CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {KDA_CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {KDA_CU_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "cuInit was not called"},
    {KDA_CU_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {KDA_CU_STUB_LIBRARY, "CUDA_ERROR_STUB_LIBRARY", "stub library loaded"},
    {KDA_CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no device found"},
    {KDA_CU_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {KDA_CU_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "kernel image is invalid"},
    {KDA_CU_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid or no current context"},
    {KDA_CU_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "image is for another device"},
    {KDA_CU_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {SOFT_CU_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "resource not in a valid state"},
    {KDA_CU_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {KDA_CU_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "illegal memory access"},
    {KDA_CU_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources"},
    {KDA_CU_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {KDA_CU_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "launch failed"},
    {KDA_CU_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {KDA_CU_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted while a stream is capturing"},
    {KDA_CU_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "capture was invalidated by an earlier error"},
    {KDA_CU_STREAM_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would depend on a capturing stream"},
    {SOFT_CU_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "capture ended by another thread than began it"},
    {KDA_CU_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static int describe(int result, const char **out, bool name)
{
    if (out == NULL) return KDA_CU_INVALID_VALUE;
    *out = NULL;
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        if (results[i].number == result) *out = name ? results[i].name : results[i].text;
    return *out != NULL ? KDA_CU_SUCCESS : KDA_CU_INVALID_VALUE;
}

int cuGetErrorName(int result, const char **out) { return describe(result, out, true); }
int cuGetErrorString(int result, const char **out) { return describe(result, out, false); }

// Begins one of the calls that need no cuInit.
static int enter_early(void)
{
    int result = soft_enter();
    if (result != KDA_CU_NOT_INITIALIZED) return result;
    soft_lock();
    return KDA_CU_SUCCESS;
}

int cuInit(unsigned flags)
{
    int result = enter_early();
    if (result != KDA_CU_SUCCESS) return result;
    if (flags != 0) return soft_leave(KDA_CU_INVALID_VALUE);
    if (soft_settings.device_count == 0) return soft_leave(KDA_CU_NO_DEVICE);
    soft_settings.initialised = true;
    return soft_leave(KDA_CU_SUCCESS);
}

int cuDriverGetVersion(int *out)
{
    int result = enter_early();
    if (result != KDA_CU_SUCCESS) return result;
    if (out == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    *out = soft_settings.driver_version;
    return soft_leave(KDA_CU_SUCCESS);
}

static bool is_device(CUdevice device)
{
    return device >= 0 && device < soft_settings.device_count;
}

int cuDeviceGet(CUdevice *out, int ordinal)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    if (out == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    if (!is_device(ordinal)) return soft_leave(KDA_CU_INVALID_DEVICE);
    *out = ordinal;
    return soft_leave(KDA_CU_SUCCESS);
}

int cuDeviceGetCount(int *out)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    if (out == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    *out = soft_settings.device_count;
    return soft_leave(KDA_CU_SUCCESS);
}

int cuDeviceGetName(char *out, int size, CUdevice device)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    if (out == NULL || size <= 0) return soft_leave(KDA_CU_INVALID_VALUE);
    if (!is_device(device)) return soft_leave(KDA_CU_INVALID_DEVICE);
    int cc = soft_settings.devices[device].cc;
    (void)snprintf(out, (size_t)size, "soft device CC %d.%d", cc / 10, cc % 10);
    return soft_leave(KDA_CU_SUCCESS);
}

int cuDeviceTotalMem_v2(size_t *out, CUdevice device)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    if (out == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    if (!is_device(device)) return soft_leave(KDA_CU_INVALID_DEVICE);
    *out = SOFT_MEMORY_TOTAL;
    return soft_leave(KDA_CU_SUCCESS);
}

int cuDeviceGetAttribute(int *out, int attribute, CUdevice device)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    if (out == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    if (!is_device(device)) return soft_leave(KDA_CU_INVALID_DEVICE);
    const struct soft_device *facts = &soft_settings.devices[device];
    const struct {
        int number, value;
    } attributes[] = {
        {1, 1024},  // threads per CTA, in all and in x, y, z
        {2, 1024},
        {3, 1024},
        {4, 64},
        {5, INT32_MAX},  // CTAs in x, y, z
        {6, 65535},
        {7, 65535},
        {8, KDA_CU_SMEM_DEFAULT},
        {10, 32},  // lanes of a warp
        {KDA_CU_SM_COUNT, facts->sm_count},
        {KDA_CU_CC_MAJOR, facts->cc / 10},
        {KDA_CU_CC_MINOR, facts->cc % 10},
        {KDA_CU_SMEM_OPTIN, SOFT_SMEM_MAX},
    };
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (attributes[i].number == attribute) {
            *out = attributes[i].value;
            return soft_leave(KDA_CU_SUCCESS);
        }
    return soft_leave(KDA_CU_INVALID_VALUE);
}
