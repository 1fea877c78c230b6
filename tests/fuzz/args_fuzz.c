// SPDX-License-Identifier: Apache-2.0
// libFuzzer target over the arguments of every operation: the input edits a valid call (extents,
// strides, addresses in and around blocks of memory, types, counts, scalars, flags), the library
// validates it, and a launch double stands where the driver would be. What the library lets through
// must be harmless: every byte that the kernel can touch lies in the tensor that the caller
// described, what is written overlaps nothing, addresses are aligned as the kernel needs them. That
// model is written from the layout alone, in 128-bit arithmetic, without the library's helpers.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/context.h"
#include "manifest/params.h"
#include "tests/blob.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef __int128 wide;

struct tensor {
    const char *name;
    const kda_tensor *tensor;
    unsigned width, alignment;
    bool written, kernel_address;  // does the kernel get its address?
};

// The call that is being validated, for the launch double to judge.
static struct {
    kda_op op;
    union {
        kda_recurrent_args recurrent;
        kda_packed_args packed;
        kda_fused_args fused;
        kda_verify_args verify;
        kda_commit_args commit;
    } args;
    int launches;
} now;

static _Noreturn void wrong(const char *format, const char *name, int64_t number)
{
    fprintf(stderr, "wrongly accepted: ");
    fprintf(stderr, format, name, number);
    fprintf(stderr, "\n");
    abort();
}
static void require(bool good, const char *format, const char *name, int64_t number)
{
    if (!good) wrong(format, name, number);
}

// ------------------------------------------------------------------------- what the caller
// described

static wide begin_of(const struct tensor *t) { return (wide)(uintptr_t)t->tensor->data; }
static wide end_of(const struct tensor *t)
{
    wide last = 0;
    for (uint32_t i = 0; i < t->tensor->rank; i++)
        last += (wide)(t->tensor->extent[i] - 1) * t->tensor->stride[i];
    return begin_of(t) + (last + 1) * t->width;
}

static void check_tensors(const struct tensor *tensors, int count)
{
    for (int i = 0; i < count; i++) {
        const struct tensor *const t = &tensors[i];
        if (!t->tensor->data) continue;
        require(t->tensor->rank >= 1 && t->tensor->rank <= 4, "rank of %s", t->name, 0);
        for (uint32_t d = 0; d < t->tensor->rank; d++) {
            require(t->tensor->extent[d] >= 1, "extent of %s: %" PRId64, t->name,
                    t->tensor->extent[d]);
            require(t->tensor->stride[d] >= 1, "stride of %s: %" PRId64, t->name,
                    t->tensor->stride[d]);
        }
        require(end_of(t) <= (wide)UINT64_MAX + 1, "%s wraps around", t->name, 0);
        require((uintptr_t)t->tensor->data % t->alignment == 0, "%s is not aligned to %" PRId64,
                t->name, t->alignment);
        for (int j = 0; j < count; j++) {
            const struct tensor *const other = &tensors[j];
            if (j == i || !t->written || !other->tensor->data) continue;
            require(end_of(t) <= begin_of(other) || end_of(other) <= begin_of(t),
                    "%s overlaps another", t->name, j);
        }
    }
}

// The kernel reads `count` times `run` elements, `stride` apart, from `at`.
static void check_read(const struct tensor *t, unsigned long long at, int64_t count, int64_t stride,
                       int64_t run)
{
    require(count >= 1 && stride >= 0 && run >= 1, "%s: nothing of it", t->name, 0);
    const wide last = (wide)at + ((wide)(count - 1) * stride + run) * t->width;
    require((wide)at >= begin_of(t) && last <= end_of(t), "%s is left by the kernel, by %" PRId64,
            t->name, (int64_t)(last - end_of(t)));
}

// Likewise, or writes them: no two may be the same.
static void check_touched(const struct tensor *t, unsigned long long at, int64_t count,
                          int64_t stride, int64_t run)
{
    require(count == 1 || stride >= run, "%s: its tokens overlap", t->name, stride);
    check_read(t, at, count, stride, run);
}

// ------------------------------------------------------------------------------- what the kernel
// does

static const struct kda_bundle *bundle;
static struct kda_context *context;

static void check_grid(const unsigned grid[2], unsigned block, int64_t value_heads, int64_t rows,
                       const struct kda_format_body *body)
{
    require(grid[1] == rows && rows >= 1 && rows <= 65535, "%s grid.y %" PRId64, "", grid[1]);
    require(grid[0] == (wide)value_heads * body->split && grid[0] <= INT32_MAX,
            "%s grid.x %" PRId64, "", grid[0]);
    require(block == body->threads, "%s block %" PRId64, "", block);
}

