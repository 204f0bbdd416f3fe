/* Ranks of threads or of a caller's all-gather; comms in general. SPDX-License-Identifier: Apache-2.0 */
#include "core/comm.h"

#include <stdlib.h>

#include "base/fail.h"
#include "core/comm_again.h"
#include "core/comm_link.h"
#include "core/comm_make.h"
#include "fabric/registry.h"

/* Rank 0's name for the job becomes everybody's. */
static epx_status_t name_job(struct epx_comm *comm)
{
    char mine[EPX_COMM_JOB_BYTES], *all = malloc((size_t)comm->size * EPX_COMM_JOB_BYTES);
    if (all == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "no memory for the names of %d ranks", comm->size);
    epx_comm_record_new_job(mine, sizeof(mine));
    epx_status_t status = epx_comm_allgather(comm, mine, all, sizeof(mine));
    if (status == EPX_OK)
        epx_comm_begin_record(comm, all);
    free(all);
    return status;
}

epx_status_t epx_comm_threads(int32_t n, epx_comm_h *comms)
{
    if (n < 1 || comms == NULL)
        return epx_fail(EPX_ERR_ARG,
                        "epx_comm_threads: n is %d and comms is %s; give n >= 1 and room for n handles", n,
                        comms == NULL ? "NULL" : "there");
    epx_fabric_config_t config = epx_comm_fabric_config(NULL);
    epx_fabric_t **fabrics = calloc((size_t)n, sizeof(epx_fabric_t *));
    if (fabrics == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "epx_comm_threads: no memory for %d ranks", n);
    epx_status_t status = epx_fabric_threads(&config, n, fabrics);
    int32_t made = 0;
    for (; status == EPX_OK && made < n; made++) {
        comms[made] = epx_comm_make(fabrics[made], NULL);
        if (comms[made] == NULL)
            status = epx_fail(EPX_ERR_NO_MEMORY, "epx_comm_threads: no memory for %d ranks", n);
    }
    char job[EPX_COMM_JOB_BYTES];
    epx_comm_record_new_job(job, sizeof(job));
    for (int32_t r = 0; status == EPX_OK && r < n; r++)
        epx_comm_begin_record(comms[r], job);
    if (status != EPX_OK) {
        for (int32_t r = 0; r < made; r++) {
            free(comms[r]->pieces);
            free(comms[r]);
            comms[r] = NULL;
        }
        for (int32_t r = 0; r < n; r++)
            epx_fabric_of_threads()->close(&fabrics[r]);
    }
    free(fabrics);
    return status;
}

/* Where the ranks of a caller's all-gather are. */
static epx_status_t find_reach(struct epx_comm *comm)
{
    epx_link_card_t mine;
    epx_link_card_t *cards = malloc((size_t)comm->size * sizeof(*cards));
    if (cards == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "epx_comm_from_bootstrap: no memory for a comm of %d ranks",
                        comm->size);
    epx_launch_my_card(&mine);
    int failed = comm->bootstrap.allgather(comm->bootstrap.context, &mine, cards, sizeof(mine));
    if (failed == 0)
        comm->reach = epx_reach_of_cards(cards, NULL, comm->size);
    free(cards);
    return failed == 0
               ? EPX_OK
               : epx_fail(EPX_ERR_FABRIC,
                          "epx_comm_from_bootstrap: the caller's all-gather failed on rank %d", comm->rank);
}

epx_status_t epx_comm_from_bootstrap(const epx_bootstrap_t *bootstrap, epx_comm_h *comm_p)
{
    if (bootstrap == NULL || comm_p == NULL || bootstrap->size_of_struct != sizeof(epx_bootstrap_t) ||
        bootstrap->allgather == NULL)
        return epx_fail(EPX_ERR_ARG,
                        "epx_comm_from_bootstrap: give a bootstrap begun with EPX_BOOTSTRAP_INIT, with its "
                        "allgather, and comm_p");
    if (bootstrap->size < 1 || bootstrap->rank < 0 || bootstrap->rank >= bootstrap->size)
        return epx_fail(EPX_ERR_ARG, "epx_comm_from_bootstrap: rank %d of %d ranks cannot be",
                        bootstrap->rank, bootstrap->size);
    /* Threads of one process get the fabric's collectives; otherwise the callback carries everything. */
    epx_fabric_config_t config = epx_comm_fabric_config(bootstrap);
    epx_fabric_t *fabric = NULL;
    epx_status_t status = epx_fabric_of_threads()->open(&config, &fabric);
    if (status != EPX_OK && status != EPX_ERR_UNSUPPORTED)
        return status;
    struct epx_comm *comm = epx_comm_make(fabric, bootstrap);
    if (comm == NULL) {
        epx_fabric_of_threads()->close(&fabric);
        return epx_fail(EPX_ERR_NO_MEMORY, "epx_comm_from_bootstrap: no memory for a comm of %d ranks",
                        bootstrap->size);
    }
    status = fabric == NULL ? find_reach(comm) : EPX_OK;
    if (status == EPX_OK)
        status = name_job(comm);
    if (status != EPX_OK)
        epx_comm_destroy(&comm);
    else
        *comm_p = comm;
    return status;
}

epx_recorder_h epx_comm_recorder(epx_comm_h comm)
{
    return comm != NULL ? epx_comm_record_get(&comm->record) : NULL;
}

void epx_comm_destroy(epx_comm_h *comm_p)
{
    if (comm_p == NULL || *comm_p == NULL)
        return;
    struct epx_comm *comm = *comm_p;
    *comm_p = NULL;
    epx_comm_destroy_again(comm);
    epx_comm_record_end(&comm->record);
    if (comm->fabric != NULL)
        comm->fabric->ops->close(&comm->fabric);
    epx_comm_leave_link(comm);
    free(comm->pieces);
    free(comm);
}

int32_t epx_comm_rank(epx_comm_h comm) { return comm != NULL ? comm->rank : -1; }

int32_t epx_comm_size(epx_comm_h comm) { return comm != NULL ? comm->size : -1; }

epx_reach_t epx_comm_reach(epx_comm_h comm) { return comm->reach; }

void epx_comm_set_timeout(epx_comm_h comm, int64_t timeout_ms)
{
    if (comm != NULL)
        comm->timeout_ms = timeout_ms > 0 ? timeout_ms : COMM_TIMEOUT_MS;
}

void epx_comm_opens(epx_comm_h comm, int32_t opens) { comm->record.opens = opens; }

int32_t epx_comm_row(epx_comm_h comm, uint64_t *sequence_p)
{
    return epx_comm_record_row(&comm->record, sequence_p);
}
