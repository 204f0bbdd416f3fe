/*
 * What a route of `ragged` computes from the counts: who is kept, the runs of every movement, the batches.
 * The rank wire's part is in ragged_wire.c. SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/host/ragged_wire.h"
#include "kernels/host/table.h"
#include "kernels/host/verdict.h"
#include "transport/accept.h"

#include <string.h>

static const epx_route_notice_t *notice_of(const epx_k_ragged_layout_t *args, int32_t r)
{
    return epx_notice_of(args->notices, args->notice_stride, r);
}

/* One table of all virtual senders' counts. */
static void spread_notices(const epx_k_ragged_layout_t *args)
{
    int64_t share = (int64_t)args->shape->splits * args->shape->experts;
    for (int32_t r = 0; r < args->shape->ranks; r++)
        memcpy(args->counts + r * share, epx_notice_counts(notice_of(args, r)),
               (size_t)share * sizeof(*args->counts));
}

/* Accepts for all virtual owners and chunks. */
static void accept_all(const epx_k_ragged_layout_t *args)
{
    epx_rule_t rule = epx_rule_of(args->shape, args->order->chunks);
    int64_t entries = (int64_t)rule.ranks * rule.experts, valid_all = 0;
    for (int64_t i = 0; i < entries; i++)
        valid_all += args->counts[i];
    for (int32_t d = 0; d < rule.ranks; d++)
        for (int32_t c = 0; c < rule.waves; c++)
            epx_ragged_accept(&rule, d, c, valid_all, args->counts, args->accepted, args->scratch);
}

/* The walk over all experts in the order of a pass. cursor[s] is the next return row of sender s, at its
 * home. */
typedef struct walk {
    const epx_k_ragged_layout_t *args;
    int64_t *cursor; /* [S] */
    int32_t slot;    /* place of the expert among this rank's own, in order */
} walk_t;

/* What sender s has accepted at expert e, over its virtual ranks. */
static int64_t accepted_of(const epx_k_ragged_layout_t *args, int32_t s, int32_t e)
{
    const epx_shape_t *shape = args->shape;
    int64_t rows = 0;
    for (int32_t v = s * shape->splits; v < (s + 1) * shape->splits; v++)
        rows += args->accepted[(int64_t)v * shape->experts + e];
    return rows;
}

/* My assignments to entry i of the order, whose first goes to row `place` of rank d. */
static void set_send_run(const walk_t *walk, int32_t i, int32_t d, int64_t place)
{
    const epx_k_ragged_layout_t *args = walk->args;
    const epx_shape_t *shape = args->shape;
    int32_t e = args->order->expert[i];
    int64_t row = walk->cursor[shape->rank];

    args->send_runs[i] = (epx_run_t){
        .first = row, .row = place, .peer = d, .rows = (int32_t)accepted_of(args, shape->rank, e)};
    for (int32_t v = 0; v < shape->splits; v++) {
        args->first_row[(int64_t)v * shape->experts + e] = (int32_t)row;
        row += args->accepted[((int64_t)shape->rank * shape->splits + v) * shape->experts + e];
    }
}

/* Entry i of the order at its owner d: its rows begin at `row` of d's batch; returns the row behind them. */
static int64_t walk_expert(walk_t *walk, int32_t i, int32_t c, int32_t d, int64_t row)
{
    const epx_k_ragged_layout_t *args = walk->args;
    const epx_shape_t *shape = args->shape;
    int32_t e = args->order->expert[i], mine = d == shape->rank;
    int64_t begin = row;

    for (int32_t s = 0; s < shape->ranks; s++) {
        int64_t rows = accepted_of(args, s, e);
        if (s == shape->rank)
            set_send_run(walk, i, d, row);
        if (mine)
            args->return_runs[(int64_t)walk->slot * shape->ranks + s] =
                (epx_run_t){.first = row, .row = walk->cursor[s], .peer = s, .rows = (int32_t)rows};
        row += rows;
        walk->cursor[s] += rows;
    }
    if (mine) {
        int64_t at = (int64_t)c * args->local_experts_max + shape->real.local[e];
        args->start[at] = begin;
        args->count[at] = row - begin;
        args->verdict.head->kept += row - begin;
        walk->slot++;
    }
    return row;
}

/* A pair's experts; afterwards its return region is known, and on the rank wire its base at the receiver. */
static void walk_pair(walk_t *walk, int32_t c, int32_t d, int64_t *began)
{
    const epx_k_ragged_layout_t *args = walk->args;
    const epx_shape_t *shape = args->shape;
    int64_t align = shape->row_align, row = 0, q = (int64_t)c * shape->ranks + d;

    memcpy(began, walk->cursor, (size_t)shape->ranks * sizeof(*began));
    for (int32_t i = args->order->first[q]; i < args->order->first[q + 1]; i++)
        row = walk_expert(walk, i, c, d, (row + align - 1) / align * align);

    int64_t sent = walk->cursor[shape->rank] - began[shape->rank];
    args->home_start[q] = began[shape->rank];
    args->home_count[q] = sent;
    if (d != shape->rank)
        args->wave[c].sent_places += sent;
    else
        for (int32_t s = 0; s < shape->ranks; s++)
            args->wave[c].received_places += s == shape->rank ? 0 : walk->cursor[s] - began[s];
    if (args->rank_wire)
        epx_ragged_wire_pair(args, c, d, began, walk->cursor);
}

