/* Ranks that meet, and the call that begins every pass. SPDX-License-Identifier: Apache-2.0 */
#include <sched.h>
#include <unistd.h>

#include "bench/perf/player.h"
#include "bench/perf/processes.h"
#include "tools/common/program.h"

/* Sleeping threads wake up one after the other, so those that have a core of their own meet once more by
 * spinning. */
int epx_perf_meet(epx_perf_player_t *player)
{
    epx_perf_case_t *shared = player->shared;
    if (epx_perf_are_processes(shared))
        return epx_perf_meet_processes(player);
    int rc = epx_rank_check(player->self, epx_comm_barrier(player->self->comm), "barrier");
    if (rc != EPX_EXIT_OK || sysconf(_SC_NPROCESSORS_ONLN) < player->self->ranks)
        return rc;
    long long all = ++player->meetings * player->self->ranks;
    atomic_fetch_add(&shared->arrived, 1);
    for (int64_t begun = epx_now_ns(); atomic_load(&shared->arrived) < all;)
        if (epx_now_ns() - begun > 1000000) /* somebody lost its core: go on, the time will tell */
            sched_yield();
    return EPX_EXIT_OK;
}

int epx_perf_route(epx_perf_player_t *player)
{
    epx_routing_t routing = EPX_ROUTING_INIT;
    routing.tokens = player->mine->tokens;
    routing.ids = player->mine->ids_twin.device;
    routing.id_type = EPX_INT32;
    routing.weights = player->mine->weights_twin.device;
    return epx_rank_check(player->self, epx_plan_route(player->plan, &routing, player->side.stream), "route");
}
