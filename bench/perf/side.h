/*
 * The device that a measurement runs on: a stream, events and memory for each rank.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Buffers are twins: `host` is what this program fills and looks at, `device` what calls get. Where the host
 * reaches the device's memory both are the same.
 */
#ifndef EPX_BENCH_PERF_SIDE_H
#define EPX_BENCH_PERF_SIDE_H

#include <epx/device.h>

#include "tools/common/ranks.h"

typedef struct epx_perf_side {
    const epx_device_ops_t *device; /* NULL: calls are synchronous and in the host's memory */
    epx_stream_t stream;
    epx_event_t begin, end;
} epx_perf_side_t;

typedef struct epx_perf_twin {
    void *host, *device;
    size_t bytes;
} epx_perf_twin_t;

/* Over fabric nccl every rank has a GPU of its own, by its place among the ranks of this host; the calling
 * thread uses it from now on. A launcher may show every process one GPU alone. Names may be NULL. */
int epx_perf_side_choose(epx_rank_t *self, int32_t local_rank, const char *fabric, const char *device);
/* Opens the side of a rank for the device of that name. 0 or an exit code. */
int epx_perf_side_open(epx_rank_t *self, epx_perf_side_t *side, const char *device);
void epx_perf_side_close(epx_perf_side_t *side);

/* count * size bytes, zeroed on the host. 0 or an exit code. */
int epx_perf_twin_new(epx_rank_t *self, const epx_perf_side_t *side, epx_perf_twin_t *twin, size_t count,
                      size_t size);
/* Memory of the device alone; NULL in `device` where there is no device. */
int epx_perf_twin_new_device(epx_rank_t *self, const epx_perf_side_t *side, epx_perf_twin_t *twin,
                             size_t count, size_t size);
void epx_perf_twin_free(const epx_device_ops_t *device, epx_perf_twin_t *twin);

/* What the host has, to the device; what the device has, to the host. They wait until it is there. */
int epx_perf_up(epx_rank_t *self, const epx_perf_side_t *side, const epx_perf_twin_t *twin);
int epx_perf_down(epx_rank_t *self, const epx_perf_side_t *side, const epx_perf_twin_t *twin);
/* The same for memory of the library. */
int epx_perf_fetch(epx_rank_t *self, const epx_perf_side_t *side, void *to, const void *from, size_t bytes);

/* Waits for everything on the rank's stream. */
int epx_perf_drain(epx_rank_t *self, const epx_perf_side_t *side);

#endif
