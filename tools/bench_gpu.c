// SPDX-License-Identifier: Apache-2.0
// kda-bench gpu: owns the measurement. A number is the median over replays of one CUDA graph of
// many calls, each on memory that is not in the L2, divided by the number of calls. The floor of a
// shape is measured in the same way, just before its bodies, as the best of several grids.
#include <fnmatch.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench_floor.h"
#include "tools/bench_pool.h"

static const char usage[] =
    "usage: kda-bench gpu [options]\n"
    "Times every body at every shape of the standard table on device 0, beside a kernel that only\n"
    "moves the state, of fused decode, verify and commit all that it must: the floor. On the soft\n"
    "device --quick is implied and times say nothing.\n"
    "what runs\n"
    "  --bundle FILE   images to use; default: the bundle linked in\n"
    "  --target NAME   images of this target only; default: as the device prefers\n"
    "  --op KIND       precomputed, lower_bound, softplus, packed; recurrent: the first three;\n"
    "                  fused, or one of its kinds, fused[_softplus][_repeated]_{bf16,f32};\n"
    "                  verify without and verify_cached with caches, commit; lower bound, others\n"
    "                  verify_precomputed, verify_softplus, commit_precomputed, commit_softplus\n"
    "  --tokens T      shapes with T tokens per row\n"
    "  --rows N        shapes with N rows\n"
    "  --shape KIND,T,N,H,HV  this shape instead of the standard ones; may be repeated\n"
    "  --body PATTERN  bodies whose names match, * and ? allowed\n"
    "  --routed        bodies that CC 10.0 or CC 10.3 is routed to, for the SM count of the "
    "device\n"
    "  --quick         the least shape of each kind and T, few calls\n"
    "  --pdl           ask for programmatic dependent launch; the floor stays without it\n"
    "  --pool GIB      memory for states (16)\n"
    "  --replays N     replays that the median is over (7)\n"
    "what comes out\n"
    "  --against FILE  compare time over floor with a stored table\n"
    "  --tsv FILE      the rows as a table that --against reads\n"
    "  --json FILE     the rows for programs\n"
    "  --plot FILE     time over floor as SVG\n"
    "Columns: x is us / floor us; GB/s counts what must be moved, see above; gain is the\n"
    "table's x over ours.\n"
    "Exit status: 0 done, 1 a routed body is over 2 % slower than the table or there is no usable\n"
    "device, 2 wrong usage or a file that cannot be read or written.\n";

enum { MAX_CALLS = 96, LARGE_CALLS = 48, MAX_REPLAYS = 101 };
static const double large = 32e6;         // bytes of a call from which LARGE_CALLS are enough
static const size_t flushed = 200 << 20;  // read, and written, between two replays
static const unsigned splits[] = {1, 2, 4, 8, 16};

struct options {
    const char *bundle, *target, *op, *body, *against, *tsv, *json, *plot;
    int64_t tokens, rows, pool, replays;
    bool quick, pdl, routed;
    struct bench_shapes shapes;
};

struct gpu {
    struct machine machine;
    kda_bundle *bundle, *routes;  // routes: the default bundle, for what Blackwell is routed to
    kda_context *context;
    CUstream stream;
    struct bench_floor floor;
    struct bench_pool pool;
    CUdeviceptr flush_slots;
    int64_t flush_rows;
    CUevent events[2 * MAX_REPLAYS];
    struct bench_call calls[MAX_CALLS];
    kda_plan plans[MAX_CALLS];
    int replays;
    kda_error refusal;  // of the last body that does not run here
};

// ----------------------------------------------------------------------------------------- measure

// Moves states that the next replay does not use through the L2, which leaves it as a run of other
// layers would: full of other slots.
static void begin_flush(struct gpu *gpu, const struct bench_shape *shape)
{
    const size_t slot = bench_slot_bytes(shape);
    int64_t rows = (int64_t)((flushed + slot - 1) / slot);
    if (rows > gpu->pool.order_count) rows = gpu->pool.order_count;
    if (rows > KDA_ROWS_MAX) rows = KDA_ROWS_MAX;
    gpu->flush_rows = gpu->machine.soft ? 0 : rows;
    if (!gpu->flush_rows) return;
    int32_t *slots = bench_memory((size_t)rows, sizeof *slots);
    bench_pool_slots(&gpu->pool, rows, slots);
    machine_put(&gpu->machine, gpu->flush_slots, slots, (size_t)rows * sizeof *slots);
    free(slots);
}

