/*
 * Transport `ragged`: counts first, drops before anything moves, exact puts. SPDX-License-Identifier:
 * Apache-2.0
 *
 * A route gathers the counts of all ranks; every rank computes the same plan from them. A rank's experts are
 * split into chunks, a wave is one chunk of every rank. Rows are put where the receiver's batch wants them
 * (assignment wire), or once per (token, rank) and expanded there (rank wire).
 */
#ifndef EPX_RAGGED_RAGGED_H
#define EPX_RAGGED_RAGGED_H

#include <epx/transport.h>

extern const epx_transport_ops_t epx_transport_ragged;

#endif
