// SPDX-License-Identifier: Apache-2.0
// Owns the layout of NVIDIA's ELF images, as measured on the toolkits 12.9 and 13.0. It refuses to
// know which values are wanted: it reports. Every offset is checked against the bytes that are
// there before it is followed, and no structure is read in place, so any input of any alignment is
// safe.
#include "tools/elf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ELF_HEADER_SIZE = 64,
    SECTION_SIZE = 64,
    SYMBOL_SIZE = 24,
    MACHINE_CUDA = 190,
    TYPE_SYMTAB = 2,
    TYPE_NOTE = 7,
    TYPE_NOBITS = 8,
    SYMBOL_ENTRY = 0x10,  // st_other: a kernel
    NOTE_TOOL = 2000,
    // .nv.info attributes
    ATTR_MAX_THREADS = 0x05,
    ATTR_FRAME_SIZE = 0x11,
    ATTR_MIN_STACK = 0x12,
    ATTR_PARAMS_SIZE = 0x19,
    ATTR_REGISTERS = 0x2f,
    ATTR_TOOLKIT = 0x37,
    ATTR_BARRIERS = 0x4c,
    // .nv.compat attribute: 1 where the image runs on exactly one compute capability
    COMPAT_EXACT = 0x09,
    // The part of a kernel's shared memory section that the system keeps, on compute capability 9.0
    // and later.
    SHARED_RESERVED = 1024,
};

struct view {
    const uint8_t *data;
    size_t size;
};

struct section {
    const char *name;
    uint32_t type, link;
    uint64_t flags, size;
    struct view bytes;  // empty for NOBITS
};

struct image {
    struct view file;
    uint32_t section_count;
    struct section *sections;
    bool abi8;
    uint32_t flags, entry_symbol;
};

static uint64_t get(const uint8_t *p, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++) value |= (uint64_t)p[i] << (8 * i);
    return value;
}

static uint32_t get16(const uint8_t *p) { return (uint32_t)get(p, 2); }
static uint32_t get32(const uint8_t *p) { return (uint32_t)get(p, 4); }

static bool slice(struct view whole, uint64_t offset, uint64_t size, struct view *out)
{
    if (offset > whole.size || size > whole.size - offset) return false;
    *out = (struct view){whole.data + offset, (size_t)size};
    return true;
}

// A NUL-terminated string inside `table`, or NULL.
static const char *text_at(struct view table, uint64_t offset)
{
    if (offset >= table.size || !memchr(table.data + offset, 0, table.size - (size_t)offset))
        return NULL;
    return (const char *)table.data + offset;
}

static const struct section *find_section(const struct image *image, const char *prefix,
                                          const char *suffix)
{
    size_t n = strlen(prefix);
    for (uint32_t i = 0; i < image->section_count; i++) {
        const char *name = image->sections[i].name;
        if (strncmp(name, prefix, n) == 0 && strcmp(name + n, suffix) == 0)
            return &image->sections[i];
    }
    return NULL;
}

static kda_status read_sections(struct image *image, kda_error *err)
{
    const uint8_t *h = image->file.data;
    uint32_t count = get16(h + 0x3c), names_index = get16(h + 0x3e);
    struct view table, names = {0};
    if (get16(h + 0x3a) != SECTION_SIZE || count == 0 ||
        !slice(image->file, get(h + 0x28, 8), (uint64_t)count * SECTION_SIZE, &table))
        return kda_fail(err, KDA_E_FORMAT, "elf: %u section headers do not lie inside %zu bytes",
                        count, image->file.size);
    image->sections = calloc(count, sizeof *image->sections);
    if (!image->sections) return kda_fail(err, KDA_E_NO_MEMORY, "elf: no memory for sections");
    image->section_count = count;
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *s = table.data + (size_t)i * SECTION_SIZE;
        struct section *out = &image->sections[i];
        out->type = get32(s + 4);
        out->flags = get(s + 8, 8);
        out->size = get(s + 32, 8);
        out->link = get32(s + 40);
        if (out->type != TYPE_NOBITS && !slice(image->file, get(s + 24, 8), out->size, &out->bytes))
            return kda_fail(err, KDA_E_FORMAT, "elf: section %u does not lie inside %zu bytes", i,
                            image->file.size);
    }
    if (names_index < count) names = image->sections[names_index].bytes;
    for (uint32_t i = 0; i < count; i++) {
        image->sections[i].name = text_at(names, get32(table.data + (size_t)i * SECTION_SIZE));
        if (!image->sections[i].name)
            return kda_fail(err, KDA_E_FORMAT, "elf: section %u has no name", i);
    }
    return KDA_OK;
}

