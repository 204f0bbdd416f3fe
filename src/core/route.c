/* The route of a plan, from the end of the last one. SPDX-License-Identifier: Apache-2.0 */
#include "core/route.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/fail.h"
#include "base/structs.h"
#include "core/failed.h"
#include "core/operation.h"
#include "core/plan.h"
#include "transport/common.h"

/* Keeps the last error's text as the reason why the plan is dead. */
static void died(struct epx_plan *plan)
{
    snprintf(plan->dead_text, sizeof(plan->dead_text), "%.319s", epx_last_error());
}

/* Somebody has heard of the end of that route and of those before. */
static void told(struct epx_plan *plan, uint64_t route)
{
    if (route > plan->dead_told)
        plan->dead_told = route;
}

epx_status_t epx_plan_dies(struct epx_plan *plan, epx_status_t status)
{
    plan->base.head.valid = status;
    told(plan, __atomic_load_n(&plan->base.report->dead, __ATOMIC_ACQUIRE));
    epx_plan_leave_lane(plan);
    died(plan);
    return status;
}

epx_status_t epx_plan_look(struct epx_plan *plan)
{
    epx_transport_t *transport = plan->group->transport;
    epx_status_t status =
        epx_group_is_remote(plan->group) ? epx_route_verdict(transport, &plan->base) : EPX_OK;
    return status == EPX_OK ? EPX_OK : epx_plan_dies(plan, status);
}

/* What the library itself can see to be wrong with a routing; the peers are told of it like of a bad id. */
static epx_status_t check_routing(epx_plan_h plan, const epx_routing_t *routing, epx_routing_t *copy_p)
{
    const epx_shape_t *shape = &plan->group->selection.shape;
    if (routing == NULL || !epx_struct_fits(routing, routing->size, sizeof(epx_routing_t)))
        return epx_fail(EPX_ERR_ARG, "epx_plan_route: begin the routing with EPX_ROUTING_INIT");
    *copy_p = *routing;
    if (copy_p->tokens_device != NULL && epx_group_is_remote(plan->group))
        copy_p->tokens = shape->tokens_max; /* at most: the device looks at T when it reads it */
    else if (copy_p->tokens_device != NULL)
        copy_p->tokens = *copy_p->tokens_device;
    if (copy_p->tokens < 0 || copy_p->tokens > shape->tokens_max)
        return epx_fail(EPX_ERR_ARG,
                        "epx_plan_route: rank %d has %" PRId64 " tokens; the group was opened for 0 to %d",
                        shape->rank, copy_p->tokens, shape->tokens_max);
    if (copy_p->id_type == EPX_TYPE_DEFAULT)
        copy_p->id_type = EPX_INT32;
    if (copy_p->id_type != EPX_INT32 && copy_p->id_type != EPX_INT64)
        return epx_fail(EPX_ERR_ARG, "epx_plan_route: id_type is %d; use EPX_INT32 or EPX_INT64",
                        (int)copy_p->id_type);
    if (copy_p->weight_type != EPX_TYPE_DEFAULT && copy_p->weight_type != EPX_FP32)
        return epx_fail(EPX_ERR_ARG,
                        "epx_plan_route: weight_type is %d; routing weights are EPX_FP32, always",
                        (int)copy_p->weight_type);
    if (copy_p->tokens > 0 && (copy_p->ids == NULL || copy_p->weights == NULL))
        return epx_fail(EPX_ERR_ARG, "epx_plan_route: %s is NULL on rank %d with %" PRId64 " tokens",
                        copy_p->ids == NULL ? "ids" : "weights", shape->rank, copy_p->tokens);
    return EPX_OK;
}

/* Resident: where the device is, seen by the host; both ways wait for it. */
static epx_status_t read_passes(struct epx_plan *plan, uint64_t *passes_p, epx_stream_t stream)
{
    epx_lane_words_t *words = plan->base.lane->words;
    *passes_p = plan->base.lane->passes;
    return words == NULL
               ? EPX_OK
               : epx_fetch(plan->group->transport, passes_p, &words->passes, sizeof(*passes_p), stream);
}

