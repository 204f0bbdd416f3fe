/*
 * `ragged` on fabrics without loads and stores: what kernels write for post to send, and the pieces of a
 * post. SPDX-License-Identifier: Apache-2.0
 *
 * A wave's messages come in parts (rows, weights, lists, ...), and a part in runs, as the layout kernel gives
 * them. Kernels know only runs, so there are two more blocks of them in the plan's bytes: those of my own
 * rows, which go straight where they belong, and those of the others' rows, with the row where they stand in
 * the staging area. The host learns the runs once per route, makes both blocks, and lists pieces from its
 * copy.
 *
 * Sender and receiver must list alike: a part's pieces by the receiver's memory, ascending. Out, both follow
 * the order of experts; what I send of one expert is one run at its owner. Home, all that an owner sends back
 * is one region of mine, so staging has it by sender first, and it becomes one piece.
 */
#include "ragged/internal.h"

enum { PARTS_OUT = 10, OWN = 1, STAGED = 2 }; /* blocks of runs behind the plan's own */

/* Whose runs a part follows. */
typedef enum by {
    BY_ASSIGNMENT, /* send_runs; return_runs there */
    BY_WIRE_ROW,   /* wire_runs; back_runs there, as many as arrive */
    BY_LIST,       /* list_runs; back_runs there, as many as there is room */
    BY_HEAD        /* head_runs; one for each rank there */
} by_t;

typedef struct part {
    by_t by;
    int64_t staged, slot, bytes; /* offsets in the staging area and in the receiver's slot; of one entry */
} part_t;

static int64_t pairs_of(const epx_shape_t *shape, const epx_ragged_areas_t *areas)
{
    return areas->rank_wire ? (int64_t)areas->chunks * shape->ranks : 0;
}

int64_t epx_ragged_sends_max(const epx_shape_t *shape, const epx_ragged_areas_t *areas)
{
    if (areas->staging.bytes == 0)
        return 0;
    return PARTS_OUT * ((int64_t)shape->experts + shape->ranks);
}

int64_t epx_ragged_receives_max(const epx_shape_t *shape, const epx_ragged_areas_t *areas)
{
    if (areas->staging.bytes == 0)
        return 0;
    return PARTS_OUT * ((int64_t)areas->local_experts_max + 1) * shape->ranks;
}

epx_ragged_target_t epx_ragged_staging_target(const epx_ragged_call_t *call)
{
    const epx_ragged_staging_t *staging = &call->ragged->areas.staging;
    int32_t lane = call->plan->lane->index;
    int64_t slot = (int64_t)lane * call->shape->depth + call->wave % call->shape->depth;
    int64_t home = staging->homes + slot * staging->home_bytes;
    return (epx_ragged_target_t){.runs = STAGED * call->ragged->areas.plan.runs_bytes,
                                 .slot = &staging->out,
                                 .slot_offset = (call->backward ? staging->outs_backward : staging->outs) +
                                                lane * staging->out.bytes,
                                 .home_rows = home,
                                 .home_dots = home + staging->home_dots,
                                 .home_sums = home + staging->home_sums};
}

/* ---- a route's end ---------------------------------------------------------------------------------------------- */

/* A table in one of the blocks at `runs`; table: its offset in the plan. */
static epx_run_t *table_in(const epx_ragged_t *ragged, epx_run_t *runs, int32_t block, int64_t table)
{
    const epx_ragged_plan_areas_t *plan = &ragged->areas.plan;
    return (epx_run_t *)(void *)((char *)runs + block * plan->runs_bytes + table - plan->runs);
}

static const epx_run_t *known(const epx_ragged_call_t *call, int64_t table)
{
    return table_in(call->ragged, epx_ragged_state(call->ragged, call->plan)->runs, 0, table);
}

/* Runs of my own keep their rows; those of others stand in staging where they stand in my lists. */
static void make_runs(const epx_ragged_t *ragged, const epx_ragged_state_t *state, int64_t table,
                      int64_t count)
{
    const epx_run_t *from = table_in(ragged, state->runs, 0, table);
    epx_run_t *own = table_in(ragged, ragged->made, OWN - 1, table),
              *staged = table_in(ragged, ragged->made, STAGED - 1, table);
    for (int64_t i = 0; i < count; i++) {
        int mine = from[i].peer == ragged->base.env.shape->rank;
        own[i] = staged[i] = from[i];
        staged[i].row = from[i].first;
        own[i].rows = mine ? from[i].rows : 0;
        staged[i].rows = mine ? 0 : from[i].rows;
    }
}

