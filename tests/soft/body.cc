// SPDX-License-Identifier: Apache-2.0
// One frozen body on the CPU: compiled once per body with KDA_BODY set to its name and
// KDA_BODY_FILE to its quoted path. Owns nothing but the thunk that turns the address of a
// parameter struct into the kernel's by-value parameter.
#ifndef KDA_SOFT_DEVICE
#define KDA_SOFT_DEVICE
#endif
#include "tests/soft/device.h"

#include KDA_BODY_FILE

#define SOFT_JOIN_(a, b) a##b
#define SOFT_JOIN(a, b) SOFT_JOIN_(a, b)

template <typename Params> static inline void call(void (*kernel)(Params), const void *params)
{
    Params copy;
    memcpy(&copy, params, sizeof copy);
    kernel(copy);
}

extern "C" void SOFT_JOIN(soft_body_, KDA_BODY)(const void *params);
extern "C" void SOFT_JOIN(soft_body_, KDA_BODY)(const void *params)
{
    call(SOFT_JOIN(kda_, KDA_BODY), params);
}
