/* The world comm, and comms of processes on the job's link. SPDX-License-Identifier: Apache-2.0 */
#include "core/comm_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
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

epx_reach_t epx_reach_of_cards(const epx_link_card_t *card, const int32_t *rank, int32_t size)
{
    for (int32_t i = 1; i < size; i++)
        if (card[rank != NULL ? rank[i] : i].host != card[rank != NULL ? rank[0] : 0].host)
            return EPX_REACH_NETWORK;
    return EPX_REACH_HOST;
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

/* The link, opened by the first who asks. */
static epx_status_t take_link(const epx_launch_t *launch, uint64_t *world_p, epx_link_t **link_p)
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
    status = take_link(&launch, &number, &link);
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

epx_status_t epx_comm_explain(const struct epx_comm *comm, epx_status_t status,
                              const epx_circle_result_t *result)
{
    int32_t peer = result->peer;
    switch (status) {
    case EPX_OK: return EPX_OK;
    case EPX_ERR_TIMEOUT:
        if (peer < 0)
            return epx_fail(EPX_ERR_TIMEOUT,
                            "comm: rank %d waited %" PRId64 " ms in collective %" PRIu64
                            " and rank 0 of the job, which carries it, does not answer",
                            comm->rank, comm->timeout_ms, result->sequence);
        return epx_fail(EPX_ERR_TIMEOUT,
                        "comm: rank %d waited %" PRId64 " ms for rank %d in collective %" PRIu64
                        "; find out why rank %d did not make this call",
                        comm->rank, comm->timeout_ms, peer, result->sequence, peer);
    case EPX_ERR_ABORTED: return epx_fail(status, "comm: rank %d: rank %d ended the comm", comm->rank, peer);
    case EPX_ERR_PEER:
        if (peer >= 0 && epx_circle_aborted(comm->circle) == peer &&
            epx_link_state(comm->link, comm->world[peer]) != EPX_LINK_DEAD) {
            int32_t blamed = epx_circle_abort_blames(comm->circle);
            if (blamed >= 0)
                return epx_fail(
                    status,
                    "comm: rank %d: rank %d ended the comm after it had waited in vain for rank %d of "
                    "the job",
                    comm->rank, peer, blamed);
            return epx_fail(status, "comm: rank %d: rank %d ended the comm", comm->rank, peer);
        }
        if (peer < 0)
            return epx_fail(status,
                            "comm: rank %d: rank 0 of the job, which carries its collectives, is gone",
                            comm->rank);
        return epx_fail(status, "comm: rank %d: rank %d is gone: process %" PRId64 " on %s has ended",
                        comm->rank, peer, epx_link_cards(comm->link)[comm->world[peer]].process,
                        epx_link_cards(comm->link)[comm->world[peer]].name);
    default: return epx_fail(status, "comm: rank %d: %s", comm->rank, epx_last_error());
    }
}

epx_status_t epx_comm_split_link(epx_comm_h comm, int32_t colour, int32_t key, epx_comm_h *part_p)
{
    size_t n = (size_t)comm->size;
    epx_split_card_t mine = {.colour = colour, .key = key};
    epx_split_card_t *cards = malloc(n * (sizeof(*cards) + sizeof(int32_t)));
    if (cards == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "epx_comm_split: no memory for %d ranks", comm->size);
    int32_t *member = (int32_t *)(void *)(cards + n);
    epx_status_t status = epx_comm_allgather(comm, &mine, cards, sizeof(mine));
    if (status != EPX_OK)
        goto free_cards;
    int32_t size = epx_comm_choose_members(cards, comm->size, comm->rank, member);
    /* The cards have been read: their room takes the ranks of the link. */
    int32_t *world = (int32_t *)(void *)cards;
    for (int32_t i = 0; i < size; i++)
        world[i] = comm->world[member[i]];
    uint64_t id = epx_comm_mix(epx_comm_mix(comm->id, ++comm->splits), (uint64_t)(uint32_t)colour);
    struct epx_comm *made = colour >= 0 ? epx_comm_of_link(comm->link, id, world, size) : NULL;
    epx_comm_part_record(comm, colour, member, made);
    if (made == NULL && colour >= 0)
        status = epx_fail(EPX_ERR_NO_MEMORY, "epx_comm_split: no memory for a comm");
    if (status == EPX_OK)
        *part_p = made;
free_cards:
    free(cards);
    return status;
}
