/* Fabric `local`: the small all-gather and the meeting of survivors. The protocol is in local.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "base/fail.h"
#include "fabric/local/local.h"

/* Who takes part: all ranks, or the survivors. */
typedef struct circle {
    const int32_t *rank; /* [size] fabric ranks; NULL: all, in order */
    int32_t size, me;    /* my place */
} circle_t;

static int32_t circle_rank(const circle_t *circle, int32_t i)
{
    return circle->rank != NULL ? circle->rank[i] : i;
}

typedef enum step_state { STEP_PENDING, STEP_ARRIVED, STEP_FAILED } step_state_t;

static uint64_t word_step(uint64_t word) { return word >> 1; }

/* I2 and I3 of local.h. */
static step_state_t step_of(const local_channel_t *channel, int32_t p, uint64_t step)
{
    uint64_t word = atomic_load_explicit(&channel->word[p], memory_order_seq_cst);
    if (word_step(word) == step)
        return STEP_ARRIVED;
    if (word_step(word) > step)
        return (word & 1) != 0 ? STEP_FAILED : STEP_ARRIVED;
    if (atomic_load_explicit(&channel->failure[p], memory_order_acquire) < step)
        return STEP_PENDING;
    /* The failure word is read after the word: look at the word again, the step may have arrived in between.
     */
    word = atomic_load_explicit(&channel->word[p], memory_order_acquire);
    if (word_step(word) < step)
        return STEP_FAILED;
    return word_step(word) > step && (word & 1) != 0 ? STEP_FAILED : STEP_ARRIVED;
}

/* I1: rank p is past step - 2. */
static int has_credit(const local_channel_t *channel, int32_t p, uint64_t step)
{
    return word_step(atomic_load_explicit(&channel->word[p], memory_order_seq_cst)) + 1 >= step ||
           atomic_load_explicit(&channel->failure[p], memory_order_acquire) + 1 >= step;
}

static void start_clock(local_watch_t *watch, int64_t timeout_ms)
{
    if (watch->begin_ns != 0)
        return;
    watch->begin_ns = epx_clock_ns();
    watch->deadline_ns = watch->begin_ns + timeout_ms * 1000000;
    watch->timeout_ms = timeout_ms;
}

epx_status_t epx_local_await_step(local_watch_t *watch, const local_channel_t *channel, int32_t p,
                                  uint64_t step, int credit, int64_t timeout_ms, epx_wait_result_t *result)
{
    int32_t spin = 0;
    for (;;) {
        uint32_t bell = epx_bell_count(&watch->fabric->bell);
        if (credit && has_credit(channel, p, step))
            return EPX_OK;
        step_state_t state = credit ? STEP_PENDING : step_of(channel, p, step);
        if (state == STEP_ARRIVED)
            return EPX_OK;
        result->peer = p;
        result->expected = credit ? step - 2 : step; /* who looks for `step` has sent its own */
        result->seen = word_step(atomic_load_explicit(&channel->word[p], memory_order_relaxed));
        if (state == STEP_FAILED) {
            result->failure = step;
            return EPX_ERR_PEER;
        }
        start_clock(watch, timeout_ms);
        int32_t culprit = p;
        epx_status_t status = epx_local_pause(watch, &channel->word[p], &spin, bell, &culprit);
        if (status != EPX_OK) {
            result->peer = culprit;
            return status;
        }
    }
}

static epx_status_t post_step(local_fabric_t *fabric, int32_t index, const circle_t *circle, uint64_t step,
                              int failed, epx_stream_t stream)
{
    local_channel_t *mine = &fabric->channel[index];
    if (mine->event != NULL) {
        epx_status_t status = fabric->config.device->event_record(mine->event, stream);
        if (status == EPX_OK && !failed)
            status = epx_local_join(fabric, epx_local_join_of_exchange(fabric, index), step);
        if (status != EPX_OK)
            return status;
    }
    for (int32_t i = 0; i < circle->size; i++) {
        local_fabric_t *peer = fabric->peer[circle_rank(circle, i)];
        local_channel_t *channel = &peer->channel[index];
        if (!failed) {
            epx_local_tell(fabric, peer, &channel->word[circle->me], step << 1 | mine->failed_before);
            continue;
        }
        atomic_store_explicit(&channel->failure[circle->me], step, memory_order_release);
        if (peer != fabric)
            epx_bell_ring(&peer->bell);
    }
    mine->failed_before = failed ? 1 : 0;
    return EPX_OK;
}

