// SPDX-License-Identifier: Apache-2.0
// What the contract suites share: one device, one bundle, one context, and the bodies that the
// bundle holds for it. The same programs run on the soft device, at the smallest shapes that show a
// property, and on a GPU, at the shapes of the checklist. Which bodies exist is read from the
// bundle, so a suite grows with the schedules.
//
//   PROGRAM [BUNDLE] [--cc N] [--only PATTERN] [--record FILE]
//   BUNDLE          default: the environment's KDA_TEST_BUNDLE
//   --cc N          what a soft device poses as, 10*major + minor; default: the first device that
//   the bundle serves
//   --only PATTERN  run the tests whose names match, * and ? allowed; nothing is recorded then
//   --record FILE   note the outcome in FILE, see tests/lock.h
// Exit status: 0 passed, 77 no device that the bundle serves, anything else failed.
#ifndef KDA_TESTS_SUITE_H
#define KDA_TESTS_SUITE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "loader/bundle.h"
#include "tools/machine.h"

struct suite {
    struct machine machine;
    kda_bundle *bundle;
    kda_context *context;
    kda_device device;
    const char *bundle_path, *record, *only;
    bool used[256];  // images that were launched, by index
    long calls;      // planned or made through trials
};
extern struct suite suite;

enum { SUITE_GO = -1 };
int suite_open(int argc, char **argv);  // SUITE_GO, or the exit status
int suite_close(int failed);            // records, closes; the exit status

// The number for a soft device or for a GPU.
int64_t suite_size(int64_t soft, int64_t gpu);

// Bodies that share tokens, gate and operator must agree bit for bit.
struct suite_family {
    kda_op op;
    kda_gate gate;
    int32_t tokens;
    const struct kda_format_body *body;  // one of them; limits and flags speak for all
};
enum { SUITE_FAMILIES = 16 };
int suite_families(kda_op op, struct suite_family out[SUITE_FAMILIES]);
bool suite_family(kda_op op, kda_gate gate, int32_t tokens, struct suite_family *out);

// The images of the bundle that this device can run, of one family, or of one body if `body` is not
// NULL.
struct suite_image {
    const char *body, *target;
    const struct kda_format_body *record;
};
enum { SUITE_IMAGES = 32 };
int suite_images(const struct suite_family *family, const char *body,
                 struct suite_image out[SUITE_IMAGES]);
void suite_note(const char *body, const char *target);  // it was launched

// Skips the running test and says why.
void suite_skip(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif
