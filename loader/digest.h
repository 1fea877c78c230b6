// SPDX-License-Identifier: Apache-2.0
// SHA-256 as the loader uses it: over one block, and written as hexadecimal digits.
#ifndef KDA_LOADER_DIGEST_H
#define KDA_LOADER_DIGEST_H

#include <stddef.h>
#include <stdint.h>

void kda_sha256(const void *data, size_t size, uint8_t out[32]);

typedef struct kda_hex {
    char text[65];
} kda_hex;

static inline kda_hex kda_hex_of(const uint8_t digest[32])
{
    kda_hex out;
    for (int i = 0; i < 32; ++i) {
        out.text[2 * i] = "0123456789abcdef"[digest[i] >> 4];
        out.text[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
    }
    out.text[64] = 0;
    return out;
}

#endif
