// SPDX-License-Identifier: Apache-2.0
// The library as a guest in a process: what happens around fork, exit, dlclose and a context that
// went first. Every case is one run of this program, which must say nothing and end with 0;
// process.sh runs them. The library is opened as a shared object, as a plugin would.
//   process-test CASE LIBKDA
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loader/kda.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, err.text);          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define FUNCTIONS(X)                                                                               \
    X(kda_bundle_open_builtin)                                                                     \
    X(kda_bundle_close) X(kda_context_create) X(kda_context_prepare) X(kda_context_close)

static kda_error err;

static struct {
    void *library;
#define X(name) __typeof__(&name) name;
    FUNCTIONS(X)
#undef X
} kda;

static struct {
    void *library;
    int (*cuInit)(unsigned);
    int (*cuCtxCreate_v2)(CUcontext *, unsigned, int);
    int (*cuCtxDestroy_v2)(CUcontext);
} cu;

static void find(void *library, const char *name, void *out)
{
    void *symbol = dlsym(library, name);
    CHECK(symbol);
    memcpy(out, &symbol, sizeof symbol);
}

static void open_kda(const char *path)
{
    kda.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!kda.library) fprintf(stderr, "%s\n", dlerror());
    CHECK(kda.library);
#define X(name) find(kda.library, #name, &kda.name);
    FUNCTIONS(X)
#undef X
}

static CUcontext open_cuda(void)
{
    CUcontext context = NULL;
    cu.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    CHECK(cu.library);
    find(cu.library, "cuInit", &cu.cuInit);
    find(cu.library, "cuCtxCreate_v2", &cu.cuCtxCreate_v2);
    find(cu.library, "cuCtxDestroy_v2", &cu.cuCtxDestroy_v2);
    CHECK(cu.cuInit(0) == 0 && cu.cuCtxCreate_v2(&context, 0, 0) == 0);
    return context;
}

static kda_bundle *open_bundle(void)
{
    kda_bundle *bundle = NULL;
    CHECK(kda.kda_bundle_open_builtin(&bundle, &err) == KDA_OK);
    return bundle;
}

static kda_context *create(const kda_bundle *bundle, CUcontext cuda)
{
    kda_context *context = NULL;
    CHECK(kda.kda_context_create(bundle, cuda, NULL, &context, &err) == KDA_OK);
    CHECK(kda.kda_context_prepare(context, NULL, &err) == KDA_OK);
    return context;
}

// In the child, and then again in the parent.
static int in_both(void (*body)(void *), void *argument)
{
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        body(argument);
        exit(0);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    body(argument);
    return 0;
}

static void whole_life(void *bundle)
{
    kda_context *context = create(bundle, open_cuda());
    kda.kda_context_close(&context);
}

static int fork_before(void)
{
    kda_bundle *bundle = open_bundle();
    in_both(whole_life, bundle);
    kda.kda_bundle_close(&bundle);
    return 0;
}

static struct {
    kda_context *context;
    kda_bundle *bundle;
    pid_t parent;
} used;

static void use_after_fork(void *argument)
{
    (void)argument;
    const kda_status wanted = getpid() == used.parent ? KDA_OK : KDA_E_FORKED;
    CHECK(kda.kda_context_prepare(used.context, NULL, &err) == wanted);
    kda.kda_context_close(&used.context);
    kda.kda_bundle_close(&used.bundle);
}

static int fork_after(void)
{
    used.parent = getpid();
    used.bundle = open_bundle();
    used.context = create(used.bundle, open_cuda());
    return in_both(use_after_fork, NULL);
}

static int leave_open(void)
{
    (void)create(open_bundle(), open_cuda());
    return 0;
}

static int close_late(void)
{
    CUcontext cuda = open_cuda();
    kda_bundle *bundle = open_bundle();
    kda_context *context = create(bundle, cuda);
    CHECK(cu.cuCtxDestroy_v2(cuda) == 0);
    kda.kda_context_close(&context);
    kda.kda_bundle_close(&bundle);
    CHECK(!context && !bundle);
    return 0;
}

static int unload(const char *path)
{
    CUcontext cuda = open_cuda();
    for (int i = 0; i < 3; i++) {
        if (i) open_kda(path);
        kda_bundle *bundle = open_bundle();
        kda_context *context = create(bundle, cuda);
        kda.kda_context_close(&context);
        kda.kda_bundle_close(&bundle);
        CHECK(dlclose(kda.library) == 0);
        // A handler that the library left behind would run now.
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) _exit(0);
        int status = 1;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s CASE LIBKDA\n", argv[0]);
        return 2;
    }
    open_kda(argv[2]);
    if (!strcmp(argv[1], "load")) return 0;
    if (!strcmp(argv[1], "open")) {
        kda_bundle *bundle = open_bundle();
        kda.kda_bundle_close(&bundle);
        return 0;
    }
    if (!strcmp(argv[1], "fork-before")) return fork_before();
    if (!strcmp(argv[1], "fork-after")) return fork_after();
    if (!strcmp(argv[1], "leave-open")) return leave_open();
    if (!strcmp(argv[1], "close-late")) return close_late();
    if (!strcmp(argv[1], "unload")) return unload(argv[2]);
    fprintf(stderr, "%s: no case %s\n", argv[0], argv[1]);
    return 2;
}
