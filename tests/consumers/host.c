// SPDX-License-Identifier: Apache-2.0
// Opens a plugin that has the library inside, and runs it. Knows nothing of the library.
//   host PLUGIN [BUNDLE]
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    void *plugin = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    void *symbol = plugin ? dlsym(plugin, "consumer") : NULL;
    if (!symbol) {
        fprintf(stderr, "host: %s\n", argc > 1 ? dlerror() : "no plugin");
        return 2;
    }
    int (*consumer)(int, char **);
    memcpy(&consumer, &symbol, sizeof consumer);
    // A local plugin must not give its symbols to the process.
    if (dlsym(RTLD_DEFAULT, "kda_route")) {
        fprintf(stderr, "host: kda_route is global\n");
        return 1;
    }
    int status = consumer(argc - 1, argv + 1);
    return dlclose(plugin) ? 1 : status;
}
