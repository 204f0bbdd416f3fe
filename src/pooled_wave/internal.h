/*
 * Insides of pooled_wave. SPDX-License-Identifier: Apache-2.0
 *
 * Home and incoming rows are numbered as kernels_pooled_wave.h says. Memory, everything laid out by pure
 * functions of the shape (map.c):
 *
 * - segment: per (lane, slot) incoming slabs (apart for gradients with backward=recompute); per (lane, home
 *   slot) what comes home. There is a home slot for every wave, so that the sums are made in one go, behind
 * the last wave. Not so (by_wave) where waves are many beside the depth, which is asked for to save memory;
 * where only a route says how many there are; and where staged rows stand otherwise than they are numbered.
 * There are `depth` home slots then, and every wave adds to sums in memory.
 * - batch: per (lane, slot) rows that land in the library's own memory. Indexed batches are the incoming
 * slabs, with `from` as their index.
 * - scratch: static tables; per (lane, slot) the way from incoming rows to the batch and back, and what a
 * wave sends; per lane the rest.
 * - plan: head, validity of the routing, weights, places, kept bits; or, with extra_wave, counts instead of
 *   places.
 *
 * A rank's slab to itself holds no rows where the batch is a copy anyway (`own_rows`): the finish takes them
 * from x, which the caller leaves alone until then, and they move once instead of twice. On the way home it
 * is so with the rows of the wave that all sums are made behind: they are read where the caller has written
 * them.
 *
 * Invariants of a slot, on every rank:
 *
 * - I1: Incoming slabs of a wave are read only by its dispatch (combine_backward) finish, and, indexed, by
 * the caller until its combine; they are free for the sender's next wave of that slot once this rank has
 * posted its combine (dispatch_backward) start.
 * - I2: What comes home is read only by the combine (dispatch_backward) finishes of its pass; peers write
 * there again only after this rank has posted a later dispatch (combine_backward) start: of a later pass, or
 * by_wave of the next wave of that slot.
 * - I3: So every receive buffer may be filled with the canary right after it was read, before the next post.
 * - I4: `kept`, `start`, `count` of a slot hold from the finish that computed them to the start of the way
 * back, `to` to its finish; `list` from the start to the finish of the way out; the caller's x and y
 * likewise.
 */
#ifndef EPX_POOLED_WAVE_INTERNAL_H
#define EPX_POOLED_WAVE_INTERNAL_H

#include <epx/kernels_pooled_wave.h>

#include "pooled_wave/pooled_wave.h"
#include "transport/common.h"

/* Numbers that follow from the shape; equal on all ranks. */
typedef struct epx_pooled_dims {
    int64_t home_rows,
        slab_rows;           /* see kernels_pooled_wave.h; slab_rows is that of the largest destination */
    int64_t rows_per_expert; /* R, rounded up to row_align */
    int64_t batch_rows;      /* of the rank that owns most */
    int64_t assignments;     /* T_max * columns */
    int32_t local_max, virtual_local_max; /* experts of the real and virtual rank that own most */
    int32_t tag_bytes;
    int64_t header_bytes;
    int32_t staged;     /* 1: what goes to others is written into a mirror of the segment first (stage.c) */
    int64_t home_room;  /* rows that a home slot has room for: home_rows, or what the mirror takes */
    int32_t home_slots; /* wave w comes home to slot w mod this */
    int32_t by_wave;    /* sums go on from wave to wave; else all are made behind the last */
    int32_t sides;      /* 2: gradients have incoming slabs and batches of their own */
    int32_t extra_wave, backward, checks, sums; /* flags; checks: canary or full, sums: full */
    int32_t indexed;                            /* dispatch hands over the slabs themselves */
    int32_t own_rows;                           /* dispatch leaves out the rows of the slab to itself */
} epx_pooled_dims_t;

/* Offsets. -1 where a shape has no such area. */
typedef struct epx_pooled_side_map {
    int64_t header, rows, aux, origin, weight,
        sum; /* in the segment, from the side's begin: S * slab_rows entries each */
    int64_t segment_bytes;
    int64_t batch_rows, batch_aux, batch_origin; /* in the batch area, from the side's begin */
    int64_t batch_bytes;
} epx_pooled_side_map_t;

