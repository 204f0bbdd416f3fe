/*
 * Device `cuda`: memory, copies, streams and events of one GPU. Everything acts on the calling thread's
 * current device. SPDX-License-Identifier: Apache-2.0
 */
#include "device/cuda/cuda.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "device/cuda/marks.h"
#include "kernels/cuda/fail.h"
#include "kernels/cuda/load.h"
#include "kernels/cuda/table.h"

/* Below the host's: programs whose rows are in plain memory say nothing, and must go on working beside a GPU.
 */
enum { SCORE = 5 };

/* The generations that kernels/cuda is compiled for: code for 9.0 runs on 9.x, that for 10.0 on 10.x. */
static int has_code_for(int major) { return major == 9 || major == 10; }

static int cuda_probe(char *reason, size_t reason_bytes)
{
    int count = 0, device = 0, driver = 0, major = 0, minor = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
            snprintf(reason, reason_bytes, "no GPU: no NVIDIA driver is loaded (%s)",
                     cudaGetErrorString(error));
        else
            snprintf(reason, reason_bytes, "no GPU: %s",
                     error != cudaSuccess ? cudaGetErrorString(error) : "the driver shows none");
        return 0;
    }
    error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (error != cudaSuccess) {
        snprintf(reason, reason_bytes, "no GPU: %s", cudaGetErrorString(error));
        return 0;
    }
    if (!has_code_for(major)) {
        snprintf(reason, reason_bytes,
                 "GPU %d has compute capability %d.%d; this build has code for 9.0 and 10.0", device, major,
                 minor);
        return 0;
    }
    snprintf(reason, reason_bytes, "%s", "");
    return SCORE;
}

/* What the driver does not tell. Rates by the vendor's tables (dense bf16) and, for copies, as measured; 0:
 * not known. */
typedef struct known_gpu {
    const char *part; /* of the driver's name; the first that fits */
    double copy_bytes_per_s, peak_flops;
} known_gpu_t;

static const known_gpu_t known_gpus[] = {
    {"H200", 4.24e12, 989e12}, {"H100 PCIe", 0, 756e12}, {"H100", 0, 989e12},
    {"GB200", 0, 2500e12},     {"B200", 0, 2250e12},
};

static epx_status_t cuda_properties(epx_device_properties_t *properties_p)
{
    int device = 0;
    struct cudaDeviceProp found;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaGetDeviceProperties(&found, device);
    if (error != cudaSuccess)
        return epx_cuda_status(error, "reading the properties of the GPU");
    *properties_p = (epx_device_properties_t){.units = found.multiProcessorCount,
                                              .memory_bytes = (int64_t)found.totalGlobalMem};
    snprintf(properties_p->name, sizeof(properties_p->name), "%.60s", found.name);
    for (size_t i = 0; i < sizeof(known_gpus) / sizeof(known_gpus[0]); i++) {
        if (strstr(found.name, known_gpus[i].part) == NULL)
            continue;
        properties_p->copy_bytes_per_s = known_gpus[i].copy_bytes_per_s;
        properties_p->peak_flops = known_gpus[i].peak_flops;
        break;
    }
    return EPX_OK;
}

static void *cuda_allocate(size_t bytes, size_t alignment)
{
    void *memory = NULL;
    if (cudaMalloc(&memory, bytes > 0 ? bytes : 1) != cudaSuccess) {
        cudaGetLastError(); /* no memory is no error of a later launch */
        return NULL;
    }
    if ((uintptr_t)memory % alignment == 0)
        return memory;
    cudaFree(memory);
    return NULL;
}

static void cuda_release(void *memory, size_t bytes)
{
    (void)bytes;
    cudaFree(memory);
}

