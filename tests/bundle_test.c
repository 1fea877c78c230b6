// SPDX-License-Identifier: Apache-2.0
// The bundle file as an enemy would write it: flipped, cut, and with every number replaced under a
// valid index digest. A bundle either opens and verifies, or is refused with a typed error that
// names the entry.
//   bundle_test [BUNDLE]
// With BUNDLE, that file must open, verify, and give every image that it lists.
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <sha2.h>
#include <zstd.h>

#include "loader/bundle.h"
#include "loader/digest.h"
#include "loader/error.h"
#include "tests/blob.h"

static const char *bundle_path;
static struct blob blob;  // one target, so that every byte can be tried
static const uint64_t first_signed = offsetof(struct kda_format_header, file_size);

static struct kda_format_header *header_of(uint8_t *data) { return (void *)data; }

// Exactly `size` bytes, so that a sanitizer sees any access past them.
static uint8_t *copy_bytes(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    assert_non_null(copy);
    memcpy(copy, data, size);
    return copy;
}

static void sign(uint8_t *data, size_t size)
{
    struct kda_format_header *header = header_of(data);
    if (header->index_size < first_signed || header->index_size > size) return;
    kda_sha256(data + first_signed, (size_t)(header->index_size - first_signed),
               header->index_sha256);
}

static kda_status open_status(const uint8_t *data, size_t size, kda_error *err)
{
    kda_bundle *bundle = (kda_bundle *)(void *)&blob, *before = bundle;
    kda_status status = kda_bundle_open(data, size, &bundle, err);
    if (status) {
        assert_ptr_equal(bundle, before);
        assert_int_equal(err->status, status);
        assert_true(err->text[0] && !strchr(err->text, '\n'));
    } else {
        kda_bundle_close(&bundle);
        assert_null(bundle);
    }
    return status;
}

static void expect_refusal(const uint8_t *data, size_t size, kda_status status,
                           const char *fragment)
{
    kda_error err = {0};
    kda_status found = open_status(data, size, &err);
    if (found != status || !strstr(err.text, fragment))
        fail_msg("expected %s with \"%s\", found %s: %s", kda_status_name(status), fragment,
                 kda_status_name(found), err.text);
}

static kda_bundle *open_good(const uint8_t *data, size_t size)
{
    kda_bundle *bundle = NULL;
    kda_error err = {0};
    if (kda_bundle_open(data, size, &bundle, &err)) fail_msg("%s", err.text);
    return bundle;
}

static void verify_fails(const uint8_t *data, size_t size, kda_status status, const char *fragment)
{
    kda_bundle *bundle = open_good(data, size);
    kda_error err = {0};
    kda_status found = kda_bundle_verify(bundle, &err);
    if (found != status || !strstr(err.text, fragment))
        fail_msg("expected %s with \"%s\", found %s: %s", kda_status_name(status), fragment,
                 kda_status_name(found), err.text);
    kda_bundle_close(&bundle);
}

// The same bundle with every frame decompressed, edited, compressed at another level, and signed
// again.
static struct blob rebuild(const struct blob *from, int level,
                           void (*edit)(uint32_t frame, uint8_t *raw, size_t size))
{
    struct blob out = {.data = calloc(1, 4 * from->size + 65536)};
    assert_non_null(out.data);
    memcpy(out.data, from->data, header_of(from->data)->index_size);
    struct kda_format_header *header = header_of(out.data);
    struct kda_format_frame *frames = (void *)(out.data + header->spans[KDA_SPAN_FRAMES].offset);
    uint64_t at = header->index_size;
    for (uint32_t i = 0; i < header->spans[KDA_SPAN_FRAMES].count; ++i) {
        size_t raw_size = (size_t)frames[i].raw_size;
        uint8_t *raw = malloc(raw_size);
        assert_int_equal(ZSTD_decompress(raw, raw_size, from->data + frames[i].offset,
                                         (size_t)frames[i].stored_size),
                         raw_size);
        if (edit) edit(i, raw, raw_size);
        frames[i].offset = at;
        frames[i].stored_size =
            ZSTD_compress(out.data + at, ZSTD_compressBound(raw_size), raw, raw_size, level);
        kda_sha256(out.data + at, (size_t)frames[i].stored_size, frames[i].sha256);
        out.size = (size_t)(at + frames[i].stored_size);
        at = (out.size + KDA_ALIGN - 1) / KDA_ALIGN * KDA_ALIGN;
        free(raw);
    }
    header->file_size = out.size;
    sign(out.data, out.size);
    return out;
}

// --------------------------------------------------------------------------------- good ones

static void check_images(const kda_bundle *bundle)
{
    kda_error err = {.text = "unset"};
    if (kda_bundle_verify(bundle, &err)) fail_msg("%s", err.text);
    assert_true(bundle->cubin_count > 0);
    for (uint32_t i = 0; i < bundle->cubin_count; ++i) {
        const struct kda_format_cubin *cubin = &bundle->cubins[i];
        void *data = NULL;
        size_t size = 0;
        uint8_t digest[32];
        if (kda_bundle_image(bundle, bundle->strings + bundle->bodies[cubin->body].name,
                             bundle->strings + bundle->targets[cubin->target].name, &data, &size,
                             &err))
            fail_msg("%s", err.text);
        kda_sha256(data, size, digest);
        assert_int_equal(size, cubin->size);
        assert_memory_equal(digest, cubin->sha256, 32);
        free(data);
    }
    assert_string_equal(err.text, "unset");
}

