/*
 * The transport `ring`: token blocks go from neighbour to neighbour, partial sums ride along.
 * SPDX-License-Identifier: Apache-2.0
 *
 * In hop h rank r holds the block of rank (r - h) mod S: its rows, the kept expert ids and weights of its
 * tokens. The rank takes the rows for its own experts into a batch, and adds what they give to the block's
 * partial sums. Blocks and sums move one rank to the right with every hop; after the last hop the sums go to
 * the right once more, which is home.
 *
 *   chain.c   flow control, with the invariants that make it free of deadlock
 *   layout.c  who lies where in segment, scratch, batch area and plan; sizes
 *   route.c   counts of all ranks, the accept rule
 *   block.c   dispatch and combine_backward: blocks
 *   sum.c     combine and dispatch_backward: sums
 *   check.c   what EPX_CHECK looks at
 *   stage.c   fabrics without loads and stores
 */
#ifndef EPX_RING_RING_H
#define EPX_RING_RING_H

#include <epx/kernels_ring.h>
#include <epx/transport.h>

#include "transport/common.h"

extern const epx_transport_ops_t epx_transport_ring;

/*
 * A chain is a set of slots that data of consecutive hops goes through, with its words. dispatch uses BLOCKS,
 * combine and dispatch_backward use SUMS, combine_backward uses BLOCKS, or GRADIENTS where a re-dispatch may
 * run beside it.
 */
typedef enum epx_ring_chain_id {
    EPX_RING_BLOCKS = 0,
    EPX_RING_SUMS,
    EPX_RING_GRADIENTS,
    EPX_RING_CHAINS
} epx_ring_chain_id_t;

/* What a wave's metadata and batch belong to; the second only where gradients have slots apart. */
typedef enum epx_ring_side { EPX_RING_FORWARD = 0, EPX_RING_BACKWARD, EPX_RING_SIDES } epx_ring_side_t;

/* ---- layout: offsets in bytes ------------------------------------------------------------------------------------ */

typedef struct epx_ring_block_slot {
    int64_t rows;     /* [T_max, H] row type */
    int64_t kept;     /* [T_max, K] int32 expert id, -1: none or refused */
    int64_t weights;  /* [T_max, K] fp32 */
    int64_t aux;      /* [T_max, aux_bytes] */
    int64_t checksum; /* [T_max] uint32, with EPX_CHECK=full */
    int64_t bytes;
} epx_ring_block_slot_t;

typedef struct epx_ring_sum_slot {
    int64_t sums;     /* [T_max, H] fp32 */
    int64_t dweight;  /* [T_max, K] fp32, where backward calls are made */
    int64_t checksum; /* [T_max] uint32, with EPX_CHECK=full */
    int64_t bytes;
} epx_ring_sum_slot_t;

/* Scratch of one wave in flight: where the rows of the block are in the batch. */
typedef struct epx_ring_places {
    int64_t place;        /* [T_max, K] int32 */
    int64_t token;        /* [rows_max] int32 */
    int64_t place_weight; /* [T_max, K] fp32, for combine */
    int64_t row_weight;   /* [rows_max] fp32, for combine_backward */
    int64_t dots;         /* [rows_max] fp32, from combine_backward to dispatch_backward */
    int64_t bytes;
} epx_ring_places_t;

/* Memory of one wave in flight that a batch lands in. */
typedef struct epx_ring_landing {
    int64_t rows;         /* [rows_max, H]; none with batch_in_caller */
    int64_t start, count; /* [El_max] int64 */
    int64_t origin;       /* [rows_max] */
    int64_t aux;          /* [rows_max, aux_bytes] */
    int64_t bytes;
} epx_ring_landing_t;

/* Scratch of one lane's routes and checks. */
typedef struct epx_ring_desk {
    int64_t ordinal;          /* [T_max, K] int32 */
    int64_t notice;           /* one notice with its counts */
    int64_t notices;          /* [S] of them */
    int64_t counts, accepted; /* [N, E] int32 */
    int64_t seats;            /* [N] int64 */
    int64_t found;            /* [2] int64: a bad id, a bad row, an excess */
    int64_t bytes;
} epx_ring_desk_t;

