// SPDX-License-Identifier: Apache-2.0
// Owns launches in a row. Knows no operator: the trial says which call it is.
#include "tests/dependent.h"

#include <dlfcn.h>
#include <string.h>

#include "tests/soft/soft.h"

static int64_t launches(void) { return suite_size(2, 32); }

static kda_plan plan_of(const struct trial *trial, const struct suite_image *image)
{
    kda_plan plan;
    kda_error err;
    if (trial_plan(trial, suite.context, image->body, image->target, &plan, &err))
        fail_msg("%s", err.text);
    suite_note(image->body, image->target);
    return plan;
}

static void launch(const kda_plan *plan)
{
    kda_error err;
    if (kda_plan_launch(plan, NULL, &err)) fail_msg("%s", err.text);
}

static void run_in_a_row(struct trial *trial, const struct suite_image *image)
{
    const kda_plan plan = plan_of(trial, image);
    trial_upload(trial);
    for (int64_t i = 0; i < launches(); i++) launch(&plan);
    machine_sync(&suite.machine, NULL);
    trial_download(trial);
}

void dependent_expect(struct trial *plain, struct trial *dependent, const struct suite_image *image)
{
    dependent->dependent = true;
    run_in_a_row(plain, image);
    run_in_a_row(dependent, image);
    if (!trial_same(plain, dependent))
        fail_msg("%s %s: a dependent launch gives other bits", image->body, image->target);
}

void dependent_expect_late_slots(const struct suite_family *family, const struct suite_image *image,
                                 int64_t heads, int64_t value_heads)
{
    int32_t ones[16];
    for (int i = 0; i < 16; i++) ones[i] = 1;
    struct trial before = trial_of(family, 1, heads, value_heads), plain = before;
    plain.num_slots = 2;
    struct trial late = plain;
    late.dependent = true;
    trial_open(&before);
    trial_null_row(&before, 0);
    struct trial *const both[] = {&plain, &late};
    for (int i = 0; i < 2; i++) {
        trial_open(both[i]);
        memset(both[i]->indices, 0, (size_t)both[i]->tokens * sizeof *ones);
        trial_fill_all(both[i], 2300, TRIAL_NORMAL);
    }
    trial_upload(&before);
    trial_upload(&late);
    run_in_a_row(&plain, image);

    struct trial_buffer *const slots = &late.buffers[TRIAL_INDICES];
    const CUdeviceptr own = slots->device, zeros = before.buffers[TRIAL_OUT].device;
    slots->device = zeros;
    const kda_plan first = plan_of(&before, image), second = plan_of(&late, image);
    slots->device = own;
    for (int64_t i = 0; i < launches(); i++) {
        machine_put(&suite.machine, zeros, ones, (size_t)late.tokens * sizeof *ones);
        launch(&first);
        launch(&second);
    }
    machine_sync(&suite.machine, NULL);
    trial_download(&late);
    if (!trial_same(&plain, &late))
        fail_msg("%s %s: a dependent launch has other slots than were written before it",
                 image->body, image->target);
    trial_close(&before);
    trial_close(&plain);
    trial_close(&late);
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
