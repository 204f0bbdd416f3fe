/*
 * What a large matrix product loses to something else on its GPU, before any of the library's kernels are
 * that: blocks that hold a few multiprocessors and touch no memory, and blocks that copy memory there.
 * SPDX-License-Identifier: Apache-2.0
 *
 * usage: product [blocks...]. One line for each pair; needs CUDA and cuBLAS. A neighbour begins before the
 * product and goes on until it has ended.
 */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace
{

constexpr int SIDE = 8192, PRODUCTS = 250, REPEATS = 3, THREADS = 512, IN_FLIGHT = 8;
constexpr size_t BYTES = size_t(512) << 20;

void must(int error, const char *what)
{
    if (error == 0)
        return;
    std::fprintf(stderr, "product: %s failed with code %d\n", what, error);
    std::exit(1);
}

/* Holds its multiprocessors alone: nothing else fits beside so much shared memory. */
__global__ void __launch_bounds__(THREADS) hold(volatile int *stop)
{
    extern __shared__ char all[];
    while (*stop == 0)
        __nanosleep(2000);
}

/* The same, copying; counts the words of each block. */
__global__ void __launch_bounds__(THREADS)
    copy(volatile int *stop, uint4 *to, const uint4 *from, size_t words, unsigned long long *copied)
{
    extern __shared__ char all[];
    size_t turn = size_t(THREADS) * IN_FLIGHT, step = gridDim.x * turn, i = blockIdx.x * turn;
    unsigned long long mine = 0;
    for (unsigned turns = 0; turns % 16 != 0 || *stop == 0; turns++) {
        uint4 word[IN_FLIGHT];
#pragma unroll
        for (int k = 0; k < IN_FLIGHT; k++)
            word[k] = __ldcs(from + i + threadIdx.x + k * THREADS);
#pragma unroll
        for (int k = 0; k < IN_FLIGHT; k++)
            __stcs(to + i + threadIdx.x + k * THREADS, word[k]);
        mine += turn;
        i += step;
        if (i + turn > words)
            i = blockIdx.x * turn;
    }
    if (threadIdx.x == 0)
        atomicAdd(copied, mine);
}

__global__ void fill(__nv_bfloat16 *to, size_t n, unsigned seed)
{
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n;
         i += size_t(gridDim.x) * blockDim.x) {
        unsigned z = unsigned(i) * 2654435761u + seed;
        z = (z ^ (z >> 15)) * 2246822519u;
        z ^= z >> 13;
        to[i] = __float2bfloat16((float(z & 0xffff) - 32768.0f) / 32768.0f);
    }
}

struct machine {
    cublasHandle_t blas;
    cudaStream_t products, beside, side;
    cudaEvent_t begin, end;
    __nv_bfloat16 *matrix[3];
    uint4 *from, *to;
    unsigned long long *copied;
    int *stop;
    int units, shared;
};

enum { ALONE, HOLD, COPY };

/* Milliseconds of one product; gb_per_s: what the neighbour copied meanwhile, read and written. told: how
 * many multiprocessors cuBLAS is told of, 0: nothing. */
