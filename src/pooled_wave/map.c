/* pooled_wave: whether, how large, and what lies where. All pure. SPDX-License-Identifier: Apache-2.0 */
#include "pooled_wave/internal.h"

#include <inttypes.h>
#include <stdio.h>

#include "transport/accept.h"

/* MOST_HOMES: home slots for each slot of what comes in, where every wave is to have one. */
enum { AUTO_SCORE = 20, DEFAULT_WAVES = 3, MOST_HOMES = 2 };
#define DEFAULT_SENDER_FACTOR 1.15
#define ROWS_LIMIT ((int64_t)INT32_MAX)

/* ---- whether ---------------------------------------------------------------------------------------------------- */

static const char *refusal(const epx_shape_t *shape)
{
    if (shape->accept != EPX_ACCEPT_DEFAULT)
        return "EPX_ACCEPT has no meaning here: who is kept follows from pooled_wave's two gates; unset it, "
               "or use ragged";
    if (shape->wire == EPX_WIRE_RANK)
        return "EPX_WIRE=rank has no meaning here: every slot carries one (token, k); unset it, or use "
               "ragged";
    if (shape->overflow != EPX_OVERFLOW_SPILL && shape->columns != shape->top_k)
        return "spill_choices needs EPX_OVERFLOW=spill";
    return NULL;
}

int epx_pooled_probe(const epx_shape_t *shape, uint32_t caps, char *reason, size_t reason_bytes)
{
    const char *text = refusal(shape);
    (void)caps; /* any fabric will do */
    snprintf(reason, reason_bytes, "%s", text != NULL ? text : "");
    return text != NULL ? 0 : AUTO_SCORE;
}

/* ---- how large -------------------------------------------------------------------------------------------------- */

static int32_t largest_owner(const epx_owners_t *owners)
{
    int32_t most = 0;
    for (int32_t r = 0; r < owners->ranks; r++)
        most =
            owners->first[r + 1] - owners->first[r] > most ? owners->first[r + 1] - owners->first[r] : most;
    return most;
}

/* Numbers beyond this are refused; cut there, their products stay within 64 bits. */
static int64_t cut(int64_t rows) { return rows > ROWS_LIMIT ? ROWS_LIMIT + 1 : rows; }

/* Slots that one real source sends to the real destination d in a wave: m * (sum of P over its virtual
 * ranks). */
static int64_t slab_slots(const epx_shape_t *shape, const epx_rule_t *rule, int32_t d)
{
    int32_t m = shape->splits;
    int64_t slots = 0;
    for (int32_t v = d * m; v < (d + 1) * m; v++)
        slots = cut(slots + epx_pooled_slots(rule, shape->virt.first[v + 1] - shape->virt.first[v]));
    return cut(slots * m);
}

typedef struct limit_row {
    const char *what;
    int64_t rows;
} limit_row_t;

/* An upper bound of all areas, in floating point: what passes fits 64-bit offsets. */
static double bytes_at_most(const epx_shape_t *shape, const epx_pooled_dims_t *dims)
{
    double beside = 256, slots = (double)shape->lanes * shape->depth;
    double homes = (double)dims->home_slots / shape->depth,
           rows = 2.0 * ((double)dims->slab_rows * shape->ranks + (double)dims->batch_rows) +
                  homes * (double)dims->home_room;
    double tables =
        16.0 * ((double)shape->virtual_ranks * shape->experts + (double)dims->home_rows * shape->waves);
    double lane = 4.0 * shape->tokens_max * shape->width + 64.0 * (double)dims->assignments + tables;
    return (dims->staged ? 2 : 1) * slots * rows * ((double)shape->row_bytes + beside) + shape->lanes * lane;
}

