// SPDX-License-Identifier: Apache-2.0
// The soft device and a bundle for tests of the host side: what a call may look like, and what the
// library does with contexts, images and driver failures. Nothing is computed here, so device
// addresses are free to be invented.
#ifndef KDA_TESTS_RIG_H
#define KDA_TESTS_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "loader/bundle.h"
#include "loader/driver.h"
#include "tests/soft/soft.h"

// As exported by the library: return type, symbol, parameters.
#define RIG_SYMBOLS(X)                                                                             \
    X(void, soft_reset, (void))                                                                    \
    X(void, soft_set_device_count, (int count))                                                    \
    X(void, soft_set_device, (int ordinal, int cc_major, int cc_minor, int sms))                   \
    X(void, soft_set_driver_version, (int version))                                                \
    X(void, soft_set_stub, (bool stub))                                                            \
    X(void, soft_hide_symbol, (const char *name))                                                  \
    X(void, soft_fail_call, (long k, int result))                                                  \
    X(void, soft_delay_load, (unsigned microseconds))                                              \
    X(void, soft_set_load_in_capture, (int result))                                                \
    X(void, soft_set_execute, (bool execute))                                                      \
    X(soft_counters, soft_count, (void))                                                           \
    X(bool, soft_last_launch, (soft_launch_record * out))                                          \
    X(const char *, soft_last_error, (void))                                                       \
    X(int, cuInit, (unsigned flags))                                                               \
    X(int, cuCtxCreate_v2, (CUcontext * out, unsigned flags, CUdevice device))                     \
    X(int, cuCtxDestroy_v2, (CUcontext context))                                                   \
    X(int, cuCtxGetCurrent, (CUcontext * out))                                                     \
    X(int, cuCtxSetCurrent, (CUcontext context))                                                   \
    X(int, cuDevicePrimaryCtxRetain, (CUcontext * out, CUdevice device))                           \
    X(int, cuDevicePrimaryCtxReset_v2, (CUdevice device))                                          \
    X(int, cuDevicePrimaryCtxGetState, (CUdevice device, unsigned *flags, int *active))            \
    X(int, cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                        \
    X(int, cuStreamCreate, (CUstream * out, unsigned flags))                                       \
    X(int, cuStreamDestroy_v2, (CUstream stream))                                                  \
    X(int, cuStreamBeginCapture_v2, (CUstream stream, int mode))                                   \
    X(int, cuStreamEndCapture, (CUstream stream, CUgraph * out))                                   \
    X(int, cuStreamIsCapturing, (CUstream stream, int *out))                                       \
    X(int, cuGraphGetNodes, (CUgraph graph, CUgraphNode * out_nodes, size_t * count))              \
    X(int, cuGraphInstantiateWithFlags, (CUgraphExec * out, CUgraph graph, uint64_t flags))        \
    X(int, cuGraphLaunch, (CUgraphExec exec, CUstream stream))                                     \
    X(int, cuGraphExecDestroy, (CUgraphExec exec))                                                 \
    X(int, cuGraphDestroy, (CUgraph graph))

struct rig {
    const char *program, *path;
    kda_bundle *bundle;
    CUcontext cuda;  // made by rig_start, current
#define X(type, name, parameters) type(*name) parameters;
    RIG_SYMBOLS(X)
#undef X
};
extern struct rig rig;

// PROGRAM [BUNDLE]; the bundle is by default the one that KDA_TEST_BUNDLE names. Ends the program
// with 77 if the driver is not the soft device.
void rig_open(int argc, char **argv);
void rig_close(void);

// A fresh soft device of this compute capability that checks launches but does not compute, with
// one CUDA context.
void rig_start(int cc_major, int cc_minor);
// A context on rig.cuda with every image loaded.
kda_context *rig_context(void);

#define rig_ok(status, err) rig_expect_ok((status), (err), __FILE__, __LINE__)
void rig_expect_ok(kda_status status, const kda_error *err, const char *file, int line);
// The status, a one-line message that says `fragment`, and the same status in the error.
#define rig_refused(status, err, wanted, fragment)                                                 \
    rig_expect_refusal((status), (err), (wanted), (fragment), __FILE__, __LINE__)
void rig_expect_refusal(kda_status status, const kda_error *err, kda_status wanted,
                        const char *fragment, const char *file, int line);

// Tensors at invented addresses. Extents end at the first 0; strides are compact.
kda_tensor rig_tensor(uint64_t address, kda_dtype type, const int64_t extent[4]);
#define RIG_TENSOR(address, type, ...)                                                             \
    rig_tensor((address), (type), (const int64_t[4]){__VA_ARGS__})
uint64_t rig_bytes(const kda_tensor *tensor);  // from its first to past its last element

struct rig_shape {
    kda_gate gate;
    int tokens;
    bool packed;  // with cu_seqlens
    int64_t rows, heads, value_heads, slots;
};
kda_recurrent_args rig_recurrent(struct rig_shape shape);
kda_packed_args rig_packed(int64_t rows, int64_t slots);
kda_fused_args rig_fused(int64_t rows, int64_t heads, int64_t slots, kda_dtype state_type);
// Windows of `tokens`: with caches of as many, and with slots.
kda_verify_args rig_verify(struct rig_shape shape);
kda_commit_args rig_commit(struct rig_shape shape);

#endif
