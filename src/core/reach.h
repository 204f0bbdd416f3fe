/* How far apart ranks are. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_CORE_REACH_H
#define EPX_CORE_REACH_H

#include "launch/launch.h"

/* How far apart the ranks of a comm are; equal on all of them. */
typedef enum epx_reach {
    EPX_REACH_PROCESS = 0, /* threads of one process */
    EPX_REACH_HOST,        /* processes that can share memory */
    EPX_REACH_NETWORK
} epx_reach_t;

/* Of processes with these cards: card[rank[0 .. size)], rank NULL: card[0 .. size). */
epx_reach_t epx_reach_of_cards(const epx_link_card_t *card, const int32_t *rank, int32_t size);

#endif
