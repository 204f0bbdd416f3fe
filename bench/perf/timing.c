/* The timed passes. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/perf/player.h"
#include "kernels/cuda/graph.h"
#include "tools/common/program.h"
#include "tools/common/terminal.h"

/* This rank's rows in the order receiver, place: what dispatch has to move, as a plain list. */
static void list_sent(epx_perf_player_t *player)
{
    const epx_perf_case_t *shared = player->shared;
    epx_perf_part_t *mine = player->mine;
    int64_t count = 0, assignments = mine->tokens * shared->settings->top_k;
    mine->copy = epx_tool_alloc((size_t)assignments, sizeof *mine->copy);
    for (int32_t w = 0; w < shared->waves; w++) {
        mine->copy_first[w] = count;
        for (int32_t r = 0; r < player->self->ranks; r++) {
            const epx_perf_part_t *part = &shared->part[r];
            for (int64_t i = part->place_first[w]; i < part->place_first[w + 1]; i++)
                if (part->place[i].rank == player->self->rank)
                    mine->copy[count++] = (epx_perf_copy_t){
                        .token = part->place[i].token, .receiver = r, .row = part->place[i].row};
        }
    }
    mine->copy_first[shared->waves] = count;
}

/* Of processes, whose memory is out of each other's reach: as many rows of its own, to where they arrived. */
static void list_own(epx_perf_player_t *player)
{
    const epx_perf_case_t *shared = player->shared;
    epx_perf_part_t *mine = player->mine;
    int64_t count = 0;
    mine->copy = epx_tool_alloc((size_t)mine->place_first[shared->waves], sizeof *mine->copy);
    for (int32_t w = 0; w < shared->waves; w++) {
        mine->copy_first[w] = count;
        for (int64_t i = mine->place_first[w]; i < mine->place_first[w + 1] && mine->tokens > 0; i++)
            mine->copy[count++] = (epx_perf_copy_t){.token = (int32_t)(mine->place[i].token % mine->tokens),
                                                    .receiver = player->self->rank,
                                                    .row = mine->place[i].row};
    }
    mine->copy_first[shared->waves] = count;
}

/* For a device: where the rows that this rank has received come from. Where ranks are apart: which rows of
 * its own it copies in their place, as many. */
static int list_received(epx_perf_player_t *player)
{
    const epx_perf_case_t *shared = player->shared;
    epx_perf_part_t *mine = player->mine;
    int32_t *from = mine->from.host;
    if (shared->apart && mine->tokens == 0)
        memset(mine->count.host, 0, mine->count.bytes);
    for (int32_t w = 0; w < shared->waves; w++)
        for (int64_t i = mine->place_first[w]; i < mine->place_first[w + 1]; i++)
            from[w * shared->rows_max + mine->place[i].row] =
                shared->apart ? (int32_t)(mine->tokens > 0 ? mine->place[i].token % mine->tokens : 0)
                              : mine->place[i].rank * shared->config.tokens_max + mine->place[i].token;
    int rc = epx_perf_up(player->self, &player->side, &mine->from);
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_up(player->self, &player->side, &mine->start);
    return rc == EPX_EXIT_OK ? epx_perf_up(player->self, &player->side, &mine->count) : rc;
}

int epx_perf_list_copies(epx_perf_player_t *player)
{
    if (player->side.device != NULL)
        return list_received(player);
    if (player->shared->apart)
        list_own(player);
    else
        list_sent(player);
    return EPX_EXIT_OK;
}

/* The machine's own rate: the rows of one wave, one memcpy each, into a slot of the receiver's own size. */
static void copy_rows(epx_perf_player_t *player, int32_t wave)
{
    const epx_perf_case_t *shared = player->shared;
    const epx_perf_part_t *mine = player->mine;
    int64_t bytes = shared->row_bytes, slot = (wave % shared->slots) * shared->rows_max;
    for (int64_t i = mine->copy_first[wave]; i < mine->copy_first[wave + 1]; i++) {
        const epx_perf_copy_t *copy = &mine->copy[i];
        memcpy((char *)shared->part[copy->receiver].copies.host + (slot + copy->row) * bytes,
               (const char *)mine->x.host + copy->token * bytes, (size_t)bytes);
    }
}

