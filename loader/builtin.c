// SPDX-License-Identifier: Apache-2.0
// Owns the way to the bundle that is linked in: two hidden symbols around its bytes, defined by a
// generated assembly file. Apart from bundle.c so that a program that opens files only needs no
// blob.
#include "loader/bundle.h"

extern const uint8_t kda_builtin_begin[] __attribute__((visibility("hidden")));
extern const uint8_t kda_builtin_end[] __attribute__((visibility("hidden")));

kda_status kda_bundle_open_builtin(kda_bundle **out, kda_error *err)
{
    return kda_bundle_open(kda_builtin_begin, (size_t)(kda_builtin_end - kda_builtin_begin), out,
                           err);
}
