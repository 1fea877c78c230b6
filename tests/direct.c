// SPDX-License-Identifier: Apache-2.0
// Owns the second filling of the kernel parameters, written from manifest/params.h and the spec of
// the tensors, not from the library's launcher.
#include "tests/direct.h"

#include <stdlib.h>
#include <string.h>

#include "manifest/params.h"

static unsigned long long address(const struct trial *trial, enum trial_tensor tensor)
{
    const struct trial_buffer *buffer = &trial->buffers[tensor];
    return buffer->size ? buffer->device + (CUdeviceptr)buffer->base * buffer->width : 0;
}

void direct_launch(const struct trial *trial, const struct suite_image *image)
{
    const struct oracle_call *call = &trial->call;
    struct kda_recurrent_params params = {
        .dependent = trial->dependent,
        .q = address(trial, TRIAL_Q),
        .k = address(trial, TRIAL_K),
        .v = address(trial, TRIAL_V),
        .g = address(trial, TRIAL_G),
        .beta = address(trial, TRIAL_BETA),
        .a_log = address(trial, TRIAL_A_LOG),
        .dt_bias = address(trial, TRIAL_DT_BIAS),
        .state = address(trial, TRIAL_STATE),
        .out = address(trial, TRIAL_OUT),
        .cu_seqlens = address(trial, TRIAL_CU),
        .indices = address(trial, TRIAL_INDICES),
        .accepted = address(trial, TRIAL_ACCEPTED),
        .q_stride = call->q_stride,
        .k_stride = call->k_stride,
        .v_stride = call->v_stride,
        .g_stride = call->g_stride,
        .beta_stride = call->beta_stride,
        .slot_stride = trial->slot_stride,
        .tok = (int)call->tok,
        .num_slots = (int)trial->num_slots,
        .rows = (int)trial->rows,
        .heads = (int)trial->heads,
        .value_heads = (int)trial->value_heads,
        .query = kda_query_divisor(trial->heads, trial->value_heads),
        .beta_is_logit = trial->beta_is_logit,
        .scale = trial->scale,
        .lower_bound = trial->lower_bound,
    };
    const struct machine *machine = &suite.machine;
    void *bytes;
    size_t size;
    kda_error err;
    if (kda_bundle_image(suite.bundle, image->body, image->target, &bytes, &size, &err))
        fail_msg("%s", err.text);
    CUmodule module;
    CUfunction function;
    MACHINE_CALL(machine, cuModuleLoadData, &module, bytes);
    MACHINE_CALL(machine, cuModuleGetFunction, &function, module,
                 suite.bundle->strings + image->record->entry);
    if (image->record->smem > KDA_CU_SMEM_DEFAULT)
        MACHINE_CALL(machine, cuFuncSetAttribute, function, KDA_CU_FUNC_SMEM,
                     (int)image->record->smem);
    void *arguments[] = {&params};
    MACHINE_CALL(machine, cuLaunchKernel, function,
                 (unsigned)trial->value_heads * image->record->split, (unsigned)trial->rows, 1,
                 image->record->threads, 1, 1, image->record->smem, NULL, arguments, NULL);
    machine_sync(machine, NULL);
    MACHINE_CALL(machine, cuModuleUnload, module);
    free(bytes);
    suite_note(image->body, image->target);
}
