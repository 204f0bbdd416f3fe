/* ring: from everyone's counts to what this rank keeps. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include <epx/kernels_ring.h>

#include "kernels/host/table.h"
#include "transport/accept.h"

static const epx_ring_notice_t *notice_of(const epx_k_ring_layout_t *args, int32_t rank)
{
    return (const epx_ring_notice_t *)((const char *)args->notices + rank * args->notice_stride);
}

/* Takes the notices apart: T of every rank, and one table of all virtual senders' counts. Returns V. */
static int64_t spread_notices(const epx_k_ring_layout_t *args)
{
    const epx_shape_t *shape = args->shape;
    int64_t share = (int64_t)shape->splits * shape->experts, valid = 0;
    int32_t right = (shape->rank + 1) % shape->ranks;
    for (int32_t b = 0; b < shape->ranks; b++) {
        const epx_ring_notice_t *notice = notice_of(args, b);
        const int32_t *counts = (const int32_t *)(notice + 1);
        memcpy(args->counts + b * share, counts, (size_t)share * sizeof(*counts));
        for (int64_t i = 0; i < share; i++)
            valid += counts[i];
        args->block_tokens[b] = notice->tokens;
        args->block_runs[b] =
            (epx_run_t){.first = 0, .row = 0, .peer = right, .rows = (int32_t)notice->tokens};
    }
    return valid;
}

/* Turns refused ids of this rank into -1. Returns how many stay. */
static int64_t refuse(const epx_k_ring_layout_t *args, int64_t tokens)
{
    const epx_shape_t *shape = args->shape;
    int64_t stay = 0;
    for (int64_t t = 0; t < tokens; t++) {
        int32_t sender = shape->rank * shape->splits + epx_virtual_sender(t, tokens, shape->splits);
        const int32_t *accepted = args->accepted + (int64_t)sender * shape->experts;
        for (int64_t a = t * shape->top_k; a < (t + 1) * shape->top_k; a++) {
            if (args->kept[a] >= 0 && args->ordinal[a] < accepted[args->kept[a]])
                stay++;
            else
                args->kept[a] = -1;
        }
    }
    return stay;
}

/* What all senders may send to the experts of this rank. */
static int64_t kept_here(const epx_k_ring_layout_t *args)
{
    const epx_shape_t *shape = args->shape;
    const epx_owners_t *owners = &shape->real;
    int64_t sum = 0;
    for (int32_t s = 0; s < shape->virtual_ranks; s++)
        for (int32_t i = owners->first[shape->rank]; i < owners->first[shape->rank + 1]; i++)
            sum += args->accepted[(int64_t)s * shape->experts + owners->expert[i]];
    return sum;
}

epx_status_t epx_host_ring_layout(const epx_k_ring_layout_t *args, epx_stream_t stream)
{
    (void)stream;
    const epx_shape_t *shape = args->shape;
    epx_rule_t rule = epx_rule_of(shape, 1);
    int64_t valid = spread_notices(args), tokens = args->block_tokens[shape->rank], routed = 0;
    int64_t share = (int64_t)shape->splits * shape->experts;

    for (int32_t d = 0; d < shape->virtual_ranks; d++)
        epx_ragged_accept(&rule, d, 0, valid, args->counts, args->accepted, args->seats);
    for (int64_t i = shape->rank * share; i < (shape->rank + 1) * share; i++)
        routed += args->counts[i];

    args->head->tokens = tokens;
    args->head->routed = routed;
    args->head->kept = kept_here(args);
    args->head->dropped_sender = routed - refuse(args, tokens);
    return EPX_OK;
}