static void opens(void **state)
{
    (void)state;
    kda_bundle *bundle = open_good(blob.data, blob.size);
    check_images(bundle);
    void *data = NULL;
    size_t size = 0;
    kda_error err;
    assert_int_equal(kda_bundle_image(bundle, "packed_t1_tile8", "sm_100f", &data, &size, &err),
                     KDA_OK);
    const char text[] = "image of packed_t1_tile8 for sm_100f by 12.9.86";
    assert_memory_equal(data, text, sizeof text - 1);
    free(data);
    data = NULL;
    assert_int_equal(kda_bundle_image(bundle, "packed_t1_tile9", "sm_100f", &data, &size, &err),
                     KDA_E_NAME);
    assert_non_null(strstr(err.text, "packed_t1_tile9"));
    assert_int_equal(kda_bundle_image(bundle, "packed_t1_tile8", "sm_100g", &data, &size, &err),
                     KDA_E_NAME);
    assert_non_null(strstr(err.text, "sm_100g"));
    assert_int_equal(kda_bundle_image(bundle, "packed_t1_tile8", "sm_103a", &data, &size, &err),
                     KDA_E_NO_ROUTE);
    assert_non_null(strstr(err.text, "packed_t1_tile8 for sm_103a"));
    assert_int_equal(kda_bundle_image(bundle, NULL, "sm_103a", &data, &size, &err), KDA_E_ARGUMENT);
    assert_int_equal(kda_bundle_image(bundle, "packed_t1_tile8", "sm_100f", NULL, &size, NULL),
                     KDA_E_ARGUMENT);
    assert_null(data);
    kda_bundle_close(&bundle);
    kda_bundle_close(&bundle);
    kda_bundle_close(NULL);
}

static void the_file(void **state)
{
    (void)state;
    if (!bundle_path) skip();
    kda_bundle *bundle = NULL;
    kda_error err = {0};
    if (kda_bundle_open_file(bundle_path, &bundle, &err)) fail_msg("%s", err.text);
    check_images(bundle);
    kda_bundle_close(&bundle);
}

static void id_of(const struct blob *from, uint8_t out[32])
{
    kda_bundle *bundle = open_good(from->data, from->size);
    kda_bundle_id(bundle, out);
    kda_bundle_close(&bundle);
}

static void identity(void **state)
{
    (void)state;
    uint8_t id[32], other[32];
    id_of(&blob, id);
    id_of(&blob, other);
    assert_memory_equal(id, other, 32);

    struct blob fast = rebuild(&blob, 1, NULL);
    header_of(fast.data)->zstd_version = 1;
    sign(fast.data, fast.size);
    assert_memory_not_equal(fast.data, blob.data, blob.size < fast.size ? blob.size : fast.size);
    kda_bundle *bundle = open_good(fast.data, fast.size);
    check_images(bundle);
    kda_bundle_close(&bundle);
    id_of(&fast, other);
    assert_memory_equal(id, other, 32);

    // Whatever a bundle means, moves its id.
    struct kda_format_header *header = header_of(fast.data);
    uint8_t *bodies = fast.data + header->spans[KDA_SPAN_BODIES].offset;
    uint8_t *cubins = fast.data + header->spans[KDA_SPAN_CUBINS].offset;
    uint8_t *rules = fast.data + header->spans[KDA_SPAN_RULES].offset;
    uint8_t *targets = fast.data + header->spans[KDA_SPAN_TARGETS].offset;
    uint8_t *strings = fast.data + header->spans[KDA_SPAN_STRINGS].offset;
    struct {
        uint8_t *byte;
        uint8_t change;
    } moves[] = {
        {bodies + offsetof(struct kda_format_body, sha256), 1},
        {bodies + offsetof(struct kda_format_body, smem), 16},
        {cubins + offsetof(struct kda_format_cubin, sha256) + 31, 0x80},
        {cubins + offsetof(struct kda_format_cubin, min_cuda), 2},
        {rules + offsetof(struct kda_format_rule, num), 4},
        {targets + offsetof(struct kda_format_target, floor), 2},
        {strings + 1, 'a' ^ 'b'},
    };
    for (size_t i = 0; i < sizeof moves / sizeof *moves; ++i) {
        *moves[i].byte ^= moves[i].change;
        sign(fast.data, fast.size);
        id_of(&fast, other);
        if (!memcmp(id, other, 32)) fail_msg("move %zu leaves the id", i);
        *moves[i].byte ^= moves[i].change;
    }
    free(fast.data);
}

// ------------------------------------------------------------------------------ broken bytes

