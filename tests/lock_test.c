// SPDX-License-Identifier: Apache-2.0
// device.lock: what a run replaces, what it keeps, and that a damaged file is refused. argv[1]: a
// folder to write in.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "tests/lock.h"

static char path[512];
static struct lock lock;

static struct lock_line line(char byte, enum lock_result result, const char *body,
                             const char *target)
{
    struct lock_line made = {.result = result};
    memset(made.sha256, byte, 64);
    snprintf(made.body, sizeof made.body, "%s", body);
    snprintf(made.target, sizeof made.target, "%s", target);
    snprintf(made.text, sizeof made.text, "Some GPU, CC 9.0");
    return made;
}

static void put(char byte, enum lock_result result, const char *body, const char *target)
{
    struct lock_line made = line(byte, result, body, target);
    assert_true(lock_put(&lock, &made));
}

static void replaces_what_it_ran(void **state)
{
    (void)state;
    lock.count = 0;
    put('a', LOCK_NOT_RUN, "one", "*");
    put('b', LOCK_NOT_RUN, "two", "*");
    put('a', LOCK_PASS, "one", "sm_90a");
    put('a', LOCK_FAIL, "one", "sm_100f");
    assert_int_equal(lock.count, 3);  // not-run of "one" is gone, of "two" stays
    put('a', LOCK_PASS, "one", "sm_100f");
    assert_int_equal(lock.count, 3);
    assert_int_equal(lock.lines[2].result, LOCK_PASS);
    put('c', LOCK_PASS, "one", "sm_90a");  // other bytes: what is known of the old ones is void
    assert_int_equal(lock.count, 2);
}

static void survives_the_file(void **state)
{
    (void)state;
    static struct lock again;
    lock.count = 0;
    put('b', LOCK_NOT_RUN, "two", "*");
    put('a', LOCK_PASS, "one", "sm_90a");
    put('a', LOCK_FAIL, "one", "sm_100f");
    assert_true(lock_write(path, &lock));
    assert_true(lock_read(path, &again));
    assert_int_equal(again.count, 3);
    struct lock_line first = line('a', LOCK_FAIL, "one", "sm_100f"),
                     last = line('b', LOCK_NOT_RUN, "two", "*");
    assert_memory_equal(&again.lines[0], &first, sizeof first);  // sorted
    assert_memory_equal(&again.lines[2], &last, sizeof last);
    remove(path);
    assert_true(lock_read(path, &again));  // no file: nothing known
    assert_int_equal(again.count, 0);
}

static void refuses_other_lines(void **state)
{
    (void)state;
#define HASH "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
    static const char *const texts[] = {
        "0123 pass body sm_90a text",     HASH " passed body sm_90a text",
        HASH " pass body sm_90a ",        HASH " pass body",
        HASH " not-run body sm_90a text", HASH " pass body * text",
        HASH "0 pass body sm_90a text"};
    static struct lock untouched;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fprintf(file, "# comment\n%s\n", texts[i]);
        assert_int_equal(fclose(file), 0);
        assert_false(lock_read(path, &untouched));
    }
    remove(path);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: lock-test FOLDER\n");
        return 2;
    }
    snprintf(path, sizeof path, "%s/device.lock.test", argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replaces_what_it_ran),
        cmocka_unit_test(survives_the_file),
        cmocka_unit_test(refuses_other_lines),
    };
    return cmocka_run_group_tests_name("lock", tests, NULL, NULL);
}
