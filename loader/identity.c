// SPDX-License-Identifier: Apache-2.0
// Owns the bundle id: sha256 over what the records mean, so that it survives another compression,
// another order of the strings, or another place of an image in its frame. Refuses to know what any
// of it is for.
//
// The stream, in this order: the text "kda bundle 1", then per section the number of its records
// and the records. A number is 8 bytes, little-endian; a text is its length as a number and its
// bytes; a digest is 32 bytes. References are texts: a body, target or toolkit by name; "any other
// body" is the empty text. Records keep the order of the index.
//   body        name entry layout op gate tokens_min tokens_max split threads smem flags
//               head_set row_set params_version params_size state_type mode_set sha256
//   target      name floor cc_count ccs..
//   cubin       body target toolkit min_cuda sha256
//   route       op gate tokens_min tokens_max head_set state_type mode_set cc rule_count, per
//               rule: kind body, and den num c unless it is the last
//   preference  cc op body target_count targets..
#include "loader/bundle.h"

#include <sha2.h>
#include <string.h>

static void add_number(SHA2_CTX *sha, uint64_t number)
{
    uint8_t bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = (uint8_t)(number >> (8 * i));
    SHA256Update(sha, bytes, sizeof bytes);
}

static void add_text(SHA2_CTX *sha, const char *text)
{
    size_t length = strlen(text);
    add_number(sha, length);
    SHA256Update(sha, (const uint8_t *)text, length);
}

static void add_numbers(SHA2_CTX *sha, const uint32_t *numbers, size_t count)
{
    for (size_t i = 0; i < count; ++i) add_number(sha, numbers[i]);
}

#define COUNT(array) (sizeof(array) / sizeof *(array))

static void add_body(SHA2_CTX *sha, const kda_bundle *bundle, const struct kda_format_body *body)
{
    add_text(sha, bundle->strings + body->name);
    add_text(sha, bundle->strings + body->entry);
    add_text(sha, bundle->strings + body->layout);
    const uint32_t facts[] = {body->op,         body->gate,           body->tokens_min,
                              body->tokens_max, body->split,          body->threads,
                              body->smem,       body->flags,          body->head_set,
                              body->row_set,    body->params_version, body->params_size,
                              body->state_type, body->mode_set};
    add_numbers(sha, facts, COUNT(facts));
    SHA256Update(sha, body->sha256, sizeof body->sha256);
}

static void add_route(SHA2_CTX *sha, const kda_bundle *bundle, const struct kda_format_route *route)
{
    const uint32_t facts[] = {route->op,         route->gate,     route->tokens_min,
                              route->tokens_max, route->head_set, route->state_type,
                              route->mode_set,   route->cc,       route->rule_count};
    add_numbers(sha, facts, COUNT(facts));
    for (uint32_t i = 0; i < route->rule_count; ++i) {
        const struct kda_format_rule *rule = &bundle->rules[route->rule_first + i];
        add_number(sha, rule->kind);
        add_text(sha, bundle->strings + bundle->bodies[rule->body].name);
        if (rule->kind == KDA_RULE_ELSE) continue;
        add_number(sha, (uint64_t)rule->den);
        add_number(sha, (uint64_t)rule->num);
        add_number(sha, (uint64_t)rule->c);
    }
}

void kda_bundle_id(const kda_bundle *bundle, uint8_t out[32])
{
    if (out) memset(out, 0, 32);
    if (!bundle || !out) return;
    const char *strings = bundle->strings;
    SHA2_CTX sha;
    SHA256Init(&sha);
    add_text(&sha, "kda bundle 1");
    add_number(&sha, bundle->body_count);
    for (uint32_t i = 0; i < bundle->body_count; ++i) add_body(&sha, bundle, &bundle->bodies[i]);
    add_number(&sha, bundle->target_count);
    for (uint32_t i = 0; i < bundle->target_count; ++i) {
        const struct kda_format_target *target = &bundle->targets[i];
        add_text(&sha, strings + target->name);
        add_number(&sha, target->floor);
        add_number(&sha, target->cc_count);
        add_numbers(&sha, target->ccs, target->cc_count);
    }
    add_number(&sha, bundle->cubin_count);
    for (uint32_t i = 0; i < bundle->cubin_count; ++i) {
        const struct kda_format_cubin *cubin = &bundle->cubins[i];
        add_text(&sha, strings + bundle->bodies[cubin->body].name);
        add_text(&sha, strings + bundle->targets[cubin->target].name);
        add_text(&sha, strings + cubin->toolkit);
        add_number(&sha, cubin->min_cuda);
        SHA256Update(&sha, cubin->sha256, sizeof cubin->sha256);
    }
    add_number(&sha, bundle->route_count);
    for (uint32_t i = 0; i < bundle->route_count; ++i) add_route(&sha, bundle, &bundle->routes[i]);
    add_number(&sha, bundle->preference_count);
    for (uint32_t i = 0; i < bundle->preference_count; ++i) {
        const struct kda_format_preference *preference = &bundle->preferences[i];
        add_number(&sha, preference->cc);
        add_number(&sha, preference->op);
        add_text(&sha, preference->body == KDA_NONE
                           ? ""
                           : strings + bundle->bodies[preference->body].name);
        add_number(&sha, preference->target_count);
        for (uint32_t k = 0; k < preference->target_count; ++k)
            add_text(&sha, strings + bundle->targets[preference->targets[k]].name);
    }
    SHA256Final(out, &sha);
}
