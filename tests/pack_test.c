// SPDX-License-Identifier: Apache-2.0
// kda-pack on the images of the build: equal bytes from equal inputs, a bundle that the loader
// proves, a refusal by name of everything that a bundle must not hold, and the lock.
//   pack_test KDA_PACK ROOT CUBIN_FOLDER
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include <cmocka.h>

#include "loader/bundle.h"
#include "tests/command.h"
#include "tools/elf.h"
#include "tools/files.h"
#include "tools/rows.h"

enum { MAX_IMAGES = COMMAND_ARGS - 32 };

static const char *kda_pack, *root, *cubin_folder;
static struct command command;
static char *folder;

// The images of the build, one path each, in the order of the manifest.
static char *images[MAX_IMAGES];
static uint32_t image_targets[MAX_IMAGES];
static size_t image_count;

static void find_images(void)
{
    for (uint32_t s = 0; s < kda_schedule_count; s++) {
        for (uint32_t t = 0; t < kda_target_count; t++) {
            char path[1024];
            snprintf(path, sizeof path, "%s/%s.%s.cubin", cubin_folder, kda_schedules[s].name,
                     kda_targets[t].name);
            if (access(path, R_OK) != 0 || image_count == MAX_IMAGES) continue;
            image_targets[image_count] = t;
            images[image_count++] = strdup(path);
        }
    }
}

static int set_up(void **state)
{
    (void)state;
    folder = command_folder();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    command_clean(folder);
    return 0;
}

static void expect(int status, const char *text) { command_expect(&command, status, text); }

static const char *out(const char *name) { return command_path(folder, name); }

// A command that packs into `name` what add_images adds. Toolchain rules have a test of their own.
static void start(const char *name, const char *source_tree)
{
    command_set(&command, kda_pack, "--unpinned", "--root", source_tree, "-o", out(name), NULL);
}

// The images of the first target that was built, image `skip` not among them.
static void add_target(size_t without)
{
    for (size_t i = 0; i < image_count; i++)
        if (image_targets[i] == image_targets[0] && i != without) command_add(&command, images[i]);
}

static const char *base(const char *path) { return kda_files_base(path); }

// A copy of images[0], with the first `old` in it replaced by `new` of the same size, in place of
// images[0].
static void start_patched(const char *old, const char *new, size_t size)
{
    uint8_t *data;
    size_t data_size;
    data = command_read(images[0], &data_size);
    command_patch(data, data_size, old, new, size);
    command_write(out(base(images[0])), data, data_size);
    free(data);
    start("x.bundle", root);
    add_target(0);
    command_add(&command, out(base(images[0])));
}

static void expect_equal_files(const char *a, const char *b)
{
    size_t size_a, size_b;
    uint8_t *data_a = command_read(a, &size_a), *data_b = command_read(b, &size_b);
    assert_int_equal(size_a, size_b);
    assert_memory_equal(data_a, data_b, size_a);
    free(data_a);
    free(data_b);
}

static void test_order_and_time_change_nothing(void **state)
{
    (void)state;
    start("a.bundle", root);
    for (size_t i = 0; i < image_count; i++) command_add(&command, images[i]);
    expect(0, "");
    assert_string_equal(command.output, "");
    // Reversed, new files in another folder, another locale.
    start("b.bundle", root);
    for (size_t i = image_count; i-- > 0;) {
        const char *copy = out(base(images[i]));
        command_copy(images[i], copy);
        command_add(&command, copy);
    }
    setenv("LC_ALL", "de_DE.UTF-8", 1);
    expect(0, "");
    unsetenv("LC_ALL");
    expect_equal_files(out("a.bundle"), out("b.bundle"));
}

