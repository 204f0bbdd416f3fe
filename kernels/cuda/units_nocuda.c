/* Multiprocessors in a build without CUDA: there are none. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/units.h"

int epx_cuda_units(int device)
{
    (void)device;
    return 1;
}

void epx_cuda_limit_units(int units) { (void)units; }
