// SPDX-License-Identifier: Apache-2.0
// The opened bundle as the rest of the library sees it: typed views of a proved index. After
// kda_bundle_open every index, string offset and count in these records is in range, and readers
// check nothing.
#ifndef KDA_LOADER_BUNDLE_H
#define KDA_LOADER_BUNDLE_H

#include <stdbool.h>

#include "loader/kda.h"
#include "manifest/format.h"

// Where the search for a call starts: no body and no route before these is of its operator, gate
// and T.
struct kda_start {
    uint32_t body, route;
};
enum { KDA_START_OPS = 6, KDA_START_GATES = 3, KDA_START_TOKENS = 17 };

struct kda_bundle {
    const uint8_t *data;
    size_t size;
    bool owned;  // data came from malloc
    const struct kda_format_header *header;
    const struct kda_format_body *bodies;
    const struct kda_format_cubin *cubins;
    const struct kda_format_frame *frames;
    const struct kda_format_route *routes;
    const struct kda_format_rule *rules;
    const struct kda_format_preference *preferences;
    const struct kda_format_target *targets;
    const char *strings;
    uint32_t body_count, cubin_count, frame_count, route_count, rule_count, preference_count,
        target_count;
    struct kda_start starts[KDA_START_OPS][KDA_START_GATES][KDA_START_TOKENS];
};

static inline struct kda_start kda_bundle_start(const kda_bundle *bundle,
                                                const kda_problem *problem)
{
    const uint32_t op = (uint32_t)problem->op, gate = (uint32_t)problem->gate,
                   tokens = (uint32_t)problem->tokens;
    if (op >= KDA_START_OPS || gate >= KDA_START_GATES || tokens >= KDA_START_TOKENS)
        return (struct kda_start){0, 0};
    return bundle->starts[op][gate][tokens];
}

// Lookups by name; KDA_NONE if there is none.
uint32_t kda_bundle_find_body(const kda_bundle *bundle, const char *name);
uint32_t kda_bundle_find_target(const kda_bundle *bundle, const char *name);
uint32_t kda_bundle_find_cubin(const kda_bundle *bundle, uint32_t body, uint32_t target);

// May images of `target` run on compute capability `cc`, 10*major + minor?
bool kda_target_runs_on(const struct kda_format_target *target, uint32_t cc);

// The frame that was decompressed last, so that the images in it need not do it again. Begins as
// {KDA_NONE, NULL}, ends with kda_frame_close.
struct kda_open_frame {
    uint32_t index;
    uint8_t *raw;
};
void kda_frame_close(struct kda_open_frame *frame);

// The verified bytes of cubin `index` in memory from malloc: frame digest, decompression, image
// digest, in this order. The first two are done unless `frame` is the cubin's already.
kda_status kda_bundle_load(const kda_bundle *bundle, uint32_t index, struct kda_open_frame *frame,
                           void **out_data, size_t *out_size, kda_error *err);

// The names of numbers ("recurrent", "lower_bound"); "?" for none.
const char *kda_op_name(uint32_t op);
const char *kda_gate_name(uint32_t gate);
const char *kda_mode_name(uint32_t mode);

// Is H in the set? Bit n stands for H = 4*n; without bits every H is.
static inline bool kda_heads_serve(uint32_t set, int64_t heads)
{
    return !set || (heads > 0 && heads < 128 && heads % 4 == 0 && set >> heads / 4 & 1);
}

// The least H of the set; `any` for a set of all.
static inline int64_t kda_heads_least(uint32_t set, int64_t any)
{
    return set ? 4 * (int64_t)__builtin_ctz(set) : any;
}

// Is the index mode in the set? Without bits the operator has none, and the mode must be 0.
static inline bool kda_mode_serves(uint32_t set, int32_t mode)
{
    return set ? mode > 0 && mode < 32 && set >> mode & 1 : !mode;
}

#endif
