// SPDX-License-Identifier: Apache-2.0
// Owns how routing facts and bundle contents are put into words. Decides nothing: route.c does.
// Every list is made from the bundle's records, so that the words are true of the bundle at hand.
#include "loader/explain.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "loader/route.h"

void kda_text_add(kda_text *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text->data + text->used, sizeof text->data - text->used, format, args);
    va_end(args);
    if (length < 0) return;
    size_t room = sizeof text->data - 1 - text->used;
    text->used += (size_t)length < room ? (size_t)length : room;
}

void kda_explain_device(kda_text *text, const kda_device *device)
{
    const char *origin[] = {"reported", "overridden"};
    kda_text_add(text, "CC %d.%d (%s), CUDA %d.%d (%s), %d SMs (%s)", device->cc_major,
                 device->cc_minor, origin[!!(device->overridden & KDA_OVERRIDDEN_CC)],
                 KDA_CUDA_ARGS(device->cuda_version),
                 origin[!!(device->overridden & KDA_OVERRIDDEN_CUDA)], device->sm_count,
                 origin[!!(device->overridden & KDA_OVERRIDDEN_SMS)]);
}

void kda_device_text(const kda_device *device, char *out, size_t size)
{
    kda_text text = {0};
    kda_explain_device(&text, device);
    (void)snprintf(out, size, "%s", text.data);  // cut if it does not fit
}

static const char *state_name(uint32_t type)
{
    switch (type) {
    case 0:
    case KDA_BF16:
        return "bf16";
    case KDA_F32:
        return "f32";
    default:
        return "?";
    }
}

// A name, or where there is none the number after `unknown`.
static void explain_name(kda_text *text, const char *name, const char *unknown, uint32_t number)
{
    if (*name == '?')
        kda_text_add(text, "%s%d", unknown, (int)number);
    else
        kda_text_add(text, "%s", name);
}

void kda_explain_problem(kda_text *text, const kda_problem *problem)
{
    const uint32_t op = (uint32_t)problem->op, gate = (uint32_t)problem->gate,
                   state = (uint32_t)problem->state_type, mode = (uint32_t)problem->mode;
    if (*kda_op_name(op) == '?') kda_text_add(text, "op %d, ", (int)op);
    kda_text_add(text, "T=%d with gate ", problem->tokens);
    explain_name(text, kda_gate_name(gate), "", gate);
    kda_text_add(text, ", H=%lld, HV=%lld, N=%lld, state ", (long long)problem->heads,
                 (long long)problem->value_heads, (long long)problem->rows);
    explain_name(text, state_name(state), "of type ", state);
    if (!mode) return;
    kda_text_add(text, ", mode ");
    explain_name(text, kda_mode_name(mode), "", mode);
}

static bool accepts_the_same(const struct kda_format_body *a, const struct kda_format_body *b)
{
    return a->op == b->op && a->gate == b->gate && a->tokens_min == b->tokens_min &&
           a->tokens_max == b->tokens_max && a->head_set == b->head_set &&
           a->row_set == b->row_set && a->state_type == b->state_type &&
           a->mode_set == b->mode_set &&
           (a->flags & KDA_BODY_EQUAL_HEADS) == (b->flags & KDA_BODY_EQUAL_HEADS);
}

void kda_explain_set(kda_text *text, uint32_t set, uint32_t step)
{
    const char *separator = set & (set - 1) ? "{" : "";
    for (uint32_t i = 0; i < 32; ++i) {
        if (!(set >> i & 1)) continue;
        kda_text_add(text, "%s%u", separator, step * i);
        separator = ",";
    }
    if (set & (set - 1)) kda_text_add(text, "}");
}

void kda_explain_modes(kda_text *text, uint32_t set)
{
    const char *separator = "";
    for (uint32_t mode = 0; mode < 32; ++mode) {
        if (!(set >> mode & 1)) continue;
        kda_text_add(text, "%s%s", separator, kda_mode_name(mode));
        separator = ", ";
    }
}

static void explain_limits(kda_text *text, const struct kda_format_body *body)
{
    kda_text_add(text, "T=%u", body->tokens_min);
    if (body->tokens_max != body->tokens_min) kda_text_add(text, "..%u", body->tokens_max);
    kda_text_add(text, " %s", kda_gate_name(body->gate));
    const char *with = " with ";
    if (body->head_set) {
        kda_text_add(text, "%sH=", with);
        kda_explain_set(text, body->head_set, 4);
        with = ", ";
    }
    if (body->flags & KDA_BODY_EQUAL_HEADS) {
        kda_text_add(text, "%sHV=H", with);
        with = ", ";
    }
    if (body->row_set) {
        kda_text_add(text, "%sN in ", with);
        kda_explain_set(text, body->row_set, 1);
        with = ", ";
    }
    if (body->state_type != KDA_BF16)
        kda_text_add(text, "%sstate %s", with, state_name(body->state_type));
    if (body->mode_set) {
        kda_text_add(text, ", mode ");
        kda_explain_modes(text, body->mode_set);
    }
}

void kda_explain_supported(kda_text *text, const kda_bundle *bundle, uint32_t op)
{
    const char *separator = "";
    for (uint32_t i = 0; i < bundle->body_count; ++i) {
        const struct kda_format_body *body = &bundle->bodies[i];
        bool said = body->op != op;
        for (uint32_t j = 0; j < i && !said; ++j) said = accepts_the_same(body, &bundle->bodies[j]);
        if (said) continue;
        kda_text_add(text, "%s", separator);
        explain_limits(text, body);
        separator = "; ";
    }
#define NUMBERED(ID, NUMBER, TEXT) " " TEXT " (" #NUMBER ")"
    if (!*separator)
        kda_text_add(text, "no body of this operator in this bundle, operators are%s",
                     KDA_OPS(NUMBERED));
#undef NUMBERED
}

void kda_explain_held(kda_text *text, const kda_bundle *bundle, uint32_t body)
{
    const char *separator = "";
    for (uint32_t target = 0; target < bundle->target_count; ++target) {
        bool held = false;
        for (uint32_t i = 0; i < bundle->cubin_count && !held; ++i) {
            const struct kda_format_cubin *cubin = &bundle->cubins[i];
            held = cubin->target == target && (body == KDA_NONE || cubin->body == body);
        }
        if (!held) continue;
        kda_text_add(text, "%s%s", separator, bundle->strings + bundle->targets[target].name);
        separator = ", ";
    }
    if (!*separator) kda_text_add(text, "none");
}

void kda_explain_ccs(kda_text *text, const kda_bundle *bundle)
{
    const char *separator = "";
    for (uint32_t i = 0; i < bundle->route_count; ++i) {
        uint32_t cc = bundle->routes[i].cc;
        bool said = false;
        for (uint32_t j = 0; j < i && !said; ++j) said = bundle->routes[j].cc == cc;
        if (said) continue;
        kda_text_add(text, "%s%u.%u", separator, cc / 10, cc % 10);
        separator = ", ";
    }
    if (!*separator) kda_text_add(text, "none");
}
