// SPDX-License-Identifier: Apache-2.0
// kda-cc: body -> cubin, by NVRTC. Owns the compiler's options and the conversation with the
// library, which it opens itself, so that a build needs no CUDA toolkit. The bytes it writes depend
// on the body, the target and the NVRTC version and on nothing else; no file is written unless its
// image is accepted.
#include <dlfcn.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/files.h"
#include "tools/image.h"
#include "tools/sums.h"
#include "tools/rows.h"

static const char usage[] =
    "usage: kda-cc --nvrtc LIBRARY --target TARGET [--root DIR | --plain] -o OUT.cubin BODY.cu\n"
    "       kda-cc --nvrtc LIBRARY --version\n"
    "\n"
    "Compiles one body of the manifest, which is found by its file name, for one target.\n"
    "  --nvrtc LIBRARY  path of libnvrtc.so; its builtins library is expected beside it\n"
    "  --root DIR       refuse a body that is not the one of DIR/manifest/bodies.lock\n"
    "  --plain          the file is no body: its kernel may have any name and parameters\n"
    "  --version        print the version of the toolkit that the library belongs to\n"
    "Exit status: 0 done, 1 refused, 2 wrong usage or a file that cannot be read or written.\n";

// The part of NVRTC's interface that is used; results other than 0 are errors.
struct nvrtc {
    void *handle;
    int (*version)(int *major, int *minor);
    const char *(*error_string)(int result);
    int (*create)(void **program, const char *source, const char *name, int header_count,
                  const char *const *headers, const char *const *names);
    int (*compile)(void *program, int option_count, const char *const *options);
    int (*log_size)(void *program, size_t *size);
    int (*log)(void *program, char *log);
    int (*cubin_size)(void *program, size_t *size);
    int (*cubin)(void *program, char *cubin);
    int (*destroy)(void **program);
};

static kda_status open_nvrtc(const char *path, struct nvrtc *out, kda_error *err)
{
    struct nvrtc nvrtc = {.handle = dlopen(path, RTLD_NOW | RTLD_LOCAL)};
    if (!nvrtc.handle) return kda_fail(err, KDA_E_IO, "NVRTC cannot be opened: %s", dlerror());
    const struct {
        const char *name;
        void *slot;
    } symbols[] = {
        {"nvrtcVersion", &nvrtc.version},
        {"nvrtcGetErrorString", &nvrtc.error_string},
        {"nvrtcCreateProgram", &nvrtc.create},
        {"nvrtcCompileProgram", &nvrtc.compile},
        {"nvrtcGetProgramLogSize", &nvrtc.log_size},
        {"nvrtcGetProgramLog", &nvrtc.log},
        {"nvrtcGetCUBINSize", &nvrtc.cubin_size},
        {"nvrtcGetCUBIN", &nvrtc.cubin},
        {"nvrtcDestroyProgram", &nvrtc.destroy},
    };
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *address = dlsym(nvrtc.handle, symbols[i].name);
        if (!address) {
            dlclose(nvrtc.handle);
            return kda_fail(err, KDA_E_IO, "%s: no symbol %s: not NVRTC, or too old", path,
                            symbols[i].name);
        }
        memcpy(symbols[i].slot, &address, sizeof address);
    }
    *out = nvrtc;
    return KDA_OK;
}

static kda_status read_version(const struct nvrtc *nvrtc, uint32_t *out, kda_error *err)
{
    int major, minor, result = nvrtc->version(&major, &minor);
    if (result != 0)
        return kda_fail(err, KDA_E_IO, "nvrtcVersion: %s", nvrtc->error_string(result));
    *out = (uint32_t)major * 1000 + (uint32_t)minor * 10;
    return KDA_OK;
}

