/* Stamps: what a rank's own thread writes as it goes. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "record/order.h"
#include "record/read.h"
#include "record/recorder.h"
#include "record/rows.h"

/* Orders of stores are F1 to F4 of format.h. */

static epx_record_operation_t *row_of(epx_recorder_h r, uint64_t number)
{
    return &r->ops[number & (r->head->ops_max - 1)];
}

static epx_record_progress_t *slot_at(epx_recorder_h r, uint32_t slot)
{
    return (epx_record_progress_t *)(void *)(r->progress + (uint64_t)slot * r->head->progress_bytes);
}

static epx_record_peer_t *peers_of(epx_record_progress_t *progress)
{
    return (epx_record_peer_t *)(void *)(progress + 1);
}

/* ---- operations ------------------------------------------------------------------------------------------------- */

/* The next slot that no open operation has; when all are taken, the next one all the same. */
static uint32_t take_slot(epx_recorder_h r)
{
    uint32_t slots = r->head->slots_max, slot = r->next_slot;
    for (uint32_t i = 0; i < slots && (r->taken >> slot & 1u) != 0; i++)
        slot = slot + 1 == slots ? 0 : slot + 1;
    r->next_slot = slot + 1 == slots ? 0 : slot + 1;
    r->taken |= (uint64_t)1 << slot;
    return slot;
}

static void focus(epx_recorder_h r, uint64_t number)
{
    epx_record_operation_t *row = row_of(r, number);
    r->current = 0;
    if (number == 0 || row->number != number)
        return;
    epx_record_progress_t *progress = slot_at(r, row->slot);
    r->current = number;
    r->op = row;
    r->now = progress->number == number ? progress : NULL;
}

static uint64_t new_row(epx_recorder_h r, const epx_recorder_call_t *call, int has_begun)
{
    if (r == NULL || call->group_id < 1)
        return 0;
    int64_t now = epx_clock_ns();
    uint64_t number = r->head->operations + 1;
    uint32_t group = (uint32_t)call->group_id - 1, slot = take_slot(r);
    epx_record_operation_t *row = row_of(r, number);
    epx_record_progress_t *progress = slot_at(r, slot);
    if (row->number != 0 && row->state != EPX_RECORD_ENDED && slot_at(r, row->slot)->number == row->number)
        r->taken &= ~((uint64_t)1 << row->slot); /* open for a whole ring of others: given up */
    epx_put64(&row->number, 0);
    epx_put64(&progress->number, 0);
    epx_order_writes();
    *row = (epx_record_operation_t){.group_key = r->groups[group].key,
                                    .sequence = call->sequence,
                                    .epoch = call->epoch,
                                    .signature = call->signature,
                                    .group = group,
                                    .stream = call->stream,
                                    .kind = (uint16_t)call->kind,
                                    .lane = (uint16_t)call->lane,
                                    .wave = call->wave,
                                    .state = has_begun ? EPX_RECORD_BEGUN : EPX_RECORD_ENQUEUED,
                                    .slot = slot,
                                    .text = call->text,
                                    .mark = r->head->mark,
                                    .mark_ns = r->head->mark_ns,
                                    .enqueued_ns = now,
                                    .begun_ns = has_begun ? now : 0,
                                    .bytes = call->bytes};
    *progress = (epx_record_progress_t){
        .waits_for = EPX_RECORD_NOBODY, .wait = {.peer = -1}, .sequence = call->sequence};
    epx_put64(&progress->number, number);
    epx_put64(&row->number, number);
    epx_put64(&r->head->operations, number);
    epx_recorder_moved(r, now);
    r->current = number;
    r->op = row;
    r->now = progress;
    return number;
}

uint64_t epx_recorder_enqueue(epx_recorder_h r, const epx_recorder_call_t *call)
{
    return new_row(r, call, 0);
}

uint64_t epx_recorder_enter(epx_recorder_h r, const epx_recorder_call_t *call) { return new_row(r, call, 1); }

/* The open operation of that number, or NULL. */
static epx_record_operation_t *open_row(epx_recorder_h r, uint64_t op)
{
    if (r == NULL || op == 0)
        return NULL;
    epx_record_operation_t *row = row_of(r, op);
    return row->number == op && row->state != EPX_RECORD_ENDED ? row : NULL;
}

