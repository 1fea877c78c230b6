// SPDX-License-Identifier: Apache-2.0
// A serving loop in C: continuous batching over a pool of slots, padding rows, kernels loaded at
// start, one captured graph per batch size, then speculative windows of verify and commit.
//   serve [--bundle FILE]
// Requests come and go; every step decodes one token of each that is active, in the smallest batch
// that holds them. What must hold for any serving engine is checked at the end: each request,
// decoded alone and eagerly, has the same bits in every output and in its state; and the accepted
// tokens of the speculative windows have, within the limits of decode, the outputs and the state
// of decoding them one by one.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/kda.h"
#include "tools/machine.h"
#include "tools/oracle.h"

enum {
    H = 1,
    HV = 2,
    D = ORACLE_D,
    SLOTS = 6,
    REQUESTS = 7,
    LONGEST = 9,  // tokens of a request
    BATCH = 4,
    WINDOW = 4  // tokens of a speculative window
};
static const int batches[] = {1, 2, BATCH};
enum { BATCHES = sizeof batches / sizeof batches[0] };

struct buffer {  // the same bytes on host and device
    void *host;
    CUdeviceptr device;
    size_t size;
};

// The tensors of a batch: fixed addresses, so that a graph can hold them.
struct batch {
    struct buffer q, k, v, g, beta, out, slots, accepted;
};

struct request {
    int length, done, slot;  // slot -1: not admitted or finished
    uint16_t out[LONGEST][HV * D];
    uint16_t *state;  // as its last token left it
};

struct server {
    struct machine machine;
    kda_bundle *bundle;
    kda_context *context;
    CUstream stream;
    struct buffer pool, correction, kg;
    struct batch decode, verify;
    struct machine_graph graphs[BATCHES];
    struct request requests[REQUESTS];
    bool taken[SLOTS];
};

static void must(kda_status status, const kda_error *err)
{
    if (status == KDA_OK) return;
    fprintf(stderr, "serve: %s: %s\n", kda_status_name(status), err->text);
    exit(1);
}

static struct buffer make(const struct server *server, size_t size)
{
    struct buffer buffer = {calloc(1, size), machine_alloc(&server->machine, size), size};
    if (!buffer.host) exit(1);
    machine_put(&server->machine, buffer.device, buffer.host, size);
    return buffer;
}
static void put(const struct server *server, const struct buffer *buffer)
{
    machine_put(&server->machine, buffer->device, buffer->host, buffer->size);
}
static void get(const struct server *server, const struct buffer *buffer)
{
    machine_get(&server->machine, buffer->host, buffer->device, buffer->size);
}
static void drop(const struct server *server, struct buffer *buffer)
{
    free(buffer->host);
    machine_free(&server->machine, buffer->device);
}

// ----------------------------------------------------------------------------------------- tensors

static kda_tensor view(const struct buffer *buffer, kda_dtype type, uint32_t rank, int64_t a,
                       int64_t b, int64_t c, int64_t d)
{
    kda_tensor tensor = {(void *)(uintptr_t)buffer->device, type, rank, {a, b, c, d}, {0}};
    int64_t stride = 1;
    for (uint32_t i = rank; i-- > 0; stride *= tensor.extent[i]) tensor.stride[i] = stride;
    return tensor;
}

static struct batch make_batch(const struct server *server, size_t tokens)
{
    return (struct batch){
        .q = make(server, tokens * H * D * 2),
        .k = make(server, tokens * H * D * 2),
        .v = make(server, tokens * HV * D * 2),
        .g = make(server, tokens * HV * D * 2),
        .beta = make(server, tokens * HV * 2),
        .out = make(server, tokens * HV * D * 2),
        .slots = make(server, BATCH * 4),
        .accepted = make(server, BATCH * 4),
    };
}

static void put_batch(const struct server *server, const struct batch *batch)
{
    const struct buffer *const buffers[] = {&batch->q,    &batch->k,     &batch->v,       &batch->g,
                                            &batch->beta, &batch->slots, &batch->accepted};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) put(server, buffers[i]);
}

static void drop_batch(const struct server *server, struct batch *batch)
{
    struct buffer *const buffers[] = {&batch->q,    &batch->k,   &batch->v,     &batch->g,
                                      &batch->beta, &batch->out, &batch->slots, &batch->accepted};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) drop(server, buffers[i]);
}

