// SPDX-License-Identifier: Apache-2.0
// Owns the way to the soft device's back doors and the making of valid calls. Knows no rule of the
// library: a call that it makes is one that the public header describes.
#include "tests/rig.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rig rig;

void rig_open(int argc, char **argv)
{
    rig.program = argv[0];
    rig.path = argc > 1 ? argv[1] : getenv("KDA_TEST_BUNDLE");
    if (!rig.path) {
        fprintf(stderr, "usage: %s BUNDLE\n", argv[0]);
        exit(2);
    }
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library || !dlsym(library, "soft_reset")) {
        fprintf(stderr, "%s: skipped, the driver is not the soft device%s%s\n", argv[0],
                library ? "" : ": ", library ? "" : dlerror());
        exit(77);
    }
#define X(type, name, parameters)                                                                  \
    {                                                                                              \
        void *symbol = dlsym(library, #name);                                                      \
        if (!symbol) {                                                                             \
            fprintf(stderr, "%s: the soft device lacks %s\n", argv[0], #name);                     \
            exit(1);                                                                               \
        }                                                                                          \
        memcpy(&rig.name, &symbol, sizeof(symbol));                                                \
    }
    RIG_SYMBOLS(X)
#undef X
    kda_error err;
    if (kda_bundle_open_file(rig.path, &rig.bundle, &err) != KDA_OK) {
        fprintf(stderr, "%s: %s\n", argv[0], err.text);
        exit(1);
    }
}

void rig_close(void) { kda_bundle_close(&rig.bundle); }

void rig_start(int cc_major, int cc_minor)
{
    rig.soft_reset();
    rig.soft_set_device(0, cc_major, cc_minor, 148);
    rig.soft_set_execute(false);
    assert_int_equal(rig.cuInit(0), 0);
    assert_int_equal(rig.cuCtxCreate_v2(&rig.cuda, 0, 0), 0);
}

kda_context *rig_context(void)
{
    kda_context *context = NULL;
    kda_error err;
    rig_ok(kda_context_create(rig.bundle, rig.cuda, NULL, &context, &err), &err);
    rig_ok(kda_context_prepare(context, NULL, &err), &err);
    return context;
}

void rig_expect_ok(kda_status status, const kda_error *err, const char *file, int line)
{
    if (status == KDA_OK) return;
    print_error("%s: %s\n", kda_status_name(status), err->text);
    _fail(file, line);
}

void rig_expect_refusal(kda_status status, const kda_error *err, kda_status wanted,
                        const char *fragment, const char *file, int line)
{
    const bool good = status == wanted && status != KDA_OK && err->status == status &&
                      strstr(err->text, fragment) && !strchr(err->text, '\n');
    if (good) return;
    print_error("expected %s and \"%s\", found %s and \"%s\"\n", kda_status_name(wanted), fragment,
                kda_status_name(status), status == KDA_OK ? "" : err->text);
    _fail(file, line);
}

kda_tensor rig_tensor(uint64_t address, kda_dtype type, const int64_t extent[4])
{
    kda_tensor tensor = {.data = (void *)(uintptr_t)address, .dtype = type};
    while (tensor.rank < 4 && extent[tensor.rank]) {
        tensor.extent[tensor.rank] = extent[tensor.rank];
        tensor.rank++;
    }
    int64_t stride = 1;
    for (uint32_t i = tensor.rank; i-- > 0;) {
        tensor.stride[i] = stride;
        stride *= tensor.extent[i];
    }
    return tensor;
}

uint64_t rig_bytes(const kda_tensor *tensor)
{
    int64_t elements = 1;
    for (uint32_t i = 0; i < tensor->rank; i++)
        elements += (tensor->extent[i] - 1) * tensor->stride[i];
    return (uint64_t)elements * (tensor->dtype == KDA_BF16 ? 2 : 4);
}

// The i-th tensor of a call, far from all others.
static uint64_t place(uint64_t i) { return (i + 1) << 52; }

kda_recurrent_args rig_recurrent(struct rig_shape shape)
{
    const int64_t n = shape.rows, t = shape.tokens, h = shape.heads, hv = shape.value_heads;
    kda_recurrent_args args = {
        .state = RIG_TENSOR(place(7), KDA_BF16, shape.slots, hv, 128, 128),
        .gate = shape.gate,
        .num_spec_tokens = shape.tokens - 1,
        .scale = 0.0883883461F,
        .flags = t > 1 ? KDA_FLAG_SPECULATIVE : 0,
    };
    if (shape.packed) {
        args.q = RIG_TENSOR(place(0), KDA_BF16, n * t, h, 128);
        args.k = RIG_TENSOR(place(1), KDA_BF16, n * t, h, 128);
        args.v = RIG_TENSOR(place(2), KDA_BF16, n * t, hv, 128);
        args.g = RIG_TENSOR(place(3), KDA_BF16, n * t, hv, 128);
        args.beta = RIG_TENSOR(place(4), KDA_BF16, n * t, hv);
        args.out = RIG_TENSOR(place(8), KDA_BF16, n * t, hv, 128);
        args.cu_seqlens = RIG_TENSOR(place(10), KDA_I32, n + 1);
    } else {
        args.q = RIG_TENSOR(place(0), KDA_BF16, n, t, h, 128);
        args.k = RIG_TENSOR(place(1), KDA_BF16, n, t, h, 128);
        args.v = RIG_TENSOR(place(2), KDA_BF16, n, t, hv, 128);
        args.g = RIG_TENSOR(place(3), KDA_BF16, n, t, hv, 128);
        args.beta = RIG_TENSOR(place(4), KDA_BF16, n, t, hv);
        args.out = RIG_TENSOR(place(8), KDA_BF16, n, t, hv, 128);
    }
    if (shape.gate != KDA_GATE_PRECOMPUTED) {
        args.a_log = RIG_TENSOR(place(5), KDA_F32, h);
        args.dt_bias = RIG_TENSOR(place(6), KDA_F32, h, 128);
        args.lower_bound = shape.gate == KDA_GATE_LOWER_BOUND ? -5.0F : 0.0F;
    }
    args.ssm_state_indices =
        t > 1 ? RIG_TENSOR(place(9), KDA_I32, n, t) : RIG_TENSOR(place(9), KDA_I32, n);
    args.num_accepted_tokens = RIG_TENSOR(place(11), KDA_I32, n);
    return args;
}

kda_packed_args rig_packed(int64_t rows, int64_t slots)
{
    return (kda_packed_args){
        .mixed_qkv = RIG_TENSOR(place(0), KDA_BF16, rows, 4608),
        .raw_gate = RIG_TENSOR(place(1), KDA_BF16, rows, 1536),
        .raw_beta = RIG_TENSOR(place(2), KDA_BF16, rows, 12),
        .a_log = RIG_TENSOR(place(3), KDA_F32, 12),
        .dt_bias = RIG_TENSOR(place(4), KDA_F32, 1536),
        .state = RIG_TENSOR(place(5), KDA_BF16, slots, 12, 128, 128),
        .state_indices = RIG_TENSOR(place(6), KDA_I32, rows),
        .out = RIG_TENSOR(place(7), KDA_BF16, rows, 1, 12, 128),
    };
}

kda_verify_args rig_verify(struct rig_shape shape)
{
    const int64_t n = shape.rows, t = shape.tokens, hv = shape.value_heads;
    const kda_recurrent_args like = rig_recurrent(shape);
    return (kda_verify_args){
        .q = like.q,
        .k = like.k,
        .v = like.v,
        .g = like.g,
        .beta = like.beta,
        .a_log = like.a_log,
        .dt_bias = like.dt_bias,
        .state = like.state,
        .out = like.out,
        .ssm_state_indices = RIG_TENSOR(place(9), KDA_I32, n),
        .cu_seqlens = like.cu_seqlens,
        .correction_cache = RIG_TENSOR(place(12), KDA_F32, shape.slots, hv, t, 128),
        .kg_cache = RIG_TENSOR(place(13), KDA_BF16, shape.slots, hv, t, 256),
        .gate = shape.gate,
        .num_spec_tokens = shape.tokens - 1,
        .scale = like.scale,
        .lower_bound = like.lower_bound,
        .flags = KDA_FLAG_SPECULATIVE,
    };
}

kda_commit_args rig_commit(struct rig_shape shape)
{
    const kda_verify_args like = rig_verify(shape);
    return (kda_commit_args){
        .state = like.state,
        .correction_cache = like.correction_cache,
        .kg_cache = like.kg_cache,
        .ssm_state_indices = like.ssm_state_indices,
        .num_accepted_tokens = RIG_TENSOR(place(11), KDA_I32, shape.rows),
        .a_log = like.a_log,
        .dt_bias = like.dt_bias,
        .gate = shape.gate,
        .heads = (int32_t)shape.heads,
        .lower_bound = like.lower_bound,
    };
}

kda_fused_args rig_fused(int64_t rows, int64_t heads, int64_t slots, kda_dtype state_type)
{
    const int64_t width = heads * 128;
    kda_fused_args args = {
        .x = RIG_TENSOR(place(0), KDA_BF16, rows, 3 * width),
        .weight = RIG_TENSOR(place(1), KDA_F32, 3, 4, width),
        .conv_state = RIG_TENSOR(place(2), KDA_BF16, slots, 3 * width, 3),
        .raw_gate = RIG_TENSOR(place(3), KDA_BF16, 1, rows, heads, 128),
        .raw_beta = RIG_TENSOR(place(4), KDA_BF16, 1, rows, heads),
        .a_log = RIG_TENSOR(place(5), KDA_F32, heads),
        .dt_bias = RIG_TENSOR(place(6), KDA_F32, width),
        .state_indices = RIG_TENSOR(place(7), KDA_I32, rows),
        .state = RIG_TENSOR(place(8), state_type, slots, heads, 128, 128),
        .output_gate = RIG_TENSOR(place(9), KDA_BF16, rows, heads, 128),
        .norm_weight = RIG_TENSOR(place(10), KDA_F32, 128),
        .out = RIG_TENSOR(place(11), KDA_BF16, 1, rows, heads, 128),
        .gate = KDA_GATE_LOWER_BOUND,
        .mode = KDA_MODE_UNIQUE_OR_NULL,
        .lower_bound = -5,
        .norm_eps = 1e-5F,
    };
    args.conv_state.stride[1] = 1;
    args.conv_state.stride[2] = 3 * width;
    return args;
}
