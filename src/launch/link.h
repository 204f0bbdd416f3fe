/*
 * A process's end of the link. SPDX-License-Identifier: Apache-2.0
 *
 * One thread reads the connection; whoever has something to say writes it, under the lock of writing. All
 * else is under one mutex, held for a few instructions, never across a wait other than the condition's own.
 * Results are copied to a waiting call under that mutex: a call that has given up is no longer in the list,
 * so nothing is written to memory that its caller has taken back.
 */
#ifndef EPX_LAUNCH_LINK_H
#define EPX_LAUNCH_LINK_H

#include "launch/internal.h"

/* A call that waits for an answer of the hub; on its caller's stack. */
typedef struct link_call {
    struct link_call *next;
    epx_frame_kind_t kind; /* of the answer: GATHER, REDUCE, MISSING, GET */
    uint64_t circle, sequence;
    uint8_t *receive;
    size_t bytes; /* that the answer has */
    int done;
    int32_t place; /* MISSING: the answer */
    epx_status_t status;
    char text[EPX_HUB_TEXT_BYTES];
    /* GET */
    epx_link_note_fn fn;
    void *context;
} link_call_t;

struct epx_circle {
    epx_link_t *link;
    struct epx_circle *next;
    uint64_t id, sequence;
    int32_t size, place;
    int32_t aborted_by;   /* place, -1; under the mutex */
    int32_t abort_blames; /* rank of the link + 1, or 0 */
    int32_t rank[];       /* [size] */
};

/* An abort of a circle that this process has not made yet. */
typedef struct link_early_abort {
    uint64_t id;
    int32_t place, blamed;
} link_early_abort_t;

enum { EARLY_ABORTS = 64 };

struct epx_link {
    int32_t rank, size;
    int socket;
    epx_link_card_t *card;
    epx_hub_t *hub; /* rank 0's */
    pthread_t thread;
    pthread_mutex_t writing;
    int is_broken; /* a frame was not written whole; under `writing` */

    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int is_down;             /* the connection has ended */
    int32_t deaths;          /* how many ranks are dead */
    int32_t blamed;          /* rank + 1 that a collective waited for in vain, or 0 */
    int is_spoilt;           /* something has failed or was aborted: nobody lingers */
    epx_link_state_t *state; /* [size] */
    link_call_t *calls;
    epx_circle_t *circles;
    link_early_abort_t early[EARLY_ABORTS];
    uint32_t early_count;
    epx_link_call_fn on_call;
    void *on_call_context;
    uint64_t gets;
};

/* Writes a frame. TIMEOUT: the hub does not take it; PEER: it is gone. */
epx_status_t epx_link_write(epx_link_t *link, const epx_frame_t *frame, const void *data,
                            int64_t deadline_ns);
/* Adds a call to the list before its frame is written, and takes it out. */
void epx_link_begin(epx_link_t *link, link_call_t *call);
void epx_link_end(epx_link_t *link, link_call_t *call);
/* The reading thread. */
void *epx_link_run(void *link);

#endif
