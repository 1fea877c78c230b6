// SPDX-License-Identifier: Apache-2.0
// The contract of frozen verify, V1 to V9 of CHECKLIST.md, of commit, C1 to C4, and one test for
// every body of both. Bodies of one window length agree bit for bit, whatever their split.
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/window.h"

static const kda_gate gates[] = {KDA_GATE_PRECOMPUTED, KDA_GATE_LOWER_BOUND, KDA_GATE_SOFTPLUS};
enum { GATES = 3 };

static struct suite_family family(kda_op op, kda_gate gate, int32_t tokens)
{
    struct suite_family found;
    if (!suite_family(op, gate, tokens, &found))
        suite_skip("the bundle has no %s body for T = %d",
                   op == KDA_OP_VERIFY ? "verify" : "commit", (int)tokens);
    return found;
}

// A ragged batch: a full row, a null row, and rows of other lengths.
static struct window ragged(kda_gate gate, int32_t tokens, int64_t rows, int64_t heads,
                            int64_t value_heads)
{
    struct window window = window_of(gate, tokens, rows, heads, value_heads);
    window.cu_form = true;
    window.num_slots = rows + 2;
    return window;
}

static void set_ragged(struct window *window, uint64_t key, enum trial_data data)
{
    int32_t lengths[64];
    assert_true(window->rows <= 64);
    for (int64_t n = 0; n < window->rows; n++) {
        lengths[n] = n == 0 ? window->tokens : (int32_t)((n * 5) % (window->tokens + 1));
        window->indices[n] = (int32_t)(window->num_slots - 1 - n);
    }
    if (window->rows > 2) window->indices[2] = -1;
    window_lengths(window, lengths);
    window_fill_all(window, key, data);
}

// Windows of 1, 2, 6 and 16 tokens: each has bodies of its own.
static int32_t next_window(int32_t tokens)
{
    return tokens < 2 ? 2 : tokens < 6 ? 6 : tokens < 16 ? 16 : INT32_MAX;
}

// On a GPU all lengths.
static int32_t next_length(int32_t tokens)
{
    return suite.machine.soft ? next_window(tokens) : tokens + 1;
}

static void check_verify(const char *name)
{
    const uint32_t index = kda_bundle_find_body(suite.bundle, name);
    if (index == KDA_NONE) fail_msg("the bundle lacks the body %s", name);
    const struct kda_format_body *body = &suite.bundle->bodies[index];
    const kda_gate gate = (kda_gate)body->gate;
    for (int32_t tokens = (int32_t)body->tokens_min; tokens <= (int32_t)body->tokens_max;
         tokens++) {
        const struct suite_family found = family(KDA_OP_VERIFY, gate, tokens);
        struct suite_image images[SUITE_IMAGES];
        const int count = suite_images(&found, name, images);
        if (!count) fail_msg("no image of %s runs on this device", name);
        for (int i = 0; i < count; i++) {
            if (suite.machine.soft && i > 0 && tokens < (int32_t)body->tokens_max) break;
            struct window window = ragged(gate, tokens, suite_size(4, 17), 1, 2);
            window.beta_is_logit = tokens % 2;
            window_open(&window);
            set_ragged(&window, 11, TRIAL_NORMAL);
            window_verify(&window, name, images[i].target);
            window_expect(&window, images[i].target);
            window_close(&window);
        }
    }
}

static void check_commit(const char *name)
{
    const uint32_t index = kda_bundle_find_body(suite.bundle, name);
    if (index == KDA_NONE) fail_msg("the bundle lacks the body %s", name);
    const struct suite_family found =
        family(KDA_OP_COMMIT, (kda_gate)suite.bundle->bodies[index].gate, 1);
    struct suite_image images[SUITE_IMAGES];
    const int count = suite_images(&found, name, images);
    if (!count) fail_msg("no image of %s runs on this device", name);
    for (int i = 0; i < count; i++) {
        struct window window = window_of(found.gate, 16, suite_size(6, 17), 1, 2);
        window.num_slots = window.rows + 1;
        window.cache_tokens = 19;
        window_open(&window);
        for (int64_t n = 0; n < window.rows; n++) window.accepted[n] = (int32_t)(n * 4 % 20);
        window_fill_caches(&window, 12);
        window_upload(&window);
        window_commit(&window, name, images[i].target);
        window_expect_commit(&window, false, images[i].target);
        window_close(&window);
    }
}