static void *cuda_allocate_shared(size_t bytes)
{
    void *memory = NULL;
    if (bytes == 0)
        bytes = 1;
    if (cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    memset(memory, 0, bytes);
    return memory;
}

static void cuda_release_shared(void *memory, size_t bytes)
{
    (void)bytes;
    cudaFreeHost(memory);
}

static void *cuda_map_shared(void *memory, size_t bytes)
{
    void *mapped = NULL;
    if (cudaHostRegister(memory, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    if (cudaHostGetDevicePointer(&mapped, memory, 0) != cudaSuccess) {
        cudaGetLastError();
        cudaHostUnregister(memory);
        return NULL;
    }
    return mapped;
}

static void cuda_unmap_shared(void *memory)
{
    cudaDeviceSynchronize();
    cudaHostUnregister(memory);
    cudaGetLastError();
}

static epx_status_t cuda_copy(void *to, const void *from, size_t bytes, epx_stream_t stream)
{
    if (bytes == 0)
        return EPX_OK;
    return epx_cuda_status(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "a copy");
}

static epx_status_t cuda_fill(void *to, int byte, size_t bytes, epx_stream_t stream)
{
    if (bytes == 0)
        return EPX_OK;
    return epx_cuda_status(cudaMemsetAsync(to, byte, bytes, stream), "a fill");
}

static epx_status_t cuda_synchronize(epx_stream_t stream)
{
    return epx_cuda_status(cudaStreamSynchronize(stream), "waiting for a stream");
}

static epx_status_t cuda_stream_create(epx_stream_t *stream_p)
{
    cudaStream_t stream;
    epx_status_t status =
        epx_cuda_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    if (status == EPX_OK)
        *stream_p = stream;
    return status;
}

static void cuda_stream_destroy(epx_stream_t stream)
{
    if (stream != NULL)
        cudaStreamDestroy(stream);
}

static epx_status_t cuda_event_create(int32_t timed, epx_event_t *event_p)
{
    cudaEvent_t event;
    unsigned flags = timed ? cudaEventDefault : cudaEventDisableTiming;
    epx_status_t status = epx_cuda_status(cudaEventCreateWithFlags(&event, flags), "making an event");
    if (status == EPX_OK)
        *event_p = event;
    return status;
}

static void cuda_event_destroy(epx_event_t event)
{
    if (event != NULL)
        cudaEventDestroy(event);
}

static epx_status_t cuda_event_record(epx_event_t event, epx_stream_t stream)
{
    return epx_cuda_status(cudaEventRecord(event, stream), "recording an event");
}

static epx_status_t cuda_event_elapsed(epx_event_t from, epx_event_t to, double *seconds_p)
{
    float ms = 0;
    epx_status_t status =
        epx_cuda_status(cudaEventElapsedTime(&ms, from, to), "reading the time between events");
    if (status == EPX_OK)
        *seconds_p = ms * 1e-3;
    return status;
}

static epx_status_t cuda_stream_wait(epx_stream_t stream, epx_event_t event)
{
    return epx_cuda_status(cudaStreamWaitEvent(stream, event, 0), "making a stream wait");
}

static int32_t cuda_is_capturing(epx_stream_t stream)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(stream, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
}

static epx_status_t cuda_drain(void)
{
    return epx_cuda_status(cudaDeviceSynchronize(), "waiting for the GPU");
}

static int32_t cuda_count(void)
{
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

static int32_t cuda_current(void)
{
    int device = 0;
    return cudaGetDevice(&device) == cudaSuccess ? device : 0;
}

static epx_status_t cuda_select(int32_t index)
{
    return epx_cuda_status(cudaSetDevice(index), "choosing a GPU");
}

static void cuda_load(void) { epx_cuda_load(); }

static int32_t cuda_bus(int32_t index, char bus[EPX_DEVICE_BUS_BYTES])
{
    return cudaDeviceGetPCIBusId(bus, EPX_DEVICE_BUS_BYTES, index) == cudaSuccess;
}

const epx_device_ops_t epx_device_cuda = {
    .name = "cuda",
    .host_access = 0,
    .probe = cuda_probe,
    .properties = cuda_properties,
    .allocate = cuda_allocate,
    .release = cuda_release,
    .allocate_shared = cuda_allocate_shared,
    .release_shared = cuda_release_shared,
    .map_shared = cuda_map_shared,
    .unmap_shared = cuda_unmap_shared,
    .bus = cuda_bus,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .synchronize = cuda_synchronize,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_elapsed = cuda_event_elapsed,
    .stream_wait = cuda_stream_wait,
    .put = epx_cuda_put,
    .is_capturing = cuda_is_capturing,
    .drain = cuda_drain,
    .count = cuda_count,
    .current = cuda_current,
    .select = cuda_select,
    .load = cuda_load,
    .mark_begin = epx_cuda_mark_begin,
    .mark_end = epx_cuda_mark_end,
    .kernels = &epx_kernels_cuda,
};
