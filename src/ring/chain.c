/*
 * ring: flow control. SPDX-License-Identifier: Apache-2.0
 *
 * A chain's pass has S hops, each with a start and a finish call: s(0) .. s(S-1) and f(0) .. f(S-1), f(h)
 * after s(h) and after f(h-1). How they interleave with each other, with the calls of other chains and with
 * other lanes is the caller's choice, but all ranks make all calls of a group in one order. Let the
 * *position* of a call be its number in that order, and e(h) the lane's epoch taken by s(h); both are equal
 * on all ranks. A re-dispatch may leave waves out: its start takes the epochs of the hops that were left out
 * too, and its finish goes through them as well, one after the other.
 *
 * Slots. A chain has two incoming slots on every rank, filled by the left neighbour alone. Data for hop h,
 * 1 .. S-1 (SUMS: S too, a block's sums come home), goes to the slot of h's parity, whatever `depth` is: what
 * a wave in flight needs after its finish is copied to memory of its own (places, weights, rows), so that the
 * slot is free when f(h) ends. Hop 0 needs no slot: a block is sent from where the caller has it, and its
 * first sums are made in the right neighbour's slot.
 *
 * - Who fills: data of hop h+1 is stored, and its word posted, in f(h); of hop 1 already in s(0). The word is
 *   e(h).
 * - Who reads: f(h) waits for e(h-1), equal; the last finish of SUMS waits for e(S-1) too, which the sums of
 *   the own block come with.
 * - Credit: f(h), having passed on and used what came, posts e(h) to the left neighbour's acknowledgement
 *   word: "hops up to h of this pass, and all earlier passes of this chain, have been used here". In SUMS,
 *   e(S-1) stands for the sums that came home too.
 * - Before a fill: f(h), h >= 1, waits until the right neighbour has acknowledged e(h-1): hop h-1, the last
 *   user of that slot, is gone. s(0) waits for the acknowledgement of the last hop of the chain's previous
 *   pass that went through the slot of hop 1 (`need`). So a start call waits for nobody's data, but wave 0's
 *   may wait for a slot that an earlier finish of the right neighbour gives back.
 *
 * No deadlock. Whatever a call posts for others to see is posted before a wait that could depend on it. Order
 * events by (position, hop, phase), where the phases are: receive from the left, pass on to the right,
 * receive what comes home. Every wait is for an event that is earlier in this order:
 *
 * - f(h) receives what the left neighbour passed on in f(h-1), or in s(0);
 * - f(h) passes on after the right neighbour's f(h-1);
 * - s(0) passes on after the right neighbour's finish of an earlier pass;
 * - f(S-1) receives at home what the left neighbour passed on in the same call, an earlier phase.
 *
 * By induction over the order every event happens, however slow a rank is and however calls interleave. More
 * than two slots would let neighbours drift further apart, but are not needed for that.
 *
 * No overwriting. A fill of hop h+1 is ordered after the right neighbour's f(h-1) by the acknowledgement;
 * that finish comes after the right neighbour passed hop h-1 on itself. Hop h's data is in the other slot. A
 * word is overwritten only with its slot, so a wait for an equal epoch cannot miss it.
 *
 * A pass may be left unfinished (its plan was destroyed, or a backward pass dispatched only its first waves
 * again). All ranks leave it at the same position, so that what was passed on in its last finish is read by
 * nobody. The next pass may fill those slots as soon as the finishes that were made are acknowledged, and
 * what a slow left neighbour still passes on for the old pass comes before anything of the new one, with an
 * epoch that nobody waits for.
 */
#include "ring/ring.h"

enum { WORD_DATA = 0, WORD_FREE = 2, WORDS = 3 };

int32_t epx_ring_channels(const epx_shape_t *shape) { return shape->lanes * EPX_RING_CHAINS * WORDS; }

static int32_t channel_of(const epx_ring_step_t *step, int32_t word)
{
    return (step->lane * EPX_RING_CHAINS + step->chain) * WORDS + word;
}

/* The word of a hop's slot. */
static int32_t data_channel(const epx_ring_step_t *step, int32_t hop)
{
    return channel_of(step, WORD_DATA + (hop & 1));
}

static epx_ring_chain_t *chain_of(const epx_ring_step_t *step)
{
    return &step->ring->lane[step->lane].chain[step->chain];
}

static epx_status_t post(epx_ring_step_t *step, int32_t channel, uint64_t epoch, int32_t peer,
                         const epx_pieces_t *pieces)
{
    return epx_move_post(&step->ring->base, step->plan, channel, epoch, peer, pieces, step->stream);
}

/* credit: as in epx_move_wait_t. */
static epx_status_t await(epx_ring_step_t *step, int32_t channel, uint64_t epoch, int32_t peer,
                          epx_wait_mode_t mode, int32_t credit)
{
    epx_move_wait_t wait = {.move = step->move,
                            .wave = step->wave,
                            .lane = step->lane,
                            .channel = channel,
                            .epoch = epoch,
                            .peer = peer,
                            .mode = mode,
                            .credit = credit};
    return epx_move_wait(&step->ring->base, step->plan, &wait, step->stream);
}

/* ---- calls --------------------------------------------------------------------------------------------------------- */

static epx_ring_call_t *calls_of(const epx_plan_base_t *plan)
{
    return ((epx_ring_plan_t *)plan->state)->call;
}

static uint64_t *epochs_of(const epx_ring_t *ring, const epx_plan_base_t *plan)
{
    return (uint64_t *)(calls_of(plan) + EPX_MOVES * ring->base.env.shape->depth);
}

