/* The table of `ragged`: whether it can, what it takes, open, dump. SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ragged/internal.h"
#include "ragged/ragged.h"
#include "transport/accept.h"

/* Fills the order of a pass into the tables behind the struct. */
static void set_order(epx_ragged_t *ragged, const epx_shape_t *shape, int32_t *tables)
{
    int32_t chunks = ragged->areas.chunks, entries = 0;
    int32_t *expert = tables, *wave = expert + shape->experts, *at = wave + shape->experts;
    int32_t *first = at + shape->experts, *local_first = first + (int64_t)chunks * shape->ranks + 1;

    for (int32_t e = 0; e < shape->experts; e++) {
        int32_t v = shape->virt.owner[e];
        wave[e] = epx_block_of(shape->virt.local[e], shape->virt.first[v + 1] - shape->virt.first[v], chunks);
    }
    local_first[0] = 0;
    for (int32_t c = 0; c < chunks; c++) {
        for (int32_t d = 0; d < shape->ranks; d++) {
            int64_t q = (int64_t)c * shape->ranks + d;
            first[q] = entries;
            for (int32_t i = shape->real.first[d]; i < shape->real.first[d + 1]; i++)
                if (wave[shape->real.expert[i]] == c) {
                    at[shape->real.expert[i]] = entries;
                    expert[entries++] = shape->real.expert[i];
                }
            if (d == shape->rank)
                local_first[c + 1] = local_first[c] + entries - first[q];
        }
    }
    first[(int64_t)chunks * shape->ranks] = entries;
    ragged->order =
        (epx_ragged_order_t){.chunks = chunks, .expert = expert, .first = first, .wave = wave, .at = at};
    ragged->local_first = local_first;
}

/*
 * Behind the struct, host memory: the tables of the order; staged, the pieces of a post, two blocks of runs
 * and everybody's wire rows.
 */
typedef struct behind {
    int64_t tables, send, receive, made, wire_rows, bytes;
} behind_t;

static behind_t lay_behind(const epx_shape_t *shape, const epx_ragged_areas_t *areas)
{
    behind_t behind = {.bytes = (int64_t)sizeof(epx_ragged_t)};
    int64_t *end = &behind.bytes, staged = areas->staging.bytes > 0;
    int64_t pairs = staged && areas->rank_wire ? (int64_t)areas->chunks * shape->ranks : 0;
    int64_t entries = epx_ragged_order_entries(shape, areas->chunks) + areas->chunks + 1;
    behind.tables = *end;
    *end += epx_round_up(entries * (int64_t)sizeof(int32_t), (int64_t)sizeof(int64_t));
    behind.send = *end;
    *end += epx_ragged_sends_max(shape, areas) * (int64_t)sizeof(epx_piece_t);
    behind.receive = *end;
    *end += epx_ragged_receives_max(shape, areas) * (int64_t)sizeof(epx_piece_t);
    behind.made = *end;
    *end += staged * 2 * areas->plan.runs_bytes;
    behind.wire_rows = *end;
    *end += pairs * shape->ranks * (int64_t)sizeof(int64_t);
    return behind;
}

static int64_t transport_bytes(const epx_shape_t *shape, const epx_ragged_areas_t *areas)
{
    return lay_behind(shape, areas).bytes;
}

/* Staged, kernels store into this rank's segment alone. */
static epx_status_t set_destinations(epx_ragged_t *ragged)
{
    const epx_transport_env_t *env = &ragged->base.env;
    char *behind = (char *)ragged;
    ragged->destinations = env->segment.peer_ptr;
    if (!epx_is_staged(env->fabric->caps))
        return EPX_OK;
    behind_t at = lay_behind(env->shape, &ragged->areas);
    ragged->send = (epx_piece_t *)(void *)(behind + at.send);
    ragged->receive = (epx_piece_t *)(void *)(behind + at.receive);
    ragged->made = (epx_run_t *)(void *)(behind + at.made);
    ragged->wire_rows = (int64_t *)(void *)(behind + at.wire_rows);
    void *table =
        (char *)env->scratch + env->shape->lanes * ragged->areas.scratch.bytes + ragged->areas.destinations;
    ragged->destinations = table;
    return epx_staged_table(env, table, env->segment.base, env->segment.base);
}

