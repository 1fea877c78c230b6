// SPDX-License-Identifier: Apache-2.0
// kda-demo recurrent and packed: decodes several sequences step by step through the public API, the
// state evolving on the device, padding rows in the batch, and compares every step with the float64
// oracle. Each step is judged from the state that the device held before it; a second oracle that
// never sees a rounded state measures the drift.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/demo.h"

static const char usage[] =
    "usage: kda-demo recurrent|packed [options]\n"
    "Decodes random sequences on device 0 and checks every step against the float64 oracle.\n"
    "  --bundle FILE  images to use; default: the bundle linked in\n"
    "  --steps N      decode steps (64)\n"
    "  --rows N       rows of the batch, the last one padding (4; on a GPU 32)\n"
    "  --heads H      query/key heads; recurrent has 2*H value heads (2; on a GPU 16)\n"
    "  --tokens T     recurrent: tokens per row and step; with T > 1 a random number of them is "
    "accepted (1)\n"
    "Exit status: 0 all steps within the limits, 1 not or no usable device, 2 usage.\n";

struct demo {
    struct demo_world world;
    kda_op op;
    kda_problem problem;
    int64_t steps, num_slots;
    struct demo_tensor q, k, v, g, beta, a_log, dt_bias, state, out, indices, accepted;
    struct oracle_call call;
    double *truth;                               // [N, HV, 128, 128], never rounded
    double *step_states, *step_out;              // of one row and head
    struct oracle_error out_error, state_error;  // norms of the worst step
    struct oracle_error drift;                   // of all steps
    struct oracle_rng rng;
};

// ------------------------------------------------------------------------------------------- input

// A packed row carries q, k and v side by side; the recurrent call has a tensor for each.
static void open_tensors(struct demo *demo)
{
    const kda_problem *problem = &demo->problem;
    int64_t rows = problem->rows, tok = rows * problem->tokens, narrow = problem->heads * ORACLE_D;
    int64_t wide = problem->value_heads * ORACLE_D;
    bool packed = demo->op == KDA_OP_PACKED;
    demo->num_slots = tok + 2;  // slot 0 and the last one belong to nobody and hold NaN
    demo->q = demo_make(&demo->world, tok * (packed ? 3 * narrow : narrow), 2);
    demo->k = demo_make(&demo->world, packed ? 0 : tok * narrow, 2);
    demo->v = demo_make(&demo->world, packed ? 0 : tok * wide, 2);
    demo->g = demo_make(&demo->world, tok * wide, 2);
    demo->beta = demo_make(&demo->world, tok * problem->value_heads, 2);
    demo->a_log = demo_make(&demo->world, problem->heads, 4);
    demo->dt_bias = demo_make(&demo->world, narrow, 4);
    demo->state = demo_make(&demo->world, demo->num_slots * problem->value_heads * ORACLE_HEAD, 2);
    demo->out = demo_make(&demo->world, tok * wide, 2);
    demo->indices = demo_make(&demo->world, tok, 4);
    demo->accepted = demo_make(&demo->world, rows, 4);
    uint16_t *q = demo->q.host;
    demo->call = (struct oracle_call){
        .gate = problem->gate,
        .tokens = problem->tokens,
        .rows = rows,
        .tok = tok,
        .heads = problem->heads,
        .value_heads = problem->value_heads,
        .num_slots = demo->num_slots,
        .q = q,
        .k = packed ? q + narrow : demo->k.host,
        .v = packed ? q + 2 * narrow : demo->v.host,
        .g = demo->g.host,
        .beta = demo->beta.host,
        .q_stride = packed ? 3 * narrow : narrow,
        .k_stride = packed ? 3 * narrow : narrow,
        .v_stride = packed ? 3 * narrow : wide,
        .g_stride = wide,
        .beta_stride = problem->value_heads,
        .a_log = demo->a_log.host,
        .dt_bias = demo->dt_bias.host,
        .indices = demo->indices.host,
        .accepted = demo->accepted.host,
        .beta_is_logit = packed,
        .scale = (double)(float)(1 / sqrt(ORACLE_D)),
        .lower_bound = problem->gate == KDA_GATE_LOWER_BOUND ? -5.0 : 0.0,
    };
}

