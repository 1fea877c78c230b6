// SPDX-License-Identifier: Apache-2.0
// kda-dump route: one route query from the command line, and why every other image is not the
// answer. The reasons are the library's own: each other body and target is asked for by name, and
// its refusal is printed.
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/digest.h"
#include "loader/explain.h"
#include "loader/target.h"
#include "tools/dump.h"
#include "tools/json.h"

static const char help[] =
    "usage: kda-dump BUNDLE route --op OP --cc X.Y --cuda X.Y --sms S --n N [OPTION...]\n"
    "\n"
    "Says which image serves a problem on a device, and why the others do not. Needs no GPU.\n"
    "  --op OP         recurrent, packed, fused, verify or commit\n"
    "  --cc X.Y        compute capability of the device, 10.3 for example\n"
    "  --cuda X.Y      CUDA version of its driver, 13.0 for example\n"
    "  --sms S         its SM count\n"
    "  --n N           rows (sequences)\n"
    "  --tokens T      tokens per row, of verify and commit the window; default 1\n"
    "  --gate GATE     precomputed, lower_bound or softplus; default precomputed, lower_bound for "
    "T=3, packed and fused\n"
    "  --h H           query/key heads; default 1, 12 for packed, 16 for T=3, 32 for fused\n"
    "  --hv HV         value heads; default H\n"
    "  --state TYPE    bf16 or f32; default bf16\n"
    "  --mode MODE     positive_unique, unique_or_null or repeated_positive; of fused only, "
    "default positive_unique\n"
    "  --body NAME     force this body\n"
    "  --target NAME   force this target\n"
    "  --json          write the answer for programs\n"
    "Exit status: 0 a route, 1 refused, 2 wrong usage.\n";

struct query {
    kda_device device;
    kda_problem problem;
    bool json, given_gate;
};

static bool parse_number(const char *text, int64_t *out)
{
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno) return false;
    *out = value;
    return true;
}

// "10.3" as two small numbers.
static bool parse_version(const char *text, int *out_major, int *out_minor)
{
    char rest = 0;
    return sscanf(text, "%4d.%2d%c", out_major, out_minor, &rest) == 2 && *out_major >= 0 &&
           *out_minor >= 0;
}

#define NAMED(ID, NUMBER, TEXT) {TEXT, NUMBER},

struct named {
    const char *text;
    int number;
};
static const struct named ops[] = {KDA_OPS(NAMED){0}}, gates[] = {KDA_GATES(NAMED){0}},
                          modes[] = {KDA_MODES(NAMED){0}};

static bool parse_name(const char *text, const struct named *names, int *out)
{
    while (names->text && strcmp(names->text, text) != 0) ++names;
    *out = names->number;
    return names->text;
}

enum {
    OP = 1,
    CC,
    CUDA,
    SMS,
    ROWS,
    TOKENS,
    GATE,
    HEADS,
    VALUE_HEADS,
    STATE,
    MODE,
    BODY,
    TARGET,
    JSON,
    HELP
};

static const struct option options[] = {
    {"op", required_argument, NULL, OP},
    {"cc", required_argument, NULL, CC},
    {"cuda", required_argument, NULL, CUDA},
    {"sms", required_argument, NULL, SMS},
    {"n", required_argument, NULL, ROWS},
    {"tokens", required_argument, NULL, TOKENS},
    {"gate", required_argument, NULL, GATE},
    {"h", required_argument, NULL, HEADS},
    {"hv", required_argument, NULL, VALUE_HEADS},
    {"state", required_argument, NULL, STATE},
    {"mode", required_argument, NULL, MODE},
    {"body", required_argument, NULL, BODY},
    {"target", required_argument, NULL, TARGET},
    {"json", no_argument, NULL, JSON},
    {"help", no_argument, NULL, HELP},
    {0},
};

static bool parse_option(struct query *query, int option, const char *text)
{
    kda_device *device = &query->device;
    kda_problem *problem = &query->problem;
    int number = 0, major = 0, minor = 0;
    int64_t wide = 0;
    switch (option) {
    case OP:
        if (!parse_name(text, ops, &number)) return false;
        problem->op = (kda_op)number;
        return true;
    case GATE:
        if (!parse_name(text, gates, &number)) return false;
        problem->gate = (kda_gate)number;
        query->given_gate = true;
        return true;
    case CC:
        return parse_version(text, &device->cc_major, &device->cc_minor);
    case CUDA:
        if (!parse_version(text, &major, &minor)) return false;
        device->cuda_version = 1000 * major + 10 * minor;
        return true;
    case SMS:
        if (!parse_number(text, &wide) || wide < INT32_MIN || wide > INT32_MAX) return false;
        device->sm_count = (int)wide;
        return true;
    case TOKENS:
        if (!parse_number(text, &wide) || wide < INT32_MIN || wide > INT32_MAX) return false;
        problem->tokens = (int32_t)wide;
        return true;
    case MODE:
        if (!parse_name(text, modes, &number)) return false;
        problem->mode = number;
        return true;
    case ROWS:
        return parse_number(text, &problem->rows);
    case HEADS:
        return parse_number(text, &problem->heads);
    case VALUE_HEADS:
        return parse_number(text, &problem->value_heads);
    case STATE:
        problem->state_type = !strcmp(text, "f32") ? KDA_F32 : KDA_BF16;
        return !strcmp(text, "f32") || !strcmp(text, "bf16");
    case BODY:
        problem->body = text;
        return true;
    case TARGET:
        problem->target = text;
        return true;
    case JSON:
        query->json = true;
        return true;
    default:
        return false;
    }
}

