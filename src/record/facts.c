/* Facts about ranks. SPDX-License-Identifier: Apache-2.0 */
#include "record/facts.h"

#include "record/find.h"
#include "record/lanes.h"
#include "record/order.h"

/* As long as a rank's watchdog may be late. */
#define SEEN_NS ((int64_t)1500000000)

enum { WARM_UP_FACTOR = 20 };

static uint64_t get64(const uint64_t *from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }
static int64_t get_time(const int64_t *from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

/* The first number that may still be in the ring. */
static uint64_t oldest_of(const epx_record_head_t *head, uint64_t newest)
{
    return newest > head->ops_max ? newest - head->ops_max + 1 : 1;
}

/* ---- one rank --------------------------------------------------------------------------------------------------- */

static int64_t last_time(const epx_record_operation_t *op)
{
    return later(later(op->enqueued_ns, op->begun_ns),
                 later(later(op->posted_ns, op->seen_ns), op->ended_ns));
}

/* Whether a wait is going on. A fabric says at once for whom; where it does not, the rank's thread has not
 * come to it: it is somewhere inside the call, and whether words are here nobody has looked. */
static int is_waiting(const epx_record_operation_t *op, const epx_record_progress_t *progress)
{
    int looks = op->kind == EPX_RECORD_FOREIGN || progress->wait_mode == EPX_RECORD_EXCHANGE ||
                __atomic_load_n(&progress->wait.peer, __ATOMIC_RELAXED) >= 0;
    /* A kernel of which blocks are missing has not come to waiting for anybody. */
    int is_whole = get64(&progress->blocks_arrived) >= get64(&progress->blocks);
    return looks && is_whole && get_time(&progress->wait_begun_ns) != 0;
}

/* Which of the open operations a rank is in: one that waits, else one that was called and has not begun, else
 * one inside of which it is; the oldest of those, which is the one that a stream stands at. */
static void find_place(epx_rank_facts_t *f)
{
    const epx_record_head_t *head = f->record;
    uint64_t newest = get64(&head->operations);
    f->place = EPX_PLACE_OUTSIDE;
    for (uint64_t n = newest; n >= oldest_of(head, newest) && n > 0; n--) {
        epx_record_operation_t op;
        const epx_record_peer_t *peers;
        if (!epx_record_operation(f->record, n, &op))
            continue;
        if (f->op.number == 0)
            f->op = op; /* the last one, should none be open */
        if (op.state == EPX_RECORD_ENDED)
            continue;
        const epx_record_progress_t *progress = epx_record_progress(f->record, &op, &peers);
        int waits = progress != NULL && op.state >= EPX_RECORD_BEGUN && is_waiting(&op, progress);
        int is_in_wait = progress != NULL && get_time(&progress->wait_begun_ns) != 0;
        int is_in_call = progress != NULL && __atomic_load_n(&progress->inside, __ATOMIC_ACQUIRE);
        epx_rank_place_t place = waits                             ? EPX_PLACE_WAITS
                                 : is_in_wait                      ? EPX_PLACE_INSIDE
                                 : op.state == EPX_RECORD_ENQUEUED ? EPX_PLACE_ENQUEUED
                                 : op.state != EPX_RECORD_POSTED   ? EPX_PLACE_INSIDE
                                 : is_in_call                      ? EPX_PLACE_INSIDE
                                                                   : EPX_PLACE_OUTSIDE;
        if (place == EPX_PLACE_OUTSIDE || place < f->place)
            continue;
        f->place = place;
        f->op = op;
        if (!epx_record_progress_copy(f->record, &op, &f->progress, sizeof(f->progress)))
            f->progress = (epx_record_progress_t){0};
    }
}

/* When the last marker in the order of a stream was reached, in the record's clock; 0: none was. */
static int64_t stream_mark(const void *record, uint32_t *mark_p)
{
    const epx_record_head_t *head = record;
    const epx_record_device_t *device =
        (const epx_record_device_t *)(const void *)((const uint8_t *)record + head->device_at);
    uint64_t mark = get64(&device->mark);
    if (mark == 0)
        return 0;
    *mark_p = (uint32_t)mark;
    return get_time(&device->mark_realtime_ns) - head->opened_realtime_ns + head->opened_ns;
}

/* Whether the host has made calls since it last put a mark into a stream. */
static int has_called_since_mark(const epx_record_head_t *head)
{
    uint32_t marked_at = __atomic_load_n(&head->marked_at, __ATOMIC_ACQUIRE);
    return marked_at != 0 && (uint32_t)get64(&head->operations) + 1 != marked_at;
}

/* In percent, while it is recent. Where other processes have the device, what it does may be theirs, and what
 * this one does counts. NVML knows that from looks at whose turn it is, ten in a period: who was seen twice
 * works with the share that its turns leave it; who was not seen does nothing where there is one other
 * process, and may have been missed where there are more. A device that does nothing does nothing for
 * anybody. */
static int32_t use_of(const epx_record_head_t *head, int64_t now_ns)
{
    enum { RECENT_MS = 3000, SEEN_TWICE = 20, WORKS = 50 };
    uint32_t use = __atomic_load_n(&head->device_use, __ATOMIC_ACQUIRE);
    if (use == 0 || now_ns - get_time(&head->device_seen_ns) >= (int64_t)RECENT_MS * 1000000)
        return -1;
    int32_t processes = (int32_t)__atomic_load_n(&head->device_processes, __ATOMIC_RELAXED);
    if (processes < 2 || use == 1)
        return (int32_t)use - 1;
    int32_t own = (int32_t)__atomic_load_n(&head->device_own, __ATOMIC_RELAXED) - 1;
    if (own >= SEEN_TWICE && own * processes >= WORKS)
        return own * processes < 100 ? own * processes : 100;
    return own == 0 && processes == 2 ? 0 : EPX_USE_UNCLEAR;
}

static int64_t budget_of(const epx_record_head_t *head, int32_t factor, int64_t early_ns)
{
    int64_t budget = get_time(&head->hang_ms) * 1000000 * factor;
    return budget - earlier(early_ns, budget / 2);
}

/* Times of the record become the judge's. */
static void find_times(epx_rank_facts_t *f, int64_t ahead_ns, int64_t now_ns, int64_t early_ns)
{
    const epx_record_head_t *head = f->record;
    int64_t since = f->place == EPX_PLACE_WAITS ? f->progress.wait_begun_ns : last_time(&f->op);
    int64_t sign = 0, before_mark = last_time(&f->op), stream_sign = stream_mark(f->record, &f->mark);
    int calls_since = 0;
    if (get64(&head->marks) > 0)
        sign = get_time(&head->mark_ns);
    if (stream_sign != 0 && (f->stands != EPX_STANDS_NOT || stream_sign > sign)) {
        /* A stream comes to a mark long after the host has made the calls behind it. */
        calls_since = has_called_since_mark(head);
        sign = stream_sign;
        before_mark = epx_lanes_last_said(f->record);
    } else {
        f->mark = head->mark;
    }
    f->marked_last =
        f->place != EPX_PLACE_WAITS &&
        (f->stands == EPX_STANDS_BEFORE ? sign > f->told_ns : sign > before_mark && !calls_since);
    if (get64(&head->heartbeats) > 0)
        sign = later(sign, get_time(&head->heartbeat_ns));
    if (f->stands == EPX_STANDS_BEFORE)
        since = f->told_ns;
    f->since_ns = (f->op.number != 0 ? since : head->opened_ns) - ahead_ns;
    f->last_sign_ns = sign != 0 ? sign - ahead_ns : 0;
    /* A phase that changes while it is read is a sign of life: paused, until the next look. */
    uint32_t before = __atomic_load_n(&head->phase_changes, __ATOMIC_ACQUIRE);
    uint32_t phase = __atomic_load_n(&head->phase, __ATOMIC_RELAXED);
    int64_t begun = __atomic_load_n(&head->phase_ns, __ATOMIC_RELAXED);
    int64_t pause = __atomic_load_n(&head->phase_budget_ms, __ATOMIC_RELAXED) * 1000000;
    epx_order_reads();
    f->paused = (before & 1) != 0 || __atomic_load_n(&head->phase_changes, __ATOMIC_RELAXED) != before ||
                (pause > 0 && now_ns < begun - ahead_ns + pause);
    /* Memory that is made and registered for a group takes what warming up takes. */
    int builds =
        f->place == EPX_PLACE_ENQUEUED && (f->op.kind == EPX_RECORD_OPEN || f->op.kind == EPX_RECORD_RECOVER);
    f->budget_ns = budget_of(head, phase < EPX_RECORD_STEADY || builds ? WARM_UP_FACTOR : 1, early_ns);
    f->moves = sign != 0 && now_ns - f->last_sign_ns < f->budget_ns;
}

static void find_next(epx_rank_facts_t *f)
{
    f->next = f->next_place = -1;
    if (f->place != EPX_PLACE_WAITS)
        return;
    int32_t peer = f->progress.wait.peer;
    if (peer < 0 && f->progress.waits_for >= 0)
        peer = f->progress.waits_for;
    f->next_place = peer;
    f->next = peer >= 0 ? epx_record_member(f->record, f->op.group, peer) : -1;
}

static void gather_one(const epx_job_evidence_t *job, int32_t r, epx_rank_facts_t *f)
{
    const epx_rank_evidence_t *evidence = &job->rank[r];
    *f = (epx_rank_facts_t){.record = evidence->record,
                            .life = evidence->life,
                            .works = evidence->works,
                            .starves = evidence->starves,
                            .asked = evidence->life != EPX_LIFE_UNKNOWN,
                            .next = -1,
                            .next_place = -1};
    if (f->record == NULL)
        return;
    const epx_record_head_t *head = f->record;
    /* What its own watchdog has seen of it, a moment ago: with that one gone or stopped it is nobody's word.
     */
    int64_t watched_ns = get_time(&head->watched_ns);
    if (f->life == EPX_LIFE_UNKNOWN &&
        (watched_ns == 0 || job->now_ns - (watched_ns - evidence->ahead_ns) <= SEEN_NS))
        f->life = (epx_rank_life_t)head->life_seen;
    find_place(f);
    epx_lanes_place(f);
    f->use = use_of(head, job->now_ns + evidence->ahead_ns);
    if (head->life == EPX_RECORD_CLOSED)
        f->place = EPX_PLACE_CLOSED;
    find_times(f, evidence->ahead_ns, job->now_ns, job->early_ns);
    find_next(f);
}

/* ---- waits for everybody ---------------------------------------------------------------------------------------- */

/* How well a rank that has not made a call explains that others wait: one that waits itself explains least.
 */
static int32_t blame(const epx_rank_facts_t *f)
{
    if (f->life >= EPX_LIFE_STOPPED)
        return 6;
    static const int32_t by_place[] = {
        [EPX_PLACE_NO_RECORD] = 2, [EPX_PLACE_CLOSED] = 4, [EPX_PLACE_OUTSIDE] = 5,
        [EPX_PLACE_ENQUEUED] = 5,  [EPX_PLACE_INSIDE] = 3, [EPX_PLACE_WAITS] = 1};
    return by_place[f->place];
}

/* Who of the group has not made the call of a rank that waits for all, or has not begun it, or does nothing
 * any more in the middle of it, without a word from below for whom. */
static void find_missing(int32_t ranks, epx_rank_facts_t *room, epx_rank_facts_t *f)
{
    const epx_record_group_row_t *group = epx_record_group_row(f->record, f->op.group);
    int32_t best = 0;
    for (int32_t i = 0; group != NULL && i < group->ranks; i++) {
        epx_record_operation_t found;
        int32_t r = epx_record_member(f->record, f->op.group, i);
        if (r < 0 || r >= ranks || blame(&room[r]) <= best)
            continue;
        epx_has_op_t has =
            room[r].record != NULL ? epx_facts_find(room[r].record, &f->op, &found) : EPX_OP_LACKS;
        int is_open = has == EPX_OP_HAS && found.state != EPX_RECORD_ENDED;
        if (has != EPX_OP_LACKS &&
            !(is_open && (found.state == EPX_RECORD_ENQUEUED || room[r].life >= EPX_LIFE_STOPPED)))
            continue;
        best = blame(&room[r]);
        f->next = r;
        f->next_place = i;
    }
}

/* All of them are in a library that makes what a group needs, and is as slow as warming up is. */
static void be_patient(epx_rank_facts_t *f, int64_t early_ns)
{
    const epx_record_head_t *head = f->record;
    if (f->op.kind == EPX_RECORD_OPEN || f->op.kind == EPX_RECORD_RECOVER)
        f->budget_ns = budget_of(head, WARM_UP_FACTOR, early_ns);
}

void epx_facts_gather(const epx_job_evidence_t *job, epx_rank_facts_t *room)
{
    const epx_rank_facts_t *same = NULL; /* most ranks wait in one operation: it is searched once */
    for (int32_t r = 0; r < job->ranks; r++)
        gather_one(job, r, &room[r]);
    epx_lanes_compare(job, room);
    for (int32_t r = 0; r < job->ranks; r++) {
        epx_rank_facts_t *f = &room[r];
        if (f->place != EPX_PLACE_WAITS || f->next >= 0 || f->next_place >= 0)
            continue;
        if (same != NULL && same->op.group_key == f->op.group_key && same->op.stream == f->op.stream &&
            same->op.sequence == f->op.sequence) {
            f->next = same->next;
            f->next_place = same->next_place;
        } else {
            find_missing(job->ranks, room, f);
            same = f;
        }
        if (f->next < 0)
            be_patient(f, job->early_ns);
    }
}
