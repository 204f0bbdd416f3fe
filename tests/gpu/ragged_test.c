/* ragged's layout. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include <epx/kernels_ragged.h>

#include "gpu/notices.h"
#include "kernels/cuda/table.h"
#include "kernels/host/table.h"

static const shape_limits_t some = {.experts = 400, .ranks = 70, .splits = 6, .tokens = 600, .top_k = 40};
static const shape_limits_t few = {.experts = 30, .ranks = 6, .splits = 3, .tokens = 60, .top_k = 34};
static const shape_limits_t large = {.experts = 300, .ranks = 4, .splits = 1, .tokens = 9000, .top_k = 8};
static const shape_limits_t small_large = {.experts = 16, .ranks = 3, .splits = 1, .tokens = 500, .top_k = 8};

enum { OUTS = 26 };

/* One output or scratch: its bytes, and where it stands in the arguments. */
typedef struct area {
    const char *name;
    size_t bytes, offset;
    int checked; /* 1: always, 2: where the route is good, 0: scratch */
} area_t;

typedef struct order_twins {
    twin_t expert, first, wave, at;
} order_twins_t;

static int32_t *ints(const twin_t *twin) { return (int32_t *)(void *)twin->host; }

/* The part that item i is in when n are split in parts, the first n mod parts one more. */
static int32_t part_of(int32_t i, int32_t n, int32_t parts)
{
    int32_t p = 0;
    for (int32_t end = n / parts + (0 < n % parts); i >= end; end += n / parts + (p < n % parts))
        p++;
    return p;
}

static order_twins_t make_order(const epx_shape_t *shape)
{
    size_t experts = (size_t)shape->experts * 4;
    order_twins_t o = {twin_make(experts), twin_make((size_t)shape->waves * (size_t)shape->ranks * 4 + 4),
                       twin_make(experts), twin_make(experts)};
    int32_t at = 0;
    for (int32_t e = 0; e < shape->experts; e++) {
        int32_t v = shape->virt.owner[e], n = shape->virt.first[v + 1] - shape->virt.first[v];
        ints(&o.wave)[e] = part_of(shape->virt.local[e], n, shape->waves);
    }
    for (int32_t q = 0; q < shape->waves * shape->ranks; q++) {
        ints(&o.first)[q] = at;
        for (int32_t e = 0; e < shape->experts; e++) {
            if (ints(&o.wave)[e] != q / shape->ranks || shape->real.owner[e] != q % shape->ranks)
                continue;
            ints(&o.at)[e] = at;
            ints(&o.expert)[at++] = e;
        }
    }
    ints(&o.first)[shape->waves * shape->ranks] = at;
    twin_send(&o.expert), twin_send(&o.first), twin_send(&o.wave), twin_send(&o.at);
    return o;
}

static epx_ragged_order_t order_on(const order_twins_t *o, int32_t chunks, int device)
{
    return (epx_ragged_order_t){.chunks = chunks,
                                .expert = side_of(&o->expert, device),
                                .first = side_of(&o->first, device),
                                .wave = side_of(&o->wave, device),
                                .at = side_of(&o->at, device)};
}

static int32_t most_local(const epx_shape_t *shape)
{
    int32_t most = 0;
    for (int32_t r = 0; r < shape->ranks; r++)
        if (shape->real.first[r + 1] - shape->real.first[r] > most)
            most = shape->real.first[r + 1] - shape->real.first[r];
    return most;
}

/* On the device twice, the second time with the room as it was left. */
static void lay_out(epx_k_ragged_layout_t *args, const twin_t *room, int device)
{
    args->room = side_or_null(room, device);
    args->room_words = (int64_t)(room->bytes / 8);
    for (int call = 0; call <= device; call++)
        CHECK((device ? epx_cuda_ragged_layout : epx_host_ragged_layout)(args, NULL) == EPX_OK, "%s",
              epx_last_error());
}

#define AREA(field, count, size, when)                                                 \
    {                                                                                  \
#field, (size_t)(count) * (size), offsetof(epx_k_ragged_layout_t, field), when \
    }