static void add_names(kda_text *text, const struct named *names)
{
    for (const struct named *name = names; name->text; name++)
        kda_text_add(text, "%s%s", name == names ? "" : name[1].text ? ", " : " or ", name->text);
}

// What an option can be.
static void add_allowed(kda_text *text, int option)
{
    switch (option) {
    case OP:
        add_names(text, ops);
        break;
    case GATE:
        add_names(text, gates);
        break;
    case MODE:
        add_names(text, modes);
        break;
    case STATE:
        kda_text_add(text, "bf16 or f32");
        break;
    case CC:
    case CUDA:
        kda_text_add(text, "MAJOR.MINOR");
        break;
    default:
        kda_text_add(text, "an integer of %d bits", option == SMS || option == TOKENS ? 32 : 64);
    }
}

static void set_defaults(struct query *query, uint32_t given)
{
    kda_problem *problem = &query->problem;
    if (!(given & 1u << TOKENS)) problem->tokens = 1;
    bool packed = problem->op == KDA_OP_PACKED, fused = problem->op == KDA_OP_FUSED,
         three = problem->op == KDA_OP_RECURRENT && problem->tokens == 3;
    if (!query->given_gate)
        problem->gate = packed || three || fused ? KDA_GATE_LOWER_BOUND : KDA_GATE_PRECOMPUTED;
    if (!(given & 1u << HEADS)) problem->heads = packed ? 12 : three ? 16 : fused ? 32 : 1;
    if (!(given & 1u << MODE) && fused) problem->mode = KDA_MODE_POSITIVE_UNIQUE;
    if (!(given & 1u << VALUE_HEADS)) problem->value_heads = problem->heads;
    query->device.overridden = KDA_OVERRIDDEN_CC | KDA_OVERRIDDEN_CUDA | KDA_OVERRIDDEN_SMS;
}

// -1 to go on, else the exit status.
static int parse(int argc, char **argv, struct query *query)
{
    uint32_t given = 0;
    optind = 1;
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (option == HELP) {
            fputs(help, stdout);
            return DUMP_OK;
        }
        if (option == '?') return dump_bad_option("route", argv);
        if (!parse_option(query, option, optarg)) {
            kda_text allowed = {0};
            add_allowed(&allowed, option);
            return dump_usage("route", "--%s: cannot be %s, must be %s", options[option - 1].name,
                              optarg, allowed.data);
        }
        given |= 1u << option;
    }
    if (optind != argc) return dump_usage("route", "expected options only, found %s", argv[optind]);
    for (int option = OP; option <= ROWS; ++option) {
        if (!(given & 1u << option))
            return dump_usage("route", "--%s is missing", options[option - 1].name);
    }
    set_defaults(query, given);
    return -1;
}

// -------------------------------------------------------------------------------------- the others

// The refusal without the operator before it and the facts behind it, which the answer gives once.
static void print_refusal(const char *name, kda_error *err)
{
    char *facts = strstr(err->text, "; facts: ");
    if (facts) *facts = 0;
    const char *reason = strstr(err->text, ": ");
    printf("    %s: %s\n", name, reason ? reason + 2 : err->text);
}

static void print_other_bodies(const kda_bundle *bundle, const struct query *query,
                               const char *chosen)
{
    uint32_t op = 0, tokens = 0, gate = 0, limits = 0;
    for (uint32_t i = 0; i < bundle->body_count; ++i) {
        const struct kda_format_body *body = &bundle->bodies[i];
        const char *name = bundle->strings + body->name;
        const kda_problem *problem = &query->problem;
        if (chosen && !strcmp(name, chosen)) continue;
        if (kda_body_serves(body, problem)) {
            kda_problem forced = *problem;
            kda_route_result result;
            kda_error err;
            forced.body = name;
            const char *why =
                dump_is_routed(bundle, i) ? "another rule came first" : "no route selects it";
            if (problem->body) why = "another body is forced";
            if (kda_route(bundle, &query->device, &forced, &result, &err))
                print_refusal(name, &err);
            else
                printf("    %s: %s; forced, it would run as %s\n", name, why, result.target);
        } else if (body->op != (uint32_t)problem->op) {
            ++op;
        } else if ((int64_t)body->tokens_min > problem->tokens ||
                   (int64_t)body->tokens_max < problem->tokens) {
            ++tokens;
        } else if (body->gate != (uint32_t)problem->gate) {
            ++gate;
        } else {
            ++limits;
        }
    }
    if (op + tokens + gate + limits)
        printf("    bodies of another operator: %u, another T: %u, another gate: %u, other H, HV, "
               "N, state or mode: "
               "%u\n",
               op, tokens, gate, limits);
}

