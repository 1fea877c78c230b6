// SPDX-License-Identifier: Apache-2.0
// What both verbs of kda-bench need and neither owns: a bundle, memory, a clock, a median, an end.
#include <stdlib.h>
#include <time.h>

#include "tools/bench.h"

kda_status bench_open(const char *path, kda_bundle **out, kda_error *err)
{
    return path ? kda_bundle_open_file(path, out, err) : kda_bundle_open_builtin(out, err);
}

void *bench_memory(size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size);
    if (!memory) {
        fprintf(stderr, "kda-bench: out of memory\n");
        exit(BENCH_FINDING);
    }
    return memory;
}

double bench_now(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);  // cannot fail for this clock
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, ascending);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

void bench_die(const kda_error *err)
{
    fprintf(stderr, "kda-bench: %s: %s\n", kda_status_name(err->status), err->text);
    exit(err->status == KDA_E_IO ? BENCH_USAGE : BENCH_FINDING);
}