typedef struct epx_ring_layout {
    int32_t sides;                  /* 1, or 2 with backward=recompute */
    int32_t block_slots, sum_slots; /* of a chain */
    int64_t rows_max, notice_bytes;
    int32_t local_max; /* largest El of the group */
    epx_ring_block_slot_t block;
    epx_ring_sum_slot_t sum;
    epx_ring_places_t places[EPX_RING_SIDES];
    epx_ring_landing_t landing;
    epx_ring_desk_t desk;
    int64_t chain[EPX_RING_CHAINS];                 /* first slot, in a lane's part of the segment */
    int64_t lane_segment, lane_scratch, lane_batch; /* bytes of a lane's part */
    int64_t side_places[EPX_RING_SIDES];            /* in a lane's scratch, behind the desk */
    int64_t local, tables; /* in scratch, before the lanes: [E] int32; who owns what */
    int64_t destinations;  /* behind them: [S] segments as this rank's kernels reach them, where staged */
    int64_t zeros;         /* behind them: 64 zero bytes */
    int64_t lanes_scratch; /* where the lanes' scratch begins */
    int64_t plan_tokens, plan_runs, plan_kept, plan_weights; /* in a plan's bytes */
    int64_t segment_bytes, scratch_bytes, batch_bytes, plan_bytes;
} epx_ring_layout_t;

/* Pure, from the shape alone and the same on all ranks. Zero when the shape is larger than any memory. */
int epx_ring_lay_out(const epx_shape_t *shape, epx_ring_layout_t *layout_p);

/* Bytes of staging behind the segment of the layout; 0: nothing is staged. */
int64_t epx_ring_staging(const epx_shape_t *shape, const epx_ring_layout_t *layout, uint32_t fabric_caps);

int epx_ring_probe(const epx_shape_t *shape, uint32_t fabric_caps, char *reason, size_t reason_bytes);
epx_status_t epx_ring_query(const epx_shape_t *shape, uint32_t fabric_caps, const epx_services_t *services,
                            epx_sizes_t *sizes_p);

/* ---- state ------------------------------------------------------------------------------------------------------- */

/* Flow control of one chain of one lane; see chain.c. */
typedef struct epx_ring_chain {
    int32_t finished; /* hops of the chain's last pass */
    uint64_t last;    /* epoch of the last of them */
    uint64_t need;    /* the acknowledgement that hop 1 of the next pass needs; 0: none */
} epx_ring_chain_t;

typedef struct epx_ring_lane {
    epx_ring_chain_t chain[EPX_RING_CHAINS];
} epx_ring_lane_t;

typedef struct epx_ring {
    epx_transport_t base;
    epx_ring_layout_t layout;
    int32_t left, right;
    char *right_base; /* the right neighbour's segment, as this rank's kernels see it; or the mirror */
    int64_t mirror;   /* how far behind my segment its mirror lies; 0: nothing is staged */
    void *const *destinations; /* [S] device */
    epx_ring_lane_t *lane;     /* [lanes] */
    int32_t *local;            /* [E] host copy of what layout.local holds */
    epx_shape_t device_shape;  /* with its tables on the device, for the layout kernel */
} epx_ring_t;

/* What a start call leaves for its finish. */
typedef struct epx_ring_call {
    const void *data, *aux; /* x and aux, y, dout, or dx_rows */
} epx_ring_call_t;

/* The handle part of a plan; behind the calls: epochs [EPX_MOVES, S], then blocks sent and received
 * [EPX_MOVES, S] that have not been accounted yet, then T of every rank [S]. */
typedef struct epx_ring_plan {
    int32_t fetched;         /* 1: an attached plan's T of every rank is (or will be) in the report */
    int32_t known;           /* 1: staged, the host has T of every rank */
    int32_t next[EPX_MOVES]; /* the hop that starts next in this pass; 0: the pass has no such call yet */
    epx_ring_call_t call[];  /* [EPX_MOVES, depth] */
} epx_ring_plan_t;

int64_t epx_ring_plan_state_bytes(const epx_shape_t *shape);
int64_t epx_ring_state_bytes(const epx_shape_t *shape);

/* One hop of one call at work: what everything below needs to know. */
typedef struct epx_ring_step {
    epx_ring_t *ring;
    const epx_shape_t *shape;
    epx_plan_base_t *plan;
    epx_stream_t stream;
    epx_move_t move;
    int32_t lane;
    epx_ring_chain_id_t chain;
    epx_ring_side_t side;
    int32_t opens;   /* a start call: the first of its kind in this pass */
    int32_t wave;    /* the hop */
    int32_t block;   /* the rank whose block is here in this hop */
    uint64_t *epoch; /* of this hop */
    epx_ring_call_t *call;
} epx_ring_step_t;

/* The rank whose block (or sums) is here in `hop`; hop S: the own one. */
static inline int32_t epx_ring_block_of(const epx_shape_t *shape, int32_t hop)
{
    return (shape->rank - hop + shape->ranks) % shape->ranks;
}

