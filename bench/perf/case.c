/* Setting up and running one measurement. SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf/case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <epx/info.h>

#include "bench/perf/processes.h"
#include "bench/perf/rows.h"
#include "tools/common/program.h"
#include "tools/common/room.h"

/* Much more than the caches of any GPU hold. */
#define DEVICE_CACHE ((size_t)512 << 20)

/* A rank's choices, recorded or drawn. ids [tokens, K]. */
static void fill_ids(const epx_perf_settings_t *s, int32_t rank, int64_t tokens, int32_t *ids)
{
    int32_t k = (int32_t)s->top_k;
    if (s->recorded.routing != NULL) {
        memcpy(ids, epx_perf_recorded_ids(&s->recorded, rank), (size_t)(tokens * k) * sizeof *ids);
        return;
    }
    epx_skew_source_t source =
        epx_skew_open(&s->skew, rank, (int32_t)s->ranks, (int32_t)s->experts, k, (uint64_t)s->seed);
    for (int64_t t = 0; t < tokens; t++)
        epx_skew_token(&source, t, k, ids + t * k);
    epx_skew_close(&source);
}

/* Who writes what all ranks of this process share. */
static int leads(const epx_perf_player_t *player)
{
    return player->self->rank == 0 || epx_perf_are_processes(player->shared);
}

/* x of all ranks in one piece, so that a device can copy any row of it to any place with one kernel. */
static int place_x(epx_perf_player_t *player)
{
    epx_perf_case_t *shared = player->shared;
    int64_t each = shared->config.tokens_max * shared->row_bytes;
    int rc = EPX_EXIT_OK;
    if (player->side.device == NULL)
        return EPX_EXIT_OK;
    if (leads(player)) {
        epx_device_properties_t properties = {0};
        shared->device = player->side.device;
        rc = epx_rank_check(player->self, shared->device->properties(&properties), "the device");
        shared->units = properties.units;
        shared->apart |= strcmp(player->info.fabric, "nccl") == 0;
        for (int i = 0; i < 2 && rc == EPX_EXIT_OK; i++)
            rc = epx_rank_check(player->self, shared->device->event_create(1, &shared->start[i]), "an event");
        if (rc == EPX_EXIT_OK && !shared->apart)
            rc = epx_perf_twin_new_device(player->self, &player->side, &shared->all_x,
                                          (size_t)player->self->ranks, (size_t)each);
    }
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_meet(player);
    if (rc != EPX_EXIT_OK)
        return rc;
    if (shared->apart) {
        void *host = player->mine->x.host;
        size_t bytes = player->mine->x.bytes;
        rc = epx_perf_twin_new_device(player->self, &player->side, &player->mine->x, 1, bytes);
        player->mine->x.host = host;
        return rc;
    }
    player->mine->x.device = (char *)shared->all_x.device + player->self->rank * each;
    return rc;
}

static void fill_weights(const epx_perf_settings_t *s, int32_t rank, int64_t tokens, float *weights)
{
    int32_t k = (int32_t)s->top_k;
    for (int64_t t = 0; t < tokens; t++)
        for (int32_t i = 0; i < k; i++)
            weights[t * k + i] = epx_perf_weight((uint64_t)s->seed, rank, t, i, k);
}

/* Routing and payload of one rank, on the host. */
static void fill_inputs(epx_perf_player_t *player)
{
    epx_perf_case_t *shared = player->shared;
    const epx_perf_settings_t *s = shared->settings;
    epx_perf_part_t *part = player->mine;
    int32_t width = (int32_t)s->width, rank = player->self->rank;
    uint64_t seed = (uint64_t)s->seed;
    int8_t *small = epx_tool_alloc((size_t)width, 1);
    fill_ids(s, rank, part->tokens, part->ids);
    fill_weights(s, rank, part->tokens, part->weights);
    for (int64_t t = 0; t < part->tokens; t++) {
        epx_perf_x_row((char *)part->x.host + t * shared->row_bytes, shared->config.row_type, width, seed,
                       rank, t);
        epx_perf_small(small, width, EPX_PERF_DOUT_MAX, EPX_PERF_TENSOR_DOUT, seed, rank, t, 0);
        epx_perf_small_row((char *)part->dout.host + t * shared->row_bytes, shared->config.row_type, width,
                           small);
    }
    free(small);
}

static int64_t tokens_of(const epx_perf_case_t *shared, int32_t rank)
{
    const epx_perf_settings_t *s = shared->settings;
    return s->recorded.routing != NULL ? epx_perf_recorded_tokens(&s->recorded, rank)
                                       : epx_skew_tokens(&s->skew, rank, (int32_t)s->ranks, shared->tokens);
}

