/* Fabric `ucx`: life. SPDX-License-Identifier: Apache-2.0 */
#include "fabric/ucx/ucx.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/host.h"
#include "fabric/ucx/internal.h"

enum { DRAIN_MS = 1000, BROKEN_DRAIN_MS = 200, CELLS_EACH = 4, CELLS_MORE = 1024 };

static int64_t take(int64_t *end, int64_t bytes)
{
    int64_t offset = *end;
    *end = (offset + bytes + 127) & ~(int64_t)127;
    return offset;
}

static int64_t channels_of(const epx_fabric_config_t *config)
{
    return config->exchange_channels + UCX_EXTRA_CHANNELS;
}

static ucx_layout_t control_layout(const epx_fabric_config_t *config, int32_t ranks)
{
    ucx_layout_t l;
    int64_t s = ranks, word = (int64_t)sizeof(ucx_word_t), end = 0, box = (int64_t)config->exchange_bytes;
    l.box_bytes = ((box < 1024 ? 1024 : box) + 127) & ~(int64_t)127;
    l.bell = take(&end, (int64_t)sizeof(epx_bell_t));
    l.any_abort = take(&end, word);
    l.abort = take(&end, s * word);
    l.closed = take(&end, s * word);
    l.joined = take(&end, s * word);
    l.decided = take(&end, word);
    l.member = take(&end, s);
    l.word = take(&end, config->channels * s * word);
    l.failure = take(&end, config->failure_channels * s * word);
    l.step = take(&end, channels_of(config) * s * word);
    l.step_failure = take(&end, channels_of(config) * s * word);
    l.box = take(&end, channels_of(config) * 2 * s * l.box_bytes);
    l.bytes = end;
    return l;
}

/* Where the parts of a rank's own block are. */
typedef struct block_layout {
    int64_t peer, channel, segment, table, address, key, alive, out, cell, cells, bytes;
} block_layout_t;

static block_layout_t block_layout(const epx_fabric_config_t *config, int32_t ranks)
{
    block_layout_t l;
    int64_t s = ranks, memories = config->segments_max + 1, end = 0;
    take(&end, (int64_t)sizeof(ucx_fabric_t));
    l.peer = take(&end, s * (int64_t)sizeof(ucx_peer_t));
    l.channel = take(&end, channels_of(config) * (int64_t)sizeof(epx_gather_side_t));
    l.segment = take(&end, config->segments_max * (int64_t)sizeof(ucx_memory_t));
    l.table = take(&end, memories * s * (int64_t)sizeof(void *));
    l.address = take(&end, memories * s * (int64_t)sizeof(uint64_t));
    l.key = take(&end, memories * s * (int64_t)sizeof(ucp_rkey_h));
    l.alive = take(&end, s * (int64_t)sizeof(int32_t));
    l.out = take(&end, channels_of(config) * 2 * control_layout(config, ranks).box_bytes);
    l.cells = CELLS_EACH * s * (config->channels + config->failure_channels + 2 * channels_of(config) + 4) +
              CELLS_MORE;
    l.cell = take(&end, l.cells * (int64_t)sizeof(ucx_cell_t));
    l.bytes = end;
    return l;
}

/* Its block may be needed for longer than the caller's allocator (U5), so it is libc's, like UCX's own. */
static int64_t ucx_memory(const epx_fabric_config_t *config, int32_t ranks, int64_t *device_bytes_p)
{
    (void)config, (void)ranks;
    *device_bytes_p = 0;
    return 0;
}

static int ucx_probe(const epx_device_ops_t *device, char *reason, size_t reason_bytes)
{
    reason[0] = '\0';
    if (!device->host_access) {
        snprintf(reason, reason_bytes, "the rows of device %s are not in host memory", device->name);
        return 0;
    }
    return 40;
}

static uint32_t ucx_caps_among(int32_t one_host)
{
    uint32_t shared = EPX_FABRIC_LOADSTORE | EPX_FABRIC_DEVICE_SIZES;
    return one_host && epx_ucx_can_share() ? epx_fabric_ucx.caps | shared : epx_fabric_ucx.caps;
}

/* ---- opening ------------------------------------------------------------------------------------------------ */

