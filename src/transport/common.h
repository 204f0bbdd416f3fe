/*
 * What the transports share: channel and slot numbering, posting, waiting with a full text, reading ids.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_TRANSPORT_COMMON_H
#define EPX_TRANSPORT_COMMON_H

#include <epx/transport.h>

#include "transport/pieces.h"

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
 * Routing kernels read who owns what, so a transport keeps the owners' tables in device memory too, copied
 * there once when it opens. tables_bytes: what they take. copy: puts them at `area` (device) and makes
 * *copy_p the shape with its tables there; the fields that are no tables are the same.
 */
int64_t epx_shape_tables_bytes(const epx_shape_t *shape);
epx_status_t epx_shape_tables_copy(const epx_transport_env_t *env, void *area, epx_shape_t *copy_p);

/* Rounds up to a multiple of `unit` (a power of two). Areas start at multiples of EPX_AREA_ALIGN. */
#define EPX_AREA_ALIGN 256
int64_t epx_round_up(int64_t bytes, int64_t unit);

/* Takes `bytes` from an area that is being laid out: returns the offset, moves *end on, keeps the alignment.
 */
int64_t epx_take_area(int64_t *end, int64_t bytes);

/*
 * Epochs of a lane. A pass counts its epochs from a base of its own,
 *     generation (16 bits) | passes ended well on this lane (24) | number of the plan's route (10) | 0 (14),
 * and every start call takes the next one, on every rank in the same order.
 *
 * A route may fail on a rank that then skips the dead plan's calls, while others begin its pass before they
 * see it die. Their epochs stay equal all the same: a pass that dies is not counted. What it left in words of
 * the lane is told from the next pass, which has the same count, by the route's number: a dead route is never
 * used again.
 */
void epx_lane_begin(epx_lane_t *lane, uint64_t route);

/*
 * Resident epochs. Where errors come late (EPX_FABRIC_LATE_ERRORS) and a graph may be replayed (CAPTURABLE),
 * no host code runs when it would have to count, so lane->words is on the device and kernels move it on in
 * stream order:
 *
 * - D1  A route, good or bad, moves on the lane's count of routes, on every rank: a rank whose call is bad
 * makes it too, and takes part in the exchange. That count is the number of the route in its plan's head.
 *
 * - D2  A pass counts its epochs from passes | number | 0, read when it begins; a call's epoch is that base
 * plus the call's place in the pass, the only part that is the host's, and the same at every replay.
 *
 * - D3  Words of a dead plan are neither posted nor waited for (the gate is head->valid), and its pass is not
 * counted when it ends. So it does not matter which of its calls a rank still makes: hosts that know stop,
 * hosts that do not go on, and nobody is waited for. Nobody refuses a pass (E2 and E3 are of the other
 * fabrics): a data call returns the error as soon as this rank's device has told.
 *
 * - D4  All ranks' devices agree on whether a plan is dead before they count its pass. ragged and ring decide
 * by the exchange, which is in the route. pooled_wave's failing rank sends nothing but its failure word,
 * behind its gate in the route; nobody's first wait can end without that rank's data, so it ends by that word
 * and kills the plan.
 *
 * - D5  Epochs are not used twice: after a pass that was counted passes differ, after one that was not the
 * number does, since a dead plan is routed again before it is used.
 *
 * A route is made by all ranks whatever became of the last one: an error of it that no call has returned is
 * told by epx_group_check, and logged when the plan is routed again.
 */
/* What shuts in a dead plan (D3); NULL where epochs are the host's. */
const int32_t *epx_resident_gate(const epx_plan_base_t *plan);
epx_epoch_t epx_lane_epoch(const epx_lane_t *lane, uint64_t epoch);
/* A pass begins: the first word that it posts, or waits for, tells the device. */
void epx_lane_begins(epx_lane_t *lane);
/* Where epochs are the host's these do nothing. route: the plan's head is written and its route counted. */
epx_status_t epx_lane_route(epx_transport_t *transport, const epx_plan_base_t *plan, epx_stream_t stream);
/* The same by the kernel that reads the route's ids, whose launch it saves. */
void epx_lane_routes(const epx_plan_base_t *plan);
epx_status_t epx_lane_end(epx_transport_t *transport, const epx_plan_base_t *plan, epx_stream_t stream);

