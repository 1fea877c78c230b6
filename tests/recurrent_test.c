// SPDX-License-Identifier: Apache-2.0
// The contract of recurrent decode, R1 to R15 of CHECKLIST.md, over every body that the bundle
// holds. A test asks for a property and loops over the families (T, gate) it applies to; every
// schedule row adds a test of its own body. All results are judged by the oracle to the last
// untouched bit, or compared bit by bit.
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/dependent.h"
#include "tests/direct.h"
#include "tests/replay.h"

static int families(struct suite_family out[SUITE_FAMILIES])
{
    int count = suite_families(KDA_OP_RECURRENT, out);
    assert_true(count > 0);
    return count;
}

static struct suite_family need(kda_gate gate, int32_t tokens)
{
    struct suite_family family;
    if (!suite_family(KDA_OP_RECURRENT, gate, tokens, &family))
        suite_skip("the bundle has no body for T = %d, gate %s", (int)tokens, kda_gate_name(gate));
    return family;
}

static int64_t heads(void) { return suite_size(1, 16); }
static int64_t value_heads(void) { return suite_size(2, 32); }

// Gives the checkpoints slots in random order, all different, some of the pool unlisted.
static void scatter(struct trial *trial, uint64_t seed)
{
    struct oracle_rng rng = {.state = seed};
    int64_t count = trial->num_slots;
    int32_t *order = calloc((size_t)count, sizeof *order);
    assert_non_null(order);
    for (int64_t i = 0; i < count; i++) {
        int64_t j = (int64_t)(oracle_bits(&rng) % (uint64_t)(i + 1));
        order[i] = order[j];
        order[j] = (int32_t)i;
    }
    memcpy(trial->indices, order, (size_t)trial->call.tok * sizeof *order);
    free(order);
}

static void accept_mix(struct trial *trial)
{
    int32_t t = trial->tokens, mix[] = {0, 1, t, t + 7, t - 1, 0, 1, t};
    for (int64_t n = 0; n < trial->rows; n++) trial->accepted[n] = mix[n % 8];
}

// A trial that has a little of everything: scattered slots, accepted counts, a null last row.
static void open_mixed(struct trial *trial, uint64_t key, enum trial_data data)
{
    trial->num_slots = trial->rows * trial->tokens + 3;
    trial_open(trial);
    scatter(trial, key);
    accept_mix(trial);
    if (trial->rows > 1) trial_null_row(trial, trial->rows - 1);
    trial_fill_all(trial, key, data);
}

// ------------------------------------------------------------------------------- one test per body

static void check_body(const char *name)
{
    uint32_t index = kda_bundle_find_body(suite.bundle, name);
    if (index == KDA_NONE) fail_msg("the bundle lacks the body %s", name);
    const struct kda_format_body *body = &suite.bundle->bodies[index];
    struct suite_family family;
    struct suite_image images[SUITE_IMAGES];
    assert_true(
        suite_family((kda_op)body->op, (kda_gate)body->gate, (int32_t)body->tokens_min, &family));
    int count = suite_images(&family, name, images);
    if (!count) fail_msg("no image of %s runs on this device", name);
    for (int i = 0; i < count; i++) {
        struct trial trial = trial_of(&family, suite_size(3, 8), heads(), value_heads());
        open_mixed(&trial, 11, TRIAL_NORMAL);
        trial_run(&trial, name, images[i].target);
        trial_expect(&trial, images[i].target);
        trial_close(&trial);
    }
}

