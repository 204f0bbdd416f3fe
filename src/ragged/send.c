/*
 * Rows to the experts and home again. Everything that travels is put by kernels->push, run by run; no count
 * is needed on the host. What is written where, and by which runs, is in the call's targets: the peers'
 * memory, or two of them where rows are staged. SPDX-License-Identifier: Apache-2.0
 */
#include "ragged/internal.h"

typedef epx_ragged_target_t target_t;

/* A push of this wave; index and runs follow. */
static epx_k_push_t new_push(const epx_ragged_call_t *call)
{
    return (epx_k_push_t){.units = call->shape->sm_budget,
                          .dst = call->ragged->destinations,
                          .rank = call->shape->rank,
                          .columns = call->shape->top_k};
}

static void add_part(epx_k_push_t *push, epx_part_kind_t kind, const void *src, int64_t bytes, int32_t divide,
                     int64_t dst_offset, int64_t dst_stride)
{
    push->part[push->parts++] = (epx_part_t){.kind = kind,
                                             .src = src,
                                             .src_stride = bytes,
                                             .divide = divide,
                                             .dst_offset = dst_offset,
                                             .dst_stride = dst_stride,
                                             .bytes = bytes};
}

/* Runs of this wave by expert, from my assignments to their places. */
static void by_assignment(const epx_ragged_call_t *call, const target_t *to, epx_k_push_t *push)
{
    const epx_ragged_plan_areas_t *plan = &call->ragged->areas.plan;
    const int32_t *first = call->ragged->order.first + (int64_t)call->wave * call->shape->ranks;
    push->index = epx_ragged_plan_at(call, plan->send);
    push->runs = (const epx_run_t *)epx_ragged_plan_at(call, plan->send_runs + to->runs) + first[0];
    push->run_count = first[call->shape->ranks] - first[0];
}

/* Runs of this wave by rank, from one of the plan's tables. */
static void by_pair(const epx_ragged_call_t *call, const target_t *to, epx_k_push_t *push, int64_t runs_area)
{
    push->runs = (const epx_run_t *)epx_ragged_plan_at(call, runs_area + to->runs) +
                 (int64_t)call->wave * call->shape->ranks;
    push->run_count = call->shape->ranks;
}

static epx_status_t run_push(const epx_ragged_call_t *call, epx_k_push_t *push)
{
    if (push->parts == 0 && push->more == NULL)
        return EPX_OK;
    push->begun = epx_move_begun(&call->ragged->base, call->plan);
    return call->kernels->push(push, call->stream);
}

/* Whether rows to this target are left to the post. */
static int is_left(const epx_ragged_call_t *call, const target_t *to)
{
    return call->left != NULL && to != call->target;
}

/* The row itself with what stands beside it. `rows`: one per token, reached by index / divide. */
static void add_rows(const epx_ragged_call_t *call, const target_t *to, epx_k_push_t *push, const void *rows,
                     const void *aux, int32_t divide)
{
    const epx_shape_t *shape = call->shape;
    if (!call->flows && !is_left(call, to))
        add_part(push, EPX_PART_COPY, rows, shape->row_bytes, divide, to->slot_offset + to->slot->rows,
                 shape->row_bytes);
    if (shape->aux_bytes > 0 && !call->backward) {
        const void *zero = call->scratch + call->ragged->areas.scratch.zero;
        add_part(push, EPX_PART_COPY, aux != NULL ? aux : zero, shape->aux_bytes, divide,
                 to->slot_offset + to->slot->aux, shape->aux_bytes);
        if (aux == NULL)
            push->part[push->parts - 1].src_stride = 0;
    }
    if (shape->check == EPX_CHECK_FULL) {
        add_part(push, EPX_PART_CHECKSUM, rows, shape->row_bytes, divide, to->slot_offset + to->slot->sums,
                 (int64_t)sizeof(uint32_t));
    }
}

/* What belongs to a place: origin, and in the backward pass the weight. */
static void add_place_parts(const epx_ragged_call_t *call, const target_t *to, epx_k_push_t *push)
{
    if (call->backward)
        add_part(push, EPX_PART_COPY, epx_ragged_plan_at(call, call->ragged->areas.plan.weights),
                 sizeof(float), 1, to->slot_offset + to->slot->weights, sizeof(float));
    if (call->shape->origin)
        add_part(push, EPX_PART_ORIGIN, NULL, sizeof(epx_origin_t), 1, to->slot_offset + to->slot->origin,
                 sizeof(epx_origin_t));
}

