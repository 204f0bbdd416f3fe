/* Fabric `ucx`: the small all-gather. The protocol is in fabric/gather.h. SPDX-License-Identifier:
 * Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "base/fail.h"
#include "fabric/ucx/internal.h"

/* Words stand at the fabric rank of their writer, also among survivors. */
static int64_t row_offset(const ucx_fabric_t *fabric, int64_t rows, int32_t index, int32_t rank)
{
    return rows + ((int64_t)index * fabric->base.ranks + rank) * (int64_t)sizeof(uint64_t);
}

static uint64_t load_row(const ucx_fabric_t *fabric, int64_t rows, int32_t index, int32_t rank)
{
    return atomic_load_explicit(epx_ucx_word(fabric, row_offset(fabric, rows, index, rank)),
                                memory_order_acquire);
}

static int64_t box_offset(const ucx_fabric_t *fabric, int32_t index, uint64_t step, int32_t writer)
{
    int64_t boxes = (int64_t)index * 2 + (int64_t)(step & 1);
    return fabric->layout.box + (boxes * fabric->base.ranks + writer) * fabric->layout.box_bytes;
}

static uint64_t word_of(const epx_gather_t *gather, int32_t p)
{
    const ucx_fabric_t *fabric = gather->fabric;
    return load_row(fabric, fabric->layout.step, gather->channel, p);
}

static uint64_t failure_of(const epx_gather_t *gather, int32_t p)
{
    const ucx_fabric_t *fabric = gather->fabric;
    return load_row(fabric, fabric->layout.step_failure, gather->channel, p);
}

/* Into my box at everybody. */
static epx_status_t push(const epx_gather_t *gather, uint64_t step, const void *send, size_t bytes)
{
    ucx_fabric_t *fabric = gather->fabric;
    epx_status_t status = EPX_OK;
    int64_t offset = box_offset(fabric, gather->channel, step, fabric->base.rank);
    if (fabric->far_count > 0) { /* U3 */
        uint8_t *out =
            fabric->out + ((int64_t)gather->channel * 2 + (int64_t)(step & 1)) * fabric->layout.box_bytes;
        memcpy(out, send, bytes);
        send = out;
    }
    for (int32_t i = 0; i < gather->circle.size && status == EPX_OK; i++)
        status =
            epx_ucx_put(fabric, &fabric->control, epx_circle_rank(&gather->circle, i), offset, send, bytes);
    return status;
}

static epx_status_t post(const epx_gather_t *gather, uint64_t value, int failed)
{
    ucx_fabric_t *fabric = gather->fabric;
    int64_t rows = failed ? fabric->layout.step_failure : fabric->layout.step;
    epx_ucx_fence(fabric);
    for (int32_t i = 0; i < gather->circle.size; i++)
        epx_ucx_set(fabric, epx_circle_rank(&gather->circle, i),
                    row_offset(fabric, rows, gather->channel, fabric->base.rank), value);
    return EPX_OK;
}

static const void *box(const epx_gather_t *gather, int32_t p, uint64_t step)
{
    const ucx_fabric_t *fabric = gather->fabric;
    return (const uint8_t *)fabric->control.base + box_offset(fabric, gather->channel, step, p);
}

static uint32_t count(const epx_gather_t *gather) { return epx_bell_count(epx_ucx_bell(gather->fabric)); }

/* Survivors do not mind who was lost before they met: who of them has died since, p first; -1: nobody. */
static int32_t find_lost(const epx_gather_t *gather, int32_t p)
{
    ucx_fabric_t *fabric = gather->fabric;
    if (atomic_load_explicit(&fabric->any_dead, memory_order_acquire) == 0)
        return -1;
    if (atomic_load(&fabric->peer[p].is_dead))
        return p;
    for (int32_t i = 0; i < gather->circle.size; i++)
        if (atomic_load(&fabric->peer[epx_circle_rank(&gather->circle, i)].is_dead))
            return epx_circle_rank(&gather->circle, i);
    return -1;
}