static void test_the_loader_proves_it(void **state)
{
    (void)state;
    start("all.bundle", root);
    command_add(&command, "--images");
    command_add(&command, out("images.inc"));
    for (size_t i = 0; i < image_count; i++) command_add(&command, images[i]);
    expect(0, "");
    kda_bundle *bundle = NULL;
    kda_error err = {0};
    if (kda_bundle_open_file(out("all.bundle"), &bundle, &err) != KDA_OK) fail_msg("%s", err.text);
    if (kda_bundle_verify(bundle, &err) != KDA_OK) fail_msg("%s", err.text);
    assert_int_equal(bundle->cubin_count, image_count);
    assert_int_equal(bundle->body_count, kda_schedule_count);
    size_t table_size;
    char *table = (char *)command_read(out("images.inc"), &table_size);
    for (size_t i = 0; i < image_count; i++) {
        const struct kda_format_cubin *cubin = &bundle->cubins[i];
        const char *body = bundle->strings + bundle->bodies[cubin->body].name;
        const char *target = bundle->strings + bundle->targets[cubin->target].name;
        void *image;
        size_t size, file_size;
        if (kda_bundle_image(bundle, body, target, &image, &size, &err) != KDA_OK)
            fail_msg("%s", err.text);
        uint8_t *file = command_read(images[i], &file_size), digest[32];
        assert_int_equal(size, file_size);
        assert_memory_equal(image, file, size);
        // One toolkit made it: what the record says is what the image says.
        struct kda_elf elf;
        assert_int_equal(kda_elf_read(file, file_size, &elf, NULL), KDA_OK);
        assert_string_equal(bundle->strings + cubin->toolkit, elf.toolkit);
        assert_int_equal(cubin->registers, elf.registers);
        uint32_t floor = kda_targets[image_targets[i]].floor;
        uint32_t major = elf.toolkit_version / 1000 * 1000;
        assert_int_equal(cubin->min_cuda, major > floor ? major : floor);
        assert_true(bundle->strings[cubin->options] == '-');
        char hex[KDA_HEX_SIZE], line[512];
        kda_files_sha256(file, file_size, digest);
        kda_files_hex(digest, hex);
        snprintf(line, sizeof line, "KDA_IMAGE(%s, %s, \"%s\", %zu)\n", body, target, hex, size);
        if (!strstr(table, line)) fail_msg("no %s", line);
        free(file);
        free(image);
    }
    free(table);
    kda_bundle_close(&bundle);
}

// A bundle of one target: rows of compute capabilities that it does not serve are left out, and
// targets that a served device could ask for are still known by name.
static void test_one_target(void **state)
{
    (void)state;
    uint32_t target = kda_rows_target("sm_100a", strlen("sm_100a"));
    start("one.bundle", root);
    for (size_t i = 0; i < image_count; i++)
        if (image_targets[i] == target) command_add(&command, images[i]);
    expect(0, "");
    kda_bundle *bundle = NULL;
    assert_int_equal(kda_bundle_open_file(out("one.bundle"), &bundle, NULL), KDA_OK);
    assert_true(kda_bundle_find_target(bundle, "sm_100a") != KDA_NONE);
    assert_true(kda_bundle_find_target(bundle, "sm_100f") != KDA_NONE);
    assert_true(kda_bundle_find_target(bundle, "sm_103a") == KDA_NONE);
    assert_true(bundle->route_count > 0 && bundle->preference_count > 0);
    for (uint32_t i = 0; i < bundle->route_count; i++) assert_int_equal(bundle->routes[i].cc, 100);
    for (uint32_t i = 0; i < bundle->preference_count; i++)
        assert_int_equal(bundle->preferences[i].cc, 100);
    kda_bundle_close(&bundle);
}

static void test_refuses_a_missing_image(void **state)
{
    (void)state;
    char text[256];
    start("x.bundle", root);
    add_target(0);
    snprintf(text, sizeof text, "%s.%s: no image given", kda_schedules[0].name,
             kda_targets[image_targets[0]].name);
    expect(1, text);
    assert_int_equal(access(out("x.bundle"), F_OK), -1);
}

