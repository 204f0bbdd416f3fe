/*
 * Transport pooled_wave: fixed shapes, two gates, ids in band. SPDX-License-Identifier: Apache-2.0
 *
 * Every wave sends each destination one slab of P(d) slots behind a header with status, this rank's valid
 * count and a tag per slot; the receiver's gate decides from the headers alone, and the way back carries what
 * it decided.
 *
 * Bytes in a plan's statistics are those of the slabs (P(d) rows to every remote destination, whatever is
 * filled): that is what a fabric without loads and stores moves, and what the fixed shape costs. Where peers'
 * memory can be stored to, empty slots are not written. `spilled` counts what travels by another choice,
 * whatever the second gate then says of it.
 */
#ifndef EPX_POOLED_WAVE_H
#define EPX_POOLED_WAVE_H

#include <epx/transport.h>

extern const epx_transport_ops_t epx_transport_pooled_wave;

#endif
