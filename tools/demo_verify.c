// SPDX-License-Identifier: Apache-2.0
// kda-demo verify: speculative decoding. In each step every sequence proposes a window of tokens,
// one verify computes their outputs and fills the caches while the pool stays as it is, a sampler
// accepts some of them, and one commit folds these into the pool, from which the next step goes on.
// Outputs and states are held against plain decoding in the float64 oracle: each step from the
// state that the device held before it, and over all steps from a state that is never rounded.
#include "tools/demo.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/oracle_verify.h"

static const char usage[] =
    "usage: kda-demo verify [options]\n"
    "Decodes random sequences speculatively on device 0, with verify and commit, and checks every\n"
    "step against plain decoding in the float64 oracle.\n"
    "  --bundle FILE  images to use; default: the bundle linked in\n"
    "  --steps N      windows to verify and commit (32)\n"
    "  --rows N       rows of the batch, the last one padding (4; on a GPU 32)\n"
    "  --heads H      query/key heads; there are 2*H value heads (2; on a GPU 16)\n"
    "  --tokens T     tokens of a window, 1 to 16; a random number of them is accepted (6)\n"
    "Exit status: 0 all steps within the limits, 1 not or no usable device, 2 usage.\n";

struct demo {
    struct demo_world world;
    kda_problem problem;  // of the verify
    int64_t steps, num_slots;
    struct demo_tensor q, k, v, g, beta, a_log, dt_bias, state, out, correction, kg, indices,
        accepted;
    struct oracle_call call;
    double *truth;                                     // [N, HV, 128, 128], never rounded
    double *window_out, *corrections, *window_states;  // of one row and head
    struct oracle_error out_error, state_error, correction_error;  // norms of the worst step
    struct oracle_error drift;                                     // of all steps
    int64_t proposed, taken;
    struct oracle_rng rng;
};

// ------------------------------------------------------------------------------------------- input

static void open_tensors(struct demo *demo)
{
    const struct demo_world *world = &demo->world;
    const kda_problem *problem = &demo->problem;
    int64_t rows = problem->rows, tok = rows * problem->tokens, narrow = problem->heads * ORACLE_D;
    int64_t value_heads = problem->value_heads, wide = value_heads * ORACLE_D;
    demo->num_slots = rows + 2;  // slot 0 and the last one belong to nobody and hold NaN
    const int64_t lines = demo->num_slots * value_heads * problem->tokens;
    demo->q = demo_make(world, tok * narrow, 2);
    demo->k = demo_make(world, tok * narrow, 2);
    demo->v = demo_make(world, tok * wide, 2);
    demo->g = demo_make(world, tok * wide, 2);
    demo->beta = demo_make(world, tok * value_heads, 2);
    demo->a_log = demo_make(world, problem->heads, 4);
    demo->dt_bias = demo_make(world, narrow, 4);
    demo->state = demo_make(world, demo->num_slots * value_heads * ORACLE_HEAD, 2);
    demo->out = demo_make(world, tok * wide, 2);
    demo->correction = demo_make(world, lines * ORACLE_D, 4);
    demo->kg = demo_make(world, lines * 2 * ORACLE_D, 2);
    demo->indices = demo_make(world, rows, 4);
    demo->accepted = demo_make(world, rows, 4);
    demo->call = (struct oracle_call){
        .gate = problem->gate,
        .tokens = problem->tokens,
        .rows = rows,
        .tok = tok,
        .heads = problem->heads,
        .value_heads = value_heads,
        .num_slots = demo->num_slots,
        .q = demo->q.host,
        .k = demo->k.host,
        .v = demo->v.host,
        .g = demo->g.host,
        .beta = demo->beta.host,
        .q_stride = narrow,
        .k_stride = narrow,
        .v_stride = wide,
        .g_stride = wide,
        .beta_stride = value_heads,
        .a_log = demo->a_log.host,
        .dt_bias = demo->dt_bias.host,
        .indices = demo->indices.host,
        .beta_is_logit = true,
        .scale = (double)(float)(1 / sqrt(ORACLE_D)),
        .lower_bound = -5.0,
    };
    const size_t head = ORACLE_HEAD * sizeof(double), tokens = (size_t)problem->tokens;
    demo->truth = demo_zeroed((size_t)(rows * value_heads) * head);
    demo->window_states = demo_zeroed(tokens * head);
    demo->window_out = demo_zeroed(tokens * ORACLE_D * sizeof(double));
    demo->corrections = demo_zeroed(tokens * ORACLE_D * sizeof(double));
}

static void poison(const struct demo_tensor *tensor)
{
    uint16_t *at = tensor->host;
    for (size_t i = 0; i < tensor->size / 2; i++) at[i] = ORACLE_POISON;
}