static void judge_recurrent(const struct kda_recurrent_params *p,
                            const struct kda_format_body *body)
{
    const kda_recurrent_args *const a = &now.args.recurrent;
    const bool vector = body->gate != KDA_GATE_SOFTPLUS;
    const struct tensor t[] = {
        {"q", &a->q, 2, 8, false, true},
        {"k", &a->k, 2, 8, false, true},
        {"v", &a->v, 2, 2, false, true},
        {"g", &a->g, 2, 8, false, true},
        {"beta", &a->beta, 2, 2, false, true},
        {"A_log", &a->a_log, 4, 4, false, true},
        {"dt_bias", &a->dt_bias, 4, 4, false, true},
        {"state", &a->state, 2, 16, true, true},
        {"out", &a->out, 2, 2, true, true},
        {"cu_seqlens", &a->cu_seqlens, 4, 4, false, true},
        {"indices", &a->ssm_state_indices, 4, 4, false, true},
        {"accepted", &a->num_accepted_tokens, 4, 4, false, true},
    };
    check_tensors(t, sizeof t / sizeof t[0]);
    const int64_t tokens = body->tokens_min, h = p->heads, hv = p->value_heads;
    require(p->rows >= 1 && h >= 1 && hv >= h && hv % h == 0, "%s heads %" PRId64, "", hv);
    require(p->tok == (wide)p->rows * tokens, "%s tok %" PRId64, "", p->tok);
    require(!body->head_set || (h > 0 && h < 128 && h % 4 == 0 && body->head_set >> h / 4 & 1),
            "%s H %" PRId64, "", h);
    require(!(body->flags & KDA_BODY_EQUAL_HEADS) || h == hv, "%s HV %" PRId64, "", hv);
    check_touched(&t[0], p->q, p->tok, p->q_stride, h * 128);
    check_touched(&t[1], p->k, p->tok, p->k_stride, h * 128);
    check_touched(&t[2], p->v, p->tok, p->v_stride, hv * 128);
    check_touched(&t[3], p->g, p->tok, p->g_stride, hv * 128);
    check_touched(&t[4], p->beta, p->tok, p->beta_stride, hv);
    // Four elements at a time.
    require(p->q_stride % 4 == 0 && p->k_stride % 4 == 0 && p->g_stride % 4 == 0,
            "%s: a stride that vectors cannot take", "q, k, g", 0);
    if (body->gate != KDA_GATE_PRECOMPUTED) {
        check_touched(&t[5], p->a_log, 1, 0, h);
        check_touched(&t[6], p->dt_bias, 1, 0, h * 128);
    } else {
        require(!p->a_log && !p->dt_bias, "%s with precomputed gates", "A_log", 0);
    }
    require(p->num_slots >= 1, "%s num_slots %" PRId64, "", p->num_slots);
    check_touched(&t[7], p->state, p->num_slots, p->slot_stride, hv * 16384);
    require(p->slot_stride % 8 == 0, "%s slot stride %" PRId64, "", p->slot_stride);
    check_touched(&t[8], p->out, p->tok, hv * 128, hv * 128);
    if (p->cu_seqlens) check_touched(&t[9], p->cu_seqlens, 1, 0, (int64_t)p->rows + 1);
    require(!p->cu_seqlens || p->indices, "%s without indices", "cu_seqlens", 0);
    if (p->indices)
        check_touched(&t[10], p->indices, 1, 0, p->rows * tokens);
    else
        require(p->num_slots >= p->rows * tokens, "%s for default slots", "num_slots",
                p->num_slots);
    if (p->accepted) check_touched(&t[11], p->accepted, 1, 0, p->rows);
    require(isfinite(p->scale) && isfinite(p->lower_bound), "%s is not finite", "scale", 0);
    require(body->gate != KDA_GATE_LOWER_BOUND || p->lower_bound < 0, "%s", "lower_bound", 0);
    require(!p->beta_is_logit || !vector, "%s", "beta_is_logit", 0);
    require((unsigned)p->beta_is_logit <= 1 && !p->reserved, "%s", "reserved", 0);
    require(!body->row_set || (p->rows < 32 && body->row_set >> p->rows & 1), "%s rows %" PRId64,
            "", p->rows);
}

static void judge_packed(const struct kda_recurrent_params *p)
{
    const kda_packed_args *const a = &now.args.packed;
    const struct tensor t[] = {
        {"mixed_qkv", &a->mixed_qkv, 2, 2, false, true},
        {"raw_gate", &a->raw_gate, 2, 2, false, true},
        {"raw_beta", &a->raw_beta, 2, 2, false, true},
        {"A_log", &a->a_log, 4, 4, false, true},
        {"dt_bias", &a->dt_bias, 4, 4, false, true},
        {"state", &a->state, 2, 2, true, true},
        {"indices", &a->state_indices, 4, 4, false, true},
        {"out", &a->out, 2, 2, true, true},
    };
    check_tensors(t, sizeof t / sizeof t[0]);
    const int64_t n = p->rows;
    require(n >= 1 && p->tok == n && p->heads == 12 && p->value_heads == 12, "%s rows %" PRId64, "",
            n);
    check_touched(&t[0], p->q, n, p->q_stride, 4608);
    check_touched(&t[0], p->k, n, p->k_stride, 3072);
    check_touched(&t[0], p->v, n, p->v_stride, 1536);
    check_touched(&t[1], p->g, n, p->g_stride, 1536);
    check_touched(&t[2], p->beta, n, p->beta_stride, 12);
    check_touched(&t[3], p->a_log, 1, 0, 12);
    check_touched(&t[4], p->dt_bias, 1, 0, 1536);
    check_touched(&t[5], p->state, p->num_slots, p->slot_stride, 196608);
    check_touched(&t[6], p->indices, 1, 0, n);
    check_touched(&t[7], p->out, n, 1536, 1536);
}

// No block of one cache shares a byte with one of the other, whatever their slots.
static void judge_pages(const struct tensor *conv, const struct tensor *state, int64_t slots,
                        int64_t heads)
{
    if (end_of(conv) <= begin_of(state) || end_of(state) <= begin_of(conv)) return;
    const wide page = (wide)conv->tensor->stride[0] * conv->width;
    require(page == (wide)state->tensor->stride[0] * state->width, "%s overlaps the other cache",
            "state", 0);
    // In pages of one size only the distance of two slots counts; most distances are too far.
    const wide near = (begin_of(state) - begin_of(conv)) / page;
    for (wide k = near - 2; k <= near + 2; k++) {
        if (k <= -slots || k >= slots) continue;
        const wide window = begin_of(conv) + k * page;
        require(window + heads * 128 * 9 * 2 <= begin_of(state) ||
                    begin_of(state) + (wide)heads * 16384 * state->width <= window,
                "%s: pages overlap, %" PRId64 " apart", "state", (int64_t)k);
    }
}

