/*
 * The fabric `local`, its own code, with a turn given up before every access to a word and in the middle of
 * every copy. SPDX-License-Identifier: Apache-2.0
 */
#ifndef TESTS_SIM_LOCAL_FABRIC_H
#define TESTS_SIM_LOCAL_FABRIC_H

typedef enum local_mutant {
    LOCAL_FAITHFUL = 0,
    LOCAL_NO_FENCE,  /* what is copied into a box arrives after the word */
    LOCAL_NO_SIGNAL, /* a word is not set, now and then */
    LOCAL_EARLY,     /* a word says one step more than there is */
    LOCAL_MUTANTS
} local_mutant_t;

extern const char *const local_mutant_names[LOCAL_MUTANTS];
extern local_mutant_t local_mutant;

#endif
