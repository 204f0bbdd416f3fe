/* The small all-gather of fabrics. SPDX-License-Identifier: Apache-2.0 */
#include "fabric/gather.h"

#include <string.h>

#include "base/fail.h"

typedef enum step_state { STEP_PENDING, STEP_ARRIVED, STEP_FAILED } step_state_t;

static uint64_t step_in(uint64_t word) { return word >> 1; }

/* I2 and I3. */
static step_state_t state_of(const epx_gather_t *gather, int32_t p, uint64_t step)
{
    uint64_t word = gather->ops->word(gather, p);
    if (step_in(word) == step)
        return STEP_ARRIVED;
    if (step_in(word) > step)
        return (word & 1) != 0 ? STEP_FAILED : STEP_ARRIVED;
    if (gather->ops->failure(gather, p) < step)
        return STEP_PENDING;
    /* The failure word is read after the word: look at the word again, the step may have arrived in between.
     */
    word = gather->ops->word(gather, p);
    if (step_in(word) < step)
        return STEP_FAILED;
    return step_in(word) > step && (word & 1) != 0 ? STEP_FAILED : STEP_ARRIVED;
}

/* I1: rank p is past step - 2. */
static int has_credit(const epx_gather_t *gather, int32_t p, uint64_t step)
{
    return step_in(gather->ops->word(gather, p)) + 1 >= step || gather->ops->failure(gather, p) + 1 >= step;
}

epx_status_t epx_gather_await(epx_gather_t *gather, int32_t p, uint64_t step, int credit)
{
    const epx_gather_ops_t *ops = gather->ops;
    epx_wait_result_t *result = gather->result;
    epx_status_t ended = EPX_OK;
    int32_t spin = 0;
    for (;;) {
        uint32_t count = ops->count(gather);
        step_state_t state = credit ? STEP_PENDING : state_of(gather, p, step);
        if (state == STEP_ARRIVED || (credit && has_credit(gather, p, step))) {
            if (ops->saw != NULL)
                ops->saw(gather, p);
            return EPX_OK;
        }
        if (ended != EPX_OK)
            return ended;
        result->peer = p;
        result->expected = credit ? step - 2 : step; /* who looks for `step` has sent its own */
        result->seen = step_in(ops->word(gather, p));
        if (state == STEP_FAILED) {
            result->failure = step;
            return EPX_ERR_PEER;
        }
        int32_t culprit = p, last_look = 0;
        epx_status_t status = ops->pause(gather, p, &spin, count, &culprit, &last_look);
        if (status == EPX_OK)
            continue;
        result->peer = culprit;
        if (!last_look)
            return status;
        ended = status;
    }
}

epx_status_t epx_gather_post(epx_gather_t *gather, uint64_t step, int failed)
{
    uint64_t value = failed ? step : step << 1 | gather->side->failed_before;
    epx_status_t status = gather->ops->post(gather, value, failed);
    gather->side->failed_before = failed ? 1 : 0;
    return status;
}

epx_status_t epx_gather_fail(epx_gather_t *gather)
{
    return epx_gather_post(gather, ++gather->side->sequence, 1);
}

/* One step: a piece of at most one box. */
static epx_status_t make_step(epx_gather_t *gather, const uint8_t *send, uint8_t *receive, size_t stride,
                              size_t bytes)
{
    const epx_circle_t *circle = &gather->circle;
    uint64_t step = ++gather->side->sequence;
    epx_status_t status = EPX_OK;
    for (int32_t i = 0; i < circle->size && status == EPX_OK; i++)
        status = epx_gather_await(gather, epx_circle_rank(circle, i), step, 1);
    if (status == EPX_OK && bytes > 0)
        status = gather->ops->push(gather, step, send, bytes);
    if (status == EPX_OK)
        status = epx_gather_post(gather, step, 0);
    for (int32_t n = 0; n < circle->size && status == EPX_OK; n++) {
        int32_t i = (circle->me + n) % circle->size, p = epx_circle_rank(circle, i);
        status = epx_gather_await(gather, p, step, 0);
        if (status == EPX_OK && bytes > 0)
            memcpy(receive + (size_t)i * stride, gather->ops->box(gather, p, step), bytes);
    }
    return status;
}

epx_status_t epx_gather(epx_gather_t *gather, const void *send, void *receive, size_t bytes)
{
    size_t done = 0;
    epx_status_t status;
    do {
        size_t now = bytes - done < gather->box_bytes ? bytes - done : gather->box_bytes;
        status = make_step(gather, (const uint8_t *)send + done, (uint8_t *)receive + done, bytes, now);
        done += now;
    } while (status == EPX_OK && done < bytes);
    return status;
}

epx_status_t epx_circle_close(const epx_fabric_t *fabric, const char *name, const uint8_t *alive,
                              int32_t *room, epx_circle_t *circle_p)
{
    epx_circle_t circle = {.rank = room};
    if (!alive[fabric->rank])
        return epx_fail(EPX_ERR_PEER, "%s: rank %d came too late to recover: the others went on without it",
                        name, fabric->rank);
    for (int32_t r = 0; r < fabric->ranks; r++) {
        if (!alive[r])
            continue;
        if (r == fabric->rank)
            circle.me = circle.size;
        room[circle.size++] = r;
    }
    *circle_p = circle;
    return EPX_OK;
}
