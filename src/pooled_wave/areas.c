/* pooled_wave: where things are. SPDX-License-Identifier: Apache-2.0 */
#include "pooled_wave/internal.h"

static int64_t slot_number(const epx_pooled_wave_t *w)
{
    const epx_shape_t *shape = w->pooled->transport.env.shape;
    return (int64_t)w->plan->lane->index * shape->depth + w->wave % shape->depth;
}

/* Sides of a slot lie behind each other; side 1 starts where side 0 ends. */
int64_t epx_pooled_incoming_offset(const epx_pooled_wave_t *w, int64_t offset)
{
    const epx_pooled_map_t *map = &w->pooled->map;
    return slot_number(w) * map->slot_segment_bytes + (w->side == 0 ? 0 : map->side[0].segment_bytes) +
           offset;
}

static int64_t homes_offset(const epx_pooled_wave_t *w)
{
    const epx_pooled_map_t *map = &w->pooled->map;
    return map->home_begin + w->plan->lane->index * map->home_bytes;
}

int64_t epx_pooled_home_offset(const epx_pooled_wave_t *w, int64_t offset, int64_t each)
{
    const epx_pooled_dims_t *dims = &w->pooled->dims;
    return homes_offset(w) + offset + w->wave % dims->home_slots * dims->home_room * each;
}

int64_t epx_pooled_note_offset(const epx_pooled_wave_t *w)
{
    int64_t ranks = w->pooled->transport.env.shape->ranks;
    return homes_offset(w) + w->pooled->map.home_note + w->wave % w->pooled->dims.home_slots * ranks * 8;
}

void *epx_pooled_incoming(const epx_pooled_wave_t *w, int64_t offset)
{
    return (char *)w->pooled->transport.env.segment.base + epx_pooled_incoming_offset(w, offset);
}

void *epx_pooled_home(const epx_pooled_wave_t *w, int64_t offset, int64_t each)
{
    return (char *)w->pooled->transport.env.segment.base + epx_pooled_home_offset(w, offset, each);
}

void *epx_pooled_homes(const epx_pooled_wave_t *w, int64_t offset)
{
    return (char *)w->pooled->transport.env.segment.base + homes_offset(w) + offset;
}

void *epx_pooled_batch(const epx_pooled_wave_t *w, int64_t offset)
{
    const epx_pooled_map_t *map = &w->pooled->map;
    int64_t side = w->side == 0 ? 0 : map->side[0].batch_bytes;
    return (char *)w->pooled->transport.env.batch + slot_number(w) * map->slot_batch_bytes + side + offset;
}

void *epx_pooled_side(const epx_pooled_wave_t *w, int64_t offset)
{
    const epx_pooled_map_t *map = &w->pooled->map;
    int64_t side = slot_number(w) * w->pooled->dims.sides + w->side;
    return (char *)w->pooled->transport.env.scratch + map->side_begin + side * map->side_bytes + offset;
}

void *epx_pooled_lane(const epx_pooled_t *pooled, int32_t lane, int64_t offset)
{
    const epx_pooled_map_t *map = &pooled->map;
    return (char *)pooled->transport.env.scratch + map->lane_begin + lane * map->lane_bytes + offset;
}

void *epx_pooled_static(const epx_pooled_t *pooled, int64_t offset)
{
    return (char *)pooled->transport.env.scratch + offset;
}

void *epx_pooled_plan(const epx_plan_base_t *plan, int64_t offset) { return (char *)plan->bytes + offset; }

static epx_pooled_state_t *state_of(const epx_plan_base_t *plan) { return (epx_pooled_state_t *)plan->state; }

uint64_t *epx_pooled_epoch(const epx_pooled_t *pooled, const epx_plan_base_t *plan, epx_move_t move,
                           int32_t wave)
{
    int32_t depth = pooled->transport.env.shape->depth;
    return &state_of(plan)->epoch[(int32_t)move * depth + wave % depth];
}

const void **epx_pooled_given(const epx_pooled_wave_t *w)
{
    int32_t depth = w->pooled->transport.env.shape->depth;
    const void **rows = (const void **)(state_of(w->plan)->epoch + (int32_t)EPX_MOVES * depth);
    return rows + w->wave % depth;
}

epx_pooled_tables_t epx_pooled_tables(epx_pooled_t *pooled)
{
    const epx_shape_t *shape = pooled->transport.env.shape;
    int64_t words = shape->ranks + (int64_t)1 + shape->virtual_ranks;
    int32_t *base = (int32_t *)pooled->host_tables;
    epx_run_t *runs =
        (epx_run_t *)(pooled->host_tables + epx_round_up(words * (int64_t)sizeof(int32_t), 8) / 8);
    epx_piece_t *pieces = (epx_piece_t *)(runs + 3 * (int64_t)shape->ranks);
    return (epx_pooled_tables_t){.base = base,
                                 .before = base + shape->ranks + 1,
                                 .out = runs,
                                 .back = runs + shape->ranks,
                                 .block = runs + 2 * (int64_t)shape->ranks,
                                 .send = pieces,
                                 .receive = pieces + EPX_POOLED_PARTS * (int64_t)shape->ranks};
}
