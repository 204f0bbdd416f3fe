/*
 * spin: stands for a foreign kernel that does not end. SPDX-License-Identifier: Apache-2.0
 */
#include <epx/kernels_words.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/system.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

__global__ void spin(const __grid_constant__ epx_k_spin_t args)
{
    int64_t begin = now_ns(), now;
    uint64_t stop = 0;
    do {
        __nanosleep(2000);
        if (args.stop != nullptr)
            stop = look(args.stop);
        now = now_ns();
    } while (stop == 0 && now - begin < args.ns);
}

/* What one block may have at most: no other finds room beside it. */
size_t all_shared(int device)
{
    int bytes = 0;
    if (cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
        return 0;
    cudaFuncSetAttribute((const void *)spin, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return (size_t)bytes;
}

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_spin(const epx_k_spin_t *args, epx_stream_t stream)
{
    using namespace epx;
    size_t shared = args->units > 0 ? all_shared(current_device()) : 0;
    return launch("spin", {args->units > 0 ? args->units : 1, 32, shared, 1}, stream, spin, *args);
}