#define BODY_TEST_RECURRENT(name)                                                                  \
    static void body_##name(void **state)                                                          \
    {                                                                                              \
        (void)state;                                                                               \
        check_body(#name);                                                                         \
    }
#define BODY_TEST_FUSED(name)
#define BODY_TEST_VERIFY(name)
#define BODY_TEST_COMMIT(name)
#define BODY_TEST_PACKED(name)
#define KDA_SCHEDULE(name, template, op, ...) BODY_TEST_##op(name)
#include "manifest/schedules.inc"
#undef KDA_SCHEDULE

// ---------------------------------------------------------------------------------------- R1 to R8

static void r01_checkpoints(void **state)
{
    (void)state;
    struct suite_family all[SUITE_FAMILIES];
    int count = families(all);
    for (int i = 0; i < count; i++) {
        if (all[i].gate != KDA_GATE_PRECOMPUTED) continue;
        for (int64_t rows = 8; rows <= (all[i].tokens == 1 ? 16 : 8); rows *= 2) {
            struct trial trial = trial_of(&all[i], rows, heads(), value_heads());
            open_mixed(&trial, 100, TRIAL_NORMAL);
            trial_run(&trial, NULL, NULL);
            trial_expect(&trial, "checkpoints");
            trial_close(&trial);
        }
    }
}

static void r02_route_never_changes_a_bit(void **state)
{
    (void)state;
    struct suite_family all[SUITE_FAMILIES];
    int count = families(all);
    for (int i = 0; i < count; i++) {
        struct suite_image images[SUITE_IMAGES];
        int image_count = suite_images(&all[i], NULL, images);
        assert_true(image_count > 0);
        struct trial first = trial_of(&all[i], suite_size(2, 8), heads(), value_heads());
        struct trial other = first;
        open_mixed(&first, 200, TRIAL_NORMAL);
        open_mixed(&other, 200, TRIAL_NORMAL);
        trial_run(&first, images[0].body, images[0].target);
        trial_expect(&first, images[0].body);
        for (int j = 1; j < image_count; j++) {
            trial_run(&other, images[j].body, images[j].target);
            if (!trial_same(&first, &other))
                fail_msg("%s %s and %s %s differ", images[0].body, images[0].target, images[j].body,
                         images[j].target);
        }
        trial_close(&first);
        trial_close(&other);
    }
}

static void r03_batch_invariance(void **state)
{
    (void)state;
    static const int64_t soft[] = {2, 5, 19, 0}, gpu[] = {2, 3, 7, 16, 33, 64, 127, 160, 0};
    struct suite_family all[SUITE_FAMILIES];
    int count = families(all);
    for (int i = 0; i < count; i++) {
        struct trial alone = trial_of(&all[i], 1, heads(), value_heads());
        trial_open(&alone);
        alone.accepted[0] = alone.tokens;
        trial_fill(&alone, 0, 300, TRIAL_NORMAL);
        trial_run(&alone, NULL, NULL);
        trial_expect(&alone, "alone");
        for (const int64_t *rows = suite.machine.soft ? soft : gpu; *rows; rows++) {
            struct trial batch = trial_of(&all[i], *rows, heads(), value_heads());
            int64_t live = 0, places[] = {0, batch.rows / 2, batch.rows - 1};
            batch.num_slots = batch.rows * batch.tokens + 5;
            batch.slot_pad = 8 * (*rows % 3);
            batch.gate_pad = batch.tokens == 1 ? 4 * (*rows % 5) : 0;
            trial_open(&batch);
            scatter(&batch, (uint64_t)*rows);
            accept_mix(&batch);
            for (int64_t n = 0; n < batch.rows; n++) {
                bool place = n == places[0] || n == places[1] || n == places[2];
                if (place) batch.accepted[n] = batch.tokens;
                // On the soft device most of the other rows are null, which is cheap.
                else if (n % 3 == 1 || (suite.machine.soft && live++ > 1))
                    trial_null_row(&batch, n);
                if (oracle_live(&batch.call, n))
                    trial_fill(&batch, n, place ? 300 : 400 + (uint64_t)n, TRIAL_NORMAL);
            }
            trial_run(&batch, NULL, NULL);
            for (int j = 0; j < 3; j++)
                if (!trial_same_row(&alone, 0, &batch, places[j]))
                    fail_msg("T = %d: the row changes in a batch of %d at %d", (int)all[i].tokens,
                             (int)batch.rows, (int)places[j]);
            trial_close(&batch);
        }
        trial_close(&alone);
    }
}

static void r04_lower_bound(void **state)
{
    (void)state;
    static const int32_t accepted[] = {0, 1, 3, 10};
    struct suite_family family = need(KDA_GATE_LOWER_BOUND, 3);
    for (int64_t rows = 1; rows <= suite_size(2, 16); rows *= 2)
        for (int i = 0; i < 8; i++) {
            struct trial trial = trial_of(&family, rows, 16, 16);
            trial.lower_bound = i % 2 ? -5.0f : -2.75f;
            trial.num_slots = rows * 3 + 2;
            trial_open(&trial);
            scatter(&trial, 5);
            for (int64_t n = 0; n < rows; n++) trial.accepted[n] = accepted[(n + i / 2) % 4];
            if (rows > 1) trial_null_row(&trial, rows - 1);
            trial_fill_all(&trial, 500, TRIAL_NORMAL);
            trial_run(&trial, NULL, NULL);
            trial_expect(&trial, "lower bound");
            trial_close(&trial);
        }
}

static void r05_padded_gate_and_slots(void **state)
{
    (void)state;
    struct suite_family all[SUITE_FAMILIES];
    int count = families(all), ran = 0;
    for (int i = 0; i < count; i++) {
        if (all[i].tokens == 1) continue;
        struct trial trial = trial_of(&all[i], 5, heads(), value_heads());
        trial.cu_form = true;
        trial.gate_pad = 8;
        trial.slot_pad = 8;
        open_mixed(&trial, 600, TRIAL_NORMAL);
        trial_null_row(&trial, 2);
        trial_fill_all(&trial, 600, TRIAL_NORMAL);
        trial_run(&trial, NULL, NULL);
        trial_expect(&trial, "padded");
        trial_close(&trial);
        ran++;
    }
    if (!ran) suite_skip("the bundle has no body of several tokens");
}

static void r06_one_token(void **state)
{
    (void)state;
    struct suite_family family = need(KDA_GATE_PRECOMPUTED, 1);
    for (int64_t h = 1; h <= suite_size(2, 16); h += suite_size(1, 15))
        for (int64_t ratio = 1; ratio <= 8; ratio *= 2)
            for (int form = 0; form < 3; form++) {
                struct trial trial = trial_of(&family, form == 2 ? 1 : 4, h, h * ratio);
                trial.gate_pad = 8;
                trial.slot_pad = 8;
                trial.no_indices = form == 1;
                trial.num_slots = trial.rows + 2;
                trial_open(&trial);
                if (form == 0) {
                    scatter(&trial, 7);
                    trial_null_row(&trial, 1);
                }
                if (form == 2) trial.indices[0] = 2;
                trial_fill_all(&trial, 700, TRIAL_NORMAL);
                trial_run(&trial, NULL, NULL);
                trial_expect(&trial, "one token");
                trial_close(&trial);
            }
}

static void r07_softplus(void **state)
{
    (void)state;
    static const int32_t slots[] = {1, 3, 5, 7, 8, 10, 11};
    struct suite_family family = need(KDA_GATE_SOFTPLUS, 1);
    for (int64_t h = 1; h <= suite_size(4, 32); h *= 2)
        for (int form = 0; form < 4; form++) {
            struct trial trial = trial_of(&family, 7, h, h);
            trial.beta_is_logit = form & 1;
            trial.num_slots = 12;
            trial.slices = true;
            trial.qkv_pad = 64;
            trial.gate_pad = 8;
            trial.beta_pad = 32;
            trial.shift[TRIAL_BETA] = 8;
            trial.slot_pad = 8;
            trial_open(&trial);
            memcpy(trial.indices, slots, sizeof slots);
            if (form & 2) trial.indices[3] = trial.indices[6] = -1;
            trial_fill_all(&trial, 800, TRIAL_NORMAL);
            trial.a_log[0] = (float)log(16);
            for (int64_t n = 0; n < trial.rows; n++)
                for (int64_t c = 0; c < h * ORACLE_D && oracle_live(&trial.call, n); c += 8)
                    trial_at(&trial, TRIAL_G, n, 0)[c] = oracle_bf16(c % 16 ? -30 : 30);
            trial_run(&trial, NULL, NULL);
            trial_expect(&trial, "softplus");
            trial_close(&trial);
        }
}

static void r08_null_rows_read_nothing(void **state)
{
    (void)state;
    static const int32_t slots[] = {-1, 3, -7, INT_MIN, 6, INT_MAX};
    struct suite_family all[SUITE_FAMILIES];
    int count = families(all);
    for (int i = 0; i < count; i++) {
        if (all[i].tokens != 1) continue;
        struct trial trial = trial_of(&all[i], 6, heads(), value_heads()), alone = trial;
        trial.num_slots = alone.num_slots = 6;
        alone.rows = 1;
        trial_open(&trial);  // every slot and every input is NaN until it is filled
        trial_open(&alone);
        memcpy(trial.indices, slots, sizeof slots);
        alone.indices[0] = 3;
        trial_fill(&trial, 1, 900, TRIAL_NORMAL);
        trial_fill(&alone, 0, 900, TRIAL_NORMAL);
        trial_run(&trial, NULL, NULL);
        trial_run(&alone, NULL, NULL);
        trial_expect(&trial, "null rows");
        assert_true(trial_same_row(&trial, 1, &alone, 0));
        trial_close(&trial);
        trial_close(&alone);
    }
}

// --------------------------------------------------------------------------------------- R9 to R11

static void r09_absent_tokens_one(void **state)
{
    (void)state;
    static const int32_t lens[][3] = {{0, 2, 2}, {0, 1, 2}, {-3, 1, 2},
                                      {2, 1, 2}, {0, 0, 1}, {INT_MAX, INT_MIN, 5}};
    struct suite_family all[SUITE_FAMILIES];
    int count = families(all);
    for (int i = 0; i < count; i++) {
        struct suite_image images[SUITE_IMAGES];
        int image_count = all[i].tokens == 1 ? suite_images(&all[i], NULL, images) : 0;
        for (int j = 0; j < image_count; j++)
            for (size_t k = 0; k < sizeof lens / sizeof *lens; k++) {
                struct trial trial = trial_of(&all[i], 2, heads(), value_heads());
                trial.cu_form = true;
                trial_open(&trial);
                memcpy(trial.cu, lens[k], sizeof lens[k]);
                trial_fill_all(&trial, 1000, TRIAL_NORMAL);
                trial_upload(&trial);
                direct_launch(&trial, &images[j]);
                trial_download(&trial);
                trial_expect(&trial, images[j].body);
                trial_close(&trial);
            }
    }
}

static void r09_absent_tokens_several(void **state)
{
    (void)state;
    struct suite_family all[SUITE_FAMILIES];
    int count = families(all), ran = 0;
    for (int i = 0; i < count; i++) {
        int32_t t = all[i].tokens;
        const int32_t lens[][4] = {{0, t, t, 2 * t},
                                   {0, t, 2 * t - 1, 2 * t},
                                   {0, t, 2 * t, 3 * t},
                                   {0, t, 2 * t + 1, 3 * t},
                                   {-3, t, 2, t + 2},
                                   {0, t, 3 * t, 5 * t},
                                   {INT_MAX, INT_MIN, t, 2 * t},
                                   {0, 2, 2, t + 2}};
        for (size_t k = 0; t > 1 && k < sizeof lens / sizeof *lens; k++) {
            struct trial trial = trial_of(&all[i], 3, heads(), value_heads());
            trial.cu_form = true;
            trial_open(&trial);
            for (int64_t n = 0; n <= trial.rows; n++) trial.cu[n] = lens[k][n < 3 ? n : 3];
            accept_mix(&trial);
            trial_fill_all(&trial, 1100, TRIAL_NORMAL);
            trial_run(&trial, NULL, NULL);
            trial_expect(&trial, "absent tokens");
            trial_close(&trial);
            ran++;
        }
    }
    if (!ran) suite_skip("the bundle has no body of several tokens");
}

enum form { FORM_ACCEPTED_OMITTED, FORM_ACCEPTED, FORM_PACKED, FORM_INDICES_OMITTED };

static struct trial run_form(const struct suite_family *family, enum form form, int32_t accepted)
{
    struct trial trial = trial_of(family, 2, heads(), value_heads());
    trial.no_accepted = form == FORM_ACCEPTED_OMITTED;
    trial.no_indices = form == FORM_INDICES_OMITTED;
    trial.cu_form = form == FORM_PACKED;
    trial_open(&trial);
    // The start column differs between the forms; all of them get the same states.
    trial_fill_all(&trial, 1200, TRIAL_NORMAL);
    for (int64_t slot = 0; slot < trial.num_slots; slot++)
        for (int64_t i = 0; i < trial.value_heads * ORACLE_HEAD; i++)
            trial_slot(&trial, slot, 0)[i] =
                oracle_bf16((double)((i * 7 + slot * 13) % 29 - 14) / 9);
    for (int64_t n = 0; trial.accepted && n < trial.rows; n++) trial.accepted[n] = accepted;
    trial_run(&trial, NULL, NULL);
    return trial;
}

static void r10_equal_forms(void **state)
{
    (void)state;
    struct suite_family all[SUITE_FAMILIES];
    int count = families(all);
    for (int i = 0; i < count; i++) {
        int32_t t = all[i].tokens;
        struct trial one = run_form(&all[i], FORM_ACCEPTED, 1),
                     full = run_form(&all[i], FORM_ACCEPTED, t);
        const struct {
            enum form form;
            int32_t accepted;
            const struct trial *like;
        } equals[] = {
            {FORM_ACCEPTED_OMITTED, 0, &one}, {FORM_ACCEPTED, 0, &one},
            {FORM_ACCEPTED, -5, &one},        {FORM_ACCEPTED, t + 7, &full},
            {FORM_ACCEPTED, INT_MAX, &full},  {FORM_ACCEPTED, INT_MIN, &one},
            {FORM_INDICES_OMITTED, 1, &one},  {FORM_PACKED, 1, &one},
        };
        for (size_t k = 0; k < sizeof equals / sizeof *equals; k++) {
            if (equals[k].form == FORM_PACKED && t == 1) continue;
            struct trial trial = run_form(&all[i], equals[k].form, equals[k].accepted);
            if (!trial_same(&trial, equals[k].like))
                fail_msg("T = %d: equality %zu does not hold", (int)t, k);
            trial_close(&trial);
        }
        assert_true(trial_same(&one, &full) == (t == 1));
        trial_close(&one);
        trial_close(&full);
    }
}

static void r10_all_null_on_one_slot(void **state)
{
    (void)state;
    static const int32_t nulls[] = {-1, 1, INT_MIN, INT_MAX, 2};
    struct suite_family all[SUITE_FAMILIES];
    int count = families(all);
    for (int i = 0; i < count; i++) {
        struct trial trial = trial_of(&all[i], 5, heads(), value_heads());
        trial.num_slots = 1;
        trial_open(&trial);
        for (int64_t j = 0; j < trial.call.tok; j++) trial.indices[j] = nulls[j % 5];
        trial_run(&trial, NULL, NULL);
        trial_expect(&trial, "all null");
        trial_close(&trial);
    }
}

static void r10_slots_inside_a_row(void **state)
{
    (void)state;
    struct suite_family all[SUITE_FAMILIES];
    int count = families(all), ran = 0;
    for (int i = 0; i < count; i++) {
        int32_t t = all[i].tokens;
        if (t == 1) continue;
        // A duplicate, a null in the middle, a null start of a live row, and all but the last null.
        for (int form = 0; form < 4; form++) {
            struct trial trial = trial_of(&all[i], 2, heads(), value_heads());
            trial_open(&trial);
            int32_t *row = trial.indices;
            if (form == 0) row[t - 1] = row[0];
            if (form == 1) row[t / 2] = -1;
            if (form == 2) row[0] = (int32_t)trial.num_slots;
            if (form == 3)
                for (int32_t j = 0; j < t - 1; j++) row[j] = -1 - j;
            trial_fill_all(&trial, 1300, TRIAL_NORMAL);
            trial_run(&trial, NULL, NULL);
            trial_expect(&trial, "slots inside a row");
            trial_close(&trial);
            ran++;
        }
    }
    if (!ran) suite_skip("the bundle has no body of several tokens");
}

static void overwrite(const struct trial *trial, enum trial_tensor tensor, double value)
{
    bool scalar = tensor == TRIAL_BETA, narrow = tensor == TRIAL_Q || tensor == TRIAL_K;
    int64_t width = (narrow ? trial->heads : trial->value_heads) * (scalar ? 1 : ORACLE_D);
    for (int64_t token = 0; token < trial->call.tok; token++)
        for (int64_t c = 0; c < width; c++)
            trial_at(trial, tensor, token, 0)[c] = oracle_bf16(value);
}

static void r11_extreme_values(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        enum trial_data data;
        enum trial_tensor tensor;
        double value;
        bool precomputed_only;
    } cases[] = {
        {"strong decay", TRIAL_STRONG, TRIAL_TENSORS, 0, true},
        {"mixed decay", TRIAL_MIXED, TRIAL_TENSORS, 0, true},
        {"g = 0", TRIAL_NORMAL, TRIAL_G, 0, false},
        {"g = -10000", TRIAL_STRONG, TRIAL_G, -1e4, false},
        {"g = -88", TRIAL_STRONG, TRIAL_G, -88, false},
        {"g = -5", TRIAL_NORMAL, TRIAL_G, -5, false},
        {"beta = 0", TRIAL_NORMAL, TRIAL_BETA, 0, false},
        {"beta = 1", TRIAL_NORMAL, TRIAL_BETA, 1, false},
        {"q = 0", TRIAL_NORMAL, TRIAL_Q, 0, false},
        {"k = 0", TRIAL_NORMAL, TRIAL_K, 0, false},
        {"v = 0", TRIAL_NORMAL, TRIAL_V, 0, false},
    };
    struct suite_family all[SUITE_FAMILIES];
    int count = families(all);
    for (int i = 0; i < count; i++)
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
            if (cases[k].precomputed_only && all[i].gate != KDA_GATE_PRECOMPUTED) continue;
            struct trial trial = trial_of(&all[i], 2, heads(), value_heads());
            trial.any_floor = cases[k].tensor != TRIAL_TENSORS;
            trial_open(&trial);
            trial_fill_all(&trial, 1400, cases[k].data);
            if (cases[k].tensor != TRIAL_TENSORS)
                overwrite(&trial, cases[k].tensor, cases[k].value);
            trial_run(&trial, NULL, NULL);
            trial_expect(&trial, cases[k].what);
            trial_close(&trial);
        }
}

