/*
 * What the transports share: channel and slot numbering, posting, waiting with a full text, reading ids.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_TRANSPORT_COMMON_H
#define EPX_TRANSPORT_COMMON_H

#include <epx/transport.h>

/* The four data movements of a wave, each with a channel of its own per (lane, slot). */
typedef enum epx_move {
    EPX_MOVE_DISPATCH = 0,
    EPX_MOVE_COMBINE,
    EPX_MOVE_COMBINE_BACKWARD,
    EPX_MOVE_DISPATCH_BACKWARD,
    EPX_MOVES
} epx_move_t;

/* Name for messages: "dispatch", "combine", "combine_backward", "dispatch_backward". */
const char *epx_move_name(epx_move_t move);

/* Channels 0 .. epx_move_channels - 1 are the moves'; a transport may use more behind them. */
int32_t epx_move_channels(const epx_shape_t *shape);
int32_t epx_move_channel(const epx_shape_t *shape, int32_t lane, int32_t wave, epx_move_t move);

/*
 * Routing kernels read who owns what, so a transport keeps the owners' tables in device memory too, copied there once when
 * it opens. tables_bytes: what they take. copy: puts them at `area` (device) and makes *copy_p the shape with its tables
 * there; the fields that are no tables are the same.
 */
int64_t epx_shape_tables_bytes(const epx_shape_t *shape);
epx_status_t epx_shape_tables_copy(const epx_transport_env_t *env, void *area, epx_shape_t *copy_p);

/* Rounds up to a multiple of `unit` (a power of two). Areas start at multiples of EPX_AREA_ALIGN. */
#define EPX_AREA_ALIGN 256
int64_t epx_round_up(int64_t bytes, int64_t unit);

/* Takes `bytes` from an area that is being laid out: returns the offset, moves *end on, keeps the alignment.
 */
int64_t epx_take_area(int64_t *end, int64_t bytes);

/* The lane's next epoch: every route and every start call takes one, on every rank in the same order. */
uint64_t epx_lane_advance(epx_lane_t *lane);

/*
 * The first call on a plan whose route failed on this rank alone (no other rank knew at once): the lane's
 * epoch becomes max(epoch + 1, jump_epoch), as it does on the peers when their dispatch sees the failure.
 * Nothing otherwise.
 */
void epx_lane_resume(epx_plan_base_t *plan);

/* Sets my word of the move at one peer or all (EPX_ALL_PEERS); rows have been stored before (LOADSTORE). */
epx_status_t epx_move_post(epx_transport_t *transport, int32_t channel, uint64_t epoch, int32_t peer,
                           epx_stream_t stream);

typedef struct epx_move_wait {
    epx_move_t move;
    int32_t wave, lane, channel;
    uint64_t epoch;
    int32_t peer; /* or EPX_ALL_PEERS */
    epx_wait_mode_t mode;
    int32_t failure_channel; /* -1: no failure words */
    uint64_t failure_epoch;
    /* A failure word above failure_epoch by less than this stands for a later failure in the same row of
     * words: the wait goes on. 0: every word that has reached failure_epoch counts. */
    uint64_t failure_span;
} epx_move_wait_t;

/* Waits, adds to the plan's waiting time, and on an error sets the text: operation, wave, lane, peer,
 * expected and seen epoch. A failure word gives EPX_ERR_PEER "rank p's route failed". */
epx_status_t epx_move_wait(epx_transport_t *transport, epx_plan_base_t *plan, const epx_move_wait_t *wait,
                           epx_stream_t stream);

/* All-gather of one block on the lane's exchange channel; send NULL publishes a failure (see fabric.h). Sets
 * the text. */
epx_status_t epx_route_exchange(epx_transport_t *transport, epx_plan_base_t *plan, const void *send,
                                void *receive, size_t bytes, epx_stream_t stream);

/* Reads ids through kernels->read_ids and turns a bad one into EPX_ERR_ROUTING with rank, token, k and id.
 * host device: `bad` is looked at at once. */
epx_status_t epx_route_read_ids(epx_transport_t *transport, const epx_k_read_ids_t *args,
                                epx_stream_t stream);

/* The plan's head. */
static inline epx_plan_head_t *epx_plan_head(const epx_plan_base_t *plan)
{
    return (epx_plan_head_t *)plan->bytes;
}

/* Fills an area with the NaN pattern when the group checks with canaries. */
epx_status_t epx_canary_fill(epx_transport_t *transport, void *area, int64_t bytes, epx_stream_t stream);

/* Bytes of one element of a row type; 0 for others. */
int32_t epx_type_bytes(epx_type_t type);

#endif
