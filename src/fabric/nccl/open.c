/* Fabric `nccl`: life of fabrics and segments. SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "fabric/nccl/far.h"
#include "fabric/nccl/library.h"

/* Behind `local`, which carries ranks of one process on any machine; across processes it cannot, and this one
 * can. */
enum {
    SCORE = 40,
    PART_ALIGN = 128,
    LINE_MOST = 16384,
    FAR_CAPS = EPX_FABRIC_BOUNDED_WAIT | EPX_FABRIC_ONE_SIDED_WORDS
};

static int64_t take(int64_t *end, int64_t bytes)
{
    int64_t offset = *end;
    *end = (offset + bytes + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
    return offset;
}

static nccl_block_layout_t lay_block(const epx_fabric_config_t *config, int32_t ranks)
{
    nccl_block_layout_t l = {0};
    int64_t row = (int64_t)ranks * (int64_t)sizeof(uint64_t), end = 0;
    l.box_bytes = ((int64_t)config->exchange_bytes + 15) / 16 * 16;
    if (l.box_bytes < 256)
        l.box_bytes = 256;
    l.words = take(&end, config->channels * row);
    l.failures = take(&end, config->failure_channels * row);
    l.aborts = take(&end, row);
    l.steps = take(&end, config->exchange_channels * row);
    l.boxes = take(&end, config->exchange_channels * (int64_t)2 * ranks * l.box_bytes);
    if (l.box_bytes <= LINE_MOST)
        l.lines = take(&end, config->exchange_channels * (int64_t)4 * ranks * l.box_bytes);
    l.bytes = end;
    return l;
}

static nccl_local_layout_t lay_local(const epx_fabric_config_t *config, int32_t ranks)
{
    nccl_local_layout_t l = {0};
    int64_t end = 0, box = lay_block(config, ranks).box_bytes;
    l.tables = take(&end, (1 + (int64_t)config->segments_max) * ranks * (int64_t)sizeof(void *));
    l.step = take(&end, config->exchange_channels * (int64_t)sizeof(uint64_t));
    l.done = take(&end, config->exchange_channels * (int64_t)sizeof(uint32_t));
    l.stage = take(&end, (1 + (int64_t)ranks) * box);
    l.bytes = end;
    return l;
}

static int64_t parts_bytes(const epx_fabric_config_t *config)
{
    int64_t end = (int64_t)sizeof(nccl_fabric_t) + config->segments_max * (int64_t)sizeof(nccl_part_t);
    return (end + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
}

static int64_t host_bytes(const epx_fabric_config_t *config, int32_t ranks)
{
    return parts_bytes(config) + (epx_nccl_is_far(config) ? epx_nccl_far_bytes(config, ranks) : 0);
}

static int64_t device_bytes(const epx_fabric_config_t *config, int32_t ranks)
{
    return epx_nccl_is_far(config) ? epx_nccl_far_device_bytes(config, ranks)
                                   : lay_local(config, ranks).bytes;
}

/* Bytes that ranks put at each other's disposal: equal on all. */
static int64_t shared_bytes(const epx_fabric_config_t *config, int32_t ranks)
{
    return epx_nccl_is_far(config) ? epx_nccl_far_column_bytes(config, ranks)
                                   : lay_block(config, ranks).bytes;
}

/* What NCCL takes itself (the block of words, segments, the communicator) is beside it. */
int64_t epx_nccl_memory(const epx_fabric_config_t *config, int32_t ranks, int64_t *device_bytes_p)
{
    *device_bytes_p = device_bytes(config, ranks);
    return host_bytes(config, ranks);
}

int epx_nccl_probe(const epx_device_ops_t *device, char *reason, size_t reason_bytes)
{
    const nccl_api_t *api;
    const char *why = "";
    if (device->host_access) {
        snprintf(reason, reason_bytes, "carries the rows of GPUs, and the device is %s", device->name);
        return 0;
    }
    if (epx_nccl_api(&api, &why) != EPX_OK) {
        snprintf(reason, reason_bytes, "%s", why);
        return 0;
    }
    snprintf(reason, reason_bytes, "%s", "");
    return SCORE;
}

/* ---- opening ---------------------------------------------------------------------------------------------- */

/* What a rank tells the others before anything is made. */
typedef struct open_card {
    int32_t status, version, is_far, unused;
    int64_t block_bytes, box_bytes;
    nccl_id_t id; /* of rank 0 */
} open_card_t;

/* The struct, and what the device and the host hold for it. NULL members are seen when it is released. */
static epx_status_t make_local(const epx_fabric_config_t *config, nccl_fabric_t **fabric_p)
{
    const epx_allocator_t *allocator = config->allocator;
    const epx_device_ops_t *device = config->device;
    int64_t bytes = host_bytes(config, config->bootstrap.size);
    const epx_fabric_ops_t *ops = epx_nccl_is_far(config) ? &epx_fabric_nccl_far : &epx_fabric_nccl;
    nccl_fabric_t *fabric = allocator->allocate(allocator->context, (size_t)bytes, PART_ALIGN, 0);
    if (fabric == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "%s: rank %d has no %" PRId64 " bytes for the fabric",
                        config->name, config->bootstrap.rank, bytes);
    memset(fabric, 0, (size_t)bytes);
    fabric->base = (epx_fabric_t){
        .ops = ops, .rank = config->bootstrap.rank, .ranks = config->bootstrap.size, .caps = ops->caps};
    fabric->config = *config;
    fabric->allocator = *allocator;
    fabric->bytes = bytes;
    fabric->block_layout = lay_block(config, fabric->base.ranks);
    fabric->local_layout = lay_local(config, fabric->base.ranks);
    fabric->gpu = device->current();
    *fabric_p = fabric;
    const char *why = "";
    epx_status_t status = epx_nccl_api(&fabric->api, &why);
    if (status != EPX_OK)
        return epx_fail(status, "%s: fabric nccl: %s", config->name, why);
    size_t local_bytes = (size_t)device_bytes(config, fabric->base.ranks);
    fabric->local_bytes = (int64_t)local_bytes;
    fabric->local = allocator->allocate(allocator->context, local_bytes, 256, 1);
    fabric->halt = device->allocate_shared(sizeof(*fabric->halt));
    if (fabric->local == NULL || fabric->halt == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "%s: rank %d has no %zu bytes for the fabric's tables",
                        config->name, fabric->base.rank, local_bytes);
    status = device->stream_create(&fabric->control);
    if (status == EPX_OK)
        status = device->fill(fabric->local, 0, local_bytes, NULL);
    if (status == EPX_OK)
        status = device->synchronize(NULL);
    if (status == EPX_OK && epx_nccl_is_far(config))
        status = epx_nccl_far_begin(fabric, (char *)fabric + parts_bytes(config));
    return status;
}

static const char *const ways[] = {"windows", "sends and receives"};

/* Every rank is able to, has the same library and the same sizes; *id_p is rank 0's. */
static epx_status_t agree_to_open(const epx_fabric_config_t *config, const nccl_fabric_t *fabric,
                                  epx_status_t status, nccl_id_t *id_p)
{
    const epx_bootstrap_t *bootstrap = &config->bootstrap;
    const epx_allocator_t *allocator = config->allocator;
    size_t bytes = (size_t)bootstrap->size * sizeof(open_card_t);
    open_card_t mine = {.is_far = epx_nccl_is_far(config),
                        .block_bytes = shared_bytes(config, bootstrap->size),
                        .box_bytes = lay_block(config, bootstrap->size).box_bytes};
    char text[700] = "", here[24], there[24];
    if (status == EPX_OK && bootstrap->rank == 0) {
        nccl_result_t result = fabric->api->get_unique_id(&mine.id);
        if (result != 0)
            status = epx_nccl_failed(fabric, "ncclGetUniqueId", result);
    }
    if (status == EPX_OK)
        mine.version = fabric->api->version;
    else
        snprintf(text, sizeof(text), "%.699s", epx_last_error());
    mine.status = (int32_t)status;
    open_card_t *cards = allocator->allocate(allocator->context, bytes, PART_ALIGN, 0);
    if (cards == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "%s: rank %d has no memory to meet the others", config->name,
                        bootstrap->rank);
    if (bootstrap->allgather(bootstrap->context, &mine, cards, sizeof(mine)) != 0)
        status = epx_fail(EPX_ERR_FABRIC, "%s: the all-gather that rank %d opens with failed", config->name,
                          bootstrap->rank);
    else if (status != EPX_OK)
        status = epx_fail(status, "%s", text);
    for (int32_t r = 0; r < bootstrap->size && status == EPX_OK; r++) {
        epx_nccl_version_text(mine.version, here, sizeof(here));
        epx_nccl_version_text(cards[r].version, there, sizeof(there));
        if (cards[r].status != EPX_OK)
            status =
                epx_fail(EPX_ERR_PEER, "%s: rank %d cannot open fabric nccl (%s); its own error says why",
                         config->name, r, epx_status_name((epx_status_t)cards[r].status));
        else if (cards[r].version != mine.version)
            status =
                epx_fail(EPX_ERR_MISMATCH,
                         "%s: rank %d has loaded NCCL %s, rank %d NCCL %s (%s here); load the same on all",
                         config->name, bootstrap->rank, here, r, there, fabric->api->path);
        else if (cards[r].is_far != mine.is_far)
            status = epx_fail(
                EPX_ERR_MISMATCH,
                "%s: rank %d moves rows by %s, rank %d by %s; set EPX_NCCL_PATH alike on all ranks",
                config->name, bootstrap->rank, ways[mine.is_far != 0], r, ways[cards[r].is_far != 0]);
        else if (cards[r].block_bytes != mine.block_bytes || cards[r].box_bytes != mine.box_bytes)
            status = epx_fail(EPX_ERR_MISMATCH,
                              "%s: rank %d wants %" PRId64 " bytes of words, rank %d %" PRId64
                              "; do all ranks open the same group?",
                              config->name, bootstrap->rank, mine.block_bytes, r, cards[r].block_bytes);
    }
    if (status == EPX_OK)
        *id_p = cards[0].id;
    allocator->release(allocator->context, cards, bytes, 0);
    return status;
}

static epx_status_t make_comm(nccl_fabric_t *fabric, nccl_id_t id)
{
    epx_nccl_meets(fabric);
    nccl_result_t result =
        fabric->api->comm_init_rank(&fabric->comm, fabric->base.ranks, id, fabric->base.rank);
    epx_nccl_has_met(fabric, result);
    epx_status_t status = EPX_OK;
    if (result != 0) {
        fabric->comm = NULL;
        status = epx_nccl_failed(fabric,
                                 "ncclCommInitRank (one GPU for each rank? several on one need NCCL 2.30 "
                                 "and NCCL_MULTI_RANK_GPU_ENABLE=1)",
                                 result);
    }
    status = epx_nccl_agree(fabric, status, "making the communicator");
    if (status != EPX_OK || fabric->far != NULL)
        return status;
    nccl_team_t team =
        fabric->base.ranks > 1 ? fabric->api->team_lsa(fabric->comm) : (nccl_team_t){.ranks = 1};
    if (team.ranks != fabric->base.ranks)
        status = epx_fail(
            EPX_ERR_UNSUPPORTED,
            "%s: rank %d: loads and stores reach %d of %d ranks; set EPX_NCCL_PATH=sendrecv on all ranks, "
            "or open a group in each NVLink domain",
            fabric->config.name, fabric->base.rank, team.ranks, fabric->base.ranks);
    return epx_nccl_agree(fabric, status, "the NVLink domain");
}

static void **table_of(const nccl_fabric_t *fabric, int32_t part)
{
    void **tables = (void **)(void *)(fabric->local + fabric->local_layout.tables);
    return tables + (int64_t)part * fabric->base.ranks;
}

static void *allocate(const nccl_fabric_t *fabric, size_t bytes)
{
    void *memory = NULL;
    return fabric->api->mem_alloc(&memory, bytes) == 0 ? memory : NULL;
}

static epx_status_t make_words(nccl_fabric_t *fabric)
{
    const nccl_block_layout_t *l = &fabric->block_layout;
    nccl_part_t *block = &fabric->block;
    snprintf(block->name, sizeof(block->name), "%.60s's words", fabric->config.name);
    block->bytes = (size_t)l->bytes;
    block->memory = allocate(fabric, block->bytes);
    block->table = table_of(fabric, 0);
    fabric->words = (epx_words_t){.peer = block->table,
                                  .rank = fabric->base.rank,
                                  .ranks = fabric->base.ranks,
                                  .words = l->words,
                                  .failures = l->failures,
                                  .aborts = l->aborts,
                                  .steps = l->steps,
                                  .boxes = l->boxes,
                                  .box_bytes = l->box_bytes,
                                  .lines = l->lines,
                                  .halt = fabric->halt};
    return epx_nccl_register(fabric, block);
}

static void drop_part(nccl_fabric_t *fabric, nccl_part_t *part)
{
    epx_nccl_unregister(fabric, part);
    if (part->memory != NULL)
        fabric->api->mem_free(part->memory);
    part->memory = NULL;
}

/* Waits for nobody but this rank's own GPU. */
static void nccl_release(nccl_fabric_t *fabric)
{
    const epx_device_ops_t *device = fabric->config.device;
    epx_allocator_t allocator = fabric->allocator;
    /* Nothing of this rank's may run when its windows go. */
    if (fabric->far != NULL)
        epx_nccl_far_end(fabric);
    device->drain();
    for (int32_t i = 0; i < fabric->segments; i++)
        drop_part(fabric, &fabric->segment[i]);
    drop_part(fabric, &fabric->block);
    if (fabric->comm != NULL)
        fabric->api->comm_abort(fabric->comm);
    if (fabric->control != NULL)
        device->stream_destroy(fabric->control);
    if (fabric->halt != NULL)
        device->release_shared(fabric->halt, sizeof(*fabric->halt));
    if (fabric->local != NULL)
        allocator.release(allocator.context, fabric->local, (size_t)fabric->local_bytes, 1);
    allocator.release(allocator.context, fabric, (size_t)fabric->bytes, 0);
}

epx_status_t epx_nccl_open(const epx_fabric_config_t *config, epx_fabric_t **fabric_p)
{
    nccl_fabric_t *fabric = NULL;
    nccl_id_t id;
    epx_status_t status = make_local(config, &fabric);
    status = agree_to_open(config, fabric, status, &id);
    if (status == EPX_OK)
        status = make_comm(fabric, id);
    if (status == EPX_OK)
        status = fabric->far != NULL ? epx_nccl_agree(fabric, epx_nccl_far_start(fabric), "starting couriers")
                                     : make_words(fabric);
    if (status != EPX_OK) {
        if (fabric != NULL)
            nccl_release(fabric);
        return status;
    }
    char version[24];
    epx_nccl_version_text(fabric->api->version, version, sizeof(version));
    if (config->bootstrap.rank == 0)
        epx_log(EPX_LOG_INFO, "nccl", "%s: NCCL %s (%s), rows by %s", config->name, version,
                fabric->api->path, ways[fabric->far != NULL]);
    *fabric_p = &fabric->base;
    return EPX_OK;
}

void epx_nccl_close(epx_fabric_t **fabric_p)
{
    if (*fabric_p == NULL)
        return;
    nccl_release((nccl_fabric_t *)*fabric_p);
    *fabric_p = NULL;
}

/* ---- segments --------------------------------------------------------------------------------------------- */

static nccl_part_t *next_segment(nccl_fabric_t *fabric, size_t bytes)
{
    nccl_part_t *part = &fabric->segment[fabric->segments];
    part->bytes = bytes;
    part->table = fabric->far != NULL ? NULL : table_of(fabric, 1 + fabric->segments);
    snprintf(part->name, sizeof(part->name), "%.60s's segment %d", fabric->config.name, fabric->segments);
    return part;
}

void *epx_nccl_segment_allocate(epx_fabric_t *base, size_t bytes)
{
    nccl_fabric_t *fabric = (nccl_fabric_t *)base;
    return fabric->segments < fabric->config.segments_max ? allocate(fabric, bytes) : NULL;
}

epx_status_t epx_nccl_segment_open(epx_fabric_t *base, void *memory, size_t bytes, epx_segment_t *segment_p)
{
    nccl_fabric_t *fabric = (nccl_fabric_t *)base;
    if (fabric->segments == fabric->config.segments_max)
        return epx_fail(EPX_ERR_FATAL, "%s: more than %d segments", fabric->config.name,
                        fabric->config.segments_max);
    nccl_part_t *part = next_segment(fabric, bytes);
    part->memory = memory;
    epx_status_t status =
        fabric->far != NULL ? epx_nccl_enter(fabric, part) : epx_nccl_register(fabric, part);
    if (status != EPX_OK && part->link == NULL) {
        /* Refused: the memory is somebody's already, who releases it. */
        part->memory = NULL;
        return status;
    }
    fabric->segments++;
    if (status != EPX_OK)
        return status;
    *segment_p = (epx_segment_t){
        .base = memory, .bytes = bytes, .peer_ptr = fabric->far != NULL ? NULL : (void *const *)part->table};
    return EPX_OK;
}

/* The ranks meet as they met to open, all of them, or by the bootstrap's own way those that are left. They
 * make a new communicator; the old one is aborted when this fabric closes. */
epx_status_t epx_nccl_survivors(epx_fabric_t *base, int64_t timeout_ms, uint8_t *alive_p,
                                epx_bootstrap_t *bootstrap_p)
{
    nccl_fabric_t *fabric = (nccl_fabric_t *)base;
    const epx_fabric_config_t *config = &fabric->config;
    if (config->survivors == NULL) {
        epx_status_t status = epx_nccl_agree(fabric, EPX_OK, "recovering");
        if (status != EPX_OK)
            return status;
        memset(alive_p, 1, (size_t)base->ranks);
        *bootstrap_p = config->bootstrap;
        return EPX_OK;
    }
    epx_status_t status = config->survivors(config->bootstrap.context, timeout_ms, alive_p, bootstrap_p);
    /* Kernels that wait for who is gone would hold up the closing. */
    if (status == EPX_OK && bootstrap_p->size < base->ranks)
        base->ops->abort(base, -1);
    return status;
}

const epx_fabric_ops_t epx_fabric_nccl = {
    .name = "nccl",
    .caps = EPX_FABRIC_LOADSTORE | EPX_FABRIC_DEVICE_SIZES | EPX_FABRIC_BOUNDED_WAIT |
            EPX_FABRIC_ONE_SIDED_WORDS | EPX_FABRIC_LATE_ERRORS | EPX_FABRIC_CAPTURABLE,
    .caps_apart = FAR_CAPS,
    .probe = epx_nccl_probe,
    .memory = epx_nccl_memory,
    .open = epx_nccl_open,
    .close = epx_nccl_close,
    .segment_allocate = epx_nccl_segment_allocate,
    .segment_open = epx_nccl_segment_open,
    .post = epx_nccl_post,
    .wait = epx_nccl_wait,
    .post_failure = epx_nccl_post_failure,
    .exchange = epx_nccl_exchange,
    .abort = epx_nccl_abort,
    .aborted = epx_nccl_aborted,
    .late = epx_nccl_late,
    .survivors = epx_nccl_survivors,
};

const epx_fabric_ops_t epx_fabric_nccl_far = {
    .name = "nccl",
    .caps = FAR_CAPS,
    .probe = epx_nccl_probe,
    .memory = epx_nccl_memory,
    .open = epx_nccl_open,
    .close = epx_nccl_close,
    .segment_allocate = epx_nccl_segment_allocate,
    .segment_open = epx_nccl_segment_open,
    .post = epx_nccl_far_post,
    .wait = epx_nccl_far_wait,
    .post_failure = epx_nccl_far_post_failure,
    .exchange = epx_nccl_far_exchange,
    .abort = epx_nccl_far_abort,
    .aborted = epx_nccl_far_aborted,
    .survivors = epx_nccl_survivors,
};
