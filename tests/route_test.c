// SPDX-License-Identifier: Apache-2.0
// Routing against the tables of the specification: split points, targets, refusals and their words.
// Needs no device.
//   route_test VECTORS.tsv [BUNDLE]
// With BUNDLE, the split points are checked on that bundle too.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "loader/bundle.h"
#include "loader/route.h"
#include "tests/blob.h"

static const char *vectors_path, *bundle_path;
static kda_bundle *bundle;  // the default targets
static struct blob blob;

static kda_bundle *open_blob(const struct blob *from)
{
    kda_bundle *out = NULL;
    kda_error err = {0};
    if (kda_bundle_open(from->data, from->size, &out, &err)) fail_msg("%s", err.text);
    return out;
}

static kda_device device_of(int cc, int cuda, int sms)
{
    return (kda_device){
        .cc_major = cc / 10, .cc_minor = cc % 10, .cuda_version = cuda, .sm_count = sms};
}

static kda_problem problem_of(int tokens, kda_gate gate, int64_t rows, int64_t heads,
                              int64_t value_heads)
{
    return (kda_problem){.op = KDA_OP_RECURRENT,
                         .gate = gate,
                         .tokens = tokens,
                         .rows = rows,
                         .heads = heads,
                         .value_heads = value_heads};
}

static kda_problem packed_of(int64_t rows)
{
    kda_problem out = problem_of(1, KDA_GATE_LOWER_BOUND, rows, 12, 12);
    out.op = KDA_OP_PACKED;
    return out;
}

static kda_route_result route_on(const kda_bundle *from, kda_device device, kda_problem problem)
{
    kda_route_result out = {0};
    kda_error err = {.text = "unset"};
    if (kda_route(from, &device, &problem, &out, &err)) fail_msg("%s", err.text);
    assert_string_equal(err.text, "unset");
    return out;
}

// Asserts the refusal, that outputs stay as they were, and that the text is one line holding every
// fragment.
static void refuse(const kda_bundle *from, kda_device device, kda_problem problem,
                   kda_status status, const char *const *fragments)
{
    kda_route_result out, before;
    memset(&out, 0xa5, sizeof out);
    memcpy(&before, &out, sizeof out);
    kda_error err = {0};
    kda_status found = kda_route(from, &device, &problem, &out, &err);
    if (found != status)
        fail_msg("expected %s, found %s: %s", kda_status_name(status), kda_status_name(found),
                 err.text);
    assert_int_equal(err.status, status);
    assert_int_equal(err.cuda, 0);
    assert_memory_equal(&out, &before, sizeof out);
    assert_null(strchr(err.text, '\n'));
    for (; *fragments; ++fragments) {
        if (!strstr(err.text, *fragments)) fail_msg("\"%s\" is not in: %s", *fragments, err.text);
    }
    assert_int_equal(kda_route(from, &device, &problem, &out, NULL), status);
}
#define REFUSE(from, device, problem, status, ...)                                                 \
    refuse(from, device, problem, status, (const char *const[]){__VA_ARGS__, NULL})

static int64_t heads_for(kda_gate gate, int64_t value_heads)
{
    return gate == KDA_GATE_SOFTPLUS ? value_heads : 1;
}

static uint32_t split_at(const kda_bundle *from, int cc, int tokens, kda_gate gate, int sms,
                         int64_t work)
{
    kda_device device = device_of(cc, 13000, sms);
    kda_problem one_row = problem_of(tokens, gate, 1, heads_for(gate, work), work);
    kda_route_result route = route_on(from, device, one_row);
    assert_int_equal(route.grid[0], work * route.split);
    assert_int_equal(route.grid[1], 1);
    if (work <= 65535) {  // the same work as many rows of one head takes the same body
        kda_route_result rows = route_on(from, device, problem_of(tokens, gate, work, 1, 1));
        assert_string_equal(rows.body, route.body);
    }
    return route.split;
}

// ---------------------------------------------------------------------------------- splits

static void check_vectors(const kda_bundle *from)
{
    FILE *file = fopen(vectors_path, "r");
    if (!file) fail_msg("%s cannot be opened", vectors_path);
    char line[256];
    int count = 0;
    assert_non_null(fgets(line, sizeof line, file));
    while (fgets(line, sizeof line, file)) {
        char table[32], gate_name[32];
        int major, minor, tokens, sms;
        long long work;
        unsigned split;
        if (sscanf(line, "%31s %d.%d %d %31s %d %lld %u", table, &major, &minor, &tokens, gate_name,
                   &sms, &work, &split) != 8)
            fail_msg("bad line: %s", line);
        kda_gate gate = strcmp(gate_name, "precomputed") ? KDA_GATE_SOFTPLUS : KDA_GATE_PRECOMPUTED;
        if (split_at(from, 10 * major + minor, tokens, gate, sms, work) != split)
            fail_msg("wrong split: %s", line);
        ++count;
    }
    fclose(file);
    assert_int_equal(count, 682);
}

