/* Routes: ids, what devices find, failures and refusals. SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>

#include "transport/inside.h"

epx_k_verdict_t epx_route_for_kernels(const epx_plan_base_t *plan)
{
    return (epx_k_verdict_t){.head = epx_plan_head(plan), .report = plan->report, .route = plan->head.route};
}

/* Words of a report may be written by a device while the host looks. */
static uint64_t look(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

int epx_route_is_told(const epx_plan_base_t *plan) { return look(&plan->report->done) == plan->head.route; }

/* The sentence about a rank's own bad notice. */
static epx_status_t slip_error(const epx_transport_env_t *env, int64_t bad_at, int64_t bad_id)
{
    const epx_shape_t *shape = env->shape;
    if (bad_at == EPX_NOTICE_TOKENS)
        return env->services->fail(
            EPX_ERR_ARG, "epx_plan_route: rank %d has %" PRId64 " tokens; the group was opened for 0 to %d",
            shape->rank, bad_id, shape->tokens_max);
    return env->services->fail(EPX_ERR_ROUTING,
                               "%s: rank %d, token %" PRId64 ", k %" PRId64 ": expert id %" PRId64
                               " is outside -1..%d; mend the router's output and route again",
                               env->group_name, shape->rank, bad_at / shape->columns, bad_at % shape->columns,
                               bad_id, shape->experts - 1);
}

epx_status_t epx_route_error(const epx_transport_env_t *env, int32_t peer, const char *what)
{
    return env->services->fail(
        EPX_ERR_PEER,
        "%s: the route of rank %d failed (seen by rank %d in %s); mend it there and route again",
        env->group_name, peer, env->shape->rank, what);
}

epx_status_t epx_route_peer_failed(const epx_transport_t *transport, const epx_plan_base_t *plan,
                                   int32_t peer)
{
    char what[64];
    snprintf(what, sizeof(what), "route, lane %d", plan->lane->index);
    return epx_route_error(&transport->env, peer, what);
}

epx_status_t epx_route_verdict(epx_transport_t *transport, const epx_plan_base_t *plan)
{
    const epx_route_report_t *report = plan->report;
    char what[64];
    if (look(&report->dead) != plan->head.route)
        return EPX_OK;
    if (report->status != EPX_ERR_PEER)
        return slip_error(&transport->env, report->bad_at, report->bad_id);
    snprintf(what, sizeof(what), "route, lane %d", plan->lane->index);
    return epx_route_error(&transport->env, report->rank, what);
}

int32_t epx_failure_channels(const epx_shape_t *shape) { return shape->lanes * EPX_FAILURE_ROWS; }

int32_t epx_refusal_channels(const epx_shape_t *shape) { return epx_failure_channels(shape); }

int32_t epx_failure_channel(const epx_transport_t *transport, const epx_plan_base_t *plan)
{
    return (int32_t)(plan->head.route % (uint64_t)epx_failure_channels(transport->env.shape));
}

int32_t epx_refusal_channel(const epx_transport_t *transport, const epx_plan_base_t *plan)
{
    return transport->env.sizes->failure_channels + epx_failure_channel(transport, plan);
}

epx_status_t epx_pass_refuse(epx_transport_t *transport, const epx_plan_base_t *plan, epx_stream_t stream)
{
    epx_fabric_t *fabric = transport->env.fabric;
    return fabric->ops->post_failure(fabric, epx_refusal_channel(transport, plan),
                                     (epx_epoch_t){.add = plan->lane->base}, stream);
}

/* The number of the route, in a row of the lane's own that follows from it. */
static epx_status_t post_resident_failure(epx_transport_t *transport, const epx_plan_base_t *plan,
                                          int32_t only_failed, epx_stream_t stream)
{
    epx_fabric_t *fabric = transport->env.fabric;
    epx_post_t post = {.channel = plan->lane->index * EPX_FAILURE_ROWS,
                       .epoch = {.base = &epx_plan_head(plan)->number},
                       .peer = EPX_ALL_PEERS,
                       .gate = only_failed ? &epx_plan_head(plan)->valid : NULL,
                       .only_failed = only_failed,
                       .failure_rows = EPX_FAILURE_ROWS};
    return fabric->ops->post(fabric, &post, stream);
}

epx_status_t epx_route_post_failure(epx_transport_t *transport, const epx_plan_base_t *plan,
                                    epx_stream_t stream)
{
    epx_fabric_t *fabric = transport->env.fabric;
    if (plan->lane->words != NULL)
        return post_resident_failure(transport, plan, 0, stream);
    return fabric->ops->post_failure(fabric, epx_failure_channel(transport, plan),
                                     (epx_epoch_t){.add = plan->head.route}, stream);
}

epx_status_t epx_route_post_if_failed(epx_transport_t *transport, const epx_plan_base_t *plan,
                                      epx_stream_t stream)
{
    return plan->lane->words != NULL ? post_resident_failure(transport, plan, 1, stream) : EPX_OK;
}

epx_status_t epx_route_read_ids(epx_transport_t *transport, const epx_plan_base_t *plan,
                                epx_k_read_ids_t *args, int look_now, epx_stream_t stream)
{
    const epx_transport_env_t *env = &transport->env;
    epx_route_notice_t notice = {.bad_at = EPX_NOTICE_GOOD};
    epx_k_lane_t lane = epx_lane_route_step(plan);
    args->lane = plan->lane->routes ? &lane : NULL;
    plan->lane->routes = 0;
    epx_status_t status = env->kernels->read_ids(args, stream);
    if (status == EPX_OK && (look_now || env->device->host_access))
        status = epx_fetch(transport, &notice, args->notice, sizeof(notice), stream);
    if (status != EPX_OK || notice.bad_at == EPX_NOTICE_GOOD)
        return status;
    return slip_error(env, notice.bad_at, notice.bad_id);
}

/* ---- what an exchange brought ----------------------------------------------------------------------------------- */

static epx_status_t broken_block(const epx_transport_t *transport, int32_t peer, const char *what)
{
    const epx_transport_env_t *env = &transport->env;
    return env->services->fail(
        EPX_ERR_CORRUPT,
        "%s: rank %d, route: the %s that came from rank %d cannot be its own: the exchange "
        "broke them; epx_group_recover, or try another fabric",
        env->group_name, env->shape->rank, what, peer);
}

/* counts [m, E] of a rank with `tokens` tokens. */
static int are_possible(const epx_shape_t *shape, const int32_t *counts, int64_t tokens)
{
    for (int32_t v = 0; v < shape->splits; v++) {
        int64_t most = (tokens / shape->splits + (v < tokens % shape->splits)) * shape->top_k, sum = 0;
        for (int32_t e = 0; e < shape->experts; e++) {
            int64_t count = counts[(int64_t)v * shape->experts + e];
            if (count < 0 || count > most)
                return 0;
            sum += count;
        }
        if (sum > most)
            return 0;
    }
    return 1;
}

epx_status_t epx_route_check_notices(const epx_transport_t *transport, const void *notices, int64_t stride)
{
    const epx_shape_t *shape = transport->env.shape;
    if (!transport->env.device->host_access)
        return EPX_OK;
    for (int32_t r = 0; r < shape->ranks; r++) {
        const epx_route_notice_t *notice = (const void *)((const char *)notices + r * stride);
        if (notice->bad_at == EPX_NOTICE_TOKENS || notice->bad_at >= 0)
            continue; /* a failed route, whose counts nobody reads */
        if (notice->bad_at != EPX_NOTICE_GOOD || notice->tokens < 0 || notice->tokens > shape->tokens_max)
            return broken_block(transport, r, "words");
        if (!are_possible(shape, (const int32_t *)(const void *)(notice + 1), notice->tokens))
            return broken_block(transport, r, "counts");
    }
    return EPX_OK;
}

epx_status_t epx_route_check_counts(const epx_transport_t *transport, const int32_t *counts)
{
    const epx_shape_t *shape = transport->env.shape;
    if (!transport->env.device->host_access)
        return EPX_OK;
    for (int32_t r = 0; r < shape->ranks; r++)
        if (!are_possible(shape, counts + (int64_t)r * shape->splits * shape->experts, shape->tokens_max))
            return broken_block(transport, r, "counts");
    return EPX_OK;
}
