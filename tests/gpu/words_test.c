/*
 * Words in the device's memory: posted, waited for, exchanged, and what becomes of those that wait in vain.
 * The blocks of several ranks are all on this GPU. SPDX-License-Identifier: Apache-2.0
 */
#include <epx/kernels_words.h>

#include <stdlib.h>
#include <string.h>

#include "device/cuda/cuda.h"
#include "gpu/check.h"
#include "kernels/cuda/table.h"
#include "kernels/host/table.h"

enum { RANKS_MAX = 9, CHANNELS = 3, FAILURES = 4, BOX_BYTES = 72, SHORT_NS = 3000000 };
#define LONG_NS ((int64_t)10000000000)

/* All ranks' blocks and what points to them, on both sides. */
typedef struct place {
    int32_t ranks;
    int64_t block_bytes;
    twin_t blocks, peers;
    epx_word_halt_t *halt, host_halt;
    epx_words_t shape; /* without what differs between sides and ranks */
} place_t;

static place_t make_place(dice_t *dice)
{
    place_t p = {.ranks = (int32_t)dice_range(dice, 1, RANKS_MAX)};
    int64_t row = p.ranks * (int64_t)sizeof(uint64_t), at = 0;
    p.shape.ranks = p.ranks;
    p.shape.box_bytes = BOX_BYTES;
    p.shape.words = at, at += CHANNELS * row;
    p.shape.failures = at, at += FAILURES * row;
    p.shape.aborts = at, at += row;
    p.shape.steps = at, at += row;
    p.shape.boxes = at, at += 2 * p.ranks * (int64_t)BOX_BYTES;
    if (dice_range(dice, 0, 1) != 0)
        p.shape.lines = at, at += 4 * p.ranks * (int64_t)BOX_BYTES;
    p.block_bytes = (at + 255) / 256 * 256;
    p.blocks = twin_make((size_t)(p.ranks * p.block_bytes));
    p.peers = twin_make((size_t)p.ranks * sizeof(void *));
    memset(p.blocks.host, 0, p.blocks.bytes);
    twin_send(&p.blocks);
    for (int side = 1; side >= 0; side--) { /* the device's pointers first, then those that stay */
        for (int32_t r = 0; r < p.ranks; r++)
            ((void **)(void *)p.peers.host)[r] = (char *)side_of(&p.blocks, side) + r * p.block_bytes;
        if (side == 1) {
            twin_send(&p.peers);
            gpu_finish();
        }
    }
    p.halt = epx_device_cuda.allocate_shared(sizeof(*p.halt));
    CHECK(p.halt != NULL, "no memory that both see");
    if (p.halt != NULL)
        memset(p.halt, 0, sizeof(*p.halt));
    return p;
}

static void free_place(place_t *p)
{
    gpu_finish();
    if (p->halt != NULL)
        epx_device_cuda.release_shared(p->halt, sizeof(*p->halt));
    p->halt = NULL;
}

static epx_words_t words_of(place_t *p, int32_t rank, int device)
{
    epx_words_t words = p->shape;
    words.rank = rank;
    words.peer = side_of(&p->peers, device);
    words.halt = device ? p->halt : &p->host_halt;
    return words;
}

static void post_both(place_t *p, epx_k_word_post_t args, int32_t rank, const twin_t *gate)
{
    for (int side = 0; side < 2; side++) {
        args.words = words_of(p, rank, side);
        args.gate = gate != NULL ? side_of(gate, side) : NULL;
        epx_status_t status = side ? epx_cuda_word_post(&args, NULL) : epx_host_word_post(&args, NULL);
        CHECK(status == EPX_OK, "side %d: %s", side, epx_last_error());
    }
}