static void test_refuses_a_target_without_images(void **state)
{
    (void)state;
    start("x.bundle", root);
    command_add(&command, "--targets");
    command_add(&command, image_targets[0] ? kda_targets[0].name : kda_targets[1].name);
    add_target(image_count);
    expect(1, image_targets[0] ? "no image given" : "not a target of this bundle");
    start("x.bundle", root);
    command_add(&command, "--targets");
    command_add(&command, "sm_42a");
    add_target(image_count);
    expect(2, "targets.inc does not declare sm_42a");
}

static void test_refuses_an_image_given_twice(void **state)
{
    (void)state;
    start("x.bundle", root);
    add_target(image_count);
    command_copy(images[0], out(base(images[0])));
    command_add(&command, out(base(images[0])));
    expect(1, "given more than once");
}

static void test_refuses_names_that_lie(void **state)
{
    (void)state;
    char name[256];
    size_t other = 1;
    while (image_targets[other] != image_targets[0]) other++;
    // The image of another body.
    start("x.bundle", root);
    add_target(0);
    command_copy(images[other], out(base(images[0])));
    command_add(&command, out(base(images[0])));
    expect(1, "the kernel is kda_");
    // The image of another target.
    uint32_t target = image_targets[0] == 0 ? 1 : 0;
    snprintf(name, sizeof name, "%s.%s.cubin", kda_schedules[0].name, kda_targets[target].name);
    start("x.bundle", root);
    command_copy(images[0], out(name));
    command_add(&command, out(name));
    snprintf(name, sizeof name, "the image is for %s, expected %s",
             kda_targets[image_targets[0]].name, kda_targets[target].name);
    expect(1, name);
    // A name that is none.
    start("x.bundle", root);
    command_copy(images[0], out("thing.cubin"));
    command_add(&command, out("thing.cubin"));
    expect(1, "thing.cubin: expected BODY.TARGET.cubin");
}

static void test_refuses_an_empty_image(void **state)
{
    (void)state;
    start("x.bundle", root);
    add_target(0);
    command_write(out(base(images[0])), "", 0);
    command_add(&command, out(base(images[0])));
    expect(1, "the image is empty");
}

static void test_refuses_line_info(void **state)
{
    (void)state;
    start_patched("\0.debug_frame\0", "\0.debug_line\0\0", 14);
    expect(1, "the image has line info");
}

// The toolkit as images[0] records it, and the same with another last digit or major version.
static void read_toolkit(char intact[16], char other_patch[16], char too_old[16])
{
    size_t size;
    uint8_t *data = command_read(images[0], &size);
    struct kda_elf elf;
    assert_int_equal(kda_elf_read(data, size, &elf, NULL), KDA_OK);
    free(data);
    memcpy(intact, elf.toolkit, 16);
    memcpy(other_patch, elf.toolkit, 16);
    memcpy(too_old, elf.toolkit, 16);
    char *last = &other_patch[strlen(other_patch) - 1];
    *last = *last == '9' ? '8' : '9';
    memcpy(too_old, "11", 2);
}

static void test_refuses_an_old_toolkit(void **state)
{
    (void)state;
    char intact[16], other[16], old[16], text[64];
    read_toolkit(intact, other, old);
    start_patched(intact, old, strlen(intact));
    snprintf(text, sizeof text, "built by toolkit %s, expected 12.", old);
    expect(1, text);
}

static void test_refuses_an_unrecorded_toolkit(void **state)
{
    (void)state;
    // Without the note the reader cannot tell sm_100f from sm_100: this takes a target that the
    // flags tell.
    uint32_t target = kda_rows_target("sm_100a", strlen("sm_100a"));
    size_t at = 0, size;
    while (image_targets[at] != target) at++;
    uint8_t *data = command_read(images[at], &size);
    struct kda_elf elf;
    assert_int_equal(kda_elf_read(data, size, &elf, NULL), KDA_OK);
    const uint32_t toolkit = elf.toolkit_version / 1000 * 10 + elf.toolkit_version % 1000 / 10;
    const uint8_t old[] = {4, 0x37, 4, 0, (uint8_t)toolkit, 0, 0, 0},
                  none[] = {4, 0x37, 4, 0, 0, 0, 0, 0};
    command_patch(data, size, "\0.note.nv.tkinfo\0", "\0.note.nv.tkinf_\0", 17);
    command_patch(data, size, old, none, sizeof old);
    command_write(out(base(images[at])), data, size);
    free(data);
    start("x.bundle", root);
    command_add(&command, out(base(images[at])));
    expect(1, "the image does not record its toolkit");
}

