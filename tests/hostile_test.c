// SPDX-License-Identifier: Apache-2.0
// Two bundles under attack: the two-body one in every byte, bit and length, the product's own in
// every byte of its index and a sample of its frames. Each is refused by a typed error that names
// the entry, with a bounded allocation, without a driver; what an intact index still vouches for
// stays usable.
//   hostile-test BUNDLE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "loader/bundle.h"
#include "tests/faults.h"
#include "tests/pair.h"

static const char *bundle_path;
static struct blob pair;

static uint8_t *copy_of(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);  // exactly: a sanitizer sees one byte more
    assert_non_null(copy);
    if (size) memcpy(copy, data, size);
    return copy;
}

static struct blob read_file(const char *path)
{
    struct blob blob = {0};
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    blob.size = (size_t)ftell(file);
    rewind(file);
    blob.data = malloc(blob.size);
    assert_int_equal(fread(blob.data, 1, blob.size, file), blob.size);
    assert_int_equal(fclose(file), 0);
    return blob;
}

static struct kda_format_header *header_of(uint8_t *data) { return (void *)data; }
static struct kda_format_frame *frames_of(uint8_t *data)
{
    return (void *)(data + header_of(data)->spans[KDA_SPAN_FRAMES].offset);
}
static struct kda_format_cubin *cubins_of(uint8_t *data)
{
    return (void *)(data + header_of(data)->spans[KDA_SPAN_CUBINS].offset);
}

// Refused with one of these statuses, a line that says `fragment`, no memory kept, little asked
// for.
static void expect_refusal(const uint8_t *data, size_t size, kda_status status,
                           const char *fragment)
{
    kda_bundle *bundle = NULL;
    kda_error err = {0};
    const long live = fault_live();
    (void)fault_largest();
    const kda_status found = kda_bundle_open(data, size, &bundle, &err);
    if (found != status || err.status != found || bundle || !strstr(err.text, fragment) ||
        strchr(err.text, '\n'))
        fail_msg("expected %s with \"%s\", found %s: %s", kda_status_name(status), fragment,
                 kda_status_name(found), err.text);
    assert_int_equal(fault_live(), live);
    assert_int_equal(fault_largest(), 0);
}

static kda_bundle *open_good(const uint8_t *data, size_t size)
{
    kda_bundle *bundle = NULL;
    kda_error err;
    if (kda_bundle_open(data, size, &bundle, &err)) fail_msg("%s", err.text);
    return bundle;
}

static const char *body_of(const kda_bundle *bundle, uint32_t cubin)
{
    return bundle->strings + bundle->bodies[bundle->cubins[cubin].body].name;
}

static kda_status extract(const kda_bundle *bundle, uint32_t cubin, kda_error *err)
{
    void *image = NULL;
    size_t size = 0;
    const char *target = bundle->strings + bundle->targets[bundle->cubins[cubin].target].name;
    const kda_status status =
        kda_bundle_image(bundle, body_of(bundle, cubin), target, &image, &size, err);
    assert_true(status ? !image && !size : image && size == bundle->cubins[cubin].size);
    free(image);
    return status;
}

// The image of `frame` is refused by name, every other frame still gives its images, verify says
// the same.
static void expect_broken_frame(const uint8_t *data, size_t size, uint32_t frame, kda_status status,
                                const char *fragment)
{
    kda_bundle *bundle = open_good(data, size);
    kda_error err = {0};
    bool other = bundle->frame_count == 1, broken = false;
    const long live = fault_live();
    for (uint32_t i = 0; i < bundle->cubin_count && !(other && broken); ++i) {
        const bool inside = bundle->cubins[i].frame == frame;
        if (inside ? broken : other) continue;
        const kda_status found = extract(bundle, i, &err);
        if (found != (inside ? status : KDA_OK) || (inside && !strstr(err.text, fragment)))
            fail_msg("frame %u, image %u: %s: %s", frame, i, kda_status_name(found), err.text);
        if (inside) broken = true;
        if (!inside) other = true;
    }
    assert_true(broken && other);
    assert_int_equal(fault_live(), live);
    kda_bundle_close(&bundle);
}

// ------------------------------------------------------------------------------------------- flips

