/* Life of plans, routing, statistics. SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/structs.h"
#include "core/operation.h"
#include "transport/common.h"

static const epx_shape_t *shape_of(epx_plan_h plan) { return &plan->group->selection.shape; }

static uint64_t signature_of(const epx_group_t *group)
{
    return epx_shape_signature(&group->selection.shape, group->selection.transport->name);
}

size_t epx_plan_bytes(epx_group_h group)
{
    return group != NULL && group->is_open ? (size_t)group->selection.sizes.plan_bytes : 0;
}

/* Where the parts of a handle's block are: the struct, the transport's state, the report where the host
 * reaches the device's memory. */
static int64_t report_offset(const epx_selection_t *selection)
{
    return epx_round_up((int64_t)sizeof(struct epx_plan) + selection->sizes.plan_state_bytes, 64);
}

int64_t epx_plan_handle_bytes(const epx_selection_t *selection)
{
    return report_offset(selection) + (selection->device->host_access ? epx_report_bytes(selection) : 0);
}

/* What of a plan the device writes for the host. */
static epx_route_report_t *report_of(epx_group_t *group, epx_plan_h plan)
{
    if (!epx_group_is_remote(group))
        return (epx_route_report_t *)(void *)((char *)plan + report_offset(&group->selection));
    epx_route_report_t *report = epx_report_take(group);
    plan->owns_report = report != NULL;
    return report;
}

static void free_plan(epx_plan_h plan)
{
    epx_allocator_t allocator = plan->allocator;
    if (plan->owns_report && plan->group != NULL)
        epx_report_give(plan->group, plan->base.report);
    if (plan->owns_bytes && plan->base.bytes != NULL)
        allocator.release(allocator.context, plan->base.bytes, (size_t)plan->bytes, 1);
    allocator.release(allocator.context, plan, (size_t)plan->handle_bytes, 0);
}

/* The common part of create and attach; room: where the caller wants the handle. */
static epx_status_t make_plan(epx_group_h group, int32_t lane, void *memory, const char *call,
                              const void *room, epx_plan_h *plan_p)
{
    if (group == NULL || room == NULL)
        return epx_fail(EPX_ERR_ARG, "%s: group and plan_p must be there", call);
    epx_status_t status = epx_group_alive(group);
    if (status != EPX_OK)
        return status;
    if (lane < 0 || lane >= group->config.lanes)
        return epx_fail(EPX_ERR_ARG, "%s: lane is %d; the group has lanes 0 to %d", call, lane,
                        group->config.lanes - 1);
    if (((uintptr_t)memory & (EPX_AREA_ALIGN - 1)) != 0)
        return epx_fail(EPX_ERR_ARG, "%s: the memory of a plan must be aligned to %d bytes", call,
                        EPX_AREA_ALIGN);
    const epx_sizes_t *sizes = &group->selection.sizes;
    int64_t handle_bytes = epx_plan_handle_bytes(&group->selection);
    epx_plan_h plan = epx_group_allocate(&group->allocator, handle_bytes, 0);
    if (plan == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "%s: no memory for the plan's handle of %" PRId64 " bytes", call,
                        handle_bytes);
    memset(plan, 0, (size_t)handle_bytes);
    plan->group = group;
    plan->allocator = group->allocator;
    plan->lane = &group->lanes[lane];
    plan->bytes = sizes->plan_bytes;
    plan->handle_bytes = handle_bytes;
    plan->owns_bytes = memory == NULL;
    plan->base = (epx_plan_base_t){.bytes = memory,
                                   .state = plan + 1,
                                   .lane = &plan->lane->lane,
                                   .waves = sizes->waves,
                                   .wait_peer = -1};
    if (memory == NULL)
        plan->base.bytes = epx_group_allocate(&group->allocator, plan->bytes, 1);
    plan->base.report = report_of(group, plan);
    if (plan->base.bytes == NULL || plan->base.report == NULL) {
        status =
            epx_fail(EPX_ERR_NO_MEMORY, "%s: no memory for the plan's %" PRId64 " bytes", call, plan->bytes);
        free_plan(plan);
        return status;
    }
    plan->dead_told = __atomic_load_n(&plan->base.report->dead, __ATOMIC_ACQUIRE); /* its last owner's */
    plan->next = group->plans;
    plan->link = &group->plans;
    if (plan->next != NULL)
        plan->next->link = &plan->next;
    group->plans = plan;
    *plan_p = plan;
    return EPX_OK;
}