// Token `position` of a request into place `i` of a batch. A model would have computed it.
static void write_token(struct batch *batch, int i, int request, int position)
{
    struct oracle_rng rng = {.state = (uint64_t)(1000 * request + position + 1)};
    uint16_t *const q = (uint16_t *)batch->q.host + i * H * D,
                    *const k = (uint16_t *)batch->k.host + i * H * D,
                    *const v = (uint16_t *)batch->v.host + i * HV * D,
                    *const g = (uint16_t *)batch->g.host + i * HV * D,
                    *const beta = (uint16_t *)batch->beta.host + i * HV;
    for (int c = 0; c < H * D; c++) {
        q[c] = oracle_bf16(0.5 * oracle_normal(&rng));
        k[c] = oracle_bf16(0.5 * oracle_normal(&rng));
    }
    for (int c = 0; c < HV * D; c++) {
        v[c] = oracle_bf16(0.5 * oracle_normal(&rng));
        g[c] = oracle_bf16(-oracle_softplus(-oracle_normal(&rng) - 2));
    }
    for (int hv = 0; hv < HV; hv++) beta[hv] = oracle_bf16(oracle_sigmoid(oracle_normal(&rng)));
}

// ------------------------------------------------------------------------------------------- calls

static void launch_decode(struct server *server, int rows)
{
    const struct batch *const batch = &server->decode;
    const kda_recurrent_args args = {
        .q = view(&batch->q, KDA_BF16, 4, rows, 1, H, D),
        .k = view(&batch->k, KDA_BF16, 4, rows, 1, H, D),
        .v = view(&batch->v, KDA_BF16, 4, rows, 1, HV, D),
        .g = view(&batch->g, KDA_BF16, 4, rows, 1, HV, D),
        .beta = view(&batch->beta, KDA_BF16, 3, rows, 1, HV, 0),
        .state = view(&server->pool, KDA_BF16, 4, SLOTS, HV, D, D),
        .out = view(&batch->out, KDA_BF16, 4, rows, 1, HV, D),
        .ssm_state_indices = view(&batch->slots, KDA_I32, 1, rows, 0, 0, 0),
        .scale = 0.08838834764831845f,
    };
    kda_error err;
    must(kda_recurrent(server->context, &args, server->stream, &err), &err);
}

static void launch_verify(struct server *server)
{
    const struct batch *const batch = &server->verify;
    const kda_verify_args args = {
        .q = view(&batch->q, KDA_BF16, 4, BATCH, WINDOW, H, D),
        .k = view(&batch->k, KDA_BF16, 4, BATCH, WINDOW, H, D),
        .v = view(&batch->v, KDA_BF16, 4, BATCH, WINDOW, HV, D),
        .g = view(&batch->g, KDA_BF16, 4, BATCH, WINDOW, HV, D),
        .beta = view(&batch->beta, KDA_BF16, 3, BATCH, WINDOW, HV, 0),
        .state = view(&server->pool, KDA_BF16, 4, SLOTS, HV, D, D),
        .out = view(&batch->out, KDA_BF16, 4, BATCH, WINDOW, HV, D),
        .ssm_state_indices = view(&batch->slots, KDA_I32, 1, BATCH, 0, 0, 0),
        .correction_cache = view(&server->correction, KDA_F32, 4, SLOTS, HV, WINDOW, D),
        .kg_cache = view(&server->kg, KDA_BF16, 4, SLOTS, HV, WINDOW, 2 * D),
        .num_spec_tokens = WINDOW - 1,
        .scale = 0.08838834764831845f,
        .flags = KDA_FLAG_SPECULATIVE,
    };
    kda_error err;
    must(kda_verify(server->context, &args, server->stream, &err), &err);
}

static void launch_commit(struct server *server)
{
    const struct batch *const batch = &server->verify;
    const kda_commit_args args = {
        .state = view(&server->pool, KDA_BF16, 4, SLOTS, HV, D, D),
        .correction_cache = view(&server->correction, KDA_F32, 4, SLOTS, HV, WINDOW, D),
        .kg_cache = view(&server->kg, KDA_BF16, 4, SLOTS, HV, WINDOW, 2 * D),
        .ssm_state_indices = view(&batch->slots, KDA_I32, 1, BATCH, 0, 0, 0),
        .num_accepted_tokens = view(&batch->accepted, KDA_I32, 1, BATCH, 0, 0, 0),
        .heads = H,
    };
    kda_error err;
    must(kda_commit(server->context, &args, server->stream, &err), &err);
}

// ------------------------------------------------------------------------------------------- slots

static size_t slot_size(void) { return (size_t)HV * D * D * 2; }

