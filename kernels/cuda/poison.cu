/* poison: rows, or any bytes, filled with the NaN pattern. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

enum { THREADS = 256, WIDE = 16 };

/* Byte i of an area. */
__device__ inline uint8_t pattern_at(int64_t i) { return i % 2 == 0 ? 0xff : 0x7f; }

/* 16 bytes at a time between the first and the last such address, single ones before and behind. */
__global__ void __launch_bounds__(THREADS) poison(uint8_t *area, int64_t bytes)
{
    int64_t before = (int64_t)(-(uintptr_t)area % WIDE), i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    before = before < bytes ? before : bytes;
    int64_t blocks = (bytes - before) / WIDE, behind = before + blocks * WIDE;
    uint32_t word = before % 2 == 0 ? 0x7fff7fffu : 0xff7fff7fu;
    uint4 *to = (uint4 *)(area + before);
    if (i < before)
        area[i] = pattern_at(i);
    if (i < bytes - behind)
        area[behind + i] = pattern_at(behind + i);
    for (; i < blocks; i += (int64_t)gridDim.x * THREADS)
        to[i] = make_uint4(word, word, word, word);
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
        at_most(persistent_blocks(site, poison, THREADS, 0, 0), (args->bytes / WIDE + THREADS - 1) / THREADS);
    return launch("poison", {blocks, THREADS, 0, 1}, stream, poison, (uint8_t *)args->rows, args->bytes);
}