static void vectors(void **state)
{
    (void)state;
    check_vectors(bundle);
}

static void vectors_of_the_file(void **state)
{
    (void)state;
    if (!bundle_path) skip();
    kda_bundle *file = NULL;
    kda_error err = {0};
    if (kda_bundle_open_file(bundle_path, &file, &err)) fail_msg("%s", err.text);
    check_vectors(file);
    kda_bundle_close(&file);
}

// "w:s": split s from W = w up to the next entry.
static void boundaries(void **state)
{
    (void)state;
    static const int sms[] = {148, 152, 160, 8, 1};
    static const struct {
        int cc, tokens;
        kda_gate gate;
        const char *cells[5];
    } rows[] = {
        {100,
         1,
         KDA_GATE_PRECOMPUTED,
         {"1:16, 297:8", "1:16, 305:8", "1:16, 321:8", "1:16, 17:8", "1:16, 3:8"}},
        {103,
         1,
         KDA_GATE_PRECOMPUTED,
         {"1:16, 4737:8", "1:16, 4865:8", "1:16, 5121:8", "1:16, 257:8", "1:16, 33:8"}},
        {100,
         1,
         KDA_GATE_SOFTPLUS,
         {"1:16, 593:8", "1:16, 609:8", "1:16, 641:8", "1:16, 33:8", "1:16, 5:8"}},
        {103,
         1,
         KDA_GATE_SOFTPLUS,
         {"1:16, 593:8", "1:16, 609:8", "1:16, 641:8", "1:16, 33:8", "1:16, 5:8"}},
        {100, 2, KDA_GATE_PRECOMPUTED, {"1:4", "1:4", "1:4", "1:4", "1:4"}},
        {103, 2, KDA_GATE_PRECOMPUTED, {"1:8, 75:4", "1:8, 77:4", "1:8, 81:4", "1:8, 5:4", "1:4"}},
        {100, 4, KDA_GATE_PRECOMPUTED, {"1:2", "1:2", "1:2", "1:2", "1:2"}},
        {103,
         4,
         KDA_GATE_PRECOMPUTED,
         {"1:8, 75:4, 149:2, 223:1, 297:2", "1:8, 77:4, 153:2, 229:1, 305:2",
          "1:8, 81:4, 161:2, 241:1, 321:2", "1:8, 5:4, 9:2, 13:1, 17:2", "1:4, 2:1, 3:2"}},
        {100,
         5,
         KDA_GATE_PRECOMPUTED,
         {"1:8, 56:2, 75:4, 112:2, 223:1", "1:8, 58:2, 77:4, 115:2, 229:1",
          "1:8, 61:2, 81:4, 121:2, 241:1", "1:8, 4:2, 5:4, 7:2, 13:1", "1:2, 2:1"}},
        {103,
         5,
         KDA_GATE_PRECOMPUTED,
         {"1:8, 56:2, 75:4, 112:1, 149:2, 223:1", "1:8, 58:2, 77:4, 115:1, 153:2, 229:1",
          "1:8, 61:2, 81:4, 121:1, 161:2, 241:1", "1:8, 4:2, 5:4, 7:1, 9:2, 13:1", "1:1"}},
        {100,
         6,
         KDA_GATE_PRECOMPUTED,
         {"1:8, 56:2, 75:4, 112:2, 223:1", "1:8, 58:2, 77:4, 115:2, 229:1",
          "1:8, 61:2, 81:4, 121:2, 241:1", "1:8, 4:2, 5:4, 7:2, 13:1", "1:2, 2:1"}},
        {103,
         6,
         KDA_GATE_PRECOMPUTED,
         {"1:8, 56:2, 75:1", "1:8, 58:2, 77:1", "1:8, 61:2, 81:1", "1:8, 4:2, 5:1", "1:1"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        for (size_t k = 0; k < sizeof sms / sizeof *sms; ++k) {
            const char *cell = rows[i].cells[k];
            while (*cell) {
                long long from = 0, to = 6000;
                unsigned split = 0;
                int used = 0;
                assert_int_equal(sscanf(cell, "%lld:%u%n", &from, &split, &used), 2);
                cell += used;
                if (*cell) assert_int_equal(sscanf(cell, ", %lld:", &to), 1);
                if (*cell) cell += 2;
                for (long long work = from; work < to; ++work) {
                    uint32_t found =
                        split_at(bundle, rows[i].cc, rows[i].tokens, rows[i].gate, sms[k], work);
                    if (found != split)
                        fail_msg("CC %d T=%d S=%d W=%lld: expected split %u, found %u", rows[i].cc,
                                 rows[i].tokens, sms[k], work, split, found);
                }
            }
        }
    }
}

static void worked_points(void **state)
{
    (void)state;
    static const struct {
        int cc, sms, tokens, rows, heads, value_heads;
        kda_gate gate;
        unsigned split;
    } points[] = {
        {100, 148, 1, 8, 16, 32, KDA_GATE_PRECOMPUTED, 16},
        {100, 148, 2, 8, 16, 32, KDA_GATE_PRECOMPUTED, 4},
        {100, 148, 4, 8, 16, 32, KDA_GATE_PRECOMPUTED, 2},
        {100, 148, 5, 8, 16, 32, KDA_GATE_PRECOMPUTED, 1},
        {100, 148, 6, 8, 16, 32, KDA_GATE_PRECOMPUTED, 1},
        {100, 148, 1, 16, 16, 32, KDA_GATE_PRECOMPUTED, 8},
        {103, 152, 1, 16, 16, 32, KDA_GATE_PRECOMPUTED, 16},
        {103, 152, 2, 2, 16, 32, KDA_GATE_PRECOMPUTED, 8},
        {103, 152, 2, 3, 16, 32, KDA_GATE_PRECOMPUTED, 4},
        {103, 152, 4, 2, 16, 32, KDA_GATE_PRECOMPUTED, 8},
        {103, 152, 4, 3, 16, 32, KDA_GATE_PRECOMPUTED, 4},
        {103, 152, 4, 7, 16, 32, KDA_GATE_PRECOMPUTED, 2},
        {103, 152, 4, 8, 16, 32, KDA_GATE_PRECOMPUTED, 1},
        {103, 152, 4, 16, 16, 32, KDA_GATE_PRECOMPUTED, 2},
        {103, 152, 5, 3, 16, 32, KDA_GATE_PRECOMPUTED, 4},
        {103, 152, 5, 4, 16, 32, KDA_GATE_PRECOMPUTED, 1},
        {103, 152, 5, 5, 16, 32, KDA_GATE_PRECOMPUTED, 2},
        {103, 152, 6, 1, 16, 32, KDA_GATE_PRECOMPUTED, 8},
        {103, 152, 6, 2, 16, 32, KDA_GATE_PRECOMPUTED, 2},
        {103, 152, 6, 3, 16, 32, KDA_GATE_PRECOMPUTED, 1},
        {100, 148, 1, 18, 32, 32, KDA_GATE_SOFTPLUS, 16},
        {100, 148, 1, 19, 32, 32, KDA_GATE_SOFTPLUS, 8},
        {100, 160, 1, 20, 32, 32, KDA_GATE_SOFTPLUS, 16},
        {103, 160, 1, 21, 32, 32, KDA_GATE_SOFTPLUS, 8},
        {100, 148, 3, 16, 16, 16, KDA_GATE_LOWER_BOUND, 4},
        {103, 1, 3, 1, 16, 16, KDA_GATE_LOWER_BOUND, 4},
    };
    for (size_t i = 0; i < sizeof points / sizeof *points; ++i) {
        kda_problem problem = problem_of(points[i].tokens, points[i].gate, points[i].rows,
                                         points[i].heads, points[i].value_heads);
        kda_route_result route =
            route_on(bundle, device_of(points[i].cc, 13000, points[i].sms), problem);
        if (route.split != points[i].split) fail_msg("point %zu: split %u", i, route.split);
        assert_int_equal(route.grid[0], (unsigned)points[i].value_heads * points[i].split);
        assert_int_equal(route.grid[1], points[i].rows);
        assert_int_equal(route.grid[2], 1);
    }
}

static void packed_rows(void **state)
{
    (void)state;
    for (int64_t rows = 1; rows <= 65535; rows += rows < 100 ? 1 : 997) {
        kda_route_result route = route_on(bundle, device_of(103, 12090, 1), packed_of(rows));
        assert_string_equal(route.body, rows <= 31 ? "packed_t1_tile8" : "packed_t1_tile16");
        assert_string_equal(route.target, "sm_100f");
        assert_int_equal(route.grid[0], rows <= 31 ? 192 : 96);
        assert_int_equal(route.grid[1], rows);
    }
}

static void large_products(void **state)
{
    (void)state;
    // W = 65535 * 134217727 is far above 32 bits, and 2*W*S above 2^53.
    kda_problem problem = problem_of(4, KDA_GATE_PRECOMPUTED, 65535, 1, INT32_MAX / 16);
    assert_int_equal(route_on(bundle, device_of(103, 13000, 1), problem).split, 2);
    assert_int_equal(route_on(bundle, device_of(103, 13000, INT32_MAX), problem).split, 2);
    problem.rows = 1;
    assert_int_equal(route_on(bundle, device_of(103, 13000, INT32_MAX), problem).split, 8);
    problem = problem_of(5, KDA_GATE_PRECOMPUTED, 1, 1, INT32_MAX);
    assert_int_equal(route_on(bundle, device_of(100, 13000, 148), problem).grid[0], INT32_MAX);
    problem.tokens = 4;
    REFUSE(bundle, device_of(100, 13000, 148), problem, KDA_E_LIMIT, "HV*split", "2147483647*2");
    problem.value_heads = INT64_MAX;
    REFUSE(bundle, device_of(100, 13000, 148), problem, KDA_E_LIMIT, "HV*split");
    problem.rows = 2;
    REFUSE(bundle, device_of(100, 13000, 148), problem, KDA_E_LIMIT, "64 bits",
           "9223372036854775807");
    problem.value_heads = 1;
    problem.rows = 65536;
    REFUSE(bundle, device_of(100, 13000, 148), problem, KDA_E_LIMIT, "65536", "65535");
    REFUSE(bundle, device_of(100, 13000, 148), packed_of(65536), KDA_E_LIMIT, "packed", "65536");
}

// --------------------------------------------------------------------------------- targets

static void cc_and_cuda(void **state)
{
    (void)state;
    static const int ccs[] = {75, 80, 90, 99, 100, 101, 103, 107, 110, 120, 121, 1000};
    static const int cudas[] = {12070, 12080, 12090, 13000};
    const kda_problem problems[] = {problem_of(1, KDA_GATE_PRECOMPUTED, 8, 16, 32),
                                    problem_of(1, KDA_GATE_SOFTPLUS, 8, 32, 32),
                                    problem_of(2, KDA_GATE_PRECOMPUTED, 8, 16, 32),
                                    problem_of(3, KDA_GATE_LOWER_BOUND, 8, 16, 16),
                                    problem_of(6, KDA_GATE_PRECOMPUTED, 8, 16, 32),
                                    packed_of(8)};
    for (size_t c = 0; c < sizeof ccs / sizeof *ccs; ++c) {
        for (size_t v = 0; v < sizeof cudas / sizeof *cudas; ++v) {
            for (size_t p = 0; p < sizeof problems / sizeof *problems; ++p) {
                kda_device device = device_of(ccs[c], cudas[v], 148);
                char cc[32];
                snprintf(cc, sizeof cc, "device is %d.%d", ccs[c] / 10, ccs[c] % 10);
                if (ccs[c] != 100 && ccs[c] != 103) {
                    REFUSE(bundle, device, problems[p], KDA_E_NO_ROUTE, cc, "10.0, 10.3", "match",
                           "all need CC", "sm_100f, sm_100a, sm_103a", "(reported)");
                } else if (ccs[c] == 100 && cudas[v] < 12080) {
                    REFUSE(bundle, device, problems[p], KDA_E_CUDA_VERSION,
                           "requires CUDA 12.8 or newer", "sm_100f (floor CUDA 12.9)",
                           "sm_100a (floor CUDA 12.8)", "CC 10.0", "found 12.7");
                } else if (ccs[c] == 103 && cudas[v] < 12090) {
                    REFUSE(bundle, device, problems[p], KDA_E_CUDA_VERSION,
                           "requires CUDA 12.9 or newer",
                           p == 0 ? "sm_103a (floor CUDA 12.9)" : "sm_100f (floor CUDA 12.9)",
                           "148 SMs (reported)");
                } else {
                    const char *target = ccs[c] == 103 ? (p == 0 ? "sm_103a" : "sm_100f")
                                                       : (cudas[v] < 12090 ? "sm_100a" : "sm_100f");
                    assert_string_equal(route_on(bundle, device, problems[p]).target, target);
                }
            }
        }
    }
}

static void missing_targets(void **state)
{
    (void)state;
    const kda_problem direct = problem_of(1, KDA_GATE_PRECOMPUTED, 8, 16, 32);
    const kda_problem two = problem_of(2, KDA_GATE_PRECOMPUTED, 8, 16, 32);
    const kda_device b200 = device_of(100, 13000, 148), b200_old = device_of(100, 12080, 148);
    const kda_device b300 = device_of(103, 13000, 152);
    {
        const struct blob_target targets[] = {
            {"sm_100f", "12.9.86", 12090, NULL}, {"sm_100a", "12.9.86", 12090, NULL}, {0}};
        struct blob made = blob_make(targets);
        kda_bundle *some = open_blob(&made);
        REFUSE(some, b300, direct, KDA_E_NO_ROUTE, "d128_t1_precomputed_direct_split16", "sm_103a",
               "it holds this body for sm_100f, sm_100a");
        assert_string_equal(route_on(some, b300, two).target, "sm_100f");
        kda_bundle_close(&some);
        free(made.data);
    }
    {
        const struct blob_target targets[] = {
            {"sm_100a", "12.9.86", 12090, NULL}, {"sm_103a", "12.9.86", 12090, NULL}, {0}};
        struct blob made = blob_make(targets);
        kda_bundle *some = open_blob(&made);
        assert_string_equal(route_on(some, b200, two).target, "sm_100a");
        assert_string_equal(route_on(some, b300, direct).target, "sm_103a");
        REFUSE(some, b300, two, KDA_E_NO_ROUTE,
               "no image of d128_t2_precomputed_split4 for sm_100f",
               "holds this body for sm_100a, sm_103a");
        kda_bundle_close(&some);
        free(made.data);
    }
    {
        const struct blob_target targets[] = {
            {"sm_100f", "12.9.86", 12090, NULL}, {"sm_103a", "12.9.86", 12090, NULL}, {0}};
        struct blob made = blob_make(targets);
        kda_bundle *some = open_blob(&made);
        assert_string_equal(route_on(some, b200, two).target, "sm_100f");
        // The reasons differ: sm_100a is the first target whose floor is met.
        REFUSE(some, b200_old, two, KDA_E_NO_ROUTE, "for sm_100a", "sm_100f (floor CUDA 12.9)",
               "sm_100a (not in the bundle)");
        REFUSE(some, device_of(100, 12070, 148), two, KDA_E_CUDA_VERSION,
               "requires CUDA 12.8 or newer");
        kda_bundle_close(&some);
        free(made.data);
    }
    {
        const struct blob_target targets[] = {
            {"sm_100f", "12.9.86", 12090, "d128_t2_precomputed_split4"},
            {"sm_100a", "12.9.86", 12090, NULL},
            {0}};
        struct blob made = blob_make(targets);
        kda_bundle *some = open_blob(&made);
        assert_string_equal(route_on(some, b200, two).target, "sm_100a");
        assert_string_equal(route_on(some, b200, direct).target, "sm_100f");
        kda_problem forced = two;
        forced.target = "sm_100f";
        REFUSE(some, b200, forced, KDA_E_NO_ROUTE, "holds this body for sm_100a");
        kda_bundle_close(&some);
        free(made.data);
    }
}

static void minimum_driver(void **state)
{
    (void)state;
    const kda_problem two = problem_of(2, KDA_GATE_PRECOMPUTED, 8, 16, 32);
    const struct blob_target mixed[] = {
        {"sm_100f", "13.0.88", 13000, NULL}, {"sm_100a", "12.9.86", 12090, NULL}, {0}};
    struct blob made = blob_make(mixed);
    kda_bundle *some = open_blob(&made);
    kda_route_result route = route_on(some, device_of(100, 12090, 148), two);
    assert_string_equal(route.target, "sm_100a");
    assert_string_equal(route.toolkit, "12.9.86");
    assert_int_equal(route.min_cuda, 12080);
    route = route_on(some, device_of(100, 13000, 148), two);
    assert_string_equal(route.target, "sm_100f");
    assert_int_equal(route.min_cuda, 13000);
    REFUSE(some, device_of(103, 12090, 148), two, KDA_E_CUDA_VERSION, "13.0.88",
           "CUDA 13.0 or newer", "found 12.9");
    kda_bundle_close(&some);
    free(made.data);

    const struct blob_target all_new[] = {
        {"sm_100f", "13.0.88", 13000, NULL}, {"sm_100a", "13.0.88", 13000, NULL}, {0}};
    made = blob_make(all_new);
    some = open_blob(&made);
    REFUSE(some, device_of(100, 12080, 148), two, KDA_E_CUDA_VERSION, "for sm_100a", "13.0.88",
           "CUDA 13.0", "sm_100f (floor CUDA 12.9)", "sm_100a (minimum driver CUDA 13.0)");
    REFUSE(some, device_of(100, 12090, 148), two, KDA_E_CUDA_VERSION, "for sm_100f", "13.0.88");
    kda_bundle_close(&some);
    free(made.data);
}

static void hopper(void **state)
{
    (void)state;
    const struct blob_target targets[] = {{"sm_90a", "12.9.86", 12090, NULL}, {0}};
    struct blob made = blob_make(targets);
    kda_bundle *some = open_blob(&made);
    const kda_device h200 = device_of(90, 12000, 132);
    assert_string_equal(route_on(some, h200, problem_of(1, KDA_GATE_PRECOMPUTED, 8, 16, 32)).target,
                        "sm_90a");
    assert_int_equal(route_on(some, h200, problem_of(1, KDA_GATE_PRECOMPUTED, 264, 1, 1)).split,
                     16);
    assert_int_equal(route_on(some, h200, problem_of(1, KDA_GATE_PRECOMPUTED, 265, 1, 1)).split, 8);
    assert_string_equal(route_on(some, h200, problem_of(3, KDA_GATE_LOWER_BOUND, 8, 16, 16)).target,
                        "sm_90a");
    assert_string_equal(route_on(some, h200, packed_of(32)).body, "packed_t1_tile16");
    REFUSE(some, device_of(100, 13000, 148), packed_of(32), KDA_E_NO_ROUTE,
           "all need CC 9.0, device is 10.0", "holds targets sm_90a");
    REFUSE(some, device_of(90, 11080, 132), packed_of(32), KDA_E_CUDA_VERSION,
           "requires CUDA 12.0 or newer");
    kda_bundle_close(&some);
    free(made.data);
}

// ---------------------------------------------------------------------------------- forced

static void forced_names(void **state)
{
    (void)state;
    const kda_device b200 = device_of(100, 13000, 148), b300 = device_of(103, 13000, 152);
    static const char *const unrouted[] = {
        "d128_t1_precomputed_split1", "d128_t1_precomputed_split2", "d128_t1_precomputed_split4",
        "d128_t1_precomputed_split8", "d128_t2_precomputed_split1", "d128_t2_precomputed_split2"};
    for (int i = 0; i < 6; ++i) {
        kda_problem problem = problem_of(i < 4 ? 1 : 2, KDA_GATE_PRECOMPUTED, 8, 16, 32);
        problem.body = unrouted[i];
        kda_route_result route = route_on(bundle, b200, problem);
        assert_string_equal(route.body, unrouted[i]);
        assert_string_equal(route.target, "sm_100f");
        problem.target = "sm_100a";
        assert_string_equal(route_on(bundle, b200, problem).target, "sm_100a");
        problem.target = "sm_103a";
        assert_string_equal(route_on(bundle, b300, problem).target, "sm_103a");
        REFUSE(bundle, b200, problem, KDA_E_NO_ROUTE, "target sm_103a runs on CC 10.3 only",
               "device is 10.0", "sm_100f, sm_100a, sm_103a");
    }
    kda_problem problem = problem_of(1, KDA_GATE_PRECOMPUTED, 8, 16, 32);
    problem.target =
        "sm_100f";  // not in the list of this body on 10.3, but an image that runs there
    assert_string_equal(route_on(bundle, b300, problem).target, "sm_100f");
    REFUSE(bundle, device_of(103, 12080, 152), problem, KDA_E_CUDA_VERSION,
           "requires CUDA 12.9 or newer");
    problem.target = "sm_100a";
    REFUSE(bundle, b300, problem, KDA_E_NO_ROUTE, "runs on CC 10.0 only", "10.3");
    REFUSE(bundle, device_of(90, 13000, 132), problem, KDA_E_NO_ROUTE, "9.0");
    problem.target = "sm_100";
    REFUSE(bundle, b300, problem, KDA_E_NAME, "unknown target sm_100;",
           "sm_100f, sm_100a, sm_103a");
    problem.target = "sm_90a";
    REFUSE(bundle, b300, problem, KDA_E_NAME, "unknown target sm_90a");
    problem.target = NULL;
    problem.body = "d128_t1_precomputed_split3";
    REFUSE(bundle, b300, problem, KDA_E_NAME, "unknown body d128_t1_precomputed_split3",
           "d128_t1_precomputed_direct_split16", "d128_t1_precomputed_split1");
    static const char *const foreign[] = {"d128_t2_precomputed_split4",
                                          "d128_t1_unbounded_softplus_direct_split8",
                                          "packed_t1_tile8", "d128_t3_lower_bound_split4"};
    for (int i = 0; i < 4; ++i) {
        problem.body = foreign[i];
        REFUSE(bundle, b300, problem, KDA_E_NAME, foreign[i], "not for this call",
               "d128_t1_precomputed_split8");
        // A wrong name comes before a wrong device.
        REFUSE(bundle, device_of(120, 13000, 152), problem, KDA_E_NAME, foreign[i]);
    }
    problem = packed_of(8);
    problem.body = "packed_t1_tile16";
    assert_string_equal(route_on(bundle, b300, problem).body, "packed_t1_tile16");
    problem.body = "d128_t1_precomputed_split1";
    REFUSE(bundle, b300, problem, KDA_E_NAME, "packed", "packed_t1_tile8, packed_t1_tile16");
}

// --------------------------------------------------------------------------- accepted calls

static void unsupported(void **state)
{
    (void)state;
    const kda_device b200 = device_of(100, 13000, 148);
    kda_problem calls[64];
    size_t count = 0;
    calls[count++] = problem_of(3, KDA_GATE_PRECOMPUTED, 8, 16, 16);
    calls[count++] = problem_of(1, KDA_GATE_LOWER_BOUND, 8, 16, 16);
    calls[count++] = problem_of(2, KDA_GATE_SOFTPLUS, 8, 16, 16);
    calls[count++] = problem_of(7, KDA_GATE_PRECOMPUTED, 8, 16, 16);
    calls[count++] = problem_of(0, KDA_GATE_PRECOMPUTED, 8, 16, 16);
    calls[count++] = problem_of(-1, KDA_GATE_PRECOMPUTED, 8, 16, 16);
    calls[count++] = problem_of(INT32_MAX, KDA_GATE_PRECOMPUTED, 8, 16, 16);
    calls[count++] = problem_of(1, (kda_gate)3, 8, 16, 16);
    calls[count++] = problem_of(1, KDA_GATE_SOFTPLUS, 8, 16, 32);
    calls[count++] = problem_of(1, KDA_GATE_PRECOMPUTED, 0, 16, 32);
    calls[count++] = problem_of(1, KDA_GATE_PRECOMPUTED, -5, 16, 32);
    static const int rows[] = {3, 5, 7, 9, 15, 17, 32, 33, 65536};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i)
        calls[count++] = problem_of(3, KDA_GATE_LOWER_BOUND, rows[i], 16, 16);
    calls[count++] = problem_of(3, KDA_GATE_LOWER_BOUND, 8, 8, 16);
    calls[count++] = problem_of(3, KDA_GATE_LOWER_BOUND, 8, 16, 32);
    calls[count++] = problem_of(3, KDA_GATE_LOWER_BOUND, INT64_MAX, 16, 16);
    calls[count] = problem_of(1, KDA_GATE_PRECOMPUTED, 8, 16, 32);
    calls[count++].state_type = KDA_F32;
    calls[count] = problem_of(1, KDA_GATE_PRECOMPUTED, 8, 16, 32);
    calls[count++].mode = 1;
    calls[count] = packed_of(8);
    calls[count++].heads = 6;
    calls[count] = packed_of(8);
    calls[count++].value_heads = 24;
    calls[count] = packed_of(8);
    calls[count].heads = 24;
    calls[count++].value_heads = 24;
    calls[count] = packed_of(8);
    calls[count++].gate = KDA_GATE_PRECOMPUTED;
    calls[count++] = packed_of(0);
    for (size_t i = 0; i < count; ++i) {
        bool packed = calls[i].op == KDA_OP_PACKED;
        REFUSE(bundle, b200, calls[i], KDA_E_UNSUPPORTED, "does not support",
               packed ? "packed: " : "recurrent: ",
               packed ? "T=1 lower_bound with H=12, HV=H" : "T=1 precomputed; ",
               packed ? "" : "T=3 lower_bound with H=16, HV=H, N in {1,2,4,8,16}",
               packed ? "" : "T=6 precomputed; T=1 softplus with HV=H");
    }
    kda_problem other = problem_of(1, KDA_GATE_PRECOMPUTED, 8, 16, 16);
    other.op = KDA_OP_FUSED;
    REFUSE(bundle, b200, other, KDA_E_UNSUPPORTED, "fused: does not support");
    for (other.op = KDA_OP_VERIFY; other.op <= KDA_OP_COMMIT; other.op++) {
        other.tokens = 17;
        REFUSE(bundle, b200, other, KDA_E_UNSUPPORTED, "does not support T=17", "supported");
        other.tokens = 0;
        REFUSE(bundle, b200, other, KDA_E_UNSUPPORTED, "does not support T=0");
    }
    other.op = (kda_op)77;
    REFUSE(bundle, b200, other, KDA_E_UNSUPPORTED, "does not support", "no body of this operator");
    // T=3 takes its five row counts, and a stated state type.
    for (int n = 1; n <= 16; n *= 2) {
        kda_problem three = problem_of(3, KDA_GATE_LOWER_BOUND, n, 16, 16);
        three.state_type = KDA_BF16;
        assert_string_equal(route_on(bundle, b200, three).body, "d128_t3_lower_bound_split4");
    }
}

static void arguments(void **state)
{
    (void)state;
    const kda_problem good = problem_of(1, KDA_GATE_PRECOMPUTED, 8, 16, 32);
    const kda_device b200 = device_of(100, 13000, 148);
    static const int64_t heads[][2] = {{0, 32},  {-1, 32}, {16, 8},
                                       {16, 24}, {16, 0},  {INT64_MIN, INT64_MIN}};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; ++i) {
        char text[64];
        snprintf(text, sizeof text, "H=%lld, HV=%lld", (long long)heads[i][0],
                 (long long)heads[i][1]);
        REFUSE(bundle, b200, problem_of(1, KDA_GATE_PRECOMPUTED, 8, heads[i][0], heads[i][1]),
               KDA_E_ARGUMENT, text);
    }
    REFUSE(bundle, device_of(100, 13000, 0), good, KDA_E_ARGUMENT, "SM count", "found 0");
    REFUSE(bundle, device_of(100, 13000, -3), good, KDA_E_ARGUMENT, "SM count", "found -3");
    REFUSE(bundle, device_of(100, -1, 148), good, KDA_E_ARGUMENT, "CUDA version");
    kda_device odd = b200;
    odd.cc_major = 9;
    odd.cc_minor = 10;  // 10*9 + 10 is not CC 10.0
    REFUSE(bundle, odd, good, KDA_E_ARGUMENT, "9 and 10");
    odd = b200;
    odd.cc_major = INT32_MAX;
    REFUSE(bundle, odd, good, KDA_E_ARGUMENT, "CC");
    odd = b200;
    odd.overridden = 8;
    REFUSE(bundle, odd, good, KDA_E_ARGUMENT, "device.overridden is 0x8");
    odd = b200;
    odd.reserved[2] = 1;
    REFUSE(bundle, odd, good, KDA_E_ARGUMENT, "device.reserved[2] is 0x1");
    kda_problem unknown = good;
    unknown.op = (kda_op)9;
    REFUSE(bundle, b200, unknown, KDA_E_UNSUPPORTED, "op 9", "recurrent (1)", "commit (5)");
    unknown = good;
    unknown.gate = (kda_gate)7;
    REFUSE(bundle, b200, unknown, KDA_E_UNSUPPORTED, "gate 7,", "softplus");
    unknown = good;
    unknown.state_type = KDA_I32;
    REFUSE(bundle, b200, unknown, KDA_E_UNSUPPORTED, "state of type 3");
    unknown = good;
    unknown.mode = 8;
    REFUSE(bundle, b200, unknown, KDA_E_UNSUPPORTED, "mode 8");
    kda_problem reserved = good;
    reserved.reserved[3] = 1;
    REFUSE(bundle, b200, reserved, KDA_E_ARGUMENT, "problem.reserved[3] is 0x1");

    kda_route_result out;
    kda_error err;
    assert_int_equal(kda_route(NULL, &b200, &good, &out, &err), KDA_E_ARGUMENT);
    assert_non_null(strstr(err.text, "bundle"));
    assert_int_equal(kda_route(bundle, NULL, &good, &out, &err), KDA_E_ARGUMENT);
    assert_non_null(strstr(err.text, "device"));
    assert_int_equal(kda_route(bundle, &b200, NULL, &out, &err), KDA_E_ARGUMENT);
    assert_non_null(strstr(err.text, "problem"));
    assert_int_equal(kda_route(bundle, &b200, &good, NULL, &err), KDA_E_ARGUMENT);
    assert_non_null(strstr(err.text, "out"));
}

