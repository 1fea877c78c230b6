// SPDX-License-Identifier: Apache-2.0
// What a recurrent call turns out to be once its scalars and its form are understood: the problem
// to route, and where its tensors keep their token dimension. Tensor extents beyond those that
// define N, T, H and HV are not looked at.
#ifndef KDA_LOADER_FORM_H
#define KDA_LOADER_FORM_H

#include "loader/context.h"
#include "loader/parts.h"

struct kda_form {
    struct kda_call call;
    kda_problem problem;
    struct kda_tokens layout;
    uint32_t body_flags;  // of all bodies of this T and gate
};

// `form` comes with its call and with operator and forced names of the problem; the rest is
// written. The checks, in the order of their refusals: presence, K, V, H, HV; types; scalars and
// gate parameters; form, N and accepted calls.
kda_status kda_form_check(const kda_context *context, const kda_recurrent_args *args,
                          struct kda_form *form, kda_error *err);

#endif