epx_status_t epx_pooled_dims(const epx_shape_t *shape, uint32_t caps, const epx_services_t *services,
                             epx_pooled_dims_t *dims_p)
{
    epx_rule_t rule = epx_rule_of(shape, shape->waves);
    epx_pooled_dims_t dims = {0};
    dims.extra_wave = shape->overflow == EPX_OVERFLOW_EXTRA_WAVE;
    for (int32_t d = 0; d < shape->ranks && dims.home_rows <= ROWS_LIMIT; d++) {
        int64_t slots = slab_slots(shape, &rule, d);
        dims.home_rows += slots;
        dims.slab_rows = slots > dims.slab_rows ? slots : dims.slab_rows;
    }
    dims.staged = epx_is_staged(caps) && shape->ranks > 1;
    dims.home_room = dims.staged ? dims.slab_rows * shape->ranks : dims.home_rows;
    dims.by_wave = dims.extra_wave || dims.staged || shape->waves > MOST_HOMES * shape->depth;
    dims.home_slots = dims.by_wave ? shape->depth : shape->waves;
    int64_t align = shape->row_align, rows = cut(epx_pooled_rows(&rule));
    dims.rows_per_expert = cut((rows + align - 1) / align * align);
    dims.local_max = largest_owner(&shape->real);
    dims.virtual_local_max = largest_owner(&shape->virt);
    dims.batch_rows = dims.local_max * dims.rows_per_expert;
    dims.indexed = shape->batch == EPX_BATCH_INDEXED;
    if (dims.indexed && dims.batch_rows < dims.slab_rows * shape->ranks) /* slabs are batches */
        dims.batch_rows = dims.slab_rows * shape->ranks;
    dims.assignments = (int64_t)shape->tokens_max * shape->columns;

    const limit_row_t limits[] = {
        {"slots at a sender, over all waves", dims.home_rows * (dims.extra_wave ? 1 : shape->waves)},
        {"slots at a receiver, in a wave", dims.slab_rows * shape->ranks},
        {"rows in a batch", dims.batch_rows},
        {"assignments", dims.assignments},
    };
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
        if (limits[i].rows > ROWS_LIMIT)
            return services->fail(EPX_ERR_ARG,
                                  "pooled_wave would need %" PRId64
                                  " or more %s, beyond 2^31 - 1; lower tokens_max or the "
                                  "capacity factors%s",
                                  limits[i].rows, limits[i].what,
                                  shape->dropless ? ", or do without EPX_CAPACITY_FACTOR=dropless" : "");

    double bytes = bytes_at_most(shape, &dims);
    if (bytes > 0x1p61)
        return services->fail(EPX_ERR_NO_MEMORY,
                              "pooled_wave would need about %.3g bytes; lower tokens_max or width", bytes);

    dims.tag_bytes = dims.virtual_local_max <= UINT16_MAX ? 2 : 4;
    dims.header_bytes = epx_round_up(
        EPX_POOLED_HEADER_VALID + 8 * (int64_t)shape->splits + dims.tag_bytes * dims.slab_rows, 16);
    dims.sides = shape->backward == EPX_BACKWARD_RECOMPUTE ? 2 : 1;
    dims.backward = shape->backward != EPX_BACKWARD_NONE;
    dims.checks = shape->check == EPX_CHECK_CANARY || shape->check == EPX_CHECK_FULL;
    dims.sums = shape->check == EPX_CHECK_FULL;
    dims.own_rows = !dims.indexed && !dims.checks; /* checks look at what has come */
    *dims_p = dims;
    return EPX_OK;
}

/* ---- what lies where -------------------------------------------------------------------------------------------- */

/* An area that a shape may do without. */
static int64_t take_if(int wanted, int64_t *end, int64_t bytes)
{
    return wanted ? epx_take_area(end, bytes) : -1;
}

/* Side 0 carries the forward pass, and gradients too unless they have side 1. */
static void map_side(const epx_shape_t *shape, const epx_pooled_dims_t *dims, int32_t side,
                     epx_pooled_side_map_t *map)
{
    int64_t rows = dims->slab_rows * shape->ranks, end = 0;
    int forward = side == 0, gradients = dims->backward && side == dims->sides - 1;
    map->header = epx_take_area(&end, dims->header_bytes * shape->ranks);
    map->rows = epx_take_area(&end, rows * shape->row_bytes);
    map->aux = take_if(forward && shape->aux_bytes > 0, &end, rows * shape->aux_bytes);
    map->origin = take_if(shape->origin, &end, rows * (int64_t)sizeof(epx_origin_t));
    map->weight = take_if(gradients, &end, rows * (int64_t)sizeof(float));
    map->sum = take_if(dims->sums, &end, rows * (int64_t)sizeof(uint32_t));
    map->segment_bytes = end;

    end = 0;
    map->batch_rows = take_if(!shape->batch_in_caller && (gradients || !dims->indexed), &end,
                              dims->batch_rows * shape->row_bytes);
    map->batch_aux = take_if(forward && shape->aux_bytes > 0, &end, dims->batch_rows * shape->aux_bytes);
    map->batch_origin = take_if(shape->origin, &end, dims->batch_rows * (int64_t)sizeof(epx_origin_t));
    map->batch_bytes = end;
}

