// SPDX-License-Identifier: Apache-2.0
// kda-demo fused: the mixing part of a few layers, step after step. Each layer has its own weights
// and its own pool, whose pages hold a slot's convolution window and its state; both evolve in
// place. Each step is held against the float64 oracle, from what the device held before it: outputs
// and states within the limits, windows bit for bit.
#include "tools/demo.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/oracle_fused.h"

static const char usage[] =
    "usage: kda-demo fused [options]\n"
    "Decodes random sequences through the convolution, recurrence and gated norm of several "
    "layers\n"
    "on device 0, and checks every step against the float64 oracle. The state is f32.\n"
    "  --bundle FILE  images to use; default: the bundle linked in\n"
    "  --steps N      decode steps (8; on a GPU 32)\n"
    "  --layers N     layers, each with its own pool (2; on a GPU 4)\n"
    "  --rows N       rows of the batch, the last one padding (3; on a GPU 32)\n"
    "  --heads H      8, 12, 24, 32, 48 or 96 (8; on a GPU 32)\n"
    "Exit status: 0 all steps within the limits, 1 not or no usable device, 2 usage.\n";

enum { TENSORS = 11, KEPT = ORACLE_TAPS * ORACLE_PARTS };

struct layer {
    struct demo_tensor x, weight, raw_gate, raw_beta, a_log, dt_bias, indices, pool, output_gate,
        norm_weight, out;
    struct oracle_fused call;
    kda_plan plan;
};

struct demo {
    struct demo_world world;
    kda_problem problem;
    int64_t steps, layer_count, num_slots;
    size_t window, page;  // bytes: of a slot's window, and of its page
    struct layer *layers;
    struct oracle_error out_error, state_error;  // norms of the worst step
    struct oracle_rng rng;
};

static void list(struct layer *layer, struct demo_tensor *out[TENSORS])
{
    struct demo_tensor *const all[TENSORS] = {
        &layer->x,           &layer->weight,      &layer->raw_gate, &layer->raw_beta,
        &layer->a_log,       &layer->dt_bias,     &layer->indices,  &layer->pool,
        &layer->norm_weight, &layer->output_gate, &layer->out};
    memcpy(out, all, sizeof all);
}

// ------------------------------------------------------------------------------------------- input

static void draw(struct demo *demo, const struct demo_tensor *tensor, double mean, double spread)
{
    float *const values = tensor->host;
    for (size_t i = 0; i < tensor->size / sizeof *values; i++)
        values[i] = (float)(mean + spread * oracle_normal(&demo->rng));
}

static void open_layer(struct demo *demo, struct layer *layer)
{
    const struct demo_world *world = &demo->world;
    const int64_t rows = demo->problem.rows, heads = demo->problem.heads, width = heads * ORACLE_D;
    layer->x = demo_make(world, rows * 3 * width, 2);
    layer->weight = demo_make(world, 12 * width, 4);
    layer->raw_gate = demo_make(world, rows * width, 2);
    layer->raw_beta = demo_make(world, rows * heads, 2);
    layer->a_log = demo_make(world, heads, 4);
    layer->dt_bias = demo_make(world, width, 4);
    layer->indices = demo_make(world, rows, 4);
    layer->pool = demo_make(world, demo->num_slots, demo->page);
    layer->output_gate = demo_make(world, rows * width, 2);
    layer->norm_weight = demo_make(world, ORACLE_D, 4);
    layer->out = demo_make(world, rows * width, 2);
    draw(demo, &layer->weight, 0, 0.5);
    draw(demo, &layer->a_log, -2, 0.2);
    draw(demo, &layer->dt_bias, 0, 0.25);
    draw(demo, &layer->norm_weight, 1, 0.1);
    // Sequences start from zeros, scattered over the pool; the padding row has the null slot 0,
    // which holds NaN.
    for (size_t i = 0; i < demo->page; i += 2)
        memcpy((char *)layer->pool.host + i, &(uint16_t){ORACLE_POISON}, 2);
    for (int64_t n = 0; n < rows; n++)
        ((int32_t *)layer->indices.host)[n] =
            n == rows - 1 && rows > 1 ? 0 : (int32_t)(demo->num_slots - 1 - n);
    layer->call = (struct oracle_fused){
        .gate = demo->problem.gate,
        .rows = rows,
        .heads = heads,
        .num_slots = demo->num_slots,
        .x = layer->x.host,
        .raw_gate = layer->raw_gate.host,
        .raw_beta = layer->raw_beta.host,
        .output_gate = layer->output_gate.host,
        .x_stride = 3 * width,
        .gate_stride = width,
        .beta_stride = heads,
        .output_gate_stride = width,
        .weight = layer->weight.host,
        .a_log = layer->a_log.host,
        .dt_bias = layer->dt_bias.host,
        .norm_weight = layer->norm_weight.host,
        .indices = layer->indices.host,
        .lower_bound = -5.0,
        .norm_eps = (double)1e-5f,
    };
    struct demo_tensor *all[TENSORS];
    list(layer, all);
    for (int i = 0; i < TENSORS; i++) demo_put(world, all[i]);
}

