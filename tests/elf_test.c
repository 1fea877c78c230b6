// SPDX-License-Identifier: Apache-2.0
// The cubin reader: what it says of the images that the build made, and that no broken image harms
// it.
//   elf_test CUBIN_FOLDER
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/command.h"
#include "tools/elf.h"
#include "tools/rows.h"

static const char *cubin_folder;

// Path of an image, or NULL if the build has none.
static const char *cubin(uint32_t schedule, uint32_t target)
{
    char name[256];
    snprintf(name, sizeof name, "%s.%s.cubin", kda_schedules[schedule].name,
             kda_targets[target].name);
    const char *path = command_path(cubin_folder, name);
    return access(path, R_OK) == 0 ? path : NULL;
}

// The smallest image of each target that was built: broken in every way, it takes the least time.
static uint8_t *smallest(uint32_t target, size_t *out_size)
{
    uint8_t *best = NULL;
    for (uint32_t s = 0; s < kda_schedule_count; s++) {
        const char *path = cubin(s, target);
        if (!path) continue;
        size_t size;
        uint8_t *data = command_read(path, &size);
        if (best && size >= *out_size) {
            free(data);
            continue;
        }
        free(best);
        best = data;
        *out_size = size;
    }
    return best;
}

static void test_reads_what_was_built(void **state)
{
    (void)state;
    unsigned read = 0;
    for (uint32_t s = 0; s < kda_schedule_count; s++) {
        for (uint32_t t = 0; t < kda_target_count; t++) {
            const char *path = cubin(s, t);
            if (!path) continue;
            size_t size;
            uint8_t *data = command_read(path, &size);
            struct kda_elf elf;
            kda_error err = {0};
            if (kda_elf_read(data, size, &elf, &err) != KDA_OK) fail_msg("%s: %s", path, err.text);
            free(data);
            assert_string_equal(elf.target, kda_targets[t].name);
            assert_true(strncmp(elf.entry, "kda_", 4) == 0);
            assert_string_equal(elf.entry + 4, kda_schedules[s].name);
            assert_int_equal(elf.sm, strtol(kda_targets[t].name + 3, NULL, 10));
            assert_int_equal(elf.params_size, kda_schedules[s].params_size);
            assert_int_equal(elf.max_threads, kda_schedules[s].threads);
            assert_int_equal(elf.stack, 0);
            assert_int_equal(elf.shared, 0);
            assert_false(elf.line_info);
            assert_in_range(elf.registers, 16, 255);
            assert_true(elf.toolkit_version >= kda_targets[t].floor);
            unsigned major, minor;
            assert_int_equal(sscanf(elf.toolkit, "%u.%u", &major, &minor), 2);
            assert_int_equal(major * 1000 + minor * 10, elf.toolkit_version);
            // Warps that share memory wait for each other; a lone warp has nobody to wait for, nor
            // has one of verify_pair.
            bool alone = kda_schedules[s].threads == 32 || strstr(kda_schedules[s].name, "_pair_");
            bool shares = !alone && kda_schedules[s].smem > 0;
            assert_in_range(elf.barriers, shares ? 1 : 0, alone ? 0 : 16);
            read++;
        }
    }
    assert_true(read >= kda_schedule_count);
}

// The image that is being broken, and what the intact one says.
static void expect_safe(const uint8_t *data, size_t size)
{
    struct kda_elf untouched, elf;
    memset(&untouched, 0xa5, sizeof untouched);
    elf = untouched;
    kda_error err = {0};
    kda_status status = kda_elf_read(data, size, &elf, &err);
    if (status == KDA_OK) {
        assert_true(memchr(elf.target, 0, sizeof elf.target) != NULL);
        assert_true(memchr(elf.toolkit, 0, sizeof elf.toolkit) != NULL);
        assert_true(memchr(elf.options, 0, sizeof elf.options) != NULL);
        assert_true(memchr(elf.entry, 0, sizeof elf.entry) != NULL);
        assert_true(elf.entry[0] != 0);
        return;
    }
    assert_int_equal(status, KDA_E_FORMAT);
    assert_int_equal(err.status, KDA_E_FORMAT);
    assert_true(err.text[0] != 0);
    assert_memory_equal(&elf, &untouched, sizeof elf);
}