// Every sequence starts from the zero state; the padding row has a null slot, and NaN wherever it
// could be read. The caches hold NaN until a window is verified.
static void start_sequences(struct demo *demo)
{
    const kda_problem *problem = &demo->problem;
    const size_t slot = (size_t)(problem->value_heads * ORACLE_HEAD) * 2;
    const struct demo_tensor *poisoned[] = {&demo->q,          &demo->k,    &demo->v,
                                            &demo->g,          &demo->beta, &demo->state,
                                            &demo->correction, &demo->kg};
    for (size_t i = 0; i < sizeof poisoned / sizeof *poisoned; i++) poison(poisoned[i]);
    memset((char *)demo->state.host + slot, 0, (size_t)problem->rows * slot);
    for (int64_t n = 0; n < problem->rows; n++) {
        bool padding = n == problem->rows - 1 && problem->rows > 1;
        ((int32_t *)demo->indices.host)[n] = padding ? -1 : (int32_t)(n + 1);
    }
    for (int64_t h = 0; h < problem->heads; h++)
        ((float *)demo->a_log.host)[h] = (float)(0.2 * oracle_normal(&demo->rng) - 2);
    for (int64_t i = 0; i < problem->heads * ORACLE_D; i++)
        ((float *)demo->dt_bias.host)[i] = (float)(0.25 * oracle_normal(&demo->rng));
    const struct demo_tensor *all[] = {&demo->state, &demo->correction, &demo->kg,
                                       &demo->a_log, &demo->dt_bias,    &demo->indices};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) demo_put(&demo->world, all[i]);
}

static void propose(struct demo *demo)
{
    const struct oracle_call *call = &demo->call;
    const int64_t keys = call->heads * ORACLE_D, values = call->value_heads * ORACLE_D;
    for (int64_t n = 0; n < call->rows; n++)
        for (int32_t t = 0; t < call->tokens && oracle_window_slot(call, n) >= 0; t++) {
            const int64_t token = n * call->tokens + t;
            demo_normals(&demo->rng, call->q + token * call->q_stride, keys, 0.5);
            demo_normals(&demo->rng, call->k + token * call->k_stride, keys, 0.5);
            demo_normals(&demo->rng, call->v + token * call->v_stride, values, 0.5);
            demo_normals(&demo->rng, call->g + token * call->g_stride, values, 0.5);
            demo_normals(&demo->rng, call->beta + token * call->beta_stride, call->value_heads, 1);
        }
    const struct demo_tensor *inputs[] = {&demo->q, &demo->k, &demo->v, &demo->g, &demo->beta};
    for (int i = 0; i < 5; i++) demo_put(&demo->world, inputs[i]);
}

// What a sampler would decide: none, some or all tokens of each window.
static void accept_some(struct demo *demo)
{
    int32_t *accepted = demo->accepted.host;
    for (int64_t n = 0; n < demo->call.rows; n++) {
        accepted[n] = (int32_t)(oracle_bits(&demo->rng) % (uint64_t)(demo->call.tokens + 1));
        if (oracle_window_slot(&demo->call, n) < 0) continue;
        demo->proposed += demo->call.tokens;
        demo->taken += accepted[n];
    }
    demo_put(&demo->world, &demo->accepted);
}

// ------------------------------------------------------------------------------------------- calls

static void plan(struct demo *demo, kda_plan *verify, kda_plan *commit)
{
    const kda_problem *problem = &demo->problem;
    const int64_t n = problem->rows, t = problem->tokens, h = problem->heads,
                  hv = problem->value_heads, d = ORACLE_D;
    const kda_verify_args window = {
        .q = demo_view(&demo->q, KDA_BF16, 4, n, t, h, d),
        .k = demo_view(&demo->k, KDA_BF16, 4, n, t, h, d),
        .v = demo_view(&demo->v, KDA_BF16, 4, n, t, hv, d),
        .g = demo_view(&demo->g, KDA_BF16, 4, n, t, hv, d),
        .beta = demo_view(&demo->beta, KDA_BF16, 3, n, t, hv, 0),
        .a_log = demo_view(&demo->a_log, KDA_F32, 1, h, 0, 0, 0),
        .dt_bias = demo_view(&demo->dt_bias, KDA_F32, 2, h, d, 0, 0),
        .state = demo_view(&demo->state, KDA_BF16, 4, demo->num_slots, hv, d, d),
        .out = demo_view(&demo->out, KDA_BF16, 4, n, t, hv, d),
        .ssm_state_indices = demo_view(&demo->indices, KDA_I32, 1, n, 0, 0, 0),
        .correction_cache = demo_view(&demo->correction, KDA_F32, 4, demo->num_slots, hv, t, d),
        .kg_cache = demo_view(&demo->kg, KDA_BF16, 4, demo->num_slots, hv, t, 2 * d),
        .gate = problem->gate,
        .beta_is_logit = 1,
        .scale = (float)demo->call.scale,
        .lower_bound = (float)demo->call.lower_bound,
    };
    const kda_commit_args accepted = {
        .state = window.state,
        .correction_cache = window.correction_cache,
        .kg_cache = window.kg_cache,
        .ssm_state_indices = window.ssm_state_indices,
        .num_accepted_tokens = demo_view(&demo->accepted, KDA_I32, 1, n, 0, 0, 0),
        .a_log = window.a_log,
        .dt_bias = window.dt_bias,
        .gate = window.gate,
        .heads = (int32_t)h,
        .lower_bound = window.lower_bound,
    };
    kda_error err;
    kda_context *context = demo->world.context;
    if (kda_verify_plan(context, &window, NULL, NULL, verify, &err) ||
        kda_commit_plan(context, &accepted, NULL, NULL, commit, &err))
        demo_die(&err);
}