static void judge_fused(const struct kda_fused_params *p, const struct kda_format_body *body)
{
    const kda_fused_args *const a = &now.args.fused;
    const bool f32 = a->state.dtype == KDA_F32;
    enum { CONV, STATE, X, WEIGHT, GATE, BETA, A_LOG, DT_BIAS, INDICES, OGATE, NORM, OUT, COUNT };
    const struct tensor t[COUNT] = {
        [CONV] = {"conv_state", &a->conv_state, 2, 8, true, true},
        [STATE] = {"state", &a->state, f32 ? 4 : 2, f32 ? 32 : 16, true, true},
        [X] = {"x", &a->x, 2, 2, false, true},
        [WEIGHT] = {"weight", &a->weight, 4, 4, false, true},
        [GATE] = {"raw_gate", &a->raw_gate, 2, 2, false, true},
        [BETA] = {"raw_beta", &a->raw_beta, 2, 2, false, true},
        [A_LOG] = {"A_log", &a->a_log, 4, 4, false, true},
        [DT_BIAS] = {"dt_bias", &a->dt_bias, 4, 4, false, true},
        [INDICES] = {"state_indices", &a->state_indices, 4, 4, false, true},
        [OGATE] = {"output_gate", &a->output_gate, 2, 2, false, true},
        [NORM] = {"norm_weight", &a->norm_weight, 4, 4, false, true},
        [OUT] = {"output", &a->out, 2, 8, true, true},
    };
    struct tensor without_conv[COUNT - 1], without_state[COUNT - 1];
    memcpy(without_conv, t + 1, sizeof without_conv);
    memcpy(without_state, t + 1, sizeof without_state);
    without_state[0] = t[CONV];
    check_tensors(without_conv, COUNT - 1);
    check_tensors(without_state, COUNT - 1);
    const int64_t n = p->rows, h = p->heads, width = h * 128;
    require(h == 8 || h == 12 || h == 24 || h == 32 || h == 48 || h == 96, "%s H %" PRId64, "", h);
    require(p->num_slots >= 1, "%s num_slots %" PRId64, "", p->num_slots);
    judge_pages(&t[CONV], &t[STATE], p->num_slots, h);
    check_touched(&t[CONV], p->conv_state, p->num_slots, p->conv_slot_stride, 9 * width);
    check_touched(&t[STATE], p->state, p->num_slots, p->slot_stride, width * 128);
    require(p->conv_slot_stride % 4 == 0 && p->slot_stride % 8 == 0, "%s: stride", "slot", 0);
    check_read(&t[X], p->x, n, p->x_stride, 3 * width);
    check_read(&t[WEIGHT], p->weight, 1, 0, 12 * width);
    check_read(&t[GATE], p->raw_gate, n, width, width);
    check_read(&t[BETA], p->raw_beta, n, p->beta_stride, h);
    check_read(&t[A_LOG], p->a_log, 1, 0, h);
    check_read(&t[DT_BIAS], p->dt_bias, 1, 0, width);
    check_read(&t[INDICES], p->indices, 1, 0, n);
    check_read(&t[OGATE], p->output_gate, n, p->output_gate_stride, width);
    check_read(&t[NORM], p->norm_weight, 1, 0, 128);
    check_touched(&t[OUT], p->out, n, width, width);
    require(body->state_type == (uint32_t)a->state.dtype && a->mode >= 1 && a->mode <= 3 &&
                (body->mode_set >> a->mode & 1),
            "%s: body of another state or mode", "state", 0);
    require(isfinite(p->norm_eps) && p->norm_eps >= 0, "%s", "norm_eps", 0);
    require(isfinite(p->lower_bound) &&
                (p->lower_bound < 0) == (body->gate == KDA_GATE_LOWER_BOUND),
            "%s", "lower_bound", 0);
}

// What a gate kind reads besides g: dt_bias may be omitted.
static void judge_gate(const struct tensor t[2], unsigned long long a_log,
                       unsigned long long dt_bias, float lower_bound, int64_t heads,
                       const struct kda_format_body *body)
{
    require(isfinite(lower_bound) && (lower_bound < 0) == (body->gate == KDA_GATE_LOWER_BOUND),
            "%s", "lower_bound", 0);
    require(!a_log == (body->gate == KDA_GATE_PRECOMPUTED), "%s for this gate", "A_log", 0);
    require(a_log || !dt_bias, "%s without A_log", "dt_bias", 0);
    if (a_log) check_touched(&t[0], a_log, 1, 0, heads);
    if (dt_bias) check_touched(&t[1], dt_bias, 1, 0, heads * 128);
}

// Slots, value heads and tokens of a cache, `run` elements each, wherever the strides put them.
static void judge_cache(const struct tensor *t, unsigned long long at, int64_t slots, int64_t heads,
                        int64_t tokens, const long long strides[3], int64_t run)
{
    const wide last = (wide)(slots - 1) * strides[0] + (wide)(heads - 1) * strides[1] +
                      (wide)(tokens - 1) * strides[2] + run;
    for (int i = 0; i < 3; i++)
        require(strides[i] >= run && (t->width == 2 || strides[i] % 4 == 0),
                "%s has a stride of %" PRId64, t->name, strides[i]);
    require((wide)at >= begin_of(t) && (wide)at + last * t->width <= end_of(t),
            "%s is left by the kernel", t->name, 0);
}

static void judge_verify(const struct kda_verify_params *p, const struct kda_format_body *body)
{
    const kda_verify_args *const a = &now.args.verify;
    const struct tensor t[] = {
        {"q", &a->q, 2, 2, false, true},
        {"k", &a->k, 2, 2, false, true},
        {"v", &a->v, 2, 2, false, true},
        {"g", &a->g, 2, 2, false, true},
        {"beta", &a->beta, 2, 2, false, true},
        {"A_log", &a->a_log, 4, 4, false, true},
        {"dt_bias", &a->dt_bias, 4, 4, false, true},
        {"state", &a->state, 2, 16, true, true},  // not written, but alone all the same
        {"out", &a->out, 2, 2, true, true},
        {"cu_seqlens", &a->cu_seqlens, 4, 4, false, true},
        {"indices", &a->ssm_state_indices, 4, 4, false, true},
        {"correction_cache", &a->correction_cache, 4, 16, true, true},
        {"kg_cache", &a->kg_cache, 2, 2, true, true},
    };
    check_tensors(t, sizeof t / sizeof t[0]);
    const int64_t h = p->heads, hv = p->value_heads;
    require(h >= 1 && hv >= h && hv % h == 0, "%s heads %" PRId64, "", hv);
    require(p->tokens >= 1 && p->tokens <= 16 && (unsigned)p->tokens >= body->tokens_min &&
                (unsigned)p->tokens <= body->tokens_max,
            "%s T %" PRId64, "", p->tokens);
    const wide most = (wide)p->rows * p->tokens;
    require(p->tok >= 1 && (p->cu_seqlens ? p->tok <= most : p->tok == most), "%s tok %" PRId64, "",
            p->tok);
    check_touched(&t[0], p->q, p->tok, p->q_stride, h * 128);
    check_touched(&t[1], p->k, p->tok, p->k_stride, h * 128);
    check_touched(&t[2], p->v, p->tok, p->v_stride, hv * 128);
    check_touched(&t[3], p->g, p->tok, p->g_stride, hv * 128);
    check_touched(&t[4], p->beta, p->tok, p->beta_stride, hv);
    check_touched(&t[8], p->out, p->tok, p->out_stride, hv * 128);
    judge_gate(&t[5], p->a_log, p->dt_bias, p->lower_bound, h, body);
    require(p->num_slots >= 1, "%s num_slots %" PRId64, "", p->num_slots);
    check_touched(&t[7], p->state, p->num_slots, p->slot_stride, hv * 16384);
    require(p->slot_stride % 8 == 0, "%s slot stride %" PRId64, "", p->slot_stride);
    if (p->cu_seqlens) check_touched(&t[9], p->cu_seqlens, 1, 0, (int64_t)p->rows + 1);
    if (p->indices)
        check_touched(&t[10], p->indices, 1, 0, p->rows);
    else
        require(p->num_slots >= p->rows, "%s for default slots", "num_slots", p->num_slots);
    require(!p->correction == !p->kg, "%s", "one cache only", 0);
    if (p->correction) {
        judge_cache(&t[11], p->correction, p->num_slots, hv, p->tokens, p->correction_strides, 128);
        judge_cache(&t[12], p->kg, p->num_slots, hv, p->tokens, p->kg_strides, 256);
    }
    require(isfinite(p->scale) && (unsigned)p->beta_is_logit <= 1 && p->null_min >= 0, "%s",
            "scalars", 0);
    const int wide = (p->q | p->k | p->v | p->g) % 16 == 0 &&
                     (p->q_stride | p->k_stride | p->v_stride | p->g_stride) % 8 == 0;
    require(p->wide == wide, "wide is %s%" PRId64, "", p->wide);
}