static void flush(const struct gpu *gpu, const struct bench_shape *shape)
{
    if (!gpu->flush_rows) return;
    struct bench_call all = {
        .shape = *shape, .state = gpu->pool.state, .indices = gpu->flush_slots};
    all.shape.tokens = 1;
    all.shape.rows = gpu->flush_rows;
    bench_floor_launch(&gpu->floor, &all, 1, gpu->stream);
}

// Microseconds per call. `body` NULL: the floor, cut into `split` CTAs per head.
static double measure(struct gpu *gpu, const struct bench_shape *shape, const char *body,
                      const struct options *options, unsigned split)
{
    const struct machine *machine = &gpu->machine;
    kda_error err;
    int count = bench_bytes(shape) < large ? MAX_CALLS : LARGE_CALLS;
    if (machine->soft) count = 2;
    begin_flush(gpu, shape);
    bench_pool_calls(&gpu->pool, shape, options->pdl ? KDA_FLAG_PDL : 0, count, gpu->calls);
    for (int i = 0; i < count && body; i++)
        if (bench_plan(gpu->context, &gpu->calls[i], body, options->target, &gpu->plans[i], &err))
            bench_die(&err);
    machine_capture(machine, gpu->stream);
    for (int i = 0; i < count; i++) {
        if (!body)
            bench_floor_launch(&gpu->floor, &gpu->calls[i], split, gpu->stream);
        else if (kda_plan_launch(&gpu->plans[i], gpu->stream, &err))
            bench_die(&err);
    }
    struct machine_graph graph = machine_captured(machine, gpu->stream);
    if (graph.nodes != (size_t)count) {
        fprintf(stderr, "kda-bench: %d calls made %zu graph nodes\n", count, graph.nodes);
        exit(BENCH_FINDING);
    }
    if (!machine->soft) machine_replay(machine, &graph, gpu->stream);
    for (int i = 0; i < gpu->replays; i++) {
        flush(gpu, shape);
        MACHINE_CALL(machine, cuEventRecord, gpu->events[2 * i], gpu->stream);
        machine_replay(machine, &graph, gpu->stream);
        MACHINE_CALL(machine, cuEventRecord, gpu->events[2 * i + 1], gpu->stream);
    }
    machine_sync(machine, gpu->stream);
    double times[MAX_REPLAYS];
    for (int i = 0; i < gpu->replays; i++) {
        float milliseconds = 0;
        MACHINE_CALL(machine, cuEventElapsedTime, &milliseconds, gpu->events[2 * i],
                     gpu->events[2 * i + 1]);
        times[i] = (double)milliseconds * 1e3 / count;
    }
    machine_graph_close(machine, &graph);
    return bench_median(times, (size_t)gpu->replays);
}

static double measure_floor(struct gpu *gpu, const struct bench_shape *shape,
                            const struct options *options)
{
    double best = 0;
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        const double us = measure(gpu, shape, NULL, options, splits[i]);
        if (i == 0 || us < best) best = us;
    }
    return best;
}

// Is there an image of the body for this device? The last refusal is kept.
static bool runs_here(struct gpu *gpu, const struct bench_shape *shape, const char *body,
                      const struct options *options)
{
    const kda_device device = kda_context_device(gpu->context);
    kda_problem problem = bench_problem(shape);
    problem.body = body;
    problem.target = options->target;
    kda_route_result route;
    return kda_route(gpu->bundle, &device, &problem, &route, &gpu->refusal) == KDA_OK;
}

static void measure_shape(struct gpu *gpu, const struct bench_shape *shape,
                          const struct options *options, const struct bench_rows *table,
                          struct bench_rows *out)
{
    if (!bench_pool_begin(&gpu->pool, shape)) {
        fprintf(stderr, "kda-bench: %s, %lld rows: more states than the pool holds, see --pool\n",
                shape->kind->name, (long long)shape->rows);
        return;
    }
    double floor_us = 0;
    for (uint32_t i = 0; i < gpu->bundle->body_count; i++) {
        const struct kda_format_body *body = &gpu->bundle->bodies[i];
        const char *name = gpu->bundle->strings + body->name;
        struct bench_row row = {.shape = *shape};
        if (!bench_serves(body, shape)) continue;
        if (options->body && fnmatch(options->body, name, 0) != 0) continue;
        snprintf(row.body, sizeof row.body, "%s", name);
        const int sms = gpu->machine.sm_count;
        row.routed_sm100a = bench_routed(gpu->routes, shape, name, 100, sms);
        row.routed_sm103a = bench_routed(gpu->routes, shape, name, 103, sms);
        if (options->routed && !row.routed_sm100a && !row.routed_sm103a) continue;
        if (!runs_here(gpu, shape, name, options)) continue;
        if (floor_us <= 0) floor_us = measure_floor(gpu, shape, options);
        row.floor_us = floor_us;
        row.us = measure(gpu, shape, name, options, 0);
        const struct bench_row *known = bench_find(table, &row);
        if (known) row.peer = bench_over_floor(known);
        bench_print_row(&row, options->against);
        bench_rows_add(out, &row);
    }
}

