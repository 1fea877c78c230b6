// SPDX-License-Identifier: Apache-2.0
// The contract of fused decode, F1 to F7 of CHECKLIST.md, and one test for every fused body of the
// schedules. Refusals, F8, are in args_test.
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fused_trial.h"

static const kda_gate gates[] = {KDA_GATE_LOWER_BOUND, KDA_GATE_SOFTPLUS};
static const kda_dtype types[] = {KDA_BF16, KDA_F32};
static const kda_mode modes[] = {KDA_MODE_POSITIVE_UNIQUE, KDA_MODE_UNIQUE_OR_NULL,
                                 KDA_MODE_REPEATED_POSITIVE};
enum { GATES = 2, TYPES = 2, MODES = 3 };

static void expect_same(const struct fused_trial *a, int64_t row_a, const struct fused_trial *b,
                        int64_t row_b, const char *what)
{
    if (!fused_same_row(a, row_a, b, row_b))
        fail_msg("%s: row %d and row %d differ", what, (int)row_a, (int)row_b);
}

// Images of the bodies that take calls like this one, whatever its mode.
static int images_of(const struct fused_trial *trial, struct suite_image out[SUITE_IMAGES])
{
    struct suite_family family;
    if (!suite_family(KDA_OP_FUSED, trial->gate, 1, &family))
        suite_skip("the bundle has no fused body");
    const int all = suite_images(&family, NULL, out);
    int count = 0;
    for (int i = 0; i < all; i++)
        if (out[i].record->state_type == (uint32_t)trial->state_type) out[count++] = out[i];
    return count;
}

// A mode that the body is for.
static kda_mode mode_of(const struct kda_format_body *body)
{
    return body->mode_set == KDA_MODES_REPEATED ? KDA_MODE_REPEATED_POSITIVE
                                                : KDA_MODE_UNIQUE_OR_NULL;
}

// --------------------------------------------------------------------------------------- each body

static void check_body(const char *name)
{
    const uint32_t index = kda_bundle_find_body(suite.bundle, name);
    if (index == KDA_NONE) fail_msg("the bundle lacks the body %s", name);
    const struct kda_format_body *const body = &suite.bundle->bodies[index];
    struct suite_family family;
    struct suite_image images[SUITE_IMAGES];
    assert_true(suite_family(KDA_OP_FUSED, (kda_gate)body->gate, 1, &family));
    const int count = suite_images(&family, name, images);
    if (!count) fail_msg("no image of %s runs on this device", name);
    for (int i = 0; i < count; i++) {
        struct fused_trial trial = fused_trial_of((kda_gate)body->gate, (kda_dtype)body->state_type,
                                                  suite_size(3, 33), suite_size(8, 24));
        trial.mode = mode_of(body);
        trial.num_slots = trial.rows + 2;
        trial.state_pad = trial.conv_pad = 8;
        fused_open(&trial);
        trial.indices[1] = 0;
        if (trial.mode == KDA_MODE_REPEATED_POSITIVE) trial.indices[2] = trial.indices[0];
        fused_fill_all(&trial, 11);
        fused_run(&trial, name, images[i].target);
        fused_expect(&trial, images[i].target);
        fused_close(&trial);
    }
}