static epx_status_t pause_gather(epx_gather_t *gather, int32_t p, int32_t *spin, uint32_t bell,
                                 int32_t *culprit_p, int32_t *last_look_p)
{
    const ucx_watch_t *watch = gather->watch;
    int32_t lost = watch->ignores_abort ? find_lost(gather, p) : -1;
    epx_ucx_start_clock(gather->watch, gather->timeout_ms);
    if (lost >= 0) {
        *culprit_p = lost;
        *last_look_p = 1;
        return EPX_ERR_PEER;
    }
    epx_status_t status = epx_ucx_pause(gather->watch, spin, bell, culprit_p);
    *last_look_p = status == EPX_ERR_PEER; /* the dead may have spoken before */
    return status;
}

static void saw(const epx_gather_t *gather, int32_t p) { epx_ucx_saw(gather->fabric, p); }

static const epx_gather_ops_t ops = {.word = word_of,
                                     .failure = failure_of,
                                     .push = push,
                                     .post = post,
                                     .box = box,
                                     .count = count,
                                     .pause = pause_gather,
                                     .saw = saw};

static epx_gather_t gather_on(ucx_watch_t *watch, int32_t channel, int64_t timeout_ms,
                              epx_wait_result_t *result)
{
    ucx_fabric_t *fabric = watch->fabric;
    return (epx_gather_t){.ops = &ops,
                          .fabric = fabric,
                          .watch = watch,
                          .side = &fabric->channel[channel],
                          .channel = channel,
                          .circle = {.size = fabric->base.ranks, .me = fabric->base.rank},
                          .box_bytes = (size_t)fabric->layout.box_bytes,
                          .timeout_ms = timeout_ms,
                          .result = result};
}

epx_status_t epx_ucx_exchange(epx_fabric_t *base, const epx_exchange_t *exchange, epx_wait_result_t *result,
                              epx_stream_t stream)
{
    (void)stream;
    ucx_watch_t watch = {.fabric = (ucx_fabric_t *)base};
    epx_gather_t gather = gather_on(&watch, exchange->channel, exchange->timeout_ms, result);
    *result = (epx_wait_result_t){.peer = -1};
    if (exchange->send == NULL)
        return epx_gather_fail(&gather);
    epx_status_t status = epx_gather(&gather, exchange->send, exchange->receive, exchange->bytes);
    if (watch.begin_ns != 0)
        result->waited_ns = epx_clock_ns() - watch.begin_ns;
    return status;
}

epx_status_t epx_ucx_gather(ucx_fabric_t *fabric, int32_t extra_channel, const void *send, void *receive,
                            size_t bytes, int64_t timeout_ms)
{
    int survivors = extra_channel == UCX_SURVIVORS_CHANNEL;
    ucx_watch_t watch = {.fabric = fabric, .ignores_abort = survivors, .meeting = fabric->config.meeting};
    const epx_fabric_meeting_t *meeting = survivors ? NULL : fabric->config.meeting;
    epx_wait_result_t own = {.peer = -1}, *live = &own;
    if (meeting != NULL)
        live = meeting->begin(meeting->context, &own);
    epx_gather_t gather =
        gather_on(&watch, fabric->config.exchange_channels + extra_channel, timeout_ms, live);
    if (survivors)
        gather.circle = fabric->survivors;
    epx_status_t status = epx_gather(&gather, send, receive, bytes);
    epx_wait_result_t result = *live;
    if (meeting != NULL)
        meeting->end(meeting->context, status);
    if (status == EPX_OK)
        return EPX_OK;
    if (status == EPX_ERR_TIMEOUT)
        return epx_fail(status,
                        "%s: rank %d met nobody at set-up: rank %d did not come within %" PRId64 " ms",
                        fabric->name, fabric->base.rank, result.peer, timeout_ms);
    if (status == EPX_ERR_ABORTED)
        return epx_fail(status, "%s: rank %d gave up meeting the others at set-up: the job is being left",
                        fabric->name, fabric->base.rank);
    return epx_fail(status, "%s: rank %d cannot meet the others at set-up: rank %d is gone", fabric->name,
                    fabric->base.rank, result.peer);
}