/* Experts of other waves, and those that got nothing, stand at the end of the rows before them. */
static void place_empty(const epx_k_ragged_layout_t *args, int32_t c)
{
    const epx_shape_t *shape = args->shape;
    int32_t experts = shape->real.first[shape->rank + 1] - shape->real.first[shape->rank];
    int64_t *start = args->start + (int64_t)c * args->local_experts_max, align = shape->row_align, end = 0;
    const int64_t *count = args->count + (int64_t)c * args->local_experts_max;
    for (int32_t l = 0; l < experts; l++) {
        if (count[l] == 0)
            start[l] = (end + align - 1) / align * align;
        end = start[l] + count[l];
    }
}

static void walk_all(const epx_k_ragged_layout_t *args)
{
    const epx_shape_t *shape = args->shape;
    int64_t batches = (int64_t)args->order->chunks * args->local_experts_max;
    walk_t walk = {.args = args, .cursor = args->scratch};

    memset(args->start, 0, (size_t)batches * sizeof(int64_t));
    memset(args->count, 0, (size_t)batches * sizeof(int64_t));
    memset(args->wave, 0, (size_t)args->order->chunks * sizeof(*args->wave));
    memset(walk.cursor, 0, (size_t)shape->ranks * sizeof(int64_t));
    args->verdict.head->kept = 0;
    for (int32_t c = 0; c < args->order->chunks; c++) {
        for (int32_t d = 0; d < shape->ranks; d++)
            walk_pair(&walk, c, d, walk.cursor + shape->ranks);
        place_empty(args, c);
    }

    int64_t routed = 0;
    const int32_t *mine = args->counts + (int64_t)shape->rank * shape->splits * shape->experts;
    for (int64_t i = 0; i < (int64_t)shape->splits * shape->experts; i++)
        routed += mine[i];
    args->verdict.head->routed = routed;
    args->verdict.head->dropped_sender = routed - walk.cursor[shape->rank];
}

/* Every assignment of this rank gets its return row, or none. */
static void place_assignments(const epx_k_ragged_layout_t *args)
{
    const epx_shape_t *shape = args->shape;
    int32_t most = shape->tokens_max * shape->top_k;
    int64_t tokens = notice_of(args, shape->rank)->tokens;

    for (int32_t v = 0; v < shape->splits; v++) {
        const int32_t *first_row = args->first_row + (int64_t)v * shape->experts;
        const int32_t *accepted =
            args->accepted + ((int64_t)shape->rank * shape->splits + v) * shape->experts;
        int64_t end = epx_virtual_first(v + 1, tokens, shape->splits) * shape->top_k;
        for (int64_t a = epx_virtual_first(v, tokens, shape->splits) * shape->top_k; a < end; a++) {
            int32_t e = args->expert[a];
            if (e < 0 || args->ordinal[a] >= accepted[e]) {
                args->place[a] = -1;
                continue;
            }
            int32_t row = first_row[e] + args->ordinal[a];
            args->place[a] = args->order->wave[e] * most + row;
            args->send[row] = (int32_t)a;
        }
    }
}

/* The counts of nobody: with them every run, batch and region is empty. */
static void die(const epx_k_ragged_layout_t *args, int32_t culprit)
{
    const epx_shape_t *shape = args->shape;
    const epx_route_notice_t *notice = notice_of(args, culprit);
    size_t entries = (size_t)shape->virtual_ranks * (size_t)shape->experts;
    memset(args->counts, 0, entries * sizeof(*args->counts));
    memset(args->accepted, 0, entries * sizeof(*args->accepted));
    walk_all(args);
    if (args->rank_wire)
        epx_ragged_wire_tokens(args, 0);
    epx_verdict_dead(&args->verdict, culprit == shape->rank ? epx_notice_status(notice) : EPX_ERR_PEER,
                     culprit, notice);
}

static void decide(const epx_k_ragged_layout_t *args)
{
    int64_t tokens = notice_of(args, args->shape->rank)->tokens;
    spread_notices(args);
    accept_all(args);
    walk_all(args);
    place_assignments(args);
    if (args->rank_wire)
        epx_ragged_wire_tokens(args, tokens);
    args->verdict.head->tokens = tokens;
    args->verdict.head->valid = 1;
}

epx_status_t epx_host_ragged_layout(const epx_k_ragged_layout_t *args, epx_stream_t stream)
{
    (void)stream;
    int32_t chunks = args->order->chunks;
    int32_t culprit =
        epx_notice_culprit(args->notices, args->notice_stride, args->shape->rank, args->shape->ranks);
    if (culprit >= 0)
        die(args, culprit);
    else
        decide(args);
    for (int32_t c = 0; c < chunks; c++)
        if (!args->rank_wire)
            args->wave[c].sent_rows = args->wave[c].sent_places;
    if (args->wave_report != NULL)
        memcpy(args->wave_report, args->wave, (size_t)chunks * sizeof(*args->wave));
    epx_verdict_done(&args->verdict);
    return EPX_OK;
}