#define BODY_TEST_RECURRENT(name)
#define BODY_TEST_PACKED(name)
#define BODY_TEST_VERIFY(name)
#define BODY_TEST_COMMIT(name)
#define BODY_TEST_FUSED(name)                                                                      \
    static void body_##name(void **state)                                                          \
    {                                                                                              \
        (void)state;                                                                               \
        check_body(#name);                                                                         \
    }
#define KDA_SCHEDULE(name, template, op, ...) BODY_TEST_##op(name)
#include "manifest/schedules.inc"
#undef KDA_SCHEDULE

// Every image against the first one: no body and no mode changes a bit of a row.
static void n5_route_never_changes_a_bit(void **state)
{
    (void)state;
    for (int g = 0; g < GATES; g++)
        for (int t = 0; t < TYPES; t++) {
            struct fused_trial base =
                fused_trial_of(gates[g], types[t], suite_size(2, 40), suite_size(8, 24));
            struct suite_image images[SUITE_IMAGES];
            const int count = images_of(&base, images);
            struct fused_trial first = base;
            for (int i = 0; i < count; i++) {
                struct fused_trial other = base;
                struct fused_trial *const trial = i ? &other : &first;
                trial->mode = mode_of(images[i].record);
                fused_open(trial);
                fused_fill_all(trial, 500);
                fused_run(trial, images[i].body, images[i].target);
                if (!i) fused_expect(trial, images[i].body);
                for (int64_t n = 0; n < trial->rows; n++)
                    expect_same(&first, n, trial, n, images[i].body);
                if (i) fused_close(trial);
            }
            fused_close(&first);
        }
}

// ---------------------------------------------------------------------------------------------- F1

static void check_shape(int64_t heads, int64_t rows, int variant)
{
    static const float bounds[] = {-5.0f, -2.75f}, epsilons[] = {1e-5f, 0.0f, 3e-4f};
    const kda_gate gate = gates[variant / TYPES % GATES];
    struct fused_trial trial = fused_trial_of(gate, types[variant % TYPES], rows, heads);
    if (gate == KDA_GATE_LOWER_BOUND) trial.lower_bound = bounds[(rows + heads / 4) % 2];
    trial.norm_eps = epsilons[(rows + variant) % 3];
    trial.mode = modes[(variant + heads / 4) % MODES];
    trial.x_pad = variant % 2 ? 17 : 0;
    trial.beta_pad = variant % 3;
    trial.output_gate_pad = variant % 2 ? 0 : 5;
    trial.flat_gate = variant % 4 < 2;
    trial.pages = rows % 2;
    trial.state_pad = variant % 2 ? 8 : 0;
    trial.conv_pad = variant % 2 ? 0 : 4;
    fused_open(&trial);
    fused_fill_all(&trial, 100);
    fused_run(&trial, NULL, NULL);
    char what[80];
    snprintf(what, sizeof what, "H = %d, %d rows, variant %d", (int)heads, (int)rows, variant);
    fused_expect(&trial, what);
    fused_close(&trial);
}

static void f1_shapes(void **state)
{
    (void)state;
    static const struct {
        int64_t heads, soft[3], gpu[8];  // rows; 0 ends
    } shapes[] = {
        {96, {1}, {1, 4, 8, 32, 128}}, {48, {1}, {1, 4, 32, 128}},
        {32, {1}, {1, 4, 32, 128}},    {24, {2}, {1, 4, 32, 64}},
        {12, {3}, {1, 4, 32, 256}},    {8, {1, 4}, {1, 9, 18, 38, 64, 148}},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int64_t *rows = suite.machine.soft ? shapes[i].soft : shapes[i].gpu;
        for (; *rows; rows++)
            for (int variant = 0; variant < GATES * TYPES; variant++) {
                // The soft device's time: its largest ones in one variant each.
                if (suite.machine.soft && shapes[i].heads * *rows > 32 && variant != (int)i % 4)
                    continue;
                check_shape(shapes[i].heads, *rows, variant);
            }
    }
}

static void f1_any_stride_and_address(void **state)
{
    (void)state;
    static const enum fused_tensor shifted[] = {
        FUSED_X,       FUSED_WEIGHT,  FUSED_GATE,        FUSED_BETA,       FUSED_A_LOG,
        FUSED_DT_BIAS, FUSED_INDICES, FUSED_OUTPUT_GATE, FUSED_NORM_WEIGHT};
    struct fused_trial plain = fused_trial_of(KDA_GATE_LOWER_BOUND, KDA_BF16, 2, 8);
    const struct fused_trial base = plain;
    fused_open(&plain);
    fused_fill_all(&plain, 300);
    fused_run(&plain, NULL, NULL);
    fused_expect(&plain, "plain");
    for (int i = -1; i < (int)(sizeof shifted / sizeof *shifted); i++) {
        struct fused_trial trial = base;
        for (size_t j = 0; j < sizeof shifted / sizeof *shifted; j++)
            trial.shift[shifted[j]] = i < 0 || (int)j == i;
        trial.x_pad = i < 0 ? 1 : 0;
        fused_open(&trial);
        fused_fill_all(&trial, 300);
        fused_run(&trial, NULL, NULL);
        for (int64_t n = 0; n < 2; n++) expect_same(&plain, n, &trial, n, "shifted by one element");
        fused_close(&trial);
    }
    fused_close(&plain);
}

// ---------------------------------------------------------------------------------------------- F2

static void f2_null_rows(void **state)
{
    (void)state;
    for (int m = 0; m < MODES; m++)
        for (int t = 0; t < TYPES; t++) {
            struct fused_trial trial = fused_trial_of(gates[t], types[t], 7, 8);
            trial.mode = modes[m];
            trial.num_slots = 4;
            fused_open(&trial);
            memcpy(trial.indices, (int32_t[]){0, 3, -1, INT_MIN, 4, 1, INT_MAX},
                   7 * sizeof *trial.indices);
            fused_fill_all(&trial, 400);
            fused_run(&trial, NULL, NULL);
            fused_expect(&trial, "null rows");
            for (int64_t n = 0; n < 7; n++) trial.indices[n] = (int32_t)(-n);
            fused_run(&trial, NULL, NULL);
            fused_expect(&trial, "all null");
            fused_close(&trial);
        }
}

// ---------------------------------------------------------------------------------------------- F3

// The rows one by one, each in a call of its own, on the same caches.
static void run_one_by_one(const struct fused_trial *all, struct fused_trial *one)
{
    struct fused_trial base = *all;
    const int64_t rows = all->rows;
    *one = base;
    one->rows = 1;
    one->mode = KDA_MODE_UNIQUE_OR_NULL;
    fused_open(one);
    memcpy(one->conv.before, all->conv.before, (size_t)all->num_slots * all->conv.held);
    memcpy(one->state.before, all->state.before, (size_t)all->num_slots * all->state.held);
    uint16_t *const out = malloc((size_t)(rows * all->heads * ORACLE_D) * 2);
    assert_non_null(out);
    for (int64_t n = 0; n < rows; n++) {
        static const enum fused_tensor inputs[] = {FUSED_X, FUSED_GATE, FUSED_BETA,
                                                   FUSED_OUTPUT_GATE};
        for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
            memcpy(fused_at(one, inputs[i], 0), fused_at(all, inputs[i], n),
                   (size_t)((uint8_t *)fused_at(all, inputs[i], 1) -
                            (uint8_t *)fused_at(all, inputs[i], 0)));
        one->indices[0] = all->indices[n];
        if (n == 0) fused_upload(one);
        fused_upload_inputs(one);
        fused_launch(one, NULL);
        machine_sync(&suite.machine, NULL);
        fused_download(one);
        if (memcmp(one->out, all->out + n * all->heads * ORACLE_D,
                   (size_t)(all->heads * ORACLE_D) * 2))
            fail_msg("row %d: not the output of successive calls", (int)n);
    }
    free(out);
}

static void check_repeated(const int32_t *indices, int64_t rows, kda_dtype type, kda_gate gate)
{
    struct fused_trial trial = fused_trial_of(gate, type, rows, 8), one;
    trial.mode = KDA_MODE_REPEATED_POSITIVE;
    trial.num_slots = 4;
    trial.state_pad = 8;
    fused_open(&trial);
    memcpy(trial.indices, indices, (size_t)rows * sizeof *indices);
    fused_fill_all(&trial, 600);
    fused_run(&trial, NULL, NULL);
    fused_expect(&trial, "repeated");
    run_one_by_one(&trial, &one);
    assert_memory_equal(trial.conv.after, one.conv.after,
                        (size_t)trial.num_slots * trial.conv.held);
    assert_memory_equal(trial.state.after, one.state.after,
                        (size_t)trial.num_slots * trial.state.held);
    fused_close(&one);
    fused_close(&trial);
}

static void f3_repeated_slots(void **state)
{
    (void)state;
    static const int32_t alternating[] = {1, 2, 1, 2, 1, 0, 3}, equal[] = {2, 2, 2, 2},
                         nulls[] = {-1, 3, 4, 3, 0, INT_MAX, 3};
    for (int t = 0; t < TYPES; t++) {
        check_repeated(alternating, 7, types[t], gates[t]);
        check_repeated(equal, 4, types[t], gates[1 - t]);
        check_repeated(nulls, 7, types[t], gates[t]);
    }
}

// Rows of one slot that are further apart than a scan looks at once.
static void f3_distant_rows(void **state)
{
    (void)state;
    enum { ROWS = 300 };
    static const int64_t live[] = {3, 130, 131, 299};
    struct fused_trial trial = fused_trial_of(KDA_GATE_LOWER_BOUND, KDA_BF16, ROWS, 8);
    trial.mode = KDA_MODE_REPEATED_POSITIVE;
    trial.num_slots = 3;
    fused_open(&trial);
    memset(trial.indices, 0, ROWS * sizeof *trial.indices);
    for (int i = 0; i < 4; i++) {
        trial.indices[live[i]] = i == 2 ? 2 : 1;
        fused_fill(&trial, live[i], 650 + (uint64_t)i);
    }
    fused_run(&trial, NULL, NULL);
    fused_expect(&trial, "distant rows");
    fused_close(&trial);
}

// ---------------------------------------------------------------------------------------------- F4

static void f4_pool_beyond_2_31(void **state)
{
    (void)state;
    // Three slots: the last one begins past 2^31 elements of either cache.
    const int64_t stride = (INT64_C(1) << 30) + 64;
    for (int t = 0; t < TYPES; t++) {
        struct fused_trial trial = fused_trial_of(gates[t], types[t], 2, 8);
        trial.num_slots = 3;
        trial.conv_pad = stride - 9 * 8 * ORACLE_D;
        trial.state_pad = stride - 8 * ORACLE_HEAD;
        const size_t bytes = (size_t)stride * 3 * (types[t] == KDA_F32 ? 6 : 4);
        if (!suite.machine.soft && machine_free_memory(&suite.machine) < bytes + (1u << 30))
            suite_skip("the device has less than %zu bytes free", bytes);
        fused_open(&trial);
        trial.indices[0] = 2;
        trial.indices[1] = 1;
        fused_fill_all(&trial, 700);
        fused_run(&trial, NULL, NULL);
        fused_expect(&trial, "huge");
        fused_close(&trial);
    }
}

static void f4_scattered_pages(void **state)
{
    (void)state;
    for (int t = 0; t < TYPES; t++) {
        struct fused_trial trial = fused_trial_of(gates[t], types[t], 3, 8);
        trial.num_slots = 12;
        trial.pages = true;
        trial.state_pad = 40;
        fused_open(&trial);
        memcpy(trial.indices, (int32_t[]){11, 1, 6}, 3 * sizeof *trial.indices);
        fused_fill_all(&trial, 750);
        fused_run(&trial, NULL, NULL);
        fused_expect(&trial, "pages");
        fused_close(&trial);
    }
}

// ---------------------------------------------------------------------------------------------- F5

static void f5_batch_invariance(void **state)
{
    (void)state;
    static const int64_t soft[] = {4, 0}, gpu[] = {2, 9, 40, 160, 0};
    for (int t = 0; t < TYPES; t++) {
        struct fused_trial alone = fused_trial_of(gates[t], types[t], 1, 8);
        const struct fused_trial base = alone;
        fused_open(&alone);
        fused_fill(&alone, 0, 800);
        fused_run(&alone, NULL, NULL);
        fused_expect(&alone, "alone");
        for (const int64_t *rows = suite.machine.soft ? soft : gpu; *rows; rows++)
            for (int m = 0; m < MODES; m++) {
                struct fused_trial batch = base;
                const int64_t at = m * (*rows - 1) / 2;  // first, middle, last
                batch.rows = *rows;
                batch.mode = modes[m];
                batch.x_pad = m;
                batch.state_pad = 8 * m;
                fused_open(&batch);
                // Slots from the end down.
                for (int64_t n = 0; n < *rows; n++) batch.indices[n] = (int32_t)(*rows - n);
                fused_fill_all(&batch, 810);
                fused_fill(&batch, at, 800);
                fused_run(&batch, NULL, NULL);
                expect_same(&alone, 0, &batch, at, "alone and in a batch");
                fused_close(&batch);
            }
        fused_close(&alone);
    }
}

// ---------------------------------------------------------------------------------------------- F6

static void f6_replay(void **state)
{
    (void)state;
    for (int m = 0; m < MODES; m++) {
        struct fused_trial trial = fused_trial_of(gates[m % GATES], types[m % TYPES],
                                                  suite_size(3, 32), suite_size(8, 24));
        trial.mode = modes[m];
        fused_open(&trial);
        fused_fill_all(&trial, 900);
        fused_upload(&trial);
        const kda_problem problem = fused_problem(&trial);
        assert_int_equal(kda_context_prepare(suite.context, &problem, NULL), KDA_OK);
        CUstream stream = machine_stream(&suite.machine);
        machine_capture(&suite.machine, stream);
        fused_launch(&trial, stream);
        struct machine_graph graph = machine_captured(&suite.machine, stream);
        assert_int_equal(graph.nodes, 1);
        for (int round = 0; round < 3; round++) {
            if (round == 2) {  // other indices
                for (int64_t n = 0; n < trial.rows; n++)
                    trial.indices[n] = n % 3 == 1 ? -1 : (int32_t)(trial.rows - n);
                fused_upload_inputs(&trial);
            }
            machine_replay(&suite.machine, &graph, stream);
            machine_sync(&suite.machine, stream);
            fused_download(&trial);
            fused_expect(&trial, round ? "replay" : "first replay");
            fused_advance(&trial);
        }
        machine_graph_close(&suite.machine, &graph);
        machine_stream_close(&suite.machine, stream);
        fused_close(&trial);
    }
}

// ---------------------------------------------------------------------------------------------- F7

static void set_bf16(const struct fused_trial *trial, enum fused_tensor tensor, int64_t row,
                     int64_t from, int64_t count, double value)
{
    uint16_t *const x = fused_at(trial, tensor, row);
    for (int64_t i = 0; i < count; i++) x[from + i] = oracle_bf16(value);
}

static void f7_gates(void **state)
{
    (void)state;
    for (int g = 0; g < GATES; g++)
        for (int t = 0; t < TYPES; t++) {
            struct fused_trial trial = fused_trial_of(gates[g], types[t], 4, 8);
            trial.any_floor = true;
            fused_open(&trial);
            fused_fill_all(&trial, 1000);
            float *const a_log = fused_at(&trial, FUSED_A_LOG, 0);
            for (int h = 0; h < 8; h++) a_log[h] = h % 2 ? logf(16) : -3.0f;
            for (int i = 0; i < 4; i++)
                set_bf16(&trial, FUSED_GATE, 0, 32 * i, 32, (double[]){40, -40, 21, -200}[i]);
            set_bf16(&trial, FUSED_GATE, 1, 0, 1024, 30);
            set_bf16(&trial, FUSED_GATE, 2, 0, 1024, -1e4);
            set_bf16(&trial, FUSED_BETA, 1, 0, 8, 100);
            set_bf16(&trial, FUSED_BETA, 2, 0, 8, -100);
            set_bf16(&trial, FUSED_OUTPUT_GATE, 3, 0, 512, 90);
            set_bf16(&trial, FUSED_OUTPUT_GATE, 3, 512, 512, -90);
            fused_run(&trial, NULL, NULL);
            fused_expect(&trial, "gates");
            fused_close(&trial);
        }
}

static void f7_convolution_limits(void **state)
{
    (void)state;
    for (int t = 0; t < TYPES; t++) {
        struct fused_trial trial = fused_trial_of(gates[t], types[t], 4, 8);
        trial.any_floor = true;
        trial.norm_eps = 0;
        fused_open(&trial);
        fused_fill_all(&trial, 1100);
        const int64_t width = 8 * ORACLE_D;
        // Row 0: q vanishes, and with it the output, which has no epsilon. Row 1: k vanishes. Row
        // 2: v is huge. Row 3: all of q is far below zero, where SiLU is none.
        for (int64_t row = 0; row < 4; row++) {
            const int64_t part = (int64_t[]){0, 1, 2, 0}[row];
            const double value = (double[]){0, 0, 3e4, 60}[row];
            const float *const weight = fused_at(&trial, FUSED_WEIGHT, 0);
            uint16_t *const window = fused_window(&trial, trial.indices[row]);
            for (int64_t i = 0; i < width; i++)
                for (int64_t tap = 0; tap < 4; tap++) {
                    const float w = weight[(part * 4 + tap) * width + i];
                    const double x = row == 3 && w > 0 ? -value : value;
                    const uint16_t bits = oracle_bf16(x);
                    if (tap < 3)
                        window[tap * 3 * width + part * width + i] = bits;
                    else
                        ((uint16_t *)fused_at(&trial, FUSED_X, row))[part * width + i] = bits;
                }
        }
        fused_run(&trial, NULL, NULL);
        fused_expect(&trial, "limits");
        for (int64_t i = 0; i < width; i++) assert_int_equal(trial.out[i] & 0x7FFF, 0);
        fused_close(&trial);
    }
}

int main(int argc, char **argv)
{
    int status = suite_open(argc, argv);
    if (status != SUITE_GO) return status;
#undef BODY_TEST_FUSED
#define BODY_TEST_FUSED(name) cmocka_unit_test(body_##name),
#define KDA_SCHEDULE(name, template, op, ...) BODY_TEST_##op(name)
    const struct CMUnitTest tests[] = {
#include "manifest/schedules.inc"
        cmocka_unit_test(n5_route_never_changes_a_bit),
        cmocka_unit_test(f1_shapes),
        cmocka_unit_test(f1_any_stride_and_address),
        cmocka_unit_test(f2_null_rows),
        cmocka_unit_test(f3_repeated_slots),
        cmocka_unit_test(f3_distant_rows),
        cmocka_unit_test(f4_pool_beyond_2_31),
        cmocka_unit_test(f4_scattered_pages),
        cmocka_unit_test(f5_batch_invariance),
        cmocka_unit_test(f6_replay),
        cmocka_unit_test(f7_gates),
        cmocka_unit_test(f7_convolution_limits),
    };
    return suite_close(cmocka_run_group_tests_name("fused", tests, NULL, NULL));
}
