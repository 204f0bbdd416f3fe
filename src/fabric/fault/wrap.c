/* The fabric that wraps another. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "fabric/fault/internal.h"

typedef struct fault_fabric {
    epx_fabric_t base;
    epx_fabric_ops_t ops; /* without what the inner one lacks */
    epx_fabric_t *inner;
    epx_fault_t *fault;
    const char *name;
    int32_t channels;
    uint64_t (*posted)[2]; /* [channels] what this rank has posted last, and before that */
} fault_fabric_t;

static const epx_fabric_ops_t fault_ops;

epx_status_t epx_fault_wrap(epx_fault_t *fault, const epx_fabric_config_t *config, int64_t row_bytes,
                            epx_fabric_t **fabric_p)
{
    epx_fabric_t *inner = *fabric_p;
    fault_fabric_t *fabric = calloc(1, sizeof(*fabric));
    uint64_t(*posted)[2] = calloc((size_t)config->channels + 1, sizeof(*posted));
    if (fabric == NULL || posted == NULL) {
        free(fabric);
        free(posted);
        return epx_fail(EPX_ERR_NO_MEMORY, "%s: no memory to wrap fabric %s for EPX_FAULT", config->name,
                        inner->ops->name);
    }
    *fabric = (fault_fabric_t){.base = {.rank = inner->rank, .ranks = inner->ranks, .caps = inner->caps},
                               .ops = fault_ops,
                               .inner = inner,
                               .fault = fault,
                               .name = config->name,
                               .channels = config->channels,
                               .posted = posted};
    if (inner->ops->segment_allocate == NULL)
        fabric->ops.segment_allocate = NULL;
    if (inner->ops->late == NULL)
        fabric->ops.late = NULL;
    fabric->base.ops = &fabric->ops;
    fault->rank = inner->rank;
    fault->row_bytes = row_bytes;
    fault->inner = inner;
    *fabric_p = &fabric->base;
    return EPX_OK;
}

static void fault_close(epx_fabric_t **fabric_p)
{
    fault_fabric_t *fabric = (fault_fabric_t *)*fabric_p;
    if (fabric == NULL)
        return;
    *fabric_p = NULL;
    epx_fault_end_kernels(fabric->fault);
    /* After a recovery the fault belongs to the next fabric already. */
    if (fabric->fault->inner == fabric->inner) {
        epx_fault_set_segment(fabric->fault, NULL);
        fabric->fault->inner = NULL;
    }
    fabric->inner->ops->close(&fabric->inner);
    free(fabric->posted);
    free(fabric);
}

static void *fault_segment_allocate(epx_fabric_t *base, size_t bytes)
{
    epx_fabric_t *inner = ((fault_fabric_t *)base)->inner;
    return inner->ops->segment_allocate(inner, bytes);
}

static epx_status_t fault_segment_open(epx_fabric_t *base, void *memory, size_t bytes,
                                       epx_segment_t *segment_p)
{
    fault_fabric_t *fabric = (fault_fabric_t *)base;
    epx_fabric_t *inner = fabric->inner;
    epx_fault_hits_t hits = epx_fault_at(fabric->fault, EPX_FAULT_REGISTER, EPX_FAULT_ANY);
    void *given = epx_fault_hit(&hits, EPX_FAULT_DROP) ? NULL : memory;
    epx_status_t status = inner->ops->segment_open(inner, given, bytes, segment_p);
    if (status == EPX_OK && epx_fault_hit(&hits, EPX_FAULT_DUPLICATE)) {
        epx_segment_t again;
        status = inner->ops->segment_open(inner, memory, bytes, &again);
    }
    if (status == EPX_OK)
        epx_fault_set_segment(fabric->fault, segment_p);
    return status;
}

/* The pieces of `all` that concern one peer, to `some`; returns how many. */
static int32_t pieces_of(const epx_piece_t *all, int32_t count, int32_t peer, epx_piece_t *some)
{
    int32_t n = 0;
    for (int32_t i = 0; i < count; i++)
        if (all[i].peer == peer)
            some[n++] = all[i];
    return n;
}

static void remember(fault_fabric_t *fabric, const epx_post_t *post)
{
    uint64_t *posted = fabric->posted[post->channel], epoch = post->epoch.add;
    if (posted[0] == epoch)
        return;
    posted[1] = posted[0];
    posted[0] = epoch;
}

