// SPDX-License-Identifier: Apache-2.0
// kda-bench: how fast the bodies are beside what the memory allows, and what the library costs on
// the host. Owns the choice of the verb and nothing else.
#include <string.h>

#include "tools/bench.h"

static const char usage[] =
    "usage: kda-bench gpu|host [options]\n"
    "  gpu   times every body at the standard shapes beside the floor of the memory\n"
    "  host  times plan, call, open, load and prepare against a driver that does nothing\n"
    "kda-bench VERB --help tells the options.\n";

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "gpu")) return bench_gpu(argc - 1, argv + 1);
    if (argc > 1 && !strcmp(argv[1], "host")) return bench_host(argc - 1, argv + 1);
    const bool help = argc > 1 && !strcmp(argv[1], "--help");
    fputs(usage, help ? stdout : stderr);
    return help ? BENCH_OK : BENCH_USAGE;
}
