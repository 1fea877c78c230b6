// SPDX-License-Identifier: Apache-2.0
// Proves the reference: it must reproduce the f64 numbers of every golden case, whose author is
// another program, and its judge must tell good results from bad ones. Needs no device. argv[1]:
// the folder of the golden cases.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/golden.h"
#include "tools/oracle_verify.h"

static const char *folder;

static void check_case(const struct golden *golden)
{
    struct oracle_call call = golden_call(golden);
    const struct golden_tensor *pool = golden_find(golden, "state");
    const uint16_t *pool_data = golden_data(golden, pool);
    double *out = calloc((size_t)call.tokens * ORACLE_D, sizeof *out);
    double *states = calloc((size_t)call.tokens * ORACLE_HEAD, sizeof *states);
    assert_non_null(out);
    assert_non_null(states);
    int64_t outputs = 0, pairs = 0;
    double worst = 0;
    for (int64_t n = 0; n < call.rows; n++)
        for (int64_t hv = 0; hv < call.value_heads; hv++) {
            bool row_live = oracle_live(&call, n);
            int64_t start = oracle_start(&call, n);
            const uint16_t *initial =
                start < 0 ? NULL : pool_data + start * pool->stride[0] + hv * ORACLE_HEAD;
            if (row_live) oracle_row(&call, n, hv, initial, out, states);
            for (int32_t t = 0; t < call.tokens; t++) {
                int64_t token = oracle_token(&call, n, t), slot = oracle_slot(&call, n, t);
                if (token < 0) continue;
                assert_int_equal(golden->classes[token], slot >= 0 ? GOLDEN_VALUE : GOLDEN_ZERO);
                if (slot < 0) continue;
                const double *want = golden->out + (token * call.value_heads + hv) * ORACLE_D;
                for (int c = 0; c < ORACLE_D; c++)
                    worst = fmax(worst, fabs(want[c] - out[t * ORACLE_D + c]));
                outputs++;
                for (int p = 0; p < golden->pair_count; p++) {
                    if (golden->pairs[p][0] != slot || golden->pairs[p][1] != hv) continue;
                    const double *state = golden->state + (int64_t)p * ORACLE_HEAD;
                    for (int i = 0; i < ORACLE_HEAD; i++)
                        worst = fmax(worst, fabs(state[i] - states[t * ORACLE_HEAD + i]));
                    pairs++;
                }
            }
        }
    free(out);
    free(states);
    assert_true(outputs > 0);
    assert_int_equal(pairs, golden->pair_count);
    if (!(worst < 1e-12)) fail_msg("%s differs by %g", golden->name, worst);
    int64_t untouched = 0, absent = call.tok;
    for (int64_t i = 0; i < call.tok; i++) untouched += golden->classes[i] == GOLDEN_UNTOUCHED;
    for (int64_t n = 0; n < call.rows; n++)
        for (int32_t t = 0; t < call.tokens; t++) absent -= oracle_token(&call, n, t) >= 0;
    assert_int_equal(untouched, absent);
}

static double worst_of(const double *a, const double *b, int64_t count)
{
    double worst = 0;
    for (int64_t i = 0; i < count; i++) worst = fmax(worst, fabs(a[i] - b[i]));
    return worst;
}

// Of a verify case: outputs, corrections and, by plain decoding of the accepted tokens and by the
// commit of the rounded corrections, the state.
static void check_verify(const struct golden *golden)
{
    static double out[16 * ORACLE_D], corrections[16 * ORACLE_D], state[ORACLE_HEAD];
    const struct oracle_call call = golden_call(golden);
    const struct golden_tensor *pool = golden_find(golden, "state");
    const uint16_t *pool_data = golden_data(golden, pool);
    int outputs = 0, lines = 0, pairs = 0;
    double worst = 0, committed = 0;
    for (int64_t n = 0; n < call.rows; n++)
        for (int64_t hv = 0; hv < call.value_heads; hv++) {
            const int64_t slot = oracle_window_slot(&call, n);
            for (int32_t t = 0; t < call.tokens; t++) {
                const int64_t token = oracle_token(&call, n, t);
                if (token < 0) break;
                assert_int_equal(golden->classes[token], slot < 0 ? GOLDEN_ZERO : GOLDEN_VALUE);
            }
            if (slot < 0) continue;
            const uint16_t *initial = pool_data + slot * pool->stride[0] + hv * ORACLE_HEAD;
            oracle_window(&call, n, hv, initial, out, corrections);
            for (int32_t t = 0; t < call.tokens && oracle_token(&call, n, t) >= 0; t++, outputs++)
                worst =
                    fmax(worst, worst_of(out + t * ORACLE_D,
                                         golden->out +
                                             (oracle_token(&call, n, t) * call.value_heads + hv) *
                                                 ORACLE_D,
                                         ORACLE_D));
            for (int i = 0; i < golden->line_count; i++) {
                const int64_t *line = golden->lines[i];
                if (line[0] != slot || line[1] != hv) continue;
                worst = fmax(worst, worst_of(corrections + line[2] * ORACLE_D,
                                             golden->correction + (int64_t)i * ORACLE_D, ORACLE_D));
                lines++;
            }
            for (int i = 0; i < golden->pair_count; i++) {
                if (golden->pairs[i][0] != slot || golden->pairs[i][1] != hv) continue;
                const double *want = golden->state + (int64_t)i * ORACLE_HEAD;
                for (int j = 0; j < ORACLE_HEAD; j++) state[j] = oracle_value(initial[j]);
                for (int32_t t = 0; t < call.accepted[n]; t++)
                    oracle_step(&call, oracle_token(&call, n, t), hv, state, out);
                worst = fmax(worst, worst_of(state, want, ORACLE_HEAD));
                static float w[16 * ORACLE_D];
                static uint16_t kg[16 * 2 * ORACLE_D];
                const int64_t h = hv / (call.value_heads / call.heads);
                for (int32_t t = 0; t < call.accepted[n]; t++)
                    for (int c = 0; c < ORACLE_D; c++) {
                        const int64_t token = oracle_token(&call, n, t);
                        w[t * ORACLE_D + c] = (float)corrections[t * ORACLE_D + c];
                        kg[2 * t * ORACLE_D + c] = call.k[token * call.k_stride + h * ORACLE_D + c];
                        kg[(2 * t + 1) * ORACLE_D + c] =
                            call.g[token * call.g_stride + hv * ORACLE_D + c];
                    }
                for (int j = 0; j < ORACLE_HEAD; j++) state[j] = oracle_value(initial[j]);
                oracle_commit(&call, hv, call.accepted[n], w, ORACLE_D, kg, 2 * ORACLE_D, state);
                committed = fmax(committed, worst_of(state, want, ORACLE_HEAD));
                pairs++;
            }
        }
    assert_true(outputs > 0);
    assert_int_equal(lines, golden->line_count);
    assert_int_equal(pairs, golden->pair_count);
    if (!(worst < 1e-12 && committed < 1e-6))
        fail_msg("%s differs by %g, its commit by %g", golden->name, worst, committed);
}

