// SPDX-License-Identifier: Apache-2.0
// Proves the reference of fused decode: it must reproduce the f64 numbers that another program made
// from the same generator of inputs. Needs no device. argv[1]: the folder of these numbers.
//
// A file holds the outputs of heads 0 and 5 of all four rows, then of slots 1 and 2 the same heads'
// states, value rows 0, 77 and 127. The rows have slots 1, 2, 1 and 0, so that the third sees what
// the first left.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/oracle_fused.h"

enum { HEADS = 8, WIDTH = HEADS * ORACLE_D, ROWS = 4, SLOTS = 3 };
enum { VALUES = ROWS * 2 * ORACLE_D + 2 * 2 * 3 * ORACLE_D };

static const char *folder;

static double *read_values(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.f64", folder, name);
    FILE *file = fopen(path, "rb");
    double *values = calloc(VALUES + 1, sizeof *values);
    if (!file || !values || fread(values, sizeof *values, VALUES + 1, file) != VALUES)
        fail_msg("%s is not %d numbers", path, VALUES);
    fclose(file);
    return values;
}

static float *draw(struct oracle_rng *rng, size_t count, double scale)
{
    float *out = malloc(count * sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < count; i++) out[i] = (float)((2 * oracle_uniform(rng) - 1) * scale);
    return out;
}

static uint16_t *draw_bf16(struct oracle_rng *rng, size_t count, double scale)
{
    float *values = draw(rng, count, scale);
    uint16_t *out = malloc(count * sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < count; i++) out[i] = oracle_bf16((double)values[i]);
    free(values);
    return out;
}

static void expect_near(const double *got, const double *want)
{
    for (int i = 0; i < ORACLE_D; i++)
        if (!(fabs(got[i] - want[i]) <= 1e-12 + 1e-9 * fabs(want[i])))
            fail_msg("channel %d: %.17g, must be %.17g", i, got[i], want[i]);
}

static void check(const char *name, kda_gate gate, double lower_bound, float norm_eps, bool bf16)
{
    static const int32_t indices[ROWS] = {1, 2, 1, 0};
    static const int heads[2] = {0, 5}, value_rows[3] = {0, 77, 127};
    struct oracle_rng rng = {.state = 2024 + (uint64_t)gate};
    const uint16_t *x = draw_bf16(&rng, ROWS * 3 * WIDTH, 2);
    const float *weight = draw(&rng, 12 * WIDTH, 1);
    uint16_t *windows = draw_bf16(&rng, SLOTS * 9 * WIDTH, 2);
    const uint16_t *raw_gate = draw_bf16(&rng, ROWS * WIDTH, 3);
    const uint16_t *raw_beta = draw_bf16(&rng, ROWS * HEADS, 3);
    const float *a_log = draw(&rng, HEADS, 1), *dt_bias = draw(&rng, WIDTH, 1);
    uint16_t *pool = draw_bf16(&rng, SLOTS * HEADS * ORACLE_HEAD, 1);
    const uint16_t *output_gate = draw_bf16(&rng, ROWS * WIDTH, 2);
    const float *norm_weight = draw(&rng, ORACLE_D, 2);
    const struct oracle_fused call = {
        .gate = gate,
        .rows = ROWS,
        .heads = HEADS,
        .num_slots = SLOTS,
        .x = x,
        .raw_gate = raw_gate,
        .raw_beta = raw_beta,
        .output_gate = output_gate,
        .x_stride = 3 * WIDTH,
        .gate_stride = WIDTH,
        .beta_stride = HEADS,
        .output_gate_stride = WIDTH,
        .weight = weight,
        .a_log = a_log,
        .dt_bias = dt_bias,
        .norm_weight = norm_weight,
        .indices = indices,
        .lower_bound = lower_bound,
        .norm_eps = (double)norm_eps,
    };
    double *states = malloc(SLOTS * HEADS * ORACLE_HEAD * sizeof *states);
    assert_non_null(states);
    for (size_t i = 0; i < SLOTS * HEADS * ORACLE_HEAD; i++) states[i] = oracle_value(pool[i]);
    double *const values = read_values(name);
    const double *want = values;
    for (int64_t row = 0; row < ROWS; row++)
        for (int i = 0; i < 2; i++, want += ORACLE_D) {
            double out[ORACLE_D] = {0};
            const int64_t slot = oracle_fused_slot(&call, row);
            assert_int_equal(slot, row == 3 ? -1 : indices[row]);
            if (slot >= 0) {
                double *state = states + (slot * HEADS + heads[i]) * ORACLE_HEAD;
                oracle_fused_step(&call, row, heads[i], windows + slot * 9 * WIDTH, state, out);
                for (int j = 0; bf16 && j < ORACLE_HEAD; j++)
                    state[j] = oracle_value(oracle_bf16(state[j]));
            }
            expect_near(out, want);
        }
    for (int64_t slot = 1; slot < SLOTS; slot++)
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 3; j++, want += ORACLE_D)
                expect_near(states + (slot * HEADS + heads[i]) * ORACLE_HEAD +
                                value_rows[j] * ORACLE_D,
                            want);
    const void *const all[] = {x,       weight, windows,     raw_gate,    raw_beta, a_log,
                               dt_bias, pool,   output_gate, norm_weight, states,   values};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free((void *)(uintptr_t)all[i]);
}

static void reproduces_lower_bound(void **state)
{
    (void)state;
    check("fused_lower_bound", KDA_GATE_LOWER_BOUND, -2.75, 1e-5f, false);
}

static void reproduces_softplus(void **state)
{
    (void)state;
    check("fused_softplus", KDA_GATE_SOFTPLUS, 0, 3e-4f, true);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: oracle-fused-test FOLDER\n");
        return 2;
    }
    folder = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reproduces_lower_bound),
        cmocka_unit_test(reproduces_softplus),
    };
    return cmocka_run_group_tests_name("oracle_fused", tests, NULL, NULL);
}
