// SPDX-License-Identifier: Apache-2.0
// What the reading of DLPack tensors decides by itself: devices, type codes, strides that are not
// there, offsets, empty tensors. That a call over DLPack is otherwise the plain call is held by
// every row of the argument suites.
#include <string.h>

#include "tests/dlpack.h"
#include "tests/rig.h"

static kda_context *context;

static int setup(void **state)
{
    (void)state;
    rig_start(10, 0);
    context = rig_context();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kda_context_close(&context);
    return 0;
}

static int64_t extents[4] = {2, 3, 4, 8}, steps[4] = {100, 50, 9, 1};

static kda_dl_tensor valid(void)
{
    return (kda_dl_tensor){.data = (void *)0x10000,
                           .device = {2, 0},
                           .ndim = 4,
                           .dtype = {4, 16, 1},
                           .shape = extents,
                           .strides = steps};
}

static kda_status read(const kda_dl_tensor *tensor, kda_tensor *out, kda_error *err)
{
    return kda_tensor_from_dlpack(context, tensor, "recurrent", "q", out, err);
}

static void reads(void **state)
{
    (void)state;
    kda_dl_tensor tensor = valid();
    kda_tensor got;
    kda_error err;
    tensor.byte_offset = 48;
    rig_ok(read(&tensor, &got, &err), &err);
    assert_int_equal((uintptr_t)got.data, 0x10030);
    assert_int_equal(got.dtype, KDA_BF16);
    assert_int_equal(got.rank, 4);
    assert_memory_equal(got.extent, extents, sizeof(extents));
    assert_memory_equal(got.stride, steps, sizeof(steps));

    tensor.strides = NULL;
    tensor.ndim = 3;
    tensor.device.device_type = 13;
    rig_ok(read(&tensor, &got, &err), &err);
    assert_memory_equal(got.stride, ((int64_t[4]){12, 4, 1, 0}), sizeof(got.stride));
    assert_memory_equal(got.extent, ((int64_t[4]){2, 3, 4, 0}), sizeof(got.extent));
}

// Frameworks leave anything as the stride of a dimension that leads nowhere.
static void unit_strides(void **state)
{
    (void)state;
    int64_t shape[4] = {1, 3, 1, 8}, strides[4] = {1, 24, 0, 1};
    kda_dl_tensor tensor = valid();
    kda_tensor got;
    kda_error err;
    tensor.shape = shape;
    tensor.strides = strides;
    rig_ok(read(&tensor, &got, &err), &err);
    assert_memory_equal(got.stride, ((int64_t[4]){24, 24, 8, 1}), sizeof(got.stride));
    shape[1] = 0;
    rig_ok(read(&tensor, &got, &err), &err);
    assert_memory_equal(got.extent, shape, sizeof(shape));
    assert_memory_equal(got.stride, ((int64_t[4]){0, 8, 8, 1}), sizeof(got.stride));
}

// One row, one head and one slot, each with a stride of 1 or of a wider tensor.
static void unit_call(void **state)
{
    (void)state;
    static const kda_gate gates[] = {KDA_GATE_PRECOMPUTED, KDA_GATE_SOFTPLUS};
    static const int64_t steps_of_one[] = {1, 0, 1024, 1031};
    for (size_t i = 0; i < 8; i++) {
        kda_recurrent_dlpack_args args = {
            .plain = rig_recurrent((struct rig_shape){gates[i % 2], 1, false, 1, 1, 1, 1})};
        kda_tensor *const tensors[] = {&args.plain.q, &args.plain.k,   &args.plain.v,
                                       &args.plain.g, &args.plain.out, &args.plain.state};
        const kda_dl_tensor **const addresses[] = {&args.q, &args.k,   &args.v,
                                                   &args.g, &args.out, &args.state};
        kda_tensor copies[6];
        kda_dl_tensor views[6];
        for (size_t j = 0; j < 6; j++) {
            copies[j] = *tensors[j];
            for (uint32_t k = 0; k < 4; k++) {
                if (copies[j].extent[k] == 1) copies[j].stride[k] = steps_of_one[i / 2];
            }
            views[j] = valid();
            views[j].data = copies[j].data;
            views[j].shape = copies[j].extent;
            views[j].strides = copies[j].stride;
            *addresses[j] = &views[j];
        }
        const soft_counters before = rig.soft_count();
        kda_error err;
        rig_ok(kda_recurrent_dlpack(context, &args, NULL, &err), &err);
        assert_int_equal(rig.soft_count().launches, before.launches + 1);
    }
}

