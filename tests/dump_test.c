// SPDX-License-Identifier: Apache-2.0
// kda-dump as its users see it: exact output, exit status, and files.
//   dump_test KDA_DUMP ROUTES.golden [BUNDLE]
// The golden file is what `kda-dump BUNDLE routes` prints for the default bundle. It is compared
// with a bundle made from the manifest, and with BUNDLE.
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/blob.h"
#include "tools/files.h"
#include "tools/rows.h"

static const char *program, *golden_path, *bundle_path;
static char folder[] = "dump-test-XXXXXX";
static char output[1 << 18];
static size_t output_size;

static void write_blob(const char *name, const struct blob *blob)
{
    char path[64];
    kda_error err;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (kda_files_write(path, blob->data, blob->size, &err)) fail_msg("%s", err.text);
}

// Runs the program in the test's folder, both outputs taken together; the exit status.
static int run(const char *arguments)
{
    char command[2048];
    snprintf(command, sizeof command, "cd %s && '%s' %s 2>&1", folder, program, arguments);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    output_size = fread(output, 1, sizeof output - 1, pipe);
    output[output_size] = 0;
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void expect(const char *arguments, int status, const char *fragment)
{
    int found = run(arguments);
    if (found != status || !strstr(output, fragment))
        fail_msg("kda-dump %s: expected status %d and \"%s\", found %d and:\n%s", arguments, status,
                 fragment, found, output);
}

static void routes(void **state)
{
    (void)state;
    uint8_t *golden = NULL;
    size_t size = 0;
    kda_error err;
    if (kda_files_read(golden_path, &golden, &size, &err)) fail_msg("%s", err.text);
    assert_int_equal(run("made.bundle routes"), 0);
    assert_string_equal(output, (char *)golden);
    if (bundle_path) {
        char arguments[1024];
        snprintf(arguments, sizeof arguments, "'%s' routes", bundle_path);
        assert_int_equal(run(arguments), 0);
        assert_string_equal(output, (char *)golden);
    }
    free(golden);
}

static void help(void **state)
{
    (void)state;
    static const char *const verbs[] = {"table", "verify", "extract", "routes",
                                        "route", "diff",   "env"};
    expect("--help", 0, "usage: kda-dump BUNDLE [VERB ...]");
    expect("", 2, "usage: kda-dump BUNDLE [VERB ...]");
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; ++i) {
        char arguments[64];
        snprintf(arguments, sizeof arguments, "%s --help", verbs[i]);
        expect(arguments, 0, "usage: kda-dump ");
        snprintf(arguments, sizeof arguments, "made.bundle %s --help", verbs[i]);
        expect(arguments, 0, "usage: kda-dump ");
        snprintf(arguments, sizeof arguments, "made.bundle %s --wrong", verbs[i]);
        expect(arguments, 2, "--help");
    }
    expect("made.bundle unknown", 2, "unknown verb unknown");
    expect("made.bundle verify more", 2, "expected 0 operands, found 1");
    expect("made.bundle verify --all", 2,
           "kda-dump verify: unknown option, or a value is missing or too many: --all");
    expect("made.bundle verify -ab", 2, "a value is missing or too many: -a");
    expect("made.bundle --json=1", 2, "a value is missing or too many: --json=1");
    expect("made.bundle --jsn", 2,
           "kda-dump table: unknown option, or a value is missing or too many: --jsn");
    expect("made.bundle extract -o", 2,
           "kda-dump extract: unknown option, or a value is missing or too many: -o");
}

static void verify(void **state)
{
    (void)state;
    expect("made.bundle verify", 0, "ok: ");
    expect("verify made.bundle", 0, "ok: ");
    expect("missing.bundle verify", 2, "KDA_E_IO");
    expect(". verify", 2, "a directory");
    struct blob blob = blob_default();
    blob.data[blob.size - 1] ^= 1;
    write_blob("bad.bundle", &blob);
    expect("bad.bundle verify", 1, "KDA_E_DIGEST: bundle: frame ");
    expect("bad.bundle", 0, "bundle id ");  // the index is whole
    blob.size -= 1;
    write_blob("bad.bundle", &blob);
    expect("bad.bundle", 1, "KDA_E_FORMAT: bundle: truncated");
    free(blob.data);
}

