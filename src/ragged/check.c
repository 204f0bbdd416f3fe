/* EPX_CHECK: canaries in receive buffers, checksums of rows, and whose row is missing.
 * SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

#include "ragged/internal.h"

static epx_status_t fill(const epx_ragged_call_t *call, int64_t offset, int64_t bytes)
{
    char *segment = call->ragged->base.env.segment.base;
    return bytes > 0 ? epx_canary_fill(&call->ragged->base, segment + offset, bytes, call->stream) : EPX_OK;
}

epx_status_t epx_ragged_fill_staged_home(const epx_ragged_call_t *call)
{
    return fill(call, epx_ragged_staging_target(call).home_rows, call->ragged->areas.staging.home_bytes);
}

static epx_status_t fill_staged_out(const epx_ragged_call_t *call)
{
    const epx_ragged_staging_t *staging = &call->ragged->areas.staging;
    int64_t lane = call->plan->lane->index * staging->out.bytes;
    epx_status_t status = fill(call, staging->outs + lane, staging->out.bytes);
    if (status == EPX_OK && staging->outs_backward != staging->outs)
        status = fill(call, staging->outs_backward + lane, staging->out.bytes);
    return status;
}

epx_status_t epx_ragged_fill_slot(const epx_ragged_call_t *call)
{
    return epx_canary_fill(&call->ragged->base, epx_ragged_slot_at(call, 0), call->slot->bytes, call->stream);
}

epx_status_t epx_ragged_fill_returns(const epx_ragged_call_t *call)
{
    if (call->wave < call->ragged->areas.chunks - 1)
        return EPX_OK;
    char *returns = (char *)call->ragged->base.env.segment.base + call->return_offset;
    epx_status_t status =
        epx_canary_fill(&call->ragged->base, returns, call->ragged->areas.return_bytes, call->stream);
    return status == EPX_OK ? fill_staged_out(call) : status;
}

/* ---- finding ---------------------------------------------------------------------------------------------------- */

/* A row that was found: g of group `of` (an expert, or a rank), g = -1: none. */
typedef struct found {
    int64_t g, of;
} found_t;

static int64_t *bad_of(const epx_ragged_call_t *call)
{
    return (int64_t *)(void *)(call->scratch + call->ragged->areas.scratch.bad);
}

/* Reads device memory now: checks may. */
static epx_status_t fetch(const epx_ragged_call_t *call, void *to, const void *from, size_t bytes)
{
    return epx_fetch(&call->ragged->base, to, from, bytes, call->stream);
}

static epx_status_t fetch_found(const epx_ragged_call_t *call, found_t *found_p)
{
    int64_t bad[2] = {-1, -1};
    epx_status_t status = fetch(call, bad, bad_of(call), sizeof(bad));
    *found_p = (found_t){.g = bad[0], .of = bad[1]};
    return status;
}

static epx_status_t find_poison(const epx_ragged_call_t *call, epx_k_rows_t rows, const void *src,
                                int64_t bytes, found_t *found_p)
{
    epx_k_find_poison_t args = {
        .rows = rows, .src = src, .stride = bytes, .bytes = bytes, .bad = bad_of(call)};
    epx_status_t status = call->kernels->find_poison(&args, call->stream);
    return status == EPX_OK ? fetch_found(call, found_p) : status;
}

/* With EPX_CHECK=full: a row whose checksum is not the one that travelled beside it. */
static epx_status_t find_changed(const epx_ragged_call_t *call, epx_k_rows_t rows, const void *src,
                                 const void *sums, found_t *found_p)
{
    *found_p = (found_t){.g = -1, .of = -1};
    if (call->shape->check != EPX_CHECK_FULL)
        return EPX_OK;
    epx_k_verify_t args = {.rows = rows,
                           .src = src,
                           .stride = call->shape->row_bytes,
                           .bytes = call->shape->row_bytes,
                           .sum = sums,
                           .bad = bad_of(call)};
    epx_status_t status = call->kernels->verify(&args, call->stream);
    return status == EPX_OK ? fetch_found(call, found_p) : status;
}

/* ---- naming ----------------------------------------------------------------------------------------------------- */

/* Entry i of a table of runs in the plan; an empty run where it cannot be read. */
static epx_run_t run_at(const epx_ragged_call_t *call, int64_t area, int64_t i)
{
    epx_run_t run = {0};
    fetch(call, &run, (const epx_run_t *)epx_ragged_plan_at(call, area) + i, sizeof(run));
    return run;
}

/* Entry i of an int32 table; -1 where it cannot be read. */
static int32_t int_at(const epx_ragged_call_t *call, const void *table, int64_t i)
{
    int32_t value = -1;
    fetch(call, &value, (const int32_t *)table + i, sizeof(value));
    return value;
}

static int64_t long_at(const epx_ragged_call_t *call, const int64_t *table, int64_t i)
{
    int64_t value = 0;
    fetch(call, &value, table + i, sizeof(value));
    return value;
}

