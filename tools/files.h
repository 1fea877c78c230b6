// SPDX-License-Identifier: Apache-2.0
// Whole files and their digests.
#ifndef KDA_TOOLS_FILES_H
#define KDA_TOOLS_FILES_H

#include "loader/error.h"

#define KDA_HEX_SIZE 65

// Reads a file into memory from malloc, with a NUL behind the last byte that `*out_size` does not
// count.
kda_status kda_files_read(const char *path, uint8_t **out_data, size_t *out_size, kda_error *err);

// Writes a file beside `path` and renames it, so that `path` is never a part of what it should be; of
// a link, the file that it points to. What is no file, a pipe or a device, is written to.
kda_status kda_files_write(const char *path, const void *data, size_t size, kda_error *err);

// `folder`/`name`, in memory from malloc; NULL when there is none.
char *kda_files_join(const char *folder, const char *name);
// What follows the last slash.
const char *kda_files_base(const char *path);

void kda_files_sha256(const void *data, size_t size, uint8_t out[32]);
void kda_files_hex(const uint8_t digest[32], char out[KDA_HEX_SIZE]);

#endif
