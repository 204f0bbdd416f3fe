/* Ranks as threads of this process, or this process as one rank. SPDX-License-Identifier: Apache-2.0 */
#include <epx/topology.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "math.h"
#include "status.h"
#include "train.h"

typedef struct rank {
    pthread_t thread;
    epx_comm_h comm;
    int64_t number;
    int (*run)(epx_comm_h comm, int64_t rank, void *context);
    void *context;
    int code;
    int followed; /* 1: it failed because another rank did */
    char error[1024];
} rank_t;

static void *run_rank(void *argument)
{
    rank_t *rank = argument;
    rank->code = epx_train_setting_status(epx_pin_rank(rank->comm, NULL));
    if (rank->code == EPX_TRAIN_OK)
        rank->code = rank->run(rank->comm, rank->number, rank->context);
    if (rank->code != EPX_TRAIN_OK) {
        rank->followed = epx_train_followed();
        strncpy(rank->error, epx_train_error(), sizeof rank->error - 1);
        epx_comm_abort(rank->comm);
    }
    return NULL;
}

/* The code and the sentence of the first rank that failed by itself, or else of the first that failed. */
static int judge(const rank_t *rank, int64_t ranks)
{
    const rank_t *guilty = NULL;
    for (int64_t r = 0; r < ranks; r++)
        if (rank[r].code != EPX_TRAIN_OK && (!guilty || (guilty->followed && !rank[r].followed)))
            guilty = &rank[r];
    return guilty ? epx_train_fail(guilty->code, "%s", guilty->error) : EPX_TRAIN_OK;
}

static int run_threads(int64_t ranks, int (*run)(epx_comm_h, int64_t, void *), void *context)
{
    rank_t *rank = calloc((size_t)ranks, sizeof *rank);
    epx_comm_h *comms = calloc((size_t)ranks, sizeof *comms);
    int code = rank && comms ? EPX_TRAIN_OK
                             : epx_train_fail(EPX_TRAIN_FAILED, "no memory for %lld ranks", (long long)ranks);
    if (code == EPX_TRAIN_OK)
        code = epx_train_status(epx_comm_threads((int32_t)ranks, comms));
    int64_t started = 0;
    for (; code == EPX_TRAIN_OK && started < ranks; started++) {
        rank[started] = (rank_t){.comm = comms[started], .number = started, .run = run, .context = context};
        if (pthread_create(&rank[started].thread, NULL, run_rank, &rank[started]) != 0) {
            code = epx_train_fail(EPX_TRAIN_FAILED, "cannot start thread %lld of %lld: take fewer ranks",
                                  (long long)started, (long long)ranks);
            epx_comm_abort(comms[started]);
            break;
        }
    }
    for (int64_t r = 0; r < started; r++)
        pthread_join(rank[r].thread, NULL);
    if (code == EPX_TRAIN_OK)
        code = judge(rank, ranks);
    for (int64_t r = 0; comms && r < ranks; r++)
        epx_comm_destroy(&comms[r]);
    free(comms);
    free(rank);
    return code;
}

int epx_ranks_run(int64_t ranks, int (*run)(epx_comm_h comm, int64_t rank, void *context), void *context)
{
    epx_comm_h world = NULL;
    epx_math_gemm_setup();
    int code = epx_train_setting_status(epx_comm_world(&world));
    if (code != EPX_TRAIN_OK)
        return code;
    int64_t size = epx_comm_size(world);
    if (size == 1) {
        epx_comm_destroy(&world);
        return run_threads(ranks, run, context);
    }
    rank_t rank = {.comm = world, .number = epx_comm_rank(world), .run = run, .context = context};
    code = size == ranks ? EPX_TRAIN_OK
                         : epx_train_fail(EPX_TRAIN_USAGE,
                                          "%lld ranks are asked for and the launcher started %lld: "
                                          "make them agree",
                                          (long long)ranks, (long long)size);
    if (code == EPX_TRAIN_OK) {
        run_rank(&rank);
        code = judge(&rank, 1);
    }
    epx_comm_destroy(&world);
    return code;
}