static void judge_commit(const struct kda_commit_params *p, const struct kda_format_body *body)
{
    const kda_commit_args *const a = &now.args.commit;
    const struct tensor t[] = {
        {"state", &a->state, 2, 16, true, true},
        {"correction_cache", &a->correction_cache, 4, 16, false, true},
        {"kg_cache", &a->kg_cache, 2, 2, false, true},
        {"indices", &a->ssm_state_indices, 4, 4, false, true},
        {"accepted", &a->num_accepted_tokens, 4, 4, false, true},
        {"A_log", &a->a_log, 4, 4, false, true},
        {"dt_bias", &a->dt_bias, 4, 4, false, true},
    };
    check_tensors(t, sizeof t / sizeof t[0]);
    const int64_t h = p->heads, hv = p->value_heads;
    require(h >= 1 && hv >= h && hv % h == 0, "%s heads %" PRId64, "", hv);
    require(p->tokens >= 1, "%s T %" PRId64, "", p->tokens);
    require(p->num_slots >= 1, "%s num_slots %" PRId64, "", p->num_slots);
    check_touched(&t[0], p->state, p->num_slots, p->slot_stride, hv * 16384);
    require(p->slot_stride % 8 == 0, "%s slot stride %" PRId64, "", p->slot_stride);
    judge_cache(&t[1], p->correction, p->num_slots, hv, p->tokens, p->correction_strides, 128);
    judge_cache(&t[2], p->kg, p->num_slots, hv, p->tokens, p->kg_strides, 256);
    if (p->indices)
        check_touched(&t[3], p->indices, 1, 0, p->rows);
    else
        require(p->num_slots >= p->rows, "%s for default slots", "num_slots", p->num_slots);
    check_touched(&t[4], p->accepted, 1, 0, p->rows);
    judge_gate(&t[5], p->a_log, p->dt_bias, p->lower_bound, h, body);
    require(p->null_min >= 0 && !p->reserved, "%s", "scalars", 0);
}

// --------------------------------------------------------------------------------- the driver
// double

static int launch(const unsigned grid[3], unsigned block, unsigned smem, CUfunction function,
                  void **params)
{
    const uint32_t cubin = (uint32_t)(uintptr_t)function - 1;
    require(cubin < bundle->cubin_count, "%s function", "", cubin);
    const struct kda_format_body *const body = &bundle->bodies[bundle->cubins[cubin].body];
    now.launches++;
    require(grid[2] == 1 && smem == body->smem, "%s smem %" PRId64, "", smem);
    require(kda_target_runs_on(&bundle->targets[bundle->cubins[cubin].target], 100),
            "%s on another chip", "image", 0);
    require(body->op == (uint32_t)now.op, "%s", "operator", body->op);
    if (now.op == KDA_OP_FUSED) {
        const struct kda_fused_params *const p = params[0];
        check_grid(grid, block, p->heads, p->rows, body);
        require(body->gate == (uint32_t)now.args.fused.gate, "%s", "gate", body->gate);
        judge_fused(p, body);
    } else if (now.op == KDA_OP_VERIFY) {
        const struct kda_verify_params *const p = params[0];
        check_grid(grid, block, p->value_heads, p->rows, body);
        require(body->gate == (uint32_t)now.args.verify.gate, "%s", "gate", body->gate);
        judge_verify(p, body);
    } else if (now.op == KDA_OP_COMMIT) {
        const struct kda_commit_params *const p = params[0];
        check_grid(grid, block, p->value_heads, p->rows, body);
        require(body->gate == (uint32_t)now.args.commit.gate, "%s", "gate", body->gate);
        judge_commit(p, body);
    } else {
        const struct kda_recurrent_params *const p = params[0];
        check_grid(grid, block, p->value_heads, p->rows, body);
        if (now.op == KDA_OP_PACKED) {
            judge_packed(p);
        } else {
            require(body->gate == (uint32_t)now.args.recurrent.gate, "%s", "gate", body->gate);
            judge_recurrent(p, body);
        }
    }
    return 0;
}

static int launch_plain(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned smem, CUstream stream,
                        void **params, void **extra)
{
    (void)stream, (void)extra;
    require(block_y == 1 && block_z == 1, "%s", "block", block_y);
    return launch((const unsigned[3]){x, y, z}, block_x, smem, function, params);
}

static int launch_ex(const struct kda_cu_launch_config *config, CUfunction function, void **params,
                     void **extra)
{
    (void)extra;
    require(config->attribute_count == 1 && config->attributes[0].id == KDA_CU_LAUNCH_PDL, "%s",
            "attributes", config->attribute_count);
    return launch(config->grid, config->block[0], config->smem, function, params);
}

static int context_id(CUcontext cuda, unsigned long long *out)
{
    (void)cuda;
    *out = 1;
    return 0;
}
static int error_name(int result, const char **out)
{
    (void)result;
    *out = "CUDA_ERROR";
    return 0;
}

static const struct kda_driver driver = {.cuGetErrorName = error_name,
                                         .cuCtxGetId = context_id,
                                         .cuLaunchKernel = launch_plain,
                                         .cuLaunchKernelEx = launch_ex};

// A context on which every image is loaded: cubin i is function i + 1.
static void set_up(void)
{
    const struct blob blob = blob_default();
    kda_bundle *opened = NULL;
    if (kda_bundle_open(blob.data, blob.size, &opened, NULL)) abort();
    bundle = opened;
    context = calloc(1, sizeof *context + bundle->cubin_count * sizeof context->images[0]);
    if (!context) abort();
    context->bundle = bundle;
    context->driver = &driver;
    context->id = 1;
    context->generation = kda_driver_generation();
    context->chip = 100;
    context->device = (kda_device){.cc_major = 10, .cuda_version = 13000, .sm_count = 148};
    for (uint32_t i = 0; i < bundle->cubin_count; i++)
        atomic_init(&context->images[i].function, (CUfunction)(uintptr_t)(i + 1));
}

