/* Ranks and their small collectives. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_COMM_H
#define EPX_COMM_H

#include <epx/epx.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum epx_reduce { EPX_SUM = 0, EPX_MAX = 1, EPX_MIN = 2 } epx_reduce_t;

/* Element types of allreduce. */
typedef enum epx_number { EPX_NUMBER_FLOAT = 0, EPX_NUMBER_DOUBLE = 1, EPX_NUMBER_INT64 = 2 } epx_number_t;

/*
 * The caller's own all-gather: copies `bytes` from send of every rank to receive [size, bytes] on every rank;
 * 0 on success. Called by collective calls only, in the same order on all ranks.
 */
typedef struct epx_bootstrap {
    size_t size_of_struct;
    void *context;
    int32_t rank, size;
    int (*allgather)(void *context, const void *send, void *receive, size_t bytes);
} epx_bootstrap_t;

#ifdef __cplusplus
#define EPX_BOOTSTRAP_INIT EPX_BEGUN(epx_bootstrap_t)
#else
#define EPX_BOOTSTRAP_INIT                        \
    {                                             \
        .size_of_struct = sizeof(epx_bootstrap_t) \
    }
#endif

/*
 * All processes of the job, by what the launcher says (EPX_RANK, EPX_WORLD_SIZE and EPX_ROOT, PMIx,
 * torchrun's variables, Slurm's, Open MPI's, MPICH's); one rank alone where there is no launcher. Collective
 * over the processes; it waits EPX_TIMEOUT_MS for them. EPX_ERR_TIMEOUT names the ranks that did not come,
 * EPX_ERR_ARG a variable that is wrong or a rank that is there twice. Its collectives go through the process
 * of rank 0, whose end is the comm's; a dead process is named to all others at once.
 */
epx_status_t epx_comm_world(epx_comm_h *comm_p);

/* What the launcher says of this process, without waiting for others: rank 0 of 1 where there is none.
 * Pointers may be NULL. EPX_ERR_ARG: a variable is wrong. */
epx_status_t epx_comm_launched(int32_t *rank_p, int32_t *size_p);

/* n comms of one process, comms[r] for the thread (or fibre) that plays rank r. Host memory only, any n >= 1.
 */
epx_status_t epx_comm_threads(int32_t n, epx_comm_h *comms);

/* A comm on the caller's all-gather. Collective. */
epx_status_t epx_comm_from_bootstrap(const epx_bootstrap_t *bootstrap, epx_comm_h *comm_p);

/* Destroys; clears the handle; not collective. */
void epx_comm_destroy(epx_comm_h *comm_p);

int32_t epx_comm_rank(epx_comm_h comm);
int32_t epx_comm_size(epx_comm_h comm);

/* New comms of the ranks with equal colour, ordered by key, then by rank. colour < 0: none, *part_p = NULL.
 * Collective. */
epx_status_t epx_comm_split(epx_comm_h comm, int32_t colour, int32_t key, epx_comm_h *part_p);

/* values [count] host memory, in place; combined in rank order (0 + 1 + ...), so bit-equal on every rank and
 * run. Collective. */
epx_status_t epx_comm_allreduce(epx_comm_h comm, void *values, int64_t count, epx_number_t number,
                                epx_reduce_t reduce);

/* send [bytes] host; receive [size, bytes] host. Collective. */
epx_status_t epx_comm_allgather(epx_comm_h comm, const void *send, void *receive, size_t bytes);

epx_status_t epx_comm_barrier(epx_comm_h comm);

/* When a collective of this comm gives up with EPX_ERR_TIMEOUT naming the rank it waits for; 0: the default,
 * 60,000. A comm of processes begins with EPX_TIMEOUT_MS. */
void epx_comm_set_timeout(epx_comm_h comm, int64_t timeout_ms);

/* Every wait on this comm ends with EPX_ERR_PEER naming this rank. Any thread. */
void epx_comm_abort(epx_comm_h comm);

#ifdef __cplusplus
}
#endif
#endif