static void table(void **state)
{
    (void)state;
    expect("made.bundle", 0, "toolchain    12.9.86, pinned");
    assert_non_null(strstr(output, "\nd128_t6_precomputed_gram_split8 "));
    char totals[128];
    snprintf(totals, sizeof totals, "totals       %u bodies, %u images", kda_schedule_count,
             3 * kda_schedule_count);
    assert_non_null(strstr(output, totals));
    assert_non_null(strstr(output, "key channel fastest"));
    expect("made.bundle --json", 0, "{\n  \"schema_version\": 1,\n  \"bundle_id\": \"");
    assert_non_null(strstr(
        output, "\n    {\n      \"name\": \"packed_t1_tile8\",\n      \"op\": \"packed\",\n"
                "      \"tokens\": 1,\n      \"gate\": \"lower_bound\",\n      \"state\": "
                "\"bf16\",\n      \"heads\": [\n        12\n      ],\n      \"split\": 16,\n"));
    assert_non_null(strstr(
        output,
        "\n    {\n      \"body\": \"packed_t1_tile8\",\n      \"target\": \"sm_100a\",\n"
        "      \"toolkit\": \"12.9.86\",\n      \"min_cuda\": 12080,\n      \"sha256\": \""));
    assert_non_null(strstr(
        output, "          \"kind\": \"rows\",\n          \"den\": 1,\n          \"num\": 0,\n"
                "          \"c\": 31,\n          \"body\": \"packed_t1_tile8\"\n"));
    snprintf(totals, sizeof totals, "\"cubins\": %u,", 3 * kda_schedule_count);
    assert_non_null(strstr(output, totals));
}

static void route(void **state)
{
    (void)state;
    expect("made.bundle route --op recurrent --cc 10.3 --cuda 13.0 --sms 152 --n 8 --tokens 4 --hv "
           "32 --json",
           0,
           "{\n  \"body\": \"d128_t4_precomputed_split1\",\n  \"target\": \"sm_100f\",\n  "
           "\"split\": 1,\n  \"grid\": [\n"
           "    32,\n    8,\n    1\n  ],\n  \"block\": 512,\n");
    assert_non_null(
        strstr(output,
               "  \"toolkit\": \"12.9.86\",\n  \"min_cuda\": 12090,\n  \"facts\": {\n"
               "    \"cc\": \"10.3\",\n    \"cuda_version\": 13000,\n    \"sm_count\": 152,\n"
               "    \"overridden\": [\n      \"cc\",\n      \"cuda_version\",\n      \"sm_count\"\n"
               "    ]\n  }\n}\n"));
    expect(
        "made.bundle route --op recurrent --cc 10.3 --cuda 13.0 --sms 152 --n 8 --tokens 4 --hv 32",
        0,
        "facts        CC 10.3 (overridden), CUDA 13.0 (overridden), 152 SMs (overridden)\n"
        "other bodies\n"
        "    d128_t4_precomputed_split2: another rule came first; forced, it would run as "
        "sm_100f\n");
    assert_non_null(strstr(output, "bodies of another operator: "));
    assert_non_null(
        strstr(output, "    sm_100a: target sm_100a runs on CC 10.0 only, device is 10.3"));
    assert_non_null(strstr(output, "    sm_103a: not preferred; forced, it would run\n"));
    // The defaults of packed and of T = 3.
    expect("made.bundle route --op packed --cc 10.0 --cuda 12.8 --sms 148 --n 31", 0,
           "grid         192 31 1\n");
    assert_non_null(strstr(output, "target       sm_100a\n"));
    expect("made.bundle route --op recurrent --tokens 3 --cc 10.0 --cuda 12.9 --sms 1 --n 4", 0,
           "grid         64 4 1\n");
    expect("made.bundle route --op recurrent --gate softplus --h 32 --cc 10.0 --cuda 12.9 --sms "
           "148 --n 19",
           0, "body         d128_t1_unbounded_softplus_direct_split8\n");
    expect("made.bundle route --op recurrent --cc 10.0 --cuda 12.9 --sms 148 --n 1 --body "
           "d128_t1_precomputed_split2 "
           "--target sm_100a",
           0, "target       sm_100a\n");
    // A window and its gate decide the body of a verify, the gate alone that of a commit.
    expect("made.bundle route --op verify --tokens 16 --cc 10.3 --cuda 12.9 --sms 152 --n 8", 0,
           "body         verify_");
    expect("made.bundle route --op commit --gate lower_bound --tokens 16 --cc 10.0 --cuda 12.8 "
           "--sms 148 --n 8 --h 12",
           0, "body         commit_lower_bound_");
    assert_non_null(strstr(output, "target       sm_100a\n"));
    expect("made.bundle route --op verify --tokens 17 --cc 10.0 --cuda 12.9 --sms 148 --n 1", 1,
           "verify: does not support T=17");
    expect("made.bundle route --op recurrent --cc 12.0 --cuda 13.0 --sms 148 --n 1", 1,
           "refused: KDA_E_NO_ROUTE: ");
    expect("made.bundle route --op recurrent --cc 12.0 --cuda 13.0 --sms 148 --n 1 --json", 1,
           "{\n  \"status\": \"KDA_E_NO_ROUTE\",\n  \"error\": \"recurrent: CC 12.0 does not have "
           "a route");
    expect("made.bundle route --op recurrent --cc 10.0 --cuda 13.0 --sms 148 --n 1 --state f32", 1,
           "KDA_E_UNSUPPORTED");
    expect("made.bundle route --op recurrent --cc 10.0 --cuda 13.0 --sms 0 --n 1", 1,
           "KDA_E_ARGUMENT");
    expect("made.bundle route --op recurrent --cc 10.0 --cuda 13.0 --sms 148", 2, "--n is missing");
    expect("made.bundle route --op recurrent --cc 10 --cuda 13.0 --sms 148 --n 1", 2,
           "--cc: cannot be 10, must be MAJOR.MINOR");
    expect("made.bundle route --op recurring --cc 10.0 --cuda 13.0 --sms 148 --n 1", 2,
           "--op: cannot be recurring, must be recurrent, packed, fused, verify or commit");
    expect("made.bundle route --op recurrent --cc 10.0 --cuda 13.0 --sms 148 --n 1x", 2,
           "--n: cannot be 1x, must be an integer of 64 bits");
    expect(
        "made.bundle route --op recurrent --cc 10.0 --cuda 13.0 --sms 148 --n 9223372036854775808",
        2, "--n: cannot be 9223372036854775808, must be an integer of 64 bits");
    expect("made.bundle route --op fused --mode any", 2,
           "--mode: cannot be any, must be positive_unique, unique_or_null or repeated_positive");
    expect("made.bundle route --state i32", 2, "--state: cannot be i32, must be bf16 or f32");
    expect("made.bundle route --jsn", 2,
           "kda-dump route: unknown option, or a value is missing or too many: --jsn");
    expect("made.bundle route --op recurrent --cc 10.0 --cuda 13.0 --sms 148 --n 1 more", 2,
           "found more");
}

