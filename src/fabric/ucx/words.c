/* Fabric `ucx`: words, waits, the abort. SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>

#include "base/fail.h"
#include "fabric/ucx/internal.h"

enum { FAR_SLICE_US = 1000, WATCH_SLICE_MS = 200 };

static uint64_t epoch_value(epx_epoch_t epoch) { return (epoch.base != NULL ? *epoch.base : 0) + epoch.add; }

static int64_t word_offset(const ucx_fabric_t *fabric, int64_t rows, int32_t channel, int32_t rank)
{
    return rows + ((int64_t)channel * fabric->base.ranks + rank) * (int64_t)sizeof(uint64_t);
}

static uint64_t load(const ucx_fabric_t *fabric, int64_t offset)
{
    return atomic_load_explicit(epx_ucx_word(fabric, offset), memory_order_acquire);
}

epx_status_t epx_ucx_post(epx_fabric_t *base, const epx_post_t *post, epx_stream_t stream)
{
    (void)stream;
    ucx_fabric_t *fabric = (ucx_fabric_t *)base;
    for (int32_t i = 0; i < post->send_count; i++) {
        const epx_piece_t *piece = &post->sends[i];
        const ucx_memory_t *memory = fabric->segment;
        while (memory->base != post->segment->base)
            memory++;
        epx_status_t status = epx_ucx_put_piece(fabric, memory, piece, post->source);
        if (status != EPX_OK)
            return status;
    }
    if (post->send_count > 0)
        epx_ucx_fence(fabric);
    uint64_t epoch = epoch_value(post->epoch);
    int64_t offset = word_offset(fabric, fabric->layout.word, post->channel, base->rank);
    int32_t first = post->peer == EPX_ALL_PEERS ? 0 : post->peer;
    int32_t last = post->peer == EPX_ALL_PEERS ? base->ranks - 1 : post->peer;
    for (int32_t p = first; p <= last; p++)
        epx_ucx_set(fabric, p, offset, epoch);
    return EPX_OK;
}

epx_status_t epx_ucx_post_failure(epx_fabric_t *base, int32_t failure_channel, epx_epoch_t epoch,
                                  epx_stream_t stream)
{
    (void)stream;
    ucx_fabric_t *fabric = (ucx_fabric_t *)base;
    int64_t offset = word_offset(fabric, fabric->layout.failure, failure_channel, base->rank);
    epx_ucx_fence(fabric);
    for (int32_t p = 0; p < base->ranks; p++)
        epx_ucx_set(fabric, p, offset, epoch_value(epoch));
    return EPX_OK;
}

/* ---- the end of a fabric ------------------------------------------------------------------------------------- */

/* An abort word: this bit where the culprit is known to be dead, (aborting rank + 1) << 32 | (culprit + 1).
 */
#define ABORT_OF_DEAD ((uint64_t)1 << 63)

/* Whether somebody has aborted; the first that was seen here stays the first. A death comes along with it. */
static uint64_t find_abort(ucx_fabric_t *fabric)
{
    uint64_t first = atomic_load_explicit(&fabric->first_abort, memory_order_acquire), none = 0;
    if (first != 0 || load(fabric, fabric->layout.any_abort) == 0)
        return first;
    for (int32_t p = 0; p < fabric->base.ranks; p++) {
        uint64_t word = load(fabric, word_offset(fabric, fabric->layout.abort, 0, p));
        int32_t culprit = (int32_t)(word & 0xffffffffu) - 1;
        if (word == 0)
            continue;
        if ((word & ABORT_OF_DEAD) != 0 && culprit >= 0 && culprit < fabric->base.ranks &&
            culprit != fabric->base.rank) {
            atomic_store(&fabric->peer[culprit].is_dead, 1);
            atomic_store(&fabric->any_dead, 1);
        }
        atomic_compare_exchange_strong(&fabric->first_abort, &none, word & ~ABORT_OF_DEAD);
        return atomic_load_explicit(&fabric->first_abort, memory_order_acquire);
    }
    return 0;
}