#define BODY_TEST(name, check)                                                                     \
    static void body_##name(void **state)                                                          \
    {                                                                                              \
        (void)state;                                                                               \
        check(#name);                                                                              \
    }
#define BODY_TEST_RECURRENT(name)
#define BODY_TEST_PACKED(name)
#define BODY_TEST_FUSED(name)
#define BODY_TEST_VERIFY(name) BODY_TEST(name, check_verify)
#define BODY_TEST_COMMIT(name) BODY_TEST(name, check_commit)
#define KDA_SCHEDULE(name, template, op, ...) BODY_TEST_##op(name)
#include "manifest/schedules.inc"
#undef KDA_SCHEDULE

// ------------------------------------------------------------------------------------------ verify

static void v1_shapes(void **state)
{
    (void)state;
    static const struct {
        int64_t rows;
        int32_t tokens;
        int64_t heads, value_heads;
    } shapes[] = {{1, 1, 2, 2}, {2, 4, 4, 4},    {3, 8, 4, 4},
                  {2, 5, 2, 4}, {2, 16, 12, 12}, {17, 16, 4, 4}};
    const size_t count = sizeof shapes / sizeof *shapes;
    for (size_t i = 0; i < count; i++)
        for (int g = 0; g < GATES; g++)
            for (int32_t logit = 0; logit < 2; logit++) {
                const bool small = suite.machine.soft;
                struct window window = window_of(
                    gates[g], shapes[i].tokens, small && i > 3 ? 1 : shapes[i].rows,
                    small ? 1 : shapes[i].heads,
                    small ? shapes[i].value_heads / shapes[i].heads : shapes[i].value_heads);
                window.beta_is_logit = logit;
                window_open(&window);
                window_fill_all(&window, 100, TRIAL_NORMAL);
                window_verify(&window, NULL, NULL);
                window_expect(&window, "shape");
                window_close(&window);
            }
}

// Where recurrent decode takes the call, both are within the limits of one oracle, so they are
// close.
static void v1_every_length(void **state)
{
    (void)state;
    for (int g = 0; g < GATES; g++)
        for (int32_t tokens = 1; tokens <= WINDOW_MOST; tokens++) {
            struct window window = window_of(gates[g], tokens, suite_size(1, 9), 1, 1);
            window_open(&window);
            window_fill_all(&window, 150, TRIAL_NORMAL);
            window_verify(&window, NULL, NULL);
            window_expect(&window, "length");
            window_close(&window);
        }
}

static void v1_splits_agree(void **state)
{
    (void)state;
    for (int g = 0; g < GATES; g++)
        for (int32_t tokens = 1; tokens <= WINDOW_MOST; tokens = next_length(tokens)) {
            const struct suite_family found = family(KDA_OP_VERIFY, gates[g], tokens);
            struct suite_image images[SUITE_IMAGES];
            const int count = suite_images(&found, NULL, images);
            struct window first = window_of(gates[g], tokens, suite_size(1, 9), 1, 2),
                          other = first;
            window_open(&first);
            window_fill_all(&first, 170, TRIAL_NORMAL);
            window_verify(&first, images[0].body, images[0].target);
            window_open(&other);
            window_fill_all(&other, 170, TRIAL_NORMAL);
            for (int i = 1; i < count; i++) {
                window_verify(&other, images[i].body, images[i].target);
                for (int64_t n = 0; n < first.rows; n++)
                    if (!window_same_row(&first, n, &other, n))
                        fail_msg("%s and %s %s differ, T = %d", images[0].body, images[i].body,
                                 images[i].target, (int)tokens);
            }
            window_close(&first);
            window_close(&other);
        }
}

static void v2_nulls_and_ragged_rows(void **state)
{
    (void)state;
    static const int32_t lengths[] = {5, 1, 3, 0, 2, 16, 8, 4};
    for (int g = 0; g < GATES; g++)
        for (int32_t null_min = 0; null_min < 2; null_min++)
            for (int32_t tokens = 1; tokens <= 16; tokens = next_window(tokens)) {
                struct window window = window_of(gates[g], tokens, 8, 1, 2);
                const int32_t slots[] = {3, 2, -1, 1, 5, 0, INT_MIN, INT_MAX};
                int32_t cut[8];
                window.cu_form = true;
                window.num_slots = 5;
                window.null_min = null_min;
                window_open(&window);
                memcpy(window.indices, slots, sizeof slots);
                for (int n = 0; n < 8; n++) cut[n] = lengths[n] < tokens ? lengths[n] : tokens;
                window_lengths(&window, cut);
                window_fill_all(&window, 200, TRIAL_NORMAL);
                window_verify(&window, NULL, NULL);
                window_expect(&window, "nulls and ragged rows");
                window_close(&window);
            }
}

// Where tokens do not exist: backwards, past the end, beyond 32 bits.
static void v2_absent_tokens(void **state)
{
    (void)state;
    static const int32_t cus[][4] = {{6, 10, 4, 4}, {-1, 4, 8, 12},     {8, 10, 12, 99},
                                     {0, 0, 0, 12}, {4, 4, INT_MAX, 4}, {INT_MIN, 3, 7, INT_MAX}};
    for (int32_t tokens = 2; tokens <= 4; tokens += 2)
        for (size_t i = 0; i < sizeof cus / sizeof *cus; i++) {
            struct window window = window_of(KDA_GATE_PRECOMPUTED, tokens, 3, 1, 1);
            window.cu_form = true;
            window_open(&window);
            for (int n = 0; n < 4; n++) {  // of rows of four tokens, or of half as many
                const int begin = cus[i][n];
                window.cu[n] = begin < 0 || begin == INT_MAX ? begin : begin * tokens / 4;
            }
            window_fill_all(&window, 250, TRIAL_NORMAL);
            window_verify(&window, NULL, NULL);
            window_expect(&window, "absent tokens");
            window_close(&window);
        }
}

static void v3_same_bits_everywhere(void **state)
{
    (void)state;
    for (int g = 0; g < GATES; g++)
        for (int32_t tokens = 1; tokens <= 16; tokens = next_window(tokens)) {
            struct window alone = window_of(gates[g], tokens, 1, 1, 2);
            window_open(&alone);
            window_fill(&alone, 0, 300, TRIAL_NORMAL);
            window_verify(&alone, NULL, NULL);
            window_expect(&alone, "alone");
            for (int form = 0; form < 6; form++) {
                const int64_t rows = form == 5 ? suite_size(5, 150) : 3;
                struct window batch = window_of(gates[g], tokens, rows, 1, 2);
                batch.num_slots = rows + 3;
                batch.slot_pad = form * 128;
                batch.cu_form = form % 2;
                batch.no_caches = form == 2;
                batch.token_pad[WINDOW_Q] = batch.token_pad[WINDOW_V] = form == 3;
                batch.token_pad[WINDOW_K] = batch.token_pad[WINDOW_G] = form == 4 ? 3 : 0;
                batch.shift[WINDOW_OUT] = batch.shift[WINDOW_KG] = form == 4;
                window_open(&batch);
                for (int64_t n = 0; n < rows; n++)
                    batch.indices[n] = (int32_t)(n == form % 3 ? rows + 2 : n);
                for (int64_t n = 0; n < rows; n++)
                    if (n % 4 == 3) batch.indices[n] = -1;
                window_fill_all(&batch, 310, TRIAL_NORMAL);
                window_fill(&batch, form % 3, 300, TRIAL_NORMAL);
                window_verify(&batch, NULL, NULL);
                if (!window_same_row(&alone, 0, &batch, form % 3))
                    fail_msg("T = %d, form %d: the row differs", (int)tokens, form);
                window_close(&batch);
            }
            window_close(&alone);
        }
}

static void set_gate(struct window *window, double gl)
{
    for (int64_t token = 0; token < window->call.tok; token++)
        for (int64_t c = 0; c < window->value_heads * ORACLE_D; c++)
            window_at(window, WINDOW_G, token, 0)[c] = oracle_bf16(gl);
}

// Gates that decay little where a token is and much where the raw gate is zero, as it would be of
// one that is not there.
static void set_bias(struct window *window)
{
    window->a_log[0] = 0.0f;
    for (int c = 0; c < ORACLE_D; c++) window->dt_bias[c] = 12.0f + (float)c / 100;
    set_gate(window, -12.0);
}

// Within one implementation a row does not see how long the window could have been.
static void v3_window_length(void **state)
{
    (void)state;
    static const struct {
        int32_t length, window;
    } pairs[] = {{3, 8}, {7, 16}, {10, 13}, {12, 16}};
    // The last turn is of the softplus gate, whose decays a bias can raise without bound.
    for (int g = 0; g <= GATES; g++)
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
            const kda_gate gate = g < GATES ? gates[g] : KDA_GATE_SOFTPLUS;
            struct window narrow = window_of(gate, pairs[i].length, 1, 1, 1),
                          wide = window_of(gate, pairs[i].window, 1, 1, 1);
            narrow.cu_form = wide.cu_form = true;
            window_open(&narrow);
            window_open(&wide);
            window_lengths(&wide, &pairs[i].length);
            window_fill(&narrow, 0, 350, TRIAL_NORMAL);
            window_fill(&wide, 0, 350, TRIAL_NORMAL);
            if (g == GATES) {
                set_bias(&narrow);
                set_bias(&wide);
            }
            window_verify(&narrow, NULL, NULL);
            window_verify(&wide, NULL, NULL);
            if (!window_same_row(&narrow, 0, &wide, 0))
                fail_msg("%d tokens in a window of %d differ", (int)pairs[i].length,
                         (int)pairs[i].window);
            window_close(&narrow);
            window_close(&wide);
        }
}

