/*
 * ring: what the passes of a plan moved. SPDX-License-Identifier: Apache-2.0
 *
 * How many tokens a block has is known to the device; calls are counted by block, and bytes are reckoned when
 * somebody asks, from what the device has told of T.
 */
#include <string.h>

#include "ring/ring.h"

epx_ring_tally_t epx_ring_tally(const epx_ring_t *ring, const epx_plan_base_t *plan)
{
    const epx_shape_t *shape = ring->base.env.shape;
    epx_ring_plan_t *state = plan->state;
    int64_t entries = (int64_t)EPX_MOVES * shape->ranks;
    uint64_t *epochs = (uint64_t *)(state->call + EPX_MOVES * shape->depth);
    int32_t *sent = (int32_t *)(epochs + entries);
    return (epx_ring_tally_t){
        .sent = sent, .received = sent + entries, .tokens = (int64_t *)(void *)(sent + 2 * entries)};
}

static int64_t entry(const epx_ring_step_t *step, int32_t block)
{
    return (int64_t)step->move * step->shape->ranks + block;
}

void epx_ring_count_sent(const epx_ring_step_t *step, int32_t block)
{
    epx_ring_tally(step->ring, step->plan).sent[entry(step, block)]++;
}

void epx_ring_count_received(const epx_ring_step_t *step, int32_t block)
{
    epx_ring_tally(step->ring, step->plan).received[entry(step, block)]++;
}

void epx_ring_forget(const epx_ring_t *ring, epx_plan_base_t *plan)
{
    epx_ring_tally_t tally = epx_ring_tally(ring, plan);
    size_t bytes = (size_t)EPX_MOVES * (size_t)ring->base.env.shape->ranks * sizeof(int32_t);
    memset(tally.sent, 0, bytes);
    memset(tally.received, 0, bytes);
    ((epx_ring_plan_t *)plan->state)->fetched = 0;
    ((epx_ring_plan_t *)plan->state)->known = 0;
}

epx_status_t epx_ring_fetch_tokens(epx_ring_t *ring, epx_plan_base_t *plan, epx_stream_t stream)
{
    epx_ring_plan_t *state = plan->state;
    int64_t *tokens = epx_plan_report(plan);
    size_t bytes = (size_t)ring->base.env.shape->ranks * sizeof(*tokens);
    if (!plan->attached || state->fetched)
        return EPX_OK;
    state->fetched = 1;
    memset(tokens, 0xff, bytes); /* no number of tokens */
    return ring->base.env.device->copy(tokens, epx_ring_plan_tokens(ring, plan), bytes, stream);
}

/* Bytes per token of a move: its row or sum; ids, weights, gradients of weights, checksum. */
typedef struct per_token {
    int64_t payload, meta;
} per_token_t;

static per_token_t bytes_of(const epx_shape_t *shape, int32_t move)
{
    int64_t weights = shape->top_k * (int64_t)sizeof(float);
    int64_t checksum = shape->check == EPX_CHECK_FULL ? (int64_t)sizeof(uint32_t) : 0;
    if (move == EPX_MOVE_COMBINE || move == EPX_MOVE_DISPATCH_BACKWARD)
        return (per_token_t){.payload = shape->width * (int64_t)sizeof(float),
                             .meta = checksum + (move == EPX_MOVE_DISPATCH_BACKWARD ? weights : 0)};
    return (per_token_t){.payload = shape->row_bytes + (move == EPX_MOVE_DISPATCH ? shape->aux_bytes : 0),
                         .meta = checksum + weights + shape->top_k * (int64_t)sizeof(int32_t)};
}

void epx_ring_account(epx_transport_t *transport, epx_plan_base_t *plan)
{
    const epx_ring_t *ring = (const epx_ring_t *)transport;
    const epx_shape_t *shape = transport->env.shape;
    const int64_t *told = epx_plan_report(plan);
    epx_ring_tally_t tally = epx_ring_tally(ring, plan);
    if (plan->attached ? !((epx_ring_plan_t *)plan->state)->fetched : !epx_route_is_told(plan))
        return;
    for (int32_t b = 0; b < shape->ranks; b++) {
        int64_t tokens = __atomic_load_n(&told[b], __ATOMIC_ACQUIRE);
        for (int32_t move = 0; move < EPX_MOVES && tokens >= 0; move++) {
            per_token_t bytes = bytes_of(shape, move);
            int32_t *sent = &tally.sent[move * shape->ranks + b],
                    *received = &tally.received[move * shape->ranks + b];
            plan->sent_bytes += *sent * tokens * bytes.payload;
            plan->sent_meta_bytes += *sent * tokens * bytes.meta;
            plan->received_bytes += *received * tokens * bytes.payload;
            plan->received_meta_bytes += *received * tokens * bytes.meta;
            *sent = *received = 0;
        }
    }
}