/* The same on a device: every receiver fetches its rows, by the kernel that the library has for that. */
static epx_status_t gather_rows(epx_perf_player_t *player, int32_t wave)
{
    const epx_perf_case_t *shared = player->shared;
    const epx_perf_part_t *mine = player->mine;
    int64_t bytes = shared->row_bytes, experts = player->info.local_experts;
    epx_k_gather_t args = {.rows = {.start = (const int64_t *)mine->start.device + wave * experts,
                                    .count = (const int64_t *)mine->count.device + wave * experts,
                                    .experts = (int32_t)experts},
                           .index = (const int32_t *)mine->from.device + wave * shared->rows_max,
                           .src = shared->apart ? mine->x.device : shared->all_x.device,
                           .dst = (char *)mine->copies.device +
                                  (wave % shared->slots) * shared->rows_max * bytes,
                           .src_stride = bytes,
                           .dst_stride = bytes,
                           .bytes = bytes};
    return player->side.device->kernels->gather(&args, player->side.stream);
}

/* As many bytes in one piece, by the device's own copy. */
static epx_status_t copy_whole(epx_perf_player_t *player, int32_t wave)
{
    const epx_perf_part_t *mine = player->mine;
    int64_t rows = mine->place_first[wave + 1] - mine->place_first[wave];
    return player->side.device->copy(mine->copies.device, mine->y.device,
                                     (size_t)(rows * player->shared->row_bytes), player->side.stream);
}

/* As a program that needs the rows calls them: nothing is waited for in between. */
static int whole_dispatch(epx_perf_player_t *player)
{
    int rc = epx_perf_route(player);
    for (int32_t w = 0; w < player->shared->waves && rc == EPX_EXIT_OK; w++)
        rc = epx_perf_call(player, EPX_PERF_DISPATCH, w);
    return rc;
}

int epx_perf_call(epx_perf_player_t *player, epx_perf_op_t op, int32_t wave)
{
    const epx_perf_part_t *mine = player->mine;
    epx_stream_t stream = player->side.stream;
    epx_batch_t batch = EPX_BATCH_INIT;
    epx_plan_h plan = player->plan;
    epx_status_t status;
    switch (op) {
    case EPX_PERF_COPY:
        if (player->side.device == NULL) {
            copy_rows(player, wave);
            return EPX_EXIT_OK;
        }
        status = gather_rows(player, wave);
        break;
    case EPX_PERF_DEVICE_COPY: status = copy_whole(player, wave); break;
    case EPX_PERF_ROUTE: return epx_perf_route(player);
    case EPX_PERF_DISPATCH: status = epx_dispatch(plan, wave, mine->x.device, &batch, stream); break;
    case EPX_PERF_COMBINE: status = epx_combine(plan, wave, mine->y.device, mine->out.device, stream); break;
    case EPX_PERF_COMBINE_BACKWARD:
        status = epx_combine_backward(plan, wave, mine->dout.device, mine->y.device, &batch, stream);
        break;
    case EPX_PERF_COMBINE_START: status = epx_combine_start(plan, wave, mine->y.device, stream); break;
    case EPX_PERF_WHOLE_DISPATCH: return whole_dispatch(player);
    case EPX_PERF_FABRIC:
    case EPX_PERF_FABRIC_ONE_WAY: return epx_perf_fabric_round(player, op);
    default:
        status = epx_dispatch_backward(plan, wave, mine->dx_rows.device, mine->dx.device,
                                       mine->dweight.device, stream);
    }
    return epx_rank_check(player->self, status, epx_perf_op_name(op));
}

/* ---- graphs ------------------------------------------------------------------------------------------------------- */

static void **graph_of(epx_perf_player_t *player, epx_perf_op_t op, int32_t wave)
{
    size_t waves = (size_t)player->shared->waves;
    if (player->graph == NULL)
        player->graph = epx_tool_alloc(EPX_PERF_OPS * waves, sizeof *player->graph);
    return &player->graph[(size_t)op * waves + (size_t)wave];
}

