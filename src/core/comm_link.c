/* Comms of processes on the job's link. SPDX-License-Identifier: Apache-2.0 */
#include "core/comm_link.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/comm_make.h"
#include "core/config.h"

/* One link for all comms of this process: the first world comm opens it, the last comm closes it. */
static struct {
    pthread_mutex_t mutex;
    epx_link_t *link;
    int32_t references;
    uint64_t worlds; /* how many world comms there were; equal on all ranks */
} job = {.mutex = PTHREAD_MUTEX_INITIALIZER};

uint64_t epx_comm_mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2))) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 29);
}

/* The same limit as for every other wait. */
static int64_t default_timeout_ms(void)
{
    epx_settings_t settings;
    return epx_config_resolve(NULL, NULL, &settings) == EPX_OK ? settings.timeout_ms : COMM_TIMEOUT_MS;
}

struct epx_comm *epx_comm_of_link(epx_link_t *link, uint64_t id, const int32_t *world, int32_t size)
{
    epx_bootstrap_t nothing = {.size = size};
    struct epx_comm *comm = epx_comm_make(NULL, &nothing);
    if (comm == NULL)
        return NULL;
    comm->world = malloc((size_t)size * sizeof(int32_t));
    comm->circle = comm->world != NULL ? epx_circle_create(link, id, world, size) : NULL;
    if (comm->circle == NULL) {
        free(comm->world);
        free(comm->pieces);
        free(comm);
        return NULL;
    }
    memcpy(comm->world, world, (size_t)size * sizeof(int32_t));
    while (world[comm->rank] != epx_link_rank(link))
        comm->rank++;
    comm->link = link;
    comm->id = id;
    comm->timeout_ms = default_timeout_ms();
    comm->reach = epx_reach_of_cards(epx_link_cards(link), world, size);
    pthread_mutex_lock(&job.mutex);
    job.references++;
    pthread_mutex_unlock(&job.mutex);
    return comm;
}

void epx_comm_leave_link(struct epx_comm *comm)
{
    epx_link_t *last = NULL;
    if (comm->link == NULL)
        return;
    epx_circle_destroy(&comm->circle);
    free(comm->world);
    pthread_mutex_lock(&job.mutex);
    if (--job.references == 0) {
        last = job.link;
        job.link = NULL;
    }
    pthread_mutex_unlock(&job.mutex);
    epx_link_close(&last);
}

epx_status_t epx_comm_take_link(const epx_launch_t *launch, uint64_t *world_p, epx_link_t **link_p)
{
    epx_status_t status = EPX_OK;
    pthread_mutex_lock(&job.mutex);
    if (job.link == NULL)
        status = epx_link_open(launch, default_timeout_ms(), &job.link);
    *link_p = job.link;
    *world_p = ++job.worlds;
    pthread_mutex_unlock(&job.mutex);
    return status;
}

epx_reach_t epx_comm_expected_reach(void)
{
    epx_launch_t launch;
    pthread_mutex_lock(&job.mutex);
    epx_reach_t reach = EPX_REACH_PROCESS;
    int is_known = job.link != NULL;
    if (is_known)
        reach = epx_reach_of_cards(epx_link_cards(job.link), NULL, epx_link_size(job.link));
    pthread_mutex_unlock(&job.mutex);
    if (is_known)
        return reach;
    if (epx_launch_from_env(epx_config_variable, &launch) != EPX_OK || launch.size == 1)
        return EPX_REACH_PROCESS;
    return launch.local_size == launch.size || launch.local_size == 0 ? EPX_REACH_HOST : EPX_REACH_NETWORK;
}
