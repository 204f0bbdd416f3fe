/* How many multiprocessors there are. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/units.h"

#include <stdatomic.h>

#include <cuda_runtime_api.h>

enum { DEVICES_REMEMBERED = 32 };

static atomic_int known[DEVICES_REMEMBERED];

int epx_cuda_units(int device)
{
    int slot = device >= 0 && device < DEVICES_REMEMBERED ? device : -1;
    int units = slot >= 0 ? atomic_load_explicit(&known[slot], memory_order_relaxed) : 0;
    if (units == 0) {
        if (cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
            units < 1)
            units = 1;
        if (slot >= 0)
            atomic_store_explicit(&known[slot], units, memory_order_relaxed);
    }
    return units;
}
