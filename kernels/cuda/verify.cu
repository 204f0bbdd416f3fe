/* verify: rows against the checksums that travelled with them. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/checksum.cuh"
#include "kernels/cuda/first_bad.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

enum { THREADS = 64, TILE = 1024 };

__global__ void __launch_bounds__(THREADS) verify(const __grid_constant__ epx_k_verify_t args)
{
    __shared__ segments<TILE> table;
    int64_t before = 0;
    for (int32_t tile = 0; tile < args.rows.experts; tile += TILE) {
        const int64_t *start = args.rows.start + tile, *count = args.rows.count + tile;
        int32_t n = min(args.rows.experts - tile, (int32_t)TILE);
        if (tile > 0)
            __syncthreads();
        int32_t total = add_up<THREADS>(table, n, [&](int32_t e) { return (int32_t)count[e]; });
        for (int32_t r = (int32_t)(blockIdx.x * THREADS + threadIdx.x); r < total;
             r += (int32_t)(gridDim.x * THREADS)) {
            int32_t e = find_segment_alone(table.before, n, r);
            int64_t g = start[e] + r - table.before[e];
            int64_t row = args.index != nullptr ? args.index[g] : g;
            if (row_checksum((const char *)args.src + row * args.stride, args.bytes) != args.sum[g])
                report_bad(args.bad, before + r);
        }
        before += total;
    }
}

launch_site site;

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_verify(const epx_k_verify_t *args, epx_stream_t stream)
{
    using namespace epx;
    shape1 shape = {persistent_blocks(site, verify, THREADS, 0, 0), THREADS, 0, 1};
    return find_first_bad("verify", shape, stream, verify, *args);
}
