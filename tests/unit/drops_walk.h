/*
 * What becomes of every single assignment of a small routing, by a walk that is written from the contract
 * alone and shares no code with the rules. SPDX-License-Identifier: Apache-2.0
 */
#ifndef TESTS_UNIT_DROPS_WALK_H
#define TESTS_UNIT_DROPS_WALK_H

#include "bench/common/drops.h"

enum { RANKS = 7, EXPERTS = 13, TOKENS = 24, COLUMNS = 7, PLACES = TOKENS * COLUMNS };

/* A small routing. */
typedef struct small {
    int ranks, experts, top_k, columns, tokens_max, tokens[RANKS];
    int ids[RANKS][PLACES];
} small_t;

/* An assignment and what becomes of it. */
typedef struct one {
    int rank, token, k, expert, owner, local;
    int place; /* in ids: another column after a spill */
    epx_fate_kind_t kind;
    int wave, slot;
} one_t;

typedef struct world {
    const small_t *small;
    const epx_drops_case_t *how;
    one_t one[RANKS * PLACES];
    int count;
    int valid[RANKS], valid_all;
} world_t;

/* Fills in all but small and how. */
void walk(world_t *world);

#endif
