/* pooled_wave: routing, and what happens when it fails somewhere. SPDX-License-Identifier: Apache-2.0 */
#include "pooled_wave/internal.h"

/*
 * Failed routes. A rank whose route of epoch r fails sets its failure word of the lane to r + EPX_POOLED_JUMP
 * at all peers and goes on at once. Peers find out in the first dispatch after that route: its wait can never
 * be met, since the failing rank sends no data with an epoch that somebody still waits for: its lane goes on
 * from r + EPX_POOLED_JUMP. J1  The lane goes there at the failing rank's next call of that plan, and at a
 * peer when its dispatch has failed, so at the same place in the order of calls, which is one for all ranks.
 *   J2  A handle that is routed again before anybody's dispatch has told whether the route before was good
 * does the same, on every rank, whether its own route was good or not. J3  It never goes back: max(epoch of
 * the dispatch that failed, r + EPX_POOLED_JUMP). J4  Every route has failure words of its own (until the
 * lane's 32nd route behind it), so other plans of the lane, good or bad, change nothing for it. With
 * extra_wave, and on fabrics without failure words, the route ends with an exchange and all ranks know at
 * once.
 */

typedef struct route {
    epx_pooled_t *pooled;
    epx_plan_base_t *plan;
    const epx_routing_t *routing;
    epx_plan_head_t *head;
    epx_pooled_own_t *own;
    int32_t lane;
    int exchanges; /* all ranks know at the end of the route */
    epx_stream_t stream;
} route_t;

static void begin_plan(route_t *route)
{
    epx_plan_base_t *plan = route->plan;
    epx_plan_head_t *head = route->head;
    epx_pooled_state_t *state = epx_pooled_state(plan);
    if (state->open_route != 0)
        plan->jump_epoch = state->open_route + EPX_POOLED_JUMP;
    epx_lane_resume(plan);
    state->open_route = state->first_start = 0;

    head->valid = 0;
    head->waves = route->pooled->dims.extra_wave ? 0 : route->pooled->transport.env.shape->waves;
    head->tokens = 0;
    head->confirmed = head->learned = 0;
    head->routed = head->skipped = head->kept = head->spilled = head->dropped_sender =
        head->dropped_receiver = 0;
    head->route_epoch = epx_lane_advance(plan->lane);
    route->own->route_lane = route->lane;
    int64_t number = epx_pooled_tables(route->pooled).routes[route->lane]++;
    route->own->failure_row =
        route->lane * EPX_POOLED_FAILURE_ROWS + (int32_t)(number % EPX_POOLED_FAILURE_ROWS);
}

/* Tells the peers, and waits for nobody. Returns the status that made the route fail, with the text that it
 * has. */
static epx_status_t fail_route(const route_t *route, epx_status_t status)
{
    epx_transport_t *transport = &route->pooled->transport;
    epx_fabric_t *fabric = transport->env.fabric;
    route->head->valid = status;
    if (route->exchanges) {
        epx_route_exchange(transport, route->plan, NULL, NULL, 0, route->stream);
        return status;
    }
    epx_epoch_t epoch = {.add = route->head->route_epoch + EPX_POOLED_JUMP};
    route->plan->jump_epoch = epoch.add;
    fabric->ops->post_failure(fabric, route->own->failure_row, epoch, route->stream);
    return status;
}

static epx_status_t read_ids(const route_t *route)
{
    const epx_pooled_map_t *map = &route->pooled->map;
    const epx_shape_t *shape = route->pooled->transport.env.shape;
    epx_k_read_ids_t args = {.ids = route->routing->ids,
                             .id_type = route->routing->id_type == EPX_INT64 ? EPX_INT64 : EPX_INT32,
                             .tokens = route->head->tokens,
                             .columns = shape->columns,
                             .top_k = shape->top_k,
                             .experts = shape->experts,
                             .splits = shape->splits,
                             .expert = epx_pooled_plan(route->plan, map->plan_expert),
                             .counts = epx_pooled_lane(route->pooled, route->lane, map->counts),
                             .skipped = &route->head->skipped,
                             .bad = epx_pooled_lane(route->pooled, route->lane, map->bad)};
    if (route->pooled->dims.extra_wave)
        args.ordinal = epx_pooled_plan(route->plan, map->plan_place);
    return epx_route_read_ids(&route->pooled->transport, &args, route->stream);
}

