/* Setting up and running one measurement. SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf/case.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/perf/recorded.h"
#include "bench/perf/rows.h"
#include "tools/common/program.h"

/* Sleeping threads wake up one after the other, so those that have a core of their own meet once more by
 * spinning. */
int epx_perf_meet(epx_perf_player_t *player)
{
    epx_perf_case_t *shared = player->shared;
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
    routing.ids = player->mine->ids;
    routing.id_type = EPX_INT32;
    routing.weights = player->mine->weights;
    return epx_rank_check(player->self, epx_plan_route(player->plan, &routing, NULL), "route");
}

/* A rank's choices, recorded or drawn. ids [tokens, K]. */
static void fill_ids(const epx_perf_settings_t *s, int32_t rank, int64_t tokens, int32_t *ids)
{
    int32_t k = (int32_t)s->top_k;
    if (s->routing != NULL) {
        memcpy(ids, epx_perf_recorded_ids(s, rank), (size_t)(tokens * k) * sizeof *ids);
        return;
    }
    epx_skew_source_t source =
        epx_skew_open(&s->skew, rank, (int32_t)s->ranks, (int32_t)s->experts, k, (uint64_t)s->seed);
    for (int64_t t = 0; t < tokens; t++)
        epx_skew_token(&source, t, k, ids + t * k);
    epx_skew_close(&source);
}

/* Routing and payload of one rank: all that does not depend on the group. */
static void make_inputs(epx_perf_case_t *shared, int32_t rank)
{
    const epx_perf_settings_t *s = shared->settings;
    epx_perf_part_t *part = &shared->part[rank];
    int32_t k = (int32_t)s->top_k, width = (int32_t)s->width;
    uint64_t seed = (uint64_t)s->seed;
    part->tokens = s->routing != NULL ? epx_perf_recorded_tokens(s, rank)
                                      : epx_skew_tokens(&s->skew, rank, (int32_t)s->ranks, shared->tokens);
    size_t tokens = (size_t)part->tokens, assignments = tokens * (size_t)k, row = (size_t)shared->row_bytes;
    part->ids = epx_tool_alloc(assignments, sizeof *part->ids);
    part->weights = epx_tool_alloc(assignments, sizeof *part->weights);
    part->kept = epx_tool_alloc(assignments, sizeof *part->kept);
    part->dweight = epx_tool_alloc(assignments, sizeof *part->dweight);
    part->x = epx_tool_alloc(tokens, row);
    part->out = epx_tool_alloc(tokens, row);
    part->dout = epx_tool_alloc(tokens, row);
    part->dx = epx_tool_alloc(tokens, row);
    int8_t *small = epx_tool_alloc((size_t)width, 1);
    fill_ids(s, rank, part->tokens, part->ids);
    for (int64_t t = 0; t < part->tokens; t++) {
        for (int32_t i = 0; i < k; i++)
            part->weights[t * k + i] = epx_perf_weight(seed, rank, t, i, k);
        epx_perf_x_row((char *)part->x + t * shared->row_bytes, shared->config.row_type, width, seed, rank,
                       t);
        epx_perf_small(small, width, EPX_PERF_DOUT_MAX, EPX_PERF_TENSOR_DOUT, seed, rank, t, 0);
        epx_perf_small_row((char *)part->dout + t * shared->row_bytes, shared->config.row_type, width, small);
    }
    free(small);
}

/* What needs to know the group's sizes. */
static void make_buffers(epx_perf_player_t *player)
{
    epx_perf_case_t *shared = player->shared;
    epx_perf_part_t *part = player->mine;
    size_t rows = (size_t)player->info.batch_rows_max, row = (size_t)shared->row_bytes;
    size_t waves = (size_t)epx_plan_waves(player->plan),
           slots = waves < (size_t)player->info.depth ? waves : (size_t)player->info.depth;
    size_t stamps = (size_t)shared->settings->iterations * EPX_PERF_OPS * waves;
    part->y = epx_tool_alloc(rows, row);
    if (shared->settings->backward)
        part->dx_rows = epx_tool_alloc(rows, row);
    part->copies = epx_tool_alloc(slots * rows, row);
    part->place = epx_tool_alloc(waves * rows, sizeof *part->place);
    part->place_first = epx_tool_alloc(waves + 1, sizeof *part->place_first);
    part->copy_first = epx_tool_alloc(waves + 1, sizeof *part->copy_first);
    part->begun = epx_tool_alloc(stamps, sizeof *part->begun);
    part->ended = epx_tool_alloc(stamps, sizeof *part->ended);
    if (shared->settings->cold)
        part->eviction = epx_tool_alloc(shared->eviction_bytes, 1);
    if (player->self->rank != 0)
        return;
    shared->waves = (int32_t)waves;
    shared->slots = (int32_t)slots;
    shared->rows_max = player->info.batch_rows_max;
    shared->wire = player->info.wire;
    snprintf(shared->transport_name, sizeof shared->transport_name, "%s", player->info.transport);
    snprintf(shared->fabric_name, sizeof shared->fabric_name, "%s", player->info.fabric);
    snprintf(shared->device_name, sizeof shared->device_name, "%s", player->info.device);
}