epx_status_t epx_plan_create(epx_group_h group, int32_t lane, void *memory, epx_plan_h *plan_p)
{
    epx_plan_h plan;
    epx_status_t status = make_plan(group, lane, memory, "epx_plan_create", plan_p, &plan);
    if (status != EPX_OK)
        return status;
    plan->base.head =
        (epx_plan_head_t){.magic = EPX_PLAN_MAGIC, .abi = EPX_ABI, .signature = signature_of(group)};
    status = epx_head_write(group->transport, &plan->base, 1, group->control);
    if (status == EPX_OK)
        status = group->selection.device->synchronize(group->control);
    if (status != EPX_OK) {
        epx_plan_destroy(&plan);
        return status;
    }
    *plan_p = plan;
    return EPX_OK;
}

static epx_status_t check_bytes(const epx_group_t *group, const epx_plan_head_t *head, const char *call)
{
    if (head->magic != EPX_PLAN_MAGIC || head->abi != EPX_ABI)
        return epx_fail(EPX_ERR_ARG, "%s: the memory holds no plan of this library", call);
    if (head->signature != signature_of(group))
        return epx_fail(EPX_ERR_ARG, "%s: the plan was routed by a group of another shape, rank or transport",
                        call);
    if (head->valid != 1)
        return epx_fail(EPX_ERR_ARG, "%s: the plan in this memory has not been routed well; route it again",
                        call);
    return EPX_OK;
}

epx_status_t epx_plan_attach(epx_group_h group, int32_t lane, void *memory, epx_plan_h *plan_p)
{
    epx_plan_h plan;
    epx_plan_head_t head;
    if (memory == NULL)
        return epx_fail(EPX_ERR_ARG, "epx_plan_attach: memory is NULL; give the bytes of a routed plan");
    epx_status_t status = make_plan(group, lane, memory, "epx_plan_attach", plan_p, &plan);
    if (status != EPX_OK)
        return status;
    status = epx_fetch(group->transport, &head, memory, sizeof(head), group->control);
    if (status == EPX_OK)
        status = check_bytes(group, &head, "epx_plan_attach");
    if (status != EPX_OK) {
        epx_plan_destroy(&plan);
        return status;
    }
    plan->base.head = head;
    plan->base.waves = head.waves;
    plan->base.attached = 1;
    *plan_p = plan;
    return EPX_OK;
}

static void leave_lane(epx_plan_h plan)
{
    if (plan->lane->plan == plan)
        plan->lane->plan = NULL;
    plan->pass = (epx_pass_t){0};
}

/* Where this rank's device has found its part of the last route to have failed by now, and peers may still
 * begin a pass with it: they are told, as by a host that finds it in the route. */
static void tell_peers(epx_plan_h plan, epx_stream_t stream)
{
    epx_transport_t *transport = plan->group->transport;
    if (!epx_group_is_remote(plan->group) || plan->base.head.valid != 1 || plan->base.head.confirmed)
        return;
    epx_status_t status = epx_route_verdict(transport, &plan->base);
    if (status != EPX_OK && status != EPX_ERR_PEER)
        epx_route_post_failure(transport, &plan->base, stream);
}

/* What a plan has counted goes to the group's sums before it is lost. */
static void fold(epx_plan_h plan)
{
    epx_tally_fold(plan);
    plan->group->sent_bytes_closed_plans += plan->base.sent_bytes;
}

void epx_plan_destroy(epx_plan_h *plan_p)
{
    if (plan_p == NULL || *plan_p == NULL)
        return;
    epx_plan_h plan = *plan_p;
    *plan_p = NULL;
    if (plan->group != NULL) {
        const epx_plan_head_t *head = &plan->base.head;
        tell_peers(plan, plan->group->control);
        /* In the middle of a pass, or routed and never used: peers may be elsewhere. They meet before the
         * lane's next route. */
        if (plan->lane->plan == plan || (head->valid != 0 && !head->confirmed && !plan->base.attached))
            plan->lane->abandoned = 1;
        leave_lane(plan);
        fold(plan);
        *plan->link = plan->next;
        if (plan->next != NULL)
            plan->next->link = plan->link;
    }
    free_plan(plan);
}

void epx_group_detach_plans(epx_group_t *group)
{
    for (epx_plan_h plan = group->plans; plan != NULL; plan = plan->next) {
        fold(plan);
        plan->group = NULL;
        plan->lane = NULL;
        plan->base.report = NULL;
        plan->pass = (epx_pass_t){0};
    }
    group->plans = NULL;
}

int32_t epx_plan_waves(epx_plan_h plan)
{
    if (plan == NULL)
        return epx_fail(EPX_ERR_ARG, "epx_plan_waves: plan is NULL");
    return plan->base.waves;
}

void *epx_plan_memory(epx_plan_h plan) { return plan != NULL ? plan->base.bytes : NULL; }