// ------------------------------------------------------------------------------- calls and their
// edits

struct input {
    const uint8_t *data;
    size_t size;
};

static uint64_t take(struct input *in, size_t bytes)
{
    uint64_t value = 0;
    if (bytes > in->size) bytes = in->size;
    memcpy(&value, in->data, bytes);
    in->data += bytes;
    in->size -= bytes;
    return value;
}

// Blocks of memory, side by side in pairs: 0 touches 1, 2 touches 3.
static uint64_t block(uint64_t i) { return (i / 2 + 1) << 40 | (i % 2) << 32; }

static kda_tensor make(uint64_t address, kda_dtype type, const int64_t extent[4])
{
    kda_tensor tensor = {.data = (void *)(uintptr_t)address, .dtype = type};
    while (tensor.rank < 4 && extent[tensor.rank]) {
        tensor.extent[tensor.rank] = extent[tensor.rank];
        tensor.rank++;
    }
    int64_t stride = 1;
    for (uint32_t i = tensor.rank; i-- > 0;) {
        tensor.stride[i] = stride;
        stride *= tensor.extent[i];
    }
    return tensor;
}
#define TENSOR(i, type, ...) make(block(i), type, (const int64_t[4]){__VA_ARGS__})

static kda_recurrent_args valid_recurrent(struct input *in)
{
    static const struct {
        kda_gate gate;
        int64_t tokens;
    } kinds[] = {{KDA_GATE_PRECOMPUTED, 1}, {KDA_GATE_PRECOMPUTED, 2}, {KDA_GATE_PRECOMPUTED, 4},
                 {KDA_GATE_PRECOMPUTED, 5}, {KDA_GATE_PRECOMPUTED, 6}, {KDA_GATE_LOWER_BOUND, 3},
                 {KDA_GATE_SOFTPLUS, 1}};
    const uint64_t pick = take(in, 1), form = take(in, 1);
    const kda_gate gate = kinds[pick % 7].gate;
    const int64_t t = kinds[pick % 7].tokens, n = (int64_t)(form % 4) + 1;
    const int64_t h = gate == KDA_GATE_LOWER_BOUND ? 16 : (int64_t)(form / 4 % 4) + 1;
    const int64_t hv = gate == KDA_GATE_PRECOMPUTED ? h * (int64_t)(form / 16 % 3 + 1) : h;
    const bool cu = t > 1 && form & 128;
    kda_recurrent_args a = {.state = TENSOR(7, KDA_BF16, n * t + 1, hv, 128, 128),
                            .gate = gate,
                            .num_spec_tokens = (int32_t)t - 1,
                            .scale = 0.0883883461F,
                            .flags = t > 1 ? KDA_FLAG_SPECULATIVE : 0};
    const int64_t lead[2] = {cu ? n * t : n, t};
    kda_tensor *const tensors[] = {&a.q, &a.k, &a.v, &a.g, &a.beta, &a.out};
    for (uint64_t i = 0; i < 6; i++) {
        const int64_t heads = i < 2 ? h : hv, last = i == 4 ? 0 : 128;
        *tensors[i] = cu ? TENSOR(i, KDA_BF16, lead[0], heads, last)
                         : TENSOR(i, KDA_BF16, lead[0], lead[1], heads, last);
    }
    if (cu) a.cu_seqlens = TENSOR(8, KDA_I32, n + 1);
    if (gate != KDA_GATE_PRECOMPUTED) {
        a.a_log = TENSOR(9, KDA_F32, h);
        a.dt_bias = TENSOR(10, KDA_F32, h, 128);
        a.lower_bound = gate == KDA_GATE_LOWER_BOUND ? -5.0F : 0.0F;
    }
    if (cu || pick & 128) a.ssm_state_indices = TENSOR(11, KDA_I32, n, t);
    if (pick & 64) a.num_accepted_tokens = TENSOR(12, KDA_I32, n);
    return a;
}

static kda_packed_args valid_packed(struct input *in)
{
    const int64_t n = (int64_t)(take(in, 1) % 40) + 1;
    return (kda_packed_args){.mixed_qkv = TENSOR(0, KDA_BF16, n, 4608),
                             .raw_gate = TENSOR(1, KDA_BF16, n, 1536),
                             .raw_beta = TENSOR(2, KDA_BF16, n, 12),
                             .a_log = TENSOR(3, KDA_F32, 12),
                             .dt_bias = TENSOR(4, KDA_F32, 1536),
                             .state = TENSOR(5, KDA_BF16, n, 12, 128, 128),
                             .state_indices = TENSOR(6, KDA_I32, n),
                             .out = TENSOR(7, KDA_BF16, n, 1, 12, 128)};
}

// Windows with and without caches, packed and batched, and now and then without tokens.
static kda_fused_args valid_fused(struct input *in)
{
    static const int64_t head_counts[] = {8, 12, 24, 32, 48, 96};
    const uint64_t form = take(in, 1), pick = take(in, 1);
    const int64_t n = (int64_t)(form % 8) + 1, h = head_counts[form / 8 % 6], width = h * 128;
    const int64_t slots = (int64_t)(pick / 16) + 1, size = pick & 1 ? 4 : 2;
    kda_fused_args a = {
        .x = TENSOR(0, KDA_BF16, n, 3 * width),
        .weight = TENSOR(1, KDA_F32, 3, 4, width),
        .conv_state = TENSOR(2, KDA_BF16, slots, 3 * width, 3),
        .raw_gate = TENSOR(3, KDA_BF16, 1, n, h, 128),
        .raw_beta = TENSOR(4, KDA_BF16, 1, n, h),
        .a_log = TENSOR(5, KDA_F32, h),
        .dt_bias = TENSOR(6, KDA_F32, width),
        .state_indices = TENSOR(7, KDA_I32, n),
        .state = TENSOR(8, size == 4 ? KDA_F32 : KDA_BF16, slots, h, 128, 128),
        .output_gate =
            pick & 2 ? TENSOR(9, KDA_BF16, 1, n, h, 128) : TENSOR(9, KDA_BF16, n, h, 128),
        .norm_weight = TENSOR(10, KDA_F32, 128),
        .out = TENSOR(11, KDA_BF16, 1, n, h, 128),
        .gate = pick & 4 ? KDA_GATE_SOFTPLUS : KDA_GATE_LOWER_BOUND,
        .mode = (kda_mode)(form / 48 % 3 + 1),
        .lower_bound = pick & 4 ? 0 : -5,
        .norm_eps = 1e-5F,
    };
    a.conv_state.stride[1] = 1;
    a.conv_state.stride[2] = 3 * width;
    if (pick & 8) {  // pages
        const int64_t page = 18 * width + width * 128 * size;
        a.state.data = (char *)a.conv_state.data + 18 * width;
        a.conv_state.stride[0] = page / 2;
        a.state.stride[0] = page / size;
    }
    return a;
}

