/* poison: rows filled with the NaN pattern. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

enum { THREADS = 256 };
constexpr uint32_t PATTERN = 0x7fff7fffu;

/* 16 bytes at a time between the first and the last such address, halves before and behind. */
__global__ void __launch_bounds__(THREADS) poison(uint16_t *rows, int64_t halves)
{
    int64_t before = (int64_t)(-(uintptr_t)rows % 16 / 2), i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    before = before < halves ? before : halves;
    int64_t blocks = (halves - before) / 8, behind = before + blocks * 8;
    uint4 *to = (uint4 *)(rows + before);
    if (i < before)
        rows[i] = (uint16_t)PATTERN;
    if (i < halves - behind)
        rows[behind + i] = (uint16_t)PATTERN;
    for (; i < blocks; i += (int64_t)gridDim.x * THREADS)
        to[i] = make_uint4(PATTERN, PATTERN, PATTERN, PATTERN);
}

launch_site site;

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_poison(const epx_k_poison_t *args, epx_stream_t stream)
{
    using namespace epx;
    if (args->bytes <= 0)
        return EPX_OK;
    int blocks =
        at_most(persistent_blocks(site, poison, THREADS, 0, 0), (args->bytes / 16 + THREADS - 1) / THREADS);
    return launch("poison", {blocks, THREADS, 0, 1}, stream, poison, (uint16_t *)args->rows, args->bytes / 2);
}
