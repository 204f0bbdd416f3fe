/* Fabric `local`: words, waits, the abort. SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "fabric/local/local.h"
#include "fabric/patience.h"

static uint64_t epoch_value(epx_epoch_t epoch) { return (epoch.base != NULL ? *epoch.base : 0) + epoch.add; }

void epx_local_tell(local_fabric_t *fabric, local_fabric_t *peer, _Atomic uint64_t *word, uint64_t value,
                    const local_join_t *join)
{
    /* Beside B1: the rows that this thread stored before are visible to who sees the word. */
    atomic_exchange_explicit(word, value, memory_order_seq_cst);
    if (peer == fabric)
        return;
    uintptr_t awaits = atomic_load_explicit(&peer->awaits, memory_order_seq_cst);
    if (awaits == (uintptr_t)word || (join != NULL && awaits == (uintptr_t)&join->joined))
        epx_bell_ring(&peer->bell);
}

epx_status_t epx_local_post(epx_fabric_t *base, const epx_post_t *post, epx_stream_t stream)
{
    local_fabric_t *fabric = (local_fabric_t *)base;
    uint64_t epoch = epoch_value(post->epoch);
    const local_join_t *join = NULL;
    if (epx_local_is_remote(fabric)) {
        epx_status_t status = fabric->config.device->event_record(fabric->event[post->channel], stream);
        if (status == EPX_OK && post->peer == EPX_ALL_PEERS)
            status = epx_local_join(fabric, post->channel, epoch, &join);
        if (status != EPX_OK)
            return status;
    }
    int64_t place = (int64_t)post->channel * base->ranks + base->rank;
    int32_t first = post->peer == EPX_ALL_PEERS ? 0 : post->peer;
    int32_t last = post->peer == EPX_ALL_PEERS ? base->ranks - 1 : post->peer;
    for (int32_t p = first; p <= last; p++)
        epx_local_tell(fabric, fabric->peer[p], &fabric->peer[p]->word[place], epoch, join);
    return EPX_OK;
}

epx_status_t epx_local_post_failure(epx_fabric_t *base, int32_t failure_channel, epx_epoch_t epoch,
                                    epx_stream_t stream)
{
    (void)stream;
    local_fabric_t *fabric = (local_fabric_t *)base;
    int64_t place = (int64_t)failure_channel * base->ranks + base->rank;
    for (int32_t p = 0; p < base->ranks; p++) {
        atomic_store_explicit(&fabric->peer[p]->failure[place], epoch_value(epoch), memory_order_release);
        if (p != base->rank)
            epx_bell_ring(&fabric->peer[p]->bell);
    }
    return EPX_OK;
}

static int64_t sooner(int64_t end_ns, const local_watch_t *watch)
{
    return end_ns < watch->deadline_ns ? end_ns : watch->deadline_ns;
}

/* B3. */
static int64_t join_end(const local_watch_t *watch)
{
    enum { JOIN_MS = 10 };
    return sooner(watch->begin_ns + (int64_t)JOIN_MS * 1000000, watch);
}

/* Whose word ends the next sleep: all ranks', or the one that is looked for. */
static const _Atomic uint64_t *waker(const local_watch_t *watch, const _Atomic uint64_t *word)
{
    const local_join_t *join = watch->join;
    if (join == NULL || epx_clock_ns() >= join_end(watch) ||
        atomic_load_explicit(&join->joined, memory_order_seq_cst) >= watch->epoch)
        return word;
    return &join->joined;
}

/* Who ends a meeting rings no bell. */
static int64_t slice_end(const local_watch_t *watch)
{
    enum { SLICE_MS = 50 };
    return sooner(watch->meeting != NULL ? epx_clock_ns() + (int64_t)SLICE_MS * 1000000 : INT64_MAX, watch);
}

epx_status_t epx_local_pause(local_watch_t *watch, const _Atomic uint64_t *word, int32_t *spin, uint32_t bell,
                             int32_t *culprit_p)
{
    local_fabric_t *fabric = watch->fabric;
    if (!watch->ignores_abort) {
        uint64_t abort = atomic_load_explicit(&fabric->hub->abort, memory_order_acquire);
        if (abort != 0) {
            *culprit_p = (int32_t)(abort >> 32) - 1;
            return *culprit_p == fabric->base.rank ? EPX_ERR_ABORTED : EPX_ERR_PEER;
        }
    }
    if (++*spin < fabric->spins) {
        epx_spin_pause();
        return EPX_OK;
    }
    if (watch->meeting != NULL && watch->meeting->is_over(watch->meeting->context))
        return EPX_ERR_ABORTED;
    const _Atomic uint64_t *by = waker(watch, word);
    if (atomic_load_explicit(&fabric->awaits, memory_order_relaxed) != (uintptr_t)by) {
        atomic_exchange_explicit(&fabric->awaits, (uintptr_t)by, memory_order_seq_cst);
        return EPX_OK; /* the caller looks again: who is missing is found so when time is up, too */
    }
    if (epx_wait_is_over(watch->patience, watch->timeout_ms, watch->begin_ns, epx_clock_ns(),
                         &watch->deadline_ns))
        return EPX_ERR_TIMEOUT;
    epx_bell_sleep(&fabric->bell, bell, by != word ? join_end(watch) : slice_end(watch));
    return EPX_OK;
}

