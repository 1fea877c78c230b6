// SPDX-License-Identifier: Apache-2.0
// Owns the text form of a golden case. It reads and never judges; a line, a name or a size that it
// does not expect fails the whole case, so that a truncated checkout cannot pass as a smaller one.
#include "tests/golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool refuse(const struct golden *golden, const char *what, const char *detail)
{
    fprintf(stderr, "golden case %s: %s %s\n", golden->name, what, detail);
    return false;
}

static void *read_file(const char *directory, const char *name, size_t *out_size)
{
    char path[512];
    if (snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path) return NULL;
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    void *data = NULL;
    long size;
    if (fseek(file, 0, SEEK_END) || (size = ftell(file)) < 0 || fseek(file, 0, SEEK_SET)) goto done;
    data = malloc((size_t)size + 1);
    if (!data || fread(data, 1, (size_t)size, file) != (size_t)size) {
        free(data);
        data = NULL;
        goto done;
    }
    ((char *)data)[size] = 0;
    *out_size = (size_t)size;
done:
    fclose(file);
    return data;
}

static char *word(char **at) { return strtok_r(NULL, " ", at); }

static bool number(char **at, int64_t *out)
{
    char *text = word(at), *end;
    if (!text) return false;
    *out = strtoll(text, &end, 10);
    return *end == 0;
}

static bool real(char **at, double *out)
{
    char *text = word(at), *end;
    if (!text) return false;
    *out = strtod(text, &end);
    return *end == 0;
}

static bool parse_scalar(struct golden *golden, char **at)
{
    const char *name = word(at);
    if (!name) return false;
    const struct {
        const char *name;
        int64_t *to;
    } numbers[] = {{"T", &golden->tokens},
                   {"N", &golden->rows},
                   {"tok", &golden->tok},
                   {"H", &golden->heads},
                   {"HV", &golden->value_heads},
                   {"num_slots", &golden->num_slots},
                   {"beta_is_logit", &golden->beta_is_logit},
                   {"null_min", &golden->null_min}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(name, numbers[i].name)) return number(at, numbers[i].to);
    if (!strcmp(name, "scale")) return real(at, &golden->scale);
    if (!strcmp(name, "lower_bound")) return real(at, &golden->lower_bound);

    const struct {
        const char *name;
        int64_t value;
    } fixed[] = {{"D", ORACLE_D}, {"format", 1}, {"poison_u16", ORACLE_POISON}};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        int64_t value;
        if (!strcmp(name, fixed[i].name)) return number(at, &value) && value == fixed[i].value;
    }
    const char *value = word(at);
    if (!value) return false;
    if (!strcmp(name, "op")) {
        golden->op = !strcmp(value, "recurrent")   ? KDA_OP_RECURRENT
                     : !strcmp(value, "packed_k3") ? KDA_OP_PACKED
                     : !strcmp(value, "verify")    ? KDA_OP_VERIFY
                                                   : (kda_op)0;
        return golden->op != 0;
    }
    if (!strcmp(name, "gate")) {
        static const char *const gates[] = {"precomputed", "lower_bound", "unbounded_softplus"};
        for (int i = 0; i < 3; i++)
            if (!strcmp(value, gates[i])) {
                golden->gate = (kda_gate)i;
                return true;
            }
        return false;
    }
    return !strcmp(name, "case") || !strcmp(name, "within_caller_contract");
}

static int find_file(struct golden *golden, const char *directory, const char *name)
{
    for (int i = 0; i < golden->file_count; i++)
        if (!strcmp(golden->files[i].name, name)) return i;
    if (golden->file_count == GOLDEN_TENSORS) return -1;
    struct golden_file *file = &golden->files[golden->file_count];
    snprintf(file->name, sizeof file->name, "%s", name);
    file->data = read_file(directory, name, &file->size);
    return file->data ? golden->file_count++ : -1;
}

