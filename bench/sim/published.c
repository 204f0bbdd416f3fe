/*
 * Published figures beside predictions of them. SPDX-License-Identifier: Apache-2.0
 *
 * The figures are of one job on one GB200 NVL72 rack (64 GPUs): marin-community/marin, pull request 8549
 * where nothing else is said. Two of them chose the two numbers of the default routing and prove nothing; all
 * others were not fitted to anything.
 */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/parallel.h"
#include "bench/sim/report.h"
#include "src/transport/accept.h"
#include "tools/common/program.h"
#include "tools/common/table.h"
#include "tools/common/terminal.h"
#include "train/flops.h"

/* What is predicted; a value over the samples, or one number. */
typedef struct predicted {
    double mean, deviation; /* deviation NaN: it is one number */
} predicted_t;

/* All that is counted for the table. */
typedef struct counted {
    epx_sim_point_t hero[4]; /* defaults; waterfill at 1.05, in two chunks and in one; senders 1.05 with
                                receivers 1.33 */
    epx_sim_point_t distant; /* sequences of 262,144 over four ranks */
    predicted_t cells;
} counted_t;

enum { HERO, WATERFILL, WATERFILL_WHOLE, UNEVEN, POINTS };
enum { POOLED, RAGGED };

/* ---- fixed cells --------------------------------------------------------------------------------------------------- */

typedef struct cells {
    epx_sim_source_t source;
    epx_rule_t rule;
    epx_owners_t owners;
    atomic_llong routed, dropped;
} cells_t;

static void count_cells(void *context, int32_t rank, void *scratch)
{
    cells_t *cells = context;
    const epx_drops_routing_t *routing = &cells->source.routing;
    int64_t places = routing->tokens_max * routing->top_k, *gate = scratch;
    int32_t *ids = (int32_t *)(void *)(gate + routing->experts), *wave = ids + places, *slot = wave + places;
    epx_pooled_counts_t counts = {0};
    int64_t tokens = routing->ids(routing->context, rank, ids);
    epx_pooled_gate1(&cells->rule, ids, tokens, routing->top_k, wave, slot, gate, &counts);
    atomic_fetch_add(&cells->routed, counts.routed);
    atomic_fetch_add(&cells->dropped, counts.dropped);
}

/*
 * An older transport of that job gave each (sender, expert) its own places. That is pooled_wave's first gate
 * with one wave, where every expert is a destination of its own.
 */
static predicted_t run_cells(const epx_sim_settings_t *s, const epx_sim_input_t *input, double factor)
{
    int32_t experts = (int32_t)s->shape.model.experts;
    int32_t *table = epx_tool_alloc(3 * (size_t)experts + 1, sizeof *table), *zero = table + 2 * experts + 1;
    double *shares = epx_tool_alloc((size_t)input->samples, sizeof *shares);
    cells_t cells = {.owners = {experts, experts, table, zero, table, table}};
    for (int32_t e = 0; e <= experts; e++)
        table[e] = e;
    cells.rule = (epx_rule_t){.ranks = experts,
                              .experts = experts,
                              .top_k = (int32_t)s->shape.model.top_k,
                              .assignments_max = s->shape.tokens * s->shape.model.top_k,
                              .cf = factor,
                              .cs = factor,
                              .waves = 1,
                              .owners = &cells.owners};
    size_t bytes = (size_t)experts * sizeof(int64_t) +
                   3 * (size_t)(s->shape.tokens * s->shape.model.top_k) * sizeof(int32_t);
    for (int32_t i = 0; i < input->samples; i++) {
        epx_progress("fixed cells: sample %d of %d", i + 1, input->samples);
        atomic_store(&cells.routed, 0);
        atomic_store(&cells.dropped, 0);
        epx_sim_source_open(&cells.source, input, i, 0);
        epx_parallel((int32_t)s->threads, (int32_t)s->shape.ranks, count_cells, &cells, bytes);
        epx_sim_source_close(&cells.source);
        shares[i] = (double)atomic_load(&cells.dropped) / (double)atomic_load(&cells.routed);
    }
    epx_sim_spread_t spread = epx_sim_spread(shares, input->samples);
    free(shares);
    free(table);
    return (predicted_t){spread.mean, spread.deviation};
}

/* ---- counting ----------------------------------------------------------------------------------------------------- */

