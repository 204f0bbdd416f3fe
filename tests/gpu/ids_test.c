/* read_ids: checked, counted, numbered. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include <epx/kernels_words.h>

#include "gpu/shapes.h"
#include "kernels/cuda/table.h"
#include "kernels/host/table.h"

typedef struct ids_case {
    twin_t ids, tokens, weights, copy, expert, ordinal, counts, skipped, notice, room;
    epx_k_read_ids_t args;
    int64_t known; /* T */
    int with_ordinal, device_tokens;
} ids_case_t;

static epx_k_read_ids_t ids_args(const ids_case_t *c, int device)
{
    epx_k_read_ids_t args = c->args;
    args.ids = side_of(&c->ids, device);
    args.tokens = c->device_tokens ? 0 : c->known;
    args.tokens_device = c->device_tokens ? side_of(&c->tokens, device) : NULL;
    args.weights = side_or_null(&c->weights, device);
    args.weights_copy = side_of(&c->copy, device);
    args.expert = side_of(&c->expert, device);
    args.ordinal = c->with_ordinal ? side_of(&c->ordinal, device) : NULL;
    args.counts = side_of(&c->counts, device);
    args.skipped = side_of(&c->skipped, device);
    args.notice = side_of(&c->notice, device);
    args.room = side_or_null(&c->room, device);
    args.room_words = (int64_t)(c->room.bytes / 8);
    return args;
}

static void draw(ids_case_t *c, int64_t n, int64_t bad, dice_t *dice)
{
    int64_t *ids = malloc((size_t)n * 8 + 8);
    draw_ids(ids, n, c->args.experts, dice);
    for (int64_t i = 0; i < bad && n > 0; i++)
        ids[dice_range(dice, 0, n - 1)] =
            dice_range(dice, 0, 1) ? c->args.experts + dice_range(dice, 0, 3) : -2;
    for (int64_t a = 0; a < n; a++) {
        if (c->args.id_type == EPX_INT64)
            ((int64_t *)(void *)c->ids.host)[a] =
                bad > 0 && dice_range(dice, 0, 99) == 0 ? INT64_MAX : ids[a];
        else
            ((int32_t *)(void *)c->ids.host)[a] = (int32_t)ids[a];
    }
    free(ids);
}

static ids_case_t make_case(dice_t *dice, int32_t experts, int64_t tokens)
{
    ids_case_t c = {.known = tokens,
                    .with_ordinal = dice_range(dice, 0, 3) != 0,
                    .device_tokens = dice_range(dice, 0, 3) == 0};
    int64_t bad = dice_range(dice, 0, 4) == 0 ? dice_range(dice, 1, 3) : 0;
    c.args.experts = experts;
    c.args.id_type = dice_range(dice, 0, 1) ? EPX_INT64 : EPX_INT32;
    c.args.tokens_max = (int32_t)tokens + 7;
    c.args.top_k = (int32_t)dice_range(dice, 1, experts < 12 ? experts : 12);
    c.args.columns = c.args.top_k + (int32_t)(dice_range(dice, 0, 3) == 0 ? dice_range(dice, 1, 4) : 0);
    c.args.splits = (int32_t)(dice_range(dice, 0, 2) == 0 ? dice_range(dice, 2, 40) : 1);
    int64_t n = tokens * c.args.columns;
    c.ids = twin_make((size_t)n * (c.args.id_type == EPX_INT64 ? 8 : 4) + 8);
    c.tokens = twin_make(8);
    c.weights = twin_make(dice_range(dice, 0, 1) ? (size_t)n * 4 + 4 : 0);
    c.copy = twin_make((size_t)n * 4 + 4), c.expert = twin_make((size_t)n * 4 + 4),
    c.ordinal = twin_make((size_t)n * 4 + 4);
    c.counts = twin_make((size_t)c.args.splits * (size_t)experts * 4);
    c.skipped = twin_make(8), c.notice = twin_make(sizeof(epx_route_notice_t));
    c.room = room_make(dice, n, experts + 2);
    draw(&c, n, bad, dice);
    if (dice_range(dice, 0, 15) == 0)
        c.known = dice_range(dice, 0, 1) ? -1 : c.args.tokens_max + 1;
    *(int64_t *)(void *)c.tokens.host = c.known;
    twin_send(&c.ids), twin_send(&c.tokens), twin_send(&c.weights), twin_send(&c.copy), twin_send(&c.expert);
    twin_send(&c.ordinal), twin_send(&c.counts), twin_send(&c.skipped), twin_send(&c.notice);
    return c;
}

