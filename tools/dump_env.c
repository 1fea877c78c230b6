// SPDX-License-Identifier: Apache-2.0
// kda-dump env: what this machine has and what the bundle would run on it. Owns the listing of
// devices, which the library has no need for; everything else it asks the library. Creates no
// context and loads nothing.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "loader/driver.h"
#include "loader/explain.h"
#include "tools/dump.h"

struct listing {
    int (*count)(int *out_count);
    int (*get)(CUdevice *out_device, int ordinal);
    int (*name)(char *out_name, int size, CUdevice device);
};

// The library has the driver open already, so this finds the same one.
static bool find_listing(struct listing *out)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *symbol = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    if (!symbol) return false;
    kda_cu_get_proc_address *find = NULL;
    memcpy(&find, &symbol, sizeof find);
    const struct {
        const char *name;
        void *where;
    } wanted[] = {{"cuDeviceGetCount", &out->count},
                  {"cuDeviceGet", &out->get},
                  {"cuDeviceGetName", &out->name}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; ++i) {
        void *found = NULL;
        if (find(wanted[i].name, &found, 2000, 0, NULL) || !found) return false;
        memcpy(wanted[i].where, &found, sizeof found);
    }
    return true;
}

// One line per kind of call that the bundle has, at a few sizes.
static int print_device_routes(const kda_bundle *bundle, const kda_device *device)
{
    static const int64_t sizes[] = {1, 8, 64};
    int served = 0;
    kda_error err = {0};
    for (uint32_t i = 0; i < bundle->body_count; ++i) {
        const struct kda_format_body *body = &bundle->bodies[i];
        bool said = false;
        for (uint32_t j = 0; j < i && !said; ++j)
            said = bundle->bodies[j].op == body->op && bundle->bodies[j].gate == body->gate &&
                   bundle->bodies[j].tokens_min == body->tokens_min;
        if (said) continue;
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; ++k) {
            int64_t heads = kda_heads_least(body->head_set, 32);
            kda_problem problem = {
                .op = (kda_op)body->op,
                .gate = (kda_gate)body->gate,
                .tokens = (int32_t)body->tokens_min,
                .rows = sizes[k],
                .heads = heads,
                .value_heads = heads,
                .state_type = (kda_dtype)body->state_type,
                .mode = body->mode_set ? __builtin_ctz(body->mode_set) : 0,
            };
            kda_route_result route;
            kda_status status = kda_route(bundle, device, &problem, &route, &err);
            if (status == KDA_E_UNSUPPORTED) continue;  // this size is not in the body's row set
            if (status) {
                printf("    %s T=%u %s: %s\n", kda_op_name(body->op), body->tokens_min,
                       kda_gate_name(body->gate), err.text);
                break;
            }
            printf("    %s T=%u %-11s N=%-2lld H=HV=%-2lld  %s.%s\n", kda_op_name(body->op),
                   body->tokens_min, kda_gate_name(body->gate), (long long)sizes[k],
                   (long long)heads, route.body, route.target);
            ++served;
        }
    }
    return served;
}

static int print_devices(const kda_bundle *bundle, const struct kda_driver *driver, int version)
{
    struct listing listing;
    int count = 0;
    if (!find_listing(&listing) || listing.count(&count)) {
        printf("devices  cannot be listed by this driver\n");
        return DUMP_FINDING;
    }
    printf("devices  %d\n", count);
    int served = 0;
    for (int i = 0; i < count; ++i) {
        CUdevice handle = 0;
        char name[128] = "";
        kda_device device = {.cuda_version = version};
        if (listing.get(&handle, i) || listing.name(name, (int)sizeof name, handle) ||
            driver->cuDeviceGetAttribute(&device.cc_major, KDA_CU_CC_MAJOR, handle) ||
            driver->cuDeviceGetAttribute(&device.cc_minor, KDA_CU_CC_MINOR, handle) ||
            driver->cuDeviceGetAttribute(&device.sm_count, KDA_CU_SM_COUNT, handle)) {
            printf("\ndevice %d: the driver refuses to describe it\n", i);
            continue;
        }
        kda_text facts = {0};
        kda_explain_device(&facts, &device);
        printf("\ndevice %d: %s: %s\n", i, name, facts.data);
        served += print_device_routes(bundle, &device);
    }
    return served ? DUMP_OK : DUMP_FINDING;
}

int dump_env(const kda_bundle *bundle, int argc, char **argv)
{
    int done = dump_no_options(argc, argv, 0,
                               "usage: kda-dump BUNDLE env\n\n"
                               "Prints the CUDA driver and the devices of this machine, and which "
                               "images the bundle would run\n"
                               "on each of them. Creates no CUDA context. Exit status 1 if there "
                               "is no device that it serves.\n");
    if (done >= 0) return done;
    const struct kda_driver *driver = NULL;
    kda_error err;
    if (kda_driver_open(&driver, &err)) {
        printf("driver   none: %s\n", err.text);
        return DUMP_FINDING;
    }
    int version = 0, result = driver->cuInit(0);
    if (!result) result = driver->cuDriverGetVersion(&version);
    if (result) {
        (void)kda_driver_fail(driver, result, "env", "cuInit", &err, "%s", "");
        printf("driver   %s\n", err.text);
        return DUMP_FINDING;
    }
    printf("driver   CUDA %d.%d\n", KDA_CUDA_ARGS(version));
    return print_devices(bundle, driver, version);
}
