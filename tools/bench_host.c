// SPDX-License-Identifier: Apache-2.0
// kda-bench host: owns what the library itself costs, with a driver whose calls do nothing. The
// counts of the launch path are exact and decide the exit status; times are of the machine it runs
// on and are printed beside the project's limits.
#include <getopt.h>
#include <stdlib.h>

#include "tools/bench_call.h"
#include "tools/bench_double.h"

static const char usage[] =
    "usage: kda-bench host [--bundle FILE] [--calls N]\n"
    "Times the host side against a driver double whose calls do nothing. Needs no GPU.\n"
    "  --bundle FILE  images to use; default: the bundle linked in\n"
    "  --calls N      calls per batch; a time is the median over 101 batches (2000)\n"
    "Exit status: 0 a launch makes one driver call, no allocation and takes no lock; 1 it does\n"
    "more; 2 wrong usage or a file that cannot be read.\n";

enum { BATCHES = 101 };

struct subject {
    kda_context *context;
    const struct kda_driver *driver;
    struct bench_call call;
    union bench_args args;
    kda_plan plan;
    struct kda_cu_launch_config config;
};

typedef kda_status step(struct subject *subject);

static kda_status launch_bare(struct subject *subject)
{
    unsigned char nothing = 0;
    void *params[] = {&nothing};
    return (kda_status)subject->driver->cuLaunchKernelEx(&subject->config, NULL, params, NULL);
}

static kda_status launch_plan(struct subject *subject)
{
    return kda_plan_launch(&subject->plan, NULL, NULL);
}

static kda_status call_whole(struct subject *subject)
{
    return bench_launch(subject->context, subject->call.shape.kind->op, &subject->args, NULL, NULL);
}

static kda_status make_plan(struct subject *subject)
{
    return bench_plan(subject->context, &subject->call, NULL, NULL, &subject->plan, NULL);
}

// An idle processor takes a while to reach its clock.
static void warm_up(step *of, struct subject *subject)
{
    const double end = bench_now() + 0.2;
    while (bench_now() < end) (void)of(subject);  // timed, and so checked, behind
}

static double nanoseconds(step *of, struct subject *subject, int calls)
{
    double times[BATCHES];
    for (int i = 0; i < BATCHES; i++) {
        kda_status status = KDA_OK;
        const double start = bench_now();
        for (int j = 0; j < calls; j++) status |= of(subject);
        times[i] = (bench_now() - start) / calls * 1e9;
        if (status) {
            fprintf(stderr, "kda-bench: a call that worked does not work any more\n");
            exit(BENCH_FINDING);
        }
    }
    return bench_median(times, BATCHES);
}

// Addresses that no byte is read from, far enough apart for any shape.
static void open_subject(const struct bench_shape *shape, struct subject *out)
{
    const unsigned long long gap = 1ull << 40;
    struct bench_call *call = &out->call;
    *call = (struct bench_call){
        .shape = *shape,
        .q = gap,
        .k = 2 * gap,
        .v = 3 * gap,
        .g = 4 * gap,
        .beta = 5 * gap,
        .a_log = 6 * gap,
        .dt_bias = 7 * gap,
        .state = 8 * gap,
        .out = 9 * gap,
        .indices = 10 * gap,
        .cu_seqlens = 11 * gap,
        .accepted = 12 * gap,
        .weight = 13 * gap,
        .correction = 14 * gap,
        .kg = 15 * gap,
        .num_slots = 4096,
    };
    bench_args(call, &out->args);
    out->config = (struct kda_cu_launch_config){.grid = {1, 1, 1}, .block = {32, 1, 1}};
    kda_error err;
    if (bench_plan(out->context, call, NULL, NULL, &out->plan, &err)) bench_die(&err);
}

static bool count_path(const char *name, step *of, struct subject *subject)
{
    enum { CALLS = 100 };
    const struct bench_tally before = bench_double_tally();
    for (int i = 0; i < CALLS; i++) (void)of(subject);  // timed, and so checked, before
    const struct bench_tally after = bench_double_tally();
    const long allocations = after.allocations - before.allocations,
               locks = after.locks - before.locks, calls = after.driver_calls - before.driver_calls;
    const bool good = allocations == 0 && locks == 0 && calls == CALLS;
    printf("         %s: %g allocations, %g locks, %g driver calls%s\n", name,
           (double)allocations / CALLS, (double)locks / CALLS, (double)calls / CALLS,
           good ? "" : ", expected 0, 0, 1");
    return good;
}

static bool time_shape(struct subject *subject, const char *shape, int calls)
{
    struct bench_shapes one = {.count = 0};
    if (!bench_shapes_add(&one, shape)) abort();  // written here
    open_subject(&one.shapes[0], subject);
    bench_shapes_free(&one);
    warm_up(call_whole, subject);
    const double bare = nanoseconds(launch_bare, subject, calls);
    const double planned = nanoseconds(launch_plan, subject, calls);
    const double whole = nanoseconds(call_whole, subject, calls);
    const double planning = nanoseconds(make_plan, subject, calls);
    printf("%s\n         bare launch %6.1f ns, plan launch %+6.1f, full call %+6.1f, "
           "making a plan %6.1f\n",
           shape, bare, planned - bare, whole - bare, planning);
    const bool plan_good = count_path("plan launch", launch_plan, subject);
    return count_path("full call  ", call_whole, subject) && plan_good;
}

int bench_host(int argc, char **argv)
{
    static const struct option names[] = {{"bundle", required_argument, NULL, 'b'},
                                          {"calls", required_argument, NULL, 'c'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    const char *path = NULL;
    int calls = 2000, option;
    while ((option = getopt_long(argc, argv, "h", names, NULL)) != -1) {
        if (option == 'h') {
            fputs(usage, stdout);
            return BENCH_OK;
        }
        if (option == 'b') path = optarg;
        if (option == 'c') calls = atoi(optarg);
        if (option == '?') calls = 0;  // refused below
    }
    if (calls < 1 || optind != argc) {
        fputs(usage, stderr);
        return BENCH_USAGE;
    }
    kda_bundle *bundle;
    kda_error err;
    struct subject subject = {.context = NULL};
    if (bench_open(path, &bundle, &err)) bench_die(&err);
    bench_double_install((int)bundle->routes[0].cc);
    if (kda_driver_open(&subject.driver, &err) ||
        kda_context_create(bundle, NULL, NULL, &subject.context, &err) ||
        kda_context_prepare(subject.context, NULL, &err))
        bench_die(&err);

    printf(
        "limits   plan launch +30 ns, full call +250 ns over a bare launch; open 200 us, load of "
        "one cold kernel 1 ms,\n         prepare of everything 20 ms, the driver's part "
        "included, which is nothing here\n");
    bench_loads(path);
    static const char *const shapes[] = {
        "precomputed,1,8,16,32", "softplus,1,8,16,16",      "lower_bound,3,8,16,16",
        "precomputed,6,8,16,32", "packed,1,8,12,12",        "fused_bf16,1,8,12,12",
        "verify,8,8,16,32",      "verify_cached,8,8,16,32", "commit,8,8,16,32"};
    bool good = true;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        good &= time_shape(&subject, shapes[i], calls);
    kda_context_close(&subject.context);
    kda_bundle_close(&bundle);
    return good ? BENCH_OK : BENCH_FINDING;
}
