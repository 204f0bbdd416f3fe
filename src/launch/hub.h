/*
 * The hub's inside: one thread, no locks, everything it owns. SPDX-License-Identifier: Apache-2.0
 *
 * A connection is GREETING until a whole, right FRAME_HELLO has come, then it is a rank's. A collective
 * exists from its first block on until its last; then its answer goes to all that sent one.
 */
#ifndef EPX_LAUNCH_HUB_H
#define EPX_LAUNCH_HUB_H

#include <stdatomic.h>

#include "launch/internal.h"

/* Bytes that go to several ranks are written once. */
typedef struct hub_bytes {
    int32_t references;
    size_t bytes;
    uint8_t data[]; /* a frame and what follows it */
} hub_bytes_t;

typedef struct hub_out {
    struct hub_out *next;
    hub_bytes_t *what;
    size_t sent;
} hub_out_t;

typedef struct hub_connection {
    struct hub_connection *next;
    int socket;          /* -1: to be freed */
    int32_t rank;        /* -1: greeting */
    int64_t deadline_ns; /* of the greeting, or of the last words to somebody who is shown out */
    int is_refused;
    epx_frame_t frame;
    size_t got; /* of frame and data together */
    uint8_t *data;
    hub_out_t *first, **last;
} hub_connection_t;

typedef struct hub_collective {
    struct hub_collective *next;
    epx_frame_t frame; /* of the first who came */
    int32_t came;
    int32_t *rank; /* [size], -1: has not come */
    uint8_t *data; /* [size, bytes] */
} hub_collective_t;

typedef struct hub_rank {
    hub_connection_t *connection; /* NULL: not here (yet, any more) */
    epx_link_state_t state;
    uint8_t *note;
    size_t note_bytes;
    int64_t note_ns;
} hub_rank_t;

struct epx_hub {
    pthread_t thread;
    int listener, wake[2];
    uint64_t key;
    int32_t size, joined;
    int64_t deadline_ns; /* of the joining */
    int has_welcomed, has_given_up;
    atomic_int linger_ms; /* -1: go on */
    hub_rank_t *rank;     /* [size] */
    epx_link_card_t *card;
    hub_connection_t *connections;
    hub_collective_t *collectives;
};

/* ---- hub_say.c ---- */

/* Says something to one rank; drops the connection of whom it cannot. data may be NULL with bytes 0. */
void epx_hub_say(hub_connection_t *to, const epx_frame_t *frame, const void *data);
void epx_hub_say_all(struct epx_hub *hub, const epx_frame_t *frame, const void *data);
/* A buffer that several get: write data, say it to each, then drop one's own hold. NULL: no memory. */
hub_bytes_t *epx_hub_bytes(const epx_frame_t *frame);
void epx_hub_say_bytes(hub_connection_t *to, hub_bytes_t *what);
void epx_hub_drop_bytes(hub_bytes_t *what);
/* Writes what can be written now. */
void epx_hub_flush(hub_connection_t *to);

/* ---- hub_handle.c ---- */

/* One frame of a rank, with its data, which the callee may take over by setting *data_p to NULL. */
void epx_hub_handle(struct epx_hub *hub, hub_connection_t *from, const epx_frame_t *frame, uint8_t **data_p);
void epx_hub_free_collectives(struct epx_hub *hub);

#endif
