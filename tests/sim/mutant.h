/*
 * The same fabric with one promise broken: whoever relies on it must notice. SPDX-License-Identifier:
 * Apache-2.0
 */
#ifndef TESTS_SIM_MUTANT_H
#define TESTS_SIM_MUTANT_H

typedef enum sim_mutant {
    SIM_FAITHFUL = 0,
    SIM_NO_FENCE,   /* words overtake the data before them */
    SIM_NO_SIGNAL,  /* now and then one peer is not told */
    SIM_LATE_RESET, /* a word that was waited for is cleared, later */
    SIM_COUNTER,    /* a wait for all peers counts arrivals instead of looking at each */
    SIM_OFF_BY_ONE, /* a wait takes the word of the use before for this one's */
    SIM_NO_CREDIT,  /* a wait for "this epoch or a later one" does not wait */
    SIM_LOCAL,      /* none: the library's own fabric instead */
    SIM_PIECES,     /* none: but kernels reach no peer, posts carry pieces of the segment */
    SIM_PIECES_NO_FENCE,
    SIM_MUTANTS
} sim_mutant_t;

extern const char *const sim_mutant_names[SIM_MUTANTS];

#endif