static void v4_caches(void **state)
{
    (void)state;
    static const struct {
        int64_t rows;
        int32_t tokens;
        int64_t lines, pad;
    } shapes[] = {{2, 8, 8, 0}, {3, 16, 16, 4}, {2, 5, 9, 8}, {2, 1, 16, 4}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int g = 0; g < GATES; g++) {
            struct window window =
                ragged(gates[g], shapes[i].tokens, shapes[i].rows, 1, suite_size(2, 4));
            window.cache_tokens = shapes[i].lines;
            window.cache_pad = shapes[i].pad;
            window.shift[WINDOW_KG] = (int64_t)i;
            window_open(&window);
            set_ragged(&window, 400, TRIAL_NORMAL);
            window_verify(&window, NULL, NULL);
            window_expect(&window, "caches");
            window_close(&window);
        }
}

// A row that is longer than the window is cut there.
static void v4_row_longer_than_the_window(void **state)
{
    (void)state;
    for (int32_t tokens = 1; tokens <= 16; tokens = next_window(tokens)) {
        struct window window = window_of(KDA_GATE_PRECOMPUTED, tokens, 2, 1, 1);
        window.cu_form = true;
        window_open(&window);
        window.cu[1] = 2 * tokens;  // the second row has none
        window_fill(&window, 0, 450, TRIAL_NORMAL);
        window_verify(&window, NULL, NULL);
        window_expect(&window, "cut");
        window_close(&window);
    }
}

