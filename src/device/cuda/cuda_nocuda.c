/* Device `cuda` in a build without CUDA: it only says so. SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda/cuda.h"

#include <stdio.h>

static int cuda_probe(char *reason, size_t reason_bytes)
{
    snprintf(reason, reason_bytes, "not part of this build");
    return 0;
}

const epx_device_ops_t epx_device_cuda = {.name = "cuda", .probe = cuda_probe};