/* Addresses. Slots are of this step's chain and hop; device memory. */
static inline int64_t epx_ring_slot_at(const epx_ring_step_t *step, int32_t hop)
{
    const epx_ring_layout_t *layout = &step->ring->layout;
    int64_t lane = step->lane * layout->lane_segment + layout->chain[step->chain];
    if (step->chain == EPX_RING_SUMS)
        return lane + (hop & 1) * layout->sum.bytes;
    return lane + ((hop - 1) & 1) * layout->block.bytes;
}

static inline char *epx_ring_slot(const epx_ring_step_t *step, int32_t hop)
{
    return (char *)step->ring->base.env.segment.base + epx_ring_slot_at(step, hop);
}

static inline char *epx_ring_desk(const epx_ring_t *ring, int32_t lane)
{
    return (char *)ring->base.env.scratch + ring->layout.lanes_scratch + lane * ring->layout.lane_scratch;
}

static inline char *epx_ring_places(const epx_ring_step_t *step)
{
    const epx_ring_layout_t *layout = &step->ring->layout;
    return epx_ring_desk(step->ring, step->lane) + layout->side_places[step->side] +
           step->wave % step->shape->depth * layout->places[step->side].bytes;
}

static inline char *epx_ring_landing(const epx_ring_step_t *step)
{
    const epx_ring_layout_t *layout = &step->ring->layout;
    int32_t slot = step->side * step->shape->depth + step->wave % step->shape->depth;
    return (char *)step->ring->base.env.batch + step->lane * layout->lane_batch +
           slot * layout->landing.bytes;
}

static inline char *epx_ring_zeros(const epx_ring_t *ring)
{
    return (char *)ring->base.env.scratch + ring->layout.zeros;
}

/* [S] tokens of every rank and the run of every block, in a plan's bytes. */
static inline int64_t *epx_ring_plan_tokens(const epx_ring_t *ring, const epx_plan_base_t *plan)
{
    return (int64_t *)((char *)plan->bytes + ring->layout.plan_tokens);
}

static inline epx_run_t *epx_ring_plan_runs(const epx_ring_t *ring, const epx_plan_base_t *plan)
{
    return (epx_run_t *)((char *)plan->bytes + ring->layout.plan_runs);
}

/* The rows of the block of this step, as kernels take them: one "expert" with the block's T. */
static inline epx_k_rows_t epx_ring_block_rows(const epx_ring_step_t *step, int32_t block)
{
    return (epx_k_rows_t){.start = (const int64_t *)epx_ring_zeros(step->ring),
                          .count = epx_ring_plan_tokens(step->ring, step->plan) + block,
                          .experts = 1};
}

/* The rows of this step's batch. */
static inline epx_k_rows_t epx_ring_batch_rows(const epx_ring_step_t *step)
{
    const epx_ring_landing_t *landing = &step->ring->layout.landing;
    const epx_owners_t *owners = &step->shape->real;
    return (epx_k_rows_t){.start = (const int64_t *)(epx_ring_landing(step) + landing->start),
                          .count = (const int64_t *)(epx_ring_landing(step) + landing->count),
                          .experts = owners->first[step->shape->rank + 1] - owners->first[step->shape->rank]};
}

/* ---- accounts: account.c ----------------------------------------------------------------------------------------- */

/* How many blocks (or their sums) of rank b a move has sent or received on this handle since the last
 * account. */
typedef struct epx_ring_tally {
    int32_t *sent, *received; /* [EPX_MOVES, S] */
    int64_t *tokens;          /* [S], staged: T of every rank */
} epx_ring_tally_t;
epx_ring_tally_t epx_ring_tally(const epx_ring_t *ring, const epx_plan_base_t *plan);

/* The block of rank b (or its sums) has been passed on, or has come. */
void epx_ring_count_sent(const epx_ring_step_t *step, int32_t block);
void epx_ring_count_received(const epx_ring_step_t *step, int32_t block);
/* A new routing: nothing has moved. */
void epx_ring_forget(const epx_ring_t *ring, epx_plan_base_t *plan);
/* T of every rank is wanted in the report; an attached plan's comes from the bytes. */
epx_status_t epx_ring_fetch_tokens(epx_ring_t *ring, epx_plan_base_t *plan, epx_stream_t stream);
void epx_ring_account(epx_transport_t *transport, epx_plan_base_t *plan);

/* ---- flow control: chain.c --------------------------------------------------------------------------------------- */

/* Begins a start call: takes the epochs of its hops, opens the chain's pass with the first of them. */
epx_status_t epx_ring_start(epx_ring_step_t *step, epx_transport_t *transport, epx_plan_base_t *plan,
                            epx_move_t move, int32_t wave, epx_stream_t stream);
