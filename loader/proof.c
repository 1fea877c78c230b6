// SPDX-License-Identifier: Apache-2.0
// Owns the proof of a bundle's outside: magic, version, sizes, the digest of the index, and where
// its sections lie. What the records say is proved in records.c. Refuses to know devices and the
// stored frames. Invariant: no byte is read before the range that holds it is proved, and sections
// lie exactly where a packer puts them, so that nothing can hide between them.
#include "loader/proof.h"

#include <string.h>

#include "loader/checked.h"
#include "loader/digest.h"
#include "loader/error.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "records are used in place: a little-endian host is needed"
#endif

// Far above any real bundle, and low enough that the quadratic checks of a hostile one stay short.
static const struct {
    const char *name;
    uint64_t record_size, count_max;
} sections[KDA_SPAN_COUNT] = {
    [KDA_SPAN_BODIES] = {"bodies", sizeof(struct kda_format_body), 1024},
    [KDA_SPAN_CUBINS] = {"cubins", sizeof(struct kda_format_cubin), 16384},
    [KDA_SPAN_FRAMES] = {"frames", sizeof(struct kda_format_frame), 4096},
    [KDA_SPAN_ROUTES] = {"routes", sizeof(struct kda_format_route), 4096},
    [KDA_SPAN_RULES] = {"rules", sizeof(struct kda_format_rule), 65536},
    [KDA_SPAN_PREFERENCES] = {"preferences", sizeof(struct kda_format_preference), 4096},
    [KDA_SPAN_TARGETS] = {"targets", sizeof(struct kda_format_target), 64},
    [KDA_SPAN_STRINGS] = {"strings", 1, 4u << 20},
};

static const char *guess_what_it_is(const uint8_t *data, size_t size)
{
    static const struct {
        const char *bytes, *hint;
    } looks[] = {
        {"version https://git-lfs", ": this is a Git LFS pointer, fetch the file itself"},
        {"\x8bKDA\n", ": CR LF became LF, the file went through a text-mode transfer"},
        {"\x8bKDA\r\r\n", ": LF became CR LF, the file went through a text-mode transfer"},
        {"\x0bKDA", ": the high bit is lost, the file went through a 7-bit transfer"},
        {"\xc2\x8bKDA", ": it was re-encoded as UTF-8 text"},
        {"\xef\xbf\xbdKDA", ": it was re-encoded as UTF-8 text"},
        {"\x7f"
         "ELF",
         ": this is an ELF file"},
        {"\x1f\x8b", ": this is a gzip file"},
        {"\x28\xb5\x2f\xfd", ": this is a bare zstd file"},
    };
    for (size_t i = 0; i < sizeof looks / sizeof *looks; ++i) {
        size_t length = strlen(looks[i].bytes);
        if (size >= length && !memcmp(data, looks[i].bytes, length)) return looks[i].hint;
    }
    return "";
}

static kda_status prove_header(const kda_bundle *bundle, kda_error *err)
{
    const uint8_t *data = bundle->data;
    size_t size = bundle->size;
    if (size == 0)
        return kda_fail(err, KDA_E_FORMAT, "bundle: empty, expected a header of 256 bytes");
    if (size < KDA_MAGIC_SIZE || memcmp(data, KDA_MAGIC, KDA_MAGIC_SIZE) != 0) {
        char found[3 * KDA_MAGIC_SIZE + 1] = "";
        for (size_t i = 0; i < KDA_MAGIC_SIZE && i < size; ++i) {
            found[3 * i] = "0123456789abcdef"[data[i] >> 4];
            found[3 * i + 1] = "0123456789abcdef"[data[i] & 15];
            found[3 * i + 2] = ' ';
            found[3 * i + 3] = 0;
        }
        return kda_fail(err, KDA_E_FORMAT,
                        "bundle: not a bundle: magic expected 8b 4b 44 41 0d 0a 1a 0a, found %s%s",
                        found, guess_what_it_is(data, size));
    }
    const struct kda_format_header *header = (const void *)data;
    uint32_t version = 0;
    if (size >= KDA_MAGIC_SIZE + sizeof version) {
        memcpy(&version, data + KDA_MAGIC_SIZE, sizeof version);
        if (version != KDA_FORMAT_VERSION)
            return kda_fail(err, KDA_E_VERSION,
                            "bundle: format version expected %u, found %u: %s is older",
                            KDA_FORMAT_VERSION, version,
                            version > KDA_FORMAT_VERSION ? "this library" : "the bundle");
    }
    if (size < sizeof *header)
        return kda_fail(err, KDA_E_FORMAT, "bundle: truncated: header of %zu bytes, found %zu",
                        sizeof *header, size);
    if (header->header_size != sizeof *header)
        return kda_fail(err, KDA_E_FORMAT, "bundle: header size expected %zu, found %u",
                        sizeof *header, header->header_size);
    if (header->file_size != size)
        return kda_fail(err, KDA_E_FORMAT, "bundle: %s: its header states %llu bytes, found %zu",
                        size < header->file_size ? "truncated" : "wrong size",
                        (unsigned long long)header->file_size, size);
    if (header->index_size < sizeof *header || header->index_size > size ||
        header->index_size % KDA_ALIGN != 0)
        return kda_fail(err, KDA_E_FORMAT,
                        "bundle: index size expected a multiple of %u in %zu..%zu, found %llu",
                        KDA_ALIGN, sizeof *header, size, (unsigned long long)header->index_size);
    size_t first = offsetof(struct kda_format_header, file_size);
    uint8_t digest[32];
    kda_sha256(data + first, (size_t)header->index_size - first, digest);
    if (memcmp(digest, header->index_sha256, sizeof digest) != 0)
        return kda_fail(err, KDA_E_DIGEST, "bundle: index: sha256 expected %s, found %s",
                        kda_hex_of(header->index_sha256).text, kda_hex_of(digest).text);
    if (header->flags & ~KDA_BUNDLE_PINNED)
        return kda_fail(err, KDA_E_FORMAT, "bundle: flags expected no bit but %#x, found %#x",
                        KDA_BUNDLE_PINNED, header->flags);
    for (size_t i = 0; i < sizeof header->padding; ++i) {
        if (header->padding[i])
            return kda_fail(err, KDA_E_FORMAT, "bundle: header padding expected 0, found %#x",
                            header->padding[i]);
    }
    return KDA_OK;
}

