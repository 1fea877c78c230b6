// SPDX-License-Identifier: Apache-2.0
// One launch of one body on the soft device, without the library: what ThreadSanitizer has to say
// of its shared memory. Linked once with the frozen body and once with a copy that lost its
// barrier, of the CTA or of the warp; race.sh expects silence of the one and a report of the other.
//   race-test BODY
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/bundle.h"
#include "manifest/format.h"
#include "manifest/params.h"
#include "tests/soft/cuda.h"
#include "tests/soft/soft.h"

#define KDA_SCHEDULE(name, ...) void soft_body_##name(const void *params);
#include "manifest/schedules.inc"
#undef KDA_SCHEDULE

static const struct schedule {
    const char *name;
    soft_kernel kernel;
    kda_op op;
    unsigned tokens, split, threads, smem, head_set;
    kda_gate gate;
    bool repeated;  // rows of one slot
} schedules[] = {
#define KDA_SCHEDULE(name, template, op, from, to, gate, state, modes, split, threads, smem,       \
                     occupancy, heads, ...)                                                        \
    {#name,                                                                                        \
     soft_body_##name,                                                                             \
     KDA_OP_##op,                                                                                  \
     to,                                                                                           \
     split,                                                                                        \
     threads,                                                                                      \
     smem,                                                                                         \
     heads,                                                                                        \
     KDA_GATE_##gate,                                                                              \
     (modes) == KDA_MODES_REPEATED},
#include "manifest/schedules.inc"
#undef KDA_SCHEDULE
};

// Device memory of zeros, or of one number.
static unsigned long long words(size_t count, const int *from)
{
    CUdeviceptr address = 0;
    const size_t size = count * sizeof *from;
    if (cuMemAlloc_v2(&address, size) || cuMemsetD8_v2(address, 0, size) ||
        (from && cuMemcpyHtoD_v2(address, from, size))) {
        fprintf(stderr, "race-test: no memory\n");
        exit(2);
    }
    return address;
}

// Ragged: the second row has one token less.
enum { ROWS = 2, WINDOW = 16, MOST = ROWS * WINDOW };

union params {
    struct kda_recurrent_params recurrent;  // and packed
    struct kda_fused_params fused;
    struct kda_verify_params verify;
    struct kda_commit_params commit;
};

static union params make_recurrent(const struct schedule *s, int heads)
{
    const int t = (int)s->tokens, cu[ROWS + 1] = {0, t, 2 * t - (t > 1)};
    int slots[MOST];
    for (int i = 0; i < MOST; i++) slots[i] = i;
    const size_t line = (size_t)ROWS * s->tokens * (size_t)heads * 64;
    const bool in_kernel = s->gate != KDA_GATE_PRECOMPUTED;
    return (union params){.recurrent = {
                              .dependent = 1,
                              .q = words(line, NULL),
                              .k = words(line, NULL),
                              .v = words(line, NULL),
                              .g = words(line, NULL),
                              .beta = words(line, NULL),
                              .a_log = in_kernel ? words((size_t)heads, NULL) : 0,
                              .dt_bias = in_kernel ? words((size_t)heads * 128, NULL) : 0,
                              .state = words((size_t)MOST * (size_t)heads * 8192, NULL),
                              .out = words(line, NULL),
                              .cu_seqlens = t > 1 ? words(ROWS + 1, cu) : 0,
                              .indices = words(MOST, slots),
                              .q_stride = heads * 128,
                              .k_stride = heads * 128,
                              .v_stride = heads * 128,
                              .g_stride = heads * 128,
                              .beta_stride = heads,
                              .slot_stride = heads * 16384LL,
                              .tok = ROWS * t,
                              .num_slots = MOST,
                              .rows = ROWS,
                              .heads = heads,
                              .value_heads = heads,
                              .query = kda_query_divisor(heads, heads),
                              .scale = 0.0883883461F,
                              .lower_bound = s->gate == KDA_GATE_LOWER_BOUND ? -5.0F : 0.0F,
                          }};
}

// Slots 1 and 2, or twice slot 1. The state has room for f32.
static union params make_fused(const struct schedule *s, int heads)
{
    enum { SLOTS = 3 };
    const int slots[ROWS] = {1, s->repeated ? 1 : 2};
    const size_t width = (size_t)heads * 128;
    return (union params){.fused = {
                              .x = words(ROWS * 3 * width / 2, NULL),
                              .weight = words(12 * width, NULL),
                              .conv_state = words(SLOTS * 9 * width / 2, NULL),
                              .raw_gate = words(ROWS * width / 2, NULL),
                              .raw_beta = words(ROWS * width / 2, NULL),
                              .a_log = words(width, NULL),
                              .dt_bias = words(width, NULL),
                              .norm_weight = words(128, NULL),
                              .indices = words(ROWS, slots),
                              .state = words(SLOTS * width * 128, NULL),
                              .output_gate = words(ROWS * width / 2, NULL),
                              .out = words(ROWS * width / 2, NULL),
                              .x_stride = 3LL * heads * 128,
                              .beta_stride = heads,
                              .output_gate_stride = heads * 128LL,
                              .conv_slot_stride = 9LL * heads * 128,
                              .slot_stride = heads * 16384LL,
                              .num_slots = SLOTS,
                              .rows = ROWS,
                              .heads = heads,
                              .scale = 0.0883883461F,
                              .lower_bound = s->gate == KDA_GATE_LOWER_BOUND ? -5.0F : 0.0F,
                              .norm_eps = 1e-5F,
                          }};
}