static epx_status_t write_passes(struct epx_plan *plan, uint64_t passes, epx_stream_t stream)
{
    epx_lane_words_t *words = plan->base.lane->words;
    plan->base.lane->passes = passes;
    return words == NULL
               ? EPX_OK
               : plan->group->selection.device->put(&words->passes, &passes, sizeof(passes), stream);
}

epx_status_t epx_plan_meet(struct epx_plan *plan, epx_stream_t stream)
{
    epx_group_t *group = plan->group;
    uint64_t mine = 0;
    if (!plan->lane->abandoned)
        return EPX_OK;
    uint64_t *all = (uint64_t *)group->tables.memory; /* the cards' room, idle since the group opened */
    epx_status_t status = read_passes(plan, &mine, stream);
    mine++;
    if (status == EPX_OK)
        status = epx_route_exchange_on_host(group->transport, &plan->base, &mine, all, sizeof(mine), stream);
    if (status != EPX_OK)
        return epx_group_note(group, status);
    uint64_t most = 0;
    for (int32_t r = 0; r < group->ranks; r++)
        most = all[r] > most ? all[r] : most;
    plan->lane->abandoned = 0;
    return write_passes(plan, most, stream);
}

epx_status_t epx_plan_untold(const struct epx_plan *plan, uint64_t *route_p)
{
    epx_plan_base_t base = plan->base;
    base.head.route = __atomic_load_n(&base.report->dead, __ATOMIC_ACQUIRE);
    *route_p = base.head.route;
    return base.head.route > plan->dead_told ? epx_route_verdict(plan->group->transport, &base) : EPX_OK;
}

/* Resident epochs: all ranks make the route, whatever has become of those before. */
static epx_status_t mention_last_route(epx_plan_h plan)
{
    uint64_t route = 0;
    if (epx_plan_untold(plan, &route) != EPX_OK)
        epx_log(EPX_LOG_WARN, "plan", "%s; the plan is routed again before a call of it has said so",
                epx_last_error());
    told(plan, route);
    return EPX_OK;
}

epx_status_t epx_plan_settle(epx_plan_h plan)
{
    epx_group_t *group = plan->group;
    int tells = !plan->base.attached || group->selection.sizes.learns;
    if (plan->base.lane->words != NULL)
        return mention_last_route(plan);
    if (!epx_group_is_remote(group) || plan->base.head.valid != 1 || plan->passes == 0)
        return EPX_OK;
    int64_t deadline = epx_clock_ns() + group->selection.shape.timeout_ms * 1000000;
    for (int32_t spin = 0; tells && !epx_route_is_told(&plan->base); spin++) {
        if (group->fabric->ops->aborted(group->fabric, NULL) >= 0)
            return epx_group_note(group, epx_group_alive(group));
        if (epx_clock_ns() > deadline)
            return epx_group_note(group,
                                  epx_fail(EPX_ERR_TIMEOUT,
                                           "%s: rank %d: the device has not decided the plan's last route "
                                           "within %" PRId64 " ms; is its stream stuck?",
                                           group->name, group->rank, group->selection.shape.timeout_ms));
        if (spin > 100)
            epx_nap_ns(20000);
    }
    epx_status_t status = epx_plan_look(plan);
    /* What epx_group_check has told is not told again by a route that has nothing to do with it. */
    uint64_t checked = atomic_load_explicit(&plan->checked, memory_order_acquire);
    return checked == plan->base.head.route ? EPX_OK : status;
}

void epx_plan_restart_account(epx_plan_h plan)
{
    epx_plan_fold(plan);
    plan->folded = (epx_tally_t){0};
    plan->passes = 0;
    plan->base.sent_bytes = plan->base.received_bytes = plan->base.sent_meta_bytes =
        plan->base.received_meta_bytes = 0;
    plan->base.wait_ns = plan->base.wait_longest_ns = 0;
    plan->base.wait_peer = plan->wait_before_peer = -1;
    plan->wait_before_ns = 0;
}

