// SPDX-License-Identifier: Apache-2.0
// What the library asks of the C library, counted and made to fail. The linker puts these functions
// in the place of the real ones (ld --wrap=NAME for every NAME of FAULT_SYMBOLS, for free, and for
// the 64-bit names of the file calls), in the test program and in the library's objects alike;
// nothing in the library knows. Any thread may allocate; arming and counting belong to one thread.
#ifndef KDA_TESTS_FAULTS_H
#define KDA_TESTS_FAULTS_H

#include <stdbool.h>
#include <stddef.h>

// kind, wrapped function. An allocation that fails returns NULL, a mapping MAP_FAILED, a library
// NULL, a pthread function ENOMEM, all else -1 with EIO.
#define FAULT_SYMBOLS(X)                                                                           \
    X(MALLOC, malloc)                                                                              \
    X(CALLOC, calloc)                                                                              \
    X(MMAP, mmap)                                                                                  \
    X(OPEN, open)                                                                                  \
    X(STAT, fstat)                                                                                 \
    X(READ, read)                                                                                  \
    X(DLOPEN, dlopen)                                                                              \
    X(DLSYM, dlsym)                                                                                \
    X(MUTEX, pthread_mutex_init)                                                                   \
    X(ATFORK, pthread_atfork)

enum fault_kind {
#define X(kind, name) FAULT_##kind,
    FAULT_SYMBOLS(X)
#undef X
        FAULT_KINDS
};
const char *fault_name(enum fault_kind kind);

void fault_arm(enum fault_kind kind, long k);  // the k-th call from now (1 = next) fails, once
bool fault_disarm(void);                       // did it?

enum fault_read { READ_WHOLE, READ_INTERRUPTED, READ_BYTEWISE, READ_ENDS };
void fault_reads(enum fault_read how);  // every second one is EINTR; one byte each; 0 at once

long fault_calls(enum fault_kind kind);  // since the program began
long fault_live(void);                   // blocks that were allocated and not freed
// The most bytes that were ever asked for at once since the last call of this.
size_t fault_largest(void);

#endif