static void next_inputs(struct demo *demo, struct layer *layer)
{
    const struct demo_tensor *const inputs[] = {&layer->x, &layer->raw_gate, &layer->raw_beta,
                                                &layer->output_gate};
    for (int i = 0; i < 4; i++) {
        demo_normals(&demo->rng, inputs[i]->host, (int64_t)inputs[i]->size / 2, 1);
        demo_put(&demo->world, inputs[i]);
    }
}

static void plan(struct demo *demo, struct layer *layer)
{
    const int64_t n = demo->problem.rows, h = demo->problem.heads, d = ORACLE_D, width = h * d;
    const int64_t slots = demo->num_slots;
    kda_fused_args args = {
        .x = demo_view(&layer->x, KDA_BF16, 2, n, 3 * width, 0, 0),
        .weight = demo_view(&layer->weight, KDA_F32, 3, 3, 4, width, 0),
        .conv_state = demo_view(&layer->pool, KDA_BF16, 3, slots, 3 * width, 3, 0),
        .raw_gate = demo_view(&layer->raw_gate, KDA_BF16, 4, 1, n, h, d),
        .raw_beta = demo_view(&layer->raw_beta, KDA_BF16, 3, 1, n, h, 0),
        .a_log = demo_view(&layer->a_log, KDA_F32, 1, h, 0, 0, 0),
        .dt_bias = demo_view(&layer->dt_bias, KDA_F32, 1, width, 0, 0, 0),
        .state_indices = demo_view(&layer->indices, KDA_I32, 1, n, 0, 0, 0),
        .state = demo_view(&layer->pool, KDA_F32, 4, slots, h, d, d),
        .output_gate = demo_view(&layer->output_gate, KDA_BF16, 3, n, h, d, 0),
        .norm_weight = demo_view(&layer->norm_weight, KDA_F32, 1, d, 0, 0, 0),
        .out = demo_view(&layer->out, KDA_BF16, 4, 1, n, h, d),
        .gate = demo->problem.gate,
        .mode = (kda_mode)demo->problem.mode,
        .lower_bound = -5.0f,
        .norm_eps = 1e-5f,
    };
    args.conv_state.stride[0] = (int64_t)demo->page / 2;
    args.conv_state.stride[1] = 1;
    args.conv_state.stride[2] = 3 * width;
    args.state.data = (char *)args.state.data + demo->window;
    args.state.stride[0] = (int64_t)demo->page / 4;
    kda_error err;
    if (kda_fused_plan(demo->world.context, &args, NULL, NULL, &layer->plan, &err)) demo_die(&err);
}

static void launch(const struct demo *demo, const struct layer *layer)
{
    kda_error err;
    if (kda_plan_launch(&layer->plan, demo->world.stream, &err)) demo_die(&err);
}

// ------------------------------------------------------------------------------------------- judge

// A live row: `page` is its slot before the step, whose window moves on here.
static bool judge_row(const struct demo *demo, const struct layer *layer, int64_t n, char *page,
                      struct oracle_error *out_error, struct oracle_error *state_error)
{
    const struct oracle_fused *const call = &layer->call;
    const size_t at = (size_t)oracle_fused_slot(call, n) * demo->page;
    const char *const after = (const char *)layer->pool.host + at;
    static double state[ORACLE_HEAD];
    for (int64_t h = 0; h < call->heads; h++) {
        const size_t head = demo->window + (size_t)(h * ORACLE_HEAD) * sizeof(float);
        const float *const from = (const float *)(const void *)(page + head),
                           *const to = (const float *)(const void *)(after + head);
        double out[ORACLE_D];
        for (int i = 0; i < ORACLE_HEAD; i++) state[i] = (double)from[i];
        oracle_fused_step(call, n, h, (uint16_t *)(void *)page, state, out);
        oracle_add_many(out_error,
                        (const uint16_t *)layer->out.host + (n * call->heads + h) * ORACLE_D, out,
                        ORACLE_D);
        for (int i = 0; i < ORACLE_HEAD; i++) oracle_add_f32(state_error, to[i], state[i]);
    }
    return !memcmp(page, after, demo->window);
}