/* Begins a finish call. */
void epx_ring_resume(epx_ring_step_t *step, epx_transport_t *transport, epx_plan_base_t *plan,
                     epx_move_t move, int32_t wave, epx_stream_t stream);
/* Turns to another hop of the same call; its data stay those of the call. */
void epx_ring_turn_to(epx_ring_step_t *step, int32_t hop);
/* The first hop that has not been finished in the chain's pass. */
int32_t epx_ring_unfinished(const epx_ring_step_t *step);
/* The plan's pass has ended (or there is a new routing): every move begins anew. */
void epx_ring_end_pass(epx_plan_base_t *plan);
/* Waits for what the left neighbour passes on for `hop`. */
epx_status_t epx_ring_await_left(epx_ring_step_t *step, int32_t hop);
/* Waits until the right neighbour's slot for hop wave + 1 is free. */
epx_status_t epx_ring_await_right(epx_ring_step_t *step);
/* Tells the right neighbour that hop wave + 1 lies in its slot. */
epx_status_t epx_ring_passed(epx_ring_step_t *step);
/* Ends a finish call: gives the slots of this hop back to the left neighbour. */
epx_status_t epx_ring_done(epx_ring_step_t *step);

int32_t epx_ring_channels(const epx_shape_t *shape);

/* ---- staging: stage.c --------------------------------------------------------------------------------------------- */

/* Staged, the host learns T of every rank: at the end of a route, and in the first call of a plan whose bytes
 * came from elsewhere. Synchronises once. */
epx_status_t epx_ring_learn_tokens(epx_ring_t *ring, epx_plan_base_t *plan, epx_stream_t stream);
/* What goes to the right for hop wave + 1, and comes from the left. */
enum { EPX_RING_PARTS = 5 };
void epx_ring_list_pieces(const epx_ring_step_t *step, epx_pieces_t *pieces);
/* canary: fills the mirror of the slot of hop wave + 1, before anything is stored there. */
epx_status_t epx_ring_clear_staged(epx_ring_step_t *step);

/* ---- checks: check.c ---------------------------------------------------------------------------------------------- */

/* EPX_CHECK is canary or full. */
int epx_ring_is_checked(const epx_ring_step_t *step);
/* The kernel's two numbers that lie at desk.found. */
epx_status_t epx_ring_found(epx_ring_step_t *step, int64_t found[2]);
/* full: what lies in the slot of `hop` against its checksums; canary: partial sums that were not written.
 * rows and checksum are offsets in the slot. */
epx_status_t epx_ring_check_slot(epx_ring_step_t *step, int32_t hop, int64_t rows, int64_t stride,
                                 int64_t checksum);
/* canary: every row of the batch was written by the exchange. `rows` are the block's. */
epx_status_t epx_ring_check_rows(epx_ring_step_t *step, const void *rows);
/* canary: the caller wrote every row of y (dx_rows). */
epx_status_t epx_ring_check_caller(epx_ring_step_t *step, const void *y);
/* canary: fills the slot of `hop` before it is given back. */
epx_status_t epx_ring_clear_slot(epx_ring_step_t *step, int32_t hop);

/* ---- the operations ------------------------------------------------------------------------------------------------ */

epx_status_t epx_ring_route(epx_transport_t *, epx_plan_base_t *, const epx_routing_t *, epx_status_t publish,
                            epx_stream_t);
epx_status_t epx_ring_dispatch_start(epx_transport_t *, epx_plan_base_t *, int32_t wave, const void *x,
                                     const epx_batch_t *batch, epx_stream_t);
epx_status_t epx_ring_dispatch_finish(epx_transport_t *, epx_plan_base_t *, int32_t wave, epx_batch_t *batch,
                                      epx_stream_t);
epx_status_t epx_ring_combine_start(epx_transport_t *, epx_plan_base_t *, int32_t wave, const void *y,
                                    epx_stream_t);
epx_status_t epx_ring_combine_finish(epx_transport_t *, epx_plan_base_t *, int32_t wave, void *out,
                                     epx_stream_t);
epx_status_t epx_ring_combine_backward_start(epx_transport_t *, epx_plan_base_t *, int32_t wave,
                                             const void *dout, epx_stream_t);
epx_status_t epx_ring_combine_backward_finish(epx_transport_t *, epx_plan_base_t *, int32_t wave,
                                              const void *y, epx_batch_t *dy, epx_stream_t);
epx_status_t epx_ring_dispatch_backward_start(epx_transport_t *, epx_plan_base_t *, int32_t wave,
                                              const void *dx_rows, epx_stream_t);
epx_status_t epx_ring_dispatch_backward_finish(epx_transport_t *, epx_plan_base_t *, int32_t wave, void *dx,
                                               float *dweight, epx_stream_t);

#endif
