// SPDX-License-Identifier: Apache-2.0
// The soft device against the rules of a real driver, and its executor against kernels made to go
// wrong: what it refuses is as much a promise as what it computes, because the other suites trust
// its refusals. Uses images of its own, registered by a back door; bodies are the business of the
// operator suites.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/soft/cuda.h"
#include "tests/soft/soft.h"
#include "tests/soft/device.h"

// ---------------------------------------------------------------------------------------- a kernel

enum fault {
    NONE,
    EXIT_EARLY,
    OTHER_SITE,
    WARP_AND_CTA,
    ABSENT_LANE,
    PAST_END,
    UNALIGNED,
    ACROSS_END,
    SHARED_PAST_END,
    SHARED_UNALIGNED,
    HINT_PAST_END,
    PREFETCH_PAST_END,
    PREFETCH_ACROSS_END,
    PREFETCH_UNALIGNED
};

struct scale_params {  // out[i] = in[i] * factor, and a sum over the CTA in sums[block]
    unsigned long long in, out, sums;
    unsigned long long edge;  // 12 bytes
    unsigned factor;
    enum fault fault;
};

static unsigned *word(unsigned long long address) { return soft_global(address, 4, __LINE__); }
static unsigned *shared_word(unsigned index) { return soft_shared(4 * index, 4, __LINE__); }

static void scale(const void *parameters)
{
    const struct scale_params p = *(const struct scale_params *)parameters;
    const soft_dim t = threadIdx, b = blockIdx, n = blockDim, g = gridDim;
    const unsigned lane_id = t.x + n.x * (t.y + n.y * t.z), threads = n.x * n.y * n.z;
    const unsigned block = b.x + g.x * (b.y + g.y * b.z);
    const unsigned long long i = 4ull * (block * threads + lane_id);

    if (p.fault == EXIT_EARLY && lane_id == 5) return;
    if (p.fault == OTHER_SITE && lane_id == 3) soft_sync_warp(1);
    if (p.fault == WARP_AND_CTA && lane_id == 33) soft_sync_cta(2);
    if (p.fault == PAST_END && lane_id == 31) (void)soft_global(p.in + 1000000, 4, 3);
    if (p.fault == ACROSS_END && lane_id == 1) (void)soft_global(p.edge + 8, 8, 9);
    if (p.fault == UNALIGNED) (void)soft_global(p.in + 2, 4, 4);
    if (p.fault == SHARED_PAST_END) (void)soft_shared(4 * threads, 4, 5);
    if (p.fault == SHARED_UNALIGNED) (void)soft_shared(6, 4, 6);
    if (p.fault == HINT_PAST_END) (void)soft_hint(p.edge + 12, 12);
    if (p.fault == PREFETCH_PAST_END) soft_prefetch(p.edge + 12, 1, 13);
    if (p.fault == PREFETCH_ACROSS_END) soft_prefetch(p.edge, 16, 14);
    if (p.fault == PREFETCH_UNALIGNED) soft_prefetch(p.in + 8, 16, 15);
    const unsigned value = *word(p.in + i) * p.factor;
    unsigned sum = value;
    for (unsigned distance = 16; distance > 0; distance /= 2)
        sum += soft_shuffle(sum, p.fault == ABSENT_LANE ? 40 : lane_id % 32 ^ distance, 7);
    if (lane_id % 32 == 0) *shared_word(lane_id / 32) = sum;
    soft_sync_cta(8);
    if (lane_id == 0) {
        unsigned total = 0;
        for (unsigned warp = 0; warp < threads / 32; warp++) total += *shared_word(warp);
        *word(p.sums + 4ull * block) = total;
    }
    // One thread's yes reaches all, and does not outlive its barrier.
    const unsigned yes = soft_sync_cta_any(lane_id == threads - 1, 10);
    const unsigned no = soft_sync_cta_any(0, 11);
    *word(p.out + i) = yes && !no ? value : 0;
}

// What 32 threads see of a word that the grid before might still write.
static void read_hints(const void *parameters)
{
    const struct scale_params *const p = parameters;
    const unsigned lane = soft_thread_index().x;
    *word(p->out + 4 * lane) = soft_hint(p->in + 4 * lane, __LINE__);
    soft_prefetch(p->edge + lane % 12, 1, __LINE__);
}

static void read_shared(const void *parameters)
{
    memcpy(word(((const struct scale_params *)parameters)->out), shared_word(0), 4);
}

// -------------------------------------------------------------------------------------- its images

