// SPDX-License-Identifier: Apache-2.0
// The smallest bundle that has everything twice: two bodies, two images in two frames of equal
// size, two routes. Small enough that every byte, every length and millions of mutants can be
// tried. No device could run its images.
#ifndef KDA_TESTS_PAIR_H
#define KDA_TESTS_PAIR_H

#include "tests/blob.h"

#define PAIR_TARGET "sm_100f"
extern const char *const pair_bodies[2];  // body i has T = i + 1

struct blob pair_make(void);  // data from malloc; ends the program when memory does

// Makes every digest right again that can be found: of each frame that lies in the file, and of the
// index. A file too small for a header is left alone.
void pair_sign(uint8_t *data, size_t size);

#endif
