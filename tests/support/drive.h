/*
 * Drives one rank through routes and passes, and compares everything that comes back.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Every buffer that a call writes is poisoned before and stands between guards; what the rules do not promise
 * to write must still be poison afterwards.
 */
#ifndef TESTS_DRIVE_H
#define TESTS_DRIVE_H

#include "support/device.h"
#include "support/oracle.h"
#include "support/world.h"

/* Memory between guards. NULL data never happens: an empty buffer still has an address. */
typedef struct buffer {
    unsigned char *base, *data;
    size_t bytes, whole;
} buffer_t;

/* data is aligned to `align` and to nothing more. */
void buffer_new(buffer_t *buffer, size_t bytes, size_t align);
/* Checks the guards. */
void buffer_free(buffer_t *buffer, rank_t *self, const char *what);

/* One rank's open group. */
typedef struct session {
    rank_t *self;
    const problem_t *p;
    epx_group_h group;
    epx_group_info_t info;
} session_t;

/* A batch as the host can look at it: the same on the host, copies of it elsewhere, until this thread's next
 * look. */
epx_batch_t batch_here(const session_t *session, const epx_batch_t *batch);

/* Opens the problem's group; 0 when that failed (which is counted as a failure). config NULL: problem_config.
 */
int session_open(session_t *session, rank_t *self, const problem_t *problem,
                 const epx_group_config_t *config);
void session_close(session_t *session);
/* The problem of the next step: same shape, other inputs. */
void session_problem(session_t *session, const problem_t *problem);

/* In which order the calls of a pass are made. */
typedef enum schedule {
    SERIAL,    /* dispatch, combine, next wave */
    PIPELINED, /* the next wave is dispatched before this one is combined */
    SPLIT,     /* starts ahead of finishes */
    SCHEDULES
} schedule_t;

typedef struct pass {
    session_t *session;
    epx_plan_h plan;
    const oracle_t *o;
    schedule_t schedule;
    int into;        /* batches land in the caller's memory */
    int no_aux;      /* this rank gives no aux */
    int re_dispatch; /* backward: x is dispatched again while dy is live; 1: before combine_backward, 2: after
                      */
    int no_dweight;
    int loose; /* sums are not compared */
    int quiet; /* nothing is compared: only the calls and their status */
    /* what came, for tests that compare it themselves; own copies, freed by pass_free */
    unsigned char *out, *dx; /* [T, H] out type */
    float *dweight;          /* [T, columns] */
} pass_t;

/* Sets self->at and the wave before each call. */
void calls(rank_t *self, const char *call, int number);
/* Told before (1) and after (0) every call that drive makes; NULL: nobody. */
extern void (*calls_hook)(int begins);

epx_routing_t session_routing(const session_t *session, buffer_t *ids, buffer_t *weights);
/* Routes the session's problem on this plan. */
epx_status_t session_route(session_t *session, epx_plan_h plan);

/* One forward, one backward pass. 1: every call succeeded. */
int pass_forward(pass_t *pass);
int pass_backward(pass_t *pass);
/* kept, dropped and the rest against the oracle; after the first pass. */
void pass_stats(const pass_t *pass);
void pass_free(pass_t *pass);

/* Parts of a pass, for tests with an order of their own. x [T, H] as the problem has it. */
typedef struct wave_buffers {
    buffer_t rows, start, count, y;
} wave_buffers_t;
void wave_new(wave_buffers_t *wave, const session_t *session);
void wave_free(wave_buffers_t *wave, rank_t *self);
epx_batch_t wave_batch(const pass_t *pass, const wave_buffers_t *wave);
/* Compares a batch with the oracle's: counts, places, rows (or dy rows), origin, aux. Fills y with the
 * expert's rows. */
void wave_check(const pass_t *pass, int wave, const epx_batch_t *batch, int backward);
void wave_expert(const pass_t *pass, int wave, const epx_batch_t *batch, void *y);
void wave_expert_backward(const pass_t *pass, int wave, const epx_batch_t *dy, void *dx_rows);
/* out or dx (`which`) [T_max, H] and dweight [T_max, columns] against the oracle. */
void pass_check_sum(const pass_t *pass, const char *which, const buffer_t *sum, unsigned char *const *wanted);
void pass_check_dweight(const pass_t *pass, const buffer_t *dweight);

/* Opens a group of the problem on every rank, runs one step of it in the given ways, closes; the usual test.
 */
typedef struct trial {
    problem_t *problem;
    oracle_t *oracle;
    schedule_t schedule;
    int into, backward, passes;
} trial_t;
void trial_run(const trial_t *trial);

/* The oracle of a problem with its sums, for the wire that the group itself resolves (auto). */
oracle_t *oracle_of(const problem_t *problem);
/* The usual test of one problem: its oracle, one trial with a forward and a backward pass; frees the problem.
 */
void problem_check(problem_t *problem, schedule_t schedule);

#endif
