/* Fabric `ucx`: the small all-gather. The protocol is that of local/local.h, pushed. SPDX-License-Identifier:
 * Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "base/fail.h"
#include "fabric/ucx/internal.h"

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

/* I2 and I3. */
static step_state_t step_of(const ucx_fabric_t *fabric, int32_t index, int32_t p, uint64_t step)
{
    const ucx_layout_t *l = &fabric->layout;
    uint64_t word = load_row(fabric, l->step, index, p);
    if (word_step(word) == step)
        return STEP_ARRIVED;
    if (word_step(word) > step)
        return (word & 1) != 0 ? STEP_FAILED : STEP_ARRIVED;
    if (load_row(fabric, l->step_failure, index, p) < step)
        return STEP_PENDING;
    /* The failure word is read after the word: look at the word again, the step may have arrived in between.
     */
    word = load_row(fabric, l->step, index, p);
    if (word_step(word) < step)
        return STEP_FAILED;
    return word_step(word) > step && (word & 1) != 0 ? STEP_FAILED : STEP_ARRIVED;
}

/* I1: rank p is past step - 2. */
static int has_credit(const ucx_fabric_t *fabric, int32_t index, int32_t p, uint64_t step)
{
    return word_step(load_row(fabric, fabric->layout.step, index, p)) + 1 >= step ||
           load_row(fabric, fabric->layout.step_failure, index, p) + 1 >= step;
}

/* Waits until p has arrived at `step` (or, credit: is past step - 2). */
static epx_status_t await_step(ucx_watch_t *watch, int32_t index, int32_t p, uint64_t step, int credit,
                               int64_t timeout_ms, epx_wait_result_t *result)
{
    ucx_fabric_t *fabric = watch->fabric;
    int32_t spin = 0, is_last_look = 0;
    for (;;) {
        uint32_t bell = epx_bell_count(epx_ucx_bell(fabric));
        step_state_t state = credit ? STEP_PENDING : step_of(fabric, index, p, step);
        if (state == STEP_ARRIVED || (credit && has_credit(fabric, index, p, step))) {
            epx_ucx_saw(fabric, p);
            return EPX_OK;
        }
        if (is_last_look)
            return EPX_ERR_PEER;
        result->peer = p;
        result->expected = credit ? step - 2 : step; /* who looks for `step` has sent its own */
        result->seen = word_step(load_row(fabric, fabric->layout.step, index, p));
        if (state == STEP_FAILED) {
            result->failure = step;
            return EPX_ERR_PEER;
        }
        epx_ucx_start_clock(watch, timeout_ms);
        int32_t culprit = p;
        epx_status_t status = epx_ucx_pause(watch, &spin, bell, &culprit);
        if (status != EPX_OK && status != EPX_ERR_PEER) {
            result->peer = culprit;
            return status;
        }
        if (status == EPX_ERR_PEER) { /* the dead may have spoken before */
            is_last_look = 1;
            result->peer = culprit;
        }
    }
}

static void post_step(ucx_fabric_t *fabric, int32_t index, const circle_t *circle, uint64_t step, int failed)
{
    ucx_channel_t *mine = &fabric->channel[index];
    int64_t rows = failed ? fabric->layout.step_failure : fabric->layout.step;
    uint64_t value = failed ? step : step << 1 | mine->failed_before;
    epx_ucx_fence(fabric);
    for (int32_t i = 0; i < circle->size; i++)
        epx_ucx_set(fabric, circle_rank(circle, i), row_offset(fabric, rows, index, fabric->base.rank),
                    value);
    mine->failed_before = failed ? 1 : 0;
}

/* This rank's block into its box at everybody. */
static epx_status_t push(ucx_fabric_t *fabric, int32_t index, const circle_t *circle, uint64_t step,
                         const uint8_t *send, size_t bytes)
{
    epx_status_t status = EPX_OK;
    int64_t offset = box_offset(fabric, index, step, fabric->base.rank);
    if (fabric->far_count > 0) { /* U3 */
        uint8_t *out = fabric->out + ((int64_t)index * 2 + (int64_t)(step & 1)) * fabric->layout.box_bytes;
        memcpy(out, send, bytes);
        send = out;
    }
    for (int32_t i = 0; i < circle->size && status == EPX_OK; i++)
        status = epx_ucx_put(fabric, &fabric->control, circle_rank(circle, i), offset, send, bytes);
    return status;
}

