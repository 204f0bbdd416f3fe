/* Sizes and areas of `ragged`: pure functions of the shape. SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>

#include "ragged/internal.h"
#include "transport/accept.h"

enum { FLOAT = 4, INT = 4, LONG = 8 };

int64_t epx_ragged_order_entries(const epx_shape_t *shape, int32_t chunks)
{
    return 3 * (int64_t)shape->experts + (int64_t)chunks * shape->ranks + 1;
}

static int32_t owned(const epx_owners_t *owners, int32_t r)
{
    return owners->first[r + 1] - owners->first[r];
}

/* Experts and physical rows of chunk c of real rank d, over its virtual ranks. */
static int64_t chunk_rows(const epx_shape_t *shape, const epx_rule_t *rule, int32_t d, int32_t c,
                          int32_t *experts_p)
{
    int64_t rows = 0, all = (int64_t)shape->ranks * shape->tokens_max * shape->top_k;
    *experts_p = 0;
    for (int32_t v = d * shape->splits; v < (d + 1) * shape->splits; v++) {
        int32_t mine = owned(&shape->virt, v);
        int32_t experts = epx_block_first(c + 1, mine, rule->waves) - epx_block_first(c, mine, rule->waves);
        rows += epx_ragged_physical(rule, experts);
        *experts_p += experts;
    }
    /* Every virtual owner of a dropless group has room for everything; together they need no more. */
    return rule->dropless && rows > all ? all : rows;
}

static void find_largest(const epx_shape_t *shape, epx_ragged_areas_t *areas)
{
    epx_rule_t rule = epx_rule_of(shape, areas->chunks);
    for (int32_t d = 0; d < shape->ranks; d++) {
        if (owned(&shape->real, d) > areas->local_experts_max)
            areas->local_experts_max = owned(&shape->real, d);
        for (int32_t c = 0; c < areas->chunks; c++) {
            int32_t experts = 0;
            int64_t rows = chunk_rows(shape, &rule, d, c, &experts);
            int64_t aligned = rows + (int64_t)experts * (shape->row_align - 1);
            if (rows > areas->wire_rows_max)
                areas->wire_rows_max = rows;
            if (aligned > areas->rows_max)
                areas->rows_max = aligned;
        }
    }
}

static int has_backward(const epx_shape_t *shape) { return shape->backward != EPX_BACKWARD_NONE; }
static int has_own_gradients(const epx_shape_t *shape) { return shape->backward == EPX_BACKWARD_RECOMPUTE; }

/* How many of each a slot (or staging for one) has room for. */
typedef struct room {
    int64_t places, wire, heads;
} room_t;

/* A slot; backward slots of their own carry no aux. */
static epx_ragged_slot_t lay_slot(const epx_shape_t *shape, const epx_ragged_areas_t *areas, room_t room,
                                  int backward)
{
    epx_ragged_slot_t slot = {.bytes = 0};
    int64_t *end = &slot.bytes, places = room.places, wire = areas->rank_wire ? room.wire : 0;
    int64_t rows = areas->rank_wire ? wire : places;
    int carries_weights = areas->rank_wire || has_backward(shape);

    slot.rows = epx_take_area(end, rows * shape->row_bytes);
    slot.aux = epx_take_area(end, backward ? 0 : rows * shape->aux_bytes);
    slot.sums = epx_take_area(end, shape->check == EPX_CHECK_FULL ? rows * INT : 0);
    slot.origin = epx_take_area(end, shape->origin ? places * (int64_t)sizeof(epx_origin_t) : 0);
    slot.weights = epx_take_area(end, carries_weights ? places * FLOAT : 0);
    slot.first = epx_take_area(end, wire * INT);
    slot.count = epx_take_area(end, wire * INT);
    slot.list = epx_take_area(end, wire * INT);
    slot.index = epx_take_area(end, areas->rank_wire ? places * INT : 0);
    slot.head = epx_take_area(end, areas->rank_wire ? room.heads * LONG : 0);
    int64_t flows = areas->rank_wire && !areas->indexed && !backward ? shape->ranks : 0;
    slot.words = epx_take_area(end, flows * EPX_FLOW_PARTS * LONG);
    slot.counters = epx_take_area(end, flows * (int64_t)sizeof(epx_flow_counters_t));
    return slot;
}

