/*
 * Routing kernels: one cluster of blocks that can synchronise, so that one launch does several dependent
 * steps. SPDX-License-Identifier: Apache-2.0
 *
 * All blocks of a cluster are resident together by definition, so its barrier cannot hang whatever else runs
 * on the GPU. The barrier has release and acquire order: what a block wrote to global or shared memory before
 * it, all see behind it (with plain loads, not with those for constant data).
 */
#ifndef EPX_KERNELS_CUDA_CLUSTER_CUH
#define EPX_KERNELS_CUDA_CLUSTER_CUH

#include <cooperative_groups.h>

#include "kernels/cuda/segments.cuh"

namespace epx
{

enum { ROUTE_THREADS = 1024, CLUSTER_MAX = 16, CLUSTER_PORTABLE = 8 };

/* This thread's place in its cluster. */
struct team {
    cooperative_groups::cluster_group cluster;
    int32_t block, blocks; /* of the cluster */

    __device__ team()
        : cluster(cooperative_groups::this_cluster()), block((int32_t)cluster.block_rank()),
          blocks((int32_t)cluster.num_blocks())
    {
    }
    __device__ void sync() const { cluster.sync(); }
    /* sync() in two halves, in each of which every thread takes part. */
    __device__ void arrive() const { cooperative_groups::cluster_group::barrier_arrive(); }
    __device__ void wait() const { cooperative_groups::cluster_group::barrier_wait(); }
    __device__ int32_t thread() const { return (int32_t)(block * blockDim.x + threadIdx.x); }
    __device__ int32_t threads() const { return (int32_t)(blocks * blockDim.x); }
    __device__ int32_t warp() const { return thread() / WARP; }
    __device__ int32_t warps() const { return threads() / WARP; }
    __device__ int32_t index() const { return (int32_t)blockIdx.x / blocks; } /* of the cluster in the grid */
    /* The same variable of shared memory in another block. */
    template <typename T> __device__ T *at(T *mine, int32_t other) const
    {
        return cluster.map_shared_rank(mine, other);
    }
};

/* The sum over all threads of a block; every thread gets it. `room`: shared, one value for each warp. */
__device__ inline int64_t block_sum(int64_t value, int64_t *room)
{
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2)
        value += __shfl_xor_sync(ALL, value, d);
    __syncthreads();
    if (lane_id() == 0)
        room[threadIdx.x / WARP] = value;
    __syncthreads();
    value = lane_id() < (int)(blockDim.x / WARP) ? room[lane_id()] : 0;
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2)
        value += __shfl_xor_sync(ALL, value, d);
    return value;
}

/* Shared memory of block_before. */
template <int N, typename T = uint32_t> struct block_sums {
    T of_warp[N][WARP];
};

/* Each value becomes the sum of those of the threads before in the block; all: the sums over the block. */
template <int N, typename T>
__device__ inline void block_before(T (&value)[N], T (&all)[N], block_sums<N, T> &shared)
{
    int32_t warp = (int32_t)(threadIdx.x / WARP), warps = (int32_t)(blockDim.x / WARP);
    T own[N];
#pragma unroll
    for (int n = 0; n < N; n++)
        own[n] = value[n];
#pragma unroll
    for (int d = 1; d < WARP; d *= 2)
#pragma unroll
        for (int n = 0; n < N; n++) {
            T other = __shfl_up_sync(ALL, value[n], d);
            value[n] += lane_id() >= d ? other : 0;
        }
    __syncthreads(); /* the sums of an earlier call have been read */
    if (lane_id() == WARP - 1)
#pragma unroll
        for (int n = 0; n < N; n++)
            shared.of_warp[n][warp] = value[n];
    __syncthreads();
#pragma unroll
    for (int n = 0; n < N; n++) {
        T sum = lane_id() < warps ? shared.of_warp[n][lane_id()] : 0;
        if constexpr (sizeof(T) == sizeof(unsigned)) {
            all[n] = __reduce_add_sync(ALL, sum);
            value[n] += __reduce_add_sync(ALL, lane_id() < warp ? sum : 0) - own[n];
        } else {
            T through = sum;
#pragma unroll
            for (int d = 1; d < WARP; d *= 2) {
                T other = __shfl_up_sync(ALL, through, d);
                through += lane_id() >= d ? other : 0;
            }
            all[n] = __shfl_sync(ALL, through, WARP - 1);
            value[n] += __shfl_sync(ALL, through - sum, warp) - own[n];
        }
    }
}

/*
 * First of the items of block v when n are split in m blocks, the first n mod m one more; and the block of an
 * item. Divisions are many instructions, and routing kernels wait for theirs to be fetched: those that are
 * rarely needed stand aside.
 */
template <typename I> __device__ __noinline__ I split_first_of(int32_t v, I n, int32_t m)
{
    return v * (n / m) + min((I)v, (I)(n % m));
}

template <typename I> __device__ inline I split_first(int32_t v, I n, int32_t m)
{
    return m == 1 ? v * n : split_first_of(v, n, m);
}

static __device__ __noinline__ int32_t split_block_of(int64_t t, int64_t n, int32_t m)
{
    int64_t small = n / m, larger = n % m, edge = larger * (small + 1);
    return (int32_t)(t < edge ? t / (small + 1) : larger + (t - edge) / small);
}

__device__ inline int32_t split_of(int64_t t, int64_t n, int32_t m)
{
    return m == 1 ? 0 : split_block_of(t, n, m);
}

/* ---- launching -------------------------------------------------------------------------------------------------- */

/* What kernels of this kind may ask for beside what they declare. */
inline size_t shared_limit(int device)
{
    const int declared = 20 * 1024;
    int bytes = 0;
    if (cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
        bytes = 48 * 1024;
    return (size_t)(bytes - declared);
}

/* The largest cluster of full blocks that this GPU runs, found once. */
template <typename... P> inline int cluster_limit(launch_site &site, void (*kernel)(P...))
{
    int device = current_device();
    std::atomic<int> *known = device < DEVICES_REMEMBERED ? &site.blocks[device] : nullptr;
    int most = known ? known->load(std::memory_order_relaxed) : 0;
    if (most != 0)
        return most;
    size_t shared = shared_limit(device);
    cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute[1] = {};
    attribute[0].id = cudaLaunchAttributeClusterDimension;
    attribute[0].val.clusterDim.x = CLUSTER_MAX, attribute[0].val.clusterDim.y = 1,
    attribute[0].val.clusterDim.z = 1;
    config.gridDim = dim3(CLUSTER_MAX);
    config.blockDim = dim3(ROUTE_THREADS);
    config.dynamicSmemBytes = shared;
    config.attrs = attribute;
    config.numAttrs = 1;
    int clusters = 0;
    most = cudaOccupancyMaxActiveClusters(&clusters, (const void *)kernel, &config) == cudaSuccess &&
                   clusters > 0
               ? CLUSTER_MAX
               : CLUSTER_PORTABLE;
    cudaGetLastError();
    if (known)
        known->store(most, std::memory_order_relaxed);
    return most;
}

/* Blocks for `items` items, no more than `limit`: one for every few thousand, a power of two. */
inline int cluster_for(int limit, int64_t items)
{
    int blocks = 1;
    while (blocks * 2 <= limit && blocks * (int64_t)4 * ROUTE_THREADS < items)
        blocks *= 2;
    return blocks;
}

} // namespace epx

#endif