static void lay_out(ucx_fabric_t *fabric, uint8_t *block, const block_layout_t *l)
{
    int64_t s = fabric->base.ranks;
    void **table = (void **)(void *)(block + l->table);
    uint64_t *address = (uint64_t *)(void *)(block + l->address);
    ucp_rkey_h *key = (ucp_rkey_h *)(void *)(block + l->key);
    fabric->peer = (ucx_peer_t *)(void *)(block + l->peer);
    fabric->channel = (epx_gather_side_t *)(void *)(block + l->channel);
    fabric->segment = (ucx_memory_t *)(void *)(block + l->segment);
    fabric->alive = (int32_t *)(void *)(block + l->alive);
    fabric->out = block + l->out;
    fabric->cell = (ucx_cell_t *)(void *)(block + l->cell);
    for (int64_t i = 0; i <= fabric->config.segments_max; i++) {
        ucx_memory_t *memory = i == 0 ? &fabric->control : &fabric->segment[i - 1];
        memory->peer_ptr = table + i * s;
        memory->address = address + i * s;
        memory->rkey = key + i * s;
    }
    for (int64_t i = 0; i < l->cells; i++)
        fabric->cell[i] = (ucx_cell_t){.fabric = fabric, .next = i > 0 ? &fabric->cell[i - 1] : NULL};
    fabric->free_cell = l->cells > 0 ? &fabric->cell[l->cells - 1] : NULL;
    for (int32_t p = 0; p < fabric->base.ranks; p++)
        fabric->peer[p] = (ucx_peer_t){.fabric = fabric, .rank = p, .pidfd = -1};
}

static void drop_endpoint(ucx_peer_t *peer)
{
    ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
    ucs_status_ptr_t request = peer->endpoint != NULL ? ucp_ep_close_nbx(peer->endpoint, &force) : NULL;
    if (UCS_PTR_IS_PTR(request))
        ucp_request_free(request);
    peer->endpoint = NULL;
}

static void free_fabric(ucx_fabric_t *fabric)
{
    for (int32_t i = 0; i < fabric->config.segments_max; i++)
        epx_ucx_unmap(fabric, &fabric->segment[i]);
    epx_ucx_unmap(fabric, &fabric->control);
    for (int32_t p = 0; p < fabric->base.ranks; p++) {
        if (fabric->peer[p].pidfd >= 0)
            close(fabric->peer[p].pidfd);
        drop_endpoint(&fabric->peer[p]);
    }
    free(fabric->buffer);
    free(fabric->room);
    free(fabric);
}

static epx_status_t make_block(const epx_fabric_config_t *config, ucx_fabric_t **fabric_p)
{
    int32_t ranks = config->bootstrap.size, rank = config->bootstrap.rank;
    block_layout_t l = block_layout(config, ranks);
    uint8_t *block = aligned_alloc(128, (size_t)l.bytes);
    if (block == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "%s: rank %d has no %" PRId64 " bytes for the fabric",
                        config->name, rank, l.bytes);
    memset(block, 0, (size_t)l.bytes);
    ucx_fabric_t *fabric = (ucx_fabric_t *)(void *)block;
    fabric->release = free_fabric;
    fabric->base =
        (epx_fabric_t){.ops = &epx_fabric_ucx, .rank = rank, .ranks = ranks, .caps = epx_fabric_ucx.caps};
    fabric->config = *config;
    fabric->config.allocator = NULL;
    fabric->layout = control_layout(config, ranks);
    snprintf(fabric->name, sizeof(fabric->name), "%s", config->name);
    fabric->config.name = fabric->name;
    lay_out(fabric, block, &l);
    epx_ucx_lock();
    epx_status_t status = epx_ucx_map(fabric, &fabric->control, (size_t)fabric->layout.bytes);
    epx_ucx_unlock();
    if (status != EPX_OK) {
        free(block);
        return status;
    }
    memset(fabric->control.base, 0, (size_t)fabric->layout.bytes);
    *fabric_p = fabric;
    return EPX_OK;
}

/* What a rank tells first: how long its address and key are. */
typedef struct open_card {
    uint64_t host, control; /* control 0: it cannot open */
    uint64_t fabric;        /* a token that messages carry */
    int64_t process;
    uint32_t address_bytes, mapping_bytes, key_bytes; /* of what follows, in this order */
    uint32_t zero;
} open_card_t;

static size_t card_bytes(const open_card_t *card)
{
    return (size_t)card->address_bytes + card->mapping_bytes + card->key_bytes;
}