static int measure(epx_perf_player_t *player)
{
    const epx_perf_settings_t *s = player->shared->settings;
    int rc = epx_perf_route(player); /* with extra_wave the number of waves is known only now */
    if (rc != EPX_EXIT_OK)
        return rc;
    make_buffers(player);
    rc = epx_perf_meet(player);
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_checked_pass(player, s->check);
    if (rc != EPX_EXIT_OK)
        return rc;
    epx_perf_list_copies(player);
    rc = epx_perf_meet(player);
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_timed_passes(player);
    if (rc == EPX_EXIT_OK && s->check)
        rc = epx_perf_checked_pass(player, 1);
    return rc;
}

static int play(epx_rank_t *self)
{
    epx_perf_case_t *shared = self->context;
    epx_perf_player_t player = {
        .self = self, .shared = shared, .mine = &shared->part[self->rank], .info = EPX_GROUP_INFO_INIT};
    make_inputs(shared, self->rank);
    int rc = epx_rank_check(self, epx_group_open(self->comm, &shared->config, &player.group), "group open");
    if (rc != EPX_EXIT_OK)
        return rc;
    rc = epx_rank_check(self, epx_group_info(player.group, &player.info), "group info");
    if (rc == EPX_EXIT_OK)
        rc = epx_rank_check(self, epx_plan_create(player.group, 0, NULL, &player.plan), "plan create");
    if (rc == EPX_EXIT_OK)
        rc = measure(&player);
    if (rc != EPX_EXIT_OK && self->order == 0)
        epx_group_abort(player.group, self->error); /* nobody shall wait for the one that failed first */
    epx_plan_destroy(&player.plan);
    epx_group_close(&player.group);
    return rc;
}

/* A token's choices may repeat where a pattern leaves fewer than K experts, and as recorded. */
static int choices_repeat(const epx_perf_settings_t *s)
{
    int repeat = 0;
    if (s->routing != NULL)
        return epx_perf_recorded_repeats(s);
    for (int32_t r = 0; r < s->ranks && !repeat; r++) {
        epx_skew_source_t source =
            epx_skew_open(&s->skew, r, (int32_t)s->ranks, (int32_t)s->experts, (int32_t)s->top_k, 1);
        repeat = source.sampler.candidates > 0 && source.sampler.candidates < s->top_k;
        epx_skew_close(&source);
    }
    return repeat;
}

int epx_perf_case_run(epx_perf_case_t *shared, const epx_perf_settings_t *s, const char *transport,
                      int64_t tokens)
{
    *shared =
        (epx_perf_case_t){.settings = s, .transport = transport, .tokens = tokens, .memory = EPX_MEMORY_INIT};
    shared->config = epx_perf_group_config(s, transport, tokens);
    shared->element_bytes = epx_perf_element_bytes(shared->config.row_type);
    shared->row_bytes = s->width * shared->element_bytes;
    /* Payload tells whose a row is; where it cannot, batches must say so themselves. */
    shared->origin = shared->config.origin = s->width < EPX_PERF_HEADER || choices_repeat(s);
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    shared->eviction_bytes = (size_t)(cache > (32 << 20) ? cache : 32 << 20) * 3 / 2 / (size_t)s->ranks;
    epx_status_t status = epx_group_memory(&shared->config, &shared->memory);
    if (status != EPX_OK)
        return epx_tool_fail_status(status, "this shape cannot be");
    shared->part = epx_tool_alloc((size_t)s->ranks, sizeof *shared->part);
    return epx_ranks_play((int32_t)s->ranks, play, shared);
}

void epx_perf_case_free(epx_perf_case_t *shared)
{
    for (int32_t r = 0; shared->part != NULL && r < shared->settings->ranks; r++) {
        epx_perf_part_t *part = &shared->part[r];
        void *all[] = {part->ids,    part->weights, part->kept,        part->x,    part->out,
                       part->dout,   part->dx,      part->dweight,     part->y,    part->dx_rows,
                       part->copies, part->place,   part->place_first, part->copy, part->copy_first,
                       part->begun,  part->ended,   part->eviction};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            free(all[i]);
    }
    free(shared->part);
    shared->part = NULL;
}
