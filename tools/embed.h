// SPDX-License-Identifier: Apache-2.0
// Generated source: the bundle as an assembler file, and the table of images for the soft device.
#ifndef KDA_TOOLS_EMBED_H
#define KDA_TOOLS_EMBED_H

#include "tools/family.h"

// Writes an assembler file for gcc and clang that embeds the file `bundle` between the hidden
// symbols SYMBOL_begin and SYMBOL_end. It carries the digest of the file: a changed bundle is a
// changed source.
kda_status kda_embed_bundle(const char *path, const char *symbol, const char *bundle,
                            kda_error *err);

// Writes one line KDA_IMAGE(body, target, "sha256 in hex", size in bytes) for each image.
kda_status kda_embed_images(const char *path, const struct kda_image *images, size_t count,
                            kda_error *err);

#endif