/* Addresses and key of this process, to be freed with free(). */
static epx_status_t describe(ucx_fabric_t *fabric, open_card_t *card, uint8_t **text_p)
{
    ucp_address_t *address = NULL, *mapping = NULL;
    void *key = NULL;
    size_t address_bytes = 0, mapping_bytes = 0, key_bytes = 0;
    epx_ucx_lock();
    ucs_status_t rc = ucp_worker_get_address(epx_ucx_worker(), &address, &address_bytes);
    if (rc == UCS_OK && epx_ucx_mapping_worker() != NULL)
        rc = ucp_worker_get_address(epx_ucx_mapping_worker(), &mapping, &mapping_bytes);
    if (rc == UCS_OK)
        rc = ucp_rkey_pack(epx_ucx_context(), fabric->control.handle, &key, &key_bytes);
    uint8_t *text = rc == UCS_OK ? malloc(address_bytes + mapping_bytes + key_bytes) : NULL;
    if (text != NULL) {
        memcpy(text, address, address_bytes);
        if (mapping != NULL)
            memcpy(text + address_bytes, mapping, mapping_bytes);
        memcpy(text + address_bytes + mapping_bytes, key, key_bytes);
        *card = (open_card_t){.host = epx_host_identity(),
                              .fabric = (uint64_t)(uintptr_t)fabric,
                              .control = (uint64_t)(uintptr_t)fabric->control.base,
                              .process = getpid(),
                              .address_bytes = (uint32_t)address_bytes,
                              .mapping_bytes = (uint32_t)mapping_bytes,
                              .key_bytes = (uint32_t)key_bytes};
        *text_p = text;
    }
    if (key != NULL)
        ucp_rkey_buffer_release(key);
    if (mapping != NULL)
        ucp_worker_release_address(epx_ucx_mapping_worker(), mapping);
    if (address != NULL)
        ucp_worker_release_address(epx_ucx_worker(), address);
    epx_ucx_unlock();
    return text != NULL ? EPX_OK
                        : epx_fail(EPX_ERR_FABRIC, "%s: rank %d: UCX has no address (%s)", fabric->name,
                                   fabric->base.rank, ucs_status_string(rc));
}

static void endpoint_failed(void *argument, ucp_ep_h endpoint, ucs_status_t rc)
{
    (void)endpoint, (void)rc;
    ucx_peer_t *peer = argument;
    peer->has_failed = 1;
    epx_ucx_bury(peer);
}

static epx_status_t no_way(const ucx_fabric_t *fabric, int32_t p, ucs_status_t rc)
{
    return epx_fail(
        EPX_ERR_FABRIC,
        "%s: UCX has no way from rank %d to rank %d (%s): see what UCX_TLS and UCX_NET_DEVICES say on "
        "both",
        fabric->name, fabric->base.rank, p, ucs_status_string(rc));
}

/* Tries to map the control block of a peer of this host. With the lock. */
static epx_status_t connect_near(ucx_fabric_t *fabric, ucx_peer_t *peer, const open_card_t *card,
                                 const uint8_t *text)
{
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
                              .address = (const ucp_address_t *)(const void *)(text + card->address_bytes)};
    if (card->mapping_bytes == 0)
        return EPX_OK; /* it shares nothing: then it is far */
    ucs_status_t rc = ucp_ep_create(epx_ucx_mapping_worker(), &params, &peer->endpoint);
    if (rc != UCS_OK) {
        peer->endpoint = NULL;
        return EPX_OK; /* then it is far */
    }
    peer->is_near = 1;
    epx_status_t status =
        epx_ucx_reach(fabric, &fabric->control, peer->rank, text + card->address_bytes + card->mapping_bytes);
    if (fabric->control.peer_ptr[peer->rank] != NULL) {
        peer->pidfd = (int)syscall(SYS_pidfd_open, (pid_t)peer->process, 0);
        return EPX_OK;
    }
    peer->is_near = 0;
    if (status == EPX_OK)
        ucp_rkey_destroy(fabric->control.rkey[peer->rank]);
    fabric->control.rkey[peer->rank] = NULL;
    drop_endpoint(peer);
    return EPX_OK;
}

/* With the lock. */
static epx_status_t connect_far(ucx_fabric_t *fabric, ucx_peer_t *peer, const open_card_t *card,
                                const uint8_t *text)
{
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLER,
                              .address = (const ucp_address_t *)(const void *)text,
                              .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                              .err_handler = {.cb = endpoint_failed, .arg = peer}};
    fabric->far_count++;
    ucs_status_t rc = ucp_ep_create(epx_ucx_worker(), &params, &peer->endpoint);
    if (rc != UCS_OK) {
        peer->endpoint = NULL;
        return no_way(fabric, peer->rank, rc);
    }
    return epx_ucx_reach(fabric, &fabric->control, peer->rank,
                         text + card->address_bytes + card->mapping_bytes);
}

