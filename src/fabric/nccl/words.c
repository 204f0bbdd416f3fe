/* Fabric `nccl`: words, waits and exchanges are launched here; what ended them is read here.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "fabric/nccl/nccl.h"

static const epx_kernels_t *kernels_of(const nccl_fabric_t *fabric) { return fabric->config.device->kernels; }

epx_status_t epx_nccl_post(epx_fabric_t *base, const epx_post_t *post, epx_stream_t stream)
{
    nccl_fabric_t *fabric = (nccl_fabric_t *)base;
    epx_k_word_post_t args = {.words = fabric->words,
                              .failure = post->failure_rows > 0,
                              .failure_rows = post->failure_rows,
                              .channel = post->channel,
                              .peer = post->peer,
                              .epoch = post->epoch,
                              .gate = post->gate,
                              .only_failed = post->only_failed,
                              .begin = post->begin,
                              .progress = post->progress,
                              .name = post->name};
    return kernels_of(fabric)->word_post(&args, stream);
}

epx_status_t epx_nccl_post_failure(epx_fabric_t *base, int32_t failure_channel, epx_epoch_t epoch,
                                   epx_stream_t stream)
{
    nccl_fabric_t *fabric = (nccl_fabric_t *)base;
    epx_k_word_post_t args = {.words = fabric->words,
                              .failure = 1,
                              .channel = failure_channel,
                              .peer = EPX_ALL_PEERS,
                              .epoch = epoch};
    return kernels_of(fabric)->word_post(&args, stream);
}

epx_status_t epx_nccl_wait(epx_fabric_t *base, const epx_wait_t *wait, epx_wait_result_t *result_p,
                           epx_stream_t stream)
{
    nccl_fabric_t *fabric = (nccl_fabric_t *)base;
    epx_k_word_wait_t args = {.words = fabric->words,
                              .channel = wait->channel,
                              .peer = wait->peer,
                              .at_least = wait->mode == EPX_WAIT_AT_LEAST,
                              .epoch = wait->epoch,
                              .gate = wait->gate,
                              .watches = wait->watches,
                              .verdict = wait->verdict,
                              .beside = wait->beside,
                              .timeout_ns = wait->timeout_ms * 1000000,
                              .tag = wait->tag,
                              .progress = wait->progress,
                              .name = wait->name,
                              .seen = wait->last_word,
                              .behind_post = wait->behind_post,
                              .next_begins = wait->next_begins,
                              .begin = wait->begin};
    for (int32_t i = 0; i < wait->watches; i++) {
        args.watch[i].channel = wait->watch[i].channel;
        args.watch[i].rows = wait->watch[i].rows;
        args.watch[i].epoch = wait->watch[i].epoch;
    }
    *result_p = (epx_wait_result_t){.peer = -1};
    return kernels_of(fabric)->word_wait(&args, stream);
}

/* One step; `send` and `receive` are device memory. */
static epx_status_t exchange_piece(nccl_fabric_t *fabric, const epx_exchange_t *exchange, const void *send,
                                   void *receive, size_t stride, size_t bytes, epx_stream_t stream)
{
    uint64_t *step = (uint64_t *)(void *)(fabric->local + fabric->local_layout.step) + exchange->channel;
    uint32_t *done = (uint32_t *)(void *)(fabric->local + fabric->local_layout.done) + exchange->channel;
    epx_k_word_exchange_t args = {.words = fabric->words,
                                  .channel = exchange->channel,
                                  .step = step,
                                  .done = done,
                                  .send = send,
                                  .receive = receive,
                                  .stride = (int64_t)stride,
                                  .bytes = (int64_t)bytes,
                                  .timeout_ns = exchange->timeout_ms * 1000000,
                                  .tag = exchange->tag,
                                  .progress = exchange->progress,
                                  .name = exchange->name};
    return kernels_of(fabric)->word_exchange(&args, stream);
}

static epx_status_t exchange_pieces(nccl_fabric_t *fabric, const epx_exchange_t *exchange,
                                    epx_stream_t stream)
{
    size_t most = (size_t)fabric->block_layout.box_bytes;
    epx_status_t status = EPX_OK;
    for (size_t done = 0; status == EPX_OK && (done < exchange->bytes || done == 0); done += most) {
        size_t now = exchange->bytes - done < most ? exchange->bytes - done : most;
        const char *send = exchange->send != NULL ? (const char *)exchange->send + done : NULL;
        status = exchange_piece(fabric, exchange, send, (char *)exchange->receive + done, exchange->bytes,
                                now, stream);
    }
    return status;
}