// -------------------------------------------------------------------------------------------- main

static bool open_gpu(const struct options *options, const struct bench_shapes *shapes,
                     struct gpu *out)
{
    kda_error err;
    if (bench_open(options->bundle, &out->bundle, &err) ||
        kda_bundle_open_builtin(&out->routes, &err) ||
        kda_context_create(out->bundle, out->machine.context, NULL, &out->context, &err))
        bench_die(&err);
    const kda_device device = kda_context_device(out->context);
    printf("device  %s%s, CC %d.%d, %d SMs, CUDA %d.%d\n", out->machine.name,
           out->machine.soft ? " (soft device: times say nothing of a GPU)" : "", device.cc_major,
           device.cc_minor, device.sm_count, device.cuda_version / 1000,
           device.cuda_version % 1000 / 10);
    if (!bench_floor_open(&out->machine, &out->floor)) {
        fprintf(stderr, "kda-bench: there is no floor kernel for this device\n");
        return false;
    }
    bench_loads(options->bundle);
    printf("\n");
    out->stream = machine_stream(&out->machine);
    out->replays = out->machine.soft ? 1 : (int)options->replays;
    for (int i = 0; i < 2 * out->replays; i++)
        MACHINE_CALL(&out->machine, cuEventCreate, &out->events[i], 0);
    out->flush_slots = machine_alloc(&out->machine, KDA_ROWS_MAX * sizeof(int32_t));
    bench_pool_open(&out->machine, out->machine.soft ? 64u << 20 : (size_t)options->pool << 30,
                    options->quick ? 0 : 256u << 20, shapes, &out->pool);
    return true;
}

static void close_gpu(struct gpu *gpu)
{
    for (int i = 0; i < 2 * gpu->replays; i++)
        MACHINE_CALL(&gpu->machine, cuEventDestroy, gpu->events[i]);
    bench_pool_close(&gpu->pool);
    machine_free(&gpu->machine, gpu->flush_slots);
    machine_stream_close(&gpu->machine, gpu->stream);
    bench_floor_close(&gpu->floor);
    kda_context_close(&gpu->context);
    kda_bundle_close(&gpu->bundle);
    kda_bundle_close(&gpu->routes);
    machine_close(&gpu->machine);
}

static bool wanted(const struct options *options, const struct bench_shape *shape)
{
    const bool op = !options->op || !strcmp(options->op, shape->kind->name) ||
                    !strcmp(options->op, kda_op_name(shape->kind->op));
    return op && (!options->tokens || options->tokens == shape->tokens) &&
           (!options->rows || options->rows == shape->rows);
}

static kda_status write_files(const struct options *options, const struct gpu *gpu,
                              const struct bench_rows *rows, kda_error *err)
{
    uint8_t id[32];
    char hex[65];
    kda_bundle_id(gpu->bundle, id);
    for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", id[i]);
    const struct bench_device device = {
        .name = gpu->machine.name,
        .bundle_id = hex,
        .cc = 10 * gpu->machine.cc_major + gpu->machine.cc_minor,
        .sm_count = gpu->machine.sm_count,
        .cuda_version = gpu->machine.cuda_version,
        .soft = gpu->machine.soft,
        .pdl = options->pdl,
    };
    kda_status status = KDA_OK;
    if (options->tsv) status = bench_write_tsv(options->tsv, rows, err);
    if (!status && options->json) status = bench_write_json(options->json, rows, &device, err);
    if (!status && options->plot) status = bench_write_plot(options->plot, rows, &device, err);
    return status;
}

static bool parse_number(const char *text, int64_t most, int64_t *out)
{
    char *end;
    *out = strtoll(text, &end, 10);
    return *text && !*end && *out >= 1 && *out <= most;
}

static bool known_op(const char *op)
{
    static const char *const names[] = {
#define NAME(id, number, text) text,
        KDA_OPS(NAME)
#undef NAME
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(op, names[i])) return true;
    return bench_kind_find(op);
}

