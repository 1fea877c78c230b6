// SPDX-License-Identifier: Apache-2.0
// Owns the choice of an image for a problem: filters the bundle's records in their order, and the
// first match wins. Refuses to know any body, target, device or threshold: all of them are data of
// the bundle. Invariant: a pure function of its arguments; products that could pass 64 bits are
// taken in 128.
#include "loader/route.h"

#include <string.h>

#include "loader/checked.h"
#include "loader/error.h"
#include "loader/explain.h"
#include "loader/target.h"

__extension__ typedef __int128 wide;

// ---------------------------------------------------------------------------------- accepted calls

kda_status kda_route_accept(const kda_bundle *bundle, const kda_problem *problem,
                            uint32_t *out_body, kda_error *err)
{
    const char *op = kda_op_name((uint32_t)problem->op);
    int64_t heads = problem->heads, value_heads = problem->value_heads;
    if (heads < 1 || value_heads < heads || value_heads % heads != 0)
        return kda_fail(err, KDA_E_ARGUMENT,
                        "%s: expected HV >= H >= 1 and HV a multiple of H, found H=%lld, HV=%lld",
                        op, (long long)heads, (long long)value_heads);
    uint32_t body =
        problem->rows >= 1 ? kda_bundle_start(bundle, problem).body : bundle->body_count;
    while (body < bundle->body_count && !kda_body_serves(&bundle->bodies[body], problem)) ++body;
    if (body == bundle->body_count) {
        kda_text text = {0};
        kda_text_add(&text, "%s: does not support ", *op == '?' ? "route" : op);
        kda_explain_problem(&text, problem);
        kda_text_add(&text, "; supported, for N in 1..%d: ", KDA_ROWS_MAX);
        kda_explain_supported(&text, bundle, (uint32_t)problem->op);
        return kda_fail(err, KDA_E_UNSUPPORTED, "%s", text.data);
    }
    if (problem->rows > KDA_ROWS_MAX)
        return kda_fail(err, KDA_E_LIMIT, "%s: N expected at most %d, found %lld", op, KDA_ROWS_MAX,
                        (long long)problem->rows);
    int64_t work = 0;
    if (kda_mul_overflows(problem->rows, value_heads, &work))
        return kda_fail(err, KDA_E_LIMIT, "%s: N*HV expected to fit 64 bits, found N=%lld, HV=%lld",
                        op, (long long)problem->rows, (long long)value_heads);
    *out_body = body;
    return KDA_OK;
}

// -------------------------------------------------------------------------------------------- body

kda_status kda_device_words(const char *operation, const char *owner, const kda_device *device,
                            kda_error *err)
{
    const uint32_t known = KDA_OVERRIDDEN_CC | KDA_OVERRIDDEN_CUDA | KDA_OVERRIDDEN_SMS;
    if (device->overridden & ~known)
        return kda_fail(err, KDA_E_ARGUMENT, "%s: %soverridden is 0x%x, known bits are 0x%x",
                        operation, owner, device->overridden, known);
    const uint64_t words[] = {device->reserved[0], device->reserved[1], device->reserved[2]};
    return kda_check_reserved(operation, owner, words, sizeof words / sizeof *words, err);
}

static kda_status check_device(const kda_device *device, const char *op, kda_error *err)
{
    if (device->sm_count < 1)
        return kda_fail(err, KDA_E_ARGUMENT, "%s: device: SM count expected >= 1, found %d", op,
                        device->sm_count);
    // CCs are compared as 10*major + minor, so 9.10 must not pass for 10.0.
    if (device->cc_major < 1 || device->cc_major > 999 || device->cc_minor < 0 ||
        device->cc_minor > 9)
        return kda_fail(
            err, KDA_E_ARGUMENT,
            "%s: device: CC expected a major in 1..999 and a minor in 0..9, found %d and %d", op,
            device->cc_major, device->cc_minor);
    if (device->cuda_version < 0)
        return kda_fail(err, KDA_E_ARGUMENT,
                        "%s: device: CUDA version expected 1000*major + 10*minor, found %d", op,
                        device->cuda_version);
    return kda_device_words(op, "device.", device, err);
}

static kda_status find_forced_body(const kda_bundle *bundle, const kda_problem *problem,
                                   uint32_t *out_body, kda_error *err)
{
    uint32_t body = kda_bundle_find_body(bundle, problem->body);
    if (body != KDA_NONE && kda_body_serves(&bundle->bodies[body], problem)) {
        *out_body = body;
        return KDA_OK;
    }
    kda_text text = {0};
    kda_text_add(&text, "%s: ", kda_op_name((uint32_t)problem->op));
    if (body == KDA_NONE) {
        kda_text_add(&text, "unknown body %.100s", problem->body);
    } else {
        const struct kda_format_body *record = &bundle->bodies[body];
        kda_text_add(&text, "body %s is for %s with T=%u..%u, gate %s, not for this call",
                     problem->body, kda_op_name(record->op), record->tokens_min, record->tokens_max,
                     kda_gate_name(record->gate));
    }
    kda_text_add(&text, " of ");
    kda_explain_problem(&text, problem);
    const char *separator = "; its bodies are ";
    for (uint32_t i = 0; i < bundle->body_count; ++i) {
        if (!kda_body_serves(&bundle->bodies[i], problem)) continue;
        kda_text_add(&text, "%s%s", separator, bundle->strings + bundle->bodies[i].name);
        separator = ", ";
    }
    return kda_fail(err, KDA_E_NAME, "%s", text.data);
}