static void flips(void **state)
{
    (void)state;
    uint8_t *data = copy_bytes(blob.data, blob.size);
    uint64_t index_size = header_of(data)->index_size;
    for (size_t i = 0; i < blob.size; ++i) {
        for (int k = 0; k < 2; ++k) {
            data[i] ^= (uint8_t)(k ? 0xff : 1 << i % 8);
            kda_error err = {0};
            kda_bundle *bundle = NULL;
            kda_status status = kda_bundle_open(data, blob.size, &bundle, &err);
            if (i < index_size && !status) fail_msg("byte %zu of the index: opens", i);
            if (i >= index_size) {
                if (status) fail_msg("byte %zu of the frames: %s", i, err.text);
                status = kda_bundle_verify(bundle, &err);
                if (!status) fail_msg("byte %zu of the frames: verifies", i);
                kda_bundle_close(&bundle);
            }
            if (status != KDA_E_DIGEST && status != KDA_E_FORMAT && status != KDA_E_VERSION)
                fail_msg("byte %zu: %s: %s", i, kda_status_name(status), err.text);
            data[i] = blob.data[i];
        }
    }
    assert_int_equal(open_status(data, blob.size, NULL), KDA_OK);
    free(data);
}

static void truncations(void **state)
{
    (void)state;
    for (size_t size = 0; size < blob.size; ++size) {
        uint8_t *data = copy_bytes(blob.data, size);
        kda_error err = {0};
        kda_status status = open_status(data, size, &err);
        if (status != KDA_E_FORMAT)
            fail_msg("%zu bytes: %s: %s", size, kda_status_name(status), err.text);
        free(data);
    }
    uint8_t *data = calloc(1, blob.size + 1);
    memcpy(data, blob.data, blob.size);
    expect_refusal(data, blob.size + 1, KDA_E_FORMAT, "header states");
    free(data);
}

static void other_files(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
        const char *fragment;
    } files[] = {
        {"", 0, "empty"},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", 60,
         "Git LFS pointer"},
        {"\x8bKDA\n\x1a\n........", 15, "text-mode"},
        {"\x8bKDA\r\r\n\x1a\r\n......", 16, "text-mode"},
        {"\x0bKDA\r\n\x1a\n", 8, "7-bit"},
        {"\xc2\x8bKDA\r\n\x1a\n", 9, "UTF-8"},
        {"\x7f"
         "ELF....................",
         24, "ELF"},
        {"\x28\xb5\x2f\xfd............", 16, "zstd"},
        {"\x8bKDA\r\n\x1a", 7, "magic expected"},
        {"\x8bKDA\r\n\x1a\n", 8, "truncated"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; ++i) {
        uint8_t *data = copy_bytes((const uint8_t *)files[i].bytes, files[i].size);
        expect_refusal(data, files[i].size, KDA_E_FORMAT, files[i].fragment);
        free(data);
    }
    uint8_t *data = copy_bytes(blob.data, blob.size);
    header_of(data)->version = KDA_FORMAT_VERSION + 1;
    expect_refusal(data, blob.size, KDA_E_VERSION, "expected 1, found 2: this library is older");
    expect_refusal(data, 12, KDA_E_VERSION, "found 2");
    header_of(data)->version = 0;
    expect_refusal(data, blob.size, KDA_E_VERSION, "the bundle is older");
    free(data);
}

static void arguments(void **state)
{
    (void)state;
    kda_bundle *bundle = NULL;
    kda_error err = {0};
    assert_int_equal(kda_bundle_open(NULL, 1, &bundle, &err), KDA_E_ARGUMENT);
    assert_int_equal(kda_bundle_open(blob.data, blob.size, NULL, &err), KDA_E_ARGUMENT);
    uint8_t *shifted = malloc(blob.size + 8);
    memcpy(shifted + 4, blob.data, blob.size);
    assert_int_equal(kda_bundle_open(shifted + 4, blob.size, &bundle, &err), KDA_E_ARGUMENT);
    assert_non_null(strstr(err.text, "% 8 = 4"));
    free(shifted);
    assert_int_equal(kda_bundle_open_file(NULL, &bundle, &err), KDA_E_ARGUMENT);
    assert_int_equal(kda_bundle_verify(NULL, &err), KDA_E_ARGUMENT);
    assert_null(bundle);
}

