/* From an error of the CUDA runtime to a status with a text. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/fail.h"

#include "base/fail.h"

epx_status_t epx_cuda_status(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return EPX_OK;
    cudaGetLastError(); /* reported here, not by whoever launches next */
    if (error == cudaErrorMemoryAllocation)
        return epx_fail(EPX_ERR_NO_MEMORY, "cuda: %s failed: %s", what, cudaGetErrorString(error));
    return epx_fail(EPX_ERR_FATAL, "cuda: %s failed: %s (%s); the process cannot go on using the GPU", what,
                    cudaGetErrorString(error), cudaGetErrorName(error));
}