/* The lowest rank with a failure word that counts, or -1. */
static int32_t find_failure(const local_fabric_t *fabric, const epx_wait_t *wait, uint64_t *value_p)
{
    for (int32_t i = 0; i < wait->watches; i++) {
        uint64_t value = epoch_value(wait->watch[i].epoch);
        const _Atomic uint64_t *row = fabric->failure + (int64_t)wait->watch[i].channel * fabric->base.ranks;
        for (int32_t p = 0; p < fabric->base.ranks; p++) {
            if (atomic_load_explicit(&row[p], memory_order_acquire) == value) {
                *value_p = value;
                return p;
            }
        }
    }
    return -1;
}

static int arrived(uint64_t word, uint64_t expected, epx_wait_mode_t mode)
{
    return mode == EPX_WAIT_EQUAL ? word == expected : word >= expected;
}

/* Waits for one peer's word. */
static epx_status_t wait_for(local_watch_t *watch, const epx_wait_t *wait, int32_t peer,
                             epx_wait_result_t *result)
{
    local_fabric_t *fabric = watch->fabric;
    const _Atomic uint64_t *word = &fabric->word[(int64_t)wait->channel * fabric->base.ranks + peer];
    int32_t spin = 0;
    for (;;) {
        uint32_t bell = epx_bell_count(&fabric->bell);
        uint64_t seen = atomic_load_explicit(word, memory_order_seq_cst);
        if (arrived(seen, result->expected, wait->mode))
            return EPX_OK;
        result->peer = peer;
        result->seen = seen;
        if (watch->begin_ns == 0) {
            watch->begin_ns = epx_clock_ns();
            watch->deadline_ns = watch->begin_ns + wait->timeout_ms * 1000000;
            watch->timeout_ms = wait->timeout_ms;
        }
        int32_t failed = find_failure(fabric, wait, &result->failure);
        if (failed >= 0) {
            /* Data that arrived wins: the failure may be of a later route. */
            if (arrived(atomic_load_explicit(word, memory_order_acquire), result->expected, wait->mode)) {
                result->failure = 0;
                return EPX_OK;
            }
            result->peer = failed;
            return EPX_ERR_PEER;
        }
        int32_t culprit = peer;
        epx_status_t status = epx_local_pause(watch, word, &spin, bell, &culprit);
        if (status != EPX_OK) {
            result->peer = culprit;
            return status;
        }
    }
}

/* The stream waits for what was awaited. */
static epx_status_t follow(local_fabric_t *fabric, const epx_wait_t *wait, uint64_t epoch,
                           epx_stream_t stream)
{
    const epx_device_ops_t *device = fabric->config.device;
    if (wait->peer != EPX_ALL_PEERS)
        return device->stream_wait(stream, fabric->peer[wait->peer]->event[wait->channel]);
    int done = 0;
    epx_status_t status = epx_local_follow_all(fabric, wait->channel, epoch, stream, &done);
    for (int32_t p = 0; p < fabric->base.ranks && status == EPX_OK && !done; p++)
        status = device->stream_wait(stream, fabric->peer[p]->event[wait->channel]);
    return status;
}

epx_status_t epx_local_wait(epx_fabric_t *base, const epx_wait_t *wait, epx_wait_result_t *result,
                            epx_stream_t stream)
{
    local_fabric_t *fabric = (local_fabric_t *)base;
    local_watch_t watch = {.fabric = fabric, .patience = wait->patience};
    int32_t count = wait->peer == EPX_ALL_PEERS ? base->ranks : 1;
    epx_status_t status = EPX_OK;
    *result = (epx_wait_result_t){.peer = -1, .expected = epoch_value(wait->epoch)};
    if (wait->peer == EPX_ALL_PEERS) {
        watch.join = epx_local_join_of(fabric, wait->channel);
        watch.epoch = result->expected;
    }
    for (int32_t i = 0; i < count && status == EPX_OK; i++) {
        int32_t peer = wait->peer == EPX_ALL_PEERS ? (base->rank + i) % base->ranks : wait->peer;
        status = wait_for(&watch, wait, peer, result);
    }
    if (status == EPX_OK && epx_local_is_remote(fabric))
        status = follow(fabric, wait, result->expected, stream);
    if (watch.begin_ns != 0)
        result->waited_ns = epx_clock_ns() - watch.begin_ns;
    return status;
}

void epx_local_abort(epx_fabric_t *base, int32_t culprit)
{
    local_fabric_t *fabric = (local_fabric_t *)base;
    uint64_t none = 0, mine = (uint64_t)(uint32_t)(base->rank + 1) << 32 | (uint32_t)(culprit + 1);
    atomic_compare_exchange_strong(&fabric->hub->abort, &none, mine);
    for (int32_t p = 0; p < base->ranks; p++)
        epx_bell_ring(&fabric->peer[p]->bell);
}

int32_t epx_local_aborted(epx_fabric_t *base, int32_t *culprit_p)
{
    local_fabric_t *fabric = (local_fabric_t *)base;
    uint64_t abort = atomic_load_explicit(&fabric->hub->abort, memory_order_acquire);
    if (culprit_p != NULL)
        *culprit_p = (int32_t)(abort & 0xffffffffu) - 1;
    return (int32_t)(abort >> 32) - 1;
}