// Sections follow each other in the order of the enum, each from the next multiple of KDA_ALIGN.
static kda_status prove_sections(const kda_bundle *bundle, kda_error *err)
{
    const struct kda_format_header *header = bundle->header;
    uint64_t end = sizeof *header;
    for (int i = 0; i <= KDA_SPAN_COUNT; ++i) {
        const char *name = i < KDA_SPAN_COUNT ? sections[i].name : "end of the index";
        uint64_t offset = i < KDA_SPAN_COUNT ? header->spans[i].offset : header->index_size;
        uint64_t expected = (end + KDA_ALIGN - 1) / KDA_ALIGN * KDA_ALIGN;
        if (offset != expected || offset > header->index_size)
            return kda_fail(err, KDA_E_FORMAT,
                            "bundle: %s: offset expected %llu in an index of %llu, found %llu",
                            name, (unsigned long long)expected,
                            (unsigned long long)header->index_size, (unsigned long long)offset);
        for (uint64_t gap = end; gap < offset; ++gap) {
            if (bundle->data[gap])
                return kda_fail(err, KDA_E_FORMAT,
                                "bundle: padding before %s at byte %llu: expected 0, found %#x",
                                name, (unsigned long long)gap, bundle->data[gap]);
        }
        if (i == KDA_SPAN_COUNT) break;
        uint64_t count = header->spans[i].count, bytes = 0;
        if (count > sections[i].count_max)
            return kda_fail(err, KDA_E_FORMAT,
                            "bundle: %s: count expected at most %llu, found %llu", name,
                            (unsigned long long)sections[i].count_max, (unsigned long long)count);
        if (kda_umul_overflows(count, sections[i].record_size, &bytes) ||
            kda_uadd_overflows(offset, bytes, &end) || end > header->index_size)
            return kda_fail(err, KDA_E_FORMAT,
                            "bundle: %s: %llu records at %llu do not fit the index of %llu bytes",
                            name, (unsigned long long)count, (unsigned long long)offset,
                            (unsigned long long)header->index_size);
    }
    return KDA_OK;
}

static void set_views(kda_bundle *bundle)
{
    const struct kda_format_span *spans = bundle->header->spans;
    const uint8_t *data = bundle->data;
    bundle->bodies = (const void *)(data + spans[KDA_SPAN_BODIES].offset);
    bundle->cubins = (const void *)(data + spans[KDA_SPAN_CUBINS].offset);
    bundle->frames = (const void *)(data + spans[KDA_SPAN_FRAMES].offset);
    bundle->routes = (const void *)(data + spans[KDA_SPAN_ROUTES].offset);
    bundle->rules = (const void *)(data + spans[KDA_SPAN_RULES].offset);
    bundle->preferences = (const void *)(data + spans[KDA_SPAN_PREFERENCES].offset);
    bundle->targets = (const void *)(data + spans[KDA_SPAN_TARGETS].offset);
    bundle->strings = (const char *)(data + spans[KDA_SPAN_STRINGS].offset);
    bundle->body_count = (uint32_t)spans[KDA_SPAN_BODIES].count;
    bundle->cubin_count = (uint32_t)spans[KDA_SPAN_CUBINS].count;
    bundle->frame_count = (uint32_t)spans[KDA_SPAN_FRAMES].count;
    bundle->route_count = (uint32_t)spans[KDA_SPAN_ROUTES].count;
    bundle->rule_count = (uint32_t)spans[KDA_SPAN_RULES].count;
    bundle->preference_count = (uint32_t)spans[KDA_SPAN_PREFERENCES].count;
    bundle->target_count = (uint32_t)spans[KDA_SPAN_TARGETS].count;
}

kda_status kda_proof_index(kda_bundle *bundle, kda_error *err)
{
    kda_status status = prove_header(bundle, err);
    if (status) return status;
    bundle->header = (const void *)bundle->data;
    status = prove_sections(bundle, err);
    if (status) return status;
    set_views(bundle);
    return kda_proof_records(bundle, err);
}
