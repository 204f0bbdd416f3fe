/* Small arithmetic of programs. SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/numbers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int compare_reals(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    if (isnan(x) || isnan(y))
        return (isnan(x) != 0) - (isnan(y) != 0);
    return (x > y) - (x < y);
}

void epx_sort_reals(double *values, size_t count) { qsort(values, count, sizeof *values, compare_reals); }

double epx_quantile(const double *sorted, size_t count, double q)
{
    if (count == 0)
        return NAN;
    double place = q * (double)(count - 1);
    size_t below = (size_t)place, above = below + 1 < count ? below + 1 : below;
    return sorted[below] + (place - (double)below) * (sorted[above] - sorted[below]);
}

/* Three significant digits of a value below 1000. */
static char *three_digits(char *text, size_t size, double value, const char *unit)
{
    int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    snprintf(text, size, "%.*f %s", decimals, value, unit);
    return text;
}

char *epx_text_of_bytes(char *text, size_t size, double bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    size_t u = 0;
    if (bytes < 999.5) {
        snprintf(text, size, "%.0f B", bytes);
        return text;
    }
    for (; bytes >= 999.5 && u < 6; u++)
        bytes /= 1000;
    return three_digits(text, size, bytes, units[u]);
}

char *epx_text_of_seconds(char *text, size_t size, double seconds)
{
    static const char *const units[] = {"s", "ms", "us", "ns"};
    size_t u = 0;
    if (!(seconds >= 0)) {
        snprintf(text, size, "-");
        return text;
    }
    for (; seconds < 0.9995 && u < 3; u++)
        seconds *= 1000;
    return three_digits(text, size, seconds, units[u]);
}

double epx_random_unit(epx_random_t *random) { return (double)(epx_random_next(random) >> 11) * 0x1p-53; }

uint32_t epx_random_below(epx_random_t *random, uint32_t n)
{
    return (uint32_t)((epx_random_next(random) >> 32) * n >> 32);
}
