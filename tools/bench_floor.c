// SPDX-License-Identifier: Apache-2.0
// Owns the images of the floor that the build links in, one per target, and the choice among them.
// Not a bundle and not the library's routing: the first target that the device knows will do.
#include "tools/bench_floor.h"

#include "tools/floor.h"

#define KDA_TARGET(name, floor, ccs)                                                               \
    extern const uint8_t kda_floor_##name##_begin[] __attribute__((visibility("hidden")));
#include "manifest/targets.inc"
#undef KDA_TARGET

#define KDA_CCS(...)                                                                               \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
static const struct {
    const uint8_t *image;
    int driver, ccs[4];  // the oldest driver; 0 ends
} images[] = {
#define KDA_TARGET(name, floor, ccs) {kda_floor_##name##_begin, floor, ccs},
#include "manifest/targets.inc"
#undef KDA_TARGET
};
#undef KDA_CCS

static const uint8_t *find_image(const struct machine *machine)
{
    const int cc = 10 * machine->cc_major + machine->cc_minor;
    for (size_t i = 0; i < sizeof images / sizeof *images; i++)
        for (size_t j = 0; j < sizeof images->ccs / sizeof *images->ccs; j++)
            if (images[i].ccs[j] == cc && images[i].driver <= machine->cuda_version)
                return images[i].image;
    return NULL;
}

bool bench_floor_open(const struct machine *machine, struct bench_floor *out)
{
    const uint8_t *image = find_image(machine);
    if (!image) return false;
    out->machine = machine;
    MACHINE_CALL(machine, cuModuleLoadData, &out->module, image);
    MACHINE_CALL(machine, cuModuleGetFunction, &out->function, out->module, "kda_floor");
    return true;
}

void bench_floor_close(const struct bench_floor *floor)
{
    MACHINE_CALL(floor->machine, cuModuleUnload, floor->module);
}

static struct kda_floor_part part(unsigned long long base, int64_t heads, size_t bytes)
{
    const unsigned quads = (unsigned)(bytes / 16);
    return (struct kda_floor_part){base, (unsigned)heads * quads, quads};
}

void bench_floor_launch(const struct bench_floor *floor, const struct bench_call *call,
                        unsigned split, CUstream stream)
{
    const struct bench_shape *const shape = &call->shape;
    const int64_t heads = shape->value_heads;
    struct kda_floor_params params = {.state = call->state + bench_state_offset(shape),
                                      .slots = call->indices,
                                      .slot_stride = (long long)bench_slot_bytes(shape),
                                      .row_slots = (int)bench_row_slots(shape),
                                      .writes = (int)bench_writes(shape),
                                      .heads = (int)heads,
                                      .head_quads = (unsigned)bench_head_bytes(shape) / 16};
    // A call without inputs, which only displaces what is in L2, has nothing but its state.
    params.parts = call->q && bench_read_bytes(shape);
    if (params.parts) {
        params.read = part(call->q, heads, bench_read_bytes(shape));
        params.written = part(call->out, heads, bench_written_bytes(shape));
    }
    if (params.parts && shape->kind->op == KDA_OP_FUSED) {
        params.window = part(call->state, heads, BENCH_WINDOW_BYTES);
        params.shared = part(call->weight, heads, BENCH_WEIGHT_BYTES);
    }
    void *arguments[] = {&params};
    MACHINE_CALL(floor->machine, cuLaunchKernel, floor->function, (unsigned)heads * split,
                 (unsigned)shape->rows, 1, KDA_FLOOR_THREADS, 1, 1, 0, stream, arguments, NULL);
}
