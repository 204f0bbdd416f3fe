/* From an error of the CUDA runtime to a status with a text. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_KERNELS_CUDA_FAIL_H
#define EPX_KERNELS_CUDA_FAIL_H

#include <cuda_runtime_api.h>

#include <epx/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* EPX_OK, or the status with "cuda: <what> failed: <the runtime's text>" as last error. After most errors the
 * runtime refuses all further calls of the process: EPX_ERR_FATAL. */
epx_status_t epx_cuda_status(cudaError_t error, const char *what);

#ifdef __cplusplus
}
#endif
#endif
