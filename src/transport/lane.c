/* Epochs of a lane, and the kernels that move them on. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "record/recorder.h"
#include "transport/inside.h"

enum { ROUTE_SHIFT = 14, ROUTE_BITS = 10, PASS_SHIFT = 24, PASS_BITS = 24, GENERATION_SHIFT = 48 };

void epx_lane_begin(epx_lane_t *lane, uint64_t route)
{
    uint64_t generation = lane->epoch >> GENERATION_SHIFT;
    lane->epoch = generation << GENERATION_SHIFT |
                  (lane->passes & (((uint64_t)1 << PASS_BITS) - 1)) << PASS_SHIFT |
                  (route & (((uint64_t)1 << ROUTE_BITS) - 1)) << ROUTE_SHIFT;
    lane->base = lane->epoch;
}

uint64_t epx_lane_advance(epx_lane_t *lane) { return ++lane->epoch; }

epx_epoch_t epx_lane_epoch(const epx_lane_t *lane, uint64_t epoch)
{
    if (lane->words == NULL)
        return (epx_epoch_t){.add = epoch};
    return (epx_epoch_t){.base = &lane->words->base, .add = epoch - lane->base};
}

void epx_lane_begins(epx_lane_t *lane)
{
    memset(lane->acknowledged, 0, sizeof(lane->acknowledged));
    lane->begins = lane->words != NULL;
    lane->ended = 0;
}

epx_status_t epx_lane_begin_first(epx_transport_t *transport, const epx_plan_base_t *plan,
                                  epx_stream_t stream)
{
    epx_lane_t *lane = plan->lane;
    epx_k_lane_t args = {.step = EPX_LANE_BEGIN,
                         .words = lane->words,
                         .head = epx_plan_head(plan),
                         .generation = lane->epoch >> GENERATION_SHIFT};
    if (!lane->begins)
        return EPX_OK;
    lane->begins = 0;
    return transport->env.kernels->lane(&args, stream);
}

epx_k_lane_t epx_lane_route_step(const epx_plan_base_t *plan)
{
    return (epx_k_lane_t){
        .step = EPX_LANE_ROUTE, .words = plan->lane->words, .head = epx_plan_head(plan), .value = plan->head};
}

epx_status_t epx_lane_route(epx_transport_t *transport, const epx_plan_base_t *plan, epx_stream_t stream)
{
    epx_k_lane_t args = epx_lane_route_step(plan);
    return args.words != NULL ? transport->env.kernels->lane(&args, stream) : EPX_OK;
}

void epx_lane_routes(const epx_plan_base_t *plan) { plan->lane->routes = plan->lane->words != NULL; }

epx_status_t epx_lane_end(epx_transport_t *transport, const epx_plan_base_t *plan, epx_stream_t stream)
{
    epx_k_lane_t args = {.step = EPX_LANE_END, .words = plan->lane->words, .head = epx_plan_head(plan)};
    epx_status_t status =
        epx_lane_begin_first(transport, plan, stream); /* a rank alone may have posted nothing */
    int32_t ended = plan->lane->ended;
    plan->lane->ended = 0;
    if (status != EPX_OK || args.words == NULL || ended)
        return status;
    memcpy(args.acknowledged, plan->lane->acknowledged, sizeof(args.acknowledged));
    return transport->env.kernels->lane(&args, stream);
}

const int32_t *epx_resident_gate(const epx_plan_base_t *plan)
{
    return plan->lane->words != NULL ? &epx_plan_head(plan)->valid : NULL;
}

epx_lane_begin_of_t epx_lane_begin_of(const epx_plan_base_t *plan)
{
    return (epx_lane_begin_of_t){.words = plan->lane->words,
                                 .head = epx_plan_head(plan),
                                 .generation = plan->lane->epoch >> GENERATION_SHIFT};
}

epx_k_begun_t epx_move_begun(epx_transport_t *transport, const epx_plan_base_t *plan)
{
    epx_lane_t *lane = plan->lane;
    if (!lane->unsaid)
        return (epx_k_begun_t){0};
    lane->unsaid = 0;
    epx_recorder_asked(transport->env.recorder, EPX_RECORD_ASKED_BEGUN, 0);
    epx_k_begun_t begun = epx_move_epoch(plan);
    begun.word = lane->progress->begun;
    return begun;
}

epx_k_begun_t epx_move_epoch(const epx_plan_base_t *plan)
{
    const epx_lane_t *lane = plan->lane;
    return (epx_k_begun_t){.add = lane->words != NULL ? lane->epoch - lane->base : lane->epoch,
                           .lane = lane->words,
                           .head = lane->words != NULL ? epx_plan_head(plan) : NULL,
                           .generation = lane->epoch >> GENERATION_SHIFT,
                           .name = lane->name};
}
