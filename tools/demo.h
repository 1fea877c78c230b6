// SPDX-License-Identifier: Apache-2.0
// The demonstrations of kda-demo, one per way of calling the library, and the frame that they
// share: device, bundle and context, tensors that live on both sides, options and reports.
#ifndef KDA_TOOLS_DEMO_H
#define KDA_TOOLS_DEMO_H

#include "tools/machine.h"
#include "tools/oracle.h"

// Each takes its own options, argv[0] being the operator, and returns the exit status.
int demo_decode(kda_op op, int argc, char **argv);  // recurrent or packed
int demo_verify(int argc, char **argv);             // verify and commit

// ------------------------------------------------------------------------------------------- frame

// Exit the process where there is no memory, or with the library's message.
void *demo_zeroed(size_t size);
_Noreturn void demo_die(const kda_error *err);

struct demo_option {
    const char *name;  // "--steps"
    int64_t *value;    // 1 .. 65535
};
// Reads options, which end with a nameless one, and --bundle. -1 to go on, else the exit status.
int demo_options(int argc, char **argv, const char *usage, const struct demo_option *options,
                 const char **out_bundle);

struct demo_world {
    struct machine machine;
    const char *path;  // of the bundle; NULL: built in
    kda_bundle *bundle;
    kda_context *context;
    CUstream stream;
};
void demo_open(const char *bundle, struct demo_world *out);
void demo_close(struct demo_world *world);

// Device and bundle; the route of a problem, which must have one.
void demo_report_world(const struct demo_world *world);
void demo_report_route(const struct demo_world *world, const kda_problem *problem);
// N1 and N2 of a pair of tensors.
void demo_report_errors(const struct oracle_error *out, const char *second,
                        const struct oracle_error *second_error);
// Microseconds per replay of what was captured on the world's stream.
void demo_report_time(const struct demo_world *world, const char *what);

// ----------------------------------------------------------------------------------------- tensors

struct demo_tensor {  // one buffer, the same bytes on host and device
    void *host;
    CUdeviceptr device;
    size_t size;
};
struct demo_tensor demo_make(const struct demo_world *world, int64_t elements, size_t width);
void demo_put(const struct demo_world *world, const struct demo_tensor *tensor);
void demo_get(const struct demo_world *world, const struct demo_tensor *tensor);
void demo_drop(const struct demo_world *world, struct demo_tensor *tensor);
// Of rank `rank`, compact.
kda_tensor demo_view(const struct demo_tensor *tensor, kda_dtype dtype, uint32_t rank, int64_t a,
                     int64_t b, int64_t c, int64_t d);

// `count` normal numbers of this size, from `to` on, which a call for the oracle holds as constant.
void demo_normals(struct oracle_rng *rng, const uint16_t *to, int64_t count, double size);
// The norms of the worse step, the worst element of both.
void demo_keep_worst(struct oracle_error *worst, const struct oracle_error *step);

#endif
