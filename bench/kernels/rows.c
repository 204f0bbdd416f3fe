/* Kernels that move rows or add them up. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <epx/kernels_ragged.h>

#include "bench/kernels/bench.h"
#include "tools/common/program.h"

/* Rows in device memory and the orders that they are wanted in. */
typedef struct rows {
    int64_t n, row_bytes; /* T * K rows */
    char *from, *to;      /* [n] rows each */
    int32_t *order;       /* [n] a random order of all rows */
    float *weights;       /* [n] */
    void **peers;         /* [2], both here: the two halves of `to` */
} rows_t;

static int32_t *random_order(kernels_bench_t *bench, int64_t n)
{
    int32_t *order = epx_tool_alloc((size_t)n, sizeof(*order));
    for (int64_t i = 0; i < n; i++)
        order[i] = (int32_t)i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = (int64_t)(bench_dice(bench) % (uint64_t)(i + 1));
        int32_t swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
    return order;
}

/* Random bf16 numbers of a moderate size: no launch is timed on zeros. */
static void *random_rows(kernels_bench_t *bench, int64_t rows, int64_t row_bytes)
{
    size_t block = 64u << 20, bytes = (size_t)(rows * row_bytes);
    uint16_t *host = epx_tool_alloc(block, 1);
    char *memory = bench_take(bench, bytes, NULL);
    for (size_t i = 0; i < block / 2; i++) {
        uint64_t bits = bench_dice(bench);
        host[i] = (uint16_t)((bits & 0x8000) | 0x3e00 | (bits >> 20 & 0x1ff));
    }
    for (size_t at = 0; at < bytes; at += block)
        bench->failed |= bench->device->copy(memory + at, host, bytes - at < block ? bytes - at : block,
                                             bench->stream) != EPX_OK;
    bench->failed |= bench->device->synchronize(bench->stream) != EPX_OK;
    free(host);
    return memory;
}

static rows_t make_rows(kernels_bench_t *bench)
{
    rows_t r = {.n = bench->tokens * bench->top_k, .row_bytes = bench->width * 2};
    r.from = random_rows(bench, r.n, r.row_bytes);
    r.to = bench_take(bench, (size_t)(r.n * r.row_bytes), NULL);
    int32_t *order = random_order(bench, r.n);
    r.order = bench_take(bench, (size_t)r.n * 4, order);
    float *weights = epx_tool_alloc((size_t)r.n, sizeof(*weights));
    for (int64_t i = 0; i < r.n; i++)
        weights[i] = (float)(bench_dice(bench) % 1000) * 1e-3f;
    r.weights = bench_take(bench, (size_t)r.n * 4, weights);
    void *peers[2] = {r.to, r.to + r.n / 2 * r.row_bytes};
    r.peers = bench_take(bench, sizeof(peers), peers);
    free(order), free(weights);
    return r;
}

/* ---- push ------------------------------------------------------------------------------------------------------- */

static epx_status_t push(kernels_bench_t *bench, void *context)
{
    return bench->kernels->push(context, bench->stream);
}

/* `rows` rows in `runs` runs that differ in length, to two peers in turn. */
static epx_k_push_t make_push(kernels_bench_t *bench, const rows_t *r, int64_t rows, int32_t runs)
{
    epx_run_t *run = epx_tool_alloc((size_t)runs, sizeof(*run));
    int64_t at[2] = {0, 0}, first = 0;
    for (int32_t i = 0; i < runs; i++) {
        int64_t end = rows * (i + 1) / runs, peer = runs > 1 ? i % 2 : 0;
        run[i] = (epx_run_t){
            .first = first, .row = at[peer], .peer = (int32_t)peer, .rows = (int32_t)(end - first)};
        at[peer] += end - first;
        first = end;
    }
    epx_k_push_t args = {.dst = r->peers,
                         .index = r->order,
                         .runs = bench_take(bench, (size_t)runs * sizeof(*run), run),
                         .run_count = runs,
                         .parts = 1,
                         .columns = (int32_t)bench->top_k};
    args.part[0] = (epx_part_t){.kind = EPX_PART_COPY,
                                .src = r->from,
                                .src_stride = r->row_bytes,
                                .divide = 1,
                                .dst_stride = r->row_bytes,
                                .bytes = r->row_bytes};
    free(run);
    return args;
}

