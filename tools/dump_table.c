// SPDX-License-Identifier: Apache-2.0
// kda-dump without a verb: what the bundle holds, as a table for people or as JSON for programs.
// Every number comes from the index; no frame is decompressed.
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "loader/digest.h"
#include "loader/explain.h"
#include "tools/dump.h"
#include "tools/json.h"

struct totals {
    uint64_t raw, stored;  // bytes of all images, and of all frames as stored
};

static struct totals sum(const kda_bundle *bundle)
{
    struct totals totals = {0};
    for (uint32_t i = 0; i < bundle->cubin_count; ++i) totals.raw += bundle->cubins[i].size;
    for (uint32_t i = 0; i < bundle->frame_count; ++i)
        totals.stored += bundle->frames[i].stored_size;
    return totals;
}

// Each toolkit once, as in "12.9.86, 13.0.88".
static void name_toolkits(const kda_bundle *bundle, kda_text *text)
{
    for (uint32_t i = 0; i < bundle->cubin_count; ++i) {
        bool said = false;
        for (uint32_t j = 0; j < i && !said; ++j)
            said = !strcmp(bundle->strings + bundle->cubins[i].toolkit,
                           bundle->strings + bundle->cubins[j].toolkit);
        if (!said)
            kda_text_add(text, "%s%s", text->used ? ", " : "",
                         bundle->strings + bundle->cubins[i].toolkit);
    }
}

bool dump_is_routed(const kda_bundle *bundle, uint32_t body)
{
    for (uint32_t i = 0; i < bundle->rule_count; ++i) {
        if (bundle->rules[i].body == body) return true;
    }
    return false;
}

struct dump_range dump_tokens(uint32_t low, uint32_t high)
{
    struct dump_range out;
    if (low == high)
        snprintf(out.text, sizeof out.text, "%u", low);
    else
        snprintf(out.text, sizeof out.text, "%u-%u", low, high);
    return out;
}

static void print_images(const kda_bundle *bundle)
{
    int width = 4;
    for (uint32_t i = 0; i < bundle->body_count; ++i) {
        int length = (int)strlen(bundle->strings + bundle->bodies[i].name);
        if (length > width) width = length;
    }
    printf("%-*s %-9s %-3s %-11s %5s %7s %6s %3s %-6s %-8s %4s %5s %7s %6s %8s\n", width, "body",
           "op", "T", "gate", "split", "threads", "smem", "pdl", "routed", "target", "regs",
           "stack", "size", "ratio", "min CUDA");
    for (uint32_t i = 0; i < bundle->body_count; ++i) {
        const struct kda_format_body *body = &bundle->bodies[i];
        const char *name = bundle->strings + body->name;
        bool first = true;
        for (uint32_t k = 0; k < bundle->cubin_count; ++k) {
            const struct kda_format_cubin *cubin = &bundle->cubins[k];
            if (cubin->body != i) continue;
            const struct kda_format_frame *frame = &bundle->frames[cubin->frame];
            if (first)
                printf("%-*s %-9s %-3s %-11s %5u %7u %6u %3s %-6s", width, name,
                       kda_op_name(body->op), dump_tokens(body->tokens_min, body->tokens_max).text,
                       kda_gate_name(body->gate), body->split, body->threads, body->smem,
                       body->flags & KDA_BODY_PDL ? "yes" : "no",
                       dump_is_routed(bundle, i) ? "yes" : "forced");
            else
                printf("%*s",
                       width + 1 + 9 + 1 + 3 + 1 + 11 + 1 + 5 + 1 + 7 + 1 + 6 + 1 + 3 + 1 + 6, "");
            printf(" %-8s %4u %5u %7llu %5.1fx %6d.%d\n",
                   bundle->strings + bundle->targets[cubin->target].name, cubin->registers,
                   cubin->stack, (unsigned long long)cubin->size,
                   (double)frame->raw_size / (double)frame->stored_size,
                   KDA_CUDA_ARGS(cubin->min_cuda));
            first = false;
        }
        if (first) printf("%-*s (no image)\n", width, name);
    }
}

