// SPDX-License-Identifier: Apache-2.0
// Reads one golden case: case.txt, one fact per line, and the raw little-endian files that it
// names.
//   scalar NAME VALUE                                       tensor NAME FILE DTYPE OFFSET RANK
//   EXTENTS.. STRIDES.. out FILE CLASS.. (one per token)                        state FILE
//   SLOT:HEAD.. written SLOT..                                          limits NORM ABSOLUTE
//   RELATIVE                               correction FILE SLOT:HEAD:TOKEN..
// A verify case is a verify and then the commit of its accepted tokens: `state` is what that left.
// Expected values are f64. What a correct kernel must not read holds ORACLE_POISON.
#ifndef KDA_TESTS_GOLDEN_H
#define KDA_TESTS_GOLDEN_H

#include <stdbool.h>
#include <stddef.h>

#include "tools/oracle.h"

enum { GOLDEN_TENSORS = 16, GOLDEN_TOKENS = 64, GOLDEN_PAIRS = 64, GOLDEN_LINES = 64 };

struct golden_file {  // several tensors may be views of one file
    char name[32];
    void *data;
    size_t size;
};

struct golden_tensor {
    char name[32];
    int file;
    kda_dtype dtype;
    int64_t offset;  // elements
    uint32_t rank;
    int64_t extent[KDA_MAX_RANK], stride[KDA_MAX_RANK];
};

enum golden_class { GOLDEN_VALUE, GOLDEN_ZERO, GOLDEN_UNTOUCHED };

struct golden {
    char name[64];
    kda_op op;
    kda_gate gate;
    int64_t tokens, rows, tok, heads, value_heads, num_slots, beta_is_logit, null_min;
    double scale, lower_bound;
    int file_count, tensor_count, pair_count, written_count;
    struct golden_file files[GOLDEN_TENSORS];
    struct golden_tensor tensors[GOLDEN_TENSORS];
    enum golden_class classes[GOLDEN_TOKENS];
    double *out;                     // [tok, HV, 128]
    double *state;                   // [pairs, 128, 128]
    int64_t pairs[GOLDEN_PAIRS][2];  // slot, head
    int64_t written[GOLDEN_PAIRS];
    double *correction;  // [lines, 128]
    int line_count;
    int64_t lines[GOLDEN_LINES][3];  // slot, head, token
};

// False, with the reason on stderr, if the case cannot be read or is of another form.
bool golden_open(const char *directory, struct golden *out);
void golden_close(struct golden *golden);

// NULL if the case omits the tensor.
const struct golden_tensor *golden_find(const struct golden *golden, const char *name);
const void *golden_data(const struct golden *golden, const struct golden_tensor *tensor);

// The case as a call of the reference.
struct oracle_call golden_call(const struct golden *golden);

#endif
