/*
 * The CUDA kernels: every function here is the GPU's version of the entry of the same name in epx_kernels_t,
 * bit-equal to kernels/host; see include/epx/kernels.h. Each has a file of its own, with its launch. Calls
 * return when the launch is in the stream. SPDX-License-Identifier: Apache-2.0
 *
 * NaN: where arithmetic yields a NaN its bits may differ from the host's, which keeps payloads; that it is
 * one does not.
 */
#ifndef EPX_KERNELS_CUDA_TABLE_H
#define EPX_KERNELS_CUDA_TABLE_H

#include <epx/kernels.h>

#ifdef __cplusplus
extern "C" {
#endif

extern const epx_kernels_t epx_kernels_cuda;

#ifdef __cplusplus
}
#endif
#endif
