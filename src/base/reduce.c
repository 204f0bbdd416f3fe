/* Combining arrays of numbers. SPDX-License-Identifier: Apache-2.0 */
#include "base/reduce.h"

size_t epx_number_bytes(epx_number_t number) { return number == EPX_NUMBER_FLOAT ? 4 : 8; }

#define REDUCE_LOOP(type)                                             \
    do {                                                              \
        type *a = into;                                               \
        const type *b = from;                                         \
        for (int64_t i = 0; i < count; i++)                           \
            a[i] = reduce == EPX_SUM   ? a[i] + b[i]                  \
                   : reduce == EPX_MAX ? (b[i] > a[i] ? b[i] : a[i])  \
                                       : (b[i] < a[i] ? b[i] : a[i]); \
    } while (0)

void epx_reduce_values(void *into, const void *from, int64_t count, epx_number_t number, epx_reduce_t reduce)
{
    if (number == EPX_NUMBER_FLOAT)
        REDUCE_LOOP(float);
    else if (number == EPX_NUMBER_DOUBLE)
        REDUCE_LOOP(double);
    else
        REDUCE_LOOP(int64_t);
}
