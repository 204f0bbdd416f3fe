/* Inside of launch. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_LAUNCH_INTERNAL_H
#define EPX_LAUNCH_INTERNAL_H

#include <poll.h>
#include <pthread.h>

#include "launch/launch.h"

/* ---- text.c ---- */

/* A whole number without sign in [least, most]; 0: it is none. text may be NULL. */
int epx_launch_number(const char *text, int64_t least, int64_t most, int64_t *value_p);
/* One number of two; text may be NULL. */
uint64_t epx_launch_hash(uint64_t hash, const char *text);

/* ---- env.c ---- */

/* The first host of Slurm's short form; 0: there is none. */
int epx_launch_first_host(const char *list, char *host, size_t bytes);

/* ---- address.c ---- */

/* "host:port", "[v6]:port"; 0: it is none. */
int epx_launch_split_address(const char *text, char *host, size_t bytes, int32_t *port_p);

/* A listening socket on `port` (0: any) of all addresses, or of the loopback ones where `host` is one; -1 and
 * errno. */
int epx_launch_listen(const char *host, int32_t port, int32_t *port_p);

/* A connection to host, ready by deadline_ns, or -1 and errno (ENOENT: the name is unknown). */
int epx_launch_connect(const char *host, int32_t port, int64_t deadline_ns);

/* Small messages at once, and a peer that is gone noticed. */
void epx_launch_tune(int socket);

/* Sends or receives all, by deadline_ns. 0: done, else errno (ETIMEDOUT, EPIPE: the other has closed). */
int epx_launch_send(int socket, const void *data, size_t bytes, int64_t deadline_ns);
int epx_launch_receive(int socket, void *data, size_t bytes, int64_t deadline_ns);

/* This host's addresses but the loopback ones, with blanks between. */
void epx_launch_addresses(char *text, size_t bytes);

/* ---- pmix_pmix.c, pmix_nopmix.c ---- */

int epx_pmix_is_there(epx_launch_variable_fn variable);
const char *epx_pmix_reason(void);
/* Rank, size, places on the host, key. */
epx_status_t epx_pmix_who(epx_launch_t *launch);
/* Rank 0 says `text` (EPX_LAUNCH_TEXT_BYTES), all get it. Collective, bounded. */
epx_status_t epx_pmix_tell(const epx_launch_t *launch, int32_t meeting, char *text, int64_t timeout_ms);

/* No more of it. */
void epx_pmix_end(void);

/* ---- what goes over a connection ---- */

enum {
    EPX_FRAME_MAGIC = 0x4c585045, /* "EPXL" */
    EPX_FRAME_DATA_MAX = 64 << 20,
    EPX_HUB_TEXT_BYTES = 512
};

typedef enum epx_frame_kind {
    FRAME_HELLO = 1, /* to the hub: frame_hello_t */
    FRAME_REFUSED,   /* status in `place`, text */
    FRAME_WELCOME,   /* cards [size] */
    FRAME_GATHER,    /* to the hub: a block; back: [size] blocks */
    FRAME_REDUCE,    /* to the hub: values; back: what they come to */
    FRAME_FAILED,    /* of a collective: status in `place`, text */
    FRAME_MISSING,   /* asks which place of a collective has not come; back: in `place` */
    FRAME_ABORT,     /* of a circle, by `place` */
    FRAME_DEAD,      /* rank in `place` */
    FRAME_LEFT,      /* to the hub: I go; back: rank in `place` has gone */
    FRAME_PUT,       /* a note */
    FRAME_GET,       /* back: one FRAME_NOTE for each rank, and a FRAME_GET */
    FRAME_NOTE,      /* rank in `place`, state in `size`, age in ms in `sequence` */
    FRAME_CALL       /* word in `sequence`; back: to all, from rank `place` */
} epx_frame_kind_t;

/* All ranks of a job are of one build and byte order; the magic tells where that does not hold. */
typedef struct epx_frame {
    uint32_t magic;
    uint16_t kind, number_reduce; /* FRAME_REDUCE: number * 16 + reduce */
    uint32_t bytes;               /* that follow */
    int32_t place, size;
    uint32_t zero;
    uint64_t circle, sequence;
} epx_frame_t;

typedef struct frame_hello {
    uint64_t key;
    int32_t rank, size;
    epx_link_card_t card;
} frame_hello_t;

/* ---- hub.c ---- */

/* A thread that gets no signals; 0: none could be had. */
int epx_launch_start_thread(pthread_t *thread, void *(*run)(void *), void *argument);

typedef struct epx_hub epx_hub_t;

/* Takes the listening socket over. Ranks that have not come by deadline_ns are named to the others. NULL: no
 * memory or no thread. */
epx_hub_t *epx_hub_start(int listener, const epx_launch_t *launch, int64_t timeout_ms);
/* Waits until everybody has left or died, at most linger_ms, and ends it. */
void epx_hub_stop(epx_hub_t **hub_p, int64_t linger_ms);

#endif
