/* find_poison: the first row of a batch that nothing was written to. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/first_bad.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

enum { THREADS = 256, TILE = 1024 };

/* One warp: whether all halves are the pattern. A row is given up at the first 32 that are not. */
__device__ inline bool is_poison(const char *row, int64_t bytes)
{
    const uint8_t pattern[2] = {0xff, 0x7f};
    if ((((uintptr_t)row | (uintptr_t)bytes) & 15) == 0) {
        for (int64_t b = lane_id() * 16; b - lane_id() * 16 < bytes; b += WARP * 16) {
            uint4 v = b < bytes ? *(const uint4 *)(row + b)
                                : make_uint4(0x7fff7fffu, 0x7fff7fffu, 0x7fff7fffu, 0x7fff7fffu);
            if (!__all_sync(ALL, v.x == 0x7fff7fffu && v.y == 0x7fff7fffu && v.z == 0x7fff7fffu &&
                                     v.w == 0x7fff7fffu))
                return false;
        }
        return bytes >= 2;
    }
    for (int64_t b = lane_id(); b - lane_id() < bytes; b += WARP)
        if (!__all_sync(ALL, b >= bytes || (uint8_t)row[b] == pattern[b & 1]))
            return false;
    return bytes >= 2;
}

__global__ void __launch_bounds__(THREADS) find_poison(const __grid_constant__ epx_k_find_poison_t args)
{
    __shared__ segments<TILE> table;
    int64_t before = 0;
    for (int32_t tile = 0; tile < args.rows.experts; tile += TILE) {
        const int64_t *start = args.rows.start + tile, *count = args.rows.count + tile;
        int32_t n = min(args.rows.experts - tile, (int32_t)TILE);
        if (tile > 0)
            __syncthreads();
        int32_t total = add_up<THREADS>(table, n, [&](int32_t e) { return (int32_t)count[e]; });
        for (int32_t r = warp_of_grid(); r < total; r += warps_of_grid()) {
            int32_t e = find_segment(table.before, n, r);
            int64_t g = start[e] + r - table.before[e], row = args.index != nullptr ? args.index[g] : g;
            if (is_poison((const char *)args.src + row * args.stride, args.bytes) && lane_id() == 0)
                report_bad(args.bad, before + r);
        }
        before += total;
    }
}

launch_site site;

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_find_poison(const epx_k_find_poison_t *args, epx_stream_t stream)
{
    using namespace epx;
    shape1 shape = {persistent_blocks(site, find_poison, THREADS, 0, 0), THREADS, 0, 1};
    return find_first_bad("find_poison", shape, stream, find_poison, *args);
}
