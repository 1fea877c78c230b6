// SPDX-License-Identifier: Apache-2.0
// kda-dump routes and diff: the routing table as text that is stable and made for review, and what
// two bundles do not share. Entries are compared by their names and meaning, never by their place.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/digest.h"
#include "loader/explain.h"
#include "tools/dump.h"

static void copy_text(const kda_text *text, char *out, size_t size)
{
    snprintf(out, size, "%s", text->data);
}

void dump_route_key(const kda_bundle *bundle, uint32_t index, char *out, size_t size)
{
    const struct kda_format_route *route = &bundle->routes[index];
    kda_text text = {0};
    kda_text_add(&text, "%s T=%s %s", kda_op_name(route->op),
                 dump_tokens(route->tokens_min, route->tokens_max).text,
                 kda_gate_name(route->gate));
    if (route->head_set) {
        kda_text_add(&text, " H=");
        kda_explain_set(&text, route->head_set, 4);
    }
    if (route->state_type)
        kda_text_add(&text, " state %s", route->state_type == KDA_F32 ? "f32" : "bf16");
    if (route->mode_set) {
        kda_text_add(&text, " mode ");
        kda_explain_modes(&text, route->mode_set);
    }
    kda_text_add(&text, " CC %u.%u", route->cc / 10, route->cc % 10);
    copy_text(&text, out, size);
}

void dump_rule(const kda_bundle *bundle, uint32_t index, char *out, size_t size)
{
    const struct kda_format_rule *rule = &bundle->rules[index];
    kda_text text = {0};
    if (rule->kind == KDA_RULE_ELSE) {
        kda_text_add(&text, "%-12s", "else");
    } else {
        kda_text left = {0};
        if (rule->den != 1) kda_text_add(&left, "%lld", (long long)rule->den);
        kda_text_add(&left, "%s <= ", rule->kind == KDA_RULE_WORK ? "W" : "N");
        if (rule->num == 1)
            kda_text_add(&left, "S");
        else if (rule->num)
            kda_text_add(&left, "%lld*S", (long long)rule->num);
        if (rule->c || !rule->num)
            kda_text_add(&left, "%s%lld", rule->num ? " + " : "", (long long)rule->c);
        kda_text_add(&text, "%-12s", left.data);
    }
    kda_text_add(&text, " %s", bundle->strings + bundle->bodies[rule->body].name);
    copy_text(&text, out, size);
}

void dump_preference(const kda_bundle *bundle, uint32_t index, char *out, size_t size)
{
    const struct kda_format_preference *preference = &bundle->preferences[index];
    kda_text text = {0};
    kda_text_add(&text, "CC %u.%u %s %s:", preference->cc / 10, preference->cc % 10,
                 kda_op_name(preference->op),
                 preference->body == KDA_NONE
                     ? "any other body"
                     : bundle->strings + bundle->bodies[preference->body].name);
    for (uint32_t i = 0; i < preference->target_count; ++i)
        kda_text_add(&text, "%s %s", i ? "," : "",
                     bundle->strings + bundle->targets[preference->targets[i]].name);
    copy_text(&text, out, size);
}

int dump_routes(const kda_bundle *bundle, int argc, char **argv)
{
    int done = dump_no_options(
        argc, argv, 0,
        "usage: kda-dump BUNDLE routes\n\n"
        "Prints the routing table: for each route the rules, of which the first that holds gives "
        "the\n"
        "body (W = N*HV, S is the SM count), then the targets that a device prefers, of which the\n"
        "first that qualifies gives the image, then what the targets need.\n");
    if (done >= 0) return done;
    char line[KDA_ERROR_TEXT];
    printf("routes: the first that matches, in it the first rule that holds; W = N*HV, S = SM "
           "count\n");
    for (uint32_t i = 0; i < bundle->route_count; ++i) {
        dump_route_key(bundle, i, line, sizeof line);
        printf("\n%s\n", line);
        for (uint32_t k = 0; k < bundle->routes[i].rule_count; ++k) {
            dump_rule(bundle, bundle->routes[i].rule_first + k, line, sizeof line);
            printf("    %s\n", line);
        }
    }
    printf("\npreferences: the first that matches, in it the first target that qualifies\n\n");
    for (uint32_t i = 0; i < bundle->preference_count; ++i) {
        dump_preference(bundle, i, line, sizeof line);
        printf("    %s\n", line);
    }
    printf("\ntargets: the CCs of its images, and the oldest CUDA version\n\n");
    for (uint32_t i = 0; i < bundle->target_count; ++i) {
        const struct kda_format_target *target = &bundle->targets[i];
        printf("    %-8s CC", bundle->strings + target->name);
        for (uint32_t k = 0; k < target->cc_count; ++k)
            printf("%s %u.%u", k ? "," : "", target->ccs[k] / 10, target->ccs[k] % 10);
        printf("; CUDA %d.%d\n", KDA_CUDA_ARGS(target->floor));
    }
    return DUMP_OK;
}

