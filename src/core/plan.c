/* Life of plans. SPDX-License-Identifier: Apache-2.0 */
#include "core/plan.h"

#include <inttypes.h>
#include <string.h>

#include "base/fail.h"
#include "core/failed.h"
#include "core/memory.h"
#include "core/reports.h"
#include "core/stats.h"
#include "transport/common.h"

uint64_t epx_plan_signature(const epx_group_t *group)
{
    return epx_shape_signature(&group->selection.shape, group->selection.transport->name);
}

epx_status_t epx_plan_check_bytes(const epx_group_t *group, const epx_plan_head_t *head, const char *call)
{
    if (head->magic != EPX_PLAN_MAGIC || head->abi != EPX_ABI)
        return epx_fail(EPX_ERR_ARG, "%s: the memory holds no plan of this library", call);
    if (head->signature != epx_plan_signature(group))
        return epx_fail(EPX_ERR_ARG, "%s: the plan was routed by a group of another shape, rank or transport",
                        call);
    if (head->valid != 1)
        return epx_fail(EPX_ERR_ARG, "%s: the plan in this memory has not been routed well; route it again",
                        call);
    return EPX_OK;
}

size_t epx_plan_bytes(epx_group_h group)
{
    return group != NULL && group->is_open ? (size_t)group->selection.sizes.plan_bytes : 0;
}

/* What of a plan the device writes for the host. */
static epx_route_report_t *report_of(epx_group_t *group, epx_plan_h plan)
{
    if (!epx_group_is_remote(group))
        return (epx_route_report_t *)(void *)((char *)plan + epx_plan_report_offset(&group->selection));
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
    plan->wait_before_peer = -1;
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
        (epx_plan_head_t){.magic = EPX_PLAN_MAGIC, .abi = EPX_ABI, .signature = epx_plan_signature(group)};
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
        status = epx_plan_check_bytes(group, &head, "epx_plan_attach");
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

void epx_plan_leave_lane(epx_plan_h plan)
{
    if (plan->lane->plan == plan)
        plan->lane->plan = NULL;
    plan->pass = (epx_pass_t){0};
}

void epx_plan_tell_peers(epx_plan_h plan, epx_stream_t stream)
{
    epx_transport_t *transport = plan->group->transport;
    if (!epx_group_is_remote(plan->group) || plan->base.head.valid != 1 || plan->base.head.confirmed)
        return;
    epx_status_t status = epx_route_verdict(transport, &plan->base);
    if (status != EPX_OK && status != EPX_ERR_PEER)
        epx_route_post_failure(transport, &plan->base, stream);
}

void epx_plan_fold(epx_plan_h plan)
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
        epx_plan_tell_peers(plan, plan->group->control);
        /* In the middle of a pass, or routed and never used: peers may be elsewhere. They meet before the
         * lane's next route. */
        if (plan->lane->plan == plan || (head->valid != 0 && !head->confirmed && !plan->base.attached))
            plan->lane->abandoned = 1;
        epx_plan_leave_lane(plan);
        epx_plan_fold(plan);
        *plan->link = plan->next;
        if (plan->next != NULL)
            plan->next->link = plan->link;
    }
    free_plan(plan);
}

void epx_group_detach_plans(epx_group_t *group)
{
    for (epx_plan_h plan = group->plans; plan != NULL; plan = plan->next) {
        epx_plan_fold(plan);
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
