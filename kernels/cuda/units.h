/* How many multiprocessors there are. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_KERNELS_CUDA_UNITS_H
#define EPX_KERNELS_CUDA_UNITS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Multiprocessors of the device; at least 1. */
int epx_cuda_units(int device);

#ifdef __cplusplus
}
#endif
#endif