/* States only grow. */
static void reach(epx_recorder_h r, epx_record_operation_t *row, uint32_t state, int64_t *time_p)
{
    int64_t now = epx_clock_ns();
    if (row->state >= state)
        return;
    *time_p = now;
    epx_put32(&row->state, state);
    epx_recorder_moved(r, now);
}

void epx_recorder_begin(epx_recorder_h r, uint64_t op)
{
    epx_record_operation_t *row = open_row(r, op);
    if (row != NULL)
        reach(r, row, EPX_RECORD_BEGUN, &row->begun_ns);
}

void epx_recorder_posted(epx_recorder_h r, uint64_t op)
{
    epx_record_operation_t *row = open_row(r, op);
    if (row != NULL)
        reach(r, row, EPX_RECORD_POSTED, &row->posted_ns);
}

void epx_recorder_resume(epx_recorder_h r, uint64_t op)
{
    if (r == NULL)
        return;
    focus(r, op);
    if (r->current != 0 && r->now != NULL)
        epx_put32(&r->now->inside, 1);
}

void epx_recorder_leave(epx_recorder_h r)
{
    if (r == NULL)
        return;
    if (r->current != 0 && r->now != NULL)
        epx_put32(&r->now->inside, 0);
    r->current = 0;
}

void epx_recorder_end(epx_recorder_h r, uint64_t op, epx_status_t status)
{
    epx_record_operation_t *row = open_row(r, op);
    if (row == NULL)
        return;
    row->status = (int32_t)status;
    reach(r, row, EPX_RECORD_ENDED, &row->ended_ns);
    if (status == EPX_ERR_PEER || status == EPX_ERR_TIMEOUT || status == EPX_ERR_FABRIC) {
        r->head->failed_operation = op;
        epx_put_time(&r->head->failed_ns, row->ended_ns);
    }
    epx_put64(&r->head->ended, r->head->ended + 1);
    epx_record_progress_t *progress = slot_at(r, row->slot);
    if (progress->number == op) {
        epx_put64(&progress->ended, row->sequence);
        epx_put_time(&progress->wait_begun_ns, 0);
        r->taken &= ~((uint64_t)1 << row->slot);
    }
    if (r->current == op)
        r->current = 0;
}

/* ---- words and waits -------------------------------------------------------------------------------------------- */

/* The words per peer of the operation, cleared when the first of them is needed. */
static epx_record_peer_t *peer_word(epx_recorder_h r, epx_record_progress_t *progress, uint32_t group,
                                    int32_t peer)
{
    epx_record_peer_t *peers = peers_of(progress);
    int32_t ranks = r->groups[group].ranks;
    if (peer < 0 || peer >= ranks || peer >= (int32_t)r->head->peers_max)
        return NULL;
    if (!progress->has_peers) {
        memset(peers, 0,
               sizeof(*peers) *
                   (size_t)(ranks < (int32_t)r->head->peers_max ? ranks : (int32_t)r->head->peers_max));
        epx_put32(&progress->has_peers, 1);
    }
    return &peers[peer];
}

static void put_sent(epx_recorder_h r, epx_record_operation_t *row, epx_record_progress_t *progress,
                     int32_t peer, uint64_t epoch)
{
    if (peer == EPX_RECORD_EVERYBODY) {
        epx_put64(&progress->sent_all, epoch);
        return;
    }
    epx_record_peer_t *word = peer_word(r, progress, row->group, peer);
    if (word != NULL)
        epx_put64(&word->sent, epoch);
}

static void put_seen(epx_recorder_h r, epx_record_operation_t *row, epx_record_progress_t *progress,
                     int32_t peer, uint64_t epoch)
{
    if (peer == EPX_RECORD_EVERYBODY) {
        epx_put64(&progress->seen_all, epoch);
        return;
    }
    epx_record_peer_t *word = peer_word(r, progress, row->group, peer);
    if (word != NULL)
        epx_put64(&word->seen, epoch);
}

/* The lane of the current operation, where a device writes of it. */
static epx_record_lane_row_t *lane_now(epx_recorder_h r)
{
    if (r == NULL || r->current == 0 || r->device.mapped == NULL)
        return NULL;
    return epx_recorder_lane_row(r, r->op->group, r->op->lane);
}

