// SPDX-License-Identifier: Apache-2.0
// The contract of packed decode, P1 to P4 of CHECKLIST.md, and one test for every packed body of
// the schedules. The trials are those of the recurrent suite: a packed call is a call of one token
// whose q, k and v are slices of a row.
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/dependent.h"
#include "tests/replay.h"

static struct suite_family family(void)
{
    struct suite_family found;
    if (!suite_family(KDA_OP_PACKED, KDA_GATE_LOWER_BOUND, 1, &found))
        suite_skip("the bundle has no packed body");
    return found;
}

// A batch with slots from the end of the pool down, the last row inactive if there are several.
static void fill(struct trial *trial, uint64_t key)
{
    for (int64_t n = 0; n < trial->rows; n++)
        trial->indices[n] = (int32_t)(trial->num_slots - 1 - n);
    if (trial->rows > 1) trial_null_row(trial, trial->rows - 1);
    trial_fill_all(trial, key, TRIAL_NORMAL);
}

static void check_body(const char *name)
{
    struct suite_family packed = family();
    struct suite_image images[SUITE_IMAGES];
    if (kda_bundle_find_body(suite.bundle, name) == KDA_NONE)
        fail_msg("the bundle lacks the body %s", name);
    int count = suite_images(&packed, name, images);
    if (!count) fail_msg("no image of %s runs on this device", name);
    for (int i = 0; i < count; i++) {
        struct trial trial = trial_of(&packed, suite_size(3, 33), 12, 12);
        trial.num_slots = trial.rows + 2;
        trial.slot_pad = 17;
        trial_open(&trial);
        fill(&trial, 11);
        trial_run(&trial, name, images[i].target);
        trial_expect(&trial, images[i].target);
        trial_close(&trial);
    }
}

