/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/fabric.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <epx/kernels_ragged.h>

#include "device/host/host.h"
#include "device/registry.h"
#include "fabric/local/local.h"
#include "fabric/registry.h"
#include "sim/fibres.h"

const char *const sim_mutant_names[SIM_MUTANTS] = {"faithful",   "missing fence", "missing signal",
                                                   "late reset", "counter",       "off by one",
                                                   "no credit",  "local"};

typedef enum message_kind { DATA, WORD, RESET, FAILURE, BLOCK } message_kind_t;

typedef struct message {
    struct message *next;
    message_kind_t kind;
    int from, to;
    int64_t ready_ns;
    uint64_t number; /* in order of sending */
    /* DATA: at offset of the segment; BLOCK: of step `value`, channel; failed: it has none */
    size_t offset, bytes;
    int channel, failed;
    uint64_t value; /* of a word */
    uint8_t data[];
} message_t;

typedef struct hub hub_t;

typedef struct sim_fabric {
    epx_fabric_t base;
    epx_fabric_config_t config;
    epx_allocator_t allocator;
    hub_t *hub;
    uint64_t *word, *failure; /* [channels, S] */
    uint64_t *counted;        /* [channels] arrivals of words, for the counter */
    uint64_t *last_waited;    /* [channels] */
    uint64_t *step;           /* [exchange channels] */
    uint64_t arrivals;        /* of anything */
    message_t *blocks;        /* that have arrived and not been taken */
    void *segment;
    size_t segment_bytes;
    int registered;             /* segment_open was called */
    void **table;               /* [S] windows; mine: the segment */
    uint8_t **window, **shadow; /* [S] */
    int joined, closed;
    uint64_t gathers; /* of the survivors' bootstrap */
    int32_t *alive;   /* [S] */
    int32_t alive_count, alive_rank;
    struct sim_fabric *next; /* of all that are open */
} sim_fabric_t;

struct hub {
    int ranks, references;
    sim_fabric_t **member;
    message_t *first, **last; /* on their way */
    uint64_t sent;
    uint64_t abort; /* as in local */
    int joined, closed;
    uint64_t(*gathered); /* [S] gathers that each survivor has put in */
    uint8_t *gather[2];  /* [S, GATHER_BYTES] by parity */
};

enum { GATHER_BYTES = 4096 };

static sim_mutant_t mutant;
static sim_fabric_t *fabrics; /* all that are open */

static void *take(size_t count, size_t bytes)
{
    void *memory = calloc(count + 1, bytes);
    if (memory == NULL)
        abort();
    return memory;
}

/* ---- the wire --------------------------------------------------------------------------------------------------- */

/* Mostly soon, sometimes after everybody has had many turns. */
static int64_t transit_ns(void)
{
    return sim_dice(8) != 0 ? (int64_t)sim_dice(1500) : (int64_t)sim_dice(60000);
}

static message_t *send(sim_fabric_t *from, int to, message_kind_t kind, size_t bytes)
{
    hub_t *hub = from->hub;
    message_t *message = malloc(sizeof(*message) + bytes);
    if (message == NULL)
        abort();
    *message = (message_t){.kind = kind,
                           .from = from->base.rank,
                           .to = to,
                           .ready_ns = sim_now_ns() + transit_ns(),
                           .number = ++hub->sent,
                           .bytes = bytes};
    *hub->last = message;
    hub->last = &message->next;
    return message;
}

static int overlap(const message_t *a, const message_t *b)
{
    return a->kind == DATA && b->kind == DATA && a->offset < b->offset + b->bytes &&
           b->offset < a->offset + a->bytes;
}

/* Whether `later` must not arrive before `earlier`, which is still on its way. */
static int is_behind(const message_t *later, const message_t *earlier)
{
    if (later->from != earlier->from || later->to != earlier->to)
        return 0;
    if (later->kind == RESET || earlier->kind == RESET)
        return 0;
    if (later->kind == DATA)
        return overlap(later, earlier);
    if (mutant == SIM_NO_FENCE && earlier->kind == DATA)
        return 0;
    return 1;
}

/* Can it arrive now, but for the time? */
static int is_free(const hub_t *hub, const message_t *message)
{
    for (const message_t *m = hub->first; m != message; m = m->next)
        if (is_behind(message, m))
            return 0;
    return 1;
}