/* What this process has to know of the other processes' inputs, to check what comes from them. */
static void know_others(epx_perf_player_t *player)
{
    epx_perf_case_t *shared = player->shared;
    for (int32_t r = 0; epx_perf_are_processes(shared) && r < player->self->ranks; r++) {
        epx_perf_part_t *part = &shared->part[r];
        if (r == player->self->rank)
            continue;
        part->tokens = tokens_of(shared, r);
        size_t assignments = (size_t)(part->tokens * shared->settings->top_k);
        part->ids = part->ids_twin.host = epx_tool_alloc(assignments, sizeof *part->ids);
        part->weights = part->weights_twin.host = epx_tool_alloc(assignments, sizeof *part->weights);
        part->kept = epx_tool_alloc(assignments, sizeof *part->kept);
        fill_ids(shared->settings, r, part->tokens, part->ids);
        fill_weights(shared->settings, r, part->tokens, part->weights);
    }
}

/* Buffers that need not know what a batch holds, and what is in them. */
static int make_inputs(epx_perf_player_t *player)
{
    epx_perf_case_t *shared = player->shared;
    const epx_perf_settings_t *s = shared->settings;
    epx_perf_part_t *part = player->mine;
    epx_rank_t *self = player->self;
    const epx_perf_side_t *side = &player->side;
    part->tokens = tokens_of(shared, self->rank);
    size_t tokens = (size_t)part->tokens, assignments = tokens * (size_t)s->top_k,
           row = (size_t)shared->row_bytes;
    struct {
        epx_perf_twin_t *twin;
        size_t count, size;
    } const wanted[] = {{&part->ids_twin, assignments, sizeof *part->ids},
                        {&part->weights_twin, assignments, sizeof *part->weights},
                        {&part->dweight, assignments, sizeof(float)},
                        {&part->out, tokens, row},
                        {&part->dout, tokens, row},
                        {&part->dx, tokens, row}};
    int rc = EPX_EXIT_OK;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted && rc == EPX_EXIT_OK; i++)
        rc = epx_perf_twin_new(self, side, wanted[i].twin, wanted[i].count, wanted[i].size);
    if (rc != EPX_EXIT_OK)
        return rc;
    part->ids = part->ids_twin.host;
    part->weights = part->weights_twin.host;
    part->kept = epx_tool_alloc(assignments, sizeof *part->kept);
    part->x.host = epx_tool_alloc(tokens, row);
    part->x.bytes = tokens * row;
    part->x.device = part->x.host;
    rc = place_x(player);
    if (rc != EPX_EXIT_OK)
        return rc;
    fill_inputs(player);
    know_others(player);
    const epx_perf_twin_t *up[] = {&part->ids_twin, &part->weights_twin, &part->x, &part->dout};
    for (size_t i = 0; i < sizeof up / sizeof *up && rc == EPX_EXIT_OK; i++)
        rc = epx_perf_up(self, side, up[i]);
    return rc;
}

/* Buffers of the size of a batch. */
static int make_batch_buffers(epx_perf_player_t *player, size_t waves, size_t slots)
{
    const epx_perf_case_t *shared = player->shared;
    epx_perf_part_t *part = player->mine;
    epx_rank_t *self = player->self;
    const epx_perf_side_t *side = &player->side;
    size_t rows = (size_t)player->info.batch_rows_max, row = (size_t)shared->row_bytes,
           experts = (size_t)player->info.local_experts;
    int rc = epx_perf_twin_new(self, side, &part->y, rows, row);
    if (rc == EPX_EXIT_OK && shared->settings->backward)
        rc = epx_perf_twin_new(self, side, &part->dx_rows, rows, row);
    if (side->device == NULL) {
        part->copies.host = part->copies.device = epx_tool_alloc(slots * rows, row);
        if (shared->settings->cold)
            part->eviction.host = epx_tool_alloc(shared->eviction_bytes, 1);
        return rc;
    }
    part->got = epx_tool_alloc(rows, row);
    part->got_index = epx_tool_alloc(rows, sizeof *part->got_index);
    part->got_origin = epx_tool_alloc(rows, sizeof *part->got_origin);
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_twin_new_device(self, side, &part->copies, slots * rows, row);
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_twin_new(self, side, &part->from, waves * rows, sizeof(int32_t));
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_twin_new(self, side, &part->start, waves * experts, sizeof(int64_t));
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_twin_new(self, side, &part->count, waves * experts, sizeof(int64_t));
    if (rc == EPX_EXIT_OK && shared->settings->cold)
        rc = epx_perf_twin_new_device(self, side, &part->eviction, DEVICE_CACHE / (size_t)self->ranks, 1);
    return rc;
}

