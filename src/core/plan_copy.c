/* What is read of a plan: copies of its bytes, statistics. SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "base/fail.h"
#include "base/structs.h"
#include "core/plan.h"
#include "core/route.h"
#include "transport/common.h"

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

/* A route that was not used, as in epx_plan_destroy. Also where it has failed here, or where the copy turns
 * out to be none: a peer, whose own route was good, may have loaded, and all must meet or none. */
static void leave_route(epx_plan_h plan)
{
    if (plan->base.head.valid != 0 && !plan->base.head.confirmed && !plan->base.attached)
        plan->lane->abandoned = 1;
}

/* The plan becomes the one of `copy`, whose head is known. */
static epx_status_t take_copy(epx_plan_h plan, const void *copy, const epx_plan_head_t *head,
                              epx_stream_t stream)
{
    epx_group_t *group = plan->group;
    epx_plan_tell_peers(plan, stream);
    epx_plan_restart_account(plan);
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
    if (status != EPX_OK)
        return status;
    leave_route(plan);
    status = epx_fetch(plan->group->transport, &head, copy, sizeof(head), stream);
    if (status == EPX_OK)
        status = epx_plan_check_bytes(plan->group, &head, "epx_plan_load");
    if (status == EPX_OK)
        status = epx_plan_settle(plan);
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
    if (tokens < 0 || tokens > plan->group->selection.shape.tokens_max)
        return epx_fail(EPX_ERR_ARG,
                        "epx_plan_load_whole: %" PRId64 " tokens; the group was opened for 0 to %d", tokens,
                        plan->group->selection.shape.tokens_max);
    epx_plan_head_t head = {.magic = EPX_PLAN_MAGIC,
                            .abi = EPX_ABI,
                            .signature = epx_plan_signature(plan->group),
                            .valid = 1,
                            .waves = sizes->waves,
                            .tokens = tokens,
                            .route = UINT64_MAX,
                            .confirmed = 1,
                            .learned = 1};
    leave_route(plan);
    return take_copy(plan, copy, &head, stream);
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
        .wait_peer =
            plan->base.wait_longest_ns > plan->wait_before_ns ? plan->base.wait_peer : plan->wait_before_peer,
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