// One flipped byte anywhere: the index is refused, a frame is named, padding is found by verify.
static bool expect_flip_found(const uint8_t *data, size_t size, size_t at)
{
    const struct kda_format_header *header = (const void *)data;
    if (at < KDA_MAGIC_SIZE) return expect_refusal(data, size, KDA_E_FORMAT, "magic"), true;
    if (at < KDA_MAGIC_SIZE + 4) return expect_refusal(data, size, KDA_E_VERSION, "version"), true;
    kda_bundle *bundle = NULL;
    kda_error err = {0};
    const long live = fault_live();
    const kda_status status = kda_bundle_open(data, size, &bundle, &err);
    if (status) {
        if ((status != KDA_E_FORMAT && status != KDA_E_DIGEST) || !strstr(err.text, "expected") ||
            !strstr(err.text, "found"))
            if (!strstr(err.text, "states"))
                fail_msg("byte %zu: %s: %s", at, kda_status_name(status), err.text);
        assert_int_equal(fault_live(), live);
        return true;
    }
    if (at < header->index_size) fail_msg("byte %zu of the index is not missed", at);
    for (uint32_t i = 0; i < bundle->frame_count; ++i) {
        const struct kda_format_frame *frame = &bundle->frames[i];
        if (at < frame->offset || at >= frame->offset + frame->stored_size) continue;
        char text[64];
        (void)snprintf(text, sizeof text, "frame %u: sha256 expected ", i);
        kda_bundle_close(&bundle);
        expect_broken_frame(data, size, i, KDA_E_DIGEST, text);
        return true;
    }
    const kda_status found = kda_bundle_verify(bundle, &err);
    if (found != KDA_E_FORMAT || !strstr(err.text, "padding"))
        fail_msg("padding byte %zu: %s: %s", at, kda_status_name(found), err.text);
    kda_bundle_close(&bundle);
    return false;
}

static void every_bit_of_the_pair(void **state)
{
    (void)state;
    uint8_t *data = copy_of(pair.data, pair.size);
    long padding = 0;
    for (size_t at = 0; at < pair.size; ++at) {
        for (int bit = 0; bit < 9; ++bit) {
            data[at] ^= (uint8_t)(bit < 8 ? 1 << bit : 0xff);
            padding += !expect_flip_found(data, pair.size, at);
            data[at] = pair.data[at];
        }
    }
    print_message("%zu bytes, 9 flips each, %ld in padding\n", pair.size, padding);
    assert_true(padding > 0);
    kda_bundle *bundle = open_good(data, pair.size);
    kda_error err;
    if (kda_bundle_verify(bundle, &err)) fail_msg("%s", err.text);
    kda_bundle_close(&bundle);
    free(data);
}

static void every_index_byte_of_the_product(void **state)
{
    (void)state;
    struct blob whole = read_file(bundle_path);
    const size_t index_size = (size_t)header_of(whole.data)->index_size;
    long flips = 0;
    for (size_t at = 0; at < whole.size; at += at < index_size ? 1 : 97) {
        whole.data[at] ^= (uint8_t)(1 << at % 8);
        (void)expect_flip_found(whole.data, whole.size, at);
        whole.data[at] ^= (uint8_t)(1 << at % 8);
        ++flips;
    }
    print_message("%ld flips, %zu of them in the index\n", flips, index_size);
    free(whole.data);
}

static void every_length_of_the_pair(void **state)
{
    (void)state;
    for (size_t size = 0; size < pair.size; ++size) {
        uint8_t *data = copy_of(pair.data, size);
        expect_refusal(data, size, KDA_E_FORMAT,
                       size == 0                                 ? "empty"
                       : size < KDA_MAGIC_SIZE                   ? "magic expected"
                       : size < sizeof(struct kda_format_header) ? "truncated: header of 256"
                                                                 : "truncated: its header states");
        free(data);
    }
}

// ------------------------------------------------------------------------------------ signed lies

static void swapped_payloads(void **state)
{
    (void)state;
    uint8_t *data = copy_of(pair.data, pair.size);
    struct kda_format_frame *frames = frames_of(data);
    const size_t size = (size_t)frames[0].stored_size;
    assert_int_equal(frames[1].stored_size, size);
    memcpy(data + frames[0].offset, pair.data + frames[1].offset, size);
    memcpy(data + frames[1].offset, pair.data + frames[0].offset, size);
    // The digests of the frames still tell.
    kda_bundle *bundle = open_good(data, pair.size);
    kda_error err;
    assert_int_equal(extract(bundle, 0, &err), KDA_E_DIGEST);
    assert_non_null(strstr(err.text, "frame 0: sha256 expected"));
    assert_int_equal(extract(bundle, 1, &err), KDA_E_DIGEST);
    kda_bundle_close(&bundle);
    // With these signed too, those of the images do.
    pair_sign(data, pair.size);
    bundle = open_good(data, pair.size);
    for (uint32_t i = 0; i < 2; ++i) {
        char text[64];
        (void)snprintf(text, sizeof text, "cubin %u (%s.%s): sha256 expected", i, pair_bodies[i],
                       PAIR_TARGET);
        assert_int_equal(extract(bundle, i, &err), KDA_E_DIGEST);
        assert_non_null(strstr(err.text, text));
    }
    assert_int_equal(kda_bundle_verify(bundle, &err), KDA_E_DIGEST);
    kda_bundle_close(&bundle);
    free(data);
}

// One number of a record, and what must be said of it.
struct lie {
    bool cubin;
    size_t offset;
    uint64_t number;
    const char *fragment;
};
#define FRAME(field, number, text)                                                                 \
    {                                                                                              \
        false, offsetof(struct kda_format_frame, field), number, text                              \
    }
#define CUBIN(field, number, text)                                                                 \
    {                                                                                              \
        true, offsetof(struct kda_format_cubin, field), number, text                               \
    }

