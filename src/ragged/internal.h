/*
 * Inside of the transport `ragged`. SPDX-License-Identifier: Apache-2.0
 *
 * Who may write where, and why it is safe (one rank writes, another reads, no credit but what follows):
 *
 *   A slot (lane, wave mod depth) of receiver r is written by sender s from s's dispatch (or
 * combine_backward) of wave w on. s has ended its combine (dispatch_backward) of wave w - depth, so it has
 * seen r's word for that movement, and r posts that word when it has read all that it needs of the slot, and
 * has filled it with canaries.
 *
 *   Return rows of sender s are written by r from r's combine (dispatch_backward) of wave w on. r has ended
 * its dispatch of w, so it has seen s's word for w; regions of different waves are disjoint, and s fills them
 * with canaries when it has read the last wave of a pass, before its first word of the next.
 *
 *   Words: EPX_WAIT_EQUAL on the channel (lane, slot, movement). The next post on a channel comes depth waves
 * or a pass later, after a movement that needed this rank's wait to have ended.
 */
#ifndef EPX_RAGGED_INTERNAL_H
#define EPX_RAGGED_INTERNAL_H

#include <epx/kernels_ragged.h>

#include "transport/common.h"

enum { EPX_RAGGED_CHUNKS = 2 }; /* default of EPX_WAVES */

/* One receive slot: offsets from its beginning. Parts that a shape does not need take no bytes. */
typedef struct epx_ragged_slot {
    int64_t rows;    /* [rows_max] places, or [wire_rows_max] wire rows */
    int64_t aux;     /* beside rows */
    int64_t sums;    /* uint32 beside rows, EPX_CHECK=full */
    int64_t origin;  /* epx_origin_t [rows_max] by place */
    int64_t weights; /* fp32 [rows_max]: by list entry forward (rank wire), by place backward */
    /* rank wire */
    int64_t first, count; /* int32 [wire_rows_max] each: list entries of a wire row */
    int64_t list;         /* int32 [wire_rows_max] places */
    int64_t index;        /* int32 [rows_max] place -> wire row */
    int64_t head;         /* int64 [S] wire rows of each sender */
    /* rank wire, expanded: of ragged_flow. Counters are of this rank's calls: entry `rank`. */
    int64_t words, counters; /* uint64 [EPX_FLOW_PARTS, S]; epx_flow_counters_t [S] */
    int64_t bytes;
} epx_ragged_slot_t;

/* Bytes of a plan: offsets of what epx_k_ragged_layout_t describes. */
typedef struct epx_ragged_plan_areas {
    int64_t wave, weights, place, send, send_runs, return_runs, start, count, home_start, home_count;
    int64_t wire_token, wire_first, wire_count, list_place, list_weight, wire_row, home;
    int64_t wire_runs, list_runs, head_runs, back_runs, wire_start, wire_room;
    int64_t runs,
        runs_bytes;   /* all tables of runs, behind each other; staged: two more of such blocks follow */
    int64_t arriving; /* int64 [C, S] wire rows that come from each rank; staged, rank wire */
    int64_t bytes;
} epx_ragged_plan_areas_t;

/*
 * Staging, where the fabric cannot store (stage.c): what is on its way from this rank to others.
 *
 *   Out, by return row (lists alike, heads by pair): one area for each lane, since waves of a pass are
 * disjoint there; another one for gradients where a dispatch may be made again beside them. It is written
 * again in the next pass, when all ranks have answered to all waves.
 *
 *   Home, by sender and what it sent: one for each slot. It is written again depth waves later: every rank
 * dispatches that wave only when it has what came home of this one.
 */
typedef struct epx_ragged_staging {
    epx_ragged_slot_t out;
    int64_t outs, outs_backward; /* of lane 0, in the segment; the same with backward=kept */
    int64_t home_dots, home_sums, home_bytes;
    int64_t homes; /* of lane 0, slot 0 */
    int64_t bytes; /* in all; 0: nothing is staged */
} epx_ragged_staging_t;

