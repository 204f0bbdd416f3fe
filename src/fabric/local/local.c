/* Fabric `local`: life of fabrics and segments. SPDX-License-Identifier: Apache-2.0 */
#include "fabric/local/local.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"

/* What a rank tells the others about its block. */
typedef struct open_card {
    uint64_t process; /* differs between processes, so that pointers are not followed across them */
    local_fabric_t *fabric;
} open_card_t;

/* Where the parts of a rank's block are; offsets from its start. */
typedef struct block_layout {
    int64_t peer, card, word, failure, channel, channel_word, box, segment, segment_ptr, alive, event,
        followed, joined, join, bytes;
} block_layout_t;

/* Boxes for blocks in host memory: all of them, or what the library itself exchanges where ranks' blocks are
 * elsewhere. */
static int64_t host_box_bytes(const epx_fabric_config_t *config)
{
    return config->device->host_access ? epx_local_box_bytes(config) : 256;
}

static block_layout_t layout_of(const epx_fabric_config_t *config, int32_t ranks)
{
    block_layout_t l;
    int64_t s = ranks, word = (int64_t)sizeof(_Atomic uint64_t);
    int64_t channels = config->exchange_channels + LOCAL_EXTRA_CHANNELS, end = 0;
    epx_local_take(&end, (int64_t)sizeof(local_fabric_t));
    l.peer = epx_local_take(&end, s * (int64_t)sizeof(local_fabric_t *));
    l.card = epx_local_take(&end, s * (int64_t)sizeof(open_card_t));
    l.word = epx_local_take(&end, config->channels * s * word);
    l.failure = epx_local_take(&end, config->failure_channels * s * word);
    l.channel = epx_local_take(&end, channels * (int64_t)sizeof(local_channel_t));
    l.channel_word = epx_local_take(&end, channels * 2 * s * word);
    l.box = epx_local_take(&end, channels * 2 * host_box_bytes(config));
    l.segment = epx_local_take(&end, config->segments_max * (int64_t)sizeof(local_segment_t));
    l.segment_ptr = epx_local_take(&end, config->segments_max * s * (int64_t)sizeof(void *));
    l.alive = epx_local_take(&end, s * (int64_t)sizeof(int32_t));
    int64_t remote = config->device->host_access ? 0 : 1;
    l.event = epx_local_take(&end, remote * config->channels * (int64_t)sizeof(epx_event_t));
    l.followed = epx_local_take(&end, remote * config->exchange_channels * s * (int64_t)sizeof(uint64_t));
    int64_t joins = epx_local_joins(config, ranks);
    l.joined = epx_local_take(&end, joins * (int64_t)sizeof(epx_event_t));
    l.join = epx_local_take(&end, joins * (int64_t)sizeof(local_join_t));
    l.bytes = end;
    return l;
}

static int64_t local_memory(const epx_fabric_config_t *config, int32_t ranks, int64_t *device_bytes_p)
{
    *device_bytes_p = epx_local_device_bytes(config, ranks);
    return layout_of(config, ranks).bytes;
}

/* Ranks on a GPU share it. */
static int local_probe(const epx_device_ops_t *device, char *reason, size_t reason_bytes)
{
    (void)device;
    snprintf(reason, reason_bytes, "%s", "");
    return 50;
}

static void free_block(local_fabric_t *fabric)
{
    epx_allocator_t allocator = fabric->allocator;
    for (int32_t i = 0; i < fabric->segments; i++)
        if (fabric->segment[i].memory != NULL)
            allocator.release(allocator.context, fabric->segment[i].memory, fabric->segment[i].bytes, 1);
    if (!fabric->config.device->host_access)
        epx_local_device_close(fabric);
    allocator.release(allocator.context, fabric, (size_t)fabric->block_bytes, 0);
}