/* pooled_wave, then ragged, with these factors. */
static int make_point(const epx_sim_settings_t *s, double receivers, double senders, int32_t accept,
                      int64_t waves, epx_sim_point_t *point)
{
    point->settings = *s;
    epx_sim_settings_t *own = &point->settings;
    own->transport_count = 2;
    own->transport[0] = POOLED;
    own->transport[1] = RAGGED;
    own->accept_count = 1;
    own->accept[0] = accept;
    own->capacity_factor = receivers;
    own->sender_factor = senders;
    own->waves = waves;
    own->overflow = 0;
    own->recompute = 1; /* that job makes its forward products again */
    int rc = epx_sim_cases_make(own);
    return rc == EPX_GO_ON ? EPX_EXIT_OK : rc;
}

static int count_all(const epx_sim_settings_t *s, counted_t *counted)
{
    epx_sim_input_t input;
    epx_sim_settings_t distant = *s;
    distant.shape.ranks = 16;
    distant.shape.context_parallel = 4;
    distant.shape.model.sequence = 262144;
    int rc = make_point(s, 1.15, 1.15, 0, 0, &counted->hero[HERO]);
    if (rc == EPX_EXIT_OK)
        rc = make_point(s, 1.05, 1.05, 1, 0, &counted->hero[WATERFILL]);
    if (rc == EPX_EXIT_OK)
        rc = make_point(s, 1.05, 1.05, 1, 1, &counted->hero[WATERFILL_WHOLE]);
    if (rc == EPX_EXIT_OK)
        rc = make_point(s, 1.33, 1.05, 0, 0, &counted->hero[UNEVEN]);
    if (rc == EPX_EXIT_OK)
        rc = make_point(&distant, 1.15, 1.15, 0, 0, &counted->distant);
    if (rc == EPX_EXIT_OK)
        rc = epx_sim_points_run(counted->hero, POINTS);
    if (rc == EPX_EXIT_OK)
        rc = epx_sim_points_run(&counted->distant, 1);
    if (rc == EPX_EXIT_OK)
        rc = epx_sim_open_input(&counted->hero[HERO].settings, &input);
    if (rc == EPX_EXIT_OK)
        counted->cells = run_cells(s, &input, 1.3);
    epx_progress_clear();
    return rc;
}

/* ---- the table ----------------------------------------------------------------------------------------------------- */

static predicted_t one(double value) { return (predicted_t){value, NAN}; }

static predicted_t drops(const epx_sim_result_t *result)
{
    return (predicted_t){result->drop_spread.mean, result->drop_spread.deviation};
}

static const epx_sim_result_t *of(const counted_t *c, int point, int transport)
{
    return &c->hero[point].result[transport];
}

static epx_flops_t hero_flops(const counted_t *c)
{
    return epx_flops_per_token(&c->hero[HERO].settings.shape.model);
}

static double forward_flops(const counted_t *c)
{
    epx_flops_t flops = hero_flops(c);
    return flops.routed + flops.rest + flops.scores;
}

static predicted_t forward(const counted_t *c) { return one(forward_flops(c) * 1e-9); }
static predicted_t both_passes(const counted_t *c) { return one(3 * forward_flops(c) * 1e-9); }
static predicted_t mfu_of_rate(const counted_t *c)
{
    epx_flops_t flops = hero_flops(c);
    return one(100 * epx_flops_mfu(&flops, 244738.0 / 64, 2.5e15));
}
static predicted_t all_rows(const counted_t *c)
{
    const epx_sim_shape_t *shape = &c->hero[HERO].settings.shape;
    return one((double)(shape->tokens * shape->model.top_k * epx_sim_row_bytes(shape)) * 1e-9);
}
static predicted_t padded(const counted_t *c) { return one(of(c, HERO, POOLED)->cost.transfer_bytes * 1e-9); }

