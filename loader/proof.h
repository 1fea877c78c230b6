// SPDX-License-Identifier: Apache-2.0
// The border: whatever passes kda_proof_index is a well-formed bundle, and later readers check
// nothing of it again.
#ifndef KDA_LOADER_PROOF_H
#define KDA_LOADER_PROOF_H

#include "loader/bundle.h"

// Proves header, index digest and every record of bundle->data[0, bundle->size), and fills the
// views of `bundle`. FORMAT, VERSION or DIGEST, naming the entry. Stored frames are not read.
kda_status kda_proof_index(kda_bundle *bundle, kda_error *err);

// The second half, which kda_proof_index calls once header and digest are proved and the views are
// set.
kda_status kda_proof_records(const kda_bundle *bundle, kda_error *err);

// Frames at most this large when decompressed, so that no index can ask for more memory.
#define KDA_FRAME_RAW_MAX (16u << 20)

#endif
