/*
 * A program with setlocale(LC_ALL, "") may have decimal commas: variables and JSON have points all the same.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/decimal.h"

#include <stdlib.h>

/* The locale object of "C" is libc's own: nothing is allocated, and what is freed is nothing. */
locale_t epx_decimal_begin(void)
{
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return plain != (locale_t)0 ? uselocale(plain) : (locale_t)0;
}

void epx_decimal_end(locale_t before)
{
    if (before == (locale_t)0)
        return;
    locale_t plain = uselocale(before);
    freelocale(plain);
}

double epx_decimal_read(const char *text, char **end_p)
{
    locale_t before = epx_decimal_begin();
    double value = strtod(text, end_p);
    epx_decimal_end(before);
    return value;
}
