/*
 * Rank wire: a token's assignments to one rank and wave travel as one row, with a list of the places it
 * stands for. SPDX-License-Identifier: Apache-2.0
 *
 * A token is dealt with completely before the next, so its entries in each pair's list are neighbours, k
 * ascending.
 */
#include "kernels/host/ragged_wire.h"

void epx_ragged_wire_pair(const epx_k_ragged_layout_t *args, int32_t c, int32_t d, const int64_t *began,
                          const int64_t *end)
{
    const epx_shape_t *shape = args->shape;
    int64_t q = (int64_t)c * shape->ranks + d, base = 0;

    for (int32_t s = 0; s < shape->ranks; s++) {
        int64_t room = end[s] - began[s], from = (int64_t)c * shape->ranks + s;
        if (s == shape->rank)
            args->base[q] = base;
        if (d == shape->rank) {
            args->wire_start[from] = base;
            args->wire_room[from] = room;
            args->back_runs[from] =
                (epx_run_t){.first = base, .row = began[s], .peer = s, .rows = (int32_t)room};
        }
        base += room;
    }
    args->list_runs[q] = (epx_run_t){.first = began[shape->rank],
                                     .row = args->base[q],
                                     .peer = d,
                                     .rows = (int32_t)(end[shape->rank] - began[shape->rank])};
    args->head_runs[q] = (epx_run_t){.first = q, .row = shape->rank, .peer = d, .rows = 1};
    args->home_count[q] = 0;
    args->list_end[q] = 0;
    args->last_token[q] = -1;
}

/* Puts the return row of a new wire row into the token's list of homes, (wave, rank) ascending: places of
 * later waves are larger, and within a wave those of later ranks. */
static void insert_home(int32_t *home, int32_t used, int32_t place)
{
    int32_t x = used;
    for (; x > 0 && home[x - 1] > place; x--)
        home[x] = home[x - 1];
    home[x] = place;
}

/* A kept assignment; *homes_p counts the token's wire rows so far. */
static void wire_assignment(const epx_k_ragged_layout_t *args, int32_t t, int64_t a, int32_t *homes_p)
{
    const epx_shape_t *shape = args->shape;
    int32_t e = args->expert[a], c = args->order->wave[e], d = shape->real.owner[e],
            most = shape->tokens_max * shape->top_k;
    int64_t q = (int64_t)c * shape->ranks + d, region = args->home_start[q];

    if (args->last_token[q] != t) {
        int64_t row = region + args->home_count[q]++;
        args->last_token[q] = t;
        args->wire_token[row] = t;
        args->wire_first[row] = (int32_t)args->base[q] + args->list_end[q];
        args->wire_count[row] = 0;
        insert_home(args->home + (int64_t)t * shape->top_k, (*homes_p)++, c * most + (int32_t)row);
    }
    int64_t last = args->home_count[q] - 1, entry = region + args->list_end[q]++;
    args->wire_count[region + last]++;
    args->wire_row[a] = (int32_t)(args->base[q] + last);
    const epx_run_t *run = &args->send_runs[args->order->at[e]];
    args->list_place[entry] = (int32_t)(run->row + (args->place[a] - c * most - run->first));
    args->list_weight[entry] = args->weights[a];
}

void epx_ragged_wire_tokens(const epx_k_ragged_layout_t *args, int64_t tokens)
{
    const epx_shape_t *shape = args->shape;
    for (int64_t t = 0; t < tokens; t++) {
        int32_t homes = 0;
        for (int64_t a = t * shape->top_k; a < (t + 1) * shape->top_k; a++)
            if (args->place[a] >= 0)
                wire_assignment(args, (int32_t)t, a, &homes);
        for (; homes < shape->top_k; homes++)
            args->home[t * shape->top_k + homes] = -1;
    }
    for (int32_t q = 0; q < args->order->chunks * shape->ranks; q++) {
        int32_t c = q / shape->ranks, d = q % shape->ranks;
        args->wire_runs[q] = (epx_run_t){.first = args->home_start[q],
                                         .row = args->base[q],
                                         .peer = d,
                                         .rows = (int32_t)args->home_count[q]};
        args->wave[c].sent_rows += d == shape->rank ? 0 : args->home_count[q];
    }
}