// An ELF header of a CUDA image and nothing else; `entry` makes the bytes differ.
static void make_elf(uint8_t elf[64], uint8_t entry)
{
    memset(elf, 0, 64);
    memcpy(elf,
           "\x7f"
           "ELF\x02\x01",
           6);
    elf[18] = 190;
    elf[24] = entry;
}

static const int ccs_100[] = {100, 103, 0}, ccs_90[] = {90, 0};

static struct {
    uint8_t elf[64];
    char digest[SHA256_DIGEST_STRING_LENGTH];
    soft_image image;
} images[] = {
    {.image = {.body = "scale",
               .target = "sm_100f",
               .entry = "kda_scale",
               .ccs = ccs_100,
               .floor = 12090,
               .threads = 256,
               .kernel = scale,
               .params_size = sizeof(struct scale_params)}},
    {.image = {.body = "scale",
               .target = "sm_90a",
               .entry = "kda_scale",
               .ccs = ccs_90,
               .floor = 12000,
               .threads = 256,
               .kernel = scale,
               .params_size = sizeof(struct scale_params)}},
    {.image = {.body = "read_shared",
               .target = "sm_100f",
               .entry = "kda_read_shared",
               .ccs = ccs_100,
               .floor = 12090,
               .threads = 1024,
               .kernel = read_shared,
               .params_size = sizeof(struct scale_params)}},
    {.image = {.body = "read_hints",
               .target = "sm_100f",
               .entry = "kda_read_hints",
               .ccs = ccs_100,
               .floor = 12090,
               .threads = 1024,
               .kernel = read_hints,
               .params_size = sizeof(struct scale_params)}},
};
enum { SCALE, SCALE_90, READ_SHARED, READ_HINTS };

static CUcontext context;

#define CHECK(result, call) assert_int_equal(call, result)
#define OK(call) CHECK(0, call)

static int setup(void **state)
{
    (void)state;
    soft_reset();
    for (size_t i = 0; i < sizeof images / sizeof *images; i++) {
        make_elf(images[i].elf, (uint8_t)i);
        (void)SHA256Data(images[i].elf, 64, images[i].digest);
        images[i].image.sha256 = images[i].digest;
        assert_true(soft_register_image(&images[i].image));
    }
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    soft_reset();
    assert_int_equal(soft_count().caller_errors, 0);
    return 0;
}

static CUfunction load(int which, CUmodule *out_module)
{
    CUmodule module;
    CUfunction function;
    OK(cuModuleLoadData(&module, images[which].elf));
    OK(cuModuleGetFunction(&function, module, images[which].image.entry));
    if (out_module != NULL) *out_module = module;
    return function;
}

static struct scale_params make_params(unsigned count, unsigned factor)
{
    struct scale_params p = {.factor = factor};
    OK(cuMemAlloc_v2(&p.in, 4 * count));
    OK(cuMemAlloc_v2(&p.out, 4 * count));
    OK(cuMemAlloc_v2(&p.sums, 4 * count));
    unsigned *values = malloc(4 * count);
    assert_non_null(values);
    for (unsigned i = 0; i < count; i++) values[i] = i + 1;
    OK(cuMemcpyHtoD_v2(p.in, values, 4 * count));
    free(values);
    return p;
}

static int launch(CUfunction function, unsigned grid, unsigned block, unsigned smem,
                  CUstream stream, struct scale_params *p)
{
    void *params[] = {p};
    return cuLaunchKernel(function, grid, 1, 1, block, 1, 1, smem, stream, params, NULL);
}

static unsigned read_word(CUdeviceptr address, unsigned index)
{
    unsigned value;
    OK(cuMemcpyDtoH_v2(&value, address + 4 * index, 4));
    return value;
}

// --------------------------------------------------------------------------------------- the entry