/* Any posts at all leave what the host's leave. */
static void word_post(void)
{
    for (dice_t dice; gpu_round(&dice, 40);) {
        place_t p = make_place(&dice);
        twin_t gate = twin_make(3 * sizeof(int32_t));
        for (int i = 0; i < 3; i++)
            ((int32_t *)(void *)gate.host)[i] = 1 - i; /* open, shut, dead */
        twin_send(&gate);
        for (int i = 0; i < 20; i++) {
            int32_t rank = (int32_t)dice_range(&dice, 0, p.ranks - 1), fails = dice_range(&dice, 0, 2) == 0;
            epx_k_word_post_t args = {.failure = fails,
                                      .channel = (int32_t)dice_range(&dice, 0, CHANNELS - 1),
                                      .peer = (int32_t)dice_range(&dice, -1, p.ranks - 1),
                                      .epoch = {.add = (uint64_t)dice_range(&dice, 1, 1000)}};
            twin_t gated = gate;
            int64_t which = dice_range(&dice, 0, 2) * (int64_t)sizeof(int32_t);
            gated.host += which, gated.device += which;
            if (fails && dice_range(&dice, 0, 1))
                args.channel = 1, args.failure_rows = FAILURES - 1;
            args.only_failed = dice_range(&dice, 0, 3) == 0;
            post_both(&p, args, rank, args.only_failed || dice_range(&dice, 0, 1) ? &gated : NULL);
        }
        twin_same(&p.blocks, "words");
        free_place(&p);
    }
}

/* Routes, begins and ends of passes count as the host's do. */
static void lane_words(void)
{
    for (dice_t dice; gpu_round(&dice, 40);) {
        twin_t words = twin_make(sizeof(epx_lane_words_t)), head = twin_make(sizeof(epx_plan_head_t));
        memset(words.host, 0, words.bytes);
        memset(head.host, 0, head.bytes);
        twin_send(&words), twin_send(&head);
        for (int i = 0; i < 12; i++) {
            epx_k_lane_t args = {.step = (epx_lane_step_t)dice_range(&dice, EPX_LANE_ROUTE, EPX_LANE_END),
                                 .generation = (uint64_t)dice_range(&dice, 0, 65535)};
            args.value.valid = (int32_t)dice_range(&dice, 0, 1);
            for (int c = 0; c < EPX_LANE_CREDITS; c++)
                args.acknowledged[c] = (uint64_t)dice_range(&dice, 0, 5);
            for (int side = 0; side < 2; side++) {
                args.words = side_of(&words, side);
                args.head = side_of(&head, side);
                CHECK((side ? epx_cuda_lane(&args, NULL) : epx_host_lane(&args, NULL)) == EPX_OK,
                      "side %d: %s", side, epx_last_error());
            }
        }
        twin_same(&words, "the lane's words"), twin_same(&head, "the plan's head");
    }
}

/* A wait whose words are there ends, hands over what it is to tell, and ends nothing. */
static void word_wait(void)
{
    for (dice_t dice; gpu_round(&dice, 30);) {
        place_t p = make_place(&dice);
        int32_t channel = (int32_t)dice_range(&dice, 0, CHANNELS - 1);
        uint64_t epoch = (uint64_t)dice_range(&dice, 5, 100), told[4] = {1, 2, 3, 4};
        twin_t from = twin_make(sizeof(told));
        uint64_t *to = epx_device_cuda.allocate_shared(sizeof(told));
        memcpy(from.host, told, sizeof(told));
        twin_send(&from);
        memset(to, 0, sizeof(told));
        for (int32_t r = 0; r < p.ranks; r++)
            post_both(&p, (epx_k_word_post_t){.channel = channel, .peer = -1, .epoch = {.add = epoch}}, r,
                      NULL);
        for (int32_t r = 0; r < p.ranks; r++) {
            epx_k_word_wait_t args = {.words = words_of(&p, r, 1),
                                      .channel = channel,
                                      .peer = -1,
                                      .epoch = {.add = epoch},
                                      .verdict = {.head = NULL},
                                      .timeout_ns = LONG_NS};
            args.at_least = (int32_t)dice_range(&dice, 0, 1);
            args.epoch.add -= args.at_least ? (uint64_t)dice_range(&dice, 0, 3) : 0;
            args.beside =
                (epx_word_beside_t){.tell_from = from.device, .tell_to = to, .tell_bytes = sizeof(told)};
            CHECK(epx_cuda_word_wait(&args, NULL) == EPX_OK, "%s", epx_last_error());
        }
        gpu_finish();
        CHECK(memcmp(to, told, sizeof(told)) == 0, "what is told: %d %d", (int)to[0], (int)to[3]);
        CHECK(p.halt->ended == 0, "a wait that ended well gave up: status %d", p.halt->status);
        twin_same(&p.blocks, "words");
        epx_device_cuda.release_shared(to, sizeof(told));
        free_place(&p);
    }
}

