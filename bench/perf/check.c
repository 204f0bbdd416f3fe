/*
 * The bit-exact check: one pass whose every row and sum is compared with what it must be. Who is kept is the
 * accept rules' own matter, tested elsewhere; here every row that arrives must be asked for, must arrive
 * once, where its expert is, with every bit, and what is missing must be counted as dropped.
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/perf/player.h"
#include "bench/perf/processes.h"
#include "bench/perf/rows.h"
#include "tools/common/program.h"

/* A batch as the host can look at it. */
typedef struct view {
    const void *rows;
    const int32_t *row_index;
    const epx_origin_t *origin;
} view_t;

/* Work memory of one rank's pass. */
typedef struct checker {
    epx_perf_player_t *player;
    int compare;
    int64_t *start, *count; /* [El] of the wave's batch */
    void *row;              /* [H] expected */
    int8_t *small, *other;  /* [H] */
    int32_t *sum;           /* [H] in halves */
    uint32_t *bits;         /* of every sum in halves from -sum_most on */
    int32_t sum_most;
} checker_t;

static void fill(void *memory, int64_t rows, int64_t row_bytes)
{
    if (memory != NULL)
        memset(memory, 0xff, (size_t)(rows * row_bytes)); /* NaN in every row type */
}

/* The same on the device too. */
static int fill_twin(const checker_t *c, const epx_perf_twin_t *twin)
{
    if (!c->compare)
        return EPX_EXIT_OK;
    if (twin->host != NULL)
        memset(twin->host, 0xff, twin->bytes);
    return epx_perf_up(c->player->self, &c->player->side, twin);
}

static void *row_at(const checker_t *c, const void *rows, int64_t row)
{
    return (char *)(uintptr_t)rows + row * c->player->shared->row_bytes;
}

/* One behind the last row of the batch's counts. */
static int64_t batch_end(const checker_t *c)
{
    int64_t end = 0;
    for (int32_t e = 0; e < c->player->info.local_experts; e++)
        end = c->count[e] > 0 && c->start[e] + c->count[e] > end ? c->start[e] + c->count[e] : end;
    return end;
}

/* Brings what has arrived to where the host can look at it; the counts are known. */
static int look_at(const checker_t *c, const epx_batch_t *batch, view_t *view)
{
    epx_perf_part_t *mine = c->player->mine;
    epx_rank_t *self = c->player->self;
    const epx_perf_side_t *side = &c->player->side;
    *view = (view_t){batch->rows, batch->row_index, batch->origin};
    if (side->device == NULL)
        return EPX_EXIT_OK;
    int64_t end = batch_end(c), rows = end;
    int rc = EPX_EXIT_OK;
    *view = (view_t){mine->got, batch->row_index ? mine->got_index : NULL,
                     batch->origin ? mine->got_origin : NULL};
    if (batch->row_index != NULL)
        rc = epx_perf_fetch(self, side, mine->got_index, batch->row_index,
                            (size_t)end * sizeof *mine->got_index);
    for (int32_t e = 0; batch->row_index != NULL && e < c->player->info.local_experts; e++)
        for (int64_t g = c->start[e]; g < c->start[e] + c->count[e]; g++)
            rows = mine->got_index[g] + (int64_t)1 > rows ? mine->got_index[g] + (int64_t)1 : rows;
    if (rows > c->player->shared->rows_max)
        return epx_rank_fail(self, EPX_EXIT_FAILED, "a batch says that it has %lld rows, and may have %lld",
                             (long long)rows, (long long)c->player->shared->rows_max);
    if (rc == EPX_EXIT_OK && batch->origin != NULL)
        rc = epx_perf_fetch(self, side, mine->got_origin, batch->origin,
                            (size_t)end * sizeof *mine->got_origin);
    return rc == EPX_EXIT_OK ? epx_perf_fetch(self, side, mine->got, batch->rows,
                                              (size_t)(rows * c->player->shared->row_bytes))
                             : rc;
}

