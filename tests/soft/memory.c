// SPDX-License-Identifier: Apache-2.0
// Owns device memory: host memory in a sorted table of allocations, each 256-byte aligned between
// guards that are checked when it is freed. Small ones start as NaN, for fresh device memory holds
// anything; large ones are mapped without being backed, so that a pool beyond 2^31 elements costs
// what is touched of it. Has its own lock, because every kernel of every thread asks here. Copies
// and fills are work for a stream like launches.
#include "tests/soft/state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { GUARD = 256, MAP_GUARD = 65536 };
static const size_t map_threshold = (size_t)64 << 20;

struct block {
    uint64_t begin, end;
    char *base;
    size_t base_size;  // whole, with guards
    bool mapped;
    const struct soft_context *owner;
};

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static struct block *blocks;  // by address
static size_t block_count, block_capacity, live_bytes;

// Index of the first block that ends above `address`.
static size_t find(uint64_t address)
{
    size_t low = 0, high = block_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (blocks[middle].end > address) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

bool soft_memory_range(uint64_t address, uint64_t *begin, uint64_t *end)
{
    (void)pthread_rwlock_rdlock(&lock);
    size_t i = find(address);
    bool found = i < block_count && blocks[i].begin <= address;
    if (found) {
        *begin = blocks[i].begin;
        *end = blocks[i].end;
    }
    (void)pthread_rwlock_unlock(&lock);
    return found;
}

bool soft_memory_holds(uint64_t address, size_t size)
{
    uint64_t begin, end;
    return soft_memory_range(address, &begin, &end) && size <= end - address;
}

static void poison(char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) bytes[i] = (char)(i % 2 ? 0xff : 0xc1);
}

// Is [from, to) of the block as it was made: poison, or zero where it is mapped?
static bool untouched(const struct block *block, const char *from, const char *to)
{
    for (const char *p = from; p < to; p++) {
        char expected = block->mapped ? 0 : (char)((p - block->base) % 2 ? 0xff : 0xc1);
        if (*p != expected) return false;
    }
    return true;
}

static void destroy(struct block *block)
{
    size_t guard = block->mapped ? MAP_GUARD : GUARD;
    const char *data = block->base + guard, *end = data + (block->end - block->begin);
    const char *limit = block->base + block->base_size - (block->mapped ? MAP_GUARD : 0);
    bool before = block->mapped || untouched(block, block->base, data);
    if (!before || !untouched(block, end, limit))
        soft_blame("memory %s the allocation [%#llx, %#llx) was overwritten",
                   before ? "behind" : "before", (unsigned long long)block->begin,
                   (unsigned long long)block->end);
    live_bytes -= block->end - block->begin;
    if (block->mapped) {
        (void)munmap(block->base, block->base_size);
    } else {
        free(block->base);
    }
}

static bool create(struct block *block, size_t size)
{
    block->mapped = size >= map_threshold;
    size_t guard = block->mapped ? MAP_GUARD : GUARD;
    size_t room = (size + guard - 1) / guard * guard;
    block->base_size = guard + room + guard;
    if (block->mapped) {
        void *map = mmap(NULL, block->base_size, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (map == MAP_FAILED) return false;
        block->base = map;
        if (mprotect(map, guard, PROT_NONE) != 0 ||
            mprotect(block->base + guard + room, guard, PROT_NONE) != 0) {
            (void)munmap(map, block->base_size);
            return false;
        }
    } else {
        block->base = aligned_alloc(GUARD, block->base_size);
        if (block->base == NULL) return false;
        poison(block->base, block->base_size);
    }
    block->begin = (uint64_t)(uintptr_t)block->base + guard;
    block->end = block->begin + size;
    return true;
}

static int allocate(size_t size, const struct soft_context *owner, CUdeviceptr *out)
{
    if (size > SOFT_MEMORY_TOTAL - live_bytes) return KDA_CU_OUT_OF_MEMORY;
    if (block_count == block_capacity) {
        size_t capacity = block_capacity ? 2 * block_capacity : 64;
        struct block *grown = realloc(blocks, capacity * sizeof *grown);
        if (grown == NULL) return KDA_CU_OUT_OF_MEMORY;
        blocks = grown;
        block_capacity = capacity;
    }
    struct block block = {.owner = owner};
    if (!create(&block, size)) return KDA_CU_OUT_OF_MEMORY;
    size_t i = find(block.begin);
    memmove(blocks + i + 1, blocks + i, (block_count - i) * sizeof *blocks);
    blocks[i] = block;
    block_count++;
    live_bytes += size;
    *out = block.begin;
    return KDA_CU_SUCCESS;
}

static void remove_block(size_t i)
{
    destroy(&blocks[i]);
    block_count--;
    memmove(blocks + i, blocks + i + 1, (block_count - i) * sizeof *blocks);
}

void soft_memory_release(const struct soft_context *owner)
{
    (void)pthread_rwlock_wrlock(&lock);
    for (size_t i = block_count; i-- > 0;)
        if (owner == NULL || blocks[i].owner == owner) remove_block(i);
    if (block_count == 0) {
        free(blocks);
        blocks = NULL;
        block_capacity = 0;
    }
    (void)pthread_rwlock_unlock(&lock);
}

// ------------------------------------------------------------------------------------- allocations

int cuMemAlloc_v2(CUdeviceptr *out, size_t size)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    struct soft_context *context;
    result = soft_current(&context);
    if (result != KDA_CU_SUCCESS) return soft_leave(result);
    if (out == NULL || size == 0) return soft_leave(KDA_CU_INVALID_VALUE);
    result = soft_capture_guard();
    if (result != KDA_CU_SUCCESS) return soft_leave(result);
    (void)pthread_rwlock_wrlock(&lock);
    result = allocate(size, context, out);
    (void)pthread_rwlock_unlock(&lock);
    if (result == KDA_CU_SUCCESS) soft_totals.allocations++;
    return soft_leave(result);
}

