/* Life of plans, routing, statistics. SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/structs.h"
#include "core/group.h"
#include "transport/common.h"

static epx_plan_head_t *head_of(epx_plan_h plan) { return epx_plan_head(&plan->base); }

static const epx_shape_t *shape_of(epx_plan_h plan) { return &plan->group->selection.shape; }

static uint64_t signature_of(const epx_group_t *group)
{
    return epx_shape_signature(&group->selection.shape, group->selection.transport->name);
}

size_t epx_plan_bytes(epx_group_h group)
{
    return group != NULL && group->is_open ? (size_t)group->selection.sizes.plan_bytes : 0;
}

/* The common part of create and attach; room: where the caller wants the handle. */
static epx_status_t make_plan(epx_group_h group, int32_t lane, void *memory, const char *call,
                              const void *room, epx_plan_h *plan_p)
{
    if (group == NULL || room == NULL)
        return epx_fail(EPX_ERR_ARG, "%s: group and plan_p must be there", call);
    epx_status_t status = epx_group_check(group);
    if (status != EPX_OK)
        return status;
    if (lane < 0 || lane >= group->config.lanes)
        return epx_fail(EPX_ERR_ARG, "%s: lane is %d; the group has lanes 0 to %d", call, lane,
                        group->config.lanes - 1);
    if (((uintptr_t)memory & (EPX_AREA_ALIGN - 1)) != 0)
        return epx_fail(EPX_ERR_ARG, "%s: the memory of a plan must be aligned to %d bytes", call,
                        EPX_AREA_ALIGN);
    const epx_sizes_t *sizes = &group->selection.sizes;
    int64_t handle_bytes = (int64_t)sizeof(struct epx_plan) + sizes->plan_state_bytes;
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
    if (plan->base.bytes == NULL) {
        group->allocator.release(group->allocator.context, plan, (size_t)handle_bytes, 0);
        return epx_fail(EPX_ERR_NO_MEMORY, "%s: no memory for the plan's %" PRId64 " bytes", call,
                        sizes->plan_bytes);
    }
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
    *head_of(plan) =
        (epx_plan_head_t){.magic = EPX_PLAN_MAGIC, .abi = EPX_ABI, .signature = signature_of(group)};
    *plan_p = plan;
    return EPX_OK;
}

epx_status_t epx_plan_attach(epx_group_h group, int32_t lane, void *memory, epx_plan_h *plan_p)
{
    epx_plan_h plan;
    if (memory == NULL)
        return epx_fail(EPX_ERR_ARG, "epx_plan_attach: memory is NULL; give the bytes of a routed plan");
    epx_status_t status = make_plan(group, lane, memory, "epx_plan_attach", plan_p, &plan);
    if (status != EPX_OK)
        return status;
    const epx_plan_head_t *head = head_of(plan);
    if (head->magic != EPX_PLAN_MAGIC || head->abi != EPX_ABI)
        status = epx_fail(EPX_ERR_ARG, "epx_plan_attach: the memory holds no plan of this library");
    else if (head->signature != signature_of(group))
        status =
            epx_fail(EPX_ERR_ARG,
                     "epx_plan_attach: the plan was routed by a group of another shape, rank or transport");
    else if (head->valid != 1)
        status = epx_fail(
            EPX_ERR_ARG, "epx_plan_attach: the plan in this memory has not been routed well; route it again");
    if (status != EPX_OK) {
        epx_plan_destroy(&plan);
        return status;
    }
    plan->base.waves = head->waves;
    plan->is_attached = 1;
    *plan_p = plan;
    return EPX_OK;
}

static void leave_lane(epx_plan_h plan)
{
    if (plan->lane->plan == plan)
        plan->lane->plan = NULL;
    plan->pass = (epx_pass_t){0};
}

void epx_plan_destroy(epx_plan_h *plan_p)
{
    if (plan_p == NULL || *plan_p == NULL)
        return;
    epx_plan_h plan = *plan_p;
    *plan_p = NULL;
    if (plan->group != NULL) {
        /* In the middle of a pass, or routed and never used: peers may be elsewhere. They meet before the
         * lane's next route. */
        if (plan->lane->plan == plan ||
            (head_of(plan)->valid != 0 && !head_of(plan)->confirmed && !plan->is_attached))
            plan->lane->abandoned = 1;
        epx_lane_resume(&plan->base);
        leave_lane(plan);
        epx_tally_fold(plan);
        plan->group->sent_bytes_closed_plans += plan->base.sent_bytes;
        *plan->link = plan->next;
        if (plan->next != NULL)
            plan->next->link = plan->link;
    }
    epx_allocator_t allocator = plan->allocator;
    if (plan->owns_bytes)
        allocator.release(allocator.context, plan->base.bytes, (size_t)plan->bytes, 1);
    allocator.release(allocator.context, plan, (size_t)plan->handle_bytes, 0);
}