static predicted_t percent(predicted_t share)
{
    return (predicted_t){100 * share.mean, 100 * share.deviation};
}
static predicted_t pooled_drops(const counted_t *c) { return percent(drops(of(c, HERO, POOLED))); }
static predicted_t ragged_drops(const counted_t *c) { return percent(drops(of(c, HERO, RAGGED))); }
static predicted_t waterfill_drops(const counted_t *c) { return percent(drops(of(c, WATERFILL, RAGGED))); }
static predicted_t whole_drops(const counted_t *c) { return percent(drops(of(c, WATERFILL_WHOLE, RAGGED))); }
static predicted_t uneven_drops(const counted_t *c) { return percent(drops(of(c, UNEVEN, POOLED))); }
static predicted_t cell_drops(const counted_t *c) { return percent(c->cells); }
static predicted_t distant_pooled(const counted_t *c) { return percent(drops(&c->distant.result[POOLED])); }
static predicted_t distant_ragged(const counted_t *c) { return percent(drops(&c->distant.result[RAGGED])); }
static predicted_t distant_mfu(const counted_t *c) { return one(100 * c->distant.result[POOLED].cost.mfu); }

static predicted_t ragged_exchange(const counted_t *c) { return one(of(c, HERO, RAGGED)->cost.exchange_s); }
static predicted_t pooled_exchange(const counted_t *c) { return one(of(c, HERO, POOLED)->cost.exchange_s); }
static predicted_t ragged_exposed(const counted_t *c) { return one(of(c, HERO, RAGGED)->cost.exposed_s); }
static predicted_t pooled_exposed(const counted_t *c) { return one(of(c, HERO, POOLED)->cost.exposed_s); }
static predicted_t ragged_step(const counted_t *c) { return one(of(c, HERO, RAGGED)->cost.step_s); }
static predicted_t ragged_mfu(const counted_t *c) { return one(100 * of(c, HERO, RAGGED)->cost.mfu); }
static predicted_t pooled_mfu(const counted_t *c) { return one(100 * of(c, HERO, POOLED)->cost.mfu); }
static predicted_t link_rate(const counted_t *c)
{
    const double *value = c->hero[HERO].settings.machine.value;
    return one(value[EPX_LINK_BYTES] * value[EPX_LINK_SHARE] * 1e-9);
}
static predicted_t memory_apart(const counted_t *c)
{
    return one((epx_sim_memory_bytes(of(c, HERO, POOLED)) - epx_sim_memory_bytes(of(c, HERO, RAGGED))) /
               (1 << 30));
}

static const struct {
    const char *what, *unit;
    double low, high; /* as published */
    int fitted;
    predicted_t (*predict)(const counted_t *counted);
    const char *note;
} rows[] = {
    {"forward pass of a token", "GFLOP", 49.9, 49.9, 0, forward, ""},
    {"forward and backward", "GFLOP", 149.7, 149.7, 0, both_passes, ""},
    {"MFU of 244,738 tokens/s", "%", 22.90, 22.90, 0, mfu_of_rate, ""},
    {"a transfer with every row", "GB", 3.22, 3.22, 0, all_rows, ""},
    {"a padded transfer", "GB", 3.71, 3.71, 0, padded, "pooled_wave"},
    {"drops, pooled_wave 1.15", "%", 2.67, 2.67, 1, pooled_drops, "chose alpha"},
    {"drops, ragged 1.15", "%", 0.018, 0.018, 1, ragged_drops, "chose sigma"},
    {"drops, waterfill 1.05", "%", 0.5, 0.8, 0, waterfill_drops, "issue 8311, pull request 8320"},
    {"drops, waterfill 1.05, one chunk", "%", 0.5, 0.8, 0, whole_drops, "how many chunks is not said"},
    {"drops, senders 1.05, receivers 1.33", "%", 2.41, 2.41, 0, uneven_drops,
     "of another state of the router"},
    {"drops, fixed cells 1.3", "%", 6.6, 7.1, 0, cell_drops, "issue 8077: another shape, 192 experts"},
    {"drops, 262,144 tokens, EP16, pooled_wave", "%", 18, 18, 0, distant_pooled,
     "which transport is not said"},
    {"drops, 262,144 tokens, EP16, ragged", "%", 18, 18, 0, distant_ragged, "which transport is not said"},
    {"MFU, 262,144 tokens, EP16", "%", 8.78, 8.78, 0, distant_mfu, ""},
    {"kernels' rate on the link", "GB/s", 404, 431, 0, link_rate,
     "the constants' link_bytes_per_s x link_share"},
    {"transport of a step, ragged", "s", 1.60, 1.60, 0, ragged_exchange, ""},
    {"transport of a step, pooled_wave", "s", 2.23, 2.23, 0, pooled_exchange, ""},
    {"exposed of it, ragged", "s", 1.50, 1.50, 0, ragged_exposed, ""},
    {"exposed of it, pooled_wave", "s", 1.83, 1.83, 0, pooled_exposed, ""},
    {"step, ragged", "s", 17.2, 17.2, 0, ragged_step, "products and exchange alone, see docs"},
    {"MFU, ragged", "%", 22.87, 22.87, 0, ragged_mfu, "likewise"},
    {"MFU, pooled_wave", "%", 22.71, 22.71, 0, pooled_mfu, "likewise"},
    {"memory, pooled_wave above ragged", "GiB", 12.0, 12.0, 0, memory_apart,
     "their peak is of the whole job"},
};
enum { ROWS = sizeof rows / sizeof *rows };