/* What a word held two posts ago. A resident epoch is what its lane counts with this call's place in a pass
 * behind it: two passes ago, each of a route of its own. */
static uint64_t stale_add(const fault_fabric_t *fabric, const epx_post_t *post)
{
    const uint64_t pass =
        ((uint64_t)1 << (EPX_EPOCH_CALL_BITS + EPX_EPOCH_ROUTE_BITS)) + ((uint64_t)1 << EPX_EPOCH_CALL_BITS);
    return post->epoch.base != NULL ? post->epoch.add - 2 * pass : fabric->posted[post->channel][1];
}

/* One peer's share of a post, disturbed. `mine` is that share. */
static epx_status_t post_one(fault_fabric_t *fabric, const epx_post_t *mine, epx_stream_t stream)
{
    epx_fabric_t *inner = fabric->inner;
    epx_post_t post = *mine;
    epx_status_t status = EPX_OK;
    epx_fault_hits_t hits = epx_fault_at(fabric->fault, EPX_FAULT_SIGNAL_PRE, post.peer);
    if (epx_fault_hit(&hits, EPX_FAULT_STALE))
        post.epoch.add = stale_add(fabric, &post);
    if (epx_fault_hit(&hits, EPX_FAULT_FLIP))
        post.epoch.add ^= (uint64_t)1 << (hits.argument[EPX_FAULT_FLIP] & 63);
    if (!epx_fault_hit(&hits, EPX_FAULT_DROP))
        status = inner->ops->post(inner, &post, stream);
    epx_fault_hits_t after = epx_fault_at(fabric->fault, EPX_FAULT_SIGNAL_POST, post.peer);
    if (status == EPX_OK &&
        (epx_fault_hit(&hits, EPX_FAULT_DUPLICATE) || epx_fault_hit(&after, EPX_FAULT_DUPLICATE))) {
        post.send_count = post.receive_count = 0;
        status = inner->ops->post(inner, &post, stream);
    }
    return status;
}

static epx_status_t fault_post(epx_fabric_t *base, const epx_post_t *post, epx_stream_t stream)
{
    fault_fabric_t *fabric = (fault_fabric_t *)base;
    epx_fabric_t *inner = fabric->inner;
    epx_status_t status = EPX_OK;
    if (!epx_fault_may(fabric->fault, EPX_FAULT_SIGNAL_PRE) &&
        !epx_fault_may(fabric->fault, EPX_FAULT_SIGNAL_POST)) {
        remember(fabric, post);
        return inner->ops->post(inner, post, stream);
    }
    int32_t first = post->peer == EPX_ALL_PEERS ? 0 : post->peer;
    int32_t last = post->peer == EPX_ALL_PEERS ? base->ranks - 1 : post->peer;
    size_t pieces = (size_t)post->send_count + (size_t)post->receive_count;
    epx_piece_t *room = malloc((pieces + 1) * sizeof(*room));
    if (room == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "%s: no memory for %zu pieces", fabric->name, pieces);
    for (int32_t p = first; p <= last && status == EPX_OK; p++) {
        epx_post_t mine = *post;
        mine.peer = p;
        mine.sends = room;
        mine.send_count = pieces_of(post->sends, post->send_count, p, room);
        mine.receives = room + mine.send_count;
        mine.receive_count = pieces_of(post->receives, post->receive_count, p, room + mine.send_count);
        status = post_one(fabric, &mine, stream);
    }
    free(room);
    remember(fabric, post);
    return status;
}

static epx_status_t fault_wait(epx_fabric_t *base, const epx_wait_t *wait, epx_wait_result_t *result_p,
                               epx_stream_t stream)
{
    fault_fabric_t *fabric = (fault_fabric_t *)base;
    epx_fault_hits_t hits = epx_fault_at(fabric->fault, EPX_FAULT_WAIT_PRE, EPX_FAULT_ANY);
    if (epx_fault_hit(&hits, EPX_FAULT_SKIP)) {
        *result_p = (epx_wait_result_t){.peer = -1};
        return EPX_OK;
    }
    return fabric->inner->ops->wait(fabric->inner, wait, result_p, stream);
}

static epx_status_t fault_post_failure(epx_fabric_t *base, int32_t failure_channel, epx_epoch_t epoch,
                                       epx_stream_t stream)
{
    epx_fabric_t *inner = ((fault_fabric_t *)base)->inner;
    return inner->ops->post_failure(inner, failure_channel, epoch, stream);
}