static void report_push(kernels_bench_t *bench, const rows_t *r, const char *what, epx_k_push_t *args,
                        int64_t rows, double target)
{
    double bytes = (double)(rows * r->row_bytes);
    bench_line_t line = {.what = what,
                         .seconds = bench_time(bench, push, args, rows < 2000 ? 20 : 1),
                         .read = bytes,
                         .written = bytes,
                         .floor_s = bench_copy_floor(bench, bytes, bytes),
                         .target = target};
    bench_print(bench, &line);
}

/* Distinct experts for every token; fills chosen [tokens, K]. */
static void choose(kernels_bench_t *bench, int32_t *chosen, int64_t tokens)
{
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t k = 0; k < bench->top_k; k++) {
            int32_t e, again = 1;
            while (again) {
                e = (int32_t)(bench_dice(bench) % (uint64_t)bench->experts);
                again = 0;
                for (int64_t x = 0; x < k; x++)
                    again |= chosen[t * bench->top_k + x] == e;
                chosen[t * bench->top_k + k] = e;
            }
        }
    }
}

/* A dispatch of the assignment wire: every token's row to K experts. by_order: each row is read once. */
static epx_k_push_t make_dispatch(kernels_bench_t *bench, const rows_t *r, int by_order)
{
    int64_t K = bench->top_k, n = bench->tokens * K, row = 0;
    int32_t E = (int32_t)bench->experts, at = 0;
    int32_t *chosen = epx_tool_alloc((size_t)n, 4), *index = epx_tool_alloc((size_t)n, 4),
            *order = epx_tool_alloc((size_t)n, 4);
    epx_run_t *run = epx_tool_alloc((size_t)E, sizeof(*run));
    choose(bench, chosen, bench->tokens);
    for (int32_t e = 0; e < E; e++) {
        run[e] = (epx_run_t){.first = at, .row = row};
        for (int32_t a = 0; a < n; a++)
            if (chosen[a] == e)
                order[a] = at, index[at++] = a, run[e].rows++;
        row += run[e].rows;
    }
    epx_k_push_t args = make_push(bench, r, n, 1);
    args.index = bench_take(bench, (size_t)n * 4, index);
    args.runs = bench_take(bench, (size_t)E * sizeof(*run), run);
    args.run_count = E;
    args.part[0].divide = (int32_t)K;
    if (by_order) {
        args.order = bench_take(bench, (size_t)n * 4, order);
        args.order_tokens = bench_take(bench, sizeof(bench->tokens), &bench->tokens);
    }
    free(chosen), free(index), free(order), free(run);
    return args;
}

static void pushes(kernels_bench_t *bench, const rows_t *r)
{
    char what[80];
    int64_t half = r->n / 2 * 2;
    epx_k_push_t args = make_push(bench, r, half, 2);
    report_push(bench, r, "push, T * K rows in random order, 2 runs", &args, half, 0.9);
    args = make_push(bench, r, half, 2);
    args.parts = 3;
    args.part[1] = (epx_part_t){.kind = EPX_PART_COPY,
                                .src = r->weights,
                                .src_stride = 4,
                                .divide = 1,
                                .dst_stride = 4,
                                .bytes = 4,
                                .dst_offset = r->n / 2 * r->row_bytes - 4 * r->n};
    args.part[2] = (epx_part_t){.kind = EPX_PART_ORIGIN,
                                .divide = 1,
                                .dst_stride = 12,
                                .dst_offset = r->n / 2 * r->row_bytes - 20 * r->n};
    report_push(bench, r, "  with weight and origin beside", &args, half, 0.9);
    args = make_push(bench, r, r->n, (int32_t)bench->experts);
    args.part[0].divide = (int32_t)bench->top_k;
    report_push(bench, r, "  every row K times, a run for each expert", &args, r->n, 0);
    args = make_dispatch(bench, r, 0);
    report_push(bench, r, "push, every token's row to its K experts", &args, r->n, 0);
    args = make_dispatch(bench, r, 1);
    report_push(bench, r, "  each row read once", &args, r->n, 0);
    args = make_push(bench, r, r->n, 1);
    report_push(bench, r, "  all in one run", &args, r->n, 0);
    args = make_push(bench, r, bench->tokens, 2);
    report_push(bench, r, "push, T rows in random order", &args, bench->tokens, 0.9);
    args = make_push(bench, r, 256, 2);
    report_push(bench, r, "push, 256 rows", &args, 256, 0);
    static const int budgets[] = {8, 16, 24, 32, 64};
    args = make_push(bench, r, half, 2);
    for (size_t i = 0; i < sizeof(budgets) / sizeof(budgets[0]); i++) {
        args.units = budgets[i];
        snprintf(what, sizeof(what), "push, T * K rows, grids for %d multiprocessors", budgets[i]);
        report_push(bench, r, what, &args, half, 0);
    }
}

