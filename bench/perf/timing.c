/* The timed passes. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "bench/perf/case.h"
#include "tools/common/program.h"
#include "tools/common/terminal.h"

/* This rank's rows in the order receiver, place: what dispatch has to move, as a plain list. */
void epx_perf_list_copies(epx_perf_player_t *player)
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

/* The machine's own rate: the rows of one wave, one memcpy each, into a slot of the receiver's own size. */
static void copy_rows(epx_perf_player_t *player, int32_t wave)
{
    const epx_perf_case_t *shared = player->shared;
    const epx_perf_part_t *mine = player->mine;
    int64_t bytes = shared->row_bytes, slot = (wave % shared->slots) * shared->rows_max;
    for (int64_t i = mine->copy_first[wave]; i < mine->copy_first[wave + 1]; i++) {
        const epx_perf_copy_t *copy = &mine->copy[i];
        memcpy((char *)shared->part[copy->receiver].copies + (slot + copy->row) * bytes,
               (const char *)mine->x + copy->token * bytes, (size_t)bytes);
    }
}

static epx_status_t call(epx_perf_player_t *player, epx_perf_op_t op, int32_t wave)
{
    epx_perf_part_t *mine = player->mine;
    epx_batch_t batch = EPX_BATCH_INIT;
    switch (op) {
    case EPX_PERF_DISPATCH: return epx_dispatch(player->plan, wave, mine->x, &batch, NULL);
    case EPX_PERF_COMBINE: return epx_combine(player->plan, wave, mine->y, mine->out, NULL);
    case EPX_PERF_COMBINE_BACKWARD:
        return epx_combine_backward(player->plan, wave, mine->dout, mine->y, &batch, NULL);
    default: return epx_dispatch_backward(player->plan, wave, mine->dx_rows, mine->dx, mine->dweight, NULL);
    }
}

static int run_op(epx_perf_player_t *player, epx_perf_op_t op, int32_t wave)
{
    if (op == EPX_PERF_COPY) {
        copy_rows(player, wave);
        return EPX_EXIT_OK;
    }
    if (op == EPX_PERF_ROUTE)
        return epx_perf_route(player);
    return epx_rank_check(player->self, call(player, op, wave), epx_perf_op_name(op));
}

/* iteration < 0: warm-up, nothing is kept. */
static int timed(epx_perf_player_t *player, epx_perf_op_t op, int32_t wave, int64_t iteration)
{
    const epx_perf_case_t *shared = player->shared;
    epx_perf_part_t *mine = player->mine;
    if (shared->settings->cold)
        memset(mine->eviction, (int)iteration, shared->eviction_bytes);
    int rc = shared->settings->latency ? EPX_EXIT_OK : epx_perf_meet(player);
    if (rc != EPX_EXIT_OK)
        return rc;
    int64_t begun = epx_now_ns();
    rc = run_op(player, op, wave);
    int64_t ended = epx_now_ns();
    if (iteration >= 0) {
        int64_t at = (iteration * EPX_PERF_OPS + op) * shared->waves + wave;
        mine->begun[at] = begun;
        mine->ended[at] = ended;
    }
    return rc;
}

/* Bytes that left this rank since the group opened. */
static int64_t remote_bytes(epx_perf_player_t *player)
{
    epx_group_info_t info = EPX_GROUP_INFO_INIT;
    return epx_group_info(player->group, &info) == EPX_OK ? info.exchange_bytes_remote : 0;
}

static int timed_pass(epx_perf_player_t *player, int64_t iteration)
{
    static const epx_perf_op_t ops[2][3] = {
        {EPX_PERF_COPY, EPX_PERF_DISPATCH, EPX_PERF_COMBINE},
        {EPX_PERF_COPY, EPX_PERF_COMBINE_BACKWARD, EPX_PERF_DISPATCH_BACKWARD}};
    int directions = player->shared->settings->backward ? 2 : 1;
    int rc = timed(player, EPX_PERF_ROUTE, 0, iteration);
    memset(player->mine->remote_bytes, 0, sizeof player->mine->remote_bytes);
    for (int d = 0; d < directions; d++) {
        for (int32_t w = 0; w < player->shared->waves; w++) {
            for (int i = player->shared->settings->latency || d > 0; i < 3 && rc == EPX_EXIT_OK; i++) {
                int64_t before = remote_bytes(player);
                rc = timed(player, ops[d][i], w, iteration);
                player->mine->remote_bytes[ops[d][i]] += remote_bytes(player) - before;
            }
        }
    }
    return rc;
}

int epx_perf_timed_passes(epx_perf_player_t *player)
{
    const epx_perf_settings_t *s = player->shared->settings;
    for (int64_t i = -s->warmup; i < s->iterations; i++) {
        if (player->self->rank == 0)
            epx_progress("%s, %lld tokens: pass %lld of %lld", player->shared->transport_name,
                         (long long)player->shared->tokens, (long long)(i + s->warmup + 1),
                         (long long)(s->warmup + s->iterations));
        int rc = timed_pass(player, i);
        if (rc != EPX_EXIT_OK)
            return rc;
    }
    return EPX_EXIT_OK;
}