/*
 * A wait right behind its rank's own post, which begins the pass: the epoch is that pass's, though the base
 * may be an old one yet, whose words are still there. What the others do before they post, some of it when
 * the wait has begun, is seen behind it.
 */
static void word_wait_behind_post(void)
{
    enum { GENERATION = 7, CALL = 3, TOLD = 4 };
    for (dice_t dice; gpu_round(&dice, 30);) {
        place_t p = make_place(&dice);
        int32_t rank = (int32_t)dice_range(&dice, 0, p.ranks - 1), before = gpu_small() != 0;
        twin_t lane = twin_make(sizeof(epx_lane_words_t)), head = twin_make(sizeof(epx_plan_head_t)),
               from = twin_make(TOLD * 8), sent = twin_make(TOLD * 8);
        epx_lane_words_t *words = (epx_lane_words_t *)(void *)lane.host;
        epx_plan_head_t *plan = (epx_plan_head_t *)(void *)head.host;
        memset(words, 0, lane.bytes), memset(plan, 0, head.bytes), memset(from.host, 0, from.bytes);
        words->passes = (uint64_t)dice_range(&dice, 1, 1000);
        plan->number = (uint64_t)dice_range(&dice, 1, 1000), plan->valid = 1;
        uint64_t base = (uint64_t)GENERATION << 48 | words->passes << 24 | plan->number << 14,
                 old = base - ((uint64_t)1 << 24), *to = epx_device_cuda.allocate_shared(TOLD * 8);
        words->base = old;
        twin_send(&lane), twin_send(&head), twin_send(&from), twin_send(&sent);
        epx_stream_t mine = NULL, others = NULL;
        CHECK(epx_device_cuda.stream_create(&mine) == EPX_OK, "%s", epx_last_error());
        CHECK(epx_device_cuda.stream_create(&others) == EPX_OK, "%s", epx_last_error());
        epx_k_word_post_t post = {.channel = 1, .peer = -1, .epoch = {.add = old + CALL}};
        for (int32_t r = 0; r < p.ranks; r++)
            post_both(&p, post, r, NULL);
        gpu_finish();
        epx_lane_begin_of_t pass = {.words = (epx_lane_words_t *)(void *)lane.device,
                                    .head = (const epx_plan_head_t *)(const void *)head.device,
                                    .generation = GENERATION};
        for (int32_t turn = 0; turn < 2; turn++) {
            if (turn == before) {
                post.words = words_of(&p, rank, 1);
                post.epoch = (epx_epoch_t){.base = &pass.words->base, .add = CALL};
                post.begin = pass;
                epx_k_word_wait_t wait = {
                    .words = words_of(&p, rank, 1),
                    .channel = 1,
                    .peer = -1,
                    .epoch = post.epoch,
                    .gate = &pass.head->valid,
                    .verdict = {.head = NULL},
                    .beside = {.tell_from = from.device, .tell_to = to, .tell_bytes = TOLD * 8},
                    .timeout_ns = LONG_NS,
                    .behind_post = 1,
                    .begin = pass};
                CHECK(epx_cuda_word_post(&post, mine) == EPX_OK, "%s", epx_last_error());
                CHECK(epx_cuda_word_wait(&wait, mine) == EPX_OK, "%s", epx_last_error());
                continue;
            }
            CHECK(epx_device_cuda.copy(from.device, sent.device, sent.bytes, others) == EPX_OK, "%s",
                  epx_last_error());
            for (int32_t r = 0; r < p.ranks; r++) {
                post = (epx_k_word_post_t){
                    .words = words_of(&p, r, 1), .channel = 1, .peer = -1, .epoch = {.add = base + CALL}};
                if (r != rank)
                    CHECK(epx_cuda_word_post(&post, others) == EPX_OK, "%s", epx_last_error());
            }
            if (before)
                CHECK(epx_device_cuda.synchronize(others) == EPX_OK, "%s", epx_last_error());
        }
        CHECK(epx_device_cuda.synchronize(others) == EPX_OK, "%s", epx_last_error());
        CHECK(epx_device_cuda.synchronize(mine) == EPX_OK, "%s", epx_last_error());
        epx_device_cuda.stream_destroy(mine), epx_device_cuda.stream_destroy(others);
        CHECK(p.halt->ended == 0, "a wait gave up: status %d, peer %d", p.halt->status, p.halt->peer);
        /* A rank alone waits for nobody else's copy. */
        CHECK(p.ranks == 1 || memcmp(to, sent.host, sent.bytes) == 0, "what is told is older than the words");
        words->base = base;
        twin_same(&lane, "the lane's words");
        epx_device_cuda.release_shared(to, TOLD * 8);
        free_place(&p);
    }
}

