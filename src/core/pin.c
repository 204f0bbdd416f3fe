/* Ranks on their cores. SPDX-License-Identifier: Apache-2.0 */
#include <epx/info.h>
#include <epx/topology.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/network.h"
#include "core/config.h"
#include "topology/machine.h"

/* The ranks of a process share one look at the machine and one plan. Never freed: threads may still start. */
static struct {
    pthread_mutex_t lock;
    int32_t looked;
    epx_status_t status; /* of looking */
    char why[EPX_PLACE_NOTE];
    struct epx_topology machine;
    int32_t ranks, with_gpus; /* the plan that is kept */
    epx_place_t *places;
    epx_processors_t *sets;
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Equal for ranks of one host, containers on it included; as good as surely different for others. */
static uint64_t host_mark(void)
{
    char text[256] = "";
    uint64_t mark = UINT64_C(0xcbf29ce484222325);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file == NULL || fgets(text, sizeof(text), file) == NULL)
        gethostname(text, sizeof(text) - 1);
    if (file != NULL)
        fclose(file);
    for (const char *c = text; *c != '\0'; c++)
        mark = (mark ^ (uint8_t)*c) * UINT64_C(0x100000001b3);
    return mark;
}

/* This rank's number among the ranks of its host, and how many there are. */
static epx_status_t find_neighbours(epx_comm_h comm, epx_place_t *place)
{
    int32_t me = epx_comm_rank(comm), size = epx_comm_size(comm);
    uint64_t mine = host_mark();
    uint64_t *all = malloc((size_t)(size > 0 ? size : 1) * sizeof(*all));
    if (all == NULL) /* the others learn it by their wait */
        return epx_fail(EPX_ERR_NO_MEMORY, "epx_pin_rank: no memory for %d ranks", size);
    epx_status_t status = epx_comm_allgather(comm, &mine, all, sizeof(mine));
    for (int32_t r = 0; status == EPX_OK && r < size; r++) {
        place->rank += all[r] == mine && r < me;
        place->ranks += all[r] == mine;
    }
    free(all);
    return status;
}

static void note_cuda(void *context, const epx_candidate_t *candidate)
{
    if (candidate->chosen)
        *(int32_t *)context = strcmp(candidate->name, "cuda") == 0;
}

/* Holding the lock: the machine, and a plan for this many ranks. */
static epx_status_t plan_for(int32_t ranks, int32_t with_gpus)
{
    if (!shared.looked) {
        shared.looked = 1;
        shared.status = epx_topology_read(NULL, &shared.machine);
        if (shared.status != EPX_OK)
            snprintf(shared.why, sizeof(shared.why), "%s", epx_last_error());
        else if (!shared.machine.is_here) {
            shared.status = EPX_ERR_UNSUPPORTED;
            snprintf(shared.why, sizeof(shared.why), "hwloc was told to describe another machine");
        }
    }
    if (shared.status != EPX_OK || (shared.ranks == ranks && shared.with_gpus == with_gpus))
        return shared.status;
    free(shared.places);
    free(shared.sets);
    shared.ranks = 0;
    shared.places = calloc((size_t)ranks, sizeof(*shared.places));
    shared.sets = calloc((size_t)ranks, sizeof(*shared.sets));
    if (shared.places == NULL || shared.sets == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "epx_pin_rank: no memory for the plan of %d ranks", ranks);
    epx_status_t status = epx_topology_deal(&shared.machine, ranks, with_gpus, shared.places, shared.sets);
    if (status == EPX_OK) {
        shared.ranks = ranks;
        shared.with_gpus = with_gpus;
    }
    return status;
}

/* Completes the place and binds this thread. Only lack of memory is an error. */
static epx_status_t settle(int32_t with_gpus, epx_place_t *place)
{
    epx_processors_t set = {{0}};
    int32_t rank = place->rank, ranks = place->ranks;
    pthread_mutex_lock(&shared.lock);
    epx_status_t status = plan_for(ranks, with_gpus);
    int32_t processors = shared.machine.processors;
    if (status == EPX_OK) {
        *place = shared.places[rank];
        set = shared.sets[rank];
        const epx_topology_item_t *rail = epx_topology_rail(&shared.machine, place);
        if (rail != NULL)
            epx_network_prefer(rail->name, rail->netdev);
    } else if (status != EPX_ERR_NO_MEMORY) {
        snprintf(place->note, sizeof(place->note), "not bound: %.*s", EPX_PLACE_NOTE - 16, shared.why);
    }
    pthread_mutex_unlock(&shared.lock);
    if (status != EPX_OK)
        return status == EPX_ERR_NO_MEMORY ? status : EPX_OK;
    place->pinned = epx_topology_bind(&set, processors, place->note, sizeof(place->note));
    return EPX_OK;
}

epx_status_t epx_pin_rank(epx_comm_h comm, epx_place_t *place_p)
{
    epx_place_t place = {.node = -1, .gpu = -1, .nic_near = EPX_NEAR_MACHINE};
    int32_t wanted = 1, with_gpus = 0;
    epx_status_t status = epx_config_pin(&wanted);
    if (status != EPX_OK)
        return status;
    status = find_neighbours(comm, &place);
    if (status != EPX_OK)
        return status;
    if (wanted) {
        epx_device_list(NULL, note_cuda, &with_gpus);
        status = settle(with_gpus, &place);
        if (status != EPX_OK)
            return status;
    } else {
        snprintf(place.note, sizeof(place.note), "not bound: EPX_PIN=off");
    }
    epx_log(EPX_LOG_INFO, "topology", "rank %d of %d on this host: cores %s, GPU %s, NIC %s (%s); %s",
            place.rank, place.ranks, place.processors[0] ? place.processors : "any",
            place.gpu >= 0 ? place.gpu_address : "none", place.nic[0] ? place.nic : "none",
            epx_near_name(place.nic_near), place.note);
    if (place_p != NULL)
        *place_p = place;
    return EPX_OK;
}
