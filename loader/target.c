// SPDX-License-Identifier: Apache-2.0
// Owns the step from a body to an image: the device's preference list, each target judged by its
// floor, by whether the bundle holds the image, and by the image's minimum driver. Refuses to know
// how the body was found. Invariant: nothing outside the list, or beside a forced target, is ever
// tried, and no image leaves here that its target does not allow on the device.
#include "loader/target.h"

#include "loader/error.h"
#include "loader/explain.h"

static bool cc_has_routes(const kda_bundle *bundle, uint32_t cc)
{
    for (uint32_t i = 0; i < bundle->route_count; ++i) {
        if (bundle->routes[i].cc == cc) return true;
    }
    return false;
}

static kda_status refuse_cc(const kda_bundle *bundle, const kda_device *device,
                            const kda_problem *problem, kda_error *err)
{
    kda_text text = {0};
    kda_text_add(&text, "%s: CC %d.%d does not have a route for ",
                 kda_op_name((uint32_t)problem->op), device->cc_major, device->cc_minor);
    kda_explain_problem(&text, problem);
    uint32_t matching = 0;
    for (uint32_t i = 0; i < bundle->body_count; ++i) {
        const struct kda_format_body *body = &bundle->bodies[i];
        if (kda_body_serves(body, problem)) ++matching;
    }
    kda_text_add(&text, ": %u %s", matching, matching == 1 ? "body matches" : "bodies match");
    kda_text_add(&text, cc_has_routes(bundle, kda_device_cc(device))
                            ? ", but the bundle has no row for this call on this CC; it serves CC "
                            : ", all need CC ");
    kda_explain_ccs(&text, bundle);
    kda_text_add(&text, ", device is %d.%d; the bundle holds targets ", device->cc_major,
                 device->cc_minor);
    kda_explain_held(&text, bundle, KDA_NONE);
    kda_text_add(&text, "; facts: ");
    kda_explain_device(&text, device);
    return kda_fail(err, KDA_E_NO_ROUTE, "%s", text.data);
}

// ------------------------------------------------------------------------------------------ target

enum verdict { QUALIFIES, BELOW_FLOOR, NOT_HELD, BELOW_MINIMUM };

struct candidate {
    uint32_t target, cubin;
    enum verdict verdict;
};

static struct candidate judge(const kda_bundle *bundle, const kda_device *device, uint32_t body,
                              uint32_t target)
{
    struct candidate out = {target, kda_bundle_find_cubin(bundle, body, target), QUALIFIES};
    uint32_t cuda = (uint32_t)device->cuda_version;
    if (cuda < bundle->targets[target].floor)
        out.verdict = BELOW_FLOOR;
    else if (out.cubin == KDA_NONE)
        out.verdict = NOT_HELD;
    else if (cuda < bundle->cubins[out.cubin].min_cuda)
        out.verdict = BELOW_MINIMUM;
    return out;
}

// The first part of a refusal: what the deciding target lacks.
static void explain_decision(kda_text *text, const kda_bundle *bundle, const kda_device *device,
                             uint32_t body, const struct candidate *decides, uint32_t lowest_floor)
{
    const char *body_name = bundle->strings + bundle->bodies[body].name;
    const char *target_name = bundle->strings + bundle->targets[decides->target].name;
    switch (decides->verdict) {
    case NOT_HELD:
        kda_text_add(text,
                     "the bundle has no image of %s for %s on CC %d.%d; it holds this body for ",
                     body_name, target_name, device->cc_major, device->cc_minor);
        kda_explain_held(text, bundle, body);
        break;
    case BELOW_MINIMUM: {
        const struct kda_format_cubin *cubin = &bundle->cubins[decides->cubin];
        kda_text_add(text,
                     "the image of %s for %s was built by toolkit %s and requires a driver of CUDA "
                     "%d.%d or newer, found %d.%d",
                     body_name, target_name, bundle->strings + cubin->toolkit,
                     KDA_CUDA_ARGS(cubin->min_cuda), KDA_CUDA_ARGS(device->cuda_version));
        break;
    }
    case BELOW_FLOOR:
    case QUALIFIES:
        kda_text_add(text, "%s on CC %d.%d requires CUDA %d.%d or newer, found %d.%d", body_name,
                     device->cc_major, device->cc_minor, KDA_CUDA_ARGS(lowest_floor),
                     KDA_CUDA_ARGS(device->cuda_version));
        break;
    }
}