static void map_home(const epx_shape_t *shape, const epx_pooled_dims_t *dims, epx_pooled_map_t *map)
{
    int64_t end = 0, rows = dims->home_slots * dims->home_room;
    map->home_note = take_if(dims->checks, &end, 8 * (int64_t)dims->home_slots * shape->ranks);
    map->home_kept = epx_take_area(&end, rows);
    map->home_rows = epx_take_area(&end, rows * shape->row_bytes);
    map->home_dots = take_if(dims->backward, &end, rows * (int64_t)sizeof(float));
    map->home_sum = take_if(dims->sums, &end, rows * (int64_t)sizeof(uint32_t));
    map->home_bytes = end;
}

static void map_static(const epx_shape_t *shape, int64_t *end, epx_pooled_map_t *map)
{
    int64_t word = sizeof(int32_t), run = sizeof(epx_run_t), experts = shape->experts;
    map->owner = epx_take_area(end, experts * word);
    map->local = epx_take_area(end, experts * word);
    map->first = epx_take_area(end, (shape->virtual_ranks + (int64_t)1) * word);
    map->expert = epx_take_area(end, experts * word);
    map->base = epx_take_area(end, (shape->ranks + (int64_t)1) * word);
    map->before = epx_take_area(end, shape->virtual_ranks * word);
    map->out_runs = epx_take_area(end, shape->ranks * run);
    map->back_runs = epx_take_area(end, shape->ranks * run);
    map->block_runs = epx_take_area(end, shape->ranks * run);
    map->destinations = epx_take_area(end, shape->ranks * (int64_t)sizeof(void *));
    map->zeros = take_if(shape->aux_bytes > 0, end, shape->aux_bytes);
}

static void map_lane(const epx_shape_t *shape, const epx_pooled_dims_t *dims, epx_pooled_map_t *map)
{
    int64_t end = 0, word = sizeof(int32_t), n = shape->virtual_ranks,
            table = shape->splits * (int64_t)shape->experts;
    map->tags = epx_take_area(&end, dims->slab_rows * shape->ranks * word);
    map->pointers = epx_take_area(&end, 2 * n * (int64_t)sizeof(void *));
    map->bad = epx_take_area(&end, 2 * (int64_t)sizeof(int64_t));
    map->notice = epx_take_area(&end, sizeof(epx_route_notice_t));
    map->counts = epx_take_area(&end, table * word);
    map->gate = take_if(!dims->extra_wave, &end, n * (int64_t)sizeof(int64_t));
    map->slot = take_if(!dims->extra_wave, &end, dims->assignments * word);
    map->remaining = take_if(dims->extra_wave, &end, (n * dims->virtual_local_max + n) * word);
    map->move = take_if(dims->extra_wave, &end, table * 3 * word);
    map->place = take_if(dims->extra_wave, &end, dims->assignments * word);
    map->acc = take_if(shape->out_type != EPX_FP32 && dims->by_wave, &end,
                       (int64_t)shape->tokens_max * shape->width * (int64_t)sizeof(float));
    map->note = take_if(dims->checks, &end, 8);
    map->sums = take_if(dims->sums, &end, dims->batch_rows * (int64_t)sizeof(uint32_t));
    map->check_list = take_if(dims->checks, &end, dims->home_rows * word);
    map->check_start = take_if(dims->checks, &end, dims->home_rows * (int64_t)sizeof(int64_t));
    map->check_count = take_if(dims->checks, &end, dims->home_rows * (int64_t)sizeof(int64_t));
    map->lane_bytes = end;

    end = 0;
    map->list = epx_take_area(&end, dims->home_rows * word);
    map->to = epx_take_area(&end, dims->slab_rows * shape->ranks * word);
    map->from = epx_take_area(&end, dims->batch_rows * word);
    map->kept = epx_take_area(&end, dims->slab_rows * shape->ranks);
    map->start = epx_take_area(&end, dims->local_max * (int64_t)sizeof(int64_t));
    map->count = epx_take_area(&end, dims->local_max * (int64_t)sizeof(int64_t));
    map->weight = take_if(dims->backward, &end, dims->batch_rows * (int64_t)sizeof(float));
    map->dots = take_if(dims->backward, &end, dims->batch_rows * (int64_t)sizeof(float));
    map->side_bytes = end;
}

