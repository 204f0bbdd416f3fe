/*
 * The inside of fabric `ucx`. SPDX-License-Identifier: Apache-2.0
 *
 * Every rank has one control block, of the same layout on all: words, boxes of exchanges, abort words, a
 * bell. A peer is *near* when its control block can be mapped here (ucp_rkey_ptr) and its process can be
 * watched; else it is *far*. Near peers' words and rows are stored directly, far ones' go by ucp_put_nbx.
 * Where all peers are near the fabric has LOADSTORE.
 *
 *   U1  A word is set behind what it announces. Near: stores, then a store with release. Far: puts, then
 *       ucp_worker_fence, then a put of 8 bytes to the same endpoint. A near peer's bell is rung after.
 *
 *       Where the network has no puts of its own (TCP), messages take their place: UCX would answer each
 *       put, and ends the process (seen with 1.13) when the one to be answered is dead. A word then says how
 *       many messages are before it, and waits for them at the receiver.
 *
 *   U2  Puts to this process are carried out by whoever progresses the worker here, under the engine's lock.
 *       Who sees a word that a far peer has set takes that lock once before it goes on: so the whole call
 *       that brought the word, and all before it, have happened for it.
 *
 *   U3  What a put reads stays as it is until the put is done: rows by the contract (epx_piece_t), a word in
 *       a cell of its own, an exchanged block in an out-box that is reused two steps later, when all peers
 *       have said that they have the block (I1).
 *
 *       Rows that a post has a source for are read into a buffer of the fabric, message by message, and sent
 *       from there while they are in a near cache. Buffers are few, and come back when a message is sent:
 *       where all are on their way, the peer is slow, and rows go to where they stand for, and are sent from
 *       there.
 *
 *   U4  A peer is dead when its process has ended (near: pidfd; far: its endpoint has failed) before it said
 *       that it closes. Then every wait of the fabric whose word has not come ends with EPX_ERR_PEER, naming
 *       it.
 *
 *   U5  Memory that far peers may still put to stays until each of them has closed or died. close() therefore
 *       hands the fabric to the engine's thread and waits only for its own puts, and not long. Nothing of a
 *       fabric comes from its caller's allocator, which may be gone by then.
 *
 * Exchange: that of fabric/gather.h (I1 to I3), but blocks are pushed: box (e & 1, p) of rank r
 * is written by p.
 *
 * Survivors: a rank says that it joins at all peers. The lowest rank among those that joined decides, when
 * all joined that are not dead or when its time is up, and writes the set to its members. A member waits for
 * the decision of the lowest rank that it knows to have joined, and for the next one when that rank dies. Who
 * joins says whether it stood still: those that all did, and are not most of the ranks, came too late.
 */
#ifndef EPX_FABRIC_UCX_INTERNAL_H
#define EPX_FABRIC_UCX_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include <epx/fabric.h>

#include <ucp/api/ucp.h>

#include "base/bell.h"
#include "fabric/gather.h"

typedef _Atomic uint64_t ucx_word_t;

/* Offsets in a control block. */
typedef struct ucx_layout {
    int64_t bell, any_abort, abort, closed, joined, decided,
        member;                 /* one, one, [S], [S], [S], one, [S] bytes */
    int64_t word, failure;      /* [channels, S] */
    int64_t step, step_failure; /* [exchange channels, S] */
    int64_t box, box_bytes;     /* [exchange channels, 2, S] */
    int64_t bytes;
} ucx_layout_t;

/* Behind the configured exchange channels: one for set-up, one for survivors (it ignores the abort). */
enum { UCX_SETUP_CHANNEL = 0, UCX_SURVIVORS_CHANNEL = 1, UCX_EXTRA_CHANNELS = 2 };

typedef struct ucx_fabric ucx_fabric_t;
typedef struct ucx_buffer ucx_buffer_t;

/*
 * A message with bytes fits into one of the 64 KiB segments that UCX receives into over TCP, headers
 * included. Were it larger, UCX would send it in fragments, and allocate and put it together before it hands
 * it over.
 */
enum { UCX_MESSAGE_BYTES = 63 << 10, UCX_BUFFERS = 16 };

/* What goes before bytes for a far peer, or is a word. */
typedef struct ucx_note {
    uint64_t fabric; /* the receiver's, as it told */
    int32_t from, is_word;
    uint64_t address; /* there */
    uint64_t value;
    uint64_t after; /* a word: so many messages with bytes are before it */
} ucx_note_t;