typedef struct epx_pooled_map {
    epx_pooled_side_map_t side[2];
    int64_t slot_segment_bytes, slot_batch_bytes; /* sides together */
    /* what comes home, per lane from its begin: [home_slots, home_room] entries each; note: [home_slots, S]
     * entries of {status, stamp} */
    int64_t home_begin, home_bytes;
    int64_t home_note, home_kept, home_rows, home_dots, home_sum;
    /* scratch: static tables */
    int64_t owner, local, first, expert, base, before, out_runs, back_runs, block_runs, destinations, zeros;
    /* scratch per lane, from the lane's begin */
    int64_t lane_begin, lane_bytes;
    int64_t tags, pointers, bad, notice, counts, gate, slot, remaining, move, place, acc, note, sums,
        check_list, check_start, check_count;
    /* scratch per (lane, slot, side), from its begin */
    int64_t side_begin, side_bytes;
    int64_t list, to, from, kept, start, count, weight, dots;
    int64_t mirror; /* staged: how far behind its real part the segment's mirror lies */
    int64_t segment_bytes, scratch_bytes, batch_bytes;
    /* plan */
    int64_t plan_valid, plan_weights, plan_expert, plan_place, plan_kept, plan_counts, plan_bytes;
} epx_pooled_map_t;

/* A plan's handle part: of the starts [EPX_MOVES][depth] epochs, and behind them [depth] the caller's rows.
 */
typedef struct epx_pooled_state {
    uint64_t epoch[1];
} epx_pooled_state_t;

typedef struct epx_pooled {
    epx_transport_t transport;
    epx_shape_t shape; /* with defaults filled in; what transport.env.shape points to */
    epx_pooled_dims_t dims;
    epx_pooled_map_t map;
    epx_k_pooled_layout_t layout;
    int64_t remote_out, remote_in; /* rows of slabs to and from other ranks */
    void *const *destinations;     /* [S] device: where kernels store what is for each rank */
    int64_t host_tables[]; /* base [S + 1], before [N] as int32; three tables of S runs; staged: the pieces of
                              a post */
} epx_pooled_t;

/* The tables in host_tables. */
typedef struct epx_pooled_tables {
    int32_t *base, *before;
    epx_run_t *out, *back, *block;
    epx_piece_t *send, *receive;
} epx_pooled_tables_t;

/* A wave as the moves see it. */
typedef struct epx_pooled_wave {
    epx_pooled_t *pooled;
    epx_plan_base_t *plan;
    epx_move_t move;
    int32_t wave, side;
    uint64_t epoch;
    epx_stream_t stream;
    const int32_t *place; /* of this wave: lo .. lo + home_rows - 1 */
    int64_t lo;
    const void *left; /* rows for others, left to the post as its source; NULL: kernels write them */
} epx_pooled_wave_t;

/* ---- map.c ---- */
/* The shape with this transport's own defaults where nothing was set: 3 waves, sender factor 1.15. */
epx_shape_t epx_pooled_shape(const epx_shape_t *asked);

int epx_pooled_probe(const epx_shape_t *shape, uint32_t caps, char *reason, size_t reason_bytes);
epx_status_t epx_pooled_dims(const epx_shape_t *shape, uint32_t caps, const epx_services_t *services,
                             epx_pooled_dims_t *dims_p);
void epx_pooled_map(const epx_shape_t *shape, const epx_pooled_dims_t *dims, epx_pooled_map_t *map_p);
epx_status_t epx_pooled_query(const epx_shape_t *shape, uint32_t caps, const epx_services_t *services,
                              epx_sizes_t *sizes_p);

/* ---- areas.c: addresses ---- */
void *epx_pooled_incoming(const epx_pooled_wave_t *w, int64_t offset); /* mine */
int64_t epx_pooled_incoming_offset(const epx_pooled_wave_t *w,
                                   int64_t offset); /* in the segment, any rank's */
