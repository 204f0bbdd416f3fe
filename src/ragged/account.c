/*
 * What the passes of a plan moved, of `ragged`. SPDX-License-Identifier: Apache-2.0
 *
 * Rows follow from the routing, which the device decides, so calls are only counted here, by move and wave;
 * bytes are reckoned from what the device has told when somebody asks.
 */
#include <string.h>

#include "ragged/internal.h"

int64_t epx_ragged_state_bytes(const epx_shape_t *shape, const epx_ragged_areas_t *areas)
{
    int64_t calls = (int64_t)sizeof(int32_t) * areas->chunks * (2 * EPX_MOVES + 1);
    int64_t pairs = areas->rank_wire ? (int64_t)areas->chunks * shape->ranks : 0;
    int64_t staged = areas->staging.bytes > 0 ? areas->plan.runs_bytes + pairs * (int64_t)sizeof(int64_t) : 0;
    return (int64_t)sizeof(epx_ragged_state_t) + (int64_t)sizeof(uint64_t) * EPX_MOVES * shape->depth +
           (int64_t)sizeof(epx_ragged_own_t) * shape->depth + staged + calls;
}

int64_t epx_ragged_report_bytes(const epx_shape_t *shape, const epx_ragged_areas_t *areas)
{
    int64_t heads = areas->rank_wire ? (int64_t)areas->chunks * shape->ranks : 0;
    return areas->chunks * (int64_t)sizeof(epx_ragged_wave_t) + heads * (int64_t)sizeof(int64_t);
}

/* The handle's memory is zeroed at creation: the pointers into it are set at the first use. */
epx_ragged_state_t *epx_ragged_state(const epx_ragged_t *ragged, const epx_plan_base_t *plan)
{
    epx_ragged_state_t *state = plan->state;
    if (state->sent == NULL) {
        const epx_shape_t *shape = ragged->base.env.shape;
        int32_t chunks = ragged->areas.chunks;
        state->own = (epx_ragged_own_t *)(void *)(state->epoch + (int64_t)EPX_MOVES * shape->depth);
        char *end = (char *)(state->own + shape->depth);
        if (epx_ragged_is_staged(ragged)) {
            state->runs = (epx_run_t *)(void *)end;
            state->arriving = (int64_t *)(void *)(end + ragged->areas.plan.runs_bytes);
            end = (char *)(state->arriving + (ragged->areas.rank_wire ? (int64_t)chunks * shape->ranks : 0));
        }
        state->sent = (int32_t *)(void *)end;
        state->arrived = state->sent + (int64_t)EPX_MOVES * chunks;
        state->heads = state->arrived + (int64_t)EPX_MOVES * chunks;
    }
    return state;
}

epx_ragged_told_t epx_ragged_told(const epx_ragged_t *ragged, const epx_plan_base_t *plan)
{
    epx_ragged_wave_t *wave = epx_plan_report(plan);
    return (epx_ragged_told_t){.wave = wave, .heads = (int64_t *)(void *)(wave + ragged->areas.chunks)};
}

void epx_ragged_forget(const epx_ragged_t *ragged, epx_plan_base_t *plan)
{
    epx_ragged_state_t *state = epx_ragged_state(ragged, plan);
    size_t entries = (size_t)ragged->areas.chunks * sizeof(int32_t);
    memset(state->sent, 0, entries * EPX_MOVES);
    memset(state->arrived, 0, entries * EPX_MOVES);
    memset(state->heads, 0, entries);
    state->fetched = 0;
    state->known = 0;
}

