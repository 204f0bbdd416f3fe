/*
 * Ranks as fibres of one thread, with a time of their own. SPDX-License-Identifier: Apache-2.0
 *
 * One dice decides who goes on, which message arrives next and how long anything takes, so a seed is a whole
 * run: the same seed gives the same run, step by step, and the same trace.
 *
 * A fibre runs until it gives up its turn: by waiting for a condition, by sleeping, or by sim_turn. Time
 * passes only between turns. When nobody can go on it jumps to the next moment at which somebody can; where
 * there is none, every fibre waits for ever, which is a deadlock and ends the run.
 */
#ifndef TESTS_SIM_FIBRES_H
#define TESTS_SIM_FIBRES_H

#include <stdint.h>

#include "support/number.h"

typedef void (*sim_fn)(void *arg);
typedef int (*sim_ready_fn)(void *context);

typedef enum sim_end {
    SIM_ENDED = 0,
    SIM_DEADLOCK, /* all that are left wait for ever */
    SIM_TOO_LONG  /* more turns than were allowed */
} sim_end_t;

/* Something that happens between turns: messages of a simulated wire. */
typedef struct sim_wire {
    void *context;
    /* How many can arrive now; when the next one can, of those that cannot yet (INT64_MAX: none). */
    int (*ready)(void *context, int64_t *next_ns_p);
    /* Delivers the n-th of them. Returns a number for the trace. */
    uint64_t (*deliver)(void *context, int n);
} sim_wire_t;

/* Runs fn(args[i]) on n fibres until all have ended. The library's clock and sleeps are the simulation's
 * meanwhile. */
sim_end_t sim_run(uint64_t seed, int n, sim_fn fn, void *const *args, int64_t turns_max);

/* ---- inside a run ---- */

int sim_self(void); /* the fibre that runs, -1 between them */
int64_t sim_now_ns(void);
/* Gives up the turn. */
void sim_turn(void);
/* Gives up the turn until ready(context), or until the time is deadline_ns. */
void sim_wait(sim_ready_fn ready, void *context, int64_t deadline_ns);
/* The run's dice. */
uint64_t sim_dice(uint64_t below);
/* Adds to the trace. */
void sim_note(uint64_t event);
/* NULL: none. */
void sim_set_wire(const sim_wire_t *wire);

/* Of the last run. */
uint64_t sim_trace(void);
int64_t sim_turns(void);

#endif