static void reproduces_every_golden_case(void **state)
{
    (void)state;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    int cases = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        char path[512];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        struct golden golden;
        assert_true(golden_open(path, &golden));
        if (golden.op == KDA_OP_VERIFY)
            check_verify(&golden);
        else
            check_case(&golden);
        golden_close(&golden);
        cases++;
    }
    closedir(dir);
    assert_true(cases >= 11);
}

static void rounds_to_bf16(void **state)
{
    (void)state;
    assert_int_equal(oracle_bf16(1.0), 0x3F80);
    assert_int_equal(oracle_bf16(1.00390625), 0x3F80);  // a tie goes to even, down
    assert_int_equal(oracle_bf16(1.01171875), 0x3F82);  // and up
    assert_int_equal(oracle_bf16(-0.0), 0x8000);
    assert_int_equal(oracle_bf16(3.4e38), 0x7F80);
    assert_true(isnan(oracle_value(oracle_bf16(NAN))));
    assert_true(isnan(oracle_value(ORACLE_POISON)));
    for (uint32_t bits = 0; bits < 0x7F80; bits++)
        assert_int_equal(oracle_bf16(oracle_value((uint16_t)bits)), bits);
}

static void judges_by_both_rules(void **state)
{
    (void)state;
    struct oracle_rng rng = {.state = 5};
    struct oracle_error ideal = {.count = 0}, off = {.count = 0}, spike = {.count = 0},
                        poisoned = {.count = 0};
    for (int i = 0; i < 20000; i++) {
        double x = oracle_normal(&rng);
        oracle_add(&ideal, oracle_bf16(x), x);
        oracle_add(&off, oracle_bf16(x * 1.002), x);
        oracle_add(&spike, oracle_bf16(i == 777 ? x + 0.05 : x), x);
        oracle_add(&poisoned, i == 777 ? ORACLE_POISON : oracle_bf16(x), x);
    }
    assert_true(oracle_within(&ideal));
    assert_true(oracle_floor(&ideal) > 1.5e-3 && oracle_floor(&ideal) <= ORACLE_FLOOR_LIMIT);
    assert_true(oracle_norm(&ideal) == oracle_floor(&ideal));
    assert_false(oracle_within(&off));  // N1 alone
    assert_true(off.worst <= 1.0);
    assert_false(oracle_within(&spike));  // N2 alone
    assert_true(oracle_norm(&spike) <= ORACLE_NORM_LIMIT);
    assert_false(oracle_within(&poisoned));
}

static void draws_unit_normals(void **state)
{
    (void)state;
    struct oracle_rng rng = {.state = 1}, again = {.state = 1};
    double sum = 0, square = 0;
    for (int i = 0; i < 100000; i++) {
        double x = oracle_normal(&rng);
        assert_true(x == oracle_normal(&again));
        sum += x;
        square += x * x;
    }
    assert_true(fabs(sum / 1e5) < 0.02 && fabs(square / 1e5 - 1) < 0.02);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: oracle-test GOLDEN_FOLDER\n");
        return 2;
    }
    folder = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reproduces_every_golden_case),
        cmocka_unit_test(rounds_to_bf16),
        cmocka_unit_test(judges_by_both_rules),
        cmocka_unit_test(draws_unit_normals),
    };
    return cmocka_run_group_tests_name("oracle", tests, NULL, NULL);
}