/* Words that a device writes. */
static int64_t look(const int64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

/* An attached plan's routing was told to another handle: its table of waves comes from the bytes. */
static epx_status_t fetch_waves(const epx_ragged_call_t *call)
{
    epx_ragged_state_t *state = epx_ragged_state(call->ragged, call->plan);
    epx_ragged_told_t told = epx_ragged_told(call->ragged, call->plan);
    size_t bytes = (size_t)call->ragged->areas.chunks * sizeof(epx_ragged_wave_t);
    if (!call->plan->attached || state->fetched)
        return EPX_OK;
    state->fetched = 1;
    memset(told.wave, 0xff, bytes); /* no number of rows */
    return call->ragged->base.env.device->copy(
        told.wave, epx_ragged_plan_at(call, call->ragged->areas.plan.wave), bytes, call->stream);
}

epx_status_t epx_ragged_count_sent(const epx_ragged_call_t *call)
{
    epx_ragged_state_t *state = epx_ragged_state(call->ragged, call->plan);
    state->sent[(int32_t)call->move * call->ragged->areas.chunks + call->wave]++;
    return fetch_waves(call);
}

int epx_ragged_want_heads(const epx_ragged_call_t *call, epx_move_wait_t *wait)
{
    epx_ragged_state_t *state = epx_ragged_state(call->ragged, call->plan);
    int64_t *heads =
        epx_ragged_told(call->ragged, call->plan).heads + (int64_t)call->wave * call->shape->ranks;
    size_t bytes = (size_t)call->shape->ranks * sizeof(*heads);
    int brings_rows = call->move == EPX_MOVE_DISPATCH || call->move == EPX_MOVE_COMBINE_BACKWARD;
    if (!call->ragged->areas.rank_wire || !brings_rows || state->heads[call->wave])
        return 0;
    memset(heads, 0xff, bytes);
    wait->tell_from = epx_ragged_slot_at(call, call->slot->head);
    wait->tell_to = heads;
    wait->tell_bytes = bytes;
    return 1;
}

void epx_ragged_count_arrived(const epx_ragged_call_t *call)
{
    epx_ragged_state_t *state = epx_ragged_state(call->ragged, call->plan);
    state->arrived[(int32_t)call->move * call->ragged->areas.chunks + call->wave]++;
}

/* ---- reckoning -------------------------------------------------------------------------------------------------- */

typedef struct rows {
    int64_t rows, places; /* rows that travel, and the assignments behind them; of other ranks only */
} rows_t;

static int waves_are_told(const epx_ragged_t *ragged, const epx_plan_base_t *plan)
{
    const epx_ragged_state_t *state = plan->state;
    const epx_ragged_wave_t *wave = epx_ragged_told(ragged, plan).wave;
    int told = state->fetched;
    if (!plan->attached)
        return epx_route_is_told(plan);
    for (int32_t c = 0; c < ragged->areas.chunks && told; c++)
        told = look(&wave[c].sent_rows) >= 0 && look(&wave[c].sent_places) >= 0 &&
               look(&wave[c].received_places) >= 0;
    return told;
}

/* What this rank's experts get in wave c; 0: not told yet. */
static int find_received(const epx_ragged_t *ragged, const epx_plan_base_t *plan, int32_t c, rows_t *rows_p)
{
    const epx_shape_t *shape = ragged->base.env.shape;
    epx_ragged_told_t told = epx_ragged_told(ragged, plan);
    *rows_p = (rows_t){.rows = told.wave[c].received_places, .places = told.wave[c].received_places};
    if (!ragged->areas.rank_wire)
        return 1;
    if (!((const epx_ragged_state_t *)plan->state)->heads[c])
        return 0;
    rows_p->rows = 0;
    for (int32_t s = 0; s < shape->ranks; s++) {
        int64_t rows = look(&told.heads[(int64_t)c * shape->ranks + s]);
        if (rows < 0)
            return 0;
        rows_p->rows += s == shape->rank ? 0 : rows;
    }
    return 1;
}

static int is_backward(int32_t move)
{
    return move == EPX_MOVE_COMBINE_BACKWARD || move == EPX_MOVE_DISPATCH_BACKWARD;
}

/* Bytes of metadata beside rows on their way to the experts. */
static int64_t out_meta(const epx_ragged_t *ragged, int32_t move, rows_t n)
{
    const epx_shape_t *shape = ragged->base.env.shape;
    int64_t per_place = shape->origin ? (int64_t)sizeof(epx_origin_t) : 0, per_row = 0;
    if (is_backward(move) || ragged->areas.rank_wire)
        per_place += (int64_t)sizeof(float);
    if (shape->check == EPX_CHECK_FULL)
        per_row += (int64_t)sizeof(uint32_t);
    if (!ragged->areas.rank_wire)
        return per_row * n.rows + per_place * n.places;
    per_row += 2 * (int64_t)sizeof(int32_t);
    per_place += 2 * (int64_t)sizeof(int32_t);
    return per_row * n.rows + per_place * n.places + (int64_t)sizeof(int64_t) * (shape->ranks - 1);
}

/* Bytes beside rows on the way home: checksums of rows, dots of assignments. */
static int64_t home_meta(const epx_ragged_t *ragged, int32_t move, rows_t n)
{
    return (ragged->base.env.shape->check == EPX_CHECK_FULL ? n.rows * (int64_t)sizeof(uint32_t) : 0) +
           (is_backward(move) ? n.places * (int64_t)sizeof(float) : 0);
}

static void add(const epx_ragged_t *ragged, int32_t move, int32_t *calls, rows_t n, int64_t *payload,
                int64_t *meta)
{
    const epx_shape_t *shape = ragged->base.env.shape;
    int goes_out = move == EPX_MOVE_DISPATCH || move == EPX_MOVE_COMBINE_BACKWARD;
    int64_t row_bytes = shape->row_bytes + (move == EPX_MOVE_DISPATCH ? shape->aux_bytes : 0);
    *payload += *calls * n.rows * row_bytes;
    *meta += *calls * (goes_out ? out_meta(ragged, move, n) : home_meta(ragged, move, n));
    *calls = 0;
}

void epx_ragged_account(epx_transport_t *transport, epx_plan_base_t *plan)
{
    const epx_ragged_t *ragged = (const epx_ragged_t *)transport;
    epx_ragged_state_t *state = epx_ragged_state(ragged, plan);
    int32_t chunks = ragged->areas.chunks;
    if (!waves_are_told(ragged, plan))
        return;
    for (int32_t c = 0; c < chunks; c++) {
        const epx_ragged_wave_t *wave = &epx_ragged_told(ragged, plan).wave[c];
        rows_t mine = {.rows = wave->sent_rows, .places = wave->sent_places}, theirs;
        int know_theirs = find_received(ragged, plan, c, &theirs);
        for (int32_t move = 0; move < EPX_MOVES; move++) {
            int32_t *sent = &state->sent[move * chunks + c], *arrived = &state->arrived[move * chunks + c];
            int goes_out = move == EPX_MOVE_DISPATCH || move == EPX_MOVE_COMBINE_BACKWARD;
            /* What goes out are my rows, and what comes home are those; of the others it is the other way
             * round. */
            if (goes_out || know_theirs)
                add(ragged, move, sent, goes_out ? mine : theirs, &plan->sent_bytes, &plan->sent_meta_bytes);
            if (!goes_out || know_theirs)
                add(ragged, move, arrived, goes_out ? theirs : mine, &plan->received_bytes,
                    &plan->received_meta_bytes);
        }
    }
}