/* each: bytes of an entry of that area. home: of the wave; homes: of the first home slot. */
void *epx_pooled_home(const epx_pooled_wave_t *w, int64_t offset, int64_t each);
void *epx_pooled_homes(const epx_pooled_wave_t *w, int64_t offset);
int64_t epx_pooled_home_offset(const epx_pooled_wave_t *w, int64_t offset, int64_t each);
/* The same for the notes, of which there is one for each rank. */
int64_t epx_pooled_note_offset(const epx_pooled_wave_t *w);
void *epx_pooled_batch(const epx_pooled_wave_t *w, int64_t offset);
void *epx_pooled_side(const epx_pooled_wave_t *w, int64_t offset);
void *epx_pooled_lane(const epx_pooled_t *pooled, int32_t lane, int64_t offset);
void *epx_pooled_static(const epx_pooled_t *pooled, int64_t offset);
void *epx_pooled_plan(const epx_plan_base_t *plan, int64_t offset);
epx_pooled_tables_t epx_pooled_tables(epx_pooled_t *pooled);
uint64_t *epx_pooled_epoch(const epx_pooled_t *pooled, const epx_plan_base_t *plan, epx_move_t move,
                           int32_t wave);
/* The caller's rows that the start was given, x or y, for the finish. */
const void **epx_pooled_given(const epx_pooled_wave_t *w);

/* ---- moves.c, out.c, in.c, home.c: what the four moves share ---- */

/* What headers and notes of a move carry, so that those of another are seen. Where epochs are resident the
 * host's differ from rank to rank, and only the call's place in the pass is said. */
static inline uint32_t epx_pooled_stamp(const epx_pooled_wave_t *w)
{
    const epx_lane_t *lane = w->plan->lane;
    return (uint32_t)(lane->words != NULL ? w->epoch - lane->base : w->epoch ^ w->epoch >> 32);
}

/* A wave's view without its places. */
epx_pooled_wave_t epx_pooled_view(epx_transport_t *transport, epx_plan_base_t *plan, epx_move_t move,
                                  int32_t wave, epx_stream_t stream);
/* Takes the move's epoch at a start. */
void epx_pooled_begin(epx_pooled_wave_t *w);
/* Finds the wave's places (computes them with extra_wave). */
epx_status_t epx_pooled_find_places(epx_pooled_wave_t *w);
/* Waits for all peers. With `watch` a failed route ends the wait, and the plan. */
epx_status_t epx_pooled_wait(const epx_pooled_wave_t *w, int watch);
/* Sets my word of this move at all peers. */
epx_status_t epx_pooled_post(const epx_pooled_wave_t *w);
/* Of a push by all ranks' runs, mine last: without the others'. */
void epx_pooled_own_runs(const epx_pooled_wave_t *w, epx_k_push_t *args);
void epx_pooled_add_part(epx_k_push_t *args, epx_part_t part);
/* Packs and sends rows [T, H] with what travels beside them, and the headers, to all destinations; then
 * posts. */
epx_status_t epx_pooled_send_out(epx_pooled_wave_t *w, const void *rows, const void *aux);
/* Gate 2 over what came, and the batch's layout. count: into the plan's statistics. */
epx_status_t epx_pooled_receive(const epx_pooled_wave_t *w, int count);
/* What arrived, into batch order: the rows, their weights (combine_backward), their checksums. */
epx_status_t epx_pooled_bring_rows(const epx_pooled_wave_t *w, void *rows);
epx_status_t epx_pooled_bring_weights(const epx_pooled_wave_t *w, float *weights);
epx_status_t epx_pooled_bring_sums(const epx_pooled_wave_t *w, uint32_t *sums);
/* Where the rows of a batch go: to the caller's memory or to the library's. */
void *epx_pooled_batch_rows(const epx_pooled_wave_t *w, const epx_batch_t *batch);
/* Fills the out fields of a batch whose rows are at `rows`; brings origin (and aux) into it. */
epx_status_t epx_pooled_fill_batch(const epx_pooled_wave_t *w, void *rows, epx_batch_t *batch);
/* Sends rows (batch order) home with kept bits (and dots); then posts. */
epx_status_t epx_pooled_send_home(epx_pooled_wave_t *w, const void *rows, const float *dots);
/* The waves of the plan, and whether this is the one that sums are made behind: each if by_wave, else
 * the last. */
