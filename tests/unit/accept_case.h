/*
 * One routing problem for the accept rules, with its owner tables built here by looking at every expert.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TESTS_UNIT_ACCEPT_CASE_H
#define TESTS_UNIT_ACCEPT_CASE_H

#include "support/number.h"
#include "transport/accept.h"

#define CASE_EXPERTS 40
#define CASE_RANKS 20
#define CASE_TOKENS 40
#define CASE_COLUMNS 12

typedef struct accept_case {
    epx_rule_t rule;
    epx_owners_t owners;
    int32_t before_owner; /* 0: what owner[-1] would read, a real rank, so that using -1 as an expert shows */
    int32_t owner[CASE_EXPERTS], local[CASE_EXPERTS], expert[CASE_EXPERTS], first[CASE_RANKS + 1];
    int32_t tokens_max, spill;
    int32_t tokens[CASE_RANKS];
    int32_t ids[CASE_RANKS][CASE_TOKENS * CASE_COLUMNS]; /* [T, K + X] */
    int32_t n[CASE_RANKS * CASE_EXPERTS];                /* [S, E], k < K */
    int64_t valid[CASE_RANKS], valid_all;
    uint64_t seed;
} accept_case_t;

/* Contiguous owners, no tokens, cf = cs = 1.15. */
void case_shape(accept_case_t *c, int32_t ranks, int32_t experts, int32_t top_k, int32_t tokens_max,
                int32_t waves);
/* Another owner table. */
void case_owners(accept_case_t *c, const int32_t *owner);
/* Random tokens and ids, skewed more or less, with holes; the counts of them. Remembers the seed. */
void case_routing(accept_case_t *c, uint64_t seed);
/* Counts ids that a test wrote itself. */
void case_count(accept_case_t *c);

/*
 * Problem `i` of a series: the first are E=7 S=3, E=2 S=4, E=12 S=4 C=2 and T_max=1, the others have random
 * shapes, factors, owners and accept rules. Everything follows from i.
 */
void case_of_series(accept_case_t *c, int32_t i);
/* For messages: shape and seed. A static buffer. */
const char *case_text(const accept_case_t *c);

/* ceil(product * cf / divisor), cf as hundredths, in whole numbers. */
int64_t exact_ceil(int64_t product, int64_t hundredths, int64_t divisor);

#endif