static void types(void **state)
{
    (void)state;
    static const struct {
        uint8_t code, bits;
        uint16_t lanes;
        int type;
    } rows[] = {{4, 16, 1, KDA_BF16}, {2, 32, 1, KDA_F32}, {0, 32, 1, KDA_I32}, {2, 16, 1, KDA_F16},
                {0, 64, 1, KDA_I64},  {2, 64, 1, 0},       {1, 32, 1, 0},       {4, 16, 2, 0},
                {6, 8, 1, 0},         {5, 32, 1, 0},       {0, 8, 1, 0}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        kda_dl_tensor tensor = valid();
        kda_tensor got, before;
        kda_error err;
        memset(&got, 7, sizeof(got));
        before = got;
        tensor.dtype.code = rows[i].code;
        tensor.dtype.bits = rows[i].bits;
        tensor.dtype.lanes = rows[i].lanes;
        const kda_status status = read(&tensor, &got, &err);
        if (rows[i].type) {
            rig_ok(status, &err);
            assert_int_equal(got.dtype, rows[i].type);
        } else {
            rig_refused(status, &err, KDA_E_TYPE, "recurrent: q has DLPack type code");
            assert_memory_equal(&got, &before, sizeof(got));
        }
    }
}

static void devices(void **state)
{
    (void)state;
    static const int rows[][2] = {{1, 0}, {3, 0}, {10, 0}, {2, 1}, {13, 1}, {2, -1}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        kda_dl_tensor tensor = valid();
        kda_tensor got;
        kda_error err;
        tensor.device.device_type = rows[i][0];
        tensor.device.device_id = rows[i][1];
        rig_refused(read(&tensor, &got, &err), &err, KDA_E_ARGUMENT,
                    "must be on the context's, (2, 0)");
    }
}

// The device of the context is the one of its CUDA context, wherever that is.
static void second_device(void **state)
{
    (void)state;
    CUcontext cuda = NULL;
    kda_context *second = NULL;
    kda_error err;
    kda_tensor got;
    rig.soft_set_device_count(2);
    assert_int_equal(rig.cuDevicePrimaryCtxRetain(&cuda, 1), 0);
    rig_ok(kda_context_create(rig.bundle, cuda, NULL, &second, &err), &err);
    kda_dl_tensor tensor = valid();
    rig_refused(kda_tensor_from_dlpack(second, &tensor, "packed", "out", &got, &err), &err,
                KDA_E_ARGUMENT,
                "packed: out is on DLPack device (2, 0), must be on the context's, (2, 1)");
    tensor.device.device_id = 1;
    rig_ok(kda_tensor_from_dlpack(second, &tensor, "packed", "out", &got, &err), &err);
    kda_context_close(&second);
    assert_int_equal(rig.cuDevicePrimaryCtxRelease_v2(1), 0);
}

// No tensor at all, or one without elements, which needs no address; without one it gets one.
static void empty(void **state)
{
    (void)state;
    int64_t none[2] = {0, 128};
    kda_dl_tensor tensor = valid();
    kda_tensor got;
    kda_error err;
    tensor.data = NULL;
    rig_ok(read(&tensor, &got, &err), &err);
    assert_null(got.data);
    tensor.shape = none;
    tensor.ndim = 2;
    rig_ok(read(&tensor, &got, &err), &err);
    assert_non_null(got.data);
    assert_int_equal((uintptr_t)got.data % 32, 0);
    assert_int_equal(got.extent[0], 0);
}