/* What the layout kernel reads, in device memory. */
static epx_status_t copy_tables(epx_ragged_t *ragged)
{
    const epx_transport_env_t *env = &ragged->base.env;
    const epx_ragged_areas_t *areas = &ragged->areas;
    char *tables = (char *)env->scratch + env->shape->lanes * areas->scratch.bytes;
    int32_t *order = (int32_t *)(tables + areas->order_tables), *host = (int32_t *)(ragged + 1);
    int64_t entries = epx_ragged_order_entries(env->shape, areas->chunks);
    ragged->device_order = (epx_ragged_order_t){.chunks = areas->chunks,
                                                .expert = order + (ragged->order.expert - host),
                                                .first = order + (ragged->order.first - host),
                                                .wave = order + (ragged->order.wave - host),
                                                .at = order + (ragged->order.at - host)};
    epx_status_t status = env->device->copy(order, host, (size_t)entries * sizeof(*order), NULL);
    if (status != EPX_OK)
        return status;
    return epx_shape_tables_copy(env, tables + areas->owner_tables, &ragged->device_shape);
}

static void log_choice(const epx_ragged_t *ragged)
{
    const epx_transport_env_t *env = &ragged->base.env;
    const epx_shape_t *shape = env->shape;
    if (shape->rank != 0)
        return;
    const char *wire = ragged->areas.rank_wire ? "rank" : "assignment";
    if (shape->wire == EPX_WIRE_ASSIGNMENT || shape->wire == EPX_WIRE_RANK || ragged->areas.indexed) {
        env->services->log(
            2, "ragged", "%s: EPX_WIRE=%s%s", env->group_name, wire,
            shape->wire == EPX_WIRE_RANK || !ragged->areas.indexed ? "" : ", which EPX_BATCH=indexed needs");
        return;
    }
    epx_ragged_times_t times = epx_ragged_predict(shape, env->fabric->caps);
    env->services->log(
        2, "ragged",
        "%s: EPX_WIRE=auto takes %s: predicted %.1f rows per token through memory for assignment, %.1f for "
        "rank (a row on the link costs %.1f, %.1f wire rows per token)",
        env->group_name, wire, times.assignment, times.rank, times.link_cost, times.wire_rows);
}

/* Words of parts and of streams, which are compared with epochs. */
static epx_status_t clear_words(const epx_ragged_t *ragged)
{
    const epx_transport_env_t *env = &ragged->base.env;
    const epx_ragged_slot_t *slot = &ragged->areas.forward;
    epx_status_t status = EPX_OK;
    for (int64_t i = 0; i < (int64_t)env->shape->lanes * env->shape->depth && status == EPX_OK; i++)
        status =
            env->device->fill((char *)env->segment.base + ragged->areas.slots + i * slot->bytes + slot->words,
                              0, (size_t)(slot->counters - slot->words), NULL);
    for (int32_t lane = 0; lane < env->shape->lanes && status == EPX_OK; lane++) {
        int64_t at = ragged->areas.returns + lane * ragged->areas.return_bytes + ragged->areas.return_words;
        status = env->device->fill((char *)env->segment.base + at, 0,
                                   (size_t)(ragged->areas.return_bytes - ragged->areas.return_words), NULL);
    }
    return status;
}

/* Constants of the scratch, and the first canaries: no peer writes before its first route has met this
 * rank's. */
static epx_status_t fill_at_open(epx_ragged_t *ragged)
{
    const epx_transport_env_t *env = &ragged->base.env;
    const epx_ragged_scratch_t *scratch = &ragged->areas.scratch;
    const int64_t span[2] = {0, env->shape->ranks};
    for (int32_t lane = 0; lane < env->shape->lanes; lane++) {
        char *mine = (char *)env->scratch + lane * scratch->bytes;
        epx_status_t status =
            env->device->fill(mine + scratch->zero, 0, (size_t)epx_ragged_zeros(env->shape), NULL);
        if (status == EPX_OK)
            status = env->device->copy(mine + scratch->span, span, sizeof(span), NULL);
        if (status == EPX_OK)
            status = env->device->fill(mine + scratch->room, 0, (size_t)scratch->room_words * 8, NULL);
        if (status == EPX_OK)
            status = env->device->fill(mine + scratch->turns, 0,
                                       (size_t)epx_ragged_turn_words(env->shape) * sizeof(uint64_t), NULL);
        if (status != EPX_OK)
            return status;
    }
    epx_status_t status =
        epx_canary_fill(&ragged->base, env->segment.base, ragged->areas.segment_bytes, NULL);
    return status == EPX_OK ? clear_words(ragged) : status;
}

static epx_status_t ragged_open(const epx_transport_env_t *env, void *memory, epx_transport_t **transport_p)
{
    epx_ragged_t *ragged = memory;
    epx_status_t status = epx_ragged_lay_out(env->shape, env->fabric->caps, env->services, &ragged->areas);
    if (status != EPX_OK)
        return status;
    ragged->base = (epx_transport_t){.ops = &epx_transport_ragged, .env = *env};
    set_order(ragged, env->shape, (int32_t *)(ragged + 1));
    status = copy_tables(ragged);
    if (status == EPX_OK)
        status = set_destinations(ragged);
    if (status == EPX_OK)
        status = fill_at_open(ragged);
    if (status == EPX_OK)
        status = env->device->synchronize(NULL);
    if (status != EPX_OK)
        return status;
    log_choice(ragged);
    *transport_p = &ragged->base;
    return EPX_OK;
}

