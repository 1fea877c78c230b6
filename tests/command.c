// SPDX-License-Identifier: Apache-2.0
// Owns child processes and scratch folders of tests. A run has no shell between it and the program,
// so that arguments are what the test says. Any failure of the machinery itself fails the test at
// hand.
#include "tests/command.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

void command_set(struct command *command, ...)
{
    va_list arguments;
    va_start(arguments, command);
    command->argc = 0;
    command->text_size = 0;
    for (const char *a; (a = va_arg(arguments, const char *)) != NULL;) command_add(command, a);
    va_end(arguments);
}

void command_add(struct command *command, const char *argument)
{
    size_t size = strlen(argument) + 1;
    assert_true(command->argc < COMMAND_ARGS - 1 && size <= COMMAND_TEXT - command->text_size);
    char *copy = command->text + command->text_size;
    memcpy(copy, argument, size);
    command->text_size += size;
    command->argv[command->argc++] = copy;
    command->argv[command->argc] = NULL;
}

void command_run(struct command *command)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        execv(command->argv[0], (char *const *)(uintptr_t)command->argv);
        _exit(127);
    }
    close(ends[1]);
    size_t size = 0;
    ssize_t got;
    while ((got = read(ends[0], command->output + size, sizeof command->output - 1 - size)) > 0)
        size += (size_t)got;
    command->output[size] = 0;
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    command->status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

char *command_folder(void)
{
    char *folder = strdup("kda-test.XXXXXX");
    assert_non_null(folder);
    assert_non_null(mkdtemp(folder));
    return folder;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info, (void)kind, (void)where;
    return remove(path);
}

void command_clean(char *folder)
{
    assert_int_equal(nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
    free(folder);
}

const char *command_path(const char *folder, const char *name)
{
    static char paths[8][1024];
    static unsigned next;
    char *path = paths[next++ % 8];
    assert_true(snprintf(path, sizeof paths[0], "%s/%s", folder, name) < (int)sizeof paths[0]);
    return path;
}

uint8_t *command_read(const char *path, size_t *out_size)
{
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s cannot be opened", path);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    size_t size = (size_t)ftell(file);
    rewind(file);
    uint8_t *data = malloc(size + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, size, file), size);
    data[size] = 0;
    fclose(file);
    *out_size = size;
    return data;
}

void command_write(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");
    if (!file) fail_msg("%s cannot be written", path);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

void command_copy(const char *from, const char *to)
{
    size_t size;
    uint8_t *data = command_read(from, &size);
    command_write(to, data, size);
    free(data);
}

void command_patch(uint8_t *data, size_t data_size, const void *old, const void *new, size_t size)
{
    uint8_t *found = memmem(data, data_size, old, size);
    assert_non_null(found);
    memcpy(found, new, size);
}

void command_expect(struct command *command, int status, const char *text)
{
    command_run(command);
    if (command->status != status || !strstr(command->output, text))
        fail_msg("status %d, expected %d with \"%s\"; it says: %s", command->status, status, text,
                 command->output);
}
