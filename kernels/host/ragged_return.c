/* Rank wire: partial sums of this rank, written where they are awaited. SPDX-License-Identifier: Apache-2.0
 */
#include <epx/kernels_ragged.h>

#include "kernels/host/progress.h"
#include "kernels/host/table.h"

/* Rows of one run, as one reduction straight into the peer's memory. */
static epx_status_t return_run(const epx_k_ragged_return_t *args, const epx_run_t *run, int32_t rows,
                               epx_stream_t stream)
{
    char *base = args->dst[run->peer];
    char *out = base + args->dst_offset + run->row * args->dst_stride;
    int64_t j = args->home_start != NULL ? run->row : run->first;
    int64_t on = args->home_start != NULL ? *args->home_start - *args->wire_start : 0;
    epx_k_reduce_t reduce = {.first = args->first + j,
                             .count = args->count + j,
                             .n = rows,
                             .list = args->list + on,
                             .weights = args->weights != NULL ? args->weights + on : NULL,
                             .width = args->width,
                             .row_type = args->row_type,
                             .rows = args->src,
                             .row_stride = args->row_bytes,
                             .out = out,
                             .out_stride = args->dst_stride};
    epx_status_t status = epx_host_reduce(&reduce, stream);
    if (status != EPX_OK || args->sum_offset < 0)
        return status;

    epx_k_checksum_t checksum = {.src = out,
                                 .stride = args->dst_stride,
                                 .bytes = args->row_bytes,
                                 .n = rows,
                                 .sum = (uint32_t *)(void *)(base + args->sum_offset) + run->row};
    return epx_host_checksum(&checksum, stream);
}

epx_status_t epx_host_ragged_return(const epx_k_ragged_return_t *args, epx_stream_t stream)
{
    epx_host_begun(&args->begun);
    for (int32_t i = 0; i < args->run_count; i++) {
        const epx_run_t *run = &args->runs[i];
        int64_t rows = args->rows[i] < run->rows ? args->rows[i] : run->rows;
        if (run->peer + 1 == args->without)
            continue;
        epx_status_t status = rows > 0 ? return_run(args, run, (int32_t)rows, stream) : EPX_OK;
        if (status != EPX_OK)
            return status;
    }
    return EPX_OK;
}
