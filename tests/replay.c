// SPDX-License-Identifier: Apache-2.0
// Owns the padded replay. Knows no operator: the family says which call is captured.
#include "tests/replay.h"

#include <string.h>

enum { ROWS = 64 };

static void expect_zero_padding(const struct trial *trial, int64_t live, int64_t replay)
{
    const int64_t row = trial->tokens * trial->value_heads * ORACLE_D;
    for (int64_t n = 0; n < trial->rows; n++) {
        const uint16_t *const out = trial_out(trial, n * trial->tokens);
        for (int64_t c = 0; n != live && c < row; c++)
            if (out[c]) fail_msg("replay %d: padding row %d is not +0", (int)replay, (int)n);
    }
}

static void expect_same_slots(const struct trial *trial, int64_t first, int64_t count)
{
    if (count == 0) return;
    assert_memory_equal(trial_slot(trial, first, 0), trial_pool(trial, first, 0),
                        (size_t)(count * trial->slot_stride) * 2);
}

void replay_one_live_row(const struct suite_family *family, int64_t heads, int64_t value_heads,
                         int64_t replays, int64_t every)
{
    struct trial trial = trial_of(family, ROWS, heads, value_heads), alone = trial;
    alone.rows = 1;
    trial_open(&trial);
    trial_open(&alone);
    const int64_t live = trial.rows / 3;  // a family may take fewer rows
    trial_fill(&trial, live, 1900, TRIAL_SMALL);
    trial_fill(&alone, 0, 1900, TRIAL_SMALL);
    trial_upload(&trial);
    trial_upload(&alone);
    CUstream stream = machine_stream(&suite.machine);
    struct machine_graph graph = trial_capture(&trial, stream);
    assert_int_equal(graph.nodes, 1);
    for (int64_t n = 0; n < trial.rows; n++)
        if (n != live) trial_null_row(&trial, n);
    trial_upload(&trial);

    for (int64_t k = 1; k <= replays; k++) {
        const bool look = k % every == 0 || k == replays;
        if (look) trial_clear(&trial);
        machine_replay(&suite.machine, &graph, stream);
        trial_launch(&alone, stream);
        if (!look) continue;
        machine_sync(&suite.machine, stream);
        trial_download_out(&trial);
        expect_zero_padding(&trial, live, k);
    }
    trial_download(&trial);
    trial_download(&alone);
    machine_graph_close(&suite.machine, &graph);
    machine_stream_close(&suite.machine, stream);
    assert_true(trial_same_row(&trial, live, &alone, 0));
    expect_same_slots(&trial, 0, live * trial.tokens);
    const int64_t past = (live + 1) * trial.tokens;
    expect_same_slots(&trial, past, trial.num_slots - past);
    trial_close(&trial);
    trial_close(&alone);
}
