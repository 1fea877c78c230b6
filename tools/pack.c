// SPDX-License-Identifier: Apache-2.0
// kda-pack: cubins -> bundle. Owns the options, the set of images that a bundle must have, and the
// order of the steps; it refuses to know the file format. What it writes depends on the images, the
// manifest and the zstd version, and not on the order of the arguments, on time, or on the place.
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/embed.h"
#include "tools/files.h"
#include "tools/ids.h"
#include "tools/image.h"
#include "tools/layout.h"
#include "tools/sums.h"
#include "tools/rows.h"

static const char usage[] =
    "usage: kda-pack -o OUT.bundle --root DIR [--targets T,..] [--unpinned] [--images FILE] "
    "CUBIN...\n"
    "       kda-pack --embed OUT.S --symbol NAME BUNDLE\n"
    "       kda-pack [--lock FILE] [--ids FILE] [--check] CUBIN... BUNDLE...\n"
    "\n"
    "Packs images named BODY.TARGET.cubin into a bundle, with the bodies and routes of the "
    "manifest.\n"
    "  -o FILE         the bundle to write\n"
    "  --root DIR      the source tree: its bodies must be those of manifest/bodies.lock\n"
    "  --targets T,..  the targets to pack, each with every body; default: those of the images "
    "given\n"
    "  --unpinned      take images of any toolkit, and mark the bundle so; otherwise they must "
    "come from\n"
    "                  the toolkit of manifest/toolchains.lock\n"
    "  --images FILE   also write a line KDA_IMAGE(body, target, \"sha256\", size) for each image\n"
    "  --embed FILE    write an assembler file that embeds BUNDLE between NAME_begin and NAME_end\n"
    "  --lock FILE     write the digests of the images to FILE; with --check compare them instead\n"
    "  --ids FILE      the same with the ids of the files named *.bundle\n"
    "Exit status: 0 done, 1 refused, 2 wrong usage or a file that cannot be read or written.\n";

struct options {
    const char *output, *root, *targets, *images, *embed, *symbol, *lock, *ids;
    bool unpinned, check;
};

// What goes into the bundle, owned.
struct inputs {
    struct kda_image *images;
    size_t count;
    uint8_t (*body_sha256)[32];
    bool *included;
};

static void free_inputs(struct inputs *inputs)
{
    for (size_t i = 0; i < inputs->count; i++) free(inputs->images[i].data);
    free(inputs->images);
    free(inputs->body_sha256);
    free(inputs->included);
}

// The file `name` of the source tree.
static kda_status read_source(const char *root, const char *name, uint8_t **out_data,
                              size_t *out_size, kda_error *err)
{
    char *path = kda_files_join(root, name);
    if (!path) return kda_fail(err, KDA_E_NO_MEMORY, "%s: no memory for its path", name);
    kda_status status = kda_files_read(path, out_data, out_size, err);
    free(path);
    return status;
}

static kda_status read_bodies(const char *root, uint8_t (*out)[32], kda_error *err)
{
    char *path = kda_files_join(root, "manifest/bodies.lock");
    if (!path)
        return kda_fail(err, KDA_E_NO_MEMORY, "manifest/bodies.lock: no memory for its path");
    struct kda_sums lock = {0};
    kda_status status = kda_sums_read(path, &lock, err);
    free(path);
    for (uint32_t i = 0; i < kda_schedule_count && status == KDA_OK; i++) {
        char name[256], hex[KDA_HEX_SIZE];
        uint8_t *data;
        size_t size;
        snprintf(name, sizeof name, "bodies/%s.cu", kda_schedules[i].name);
        status = read_source(root, name, &data, &size, err);
        if (status != KDA_OK) break;
        kda_files_sha256(data, size, out[i]);
        free(data);
        kda_files_hex(out[i], hex);
        const char *locked = kda_sums_find(&lock, name);
        if (!locked || strcmp(locked, hex) != 0)
            status = kda_fail(
                err, KDA_E_DIGEST,
                "%s: sha256 %s, expected %s of manifest/bodies.lock; run: ninja -C build regen",
                name, hex, locked ? locked : "a line");
    }
    kda_sums_free(&lock);
    return status;
}

// The line "toolkit VERSION" of manifest/toolchains.lock.
static kda_status read_toolkit(const char *root, char out[16], kda_error *err)
{
    uint8_t *data;
    size_t size;
    kda_status status = read_source(root, "manifest/toolchains.lock", &data, &size, err);
    if (status != KDA_OK) return status;
    const char *line = strstr((char *)data, "\ntoolkit ");
    if (!line || sscanf(line, "\ntoolkit %15s", out) != 1)
        status =
            kda_fail(err, KDA_E_FORMAT, "manifest/toolchains.lock: no line \"toolkit VERSION\"");
    free(data);
    return status;
}

