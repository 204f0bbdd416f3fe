/* Fabric `nccl` by sends and receives: what calls leave for the courier, and how they wait for what it brings
 * (R2, R4). SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "fabric/nccl/far.h"
#include "fabric/patience.h"

static nccl_fabric_t *of(epx_fabric_t *base) { return (nccl_fabric_t *)base; }

static epx_status_t refuse_capture(const nccl_fabric_t *fabric, epx_stream_t stream)
{
    if (!fabric->config.device->is_capturing(stream))
        return EPX_OK;
    return epx_fail(
        EPX_ERR_UNSUPPORTED,
        "%s: rows travel by NCCL's sends and receives, where every wait needs the host, which a CUDA "
        "graph cannot; make the call outside of the capture",
        fabric->config.name);
}

/* ---- posting ------------------------------------------------------------------------------------------------- */

/* With the mutex. Lists grow to what posts bring, and stay. */
static epx_status_t keep_pieces(const nccl_fabric_t *fabric, const epx_post_t *post, far_list_t *list,
                                uint64_t ticket)
{
    int32_t count = post->send_count + post->receive_count;
    if (count > list->room) {
        epx_piece_t *piece = realloc(list->piece, (size_t)count * sizeof(*piece));
        if (piece == NULL)
            return epx_fail(EPX_ERR_NO_MEMORY, "%s: rank %d has no memory for %d pieces of a post",
                            fabric->config.name, fabric->base.rank, count);
        list->piece = piece;
        list->room = count;
    }
    if (post->send_count > 0)
        memcpy(list->piece, post->sends, (size_t)post->send_count * sizeof(*list->piece));
    if (post->receive_count > 0)
        memcpy(list->piece + post->send_count, post->receives,
               (size_t)post->receive_count * sizeof(*list->piece));
    list->sends = post->send_count;
    list->receives = post->receive_count;
    list->base = post->segment->base;
    list->epoch = post->epoch.add;
    list->ticket = ticket;
    return EPX_OK;
}

static int sends_to(const epx_post_t *post, int32_t peer)
{
    for (int32_t i = 0; i < post->send_count; i++)
        if (post->sends[i].peer == peer)
            return 1;
    return 0;
}

/* With the mutex. */
static void keep_word(nccl_fabric_t *fabric, const epx_post_t *post, int32_t p, uint64_t ticket)
{
    nccl_far_t *far = fabric->far;
    if (p == fabric->base.rank)
        atomic_store_explicit(epx_nccl_far_seen(far, p, far->column.words + post->channel), post->epoch.add,
                              memory_order_release);
    else
        far->word[(int64_t)post->channel * fabric->base.ranks + p] =
            (far_word_t){.epoch = post->epoch.add, .ticket = ticket, .behind = sends_to(post, p)};
}

epx_status_t epx_nccl_far_post(epx_fabric_t *base, const epx_post_t *post, epx_stream_t stream)
{
    nccl_fabric_t *fabric = of(base);
    nccl_far_t *far = fabric->far;
    int32_t first = post->peer == EPX_ALL_PEERS ? 0 : post->peer;
    int32_t last = post->peer == EPX_ALL_PEERS ? base->ranks - 1 : post->peer;
    epx_status_t status = refuse_capture(fabric, stream);
    if (status != EPX_OK)
        return status;
    pthread_mutex_lock(&far->mutex);
    uint64_t ticket = ++far->ticket[post->channel];
    epx_k_stamp_t stamp = {.word = &far->reached[post->channel], .value = {.add = ticket}};
    status = fabric->config.device->kernels->stamp(&stamp, stream);
    if (status == EPX_OK && post->send_count + post->receive_count > 0)
        status = keep_pieces(fabric, post, &far->posted[post->channel], ticket);
    for (int32_t p = first; p <= last && status == EPX_OK; p++)
        keep_word(fabric, post, p, ticket);
    far->changes++;
    pthread_mutex_unlock(&far->mutex);
    epx_bell_ring(&far->stir);
    return status;
}

epx_status_t epx_nccl_far_post_failure(epx_fabric_t *base, int32_t channel, epx_epoch_t epoch,
                                       epx_stream_t stream)
{
    nccl_far_t *far = of(base)->far;
    (void)stream;
    pthread_mutex_lock(&far->mutex);
    far->failure[channel] = epoch.add;
    far->changes++;
    pthread_mutex_unlock(&far->mutex);
    atomic_store_explicit(epx_nccl_far_seen(far, base->rank, far->column.failures + channel), epoch.add,
                          memory_order_release);
    epx_bell_ring(&far->stir);
    return EPX_OK;
}

/* ---- waiting ------------------------------------------------------------------------------------------------- */

typedef struct watch {
    nccl_fabric_t *fabric;
    int64_t begin_ns, deadline_ns, timeout_ms; /* begin 0: has not waited yet */
    const epx_patience_t *patience;
} watch_t;

