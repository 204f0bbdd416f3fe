/* Combining arrays of numbers. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_BASE_REDUCE_H
#define EPX_BASE_REDUCE_H

#include <epx/comm.h>

size_t epx_number_bytes(epx_number_t number);

/* into = into (reduce) from, element by element; integer sums wrap nowhere that a caller could want. */
void epx_reduce_values(void *into, const void *from, int64_t count, epx_number_t number, epx_reduce_t reduce);

#endif