static void v5_beta(void **state)
{
    (void)state;
    for (int32_t tokens = 1; tokens <= 16; tokens = next_window(tokens))
        for (int32_t logit = 0; logit < 2; logit++) {
            struct window window = window_of(KDA_GATE_PRECOMPUTED, tokens, 2, 1, 1);
            window.beta_is_logit = logit;
            window_open(&window);
            window_fill_all(&window, 500, TRIAL_NORMAL);
            for (int64_t token = 0; token < window.call.tok; token++)
                *window_at(&window, WINDOW_BETA, token, 0) =
                    oracle_bf16(logit ? (double)(token % 5 - 2) * 40 : (double)(token % 3) / 2);
            window_verify(&window, NULL, NULL);
            window_expect(&window, "beta");
            window_close(&window);
        }
}

static void v6_verify_then_commit(void **state)
{
    (void)state;
    for (int g = 0; g < GATES; g++)
        for (int32_t tokens = 1; tokens <= 16; tokens = next_length(tokens)) {
            struct window window = window_of(gates[g], tokens, tokens + 1, 1, suite_size(1, 2));
            window.beta_is_logit = g == 1;
            window.no_bias = g == 2;
            window_open(&window);
            for (int32_t a = 0; a <= tokens; a++) window.accepted[a] = a;
            window_fill_all(&window, 600, TRIAL_NORMAL);
            window_verify(&window, NULL, NULL);
            window_expect(&window, "verify");
            window_adopt(&window);
            window_commit(&window, NULL, NULL);
            window_expect_commit(&window, true, "commit after verify");
            window_close(&window);
        }
}

static void run_hazard(struct window *window, const char *what)
{
    window_verify(window, NULL, NULL);
    window_expect(window, what);
    window_adopt(window);
    window_commit(window, NULL, NULL);
    window_expect_commit(window, true, what);
    window_close(window);
}

static void v7_strong_decay(void **state)
{
    (void)state;
    // On both sides of what the closed form takes at once, 60 bits in 8 tokens, and a growing one.
    static const double decays[] = {-20, -50, -1e4, 0, -5.15625, -5.21875, 0.25};
    for (int32_t tokens = 1; tokens <= 16; tokens = next_window(tokens))
        for (size_t i = 0; i < sizeof decays / sizeof *decays; i++) {
            struct window window = window_of(KDA_GATE_PRECOMPUTED, tokens, 2, 1, 1);
            window.any_floor = true;
            window_open(&window);
            window_fill_all(&window, 700, TRIAL_NORMAL);
            set_gate(&window, decays[i]);
            run_hazard(&window, "decay");
        }
    for (int data = TRIAL_STRONG; data <= TRIAL_MIXED; data++) {
        struct window window = window_of(KDA_GATE_PRECOMPUTED, 16, 2, 1, 1);
        window.any_floor = true;
        window_open(&window);
        window_fill_all(&window, 710, (enum trial_data)data);
        run_hazard(&window, "mixed decay");
    }
}

static void v7_gates_in_the_kernel(void **state)
{
    (void)state;
    for (int32_t tokens = 1; tokens <= 16; tokens = next_window(tokens)) {
        static const float bounds[] = {-5.0f, -5.25f, -50.0f};
        for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
            struct window bound = window_of(KDA_GATE_LOWER_BOUND, tokens, 2, 1, 1);
            bound.lower_bound = bounds[i];
            bound.any_floor = true;
            window_open(&bound);
            window_fill_all(&bound, 720, TRIAL_NORMAL);
            set_gate(&bound, 30);  // the bound is reached in every channel
            run_hazard(&bound, "bound reached");
        }

        struct window soft = window_of(KDA_GATE_SOFTPLUS, tokens, 2, 1, 1);
        soft.any_floor = true;
        window_open(&soft);
        soft.a_log[0] = 2.7725887f;  // log 16
        window_fill_all(&soft, 730, TRIAL_NORMAL);
        for (int64_t token = 0; token < soft.call.tok; token++)
            for (int c = 0; c < ORACLE_D; c++)
                if (c % 3)
                    window_at(&soft, WINDOW_G, token, 0)[c] = oracle_bf16(c % 3 == 1 ? 100 : -60);
        run_hazard(&soft, "softplus limits");
    }
}

static void v7_repeated_keys(void **state)
{
    (void)state;
    for (int32_t tokens = 1; tokens <= 16; tokens = next_window(tokens)) {
        struct window window = window_of(KDA_GATE_PRECOMPUTED, tokens, 2, 1, 1);
        window.any_floor = true;
        window_open(&window);
        window_fill_all(&window, 740, TRIAL_NORMAL);
        set_gate(&window, 0);
        for (int64_t token = 0; token < window.call.tok; token++) {
            memcpy(window_at(&window, WINDOW_K, token, 0), window_at(&window, WINDOW_K, 0, 0),
                   ORACLE_D * 2);
            *window_at(&window, WINDOW_BETA, token, 0) = oracle_bf16(1);
        }
        run_hazard(&window, "repeated keys");
    }
}