epx_status_t epx_plan_usable(epx_plan_h plan, const char *call)
{
    if (plan == NULL)
        return epx_fail(EPX_ERR_ARG, "%s: plan is NULL", call);
    if (plan->group == NULL)
        return epx_fail(EPX_ERR_ABORTED,
                        "%s: the plan's group was closed or recovered; create the plan again", call);
    epx_group_t *group = plan->group;
    int failed = atomic_load_explicit(&group->failed, memory_order_acquire);
    if (failed != 0)
        return epx_fail(EPX_ERR_ABORTED,
                        "%s: the group has ended (%s: %s); epx_group_recover makes it usable", call,
                        epx_status_name((epx_status_t)failed), group->failed_text);
    if (group->fabric->ops->aborted(group->fabric, NULL) >= 0)
        return epx_group_note(group, epx_group_alive(group));
    return EPX_OK;
}

/* ---- route ------------------------------------------------------------------------------------------------------ */

void epx_plan_died(struct epx_plan *plan)
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
    leave_lane(plan);
    epx_plan_died(plan);
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
    const epx_shape_t *shape = shape_of(plan);
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

/*
 * An error that the device found in the last route, and that no call has returned yet, must not be lost:
 * passes have been made with it. All ranks have made them, so all come here and wait for their own device (it
 * has come past that route long ago, unless the host is a whole pass ahead) and all of them return the error.
 */
static epx_status_t settle_last_route(epx_plan_h plan)
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
    return epx_plan_look(plan);
}

/* What is counted begins anew. */
static void restart_account(epx_plan_h plan)
{
    fold(plan);
    plan->folded = (epx_tally_t){0};
    plan->passes = 0;
    plan->base.sent_bytes = plan->base.received_bytes = plan->base.sent_meta_bytes =
        plan->base.received_meta_bytes = 0;
    plan->base.wait_ns = plan->base.wait_longest_ns = 0;
    plan->base.wait_peer = -1;
}

/* Everything of the last routing ends, here and in the lane. */
static epx_status_t end_last_route(epx_plan_h plan, epx_stream_t stream)
{
    tell_peers(plan, stream);
    leave_lane(plan);
    epx_status_t status = epx_plan_meet(plan, stream);
    if (status != EPX_OK)
        return status;
    restart_account(plan);
    plan->base.attached = 0;
    return EPX_OK;
}

/* ---- copies of a plan ------------------------------------------------------------------------------------------- */

epx_status_t epx_plan_save(epx_plan_h plan, void *copy, epx_stream_t stream)
{
    epx_status_t status = epx_plan_usable(plan, "epx_plan_save");
    if (status != EPX_OK)
        return status;
    if (copy == NULL)
        return epx_fail(EPX_ERR_ARG, "epx_plan_save: copy is NULL; give %" PRId64 " bytes of device memory",
                        plan->bytes);
    if (plan->base.head.valid != 1)
        return epx_fail(EPX_ERR_ARG, "epx_plan_save: the plan has no good route to copy");
    return plan->group->selection.device->copy(copy, plan->base.bytes, (size_t)plan->bytes, stream);
}

static epx_status_t check_load(epx_plan_h plan, const void *copy, const char *call)
{
    epx_status_t status = epx_plan_usable(plan, call);
    if (status != EPX_OK)
        return status;
    if (copy == NULL)
        return epx_fail(EPX_ERR_ARG, "%s: copy is NULL; give the bytes of a routed plan", call);
    if (plan->lane->plan == plan)
        return epx_fail(EPX_ERR_ARG, "%s: a pass of this plan is in flight; finish its waves first", call);
    return EPX_OK;
}

/* The plan becomes the one of `copy`, whose head is known. */
static epx_status_t take_copy(epx_plan_h plan, const void *copy, const epx_plan_head_t *head,
                              epx_stream_t stream)
{
    epx_group_t *group = plan->group;
    if (plan->base.head.valid == 1 && !plan->base.head.confirmed && !plan->base.attached)
        plan->lane->abandoned = 1; /* routed and never used, as in destroy */
    tell_peers(plan, stream);
    restart_account(plan);
    epx_status_t status = group->selection.device->copy(plan->base.bytes, copy, (size_t)plan->bytes, stream);
    if (status != EPX_OK)
        return status;
    /* What the transport remembers of the old bytes. */
    memset(plan->base.state, 0, (size_t)group->selection.sizes.plan_state_bytes);
    plan->base.head = *head;
    plan->base.waves = head->waves;
    plan->base.attached = 1;
    return EPX_OK;
}

epx_status_t epx_plan_load(epx_plan_h plan, const void *copy, epx_stream_t stream)
{
    epx_plan_head_t head;
    epx_status_t status = check_load(plan, copy, "epx_plan_load");
    if (status == EPX_OK)
        status = epx_fetch(plan->group->transport, &head, copy, sizeof(head), stream);
    if (status == EPX_OK)
        status = check_bytes(plan->group, &head, "epx_plan_load");
    if (status == EPX_OK)
        status = settle_last_route(plan);
    return status == EPX_OK ? take_copy(plan, copy, &head, stream) : status;
}

