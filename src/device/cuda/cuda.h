/*
 * Device `cuda`: rows live in the memory of one NVIDIA GPU, kernels are kernels/cuda. A build without CUDA
 * has a table of the same name that says so when it is asked. SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_DEVICE_CUDA_CUDA_H
#define EPX_DEVICE_CUDA_CUDA_H

#include <epx/device.h>

extern const epx_device_ops_t epx_device_cuda;

#endif