/* One rank's word is missing: the wait ends in time, says for whom it waited, and ends the group at all
 * ranks. Its plan is dead on the device, of which the report, made for routes, says nothing. */
static void word_wait_in_vain(void)
{
    for (dice_t dice; gpu_round(&dice, 12);) {
        place_t p = make_place(&dice);
        int32_t rank = (int32_t)dice_range(&dice, 0, p.ranks - 1),
                missing = (int32_t)dice_range(&dice, 0, p.ranks - 1);
        uint64_t epoch = (uint64_t)dice_range(&dice, 5, 100);
        twin_t head = twin_make(sizeof(epx_plan_head_t)), report = twin_make(sizeof(epx_route_report_t));
        epx_plan_head_t *plan = (epx_plan_head_t *)(void *)head.host;
        memset(plan, 0, head.bytes), memset(report.host, 0, report.bytes);
        plan->valid = 1, plan->tokens = 5;
        twin_send(&head), twin_send(&report);
        for (int32_t r = 0; r < p.ranks; r++)
            post_both(&p,
                      (epx_k_word_post_t){.channel = 1, .peer = -1, .epoch = {.add = epoch - (r == missing)}},
                      r, NULL);
        epx_k_word_wait_t args = {.words = words_of(&p, rank, 1),
                                  .channel = 1,
                                  .peer = -1,
                                  .at_least = (int32_t)dice_range(&dice, 0, 1),
                                  .epoch = {.add = epoch},
                                  .verdict = {.head = (epx_plan_head_t *)(void *)head.device,
                                              .report = (epx_route_report_t *)(void *)report.device,
                                              .route = 3},
                                  .timeout_ns = SHORT_NS,
                                  .tag = 77};
        CHECK(epx_cuda_word_wait(&args, NULL) == EPX_OK, "%s", epx_last_error());
        gpu_finish();
        const epx_word_halt_t *h = p.halt;
        CHECK(h->ended == 1 && h->status == EPX_ERR_TIMEOUT && h->peer == missing && h->culprit == missing &&
                  h->tag == 77 && h->expected == epoch && h->seen == epoch - 1 && h->exchange == 0,
              "ended %d, status %d, peer %d (not %d), culprit %d, tag %d, expected %d, seen %d (not %d, %d)",
              (int)h->ended, h->status, h->peer, missing, h->culprit, (int)h->tag, (int)h->expected,
              (int)h->seen, (int)epoch, (int)epoch - 1);
        for (int32_t r = 0; r < p.ranks; r++) /* as the device must have left it */
            ((uint64_t *)(void *)(p.blocks.host + r * p.block_bytes + p.shape.aborts))[rank] =
                EPX_ABORT_BIT | (uint64_t)(uint32_t)(missing + 1);
        twin_same(&p.blocks, "words behind the end");
        plan->valid = EPX_ERR_ABORTED, plan->tokens = 0;
        twin_same(&head, "the head behind the end"), twin_same(&report, "the report behind the end");
        /* Nothing is set any more. */
        post_both(&p, (epx_k_word_post_t){.channel = 2, .peer = -1, .epoch = {.add = 9}}, rank, NULL);
        twin_same(&p.blocks, "words posted behind the end");
        free_place(&p);
    }
}