static epx_status_t send_assignments(const epx_ragged_call_t *call, const target_t *to, const void *rows,
                                     const void *aux)
{
    epx_k_push_t push = new_push(call);
    by_assignment(call, to, &push);
    push.order = epx_ragged_plan_at(call, call->ragged->areas.plan.place);
    push.order_tokens = &epx_plan_head(call->plan)->tokens;
    push.order_base = call->wave * call->ragged->areas.assignments;
    add_rows(call, to, &push, rows, aux, call->shape->top_k);
    add_place_parts(call, to, &push);
    return run_push(call, &push);
}

/* Entry i of a plan's int32 or fp32 table to row i of the same run in the slot. */
static void add_table(const epx_ragged_call_t *call, const target_t *to, epx_k_push_t *push,
                      int64_t plan_area, int64_t slot_area)
{
    add_part(push, EPX_PART_COPY, epx_ragged_plan_at(call, plan_area), sizeof(int32_t), 1,
             to->slot_offset + slot_area, sizeof(int32_t));
}

/* Lists of the wire rows, and how many wire rows there are: three pushes. */
static void add_lists(const epx_ragged_call_t *call, const target_t *to, epx_k_push_t *lists)
{
    const epx_ragged_plan_areas_t *plan = &call->ragged->areas.plan;
    epx_k_push_t *rows = &lists[0], *list = &lists[1], *head = &lists[2];

    by_pair(call, to, rows, plan->wire_runs);
    add_table(call, to, rows, plan->wire_first, to->slot->first);
    add_table(call, to, rows, plan->wire_count, to->slot->count);
    by_pair(call, to, list, plan->list_runs);
    add_table(call, to, list, plan->list_place, to->slot->list);
    if (!call->backward)
        add_table(call, to, list, plan->list_weight, to->slot->weights);
    by_pair(call, to, head, plan->head_runs);
    add_part(head, EPX_PART_COPY, epx_ragged_plan_at(call, plan->home_count), sizeof(int64_t), 1,
             to->slot_offset + to->slot->head, sizeof(int64_t));
    /* The entry of these counters that is counted in is this rank's own at itself. */
    for (int64_t at = 0; call->flows && at < (int64_t)sizeof(epx_flow_counters_t); at += EPX_RAGGED_CLEARED) {
        add_part(head, EPX_PART_COPY, call->scratch + call->ragged->areas.scratch.zero, EPX_RAGGED_CLEARED, 1,
                 to->slot_offset + to->slot->counters + at, sizeof(epx_flow_counters_t));
        head->part[head->parts - 1].src_stride = 0;
    }
}

/* Rows of mine for myself go to their places of the batch at `rows`. */
static void place_own(const epx_ragged_call_t *call, epx_k_push_t *push, void *rows)
{
    push->part[0].placed = 1;
    push->own = epx_ragged_own_places(call, rows);
}

uint64_t *epx_ragged_turns(const epx_ragged_call_t *call, int of)
{
    uint64_t *turns = (uint64_t *)(void *)(call->scratch + call->ragged->areas.scratch.turns);
    return turns + (4 * (call->wave % call->shape->depth) + 2 * of + call->backward) * EPX_TURNS;
}

epx_status_t epx_ragged_place_own(const epx_ragged_call_t *call, const void *x, void *rows)
{
    const epx_ragged_plan_areas_t *plan = &call->ragged->areas.plan;
    const target_t *to = &call->target[0];
    epx_k_push_t push = new_push(call);
    push.index = epx_ragged_plan_at(call, plan->wire_token);
    by_pair(call, to, &push, plan->wire_runs);
    push.runs += call->shape->rank;
    push.run_count = 1;
    add_part(&push, EPX_PART_COPY, x, call->shape->row_bytes, 1, 0, call->shape->row_bytes);
    place_own(call, &push, rows);
    return call->kernels->push(&push, call->stream);
}