/* Scratch of one lane. */
typedef struct epx_ragged_scratch {
    int64_t sum;  /* fp32 [T_max, H]; none where out is fp32 */
    int64_t dots; /* fp32 [depth, rows_max] */
    int64_t expert, ordinal, notice, notices, counts, accepted, work, first_row, last_token, list_end, base,
        room;           /* of a route */
    int64_t room_words; /* 64-bit words there */
    int64_t wire_rows;  /* int64 [S, C, S] everybody's wire rows; staged, rank wire */
    int64_t stayed;     /* int32 [A_max] rows that stay at this rank; staged, assignment wire */
    int64_t turns; /* uint64 [depth, 2, 2, EPX_TURNS]: of a slot's pushes and expansions, there and back */
    int64_t bad;   /* int64 [2] */
    int64_t zero;  /* epx_ragged_zeros bytes of zeros */
    int64_t span;  /* int64 {0, S}: all rows of a slot's head */
    int64_t bytes;
} epx_ragged_scratch_t;

/* Every area of a group, a pure function of the shape. */
typedef struct epx_ragged_areas {
    int32_t rank_wire, indexed, chunks, local_experts_max;
    int64_t rows_max;      /* batch_rows_max */
    int64_t wire_rows_max; /* phys of the largest chunk */
    int64_t assignments;   /* A_max: return rows, and the step between the waves' places */
    int64_t notice_bytes;  /* of a rank's notice with its counts */
    epx_ragged_slot_t forward, backward;
    int64_t slots, backward_slots;    /* offsets in the segment; the same with backward=kept */
    int64_t returns, return_bytes;    /* of a lane's return area */
    int64_t return_dots, return_sums; /* in it, behind the rows */
    int64_t return_words;             /* likewise, rank wire: of ragged_home, uint64 [S, EPX_HOME_STREAMS] */
    int64_t return_used;              /* likewise, int32 [EPX_HOME_USERS], of this rank alone */
    epx_ragged_staging_t staging;     /* behind all that, in the segment */
    int64_t segment_bytes;
    epx_ragged_scratch_t scratch;                      /* one for each lane, then the tables */
    int64_t owner_tables, order_tables, scratch_bytes; /* tables: offsets behind the lanes' scratch */
    int64_t destinations;                              /* likewise: [S] bases, where the fabric gives none */
    int64_t batch_rows, batch_aux, batch_slot_bytes;   /* library's batch of a slot, rank wire */
    int64_t batch_backward; /* where the batches of dy begin; the same with backward=kept */
    int64_t batch_bytes;
    epx_ragged_plan_areas_t plan;
} epx_ragged_areas_t;

typedef struct epx_ragged {
    epx_transport_t base;
    epx_ragged_areas_t areas;
    epx_ragged_order_t order;        /* tables on the host */
    epx_shape_t device_shape;        /* tables on the device, for the layout kernel */
    epx_ragged_order_t device_order; /* likewise */
    const int32_t *local_first;      /* [C + 1] my experts before wave c, in order of a pass */
    void *const *destinations;       /* [S] device: everybody's segment; mine alone, where rows are staged */
    /* staged */
    epx_piece_t *send, *receive; /* of the post that is being made */
    epx_run_t *made;             /* two blocks of runs that are being made */
    int64_t *wire_rows;          /* [S, C, S] rank wire */
} epx_ragged_t;