// An image that records its toolkit in full must match in full; one that records 12.9 must match
// that much.
static kda_status check_pinned(const struct inputs *inputs, const char *pinned, kda_error *err)
{
    for (size_t i = 0; i < inputs->count; i++) {
        const struct kda_image *image = &inputs->images[i];
        const char *found = image->elf.toolkit;
        size_t n = strlen(found);
        if (strcmp(found, pinned) == 0 || (strncmp(found, pinned, n) == 0 && pinned[n] == '.'))
            continue;
        return kda_fail(err, KDA_E_VERSION,
                        "%s.%s: built by toolkit %s, expected the pinned %s (or --unpinned)",
                        kda_schedules[image->schedule].name, kda_targets[image->target].name, found,
                        pinned);
    }
    return KDA_OK;
}

static kda_status read_image(const char *path, struct kda_image *out, kda_error *err)
{
    if (!kda_rows_cubin(path, &out->schedule, &out->target))
        return kda_fail(err, KDA_E_NAME, "%s: expected BODY.TARGET.cubin of the manifest", path);
    kda_status status = kda_files_read(path, &out->data, &out->size, err);
    if (status != KDA_OK) return status;
    kda_files_sha256(out->data, out->size, out->sha256);
    kda_error inner;
    status = kda_elf_read(out->data, out->size, &out->elf, &inner);
    if (status != KDA_OK) return kda_fail(err, status, "%s: %s", path, inner.text);
    return kda_image_check(out->schedule, out->target, &out->elf, err);
}

static int compare_images(const void *a, const void *b)
{
    const struct kda_image *x = a, *y = b;
    if (x->schedule != y->schedule) return x->schedule < y->schedule ? -1 : 1;
    return x->target < y->target ? -1 : x->target > y->target;
}

static kda_status include_targets(const char *list, struct inputs *inputs, kda_error *err)
{
    for (size_t i = 0; !list && i < inputs->count; i++)
        inputs->included[inputs->images[i].target] = true;
    while (list && *list) {
        size_t n = strcspn(list, ",");
        uint32_t target = kda_rows_target(list, n);
        if (target == KDA_NONE)
            return kda_fail(err, KDA_E_ARGUMENT, "--targets: targets.inc does not declare %.*s",
                            (int)n, list);
        inputs->included[target] = true;
        list += n + (list[n] == ',');
    }
    return KDA_OK;
}

// Every body for every included target, each once, and nothing else.
static kda_status check_complete(const struct inputs *inputs, kda_error *err)
{
    size_t at = 0;
    for (uint32_t s = 0; s < kda_schedule_count; s++) {
        for (uint32_t t = 0; t < kda_target_count; t++) {
            const char *body = kda_schedules[s].name, *target = kda_targets[t].name;
            size_t found = 0;
            for (; at < inputs->count && inputs->images[at].schedule == s &&
                   inputs->images[at].target == t;
                 at++)
                found++;
            if (found > 1)
                return kda_fail(err, KDA_E_NAME, "%s.%s: given more than once", body, target);
            if (found && !inputs->included[t])
                return kda_fail(err, KDA_E_NAME, "%s.%s: not a target of this bundle", body,
                                target);
            if (!found && inputs->included[t])
                return kda_fail(err, KDA_E_NAME, "%s.%s: no image given", body, target);
        }
    }
    return KDA_OK;
}

static kda_status read_inputs(const struct options *options, char *const *paths, size_t count,
                              struct inputs *inputs, kda_error *err)
{
    inputs->images = calloc(count, sizeof *inputs->images);
    inputs->body_sha256 = calloc(kda_schedule_count, sizeof *inputs->body_sha256);
    inputs->included = calloc(kda_target_count, sizeof *inputs->included);
    if (!inputs->images || !inputs->body_sha256 || !inputs->included)
        return kda_fail(err, KDA_E_NO_MEMORY, "no memory for %zu images", count);
    for (size_t i = 0; i < count; i++) {
        kda_status status = read_image(paths[i], &inputs->images[inputs->count++], err);
        if (status != KDA_OK) return status;
    }
    qsort(inputs->images, inputs->count, sizeof *inputs->images, compare_images);
    kda_status status = include_targets(options->targets, inputs, err);
    if (status == KDA_OK) status = check_complete(inputs, err);
    if (status == KDA_OK) status = read_bodies(options->root, inputs->body_sha256, err);
    if (status == KDA_OK && !options->unpinned) {
        char pinned[16];
        status = read_toolkit(options->root, pinned, err);
        if (status == KDA_OK) status = check_pinned(inputs, pinned, err);
    }
    return status;
}

