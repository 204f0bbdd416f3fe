/* What can be asked of a group, and how it ends. SPDX-License-Identifier: Apache-2.0 */
#include "core/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/structs.h"
#include "transport/common.h"

static void add_item(epx_memory_t *memory, const char *name, int64_t bytes, int32_t device_memory)
{
    int32_t i = memory->items++;
    snprintf(memory->item[i].name, sizeof(memory->item[i].name), "%s", name);
    memory->item[i].bytes = bytes;
    memory->item[i].device_memory = device_memory;
    memory->total_bytes += bytes;
    memory->device_bytes += device_memory ? bytes : 0;
}

void epx_group_fill_memory(const epx_group_config_t *config, const epx_selection_t *selection, int32_t ranks,
                           epx_memory_t *memory)
{
    const epx_sizes_t *sizes = &selection->sizes;
    epx_fabric_config_t fabric = epx_group_fabric_config(selection, "group", NULL, NULL);
    add_item(memory, "group", (int64_t)sizeof(epx_group_t), 0);
    add_item(memory, "tables", epx_table_layout(config, ranks).bytes, 0);
    int64_t fabric_device = 0;
    add_item(memory, "fabric words", selection->fabric->memory(&fabric, ranks, &fabric_device), 0);
    add_item(memory, "transport state", sizes->state_bytes, 0);
    add_item(memory, "segment", sizes->segment_bytes - sizes->staging_bytes, 1);
    if (sizes->staging_bytes > 0)
        add_item(memory, "staging", sizes->staging_bytes, 1);
    add_item(memory, "scratch", sizes->scratch_bytes, 1);
    add_item(memory, "batches", sizes->batch_bytes, 1);
    if (epx_lane_words_bytes(selection) > 0)
        add_item(memory, "lane words", epx_lane_words_bytes(selection), 1);
    if (fabric_device > 0)
        add_item(memory, "fabric tables", fabric_device, 1);
    memory->plan_bytes = sizes->plan_bytes;
    memory->plan_handle_bytes = epx_plan_handle_bytes(selection);
}

epx_status_t epx_group_memory(const epx_group_config_t *config, epx_memory_t *memory_p)
{
    epx_group_config_t checked;
    if (memory_p == NULL || !epx_struct_fits(memory_p, memory_p->size, sizeof(epx_memory_t)))
        return epx_fail(EPX_ERR_ARG, "epx_group_memory: begin the answer with EPX_MEMORY_INIT");
    int32_t ranks = config != NULL && config->ranks > 0 ? config->ranks : 1;
    epx_status_t status = epx_shape_check(config, ranks, &checked);
    if (status != EPX_OK)
        return status;
    void *tables = malloc((size_t)epx_shape_table_bytes(&checked, ranks));
    epx_selection_t *selection = malloc(sizeof(*selection));
    if (tables == NULL || selection == NULL) {
        status = epx_fail(EPX_ERR_NO_MEMORY, "epx_group_memory: no memory for the tables of %d ranks", ranks);
        goto free_tables;
    }
    status = epx_select(&checked, 0, ranks, tables, NULL, NULL, selection);
    if (status != EPX_OK)
        goto free_tables;
    *memory_p = (epx_memory_t){.size = memory_p->size};
    epx_group_fill_memory(&checked, selection, ranks, memory_p);
free_tables:
    free(selection);
    free(tables);
    return status;
}

static const char *path_of(const epx_fabric_t *fabric)
{
    static const struct {
        const char *fabric, *path;
    } paths[] = {{"local", "stores in one process"},
                 {"nccl", "stores through NCCL windows"},
                 {"ucx", "stores into memory that the host's processes share"}};
    if ((fabric->caps & EPX_FABRIC_LOADSTORE) == 0)
        return "messages";
    for (size_t i = 0; i < sizeof(paths) / sizeof(*paths); i++)
        if (strcmp(paths[i].fabric, fabric->ops->name) == 0)
            return paths[i].path;
    return "stores";
}

epx_paths_t epx_group_paths(const epx_group_t *group, int64_t sent_bytes)
{
    epx_paths_t paths = {.stored_bytes = group->stored_bytes,
                         .message_bytes = group->message_bytes + group->fabric->message_bytes,
                         .path = path_of(group->fabric)};
    if ((group->fabric->caps & EPX_FABRIC_LOADSTORE) != 0)
        paths.stored_bytes += sent_bytes - group->sent_bytes_before;
    return paths;
}

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

epx_status_t epx_group_alive(epx_group_t *group)
{
    int failed = atomic_load_explicit(&group->failed, memory_order_acquire);
    if (failed != 0)
        return epx_fail((epx_status_t)failed, "%s", group->failed_text);
    epx_status_t late = group->transport != NULL ? epx_late_error(group->transport) : EPX_OK;
    if (late != EPX_OK)
        return late;
    int32_t culprit = -1,
            by = group->fabric != NULL ? group->fabric->ops->aborted(group->fabric, &culprit) : -1;
    if (by == group->rank)
        return epx_fail(EPX_ERR_ABORTED, "%s: rank %d aborted the group", group->name, by);
    if (by >= 0 && culprit >= 0 && culprit != by)
        return epx_fail(EPX_ERR_PEER, "%s: rank %d ended the group, blaming rank %d", group->name, by,
                        culprit);
    if (by >= 0)
        return epx_fail(EPX_ERR_PEER, "%s: rank %d ended the group", group->name, by);
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

void epx_group_abort(epx_group_h group, const char *reason)
{
    if (group == NULL || group->fabric == NULL)
        return;
    epx_log(EPX_LOG_WARN, "group", "%s: rank %d aborts: %s", group->name, group->rank,
            reason != NULL ? reason : "");
    group->fabric->ops->abort(group->fabric, -1);
}

epx_status_t epx_group_note(epx_group_t *group, epx_status_t status)
{
    int ends = status == EPX_ERR_TIMEOUT || status == EPX_ERR_FABRIC || status == EPX_ERR_CORRUPT ||
               status == EPX_ERR_ABORTED || status == EPX_ERR_FATAL;
    /* A peer's failed route leaves the group whole; a peer that ended it does not. */
    if (status == EPX_ERR_PEER && group->fabric->ops->aborted(group->fabric, NULL) >= 0)
        ends = 1;
    if (!ends || atomic_load_explicit(&group->failed, memory_order_relaxed) != 0)
        return status;
    snprintf(group->failed_text, sizeof(group->failed_text), "%.500s", epx_last_error());
    atomic_store_explicit(&group->failed, (int)status, memory_order_release);
    epx_recorder_error(group->recorder, status, group->failed_text);
    epx_log(EPX_LOG_ERROR, "group", "%s", group->failed_text);
    if (status != EPX_ERR_PEER)
        group->fabric->ops->abort(group->fabric, -1);
    return status;
}
