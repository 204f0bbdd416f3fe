/*
 * Links that fail: a made-up sysfs tree for each rank, read by the library's own monitor.
 * SPDX-License-Identifier: Apache-2.0
 *
 * What an act does is to change files, as a driver would. What becomes of it in the flight record is the work
 * of epx_health_follow, which polls them on its thread.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "src/record/classify.h"
#include "src/record/recorder.h"
#include "tools/common/numbers.h"
#include "tools/common/program.h"
#include "tools/repro/repro.h"

enum { POLL_MS = 10, LATER_MS = 60 };

/* Counters of a port of ours, as mlx5 has them. */
static const char *const counters[] = {"link_downed", "link_error_recovery", "port_rcv_errors",
                                       "symbol_error"};

/* A driver's file is whole at every moment. */
static int put(const actor_t *actor, const char *file, const char *text)
{
    char path[400], before[420];
    snprintf(path, sizeof(path), "%s/sys%d/class/infiniband/mlx5_%d/ports/1/%s", actor->play->folder,
             actor->rank, actor->rank, file);
    snprintf(before, sizeof(before), "%s.new", path);
    FILE *to = fopen(before, "w");
    if (to == NULL)
        return 0;
    fprintf(to, "%s\n", text);
    return fclose(to) == 0 && rename(before, path) == 0;
}

static void put_number(const actor_t *actor, const char *counter, int64_t value)
{
    char file[64], text[32];
    snprintf(file, sizeof(file), "counters/%s", counter);
    snprintf(text, sizeof(text), "%lld", (long long)value);
    if (!put(actor, file, text))
        epx_tool_note("rank %d: counter %s could not be written", actor->rank, counter);
}

static int make_folders(const actor_t *actor)
{
    char path[400];
    size_t used = (size_t)snprintf(path, sizeof(path), "%s/sys%d", actor->play->folder, actor->rank);
    char device[32];
    snprintf(device, sizeof(device), "/mlx5_%d", actor->rank);
    const char *const parts[] = {"", "/class", "/infiniband", device, "/ports", "/1", "/counters"};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        used += (size_t)snprintf(path + used, sizeof(path) - used, "%s", parts[i]);
        if (mkdir(path, 0700) != 0 && errno != EEXIST)
            return 0;
    }
    return 1;
}

/* The monitor has looked at everything that was written before this call; where it does not, the play is
 * none. */
static void until_seen(actor_t *actor)
{
    int64_t looks = epx_health_follow_looks(actor->links), end_ns = epx_now_ns() + 5000000000;
    while (epx_health_follow_looks(actor->links) < looks + 2 && epx_now_ns() < end_ns &&
           !atomic_load(&actor->play->stop))
        actor_sleep(actor, 2);
    if (epx_health_follow_looks(actor->links) >= looks + 2 || actor->failed)
        return;
    snprintf(actor->error, sizeof(actor->error), "the monitor of rank %d's links has not looked for 5 s",
             actor->rank);
    actor->failed = 1;
}

int links_open(actor_t *actor)
{
    char sysfs[300];
    epx_health_follow_config_t config = EPX_HEALTH_FOLLOW_CONFIG_INIT;
    int good = make_folders(actor) && put(actor, "state", "4: ACTIVE");
    for (size_t i = 0; good && i < sizeof(counters) / sizeof(counters[0]); i++)
        put_number(actor, counters[i], 1);
    if (!good) {
        snprintf(actor->error, sizeof(actor->error), "a made-up sysfs tree cannot be written below %s",
                 actor->play->folder);
        actor->failed = 1;
        return 0;
    }
    snprintf(sysfs, sizeof(sysfs), "%s/sys%d", actor->play->folder, actor->rank);
    config.health.sysfs = sysfs;
    config.health.nvml = "";
    config.recorder = actor->recorder;
    config.interval_ms = POLL_MS;
    if (!actor_check(actor, epx_health_follow(&config, &actor->links)))
        return 0;
    until_seen(actor);
    return !actor->failed;
}

static int is_now(const actor_t *actor) { return actor->play->faulty && actor->step == REPRO_FAULT_STEP; }

/* A port goes down and comes back; what was on its way is lost: EPX_FAULT loses the signals of this step. */
way_t act_link_flap(actor_t *actor)
{
    if (!is_now(actor) || !actor_is_culprit(actor))
        return WAY_STEP;
    int is_put = put(actor, "state", "1: DOWN");
    put_number(actor, "link_downed", 2);
    until_seen(actor);
    is_put = put(actor, "state", "4: ACTIVE") && is_put;
    until_seen(actor);
    if (!is_put) {
        snprintf(actor->error, sizeof(actor->error), "rank %d: the made-up port's state could not be written",
                 actor->rank);
        actor->failed = 1;
    }
    actor_acts(actor);
    return WAY_STEP;
}

/* One origin; the others' ports count errors behind it, in any order. */
way_t act_link_cascade(actor_t *actor)
{
    if (!is_now(actor))
        return WAY_STEP;
    epx_random_t random = epx_random_at(actor->play->settings->seed, 77 + (uint64_t)actor->rank);
    if (actor_is_culprit(actor)) {
        put_number(actor, "port_rcv_errors", 4000);
        until_seen(actor);
        actor_acts(actor);
        return WAY_STEP;
    }
    /* Ranks that are processes do not see each other's act: they give it half of a budget. */
    int apart = strcmp(actor->play->settings->fabric, "local") != 0;
    int64_t end_ns = epx_now_ns() + (apart ? actor->play->settings->hang_ms * 500000 : 5000000000);
    while (atomic_load(&actor->play->acted_ns) == 0 && epx_now_ns() < end_ns)
        actor_sleep(actor, 2);
    actor_sleep(actor, (int64_t)epx_random_below(&random, LATER_MS));
    put_number(actor, "port_rcv_errors", 2000 + actor->rank);
    until_seen(actor);
    return WAY_STEP;
}

/* Recoveries are counted up while all goes well. */
way_t act_link_recovering(actor_t *actor)
{
    if (actor->play->faulty && actor_is_culprit(actor) && actor->step > 2)
        put_number(actor, "link_error_recovery", actor->step);
    return WAY_STEP;
}

int32_t links_recoveries(const actor_t *actor)
{
    size_t bytes;
    int32_t count = 0;
    const epx_record_head_t *head = actor->links != NULL ? epx_recorder_bytes(actor->recorder, &bytes) : NULL;
    uint64_t newest = head != NULL ? __atomic_load_n(&head->links, __ATOMIC_ACQUIRE) : 0;
    for (uint64_t n = newest; n > 0 && n + head->links_max > newest; n--) {
        epx_record_link_row_t row;
        count += epx_record_link_row(head, n, &row) && row.what == EPX_EVIDENCE_LINK_RECOVERING;
    }
    return count;
}

/* The monitor has told of the recoveries, and nobody has called it more than a warning. */
int links_were_recovering(const play_t *play, const outcome_t *outcome)
{
    (void)play;
    return outcome->recoveries > 0;
}