static hub_t *next_hub(const sim_fabric_t *fabric) { return fabric->base.rank == 0 ? fabric->hub : NULL; }

/* The n-th message that can arrive now; NULL: there are fewer, their number in *n_p then. */
static message_t *pick(int n, int *count_p, int64_t *next_ns_p, hub_t **hub_p)
{
    *count_p = 0;
    for (sim_fabric_t *f = fabrics; f != NULL; f = f->next) {
        hub_t *hub = next_hub(f);
        for (message_t *m = hub != NULL ? hub->first : NULL; m != NULL; m = m->next) {
            if (!is_free(hub, m))
                continue;
            if (m->ready_ns > sim_now_ns()) {
                if (m->ready_ns < *next_ns_p)
                    *next_ns_p = m->ready_ns;
                continue;
            }
            if ((*count_p)++ == n) {
                *hub_p = hub;
                return m;
            }
        }
    }
    return NULL;
}

static int wire_ready(void *context, int64_t *next_ns_p)
{
    int count;
    hub_t *hub;
    (void)context;
    pick(-1, &count, next_ns_p, &hub);
    return count;
}

static void arrive(sim_fabric_t *to, message_t *message)
{
    int ranks = to->base.ranks;
    switch (message->kind) {
    case DATA:
        if (to->segment != NULL)
            memcpy((uint8_t *)to->segment + message->offset, message->data, message->bytes);
        break;
    case RESET:
    case WORD:
        to->word[message->channel * ranks + message->from] = message->value;
        to->counted[message->channel] += message->kind == WORD;
        break;
    case FAILURE: to->failure[message->channel * ranks + message->from] = message->value; break;
    case BLOCK:
        message->next = to->blocks;
        to->blocks = message;
        break;
    }
}

static uint64_t wire_deliver(void *context, int n)
{
    int count;
    int64_t next;
    hub_t *hub = NULL;
    (void)context;
    message_t *message = pick(n, &count, &next, &hub);
    uint64_t event = message->number << 8 | (uint64_t)message->kind;
    message_t **link = &hub->first;
    while (*link != message)
        link = &(*link)->next;
    *link = message->next;
    if (*link == NULL)
        hub->last = link;
    sim_fabric_t *to = hub->member[message->to];
    arrive(to, message);
    to->arrivals++;
    if (message->kind != BLOCK)
        free(message);
    return event;
}

static const sim_wire_t wire = {.ready = wire_ready, .deliver = wire_deliver};

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

static const epx_fabric_ops_t sim_ops;

static epx_status_t sim_open(const epx_fabric_config_t *config, epx_fabric_t **fabric_p)
{
    int ranks = config->bootstrap.size;
    sim_fabric_t *fabric = take(1, sizeof(*fabric)), **all = take((size_t)ranks, sizeof(*all));
    fabric->base =
        (epx_fabric_t){.ops = &sim_ops, .rank = config->bootstrap.rank, .ranks = ranks, .caps = sim_ops.caps};
    fabric->config = *config;
    fabric->allocator = *config->allocator;
    fabric->word = take((size_t)config->channels * (size_t)ranks, sizeof(uint64_t));
    fabric->failure = take((size_t)config->failure_channels * (size_t)ranks, sizeof(uint64_t));
    fabric->counted = take((size_t)config->channels, sizeof(uint64_t));
    fabric->last_waited = take((size_t)config->channels, sizeof(uint64_t));
    fabric->step = take((size_t)config->exchange_channels, sizeof(uint64_t));
    fabric->table = take((size_t)ranks, sizeof(void *));
    fabric->window = take((size_t)ranks, sizeof(void *));
    fabric->shadow = take((size_t)ranks, sizeof(void *));
    fabric->alive = take((size_t)ranks, sizeof(int32_t));
    if (fabric->base.rank == 0) {
        hub_t *hub = take(1, sizeof(*hub));
        *hub = (hub_t){.ranks = ranks, .references = ranks};
        hub->last = &hub->first;
        hub->gathered = take((size_t)ranks, sizeof(uint64_t));
        for (int i = 0; i < 2; i++)
            hub->gather[i] = take((size_t)ranks, GATHER_BYTES);
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
    all = take((size_t)ranks, sizeof(*all));
    if (config->bootstrap.allgather(config->bootstrap.context, &fabric, all, sizeof(fabric)) != 0)
        abort();
    free(all);
    fabric->next = fabrics;
    fabrics = fabric;
    sim_set_wire(&wire);
    *fabric_p = &fabric->base;
    return EPX_OK;
}

static void free_fabric(sim_fabric_t *fabric)
{
    sim_fabric_t **link = &fabrics;
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
    while (fabrics != NULL)
        free_hub(fabrics->hub);
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
        if (p == base->rank)
            continue;
        fabric->window[p] = take(1, bytes);
        fabric->shadow[p] = take(1, bytes);
        fabric->table[p] = fabric->window[p];
    }
    fabric->registered = 1;
    sim_wait(all_registered, fabric->hub, INT64_MAX);
    *segment_p = (epx_segment_t){.base = memory, .bytes = bytes, .peer_ptr = fabric->table};
    return EPX_OK;
}

