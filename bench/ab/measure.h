/* What a quantity of the verdicts is made of. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_AB_MEASURE_H
#define EPX_AB_MEASURE_H

#include "bench/ab/result.h"

/* `scale` brings a run's number into the verdict's unit. */
typedef struct epx_ab_measure {
    epx_ab_number_t number;
    double scale;
    const char *unit; /* after the number */
    int digits;
    epx_ab_part_t part; /* runs to take where an arm has them */
} epx_ab_measure_t;

epx_ab_measure_t epx_ab_measure_of(epx_ab_quantity_t quantity);

#endif
