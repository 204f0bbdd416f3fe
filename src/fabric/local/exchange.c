/* Fabric `local`: the small all-gather and the meeting of survivors. The protocol is in fabric/gather.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "base/fail.h"
#include "fabric/local/local.h"

/* What one all-gather is made with. */
typedef struct making {
    local_watch_t watch;
    epx_stream_t stream;
} making_t;

static making_t *making_of(const epx_gather_t *gather) { return gather->watch; }

static local_channel_t *channel_of(const epx_gather_t *gather, int32_t rank)
{
    local_fabric_t *fabric = gather->fabric;
    return &fabric->peer[rank]->channel[gather->channel];
}

static local_channel_t *my_channel(const epx_gather_t *gather)
{
    local_fabric_t *fabric = gather->fabric;
    return &fabric->channel[gather->channel];
}

static uint64_t word_of(const epx_gather_t *gather, int32_t p)
{
    return atomic_load_explicit(&my_channel(gather)->word[p], memory_order_seq_cst);
}

static uint64_t failure_of(const epx_gather_t *gather, int32_t p)
{
    return atomic_load_explicit(&my_channel(gather)->failure[p], memory_order_acquire);
}

static epx_status_t push(const epx_gather_t *gather, uint64_t step, const void *send, size_t bytes)
{
    memcpy(my_channel(gather)->box + (size_t)(step & 1) * gather->box_bytes, send, bytes);
    return EPX_OK;
}

static epx_status_t post(const epx_gather_t *gather, uint64_t value, int failed)
{
    local_fabric_t *fabric = gather->fabric;
    int32_t me = fabric->base.rank, index = gather->channel;
    const local_join_t *join = NULL;
    if (my_channel(gather)->event != NULL) {
        epx_status_t status =
            fabric->config.device->event_record(my_channel(gather)->event, making_of(gather)->stream);
        if (status == EPX_OK && !failed)
            status = epx_local_join(fabric, epx_local_join_of_exchange(fabric, index), value >> 1, &join);
        if (status != EPX_OK)
            return status;
    }
    for (int32_t i = 0; i < gather->circle.size; i++) {
        int32_t p = epx_circle_rank(&gather->circle, i);
        if (!failed) {
            epx_local_tell(fabric, fabric->peer[p], &channel_of(gather, p)->word[me], value, join);
            continue;
        }
        atomic_store_explicit(&channel_of(gather, p)->failure[me], value, memory_order_release);
        if (p != me)
            epx_bell_ring(&fabric->peer[p]->bell);
    }
    return EPX_OK;
}

static const void *box(const epx_gather_t *gather, int32_t p, uint64_t step)
{
    return channel_of(gather, p)->box + (size_t)(step & 1) * gather->box_bytes;
}

static uint32_t count(const epx_gather_t *gather)
{
    local_fabric_t *fabric = gather->fabric;
    return epx_bell_count(&fabric->bell);
}

static epx_status_t pause_gather(epx_gather_t *gather, int32_t p, int32_t *spin, uint32_t bell,
                                 int32_t *culprit_p, int32_t *last_look_p)
{
    local_fabric_t *fabric = gather->fabric;
    local_watch_t *watch = &making_of(gather)->watch;
    (void)last_look_p;
    if (watch->begin_ns == 0) {
        watch->begin_ns = epx_clock_ns();
        watch->deadline_ns = watch->begin_ns + gather->timeout_ms * 1000000;
        watch->timeout_ms = gather->timeout_ms;
    }
    if (my_channel(gather)->event != NULL) {
        /* B3: this step, or the one before it (I1). */
        watch->epoch = gather->side->sequence - (gather->result->expected != gather->side->sequence);
        watch->join = epx_local_join_of(fabric, epx_local_join_of_exchange(fabric, gather->channel));
    }
    return epx_local_pause(watch, &my_channel(gather)->word[p], spin, bell, culprit_p);
}

static const epx_gather_ops_t ops = {.word = word_of,
                                     .failure = failure_of,
                                     .push = push,
                                     .post = post,
                                     .box = box,
                                     .count = count,
                                     .pause = pause_gather};

static epx_gather_t gather_on(local_fabric_t *fabric, making_t *making, int32_t channel, int64_t timeout_ms,
                              epx_wait_result_t *result)
{
    return (epx_gather_t){.ops = &ops,
                          .fabric = fabric,
                          .watch = making,
                          .side = &fabric->channel[channel].side,
                          .channel = channel,
                          .circle = {.size = fabric->base.ranks, .me = fabric->base.rank},
                          .box_bytes = (size_t)fabric->host_box_bytes,
                          .timeout_ms = timeout_ms,
                          .result = result};
}

epx_status_t epx_local_exchange(epx_fabric_t *base, const epx_exchange_t *exchange, epx_wait_result_t *result,
                                epx_stream_t stream)
{
    local_fabric_t *fabric = (local_fabric_t *)base;
    making_t making = {.watch = {.fabric = fabric, .patience = exchange->patience}, .stream = stream};
    epx_gather_t gather = gather_on(fabric, &making, exchange->channel, exchange->timeout_ms, result);
    epx_status_t status;
    *result = (epx_wait_result_t){.peer = -1};
    if (exchange->send == NULL)
        return epx_gather_fail(&gather);
    if (epx_local_is_remote(fabric) && !exchange->on_host)
        status = epx_local_device_exchange(&gather, exchange, stream);
    else
        status = epx_gather(&gather, exchange->send, exchange->receive, exchange->bytes);
    if (making.watch.begin_ns != 0)
        result->waited_ns = epx_clock_ns() - making.watch.begin_ns;
    return status;
}

epx_status_t epx_local_gather(local_fabric_t *fabric, int32_t extra_channel, const void *send, void *receive,
                              size_t bytes, int64_t timeout_ms)
{
    int survivors = extra_channel == LOCAL_SURVIVORS_CHANNEL;
    making_t making = {
        .watch = {.fabric = fabric, .ignores_abort = survivors, .meeting = fabric->config.meeting}};
    const epx_fabric_meeting_t *meeting = survivors ? NULL : fabric->config.meeting;
    epx_wait_result_t own = {.peer = -1}, *live = &own;
    if (meeting != NULL)
        live = meeting->begin(meeting->context, &own);
    epx_gather_t gather =
        gather_on(fabric, &making, fabric->config.exchange_channels + extra_channel, timeout_ms, live);
    if (survivors)
        gather.circle = fabric->survivors;
    epx_status_t status = epx_gather(&gather, send, receive, bytes);
    epx_wait_result_t result = *live;
    if (meeting != NULL)
        meeting->end(meeting->context, status);
    if (status == EPX_OK)
        return EPX_OK;
    if (status == EPX_ERR_ABORTED)
        return epx_fail(status, "%s: rank %d gave up meeting the others at set-up: the job is being left",
                        fabric->config.name, fabric->base.rank);
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
    /* Under the closed meeting `joined` does not change any more; the lock gave the order. */
    for (int32_t r = 0; r < base->ranks; r++)
        alive_p[r] = (uint8_t)fabric->peer[r]->joined;
    epx_status_t status =
        epx_circle_close(base, fabric->config.name, alive_p, fabric->alive, &fabric->survivors);
    if (status == EPX_OK)
        *bootstrap_p = epx_circle_bootstrap(&fabric->survivors, fabric, survivors_gather);
    return status;
}