// A free slot, with the zero state of a new request.
static int take_slot(struct server *server)
{
    for (int slot = 0; slot < SLOTS; slot++) {
        if (server->taken[slot]) continue;
        server->taken[slot] = true;
        machine_fill(&server->machine, server->pool.device + (uint64_t)slot * slot_size(), 0,
                     slot_size() / 2);
        return slot;
    }
    return -1;
}

static void give_slot(struct server *server, struct request *request)
{
    if (!request->state) request->state = calloc(1, slot_size());
    if (!request->state) exit(1);
    machine_get(&server->machine, request->state,
                server->pool.device + (uint64_t)request->slot * slot_size(), slot_size());
    server->taken[request->slot] = false;
    request->slot = -1;
}

// -------------------------------------------------------------------------------------------- loop

// One token of each of `count` requests, by the graph of the smallest batch that holds them.
static void step(struct server *server, const int *active, int count)
{
    int size = 0;
    while (batches[size] < count) size++;
    int32_t *const slots = server->decode.slots.host;
    for (int i = 0; i < batches[size]; i++) slots[i] = -1;  // padding rows are null
    for (int i = 0; i < count; i++) {
        const struct request *const request = &server->requests[active[i]];
        slots[i] = request->slot;
        write_token(&server->decode, i, active[i], request->done);
    }
    put_batch(server, &server->decode);
    machine_replay(&server->machine, &server->graphs[size], server->stream);
    machine_sync(&server->machine, server->stream);
    get(server, &server->decode.out);
    for (int i = 0; i < count; i++) {
        struct request *const request = &server->requests[active[i]];
        memcpy(request->out[request->done++],
               (const uint16_t *)server->decode.out.host + i * HV * D, HV * D * 2);
        if (request->done == request->length) give_slot(server, request);
    }
}

static void serve(struct server *server)
{
    int waiting = 0, active[BATCH], steps = 0;
    for (;;) {
        int count = 0;
        for (int r = 0; r < waiting; r++)
            if (server->requests[r].slot >= 0) active[count++] = r;
        // A new request every other step, as long as there is room.
        if (steps % 2 == 0 && waiting < REQUESTS && count < BATCH) {
            server->requests[waiting].slot = take_slot(server);
            active[count++] = waiting++;
        }
        if (!count && waiting == REQUESTS) break;
        if (count) step(server, active, count);
        steps++;
    }
    printf("served  %d requests in %d steps, batches of 1, 2 and %d\n", REQUESTS, steps, BATCH);
}

// The first tokens of a request alone, eagerly, in a slot of its own.
static void alone(struct server *server, int r, int length, uint16_t out[][HV * D], uint16_t *state)
{
    struct request request = {.slot = take_slot(server), .state = state};
    for (int t = 0; t < length; t++) {
        *(int32_t *)server->decode.slots.host = request.slot;
        write_token(&server->decode, 0, r, t);
        put_batch(server, &server->decode);
        launch_decode(server, 1);
        machine_sync(&server->machine, server->stream);
        get(server, &server->decode.out);
        memcpy(out[t], server->decode.out.host, HV * D * 2);
    }
    give_slot(server, &request);
}

static bool check_alone(struct server *server, uint16_t *state)
{
    bool good = true;
    uint16_t out[LONGEST][HV * D];
    for (int r = 0; r < REQUESTS; r++) {
        const struct request *const served = &server->requests[r];
        alone(server, r, served->length, out, state);
        good &= !memcmp(out, served->out, (size_t)served->length * sizeof out[0]) &&
                !memcmp(state, served->state, slot_size());
    }
    printf("alone   %s\n", good ? "the same bits" : "other bits");
    return good;
}

// ------------------------------------------------------------------------------------- speculation

