/* Fabric `ucx`: bytes and words to peers. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fail.h"
#include "fabric/ucx/internal.h"

enum { CELL_MS = 1000, BUFFER_LOOKS = 64 };

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

static void give_buffer(ucx_fabric_t *fabric, ucx_buffer_t *buffer)
{
    buffer->next = fabric->free_buffer;
    fabric->free_buffer = buffer;
}

static void give_cell(ucx_cell_t *cell)
{
    if (cell->buffer != NULL)
        give_buffer(cell->fabric, cell->buffer);
    cell->buffer = NULL;
    cell->next = cell->fabric->free_cell;
    cell->fabric->free_cell = cell;
}

static void cell_done(void *request, ucs_status_t rc, void *context)
{
    ucx_cell_t *cell = context;
    (void)rc;
    cell->fabric->in_flight--;
    give_cell(cell);
    ucp_request_free(request);
}

/* A cell; waits for one only where a peer takes nothing. With the lock. */
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

/* A buffer, the one that was used last; NULL: the peer is slow, or there are none. With the lock. */
static ucx_buffer_t *take_buffer(ucx_fabric_t *fabric)
{
    for (int i = 0; i < BUFFER_LOOKS && fabric->buffer != NULL && fabric->free_buffer == NULL; i++)
        (void)epx_ucx_progress_some();
    ucx_buffer_t *buffer = fabric->free_buffer;
    if (buffer != NULL)
        fabric->free_buffer = buffer->next;
    return buffer;
}

/* What became of a request, with the lock; 1: it is on its way. */
static int is_pending(ucx_peer_t *peer, ucs_status_ptr_t request)
{
    if (UCS_PTR_IS_ERR(request)) {
        put_failed(peer);
        return 0;
    }
    peer->fabric->in_flight += request != NULL;
    return request != NULL;
}

/* With the lock. */
static int put_far(ucx_peer_t *peer, ucp_rkey_h rkey, uint64_t address, const void *from, size_t bytes,
                   ucp_send_nbx_callback_t done, void *context)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb = {.send = done},
                                 .user_data = context};
    return is_pending(peer, ucp_put_nbx(peer->endpoint, from, bytes, address, rkey, &param));
}

/* A message in a put's place. buffer: the one that `from` is in, which comes back when it is sent, or NULL.
 * With the lock. */
static void send_far(ucx_peer_t *peer, const ucx_note_t *note, const void *from, size_t bytes,
                     ucx_buffer_t *buffer)
{
    ucx_fabric_t *fabric = peer->fabric;
    ucx_cell_t *cell = take_cell(fabric);
    if (cell == NULL) {
        put_failed(peer);
        if (buffer != NULL)
            give_buffer(fabric, buffer);
        return;
    }
    cell->buffer = buffer;
    cell->note = *note;
    cell->note.fabric = peer->its_fabric;
    cell->note.from = fabric->base.rank;
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                                                 UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_AM_SEND_FLAG_EAGER,
                                 .cb = {.send = cell_done},
                                 .user_data = cell};
    if (!is_pending(peer,
                    ucp_am_send_nbx(peer->endpoint, 0, &cell->note, sizeof(cell->note), from, bytes, &param)))
        give_cell(cell);
}

static void send_bytes(ucx_peer_t *peer, uint64_t address, const uint8_t *from, size_t bytes)
{
    for (size_t done = 0; done < bytes && !peer->has_failed; done += UCX_MESSAGE_BYTES) {
        ucx_note_t note = {.address = address + done};
        peer->sent++;
        send_far(peer, &note, from + done,
                 bytes - done < UCX_MESSAGE_BYTES ? bytes - done : UCX_MESSAGE_BYTES, NULL);
        if (bytes > UCX_MESSAGE_BYTES) /* what the peer sends meanwhile is taken while it is near, too */
            (void)epx_ucx_progress_some();
    }
}

/* Rows of a source, each message read just before it is sent. With the lock. */
static epx_status_t send_rows(ucx_peer_t *peer, uint64_t address, uint8_t *base, const epx_piece_t *piece,
                              epx_piece_source_t *source)
{
    int64_t most = UCX_MESSAGE_BYTES / source->unit * source->unit;
    epx_status_t status = EPX_OK;
    for (int64_t done = 0; done < piece->bytes && status == EPX_OK && !peer->has_failed; done += most) {
        ucx_note_t note = {.address = address + (uint64_t)done};
        int64_t bytes = piece->bytes - done < most ? piece->bytes - done : most;
        ucx_buffer_t *buffer = take_buffer(peer->fabric);
        uint8_t *from = buffer != NULL ? buffer->bytes : base + piece->local + done;
        status = source->read(source, piece->local + done, bytes, from);
        peer->sent++;
        send_far(peer, &note, from, (size_t)bytes, buffer);
        (void)epx_ucx_progress_some();
    }
    return status;
}