/* Who sent place g of local expert l in this wave. */
static int32_t sender_of(const epx_ragged_call_t *call, int64_t g, int64_t l)
{
    const epx_shape_t *shape = call->shape;
    const int32_t *order = call->ragged->order.expert +
                           call->ragged->order.first[(int64_t)call->wave * shape->ranks + shape->rank];
    int32_t first = call->ragged->local_first[call->wave],
            entries = call->ragged->local_first[call->wave + 1] - first;

    for (int32_t i = 0; i < entries; i++)
        if (shape->real.local[order[i]] == l)
            for (int32_t s = 0; s < shape->ranks; s++) {
                epx_run_t run = run_at(call, call->ragged->areas.plan.return_runs,
                                       (int64_t)(first + i) * shape->ranks + s);
                if (g >= run.first && g < run.first + run.rows)
                    return s;
            }
    return -1;
}

static int32_t expert_id(const epx_ragged_call_t *call, int64_t local)
{
    return call->shape->real.expert[call->shape->real.first[call->shape->rank] + local];
}

/* The local expert that place g belongs to, or -1. */
static int64_t local_of(const epx_ragged_call_t *call, int64_t g)
{
    epx_k_rows_t rows = epx_ragged_batch_rows(call);
    for (int32_t l = 0; l < rows.experts; l++) {
        int64_t start = long_at(call, rows.start, l);
        if (g >= start && g < start + long_at(call, rows.count, l))
            return l;
    }
    return -1;
}

/* The expert, token and k behind return row `row` of this wave; on the rank wire its first one. */
static void name_return(const epx_ragged_call_t *call, int64_t row, int64_t d, int32_t *expert_p,
                        int64_t *a_p)
{
    const epx_ragged_areas_t *areas = &call->ragged->areas;
    const epx_ragged_order_t *order = &call->ragged->order;
    int64_t q = (int64_t)call->wave * call->shape->ranks + d;
    int32_t token =
        areas->rank_wire ? int_at(call, epx_ragged_plan_at(call, areas->plan.wire_token), row) : -1;

    *a_p = -1;
    for (int32_t i = order->first[q]; i < order->first[q + 1]; i++) {
        epx_run_t run = run_at(call, areas->plan.send_runs, i);
        for (int64_t r = run.first; r < run.first + run.rows; r++) {
            int32_t a = int_at(call, epx_ragged_plan_at(call, areas->plan.send), r);
            if (areas->rank_wire ? a / call->shape->top_k == token : r == row) {
                *expert_p = order->expert[i];
                *a_p = a;
                return;
            }
        }
    }
}

static const char *const lost =
    "was not written: the exchange left it out; epx_group_recover, or try another fabric";
static const char *const changed =
    "changed on its way: the exchange broke it; epx_group_recover, or try another fabric";

static epx_status_t corrupt_place(const epx_ragged_call_t *call, const char *part, found_t found,
                                  const char *how)
{
    const epx_transport_env_t *env = &call->ragged->base.env;
    return env->services->fail(
        EPX_ERR_CORRUPT, "%s: rank %d, %s, wave %d: %s of row %" PRId64 " of expert %d from rank %d %s",
        env->group_name, call->shape->rank, epx_move_name(call->move), call->wave, part, found.g,
        expert_id(call, found.of), sender_of(call, found.g, found.of), how);
}

/* A wire row belongs to several experts; the first place on its list says one, where the lists are whole. */
static epx_status_t corrupt_wire(const epx_ragged_call_t *call, const char *part, found_t found,
                                 int lists_are_whole, const char *how)
{
    const epx_transport_env_t *env = &call->ragged->base.env;
    int64_t local = -1;
    if (lists_are_whole) {
        int32_t entry = int_at(call, epx_ragged_slot_at(call, call->slot->first), found.g);
        local = local_of(call, int_at(call, epx_ragged_slot_at(call, call->slot->list), entry));
    }
    return env->services->fail(
        EPX_ERR_CORRUPT, "%s: rank %d, %s, wave %d: %s of wire row %" PRId64 " (expert %d) from rank %d %s",
        env->group_name, call->shape->rank, epx_move_name(call->move), call->wave, part, found.g,
        local >= 0 ? expert_id(call, local) : -1, (int32_t)found.of, how);
}

/* ---- what arrived ----------------------------------------------------------------------------------------------- */