// One key for all tokens of a row, which each of them replaces whole: without decay nothing damps
// an error from token to token.
static void r11_repeated_keys(void **state)
{
    (void)state;
    struct suite_family all[SUITE_FAMILIES];
    int count = families(all);
    for (int i = 0; i < count; i++) {
        if (all[i].tokens == 1) continue;
        struct trial trial = trial_of(&all[i], 2, heads(), value_heads());
        trial_open(&trial);
        trial_fill_all(&trial, 1450, TRIAL_NORMAL);
        const size_t key = (size_t)(trial.heads * ORACLE_D) * sizeof(uint16_t);
        for (int64_t n = 0; n < trial.rows; n++)
            for (int32_t t = 1; t < trial.tokens; t++)
                memcpy(trial_at(&trial, TRIAL_K, n * trial.tokens + t, 0),
                       trial_at(&trial, TRIAL_K, n * trial.tokens, 0), key);
        overwrite(&trial, TRIAL_BETA, 1);
        if (trial.gate == KDA_GATE_PRECOMPUTED) overwrite(&trial, TRIAL_G, 0);
        trial_run(&trial, NULL, NULL);
        trial_expect(&trial, "repeated keys");
        trial_close(&trial);
    }
}

static void r11_growing_gate(void **state)
{
    (void)state;
    static const double gates[] = {0.5, 20, 50};
    struct suite_family all[SUITE_FAMILIES];
    int count = families(all);
    for (int i = 0; i < count; i++) {
        if (all[i].gate != KDA_GATE_PRECOMPUTED) continue;
        for (int k = 0; k < 3; k++) {
            struct trial trial = trial_of(&all[i], 2, heads(), value_heads());
            trial.finite_only = true;
            trial_open(&trial);
            trial_fill_all(&trial, 1500, TRIAL_NORMAL);
            overwrite(&trial, TRIAL_G, 0);
            for (int64_t n = 0; n < 2; n++) {
                memset(trial_slot(&trial, n * trial.tokens, 0), 0,
                       (size_t)(trial.value_heads * ORACLE_HEAD) * 2);
                for (int32_t t = 0; t < trial.tokens && t < 2; t++)
                    for (int64_t c = 0; c < trial.value_heads * ORACLE_D; c++)
                        trial_at(&trial, TRIAL_G, n * trial.tokens + t, 0)[c] =
                            oracle_bf16(gates[k]);
            }
            trial_run(&trial, NULL, NULL);
            trial_expect(&trial, "growing gate");
            trial_close(&trial);
        }
    }
}

