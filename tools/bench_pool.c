// SPDX-License-Identifier: Apache-2.0
// Owns the memory that calls are timed on. It knows no kernels. Invariant: between two uses of a
// slot, every other slot of the pool is used.
#include "tools/bench_pool.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 256 };                         // alignment inside a ring
static const size_t block = (size_t)1 << 23;  // random bytes made on the host, then repeated

static uint64_t random_bits(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

// bf16 with random sign and mantissa and one of eight exponents, `top` the largest: neither zero,
// NaN nor infinite, and as hard to compress as real data. `sign` 0x8000: either, else `force`.
static void randomise(uint16_t *out, size_t count, unsigned sign, unsigned force, unsigned top)
{
    uint64_t seed = UINT64_C(0x9e3779b97f4a7c15);
    for (size_t i = 0; i < count; i++) {
        const unsigned bits = (unsigned)(random_bits(&seed) >> 24);
        const unsigned exponent = top - (bits >> 8 & 7);
        out[i] = (uint16_t)((bits & (sign | 0x7f)) | force | exponent << 7);
    }
}

static void fill(const struct machine *machine, CUdeviceptr to, size_t size, const void *random)
{
    size_t done = size < block ? size : block;
    machine_put(machine, to, random, done);
    while (done < size) {
        const size_t piece = size - done < done ? size - done : done;
        MACHINE_CALL(machine, cuMemcpyDtoD, to + done, to, piece);
        done += piece;
    }
    machine_sync(machine, NULL);
}

static size_t rounded(size_t size) { return (size + PIECE - 1) / PIECE * PIECE; }
static size_t bytes_of(int64_t count, size_t width) { return rounded((size_t)count * width); }

static void widen(size_t *size, size_t wanted)
{
    if (wanted > *size) *size = wanted;
}

static void open_ring(const struct machine *machine, size_t size, const void *random,
                      struct bench_ring *out)
{
    *out = (struct bench_ring){.base = machine_alloc(machine, size), .size = size};
    fill(machine, out->base, size, random);
}

static CUdeviceptr take(struct bench_ring *ring, int64_t count, size_t width)
{
    const size_t size = bytes_of(count, width);
    if (size > ring->size - ring->at) ring->at = 0;
    const CUdeviceptr address = ring->base + ring->at;
    ring->at += size;
    return address;
}

void bench_pool_open(const struct machine *machine, size_t size, size_t ring,
                     const struct bench_shapes *shapes, struct bench_pool *out)
{
    struct bench_pool pool = {.machine = machine, .state_size = size};
    // Activations are far smaller than states: rings of these shares of `ring` come round about as
    // often as one another.
    size_t values = ring, decays = ring / 2, unit = ring / 16, outs = ring / 2, gates = ring / 16;
    for (size_t i = 0; i < shapes->count; i++) {
        const struct bench_counts counts = bench_counts(&shapes->shapes[i]);
        widen(&values, bytes_of(counts.q, 2) + bytes_of(counts.k, 2) + bytes_of(counts.v, 2));
        widen(&decays, bytes_of(counts.g, 2));
        widen(&unit, bytes_of(counts.beta, 2));
        widen(&outs, bytes_of(counts.out, 2));
        widen(&gates,
              bytes_of(counts.a_log, 4) + bytes_of(counts.dt_bias, 4) + bytes_of(counts.weight, 4));
    }
    const size_t available = machine_free_memory(machine) / 2;
    if (pool.state_size > available) pool.state_size = available;
    pool.state_size = pool.state_size / PIECE * PIECE;

    enum { EITHER = 0x8000, NEGATIVE = 0x8000 };
    uint16_t *random = bench_memory(block, 1);
    randomise(random, block / 2, EITHER, 0, 127);
    pool.state = machine_alloc(machine, pool.state_size);
    fill(machine, pool.state, pool.state_size, random);
    open_ring(machine, values, random, &pool.values);
    open_ring(machine, outs, random, &pool.out);
    randomise(random, block / 2, 0, NEGATIVE, 127);
    open_ring(machine, decays, random, &pool.decays);
    randomise(random, block / 2, 0, 0, 126);
    open_ring(machine, unit, random, &pool.unit);
    open_ring(machine, gates, random, &pool.gates);  // f32 whose upper half is such a bf16
    free(random);
    *out = pool;
}

void bench_pool_close(struct bench_pool *pool)
{
    const struct bench_ring *rings[] = {&pool->values, &pool->decays, &pool->unit, &pool->out,
                                        &pool->gates};
    for (size_t i = 0; i < sizeof rings / sizeof *rings; i++)
        machine_free(pool->machine, rings[i]->base);
    machine_free(pool->machine, pool->state);
    machine_free(pool->machine, pool->ints);
    free(pool->order);
}

bool bench_pool_begin(struct bench_pool *pool, const struct bench_shape *shape)
{
    const size_t fit = pool->state_size / (bench_slot_bytes(shape) + 2 * bench_cache_bytes(shape));
    const int32_t first = shape->kind->op == KDA_OP_FUSED;  // slot 0 is reserved
    pool->num_slots = fit < INT32_MAX ? (int64_t)fit : INT32_MAX;
    pool->order_count = pool->num_slots - first;
    if (pool->order_count < bench_counts(shape).indices) return false;
    free(pool->order);
    pool->order = bench_memory((size_t)pool->num_slots, sizeof *pool->order);
    pool->at = 0;
    uint64_t seed = 88172645463325252u;
    for (int64_t i = 0; i < pool->order_count; i++) {
        const int64_t j = (int64_t)(random_bits(&seed) % (uint64_t)(i + 1));
        pool->order[i] = pool->order[j];
        pool->order[j] = (int32_t)i + first;
    }
    return true;
}

void bench_pool_slots(struct bench_pool *pool, int64_t count, int32_t *out)
{
    for (int64_t i = 0; i < count; i++) {
        out[i] = pool->order[pool->at];
        pool->at = pool->at + 1 < pool->order_count ? pool->at + 1 : 0;
    }
}

static CUdeviceptr put_ints(struct bench_pool *pool, const int32_t *values, size_t count)
{
    const size_t size = count * sizeof *values;
    if (size > pool->ints_size) {
        machine_free(pool->machine, pool->ints);
        pool->ints = machine_alloc(pool->machine, size);
        pool->ints_size = size;
    }
    machine_put(pool->machine, pool->ints, values, size);
    return pool->ints;
}

void bench_pool_calls(struct bench_pool *pool, const struct bench_shape *shape, uint32_t flags,
                      int count, struct bench_call *out)
{
    const struct bench_counts counts = bench_counts(shape);
    const int64_t cu = counts.indices * count, accepted = cu + counts.cu_seqlens;
    const size_t total = (size_t)(accepted + counts.accepted);
    int32_t *ints = bench_memory(total, sizeof *ints);
    bench_pool_slots(pool, cu, ints);
    for (int64_t n = 0; n <= shape->rows; n++) ints[cu + n] = (int32_t)(n * shape->tokens);
    for (int64_t n = 0; n < shape->rows; n++)
        ints[accepted + n] = shape->kind->op == KDA_OP_COMMIT ? (int32_t)shape->tokens : 1;
    const CUdeviceptr base = put_ints(pool, ints, total);
    free(ints);
    const CUdeviceptr caches = pool->state + (CUdeviceptr)pool->num_slots * bench_slot_bytes(shape),
                      second = (CUdeviceptr)pool->num_slots * bench_cache_bytes(shape);
    for (int i = 0; i < count; i++) {
        out[i] = (struct bench_call){
            .shape = *shape,
            .q = take(&pool->values, counts.q, 2),
            .k = take(&pool->values, counts.k, 2),
            .v = take(&pool->values, counts.v, 2),
            .g = take(&pool->decays, counts.g, 2),
            .beta = take(&pool->unit, counts.beta, 2),
            .weight = take(&pool->gates, counts.weight, 4),
            .a_log = take(&pool->gates, counts.a_log, 4),
            .dt_bias = take(&pool->gates, counts.dt_bias, 4),
            .state = pool->state,
            .correction = caches,
            .kg = caches + second,
            .out = take(&pool->out, counts.out, 2),
            .indices = base + (CUdeviceptr)(counts.indices * i) * sizeof(int32_t),
            .cu_seqlens = base + (CUdeviceptr)cu * sizeof(int32_t),
            .accepted = base + (CUdeviceptr)accepted * sizeof(int32_t),
            .num_slots = pool->num_slots,
            .flags = flags,
        };
    }
}
