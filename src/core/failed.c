/* What ends a group, and whether it has ended. SPDX-License-Identifier: Apache-2.0 */
#include "core/failed.h"

#include <stdio.h>

#include "base/fail.h"
#include "transport/common.h"

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