static int32_t find_dead(const ucx_fabric_t *fabric)
{
    for (int32_t p = 0; p < fabric->base.ranks; p++)
        if (atomic_load(&fabric->peer[p].is_dead))
            return p;
    return -1;
}

/* The same, not waiting for the engine's thread to see it. Off the hot path. */
static int32_t look_for_dead(ucx_fabric_t *fabric)
{
    for (int32_t p = 0; p < fabric->base.ranks; p++) {
        struct pollfd ended = {.fd = fabric->peer[p].pidfd, .events = POLLIN};
        if (ended.fd >= 0 && poll(&ended, 1, 0) == 1)
            epx_ucx_bury(&fabric->peer[p]);
    }
    return find_dead(fabric);
}

void epx_ucx_abort(epx_fabric_t *base, int32_t culprit)
{
    ucx_fabric_t *fabric = (ucx_fabric_t *)base;
    if (culprit < 0)
        culprit = look_for_dead(fabric);
    uint64_t none = 0, mine = (uint64_t)(uint32_t)(base->rank + 1) << 32 | (uint32_t)(culprit + 1);
    if (find_abort(fabric) != 0 || !atomic_compare_exchange_strong(&fabric->first_abort, &none, mine))
        return;
    if (culprit >= 0 && atomic_load(&fabric->peer[culprit].is_dead))
        mine |= ABORT_OF_DEAD;
    for (int32_t p = 0; p < base->ranks; p++) {
        if (atomic_load(&fabric->peer[p].is_dead))
            continue;
        epx_ucx_set(fabric, p, word_offset(fabric, fabric->layout.abort, 0, base->rank), mine);
        epx_ucx_fence(fabric);
        epx_ucx_set(fabric, p, fabric->layout.any_abort, 1);
    }
    epx_bell_ring_shared(epx_ucx_bell(fabric));
}

int32_t epx_ucx_aborted(epx_fabric_t *base, int32_t *culprit_p)
{
    uint64_t abort = find_abort((ucx_fabric_t *)base);
    int32_t culprit = (int32_t)(abort & 0xffffffffu) - 1;
    if (abort != 0 && culprit < 0)
        culprit = look_for_dead((ucx_fabric_t *)base);
    if (culprit_p != NULL)
        *culprit_p = culprit;
    return (int32_t)(abort >> 32) - 1;
}

/* ---- waiting ------------------------------------------------------------------------------------------------ */

void epx_ucx_start_clock(ucx_watch_t *watch, int64_t timeout_ms)
{
    if (watch->begin_ns != 0)
        return;
    watch->begin_ns = epx_clock_ns();
    watch->deadline_ns = watch->begin_ns + timeout_ms * 1000000;
}

epx_status_t epx_ucx_pause(ucx_watch_t *watch, int32_t *spin, uint32_t bell, int32_t *culprit_p)
{
    ucx_fabric_t *fabric = watch->fabric;
    if (!watch->ignores_abort) {
        uint64_t abort = find_abort(fabric);
        /* The one that is waited for, if it is dead, else another: the cause goes before its consequences. */
        if (atomic_load_explicit(&fabric->any_dead, memory_order_acquire) != 0) {
            if (*culprit_p < 0 || !atomic_load(&fabric->peer[*culprit_p].is_dead))
                *culprit_p = find_dead(fabric);
            return EPX_ERR_PEER;
        }
        if (abort != 0) {
            *culprit_p = (int32_t)(abort >> 32) - 1;
            return *culprit_p == fabric->base.rank ? EPX_ERR_ABORTED : EPX_ERR_PEER;
        }
    }
    if (fabric->far_count > 0)
        epx_ucx_help();
    if (++*spin < fabric->spins) {
        epx_spin_pause();
        return EPX_OK;
    }
    int64_t now_ns = epx_clock_ns();
    if (watch->meeting != NULL && watch->meeting->is_over(watch->meeting->context))
        return EPX_ERR_ABORTED;
    if (now_ns >= watch->deadline_ns)
        return EPX_ERR_TIMEOUT;
    /* A network card writes words without a word to anybody; else this only guards against the unforeseen. */
    int64_t until_ns =
        now_ns + (fabric->far_count > 0 ? (int64_t)FAR_SLICE_US * 1000 : (int64_t)WATCH_SLICE_MS * 1000000);
    epx_bell_sleep_shared(epx_ucx_bell(fabric), bell,
                          until_ns < watch->deadline_ns ? until_ns : watch->deadline_ns);
    return EPX_OK;
}

