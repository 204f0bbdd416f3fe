/*
 * ncclAlltoAll between the GPUs of this machine, one thread for all: the vendor's collective as a floor.
 * SPDX-License-Identifier: Apache-2.0
 *
 * usage: alltoall. A line for each size: MiB on each GPU, GB/s (10^9 bytes) that leave each GPU.
 */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>
#include <nccl.h>

namespace
{

constexpr int REPEATS = 10;

void must(bool good, const char *what)
{
    if (good)
        return;
    std::fprintf(stderr, "alltoall: %s failed\n", what);
    std::exit(1);
}

struct gpu {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    void *from, *to;
};

double once_ms(std::vector<gpu> &gpus, std::vector<ncclComm_t> &comms, size_t each)
{
    for (size_t g = 0; g < gpus.size(); g++) {
        must(cudaSetDevice((int)g) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess, "waiting");
        must(cudaEventRecord(gpus[g].begin, gpus[g].stream) == cudaSuccess, "an event");
    }
    must(ncclGroupStart() == ncclSuccess, "ncclGroupStart");
    for (size_t g = 0; g < gpus.size(); g++)
        must(ncclAlltoAll(gpus[g].from, gpus[g].to, each, ncclChar, comms[g], gpus[g].stream) == ncclSuccess,
             "ncclAlltoAll");
    must(ncclGroupEnd() == ncclSuccess, "ncclGroupEnd");
    float most = 0;
    for (size_t g = 0; g < gpus.size(); g++) {
        float ms = 0;
        must(cudaSetDevice((int)g) == cudaSuccess, "choosing a GPU");
        must(cudaEventRecord(gpus[g].end, gpus[g].stream) == cudaSuccess, "an event");
        must(cudaEventSynchronize(gpus[g].end) == cudaSuccess, "waiting");
        must(cudaEventElapsedTime(&ms, gpus[g].begin, gpus[g].end) == cudaSuccess, "a time");
        most = std::max(most, ms);
    }
    return most;
}

} // namespace

int main()
{
    constexpr size_t MOST = size_t(256) << 20;
    int count = 0;
    must(cudaGetDeviceCount(&count) == cudaSuccess, "looking for GPUs");
    std::vector<gpu> gpus((size_t)count);
    std::vector<ncclComm_t> comms((size_t)count);
    for (int g = 0; g < count; g++) {
        must(cudaSetDevice(g) == cudaSuccess, "choosing a GPU");
        must(cudaStreamCreateWithFlags(&gpus[g].stream, cudaStreamNonBlocking) == cudaSuccess, "a stream");
        must(cudaEventCreate(&gpus[g].begin) == cudaSuccess && cudaEventCreate(&gpus[g].end) == cudaSuccess,
             "an event");
        must(cudaMalloc(&gpus[g].from, MOST) == cudaSuccess && cudaMalloc(&gpus[g].to, MOST) == cudaSuccess,
             "memory");
    }
    must(ncclCommInitAll(comms.data(), count, nullptr) == ncclSuccess, "ncclCommInitAll");
    for (size_t bytes : {size_t(16) << 20, MOST}) {
        std::vector<double> times;
        for (int repeat = -3; repeat < REPEATS; repeat++) {
            double ms = once_ms(gpus, comms, bytes / (size_t)count);
            if (repeat >= 0)
                times.push_back(ms);
        }
        std::sort(times.begin(), times.end());
        double leaves = (double)(bytes / (size_t)count) * (count - 1);
        std::printf("%-22s %4zu MiB %8.1f GB/s\n", "ncclAlltoAll", bytes >> 20,
                    leaves / times[REPEATS / 2] * 1e-6);
    }
    for (int g = 0; g < count; g++)
        ncclCommDestroy(comms[g]);
    return 0;
}