/* The k with which (rank, token) asked for the expert; -1 if it did not. */
static int32_t find_k(const checker_t *c, int32_t rank, int64_t token, int32_t expert)
{
    int32_t columns = (int32_t)c->player->shared->settings->top_k;
    const int32_t *ids = c->player->shared->part[rank].ids + token * columns;
    for (int32_t k = 0; k < columns; k++)
        if (ids[k] == expert)
            return k;
    return -1;
}

/* Whose row this is, by the batch's own word or by the payload. 0, or an exit code after a message. */
static int identify(checker_t *c, const view_t *batch, int32_t wave, int32_t expert, int64_t g,
                    epx_perf_place_t *place)
{
    epx_perf_player_t *player = c->player;
    const epx_perf_case_t *shared = player->shared;
    int64_t row = batch->row_index ? batch->row_index[g] : g, token = -1;
    int32_t rank = -1, k = -1;
    if (shared->origin) {
        rank = batch->origin[g].rank;
        token = batch->origin[g].token;
        k = batch->origin[g].k;
    } else if (epx_perf_x_whose(row_at(c, batch->rows, row), shared->config.row_type, &rank, &token) != 0) {
        return epx_rank_fail(player->self, EPX_EXIT_FAILED,
                             "wave %d, expert %d, row %lld does not say whose it is: the payload is corrupt",
                             wave, expert, (long long)g);
    }
    int exists = rank >= 0 && rank < player->self->ranks && token >= 0 && token < shared->part[rank].tokens;
    if (exists && !shared->origin)
        k = find_k(c, rank, token, expert);
    if (!exists || k < 0 || k >= shared->settings->top_k ||
        shared->part[rank].ids[token * shared->settings->top_k + k] != expert)
        return epx_rank_fail(
            player->self, EPX_EXIT_FAILED,
            "wave %d, expert %d, row %lld says rank %d, token %lld, k %d, which did not ask for this expert",
            wave, expert, (long long)g, rank, (long long)token, k);
    *place =
        (epx_perf_place_t){.rank = rank, .token = (int32_t)token, .k = k, .row = (int32_t)g, .wave = wave};
    return EPX_EXIT_OK;
}

/* For the device's own copy of the same rows. */
static void keep_counts(const checker_t *c, int32_t wave)
{
    int64_t experts = c->player->info.local_experts;
    epx_perf_part_t *mine = c->player->mine;
    if (c->player->side.device == NULL || experts == 0)
        return;
    memcpy((int64_t *)mine->start.host + wave * experts, c->start, (size_t)experts * sizeof *c->start);
    memcpy((int64_t *)mine->count.host + wave * experts, c->count, (size_t)experts * sizeof *c->count);
}

/* All rows of a batch must be asked for, new, and right in every bit. Adds them to the list of places. */
static int take_batch(checker_t *c, const epx_batch_t *batch, int32_t wave, int64_t *places)
{
    epx_perf_player_t *player = c->player;
    epx_perf_case_t *shared = player->shared;
    const epx_perf_settings_t *s = shared->settings;
    view_t view = {NULL, NULL, NULL};
    int rc = epx_rank_check(player->self,
                            epx_batch_counts(player->plan, batch, c->start, c->count, player->side.stream),
                            "batch counts");
    if (rc == EPX_EXIT_OK)
        rc = look_at(c, batch, &view);
    if (rc == EPX_EXIT_OK)
        keep_counts(c, wave);
    for (int32_t e = 0; e < player->info.local_experts && rc == EPX_EXIT_OK; e++) {
        for (int64_t g = c->start[e]; g < c->start[e] + c->count[e]; g++) {
            epx_perf_place_t *place = &player->mine->place[(*places)++];
            rc = identify(c, &view, wave, player->info.local_expert_ids[e], g, place);
            if (rc != EPX_EXIT_OK)
                return rc;
            if (atomic_fetch_add(&shared->part[place->rank].kept[place->token * s->top_k + place->k], 1) != 0)
                return epx_rank_fail(player->self, EPX_EXIT_FAILED,
                                     "rank %d, token %d, k %d arrived twice, again in wave %d", place->rank,
                                     place->token, place->k, wave);
            if (!c->compare)
                continue;
            epx_perf_x_row(c->row, shared->config.row_type, (int32_t)s->width, (uint64_t)s->seed, place->rank,
                           place->token);
            const void *got = row_at(c, view.rows, view.row_index ? view.row_index[g] : g);
            if (memcmp(got, c->row, (size_t)shared->row_bytes) != 0)
                return epx_rank_fail(
                    player->self, EPX_EXIT_FAILED,
                    "dispatch: wave %d, row %lld of rank %d, token %d, k %d differs from what was sent", wave,
                    (long long)g, place->rank, place->token, place->k);
        }
    }
    return rc;
}