// Every sequence starts from the zero state; the padding row has null slots, and NaN wherever it
// could be read.
static void start_sequences(struct demo *demo)
{
    const kda_problem *problem = &demo->problem;
    int64_t block = problem->value_heads * ORACLE_HEAD, tokens = problem->tokens;
    uint16_t *state = demo->state.host,
             *nans[] = {demo->q.host, demo->k.host, demo->v.host, demo->g.host, demo->beta.host};
    size_t sizes[] = {demo->q.size, demo->k.size, demo->v.size, demo->g.size, demo->beta.size};
    for (int i = 0; i < 5; i++)
        for (size_t j = 0; j < sizes[i] / 2; j++) nans[i][j] = ORACLE_POISON;
    for (int64_t i = 0; i < block; i++)
        state[i] = state[(demo->num_slots - 1) * block + i] = ORACLE_POISON;
    for (int64_t n = 0; n < problem->rows; n++) {
        bool padding = n == problem->rows - 1 && problem->rows > 1;
        ((int32_t *)demo->accepted.host)[n] = 1;
        for (int64_t t = 0; t < tokens; t++)
            ((int32_t *)demo->indices.host)[n * tokens + t] =
                padding ? -1 : (int32_t)(1 + n * tokens + t);
    }
    for (int64_t h = 0; h < problem->heads; h++)
        ((float *)demo->a_log.host)[h] = (float)(0.2 * oracle_normal(&demo->rng) - 2);
    for (int64_t i = 0; i < problem->heads * ORACLE_D; i++)
        ((float *)demo->dt_bias.host)[i] = (float)(0.25 * oracle_normal(&demo->rng));
    demo_put(&demo->world, &demo->state);
    demo_put(&demo->world, &demo->indices);
    demo_put(&demo->world, &demo->a_log);
    demo_put(&demo->world, &demo->dt_bias);
}

static void next_tokens(struct demo *demo)
{
    const struct oracle_call *call = &demo->call;
    for (int64_t n = 0; n < call->rows; n++)
        for (int32_t t = 0; t < call->tokens && oracle_live(call, n); t++) {
            int64_t token = n * call->tokens + t;
            uint16_t *g = (uint16_t *)demo->g.host + token * call->g_stride;
            uint16_t *beta = (uint16_t *)demo->beta.host + token * call->beta_stride;
            demo_normals(&demo->rng, call->q + token * call->q_stride, call->heads * ORACLE_D, 0.5);
            demo_normals(&demo->rng, call->k + token * call->k_stride, call->heads * ORACLE_D, 0.5);
            demo_normals(&demo->rng, call->v + token * call->v_stride, call->value_heads * ORACLE_D,
                         0.5);
            for (int64_t c = 0; c < call->value_heads * ORACLE_D; c++) {
                double x = oracle_normal(&demo->rng);
                g[c] = oracle_bf16(call->gate == KDA_GATE_PRECOMPUTED ? -oracle_softplus(-x - 2)
                                                                      : 0.5 * x);
            }
            for (int64_t hv = 0; hv < call->value_heads; hv++) {
                double x = oracle_normal(&demo->rng);
                beta[hv] = oracle_bf16(call->beta_is_logit ? x : oracle_sigmoid(x));
            }
        }
    const struct demo_tensor *inputs[] = {&demo->q, &demo->k,    &demo->v,
                                          &demo->g, &demo->beta, &demo->accepted};
    for (int i = 0; i < 6; i++) demo_put(&demo->world, inputs[i]);
}

// -------------------------------------------------------------------------------------------- call