static kda_status read_entry(struct image *image, struct kda_elf *out, kda_error *err)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < image->section_count; i++) {
        const struct section *s = &image->sections[i];
        if (s->type != TYPE_SYMTAB || s->link >= image->section_count) continue;
        struct view names = image->sections[s->link].bytes;
        for (uint32_t k = 0; k < s->bytes.size / SYMBOL_SIZE; k++) {
            const uint8_t *symbol = s->bytes.data + (size_t)k * SYMBOL_SIZE;
            if (!(symbol[5] & SYMBOL_ENTRY)) continue;
            const char *name = text_at(names, get32(symbol));
            if (!name || strlen(name) >= sizeof out->entry)
                return kda_fail(err, KDA_E_FORMAT, "elf: the name of symbol %u is unreadable", k);
            if (!find_section(image, ".text.", name)) continue;
            snprintf(out->entry, sizeof out->entry, "%s", name);
            image->entry_symbol = k;
            found++;
        }
    }
    if (found != 1)
        return kda_fail(err, KDA_E_FORMAT, "elf: %u kernels, expected exactly one", found);
    return KDA_OK;
}

// One record of .nv.info and .nv.compat: u8 format, u8 attribute, then a u8, a u16, or a u16 length
// and that many bytes.
struct attribute {
    uint32_t id, value;
    struct view bytes;
};

// 1: one read and `at` moved past it; 0: the end; -1: broken.
static int next_attribute(struct view info, size_t *at, struct attribute *out)
{
    if (info.size - *at < 4) return 0;  // what is left is padding
    const uint8_t *p = info.data + *at;
    if (p[0] == 0 && p[1] == 0) return 0;
    *out = (struct attribute){.id = p[1], .value = get16(p + 2)};
    *at += 4;
    if (p[0] == 2) out->value = p[2];
    if (p[0] != 4) return p[0] <= 3 ? 1 : -1;
    if (!slice(info, *at, out->value, &out->bytes)) return -1;
    *at += out->value;
    return 1;
}

// Attributes of the whole image, as pairs of symbol and value.
static kda_status read_usage(const struct image *image, struct kda_elf *out, kda_error *err)
{
    const struct section *info = find_section(image, ".nv.info", "");
    if (!info) return kda_fail(err, KDA_E_FORMAT, "elf: no section .nv.info");
    struct attribute a;
    size_t at = 0;
    int more;
    bool registers = false, stack = false;
    while ((more = next_attribute(info->bytes, &at, &a)) > 0) {
        if (a.bytes.size < 8 || get32(a.bytes.data) != image->entry_symbol) continue;
        uint32_t value = get32(a.bytes.data + 4);
        if (a.id == ATTR_REGISTERS) {
            out->registers = value;
            registers = true;
        }
        if (a.id == ATTR_FRAME_SIZE || a.id == ATTR_MIN_STACK) {
            if (value > out->stack) out->stack = value;
            stack = true;
        }
    }
    if (more < 0 || !registers || !stack)
        return kda_fail(err, KDA_E_FORMAT, "elf: .nv.info does not say registers and stack of %s",
                        out->entry);
    return KDA_OK;
}