// A zero q gives zeros whatever the scale; where a norm overflows, results are finite.
static void r11_zero_vectors_and_large_ones(void **state)
{
    (void)state;
    static const struct {
        double q, k;
        float scale;
    } cases[] = {{0, 1, 3.5e35f}, {0.01, 3e38, 1.0f}, {3e38, 0.01, 1.0f}, {3e38, 3e38, 1.0f}};
    struct suite_family all[SUITE_FAMILIES];
    int count = families(all);
    for (int i = 0; i < count; i++)
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
            struct trial trial = trial_of(&all[i], 1, heads(), value_heads());
            trial.any_floor = k == 0;
            trial.finite_only = k > 0;
            trial.scale = cases[k].scale;
            trial_open(&trial);
            trial_fill_all(&trial, 1550, TRIAL_NORMAL);
            overwrite(&trial, TRIAL_Q, cases[k].q);
            overwrite(&trial, TRIAL_K, cases[k].k);
            trial_run(&trial, NULL, NULL);
            trial_expect(&trial, "zero vectors and large ones");
            trial_close(&trial);
        }
}

// ---------------------------------------------------------------------------------------- R12, R13

static void run_huge(struct trial *trial)
{
    size_t bytes =
        (size_t)(trial->num_slots * (trial->value_heads * ORACLE_HEAD + trial->slot_pad)) * 2 +
        (size_t)(trial->rows * trial->tokens * (trial->value_heads * ORACLE_D + trial->gate_pad)) *
            2;
    assert_true(bytes / 2 > (1ull << 31));
    if (!suite.machine.soft && machine_free_memory(&suite.machine) < bytes + (1u << 30))
        suite_skip("the device has less than %zu bytes free", bytes);
    trial_open(trial);
    int64_t last = trial->num_slots - 1;
    trial->held_count = 4;  // the slots at both ends: where an index that wraps would land
    memcpy(trial->held, (int64_t[]){0, 1, last - 1, last}, 4 * sizeof *trial->held);
    for (int32_t t = 0; t < trial->tokens; t++) trial->indices[t] = (int32_t)last;
    for (int64_t n = 1; n < trial->rows; n++) trial_null_row(trial, n);
    for (int i = 0; i < 4; i++)
        for (int64_t j = 0; j < trial->slot_stride; j++)
            trial_slot(trial, trial->held[i], 0)[j] = ORACLE_POISON;
    if (trial->gate_pad && trial->rows > 1) {  // the token far out is the one that counts
        for (int32_t t = 0; t < trial->tokens; t++)
            trial->indices[(trial->rows - 1) * trial->tokens + t] = (int32_t)last;
        trial_null_row(trial, 0);
    }
    trial_fill_all(trial, 1600, TRIAL_NORMAL);
    trial_run(trial, NULL, NULL);
    trial_expect(trial, "huge");
    trial_close(trial);
}