// A source tree of its own: the bodies, their lock, and a toolchain lock that names `toolkit`.
static void make_tree(const char *toolkit)
{
    char name[256], from[1024], line[64];
    mkdir(out("bodies"), 0777);
    mkdir(out("manifest"), 0777);
    snprintf(from, sizeof from, "%s/manifest/bodies.lock", root);
    command_copy(from, out("manifest/bodies.lock"));
    for (uint32_t s = 0; s < kda_schedule_count; s++) {
        snprintf(name, sizeof name, "bodies/%s.cu", kda_schedules[s].name);
        snprintf(from, sizeof from, "%s/%s", root, name);
        command_copy(from, out(name));
    }
    int n = snprintf(line, sizeof line, "# none\ntoolkit %s\n", toolkit);
    command_write(out("manifest/toolchains.lock"), line, (size_t)n);
}

static uint32_t flags_of(const char *path)
{
    kda_bundle *bundle = NULL;
    assert_int_equal(kda_bundle_open_file(path, &bundle, NULL), KDA_OK);
    uint32_t flags = bundle->header->flags;
    kda_bundle_close(&bundle);
    return flags;
}

static void test_only_the_pinned_toolkit_is_pinned(void **state)
{
    (void)state;
    char intact[16], other[16], old[16], text[64];
    read_toolkit(intact, other, old);
    make_tree(intact);
    command_set(&command, kda_pack, "--root", folder, "-o", out("pinned.bundle"), NULL);
    add_target(image_count);
    expect(0, "");
    assert_int_equal(flags_of(out("pinned.bundle")), KDA_BUNDLE_PINNED);

    make_tree(other);
    command_set(&command, kda_pack, "--root", folder, "-o", out("x.bundle"), NULL);
    add_target(image_count);
    snprintf(text, sizeof text, "expected the pinned %s", other);
    expect(1, text);
    start("unpinned.bundle", folder);
    add_target(image_count);
    expect(0, "");
    assert_int_equal(flags_of(out("unpinned.bundle")), 0);
}

static void test_refuses_a_changed_body(void **state)
{
    (void)state;
    char name[256];
    size_t size;
    make_tree("0.0.0");
    snprintf(name, sizeof name, "bodies/%s.cu", kda_schedules[0].name);
    uint8_t *body = command_read(out(name), &size);
    body[size - 1] = ' ';
    command_write(out(name), body, size);
    free(body);
    start("x.bundle", folder);
    add_target(image_count);
    expect(1, "ninja -C build regen");
    assert_non_null(strstr(command.output, name));
}

