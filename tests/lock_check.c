// SPDX-License-Identifier: Apache-2.0
// The gate on device.lock, without a device: every body of bodies.lock must have passed on some
// hardware, or be listed as not run with the reason; nothing may have failed or speak of bytes that
// are gone. Prints how many are not run, and on which targets nothing was.
//   lock-check BODIES_LOCK DEVICE_LOCK                check
//   lock-check BODIES_LOCK DEVICE_LOCK --not-run WHY  list what has not run with the reason WHY,
//   drop what is gone
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "manifest/format.h"
#include "tests/lock.h"

enum { BODIES = 128 };
struct body {
    char sha256[65], name[64];
};

// Lines of sha256sum: HASH, two characters, path of NAME.cu. Returns the count, or -1.
static int read_bodies(const char *path, struct body out[BODIES])
{
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    char text[512], where[256];
    int count = 0;
    while (count >= 0 && fgets(text, sizeof text, file)) {
        if (text[0] == '#' || text[0] == '\n') continue;
        struct body *body = &out[count];
        if (count == BODIES ||
            sscanf(text, "%64[0-9a-f]%*1[ ]%*1[ *]%255s", body->sha256, where) != 2) {
            fprintf(stderr, "%s: not a line of sha256sum: %s", path, text);
            count = -1;
            break;
        }
        const char *name = strrchr(where, '/');
        name = name ? name + 1 : where;
        int length = (int)strcspn(name, ".");
        snprintf(body->name, sizeof body->name, "%.*s", length < 63 ? length : 63, name);
        count++;
    }
    fclose(file);
    return count;
}

static bool current(const struct body *bodies, int count, const struct lock_line *line)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(bodies[i].name, line->body)) return !strcmp(bodies[i].sha256, line->sha256);
    return false;
}

static const struct lock_line *find(const struct lock *lock, const struct body *body,
                                    enum lock_result result)
{
    for (int i = 0; i < lock->count; i++)
        if (lock->lines[i].result == result && !strcmp(lock->lines[i].sha256, body->sha256) &&
            !strcmp(lock->lines[i].body, body->name))
            return &lock->lines[i];
    return NULL;
}

static int check(const char *path, const struct body *bodies, int count, const struct lock *lock)
{
    int passed = 0, not_run = 0, findings = 0;
    for (int i = 0; i < count; i++) {
        if (find(lock, &bodies[i], LOCK_PASS))
            passed++;
        else if (find(lock, &bodies[i], LOCK_NOT_RUN))
            not_run++;
        else {
            findings++;
            printf("%s: these bytes have not run on hardware and are not listed as such\n",
                   bodies[i].name);
        }
    }
    for (int i = 0; i < lock->count; i++) {
        const struct lock_line *line = &lock->lines[i];
        bool gone = !current(bodies, count, line);
        if (!gone && line->result != LOCK_FAIL) continue;
        findings++;
        printf("%s %s: %s\n", line->body, line->target,
               gone ? "the line speaks of other bytes" : line->text);
    }
    printf("%d bodies: %d passed on hardware, %d not run\n", count, passed, not_run);
#define KDA_CCS(...) 0
#define KDA_TARGET(name, floor, ccs)                                                               \
    {                                                                                              \
        int runs = 0;                                                                              \
        for (int i = 0; i < lock->count; i++) runs += !strcmp(lock->lines[i].target, #name);       \
        printf("  %s: %d of %d images run\n", #name, runs, count);                                 \
    }
#include "manifest/targets.inc"
    if (findings)
        printf("%s is stale; on a GPU run: build/tests/recurrent-test BUNDLE --record %s, and "
               "packed-test; without one: build/tests/lock-check manifest/bodies.lock %s --not-run "
               "WHY\n",
               path, path, path);
    return findings ? 1 : 0;
}

static int list(const char *path, const struct body *bodies, int count, const struct lock *lock,
                const char *why)
{
    struct lock kept = {.count = 0};
    for (int i = 0; i < lock->count; i++)
        if (current(bodies, count, &lock->lines[i])) kept.lines[kept.count++] = lock->lines[i];
    for (int i = 0; i < count; i++) {
        if (find(&kept, &bodies[i], LOCK_PASS) || find(&kept, &bodies[i], LOCK_FAIL)) continue;
        struct lock_line line = {.target = "*", .result = LOCK_NOT_RUN};
        memcpy(line.sha256, bodies[i].sha256, sizeof line.sha256);
        memcpy(line.body, bodies[i].name, sizeof line.body);
        snprintf(line.text, sizeof line.text, "%s", why);
        if (!lock_put(&kept, &line)) return 1;
    }
    return lock_write(path, &kept) ? 0 : 1;
}

int main(int argc, char **argv)
{
    static struct lock lock;
    static struct body bodies[BODIES];
    bool listing = argc == 5 && !strcmp(argv[3], "--not-run") && argv[4][0];
    if (argc != 3 && !listing) {
        fprintf(stderr, "usage: lock-check BODIES_LOCK DEVICE_LOCK [--not-run WHY]\n");
        return 2;
    }
    int count = read_bodies(argv[1], bodies);
    if (count < 1 || !lock_read(argv[2], &lock)) {
        fprintf(stderr, "%s or %s cannot be read\n", argv[1], argv[2]);
        return 2;
    }
    return listing ? list(argv[2], bodies, count, &lock, argv[4])
                   : check(argv[2], bodies, count, &lock);
}