// Loads the builtins library from beside NVRTC, which then finds it by name. NVRTC's own search for
// it fails where dlopen is intercepted, as sanitizers do. If this fails, NVRTC searches, and its
// log says what it misses.
static void load_builtins(const char *path, uint32_t version)
{
    const char *base = kda_files_base(path);
    char name[1024];
    int n = snprintf(name, sizeof name, "%.*slibnvrtc-builtins.so.%u.%u", (int)(base - path), path,
                     version / 1000, version % 1000 / 10);
    if (base != path && n > 0 && (size_t)n < sizeof name) (void)dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

static void print_log(const struct nvrtc *nvrtc, void *program)
{
    size_t size = 0;
    if (nvrtc->log_size(program, &size) != 0 || size <= 1) return;
    char *log = malloc(size);
    if (log && nvrtc->log(program, log) == 0) fprintf(stderr, "%s\n", log);
    free(log);
}

static kda_status compile(const struct nvrtc *nvrtc, uint32_t target, const char *source,
                          uint8_t **out_data, size_t *out_size, kda_error *err)
{
    const char *name = kda_targets[target].name;
    char arch[32];
    snprintf(arch, sizeof arch, "-arch=%s", name);
    const char *const options[] = {arch, KDA_IMAGE_OPTIONS};
    void *program = NULL;
    uint8_t *data = NULL;
    size_t size = 0;
    kda_status status = KDA_OK;
    // The program name is fixed because it can enter the image.
    int result = nvrtc->create(&program, source, "kda.cu", 0, NULL, NULL);
    if (result != 0)
        return kda_fail(err, KDA_E_IO, "nvrtcCreateProgram: %s", nvrtc->error_string(result));
    result = nvrtc->compile(program, (int)(sizeof options / sizeof options[0]), options);
    if (result != 0) {
        print_log(nvrtc, program);
        status = kda_fail(err, KDA_E_UNSUPPORTED, "NVRTC refuses to compile for %s: %s", name,
                          nvrtc->error_string(result));
        goto fail;
    }
    result = nvrtc->cubin_size(program, &size);
    // NVRTC reports success and no bytes where it knows a name only as a virtual architecture.
    if (result != 0 || size == 0) {
        status = kda_fail(err, KDA_E_UNSUPPORTED, "NVRTC gives an empty image for %s", name);
        goto fail;
    }
    data = malloc(size);
    if (!data) {
        status = kda_fail(err, KDA_E_NO_MEMORY, "no memory for an image of %zu bytes", size);
        goto fail;
    }
    result = nvrtc->cubin(program, (char *)data);
    if (result != 0) {
        status = kda_fail(err, KDA_E_IO, "nvrtcGetCUBIN: %s", nvrtc->error_string(result));
        goto fail;
    }
    *out_data = data;
    *out_size = size;
    data = NULL;
fail:
    free(data);
    nvrtc->destroy(&program);
    return status;
}

static kda_status check_frozen(const char *root, const char *body, const uint8_t *source,
                               size_t size, kda_error *err)
{
    char name[256], hex[KDA_HEX_SIZE];
    uint8_t digest[32];
    struct kda_sums lock = {0};
    char *path = kda_files_join(root, "manifest/bodies.lock");
    if (!path)
        return kda_fail(err, KDA_E_NO_MEMORY, "manifest/bodies.lock: no memory for its path");
    kda_status status = kda_sums_read(path, &lock, err);
    free(path);
    if (status != KDA_OK) return status;
    snprintf(name, sizeof name, "bodies/%s.cu", body);
    kda_files_sha256(source, size, digest);
    kda_files_hex(digest, hex);
    const char *locked = kda_sums_find(&lock, name);
    if (!locked || strcmp(locked, hex) != 0)
        status =
            kda_fail(err, KDA_E_DIGEST,
                     "%s: not the body of manifest/bodies.lock; run: ninja -C build regen", name);
    kda_sums_free(&lock);
    return status;
}

struct options {
    const char *nvrtc, *target, *root, *output, *source;
    bool plain;
};

// What is asked of a kernel that has no row.
static kda_status check_plain(const char *source, uint32_t target, const struct kda_elf *elf,
                              kda_error *err)
{
    if (strcmp(elf->target, kda_targets[target].name) != 0)
        return kda_fail(err, KDA_E_FORMAT, "%s: the image is for %s, expected %s", source,
                        elf->target, kda_targets[target].name);
    if (elf->stack > 0)
        return kda_fail(err, KDA_E_LIMIT, "%s: %u bytes of local memory per thread, expected 0",
                        source, elf->stack);
    return KDA_OK;
}

static kda_status build(const struct nvrtc *nvrtc, uint32_t version, const struct options *options,
                        kda_error *err)
{
    const char *base = kda_files_base(options->source), *dot = strrchr(base, '.');
    uint32_t schedule = kda_rows_schedule(base, dot ? (size_t)(dot - base) : strlen(base));
    uint32_t target = kda_rows_target(options->target, strlen(options->target));
    if (target == KDA_NONE)
        return kda_fail(err, KDA_E_NAME, "targets.inc does not declare %s", options->target);
    if (schedule == KDA_NONE && !options->plain)
        return kda_fail(err, KDA_E_NAME, "%s: schedules.inc declares no body of this name",
                        options->source);
    const struct kda_target_row *wanted = &kda_targets[target];
    if (version < wanted->floor)
        return kda_fail(err, KDA_E_CUDA_VERSION, "%s needs NVRTC %u.%u or newer, this is %u.%u",
                        wanted->name, wanted->floor / 1000, wanted->floor % 1000 / 10,
                        version / 1000, version % 1000 / 10);

    load_builtins(options->nvrtc, version);

    uint8_t *source = NULL, *data = NULL;
    size_t source_size, size = 0;
    struct kda_elf elf;
    kda_status status = kda_files_read(options->source, &source, &source_size, err);
    if (status != KDA_OK) return status;
    if (options->root)
        status =
            check_frozen(options->root, kda_schedules[schedule].name, source, source_size, err);
    if (status == KDA_OK) status = compile(nvrtc, target, (char *)source, &data, &size, err);
    if (status == KDA_OK) status = kda_elf_read(data, size, &elf, err);
    if (status == KDA_OK)
        status = options->plain ? check_plain(options->source, target, &elf, err)
                                : kda_image_check(schedule, target, &elf, err);
    if (status == KDA_OK && elf.toolkit_version != version)
        status = kda_fail(err, KDA_E_FORMAT, "the image records toolkit %s, NVRTC is %u.%u",
                          elf.toolkit, version / 1000, version % 1000 / 10);
    if (status == KDA_OK) status = kda_files_write(options->output, data, size, err);
    free(data);
    free(source);
    return status;
}

int main(int argc, char **argv)
{
    enum { NVRTC = 256, TARGET, ROOT, PLAIN, VERSION };
    static const struct option names[] = {
        {"nvrtc", required_argument, NULL, NVRTC},
        {"target", required_argument, NULL, TARGET},
        {"root", required_argument, NULL, ROOT},
        {"plain", no_argument, NULL, PLAIN},
        {"version", no_argument, NULL, VERSION},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    struct options options = {0};
    bool wants_version = false;
    int option;
    while ((option = getopt_long(argc, argv, "ho:", names, NULL)) != -1) {
        switch (option) {
        case 'o':
            options.output = optarg;
            break;
        case NVRTC:
            options.nvrtc = optarg;
            break;
        case TARGET:
            options.target = optarg;
            break;
        case ROOT:
            options.root = optarg;
            break;
        case PLAIN:
            options.plain = true;
            break;
        case VERSION:
            wants_version = true;
            break;
        case 'h':
            fputs(usage, stdout);
            return 0;
        default:
            fputs(usage, stderr);
            return 2;
        }
    }
    bool compiles =
        options.target && options.output && argc - optind == 1 && !(options.plain && options.root);
    if (!options.nvrtc || !(wants_version ? optind == argc : compiles)) {
        fputs(usage, stderr);
        return 2;
    }
    options.source = argv[optind];

    struct nvrtc nvrtc = {0};
    kda_error err = {0};
    uint32_t version = 0;
    int code = 0;
    kda_status status = open_nvrtc(options.nvrtc, &nvrtc, &err);
    if (status == KDA_OK) status = read_version(&nvrtc, &version, &err);
    if (status == KDA_OK && !wants_version) status = build(&nvrtc, version, &options, &err);
    if (status != KDA_OK) {
        fprintf(stderr, "kda-cc: %s\n", err.text);
        code = status == KDA_E_IO || status == KDA_E_ARGUMENT ? 2 : 1;
    } else if (wants_version) {
        printf("%u.%u\n", version / 1000, version % 1000 / 10);
    }
    // NVRTC keeps memory that it never frees: leaving at once spares a leak checker the blame on
    // this program.
    if (fflush(stdout) != 0) code = 2;
    _Exit(code);
}