static void r12_pool_beyond_2_31(void **state)
{
    (void)state;
    // The last has more than 2^32 elements: there an unsigned 32-bit product would wrap as well.
    static const struct {
        int64_t heads, slots, pad;
    } pools[] = {{32, 4097, 0}, {32, 3972, 16384}, {12, 10923, 0}, {12, 12000, 0}, {32, 8193, 0}};
    struct suite_family all[SUITE_FAMILIES];
    int count = families(all);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < (all[i].tokens == 1 ? 5 : 1); k++) {
            struct trial trial = trial_of(&all[i], 1, pools[k].heads, pools[k].heads);
            trial.num_slots = pools[k].slots * pools[k].heads / trial.value_heads;
            trial.slot_pad = pools[k].pad;
            trial.sparse = true;
            run_huge(&trial);
        }
}

static void r12_gate_beyond_2_31(void **state)
{
    (void)state;
    struct suite_family all[SUITE_FAMILIES];
    int count = families(all);
    for (int i = 0; i < count; i++) {
        struct trial trial = trial_of(&all[i], 2, 2, 2);
        trial.num_slots = 4;
        trial.cu_form = trial.tokens > 1;
        trial.gate_pad = ((INT64_C(1) << 32) / (2 * trial.tokens - 1) + 2048) / 4 * 4;
        trial.sparse = true;
        run_huge(&trial);
    }
}

