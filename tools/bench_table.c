// SPDX-License-Identifier: Apache-2.0
// Owns measured rows as tables: what a person reads, the TSV that a later run compares with, and
// JSON. It measures nothing. Invariant: what is written as TSV can be read back as a table.
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "loader/error.h"
#include "tools/bench.h"
#include "tools/files.h"
#include "tools/json.h"

void bench_rows_add(struct bench_rows *rows, const struct bench_row *row)
{
    if ((rows->count & (rows->count - 1)) == 0) {
        struct bench_row *grown =
            bench_memory(rows->count ? 2 * rows->count : 1, sizeof *rows->rows);
        if (rows->count) memcpy(grown, rows->rows, rows->count * sizeof *grown);
        free(rows->rows);
        rows->rows = grown;
    }
    rows->rows[rows->count++] = *row;
}

void bench_rows_free(struct bench_rows *rows)
{
    free(rows->rows);
    *rows = (struct bench_rows){.count = 0};
}

static bool same_shape(const struct bench_shape *a, const struct bench_shape *b)
{
    return a->kind == b->kind && a->tokens == b->tokens && a->rows == b->rows &&
           a->heads == b->heads && a->value_heads == b->value_heads;
}

const struct bench_row *bench_find(const struct bench_rows *table, const struct bench_row *row)
{
    for (size_t i = 0; i < table->count; i++)
        if (same_shape(&table->rows[i].shape, &row->shape) &&
            !strcmp(bench_label(table->rows[i].body), bench_label(row->body)))
            return &table->rows[i];
    return NULL;
}

// --------------------------------------------------------------------------------------------- TSV

enum { KIND, T, N, H, HV, FLOOR, BODY, US, SM100A, SM103A, COLUMNS };
static const struct {
    const char *name, *other;
} columns[COLUMNS] = {
    {"kind", NULL},
    {"T", NULL},
    {"N", NULL},
    {"H", NULL},
    {"HV", NULL},
    {"floor_us", NULL},
    {"body", NULL},
    {"us", "peer_us"},
    {"routed_sm100a", NULL},
    {"routed_sm103a", NULL},
};

// Splits a line at its tabs, in place.
static size_t split(char *line, char *fields[], size_t limit)
{
    size_t count = 0;
    for (char *at = line; at && count < limit; count++) {
        fields[count] = at;
        at = strchr(at, '\t');
        if (at) *at++ = 0;
    }
    return count;
}

enum { MAX_FIELDS = 32 };

static bool read_head(char *line, size_t places[COLUMNS])
{
    char *names[MAX_FIELDS];
    size_t count = split(line, names, MAX_FIELDS);
    for (int i = 0; i < COLUMNS; i++) {
        size_t at = 0;
        while (at < count && strcmp(names[at], columns[i].name) != 0 &&
               !(columns[i].other && !strcmp(names[at], columns[i].other)))
            at++;
        if (at == count) return false;
        places[i] = at;
    }
    return true;
}

static bool read_row(char *line, const size_t places[COLUMNS], struct bench_row *out)
{
    char *fields[MAX_FIELDS], *end;
    size_t count = split(line, fields, MAX_FIELDS);
    double numbers[COLUMNS] = {0};
    for (int i = 0; i < COLUMNS; i++) {
        if (places[i] >= count) return false;
        if (i == KIND || i == BODY) continue;
        numbers[i] = strtod(fields[places[i]], &end);
        if (end == fields[places[i]] || *end || !(numbers[i] >= 0 && numbers[i] < 1e15))
            return false;
    }
    *out = (struct bench_row){
        .shape = {.kind = bench_kind_find(fields[places[KIND]]),
                  .tokens = (int64_t)numbers[T],
                  .rows = (int64_t)numbers[N],
                  .heads = (int64_t)numbers[H],
                  .value_heads = (int64_t)numbers[HV]},
        .us = numbers[US],
        .floor_us = numbers[FLOOR],
        .routed_sm100a = numbers[SM100A] != 0,
        .routed_sm103a = numbers[SM103A] != 0,
    };
    snprintf(out->body, sizeof out->body, "%s", fields[places[BODY]]);
    return out->shape.kind && out->us > 0 && out->floor_us > 0;
}