void epx_group_detach_plans(epx_group_t *group)
{
    for (epx_plan_h plan = group->plans; plan != NULL; plan = plan->next) {
        epx_tally_fold(plan);
        group->sent_bytes_closed_plans += plan->base.sent_bytes;
        plan->group = NULL;
        plan->lane = NULL;
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
        return epx_group_note(group, epx_group_check(group));
    return EPX_OK;
}

/* ---- route ------------------------------------------------------------------------------------------------------ */

void epx_plan_died(struct epx_plan *plan)
{
    snprintf(plan->dead_text, sizeof(plan->dead_text), "%.319s", epx_last_error());
}

/* What the library itself can see to be wrong with a routing; the peers are told of it like of a bad id. */
static epx_status_t check_routing(epx_plan_h plan, const epx_routing_t *routing, epx_routing_t *copy_p)
{
    const epx_shape_t *shape = shape_of(plan);
    if (routing == NULL || !epx_struct_fits(routing, routing->size, sizeof(epx_routing_t)))
        return epx_fail(EPX_ERR_ARG, "epx_plan_route: begin the routing with EPX_ROUTING_INIT");
    *copy_p = *routing;
    if (copy_p->tokens_device != NULL)
        copy_p->tokens = *copy_p->tokens_device; /* host device */
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

/* After an abandoned pass the ranks meet and take the highest epoch of the lane. */
static epx_status_t meet_on_lane(epx_plan_h plan, epx_stream_t stream)
{
    epx_group_t *group = plan->group;
    uint64_t mine = plan->base.lane->epoch;
    uint64_t *all = (uint64_t *)group->tables.memory; /* the cards' room, idle since the group opened */
    epx_status_t status = epx_route_exchange(group->transport, &plan->base, &mine, all, sizeof(mine), stream);
    if (status != EPX_OK)
        return epx_group_note(group, status);
    for (int32_t r = 0; r < group->ranks; r++)
        if (all[r] > plan->base.lane->epoch)
            plan->base.lane->epoch = all[r];
    plan->lane->abandoned = 0;
    return EPX_OK;
}

epx_status_t epx_plan_route(epx_plan_h plan, const epx_routing_t *routing, epx_stream_t stream)
{
    epx_status_t status = epx_plan_usable(plan, "epx_plan_route");
    if (status != EPX_OK)
        return status;
    if (plan->lane->plan == plan && head_of(plan)->valid == 1)
        return epx_fail(EPX_ERR_ARG,
                        "epx_plan_route: a pass of this plan is in flight; finish its waves first");
    epx_lane_resume(&plan->base);
    leave_lane(plan);
    if (plan->lane->abandoned) {
        status = meet_on_lane(plan, stream);
        if (status != EPX_OK)
            return status;
    }
    epx_tally_fold(plan);
    plan->group->sent_bytes_closed_plans += plan->base.sent_bytes;
    plan->folded = (epx_tally_t){0};
    plan->base.sent_bytes = plan->base.received_bytes = plan->base.sent_meta_bytes =
        plan->base.received_meta_bytes = 0;
    plan->base.wait_ns = plan->base.wait_longest_ns = 0;
    plan->base.wait_peer = -1;
    plan->is_attached = 0;
    epx_routing_t checked = EPX_ROUTING_INIT;
    epx_status_t bad = check_routing(plan, routing, &checked);
    epx_transport_t *transport = plan->group->transport;
    epx_plan_head_t *head = head_of(plan);
    head->valid = 0;
    head->confirmed = 0;
    head->learned = 0;
    char text[512];
    snprintf(text, sizeof(text), "%.511s", bad != EPX_OK ? epx_last_error() : "");
    status = transport->ops->route(transport, &plan->base, &checked, bad, stream);
    if (bad != EPX_OK) {
        /* The transport has told the peers; the text is still the one of the slip. */
        if (head->valid >= 0)
            head->valid = (int32_t)bad;
        epx_fail(bad, "%s", text);
        epx_plan_died(plan);
        return bad;
    }
    if (status != EPX_OK) {
        if (head->valid >= 0)
            head->valid = (int32_t)status;
        epx_plan_died(plan);
        return epx_group_note(plan->group, status);
    }
    head->magic = EPX_PLAN_MAGIC;
    head->abi = EPX_ABI;
    head->signature = signature_of(plan->group);
    head->waves = plan->base.waves;
    head->tokens = checked.tokens;
    head->valid = 1;
    return EPX_OK;
}

epx_status_t epx_plan_stats(epx_plan_h plan, epx_plan_stats_t *stats_p, epx_stream_t stream)
{
    (void)stream;
    if (plan == NULL || stats_p == NULL || !epx_struct_fits(stats_p, stats_p->size, sizeof(epx_plan_stats_t)))
        return epx_fail(EPX_ERR_ARG,
                        "epx_plan_stats: plan must be there, the answer begun with EPX_PLAN_STATS_INIT");
    const epx_plan_head_t *head = head_of(plan);
    if (head->valid != 1)
        return epx_fail(EPX_ERR_ARG, "epx_plan_stats: the plan has no good route to count");
    *stats_p = (epx_plan_stats_t){
        .size = stats_p->size,
        .routed = head->routed,
        .skipped = head->skipped,
        .kept = head->kept,
        .spilled = head->spilled,
        .dropped_sender = head->dropped_sender,
        .dropped_receiver = head->dropped_receiver,
        .sent_bytes = plan->base.sent_bytes,
        .received_bytes = plan->base.received_bytes,
        .sent_meta_bytes = plan->base.sent_meta_bytes,
        .received_meta_bytes = plan->base.received_meta_bytes,
        .wait_ns = plan->base.wait_ns,
        .wait_peer = plan->base.wait_peer,
        .tokens = head->tokens,
    };
    return EPX_OK;
}
