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
 */
#ifndef TESTS_SIM_FABRIC_H
#define TESTS_SIM_FABRIC_H

#include "sim/mutant.h"

/* The fabric and the host's device with kernels that store into windows stand in for local and host from here
 * on. */
void sim_fabric_use(sim_mutant_t mutant);
/* As before. */
void sim_fabric_leave(void);

#endif
