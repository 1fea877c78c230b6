// SPDX-License-Identifier: Apache-2.0
// Owns the launch: checks what the real driver checks, in a fixed order, records it, and does work
// that is due. Knows nothing of what a kernel needs, which is the loader's duty. Invariant: a
// refused launch is neither counted nor recorded, and the lock is never held while a kernel runs.
#include "tests/soft/state.h"

#include <stdio.h>
#include <string.h>

enum { MAX_THREADS = 1024, MAX_BLOCK_Z = 64, MAX_GRID_YZ = 65535 };

static int perform_launch(const struct soft_work *work)
{
    soft_lock();
    bool execute = soft_settings.execute;
    soft_unlock();
    if (!execute) return KDA_CU_SUCCESS;
    const soft_image *image = work->function->module->image;
    char why[400];
    if (soft_execute(image->kernel, work->grid, work->block, work->smem, work->params, why,
                     sizeof why) == 0)
        return KDA_CU_SUCCESS;
    soft_lock();
    soft_report("%s: %s", image->body, why);
    soft_unlock();
    return KDA_CU_ILLEGAL_ADDRESS;
}

int soft_perform(const struct soft_work *work)
{
    char *target = work->target;
    switch (work->task) {
    case SOFT_LAUNCH:
        return perform_launch(work);
    case SOFT_COPY:
        memmove(target, work->source, work->width * work->count);
        break;
    case SOFT_SET:
        // The low bytes of a little-endian value.
        for (size_t i = 0; i < work->count; i++)
            memcpy(target + i * work->width, &work->value, work->width);
        break;
        break;
    }
    return KDA_CU_SUCCESS;
}

static bool in_range(const struct soft_work *work)
{
    for (int i = 0; i < 3; i++)
        if (work->grid[i] == 0 || work->block[i] == 0 || work->block[i] > MAX_THREADS) return false;
    if (work->grid[0] > INT32_MAX || work->grid[1] > MAX_GRID_YZ || work->grid[2] > MAX_GRID_YZ ||
        work->block[2] > MAX_BLOCK_Z)
        return false;
    int most = work->function->module->image->threads;
    return work->block[0] * work->block[1] * work->block[2] <= (unsigned)most &&
           work->smem <= work->function->smem_limit;
}

static void record(const struct soft_work *work, bool pdl, bool captured)
{
    const soft_image *image = work->function->module->image;
    soft_launched = (soft_launch_record){.smem = work->smem, .pdl = pdl, .captured = captured};
    (void)snprintf(soft_launched.body, sizeof soft_launched.body, "%s", image->body);
    (void)snprintf(soft_launched.target, sizeof soft_launched.target, "%s", image->target);
    memcpy(soft_launched.grid, work->grid, sizeof work->grid);
    memcpy(soft_launched.block, work->block, sizeof work->block);
    soft_has_launched = true;
    soft_totals.launches++;
}

static int launch(CUfunction handle, const struct kda_cu_launch_config *config, void **params,
                  void **extra)
{
    struct soft_function *function = soft_object_find(SOFT_FUNCTION, handle);
    if (function == NULL) {
        const struct soft_function *stale = soft_object_trace(SOFT_FUNCTION, handle);
        if (stale != NULL && stale->object.owner != NULL)
            soft_blame("launching %s, whose module is unloaded", stale->module->image->body);
        return soft_leave(KDA_CU_INVALID_HANDLE);
    }
    struct soft_stream *stream;
    struct soft_context *context;
    int result = soft_stream_find(config->stream, &stream, &context);
    if (result != KDA_CU_SUCCESS) return soft_leave(result);
    if (context != function->object.owner) return soft_leave(KDA_CU_INVALID_HANDLE);

    bool pdl = false;
    if (config->attribute_count != 0 && config->attributes == NULL)
        return soft_leave(KDA_CU_INVALID_VALUE);
    for (unsigned i = 0; i < config->attribute_count; i++) {
        const struct kda_cu_launch_attribute *attribute = &config->attributes[i];
        if (attribute->id == KDA_CU_LAUNCH_PDL) {
            pdl = attribute->value.pdl != 0;
        } else if (attribute->id != 0) {
            return soft_leave(KDA_CU_NOT_SUPPORTED);
        }
    }
    struct soft_work work = {.task = SOFT_LAUNCH, .function = function, .smem = config->smem};
    memcpy(work.grid, config->grid, sizeof work.grid);
    memcpy(work.block, config->block, sizeof work.block);
    if (!in_range(&work) || extra != NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    if (function->module->image->params_size != 0) {
        if (params == NULL || params[0] == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
        work.params = params[0];
    }
    record(&work, pdl, stream != NULL && stream->capture == KDA_CU_CAPTURE_ACTIVE);
    return soft_submit(stream, &work);
}

int cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned smem,
                   CUstream stream, void **params, void **extra)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    struct kda_cu_launch_config config = {.grid = {grid_x, grid_y, grid_z},
                                          .block = {block_x, block_y, block_z},
                                          .smem = smem,
                                          .stream = stream};
    return launch(function, &config, params, extra);
}

int cuLaunchKernelEx(const struct kda_cu_launch_config *config, CUfunction function, void **params,
                     void **extra)
{
    int result = soft_enter();
    if (result != KDA_CU_SUCCESS) return result;
    if (config == NULL) return soft_leave(KDA_CU_INVALID_VALUE);
    return launch(function, config, params, extra);
}
