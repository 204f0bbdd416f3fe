/*
 * The skew and order of recorded ranks, played again. SPDX-License-Identifier: Apache-2.0
 *
 * From the records come ranks, domains, transport, how many waves, which steps have a backward pass, and for
 * every route how much later than the first rank each rank came to it. Routing itself is not in a record
 * (only the calls are): ids are drawn by the seed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/numbers.h"
#include "tools/common/program.h"
#include "tools/repro/records.h"

enum { STEPS_MAX = 512 };

static struct {
    int32_t ranks, steps;
    int64_t late_ns[REPRO_RANKS_MAX][STEPS_MAX]; /* behind the first rank, of each route */
    char backward[STEPS_MAX];
} recorded;

/* When each route of the first lane was called, by its number; times of one host. */
static void read_routes(const epx_record_head_t *head, int32_t rank, uint64_t first, int64_t *at)
{
    uint64_t newest = head->operations, last_route = 0;
    for (uint64_t n = records_oldest(head); n <= newest; n++) {
        epx_record_operation_t op;
        if (!epx_record_operation(head, n, &op))
            continue;
        if (op.kind == EPX_RECORD_ROUTE && op.sequence >= first && op.sequence - first < STEPS_MAX) {
            at[op.sequence - first] = op.enqueued_ns;
            last_route = op.sequence;
        }
        if (op.kind == EPX_RECORD_COMBINE_BACKWARD && last_route >= first && last_route - first < STEPS_MAX)
            recorded.backward[last_route - first] = 1;
    }
    (void)rank;
}

/* The first route that all ranks still have, and how many follow. */
static void find_routes(const records_t *records, uint64_t *first_p, uint64_t *last_p)
{
    *first_p = 1;
    *last_p = UINT64_MAX;
    for (int32_t r = 0; r < records->ranks; r++) {
        const epx_record_head_t *head = records_head(records, r);
        uint64_t first = 0, last = 0;
        if (head == NULL)
            continue;
        for (uint64_t n = records_oldest(head); n <= head->operations; n++) {
            epx_record_operation_t op;
            if (!epx_record_operation(head, n, &op) || op.kind != EPX_RECORD_ROUTE)
                continue;
            if (first == 0)
                first = op.sequence;
            last = op.sequence;
        }
        if (first > *first_p)
            *first_p = first;
        if (last < *last_p)
            *last_p = last;
    }
}

static int read_skew(const records_t *records)
{
    uint64_t first, last;
    static int64_t at[REPRO_RANKS_MAX][STEPS_MAX];
    find_routes(records, &first, &last);
    if (last == UINT64_MAX || last < first)
        return 0;
    recorded.ranks = records->ranks;
    recorded.steps = last - first + 1 < STEPS_MAX ? (int32_t)(last - first + 1) : STEPS_MAX;
    for (int32_t r = 0; r < records->ranks; r++)
        if (records_head(records, r) != NULL)
            read_routes(records_head(records, r), r, first, at[r]);
    for (int32_t s = 0; s < recorded.steps; s++) {
        int64_t earliest = INT64_MAX;
        for (int32_t r = 0; r < records->ranks; r++)
            if (at[r][s] != 0 && at[r][s] < earliest)
                earliest = at[r][s];
        for (int32_t r = 0; r < records->ranks; r++)
            recorded.late_ns[r][s] = at[r][s] != 0 ? at[r][s] - earliest : 0;
    }
    return 1;
}

/* Late as recorded, at most a second: what hung there must not hang here by itself. */
static way_t act_replay(actor_t *actor)
{
    int64_t step = actor->step % recorded.steps, late_ms = recorded.late_ns[actor->rank][step] / 1000000;
    actor_sleep(actor, late_ms < 1000 ? late_ms : 1000);
    if (!recorded.backward[step])
        return WAY_STEP;
    return actor_step(actor) && actor_backward(actor) ? WAY_DONE : WAY_LEAVE;
}

/* What the records say of the job. */
static void take_settings(const records_t *records, settings_t *settings)
{
    static char transport[24];
    settings->ranks = records->ranks;
    for (int32_t r = 0; r < records->ranks; r++) {
        const epx_record_head_t *head = records_head(records, r);
        for (uint32_t i = 0; head != NULL && i < head->groups_max; i++) {
            const epx_record_group_row_t *row = epx_record_group_row(head, i);
            if (row == NULL || row->is_comm || row->ranks < 1)
                continue;
            snprintf(transport, sizeof(transport), "%.23s", row->transport);
            settings->transport = transport;
            settings->domains = records->ranks / row->ranks > 0 ? records->ranks / row->ranks : 1;
        }
    }
}

int repro_replay(const char *folder, const settings_t *given)
{
    static scenario_t replay = {
        .name = "replay", .fault = "as recorded", .expected = "any", .act = act_replay};
    static char spec[400];
    settings_t settings = *given;
    records_t records;
    play_t play;
    outcome_t outcome;
    int32_t lines;
    int code = records_open(folder, &records);
    if (code != EPX_EXIT_OK)
        return code;
    if (records.ranks > REPRO_RANKS_MAX || !read_skew(&records))
        return epx_tool_fail(EPX_EXIT_NO_VERDICT,
                             "%s: no route that all ranks have recorded (%d ranks, at most %d)", folder,
                             records.ranks, REPRO_RANKS_MAX);
    take_settings(&records, &settings);
    if (settings.ranks % settings.domains != 0 || settings.ranks / settings.domains < 2)
        return epx_tool_fail(EPX_EXIT_NO_VERDICT, "%s: %d ranks in groups of %d cannot be played", folder,
                             settings.ranks, settings.ranks / settings.domains);
    if (settings.perturb) {
        snprintf(spec, sizeof(spec),
                 "seed=%llu; at=enqueue do=spin:20 chance=0.02; at=signal.pre do=delay:10 chance=0.02; "
                 "at=wait.pre do=delay:5 chance=0.02; at=end do=delay:10 chance=0.02",
                 (unsigned long long)settings.seed);
        replay.spec = spec;
    }
    replay.steps = recorded.steps;
    code = play_apart(&replay, &settings, 1, &outcome, &lines, &play);
    if (code != EPX_EXIT_OK)
        return code;
    char perturbed[48] = "";
    if (settings.perturb)
        snprintf(perturbed, sizeof(perturbed), ", perturbed by seed %llu", (unsigned long long)settings.seed);
    printf("%s: %d ranks, %d domains, %s, %d steps as recorded%s: %s", folder, play.ranks, play.domains,
           settings.transport, recorded.steps, perturbed,
           outcome.verdict[0] != '\0' ? outcome.verdict : "no hang");
    if (outcome.culprit >= 0)
        printf(" rank %d, %s", outcome.culprit, outcome.op);
    printf(", trace %016llx\n", (unsigned long long)outcome.trace);
    if (outcome.text[0] != '\0')
        printf("         %s\n", outcome.text);
    if (outcome.wrong)
        return EPX_EXIT_FAILED;
    return EPX_EXIT_OK;
}
