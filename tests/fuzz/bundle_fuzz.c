// SPDX-License-Identifier: Apache-2.0
// libFuzzer target over a bundle as an enemy writes it: open, identify, route, extract, verify. Its
// mutator makes the digests right again, so that what lies behind them is reached. Whatever opens
// must stay usable, whatever is refused must be refused with a typed error, and a route or an image
// that succeeds must be one that the index can mean.
//   bundle-fuzz --seed DIR      writes the seed corpus and ends
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/bundle.h"
#include "tests/pair.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static void require(int good, const char *what, const kda_error *err)
{
    if (good) return;
    fprintf(stderr, "%s: %s\n", what, err->text);
    abort();
}

static void write_seed(const char *folder, const char *name, const uint8_t *data, size_t size)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, size, file) != size || fclose(file)) {
        perror(path);
        exit(1);
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    if (*argc != 3 || strcmp((*argv)[1], "--seed") != 0) return 0;
    const char *folder = (*argv)[2];
    struct blob pair = pair_make();
    write_seed(folder, "pair", pair.data, pair.size);
    struct kda_format_header *header = (void *)pair.data;
    write_seed(folder, "index", pair.data, (size_t)header->index_size);
    write_seed(folder, "header", pair.data, sizeof *header);
    write_seed(folder, "magic", pair.data, KDA_MAGIC_SIZE);
    // Both images in the first frame's place: same offsets, valid digests, wrong image.
    struct kda_format_cubin *cubins = (void *)(pair.data + header->spans[KDA_SPAN_CUBINS].offset);
    cubins[1].frame = 0;
    pair_sign(pair.data, pair.size);
    write_seed(folder, "shared-frame", pair.data, pair.size);
    free(pair.data);
    exit(0);
}

// Half of the mutants change one number of the index to one of those that break arithmetic.
static void change_number(uint8_t *data, size_t size, unsigned seed)
{
    static const uint64_t numbers[] = {0,
                                       1,
                                       2,
                                       63,
                                       64,
                                       255,
                                       65535,
                                       0x7fffffff,
                                       0x80000000,
                                       0xffffffff,
                                       UINT64_MAX,
                                       UINT64_MAX - 63,
                                       UINT64_C(1) << 63};
    const struct kda_format_header *header = (const void *)data;
    const size_t first = offsetof(struct kda_format_header, file_size);
    const size_t end = header->index_size < size ? (size_t)header->index_size : size;
    if (end < first + 8) return;
    const size_t width = seed & 1 ? 4 : 8, at = first + (seed >> 8) % (end - first - 7) / 4 * 4;
    uint64_t number = numbers[(seed >> 1) % 16 % (sizeof numbers / sizeof *numbers)];
    if (seed & 32) {
        memcpy(&number, data + at, width);
        number += seed & 64 ? 1u : UINT64_MAX;
    }
    memcpy(data + at, &number, width);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    if (size >= sizeof(struct kda_format_header) && seed % 3 == 0)
        change_number(data, size, seed / 3);
    else
        size = LLVMFuzzerMutate(data, size, most);
    if (seed % 16 == 1 || size < sizeof(struct kda_format_header)) return size;
    struct kda_format_header *header = (void *)data;
    memcpy(header->magic, KDA_MAGIC, KDA_MAGIC_SIZE);
    header->version = KDA_FORMAT_VERSION;
    header->header_size = sizeof *header;
    header->file_size = size;
    pair_sign(data, size);
    return size;
}

static void route(const kda_bundle *bundle, const char *body)
{
    static const struct {
        int cc_minor, cuda;
    } devices[] = {{0, 13000}, {3, 12090}, {0, 12000}};
    for (int i = 0; i < 3; ++i) {
        const kda_device device = {.cc_major = 10,
                                   .cc_minor = devices[i].cc_minor,
                                   .cuda_version = devices[i].cuda,
                                   .sm_count = 148};
        const kda_problem problem = {.op = KDA_OP_RECURRENT,
                                     .tokens = i % 2 + 1,
                                     .rows = 8,
                                     .heads = 16,
                                     .value_heads = 16,
                                     .body = body};
        kda_route_result result;
        kda_error err = {0};
        const kda_status status = kda_route(bundle, &device, &problem, &result, &err);
        if (status) {
            require(err.status == status && *err.text && !strchr(err.text, '\n'), "route", &err);
        } else {
            require(kda_bundle_find_body(bundle, result.body) != KDA_NONE &&
                        kda_bundle_find_target(bundle, result.target) != KDA_NONE &&
                        result.grid[1] == 8 && result.grid[0] == 16 * result.split &&
                        result.block % 32 == 0 && result.min_cuda <= device.cuda_version,
                    "a route that the index cannot mean", &err);
        }
    }
}

static void use(const kda_bundle *bundle)
{
    uint8_t id[32];
    kda_error err = {0};
    kda_bundle_id(bundle, id);
    route(bundle, NULL);
    for (uint32_t i = 0; i < bundle->cubin_count && i < 4; ++i) {
        const struct kda_format_cubin *cubin = &bundle->cubins[i];
        const char *body = bundle->strings + bundle->bodies[cubin->body].name;
        void *image = NULL;
        size_t size = 0;
        const kda_status status =
            kda_bundle_image(bundle, body, bundle->strings + bundle->targets[cubin->target].name,
                             &image, &size, &err);
        if (status) {
            require((status == KDA_E_DIGEST || status == KDA_E_FORMAT) && !image && !size, "image",
                    &err);
        } else {
            require(image && size == cubin->size, "an image of another size", &err);
        }
        free(image);
        route(bundle, body);
    }
    const kda_status status = kda_bundle_verify(bundle, &err);
    require(!status || status == KDA_E_DIGEST || status == KDA_E_FORMAT, "verify", &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);  // exactly as long, and aligned as the library asks
    if (!copy) return 0;
    memcpy(copy, data, size);
    kda_bundle *bundle = NULL;
    kda_error err = {0};
    const kda_status status = kda_bundle_open(copy, size, &bundle, &err);
    if (status) {
        require(!bundle && err.status == status && *err.text && !strchr(err.text, '\n') &&
                    (status == KDA_E_FORMAT || status == KDA_E_DIGEST || status == KDA_E_VERSION),
                "open", &err);
    } else {
        use(bundle);
        kda_bundle_close(&bundle);
    }
    free(copy);
    return 0;
}