static bool parse_tensor(struct golden *golden, const char *directory, char **at)
{
    if (golden->tensor_count == GOLDEN_TENSORS) return false;
    struct golden_tensor *tensor = &golden->tensors[golden->tensor_count];
    const char *name = word(at), *file = word(at), *dtype = word(at);
    int64_t rank;
    if (!name || !file || !dtype || !number(at, &tensor->offset) || !number(at, &rank))
        return false;
    if (rank < 1 || rank > KDA_MAX_RANK) return false;
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    tensor->rank = (uint32_t)rank;
    tensor->dtype = !strcmp(dtype, "bf16") ? KDA_BF16 : !strcmp(dtype, "f32") ? KDA_F32 : KDA_I32;
    int64_t end = tensor->offset + 1;
    for (int64_t i = 0; i < rank; i++)
        if (!number(at, &tensor->extent[i])) return false;
    for (int64_t i = 0; i < rank; i++) {
        if (!number(at, &tensor->stride[i])) return false;
        end += (tensor->extent[i] - 1) * tensor->stride[i];
    }
    tensor->file = find_file(golden, directory, file);
    if (tensor->file < 0) return false;
    int64_t width = tensor->dtype == KDA_BF16 ? 2 : 4;
    golden->tensor_count++;
    return end * width <= (int64_t)golden->files[tensor->file].size;
}

static double *read_expected(const char *directory, char **at, size_t *out_size)
{
    const char *file = word(at);
    return file ? read_file(directory, file, out_size) : NULL;
}

static bool parse_out(struct golden *golden, const char *directory, char **at)
{
    size_t size;
    golden->out = read_expected(directory, at, &size);
    if (!golden->out || golden->tok < 1 || golden->tok > GOLDEN_TOKENS) return false;
    if (size != (size_t)(golden->tok * golden->value_heads) * ORACLE_D * sizeof(double))
        return false;
    for (int64_t i = 0; i < golden->tok; i++) {
        const char *text = word(at);
        if (!text) return false;
        if (!strcmp(text, "value"))
            golden->classes[i] = GOLDEN_VALUE;
        else if (!strcmp(text, "zero"))
            golden->classes[i] = GOLDEN_ZERO;
        else if (!strcmp(text, "untouched"))
            golden->classes[i] = GOLDEN_UNTOUCHED;
        else
            return false;
    }
    return true;
}

static bool parse_state(struct golden *golden, const char *directory, char **at)
{
    size_t size;
    golden->state = read_expected(directory, at, &size);
    if (!golden->state) return false;
    for (char *text = word(at); text; text = word(at)) {
        if (golden->pair_count == GOLDEN_PAIRS) return false;
        int64_t *pair = golden->pairs[golden->pair_count++];
        char *end;
        pair[0] = strtoll(text, &end, 10);
        if (*end != ':') return false;
        pair[1] = strtoll(end + 1, &end, 10);
        if (*end) return false;
    }
    return size == (size_t)golden->pair_count * ORACLE_HEAD * sizeof(double);
}

static bool parse_correction(struct golden *golden, const char *directory, char **at)
{
    size_t size;
    golden->correction = read_expected(directory, at, &size);
    if (!golden->correction) return false;
    for (char *text = word(at); text; text = word(at)) {
        if (golden->line_count == GOLDEN_LINES) return false;
        int64_t *line = golden->lines[golden->line_count++];
        for (int i = 0; i < 3; i++) {
            char *end;
            line[i] = strtoll(text, &end, 10);
            if (*end != (i < 2 ? ':' : 0)) return false;
            text = end + 1;
        }
    }
    return size == (size_t)golden->line_count * ORACLE_D * sizeof(double);
}

static bool parse_written(struct golden *golden, char **at)
{
    while (golden->written_count < GOLDEN_PAIRS &&
           number(at, &golden->written[golden->written_count]))
        golden->written_count++;
    return golden->written_count > 0;
}

static bool parse_limits(char **at)
{
    double norm, absolute, rel;
    return real(at, &norm) && real(at, &absolute) && real(at, &rel) && norm == ORACLE_NORM_LIMIT &&
           absolute == ORACLE_ABSOLUTE && rel == ORACLE_RELATIVE;
}

static bool parse_line(struct golden *golden, const char *directory, char *line)
{
    char *at;
    const char *kind = strtok_r(line, " ", &at);
    if (!kind) return true;
    if (!strcmp(kind, "scalar")) return parse_scalar(golden, &at);
    if (!strcmp(kind, "tensor")) return parse_tensor(golden, directory, &at);
    if (!strcmp(kind, "out")) return parse_out(golden, directory, &at);
    if (!strcmp(kind, "state")) return parse_state(golden, directory, &at);
    if (!strcmp(kind, "correction")) return parse_correction(golden, directory, &at);
    if (!strcmp(kind, "written")) return parse_written(golden, &at);
    if (!strcmp(kind, "limits")) return parse_limits(&at);
    return false;
}

