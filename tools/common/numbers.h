/*
 * Small arithmetic of programs: order statistics, numbers for people, pseudo-random numbers.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_TOOLS_NUMBERS_H
#define EPX_TOOLS_NUMBERS_H

#include <stddef.h>
#include <stdint.h>

/* Sorts values [count] ascending, in place; NaN last. */
void epx_sort_reals(double *values, size_t count);

/* The q-quantile (0..1) of sorted values, between neighbours by proportion; NaN for none. */
double epx_quantile(const double *sorted, size_t count, double q);

/* "512 B", "3.71 GB" (decimal), "1.60 s", "12.3 us": three digits and a unit. Return `text`. */
char *epx_text_of_bytes(char *text, size_t size, double bytes);
char *epx_text_of_seconds(char *text, size_t size, double seconds);

/* splitmix64: any seed is good, streams of different seeds are independent enough for test data. */
typedef struct epx_random {
    uint64_t state;
} epx_random_t;

/* A generator for item `item` of stream `seed`: equal arguments give equal numbers, whatever the thread or
 * order. */
epx_random_t epx_random_at(uint64_t seed, uint64_t item);
uint64_t epx_random_next(epx_random_t *random);
double epx_random_unit(epx_random_t *random);                /* [0, 1), 53 bits */
uint32_t epx_random_below(epx_random_t *random, uint32_t n); /* 0..n-1, n >= 1 */

/* The mixing step alone: a good 64-bit hash of one number. */
uint64_t epx_mix64(uint64_t value);

#endif
