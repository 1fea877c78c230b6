// SPDX-License-Identifier: Apache-2.0
// A fused call in host memory, its copy on the device, and the comparison of what a kernel left
// there with the oracle, down to every bit that must not change. A test states the shape, opens the
// trial, fills rows by key, changes whatever it is about, runs it and judges it. What is not filled
// is poison. The slots of both caches lie one after another on the host, each with its guard, and
// wherever the strides say on the device: a pool may be larger than what is held of it.
#ifndef KDA_TESTS_FUSED_TRIAL_H
#define KDA_TESTS_FUSED_TRIAL_H

#include "tests/suite.h"
#include "tools/oracle_fused.h"

enum fused_tensor {
    FUSED_X,
    FUSED_WEIGHT,
    FUSED_GATE,
    FUSED_BETA,
    FUSED_A_LOG,
    FUSED_DT_BIAS,
    FUSED_INDICES,
    FUSED_OUTPUT_GATE,
    FUSED_NORM_WEIGHT,
    FUSED_OUT,
    FUSED_TENSORS
};

enum { FUSED_GUARD = 64 };  // bytes of poison around the output and behind each slot that is padded

struct fused_buffer {
    uint8_t *host;
    CUdeviceptr device;
    size_t size, width;  // bytes; bytes of an element
    int64_t base;        // bytes before the tensor
};

// One of the two caches. Sizes in bytes.
struct fused_cache {
    uint8_t *before, *after;  // num_slots * held
    CUdeviceptr device;       // of slot 0
    size_t block, held;       // of a slot: what the call uses, and with its guard
    int64_t stride;           // on the device
};

struct fused_trial {
    // Stated by the test. Paddings are elements beyond the compact stride.
    kda_gate gate;
    kda_dtype state_type;
    kda_mode mode;
    int64_t rows, heads, num_slots;  // num_slots 0: rows + 1
    int64_t x_pad, beta_pad, output_gate_pad, conv_pad, state_pad;
    int64_t shift[FUSED_TENSORS];  // elements before a tensor's first
    bool pages;                    // a slot of both caches is one page, and state_pad behind it
    bool flat_gate;                // output_gate of rank 3
    float lower_bound, norm_eps;
    bool any_floor;  // special values: do not ask for a small rounding floor

    // Made by fused_open.
    struct fused_buffer buffers[FUSED_TENSORS];
    struct fused_cache conv, state;
    CUdeviceptr memory[2];  // of the caches
    struct oracle_fused call;
    int32_t *indices;
    uint16_t *out;  // downloaded, from its first element on

    struct oracle_error out_error, state_error;  // of fused_expect
};

struct fused_trial fused_trial_of(kda_gate gate, kda_dtype state_type, int64_t rows, int64_t heads);

// Row n has slot n + 1. The caller may then change indices, and fill rows.
void fused_open(struct fused_trial *trial);
void fused_close(struct fused_trial *trial);
// Inputs of a row, and of its slot if it is live, by key alone.
void fused_fill(struct fused_trial *trial, int64_t row, uint64_t key);
void fused_fill_all(struct fused_trial *trial, uint64_t key);  // all live rows, row n with key + n
void *fused_at(const struct fused_trial *trial, enum fused_tensor tensor, int64_t row);
uint16_t *fused_window(const struct fused_trial *trial, int64_t slot);  // before
// What the device holds becomes what it held before.
void fused_advance(struct fused_trial *trial);

kda_fused_args fused_args(const struct fused_trial *trial);
kda_problem fused_problem(const struct fused_trial *trial);
void fused_upload(struct fused_trial *trial);         // everything; the output becomes poison
void fused_upload_inputs(struct fused_trial *trial);  // all but the caches
void fused_download(struct fused_trial *trial);       // output and caches
void fused_launch(const struct fused_trial *trial, CUstream stream);
// Upload, one launch, wait, download. Body and target as in a plan; both NULL: the plain call.
void fused_run(struct fused_trial *trial, const char *body, const char *target);

// Fails the test if the device does not hold what the contract asks for.
void fused_expect(struct fused_trial *trial, const char *what);
// Are output and the slot's caches of these live rows the same bits?
bool fused_same_row(const struct fused_trial *a, int64_t row_a, const struct fused_trial *b,
                    int64_t row_b);

#endif
