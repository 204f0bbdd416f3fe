/*
 * Posts and waits of fabric `local` under stress: more ranks than processors, so that waits sleep. Whoever
 * posts wakes only who sleeps for that very word, which holds as long as both sides see each other's store in
 * one order: what slips is a wait that nobody ends, or rows that are older than their word.
 * SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>

#include <pthread.h>
#include <stdlib.h>

#include "base/bell.h"
#include "base/fail.h"
#include "core/comm_make.h"
#include "fabric/registry.h"

enum { RANKS = 5, ROW = 16, WAIT_MS = 10000, SLOTS = 4 };

static struct {
    epx_fabric_t *fabric[RANKS];
    /* [writer, slot]: plain stores, announced by words. */
    struct {
        _Alignas(128) uint64_t row[ROW];
    } rows[RANKS][SLOTS];
    uint64_t rounds;
} stage;

typedef struct player {
    pthread_t thread;
    int rank;
    const char *wrong;
    uint64_t at;
} player_t;

static void spin_a_little(uint32_t *random)
{
    *random = *random * 1664525u + 1013904223u;
    for (uint32_t i = *random >> 25; i > 0; i--)
        epx_spin_pause();
}

/* Each tells all others, and goes on when it has heard all others: nobody is more than a round ahead. */
static void *play(void *argument)
{
    player_t *player = argument;
    epx_fabric_t *fabric = stage.fabric[player->rank];
    uint32_t random = (uint32_t)player->rank + 1;
    for (uint64_t round = 1; round <= stage.rounds && player->wrong == NULL; round++) {
        player->at = round;
        for (int i = 0; i < ROW; i++)
            stage.rows[player->rank][round % SLOTS].row[i] = round * 31 + (uint64_t)i;
        spin_a_little(&random);
        epx_post_t post = {.channel = 0, .epoch = {.add = round}, .peer = EPX_ALL_PEERS};
        epx_wait_t wait = {.channel = 0,
                           .epoch = {.add = round},
                           .peer = EPX_ALL_PEERS,
                           .mode = EPX_WAIT_AT_LEAST,
                           .timeout_ms = WAIT_MS};
        epx_wait_result_t result;
        if (fabric->ops->post(fabric, &post, NULL) != EPX_OK)
            player->wrong = "a post failed";
        else if (fabric->ops->wait(fabric, &wait, &result, NULL) != EPX_OK)
            player->wrong = "a wait was not ended";
        for (int p = 0; p < RANKS && player->wrong == NULL; p++)
            for (int i = 0; i < ROW; i++)
                if (stage.rows[p][round % SLOTS].row[i] != round * 31 + (uint64_t)i)
                    player->wrong = "a word came before its row";
    }
    return NULL;
}

Test(words_stress, who_sleeps_for_a_word_is_woken, .timeout = 120)
{
    epx_fabric_config_t config = epx_comm_fabric_config(NULL);
    config.channels = 1;
    player_t player[RANKS] = {{0}};
    stage.rounds = getenv("STRESS_ROUNDS") != NULL ? strtoull(getenv("STRESS_ROUNDS"), NULL, 10) : 3000;
    cr_assert_eq(epx_fabric_threads(&config, RANKS, stage.fabric), EPX_OK, "%s", epx_last_error());
    for (int r = 0; r < RANKS; r++) {
        player[r].rank = r;
        cr_assert_eq(pthread_create(&player[r].thread, NULL, play, &player[r]), 0);
    }
    for (int r = 0; r < RANKS; r++) {
        pthread_join(player[r].thread, NULL);
        cr_expect_null(player[r].wrong, "rank %d, round %llu: %s", r, (unsigned long long)player[r].at,
                       player[r].wrong != NULL ? player[r].wrong : "");
    }
    for (int r = 0; r < RANKS; r++)
        stage.fabric[r]->ops->close(&stage.fabric[r]);
}