/*
 * Own rows at once: on the rank wire, where batches are expanded, a dispatch's start takes the rows that stay
 * at this rank from x to all of their places in the batch, while the others travel, and its finish expands
 * what came from others. Why nobody is hurt:
 *
 *   The batch of a slot is free at the start of wave w: the combine of wave w - depth has ended (or the
 * dispatch_backward, which gradients and a dispatch made again wait for), the same that frees peers' slots.
 * Memory of the caller is this wave's from the start on that it was given to.
 *
 *   Own rows are then nowhere in the slot. Whoever reads a slot's rows by sender leaves this rank's out; what
 * stands beside rows (aux, lists, heads) is in the slot as ever. With EPX_CHECK=canary or full the slot is
 * looked at as a whole, and rows go there.
 *
 *   Where the finish is given other memory than the start was, own rows go there too, from x again, which is
 * the caller's until the finish.
 *
 * Own sums in the finish: within a budget of multiprocessors, on the rank wire, a combine's start adds up and
 * sends what others wait for, with all of the budget; its finish adds up the rows that stay at this rank,
 * from y, which is the caller's until then. Their lists are the sender's own ones in the plan: those of the
 * slot may be written over once this rank's word is out. With EPX_CHECK=canary or full the start does all.
 *
 * A rank alone with few tokens (sums_soon of the kernels) on the rank wire leaves all its sums to the finish,
 * which makes them where it adds them (`sums` of epx_k_combine_t), by the plan's lists and from y. Where
 * start and finish are one call and waits are kernels, that kernel begins while the wait ends: what it reads
 * was there before the post, and it writes behind the wait. A budget of multiprocessors and EPX_CHECK=canary
 * or full take sums to memory.
 *
 * Where rows are left to the post on the way home, those that stay at this rank are not moved at all: the
 * finish adds them up from y (dx_rows), which is the caller's until then.
 *
 * Where start and finish are one call, a large combine of one wave makes out's rows while its sums travel
 * (ragged_home); sums of rows that stay are made there, by the plan's lists too. Its words are in the return
 * area, whose rows they tell of: who may write those may write them.
 */
typedef struct epx_ragged_own {
    const void *x;
    void *rows;    /* where the start has put them; NULL: into the slot */
    const void *y; /* of a combine that has left its own sums or rows, or what ragged_home has not used */
    const void *dx_rows; /* of a dispatch_backward that has left its own rows */
    void *out;           /* where ragged_home puts them; NULL: it is not used */
    int32_t flows;       /* 1: and some of what came, by ragged_flow */
    int32_t sums_last;   /* 1: of a combine whose finish makes all sums */
} epx_ragged_own_t;

/* Handle part of a plan. */
typedef struct epx_ragged_state {
    int32_t *sent, *arrived; /* [EPX_MOVES, C] calls made and not yet accounted; behind the epochs */
    int32_t *heads;          /* [C] 1: the wire rows that come in this wave are (or will be) in the report */
    int32_t fetched;         /* 1: an attached plan's table of waves is (or will be) in the report */
    /* staged: the host's copies of the plan's runs, and of what arrives; known 1: they are there */
    int32_t known;
    epx_run_t *runs;
    int64_t *arriving;
    epx_ragged_own_t *own; /* [depth] of the dispatches in flight; behind the epochs */
    uint64_t epoch[];      /* [depth, EPX_MOVES] of the movements in flight */
} epx_ragged_state_t;

/*
 * What the host learns of a routing, behind the plan's report: bytes are reckoned from it. The layout kernel
 * writes the table of waves; wire rows are known to the receiver when the first rows of a wave have come, and
 * are copied here then.
 */
typedef struct epx_ragged_told {
    epx_ragged_wave_t *wave; /* [C] */
    int64_t *heads;          /* [C, S] wire rows that come from each rank (rank wire); -1: not here yet */
} epx_ragged_told_t;

/* ---- areas.c, wire.c: pure ---- */

/* The wire of a shape: as set, or the one with the shorter predicted time. */
epx_wire_t epx_ragged_wire(const epx_shape_t *shape, uint32_t fabric_caps);
/* The predicted times behind the choice, in row touches per token; for the log. */
typedef struct epx_ragged_times {
    double link_cost, wire_rows, assignment, rank;
} epx_ragged_times_t;
epx_ragged_times_t epx_ragged_predict(const epx_shape_t *shape, uint32_t fabric_caps);

static inline int32_t epx_ragged_chunks(const epx_shape_t *shape)
{
    return shape->waves > 0 ? shape->waves : EPX_RAGGED_CHUNKS;
}
/* int32 entries of all tables of an order, which stand behind each other. */
int64_t epx_ragged_order_entries(const epx_shape_t *shape, int32_t chunks);
/* Lays everything out. EPX_ERR_ARG with its text for shapes with 2^31 rows. */
epx_status_t epx_ragged_lay_out(const epx_shape_t *shape, uint32_t fabric_caps,
                                const epx_services_t *services, epx_ragged_areas_t *areas_p);