static void r13_more_than_one_wave(void **state)
{
    (void)state;
    struct suite_family all[SUITE_FAMILIES];
    int count = families(all);
    for (int i = 0; i < count; i++) {
        struct suite_image images[SUITE_IMAGES];
        int image_count = suite_images(&all[i], NULL, images);
        for (int j = 0; j < image_count; j++) {
            // No SM holds more than 32 CTAs or 2048 threads.
            int64_t resident = 2048 / (int64_t)images[j].record->threads;
            if (resident > 32) resident = 32;
            int64_t ctas = resident * suite_size(1, suite.device.sm_count) + 1;
            int64_t per_row = value_heads() * (int64_t)images[j].record->split;
            struct trial trial =
                trial_of(&all[i], (ctas + per_row - 1) / per_row, heads(), value_heads());
            open_mixed(&trial, 1700, TRIAL_NORMAL);
            trial_run(&trial, images[j].body, images[j].target);
            trial_expect(&trial, images[j].body);
            trial_close(&trial);
        }
    }
}

// -------------------------------------------------------------------------------------- R14 to R16

static void r14_replay_equals_eager(void **state)
{
    (void)state;
    struct suite_family all[SUITE_FAMILIES];
    int count = families(all);
    CUstream stream = machine_stream(&suite.machine);
    for (int i = 0; i < count; i++) {
        struct trial eager = trial_of(&all[i], suite_size(3, 16), heads(), value_heads()),
                     replayed = eager;
        open_mixed(&eager, 1800, TRIAL_NORMAL);
        open_mixed(&replayed, 1800, TRIAL_NORMAL);
        trial_upload(&eager);
        for (int k = 0; k < 2; k++) trial_launch(&eager, stream);
        machine_sync(&suite.machine, stream);
        trial_download(&eager);

        trial_upload(&replayed);
        struct machine_graph graph = trial_capture(&replayed, stream);
        assert_int_equal(graph.nodes, 1);  // one launch per call and nothing else
        for (int k = 0; k < 2; k++) {
            trial_clear(&replayed);
            machine_replay(&suite.machine, &graph, stream);
            machine_sync(&suite.machine, stream);
        }
        trial_download(&replayed);
        machine_graph_close(&suite.machine, &graph);
        assert_true(trial_same(&eager, &replayed));
        trial_close(&eager);
        trial_close(&replayed);
    }
    machine_stream_close(&suite.machine, stream);
}

