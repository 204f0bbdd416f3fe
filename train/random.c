/* SPDX-License-Identifier: Apache-2.0 */
#include "random.h"

#include <math.h>

/* The finaliser of splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t epx_random_bits(uint64_t seed, uint64_t stream, uint64_t index)
{
    return mix(mix(mix(seed) ^ stream) ^ index);
}

double epx_random_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    return (double)(epx_random_bits(seed, stream, index) >> 11) * 0x1p-53;
}

double epx_random_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    double u = epx_random_uniform(seed, stream, 2 * index);
    double v = epx_random_uniform(seed, stream, 2 * index + 1);
    return sqrt(-2.0 * log(1.0 - u)) * cos(6.283185307179586 * v); /* Box and Muller */
}