static void print_other_targets(const kda_bundle *bundle, const struct query *query,
                                const kda_route_result *route)
{
    for (uint32_t i = 0; i < bundle->target_count; ++i) {
        const char *name = bundle->strings + bundle->targets[i].name;
        if (!strcmp(name, route->target)) continue;
        kda_problem forced = query->problem;
        kda_route_result result;
        kda_error err;
        forced.body = route->body;
        forced.target = name;
        if (kda_route(bundle, &query->device, &forced, &result, &err))
            print_refusal(name, &err);
        else
            printf("    %s: %s\n", name,
                   query->problem.target ? "another target is forced"
                                         : "not preferred; forced, it would run");
    }
}

static void print_answer(const kda_bundle *bundle, const struct query *query,
                         const kda_route_result *route)
{
    kda_text facts = {0};
    kda_explain_device(&facts, &route->facts);
    printf("body         %s\n", route->body);
    printf("target       %s\n", route->target);
    printf("entry        %s\n", route->entry);
    printf("split        %u\n", route->split);
    printf("grid         %u %u %u\n", route->grid[0], route->grid[1], route->grid[2]);
    printf("block        %u\n", route->block);
    printf("smem         %u\n", route->smem);
    printf("registers    %u\n", route->registers);
    printf("sha256       %s\n", kda_hex_of(route->sha256).text);
    printf("body sha256  %s\n", kda_hex_of(route->body_sha256).text);
    printf("toolkit      %s\n", route->toolkit);
    printf("min CUDA     %d.%d\n", KDA_CUDA_ARGS(route->min_cuda));
    printf("facts        %s\n", facts.data);
    printf("other bodies\n");
    print_other_bodies(bundle, query, route->body);
    printf("other targets\n");
    print_other_targets(bundle, query, route);
}

static void print_json(const struct query *query, const kda_route_result *route,
                       const kda_error *err)
{
    const kda_device *device = &query->device;
    struct json json = {.out = stdout};
    json_open(&json, NULL, '{');
    if (route) {
        json_text(&json, "body", route->body);
        json_text(&json, "target", route->target);
        json_number(&json, "split", route->split);
        json_open(&json, "grid", '[');
        for (int i = 0; i < 3; ++i) json_number(&json, NULL, route->grid[i]);
        json_close(&json, ']');
        json_number(&json, "block", route->block);
        json_number(&json, "smem", route->smem);
        json_digest(&json, "sha256", route->sha256);
        json_text(&json, "toolkit", route->toolkit);
        json_number(&json, "min_cuda", route->min_cuda);
    } else {
        json_text(&json, "status", kda_status_name(err->status));
        json_text(&json, "error", err->text);
    }
    char cc[32];
    snprintf(cc, sizeof cc, "%d.%d", device->cc_major, device->cc_minor);
    json_open(&json, "facts", '{');
    json_text(&json, "cc", cc);
    json_number(&json, "cuda_version", device->cuda_version);
    json_number(&json, "sm_count", device->sm_count);
    json_open(&json, "overridden", '[');
    if (device->overridden & KDA_OVERRIDDEN_CC) json_text(&json, NULL, "cc");
    if (device->overridden & KDA_OVERRIDDEN_CUDA) json_text(&json, NULL, "cuda_version");
    if (device->overridden & KDA_OVERRIDDEN_SMS) json_text(&json, NULL, "sm_count");
    json_close(&json, ']');
    json_close(&json, '}');
    json_close(&json, '}');
}

int dump_route(const kda_bundle *bundle, int argc, char **argv)
{
    struct query query = {0};
    int done = parse(argc, argv, &query);
    if (done >= 0) return done;
    kda_route_result route;
    kda_error err;
    kda_status status = kda_route(bundle, &query.device, &query.problem, &route, &err);
    if (query.json)
        print_json(&query, status ? NULL : &route, &err);
    else if (!status)
        print_answer(bundle, &query, &route);
    else
        printf("refused: %s: %s\n", kda_status_name(err.status), err.text);
    return status ? DUMP_FINDING : DUMP_OK;
}