// Ranks that a kda_tensor cannot hold are refused by the call, in its words.
static void ranks(void **state)
{
    (void)state;
    static const struct {
        int32_t rank;
        const char *words;
    } rows[] = {{0, "q has rank 0, must be 1 to 4"},
                {5, "q has rank 5, must be 1 to 4"},
                {-1, "must be 1 to 4"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        kda_recurrent_dlpack_args args = {
            .plain = rig_recurrent((struct rig_shape){KDA_GATE_PRECOMPUTED, 1, false, 3, 2, 4, 8})};
        kda_dl_tensor tensor = valid();
        kda_error err;
        tensor.ndim = rows[i].rank;
        args.q = &tensor;
        rig_refused(kda_recurrent_dlpack(context, &args, NULL, &err), &err, KDA_E_ARGUMENT,
                    rows[i].words);
    }
}

static void null_arguments(void **state)
{
    (void)state;
    const kda_dl_tensor tensor = valid();
    kda_tensor got;
    kda_error err;
    const kda_recurrent_dlpack_args args = {0};
    rig_refused(kda_tensor_from_dlpack(NULL, &tensor, "a", "b", &got, &err), &err, KDA_E_ARGUMENT,
                "context is null");
    rig_refused(kda_tensor_from_dlpack(context, NULL, "a", "b", &got, &err), &err, KDA_E_ARGUMENT,
                "tensor is null");
    rig_refused(kda_tensor_from_dlpack(context, &tensor, NULL, "b", &got, &err), &err,
                KDA_E_ARGUMENT, "operation is null");
    rig_refused(kda_tensor_from_dlpack(context, &tensor, "a", NULL, &got, &err), &err,
                KDA_E_ARGUMENT, "name is null");
    rig_refused(kda_tensor_from_dlpack(context, &tensor, "a", "b", NULL, &err), &err,
                KDA_E_ARGUMENT, "out is null");
    rig_refused(kda_recurrent_dlpack(NULL, &args, NULL, &err), &err, KDA_E_ARGUMENT,
                "context is null");
    rig_refused(kda_recurrent_dlpack(context, NULL, NULL, &err), &err, KDA_E_ARGUMENT,
                "args is null");
    rig_refused(kda_recurrent_dlpack(context, &args, NULL, &err), &err, KDA_E_ARGUMENT,
                "q is null");
}

// The caller's struct keeps its bytes, whatever the outcome.
static void reads_only(void **state)
{
    (void)state;
    kda_recurrent_dlpack_args args = {
        .plain = rig_recurrent((struct rig_shape){KDA_GATE_PRECOMPUTED, 1, false, 3, 2, 4, 8})};
    kda_dl_tensor tensor = valid();
    kda_error err;
    args.q = &tensor;
    const kda_recurrent_dlpack_args before = args;
    assert_int_not_equal(kda_recurrent_dlpack(context, &args, NULL, &err), KDA_OK);
    assert_memory_equal(&args, &before, sizeof(args));
}

// Objects of a framework, which its reader knows: here the tensor stands behind a magic number.
struct object {
    int magic;
    kda_dl_tensor tensor;
};

static int read_object(void *address, kda_dl_tensor *out)
{
    const struct object *const object = address;
    if (object->magic != 4711) return -1;
    *out = object->tensor;
    return 0;
}

static void objects(void **state)
{
    (void)state;
    kda_recurrent_dlpack_args args = {
        .plain = rig_recurrent((struct rig_shape){KDA_GATE_PRECOMPUTED, 1, false, 3, 2, 4, 8}),
        .read = read_object};
    struct object v = {4711, valid()};
    int64_t shape[4] = {3, 1, 4, 128};
    kda_error err;
    v.tensor.data = args.plain.v.data;
    v.tensor.shape = shape;
    v.tensor.strides = NULL;
    args.v = (const void *)&v;
    memset(&args.plain.v, 0, sizeof(args.plain.v));
    const soft_counters before = rig.soft_count();
    rig_ok(kda_recurrent_dlpack(context, &args, NULL, &err), &err);
    assert_int_equal(rig.soft_count().launches, before.launches + 1);
    shape[0] = 2;
    rig_refused(kda_recurrent_dlpack(context, &args, NULL, &err), &err, KDA_E_SHAPE,
                "v has shape [2,1,4,128], must be [3,1,4,128]");
    v.magic = 0;
    rig_refused(kda_recurrent_dlpack(context, &args, NULL, &err), &err, KDA_E_ARGUMENT,
                "recurrent: v cannot be read by its framework");
    assert_int_equal(rig.soft_count().launches, before.launches + 1);
}

int main(int argc, char **argv)
{
    rig_open(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reads, setup, teardown),
        cmocka_unit_test_setup_teardown(unit_strides, setup, teardown),
        cmocka_unit_test_setup_teardown(unit_call, setup, teardown),
        cmocka_unit_test_setup_teardown(types, setup, teardown),
        cmocka_unit_test_setup_teardown(devices, setup, teardown),
        cmocka_unit_test_setup_teardown(second_device, setup, teardown),
        cmocka_unit_test_setup_teardown(empty, setup, teardown),
        cmocka_unit_test_setup_teardown(ranks, setup, teardown),
        cmocka_unit_test_setup_teardown(objects, setup, teardown),
        cmocka_unit_test_setup_teardown(null_arguments, setup, teardown),
        cmocka_unit_test_setup_teardown(reads_only, setup, teardown),
    };
    const int failed = cmocka_run_group_tests_name("dlpack", tests, NULL, NULL);
    rig_close();
    return failed;
}
