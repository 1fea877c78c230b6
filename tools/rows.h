// SPDX-License-Identifier: Apache-2.0
// The manifest's declarations as arrays: schedules.inc, targets.inc and routes.inc in the order in
// which they stand there. Body names in rules are text, resolved by whoever packs them; everything
// else is checked by the compiler.
#ifndef KDA_TOOLS_ROWS_H
#define KDA_TOOLS_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include "manifest/format.h"

#define KDA_MAX_CCS 4
#define KDA_MAX_RULES 8

struct kda_schedule_row {
    const char *name;
    uint32_t op, gate, tokens_min, tokens_max, state_type, mode_set;
    uint32_t split, threads, smem, head_set, row_set, flags;
    const char *layout;  // of the state, for people
    uint32_t params_version, params_size;
};

struct kda_target_row {
    const char *name;
    uint32_t floor;
    uint32_t ccs[KDA_MAX_CCS];  // 0 ends
};

struct kda_rule_row {
    uint32_t kind;  // 0 ends
    const char *body;
    int64_t den, num, c;
};

struct kda_route_row {
    uint32_t op, gate, tokens_min, tokens_max, state_type, mode_set;
    uint32_t ccs[KDA_MAX_CCS];  // 0 ends
    struct kda_rule_row rules[KDA_MAX_RULES];
};

struct kda_prefer_row {
    uint32_t cc, op;
    const char *body;  // "KDA_ANY_BODY": all others
    uint32_t target_count, targets[4];
};

extern const struct kda_schedule_row kda_schedules[];
extern const uint32_t kda_schedule_count;
extern const struct kda_target_row kda_targets[];
extern const uint32_t kda_target_count;
extern const struct kda_route_row kda_routes[];
extern const uint32_t kda_route_count;
extern const struct kda_prefer_row kda_preferences[];
extern const uint32_t kda_preference_count;

// The row of that name, `size` characters long; KDA_NONE if there is none.
uint32_t kda_rows_schedule(const char *name, size_t size);
uint32_t kda_rows_target(const char *name, size_t size);

// Splits NAME.TARGET.cubin, with or without a folder before it, into rows. 0 if it is no such name.
int kda_rows_cubin(const char *path, uint32_t *out_schedule, uint32_t *out_target);

#endif
