/* ring: who lies where; sizes and refusals. SPDX-License-Identifier: Apache-2.0 */
#include "ring/ring.h"

#include <limits.h>
#include <stdio.h>

#include "transport/accept.h"

/* Above this a size is no memory of this world, and below it no sum of a few of them leaves 63 bits. */
#define SIZE_LIMIT 1e17

enum { ZEROS_BYTES = 64 };

static int32_t owned_by(const epx_owners_t *owners, int32_t r)
{
    return owners->first[r + 1] - owners->first[r];
}

/* Rows that one block can bring to rank r: all its assignments, but never more than the physical capacity of
 * r. */
static int64_t batch_rows_of(const epx_shape_t *shape, const epx_rule_t *rule, int32_t r)
{
    int64_t assignments = (int64_t)shape->tokens_max * shape->top_k, capacity = 0;
    for (int32_t v = r * shape->splits; v < (r + 1) * shape->splits; v++)
        capacity += epx_ragged_physical(rule, owned_by(&shape->virt, v));
    return (capacity < assignments ? capacity : assignments) +
           (int64_t)owned_by(&shape->real, r) * (shape->row_align - 1);
}

static void lay_out_blocks(const epx_shape_t *shape, epx_ring_layout_t *layout)
{
    int64_t t = shape->tokens_max, a = t * shape->top_k, end = 0;
    int full = shape->check == EPX_CHECK_FULL;
    layout->block.rows = epx_take_area(&end, t * shape->row_bytes);
    layout->block.kept = epx_take_area(&end, a * (int64_t)sizeof(int32_t));
    layout->block.weights = epx_take_area(&end, a * (int64_t)sizeof(float));
    layout->block.aux = epx_take_area(&end, t * shape->aux_bytes);
    layout->block.checksum = epx_take_area(&end, full ? t * (int64_t)sizeof(uint32_t) : 0);
    layout->block.bytes = end;

    end = 0;
    int backward = shape->backward != EPX_BACKWARD_NONE;
    layout->sum.sums = epx_take_area(&end, t * shape->width * (int64_t)sizeof(float));
    layout->sum.dweight = epx_take_area(&end, backward ? a * (int64_t)sizeof(float) : 0);
    layout->sum.checksum = epx_take_area(&end, full ? t * (int64_t)sizeof(uint32_t) : 0);
    layout->sum.bytes = end;
}

/* A lane's part of the segment. A group of one rank passes nothing on, but adds up in a slot. */
static void lay_out_segment(const epx_shape_t *shape, epx_ring_layout_t *layout)
{
    int64_t end = 0;
    layout->block_slots = shape->ranks > 2 ? 2 : shape->ranks - 1;
    layout->sum_slots = shape->ranks > 1 ? 2 : 1;
    layout->chain[EPX_RING_BLOCKS] = epx_take_area(&end, layout->block_slots * layout->block.bytes);
    layout->chain[EPX_RING_SUMS] = epx_take_area(&end, layout->sum_slots * layout->sum.bytes);
    layout->chain[EPX_RING_GRADIENTS] =
        epx_take_area(&end, layout->sides == 2 ? layout->block_slots * layout->block.bytes : 0);
    layout->lane_segment = end;
}

static void lay_out_batch(const epx_shape_t *shape, epx_ring_layout_t *layout)
{
    int64_t end = 0, rows = layout->rows_max;
    epx_ring_landing_t *landing = &layout->landing;
    landing->rows = epx_take_area(&end, shape->batch_in_caller ? 0 : rows * shape->row_bytes);
    landing->start = epx_take_area(&end, layout->local_max * (int64_t)sizeof(int64_t));
    landing->count = epx_take_area(&end, layout->local_max * (int64_t)sizeof(int64_t));
    landing->origin = epx_take_area(&end, shape->origin ? rows * (int64_t)sizeof(epx_origin_t) : 0);
    landing->aux = epx_take_area(&end, rows * shape->aux_bytes);
    landing->bytes = end;
    layout->lane_batch = layout->sides * shape->depth * end;
}

