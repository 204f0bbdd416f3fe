/* The flight recorder's pages that a device writes to. SPDX-License-Identifier: Apache-2.0 */
#include "core/device_record.h"

#include <epx/health.h>

#include "base/fail.h"
#include "device/registry.h"

/* ---- mapping ---------------------------------------------------------------------------------------------------- */

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

static void attach(epx_recorder_h recorder, const epx_device_ops_t *device)
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
            attach(recorder, device);
    }
}

void epx_device_record_begin(epx_group_t *group)
{
    const epx_device_ops_t *device = group->selection.device;
    if (group->recorder == NULL || device->host_access)
        return;
    attach(group->recorder, device);
    for (int32_t i = 0; i < group->config.lanes; i++) {
        epx_lane_t *lane = &group->lanes[i].lane;
        lane->progress = epx_recorder_lane(group->recorder, group->record_id, i, lane->words != NULL);
    }
}

/* ---- calls ------------------------------------------------------------------------------------------------------ */

/* Hosts meet there and streams wait for events, so that no kernel of a route is sure to come first. */
static void stamp_route(epx_plan_h plan, epx_stream_t stream)
{
    epx_group_t *group = plan->group;
    epx_lane_t *lane = plan->base.lane;
    uint64_t step = epx_recorder_next_step(group->recorder);
    epx_k_stamp_t args = {.time_ns = (int64_t *)&lane->progress->step_sent[1],
                          .word = &lane->progress->step_sent[0],
                          .value = {.add = step},
                          .name = lane->name};
    epx_recorder_asked(group->recorder, EPX_RECORD_ASKED_STEP, step);
    group->selection.device->kernels->stamp(&args, stream);
}

void epx_device_record_call(epx_plan_h plan, epx_record_kind_t kind, int32_t wave, int32_t starts,
                            epx_stream_t stream)
{
    epx_group_t *group = plan->group;
    epx_lane_t *lane = plan->base.lane;
    if (lane->progress == NULL)
        return;
    lane->name = epx_progress_name((uint32_t)kind, wave);
    lane->unsaid = starts && kind != EPX_RECORD_ROUTE;
    if (starts && group->selection.device->is_capturing(stream))
        epx_recorder_drifts(group->recorder, group->record_id, lane->index);
    if (starts && kind == EPX_RECORD_ROUTE && lane->words == NULL)
        stamp_route(plan, stream);
}

/* ---- what it does ----------------------------------------------------------------------------------------------- */

int epx_device_record_use(int32_t index, epx_recorder_use_t *use_p)
{
    epx_health_use_t use = EPX_HEALTH_USE_INIT;
    char bus[EPX_DEVICE_BUS_BYTES];
    for (int32_t i = 0; i < epx_device_count(); i++) {
        const epx_device_ops_t *device = epx_device_at(i)->ops;
        if (device == NULL || device->bus == NULL || !device->bus(index, bus) ||
            epx_health_gpu_use(NULL, bus, &use) != EPX_OK)
            continue;
        *use_p = (epx_recorder_use_t){
            .percent = use.percent, .milliwatts = use.milliwatts, .megahertz = use.megahertz};
        return 1;
    }
    return 0;
}