/* What needs to know the group's sizes. */
static int make_buffers(epx_perf_player_t *player)
{
    epx_perf_case_t *shared = player->shared;
    epx_perf_part_t *part = player->mine;
    size_t rows = (size_t)player->info.batch_rows_max, waves = (size_t)epx_plan_waves(player->plan),
           slots = waves < (size_t)player->info.depth ? waves : (size_t)player->info.depth;
    size_t stamps = (size_t)shared->settings->iterations * EPX_PERF_OPS * waves;
    part->place = epx_tool_alloc(waves * rows, sizeof *part->place);
    part->place_first = epx_tool_alloc(waves + 1, sizeof *part->place_first);
    part->copy_first = epx_tool_alloc(waves + 1, sizeof *part->copy_first);
    part->begun = epx_tool_alloc(stamps, sizeof *part->begun);
    part->ended = epx_tool_alloc(stamps, sizeof *part->ended);
    part->host_ns = epx_tool_alloc(stamps, sizeof *part->host_ns);
    if (leads(player)) {
        shared->waves = (int32_t)waves;
        shared->slots = (int32_t)slots;
        shared->rows_max = player->info.batch_rows_max;
        shared->wire = player->info.wire;
        snprintf(shared->transport_name, sizeof shared->transport_name, "%s", player->info.transport);
        snprintf(shared->fabric_name, sizeof shared->fabric_name, "%s", player->info.fabric);
        snprintf(shared->device_name, sizeof shared->device_name, "%s", player->info.device);
    }
    return make_batch_buffers(player, waves, slots);
}

static int may_be_recorded(epx_perf_player_t *player)
{
    if (strcmp(player->info.fabric, "nccl") == 0)
        return EPX_EXIT_OK;
    return epx_rank_fail(
        player->self, EPX_EXIT_USAGE,
        "--graph: calls over fabric %s meet on the host, which no graph records: use --fabric "
        "nccl and a GPU for each rank",
        player->info.fabric);
}

/* There the link is shown beside every dispatch (link.c). */
static int may_be_alone(epx_perf_player_t *player)
{
    const epx_perf_settings_t *s = player->shared->settings;
    if (player->side.device == NULL || (!s->shown[EPX_PERF_FABRIC] && !s->shown[EPX_PERF_FABRIC_ONE_WAY]))
        return EPX_EXIT_OK;
    return epx_rank_fail(
        player->self, EPX_EXIT_USAGE,
        "--op fabric: what the link between GPUs does alone is shown with every dispatch over "
        "--fabric nccl: leave it out, or use --device host");
}

static int measure(epx_perf_player_t *player)
{
    const epx_perf_settings_t *s = player->shared->settings;
    int rc = epx_perf_route(player); /* with extra_wave the number of waves is known only now */
    if (rc != EPX_EXIT_OK)
        return rc;
    rc = s->graph ? may_be_recorded(player) : EPX_EXIT_OK;
    if (rc == EPX_EXIT_OK)
        rc = may_be_alone(player);
    if (rc == EPX_EXIT_OK)
        rc = make_buffers(player);
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_meet(player);
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_checked_pass(player, s->check);
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_list_copies(player);
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_meet(player);
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_timed_passes(player);
    if (rc == EPX_EXIT_OK && !s->latency)
        rc = epx_perf_measure_link(player);
    if (rc == EPX_EXIT_OK && s->beside)
        rc = epx_perf_run_beside(player);
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_gather_results(player);
    if (rc == EPX_EXIT_OK && s->check)
        rc = epx_perf_checked_pass(player, 1);
    if (rc == EPX_EXIT_OK && s->check)
        rc = epx_perf_fabric_check(player);
    return rc;
}

static int play(epx_rank_t *self)
{
    epx_perf_case_t *shared = self->context;
    epx_perf_player_t player = {
        .self = self, .shared = shared, .mine = &shared->part[self->rank], .info = EPX_GROUP_INFO_INIT};
    int rc = epx_perf_meet_hosts(&player);
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_side_choose(self, player.local_rank, shared->config.fabric, shared->config.device);
    if (rc == EPX_EXIT_OK)
        rc = epx_rank_check_settings(self, epx_group_open(self->comm, &shared->config, &player.group),
                                     "group open");
    if (rc != EPX_EXIT_OK)
        return rc;
    rc = epx_rank_check(self, epx_group_info(player.group, &player.info), "group info");
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_side_open(self, &player.side, player.info.device);
    if (rc == EPX_EXIT_OK)
        rc = make_inputs(&player);
    if (rc == EPX_EXIT_OK)
        rc = epx_rank_check(self, epx_plan_create(player.group, 0, NULL, &player.plan), "plan create");
    if (rc == EPX_EXIT_OK)
        rc = measure(&player);
    if (rc != EPX_EXIT_OK && self->order == 0)
        epx_group_abort(player.group, self->error); /* nobody shall wait for the one that failed first */
    if (player.side.device != NULL)
        player.side.device->synchronize(player.side.stream);
    epx_perf_forget_graphs(&player);
    epx_perf_fabric_close(&player);
    epx_plan_destroy(&player.plan);
    epx_group_close(&player.group);
    epx_perf_side_close(&player.side);
    return rc;
}