/* A rank alone has nobody to send to. */
static void lay_staging(const epx_shape_t *shape, uint32_t fabric_caps, epx_ragged_areas_t *areas)
{
    epx_ragged_staging_t *staging = &areas->staging;
    int64_t *end = &areas->segment_bytes, begin = *end, slots = (int64_t)shape->lanes * shape->depth,
            home = 0;
    room_t room = {.places = areas->assignments,
                   .wire = areas->assignments,
                   .heads = (int64_t)areas->chunks * shape->ranks};
    if (!epx_is_staged(fabric_caps) || shape->ranks == 1)
        return;
    staging->out = lay_slot(shape, areas, room, 0);
    staging->outs = staging->outs_backward = epx_take_area(end, shape->lanes * staging->out.bytes);
    if (has_own_gradients(shape))
        staging->outs_backward = epx_take_area(end, shape->lanes * staging->out.bytes);
    epx_take_area(&home, areas->wire_rows_max * shape->row_bytes);
    staging->home_dots = epx_take_area(&home, has_backward(shape) ? areas->wire_rows_max * FLOAT : 0);
    staging->home_sums =
        epx_take_area(&home, shape->check == EPX_CHECK_FULL ? areas->wire_rows_max * INT : 0);
    staging->home_bytes = home;
    staging->homes = epx_take_area(end, slots * home);
    staging->bytes = *end - begin;
}

static void lay_segment(const epx_shape_t *shape, epx_ragged_areas_t *areas)
{
    int64_t slots = (int64_t)shape->lanes * shape->depth, *end = &areas->segment_bytes;
    room_t room = {.places = areas->rows_max, .wire = areas->wire_rows_max, .heads = shape->ranks};
    areas->forward = areas->backward = lay_slot(shape, areas, room, 0);
    areas->slots = areas->backward_slots = epx_take_area(end, slots * areas->forward.bytes);
    if (has_own_gradients(shape)) {
        areas->backward = lay_slot(shape, areas, room, 1);
        areas->backward_slots = epx_take_area(end, slots * areas->backward.bytes);
    }
    int64_t lane = 0;
    epx_take_area(&lane, areas->assignments * shape->row_bytes);
    areas->return_dots = epx_take_area(&lane, has_backward(shape) ? areas->assignments * FLOAT : 0);
    areas->return_sums = epx_take_area(&lane, shape->check == EPX_CHECK_FULL ? areas->assignments * INT : 0);
    int64_t homes = areas->rank_wire && shape->ranks <= EPX_FLOW_RANKS_MAX ? shape->ranks : 0;
    areas->return_words = epx_take_area(&lane, homes * EPX_HOME_STREAMS * LONG);
    areas->return_used = epx_take_area(&lane, homes > 0 ? EPX_HOME_USERS * INT : 0);
    areas->return_bytes = lane;
    areas->returns = epx_take_area(end, shape->lanes * lane);
}

/* The library's own batches: on the assignment wire the slots are batches already, indexed ones too. */
static void lay_batches(const epx_shape_t *shape, epx_ragged_areas_t *areas)
{
    int64_t slots = (int64_t)shape->lanes * shape->depth, slot = 0;
    int expands = areas->rank_wire && (!areas->indexed || has_backward(shape));
    int64_t rows = expands && !shape->batch_in_caller ? areas->rows_max * shape->row_bytes : 0;

    areas->batch_rows = epx_take_area(&slot, rows);
    areas->batch_aux = epx_take_area(&slot, areas->rank_wire ? areas->rows_max * shape->aux_bytes : 0);
    areas->batch_slot_bytes = slot;
    areas->batch_bytes = slots * slot;
    areas->batch_backward = 0;
    if (has_own_gradients(shape) && !areas->indexed) {
        areas->batch_backward = areas->batch_bytes;
        areas->batch_bytes += slots * slot;
    }
}