static void entry_rules(void **state)
{
    (void)state;
    soft_reset();
    int value;
    CHECK(3, cuDeviceGetCount(&value));
    OK(cuDriverGetVersion(&value));
    assert_int_equal(value, 13000);
    OK(cuInit(0));
    OK(cuDeviceGetAttribute(&value, KDA_CU_SM_COUNT, 0));
    assert_int_equal(value, 148);
    CHECK(101, cuDeviceGetAttribute(&value, KDA_CU_SM_COUNT, 1));
    CHECK(201, cuCtxGetDevice(&value));

    soft_set_device(0, 10, 3, 152);
    OK(cuDeviceGetAttribute(&value, KDA_CU_CC_MINOR, 0));
    assert_int_equal(value, 3);

    long calls = soft_count().calls;
    soft_fail_call(2, 999);
    OK(cuDeviceGetCount(&value));
    CHECK(999, cuDeviceGetCount(&value));
    OK(cuDeviceGetCount(&value));
    assert_int_equal(soft_count().calls, calls + 3);

    soft_set_stub(true);
    CHECK(34, cuInit(0));
    CHECK(34, cuDriverGetVersion(&value));
    soft_reset();
    soft_set_device_count(0);
    CHECK(100, cuInit(0));
    const char *name;
    OK(cuGetErrorName(209, &name));
    assert_string_equal(name, "CUDA_ERROR_NO_BINARY_FOR_GPU");
    CHECK(1, cuGetErrorName(12345, &name));
}

static void proc_address(void **state)
{
    (void)state;
    void *function, *expected;
    int status = -1;
    int (*const load_data)(CUmodule *, const void *) = cuModuleLoadData;
    memcpy(&expected, &load_data, sizeof expected);
    OK(cuGetProcAddress_v2("cuModuleLoadData", &function, 2000, 0, &status));
    assert_ptr_equal(function, expected);
    assert_int_equal(status, KDA_CU_PROC_FOUND);
    // Base names only; an ABI that is not known is not found; too early and too late versions are
    // told apart.
    OK(cuGetProcAddress_v2("cuMemAlloc_v2", &function, 3020, 0, &status));
    assert_null(function);
    assert_int_equal(status, KDA_CU_PROC_MISSING);
    OK(cuGetProcAddress_v2("cuCtxCreate", &function, 12000, 0, &status));
    assert_null(function);
    OK(cuGetProcAddress_v2("cuLaunchKernelEx", &function, 11000, 0, &status));
    assert_null(function);
    assert_int_equal(status, SOFT_CU_PROC_VERSION_TOO_OLD);
    soft_set_driver_version(12080);
    CHECK(1, cuGetProcAddress_v2("cuModuleLoadData", &function, 12090, 0, &status));
    soft_hide_symbol("cuLaunchKernel");
    OK(cuGetProcAddress_v2("cuLaunchKernel", &function, 4000, 0, &status));
    assert_null(function);
    assert_int_equal(status, KDA_CU_PROC_MISSING);
    CHECK(500, cuGetProcAddress("cuLaunchKernel", &function, 4000, 0));
    soft_hide_symbol(NULL);
    OK(cuGetProcAddress("cuLaunchKernel", &function, 4000, 0));
    assert_non_null(function);
}

// ---------------------------------------------------------------------------------------- contexts

static void contexts(void **state)
{
    (void)state;
    CUcontext a, b, current;
    unsigned long long primary_id, a_id, b_id, id;
    OK(cuCtxGetId(context, &primary_id));
    OK(cuCtxCreate_v2(&a, 0, 0));
    OK(cuCtxGetCurrent(&current));
    assert_ptr_equal(current, a);
    OK(cuCtxGetId(NULL, &a_id));
    assert_true(a_id != primary_id);
    OK(cuCtxPushCurrent_v2(context));
    OK(cuCtxPopCurrent_v2(&current));
    assert_ptr_equal(current, context);
    OK(cuCtxDestroy_v2(a));
    OK(cuCtxGetCurrent(&current));
    assert_ptr_equal(current, context);
    CHECK(709, cuCtxGetId(a, &id));
    CHECK(709, cuCtxSetCurrent(a));
    CHECK(201, cuCtxGetId((CUcontext)&current, &id));
    // The next context has the same handle and another identity.
    OK(cuCtxCreate_v2(&b, 0, 0));
    assert_ptr_equal(b, a);
    OK(cuCtxGetId(b, &b_id));
    assert_true(b_id != a_id);
    OK(cuCtxDestroy_v2(b));
    assert_int_equal(soft_count().live_contexts, 1);
}