/* ---- one call ---- */

/*
 * Where kernels write what travels, and by which runs. With loads and stores one target is enough: the peers'
 * memory. Staging takes two: what is mine goes where it belongs, by the runs of mine alone; the rest goes to
 * the staging area, by runs whose rows are counted there.
 */
typedef struct epx_ragged_target {
    int64_t runs;                  /* how far behind the plan's own tables of runs this target's stand */
    const epx_ragged_slot_t *slot; /* on the way out */
    int64_t slot_offset;
    int64_t home_rows, home_dots, home_sums; /* on the way home; in the segment */
} epx_ragged_target_t;

/* What a data call works on. */
typedef struct epx_ragged_call {
    epx_ragged_t *ragged;
    epx_plan_base_t *plan;
    const epx_shape_t *shape;
    const epx_kernels_t *kernels;
    epx_move_t move;
    int32_t wave, backward; /* backward: the slot of gradients */
    const epx_ragged_slot_t *slot;
    int64_t slot_offset;   /* in the segment */
    int64_t return_offset; /* of the lane's return area in the segment */
    char *scratch;         /* of the lane */
    epx_ragged_target_t target[2];
    int32_t targets;
    int32_t flows;     /* 1: rows go by ragged_flow */
    const void *left;  /* rows for others, left to the post as its source; NULL: kernels write them */
    void *home_out;    /* of a combine that goes by ragged_home; else NULL */
    int32_t sums_last; /* 1: of a combine whose finish makes all sums */
    void *own_rows; /* of the batch that this rank's own rows go to when others are sent; NULL: to the slot */
    epx_stream_t stream;
} epx_ragged_call_t;

static inline int epx_ragged_is_staged(const epx_ragged_t *ragged) { return ragged->areas.staging.bytes > 0; }
static inline int epx_ragged_is_checked(const epx_ragged_call_t *call)
{
    return call->shape->check == EPX_CHECK_CANARY || call->shape->check == EPX_CHECK_FULL;
}

/* Whether such sums are made while the wait ends. */
static inline int epx_ragged_sums_early(const epx_ragged_call_t *call)
{
    const epx_lane_t *lane = call->plan->lane;
    return call->sums_last && lane->adjoins && lane->words != NULL;
}

/* ---- calls.c: what every data call begins and ends with ---- */
epx_ragged_call_t epx_ragged_call(epx_transport_t *transport, epx_plan_base_t *plan, epx_move_t move,
                                  int32_t wave, epx_stream_t stream);

/* Takes the lane's next epoch for this movement, or sets the word of the movement at all peers. */
void epx_ragged_begin(const epx_ragged_call_t *call);
epx_status_t epx_ragged_post(const epx_ragged_call_t *call);
epx_status_t epx_ragged_wait(const epx_ragged_call_t *call);

/* ---- places.c ---- */
/* This wave's batch of this rank, and the pairs (wave, rank) of an int64 table in the plan. */
epx_k_rows_t epx_ragged_batch_rows(const epx_ragged_call_t *call);
const int64_t *epx_ragged_pairs(const epx_ragged_call_t *call, int64_t area);
void *epx_ragged_plan_at(const epx_ragged_call_t *call, int64_t area);
char *epx_ragged_slot_at(const epx_ragged_call_t *call, int64_t area);
/* Offset of part `area` of the library's batch of this slot in env->batch. */
char *epx_ragged_batch_at(const epx_ragged_call_t *call, int64_t area);
/* Places in a batch of this rank's own rows. */
epx_k_places_t epx_ragged_own_places(const epx_ragged_call_t *call, void *rows);