static epx_status_t send_wire_rows(const epx_ragged_call_t *call, const target_t *to, const void *rows,
                                   const void *aux)
{
    const epx_ragged_plan_areas_t *plan = &call->ragged->areas.plan;
    enum { WIRE, PLACES, LISTS, PUSHES = LISTS + 3 };
    epx_k_push_t push[PUSHES];
    for (int i = 0; i < PUSHES; i++) {
        push[i] = new_push(call);
        push[i].more = i + 1 < PUSHES ? &push[i + 1] : NULL;
    }
    push[WIRE].index = epx_ragged_plan_at(call, plan->wire_token);
    by_pair(call, to, &push[WIRE], plan->wire_runs);
    push[WIRE].turns = epx_ragged_turns(call, EPX_RAGGED_OF_PUSH);
    add_rows(call, to, &push[WIRE], rows, aux, 1);
    if (call->own_rows != NULL && !call->flows && !is_left(call, to))
        place_own(call, &push[WIRE], call->own_rows);
    by_assignment(call, to, &push[PLACES]);
    add_table(call, to, &push[PLACES], plan->wire_row, to->slot->index);
    add_place_parts(call, to, &push[PLACES]);
    add_lists(call, to, &push[LISTS]);
    epx_status_t status = run_push(call, &push[push[WIRE].parts > 0 ? WIRE : PLACES]);
    return status == EPX_OK && call->flows ? epx_ragged_flow(call, rows, call->own_rows, 0) : status;
}

epx_status_t epx_ragged_send_rows(const epx_ragged_call_t *call, const void *rows, const void *aux)
{
    epx_status_t status = EPX_OK;
    for (const target_t *to = call->target; to < call->target + call->targets && status == EPX_OK; to++)
        status = call->ragged->areas.rank_wire ? send_wire_rows(call, to, rows, aux)
                                               : send_assignments(call, to, rows, aux);
    return status == EPX_OK ? epx_ragged_count_sent(call) : status;
}

/* ---- home ------------------------------------------------------------------------------------------------------- */

/* Whether sums of rows that stay here are left to the finish (epx_ragged_own_t). */
static int leaves_own_sums(const epx_ragged_call_t *call)
{
    const epx_shape_t *shape = call->shape;
    int checks = shape->check == EPX_CHECK_CANARY || shape->check == EPX_CHECK_FULL;
    return shape->sm_budget > 0 && shape->ranks > 1 && call->ragged->areas.rank_wire &&
           call->move == EPX_MOVE_COMBINE && !checks && !epx_ragged_is_staged(call->ragged);
}

int epx_ragged_sums_last(const epx_ragged_call_t *call)
{
    const epx_shape_t *shape = call->shape;
    return shape->ranks == 1 && call->ragged->areas.rank_wire && shape->sm_budget == 0 &&
           shape->top_k <= EPX_SUMS_COLUMNS_MAX && !epx_ragged_is_checked(call) &&
           !epx_ragged_is_staged(call->ragged) &&
           call->kernels->sums_soon(call->plan->head.tokens, shape->width, shape->row_type);
}

static const void *kept_y(const epx_ragged_call_t *call)
{
    return epx_ragged_state(call->ragged, call->plan)->own[call->wave % call->shape->depth].y;
}

/* What all sums have in common. */
static epx_k_ragged_return_t new_return(const epx_ragged_call_t *call, const target_t *to, const void *rows)
{
    int64_t every = call->shape->ranks * call->shape->tokens_max, room = call->ragged->areas.wire_rows_max;
    return (epx_k_ragged_return_t){
        .units = call->shape->sm_budget,
        .dst = call->ragged->destinations,
        .dst_offset = to->home_rows,
        .dst_stride = call->shape->row_bytes,
        .sum_offset = call->shape->check == EPX_CHECK_FULL ? to->home_sums : -1,
        .runs = (const epx_run_t *)epx_ragged_plan_at(call, call->ragged->areas.plan.back_runs + to->runs) +
                (int64_t)call->wave * call->shape->ranks,
        .width = call->shape->width,
        .row_type = call->shape->row_type,
        .src = rows,
        .row_bytes = call->shape->row_bytes,
        .rows_most = every < room ? every : room};
}

/* Rank wire: sums of each wire row, written straight into the return area of its sender. */
static epx_status_t send_sums(const epx_ragged_call_t *call, const target_t *to, const void *rows)
{
    epx_k_ragged_return_t args = new_return(call, to, rows);
    args.rows = (const int64_t *)(void *)epx_ragged_slot_at(call, call->slot->head);
    args.run_count = call->shape->ranks;
    args.first = (const int32_t *)(void *)epx_ragged_slot_at(call, call->slot->first);
    args.count = (const int32_t *)(void *)epx_ragged_slot_at(call, call->slot->count);
    args.list = (const int32_t *)(void *)epx_ragged_slot_at(call, call->slot->list);
    if (!call->backward)
        args.weights = (const float *)(void *)epx_ragged_slot_at(call, call->slot->weights);
    if (leaves_own_sums(call))
        args.without = call->shape->rank + 1;
    args.begun = epx_move_begun(&call->ragged->base, call->plan);
    return call->kernels->ragged_return(&args, call->stream);
}

