// SPDX-License-Identifier: Apache-2.0
// What the files of kda-bench share: shapes, measured rows, and the steps from one to the other.
#ifndef KDA_TOOLS_BENCH_H
#define KDA_TOOLS_BENCH_H

#include <stdio.h>

#include "loader/bundle.h"

enum { BENCH_OK = 0, BENCH_FINDING = 1, BENCH_USAGE = 2 };  // exit statuses

// ------------------------------------------------------------------------------------------ shapes

// One kind of call: what a row of a table is about, apart from its numbers.
struct bench_kind {
    const char *name;
    kda_op op;
    kda_gate gate;
    kda_dtype state;
    kda_mode mode;  // of fused decode
    bool caches;    // verify writes them, commit reads them
};

struct bench_shape {
    const struct bench_kind *kind;
    int64_t tokens, rows, heads, value_heads;
};

struct bench_shapes {
    struct bench_shape *shapes;
    size_t count;
};

const struct bench_kind *bench_kind_find(const char *name);  // NULL: no such kind
// The shapes of the standard table; with `quick` the least one of each kind and T.
struct bench_shapes bench_shapes_standard(bool quick);
// KIND,T,N,H,HV, appended. False: not of this form.
bool bench_shapes_add(struct bench_shapes *shapes, const char *text);
void bench_shapes_free(struct bench_shapes *shapes);

kda_problem bench_problem(const struct bench_shape *shape);
bool bench_serves(const struct kda_format_body *body, const struct bench_shape *shape);
// What tables call a body within its kind and T, a part of its name: "direct_split16".
const char *bench_label(const char *body);
// Would a device of `cc` and `sm_count` be routed to this body by `bundle`?
bool bench_routed(const kda_bundle *bundle, const struct bench_shape *shape, const char *body,
                  int cc, int sm_count);

// Bytes of a slot of the pool, and from where in it the state of the first head lies: of fused
// decode a slot is a page that holds the convolution window first.
enum {
    BENCH_WINDOW_BYTES = 3 * 128 * 3 * 2,  // q, k and v of a head, three taps
    BENCH_WEIGHT_BYTES = 3 * 4 * 128 * 4   // convolution weights of a head, read once
};
size_t bench_slot_bytes(const struct bench_shape *shape);
size_t bench_state_offset(const struct bench_shape *shape);
size_t bench_head_bytes(const struct bench_shape *shape);  // of the state
// Of each cache and slot; caches lie behind the pool, corrections first.
size_t bench_cache_bytes(const struct bench_shape *shape);
// Slots that a row names, and how many of them it writes.
int64_t bench_row_slots(const struct bench_shape *shape);
int64_t bench_writes(const struct bench_shape *shape);
// Bytes beside the state that a value head of a row reads and writes; 0 for recurrent and packed
// decode, whose tables count the states alone.
size_t bench_read_bytes(const struct bench_shape *shape);
size_t bench_written_bytes(const struct bench_shape *shape);
// Bytes that must be moved: the state's one read and its writes, and what there is beside it.
double bench_bytes(const struct bench_shape *shape);

// -------------------------------------------------------------------------------------------- rows

struct bench_row {
    struct bench_shape shape;
    char body[96];  // a label where the row comes from a table
    double us, floor_us;
    bool routed_sm100a, routed_sm103a;
    double peer;  // time over floor in the table that is compared with; 0: not in it
};

struct bench_rows {
    struct bench_row *rows;
    size_t count;
};

struct bench_device {  // of a report
    const char *name, *bundle_id;
    int cc, sm_count, cuda_version;
    bool soft, pdl;
};

static inline double bench_over_floor(const struct bench_row *row)
{
    return row->us / row->floor_us;
}

void bench_rows_add(struct bench_rows *rows, const struct bench_row *row);
void bench_rows_free(struct bench_rows *rows);

// A table by column names, as bench_write_tsv writes it or with peer_us and peer_over_floor in
// place of us and over_floor. IO or FORMAT.
kda_status bench_read_tsv(const char *path, struct bench_rows *out, kda_error *err);
// Writes a file of what `print` prints.
typedef void bench_print(FILE *out, const struct bench_rows *rows,
                         const struct bench_device *device);
kda_status bench_write_text(const char *path, const struct bench_rows *rows,
                            const struct bench_device *device, bench_print *print, kda_error *err);
kda_status bench_write_tsv(const char *path, const struct bench_rows *rows, kda_error *err);
kda_status bench_write_json(const char *path, const struct bench_rows *rows,
                            const struct bench_device *device, kda_error *err);
kda_status bench_write_plot(const char *path, const struct bench_rows *rows,
                            const struct bench_device *device, kda_error *err);

// The row of `table` with the shape and label of `row`; NULL: none.
const struct bench_row *bench_find(const struct bench_rows *table, const struct bench_row *row);

// More than this above the peer's ratio is slower; less is noise.
#define BENCH_NOISE 1.02

void bench_print_head(bool compares);
void bench_print_row(const struct bench_row *row, bool compares);
// Geometric means per kind and T. The number of routed rows slower than the table.
int bench_print_summary(const struct bench_rows *rows, bool compares);

// ------------------------------------------------------------------------------------------- verbs

int bench_gpu(int argc, char **argv);
int bench_host(int argc, char **argv);

// Prints how long opening the bundle, loading each body cold, and preparing everything take, with
// the driver that the process has.
void bench_loads(const char *bundle_path);

kda_status bench_open(const char *path, kda_bundle **out, kda_error *err);  // NULL: built in
void *bench_memory(size_t count, size_t size);      // zeroed; ends the process when there is none
double bench_now(void);                             // seconds
double bench_median(double *values, size_t count);  // reorders them
_Noreturn void bench_die(const kda_error *err);

#endif