static kda_status refuse_targets(const kda_bundle *bundle, const kda_device *device,
                                 const kda_problem *problem, uint32_t body, const uint32_t *targets,
                                 uint32_t count, kda_error *err)
{
    struct candidate decides = judge(bundle, device, body, targets[0]);
    uint32_t lowest_floor = UINT32_MAX;
    for (uint32_t i = 0; i < count; ++i) {
        struct candidate tried = judge(bundle, device, body, targets[i]);
        if (decides.verdict == BELOW_FLOOR) decides = tried;
        uint32_t floor = bundle->targets[targets[i]].floor;
        if (floor < lowest_floor) lowest_floor = floor;
    }
    kda_text text = {0};
    kda_text_add(&text, "%s: ", kda_op_name((uint32_t)problem->op));
    explain_decision(&text, bundle, device, body, &decides, lowest_floor);
    const char *separator = "; tried ";
    for (uint32_t i = 0; i < count; ++i) {
        struct candidate tried = judge(bundle, device, body, targets[i]);
        kda_text_add(&text, "%s%s (", separator,
                     bundle->strings + bundle->targets[targets[i]].name);
        if (tried.verdict == BELOW_FLOOR)
            kda_text_add(&text, "floor CUDA %d.%d",
                         KDA_CUDA_ARGS(bundle->targets[targets[i]].floor));
        else if (tried.verdict == NOT_HELD)
            kda_text_add(&text, "not in the bundle");
        else
            kda_text_add(&text, "minimum driver CUDA %d.%d",
                         KDA_CUDA_ARGS(bundle->cubins[tried.cubin].min_cuda));
        kda_text_add(&text, ")");
        separator = ", ";
    }
    kda_text_add(&text, "; facts: ");
    kda_explain_device(&text, device);
    return kda_fail(err, decides.verdict == NOT_HELD ? KDA_E_NO_ROUTE : KDA_E_CUDA_VERSION, "%s",
                    text.data);
}

static const struct kda_format_preference *find_preference(const kda_bundle *bundle, uint32_t cc,
                                                           uint32_t body)
{
    for (uint32_t i = 0; i < bundle->preference_count; ++i) {
        const struct kda_format_preference *preference = &bundle->preferences[i];
        if (preference->cc == cc && preference->op == bundle->bodies[body].op &&
            (preference->body == body || preference->body == KDA_NONE))
            return preference;
    }
    return NULL;
}

static kda_status refuse_forced_target(const kda_bundle *bundle, const kda_device *device,
                                       const kda_problem *problem, uint32_t body, uint32_t target,
                                       kda_error *err)
{
    const struct kda_format_target *record = &bundle->targets[target];
    kda_text text = {0};
    kda_text_add(&text, "%s: target %s runs on CC ", kda_op_name((uint32_t)problem->op),
                 bundle->strings + record->name);
    for (uint32_t i = 0; i < record->cc_count; ++i)
        kda_text_add(&text, "%s%u.%u", i ? ", " : "", record->ccs[i] / 10, record->ccs[i] % 10);
    kda_text_add(&text, " only, device is %d.%d; the bundle serves CC ", device->cc_major,
                 device->cc_minor);
    kda_explain_ccs(&text, bundle);
    kda_text_add(&text, " and holds %s for ", bundle->strings + bundle->bodies[body].name);
    kda_explain_held(&text, bundle, body);
    kda_text_add(&text, "; facts: ");
    kda_explain_device(&text, device);
    return kda_fail(err, KDA_E_NO_ROUTE, "%s", text.data);
}

kda_status kda_target_choose(const kda_bundle *bundle, const kda_device *device,
                             const kda_problem *problem, uint32_t body, uint32_t forced_target,
                             uint32_t *out_cubin, kda_error *err)
{
    uint32_t cc = kda_device_cc(device), count = 1;
    const uint32_t *targets = &forced_target;
    if (body == KDA_NONE || !cc_has_routes(bundle, cc))
        return refuse_cc(bundle, device, problem, err);
    if (forced_target == KDA_NONE) {
        const struct kda_format_preference *preference = find_preference(bundle, cc, body);
        if (!preference) return refuse_cc(bundle, device, problem, err);
        targets = preference->targets;
        count = preference->target_count;
    } else if (!kda_target_runs_on(&bundle->targets[forced_target], cc)) {
        return refuse_forced_target(bundle, device, problem, body, forced_target, err);
    }
    for (uint32_t i = 0; i < count; ++i) {
        struct candidate candidate = judge(bundle, device, body, targets[i]);
        if (candidate.verdict != QUALIFIES) continue;
        *out_cubin = candidate.cubin;
        return KDA_OK;
    }
    return refuse_targets(bundle, device, problem, body, targets, count, err);
}
