// SPDX-License-Identifier: Apache-2.0
// bundle.lock: the id that each bundle must have, in the line format of tools/sums.h.
#ifndef KDA_TOOLS_IDS_H
#define KDA_TOOLS_IDS_H

#include "tools/sums.h"

// Holds the bundles at `paths` against the lock by their file names: prints which has another id or
// no line, and how to accept it. Bundles that are not among `paths` are not looked at. DIGEST if
// anything was printed.
kda_status kda_ids_check(const char *lock, char *const *paths, size_t count, kda_error *err);
// Writes the ids of the bundles at `paths`. Lines of other bundles stay as they are.
kda_status kda_ids_write(const char *lock, char *const *paths, size_t count, kda_error *err);

#endif