kda_status bench_read_tsv(const char *path, struct bench_rows *out, kda_error *err)
{
    uint8_t *data;
    size_t size, places[COLUMNS];
    kda_status status = kda_files_read(path, &data, &size, err);
    if (status) return status;
    struct bench_rows rows = {.count = 0};
    int number = 0;
    char *rest = (char *)data;
    for (char *line; (line = strsep(&rest, "\n")) && !status; number++) {
        struct bench_row row;
        if (!*line && number) continue;
        if (!number && !read_head(line, places))
            status =
                kda_fail(err, KDA_E_FORMAT,
                         "%s: the first line does not name the columns of a bench table", path);
        else if (number && !read_row(line, places, &row))
            status =
                kda_fail(err, KDA_E_FORMAT, "%s:%d: not a row of a bench table", path, number + 1);
        else if (number)
            bench_rows_add(&rows, &row);
    }
    free(data);
    if (status)
        bench_rows_free(&rows);
    else
        *out = rows;
    return status;
}

kda_status bench_write_text(const char *path, const struct bench_rows *rows,
                            const struct bench_device *device, bench_print *print, kda_error *err)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out) return kda_fail(err, KDA_E_NO_MEMORY, "%s: no memory for its text", path);
    print(out, rows, device);
    const bool failed = ferror(out) != 0;
    kda_status status = fclose(out) != 0 || failed
                            ? kda_fail(err, KDA_E_NO_MEMORY, "%s: no memory for its text", path)
                            : kda_files_write(path, text, size, err);
    free(text);
    return status;
}

static double gigabytes_per_second(const struct bench_row *row)
{
    return bench_bytes(&row->shape) / row->us * 1e-3;
}

static void print_tsv(FILE *out, const struct bench_rows *rows, const struct bench_device *device)
{
    (void)device;  // of no row
    fprintf(out, "kind\tT\tN\tH\tHV\tbytes\tfloor_us\tbody\tus\tover_floor\trouted_sm100a\t"
                 "routed_sm103a\tgb_per_s\n");
    for (size_t i = 0; i < rows->count; i++) {
        const struct bench_row *row = &rows->rows[i];
        const struct bench_shape *shape = &row->shape;
        fprintf(out,
                "%s\t%" PRId64 "\t%" PRId64 "\t%" PRId64 "\t%" PRId64
                "\t%.0f\t%.3f\t%s\t%.3f\t%.3f\t%d\t%d\t%.0f\n",
                shape->kind->name, shape->tokens, shape->rows, shape->heads, shape->value_heads,
                bench_bytes(shape), row->floor_us, bench_label(row->body), row->us,
                bench_over_floor(row), row->routed_sm100a, row->routed_sm103a,
                gigabytes_per_second(row));
    }
}

kda_status bench_write_tsv(const char *path, const struct bench_rows *rows, kda_error *err)
{
    return bench_write_text(path, rows, NULL, print_tsv, err);
}

// -------------------------------------------------------------------------------------------- JSON

static void print_json(FILE *out, const struct bench_rows *rows, const struct bench_device *device)
{
    struct json json = {.out = out};
    json_open(&json, NULL, '{');
    json_number(&json, "schema_version", 1);
    json_open(&json, "device", '{');
    json_text(&json, "name", device->name);
    json_number(&json, "cc", device->cc);
    json_number(&json, "sm_count", device->sm_count);
    json_number(&json, "cuda_version", device->cuda_version);
    json_bool(&json, "soft", device->soft);
    json_close(&json, '}');
    json_text(&json, "bundle_id", device->bundle_id);
    json_bool(&json, "pdl", device->pdl);
    json_open(&json, "rows", '[');
    for (size_t i = 0; i < rows->count; i++) {
        const struct bench_row *row = &rows->rows[i];
        const struct bench_shape *shape = &row->shape;
        json_open(&json, NULL, '{');
        json_text(&json, "kind", shape->kind->name);
        json_number(&json, "tokens", shape->tokens);
        json_number(&json, "rows", shape->rows);
        json_number(&json, "heads", shape->heads);
        json_number(&json, "value_heads", shape->value_heads);
        json_text(&json, "body", row->body);
        json_real(&json, "us", row->us);
        json_real(&json, "floor_us", row->floor_us);
        json_real(&json, "over_floor", bench_over_floor(row));
        json_real(&json, "gb_per_s", gigabytes_per_second(row));
        json_bool(&json, "routed_sm100a", row->routed_sm100a);
        json_bool(&json, "routed_sm103a", row->routed_sm103a);
        if (row->peer > 0) json_real(&json, "peer_over_floor", row->peer);
        json_close(&json, '}');
    }
    json_close(&json, ']');
    json_close(&json, '}');
}

kda_status bench_write_json(const char *path, const struct bench_rows *rows,
                            const struct bench_device *device, kda_error *err)
{
    return bench_write_text(path, rows, device, print_json, err);
}

// ------------------------------------------------------------------------------------------ people