bool golden_open(const char *directory, struct golden *out)
{
    struct golden golden = {.op = 0};
    const char *base = strrchr(directory, '/');
    snprintf(golden.name, sizeof golden.name, "%s", base ? base + 1 : directory);
    size_t size;
    char *text = read_file(directory, "case.txt", &size), *rest;
    bool good = text != NULL;
    if (!good) refuse(&golden, "case.txt", "cannot be read");
    for (char *line = good ? strtok_r(text, "\n", &rest) : NULL; line;
         line = strtok_r(NULL, "\n", &rest)) {
        char copy[64];
        snprintf(copy, sizeof copy, "%s", line);
        if (!parse_line(&golden, directory, line)) {
            good = refuse(&golden, "line not understood:", copy);
            break;
        }
    }
    free(text);
    if (good && (!golden.op || !golden.out || !golden.state || !golden.written_count ||
                 (golden.op == KDA_OP_VERIFY && !golden.line_count)))
        good = refuse(&golden, "case.txt", "is not complete");
    if (!good) {
        golden_close(&golden);
        return false;
    }
    *out = golden;
    return true;
}

void golden_close(struct golden *golden)
{
    for (int i = 0; i < golden->file_count; i++) free(golden->files[i].data);
    free(golden->out);
    free(golden->state);
    free(golden->correction);
    *golden = (struct golden){.op = 0};
}

const struct golden_tensor *golden_find(const struct golden *golden, const char *name)
{
    for (int i = 0; i < golden->tensor_count; i++)
        if (!strcmp(golden->tensors[i].name, name)) return &golden->tensors[i];
    return NULL;
}

const void *golden_data(const struct golden *golden, const struct golden_tensor *tensor)
{
    if (!tensor) return NULL;
    size_t width = tensor->dtype == KDA_BF16 ? 2 : 4;
    return (const char *)golden->files[tensor->file].data + (size_t)tensor->offset * width;
}

struct oracle_call golden_call(const struct golden *golden)
{
    bool packed = golden->op == KDA_OP_PACKED;
    const struct golden_tensor *q = golden_find(golden, packed ? "mixed_qkv" : "q");
    const struct golden_tensor *k = packed ? q : golden_find(golden, "k");
    const struct golden_tensor *v = packed ? q : golden_find(golden, "v");
    const struct golden_tensor *g = golden_find(golden, packed ? "raw_gate" : "g");
    const struct golden_tensor *beta = golden_find(golden, packed ? "raw_beta" : "beta");
    int64_t part = packed ? golden->heads * ORACLE_D : 0;
    return (struct oracle_call){
        .gate = golden->gate,
        .tokens = (int32_t)golden->tokens,
        .rows = golden->rows,
        .tok = golden->tok,
        .heads = golden->heads,
        .value_heads = golden->value_heads,
        .num_slots = golden->num_slots,
        .q = golden_data(golden, q),
        .k = (const uint16_t *)golden_data(golden, k) + part,
        .v = (const uint16_t *)golden_data(golden, v) + 2 * part,
        .g = golden_data(golden, g),
        .beta = golden_data(golden, beta),
        .q_stride = q->stride[0],
        .k_stride = k->stride[0],
        .v_stride = v->stride[0],
        .g_stride = g->stride[0],
        .beta_stride = beta->stride[0],
        .a_log = golden_data(golden, golden_find(golden, "A_log")),
        .dt_bias = golden_data(golden, golden_find(golden, "dt_bias")),
        .cu_seqlens = golden_data(golden, golden_find(golden, "cu_seqlens")),
        .indices = golden_data(golden,
                               golden_find(golden, packed ? "state_indices" : "ssm_state_indices")),
        .accepted = golden_data(golden, golden_find(golden, "num_accepted_tokens")),
        .beta_is_logit = golden->beta_is_logit != 0,
        .scale = golden->scale,
        .lower_bound = golden->lower_bound,
        .null_min = golden->null_min,
    };
}
