/* Rows against the checksums that travelled with them. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/host/table.h"

epx_status_t epx_host_verify(const epx_k_verify_t *args, epx_stream_t stream)
{
    args->bad[0] = args->bad[1] = -1;
    for (int32_t e = 0; e < args->rows.experts; e++)
        for (int64_t g = args->rows.start[e]; g < args->rows.start[e] + args->rows.count[e]; g++) {
            uint32_t sum = 0;
            int64_t row = args->index != NULL ? args->index[g] : g;
            epx_k_checksum_t one = {.src = (const char *)args->src + row * args->stride,
                                    .stride = args->stride,
                                    .bytes = args->bytes,
                                    .n = 1,
                                    .sum = &sum};
            epx_status_t status = epx_host_checksum(&one, stream);
            if (status != EPX_OK)
                return status;
            if (sum != args->sum[g]) {
                args->bad[0] = g;
                args->bad[1] = e;
                return EPX_OK;
            }
        }
    return EPX_OK;
}
