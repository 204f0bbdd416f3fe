/* How many multiprocessors kernels may fill. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_KERNELS_CUDA_UNITS_H
#define EPX_KERNELS_CUDA_UNITS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Multiprocessors of the device, or the budget when that is less; at least 1. */
int epx_cuda_units(int device);

/* Kernels that move rows use grids for at most `units` multiprocessors from now on; 0: all. Process-wide. */
void epx_cuda_limit_units(int units);

#ifdef __cplusplus
}
#endif
#endif