/* Small numbers, none of them 0, in every row type. */
static int fill_any(const checker_t *c, const epx_perf_twin_t *twin)
{
    const epx_perf_side_t *side = &c->player->side;
    if (side->device == NULL) {
        memset(twin->host, 0x3c, twin->bytes);
        return EPX_EXIT_OK;
    }
    return epx_rank_check(c->player->self, side->device->fill(twin->device, 0x3c, twin->bytes, side->stream),
                          "a fill");
}

/* Rows that the expert would have computed, in this wave's places: integers that depend on whose each is. */
static int fill_rows(checker_t *c, const epx_perf_twin_t *twin, int32_t wave, epx_perf_tensor_t tensor)
{
    void *rows = twin->host;
    const epx_perf_case_t *shared = c->player->shared;
    const epx_perf_settings_t *s = shared->settings;
    int32_t width = (int32_t)s->width, range = epx_perf_range((int32_t)s->top_k);
    if (!c->compare) /* any numbers will do, and many rows take the host seconds */
        return fill_any(c, twin);
    fill(rows, shared->rows_max, shared->row_bytes);
    for (int64_t i = c->player->mine->place_first[wave]; i < c->player->mine->place_first[wave + 1]; i++) {
        const epx_perf_place_t *p = &c->player->mine->place[i];
        epx_perf_small(c->small, width, range, tensor, (uint64_t)s->seed, p->rank, p->token, p->k);
        epx_perf_small_row(row_at(c, rows, p->row), shared->config.row_type, width, c->small);
    }
    return epx_perf_up(c->player->self, &c->player->side, twin);
}

static int forward(checker_t *c)
{
    epx_perf_player_t *player = c->player;
    epx_perf_part_t *mine = player->mine;
    int64_t places = 0;
    epx_stream_t stream = player->side.stream;
    int rc = fill_twin(c, &mine->out);
    for (int32_t w = 0; w < player->shared->waves && rc == EPX_EXIT_OK; w++) {
        epx_batch_t batch = EPX_BATCH_INIT;
        rc = epx_rank_check(player->self, epx_dispatch(player->plan, w, mine->x.device, &batch, stream),
                            "dispatch");
        mine->place_first[w] = places;
        if (rc == EPX_EXIT_OK)
            rc = take_batch(c, &batch, w, &places);
        if (rc != EPX_EXIT_OK)
            return rc;
        mine->place_first[w + 1] = places;
        rc = fill_rows(c, &mine->y, w, EPX_PERF_TENSOR_Y);
        if (rc == EPX_EXIT_OK)
            rc = epx_rank_check(player->self,
                                epx_combine(player->plan, w, mine->y.device, mine->out.device, stream),
                                "combine");
        if (rc == EPX_EXIT_OK)
            rc = epx_perf_drain(player->self, &player->side); /* y is filled anew for the next wave */
    }
    return rc == EPX_EXIT_OK && c->compare ? epx_perf_down(player->self, &player->side, &mine->out) : rc;
}

