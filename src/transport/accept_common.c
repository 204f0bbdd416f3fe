/* Blocks, virtual ranks and the one formula of all capacities. SPDX-License-Identifier: Apache-2.0 */
#include "transport/accept_common.h"

#include "transport/accept.h"

#include <math.h>

#define ROWS_SATURATED ((int64_t)1 << 40)

int64_t epx_accept_ceil(int64_t product, double factor, int64_t divisor)
{
    double rows = ceil((double)product * factor / (double)divisor);
    return rows < (double)ROWS_SATURATED ? (int64_t)rows : ROWS_SATURATED;
}

epx_rule_t epx_rule_of(const epx_shape_t *shape, int32_t waves)
{
    return (epx_rule_t){.ranks = shape->virtual_ranks,
                        .experts = shape->experts,
                        .top_k = shape->top_k,
                        .assignments_max = (int64_t)shape->virtual_tokens_max * shape->top_k,
                        .cf = shape->capacity_factor,
                        .cs = shape->sender_factor,
                        .dropless = shape->dropless,
                        .waves = waves,
                        .accept = shape->accept,
                        .owners = &shape->virt};
}

int64_t epx_virtual_first(int32_t v, int64_t tokens, int32_t m)
{
    return v * (tokens / m) + epx_min64(v, tokens % m);
}

int32_t epx_virtual_sender(int64_t t, int64_t tokens, int32_t m)
{
    int64_t small = tokens / m, larger = tokens % m; /* `larger` blocks of small + 1 tokens come first */
    int64_t edge = larger * (small + 1);
    return (int32_t)(t < edge ? t / (small + 1) : larger + (t - edge) / small);
}

int32_t epx_block_first(int32_t c, int32_t n, int32_t parts)
{
    return (int32_t)epx_virtual_first(c, n, parts);
}

int32_t epx_block_of(int32_t i, int32_t n, int32_t parts) { return epx_virtual_sender(i, n, parts); }