int64_t epx_ring_plan_state_bytes(const epx_shape_t *shape)
{
    return (int64_t)sizeof(epx_ring_plan_t) + EPX_MOVES * shape->depth * (int64_t)sizeof(epx_ring_call_t) +
           (int64_t)EPX_MOVES * shape->ranks * (int64_t)(sizeof(uint64_t) + 2 * sizeof(int32_t)) +
           shape->ranks * (int64_t)sizeof(int64_t);
}

void epx_ring_end_pass(epx_plan_base_t *plan)
{
    epx_ring_plan_t *state = plan->state;
    for (int32_t move = 0; move < EPX_MOVES; move++)
        state->next[move] = 0;
}

static epx_ring_chain_id_t chain_for(const epx_ring_layout_t *layout, epx_move_t move)
{
    if (move == EPX_MOVE_COMBINE || move == EPX_MOVE_DISPATCH_BACKWARD)
        return EPX_RING_SUMS;
    return move == EPX_MOVE_COMBINE_BACKWARD && layout->sides == 2 ? EPX_RING_GRADIENTS : EPX_RING_BLOCKS;
}

void epx_ring_turn_to(epx_ring_step_t *step, int32_t hop)
{
    int64_t first = (int64_t)step->move * step->shape->ranks;
    step->wave = hop;
    step->block = epx_ring_block_of(step->shape, hop);
    step->epoch = epochs_of(step->ring, step->plan) + first + hop;
}

int32_t epx_ring_unfinished(const epx_ring_step_t *step) { return chain_of(step)->finished; }

void epx_ring_resume(epx_ring_step_t *step, epx_transport_t *transport, epx_plan_base_t *plan,
                     epx_move_t move, int32_t wave, epx_stream_t stream)
{
    epx_ring_t *ring = (epx_ring_t *)transport;
    const epx_shape_t *shape = transport->env.shape;
    int backward = move == EPX_MOVE_COMBINE_BACKWARD || move == EPX_MOVE_DISPATCH_BACKWARD;
    *step =
        (epx_ring_step_t){.ring = ring,
                          .shape = shape,
                          .plan = plan,
                          .stream = stream,
                          .move = move,
                          .lane = plan->lane->index,
                          .chain = chain_for(&ring->layout, move),
                          .side = backward && ring->layout.sides == 2 ? EPX_RING_BACKWARD : EPX_RING_FORWARD,
                          .call = calls_of(plan) + (int32_t)move * shape->depth + wave % shape->depth};
    epx_ring_turn_to(step, wave);
}

epx_status_t epx_ring_start(epx_ring_step_t *step, epx_transport_t *transport, epx_plan_base_t *plan,
                            epx_move_t move, int32_t wave, epx_stream_t stream)
{
    epx_ring_plan_t *state = plan->state;
    epx_status_t status = epx_ring_fetch_tokens((epx_ring_t *)transport, plan, stream);
    if (status == EPX_OK)
        status = epx_ring_learn_tokens((epx_ring_t *)transport, plan, stream);
    if (status != EPX_OK)
        return status;
    epx_ring_resume(step, transport, plan, move, wave, stream);
    step->opens = state->next[move] == 0;
    for (int32_t hop = state->next[move]; hop <= wave; hop++)
        epochs_of(step->ring, plan)[(int64_t)move * step->shape->ranks + hop] = epx_lane_advance(plan->lane);
    state->next[move] = wave + 1;
    if (step->opens)
        chain_of(step)->finished = 0;
    return EPX_OK;
}

/* ---- words --------------------------------------------------------------------------------------------------------- */

epx_status_t epx_ring_await_left(epx_ring_step_t *step, int32_t hop)
{
    uint64_t epoch = hop == step->wave ? chain_of(step)->last : *step->epoch;
    return await(step, data_channel(step, hop), epoch, step->ring->left, EPX_WAIT_EQUAL, 0);
}

epx_status_t epx_ring_await_right(epx_ring_step_t *step)
{
    uint64_t epoch = step->wave == 0 ? chain_of(step)->need : chain_of(step)->last;
    int32_t credit = step->wave == 0 ? (int32_t)step->chain + 1 : 0;
    if (epoch == 0 && step->plan->lane->words == NULL)
        return EPX_OK;
    return await(step, channel_of(step, WORD_FREE), epoch, step->ring->right, EPX_WAIT_AT_LEAST, credit);
}

epx_status_t epx_ring_passed(epx_ring_step_t *step)
{
    epx_piece_t send[EPX_RING_PARTS], receive[EPX_RING_PARTS];
    epx_pieces_t list = epx_pieces_begin(send, receive), *pieces = NULL;
    if (step->ring->mirror > 0) {
        pieces = &list;
        epx_ring_list_pieces(step, pieces);
    }
    return post(step, data_channel(step, step->wave + 1), *step->epoch, step->ring->right, pieces);
}

epx_status_t epx_ring_done(epx_ring_step_t *step)
{
    epx_ring_chain_t *chain = chain_of(step);
    int last = step->wave == step->shape->ranks - 1;
    chain->last = *step->epoch;
    chain->finished = step->wave + 1;
    /* Hop 1 of the next pass goes where the last odd hop went; the way home may be one too. */
    if ((step->wave & 1) != 0 || (step->chain == EPX_RING_SUMS && last))
        step->plan->lane->acknowledged[step->chain] = (chain->need = *step->epoch) - step->plan->lane->base;
    return step->shape->ranks > 1
               ? post(step, channel_of(step, WORD_FREE), *step->epoch, step->ring->left, NULL)
               : EPX_OK;
}
