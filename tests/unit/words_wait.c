/* Waits for words on the host: what becomes of a plan whose wait gives up. SPDX-License-Identifier:
 * Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include <epx/kernels_words.h>

#include "kernels/host/table.h"

enum { RANKS = 3, ME = 1, MISSING = 2, EPOCH = 7, TIMEOUT_NS = 3000000 };

/* What one rank has: its words and abort words of one channel, one behind the other. */
typedef struct block {
    uint64_t word[RANKS], abort[RANKS];
} block_t;

static block_t block[RANKS];
static void *peers[RANKS];
static epx_word_halt_t halt;
static epx_plan_head_t head;
static epx_route_report_t report;

static epx_k_word_wait_t request(void)
{
    memset(block, 0, sizeof(block));
    halt = (epx_word_halt_t){0};
    head = (epx_plan_head_t){.valid = 1, .tokens = 5};
    report = (epx_route_report_t){0};
    for (int32_t r = 0; r < RANKS; r++) {
        peers[r] = &block[r];
        block[ME].word[r] = r == MISSING ? EPOCH - 1 : EPOCH;
    }
    return (epx_k_word_wait_t){.words = {.peer = peers,
                                         .rank = ME,
                                         .ranks = RANKS,
                                         .words = (int64_t)offsetof(block_t, word),
                                         .aborts = (int64_t)offsetof(block_t, abort),
                                         .halt = &halt},
                               .peer = -1,
                               .epoch = {.add = EPOCH},
                               .gate = &head.valid,
                               .verdict = {.head = &head, .report = &report, .route = 3},
                               .timeout_ns = TIMEOUT_NS};
}

/* Kernels behind it are shut out by the head. The report, by which a route is said to have failed, is left
 * alone. */
static void expect_shut(epx_status_t why)
{
    cr_expect_eq(halt.ended, 1);
    cr_expect_eq(halt.status, why, "status %d", halt.status);
    cr_expect_eq(head.valid, EPX_ERR_ABORTED, "the plan is %d", head.valid);
    cr_expect_eq(head.tokens, 0);
    cr_expect_eq(report.dead, 0);
    cr_expect_eq(report.status, 0);
}

Test(words_wait, time_is_up)
{
    epx_k_word_wait_t args = request();
    cr_assert_eq(epx_host_word_wait(&args, NULL), EPX_OK);
    expect_shut(EPX_ERR_TIMEOUT);
}

Test(words_wait, another_rank_ends_the_group)
{
    epx_k_word_wait_t args = request();
    block[ME].abort[MISSING] = EPX_ABORT_BIT;
    cr_assert_eq(epx_host_word_wait(&args, NULL), EPX_OK);
    expect_shut(EPX_ERR_PEER);
}

Test(words_wait, the_host_asks)
{
    epx_k_word_wait_t args = request();
    halt.by_host = EPX_ABORT_BIT;
    cr_assert_eq(epx_host_word_wait(&args, NULL), EPX_OK);
    expect_shut(EPX_ERR_ABORTED);
}

/* What has come has come, whoever ends the group behind it. */
Test(words_wait, data_wins)
{
    epx_k_word_wait_t args = request();
    block[ME].word[MISSING] = EPOCH;
    block[ME].abort[MISSING] = EPX_ABORT_BIT;
    cr_assert_eq(epx_host_word_wait(&args, NULL), EPX_OK);
    cr_expect_eq(head.valid, 1);
    cr_expect_eq(head.tokens, 5);
    cr_expect_eq(halt.ended, 0);
}
