/* A route of `ragged`: read ids, gather counts, lay out. SPDX-License-Identifier: Apache-2.0 */
#include "ragged/internal.h"

/* Where a route works: the lane's scratch. */
static void *scratch_at(epx_transport_t *transport, const epx_plan_base_t *plan, int64_t area)
{
    const epx_ragged_areas_t *areas = &((const epx_ragged_t *)transport)->areas;
    return (char *)transport->env.scratch + plan->lane->index * areas->scratch.bytes + area;
}

static epx_status_t read_ids(epx_transport_t *transport, epx_plan_base_t *plan, const epx_routing_t *routing,
                             epx_stream_t stream)
{
    const epx_ragged_areas_t *areas = &((const epx_ragged_t *)transport)->areas;
    const epx_shape_t *shape = transport->env.shape;
    const epx_ragged_scratch_t *scratch = &areas->scratch;
    epx_route_notice_t *notice = scratch_at(transport, plan, scratch->notice);
    epx_k_read_ids_t args = {.ids = routing->ids,
                             .id_type = routing->id_type == EPX_TYPE_DEFAULT ? EPX_INT32 : routing->id_type,
                             .tokens = routing->tokens,
                             .tokens_device = routing->tokens_device,
                             .tokens_max = shape->tokens_max,
                             .columns = shape->columns,
                             .top_k = shape->top_k,
                             .experts = shape->experts,
                             .splits = shape->splits,
                             .weights = routing->weights,
                             .weights_copy = (float *)(void *)((char *)plan->bytes + areas->plan.weights),
                             .expert = scratch_at(transport, plan, scratch->expert),
                             .ordinal = scratch_at(transport, plan, scratch->ordinal),
                             .counts = (int32_t *)(void *)(notice + 1),
                             .skipped = &epx_plan_head(plan)->skipped,
                             .notice = notice,
                             .room = scratch_at(transport, plan, scratch->room),
                             .room_words = scratch->room_words};
    return epx_route_read_ids(transport, plan, &args, 0, stream);
}

/* Notices with the counts behind them. */
static epx_status_t exchange_counts(epx_transport_t *transport, epx_plan_base_t *plan, epx_stream_t stream)
{
    const epx_ragged_areas_t *areas = &((const epx_ragged_t *)transport)->areas;
    int32_t others = transport->env.shape->ranks - 1;
    epx_status_t status = epx_route_exchange(
        transport, plan, scratch_at(transport, plan, areas->scratch.notice),
        scratch_at(transport, plan, areas->scratch.notices), (size_t)areas->notice_bytes, stream);
    if (status != EPX_OK)
        return status;
    plan->sent_meta_bytes += areas->notice_bytes * others;
    plan->received_meta_bytes += areas->notice_bytes * others;
    return epx_route_check_notices(transport, scratch_at(transport, plan, areas->scratch.notices),
                                   areas->notice_bytes);
}