/* Something on its way to a far peer, or a word that has overtaken what it announces. */
typedef struct ucx_cell {
    struct ucx_cell *next;
    ucx_fabric_t *fabric;
    ucx_note_t note;
    ucx_buffer_t *buffer; /* what is sent, or NULL: it is elsewhere */
} ucx_cell_t;

/* Room for one message's bytes. */
struct ucx_buffer {
    ucx_buffer_t *next;
    uint8_t *bytes;
};

/* One memory of all ranks: a control block or a segment. */
typedef struct ucx_memory {
    ucp_mem_h handle;
    void *base;
    size_t bytes;
    void **peer_ptr;   /* [S] NULL: far */
    uint64_t *address; /* [S] in the peer */
    ucp_rkey_h *rkey;  /* [S] */
} ucx_memory_t;

typedef struct ucx_peer {
    ucx_fabric_t *fabric;
    int32_t rank, is_near;
    ucp_ep_h endpoint; /* near: on the mapping worker, for its keys only */
    int64_t process;
    int pidfd; /* near; -1: cannot be had, it is asked for now and then */
    atomic_int is_dead;
    int has_failed; /* the endpoint takes no more; under the engine's lock */
    /* Messages with bytes, where puts are not of the network: under the engine's lock. */
    uint64_t its_fabric, sent, got;
    ucx_cell_t *early;
} ucx_peer_t;

struct ucx_fabric {
    epx_fabric_t base;
    epx_fabric_config_t config;
    char name[64];
    ucx_layout_t layout;
    int32_t spins, far_count;
    ucx_memory_t control;
    ucx_memory_t *segment; /* [segments_max] */
    int32_t segments;
    ucx_peer_t *peer;           /* [S] */
    epx_gather_side_t *channel; /* [exchange channels] */
    uint8_t *out;               /* [exchange channels, 2, box_bytes] where there are far peers */
    ucx_cell_t *cell, *free_cell;
    void *room;                         /* of the buffers; NULL: there are none */
    ucx_buffer_t *buffer, *free_buffer; /* [UCX_BUFFERS]; under the engine's lock */
    int64_t in_flight;                  /* puts; under the engine's lock */
    atomic_int any_dead;
    _Atomic uint64_t first_abort; /* 0, or (aborting rank + 1) << 32 | (culprit + 1) */
    int32_t joined;               /* 0: not yet; else what it has told the others with it */
    int32_t *alive;               /* [S] survivors' old ranks, which their circle keeps */
    epx_circle_t survivors;
    int is_closing;                        /* handed to the engine; under its lock */
    void (*release)(ucx_fabric_t *fabric); /* of all that it has; called by the engine, with its lock */
    ucx_fabric_t *next;                    /* of the engine's list */
};

/* In the control block. */
static inline ucx_word_t *epx_ucx_word(const ucx_fabric_t *fabric, int64_t offset)
{
    return (ucx_word_t *)(void *)((uint8_t *)fabric->control.base + offset);
}

static inline epx_bell_t *epx_ucx_bell(const ucx_fabric_t *fabric)
{
    return (epx_bell_t *)(void *)((uint8_t *)fabric->control.base + fabric->layout.bell);
}

/* ---- engine.c: UCX in this process ------------------------------------------------------------------------- */

/* The context and worker of this process, made by the first who asks, who says what handles messages;
 * EPX_ERR_FABRIC with the reason. Balanced by release. */
epx_status_t epx_ucx_engine_take(ucp_am_recv_callback_t receive);
void epx_ucx_engine_release(void);
void epx_ucx_lock(void);
void epx_ucx_unlock(void);
/* All below: with the lock. */
ucp_context_h epx_ucx_context(void);
ucp_worker_h epx_ucx_worker(void);
/* A worker that only maps: endpoints that bear failures do not use shared memory, so near peers have others.
 * It is never progressed. NULL: this process's UCX shares no memory. */
ucp_worker_h epx_ucx_mapping_worker(void);
/* Does what can be done; whether anything was. Rings the bells of this process's fabrics if so. */
int epx_ucx_progress(void);
/* The same, but no more than a message or two: between others that are sent. */
int epx_ucx_progress_some(void);
/* The thread looks after a fabric, and frees it once it is closing and nobody can touch it. */
void epx_ucx_engine_add(ucx_fabric_t *fabric);
void epx_ucx_engine_close(ucx_fabric_t *fabric);
/* Takes it from the list, if it is there, and frees it: it has never been used. */
void epx_ucx_engine_drop(ucx_fabric_t *fabric);
/* Without the lock: one look from a waiting thread. */
void epx_ucx_help(void);

/* Whether this process stood still (stopped, or without a processor) for `for_ms`, a second at least, and has
 * run on for less than `within_ms`. */