void epx_perf_forget_graphs(epx_perf_player_t *player)
{
    size_t count = (size_t)EPX_PERF_OPS * (size_t)player->shared->waves;
    for (size_t i = 0; player->graph != NULL && i < count; i++)
        if (player->graph[i] != NULL)
            epx_cuda_record_destroy(player->graph[i]);
    free(player->graph);
    player->graph = NULL;
}

/* The first time it is recorded; what is timed is the replay. */
static int record(epx_perf_player_t *player, epx_perf_op_t op, int32_t wave)
{
    if (!player->shared->settings->graph)
        return EPX_EXIT_OK;
    void **graph = graph_of(player, op, wave);
    if (*graph != NULL)
        return EPX_EXIT_OK;
    int rc = epx_rank_check(player->self, epx_cuda_record_begin(player->side.stream), "recording");
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_call(player, op, wave);
    return rc == EPX_EXIT_OK
               ? epx_rank_check(player->self, epx_cuda_record_end(player->side.stream, graph), "recording")
               : rc;
}

static int call_or_replay(epx_perf_player_t *player, epx_perf_op_t op, int32_t wave)
{
    if (!player->shared->settings->graph)
        return epx_perf_call(player, op, wave);
    return epx_rank_check(player->self, epx_cuda_replay(*graph_of(player, op, wave), player->side.stream),
                          "a graph");
}

/* ---- clocks ------------------------------------------------------------------------------------------------------- */

typedef struct stamps {
    int64_t begun, ended, host; /* ns */
} stamps_t;

static int evict(epx_perf_player_t *player, int64_t iteration)
{
    const epx_perf_part_t *mine = player->mine;
    if (player->side.device == NULL) {
        memset(mine->eviction.host, (int)iteration, player->shared->eviction_bytes);
        return EPX_EXIT_OK;
    }
    epx_status_t status = player->side.device->fill(mine->eviction.device, (int)iteration & 255,
                                                    mine->eviction.bytes, player->side.stream);
    return epx_rank_check(player->self, status, "pushing out the caches");
}