/* On the way home staging stands by sender first, wave by wave. */
static void pack_returns(const epx_ragged_t *ragged)
{
    const epx_shape_t *shape = ragged->base.env.shape;
    epx_run_t *staged = table_in(ragged, ragged->made, STAGED - 1, ragged->areas.plan.return_runs);
    for (int32_t c = 0; c < ragged->areas.chunks; c++) {
        int64_t row = 0;
        for (int32_t s = 0; s < shape->ranks; s++)
            for (int32_t i = ragged->local_first[c]; i < ragged->local_first[c + 1]; i++) {
                epx_run_t *run = &staged[(int64_t)i * shape->ranks + s];
                run->row = row;
                row += run->rows;
            }
    }
}

static void make_blocks(const epx_ragged_t *ragged, const epx_ragged_state_t *state)
{
    const epx_shape_t *shape = ragged->base.env.shape;
    const epx_ragged_plan_areas_t *plan = &ragged->areas.plan;
    int64_t pairs = pairs_of(shape, &ragged->areas), local = ragged->local_first[ragged->areas.chunks];
    make_runs(ragged, state, plan->send_runs, shape->experts);
    make_runs(ragged, state, plan->return_runs, local * shape->ranks);
    make_runs(ragged, state, plan->wire_runs, pairs);
    make_runs(ragged, state, plan->list_runs, pairs);
    make_runs(ragged, state, plan->head_runs, pairs);
    make_runs(ragged, state, plan->back_runs, pairs);
    pack_returns(ragged);
}

/* Rank wire: how many rows a token's choices come to is known to its sender alone, and here to all. */
static epx_status_t exchange_wire_rows(epx_transport_t *transport, epx_plan_base_t *plan, char *all,
                                       epx_stream_t stream)
{
    const epx_ragged_areas_t *areas = &((const epx_ragged_t *)transport)->areas;
    const epx_shape_t *shape = transport->env.shape;
    int64_t bytes = pairs_of(shape, areas) * (int64_t)sizeof(int64_t);
    if (bytes == 0)
        return EPX_OK;
    epx_status_t status = epx_route_exchange(transport, plan, (char *)plan->bytes + areas->plan.home_count,
                                             all, (size_t)bytes, stream);
    plan->sent_meta_bytes += bytes * (shape->ranks - 1);
    plan->received_meta_bytes += bytes * (shape->ranks - 1);
    return status;
}

/* This rank's column of everybody's wire rows. */
static void take_arriving(const epx_ragged_t *ragged, const epx_ragged_state_t *state)
{
    const epx_shape_t *shape = ragged->base.env.shape;
    int64_t pairs = pairs_of(shape, &ragged->areas);
    for (int64_t q = 0; q < pairs; q++) {
        int64_t s = q % shape->ranks;
        state->arriving[q] = ragged->wire_rows[s * pairs + q - s + shape->rank];
    }
}

epx_status_t epx_ragged_stage_route(epx_transport_t *transport, epx_plan_base_t *plan, epx_stream_t stream)
{
    const epx_ragged_t *ragged = (const epx_ragged_t *)transport;
    const epx_device_ops_t *device = transport->env.device;
    const epx_ragged_plan_areas_t *areas = &ragged->areas.plan;
    epx_ragged_state_t *state = epx_ragged_state(ragged, plan);
    char *bytes = plan->bytes, *all = (char *)transport->env.scratch +
                                      plan->lane->index * ragged->areas.scratch.bytes +
                                      ragged->areas.scratch.wire_rows;
    size_t pairs = (size_t)pairs_of(transport->env.shape, &ragged->areas), block = (size_t)areas->runs_bytes;
    if (!epx_ragged_is_staged(ragged))
        return EPX_OK;
    epx_status_t status = exchange_wire_rows(transport, plan, all, stream);
    if (status == EPX_OK && pairs > 0)
        status = device->copy(ragged->wire_rows, all,
                              pairs * (size_t)transport->env.shape->ranks * sizeof(int64_t), stream);
    if (status == EPX_OK)
        status = epx_fetch(transport, state->runs, bytes + areas->runs, block, stream);
    if (status != EPX_OK)
        return status;
    take_arriving(ragged, state);
    make_blocks(ragged, state);
    state->known = 1;
    status = device->copy(bytes + areas->runs + OWN * areas->runs_bytes, ragged->made, 2 * block, stream);
    if (status == EPX_OK && pairs > 0)
        status = device->copy(bytes + areas->arriving, state->arriving, pairs * sizeof(int64_t), stream);
    return status;
}

/* ---- pieces ----------------------------------------------------------------------------------------------------- */