epx_status_t epx_local_post_step(local_fabric_t *fabric, int32_t channel, uint64_t step, int failed,
                                 epx_stream_t stream)
{
    circle_t all = {.size = fabric->base.ranks, .me = fabric->base.rank};
    return post_step(fabric, channel, &all, step, failed, stream);
}

/* One step: a piece of at most one box. */
static epx_status_t exchange_step(local_watch_t *watch, int32_t index, const circle_t *circle,
                                  const uint8_t *send, uint8_t *receive, size_t stride, size_t bytes,
                                  int64_t timeout_ms, epx_wait_result_t *result, epx_stream_t stream)
{
    local_fabric_t *fabric = watch->fabric;
    local_channel_t *channel = &fabric->channel[index];
    uint64_t step = ++channel->sequence;
    size_t box = (size_t)(step & 1) * (size_t)fabric->host_box_bytes;
    epx_status_t status;
    for (int32_t i = 0; i < circle->size; i++) {
        status = epx_local_await_step(watch, channel, i, step, 1, timeout_ms, result);
        if (status != EPX_OK)
            return status;
    }
    memcpy(channel->box + box, send, bytes);
    status = post_step(fabric, index, circle, step, 0, stream);
    if (status != EPX_OK)
        return status;
    for (int32_t i = 0; i < circle->size; i++) {
        int32_t p = (circle->me + i) % circle->size;
        status = epx_local_await_step(watch, channel, p, step, 0, timeout_ms, result);
        if (status != EPX_OK)
            return status;
    }
    for (int32_t i = 0; i < circle->size; i++)
        memcpy(receive + (size_t)i * stride, fabric->peer[circle_rank(circle, i)]->channel[index].box + box,
               bytes);
    return EPX_OK;
}

static epx_status_t exchange_all(local_watch_t *watch, int32_t index, const circle_t *circle,
                                 const void *send, void *receive, size_t bytes, int64_t timeout_ms,
                                 epx_wait_result_t *result, epx_stream_t stream)
{
    size_t piece = (size_t)watch->fabric->host_box_bytes;
    for (size_t done = 0; done < bytes || done == 0; done += piece) {
        size_t now = bytes - done < piece ? bytes - done : piece;
        epx_status_t status =
            exchange_step(watch, index, circle, (const uint8_t *)send + done, (uint8_t *)receive + done,
                          bytes, now, timeout_ms, result, stream);
        if (status != EPX_OK)
            return status;
    }
    return EPX_OK;
}

epx_status_t epx_local_exchange(epx_fabric_t *base, const epx_exchange_t *exchange, epx_wait_result_t *result,
                                epx_stream_t stream)
{
    local_fabric_t *fabric = (local_fabric_t *)base;
    local_watch_t watch = {.fabric = fabric, .patience = exchange->patience};
    epx_status_t status;
    circle_t all = {.size = base->ranks, .me = base->rank};
    *result = (epx_wait_result_t){.peer = -1};
    if (exchange->send == NULL)
        return post_step(fabric, exchange->channel, &all, ++fabric->channel[exchange->channel].sequence, 1,
                         stream);
    if (epx_local_is_remote(fabric) && !exchange->on_host)
        status = epx_local_device_exchange(&watch, exchange, result, stream);
    else
        status = exchange_all(&watch, exchange->channel, &all, exchange->send, exchange->receive,
                              exchange->bytes, exchange->timeout_ms, result, stream);
    if (watch.begin_ns != 0)
        result->waited_ns = epx_clock_ns() - watch.begin_ns;
    return status;
}