// Two windows of draft tokens for BATCH requests from the zero state; some are accepted each time,
// the next window starts behind them. A draft is here the token that decoding would give.
static bool speculate(struct server *server, uint16_t *alone_state)
{
    static const int accepted[2][BATCH] = {{WINDOW, 2, 0, 1}, {1, WINDOW, 3, 2}};
    int slots[BATCH], done[BATCH] = {0};
    struct oracle_error outputs = {0}, states = {0};
    uint16_t expected[LONGEST + WINDOW][HV * D], *const state = calloc(1, slot_size());
    if (!state) exit(1);
    for (int n = 0; n < BATCH; n++) slots[n] = take_slot(server);
    machine_capture(&server->machine, server->stream);
    launch_verify(server);
    struct machine_graph verify = machine_captured(&server->machine, server->stream);
    machine_capture(&server->machine, server->stream);
    launch_commit(server);
    struct machine_graph commit = machine_captured(&server->machine, server->stream);
    for (int window = 0; window < 2; window++) {
        for (int n = 0; n < BATCH; n++) {
            ((int32_t *)server->verify.slots.host)[n] = slots[n];
            ((int32_t *)server->verify.accepted.host)[n] = accepted[window][n];
            for (int t = 0; t < WINDOW; t++)
                write_token(&server->verify, n * WINDOW + t, n, done[n] + t);
        }
        put_batch(server, &server->verify);
        machine_replay(&server->machine, &verify, server->stream);
        // Here the sampler decides how many tokens of each row are accepted.
        machine_replay(&server->machine, &commit, server->stream);
        machine_sync(&server->machine, server->stream);
        get(server, &server->verify.out);
        for (int n = 0; n < BATCH; n++) {
            alone(server, n, done[n] + WINDOW, expected, alone_state);
            for (int t = 0; t < WINDOW; t++)
                for (int c = 0; c < HV * D; c++)
                    oracle_add(
                        &outputs,
                        ((const uint16_t *)server->verify.out.host)[(n * WINDOW + t) * HV * D + c],
                        oracle_value(expected[done[n] + t][c]));
            done[n] += accepted[window][n];
            if (done[n]) alone(server, n, done[n], expected, alone_state);
            machine_get(&server->machine, state,
                        server->pool.device + (uint64_t)slots[n] * slot_size(), slot_size());
            for (size_t i = 0; i < slot_size() / 2; i++)
                oracle_add(&states, state[i], done[n] ? oracle_value(alone_state[i]) : 0);
        }
    }
    for (int n = 0; n < BATCH; n++) server->taken[slots[n]] = false;
    machine_graph_close(&server->machine, &verify);
    machine_graph_close(&server->machine, &commit);
    free(state);
    printf("verify  windows of %d: worst output at %.2g, worst state at %.2g of the tolerance\n",
           WINDOW, outputs.worst, states.worst);
    return outputs.worst <= 1 && states.worst <= 1 && !outputs.nonfinite && !states.nonfinite;
}

// -------------------------------------------------------------------------------------------- main

int main(int argc, char **argv)
{
    struct server server = {.taken = {false}};
    kda_error err;
    const char *const reason = machine_open(&server.machine, 0, 0);
    if (reason) {
        fprintf(stderr, "serve: %s\n", reason);
        return 1;
    }
    const bool given = argc == 3 && !strcmp(argv[1], "--bundle");
    if (argc != 1 && !given) {
        fprintf(stderr, "usage: serve [--bundle FILE]\n");
        return 2;
    }
    must(given ? kda_bundle_open_file(argv[2], &server.bundle, &err)
               : kda_bundle_open_builtin(&server.bundle, &err),
         &err);
    must(kda_context_create(server.bundle, NULL, NULL, &server.context, &err), &err);
    must(kda_context_prepare(server.context, NULL, &err), &err);

    server.stream = machine_stream(&server.machine);
    server.pool = make(&server, SLOTS * slot_size());
    server.correction = make(&server, (size_t)SLOTS * HV * WINDOW * D * 4);
    server.kg = make(&server, (size_t)SLOTS * HV * WINDOW * 2 * D * 2);
    server.decode = make_batch(&server, BATCH);
    server.verify = make_batch(&server, BATCH * WINDOW);
    for (int r = 0; r < REQUESTS; r++)
        server.requests[r] = (struct request){.length = 3 + 5 * r % (LONGEST - 2), .slot = -1};
    for (int i = 0; i < BATCHES; i++) {
        machine_capture(&server.machine, server.stream);
        launch_decode(&server, batches[i]);
        server.graphs[i] = machine_captured(&server.machine, server.stream);
    }

    serve(&server);
    uint16_t *const state = calloc(1, slot_size());
    const bool good = state && check_alone(&server, state) && speculate(&server, state);
    puts(good ? "ok" : "FAILED");

    free(state);
    for (int r = 0; r < REQUESTS; r++) free(server.requests[r].state);
    for (int i = 0; i < BATCHES; i++) machine_graph_close(&server.machine, &server.graphs[i]);
    drop_batch(&server, &server.decode);
    drop_batch(&server, &server.verify);
    drop(&server, &server.pool);
    drop(&server, &server.correction);
    drop(&server, &server.kg);
    machine_stream_close(&server.machine, server.stream);
    kda_context_close(&server.context);
    kda_bundle_close(&server.bundle);
    machine_close(&server.machine);
    return good ? 0 : 1;
}