static kda_verify_args valid_verify(struct input *in)
{
    const uint64_t pick = take(in, 1), form = take(in, 1);
    const kda_gate gate = (kda_gate)(pick % 3);
    const bool cu = form & 128, caches = pick & 64, empty = pick >= 248;
    const int64_t t = (int64_t)(pick / 3 % 16) + 1, n = (int64_t)(form % 4) + 1,
                  h = (int64_t)(form / 4 % 4) + 1, hv = h * (int64_t)(form / 16 % 3 + 1),
                  slots = n + 2, cached = form & 64 ? t : t + 3;
    kda_verify_args a = {
        .state = TENSOR(7, KDA_BF16, slots, hv, 128, 128), .gate = gate, .scale = 0.0883883461F};
    kda_tensor *const tensors[] = {&a.q, &a.k, &a.v, &a.g, &a.beta, &a.out};
    for (uint64_t i = 0; i < 6; i++) {
        const int64_t heads = i < 2 ? h : hv, last = i == 4 ? 0 : 128;
        *tensors[i] =
            cu ? TENSOR(i, KDA_BF16, n * t, heads, last) : TENSOR(i, KDA_BF16, n, t, heads, last);
        if (empty) tensors[i]->extent[0] = 0;
    }
    if (cu) a.cu_seqlens = TENSOR(8, KDA_I32, n + 1);
    if (gate != KDA_GATE_PRECOMPUTED) {
        a.a_log = TENSOR(9, KDA_F32, h);
        if (form & 32) a.dt_bias = TENSOR(10, KDA_F32, h, 128);
        a.lower_bound = gate == KDA_GATE_LOWER_BOUND ? -5.0F : 0.0F;
    }
    if (pick & 128) a.ssm_state_indices = TENSOR(11, KDA_I32, n);
    if (empty && !cu && a.ssm_state_indices.data) a.ssm_state_indices.extent[0] = 0;
    if (!cu || form & 64) {
        a.flags = KDA_FLAG_SPECULATIVE;
        a.num_spec_tokens = (int32_t)t - 1;
    }
    if (caches) {
        a.correction_cache = TENSOR(12, KDA_F32, slots, hv, cached, 128);
        a.kg_cache = TENSOR(13, KDA_BF16, slots, hv, cached, 256);
    }
    return a;
}

static kda_commit_args valid_commit(struct input *in)
{
    const uint64_t pick = take(in, 1), form = take(in, 1);
    const kda_gate gate = (kda_gate)(pick % 3);
    const int64_t t = (int64_t)(pick / 3 % 20) + 1, n = (int64_t)(form % 4) + 1,
                  h = (int64_t)(form / 4 % 4) + 1, hv = h * (int64_t)(form / 16 % 3 + 1);
    kda_commit_args a = {.state = TENSOR(0, KDA_BF16, n + 1, hv, 128, 128),
                         .correction_cache = TENSOR(1, KDA_F32, n + 1, hv, t, 128),
                         .kg_cache = TENSOR(2, KDA_BF16, n + 1, hv, t, 256),
                         .num_accepted_tokens = TENSOR(3, KDA_I32, n),
                         .gate = gate,
                         .heads = (int32_t)h};
    if (form & 64) a.ssm_state_indices = TENSOR(4, KDA_I32, n);
    if (gate != KDA_GATE_PRECOMPUTED) {
        a.a_log = TENSOR(5, KDA_F32, h);
        if (form & 128) a.dt_bias = TENSOR(6, KDA_F32, h, 128);
        a.lower_bound = gate == KDA_GATE_LOWER_BOUND ? -5.0F : 0.0F;
    }
    return a;
}

static int64_t number(struct input *in, int64_t old)
{
    static const int64_t special[] = {
        0,     1,         -1,        2,         3,         127,       128,       65535,
        65536, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, 1ll << 32, 1ll << 40, 1ll << 57};
    const uint64_t how = take(in, 1);
    switch (how % 8) {
    case 0:
        return special[how / 8 % 16];
    case 1:
        return (int64_t)((uint64_t)old + 1);
    case 2:
        return (int64_t)((uint64_t)old - 1);
    case 3:
        return (int64_t)((uint64_t)old * 2);
    case 4:
        return (int64_t)((uint64_t)old + 4 * (how / 8));
    case 5:
        return (int64_t)take(in, how & 8 ? 8 : 2);
    case 6:
        return (int64_t)((uint64_t)old << how / 8);
    default:
        return how & 128 ? old / 2 : (int64_t)((uint64_t)old - 8 * (how / 8 % 16));
    }
}

// In, at the end of, or just beside a block, or anywhere.
static uint64_t address(struct input *in, uint64_t old)
{
    const uint64_t how = take(in, 1), which = how / 8;
    switch (how % 8) {
    case 0:
        return block(which);
    case 1:
        return block(which) + take(in, 2);
    case 2:
        return block(which) - take(in, 1);
    case 3:
        return old + (take(in, 1) - 128) * 2;
    case 4:
        return old + take(in, 2) * 16;
    case 5:
        return UINT64_MAX - take(in, 2);
    case 6:
        return take(in, 8);
    default:
        return which % 2 ? 0 : old + which;
    }
}

static void edit_tensor(struct input *in, kda_tensor *t)
{
    const uint64_t what = take(in, 1);
    switch (what % 8) {
    case 0:
        t->data = (void *)(uintptr_t)address(in, (uintptr_t)t->data);
        break;
    case 1:
    case 2:
        t->extent[what / 8 % 4] = number(in, t->extent[what / 8 % 4]);
        break;
    case 3:
    case 4:
        t->stride[what / 8 % 4] = number(in, t->stride[what / 8 % 4]);
        break;
    case 5:
        t->rank = (uint32_t)(what / 8 % 7);
        break;
    case 6:
        t->dtype = (kda_dtype)(what / 8 % 7);
        break;
    default:
        if (what & 128)
            *t = (kda_tensor){0};
        else
            t->stride[0] = number(in, t->stride[0]), t->stride[1] = number(in, t->stride[1]);
    }
}