static kda_status plan(struct demo *demo, kda_plan *out, kda_error *err)
{
    const kda_problem *problem = &demo->problem;
    int64_t rows = problem->rows, tokens = problem->tokens, h = problem->heads,
            hv = problem->value_heads;
    kda_tensor state =
        demo_view(&demo->state, KDA_BF16, 4, demo->num_slots, hv, ORACLE_D, ORACLE_D);
    kda_tensor result = demo_view(&demo->out, KDA_BF16, 4, rows, tokens, hv, ORACLE_D);
    bool gated = problem->gate != KDA_GATE_PRECOMPUTED;
    kda_tensor a_log = demo_view(&demo->a_log, KDA_F32, 1, h, 0, 0, 0);
    kda_tensor dt_bias = demo_view(&demo->dt_bias, KDA_F32, 1, h * ORACLE_D, 0, 0, 0);
    if (demo->op == KDA_OP_PACKED) {
        kda_packed_args args = {
            .mixed_qkv = demo_view(&demo->q, KDA_BF16, 2, rows, 3 * h * ORACLE_D, 0, 0),
            .raw_gate = demo_view(&demo->g, KDA_BF16, 2, rows, h * ORACLE_D, 0, 0),
            .raw_beta = demo_view(&demo->beta, KDA_BF16, 2, rows, h, 0, 0),
            .a_log = a_log,
            .dt_bias = dt_bias,
            .state = state,
            .state_indices = demo_view(&demo->indices, KDA_I32, 1, rows, 0, 0, 0),
            .out = result,
        };
        return kda_packed_plan(demo->world.context, &args, NULL, NULL, out, err);
    }
    kda_recurrent_args args = {
        .q = demo_view(&demo->q, KDA_BF16, 4, rows, tokens, h, ORACLE_D),
        .k = demo_view(&demo->k, KDA_BF16, 4, rows, tokens, h, ORACLE_D),
        .v = demo_view(&demo->v, KDA_BF16, 4, rows, tokens, hv, ORACLE_D),
        .g = demo_view(&demo->g, KDA_BF16, 4, rows, tokens, hv, ORACLE_D),
        .beta = demo_view(&demo->beta, KDA_BF16, 3, rows, tokens, hv, 0),
        .a_log = gated ? a_log : (kda_tensor){.data = NULL},
        .dt_bias = gated ? dt_bias : (kda_tensor){.data = NULL},
        .state = state,
        .out = result,
        .ssm_state_indices =
            demo_view(&demo->indices, KDA_I32, tokens > 1 ? 2 : 1, rows, tokens, 0, 0),
        .num_accepted_tokens = demo_view(&demo->accepted, KDA_I32, 1, rows, 0, 0, 0),
        .gate = problem->gate,
        .num_spec_tokens = tokens > 1 ? (int32_t)tokens - 1 : 0,
        .scale = (float)demo->call.scale,
        .lower_bound = (float)demo->call.lower_bound,
        .flags = tokens > 1 ? KDA_FLAG_SPECULATIVE : 0,
    };
    return kda_recurrent_plan(demo->world.context, &args, NULL, NULL, out, err);
}

// ------------------------------------------------------------------------------------------- judge

// Compares what the step left with the oracle, from `before`, the pool as it was. False: something
// that must not change did, or a padding row is not zero.
static bool judge_step(struct demo *demo, const uint16_t *before, const int32_t *accepted)
{
    const struct oracle_call *call = &demo->call;
    const uint16_t *pool = demo->state.host, *out = demo->out.host;
    int64_t block = call->value_heads * ORACLE_HEAD, last = (call->num_slots - 1) * block;
    struct oracle_error out_error = {.count = 0}, state_error = {.count = 0};
    bool good = !memcmp(pool, before, (size_t)block * 2) &&
                !memcmp(pool + last, before + last, (size_t)block * 2);
    for (int64_t n = 0; n < call->rows; n++)
        for (int64_t hv = 0; hv < call->value_heads; hv++) {
            const uint16_t *got = out + (n * call->tokens * call->value_heads + hv) * ORACLE_D;
            int64_t step = call->value_heads * ORACLE_D, start = oracle_start(call, n);
            if (!oracle_live(call, n)) {
                for (int32_t t = 0; t < call->tokens; t++)
                    for (int c = 0; c < ORACLE_D; c++) good &= got[t * step + c] == 0;
                continue;
            }
            oracle_row(call, n, hv, before + start * block + hv * ORACLE_HEAD, demo->step_out,
                       demo->step_states);
            double *truth = demo->truth + (n * call->value_heads + hv) * ORACLE_HEAD,
                   exact[ORACLE_D];
            for (int32_t t = 0; t < call->tokens; t++) {
                const uint16_t *state = pool + oracle_slot(call, n, t) * block + hv * ORACLE_HEAD;
                oracle_add_many(&out_error, got + t * step, demo->step_out + t * ORACLE_D,
                                ORACLE_D);
                oracle_add_many(&state_error, state, demo->step_states + (int64_t)t * ORACLE_HEAD,
                                ORACLE_HEAD);
                if (t >= accepted[n]) continue;
                oracle_step(call, n * call->tokens + t, hv, truth, exact);
                oracle_add_many(&demo->drift, got + t * step, exact, ORACLE_D);
                oracle_add_many(&demo->drift, state, truth, ORACLE_HEAD);
            }
        }
    demo_keep_worst(&demo->out_error, &out_error);
    demo_keep_worst(&demo->state_error, &state_error);
    return good && oracle_within(&out_error) && oracle_within(&state_error);
}

