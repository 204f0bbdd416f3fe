/* Numbers with a decimal point, whatever locale the program has chosen. SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_BASE_DECIMAL_H
#define EPX_BASE_DECIMAL_H

#include <locale.h>

/* strtod of the C locale. */
double epx_decimal_read(const char *text, char **end_p);

/* What this thread prints between the two has decimal points. No wait may stand in between. */
locale_t epx_decimal_begin(void);
void epx_decimal_end(locale_t before);

#endif
