/*
 * scale_dot: the gradient of every expert's output, and of the weight it got. SPDX-License-Identifier:
 * Apache-2.0
 *
 * The dot of a row has 32 lanes by definition: lane l takes h = l, l + 32, ... A thread that loads 16 bytes
 * holds N neighbouring lanes, so 32 / N threads share a row and a warp has N rows in work. Then every
 * thread's chains run along the row in ascending order, and lines are used up by consecutive loads.
 */
#include "kernels/cuda/sums.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

enum { THREADS = 768, TILE = 1536, DOT_LANES = 32, AHEAD = 4 };

/* dout may be where dy goes, so it is loaded like memory that changes. */
template <typename T, int N>
__device__ inline typename vector<T, N>::word load_dout(const char *row, int32_t h)
{
    if constexpr (N == 1)
        return vector<T, N>::load(row, h);
    else
        return *(const uint4 *)(row + (int64_t)h * T::BYTES);
}

/* The tree over 32 lanes, lane = N * q + i on thread q of the row's threads; complete on q = 0. */
template <int N> __device__ inline float add_lanes(float (&lane)[N])
{
#pragma unroll
    for (int half = DOT_LANES / 2; half >= N; half /= 2)
#pragma unroll
        for (int i = 0; i < N; i++)
            lane[i] = __fadd_rn(lane[i], __shfl_down_sync(ALL, lane[i], half / N, DOT_LANES / N));
#pragma unroll
    for (int half = N / 2; half > 0; half /= 2)
#pragma unroll
        for (int i = 0; i < half; i++)
            lane[i] = __fadd_rn(lane[i], lane[i + half]);
    return lane[0];
}

/* One row by DOT_LANES / N threads; q is this one's number. */
template <typename T, int N>
__device__ inline void row_by_threads(float (&lane)[N], const char *dout, const char *y, char *dy,
                                      float weight, int32_t width, int32_t q)
{
    typedef vector<T, N> V;
    for (int32_t h = q * N; h < width; h += AHEAD * DOT_LANES) {
        typename V::word d[AHEAD], o[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
            if (h + u * DOT_LANES < width) {
                d[u] = load_dout<T, N>(dout, h + u * DOT_LANES);
                o[u] = V::load(y, h + u * DOT_LANES);
            }
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
            if (h + u * DOT_LANES < width) {
                float a[N], b[N];
                V::unpack(d[u], a);
                V::unpack(o[u], b);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    lane[i] = __fmaf_rn(a[i], b[i], lane[i]);
                    a[i] = __fmul_rn(weight, a[i]);
                }
                V::store(dy, h + u * DOT_LANES, a);
            }
    }
}

template <typename T, int N>
__global__ void __launch_bounds__(THREADS, 1) scale_dot(const __grid_constant__ epx_k_scale_dot_t args)
{
    __shared__ segments<TILE> table;
    behind_previous();
    let_next_begin(args.units);
    int64_t row_bytes = (int64_t)args.width * T::BYTES;
    int32_t q = lane_id() % (DOT_LANES / N);
    for (int32_t tile = 0; tile < args.rows.experts; tile += TILE) {
        const int64_t *start = args.rows.start + tile, *count = args.rows.count + tile;
        int32_t n = min(args.rows.experts - tile, (int32_t)TILE);
        if (tile > 0)
            __syncthreads();
        int32_t total = add_up<THREADS>(table, n, [&](int32_t e) { return (int32_t)fresh(count + e); });
        for (int32_t unit = warp_of_grid(); unit * N < total; unit += warps_of_grid()) {
            int32_t r = unit * N + lane_id() / (DOT_LANES / N);
            bool there = r < total;
            float lane[N] = {};
            int64_t g = 0;
            if (there) {
                int32_t e = find_segment_alone(table.before, n, r);
                g = fresh(start + e) + r - table.before[e];
                int64_t s = args.index != nullptr ? fresh(args.index + g) : g;
                row_by_threads<T, N>(lane, (const char *)args.dout + s * row_bytes,
                                     (const char *)args.y + g * row_bytes, (char *)args.dy + g * row_bytes,
                                     fresh(args.weight + g), args.width, q);
            }
            float dot = add_lanes<N>(lane);
            if (there && q == 0)
                args.dot[g] = dot;
        }
    }
}

template <typename T, int N> launch_site site;

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_scale_dot(const epx_k_scale_dot_t *args, epx_stream_t stream)
{
    using namespace epx;
    if (args->rows.experts <= 0)
        return EPX_OK;
    int64_t row = (int64_t)args->width * element_bytes(args->row_type);
    bool aligned = by_16(args->dout, row) && by_16(args->y, 0) && by_16(args->dy, 0);
    return by_type(args->row_type, aligned, [&](auto type, auto n) {
        typedef decltype(type) T;
        constexpr int N = decltype(n)::value;
        int blocks = persistent_blocks(site<T, N>, scale_dot<T, N>, THREADS, 0, args->units);
        return launch("scale_dot", {blocks, THREADS, 0, 1, true}, stream, scale_dot<T, N>, *args);
    });
}