/* The first call of an attached plan looks into its bytes, and synchronises. */
static epx_status_t learn_attached(const epx_ragged_call_t *call)
{
    const epx_ragged_plan_areas_t *areas = &call->ragged->areas.plan;
    epx_ragged_state_t *state = epx_ragged_state(call->ragged, call->plan);
    size_t arriving = (size_t)pairs_of(call->shape, &call->ragged->areas) * sizeof(int64_t);
    epx_status_t status = EPX_OK;
    if (state->known)
        return EPX_OK;
    if (arriving > 0)
        status = call->ragged->base.env.device->copy(
            state->arriving, epx_ragged_plan_at(call, areas->arriving), arriving, call->stream);
    if (status == EPX_OK)
        status = epx_fetch(&call->ragged->base, state->runs, epx_ragged_plan_at(call, areas->runs),
                           (size_t)areas->runs_bytes, call->stream);
    state->known = status == EPX_OK;
    return status;
}

static void add_part(part_t *parts, int32_t *count, by_t by, int64_t staged, int64_t slot, int64_t bytes)
{
    parts[(*count)++] = (part_t){.by = by, .staged = staged, .slot = slot, .bytes = bytes};
}

/* The parts of this call on the way out; what send.c pushes. */
static int32_t list_parts(const epx_ragged_call_t *call, part_t *parts)
{
    const epx_shape_t *shape = call->shape;
    const epx_ragged_slot_t *out = &call->ragged->areas.staging.out, *slot = call->slot;
    int wire = call->ragged->areas.rank_wire;
    by_t rows = wire ? BY_WIRE_ROW : BY_ASSIGNMENT;
    int32_t n = 0;
    add_part(parts, &n, rows, out->rows, slot->rows, shape->row_bytes);
    if (shape->aux_bytes > 0 && !call->backward)
        add_part(parts, &n, rows, out->aux, slot->aux, shape->aux_bytes);
    if (shape->check == EPX_CHECK_FULL)
        add_part(parts, &n, rows, out->sums, slot->sums, (int64_t)sizeof(uint32_t));
    if (call->backward)
        add_part(parts, &n, BY_ASSIGNMENT, out->weights, slot->weights, (int64_t)sizeof(float));
    if (shape->origin)
        add_part(parts, &n, BY_ASSIGNMENT, out->origin, slot->origin, (int64_t)sizeof(epx_origin_t));
    if (!wire)
        return n;
    add_part(parts, &n, BY_ASSIGNMENT, out->index, slot->index, (int64_t)sizeof(int32_t));
    add_part(parts, &n, BY_WIRE_ROW, out->first, slot->first, (int64_t)sizeof(int32_t));
    add_part(parts, &n, BY_WIRE_ROW, out->count, slot->count, (int64_t)sizeof(int32_t));
    add_part(parts, &n, BY_LIST, out->list, slot->list, (int64_t)sizeof(int32_t));
    if (!call->backward)
        add_part(parts, &n, BY_LIST, out->weights, slot->weights, (int64_t)sizeof(float));
    add_part(parts, &n, BY_HEAD, out->head, slot->head, (int64_t)sizeof(int64_t));
    return n;
}

/* One run that I send, or that comes: in staging at entry `first`, at the receiver at `row`. */
static void send_run(const epx_ragged_call_t *call, epx_pieces_t *pieces, const part_t *part,
                     const epx_run_t *run)
{
    int64_t staging = epx_ragged_staging_target(call).slot_offset;
    if (run->peer != call->shape->rank)
        epx_pieces_send(pieces, run->peer, staging + part->staged + run->first * part->bytes,
                        call->slot_offset + part->slot + run->row * part->bytes, run->rows * part->bytes);
}

static void receive_rows(const epx_ragged_call_t *call, epx_pieces_t *pieces, const part_t *part,
                         int32_t peer, int64_t first, int64_t rows)
{
    if (peer != call->shape->rank)
        epx_pieces_receive(pieces, peer, call->slot_offset + part->slot + first * part->bytes,
                           rows * part->bytes);
}

static void list_by_assignment(const epx_ragged_call_t *call, epx_pieces_t *pieces, const part_t *part)
{
    const epx_ragged_t *ragged = call->ragged;
    const int32_t *first = ragged->order.first + (int64_t)call->wave * call->shape->ranks;
    const epx_run_t *send = known(call, ragged->areas.plan.send_runs),
                    *come = known(call, ragged->areas.plan.return_runs);
    for (int32_t i = first[0]; i < first[call->shape->ranks]; i++)
        send_run(call, pieces, part, &send[i]);
    for (int64_t i = (int64_t)ragged->local_first[call->wave] * call->shape->ranks;
         i < (int64_t)ragged->local_first[call->wave + 1] * call->shape->ranks; i++)
        receive_rows(call, pieces, part, come[i].peer, come[i].first, come[i].rows);
}