/* Allocates and lays out one rank's block; NULL when there is no memory. */
static local_fabric_t *make_block(const epx_fabric_config_t *config, int32_t rank, int32_t ranks)
{
    block_layout_t l = layout_of(config, ranks);
    const epx_allocator_t *allocator = config->allocator;
    uint8_t *block = allocator->allocate(allocator->context, (size_t)l.bytes, 128, 0);
    if (block == NULL)
        return NULL;
    memset(block, 0, (size_t)l.bytes);
    local_fabric_t *fabric = (local_fabric_t *)(void *)block;
    fabric->base =
        (epx_fabric_t){.ops = &epx_fabric_local, .rank = rank, .ranks = ranks, .caps = epx_fabric_local.caps};
    fabric->config = *config;
    fabric->config.exchange_bytes = (size_t)epx_local_box_bytes(config);
    fabric->host_box_bytes = host_box_bytes(config);
    fabric->allocator = *allocator;
    fabric->block_bytes = l.bytes;
    fabric->spins = epx_bell_spins(ranks);
    fabric->peer = (local_fabric_t **)(void *)(block + l.peer);
    fabric->word = (_Atomic uint64_t *)(void *)(block + l.word);
    fabric->failure = (_Atomic uint64_t *)(void *)(block + l.failure);
    fabric->channel = (local_channel_t *)(void *)(block + l.channel);
    fabric->segment = (local_segment_t *)(void *)(block + l.segment);
    fabric->alive = (int32_t *)(void *)(block + l.alive);
    fabric->event = (epx_event_t *)(void *)(block + l.event);
    if (epx_local_joins(config, ranks) > 0) {
        fabric->all_event = (epx_event_t *)(void *)(block + l.joined);
        fabric->own_hub.join = (local_join_t *)(void *)(block + l.join);
    }
    _Atomic uint64_t *words = (_Atomic uint64_t *)(void *)(block + l.channel_word);
    for (int32_t c = 0; c < config->exchange_channels + LOCAL_EXTRA_CHANNELS; c++) {
        fabric->channel[c].word = words + (int64_t)c * 2 * ranks;
        fabric->channel[c].failure = words + ((int64_t)c * 2 + 1) * ranks;
        fabric->channel[c].box = block + l.box + (int64_t)c * 2 * host_box_bytes(config);
        if (c < config->exchange_channels)
            fabric->channel[c].followed = (uint64_t *)(void *)(block + l.followed) + (int64_t)c * ranks;
    }
    void **pointers = (void **)(void *)(block + l.segment_ptr);
    for (int32_t i = 0; i < config->segments_max; i++)
        fabric->segment[i].peer_ptr = pointers + (int64_t)i * ranks;
    atomic_flag_clear(&fabric->own_hub.lock);
    if (!config->device->host_access && !epx_local_device_open(fabric)) {
        free_block(fabric);
        return NULL;
    }
    return fabric;
}

/* Differs between processes of one host and, with the stack's address, in practice between hosts. */
static uint64_t process_token(void)
{
    static int anchor;
    return (uint64_t)getpid() * 0x9e3779b97f4a7c15u ^ (uint64_t)(uintptr_t)&anchor;
}

/* Meets the other ranks: gathers cards into `cards` [S], then says whether everybody has a block here. */
static epx_status_t meet(const epx_fabric_config_t *config, local_fabric_t *fabric, open_card_t *cards)
{
    const epx_bootstrap_t *bootstrap = &config->bootstrap;
    open_card_t mine = {.process = process_token(), .fabric = fabric};
    if (bootstrap->allgather(bootstrap->context, &mine, cards, sizeof(mine)) != 0)
        return epx_fail(EPX_ERR_FABRIC, "%s: the all-gather that rank %d opens with failed", config->name,
                        bootstrap->rank);
    for (int32_t r = 0; r < bootstrap->size; r++)
        if (cards[r].process != mine.process)
            return epx_fail(
                EPX_ERR_UNSUPPORTED,
                "%s: fabric local carries threads of one process, rank %d is in another process than rank "
                "%d; choose another fabric",
                config->name, r, bootstrap->rank);
    if (fabric == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "%s: rank %d has no %" PRId64 " bytes for the fabric's words",
                        config->name, bootstrap->rank, layout_of(config, bootstrap->size).bytes);
    for (int32_t r = 0; r < bootstrap->size; r++)
        if (cards[r].fabric == NULL)
            return epx_fail(EPX_ERR_PEER, "%s: rank %d could not open the fabric (no memory)", config->name,
                            r);
    return EPX_OK;
}

static epx_status_t local_open(const epx_fabric_config_t *config, epx_fabric_t **fabric_p)
{
    const epx_bootstrap_t *bootstrap = &config->bootstrap;
    int32_t ranks = bootstrap->size;
    local_fabric_t *fabric = make_block(config, bootstrap->rank, ranks);
    /* A rank without a block still has to meet the others, or they would wait for it. */
    open_card_t *spare = fabric == NULL ? malloc((size_t)ranks * sizeof(open_card_t)) : NULL;
    open_card_t *cards = spare;
    if (fabric != NULL)
        cards = (open_card_t *)(void *)((uint8_t *)fabric + layout_of(config, ranks).card);
    if (cards == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "%s: rank %d has no memory to meet the others", config->name,
                        bootstrap->rank);
    epx_status_t status = meet(config, fabric, cards);
    if (status != EPX_OK)
        goto free_block;
    for (int32_t r = 0; r < ranks; r++)
        fabric->peer[r] = cards[r].fabric;
    fabric->hub = &fabric->peer[0]->own_hub;
    if (bootstrap->rank == 0) {
        fabric->own_hub.member = fabric->peer;
        atomic_store(&fabric->own_hub.references, ranks);
    }
    if (epx_local_is_remote(fabric))
        status = epx_local_device_link(fabric);
    /* Nobody posts before everybody is linked. */
    open_card_t linked = {.fabric = status == EPX_OK ? fabric : NULL};
    if (bootstrap->allgather(bootstrap->context, &linked, cards, sizeof(linked)) != 0)
        status = epx_fail(EPX_ERR_FABRIC, "%s: the all-gather that rank %d opens with failed", config->name,
                          bootstrap->rank);
    for (int32_t r = 0; r < ranks && status == EPX_OK; r++)
        if (cards[r].fabric == NULL)
            status = epx_fail(EPX_ERR_PEER, "%s: rank %d could not open the fabric", config->name, r);
    if (status != EPX_OK)
        goto free_block;
    *fabric_p = &fabric->base;
    return EPX_OK;

free_block:
    free(spare);
    if (fabric != NULL)
        free_block(fabric);
    return status;
}