/* dy = weight * dout, exact because weights are halves and wholes. */
static int compare_dy(checker_t *c, const epx_batch_t *batch, int32_t wave)
{
    epx_perf_player_t *player = c->player;
    const epx_perf_case_t *shared = player->shared;
    const epx_perf_settings_t *s = shared->settings;
    epx_type_t type = shared->config.row_type;
    view_t dy = {NULL, NULL, NULL};
    int rc = epx_rank_check(player->self,
                            epx_batch_counts(player->plan, batch, c->start, c->count, player->side.stream),
                            "batch counts");
    if (rc == EPX_EXIT_OK)
        rc = look_at(c, batch, &dy);
    if (rc != EPX_EXIT_OK)
        return rc;
    for (int64_t i = player->mine->place_first[wave]; i < player->mine->place_first[wave + 1]; i++) {
        const epx_perf_place_t *p = &player->mine->place[i];
        const void *got = row_at(c, dy.rows, p->row);
        float weight = shared->part[p->rank].weights[p->token * s->top_k + p->k];
        epx_perf_small(c->small, (int32_t)s->width, EPX_PERF_DOUT_MAX, EPX_PERF_TENSOR_DOUT,
                       (uint64_t)s->seed, p->rank, p->token, 0);
        int32_t halves = (int32_t)(2 * weight);
        for (int64_t h = 0; h < s->width; h++) {
            uint32_t expected = c->bits[halves * c->small[h] + c->sum_most],
                     bits = epx_perf_get(got, type, h);
            if (bits == expected)
                continue;
            double wanted = epx_perf_decode(type, expected), seen = epx_perf_decode(type, bits);
            if (!(seen == wanted)) /* a product of 0 may have either sign */
                return epx_rank_fail(
                    player->self, EPX_EXIT_FAILED,
                    "combine_backward: wave %d, rank %d, token %d, k %d, element %lld is %g, not %g", wave,
                    p->rank, p->token, p->k, (long long)h, seen, wanted);
        }
    }
    return EPX_EXIT_OK;
}

static int backward(checker_t *c)
{
    epx_perf_player_t *player = c->player;
    epx_perf_part_t *mine = player->mine;
    epx_stream_t stream = player->side.stream;
    int rc = fill_twin(c, &mine->dx);
    if (rc == EPX_EXIT_OK)
        rc = fill_twin(c, &mine->dweight);
    for (int32_t w = 0; w < player->shared->waves && rc == EPX_EXIT_OK; w++) {
        epx_batch_t dy = EPX_BATCH_INIT;
        rc = fill_rows(c, &mine->y, w, EPX_PERF_TENSOR_Y);
        if (rc == EPX_EXIT_OK)
            rc = epx_rank_check(
                player->self,
                epx_combine_backward(player->plan, w, mine->dout.device, mine->y.device, &dy, stream),
                "combine_backward");
        if (rc == EPX_EXIT_OK && c->compare)
            rc = compare_dy(c, &dy, w);
        if (rc == EPX_EXIT_OK)
            rc = epx_perf_drain(player->self, &player->side); /* y is filled anew for the next wave */
        if (rc == EPX_EXIT_OK)
            rc = fill_rows(c, &mine->dx_rows, w, EPX_PERF_TENSOR_DX_ROWS);
        if (rc == EPX_EXIT_OK)
            rc = epx_rank_check(player->self,
                                epx_dispatch_backward(player->plan, w, mine->dx_rows.device, mine->dx.device,
                                                      mine->dweight.device, stream),
                                "dispatch_backward");
        if (rc == EPX_EXIT_OK)
            rc = epx_perf_drain(player->self, &player->side);
    }
    if (rc == EPX_EXIT_OK && c->compare)
        rc = epx_perf_down(player->self, &player->side, &mine->dx);
    return rc == EPX_EXIT_OK && c->compare ? epx_perf_down(player->self, &player->side, &mine->dweight) : rc;
}

