/* ring's layout and blocks. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include <epx/kernels_ring.h>

#include "gpu/notices.h"
#include "kernels/cuda/table.h"
#include "kernels/host/table.h"

static const shape_limits_t some = {.experts = 400, .ranks = 70, .splits = 6, .tokens = 600, .top_k = 40};
static const shape_limits_t few = {.experts = 30, .ranks = 6, .splits = 3, .tokens = 60, .top_k = 34};

static void ring_layout(void)
{
    for (dice_t dice; gpu_round(&dice, 100);) {
        shaped_t s = shaped_make(&dice, gpu_small() ? &few : &some);
        noticed_t n = noticed_make(&s, &dice);
        verdict_twin_t verdict = verdict_make();
        size_t counts = (size_t)s.shape.virtual_ranks * (size_t)s.shape.experts * 4,
               ranks = (size_t)s.shape.ranks;
        twin_t count = twin_make(counts), accepted = twin_make(counts);
        twin_t seats = twin_make(((size_t)s.shape.virtual_ranks + 2 * (size_t)s.shape.experts) * 8);
        twin_t tokens = twin_make(ranks * 8), told = twin_make(ranks * 8),
               runs = twin_make(ranks * sizeof(epx_run_t));
        memset(runs.host, 0, runs.bytes);
        twin_send(&tokens), twin_send(&told), twin_send(&runs), twin_send(&accepted);
        for (int device = 0; device <= 1; device++) {
            epx_shape_t shape = shaped_on(&s, device);
            epx_k_ring_layout_t args = {.shape = &shape,
                                        .notices = side_of(&n.notices, device),
                                        .notice_stride = n.stride,
                                        .counts = side_of(&count, device),
                                        .accepted = side_of(&accepted, device),
                                        .seats = side_of(&seats, device),
                                        .ordinal = side_of(&n.ordinal, device),
                                        .kept = side_of(&n.expert, device),
                                        .block_tokens = side_of(&tokens, device),
                                        .tokens_report = side_of(&told, device),
                                        .block_runs = side_of(&runs, device),
                                        .verdict = verdict_on(&verdict, device)};
            CHECK((device ? epx_cuda_ring_layout : epx_host_ring_layout)(&args, NULL) == EPX_OK, "%s",
                  epx_last_error());
        }
        verdict_same(&verdict);
        twin_same(&tokens, "block_tokens"), twin_same(&told, "tokens_report"), twin_same(&runs, "block_runs");
        if (n.dead)
            continue;
        twin_same(&accepted, "accepted"), twin_same(&n.expert, "kept");
    }
}

static void ring_block(void)
{
    for (dice_t dice; gpu_round(&dice, 80);) {
        int32_t experts = (int32_t)dice_range(&dice, 1, dice_range(&dice, 0, 9) == 0 ? 9000 : 300);
        int32_t top_k = (int32_t)dice_range(&dice, 1, 9), local = 0;
        int64_t tokens = dice_range(&dice, 0, gpu_small() ? 50 : 3000), n = tokens * top_k,
                rows_max = dice_range(&dice, 1, n + 50);
        int everything = dice_range(&dice, 0, 1) != 0, forward = dice_range(&dice, 0, 1) != 0;
        twin_t count_tokens = twin_make(8), locals = twin_make((size_t)experts * 4),
               kept = twin_make((size_t)n * 4 + 4);
        twin_t weights = twin_make((size_t)n * 4 + 4), place_weight = twin_make((size_t)n * 4 + 4),
               place = twin_make((size_t)n * 4 + 4);
        twin_t token = twin_make((size_t)rows_max * 4), row_weight = twin_make((size_t)rows_max * 4);
        twin_t origin = twin_make((size_t)rows_max * sizeof(epx_origin_t)), excess = twin_make(8);
        *(int64_t *)(void *)count_tokens.host = tokens;
        for (int32_t e = 0; e < experts; e++)
            ((int32_t *)(void *)locals.host)[e] = everything || dice_range(&dice, 0, 3) == 0 ? local++ : -1;
        for (int64_t a = 0; a < n; a++)
            ((int32_t *)(void *)kept.host)[a] = (int32_t)dice_range(&dice, -1, experts);
        twin_fill_numbers(&weights, EPX_FP32, &dice);
        twin_t start = twin_make((size_t)local * 8 + 8), count = twin_make((size_t)local * 8 + 8);
        twin_send(&count_tokens), twin_send(&locals), twin_send(&kept), twin_send(&weights),
            twin_send(&place_weight);
        twin_send(&place), twin_send(&token), twin_send(&row_weight), twin_send(&origin), twin_send(&excess);
        twin_send(&start), twin_send(&count);
        int32_t align = (int32_t)dice_range(&dice, 1, 20);
        for (int device = 0; device <= 1; device++) {
            epx_k_ring_block_t args = {.tokens = side_of(&count_tokens, device),
                                       .experts = experts,
                                       .top_k = top_k,
                                       .local_experts = local,
                                       .row_align = align,
                                       .rows_max = rows_max,
                                       .rank = 3,
                                       .local = side_of(&locals, device),
                                       .kept = side_of(&kept, device),
                                       .weights = side_of(&weights, device),
                                       .start = side_of(&start, device),
                                       .count = side_of(&count, device),
                                       .place = side_of(&place, device),
                                       .token = side_of(&token, device),
                                       .place_weight = forward ? side_of(&place_weight, device) : NULL,
                                       .row_weight = forward ? NULL : side_of(&row_weight, device),
                                       .origin = forward ? NULL : side_of(&origin, device),
                                       .excess = side_of(&excess, device)};
            CHECK((device ? epx_cuda_ring_block : epx_host_ring_block)(&args, NULL) == EPX_OK, "%s",
                  epx_last_error());
        }
        twin_same(&start, "start"), twin_same(&count, "count"), twin_same(&place, "place"),
            twin_same(&token, "token");
        twin_same(&place_weight, "place_weight"), twin_same(&row_weight, "row_weight"),
            twin_same(&origin, "origin");
        twin_same(&excess, "excess");
    }
}

const gpu_test_t gpu_ring_tests[] = {{"ring_layout", ring_layout}, {"ring_block", ring_block}, {NULL, NULL}};