/* ---- account.c: what a plan's passes moved ---- */
int64_t epx_ragged_state_bytes(const epx_shape_t *shape, const epx_ragged_areas_t *areas);
int64_t epx_ragged_report_bytes(const epx_shape_t *shape, const epx_ragged_areas_t *areas);
epx_ragged_state_t *epx_ragged_state(const epx_ragged_t *ragged, const epx_plan_base_t *plan);
epx_ragged_told_t epx_ragged_told(const epx_ragged_t *ragged, const epx_plan_base_t *plan);
/* A new routing: nothing is known of it. */
void epx_ragged_forget(const epx_ragged_t *ragged, epx_plan_base_t *plan);
/* A call has sent its rows, or has received them. */
epx_status_t epx_ragged_count_sent(const epx_ragged_call_t *call);
void epx_ragged_count_arrived(const epx_ragged_call_t *call);
/* Lets a wait tell how many wire rows came, if that is still to be told: 1 where it does. */
int epx_ragged_want_heads(const epx_ragged_call_t *call, epx_move_wait_t *wait);
void epx_ragged_account(epx_transport_t *transport, epx_plan_base_t *plan);

/* ---- send.c: x or dout to the experts; y or dx home ---- */
epx_status_t epx_ragged_send_rows(const epx_ragged_call_t *call, const void *rows, const void *aux);
/* A dispatch's own rows alone, from x to their places of the batch at `rows`. */
epx_status_t epx_ragged_place_own(const epx_ragged_call_t *call, const void *x, void *rows);
/* dots: [rows_max] by place, or NULL. Partial sums of the rank wire are weighted in the forward pass. */
epx_status_t epx_ragged_send_home(const epx_ragged_call_t *call, const void *rows, const float *dots);
/* Whether a combine that starts leaves all its sums to the last kernel of its finish; and the sums then. */
int epx_ragged_sums_last(const epx_ragged_call_t *call);
epx_k_own_sums_t epx_ragged_sums(const epx_ragged_call_t *call);
/* Combine: what the start has left to the finish, if anything. */
epx_status_t epx_ragged_add_own(const epx_ragged_call_t *call);

/* Counters of a slot's pushes, or of its expansions. Those of one direction follow each other, whatever
 * streams its waves are on. */
enum { EPX_RAGGED_OF_PUSH = 0, EPX_RAGGED_OF_EXPANSION = 1 };
static inline int64_t epx_ragged_turn_words(const epx_shape_t *shape)
{
    return 4 * (int64_t)shape->depth * EPX_TURNS;
}
uint64_t *epx_ragged_turns(const epx_ragged_call_t *call, int of);

/* ---- flow.c: rows in parts, expanded as they come ---- */
enum { EPX_RAGGED_CLEARED = 64 }; /* bytes of counters that one part of a push clears */
static inline int64_t epx_ragged_zeros(const epx_shape_t *shape)
{
    return shape->aux_bytes > EPX_RAGGED_CLEARED ? shape->aux_bytes : EPX_RAGGED_CLEARED;
}
/* Whether the rows of a dispatch whose own rows go to call->own_rows flow. */
int epx_ragged_flows(const epx_ragged_call_t *call, const void *x);
/* Whether a combine into `out` goes by ragged_home. */
int epx_ragged_homes(const epx_ragged_call_t *call, const void *y, const void *out);
epx_status_t epx_ragged_home(const epx_ragged_call_t *call, const void *y, void *out, int here);
/* here: 0 behind the push of the lists, 1 behind the wait. */
epx_status_t epx_ragged_flow(const epx_ragged_call_t *call, const void *x, void *rows, int here);

