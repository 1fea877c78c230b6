// SPDX-License-Identifier: Apache-2.0
// Owns the times of everything before the first launch: open, load, prepare. The driver is the
// process's own, so the same numbers mean a GPU's driver in one verb and none in the other.
#include <stdlib.h>

#include "tools/bench.h"

enum { REPEATS = 9 };

static double time_open(const char *path)
{
    double times[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        kda_bundle *bundle;
        kda_error err;
        const double start = bench_now();
        if (bench_open(path, &bundle, &err)) bench_die(&err);
        times[i] = bench_now() - start;
        kda_bundle_close(&bundle);
    }
    return bench_median(times, REPEATS);
}

static kda_context *bind(const kda_bundle *bundle)
{
    kda_context *context;
    kda_error err;
    if (kda_context_create(bundle, NULL, NULL, &context, &err)) bench_die(&err);
    return context;
}

// One problem that the body takes.
static kda_problem problem_of(const kda_bundle *bundle, const struct kda_format_body *body)
{
    const int64_t heads = kda_heads_least(body->head_set, 16);
    return (kda_problem){.op = (kda_op)body->op,
                         .gate = (kda_gate)body->gate,
                         .tokens = (int32_t)body->tokens_min,
                         .rows = 1,
                         .heads = heads,
                         .value_heads = heads,
                         .body = bundle->strings + body->name};
}

// Seconds of each body's first load into a new context; how many of them have an image here, and
// the one that took longest.
static size_t time_loads(const kda_bundle *bundle, double *times, const char **slowest)
{
    kda_context *context = bind(bundle);
    size_t count = 0;
    double most = 0;
    for (uint32_t i = 0; i < bundle->body_count; i++) {
        const kda_problem problem = problem_of(bundle, &bundle->bodies[i]);
        const double start = bench_now();
        if (kda_context_prepare(context, &problem, NULL)) continue;
        times[count++] = bench_now() - start;
        if (times[count - 1] <= most) continue;
        most = times[count - 1];
        *slowest = problem.body;
    }
    kda_context_close(&context);
    return count;
}

// Negative: nothing can be prepared on this device.
static double time_prepare(const kda_bundle *bundle)
{
    double times[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        kda_context *context = bind(bundle);
        const double start = bench_now();
        const kda_status status = kda_context_prepare(context, NULL, NULL);
        times[i] = bench_now() - start;
        kda_context_close(&context);
        if (status) return -1;
    }
    return bench_median(times, REPEATS);
}

void bench_loads(const char *bundle_path)
{
    kda_bundle *bundle;
    kda_error err;
    if (bench_open(bundle_path, &bundle, &err)) bench_die(&err);
    printf("open     %8.1f us, bundle of %zu bytes\n", time_open(bundle_path) * 1e6, bundle->size);
    double *times = bench_memory(bundle->body_count, sizeof *times);
    const char *slowest = "";
    const size_t count = time_loads(bundle, times, &slowest);
    if (count) {
        const double median = bench_median(times, count);
        printf("load     %8.1f us, %.1f us at most (%s), for one of %zu cold kernels\n",
               median * 1e6, times[count - 1] * 1e6, slowest, count);
        printf("prepare  %8.1f us for everything\n", time_prepare(bundle) * 1e6);
    }
    free(times);
    kda_bundle_close(&bundle);
}