#define BODY_TEST_FUSED(name)
#define BODY_TEST_VERIFY(name)
#define BODY_TEST_COMMIT(name)
#define BODY_TEST_RECURRENT(name)
#define BODY_TEST_PACKED(name)                                                                     \
    static void body_##name(void **state)                                                          \
    {                                                                                              \
        (void)state;                                                                               \
        check_body(#name);                                                                         \
    }
#define KDA_SCHEDULE(name, template, op, ...) BODY_TEST_##op(name)
#include "manifest/schedules.inc"
#undef KDA_SCHEDULE

static void p1_batches(void **state)
{
    (void)state;
    static const int64_t soft[] = {1, 8, 33, 0}, gpu[] = {1, 8, 16, 31, 32, 64, 128, 256, 512, 0};
    struct suite_family packed = family();
    for (const int64_t *rows = suite.machine.soft ? soft : gpu; *rows; rows++) {
        struct trial trial = trial_of(&packed, *rows, 12, 12);
        trial.num_slots = *rows + 1;
        trial.qkv_pad = 6144 - 4608;
        trial.gate_pad = 17;
        trial.beta_pad = 5;
        trial.slot_pad = 256;
        trial_open(&trial);
        fill(&trial, 100);
        // A CPU computes a few rows of a large batch; the others are inactive.
        for (int64_t n = 3; suite.machine.soft && n < *rows - 2; n++) trial_null_row(&trial, n);
        trial_run(&trial, NULL, NULL);
        trial_expect(&trial, "batch");
        trial_close(&trial);
    }
}

static void p1_any_stride_and_address(void **state)
{
    (void)state;
    static const int64_t slot_pads[] = {256, 17, 1, 4, 8}, gate_pads[] = {1, 2, 4, 17, 0};
    static const enum trial_tensor shifted[] = {TRIAL_Q,     TRIAL_G,       TRIAL_BETA,
                                                TRIAL_A_LOG, TRIAL_DT_BIAS, TRIAL_INDICES,
                                                TRIAL_STATE, TRIAL_OUT};
    struct suite_family packed = family();
    for (int i = 0; i < 5; i++) {
        struct trial trial = trial_of(&packed, 3, 12, 12);
        trial.num_slots = 4;
        trial.slot_pad = slot_pads[i];
        trial.gate_pad = gate_pads[i];
        trial.qkv_pad = i;
        trial_open(&trial);
        fill(&trial, 200);
        trial_run(&trial, NULL, NULL);
        trial_expect(&trial, "strides");
        trial_close(&trial);
    }
    for (size_t i = 0; i < sizeof shifted / sizeof *shifted; i++) {
        struct trial trial = trial_of(&packed, 2, 12, 12);
        trial.shift[shifted[i]] = 1;
        trial_open(&trial);
        fill(&trial, 300);
        trial_run(&trial, NULL, NULL);
        trial_expect(&trial, "shifted by one element");
        trial_close(&trial);
    }
}

static void p2_inactive_rows(void **state)
{
    (void)state;
    static const int32_t nulls[] = {-1, 3, INT_MIN, INT_MAX, 4};
    struct suite_family packed = family();
    for (int live = -1; live < 5; live += 3) {  // none, the third, the last but one is null as well
        struct trial trial = trial_of(&packed, 5, 12, 12), alone = trial;
        trial.num_slots = alone.num_slots = 3;
        alone.rows = 1;
        trial_open(&trial);
        memcpy(trial.indices, nulls, sizeof nulls);
        if (live >= 0) trial.indices[live] = 1;
        trial_fill_all(&trial, 400, TRIAL_NORMAL);
        trial_run(&trial, NULL, NULL);
        trial_expect(&trial, "inactive rows");
        if (live >= 0) {
            trial_open(&alone);
            alone.indices[0] = 2;
            trial_fill(&alone, 0, 400 + (uint64_t)live, TRIAL_NORMAL);
            trial_run(&alone, NULL, NULL);
            assert_true(trial_same_row(&trial, live, &alone, 0));
            trial_close(&alone);
        }
        trial_close(&trial);
    }
}

static void p3_bodies_and_alignments_agree(void **state)
{
    (void)state;
    struct suite_family packed = family();
    struct suite_image images[SUITE_IMAGES];
    int count = suite_images(&packed, NULL, images);
    struct trial first = trial_of(&packed, suite_size(3, 40), 12, 12);
    first.num_slots = first.rows + 1;
    struct trial base = first;
    trial_open(&first);
    fill(&first, 500);
    trial_run(&first, images[0].body, images[0].target);
    trial_expect(&first, images[0].body);
    for (int i = 0; i < count; i++)
        for (int64_t pad = 0; pad < 3;
             pad++) {  // aligned; slot by slot different; all off by one element
            struct trial other = base;
            other.slot_pad = pad == 1 ? 17 : 0;
            other.shift[TRIAL_STATE] = pad == 2;
            trial_open(&other);
            fill(&other, 500);
            trial_run(&other, images[i].body, images[i].target);
            for (int64_t n = 0; n < other.rows; n++)
                if (!trial_same_row(&first, n, &other, n))
                    fail_msg("%s %s, alignment %d: row %d differs", images[i].body,
                             images[i].target, (int)pad, (int)n);
            trial_close(&other);
        }
    trial_close(&first);
}

// The data of the drift run: A_log and dt_bias are the trial's own, see trial.c.
static void p4_drift_512(void **state)
{
    (void)state;
    struct suite_family packed = family();
    struct trial trial = trial_of(&packed, 1, 12, 12);
    trial_open(&trial);
    trial_fill(&trial, 0, 600, TRIAL_SMALL);
    size_t elements = (size_t)trial.heads * ORACLE_HEAD;
    double *truth = calloc(elements, sizeof *truth), out[ORACLE_D], last_out = 0, last_state = 0;
    assert_non_null(truth);
    uint16_t *start = malloc(elements * 2);
    assert_non_null(start);
    memcpy(start, trial_slot(&trial, 0, 0), elements * 2);
    for (size_t j = 0; j < elements; j++) truth[j] = oracle_value(start[j]);
    for (uint64_t step = 1; step <= 512; step++) {
        trial_fill(&trial, 0, 600 + step, TRIAL_SMALL);
        memcpy(trial_slot(&trial, 0, 0), step > 1 ? trial_pool(&trial, 0, 0) : start, elements * 2);
        trial_run(&trial, NULL, NULL);
        bool check = !(step & (step - 1));
        struct oracle_error out_error = {.count = 0}, state_error = {.count = 0};
        for (int64_t hv = 0; hv < trial.heads; hv++) {
            oracle_step(&trial.call, 0, hv, truth + hv * ORACLE_HEAD, out);
            if (check)
                oracle_add_many(&out_error, trial_out(&trial, 0) + hv * ORACLE_D, out, ORACLE_D);
        }
        if (!check) continue;
        oracle_add_many(&state_error, trial_pool(&trial, 0, 0), truth, (int64_t)elements);
        if (!(out_error.worst <= 1 && state_error.worst <= 1 &&
              out_error.nonfinite + state_error.nonfinite == 0))
            fail_msg("step %d: out %.3g, state %.3g of the tolerance", (int)step, out_error.worst,
                     state_error.worst);
        last_out = out_error.max_abs;
        last_state = state_error.max_abs;
    }
    printf("  512 steps: state off by %.3g, output by %.3g\n", last_state, last_out);
    assert_true(last_out <= 1e-2 && last_state <= 1e-2);
    free(start);
    free(truth);
    trial_close(&trial);
}

static void p4_replay_with_other_inputs(void **state)
{
    (void)state;
    struct suite_family packed = family();
    struct trial trial = trial_of(&packed, suite_size(3, 32), 12, 12), eager = trial;
    trial.num_slots = eager.num_slots = trial.rows + 3;
    trial_open(&trial);
    trial_open(&eager);
    fill(&trial, 700);
    trial_upload(&trial);
    CUstream stream = machine_stream(&suite.machine);
    struct machine_graph graph = trial_capture(&trial, stream);
    assert_int_equal(graph.nodes, 1);
    for (int round = 0; round < 2; round++) {
        for (int64_t n = 0; n < trial.rows; n++) {
            trial.indices[n] = eager.indices[n] = (int32_t)(n + round);
            if (n % 3 == round) trial.indices[n] = eager.indices[n] = -1;
        }
        trial_fill_all(&trial, 800 + 50 * (uint64_t)round, TRIAL_NORMAL);
        trial_upload(&trial);
        machine_replay(&suite.machine, &graph, stream);
        machine_sync(&suite.machine, stream);
        trial_download(&trial);
        trial_expect(&trial, "replay");
        trial_fill_all(&eager, 800 + 50 * (uint64_t)round, TRIAL_NORMAL);
        trial_upload(&eager);
        trial_launch(&eager, stream);
        machine_sync(&suite.machine, stream);
        trial_download(&eager);
        for (int64_t n = 0; n < trial.rows; n++) assert_true(trial_same_row(&trial, n, &eager, n));
    }
    machine_graph_close(&suite.machine, &graph);
    machine_stream_close(&suite.machine, stream);
    trial_close(&trial);
    trial_close(&eager);
}

static void p4_replay_one_live_row(void **state)
{
    (void)state;
    struct suite_family packed = family();
    replay_one_live_row(&packed, 12, 12, suite_size(12, 10000), 1);
}

static void p4_pool_beyond_2_31(void **state)
{
    (void)state;
    struct suite_family packed = family();
    for (int pad = 0; pad < 2; pad++) {
        struct trial trial = trial_of(&packed, 1, 12, 12);
        trial.num_slots = 12000;
        trial.slot_pad = pad;
        trial.sparse = true;
        size_t bytes = (size_t)trial.num_slots * (size_t)(12 * ORACLE_HEAD + pad) * 2;
        if (!suite.machine.soft && machine_free_memory(&suite.machine) < bytes + (1u << 30))
            suite_skip("the device has less than %zu bytes free", bytes);
        trial_open(&trial);
        trial.indices[0] = 11999;
        trial.held_count = 4;
        memcpy(trial.held, (int64_t[]){0, 1, 11998, 11999}, 4 * sizeof *trial.held);
        for (int i = 0; i < 4; i++)
            for (int64_t j = 0; j < trial.slot_stride; j++)
                trial_slot(&trial, trial.held[i], 0)[j] = ORACLE_POISON;
        trial_fill_all(&trial, 900, TRIAL_NORMAL);
        trial_run(&trial, NULL, NULL);
        trial_expect(&trial, "huge");
        trial_close(&trial);
    }
}

// Aligned, and with everything off by one element.
static struct trial open_slots(int64_t shift)
{
    static const int32_t slots[] = {2, -1, INT_MAX, 1, INT_MIN, 4, -7, 0};  // 4: no such slot
    struct suite_family packed = family();
    struct trial trial = trial_of(&packed, 8, 12, 12);
    trial.num_slots = 4;
    trial.slot_pad = shift;
    for (int i = 0; i < TRIAL_TENSORS; i++) trial.shift[i] = shift;
    trial_open(&trial);
    memcpy(trial.indices, slots, sizeof slots);
    trial_fill_all(&trial, 1000, TRIAL_NORMAL);
    return trial;
}

static void dependent_launches(void **state)
{
    (void)state;
    struct suite_family packed = family();
    struct suite_image images[SUITE_IMAGES];
    int count = suite_images(&packed, NULL, images);
    for (int i = 0; i < count; i++) {
        for (int64_t shift = 0; shift < 2; shift++) {
            struct trial plain = open_slots(shift), dependent = open_slots(shift);
            dependent_expect(&plain, &dependent, &images[i]);
            trial_close(&plain);
            trial_close(&dependent);
        }
        dependent_expect_late_slots(&packed, &images[i], 12, 12);
    }
}

int main(int argc, char **argv)
{
    int status = suite_open(argc, argv);
    if (status != SUITE_GO) return status;
#undef BODY_TEST_PACKED
#define BODY_TEST_PACKED(name) cmocka_unit_test(body_##name),
#define KDA_SCHEDULE(name, template, op, ...) BODY_TEST_##op(name)
    const struct CMUnitTest tests[] = {
#include "manifest/schedules.inc"
        cmocka_unit_test(p1_batches),
        cmocka_unit_test(p1_any_stride_and_address),
        cmocka_unit_test(p2_inactive_rows),
        cmocka_unit_test(p3_bodies_and_alignments_agree),
        cmocka_unit_test(p4_drift_512),
        cmocka_unit_test(p4_replay_with_other_inputs),
        cmocka_unit_test(p4_replay_one_live_row),
        cmocka_unit_test(p4_pool_beyond_2_31),
        cmocka_unit_test(dependent_launches),
    };
    return suite_close(cmocka_run_group_tests_name("packed", tests, NULL, NULL));
}