static void start_clock(watch_t *watch, int64_t timeout_ms)
{
    if (watch->begin_ns != 0)
        return;
    watch->begin_ns = epx_clock_ns();
    watch->deadline_ns = watch->begin_ns + timeout_ms * 1000000;
    watch->timeout_ms = timeout_ms;
    atomic_fetch_add(&watch->fabric->far->waiting, 1);
    epx_bell_ring(&watch->fabric->far->stir);
}

static void stop_clock(const watch_t *watch, epx_wait_result_t *result)
{
    if (watch->begin_ns == 0)
        return;
    atomic_fetch_sub(&watch->fabric->far->waiting, 1);
    result->waited_ns = epx_clock_ns() - watch->begin_ns;
}

/* One look has failed. */
static epx_status_t pause_watch(watch_t *watch, uint32_t count, int32_t *culprit_p)
{
    nccl_far_t *far = watch->fabric->far;
    uint64_t ended = atomic_load_explicit(&far->ended, memory_order_acquire);
    if (ended != 0) {
        *culprit_p = (int32_t)(ended >> 32) - 1;
        return *culprit_p == watch->fabric->base.rank ? EPX_ERR_ABORTED : EPX_ERR_PEER;
    }
    if (atomic_load_explicit(&far->has_failed, memory_order_acquire))
        return EPX_ERR_FABRIC;
    if (epx_wait_is_over(watch->patience, watch->timeout_ms, watch->begin_ns, epx_clock_ns(),
                         &watch->deadline_ns))
        return EPX_ERR_TIMEOUT;
    epx_bell_sleep(&far->bell, count, watch->deadline_ns);
    return EPX_OK;
}

static uint64_t load(const nccl_far_t *far, int32_t p, int64_t word)
{
    return atomic_load_explicit(epx_nccl_far_seen(far, p, word), memory_order_acquire);
}

/* The lowest rank with a failure word that counts, or -1. */
static int32_t find_failure(const nccl_fabric_t *fabric, const epx_wait_t *wait, uint64_t *value_p)
{
    for (int32_t i = 0; i < wait->watches; i++)
        for (int32_t p = 0; p < fabric->base.ranks; p++)
            if (load(fabric->far, p, fabric->far->column.failures + wait->watch[i].channel) ==
                wait->watch[i].epoch.add) {
                *value_p = wait->watch[i].epoch.add;
                return p;
            }
    return -1;
}

static int has_arrived(uint64_t word, const epx_wait_t *wait)
{
    return wait->mode == EPX_WAIT_EQUAL ? word == wait->epoch.add : word >= wait->epoch.add;
}

static epx_status_t wait_for(watch_t *watch, const epx_wait_t *wait, int32_t peer, epx_wait_result_t *result)
{
    nccl_far_t *far = watch->fabric->far;
    int64_t word = far->column.words + wait->channel;
    for (;;) {
        uint32_t count = epx_bell_count(&far->bell);
        uint64_t seen = load(far, peer, word);
        if (has_arrived(seen, wait))
            return EPX_OK;
        result->peer = peer;
        result->seen = seen;
        start_clock(watch, wait->timeout_ms);
        int32_t failed = find_failure(watch->fabric, wait, &result->failure), culprit = peer;
        if (failed >= 0) {
            /* Data that arrived wins: the failure may be of a later route. */
            if (has_arrived(load(far, peer, word), wait)) {
                result->failure = 0;
                return EPX_OK;
            }
            result->peer = failed;
            return EPX_ERR_PEER;
        }
        epx_status_t status = pause_watch(watch, count, &culprit);
        if (status != EPX_OK) {
            result->peer = culprit;
            return status;
        }
    }
}

epx_status_t epx_nccl_far_wait(epx_fabric_t *base, const epx_wait_t *wait, epx_wait_result_t *result,
                               epx_stream_t stream)
{
    watch_t watch = {.fabric = of(base), .patience = wait->patience};
    int32_t count = wait->peer == EPX_ALL_PEERS ? base->ranks : 1;
    epx_status_t status = refuse_capture(of(base), stream);
    *result = (epx_wait_result_t){.peer = -1, .expected = wait->epoch.add};
    for (int32_t i = 0; i < count && status == EPX_OK; i++)
        status = wait_for(&watch, wait,
                          wait->peer == EPX_ALL_PEERS ? (base->rank + i) % base->ranks : wait->peer, result);
    stop_clock(&watch, result);
    return status;
}

/* ---- exchange ------------------------------------------------------------------------------------------------ */

static uint64_t step_word(const epx_gather_t *gather, int32_t p)
{
    const nccl_far_t *far = ((nccl_fabric_t *)gather->fabric)->far;
    return load(far, p, far->column.steps + gather->channel);
}

static uint64_t step_failure(const epx_gather_t *gather, int32_t p)
{
    const nccl_far_t *far = ((nccl_fabric_t *)gather->fabric)->far;
    return load(far, p, far->column.step_failures + gather->channel);
}

static uint8_t *boxes_of(const nccl_fabric_t *fabric, int32_t p)
{
    return fabric->far->boxes +
           (int64_t)p * fabric->config.exchange_channels * 2 * fabric->far->column.box_bytes;
}

