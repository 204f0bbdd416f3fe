/* Streams, events and memory of the device under measurement. SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf/side.h"

#include <stdlib.h>
#include <string.h>

#include "src/device/registry.h"
#include "tools/common/program.h"

static const epx_device_ops_t *device_of(const char *name)
{
    for (int32_t i = 0; i < epx_device_count(); i++)
        if (strcmp(epx_device_at(i)->name, name) == 0)
            return epx_device_at(i)->ops;
    return NULL;
}

int epx_perf_side_choose(epx_rank_t *self, int32_t local_rank, const char *fabric, const char *device)
{
    const epx_device_ops_t *ops = device != NULL ? device_of(device) : NULL;
    if (fabric == NULL || strcmp(fabric, "nccl") != 0 || ops == NULL)
        return EPX_EXIT_OK;
    int32_t gpus = ops->count();
    int32_t launched = 1;
    if (epx_comm_launched(NULL, &launched) == EPX_OK && launched > 1 && gpus == 1)
        local_rank = 0; /* the one that the launcher shows this process; NCCL refuses ranks that share one */
    if (local_rank >= gpus)
        return epx_rank_fail(self, EPX_EXIT_NO_VERDICT,
                             "fabric nccl needs a GPU for each of %d ranks, here are %d", self->ranks, gpus);
    return epx_rank_check(self, ops->select(local_rank), "a GPU of the rank's own");
}

int epx_perf_side_open(epx_rank_t *self, epx_perf_side_t *side, const char *device)
{
    const epx_device_ops_t *ops = device_of(device);
    *side = (epx_perf_side_t){.device = NULL};
    if (ops == NULL || ops->host_access)
        return EPX_EXIT_OK;
    side->device = ops;
    int rc = epx_rank_check(self, ops->stream_create(&side->stream), "a stream");
    if (rc == EPX_EXIT_OK)
        rc = epx_rank_check(self, ops->event_create(1, &side->begin), "an event");
    if (rc == EPX_EXIT_OK)
        rc = epx_rank_check(self, ops->event_create(1, &side->end), "an event");
    return rc;
}

void epx_perf_side_close(epx_perf_side_t *side)
{
    if (side->device == NULL)
        return;
    if (side->begin != NULL)
        side->device->event_destroy(side->begin);
    if (side->end != NULL)
        side->device->event_destroy(side->end);
    if (side->stream != NULL)
        side->device->stream_destroy(side->stream);
    *side = (epx_perf_side_t){.device = NULL};
}

int epx_perf_twin_new_device(epx_rank_t *self, const epx_perf_side_t *side, epx_perf_twin_t *twin,
                             size_t count, size_t size)
{
    *twin = (epx_perf_twin_t){.bytes = count * size};
    if (side->device == NULL)
        return EPX_EXIT_OK;
    if (twin->bytes == 0)
        twin->bytes = 1;
    twin->device = side->device->allocate(twin->bytes, 256);
    return twin->device != NULL
               ? EPX_EXIT_OK
               : epx_rank_fail(self, EPX_EXIT_FAILED, "no %zu bytes on the device: use fewer tokens or ranks",
                               twin->bytes);
}

int epx_perf_twin_new(epx_rank_t *self, const epx_perf_side_t *side, epx_perf_twin_t *twin, size_t count,
                      size_t size)
{
    int rc = epx_perf_twin_new_device(self, side, twin, count, size);
    twin->host = epx_tool_alloc(count, size);
    if (side->device == NULL)
        twin->device = twin->host;
    return rc;
}

void epx_perf_twin_free(const epx_device_ops_t *device, epx_perf_twin_t *twin)
{
    if (device != NULL && twin->device != NULL)
        device->release(twin->device, twin->bytes);
    free(twin->host);
    *twin = (epx_perf_twin_t){.host = NULL};
}

int epx_perf_drain(epx_rank_t *self, const epx_perf_side_t *side)
{
    if (side->device == NULL)
        return EPX_EXIT_OK;
    return epx_rank_check(self, side->device->synchronize(side->stream), "waiting for the device");
}

static int copy(epx_rank_t *self, const epx_perf_side_t *side, void *to, const void *from, size_t bytes)
{
    int rc = epx_rank_check(self, side->device->copy(to, from, bytes, side->stream), "a copy");
    return rc == EPX_EXIT_OK ? epx_perf_drain(self, side) : rc;
}

int epx_perf_up(epx_rank_t *self, const epx_perf_side_t *side, const epx_perf_twin_t *twin)
{
    if (side->device == NULL || twin->host == NULL)
        return EPX_EXIT_OK;
    return copy(self, side, twin->device, twin->host, twin->bytes);
}

int epx_perf_down(epx_rank_t *self, const epx_perf_side_t *side, const epx_perf_twin_t *twin)
{
    if (side->device == NULL || twin->host == NULL)
        return EPX_EXIT_OK;
    return copy(self, side, twin->host, twin->device, twin->bytes);
}

int epx_perf_fetch(epx_rank_t *self, const epx_perf_side_t *side, void *to, const void *from, size_t bytes)
{
    return copy(self, side, to, from, bytes);
}