/* ---- expansion -------------------------------------------------------------------------------------------------- */

static epx_status_t scatter(kernels_bench_t *bench, void *context)
{
    return bench->kernels->scatter(context, bench->stream);
}

static epx_status_t gather(kernels_bench_t *bench, void *context)
{
    return bench->kernels->gather(context, bench->stream);
}

/* What a rank with half of the experts gets from two ranks: each token's wire row once, wanted by its
 * experts. */
typedef struct expansion {
    int64_t wire_rows, places;
    int32_t experts;
    int64_t *start, *count;          /* [experts] */
    int32_t *index;                  /* [places] wire row of each place */
    int32_t *first, *entries, *list; /* of each wire row */
} expansion_t;

static expansion_t make_expansion(kernels_bench_t *bench)
{
    int64_t tokens = 2 * bench->tokens, K = bench->top_k, at = 0;
    expansion_t x = {.experts = (int32_t)(bench->experts / 2)};
    int32_t *chosen = epx_tool_alloc((size_t)(tokens * K), 4), *wire = epx_tool_alloc((size_t)tokens, 4);
    int64_t *start = epx_tool_alloc((size_t)x.experts, 8), *count = epx_tool_alloc((size_t)x.experts, 8);
    int64_t *next = epx_tool_alloc((size_t)x.experts, 8);
    choose(bench, chosen, tokens);
    for (int64_t t = 0; t < tokens; t++) {
        int mine = 0;
        for (int64_t k = 0; k < K; k++)
            if (chosen[t * K + k] < x.experts)
                count[chosen[t * K + k]]++, mine = 1;
        wire[t] = (int32_t)x.wire_rows;
        x.wire_rows += mine;
    }
    for (int32_t e = 0; e < x.experts; e++)
        start[e] = next[e] = x.places, x.places += count[e];
    int32_t *index = epx_tool_alloc((size_t)x.places, 4), *list = epx_tool_alloc((size_t)x.places, 4);
    int32_t *first = epx_tool_alloc((size_t)x.wire_rows, 4),
            *entries = epx_tool_alloc((size_t)x.wire_rows, 4);
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t k = 0; k < K; k++) {
            int32_t e = chosen[t * K + k];
            if (e >= x.experts)
                continue;
            if (entries[wire[t]]++ == 0)
                first[wire[t]] = (int32_t)at;
            list[at++] = (int32_t)next[e];
            index[next[e]++] = wire[t];
        }
    }
    x.start = bench_take(bench, (size_t)x.experts * 8, start),
    x.count = bench_take(bench, (size_t)x.experts * 8, count);
    x.index = bench_take(bench, (size_t)x.places * 4, index),
    x.list = bench_take(bench, (size_t)x.places * 4, list);
    x.first = bench_take(bench, (size_t)x.wire_rows * 4, first);
    x.entries = bench_take(bench, (size_t)x.wire_rows * 4, entries);
    free(chosen), free(wire), free(start), free(count), free(next), free(index), free(list), free(first),
        free(entries);
    return x;
}