static epx_status_t push_box(const epx_gather_t *gather, uint64_t step, const void *send, size_t bytes)
{
    nccl_fabric_t *fabric = gather->fabric;
    nccl_far_t *far = fabric->far;
    pthread_mutex_lock(&far->mutex);
    memcpy(epx_nccl_far_box(fabric, far->own_box, gather->channel, step), send, bytes);
    pthread_mutex_unlock(&far->mutex);
    memcpy(epx_nccl_far_box(fabric, boxes_of(fabric, fabric->base.rank), gather->channel, step), send, bytes);
    return EPX_OK;
}

static epx_status_t post_step(const epx_gather_t *gather, uint64_t value, int failed)
{
    nccl_fabric_t *fabric = gather->fabric;
    nccl_far_t *far = fabric->far;
    int64_t row = failed ? far->column.step_failures : far->column.steps;
    pthread_mutex_lock(&far->mutex);
    far->step[(failed ? fabric->config.exchange_channels : 0) + gather->channel] = value;
    far->changes++;
    pthread_mutex_unlock(&far->mutex);
    atomic_store_explicit(epx_nccl_far_seen(far, fabric->base.rank, row + gather->channel), value,
                          memory_order_release);
    epx_bell_ring(&far->stir);
    return EPX_OK;
}

static const void *box_of(const epx_gather_t *gather, int32_t p, uint64_t step)
{
    const nccl_fabric_t *fabric = gather->fabric;
    return epx_nccl_far_box(fabric, boxes_of(fabric, p), gather->channel, step);
}

static uint32_t bell_count(const epx_gather_t *gather)
{
    return epx_bell_count(&((nccl_fabric_t *)gather->fabric)->far->bell);
}

static epx_status_t pause_gather(epx_gather_t *gather, int32_t p, int32_t *spin, uint32_t count,
                                 int32_t *culprit_p, int32_t *last_look_p)
{
    (void)p, (void)spin, (void)last_look_p;
    start_clock(gather->watch, gather->timeout_ms);
    return pause_watch(gather->watch, count, culprit_p);
}

static const epx_gather_ops_t gather_ops = {.word = step_word,
                                            .failure = step_failure,
                                            .push = push_box,
                                            .post = post_step,
                                            .box = box_of,
                                            .count = bell_count,
                                            .pause = pause_gather};

/* Blocks of the device pass through the host. */
static epx_status_t exchange_device(epx_gather_t *gather, const epx_exchange_t *exchange, epx_stream_t stream)
{
    nccl_fabric_t *fabric = gather->fabric;
    const epx_device_ops_t *device = fabric->config.device;
    size_t bytes = exchange->bytes, ranks = (size_t)fabric->base.ranks;
    uint8_t *mine =
                fabric->far->stage + (size_t)exchange->channel * (1 + ranks) * fabric->config.exchange_bytes,
            *all = mine + fabric->config.exchange_bytes;
    epx_status_t status = device->copy(mine, exchange->send, bytes, stream);
    if (status == EPX_OK)
        status = device->synchronize(stream);
    if (status == EPX_OK)
        status = epx_gather(gather, mine, all, bytes);
    return status == EPX_OK ? device->copy(exchange->receive, all, bytes * ranks, stream) : status;
}

epx_status_t epx_nccl_far_exchange(epx_fabric_t *base, const epx_exchange_t *exchange,
                                   epx_wait_result_t *result, epx_stream_t stream)
{
    nccl_fabric_t *fabric = of(base);
    watch_t watch = {.fabric = fabric, .patience = exchange->patience};
    epx_gather_t gather = {.ops = &gather_ops,
                           .fabric = fabric,
                           .watch = &watch,
                           .side = &fabric->far->side[exchange->channel],
                           .channel = exchange->channel,
                           .circle = {.size = base->ranks, .me = base->rank},
                           .box_bytes = (size_t)fabric->far->column.box_bytes,
                           .timeout_ms = exchange->timeout_ms,
                           .result = result};
    *result = (epx_wait_result_t){.peer = -1};
    epx_status_t status = refuse_capture(fabric, stream);
    if (status != EPX_OK)
        return status;
    if (exchange->send == NULL)
        return epx_gather_fail(&gather);
    status = exchange->on_host ? epx_gather(&gather, exchange->send, exchange->receive, exchange->bytes)
                               : exchange_device(&gather, exchange, stream);
    stop_clock(&watch, result);
    return status;
}

/* ---- the end of a group -------------------------------------------------------------------------------------- */

void epx_nccl_far_abort(epx_fabric_t *base, int32_t culprit)
{
    nccl_far_t *far = of(base)->far;
    epx_nccl_far_ended(far, base->rank, culprit);
    pthread_mutex_lock(&far->mutex);
    far->changes++;
    pthread_mutex_unlock(&far->mutex);
    epx_bell_ring(&far->stir);
}

int32_t epx_nccl_far_aborted(epx_fabric_t *base, int32_t *culprit_p)
{
    uint64_t ended = atomic_load_explicit(&of(base)->far->ended, memory_order_acquire);
    if (culprit_p != NULL)
        *culprit_p = (int32_t)(ended & 0xffffffffu) - 1;
    return (int32_t)(ended >> 32) - 1;
}
