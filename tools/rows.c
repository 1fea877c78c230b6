// SPDX-License-Identifier: Apache-2.0
// Owns the tables that the manifest's macros expand to, and the names in them. It knows nothing of
// files or bytes: a row that is wrong here is wrong in the manifest.
#include "tools/rows.h"

#include <string.h>

#include "loader/kda.h"
#include "manifest/params.h"

// clang-format off
#define LAYOUT(type) type " [slot][value_head][value_row 128][key_channel 128], key channel fastest"
#define LAYOUT_BF16 LAYOUT("bf16")
#define KDA_ANY 0
#define LAYOUT_F32 LAYOUT("f32")

#define KDA_CCS(...) {__VA_ARGS__}

#define KDA_SCHEDULE(name, template, op, from, to, gate, state, modes, split, threads, smem, \
                     occupancy, heads, rows, flags) \
    {#name, KDA_OP_##op, KDA_GATE_##gate, from, to, KDA_##state, modes, split, threads, smem, heads, \
     rows, flags, LAYOUT_##state, KDA_PARAMS_##op},
const struct kda_schedule_row kda_schedules[] = {
#include "manifest/schedules.inc"
};
#undef KDA_SCHEDULE

#define KDA_TARGET(name, floor, ccs) {#name, floor, ccs},
const struct kda_target_row kda_targets[] = {
#include "manifest/targets.inc"
};
#undef KDA_TARGET

// Target names as numbers, so that the compiler knows every name that a preference may hold.
#define KDA_TARGET(name, floor, ccs) name,
enum {
#include "manifest/targets.inc"
};
#undef KDA_TARGET

#define KDA_WORK(den, num, c, body) {KDA_RULE_WORK, #body, den, num, c}
#define KDA_ROWS(den, num, c, body) {KDA_RULE_ROWS, #body, den, num, c}
#define KDA_ELSE(body) {KDA_RULE_ELSE, #body, 0, 0, 0}

#define KDA_ROUTE(op, gate, from, to, state, modes, ccs, ...) \
    {KDA_OP_##op, KDA_GATE_##gate, from, to, KDA_##state, modes, ccs, {__VA_ARGS__}},
#define KDA_PREFER(...)
const struct kda_route_row kda_routes[] = {
#include "manifest/routes.inc"
};
#undef KDA_ROUTE
#undef KDA_PREFER

#define KDA_ROUTE(...)
#define KDA_PREFER(cc, op, body, ...) \
    {cc, KDA_OP_##op, #body, sizeof((int[]){__VA_ARGS__}) / sizeof(int), {__VA_ARGS__}},
const struct kda_prefer_row kda_preferences[] = {
#include "manifest/routes.inc"
};
// clang-format on

#define COUNT(table) (uint32_t)(sizeof(table) / sizeof((table)[0]))
const uint32_t kda_schedule_count = COUNT(kda_schedules);
const uint32_t kda_target_count = COUNT(kda_targets);
const uint32_t kda_route_count = COUNT(kda_routes);
const uint32_t kda_preference_count = COUNT(kda_preferences);

uint32_t kda_rows_schedule(const char *name, size_t size)
{
    for (uint32_t i = 0; i < kda_schedule_count; i++) {
        const char *row = kda_schedules[i].name;
        if (strlen(row) == size && memcmp(row, name, size) == 0) return i;
    }
    return KDA_NONE;
}

uint32_t kda_rows_target(const char *name, size_t size)
{
    for (uint32_t i = 0; i < kda_target_count; i++) {
        const char *row = kda_targets[i].name;
        if (strlen(row) == size && memcmp(row, name, size) == 0) return i;
    }
    return KDA_NONE;
}

int kda_rows_cubin(const char *path, uint32_t *out_schedule, uint32_t *out_target)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    const char *dot = strchr(name, '.');
    const char *end = dot ? strchr(dot + 1, '.') : NULL;
    if (!end || strcmp(end, ".cubin") != 0) return 0;
    uint32_t schedule = kda_rows_schedule(name, (size_t)(dot - name));
    uint32_t target = kda_rows_target(dot + 1, (size_t)(end - dot - 1));
    if (schedule == KDA_NONE || target == KDA_NONE) return 0;
    *out_schedule = schedule;
    *out_target = target;
    return 1;
}