static void test_lock(void **state)
{
    (void)state;
    char *lock = strdup(out("cubins.lock")), text[512];
    assert_non_null(lock);
    command_set(&command, kda_pack, "--lock", lock, NULL);
    for (size_t i = image_count; i-- > 0;) command_add(&command, images[i]);
    expect(0, "");
    command_set(&command, kda_pack, "--lock", lock, "--check", NULL);
    for (size_t i = 0; i < image_count; i++) command_add(&command, images[i]);
    expect(0, "");
    assert_string_equal(command.output, "");
    // Images of one target: lines of the others are not missed, and stay when the lock is written
    // again.
    command_set(&command, kda_pack, "--lock", lock, "--check", NULL);
    add_target(image_count);
    expect(0, "");
    command_copy(lock, out("before"));
    command_set(&command, kda_pack, "--lock", lock, NULL);
    add_target(image_count);
    expect(0, "");
    expect_equal_files(lock, out("before"));

    // A changed byte, an image that is not given, a line that is not there.
    size_t size, other = 1;
    while (image_targets[other] != image_targets[0]) other++;
    uint8_t *data = command_read(images[0], &size);
    data[size / 2] ^= 1;
    command_write(out(base(images[0])), data, size);
    free(data);
    command_set(&command, kda_pack, "--lock", lock, "--check", NULL);
    add_target(0);
    command_add(&command, out(base(images[0])));
    snprintf(text, sizeof text, "%s: sha256 ", base(images[0]));
    expect(1, text);
    assert_non_null(strstr(command.output, "ninja -C build relock"));
    command_set(&command, kda_pack, "--lock", lock, "--check", NULL);
    add_target(other);
    snprintf(text, sizeof text, "%s: missing", base(images[other]));
    expect(1, text);
    char *lines = (char *)command_read(lock, &size), *second = strchr(lines, '\n') + 1;
    command_write(lock, second, size - (size_t)(second - lines));
    free(lines);
    command_set(&command, kda_pack, "--lock", lock, "--check", NULL);
    add_target(image_count);
    snprintf(text, sizeof text, "%s: surplus", base(images[0]));
    expect(1, text);
    command_write(lock, "nonsense\n", 9);
    expect(1, "cubins.lock:1: expected");
    free(lock);
}

static void test_ids(void **state)
{
    (void)state;
    char *lock = strdup(out("bundle.lock")), text[256];
    assert_non_null(lock);
    start("b.bundle", root);
    add_target(image_count);
    expect(0, "");
    command_copy(out("b.bundle"), out("a.bundle"));
    command_set(&command, kda_pack, "--ids", lock, out("b.bundle"), out("a.bundle"), NULL);
    expect(0, "");
    size_t size;
    char *lines = (char *)command_read(lock, &size);
    assert_int_equal(size, 2 * (64 + 2 + strlen("a.bundle") + 1));
    assert_memory_equal(lines + 64, "  a.bundle\n", 11);  // sorted
    command_set(&command, kda_pack, "--ids", lock, "--check", out("b.bundle"), NULL);
    expect(0, "");
    assert_string_equal(command.output, "");
    // A bundle of another id under the same name, and one without a line.
    command_copy(out("b.bundle"), out("c.bundle"));
    command_set(&command, kda_pack, "--ids", lock, "--check", out("c.bundle"), NULL);
    expect(1, "c.bundle: surplus: ");
    lines[75] = lines[75] == '0' ? '1' : '0';
    command_write(lock, lines, size);
    command_set(&command, kda_pack, "--ids", lock, "--check", out("b.bundle"), NULL);
    snprintf(text, sizeof text, ", expected %.64s of ", lines + 75);
    expect(1, text);
    assert_non_null(strstr(command.output, "b.bundle: bundle id "));
    assert_non_null(strstr(command.output, "ninja -C build relock"));
    // Writing one line keeps the other.
    command_set(&command, kda_pack, "--ids", lock, out("b.bundle"), NULL);
    expect(0, "");
    command_set(&command, kda_pack, "--ids", lock, "--check", out("a.bundle"), out("b.bundle"),
                NULL);
    expect(0, "");
    free(lines);
    // No bundle, and files of a kind that has no lock.
    command_write(out("c.bundle"), "no bundle", 9);
    command_set(&command, kda_pack, "--ids", lock, out("c.bundle"), NULL);
    expect(1, "c.bundle: ");
    command_set(&command, kda_pack, "--ids", lock, out("a.bundle"), images[0], NULL);
    expect(2, "expected images with --lock");
    free(lock);
}

