// SPDX-License-Identifier: Apache-2.0
// Turns the rows of manifest/schedules.inc and the templates beside this file into the frozen files
// of bodies/, and bodies.lock. Owns the template devices and nothing else: it knows no CUDA and
// no kernel.
//
//   @KEY@                     the row's value
//   //@if KEY == VALUE        whole-line condition, also with !=; VALUE may be A|B; several are
//                             joined by " or "; nests; closed by //@end
//   //@include NAME           gen/NAME.cu.in without its licence line, expanded for the same row
//   //@params                 the text between those markers of manifest/params.h that name the
//                             row's operator
//
// Invariant: same rows and templates, same bytes. An unknown key or an open condition is an error,
// never a guess.
#include <dirent.h>
#include <errno.h>
#include <sha2.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "manifest/format.h"

#define FIX "ninja -C build regen"
#define LOCK "manifest/bodies.lock"
#define MAX_PATH 4096
#define MAX_NESTING 8

enum {
    NAME,
    TEMPLATE,
    OP,
    TOKENS,
    GATE,
    STATE,
    MODES,
    SPLIT,
    THREADS,
    SMEM,
    OCCUPANCY,
    EQUAL_HEADS,
    LOGIT_BETA,
    PARAMS,
    KEY_COUNT
};
static const char *const key_names[KEY_COUNT] = {
    "NAME",    "TEMPLATE", "OP",        "TOKENS",      "GATE",       "STATE",   "MODES",  "SPLIT",
    "THREADS", "SMEM",     "OCCUPANCY", "EQUAL_HEADS", "LOGIT_BETA", "PARAMS",
};

struct row {
    const char *values[KEY_COUNT];
};

// The struct that the operator's bodies take.
#define PARAMS_RECURRENT "kda_recurrent_params"
#define PARAMS_PACKED PARAMS_RECURRENT
#define PARAMS_FUSED "kda_fused_params"
#define PARAMS_VERIFY "kda_verify_params"
#define PARAMS_COMMIT "kda_commit_params"

#define BIT(flags, bit) (((flags) & (bit)) != 0 ? "1" : "0")
static const struct row rows[] = {
#define KDA_SCHEDULE(name, template, op, from, to, gate, state, modes, split, threads, smem,       \
                     occupancy, heads, rows, flags)                                                \
    {{#name, #template, #op, #to, #gate, #state, #modes, #split, #threads, #smem, #occupancy,      \
      BIT(flags, KDA_BODY_EQUAL_HEADS), BIT(flags, KDA_BODY_LOGIT_BETA),                           \
      PARAMS_##op}},
#include "manifest/schedules.inc"
#undef KDA_SCHEDULE
};
#define ROW_COUNT (sizeof(rows) / sizeof(rows[0]))

struct text {
    char *data;
    size_t size, capacity;
};

// Exit status 2: nothing of this program's own state outlives an error, so there is nothing to
// unwind.
static _Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
static _Noreturn void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)fputs("gen: ", stderr);
    (void)vfprintf(stderr, format, args);
    (void)fputc('\n', stderr);
    va_end(args);
    exit(2);
}

static void append(struct text *out, const char *data, size_t size)
{
    if (size > out->capacity - out->size) {
        size_t capacity = 2 * (out->size + size) + 256;
        char *grown = realloc(out->data, capacity);
        if (!grown) die("out of memory");
        out->data = grown;
        out->capacity = capacity;
    }
    if (size) memcpy(out->data + out->size, data, size);
    out->size += size;
}

static void append_string(struct text *out, const char *string)
{
    append(out, string, strlen(string));
}

static void join(char out[MAX_PATH], const char *root, const char *path)
{
    int length = snprintf(out, MAX_PATH, "%s/%s", root, path);
    if (length < 0 || length >= MAX_PATH) die("path too long: %s/%s", root, path);
}

// False if there is no such file; any other failure ends the program.
static bool read_file(const char *root, const char *path, struct text *out)
{
    char full[MAX_PATH], buffer[1 << 16];
    join(full, root, path);
    FILE *file = fopen(full, "rb");
    if (!file && errno == ENOENT) return false;
    if (!file) die("%s: %s", path, strerror(errno));
    size_t got;
    while ((got = fread(buffer, 1, sizeof buffer, file)) > 0) append(out, buffer, got);
    if (ferror(file)) die("%s: %s", path, strerror(errno));
    (void)fclose(file);  // opened for reading
    return true;
}