static void print_frame(const kda_bundle *bundle, uint32_t index)
{
    const struct kda_format_frame *frame = &bundle->frames[index];
    uint32_t images = 0, low = UINT32_MAX, high = 0, op = 0;
    bool mixed = false;
    for (uint32_t i = 0; i < bundle->cubin_count; ++i) {
        if (bundle->cubins[i].frame != index) continue;
        const struct kda_format_body *body = &bundle->bodies[bundle->cubins[i].body];
        if (images++ && body->op != op) mixed = true;
        op = body->op;
        if (body->tokens_min < low) low = body->tokens_min;
        if (body->tokens_max > high) high = body->tokens_max;
    }
    printf("%5u  %-9s %-3s %6u %8llu %8llu %5.1fx\n", index,
           mixed    ? "several"
           : images ? kda_op_name(op)
                    : "-",
           images ? dump_tokens(low, high).text : "-", images, (unsigned long long)frame->raw_size,
           (unsigned long long)frame->stored_size,
           (double)frame->raw_size / (double)frame->stored_size);
}

static void print_table(const kda_bundle *bundle)
{
    uint8_t id[32], file[32];
    kda_bundle_id(bundle, id);
    kda_sha256(bundle->data, bundle->size, file);
    kda_text toolkits = {0};
    name_toolkits(bundle, &toolkits);
    uint32_t zstd = bundle->header->zstd_version;
    struct totals totals = sum(bundle);
    printf("bundle id    %s\n", kda_hex_of(id).text);
    printf("file sha256  %s\n", kda_hex_of(file).text);
    printf("format       %u, zstd %u.%u.%u\n", bundle->header->version, zstd / 10000,
           zstd / 100 % 100, zstd % 100);
    printf("toolchain    %s, %s\n", toolkits.used ? toolkits.data : "none",
           bundle->header->flags & KDA_BUNDLE_PINNED ? "pinned: the locks of the source tree apply"
                                                     : "unpinned: no lock applies");
    for (uint32_t i = 0; i < bundle->body_count; ++i) {
        const char *layout = bundle->strings + bundle->bodies[i].layout;
        bool said = false;
        for (uint32_t j = 0; j < i && !said; ++j)
            said = !strcmp(layout, bundle->strings + bundle->bodies[j].layout);
        if (!said) printf("state        %s\n", layout);
    }
    printf("\n");
    print_images(bundle);
    printf("\nframe  op        T   images      raw   stored  ratio\n");
    for (uint32_t i = 0; i < bundle->frame_count; ++i) print_frame(bundle, i);
    printf("\ntotals       %u bodies, %u images, %u frames, %u routes; %llu bytes of images, %llu "
           "stored "
           "(%.1fx), file %zu\n",
           bundle->body_count, bundle->cubin_count, bundle->frame_count, bundle->route_count,
           (unsigned long long)totals.raw, (unsigned long long)totals.stored,
           totals.stored ? (double)totals.raw / (double)totals.stored : 0.0, bundle->size);
}

static void write_tokens(struct json *json, uint32_t low, uint32_t high)
{
    if (low == high)
        json_number(json, "tokens", low);
    else
        json_text(json, "tokens", dump_tokens(low, high).text);
}

// What a body or a route is for; a set without bits is not written.
static void write_limits(struct json *json, uint32_t head_set, uint32_t mode_set)
{
    if (head_set) json_open(json, "heads", '[');
    for (uint32_t i = 0; i < 32; ++i)
        if (head_set >> i & 1) json_number(json, NULL, 4 * i);
    if (head_set) json_close(json, ']');
    if (mode_set) json_open(json, "modes", '[');
    for (uint32_t mode = 0; mode < 32; ++mode)
        if (mode_set >> mode & 1) json_text(json, NULL, kda_mode_name(mode));
    if (mode_set) json_close(json, ']');
}

static void write_bodies(struct json *json, const kda_bundle *bundle)
{
    json_open(json, "bodies", '[');
    for (uint32_t i = 0; i < bundle->body_count; ++i) {
        const struct kda_format_body *body = &bundle->bodies[i];
        json_open(json, NULL, '{');
        json_text(json, "name", bundle->strings + body->name);
        json_text(json, "op", kda_op_name(body->op));
        write_tokens(json, body->tokens_min, body->tokens_max);
        json_text(json, "gate", kda_gate_name(body->gate));
        json_text(json, "state", body->state_type == KDA_F32 ? "f32" : "bf16");
        write_limits(json, body->head_set, body->mode_set);
        json_number(json, "split", body->split);
        json_number(json, "threads", body->threads);
        json_number(json, "smem", body->smem);
        json_bool(json, "pdl", body->flags & KDA_BODY_PDL);
        json_digest(json, "sha256", body->sha256);
        json_close(json, '}');
    }
    json_close(json, ']');
}

