// SPDX-License-Identifier: Apache-2.0
// Owns how tools read and write files: whole, or not at all. It knows no format but that of a
// digest in hex.
#include "tools/files.h"

#include <errno.h>
#include <sha2.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

kda_status kda_files_read(const char *path, uint8_t **out_data, size_t *out_size, kda_error *err)
{
    FILE *file = fopen(path, "rb");
    if (!file) return kda_fail(err, KDA_E_IO, "%s: cannot be opened: %s", path, strerror(errno));
    uint8_t *data = NULL;
    size_t size = 0, capacity = 0, got;
    kda_status status;
    do {
        if (capacity - size < 2) {
            capacity = capacity ? 2 * capacity : 1 << 16;
            uint8_t *grown = realloc(data, capacity);
            if (!grown) {
                status =
                    kda_fail(err, KDA_E_NO_MEMORY, "%s: no memory for %zu bytes", path, capacity);
                goto fail;
            }
            data = grown;
        }
        got = fread(data + size, 1, capacity - size - 1, file);
        size += got;
    } while (got > 0);
    if (ferror(file)) {
        status = kda_fail(err, KDA_E_IO, "%s: cannot be read: %s", path, strerror(errno));
        goto fail;
    }
    fclose(file);
    data[size] = 0;
    *out_data = data;
    *out_size = size;
    return KDA_OK;
fail:
    fclose(file);
    free(data);
    return status;
}

static bool write_all(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");
    bool written = file && fwrite(data, 1, size, file) == size;
    if (file && fclose(file) != 0) written = false;
    return written;
}

// The file is there at once or not at all.
static bool replace(const char *path, const void *data, size_t size)
{
    char suffix[32];
    snprintf(suffix, sizeof suffix, ".%ld.tmp", (long)getpid());
    const size_t n = strlen(path);
    char *temporary = malloc(n + sizeof suffix);
    if (!temporary) return false;
    memcpy(temporary, path, n);
    memcpy(temporary + n, suffix, strlen(suffix) + 1);
    const bool written = write_all(temporary, data, size) && rename(temporary, path) == 0;
    if (!written) {
        const int reason = errno;
        remove(temporary);
        errno = reason;
    }
    free(temporary);
    return written;
}

kda_status kda_files_write(const char *path, const void *data, size_t size, kda_error *err)
{
    struct stat what;
    bool written;
    if (lstat(path, &what) != 0 || S_ISREG(what.st_mode)) {
        written = replace(path, data, size);
    } else if (stat(path, &what) == 0 && S_ISREG(what.st_mode)) {  // a link
        char *target = realpath(path, NULL);
        written = target && replace(target, data, size);
        free(target);
    } else {
        written = write_all(path, data, size);
    }
    if (!written)
        return kda_fail(err, errno == ENOMEM ? KDA_E_NO_MEMORY : KDA_E_IO,
                        "%s: cannot be written: %s", path, strerror(errno));
    return KDA_OK;
}

char *kda_files_join(const char *folder, const char *name)
{
    size_t size = strlen(folder) + strlen(name) + 2;
    char *path = malloc(size);
    if (path) snprintf(path, size, "%s/%s", folder, name);
    return path;
}

const char *kda_files_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

void kda_files_sha256(const void *data, size_t size, uint8_t out[32])
{
    SHA2_CTX context;
    SHA256Init(&context);
    SHA256Update(&context, data, size);
    SHA256Final(out, &context);
}

void kda_files_hex(const uint8_t digest[32], char out[KDA_HEX_SIZE])
{
    for (int i = 0; i < 32; i++) snprintf(out + 2 * i, 3, "%02x", digest[i]);
}
