/* Poison and checksums. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/host/checksum.h"
#include "kernels/host/table.h"

#include <string.h>

#define POISON 0x7fffu
#define HALVES 32

epx_status_t epx_host_poison(const epx_k_poison_t *args, epx_stream_t stream)
{
    (void)stream;
    uint16_t pattern[HALVES];
    for (int32_t i = 0; i < HALVES; i++)
        pattern[i] = POISON;
    char *to = args->rows;
    int64_t left = args->bytes;
    for (; left >= (int64_t)sizeof(pattern); left -= (int64_t)sizeof(pattern), to += sizeof(pattern))
        memcpy(to, pattern, sizeof(pattern));
    memcpy(to, pattern, (size_t)left);
    return EPX_OK;
}

/* All halves are the pattern when the first is and every other equals the one before it. */
static int is_poison(const char *row, int64_t bytes)
{
    uint16_t half;
    if (bytes < (int64_t)sizeof(half))
        return 0;
    memcpy(&half, row, sizeof(half));
    return half == POISON && memcmp(row, row + sizeof(half), (size_t)bytes - sizeof(half)) == 0;
}

epx_status_t epx_host_find_poison(const epx_k_find_poison_t *args, epx_stream_t stream)
{
    (void)stream;
    args->bad[0] = args->bad[1] = -1;
    for (int32_t e = 0; e < args->rows.experts; e++) {
        int64_t first = args->rows.start[e], end = first + args->rows.count[e];
        for (int64_t g = first; g < end; g++) {
            int64_t row = args->index != NULL ? args->index[g] : g;
            if (is_poison((const char *)args->src + row * args->stride, args->bytes)) {
                args->bad[0] = g;
                args->bad[1] = e;
                return EPX_OK;
            }
        }
    }
    return EPX_OK;
}

epx_status_t epx_host_checksum(const epx_k_checksum_t *args, epx_stream_t stream)
{
    (void)stream;
    for (int64_t i = 0; i < args->n; i++)
        args->sum[i] = epx_row_checksum((const char *)args->src + i * args->stride, args->bytes);
    return EPX_OK;
}