/* ---- data ------------------------------------------------------------------------------------------------------- */

/* Cuts a range into pieces, so that a row may arrive in parts. */
static void send_range(sim_fabric_t *fabric, int to, size_t offset, const uint8_t *from, size_t bytes)
{
    while (bytes > 0) {
        size_t now = sim_dice(3) != 0 ? bytes : 1 + (size_t)sim_dice(bytes);
        message_t *message = send(fabric, to, DATA, now);
        message->offset = offset;
        memcpy(message->data, from, now);
        offset += now;
        from += now;
        bytes -= now;
    }
}

/* What any kernel has changed in the windows since the last look. */
static void flush(sim_fabric_t *fabric)
{
    for (int p = 0; p < fabric->base.ranks; p++) {
        uint8_t *window = fabric->window[p], *shadow = fabric->shadow[p];
        if (window == NULL || memcmp(window, shadow, fabric->segment_bytes) == 0)
            continue;
        for (size_t i = 0; i < fabric->segment_bytes;) {
            size_t n = i;
            while (n < fabric->segment_bytes && window[n] != shadow[n])
                n++;
            if (n > i)
                send_range(fabric, p, i, window + i, n - i);
            i = n + 1;
        }
        memcpy(shadow, window, fabric->segment_bytes);
    }
}

/* What a load from a peer's segment would give now: the segment, and this rank's own stores that are on their
 * way. A kernel may add to what it finds there. */
static void refresh(sim_fabric_t *fabric)
{
    flush(fabric);
    for (int p = 0; p < fabric->base.ranks; p++)
        if (fabric->window[p] != NULL && fabric->hub->member[p]->segment != NULL)
            memcpy(fabric->window[p], fabric->hub->member[p]->segment, fabric->segment_bytes);
    for (const message_t *m = fabric->hub->first; m != NULL; m = m->next)
        if (m->kind == DATA && m->from == fabric->base.rank)
            memcpy(fabric->window[m->to] + m->offset, m->data, m->bytes);
    for (int p = 0; p < fabric->base.ranks; p++)
        if (fabric->window[p] != NULL)
            memcpy(fabric->shadow[p], fabric->window[p], fabric->segment_bytes);
}

static sim_fabric_t *fabric_of(void *const *table)
{
    sim_fabric_t *fabric = fabrics;
    while (fabric != NULL && fabric->table != table)
        fabric = fabric->next;
    return fabric;
}

/* A kernel that stores at peers, either of the two. */
typedef struct store {
    const epx_k_push_t *push;
    const epx_k_ragged_return_t *back;
} store_t;

static epx_status_t run_store(const store_t *store, void *const *table)
{
    if (store->push != NULL) {
        epx_k_push_t args = *store->push;
        args.dst = table;
        return epx_device_host.kernels->push(&args, NULL);
    }
    epx_k_ragged_return_t args = *store->back;
    args.dst = table;
    return epx_device_host.kernels->ragged_return(&args, NULL);
}

/*
 * Which bytes it writes: it runs over zeros and over ones, and what is the same behind both has been written.
 * (A place may be written by several senders in turn, so a comparison with what this rank wrote there last
 * would not do.)
 */