/* ---- receiving messages: inside progress, with the lock ------------------------------------------------------ */

static void set_here(const ucx_note_t *note)
{
    atomic_store_explicit((ucx_word_t *)(uintptr_t)note->address, note->value, memory_order_release);
}

static void set_early(ucx_peer_t *peer)
{
    for (ucx_cell_t **at = &peer->early; *at != NULL;) {
        ucx_cell_t *early = *at;
        if (early->note.after > peer->got) {
            at = &early->next;
            continue;
        }
        set_here(&early->note);
        *at = early->next;
        give_cell(early);
    }
}

ucs_status_t epx_ucx_receive(void *nothing, const void *header, size_t header_bytes, void *data, size_t bytes,
                             const ucp_am_recv_param_t *param)
{
    (void)nothing;
    ucx_note_t note;
    if (header_bytes != sizeof(note) || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0)
        return UCS_OK; /* none of ours */
    memcpy(&note, header, sizeof(note));
    ucx_fabric_t *fabric = epx_ucx_find(note.fabric);
    if (fabric == NULL || note.from < 0 || note.from >= fabric->base.ranks)
        return UCS_OK; /* for a fabric that has been freed */
    ucx_peer_t *peer = &fabric->peer[note.from];
    if (!note.is_word) {
        memcpy((void *)(uintptr_t)note.address, data, bytes);
        peer->got++;
        set_early(peer);
    } else if (note.after <= peer->got) {
        set_here(&note);
    } else {
        ucx_cell_t *early = fabric->free_cell;
        if (early != NULL) { /* else the wait runs out: there are more cells than words */
            fabric->free_cell = early->next;
            early->note = note;
            early->next = peer->early;
            peer->early = early;
        }
    }
    return UCS_OK;
}

/* ---- to peers ----------------------------------------------------------------------------------------------- */

epx_status_t epx_ucx_put(ucx_fabric_t *fabric, const ucx_memory_t *memory, int32_t peer, int64_t offset,
                         const void *from, size_t bytes)
{
    if (memory->peer_ptr[peer] != NULL) {
        memmove((uint8_t *)memory->peer_ptr[peer] + offset, from, bytes);
        return EPX_OK;
    }
    epx_ucx_lock();
    uint64_t address = memory->address[peer] + (uint64_t)offset;
    if (fabric->peer[peer].has_failed)
        ;
    else if (epx_ucx_has_puts())
        (void)put_far(&fabric->peer[peer], memory->rkey[peer], address, from, bytes, put_done, fabric);
    else
        send_bytes(&fabric->peer[peer], address, from, bytes);
    epx_ucx_unlock();
    return EPX_OK;
}

static int has_source(const epx_piece_t *piece, const epx_piece_source_t *source)
{
    return source != NULL && piece->local >= source->local &&
           piece->local + piece->bytes <= source->local + source->bytes;
}

epx_status_t epx_ucx_put_piece(ucx_fabric_t *fabric, const ucx_memory_t *memory, const epx_piece_t *piece,
                               epx_piece_source_t *source)
{
    ucx_peer_t *peer = &fabric->peer[piece->peer];
    uint8_t *base = memory->base, *theirs = memory->peer_ptr[piece->peer];
    epx_status_t status = EPX_OK;
    if (has_source(piece, source)) {
        if (theirs != NULL)
            return source->read(source, piece->local, piece->bytes, theirs + piece->remote);
        if (!epx_ucx_has_puts() && source->unit <= UCX_MESSAGE_BYTES) {
            epx_ucx_lock();
            status =
                send_rows(peer, memory->address[piece->peer] + (uint64_t)piece->remote, base, piece, source);
            epx_ucx_unlock();
            return status;
        }
        status = source->read(source, piece->local, piece->bytes, base + piece->local);
    }
    return status != EPX_OK ? status
                            : epx_ucx_put(fabric, memory, piece->peer, piece->remote, base + piece->local,
                                          (size_t)piece->bytes);
}

void epx_ucx_fence(ucx_fabric_t *fabric)
{
    if (fabric->far_count == 0)
        return;
    epx_ucx_lock();
    (void)ucp_worker_fence(epx_ucx_worker());
    epx_ucx_unlock();
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
    uint64_t address = control->address[p] + (uint64_t)offset;
    if (!peer->has_failed && epx_ucx_has_puts()) {
        ucx_cell_t *cell = take_cell(fabric);
        if (cell != NULL)
            cell->note.value = value;
        if (cell != NULL &&
            !put_far(peer, control->rkey[p], address, &cell->note.value, sizeof(value), cell_done, cell))
            give_cell(cell);
    } else if (!peer->has_failed) {
        ucx_note_t note = {.is_word = 1, .address = address, .value = value, .after = peer->sent};
        send_far(peer, &note, NULL, 0, NULL);
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
        (void)epx_ucx_progress();
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