static void write_file(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void expect_file(const char *path, kda_status status, const char *fragment)
{
    kda_bundle *bundle = NULL;
    kda_error err = {0};
    kda_status found = kda_bundle_open_file(path, &bundle, &err);
    if (found != status || !strstr(err.text, fragment))
        fail_msg("%s: expected %s with \"%s\", found %s: %s", path, kda_status_name(status),
                 fragment, kda_status_name(found), err.text);
    assert_null(bundle);
}

static void files(void **state)
{
    (void)state;
    char folder[] = "bundle-test-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/file", folder);
    expect_file(path, KDA_E_IO, "No such file");
    expect_file(folder, KDA_E_IO, "a directory");
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_file(path, KDA_E_IO, "regular file");
    assert_int_equal(unlink(path), 0);
    write_file(path, "", 0);
    expect_file(path, KDA_E_FORMAT, "empty file");
    write_file(path, "version https://git-lfs.github.com/spec/v1\n", 43);
    expect_file(path, KDA_E_FORMAT, "Git LFS pointer");
    assert_int_equal(truncate(path, (1ll << 30) + 1), 0);
    expect_file(path, KDA_E_IO, "at most 1073741824 bytes, found 1073741825");
    write_file(path, blob.data, blob.size);

    kda_bundle *bundle = NULL;
    kda_error err = {0};
    assert_int_equal(kda_bundle_open_file(path, &bundle, &err), KDA_OK);
    write_file(path, "gone", 4);  // a file that changes later changes nothing here
    check_images(bundle);
    uint8_t id[32], expected[32];
    kda_bundle_id(bundle, id);
    kda_bundle_id(bundle, NULL);
    id_of(&blob, expected);
    assert_memory_equal(id, expected, 32);
    kda_bundle_close(&bundle);
    kda_bundle_id(NULL, id);
    assert_memory_equal(id, ((uint8_t[32]){0}), 32);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

// --------------------------------------------------------------------------- hostile numbers

static void use(const kda_bundle *bundle)
{
    uint8_t id[32];
    kda_error err = {0};
    kda_bundle_id(bundle, id);
    kda_status status = kda_bundle_verify(bundle, &err);
    if (status && status != KDA_E_FORMAT && status != KDA_E_DIGEST) fail_msg("%s", err.text);
    static const int ccs[] = {100, 103};
    for (int tokens = 1; tokens <= 6; ++tokens) {
        for (size_t i = 0; i < sizeof ccs / sizeof *ccs; ++i) {
            kda_device device = {.cc_major = ccs[i] / 10,
                                 .cc_minor = ccs[i] % 10,
                                 .cuda_version = 13000,
                                 .sm_count = 148};
            kda_problem problem = {.op = KDA_OP_RECURRENT,
                                   .tokens = tokens,
                                   .rows = 8,
                                   .heads = 16,
                                   .value_heads = 16};
            kda_route_result route;
            if (tokens == 3) problem.gate = KDA_GATE_LOWER_BOUND;
            (void)kda_route(bundle, &device, &problem, &route, &err);
            problem.target = "sm_100f";
            (void)kda_route(bundle, &device, &problem, &route, &err);
            problem.body = "d128_t1_precomputed_split1";
            (void)kda_route(bundle, &device, &problem, &route, &err);
        }
    }
}

// Every 4-byte and 8-byte word of the index becomes every hostile number. Whatever still opens must
// be usable.
static void hostile_words(void **state)
{
    (void)state;
    uint8_t *data = copy_bytes(blob.data, blob.size);
    uint64_t index_size = header_of(data)->index_size;
    uint64_t numbers[] = {0,
                          1,
                          31,
                          255,
                          0x7fffffff,
                          0x80000000,
                          0xffffffff,
                          index_size,
                          UINT64_MAX,
                          UINT64_MAX - 63,
                          UINT64_C(1) << 63};
    long refused = 0, opened = 0;
    for (uint64_t at = first_signed; at < index_size; at += 4) {
        for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) {
            for (int width = 4; width <= 8; width += 4) {
                if (width == 8 && (at % 8 || at + 8 > index_size)) continue;
                if (width == 4 && numbers[i] > UINT32_MAX) continue;
                memcpy(data + at, &numbers[i], (size_t)width);
                sign(data, blob.size);
                kda_bundle *bundle = NULL;
                kda_error err = {0};
                kda_status status = kda_bundle_open(data, blob.size, &bundle, &err);
                if (status && status != KDA_E_FORMAT && status != KDA_E_DIGEST)
                    fail_msg("word %llu = %#llx: %s", (unsigned long long)at,
                             (unsigned long long)numbers[i], err.text);
                if (!status) {
                    // Decompression is slow and depends on few words: digests are tried by the
                    // flips.
                    if (at % 128 < 64) use(bundle);
                    kda_bundle_close(&bundle);
                    ++opened;
                } else {
                    ++refused;
                }
                memcpy(data + at, blob.data + at, (size_t)width);
                memcpy(data, blob.data, first_signed);
            }
        }
    }
    assert_true(refused > opened);
    assert_true(opened > 0);
    free(data);
}

