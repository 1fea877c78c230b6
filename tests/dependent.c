// SPDX-License-Identifier: Apache-2.0
// Owns launches in a row. Knows no operator: the trial says which call it is.
#include "tests/dependent.h"

#include <dlfcn.h>
#include <string.h>

#include "tests/soft/soft.h"

static void run_in_a_row(struct trial *trial, const struct suite_image *image)
{
    kda_plan plan;
    kda_error err = {.status = KDA_OK};
    if (trial_plan(trial, suite.context, image->body, image->target, &plan, &err))
        fail_msg("%s", err.text);
    trial_upload(trial);
    for (int64_t i = 0; i < suite_size(2, 32); i++)
        if (kda_plan_launch(&plan, NULL, &err)) fail_msg("%s", err.text);
    machine_sync(&suite.machine, NULL);
    trial_download(trial);
    suite_note(image->body, image->target);
}

void dependent_expect(struct trial *plain, struct trial *dependent,
                      const struct suite_image *image)
{
    dependent->dependent = true;
    run_in_a_row(plain, image);
    run_in_a_row(dependent, image);
    if (!trial_same(plain, dependent))
        fail_msg("%s %s: a dependent launch gives other bits", image->body, image->target);
}

long dependent_prefetches(struct trial *trial, const struct suite_image *image)
{
    void (*set_hints)(bool);
    soft_counters (*count)(void);
    void *symbols[] = {dlsym(suite.machine.library, "soft_set_hints"),
                       dlsym(suite.machine.library, "soft_count")};
    assert_true(symbols[0] && symbols[1]);
    memcpy(&set_hints, &symbols[0], sizeof set_hints);
    memcpy(&count, &symbols[1], sizeof count);
    trial->dependent = true;
    set_hints(true);
    const long before = count().prefetches;
    trial_run(trial, image->body, image->target);
    set_hints(false);
    return count().prefetches - before;
}
