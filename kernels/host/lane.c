/* What a lane counts where epochs are resident: see include/epx/kernels_words.h. SPDX-License-Identifier:
 * Apache-2.0 */
#include <epx/kernels_words.h>

#include "kernels/host/lane.h"
#include "kernels/host/table.h"

static uint64_t low(uint64_t value, int bits) { return value & (((uint64_t)1 << bits) - 1); }

uint64_t epx_host_lane_base(const epx_lane_begin_of_t *of)
{
    return of->generation << (EPX_EPOCH_PASS_BITS + EPX_EPOCH_ROUTE_BITS + EPX_EPOCH_CALL_BITS) |
           low(of->words->passes, EPX_EPOCH_PASS_BITS) << (EPX_EPOCH_ROUTE_BITS + EPX_EPOCH_CALL_BITS) |
           low(of->head->number, EPX_EPOCH_ROUTE_BITS) << EPX_EPOCH_CALL_BITS;
}

void epx_host_lane_end(epx_lane_words_t *words, const epx_plan_head_t *head, const uint64_t *acknowledged)
{
    if (head->valid != 1)
        return;
    words->passes++;
    for (int i = 0; i < EPX_LANE_CREDITS; i++)
        if (acknowledged[i] != 0)
            words->credit[i] = words->base + acknowledged[i];
}

epx_status_t epx_host_lane(const epx_k_lane_t *args, epx_stream_t stream)
{
    epx_lane_words_t *words = args->words;
    (void)stream;
    if (args->step == EPX_LANE_ROUTE) {
        *args->head = args->value;
        args->head->number = ++words->routes;
    } else if (args->step == EPX_LANE_BEGIN) {
        epx_lane_begin_of_t of = {.words = words, .head = args->head, .generation = args->generation};
        words->base = epx_host_lane_base(&of);
    } else {
        epx_host_lane_end(words, args->head, args->acknowledged);
    }
    return EPX_OK;
}
