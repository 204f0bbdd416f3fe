/* Ranks and their small collectives. SPDX-License-Identifier: Apache-2.0 */
#include "core/comm_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "core/services.h"
#include "device/registry.h"
#include "fabric/registry.h"

static void *comm_allocate(void *context, size_t bytes, size_t alignment, int device_memory)
{
    (void)context, (void)device_memory;
    return epx_device_of_host()->allocate(bytes, alignment);
}

static void comm_release(void *context, void *memory, size_t bytes, int device_memory)
{
    (void)context, (void)device_memory;
    epx_device_of_host()->release(memory, bytes);
}

static const epx_allocator_t comm_allocator = {.allocate = comm_allocate, .release = comm_release};

epx_fabric_config_t epx_comm_fabric_config(const epx_bootstrap_t *bootstrap)
{
    epx_fabric_config_t config = {.name = "comm",
                                  .device = epx_device_of_host(),
                                  .exchange_channels = 1,
                                  .exchange_bytes = COMM_BOX_BYTES,
                                  .allocator = &comm_allocator,
                                  .services = epx_services()};
    if (bootstrap != NULL)
        config.bootstrap = *bootstrap;
    return config;
}

struct epx_comm *epx_comm_make(epx_fabric_t *fabric, const epx_bootstrap_t *bootstrap)
{
    struct epx_comm *comm = calloc(1, sizeof(*comm));
    if (comm == NULL)
        return NULL;
    comm->fabric = fabric;
    comm->timeout_ms = COMM_TIMEOUT_MS;
    comm->rank = fabric != NULL ? fabric->rank : bootstrap->rank;
    comm->size = fabric != NULL ? fabric->ranks : bootstrap->size;
    comm->reach = fabric != NULL ? EPX_REACH_PROCESS : EPX_REACH_NETWORK;
    if (fabric == NULL)
        comm->bootstrap = *bootstrap;
    comm->pieces = malloc((size_t)comm->size * (fabric != NULL ? sizeof(void *) : COMM_BOX_BYTES));
    if (comm->pieces == NULL) {
        free(comm);
        return NULL;
    }
    return comm;
}

static void end_comm(void *comm, const char *reason)
{
    (void)reason;
    epx_comm_abort(comm);
}

void epx_comm_begin_record(struct epx_comm *comm, const char *job)
{
    epx_comm_record_begin(&comm->record, job, comm->rank, comm->size);
    comm->record.end = end_comm;
    comm->record.comm = comm;
}

void epx_comm_part_record(struct epx_comm *whole, int32_t colour, const int32_t *member,
                          struct epx_comm *part)
{
    if (part == NULL) {
        epx_comm_record_no_part(&whole->record);
        return;
    }
    epx_comm_record_part(&whole->record, colour, member, part->rank, part->size, &part->record);
    part->record.end = end_comm;
    part->record.comm = part;
}

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

epx_link_t *epx_comm_link(epx_comm_h comm) { return comm->link; }

void epx_comm_set_timeout(epx_comm_h comm, int64_t timeout_ms)
{
    if (comm != NULL)
        comm->timeout_ms = timeout_ms > 0 ? timeout_ms : COMM_TIMEOUT_MS;
}

void epx_comm_abort(epx_comm_h comm)
{
    if (comm != NULL && comm->fabric != NULL)
        comm->fabric->ops->abort(comm->fabric, -1);
    if (comm != NULL && comm->circle != NULL)
        epx_circle_abort(comm->circle);
}

static int64_t more_patience(void *recorder, int64_t timeout_ms, int64_t waited_ns)
{
    return epx_recorder_patience(recorder, timeout_ms, waited_ns);
}