int epx_ucx_stood_still(int64_t for_ms, int64_t within_ms);

/* A peer's process has ended: it is dead, unless it had closed. Any thread. */
void epx_ucx_bury(ucx_peer_t *peer);
/* Whether the network puts by itself. */
int epx_ucx_has_puts(void);
/* Of engine.c's list: the fabric that told this token, NULL: it is gone. */
ucx_fabric_t *epx_ucx_find(uint64_t token);
/* Whether this process's UCX can share memory with another one of this host. */
int epx_ucx_can_share(void);

/* ---- memory.c ---- */

/* Memory that UCX allocates, so that near peers can map it. With the lock. */
epx_status_t epx_ucx_map(ucx_fabric_t *fabric, ucx_memory_t *memory, size_t bytes);
void epx_ucx_unmap(ucx_fabric_t *fabric, ucx_memory_t *memory);
/* Unpacks a peer's key; maps it where the peer is near. With the lock. */
epx_status_t epx_ucx_reach(ucx_fabric_t *fabric, ucx_memory_t *memory, int32_t peer, const void *key);
void *epx_ucx_segment_allocate(epx_fabric_t *fabric, size_t bytes);
epx_status_t epx_ucx_segment_open(epx_fabric_t *fabric, void *memory, size_t bytes, epx_segment_t *segment_p);

/* ---- put.c: towards peers ---- */

/* Copies bytes to a peer's memory: now, or on their way (U3). */
epx_status_t epx_ucx_put(ucx_fabric_t *fabric, const ucx_memory_t *memory, int32_t peer, int64_t offset,
                         const void *from, size_t bytes);
/* The same for a piece of a post, from its source where it has one. */
epx_status_t epx_ucx_put_piece(ucx_fabric_t *fabric, const ucx_memory_t *memory, const epx_piece_t *piece,
                               epx_piece_source_t *source);
/* Everything put so far is seen before words that are set from here on. */
void epx_ucx_fence(ucx_fabric_t *fabric);
/* Sets a word in a peer's control block and rings its bell. Peers that are dead are passed over. */
void epx_ucx_set(ucx_fabric_t *fabric, int32_t peer, int64_t offset, uint64_t value);
/* Waits until nothing of this fabric is on its way, at most so long. */
void epx_ucx_drain(ucx_fabric_t *fabric, int64_t timeout_ms);

/* The worker's handler of messages. */
ucs_status_t epx_ucx_receive(void *nothing, const void *header, size_t header_bytes, void *data, size_t bytes,
                             const ucp_am_recv_param_t *param);

/* ---- words.c ---- */

/* One wait in progress. */
typedef struct ucx_watch {
    ucx_fabric_t *fabric;
    int64_t deadline_ns, begin_ns; /* begin 0: has not waited yet */
    int32_t ignores_abort;
    const epx_fabric_meeting_t *meeting; /* whose end ends the wait; or NULL */
} ucx_watch_t;

void epx_ucx_start_clock(ucx_watch_t *watch, int64_t timeout_ms);
/* One look that failed: counts spins, then sleeps. TIMEOUT at the deadline, PEER or ABORTED after an abort or
 * a death (*culprit_p: by whom). */
epx_status_t epx_ucx_pause(ucx_watch_t *watch, int32_t *spin, uint32_t bell, int32_t *culprit_p);
/* U2: a word of this peer has been seen. */
void epx_ucx_saw(ucx_fabric_t *fabric, int32_t peer);

epx_status_t epx_ucx_post(epx_fabric_t *, const epx_post_t *, epx_stream_t);
epx_status_t epx_ucx_wait(epx_fabric_t *, const epx_wait_t *, epx_wait_result_t *, epx_stream_t);
epx_status_t epx_ucx_post_failure(epx_fabric_t *, int32_t, epx_epoch_t, epx_stream_t);
void epx_ucx_abort(epx_fabric_t *, int32_t culprit);
int32_t epx_ucx_aborted(epx_fabric_t *, int32_t *culprit_p);

/* ---- exchange.c ---- */

epx_status_t epx_ucx_exchange(epx_fabric_t *, const epx_exchange_t *, epx_wait_result_t *, epx_stream_t);
/* Among all ranks or the survivors on one of the extra channels, any size, in pieces. */
epx_status_t epx_ucx_gather(ucx_fabric_t *fabric, int32_t extra_channel, const void *send, void *receive,
                            size_t bytes, int64_t timeout_ms);
epx_status_t epx_ucx_survivors(epx_fabric_t *, int64_t timeout_ms, uint8_t *alive_p,
                               epx_bootstrap_t *bootstrap_p);

#endif