/* What a bad route leaves: nothing that counts. */
static void expect_nothing(const ids_case_t *c)
{
    int32_t *counts = malloc(c->counts.bytes);
    int64_t sum = 0;
    twin_fetch(&c->counts, counts);
    for (size_t i = 0; i < c->counts.bytes / 4; i++)
        sum += counts[i];
    CHECK(sum == 0, "counts of a bad route add up to %lld", (long long)sum);
    free(counts);
}

/* Twice: the room is as the first call left it. A route's head is counted each time. */
static void compare(const ids_case_t *c)
{
    epx_k_read_ids_t host = ids_args(c, 0), device = ids_args(c, 1);
    CHECK(epx_host_read_ids(&host, NULL) == EPX_OK, "host");
    for (int call = 0; call < 2; call++)
        CHECK(epx_cuda_read_ids(&device, NULL) == EPX_OK, "%s", epx_last_error());
    twin_same(&c->notice, "notice");
    if (host.notice->bad_at != EPX_NOTICE_GOOD) {
        expect_nothing(c);
        return;
    }
    twin_same(&c->expert, "expert"), twin_same(&c->ordinal, "ordinal"), twin_same(&c->counts, "counts");
    twin_same(&c->skipped, "skipped"), twin_same(&c->copy, "weights");
}

/* The plan's head, which the same kernel begins; skipped stands in it. */
static void begin_head(void)
{
    for (dice_t dice; gpu_round(&dice, 20);) {
        ids_case_t c = make_case(&dice, (int32_t)dice_range(&dice, 1, 300),
                                 dice_range(&dice, 0, gpu_small() ? 100 : 4000));
        twin_t words = twin_make(sizeof(epx_lane_words_t)), head = twin_make(sizeof(epx_plan_head_t));
        ((epx_lane_words_t *)(void *)words.host)->routes = 41;
        twin_send(&words), twin_send(&head);
        for (int device = 0; device <= 1; device++) {
            epx_plan_head_t *at = side_of(&head, device);
            epx_k_lane_t lane = {.step = EPX_LANE_ROUTE,
                                 .words = side_of(&words, device),
                                 .head = at,
                                 .value = {.magic = EPX_PLAN_MAGIC, .waves = 3, .route = 7}};
            epx_k_read_ids_t args = ids_args(&c, device);
            args.lane = &lane, args.skipped = &at->skipped;
            CHECK((device ? epx_cuda_read_ids : epx_host_read_ids)(&args, NULL) == EPX_OK, "%s",
                  epx_last_error());
        }
        twin_same(&words, "words");
        if (((epx_route_notice_t *)(void *)c.notice.host)->bad_at == EPX_NOTICE_GOOD)
            twin_same(&head, "head");
    }
}

static void read_ids(void)
{
    for (dice_t dice; gpu_round(&dice, 120);) {
        int32_t most = dice_range(&dice, 0, 1) ? 20 : gpu_small() ? 100 : 2500;
        int32_t experts = (int32_t)dice_range(&dice, 1, most);
        int64_t tokens = dice_range(&dice, 0, gpu_small() ? 60 : dice_range(&dice, 0, 1) ? 100 : 5000);
        ids_case_t c = make_case(&dice, experts, tokens);
        compare(&c);
    }
}

/* More experts than fit into shared memory at once. */
static void read_ids_of_many_experts(void)
{
    for (dice_t dice; gpu_round(&dice, 6);) {
        ids_case_t c = make_case(&dice, (int32_t)dice_range(&dice, 5000, gpu_small() ? 6000 : 60000),
                                 dice_range(&dice, 0, gpu_small() ? 60 : 3000));
        compare(&c);
    }
}

static void read_many_ids(void)
{
    for (dice_t dice; gpu_round(&dice, 4);) {
        ids_case_t c =
            make_case(&dice, gpu_small() ? 24 : 256, gpu_small() ? 600 : dice_range(&dice, 8192, 60000));
        compare(&c);
    }
}

const gpu_test_t gpu_ids_tests[] = {{"read_ids", read_ids},
                                    {"read_ids_of_many_experts", read_ids_of_many_experts},
                                    {"read_many_ids", read_many_ids},
                                    {"read_ids_begins_a_head", begin_head},
                                    {NULL, NULL}};