static void map_plan(const epx_shape_t *shape, const epx_pooled_dims_t *dims, epx_pooled_map_t *map)
{
    int64_t end = 0, word = sizeof(int32_t);
    epx_take_area(&end, sizeof(epx_plan_head_t));
    map->plan_valid = epx_take_area(&end, shape->splits * (int64_t)sizeof(int64_t));
    map->plan_weights = epx_take_area(&end, dims->assignments * (int64_t)sizeof(float));
    map->plan_expert = epx_take_area(&end, dims->assignments * word);
    /* With extra_wave these are ordinals: places follow from them and the counts, wave by wave. */
    map->plan_place = epx_take_area(&end, dims->assignments * word);
    map->plan_kept = take_if(!dims->extra_wave, &end, dims->home_rows * shape->waves);
    map->plan_counts = take_if(dims->extra_wave, &end, (int64_t)shape->virtual_ranks * shape->experts * word);
    map->plan_bytes = end;
}

void epx_pooled_map(const epx_shape_t *shape, const epx_pooled_dims_t *dims, epx_pooled_map_t *map_p)
{
    int64_t slots = (int64_t)shape->lanes * shape->depth, end = 0;
    *map_p = (epx_pooled_map_t){0};
    for (int32_t side = 0; side < dims->sides; side++) {
        map_side(shape, dims, side, &map_p->side[side]);
        map_p->slot_batch_bytes += map_p->side[side].batch_bytes;
        map_p->slot_segment_bytes += map_p->side[side].segment_bytes;
    }
    map_home(shape, dims, map_p);
    map_static(shape, &end, map_p);
    map_lane(shape, dims, map_p);
    map_p->lane_begin = end;
    map_p->side_begin = map_p->lane_begin + map_p->lane_bytes * shape->lanes;
    map_p->scratch_bytes = map_p->side_begin + map_p->side_bytes * slots * dims->sides;
    map_p->home_begin = map_p->slot_segment_bytes * slots;
    int64_t segment = map_p->home_begin + map_p->home_bytes * shape->lanes;
    map_p->mirror = dims->staged ? segment : 0;
    map_p->segment_bytes = segment + map_p->mirror;
    map_p->batch_bytes = map_p->slot_batch_bytes * slots;
    map_plan(shape, dims, map_p);
}

epx_shape_t epx_pooled_shape(const epx_shape_t *asked)
{
    epx_shape_t shape = *asked;
    if (shape.waves == 0)
        shape.waves = DEFAULT_WAVES;
    if (!(shape.sender_factor > 0))
        shape.sender_factor = DEFAULT_SENDER_FACTOR;
    return shape;
}

epx_status_t epx_pooled_query(const epx_shape_t *asked, uint32_t caps, const epx_services_t *services,
                              epx_sizes_t *sizes_p)
{
    const epx_shape_t filled = epx_pooled_shape(asked), *shape = &filled;
    epx_pooled_dims_t dims;
    epx_pooled_map_t map;
    epx_status_t status = epx_pooled_dims(shape, caps, services, &dims);
    if (status != EPX_OK)
        return status;
    epx_pooled_map(shape, &dims, &map);

    int64_t counts = dims.extra_wave ? shape->splits * (int64_t)shape->experts * (int64_t)sizeof(int32_t) : 0;
    int64_t tables = (shape->ranks + (int64_t)1 + shape->virtual_ranks) * (int64_t)sizeof(int32_t);
    int64_t pieces = dims.staged ? 2 * EPX_POOLED_PARTS * (int64_t)shape->ranks : 0;
    *sizes_p = (epx_sizes_t){
        .segment_bytes = map.segment_bytes,
        .staging_bytes = map.mirror,
        .scratch_bytes = map.scratch_bytes,
        .ids_first = 1,
        .batch_bytes = map.batch_bytes,
        .state_bytes = (int64_t)sizeof(epx_pooled_t) + epx_round_up(tables, 8) +
                       3 * shape->ranks * (int64_t)sizeof(epx_run_t) + pieces * (int64_t)sizeof(epx_piece_t),
        .plan_bytes = map.plan_bytes,
        .plan_state_bytes = (int64_t)sizeof(epx_pooled_state_t) +
                            (int64_t)EPX_MOVES * shape->depth * (int64_t)sizeof(uint64_t) +
                            shape->depth * (int64_t)sizeof(void *),
        .exchange_bytes = counts > (int64_t)sizeof(int64_t) ? counts : (int64_t)sizeof(int64_t),
        .channels = epx_move_channels(shape),
        .failure_channels = epx_failure_channels(shape),
        .waves = dims.extra_wave ? 0 : shape->waves,
        .learns = 1,
        .batch_rows_max = dims.batch_rows,
        .wire = EPX_WIRE_ASSIGNMENT,
    };
    return EPX_OK;
}
