/*
 * pooled_wave on fabrics without loads and stores. SPDX-License-Identifier: Apache-2.0
 *
 * The segment has a mirror of itself behind it. Kernels store what is for another rank into the mirror, at
 * the offsets where it will stand there, but for the row: in the mirror things stand by receiver (open.c).
 * Every message has a shape that is known at open: a slab with its header and what is beside its rows; home,
 * the rows that came from there, with their kept bits. A part of it is one piece.
 *
 * When the mirror may be written again: out, depth waves later, after this rank's combine (dispatch_backward)
 * of the wave has seen every rank's word for it, which followed that rank's receipt of the slab. Home, when
 * its slot comes round again: after the dispatch (combine_backward) of that wave has seen every rank's word,
 * which followed the end of that rank's combine of the wave that had the slot before.
 */
#include "pooled_wave/internal.h"

static int is_out(const epx_pooled_wave_t *w)
{
    return w->move == EPX_MOVE_DISPATCH || w->move == EPX_MOVE_COMBINE_BACKWARD;
}

/* A part of slabs: mine to p, and p's to me. area: in the incoming side; bytes: of one row's entry. */
static void list_slabs(const epx_pooled_wave_t *w, epx_pieces_t *pieces, int64_t area, int64_t bytes)
{
    const epx_shape_t *shape = w->pooled->transport.env.shape;
    const int32_t *base = epx_pooled_tables(w->pooled).base;
    int32_t me = shape->rank;
    int64_t at = epx_pooled_incoming_offset(w, area), slab = w->pooled->dims.slab_rows * bytes;
    epx_pieces_part(pieces);
    for (int32_t p = 0; p < shape->ranks; p++) {
        if (p == me)
            continue;
        epx_pieces_send(pieces, p, w->pooled->map.mirror + at + p * slab, at + me * slab,
                        (base[p + 1] - base[p]) * bytes);
        epx_pieces_receive(pieces, p, at + p * slab, (base[me + 1] - base[me]) * bytes);
    }
}

/* One entry for each peer, by rank. */
static void list_blocks(const epx_pooled_wave_t *w, epx_pieces_t *pieces, int64_t at, int64_t bytes)
{
    const epx_shape_t *shape = w->pooled->transport.env.shape;
    epx_pieces_part(pieces);
    for (int32_t p = 0; p < shape->ranks; p++) {
        if (p == shape->rank)
            continue;
        epx_pieces_send(pieces, p, w->pooled->map.mirror + at + p * bytes, at + shape->rank * bytes, bytes);
        epx_pieces_receive(pieces, p, at + p * bytes, bytes);
    }
}

static void list_out(const epx_pooled_wave_t *w, epx_pieces_t *pieces)
{
    const epx_shape_t *shape = w->pooled->transport.env.shape;
    const epx_pooled_side_map_t *side = &w->pooled->map.side[w->side];
    list_blocks(w, pieces, epx_pooled_incoming_offset(w, side->header), w->pooled->dims.header_bytes);
    list_slabs(w, pieces, side->rows, shape->row_bytes);
    if (w->pooled->dims.sums)
        list_slabs(w, pieces, side->sum, sizeof(uint32_t));
    if (shape->origin)
        list_slabs(w, pieces, side->origin, sizeof(epx_origin_t));
    if (w->move == EPX_MOVE_DISPATCH && shape->aux_bytes > 0)
        list_slabs(w, pieces, side->aux, shape->aux_bytes);
    if (w->move == EPX_MOVE_COMBINE_BACKWARD)
        list_slabs(w, pieces, side->weight, sizeof(float));
}

/* What came from p goes home to p, and mine comes from there. */
static void list_returns(const epx_pooled_wave_t *w, epx_pieces_t *pieces, int64_t area, int64_t bytes)
{
    const epx_shape_t *shape = w->pooled->transport.env.shape;
    const int32_t *base = epx_pooled_tables(w->pooled).base;
    int32_t me = shape->rank;
    int64_t at = epx_pooled_home_offset(w, area, bytes), slab = w->pooled->dims.slab_rows * bytes;
    epx_pieces_part(pieces);
    for (int32_t p = 0; p < shape->ranks; p++) {
        if (p == me)
            continue;
        epx_pieces_send(pieces, p, w->pooled->map.mirror + at + p * slab, at + base[me] * bytes,
                        (base[me + 1] - base[me]) * bytes);
        epx_pieces_receive(pieces, p, at + base[p] * bytes, (base[p + 1] - base[p]) * bytes);
    }
}

static void list_home(const epx_pooled_wave_t *w, epx_pieces_t *pieces)
{
    const epx_pooled_map_t *map = &w->pooled->map;
    list_returns(w, pieces, map->home_rows, w->pooled->transport.env.shape->row_bytes);
    if (w->pooled->dims.sums)
        list_returns(w, pieces, map->home_sum, sizeof(uint32_t));
    if (w->move == EPX_MOVE_COMBINE)
        list_returns(w, pieces, map->home_kept, 1);
    else
        list_returns(w, pieces, map->home_dots, sizeof(float));
    if (w->pooled->dims.checks)
        list_blocks(w, pieces, epx_pooled_note_offset(w), 8);
}

epx_pieces_t epx_pooled_list_pieces(const epx_pooled_wave_t *w)
{
    epx_pooled_tables_t tables = epx_pooled_tables(w->pooled);
    epx_pieces_t pieces = epx_pieces_begin(tables.send, tables.receive);
    if (is_out(w))
        list_out(w, &pieces);
    else
        list_home(w, &pieces);
    return pieces;
}

int epx_pooled_leaves_rows(const epx_pooled_wave_t *w)
{
    const epx_pooled_dims_t *dims = &w->pooled->dims;
    return dims->staged && !dims->checks && !dims->sums && epx_reads_sources(&w->pooled->transport.env);
}

epx_rows_source_t epx_pooled_source(const epx_pooled_wave_t *w)
{
    const epx_shape_t *shape = w->pooled->transport.env.shape;
    const epx_pooled_map_t *map = &w->pooled->map;
    int out = is_out(w);
    int64_t at = out ? epx_pooled_incoming_offset(w, map->side[w->side].rows)
                     : epx_pooled_home_offset(w, map->home_rows, shape->row_bytes);
    epx_rows_source_t source = {.base = {.local = map->mirror + at,
                                         .bytes = shape->ranks * w->pooled->dims.slab_rows * shape->row_bytes,
                                         .unit = shape->row_bytes},
                                .rows = w->left,
                                .stride = shape->row_bytes,
                                .divide = out ? shape->columns : 1,
                                .index = epx_pooled_side(w, out ? map->list : map->to),
                                .runs = epx_pooled_static(w->pooled, out ? map->out_runs : map->back_runs),
                                .run_count = shape->ranks - 1}; /* the last is my own */
    epx_rows_source_begin(&source);
    return source;
}
