/* Fabric `nccl` by sends and receives: its memory, and its table. SPDX-License-Identifier: Apache-2.0 */
#include "fabric/nccl/far.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"

enum { ALIGN = 128, BOX_LEAST = 256, BOX_MOST = 8192 };

static far_column_t lay_column(const epx_fabric_config_t *config)
{
    far_column_t c = {0};
    c.box_bytes = ((int64_t)config->exchange_bytes + 15) / 16 * 16;
    if (c.box_bytes < BOX_LEAST)
        c.box_bytes = BOX_LEAST;
    if (c.box_bytes > BOX_MOST)
        c.box_bytes = BOX_MOST;
    c.abort = 1;
    c.words = 2;
    c.failures = c.words + config->channels;
    c.steps = c.failures + config->failure_channels;
    c.step_failures = c.steps + config->exchange_channels;
    c.offers = c.step_failures + config->exchange_channels;
    c.boxes = (c.offers + config->channels + 1) / 2 * 2;
    c.size = c.boxes + config->exchange_channels * 2 * c.box_bytes / (int64_t)sizeof(uint64_t);
    return c;
}

int64_t epx_nccl_far_column_bytes(const epx_fabric_config_t *config, int32_t ranks)
{
    (void)ranks;
    return lay_column(config).size * (int64_t)sizeof(uint64_t);
}

int64_t epx_nccl_far_device_bytes(const epx_fabric_config_t *config, int32_t ranks)
{
    return 2 * ranks * epx_nccl_far_column_bytes(config, ranks);
}

typedef struct memory_layout {
    int64_t seen, boxes, stage, side, ticket, word, posted, live, failure, step, own_box, done, had, is_gone,
        bytes;
} memory_layout_t;

static int64_t take(int64_t *end, int64_t bytes)
{
    int64_t offset = *end;
    *end = (offset + bytes + ALIGN - 1) / ALIGN * ALIGN;
    return offset;
}

static memory_layout_t lay_memory(const epx_fabric_config_t *config, int32_t ranks)
{
    memory_layout_t l = {0};
    far_column_t c = lay_column(config);
    int64_t s = ranks, channels = config->channels, exchanges = config->exchange_channels,
            word = (int64_t)sizeof(uint64_t), end = 0;
    take(&end, (int64_t)sizeof(nccl_far_t));
    l.seen = take(&end, s * c.offers * word);
    l.boxes = take(&end, s * exchanges * 2 * c.box_bytes);
    l.stage = take(&end, exchanges * (1 + s) * (int64_t)config->exchange_bytes);
    l.side = take(&end, exchanges * (int64_t)sizeof(epx_gather_side_t));
    l.ticket = take(&end, channels * word);
    l.word = take(&end, channels * s * (int64_t)sizeof(far_word_t));
    l.posted = take(&end, channels * (int64_t)sizeof(far_list_t));
    l.live = take(&end, channels * (int64_t)sizeof(far_list_t));
    l.failure = take(&end, config->failure_channels * word);
    l.step = take(&end, 2 * exchanges * word);
    l.own_box = take(&end, exchanges * 2 * c.box_bytes);
    l.done = take(&end, channels * s * word);
    l.had = take(&end, s * c.offers * word);
    l.is_gone = take(&end, s);
    l.bytes = end;
    return l;
}

int64_t epx_nccl_far_bytes(const epx_fabric_config_t *config, int32_t ranks)
{
    return lay_memory(config, ranks).bytes;
}

epx_status_t epx_nccl_far_begin(nccl_fabric_t *fabric, void *memory)
{
    const epx_fabric_config_t *config = &fabric->config;
    int32_t ranks = fabric->base.ranks;
    memory_layout_t l = lay_memory(config, ranks);
    uint8_t *block = memory;
    nccl_far_t *far = memory;
    far->column = lay_column(config);
    far->seen = (_Atomic uint64_t *)(void *)(block + l.seen);
    far->boxes = block + l.boxes;
    far->stage = block + l.stage;
    far->side = (epx_gather_side_t *)(void *)(block + l.side);
    far->ticket = (uint64_t *)(void *)(block + l.ticket);
    far->word = (far_word_t *)(void *)(block + l.word);
    far->posted = (far_list_t *)(void *)(block + l.posted);
    far->live = (far_list_t *)(void *)(block + l.live);
    far->failure = (uint64_t *)(void *)(block + l.failure);
    far->step = (uint64_t *)(void *)(block + l.step);
    far->own_box = block + l.own_box;
    far->done = (uint64_t *)(void *)(block + l.done);
    far->had = (uint64_t *)(void *)(block + l.had);
    far->is_gone = block + l.is_gone;
    pthread_mutex_init(&far->mutex, NULL);
    fabric->far = far;
    int64_t columns = 2 * ranks * far->column.size;
    far->shared_bytes = (columns + config->channels + 1) * (int64_t)sizeof(uint64_t);
    far->out = config->device->allocate_shared((size_t)far->shared_bytes);
    if (far->out == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "%s: rank %d has no %" PRId64 " bytes that its GPU sees",
                        config->name, fabric->base.rank, far->shared_bytes);
    far->in = far->out + ranks * far->column.size;
    far->reached = far->out + columns;
    return EPX_OK;
}

void epx_nccl_far_end(nccl_fabric_t *fabric)
{
    nccl_far_t *far = fabric->far;
    pthread_mutex_lock(&far->mutex);
    far->is_closing = 1;
    pthread_mutex_unlock(&far->mutex);
    epx_bell_ring(&far->stir);
    if (far->has_courier)
        pthread_join(far->courier, NULL);
    for (int32_t c = 0; c < fabric->config.channels; c++) {
        free(far->posted[c].piece);
        free(far->live[c].piece);
    }
    if (far->out != NULL)
        fabric->config.device->release_shared(far->out, (size_t)far->shared_bytes);
    pthread_mutex_destroy(&far->mutex);
}
