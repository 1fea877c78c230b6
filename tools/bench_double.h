// SPDX-License-Identifier: Apache-2.0
// A driver in the process that does nothing, and counts of what a launch must not do. The build
// links kda-bench so that the library's calls of dlopen, malloc and pthread_mutex_lock come by
// here; without bench_double_install they pass through.
#ifndef KDA_TOOLS_BENCH_DOUBLE_H
#define KDA_TOOLS_BENCH_DOUBLE_H

#include "loader/driver.h"

// From now on libcuda.so.1 is the double: one device of `cc`, 10*major + minor.
void bench_double_install(int cc);

struct bench_tally {
    long allocations, locks, driver_calls;
};
struct bench_tally bench_double_tally(void);  // since the process began

#endif
