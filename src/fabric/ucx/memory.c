/* Fabric `ucx`: memory that peers reach. SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "fabric/ucx/internal.h"

enum { KEY_BYTES = 512, SETUP_MS = 60000 };

epx_status_t epx_ucx_map(ucx_fabric_t *fabric, ucx_memory_t *memory, size_t bytes)
{
    ucp_mem_map_params_t params = {.field_mask =
                                       UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
                                   .length = bytes,
                                   .flags = UCP_MEM_MAP_ALLOCATE};
    /* More than there is would not fail here, but when it is touched. */
    ucs_status_t rc = UCS_ERR_NO_MEMORY;
    if (bytes / (size_t)sysconf(_SC_PAGESIZE) <= (size_t)sysconf(_SC_PHYS_PAGES))
        rc = ucp_mem_map(epx_ucx_context(), &params, &memory->handle);
    if (rc != UCS_OK) {
        memory->handle = NULL;
        return epx_fail(EPX_ERR_NO_MEMORY, "%s: rank %d: UCX cannot get %zu bytes (%s)", fabric->name,
                        fabric->base.rank, bytes, ucs_status_string(rc));
    }
    ucp_mem_attr_t attributes = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
    ucp_mem_query(memory->handle, &attributes);
    memory->base = attributes.address;
    memory->bytes = bytes;
    return EPX_OK;
}

void epx_ucx_unmap(ucx_fabric_t *fabric, ucx_memory_t *memory)
{
    for (int32_t p = 0; memory->rkey != NULL && p < fabric->base.ranks; p++)
        if (memory->rkey[p] != NULL)
            ucp_rkey_destroy(memory->rkey[p]);
    if (memory->handle != NULL)
        (void)ucp_mem_unmap(epx_ucx_context(), memory->handle);
    memory->handle = NULL;
}

epx_status_t epx_ucx_reach(ucx_fabric_t *fabric, ucx_memory_t *memory, int32_t p, const void *key)
{
    ucx_peer_t *peer = &fabric->peer[p];
    void *mapped = NULL;
    if (p == fabric->base.rank) {
        memory->peer_ptr[p] = memory->base;
        return EPX_OK;
    }
    ucs_status_t rc = ucp_ep_rkey_unpack(peer->endpoint, key, &memory->rkey[p]);
    if (rc != UCS_OK) {
        memory->rkey[p] = NULL;
        return epx_fail(EPX_ERR_FABRIC, "%s: rank %d cannot use the memory of rank %d (%s)", fabric->name,
                        fabric->base.rank, p, ucs_status_string(rc));
    }
    if (peer->is_near && ucp_rkey_ptr(memory->rkey[p], memory->address[p], &mapped) == UCS_OK)
        memory->peer_ptr[p] = mapped;
    return EPX_OK;
}

/* ---- segments ----------------------------------------------------------------------------------------------- */

void *epx_ucx_segment_allocate(epx_fabric_t *base, size_t bytes)
{
    ucx_fabric_t *fabric = (ucx_fabric_t *)base;
    if (fabric->segments == fabric->config.segments_max)
        return NULL;
    epx_ucx_lock();
    epx_status_t status = epx_ucx_map(fabric, &fabric->segment[fabric->segments], bytes);
    epx_ucx_unlock();
    return status == EPX_OK ? fabric->segment[fabric->segments].base : NULL;
}

/* What a rank tells of its segment. */
typedef struct segment_card {
    uint64_t address; /* 0: it has none */
    uint64_t bytes;
    uint32_t key_bytes;
    uint32_t zero;
    uint8_t key[KEY_BYTES];
} segment_card_t;

static epx_status_t fill_card(ucx_fabric_t *fabric, const ucx_memory_t *memory, segment_card_t *card)
{
    void *key;
    size_t bytes;
    memset(card, 0, sizeof(*card));
    if (memory->handle == NULL)
        return EPX_ERR_NO_MEMORY;
    ucs_status_t rc = ucp_rkey_pack(epx_ucx_context(), memory->handle, &key, &bytes);
    if (rc != UCS_OK)
        return epx_fail(EPX_ERR_FABRIC, "%s: rank %d: UCX has no key for its memory (%s)", fabric->name,
                        fabric->base.rank, ucs_status_string(rc));
    if (bytes <= KEY_BYTES) {
        memcpy(card->key, key, bytes);
        card->key_bytes = (uint32_t)bytes;
        card->address = (uint64_t)(uintptr_t)memory->base;
        card->bytes = memory->bytes;
    }
    ucp_rkey_buffer_release(key);
    return bytes <= KEY_BYTES
               ? EPX_OK
               : epx_fail(EPX_ERR_FABRIC, "%s: UCX's key of %zu bytes is too long", fabric->name, bytes);
}

