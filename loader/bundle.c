// SPDX-License-Identifier: Apache-2.0
// Owns the life of an opened bundle: where its bytes come from, who frees them, and lookups by
// name. Refuses to know what is inside the stored frames and which record serves a problem.
// Invariant: a kda_bundle exists only once its index is proved, and never changes after that.
#include "loader/bundle.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/error.h"
#include "loader/proof.h"

#define FILE_MAX (1ll << 30)

// Backwards, so that the first of a kind is written last.
static void find_starts(kda_bundle *bundle)
{
    struct kda_start *const starts = bundle->starts[0][0];
    for (size_t i = 0; i < sizeof bundle->starts / sizeof *starts; i++)
        starts[i] = (struct kda_start){bundle->body_count, bundle->route_count};
    for (uint32_t i = bundle->body_count; i-- > 0;) {
        const struct kda_format_body *body = &bundle->bodies[i];
        if (body->op >= KDA_START_OPS || body->gate >= KDA_START_GATES) continue;
        for (uint32_t t = body->tokens_min; t <= body->tokens_max && t < KDA_START_TOKENS; t++)
            bundle->starts[body->op][body->gate][t].body = i;
    }
    for (uint32_t i = bundle->route_count; i-- > 0;) {
        const struct kda_format_route *route = &bundle->routes[i];
        if (route->op >= KDA_START_OPS || route->gate >= KDA_START_GATES) continue;
        for (uint32_t t = route->tokens_min; t <= route->tokens_max && t < KDA_START_TOKENS; t++)
            bundle->starts[route->op][route->gate][t].route = i;
    }
}

static kda_status open_bytes(const void *data, size_t size, bool owned, kda_bundle **out,
                             kda_error *err)
{
    kda_bundle proved = {.data = data, .size = size, .owned = owned};
    kda_status status = kda_proof_index(&proved, err);
    if (status) return status;
    kda_bundle *bundle = malloc(sizeof *bundle);
    if (!bundle)
        return kda_fail(err, KDA_E_NO_MEMORY, "bundle: no memory for %zu bytes", sizeof *bundle);
    *bundle = proved;
    find_starts(bundle);
    *out = bundle;
    return KDA_OK;
}

kda_status kda_bundle_open(const void *data, size_t size, kda_bundle **out, kda_error *err)
{
    if (!data || !out)
        return kda_fail(err, KDA_E_ARGUMENT, "bundle open: %s expected, found NULL",
                        data ? "out" : "data");
    if ((uintptr_t)data % 8)
        return kda_fail(
            err, KDA_E_ARGUMENT,
            "bundle open: data expected at a multiple of 8 bytes, found address %% 8 = %u",
            (unsigned)((uintptr_t)data % 8));
    return open_bytes(data, size, false, out, err);
}

static kda_status fail_io(kda_error *err, const char *path, const char *doing)
{
    int number = errno;
    char text[128];
    return kda_fail(err, KDA_E_IO, "bundle file %.400s: %s: %s", path, doing,
                    strerror_r(number, text, sizeof text));
}

static kda_status read_whole(int file, const char *path, void **out_data, size_t *out_size,
                             kda_error *err)
{
    struct stat stat;
    if (fstat(file, &stat)) return fail_io(err, path, "stat");
    if (!S_ISREG(stat.st_mode))
        return kda_fail(err, KDA_E_IO, "bundle file %.400s: expected a regular file, found %s",
                        path, S_ISDIR(stat.st_mode) ? "a directory" : "something else");
    if (stat.st_size > FILE_MAX)
        return kda_fail(err, KDA_E_IO,
                        "bundle file %.400s: expected at most %lld bytes, found %lld", path,
                        FILE_MAX, (long long)stat.st_size);
    if (stat.st_size == 0)
        return kda_fail(err, KDA_E_FORMAT,
                        "bundle file %.400s: expected a bundle, found an empty file", path);
    size_t size = (size_t)stat.st_size, done = 0;
    uint8_t *data = malloc(size);
    if (!data)
        return kda_fail(err, KDA_E_NO_MEMORY, "bundle file %.400s: no memory for %zu bytes", path,
                        size);
    kda_status status = KDA_OK;
    while (done < size) {
        ssize_t got = read(file, data + done, size - done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            status = fail_io(err, path, "read");
            goto fail;
        }
        if (got == 0) {
            status = kda_fail(err, KDA_E_IO,
                              "bundle file %.400s: expected %zu bytes, found %zu: it shrank", path,
                              size, done);
            goto fail;
        }
        done += (size_t)got;
    }
    *out_data = data;
    *out_size = size;
    return KDA_OK;
fail:
    free(data);
    return status;
}

