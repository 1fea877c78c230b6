// SPDX-License-Identifier: Apache-2.0
// A trial: one decode call in host memory, its copy on the device, and the comparison of what a
// kernel left there with the oracle, down to every bit that must not change. A test states the
// shape, opens the trial, fills rows by key, changes whatever it is about, runs it through the
// public API and judges it. A row's data depend on its key alone, so the same row can be put at any
// place of any batch. Everything that is not filled is poison.
#ifndef KDA_TESTS_TRIAL_H
#define KDA_TESTS_TRIAL_H

#include "tests/suite.h"
#include "tools/oracle.h"

enum trial_tensor {
    TRIAL_Q,
    TRIAL_K,
    TRIAL_V,
    TRIAL_G,
    TRIAL_BETA,
    TRIAL_A_LOG,
    TRIAL_DT_BIAS,
    TRIAL_STATE,
    TRIAL_OUT,
    TRIAL_CU,
    TRIAL_INDICES,
    TRIAL_ACCEPTED,
    TRIAL_TENSORS
};

struct trial_kind {
    bool bf16;
    bool per_token;  // one of q, k, v, g, beta
};
extern const struct trial_kind trial_kinds[TRIAL_TENSORS];

enum { TRIAL_GUARD = 64 };  // poison elements behind the written tensors

struct trial_buffer {
    void *host;
    CUdeviceptr device;  // 0: omitted in the call
    size_t size, width;  // bytes; bytes of an element
    int64_t base;        // elements before the tensor
};

enum trial_data {
    TRIAL_NORMAL,  // unit normals; decays as a trained model has them
    TRIAL_STRONG,  // every channel decays by e^-30 .. e^-60, large v
    TRIAL_MIXED,   // channels of 0, -1, -40 and -10000 side by side
    TRIAL_SMALL    // the data of the 512-step runs
};

enum { TRIAL_HELD = 8 };

struct trial {
    // Stated by the test. Paddings are elements beyond the compact stride, shifts elements before a
    // tensor's first.
    kda_op op;
    kda_gate gate;
    int32_t tokens;
    int64_t rows, heads, value_heads;
    int64_t num_slots;  // 0: rows*tokens
    bool cu_form;       // the packed form, with cu_seqlens
    bool no_indices, no_accepted;
    bool dependent;  // launched as the dependent of the kernel before it
    bool slices;     // q, k and v are slices of one row
    int64_t qkv_pad, gate_pad, beta_pad, slot_pad;
    int64_t shift[TRIAL_TENSORS];
    int32_t beta_is_logit;
    float scale, lower_bound;
    bool sparse;  // too large to hold: only the tokens and the slots of `held` are copied and
                  // compared
    int held_count;
    int64_t held[TRIAL_HELD];
    bool any_floor;    // special values: do not ask for a small rounding floor
    bool finite_only;  // positive gates: results must be finite, no more

    // Made by trial_open.
    struct trial_buffer buffers[TRIAL_TENSORS];
    uint16_t *out, *pool;  // downloaded; whole buffers, see trial_out and trial_pool
    struct oracle_call call;
    int32_t *cu, *indices, *accepted;
    float *a_log, *dt_bias;
    int64_t slot_stride;

    // Made by trial_judge.
    struct oracle_error out_error, state_error;
};

// A trial of a family: its operator, gate, T, and the arguments that they imply.
struct trial trial_of(const struct suite_family *family, int64_t rows, int64_t heads,
                      int64_t value_heads);

// Row n of T tokens gets slots n*T .., accepted 1. The caller may then change the index arrays, and
// fill rows.
void trial_open(struct trial *trial);
void trial_close(struct trial *trial);
void trial_fill(struct trial *trial, int64_t n, uint64_t key, enum trial_data data);
// All live rows, row n with key + n.
void trial_fill_all(struct trial *trial, uint64_t key, enum trial_data data);

int64_t trial_slot_offset(const struct trial *trial, int64_t slot,
                          int64_t hv);  // in the pool's buffer
uint16_t *trial_at(const struct trial *trial, enum trial_tensor tensor, int64_t token,
                   int64_t head);
uint16_t *trial_slot(const struct trial *trial, int64_t slot, int64_t hv);        // before
const uint16_t *trial_pool(const struct trial *trial, int64_t slot, int64_t hv);  // after
const uint16_t *trial_out(const struct trial *trial, int64_t token);              // after
void trial_null_row(struct trial *trial, int64_t n);                              // all slots -1

kda_recurrent_args trial_recurrent(const struct trial *trial);
kda_packed_args trial_packed(const struct trial *trial);
kda_problem trial_problem(const struct trial *trial);
kda_status trial_plan(const struct trial *trial, kda_context *context, const char *body,
                      const char *target, kda_plan *out, kda_error *err);
kda_status trial_call(const struct trial *trial, kda_context *context, CUstream stream,
                      kda_error *err);

void trial_upload(struct trial *trial);  // everything; the output becomes poison
void trial_clear(struct trial *trial);   // the output becomes poison
void trial_download_out(struct trial *trial);
void trial_download(struct trial *trial);  // output and pool
// Upload, one launch, wait, download. Body and target as in a plan; both NULL: the plain call.
void trial_run(struct trial *trial, const char *body, const char *target);
// The launch and the wait alone.
void trial_relaunch(struct trial *trial, const char *body, const char *target);

// The plain call on a stream, not waited for; and the same captured, after its image was prepared.
void trial_launch(const struct trial *trial, CUstream stream);
struct machine_graph trial_capture(const struct trial *trial, CUstream stream);

// Does the device hold what the contract asks for? If not, `why` says what differs first.
bool trial_judge(struct trial *trial, char *why, size_t size);
void trial_expect(struct trial *trial, const char *what);  // fails the test if not

// Are outputs and checkpoints of these rows the same bits?
bool trial_same_row(const struct trial *a, int64_t row_a, const struct trial *b, int64_t row_b);
// Are the whole output and pool the same bits?
bool trial_same(const struct trial *a, const struct trial *b);

#endif
