/* What a device tells the flight recorder of the lanes of a group. SPDX-License-Identifier: Apache-2.0 */
#include "core/lane_record.h"

#include "core/device_record.h"
#include "transport/common.h"

void epx_lane_record_begin(epx_group_t *group)
{
    const epx_device_ops_t *device = group->selection.device;
    if (group->recorder == NULL || device->host_access)
        return;
    epx_device_record_attach(group->recorder, device);
    for (int32_t i = 0; i < group->config.lanes; i++) {
        epx_lane_t *lane = &group->lanes[i].lane;
        lane->progress = epx_recorder_lane(group->recorder, group->record_id, i, lane->words != NULL);
    }
}

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

void epx_lane_record_call(epx_plan_h plan, epx_record_kind_t kind, int32_t wave, int32_t starts,
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