/*
 * Resident epochs: what the host needs of a head is the same for all whole plans but for T; all else is read
 * by kernels. Which route it is the host does not know, so a late error of another one is never taken for
 * this plan's: a rank that refused a good plan would be waited for.
 */
epx_status_t epx_plan_load_whole(epx_plan_h plan, const void *copy, int64_t tokens, epx_stream_t stream)
{
    epx_status_t status = check_load(plan, copy, "epx_plan_load_whole");
    if (status != EPX_OK)
        return status;
    const epx_sizes_t *sizes = &plan->group->selection.sizes;
    if (plan->base.lane->words == NULL || sizes->waves == 0)
        return epx_plan_load(plan, copy, stream);
    if (tokens < 0 || tokens > shape_of(plan)->tokens_max)
        return epx_fail(EPX_ERR_ARG,
                        "epx_plan_load_whole: %" PRId64 " tokens; the group was opened for 0 to %d", tokens,
                        shape_of(plan)->tokens_max);
    epx_plan_head_t head = {.magic = EPX_PLAN_MAGIC,
                            .abi = EPX_ABI,
                            .signature = signature_of(plan->group),
                            .valid = 1,
                            .waves = sizes->waves,
                            .tokens = tokens,
                            .route = UINT64_MAX,
                            .confirmed = 1,
                            .learned = 1};
    return take_copy(plan, copy, &head, stream);
}

/* The head of a route that is being made. */
static void begin_head(epx_plan_h plan)
{
    const epx_sizes_t *sizes = &plan->group->selection.sizes;
    plan->base.head = (epx_plan_head_t){.magic = EPX_PLAN_MAGIC,
                                        .abi = EPX_ABI,
                                        .signature = signature_of(plan->group),
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
    epx_plan_died(plan);
    return status;
}

static epx_status_t route(epx_plan_h plan, const epx_routing_t *routing, epx_stream_t stream)
{
    epx_status_t status = settle_last_route(plan);
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

epx_status_t epx_plan_stats(epx_plan_h plan, epx_plan_stats_t *stats_p, epx_stream_t stream)
{
    epx_plan_head_t head = {0};
    if (plan == NULL || stats_p == NULL || !epx_struct_fits(stats_p, stats_p->size, sizeof(epx_plan_stats_t)))
        return epx_fail(EPX_ERR_ARG,
                        "epx_plan_stats: plan must be there, the answer begun with EPX_PLAN_STATS_INIT");
    if (plan->group == NULL)
        return epx_fail(EPX_ERR_ABORTED,
                        "epx_plan_stats: the plan's group was closed or recovered; create the plan again");
    if (plan->base.head.valid != 1)
        return epx_fail(EPX_ERR_ARG, "epx_plan_stats: the plan has no good route to count");
    epx_transport_t *transport = plan->group->transport;
    epx_status_t status = epx_fetch(transport, &head, plan->base.bytes, sizeof(head), stream);
    if (status == EPX_OK && epx_group_is_remote(plan->group))
        status = epx_route_verdict(transport, &plan->base);
    if (status != EPX_OK)
        return status;
    transport->ops->account(transport, &plan->base);
    *stats_p = (epx_plan_stats_t){
        .size = stats_p->size,
        .routed = head.routed,
        .skipped = head.skipped,
        .kept = head.kept,
        .spilled = head.spilled,
        .dropped_sender = head.dropped_sender,
        .dropped_receiver = head.dropped_receiver,
        .sent_bytes = plan->base.sent_bytes,
        .received_bytes = plan->base.received_bytes,
        .sent_meta_bytes = plan->base.sent_meta_bytes,
        .received_meta_bytes = plan->base.received_meta_bytes,
        .wait_ns = plan->base.wait_ns,
        .wait_peer = plan->base.wait_peer,
        .tokens = head.tokens,
    };
    return EPX_OK;
}

epx_status_t epx_plan_counts(epx_plan_h plan, int64_t *counts, epx_stream_t stream)
{
    epx_status_t status = epx_plan_usable(plan, "epx_plan_counts");
    if (status != EPX_OK)
        return status;
    if (counts == NULL)
        return epx_fail(EPX_ERR_ARG, "epx_plan_counts: counts is NULL; give %d numbers of device memory",
                        EPX_PLAN_COUNTS);
    if (plan->base.head.valid != 1)
        return epx_fail(EPX_ERR_ARG, "epx_plan_counts: the plan has no good route to count");
    const char *head = plan->base.bytes;
    return plan->group->selection.device->copy(counts, head + offsetof(epx_plan_head_t, routed),
                                               EPX_PLAN_COUNTS * sizeof(*counts), stream);
}