/* Areas that only the rank wire has are empty on the other; the kernel does not touch them there. */
static epx_status_t lay_out(epx_transport_t *transport, epx_plan_base_t *plan, epx_stream_t stream)
{
    const epx_ragged_t *ragged = (const epx_ragged_t *)transport;
    const epx_ragged_scratch_t *scratch = &ragged->areas.scratch;
    const epx_ragged_plan_areas_t *p = &ragged->areas.plan;
    char *bytes = plan->bytes;
    epx_k_ragged_layout_t args = {.shape = &ragged->device_shape,
                                  .order = &ragged->device_order,
                                  .local_experts_max = ragged->areas.local_experts_max,
                                  .rank_wire = ragged->areas.rank_wire,
                                  .notices = scratch_at(transport, plan, scratch->notices),
                                  .notice_stride = ragged->areas.notice_bytes,
                                  .expert = scratch_at(transport, plan, scratch->expert),
                                  .ordinal = scratch_at(transport, plan, scratch->ordinal),
                                  .weights = (void *)(bytes + p->weights),
                                  .counts = scratch_at(transport, plan, scratch->counts),
                                  .accepted = scratch_at(transport, plan, scratch->accepted),
                                  .scratch = scratch_at(transport, plan, scratch->work),
                                  .first_row = scratch_at(transport, plan, scratch->first_row),
                                  .last_token = scratch_at(transport, plan, scratch->last_token),
                                  .list_end = scratch_at(transport, plan, scratch->list_end),
                                  .base = scratch_at(transport, plan, scratch->base),
                                  .room = scratch_at(transport, plan, scratch->room),
                                  .room_words = scratch->room_words,
                                  .verdict = epx_route_for_kernels(plan),
                                  .wave_report = epx_ragged_told(ragged, plan).wave,
                                  .wave = (void *)(bytes + p->wave),
                                  .place = (void *)(bytes + p->place),
                                  .send = (void *)(bytes + p->send),
                                  .send_runs = (void *)(bytes + p->send_runs),
                                  .return_runs = (void *)(bytes + p->return_runs),
                                  .start = (void *)(bytes + p->start),
                                  .count = (void *)(bytes + p->count),
                                  .home_start = (void *)(bytes + p->home_start),
                                  .home_count = (void *)(bytes + p->home_count),
                                  .wire_token = (void *)(bytes + p->wire_token),
                                  .wire_first = (void *)(bytes + p->wire_first),
                                  .wire_count = (void *)(bytes + p->wire_count),
                                  .list_place = (void *)(bytes + p->list_place),
                                  .list_weight = (void *)(bytes + p->list_weight),
                                  .wire_row = (void *)(bytes + p->wire_row),
                                  .home = (void *)(bytes + p->home),
                                  .wire_runs = (void *)(bytes + p->wire_runs),
                                  .list_runs = (void *)(bytes + p->list_runs),
                                  .head_runs = (void *)(bytes + p->head_runs),
                                  .back_runs = (void *)(bytes + p->back_runs),
                                  .wire_start = (void *)(bytes + p->wire_start),
                                  .wire_room = (void *)(bytes + p->wire_room)};
    return transport->env.kernels->ragged_layout(&args, stream);
}

/* A rank whose call is bad says so beside the counts and waits for nobody; the others learn it from the
 * exchange. */
static epx_status_t publish_failure(epx_transport_t *transport, epx_plan_base_t *plan, epx_status_t status,
                                    epx_stream_t stream)
{
    epx_route_exchange(transport, plan, NULL, NULL,
                       (size_t)((const epx_ragged_t *)transport)->areas.notice_bytes, stream);
    return status;
}

/* Where errors come late nobody may be left out of an exchange: the notice tells them, and this rank's own
 * device. */
static epx_status_t take_part_badly(epx_transport_t *transport, epx_plan_base_t *plan, epx_status_t status,
                                    epx_stream_t stream)
{
    const epx_ragged_areas_t *areas = &((const epx_ragged_t *)transport)->areas;
    epx_status_t told =
        epx_route_exchange(transport, plan, NULL, scratch_at(transport, plan, areas->scratch.notices),
                           (size_t)areas->notice_bytes, stream);
    if (told == EPX_OK)
        told = lay_out(transport, plan, stream);
    if (told == EPX_OK)
        told = epx_ragged_stage_route(transport, plan, stream);
    return told == EPX_OK ? status : told;
}

epx_status_t epx_ragged_route(epx_transport_t *transport, epx_plan_base_t *plan, const epx_routing_t *routing,
                              epx_status_t publish, epx_stream_t stream)
{
    epx_ragged_forget((const epx_ragged_t *)transport, plan);
    if (publish != EPX_OK && epx_errors_come_late(transport))
        return take_part_badly(transport, plan, publish, stream);
    epx_status_t status = publish != EPX_OK ? publish : read_ids(transport, plan, routing, stream);
    if (status != EPX_OK)
        return publish_failure(transport, plan, status, stream);
    status = exchange_counts(transport, plan, stream);
    if (status == EPX_OK)
        status = lay_out(transport, plan, stream);
    return status == EPX_OK ? epx_ragged_stage_route(transport, plan, stream) : status;
}
