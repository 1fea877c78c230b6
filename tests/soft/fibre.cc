// SPDX-License-Identifier: Apache-2.0
// Owns stacks and switches: 15 instructions on x86-64, ucontext elsewhere or with -DSOFT_UCONTEXT
// (which also saves the signal mask and is ten times slower). Invariant: exactly one fibre of a
// host thread runs, and the sanitizers know which.
#include "tests/soft/fibre.h"

#include <cstdint>
#include <cstring>
#include <sys/mman.h>

#ifdef SOFT_ASAN
extern "C" void __sanitizer_start_switch_fiber(void **save, const void *bottom, size_t size);
extern "C" void __sanitizer_finish_switch_fiber(void *save, const void **bottom, size_t *size);
extern "C" void __asan_unpoison_memory_region(const volatile void *address, size_t size);
#endif
#ifdef SOFT_TSAN
extern "C" void *__tsan_get_current_fiber(void);
extern "C" void *__tsan_create_fiber(unsigned flags);
extern "C" void __tsan_destroy_fiber(void *fiber);
extern "C" void __tsan_switch_to_fiber(void *fiber, unsigned flags);
static const unsigned no_sync = 1;
#endif

static const size_t guard_size = 65536;  // a page, whatever its size
#if defined(SOFT_ASAN) || defined(SOFT_TSAN)
static const size_t stack_size = 512 * 1024;  // redzones make frames several times larger
#else
static const size_t stack_size = 128 * 1024;
#endif

// 64 colours of 7 cache lines. Without them all stacks end at the same low address bits, and a
// switch costs a cache miss.
static const size_t colours = 64, colour_size = 448;

static thread_local soft_fibre *entering __attribute__((tls_model("initial-exec")));

SOFT_UNCHECKED static void arrive(soft_fibre *self)
{
#ifdef SOFT_ASAN
    // Also the only way to learn where the host thread's own stack lies.
    __sanitizer_finish_switch_fiber(self->fake_stack, &self->previous->bottom,
                                    &self->previous->size);
#else
    (void)self;
#endif
}

SOFT_UNCHECKED static void begin(void)
{
    soft_fibre *self = entering;
    arrive(self);
    self->entry();
}

#ifndef SOFT_UCONTEXT
extern "C" void soft_fibre_swap(void **save, void *to);
asm(R"(
    .text
    .hidden soft_fibre_swap
    .globl soft_fibre_swap
    .type soft_fibre_swap, @function
    .p2align 4
soft_fibre_swap:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size soft_fibre_swap, .-soft_fibre_swap
)");
#endif

void soft_fibre_adopt(soft_fibre *fibre)
{
    memset(fibre, 0, sizeof *fibre);
#ifdef SOFT_TSAN
    fibre->tsan = __tsan_get_current_fiber();
#endif
}

static void prepare(soft_fibre *fibre)
{
#ifdef SOFT_TSAN
    fibre->tsan = __tsan_create_fiber(0);
#endif
#ifdef SOFT_UCONTEXT
    getcontext(&fibre->context);
    fibre->context.uc_stack.ss_sp = const_cast<void *>(fibre->bottom);
    fibre->context.uc_stack.ss_size = fibre->size;
    fibre->context.uc_link = nullptr;
    makecontext(&fibre->context, begin, 0);
#else
    // What soft_fibre_swap pops: six registers, the address of begin, and no caller to return to.
    // The stack pointer is then 8 below a multiple of 16, as the ABI wants it at the first
    // instruction of a function.
    uintptr_t *top = reinterpret_cast<uintptr_t *>(fibre->map + guard_size + fibre->size);
    memset(top - 8, 0, 8 * sizeof *top);
    top[-2] = reinterpret_cast<uintptr_t>(&begin);
    fibre->sp = top - 8;
#endif
}

bool soft_fibre_create(soft_fibre *fibre, void (*entry)(void), unsigned colour)
{
    memset(fibre, 0, sizeof *fibre);
    size_t size = guard_size + stack_size;
    void *map = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (map == MAP_FAILED) return false;
    if (mprotect(map, guard_size, PROT_NONE) != 0) {
        munmap(map, size);
        return false;
    }
    fibre->map = static_cast<char *>(map);
    fibre->map_size = size;
    fibre->bottom = fibre->map + guard_size;
    fibre->size = stack_size - colour % colours * colour_size;
    fibre->entry = entry;
    prepare(fibre);
    return true;
}

SOFT_UNCHECKED void soft_fibre_restart(soft_fibre *fibre)
{
#ifdef SOFT_ASAN
    __asan_unpoison_memory_region(fibre->bottom, fibre->size);
    fibre->fake_stack = nullptr;
#endif
#ifdef SOFT_TSAN
    // What the fibre did so far happened before whatever the caller does now: it will do no more.
    void *self = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fibre->tsan, no_sync);
    __tsan_switch_to_fiber(self, 0);
    __tsan_destroy_fiber(fibre->tsan);
#endif
    prepare(fibre);
}

void soft_fibre_destroy(soft_fibre *fibre)
{
#ifdef SOFT_ASAN
    __asan_unpoison_memory_region(fibre->bottom, fibre->size);
#endif
#ifdef SOFT_TSAN
    __tsan_destroy_fiber(fibre->tsan);
#endif
    munmap(fibre->map, fibre->map_size);
    memset(fibre, 0, sizeof *fibre);
}

SOFT_UNCHECKED void soft_fibre_switch(soft_fibre *from, soft_fibre *to)
{
    to->previous = from;
    entering = to;
#ifdef SOFT_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->bottom, to->size);
#endif
#ifdef SOFT_TSAN
    __tsan_switch_to_fiber(to->tsan, no_sync);
#endif
#ifdef SOFT_UCONTEXT
    swapcontext(&from->context, &to->context);
#else
    soft_fibre_swap(&from->sp, to->sp);
#endif
    arrive(from);
}