/* With the lock. */
static epx_status_t connect_peer(ucx_fabric_t *fabric, int32_t p, const open_card_t *card,
                                 const uint8_t *text, int may_share)
{
    ucx_peer_t *peer = &fabric->peer[p];
    epx_status_t status = EPX_OK;
    fabric->control.address[p] = card->control;
    peer->process = card->process;
    peer->its_fabric = card->fabric;
    if (p == fabric->base.rank) {
        peer->is_near = 1;
        return epx_ucx_reach(fabric, &fabric->control, p, NULL);
    }
    if (may_share)
        status = connect_near(fabric, peer, card, text);
    return status == EPX_OK && !peer->is_near ? connect_far(fabric, peer, card, text) : status;
}

static epx_status_t bad_card(ucx_fabric_t *fabric, const open_card_t *cards)
{
    for (int32_t p = 0; p < fabric->base.ranks; p++)
        if (cards[p].control == 0)
            return epx_fail(EPX_ERR_PEER, "%s: rank %d could not open the fabric", fabric->name, p);
    return EPX_OK;
}

/* Everybody's address and key, then connections to all. */
static epx_status_t connect_all(ucx_fabric_t *fabric, const open_card_t *mine, const open_card_t *cards,
                                const uint8_t *text)
{
    const epx_bootstrap_t *bootstrap = &fabric->config.bootstrap;
    size_t ranks = (size_t)fabric->base.ranks, most = 0;
    int can_share = epx_ucx_can_share();
    for (size_t p = 0; p < ranks; p++)
        most = card_bytes(&cards[p]) > most ? card_bytes(&cards[p]) : most;
    uint8_t *padded = calloc(1, most), *all = malloc(ranks * most);
    epx_status_t status = EPX_OK;
    if (padded == NULL || all == NULL)
        status =
            epx_fail(EPX_ERR_NO_MEMORY, "%s: no memory for the addresses of %zu ranks", fabric->name, ranks);
    if (status == EPX_OK) {
        memcpy(padded, text, card_bytes(mine));
        if (bootstrap->allgather(bootstrap->context, padded, all, most) != 0)
            status = epx_fail(EPX_ERR_FABRIC, "%s: the all-gather that rank %d opens with failed",
                              fabric->name, fabric->base.rank);
    }
    epx_ucx_lock();
    for (int32_t p = 0; p < fabric->base.ranks && status == EPX_OK; p++)
        status = connect_peer(fabric, p, &cards[p], all + (size_t)p * most,
                              can_share && cards[p].host == mine->host);
    epx_ucx_unlock();
    free(padded);
    free(all);
    return status;
}

/* Nobody posts before everybody is connected. */
static epx_status_t all_well(const epx_fabric_config_t *config, epx_status_t status)
{
    const epx_bootstrap_t *bootstrap = &config->bootstrap;
    uint8_t failed = status != EPX_OK, *all = malloc((size_t)bootstrap->size);
    if (all == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "%s: no memory to meet %d ranks", config->name, bootstrap->size);
    if (bootstrap->allgather(bootstrap->context, &failed, all, 1) != 0 && status == EPX_OK)
        status = epx_fail(EPX_ERR_FABRIC, "%s: the all-gather that rank %d opens with failed", config->name,
                          bootstrap->rank);
    for (int32_t p = 0; p < bootstrap->size && status == EPX_OK; p++)
        if (all[p] != 0)
            status = epx_fail(EPX_ERR_PEER, "%s: rank %d could not open the fabric", config->name, p);
    free(all);
    return status;
}

static epx_status_t cannot_map(const ucx_fabric_t *fabric)
{
    int32_t p = 0;
    while (fabric->control.peer_ptr[p] != NULL)
        p++;
    return epx_fail(
        EPX_ERR_UNSUPPORTED,
        "%s: rank %d cannot map the memory of rank %d, which is on the same host: let UCX_TLS name "
        "sysv or posix on all ranks or on none",
        fabric->name, fabric->base.rank, p);
}

/* Where messages take the place of puts. */
static epx_status_t make_buffers(ucx_fabric_t *fabric)
{
    if (fabric->far_count == 0 || epx_ucx_has_puts())
        return EPX_OK;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), each = (UCX_MESSAGE_BYTES + page - 1) / page * page;
    fabric->buffer = calloc(UCX_BUFFERS, sizeof(*fabric->buffer));
    fabric->room = aligned_alloc(page, UCX_BUFFERS * each);
    if (fabric->buffer == NULL || fabric->room == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "%s: rank %d has no %zu bytes for messages", fabric->name,
                        fabric->base.rank, UCX_BUFFERS * each);
    memset(fabric->room, 0, UCX_BUFFERS * each);
    for (size_t i = 0; i < UCX_BUFFERS; i++)
        fabric->buffer[i] = (ucx_buffer_t){.bytes = (uint8_t *)fabric->room + i * each,
                                           .next = i > 0 ? &fabric->buffer[i - 1] : NULL};
    fabric->free_buffer = &fabric->buffer[UCX_BUFFERS - 1];
    return EPX_OK;
}

