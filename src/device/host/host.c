/* Device `host`. SPDX-License-Identifier: Apache-2.0 */
#include "device/host/host.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "kernels/host/table.h"

static int host_probe(char *reason, size_t reason_bytes)
{
    if (reason_bytes > 0)
        reason[0] = '\0';
    return 10;
}

static epx_status_t host_properties(epx_device_properties_t *properties_p)
{
    cpu_set_t cores;
    memset(properties_p, 0, sizeof(*properties_p));
    snprintf(properties_p->name, sizeof(properties_p->name), "host");
    properties_p->units = 1;
    if (sched_getaffinity(0, sizeof(cores), &cores) == 0)
        properties_p->units = CPU_COUNT(&cores);
    properties_p->memory_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    return EPX_OK;
}

static void *host_allocate(size_t bytes, size_t alignment)
{
    void *memory = NULL;
    if (alignment < sizeof(void *))
        alignment = sizeof(void *);
    return posix_memalign(&memory, alignment, bytes > 0 ? bytes : 1) == 0 ? memory : NULL;
}

static void host_release(void *memory, size_t bytes)
{
    (void)bytes;
    free(memory);
}

static epx_status_t host_copy(void *to, const void *from, size_t bytes, epx_stream_t stream)
{
    (void)stream;
    memcpy(to, from, bytes);
    return EPX_OK;
}

static epx_status_t host_fill(void *to, int byte, size_t bytes, epx_stream_t stream)
{
    (void)stream;
    memset(to, byte, bytes);
    return EPX_OK;
}

static void *host_allocate_shared(size_t bytes) { return calloc(1, bytes > 0 ? bytes : 1); }

static void *host_map_shared(void *memory, size_t bytes)
{
    (void)bytes;
    return memory;
}

static void host_unmap_shared(void *memory) { (void)memory; }

static epx_status_t host_stream_create(epx_stream_t *stream_p)
{
    *stream_p = NULL;
    return EPX_OK;
}

static void host_stream_destroy(epx_stream_t stream) { (void)stream; }

/* A timed event is the time of its last record; others are nothing, since every call is over when it returns.
 */
static epx_status_t host_event_create(int32_t timed, epx_event_t *event_p)
{
    *event_p = timed ? calloc(1, sizeof(int64_t)) : NULL;
    return timed && *event_p == NULL ? epx_fail(EPX_ERR_NO_MEMORY, "host: no memory for an event") : EPX_OK;
}

static void host_event_destroy(epx_event_t event) { free(event); }

static epx_status_t host_event_record(epx_event_t event, epx_stream_t stream)
{
    (void)stream;
    if (event != NULL)
        *(int64_t *)event = epx_clock_ns();
    return EPX_OK;
}

static epx_status_t host_event_elapsed(epx_event_t from, epx_event_t to, double *seconds_p)
{
    *seconds_p = (double)(*(const int64_t *)to - *(const int64_t *)from) * 1e-9;
    return EPX_OK;
}

static epx_status_t host_stream_wait(epx_stream_t stream, epx_event_t event)
{
    (void)stream, (void)event;
    return EPX_OK;
}

static epx_status_t host_synchronize(epx_stream_t stream)
{
    (void)stream;
    return EPX_OK;
}

static int32_t host_is_capturing(epx_stream_t stream)
{
    (void)stream;
    return 0;
}

static epx_status_t host_drain(void) { return EPX_OK; }

static int32_t host_count(void) { return 1; }

static int32_t host_current(void) { return 0; }

static epx_status_t host_select(int32_t index)
{
    (void)index;
    return EPX_OK;
}

const epx_device_ops_t epx_device_host = {
    .name = "host",
    .host_access = 1,
    .probe = host_probe,
    .properties = host_properties,
    .allocate = host_allocate,
    .release = host_release,
    .allocate_shared = host_allocate_shared,
    .release_shared = host_release,
    .map_shared = host_map_shared,
    .unmap_shared = host_unmap_shared,
    .copy = host_copy,
    .fill = host_fill,
    .synchronize = host_synchronize,
    .stream_create = host_stream_create,
    .stream_destroy = host_stream_destroy,
    .event_create = host_event_create,
    .event_destroy = host_event_destroy,
    .event_record = host_event_record,
    .event_elapsed = host_event_elapsed,
    .stream_wait = host_stream_wait,
    .put = host_copy,
    .is_capturing = host_is_capturing,
    .drain = host_drain,
    .count = host_count,
    .current = host_current,
    .select = host_select,
    .kernels = &epx_kernels_host,
};
