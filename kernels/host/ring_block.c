/* ring: places of one token block's rows in a batch. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include <epx/kernels_ring.h>

#include "kernels/host/table.h"

/* The local expert of assignment a, or -1. */
static inline int32_t local_of(const epx_k_ring_block_t *args, int64_t a)
{
    int32_t e = args->kept[a];
    return e >= 0 && e < args->experts ? args->local[e] : -1;
}

/* Counts first, then where each expert's rows begin; count is zero again afterwards. */
static void lay_out_experts(const epx_k_ring_block_t *args, int64_t assignments)
{
    memset(args->count, 0, (size_t)args->local_experts * sizeof(*args->count));
    for (int64_t a = 0; a < assignments; a++) {
        int32_t i = local_of(args, a);
        if (i >= 0)
            args->count[i]++;
    }
    int64_t next = 0;
    for (int32_t i = 0; i < args->local_experts; i++) {
        next = (next + args->row_align - 1) / args->row_align * args->row_align;
        args->start[i] = next;
        next += args->count[i];
        args->count[i] = 0;
    }
}

epx_status_t epx_host_ring_block(const epx_k_ring_block_t *args, epx_stream_t stream)
{
    (void)stream;
    int64_t assignments = *args->tokens * args->top_k, excess = 0;
    lay_out_experts(args, assignments);
    for (int64_t a = 0; a < assignments; a++) {
        int32_t i = local_of(args, a), t = (int32_t)(a / args->top_k);
        args->place[a] = -1;
        if (i < 0)
            continue;
        int64_t row = args->start[i] + args->count[i];
        if (row >= args->rows_max) {
            excess++;
            continue;
        }
        args->count[i]++;
        args->place[a] = (int32_t)row;
        args->token[row] = t;
        if (args->row_weight != NULL)
            args->row_weight[row] = args->weights[a];
        if (args->origin != NULL)
            args->origin[row] =
                (epx_origin_t){.rank = args->rank, .token = t, .k = (int32_t)(a % args->top_k)};
    }
    if (args->place_weight != NULL && assignments > 0)
        memcpy(args->place_weight, args->weights, (size_t)assignments * sizeof(*args->weights));
    *args->excess = excess;
    return EPX_OK;
}
