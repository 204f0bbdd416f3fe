/* How the ranks of a comm meet, and what ends it. SPDX-License-Identifier: Apache-2.0 */
#include "core/comm_gather.h"

#include <inttypes.h>

#include "base/fail.h"

void epx_comm_abort(epx_comm_h comm)
{
    if (comm != NULL && comm->fabric != NULL)
        comm->fabric->ops->abort(comm->fabric, -1);
    if (comm != NULL && comm->circle != NULL)
        epx_circle_abort(comm->circle);
}

epx_status_t epx_comm_explain(const struct epx_comm *comm, epx_status_t status,
                              const epx_circle_result_t *result)
{
    int32_t peer = result->peer;
    switch (status) {
    case EPX_OK: return EPX_OK;
    case EPX_ERR_TIMEOUT:
        if (peer < 0)
            return epx_fail(EPX_ERR_TIMEOUT,
                            "comm: rank %d waited %" PRId64 " ms in collective %" PRIu64
                            " and rank 0 of the job, which carries it, does not answer",
                            comm->rank, comm->timeout_ms, result->sequence);
        return epx_fail(EPX_ERR_TIMEOUT,
                        "comm: rank %d waited %" PRId64 " ms for rank %d in collective %" PRIu64
                        "; find out why rank %d did not make this call",
                        comm->rank, comm->timeout_ms, peer, result->sequence, peer);
    case EPX_ERR_ABORTED: return epx_fail(status, "comm: rank %d: rank %d ended the comm", comm->rank, peer);
    case EPX_ERR_PEER:
        if (peer >= 0 && epx_circle_aborted(comm->circle) == peer &&
            epx_link_state(comm->link, comm->world[peer]) != EPX_LINK_DEAD) {
            int32_t blamed = epx_circle_abort_blames(comm->circle);
            if (blamed >= 0)
                return epx_fail(
                    status,
                    "comm: rank %d: rank %d ended the comm after it had waited in vain for rank %d of "
                    "the job",
                    comm->rank, peer, blamed);
            return epx_fail(status, "comm: rank %d: rank %d ended the comm", comm->rank, peer);
        }
        if (peer < 0)
            return epx_fail(status,
                            "comm: rank %d: rank 0 of the job, which carries its collectives, is gone",
                            comm->rank);
        return epx_fail(status, "comm: rank %d: rank %d is gone: process %" PRId64 " on %s has ended",
                        comm->rank, peer, epx_link_cards(comm->link)[comm->world[peer]].process,
                        epx_link_cards(comm->link)[comm->world[peer]].name);
    default: return epx_fail(status, "comm: rank %d: %s", comm->rank, epx_last_error());
    }
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

struct epx_comm *epx_comm_of_bootstrap(const epx_bootstrap_t *bootstrap)
{
    return bootstrap->allgather == gather_by_comm ? bootstrap->context : NULL;
}
