/* ring: from everyone's counts to what this rank keeps. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include <epx/kernels_ring.h>

#include "kernels/host/table.h"
#include "kernels/host/verdict.h"
#include "transport/accept.h"

/* Block b has `tokens` tokens. */
static void set_block(const epx_k_ring_layout_t *args, int32_t b, int64_t tokens)
{
    int32_t right = (args->shape->rank + 1) % args->shape->ranks;
    args->block_tokens[b] = tokens;
    if (args->tokens_report != NULL)
        args->tokens_report[b] = tokens;
    args->block_runs[b] = (epx_run_t){.first = 0, .row = 0, .peer = right, .rows = (int32_t)tokens};
}

/* Takes the notices apart: T of every rank, and one table of all virtual senders' counts. Returns V. */
static int64_t spread_notices(const epx_k_ring_layout_t *args)
{
    const epx_shape_t *shape = args->shape;
    int64_t share = (int64_t)shape->splits * shape->experts, valid = 0;
    for (int32_t b = 0; b < shape->ranks; b++) {
        const epx_route_notice_t *notice = epx_notice_of(args->notices, args->notice_stride, b);
        const int32_t *counts = epx_notice_counts(notice);
        memcpy(args->counts + b * share, counts, (size_t)share * sizeof(*counts));
        for (int64_t i = 0; i < share; i++)
            valid += counts[i];
        set_block(args, b, notice->tokens);
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

/* Some rank's route failed: every block is empty. */
static void die(const epx_k_ring_layout_t *args, int32_t culprit)
{
    const epx_route_notice_t *notice = epx_notice_of(args->notices, args->notice_stride, culprit);
    for (int32_t b = 0; b < args->shape->ranks; b++)
        set_block(args, b, 0);
    epx_verdict_dead(&args->verdict, culprit == args->shape->rank ? epx_notice_status(notice) : EPX_ERR_PEER,
                     culprit, notice);
}

epx_status_t epx_host_ring_layout(const epx_k_ring_layout_t *args, epx_stream_t stream)
{
    (void)stream;
    const epx_shape_t *shape = args->shape;
    int32_t culprit = epx_notice_culprit(args->notices, args->notice_stride, shape->rank, shape->ranks);
    if (culprit >= 0) {
        die(args, culprit);
        epx_verdict_done(&args->verdict);
        return EPX_OK;
    }
    epx_rule_t rule = epx_rule_of(shape, 1);
    int64_t valid = spread_notices(args), tokens = args->block_tokens[shape->rank], routed = 0;
    int64_t share = (int64_t)shape->splits * shape->experts;

    for (int32_t d = 0; d < shape->virtual_ranks; d++)
        epx_ragged_accept(&rule, d, 0, valid, args->counts, args->accepted, args->seats);
    for (int64_t i = shape->rank * share; i < (shape->rank + 1) * share; i++)
        routed += args->counts[i];

    epx_plan_head_t *head = args->verdict.head;
    head->tokens = tokens;
    head->routed = routed;
    head->kept = kept_here(args);
    head->dropped_sender = routed - refuse(args, tokens);
    head->valid = 1;
    epx_verdict_done(&args->verdict);
    return EPX_OK;
}