static void r14_replay_one_live_row(void **state)
{
    (void)state;
    struct suite_family all[SUITE_FAMILIES];
    int count = families(all);
    for (int i = 0; i < count; i++)
        replay_one_live_row(&all[i], heads(), value_heads(), suite_size(12, 3000), 100);
}

static void transpose(const struct trial *trial)
{
    for (int64_t slot = 0; slot < trial->num_slots; slot++)
        for (int64_t hv = 0; hv < trial->value_heads; hv++) {
            uint16_t *s = trial_slot(trial, slot, hv);
            for (int r = 0; r < ORACLE_D; r++)
                for (int c = 0; c < r; c++) {
                    uint16_t keep = s[r * ORACLE_D + c];
                    s[r * ORACLE_D + c] = s[c * ORACLE_D + r];
                    s[c * ORACLE_D + r] = keep;
                }
        }
}

static void r15_transposed_state_fails(void **state)
{
    (void)state;
    struct suite_family all[SUITE_FAMILIES];
    int count = families(all);
    for (int i = 0; i < count; i++) {
        struct trial trial = trial_of(&all[i], 2, heads(), value_heads());
        trial_open(&trial);
        trial_fill_all(&trial, 2100, TRIAL_NORMAL);
        transpose(&trial);
        trial_upload(&trial);
        transpose(&trial);
        trial_relaunch(&trial, NULL, NULL);
        trial_download(&trial);
        char why[256];
        assert_false(trial_judge(&trial, why, sizeof why));
        assert_non_null(strstr(why, "norm-relative"));
        trial_close(&trial);
    }
}

// -------------------------------------------------------------------------------- dependent launch

enum rows { ROWS_MIXED, ROWS_RAGGED, ROWS_WILD, ROWS_KINDS };

static struct trial open_rows(const struct suite_family *family, enum rows kind)
{
    static const int32_t wild[] = {INT_MAX, -1, 2,  INT_MIN,
                                   1,       6,  -7, 0};  // 6: there is no such slot
    struct trial trial = trial_of(family, suite_size(3, 16), heads(), value_heads());
    const int32_t t = trial.tokens;
    trial.cu_form = t > 1 && kind == ROWS_RAGGED;
    if (kind == ROWS_MIXED) {
        open_mixed(&trial, 2200, TRIAL_NORMAL);
        return trial;
    }
    trial_open(&trial);
    accept_mix(&trial);
    // With rows that are absent or short, and none that begins in the one before it.
    for (int64_t n = 0; trial.cu_form && n <= trial.rows; n++) {
        const int32_t begin = (int32_t)(n * t - (n % 3 == 1) - (n % 5 == 2 ? t : 0));
        trial.cu[n] = n > 0 && begin < trial.cu[n - 1] ? trial.cu[n - 1] : begin;
    }
    for (int64_t i = 0; kind == ROWS_WILD && i < trial.call.tok; i++)
        trial.indices[i] = i < 8 ? wild[i] == 6 ? (int32_t)trial.num_slots : wild[i] : -1;
    trial_fill_all(&trial, 2200, TRIAL_NORMAL);
    return trial;
}

static void dependent_launches(void **state)
{
    (void)state;
    struct suite_family all[SUITE_FAMILIES];
    int count = families(all);
    for (int i = 0; i < count; i++) {
        struct suite_image images[SUITE_IMAGES];
        int image_count = suite_images(&all[i], NULL, images);
        for (int j = 0; j < image_count; j++)
            for (enum rows kind = 0; kind < ROWS_KINDS; kind++) {
                struct trial plain = open_rows(&all[i], kind), dependent = open_rows(&all[i], kind);
                dependent_expect(&plain, &dependent, &images[j]);
                trial_close(&plain);
                trial_close(&dependent);
            }
    }
}

static void dependent_late_slots(void **state)
{
    (void)state;
    struct suite_family all[SUITE_FAMILIES];
    int count = families(all);
    for (int i = 0; i < count; i++) {
        struct suite_image images[SUITE_IMAGES];
        int image_count = suite_images(&all[i], NULL, images);
        for (int j = 0; j < image_count; j++)
            dependent_expect_late_slots(&all[i], &images[j], heads(), value_heads());
    }
}

static void dependent_null_rows(void **state)
{
    (void)state;
    if (!suite.machine.soft) suite_skip("a GPU does not count prefetches");
    struct suite_family all[SUITE_FAMILIES];
    int count = families(all);
    for (int i = 0; i < count; i++) {
        struct suite_image images[SUITE_IMAGES];
        int image_count = suite_images(&all[i], NULL, images);
        for (int j = 0; j < image_count; j++) {
            struct trial trial = trial_of(&all[i], 4, heads(), value_heads()), alone = trial;
            alone.rows = 1;
            trial_open(&trial);
            trial_open(&alone);
            for (int64_t n = 0; n < trial.rows; n++)
                if (n != trial.rows / 2) trial_null_row(&trial, n);
            trial_fill_all(&trial, 2250, TRIAL_NORMAL);
            trial_fill_all(&alone, 2250, TRIAL_NORMAL);
            const long live = dependent_prefetches(&alone, &images[j]);
            // The direct bodies do nothing before their wait.
            assert_int_equal(live > 0, strstr(images[j].body, "direct") == NULL);
            assert_int_equal(dependent_prefetches(&trial, &images[j]), live);
            for (int64_t n = 0; n < trial.rows; n++) trial_null_row(&trial, n);
            assert_int_equal(dependent_prefetches(&trial, &images[j]), 0);
            trial_close(&trial);
            trial_close(&alone);
        }
    }
}