// Frames per family cost at most 1.3 times one frame of everything.
static void test_size(void **state)
{
    (void)state;
    start("x.bundle", root);
    uint8_t *raw = NULL;
    size_t raw_size = 0;
    for (uint32_t t = 0; t < kda_target_count; t++) {
        for (size_t i = 0; i < image_count; i++) {
            // The default bundle; another target has code of its own.
            if (image_targets[i] != t || strcmp(kda_targets[t].name, "sm_90a") == 0) continue;
            command_add(&command, images[i]);
            size_t size;
            uint8_t *data = command_read(images[i], &size);
            raw = realloc(raw, raw_size + size);
            assert_non_null(raw);
            memcpy(raw + raw_size, data, size);
            raw_size += size;
            free(data);
        }
    }
    expect(0, "");
    size_t bound = ZSTD_compressBound(raw_size), stored = 0;
    uint8_t *solid = malloc(bound);
    assert_non_null(solid);
    size_t solid_size = ZSTD_compress(solid, bound, raw, raw_size, 19);
    assert_false(ZSTD_isError(solid_size));
    kda_bundle *bundle = NULL;
    kda_error err;
    if (kda_bundle_open_file(out("x.bundle"), &bundle, &err)) fail_msg("%s", err.text);
    for (uint32_t i = 0; i < bundle->frame_count; i++) stored += bundle->frames[i].stored_size;
    kda_bundle_close(&bundle);
    print_message("%zu bytes of images, %zu stored, %zu in one frame: %.2f\n", raw_size, stored,
                  solid_size, (double)stored / (double)solid_size);
    assert_true(10 * stored <= 13 * solid_size);
    free(solid);
    free(raw);
}

static void test_embed(void **state)
{
    (void)state;
    char hex[KDA_HEX_SIZE];
    uint8_t digest[32];
    size_t size;
    command_write(out("some.bundle"), "bytes", 5);
    command_set(&command, kda_pack, "--embed", out("some.S"), "--symbol", "kda_builtin",
                out("some.bundle"), NULL);
    expect(0, "");
    kda_files_sha256("bytes", 5, digest);
    kda_files_hex(digest, hex);
    char *text = (char *)command_read(out("some.S"), &size);
    assert_non_null(strstr(text, hex));
    assert_non_null(strstr(text, ".hidden kda_builtin_begin"));
    assert_non_null(strstr(text, ".hidden kda_builtin_end"));
    assert_non_null(strstr(text, ".note.GNU-stack"));
    free(text);
    command_set(&command, kda_pack, "--embed", out("some.S"), "--symbol", "1x", out("some.bundle"),
                NULL);
    expect(2, "expected a C identifier");
    command_set(&command, kda_pack, "--embed", out("some.S"), "--symbol", "x", out("nothing"),
                NULL);
    expect(2, "cannot be opened");
}

static void test_usage(void **state)
{
    (void)state;
    command_set(&command, kda_pack, NULL);
    expect(2, "usage: kda-pack");
    command_set(&command, kda_pack, "--help", NULL);
    expect(0, "usage: kda-pack");
    command_set(&command, kda_pack, "--lock", "x", "--embed", "y", "z", NULL);
    expect(2, "usage: kda-pack");
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: pack_test KDA_PACK ROOT CUBIN_FOLDER\n");
        return 2;
    }
    kda_pack = argv[1];
    root = argv[2];
    cubin_folder = argv[3];
    find_images();
    if (image_count < kda_schedule_count) {
        fprintf(stderr, "%s: only %zu images\n", cubin_folder, image_count);
        return 2;
    }
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_order_and_time_change_nothing),
        TEST(test_the_loader_proves_it),
        TEST(test_one_target),
        TEST(test_refuses_a_missing_image),
        TEST(test_refuses_a_target_without_images),
        TEST(test_refuses_an_image_given_twice),
        TEST(test_refuses_names_that_lie),
        TEST(test_refuses_an_empty_image),
        TEST(test_refuses_line_info),
        TEST(test_refuses_an_old_toolkit),
        TEST(test_refuses_an_unrecorded_toolkit),
        TEST(test_only_the_pinned_toolkit_is_pinned),
        TEST(test_refuses_a_changed_body),
        TEST(test_lock),
        TEST(test_ids),
        TEST(test_size),
        TEST(test_embed),
        TEST(test_usage),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (size_t i = 0; i < image_count; i++) free(images[i]);
    return failed;
}