static uint64_t *no_turns(kernels_bench_t *bench)
{
    const uint64_t zero[EPX_TURNS] = {0};
    return bench_take(bench, sizeof(zero), zero);
}

static void expansions(kernels_bench_t *bench, const rows_t *r, const expansion_t *x)
{
    int64_t start = 0, count = x->wire_rows;
    epx_k_scatter_t args = {.rows = {bench_take(bench, 8, &start), bench_take(bench, 8, &count), 1},
                            .first = x->first,
                            .count = x->entries,
                            .list = x->list,
                            .src = r->from,
                            .dst = r->to,
                            .src_stride = r->row_bytes,
                            .dst_stride = r->row_bytes,
                            .bytes = r->row_bytes,
                            .turns = no_turns(bench)};
    epx_k_gather_t other = {.rows = {x->start, x->count, x->experts},
                            .index = x->index,
                            .src = r->from,
                            .dst = r->to,
                            .src_stride = r->row_bytes,
                            .dst_stride = r->row_bytes,
                            .bytes = r->row_bytes};
    double read = (double)(x->wire_rows * r->row_bytes), written = (double)(x->places * r->row_bytes);
    bench_line_t line = {.what = "scatter, wire rows to grouped order",
                         .seconds = bench_time(bench, scatter, &args, 1),
                         .read = read,
                         .written = written,
                         .floor_s = bench_copy_floor(bench, read, written),
                         .target = 0.9};
    bench_print(bench, &line);
    line.what = "  against a fill of what is written";
    line.floor_s = bench_fill_floor(bench, written);
    line.target = 0;
    bench_print(bench, &line);
    uint64_t *turns = args.turns;
    args.turns = NULL;
    line.what = "  pieces dealt out, not drawn";
    line.seconds = bench_time(bench, scatter, &args, 1);
    line.floor_s = bench_copy_floor(bench, read, written);
    bench_print(bench, &line);
    args.turns = turns;
    args.src_stride = 0;
    line.floor_s = bench_fill_floor(bench, written);
    line.what = "  writes alone: one row to all places";
    line.seconds = bench_time(bench, scatter, &args, 1);
    line.read = 0;
    bench_print(bench, &line);
    line.read = read;
    line.what = "gather, the same rows by place";
    line.seconds = bench_time(bench, gather, &other, 1);
    line.floor_s = bench_copy_floor(bench, read, written);
    bench_print(bench, &line);
}

static epx_status_t send_home(kernels_bench_t *bench, void *context)
{
    return bench->kernels->ragged_return(context, bench->stream);
}

static void reductions(kernels_bench_t *bench, const rows_t *r, const expansion_t *x)
{
    epx_run_t run[2] = {
        {.first = 0, .row = 0, .peer = 0, .rows = (int32_t)(x->wire_rows / 2)},
        {.first = x->wire_rows / 2, .row = 0, .peer = 1, .rows = (int32_t)(x->wire_rows - x->wire_rows / 2)}};
    int64_t rows[2] = {run[0].rows, run[1].rows};
    epx_k_ragged_return_t args = {.dst = r->peers,
                                  .dst_stride = r->row_bytes,
                                  .sum_offset = -1,
                                  .runs = bench_take(bench, sizeof(run), run),
                                  .rows = bench_take(bench, sizeof(rows), rows),
                                  .run_count = 2,
                                  .first = x->first,
                                  .count = x->entries,
                                  .list = x->list,
                                  .weights = r->weights,
                                  .width = (int32_t)bench->width,
                                  .row_type = EPX_BF16,
                                  .src = r->from,
                                  .row_bytes = r->row_bytes};
    double read = (double)(x->places * r->row_bytes), written = (double)(x->wire_rows * r->row_bytes);
    bench_line_t line = {.what = "ragged_return, grouped rows to weighted partial sums",
                         .seconds = bench_time(bench, send_home, &args, 1),
                         .read = read,
                         .written = written,
                         .floor_s = bench_copy_floor(bench, read, written),
                         .target = 0.85};
    bench_print(bench, &line);
}