static void v7_zero_vectors(void **state)
{
    (void)state;
    for (int32_t tokens = 1; tokens <= 16; tokens = next_window(tokens)) {
        struct window window = window_of(KDA_GATE_PRECOMPUTED, tokens, 1, 1, 1);
        window.any_floor = true;
        window_open(&window);
        window_fill_all(&window, 750, TRIAL_NORMAL);
        memset(window_at(&window, WINDOW_K, 0, 0), 0, ORACLE_D * 2);
        memset(window_at(&window, WINDOW_Q, tokens - 1, 0), 0, ORACLE_D * 2);
        run_hazard(&window, "zero vectors");
    }
}

// Of q and k, in turn: norms that vanish beside their epsilon, large ones, and squares that
// overflow, where results are finite and no more is asked.
static void v7_norms(void **state)
{
    (void)state;
    static const double sizes[] = {0x1p-60, 0x1p40, 0x1p60, 0x1p125};
    for (int32_t tokens = 1; tokens <= 16; tokens = next_window(tokens))
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (int j = 0; j < 2 * GATES; j++) {
                const enum window_tensor tensor = j % 2 ? WINDOW_Q : WINDOW_K;
                struct window window = window_of(gates[j / 2], tokens, 1, 1, 1);
                window.any_floor = true;
                window.finite_only = sizes[i] > 0x1p60;
                window_open(&window);
                window_fill_all(&window, 770, TRIAL_NORMAL);
                uint16_t *channels = window_at(&window, tensor, tokens - 1, 0);
                for (int c = 0; c < ORACLE_D; c++)
                    channels[c] = oracle_bf16(oracle_value(channels[c]) * sizes[i]);
                run_hazard(&window, "norms");
            }
}

// Finite where the plain recurrence is: a growing gate over a zero state, the corrections zero.
static void v7_growing_gate(void **state)
{
    (void)state;
    static const double gates_that_grow[] = {50, 88};
    for (int32_t tokens = 1; tokens <= 16; tokens = next_window(tokens))
        for (size_t i = 0; i < sizeof gates_that_grow / sizeof *gates_that_grow; i++) {
            struct window window = window_of(KDA_GATE_PRECOMPUTED, tokens, 1, 1, 1);
            window.finite_only = true;
            window_open(&window);
            window_fill_all(&window, 760, TRIAL_NORMAL);
            memset(window.buffers[WINDOW_STATE].host, 0, ORACLE_HEAD * 2);
            set_gate(&window, gates_that_grow[i]);
            for (int64_t token = 0; token + 1 < window.call.tok; token++)
                memset(window_at(&window, WINDOW_V, token, 0), 0, ORACLE_D * 2);
            run_hazard(&window, "growing gate");
        }
}

// The same over a state. The decays of a token's channels add up to less than 2^115 over the
// window, in both halves of it, in the first or in the second one.
static void v7_growing_gate_over_a_state(void **state)
{
    (void)state;
    static const double gates_that_grow[] = {1.25, 2.5, 3.75, 4.75, 4.96875};
    for (int half = 0; half < 3; half++)
        for (size_t i = 0; i < sizeof gates_that_grow / sizeof *gates_that_grow; i++) {
            struct window window = window_of(KDA_GATE_PRECOMPUTED, 16, 1, 1, 1);
            window.finite_only = true;
            window_open(&window);
            window_fill_all(&window, 765, TRIAL_NORMAL);
            for (int64_t token = 0; token < window.call.tok; token++)
                for (int c = 0; c < ORACLE_D; c++)
                    window_at(&window, WINDOW_G, token, 0)[c] =
                        oracle_bf16(half == 2 || token / 8 == half ? gates_that_grow[i] : 0);
            run_hazard(&window, "growing gate over a state");
        }
}

// All keys are the same unit vector, the state has nothing beside it, and every token corrects it
// whole.
static void keep_one_channel(struct window *window)
{
    uint16_t *rows = window->buffers[WINDOW_STATE].host;
    for (int c = 0; c < ORACLE_HEAD; c++)
        if (c % ORACLE_D) rows[c] = 0;
    for (int64_t token = 0; token < window->call.tok; token++) {
        uint16_t *key = window_at(window, WINDOW_K, token, 0);
        memset(key, 0, ORACLE_D * 2);
        key[0] = oracle_bf16(1);
        *window_at(window, WINDOW_BETA, token, 0) = oracle_bf16(1);
    }
}

// Nor does the state grow where every token corrects what the gate made of the one channel that all
// keys have, whatever the gate: the plain recurrence stays finite, products of decays do not.
static void v7_growing_gate_corrected(void **state)
{
    (void)state;
    static const double gates_that_grow[] = {2, 4.75, 12, 50};
    for (int32_t tokens = 2; tokens <= 16; tokens += tokens == 2 ? 6 : 4)
        for (size_t i = 0; i < sizeof gates_that_grow / sizeof *gates_that_grow; i++) {
            struct window window = window_of(KDA_GATE_PRECOMPUTED, tokens, 1, 1, 1);
            window.finite_only = true;
            window_open(&window);
            window_fill_all(&window, 767, TRIAL_NORMAL);
            set_gate(&window, gates_that_grow[i]);
            keep_one_channel(&window);
            window_verify(&window, NULL, NULL);
            window_expect(&window, "growing gate, corrected");
            window_close(&window);
        }
}

