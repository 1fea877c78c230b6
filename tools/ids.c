// SPDX-License-Identifier: Apache-2.0
// Owns bundle.lock. It knows a bundle by its file name and its id, which the loader computes from a
// proved index: a file that is no bundle has no id. Lines are sorted by name, whatever the order of
// the arguments.
#include "tools/ids.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kda_status read_id(const char *path, char out[KDA_HEX_SIZE], kda_error *err)
{
    kda_bundle *bundle = NULL;
    uint8_t id[32];
    kda_error inner;
    kda_status status = kda_bundle_open_file(path, &bundle, &inner);
    if (status != KDA_OK) return kda_fail(err, status, "%s: %s", path, inner.text);
    kda_bundle_id(bundle, id);
    kda_bundle_close(&bundle);
    kda_files_hex(id, out);
    return KDA_OK;
}

kda_status kda_ids_check(const char *path, char *const *paths, size_t count, kda_error *err)
{
    struct kda_sums lock = {0};
    kda_status status = kda_sums_read(path, &lock, err);
    size_t findings = 0;
    for (size_t i = 0; i < count && status == KDA_OK; i++) {
        const char *name = kda_files_base(paths[i]), *locked = kda_sums_find(&lock, name);
        char hex[KDA_HEX_SIZE];
        status = read_id(paths[i], hex, err);
        if (status != KDA_OK || (locked && strcmp(locked, hex) == 0)) continue;
        findings++;
        if (locked)
            printf("%s: bundle id %s, expected %s of %s\n", name, hex, locked, path);
        else
            printf("%s: surplus: %s has no line for it\n", name, path);
    }
    if (status == KDA_OK && findings) {
        printf("if this is meant, run: ninja -C build relock\n");
        status = kda_fail(err, KDA_E_DIGEST, "%zu bundles differ from %s", findings, path);
    }
    kda_sums_free(&lock);
    return status;
}

static int compare_lines(const void *a, const void *b)
{
    const struct kda_sums_line *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static kda_status write_lines(const char *path, const struct kda_sums_line *lines, size_t count,
                              kda_error *err)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out) return kda_fail(err, KDA_E_NO_MEMORY, "%s: no memory for its text", path);
    for (size_t i = 0; i < count; i++) fprintf(out, "%s  %s\n", lines[i].hex, lines[i].name);
    bool failed = ferror(out) != 0;
    kda_status status = fclose(out) != 0 || failed
                            ? kda_fail(err, KDA_E_NO_MEMORY, "%s: no memory for its text", path)
                            : kda_files_write(path, text, size, err);
    free(text);
    return status;
}

kda_status kda_ids_write(const char *path, char *const *paths, size_t count, kda_error *err)
{
    struct kda_sums old = {0};
    // A lock that is not there yet, or broken, has no lines to keep.
    (void)kda_sums_read(path, &old, NULL);
    kda_status status = KDA_OK;
    struct kda_sums_line *lines = calloc(old.count + count, sizeof *lines);
    if (!lines) {
        status = kda_fail(err, KDA_E_NO_MEMORY, "%s: no memory for its lines", path);
        goto fail;
    }
    size_t used = old.count;
    for (size_t i = 0; i < used; i++) lines[i] = old.lines[i];
    for (size_t i = 0; i < count; i++) {
        const char *name = kda_files_base(paths[i]);
        size_t at = 0;
        while (at < used && strcmp(lines[at].name, name) != 0) at++;
        used += at == used;
        lines[at].name = name;
        status = read_id(paths[i], lines[at].hex, err);
        if (status != KDA_OK) goto fail;
    }
    qsort(lines, used, sizeof *lines, compare_lines);
    status = write_lines(path, lines, used, err);
fail:
    free(lines);
    kda_sums_free(&old);
    return status;
}
