// SPDX-License-Identifier: Apache-2.0
// A window: one verify call and the commit that may follow it, in host memory and on the device,
// and the comparison of what the kernels left there with the oracle, down to every bit that must
// not change. A test states the shape, opens the window, sets index arrays and row lengths, fills
// rows by key, runs it through the public API and judges it. A row's data depend on its key alone.
// Everything that is not filled is poison.
#ifndef KDA_TESTS_WINDOW_H
#define KDA_TESTS_WINDOW_H

#include "tests/trial.h"
#include "tools/oracle_verify.h"

enum window_tensor {
    WINDOW_Q,
    WINDOW_K,
    WINDOW_V,
    WINDOW_G,
    WINDOW_BETA,
    WINDOW_A_LOG,
    WINDOW_DT_BIAS,
    WINDOW_CU,
    WINDOW_INDICES,
    WINDOW_ACCEPTED,
    WINDOW_OUT,  // the written ones, from here on
    WINDOW_STATE,
    WINDOW_CORRECTION,
    WINDOW_KG,
    WINDOW_TENSORS
};

enum { WINDOW_MOST = 16 };  // tokens

struct window {
    // Stated by the test. Paddings are elements beyond the compact stride, shifts elements before a
    // tensor's first.
    kda_gate gate;
    int32_t tokens;  // T_max
    int64_t rows, heads, value_heads;
    int64_t num_slots;  // 0: rows
    bool cu_form;       // the packed form, with cu_seqlens
    bool no_indices, no_caches, no_bias;
    bool slices;                        // q, k and v are slices of one row
    int64_t token_pad[WINDOW_OUT + 1];  // of q, k, v, g, beta and out
    int64_t slot_pad, cache_pad;
    int64_t cache_tokens;  // 0: tokens
    int64_t shift[WINDOW_TENSORS];
    int32_t null_min, beta_is_logit;
    float scale, lower_bound;
    bool sparse;  // pool and caches are too large to hold: only the slots of `held` are
    int held_count;
    int64_t held[TRIAL_HELD];
    bool any_floor;    // special values: do not ask for a small rounding floor
    bool finite_only;  // positive gates: results must be finite, no more

    // Made by window_open.
    struct trial_buffer buffers[WINDOW_TENSORS];
    void *after[WINDOW_TENSORS];  // downloaded, of the written ones
    void *rest[WINDOW_TENSORS];   // of a judge
    struct oracle_call call;
    int32_t *cu, *indices, *accepted;
    float *a_log, *dt_bias;
    int64_t out_stride, slot_stride;
    int64_t correction_strides[3], kg_strides[3];  // slot, head, token

    // Made by the judges.
    struct oracle_error out_error, correction_error, state_error;
};

// With the arguments that the gate implies.
struct window window_of(kda_gate gate, int32_t tokens, int64_t rows, int64_t heads,
                        int64_t value_heads);

// Row n gets slot n, all its tokens, and `tokens` accepted.
void window_open(struct window *window);
void window_close(struct window *window);
// Cuts the rows to these lengths, one row's tokens after the other's; needs the packed form.
void window_lengths(struct window *window, const int32_t *lengths);
void window_fill(struct window *window, int64_t n, uint64_t key, enum trial_data data);
void window_fill_all(struct window *window, uint64_t key, enum trial_data data);  // live rows
// Instead of a verify: caches that some verify could have left.
void window_fill_caches(struct window *window, uint64_t key);

// Elements of a tensor in host memory, before the call and after it.
uint16_t *window_at(const struct window *window, enum window_tensor tensor, int64_t token,
                    int64_t head);
int64_t window_state_offset(const struct window *window, int64_t slot, int64_t head);
int64_t window_correction_offset(const struct window *window, int64_t slot, int64_t head,
                                 int64_t token);
int64_t window_kg_offset(const struct window *window, int64_t slot, int64_t head, int64_t token);
int64_t window_out_offset(const struct window *window, int64_t token, int64_t head);

kda_verify_args window_verify_args(const struct window *window);
kda_commit_args window_commit_args(const struct window *window);
// The parts of a tensor that the host holds, in bytes: all of it, or the slots of `held`.
bool window_part(const struct window *window, enum window_tensor tensor, int i, size_t *out_at,
                 size_t *out_size);
void window_upload(struct window *window);
void window_download(struct window *window);
void window_adopt(struct window *window);  // what was downloaded is what a next call finds
// One launch, waited for. Body and target as in a plan; both NULL: the plain call.
void window_launch(struct window *window, kda_op op, const char *body, const char *target);
void window_verify(struct window *window, const char *body, const char *target);
// Of the caches and the pool that are on the device.
void window_commit(struct window *window, const char *body, const char *target);
// The plain call, captured.
struct machine_graph window_capture(const struct window *window, kda_op op, CUstream stream);

// Do out and caches hold a verify, and does everything else hold what it did?
bool window_judge(struct window *window, char *why, size_t size);
void window_expect(struct window *window, const char *what);
// Does the pool hold the commit of the adopted or filled caches? With `decoded`: what plain
// decoding of the accepted tokens would have stored?
bool window_judge_commit(struct window *window, bool decoded, char *why, size_t size);
void window_expect_commit(struct window *window, bool decoded, const char *what);

// Are outputs, and what both have of caches, of the first tokens of these rows the same bits?
bool window_same_row(const struct window *a, int64_t row_a, const struct window *b, int64_t row_b);
// Are the states of the rows' slots the same bits?
bool window_same_state(const struct window *a, int64_t row_a, const struct window *b,
                       int64_t row_b);

#endif