int cuMemFree_v2(CUdeviceptr address)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    struct soft_context *context;
    result = soft_current(&context);
    if (result != KDA_CU_SUCCESS || address == 0) return soft_leave(result);
    result = soft_capture_guard();
    if (result != KDA_CU_SUCCESS) return soft_leave(result);
    (void)pthread_rwlock_wrlock(&lock);
    size_t i = find(address);
    if (i < block_count && blocks[i].begin == address) {
        remove_block(i);
    } else {
        result = KDA_CU_INVALID_VALUE;
    }
    (void)pthread_rwlock_unlock(&lock);
    return soft_leave(result);
}

int cuMemGetInfo_v2(size_t *available, size_t *total)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    struct soft_context *context;
    result = soft_current(&context);
    if (result != KDA_CU_SUCCESS) return soft_leave(result);
    if (available == NULL || total == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    (void)pthread_rwlock_rdlock(&lock);
    *available = SOFT_MEMORY_TOTAL - live_bytes;
    (void)pthread_rwlock_unlock(&lock);
    *total = SOFT_MEMORY_TOTAL;
    return soft_leave(KDA_CU_SUCCESS);
}

// -------------------------------------------------------------------------------- copies and fills

static void *host(CUdeviceptr address) { return (void *)(uintptr_t)address; }

// `device` are the device addresses that `bytes` bytes of work touch; 0 stands for none.
static int submit(CUstream handle, struct soft_work work, CUdeviceptr target, CUdeviceptr source)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    struct soft_stream *stream;
    struct soft_context *context;
    result = soft_stream_find(handle, &stream, &context);
    if (result != KDA_CU_SUCCESS) return soft_leave(result);
    if (work.count == 0) return soft_leave(KDA_CU_SUCCESS);
    size_t bytes;
    if (__builtin_mul_overflow(work.width, work.count, &bytes) || work.target == NULL ||
        (work.task == SOFT_COPY && work.source == NULL) ||
        (target != 0 && (target % work.width != 0 || !soft_memory_holds(target, bytes))) ||
        (source != 0 && !soft_memory_holds(source, bytes)))
        return soft_leave(KDA_CU_INVALID_VALUE);
    return soft_submit(stream, &work);
}

static int copy(CUstream stream, void *target, const void *source, size_t size,
                CUdeviceptr target_address, CUdeviceptr source_address)
{
    struct soft_work work = {
        .task = SOFT_COPY, .target = target, .source = source, .width = 1, .count = size};
    return submit(stream, work, target_address, source_address);
}

static int fill(CUstream stream, CUdeviceptr target, uint32_t value, size_t width, size_t count)
{
    struct soft_work work = {
        .task = SOFT_SET, .target = host(target), .value = value, .width = width, .count = count};
    return submit(stream, work, target, 0);
}

int cuMemcpyHtoD_v2(CUdeviceptr target, const void *source, size_t size)
{
    return copy(NULL, host(target), source, size, target, 0);
}
int cuMemcpyDtoH_v2(void *target, CUdeviceptr source, size_t size)
{
    return copy(NULL, target, host(source), size, 0, source);
}
int cuMemcpyDtoD_v2(CUdeviceptr target, CUdeviceptr source, size_t size)
{
    return copy(NULL, host(target), host(source), size, target, source);
}
int cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void *source, size_t size, CUstream stream)
{
    return copy(stream, host(target), source, size, target, 0);
}
int cuMemcpyDtoHAsync_v2(void *target, CUdeviceptr source, size_t size, CUstream stream)
{
    return copy(stream, target, host(source), size, 0, source);
}
int cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, size_t size, CUstream stream)
{
    return copy(stream, host(target), host(source), size, target, source);
}

int cuMemsetD8_v2(CUdeviceptr target, unsigned char value, size_t count)
{
    return fill(NULL, target, value, 1, count);
}
int cuMemsetD16_v2(CUdeviceptr target, unsigned short value, size_t count)
{
    return fill(NULL, target, value, 2, count);
}
int cuMemsetD32_v2(CUdeviceptr target, unsigned value, size_t count)
{
    return fill(NULL, target, value, 4, count);
}
int cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t count, CUstream stream)
{
    return fill(stream, target, value, 1, count);
}
int cuMemsetD16Async(CUdeviceptr target, unsigned short value, size_t count, CUstream stream)
{
    return fill(stream, target, value, 2, count);
}
int cuMemsetD32Async(CUdeviceptr target, unsigned value, size_t count, CUstream stream)
{
    return fill(stream, target, value, 4, count);
}
