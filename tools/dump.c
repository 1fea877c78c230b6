// SPDX-License-Identifier: Apache-2.0
// kda-dump: shows and checks a bundle. Owns the command line, the verbs `verify` and `extract`, and
// how refusals end a program. Needs no GPU and no driver. It reads the bundle through the library's
// own proofs, so what it prints is what a serving program would get.
#include "tools/dump.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/files.h"

static const char help[] =
    "usage: kda-dump BUNDLE [VERB ...]\n"
    "\n"
    "Shows what a bundle of KDA kernels holds, and which image serves a problem. Needs no GPU.\n"
    "\n"
    "  (no verb) [--json]        bodies, images, sizes, registers, totals\n"
    "  verify                    check every digest, frame, image and padding byte\n"
    "  extract BODY.TARGET [-o FILE]\n"
    "                            write one image, verified\n"
    "  routes                    the whole routing table\n"
    "  route OPTION...           the image for one problem, and why not another\n"
    "  diff OTHER                what differs in bundle OTHER (also: kda-dump diff A B)\n"
    "  env                       this machine's driver and devices, and what they would run\n"
    "\n"
    "kda-dump VERB --help describes a verb.\n"
    "Exit status: 0 ok, 1 a finding or a refusal, 2 wrong usage or a file that cannot be read or "
    "written.\n";

static const struct verb {
    const char *name;
    int (*run)(const kda_bundle *bundle, int argc, char **argv);
} verbs[] = {
    {"table", dump_table},   {"verify", dump_verify}, {"extract", dump_extract},
    {"routes", dump_routes}, {"route", dump_route},   {"diff", dump_diff},
    {"env", dump_env},
};

int dump_usage(const char *verb, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "kda-dump %s: ", verb);
    vfprintf(stderr, format, args);
    fprintf(stderr, "; see kda-dump %s --help\n", verb);
    va_end(args);
    return DUMP_USAGE;
}

int dump_bad_option(const char *verb, char **argv)
{
    // getopt goes on to the next word at the end of a cluster of letters only.
    const char letter[] = {'-', (char)optopt, 0};
    const char *word = argv[optind - 1];
    return dump_usage(verb, "unknown option, or a value is missing or too many: %s",
                      *word == '-' ? word : letter);
}

int dump_error(const char *verb, const kda_error *err)
{
    fprintf(stderr, "kda-dump %s: %s: %s\n", verb, kda_status_name(err->status), err->text);
    return err->status == KDA_E_IO || err->status == KDA_E_NO_MEMORY ? DUMP_USAGE : DUMP_FINDING;
}

kda_status dump_open(const char *path, kda_bundle **out, kda_error *err)
{
    return kda_bundle_open_file(path, out, err);
}

int dump_no_options(int argc, char **argv, int operands, const char *text)
{
    static const struct option options[] = {{"help", no_argument, NULL, 'h'}, {0}};
    optind = 1;
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (option != 'h') return dump_bad_option(argv[0], argv);
        fputs(text, stdout);
        return DUMP_OK;
    }
    if (argc - optind != operands)
        return dump_usage(argv[0], "expected %d operands, found %d", operands, argc - optind);
    return -1;
}

int dump_verify(const kda_bundle *bundle, int argc, char **argv)
{
    int done = dump_no_options(
        argc, argv, 0,
        "usage: kda-dump BUNDLE verify\n\n"
        "Checks every byte: the index and its digest, every frame and its digest, every image and\n"
        "its digest, and that all padding is zero.\n");
    if (done >= 0) return done;
    kda_error err;
    if (kda_bundle_verify(bundle, &err)) return dump_error("verify", &err);
    printf("ok: %zu bytes, %u frames, %u images\n", bundle->size, bundle->frame_count,
           bundle->cubin_count);
    return DUMP_OK;
}

int dump_extract(const kda_bundle *bundle, int argc, char **argv)
{
    static const struct option options[] = {
        {"help", no_argument, NULL, 'h'}, {"output", required_argument, NULL, 'o'}, {0}};
    const char *output = NULL;
    optind = 1;
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, "o:", options, NULL)) != -1;) {
        if (option == 'o') {
            output = optarg;
        } else if (option == 'h') {
            fputs("usage: kda-dump BUNDLE extract BODY.TARGET [-o FILE]\n\n"
                  "Writes one image, verified against its digest.\n"
                  "  -o, --output FILE   default: BODY.TARGET.cubin\n",
                  stdout);
            return DUMP_OK;
        } else {
            return dump_bad_option("extract", argv);
        }
    }
    if (argc - optind != 1)
        return dump_usage("extract", "expected BODY.TARGET, found %d operands", argc - optind);
    char body[512], path[520];
    if (snprintf(body, sizeof body, "%s", argv[optind]) >= (int)sizeof body || !strchr(body, '.'))
        return dump_usage("extract", "expected BODY.TARGET, found %s", argv[optind]);
    snprintf(path, sizeof path, "%s.cubin", body);
    if (!output) output = path;
    char *target = strrchr(body, '.');
    *target++ = 0;
    void *data = NULL;
    size_t size = 0;
    kda_error err;
    if (kda_bundle_image(bundle, body, target, &data, &size, &err))
        return dump_error("extract", &err);
    kda_status status = kda_files_write(output, data, size, &err);
    free(data);
    if (status) return dump_error("extract", &err);
    printf("%s: %zu bytes\n", output, size);
    return DUMP_OK;
}

static const struct verb *find_verb(const char *name)
{
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; ++i) {
        if (!strcmp(verbs[i].name, name)) return &verbs[i];
    }
    return NULL;
}

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 1; i < argc; ++i) {
        if (!strcmp(argv[i], "--help")) return true;
    }
    return false;
}

int main(int argc, char **argv)
{
    if (argc < 2 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        fputs(help, argc < 2 ? stderr : stdout);
        return argc < 2 ? DUMP_USAGE : DUMP_OK;
    }
    // A verb may stand before the bundle, as in `kda-dump diff A B`: then the two change places.
    if (find_verb(argv[1]) && argc > 2 && strcmp(argv[2], "--help") != 0) {
        char *verb_name = argv[1];
        argv[1] = argv[2];
        argv[2] = verb_name;
    }
    const struct verb *verb = find_verb(argv[1]);
    if (verb && asks_for_help(argc - 1, argv + 1)) return verb->run(NULL, argc - 1, argv + 1);
    const char *path = argv[1];
    char table[] = "table";
    bool is_table = argc < 3 || argv[2][0] == '-';
    if (is_table) {
        argv[1] = table;
        argv += 1;
        argc -= 1;
    } else {
        argv += 2;
        argc -= 2;
    }
    verb = find_verb(argv[0]);
    if (!verb) {
        fprintf(stderr, "kda-dump: unknown verb %s; see kda-dump --help\n", argv[0]);
        return DUMP_USAGE;
    }
    if (asks_for_help(argc, argv)) return verb->run(NULL, argc, argv);
    kda_bundle *bundle = NULL;
    kda_error err;
    if (dump_open(path, &bundle, &err)) return dump_error(path, &err);
    int status = verb->run(bundle, argc, argv);
    kda_bundle_close(&bundle);
    if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "kda-dump: standard output: cannot be written\n");
        return DUMP_USAGE;
    }
    return status;
}
