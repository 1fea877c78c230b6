// SPDX-License-Identifier: Apache-2.0
// Owns cubins.lock and the line format of all locks. It knows an image by its file name and its
// bytes only; whether the bytes are any good is for others. Output is in the order of the manifest,
// whatever the order of the arguments.
#include "tools/sums.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/rows.h"

kda_status kda_sums_read(const char *path, struct kda_sums *out, kda_error *err)
{
    struct kda_sums lock = {0};
    size_t size;
    uint8_t *data;
    kda_status status = kda_files_read(path, &data, &size, err);
    if (status != KDA_OK) return status;
    lock.text = (char *)data;
    size_t lines = 0;
    for (size_t i = 0; i < size; i++) lines += data[i] == '\n';
    lock.lines = calloc(lines + 1, sizeof *lock.lines);
    if (!lock.lines) {
        status = kda_fail(err, KDA_E_NO_MEMORY, "%s: no memory for %zu lines", path, lines);
        goto fail;
    }
    size_t number = 0;
    for (char *line = lock.text, *end; *line; line = end + 1) {
        number++;
        end = strchr(line, '\n');
        if (!end || strspn(line, "0123456789abcdef") != 64 || strncmp(line + 64, "  ", 2) != 0 ||
            end - line < 67) {
            status =
                kda_fail(err, KDA_E_FORMAT, "%s:%zu: expected \"<sha256>  <name>\"", path, number);
            goto fail;
        }
        *end = 0;
        struct kda_sums_line *entry = &lock.lines[lock.count++];
        memcpy(entry->hex, line, 64);
        entry->name = line + 66;
    }
    *out = lock;
    return KDA_OK;
fail:
    kda_sums_free(&lock);
    return status;
}

void kda_sums_free(struct kda_sums *lock)
{
    free(lock->lines);
    free(lock->text);
    *lock = (struct kda_sums){0};
}

const char *kda_sums_find(const struct kda_sums *lock, const char *name)
{
    for (size_t i = 0; i < lock->count; i++)
        if (strcmp(lock->lines[i].name, name) == 0) return lock->lines[i].hex;
    return NULL;
}

// The digests of all images that the manifest can name, "" where there is none, schedule by
// schedule.
struct digests {
    char (*hex)[KDA_HEX_SIZE];
    bool *targets;  // the target is among the paths
};

static char *digest_of(const struct digests *digests, uint32_t schedule, uint32_t target)
{
    return digests->hex[schedule * kda_target_count + target];
}

static void free_digests(struct digests *digests)
{
    free(digests->hex);
    free(digests->targets);
}

static kda_status read_digests(char *const *paths, size_t count, struct digests *out,
                               kda_error *err)
{
    struct digests digests = {
        .hex = calloc((size_t)kda_schedule_count * kda_target_count, sizeof *digests.hex),
        .targets = calloc(kda_target_count, sizeof *digests.targets),
    };
    kda_status status = KDA_OK;
    if (!digests.hex || !digests.targets)
        status = kda_fail(err, KDA_E_NO_MEMORY, "no memory for digests");
    for (size_t i = 0; i < count && status == KDA_OK; i++) {
        uint32_t schedule, target;
        if (!kda_rows_cubin(paths[i], &schedule, &target)) {
            status = kda_fail(err, KDA_E_NAME, "%s: expected BODY.TARGET.cubin of the manifest",
                              paths[i]);
            break;
        }
        uint8_t *data, digest[32];
        size_t size;
        status = kda_files_read(paths[i], &data, &size, err);
        if (status != KDA_OK) break;
        kda_files_sha256(data, size, digest);
        free(data);
        kda_files_hex(digest, digest_of(&digests, schedule, target));
        digests.targets[target] = true;
    }
    if (status == KDA_OK)
        *out = digests;
    else
        free_digests(&digests);
    return status;
}

kda_status kda_sums_check(const char *path, char *const *paths, size_t count, kda_error *err)
{
    struct kda_sums lock = {0};
    struct digests digests = {0};
    kda_status status = kda_sums_read(path, &lock, err);
    if (status == KDA_OK) status = read_digests(paths, count, &digests, err);
    if (status != KDA_OK) goto fail;

    size_t findings = 0;
    for (uint32_t s = 0; s < kda_schedule_count; s++) {
        for (uint32_t t = 0; t < kda_target_count; t++) {
            char name[256];
            snprintf(name, sizeof name, "%s.%s.cubin", kda_schedules[s].name, kda_targets[t].name);
            const char *locked = kda_sums_find(&lock, name), *built = digest_of(&digests, s, t);
            if (!digests.targets[t] || (locked && strcmp(locked, built) == 0)) continue;
            if (!locked && !built[0]) continue;
            findings++;
            if (!locked)
                printf("%s: surplus: %s has no line for it\n", name, path);
            else if (!built[0])
                printf("%s: missing: it is in %s and was not given\n", name, path);
            else
                printf("%s: sha256 %s, expected %s\n", name, built, locked);
        }
    }
    for (size_t i = 0; i < lock.count; i++) {
        uint32_t s, t;
        if (kda_rows_cubin(lock.lines[i].name, &s, &t)) continue;
        printf("%s: missing: it is in %s and the manifest does not declare it\n",
               lock.lines[i].name, path);
        findings++;
    }
    if (findings) {
        printf("if this is meant, run: ninja -C build relock\n");
        status = kda_fail(err, KDA_E_DIGEST, "%zu images differ from %s", findings, path);
    }
fail:
    free_digests(&digests);
    kda_sums_free(&lock);
    return status;
}

kda_status kda_sums_write(const char *path, char *const *paths, size_t count, kda_error *err)
{
    struct kda_sums old = {0};
    struct digests digests = {0};
    char *text = NULL;
    size_t size = 0;
    // A lock that is not there yet, or broken, has no lines to keep.
    (void)kda_sums_read(path, &old, NULL);
    kda_status status = read_digests(paths, count, &digests, err);
    if (status != KDA_OK) goto fail;

    FILE *out = open_memstream(&text, &size);
    if (!out) {
        status = kda_fail(err, KDA_E_NO_MEMORY, "%s: no memory for its text", path);
        goto fail;
    }
    for (uint32_t s = 0; s < kda_schedule_count; s++) {
        for (uint32_t t = 0; t < kda_target_count; t++) {
            char name[256];
            snprintf(name, sizeof name, "%s.%s.cubin", kda_schedules[s].name, kda_targets[t].name);
            const char *hex =
                digests.targets[t] ? digest_of(&digests, s, t) : kda_sums_find(&old, name);
            if (hex && hex[0]) fprintf(out, "%s  %s\n", hex, name);
        }
    }
    bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed)
        status = kda_fail(err, KDA_E_NO_MEMORY, "%s: no memory for its text", path);
    else
        status = kda_files_write(path, text, size, err);
fail:
    free(text);
    free_digests(&digests);
    kda_sums_free(&old);
    return status;
}