static void launch(const struct demo *demo, const kda_plan *plan)
{
    kda_error err;
    if (kda_plan_launch(plan, demo->world.stream, &err)) demo_die(&err);
}

// ------------------------------------------------------------------------------------------- judge

// One live row and head: outputs and corrections of the whole window, and the state after the
// accepted tokens, which is what decoding them one by one would have left. False: without an
// accepted token the state has other bits.
static bool judge_head(struct demo *demo, int64_t n, int64_t hv, const uint16_t *before,
                       struct oracle_error *out_error, struct oracle_error *state_error,
                       struct oracle_error *correction_error)
{
    const struct oracle_call *call = &demo->call;
    const int64_t slot = oracle_window_slot(call, n), step = call->value_heads * ORACLE_D;
    const int64_t head = slot * call->value_heads + hv, line = head * call->tokens * ORACLE_D;
    const uint16_t *initial = before + head * ORACLE_HEAD,
                   *state = (const uint16_t *)demo->state.host + head * ORACLE_HEAD,
                   *out =
                       (const uint16_t *)demo->out.host + n * call->tokens * step + hv * ORACLE_D;
    const float *cached = (const float *)demo->correction.host + line;
    const int32_t accepted = ((const int32_t *)demo->accepted.host)[n];
    double *truth = demo->truth + (n * call->value_heads + hv) * ORACLE_HEAD, exact[ORACLE_D];
    oracle_window(call, n, hv, initial, demo->window_out, demo->corrections);
    oracle_row(call, n, hv, initial, demo->window_out, demo->window_states);
    for (int32_t t = 0; t < call->tokens; t++) {
        oracle_add_many(out_error, out + t * step, demo->window_out + t * ORACLE_D, ORACLE_D);
        for (int c = 0; c < ORACLE_D; c++)
            oracle_add_within(correction_error, (double)cached[t * ORACLE_D + c],
                              demo->corrections[t * ORACLE_D + c], ORACLE_CORRECTION_ABSOLUTE,
                              ORACLE_CORRECTION_RELATIVE);
        if (t >= accepted) continue;
        oracle_step(call, n * call->tokens + t, hv, truth, exact);
        oracle_add_many(&demo->drift, out + t * step, exact, ORACLE_D);
    }
    if (!accepted) return !memcmp(state, initial, ORACLE_HEAD * sizeof *state);
    oracle_add_many(state_error, state, demo->window_states + (int64_t)(accepted - 1) * ORACLE_HEAD,
                    ORACLE_HEAD);
    oracle_add_many(&demo->drift, state, truth, ORACLE_HEAD);
    return true;
}

// Compares what verify and commit left with the oracle, from `before`, the pool as it was. False:
// something that must not change did, or a padding row is not zero.
static bool judge_step(struct demo *demo, const uint16_t *before)
{
    const struct oracle_call *call = &demo->call;
    const uint16_t *pool = demo->state.host, *out = demo->out.host;
    const int64_t block = call->value_heads * ORACLE_HEAD, last = (call->num_slots - 1) * block;
    struct oracle_error out_error = {.count = 0}, state_error = {.count = 0},
                        correction_error = {.count = 0};
    bool good = !memcmp(pool, before, (size_t)block * 2) &&
                !memcmp(pool + last, before + last, (size_t)block * 2);
    for (int64_t n = 0; n < call->rows; n++) {
        const int64_t window = call->tokens * call->value_heads * ORACLE_D;
        if (oracle_window_slot(call, n) < 0) {
            for (int64_t i = 0; i < window; i++) good &= out[n * window + i] == 0;
            continue;
        }
        for (int64_t hv = 0; hv < call->value_heads; hv++)
            good &= judge_head(demo, n, hv, before, &out_error, &state_error, &correction_error);
    }
    demo_keep_worst(&demo->out_error, &out_error);
    if (state_error.count) demo_keep_worst(&demo->state_error, &state_error);
    demo_keep_worst(&demo->correction_error, &correction_error);
    return good && oracle_within(&out_error) && oracle_within(&state_error) &&
           oracle_within(&correction_error);
}