static epx_status_t gate(const route_t *route)
{
    const epx_transport_env_t *env = &route->pooled->transport.env;
    const epx_pooled_map_t *map = &route->pooled->map;
    epx_plan_head_t *head = route->head;
    epx_k_pooled_gate1_t args = {.layout = &route->pooled->layout,
                                 .tokens = head->tokens,
                                 .expert = epx_pooled_plan(route->plan, map->plan_expert),
                                 .place = epx_pooled_plan(route->plan, map->plan_place),
                                 .slot = epx_pooled_lane(route->pooled, route->lane, map->slot),
                                 .gate = epx_pooled_lane(route->pooled, route->lane, map->gate),
                                 .valid = epx_pooled_plan(route->plan, map->plan_valid),
                                 .routed = &head->routed,
                                 .skipped = &head->skipped,
                                 .dropped = &head->dropped_sender,
                                 .spilled = &head->spilled};
    return env->kernels->pooled_gate1(&args, route->stream);
}

/* extra_wave: everybody's counts, and how many waves follow from them. */
static epx_status_t exchange_counts(const route_t *route)
{
    const epx_transport_env_t *env = &route->pooled->transport.env;
    const epx_pooled_map_t *map = &route->pooled->map;
    int32_t *counts = epx_pooled_plan(route->plan, map->plan_counts);
    size_t bytes = (size_t)env->shape->splits * (size_t)env->shape->experts * sizeof(*counts);
    epx_status_t status = epx_route_exchange(&route->pooled->transport, route->plan,
                                             epx_pooled_lane(route->pooled, route->lane, map->counts), counts,
                                             bytes, route->stream);
    if (status != EPX_OK)
        return status;
    epx_k_pooled_extra_t args = {.layout = &route->pooled->layout,
                                 .counts = counts,
                                 .remaining = epx_pooled_lane(route->pooled, route->lane, map->remaining),
                                 .waves = &route->head->waves,
                                 .valid = epx_pooled_plan(route->plan, map->plan_valid),
                                 .routed = &route->head->routed};
    status = env->kernels->pooled_extra(&args, route->stream);
    if (status == EPX_OK)
        status = env->device->copy(&route->plan->waves, &route->head->waves, sizeof(route->plan->waves),
                                   route->stream);
    if (status == EPX_OK)
        status = env->device->synchronize(route->stream);
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
    const epx_transport_env_t *env = &route->pooled->transport.env;
    epx_status_t status = read_ids(route);
    size_t bytes = (size_t)route->head->tokens * (size_t)env->shape->columns * sizeof(float);
    if (status == EPX_OK && bytes > 0)
        status = env->device->copy(epx_pooled_plan(route->plan, route->pooled->map.plan_weights),
                                   route->routing->weights, bytes, route->stream);
    if (status == EPX_OK && !route->pooled->dims.extra_wave)
        status = gate(route);
    return status;
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
                     .own = epx_pooled_plan(plan, pooled->map.plan_own),
                     .lane = plan->lane->index,
                     .exchanges = pooled->dims.extra_wave || !one_sided,
                     .stream = stream};
    begin_plan(&route);
    if (publish != EPX_OK)
        return fail_route(&route, publish);

    route.head->tokens = routing->tokens;
    epx_status_t status = decide(&route);
    if (status != EPX_OK)
        return fail_route(&route, status);
    if (route.exchanges) {
        status = pooled->dims.extra_wave ? exchange_counts(&route) : exchange_status(&route);
        if (status != EPX_OK) {
            route.head->valid = status;
            return status;
        }
        route.head->confirmed = 1;
    } else {
        epx_pooled_state(plan)->open_route = route.head->route_epoch;
    }
    route.head->valid = 1;
    return EPX_OK;
}

void epx_pooled_died(const epx_pooled_wave_t *w, epx_status_t status)
{
    epx_plan_base_t *plan = w->plan;
    epx_plan_head_t *head = epx_plan_head(plan);
    epx_pooled_state_t *state = epx_pooled_state(plan);
    const epx_pooled_own_t *own = epx_pooled_plan(plan, w->pooled->map.plan_own);
    uint64_t next = state->first_start;
    /* Bytes that were routed on another lane say nothing about this one's epochs. */
    if (own->route_lane == plan->lane->index && head->route_epoch + EPX_POOLED_JUMP > next)
        next = head->route_epoch + EPX_POOLED_JUMP;
    plan->lane->epoch = next;
    head->valid = status;
    state->open_route = state->first_start = 0;
}
