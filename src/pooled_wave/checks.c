/* pooled_wave: EPX_CHECK=canary and full. SPDX-License-Identifier: Apache-2.0 */
#include "pooled_wave/internal.h"

#include <inttypes.h>
#include <stdio.h>

/* Who is blamed, in words that end every sentence here. */
#define LEFT_BY_EXCHANGE \
    "the exchange left it so, not a caller's computation; report it, then epx_group_recover"

static int is_out(const epx_pooled_wave_t *w)
{
    return w->move == EPX_MOVE_DISPATCH || w->move == EPX_MOVE_COMBINE_BACKWARD;
}

/* Reads device memory now; only checks may. */
static epx_status_t fetch(const epx_pooled_wave_t *w, void *to, const void *from, size_t bytes)
{
    const epx_device_ops_t *device = w->pooled->transport.env.device;
    epx_status_t status = device->copy(to, from, bytes, w->stream);
    return status == EPX_OK ? device->synchronize(w->stream) : status;
}

static int64_t *bad_of(const epx_pooled_wave_t *w)
{
    return epx_pooled_lane(w->pooled, w->plan->lane->index, w->pooled->map.bad);
}

/* "group: rank 1, dispatch, wave 0, lane 0" */
static void begin_text(const epx_pooled_wave_t *w, char *text, size_t bytes)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    snprintf(text, bytes, "%s: rank %d, %s, wave %d, lane %d", env->group_name, env->shape->rank,
             epx_move_name(w->move), w->wave, w->plan->lane->index);
}

/* The wave's home slot, in the segment at `segment` or in its mirror. */
static epx_status_t fill_home(const epx_pooled_wave_t *w, char *segment)
{
    const epx_pooled_map_t *map = &w->pooled->map;
    const epx_shape_t *shape = w->pooled->transport.env.shape;
    const struct {
        int64_t offset, each;
    } areas[] = {{map->home_kept, 1},
                 {map->home_rows, shape->row_bytes},
                 {map->home_dots, sizeof(float)},
                 {map->home_sum, sizeof(uint32_t)}};
    epx_status_t status = epx_canary_fill(&w->pooled->transport, segment + epx_pooled_note_offset(w),
                                          8 * (int64_t)shape->ranks, w->stream);
    for (size_t i = 0; i < sizeof(areas) / sizeof(areas[0]) && status == EPX_OK; i++)
        if (areas[i].offset >= 0)
            status = epx_canary_fill(&w->pooled->transport,
                                     segment + epx_pooled_home_offset(w, areas[i].offset, areas[i].each),
                                     w->pooled->dims.home_room * areas[i].each, w->stream);
    return status;
}

epx_status_t epx_pooled_refill(const epx_pooled_wave_t *w)
{
    const epx_pooled_map_t *map = &w->pooled->map;
    if (!w->pooled->dims.checks || (w->pooled->dims.indexed && w->move == EPX_MOVE_DISPATCH))
        return EPX_OK;
    if (is_out(w))
        return epx_canary_fill(&w->pooled->transport, epx_pooled_incoming(w, 0),
                               map->side[w->side].segment_bytes, w->stream);
    char *segment = w->pooled->transport.env.segment.base;
    if (w->pooled->dims.by_wave)
        return fill_home(w, segment);
    if (!epx_pooled_sums_now(w))
        return EPX_OK;
    return epx_canary_fill(&w->pooled->transport, epx_pooled_homes(w, 0), map->home_bytes, w->stream);
}

epx_status_t epx_pooled_refill_batch(const epx_pooled_wave_t *w)
{
    epx_pooled_wave_t forward = *w;
    forward.side = 0;
    if (!w->pooled->dims.checks || !w->pooled->dims.indexed)
        return EPX_OK;
    return epx_canary_fill(&w->pooled->transport, epx_pooled_incoming(&forward, 0),
                           w->pooled->map.side[0].segment_bytes, w->stream);
}

epx_status_t epx_pooled_fill_staged(const epx_pooled_wave_t *w)
{
    const epx_pooled_map_t *map = &w->pooled->map;
    char *mirror = (char *)w->pooled->transport.env.segment.base + map->mirror;
    if (!w->pooled->dims.staged || !w->pooled->dims.checks)
        return EPX_OK;
    if (is_out(w))
        return epx_canary_fill(&w->pooled->transport, mirror + epx_pooled_incoming_offset(w, 0),
                               map->side[w->side].segment_bytes, w->stream);
    return fill_home(w, mirror);
}

