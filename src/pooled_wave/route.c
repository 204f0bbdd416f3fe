/*
 * pooled_wave: routing, and what happens when it fails somewhere. SPDX-License-Identifier: Apache-2.0
 *
 * Failed routes. Nothing is exchanged in a route, so peers find out in their first dispatch after it. Where
 * this rank's host knows at once (arguments; ids, where it reaches them) it sets its failure word of the
 * route at all peers and sends no data: their waits end by that word. Where only its device knows, the data
 * calls go on with empty slabs whose headers say so, until some rank's host sees it (transport/common.h, D1
 * to D3 and what follows there). With extra_wave, and on fabrics without failure words, the route ends with
 * an exchange and all ranks know at once.
 */
#include "pooled_wave/internal.h"

typedef struct route {
    epx_pooled_t *pooled;
    epx_plan_base_t *plan;
    const epx_routing_t *routing;
    epx_plan_head_t *head; /* in the bytes */
    int32_t lane;
    int exchanges; /* all ranks know at the end of the route */
    epx_stream_t stream;
} route_t;

/* Of one rank's counts, extra_wave. */
static size_t counts_bytes(const epx_shape_t *shape)
{
    return (size_t)shape->splits * (size_t)shape->experts * sizeof(int32_t);
}

/* Tells the peers, and waits for nobody. Returns the status that made the route fail, with the text that it
 * has. */
static epx_status_t fail_route(const route_t *route, epx_status_t status)
{
    epx_transport_t *transport = &route->pooled->transport;
    if (route->exchanges) {
        /* Where errors come late the exchange needs a place for what comes. */
        const epx_pooled_map_t *map = &route->pooled->map;
        int counts = epx_errors_come_late(transport) && route->pooled->dims.extra_wave;
        epx_route_exchange(transport, route->plan, NULL,
                           counts ? epx_pooled_plan(route->plan, map->plan_counts) : NULL,
                           counts ? counts_bytes(transport->env.shape) : 0, route->stream);
        return status;
    }
    epx_route_post_failure(transport, route->plan, route->stream);
    return status;
}

static epx_route_notice_t *notice_of(const route_t *route)
{
    return epx_pooled_lane(route->pooled, route->lane, route->pooled->map.notice);
}

static epx_status_t read_ids(const route_t *route)
{
    const epx_pooled_map_t *map = &route->pooled->map;
    const epx_shape_t *shape = route->pooled->transport.env.shape;
    const epx_routing_t *routing = route->routing;
    epx_k_read_ids_t args = {.ids = routing->ids,
                             .id_type = routing->id_type == EPX_INT64 ? EPX_INT64 : EPX_INT32,
                             .tokens = routing->tokens,
                             .tokens_device = routing->tokens_device,
                             .tokens_max = shape->tokens_max,
                             .columns = shape->columns,
                             .top_k = shape->top_k,
                             .experts = shape->experts,
                             .splits = shape->splits,
                             .weights = routing->weights,
                             .weights_copy = epx_pooled_plan(route->plan, map->plan_weights),
                             .expert = epx_pooled_plan(route->plan, map->plan_expert),
                             .counts = epx_pooled_lane(route->pooled, route->lane, map->counts),
                             .skipped = &route->head->skipped,
                             .notice = notice_of(route)};
    if (route->pooled->dims.extra_wave)
        args.ordinal = epx_pooled_plan(route->plan, map->plan_place);
    return epx_route_read_ids(&route->pooled->transport, route->plan, &args, route->exchanges, route->stream);
}

static epx_status_t gate(const route_t *route)
{
    const epx_transport_env_t *env = &route->pooled->transport.env;
    const epx_pooled_map_t *map = &route->pooled->map;
    epx_k_pooled_gate1_t args = {.layout = &route->pooled->layout,
                                 .notice = notice_of(route),
                                 .expert = epx_pooled_plan(route->plan, map->plan_expert),
                                 .place = epx_pooled_plan(route->plan, map->plan_place),
                                 .slot = epx_pooled_lane(route->pooled, route->lane, map->slot),
                                 .gate = epx_pooled_lane(route->pooled, route->lane, map->gate),
                                 .valid = epx_pooled_plan(route->plan, map->plan_valid),
                                 .verdict = epx_route_for_kernels(route->plan)};
    epx_status_t status = env->kernels->pooled_gate1(&args, route->stream);
    return status == EPX_OK ? epx_route_post_if_failed(&route->pooled->transport, route->plan, route->stream)
                            : status;
}