static void report(void **state)
{
    (void)state;
    kda_device device = device_of(103, 13000, 77);
    device.overridden = KDA_OVERRIDDEN_SMS;
    kda_route_result route =
        route_on(bundle, device, problem_of(2, KDA_GATE_PRECOMPUTED, 1, 16, 32));
    assert_memory_equal(&route.facts, &device, sizeof device);
    assert_string_equal(route.entry, "kda_d128_t2_precomputed_split8");
    assert_int_equal(route.block % 32, 0);
    assert_string_equal(route.toolkit, "12.9.86");
    assert_int_equal(route.min_cuda, 12090);
    uint32_t body = kda_bundle_find_body(bundle, route.body);
    uint32_t cubin =
        kda_bundle_find_cubin(bundle, body, kda_bundle_find_target(bundle, route.target));
    assert_int_equal(route.block, bundle->bodies[body].threads);
    assert_int_equal(route.smem, bundle->bodies[body].smem);
    assert_int_equal(route.registers, bundle->cubins[cubin].registers);
    assert_memory_equal(route.sha256, bundle->cubins[cubin].sha256, 32);
    assert_memory_equal(route.body_sha256, bundle->bodies[body].sha256, 32);

    char text[128], small[8];
    kda_device_text(&device, text, sizeof text);
    assert_string_equal(text, "CC 10.3 (reported), CUDA 13.0 (reported), 77 SMs (overridden)");
    kda_device_text(&device, small, sizeof small);
    assert_string_equal(small, "CC 10.3");
    device.cuda_version = 12080;
    device.overridden = KDA_OVERRIDDEN_CUDA | KDA_OVERRIDDEN_CC;
    REFUSE(bundle, device, problem_of(2, KDA_GATE_PRECOMPUTED, 1, 16, 32), KDA_E_CUDA_VERSION,
           "facts: CC 10.3 (overridden), CUDA 12.8 (overridden), 77 SMs (reported)");
}

static int set_up(void **state)
{
    (void)state;
    blob = blob_default();
    kda_error err;
    return (int)kda_bundle_open(blob.data, blob.size, &bundle, &err);
}

static int tear_down(void **state)
{
    (void)state;
    kda_bundle_close(&bundle);
    free(blob.data);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: route_test VECTORS.tsv [BUNDLE]\n");
        return 2;
    }
    vectors_path = argv[1];
    bundle_path = argc > 2 ? argv[2] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors),        cmocka_unit_test(vectors_of_the_file),
        cmocka_unit_test(boundaries),     cmocka_unit_test(worked_points),
        cmocka_unit_test(packed_rows),    cmocka_unit_test(large_products),
        cmocka_unit_test(cc_and_cuda),    cmocka_unit_test(missing_targets),
        cmocka_unit_test(minimum_driver), cmocka_unit_test(hopper),
        cmocka_unit_test(forced_names),   cmocka_unit_test(unsupported),
        cmocka_unit_test(arguments),      cmocka_unit_test(report),
    };
    return cmocka_run_group_tests_name("route", tests, set_up, tear_down);
}
