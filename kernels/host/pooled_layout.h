/* What the host kernels of pooled_wave share. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_KERNELS_HOST_POOLED_LAYOUT_H
#define EPX_KERNELS_HOST_POOLED_LAYOUT_H

#include <epx/kernels_pooled_wave.h>

#include "transport/accept.h"

/* The rule that a layout stands for; *owners becomes part of it and must live as long. */
static inline epx_rule_t epx_pooled_rule(const epx_k_pooled_layout_t *layout, epx_owners_t *owners)
{
    *owners = (epx_owners_t){.ranks = layout->virtual_ranks,
                             .experts = layout->experts,
                             .owner = layout->owner,
                             .local = layout->local,
                             .first = layout->first,
                             .expert = layout->expert};
    return (epx_rule_t){.ranks = layout->virtual_ranks,
                        .experts = layout->experts,
                        .top_k = layout->top_k,
                        .assignments_max = layout->assignments_max,
                        .cf = layout->cf,
                        .cs = layout->cs,
                        .dropless = layout->dropless,
                        .waves = layout->waves,
                        .owners = owners};
}

/* Home row of slot 0 of the virtual slab from my virtual sender i to the virtual destination v. */
static inline int32_t epx_pooled_block(const epx_k_pooled_layout_t *layout, int32_t i, int32_t v)
{
    int32_t d = v / layout->splits;
    return layout->base[d] + i * ((layout->base[d + 1] - layout->base[d]) / layout->splits) +
           layout->before[v];
}

static inline int64_t epx_pooled_tokens(int64_t tokens, const int64_t *tokens_device)
{
    return tokens_device != NULL ? *tokens_device : tokens;
}

#endif