static void primary_reset(void **state)
{
    (void)state;
    CUfunction function = load(SCALE, NULL);
    struct scale_params p = make_params(64, 3);
    CUstream stream;
    unsigned long long before, after;
    OK(cuStreamCreate(&stream, 0));
    OK(cuCtxGetId(context, &before));
    OK(cuDevicePrimaryCtxReset_v2(0));
    assert_int_equal(soft_count().live_modules, 0);
    CHECK(709, cuCtxGetId(context, &after));
    CHECK(709, cuMemAlloc_v2(&p.in, 4));
    CHECK(400, launch(function, 1, 64, 8, NULL, &p));
    CUcontext again;
    OK(cuDevicePrimaryCtxRetain(&again, 0));
    assert_ptr_equal(again, context);
    OK(cuCtxGetId(context, &after));
    assert_true(after != before);
    CHECK(400, launch(function, 1, 64, 8, NULL, &p));
    CHECK(400, cuStreamSynchronize(stream));
    CHECK(1, cuMemFree_v2(p.in));
    unsigned flags;
    int active;
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    assert_int_equal(active, 1);  // it was retained before the reset too
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    assert_int_equal(active, 0);
    CHECK(201, cuDevicePrimaryCtxRelease_v2(0));
    assert_int_equal(soft_count().caller_errors, 0);
}

// ------------------------------------------------------------------------------------------ memory

static void memory(void **state)
{
    (void)state;
    CUdeviceptr a, b;
    uint16_t halves[100];
    CHECK(1, cuMemAlloc_v2(&a, 0));
    CHECK(2, cuMemAlloc_v2(&a, (size_t)1 << 50));
    OK(cuMemAlloc_v2(&a, 200));
    assert_int_equal(a % 256, 0);
    OK(cuMemcpyDtoH_v2(halves, a, 200));
    assert_int_equal(halves[99], 0xffc1);
    OK(cuMemsetD16_v2(a + 2, 0x1234, 98));
    OK(cuMemcpyDtoH_v2(halves, a, 200));
    assert_int_equal(halves[0], 0xffc1);
    assert_int_equal(halves[1], 0x1234);
    assert_int_equal(halves[98], 0x1234);
    assert_int_equal(halves[99], 0xffc1);
    CHECK(1, cuMemsetD16_v2(a + 2, 0, 100));
    CHECK(1, cuMemsetD32_v2(a + 2, 0, 1));
    CHECK(1, cuMemcpyDtoH_v2(halves, a + 1, 200));
    CHECK(1, cuMemcpyHtoD_v2(a - 1, halves, 1));
    CHECK(1, cuMemFree_v2(a + 1));

    // A pool of more than 2^32 bytes costs what is touched.
    size_t available, total, size = ((size_t)5 << 30) + 100;
    OK(cuMemAlloc_v2(&b, size));
    OK(cuMemGetInfo_v2(&available, &total));
    assert_int_equal(total - available, size + 200);
    OK(cuMemcpyDtoD_v2(b + size - 200, a, 200));
    OK(cuMemcpyDtoH_v2(halves, b + size - 200, 200));
    assert_int_equal(halves[98], 0x1234);
    CHECK(1, cuMemcpyDtoD_v2(b + size - 199, a, 200));
    OK(cuMemFree_v2(b));
    CHECK(1, cuMemFree_v2(b));
    OK(cuMemFree_v2(0));
    assert_int_equal(soft_count().caller_errors, 0);

    ((volatile char *)(uintptr_t)a)[200] ^= 1;
    OK(cuMemFree_v2(a));
    assert_int_equal(soft_count().caller_errors, 1);
    assert_non_null(strstr(soft_last_error(), "behind the allocation"));
    OK(cuMemAlloc_v2(&a, 256));
    ((volatile char *)(uintptr_t)a)[-1] ^= 1;
    soft_reset();
    assert_int_equal(soft_count().caller_errors, 1);
    assert_non_null(strstr(soft_last_error(), "before the allocation"));
}

// ----------------------------------------------------------------------------------------- modules

static void modules(void **state)
{
    (void)state;
    CUmodule module;
    CUfunction function, same;
    uint8_t bytes[64] = "not an image";
    int value;
    CHECK(200, cuModuleLoadData(&module, bytes));
    make_elf(bytes, 77);
    CHECK(200, cuModuleLoadData(&module, bytes));
    CHECK(209, cuModuleLoadData(&module, images[SCALE_90].elf));
    soft_set_driver_version(12080);
    CHECK(209, cuModuleLoadData(&module, images[SCALE].elf));
    soft_set_driver_version(12090);
    OK(cuModuleLoadData(&module, images[SCALE].elf));
    CHECK(500, cuModuleGetFunction(&function, module, "scale"));
    OK(cuModuleGetFunction(&function, module, "kda_scale"));
    OK(cuModuleGetFunction(&same, module, "kda_scale"));
    assert_ptr_equal(function, same);
    OK(cuFuncGetAttribute(&value, KDA_CU_FUNC_SMEM, function));
    assert_int_equal(value, 49152);
    CHECK(1, cuFuncSetAttribute(function, KDA_CU_FUNC_SMEM, 232449));
    assert_int_equal(soft_count().live_modules, 1);
    OK(cuModuleUnload(module));
    CHECK(400, cuModuleUnload(module));
    CHECK(400, cuModuleGetFunction(&function, module, "kda_scale"));
    assert_int_equal(soft_count().live_modules, 0);
    assert_int_equal(soft_count().loads, 1);
    assert_int_equal(soft_count().unloads, 1);
    OK(cuCtxSetCurrent(NULL));
    CHECK(201, cuModuleLoadData(&module, images[SCALE].elf));
}