/* A process has threads of the library's beside the rank's own. */
static int64_t processor_ns(const epx_perf_player_t *player)
{
    struct timespec t = {0, 0};
    clock_gettime(
        player->shared->settings->processes > 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int by_host(epx_perf_player_t *player, epx_perf_op_t op, int32_t wave, stamps_t *stamps)
{
    int64_t busy = processor_ns(player);
    stamps->begun = epx_now_ns();
    int rc = epx_perf_call(player, op, wave);
    stamps->ended = epx_now_ns();
    stamps->host = processor_ns(player) - busy;
    if (!player->shared->one_clock) /* then every rank's time begins when its own call does */
        stamps->ended -= stamps->begun, stamps->begun = 0;
    return rc;
}

/* Rank 0 sets the mark that all count from, before they meet. It may be one timing ahead of others that still
 * read the last one. */
static epx_event_t start_of(const epx_perf_player_t *player)
{
    return player->shared->start[player->timings & 1];
}

static int set_start(epx_perf_player_t *player)
{
    const epx_perf_side_t *side = &player->side;
    if (side->device == NULL || player->self->rank != 0)
        return EPX_EXIT_OK;
    return epx_rank_check(player->self, side->device->event_record(start_of(player), side->stream),
                          "an event");
}

/* Between two events on the rank's own stream; together: as seen from the mark. */
static int by_events(epx_perf_player_t *player, epx_perf_op_t op, int32_t wave, int together,
                     stamps_t *stamps)
{
    epx_perf_side_t *side = &player->side;
    const epx_device_ops_t *device = side->device;
    double from = 0, length = 0;
    int rc = epx_rank_check(player->self, device->event_record(side->begin, side->stream), "an event");
    int64_t called = epx_now_ns();
    if (rc == EPX_EXIT_OK)
        rc = call_or_replay(player, op, wave);
    stamps->host = epx_now_ns() - called;
    if (rc == EPX_EXIT_OK)
        rc = epx_rank_check(player->self, device->event_record(side->end, side->stream), "an event");
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_drain(player->self, side);
    if (rc == EPX_EXIT_OK)
        rc = epx_rank_check(player->self, device->event_elapsed(side->begin, side->end, &length), "an event");
    /* Clocks of different GPUs cannot be compared: there every rank's time begins when its own call does. */
    if (rc == EPX_EXIT_OK && together && !player->shared->apart)
        rc = epx_rank_check(player->self, device->event_elapsed(start_of(player), side->begin, &from),
                            "an event");
    stamps->begun = (int64_t)(from * 1e9);
    stamps->ended = (int64_t)((from + length) * 1e9);
    return rc;
}

/* iteration < 0: warm-up, nothing is kept. */
static int timed(epx_perf_player_t *player, epx_perf_op_t op, int32_t wave, int64_t iteration)
{
    const epx_perf_case_t *shared = player->shared;
    epx_perf_part_t *mine = player->mine;
    int together = !shared->settings->latency;
    stamps_t stamps = {0, 0, 0};
    player->timings++;
    int rc = record(player, op, wave);
    if (rc == EPX_EXIT_OK && shared->settings->cold)
        rc = evict(player, iteration);
    if (rc == EPX_EXIT_OK && together)
        rc = set_start(player);
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_drain(player->self, &player->side);
    if (rc == EPX_EXIT_OK && together)
        rc = epx_perf_meet(player);
    if (rc == EPX_EXIT_OK)
        rc = player->side.device == NULL ? by_host(player, op, wave, &stamps)
                                         : by_events(player, op, wave, together, &stamps);
    if (rc == EPX_EXIT_OK && iteration >= 0) {
        int64_t at = (iteration * EPX_PERF_OPS + op) * shared->waves + wave;
        mine->begun[at] = stamps.begun;
        mine->ended[at] = stamps.ended;
        mine->host_ns[at] = stamps.host;
    }
    return rc;
}

/* Bytes that left this rank since the group opened. */
static int64_t remote_bytes(epx_perf_player_t *player)
{
    epx_group_info_t info = EPX_GROUP_INFO_INIT;
    return epx_group_info(player->group, &info) == EPX_OK ? info.exchange_bytes_remote : 0;
}

static int timed_op(epx_perf_player_t *player, epx_perf_op_t op, int32_t wave, int64_t iteration)
{
    int64_t before = remote_bytes(player);
    int rc = timed(player, op, wave, iteration);
    player->mine->remote_bytes[op] += remote_bytes(player) - before; /* a replay counts nothing */
    return rc;
}

static int timed_pass(epx_perf_player_t *player, int64_t iteration)
{
    static const epx_perf_op_t ops[2][2] = {{EPX_PERF_DISPATCH, EPX_PERF_COMBINE},
                                            {EPX_PERF_COMBINE_BACKWARD, EPX_PERF_DISPATCH_BACKWARD}};
    int directions = player->shared->settings->backward ? 2 : 1, floors = !player->shared->settings->latency;
    int rc = timed(player, EPX_PERF_ROUTE, 0, iteration);
    if (!player->shared->settings->graph)
        memset(player->mine->remote_bytes, 0, sizeof player->mine->remote_bytes);
    for (int d = 0; d < directions; d++) {
        for (int32_t w = 0; w < player->shared->waves; w++) {
            if (rc == EPX_EXIT_OK && floors && d == 0)
                rc = timed(player, EPX_PERF_COPY, w, iteration);
            if (rc == EPX_EXIT_OK && floors && d == 0 && player->side.device != NULL)
                rc = timed(player, EPX_PERF_DEVICE_COPY, w, iteration);
            for (int i = 0; i < 2 && rc == EPX_EXIT_OK; i++)
                rc = timed_op(player, ops[d][i], w, iteration);
        }
    }
    return rc;
}

/* Ends the pass that whole_dispatch has begun. Its recording began one as the host sees it, which no replay
 * of an older recording ends: so combine is recorded anew behind it. */
static int end_whole(epx_perf_player_t *player, int32_t wave)
{
    if (!player->shared->settings->graph)
        return epx_perf_call(player, EPX_PERF_COMBINE, wave);
    void **graph = graph_of(player, EPX_PERF_COMBINE, wave);
    if (player->whole_recorded <= wave && *graph != NULL) {
        epx_cuda_record_destroy(*graph);
        *graph = NULL;
        player->whole_recorded = wave + 1;
    }
    int rc = record(player, EPX_PERF_COMBINE, wave);
    return rc == EPX_EXIT_OK ? call_or_replay(player, EPX_PERF_COMBINE, wave) : rc;
}

/* The fabric alone, of as many bytes as the dispatch of this pass. */
static int timed_fabric(epx_perf_player_t *player, int64_t iteration)
{
    const epx_perf_settings_t *s = player->shared->settings;
    int rc = player->alone == NULL ? epx_perf_fabric_open(player) : EPX_EXIT_OK;
    if (rc == EPX_EXIT_OK && s->shown[EPX_PERF_FABRIC])
        rc = timed(player, EPX_PERF_FABRIC, 0, iteration);
    if (rc == EPX_EXIT_OK && s->shown[EPX_PERF_FABRIC_ONE_WAY])
        rc = timed(player, EPX_PERF_FABRIC_ONE_WAY, 0, iteration);
    return rc;
}

/* Passes of their own for what the plain calls have inside them. */
static int timed_parts(epx_perf_player_t *player, int64_t iteration)
{
    const epx_perf_settings_t *s = player->shared->settings;
    int32_t waves = player->shared->waves;
    int rc = EPX_EXIT_OK;
    if (s->shown[EPX_PERF_WHOLE_DISPATCH])
        rc = timed_op(player, EPX_PERF_WHOLE_DISPATCH, 0, iteration);
    for (int32_t w = 0; s->shown[EPX_PERF_WHOLE_DISPATCH] && w < waves && rc == EPX_EXIT_OK; w++)
        rc = end_whole(player, w);
    for (int32_t w = 0; s->shown[EPX_PERF_COMBINE_START] && w < waves && rc == EPX_EXIT_OK; w++) {
        rc = epx_perf_call(player, EPX_PERF_DISPATCH, w);
        if (rc == EPX_EXIT_OK)
            rc = timed_op(player, EPX_PERF_COMBINE_START, w, iteration);
        if (rc == EPX_EXIT_OK)
            rc = epx_rank_check(
                player->self,
                epx_combine_finish(player->plan, w, player->mine->out.device, player->side.stream),
                "combine_finish");
    }
    return rc == EPX_EXIT_OK ? timed_fabric(player, iteration) : rc;
}

/* What is dispatched at once must have a slot. */
static int check_parts(epx_perf_player_t *player)
{
    const epx_perf_case_t *shared = player->shared;
    if (!shared->settings->shown[EPX_PERF_WHOLE_DISPATCH] || shared->waves <= shared->slots)
        return EPX_EXIT_OK;
    return epx_rank_fail(
        player->self, EPX_EXIT_USAGE,
        "--op whole_dispatch: %d waves are more than the %d that may be on their way: give --waves %d",
        shared->waves, shared->slots, shared->slots);
}

int epx_perf_timed_passes(epx_perf_player_t *player)
{
    const epx_perf_settings_t *s = player->shared->settings;
    int rc = check_parts(player);
    for (int64_t i = -s->warmup; i < s->iterations && rc == EPX_EXIT_OK; i++) {
        if (player->self->rank == 0)
            epx_progress("%s, %lld tokens: pass %lld of %lld", player->shared->transport_name,
                         (long long)player->shared->tokens, (long long)(i + s->warmup + 1),
                         (long long)(s->warmup + s->iterations));
        rc = timed_pass(player, i);
        if (rc == EPX_EXIT_OK)
            rc = timed_parts(player, i);
    }
    return rc;
}
