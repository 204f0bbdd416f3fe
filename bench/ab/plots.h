/* The plots of the page. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_AB_PLOTS_H
#define EPX_AB_PLOTS_H

#include <stdio.h>

#include "bench/ab/result.h"

/* A dot per pair of runs, the mean with its 90% interval, the A/A band and the margin; a row for each pair of
 * arms. */
void epx_ab_plot_pairs(const epx_ab_result_t *result, epx_ab_quantity_t quantity, FILE *out);

/* Every step of every run in order of time, spikes and discarded steps included. */
void epx_ab_plot_steps(const epx_ab_result_t *result, FILE *out);

/* Dropped by senders and by receivers, layer by layer. */
void epx_ab_plot_drops(const epx_ab_result_t *result, FILE *out);

/* Loss by step in the first round, and how far it is above the reference that drops nothing. */
void epx_ab_plot_loss(const epx_ab_result_t *result, FILE *out);
void epx_ab_plot_gap(const epx_ab_result_t *result, FILE *out);

/* A verdict's interval with margin, A/A spread and 0, without numbers; a strip for a tile. */
void epx_ab_plot_strip(const epx_ab_verdict_t *verdict, FILE *out);

/* 1 where there is something to plot. */
int epx_ab_has_layers(const epx_ab_result_t *result);
int epx_ab_has_loss(const epx_ab_result_t *result);
int epx_ab_has_times(const epx_ab_result_t *result);

#endif