// A growing gate over a state of 2e7, which the first token corrects: what is held must leave it
// room.
static void v7_growing_gate_over_a_large_state(void **state)
{
    (void)state;
    for (int32_t tokens = 1; tokens <= 16; tokens = next_window(tokens)) {
        struct window window = window_of(KDA_GATE_PRECOMPUTED, tokens, 1, 1, 1);
        window.finite_only = true;
        window_open(&window);
        window_fill_all(&window, 768, TRIAL_NORMAL);
        set_gate(&window, 28);
        for (int c = 0; c < ORACLE_D; c++) window_at(&window, WINDOW_G, 0, 0)[c] = oracle_bf16(48);
        keep_one_channel(&window);
        uint16_t *rows = window.buffers[WINDOW_STATE].host;
        for (int c = 0; c < ORACLE_HEAD; c += ORACLE_D) rows[c] = oracle_bf16(2e7);
        window_verify(&window, NULL, NULL);
        window_expect(&window, "growing gate over a large state");
        window_close(&window);
    }
}

// A growing gate between a key and a large k or q that is orthogonal to it: terms of G and Q that
// overflow would be infinities of both signs. Nothing comes of them, as state and correction are
// zero.
static void v7_growing_gate_between_large_vectors(void **state)
{
    (void)state;
    for (int32_t tokens = 2; tokens <= 16; tokens = next_window(tokens))
        for (int i = 0; i < 2; i++) {
            struct window window = window_of(KDA_GATE_PRECOMPUTED, tokens, 1, 1, 1);
            window.finite_only = true;
            window_open(&window);
            window_fill_all(&window, 769, TRIAL_NORMAL);
            set_gate(&window, 0);
            memset(window.buffers[WINDOW_STATE].host, 0, ORACLE_HEAD * 2);
            memset(window_at(&window, WINDOW_V, 0, 0), 0, ORACLE_D * 2);
            for (int c = 0; c < ORACLE_D; c++) {
                window_at(&window, WINDOW_G, 1, 0)[c] = oracle_bf16(48);
                window_at(&window, WINDOW_K, 0, 0)[c] = oracle_bf16(c / 8 % 2 ? -1 : 1);
                window_at(&window, i ? WINDOW_Q : WINDOW_K, 1, 0)[c] = oracle_bf16(0x1p60);
            }
            window_verify(&window, NULL, NULL);
            window_expect(&window, i ? "Q" : "G");
            window_close(&window);
        }
}

// A scale that, times that of a norm of zero, overflows, and a zero q.
static void v7_huge_scale(void **state)
{
    (void)state;
    for (int g = 0; g < GATES; g++)
        for (int32_t tokens = 1; tokens <= 16; tokens = next_window(tokens)) {
            struct window window = window_of(gates[g], tokens, 1, 1, 1);
            window.any_floor = true;
            window.scale = 3.5e35f;
            window_open(&window);
            window_fill_all(&window, 775, TRIAL_NORMAL);
            for (int64_t token = 0; token < window.call.tok; token++)
                memset(window_at(&window, WINDOW_Q, token, 0), 0, ORACLE_D * 2);
            window_verify(&window, NULL, NULL);
            window_expect(&window, "huge scale");
            window_close(&window);
        }
}

static void v8_slices_and_strides(void **state)
{
    (void)state;
    for (int g = 0; g < GATES; g++)
        for (int32_t tokens = 1; tokens <= 16; tokens = next_length(tokens)) {
            struct window window = window_of(gates[g], tokens, 2, 1, 2);
            window.slices = true;
            window.cu_form = tokens % 2;
            window.token_pad[WINDOW_Q] = 5;
            window.token_pad[WINDOW_G] = 3;
            window.token_pad[WINDOW_BETA] = 7;
            window.token_pad[WINDOW_OUT] = 9;
            window.slot_pad = 8;
            for (int i = WINDOW_Q; i <= WINDOW_BETA; i++) window.shift[i] = tokens % 3;
            window.shift[WINDOW_A_LOG] = window.shift[WINDOW_DT_BIAS] = 1;
            window_open(&window);
            window_fill_all(&window, 800, TRIAL_NORMAL);
            window_verify(&window, NULL, NULL);
            window_expect(&window, "slices");
            window_close(&window);
        }
}

static void v8_default_slots(void **state)
{
    (void)state;
    for (int32_t tokens = 1; tokens <= 16; tokens = next_window(tokens)) {
        struct window given = window_of(KDA_GATE_SOFTPLUS, tokens, 3, 1, 1), omitted = given;
        omitted.no_indices = true;
        window_open(&given);
        window_open(&omitted);
        window_fill_all(&given, 850, TRIAL_NORMAL);
        window_fill_all(&omitted, 850, TRIAL_NORMAL);
        window_verify(&given, NULL, NULL);
        window_verify(&omitted, NULL, NULL);
        window_expect(&omitted, "default slots");
        for (int64_t n = 0; n < 3; n++) assert_true(window_same_row(&given, n, &omitted, n));
        window_close(&given);
        window_close(&omitted);
    }
}

