// SPDX-License-Identifier: Apache-2.0
// kda-cc: the same bytes each time, and a refusal by name of everything that may not become an
// image.
//   cc_test KDA_CC NVRTC ROOT
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/command.h"
#include "tools/rows.h"

static const char *kda_cc, *nvrtc, *root;
static struct command command;
static char *folder;

static int set_up(void **state)
{
    (void)state;
    folder = command_folder();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    command_clean(folder);
    return 0;
}

static void expect(int status, const char *text) { command_expect(&command, status, text); }

// A kernel of the first row, with its parameters and its number of threads: only the statements are
// free.
static void compile_kernel(const char *symbol, const char *statements, const char *target)
{
    const struct kda_schedule_row *row = &kda_schedules[0];
    char source[8192], name[256];
    snprintf(name, sizeof name, "%s.cu", row->name);
    int n = snprintf(source, sizeof source,
                     "struct params { unsigned char bytes[%u]; };\n"
                     "extern \"C\" __global__ void __launch_bounds__(%u) kda_%s(\n"
                     "    const __grid_constant__ params p)\n"
                     "{\n"
                     "    float *x = *(float *const *)p.bytes;\n"
                     "    unsigned i = threadIdx.x;\n"
                     "    %s\n"
                     "}\n",
                     row->params_size, row->threads, symbol ? symbol : row->name, statements);
    assert_in_range(n, 1, sizeof source - 1);
    command_write(command_path(folder, name), source, (size_t)n);
    command_set(&command, kda_cc, "--nvrtc", nvrtc, "--target", target, "-o",
                command_path(folder, "out.cubin"), command_path(folder, name), NULL);
}

static void expect_no_output(void)
{
    assert_int_equal(access(command_path(folder, "out.cubin"), F_OK), -1);
}

static void test_compiles_the_same_bytes(void **state)
{
    (void)state;
    char source[1024];
    snprintf(source, sizeof source, "%s/bodies/%s.cu", root, kda_schedules[0].name);
    size_t sizes[2];
    uint8_t *images[2];
    for (int i = 0; i < 2; i++) {
        const char *out = command_path(folder, i ? "b.cubin" : "a.cubin");
        command_set(&command, kda_cc, "--nvrtc", nvrtc, "--target", kda_targets[0].name, "--root",
                    root, "-o", out, source, NULL);
        expect(0, "");
        assert_string_equal(command.output, "");
        images[i] = command_read(out, &sizes[i]);
    }
    assert_int_equal(sizes[0], sizes[1]);
    assert_memory_equal(images[0], images[1], sizes[0]);
    free(images[0]);
    free(images[1]);
}

static void test_accepts_a_good_kernel(void **state)
{
    (void)state;
    // The refusals below change one thing in this.
    compile_kernel(NULL, "x[i] = 1;", kda_targets[0].name);
    expect(0, "");
    assert_int_equal(access(command_path(folder, "out.cubin"), R_OK), 0);
}

static void test_refuses_static_shared_memory(void **state)
{
    (void)state;
    compile_kernel(NULL, "__shared__ float s[64]; s[i] = x[i]; __syncthreads(); x[i] = s[63 - i];",
                   kda_targets[0].name);
    expect(1, "256 bytes of static shared memory, expected 0");
    expect_no_output();
}

static void test_refuses_local_memory(void **state)
{
    (void)state;
    compile_kernel(NULL,
                   "float a[64]; for (int k = 0; k < 64; k++) a[k] = x[3 * k];\n"
                   "for (int k = 0; k < 64; k++) x[k] = a[(int)x[k + i] & 63];",
                   kda_targets[0].name);
    expect(1, "bytes of local memory per thread, expected 0");
    expect_no_output();
}

static void test_refuses_a_wrong_symbol(void **state)
{
    (void)state;
    compile_kernel("something", "x[i] = 1;", kda_targets[0].name);
    expect(1, "the kernel is kda_something, expected kda_");
    expect_no_output();
}

static void test_refuses_a_second_kernel(void **state)
{
    (void)state;
    compile_kernel(NULL, "x[i] = 1; }\nextern \"C\" __global__ void second(int *y) { *y = 1;",
                   kda_targets[0].name);
    expect(1, "2 kernels, expected exactly one");
    expect_no_output();
}

static void test_prints_the_log(void **state)
{
    (void)state;
    compile_kernel(NULL, "x[i] = no_such_thing;", kda_targets[0].name);
    expect(1, "identifier \"no_such_thing\" is undefined");
    expect_no_output();
}

static void test_refuses_unknown_names(void **state)
{
    (void)state;
    compile_kernel(NULL, "x[i] = 1;", "sm_42a");
    expect(1, "targets.inc does not declare sm_42a");
    command_write(command_path(folder, "no_body.cu"), "", 0);
    command_set(&command, kda_cc, "--nvrtc", nvrtc, "--target", kda_targets[0].name, "-o",
                command_path(folder, "out.cubin"), command_path(folder, "no_body.cu"), NULL);
    expect(1, "schedules.inc declares no body of this name");
    expect_no_output();
}

static void test_refuses_a_body_that_is_not_frozen(void **state)
{
    (void)state;
    compile_kernel(NULL, "x[i] = 1;", kda_targets[0].name);
    command_add(&command, "--root");
    command_add(&command, root);
    expect(1, "not the body of manifest/bodies.lock; run: ninja -C build regen");
    expect_no_output();
}

static void test_compiles_what_is_no_body(void **state)
{
    (void)state;
    compile_kernel("something", "x[i] = 1;", kda_targets[0].name);
    command_add(&command, "--plain");
    expect(0, "");
    assert_int_equal(access(command_path(folder, "out.cubin"), R_OK), 0);
    command_add(&command, "--root");
    command_add(&command, root);
    expect(2, "usage: kda-cc");
}

static void test_refuses_local_memory_of_what_is_no_body(void **state)
{
    (void)state;
    compile_kernel("something",
                   "float a[64]; for (int k = 0; k < 64; k++) a[k] = x[3 * k];\n"
                   "for (int k = 0; k < 64; k++) x[k] = a[(int)x[k + i] & 63];",
                   kda_targets[0].name);
    command_add(&command, "--plain");
    expect(1, "bytes of local memory per thread, expected 0");
    expect_no_output();
}

static void test_refuses_what_is_not_nvrtc(void **state)
{
    (void)state;
    command_set(&command, kda_cc, "--nvrtc", "libm.so.6", "--version", NULL);
    expect(2, "no symbol nvrtcVersion");
    command_set(&command, kda_cc, "--nvrtc", command_path(folder, "nothing.so"), "--version", NULL);
    expect(2, "NVRTC cannot be opened");
    command_set(&command, kda_cc, "--target", "sm_100f", NULL);
    expect(2, "usage: kda-cc");
    command_set(&command, kda_cc, "--nvrtc", nvrtc, "--version", NULL);
    expect(0, ".");
    assert_true(strtol(command.output, NULL, 10) >= 12);
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: cc_test KDA_CC NVRTC ROOT\n");
        return 2;
    }
    kda_cc = argv[1];
    nvrtc = argv[2];
    root = argv[3];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_compiles_the_same_bytes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_accepts_a_good_kernel, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refuses_static_shared_memory, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refuses_local_memory, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refuses_a_wrong_symbol, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refuses_a_second_kernel, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_prints_the_log, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refuses_unknown_names, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refuses_a_body_that_is_not_frozen, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_compiles_what_is_no_body, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refuses_local_memory_of_what_is_no_body, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_refuses_what_is_not_nvrtc, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
