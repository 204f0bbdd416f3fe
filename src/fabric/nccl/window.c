/* Fabric `nccl`: registering memory, once (N1 to N3). SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "fabric/nccl/nccl.h"
#include "fabric/nccl/setup.h"

/* All registrations of this process. */
static struct {
    pthread_mutex_t mutex;
    nccl_part_t *first;
} registered = {.mutex = PTHREAD_MUTEX_INITIALIZER};

epx_status_t epx_nccl_failed(const nccl_fabric_t *fabric, const char *what, nccl_result_t result)
{
    const nccl_api_t *api = fabric->api;
    const char *detail = fabric->comm != NULL ? api->get_last_error(fabric->comm) : api->get_last_error(NULL);
    return epx_fail(EPX_ERR_FABRIC, "%s: rank %d: %s failed: %s%s%s (%s)", fabric->config.name,
                    fabric->base.rank, what, api->get_error_string(result),
                    detail != NULL && *detail != 0 ? ": " : "", detail != NULL ? detail : "", api->path);
}

/* What a rank says at a step of the set-up. */
typedef struct card {
    int64_t bytes;
    int32_t status;
    int32_t unused;
} card_t;

static epx_status_t meet(const nccl_fabric_t *fabric, card_t mine, const char *what)
{
    const epx_bootstrap_t *bootstrap = &fabric->config.bootstrap;
    card_t *cards = malloc((size_t)bootstrap->size * sizeof(*cards));
    epx_status_t status = (epx_status_t)mine.status;
    char text[400] = "";
    if (cards == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "%s: rank %d has no memory to meet the others",
                        fabric->config.name, bootstrap->rank);
    if (status != EPX_OK)
        snprintf(text, sizeof(text), "%s", epx_last_error());
    if (bootstrap->allgather(bootstrap->context, &mine, cards, sizeof(mine)) != 0)
        status = epx_fail(EPX_ERR_FABRIC, "%s: the all-gather that rank %d opens with failed",
                          fabric->config.name, bootstrap->rank);
    else if (status != EPX_OK)
        status = epx_fail(status, "%s", text);
    for (int32_t r = 0; r < bootstrap->size && status == EPX_OK; r++) {
        if (cards[r].status != EPX_OK)
            status = epx_fail(EPX_ERR_PEER, "%s: %s failed on rank %d (%s); its own error says why",
                              fabric->config.name, what, r, epx_status_name((epx_status_t)cards[r].status));
        else if (cards[r].bytes != mine.bytes)
            status = epx_fail(EPX_ERR_MISMATCH, "%s: %s: rank %d has %" PRId64 " bytes, rank %d has %" PRId64,
                              fabric->config.name, what, bootstrap->rank, mine.bytes, r, cards[r].bytes);
    }
    free(cards);
    return status;
}

void epx_nccl_meets(const nccl_fabric_t *fabric)
{
    const epx_fabric_meeting_t *meeting = fabric->config.meeting;
    epx_wait_result_t own = {.peer = -1};
    if (meeting != NULL)
        meeting->begin(meeting->context, &own);
}

void epx_nccl_has_met(const nccl_fabric_t *fabric, nccl_result_t result)
{
    const epx_fabric_meeting_t *meeting = fabric->config.meeting;
    if (meeting != NULL)
        meeting->end(meeting->context, result == 0 ? EPX_OK : EPX_ERR_FABRIC);
}

epx_status_t epx_nccl_agree(const nccl_fabric_t *fabric, epx_status_t status, const char *what)
{
    return meet(fabric, (card_t){.status = (int32_t)status}, what);
}

/* Enters the part into the list, unless it overlaps another. */
static epx_status_t enlist(const nccl_fabric_t *fabric, nccl_part_t *part)
{
    const char *begin = part->memory, *end = begin + part->bytes;
    epx_status_t status = EPX_OK;
    pthread_mutex_lock(&registered.mutex);
    for (const nccl_part_t *other = registered.first; other != NULL && status == EPX_OK;
         other = other->next) {
        const char *theirs = other->memory;
        if (begin < theirs + other->bytes && theirs < end)
            status = epx_fail(
                EPX_ERR_ARG,
                "%s: %s, %zu bytes at %p, overlaps %s, %zu bytes at %p, which is registered already; "
                "memory is registered once, until its group closes",
                fabric->config.name, part->name, part->bytes, part->memory, other->name, other->bytes,
                other->memory);
    }
    if (status == EPX_OK) {
        part->next = registered.first;
        part->link = &registered.first;
        if (part->next != NULL)
            part->next->link = &part->next;
        registered.first = part;
    }
    pthread_mutex_unlock(&registered.mutex);
    return status;
}

