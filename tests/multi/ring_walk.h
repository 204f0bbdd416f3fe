/*
 * Walks through any legal order of calls on several lanes, the same on every rank, with ranks that fall
 * asleep. SPDX-License-Identifier: Apache-2.0
 *
 * A walk chooses at random among all calls that the rules allow next: starts ahead of finishes, waves in
 * flight up to depth, lanes and directions mixed, waves dispatched again or left out. Everything that comes
 * back is compared with the oracle.
 */
#ifndef TESTS_MULTI_RING_WALK_H
#define TESTS_MULTI_RING_WALK_H

#include "support/drive.h"

enum { WALK_LANES = 3, WALK_WAVES = 16, WALK_DEPTH = 4 };

/* Who sleeps before a call. */
typedef struct sleepers {
    int percent, ms;        /* every rank, at random, 1 .. ms */
    int rank, every, phase; /* this rank at every so many calls, ms long; rank -1: nobody */
} sleepers_t;

typedef struct walk_lane {
    const oracle_t *o;
    epx_plan_h plan;
    pass_t pass;
    int held; /* begins no pass */
    int passes_left, waves;
    int direction;               /* 0 idle, 1 forward, 2 backward */
    int started[4], finished[4]; /* dispatch, combine, combine_backward, dispatch_backward */
    int again;                   /* backward: x is dispatched again, some waves left out */
    buffer_t x, dout, sum, dweight, dx_rows[WALK_DEPTH];
    wave_buffers_t forward[WALK_DEPTH], backward[WALK_DEPTH];
    epx_batch_t batch[WALK_DEPTH], dy[WALK_DEPTH];
} walk_lane_t;

typedef struct walk {
    session_t *session;
    int lanes, calls, failed;
    dice_t order, naps; /* order is the same on all ranks */
    sleepers_t sleepers;
    walk_lane_t lane[WALK_LANES];
} walk_t;

/* oracle [lanes]: one routing for each lane. */
void walk_new(walk_t *walk, session_t *session, const oracle_t *const *oracle, int lanes, uint64_t seed,
              sleepers_t sleepers);
/* Creates the lane's plan and routes it. */
void walk_route(walk_t *walk, int lane);
/* Destroys the lane's plan wherever its pass stands. */
void walk_abandon(walk_t *walk, int lane);
/* A plan of the lane from bytes that an equal plan has routed. */
void walk_attach(walk_t *walk, int lane, void *memory);
/* Makes `passes` passes on every lane, or calls_max calls (0: no limit). 1: all went well. */
int walk_run(walk_t *walk, int passes, int calls_max);
void walk_free(walk_t *walk);

#endif