static kda_status pack(const struct options *options, char *const *paths, size_t count,
                       kda_error *err)
{
    struct inputs inputs = {0};
    struct kda_frames frames = {0};
    uint8_t *data = NULL;
    size_t size;
    kda_status status = read_inputs(options, paths, count, &inputs, err);
    if (status != KDA_OK) goto fail;
    status = kda_family_build(inputs.images, inputs.count, &frames, err);
    if (status != KDA_OK) goto fail;
    const struct kda_bundle_plan plan = {
        .images = inputs.images,
        .image_count = inputs.count,
        .frames = &frames,
        .body_sha256 = (const uint8_t(*)[32])inputs.body_sha256,
        .included = inputs.included,
        .pinned = !options->unpinned,
    };
    status = kda_layout_write(&plan, &data, &size, err);
    if (status == KDA_OK) status = kda_files_write(options->output, data, size, err);
    if (status == KDA_OK && options->images)
        status = kda_embed_images(options->images, inputs.images, inputs.count, err);
fail:
    free(data);
    kda_family_free(&frames);
    free_inputs(&inputs);
    return status;
}

// 0: go on; else the exit status plus one.
static int read_options(int argc, char **argv, struct options *out)
{
    enum { ROOT = 256, TARGETS, UNPINNED, IMAGES, EMBED, SYMBOL, LOCK, IDS, CHECK };
    static const struct option names[] = {
        {"root", required_argument, NULL, ROOT},
        {"targets", required_argument, NULL, TARGETS},
        {"unpinned", no_argument, NULL, UNPINNED},
        {"images", required_argument, NULL, IMAGES},
        {"embed", required_argument, NULL, EMBED},
        {"symbol", required_argument, NULL, SYMBOL},
        {"lock", required_argument, NULL, LOCK},
        {"ids", required_argument, NULL, IDS},
        {"check", no_argument, NULL, CHECK},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    int option;
    while ((option = getopt_long(argc, argv, "ho:", names, NULL)) != -1) {
        switch (option) {
        case 'o':
            out->output = optarg;
            break;
        case ROOT:
            out->root = optarg;
            break;
        case TARGETS:
            out->targets = optarg;
            break;
        case UNPINNED:
            out->unpinned = true;
            break;
        case IMAGES:
            out->images = optarg;
            break;
        case EMBED:
            out->embed = optarg;
            break;
        case SYMBOL:
            out->symbol = optarg;
            break;
        case LOCK:
            out->lock = optarg;
            break;
        case IDS:
            out->ids = optarg;
            break;
        case CHECK:
            out->check = true;
            break;
        case 'h':
            fputs(usage, stdout);
            return 1;
        default:
            fputs(usage, stderr);
            return 3;
        }
    }
    bool holds = out->lock || out->ids;
    bool packs = out->output && out->root && !out->embed && !holds && !out->symbol && !out->check;
    bool embeds = out->embed && out->symbol && !out->output && !holds && argc - optind == 1;
    bool locks = holds && !out->output && !out->embed;
    if ((packs || embeds || locks) && optind < argc) return 0;
    fputs(usage, stderr);
    return 3;
}

static bool is_bundle(const char *path)
{
    size_t n = strlen(path), k = strlen(".bundle");
    return n > k && strcmp(path + n - k, ".bundle") == 0;
}

// Each file goes to the lock of its kind; one without a lock is not silently passed over.
static kda_status run_locks(const struct options *options, char **paths, size_t count,
                            kda_error *err)
{
    size_t images = 0;
    for (size_t i = 0; i < count; i++) {
        if (is_bundle(paths[i])) continue;
        char *swapped = paths[images];
        paths[images++] = paths[i];
        paths[i] = swapped;
    }
    char **bundles = paths + images;
    size_t bundle_count = count - images;
    if ((images > 0) != (options->lock != NULL) || (bundle_count > 0) != (options->ids != NULL))
        return kda_fail(err, KDA_E_ARGUMENT,
                        "expected images with --lock and bundles with --ids, and neither without");
    kda_status status = KDA_OK;
    if (options->lock)
        status = options->check ? kda_sums_check(options->lock, paths, images, err)
                                : kda_sums_write(options->lock, paths, images, err);
    if (options->ids && status == KDA_OK)
        status = options->check ? kda_ids_check(options->ids, bundles, bundle_count, err)
                                : kda_ids_write(options->ids, bundles, bundle_count, err);
    return status;
}

int main(int argc, char **argv)
{
    struct options options = {0};
    kda_error err = {0};
    int stop = read_options(argc, argv, &options);
    if (stop) return stop - 1;
    char **paths = argv + optind;
    size_t count = (size_t)(argc - optind);
    kda_status status;
    if (options.embed)
        status = kda_embed_bundle(options.embed, options.symbol, paths[0], &err);
    else if (options.lock || options.ids)
        status = run_locks(&options, paths, count, &err);
    else
        status = pack(&options, paths, count, &err);
    if (status == KDA_OK) return 0;
    fprintf(stderr, "kda-pack: %s\n", err.text);
    return status == KDA_E_IO || status == KDA_E_ARGUMENT ? 2 : 1;
}
