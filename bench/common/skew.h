/*
 * Routing for measurements: which experts a token asks for, by a named pattern, the same for the same seed.
 * SPDX-License-Identifier: Apache-2.0
 *
 *   uniform                      every expert alike
 *
 *   zipf:s=1                     the expert in place i of a random order weighs 1 / i^s
 *
 *   hot:fraction=0.5,experts=4   the first experts get this share of the assignments
 *
 *   one-expert                   every assignment goes to expert 0, K times from each token
 *
 *   self, peer                   all to experts of the sender itself, or of the next rank
 *
 *   empty-rank                   the last rank has no tokens and receives none
 *
 * A token's choices are distinct where there are enough experts to choose from, else they repeat.
 */
#ifndef EPX_BENCH_SKEW_H
#define EPX_BENCH_SKEW_H

#include <stddef.h>
#include <stdint.h>

#include "bench/common/sampler.h"

typedef enum epx_skew_kind {
    EPX_SKEW_UNIFORM = 0,
    EPX_SKEW_ZIPF,
    EPX_SKEW_HOT,
    EPX_SKEW_ONE_EXPERT,
    EPX_SKEW_SELF,
    EPX_SKEW_PEER,
    EPX_SKEW_EMPTY_RANK
} epx_skew_kind_t;

typedef struct epx_skew {
    epx_skew_kind_t kind;
    double s;            /* zipf */
    double fraction;     /* hot */
    int64_t hot_experts; /* hot */
} epx_skew_t;

/* Reads "name" or "name:key=value,..."; 0, or -1 with "what is wrong: what to do". target: an epx_skew_t. */
int epx_skew_read(void *target, const char *text, char *problem, size_t problem_bytes);

/* Writes the pattern as epx_skew_read takes it. */
void epx_skew_text(const epx_skew_t *skew, char *text, size_t bytes);

/* Draws for one rank. Experts belong to ranks in contiguous blocks, the first E mod S ranks one more. One
 * thread uses a source at a time. */
typedef struct epx_skew_source {
    int32_t rank, ranks, experts, top_k;
    uint64_t seed;
    epx_sampler_t sampler; /* weights of the pattern; candidates are the experts with a weight above zero */
} epx_skew_source_t;

epx_skew_source_t epx_skew_open(const epx_skew_t *skew, int32_t rank, int32_t ranks, int32_t experts,
                                int32_t top_k, uint64_t seed);
void epx_skew_close(epx_skew_source_t *source);

/* Tokens that this rank has when the others have `tokens`. */
int64_t epx_skew_tokens(const epx_skew_t *skew, int32_t rank, int32_t ranks, int64_t tokens);

/* ids [columns] of one token, columns >= K: that many choices in order of preference. -1 where no expert may
 * be asked for. */
void epx_skew_token(epx_skew_source_t *source, int64_t token, int32_t columns, int32_t *ids);

/* First expert that rank r of S owns (r = S: E). */
int32_t epx_first_expert(int32_t rank, int32_t ranks, int32_t experts);

/* The rank that owns expert e. */
int32_t epx_owner_of(int32_t expert, int32_t ranks, int32_t experts);

#endif