void bench_print_head(bool compares)
{
    printf("%-12s %1s %5s %3s %3s  %-15s %9s %9s  %6s %6s  %-9s%s\n", "kind", "T", "N", "H", "HV",
           "body", "us", "floor us", "x", "GB/s", "routed", compares ? "   table  gain" : "");
}

static bool routed(const struct bench_row *row) { return row->routed_sm100a || row->routed_sm103a; }

static bool slower(const struct bench_row *row)
{
    return row->peer > 0 && bench_over_floor(row) > BENCH_NOISE * row->peer;
}

void bench_print_row(const struct bench_row *row, bool compares)
{
    const struct bench_shape *shape = &row->shape;
    static const char *const marks[] = {"", "100", "103", "100 103"};
    printf("%-12s %" PRId64 " %5" PRId64 " %3" PRId64 " %3" PRId64
           "  %-15s %9.3f %9.3f  %6.3f %6.0f  %-9s",
           shape->kind->name, shape->tokens, shape->rows, shape->heads, shape->value_heads,
           bench_label(row->body), row->us, row->floor_us, bench_over_floor(row),
           gigabytes_per_second(row), marks[row->routed_sm100a + 2 * row->routed_sm103a]);
    if (row->peer > 0)
        printf("  %6.3f %5.2f%s", row->peer, row->peer / bench_over_floor(row),
               slower(row) ? "  slower" : "");
    else if (compares)
        printf("       -     -");
    printf("\n");
    fflush(stdout);
}

struct mean {
    int count, compared, slower;
    double log_over_floor, worst, log_gain;
};

static void include(struct mean *mean, const struct bench_row *row)
{
    double x = bench_over_floor(row);
    mean->count++;
    mean->log_over_floor += log(x);
    if (x > mean->worst) mean->worst = x;
    if (!(row->peer > 0)) return;
    mean->compared++;
    mean->log_gain += log(row->peer / x);
    mean->slower += slower(row);
}

static void print_mean(const struct mean *mean)
{
    if (mean->count)
        printf("  %4d %6.3f %6.3f", mean->count, exp(mean->log_over_floor / mean->count),
               mean->worst);
    else
        printf("  %4d %6s %6s", 0, "-", "-");
    if (mean->compared) printf(" %6.3f %4d", exp(mean->log_gain / mean->compared), mean->slower);
}

static bool in_group(const struct bench_row *row, const void *first)
{
    const struct bench_shape *shape = first;
    return row->shape.kind == shape->kind && row->shape.tokens == shape->tokens;
}

static bool is_large(const struct bench_row *row, const void *unused)
{
    (void)unused;
    return bench_bytes(&row->shape) >= 64e6;
}

static bool is_single(const struct bench_row *row, const void *unused)
{
    (void)unused;
    return row->shape.rows == 1;
}

static bool is_any(const struct bench_row *row, const void *unused)
{
    (void)row;
    (void)unused;
    return true;
}

// The number of its routed rows that are slower.
static int print_rows(const char *name, const struct bench_rows *rows,
                      bool (*belongs)(const struct bench_row *, const void *), const void *to)
{
    struct mean of_all = {.count = 0}, of_routed = {.count = 0};
    for (size_t i = 0; i < rows->count; i++) {
        if (!belongs(&rows->rows[i], to)) continue;
        include(&of_all, &rows->rows[i]);
        if (routed(&rows->rows[i])) include(&of_routed, &rows->rows[i]);
    }
    printf("%-14s", name);
    print_mean(&of_routed);
    printf("  |");
    print_mean(&of_all);
    printf("\n");
    return of_routed.slower;
}

int bench_print_summary(const struct bench_rows *rows, bool compares)
{
    const char *gain = compares ? "   gain slow" : "";
    printf("\nmeans of time over floor\n%-14s  %4s %6s %6s%s  |  %4s %6s %6s%s\n", "", "rows",
           "routed", "worst", gain, "rows", "all", "worst", gain);
    for (size_t i = 0; i < rows->count; i++) {
        const struct bench_shape *first = &rows->rows[i].shape;
        bool said = false;
        for (size_t j = 0; j < i && !said; j++) said = in_group(&rows->rows[j], first);
        if (said) continue;
        char name[48];
        snprintf(name, sizeof name, "%s T%" PRId64, first->kind->name, first->tokens);
        print_rows(name, rows, in_group, first);
    }
    print_rows("N = 1", rows, is_single, NULL);
    print_rows("64 MB and more", rows, is_large, NULL);
    return print_rows("all", rows, is_any, NULL);
}
