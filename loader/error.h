// SPDX-License-Identifier: Apache-2.0
// How every module of the library fails: `return kda_fail(err, KDA_E_X, "...", ...)`.
#ifndef KDA_LOADER_ERROR_H
#define KDA_LOADER_ERROR_H

#include "loader/kda.h"

// Fills `err` (may be NULL) and returns `status`. Lower case, no full stop, no newline; says
// expected and found.
kda_status kda_fail(kda_error *err, kda_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// The same for a failed driver call; `name` is the driver's own name of the result.
kda_status kda_fail_driver(kda_error *err, kda_status status, int cuda, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

// Refuses the first of `count` reserved words that is not zero. `owner` stands before its name:
// "overrides.", or "" for the struct of the call.
kda_status kda_check_reserved(const char *operation, const char *owner, const uint64_t *words,
                              size_t count, kda_error *err);

#endif