/* D4: behind the kernel that decides this rank's part. */
epx_status_t epx_route_post_if_failed(epx_transport_t *transport, const epx_plan_base_t *plan,
                                      epx_stream_t stream);

/*
 * Errors that the device finds. Where the host cannot look at ids, a route returns EPX_OK and kernels find
 * out; every rank's host sees it when its own device has told (plan->report), so at another call than others.
 * All ranks must still count the same passes:
 *
 * - E1: a pass that has begun goes on: its calls return EPX_OK, the kernels of the dead plan do nothing.
 *
 * - E2: a rank that knows where a pass begins refuses it: it returns the error, starts nothing, and posts the
 * base of that pass's epochs as its refusal to all ranks. The pass is not counted there.
 *
 * - E3: ranks that have begun it watch for refusals of it in every wait, and end with the error. None of them
 * can end the pass otherwise, since every pass needs something of every rank; so it is counted nowhere.
 *
 * - E4: what no call has returned yet comes out in the next route of the plan, on all ranks: where a pass has
 * been made with it, the route waits for this rank's own device to have decided the last one.
 */
epx_status_t epx_pass_refuse(epx_transport_t *transport, const epx_plan_base_t *plan, epx_stream_t stream);
/* Rows of failure words for refusals, behind the transport's own; a route's row is found as with failures. */
int32_t epx_refusal_channels(const epx_shape_t *shape);

/* The lane's next epoch. */
uint64_t epx_lane_advance(epx_lane_t *lane);

/* Failure words of routes: the n-th has row n mod (this, for each lane). One row would not do: a plan that
 * was routed well and is still to be dispatched must neither take a later failure for its own, nor miss its
 * own behind a later one. */
#define EPX_FAILURE_ROWS 32
int32_t epx_failure_channels(const epx_shape_t *shape);

/* Tells all peers that this rank's part of the plan's route failed; the word is the route's number. Waits for
 * nobody. */
epx_status_t epx_route_post_failure(epx_transport_t *transport, const epx_plan_base_t *plan,
                                    epx_stream_t stream);

/*
 * EPX_OK, or what this rank's device has found of the plan's route by now, with its text: ROUTING or ARG
 * naming this rank's slip, PEER naming the rank. Never blocks.
 */
epx_status_t epx_route_verdict(epx_transport_t *transport, const epx_plan_base_t *plan);

/* EPX_ERR_PEER with the sentence that rank `peer`'s route failed. */
epx_status_t epx_route_peer_failed(const epx_transport_t *transport, const epx_plan_base_t *plan,
                                   int32_t peer);

/* Whether what the device tells of the plan's route (report and what stands behind it) is there. */
int epx_route_is_told(const epx_plan_base_t *plan);

/* Host reads of device memory: copies and synchronises. For checks, and where a contract says that it
 * synchronises. */
epx_status_t epx_fetch(epx_transport_t *transport, void *to, const void *from, size_t bytes,
                       epx_stream_t stream);

/* Copies the host's copy of the head, all but the counts, to the bytes; with_counts: the counts too. */
epx_status_t epx_head_write(epx_transport_t *transport, epx_plan_base_t *plan, int with_counts,
                            epx_stream_t stream);

/* Sets a flag of the head (confirmed, learned) in the host's copy and in the bytes. */
epx_status_t epx_head_mark(epx_transport_t *transport, epx_plan_base_t *plan, int32_t *flag,
                           epx_stream_t stream);

/* Sets my word of the move at one peer or all (EPX_ALL_PEERS). Rows have been stored before (LOADSTORE,
 * pieces NULL), or are sent now. */
epx_status_t epx_move_post(epx_transport_t *transport, const epx_plan_base_t *plan, int32_t channel,
                           uint64_t epoch, int32_t peer, const epx_pieces_t *pieces, epx_stream_t stream);

typedef struct epx_move_wait {
    epx_move_t move;
    int32_t wave, lane, channel;
    uint64_t epoch;
    int32_t peer; /* or EPX_ALL_PEERS */
    epx_wait_mode_t mode;
    int32_t watch; /* 1: failure words of the plan's route end the wait */
    int32_t last;  /* 1: no word of the pass is posted or waited for behind this one */
    /* Copied when the wait has ended well (not waited for): bytes, a multiple of 8, from the device to memory
     * that host and device see. */
    const void *tell_from;
    void *tell_to;
    size_t tell_bytes;
    int32_t credit; /* i + 1: an earlier pass's epoch, which lane->acknowledged[i] has set; where epochs are
                       resident it is words->credit[i] */
    int32_t behind_post; /* as in epx_wait_t: asked for where lane->adjoins, and nothing is between */
    int32_t next_begins; /* as in epx_wait_t */
} epx_move_wait_t;