static bool judge(struct demo *demo, const struct layer *layer, char *before)
{
    const struct oracle_fused *const call = &layer->call;
    const int64_t width = call->heads * ORACLE_D;
    struct oracle_error out_error = {.count = 0}, state_error = {.count = 0};
    bool good = !memcmp(before, layer->pool.host, demo->page);  // slot 0
    for (int64_t n = 0; n < call->rows; n++) {
        const int64_t slot = oracle_fused_slot(call, n);
        const uint16_t *const out = (const uint16_t *)layer->out.host + n * width;
        for (int64_t i = 0; i < width && slot < 0; i++) good &= out[i] == 0;
        if (slot >= 0)
            good &= judge_row(demo, layer, n, before + (size_t)slot * demo->page, &out_error,
                              &state_error);
    }
    demo_keep_worst(&demo->out_error, &out_error);
    demo_keep_worst(&demo->state_error, &state_error);
    return good && oracle_within(&out_error) && oracle_within(&state_error);
}

static bool decode(struct demo *demo)
{
    const struct demo_world *world = &demo->world;
    char *before = demo_zeroed(demo->layers[0].pool.size);
    bool good = true;
    for (int64_t step = 0; step < demo->steps; step++)
        for (int64_t i = 0; i < demo->layer_count; i++) {
            struct layer *layer = &demo->layers[i];
            next_inputs(demo, layer);
            machine_fill(&world->machine, layer->out.device, ORACLE_POISON, layer->out.size / 2);
            memcpy(before, layer->pool.host, layer->pool.size);
            launch(demo, layer);
            machine_sync(&world->machine, world->stream);
            demo_get(world, &layer->out);
            demo_get(world, &layer->pool);
            const bool fine = judge(demo, layer, before);
            if (!fine && good)
                printf("step %lld of layer %lld leaves the limits\n", (long long)step,
                       (long long)i);
            good &= fine;
        }
    free(before);
    return good;
}

// -------------------------------------------------------------------------------------------- main

int demo_fused(int argc, char **argv)
{
    struct demo demo = {.rng = {.state = 2025}};
    const char *bundle = NULL;
    int64_t rows = 0, heads = 0;
    const struct demo_option options[] = {{"--steps", &demo.steps},
                                          {"--layers", &demo.layer_count},
                                          {"--rows", &rows},
                                          {"--heads", &heads},
                                          {NULL, NULL}};
    const int done = demo_options(argc, argv, usage, options, &bundle);
    if (done >= 0) return done;
    demo_open(bundle, &demo.world);
    const bool soft = demo.world.machine.soft;
    if (!demo.steps) demo.steps = soft ? 8 : 32;
    if (!demo.layer_count) demo.layer_count = soft ? 2 : 4;
    if (!rows) rows = soft ? 3 : 32;
    if (!heads) heads = soft ? 8 : 32;
    demo.problem = (kda_problem){
        .op = KDA_OP_FUSED,
        .gate = KDA_GATE_LOWER_BOUND,
        .tokens = 1,
        .rows = rows,
        .heads = heads,
        .value_heads = heads,
        .state_type = KDA_F32,
        .mode = KDA_MODE_UNIQUE_OR_NULL,
    };
    demo.num_slots = rows + 2;
    demo.window = (size_t)(heads * ORACLE_D * KEPT) * 2;
    demo.page = demo.window + (size_t)(heads * ORACLE_HEAD) * sizeof(float);
    demo_report_world(&demo.world);
    demo_report_route(&demo.world, &demo.problem);  // refuses before anything is allocated
    printf("input   %lld steps of %lld layers, %lld rows (%d padding), H %lld\n",
           (long long)demo.steps, (long long)demo.layer_count, (long long)rows, rows > 1,
           (long long)heads);
    fflush(stdout);
    demo.layers = demo_zeroed((size_t)demo.layer_count * sizeof *demo.layers);
    for (int64_t i = 0; i < demo.layer_count; i++) {
        open_layer(&demo, &demo.layers[i]);
        plan(&demo, &demo.layers[i]);
    }
    const bool good = decode(&demo);
    demo_report_errors(&demo.out_error, "state", &demo.state_error);
    machine_capture(&demo.world.machine, demo.world.stream);
    for (int64_t i = 0; i < demo.layer_count; i++) launch(&demo, &demo.layers[i]);
    demo_report_time(&demo.world, "step of all layers");
    puts(good ? "ok" : "FAILED");
    for (int64_t i = 0; i < demo.layer_count; i++) {
        struct demo_tensor *all[TENSORS];
        list(&demo.layers[i], all);
        for (int j = 0; j < TENSORS; j++) demo_drop(&demo.world, all[j]);
    }
    free(demo.layers);
    demo_close(&demo.world);
    return good ? 0 : 1;
}