epx_status_t epx_local_gather(local_fabric_t *fabric, int32_t extra_channel, const void *send, void *receive,
                              size_t bytes, int64_t timeout_ms)
{
    int survivors = extra_channel == LOCAL_SURVIVORS_CHANNEL;
    local_watch_t watch = {.fabric = fabric, .ignores_abort = survivors};
    circle_t circle = {.size = fabric->base.ranks, .me = fabric->base.rank};
    epx_wait_result_t result = {.peer = -1};
    if (survivors)
        circle = (circle_t){.rank = fabric->alive, .size = fabric->alive_count, .me = fabric->alive_rank};
    epx_status_t status = exchange_all(&watch, fabric->config.exchange_channels + extra_channel, &circle,
                                       send, receive, bytes, timeout_ms, &result, NULL);
    if (status == EPX_OK)
        return EPX_OK;
    return epx_fail(status, "%s: rank %d met nobody at set-up: rank %d did not come within %" PRId64 " ms",
                    fabric->config.name, fabric->base.rank, result.peer, timeout_ms);
}

static int survivors_gather(void *context, const void *send, void *receive, size_t bytes)
{
    return epx_local_gather(context, LOCAL_SURVIVORS_CHANNEL, send, receive, bytes, 60000) == EPX_OK ? 0 : -1;
}

static void hub_lock(local_hub_t *hub)
{
    while (atomic_flag_test_and_set_explicit(&hub->lock, memory_order_acquire))
        epx_spin_pause();
}

static void hub_unlock(local_hub_t *hub) { atomic_flag_clear_explicit(&hub->lock, memory_order_release); }

/* Joins, or sees that the meeting is over; returns whether it is closed. `close`: my time is up. */
static int join_or_close(local_fabric_t *fabric, int close)
{
    local_hub_t *hub = fabric->hub;
    hub_lock(hub);
    if (!hub->closed && !fabric->joined) {
        fabric->joined = 1;
        hub->joined++;
    }
    if (close || hub->joined == fabric->base.ranks)
        hub->closed = 1;
    int closed = hub->closed;
    hub_unlock(hub);
    return closed;
}

static void ring_all(local_fabric_t *fabric)
{
    for (int32_t p = 0; p < fabric->base.ranks; p++)
        epx_bell_ring(&fabric->peer[p]->bell);
}

epx_status_t epx_local_survivors(epx_fabric_t *base, int64_t timeout_ms, uint8_t *alive_p,
                                 epx_bootstrap_t *bootstrap_p)
{
    local_fabric_t *fabric = (local_fabric_t *)base;
    int64_t deadline = epx_clock_ns() + timeout_ms * 1000000;
    for (;;) {
        uint32_t bell = epx_bell_count(&fabric->bell);
        int late = epx_clock_ns() >= deadline;
        if (join_or_close(fabric, late))
            break;
        epx_bell_sleep(&fabric->bell, bell, deadline);
    }
    ring_all(fabric);
    if (!fabric->joined)
        return epx_fail(EPX_ERR_PEER, "%s: rank %d came too late to recover: the others went on without it",
                        fabric->config.name, base->rank);
    fabric->alive_count = 0;
    for (int32_t r = 0; r < base->ranks; r++) {
        /* Under the closed meeting `joined` does not change any more; the lock gave the order. */
        alive_p[r] = (uint8_t)fabric->peer[r]->joined;
        if (!alive_p[r])
            continue;
        if (r == base->rank)
            fabric->alive_rank = fabric->alive_count;
        fabric->alive[fabric->alive_count++] = r;
    }
    *bootstrap_p = (epx_bootstrap_t){.size_of_struct = sizeof(epx_bootstrap_t),
                                     .context = fabric,
                                     .rank = fabric->alive_rank,
                                     .size = fabric->alive_count,
                                     .allgather = survivors_gather};
    return EPX_OK;
}
