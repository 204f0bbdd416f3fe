/* One life of a group in the simulation: everything in it comes from one seed. SPDX-License-Identifier:
 * Apache-2.0 */
#ifndef TESTS_SIM_LIFE_H
#define TESTS_SIM_LIFE_H

#include <stdint.h>

#include "sim/fabric.h"
#include "sim/fibres.h"
#include "support/problem.h"

typedef struct life_result {
    sim_end_t end;
    int failures; /* failed expectations; their texts are kept as ever */
    uint64_t trace;
    int64_t turns;
    char text[200]; /* what was played */
} life_result_t;

/* Over the simulated wire. only: the transport, or -1 for any. */
life_result_t life_play(uint64_t seed, sim_mutant_t mutant, int only);

#endif
