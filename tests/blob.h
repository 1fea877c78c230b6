// SPDX-License-Identifier: Apache-2.0
// Bundles for tests of routing and of the file format: the real manifest, written by the packer's
// own code, around images that no device could run. So every mix of targets and toolkits can be had
// without a compiler.
#ifndef KDA_TESTS_BLOB_H
#define KDA_TESTS_BLOB_H

#include <stddef.h>
#include <stdint.h>

struct blob_target {
    const char *name;     // NULL ends
    const char *toolkit;  // "12.9.86"
    uint32_t version;     // 12090
    const char *without;  // no image of this body; NULL: of every body
};

struct blob {
    uint8_t *data;  // from malloc
    size_t size;
};

// Ends the program when the packer refuses.
struct blob blob_make(const struct blob_target *targets);
// The default bundle's targets and toolkit.
struct blob blob_default(void);

#endif