static void list_by_pair(const epx_ragged_call_t *call, epx_pieces_t *pieces, const part_t *part)
{
    const epx_ragged_plan_areas_t *plan = &call->ragged->areas.plan;
    int64_t q = (int64_t)call->wave * call->shape->ranks;
    const int64_t *arriving = epx_ragged_state(call->ragged, call->plan)->arriving + q;
    const epx_run_t *come = known(call, plan->back_runs) + q;
    int64_t table = part->by == BY_WIRE_ROW ? plan->wire_runs
                    : part->by == BY_LIST   ? plan->list_runs
                                            : plan->head_runs;
    for (int32_t p = 0; p < call->shape->ranks; p++) {
        send_run(call, pieces, part, known(call, table) + q + p);
        if (part->by == BY_HEAD)
            receive_rows(call, pieces, part, p, p, 1);
        else
            receive_rows(call, pieces, part, p, come[p].first,
                         part->by == BY_WIRE_ROW ? arriving[p] : come[p].rows);
    }
}

static void list_out(const epx_ragged_call_t *call, epx_pieces_t *pieces)
{
    part_t parts[PARTS_OUT];
    int32_t count = list_parts(call, parts);
    for (int32_t i = 0; i < count; i++) {
        epx_pieces_part(pieces);
        if (parts[i].by == BY_ASSIGNMENT)
            list_by_assignment(call, pieces, &parts[i]);
        else
            list_by_pair(call, pieces, &parts[i]);
    }
}

/* What belongs to assignments on their way home: all that one owner has of one sender is one piece. */
static void list_returns(const epx_ragged_call_t *call, epx_pieces_t *pieces, int64_t staged, int64_t to,
                         int64_t bytes)
{
    const epx_ragged_t *ragged = call->ragged;
    const int32_t *first = ragged->order.first + (int64_t)call->wave * call->shape->ranks;
    const epx_run_t *sent = known(call, ragged->areas.plan.send_runs),
                    *came = known(call, ragged->areas.plan.return_runs);
    epx_pieces_part(pieces);
    for (int32_t s = 0; s < call->shape->ranks; s++)
        for (int32_t i = ragged->local_first[call->wave]; i < ragged->local_first[call->wave + 1]; i++) {
            const epx_run_t *run = &came[(int64_t)i * call->shape->ranks + s];
            if (s == call->shape->rank)
                continue;
            epx_pieces_send(pieces, s, staged, to + run->row * bytes, run->rows * bytes);
            staged += run->rows * bytes;
        }
    for (int32_t i = first[0]; i < first[call->shape->ranks]; i++)
        if (sent[i].peer != call->shape->rank)
            epx_pieces_receive(pieces, sent[i].peer, to + sent[i].first * bytes, sent[i].rows * bytes);
}

/* Partial sums of wire rows. */
static void list_sums(const epx_ragged_call_t *call, epx_pieces_t *pieces, int64_t staged, int64_t to,
                      int64_t bytes)
{
    const epx_ragged_plan_areas_t *plan = &call->ragged->areas.plan;
    int64_t q = (int64_t)call->wave * call->shape->ranks;
    const int64_t *arrived = epx_ragged_state(call->ragged, call->plan)->arriving + q;
    const epx_run_t *back = known(call, plan->back_runs) + q, *mine = known(call, plan->wire_runs) + q;
    epx_pieces_part(pieces);
    for (int32_t p = 0; p < call->shape->ranks; p++) {
        if (p == call->shape->rank)
            continue;
        epx_pieces_send(pieces, p, staged + back[p].first * bytes, to + back[p].row * bytes,
                        arrived[p] * bytes);
        epx_pieces_receive(pieces, p, to + mine[p].first * bytes, mine[p].rows * bytes);
    }
}

static void list_home(const epx_ragged_call_t *call, epx_pieces_t *pieces)
{
    const epx_ragged_areas_t *areas = &call->ragged->areas;
    epx_ragged_target_t staging = epx_ragged_staging_target(call);
    void (*list_rows)(const epx_ragged_call_t *, epx_pieces_t *, int64_t, int64_t, int64_t) =
        areas->rank_wire ? list_sums : list_returns;
    list_rows(call, pieces, staging.home_rows, call->return_offset, call->shape->row_bytes);
    if (call->shape->check == EPX_CHECK_FULL)
        list_rows(call, pieces, staging.home_sums, call->return_offset + areas->return_sums,
                  (int64_t)sizeof(uint32_t));
    if (call->backward)
        list_returns(call, pieces, staging.home_dots, call->return_offset + areas->return_dots,
                     (int64_t)sizeof(float));
}