/* out[t] or dx[t]: the sum over what was kept, each times its weight. */
static int compare_sums(checker_t *c, const char *what, void *rows, epx_perf_tensor_t tensor, int weighted)
{
    epx_perf_player_t *player = c->player;
    const epx_perf_case_t *shared = player->shared;
    const epx_perf_settings_t *s = shared->settings;
    epx_type_t type = shared->config.row_type;
    int32_t width = (int32_t)s->width, columns = (int32_t)s->top_k, range = epx_perf_range(columns);
    for (int64_t t = 0; t < player->mine->tokens; t++) {
        memset(c->sum, 0, (size_t)width * sizeof *c->sum);
        for (int32_t k = 0; k < columns; k++) {
            if (!atomic_load(&player->mine->kept[t * columns + k]))
                continue;
            int32_t halves = weighted ? (int32_t)(2 * player->mine->weights[t * columns + k]) : 2;
            epx_perf_small(c->small, width, range, tensor, (uint64_t)s->seed, player->self->rank, t, k);
            for (int32_t h = 0; h < width; h++)
                c->sum[h] += halves * c->small[h];
        }
        const void *row = row_at(c, rows, t);
        for (int32_t h = 0; h < width; h++) {
            uint32_t wanted = c->bits[c->sum[h] + c->sum_most], seen = epx_perf_get(row, type, h);
            if (seen == wanted)
                continue;
            double seen_value = epx_perf_decode(type, seen), wanted_value = epx_perf_decode(type, wanted);
            if (!(seen_value == wanted_value)) /* a zero may have either sign */
                return epx_rank_fail(player->self, EPX_EXIT_FAILED,
                                     "%s: token %lld, element %d is %g, not %g", what, (long long)t, h,
                                     seen_value, wanted_value);
        }
    }
    return EPX_EXIT_OK;
}

/* dweight[t, k] = dot(dout[t], y of (t, k)): an integer below 2^24, so exact in any order. */
static int compare_dweight(checker_t *c)
{
    epx_perf_player_t *player = c->player;
    const epx_perf_settings_t *s = player->shared->settings;
    int32_t width = (int32_t)s->width, columns = (int32_t)s->top_k, range = epx_perf_range(columns);
    const float *dweight = player->mine->dweight.host;
    for (int64_t a = 0; a < player->mine->tokens * columns; a++) {
        int64_t t = a / columns, dot = 0;
        int32_t k = (int32_t)(a % columns), rank = player->self->rank;
        if (atomic_load(&player->mine->kept[a])) {
            epx_perf_small(c->small, width, range, EPX_PERF_TENSOR_Y, (uint64_t)s->seed, rank, t, k);
            epx_perf_small(c->other, width, EPX_PERF_DOUT_MAX, EPX_PERF_TENSOR_DOUT, (uint64_t)s->seed, rank,
                           t, 0);
            for (int32_t h = 0; h < width; h++)
                dot += c->small[h] * c->other[h];
        }
        if (!(dweight[a] == (float)dot))
            return epx_rank_fail(player->self, EPX_EXIT_FAILED,
                                 "dispatch_backward: dweight of token %lld, k %d is %g, not %lld",
                                 (long long)t, k, (double)dweight[a], (long long)dot);
    }
    return EPX_EXIT_OK;
}

/* What the library counted against what was seen. Rank 0, after all have met. */
static int compare_counts(checker_t *c)
{
    epx_perf_player_t *player = c->player;
    const epx_perf_case_t *shared = player->shared;
    int64_t routed = 0, kept = 0, dropped = 0, asked = 0, seen = 0;
    for (int32_t r = 0; r < player->self->ranks; r++) {
        const epx_perf_part_t *part = &shared->part[r];
        routed += part->stats.routed;
        kept += part->stats.kept;
        dropped += part->stats.dropped_sender + part->stats.dropped_receiver;
        seen += part->seen;
        for (int64_t a = 0; a < part->tokens * shared->settings->top_k; a++)
            asked += part->ids[a] >= 0;
    }
    if (routed != asked || kept != seen || routed != kept + dropped)
        return epx_rank_fail(
            player->self, EPX_EXIT_FAILED,
            "counts disagree: %lld routed (%lld asked for), %lld kept (%lld arrived), %lld dropped",
            (long long)routed, (long long)asked, (long long)kept, (long long)seen, (long long)dropped);
    return EPX_EXIT_OK;
}