/* Heads first, then the lists whose extent they give, then the places, then rows. */
static epx_status_t check_wire(const epx_ragged_call_t *call)
{
    const epx_ragged_areas_t *areas = &call->ragged->areas;
    const int64_t *span = (const int64_t *)(void *)(call->scratch + areas->scratch.span);
    const int64_t *start = epx_ragged_pairs(call, areas->plan.wire_start);
    epx_k_rows_t heads = {.start = span, .count = span + 1, .experts = 1};
    epx_k_rows_t rows = {.start = start, .experts = call->shape->ranks}, lists = rows;
    rows.count = (const int64_t *)(void *)epx_ragged_slot_at(call, call->slot->head);
    lists.count = epx_ragged_pairs(call, areas->plan.wire_room);
    struct {
        const char *name;
        epx_k_rows_t rows;
        int64_t area, bytes;
    } part[] = {{"the number of rows", heads, call->slot->head, sizeof(int64_t)},
                {"the list", rows, call->slot->first, sizeof(int32_t)},
                {"the list's length", rows, call->slot->count, sizeof(int32_t)},
                {"an entry", lists, call->slot->list, sizeof(int32_t)},
                {"the bytes", rows, call->slot->rows, call->shape->row_bytes}};
    found_t found;
    for (int32_t i = 0; i < 5; i++) {
        epx_status_t status =
            find_poison(call, part[i].rows, epx_ragged_slot_at(call, part[i].area), part[i].bytes, &found);
        if (status != EPX_OK)
            return status;
        if (found.g >= 0) {
            if (i == 0)
                found.of = found.g; /* heads stand by sender */
            return corrupt_wire(call, part[i].name, found, i == 4, lost);
        }
    }
    epx_status_t status = find_changed(call, rows, epx_ragged_slot_at(call, call->slot->rows),
                                       epx_ragged_slot_at(call, call->slot->sums), &found);
    return status == EPX_OK && found.g >= 0 ? corrupt_wire(call, "the bytes", found, 1, changed) : status;
}

epx_status_t epx_ragged_check_arrived(const epx_ragged_call_t *call)
{
    if (!epx_ragged_is_checked(call))
        return EPX_OK;
    epx_k_rows_t rows = epx_ragged_batch_rows(call);
    found_t found;
    int wire = call->ragged->areas.rank_wire;
    int64_t area = wire ? call->slot->index : call->slot->rows,
            bytes = wire ? (int64_t)sizeof(int32_t) : call->shape->row_bytes;
    epx_status_t status = find_poison(call, rows, epx_ragged_slot_at(call, area), bytes, &found);
    if (status != EPX_OK)
        return status;
    if (found.g >= 0)
        return corrupt_place(call, wire ? "the index" : "the bytes", found, lost);
    if (wire)
        return check_wire(call);
    status = find_changed(call, rows, epx_ragged_slot_at(call, call->slot->rows),
                          epx_ragged_slot_at(call, call->slot->sums), &found);
    return status == EPX_OK && found.g >= 0 ? corrupt_place(call, "the bytes", found, changed) : status;
}

epx_status_t epx_ragged_check_caller(const epx_ragged_call_t *call, const void *y, const char *name)
{
    if (!epx_ragged_is_checked(call))
        return EPX_OK;
    const epx_transport_env_t *env = &call->ragged->base.env;
    found_t found;
    epx_status_t status = find_poison(call, epx_ragged_batch_rows(call), y, call->shape->row_bytes, &found);
    if (status != EPX_OK || found.g < 0)
        return status;
    return env->services->fail(EPX_ERR_CORRUPT,
                               "%s: rank %d, %s, wave %d: row %" PRId64
                               " of %s, of expert %d for rank %d, was not written: the "
                               "caller's computation left it out; mend it, then epx_group_recover",
                               env->group_name, call->shape->rank, epx_move_name(call->move), call->wave,
                               found.g, name, expert_id(call, found.of), sender_of(call, found.g, found.of));
}

epx_status_t epx_ragged_check_home(const epx_ragged_call_t *call)
{
    if (!epx_ragged_is_checked(call))
        return EPX_OK;
    const epx_ragged_areas_t *areas = &call->ragged->areas;
    const epx_transport_env_t *env = &call->ragged->base.env;
    const char *returns = (const char *)env->segment.base + call->return_offset, *how = lost;
    epx_k_rows_t rows = {.start = epx_ragged_pairs(call, areas->plan.home_start),
                         .count = epx_ragged_pairs(call, areas->plan.home_count),
                         .experts = call->shape->ranks};
    found_t found;
    epx_status_t status = find_poison(call, rows, returns, call->shape->row_bytes, &found);
    if (status == EPX_OK && found.g < 0) {
        how = changed;
        status = find_changed(call, rows, returns, returns + areas->return_sums, &found);
    }
    if (status != EPX_OK || found.g < 0)
        return status;

    int32_t expert = -1;
    int64_t a = -1;
    name_return(call, found.g, found.of, &expert, &a);
    return env->services->fail(EPX_ERR_CORRUPT,
                               "%s: rank %d, %s, wave %d: row %" PRId64
                               " of expert %d from rank %d (token %" PRId64 ", k %" PRId64 ") %s",
                               env->group_name, call->shape->rank, epx_move_name(call->move), call->wave,
                               found.g, expert, (int32_t)found.of, a / call->shape->top_k,
                               a % call->shape->top_k, how);
}