epx_status_t epx_ragged_add_own(const epx_ragged_call_t *call)
{
    const epx_ragged_plan_areas_t *plan = &call->ragged->areas.plan;
    int32_t rank = call->shape->rank;
    if (!leaves_own_sums(call))
        return EPX_OK;
    epx_k_ragged_return_t args = new_return(call, &call->target[0], kept_y(call));
    args.runs += rank;
    args.rows = epx_ragged_pairs(call, plan->home_count) + rank;
    args.run_count = 1;
    args.first = epx_ragged_plan_at(call, plan->wire_first);
    args.count = epx_ragged_plan_at(call, plan->wire_count);
    args.list = epx_ragged_plan_at(call, plan->list_place);
    args.weights = epx_ragged_plan_at(call, plan->list_weight);
    args.home_start = epx_ragged_pairs(call, plan->home_start) + rank;
    args.wire_start = epx_ragged_pairs(call, plan->wire_start) + rank;
    return call->kernels->ragged_return(&args, call->stream);
}

epx_k_own_sums_t epx_ragged_sums(const epx_ragged_call_t *call)
{
    const epx_ragged_plan_areas_t *plan = &call->ragged->areas.plan;
    int32_t rank = call->shape->rank;
    return (epx_k_own_sums_t){.y = kept_y(call),
                              .first = epx_ragged_plan_at(call, plan->wire_first),
                              .count = epx_ragged_plan_at(call, plan->wire_count),
                              .list = epx_ragged_plan_at(call, plan->list_place),
                              .weights = epx_ragged_plan_at(call, plan->list_weight),
                              .home_start = epx_ragged_pairs(call, plan->home_start) + rank,
                              .wire_start = epx_ragged_pairs(call, plan->wire_start) + rank};
}

/* Nothing goes home: what is left is to say that the call has begun. */
static epx_status_t send_nothing(const epx_ragged_call_t *call)
{
    epx_k_push_t push = new_push(call);
    push.begun = epx_move_begun(&call->ragged->base, call->plan);
    return call->kernels->push(&push, call->stream);
}

static epx_status_t send_home_to(const epx_ragged_call_t *call, const target_t *to, const void *rows,
                                 const float *dots)
{
    const epx_ragged_areas_t *areas = &call->ragged->areas;
    const int32_t *local_first = call->ragged->local_first + call->wave;
    epx_k_push_t push = new_push(call);
    if (call->sums_last)
        return send_nothing(call);
    push.runs = (const epx_run_t *)epx_ragged_plan_at(call, areas->plan.return_runs + to->runs) +
                (int64_t)local_first[0] * call->shape->ranks;
    push.run_count = (local_first[1] - local_first[0]) * call->shape->ranks;

    if (!areas->rank_wire) {
        if (call->left == NULL) /* else own rows stay where they are (epx_ragged_own_t) */
            add_part(&push, EPX_PART_COPY, rows, call->shape->row_bytes, 1, to->home_rows,
                     call->shape->row_bytes);
        if (call->shape->check == EPX_CHECK_FULL)
            add_part(&push, EPX_PART_CHECKSUM, rows, call->shape->row_bytes, 1, to->home_sums,
                     (int64_t)sizeof(uint32_t));
    }
    if (dots != NULL)
        add_part(&push, EPX_PART_COPY, dots, sizeof(float), 1, to->home_dots, sizeof(float));

    epx_status_t status = run_push(call, &push);
    return status == EPX_OK && areas->rank_wire ? send_sums(call, to, rows) : status;
}

epx_status_t epx_ragged_send_home(const epx_ragged_call_t *call, const void *rows, const float *dots)
{
    epx_status_t status = epx_ragged_fill_staged_home(call);
    if (status == EPX_OK && call->home_out != NULL) {
        status = epx_ragged_home(call, rows, call->home_out, 0);
        return status == EPX_OK ? epx_ragged_count_sent(call) : status;
    }
    for (const target_t *to = call->target; to < call->target + call->targets && status == EPX_OK; to++)
        status = send_home_to(call, to, rows, dots);
    return status == EPX_OK ? epx_ragged_count_sent(call) : status;
}
