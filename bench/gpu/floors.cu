/*
 * What the machine itself does, beside which the library's figures stand: copies and fills of one GPU, and
 * between neighbours the copy engine and plain 16-byte stores by a kernel, all directions busy at once.
 * SPDX-License-Identifier: Apache-2.0
 *
 * usage: floors. One line of numbers for each floor, GB/s (10^9 bytes) of each GPU; needs nothing but CUDA.
 */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

namespace
{

constexpr size_t BYTES = size_t(256) << 20;
constexpr int REPEATS = 10, THREADS = 512, IN_FLIGHT = 8;
static_assert(BYTES / sizeof(uint4) % (THREADS * IN_FLIGHT) == 0, "whole turns");

void must(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    std::fprintf(stderr, "floors: %s: %s\n", what, cudaGetErrorString(error));
    std::exit(1);
}

/* Eight words in flight for each thread, so that few blocks fill the link too. */
__global__ void __launch_bounds__(THREADS) store(uint4 *to, const uint4 *from, size_t words)
{
    size_t step = size_t(gridDim.x) * THREADS * IN_FLIGHT;
    for (size_t i = (blockIdx.x * size_t(THREADS)) * IN_FLIGHT + threadIdx.x; i < words; i += step) {
        uint4 word[IN_FLIGHT];
#pragma unroll
        for (int k = 0; k < IN_FLIGHT; k++)
            word[k] = __ldcs(from + i + k * THREADS);
#pragma unroll
        for (int k = 0; k < IN_FLIGHT; k++)
            to[i + k * THREADS] = word[k];
    }
}

struct gpu {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    void *from, *to;
};

/* Runs `work` on all GPUs at once; the median over repeats of the slowest GPU's milliseconds. */
template <typename F> double slowest_ms(std::vector<gpu> &gpus, F work)
{
    std::vector<double> times;
    for (int repeat = -2; repeat < REPEATS; repeat++) {
        for (size_t g = 0; g < gpus.size(); g++) {
            must(cudaSetDevice((int)g), "choosing a GPU");
            must(cudaDeviceSynchronize(), "waiting");
        }
        for (size_t g = 0; g < gpus.size(); g++) {
            must(cudaSetDevice((int)g), "choosing a GPU");
            must(cudaEventRecord(gpus[g].begin, gpus[g].stream), "an event");
            work((int)g);
            must(cudaEventRecord(gpus[g].end, gpus[g].stream), "an event");
        }
        float most = 0;
        for (size_t g = 0; g < gpus.size(); g++) {
            float ms = 0;
            must(cudaEventSynchronize(gpus[g].end), "waiting");
            must(cudaEventElapsedTime(&ms, gpus[g].begin, gpus[g].end), "a time");
            most = std::max(most, ms);
        }
        if (repeat >= 0)
            times.push_back(most);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

void say(const char *what, double bytes, double ms)
{
    std::printf("%-32s %8.1f GB/s\n", what, bytes / ms * 1e-6);
}

void between_neighbours(std::vector<gpu> &gpus)
{
    int n = (int)gpus.size();
    for (int g = 0; g < n; g++) {
        must(cudaSetDevice(g), "choosing a GPU");
        must(cudaDeviceEnablePeerAccess((g + 1) % n, 0), "access to the neighbour's memory");
    }
    say("copy engine to the neighbour", (double)BYTES, slowest_ms(gpus, [&](int g) {
            int next = (g + 1) % n;
            must(cudaMemcpyPeerAsync(gpus[next].to, next, gpus[g].from, g, BYTES, gpus[g].stream), "a copy");
        }));
    for (int blocks : {4, 8, 16, 24, 32, 64, 132}) {
        char name[64];
        std::snprintf(name, sizeof(name), "peer stores, %d blocks of %d", blocks, THREADS);
        say(name, (double)BYTES, slowest_ms(gpus, [&](int g) {
                store<<<blocks, THREADS, 0, gpus[g].stream>>>(
                    (uint4 *)gpus[(g + 1) % n].to, (const uint4 *)gpus[g].from, BYTES / sizeof(uint4));
                must(cudaGetLastError(), "a launch");
            }));
    }
}

} // namespace

int main()
{
    int count = 0;
    must(cudaGetDeviceCount(&count), "looking for GPUs");
    std::vector<gpu> gpus((size_t)count);
    for (int g = 0; g < count; g++) {
        must(cudaSetDevice(g), "choosing a GPU");
        must(cudaStreamCreateWithFlags(&gpus[g].stream, cudaStreamNonBlocking), "a stream");
        must(cudaEventCreate(&gpus[g].begin), "an event");
        must(cudaEventCreate(&gpus[g].end), "an event");
        must(cudaMalloc(&gpus[g].from, BYTES), "memory");
        must(cudaMalloc(&gpus[g].to, BYTES), "memory");
        must(cudaMemset(gpus[g].from, 1, BYTES), "a fill");
    }
    say("own copy, read + written", 2.0 * (double)BYTES, slowest_ms(gpus, [&](int g) {
            must(cudaMemcpyAsync(gpus[g].to, gpus[g].from, BYTES, cudaMemcpyDeviceToDevice, gpus[g].stream),
                 "a copy");
        }));
    say("own fill, written", (double)BYTES, slowest_ms(gpus, [&](int g) {
            must(cudaMemsetAsync(gpus[g].to, 0, BYTES, gpus[g].stream), "a fill");
        }));
    if (count > 1)
        between_neighbours(gpus);
    else
        std::printf("%-32s %s\n", "between neighbours", "left out: one GPU");
    return 0;
}
