/* put of the device: a few bytes of the host, carried by the launch itself. SPDX-License-Identifier:
 * Apache-2.0 */
#include <string.h>

#include <epx/device.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

struct payload {
    alignas(8) unsigned char byte[EPX_PUT_BYTES];
};

__global__ void __launch_bounds__(EPX_PUT_BYTES) put_bytes(void *to, const payload from, int bytes)
{
    if ((int)threadIdx.x < bytes)
        ((unsigned char *)to)[threadIdx.x] = from.byte[threadIdx.x];
}

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_put(void *to, const void *from, size_t bytes, epx_stream_t stream)
{
    using namespace epx;
    payload load;
    memcpy(load.byte, from, bytes);
    return launch("put", shape1{1, EPX_PUT_BYTES, 0, 1}, stream, put_bytes, to, load, (int)bytes);
}
