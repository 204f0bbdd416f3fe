/* Threads as ranks. SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/ranks.h"

#include <epx/topology.h>

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/program.h"

/* Thousands of ranks must fit; no rank function of ours keeps large things on its stack. */
#define STACK_BYTES (1 << 20)

typedef struct player {
    epx_rank_t self;
    epx_rank_fn fn;
    atomic_int *failures;
    pthread_t thread;
} player_t;

int epx_rank_fail(epx_rank_t *self, int code, const char *format, ...)
{
    va_list values;
    if (self->code != EPX_EXIT_OK)
        return self->code;
    va_start(values, format);
    vsnprintf(self->error, sizeof self->error, format, values);
    va_end(values);
    self->code = code;
    self->order = atomic_fetch_add(((player_t *)self)->failures, 1); /* self is the player's first member */
    epx_comm_abort(self->comm);
    return code;
}

static int check(epx_rank_t *self, epx_status_t status, int code, const char *what)
{
    if (status == EPX_OK)
        return EPX_EXIT_OK;
    const char *text = epx_last_error();
    return epx_rank_fail(self, code, "%s: %s (%s)", what, text[0] ? text : epx_status_text(status),
                         epx_status_name(status));
}

int epx_rank_check(epx_rank_t *self, epx_status_t status, const char *what)
{
    return check(self, status, EPX_EXIT_FAILED, what);
}

int epx_rank_check_settings(epx_rank_t *self, epx_status_t status, const char *what)
{
    return check(self, status, status == EPX_ERR_ARG ? EPX_EXIT_USAGE : EPX_EXIT_FAILED, what);
}

static void *play(void *argument)
{
    player_t *player = argument;
    int code = epx_rank_check_settings(&player->self, epx_pin_rank(player->self.comm, NULL),
                                       "finding this rank's cores");
    if (code == EPX_EXIT_OK)
        code = player->fn(&player->self);
    if (code != EPX_EXIT_OK)
        epx_rank_fail(&player->self, code, "rank %d ended with code %d", player->self.rank, code);
    return NULL;
}

/* The player that failed first; NULL when none did. */
static const player_t *culprit(const player_t *players, int32_t ranks)
{
    const player_t *first = NULL;
    for (int32_t r = 0; r < ranks; r++)
        if (players[r].self.code != EPX_EXIT_OK &&
            (first == NULL || players[r].self.order < first->self.order))
            first = &players[r];
    return first;
}

static int report(const player_t *players, int32_t ranks, int failures)
{
    const player_t *first = culprit(players, ranks);
    if (first == NULL)
        return EPX_EXIT_OK;
    char others[64] = "";
    if (failures > 1)
        snprintf(others, sizeof others, " (%d other rank%s ended because of it)", failures - 1,
                 failures > 2 ? "s" : "");
    return epx_tool_fail(first->self.code, "rank %d: %s%s", first->self.rank, first->self.error, others);
}

/* Starts the threads; a rank without a thread fails, so that those that run end. */
static void start_all(player_t *players, int32_t ranks, int32_t *started_p)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    for (*started_p = 0; *started_p < ranks; (*started_p)++) {
        player_t *player = &players[*started_p];
        int rc = pthread_create(&player->thread, &attributes, play, player);
        if (rc != 0) {
            epx_rank_fail(&player->self, EPX_EXIT_FAILED, "no thread for this rank (%s): run fewer ranks",
                          strerror(rc));
            break;
        }
    }
    pthread_attr_destroy(&attributes);
}

int epx_ranks_play(int32_t ranks, epx_rank_fn fn, void *context)
{
    atomic_int failures = 0;
    int32_t started = 0;
    epx_comm_h *comms = epx_tool_alloc((size_t)ranks, sizeof(epx_comm_h));
    player_t *players = epx_tool_alloc((size_t)ranks, sizeof *players);
    int code;
    int32_t launched = 1;
    if (epx_comm_launched(NULL, &launched) == EPX_OK && launched > 1) {
        code = epx_tool_fail(
            EPX_EXIT_USAGE,
            "a launcher started %d processes, and this program's ranks are threads of one: start "
            "it without the launcher",
            launched);
        goto free_memory;
    }
    epx_status_t status = epx_comm_threads(ranks, comms);
    if (status != EPX_OK) {
        code = epx_tool_fail_status(status, "cannot make ranks of threads");
        goto free_memory;
    }
    for (int32_t r = 0; r < ranks; r++)
        players[r] = (player_t){.self = {.rank = r, .ranks = ranks, .comm = comms[r], .context = context},
                                .fn = fn,
                                .failures = &failures};
    start_all(players, ranks, &started);
    for (int32_t r = 0; r < started; r++)
        pthread_join(players[r].thread, NULL);
    for (int32_t r = 0; r < ranks; r++)
        epx_comm_destroy(&comms[r]);
    code = report(players, ranks, atomic_load(&failures));
free_memory:
    free(players);
    free(comms);
    return code;
}

int epx_ranks_join(int32_t ranks, epx_rank_fn fn, void *context)
{
    epx_comm_h world = NULL;
    atomic_int failures = 0;
    epx_status_t status = epx_comm_world(&world);
    if (status != EPX_OK)
        return epx_tool_fail_status(status, "cannot join the job");
    if (epx_comm_size(world) == 1) {
        epx_comm_destroy(&world);
        return epx_ranks_play(ranks, fn, context);
    }
    player_t player = {.self = {.rank = epx_comm_rank(world),
                                .ranks = epx_comm_size(world),
                                .comm = world,
                                .context = context},
                       .fn = fn,
                       .failures = &failures};
    play(&player);
    int code = report(&player, 1, atomic_load(&failures));
    epx_comm_destroy(&world);
    return code;
}