double product_ms(machine &m, int neighbour, int blocks, int told, double *gb_per_s)
{
    std::vector<double> times, rates;
    for (int repeat = -1; repeat < REPEATS; repeat++) {
        must(cudaMemsetAsync(m.stop, 0, sizeof(int), m.beside), "a fill");
        must(cudaMemsetAsync(m.copied, 0, 8, m.beside), "a fill");
        must(cudaEventRecord(m.begin, m.beside), "an event");
        if (neighbour == HOLD)
            hold<<<blocks, THREADS, m.shared, m.beside>>>(m.stop);
        if (neighbour == COPY)
            copy<<<blocks, THREADS, m.shared, m.beside>>>(m.stop, m.to, m.from, BYTES / 16, m.copied);
        must(cudaGetLastError(), "a launch");
        /* It is there before the product comes. */
        struct timespec pause = {0, 1000000};
        nanosleep(&pause, nullptr);
        cudaEvent_t from, to;
        must(cudaEventCreate(&from), "an event");
        must(cudaEventCreate(&to), "an event");
        must(cublasSetStream(m.blas, m.products), "cublasSetStream");
        must(cublasSetSmCountTarget(m.blas, told), "cublasSetSmCountTarget");
        must(cudaEventRecord(from, m.products), "an event");
        for (int i = 0; i < PRODUCTS; i++) {
            const float one = 1, zero = 0;
            must(cublasGemmEx(m.blas, CUBLAS_OP_T, CUBLAS_OP_N, SIDE, SIDE, SIDE, &one, m.matrix[0],
                              CUDA_R_16BF, SIDE, m.matrix[1], CUDA_R_16BF, SIDE, &zero, m.matrix[2],
                              CUDA_R_16BF, SIDE, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                 "cublasGemmEx");
        }
        must(cudaEventRecord(to, m.products), "an event");
        must(cudaStreamSynchronize(m.products), "waiting");
        must(cudaMemsetAsync(m.stop, 1, sizeof(int), m.side), "a fill");
        must(cudaEventRecord(m.end, m.beside), "an event");
        must(cudaDeviceSynchronize(), "waiting");
        float ms = 0, all = 0;
        unsigned long long words = 0;
        must(cudaEventElapsedTime(&ms, from, to), "a time");
        must(cudaEventElapsedTime(&all, m.begin, m.end), "a time");
        must(cudaMemcpy(&words, m.copied, 8, cudaMemcpyDeviceToHost), "a copy");
        must(cudaEventDestroy(from), "an event");
        must(cudaEventDestroy(to), "an event");
        if (repeat >= 0) {
            times.push_back(ms / PRODUCTS);
            rates.push_back(32.0 * (double)words / all * 1e-6);
        }
    }
    std::sort(times.begin(), times.end());
    std::sort(rates.begin(), rates.end());
    *gb_per_s = rates[rates.size() / 2];
    return times[times.size() / 2];
}

void say(const char *what, double ms, double alone, double gb_per_s)
{
    std::printf("%-58s %8.3f ms %6.1f%% slower", what, ms, 100 * (ms / alone - 1));
    if (gb_per_s > 0)
        std::printf("  beside %6.0f GB/s read + written", gb_per_s);
    std::printf("\n");
}

} // namespace

int main(int argc, char **argv)
{
    machine m = {};
    cudaDeviceProp properties;
    must(cudaGetDeviceProperties(&properties, 0), "looking at the GPU");
    m.units = properties.multiProcessorCount, m.shared = (int)properties.sharedMemPerBlockOptin;
    must(cudaFuncSetAttribute((const void *)hold, cudaFuncAttributeMaxDynamicSharedMemorySize, m.shared),
         "shared memory");
    must(cudaFuncSetAttribute((const void *)copy, cudaFuncAttributeMaxDynamicSharedMemorySize, m.shared),
         "shared memory");
    must(cublasCreate(&m.blas), "cublasCreate");
    must(cudaStreamCreateWithFlags(&m.products, cudaStreamNonBlocking), "a stream");
    must(cudaStreamCreateWithFlags(&m.beside, cudaStreamNonBlocking), "a stream");
    must(cudaStreamCreateWithFlags(&m.side, cudaStreamNonBlocking), "a stream");
    must(cudaEventCreate(&m.begin), "an event");
    must(cudaEventCreate(&m.end), "an event");
    for (int i = 0; i < 3; i++) {
        must(cudaMalloc(&m.matrix[i], size_t(SIDE) * SIDE * 2), "memory");
        fill<<<1024, 256>>>(m.matrix[i], size_t(SIDE) * SIDE, unsigned(i + 1) * 977u);
    }
    must(cudaMalloc(&m.from, BYTES), "memory");
    must(cudaMalloc(&m.to, BYTES), "memory");
    must(cudaMalloc(&m.copied, 8), "memory");
    must(cudaMalloc(&m.stop, sizeof(int)), "memory");
    must(cudaMemset(m.from, 1, BYTES), "a fill");
    must(cudaDeviceSynchronize(), "waiting");
    std::vector<int> grids;
    for (int i = 1; i < argc; i++)
        grids.push_back(std::min(std::max(std::atoi(argv[i]), 1), m.units - 1));
    if (grids.empty())
        grids = {24, 48};
    double rate = 0, alone = product_ms(m, ALONE, 0, 0, &rate);
    say("product of 8192 x 8192 x 8192 bf16, alone", alone, alone, 0);
    for (int n : grids) {
        char what[96];
        std::snprintf(what, sizeof(what), "told of %d of %d multiprocessors, alone", m.units - n, m.units);
        say(what, product_ms(m, ALONE, 0, m.units - n, &rate), alone, 0);
        for (int neighbour : {HOLD, COPY}) {
            for (int told : {0, m.units - n}) {
                std::snprintf(what, sizeof(what), "beside %d that %s%s", n,
                              neighbour == HOLD ? "are held" : "copy",
                              told > 0 ? ", told of the others" : "");
                double slow = product_ms(m, neighbour, n, told, &rate);
                say(what, slow, alone, neighbour == COPY ? rate : 0);
            }
        }
    }
    return 0;
}
