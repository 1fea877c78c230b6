// SPDX-License-Identifier: Apache-2.0
// Owns the acceptance of one image: kda-cc asks before it writes a file and kda-pack before it
// believes one. It knows rows and what the ELF reader reports, and neither bytes nor file names.
#include "tools/image.h"

#include <stdio.h>
#include <string.h>

#include "tools/rows.h"

kda_status kda_image_check(uint32_t schedule, uint32_t target, const struct kda_elf *elf,
                           kda_error *err)
{
    const struct kda_schedule_row *row = &kda_schedules[schedule];
    const struct kda_target_row *wanted = &kda_targets[target];
    const char *body = row->name, *name = wanted->name;
    if (strncmp(elf->entry, "kda_", 4) != 0 || strcmp(elf->entry + 4, body) != 0)
        return kda_fail(err, KDA_E_NAME, "%s.%s: the kernel is %s, expected kda_%s", body, name,
                        elf->entry, body);
    if (strcmp(elf->target, name) != 0)
        return kda_fail(err, KDA_E_FORMAT, "%s.%s: the image is for %s, expected %s", body, name,
                        elf->target, name);
    if (elf->toolkit_version == 0)
        return kda_fail(err, KDA_E_CUDA_VERSION, "%s.%s: the image does not record its toolkit",
                        body, name);
    if (elf->toolkit_version < wanted->floor)
        return kda_fail(err, KDA_E_CUDA_VERSION,
                        "%s.%s: built by toolkit %s, expected %u.%u or newer", body, name,
                        elf->toolkit, wanted->floor / 1000, wanted->floor % 1000 / 10);
    if (elf->line_info)
        return kda_fail(err, KDA_E_FORMAT, "%s.%s: the image has line info, expected none", body,
                        name);
    if (elf->stack > 0 && !(row->flags & KDA_BODY_SPILLS))
        return kda_fail(
            err, KDA_E_LIMIT,
            "%s.%s: %u bytes of local memory per thread, expected 0 (no KDA_BODY_SPILLS)", body,
            name, elf->stack);
    if (elf->shared > 0)
        return kda_fail(err, KDA_E_LIMIT, "%s.%s: %u bytes of static shared memory, expected 0",
                        body, name, elf->shared);
    if (elf->params_size != row->params_size)
        return kda_fail(err, KDA_E_FORMAT, "%s.%s: %u bytes of parameters, expected %u", body, name,
                        elf->params_size, row->params_size);
    if (elf->max_threads && elf->max_threads != row->threads)
        return kda_fail(err, KDA_E_FORMAT, "%s.%s: bounded to %u threads, expected %u", body, name,
                        elf->max_threads, row->threads);
    return KDA_OK;
}

uint32_t kda_image_min_cuda(uint32_t target, const struct kda_elf *elf)
{
    uint32_t floor = kda_targets[target].floor, major = elf->toolkit_version / 1000 * 1000;
    return major > floor ? major : floor;
}

void kda_image_options(uint32_t target, const struct kda_elf *elf, char *out, size_t size)
{
    static const char *const given[] = {KDA_IMAGE_OPTIONS};
    if (elf->options[0]) {
        snprintf(out, size, "%s", elf->options);
        return;
    }
    int n = snprintf(out, size, "-arch=%s", kda_targets[target].name);
    for (size_t i = 0; i < sizeof given / sizeof given[0] && n > 0 && (size_t)n < size; i++)
        n += snprintf(out + n, size - (size_t)n, " %s", given[i]);
}
