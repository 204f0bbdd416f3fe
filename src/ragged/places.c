/* Where things of a call stand. SPDX-License-Identifier: Apache-2.0 */
#include "ragged/internal.h"

void *epx_ragged_plan_at(const epx_ragged_call_t *call, int64_t area)
{
    return (char *)call->plan->bytes + area;
}

const int64_t *epx_ragged_pairs(const epx_ragged_call_t *call, int64_t area)
{
    return (const int64_t *)epx_ragged_plan_at(call, area) + (int64_t)call->wave * call->shape->ranks;
}

epx_k_rows_t epx_ragged_batch_rows(const epx_ragged_call_t *call)
{
    const epx_ragged_areas_t *areas = &call->ragged->areas;
    const epx_owners_t *real = &call->shape->real;
    int64_t at = (int64_t)call->wave * areas->local_experts_max;
    return (epx_k_rows_t){.start = (const int64_t *)epx_ragged_plan_at(call, areas->plan.start) + at,
                          .count = (const int64_t *)epx_ragged_plan_at(call, areas->plan.count) + at,
                          .experts = real->first[call->shape->rank + 1] - real->first[call->shape->rank]};
}

char *epx_ragged_slot_at(const epx_ragged_call_t *call, int64_t area)
{
    return (char *)call->ragged->base.env.segment.base + call->slot_offset + area;
}

char *epx_ragged_batch_at(const epx_ragged_call_t *call, int64_t area)
{
    const epx_ragged_areas_t *areas = &call->ragged->areas;
    int64_t slot = (int64_t)call->plan->lane->index * call->shape->depth + call->wave % call->shape->depth;
    int64_t base = call->backward ? areas->batch_backward : 0;
    return (char *)call->ragged->base.env.batch + base + slot * areas->batch_slot_bytes + area;
}

/* The list of the receiver, which its places are in, is by region here and by sender there. */
epx_k_places_t epx_ragged_own_places(const epx_ragged_call_t *call, void *rows)
{
    const epx_ragged_plan_areas_t *plan = &call->ragged->areas.plan;
    int32_t rank = call->shape->rank;
    return (epx_k_places_t){.dst = rows,
                            .stride = call->shape->row_bytes,
                            .first = epx_ragged_plan_at(call, plan->wire_first),
                            .count = epx_ragged_plan_at(call, plan->wire_count),
                            .list = epx_ragged_plan_at(call, plan->list_place),
                            .start = epx_ragged_pairs(call, plan->home_start) + rank,
                            .base = epx_ragged_pairs(call, plan->wire_start) + rank};
}