// ---------------------------------------------------------------------------------------- launches

static void launches(void **state)
{
    (void)state;
    CUmodule module;
    CUfunction function = load(SCALE, &module);
    struct scale_params p = make_params(512, 3);
    OK(launch(function, 4, 128, 16, NULL, &p));
    for (unsigned i = 0; i < 512; i++) assert_int_equal(read_word(p.out, i), 3 * (i + 1));
    assert_int_equal(read_word(p.sums, 1), 3 * 128 * (129 + 256) / 2);

    // Every coordinate counts.
    void *params[] = {&p};
    p.factor = 5;
    OK(cuLaunchKernel(function, 1, 2, 2, 8, 4, 2, 8, NULL, params, NULL));
    for (unsigned i = 0; i < 256; i++) assert_int_equal(read_word(p.out, i), 5 * (i + 1));
    assert_int_equal(read_word(p.out, 256), 3 * 257);

    soft_launch_record record;
    struct kda_cu_launch_attribute attribute = {.id = KDA_CU_LAUNCH_PDL, .value = {.pdl = 1}};
    struct kda_cu_launch_config config = {.grid = {4, 1, 1},
                                          .block = {32, 1, 1},
                                          .smem = 4,
                                          .attributes = &attribute,
                                          .attribute_count = 1};
    OK(cuLaunchKernelEx(&config, function, params, NULL));
    assert_true(soft_last_launch(&record));
    assert_string_equal(record.body, "scale");
    assert_string_equal(record.target, "sm_100f");
    assert_true(record.pdl && !record.captured);
    assert_int_equal(record.grid[0], 4);
    assert_int_equal(record.smem, 4);
    attribute.id = 2;
    CHECK(801, cuLaunchKernelEx(&config, function, params, NULL));

    long count = soft_count().launches;
    CHECK(1, launch(function, 0, 32, 4, NULL, &p));
    CHECK(1, launch(function, 1, 0, 4, NULL, &p));
    CHECK(1, launch(function, 1, 512, 64, NULL, &p));
    CHECK(1, cuLaunchKernel(function, 1, 65536, 1, 32, 1, 1, 4, NULL, params, NULL));
    CHECK(1, cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 4, NULL, NULL, NULL));
    CHECK(1, launch(function, 1, 32, 49153, NULL, &p));
    OK(cuFuncSetAttribute(function, KDA_CU_FUNC_SMEM, 49156));
    OK(launch(function, 1, 32, 49156, NULL, &p));
    CHECK(400, launch(NULL, 1, 32, 4, NULL, &p));
    CHECK(400, launch(function, 1, 32, 4, (CUstream)&p, &p));
    assert_int_equal(soft_count().launches, count + 1);

    // The NULL stream is the current context's, an explicit one brings its own.
    CUcontext other;
    CUstream stream, foreign;
    OK(cuStreamCreate(&stream, SOFT_CU_STREAM_NON_BLOCKING));
    OK(cuCtxCreate_v2(&other, 0, 0));
    OK(cuStreamCreate(&foreign, 0));
    CHECK(400, launch(function, 1, 32, 4, NULL, &p));
    OK(launch(function, 1, 32, 4, stream, &p));
    CHECK(400, launch(function, 1, 32, 4, foreign, &p));
    OK(cuCtxDestroy_v2(other));
    OK(cuStreamDestroy_v2(stream));
    CHECK(400, launch(function, 1, 32, 4, stream, &p));

    soft_set_execute(false);
    p.factor = 9;
    OK(launch(function, 1, 32, 4, NULL, &p));
    assert_int_equal(read_word(p.out, 0), 5);
    soft_set_execute(true);

    assert_int_equal(soft_count().caller_errors, 0);
    OK(cuModuleUnload(module));
    CHECK(400, launch(function, 1, 32, 4, NULL, &p));
    assert_int_equal(soft_count().caller_errors, 1);
}

