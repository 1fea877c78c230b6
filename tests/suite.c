// SPDX-License-Identifier: Apache-2.0
// Owns the one `suite` of a test program. It decides whether there is anything to run on, never
// whether a result is right.
#include "tests/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lock.h"

struct suite suite;

static int usage(const char *program)
{
    fprintf(stderr, "usage: %s [BUNDLE] [--cc N] [--only PATTERN] [--record FILE]\n", program);
    return 2;
}

static bool served(const kda_bundle *bundle, uint32_t cc)
{
    for (uint32_t i = 0; i < bundle->route_count; i++)
        if (bundle->routes[i].cc == cc) return true;
    return false;
}

static int sm_count_of(int cc) { return cc == 103 ? 152 : cc == 90 ? 132 : 148; }

int suite_open(int argc, char **argv)
{
    int cc = 0;
    suite.bundle_path = getenv("KDA_TEST_BUNDLE");
    for (int i = 1; i < argc; i++) {
        bool option = argv[i][0] == '-';
        if (option && i + 1 == argc) return usage(argv[0]);
        if (!option)
            suite.bundle_path = argv[i];
        else if (!strcmp(argv[i], "--cc"))
            cc = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--only"))
            suite.only = argv[++i];
        else if (!strcmp(argv[i], "--record"))
            suite.record = argv[++i];
        else
            return usage(argv[0]);
    }
    if (!suite.bundle_path) return usage(argv[0]);
    kda_error err;
    if (kda_bundle_open_file(suite.bundle_path, &suite.bundle, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    if (!cc) cc = (int)suite.bundle->routes[0].cc;
    const char *reason = machine_open(&suite.machine, cc, sm_count_of(cc));
    if (reason) {
        printf("skipped: %s\n", reason);
        return 77;
    }
    int found = 10 * suite.machine.cc_major + suite.machine.cc_minor;
    if (!served(suite.bundle, (uint32_t)found)) {
        printf("skipped: %s is CC %d.%d, for which the bundle has no routes\n", suite.machine.name,
               suite.machine.cc_major, suite.machine.cc_minor);
        return 77;
    }
    if (kda_context_create(suite.bundle, suite.machine.context, NULL, &suite.context, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    suite.device = kda_context_device(suite.context);
    printf("device: %s, CC %d.%d, %d SMs, CUDA %d.%d%s\n", suite.machine.name,
           suite.device.cc_major, suite.device.cc_minor, suite.device.sm_count,
           suite.device.cuda_version / 1000, suite.device.cuda_version % 1000 / 10,
           suite.machine.soft ? " (soft device)" : "");
    fflush(stdout);
    if (suite.only) cmocka_set_test_filter(suite.only);
    return SUITE_GO;
}

static bool record(bool passed)
{
    struct lock lock;
    if (!lock_read(suite.record, &lock)) return false;
    for (uint32_t i = 0; i < suite.bundle->cubin_count; i++) {
        if (!suite.used[i]) continue;
        const struct kda_format_cubin *cubin = &suite.bundle->cubins[i];
        const struct kda_format_body *body = &suite.bundle->bodies[cubin->body];
        struct lock_line line = {.result = passed ? LOCK_PASS : LOCK_FAIL};
        lock_hex(body->sha256, line.sha256);
        snprintf(line.body, sizeof line.body, "%s", suite.bundle->strings + body->name);
        snprintf(line.target, sizeof line.target, "%s",
                 suite.bundle->strings + suite.bundle->targets[cubin->target].name);
        snprintf(line.text, sizeof line.text, "%s, CC %d.%d, driver CUDA %d.%d", suite.machine.name,
                 suite.device.cc_major, suite.device.cc_minor, suite.device.cuda_version / 1000,
                 suite.device.cuda_version % 1000 / 10);
        if (!lock_put(&lock, &line)) return false;
    }
    return lock_write(suite.record, &lock);
}

int suite_close(int failed)
{
    int status = failed ? 1 : 0;
    if (suite.only && suite.calls == 0) {
        fprintf(stderr, "no call was made: no test is called %s\n", suite.only);
        status = 1;
    }
    if (suite.record && suite.machine.soft) {
        fprintf(stderr, "not recorded: a soft device proves nothing about hardware\n");
        status = 1;
    } else if (suite.record && suite.only) {
        fprintf(stderr, "not recorded: only a part of the suite ran\n");
        status = 1;
    } else if (suite.record && !record(!failed)) {
        fprintf(stderr, "%s cannot be read or written\n", suite.record);
        status = 1;
    }
    kda_context_close(&suite.context);
    kda_bundle_close(&suite.bundle);
    machine_close(&suite.machine);
    return status;
}

int64_t suite_size(int64_t soft, int64_t gpu) { return suite.machine.soft ? soft : gpu; }

static bool member(const struct kda_format_body *body, const struct suite_family *family)
{
    return body->op == (uint32_t)family->op && body->gate == (uint32_t)family->gate &&
           (uint32_t)family->tokens >= body->tokens_min &&
           (uint32_t)family->tokens <= body->tokens_max;
}

bool suite_family(kda_op op, kda_gate gate, int32_t tokens, struct suite_family *out)
{
    struct suite_family family = {.op = op, .gate = gate, .tokens = tokens};
    for (uint32_t i = 0; i < suite.bundle->body_count && !family.body; i++)
        if (member(&suite.bundle->bodies[i], &family)) family.body = &suite.bundle->bodies[i];
    if (!family.body) return false;
    *out = family;
    return true;
}

int suite_families(kda_op op, struct suite_family out[SUITE_FAMILIES])
{
    int count = 0;
    for (int32_t tokens = 1; tokens <= 16; tokens++)
        for (int gate = KDA_GATE_PRECOMPUTED; gate <= KDA_GATE_SOFTPLUS; gate++)
            if (count < SUITE_FAMILIES && suite_family(op, (kda_gate)gate, tokens, &out[count]))
                count++;
    return count;
}

static bool runs_here(const struct kda_format_cubin *cubin)
{
    const struct kda_format_target *target = &suite.bundle->targets[cubin->target];
    bool cc = false;
    for (uint32_t i = 0; i < target->cc_count; i++)
        cc |= (int)target->ccs[i] == 10 * suite.device.cc_major + suite.device.cc_minor;
    return cc && suite.device.cuda_version >= (int)target->floor &&
           suite.device.cuda_version >= (int)cubin->min_cuda;
}

int suite_images(const struct suite_family *family, const char *body,
                 struct suite_image out[SUITE_IMAGES])
{
    int count = 0;
    for (uint32_t i = 0; i < suite.bundle->cubin_count && count < SUITE_IMAGES; i++) {
        const struct kda_format_cubin *cubin = &suite.bundle->cubins[i];
        const struct kda_format_body *record = &suite.bundle->bodies[cubin->body];
        const char *name = suite.bundle->strings + record->name;
        if (!runs_here(cubin) || !member(record, family) || (body && strcmp(body, name) != 0))
            continue;
        const char *target = suite.bundle->strings + suite.bundle->targets[cubin->target].name;
        out[count++] = (struct suite_image){.body = name, .target = target, .record = record};
    }
    return count;
}

void suite_note(const char *body, const char *target)
{
    uint32_t cubin = kda_bundle_find_cubin(suite.bundle, kda_bundle_find_body(suite.bundle, body),
                                           kda_bundle_find_target(suite.bundle, target));
    if (cubin < sizeof suite.used) suite.used[cubin] = true;
}

void suite_skip(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("skipped: ");
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
    skip();
    abort();  // not reached: skip() leaves the test
}
