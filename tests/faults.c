// SPDX-License-Identifier: Apache-2.0
// Owns the stand-ins for the wrapped functions. Knows nothing of what is tested. Invariant: an
// unarmed stand-in does what the real function does, and counts it.
#include "tests/faults.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>

static atomic_long calls[FAULT_KINDS], live, armed_in;
static atomic_size_t largest;
static enum fault_kind armed;
static enum fault_read reads;

static const char *const names[FAULT_KINDS] = {
#define X(kind, name) #name,
    FAULT_SYMBOLS(X)
#undef X
};

const char *fault_name(enum fault_kind kind) { return names[kind]; }

void fault_arm(enum fault_kind kind, long k)
{
    armed = kind;
    atomic_store(&armed_in, k);
}

bool fault_disarm(void) { return atomic_exchange(&armed_in, 0) <= 0; }

void fault_reads(enum fault_read how) { reads = how; }
long fault_calls(enum fault_kind kind) { return atomic_load(&calls[kind]); }
long fault_live(void) { return atomic_load(&live); }
size_t fault_largest(void) { return atomic_exchange(&largest, 0); }

static bool fails(enum fault_kind kind)
{
    atomic_fetch_add(&calls[kind], 1);
    // Fired is -1, so that disarming can tell it from armed.
    if (kind != armed || atomic_load(&armed_in) <= 0 || atomic_fetch_sub(&armed_in, 1) != 1)
        return false;
    atomic_store(&armed_in, -1);
    errno = kind == FAULT_MALLOC || kind == FAULT_CALLOC || kind == FAULT_MMAP ? ENOMEM : EIO;
    return true;
}

static void *took(void *memory, size_t size)
{
    if (memory) atomic_fetch_add(&live, 1);
    size_t most = atomic_load(&largest);
    while (size > most && !atomic_compare_exchange_weak(&largest, &most, size)) {
    }
    return memory;
}

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size)
{
    return fails(FAULT_MALLOC) ? NULL : took(__real_malloc(size), size);
}

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size)
{
    return fails(FAULT_CALLOC) ? NULL : took(__real_calloc(count, size), count * size);
}

void __real_free(void *memory);
void __wrap_free(void *memory);
void __wrap_free(void *memory)
{
    if (memory) atomic_fetch_sub(&live, 1);
    __real_free(memory);
}

void *__real_mmap(void *at, size_t size, int protection, int flags, int file, off_t offset);
void *__wrap_mmap(void *at, size_t size, int protection, int flags, int file, off_t offset);
void *__wrap_mmap(void *at, size_t size, int protection, int flags, int file, off_t offset)
{
    return fails(FAULT_MMAP) ? MAP_FAILED : __real_mmap(at, size, protection, flags, file, offset);
}

void *__wrap_mmap64(void *at, size_t size, int protection, int flags, int file, off_t offset);
void *__wrap_mmap64(void *at, size_t size, int protection, int flags, int file, off_t offset)
{
    return __wrap_mmap(at, size, protection, flags, file, offset);
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    if (flags & O_CREAT) {
        va_list list;
        va_start(list, flags);
        mode = va_arg(list, mode_t);
        va_end(list);
    }
    return fails(FAULT_OPEN) ? -1 : __real_open(path, flags, mode);
}

int __wrap_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...)
{
    // The library creates no files.
    return fails(FAULT_OPEN) ? -1 : __real_open(path, flags);
}

int __real_fstat(int file, struct stat *out);
int __wrap_fstat(int file, struct stat *out);
int __wrap_fstat(int file, struct stat *out)
{
    return fails(FAULT_STAT) ? -1 : __real_fstat(file, out);
}

// Where off_t has 64 bits the two structs are one.
int __wrap_fstat64(int file, struct stat *out);
int __wrap_fstat64(int file, struct stat *out) { return __wrap_fstat(file, out); }

ssize_t __real_read(int file, void *out, size_t size);
ssize_t __wrap_read(int file, void *out, size_t size);
ssize_t __wrap_read(int file, void *out, size_t size)
{
    if (fails(FAULT_READ)) return -1;
    if (reads == READ_ENDS) return 0;
    if (reads == READ_INTERRUPTED && fault_calls(FAULT_READ) % 2) {
        errno = EINTR;
        return -1;
    }
    return __real_read(file, out, reads == READ_BYTEWISE && size ? 1 : size);
}

void *__real_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags)
{
    return fails(FAULT_DLOPEN) ? NULL : __real_dlopen(name, flags);
}

void *__real_dlsym(void *library, const char *name);
void *__wrap_dlsym(void *library, const char *name);
void *__wrap_dlsym(void *library, const char *name)
{
    return fails(FAULT_DLSYM) ? NULL : __real_dlsym(library, name);
}

int __real_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *how);
int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *how);
int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *how)
{
    return fails(FAULT_MUTEX) ? ENOMEM : __real_pthread_mutex_init(mutex, how);
}

int __real_pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void));
int __wrap_pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void));
int __wrap_pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void))
{
    return fails(FAULT_ATFORK) ? ENOMEM : __real_pthread_atfork(prepare, parent, child);
}
