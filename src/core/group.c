/* What can be asked of a group. SPDX-License-Identifier: Apache-2.0 */

#include "base/fail.h"
#include "base/structs.h"
#include "core/failed.h"
#include "core/route.h"
#include "core/stats.h"
#include "transport/common.h"

epx_status_t epx_group_info(epx_group_h group, epx_group_info_t *info_p)
{
    if (group == NULL || info_p == NULL || !epx_struct_fits(info_p, info_p->size, sizeof(epx_group_info_t)))
        return epx_fail(EPX_ERR_ARG,
                        "epx_group_info: group must be there, the answer begun with EPX_GROUP_INFO_INIT");
    if (!group->is_open)
        return epx_fail(EPX_ERR_ABORTED, "%s: the group could not be recovered; close it", group->name);
    const epx_selection_t *s = &group->selection;
    const epx_owners_t *owners = &s->shape.real;
    int64_t sent = group->sent_bytes_closed_plans;
    for (struct epx_plan *plan = group->plans; plan != NULL; plan = plan->next) {
        group->transport->ops->account(group->transport, &plan->base);
        sent += plan->base.sent_bytes;
    }
    epx_paths_t paths = epx_group_paths(group, sent);
    *info_p = (epx_group_info_t){
        .size = info_p->size,
        .rank = group->rank,
        .ranks = group->ranks,
        .experts = s->shape.experts,
        .top_k = s->shape.top_k,
        .width = s->shape.width,
        .tokens_max = s->shape.tokens_max,
        .local_experts = owners->first[group->rank + 1] - owners->first[group->rank],
        .local_expert_ids = owners->expert + owners->first[group->rank],
        .batch_rows_max = s->sizes.batch_rows_max,
        .waves = s->sizes.waves,
        .lanes = s->shape.lanes,
        .depth = s->shape.depth,
        .virtual_ranks = s->shape.virtual_ranks,
        .transport = s->transport->name,
        .fabric = s->fabric->name,
        .device = s->device->name,
        .generation = group->generation,
        .exchange_bytes_remote = sent,
        .wire = s->sizes.wire,
        .owner = owners->owner,
        .stored_bytes_remote = paths.stored_bytes,
        .message_bytes_remote = paths.message_bytes,
        .path = paths.path,
    };
    return EPX_OK;
}

epx_status_t epx_group_check(epx_group_h group)
{
    if (group == NULL)
        return epx_fail(EPX_ERR_ARG, "epx_group_check: group is NULL");
    epx_status_t status = epx_group_alive(group);
    if (status != EPX_OK || !group->is_open || !epx_group_is_remote(group))
        return status;
    for (struct epx_plan *plan = group->plans; status == EPX_OK && plan != NULL; plan = plan->next) {
        uint64_t route;
        if (plan->base.lane->words != NULL)
            status = epx_plan_untold(plan, &route);
        else if (plan->base.head.valid == 1)
            status = epx_route_verdict(group->transport, &plan->base);
        if (status != EPX_OK)
            atomic_store_explicit(&plan->checked, plan->base.head.route, memory_order_release);
    }
    return status;
}