epx_status_t epx_ragged_list_pieces(const epx_ragged_call_t *call, epx_pieces_t *pieces_p)
{
    *pieces_p = epx_pieces_begin(call->ragged->send, call->ragged->receive);
    epx_status_t status = learn_attached(call);
    if (status != EPX_OK)
        return status;
    if (call->move == EPX_MOVE_DISPATCH || call->move == EPX_MOVE_COMBINE_BACKWARD)
        list_out(call, pieces_p);
    else
        list_home(call, pieces_p);
    return EPX_OK;
}

/* ---- rows that are left to the post -------------------------------------------------------------------------- */

int epx_ragged_leaves_rows(const epx_ragged_call_t *call, int out)
{
    return epx_ragged_is_staged(call->ragged) && epx_reads_sources(&call->ragged->base.env) &&
           !epx_ragged_is_checked(call) && (out || !call->ragged->areas.rank_wire);
}

/* The runs that send.c pushes rows by. */
static void set_runs(const epx_ragged_call_t *call, const epx_ragged_target_t *staging,
                     epx_rows_source_t *source)
{
    const epx_ragged_t *ragged = call->ragged;
    const epx_ragged_plan_areas_t *plan = &ragged->areas.plan;
    int32_t ranks = call->shape->ranks;
    int out = call->move == EPX_MOVE_DISPATCH || call->move == EPX_MOVE_COMBINE_BACKWARD;
    const int32_t *mine = ragged->local_first + call->wave,
                  *all = ragged->order.first + (int64_t)call->wave * ranks;
    int64_t table = !out ? plan->return_runs : ragged->areas.rank_wire ? plan->wire_runs : plan->send_runs;
    int64_t first = !out                      ? (int64_t)mine[0] * ranks
                    : ragged->areas.rank_wire ? (int64_t)call->wave * ranks
                                              : all[0];
    source->runs = (const epx_run_t *)epx_ragged_plan_at(call, table + staging->runs) + first;
    source->run_count = !out                      ? (mine[1] - mine[0]) * ranks
                        : ragged->areas.rank_wire ? ranks
                                                  : all[ranks] - all[0];
    source->base.local = out ? staging->slot_offset + staging->slot->rows : staging->home_rows;
    if (out)
        source->index = epx_ragged_plan_at(call, ragged->areas.rank_wire ? plan->wire_token : plan->send);
    source->divide = out && !ragged->areas.rank_wire ? call->shape->top_k : 1;
}

epx_rows_source_t epx_ragged_source(const epx_ragged_call_t *call)
{
    epx_ragged_target_t staging = epx_ragged_staging_target(call);
    epx_rows_source_t source = {
        .base = {.unit = call->shape->row_bytes}, .rows = call->left, .stride = call->shape->row_bytes};
    epx_rows_source_begin(&source);
    set_runs(call, &staging, &source);
    for (int32_t i = 0; i < source.run_count; i++) {
        int64_t end = (source.runs[i].row + source.runs[i].rows) * call->shape->row_bytes;
        if (source.runs[i].rows > 0 && end > source.base.bytes)
            source.base.bytes = end;
    }
    return source;
}

const void **epx_ragged_given(const epx_ragged_call_t *call)
{
    epx_ragged_own_t *own = &epx_ragged_state(call->ragged, call->plan)->own[call->wave % call->shape->depth];
    return call->backward ? &own->dx_rows : &own->y;
}

/* Of this rank for itself, the n-th return row of a wave stands where the n-th row that it sent was put. */
void epx_ragged_add_stayed(const epx_ragged_call_t *call, epx_k_combine_t *args)
{
    const epx_ragged_t *ragged = call->ragged;
    int64_t q = (int64_t)call->wave * call->shape->ranks + call->shape->rank, count = 0;
    const epx_run_t *sent = known(call, ragged->areas.plan.send_runs);
    int32_t *stayed = (int32_t *)(void *)(call->scratch + ragged->areas.scratch.stayed);
    args->own = stayed;
    args->own_rows = *epx_ragged_given(call);
    args->own_first = *(epx_ragged_pairs(call, ragged->areas.plan.home_start) + call->shape->rank);
    for (int32_t i = ragged->order.first[q]; i < ragged->order.first[q + 1]; i++)
        for (int64_t row = 0; row < sent[i].rows; row++)
            stayed[count++] = (int32_t)(sent[i].row + row);
    args->own_count = count;
}
