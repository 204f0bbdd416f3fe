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

/* The mixing step of splitmix64 alone: a good 64-bit hash of one number. */
static inline uint64_t epx_mix64(uint64_t value)
{
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

/* splitmix64: any seed is good, streams of different seeds are independent enough for test data. */
typedef struct epx_random {
    uint64_t state;
} epx_random_t;

/* A generator for item `item` of stream `seed`: equal arguments give equal numbers, whatever the thread or
 * order. */
static inline epx_random_t epx_random_at(uint64_t seed, uint64_t item)
{
    return (epx_random_t){
        epx_mix64(epx_mix64(seed + 0x9e3779b97f4a7c15u) ^ (item * 0xd1342543de82ef95u + 1))};
}

static inline uint64_t epx_random_next(epx_random_t *random)
{
    random->state += 0x9e3779b97f4a7c15u;
    return epx_mix64(random->state);
}

double epx_random_unit(epx_random_t *random);                /* [0, 1), 53 bits */
uint32_t epx_random_below(epx_random_t *random, uint32_t n); /* 0..n-1, n >= 1 */

#endif
