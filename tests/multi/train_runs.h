/* Short training runs of a small model, for tests. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TESTS_TRAIN_RUNS_H
#define EPX_TESTS_TRAIN_RUNS_H

#include "train/train.h"

enum { RUN_STEPS_MAX = 16 };

/* What rank 0 saw. */
typedef struct run {
    epx_train_config_t config;
    int64_t steps;                     /* to take in this run */
    epx_metrics_t step[RUN_STEPS_MAX]; /* layer pointers are not valid any more */
    uint64_t digest;                   /* of the last step's routing */
    double validation;
    uint64_t hash; /* of the last checkpoint read or written */
} run_t;

/* Seven experts, in blocks that are unequal over 2, 3 and 4 ranks. */
epx_model_config_t small_model(int64_t top_k, int64_t latent);

/* That model, of `batch` sequences per rank. */
run_t run_small(const char *transport, int64_t ep, int64_t replicas, int64_t batch);

/* Restores config.restore if given, takes the steps, evaluates, saves config.checkpoint if given. Returns the
 * code. */
int run_go(run_t *run);

/* As run_go, and the code must be 0. */
void run_well(run_t *run);

/* A path in a fresh folder under /tmp that is removed at exit of the test process. */
const char *run_path(const char *name);

#endif