static void ragged_close(epx_transport_t *transport) { (void)transport; }

static void ragged_dump(epx_transport_t *transport, void (*line)(void *context, const char *text),
                        void *context)
{
    const epx_ragged_areas_t *areas = &((const epx_ragged_t *)transport)->areas;
    char text[160];
    snprintf(text, sizeof(text),
             "ragged: %d chunks, wire %s, batch %s, %" PRId64 " rows, %" PRId64 " return rows per lane",
             areas->chunks, areas->rank_wire ? "rank" : "assignment", areas->indexed ? "indexed" : "expanded",
             areas->rows_max, areas->assignments);
    line(context, text);
}

int epx_ragged_probe(const epx_shape_t *shape, uint32_t fabric_caps, char *reason, size_t reason_bytes)
{
    const char *why = NULL;
    (void)fabric_caps;
    if (shape->overflow != EPX_OVERFLOW_DEFAULT)
        why = "EPX_OVERFLOW has no meaning: nothing overflows at a sender, drops are decided from all "
              "counts; unset it";
    else if (shape->sender_factor > 0)
        why = "EPX_SENDER_FACTOR has no meaning: a sender has no capacity of its own; unset it";
    else if (shape->columns != shape->top_k)
        why = "spill choices have no meaning: nothing is refused that could take another choice";
    else if (shape->batch == EPX_BATCH_INDEXED && shape->wire == EPX_WIRE_ASSIGNMENT)
        why =
            "EPX_BATCH=indexed needs EPX_WIRE=rank: on the assignment wire every row has a place of its own";
    snprintf(reason, reason_bytes, "%s", why != NULL ? why : "");
    return why != NULL ? 0 : 60;
}

epx_status_t epx_ragged_query(const epx_shape_t *shape, uint32_t fabric_caps, const epx_services_t *services,
                              epx_sizes_t *sizes_p)
{
    epx_ragged_areas_t areas;
    epx_status_t status = epx_ragged_lay_out(shape, fabric_caps, services, &areas);
    if (status != EPX_OK)
        return status;
    int64_t pairs = areas.rank_wire ? (int64_t)areas.chunks * shape->ranks : 0;
    int64_t wire_rows = areas.staging.bytes > 0 ? pairs * (int64_t)sizeof(int64_t) : 0;
    *sizes_p =
        (epx_sizes_t){.segment_bytes = areas.segment_bytes,
                      .staging_bytes = areas.staging.bytes,
                      .scratch_bytes = areas.scratch_bytes,
                      .batch_bytes = areas.batch_bytes,
                      .state_bytes = transport_bytes(shape, &areas),
                      .plan_bytes = areas.plan.bytes,
                      .plan_state_bytes = epx_ragged_state_bytes(shape, &areas),
                      .report_bytes = epx_ragged_report_bytes(shape, &areas),
                      .exchange_bytes = wire_rows > areas.notice_bytes ? wire_rows : areas.notice_bytes,
                      .channels = epx_move_channels(shape),
                      .waves = areas.chunks,
                      .ids_first = 1,
                      .batch_rows_max = areas.rows_max,
                      .wire = areas.rank_wire ? EPX_WIRE_RANK : EPX_WIRE_ASSIGNMENT};
    return EPX_OK;
}

const epx_transport_ops_t epx_transport_ragged = {
    .abi = EPX_ABI,
    .ops_bytes = sizeof(epx_transport_ops_t),
    .name = "ragged",
    .summary = "counts first, drops before anything moves, exact puts",
    .probe = epx_ragged_probe,
    .query = epx_ragged_query,
    .open = ragged_open,
    .close = ragged_close,
    .route = epx_ragged_route,
    .dispatch_start = epx_ragged_dispatch_start,
    .dispatch_finish = epx_ragged_dispatch_finish,
    .combine_start = epx_ragged_combine_start,
    .combine_finish = epx_ragged_combine_finish,
    .combine_backward_start = epx_ragged_combine_backward_start,
    .combine_backward_finish = epx_ragged_combine_backward_finish,
    .dispatch_backward_start = epx_ragged_dispatch_backward_start,
    .dispatch_backward_finish = epx_ragged_dispatch_backward_finish,
    .account = epx_ragged_account,
    .dump = ragged_dump,
};