static bool decode(struct demo *demo, const kda_plan *bound)
{
    const struct machine *machine = &demo->world.machine;
    const struct oracle_call *call = &demo->call;
    uint16_t *before = demo_zeroed(demo->state.size);
    int32_t *accepted = demo_zeroed(demo->accepted.size);
    kda_error err;
    bool good = true;
    for (int64_t step = 0; step < demo->steps; step++) {
        next_tokens(demo);
        machine_fill(machine, demo->out.device, ORACLE_POISON, demo->out.size / 2);
        memcpy(before, demo->state.host, demo->state.size);
        if (kda_plan_launch(bound, demo->world.stream, &err)) demo_die(&err);
        machine_sync(machine, demo->world.stream);
        demo_get(&demo->world, &demo->out);
        demo_get(&demo->world, &demo->state);
        for (int64_t n = 0; n < call->rows; n++)
            accepted[n] = 1 + (int32_t)(oracle_bits(&demo->rng) % (uint64_t)call->tokens);
        if (!judge_step(demo, before, accepted)) {
            if (good) printf("step %lld leaves the limits\n", (long long)step);
            good = false;
        }
        memcpy(demo->accepted.host, accepted, demo->accepted.size);
    }
    free(before);
    free(accepted);
    return good && demo->drift.worst <= 1;
}

// -------------------------------------------------------------------------------------------- main

static void report_start(const struct demo *demo)
{
    const kda_problem *problem = &demo->problem;
    demo_report_world(&demo->world);
    demo_report_route(&demo->world, problem);
    printf("input   %lld steps, %lld rows (%d padding), %d tokens, H %lld, HV %lld\n",
           (long long)demo->steps, (long long)problem->rows, problem->rows > 1,
           (int)problem->tokens, (long long)problem->heads, (long long)problem->value_heads);
    fflush(stdout);
}

static void report_end(struct demo *demo, const kda_plan *bound)
{
    kda_error err;
    demo_report_errors(&demo->out_error, "state", &demo->state_error);
    printf("drift   %.3g at most from a state that is never rounded, %.3g of the tolerance\n",
           demo->drift.max_abs, demo->drift.worst);
    machine_capture(&demo->world.machine, demo->world.stream);
    if (kda_plan_launch(bound, demo->world.stream, &err)) demo_die(&err);
    demo_report_time(&demo->world, "step");
}

static void close_all(struct demo *demo)
{
    struct demo_tensor *tensors[] = {&demo->q,    &demo->k,       &demo->v,       &demo->g,
                                     &demo->beta, &demo->a_log,   &demo->dt_bias, &demo->state,
                                     &demo->out,  &demo->indices, &demo->accepted};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        demo_drop(&demo->world, tensors[i]);
    free(demo->truth);
    free(demo->step_states);
    free(demo->step_out);
    demo_close(&demo->world);
}

int demo_decode(kda_op op, int argc, char **argv)
{
    struct demo demo = {.op = op, .steps = 64, .rng = {.state = 2024}};
    const char *bundle = NULL;
    int64_t rows = 0, heads = 0, tokens = 1;
    const struct demo_option options[] = {{"--steps", &demo.steps},
                                          {"--rows", &rows},
                                          {"--heads", &heads},
                                          {"--tokens", &tokens},
                                          {NULL, NULL}};
    const int done = demo_options(argc, argv, usage, options, &bundle);
    if (done >= 0) return done;
    demo_open(bundle, &demo.world);
    bool packed = demo.op == KDA_OP_PACKED, soft = demo.world.machine.soft;
    if (!heads) heads = packed ? 12 : tokens == 3 ? 16 : soft ? 2 : 16;
    if (!rows) rows = tokens == 3 ? 4 : soft ? 4 : 32;
    demo.problem = (kda_problem){
        .op = demo.op,
        .gate = packed || tokens == 3 ? KDA_GATE_LOWER_BOUND : KDA_GATE_PRECOMPUTED,
        .tokens = (int32_t)tokens,
        .rows = rows,
        .heads = heads,
        .value_heads = packed || tokens == 3 ? heads : 2 * heads,
    };
    report_start(&demo);  // refuses what no image serves before anything is allocated
    open_tensors(&demo);
    demo.truth =
        demo_zeroed((size_t)(rows * demo.problem.value_heads) * ORACLE_HEAD * sizeof *demo.truth);
    demo.step_states = demo_zeroed((size_t)tokens * ORACLE_HEAD * sizeof *demo.step_states);
    demo.step_out = demo_zeroed((size_t)tokens * ORACLE_D * sizeof *demo.step_out);
    start_sequences(&demo);
    kda_plan bound;
    kda_error err;
    if (plan(&demo, &bound, &err)) demo_die(&err);
    bool good = decode(&demo, &bound);
    report_end(&demo, &bound);
    puts(good ? "ok" : "FAILED");
    close_all(&demo);
    return good ? 0 : 1;
}
