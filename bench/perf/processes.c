/* Ranks that are processes. SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf/processes.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/common/numbers.h"
#include "tools/common/program.h"

/* From the last rank's arrival to the common start: longer than the message about it takes. */
#define START_NS 200000

int epx_perf_are_processes(const epx_perf_case_t *shared) { return shared->settings->processes > 1; }

static int all_gather(epx_perf_player_t *player, const void *send, void *receive, size_t bytes)
{
    return epx_rank_check(player->self, epx_comm_allgather(player->self->comm, send, receive, bytes),
                          "all-gather");
}

/* ---- hosts and clocks --------------------------------------------------------------------------------------- */

/* Equal for processes of one running system and host name. */
static uint64_t host_id(void)
{
    char text[320] = "";
    uint64_t id = 0;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file != NULL) {
        if (fgets(text, 64, file) == NULL)
            text[0] = '\0';
        fclose(file);
    }
    size_t length = strlen(text);
    if (gethostname(text + length, sizeof text - length - 1) != 0)
        text[length] = '\0';
    for (const char *at = text; *at != '\0'; at++)
        id = epx_mix64(id ^ (uint64_t)(unsigned char)*at);
    return id;
}

int epx_perf_meet_hosts(epx_perf_player_t *player)
{
    epx_rank_t *self = player->self;
    player->local_rank = self->rank;
    if (!epx_perf_are_processes(player->shared))
        return EPX_EXIT_OK;
    uint64_t mine = host_id(), *all = epx_tool_alloc((size_t)self->ranks, sizeof *all);
    int rc = all_gather(player, &mine, all, sizeof mine);
    player->local_rank = 0;
    for (int32_t r = 0; r < self->ranks && rc == EPX_EXIT_OK; r++) {
        player->shared->one_clock &= all[r] == mine;
        player->local_rank += r < self->rank && all[r] == mine;
    }
    free(all);
    return rc;
}

int epx_perf_meet_processes(epx_perf_player_t *player)
{
    epx_rank_t *self = player->self;
    int64_t now = epx_now_ns(), start = 0, *all = epx_tool_alloc((size_t)self->ranks, sizeof *all);
    int rc = all_gather(player, &now, all, sizeof now);
    for (int32_t r = 0; r < self->ranks; r++)
        start = all[r] > start ? all[r] : start;
    free(all);
    if (rc == EPX_EXIT_OK && player->shared->one_clock)
        while (epx_now_ns() < start + START_NS)
            sched_yield();
    return rc;
}

/* ---- what they counted ---------------------------------------------------------------------------------------- */

int epx_perf_sum_kept(epx_perf_player_t *player)
{
    epx_perf_case_t *shared = player->shared;
    int64_t all = 0, at = 0, columns = shared->settings->top_k;
    if (!epx_perf_are_processes(shared))
        return EPX_EXIT_OK;
    for (int32_t r = 0; r < player->self->ranks; r++)
        all += shared->part[r].tokens * columns;
    int64_t *sum = epx_tool_alloc((size_t)all, sizeof *sum);
    for (int32_t r = 0; r < player->self->ranks; r++)
        for (int64_t a = 0; a < shared->part[r].tokens * columns; a++)
            sum[at++] = atomic_load(&shared->part[r].kept[a]);
    int rc = epx_rank_check(player->self,
                            epx_comm_allreduce(player->self->comm, sum, all, EPX_NUMBER_INT64, EPX_SUM),
                            "all-reduce");
    at = 0;
    for (int32_t r = 0; r < player->self->ranks && rc == EPX_EXIT_OK; r++) {
        for (int64_t a = 0; a < shared->part[r].tokens * columns; a++, at++) {
            atomic_store(&shared->part[r].kept[a], (unsigned char)sum[at]);
            if (sum[at] > 1 && rc == EPX_EXIT_OK)
                rc = epx_rank_fail(player->self, EPX_EXIT_FAILED,
                                   "rank %d, token %lld, k %lld arrived at several ranks", r,
                                   (long long)(a / columns), (long long)(a % columns));
        }
    }
    free(sum);
    return rc;
}

typedef struct counted {
    epx_plan_stats_t stats;
    int64_t seen, seen_remote;
    int64_t remote_bytes[EPX_PERF_OPS];
} counted_t;

int epx_perf_gather_counts(epx_perf_player_t *player)
{
    epx_perf_case_t *shared = player->shared;
    counted_t mine = {
        .stats = player->mine->stats, .seen = player->mine->seen, .seen_remote = player->mine->seen_remote};
    if (!epx_perf_are_processes(shared))
        return EPX_EXIT_OK;
    memcpy(mine.remote_bytes, player->mine->remote_bytes, sizeof mine.remote_bytes);
    counted_t *all = epx_tool_alloc((size_t)player->self->ranks, sizeof *all);
    int rc = all_gather(player, &mine, all, sizeof mine);
    for (int32_t r = 0; r < player->self->ranks && rc == EPX_EXIT_OK; r++) {
        epx_perf_part_t *part = &shared->part[r];
        part->stats = all[r].stats;
        part->seen = all[r].seen;
        part->seen_remote = all[r].seen_remote;
        memcpy(part->remote_bytes, all[r].remote_bytes, sizeof part->remote_bytes);
    }
    free(all);
    return rc;
}

/* ---- how long it took ----------------------------------------------------------------------------------------- */

/* One pass at a time, since what a message may hold is bounded. [waves] numbers of each operation. */
static int gather_pass(epx_perf_player_t *player, int64_t iteration)
{
    epx_perf_case_t *shared = player->shared;
    size_t count = (size_t)EPX_PERF_OPS * (size_t)shared->waves, at = (size_t)iteration * count;
    int64_t *mine = epx_tool_alloc(3 * count, sizeof *mine),
            *all = epx_tool_alloc(3 * count * (size_t)player->self->ranks, sizeof *all);
    memcpy(mine, player->mine->begun + at, count * sizeof *mine);
    memcpy(mine + count, player->mine->ended + at, count * sizeof *mine);
    memcpy(mine + 2 * count, player->mine->host_ns + at, count * sizeof *mine);
    int rc = all_gather(player, mine, all, 3 * count * sizeof *mine);
    for (int32_t r = 0; r < player->self->ranks && rc == EPX_EXIT_OK; r++) {
        const int64_t *from = all + 3 * count * (size_t)r;
        memcpy(shared->part[r].begun + at, from, count * sizeof *mine);
        memcpy(shared->part[r].ended + at, from + count, count * sizeof *mine);
        memcpy(shared->part[r].host_ns + at, from + 2 * count, count * sizeof *mine);
    }
    free(mine);
    free(all);
    return rc;
}

int epx_perf_gather_results(epx_perf_player_t *player)
{
    epx_perf_case_t *shared = player->shared;
    if (!epx_perf_are_processes(shared))
        return EPX_EXIT_OK;
    size_t stamps = (size_t)shared->settings->iterations * (size_t)EPX_PERF_OPS * (size_t)shared->waves;
    for (int32_t r = 0; r < player->self->ranks; r++) {
        epx_perf_part_t *part = &shared->part[r];
        if (r == player->self->rank)
            continue;
        part->begun = epx_tool_alloc(stamps, sizeof *part->begun);
        part->ended = epx_tool_alloc(stamps, sizeof *part->ended);
        part->host_ns = epx_tool_alloc(stamps, sizeof *part->host_ns);
    }
    int rc = epx_perf_gather_counts(player);
    for (int64_t i = 0; i < shared->settings->iterations && rc == EPX_EXIT_OK; i++)
        rc = gather_pass(player, i);
    return rc;
}