epx_status_t epx_fabric_local_create(const epx_fabric_config_t *config, int32_t n, epx_fabric_t **fabrics)
{
    for (int32_t r = 0; r < n; r++) {
        local_fabric_t *fabric = make_block(config, r, n);
        if (fabric == NULL) {
            while (r-- > 0)
                free_block((local_fabric_t *)fabrics[r]);
            return epx_fail(EPX_ERR_NO_MEMORY, "%s: no memory for %d ranks of %" PRId64 " bytes",
                            config->name, n, layout_of(config, n).bytes);
        }
        fabrics[r] = &fabric->base;
    }
    local_fabric_t *first = (local_fabric_t *)fabrics[0];
    for (int32_t r = 0; r < n; r++) {
        local_fabric_t *fabric = (local_fabric_t *)fabrics[r];
        fabric->hub = &first->own_hub;
        for (int32_t p = 0; p < n; p++)
            fabric->peer[p] = (local_fabric_t *)fabrics[p];
    }
    first->own_hub.member = first->peer;
    atomic_store(&first->own_hub.references, n);
    return EPX_OK;
}

static void local_close(epx_fabric_t **fabric_p)
{
    if (*fabric_p == NULL)
        return;
    local_fabric_t *fabric = (local_fabric_t *)*fabric_p;
    local_hub_t *hub = fabric->hub;
    int32_t ranks = fabric->base.ranks;
    *fabric_p = NULL;
    if (atomic_fetch_sub_explicit(&hub->references, 1, memory_order_acq_rel) != 1)
        return;
    /* The last one: the hub is inside rank 0's block, so that block goes last. */
    local_fabric_t **member = hub->member;
    for (int32_t r = ranks - 1; r >= 0; r--)
        free_block(member[r]);
}

static epx_status_t local_segment_open(epx_fabric_t *base, void *memory, size_t bytes,
                                       epx_segment_t *segment_p)
{
    local_fabric_t *fabric = (local_fabric_t *)base;
    if (fabric->segments == fabric->config.segments_max)
        return epx_fail(EPX_ERR_FATAL, "%s: more than %d segments", fabric->config.name,
                        fabric->config.segments_max);
    local_segment_t *segment = &fabric->segment[fabric->segments++];
    segment->memory = memory;
    segment->bytes = bytes;
    epx_status_t status =
        epx_local_gather(fabric, LOCAL_SETUP_CHANNEL, &memory, segment->peer_ptr, sizeof(memory), 60000);
    if (status != EPX_OK)
        return status;
    if (memory == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "%s: rank %d has no %zu bytes for its segment",
                        fabric->config.name, base->rank, bytes);
    for (int32_t r = 0; r < base->ranks; r++)
        if (segment->peer_ptr[r] == NULL)
            return epx_fail(EPX_ERR_PEER, "%s: rank %d could not get the %zu bytes of its segment",
                            fabric->config.name, r, bytes);
    *segment_p = (epx_segment_t){.base = memory, .bytes = bytes, .peer_ptr = segment->peer_ptr};
    return epx_local_is_remote(fabric) ? epx_local_device_segment(fabric, segment, &segment_p->peer_ptr)
                                       : EPX_OK;
}

const epx_fabric_ops_t epx_fabric_local = {
    .name = "local",
    .caps = EPX_FABRIC_LOADSTORE | EPX_FABRIC_DEVICE_SIZES | EPX_FABRIC_BOUNDED_WAIT |
            EPX_FABRIC_ONE_SIDED_WORDS | EPX_FABRIC_SHARED_ADDRESS,
    .probe = local_probe,
    .memory = local_memory,
    .open = local_open,
    .close = local_close,
    .segment_open = local_segment_open,
    .post = epx_local_post,
    .wait = epx_local_wait,
    .post_failure = epx_local_post_failure,
    .exchange = epx_local_exchange,
    .abort = epx_local_abort,
    .aborted = epx_local_aborted,
    .survivors = epx_local_survivors,
};
