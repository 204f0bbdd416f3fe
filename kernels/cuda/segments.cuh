/*
 * Work that lies in segments (runs of a list, rows of experts): which segment holds the r-th row of all.
 * SPDX-License-Identifier: Apache-2.0
 *
 * The lengths are known on the device only, so every block adds them up for itself, a tile of segments at a
 * time; then rows are dealt out to warps one by one, whatever the segments' lengths.
 */
#ifndef EPX_KERNELS_CUDA_SEGMENTS_CUH
#define EPX_KERNELS_CUDA_SEGMENTS_CUH

#include "kernels/cuda/rows.cuh"

namespace epx
{

/* Shared memory of one block. */
template <int CAPACITY> struct segments {
    int32_t before[CAPACITY + 1]; /* rows of the segments before each one */
    int32_t warp_sum[WARP];
};

__device__ inline int32_t warp_inclusive(int32_t value)
{
#pragma unroll
    for (int d = 1; d < WARP; d *= 2) {
        int32_t other = __shfl_up_sync(ALL, value, d);
        if (lane_id() >= d)
            value += other;
    }
    return value;
}

/* All threads of a block, or whole warps of it with a barrier of their own. */
struct whole_block {
    static __device__ int32_t thread() { return (int32_t)threadIdx.x; }
    static __device__ void sync() { __syncthreads(); }
};
template <int FIRST, int THREADS, int BARRIER> struct part_of_block {
    static __device__ int32_t thread() { return (int32_t)threadIdx.x - FIRST; }
    static __device__ void sync()
    {
        asm volatile("bar.sync %0, %1;" ::"n"(BARRIER), "n"(THREADS) : "memory");
    }
};

/*
 * All threads of a group: fills `before` from rows(i), i < n <= CAPACITY, and returns the sum. CAPACITY is a
 * multiple of the number of threads. Ends with a barrier; the caller puts one before the table is built
 * again.
 */
template <int THREADS, typename GROUP = whole_block, int CAPACITY, typename F>
__device__ inline int32_t add_up(segments<CAPACITY> &table, int32_t n, const F &rows)
{
    constexpr int EACH = (CAPACITY - 1) / THREADS + 1; /* or one for some of the threads */
    static_assert((EACH == 1 || CAPACITY % THREADS == 0) && THREADS % WARP == 0, "whole warps, whole shares");
    int32_t mine[EACH], sum = 0, first = GROUP::thread() * EACH;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        mine[i] = first + i < n ? rows(first + i) : 0;
        sum += mine[i];
    }
    int32_t inclusive = warp_inclusive(sum);
    if (lane_id() == WARP - 1)
        table.warp_sum[GROUP::thread() / WARP] = inclusive;
    GROUP::sync();
    int32_t of_warps = lane_id() < THREADS / WARP ? table.warp_sum[lane_id()] : 0;
    int32_t through = warp_inclusive(of_warps), warp = GROUP::thread() / WARP;
    int32_t total = __shfl_sync(ALL, through, THREADS / WARP - 1);
    int32_t start = __shfl_sync(ALL, through - of_warps, warp) + inclusive - sum;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (first + i < n)
            table.before[first + i] = start;
        start += mine[i];
    }
    if (GROUP::thread() == 0)
        table.before[n] = total;
    GROUP::sync();
    return total;
}

/* One warp, r the same on all lanes: the last segment that begins at or before row r. */
__device__ inline int32_t find_segment(const int32_t *before, int32_t n, int32_t r)
{
    int32_t low = 0, high = n;
    while (high - low > 1) {
        int32_t step = (high - low + WARP - 1) / WARP, probe = low + (lane_id() + 1) * step;
        int32_t passed = __popc(__ballot_sync(ALL, probe < high && before[probe] <= r));
        low += passed * step;
        high = low + step < high ? low + step : high;
    }
    return low;
}

/* The same for one thread. */
__device__ inline int32_t find_segment_alone(const int32_t *before, int32_t n, int32_t r)
{
    int32_t low = 0, high = n;
    while (high - low > 1) {
        int32_t middle = (low + high) / 2;
        if (before[middle] <= r)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/*
 * Which of n rows comes r-th; a bijection of 0 .. n - 1. Rows stand in columns of neighbours, and are taken a
 * row of columns at a time, in an order in which any few of them lie far apart and evenly. So segments are
 * worked on side by side, each at the pace of its length, by however few warps: what goes over a link and
 * what stays here overlap, and senders do not all turn to the same receiver.
 */
__device__ inline int32_t spread(int32_t r, int32_t n)
{
    constexpr int32_t COLUMNS = 61, STEP = 38; /* a prime, and a golden section of it */
    int32_t each = n / COLUMNS;
    return r >= each * COLUMNS ? r : r % COLUMNS * STEP % COLUMNS * each + r / COLUMNS;
}

/*
 * Rows are cut into pieces of whole grains (a multiple of 16 bytes, so that pieces keep their alignment) when
 * there are too few rows to keep all warps busy until the end. All products stay below 2^31: rows do, and cut
 * rows are few.
 */
__device__ inline int32_t cut_rows(int32_t rows, int32_t bytes, int32_t grain)
{
    int32_t wanted = 8 * warps_of_grid(), most = max((bytes - 1) / grain + 1, 1);
    return rows >= wanted ? 1 : min((wanted - 1) / max(rows, 1) + 1, most);
}

/* Bytes of all pieces but the last ones, which may have fewer, or none. */
__device__ inline int32_t piece_bytes(int32_t bytes, int32_t count, int32_t grain)
{
    int32_t grains = max((bytes - 1) / grain + 1, 1);
    return ((grains - 1) / count + 1) * grain;
}

} // namespace epx

#endif
