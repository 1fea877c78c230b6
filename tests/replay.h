// SPDX-License-Identifier: Apache-2.0
// Serving with graphs: a batch captured once at full size is replayed while most of its rows are
// padding.
#ifndef KDA_TESTS_REPLAY_H
#define KDA_TESTS_REPLAY_H

#include "tests/trial.h"

// Captures 64 live rows, then replays with one live row and 63 padding rows. The output is poisoned
// before every replay; before every `every`-th one it is proved that the padding outputs are +0.
// After the last one, only the live row's slots have changed, to the bits that the row gives alone.
void replay_one_live_row(const struct suite_family *family, int64_t heads, int64_t value_heads,
                         int64_t replays, int64_t every);

#endif