static epx_status_t ucx_open(const epx_fabric_config_t *config, epx_fabric_t **fabric_p)
{
    const epx_bootstrap_t *bootstrap = &config->bootstrap;
    ucx_fabric_t *fabric = NULL;
    open_card_t mine = {0};
    uint8_t *text = NULL;
    open_card_t *cards = malloc((size_t)bootstrap->size * sizeof(*cards));
    if (cards == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "%s: rank %d has no memory to meet the others", config->name,
                        bootstrap->rank);
    epx_status_t taken = epx_ucx_engine_take(epx_ucx_receive), status = taken;
    if (status == EPX_OK)
        status = make_block(config, &fabric);
    if (status == EPX_OK)
        status = describe(fabric, &mine, &text);
    /* A rank that failed still meets the others, or they would wait for it. */
    if (bootstrap->allgather(bootstrap->context, &mine, cards, sizeof(mine)) != 0) {
        status = epx_fail(EPX_ERR_FABRIC, "%s: the all-gather that rank %d opens with failed", config->name,
                          bootstrap->rank);
        goto close_fabric;
    }
    if (status == EPX_OK)
        status = bad_card(fabric, cards);
    if (status != EPX_OK)
        goto close_fabric; /* all ranks come here, or none */
    epx_ucx_lock();
    epx_ucx_engine_add(fabric); /* peers that are faster may send as soon as they are through */
    epx_ucx_unlock();
    status = connect_all(fabric, &mine, cards, text);
    if (status == EPX_OK)
        status = make_buffers(fabric);
    if (status == EPX_OK && fabric->far_count == 0)
        fabric->base.caps |= EPX_FABRIC_LOADSTORE | EPX_FABRIC_DEVICE_SIZES;
    if (status == EPX_OK && (config->caps & ~fabric->base.caps) != 0)
        status = cannot_map(fabric);
    status = all_well(config, status);
    if (status != EPX_OK)
        goto close_fabric;
    int32_t near = bootstrap->size - fabric->far_count;
    fabric->spins = epx_bell_spins(near);
    *fabric_p = &fabric->base;

close_fabric:
    free(text);
    free(cards);
    if (status != EPX_OK && fabric != NULL) {
        epx_ucx_lock();
        epx_ucx_engine_drop(fabric);
        epx_ucx_unlock();
    }
    if (status != EPX_OK && taken == EPX_OK)
        epx_ucx_engine_release();
    return status;
}

/* ---- closing ------------------------------------------------------------------------------------------------ */

static void ucx_close(epx_fabric_t **fabric_p)
{
    if (*fabric_p == NULL)
        return;
    ucx_fabric_t *fabric = (ucx_fabric_t *)*fabric_p;
    *fabric_p = NULL;
    int64_t offset = fabric->layout.closed + fabric->base.rank * (int64_t)sizeof(uint64_t);
    epx_ucx_fence(fabric);
    for (int32_t p = 0; p < fabric->base.ranks; p++)
        if (!atomic_load(&fabric->peer[p].is_dead))
            epx_ucx_set(fabric, p, offset, 1);
    int is_broken = atomic_load(&fabric->any_dead) || atomic_load(&fabric->first_abort) != 0;
    epx_ucx_drain(fabric, is_broken ? BROKEN_DRAIN_MS : DRAIN_MS);
    epx_ucx_lock();
    epx_ucx_engine_close(fabric);
    epx_ucx_unlock();
    epx_ucx_engine_release();
}

const epx_fabric_ops_t epx_fabric_ucx = {
    .name = "ucx",
    .caps = EPX_FABRIC_BOUNDED_WAIT | EPX_FABRIC_ONE_SIDED_WORDS | EPX_FABRIC_READS_SOURCES,
    .probe = ucx_probe,
    .memory = ucx_memory,
    .open = ucx_open,
    .close = ucx_close,
    .segment_allocate = epx_ucx_segment_allocate,
    .segment_open = epx_ucx_segment_open,
    .post = epx_ucx_post,
    .wait = epx_ucx_wait,
    .post_failure = epx_ucx_post_failure,
    .exchange = epx_ucx_exchange,
    .abort = epx_ucx_abort,
    .aborted = epx_ucx_aborted,
    .survivors = epx_ucx_survivors,
    .caps_among = ucx_caps_among,
};