static kda_status read_kernel(const struct image *image, struct kda_elf *out, kda_error *err)
{
    const struct section *info = find_section(image, ".nv.info.", out->entry);
    if (!info) return kda_fail(err, KDA_E_FORMAT, "elf: no section .nv.info.%s", out->entry);
    // ABI 7 keeps the barriers in the flags of the code section.
    const struct section *text = find_section(image, ".text.", out->entry);
    if (!image->abi8) out->barriers = (uint32_t)(text->flags >> 20) & 0x7f;
    struct attribute a;
    size_t at = 0;
    int more;
    while ((more = next_attribute(info->bytes, &at, &a)) > 0) {
        if (a.id == ATTR_BARRIERS) out->barriers = a.value;
        if (a.id == ATTR_PARAMS_SIZE) out->params_size = a.value;
        if (a.id == ATTR_TOOLKIT && a.bytes.size == 4) {
            uint32_t toolkit = get32(a.bytes.data);
            if (toolkit >= 100 && toolkit < 1000)
                out->toolkit_version = toolkit / 10 * 1000 + toolkit % 10 * 10;
        }
        if (a.id == ATTR_MAX_THREADS && a.bytes.size == 12) {
            uint64_t threads = 1;
            for (unsigned i = 0; i < 3; i++) threads *= get16(a.bytes.data + 4 * i);
            out->max_threads = threads > UINT32_MAX ? UINT32_MAX : (uint32_t)threads;
        }
    }
    if (more < 0)
        return kda_fail(err, KDA_E_FORMAT, "elf: .nv.info.%s is broken at byte %zu", out->entry,
                        at);
    const struct section *shared = find_section(image, ".nv.shared.", out->entry);
    if (shared && shared->size > SHARED_RESERVED) {
        uint64_t bytes = shared->size - SHARED_RESERVED;
        out->shared = bytes > UINT32_MAX ? UINT32_MAX : (uint32_t)bytes;
    }
    const struct section *local = find_section(image, ".nv.local.", out->entry);
    if (local && local->size > out->stack)
        out->stack = local->size > UINT32_MAX ? UINT32_MAX : (uint32_t)local->size;
    if (out->toolkit_version)
        snprintf(out->toolkit, sizeof out->toolkit, "%u.%u", out->toolkit_version / 1000,
                 out->toolkit_version % 1000 / 10);
    return KDA_OK;
}

static void read_line_info(const struct image *image, struct kda_elf *out)
{
    static const char *const names[] = {".debug_line", ".nv_debug_line_sass", ".nv_debug_ptx_txt",
                                        ".debug_info"};
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++)
        if (find_section(image, names[i], "")) out->line_info = true;
}

// The decimal number at *text, which is moved past it. At most six digits, so that nothing
// overflows.
static bool read_number(const char **text, uint32_t *out)
{
    uint32_t value = 0;
    unsigned digits = 0;
    for (; **text >= '0' && **text <= '9' && digits < 6; digits++, (*text)++)
        value = value * 10 + (uint32_t)(**text - '0');
    *out = value;
    return digits > 0;
}

// From "... release 12.9, V12.9.86".
static bool read_toolkit(const char *tool, struct kda_elf *out)
{
    const char *start = strstr(tool, ", V");
    if (!start) return false;
    start += 3;
    const char *text = start;
    uint32_t major, minor, patch;
    if (!read_number(&text, &major) || *text++ != '.' || !read_number(&text, &minor)) return false;
    if (*text++ != '.' || !read_number(&text, &patch) || *text || minor > 99) return false;
    size_t n = (size_t)(text - start);
    if (n >= sizeof out->toolkit) return false;
    memcpy(out->toolkit, start, n + 1);
    out->toolkit_version = major * 1000 + minor * 10;
    return true;
}

