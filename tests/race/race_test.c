// SPDX-License-Identifier: Apache-2.0
// One launch of one body on the soft device, without the library: what ThreadSanitizer has to say
// of its shared memory. Linked once with the frozen body and once with a copy that lost its CTA
// barrier; race.sh expects silence of the one and a report of the other.
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
    unsigned tokens, split, threads, smem, head_set;
    kda_gate gate;
} schedules[] = {
#define KDA_SCHEDULE(name, template, op, from, to, gate, state, modes, split, threads, smem,       \
                     occupancy, heads, ...)                                                        \
    {#name, soft_body_##name, to, split, threads, smem, heads, KDA_GATE_##gate},
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
    // Ragged: the second row has one token less.
    enum { ROWS = 2, MOST = ROWS * 6 };
    const int t = (int)s->tokens, heads = (int)kda_heads_least(s->head_set, 1);
    const int cu[ROWS + 1] = {0, t, 2 * t - (t > 1)};
    int slots[MOST];
    for (int i = 0; i < MOST; i++) slots[i] = i;
    const size_t line = (size_t)ROWS * s->tokens * (size_t)heads * 64;
    const bool in_kernel = s->gate != KDA_GATE_PRECOMPUTED;
    const struct kda_recurrent_params params = {
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
    };
    const unsigned grid[3] = {(unsigned)heads * s->split, ROWS, 1}, block[3] = {s->threads, 1, 1};
    char why[256] = "";
    if (soft_execute(s->kernel, 1, grid, block, s->smem, &params, why, sizeof why)) {
        fprintf(stderr, "race-test: %s: %s\n", s->name, why);
        return 3;
    }
    puts("launched");
    return 0;
}
