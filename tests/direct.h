// SPDX-License-Identifier: Apache-2.0
// Launches an image by the driver API alone, with its parameter struct, for device data that the
// public call refuses: a kernel of one token takes cu_seqlens, a call does not.
#ifndef KDA_TESTS_DIRECT_H
#define KDA_TESTS_DIRECT_H

#include "tests/trial.h"

// Launches `image` on the uploaded trial and waits.
void direct_launch(const struct trial *trial, const struct suite_image *image);

#endif