/* A token's choices may repeat where a pattern leaves fewer than K experts, and as recorded. */
static int choices_repeat(const epx_perf_settings_t *s)
{
    int repeat = 0;
    if (s->recorded.routing != NULL)
        return epx_perf_recorded_repeats(&s->recorded);
    for (int32_t r = 0; r < s->ranks && !repeat; r++) {
        epx_skew_source_t source =
            epx_skew_open(&s->skew, r, (int32_t)s->ranks, (int32_t)s->experts, (int32_t)s->top_k, 1);
        repeat = source.sampler.candidates > 0 && source.sampler.candidates < s->top_k;
        epx_skew_close(&source);
    }
    return repeat;
}

/* What ranks write to for certain, beside what they share: rows that are sent and rows that come, choices,
 * and the tables of the group, which grow with the ranks. */
static int check_room(const epx_perf_case_t *shared)
{
    epx_group_info_t info = EPX_GROUP_INFO_INIT;
    const char *whose;
    epx_status_t status = epx_group_preview(&shared->config, &info);
    if (status != EPX_OK)
        return epx_tool_fail_status(status, "this shape cannot be");
    double rows = (double)shared->tokens + (double)info.batch_rows_max;
    double rank = rows * (double)shared->row_bytes + 9.0 * (double)shared->tokens * shared->config.top_k +
                  (double)(shared->memory.total_bytes - shared->memory.device_bytes);
    double ranks = shared->apart ? 1 : (double)shared->settings->ranks, room = (double)epx_room_bytes(&whose);
    if (ranks * rank <= room)
        return EPX_EXIT_OK;
    return epx_tool_fail(
        EPX_EXIT_FAILED,
        "%.0f rank%s in this process take%s at least %.1f GB, and %s has %.1f GB left: choose "
        "fewer --ranks or --tokens, or a smaller --width or --capacity-factor",
        ranks, ranks > 1 ? "s" : "", ranks > 1 ? "" : "s", 1e-9 * ranks * rank, whose, 1e-9 * room);
}

int epx_perf_case_run(epx_perf_case_t *shared, const epx_perf_settings_t *s, const char *transport,
                      int64_t tokens, int32_t sm_budget)
{
    *shared =
        (epx_perf_case_t){.settings = s, .transport = transport, .tokens = tokens, .memory = EPX_MEMORY_INIT};
    shared->config = epx_perf_group_config(s, transport, tokens);
    shared->config.sm_budget = shared->sm_budget = sm_budget;
    shared->element_bytes = epx_perf_element_bytes(shared->config.row_type);
    shared->row_bytes = s->width * shared->element_bytes;
    /* Payload tells whose a row is; where it cannot, batches must say so themselves. */
    shared->origin = shared->config.origin = s->width < EPX_PERF_HEADER || choices_repeat(s);
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    shared->eviction_bytes = (size_t)(cache > (32 << 20) ? cache : 32 << 20) * 3 / 2 / (size_t)s->ranks;
    epx_status_t status = epx_group_memory(&shared->config, &shared->memory);
    if (status != EPX_OK)
        return epx_tool_fail_status(status, "this shape cannot be");
    shared->apart = epx_perf_are_processes(shared);
    int rc = check_room(shared);
    if (rc != EPX_EXIT_OK)
        return rc;
    shared->part = epx_tool_alloc((size_t)s->ranks, sizeof *shared->part);
    shared->one_clock = 1;
    return epx_ranks_join((int32_t)s->ranks, play, shared);
}

void epx_perf_case_free(epx_perf_case_t *shared)
{
    for (int32_t r = 0; shared->part != NULL && r < shared->settings->ranks; r++) {
        epx_perf_part_t *part = &shared->part[r];
        void *all[] = {part->kept,       part->place,     part->place_first, part->copy,
                       part->copy_first, part->begun,     part->ended,       part->host_ns,
                       part->got,        part->got_index, part->got_origin};
        epx_perf_twin_t *twins[] = {&part->ids_twin, &part->weights_twin, &part->x,        &part->out,
                                    &part->dout,     &part->dx,           &part->dweight,  &part->y,
                                    &part->dx_rows,  &part->copies,       &part->eviction, &part->from,
                                    &part->start,    &part->count};
        if (!shared->apart)
            part->x.device = NULL; /* a part of all_x */
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            free(all[i]);
        for (size_t i = 0; i < sizeof twins / sizeof *twins; i++)
            epx_perf_twin_free(shared->device, twins[i]);
    }
    epx_perf_twin_free(shared->device, &shared->all_x);
    for (int i = 0; i < 2; i++)
        if (shared->start[i] != NULL)
            shared->device->event_destroy(shared->start[i]);
    free(shared->part);
    shared->part = NULL;
}