/* After the pass, when all ranks have counted their rows. */
static int compare_all(checker_t *c)
{
    epx_perf_part_t *mine = c->player->mine;
    int rc = c->player->self->rank == 0 ? compare_counts(c) : EPX_EXIT_OK;
    if (rc == EPX_EXIT_OK)
        rc = compare_sums(c, "combine: out", mine->out.host, EPX_PERF_TENSOR_Y, 1);
    if (rc == EPX_EXIT_OK && c->player->shared->settings->backward)
        rc = compare_sums(c, "dispatch_backward: dx", mine->dx.host, EPX_PERF_TENSOR_DX_ROWS, 0);
    if (rc == EPX_EXIT_OK && c->player->shared->settings->backward)
        rc = compare_dweight(c);
    return rc;
}

/* A process counts what comes from all others, threads count in what each has cleared. */
static void clear_kept(epx_perf_player_t *player)
{
    const epx_perf_case_t *shared = player->shared;
    int32_t from = player->self->rank, to = from + 1;
    if (epx_perf_are_processes(shared))
        from = 0, to = player->self->ranks;
    for (int32_t r = from; r < to; r++)
        memset(shared->part[r].kept, 0,
               (size_t)(shared->part[r].tokens * shared->settings->top_k) * sizeof *shared->part[r].kept);
}

static void count_seen(epx_perf_player_t *player)
{
    epx_perf_part_t *mine = player->mine;
    mine->seen = mine->place_first[player->shared->waves];
    mine->seen_remote = 0;
    for (int64_t i = 0; i < mine->seen; i++)
        mine->seen_remote += mine->place[i].rank != player->self->rank;
}

static int run_pass(checker_t *c)
{
    epx_perf_player_t *player = c->player;
    epx_perf_part_t *mine = player->mine;
    clear_kept(player);
    int rc = epx_perf_meet(player); /* nobody counts before all have cleared */
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_route(player);
    if (rc == EPX_EXIT_OK)
        rc = forward(c);
    if (rc == EPX_EXIT_OK && player->shared->settings->backward)
        rc = backward(c);
    mine->stats = (epx_plan_stats_t)EPX_PLAN_STATS_INIT;
    if (rc == EPX_EXIT_OK)
        rc = epx_rank_check(player->self, epx_plan_stats(player->plan, &mine->stats, player->side.stream),
                            "plan stats");
    if (rc == EPX_EXIT_OK)
        count_seen(player);
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_meet(player);
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_gather_counts(player);
    if (rc == EPX_EXIT_OK && c->compare)
        rc = epx_perf_sum_kept(player);
    if (rc == EPX_EXIT_OK && c->compare)
        rc = compare_all(c);
    return rc == EPX_EXIT_OK ? epx_perf_meet(player) : rc;
}

int epx_perf_checked_pass(epx_perf_player_t *player, int compare)
{
    size_t width = (size_t)player->shared->settings->width, experts = (size_t)player->info.local_experts;
    checker_t c = {.player = player, .compare = compare};
    c.start = epx_tool_alloc(experts, sizeof *c.start);
    c.count = epx_tool_alloc(experts, sizeof *c.count);
    c.row = epx_tool_alloc(1, (size_t)player->shared->row_bytes);
    c.small = epx_tool_alloc(width, 1);
    c.other = epx_tool_alloc(width, 1);
    c.sum = epx_tool_alloc(width, sizeof *c.sum);
    int32_t columns = (int32_t)player->shared->settings->top_k;
    c.sum_most = 2 * columns * epx_perf_range(columns);
    c.bits = epx_tool_alloc((size_t)(2 * c.sum_most + 1), sizeof *c.bits);
    for (int32_t i = -c.sum_most; i <= c.sum_most; i++)
        c.bits[i + c.sum_most] = epx_perf_encode(player->shared->config.row_type, 0.5 * i);
    int rc = run_pass(&c);
    void *all[] = {c.start, c.count, c.row, c.small, c.other, c.sum, c.bits};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    return rc;
}