static epx_status_t run_into_windows(void *const *table, const store_t *store)
{
    sim_fabric_t *fabric = fabric_of(table);
    sim_turn();
    if (fabric == NULL)
        return run_store(store, table);
    int ranks = fabric->base.ranks, me = fabric->base.rank;
    size_t bytes = fabric->segment_bytes;
    uint8_t *room = take((size_t)ranks * 2, bytes);
    void **into = take((size_t)ranks, sizeof(*into));
    epx_status_t status = EPX_OK;
    for (int i = 0; i < 2; i++) {
        memset(room + (size_t)(i * ranks) * bytes, i ? 0xff : 0, (size_t)ranks * bytes);
        for (int p = 0; p < ranks; p++)
            into[p] = p == me ? fabric->segment : room + (size_t)(i * ranks + p) * bytes;
        status = run_store(store, into);
    }
    for (int p = 0; p < ranks; p++) {
        const uint8_t *zero = room + (size_t)p * bytes, *one = room + (size_t)(ranks + p) * bytes;
        for (size_t i = 0; p != me && i < bytes;) {
            size_t n = i;
            while (n < bytes && zero[n] == one[n])
                n++;
            if (n > i) {
                send_range(fabric, p, i, zero + i, n - i);
                memcpy(fabric->window[p] + i, zero + i, n - i);
                memcpy(fabric->shadow[p] + i, zero + i, n - i);
            }
            i = n + 1;
        }
    }
    free(into);
    free(room);
    return status;
}

static epx_status_t sim_push(const epx_k_push_t *args, epx_stream_t stream)
{
    (void)stream;
    return run_into_windows(args->dst, &(store_t){.push = args});
}

static epx_status_t sim_return(const epx_k_ragged_return_t *args, epx_stream_t stream)
{
    (void)stream;
    return run_into_windows(args->dst, &(store_t){.back = args});
}

/* Whose window is at this address; NULL: nobody's. */
static sim_fabric_t *window_at(const void *at)
{
    for (sim_fabric_t *f = fabrics; f != NULL; f = f->next)
        for (int p = 0; p < f->base.ranks; p++)
            if (f->window[p] != NULL && (const uint8_t *)at >= f->window[p] &&
                (const uint8_t *)at < f->window[p] + f->segment_bytes)
                return f;
    return NULL;
}

/* A kernel that writes to `to` and may add to what is there: run in between. */
static sim_fabric_t *open_window(const void *to)
{
    sim_fabric_t *fabric = window_at(to);
    sim_turn();
    if (fabric != NULL)
        refresh(fabric);
    return fabric;
}

static void close_window(sim_fabric_t *fabric)
{
    if (fabric != NULL)
        flush(fabric);
}

static epx_status_t sim_combine(const epx_k_combine_t *args, epx_stream_t stream)
{
    sim_fabric_t *fabric = open_window(args->out);
    epx_status_t status = epx_device_host.kernels->combine(args, stream);
    close_window(fabric);
    return status;
}

static epx_status_t sim_take_dots(const epx_k_take_dots_t *args, epx_stream_t stream)
{
    sim_fabric_t *fabric = open_window(args->dweight);
    epx_status_t status = epx_device_host.kernels->take_dots(args, stream);
    close_window(fabric);
    return status;
}

static epx_status_t sim_checksum(const epx_k_checksum_t *args, epx_stream_t stream)
{
    sim_fabric_t *fabric = open_window(args->sum);
    epx_status_t status = epx_device_host.kernels->checksum(args, stream);
    close_window(fabric);
    return status;
}

/* ---- words ------------------------------------------------------------------------------------------------------ */

static uint64_t epoch_value(epx_epoch_t epoch) { return (epoch.base != NULL ? *epoch.base : 0) + epoch.add; }