void epx_ucx_saw(ucx_fabric_t *fabric, int32_t peer)
{
    if (fabric->control.peer_ptr[peer] != NULL)
        return;
    epx_ucx_lock();
    epx_ucx_unlock();
}

/* The lowest rank with a failure word that counts, or -1. */
static int32_t find_failure(const ucx_fabric_t *fabric, const epx_wait_t *wait, uint64_t *value_p)
{
    for (int32_t i = 0; i < wait->watches; i++) {
        uint64_t value = epoch_value(wait->watch[i].epoch);
        for (int32_t p = 0; p < fabric->base.ranks; p++) {
            if (load(fabric, word_offset(fabric, fabric->layout.failure, wait->watch[i].channel, p)) ==
                value) {
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
static epx_status_t wait_for(ucx_watch_t *watch, const epx_wait_t *wait, int32_t peer,
                             epx_wait_result_t *result)
{
    ucx_fabric_t *fabric = watch->fabric;
    int64_t offset = word_offset(fabric, fabric->layout.word, wait->channel, peer);
    int32_t spin = 0;
    for (;;) {
        uint32_t bell = epx_bell_count(epx_ucx_bell(fabric));
        uint64_t seen = load(fabric, offset);
        if (arrived(seen, result->expected, wait->mode)) {
            epx_ucx_saw(fabric, peer);
            return EPX_OK;
        }
        result->peer = peer;
        result->seen = seen;
        epx_ucx_start_clock(watch, wait->timeout_ms);
        int32_t culprit = find_failure(fabric, wait, &result->failure);
        epx_status_t status = EPX_ERR_PEER;
        if (culprit < 0) {
            culprit = peer;
            status = epx_ucx_pause(watch, &spin, bell, &culprit);
        }
        if (status == EPX_OK)
            continue;
        /* Data that arrived wins: the failure may be of a later route, and the dead may have spoken before.
         */
        if (status == EPX_ERR_PEER && arrived(load(fabric, offset), result->expected, wait->mode)) {
            result->failure = 0;
            epx_ucx_saw(fabric, peer);
            return EPX_OK;
        }
        result->peer = culprit;
        return status;
    }
}

epx_status_t epx_ucx_wait(epx_fabric_t *base, const epx_wait_t *wait, epx_wait_result_t *result,
                          epx_stream_t stream)
{
    (void)stream;
    ucx_fabric_t *fabric = (ucx_fabric_t *)base;
    ucx_watch_t watch = {.fabric = fabric};
    int32_t count = wait->peer == EPX_ALL_PEERS ? base->ranks : 1;
    epx_status_t status = EPX_OK;
    *result = (epx_wait_result_t){.peer = -1, .expected = epoch_value(wait->epoch)};
    for (int32_t i = 0; i < count && status == EPX_OK; i++) {
        int32_t peer = wait->peer == EPX_ALL_PEERS ? (base->rank + i) % base->ranks : wait->peer;
        status = wait_for(&watch, wait, peer, result);
    }
    if (watch.begin_ns != 0)
        result->waited_ns = epx_clock_ns() - watch.begin_ns;
    return status;
}