static void ranges(void **state)
{
    (void)state;
    const struct kda_format_frame *good = frames_of(pair.data);
    const uint64_t huge = UINT64_C(1) << 63;
    const struct lie lies[] = {
        FRAME(offset, good[0].offset, "frame 1: offset expected"),  // onto the other
        FRAME(offset, good[1].offset - KDA_ALIGN, "frame 1: offset expected"),
        FRAME(offset, pair.size, "frame 1: offset expected"),
        FRAME(offset, huge, "frame 1: offset expected"),
        FRAME(offset, UINT64_MAX, "frame 1: offset expected"),
        FRAME(stored_size, 0, "frame 1: stored size expected 1.."),
        FRAME(stored_size, pair.size, "frame 1: stored size expected"),
        FRAME(stored_size, huge, "frame 1: stored size expected"),
        FRAME(stored_size, UINT64_MAX - good[1].offset + 1, "frame 1: stored size expected"),
        FRAME(raw_size, 0, "frame 1: raw_size expected 1.."),
        FRAME(raw_size, huge, "found 9223372036854775808"),
        FRAME(raw_size, UINT64_MAX, "frame 1: raw_size expected"),
        CUBIN(offset, 1, "cubin 1 (second): range expected within the 160 bytes"),
        CUBIN(offset, huge, "cubin 1 (second): range expected"),
        CUBIN(offset, UINT64_MAX, "cubin 1 (second): range expected"),
        CUBIN(size, 0, "cubin 1 (second): range expected"),
        CUBIN(size, 161, "cubin 1 (second): range expected"),
        CUBIN(size, huge, "cubin 1 (second): range expected"),
        CUBIN(size, UINT64_MAX, "found 18446744073709551615 at 0"),
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; ++i) {
        uint8_t *data = copy_of(pair.data, pair.size);
        uint8_t *record = lies[i].cubin ? (void *)&cubins_of(data)[1] : (void *)&frames_of(data)[1];
        memcpy(record + lies[i].offset, &lies[i].number, sizeof lies[i].number);
        pair_sign(data, pair.size);
        expect_refusal(data, pair.size, KDA_E_FORMAT, lies[i].fragment);
        free(data);
    }
}

// The most that a lie can make the library ask for is what its limits say, and it is given back.
static void largest_allocation(void **state)
{
    (void)state;
    uint8_t *data = copy_of(pair.data, pair.size);
    frames_of(data)[1].raw_size = 16u << 20;
    cubins_of(data)[1].size = 16u << 20;
    pair_sign(data, pair.size);
    kda_bundle *bundle = open_good(data, pair.size);
    const long live = fault_live();
    (void)fault_largest();
    kda_error err;
    assert_int_equal(extract(bundle, 1, &err), KDA_E_FORMAT);
    assert_non_null(strstr(err.text, "frame 1: content size expected 16777216, found 160"));
    assert_true(fault_largest() < 4096);  // not even asked for
    assert_int_equal(extract(bundle, 0, &err), KDA_OK);
    assert_true(fault_largest() < 1u << 20);
    assert_int_equal(fault_live(), live);
    kda_bundle_close(&bundle);
    free(data);
}

static void other_versions_and_files(void **state)
{
    (void)state;
    uint8_t *data = copy_of(pair.data, pair.size);
    static const uint32_t versions[] = {0, 2, 3, 0x7fffffff, 0xffffffff};
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; ++i) {
        char text[64];
        (void)snprintf(text, sizeof text, "version expected 1, found %u", versions[i]);
        header_of(data)->version = versions[i];
        pair_sign(data, pair.size);
        expect_refusal(data, pair.size, KDA_E_VERSION, text);
    }
    free(data);
    static const char pointer[] =
        "version https://git-lfs.github.com/spec/v1\n"
        "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
        "size 148818\n";
    data = copy_of((const uint8_t *)pointer, sizeof pointer - 1);
    expect_refusal(data, sizeof pointer - 1, KDA_E_FORMAT, "Git LFS pointer");
    free(data);
    data = copy_of(NULL, 0);
    expect_refusal(data, 0, KDA_E_FORMAT, "empty");
    free(data);
}

// All of the above has opened bundles, routed and extracted; none of it may have looked for a
// driver.
static void no_driver_was_touched(void **state)
{
    (void)state;
    assert_int_equal(fault_calls(FAULT_DLOPEN), 0);
    assert_int_equal(fault_calls(FAULT_DLSYM), 0);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s BUNDLE\n", argv[0]);
        return 2;
    }
    bundle_path = argv[1];
    pair = pair_make();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bit_of_the_pair),
        cmocka_unit_test(every_index_byte_of_the_product),
        cmocka_unit_test(every_length_of_the_pair),
        cmocka_unit_test(swapped_payloads),
        cmocka_unit_test(ranges),
        cmocka_unit_test(largest_allocation),
        cmocka_unit_test(other_versions_and_files),
        cmocka_unit_test(no_driver_was_touched),
    };
    const int failed = cmocka_run_group_tests_name("hostile", tests, NULL, NULL);
    free(pair.data);
    return failed;
}
