/* Device `host`. SPDX-License-Identifier: Apache-2.0 */
#include "device/host/host.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static epx_status_t host_synchronize(epx_stream_t stream)
{
    (void)stream;
    return EPX_OK;
}

const epx_device_ops_t epx_device_host = {
    .name = "host",
    .probe = host_probe,
    .properties = host_properties,
    .allocate = host_allocate,
    .release = host_release,
    .copy = host_copy,
    .fill = host_fill,
    .synchronize = host_synchronize,
    .kernels = &epx_kernels_host,
};