/* This rank's block never goes out: it waits like its peers, until one of them gives up. */
static epx_status_t drop_exchange(fault_fabric_t *fabric, const epx_exchange_t *exchange,
                                  epx_wait_result_t *result_p)
{
    int64_t begin = epx_clock_ns(), deadline = begin + exchange->timeout_ms * 1000000;
    int32_t by = -1;
    while (by < 0 && epx_clock_ns() < deadline) {
        epx_nap_ns(1000000);
        by = fabric->inner->ops->aborted(fabric->inner, NULL);
    }
    *result_p = (epx_wait_result_t){.peer = by >= 0 ? by : (fabric->base.rank + 1) % fabric->base.ranks,
                                    .waited_ns = epx_clock_ns() - begin};
    return by < 0 ? EPX_ERR_TIMEOUT : by == fabric->base.rank ? EPX_ERR_ABORTED : EPX_ERR_PEER;
}

static epx_status_t fault_exchange(epx_fabric_t *base, const epx_exchange_t *exchange,
                                   epx_wait_result_t *result_p, epx_stream_t stream)
{
    fault_fabric_t *fabric = (fault_fabric_t *)base;
    epx_fabric_t *inner = fabric->inner;
    epx_fault_hits_t hits = epx_fault_at(fabric->fault, EPX_FAULT_EXCHANGE, EPX_FAULT_ANY);
    if (epx_fault_hit(&hits, EPX_FAULT_SKIP)) {
        *result_p = (epx_wait_result_t){.peer = -1};
        return EPX_OK;
    }
    if (epx_fault_hit(&hits, EPX_FAULT_DROP))
        return drop_exchange(fabric, exchange, result_p);
    if (!epx_fault_hit(&hits, EPX_FAULT_FLIP) || exchange->send == NULL || exchange->bytes == 0)
        return inner->ops->exchange(inner, exchange, result_p, stream);
    epx_exchange_t flipped = *exchange;
    uint8_t *copy = malloc(exchange->bytes);
    if (copy == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "%s: no memory for a block of %zu bytes", fabric->name,
                        exchange->bytes);
    uint64_t bit = (uint64_t)hits.argument[EPX_FAULT_FLIP] % (exchange->bytes * 8);
    memcpy(copy, exchange->send, exchange->bytes);
    copy[bit / 8] ^= (uint8_t)(1u << bit % 8);
    flipped.send = copy;
    epx_status_t status = inner->ops->exchange(inner, &flipped, result_p, stream);
    free(copy);
    return status;
}

static void fault_abort(epx_fabric_t *base, int32_t culprit)
{
    epx_fabric_t *inner = ((fault_fabric_t *)base)->inner;
    epx_fault_end_kernels(((fault_fabric_t *)base)->fault);
    inner->ops->abort(inner, culprit);
    epx_fault_end_kernels(((fault_fabric_t *)base)->fault); /* one that was launched meanwhile */
}

static int32_t fault_aborted(epx_fabric_t *base, int32_t *culprit_p)
{
    epx_fabric_t *inner = ((fault_fabric_t *)base)->inner;
    return inner->ops->aborted(inner, culprit_p);
}

static epx_status_t fault_late(epx_fabric_t *base, epx_wait_result_t *result_p, uint64_t *tag_p)
{
    epx_fabric_t *inner = ((fault_fabric_t *)base)->inner;
    return inner->ops->late(inner, result_p, tag_p);
}

static epx_status_t fault_survivors(epx_fabric_t *base, int64_t timeout_ms, uint8_t *alive_p,
                                    epx_bootstrap_t *bootstrap_p)
{
    epx_fabric_t *inner = ((fault_fabric_t *)base)->inner;
    return inner->ops->survivors(inner, timeout_ms, alive_p, bootstrap_p);
}

/* It is never chosen by name: groups wrap what they have opened. */
static const epx_fabric_ops_t fault_ops = {
    .name = "fault",
    .close = fault_close,
    .segment_allocate = fault_segment_allocate,
    .segment_open = fault_segment_open,
    .post = fault_post,
    .wait = fault_wait,
    .post_failure = fault_post_failure,
    .exchange = fault_exchange,
    .abort = fault_abort,
    .aborted = fault_aborted,
    .late = fault_late,
    .survivors = fault_survivors,
};
