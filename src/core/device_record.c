/* The flight recorder's pages that a device writes to. SPDX-License-Identifier: Apache-2.0 */
#include "core/device_record.h"

#include <epx/health.h>
#include <epx/kernels.h>

#include "base/fail.h"
#include "device/registry.h"

static epx_status_t mark(void *context, uint64_t *words, uint64_t text, epx_stream_t stream)
{
    const epx_device_ops_t *device = context;
    epx_k_stamp_t args = {.time_ns = (int64_t *)words + 1, .word = words, .value = {.add = text}};
    return device->kernels->stamp(&args, stream);
}

static void release(void *context, void *pages)
{
    const epx_device_ops_t *device = context;
    device->unmap_shared(pages);
}

void epx_device_record_attach(epx_recorder_h recorder, const epx_device_ops_t *device)
{
    size_t bytes;
    void *pages = epx_recorder_device_pages(recorder, &bytes);
    if (pages == NULL || device->map_shared == NULL || epx_recorder_is_attached(recorder))
        return;
    epx_recorder_device_t writer = {.mapped = device->map_shared(pages, bytes),
                                    .number = device->current(),
                                    .context = (void *)(uintptr_t)device,
                                    .mark = mark,
                                    .release = release};
    if (writer.mapped != NULL)
        epx_recorder_attach(recorder, &writer);
    else
        epx_log(EPX_LOG_INFO, "record",
                "device %s cannot write to %s: stamps are the host's alone; EPX_RECORD in a tmpfs (/dev/shm) "
                "mends it",
                device->name, epx_record_folder(recorder));
}

void epx_device_record_find(epx_recorder_h recorder)
{
    char reason[256];
    for (int32_t i = 0; i < epx_device_count(); i++) {
        const epx_device_ops_t *device = epx_device_at(i)->ops;
        if (device != NULL && !device->host_access && device->probe(reason, sizeof(reason)) > 0)
            epx_device_record_attach(recorder, device);
    }
}

int epx_device_record_use(int32_t index, epx_recorder_use_t *use_p)
{
    epx_health_use_t use = EPX_HEALTH_USE_INIT;
    char bus[EPX_DEVICE_BUS_BYTES];
    for (int32_t i = 0; i < epx_device_count(); i++) {
        const epx_device_ops_t *device = epx_device_at(i)->ops;
        if (device == NULL || device->bus == NULL || !device->bus(index, bus) ||
            epx_health_gpu_use(NULL, bus, &use) != EPX_OK)
            continue;
        *use_p = (epx_recorder_use_t){.percent = use.percent,
                                      .milliwatts = use.milliwatts,
                                      .megahertz = use.megahertz,
                                      .processes = use.processes,
                                      .own = use.own};
        return 1;
    }
    return 0;
}
