/*
 * Launching: grids sized by what fits, clusters, and errors with a text. SPDX-License-Identifier: Apache-2.0
 *
 * Kernels that move rows are persistent: as many blocks as run at once, each taking work until none is left,
 * so that skew and the number of pieces do not matter. How many fit is asked once per kernel and device.
 */
#ifndef EPX_KERNELS_CUDA_LAUNCH_CUH
#define EPX_KERNELS_CUDA_LAUNCH_CUH

#include <atomic>

#include <cuda_runtime.h>

#include "kernels/cuda/fail.h"
#include "kernels/cuda/load.h"
#include "kernels/cuda/table.h"
#include "kernels/cuda/units.h"

namespace epx
{

enum { DEVICES_REMEMBERED = 32 };

/* Each file that includes this one has a kernel by which all of its kernels are found: load.h. */
namespace
{

__global__ void of_this_file() {}

struct known_file {
    epx_cuda_file_t file;
    known_file() : file{(const void *)of_this_file, nullptr} { epx_cuda_file_add(&file); }
};

known_file this_file;

} // namespace

/* What was asked about one kernel. Static, zeroed; racing threads find the same answers. */
struct launch_site {
    std::atomic<int>
        blocks[DEVICES_REMEMBERED]; /* per multiprocessor, or clusters at once; 0: not asked yet */
};

inline int current_device()
{
    int device = 0;
    cudaGetDevice(&device);
    return device;
}

/*
 * Blocks of a persistent grid. budget: multiprocessors that it may fill, 0: all. Blocks go to whichever
 * multiprocessor is emptiest, so several for each of the budget would be spread over more of them: within a
 * budget each gets one. What holds a budget passes it to let_next_begin() too.
 */
template <typename... P>
inline int persistent_blocks(launch_site &site, void (*kernel)(P...), int threads, size_t shared,
                             int32_t budget)
{
    int device = current_device(), units = epx_cuda_units(device);
    std::atomic<int> *known = device < DEVICES_REMEMBERED ? &site.blocks[device] : nullptr;
    int each = known ? known->load(std::memory_order_relaxed) : 0;
    if (each == 0) {
        if (shared > 48 * 1024)
            cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)shared);
        if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, (const void *)kernel, threads, shared) !=
                cudaSuccess ||
            each < 1)
            each = 1;
        if (known)
            known->store(each, std::memory_order_relaxed);
    }
    return budget > 0 && budget < units ? budget : units * each;
}

struct shape1 {
    int blocks, threads;
    size_t shared;
    int cluster;        /* blocks of a cluster, 1: none */
    bool early = false; /* may begin before the kernel ahead of it has ended: it waits itself, with
                           behind_previous() */
};

template <typename... P, typename... A>
inline epx_status_t launch(const char *what, const shape1 &shape, epx_stream_t stream, void (*kernel)(P...),
                           const A &...args)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute[2] = {};
    config.gridDim = dim3((unsigned)shape.blocks);
    config.blockDim = dim3((unsigned)shape.threads);
    config.dynamicSmemBytes = shape.shared;
    config.stream = (cudaStream_t)stream;
    config.attrs = attribute;
    if (shape.cluster > 1) {
        attribute[0].id = cudaLaunchAttributeClusterDimension;
        attribute[0].val.clusterDim.x = (unsigned)shape.cluster;
        attribute[0].val.clusterDim.y = 1;
        attribute[0].val.clusterDim.z = 1;
        config.numAttrs = 1;
    }
    if (shape.early) {
        attribute[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute[config.numAttrs].val.programmaticStreamSerializationAllowed = 1;
        config.numAttrs++;
    }
    return epx_cuda_status(cudaLaunchKernelEx(&config, kernel, args...), what);
}

/* In a kernel launched early: all before it in the stream is done and visible from here on. */
__device__ inline void behind_previous() { cudaGridDependencySynchronize(); }

/*
 * In the kernel before it: the next one may begin, and wait. Only behind its own behind_previous(): a wait
 * that stands right behind its post relies on it, and so does what begins with that wait. A kernel within a
 * budget of multiprocessors keeps the next one back until its own blocks have ended: those of the next would
 * stand waiting on further ones.
 */
__device__ inline void let_next_begin(int32_t budget = 0)
{
    if (budget <= 0)
        cudaTriggerProgrammaticLaunchCompletion();
}

/* As many blocks as the work has pieces, but no more than run at once. */
inline int at_most(int blocks, int64_t pieces)
{
    return pieces < 1 ? 1 : pieces < blocks ? (int)pieces : blocks;
}

} // namespace epx

#endif
