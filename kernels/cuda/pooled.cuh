/* What the kernels of pooled_wave share. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_KERNELS_CUDA_POOLED_CUH
#define EPX_KERNELS_CUDA_POOLED_CUH

#include <epx/kernels_pooled_wave.h>

extern "C" {
#include "base/fail.h"
}

#include "kernels/cuda/stable.cuh"
#include "kernels/cuda/verdict.cuh"

namespace epx
{

typedef epx_k_pooled_layout_t pooled_layout;

__host__ __device__ inline rule pooled_rule(const pooled_layout &layout)
{
    return {layout.virtual_ranks, layout.experts,         layout.waves, layout.dropless,
            EPX_ACCEPT_DEFAULT,   layout.assignments_max, layout.cf,    layout.cs};
}

__device__ inline int32_t local_experts_of(const pooled_layout &layout, int32_t v)
{
    return layout.first[v + 1] - layout.first[v];
}

/* Home row of slot 0 of the virtual slab from my virtual sender i to the virtual destination v. */
__device__ inline int32_t pooled_block(const pooled_layout &layout, int32_t i, int32_t v)
{
    int32_t d = v / layout.splits;
    return layout.base[d] + i * ((layout.base[d + 1] - layout.base[d]) / layout.splits) + layout.before[v];
}

__device__ inline int64_t pooled_tokens(int64_t tokens, const int64_t *tokens_device)
{
    return tokens_device != nullptr ? *tokens_device : tokens;
}

/* Shared memory behind the counters of ordinals, one entry for each virtual rank and table. */
inline bool plan_pooled(int32_t ranks, int32_t tables, int64_t keys, ordinals_plan *plan_p)
{
    size_t limit = shared_limit(current_device()), own = (size_t)tables * (size_t)ranks * sizeof(uint32_t);
    if (own > limit / 2)
        return false;
    *plan_p = plan_ordinals(limit - own, keys, ROUTE_THREADS);
    return true;
}

} // namespace epx

#endif