struct patch {
    int span;
    uint32_t record;
    size_t offset, width;
    uint64_t number;
    const char *fragment;
};
#define IN(section, type, index, field, number, fragment)                                          \
    {                                                                                              \
        section, index, offsetof(struct kda_format_##type, field),                                 \
            sizeof(((struct kda_format_##type *)0)->field) > 8                                     \
                ? 4                                                                                \
                : sizeof(((struct kda_format_##type *)0)->field),                                  \
            (uint64_t)(number), fragment                                                           \
    }

// Each rule of the format, broken alone.
static void broken_rules(void **state)
{
    (void)state;
    const struct patch patches[] = {
        IN(-1, header, 0, file_size, 64, "header states 64"),
        IN(-1, header, 0, index_size, 65, "index size"),
        IN(-1, header, 0, index_size, 0, "index size"),
        IN(-1, header, 0, index_size, UINT64_MAX - 63, "index size"),
        IN(-1, header, 0, header_size, 128, "header size expected 256, found 128"),
        IN(-1, header, 0, flags, 2, "flags"),
        IN(-1, header, 0, padding, 1, "header padding"),
        IN(-1, header, 0, spans[0].offset, 320, "bodies: offset expected 256"),
        IN(-1, header, 0, spans[0].count, 1025, "bodies: count expected at most 1024, found 1025"),
        IN(-1, header, 0, spans[1].count, UINT64_MAX, "cubins: count"),
        IN(-1, header, 0, spans[1].count, 16384, "do not fit"),
        IN(-1, header, 0, spans[2].offset, 0, "frames: offset"),
        IN(-1, header, 0, spans[7].count, 1, "end of the index"),
        IN(KDA_SPAN_BODIES, body, 3, name, 1u << 30, "body 3: name: string offset"),
        IN(KDA_SPAN_BODIES, body, 3, name, 0, "body 3: name expected"),
        IN(KDA_SPAN_BODIES, body, 3, layout, UINT32_MAX, "body 3: layout"),
        IN(KDA_SPAN_BODIES, body, 3, entry, 0, "body 3: entry"),
        IN(KDA_SPAN_BODIES, body, 0, op, 0,
           "body 0 (d128_t1_precomputed_split1): op expected 1..255, found 0"),
        IN(KDA_SPAN_BODIES, body, 0, gate, 256, "gate expected"),
        IN(KDA_SPAN_BODIES, body, 0, tokens_min, 0, "tokens_min expected"),
        IN(KDA_SPAN_BODIES, body, 0, tokens_max, 0, "tokens_max expected"),
        IN(KDA_SPAN_BODIES, body, 0, split, 3, "divisor of 128, found 3"),
        IN(KDA_SPAN_BODIES, body, 0, split, 0, "split expected"),
        IN(KDA_SPAN_BODIES, body, 0, threads, 48, "multiple of 32, found 48"),
        IN(KDA_SPAN_BODIES, body, 0, threads, 2048, "threads expected"),
        IN(KDA_SPAN_BODIES, body, 0, smem, 1u << 20, "smem expected"),
        IN(KDA_SPAN_BODIES, body, 0, flags, 64, "flags expected"),
        IN(KDA_SPAN_BODIES, body, 0, head_set, 1, "head_set accepts H = 0"),
        IN(KDA_SPAN_BODIES, body, 0, row_set, 1, "row_set"),
        IN(KDA_SPAN_BODIES, body, 0, params_version, 0, "params_version"),
        IN(KDA_SPAN_BODIES, body, 0, params_size, 0, "params_size"),
        IN(KDA_SPAN_BODIES, body, 0, state_type, 3, "state_type"),
        IN(KDA_SPAN_BODIES, body, 0, mode_set, 1, "mode_set accepts mode 0"),
        IN(KDA_SPAN_BODIES, body, 0, reserved, 1, "reserved"),
        IN(KDA_SPAN_CUBINS, cubin, 2, body, 4096, "cubin 2: body expected below "),
        IN(KDA_SPAN_CUBINS, cubin, 2, target, 3, "cubin 2: target expected below 3, found 3"),
        IN(KDA_SPAN_CUBINS, cubin, 2, frame, UINT32_MAX, "cubin 2: frame expected below"),
        IN(KDA_SPAN_CUBINS, cubin, 2, body, 1,
           "cubin 2 (d128_t1_precomputed_split2.sm_100f): expected in order"),
        IN(KDA_SPAN_CUBINS, cubin, 2, body, 5,
           "cubin 3 (d128_t1_precomputed_split8.sm_100f): expected in order"),
        IN(KDA_SPAN_CUBINS, cubin, 2, toolkit, 0, "toolkit"),
        IN(KDA_SPAN_CUBINS, cubin, 2, options, UINT32_MAX, "options"),
        IN(KDA_SPAN_CUBINS, cubin, 2, min_cuda, 0, "min_cuda"),
        IN(KDA_SPAN_CUBINS, cubin, 2, registers, 256, "registers"),
        IN(KDA_SPAN_CUBINS, cubin, 2, stack, UINT32_MAX, "stack"),
        IN(KDA_SPAN_CUBINS, cubin, 2, shared, UINT32_MAX, "shared"),
        IN(KDA_SPAN_CUBINS, cubin, 2, barriers, 17, "barriers"),
        IN(KDA_SPAN_CUBINS, cubin, 2, reserved, 1, "reserved"),
        IN(KDA_SPAN_CUBINS, cubin, 2, offset, UINT64_MAX,
           "cubin 2 (d128_t1_precomputed_split4): range expected"),
        IN(KDA_SPAN_CUBINS, cubin, 2, size, UINT64_MAX, "range expected"),
        IN(KDA_SPAN_CUBINS, cubin, 2, size, 0, "range expected"),
        IN(KDA_SPAN_CUBINS, cubin, 2, size, 1u << 20, "range expected"),
        IN(KDA_SPAN_CUBINS, cubin, 2, padding, 1, "padding"),
        IN(KDA_SPAN_FRAMES, frame, 1, offset, 0, "frame 1: offset expected"),
        IN(KDA_SPAN_FRAMES, frame, 0, offset, UINT64_MAX - 63, "frame 0: offset expected"),
        IN(KDA_SPAN_FRAMES, frame, 0, stored_size, UINT64_MAX, "frame 0: stored size"),
        IN(KDA_SPAN_FRAMES, frame, 0, stored_size, 0, "frame 0: stored size"),
        IN(KDA_SPAN_FRAMES, frame, 0, raw_size, (16u << 20) + 1,
           "frame 0: raw_size expected 1..16777216"),
        IN(KDA_SPAN_FRAMES, frame, 0, raw_size, 0, "raw_size"),
        IN(KDA_SPAN_FRAMES, frame, 0, padding, 1, "padding"),
        IN(KDA_SPAN_ROUTES, route, 1, op, 0, "route 1: op"),
        IN(KDA_SPAN_ROUTES, route, 1, op, 2, "route 1: rule 0: body expected for op 2"),
        IN(KDA_SPAN_ROUTES, route, 1, gate, 1, "route 1: rule 0: body expected for op 1, gate 1"),
        IN(KDA_SPAN_ROUTES, route, 1, gate, 256, "route 1: gate"),
        IN(KDA_SPAN_ROUTES, route, 1, tokens_min, 0, "tokens_min"),
        IN(KDA_SPAN_ROUTES, route, 1, tokens_max, 2, "T=1..2"),
        IN(KDA_SPAN_ROUTES, route, 1, head_set, 1, "head_set accepts H = 0"),
        IN(KDA_SPAN_ROUTES, route, 1, state_type, 3, "state_type"),
        IN(KDA_SPAN_ROUTES, route, 1, mode_set, 1, "mode_set accepts mode 0"),
        IN(KDA_SPAN_ROUTES, route, 1, cc, 0, "route 1: cc"),
        IN(KDA_SPAN_ROUTES, route, 1, rule_first, UINT32_MAX, "rule_first"),
        IN(KDA_SPAN_ROUTES, route, 1, rule_count, UINT32_MAX, "rule_count"),
        IN(KDA_SPAN_ROUTES, route, 1, rule_count, 0, "rule_count"),
        IN(KDA_SPAN_ROUTES, route, 1, rule_count, 1, "kind expected ELSE, found 1"),
        IN(KDA_SPAN_ROUTES, route, 1, rule_count, 3, "kind expected a condition, found 3"),
        IN(KDA_SPAN_ROUTES, route, 1, reserved, 1, "reserved"),
        IN(KDA_SPAN_RULES, rule, 0, kind, 4, "rule 0: kind"),
        IN(KDA_SPAN_RULES, rule, 0, kind, 0, "rule 0: kind"),
        IN(KDA_SPAN_RULES, rule, 0, body, UINT32_MAX, "rule 0: body"),
        IN(KDA_SPAN_RULES, rule, 0, den, 0, "rule 0: den expected >= 1, found 0"),
        IN(KDA_SPAN_RULES, rule, 0, den, UINT64_MAX, "found -1"),
        IN(KDA_SPAN_PREFERENCES, preference, 1, cc, 0, "preference 1: cc"),
        IN(KDA_SPAN_PREFERENCES, preference, 1, op, 0, "preference 1: op"),
        IN(KDA_SPAN_PREFERENCES, preference, 1, op, 2, "preference 1: op expected 1..1, found 2"),
        IN(KDA_SPAN_PREFERENCES, preference, 1, body, UINT32_MAX - 1,
           "preference 1: body expected below "),
        IN(KDA_SPAN_PREFERENCES, preference, 1, target_count, 0, "target_count"),
        IN(KDA_SPAN_PREFERENCES, preference, 1, target_count, 5, "target_count"),
        IN(KDA_SPAN_PREFERENCES, preference, 1, targets[0], 3,
           "preference 1: targets[0] expected below 3, found 3"),
        IN(KDA_SPAN_PREFERENCES, preference, 1, targets[0], 1,
           "expected to run on CC 10.3, found sm_100a"),
        IN(KDA_SPAN_PREFERENCES, preference, 1, targets[3], 1,
           "preference 1: targets[3] expected to be 0, found 1"),
        IN(KDA_SPAN_TARGETS, target, 0, name, 0, "target 0: name"),
        IN(KDA_SPAN_TARGETS, target, 0, floor, 0, "floor"),
        IN(KDA_SPAN_TARGETS, target, 0, cc_count, 0, "cc_count"),
        IN(KDA_SPAN_TARGETS, target, 0, cc_count, 5, "cc_count"),
        IN(KDA_SPAN_TARGETS, target, 0, ccs[0], 0, "target 0 (sm_100f): ccs[0]"),
        IN(KDA_SPAN_TARGETS, target, 0, ccs[3], 7,
           "target 0 (sm_100f): ccs[3] expected 0, found 7"),
        IN(KDA_SPAN_TARGETS, target, 0, reserved, 1, "reserved"),
        {KDA_SPAN_STRINGS, 0, 0, 1, 'x', "strings: expected to begin"},
        {KDA_SPAN_STRINGS, 0, 1, 1, '\n', "strings: byte 1: expected printable"},
        {KDA_SPAN_STRINGS, 0, 1, 1, '/', "expected 1 to 255 of [A-Za-z0-9_]"},
    };
    static const size_t sizes[KDA_SPAN_COUNT] = {
        sizeof(struct kda_format_body),   sizeof(struct kda_format_cubin),
        sizeof(struct kda_format_frame),  sizeof(struct kda_format_route),
        sizeof(struct kda_format_rule),   sizeof(struct kda_format_preference),
        sizeof(struct kda_format_target), 1};
    uint8_t *data = copy_bytes(blob.data, blob.size);
    for (size_t i = 0; i < sizeof patches / sizeof *patches; ++i) {
        const struct patch *patch = &patches[i];
        uint64_t at = patch->offset;
        if (patch->span >= 0)
            at += header_of(data)->spans[patch->span].offset + patch->record * sizes[patch->span];
        memcpy(data + at, &patch->number, patch->width);
        sign(data, blob.size);
        expect_refusal(data, blob.size, KDA_E_FORMAT, patch->fragment);
        memcpy(data, blob.data, blob.size);
    }
    // Two of a kind, and a byte between two sections.
    struct kda_format_header *header = header_of(data);
    struct kda_format_body *bodies = (void *)(data + header->spans[KDA_SPAN_BODIES].offset);
    bodies[4].name = bodies[2].name;
    sign(data, blob.size);
    expect_refusal(data, blob.size, KDA_E_FORMAT,
                   "body 4 (d128_t1_precomputed_split4): name expected once");
    memcpy(data, blob.data, blob.size);
    struct kda_format_target *targets = (void *)(data + header->spans[KDA_SPAN_TARGETS].offset);
    targets[2].name = targets[0].name;
    sign(data, blob.size);
    expect_refusal(data, blob.size, KDA_E_FORMAT,
                   "target 2 (sm_100f): name expected once, found at target 0");
    memcpy(data, blob.data, blob.size);
    uint64_t end = header->spans[KDA_SPAN_STRINGS].offset + header->spans[KDA_SPAN_STRINGS].count;
    if (end < header->index_size) {
        data[end] = 1;
        sign(data, blob.size);
        expect_refusal(data, blob.size, KDA_E_FORMAT, "padding before end of the index");
    }
    free(data);
}

// ------------------------------------------------------------------------------------- frames

static uint64_t gap_at;  // of frame 0
static void fill_gap(uint32_t frame, uint8_t *raw, size_t size)
{
    (void)size;
    if (frame == 0) raw[gap_at] = 1;
}

static void change_image(uint32_t frame, uint8_t *raw, size_t size)
{
    (void)size;
    if (frame == 0) raw[3] ^= 4;
}

// The image of frame 0 with the lowest offset from `from` on.
static uint32_t image_from(const kda_bundle *bundle, uint64_t from)
{
    uint32_t found = KDA_NONE;
    for (uint32_t i = 0; i < bundle->cubin_count; ++i) {
        const struct kda_format_cubin *cubin = &bundle->cubins[i];
        if (cubin->frame != 0 || cubin->offset < from) continue;
        if (found == KDA_NONE || cubin->offset < bundle->cubins[found].offset) found = i;
    }
    if (found == KDA_NONE) fail_msg("frame 0 has no image from %llu on", (unsigned long long)from);
    return found;
}

static const char *name_of(const kda_bundle *bundle, uint32_t cubin)
{
    return bundle->strings + bundle->bodies[bundle->cubins[cubin].body].name;
}

static void frames(void **state)
{
    (void)state;
    kda_error err = {0};
    void *image = NULL;
    size_t size = 0;
    char text[256];
    kda_bundle *good = open_good(blob.data, blob.size);
    const uint32_t first = image_from(good, 0), second = image_from(good, 1);
    const struct kda_format_cubin *cubin = &good->cubins[first];
    gap_at = cubin->offset + cubin->size;
    assert_true(cubin->offset == 0);
    assert_true(good->cubins[second].offset > gap_at);

    // A frame with a valid digest, but an image without.
    struct blob bad = rebuild(&blob, 3, change_image);
    snprintf(text, sizeof text, "cubin %u (%s.sm_100f): sha256 expected", first,
             name_of(good, first));
    verify_fails(bad.data, bad.size, KDA_E_DIGEST, text);
    kda_bundle *bundle = open_good(bad.data, bad.size);
    assert_int_equal(kda_bundle_image(bundle, name_of(good, first), "sm_100f", &image, &size, &err),
                     KDA_E_DIGEST);
    assert_null(image);
    assert_int_equal(
        kda_bundle_image(bundle, name_of(good, second), "sm_100f", &image, &size, &err), KDA_OK);
    free(image);
    kda_bundle_close(&bundle);
    free(bad.data);

    bad = rebuild(&blob, 3, fill_gap);
    verify_fails(bad.data, bad.size, KDA_E_FORMAT, "frame 0: padding byte");
    free(bad.data);

    // Images that overlap in their frame: the second begins inside the first and has a digest of
    // its own.
    uint8_t *data = copy_bytes(blob.data, blob.size);
    struct kda_format_header *header = header_of(data);
    struct kda_format_cubin *cubins = (void *)(data + header->spans[KDA_SPAN_CUBINS].offset);
    cubins[second].offset = 1;
    cubins[second].size = 4;
    kda_sha256("mage", 4, cubins[second].sha256);
    sign(data, blob.size);
    snprintf(text, sizeof text, "cubin %u (%s.sm_100f): offset expected", second,
             name_of(good, second));
    verify_fails(data, blob.size, KDA_E_FORMAT, text);
    memcpy(data, blob.data, blob.size);
    kda_bundle_close(&good);

    // Another raw size than zstd's own, a frame that does not fill its record, and none at all.
    struct kda_format_frame *records = (void *)(data + header->spans[KDA_SPAN_FRAMES].offset);
    records[0].raw_size += 1;
    sign(data, blob.size);
    verify_fails(data, blob.size, KDA_E_FORMAT, "frame 0: content size expected");
    memcpy(data, blob.data, blob.size);
    uint32_t last = (uint32_t)header->spans[KDA_SPAN_FRAMES].count - 1;
    uint64_t offset = records[last].offset;
    uint8_t *longer = calloc(1, blob.size + 1);
    memcpy(longer, blob.data, blob.size);
    header_of(longer)->file_size = blob.size + 1;
    records = (void *)(longer + header->spans[KDA_SPAN_FRAMES].offset);
    records[last].stored_size += 1;
    kda_sha256(longer + offset, (size_t)records[last].stored_size, records[last].sha256);
    sign(longer, blob.size + 1);
    verify_fails(longer, blob.size + 1, KDA_E_FORMAT, "expected one zstd frame");
    free(longer);
    records = (void *)(data + header->spans[KDA_SPAN_FRAMES].offset);
    data[offset] ^= 1;
    kda_sha256(data + offset, (size_t)records[last].stored_size, records[last].sha256);
    sign(data, blob.size);
    verify_fails(data, blob.size, KDA_E_FORMAT, "found -2");
    free(data);
}

static void error_text(void **state)
{
    (void)state;
    kda_error err = {.cuda = 7};
    assert_int_equal(kda_fail(&err, KDA_E_SHAPE, "expected %d, found %s", 3, "a\nb\x7f"),
                     KDA_E_SHAPE);
    assert_int_equal(err.status, KDA_E_SHAPE);
    assert_int_equal(err.cuda, 0);
    assert_string_equal(err.text, "expected 3, found a?b?");
    assert_int_equal(kda_fail_driver(&err, KDA_E_DRIVER, 719, "launch %s", "failed"), KDA_E_DRIVER);
    assert_int_equal(err.cuda, 719);
    assert_string_equal(err.text, "launch failed");
    assert_int_equal(kda_fail(NULL, KDA_E_LIMIT, "nobody reads this"), KDA_E_LIMIT);
    assert_int_equal(kda_fail_driver(NULL, KDA_E_DRIVER, 1, "nor this"), KDA_E_DRIVER);
    kda_fail(&err, KDA_E_IO, "%*s", KDA_ERROR_TEXT - 1, "x");
    assert_int_equal(strlen(err.text), KDA_ERROR_TEXT - 1);
    assert_string_equal(err.text + KDA_ERROR_TEXT - 3, " x");
    kda_fail(&err, KDA_E_IO, "%*s", KDA_ERROR_TEXT, "x");
    assert_string_equal(err.text + KDA_ERROR_TEXT - 5, " ...");

    assert_string_equal(kda_status_name(KDA_OK), "KDA_OK");
    assert_string_equal(kda_status_name(KDA_E_NO_MEMORY), "KDA_E_NO_MEMORY");
    assert_string_equal(kda_status_name((kda_status)10), "KDA_E_?");
    int known = 0;
    for (int i = 0; i < 256; ++i) known += strcmp(kda_status_name((kda_status)i), "KDA_E_?") != 0;
    assert_int_equal(known, 22);
}

static int set_up(void **state)
{
    (void)state;
    const struct blob_target targets[] = {{"sm_100f", "12.9.86", 12090, NULL}, {0}};
    blob = blob_make(targets);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(blob.data);
    return 0;
}

// The digest is libmd's at every length of a last block, whoever computes it.
static void digests(void **state)
{
    (void)state;
    uint8_t data[200], found[32], expected[32];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 151 + 7);
    for (size_t size = 0; size <= sizeof data; size++) {
        uint8_t *copy = copy_bytes(data, size);
        kda_sha256(copy, size, found);
        SHA2_CTX sha;
        SHA256Init(&sha);
        SHA256Update(&sha, copy, size);
        SHA256Final(expected, &sha);
        assert_memory_equal(found, expected, sizeof found);
        free(copy);
    }
}

int main(int argc, char **argv)
{
    bundle_path = argc > 1 ? argv[1] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens),        cmocka_unit_test(the_file),
        cmocka_unit_test(identity),     cmocka_unit_test(flips),
        cmocka_unit_test(truncations),  cmocka_unit_test(other_files),
        cmocka_unit_test(arguments),    cmocka_unit_test(files),
        cmocka_unit_test(broken_rules), cmocka_unit_test(hostile_words),
        cmocka_unit_test(digests),      cmocka_unit_test(frames),
        cmocka_unit_test(error_text),
    };
    return cmocka_run_group_tests_name("bundle", tests, set_up, tear_down);
}