// Pool and caches of more than 2^31 elements, the last slot used, by verify and then by commit.
static void v9_beyond_2_31(void **state)
{
    (void)state;
    for (int32_t tokens = 1; tokens <= 16; tokens = next_window(tokens)) {
        struct window window = window_of(KDA_GATE_PRECOMPUTED, tokens, 1, 32, 32);
        window.num_slots = 34000;  // of 32*16*2*128 elements of the key and gate cache
        window.cache_tokens = 16;
        window.sparse = true;
        window.held_count = 2;
        window.held[0] = 0;
        window.held[1] = window.num_slots - 1;
        const size_t bytes = (size_t)window.num_slots * 32 * (ORACLE_HEAD * 2 + 16 * 1024);
        if (!suite.machine.soft && machine_free_memory(&suite.machine) < bytes + (1u << 30))
            suite_skip("the device has less than %zu bytes free", bytes);
        if (suite.machine.soft) window.heads = window.value_heads = 4;
        if (suite.machine.soft) window.num_slots = 270000, window.held[1] = 269999;
        window_open(&window);
        window.indices[0] = (int32_t)window.held[1];
        window_fill(&window, 0, 900, TRIAL_NORMAL);
        run_hazard(&window, "beyond 2^31");
    }
}

static void v9_replay(void **state)
{
    (void)state;
    for (int32_t tokens = 1; tokens <= 16; tokens = next_window(tokens)) {
        struct window window = window_of(KDA_GATE_PRECOMPUTED, tokens, 3, 1, 2), eager = window;
        window.num_slots = eager.num_slots = 5;
        window_open(&window);
        window_open(&eager);
        CUstream stream = machine_stream(&suite.machine);
        struct machine_graph graph = window_capture(&window, KDA_OP_VERIFY, stream);
        assert_int_equal(graph.nodes, 1);
        for (int round = 0; round < 2; round++) {
            for (int64_t n = 0; n < 3; n++)
                window.indices[n] = eager.indices[n] = n == round ? -1 : (int32_t)(n + round);
            window_fill_all(&window, 950 + 10 * (uint64_t)round, TRIAL_NORMAL);
            window_fill_all(&eager, 950 + 10 * (uint64_t)round, TRIAL_NORMAL);
            window_upload(&window);
            machine_replay(&suite.machine, &graph, stream);
            machine_sync(&suite.machine, stream);
            window_download(&window);
            window_expect(&window, "replay");
            window_verify(&eager, NULL, NULL);
            for (int64_t n = 0; n < 3; n++) assert_true(window_same_row(&window, n, &eager, n));
        }
        machine_graph_close(&suite.machine, &graph);
        machine_stream_close(&suite.machine, stream);
        window_close(&window);
        window_close(&eager);
    }
}

static void v9_no_token(void **state)
{
    (void)state;
    struct window window = window_of(KDA_GATE_PRECOMPUTED, 4, 2, 1, 1);
    window.cu_form = true;
    window_open(&window);
    kda_verify_args args = window_verify_args(&window);
    args.q.extent[0] = args.k.extent[0] = args.v.extent[0] = args.g.extent[0] = 0;
    args.beta.extent[0] = args.out.extent[0] = 0;
    window_upload(&window);
    kda_error err = {.status = KDA_OK};
    suite.calls++;
    if (kda_verify(suite.context, &args, NULL, &err)) fail_msg("%s", err.text);
    machine_sync(&suite.machine, NULL);
    window_download(&window);
    memset(window.cu, 0, 3 * sizeof *window.cu);
    window_expect(&window, "no token");
    window_close(&window);
}

// ------------------------------------------------------------------------------------------ commit

static void c1_every_count(void **state)
{
    (void)state;
    for (int g = 0; g < GATES; g++)
        for (int64_t lines = 16; lines <= 40; lines += 24) {
            struct window window = window_of(gates[g], 16, 17, 1, suite_size(1, 4));
            window.num_slots = 18;
            window.cache_tokens = lines;
            window.cache_pad = 4;
            window.slot_pad = 136;
            window.shift[WINDOW_KG] = 1;
            window.no_bias = g == 1;
            window_open(&window);
            for (int32_t n = 0; n < 17; n++) {
                window.accepted[n] = lines > 16 && n == 5 ? 37 : n;
                window.indices[n] = 17 - n;
            }
            window_fill_caches(&window, 1000);
            window_upload(&window);
            window_commit(&window, NULL, NULL);
            window_expect_commit(&window, false, "every count");
            window_close(&window);
        }
}

