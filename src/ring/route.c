/* ring: counts of all ranks, and who is kept. SPDX-License-Identifier: Apache-2.0 */
#include "ring/ring.h"

/* What a route works with. */
typedef struct route {
    epx_ring_t *ring;
    const epx_shape_t *shape;
    epx_plan_base_t *plan;
    const epx_routing_t *routing;
    epx_stream_t stream;
    char *desk;
    const epx_ring_desk_t *at;
    int32_t *kept; /* in the plan's bytes */
} route_t;

/* Ids into the plan, ordinals into scratch, counts behind the notice. */
static epx_status_t read_ids(const route_t *route)
{
    const epx_shape_t *shape = route->shape;
    const epx_routing_t *routing = route->routing;
    epx_route_notice_t *notice = (epx_route_notice_t *)(route->desk + route->at->notice);
    epx_k_read_ids_t args = {.ids = routing->ids,
                             .id_type = routing->id_type == EPX_INT64 ? EPX_INT64 : EPX_INT32,
                             .tokens = routing->tokens,
                             .tokens_device = routing->tokens_device,
                             .tokens_max = shape->tokens_max,
                             .columns = shape->top_k,
                             .top_k = shape->top_k,
                             .experts = shape->experts,
                             .splits = shape->splits,
                             .weights = routing->weights,
                             .weights_copy =
                                 (float *)((char *)route->plan->bytes + route->ring->layout.plan_weights),
                             .expert = route->kept,
                             .ordinal = (int32_t *)(route->desk + route->at->ordinal),
                             .counts = (int32_t *)(notice + 1),
                             .skipped = &epx_plan_head(route->plan)->skipped,
                             .notice = notice};
    return epx_route_read_ids(&route->ring->base, route->plan, &args, 0, route->stream);
}

static epx_status_t lay_out(const route_t *route)
{
    const epx_ring_t *ring = route->ring;
    epx_k_ring_layout_t args = {.shape = &ring->device_shape,
                                .notices = route->desk + route->at->notices,
                                .notice_stride = ring->layout.notice_bytes,
                                .counts = (int32_t *)(route->desk + route->at->counts),
                                .accepted = (int32_t *)(route->desk + route->at->accepted),
                                .seats = (int64_t *)(route->desk + route->at->seats),
                                .ordinal = (const int32_t *)(route->desk + route->at->ordinal),
                                .kept = route->kept,
                                .block_tokens = epx_ring_plan_tokens(ring, route->plan),
                                .tokens_report = epx_plan_report(route->plan),
                                .block_runs = epx_ring_plan_runs(ring, route->plan),
                                .verdict = epx_route_for_kernels(route->plan)};
    epx_status_t status = ring->base.env.kernels->ring_layout(&args, route->stream);
    return status == EPX_OK ? epx_ring_learn_tokens(route->ring, route->plan, route->stream) : status;
}

static epx_status_t exchange_and_lay_out(const route_t *route)
{
    epx_ring_t *ring = route->ring;
    epx_plan_base_t *plan = route->plan;
    int64_t bytes = ring->layout.notice_bytes;
    epx_status_t status = epx_route_exchange(&ring->base, plan, route->desk + route->at->notice,
                                             route->desk + route->at->notices, (size_t)bytes, route->stream);
    if (status != EPX_OK)
        return status;
    plan->sent_meta_bytes += (route->shape->ranks - 1) * bytes;
    plan->received_meta_bytes += (route->shape->ranks - 1) * bytes;
    status = epx_route_check_notices(&ring->base, route->desk + route->at->notices, bytes);
    return status == EPX_OK ? lay_out(route) : status;
}

/* Where errors come late nobody may be left out of an exchange: the notice tells them, and this rank's own
 * device. */
static epx_status_t take_part_badly(const route_t *route, epx_status_t status)
{
    const epx_ring_t *ring = route->ring;
    epx_status_t told =
        epx_route_exchange(&route->ring->base, route->plan, NULL, route->desk + route->at->notices,
                           (size_t)ring->layout.notice_bytes, route->stream);
    if (told == EPX_OK)
        told = lay_out(route);
    return told == EPX_OK ? status : told;
}

static epx_status_t decide(const route_t *route)
{
    epx_ring_t *ring = route->ring;
    epx_plan_base_t *plan = route->plan;
    int64_t bytes = ring->layout.notice_bytes;
    epx_status_t status = read_ids(route);
    if (status != EPX_OK) {
        /* The others must not wait for this rank; what they are told can fail no more than the group itself.
         */
        epx_route_exchange(&ring->base, plan, NULL, route->desk + route->at->notices, (size_t)bytes,
                           route->stream);
        return status;
    }
    return exchange_and_lay_out(route);
}

epx_status_t epx_ring_route(epx_transport_t *transport, epx_plan_base_t *plan, const epx_routing_t *routing,
                            epx_status_t publish, epx_stream_t stream)
{
    epx_ring_t *ring = (epx_ring_t *)transport;
    char *desk = epx_ring_desk(ring, plan->lane->index);
    epx_ring_forget(ring, plan);
    epx_ring_end_pass(plan);
    if (publish != EPX_OK && !epx_errors_come_late(transport)) {
        epx_route_exchange(transport, plan, NULL, desk + ring->layout.desk.notices,
                           (size_t)ring->layout.notice_bytes, stream);
        return publish;
    }
    route_t route = {.ring = ring,
                     .shape = transport->env.shape,
                     .plan = plan,
                     .routing = routing,
                     .stream = stream,
                     .desk = desk,
                     .at = &ring->layout.desk,
                     .kept = (int32_t *)((char *)plan->bytes + ring->layout.plan_kept)};
    return publish == EPX_OK ? decide(&route) : take_part_badly(&route, publish);
}
