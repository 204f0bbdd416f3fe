/* Random numbers as a pure function of (seed, stream, index): no state to keep, so that a restored run, or
 * one over another number of ranks, draws what the first one drew. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TRAIN_RANDOM_H
#define EPX_TRAIN_RANDOM_H

#include <stdint.h>

/* Who draws: two streams of one seed are unrelated. */
enum { EPX_STREAM_INIT = 1, EPX_STREAM_DATA = 2, EPX_STREAM_DROP = 3, EPX_STREAM_TEST = 4 };

/* 64 uniform bits. */
uint64_t epx_random_bits(uint64_t seed, uint64_t stream, uint64_t index);

/* Uniform in [0, 1). */
double epx_random_uniform(uint64_t seed, uint64_t stream, uint64_t index);

/* Normal with mean 0 and variance 1. */
double epx_random_normal(uint64_t seed, uint64_t stream, uint64_t index);

#endif