static void c2_nothing_to_do(void **state)
{
    (void)state;
    static const int32_t slots[] = {-1, 0, 1, 2, 9, INT_MIN, INT_MAX, 4};
    static const int32_t accepted[] = {3, 3, 0, -1, 3, 3, 3, INT_MAX};
    for (int32_t null_min = 0; null_min < 2; null_min++) {
        struct window window = window_of(KDA_GATE_LOWER_BOUND, 6, 8, 1, 1);
        window.num_slots = 9;
        window.null_min = null_min;
        window_open(&window);
        memcpy(window.indices, slots, sizeof slots);
        memcpy(window.accepted, accepted, sizeof accepted);
        window_fill_caches(&window, 1100);
        window_upload(&window);
        window_commit(&window, NULL, NULL);
        window_expect_commit(&window, false, "nulls and counts");
        window_close(&window);
    }
}

static void c3_same_bits_everywhere(void **state)
{
    (void)state;
    for (int g = 0; g < GATES; g++) {
        const struct suite_family found = family(KDA_OP_COMMIT, gates[g], 16);
        struct suite_image images[SUITE_IMAGES];
        const int count = suite_images(&found, NULL, images);
        struct window alone = window_of(gates[g], 16, 1, 1, 2);
        window_open(&alone);
        alone.accepted[0] = 11;
        window_fill_caches(&alone, 1200);
        window_upload(&alone);
        window_commit(&alone, NULL, NULL);
        for (int i = 0; i < count; i++) {
            struct window batch = window_of(gates[g], 16, suite_size(3, 150), 1, 2);
            const int64_t at = 1 + i % 2;
            batch.slot_pad = 8 * i;
            window_open(&batch);
            for (int64_t n = 0; n < batch.rows; n++) batch.accepted[n] = (int32_t)(n % 3);
            window_fill_caches(&batch, 1200 - (uint64_t)at);
            batch.accepted[at] = 11;
            window_fill_caches(&batch, 1200 - (uint64_t)at);
            window_upload(&batch);
            window_commit(&batch, images[i].body, images[i].target);
            if (!window_same_state(&alone, 0, &batch, at))
                fail_msg("%s %s: the row differs", images[i].body, images[i].target);
            window_close(&batch);
        }
        window_close(&alone);
    }
}

static void c4_replay(void **state)
{
    (void)state;
    struct window window = window_of(KDA_GATE_SOFTPLUS, 8, 3, 1, 1);
    window_open(&window);
    CUstream stream = machine_stream(&suite.machine);
    struct machine_graph graph = window_capture(&window, KDA_OP_COMMIT, stream);
    assert_int_equal(graph.nodes, 1);
    for (int32_t round = 0; round < 2; round++) {
        for (int32_t n = 0; n < 3; n++) window.accepted[n] = round ? n : 8 - n;
        window_fill_caches(&window, 1300 + 10 * (uint64_t)round);
        window_upload(&window);
        machine_replay(&suite.machine, &graph, stream);
        machine_sync(&suite.machine, stream);
        window_download(&window);
        window_expect_commit(&window, false, "replay");
    }
    machine_graph_close(&suite.machine, &graph);
    machine_stream_close(&suite.machine, stream);
    window_close(&window);
}

int main(int argc, char **argv)
{
    int status = suite_open(argc, argv);
    if (status != SUITE_GO) return status;
#undef BODY_TEST
#define BODY_TEST(name, check) cmocka_unit_test(body_##name),
#define KDA_SCHEDULE(name, template, op, ...) BODY_TEST_##op(name)
    const struct CMUnitTest tests[] = {
#include "manifest/schedules.inc"
        cmocka_unit_test(v1_shapes),
        cmocka_unit_test(v1_every_length),
        cmocka_unit_test(v1_splits_agree),
        cmocka_unit_test(v2_nulls_and_ragged_rows),
        cmocka_unit_test(v2_absent_tokens),
        cmocka_unit_test(v3_same_bits_everywhere),
        cmocka_unit_test(v3_window_length),
        cmocka_unit_test(v4_caches),
        cmocka_unit_test(v4_row_longer_than_the_window),
        cmocka_unit_test(v5_beta),
        cmocka_unit_test(v6_verify_then_commit),
        cmocka_unit_test(v7_strong_decay),
        cmocka_unit_test(v7_gates_in_the_kernel),
        cmocka_unit_test(v7_repeated_keys),
        cmocka_unit_test(v7_zero_vectors),
        cmocka_unit_test(v7_norms),
        cmocka_unit_test(v7_growing_gate),
        cmocka_unit_test(v7_growing_gate_over_a_state),
        cmocka_unit_test(v7_growing_gate_corrected),
        cmocka_unit_test(v7_growing_gate_over_a_large_state),
        cmocka_unit_test(v7_growing_gate_between_large_vectors),
        cmocka_unit_test(v7_huge_scale),
        cmocka_unit_test(v8_slices_and_strides),
        cmocka_unit_test(v8_default_slots),
        cmocka_unit_test(v9_beyond_2_31),
        cmocka_unit_test(v9_replay),
        cmocka_unit_test(v9_no_token),
        cmocka_unit_test(c1_every_count),
        cmocka_unit_test(c2_nothing_to_do),
        cmocka_unit_test(c3_same_bits_everywhere),
        cmocka_unit_test(c4_replay),
    };
    return suite_close(cmocka_run_group_tests_name("verify", tests, NULL, NULL));
}
