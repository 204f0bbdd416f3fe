/*
 * Fabric `local`: ranks are threads of one process. SPDX-License-Identifier: Apache-2.0
 *
 * Every rank has one block of memory with its words, its exchange boxes and its bell; all ranks' blocks and
 * segments are released by the last one that closes, so that nobody touches freed memory, whatever the order.
 *
 * A device without host_access: work is in streams, words are published by the host as ever. Before a rank
 * sets a word it records an event, and whoever has seen the word lets its own stream wait for that event.
 *
 * - R1: a stream waits for recorded events only, so for work that is in a stream already: whatever the order
 * of calls, streams cannot wait for each other in a circle, and nothing spins on the device.
 *
 * - R2: an event may have been recorded again since: then more is waited for than was asked, and by R1 that
 * ends too.
 *
 * - R3: exchange: every rank has boxes for all blocks in its device memory, and the sender pushes into them.
 * It pushes step e behind every peer's event of step e-1 or a later one: the peer's reads of step e-2 are
 * before that in its stream.
 *
 * - R4: many ranks: the last one that posts an epoch to all lets a stream of its own wait for everybody's
 * event and records one for all of them there; who waits for all then waits for that one. So S ranks make 2 S
 * waits instead of S * S. It is told before the word that makes the epoch complete; who does not find it (a
 * rank failed, or is ahead) waits for each.
 *
 * - R5: the calls of a lane are ordered on the device, by one stream or by the caller's own events.
 *
 * Who rings. S ranks that ring each other at every post would wake each other S * S times for a wait that
 * ends once, so a post rings only the ranks that sleep for the very word that it has set.
 *
 * - B1: before a rank sleeps it says for which word (`awaits`), and looks at that word once more; a post sets
 * the word first and looks at `awaits` after. All four are sequentially consistent, so either the post sees
 * who awaits it, or the look sees the word. The stores are exchanges: an emulator of ARM on x86 (QEMU 7.2)
 * lets a load overtake a plain one. A stale `awaits` costs a ring that nobody needed.
 *
 * - B2: whatever else ends a wait (failure words, the abort, survivors) rings without asking.
 *
 * - B3: who waits for all where R4 holds would wake for one rank after the other. It sleeps for `joined`
 * instead, whose word the last rank sets before its own words, and that one rings behind them: one ring for
 * each sleeper. What has arrived is decided by the words of the ranks alone, which are looked at one by one
 * then, and slept for where one is still to come. If nobody is the last one (a rank failed, or is ahead),
 * nobody rings: so this kind of sleep ends JOIN_MS after the wait began, or at its deadline.
 */
#ifndef EPX_FABRIC_LOCAL_LOCAL_H
#define EPX_FABRIC_LOCAL_LOCAL_H

#include <stdatomic.h>

#include <epx/fabric.h>

#include "base/bell.h"
#include "fabric/gather.h"

extern const epx_fabric_ops_t epx_fabric_local;

/* Creates the n fabrics of one process at once, without a bootstrap. config->bootstrap is ignored. All or
 * none. */
epx_status_t epx_fabric_local_create(const epx_fabric_config_t *config, int32_t n, epx_fabric_t **fabrics);

typedef struct local_fabric local_fabric_t;

typedef struct local_channel {
    epx_gather_side_t side;    /* mine */
    _Atomic uint64_t *word;    /* [S], written by each peer */
    _Atomic uint64_t *failure; /* [S] */
    uint8_t *box;              /* [2][host_box_bytes], mine, read by peers */
    /* without host_access */
    epx_event_t event;  /* recorded before every step of mine is posted */
    uint64_t *followed; /* [S] the step whose event my stream has waited for */
} local_channel_t;

/* R4, of one channel. */
typedef struct local_join {
    uint64_t epoch; /* that is being counted, and how many have posted it; under the hub's lock */
    int32_t count;
    _Atomic int32_t who;     /* the rank whose `all_event` stands for all */
    _Atomic uint64_t joined; /* the epoch that it stands for; 0: none yet */
} local_join_t;

typedef struct local_segment {
    void *memory;
    size_t bytes;
    void **peer_ptr; /* [S] */
} local_segment_t;

/* What all ranks share; that of rank 0 is used. */
typedef struct local_hub {
    _Atomic int32_t references;
    _Atomic uint64_t abort;  /* 0, or (aborting rank + 1) << 32 | (culprit + 1) */
    atomic_flag lock;        /* held for a few instructions, never across a wait */
    int32_t joined, closed;  /* survivors; under the lock */
    local_fabric_t **member; /* [S] = the peer table of rank 0 */
    local_join_t *join;      /* [channels + exchange_channels], that of rank 0 */
} local_hub_t;

struct local_fabric {
    epx_fabric_t base;
    epx_fabric_config_t config;
    epx_allocator_t allocator; /* a copy: the fabric may outlive its group */
    int64_t block_bytes, host_box_bytes;
    int32_t spins;
    local_hub_t own_hub, *hub;
    local_fabric_t **peer;     /* [S] */
    _Atomic uint64_t *word;    /* [channels, S] */
    _Atomic uint64_t *failure; /* [failure_channels, S] */
    local_channel_t *channel;  /* [exchange_channels + LOCAL_EXTRA_CHANNELS] */
    void *device_block;        /* without host_access: device_bytes of tables and boxes */
    int64_t device_bytes;
    epx_event_t *event;       /* [channels] without host_access: recorded before every post */
    epx_event_t *all_event;   /* [channels + exchange_channels] likewise, of R4; NULL with few ranks */
    epx_stream_t side;        /* where they are recorded */
    local_segment_t *segment; /* [segments_max] */
    int32_t segments;
    int32_t joined; /* survivors: I was there; under the hub's lock */
    int32_t *alive; /* [S] survivors' old ranks, which their circle keeps */
    epx_circle_t survivors;
    _Alignas(64) epx_bell_t bell;
    _Atomic uintptr_t awaits; /* B1: the word's address; 0: has not slept yet */
};

