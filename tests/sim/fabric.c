/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/fabric.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/host/host.h"
#include "device/registry.h"
#include "fabric/local/local.h"
#include "fabric/registry.h"
#include "sim/internal.h"

const char *const sim_mutant_names[SIM_MUTANTS] = {
    "faithful",   "missing fence", "missing signal", "late reset", "counter",
    "off by one", "no credit",     "local",          "pieces",     "pieces without fence"};

sim_mutant_t sim_mutant;
sim_fabric_t *sim_fabrics;

void *sim_take(size_t count, size_t bytes)
{
    void *memory = calloc(count + 1, bytes);
    if (memory == NULL)
        abort();
    return memory;
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

static int sim_probe(const epx_device_ops_t *device, char *reason, size_t reason_bytes)
{
    (void)device;
    snprintf(reason, reason_bytes, "%s", "");
    return 60;
}

static int64_t sim_memory(const epx_fabric_config_t *config, int32_t ranks, int64_t *device_bytes_p)
{
    (void)config, (void)ranks;
    *device_bytes_p = 0;
    return 0;
}

/* The table in use: with or without loads and stores. */
static const epx_fabric_ops_t *ops_now(void)
{
    static epx_fabric_ops_t ops;
    ops = sim_fabric_ops;
    if (sim_mutant == SIM_PIECES || sim_mutant == SIM_PIECES_NO_FENCE)
        ops.caps = (ops.caps & ~(uint32_t)EPX_FABRIC_LOADSTORE) | EPX_FABRIC_READS_SOURCES;
    return &ops;
}

static epx_status_t sim_open(const epx_fabric_config_t *config, epx_fabric_t **fabric_p)
{
    int ranks = config->bootstrap.size;
    sim_fabric_t *fabric = sim_take(1, sizeof(*fabric)), **all = sim_take((size_t)ranks, sizeof(*all));
    fabric->base = (epx_fabric_t){
        .ops = ops_now(), .rank = config->bootstrap.rank, .ranks = ranks, .caps = ops_now()->caps};
    fabric->config = *config;
    fabric->allocator = *config->allocator;
    fabric->word = sim_take((size_t)config->channels * (size_t)ranks, sizeof(uint64_t));
    fabric->failure = sim_take((size_t)config->failure_channels * (size_t)ranks, sizeof(uint64_t));
    fabric->counted = sim_take((size_t)config->channels, sizeof(uint64_t));
    fabric->last_waited = sim_take((size_t)config->channels, sizeof(uint64_t));
    fabric->step = sim_take((size_t)config->exchange_channels, sizeof(uint64_t));
    fabric->table = sim_take((size_t)ranks, sizeof(void *));
    fabric->window = sim_take((size_t)ranks, sizeof(void *));
    fabric->shadow = sim_take((size_t)ranks, sizeof(void *));
    fabric->alive = sim_take((size_t)ranks, sizeof(int32_t));
    if (fabric->base.rank == 0) {
        hub_t *hub = sim_take(1, sizeof(*hub));
        *hub = (hub_t){.ranks = ranks, .references = ranks};
        hub->last = &hub->first;
        hub->gathered = sim_take((size_t)ranks, sizeof(uint64_t));
        for (int i = 0; i < 2; i++)
            hub->gather[i] = sim_take((size_t)ranks, SIM_GATHER_BYTES);
        fabric->hub = hub;
    }
    if (config->bootstrap.allgather(config->bootstrap.context, &fabric, all, sizeof(fabric)) != 0)
        abort();
    fabric->hub = all[0]->hub;
    if (fabric->base.rank == 0)
        fabric->hub->member = all;
    else
        free(all);
    /* Nobody sends before everybody can be reached. */
    all = sim_take((size_t)ranks, sizeof(*all));
    if (config->bootstrap.allgather(config->bootstrap.context, &fabric, all, sizeof(fabric)) != 0)
        abort();
    free(all);
    fabric->next = sim_fabrics;
    sim_fabrics = fabric;
    sim_set_wire(&sim_messages);
    *fabric_p = &fabric->base;
    return EPX_OK;
}

static void free_fabric(sim_fabric_t *fabric)
{
    sim_fabric_t **link = &sim_fabrics;
    while (*link != fabric)
        link = &(*link)->next;
    *link = fabric->next;
    for (int p = 0; p < fabric->base.ranks; p++) {
        free(fabric->window[p]);
        free(fabric->shadow[p]);
    }
    while (fabric->blocks != NULL) {
        message_t *message = fabric->blocks;
        fabric->blocks = message->next;
        free(message);
    }
    if (fabric->segment != NULL)
        fabric->allocator.release(fabric->allocator.context, fabric->segment, fabric->segment_bytes, 1);
    void *parts[] = {fabric->word,  fabric->failure, fabric->counted, fabric->last_waited, fabric->step,
                     fabric->table, fabric->window,  fabric->shadow,  fabric->alive};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        free(parts[i]);
    free(fabric);
}

static void free_hub(hub_t *hub)
{
    sim_fabric_t **member = hub->member;
    for (int r = 0; r < hub->ranks; r++)
        free_fabric(member[r]);
    while (hub->first != NULL) {
        message_t *message = hub->first;
        hub->first = message->next;
        free(message);
    }
    free(member);
    free(hub->gathered);
    free(hub->gather[0]);
    free(hub->gather[1]);
    free(hub);
}

static void sim_close(epx_fabric_t **fabric_p)
{
    sim_fabric_t *fabric = (sim_fabric_t *)*fabric_p;
    *fabric_p = NULL;
    if (fabric != NULL && --fabric->hub->references == 0)
        free_hub(fabric->hub);
}

/* Ends what a run has left open when it did not come to its end. */
static void close_all(void)
{
    while (sim_fabrics != NULL)
        free_hub(sim_fabrics->hub);
}

static int all_registered(void *context)
{
    const hub_t *hub = context;
    for (int r = 0; r < hub->ranks; r++)
        if (!hub->member[r]->registered)
            return 0;
    return 1;
}

static epx_status_t sim_segment_open(epx_fabric_t *base, void *memory, size_t bytes, epx_segment_t *segment_p)
{
    sim_fabric_t *fabric = (sim_fabric_t *)base;
    fabric->segment = memory;
    fabric->segment_bytes = bytes;
    for (int p = 0; p < base->ranks; p++) {
        fabric->table[p] = memory;
        if (p == base->rank || (base->caps & EPX_FABRIC_LOADSTORE) == 0)
            continue;
        fabric->window[p] = sim_take(1, bytes);
        fabric->shadow[p] = sim_take(1, bytes);
        fabric->table[p] = fabric->window[p];
    }
    fabric->registered = 1;
    sim_wait(all_registered, fabric->hub, INT64_MAX);
    *segment_p = (epx_segment_t){.base = memory, .bytes = bytes};
    if ((base->caps & EPX_FABRIC_LOADSTORE) != 0)
        segment_p->peer_ptr = fabric->table;
    return EPX_OK;
}

/* ---- words ------------------------------------------------------------------------------------------------------ */

static uint64_t epoch_value(epx_epoch_t epoch) { return (epoch.base != NULL ? *epoch.base : 0) + epoch.add; }

static epx_status_t sim_post(epx_fabric_t *base, const epx_post_t *post, epx_stream_t stream)
{
    sim_fabric_t *fabric = (sim_fabric_t *)base;
    uint64_t epoch = epoch_value(post->epoch);
    (void)stream;
    sim_flush(fabric);
    for (int i = 0; i < post->send_count; i++) {
        const epx_piece_t *piece = &post->sends[i];
        uint8_t *from = (uint8_t *)post->segment->base + piece->local;
        epx_piece_source_t *source = post->source;
        if (source != NULL && piece->local >= source->local &&
            piece->local + piece->bytes <= source->local + source->bytes &&
            source->read(source, piece->local, piece->bytes, from) != EPX_OK)
            return EPX_ERR_FATAL;
        if (piece->peer == base->rank)
            memmove((uint8_t *)fabric->segment + piece->remote, from, (size_t)piece->bytes);
        else
            sim_send_range(fabric, piece->peer, (size_t)piece->remote, from, (size_t)piece->bytes);
    }
    int forgotten =
        sim_mutant == SIM_NO_SIGNAL && sim_dice(12) == 0 ? (int)sim_dice((uint64_t)base->ranks) : -1;
    for (int p = 0; p < base->ranks; p++) {
        if ((post->peer != EPX_ALL_PEERS && post->peer != p) || p == forgotten)
            continue;
        if (p == base->rank) {
            fabric->word[post->channel * base->ranks + p] = epoch;
            fabric->counted[post->channel]++;
            continue;
        }
        message_t *message = sim_send(fabric, p, WORD, 0);
        message->channel = post->channel;
        message->value = epoch;
    }
    sim_note(epoch);
    sim_turn();
    return EPX_OK;
}

static epx_status_t sim_post_failure(epx_fabric_t *base, int32_t channel, epx_epoch_t epoch,
                                     epx_stream_t stream)
{
    sim_fabric_t *fabric = (sim_fabric_t *)base;
    (void)stream;
    for (int p = 0; p < base->ranks; p++) {
        if (p == base->rank) {
            fabric->failure[channel * base->ranks + p] = epoch_value(epoch);
            continue;
        }
        message_t *message = sim_send(fabric, p, FAILURE, 0);
        message->channel = channel;
        message->value = epoch_value(epoch);
    }
    sim_turn();
    return EPX_OK;
}

typedef struct look {
    sim_fabric_t *fabric;
    uint64_t arrivals;
    int ignores_abort;
} look_t;

static int something_new(void *context)
{
    const look_t *look = context;
    return look->fabric->arrivals != look->arrivals ||
           (!look->ignores_abort && look->fabric->hub->abort != 0);
}

/* A look that failed: sleeps until something arrives. As in local. */
static epx_status_t pause_look(look_t *look, int64_t deadline_ns, int32_t *culprit_p)
{
    uint64_t ended = look->ignores_abort ? 0 : look->fabric->hub->abort;
    if (ended != 0) {
        *culprit_p = (int32_t)(ended >> 32) - 1;
        return *culprit_p == look->fabric->base.rank ? EPX_ERR_ABORTED : EPX_ERR_PEER;
    }
    if (sim_now_ns() >= deadline_ns)
        return EPX_ERR_TIMEOUT;
    sim_wait(something_new, look, deadline_ns);
    return EPX_OK;
}

static int has_come(sim_fabric_t *fabric, const epx_wait_t *wait, uint64_t expected, int peer)
{
    uint64_t word = fabric->word[wait->channel * fabric->base.ranks + peer];
    if (sim_mutant == SIM_NO_CREDIT && wait->mode == EPX_WAIT_AT_LEAST)
        return 1;
    if (sim_mutant == SIM_OFF_BY_ONE && word == fabric->last_waited[wait->channel])
        return 1;
    return wait->mode == EPX_WAIT_EQUAL ? word == expected : word >= expected;
}

static int find_failure(const sim_fabric_t *fabric, const epx_wait_t *wait, uint64_t *value_p)
{
    for (int i = 0; i < wait->watches; i++) {
        for (int p = 0; p < fabric->base.ranks; p++) {
            uint64_t value = epoch_value(wait->watch[i].epoch);
            if (fabric->failure[wait->watch[i].channel * fabric->base.ranks + p] == value) {
                *value_p = value;
                return p;
            }
        }
    }
    return -1;
}

static epx_status_t wait_for(sim_fabric_t *fabric, const epx_wait_t *wait, int peer, int64_t deadline_ns,
                             epx_wait_result_t *result)
{
    for (;;) {
        look_t look = {.fabric = fabric, .arrivals = fabric->arrivals};
        if (has_come(fabric, wait, result->expected, peer))
            return EPX_OK;
        result->peer = peer;
        result->seen = fabric->word[wait->channel * fabric->base.ranks + peer];
        int failed = find_failure(fabric, wait, &result->failure);
        if (failed >= 0) {
            result->peer = failed;
            return EPX_ERR_PEER;
        }
        int32_t culprit = peer;
        epx_status_t status = pause_look(&look, deadline_ns, &culprit);
        if (status != EPX_OK) {
            result->peer = culprit;
            return status;
        }
    }
}

/* The sim_mutant that sums over peers: as many arrivals as this many uses of the channel bring. */
static epx_status_t wait_by_count(sim_fabric_t *fabric, const epx_wait_t *wait, int64_t deadline_ns,
                                  epx_wait_result_t *result)
{
    uint64_t wanted = (fabric->last_waited[wait->channel] += (uint64_t)fabric->base.ranks);
    int32_t culprit = 0;
    epx_status_t status = EPX_OK;
    while (fabric->counted[wait->channel] < wanted && status == EPX_OK) {
        look_t look = {.fabric = fabric, .arrivals = fabric->arrivals};
        status = pause_look(&look, deadline_ns, &culprit);
    }
    result->peer = culprit;
    return status;
}

/* The sim_mutant that clears flags for their next use, in the background. */
static void reset_later(sim_fabric_t *fabric, const epx_wait_t *wait, int peer)
{
    message_t *message = sim_send(fabric, fabric->base.rank, RESET, 0);
    message->from = peer;
    message->channel = wait->channel;
    message->value = 0;
}

static epx_status_t sim_wait_words(epx_fabric_t *base, const epx_wait_t *wait, epx_wait_result_t *result,
                                   epx_stream_t stream)
{
    sim_fabric_t *fabric = (sim_fabric_t *)base;
    int64_t begin = sim_now_ns(), deadline = begin + wait->timeout_ms * 1000000;
    epx_status_t status = EPX_OK;
    (void)stream;
    *result = (epx_wait_result_t){.peer = -1, .expected = epoch_value(wait->epoch)};
    sim_turn();
    if (sim_mutant == SIM_COUNTER && wait->peer == EPX_ALL_PEERS)
        status = wait_by_count(fabric, wait, deadline, result);
    for (int i = 0; i < base->ranks && status == EPX_OK && sim_mutant != SIM_COUNTER; i++) {
        int peer = (base->rank + i) % base->ranks;
        if (wait->peer != EPX_ALL_PEERS && wait->peer != peer)
            continue;
        status = wait_for(fabric, wait, peer, deadline, result);
        if (status == EPX_OK && sim_mutant == SIM_LATE_RESET)
            reset_later(fabric, wait, peer);
    }
    if (sim_mutant == SIM_COUNTER && wait->peer != EPX_ALL_PEERS)
        status = wait_for(fabric, wait, wait->peer, deadline, result);
    else if (sim_mutant != SIM_COUNTER)
        fabric->last_waited[wait->channel] = result->expected;
    result->waited_ns = sim_now_ns() - begin;
    sim_note((uint64_t)(int64_t)status + result->expected);
    sim_turn();
    return status;
}

/* ---- exchange --------------------------------------------------------------------------------------------------- */

static message_t *find_block(const sim_fabric_t *fabric, int channel, int from, uint64_t step)
{
    message_t *message = fabric->blocks;
    while (message != NULL &&
           (message->channel != channel || message->from != from || message->value != step))
        message = message->next;
    return message;
}

static void drop_block(sim_fabric_t *fabric, message_t *block)
{
    message_t **link = &fabric->blocks;
    while (*link != block)
        link = &(*link)->next;
    *link = block->next;
    free(block);
}

static epx_status_t take_block(sim_fabric_t *fabric, const epx_exchange_t *exchange, int from, uint64_t step,
                               int64_t deadline_ns, epx_wait_result_t *result)
{
    for (;;) {
        look_t look = {.fabric = fabric, .arrivals = fabric->arrivals};
        message_t *block = find_block(fabric, exchange->channel, from, step);
        result->peer = from;
        if (block != NULL) {
            int failed = block->failed;
            if (!failed)
                memcpy((uint8_t *)exchange->receive + (size_t)from * exchange->bytes, block->data,
                       exchange->bytes);
            drop_block(fabric, block);
            result->failure = failed ? step : 0;
            return failed ? EPX_ERR_PEER : EPX_OK;
        }
        int32_t culprit = from;
        epx_status_t status = pause_look(&look, deadline_ns, &culprit);
        if (status != EPX_OK) {
            result->peer = culprit;
            return status;
        }
    }
}

static epx_status_t sim_exchange(epx_fabric_t *base, const epx_exchange_t *exchange,
                                 epx_wait_result_t *result, epx_stream_t stream)
{
    sim_fabric_t *fabric = (sim_fabric_t *)base;
    uint64_t step = ++fabric->step[exchange->channel];
    int failed = exchange->send == NULL;
    int64_t begin = sim_now_ns(), deadline = begin + exchange->timeout_ms * 1000000;
    epx_status_t status = EPX_OK, worst = EPX_OK;
    epx_wait_result_t of_worst = {.peer = -1};
    (void)stream;
    *result = (epx_wait_result_t){.peer = -1, .expected = step};
    for (int p = 0; p < base->ranks; p++) {
        if (p == base->rank)
            continue;
        message_t *message = sim_send(fabric, p, BLOCK, failed ? 0 : exchange->bytes);
        message->channel = exchange->channel;
        message->failed = failed;
        message->value = step;
        if (!failed)
            memcpy(message->data, exchange->send, exchange->bytes);
    }
    if (failed)
        return EPX_OK;
    memmove((uint8_t *)exchange->receive + (size_t)base->rank * exchange->bytes, exchange->send,
            exchange->bytes);
    for (int p = 0; p < base->ranks && (status == EPX_OK || status == EPX_ERR_PEER); p++) {
        if (p == base->rank)
            continue;
        status = take_block(fabric, exchange, p, step, deadline, result);
        if (status != EPX_OK && worst == EPX_OK) {
            worst = status;
            of_worst = *result;
            if (result->failure == 0)
                break;
        }
    }
    if (worst != EPX_OK)
        *result = of_worst;
    result->waited_ns = sim_now_ns() - begin;
    return worst;
}

/* ---- the end, and after it -------------------------------------------------------------------------------------- */

static void sim_abort(epx_fabric_t *base, int32_t culprit)
{
    hub_t *hub = ((sim_fabric_t *)base)->hub;
    if (hub->abort == 0)
        hub->abort = (uint64_t)(uint32_t)(base->rank + 1) << 32 | (uint32_t)(culprit + 1);
}

static int32_t sim_aborted(epx_fabric_t *base, int32_t *culprit_p)
{
    uint64_t word = ((sim_fabric_t *)base)->hub->abort;
    if (culprit_p != NULL)
        *culprit_p = (int32_t)(word & 0xffffffffu) - 1;
    return (int32_t)(word >> 32) - 1;
}

static int meeting_over(void *context) { return ((hub_t *)context)->closed; }

typedef struct gather {
    sim_fabric_t *fabric;
    uint64_t number;
} gather_t;

static int all_have_put(void *context)
{
    const gather_t *gather = context;
    const sim_fabric_t *fabric = gather->fabric;
    for (int i = 0; i < fabric->survivors.size; i++)
        if (fabric->hub->gathered[fabric->alive[i]] < gather->number)
            return 0;
    return 1;
}

static int gather_survivors(void *context, const void *send_block, void *receive, size_t bytes)
{
    sim_fabric_t *fabric = context;
    gather_t gather = {fabric, ++fabric->gathers};
    uint8_t *box = fabric->hub->gather[gather.number & 1];
    if (bytes > SIM_GATHER_BYTES)
        abort();
    memcpy(box + (size_t)fabric->base.rank * SIM_GATHER_BYTES, send_block, bytes);
    fabric->hub->gathered[fabric->base.rank] = gather.number;
    sim_wait(all_have_put, &gather, INT64_MAX);
    for (int i = 0; i < fabric->survivors.size; i++)
        memcpy((uint8_t *)receive + (size_t)i * bytes, box + (size_t)fabric->alive[i] * SIM_GATHER_BYTES,
               bytes);
    return 0;
}

static epx_status_t sim_survivors(epx_fabric_t *base, int64_t timeout_ms, uint8_t *alive_p,
                                  epx_bootstrap_t *bootstrap_p)
{
    sim_fabric_t *fabric = (sim_fabric_t *)base;
    hub_t *hub = fabric->hub;
    if (hub->closed)
        return EPX_ERR_PEER;
    fabric->joined = 1;
    if (++hub->joined == hub->ranks)
        hub->closed = 1;
    sim_wait(meeting_over, hub, sim_now_ns() + timeout_ms * 1000000);
    hub->closed = 1;
    for (int r = 0; r < hub->ranks; r++)
        alive_p[r] = (uint8_t)hub->member[r]->joined;
    epx_status_t status = epx_circle_close(base, "simulated", alive_p, fabric->alive, &fabric->survivors);
    if (status == EPX_OK)
        *bootstrap_p = epx_circle_bootstrap(&fabric->survivors, fabric, gather_survivors);
    return status;
}

const epx_fabric_ops_t sim_fabric_ops = {
    .name = "local",
    .caps = EPX_FABRIC_LOADSTORE | EPX_FABRIC_DEVICE_SIZES | EPX_FABRIC_BOUNDED_WAIT |
            EPX_FABRIC_ONE_SIDED_WORDS | EPX_FABRIC_SHARED_ADDRESS,
    .probe = sim_probe,
    .memory = sim_memory,
    .open = sim_open,
    .close = sim_close,
    .segment_open = sim_segment_open,
    .post = sim_post,
    .wait = sim_wait_words,
    .post_failure = sim_post_failure,
    .exchange = sim_exchange,
    .abort = sim_abort,
    .aborted = sim_aborted,
    .survivors = sim_survivors,
};

void sim_fabric_use(sim_mutant_t which)
{
    sim_mutant = which;
    epx_device_stand_in("host", sim_device());
    if (which != SIM_LOCAL)
        epx_fabric_stand_in("local", ops_now());
}

void sim_fabric_leave(void)
{
    close_all();
    epx_device_stand_in("host", &epx_device_host);
    epx_fabric_stand_in("local", &epx_fabric_local);
}
