/*
 * stamp: a word that the host watches, with the device's time. SPDX-License-Identifier: Apache-2.0
 *
 * A posted store to host memory: nothing waits for it. Where the time stands right behind the word, both are
 * one store; else the time is out before the word is, which costs the bus's round trip.
 */
#include <epx/kernels_words.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/progress.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

__global__ void stamp(const __grid_constant__ epx_k_stamp_t args)
{
    behind_previous();
    let_next_begin();
    uint64_t value = args.value.add;
    if (args.value.base != nullptr)
        value += look(args.value.base);
    if (args.count != nullptr) {
        uint64_t count = *args.count + 1;
        *args.count = count;
        value += count << args.shift;
    }
    uint64_t now = (uint64_t)now_ns();
    if (args.name != 0)
        now = now >> EPX_PROGRESS_TIME_SHIFT << EPX_PROGRESS_NAME_BITS | args.name;
    if (args.time_ns == nullptr) {
        *(volatile uint64_t *)args.word = value;
    } else if (args.time_ns == (int64_t *)args.word + 1 && (uintptr_t)args.word % 16 == 0) {
        put_pair(args.word, value, now);
    } else {
        *(volatile int64_t *)args.time_ns = (int64_t)now;
        store_release(args.word, value);
    }
}

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_stamp(const epx_k_stamp_t *args, epx_stream_t stream)
{
    using namespace epx;
    return launch("stamp", {1, 1, 0, 1, true}, stream, stamp, *args);
}