static epx_status_t reach_all(ucx_fabric_t *fabric, ucx_memory_t *memory, const segment_card_t *cards)
{
    epx_status_t status = EPX_OK;
    epx_ucx_lock();
    for (int32_t p = 0; p < fabric->base.ranks && status == EPX_OK; p++) {
        memory->address[p] = cards[p].address;
        if (cards[p].address == 0)
            status = epx_fail(EPX_ERR_PEER, "%s: rank %d could not get the %zu bytes of its segment",
                              fabric->name, p, memory->bytes);
        else
            status = epx_ucx_reach(fabric, memory, p, cards[p].key);
        if (status == EPX_OK && (fabric->base.caps & EPX_FABRIC_LOADSTORE) != 0 &&
            memory->peer_ptr[p] == NULL)
            status = epx_fail(EPX_ERR_UNSUPPORTED,
                              "%s: rank %d cannot map the memory of rank %d, which is on the same host: let "
                              "UCX_TLS name sysv or posix on all ranks or on none",
                              fabric->name, fabric->base.rank, p);
    }
    epx_ucx_unlock();
    return status;
}

epx_status_t epx_ucx_segment_open(epx_fabric_t *base, void *given, size_t bytes, epx_segment_t *segment_p)
{
    ucx_fabric_t *fabric = (ucx_fabric_t *)base;
    size_t ranks = (size_t)base->ranks;
    if (fabric->segments == fabric->config.segments_max)
        return epx_fail(EPX_ERR_FATAL, "%s: more than %d segments", fabric->name,
                        fabric->config.segments_max);
    ucx_memory_t *memory = &fabric->segment[fabric->segments++];
    segment_card_t mine, *cards = malloc(ranks * sizeof(*cards));
    memory->bytes = bytes;
    epx_ucx_lock();
    epx_status_t status = EPX_OK;
    if (given == NULL || cards == NULL)
        status = epx_fail(EPX_ERR_NO_MEMORY, "%s: rank %d has no %zu bytes for its segment", fabric->name,
                          base->rank, bytes);
    else if (given != memory->base)
        status = epx_fail(EPX_ERR_ARG, "%s: the segment's memory is not from segment_allocate", fabric->name);
    epx_status_t filled = fill_card(fabric, memory, &mine);
    if (status == EPX_OK)
        status = filled;
    if (status != EPX_OK)
        mine.address = 0;
    epx_ucx_unlock();
    if (cards == NULL)
        return status; /* the others' time runs out: there is no memory to meet them with */
    epx_status_t met = epx_ucx_gather(fabric, UCX_SETUP_CHANNEL, &mine, cards, sizeof(mine), SETUP_MS);
    if (status == EPX_OK)
        status = met;
    if (status == EPX_OK)
        status = reach_all(fabric, memory, cards);
    free(cards);
    /* Nobody stores before everybody can be stored to. */
    uint8_t failed = status != EPX_OK, *all = (uint8_t *)malloc(ranks);
    if (met == EPX_OK && all != NULL) {
        met = epx_ucx_gather(fabric, UCX_SETUP_CHANNEL, &failed, all, 1, SETUP_MS);
        for (size_t p = 0; p < ranks && met == EPX_OK && status == EPX_OK; p++)
            if (all[p] != 0)
                status = epx_fail(EPX_ERR_PEER, "%s: rank %zu could not open the segment", fabric->name, p);
    }
    free(all);
    if (status != EPX_OK || met != EPX_OK)
        return status != EPX_OK ? status : met;
    *segment_p = (epx_segment_t){
        .base = memory->base,
        .bytes = bytes,
        .peer_ptr = (fabric->base.caps & EPX_FABRIC_LOADSTORE) != 0 ? memory->peer_ptr : NULL};
    return EPX_OK;
}
