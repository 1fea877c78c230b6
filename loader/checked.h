// SPDX-License-Identifier: Apache-2.0
// Arithmetic on numbers that come from outside: each helper returns true when the exact result does
// not fit.
#ifndef KDA_LOADER_CHECKED_H
#define KDA_LOADER_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

static inline bool kda_add_overflows(int64_t a, int64_t b, int64_t *out)
{
    return __builtin_add_overflow(a, b, out);
}
static inline bool kda_mul_overflows(int64_t a, int64_t b, int64_t *out)
{
    return __builtin_mul_overflow(a, b, out);
}
static inline bool kda_uadd_overflows(uint64_t a, uint64_t b, uint64_t *out)
{
    return __builtin_add_overflow(a, b, out);
}
static inline bool kda_umul_overflows(uint64_t a, uint64_t b, uint64_t *out)
{
    return __builtin_mul_overflow(a, b, out);
}

#endif
