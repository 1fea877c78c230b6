// SPDX-License-Identifier: Apache-2.0
// kda-bench, as far as no GPU is needed: the shapes and routes are the stored table's, tables
// survive writing and reading, the floor moves every state it should, and both verbs run.
//   bench_test KDA_BENCH TABLE.tsv BUNDLE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/command.h"
#include "tools/bench.h"
#include "tools/bench_floor.h"

static const char *program, *table_path;
static kda_bundle *bundle;
static struct bench_rows table;
static struct command command;

static const char *name_of(const struct kda_format_body *body)
{
    return bundle->strings + body->name;
}

// ------------------------------------------------------------------------------- shapes and routes

// The stored table is of recurrent and packed decode.
static bool in_table(const struct bench_shape *shape)
{
    return shape->kind->op == KDA_OP_RECURRENT || shape->kind->op == KDA_OP_PACKED;
}

static void standard_shapes_are_the_tables(void **state)
{
    (void)state;
    struct bench_shapes shapes = bench_shapes_standard(false);
    size_t count = 0;
    for (size_t i = 0; i < shapes.count; i++)
        for (uint32_t j = 0; j < bundle->body_count; j++) {
            struct bench_row row = {.shape = shapes.shapes[i]};
            if (!in_table(&row.shape)) continue;
            if (!bench_serves(&bundle->bodies[j], &row.shape)) continue;
            snprintf(row.body, sizeof row.body, "%s", name_of(&bundle->bodies[j]));
            if (!bench_find(&table, &row))
                fail_msg("%s at %lld rows is not in the table", row.body,
                         (long long)row.shape.rows);
            count++;
        }
    assert_int_equal(count, table.count);
    bench_shapes_free(&shapes);
}

static void routes_are_the_tables(void **state)
{
    (void)state;
    enum { SMS = 132 };  // of the device that the table was made for
    for (size_t i = 0; i < table.count; i++) {
        const struct bench_row *row = &table.rows[i];
        bool found = false;
        for (uint32_t j = 0; j < bundle->body_count; j++) {
            const char *name = name_of(&bundle->bodies[j]);
            if (!bench_serves(&bundle->bodies[j], &row->shape) ||
                strcmp(bench_label(name), row->body) != 0)
                continue;
            found = true;
            if (bench_routed(bundle, &row->shape, name, 100, SMS) != row->routed_sm100a ||
                bench_routed(bundle, &row->shape, name, 103, SMS) != row->routed_sm103a)
                fail_msg("%s at %lld rows is routed otherwise than the table says", name,
                         (long long)row->shape.rows);
        }
        assert_true(found);
    }
}

static void quick_shapes_are_the_least(void **state)
{
    (void)state;
    struct bench_shapes all = bench_shapes_standard(false), quick = bench_shapes_standard(true);
    for (size_t i = 0; i < all.count; i++) {
        size_t matches = 0;
        for (size_t j = 0; j < quick.count; j++) {
            if (quick.shapes[j].kind != all.shapes[i].kind ||
                quick.shapes[j].tokens != all.shapes[i].tokens)
                continue;
            matches++;
            assert_true(bench_bytes(&quick.shapes[j]) <= bench_bytes(&all.shapes[i]));
        }
        assert_int_equal(matches, 1);
    }
    bench_shapes_free(&all);
    bench_shapes_free(&quick);
}