static void compare_layouts(dice_t *dice, const shape_limits_t *limits)
{
    shaped_t s = shaped_make(dice, limits);
    const epx_shape_t *shape = &s.shape;
    order_twins_t order = make_order(shape);
    noticed_t n = noticed_make(&s, dice);
    verdict_twin_t verdict = verdict_make();
    int rank_wire = dice_range(dice, 0, 1) != 0;
    int64_t m = shape->splits, E = shape->experts, S = shape->ranks, N = shape->virtual_ranks,
            C = shape->waves;
    int64_t A = (int64_t)shape->tokens_max * shape->top_k, pairs = C * S, L = most_local(shape),
            wire = rank_wire;
    const area_t areas[OUTS] = {
        AREA(counts, N * E, 4, 0),
        AREA(accepted, N * E, 4, 0),
        AREA(scratch, (N > 2 * S ? N : 2 * S) + 2 * E, 8, 0),
        AREA(first_row, m * E, 4, 2),
        AREA(last_token, wire * pairs, 4, 0),
        AREA(list_end, wire * pairs, 4, 0),
        AREA(base, wire * pairs, 8, 2),
        AREA(wave_report, C, sizeof(epx_ragged_wave_t), 1),
        AREA(wave, C, sizeof(epx_ragged_wave_t), 1),
        AREA(place, A, 4, 2),
        AREA(send, A, 4, 2),
        AREA(send_runs, E, sizeof(epx_run_t), 2),
        AREA(return_runs, L * S, sizeof(epx_run_t), 2),
        AREA(start, C * L, 8, 1),
        AREA(count, C * L, 8, 1),
        AREA(home_start, pairs, 8, 1),
        AREA(home_count, pairs, 8, 1),
        AREA(wire_token, wire * A, 4, 2),
        AREA(wire_first, wire * A, 4, 2),
        AREA(wire_count, wire * A, 4, 2),
        AREA(list_place, wire * A, 4, 2),
        AREA(list_weight, wire * A, 4, 2),
        AREA(wire_row, wire * A, 4, 2),
        AREA(home, wire * A, 4, 2),
        AREA(wire_start, wire * pairs, 8, 1),
        AREA(wire_room, wire * pairs, 8, 1),
    };
    const area_t runs[] = {AREA(wire_runs, wire * pairs, sizeof(epx_run_t), 1),
                           AREA(list_runs, wire * pairs, sizeof(epx_run_t), 1),
                           AREA(head_runs, wire * pairs, sizeof(epx_run_t), 1),
                           AREA(back_runs, wire * pairs, sizeof(epx_run_t), 1)};
    twin_t out[OUTS + 4], weights = twin_make((size_t)A * 4), room = room_make(dice, A, 2 * pairs);
    twin_fill_numbers(&weights, EPX_FP32, dice);
    twin_send(&weights);
    for (int i = 0; i < OUTS + 4; i++) {
        const area_t *area = i < OUTS ? &areas[i] : &runs[i - OUTS];
        out[i] = twin_make(area->bytes);
        twin_send(&out[i]);
    }
    for (int device = 0; device <= 1; device++) {
        epx_shape_t shape_on = shaped_on(&s, device);
        epx_ragged_order_t order_of = order_on(&order, shape->waves, device);
        epx_k_ragged_layout_t args = {.shape = &shape_on,
                                      .order = &order_of,
                                      .local_experts_max = (int32_t)L,
                                      .rank_wire = rank_wire,
                                      .notices = side_of(&n.notices, device),
                                      .notice_stride = n.stride,
                                      .expert = side_of(&n.expert, device),
                                      .ordinal = side_of(&n.ordinal, device),
                                      .weights = side_of(&weights, device),
                                      .verdict = verdict_on(&verdict, device)};
        for (int i = 0; i < OUTS + 4; i++) {
            void *at = side_of(&out[i], device);
            memcpy((char *)&args + (i < OUTS ? &areas[i] : &runs[i - OUTS])->offset, &at, sizeof(at));
        }
        lay_out(&args, &room, device);
    }
    verdict_same(&verdict);
    for (int i = 0; i < OUTS + 4; i++) {
        const area_t *area = i < OUTS ? &areas[i] : &runs[i - OUTS];
        if (area->checked == 1 || (area->checked == 2 && !n.dead))
            twin_same(&out[i], area->name);
    }
}

static void ragged_layout(void)
{
    for (dice_t dice; gpu_round(&dice, 150);)
        compare_layouts(&dice, gpu_small() ? &few : &some);
}

static void ragged_layout_of_many_tokens(void)
{
    for (dice_t dice; gpu_round(&dice, 6);)
        compare_layouts(&dice, gpu_small() ? &small_large : &large);
}

const gpu_test_t gpu_ragged_tests[] = {{"ragged_layout", ragged_layout},
                                       {"ragged_layout_of_many_tokens", ragged_layout_of_many_tokens},
                                       {NULL, NULL}};
