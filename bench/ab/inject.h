/*
 * For tests: perturbs what a guard watches, so that it is seen to fire. Not one line of it runs without
 * --inject. SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_AB_INJECT_H
#define EPX_AB_INJECT_H

#include "bench/ab/rank.h"

/* The order as it will be run: settings, and which inject it takes part in. */
void epx_ab_inject_order(const epx_ab_session_t *session, epx_ab_order_t *order);

/* After the weights were restored, before they are looked at. */
void epx_ab_inject_weights(const epx_ab_rank_t *self, const epx_ab_order_t *order);

/* After they were looked at. */
void epx_ab_inject_routing(const epx_ab_rank_t *self, const epx_ab_order_t *order);

/* What the hooks on the exchange do next; off at first. */
typedef enum epx_ab_moment {
    EPX_AB_IN_CHECK,
    EPX_AB_FIRST_STEP,
    EPX_AB_LATER_STEP,
    EPX_AB_IN_GRADIENTS
} epx_ab_moment_t;

/* Puts hooks between the model and its open exchange; they go with it. */
int epx_ab_inject_hooks(epx_ab_rank_t *self, const epx_ab_order_t *order);
void epx_ab_inject_moment(epx_ab_rank_t *self, const epx_ab_order_t *order, epx_ab_moment_t moment);

/* 1: rank 0 loses this step. */
int epx_ab_inject_loses(const epx_ab_order_t *order, int64_t step_of_run);

/* A reading of the clock as it will be taken. */
double epx_ab_inject_clock(const epx_ab_order_t *order, double mhz);

#endif
