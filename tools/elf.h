// SPDX-License-Identifier: Apache-2.0
// What a cubin says of itself. Reads the images of the 12.x (ABI 7 and 8) and 13.x toolkits.
#ifndef KDA_TOOLS_ELF_H
#define KDA_TOOLS_ELF_H

#include <stdbool.h>

#include "loader/error.h"

struct kda_elf {
    char target[16];    // "sm_100f"
    char toolkit[16];   // "12.9.86"; "12.9" where the image records no more; "" where it records
                        // nothing
    char options[128];  // as recorded; "" where they are not
    char entry[128];    // symbol of the one kernel
    uint32_t sm;        // 100
    uint32_t toolkit_version;  // 1000*major + 10*minor, 0 where not recorded
    uint32_t registers;        // per thread
    uint32_t stack;            // bytes of local memory per thread
    uint32_t shared;           // static bytes per CTA
    uint32_t barriers;
    uint32_t params_size;  // bytes
    uint32_t max_threads;  // per CTA, as bounded by the source; 0 where it is not
    bool line_info;
};

// Reads an image of exactly one kernel. `data` may hold anything: FORMAT says what is wrong with
// it.
kda_status kda_elf_read(const void *data, size_t size, struct kda_elf *out, kda_error *err);

#endif
