/* What every data call begins and ends with. SPDX-License-Identifier: Apache-2.0 */
#include "ragged/internal.h"

static void set_targets(epx_ragged_call_t *call)
{
    const epx_ragged_areas_t *areas = &call->ragged->areas;
    call->targets = 1;
    call->target[0] = (epx_ragged_target_t){.slot = call->slot,
                                            .slot_offset = call->slot_offset,
                                            .home_rows = call->return_offset,
                                            .home_dots = call->return_offset + areas->return_dots,
                                            .home_sums = call->return_offset + areas->return_sums};
    if (!epx_ragged_is_staged(call->ragged))
        return;
    call->targets = 2;
    call->target[0].runs = areas->plan.runs_bytes; /* those of this rank alone */
    call->target[1] = epx_ragged_staging_target(call);
}

epx_ragged_call_t epx_ragged_call(epx_transport_t *transport, epx_plan_base_t *plan, epx_move_t move,
                                  int32_t wave, epx_stream_t stream)
{
    epx_ragged_t *ragged = (epx_ragged_t *)transport;
    const epx_ragged_areas_t *areas = &ragged->areas;
    const epx_shape_t *shape = transport->env.shape;
    int32_t lane = plan->lane->index,
            backward = move == EPX_MOVE_COMBINE_BACKWARD || move == EPX_MOVE_DISPATCH_BACKWARD;
    int64_t slot = (int64_t)lane * shape->depth + wave % shape->depth;
    const epx_ragged_slot_t *parts = backward ? &areas->backward : &areas->forward;

    epx_ragged_call_t call = {.ragged = ragged,
                              .plan = plan,
                              .shape = shape,
                              .kernels = transport->env.kernels,
                              .move = move,
                              .wave = wave,
                              .backward = backward,
                              .slot = parts,
                              .slot_offset =
                                  (backward ? areas->backward_slots : areas->slots) + slot * parts->bytes,
                              .return_offset = areas->returns + lane * areas->return_bytes,
                              .scratch = (char *)transport->env.scratch + lane * areas->scratch.bytes,
                              .stream = stream};
    set_targets(&call);
    return call;
}

static uint64_t *epoch_of(const epx_ragged_call_t *call)
{
    epx_ragged_state_t *state = epx_ragged_state(call->ragged, call->plan);
    return &state->epoch[call->wave % call->shape->depth * EPX_MOVES + (int32_t)call->move];
}

static int32_t channel_of(const epx_ragged_call_t *call)
{
    return epx_move_channel(call->shape, call->plan->lane->index, call->wave, call->move);
}

void epx_ragged_begin(const epx_ragged_call_t *call) { *epoch_of(call) = epx_lane_advance(call->plan->lane); }

epx_status_t epx_ragged_post(const epx_ragged_call_t *call)
{
    epx_pieces_t list, *pieces = NULL;
    epx_rows_source_t source;
    if (epx_ragged_is_staged(call->ragged)) {
        pieces = &list;
        epx_status_t status = epx_ragged_list_pieces(call, pieces);
        if (status != EPX_OK)
            return status;
        if (call->left != NULL) {
            source = epx_ragged_source(call);
            pieces->source = &source.base;
        }
    }
    return epx_move_post(&call->ragged->base, call->plan, channel_of(call), *epoch_of(call), EPX_ALL_PEERS,
                         pieces, call->stream);
}

static int goes_home(const epx_ragged_call_t *call)
{
    return call->move == EPX_MOVE_COMBINE || call->move == EPX_MOVE_DISPATCH_BACKWARD;
}

epx_status_t epx_ragged_wait(const epx_ragged_call_t *call)
{
    epx_move_wait_t wait = {.move = call->move,
                            .wave = call->wave,
                            .lane = call->plan->lane->index,
                            .channel = channel_of(call),
                            .epoch = *epoch_of(call),
                            .peer = EPX_ALL_PEERS,
                            .mode = EPX_WAIT_EQUAL,
                            .last = call->wave == call->ragged->areas.chunks - 1 && goes_home(call),
                            .behind_post = call->plan->lane->adjoins,
                            .next_begins = epx_ragged_sums_early(call)};
    int tells = epx_ragged_want_heads(call, &wait);
    epx_status_t status = epx_move_wait(&call->ragged->base, call->plan, &wait, call->stream);
    if (status == EPX_OK && tells)
        epx_ragged_state(call->ragged, call->plan)->heads[call->wave] = 1;
    return status;
}
