// SPDX-License-Identifier: Apache-2.0
// The demonstrations of kda-demo, one per way of calling the library. Each takes its own options,
// argv[0] being the operator, and returns the exit status.
#ifndef KDA_TOOLS_DEMO_H
#define KDA_TOOLS_DEMO_H

#include "loader/kda.h"

int demo_decode(kda_op op, int argc, char **argv);  // recurrent or packed

#endif
