/*
 * The device contract: where rows live, and the kernels that run there. For plug-in and device authors.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_DEVICE_H
#define EPX_DEVICE_H

#include <epx/epx.h>
#include <epx/kernels.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct epx_device_properties {
    char name[64];
    int32_t units;          /* multiprocessors, or cores that this process may use */
    int64_t memory_bytes;   /* in all */
    double copy_bytes_per_s; /* read + written, 0: not known */
    double peak_flops;      /* dense bf16 (cuda) from a table, 0: not known */
} epx_device_properties_t;

/* One constant table per device. Functions without a stream are host calls and may block on the driver. */
typedef struct epx_device_ops {
    const char *name; /* "host", "cuda" */
    /* A score > 0 when this device can be used by this process, else 0 and the reason. */
    int (*probe)(char *reason, size_t reason_bytes);
    epx_status_t (*properties)(epx_device_properties_t *properties_p);
    /* Zeroed or not is not promised. NULL when there is none. alignment: a power of two. */
    void *(*allocate)(size_t bytes, size_t alignment);
    void (*release)(void *memory, size_t bytes);
    /* Any direction between host and device memory; stream-ordered. */
    epx_status_t (*copy)(void *to, const void *from, size_t bytes, epx_stream_t stream);
    epx_status_t (*fill)(void *to, int byte, size_t bytes, epx_stream_t stream);
    epx_status_t (*synchronize)(epx_stream_t stream);
    const epx_kernels_t *kernels;
} epx_device_ops_t;

#ifdef __cplusplus
}
#endif
#endif
