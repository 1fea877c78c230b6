// SPDX-License-Identifier: Apache-2.0
// A call that a test has made, made again over DLPack: every tensor that DLPack can say becomes a
// DLTensor. It must end as the plain one did, with the same status and the same text.
#ifndef KDA_TESTS_DLPACK_H
#define KDA_TESTS_DLPACK_H

#include "loader/kda_dlpack.h"

#define DLPACK_OPERATIONS(X) X(recurrent) X(packed) X(fused) X(verify) X(commit)
#define X(op)                                                                                      \
    void dlpack_same_##op(kda_context *context, const kda_##op##_args *args, kda_status status,    \
                          const kda_error *err);
DLPACK_OPERATIONS(X)
#undef X

#endif