int32_t epx_pooled_waves(const epx_pooled_wave_t *w);
int epx_pooled_sums_now(const epx_pooled_wave_t *w);
/* The chain of sums over what came home, where sums are made now; weights NULL: 1. kept: of the wave, or of
 * all where one call sums up all. */
epx_status_t epx_pooled_sum(const epx_pooled_wave_t *w, const float *weights, const uint8_t *kept, void *out);
epx_k_rows_t epx_pooled_rows_of(const epx_pooled_wave_t *w);

/* ---- stage.c: fabrics without loads and stores ---- */

enum { EPX_POOLED_PARTS = 6 }; /* of a message */
/* Lists what this move sends and gets. */
epx_pieces_t epx_pooled_list_pieces(const epx_pooled_wave_t *w);
/* Whether rows for others are left to the post, and its source then. */
int epx_pooled_leaves_rows(const epx_pooled_wave_t *w);
epx_rows_source_t epx_pooled_source(const epx_pooled_wave_t *w);

/* ---- checks.c: EPX_CHECK=canary and full; all synchronise, all do nothing when checks are off ---- */

/* Fills what the move has just read with the canary; slabs that are a batch only when that is over. */
epx_status_t epx_pooled_refill(const epx_pooled_wave_t *w);
epx_status_t epx_pooled_refill_batch(const epx_pooled_wave_t *w);
/* What this move stages, before kernels write there. */
epx_status_t epx_pooled_fill_staged(const epx_pooled_wave_t *w);
/* Headers, behind gate 2, and rows that never arrived. */
epx_status_t epx_pooled_check_incoming(const epx_pooled_wave_t *w);
/* Checksums of rows in batch order (or where `index` says) against those that came. */
epx_status_t epx_pooled_check_sums(const epx_pooled_wave_t *w, const void *rows, const int32_t *index);
/* The caller's rows before they go home; fills the note that travels with them. */
epx_status_t epx_pooled_check_caller(const epx_pooled_wave_t *w, const void *rows);
/* What came home. */
epx_status_t epx_pooled_check_home(const epx_pooled_wave_t *w, const uint8_t *kept);

/* ---- route.c, forward.c, backward.c ---- */
epx_status_t epx_pooled_route(epx_transport_t *transport, epx_plan_base_t *plan, const epx_routing_t *routing,
                              epx_status_t publish, epx_stream_t stream);

epx_status_t epx_pooled_dispatch_start(epx_transport_t *, epx_plan_base_t *, int32_t wave, const void *x,
                                       const epx_batch_t *batch, epx_stream_t);
epx_status_t epx_pooled_dispatch_finish(epx_transport_t *, epx_plan_base_t *, int32_t wave,
                                        epx_batch_t *batch, epx_stream_t);
epx_status_t epx_pooled_combine_start(epx_transport_t *, epx_plan_base_t *, int32_t wave, const void *y,
                                      epx_stream_t);
epx_status_t epx_pooled_combine_finish(epx_transport_t *, epx_plan_base_t *, int32_t wave, void *out,
                                       epx_stream_t);
epx_status_t epx_pooled_combine_backward_start(epx_transport_t *, epx_plan_base_t *, int32_t wave,
                                               const void *dout, epx_stream_t);
epx_status_t epx_pooled_combine_backward_finish(epx_transport_t *, epx_plan_base_t *, int32_t wave,
                                                const void *y, epx_batch_t *dy, epx_stream_t);
epx_status_t epx_pooled_dispatch_backward_start(epx_transport_t *, epx_plan_base_t *, int32_t wave,
                                                const void *dx_rows, epx_stream_t);
epx_status_t epx_pooled_dispatch_backward_finish(epx_transport_t *, epx_plan_base_t *, int32_t wave, void *dx,
                                                 float *dweight, epx_stream_t);

#endif