static struct text need_file(const char *root, const char *path)
{
    struct text out = {0};
    if (!read_file(root, path, &out)) die("%s: no such file", path);
    return out;
}

static void write_file(const char *root, const char *path, const struct text *text)
{
    char full[MAX_PATH];
    join(full, root, path);
    FILE *file = fopen(full, "wb");
    if (!file) die("%s: %s", path, strerror(errno));
    size_t put = fwrite(text->data, 1, text->size, file);
    if (fclose(file) != 0 || put != text->size) die("%s: %s", path, strerror(errno));
}

// --------------------------------------------------------------------------------------- templates

struct source {
    const char *path;
    const char *data;
    size_t size;
};

struct sources {
    const char *root;
    struct text params;  // manifest/params.h whole
};

static bool same(const char *data, size_t size, const char *string)
{
    return size == strlen(string) && memcmp(data, string, size) == 0;
}

static const char *find_value(const struct row *row, const char *key, size_t size)
{
    for (size_t i = 0; i < KEY_COUNT; i++)
        if (same(key, size, key_names[i])) return row->values[i];
    return NULL;
}

static bool starts(const char *line, size_t size, const char *prefix)
{
    return size >= strlen(prefix) && memcmp(line, prefix, strlen(prefix)) == 0;
}

// A misspelt operator or gate would silently be a condition that never holds.
static bool is_name(const char *key, const char *value, size_t size)
{
#define GEN_NAME(name, number, text) #name,
    static const char *const ops[] = {KDA_OPS(GEN_NAME) NULL};
    static const char *const gates[] = {KDA_GATES(GEN_NAME) NULL};
#undef GEN_NAME
    const char *const *names = strcmp(key, "OP") == 0     ? ops
                               : strcmp(key, "GATE") == 0 ? gates
                                                          : NULL;
    if (!names) return true;
    while (*names && !same(value, size, *names)) names++;
    return *names;
}

// One `KEY == VALUE` or `KEY != VALUE`, where VALUE may be several, separated by '|'.
static bool term_holds(const struct source *source, unsigned number, const char *term,
                       const struct row *row)
{
    char key[32], relation[3], value[64], rest[2];
    if (sscanf(term, "%31s %2s %63s %1s", key, relation, value, rest) != 3 ||
        (strcmp(relation, "==") != 0 && strcmp(relation, "!=") != 0))
        die("%s:%u: expected //@if KEY == VALUE or //@if KEY != VALUE", source->path, number);
    const char *found = find_value(row, key, strlen(key));
    if (!found) die("%s:%u: unknown key %s", source->path, number, key);
    bool equal = false;
    for (const char *word = value; *word;) {
        size_t length = strcspn(word, "|");
        if (!is_name(key, word, length))
            die("%s:%u: no %s is called %.*s", source->path, number, key, (int)length, word);
        equal |= same(word, length, found);
        word += length + (word[length] == '|');
    }
    return equal == (relation[0] == '=');
}

// The terms of a `//@if` line, joined by " or ".
static bool holds(const struct source *source, unsigned number, const char *line, size_t size,
                  const struct row *row)
{
    static const char open[] = "//@if ", join[] = " or ";
    char copy[160];
    if (size >= sizeof copy) die("%s:%u: condition too long", source->path, number);
    memcpy(copy, line, size);
    copy[size] = '\0';
    bool any = false;
    for (char *term = copy + strlen(open), *next; term; term = next) {
        next = strstr(term, join);
        if (next) {
            *next = '\0';
            next += strlen(join);
        }
        any |= term_holds(source, number, term, row);
    }
    return any;
}

static void substitute(const struct source *source, unsigned number, const char *line, size_t size,
                       const struct row *row, struct text *out)
{
    while (size > 0) {
        const char *open = memchr(line, '@', size);
        if (!open) break;
        size_t before = (size_t)(open - line);
        const char *close = memchr(open + 1, '@', size - before - 1);
        if (!close) die("%s:%u: '@' without a second one", source->path, number);
        size_t length = (size_t)(close - open) - 1;
        const char *value = find_value(row, open + 1, length);
        if (!value) die("%s:%u: unknown key @%.*s@", source->path, number, (int)length, open + 1);
        append(out, line, before);
        append_string(out, value);
        line += before + length + 2;
        size -= before + length + 2;
    }
    append(out, line, size);
}

static struct source skip_first_line(const char *path, const struct text *text);

static void append_params(const struct sources *sources, const struct row *row, struct text *out);

static void expand(const struct source *source, const struct sources *sources,
                   const struct row *row, struct text *out);