static union params make_verify(const struct schedule *s)
{
    const int t = (int)s->tokens, cu[ROWS + 1] = {0, t, 2 * t - (t > 1)};
    const size_t line = (size_t)ROWS * s->tokens * 64;
    const bool in_kernel = s->gate != KDA_GATE_PRECOMPUTED;
    return (union params){.verify = {
                              .q = words(line, NULL),
                              .k = words(line, NULL),
                              .v = words(line, NULL),
                              .g = words(line, NULL),
                              .beta = words(line, NULL),
                              .a_log = in_kernel ? words(1, NULL) : 0,
                              .dt_bias = in_kernel ? words(128, NULL) : 0,
                              .state = words(ROWS * 8192, NULL),
                              .out = words(line, NULL),
                              .cu_seqlens = words(ROWS + 1, cu),
                              .correction = words(2 * line, NULL),
                              .kg = words(2 * line, NULL),
                              .q_stride = 128,
                              .k_stride = 128,
                              .v_stride = 128,
                              .g_stride = 128,
                              .beta_stride = 1,
                              .out_stride = 128,
                              .slot_stride = 16384,
                              .correction_strides = {t * 128LL, t * 128LL, 128},
                              .kg_strides = {t * 256LL, t * 256LL, 256},
                              .tok = (long long)ROWS * t,
                              .num_slots = ROWS,
                              .rows = ROWS,
                              .tokens = t,
                              .heads = 1,
                              .value_heads = 1,
                              .query = kda_query_divisor(1, 1),
                              .scale = 0.0883883461F,
                              .lower_bound = s->gate == KDA_GATE_LOWER_BOUND ? -5.0F : 0.0F,
                          }};
}

// More tokens than are made at a time.
static union params make_commit(const struct schedule *s)
{
    enum { LINES = WINDOW + 2 };
    const int accepted[ROWS] = {LINES, 3};
    const bool in_kernel = s->gate != KDA_GATE_PRECOMPUTED;
    return (union params){.commit = {
                              .state = words(ROWS * 8192, NULL),
                              .correction = words((size_t)ROWS * LINES * 128, NULL),
                              .kg = words((size_t)ROWS * LINES * 128, NULL),
                              .accepted = words(ROWS, accepted),
                              .a_log = in_kernel ? words(1, NULL) : 0,
                              .dt_bias = in_kernel ? words(128, NULL) : 0,
                              .slot_stride = 16384,
                              .correction_strides = {LINES * 128LL, LINES * 128LL, 128},
                              .kg_strides = {LINES * 256LL, LINES * 256LL, 256},
                              .num_slots = ROWS,
                              .rows = ROWS,
                              .tokens = LINES,
                              .heads = 1,
                              .value_heads = 1,
                              .query = kda_query_divisor(1, 1),
                              .lower_bound = s->gate == KDA_GATE_LOWER_BOUND ? -5.0F : 0.0F,
                          }};
}

int main(int argc, char **argv)
{
    const struct schedule *s = NULL;
    for (size_t i = 0; i < sizeof schedules / sizeof schedules[0] && argc == 2; i++)
        if (!strcmp(schedules[i].name, argv[1])) s = &schedules[i];
    CUcontext context;
    if (!s || cuInit(0) || cuCtxCreate_v2(&context, 0, 0)) {
        fprintf(stderr, "usage: %s BODY\n", argv[0]);
        return 2;
    }
    const int heads = (int)kda_heads_least(s->head_set, 1);
    const union params params = s->op == KDA_OP_FUSED    ? make_fused(s, heads)
                                : s->op == KDA_OP_VERIFY ? make_verify(s)
                                : s->op == KDA_OP_COMMIT ? make_commit(s)
                                                         : make_recurrent(s, heads);
    const unsigned grid[3] = {(unsigned)heads * s->split, ROWS, 1}, block[3] = {s->threads, 1, 1};
    char why[256] = "";
    if (soft_execute(s->kernel, grid, block, s->smem, &params, why, sizeof why)) {
        fprintf(stderr, "race-test: %s: %s\n", s->name, why);
        return 3;
    }
    puts("launched");
    return 0;
}
