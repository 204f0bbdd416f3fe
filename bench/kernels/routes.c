/* Kernels that decide a route. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <epx/kernels_pooled_wave.h>
#include <epx/kernels_ragged.h>
#include <epx/kernels_ring.h>

#include "bench/kernels/bench.h"
#include "tools/common/program.h"

enum { RANKS = 2, CHUNKS = 2, WAVES = 3 };

/* One of two ranks with half of the experts each; all pointers are device memory. */
typedef struct routed {
    int64_t tokens, n; /* T of this case, and T * K */
    epx_shape_t shape;
    epx_ragged_order_t order;
    int32_t *ids, *expert, *ordinal;
    float *weights, *weights_copy;
    char *notices; /* [2] with their counts; this rank's is the first */
    uint64_t *room;
    int64_t room_words;
    int64_t stride;
    epx_plan_head_t *head;
    epx_k_read_ids_t read;
    epx_k_ragged_layout_t ragged;
    epx_k_ring_layout_t ring;
    epx_k_ring_block_t block;
    epx_k_pooled_layout_t pooled;
    epx_k_pooled_gate1_t gate1;
    epx_k_pooled_pack_t pack;
    epx_k_pooled_gate2_t gate2;
} routed_t;

/* Tables of the two owners; with two chunks an expert's wave is which half of its owner's experts it is in.
 */
static void make_tables(kernels_bench_t *bench, routed_t *r)
{
    int32_t E = r->shape.experts, half = E / 2, entries = 0;
    int32_t *owner = epx_tool_alloc((size_t)E, 4), *local = epx_tool_alloc((size_t)E, 4),
            *expert = epx_tool_alloc((size_t)E, 4);
    int32_t *wave = epx_tool_alloc((size_t)E, 4), *at = epx_tool_alloc((size_t)E, 4),
            *order = epx_tool_alloc((size_t)E, 4);
    int32_t first[3] = {0, half, E}, pairs[CHUNKS * RANKS + 1];
    for (int32_t e = 0; e < E; e++) {
        owner[e] = e >= half, local[e] = e - first[owner[e]], expert[e] = e;
        wave[e] = local[e] >= (first[owner[e] + 1] - first[owner[e]] + 1) / 2;
    }
    for (int32_t q = 0; q < CHUNKS * RANKS; q++) {
        pairs[q] = entries;
        for (int32_t e = 0; e < E; e++)
            if (wave[e] == q / RANKS && owner[e] == q % RANKS)
                at[e] = entries, order[entries++] = e;
    }
    pairs[CHUNKS * RANKS] = entries;
    r->shape.real = (epx_owners_t){.ranks = RANKS,
                                   .experts = E,
                                   .owner = bench_take(bench, (size_t)E * 4, owner),
                                   .local = bench_take(bench, (size_t)E * 4, local),
                                   .first = bench_take(bench, sizeof(first), first),
                                   .expert = bench_take(bench, (size_t)E * 4, expert)};
    r->shape.virt = r->shape.real;
    r->order = (epx_ragged_order_t){.chunks = CHUNKS,
                                    .expert = bench_take(bench, (size_t)E * 4, order),
                                    .first = bench_take(bench, sizeof(pairs), pairs),
                                    .wave = bench_take(bench, (size_t)E * 4, wave),
                                    .at = bench_take(bench, (size_t)E * 4, at)};
    free(owner), free(local), free(expert), free(wave), free(at), free(order);
}