// `//@include NAME`.
static void include(const struct source *source, unsigned number, const char *line, size_t size,
                    const struct sources *sources, const struct row *row, struct text *out)
{
    char path[MAX_PATH];
    const size_t begin = strlen("//@include ");
    int length = snprintf(path, sizeof path, "gen/%.*s.cu.in", (int)(size - begin), line + begin);
    if (length < 0 || (size_t)length >= sizeof path || strcmp(path, source->path) == 0)
        die("%s:%u: cannot include this", source->path, number);
    struct text text = need_file(sources->root, path);
    const struct source included = skip_first_line(path, &text);
    expand(&included, sources, row, out);
    free(text.data);
}

static void expand(const struct source *source, const struct sources *sources,
                   const struct row *row, struct text *out)
{
    bool active[MAX_NESTING + 1] = {true};
    unsigned depth = 0, number = 0, opened[MAX_NESTING + 1] = {0};
    for (const char *line = source->data, *end = source->data + source->size; line < end;) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        number++;
        if (!newline) die("%s:%u: no newline at the end", source->path, number);
        size_t size = (size_t)(newline - line);
        if (starts(line, size, "//@if ")) {
            if (depth == MAX_NESTING)
                die("%s:%u: conditions nest too deeply", source->path, number);
            bool taken = holds(source, number, line, size, row);
            depth++;
            active[depth] = active[depth - 1] && taken;
            opened[depth] = number;
        } else if (same(line, size, "//@end")) {
            if (depth == 0) die("%s:%u: //@end without //@if", source->path, number);
            depth--;
        } else if (starts(line, size, "//@include ")) {
            if (active[depth]) include(source, number, line, size, sources, row, out);
        } else if (same(line, size, "//@params")) {
            if (active[depth]) append_params(sources, row, out);
        } else if (starts(line, size, "//@")) {
            die("%s:%u: unknown directive", source->path, number);
        } else if (active[depth]) {
            substitute(source, number, line, size, row, out);
            append(out, "\n", 1);
        }
        line = newline + 1;
    }
    if (depth) die("%s:%u: //@if without //@end", source->path, opened[depth]);
}

// The first line of a source is its licence; the stamp brings that of the body.
static struct source skip_first_line(const char *path, const struct text *text)
{
    const char *newline = text->size ? memchr(text->data, '\n', text->size) : NULL;
    if (!newline || !starts(text->data, text->size, "// SPDX-License-Identifier: "))
        die("%s:1: expected a licence line", path);
    return (struct source){path, newline + 1, text->size - (size_t)(newline + 1 - text->data)};
}

// Is the row's operator one of the words of this marker line?
static bool names_op(const char *line, size_t size, const struct row *row)
{
    const char *op = row->values[OP];
    const size_t length = strlen(op);
    for (size_t i = 0; i + length < size; i++)
        if (line[i] == ' ' && memcmp(line + i + 1, op, length) == 0 &&
            (i + 1 + length == size || line[i + 1 + length] == ' '))
            return true;
    return false;
}

static void append_params(const struct sources *sources, const struct row *row, struct text *out)
{
    static const char path[] = "manifest/params.h";
    bool inside = false, taken = false, any = false;
    const struct text *const params = &sources->params;
    for (const char *line = params->data, *end = params->data + params->size; line < end;) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        if (!newline) die("%s: no newline at the end", path);
        const size_t size = (size_t)(newline - line);
        const bool begins = starts(line, size, "// @params begin ");
        const bool ends = same(line, size, "// @params end");
        if (begins == inside && (begins || ends)) die("%s: markers do not alternate", path);
        if (begins) {
            taken = names_op(line, size, row);
            if (taken && any) append(out, "\n", 1);
            any |= taken;
        } else if (inside && !ends && taken) {
            append(out, line, size + 1);
        }
        if (begins || ends) inside = begins;
        line = newline + 1;
    }
    if (inside || !any) die("%s: no parameters for %s", path, row->values[OP]);
}

// ------------------------------------------------------------------------------------------ bodies

static struct text make_body(const char *root, const struct sources *sources, const struct row *row)
{
    char path[MAX_PATH], stamp[1024];
    int length = snprintf(path, sizeof path, "gen/%s.cu.in", row->values[TEMPLATE]);
    if (length < 0 || (size_t)length >= sizeof path) die("template name too long");
    length = snprintf(
        stamp, sizeof stamp,
        "// SPDX-License-Identifier: Apache-2.0\n"
        "// Generated from gen/%s.cu.in, what it includes, and manifest/params.h for the row\n"
        "// %s of manifest/schedules.inc.\n"
        "// Frozen: edit the template or the row, then run `" FIX "`.\n",
        row->values[TEMPLATE], row->values[NAME]);
    if (length < 0 || (size_t)length >= sizeof stamp) die("stamp too long");
    struct text text = need_file(root, path), out = {0};
    struct source source = skip_first_line(path, &text);
    append_string(&out, stamp);
    expand(&source, sources, row, &out);
    free(text.data);
    return out;
}

