/*
 * A fabric whose wire is as bad as its contract allows. SPDX-License-Identifier: Apache-2.0
 *
 * What a rank stores at a peer is not there yet: it is cut into pieces, which arrive in any order, some at
 * once, some much later. A word arrives behind all that its writer has stored at that peer before (the
 * fabric's only promise), and words of one pair arrive in order. Nothing is promised across pairs.
 *
 * Kernels store into windows: memory of the sender that stands for a peer's segment. What a kernel has
 * written there becomes messages; a load of a peer's segment sees the window and never the peer, so it is
 * caught as wrong data.
 *
 * Mutants are the same fabric with one promise broken; every one of them must be noticed by whoever relies on
 * it.
 */
#ifndef TESTS_SIM_FABRIC_H
#define TESTS_SIM_FABRIC_H

#include <epx/device.h>
#include <epx/fabric.h>

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

/* The fabric and the host's device with kernels that store into windows stand in for local and host from here
 * on. */
void sim_fabric_use(sim_mutant_t mutant);
/* As before. */
void sim_fabric_leave(void);

#endif