static void lay_out_places(const epx_shape_t *shape, epx_ring_layout_t *layout, epx_ring_side_t side)
{
    int64_t end = 0, rows = layout->rows_max, a = (int64_t)shape->tokens_max * shape->top_k;
    int gradients = shape->backward != EPX_BACKWARD_NONE && (int32_t)side == layout->sides - 1;
    epx_ring_places_t *places = &layout->places[side];
    places->place = epx_take_area(&end, a * (int64_t)sizeof(int32_t));
    places->token = epx_take_area(&end, rows * (int64_t)sizeof(int32_t));
    places->place_weight = epx_take_area(&end, side == EPX_RING_FORWARD ? a * (int64_t)sizeof(float) : 0);
    places->row_weight = epx_take_area(&end, gradients ? rows * (int64_t)sizeof(float) : 0);
    places->dots = epx_take_area(&end, gradients ? rows * (int64_t)sizeof(float) : 0);
    places->bytes = end;
}

static void lay_out_scratch(const epx_shape_t *shape, epx_ring_layout_t *layout)
{
    int64_t end = 0, a = (int64_t)shape->tokens_max * shape->top_k;
    int64_t counts = (int64_t)shape->virtual_ranks * shape->experts * (int64_t)sizeof(int32_t);
    epx_ring_desk_t *desk = &layout->desk;
    desk->ordinal = epx_take_area(&end, a * (int64_t)sizeof(int32_t));
    desk->notice = epx_take_area(&end, layout->notice_bytes);
    desk->notices = epx_take_area(&end, shape->ranks * layout->notice_bytes);
    desk->counts = epx_take_area(&end, counts);
    desk->accepted = epx_take_area(&end, counts);
    desk->seats =
        epx_take_area(&end, (shape->virtual_ranks + 2 * (int64_t)shape->experts) * (int64_t)sizeof(int64_t));
    desk->found = epx_take_area(&end, 2 * (int64_t)sizeof(int64_t));
    desk->bytes = end;
    for (int32_t side = 0; side < layout->sides; side++) {
        lay_out_places(shape, layout, (epx_ring_side_t)side);
        layout->side_places[side] = epx_take_area(&end, shape->depth * layout->places[side].bytes);
    }
    layout->lane_scratch = end;

    end = 0;
    layout->local = epx_take_area(&end, shape->experts * (int64_t)sizeof(int32_t));
    layout->tables = epx_take_area(&end, epx_shape_tables_bytes(shape));
    layout->destinations = epx_take_area(&end, shape->ranks * (int64_t)sizeof(void *));
    layout->zeros = epx_take_area(&end, ZEROS_BYTES);
    layout->lanes_scratch = end;
}

static void lay_out_plan(const epx_shape_t *shape, epx_ring_layout_t *layout)
{
    int64_t end = 0, a = (int64_t)shape->tokens_max * shape->top_k;
    epx_take_area(&end, (int64_t)sizeof(epx_plan_head_t));
    layout->plan_tokens = epx_take_area(&end, shape->ranks * (int64_t)sizeof(int64_t));
    layout->plan_runs = epx_take_area(&end, shape->ranks * (int64_t)sizeof(epx_run_t));
    layout->plan_kept = epx_take_area(&end, a * (int64_t)sizeof(int32_t));
    layout->plan_weights = epx_take_area(&end, a * (int64_t)sizeof(float));
    layout->plan_bytes = end;
}

/* Whether all products stay within 63 bits: the largest ones, in double. */
static int is_sane(const epx_shape_t *shape)
{
    double t = shape->tokens_max, a = t * shape->top_k, h = shape->width;
    double rows = a + (double)shape->experts * shape->row_align;
    double row = (double)shape->row_bytes + shape->aux_bytes + 64.0;
    double lane = 4 * t * (row + 4 * h) + 4 * shape->depth * (rows * row + 16 * a) +
                  16.0 * shape->virtual_ranks * shape->experts;
    return lane * shape->lanes < SIZE_LIMIT;
}

int epx_ring_lay_out(const epx_shape_t *shape, epx_ring_layout_t *layout_p)
{
    epx_ring_layout_t layout = {.sides = shape->backward == EPX_BACKWARD_RECOMPUTE ? 2 : 1};
    if (!is_sane(shape))
        return 0;
    epx_rule_t rule = epx_rule_of(shape, 1);
    for (int32_t r = 0; r < shape->ranks; r++) {
        int64_t rows = batch_rows_of(shape, &rule, r);
        int32_t local = owned_by(&shape->real, r);
        layout.rows_max = rows > layout.rows_max ? rows : layout.rows_max;
        layout.local_max = local > layout.local_max ? local : layout.local_max;
    }
    layout.notice_bytes = epx_round_up((int64_t)sizeof(epx_route_notice_t) +
                                           (int64_t)shape->splits * shape->experts * (int64_t)sizeof(int32_t),
                                       (int64_t)sizeof(int64_t));
    lay_out_blocks(shape, &layout);
    lay_out_segment(shape, &layout);
    lay_out_batch(shape, &layout);
    lay_out_scratch(shape, &layout);
    lay_out_plan(shape, &layout);
    layout.segment_bytes = shape->lanes * layout.lane_segment;
    layout.scratch_bytes = layout.lanes_scratch + shape->lanes * layout.lane_scratch;
    layout.batch_bytes = shape->lanes * layout.lane_batch;
    *layout_p = layout;
    return 1;
}