// What a kernel sees before it waits is mostly not what it will see, unless it is asked for.
static void hints(void **state)
{
    (void)state;
    CUfunction function = load(READ_HINTS, NULL);
    struct scale_params p = make_params(32, 0);
    OK(cuMemAlloc_v2(&p.edge, 12));
    for (int exact = 0; exact < 2; exact++) {
        soft_set_hints(exact);
        OK(launch(function, 1, 32, 0, NULL, &p));
        unsigned right = 0;
        for (unsigned i = 0; i < 32; i++) right += read_word(p.out, i) == i + 1;
        assert_true(exact ? right == 32 : right > 0 && right < 32);
        assert_int_equal(soft_count().prefetches, 32 * (exact + 1));
    }
}

// ---------------------------------------------------------------------------------------- captures

static CUgraphExec instantiate(CUstream stream)
{
    CUgraph graph;
    CUgraphExec exec;
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    return exec;
}

static void capture_and_replay(void **state)
{
    (void)state;
    CUmodule module;
    CUfunction function = load(SCALE, &module);
    struct scale_params p = make_params(64, 3);
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    int status;
    OK(cuStreamCreate(&stream, SOFT_CU_STREAM_NON_BLOCKING));
    OK(cuMemsetD32_v2(p.out, 7, 64));
    OK(cuStreamBeginCapture_v2(stream, KDA_CU_CAPTURE_GLOBAL));
    OK(cuStreamIsCapturing(stream, &status));
    assert_int_equal(status, KDA_CU_CAPTURE_ACTIVE);
    OK(cuMemsetD32Async(p.out, 9, 64, stream));
    OK(launch(function, 1, 32, 4, stream, &p));
    p.factor = 100;  // the graph has its own copy
    soft_launch_record record;
    assert_true(soft_last_launch(&record) && record.captured);
    OK(cuStreamEndCapture(stream, &graph));
    size_t count = 0;
    OK(cuGraphGetNodes(graph, NULL, &count));
    assert_int_equal(count, 2);
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    CHECK(1, cuGraphDestroy(graph));
    assert_int_equal(read_word(p.out, 0), 7);

    OK(cuGraphLaunch(exec, stream));
    assert_int_equal(read_word(p.out, 31), 3 * 32);
    assert_int_equal(read_word(p.out, 32), 9);
    OK(cuMemsetD32_v2(p.in, 2, 64));  // read at replay
    OK(cuGraphLaunch(exec, NULL));
    assert_int_equal(read_word(p.out, 31), 3 * 2);
    assert_int_equal(soft_count().replays, 2);
    assert_int_equal(soft_count().launches, 1);

    OK(cuModuleUnload(module));
    assert_int_equal(soft_count().caller_errors, 1);
    assert_non_null(strstr(soft_last_error(), "unloading scale"));
    CHECK(400, cuGraphLaunch(exec, stream));
    assert_int_equal(soft_count().caller_errors, 2);
    OK(cuGraphExecDestroy(exec));
    CHECK(1, cuGraphLaunch(exec, stream));
}

static void expect_invalidated(CUstream stream)
{
    int status;
    CUgraph graph;
    OK(cuStreamIsCapturing(stream, &status));
    assert_int_equal(status, KDA_CU_CAPTURE_INVALIDATED);
    CHECK(901, cuMemsetD8Async(1, 0, 1, stream));
    CHECK(901, cuStreamEndCapture(stream, &graph));
    CHECK(401, cuStreamEndCapture(stream, &graph));
}

static void *allocate_elsewhere(void *result)
{
    CUdeviceptr memory_there;
    OK(cuCtxSetCurrent(context));
    *(int *)result = cuMemAlloc_v2(&memory_there, 4);
    return NULL;
}

