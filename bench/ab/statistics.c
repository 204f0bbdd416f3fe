/* Student's t and what follows from it. SPDX-License-Identifier: Apache-2.0 */
#include "bench/ab/statistics.h"

#include <math.h>

#include "tools/common/numbers.h"

/*
 * The continued fraction of the incomplete beta function I_x(a, b) (Abramowitz and Stegun 26.5.8), evaluated
 * from the front by Lentz's method; it converges fast for x < (a + 1) / (a + b + 2).
 */
static double beta_fraction(double a, double b, double x)
{
    const double tiny = 1e-300;
    double c = 1, d = 1 - (a + b) * x / (a + 1);
    d = 1 / (fabs(d) < tiny ? tiny : d);
    double value = d;
    for (int m = 1; m <= 10000; m++) {
        double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
        double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
        for (int half = 0; half < 2; half++) {
            double term = half == 0 ? even : odd;
            d = 1 + term * d;
            d = 1 / (fabs(d) < tiny ? tiny : d);
            c = 1 + term / c;
            c = fabs(c) < tiny ? tiny : c;
            value *= c * d;
        }
        if (fabs(c * d - 1) < 1e-15)
            break;
    }
    return value;
}

static double log_gamma(double x)
{
    int sign;
    return lgamma_r(x, &sign);
}

/* I_x(a, b). */
static double incomplete_beta(double a, double b, double x)
{
    if (x <= 0 || x >= 1)
        return x <= 0 ? 0 : 1;
    double front = exp(log_gamma(a + b) - log_gamma(a) - log_gamma(b) + a * log(x) + b * log1p(-x));
    if (x < (a + 1) / (a + b + 2))
        return front * beta_fraction(a, b, x) / a;
    return 1 - front * beta_fraction(b, a, 1 - x) / b;
}

double epx_ab_t_cdf(double t, double freedom)
{
    /* P(|T| > |t|) = I_{v / (v + t^2)}(v / 2, 1 / 2) */
    double tail = incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2;
    return t > 0 ? 1 - tail : tail;
}

double epx_ab_t_quantile(double p, double freedom)
{
    if (p < 0.5)
        return -epx_ab_t_quantile(1 - p, freedom);
    double low = 0, high = 1;
    while (epx_ab_t_cdf(high, freedom) < p && high < 1e15)
        high *= 2;
    /* Halving to the last bit; the tail of a small p is exact enough because p >= 0.5 here. */
    for (int i = 0; i < 200 && high - low > 0; i++) {
        double middle = low + (high - low) / 2;
        if (middle <= low || middle >= high)
            break;
        if (epx_ab_t_cdf(middle, freedom) < p)
            low = middle;
        else
            high = middle;
    }
    return high;
}

/* t(1 - (1 - c) / 2, N - 1) / sqrt(N): what the standard deviation is multiplied by. */
static double reach(int32_t count, double confidence)
{
    return epx_ab_t_quantile(0.5 + confidence / 2, count - 1) / sqrt((double)count);
}

epx_ab_interval_t epx_ab_interval(const double *values, int32_t count, double confidence)
{
    epx_ab_interval_t interval = {.count = count, .mean = NAN, .deviation = NAN, .low = NAN, .high = NAN};
    double sum = 0, squares = 0;
    for (int32_t i = 0; i < count; i++)
        sum += values[i];
    if (count > 0)
        interval.mean = sum / count;
    if (count < 2)
        return interval;
    for (int32_t i = 0; i < count; i++)
        squares += (values[i] - interval.mean) * (values[i] - interval.mean);
    interval.deviation = sqrt(squares / (count - 1));
    double half = interval.deviation * reach(count, confidence);
    interval.low = interval.mean - half;
    interval.high = interval.mean + half;
    return interval;
}

double epx_ab_spread(const double *differences, int32_t count)
{
    double squares = 0;
    for (int32_t i = 0; i < count; i++)
        squares += differences[i] * differences[i];
    return count > 0 ? sqrt(squares / count) : NAN;
}

epx_ab_word_t epx_ab_judge(const epx_ab_interval_t *interval, double margin, double spread)
{
    if (interval->low >= -margin && interval->high <= margin)
        return EPX_AB_EQUIVALENT;
    if ((interval->low > 0 || interval->high < 0) && fabs(interval->mean) > spread)
        return EPX_AB_DIFFERENT;
    return EPX_AB_INCONCLUSIVE;
}

static int decided(const epx_ab_interval_t *interval, int32_t count, double margin, double spread,
                   double confidence)
{
    double half = interval->deviation * reach(count, confidence);
    epx_ab_interval_t with = {
        .mean = interval->mean, .low = interval->mean - half, .high = interval->mean + half};
    return epx_ab_judge(&with, margin, spread) != EPX_AB_INCONCLUSIVE;
}

int32_t epx_ab_pairs_needed(const epx_ab_interval_t *interval, double margin, double spread,
                            double confidence)
{
    int32_t low = 1, high = 2;
    double distance = fabs(interval->mean);
    if (isnan(interval->deviation) || (!(distance < margin) && !(distance > spread)))
        return 0;
    /* The reach falls with every pair, so that what is decided stays decided. */
    while (high < EPX_AB_PAIRS_MOST && !decided(interval, high, margin, spread, confidence)) {
        low = high;
        high = high * 2 < EPX_AB_PAIRS_MOST ? high * 2 : EPX_AB_PAIRS_MOST;
    }
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        if (decided(interval, middle, margin, spread, confidence))
            high = middle;
        else
            low = middle;
    }
    return high;
}

double epx_ab_median(double *values, int32_t count)
{
    epx_sort_reals(values, (size_t)count);
    return count > 0 ? epx_quantile(values, (size_t)count, 0.5) : NAN;
}
