// SPDX-License-Identifier: Apache-2.0
// Running a program from a test, and files to run it on.
#ifndef KDA_TESTS_COMMAND_H
#define KDA_TESTS_COMMAND_H

#include <stddef.h>
#include <stdint.h>

#define COMMAND_ARGS 512
#define COMMAND_TEXT (1 << 17)

struct command {
    const char *argv[COMMAND_ARGS];
    int argc;
    char text[COMMAND_TEXT];  // the arguments, copied
    size_t text_size;
    char output[1 << 16];  // stdout and stderr of the last run, as one text
    int status;            // its exit status; -1 if it did not exit
};

// The arguments up to NULL; the first is the program.
void command_set(struct command *command, ...);
void command_add(struct command *command, const char *argument);
void command_run(struct command *command);

// A new empty folder; it is removed with everything in it by command_clean. Both fail the test on
// error.
char *command_folder(void);
void command_clean(char *folder);

// FOLDER/NAME in a static buffer that the eighth next call overwrites.
const char *command_path(const char *folder, const char *name);
uint8_t *command_read(const char *path, size_t *out_size);
void command_write(const char *path, const void *data, size_t size);
void command_copy(const char *from, const char *to);

// Replaces the first `size` bytes that equal `old` by `new`; fails the test if there are none.
void command_patch(uint8_t *data, size_t data_size, const void *old, const void *new, size_t size);

// Runs it and fails the test unless it ends with `status` and says `text`.
void command_expect(struct command *command, int status, const char *text);

#endif