// -------------------------------------------------------------------------------------------- diff

static int report(char mark, const char *what, const char *text)
{
    printf("%c %s %s\n", mark, what, text);
    return 1;
}

static int diff_bodies(const kda_bundle *a, const kda_bundle *b)
{
    int moved = 0;
    for (uint32_t i = 0; i < a->body_count; ++i) {
        const struct kda_format_body *old = &a->bodies[i];
        const char *name = a->strings + old->name;
        uint32_t other = kda_bundle_find_body(b, name);
        if (other == KDA_NONE) {
            moved += report('-', "body", name);
            continue;
        }
        const struct kda_format_body *new = &b->bodies[other];
        kda_text text = {0};
        if (memcmp(old->sha256, new->sha256, sizeof old->sha256) != 0)
            kda_text_add(&text, " sha256 %.12s -> %.12s", kda_hex_of(old->sha256).text,
                         kda_hex_of(new->sha256).text);
#define DIFF_NUMBER(field)                                                                         \
    if (old->field != new->field)                                                                  \
    kda_text_add(&text, " " #field " %u -> %u", old->field, new->field)
        DIFF_NUMBER(op);
        DIFF_NUMBER(gate);
        DIFF_NUMBER(tokens_min);
        DIFF_NUMBER(tokens_max);
        DIFF_NUMBER(split);
        DIFF_NUMBER(threads);
        DIFF_NUMBER(smem);
        DIFF_NUMBER(flags);
        DIFF_NUMBER(head_set);
        DIFF_NUMBER(row_set);
        DIFF_NUMBER(params_version);
        DIFF_NUMBER(params_size);
        DIFF_NUMBER(state_type);
        DIFF_NUMBER(mode_set);
        if (strcmp(a->strings + old->layout, b->strings + new->layout) != 0)
            kda_text_add(&text, " state layout");
        if (strcmp(a->strings + old->entry, b->strings + new->entry) != 0)
            kda_text_add(&text, " entry symbol");
        if (!text.used) continue;
        printf("~ body %s:%s\n", name, text.data);
        ++moved;
    }
    for (uint32_t i = 0; i < b->body_count; ++i) {
        const char *name = b->strings + b->bodies[i].name;
        if (kda_bundle_find_body(a, name) == KDA_NONE) moved += report('+', "body", name);
    }
    return moved;
}

static void name_cubin(const kda_bundle *bundle, uint32_t index, char *out, size_t size)
{
    const struct kda_format_cubin *cubin = &bundle->cubins[index];
    snprintf(out, size, "%s.%s", bundle->strings + bundle->bodies[cubin->body].name,
             bundle->strings + bundle->targets[cubin->target].name);
}

static uint32_t find_same_cubin(const kda_bundle *from, uint32_t index, const kda_bundle *in)
{
    const struct kda_format_cubin *cubin = &from->cubins[index];
    uint32_t body = kda_bundle_find_body(in, from->strings + from->bodies[cubin->body].name);
    uint32_t target = kda_bundle_find_target(in, from->strings + from->targets[cubin->target].name);
    return body == KDA_NONE || target == KDA_NONE ? KDA_NONE
                                                  : kda_bundle_find_cubin(in, body, target);
}

static int diff_cubins(const kda_bundle *a, const kda_bundle *b)
{
    int moved = 0;
    char name[KDA_ERROR_TEXT];
    for (uint32_t i = 0; i < a->cubin_count; ++i) {
        const struct kda_format_cubin *old = &a->cubins[i];
        name_cubin(a, i, name, sizeof name);
        uint32_t other = find_same_cubin(a, i, b);
        if (other == KDA_NONE) {
            moved += report('-', "cubin", name);
            continue;
        }
        const struct kda_format_cubin *new = &b->cubins[other];
        kda_text text = {0};
        if (memcmp(old->sha256, new->sha256, sizeof old->sha256) != 0)
            kda_text_add(&text, " sha256 %.12s -> %.12s", kda_hex_of(old->sha256).text,
                         kda_hex_of(new->sha256).text);
        if (old->size != new->size)
            kda_text_add(&text, " size %llu -> %llu", (unsigned long long)old->size,
                         (unsigned long long)new->size);
        DIFF_NUMBER(registers);
        DIFF_NUMBER(stack);
        DIFF_NUMBER(shared);
        DIFF_NUMBER(min_cuda);
        if (strcmp(a->strings + old->toolkit, b->strings + new->toolkit) != 0)
            kda_text_add(&text, " toolkit %s -> %s", a->strings + old->toolkit,
                         b->strings + new->toolkit);
        if (!text.used) continue;
        printf("~ cubin %s:%s\n", name, text.data);
        ++moved;
    }
    for (uint32_t i = 0; i < b->cubin_count; ++i) {
        if (find_same_cubin(b, i, a) != KDA_NONE) continue;
        name_cubin(b, i, name, sizeof name);
        moved += report('+', "cubin", name);
    }
    return moved;
}

// A route with its rules, or a preference, as one line of text: equal lines are equal entries.
struct lines {
    char (*text)[2 * KDA_ERROR_TEXT];
    size_t count;
};

static struct lines collect_lines(const kda_bundle *bundle)
{
    struct lines lines = {0};
    lines.text =
        calloc(bundle->route_count + bundle->preference_count + (size_t)1, sizeof *lines.text);
    if (!lines.text) {
        fprintf(stderr, "kda-dump diff: no memory\n");
        exit(DUMP_USAGE);
    }
    for (uint32_t i = 0; i < bundle->route_count; ++i) {
        char *line = lines.text[lines.count++];
        dump_route_key(bundle, i, line, KDA_ERROR_TEXT);
        for (uint32_t k = 0; k < bundle->routes[i].rule_count; ++k) {
            size_t used = strlen(line);
            char rule[KDA_ERROR_TEXT];
            dump_rule(bundle, bundle->routes[i].rule_first + k, rule, sizeof rule);
            snprintf(line + used, sizeof *lines.text - used, "%s %s", k ? "," : ":", rule);
        }
    }
    for (uint32_t i = 0; i < bundle->preference_count; ++i)
        dump_preference(bundle, i, lines.text[lines.count++], sizeof *lines.text);
    return lines;
}

static int report_missing(char mark, const struct lines *from, const struct lines *in)
{
    int moved = 0;
    for (size_t i = 0; i < from->count; ++i) {
        bool found = false;
        for (size_t k = 0; k < in->count && !found; ++k)
            found = !strcmp(from->text[i], in->text[k]);
        if (!found) moved += report(mark, "route", from->text[i]);
    }
    return moved;
}

static int diff_routes(const kda_bundle *a, const kda_bundle *b)
{
    struct lines old = collect_lines(a), new = collect_lines(b);
    int moved = report_missing('-', &old, &new) + report_missing('+', &new, &old);
    bool same_order = old.count == new.count;
    for (size_t i = 0; i < old.count && same_order; ++i)
        same_order = !strcmp(old.text[i], new.text[i]);
    if (!moved && !same_order) {
        printf("~ routes: the same, in another order\n");
        ++moved;
    }
    free(old.text);
    free(new.text);
    return moved;
}

int dump_diff(const kda_bundle *bundle, int argc, char **argv)
{
    int done =
        dump_no_options(argc, argv, 1,
                        "usage: kda-dump A diff B\n       kda-dump diff A B\n\n"
                        "Prints the bodies, images and routes that differ: - only in A, + only in "
                        "B, ~ in both but not\n"
                        "the same. Exit status 1 if there are any, or if the bundle ids differ.\n");
    if (done >= 0) return done;
    kda_bundle *other = NULL;
    kda_error err;
    if (dump_open(argv[1], &other, &err)) return dump_error(argv[1], &err);
    uint8_t ids[2][32];
    kda_bundle_id(bundle, ids[0]);
    kda_bundle_id(other, ids[1]);
    int moved =
        diff_bodies(bundle, other) + diff_cubins(bundle, other) + diff_routes(bundle, other);
    bool same = !memcmp(ids[0], ids[1], sizeof ids[0]);
    if (same)
        printf("the same bundle id %s\n", kda_hex_of(ids[0]).text);
    else
        printf("%d entries differ; bundle id %s -> %s\n", moved, kda_hex_of(ids[0]).text,
               kda_hex_of(ids[1]).text);
    kda_bundle_close(&other);
    return same && !moved ? DUMP_OK : DUMP_FINDING;
}
