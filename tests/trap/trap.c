// SPDX-License-Identifier: Apache-2.0
// A libcuda.so.1 that ends whoever opens it. Programs that must not look for a driver run with it
// in their path.
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void spring(void)
{
    static const char text[] = "trap: libcuda.so.1 was opened\n";
    if (write(2, text, sizeof text - 1) < 0) abort();
    abort();
}
