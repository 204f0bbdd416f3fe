/*
 * Who am I and who else: the launcher's variables, and the link that joins the processes of a job.
 * SPDX-License-Identifier: Apache-2.0
 *
 * The link is a star of TCP connections. The process of rank 0 runs a hub, a thread of its own that takes
 * part in nothing else; every process, rank 0's too, holds one connection to it and a thread that reads it.
 * So the link goes on working while a rank's other threads hang, and the end of a process is seen by its
 * socket.
 *
 * Invariants:
 *
 * - Every call is bounded. Who gives up names the rank that it waited for; a hub that does not answer is rank
 *   0's.
 *
 * - What is said on one connection arrives in order: a result that the hub sent before it heard of a death is
 *   seen before the death.
 *
 * - Nobody who does not know the job's key gets in, and nobody waits for a stranger: whoever has not said a
 *   whole greeting within seconds is shown out. The key is no secret, it tells jobs apart.
 */
#ifndef EPX_LAUNCH_LAUNCH_H
#define EPX_LAUNCH_LAUNCH_H

#include <stddef.h>
#include <stdint.h>

#include <epx/comm.h>

/* ---- who am I ----------------------------------------------------------------------------------------------- */

enum { EPX_LAUNCH_TEXT_BYTES = 256, EPX_LAUNCH_PORTS = 8 };

/* Reads one variable of the environment; NULL: not set. */
typedef const char *(*epx_launch_variable_fn)(const char *name);

typedef struct epx_launch {
    const char *launcher; /* "PMIx", "torchrun", "Slurm", ...; "none": one process alone */
    int32_t rank, size;
    int32_t local_rank, local_size; /* among the processes of this host; -1, 0: the launcher did not say */
    int32_t uses_pmix;              /* where rank 0 listens is told through PMIx */
    /* Else: where rank 0 listens, and how many ports from there on may be tried. */
    char root_host[EPX_LAUNCH_TEXT_BYTES];
    int32_t root_port, root_ports;
    char root_from[64]; /* the variable that says so, for messages */
    uint64_t key;       /* of the job */
} epx_launch_t;

/*
 * This process's place, by the first launcher in the table of env.c whose variables are there:
 * EPX_RANK/EPX_WORLD_SIZE, torchrun, Open MPI, MPICH, Slurm, PMIx alone. EPX_ROOT says where rank 0 is,
 * whatever the launcher. Waits for nobody. EPX_ERR_ARG names a variable that is missing, no number, or out of
 * range.
 */
epx_status_t epx_launch_from_env(epx_launch_variable_fn variable, epx_launch_t *launch_p);

/* ---- the link ----------------------------------------------------------------------------------------------- */

typedef struct epx_link epx_link_t;

/* Who a process is, as every other one learns it. */
typedef struct epx_link_card {
    uint64_t host;     /* equal where shared memory can be shared: boot, IPC, PID and network name spaces */
    int64_t process;   /* its id there */
    char name[64];     /* the host's */
    char reserved[48]; /* zero */
} epx_link_card_t;

/* This process's own. */
void epx_launch_my_card(epx_link_card_t *card);

typedef enum epx_link_state { EPX_LINK_HERE = 0, EPX_LINK_LEFT, EPX_LINK_DEAD } epx_link_state_t;

/*
 * Meets all processes of the job. Collective; within timeout_ms. EPX_ERR_TIMEOUT names the ranks that did not
 * come, EPX_ERR_ARG a rank that is there twice or a size that differs.
 */
epx_status_t epx_link_open(const epx_launch_t *launch, int64_t timeout_ms, epx_link_t **link_p);

/* Leaves. Rank 0's hub stays for those who are still there, at most some seconds. */
void epx_link_close(epx_link_t **link_p);

int32_t epx_link_rank(const epx_link_t *link);
int32_t epx_link_size(const epx_link_t *link);
/* [size] */
const epx_link_card_t *epx_link_cards(const epx_link_t *link);
/* What is known of a rank now. Any thread. */
epx_link_state_t epx_link_state(epx_link_t *link, int32_t rank);

/* ---- notes: out of band, from any thread, also while others hang --------------------------------------------- */

enum { EPX_LINK_NOTE_BYTES = 65536 };

/* Leaves a note at the hub in place of this rank's last one. Waits for nobody longer than 200 ms. */
epx_status_t epx_link_put(epx_link_t *link, const void *note, size_t bytes);

/* One rank's note. note NULL, bytes 0: it has left none so far. age_ms: since the hub got it. */
typedef void (*epx_link_note_fn)(void *context, int32_t rank, epx_link_state_t state, const void *note,
                                 size_t bytes, int64_t age_ms);

/* All ranks' last notes, ascending. EPX_ERR_TIMEOUT or EPX_ERR_PEER where rank 0 does not answer. */
epx_status_t epx_link_get(epx_link_t *link, int64_t timeout_ms, epx_link_note_fn fn, void *context);

/* Calls every rank, this one too: their handlers run, on their link's own thread, with this word. A handler
 * may put, and must not wait. One handler per link; NULL: none. */
typedef void (*epx_link_call_fn)(void *context, int32_t from, uint64_t word);
void epx_link_on_call(epx_link_t *link, epx_link_call_fn fn, void *context);
epx_status_t epx_link_call(epx_link_t *link, uint64_t word);

/* ---- circles: collectives among some of the ranks ------------------------------------------------------------- */

/* Who takes part. Calls of one circle are made in one order on all its ranks, by one thread at a time. */
typedef struct epx_circle epx_circle_t;

/* rank [size] of the link, mine among them; id: equal on them, unlike every other circle's. Not collective.
 * NULL: no memory. */
epx_circle_t *epx_circle_create(epx_link_t *link, uint64_t id, const int32_t *rank, int32_t size);
void epx_circle_destroy(epx_circle_t **circle_p);

/* How a collective of a circle ended. */
typedef struct epx_circle_result {
    int32_t peer;      /* the place in the circle that is to blame, -1: nobody */
    uint64_t sequence; /* of the collective, from 1 */
} epx_circle_result_t;

/*
 * send [bytes] of every rank to receive [size, bytes]. EPX_ERR_TIMEOUT naming who did not come, EPX_ERR_PEER
 * after a death or another's abort, EPX_ERR_ABORTED after one's own, EPX_ERR_MISMATCH where ranks made
 * different calls. Sets the last error only for MISMATCH and NO_MEMORY.
 */
epx_status_t epx_circle_gather(epx_circle_t *circle, const void *send, void *receive, size_t bytes,
                               int64_t timeout_ms, epx_circle_result_t *result_p);

/* values [count], in place, combined in the order of places. As above. */
epx_status_t epx_circle_reduce(epx_circle_t *circle, void *values, int64_t count, epx_number_t number,
                               epx_reduce_t reduce, int64_t timeout_ms, epx_circle_result_t *result_p);

/* Ends all waits of the circle, everywhere. Any thread. */
void epx_circle_abort(epx_circle_t *circle);
/* The place that aborted, or -1. */
int32_t epx_circle_aborted(epx_circle_t *circle);
/* The rank of the link that it had waited for in vain before, or -1. */
int32_t epx_circle_abort_blames(epx_circle_t *circle);

#endif