/* Waits, adds to the plan's waiting time, and on an error sets the text: operation, wave, lane, peer,
 * expected and seen epoch. A failure word gives EPX_ERR_PEER "rank p's route failed", or what this rank's
 * own device has found; the host's head of the plan is dead then. */
epx_status_t epx_move_wait(epx_transport_t *transport, epx_plan_base_t *plan, const epx_move_wait_t *wait,
                           epx_stream_t stream);

/* For the first kernel of a start call that takes it, behind epx_lane_advance: what tells the flight recorder
 * that the call has begun on the device. Nothing where none writes to it, or at a second asking. */
epx_k_begun_t epx_move_begun(epx_transport_t *transport, const epx_plan_base_t *plan);

/* The epoch of the call that has advanced the lane last, for a kernel that may run before the post which
 * begins the pass; nothing is said. */
epx_k_begun_t epx_move_epoch(const epx_plan_base_t *plan);

/* How a wait or exchange that the device made has ended, where errors come late: EPX_OK, or the status with
 * the text that epx_move_wait or epx_route_exchange would have set. Never blocks. */
epx_status_t epx_late_error(epx_transport_t *transport);

/* Whether errors of waits come late on the transport's fabric. */
static inline int epx_errors_come_late(const epx_transport_t *transport)
{
    return (transport->env.fabric->caps & EPX_FABRIC_LATE_ERRORS) != 0;
}

/* All-gather of one block on the lane's exchange channel; send NULL publishes a failure (see fabric.h). Sets
 * the text. */
epx_status_t epx_route_exchange(epx_transport_t *transport, epx_plan_base_t *plan, const void *send,
                                void *receive, size_t bytes, epx_stream_t stream);

/* As epx_route_exchange with blocks in host memory. */
epx_status_t epx_route_exchange_on_host(epx_transport_t *transport, epx_plan_base_t *plan, const void *send,
                                        void *receive, size_t bytes, epx_stream_t stream);

/*
 * Reads ids through kernels->read_ids, and takes the weights along. look: the notice is looked at now (it
 * must be where this is the end of the matter; elsewhere it costs a synchronisation on devices without
 * host_access); a bad one is EPX_ERR_ROUTING with rank, token, k and id, or EPX_ERR_ARG with T. Where the
 * host reaches the memory it looks in any case.
 */
epx_status_t epx_route_read_ids(epx_transport_t *transport, const epx_plan_base_t *plan,
                                epx_k_read_ids_t *args, int look, epx_stream_t stream);

/*
 * What an exchange brought, before a kernel lays rows out by it: notices stride bytes apart with counts [m,
 * E] behind them, or counts alone. T is in 0 .. T_max, a virtual sender's counts are not negative and no more
 * than K for each of its tokens. EPX_ERR_CORRUPT names the rank whose block is none of that. Looks only where
 * the host reaches the memory: elsewhere it would wait for the device.
 */
epx_status_t epx_route_check_notices(const epx_transport_t *transport, const void *notices, int64_t stride);
epx_status_t epx_route_check_counts(const epx_transport_t *transport, const int32_t *counts);

/* The plan's head in its bytes: device memory. */
static inline epx_plan_head_t *epx_plan_head(const epx_plan_base_t *plan)
{
    return (epx_plan_head_t *)plan->bytes;
}

/* What kernels that decide the plan's route get. */
epx_k_verdict_t epx_route_for_kernels(const epx_plan_base_t *plan);

/* The transport's own part of the plan's report. */
static inline void *epx_plan_report(const epx_plan_base_t *plan) { return plan->report + 1; }

/* Fills an area with the NaN pattern when the group checks with canaries. */
epx_status_t epx_canary_fill(epx_transport_t *transport, void *area, int64_t bytes, epx_stream_t stream);

/* Bytes of one element of a row type; 0 for others. */
int32_t epx_type_bytes(epx_type_t type);

#endif
