// SPDX-License-Identifier: Apache-2.0
// Owns the table of cubins that the soft device can run: the rows of images.inc, which the packer
// writes beside the bundle as KDA_IMAGE(body, target, digest, size), kda-bench's floor, and what
// tests register. An image is known by its bytes alone. Refuses to read a cubin beyond its ELF
// header and section table: the code that runs is the body, not the image.
#include "tests/soft/state.h"

#include <string.h>

#include "manifest/format.h"
#include "manifest/params.h"
#include "tests/soft/soft.h"
#include "tools/floor.h"

// ----------------------------------------------------------------------------- the bundle's images

#define KDA_SCHEDULE(name, ...) void soft_body_##name(const void *params);
#include "manifest/schedules.inc"
#undef KDA_SCHEDULE

#define SECOND_OF(version, size) size
#define SIZE_OF(pair) SECOND_OF(pair)

#define KDA_SCHEDULE(name, template, op, from, to, gate, state, modes, split, threads, ...)        \
    enum { threads_##name = threads, params_##name = SIZE_OF(KDA_PARAMS_##op) };
#include "manifest/schedules.inc"
#undef KDA_SCHEDULE

// The kernel that kda-bench compares with is no schedule.
void soft_body_floor(const void *params);
enum { threads_floor = KDA_FLOOR_THREADS, params_floor = sizeof(struct kda_floor_params) };

#define KDA_CCS(...)                                                                               \
    {                                                                                              \
        __VA_ARGS__, 0                                                                             \
    }
#define KDA_TARGET(name, first_driver, runs_on)                                                    \
    enum { floor_##name = first_driver };                                                          \
    static const int ccs_##name[] __attribute__((unused)) = runs_on;
#include "manifest/targets.inc"
#undef KDA_TARGET
#undef KDA_CCS

static const soft_image bundle_images[] = {
#define KDA_IMAGE(name, on, digest, size)                                                          \
    {.sha256 = digest,                                                                             \
     .body = #name,                                                                                \
     .target = #on,                                                                                \
     .entry = "kda_" #name,                                                                        \
     .ccs = ccs_##on,                                                                              \
     .floor = floor_##on,                                                                          \
     .threads = threads_##name,                                                                    \
     .kernel = soft_body_##name,                                                                   \
     .params_size = params_##name},
#include "images.inc"
#undef KDA_IMAGE
};

// ------------------------------------------------------------------------------- registered images

enum { MAX_REGISTERED = 16 };
static const soft_image *registered[MAX_REGISTERED];
static size_t registered_count;

bool soft_register_image(const soft_image *image)
{
    soft_lock();
    bool fits = registered_count < MAX_REGISTERED;
    if (fits) registered[registered_count++] = image;
    soft_unlock();
    return fits;
}

void soft_images_reset(void) { registered_count = 0; }

const soft_image *soft_find_image(const char *sha256)
{
    for (size_t i = 0; i < registered_count; i++)
        if (strcmp(registered[i]->sha256, sha256) == 0) return registered[i];
    for (size_t i = 0; i < sizeof bundle_images / sizeof *bundle_images; i++)
        if (strcmp(bundle_images[i].sha256, sha256) == 0) return &bundle_images[i];
    return NULL;
}

// -------------------------------------------------------------------------------------- ELF images

struct elf_header {
    uint8_t ident[16];
    uint16_t type, machine;
    uint32_t version;
    uint64_t entry, phoff, shoff;
    uint32_t flags;
    uint16_t ehsize, phentsize, phnum, shentsize, shnum, shstrndx;
};
struct elf_section {
    uint32_t name, type;
    uint64_t flags, addr, offset, size;
    uint32_t link, info;
    uint64_t addralign, entsize;
};
_Static_assert(sizeof(struct elf_header) == 64 && sizeof(struct elf_section) == 64, "ELF64");

static const size_t size_limit = (size_t)64
                                 << 20;  // no image of ours comes near: a larger claim is garbage

static bool grow(size_t *size, uint64_t offset, uint64_t length)
{
    if (offset > size_limit || length > size_limit - offset) return false;
    if (offset + length > *size) *size = (size_t)(offset + length);
    return true;
}

size_t soft_image_size(const void *image)
{
    const uint8_t *bytes = image;
    struct elf_header header;
    // Byte by byte: what is no ELF may be shorter than a header.
    static const uint8_t magic[6] = {0x7f, 'E', 'L', 'F', 2, 1};
    for (size_t i = 0; i < sizeof magic; i++)
        if (bytes[i] != magic[i]) return 0;
    memcpy(&header, bytes, sizeof header);
    enum { EM_CUDA = 190, SHT_NOBITS = 8 };
    if (header.machine != EM_CUDA) return 0;

    size_t size = sizeof header;
    if (!grow(&size, header.shoff, (uint64_t)header.shnum * sizeof(struct elf_section)) ||
        !grow(&size, header.phoff, (uint64_t)header.phnum * header.phentsize) ||
        (header.shnum != 0 && header.shentsize != sizeof(struct elf_section)))
        return 0;
    for (size_t i = 0; i < header.shnum; i++) {
        struct elf_section section;
        memcpy(&section, bytes + header.shoff + i * sizeof section, sizeof section);
        if (section.type != SHT_NOBITS && !grow(&size, section.offset, section.size)) return 0;
    }
    return size;
}
