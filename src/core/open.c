/* Opening and closing groups. SPDX-License-Identifier: Apache-2.0 */

#include "base/fail.h"
#include "core/build.h"
#include "core/comm.h"
#include "core/comm_gather.h"
#include "core/meet.h"
#include "core/plan.h"
#include "core/stats.h"

static epx_status_t open_on(epx_comm_h comm, const epx_group_config_t *config, epx_group_h *group_p)
{
    epx_group_config_t checked;
    epx_bootstrap_t bootstrap = epx_comm_bootstrap(comm);
    epx_status_t status = group_p != NULL ? epx_shape_check(config, bootstrap.size, &checked)
                                          : epx_fail(EPX_ERR_ARG, "epx_group_open: group_p is NULL");
    if (status == EPX_OK && checked.ranks != 0 && checked.ranks != bootstrap.size)
        status = epx_fail(EPX_ERR_ARG, "epx_group_open: ranks is %d, the comm has %d; leave it 0",
                          checked.ranks, bootstrap.size);
    if (status != EPX_OK)
        return epx_group_refuse(&bootstrap, status);
    epx_group_t *group = epx_group_new(&checked);
    if (group == NULL)
        return epx_group_refuse(&bootstrap,
                                epx_fail(EPX_ERR_NO_MEMORY, "rank %d: no memory for the group's %zu bytes",
                                         bootstrap.rank, sizeof(*group)));
    group->rank = bootstrap.rank;
    group->ranks = bootstrap.size;
    group->reach = epx_comm_reach(comm);
    group->generation = 1;
    group->recorder = checked.recorder != NULL ? checked.recorder : epx_comm_recorder(comm);
    epx_meet_on_comm(group, comm);
    status = epx_group_build(group, &bootstrap, EPX_OK);
    if (status != EPX_OK) {
        epx_group_free(group);
        return status;
    }
    *group_p = group;
    return EPX_OK;
}

epx_status_t epx_group_open(epx_comm_h comm, const epx_group_config_t *config, epx_group_h *group_p)
{
    if (comm == NULL)
        return epx_fail(EPX_ERR_ARG,
                        "epx_group_open: comm is NULL; make one with epx_comm_world or epx_comm_threads");
    epx_comm_opens(comm, 1);
    epx_status_t status = open_on(comm, config, group_p);
    epx_comm_opens(comm, 0);
    return status;
}

void epx_group_close(epx_group_h *group_p)
{
    if (group_p == NULL || *group_p == NULL)
        return;
    epx_group_t *group = *group_p;
    *group_p = NULL;
    epx_group_detach_plans(group);
    epx_stats_close(group);
    epx_group_tear_down(group);
    epx_group_free(group);
}