static void append_lock_line(struct text *lock, const char *path, const struct text *body)
{
    uint8_t digest[SHA256_DIGEST_LENGTH];
    SHA2_CTX context;
    SHA256Init(&context);
    SHA256Update(&context, (const uint8_t *)body->data, body->size);
    SHA256Final(digest, &context);
    for (size_t i = 0; i < sizeof digest; i++) {
        char hex[3];
        (void)snprintf(hex, sizeof hex, "%02x", digest[i]);
        append(lock, hex, 2);
    }
    append_string(lock, "  ");
    append_string(lock, path);
    append(lock, "\n", 1);
}

// Writes a file whose bytes differ, or only reports it; true if it differed.
static bool settle(const char *root, const char *path, const struct text *want, bool check)
{
    struct text have = {0};
    bool exists = read_file(root, path, &have);
    bool differs =
        !exists || have.size != want->size || memcmp(have.data, want->data, want->size) != 0;
    free(have.data);
    if (!differs) return false;
    if (check)
        (void)fprintf(stderr, "%s: %s\n", exists ? "stale" : "missing", path);
    else
        write_file(root, path, want);
    return true;
}

static bool has_row(const char *file)
{
    for (size_t i = 0; i < ROW_COUNT; i++) {
        size_t length = strlen(rows[i].values[NAME]);
        if (strncmp(file, rows[i].values[NAME], length) == 0 && strcmp(file + length, ".cu") == 0)
            return true;
    }
    return false;
}

// Removes, or only reports, what lies in bodies/ without a row; true if there was something.
static bool settle_surplus(const char *root, bool check)
{
    char folder[MAX_PATH], path[MAX_PATH], full[MAX_PATH];
    bool found = false;
    join(folder, root, "bodies");
    DIR *dir = opendir(folder);
    if (!dir) die("bodies: %s", strerror(errno));
    for (const struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.' || has_row(entry->d_name)) continue;
        found = true;
        join(path, "bodies", entry->d_name);
        join(full, root, path);
        if (check)
            (void)fprintf(stderr, "surplus: %s\n", path);
        else if (remove(full) != 0)
            die("%s: %s", path, strerror(errno));
    }
    (void)closedir(dir);  // read only
    return found;
}

int main(int argc, char **argv)
{
    bool check = false, usage = false;
    const char *root = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--check") == 0)
            check = true;
        else if (strcmp(argv[i], "--root") == 0 && i + 1 < argc)
            root = argv[++i];
        else
            usage = true;
    }
    if (usage || !root) {
        (void)fputs("usage: gen [--check] --root DIR\n"
                    "Writes DIR/bodies/*.cu and DIR/" LOCK
                    " from DIR/gen and the compiled-in rows.\n"
                    "--check writes nothing: it names every stale, missing or surplus file and "
                    "exits with 1.\n",
                    stderr);
        return 2;
    }

    struct sources sources = {root, need_file(root, "manifest/params.h")};
    struct text lock = {0};
    bool differs = false;
    for (size_t i = 0; i < ROW_COUNT; i++) {
        char path[MAX_PATH];
        if (!is_name("OP", rows[i].values[OP], strlen(rows[i].values[OP])) ||
            !is_name("GATE", rows[i].values[GATE], strlen(rows[i].values[GATE])))
            die("row %s: unknown operator or gate", rows[i].values[NAME]);
        struct text body = make_body(root, &sources, &rows[i]);
        int length = snprintf(path, sizeof path, "bodies/%s.cu", rows[i].values[NAME]);
        if (length < 0 || (size_t)length >= sizeof path) die("body name too long");
        append_lock_line(&lock, path, &body);
        differs |= settle(root, path, &body, check);
        free(body.data);
    }
    differs |= settle(root, LOCK, &lock, check);
    differs |= settle_surplus(root, check);
    free(lock.data);
    free(sources.params.data);
    if (check && differs)
        (void)fputs("bodies differ from their rows and templates; run: " FIX "\n", stderr);
    return check && differs ? 1 : 0;
}
