// SPDX-License-Identifier: Apache-2.0
// Owns the execution of a grid: one fibre per CUDA thread, CTAs one after another, warps in
// lockstep at collectives. Refuses to know what a body computes and how the driver half keeps its
// books. Invariants: a thread passes a collective only when all threads that must take part stand
// at the same one; whatever goes wrong ends the launch with a message that names block, thread and
// source line, and never hangs. Launches of different host threads share nothing.
#include "tests/soft/fibre.h"
#include "tests/soft/soft.h"
#include "tests/soft/device.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace
{

const unsigned max_threads = 1024, warp_size = 32;

enum kind { idle, running, shuffling, multiplying, syncing_warp, syncing_cta, exited };

// All that stand at one collective. Consecutive meetings alternate between two sync objects (and
// value rows), so that a thread that is already at the next one takes nothing from it that the last
// one's stragglers would see.
struct meeting {
    unsigned arrived, parity;
    kind what;
    int site;
    unsigned thread;  // that arrived first
    unsigned any[2];  // whether a thread brought a value that is not 0
    char sync[2];
};

struct warp {
    unsigned lanes, ready, live;  // bit masks; lanes: all that exist
    unsigned count;               // of lanes
    meeting at;
    unsigned values[2][warp_size];    // of a shuffle
    unsigned tiles[2][warp_size][6];  // of a matrix product: a, then b
};

struct thread {
    soft_fibre fibre;
    soft_dim index;
    unsigned number, lane;
    warp *own;
    kind state;
    int site;
};

struct range {
    uint64_t begin, end;
};

// The state of one host thread, kept for its next launch.
struct machine {
    soft_fibre host;
    thread *current;
    thread *threads;
    unsigned created;  // fibres that exist
    warp warps[max_threads / warp_size];
    unsigned warp_count, thread_count, live;
    meeting cta;
    char start, finish;  // sync objects
    soft_dim grid, block, position;
    unsigned char *shared;
    size_t shared_size, shared_capacity;
    range ranges[64];  // by access site: nearly always the same allocation
    unsigned hints;    // where the sequence of wrong words stands
    soft_kernel kernel;
    const void *params;
    char *why;
    size_t why_size;
    bool failed;
};

thread_local machine *here __attribute__((tls_model("initial-exec")));

const char *describe(kind what)
{
    switch (what) {
    case shuffling:
        return "a shuffle";
    case multiplying:
        return "a matrix product";
    case syncing_warp:
        return "a warp barrier";
    case syncing_cta:
        return "a CTA barrier";
    case exited:
        return "its end";
    default:
        return "no collective";
    }
}

// Ends the launch: the fibres stay where they are and are restarted before they are used again.
[[noreturn]] SOFT_UNCHECKED void fail(machine *m, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void fail(machine *m, const char *format, ...)
{
    int used = snprintf(m->why, m->why_size, "block (%u,%u,%u) thread %u: ", m->position.x,
                        m->position.y, m->position.z, m->current->number);
    if (used >= 0 && static_cast<size_t>(used) < m->why_size) {
        va_list arguments;
        va_start(arguments, format);
        (void)vsnprintf(m->why + used, m->why_size - static_cast<size_t>(used), format, arguments);
        va_end(arguments);
    }
    m->failed = true;
    soft_fibre_switch(&m->current->fibre, &m->host);
    abort();  // a restarted fibre does not come back here
}

SOFT_UNCHECKED void resume(machine *m, thread *next)
{
    soft_fibre *from = &m->current->fibre;
    m->current = next;
    soft_fibre_switch(from, &next->fibre);
}

// No thread can go on: name one that waits elsewhere than the caller.
[[noreturn]] SOFT_UNCHECKED void fail_stuck(machine *m, const thread *self)
{
    for (unsigned i = 0; i < m->thread_count; i++) {
        const thread *other = &m->threads[i];
        if (other == self || (other->state == self->state && other->site == self->site)) continue;
        fail(m, "stands at %s of line %d while thread %u stands at %s of line %d",
             describe(self->state), self->site, other->number, describe(other->state), other->site);
    }
    fail(m, "stands at %s of line %d for ever", describe(self->state), self->site);
}

// Continues with the next thread of the same warp that is able to run, else with one of another
// warp.
SOFT_UNCHECKED void yield(machine *m, thread *self)
{
    warp *own = self->own;
    unsigned ready = own->ready;
    if (ready == 0) {
        warp *w = own;
        do {
            if (++w == m->warps + m->warp_count) w = m->warps;
            if (w == own) fail_stuck(m, self);
        } while (w->ready == 0);
        own = w;
        ready = w->ready;
    } else {
        unsigned later = ready & ~((2u << self->lane) - 1);
        if (later != 0) ready = later;
    }
    unsigned first = static_cast<unsigned>(own - m->warps) * warp_size;
    resume(m, &m->threads[first + static_cast<unsigned>(__builtin_ctz(ready))]);
}

// The caller arrives at a collective of `count` threads; true: it is the last.
SOFT_UNCHECKED inline bool meet(machine *m, thread *self, meeting *at, unsigned count, kind what,
                                int site)
{
    self->state = what;
    self->site = site;
    if (at->arrived == 0) {
        at->what = what;
        at->site = site;
        at->thread = self->number;
    } else if (at->what != what || at->site != site) {
        fail(m, "stands at %s of line %d while thread %u stands at %s of line %d", describe(what),
             site, at->thread, describe(at->what), at->site);
    }
    if (++at->arrived != count) return false;
    at->arrived = 0;
    at->parity ^= 1;
    at->any[at->parity] = 0;
    return true;
}

[[noreturn]] SOFT_UNCHECKED void fail_exited(machine *m, kind what, int site, unsigned number)
{
    fail(m, "stands at %s of line %d, but thread %u has exited", describe(what), site, number);
}

SOFT_UNCHECKED inline void meet_warp(machine *m, thread *self, kind what, int site)
{
    warp *own = self->own;
    if (own->live != own->lanes)
        fail_exited(m, what, site,
                    self->number - self->lane +
                        static_cast<unsigned>(__builtin_ctz(own->lanes & ~own->live)));
    if (meet(m, self, &own->at, own->count, what, site)) {
        own->ready = own->lanes;
    } else {
        own->ready &= ~(1u << self->lane);
        yield(m, self);
    }
    self->state = running;
}

SOFT_UNCHECKED void leave(machine *m, thread *self)
{
    warp *own = self->own;
    const meeting *waiting = own->at.arrived != 0 ? &own->at : &m->cta;
    if (waiting->arrived != 0)
        fail(m, "exits while thread %u stands at %s of line %d", waiting->thread,
             describe(waiting->what), waiting->site);
    self->state = exited;
    own->live &= ~(1u << self->lane);
    own->ready &= ~(1u << self->lane);
    soft_fibre_release(&m->finish);
    if (--m->live != 0) {
        yield(m, self);
    } else {
        soft_fibre_switch(&self->fibre, &m->host);
    }
}

// Where every fibre starts: one turn of the loop is one CUDA thread.
SOFT_UNCHECKED void live(void)
{
    machine *m = here;
    thread *self = m->current;
    for (;;) {
        soft_fibre_acquire(&m->start);
        self->state = running;
        m->kernel(m->params);
        leave(m, self);
    }
}

SOFT_UNCHECKED void set_up(machine *m)
{
    // 0xFFC1 is a NaN as bf16, as half of an f32 and, twice, as a whole one.
    for (size_t i = 0; i + 1 < m->shared_size; i += 2) memcpy(m->shared + i, "\xc1\xff", 2);
    m->live = m->thread_count;
    memset(&m->cta, 0, sizeof m->cta);
    for (unsigned i = 0; i < m->warp_count; i++) {
        warp *w = &m->warps[i];
        unsigned count = m->thread_count - i * warp_size;
        w->count = count < warp_size ? count : warp_size;
        w->lanes = ~0u >> (warp_size - w->count);
        w->ready = w->live = w->lanes;
        memset(&w->at, 0, sizeof w->at);
    }
    for (unsigned i = 0; i < m->thread_count; i++) {
        thread *t = &m->threads[i];
        t->index = {i % m->block.x, i / m->block.x % m->block.y, i / m->block.x / m->block.y};
        t->number = i;
        t->lane = i % warp_size;
        t->own = &m->warps[i / warp_size];
        t->state = idle;
    }
}

bool reserve(machine *m)
{
    if (m->threads == nullptr) {
        m->threads = static_cast<thread *>(calloc(max_threads, sizeof *m->threads));
        if (m->threads == nullptr) return false;
    }
    while (m->created < m->thread_count) {
        if (!soft_fibre_create(&m->threads[m->created].fibre, live, m->created)) return false;
        m->created++;
    }
    if (m->shared_capacity < m->shared_size) {
        size_t capacity = (m->shared_size + 1023) & ~static_cast<size_t>(1023);
        void *shared = aligned_alloc(1024, capacity);
        if (shared == nullptr) return false;
        free(m->shared);
        m->shared = static_cast<unsigned char *>(shared);
        m->shared_capacity = capacity;
    }
    return true;
}

void release(machine *m)
{
    for (unsigned i = 0; i < m->created; i++) soft_fibre_destroy(&m->threads[i].fibre);
    free(m->threads);
    free(m->shared);
    free(m);
}

struct keeper {
    machine *kept = nullptr;
    ~keeper()
    {
        if (kept != nullptr) release(kept);
    }
};
thread_local keeper kept_here;

}  // namespace

int soft_execute(soft_kernel kernel, const unsigned grid[3], const unsigned block[3], size_t smem,
                 const void *params, char *why, size_t why_size)
{
    unsigned long long threads = 1;
    for (int i = 0; i < 3; i++) threads *= block[i];
    if (threads < 1 || threads > max_threads || smem > UINT32_MAX) {
        (void)snprintf(why, why_size, "%llu threads or %zu bytes of shared memory are out of range",
                       threads, smem);
        return -1;
    }
    if (here == nullptr) here = kept_here.kept = static_cast<machine *>(calloc(1, sizeof *here));
    machine *m = here;
    if (m == nullptr) {
        (void)snprintf(why, why_size, "the host is out of memory");
        return -1;
    }
    m->grid = {grid[0], grid[1], grid[2]};
    m->block = {block[0], block[1], block[2]};
    m->thread_count = static_cast<unsigned>(threads);
    m->warp_count = (m->thread_count + warp_size - 1) / warp_size;
    m->shared_size = smem;
    m->kernel = kernel;
    m->params = params;
    m->why = why;
    m->why_size = why_size;
    m->failed = false;
    memset(m->ranges, 0, sizeof m->ranges);
    if (!reserve(m)) {
        (void)snprintf(why, why_size, "the host is out of memory");
        return -1;
    }
    soft_fibre_adopt(&m->host);
    for (m->position.z = 0; m->position.z < grid[2]; m->position.z++)
        for (m->position.y = 0; m->position.y < grid[1]; m->position.y++)
            for (m->position.x = 0; m->position.x < grid[0]; m->position.x++) {
                set_up(m);
                soft_fibre_release(&m->start);
                m->current = &m->threads[0];
                soft_fibre_switch(&m->host, &m->current->fibre);
                soft_fibre_acquire(&m->finish);
                if (!m->failed) continue;
                for (unsigned i = 0; i < m->thread_count; i++) {
                    thread *t = &m->threads[i];
                    if (t->state != idle && t->state != exited) soft_fibre_restart(&t->fibre);
                }
                return -1;
            }
    return 0;
}

// -------------------------------------------------------------------------------------- primitives

SOFT_UNCHECKED soft_dim soft_thread_index(void) { return here->current->index; }
SOFT_UNCHECKED soft_dim soft_block_index(void) { return here->position; }
SOFT_UNCHECKED soft_dim soft_grid_size(void) { return here->grid; }
SOFT_UNCHECKED soft_dim soft_block_size(void) { return here->block; }

// A shuffle exchanges registers and orders no memory: only barriers are meetings to the race
// checker.
SOFT_UNCHECKED unsigned soft_shuffle(unsigned value, unsigned source, int site)
{
    machine *m = here;
    thread *self = m->current;
    warp *own = self->own;
    if (source >= warp_size || (own->lanes >> source & 1) == 0)
        fail(m, "shuffles from lane %u, which its warp lacks, at line %d", source, site);
    unsigned *values = own->values[own->at.parity];
    values[self->lane] = value;
    meet_warp(m, self, shuffling, site);
    return values[source];
}

// The bf16 in the lower or upper half of a word.
SOFT_UNCHECKED static inline float half_of(unsigned word, unsigned half)
{
    unsigned bits = half != 0 ? word & 0xffff0000U : word << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Leaves the words of the lane's fragments where the other lanes find them: a, then b.
SOFT_UNCHECKED static unsigned (*exchange_tiles(const unsigned a[4], const unsigned b[2], int site))[6]
{
    machine *m = here;
    thread *self = m->current;
    warp *own = self->own;
    if (own->count != warp_size)
        fail(m, "multiplies at line %d in a warp of %u lanes", site, own->count);
    unsigned(*tiles)[6] = own->tiles[own->at.parity];
    for (unsigned i = 0; i < 4; i++) tiles[self->lane][i] = a[i];
    for (unsigned i = 0; i < 2; i++) tiles[self->lane][4 + i] = b[i];
    meet_warp(m, self, multiplying, site);
    return tiles;
}

SOFT_UNCHECKED void soft_mma(float c[4], const unsigned a[4], const unsigned b[2], int site)
{
    const unsigned(*tiles)[6] = exchange_tiles(a, b, site);
    const unsigned own = here->current->lane;
    for (unsigned k = 0; k < 16; k++) {
        const unsigned lane = k % 8 / 2, upper = k / 8;
        for (unsigned i = 0; i < 4; i++) {
            const unsigned row = own / 4, column = own % 4 * 2 + i % 2;
            c[i] += half_of(tiles[row * 4 + lane][2 * upper + i / 2], k % 2) *
                    half_of(tiles[column * 4 + lane][4 + upper], k % 2);
        }
    }
}

SOFT_UNCHECKED static inline float tf32_of(unsigned word)
{
    const unsigned bits = word & ~0x1fffU;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

SOFT_UNCHECKED void soft_mma_tf32(float c[4], const unsigned a[4], const unsigned b[2], int site)
{
    const unsigned(*tiles)[6] = exchange_tiles(a, b, site);
    const unsigned own = here->current->lane;
    for (unsigned k = 0; k < 8; k++) {
        const unsigned lane = k % 4, upper = k / 4;
        for (unsigned i = 0; i < 4; i++) {
            const unsigned row = own / 4, column = own % 4 * 2 + i % 2;
            c[i] += tf32_of(tiles[row * 4 + lane][2 * upper + i / 2]) *
                    tf32_of(tiles[column * 4 + lane][4 + upper]);
        }
    }
}

SOFT_UNCHECKED void soft_sync_warp(int site)
{
    machine *m = here;
    thread *self = m->current;
    char *sync = &self->own->at.sync[self->own->at.parity];
    soft_fibre_release(sync);
    meet_warp(m, self, syncing_warp, site);
    soft_fibre_acquire(sync);
}

SOFT_UNCHECKED void soft_sync_cta(int site)
{
    machine *m = here;
    thread *self = m->current;
    if (m->live != m->thread_count)
        for (unsigned i = 0; i < m->thread_count; i++)
            if (m->threads[i].state == exited) fail_exited(m, syncing_cta, site, i);
    char *sync = &m->cta.sync[m->cta.parity];
    soft_fibre_release(sync);
    if (meet(m, self, &m->cta, m->thread_count, syncing_cta, site)) {
        for (unsigned i = 0; i < m->warp_count; i++) m->warps[i].ready = m->warps[i].lanes;
    } else {
        self->own->ready &= ~(1u << self->lane);
        yield(m, self);
    }
    self->state = running;
    soft_fibre_acquire(sync);
}

SOFT_UNCHECKED unsigned soft_sync_cta_any(unsigned value, int site)
{
    unsigned *any = &here->cta.any[here->cta.parity];
    if (value != 0) *any = 1;
    soft_sync_cta(site);
    return *any;
}

SOFT_UNCHECKED static void find_range(machine *m, range *out, unsigned long long address,
                                      unsigned size, int site)
{
    uint64_t begin, end;  // the race checker sees these being written: not the shared `out`
    if (!soft_memory_range(address, &begin, &end))
        fail(m, "an access of %u bytes at %#llx, line %d, is outside all allocations", size,
             address, site);
    if (size > end - address)
        fail(m,
             "an access of %u bytes at %#llx, line %d, passes the end of its allocation at %#llx",
             size, address, site, static_cast<unsigned long long>(end));
    out->begin = begin;
    out->end = end;
}

SOFT_UNCHECKED void *soft_global(unsigned long long address, unsigned size, int site)
{
    machine *m = here;
    range *known = &m->ranges[static_cast<unsigned>(site) % 64];
    if (address % size != 0)
        fail(m, "an access of %u bytes at %#llx, line %d, is not aligned", size, address, site);
    if (address < known->begin || address >= known->end || size > known->end - address)
        find_range(m, known, address, size, site);
    return reinterpret_cast<void *>(static_cast<uintptr_t>(address));
}

// One word of three is what it will be. The others are what an index array might still hold: slots
// and tokens before, inside and behind what there is.
SOFT_UNCHECKED unsigned soft_hint(unsigned long long address, int site)
{
    static const unsigned wrong[] = {0x80000000, 0xffffffff, 0, 1, 2, 3, 5, 0x10000, 0x7fffffff};
    machine *m = here;
    unsigned word;
    memcpy(&word, soft_global(address, sizeof word, site), sizeof word);
    m->hints = m->hints * 1664525 + 1013904223;
    const unsigned pick = m->hints >> 16;
    if (pick % 3 == 0 || soft_hints_exact()) return word;
    return wrong[pick / 3 % (sizeof wrong / sizeof wrong[0])];
}

SOFT_UNCHECKED void soft_prefetch(unsigned long long address, unsigned size, int site)
{
    uint64_t begin, end;
    soft_count_prefetch();
    if (size > 1 && (address % 16 != 0 || size % 16 != 0))
        fail(here, "a prefetch of %u bytes at %#llx, line %d, is not aligned", size, address, site);
    if (!soft_memory_range(address, &begin, &end) || size > end - address)
        fail(here, "a prefetch of %u bytes at %#llx, line %d, leaves all allocations", size,
             address, site);
}

SOFT_UNCHECKED void *soft_shared(unsigned offset, unsigned size, int site)
{
    machine *m = here;
    if (offset % size != 0)
        fail(m, "a shared access of %u bytes at offset %u, line %d, is not aligned", size, offset,
             site);
    if (offset > m->shared_size || size > m->shared_size - offset)
        fail(m, "a shared access of %u bytes at offset %u, line %d, is outside the %zu bytes", size,
             offset, site, m->shared_size);
    return m->shared + offset;
}
