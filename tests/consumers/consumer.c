// SPDX-License-Identifier: Apache-2.0
// A program of a user: opens the bundle in the library and, if one is named, a second one from a
// file; proves both; asks for a route. Compiled against an installed tree, as C11 and as C++17,
// once per variant of consumers.sh. Uses installed headers only.
//   consumer [BUNDLE]
#include <kda.h>

#include <stdio.h>
#include <string.h>

#ifdef CONSUMER_BLOB
#include <kda_blob.h>
#endif
#ifdef CONSUMER_ZSTD
#include <zstd.h>
#endif

static int fail(const char *what, const kda_error *err)
{
    fprintf(stderr, "%s: %s: %s\n", what, kda_status_name(err->status), err->text);
    return 1;
}

static int check(kda_bundle *bundle, kda_error *err)
{
    if (kda_bundle_verify(bundle, err)) return fail("verify", err);
    static const int ccs[][2] = {{10, 3}, {9, 0}};
    kda_problem problem;
    memset(&problem, 0, sizeof problem);
    problem.op = KDA_OP_PACKED;
    problem.gate = KDA_GATE_LOWER_BOUND;
    problem.tokens = 1;
    problem.rows = 8;
    problem.heads = problem.value_heads = 12;
    for (size_t i = 0; i < sizeof ccs / sizeof *ccs; i++) {
        kda_device device;
        memset(&device, 0, sizeof device);
        device.cc_major = ccs[i][0];
        device.cc_minor = ccs[i][1];
        device.cuda_version = 13000;
        device.sm_count = 132;
        kda_route_result route;
        if (kda_route(bundle, &device, &problem, &route, err)) continue;
        printf("%s.%s\n", route.body, route.target);
        return 0;
    }
    return fail("route", err);
}

#ifdef CONSUMER_PLUGIN
#ifdef __cplusplus
extern "C"
#endif
    __attribute__((visibility("default"))) int
    consumer(int argc, char **argv);
int consumer(int argc, char **argv)
#else
int main(int argc, char **argv)
#endif
{
    kda_error err;
    kda_bundle *bundle = NULL, *second = NULL;
    uint8_t ids[2][32];
    if (kda_bundle_open_builtin(&bundle, &err)) return fail("builtin", &err);
    if (check(bundle, &err)) return 1;
    kda_bundle_id(bundle, ids[0]);
    if (argc > 1) {
        if (kda_bundle_open_file(argv[1], &second, &err)) return fail(argv[1], &err);
        if (check(second, &err)) return 1;
        kda_bundle_id(second, ids[1]);
        printf("%s\n", memcmp(ids[0], ids[1], 32) ? "two bundles" : "the same bundle twice");
        kda_bundle_close(&second);
    }
#ifdef CONSUMER_BLOB
    if (kda_bundle_open(kda_blob_begin, KDA_BLOB_SIZE, &second, &err)) return fail("blob", &err);
    if (check(second, &err)) return 1;
    kda_bundle_id(second, ids[1]);
    printf("%s\n", memcmp(ids[0], ids[1], 32) ? "another blob" : "the same blob");
    kda_bundle_close(&second);
#endif
#ifdef CONSUMER_ZSTD
    printf("zstd %s\n", ZSTD_versionString());
#endif
    kda_bundle_close(&bundle);
    return 0;
}
