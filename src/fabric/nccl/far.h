/*
 * Fabric `nccl` without windows: rows by ncclSend and ncclRecv, for ranks that loads and stores do not reach.
 * SPDX-License-Identifier: Apache-2.0
 *
 * NCCL pairs a send with a receive, and both wait for each other; words have one writer and are waited for by
 * who likes to, and a rank may leave a pass that others have begun. So calls do not talk to NCCL. A thread of
 * the fabric, the courier, meets those of the peers in rounds, over a communicator that nobody else uses:
 *
 * - R1  A round is one group: every rank sends every other one a column of the same size, and receives one.
 * All couriers make all rounds, so what NCCL is given pairs up whatever the calls of the ranks do. A column
 * says what a rank has to say to that peer: its words, failure words, abort word, steps and boxes of
 * exchanges, and offers. Words say what they are, not what happened: a reader takes those that differ from
 * the peer's last column.
 *
 * - R2  A post is told when the device has got there: behind the rows in the caller's stream a stamp sets a
 * ticket in memory that the host sees, and no word or offer goes out before it.
 *
 * - R3  A post with pieces between two ranks is offered by both of them: (channel, epoch). Where the column
 * that I sent and the one that came in the same round offer the same, its pieces follow at once, in a second
 * group: by channel, and in a channel in the order of the lists, which both sides have alike (fabric.h). Both
 * know both columns, so they decide alike, and what one of them has given up is never begun.
 *
 * - R4  A word goes out behind the pieces of its post: in a later round, or set by the receiver when they
 * have landed. Waits are made on the host, for words that the courier has brought; rows are in place then.
 *
 * - R5  When no column of a round says that its rank is busy all couriers rest, ever longer: they know alike.
 *
 * - R6  A rank that closes says so in a column, and both sides of that pair make no more rounds with each
 * other. Before, it goes on until what it has posted is delivered, or for LINGER_MS.
 *
 * Waits end at their own time by the host's clock, so a courier that is stuck in a round (a peer is gone)
 * harms nobody who waits. It ends when the communicator reports an error, or when its rank closes: then the
 * communicator is aborted, which ends what NCCL has on the device.
 */
#ifndef EPX_FABRIC_NCCL_FAR_H
#define EPX_FABRIC_NCCL_FAR_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/bell.h"
#include "fabric/gather.h"
#include "fabric/nccl/nccl.h"

/* A column, in 64-bit words. */
typedef struct far_column {
    int64_t flags, abort, words, failures, steps, step_failures;
    int64_t offers, boxes, size; /* all before `offers` are words */
    int64_t box_bytes;
} far_column_t;

enum { FAR_LEAVES = 1, FAR_BUSY = 2 };

/* A word that was posted to one peer. */
typedef struct far_word {
    uint64_t epoch, ticket;
    int32_t behind; /* 1: behind pieces that go to that peer */
} far_word_t;

/* The pieces of a post: sends, then receives. */
typedef struct far_list {
    uint64_t epoch, ticket; /* epoch 0: none */
    char *base;             /* of the segment */
    epx_piece_t *piece;
    int32_t sends, receives, room;
} far_list_t;

struct nccl_far {
    far_column_t column;
    uint64_t *out, *in; /* [S, column] host and device see them; the courier's */
    uint64_t *reached;  /* [channels + 1] likewise, set by streams: tickets; last: groups of the courier */
    int64_t shared_bytes;
    _Atomic uint64_t *seen; /* [S, column.offers] what waits read */
    uint8_t *boxes;         /* [S, exchange channels, 2, box_bytes] */
    uint8_t *stage;         /* [exchange channels, 1 + S, exchange_bytes] blocks of a device */
    epx_gather_side_t *side;
    epx_bell_t bell; /* of who waits */

    pthread_mutex_t mutex;    /* over what follows, up to `courier` */
    uint64_t *ticket;         /* [channels] */
    far_word_t *word;         /* [channels, S] */
    far_list_t *posted;       /* [channels] that the courier has not taken yet */
    uint64_t *failure, *step; /* [failure channels], [2, exchange channels]: steps, then failures */
    uint8_t *own_box;         /* [exchange channels, 2, box_bytes] */
    uint64_t changes;
    int32_t is_closing;

    pthread_t courier;
    int32_t has_courier;
    far_list_t *live;      /* [channels] the courier's */
    uint64_t *done;        /* [channels, S] epoch of the last post whose pieces with that peer are through */
    uint64_t *had;         /* [S, column.offers] words of the last column */
    uint8_t *is_gone;      /* [S] */
    uint64_t groups, told; /* groups begun; changes that a round has told */
    int64_t idle;          /* rounds in which nobody was busy */

    _Atomic int32_t waiting; /* how many wait here */
    _Atomic int32_t has_failed;
    _Atomic uint64_t ended; /* 0, or (the rank that ended the group + 1) << 32 | (whom it blames + 1) */
    epx_bell_t stir;        /* wakes a courier that rests */
};
typedef struct nccl_far nccl_far_t;

extern const epx_fabric_ops_t epx_fabric_nccl_far;

/* Whether the group that is to be opened has been told to count on sends and receives only. */
static inline int epx_nccl_is_far(const epx_fabric_config_t *config)
{
    return (config->caps & EPX_FABRIC_LOADSTORE) == 0;
}

/* ---- far.c ---- */

/* Host memory behind the fabric's struct, and device memory. */
int64_t epx_nccl_far_bytes(const epx_fabric_config_t *config, int32_t ranks);
int64_t epx_nccl_far_device_bytes(const epx_fabric_config_t *config, int32_t ranks);
/* What is equal on all ranks. */
int64_t epx_nccl_far_column_bytes(const epx_fabric_config_t *config, int32_t ranks);
/* Lays the struct out in `memory` (zeroed). */
epx_status_t epx_nccl_far_begin(nccl_fabric_t *fabric, void *memory);
/* Ends the courier, and the communicator with it where it has to. */
void epx_nccl_far_end(nccl_fabric_t *fabric);

/* ---- far_courier.c ---- */

epx_status_t epx_nccl_far_start(nccl_fabric_t *fabric);
/* The group has ended: by whom, and whom that rank blames. The first one counts. */
void epx_nccl_far_ended(nccl_far_t *far, int32_t by, int32_t culprit);

/* ---- far_words.c ---- */

epx_status_t epx_nccl_far_post(epx_fabric_t *, const epx_post_t *, epx_stream_t);
epx_status_t epx_nccl_far_wait(epx_fabric_t *, const epx_wait_t *, epx_wait_result_t *, epx_stream_t);
epx_status_t epx_nccl_far_post_failure(epx_fabric_t *, int32_t, epx_epoch_t, epx_stream_t);
epx_status_t epx_nccl_far_exchange(epx_fabric_t *, const epx_exchange_t *, epx_wait_result_t *, epx_stream_t);
void epx_nccl_far_abort(epx_fabric_t *, int32_t culprit);
int32_t epx_nccl_far_aborted(epx_fabric_t *, int32_t *culprit_p);

/* A word of rank p as it has come. */
static inline _Atomic uint64_t *epx_nccl_far_seen(const nccl_far_t *far, int32_t p, int64_t word)
{
    return far->seen + p * far->column.offers + word;
}

static inline uint8_t *epx_nccl_far_box(const nccl_fabric_t *fabric, uint8_t *boxes, int32_t channel,
                                        uint64_t step)
{
    (void)fabric;
    return boxes + (channel * 2 + (int64_t)(step & 1)) * fabric->far->column.box_bytes;
}

#endif