// ------------------------------------------------------------------------------------------- drift

static void drift_512(void **state)
{
    (void)state;
    struct suite_family family = need(KDA_GATE_PRECOMPUTED, 1);
    struct suite_image images[SUITE_IMAGES];
    int image_count = suite_images(&family, NULL, images);
    for (int i = 0; i < (int)suite_size(1, image_count); i++) {
        struct trial trial = trial_of(&family, 1, suite_size(1, 2), suite_size(1, 4));
        trial_open(&trial);
        trial_fill(&trial, 0, 2300, TRIAL_SMALL);
        size_t elements = (size_t)trial.value_heads * ORACLE_HEAD;
        double *truth = calloc(elements, sizeof *truth), out[ORACLE_D], worst_out = 0,
               worst_state = 0;
        assert_non_null(truth);
        for (size_t j = 0; j < elements; j++) truth[j] = oracle_value(trial_slot(&trial, 0, 0)[j]);
        for (uint64_t step = 1; step <= 512; step++) {
            trial_fill(&trial, 0, 2300 + step, TRIAL_SMALL);
            if (step > 1)
                memcpy(trial_slot(&trial, 0, 0), trial_pool(&trial, 0, 0), elements * 2);
            else
                for (size_t j = 0; j < elements; j++)
                    trial_slot(&trial, 0, 0)[j] = oracle_bf16(truth[j]);
            trial_run(&trial, images[i].body, images[i].target);
            struct oracle_error out_error = {.count = 0}, state_error = {.count = 0};
            for (int64_t hv = 0; hv < trial.value_heads; hv++) {
                oracle_step(&trial.call, 0, hv, truth + hv * ORACLE_HEAD, out);
                oracle_add_many(&out_error, trial_out(&trial, 0) + hv * ORACLE_D, out, ORACLE_D);
            }
            oracle_add_many(&state_error, trial_pool(&trial, 0, 0), truth, (int64_t)elements);
            assert_true(out_error.nonfinite + state_error.nonfinite == 0);
            if (step & (step - 1))
                continue;  // an ideal kernel, too, is off by 4e-3 in a few elements at its worst
                           // step
            worst_out = fmax(worst_out, out_error.max_abs);
            worst_state = fmax(worst_state, state_error.max_abs);
        }
        printf("  %s: steps 1, 2, 4, .., 512: state off by %.3g, output by %.3g at most\n",
               images[i].body, worst_state, worst_out);
        assert_true(worst_state <= 3e-3 && worst_out <= 2e-4);
        free(truth);
        trial_close(&trial);
    }
}

int main(int argc, char **argv)
{
    int status = suite_open(argc, argv);
    if (status != SUITE_GO) return status;
#undef BODY_TEST_RECURRENT
#define BODY_TEST_RECURRENT(name) cmocka_unit_test(body_##name),
#define KDA_SCHEDULE(name, template, op, ...) BODY_TEST_##op(name)
    const struct CMUnitTest tests[] = {
#include "manifest/schedules.inc"
        cmocka_unit_test(r01_checkpoints),
        cmocka_unit_test(r02_route_never_changes_a_bit),
        cmocka_unit_test(r03_batch_invariance),
        cmocka_unit_test(r04_lower_bound),
        cmocka_unit_test(r05_padded_gate_and_slots),
        cmocka_unit_test(r06_one_token),
        cmocka_unit_test(r07_softplus),
        cmocka_unit_test(r08_null_rows_read_nothing),
        cmocka_unit_test(r09_absent_tokens_one),
        cmocka_unit_test(r09_absent_tokens_several),
        cmocka_unit_test(r10_equal_forms),
        cmocka_unit_test(r10_all_null_on_one_slot),
        cmocka_unit_test(r10_slots_inside_a_row),
        cmocka_unit_test(r11_extreme_values),
        cmocka_unit_test(r11_repeated_keys),
        cmocka_unit_test(r11_growing_gate),
        cmocka_unit_test(r11_zero_vectors_and_large_ones),
        cmocka_unit_test(r12_pool_beyond_2_31),
        cmocka_unit_test(r12_gate_beyond_2_31),
        cmocka_unit_test(r13_more_than_one_wave),
        cmocka_unit_test(r14_replay_equals_eager),
        cmocka_unit_test(r14_replay_one_live_row),
        cmocka_unit_test(r15_transposed_state_fails),
        cmocka_unit_test(dependent_launches),
        cmocka_unit_test(dependent_late_slots),
        cmocka_unit_test(dependent_null_rows),
        cmocka_unit_test(drift_512),
    };
    return suite_close(cmocka_run_group_tests_name("recurrent", tests, NULL, NULL));
}