static void shapes_are_parsed(void **state)
{
    (void)state;
    struct bench_shapes shapes = {.count = 0};
    static const char *const bad[] = {"precomputed,1,1,8",     "precomputed,1,1,8,8,8",
                                      "nothing,1,1,8,8",       "precomputed,0,1,8,8",
                                      "precomputed,1,0,8,8",   "precomputed,1,65536,8,8",
                                      "precomputed,1,1,16,8",  "precomputed,1,1,8,8 ",
                                      "precomputed,1,1,8,-16", ""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (bench_shapes_add(&shapes, bad[i])) fail_msg("\"%s\" is taken", bad[i]);
    assert_int_equal(shapes.count, 0);
    assert_true(bench_shapes_add(&shapes, "softplus,1,2,4,4"));
    assert_true(bench_shapes_add(&shapes, "precomputed,6,65535,16,32"));
    assert_int_equal(shapes.count, 2);
    assert_string_equal(shapes.shapes[0].kind->name, "softplus");
    assert_int_equal(shapes.shapes[0].rows, 2);
    assert_int_equal(shapes.shapes[1].tokens, 6);
    assert_int_equal(shapes.shapes[1].value_heads, 32);
    bench_shapes_free(&shapes);
}

// ------------------------------------------------------------------------------------------ tables

static void tables_survive(void **state)
{
    (void)state;
    char *folder = command_folder();
    const char *path = command_path(folder, "table.tsv");
    struct bench_rows back;
    kda_error err;
    if (bench_write_tsv(path, &table, &err) || bench_read_tsv(path, &back, &err))
        fail_msg("%s", err.text);
    assert_int_equal(back.count, table.count);
    for (size_t i = 0; i < table.count; i++) {
        const struct bench_row *a = &table.rows[i], *b = &back.rows[i];
        assert_ptr_equal(bench_find(&back, a), b);
        assert_true(a->us == b->us && a->floor_us == b->floor_us);
        assert_true(a->routed_sm100a == b->routed_sm100a);
        assert_true(a->routed_sm103a == b->routed_sm103a);
    }
    bench_rows_free(&back);

    static const char head[] =
        "kind\tT\tN\tH\tHV\tfloor_us\tbody\tus\trouted_sm100a\trouted_sm103a\n";
    static const char *const rows[] = {
        "packed\t1\t1\t12\t12\t2.0\ttile8\t3.0\t1",    "other\t1\t1\t12\t12\t2.0\ttile8\t3.0\t1\t1",
        "packed\t1\t1\t12\t12\t2.0\ttile8\tx\t1\t1",   "packed\t1\t1\t12\t12\t2.0\ttile8\t0\t1\t1",
        "packed\t1\t1\t12\t12\tnan\ttile8\t3.0\t1\t1", "packed\t1\t-1\t12\t12\t2\ttile8\t3.0\t1\t1",
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[512];
        int n = snprintf(text, sizeof text, "%s%s\n", head, rows[i]);
        command_write(path, text, (size_t)n);
        assert_int_equal(bench_read_tsv(path, &back, &err), KDA_E_FORMAT);
        assert_non_null(strstr(err.text, ":2: not a row"));
    }
    command_write(path, "kind\tT\n", 7);
    assert_int_equal(bench_read_tsv(path, &back, &err), KDA_E_FORMAT);
    assert_non_null(strstr(err.text, "does not name the columns"));
    command_clean(folder);
}

static void slower_is_beyond_noise_and_routed(void **state)
{
    (void)state;
    struct bench_row row = table.rows[0];
    row.floor_us = 1;
    row.peer = 1;
    for (int i = 0; i < 8; i++) {
        row.us = i & 1 ? 1.03 : 1.01;
        row.routed_sm100a = i & 2;
        row.routed_sm103a = i & 4;
        struct bench_rows one = {.rows = &row, .count = 1};
        assert_int_equal(bench_print_summary(&one, true), (i & 1) && (i & 6));
    }
}

static void median_is_the_middle(void **state)
{
    (void)state;
    double odd[] = {9, 1, 5}, even[] = {4, 1, 9, 2};
    assert_true(bench_median(odd, 3) == 5);
    assert_true(bench_median(even, 4) == 3);
}

// ------------------------------------------------------------------------------------------- floor

static void check_floor(int cc)
{
    enum {
        ROWS = 2,
        TOKENS = 3,
        HEADS = 2,
        HEAD = 128 * 128 * 2 / 4,
        SLOT = HEADS * HEAD,
        SLOTS = 8
    };
    static const int32_t slots[ROWS * TOKENS] = {6, 2, 0, 1, 4, 7};
    struct machine machine;
    const char *reason = machine_open(&machine, cc, 148);
    if (reason) fail_msg("%s", reason);
    struct bench_floor kernel;
    assert_true(bench_floor_open(&machine, &kernel));
    const struct bench_shape shape = {.kind = bench_kind_find("precomputed"),
                                      .tokens = TOKENS,
                                      .rows = ROWS,
                                      .value_heads = HEADS};
    uint32_t *before = calloc(SLOTS * SLOT, 4), *after = calloc(SLOTS * SLOT, 4);
    assert_non_null(before);
    assert_non_null(after);
    for (uint32_t i = 0; i < SLOTS * SLOT; i++) before[i] = i * 2654435761u;
    const CUdeviceptr pool = machine_alloc(&machine, SLOTS * SLOT * 4),
                      indices = machine_alloc(&machine, sizeof slots);
    machine_put(&machine, indices, slots, sizeof slots);
    for (unsigned split = 1; split <= 16; split *= 2) {
        machine_put(&machine, pool, before, SLOTS * SLOT * 4);
        bench_floor_launch(&kernel,
                           &(struct bench_call){.shape = shape, .state = pool, .indices = indices},
                           split, NULL);
        machine_sync(&machine, NULL);
        machine_get(&machine, after, pool, SLOTS * SLOT * 4);
        for (int slot = 0; slot < SLOTS; slot++) {
            int from = slot;
            uint32_t flip = 0;
            for (int i = 0; i < ROWS * TOKENS; i++)
                if (slots[i] == slot) {
                    from = slots[i / TOKENS * TOKENS];
                    flip = (uint32_t)(i % TOKENS + 1) & 1;
                }
            for (int i = 0; i < SLOT; i++)
                if (after[slot * SLOT + i] != (before[from * SLOT + i] ^ (i % 4 ? 0 : flip)))
                    fail_msg("split %u, slot %d, word %d", split, slot, i);
        }
    }
    free(before);
    free(after);
    machine_free(&machine, pool);
    machine_free(&machine, indices);
    bench_floor_close(&kernel);
    machine_close(&machine);
}

static void floor_moves_the_states(void **state)
{
    (void)state;
    static const int ccs[] = {90, 100, 103};
    for (size_t i = 0; i < sizeof ccs / sizeof *ccs; i++) check_floor(ccs[i]);
}

// Of windows: verify leaves the states and writes outputs and caches, commit writes one state per
// row.
static void floor_moves_windows(void **state)
{
    (void)state;
    enum { T = 16, ROWS = 2, HEADS = 2, SLOT = HEADS * 128 * 128 / 2, SLOTS = 4, MOST = 1 << 16 };
    static const int32_t slots[ROWS] = {3, 1};
    static const char *const kinds[] = {"verify", "verify_cached", "commit"};
    struct machine machine;
    const char *reason = machine_open(&machine, 100, 148);
    if (reason) fail_msg("%s", reason);
    struct bench_floor kernel;
    assert_true(bench_floor_open(&machine, &kernel));
    uint32_t *pool = calloc(SLOTS * SLOT, 4), *out = calloc(MOST, 4);
    assert_non_null(pool);
    assert_non_null(out);
    const CUdeviceptr on_pool = machine_alloc(&machine, SLOTS * SLOT * 4),
                      on_out = machine_alloc(&machine, MOST * 4),
                      in = machine_alloc(&machine, MOST * 4),
                      indices = machine_alloc(&machine, sizeof slots);
    machine_put(&machine, indices, slots, sizeof slots);
    for (int k = 0; k < 3; k++)
        for (unsigned split = 1; split <= 16; split *= 2) {
            const struct bench_call call = {.shape = {.kind = bench_kind_find(kinds[k]),
                                                      .tokens = T,
                                                      .rows = ROWS,
                                                      .heads = HEADS,
                                                      .value_heads = HEADS},
                                            .q = in,
                                            .state = on_pool,
                                            .out = on_out,
                                            .indices = indices};
            const size_t quads = ROWS * HEADS * bench_written_bytes(&call.shape) / 16;
            assert_true(ROWS * HEADS * bench_read_bytes(&call.shape) <= MOST * 4 &&
                        quads * 4 < MOST && (k < 2) == (quads > 0));
            machine_fill(&machine, on_pool, 0, SLOTS * SLOT * 2);
            machine_fill(&machine, on_out, 0xffff, MOST * 2);
            bench_floor_launch(&kernel, &call, split, NULL);
            machine_sync(&machine, NULL);
            machine_get(&machine, pool, on_pool, SLOTS * SLOT * 4);
            machine_get(&machine, out, on_out, MOST * 4);
            for (int i = 0; i < SLOTS * SLOT; i++)
                if (pool[i] != (k == 2 && i % 4 == 0 && i / SLOT % 2 == 1))
                    fail_msg("%s, split %u: word %d of the pool", kinds[k], split, i);
            for (size_t i = 0; i < MOST; i += 4)
                if ((out[i] == UINT32_MAX) != (i / 4 >= quads))
                    fail_msg("%s, split %u: quad %zu of the output", kinds[k], split, i / 4);
        }
    free(pool);
    free(out);
    machine_free(&machine, on_pool);
    machine_free(&machine, on_out);
    machine_free(&machine, in);
    machine_free(&machine, indices);
    bench_floor_close(&kernel);
    machine_close(&machine);
}

// ---------------------------------------------------------------------------------------- programs

static void expect(int status, const char *text)
{
    command_run(&command);
    if (command.status != status || !strstr(command.output, text))
        fail_msg("status %d, expected %d with \"%s\"; it says: %s", command.status, status, text,
                 command.output);
}

static size_t occurrences(const char *text, const char *part)
{
    size_t count = 0;
    for (; (text = strstr(text, part)); text++) count++;
    return count;
}

static const struct bench_shape *shape_before(const struct bench_rows *rows, size_t i)
{
    return &rows->rows[i - 1].shape;
}

static void gpu_runs_every_body(void **state)
{
    (void)state;
    char *folder = command_folder();
    const char *tsv = command_path(folder, "a.tsv"), *json = command_path(folder, "a.json");
    const char *svg = command_path(folder, "a.svg");
    command_set(&command, program, "gpu", "--quick", "--against", table_path, "--tsv", tsv,
                "--json", json, "--plot", svg, NULL);
    expect(0, "(soft device: times say nothing of a GPU)");
    struct bench_rows rows;
    kda_error err;
    if (bench_read_tsv(tsv, &rows, &err)) fail_msg("%s", err.text);
    assert_true(rows.count >= bundle->body_count);
    size_t peers = 0, panels = 0;  // a panel per kind and T
    for (size_t i = 0; i < rows.count; i++) {
        const struct bench_shape *shape = &rows.rows[i].shape;
        const bool stored = bench_find(&table, &rows.rows[i]);
        assert_int_equal(stored, in_table(shape));
        peers += stored;
        panels += i == 0 || shape->kind != shape_before(&rows, i)->kind ||
                  shape->tokens != shape_before(&rows, i)->tokens;
    }
    size_t size;
    char *text = (char *)command_read(json, &size);
    for (uint32_t i = 0; i < bundle->body_count; i++) {
        char line[160];
        snprintf(line, sizeof line, "\"body\": \"%s\",\n", name_of(&bundle->bodies[i]));
        if (!strstr(text, line)) fail_msg("no %s in the JSON", name_of(&bundle->bodies[i]));
    }
    assert_int_equal(occurrences(text, "\"peer_over_floor\": "), peers);
    assert_non_null(strstr(text, "\"soft\": true"));
    free(text);
    text = (char *)command_read(svg, &size);
    assert_int_equal(occurrences(text, "font-weight=\"bold\""), panels);
    assert_int_equal(occurrences(text, "<circle "), rows.count + peers);
    bench_rows_free(&rows);
    assert_non_null(strstr(text, "</svg>\n"));
    free(text);
    command_clean(folder);
}

static void gpu_runs_what_is_asked(void **state)
{
    (void)state;
    command_set(&command, program, "gpu", "--shape", "precomputed,2,3,2,4", "--shape",
                "softplus,1,1,1,1", "--body", "*split8", NULL);
    expect(0, "precomputed  2     3   2   4  split8 ");
    assert_non_null(strstr(command.output, "softplus     1     1   1   1  direct_split8 "));
    // In a row: the line about loads names the slowest body, whichever that was.
    assert_null(strstr(command.output, " split4"));
    command_set(&command, program, "gpu", "--op", "packed", "--routed", "--pdl", NULL);
    expect(0, "packed       1     1  12  12  tile8 ");
    assert_null(strstr(command.output, " tile16"));
    command_set(&command, program, "gpu", "--tokens", "1", "--rows", "1", "--op", "softplus",
                "--target", "sm_100a", NULL);
    expect(0, " direct_split16");
    command_set(&command, program, "gpu", "--target", "sm_103a", "--op", "packed", NULL);
    expect(1, "nothing was measured: ");
}

static void wrong_usage_is_refused(void **state)
{
    (void)state;
    static const char *const bad[][3] = {
        {"gpu", "--shape", "precomputed,1"},
        {"gpu", "--op", "decode"},
        {"gpu", "--tokens", "x"},
        {"gpu", "--pool", "0"},
        {"gpu", "more", NULL},
        {"host", "--calls", "0"},
        {"host", "--wrong", NULL},
        {"other", NULL, NULL},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        command_set(&command, program, bad[i][0], bad[i][1], bad[i][2], NULL);
        expect(2, "usage: kda-bench");
    }
    command_set(&command, program, "gpu", "--help", NULL);
    expect(0, "usage: kda-bench gpu");
    command_set(&command, program, "gpu", "--against", "missing.tsv", NULL);
    expect(2, "missing.tsv");
    command_set(&command, program, "host", "--bundle", "missing.bundle", NULL);
    expect(2, "missing.bundle");
}

static void launches_cost_one_driver_call(void **state)
{
    (void)state;
    command_set(&command, program, "host", "--calls", "10", NULL);
    expect(0, "plan launch: 0 allocations, 0 locks, 1 driver calls\n");
    assert_int_equal(occurrences(command.output, ": 0 allocations, 0 locks, 1 driver calls\n"), 18);
    assert_null(strstr(command.output, "expected"));
}

int main(int argc, char **argv)
{
    kda_error err;
    if (argc != 4) {
        fprintf(stderr, "usage: bench_test KDA_BENCH TABLE.tsv BUNDLE\n");
        return 2;
    }
    program = argv[1];
    table_path = argv[2];
    if (bench_read_tsv(table_path, &table, &err) || kda_bundle_open_file(argv[3], &bundle, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(standard_shapes_are_the_tables),
        cmocka_unit_test(routes_are_the_tables),
        cmocka_unit_test(quick_shapes_are_the_least),
        cmocka_unit_test(shapes_are_parsed),
        cmocka_unit_test(tables_survive),
        cmocka_unit_test(slower_is_beyond_noise_and_routed),
        cmocka_unit_test(median_is_the_middle),
        cmocka_unit_test(floor_moves_the_states),
        cmocka_unit_test(floor_moves_windows),
        cmocka_unit_test(gpu_runs_every_body),
        cmocka_unit_test(gpu_runs_what_is_asked),
        cmocka_unit_test(wrong_usage_is_refused),
        cmocka_unit_test(launches_cost_one_driver_call),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bench_rows_free(&table);
    kda_bundle_close(&bundle);
    return failed;
}