/* Blocks of the host go through device memory, and are waited for. */
static epx_status_t exchange_on_host(nccl_fabric_t *fabric, const epx_exchange_t *exchange,
                                     epx_stream_t stream)
{
    const epx_device_ops_t *device = fabric->config.device;
    char *stage = fabric->local + fabric->local_layout.stage, *all = stage + fabric->block_layout.box_bytes;
    size_t most = (size_t)fabric->block_layout.box_bytes, ranks = (size_t)fabric->base.ranks;
    epx_status_t status = EPX_OK;
    for (size_t done = 0; status == EPX_OK && done < exchange->bytes; done += most) {
        size_t now = exchange->bytes - done < most ? exchange->bytes - done : most;
        if (exchange->send != NULL)
            status = device->copy(stage, (const char *)exchange->send + done, now, stream);
        if (status == EPX_OK)
            status = exchange_piece(fabric, exchange, exchange->send != NULL ? stage : NULL, all, now, now,
                                    stream);
        for (size_t r = 0; r < ranks && status == EPX_OK; r++)
            status = device->copy((char *)exchange->receive + r * exchange->bytes + done, all + r * now, now,
                                  stream);
        if (status == EPX_OK)
            status = device->synchronize(stream);
    }
    return status;
}

epx_status_t epx_nccl_exchange(epx_fabric_t *base, const epx_exchange_t *exchange,
                               epx_wait_result_t *result_p, epx_stream_t stream)
{
    nccl_fabric_t *fabric = (nccl_fabric_t *)base;
    uint64_t tag;
    *result_p = (epx_wait_result_t){.peer = -1};
    if (!exchange->on_host)
        return exchange_pieces(fabric, exchange, stream);
    epx_status_t status = exchange_on_host(fabric, exchange, stream);
    return status == EPX_OK ? epx_nccl_late(base, result_p, &tag) : status;
}

/* ---- the end of a group ---- */

static uint64_t look(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

/* The waits of this rank see by_host and carry it to the peers; where nothing waits a kernel does. */
void epx_nccl_abort(epx_fabric_t *base, int32_t culprit)
{
    nccl_fabric_t *fabric = (nccl_fabric_t *)base;
    uint64_t none = 0, word = EPX_ABORT_BIT | (uint64_t)(uint32_t)(culprit + 1);
    if (look(&fabric->halt->ended) != 0)
        return;
    if (!__atomic_compare_exchange_n(&fabric->halt->by_host, &none, word, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE))
        return;
    const epx_device_ops_t *device = fabric->config.device;
    epx_k_word_abort_t args = {.words = fabric->words, .word = word};
    int32_t before = device->current();
    device->select(fabric->gpu);
    device->kernels->word_abort(&args, fabric->control);
    device->select(before);
}

int32_t epx_nccl_aborted(epx_fabric_t *base, int32_t *culprit_p)
{
    const epx_word_halt_t *halt = ((nccl_fabric_t *)base)->halt;
    int32_t by = -1, culprit = -1;
    uint64_t by_host = look(&halt->by_host);
    if (look(&halt->ended) != 0) {
        by = halt->status == EPX_ERR_PEER ? halt->peer : base->rank;
        culprit = halt->culprit;
    } else if (by_host != 0) {
        by = base->rank;
        culprit = (int32_t)(uint32_t)by_host - 1;
    }
    if (culprit_p != NULL)
        *culprit_p = culprit;
    return by;
}

epx_status_t epx_nccl_late(epx_fabric_t *base, epx_wait_result_t *result_p, uint64_t *tag_p)
{
    const epx_word_halt_t *halt = ((nccl_fabric_t *)base)->halt;
    if (look(&halt->ended) == 0)
        return EPX_OK;
    *result_p = (epx_wait_result_t){.peer = halt->peer, .expected = halt->expected, .seen = halt->seen};
    *tag_p = halt->tag;
    return (epx_status_t)halt->status;
}
