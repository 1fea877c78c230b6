// SPDX-License-Identifier: Apache-2.0
// Owns the picture: one panel per kind and T, work N*HV to the right, time over floor upwards, a
// line per body and number of value heads. Hollow points are a table's.
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "loader/error.h"
#include "tools/bench.h"
#include "tools/files.h"

enum { PANEL_W = 420, PANEL_H = 300, LEFT = 44, RIGHT = 12, TOP = 30, BOTTOM = 34, PER_ROW = 3 };
static const double lowest = 0.9, highest = 2.5;  // time over floor; more is drawn at the top
static const char *const colors[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd",
                                     "#ff7f0e", "#17becf", "#8c564b", "#e377c2"};
enum { MAX_LABELS = sizeof colors / sizeof *colors };

struct panel {
    const struct bench_rows *rows;
    const struct bench_shape *first;  // whose kind and T it has
    double x, y, most;                // corner; log2 of the largest work
    const char *labels[MAX_LABELS];
    int label_count;
};

static double work(const struct bench_row *row)
{
    return log2((double)(row->shape.rows * row->shape.value_heads));
}

static bool belongs(const struct panel *panel, const struct bench_row *row)
{
    return row->shape.kind == panel->first->kind && row->shape.tokens == panel->first->tokens;
}

static double to_x(const struct panel *panel, double log_work)
{
    return panel->x + LEFT + (PANEL_W - LEFT - RIGHT) * log_work / panel->most;
}

static double to_y(const struct panel *panel, double over_floor)
{
    const double clipped = fmin(fmax(over_floor, lowest), highest);
    return panel->y + TOP + (PANEL_H - TOP - BOTTOM) * (highest - clipped) / (highest - lowest);
}

static int label_of(struct panel *panel, const char *body)
{
    const char *label = bench_label(body);
    for (int i = 0; i < panel->label_count; i++)
        if (!strcmp(panel->labels[i], label)) return i;
    if (panel->label_count == MAX_LABELS) return MAX_LABELS - 1;
    panel->labels[panel->label_count] = label;
    return panel->label_count++;
}

static void print_frame(FILE *out, const struct panel *panel)
{
    fprintf(out, "<text x=\"%.0f\" y=\"%.0f\" font-weight=\"bold\">%s, T = %" PRId64 "</text>\n",
            panel->x + LEFT, panel->y + 14, panel->first->kind->name, panel->first->tokens);
    for (int tenth = 10; tenth <= 25; tenth += 5) {
        const double y = to_y(panel, tenth / 10.0);
        fprintf(out,
                "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>"
                "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.1f</text>\n",
                to_x(panel, 0), y, to_x(panel, panel->most), y, tenth == 10 ? "#000" : "#ddd",
                to_x(panel, 0) - 6, y + 4, tenth / 10.0);
    }
    for (int power = 0; power <= (int)panel->most; power += 2)
        fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%d</text>\n",
                to_x(panel, power), panel->y + PANEL_H - BOTTOM + 16, 1 << power);
    for (int i = 0; i < panel->label_count; i++)
        fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\" fill=\"%s\">%s</text>\n",
                to_x(panel, panel->most), panel->y + TOP + 12 + 14 * i, colors[i],
                panel->labels[i]);
}

// The next row of the same line, by work.
static const struct bench_row *next_on_line(const struct panel *panel, const struct bench_row *row)
{
    const struct bench_row *best = NULL;
    for (size_t i = 0; i < panel->rows->count; i++) {
        const struct bench_row *other = &panel->rows->rows[i];
        if (!belongs(panel, other) || strcmp(other->body, row->body) != 0 ||
            other->shape.value_heads != row->shape.value_heads || work(other) <= work(row))
            continue;
        if (!best || work(other) < work(best)) best = other;
    }
    return best;
}

static void print_panel(FILE *out, struct panel *panel)
{
    for (size_t i = 0; i < panel->rows->count; i++) {
        const struct bench_row *row = &panel->rows->rows[i];
        if (!belongs(panel, row)) continue;
        const char *color = colors[label_of(panel, row->body)];
        const struct bench_row *next = next_on_line(panel, row);
        const double x = to_x(panel, work(row)), y = to_y(panel, bench_over_floor(row));
        if (next)
            fprintf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n",
                    x, y, to_x(panel, work(next)), to_y(panel, bench_over_floor(next)), color);
        fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\" fill=\"%s\"/>\n", x, y, color);
        if (row->peer > 0)
            fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"none\" stroke=\"%s\"/>\n",
                    x, to_y(panel, row->peer), color);
    }
    print_frame(out, panel);
}

static bool first_of_panel(const struct bench_rows *rows, size_t index)
{
    const struct panel panel = {.rows = rows, .first = &rows->rows[index].shape};
    for (size_t i = 0; i < index; i++)
        if (belongs(&panel, &rows->rows[i])) return false;
    return true;
}

static void print_plot(FILE *out, const struct bench_rows *rows, const struct bench_device *device)
{
    int count = 0, place = 0;
    double most = 1;
    for (size_t i = 0; i < rows->count; i++) {
        count += first_of_panel(rows, i);
        most = fmax(most, work(&rows->rows[i]));
    }
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "font-family=\"sans-serif\" font-size=\"11\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
            "<text x=\"%d\" y=\"18\" font-size=\"14\">time over floor by work N*HV: %s, CC "
            "%d.%d, %d SMs%s%s</text>\n",
            PER_ROW * PANEL_W, 30 + (count + PER_ROW - 1) / PER_ROW * PANEL_H, LEFT, device->name,
            device->cc / 10, device->cc % 10, device->sm_count,
            device->pdl ? ", programmatic dependent launch" : "",
            device->soft ? " (soft device: times say nothing of a GPU)" : "");
    for (size_t i = 0; i < rows->count; i++) {
        if (!first_of_panel(rows, i)) continue;
        struct panel panel = {.rows = rows,
                              .first = &rows->rows[i].shape,
                              .x = place % PER_ROW * PANEL_W,
                              .y = 30 + place / PER_ROW * PANEL_H,
                              .most = most};
        print_panel(out, &panel);
        place++;
    }
    fprintf(out, "</svg>\n");
}

kda_status bench_write_plot(const char *path, const struct bench_rows *rows,
                            const struct bench_device *device, kda_error *err)
{
    return bench_write_text(path, rows, device, print_plot, err);
}
