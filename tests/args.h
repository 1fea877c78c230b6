// SPDX-License-Identifier: Apache-2.0
// What the tests of the host contract share: changes of a valid call, and what must come of a
// refused and of a launched one.
#ifndef KDA_TESTS_ARGS_H
#define KDA_TESTS_ARGS_H

#include <string.h>

#include "tests/rig.h"

static kda_context *context;

static inline struct rig_shape shape_of(kda_gate gate, int tokens, bool packed, int64_t rows,
                                        int64_t heads, int64_t value_heads)
{
    return (struct rig_shape){gate, tokens, packed, rows, heads, value_heads, rows * tokens};
}

static inline void move(kda_tensor *tensor, uint64_t bytes)
{
    tensor->data = (char *)tensor->data + bytes;
}

// `tensor` begins where `other` ends, or one element before that.
static inline void touch(kda_tensor *tensor, const kda_tensor *other)
{
    tensor->data = other->data;
    move(tensor, rig_bytes(other));
}
static inline void collide(kda_tensor *tensor, const kda_tensor *other)
{
    tensor->data = other->data;
    move(tensor, (rig_bytes(other) - 1) / 16 * 16);
}

// From `dim` on, the strides of dimensions of extent 1.
static inline void loosen(kda_tensor *tensor, uint32_t dim, int64_t stride)
{
    for (; dim < tensor->rank; dim++) {
        if (tensor->extent[dim] == 1) tensor->stride[dim] = stride;
    }
}

static inline void omit(kda_tensor *tensor) { *tensor = (kda_tensor){0}; }

static const kda_plan untouched = {.opaque = {0x5a5a, 1, 2, 3}};

static inline void check_refusal(kda_status status, const kda_error *err, kda_status wanted,
                                 const char *words, const char *operation, const kda_plan *plan,
                                 soft_counters before)
{
    rig_refused(status, err, wanted, words);
    assert_memory_equal(err->text, operation, strlen(operation));
    assert_memory_equal(plan, &untouched, sizeof(untouched));
    assert_int_equal(rig.soft_count().calls, before.calls);
}

static int setup(void **state)
{
    (void)state;
    rig_start(10, 0);
    context = rig_context();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kda_context_close(&context);
    return rig.soft_count().live_modules != 0;
}

#endif