static bool rule_holds(const struct kda_format_rule *rule, const kda_problem *problem, int sm_count)
{
    if (rule->kind == KDA_RULE_ELSE) return true;
    wide size = problem->rows;
    if (rule->kind == KDA_RULE_WORK) size *= problem->value_heads;
    return rule->den * size <= (wide)rule->num * sm_count + rule->c;
}

static bool route_is_for(const struct kda_format_route *route, const kda_problem *problem,
                         uint32_t cc)
{
    if (route->cc != cc) return false;
    uint32_t state = problem->state_type ? (uint32_t)problem->state_type : (uint32_t)KDA_BF16;
    return route->op == (uint32_t)problem->op && route->gate == (uint32_t)problem->gate &&
           route->tokens_min <= (uint32_t)problem->tokens &&
           route->tokens_max >= (uint32_t)problem->tokens &&
           kda_heads_serve(route->head_set, problem->heads) &&
           (!route->state_type || route->state_type == state) &&
           (!route->mode_set || kda_mode_serves(route->mode_set, problem->mode));
}

// KDA_NONE if no route is for the problem on this CC. A route for any state or mode still has
// bodies of certain ones.
static uint32_t find_routed_body(const kda_bundle *bundle, const kda_device *device,
                                 const kda_problem *problem)
{
    const uint32_t cc = kda_device_cc(device);
    for (uint32_t i = kda_bundle_start(bundle, problem).route; i < bundle->route_count; ++i) {
        const struct kda_format_route *route = &bundle->routes[i];
        if (!route_is_for(route, problem, cc)) continue;
        const struct kda_format_rule *rule = &bundle->rules[route->rule_first];
        while (!rule_holds(rule, problem, device->sm_count)) ++rule;
        const struct kda_format_body *body = &bundle->bodies[rule->body];
        if (kda_body_serves(body, problem)) return rule->body;
    }
    return KDA_NONE;
}

kda_status kda_route_image(const kda_bundle *bundle, const kda_device *device,
                           const kda_problem *problem, uint32_t *out_cubin, kda_error *err)
{
    const char *op = kda_op_name((uint32_t)problem->op);
    kda_status status = check_device(device, op, err);
    if (status) return status;
    uint32_t body = KDA_NONE, forced_target = KDA_NONE;
    if (problem->body) {
        status = find_forced_body(bundle, problem, &body, err);
        if (status) return status;
    }
    if (problem->target) {
        forced_target = kda_bundle_find_target(bundle, problem->target);
        if (forced_target == KDA_NONE) {
            kda_text text = {0};
            for (uint32_t i = 0; i < bundle->target_count; ++i)
                kda_text_add(&text, "%s%s", i ? ", " : "",
                             bundle->strings + bundle->targets[i].name);
            return kda_fail(err, KDA_E_NAME, "%s: unknown target %.100s; the bundle knows %s", op,
                            problem->target, text.data);
        }
    }
    if (body == KDA_NONE) body = find_routed_body(bundle, device, problem);
    if (body != KDA_NONE && problem->value_heads > INT32_MAX / (int64_t)bundle->bodies[body].split)
        return kda_fail(err, KDA_E_LIMIT, "%s: HV*split expected at most %d, found %lld*%u (%s)",
                        op, INT32_MAX, (long long)problem->value_heads, bundle->bodies[body].split,
                        bundle->strings + bundle->bodies[body].name);
    return kda_target_choose(bundle, device, problem, body, forced_target, out_cubin, err);
}

// ------------------------------------------------------------------------------------------ answer

void kda_route_describe(const kda_bundle *bundle, const kda_device *device,
                        const kda_problem *problem, uint32_t index, kda_route_result *out)
{
    const struct kda_format_cubin *cubin = &bundle->cubins[index];
    const struct kda_format_body *body = &bundle->bodies[cubin->body];
    kda_route_result result = {
        .body = bundle->strings + body->name,
        .target = bundle->strings + bundle->targets[cubin->target].name,
        .entry = bundle->strings + body->entry,
        .split = body->split,
        .grid = {(uint32_t)(problem->value_heads * body->split), (uint32_t)problem->rows, 1},
        .block = body->threads,
        .smem = body->smem,
        .registers = cubin->registers,
        .toolkit = bundle->strings + cubin->toolkit,
        .min_cuda = (int)cubin->min_cuda,
        .facts = *device,
    };
    memcpy(result.sha256, cubin->sha256, sizeof result.sha256);
    memcpy(result.body_sha256, body->sha256, sizeof result.body_sha256);
    *out = result;
}

kda_status kda_route(const kda_bundle *bundle, const kda_device *device, const kda_problem *problem,
                     kda_route_result *out, kda_error *err)
{
    if (!bundle || !device || !problem || !out)
        return kda_fail(err, KDA_E_ARGUMENT, "route: %s expected, found NULL",
                        !bundle    ? "bundle"
                        : !device  ? "device"
                        : !problem ? "problem"
                                   : "out");
    uint32_t body = KDA_NONE, cubin = KDA_NONE;
    kda_status status =
        kda_check_reserved("route", "problem.", problem->reserved,
                           sizeof problem->reserved / sizeof *problem->reserved, err);
    if (!status) status = check_device(device, kda_op_name((uint32_t)problem->op), err);
    if (!status) status = kda_route_accept(bundle, problem, &body, err);
    if (!status) status = kda_route_image(bundle, device, problem, &cubin, err);
    if (!status) kda_route_describe(bundle, device, problem, cubin, out);
    return status;
}