static void test_every_truncation(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < kda_target_count; t++) {
        size_t size = 0;
        uint8_t *data = smallest(t, &size);
        for (size_t n = 0; data && n < size; n++) {
            // Memory of exactly this size: a read past its end is seen by the sanitizers.
            uint8_t *cut = malloc(n ? n : 1);
            assert_non_null(cut);
            memcpy(cut, data, n);
            expect_safe(cut, n);
            struct kda_elf elf;
            // What follows the section headers (program headers) is not needed; everything before
            // them is.
            uint64_t headers;
            memcpy(&headers, data + 0x28, sizeof headers);
            if (n <= headers) assert_int_equal(kda_elf_read(cut, n, &elf, NULL), KDA_E_FORMAT);
            free(cut);
        }
        free(data);
    }
}

static void test_every_flip(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < kda_target_count; t++) {
        size_t size = 0;
        uint8_t *data = smallest(t, &size);
        for (size_t i = 0; data && i < size; i++) {
            static const uint8_t masks[] = {1, 2, 4, 8, 16, 32, 64, 128, 255};
            for (unsigned m = 0; m < sizeof masks; m++) {
                data[i] ^= masks[m];
                expect_safe(data, size);
                data[i] ^= masks[m];
            }
        }
        free(data);
    }
}

static void expect_text(const uint8_t *data, size_t size, const char *text)
{
    struct kda_elf elf;
    kda_error err = {0};
    assert_int_equal(kda_elf_read(data, size, &elf, &err), KDA_E_FORMAT);
    if (!strstr(err.text, text)) fail_msg("\"%s\" does not say \"%s\"", err.text, text);
}

static void test_says_what_is_wrong(void **state)
{
    (void)state;
    size_t size = 0;
    uint8_t *data = NULL;
    for (uint32_t t = 0; t < kda_target_count && !data; t++) data = smallest(t, &size);
    assert_non_null(data);
    uint8_t *copy = malloc(size);
    assert_non_null(copy);
    expect_text(data, 0, "empty");
    expect_text(
        (const uint8_t *)"not an image at all, but text that is longer than a file header......",
        70, "not a 64-bit little-endian ELF");
    memcpy(copy, data, size);
    copy[18] = 62;
    expect_text(copy, size, "machine 62, expected 190");
    memcpy(copy, data, size);
    memset(copy + 0x28, 0xff, 8);
    expect_text(copy, size, "section headers");
    memcpy(copy, data, size);
    command_patch(copy, size, "\0.nv.info\0", "\0.nv.inf_\0", 10);
    expect_text(copy, size, "no section .nv.info");
    memcpy(copy, data, size);
    command_patch(copy, size, "\0.text.kda_", "\0.texx.kda_", 11);
    expect_text(copy, size, "0 kernels");
    free(copy);
    free(data);
}

static void test_toolkit_and_target_come_from_the_note(void **state)
{
    (void)state;
    uint32_t target = kda_rows_target("sm_100f", strlen("sm_100f"));
    size_t size = 0;
    uint8_t *data = smallest(target, &size);
    if (!data) skip();
    struct kda_elf intact, elf;
    assert_int_equal(kda_elf_read(data, size, &intact, NULL), KDA_OK);
    assert_non_null(strstr(intact.options, "-arch sm_100f"));
    assert_non_null(strchr(strchr(intact.toolkit, '.') + 1, '.'));

    command_patch(data, size, "-arch sm_100f", "-arch sm_100 ", 13);
    assert_int_equal(kda_elf_read(data, size, &elf, NULL), KDA_OK);
    assert_string_equal(elf.target, "sm_100");
    command_patch(data, size, "-arch sm_100 ", "-arch sm_101a", 13);
    expect_text(data, size, ".note.nv.tkinfo");

    // Without the note there is no full version, and nothing tells a family target from a plain
    // one.
    command_patch(data, size, "\0.note.nv.tkinfo\0", "\0.note.nv.tkinf_\0", 17);
    assert_int_equal(kda_elf_read(data, size, &elf, NULL), KDA_OK);
    assert_string_equal(elf.target, "sm_100");
    assert_int_equal(elf.toolkit_version, intact.toolkit_version);
    assert_string_not_equal(elf.toolkit, intact.toolkit);
    assert_true(strncmp(elf.toolkit, intact.toolkit, strlen(elf.toolkit)) == 0);
    assert_string_equal(elf.options, "");
    free(data);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: elf_test CUBIN_FOLDER\n");
        return 2;
    }
    cubin_folder = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_what_was_built),
        cmocka_unit_test(test_says_what_is_wrong),
        cmocka_unit_test(test_toolkit_and_target_come_from_the_note),
        cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_every_flip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