void epx_recorder_asked(epx_recorder_h r, uint32_t what, uint64_t step)
{
    epx_record_lane_row_t *row = lane_now(r);
    if (row == NULL)
        return;
    if ((r->op->device & what) == 0)
        epx_put32(&r->op->device, r->op->device | what);
    if (step != 0)
        epx_put64(&row->asked_step, step);
    else if (r->op->sequence > row->asked_call)
        epx_put64(&row->asked_call, r->op->sequence);
}

uint64_t epx_recorder_next_step(epx_recorder_h r)
{
    const epx_record_lane_row_t *row = lane_now(r);
    return row != NULL ? row->asked_step + 1 : 0;
}

void epx_recorder_sent(epx_recorder_h r, int32_t peer, uint64_t epoch)
{
    if (r == NULL || r->current == 0 || r->now == NULL)
        return;
    if (r->op->epoch == 0)
        epx_put64(&r->op->epoch, epoch);
    put_sent(r, r->op, r->now, peer, epoch);
}

/* Epoch of the last good wait on a channel of the operation's group, or NULL. */
static uint64_t *last_on(epx_recorder_h r, int32_t channel)
{
    if (channel < 0 || channel >= EPX_RECORDER_CHANNELS)
        return NULL;
    return &r->last[(size_t)r->op->group * EPX_RECORDER_CHANNELS + (size_t)channel];
}

void *epx_recorder_wait_begin(epx_recorder_h r, int32_t channel, int32_t peer, uint64_t epoch, int32_t mode,
                              void *own)
{
    if (r == NULL || r->current == 0 || r->now == NULL)
        return own;
    epx_record_progress_t *progress = r->now;
    const uint64_t *last = last_on(r, channel);
    int64_t now = epx_clock_ns();
    progress->waits_for = peer;
    progress->wait_mode = (uint32_t)mode;
    progress->previous = last != NULL ? *last : 0;
    progress->wait = (epx_record_wait_t){.peer = -1, .expected = epoch};
    epx_put64(&progress->waits, progress->waits + 1);
    epx_put_time(&progress->wait_begun_ns, now);
    epx_put_time(&r->head->moved_ns, now);
    return &progress->wait;
}

void epx_recorder_wait_end(epx_recorder_h r, int32_t channel, int ok)
{
    if (r == NULL || r->current == 0 || r->now == NULL)
        return;
    epx_record_progress_t *progress = r->now;
    if (ok) {
        uint64_t *last = last_on(r, channel);
        if (last != NULL && progress->wait_mode != 2)
            *last = progress->wait.expected;
        if (progress->wait_mode != 2)
            put_seen(r, r->op, progress, progress->waits_for, progress->wait.expected);
        epx_put_time(&progress->wait_begun_ns, 0);
    }
    /* What a failed wait saw stays to be read until the operation ends. A wait in front of the posts is for
     * credit. */
    if (ok && r->op->state == EPX_RECORD_POSTED)
        reach(r, r->op, EPX_RECORD_SEEN, &r->op->seen_ns);
    else
        epx_put_time(&r->head->moved_ns, epx_clock_ns());
}

void epx_recorder_error(epx_recorder_h r, epx_status_t status, const char *text)
{
    if (r == NULL)
        return;
    epx_record_head_t *head = r->head;
    int64_t now = epx_clock_ns();
    epx_put32(&head->errors, head->errors + 1);
    epx_order_writes();
    head->error = (int32_t)status;
    head->error_ns = now;
    head->error_operation = r->current != 0 ? r->current : head->operations;
    snprintf(head->error_text, sizeof(head->error_text), "%s", text != NULL ? text : "");
    epx_put32(&head->errors, head->errors + 1);
    epx_recorder_event(r, EPX_RECORD_EVENT_ERROR, 0, status, now);
    epx_recorder_moved(r, now);
}

/* ---- operations of others --------------------------------------------------------------------------------------- */

