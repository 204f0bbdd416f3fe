/*
 * The first row of a batch that is bad, experts ascending. SPDX-License-Identifier: Apache-2.0
 *
 * Three steps on the stream: bad[0] becomes all ones, which is -1 and the largest unsigned number; every bad
 * row lowers it to its number in the order of the walk; one warp turns the lowest into row and expert. Used
 * by checks only, so three launches are no loss.
 */
#ifndef EPX_KERNELS_CUDA_FIRST_BAD_CUH
#define EPX_KERNELS_CUDA_FIRST_BAD_CUH

#include "kernels/cuda/segments.cuh"

namespace epx
{

__device__ inline void report_bad(int64_t *bad, int64_t number)
{
    atomicMin((unsigned long long *)bad, (unsigned long long)number);
}

static __global__ void __launch_bounds__(WARP) name_bad(epx_k_rows_t rows, int64_t *bad)
{
    int64_t wanted = bad[0], before = 0;
    __syncwarp();
    if (wanted < 0)
        return; /* bad[1] is -1 like bad[0] */
    for (int32_t e0 = 0; e0 < rows.experts; e0 += WARP) {
        int32_t e = e0 + lane_id();
        int32_t count = e < rows.experts ? (int32_t)rows.count[e] : 0, through = warp_inclusive(count);
        int64_t first = before + through - count;
        if (wanted >= first && wanted < first + count) {
            bad[0] = rows.start[e] + wanted - first;
            bad[1] = e;
        }
        before += __shfl_sync(ALL, through, WARP - 1);
    }
}

/* `kernel` takes the arguments and calls report_bad with the number of each bad row. */
template <typename A>
inline epx_status_t find_first_bad(const char *what, const shape1 &shape, epx_stream_t stream,
                                   void (*kernel)(A), const A &args)
{
    epx_status_t status =
        epx_cuda_status(cudaMemsetAsync(args.bad, 0xff, 2 * sizeof(int64_t), (cudaStream_t)stream), what);
    if (status == EPX_OK && args.rows.experts > 0)
        status = launch(what, shape, stream, kernel, args);
    if (status == EPX_OK && args.rows.experts > 0)
        status = launch(what, {1, WARP, 0, 1}, stream, name_bad, args.rows, args.bad);
    return status;
}

} // namespace epx

#endif
