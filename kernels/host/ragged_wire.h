/* The rank wire's part of the layout of `ragged`. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_KERNELS_HOST_RAGGED_WIRE_H
#define EPX_KERNELS_HOST_RAGGED_WIRE_H

#include <epx/kernels_ragged.h>

/* Pair (c, d) is known: return rows began[s] .. end[s] - 1 of each sender s belong to it. [S] each. */
void epx_ragged_wire_pair(const epx_k_ragged_layout_t *args, int32_t c, int32_t d, const int64_t *began,
                          const int64_t *end);

/* Wire rows, lists and homes of this rank's tokens, T of them; places are set. */
void epx_ragged_wire_tokens(const epx_k_ragged_layout_t *args, int64_t tokens);

#endif
