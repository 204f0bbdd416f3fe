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
    int32_t units;           /* multiprocessors, or cores that this process may use */
    int64_t memory_bytes;    /* in all */
    double copy_bytes_per_s; /* read + written, 0: not known */
    double peak_flops;       /* dense bf16 (cuda) from a table, 0: not known */
} epx_device_properties_t;

#define EPX_PUT_BYTES 256
#define EPX_DEVICE_BUS_BYTES 32

/* A point in a stream, for other streams to wait for. NULL on devices whose calls are synchronous. */
typedef void *epx_event_t;

/*
 * One constant table per device. Functions without a stream are host calls and may block on the driver. A
 * process has one device of a kind: for `cuda` the current device of the calling thread, which must be the
 * same at every call.
 */
typedef struct epx_device_ops {
    const char *name; /* "host", "cuda" */
    /* 1: the host may load and store this device's memory, and calls are synchronous. 0: only copies and
     * kernels reach it. */
    int32_t host_access;
    /* A score > 0 when this device can be used by this process, else 0 and the reason. */
    int (*probe)(char *reason, size_t reason_bytes);
    epx_status_t (*properties)(epx_device_properties_t *properties_p);
    /* Zeroed or not is not promised. NULL when there is none. alignment: a power of two. */
    void *(*allocate)(size_t bytes, size_t alignment);
    void (*release)(void *memory, size_t bytes);
    /* Host memory that kernels reach at the same address, zeroed; what they store is seen after the stream
     * has ended or with system-wide release and acquire. NULL when there is none. */
    void *(*allocate_shared)(size_t bytes);
    void (*release_shared)(void *memory, size_t bytes);
    /* Host memory of the caller's own, whole pages (a mapped file): the address at which kernels reach it, or
     * NULL where they cannot. unmap takes the caller's address, before the memory goes; waits for the device.
     */
    void *(*map_shared)(void *memory, size_t bytes);
    void (*unmap_shared)(void *memory);
    /* Any direction between host and device memory; stream-ordered. */
    epx_status_t (*copy)(void *to, const void *from, size_t bytes, epx_stream_t stream);
    epx_status_t (*fill)(void *to, int byte, size_t bytes, epx_stream_t stream);
    epx_status_t (*synchronize)(epx_stream_t stream);
    /* Streams for programs that have none of their own. */
    epx_status_t (*stream_create)(epx_stream_t *stream_p);
    void (*stream_destroy)(epx_stream_t stream);
    /* timed: event_elapsed may ask for the seconds between two of them (both must have happened). */
    epx_status_t (*event_create)(int32_t timed, epx_event_t *event_p);
    void (*event_destroy)(epx_event_t event);
    epx_status_t (*event_record)(epx_event_t event, epx_stream_t stream);
    epx_status_t (*event_elapsed)(epx_event_t from, epx_event_t to, double *seconds_p);
    /* What `stream` does from here on waits for the last record of `event`; the host waits for nothing. */
    epx_status_t (*stream_wait)(epx_stream_t stream, epx_event_t event);
    /* At most EPX_PUT_BYTES of host memory, taken when it is called: a graph that captures it keeps their
     * value. */
    epx_status_t (*put)(void *to, const void *from, size_t bytes, epx_stream_t stream);
    /* 1: what is put into the stream is recorded for a graph, so the host can wait for none of it. */
    int32_t (*is_capturing)(epx_stream_t stream);
    /* Waits for everything that this process has given the device. */
    epx_status_t (*drain)(void);
    /* How many there are of this kind, which one the calling thread uses, and another one from now on. */
    int32_t (*count)(void);
    int32_t (*current)(void);
    epx_status_t (*select)(int32_t index);
    /* Loads what a kernel's first launch would load, for the device that the calling thread uses: a launch
     * that loads may wait for all that runs there, kernels that wait for peers included. What cannot be
     * loaded now is loaded then. NULL: nothing is loaded late. */
    void (*load)(void);
    /* 1: its place on the PCI bus, "0000:1B:00.0"; 0: it has none. Any thread. NULL: none has. */
    int32_t (*bus)(int32_t index, char bus[EPX_DEVICE_BUS_BYTES]);
    /* For profilers: a range of the calling thread from mark_begin to mark_end, called `what` (text that
     * stays) with a number beside. NULL: there are none. */
    void (*mark_begin)(const char *what, int64_t number);
    void (*mark_end)(void);
    const epx_kernels_t *kernels;
} epx_device_ops_t;

#ifdef __cplusplus
}
#endif
#endif
