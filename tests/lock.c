// SPDX-License-Identifier: Apache-2.0
// Owns the text of device.lock: reading is strict, writing is canonical, so that two runs on the
// same hardware give the same file.
#include "tests/lock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const results[] = {"pass", "fail", "not-run"};

static bool parse(char *text, struct lock_line *out)
{
    struct lock_line line = {.result = LOCK_PASS};
    char result[16];
    int at = 0;
    text[strcspn(text, "\n")] = 0;
    if (sscanf(text, "%64[0-9a-f] %15s %63s %15s %n", line.sha256, result, line.body, line.target,
               &at) != 4)
        return false;
    if (strlen(line.sha256) != 64 || !at || !text[at] || strlen(text + at) >= sizeof line.text)
        return false;
    snprintf(line.text, sizeof line.text, "%s", text + at);
    for (int i = 0; i < 3; i++)
        if (!strcmp(result, results[i])) {
            line.result = (enum lock_result)i;
            *out = line;
            return (line.result == LOCK_NOT_RUN) == !strcmp(line.target, "*");
        }
    return false;
}

bool lock_read(const char *path, struct lock *out)
{
    out->count = 0;
    FILE *file = fopen(path, "r");
    if (!file) return errno == ENOENT;
    char text[512];
    bool good = true;
    while (good && fgets(text, sizeof text, file)) {
        if (text[0] == '#' || text[0] == '\n') continue;
        good = out->count < LOCK_LINES && parse(text, &out->lines[out->count]);
        if (good)
            out->count++;
        else
            fprintf(stderr, "%s: not a line of a device lock: %s\n", path, text);
    }
    good &= !ferror(file);
    fclose(file);
    return good;
}

static void drop(struct lock *lock, int at)
{
    lock->count--;
    memmove(&lock->lines[at], &lock->lines[at + 1],
            (size_t)(lock->count - at) * sizeof *lock->lines);
}

bool lock_put(struct lock *lock, const struct lock_line *line)
{
    for (int i = lock->count; i-- > 0;) {
        struct lock_line *old = &lock->lines[i];
        bool same_place = !strcmp(old->target, line->target) || old->result == LOCK_NOT_RUN;
        bool stale = strcmp(old->sha256, line->sha256) != 0;
        if (!strcmp(old->body, line->body) && (same_place || stale)) drop(lock, i);
    }
    if (lock->count == LOCK_LINES) return false;
    lock->lines[lock->count++] = *line;
    return true;
}

static int by_body(const void *a, const void *b)
{
    const struct lock_line *x = a, *y = b;
    int order = strcmp(x->body, y->body);
    return order ? order : strcmp(x->target, y->target);
}

bool lock_write(const char *path, const struct lock *lock)
{
    struct lock sorted = *lock;
    qsort(sorted.lines, (size_t)sorted.count, sizeof *sorted.lines, by_body);
    FILE *file = fopen(path, "w");
    if (!file) return false;
    fprintf(file,
            "# Bodies on real hardware: SHA256 pass|fail BODY TARGET DEVICE, or SHA256 not-run "
            "BODY * REASON.\n"
            "# Written by the contract suites with --record; the rules are in tests/lock.h.\n");
    for (int i = 0; i < sorted.count; i++) {
        const struct lock_line *line = &sorted.lines[i];
        fprintf(file, "%s %s %s %s %s\n", line->sha256, results[line->result], line->body,
                line->target, line->text);
    }
    return fclose(file) == 0;
}

void lock_hex(const uint8_t sha256[32], char out[65])
{
    for (int i = 0; i < 32; i++) snprintf(out + 2 * i, 3, "%02x", sha256[i]);
}
