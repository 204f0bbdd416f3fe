/* Recovering groups. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "base/fail.h"
#include "core/build.h"
#include "core/meet.h"
#include "core/memory.h"
#include "core/plan.h"
#include "core/stats.h"

/* The configuration to go on with: the new one checked, or the old one fitted to the ranks that are left. */
static epx_status_t next_config(epx_group_t *group, const epx_group_config_t *config, int32_t ranks,
                                epx_group_config_t *next_p)
{
    /* Checked first: the copy below must not read behind a shorter struct. */
    epx_group_config_t base = group->config;
    if (config != NULL) {
        epx_status_t status = epx_shape_check(config, group->ranks, &base);
        if (status != EPX_OK)
            return status;
        if (config->virtual_ranks == 0)
            base.virtual_ranks = 0;
    }
    base.ranks = 0;
    base.allocator = group->config.allocator;
    if (ranks != group->ranks) {
        base.owner = NULL;
        if (base.virtual_ranks % ranks != 0 || config == NULL)
            base.virtual_ranks = 0;
    }
    return epx_shape_check(&base, ranks, next_p);
}

/* A new configuration that cannot be is refused before anything is touched: nothing has changed, call again.
 */
static epx_status_t check_next(const epx_group_t *group, const epx_group_config_t *config)
{
    epx_group_config_t checked;
    epx_memory_t memory = EPX_MEMORY_INIT;
    if (config == NULL)
        return EPX_OK;
    epx_status_t status = epx_shape_check(config, group->ranks, &checked);
    checked.ranks = group->ranks;
    return status == EPX_OK ? epx_group_memory(&checked, &memory) : status;
}

epx_status_t epx_group_recover(epx_group_h group, const epx_group_config_t *config)
{
    if (group == NULL)
        return epx_fail(EPX_ERR_ARG, "epx_group_recover: group is NULL");
    if (group->fabric == NULL)
        return epx_fail(EPX_ERR_ABORTED, "%s: an earlier recovery failed; close the group", group->name);
    epx_status_t status = check_next(group, config);
    if (status != EPX_OK)
        return status;
    epx_bootstrap_t bootstrap;
    uint8_t *alive = malloc((size_t)group->ranks);
    if (alive == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "%s: no memory to recover", group->name);
    epx_fabric_t *old_fabric = group->fabric;
    epx_meet_survivors(group);
    status = old_fabric->ops->survivors(old_fabric, group->selection.shape.timeout_ms, alive, &bootstrap);
    epx_meet_end(group, status);
    if (status == EPX_OK)
        epx_meet_again(group, alive, &bootstrap);
    free(alive);
    if (status != EPX_OK)
        return status;
    /* The survivors meet over the old fabric until the new one stands; its memory goes when the last of them
     * closes it. */
    epx_group_config_t next;
    epx_group_detach_plans(group);
    epx_paths_t paths = epx_group_paths(group, group->sent_bytes_closed_plans);
    group->stored_bytes = paths.stored_bytes;
    group->message_bytes = paths.message_bytes;
    group->sent_bytes_before = group->sent_bytes_closed_plans;
    status = next_config(group, config, bootstrap.size, &next);
    /* The watchdog may be ending the waits of what goes now: it is done with that, or does not begin. */
    epx_recorder_forget(group->recorder, group->record_ending);
    group->record_ending = 0;
    epx_block_t old_tables = group->tables; /* the old owner table may be the new one's source */
    group->tables = (epx_block_t){0};
    group->fabric = NULL;
    epx_group_tear_down(group);
    /* Before the watchdog knows the new group: what it may still want to end is the old one. */
    epx_record_verdict_clear(group->recorder);
    if (status == EPX_OK)
        epx_group_keep_config(group, &next);
    group->rank = bootstrap.rank;
    group->ranks = bootstrap.size;
    group->generation++;
    status = epx_group_build(group, &bootstrap, status);
    epx_block_drop(group, &old_tables);
    old_fabric->ops->close(&old_fabric);
    if (status != EPX_OK) {
        atomic_store(&group->failed, EPX_ERR_ABORTED);
        snprintf(group->failed_text, sizeof(group->failed_text), "%.480s", epx_last_error());
    }
    return status;
}