// -1: go on; else the exit status.
static int read_options(int argc, char **argv, struct options *out)
{
    enum { BUNDLE = 256, TARGET, OP, TOKENS, ROWS, SHAPE, BODY, ROUTED, QUICK, PDL };
    enum { POOL = 512, REPLAYS, AGAINST, TSV, JSON, PLOT };
    static const struct option names[] = {
        {"bundle", required_argument, NULL, BUNDLE},
        {"target", required_argument, NULL, TARGET},
        {"op", required_argument, NULL, OP},
        {"tokens", required_argument, NULL, TOKENS},
        {"rows", required_argument, NULL, ROWS},
        {"shape", required_argument, NULL, SHAPE},
        {"body", required_argument, NULL, BODY},
        {"routed", no_argument, NULL, ROUTED},
        {"quick", no_argument, NULL, QUICK},
        {"pdl", no_argument, NULL, PDL},
        {"pool", required_argument, NULL, POOL},
        {"replays", required_argument, NULL, REPLAYS},
        {"against", required_argument, NULL, AGAINST},
        {"tsv", required_argument, NULL, TSV},
        {"json", required_argument, NULL, JSON},
        {"plot", required_argument, NULL, PLOT},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    bool good = true;
    int option;
    while (good && (option = getopt_long(argc, argv, "h", names, NULL)) != -1) {
        switch (option) {
        case BUNDLE:
            out->bundle = optarg;
            break;
        case TARGET:
            out->target = optarg;
            break;
        case OP:
            good = known_op(out->op = optarg);
            break;
        case TOKENS:
            good = parse_number(optarg, 16, &out->tokens);
            break;
        case ROWS:
            good = parse_number(optarg, KDA_ROWS_MAX, &out->rows);
            break;
        case SHAPE:
            good = bench_shapes_add(&out->shapes, optarg);
            break;
        case BODY:
            out->body = optarg;
            break;
        case ROUTED:
            out->routed = true;
            break;
        case QUICK:
            out->quick = true;
            break;
        case PDL:
            out->pdl = true;
            break;
        case POOL:
            good = parse_number(optarg, 1 << 20, &out->pool);
            break;
        case REPLAYS:
            good = parse_number(optarg, MAX_REPLAYS, &out->replays);
            break;
        case AGAINST:
            out->against = optarg;
            break;
        case TSV:
            out->tsv = optarg;
            break;
        case JSON:
            out->json = optarg;
            break;
        case PLOT:
            out->plot = optarg;
            break;
        case 'h':
            fputs(usage, stdout);
            return BENCH_OK;
        default:
            good = false;
        }
    }
    if (good && optind == argc) return -1;
    fputs(usage, stderr);
    return BENCH_USAGE;
}

static int run(struct options *options, const struct bench_rows *table)
{
    static struct gpu gpu;  // too large for a stack
    kda_error err;
    struct bench_rows rows = {.count = 0};
    const char *reason = machine_open(&gpu.machine, 0, 0);
    if (reason) {
        fprintf(stderr, "kda-bench: %s\n", reason);
        return BENCH_FINDING;
    }
    options->quick |= gpu.machine.soft;
    if (!options->shapes.count) options->shapes = bench_shapes_standard(options->quick);
    struct bench_shapes *shapes = &options->shapes;
    size_t kept = 0;
    for (size_t i = 0; i < shapes->count; i++)
        if (wanted(options, &shapes->shapes[i])) shapes->shapes[kept++] = shapes->shapes[i];
    shapes->count = kept;
    if (!open_gpu(options, shapes, &gpu)) return BENCH_FINDING;
    bench_print_head(options->against);
    for (size_t i = 0; i < shapes->count; i++)
        measure_shape(&gpu, &shapes->shapes[i], options, table, &rows);
    int slower = bench_print_summary(&rows, options->against);
    int exit_status = BENCH_OK;
    if (slower && !gpu.machine.soft) {
        printf("%d routed rows are over 2 %% slower than the table\n", slower);
        exit_status = BENCH_FINDING;
    }
    if (!rows.count) {
        fprintf(stderr, "kda-bench: nothing was measured: %s\n",
                *gpu.refusal.text ? gpu.refusal.text : "no body of what was asked");
        exit_status = BENCH_FINDING;
    }
    if (write_files(options, &gpu, &rows, &err)) {
        fprintf(stderr, "kda-bench: %s\n", err.text);
        exit_status = BENCH_USAGE;
    }
    bench_rows_free(&rows);
    close_gpu(&gpu);
    return exit_status;
}

int bench_gpu(int argc, char **argv)
{
    struct options options = {.pool = 16, .replays = 7};
    struct bench_rows table = {.count = 0};
    kda_error err;
    int status = read_options(argc, argv, &options);
    if (status < 0 && options.against && bench_read_tsv(options.against, &table, &err)) {
        fprintf(stderr, "kda-bench: %s\n", err.text);
        status = BENCH_USAGE;
    }
    if (status < 0) status = run(&options, &table);
    bench_rows_free(&table);
    bench_shapes_free(&options.shapes);
    return status;
}
