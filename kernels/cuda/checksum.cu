/* checksum: a row is one thread's, since its sum is serial. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/checksum.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

enum { THREADS = 64 };

__global__ void __launch_bounds__(THREADS) checksum(const __grid_constant__ epx_k_checksum_t args)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < args.n;
         i += (int64_t)gridDim.x * THREADS)
        args.sum[i] = row_checksum((const char *)args.src + i * args.stride, args.bytes);
}

launch_site site;

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_checksum(const epx_k_checksum_t *args, epx_stream_t stream)
{
    using namespace epx;
    if (args->n <= 0)
        return EPX_OK;
    int blocks = at_most(persistent_blocks(site, checksum, THREADS, 0, 0), (args->n + THREADS - 1) / THREADS);
    return launch("checksum", {blocks, THREADS, 0, 1}, stream, checksum, *args);
}
