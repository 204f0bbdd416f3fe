/* One rank of a comparison in this process: what the files of the session share. SPDX-License-Identifier:
 * Apache-2.0 */
#ifndef EPX_AB_RANK_H
#define EPX_AB_RANK_H

#include <stdatomic.h>

#include <epx/comm.h>

#include "bench/ab/result.h"
#include "bench/ab/settings.h"
#include "train/model.h"
#include "train/status.h"
#include "train/train.h"

/* Shared by the ranks that are threads of this process. Rank 0 alone writes the result. */
typedef struct epx_ab_session {
    const epx_ab_settings_t *settings;
    epx_ab_result_t *result;
    atomic_llong allocations; /* calls of the library's allocator, all ranks */
    epx_allocator_t allocator;
    epx_group_config_t reference; /* settings of the reference: no drops */
    int64_t started_ns;
} epx_ab_session_t;

typedef struct epx_ab_rank {
    epx_ab_session_t *session;
    epx_comm_h world;
    int64_t rank, ranks;
    int64_t group, replica; /* rank within its group, number of the group */
    epx_trainer_t *trainer;
    epx_snapshot_t *snapshot;
    /* The reference's choices at the first step of round 0, on rank 0: [layers][ranks, tokens, top_k]; owned.
     */
    int32_t *choices;
    int64_t choice_layers;
} epx_ab_rank_t;

/* What one run is to do. */
typedef struct epx_ab_order {
    int32_t arm; /* -1: the reference */
    epx_ab_part_t part;
    int32_t round;
    int64_t discard, steps;
    epx_group_config_t config;
    int32_t inject; /* the guard whose matter is to be perturbed in this run, or -1 */
    int32_t check_payload, check_gradients, keep_choices;
} epx_ab_order_t;

/* Does a run from opening to closing its group, and adds it to the result on rank 0. Collective. (one_run.c)
 */
int epx_ab_do_run(epx_ab_rank_t *self, const epx_ab_order_t *order);

/* Sends known rows through the open group, forward and backward, and compares every row and sum bit by bit.
 * `wrong` [EPX_AB_TEXT]: "" or what came back wrong, equal on all ranks. Collective. (payload.c) */
int epx_ab_check_payload(epx_ab_rank_t *self, char *wrong);

#endif
