// SPDX-License-Identifier: Apache-2.0
// kda-demo: runs an operator on random data through the public API and compares what it leaves with
// the float64 oracle.
#include "tools/demo.h"

#include <stdio.h>
#include <string.h>

static const char usage[] =
    "usage: kda-demo [OPERATOR] [options]\n"
    "Runs an operator on device 0 and checks its results against the float64 oracle.\n"
    "  recurrent  decode steps of one or several tokens (the default)\n"
    "  packed     decode steps of packed projections\n"
    "  verify     speculative decoding: windows are verified, their accepted tokens committed\n"
    "kda-demo OPERATOR --help lists the options.\n";

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--help")) {
        fputs(usage, stdout);
        return 0;
    }
    if (argc == 1 || argv[1][0] == '-') return demo_decode(KDA_OP_RECURRENT, argc, argv);
    if (!strcmp(argv[1], "recurrent")) return demo_decode(KDA_OP_RECURRENT, argc - 1, argv + 1);
    if (!strcmp(argv[1], "packed")) return demo_decode(KDA_OP_PACKED, argc - 1, argv + 1);
    if (!strcmp(argv[1], "verify")) return demo_verify(argc - 1, argv + 1);
    fputs(usage, stderr);
    return 2;
}