static void lay_scratch(const epx_shape_t *shape, epx_ragged_areas_t *areas)
{
    epx_ragged_scratch_t *s = &areas->scratch;
    int64_t *end = &s->bytes, pairs = areas->rank_wire ? (int64_t)areas->chunks * shape->ranks : 0;
    int64_t counts = (int64_t)shape->virtual_ranks * shape->experts * INT;
    int64_t work =
        shape->virtual_ranks > 2 * (int64_t)shape->ranks ? shape->virtual_ranks : 2 * (int64_t)shape->ranks;

    s->sum = epx_take_area(
        end, shape->out_type == EPX_FP32 ? 0 : (int64_t)shape->tokens_max * shape->width * FLOAT);
    s->dots = epx_take_area(end, has_backward(shape) ? shape->depth * areas->rows_max * FLOAT : 0);
    s->expert = epx_take_area(end, areas->assignments * INT);
    s->ordinal = epx_take_area(end, areas->assignments * INT);
    s->notice = epx_take_area(end, areas->notice_bytes);
    s->notices = epx_take_area(end, shape->ranks * areas->notice_bytes);
    s->counts = epx_take_area(end, counts);
    s->accepted = epx_take_area(end, counts);
    s->work = epx_take_area(end, (work + 2 * (int64_t)shape->experts) * LONG);
    s->first_row = epx_take_area(end, (int64_t)shape->splits * shape->experts * INT);
    s->last_token = epx_take_area(end, pairs * INT);
    s->list_end = epx_take_area(end, pairs * INT);
    s->base = epx_take_area(end, pairs * LONG);
    s->room_words =
        epx_route_room(areas->assignments, shape->experts + 2 > 2 * pairs ? shape->experts + 2 : 2 * pairs);
    s->room = epx_take_area(end, s->room_words * LONG);
    s->wire_rows = epx_take_area(end, areas->staging.bytes > 0 ? pairs * shape->ranks * LONG : 0);
    s->stayed =
        epx_take_area(end, areas->staging.bytes > 0 && !areas->rank_wire ? areas->assignments * INT : 0);
    s->turns = epx_take_area(end, epx_ragged_turn_words(shape) * LONG);
    s->bad = epx_take_area(end, 2 * LONG);
    s->zero = epx_take_area(end, epx_ragged_zeros(shape));
    s->span = epx_take_area(end, 2 * LONG);

    int64_t tables = 0;
    areas->owner_tables = epx_take_area(&tables, epx_shape_tables_bytes(shape));
    areas->order_tables = epx_take_area(&tables, epx_ragged_order_entries(shape, areas->chunks) * INT);
    areas->destinations = epx_take_area(&tables, shape->ranks * (int64_t)sizeof(void *));
    areas->scratch_bytes = s->bytes * shape->lanes + tables;
}