static void write_cubins(struct json *json, const kda_bundle *bundle)
{
    json_open(json, "cubins", '[');
    for (uint32_t i = 0; i < bundle->cubin_count; ++i) {
        const struct kda_format_cubin *cubin = &bundle->cubins[i];
        json_open(json, NULL, '{');
        json_text(json, "body", bundle->strings + bundle->bodies[cubin->body].name);
        json_text(json, "target", bundle->strings + bundle->targets[cubin->target].name);
        json_text(json, "toolkit", bundle->strings + cubin->toolkit);
        json_number(json, "min_cuda", cubin->min_cuda);
        json_digest(json, "sha256", cubin->sha256);
        json_number(json, "size", (int64_t)cubin->size);
        json_number(json, "registers", cubin->registers);
        json_number(json, "stack", cubin->stack);
        json_number(json, "shared", cubin->shared);
        json_close(json, '}');
    }
    json_close(json, ']');
}

static void write_routes(struct json *json, const kda_bundle *bundle)
{
    json_open(json, "routes", '[');
    for (uint32_t i = 0; i < bundle->route_count; ++i) {
        const struct kda_format_route *route = &bundle->routes[i];
        char cc[16];
        snprintf(cc, sizeof cc, "%u.%u", route->cc / 10, route->cc % 10);
        json_open(json, NULL, '{');
        json_text(json, "op", kda_op_name(route->op));
        json_text(json, "gate", kda_gate_name(route->gate));
        write_tokens(json, route->tokens_min, route->tokens_max);
        json_text(json, "cc", cc);
        write_limits(json, route->head_set, route->mode_set);
        if (route->state_type)
            json_text(json, "state", route->state_type == KDA_F32 ? "f32" : "bf16");
        json_open(json, "rules", '[');
        for (uint32_t k = 0; k < route->rule_count; ++k) {
            const struct kda_format_rule *rule = &bundle->rules[route->rule_first + k];
            json_open(json, NULL, '{');
            json_text(json, "kind",
                      rule->kind == KDA_RULE_WORK   ? "work"
                      : rule->kind == KDA_RULE_ROWS ? "rows"
                                                    : "else");
            if (rule->kind != KDA_RULE_ELSE) {
                json_number(json, "den", rule->den);
                json_number(json, "num", rule->num);
                json_number(json, "c", rule->c);
            }
            json_text(json, "body", bundle->strings + bundle->bodies[rule->body].name);
            json_close(json, '}');
        }
        json_close(json, ']');
        json_close(json, '}');
    }
    json_close(json, ']');
}

static void print_json(const kda_bundle *bundle)
{
    uint8_t id[32], file[32];
    kda_bundle_id(bundle, id);
    kda_sha256(bundle->data, bundle->size, file);
    struct totals totals = sum(bundle);
    struct json json = {.out = stdout};
    json_open(&json, NULL, '{');
    json_number(&json, "schema_version", 1);
    json_digest(&json, "bundle_id", id);
    json_digest(&json, "file_sha256", file);
    json_bool(&json, "pinned", bundle->header->flags & KDA_BUNDLE_PINNED);
    write_bodies(&json, bundle);
    write_cubins(&json, bundle);
    write_routes(&json, bundle);
    json_open(&json, "totals", '{');
    json_number(&json, "bodies", bundle->body_count);
    json_number(&json, "cubins", bundle->cubin_count);
    json_number(&json, "frames", bundle->frame_count);
    json_number(&json, "routes", bundle->route_count);
    json_number(&json, "raw_bytes", (int64_t)totals.raw);
    json_number(&json, "stored_bytes", (int64_t)totals.stored);
    json_number(&json, "file_bytes", (int64_t)bundle->size);
    json_close(&json, '}');
    json_close(&json, '}');
}

int dump_table(const kda_bundle *bundle, int argc, char **argv)
{
    static const struct option options[] = {
        {"help", no_argument, NULL, 'h'}, {"json", no_argument, NULL, 'j'}, {0}};
    bool as_json = false;
    optind = 1;
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (option == 'j') {
            as_json = true;
        } else if (option == 'h') {
            fputs("usage: kda-dump BUNDLE [--json]\n\n"
                  "Shows the bundle: its id, file digest and toolchain; each body with its images "
                  "(registers, local\n"
                  "memory, size, compression ratio of the frame, oldest driver); totals. `routed` "
                  "is \"forced\" for a\n"
                  "body that no route selects. --json writes the same for programs; sizes are in "
                  "bytes, min_cuda is\n"
                  "1000*major + 10*minor.\n",
                  stdout);
            return DUMP_OK;
        } else {
            return dump_bad_option("table", argv);
        }
    }
    if (optind != argc) return dump_usage("table", "expected no operand, found %s", argv[optind]);
    if (as_json)
        print_json(bundle);
    else
        print_table(bundle);
    return DUMP_OK;
}
