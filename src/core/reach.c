/* How far apart ranks are. SPDX-License-Identifier: Apache-2.0 */
#include "core/reach.h"

epx_reach_t epx_reach_of_cards(const epx_link_card_t *card, const int32_t *rank, int32_t size)
{
    for (int32_t i = 1; i < size; i++)
        if (card[rank != NULL ? rank[i] : i].host != card[rank != NULL ? rank[0] : 0].host)
            return EPX_REACH_NETWORK;
    return EPX_REACH_HOST;
}