/* From gate 2's `bad`. */
static epx_status_t check_headers(const epx_pooled_wave_t *w)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    int64_t bad[2];
    char begin[160];
    epx_status_t status = fetch(w, bad, bad_of(w), sizeof(bad));
    if (status != EPX_OK || bad[0] < 0)
        return status;
    begin_text(w, begin, sizeof(begin));
    if (bad[1] < 0)
        return env->services->fail(EPX_ERR_CORRUPT,
                                   "%s: the header from rank %" PRId64 " holds the tag %" PRId64
                                   ", no expert has it: " LEFT_BY_EXCHANGE,
                                   begin, bad[0], -bad[1]);
    return env->services->fail(EPX_ERR_CORRUPT,
                               "%s: the header from rank %" PRId64 " never arrived (its stamp is %" PRIx64
                               ", expected %x): " LEFT_BY_EXCHANGE,
                               begin, bad[0], (uint64_t)bad[1], epx_pooled_stamp(w));
}

/* The sentence for row g of a batch, of local expert e. */
static epx_status_t blame_batch_row(const epx_pooled_wave_t *w, const int64_t *bad, const char *what)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    const epx_shape_t *shape = env->shape;
    const int32_t *from = epx_pooled_side(w, w->pooled->map.from);
    int32_t row;
    char begin[160];
    epx_status_t status = fetch(w, &row, from + bad[0], sizeof(row));
    if (status != EPX_OK)
        return status;
    begin_text(w, begin, sizeof(begin));
    return env->services->fail(EPX_ERR_CORRUPT, "%s: row %" PRId64 ", of expert %d, from rank %" PRId64 " %s",
                               begin, bad[0], shape->real.expert[shape->real.first[shape->rank] + bad[1]],
                               row / w->pooled->dims.slab_rows, what);
}

epx_status_t epx_pooled_check_incoming(const epx_pooled_wave_t *w)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    const epx_pooled_map_t *map = &w->pooled->map;
    int64_t bad[2];
    if (!w->pooled->dims.checks)
        return EPX_OK;
    epx_k_find_poison_t args = {.rows = epx_pooled_rows_of(w),
                                .index = epx_pooled_side(w, map->from),
                                .src = epx_pooled_incoming(w, map->side[w->side].rows),
                                .stride = env->shape->row_bytes,
                                .bytes = env->shape->row_bytes,
                                .bad = bad_of(w)};
    epx_status_t status = check_headers(w);
    if (status == EPX_OK)
        status = env->kernels->find_poison(&args, w->stream);
    if (status == EPX_OK)
        status = fetch(w, bad, args.bad, sizeof(bad));
    if (status != EPX_OK || bad[0] < 0)
        return status;
    return blame_batch_row(w, bad, "never arrived: " LEFT_BY_EXCHANGE);
}

epx_status_t epx_pooled_check_sums(const epx_pooled_wave_t *w, const void *rows, const int32_t *index)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    int64_t bad[2];
    if (!w->pooled->dims.sums)
        return EPX_OK;
    uint32_t *sums = epx_pooled_lane(w->pooled, w->plan->lane->index, w->pooled->map.sums);
    epx_k_verify_t args = {.rows = epx_pooled_rows_of(w),
                           .index = index,
                           .src = rows,
                           .stride = env->shape->row_bytes,
                           .bytes = env->shape->row_bytes,
                           .sum = sums,
                           .bad = bad_of(w)};
    epx_status_t status = epx_pooled_bring_sums(w, sums);
    if (status == EPX_OK)
        status = env->kernels->verify(&args, w->stream);
    if (status == EPX_OK)
        status = fetch(w, bad, args.bad, sizeof(bad));
    if (status != EPX_OK || bad[0] < 0)
        return status;
    return blame_batch_row(w, bad, "has another checksum than when it was sent: " LEFT_BY_EXCHANGE);
}

epx_status_t epx_pooled_check_caller(const epx_pooled_wave_t *w, const void *rows)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    int64_t bad[2];
    if (!w->pooled->dims.checks)
        return EPX_OK;
    epx_k_find_poison_t args = {.rows = epx_pooled_rows_of(w),
                                .src = rows,
                                .stride = env->shape->row_bytes,
                                .bytes = env->shape->row_bytes,
                                .bad = bad_of(w)};
    epx_status_t status = env->kernels->find_poison(&args, w->stream);
    if (status == EPX_OK)
        status = fetch(w, bad, args.bad, sizeof(bad));
    if (status != EPX_OK)
        return status;
    int32_t note[2] = {bad[0] < 0 ? EPX_OK : EPX_ERR_CORRUPT, 0};
    status = env->device->copy(epx_pooled_lane(w->pooled, w->plan->lane->index, w->pooled->map.note), note,
                               sizeof(note), w->stream);
    if (status == EPX_OK)
        status = env->device->synchronize(w->stream);
    if (status != EPX_OK || bad[0] < 0)
        return status;
    return blame_batch_row(w, bad,
                           "was not written: the caller's computation left it out, after epx_check_poison; "
                           "mend it, then epx_group_recover");
}

/* Where home row h went and whose it is. */
typedef struct home_row {
    int32_t peer, assignment, expert;
    int32_t note; /* what the peer said of its own rows */
} home_row_t;

