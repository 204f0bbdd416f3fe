/* The sum of a comm. SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "base/fail.h"
#include "base/reduce.h"
#include "core/comm_gather.h"

enum { REDUCE_CHUNK = 1024 };

/* One address space: rank i reduces slice i from everybody's array, in rank order, and writes it into
 * everybody's. Slice i is touched by rank i alone between the two meetings. */
static epx_status_t reduce_shared(epx_comm_h comm, uint8_t *values, int64_t count, epx_number_t number,
                                  epx_reduce_t reduce)
{
    size_t unit = epx_number_bytes(number);
    double chunk[REDUCE_CHUNK];
    uint8_t **all = (uint8_t **)(void *)comm->pieces;
    epx_status_t status = epx_comm_allgather(comm, &values, all, sizeof(values));
    if (status == EPX_OK) {
        int64_t first = count * comm->rank / comm->size, last = count * (comm->rank + 1) / comm->size;
        for (int64_t at = first; at < last; at += REDUCE_CHUNK) {
            int64_t now = last - at < REDUCE_CHUNK ? last - at : REDUCE_CHUNK;
            size_t offset = (size_t)at * unit;
            memcpy(chunk, all[0] + offset, (size_t)now * unit);
            for (int32_t r = 1; r < comm->size; r++)
                epx_reduce_values(chunk, all[r] + offset, now, number, reduce);
            for (int32_t r = 0; r < comm->size; r++)
                memcpy(all[r] + offset, chunk, (size_t)now * unit);
        }
        status = epx_comm_barrier(comm);
    }
    return status;
}

/* Pieces of everybody's array come here, and everybody reduces all of them in rank order. */
static epx_status_t reduce_pieces(epx_comm_h comm, uint8_t *values, int64_t count, epx_number_t number,
                                  epx_reduce_t reduce)
{
    size_t unit = epx_number_bytes(number);
    int64_t piece = COMM_BOX_BYTES / (int64_t)unit;
    for (int64_t at = 0; at < count; at += piece) {
        int64_t now = count - at < piece ? count - at : piece;
        size_t bytes = (size_t)now * unit;
        epx_status_t status = epx_comm_allgather(comm, values + (size_t)at * unit, comm->pieces, bytes);
        if (status != EPX_OK)
            return status;
        for (int32_t r = 1; r < comm->size; r++)
            epx_reduce_values(comm->pieces, comm->pieces + (size_t)r * bytes, now, number, reduce);
        memcpy(values + (size_t)at * unit, comm->pieces, bytes);
    }
    return EPX_OK;
}

static epx_status_t reduce_by(epx_comm_h comm, void *values, int64_t count, epx_number_t number,
                              epx_reduce_t reduce)
{
    if (comm->circle != NULL) {
        epx_circle_result_t ended;
        epx_wait_result_t unseen;
        epx_comm_op_wait(&comm->record, &unseen);
        epx_status_t status =
            epx_circle_reduce(comm->circle, values, count, number, reduce, comm->timeout_ms, &ended);
        epx_comm_op_came(&comm->record, status);
        return epx_comm_explain(comm, status, &ended);
    }
    if (comm->fabric != NULL && (comm->fabric->caps & EPX_FABRIC_SHARED_ADDRESS) != 0)
        return reduce_shared(comm, values, count, number, reduce);
    return reduce_pieces(comm, values, count, number, reduce);
}

epx_status_t epx_comm_allreduce(epx_comm_h comm, void *values, int64_t count, epx_number_t number,
                                epx_reduce_t reduce)
{
    if (comm == NULL || count < 0 || (values == NULL && count > 0) || (int)number < 0 ||
        number > EPX_NUMBER_INT64 || (int)reduce < 0 || reduce > EPX_MIN)
        return epx_fail(EPX_ERR_ARG,
                        "epx_comm_allreduce: comm and values must be there, count >= 0, number and reduce "
                        "known ones (count is %" PRId64 ", number %d, reduce %d)",
                        count, (int)number, (int)reduce);
    if (comm->size == 1)
        return EPX_OK;
    epx_comm_record_faults(&comm->record, comm->fabric);
    uint64_t op =
        epx_comm_op_enter(&comm->record, EPX_RECORD_ALLREDUCE, count * (int64_t)epx_number_bytes(number));
    return epx_comm_op_leave(&comm->record, op,
                             comm->record.left_out ? EPX_OK : reduce_by(comm, values, count, number, reduce));
}