/* What goes to the right neighbour stands where it will stand there, in a mirror of this rank's own segment.
 */
int64_t epx_ring_staging(const epx_shape_t *shape, const epx_ring_layout_t *layout, uint32_t fabric_caps)
{
    return epx_is_staged(fabric_caps) && shape->ranks > 1 ? layout->segment_bytes : 0;
}

int64_t epx_ring_state_bytes(const epx_shape_t *shape)
{
    return (int64_t)sizeof(epx_ring_t) + shape->lanes * (int64_t)sizeof(epx_ring_lane_t) +
           shape->experts * (int64_t)sizeof(int32_t);
}

/* ---- probe and query ------------------------------------------------------------------------------------------------ */

static int refuse(char *reason, size_t reason_bytes, const char *text)
{
    snprintf(reason, reason_bytes, "%s", text);
    return 0;
}

int epx_ring_probe(const epx_shape_t *shape, uint32_t fabric_caps, char *reason, size_t reason_bytes)
{
    (void)fabric_caps; /* any fabric will do */
    if (shape->waves != 0)
        return refuse(reason, reason_bytes,
                      "EPX_WAVES has no meaning for ring: it has one wave for each rank");
    if (shape->overflow != EPX_OVERFLOW_DEFAULT)
        return refuse(reason, reason_bytes,
                      "EPX_OVERFLOW has no meaning for ring: it has no sender gate that could overflow");
    if (shape->columns != shape->top_k)
        return refuse(reason, reason_bytes, "spill choices have no meaning for ring: it has no sender gate");
    if (shape->sender_factor != 0)
        return refuse(reason, reason_bytes,
                      "EPX_SENDER_FACTOR has no meaning for ring: it has no sender gate, the receivers' "
                      "capacity decides");
    if (shape->wire == EPX_WIRE_RANK)
        return refuse(
            reason, reason_bytes,
            "EPX_WIRE=rank has no meaning for ring: whole token blocks travel, each row once per hop");
    if (shape->batch == EPX_BATCH_INDEXED)
        return refuse(reason, reason_bytes,
                      "EPX_BATCH=indexed needs ragged's rank wire: ring expands its batches");
    return 10;
}

epx_status_t epx_ring_query(const epx_shape_t *shape, uint32_t fabric_caps, const epx_services_t *services,
                            epx_sizes_t *sizes_p)
{
    epx_ring_layout_t layout;
    if (!epx_ring_lay_out(shape, &layout))
        return services->fail(
            EPX_ERR_NO_MEMORY,
            "ring: tokens_max %d, width %d, top_k %d, lanes %d, depth %d need more memory than can be "
            "addressed; make tokens_max or depth smaller",
            shape->tokens_max, shape->width, shape->top_k, shape->lanes, shape->depth);
    if ((int64_t)shape->tokens_max * shape->top_k > INT32_MAX || layout.rows_max > INT32_MAX)
        return services->fail(
            EPX_ERR_ARG,
            "ring: tokens_max %d * top_k %d with row_align %d gives 2^31 rows or more; make tokens_max "
            "smaller",
            shape->tokens_max, shape->top_k, shape->row_align);
    int64_t staging = epx_ring_staging(shape, &layout, fabric_caps);
    *sizes_p = (epx_sizes_t){.segment_bytes = layout.segment_bytes + staging,
                             .staging_bytes = staging,
                             .scratch_bytes = layout.scratch_bytes,
                             .ids_first = 1,
                             .batch_bytes = layout.batch_bytes,
                             .state_bytes = epx_ring_state_bytes(shape),
                             .plan_bytes = layout.plan_bytes,
                             .plan_state_bytes = epx_ring_plan_state_bytes(shape),
                             .report_bytes = shape->ranks * (int64_t)sizeof(int64_t),
                             .exchange_bytes = layout.notice_bytes,
                             .channels = epx_ring_channels(shape),
                             .waves = shape->ranks,
                             .batch_rows_max = layout.rows_max,
                             .wire = EPX_WIRE_DEFAULT};
    return EPX_OK;
}
