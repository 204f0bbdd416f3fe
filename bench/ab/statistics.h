/*
 * Statistics of paired runs. The unit is a run, never a step: steps of one run share its luck.
 * SPDX-License-Identifier: Apache-2.0
 *
 * With N pairs of runs of two arms, d = a - b of each pair has mean m and standard deviation s (N - 1 in the
 * denominator). Its interval of confidence c is m +- t(1 - (1 - c) / 2, N - 1) * s / sqrt(N), Student's t.
 * Pairs of runs of one and the same arm (A/A) have the true mean 0, so that their spread is the root of the
 * mean square of their differences.
 */
#ifndef EPX_AB_STATISTICS_H
#define EPX_AB_STATISTICS_H

#include <stddef.h>
#include <stdint.h>

/* Student's t with `freedom` > 0 degrees: P(T <= t), and the t with P(T <= t) = p, 0 < p < 1. */
double epx_ab_t_cdf(double t, double freedom);
double epx_ab_t_quantile(double p, double freedom);

/* Of `count` values. Fewer than two leave deviation, low and high NaN; none leaves mean NaN too. */
typedef struct epx_ab_interval {
    int32_t count;
    double mean, deviation;
    double low, high;
} epx_ab_interval_t;
epx_ab_interval_t epx_ab_interval(const double *values, int32_t count, double confidence);

/* Root mean square of `count` differences whose true mean is 0; NaN for none. */
double epx_ab_spread(const double *differences, int32_t count);

typedef enum epx_ab_word { EPX_AB_DIFFERENT, EPX_AB_EQUIVALENT, EPX_AB_INCONCLUSIVE } epx_ab_word_t;

/*
 * EQUIVALENT: the interval lies inside -margin .. margin. Otherwise DIFFERENT: the interval lies on one side
 * of 0 and the mean is above `spread`, the A/A spread (NaN: not known, and then nothing is claimed).
 * Otherwise INCONCLUSIVE.
 */
epx_ab_word_t epx_ab_judge(const epx_ab_interval_t *interval, double margin, double spread);

/*
 * How many pairs would decide, if mean, deviation and spread stay what they are: the smallest N for which
 * epx_ab_judge no longer says INCONCLUSIVE. 0: no number does (the mean is above the margin and below the A/A
 * spread, or fewer than two pairs are known). Never above EPX_AB_PAIRS_MOST, which stands for "that many or
 * more".
 */
#define EPX_AB_PAIRS_MOST 10000
int32_t epx_ab_pairs_needed(const epx_ab_interval_t *interval, double margin, double spread,
                            double confidence);

/* Median of values [count], which are sorted in place; NaN for none. */
double epx_ab_median(double *values, int32_t count);

#endif
