// SPDX-License-Identifier: Apache-2.0
// Lock files: one line "<sha256 in hex>  <name>" for each thing that must not change unseen, as
// sha256sum writes them.
#ifndef KDA_TOOLS_SUMS_H
#define KDA_TOOLS_SUMS_H

#include "tools/files.h"

struct kda_sums_line {
    char hex[KDA_HEX_SIZE];
    const char *name;  // inside the lock's text
};

struct kda_sums {
    char *text;
    struct kda_sums_line *lines;
    size_t count;
};

kda_status kda_sums_read(const char *path, struct kda_sums *out, kda_error *err);
void kda_sums_free(struct kda_sums *lock);
// The digest of `name` in hex, or NULL.
const char *kda_sums_find(const struct kda_sums *lock, const char *name);

// Holds the images at `paths` against the lock: prints what moved, is missing or has no line, and
// how to accept it. Only the targets among `paths` are looked at. DIGEST if anything was printed.
kda_status kda_sums_check(const char *lock, char *const *paths, size_t count, kda_error *err);
// Writes the lock of the images at `paths`. Lines of other targets stay as they are.
kda_status kda_sums_write(const char *lock, char *const *paths, size_t count, kda_error *err);

#endif