/* Relative to the nearest published value; 0 inside their range. */
static double error_of(int row, double value)
{
    double low = rows[row].low, high = rows[row].high;
    return value < low ? value / low - 1 : value > high ? value / high - 1 : 0;
}

static void json_rows(const counted_t *counted, epx_json_t *json)
{
    epx_json_array(json, "published");
    for (int i = 0; i < ROWS; i++) {
        predicted_t predicted = rows[i].predict(counted);
        epx_json_object(json, NULL);
        epx_json_text(json, "what", rows[i].what);
        epx_json_text(json, "unit", rows[i].unit);
        epx_json_real(json, "published_low", rows[i].low);
        epx_json_real(json, "published_high", rows[i].high);
        epx_json_real(json, "predicted", predicted.mean);
        epx_json_real(json, "deviation", predicted.deviation);
        epx_json_real(json, "error", error_of(i, predicted.mean));
        epx_json_bool(json, "fitted", rows[i].fitted);
        epx_json_text(json, "note", rows[i].note);
        epx_json_close(json);
    }
    epx_json_close(json);
}

static void print_rows(const counted_t *counted)
{
    static const epx_column_t columns[] = {{"figure", 0},    {"unit", 0},  {"published", 1}, {"predicted", 1},
                                           {"deviation", 1}, {"error", 1}, {"", 0}};
    epx_table_t *table = epx_table_new(columns, sizeof columns / sizeof *columns);
    for (int i = 0; i < ROWS; i++) {
        predicted_t predicted = rows[i].predict(counted);
        epx_table_cell(table, "%s", rows[i].what);
        epx_table_cell(table, "%s", rows[i].unit);
        if (rows[i].high > rows[i].low)
            epx_table_cell(table, "%g to %g", rows[i].low, rows[i].high);
        else
            epx_table_cell(table, "%g", rows[i].low);
        epx_table_cell(table, "%.4g", predicted.mean);
        if (isnan(predicted.deviation))
            epx_table_cell(table, "%s", "");
        else
            epx_table_cell(table, "%.3f", predicted.deviation);
        if (rows[i].fitted)
            epx_table_cell(table, "fitted");
        else
            epx_table_cell(table, "%+.1f%%", 100 * error_of(i, predicted.mean));
        epx_table_cell(table, "%s", rows[i].note);
    }
    epx_table_print(table, stdout, 2);
    epx_table_free(table);
}

int epx_sim_published_run(const epx_sim_settings_t *s, epx_json_t *json)
{
    epx_sim_shape_t hero;
    epx_sim_shape_preset("hero", &hero);
    if (strcmp(s->shape.name, "hero") != 0 || memcmp(&hero.model, &s->shape.model, sizeof hero.model) != 0 ||
        hero.ranks != s->shape.ranks || hero.tokens != s->shape.tokens ||
        s->routing.kind != EPX_SIM_BY_SEQUENCE)
        return epx_tool_fail(EPX_EXIT_USAGE, "the published figures are of the hero shape with a router that "
                                             "dirichlet stands for: leave out what changes them");
    counted_t *counted = epx_tool_alloc(1, sizeof *counted);
    int rc = count_all(s, counted);
    if (rc == EPX_EXIT_OK) {
        epx_sim_report_begin(s, counted->hero[HERO].result[POOLED].samples, json);
        if (json != NULL)
            json_rows(counted, json);
        else
            print_rows(counted);
    }
    epx_sim_points_free(counted->hero, POINTS);
    epx_sim_points_free(&counted->distant, 1);
    free(counted);
    return rc;
}