/* `live`: where a fabric tells whom it waits for, read from outside meanwhile. */
static epx_status_t gather_by(epx_comm_h comm, const void *send, void *receive, size_t bytes,
                              epx_wait_result_t *live)
{
    if (comm->circle != NULL) {
        epx_circle_result_t ended;
        epx_status_t came = epx_circle_gather(comm->circle, send, receive, bytes, comm->timeout_ms, &ended);
        return epx_comm_explain(comm, came, &ended);
    }
    if (comm->fabric == NULL) {
        if (comm->bootstrap.allgather(comm->bootstrap.context, send, receive, bytes) != 0)
            return epx_fail(EPX_ERR_FABRIC, "epx_comm_allgather: the caller's all-gather failed on rank %d",
                            comm->rank);
        return EPX_OK;
    }
    /* An ended comm stays ended, whatever has arrived in the meantime. */
    int32_t ended_by = comm->fabric->ops->aborted(comm->fabric, NULL);
    if (ended_by >= 0)
        return epx_fail(ended_by == comm->rank ? EPX_ERR_ABORTED : EPX_ERR_PEER,
                        "comm: rank %d: rank %d ended the comm", comm->rank, ended_by);
    epx_patience_t patience = {.context = epx_comm_record_get(&comm->record), .more_ms = more_patience};
    epx_exchange_t exchange = {.send = send,
                               .receive = receive,
                               .bytes = bytes,
                               .timeout_ms = comm->timeout_ms,
                               .patience = &patience};
    epx_status_t status = comm->fabric->ops->exchange(comm->fabric, &exchange, live, NULL);
    epx_wait_result_t result = *live;
    if (status == EPX_ERR_TIMEOUT)
        return epx_fail(status,
                        "comm: rank %d waited %" PRId64 " ms for rank %d in collective %" PRIu64
                        "; find out why rank %d did not make this call",
                        comm->rank, comm->timeout_ms, result.peer, result.expected, result.peer);
    if (status != EPX_OK)
        return epx_fail(status, "comm: rank %d: rank %d ended the comm", comm->rank, result.peer);
    return EPX_OK;
}

static epx_status_t gather(epx_comm_h comm, const void *send, void *receive, size_t bytes)
{
    if (comm->record.left_out)
        return EPX_OK;
    epx_wait_result_t own = {.peer = -1};
    epx_wait_result_t *live = epx_comm_op_wait(&comm->record, &own);
    epx_status_t status = gather_by(comm, send, receive, bytes, live);
    epx_comm_op_came(&comm->record, status);
    return status;
}

epx_status_t epx_comm_allgather(epx_comm_h comm, const void *send, void *receive, size_t bytes)
{
    if (comm == NULL || ((send == NULL || receive == NULL) && bytes > 0))
        return epx_fail(EPX_ERR_ARG, "epx_comm_allgather: comm, send and receive must be there");
    epx_comm_record_faults(&comm->record, comm->fabric);
    uint64_t op = epx_comm_op_enter(&comm->record, EPX_RECORD_ALLGATHER, (int64_t)bytes);
    return epx_comm_op_leave(&comm->record, op, gather(comm, send, receive, bytes));
}

epx_status_t epx_comm_barrier(epx_comm_h comm)
{
    if (comm == NULL)
        return epx_fail(EPX_ERR_ARG, "epx_comm_barrier: comm is NULL");
    uint8_t byte = 0;
    /* A fabric gathers nothing at all; the caller's all-gather may not like that and gets a byte. */
    size_t bytes = comm->fabric == NULL && comm->circle == NULL ? 1 : 0;
    epx_comm_record_faults(&comm->record, comm->fabric);
    uint64_t op = epx_comm_op_enter(&comm->record, EPX_RECORD_BARRIER, 0);
    return epx_comm_op_leave(&comm->record, op, gather(comm, &byte, comm->pieces, bytes));
}

static int gather_by_comm(void *context, const void *send, void *receive, size_t bytes)
{
    return epx_comm_allgather(context, send, receive, bytes) == EPX_OK ? 0 : -1;
}

epx_bootstrap_t epx_comm_bootstrap(epx_comm_h comm)
{
    return (epx_bootstrap_t){.size_of_struct = sizeof(epx_bootstrap_t),
                             .context = comm,
                             .rank = comm->rank,
                             .size = comm->size,
                             .allgather = gather_by_comm};
}

void epx_comm_opens(epx_comm_h comm, int32_t opens) { comm->record.opens = opens; }

int32_t epx_comm_row(epx_comm_h comm, uint64_t *sequence_p)
{
    return epx_comm_record_row(&comm->record, sequence_p);
}

epx_comm_survivors_fn epx_comm_survivors_of(const epx_bootstrap_t *bootstrap)
{
    if (bootstrap->allgather != gather_by_comm)
        return NULL;
    const struct epx_comm *comm = bootstrap->context;
    return comm->circle != NULL || comm->fabric != NULL ? epx_comm_survivors : NULL;
}