static void extract(void **state)
{
    (void)state;
    expect("made.bundle extract packed_t1_tile8.sm_100f", 0, "packed_t1_tile8.sm_100f.cubin: ");
    expect("made.bundle extract packed_t1_tile8.sm_103a -o image", 0, "image: ");
    char path[64];
    uint8_t *data = NULL;
    size_t size = 0;
    kda_error err;
    snprintf(path, sizeof path, "%s/image", folder);
    if (kda_files_read(path, &data, &size, &err)) fail_msg("%s", err.text);
    assert_memory_equal(data, "image of packed_t1_tile8 for sm_103a by 12.9.86", 47);
    free(data);
    expect("made.bundle extract packed_t1_tile8.sm_90a", 1, "KDA_E_NAME");
    expect("made.bundle extract packed_t1_tile8", 2, "expected BODY.TARGET");
    expect("made.bundle extract", 2, "expected BODY.TARGET");
    expect("made.bundle extract packed_t1_tile8.sm_103a -o missing/image", 2, "KDA_E_IO");
}

// A link stays one and what it points to is replaced; a pipe or a device is written to, not
// replaced.
static void extract_to_what_is_there(void **state)
{
    (void)state;
    char path[64];
    struct stat what;
    expect("made.bundle extract packed_t1_tile8.sm_103a -o behind", 0, "behind: ");
    snprintf(path, sizeof path, "%s/link", folder);
    assert_int_equal(symlink("behind", path), 0);
    expect("made.bundle extract packed_t1_tile8.sm_100f -o link", 0, "link: ");
    assert_int_equal(lstat(path, &what), 0);
    assert_true(S_ISLNK(what.st_mode));
    assert_int_equal(
        run("made.bundle extract packed_t1_tile8.sm_100f -o other && cmp other behind"), 0);
    snprintf(path, sizeof path, "%s/dangling", folder);
    assert_int_equal(symlink("nowhere", path), 0);
    expect("made.bundle extract packed_t1_tile8.sm_100f -o dangling", 0, "dangling: ");
    assert_int_equal(run("made.bundle verify && cmp other nowhere"), 0);

    snprintf(path, sizeof path, "%s/pipe", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    const int pipe = open(path, O_RDWR);
    char image[38];
    expect("made.bundle extract packed_t1_tile8.sm_100f -o pipe", 0, "pipe: ");
    assert_int_equal(read(pipe, image, sizeof image), sizeof image);
    assert_memory_equal(image, "image of packed_t1_tile8 for sm_100f by", sizeof image);
    close(pipe);
    assert_int_equal(lstat(path, &what), 0);
    assert_true(S_ISFIFO(what.st_mode));
    assert_int_equal(mkdir(strcat(path, "s"), 0700), 0);
    expect("made.bundle extract packed_t1_tile8.sm_103a -o pipes", 2, "pipes: cannot be written");
}

static void diff(void **state)
{
    (void)state;
    const struct blob_target targets[] = {
        {"sm_100f", "12.9.86", 12090, NULL}, {"sm_100a", "13.0.88", 13000, "packed_t1_tile8"}, {0}};
    struct blob other = blob_make(targets);
    write_blob("other.bundle", &other);
    free(other.data);
    expect("made.bundle diff made.bundle", 0, "the same bundle id ");
    expect("made.bundle diff other.bundle", 1, "- cubin d128_t1_precomputed_split1.sm_103a\n");
    assert_non_null(strstr(output, "- cubin packed_t1_tile8.sm_100a\n"));
    assert_non_null(strstr(output, "~ cubin packed_t1_tile16.sm_100a: sha256 "));
    assert_non_null(strstr(output, " min_cuda 12080 -> 13000 toolkit 12.9.86 -> 13.0.88\n"));
    assert_null(strstr(output, "body "));
    assert_null(strstr(output, "route "));
    expect("diff other.bundle made.bundle", 1, "+ cubin packed_t1_tile8.sm_100a\n");
    const struct blob_target hopper[] = {{"sm_90a", "12.9.86", 12090, NULL}, {0}};
    other = blob_make(hopper);
    write_blob("other.bundle", &other);
    free(other.data);
    expect("made.bundle diff other.bundle", 1, "- route packed T=1 lower_bound CC 10.0: N <= 31");
    assert_non_null(strstr(output, "+ route CC 9.0 packed any other body: sm_90a\n"));
    expect("made.bundle diff missing.bundle", 2, "KDA_E_IO");
}

// With or without a driver: it says which, and fails with 1 when no device can use the bundle.
static void env(void **state)
{
    (void)state;
    int status = run("made.bundle env");
    assert_true(status == 0 || status == 1);
    assert_memory_equal(output, "driver   ", 9);
    if (status == 0) assert_non_null(strstr(output, "device 0: "));
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) return 1;
    struct blob blob = blob_default();
    write_blob("made.bundle", &blob);
    free(blob.data);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    static const char *const names[] = {
        "made.bundle", "bad.bundle", "other.bundle", "image",   "packed_t1_tile8.sm_100f.cubin",
        "behind",      "link",       "other",        "nowhere", "dangling",
        "pipe",        "pipes"};
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        char path[64];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        (void)remove(path);  // a failed test may not have made it
    }
    return rmdir(folder);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: dump_test KDA_DUMP ROUTES.golden [BUNDLE]\n");
        return 2;
    }
    // The program runs in another folder.
    program = realpath(argv[1], NULL);
    golden_path = argv[2];
    bundle_path = argc > 3 ? realpath(argv[3], NULL) : NULL;
    if (!program || (argc > 3 && !bundle_path)) {
        fprintf(stderr, "dump_test: %s cannot be found\n", program ? argv[3] : argv[1]);
        return 2;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routes),
        cmocka_unit_test(help),
        cmocka_unit_test(verify),
        cmocka_unit_test(table),
        cmocka_unit_test(route),
        cmocka_unit_test(extract),
        cmocka_unit_test(diff),
        cmocka_unit_test(env),
        cmocka_unit_test(extract_to_what_is_there),
    };
    return cmocka_run_group_tests_name("dump", tests, set_up, tear_down);
}
