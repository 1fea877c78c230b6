// SPDX-License-Identifier: Apache-2.0
// Owns what every demonstration begins and ends with. It knows no operator.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/demo.h"

void demo_die(const kda_error *err)
{
    fprintf(stderr, "kda-demo: %s: %s\n", kda_status_name(err->status), err->text);
    exit(1);
}

void *demo_zeroed(size_t size)
{
    void *memory = calloc(1, size ? size : 1);
    if (!memory) {
        fprintf(stderr, "kda-demo: out of memory\n");
        exit(1);
    }
    return memory;
}

// ------------------------------------------------------------------------------------------
// options

static bool parse_count(const char *text, int64_t *out)
{
    char *end;
    *out = strtoll(text, &end, 10);
    return *text && !*end && *out >= 1 && *out <= 65535;
}

int demo_options(int argc, char **argv, const char *usage, const struct demo_option *options,
                 const char **out_bundle)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        const struct demo_option *option = options;
        while (option->name && strcmp(argv[i], option->name) != 0) option++;
        bool good = true;
        if (!strcmp(argv[i], "--help")) {
            fputs(usage, stdout);
            return 0;
        }
        if (option->name)
            good = parse_count(value, option->value) && ++i;
        else if (!strcmp(argv[i], "--bundle") && *value)
            *out_bundle = argv[++i];
        else
            good = false;
        if (!good) {
            if (option->name)
                fprintf(stderr, "kda-demo: %s cannot be '%s', must be an integer of 1 to 65535\n",
                        option->name, value);
            else
                fprintf(stderr, "kda-demo: %s is no option, or lacks its value\n", argv[i]);
            fputs(usage, stderr);
            return 2;
        }
    }
    return -1;
}

// --------------------------------------------------------------------------------------------
// world

void demo_open(const char *bundle, struct demo_world *out)
{
    kda_error err;
    const char *reason = machine_open(&out->machine, 0, 0);
    if (reason) {
        fprintf(stderr, "kda-demo: %s\n", reason);
        exit(1);
    }
    out->path = bundle;
    kda_status status = bundle ? kda_bundle_open_file(bundle, &out->bundle, &err)
                               : kda_bundle_open_builtin(&out->bundle, &err);
    if (status || kda_context_create(out->bundle, NULL, NULL, &out->context, &err)) demo_die(&err);
    out->stream = machine_stream(&out->machine);
}

void demo_close(struct demo_world *world)
{
    machine_stream_close(&world->machine, world->stream);
    kda_context_close(&world->context);
    kda_bundle_close(&world->bundle);
    machine_close(&world->machine);
}

void demo_report_world(const struct demo_world *world)
{
    kda_device device = kda_context_device(world->context);
    uint8_t id[32];
    kda_bundle_id(world->bundle, id);
    printf("device  %s%s, CC %d.%d, %d SMs, CUDA %d.%d\n", world->machine.name,
           world->machine.soft ? " (soft device: computed on the CPU)" : "", device.cc_major,
           device.cc_minor, device.sm_count, device.cuda_version / 1000,
           device.cuda_version % 1000 / 10);
    printf("bundle  %s, id ", world->path ? world->path : "built in");
    for (int i = 0; i < 32; i++) printf("%02x", id[i]);
    printf("\n");
}

void demo_report_route(const struct demo_world *world, const kda_problem *problem)
{
    kda_device device = kda_context_device(world->context);
    kda_route_result route;
    kda_error err;
    if (kda_route(world->bundle, &device, problem, &route, &err)) demo_die(&err);
    printf("route   %s for %s, split %u, grid %ux%u, %u threads\n", route.body, route.target,
           route.split, route.grid[0], route.grid[1], route.block);
}

void demo_report_errors(const struct oracle_error *out, const char *second,
                        const struct oracle_error *second_error)
{
    printf("N1      out %.3g, %s %.3g in the worst step; limit %.3g, rounding alone %.3g\n",
           oracle_norm(out), second, oracle_norm(second_error), ORACLE_NORM_LIMIT,
           oracle_floor(second_error));
    printf("N2      worst element at %.3g of its tolerance\n",
           fmax(out->worst, second_error->worst));
}

void demo_report_time(const struct demo_world *world, const char *what)
{
    struct machine_graph graph = machine_captured(&world->machine, world->stream);
    int replays = world->machine.soft ? 2 : 1000;
    machine_time(&world->machine, &graph, world->stream, replays);
    printf("time    %.2f us per %s, mean of %d graph replays%s\n",
           machine_time(&world->machine, &graph, world->stream, replays), what, replays,
           world->machine.soft ? "; says nothing of a GPU" : "");
    machine_graph_close(&world->machine, &graph);
}

// ----------------------------------------------------------------------------------------- tensors

struct demo_tensor demo_make(const struct demo_world *world, int64_t elements, size_t width)
{
    struct demo_tensor tensor = {.size = (size_t)elements * width};
    tensor.host = demo_zeroed(tensor.size);
    tensor.device = machine_alloc(&world->machine, tensor.size);
    return tensor;
}

void demo_put(const struct demo_world *world, const struct demo_tensor *tensor)
{
    machine_put(&world->machine, tensor->device, tensor->host, tensor->size);
}

void demo_get(const struct demo_world *world, const struct demo_tensor *tensor)
{
    machine_get(&world->machine, tensor->host, tensor->device, tensor->size);
}

void demo_drop(const struct demo_world *world, struct demo_tensor *tensor)
{
    free(tensor->host);
    machine_free(&world->machine, tensor->device);
}

kda_tensor demo_view(const struct demo_tensor *tensor, kda_dtype dtype, uint32_t rank, int64_t a,
                     int64_t b, int64_t c, int64_t d)
{
    kda_tensor result = {.data = (void *)(uintptr_t)tensor->device,
                         .dtype = dtype,
                         .rank = rank,
                         .extent = {a, b, c, d}};
    int64_t stride = 1;
    for (uint32_t i = rank; i-- > 0;) {
        result.stride[i] = stride;
        stride *= result.extent[i];
    }
    return result;
}

void demo_normals(struct oracle_rng *rng, const uint16_t *to, int64_t count, double size)
{
    uint16_t *at = (uint16_t *)(uintptr_t)to;
    for (int64_t i = 0; i < count; i++) at[i] = oracle_bf16(size * oracle_normal(rng));
}

void demo_keep_worst(struct oracle_error *worst, const struct oracle_error *step)
{
    double element = fmax(worst->worst, step->worst);
    int64_t nonfinite = worst->nonfinite + step->nonfinite;
    if (!worst->count || !(oracle_norm(step) <= oracle_norm(worst))) *worst = *step;
    worst->worst = element;
    worst->nonfinite = nonfinite;
}
