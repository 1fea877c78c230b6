// SPDX-License-Identifier: Apache-2.0
// tests/device.lock: which body bytes have passed on which hardware. One line per body and target,
// sorted, fields separated by one space; the text runs to the end of the line:
//   SHA256-OF-BODY pass|fail BODY TARGET DEVICE, CC, DRIVER
//   SHA256-OF-BODY not-run BODY * REASON
// A GPU run of a contract suite replaces the lines of the images that it launched and drops the
// body's not-run line. An image passes only in a run of the whole suite in which no test failed.
#ifndef KDA_TESTS_LOCK_H
#define KDA_TESTS_LOCK_H

#include <stdbool.h>
#include <stdint.h>

enum lock_result { LOCK_PASS, LOCK_FAIL, LOCK_NOT_RUN };

struct lock_line {
    char sha256[65], body[64], target[16], text[160];
    enum lock_result result;
};

enum { LOCK_LINES = 512 };
struct lock {
    int count;
    struct lock_line lines[LOCK_LINES];
};

// A file that does not exist is an empty lock. False, with the line on stderr, if a line has
// another form.
bool lock_read(const char *path, struct lock *out);
bool lock_write(const char *path, const struct lock *lock);
bool lock_put(struct lock *lock, const struct lock_line *line);  // false: full
void lock_hex(const uint8_t sha256[32], char out[65]);

#endif
