/* The world comm. SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/fail.h"
#include "core/comm_link.h"
#include "core/comm_make.h"
#include "core/config.h"

epx_status_t epx_comm_world(epx_comm_h *comm_p)
{
    epx_launch_t launch;
    epx_link_t *link;
    uint64_t number;
    if (comm_p == NULL)
        return epx_fail(EPX_ERR_ARG, "epx_comm_world: comm_p is NULL");
    epx_status_t status = epx_launch_from_env(epx_config_variable, &launch);
    if (status != EPX_OK)
        return epx_fail(status, "epx_comm_world: %s", epx_last_error());
    if (launch.size == 1)
        return epx_comm_threads(1, comm_p);
    int32_t *all = malloc((size_t)launch.size * sizeof(int32_t));
    if (all == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "epx_comm_world: no memory for %d ranks", launch.size);
    for (int32_t r = 0; r < launch.size; r++)
        all[r] = r;
    status = epx_comm_take_link(&launch, &number, &link);
    if (status == EPX_OK) {
        *comm_p = epx_comm_of_link(link, epx_comm_mix(0x6570782d776f726cu, number), all, launch.size);
        if (*comm_p == NULL)
            status = epx_fail(EPX_ERR_NO_MEMORY, "epx_comm_world: no memory for %d ranks", launch.size);
        char job_name[EPX_COMM_JOB_BYTES];
        snprintf(job_name, sizeof(job_name), "job-%016" PRIx64 "-%" PRIu64, launch.key, (uint64_t)number);
        if (*comm_p != NULL)
            epx_comm_begin_record(*comm_p, job_name);
    } else {
        epx_fail(status, "epx_comm_world: %s (launched by %s, rank %d of %d)", epx_last_error(),
                 launch.launcher, launch.rank, launch.size);
    }
    free(all);
    return status;
}

epx_status_t epx_comm_launched(int32_t *rank_p, int32_t *size_p)
{
    epx_launch_t launch;
    epx_status_t status = epx_launch_from_env(epx_config_variable, &launch);
    if (status != EPX_OK)
        return epx_fail(status, "epx_comm_launched: %s", epx_last_error());
    if (rank_p != NULL)
        *rank_p = launch.rank;
    if (size_p != NULL)
        *size_p = launch.size;
    return EPX_OK;
}