/* ---- stage.c: fabrics without loads and stores ---- */
/* Entries that a post's lists may have. */
int64_t epx_ragged_sends_max(const epx_shape_t *shape, const epx_ragged_areas_t *areas);
int64_t epx_ragged_receives_max(const epx_shape_t *shape, const epx_ragged_areas_t *areas);
/* The staging area as a target of this call. */
epx_ragged_target_t epx_ragged_staging_target(const epx_ragged_call_t *call);
/* Ends a route: the host learns the runs (one synchronisation), and makes those of both targets. */
epx_status_t epx_ragged_stage_route(epx_transport_t *transport, epx_plan_base_t *plan, epx_stream_t stream);
/* What this call sends, and what it will get. An attached plan's runs are learned first. */
epx_status_t epx_ragged_list_pieces(const epx_ragged_call_t *call, epx_pieces_t *pieces_p);
/* Whether rows for others (`out`: to the experts) are left to the post, and its source then. */
int epx_ragged_leaves_rows(const epx_ragged_call_t *call, int out);
/* On the way home then: where the caller's rows are from the start to the finish, and own rows as terms of
 * the sum. */
const void **epx_ragged_given(const epx_ragged_call_t *call);
void epx_ragged_add_stayed(const epx_ragged_call_t *call, epx_k_combine_t *args);
epx_rows_source_t epx_ragged_source(const epx_ragged_call_t *call);

/* ---- check.c: EPX_CHECK=canary and full; EPX_OK at once otherwise ---- */
/* Staging is filled where nothing of it travels any more, so that what kernels leave out is seen. */
epx_status_t epx_ragged_fill_staged_home(const epx_ragged_call_t *call);
epx_status_t epx_ragged_fill_slot(const epx_ragged_call_t *call);    /* when all of it has been read */
epx_status_t epx_ragged_fill_returns(const epx_ragged_call_t *call); /* after the last wave has been read */
epx_status_t epx_ragged_check_arrived(const epx_ragged_call_t *call);
epx_status_t epx_ragged_check_caller(const epx_ragged_call_t *call, const void *y, const char *name);
epx_status_t epx_ragged_check_home(const epx_ragged_call_t *call);

/* ---- forward.c: what both passes do ---- */
/* Starts, counts and origins of this wave's batch, into the caller's memory where he gives some. */
epx_status_t epx_ragged_describe_batch(const epx_ragged_call_t *call, epx_batch_t *batch);
/* Adds this wave's return rows into the sum, and writes out after the last wave. */
epx_status_t epx_ragged_add_home(const epx_ragged_call_t *call, void *out);

/* ---- the table's functions ---- */
int epx_ragged_probe(const epx_shape_t *shape, uint32_t fabric_caps, char *reason, size_t reason_bytes);
epx_status_t epx_ragged_query(const epx_shape_t *shape, uint32_t fabric_caps, const epx_services_t *services,
                              epx_sizes_t *sizes_p);
epx_status_t epx_ragged_route(epx_transport_t *transport, epx_plan_base_t *plan, const epx_routing_t *routing,
                              epx_status_t publish, epx_stream_t stream);
epx_status_t epx_ragged_dispatch_start(epx_transport_t *, epx_plan_base_t *, int32_t wave, const void *x,
                                       const epx_batch_t *batch, epx_stream_t);
epx_status_t epx_ragged_dispatch_finish(epx_transport_t *, epx_plan_base_t *, int32_t wave,
                                        epx_batch_t *batch, epx_stream_t);
epx_status_t epx_ragged_combine_start(epx_transport_t *, epx_plan_base_t *, int32_t wave, const void *y,
                                      epx_stream_t);
epx_status_t epx_ragged_combine_finish(epx_transport_t *, epx_plan_base_t *, int32_t wave, void *out,
                                       epx_stream_t);
epx_status_t epx_ragged_combine_backward_start(epx_transport_t *, epx_plan_base_t *, int32_t wave,
                                               const void *dout, epx_stream_t);
epx_status_t epx_ragged_combine_backward_finish(epx_transport_t *, epx_plan_base_t *, int32_t wave,
                                                const void *y, epx_batch_t *dy, epx_stream_t);
epx_status_t epx_ragged_dispatch_backward_start(epx_transport_t *, epx_plan_base_t *, int32_t wave,
                                                const void *dx_rows, epx_stream_t);
epx_status_t epx_ragged_dispatch_backward_finish(epx_transport_t *, epx_plan_base_t *, int32_t wave, void *dx,
                                                 float *dweight, epx_stream_t);

#endif
