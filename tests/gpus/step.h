/* What tests of ranks with a GPU each share: problem and step. SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GPUS_STEP_H
#define TESTS_GPUS_STEP_H

#include <sys/types.h>

#include "support/drive.h"

enum { TOKENS = 33, EXPERTS = 7, TOP_K = 3, WIDTH = 24 };
enum { ARMS = 4 };

/* By which the tests count. */
extern const char *const arm_names[ARMS];

/* As many ranks as GPUs; most tests run with one too. */
int gpus(void);

/* Uneven tokens, 20 s of patience. */
problem_t *problem_for(int arm, int ranks);

/* This program again with that one test, as a rank of a job of `ranks` processes on this host, without its
 * standard output; -1: it does not start. */
pid_t start_rank(const char *test, int rank, int ranks);

/* One step with experts that give back what they get; all buffers stay where they are. */
typedef struct step {
    session_t session;
    epx_plan_h plan;
    int64_t *tokens;
    int32_t *ids;
    float *weights, *x, *dout, *out, *dx, *dweight;
    float *rows[16]; /* by wave: what the experts got, for the backward pass */
    float *dy[16];
    int64_t *start[16], *count[16];
} step_t;

void step_new(step_t *s, int waves);
void step_free(step_t *s, int waves);
void step_route(step_t *s);
void step_forward(step_t *s);
/* Route, forward, backward. */
void step_make(step_t *s);
/* Whole numbers, so that sums are exact in any order. */
void step_draw(step_t *s, dice_t *dice);
void step_check(const step_t *s, int replay);

#endif