uint64_t epx_record_enqueue(epx_recorder_h r, const epx_record_op_t *op)
{
    if (r == NULL || op == NULL || op->size != sizeof(*op) || op->group_id < 1 ||
        op->group_id > (int32_t)r->head->groups_max || op->text_id < 0 ||
        op->text_id >= (int32_t)r->head->texts)
        return 0;
    uint64_t *counted = &r->counted[op->group_id - 1];
    *counted = op->sequence != 0 ? op->sequence : *counted + 1;
    epx_recorder_call_t call = {.group_id = op->group_id,
                                .sequence = *counted,
                                .epoch = *counted,
                                .signature = op->signature,
                                .wave = op->wave,
                                .bytes = op->bytes,
                                .text = (uint32_t)op->text_id};
    uint64_t number = epx_recorder_enqueue(r, &call);
    r->current = 0; /* the library's own words below belong to others */
    return number;
}

void epx_record_begin(epx_recorder_h r, uint64_t op)
{
    epx_record_operation_t *row = open_row(r, op);
    if (row == NULL)
        return;
    epx_record_progress_t *progress = slot_at(r, row->slot);
    reach(r, row, EPX_RECORD_BEGUN, &row->begun_ns);
    if (progress->number != op)
        return;
    progress->waits_for = EPX_RECORD_EVERYBODY;
    progress->wait_mode = 2;
    epx_put_time(&progress->wait_begun_ns, row->begun_ns);
}

void epx_record_seen(epx_recorder_h r, uint64_t op)
{
    epx_record_operation_t *row = open_row(r, op);
    if (row == NULL)
        return;
    reach(r, row, EPX_RECORD_SEEN, &row->seen_ns);
    if (slot_at(r, row->slot)->number == op)
        epx_put_time(&slot_at(r, row->slot)->wait_begun_ns, 0);
}

void epx_record_end(epx_recorder_h r, uint64_t op, epx_status_t status)
{
    uint64_t current = r != NULL ? r->current : 0;
    epx_recorder_end(r, op, status);
    if (r != NULL)
        r->current = current;
}

/* The words of an open operation of somebody else's, or NULL. */
static epx_record_progress_t *words_of(epx_recorder_h r, uint64_t op, epx_record_operation_t **row_p)
{
    *row_p = open_row(r, op);
    if (*row_p == NULL || slot_at(r, (*row_p)->slot)->number != op)
        return NULL;
    return slot_at(r, (*row_p)->slot);
}

void epx_record_waits(epx_recorder_h r, uint64_t op, int32_t peer)
{
    epx_record_operation_t *row;
    epx_record_progress_t *progress = words_of(r, op, &row);
    if (progress == NULL)
        return;
    int64_t now = epx_clock_ns();
    progress->waits_for = peer < 0 ? EPX_RECORD_EVERYBODY : peer;
    progress->wait_mode = peer < 0 ? 2 : 0;
    progress->wait = (epx_record_wait_t){.peer = peer < 0 ? -1 : peer, .expected = row->epoch};
    if (progress->wait_begun_ns == 0)
        epx_put_time(&progress->wait_begun_ns, now);
    epx_recorder_moved(r, now);
}

void epx_record_sent(epx_recorder_h r, uint64_t op, int32_t peer, uint64_t epoch)
{
    epx_record_operation_t *row;
    epx_record_progress_t *progress = words_of(r, op, &row);
    if (progress == NULL)
        return;
    put_sent(r, row, progress, peer, epoch);
    epx_recorder_moved(r, epx_clock_ns());
}

void epx_record_arrived(epx_recorder_h r, uint64_t op, int32_t peer, uint64_t epoch)
{
    epx_record_operation_t *row;
    epx_record_progress_t *progress = words_of(r, op, &row);
    if (progress == NULL)
        return;
    put_seen(r, row, progress, peer, epoch);
    if (progress->wait.peer == peer)
        epx_put64(&progress->wait.seen, epoch);
    epx_recorder_moved(r, epx_clock_ns());
}

/* Only what has changed is a sign of life. */
void epx_record_blocks(epx_recorder_h r, uint64_t op, uint64_t blocks, uint64_t arrived)
{
    epx_record_operation_t *row;
    epx_record_progress_t *progress = words_of(r, op, &row);
    if (progress == NULL || (progress->blocks == blocks && progress->blocks_arrived == arrived))
        return;
    epx_put64(&progress->blocks_arrived, arrived);
    epx_put64(&progress->blocks, blocks);
    epx_recorder_moved(r, epx_clock_ns());
}
