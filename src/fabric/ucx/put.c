/* Fabric `ucx`: bytes and words to peers. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fail.h"
#include "fabric/ucx/internal.h"

enum { CELL_MS = 1000 };

/* With the lock, from inside progress or from put. */
static void put_failed(ucx_peer_t *peer)
{
    peer->has_failed = 1; /* the endpoint's own error handler tells the rest */
}

static void put_done(void *request, ucs_status_t rc, void *context)
{
    ucx_fabric_t *fabric = context;
    (void)rc; /* the error handler of the endpoint has heard of it */
    fabric->in_flight--;
    ucp_request_free(request);
}

static void word_done(void *request, ucs_status_t rc, void *context)
{
    ucx_cell_t *cell = context;
    (void)rc;
    cell->fabric->in_flight--;
    cell->next = cell->fabric->free_cell;
    cell->fabric->free_cell = cell;
    ucp_request_free(request);
}

/* With the lock. */
static void put_far(ucx_peer_t *peer, ucp_rkey_h rkey, uint64_t address, const void *from, size_t bytes,
                    ucp_send_nbx_callback_t done, void *context, int *pending_p)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb = {.send = done},
                                 .user_data = context};
    *pending_p = 0;
    if (peer->has_failed)
        return;
    ucs_status_ptr_t request = ucp_put_nbx(peer->endpoint, from, bytes, address, rkey, &param);
    if (UCS_PTR_IS_ERR(request)) {
        put_failed(peer);
    } else if (request != NULL) {
        peer->fabric->in_flight++;
        *pending_p = 1;
    }
}

epx_status_t epx_ucx_put(ucx_fabric_t *fabric, const ucx_memory_t *memory, int32_t peer, int64_t offset,
                         const void *from, size_t bytes)
{
    int pending;
    if (memory->peer_ptr[peer] != NULL) {
        memmove((uint8_t *)memory->peer_ptr[peer] + offset, from, bytes);
        return EPX_OK;
    }
    epx_ucx_lock();
    put_far(&fabric->peer[peer], memory->rkey[peer], memory->address[peer] + (uint64_t)offset, from, bytes,
            put_done, fabric, &pending);
    epx_ucx_unlock();
    return EPX_OK;
}

void epx_ucx_fence(ucx_fabric_t *fabric)
{
    if (fabric->far_count == 0)
        return;
    epx_ucx_lock();
    (void)ucp_worker_fence(epx_ucx_worker());
    epx_ucx_unlock();
}

/* A cell for a word; waits for one only where a peer takes nothing. With the lock. */
static ucx_cell_t *take_cell(ucx_fabric_t *fabric)
{
    int64_t deadline_ns = 0;
    while (fabric->free_cell == NULL) {
        if (deadline_ns == 0)
            deadline_ns = epx_clock_ns() + (int64_t)CELL_MS * 1000000;
        else if (epx_clock_ns() >= deadline_ns)
            return NULL;
        (void)epx_ucx_progress();
    }
    ucx_cell_t *cell = fabric->free_cell;
    fabric->free_cell = cell->next;
    return cell;
}

void epx_ucx_set(ucx_fabric_t *fabric, int32_t p, int64_t offset, uint64_t value)
{
    const ucx_memory_t *control = &fabric->control;
    ucx_peer_t *peer = &fabric->peer[p];
    if (control->peer_ptr[p] != NULL) {
        uint8_t *theirs = control->peer_ptr[p];
        /* Release: what this thread stored before is visible to who sees the word. */
        atomic_store_explicit((ucx_word_t *)(void *)(theirs + offset), value, memory_order_release);
        if (p != fabric->base.rank)
            epx_bell_ring_shared((epx_bell_t *)(void *)(theirs + fabric->layout.bell));
        return;
    }
    epx_ucx_lock();
    ucx_cell_t *cell = peer->has_failed ? NULL : take_cell(fabric);
    if (cell != NULL) {
        int pending;
        cell->value = value;
        put_far(peer, control->rkey[p], control->address[p] + (uint64_t)offset, &cell->value,
                sizeof(cell->value), word_done, cell, &pending);
        if (!pending) {
            cell->next = fabric->free_cell;
            fabric->free_cell = cell;
        }
    }
    epx_ucx_unlock();
}

void epx_ucx_drain(ucx_fabric_t *fabric, int64_t timeout_ms)
{
    int64_t deadline_ns = epx_clock_ns() + timeout_ms * 1000000;
    if (fabric->far_count == 0)
        return;
    /* Done here is not arrived there: the last of it is flushed. */
    ucp_request_param_t param = {.op_attr_mask = 0};
    epx_ucx_lock();
    for (int32_t p = 0; p < fabric->base.ranks; p++) {
        ucx_peer_t *peer = &fabric->peer[p];
        if (fabric->control.peer_ptr[p] != NULL || peer->has_failed || atomic_load(&peer->is_dead))
            continue;
        ucs_status_ptr_t request = ucp_ep_flush_nbx(peer->endpoint, &param);
        if (!UCS_PTR_IS_PTR(request))
            continue;
        while (ucp_request_check_status(request) == UCS_INPROGRESS && epx_clock_ns() < deadline_ns) {
            (void)epx_ucx_progress();
            /* Others may want the lock meanwhile, and the peer the processor. */
            epx_ucx_unlock();
            epx_nap_ns(20000);
            epx_ucx_lock();
        }
        ucp_request_free(request);
    }
    epx_ucx_unlock();
}
