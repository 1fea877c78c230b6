// SPDX-License-Identifier: Apache-2.0
// A fibre: a stack and a place to continue. Knows how to switch, and how to tell the sanitizers
// about it; knows nothing of kernels, warps or scheduling. Switches synchronise nothing: under
// ThreadSanitizer two fibres race like two threads unless they meet in soft_fibre_release and
// soft_fibre_acquire.
#ifndef KDA_TESTS_SOFT_FIBRE_H
#define KDA_TESTS_SOFT_FIBRE_H

#include <stddef.h>

#if !defined(__x86_64__) && !defined(SOFT_UCONTEXT)
#define SOFT_UCONTEXT
#endif
#ifdef SOFT_UCONTEXT
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define SOFT_ASAN
#endif
#if defined(__SANITIZE_THREAD__)
#define SOFT_TSAN
#endif
#if defined(__has_feature)
#if __has_feature(address_sanitizer) && !defined(SOFT_ASAN)
#define SOFT_ASAN
#endif
#if __has_feature(thread_sanitizer) && !defined(SOFT_TSAN)
#define SOFT_TSAN
#endif
#endif

// The executor's own state is shared by all fibres of a host thread, and only one runs at a time:
// it is not looked at.
#ifdef SOFT_TSAN
#define SOFT_UNCHECKED __attribute__((no_sanitize("thread")))
extern "C" void __tsan_acquire(void *address);
extern "C" void __tsan_release(void *address);
#else
#define SOFT_UNCHECKED
#endif

struct soft_fibre {
#ifdef SOFT_UCONTEXT
    ucontext_t context;
#else
    void *sp;
#endif
    soft_fibre *previous;  // who switched here
    void (*entry)(void);   // must not return
    char *map;             // guard page and stack; NULL for the host thread's own stack
    size_t map_size;
    const void *bottom;  // of the stack, as the sanitizers want it
    size_t size;
    void *fake_stack, *tsan;
};

// Makes `fibre` stand for the host thread that calls.
void soft_fibre_adopt(soft_fibre *fibre);
// Gives a zeroed fibre a stack that starts in `entry`; false: no memory. Fibres with consecutive
// colours have the hot ends of their stacks in different sets of the CPU's cache.
bool soft_fibre_create(soft_fibre *fibre, void (*entry)(void), unsigned colour);
// Forgets where a suspended fibre was: it starts in its entry again.
void soft_fibre_restart(soft_fibre *fibre);
void soft_fibre_destroy(soft_fibre *fibre);
void soft_fibre_switch(soft_fibre *from, soft_fibre *to);

static inline void soft_fibre_release(void *meeting)
{
#ifdef SOFT_TSAN
    __tsan_release(meeting);
#else
    (void)meeting;
#endif
}
static inline void soft_fibre_acquire(void *meeting)
{
#ifdef SOFT_TSAN
    __tsan_acquire(meeting);
#else
    (void)meeting;
#endif
}

#endif