static bool decode(struct demo *demo, const kda_plan *verify, const kda_plan *commit)
{
    const struct demo_world *world = &demo->world;
    uint16_t *before = demo_zeroed(demo->state.size);
    bool good = true;
    for (int64_t step = 0; step < demo->steps; step++) {
        propose(demo);
        machine_fill(&world->machine, demo->out.device, ORACLE_POISON, demo->out.size / 2);
        memcpy(before, demo->state.host, demo->state.size);
        launch(demo, verify);
        machine_sync(&world->machine, world->stream);
        demo_get(world, &demo->out);
        demo_get(world, &demo->correction);
        demo_get(world, &demo->state);
        bool fine = !memcmp(before, demo->state.host, demo->state.size);  // verify only reads it
        accept_some(demo);
        launch(demo, commit);
        machine_sync(&world->machine, world->stream);
        demo_get(world, &demo->state);
        fine &= judge_step(demo, before);
        if (!fine && good) printf("step %lld leaves the limits\n", (long long)step);
        good &= fine;
    }
    free(before);
    return good && demo->drift.worst <= 1;
}

// -------------------------------------------------------------------------------------------- main

static void report_start(const struct demo *demo)
{
    const kda_problem *problem = &demo->problem;
    kda_problem commit = *problem;
    commit.op = KDA_OP_COMMIT;
    demo_report_world(&demo->world);
    demo_report_route(&demo->world, problem);
    demo_report_route(&demo->world, &commit);
    printf("input   %lld windows of %d tokens, %lld rows (%d padding), H %lld, HV %lld\n",
           (long long)demo->steps, (int)problem->tokens, (long long)problem->rows,
           problem->rows > 1, (long long)problem->heads, (long long)problem->value_heads);
    fflush(stdout);
}

static void report_end(const struct demo *demo, const kda_plan *verify, const kda_plan *commit)
{
    demo_report_errors(&demo->out_error, "state", &demo->state_error);
    printf(
        "caches  corrections at %.3g in the worst step, worst element at %.3g of its tolerance\n",
        oracle_norm(&demo->correction_error), demo->correction_error.worst);
    printf("drift   %.3g at most from a state that is never rounded, %.3g of the tolerance\n",
           demo->drift.max_abs, demo->drift.worst);
    printf("tokens  %lld of %lld accepted\n", (long long)demo->taken, (long long)demo->proposed);
    machine_capture(&demo->world.machine, demo->world.stream);
    launch(demo, verify);
    launch(demo, commit);
    demo_report_time(&demo->world, "verify and commit");
}

static void close_all(struct demo *demo)
{
    struct demo_tensor *tensors[] = {&demo->q,       &demo->k,     &demo->v,   &demo->g,
                                     &demo->beta,    &demo->a_log, &demo->out, &demo->correction,
                                     &demo->dt_bias, &demo->state, &demo->kg,  &demo->indices,
                                     &demo->accepted};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        demo_drop(&demo->world, tensors[i]);
    free(demo->truth);
    free(demo->window_states);
    free(demo->window_out);
    free(demo->corrections);
    demo_close(&demo->world);
}

int demo_verify(int argc, char **argv)
{
    struct demo demo = {.steps = 32, .rng = {.state = 2024}};
    const char *bundle = NULL;
    int64_t rows = 0, heads = 0, tokens = 6;
    const struct demo_option options[] = {{"--steps", &demo.steps},
                                          {"--rows", &rows},
                                          {"--heads", &heads},
                                          {"--tokens", &tokens},
                                          {NULL, NULL}};
    const int done = demo_options(argc, argv, usage, options, &bundle);
    if (done >= 0) return done;
    demo_open(bundle, &demo.world);
    const bool soft = demo.world.machine.soft;
    if (!heads) heads = soft ? 2 : 16;
    demo.problem = (kda_problem){
        .op = KDA_OP_VERIFY,
        .gate = KDA_GATE_LOWER_BOUND,
        .tokens = (int32_t)tokens,
        .rows = rows   ? rows
                : soft ? 4
                       : 32,
        .heads = heads,
        .value_heads = 2 * heads,
    };
    report_start(&demo);  // refuses what no image serves before anything is allocated
    open_tensors(&demo);
    start_sequences(&demo);
    kda_plan verify, commit;
    plan(&demo, &verify, &commit);
    const bool good = decode(&demo, &verify, &commit);
    report_end(&demo, &verify, &commit);
    puts(good ? "ok" : "FAILED");
    close_all(&demo);
    return good ? 0 : 1;
}