static float real(struct input *in)
{
    const uint32_t bits = (uint32_t)take(in, 4);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void edit_recurrent(struct input *in, kda_recurrent_args *a)
{
    kda_tensor *const tensors[] = {&a->q,
                                   &a->k,
                                   &a->v,
                                   &a->g,
                                   &a->beta,
                                   &a->a_log,
                                   &a->dt_bias,
                                   &a->state,
                                   &a->out,
                                   &a->ssm_state_indices,
                                   &a->cu_seqlens,
                                   &a->num_accepted_tokens,
                                   &a->initial_state};
    const uint64_t what = take(in, 1) % 32;
    if (what < 13) {
        edit_tensor(in, tensors[what]);
    } else if (what < 18) {  // the first stride of two, as a slice has it
        const int64_t stride = number(in, a->q.stride[0]);
        for (int i = 0; i < 2; i++) tensors[(what + (uint64_t)i) % 5]->stride[0] = stride;
    } else if (what < 22) {  // all leading extents alike
        const int64_t extent = number(in, a->q.extent[0]);
        for (int i = 0; i < 5; i++) tensors[i]->extent[0] = extent;
        a->out.extent[0] = extent;
    } else if (what < 24) {
        a->flags = (uint32_t)take(in, what == 22 ? 1 : 4);
    } else if (what < 26) {
        a->num_spec_tokens = (int32_t)number(in, a->num_spec_tokens);
    } else if (what == 26) {
        a->gate = (kda_gate)(take(in, 1) % 5);
    } else if (what == 27) {
        a->beta_is_logit = (int32_t)number(in, a->beta_is_logit);
    } else if (what == 28) {
        a->scale = real(in);
    } else if (what == 29) {
        a->lower_bound = real(in);
    } else if (what == 30) {
        a->reserved[take(in, 1) % 4] = take(in, 1);
    } else {
        const kda_tensor q = a->q;
        a->q = a->k;
        a->k = q;
    }
}

static void edit_packed(struct input *in, kda_packed_args *a)
{
    kda_tensor *const tensors[] = {&a->mixed_qkv, &a->raw_gate, &a->raw_beta,      &a->a_log,
                                   &a->dt_bias,   &a->state,    &a->state_indices, &a->out};
    const uint64_t what = take(in, 1) % 16;
    if (what < 11) {
        edit_tensor(in, tensors[what % 8]);
    } else if (what < 13) {
        const int64_t extent = number(in, a->mixed_qkv.extent[0]);
        static const int per_row[] = {0, 1, 2, 6, 7};
        for (int i = 0; i < 5; i++) tensors[per_row[i]]->extent[0] = extent;
    } else if (what == 13) {
        a->flags = (uint32_t)take(in, 1);
    } else if (what == 14) {
        a->reserved32 = (uint32_t)take(in, 1);
    } else {
        a->reserved[take(in, 1) % 4] = take(in, 1);
    }
}

static void edit_fused(struct input *in, kda_fused_args *a)
{
    kda_tensor *const tensors[] = {
        &a->x,       &a->weight,        &a->conv_state, &a->raw_gate,    &a->raw_beta,    &a->a_log,
        &a->dt_bias, &a->state_indices, &a->state,      &a->output_gate, &a->norm_weight, &a->out};
    const uint64_t what = take(in, 1) % 32;
    if (what < 15) {
        edit_tensor(in, tensors[what % 12]);
    } else if (what < 18) {  // both caches: slots, or the page
        const bool page = what == 15;
        int64_t *const of = page ? a->conv_state.stride : a->conv_state.extent;
        int64_t *const as = page ? a->state.stride : a->state.extent;
        of[0] = number(in, of[0]);
        as[0] = page && a->state.dtype == KDA_F32 ? of[0] / 2 : of[0];
    } else if (what < 21) {  // the state, from where the windows are
        a->state.data = (void *)(uintptr_t)address(in, (uintptr_t)a->conv_state.data);
    } else if (what < 23) {
        const int64_t extent = number(in, a->x.extent[0]);
        a->x.extent[0] = a->state_indices.extent[0] = extent;
        a->raw_gate.extent[1] = a->raw_beta.extent[1] = a->out.extent[1] = extent;
        a->output_gate.extent[a->output_gate.rank == 4] = extent;
    } else if (what == 23) {
        a->gate = (kda_gate)(take(in, 1) % 5);
    } else if (what == 24) {
        a->mode = (kda_mode)(take(in, 1) % 6 - 1);
    } else if (what == 25) {
        a->lower_bound = real(in);
    } else if (what == 26) {
        a->norm_eps = real(in);
    } else if (what == 27) {
        a->flags = (uint32_t)take(in, 1);
    } else if (what == 28) {
        a->reserved32 = (uint32_t)take(in, 1);
    } else {
        a->reserved[take(in, 1) % 4] = take(in, 1);
    }
}

static void edit_verify(struct input *in, kda_verify_args *a)
{
    kda_tensor *const tensors[] = {&a->q,
                                   &a->k,
                                   &a->v,
                                   &a->g,
                                   &a->beta,
                                   &a->a_log,
                                   &a->out,
                                   &a->correction_cache,
                                   &a->dt_bias,
                                   &a->state,
                                   &a->ssm_state_indices,
                                   &a->cu_seqlens,
                                   &a->kg_cache,
                                   &a->num_accepted_tokens};
    const uint64_t what = take(in, 1) % 32;
    if (what < 14) {
        edit_tensor(in, tensors[what]);
    } else if (what < 16) {  // both caches alike
        const uint64_t dim = take(in, 1) % 3;
        const int64_t stride = number(in, a->kg_cache.stride[dim]);
        a->kg_cache.stride[dim] = a->correction_cache.stride[dim] = stride;
    } else if (what < 18) {
        const int64_t cached = number(in, a->kg_cache.extent[2]);
        a->kg_cache.extent[2] = a->correction_cache.extent[2] = cached;
    } else if (what < 21) {  // all leading extents alike
        const int64_t extent = number(in, a->q.extent[0]);
        for (int i = 0; i < 5; i++) tensors[i]->extent[0] = extent;
        a->out.extent[0] = extent;
    } else if (what < 23) {  // two tokens of a packed call overlap, or do not
        tensors[what % 5]->stride[0] = number(in, a->q.stride[0]);
        a->out.stride[0] = number(in, a->out.stride[0]);
    } else if (what == 23) {
        a->flags = (uint32_t)take(in, 1);
    } else if (what < 26) {
        a->num_spec_tokens = (int32_t)number(in, a->num_spec_tokens);
    } else if (what == 26) {
        a->gate = (kda_gate)(take(in, 1) % 5);
    } else if (what == 27) {
        a->beta_is_logit = (int32_t)number(in, a->beta_is_logit);
    } else if (what == 28) {
        a->scale = real(in);
    } else if (what == 29) {
        a->lower_bound = real(in);
    } else if (what == 30) {
        a->null_min = (int32_t)number(in, a->null_min);
    } else {
        a->reserved32 = (uint32_t)take(in, 1);
        a->reserved[take(in, 1) % 4] = take(in, 1);
    }
}

static void edit_commit(struct input *in, kda_commit_args *a)
{
    kda_tensor *const tensors[] = {&a->state,
                                   &a->correction_cache,
                                   &a->kg_cache,
                                   &a->ssm_state_indices,
                                   &a->num_accepted_tokens,
                                   &a->a_log,
                                   &a->dt_bias};
    const uint64_t what = take(in, 1) % 16;
    if (what < 7) {
        edit_tensor(in, tensors[what]);
    } else if (what == 7) {  // all slots alike
        const int64_t slots = number(in, a->state.extent[0]);
        for (int i = 0; i < 3; i++) tensors[i]->extent[0] = slots;
    } else if (what == 8) {
        const int64_t cached = number(in, a->kg_cache.extent[2]);
        a->kg_cache.extent[2] = a->correction_cache.extent[2] = cached;
    } else if (what == 9) {
        const int64_t rows = number(in, a->num_accepted_tokens.extent[0]);
        a->num_accepted_tokens.extent[0] = a->ssm_state_indices.extent[0] = rows;
    } else if (what == 10) {
        a->heads = (int32_t)number(in, a->heads);
    } else if (what == 11) {
        a->null_min = (int32_t)number(in, a->null_min);
    } else if (what == 12) {
        a->lower_bound = real(in);
    } else if (what == 13) {
        a->gate = (kda_gate)(take(in, 1) % 5);
    } else if (what == 14) {
        a->flags = (uint32_t)take(in, 1);
    } else {
        a->reserved32 = (uint32_t)take(in, 1);
        a->reserved[take(in, 1) % 4] = take(in, 1);
    }
}

static void make_call(struct input *in, uint64_t how)
{
    now.op = how & 1    ? how & 128 ? KDA_OP_FUSED : KDA_OP_PACKED
             : how & 32 ? how & 64 ? KDA_OP_VERIFY : KDA_OP_COMMIT
                        : KDA_OP_RECURRENT;
    if (now.op == KDA_OP_PACKED) {
        now.args.packed = valid_packed(in);
        for (int i = 0; i < 8 && in->size; i++) edit_packed(in, &now.args.packed);
    } else if (now.op == KDA_OP_FUSED) {
        now.args.fused = valid_fused(in);
        for (int i = 0; i < 8 && in->size; i++) edit_fused(in, &now.args.fused);
    } else if (now.op == KDA_OP_VERIFY) {
        now.args.verify = valid_verify(in);
        for (int i = 0; i < 12 && in->size; i++) edit_verify(in, &now.args.verify);
    } else if (now.op == KDA_OP_COMMIT) {
        now.args.commit = valid_commit(in);
        for (int i = 0; i < 8 && in->size; i++) edit_commit(in, &now.args.commit);
    } else {
        now.args.recurrent = valid_recurrent(in);
        for (int i = 0; i < 12 && in->size; i++) edit_recurrent(in, &now.args.recurrent);
    }
}

static kda_status call(kda_error *err)
{
    switch (now.op) {
    case KDA_OP_PACKED:
        return kda_packed(context, &now.args.packed, NULL, err);
    case KDA_OP_FUSED:
        return kda_fused(context, &now.args.fused, NULL, err);
    case KDA_OP_VERIFY:
        return kda_verify(context, &now.args.verify, NULL, err);
    case KDA_OP_COMMIT:
        return kda_commit(context, &now.args.commit, NULL, err);
    default:
        return kda_recurrent(context, &now.args.recurrent, NULL, err);
    }
}

static kda_status make_plan(const char *body, kda_plan *out, kda_error *err)
{
    switch (now.op) {
    case KDA_OP_PACKED:
        return kda_packed_plan(context, &now.args.packed, body, NULL, out, err);
    case KDA_OP_FUSED:
        return kda_fused_plan(context, &now.args.fused, body, NULL, out, err);
    case KDA_OP_VERIFY:
        return kda_verify_plan(context, &now.args.verify, body, NULL, out, err);
    case KDA_OP_COMMIT:
        return kda_commit_plan(context, &now.args.commit, body, NULL, out, err);
    default:
        return kda_recurrent_plan(context, &now.args.recurrent, body, NULL, out, err);
    }
}

static void check_outcome(kda_status status, const kda_error *err, int launches)
{
    if (status == KDA_OK) {
        require(now.launches == launches, "%s: %" PRId64 " launches", "success", now.launches);
    } else {
        require(now.launches == 0 && err->status == status && *err->text &&
                    !strchr(err->text, '\n') && status < KDA_E_IO,
                "%s: status %" PRId64, err->text, status);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!context) set_up();
    struct input in = {data, size};
    const uint64_t how = take(&in, 1), which = take(&in, 1);
    make_call(&in, how);
    const int launches = now.op != KDA_OP_VERIFY || now.args.verify.q.extent[0] != 0;
    now.launches = 0;
    kda_error err = {0};
    const kda_status status = call(&err);
    check_outcome(status, &err, launches);

    // A plan is refused for the same reasons, but for the body that it may force.
    const uint64_t pick = how / 2 % 16;
    const char *const body = pick < 4 ? NULL
                             : pick > 4
                                 ? bundle->strings + bundle->bodies[which % bundle->body_count].name
                                 : "none";
    kda_plan plan = {.opaque = {1}};
    now.launches = 0;
    const kda_status planned = make_plan(body, &plan, &err);
    check_outcome(planned, &err, 0);
    if (!body) require(planned == status, "%s: plan %" PRId64, "another status", planned);
    if (planned == KDA_OK) {
        require(kda_plan_launch(&plan, NULL, &err) == KDA_OK && now.launches == launches,
                "%s: %" PRId64, "launches of a plan", now.launches);
    } else {
        require(plan.opaque[0] == 1, "%s was written", "a refused plan", 0);
    }
    return 0;
}