// From "-arch sm_100f -fmad false ".
static bool read_options(const char *options, struct kda_elf *out)
{
    size_t n = strlen(options);
    while (n && options[n - 1] == ' ') n--;
    const char *target = strstr(options, "-arch sm_");
    if (!target || n >= sizeof out->options) return false;
    target += strlen("-arch ");
    const char *text = target + strlen("sm_");
    uint32_t sm;
    if (!read_number(&text, &sm) || sm != out->sm) return false;
    if (*text == 'a' || *text == 'f') text++;
    if (*text != ' ' && *text) return false;
    size_t target_size = (size_t)(text - target);
    if (target_size >= sizeof out->target) return false;
    memcpy(out->options, options, n);
    out->options[n] = 0;
    memcpy(out->target, target, target_size);
    out->target[target_size] = 0;
    return true;
}

// The tool note: u32 version, then five offsets into the text behind them: object, tool, version,
// build, options.
static kda_status read_note(const struct image *image, struct kda_elf *out, kda_error *err)
{
    const struct section *note = find_section(image, ".note.nv.tkinfo", "");
    if (!note || note->type != TYPE_NOTE) return KDA_OK;
    static const char owner[] = "NVIDIA Corp";
    struct view text = {0};
    const uint8_t *p = note->bytes.data;
    bool good = note->bytes.size >= 12 + sizeof owner + 24 && get32(p) == sizeof owner &&
                get32(p + 8) == NOTE_TOOL && memcmp(p + 12, owner, sizeof owner) == 0 &&
                get32(p + 4) >= 24 && slice(note->bytes, 12 + sizeof owner, get32(p + 4), &text);
    const char *tool = NULL, *options = NULL;
    if (good) {
        struct view strings = {text.data + 24, text.size - 24};
        tool = text_at(strings, get32(text.data + 12));
        options = text_at(strings, get32(text.data + 20));
    }
    if (!tool || !options || !read_toolkit(tool, out) || !read_options(options, out))
        return kda_fail(err, KDA_E_FORMAT, "elf: .note.nv.tkinfo is not understood");
    return KDA_OK;
}

// 'a' where the image runs on one compute capability only; an image without the tool note cannot
// tell 'f' from plain.
static bool is_exact(const struct image *image)
{
    const struct section *compat = find_section(image, ".nv.compat", "");
    if (compat) {
        struct attribute a;
        size_t at = 0;
        while (next_attribute(compat->bytes, &at, &a) > 0)
            if (a.id == COMPAT_EXACT) return a.value == 1;
    }
    return image->flags >> (image->abi8 ? 3 : 11) & 1;
}

kda_status kda_elf_read(const void *data, size_t size, struct kda_elf *out, kda_error *err)
{
    static const uint8_t magic[] = {0x7f, 'E', 'L', 'F', 2, 1, 1};
    struct image image = {.file = {data, size}};
    struct kda_elf elf = {0};
    if (size == 0) return kda_fail(err, KDA_E_FORMAT, "elf: the image is empty");
    if (size < ELF_HEADER_SIZE || memcmp(data, magic, sizeof magic) != 0)
        return kda_fail(err, KDA_E_FORMAT, "elf: not a 64-bit little-endian ELF file");
    const uint8_t *h = data;
    if (get16(h + 18) != MACHINE_CUDA)
        return kda_fail(err, KDA_E_FORMAT, "elf: machine %u, expected %d", get16(h + 18),
                        MACHINE_CUDA);
    uint32_t abi = h[8];
    image.abi8 = abi >= 8;
    image.flags = get32(h + 48);
    elf.sm = (image.abi8 ? image.flags >> 8 : image.flags) & 0xff;

    kda_status status = read_sections(&image, err);
    if (status == KDA_OK) status = read_entry(&image, &elf, err);
    if (status == KDA_OK) status = read_usage(&image, &elf, err);
    if (status == KDA_OK) status = read_kernel(&image, &elf, err);
    if (status == KDA_OK) {
        snprintf(elf.target, sizeof elf.target, "sm_%u%s", elf.sm, is_exact(&image) ? "a" : "");
        status = read_note(&image, &elf, err);
    }
    if (status == KDA_OK) {
        read_line_info(&image, &elf);
        *out = elf;
    }
    free(image.sections);
    return status;
}
