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
    epx_k_read_ids_t args = {.ids = routing->ids,
                             .id_type = routing->id_type == EPX_TYPE_DEFAULT ? EPX_INT32 : routing->id_type,
                             .tokens = routing->tokens,
                             .columns = shape->columns,
                             .top_k = shape->top_k,
                             .experts = shape->experts,
                             .splits = shape->splits,
                             .expert = scratch_at(transport, plan, scratch->expert),
                             .ordinal = scratch_at(transport, plan, scratch->ordinal),
                             .counts = scratch_at(transport, plan, scratch->counts),
                             .skipped = &epx_plan_head(plan)->skipped,
                             .bad = scratch_at(transport, plan, scratch->bad)};
    epx_status_t status = epx_route_read_ids(transport, &args, stream);
    if (status != EPX_OK)
        return status;
    char *weights = (char *)plan->bytes + areas->plan.weights;
    size_t bytes = (size_t)routing->tokens * (size_t)shape->top_k * sizeof(float);
    return bytes > 0 ? transport->env.device->copy(weights, routing->weights, bytes, stream) : EPX_OK;
}

static epx_status_t exchange_counts(epx_transport_t *transport, epx_plan_base_t *plan, epx_stream_t stream)
{
    const epx_ragged_scratch_t *scratch = &((const epx_ragged_t *)transport)->areas.scratch;
    const epx_shape_t *shape = transport->env.shape;
    size_t bytes = (size_t)shape->splits * (size_t)shape->experts * sizeof(int32_t);
    epx_status_t status = epx_route_exchange(transport, plan, scratch_at(transport, plan, scratch->counts),
                                             scratch_at(transport, plan, scratch->gathered), bytes, stream);
    if (status != EPX_OK)
        return status;
    plan->sent_meta_bytes += (int64_t)bytes * (shape->ranks - 1);
    plan->received_meta_bytes += (int64_t)bytes * (shape->ranks - 1);
    return EPX_OK;
}

/* Areas that only the rank wire has are empty on the other; the kernel does not touch them there. */
static epx_status_t lay_out(epx_transport_t *transport, epx_plan_base_t *plan, int64_t tokens,
                            epx_stream_t stream)
{
    const epx_ragged_t *ragged = (const epx_ragged_t *)transport;
    const epx_ragged_scratch_t *scratch = &ragged->areas.scratch;
    const epx_ragged_plan_areas_t *p = &ragged->areas.plan;
    char *bytes = plan->bytes;
    epx_k_ragged_layout_t args = {.shape = &ragged->device_shape,
                                  .order = &ragged->device_order,
                                  .local_experts_max = ragged->areas.local_experts_max,
                                  .rank_wire = ragged->areas.rank_wire,
                                  .tokens = tokens,
                                  .expert = scratch_at(transport, plan, scratch->expert),
                                  .ordinal = scratch_at(transport, plan, scratch->ordinal),
                                  .counts = scratch_at(transport, plan, scratch->gathered),
                                  .weights = (void *)(bytes + p->weights),
                                  .accepted = scratch_at(transport, plan, scratch->accepted),
                                  .scratch = scratch_at(transport, plan, scratch->work),
                                  .first_row = scratch_at(transport, plan, scratch->first_row),
                                  .last_token = scratch_at(transport, plan, scratch->last_token),
                                  .list_end = scratch_at(transport, plan, scratch->list_end),
                                  .base = scratch_at(transport, plan, scratch->base),
                                  .head = epx_plan_head(plan),
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
    const epx_shape_t *shape = transport->env.shape;
    size_t bytes = (size_t)shape->splits * (size_t)shape->experts * sizeof(int32_t);
    epx_route_exchange(transport, plan, NULL, NULL, bytes, stream);
    return status;
}

static epx_status_t run_route(epx_transport_t *transport, epx_plan_base_t *plan, const epx_routing_t *routing,
                              epx_status_t publish, epx_stream_t stream)
{
    epx_status_t status = publish != EPX_OK ? publish : read_ids(transport, plan, routing, stream);
    if (status != EPX_OK)
        return publish_failure(transport, plan, status, stream);
    status = exchange_counts(transport, plan, stream);
    return status == EPX_OK ? lay_out(transport, plan, routing->tokens, stream) : status;
}

epx_status_t epx_ragged_route(epx_transport_t *transport, epx_plan_base_t *plan, const epx_routing_t *routing,
                              epx_status_t publish, epx_stream_t stream)
{
    epx_plan_head_t *head = epx_plan_head(plan);
    uint64_t epoch = epx_lane_advance(plan->lane);
    epx_status_t status = run_route(transport, plan, routing, publish, stream);

    head->valid = status == EPX_OK ? 1 : (int32_t)status;
    head->route_epoch = epoch;
    if (status != EPX_OK)
        return status;
    head->magic = EPX_PLAN_MAGIC;
    head->abi = EPX_ABI;
    head->waves = ((const epx_ragged_t *)transport)->areas.chunks;
    head->tokens = routing->tokens;
    head->confirmed = head->learned = 1;
    head->spilled = head->dropped_receiver = 0;
    return EPX_OK;
}