static void make_reading(kernels_bench_t *bench, routed_t *r)
{
    const epx_shape_t *shape = &r->shape;
    int32_t *ids = epx_tool_alloc((size_t)r->n, 4);
    for (int64_t a = 0; a < r->n; a++)
        ids[a] = (int32_t)(bench_dice(bench) % (uint64_t)shape->experts);
    size_t words = (size_t)r->n * 4;
    r->ids = bench_take(bench, words, ids), r->expert = bench_take(bench, words, NULL),
    r->ordinal = bench_take(bench, words, NULL);
    r->weights = bench_take(bench, words, NULL), r->weights_copy = bench_take(bench, words, NULL);
    r->stride = (int64_t)sizeof(epx_route_notice_t) + (int64_t)shape->experts * 4;
    r->notices = bench_take(bench, (size_t)r->stride * RANKS, NULL);
    r->head = bench_take(bench, sizeof(epx_plan_head_t), NULL);
    r->room_words = epx_route_room(r->n, shape->experts + 2);
    r->room = bench_take(bench, (size_t)r->room_words * 8, NULL);
    bench->failed |= bench->device->fill(r->room, 0, (size_t)r->room_words * 8, bench->stream) != EPX_OK;
    epx_route_notice_t *notice = (epx_route_notice_t *)(void *)r->notices;
    r->read = (epx_k_read_ids_t){.ids = r->ids,
                                 .id_type = EPX_INT32,
                                 .tokens = r->tokens,
                                 .tokens_max = shape->tokens_max,
                                 .columns = shape->top_k,
                                 .top_k = shape->top_k,
                                 .experts = shape->experts,
                                 .splits = 1,
                                 .weights = r->weights,
                                 .weights_copy = r->weights_copy,
                                 .expert = r->expert,
                                 .ordinal = r->ordinal,
                                 .counts = (int32_t *)(void *)(notice + 1),
                                 .skipped = &r->head->skipped,
                                 .notice = notice,
                                 .room = r->room,
                                 .room_words = r->room_words};
    free(ids);
}

static void make_ragged(kernels_bench_t *bench, routed_t *r)
{
    const epx_shape_t *shape = &r->shape;
    size_t E = (size_t)shape->experts, words = (size_t)r->n * 4, pairs = CHUNKS * RANKS,
           run = sizeof(epx_run_t);
    r->ragged = (epx_k_ragged_layout_t){.shape = shape,
                                        .order = &r->order,
                                        .local_experts_max = (shape->experts + 1) / 2,
                                        .notices = r->notices,
                                        .notice_stride = r->stride,
                                        .expert = r->expert,
                                        .ordinal = r->ordinal,
                                        .weights = r->weights,
                                        .counts = bench_take(bench, RANKS * E * 4, NULL),
                                        .accepted = bench_take(bench, RANKS * E * 4, NULL),
                                        .scratch = bench_take(bench, (2 * RANKS + 2 * E) * 8, NULL),
                                        .first_row = bench_take(bench, E * 4, NULL),
                                        .last_token = bench_take(bench, pairs * 4, NULL),
                                        .list_end = bench_take(bench, pairs * 4, NULL),
                                        .base = bench_take(bench, pairs * 8, NULL),
                                        .room = r->room,
                                        .room_words = r->room_words,
                                        .verdict = {.head = r->head},
                                        .wave = bench_take(bench, CHUNKS * sizeof(epx_ragged_wave_t), NULL),
                                        .place = bench_take(bench, words, NULL),
                                        .send = bench_take(bench, words, NULL),
                                        .send_runs = bench_take(bench, E * run, NULL),
                                        .return_runs = bench_take(bench, E * RANKS * run, NULL),
                                        .start = bench_take(bench, CHUNKS * E * 8, NULL),
                                        .count = bench_take(bench, CHUNKS * E * 8, NULL),
                                        .home_start = bench_take(bench, pairs * 8, NULL),
                                        .home_count = bench_take(bench, pairs * 8, NULL),
                                        .wire_token = bench_take(bench, words, NULL),
                                        .wire_first = bench_take(bench, words, NULL),
                                        .wire_count = bench_take(bench, words, NULL),
                                        .list_place = bench_take(bench, words, NULL),
                                        .list_weight = bench_take(bench, words, NULL),
                                        .wire_row = bench_take(bench, words, NULL),
                                        .home = bench_take(bench, words, NULL),
                                        .wire_runs = bench_take(bench, pairs * run, NULL),
                                        .list_runs = bench_take(bench, pairs * run, NULL),
                                        .head_runs = bench_take(bench, pairs * run, NULL),
                                        .back_runs = bench_take(bench, pairs * run, NULL),
                                        .wire_start = bench_take(bench, pairs * 8, NULL),
                                        .wire_room = bench_take(bench, pairs * 8, NULL)};
}