/* Behind the configured exchange channels: one for set-up, one for survivors (it ignores the abort). */
enum { LOCAL_SETUP_CHANNEL = 0, LOCAL_SURVIVORS_CHANNEL = 1, LOCAL_EXTRA_CHANNELS = 2 };

/* One wait in progress. */
typedef struct local_watch {
    local_fabric_t *fabric;
    int64_t deadline_ns, begin_ns; /* begin 0: has not waited yet */
    int64_t timeout_ms;
    int32_t ignores_abort;
    const local_join_t *join;            /* B3: all are awaited; or NULL */
    uint64_t epoch;                      /* with which they join */
    const epx_patience_t *patience;      /* or NULL */
    const epx_fabric_meeting_t *meeting; /* whose end ends the wait; or NULL */
} local_watch_t;

/* One look at `word` that failed: counts spins, then sleeps (B1). EPX_ERR_TIMEOUT at the deadline, PEER or
 * ABORTED after an abort (*culprit_p: the aborting rank). `spin` is the caller's counter, 0 at first; `bell`
 * was noted before the look. */
epx_status_t epx_local_pause(local_watch_t *watch, const _Atomic uint64_t *word, int32_t *spin, uint32_t bell,
                             int32_t *culprit_p);
/* Sets a word of the peer's that I write, and wakes him if he sleeps for it (B1), or for the join that I am
 * the last one of (B3; NULL: of none). */
void epx_local_tell(local_fabric_t *fabric, local_fabric_t *peer, _Atomic uint64_t *word, uint64_t value,
                    const local_join_t *join);

epx_status_t epx_local_post(epx_fabric_t *, const epx_post_t *, epx_stream_t);
epx_status_t epx_local_wait(epx_fabric_t *, const epx_wait_t *, epx_wait_result_t *, epx_stream_t);
epx_status_t epx_local_post_failure(epx_fabric_t *, int32_t, epx_epoch_t, epx_stream_t);
epx_status_t epx_local_exchange(epx_fabric_t *, const epx_exchange_t *, epx_wait_result_t *, epx_stream_t);
void epx_local_abort(epx_fabric_t *, int32_t culprit);
int32_t epx_local_aborted(epx_fabric_t *, int32_t *culprit_p);
epx_status_t epx_local_survivors(epx_fabric_t *, int64_t timeout_ms, uint8_t *alive_p,
                                 epx_bootstrap_t *bootstrap_p);

/* Takes an aligned part of a block that is being laid out. */
static inline int64_t epx_local_take(int64_t *end, int64_t bytes)
{
    int64_t offset = *end;
    *end = (offset + bytes + 127) & ~(int64_t)127;
    return offset;
}
/* The largest block of an exchange, rounded up. */
static inline int64_t epx_local_box_bytes(const epx_fabric_config_t *config)
{
    int64_t bytes = (int64_t)config->exchange_bytes;
    return ((bytes < 256 ? 256 : bytes) + 127) & ~(int64_t)127;
}

static inline int epx_local_is_remote(const local_fabric_t *fabric) { return fabric->device_block != NULL; }

/* ---- remote.c: without host_access ---- */

int64_t epx_local_device_bytes(const epx_fabric_config_t *config, int32_t ranks);
/* Takes the device block and the events; 0: no memory (what was taken is closed with the rest). */
int epx_local_device_open(local_fabric_t *fabric);
void epx_local_device_close(local_fabric_t *fabric);
/* R4: this rank has recorded its event of `channel` for `epoch` and will now tell all. *join_p: the join that
 * it was the last one of, or NULL. */
epx_status_t epx_local_join(local_fabric_t *fabric, int32_t channel, uint64_t epoch,
                            const local_join_t **join_p);
/* NULL: there are none. */
static inline const local_join_t *epx_local_join_of(const local_fabric_t *fabric, int32_t channel)
{
    return fabric->all_event != NULL ? &fabric->hub->join[channel] : NULL;
}
/* Lets the stream wait for all ranks' events of that epoch at once; *done_p 0: it has to for each. */
epx_status_t epx_local_follow_all(local_fabric_t *fabric, int32_t channel, uint64_t epoch,
                                  epx_stream_t stream, int *done_p);
/* Exchange channels stand behind the others there. */
static inline int32_t epx_local_join_of_exchange(const local_fabric_t *fabric, int32_t channel)
{
    return fabric->config.channels + channel;
}
int64_t epx_local_joins(const epx_fabric_config_t *config, int32_t ranks);
/* Fills the tables when all peers are known, and those of a segment. */
epx_status_t epx_local_device_link(local_fabric_t *fabric);
epx_status_t epx_local_device_segment(local_fabric_t *fabric, const local_segment_t *segment,
                                      void *const **table_p);
epx_status_t epx_local_device_exchange(epx_gather_t *gather, const epx_exchange_t *exchange,
                                       epx_stream_t stream);

/* An exchange among all ranks on one of the extra channels, any size, in pieces. */
epx_status_t epx_local_gather(local_fabric_t *fabric, int32_t extra_channel, const void *send, void *receive,
                              size_t bytes, int64_t timeout_ms);

#endif