/* Every rank's blocks reach every rank, step after step, the ranks in streams of their own. Where a tool runs
 * one kernel at a time there is one rank, since ranks wait for each other. */
static void word_exchange(void)
{
    for (dice_t dice; gpu_round(&dice, 10);) {
        place_t p = make_place(&dice);
        enum { STEPS = 5 };
        int32_t ranks = gpu_small() ? 1 : p.ranks;
        p.shape.ranks = ranks;
        int64_t bytes = dice_range(&dice, 1, BOX_BYTES);
        epx_stream_t stream[RANKS_MAX] = {NULL};
        twin_t step = twin_make((size_t)ranks * 8), done = twin_make((size_t)ranks * 4),
               send = twin_make((size_t)(ranks * STEPS) * BOX_BYTES),
               got = twin_make((size_t)(ranks * STEPS * ranks) * BOX_BYTES);
        memset(step.host, 0, step.bytes), memset(done.host, 0, done.bytes), memset(got.host, 0, got.bytes);
        for (size_t i = 0; i < send.bytes; i++)
            send.host[i] = (unsigned char)dice_bits(&dice);
        twin_send(&step), twin_send(&done), twin_send(&send), twin_send(&got);
        gpu_finish();
        for (int32_t r = 0; r < ranks; r++)
            CHECK(epx_device_cuda.stream_create(&stream[r]) == EPX_OK, "%s", epx_last_error());
        for (int s = 0; s < STEPS; s++) {
            for (int32_t r = 0; r < ranks; r++) {
                int64_t mine = (int64_t)(s * ranks + r) * BOX_BYTES;
                epx_k_word_exchange_t args = {.words = words_of(&p, r, 1),
                                              .step = (uint64_t *)(void *)step.device + r,
                                              .done = (uint32_t *)(void *)done.device + r,
                                              .send = send.device + mine,
                                              .receive = got.device + mine * ranks,
                                              .stride = BOX_BYTES,
                                              .bytes = bytes,
                                              .timeout_ns = LONG_NS};
                CHECK(epx_cuda_word_exchange(&args, stream[r]) == EPX_OK, "%s", epx_last_error());
                for (int32_t from = 0; from < ranks; from++)
                    memcpy(got.host + mine * ranks + from * BOX_BYTES,
                           send.host + (int64_t)(s * ranks + from) * BOX_BYTES, (size_t)bytes);
                ((uint64_t *)(void *)step.host)[r] = (uint64_t)s + 1;
            }
        }
        for (int32_t r = 0; r < ranks; r++) {
            CHECK(epx_device_cuda.synchronize(stream[r]) == EPX_OK, "%s", epx_last_error());
            epx_device_cuda.stream_destroy(stream[r]);
        }
        CHECK(p.halt->ended == 0, "an exchange gave up: status %d, peer %d", p.halt->status, p.halt->peer);
        twin_same(&got, "blocks"), twin_same(&step, "steps"), twin_same(&done, "done");
        free_place(&p);
    }
}

const gpu_test_t gpu_words_tests[] = {{"word_post", word_post},
                                      {"lane_words", lane_words},
                                      {"word_wait", word_wait},
                                      {"word_wait_behind_post", word_wait_behind_post},
                                      {"word_wait_in_vain", word_wait_in_vain},
                                      {"word_exchange", word_exchange},
                                      {NULL, NULL}};
