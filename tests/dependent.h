// SPDX-License-Identifier: Apache-2.0
// Programmatic dependent launch: what a kernel does before it may rely on anything must change no
// bit and touch nothing of a null row.
#ifndef KDA_TESTS_DEPENDENT_H
#define KDA_TESTS_DEPENDENT_H

#include "tests/trial.h"

// Several launches of an image in a row, which go on from one another's states: of `plain` each
// when the one before is complete, of `dependent`, the same trial, as dependent launches. Fails the
// test if their bits differ. On the soft device indices, bounds and counts are mostly not yet what
// they will be when such a launch first looks.
void dependent_expect(struct trial *plain, struct trial *dependent,
                      const struct suite_image *image);

// The slots of a dependent launch are what the kernel right before it writes, a null row's zeros,
// over others that are live too.
void dependent_expect_late_slots(const struct suite_family *family, const struct suite_image *image,
                                 int64_t heads, int64_t value_heads);

// On the soft device: how many prefetches a dependent launch makes that sees all words as they are.
long dependent_prefetches(struct trial *trial, const struct suite_image *image);

#endif