/* Where errors come late the counts of a rank whose route has failed are negative. */
static epx_status_t look_for_bad_counts(const route_t *route, const int32_t *counts)
{
    epx_transport_t *transport = &route->pooled->transport;
    const epx_shape_t *shape = transport->env.shape;
    epx_status_t status = EPX_OK;
    for (int32_t r = 0; r < shape->ranks && status == EPX_OK; r++) {
        int32_t first = 0;
        status = epx_fetch(transport, &first, counts + (int64_t)r * shape->splits * shape->experts,
                           sizeof(first), route->stream);
        if (status == EPX_OK && first < 0)
            status = epx_route_peer_failed(transport, route->plan, r);
    }
    return status;
}

/* extra_wave: everybody's counts, and how many waves follow from them. */
static epx_status_t exchange_counts(const route_t *route)
{
    epx_transport_t *transport = &route->pooled->transport;
    const epx_pooled_map_t *map = &route->pooled->map;
    const epx_shape_t *shape = transport->env.shape;
    int32_t *counts = epx_pooled_plan(route->plan, map->plan_counts);
    size_t bytes = counts_bytes(shape);
    epx_status_t status =
        epx_route_exchange(transport, route->plan, epx_pooled_lane(route->pooled, route->lane, map->counts),
                           counts, bytes, route->stream);
    if (status == EPX_OK && epx_errors_come_late(transport))
        status = look_for_bad_counts(route, counts);
    if (status == EPX_OK)
        status = epx_route_check_counts(transport, counts);
    if (status != EPX_OK)
        return status;
    epx_k_pooled_extra_t args = {.layout = &route->pooled->layout,
                                 .counts = counts,
                                 .remaining = epx_pooled_lane(route->pooled, route->lane, map->remaining),
                                 .waves = &route->head->waves,
                                 .valid = epx_pooled_plan(route->plan, map->plan_valid),
                                 .routed = &route->head->routed};
    status = transport->env.kernels->pooled_extra(&args, route->stream);
    if (status == EPX_OK)
        status = epx_fetch(transport, &route->plan->waves, &route->head->waves, sizeof(route->plan->waves),
                           route->stream);
    return status;
}

/* No failure words: an exchange of nothing but success. */
static epx_status_t exchange_status(const route_t *route)
{
    epx_transport_t *transport = &route->pooled->transport;
    const epx_pooled_map_t *map = &route->pooled->map;
    return epx_route_exchange(transport, route->plan, epx_pooled_plan(route->plan, map->plan_valid),
                              epx_pooled_lane(route->pooled, route->lane, map->gate), sizeof(int64_t),
                              route->stream);
}

/* What this rank decides alone. */
static epx_status_t decide(const route_t *route)
{
    epx_status_t status = read_ids(route);
    if (status == EPX_OK && !route->pooled->dims.extra_wave)
        status = gate(route);
    return status;
}

/* All ranks learn how all ranks' routes went; the host has looked at this one's. */
static epx_status_t agree(const route_t *route)
{
    epx_transport_t *transport = &route->pooled->transport;
    epx_plan_base_t *plan = route->plan;
    epx_route_notice_t notice;
    epx_status_t status = route->pooled->dims.extra_wave ? exchange_counts(route) : exchange_status(route);
    if (status == EPX_OK)
        status = epx_fetch(transport, &notice, notice_of(route), sizeof(notice), route->stream);
    if (status != EPX_OK)
        return status;
    plan->head.tokens = notice.tokens;
    plan->head.waves = plan->waves;
    plan->head.confirmed = plan->head.valid = 1;
    return epx_head_write(transport, plan, 0, route->stream);
}

epx_status_t epx_pooled_route(epx_transport_t *transport, epx_plan_base_t *plan, const epx_routing_t *routing,
                              epx_status_t publish, epx_stream_t stream)
{
    epx_pooled_t *pooled = (epx_pooled_t *)transport;
    int one_sided = (transport->env.fabric->caps & EPX_FABRIC_ONE_SIDED_WORDS) != 0;
    route_t route = {.pooled = pooled,
                     .plan = plan,
                     .routing = routing,
                     .head = epx_plan_head(plan),
                     .lane = plan->lane->index,
                     .exchanges = pooled->dims.extra_wave || !one_sided,
                     .stream = stream};
    epx_status_t status = publish != EPX_OK ? publish : decide(&route);
    if (status != EPX_OK)
        return fail_route(&route, status);
    if (route.exchanges)
        return agree(&route);
    return EPX_OK;
}