static void lay_plan(const epx_shape_t *shape, epx_ragged_areas_t *areas)
{
    epx_ragged_plan_areas_t *p = &areas->plan;
    int64_t *end = &p->bytes, pairs = (int64_t)areas->chunks * shape->ranks, run = (int64_t)sizeof(epx_run_t);
    int64_t batches = (int64_t)areas->chunks * areas->local_experts_max;
    int64_t assignments = areas->assignments * INT, wire = areas->rank_wire;

    epx_take_area(end, (int64_t)sizeof(epx_plan_head_t));
    p->wave = epx_take_area(end, areas->chunks * (int64_t)sizeof(epx_ragged_wave_t));
    p->weights = epx_take_area(end, assignments);
    p->place = epx_take_area(end, assignments);
    p->send = epx_take_area(end, assignments);
    p->start = epx_take_area(end, batches * LONG);
    p->count = epx_take_area(end, batches * LONG);
    p->home_start = epx_take_area(end, pairs * LONG);
    p->home_count = epx_take_area(end, pairs * LONG);
    p->wire_token = epx_take_area(end, wire * assignments);
    p->wire_first = epx_take_area(end, wire * assignments);
    p->wire_count = epx_take_area(end, wire * assignments);
    p->list_place = epx_take_area(end, wire * assignments);
    p->list_weight = epx_take_area(end, wire * assignments);
    p->wire_row = epx_take_area(end, wire * assignments);
    p->home = epx_take_area(end, wire * assignments);
    p->wire_start = epx_take_area(end, wire * pairs * LONG);
    p->wire_room = epx_take_area(end, wire * pairs * LONG);

    p->runs = *end;
    p->send_runs = epx_take_area(end, shape->experts * run);
    p->return_runs = epx_take_area(end, areas->local_experts_max * (int64_t)shape->ranks * run);
    p->wire_runs = epx_take_area(end, wire * pairs * run);
    p->list_runs = epx_take_area(end, wire * pairs * run);
    p->head_runs = epx_take_area(end, wire * pairs * run);
    p->back_runs = epx_take_area(end, wire * pairs * run);
    p->runs_bytes = *end - p->runs;
    if (areas->staging.bytes > 0) {
        epx_take_area(end, 2 * p->runs_bytes);
        p->arriving = epx_take_area(end, wire * pairs * LONG);
    }
}

/* Row numbers are int32 everywhere, and no area may overflow int64. */
static epx_status_t refuse_giants(const epx_shape_t *shape, const epx_ragged_areas_t *areas,
                                  const epx_services_t *services)
{
    int64_t rows = areas->rows_max;
    if (rows >= INT32_MAX)
        return services->fail(EPX_ERR_ARG,
                              "ragged: a batch of %" PRId64
                              " rows is more than 2^31 - 1; lower T_max (%d), K (%d) or the "
                              "capacity factor, or raise EPX_WAVES (%d)",
                              rows, shape->tokens_max, shape->top_k, areas->chunks);
    if ((double)rows * (double)shape->row_bytes * shape->lanes * shape->depth > 0x1p60)
        return services->fail(EPX_ERR_ARG,
                              "ragged: a batch of %" PRId64 " rows of %" PRId64 " bytes cannot be addressed",
                              rows, shape->row_bytes);
    return EPX_OK;
}

epx_status_t epx_ragged_lay_out(const epx_shape_t *shape, uint32_t fabric_caps,
                                const epx_services_t *services, epx_ragged_areas_t *areas_p)
{
    epx_ragged_areas_t areas = {.chunks = epx_ragged_chunks(shape),
                                .rank_wire = epx_ragged_wire(shape, fabric_caps) == EPX_WIRE_RANK,
                                .indexed = shape->batch == EPX_BATCH_INDEXED,
                                .assignments = (int64_t)shape->tokens_max * shape->top_k};
    if (areas.assignments >= INT32_MAX / areas.chunks)
        return services->fail(
            EPX_ERR_ARG,
            "ragged: T_max * K * EPX_WAVES = %d * %d * %d assignments are more than 2^31 - 1; lower one",
            shape->tokens_max, shape->top_k, areas.chunks);
    areas.notice_bytes = epx_round_up(
        (int64_t)sizeof(epx_route_notice_t) + (int64_t)shape->splits * shape->experts * INT, LONG);
    find_largest(shape, &areas);
    epx_status_t status = refuse_giants(shape, &areas, services);
    if (status != EPX_OK)
        return status;
    lay_segment(shape, &areas);
    lay_staging(shape, fabric_caps, &areas);
    lay_batches(shape, &areas);
    lay_scratch(shape, &areas);
    lay_plan(shape, &areas);
    *areas_p = areas;
    return EPX_OK;
}