kda_status kda_bundle_open_file(const char *path, kda_bundle **out, kda_error *err)
{
    if (!path || !out)
        return kda_fail(err, KDA_E_ARGUMENT, "bundle open: %s expected, found NULL",
                        path ? "out" : "path");
    // Without O_NONBLOCK a named pipe would hold the caller until someone writes.
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return fail_io(err, path, "open");
    void *data = NULL;
    size_t size = 0;
    kda_status status = read_whole(file, path, &data, &size, err);
    (void)close(file);  // nothing was written
    if (status) return status;
    status = open_bytes(data, size, true, out, err);
    if (status) free(data);
    return status;
}

void kda_bundle_close(kda_bundle **bundle)
{
    if (!bundle || !*bundle) return;
    if ((*bundle)->owned) free((void *)(uintptr_t)(*bundle)->data);
    free(*bundle);
    *bundle = NULL;
}

uint32_t kda_bundle_find_body(const kda_bundle *bundle, const char *name)
{
    for (uint32_t i = 0; i < bundle->body_count; ++i) {
        if (!strcmp(bundle->strings + bundle->bodies[i].name, name)) return i;
    }
    return KDA_NONE;
}

uint32_t kda_bundle_find_target(const kda_bundle *bundle, const char *name)
{
    for (uint32_t i = 0; i < bundle->target_count; ++i) {
        if (!strcmp(bundle->strings + bundle->targets[i].name, name)) return i;
    }
    return KDA_NONE;
}

uint32_t kda_bundle_find_cubin(const kda_bundle *bundle, uint32_t body, uint32_t target)
{
    // Where it is if no body lacks an image.
    const uint64_t likely = (uint64_t)body * bundle->target_count + target;
    if (likely < bundle->cubin_count && bundle->cubins[likely].body == body &&
        bundle->cubins[likely].target == target)
        return (uint32_t)likely;
    uint32_t low = 0, high = bundle->cubin_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct kda_format_cubin *cubin = &bundle->cubins[middle];
        if (cubin->body < body || (cubin->body == body && cubin->target < target))
            low = middle + 1;
        else
            high = middle;
    }
    if (low == bundle->cubin_count) return KDA_NONE;
    const struct kda_format_cubin *cubin = &bundle->cubins[low];
    return cubin->body == body && cubin->target == target ? low : KDA_NONE;
}

bool kda_target_runs_on(const struct kda_format_target *target, uint32_t cc)
{
    for (uint32_t i = 0; i < target->cc_count; ++i) {
        if (target->ccs[i] == cc) return true;
    }
    return false;
}

#define NAME_CASE(ID, NUMBER, TEXT)                                                                \
    case NUMBER:                                                                                   \
        return TEXT;

const char *kda_op_name(uint32_t op)
{
    switch (op) {
        KDA_OPS(NAME_CASE)
    default:
        return "?";
    }
}

const char *kda_gate_name(uint32_t gate)
{
    switch (gate) {
        KDA_GATES(NAME_CASE)
    default:
        return "?";
    }
}

const char *kda_mode_name(uint32_t mode)
{
    switch (mode) {
        KDA_MODES(NAME_CASE)
    default:
        return "?";
    }
}