static epx_status_t find_home_row(const epx_pooled_wave_t *w, int64_t h, home_row_t *row_p)
{
    const epx_pooled_map_t *map = &w->pooled->map;
    const epx_shape_t *shape = w->pooled->transport.env.shape;
    epx_pooled_tables_t tables = epx_pooled_tables(w->pooled);
    const int32_t *list = epx_pooled_lane(w->pooled, w->plan->lane->index, map->check_list);
    const int32_t *expert = epx_pooled_plan(w->plan, map->plan_expert);
    row_p->peer = 0;
    while (row_p->peer + 1 < shape->ranks && h >= tables.base[row_p->peer + 1])
        row_p->peer++;
    epx_status_t status = fetch(w, &row_p->assignment, list + h, sizeof(row_p->assignment));
    if (status == EPX_OK)
        status = fetch(w, &row_p->expert, expert + row_p->assignment, sizeof(row_p->expert));
    if (status == EPX_OK)
        status = fetch(w, &row_p->note,
                       (const char *)w->pooled->transport.env.segment.base + epx_pooled_note_offset(w) +
                           8 * (int64_t)row_p->peer,
                       sizeof(row_p->note));
    return status;
}

static epx_status_t blame_home_row(const epx_pooled_wave_t *w, int64_t h, int poisoned)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    home_row_t row;
    char begin[160];
    epx_status_t status = find_home_row(w, h, &row);
    if (status != EPX_OK)
        return status;
    begin_text(w, begin, sizeof(begin));
    const char *what = "came home with another checksum than when it was sent: " LEFT_BY_EXCHANGE;
    if (poisoned && row.note != EPX_OK)
        what = "was not written there: the caller's computation of that rank left it out; mend it, then "
               "epx_group_recover";
    else if (poisoned)
        what = "never came home: " LEFT_BY_EXCHANGE;
    return env->services->fail(EPX_ERR_CORRUPT,
                               "%s: row %" PRId64 ", of expert %d at rank %d (token %d, k %d), %s", begin, h,
                               row.expert, row.peer, row.assignment / env->shape->columns,
                               row.assignment % env->shape->columns, what);
}

/* Lists what must have come home, one row or none per home row. */
static epx_status_t list_home(const epx_pooled_wave_t *w, const uint8_t *kept, epx_k_rows_t *rows_p)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    const epx_pooled_map_t *map = &w->pooled->map;
    int32_t lane = w->plan->lane->index;
    int64_t *start = epx_pooled_lane(w->pooled, lane, map->check_start);
    int64_t *count = epx_pooled_lane(w->pooled, lane, map->check_count);
    epx_k_pooled_pack_t args = {.units = w->pooled->transport.env.shape->sm_budget,
                                .layout = &w->pooled->layout,
                                .tokens = env->shape->tokens_max,
                                .tokens_device = &epx_plan_head(w->plan)->tokens,
                                .expert = epx_pooled_plan(w->plan, map->plan_expert),
                                .place = w->place,
                                .lo = w->lo,
                                .kept = kept,
                                .list = epx_pooled_lane(w->pooled, lane, map->check_list),
                                .start = start,
                                .count = count};
    *rows_p = (epx_k_rows_t){.start = start, .count = count, .experts = (int32_t)w->pooled->dims.home_rows};
    return env->kernels->pooled_pack(&args, w->stream);
}

epx_status_t epx_pooled_check_home(const epx_pooled_wave_t *w, const uint8_t *kept)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    const epx_pooled_map_t *map = &w->pooled->map;
    int64_t bytes = env->shape->row_bytes, bad[2];
    epx_k_rows_t rows;
    if (!w->pooled->dims.checks)
        return EPX_OK;
    epx_status_t status = list_home(w, kept, &rows);
    if (status != EPX_OK)
        return status;
    const void *home = epx_pooled_home(w, map->home_rows, bytes);
    epx_k_find_poison_t find = {.rows = rows, .src = home, .stride = bytes, .bytes = bytes, .bad = bad_of(w)};
    status = env->kernels->find_poison(&find, w->stream);
    if (status == EPX_OK)
        status = fetch(w, bad, find.bad, sizeof(bad));
    if (status != EPX_OK || bad[0] >= 0)
        return status != EPX_OK ? status : blame_home_row(w, bad[0], 1);
    if (!w->pooled->dims.sums)
        return EPX_OK;
    epx_k_verify_t verify = {.rows = rows,
                             .src = home,
                             .stride = bytes,
                             .bytes = bytes,
                             .sum = epx_pooled_home(w, map->home_sum, sizeof(uint32_t)),
                             .bad = bad_of(w)};
    status = env->kernels->verify(&verify, w->stream);
    if (status == EPX_OK)
        status = fetch(w, bad, verify.bad, sizeof(bad));
    if (status != EPX_OK || bad[0] < 0)
        return status;
    return blame_home_row(w, bad[0], 0);
}