/* Everything of the last routing ends, here and in the lane. */
static epx_status_t end_last_route(epx_plan_h plan, epx_stream_t stream)
{
    epx_plan_tell_peers(plan, stream);
    epx_plan_leave_lane(plan);
    epx_status_t status = epx_plan_meet(plan, stream);
    if (status != EPX_OK)
        return status;
    epx_plan_restart_account(plan);
    plan->base.attached = 0;
    return EPX_OK;
}

/* The head of a route that is being made. */
static void begin_head(epx_plan_h plan)
{
    const epx_sizes_t *sizes = &plan->group->selection.sizes;
    plan->base.head = (epx_plan_head_t){.magic = EPX_PLAN_MAGIC,
                                        .abi = EPX_ABI,
                                        .signature = epx_plan_signature(plan->group),
                                        .waves = sizes->waves,
                                        .route = ++plan->group->routes,
                                        .confirmed = !sizes->learns,
                                        .learned = !sizes->learns};
}

/* The bytes and the handle of a plan whose route has failed here. */
static epx_status_t route_failed(epx_plan_h plan, epx_status_t status, const char *text, epx_stream_t stream)
{
    plan->base.head.valid = (int32_t)status;
    told(plan, plan->base.head.route); /* the device, which finds out too, is not asked about it */
    plan->base.head.tokens = 0;
    epx_head_write(plan->group->transport, &plan->base, 0, stream);
    epx_fail(status, "%s", text);
    died(plan);
    return status;
}

static epx_status_t route(epx_plan_h plan, const epx_routing_t *routing, epx_stream_t stream)
{
    epx_status_t status = epx_plan_settle(plan);
    if (status == EPX_OK)
        status = end_last_route(plan, stream);
    if (status != EPX_OK)
        return status;
    epx_transport_t *transport = plan->group->transport;
    epx_routing_t checked = EPX_ROUTING_INIT;
    begin_head(plan);
    epx_status_t bad = check_routing(plan, routing, &checked);
    plan->base.head.tokens = bad == EPX_OK ? checked.tokens : 0;
    if (plan->base.lane->words == NULL)
        status = epx_head_write(transport, &plan->base, 1, stream);
    else if (bad == EPX_OK && plan->group->selection.sizes.ids_first)
        epx_lane_routes(&plan->base);
    else
        status = epx_lane_route(transport, &plan->base, stream);
    if (bad == EPX_OK)
        bad = status;
    char text[512];
    snprintf(text, sizeof(text), "%.511s", bad != EPX_OK ? epx_last_error() : "");
    status = transport->ops->route(transport, &plan->base, &checked, bad, stream);
    if (bad != EPX_OK) /* the transport has told the peers; the text is still the one of the slip */
        return route_failed(plan, bad, text, stream);
    if (status != EPX_OK) {
        snprintf(text, sizeof(text), "%.511s", epx_last_error());
        return epx_group_note(plan->group, route_failed(plan, status, text, stream));
    }
    plan->base.head.valid = 1;
    plan->base.head.waves = plan->base.waves;
    /* Elsewhere the kernels that decide have written it. */
    return epx_group_is_remote(plan->group) ? EPX_OK : epx_head_write(transport, &plan->base, 0, stream);
}

epx_status_t epx_plan_route(epx_plan_h plan, const epx_routing_t *routing, epx_stream_t stream)
{
    epx_status_t status = epx_plan_usable(plan, "epx_plan_route");
    if (status != EPX_OK)
        return status;
    if (plan->lane->plan == plan && plan->base.head.valid == 1)
        return epx_fail(EPX_ERR_ARG,
                        "epx_plan_route: a pass of this plan is in flight; finish its waves first");
    status = epx_op_enter_route(plan, stream);
    if (status == EPX_OK)
        status = route(plan, routing, stream);
    return epx_op_leave(plan, EPX_RECORD_ROUTE, 0, status);
}
