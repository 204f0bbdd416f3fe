/*
 * ring on fabrics without loads and stores. SPDX-License-Identifier: Apache-2.0
 *
 * The segment has a mirror of itself behind it: kernels store what is for the right neighbour there, at the
 * offsets where it will stand, and the post that says so carries it. A part of a block (or of its sums) is
 * one piece of as many tokens as the block has, which the host learns once per route.
 *
 * The mirror of a slot may be written again when the slot itself may: the right neighbour's acknowledgement
 * says that it has used what stood there. What comes from the left for the same hop is received by the same
 * post: this rank's slot for it is free, since the hop before the last has ended here.
 */
#include "ring/ring.h"

epx_status_t epx_ring_learn_tokens(epx_ring_t *ring, epx_plan_base_t *plan, epx_stream_t stream)
{
    epx_ring_plan_t *state = plan->state;
    size_t bytes = (size_t)ring->base.env.shape->ranks * sizeof(int64_t);
    if (ring->mirror == 0 || state->known)
        return EPX_OK;
    epx_status_t status = epx_fetch(&ring->base, epx_ring_tally(ring, plan).tokens,
                                    epx_ring_plan_tokens(ring, plan), bytes, stream);
    state->known = status == EPX_OK;
    return status;
}

typedef struct listing {
    const epx_ring_step_t *step;
    epx_pieces_t *pieces;
    int64_t slot;        /* of hop wave + 1, in anybody's segment */
    int64_t goes, comes; /* tokens of the block that goes, and of the one that comes */
} listing_t;

static void list_part(const listing_t *l, int64_t offset, int64_t bytes)
{
    const epx_ring_t *ring = l->step->ring;
    epx_pieces_part(l->pieces);
    epx_pieces_send(l->pieces, ring->right, ring->mirror + l->slot + offset, l->slot + offset,
                    l->goes * bytes);
    epx_pieces_receive(l->pieces, ring->left, l->slot + offset, l->comes * bytes);
}

static void list_block(const listing_t *l)
{
    const epx_shape_t *shape = l->step->shape;
    const epx_ring_block_slot_t *slot = &l->step->ring->layout.block;
    list_part(l, slot->rows, shape->row_bytes);
    list_part(l, slot->kept, shape->top_k * (int64_t)sizeof(int32_t));
    list_part(l, slot->weights, shape->top_k * (int64_t)sizeof(float));
    if (l->step->move == EPX_MOVE_DISPATCH && shape->aux_bytes > 0)
        list_part(l, slot->aux, shape->aux_bytes);
    if (shape->check == EPX_CHECK_FULL)
        list_part(l, slot->checksum, (int64_t)sizeof(uint32_t));
}

static void list_sums(const listing_t *l)
{
    const epx_shape_t *shape = l->step->shape;
    const epx_ring_sum_slot_t *slot = &l->step->ring->layout.sum;
    list_part(l, slot->sums, shape->width * (int64_t)sizeof(float));
    if (l->step->move == EPX_MOVE_DISPATCH_BACKWARD)
        list_part(l, slot->dweight, shape->top_k * (int64_t)sizeof(float));
    if (shape->check == EPX_CHECK_FULL)
        list_part(l, slot->checksum, (int64_t)sizeof(uint32_t));
}

void epx_ring_list_pieces(const epx_ring_step_t *step, epx_pieces_t *pieces)
{
    const int64_t *tokens = epx_ring_tally(step->ring, step->plan).tokens;
    listing_t listing = {.step = step,
                         .pieces = pieces,
                         .slot = epx_ring_slot_at(step, step->wave + 1),
                         .goes = tokens[step->block],
                         .comes = tokens[epx_ring_block_of(step->shape, step->wave + 1)]};
    if (step->chain == EPX_RING_SUMS)
        list_sums(&listing);
    else
        list_block(&listing);
}

epx_status_t epx_ring_clear_staged(epx_ring_step_t *step)
{
    const epx_ring_layout_t *layout = &step->ring->layout;
    int64_t bytes = step->chain == EPX_RING_SUMS ? layout->sum.bytes : layout->block.bytes;
    if (step->ring->mirror == 0)
        return EPX_OK;
    return epx_canary_fill(&step->ring->base, step->ring->right_base + epx_ring_slot_at(step, step->wave + 1),
                           bytes, step->stream);
}