static void make_ring(kernels_bench_t *bench, routed_t *r)
{
    const epx_shape_t *shape = &r->shape;
    size_t E = (size_t)shape->experts, words = (size_t)r->n * 4;
    int32_t *local = epx_tool_alloc(E, 4);
    for (size_t e = 0; e < E; e++)
        local[e] = e < E / 2 ? (int32_t)e : -1;
    int64_t *tokens = bench_take(bench, RANKS * 8, NULL), *longs = bench_take(bench, 2 * E * 8 + 8, NULL);
    r->ring = (epx_k_ring_layout_t){.shape = shape,
                                    .notices = r->notices,
                                    .notice_stride = r->stride,
                                    .counts = r->ragged.counts,
                                    .accepted = r->ragged.accepted,
                                    .seats = r->ragged.scratch,
                                    .ordinal = r->ordinal,
                                    .kept = r->expert,
                                    .block_tokens = tokens,
                                    .block_runs = bench_take(bench, RANKS * sizeof(epx_run_t), NULL),
                                    .verdict = {.head = r->head}};
    r->block = (epx_k_ring_block_t){.tokens = tokens,
                                    .experts = shape->experts,
                                    .top_k = shape->top_k,
                                    .local_experts = shape->experts / 2,
                                    .row_align = 1,
                                    .rows_max = r->n,
                                    .local = bench_take(bench, E * 4, local),
                                    .kept = r->expert,
                                    .weights = r->weights,
                                    .start = longs,
                                    .count = longs + E,
                                    .place = bench_take(bench, words, NULL),
                                    .token = bench_take(bench, words, NULL),
                                    .place_weight = bench_take(bench, words, NULL),
                                    .excess = longs + 2 * E};
    free(local);
}

static void make_pooled(kernels_bench_t *bench, routed_t *r)
{
    const epx_shape_t *shape = &r->shape;
    int64_t E = shape->experts, half = E / 2, most = (int64_t)shape->tokens_max * shape->top_k;
    int64_t slots = (int64_t)((double)(most * half) * 1.15 / (double)(E * WAVES)) + 1,
            rows = (int64_t)((double)(RANKS * most) * 1.15 / (double)(E * WAVES)) + 1;
    int32_t base[3] = {0, (int32_t)slots, (int32_t)(2 * slots)}, before[2] = {0, 0};
    int64_t header = (EPX_POOLED_HEADER_VALID + 8 + 2 * slots + 15) / 16 * 16;
    size_t words = (size_t)r->n * 4, home = (size_t)(2 * slots);
    r->pooled = (epx_k_pooled_layout_t){.ranks = RANKS,
                                        .virtual_ranks = RANKS,
                                        .splits = 1,
                                        .experts = (int32_t)E,
                                        .top_k = shape->top_k,
                                        .columns = shape->top_k,
                                        .waves = WAVES,
                                        .assignments_max = most,
                                        .cf = 1.15,
                                        .cs = 1.15,
                                        .owner = shape->real.owner,
                                        .local = shape->real.local,
                                        .first = shape->real.first,
                                        .expert = shape->real.expert,
                                        .local_experts_max = (int32_t)(E - half),
                                        .base = bench_take(bench, sizeof(base), base),
                                        .before = bench_take(bench, sizeof(before), before),
                                        .home_rows = (int32_t)(2 * slots),
                                        .slab_rows = (int32_t)slots,
                                        .rows_per_expert = (int32_t)rows,
                                        .tag_bytes = 2,
                                        .header_bytes = header};
    r->gate1 = (epx_k_pooled_gate1_t){.layout = &r->pooled,
                                      .notice = r->read.notice,
                                      .expert = r->expert,
                                      .place = bench_take(bench, words, NULL),
                                      .valid = bench_take(bench, 8, NULL),
                                      .verdict = {.head = r->head}};
    r->pack = (epx_k_pooled_pack_t){.layout = &r->pooled,
                                    .tokens = r->tokens,
                                    .expert = r->expert,
                                    .place = r->gate1.place,
                                    .list = bench_take(bench, home * 4, NULL),
                                    .valid = r->gate1.valid,
                                    .stamp = 7,
                                    .header_row = -1};
    void *headers = bench_take(bench, (size_t)header * RANKS, NULL), *dst[RANKS];
    for (int32_t d = 0; d < RANKS; d++)
        dst[d] = headers;
    r->pack.dst = bench_take(bench, sizeof(dst), dst);
    r->gate2 = (epx_k_pooled_gate2_t){.layout = &r->pooled,
                                      .headers = headers,
                                      .stamp = 7,
                                      .to = bench_take(bench, home * 4, NULL),
                                      .from = bench_take(bench, (size_t)(half * rows) * 4, NULL),
                                      .kept = bench_take(bench, home, NULL),
                                      .start = bench_take(bench, (size_t)half * 8, NULL),
                                      .count = bench_take(bench, (size_t)half * 8, NULL),
                                      .counts = 1,
                                      .verdict = {.head = r->head},
                                      .bad = bench_take(bench, 16, NULL)};
}