static epx_status_t sim_post(epx_fabric_t *base, const epx_post_t *post, epx_stream_t stream)
{
    sim_fabric_t *fabric = (sim_fabric_t *)base;
    uint64_t epoch = epoch_value(post->epoch);
    (void)stream;
    flush(fabric);
    int forgotten = mutant == SIM_NO_SIGNAL && sim_dice(12) == 0 ? (int)sim_dice((uint64_t)base->ranks) : -1;
    for (int p = 0; p < base->ranks; p++) {
        if ((post->peer != EPX_ALL_PEERS && post->peer != p) || p == forgotten)
            continue;
        if (p == base->rank) {
            fabric->word[post->channel * base->ranks + p] = epoch;
            fabric->counted[post->channel]++;
            continue;
        }
        message_t *message = send(fabric, p, WORD, 0);
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
        message_t *message = send(fabric, p, FAILURE, 0);
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
    if (mutant == SIM_NO_CREDIT && wait->mode == EPX_WAIT_AT_LEAST)
        return 1;
    if (mutant == SIM_OFF_BY_ONE && word == fabric->last_waited[wait->channel])
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

/* The mutant that sums over peers: as many arrivals as this many uses of the channel bring. */
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

/* The mutant that clears flags for their next use, in the background. */
static void reset_later(sim_fabric_t *fabric, const epx_wait_t *wait, int peer)
{
    message_t *message = send(fabric, fabric->base.rank, RESET, 0);
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
    if (mutant == SIM_COUNTER && wait->peer == EPX_ALL_PEERS)
        status = wait_by_count(fabric, wait, deadline, result);
    for (int i = 0; i < base->ranks && status == EPX_OK && mutant != SIM_COUNTER; i++) {
        int peer = (base->rank + i) % base->ranks;
        if (wait->peer != EPX_ALL_PEERS && wait->peer != peer)
            continue;
        status = wait_for(fabric, wait, peer, deadline, result);
        if (status == EPX_OK && mutant == SIM_LATE_RESET)
            reset_later(fabric, wait, peer);
    }
    if (mutant == SIM_COUNTER && wait->peer != EPX_ALL_PEERS)
        status = wait_for(fabric, wait, wait->peer, deadline, result);
    else if (mutant != SIM_COUNTER)
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
        message_t *message = send(fabric, p, BLOCK, failed ? 0 : exchange->bytes);
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
    for (int i = 0; i < fabric->alive_count; i++)
        if (fabric->hub->gathered[fabric->alive[i]] < gather->number)
            return 0;
    return 1;
}

static int gather_survivors(void *context, const void *send_block, void *receive, size_t bytes)
{
    sim_fabric_t *fabric = context;
    gather_t gather = {fabric, ++fabric->gathers};
    uint8_t *box = fabric->hub->gather[gather.number & 1];
    if (bytes > GATHER_BYTES)
        abort();
    memcpy(box + (size_t)fabric->base.rank * GATHER_BYTES, send_block, bytes);
    fabric->hub->gathered[fabric->base.rank] = gather.number;
    sim_wait(all_have_put, &gather, INT64_MAX);
    for (int i = 0; i < fabric->alive_count; i++)
        memcpy((uint8_t *)receive + (size_t)i * bytes, box + (size_t)fabric->alive[i] * GATHER_BYTES, bytes);
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
    fabric->alive_count = 0;
    for (int r = 0; r < hub->ranks; r++) {
        alive_p[r] = (uint8_t)hub->member[r]->joined;
        if (r == base->rank)
            fabric->alive_rank = fabric->alive_count;
        if (alive_p[r])
            fabric->alive[fabric->alive_count++] = r;
    }
    *bootstrap_p = (epx_bootstrap_t){.size_of_struct = sizeof(epx_bootstrap_t),
                                     .context = fabric,
                                     .rank = fabric->alive_rank,
                                     .size = fabric->alive_count,
                                     .allgather = gather_survivors};
    return EPX_OK;
}

static const epx_fabric_ops_t sim_ops = {
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

/* What is in new memory must not matter; where it did, a seed would still be one run. */
static void *sim_allocate(size_t bytes, size_t alignment)
{
    void *memory = epx_device_host.allocate(bytes, alignment);
    if (memory != NULL)
        memset(memory, 0xa5, bytes);
    return memory;
}

void sim_fabric_use(sim_mutant_t which)
{
    static epx_device_ops_t device;
    static epx_kernels_t kernels;
    mutant = which;
    kernels = *epx_device_host.kernels;
    kernels.push = sim_push;
    kernels.ragged_return = sim_return;
    kernels.combine = sim_combine;
    kernels.take_dots = sim_take_dots;
    kernels.checksum = sim_checksum;
    device = epx_device_host;
    device.kernels = &kernels;
    device.allocate = sim_allocate;
    epx_device_stand_in("host", &device);
    if (which != SIM_LOCAL)
        epx_fabric_stand_in("local", &sim_ops);
}

void sim_fabric_leave(void)
{
    close_all();
    epx_device_stand_in("host", &epx_device_host);
    epx_fabric_stand_in("local", &epx_fabric_local);
}