/* One step: a piece of at most one box. */
static epx_status_t exchange_step(ucx_watch_t *watch, int32_t index, const circle_t *circle,
                                  const uint8_t *send, uint8_t *receive, size_t stride, size_t bytes,
                                  int64_t timeout_ms, epx_wait_result_t *result)
{
    ucx_fabric_t *fabric = watch->fabric;
    uint64_t step = ++fabric->channel[index].sequence;
    epx_status_t status = EPX_OK;
    for (int32_t i = 0; i < circle->size && status == EPX_OK; i++)
        status = await_step(watch, index, circle_rank(circle, i), step, 1, timeout_ms, result);
    if (status == EPX_OK && bytes > 0)
        status = push(fabric, index, circle, step, send, bytes);
    if (status != EPX_OK)
        return status;
    post_step(fabric, index, circle, step, 0);
    for (int32_t n = 0; n < circle->size; n++) {
        int32_t i = (circle->me + n) % circle->size, p = circle_rank(circle, i);
        status = await_step(watch, index, p, step, 0, timeout_ms, result);
        if (status != EPX_OK)
            return status;
        if (bytes > 0)
            memcpy(receive + (size_t)i * stride,
                   (const uint8_t *)fabric->control.base + box_offset(fabric, index, step, p), bytes);
    }
    return EPX_OK;
}

static epx_status_t exchange_all(ucx_watch_t *watch, int32_t index, const circle_t *circle, const void *send,
                                 void *receive, size_t bytes, int64_t timeout_ms, epx_wait_result_t *result)
{
    size_t box = (size_t)watch->fabric->layout.box_bytes, done = 0;
    epx_status_t status;
    do {
        size_t now = bytes - done < box ? bytes - done : box;
        status = exchange_step(watch, index, circle, (const uint8_t *)send + done, (uint8_t *)receive + done,
                               bytes, now, timeout_ms, result);
        done += now;
    } while (status == EPX_OK && done < bytes);
    return status;
}

epx_status_t epx_ucx_exchange(epx_fabric_t *base, const epx_exchange_t *exchange, epx_wait_result_t *result,
                              epx_stream_t stream)
{
    (void)stream;
    ucx_fabric_t *fabric = (ucx_fabric_t *)base;
    ucx_watch_t watch = {.fabric = fabric};
    circle_t all = {.size = base->ranks, .me = base->rank};
    *result = (epx_wait_result_t){.peer = -1};
    if (exchange->send == NULL) {
        post_step(fabric, exchange->channel, &all, ++fabric->channel[exchange->channel].sequence, 1);
        return EPX_OK;
    }
    epx_status_t status = exchange_all(&watch, exchange->channel, &all, exchange->send, exchange->receive,
                                       exchange->bytes, exchange->timeout_ms, result);
    if (watch.begin_ns != 0)
        result->waited_ns = epx_clock_ns() - watch.begin_ns;
    return status;
}

epx_status_t epx_ucx_gather(ucx_fabric_t *fabric, int32_t extra_channel, const void *send, void *receive,
                            size_t bytes, int64_t timeout_ms)
{
    int survivors = extra_channel == UCX_SURVIVORS_CHANNEL;
    ucx_watch_t watch = {.fabric = fabric, .ignores_abort = survivors};
    circle_t circle = {.size = fabric->base.ranks, .me = fabric->base.rank};
    epx_wait_result_t result = {.peer = -1};
    if (survivors)
        circle = (circle_t){.rank = fabric->alive, .size = fabric->alive_count, .me = fabric->alive_rank};
    epx_status_t status = exchange_all(&watch, fabric->config.exchange_channels + extra_channel, &circle,
                                       send, receive, bytes, timeout_ms, &result);
    if (status == EPX_OK)
        return EPX_OK;
    if (status == EPX_ERR_TIMEOUT)
        return epx_fail(status,
                        "%s: rank %d met nobody at set-up: rank %d did not come within %" PRId64 " ms",
                        fabric->name, fabric->base.rank, result.peer, timeout_ms);
    return epx_fail(status, "%s: rank %d cannot meet the others at set-up: rank %d is gone", fabric->name,
                    fabric->base.rank, result.peer);
}