/* ---- sums ------------------------------------------------------------------------------------------------------- */

static epx_status_t combine(kernels_bench_t *bench, void *context)
{
    return bench->kernels->combine(context, bench->stream);
}

static void combines(kernels_bench_t *bench, const rows_t *r)
{
    epx_k_combine_t args = {.tokens = bench->tokens,
                            .columns = (int32_t)bench->top_k,
                            .width = (int32_t)bench->width,
                            .row_type = EPX_BF16,
                            .out_type = EPX_BF16,
                            .weights = r->weights,
                            .place = r->order,
                            .lo = 0,
                            .hi = r->n,
                            .rows = r->from,
                            .row_stride = r->row_bytes,
                            .acc = bench_take(bench, (size_t)(bench->tokens * bench->width) * 4, NULL),
                            .out = r->to,
                            .first = 1,
                            .last = 1};
    double read = (double)(r->n * r->row_bytes), written = (double)(bench->tokens * r->row_bytes);
    bench_line_t line = {.what = "combine, K rows of a token in random places",
                         .seconds = bench_time(bench, combine, &args, 1),
                         .read = read,
                         .written = written,
                         .floor_s = bench_copy_floor(bench, read, written),
                         .target = 0.85};
    bench_print(bench, &line);
    args.columns = 2;
    line = (bench_line_t){.what = "combine, two rows of a token",
                          .seconds = bench_time(bench, combine, &args, 1),
                          .read = 2 * written,
                          .written = written,
                          .floor_s = bench_copy_floor(bench, 2 * written, written),
                          .target = 0.85};
    bench_print(bench, &line);
    args.columns = (int32_t)bench->top_k;
    args.hi = r->n / 2, args.last = 0;
    line = (bench_line_t){.what = "combine, first of two waves, sums kept in fp32",
                          .seconds = bench_time(bench, combine, &args, 1),
                          .read = read / 2,
                          .written = 2 * written,
                          .floor_s = bench_copy_floor(bench, read / 2, 2 * written)};
    bench_print(bench, &line);
    args.tokens = 128, args.hi = r->n, args.last = 1;
    line = (bench_line_t){.what = "combine, T = 128",
                          .seconds = bench_time(bench, combine, &args, 20),
                          .read = read / (double)bench->tokens * 128,
                          .written = written / (double)bench->tokens * 128};
    bench_print(bench, &line);
}

static epx_status_t scale_dot(kernels_bench_t *bench, void *context)
{
    return bench->kernels->scale_dot(context, bench->stream);
}

static void gradients(kernels_bench_t *bench, const rows_t *r, const expansion_t *x)
{
    /* Thirds of the rows: dout, y, dy. */
    int64_t n = r->n / 2, start = 0;
    epx_k_scale_dot_t args = {.rows = {bench_take(bench, 8, &start), bench_take(bench, 8, &n), 1},
                              .weight = r->weights,
                              .width = (int32_t)bench->width,
                              .row_type = EPX_BF16,
                              .dout = r->from,
                              .y = r->from + n * r->row_bytes,
                              .dy = r->to,
                              .dot = bench_take(bench, (size_t)r->n * 4, NULL)};
    double bytes = (double)(n * r->row_bytes);
    (void)x;
    bench_line_t line = {.what = "scale_dot, half as many rows",
                         .seconds = bench_time(bench, scale_dot, &args, 1),
                         .read = 2 * bytes,
                         .written = bytes,
                         .floor_s = bench_copy_floor(bench, 2 * bytes, bytes)};
    bench_print(bench, &line);
}

void bench_rows(kernels_bench_t *bench)
{
    rows_t r = make_rows(bench);
    expansion_t x = make_expansion(bench);
    pushes(bench, &r);
    if (x.wire_rows <= r.n && x.places <= r.n) {
        expansions(bench, &r, &x);
        reductions(bench, &r, &x);
    }
    combines(bench, &r);
    gradients(bench, &r, &x);
    bench->device->release(r.from, (size_t)(r.n * r.row_bytes));
    bench->device->release(r.to, (size_t)(r.n * r.row_bytes));
}