static void delist(nccl_part_t *part)
{
    pthread_mutex_lock(&registered.mutex); /* a neighbour that leaves the list writes part->link */
    if (part->link != NULL) {
        *part->link = part->next;
        if (part->next != NULL)
            part->next->link = part->link;
    }
    part->link = NULL;
    pthread_mutex_unlock(&registered.mutex);
}

static epx_status_t prepare(nccl_fabric_t *fabric, nccl_part_t *part)
{
    const epx_device_ops_t *device = fabric->config.device;
    if (part->memory == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "%s: rank %d has no %zu bytes for %s", fabric->config.name,
                        fabric->base.rank, part->bytes, part->name);
    epx_status_t status = enlist(fabric, part);
    if (status == EPX_OK)
        status = device->fill(part->memory, 0, part->bytes, NULL);
    return status == EPX_OK ? device->synchronize(NULL) : status;
}

/* The peers' addresses by the host's function, where the library has it. */
static epx_status_t ask_for_pointers(nccl_fabric_t *fabric, nccl_part_t *part)
{
    const epx_device_ops_t *device = fabric->config.device;
    nccl_team_t team = fabric->api->team_lsa(fabric->comm);
    int32_t first = fabric->base.rank - team.rank;
    epx_status_t status = EPX_OK;
    for (int32_t r = 0; r < fabric->base.ranks && status == EPX_OK; r++) {
        void *pointer = NULL;
        nccl_result_t result = 0;
        if (r >= first && r < first + team.ranks)
            result = fabric->api->get_peer_device_pointer(part->window, 0, r, &pointer);
        status = result != 0 ? epx_nccl_failed(fabric, "ncclGetPeerDevicePointer", result)
                             : device->copy(part->table + r, &pointer, sizeof(pointer), NULL);
    }
    return status;
}

/* My own entry is the memory itself, not its second address in NCCL's window: the same bytes by one address,
 * whoever of this rank looks at them. */
static epx_status_t own_pointer(const nccl_fabric_t *fabric, const nccl_part_t *part)
{
    const epx_device_ops_t *device = fabric->config.device;
    epx_status_t status =
        device->copy(part->table + fabric->base.rank, &part->memory, sizeof(part->memory), NULL);
    return status == EPX_OK ? device->synchronize(NULL) : status;
}

/* Fills the table. */
static epx_status_t read_pointers(nccl_fabric_t *fabric, nccl_part_t *part)
{
    epx_status_t status = EPX_OK;
    if (fabric->api->get_peer_device_pointer != NULL) {
        status = ask_for_pointers(fabric, part);
    } else {
        const nccl_setup_t *setup = epx_nccl_setup_for(fabric->api->version);
        const char *what = "";
        epx_nccl_meets(fabric);
        int result = setup->read_pointers(fabric->api, fabric->comm, part->window, fabric->base.ranks,
                                          part->table, &what);
        epx_nccl_has_met(fabric, result);
        if (result != 0 && fabric->base.ranks > 1)
            status = epx_nccl_failed(fabric, what, result);
    }
    return status == EPX_OK ? own_pointer(fabric, part) : status;
}

epx_status_t epx_nccl_enter(nccl_fabric_t *fabric, nccl_part_t *part)
{
    epx_status_t status = prepare(fabric, part);
    return meet(fabric, (card_t){.bytes = (int64_t)part->bytes, .status = (int32_t)status}, part->name);
}

epx_status_t epx_nccl_register(nccl_fabric_t *fabric, nccl_part_t *part)
{
    epx_status_t status = epx_nccl_enter(fabric, part);
    if (status != EPX_OK)
        return status;
    epx_nccl_meets(fabric);
    nccl_result_t result =
        fabric->api->window_register(fabric->comm, part->memory, part->bytes, &part->window, NCCL_SYMMETRIC);
    epx_nccl_has_met(fabric, result);
    part->registered = result == 0 && part->window != NULL;
    /* Some versions make no windows for one rank alone, which needs none: its own address is all that there
     * is. */
    if (fabric->base.ranks == 1 && !part->registered)
        return own_pointer(fabric, part);
    if (result != 0)
        status = epx_nccl_failed(fabric, "ncclCommWindowRegister", result);
    else if (part->window == NULL)
        status =
            epx_fail(EPX_ERR_UNSUPPORTED,
                     "%s: rank %d: NCCL made no symmetric window of %s (%s); are the GPUs linked, and is "
                     "NCCL_CUMEM_ENABLE not 0?",
                     fabric->config.name, fabric->base.rank, part->name, fabric->api->path);
    status = epx_nccl_agree(fabric, status, "registering memory");
    if (status == EPX_OK)
        status = epx_nccl_agree(fabric, read_pointers(fabric, part), "reading the peers' addresses");
    return status;
}

void epx_nccl_unregister(nccl_fabric_t *fabric, nccl_part_t *part)
{
    if (part->registered && part->window != NULL)
        fabric->api->window_deregister(fabric->comm, part->window);
    part->registered = 0;
    delist(part);
}