static int allocate_in_thread(void)
{
    pthread_t thread;
    int result = -1;
    assert_int_equal(pthread_create(&thread, NULL, allocate_elsewhere, &result), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    return result;
}

static void capture_rules(void **state)
{
    (void)state;
    CUmodule module;
    CUfunction function = load(SCALE, &module);
    struct scale_params p = make_params(64, 3);
    CUstream stream, blocking;
    CUgraphExec exec;
    int status;
    OK(cuStreamCreate(&stream, SOFT_CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&blocking, 0));
    CHECK(900, cuStreamBeginCapture_v2(NULL, KDA_CU_CAPTURE_GLOBAL));

    OK(cuStreamBeginCapture_v2(stream, KDA_CU_CAPTURE_GLOBAL));
    CHECK(401, cuStreamBeginCapture_v2(stream, KDA_CU_CAPTURE_GLOBAL));
    CHECK(900, cuStreamSynchronize(stream));
    expect_invalidated(stream);

    OK(cuStreamBeginCapture_v2(stream, KDA_CU_CAPTURE_GLOBAL));
    CHECK(900, cuModuleUnload(module));
    expect_invalidated(stream);

    OK(cuStreamBeginCapture_v2(stream, KDA_CU_CAPTURE_GLOBAL));
    CHECK(900, cuCtxSynchronize());
    expect_invalidated(stream);

    // Another thread breaks a global capture but not a thread-local one.
    OK(cuStreamBeginCapture_v2(stream, KDA_CU_CAPTURE_GLOBAL));
    assert_int_equal(allocate_in_thread(), 900);
    expect_invalidated(stream);
    OK(cuStreamBeginCapture_v2(stream, KDA_CU_CAPTURE_THREAD_LOCAL));
    assert_int_equal(allocate_in_thread(), 0);
    CHECK(900, cuMemFree_v2(p.sums));
    expect_invalidated(stream);
    int mode = KDA_CU_CAPTURE_RELAXED;
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    assert_int_equal(mode, KDA_CU_CAPTURE_GLOBAL);
    OK(cuStreamBeginCapture_v2(stream, KDA_CU_CAPTURE_GLOBAL));
    OK(cuMemFree_v2(p.sums));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    exec = instantiate(stream);
    OK(cuGraphExecDestroy(exec));

    // Loads go through as on a recent driver, or end the capture as on an older one.
    CUmodule another;
    OK(cuStreamBeginCapture_v2(stream, KDA_CU_CAPTURE_GLOBAL));
    OK(cuModuleLoadData(&another, images[READ_SHARED].elf));
    assert_int_equal(soft_count().loads_in_capture, 1);
    exec = instantiate(stream);
    soft_set_load_in_capture(900);
    OK(cuStreamBeginCapture_v2(stream, KDA_CU_CAPTURE_GLOBAL));
    CHECK(900, cuModuleLoadData(&another, images[READ_SHARED].elf));
    assert_int_equal(soft_count().loads_in_capture, 2);
    expect_invalidated(stream);
    OK(cuModuleLoadData(&another, images[READ_SHARED].elf));

    // The legacy stream would wait for a blocking one: asking is harmless, using it is not.
    OK(cuStreamBeginCapture_v2(blocking, KDA_CU_CAPTURE_RELAXED));
    CHECK(906, cuStreamIsCapturing(NULL, &status));
    OK(cuStreamIsCapturing(SOFT_CU_STREAM_PER_THREAD, &status));
    assert_int_equal(status, KDA_CU_CAPTURE_NONE);
    OK(cuStreamIsCapturing(blocking, &status));
    assert_int_equal(status, KDA_CU_CAPTURE_ACTIVE);
    CHECK(906, launch(function, 1, 32, 4, NULL, &p));
    expect_invalidated(blocking);

    // Relaxed: the unload succeeds, and the graph is lost.
    CUgraph graph;
    OK(cuStreamBeginCapture_v2(stream, KDA_CU_CAPTURE_RELAXED));
    OK(cuMemAlloc_v2(&p.sums, 4));
    OK(launch(function, 1, 32, 4, stream, &p));
    OK(cuModuleUnload(module));
    OK(cuStreamEndCapture(stream, &graph));
    assert_int_equal(soft_count().caller_errors, 2);  // both unloads
    CHECK(400, cuGraphInstantiateWithFlags(&exec, graph, 0));
    assert_int_equal(soft_count().caller_errors, 3);
}

static void events(void **state)
{
    (void)state;
    CUevent a, b, untimed;
    float milliseconds = -1;
    OK(cuEventCreate(&a, 0));
    OK(cuEventCreate(&b, 0));
    OK(cuEventCreate(&untimed, SOFT_CU_EVENT_NO_TIMING));
    CHECK(400, cuEventElapsedTime(&milliseconds, a, b));
    OK(cuEventRecord(a, NULL));
    OK(cuEventRecord(untimed, NULL));
    OK(cuEventRecord(b, NULL));
    OK(cuEventSynchronize(b));
    OK(cuEventElapsedTime(&milliseconds, a, b));
    assert_true(milliseconds >= 0);
    CHECK(400, cuEventElapsedTime(&milliseconds, a, untimed));
    OK(cuEventDestroy_v2(a));
    CHECK(400, cuEventRecord(a, NULL));
}

// --------------------------------------------------------------------------------------- execution

static void faults(void **state)
{
    (void)state;
    static const struct {
        enum fault fault;
        unsigned block;
        const char *text;
    } cases[] = {
        {EXIT_EARLY, 64,
         "block (0,0,0) thread 5: exits while thread 0 stands at a shuffle of line 7"},
        {OTHER_SITE, 64,
         "thread 3: stands at a warp barrier of line 1 while thread 0 stands at a shuffle of line "
         "7"},
        {WARP_AND_CTA, 64,
         "thread 33: stands at a CTA barrier of line 2 while thread 27 stands at a CTA barrier of "
         "line 8"},
        {ABSENT_LANE, 64, "thread 0: shuffles from lane 40"},
        {NONE, 40, "thread 32: shuffles from lane 16"},
        {PAST_END, 64, "thread 31: an access of 4 bytes"},
        {HINT_PAST_END, 64, "line 12, is outside all allocations"},
        {PREFETCH_PAST_END, 64, "line 13, leaves all allocations"},
        {PREFETCH_ACROSS_END, 64, "line 14, leaves all allocations"},
        {PREFETCH_UNALIGNED, 64, "line 15, is not aligned"},
        {ACROSS_END, 64, "line 9, passes the end of its allocation"},
        {UNALIGNED, 64, "line 4, is not aligned"},
        {SHARED_PAST_END, 64,
         "a shared access of 4 bytes at offset 256, line 5, is outside the 64 bytes"},
        {SHARED_UNALIGNED, 64, "offset 6, line 6, is not aligned"},
    };
    CUfunction function = load(SCALE, NULL);
    struct scale_params p = make_params(512, 3);
    OK(cuMemAlloc_v2(&p.edge, 12));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        p.fault = cases[i].fault;
        CHECK(700, launch(function, 2, cases[i].block, 64, NULL, &p));
        if (strstr(soft_last_error(), cases[i].text) == NULL)
            fail_msg("case %zu: '%s' lacks '%s'", i, soft_last_error(), cases[i].text);
        // The next launch of this thread is none the worse.
        p.fault = NONE;
        OK(launch(function, 4, 128, 64, NULL, &p));
        assert_int_equal(read_word(p.sums, 3), 3 * 128 * (385 + 512) / 2);
    }
    OK(cuMemFree_v2(p.in));
    CHECK(700, launch(function, 1, 32, 64, NULL, &p));
    assert_non_null(strstr(soft_last_error(), "outside all allocations"));
}