/* ---- launches --------------------------------------------------------------------------------------------------- */

static epx_status_t read_ids(kernels_bench_t *bench, void *r)
{
    return bench->kernels->read_ids(&((routed_t *)r)->read, bench->stream);
}
static epx_status_t ragged_layout(kernels_bench_t *bench, void *r)
{
    return bench->kernels->ragged_layout(&((routed_t *)r)->ragged, bench->stream);
}
static epx_status_t ragged_route(kernels_bench_t *bench, void *r)
{
    epx_status_t status = read_ids(bench, r);
    return status == EPX_OK ? ragged_layout(bench, r) : status;
}
static epx_status_t ring_layout(kernels_bench_t *bench, void *r)
{
    return bench->kernels->ring_layout(&((routed_t *)r)->ring, bench->stream);
}
static epx_status_t ring_block(kernels_bench_t *bench, void *r)
{
    return bench->kernels->ring_block(&((routed_t *)r)->block, bench->stream);
}
static epx_status_t gate1(kernels_bench_t *bench, void *r)
{
    return bench->kernels->pooled_gate1(&((routed_t *)r)->gate1, bench->stream);
}
static epx_status_t pooled_pack(kernels_bench_t *bench, void *r)
{
    return bench->kernels->pooled_pack(&((routed_t *)r)->pack, bench->stream);
}
static epx_status_t gate2(kernels_bench_t *bench, void *r)
{
    return bench->kernels->pooled_gate2(&((routed_t *)r)->gate2, bench->stream);
}

typedef struct route_row {
    const char *what;
    bench_launch_fn launch;
    int32_t rank_wire;
    double target_us;
} route_row_t;

static void time_routes(kernels_bench_t *bench, int64_t tokens)
{
    static const route_row_t rows[] = {
        {"read_ids", read_ids, 0, 0},          {"ragged_layout, assignment wire", ragged_layout, 0, 0},
        {"both", ragged_route, 0, 15},         {"ragged_layout, rank wire", ragged_layout, 1, 0},
        {"both", ragged_route, 1, 15},         {"read_ids", read_ids, 0, 0},
        {"pooled_gate1", gate1, 0, 0},         {"pooled_pack, a wave", pooled_pack, 0, 0},
        {"pooled_gate2, a wave", gate2, 0, 0}, {"ring_layout", ring_layout, 0, 0},
        {"ring_block", ring_block, 0, 0},
    };
    routed_t r = {.tokens = tokens, .n = tokens * bench->top_k};
    r.shape = (epx_shape_t){.ranks = RANKS,
                            .virtual_ranks = RANKS,
                            .splits = 1,
                            .experts = (int32_t)bench->experts / 2 * 2,
                            .top_k = (int32_t)bench->top_k,
                            .columns = (int32_t)bench->top_k,
                            .tokens_max = (int32_t)tokens,
                            .virtual_tokens_max = (int32_t)tokens,
                            .row_align = 1,
                            .capacity_factor = 1.15};
    make_tables(bench, &r);
    make_reading(bench, &r), make_ragged(bench, &r), make_ring(bench, &r), make_pooled(bench, &r);
    /* The other rank says the same. */
    bench->failed |= read_ids(bench, &r) != EPX_OK;
    bench->failed |=
        bench->device->copy(r.notices + r.stride, r.notices, (size_t)r.stride, bench->stream) != EPX_OK;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char what[96];
        r.ragged.rank_wire = rows[i].rank_wire;
        snprintf(what, sizeof(what), "%s, T = %d, K = %d, E = %d", rows[i].what, (int)tokens,
                 (int)bench->top_k, (int)bench->experts);
        bench_line_t line = {.what = what,
                             .seconds = bench_time(bench, rows[i].launch, &r, 50),
                             .target_us = rows[i].target_us};
        bench_print(bench, &line);
    }
}

void bench_routes(kernels_bench_t *bench)
{
    time_routes(bench, bench->tokens);
    time_routes(bench, 128);
}