static void shared_memory_is_poisoned(void **state)
{
    (void)state;
    CUfunction writer = load(SCALE, NULL), reader = load(READ_SHARED, NULL);
    struct scale_params p = make_params(64, 3);
    OK(launch(writer, 1, 64, 64, NULL, &p));
    OK(launch(reader, 1, 1, 64, NULL, &p));
    assert_int_equal(read_word(p.out, 0), 0xffc1ffc1u);
}

static void *launch_many(void *function)
{
    OK(cuCtxSetCurrent(context));
    struct scale_params p = make_params(512, 2);
    for (unsigned round = 0; round < 20; round++) {
        p.fault = round % 5 == 4 ? OTHER_SITE : NONE;
        CHECK(round % 5 == 4 ? 700 : 0, launch(function, 4, 128, 64, NULL, &p));
        assert_int_equal(read_word(p.sums, 3), 2 * 128 * (385 + 512) / 2);
    }
    OK(cuMemFree_v2(p.in));
    return NULL;
}

static void concurrent_launches(void **state)
{
    (void)state;
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    CUfunction function = load(SCALE, NULL);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, launch_many, function), 0);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(soft_count().launches, THREADS * 20);
    assert_int_equal(soft_count().caller_errors, 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(entry_rules),
        TEST(proc_address),
        TEST(contexts),
        TEST(primary_reset),
        TEST(memory),
        TEST(modules),
        TEST(launches),
        TEST(capture_and_replay),
        TEST(capture_rules),
        TEST(events),
        TEST(hints),
        TEST(faults),
        TEST(shared_memory_is_poisoned),
        TEST(concurrent_launches),
    };
    return cmocka_run_group_tests_name("soft", tests, NULL, NULL);
}
