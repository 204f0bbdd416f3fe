/* Facts about ranks, and the walk along their waits. SPDX-License-Identifier: Apache-2.0 */
#include "record/facts.h"

#include <string.h>

#include "record/order.h"

enum { WARM_UP_FACTOR = 20, PASS_SHIFT = 24, NUMBER_BITS = 14, LOOK_BACK = 8 };

static uint64_t get64(const uint64_t *from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }
static int64_t get_time(const int64_t *from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

/* The first number that may still be in the ring. */
static uint64_t oldest_of(const epx_record_head_t *head, uint64_t newest)
{
    return newest > head->ops_max ? newest - head->ops_max + 1 : 1;
}

epx_has_op_t epx_facts_find(const void *record, const epx_record_operation_t *like,
                            epx_record_operation_t *found_p)
{
    const epx_record_head_t *head = record;
    uint64_t newest = get64(&head->operations), oldest = oldest_of(head, newest);
    int has_earlier = 0, has_later = 0;
    for (uint64_t n = newest; n >= oldest; n--) {
        epx_record_operation_t op;
        if (!epx_record_operation(record, n, &op) || op.group_key != like->group_key ||
            op.stream != like->stream)
            continue;
        if (op.sequence == like->sequence) {
            *found_p = op;
            return EPX_OP_HAS;
        }
        has_later |= op.sequence > like->sequence;
        has_earlier |= op.sequence < like->sequence;
    }
    if (!has_later)
        return EPX_OP_LACKS;
    return has_earlier || oldest == 1 ? EPX_OP_SKIPPED : EPX_OP_PASSED;
}

int epx_facts_event(const void *record, uint32_t what, uint32_t or_what, int64_t since_ns,
                    epx_record_event_t *event_p)
{
    const epx_record_head_t *head = record;
    uint64_t newest = get64(&head->events);
    uint64_t oldest = newest > head->events_max ? newest - head->events_max + 1 : 1;
    for (uint64_t n = newest; n >= oldest; n--) {
        epx_record_event_t event;
        if (!epx_record_event(record, n, &event) || (event.what != what && event.what != or_what))
            continue;
        if (event.time_ns < since_ns)
            continue;
        *event_p = event;
        return 1;
    }
    return 0;
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
    return looks && get_time(&progress->wait_begun_ns) != 0;
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

/* In percent, while it is recent. */
static int32_t use_of(const epx_record_head_t *head, int64_t now_ns)
{
    enum { RECENT_MS = 3000 };
    uint32_t use = __atomic_load_n(&head->device_use, __ATOMIC_ACQUIRE);
    return use > 0 && now_ns - get_time(&head->device_seen_ns) < (int64_t)RECENT_MS * 1000000
               ? (int32_t)use - 1
               : -1;
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
    f->budget_ns = get_time(&head->hang_ms) * 1000000;
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
    if (phase < EPX_RECORD_STEADY || builds)
        f->budget_ns *= WARM_UP_FACTOR;
    f->budget_ns -= earlier(early_ns, f->budget_ns / 2);
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
                            .next = -1,
                            .next_place = -1};
    if (f->record == NULL)
        return;
    const epx_record_head_t *head = f->record;
    if (f->life == EPX_LIFE_UNKNOWN)
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
    if (f->life == EPX_LIFE_GONE || f->life == EPX_LIFE_STOPPED)
        return 6;
    static const int32_t by_place[] = {
        [EPX_PLACE_NO_RECORD] = 2, [EPX_PLACE_CLOSED] = 4, [EPX_PLACE_OUTSIDE] = 5,
        [EPX_PLACE_ENQUEUED] = 5,  [EPX_PLACE_INSIDE] = 3, [EPX_PLACE_WAITS] = 1};
    return by_place[f->place];
}

/* Who of the group has not made the call of a rank that waits for all, or has not begun it, without a word
 * from below for whom. */
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
        if (has != EPX_OP_LACKS && !(has == EPX_OP_HAS && found.state == EPX_RECORD_ENQUEUED))
            continue;
        best = blame(&room[r]);
        f->next = r;
        f->next_place = i;
    }
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
    }
}

/* ---- the walk --------------------------------------------------------------------------------------------------- */

/* Fields that must be equal under one identity; NULL: they are. */
static const char *differing(const void *a, const epx_record_operation_t *x, const void *b,
                             const epx_record_operation_t *y)
{
    if (x->kind != y->kind || strcmp(epx_record_kind_of(a, x), epx_record_kind_of(b, y)) != 0)
        return "kind";
    if (x->wave != y->wave)
        return "wave";
    if (x->signature != y->signature)
        return "signature";
    int counts =
        x->kind == EPX_RECORD_ALLREDUCE || x->kind == EPX_RECORD_ALLGATHER || x->kind == EPX_RECORD_FOREIGN;
    return counts && x->bytes != y->bytes ? "bytes" : NULL;
}

int epx_epoch_is_beyond(uint64_t a, uint64_t b, int of_words)
{
    if (!of_words)
        return a > b;
    uint64_t pass_a = a >> PASS_SHIFT, pass_b = b >> PASS_SHIFT;
    if (pass_a != pass_b)
        return pass_a > pass_b;
    return a >> NUMBER_BITS == b >> NUMBER_BITS && a > b;
}

/* Whether words of this epoch have been set at anybody. */
static int has_sent_to_others(const void *record, const epx_record_operation_t *op,
                              const epx_record_peer_t *peers, uint64_t epoch)
{
    const epx_record_group_row_t *group = epx_record_group_row(record, op->group);
    int32_t most = (int32_t)((const epx_record_head_t *)record)->peers_max;
    for (int32_t i = 0; group != NULL && i < group->ranks && i < most; i++)
        if (get64(&peers[i].sent) == epoch)
            return 1;
    return 0;
}

/* Whether p's part of an operation says that everything for place `to` of the group has been sent; *sent_p:
 * the epoch where it is known. */
static int has_sent(const void *record, const epx_record_operation_t *op, int32_t to,
                    const epx_record_progress_t *waiting, uint64_t *sent_p)
{
    uint64_t expected = waiting->wait.expected;
    int of_words = op->kind != EPX_RECORD_FOREIGN;
    const epx_record_peer_t *peers;
    const epx_record_progress_t *progress = epx_record_progress(record, op, &peers);
    *sent_p = progress != NULL ? get64(&progress->sent_all) : 0;
    if (peers != NULL && to >= 0 && to < (int32_t)((const epx_record_head_t *)record)->peers_max &&
        get64(&peers[to].sent) > *sent_p)
        *sent_p = get64(&peers[to].sent);
    if (op->state == EPX_RECORD_ENDED && op->status == 0)
        return 1;
    /* A block goes out inside of the same call that waits for the others': it has when that looks for the
     * same step. */
    if (waiting->wait_mode == EPX_RECORD_EXCHANGE && of_words)
        return *sent_p != 0 && progress->wait.peer >= 0 && progress->wait.expected >= expected;
    /* One call may set a word several times, hop by hop. */
    if (*sent_p != 0)
        return *sent_p == expected || epx_epoch_is_beyond(*sent_p, expected, of_words);
    /* That its first half is over says nothing of a word that the second half sets: the others' must be set.
     */
    return (op->state == EPX_RECORD_POSTED || op->state == EPX_RECORD_SEEN) &&
           (!of_words || (peers != NULL && has_sent_to_others(record, op, peers, expected)));
}

/* Words that go on hop by hop, and credits, are waited for in a later call than the one whose epoch they
 * carry: 1: they were sent in that one, which is *call_p. */
static int has_sent_before(const void *record, const epx_rank_facts_t *f, int32_t to,
                           epx_record_operation_t *call_p)
{
    epx_record_operation_t like = f->op, call;
    const epx_record_peer_t *peers;
    uint64_t expected = f->progress.wait.expected;
    like.sequence = epx_record_call_of(expected);
    if (f->op.kind < EPX_RECORD_DISPATCH || f->op.kind > EPX_RECORD_DISPATCH_BACKWARD ||
        f->progress.wait_mode == EPX_RECORD_EXCHANGE || like.sequence >= f->op.sequence ||
        epx_facts_find(record, &like, &call) != EPX_OP_HAS)
        return 0;
    *call_p = call;
    if (call.state == EPX_RECORD_ENDED)
        return call.status == 0;
    /* A credit is the last thing that a call sends. */
    epx_record_progress(record, &call, &peers);
    return f->progress.wait_mode == 0 && peers != NULL && to >= 0 &&
           to < (int32_t)((const epx_record_head_t *)record)->peers_max && get64(&peers[to].sent) == expected;
}

/* Calls of the two that differ under one number although both have gone on since: the last few of the same
 * stream. */
static int differed_before(const epx_rank_facts_t *f, const epx_rank_facts_t *q, epx_scene_t *scene)
{
    const epx_record_head_t *head = q->record;
    uint64_t newest = get64(&head->operations);
    for (uint64_t n = newest; n > 0 && n + LOOK_BACK > newest; n--) {
        epx_record_operation_t theirs, mine;
        if (!epx_record_operation(head, n, &theirs) || theirs.group_key != f->op.group_key ||
            theirs.stream != f->op.stream || epx_facts_find(f->record, &theirs, &mine) != EPX_OP_HAS)
            continue;
        scene->field = differing(f->record, &mine, head, &theirs);
        if (scene->field == NULL)
            continue;
        scene->op = mine;
        scene->others = theirs;
        return 1;
    }
    return 0;
}

/* The same where a stream stands: what q's device says it has sent. */
static int follow_stream(const epx_rank_facts_t *f, int32_t p, const epx_rank_facts_t *q, epx_scene_t *scene)
{
    const epx_record_lane_row_t *lane = epx_lanes_find(q->record, f->lane);
    int is_route = f->op.kind == EPX_RECORD_ROUTE;
    /* A credit belongs to an earlier operation; what stands behind another waits for no word. */
    if (f->stands == EPX_STANDS_BEHIND || f->progress.wait_mode == 1 || lane == NULL)
        return q->place == EPX_PLACE_WAITS;
    const uint64_t *pair = is_route ? lane->words.step_sent : lane->words.posted;
    uint64_t sent = get64(&pair[0]), expected = f->progress.wait.expected, named = get64(&pair[1]);
    if (sent != expected && !(is_route ? sent > expected : epx_epoch_is_beyond(sent, expected, 1)))
        return q->place == EPX_PLACE_WAITS;
    uint32_t kind = (uint32_t)(named & ((1u << EPX_PROGRESS_NAME_BITS) - 1)) >> 10;
    scene->sent = sent;
    scene->sent_ns = epx_lanes_time(q->record, named) - scene->job->rank[p].ahead_ns;
    scene->at = EPX_ROOT_SIGNAL;
    if (!is_route && sent == expected && kind != f->op.kind) {
        scene->others = f->op;
        scene->others.kind = (uint16_t)kind;
        scene->field = "kind";
        scene->at = EPX_ROOT_DESYNC;
    }
    return 0;
}

/* The edge from a waiting rank to whom it waits for. 1: the walk goes on at *scene_p->root. */
static int follow(const epx_rank_facts_t *f, int32_t p, const epx_rank_facts_t *q, epx_scene_t *scene)
{
    scene->root = p;
    scene->op = f->op;
    scene->others = (epx_record_operation_t){0};
    scene->at = EPX_ROOT_PLACE;
    if (q->record == NULL || q->life == EPX_LIFE_GONE || q->life == EPX_LIFE_STOPPED)
        return 0;
    if (differed_before(f, q, scene)) {
        scene->at = EPX_ROOT_DESYNC;
        return 0;
    }
    if (f->stands != EPX_STANDS_NOT)
        return follow_stream(f, p, q, scene);
    const epx_record_group_row_t *group = epx_record_group_row(f->record, f->op.group);
    int32_t me = group != NULL ? group->rank : -1;
    if (has_sent_before(q->record, f, me, &scene->others)) {
        scene->sent = f->progress.wait.expected;
        scene->at = EPX_ROOT_SIGNAL;
        return 0;
    }
    switch (epx_facts_find(q->record, &f->op, &scene->others)) {
    case EPX_OP_HAS:
        /* A credit belongs to an earlier operation than the one that waits for it. */
        if (f->progress.wait_mode == 1 && scene->others.state != EPX_RECORD_ENDED)
            break;
        if (has_sent(q->record, &scene->others, me, &f->progress, &scene->sent)) {
            scene->at = EPX_ROOT_SIGNAL;
            return 0;
        }
        break;
    case EPX_OP_PASSED: scene->at = EPX_ROOT_SIGNAL; return 0;
    case EPX_OP_SKIPPED: scene->at = EPX_ROOT_SKIPPED; return 0;
    case EPX_OP_LACKS: break;
    }
    return q->place == EPX_PLACE_WAITS;
}

/* The rank that alone is elsewhere: all others of some group in the circle, three at least, are in one
 * operation, and nobody else is where it is. -1: none. */
static int32_t find_stray(const epx_scene_t *scene, int32_t ranks)
{
    for (int32_t c = 0; c < scene->cycle_count; c++) {
        const epx_rank_facts_t *f = &scene->room[scene->cycle[c]];
        const epx_record_group_row_t *group = epx_record_group_row(f->record, f->op.group);
        int32_t stray = f->next, inside = 0, beside = 0;
        if (group == NULL || stray < 0 || group->ranks < 4)
            continue;
        const epx_rank_facts_t *s = &scene->room[stray];
        for (int32_t r = 0; r < ranks; r++) {
            const epx_rank_facts_t *g = &scene->room[r];
            if (g->place != EPX_PLACE_WAITS || r == stray)
                continue;
            inside += g->op.group_key == f->op.group_key && g->op.stream == f->op.stream &&
                      g->op.sequence == f->op.sequence;
            beside += g->op.group_key == s->op.group_key && g->op.stream == s->op.stream &&
                      g->op.sequence == s->op.sequence;
        }
        if (inside == group->ranks - 1 && beside == 0)
            return stray;
    }
    return -1;
}

static void close_cycle(const epx_job_evidence_t *job, epx_rank_facts_t *room, int32_t start,
                        epx_scene_t *scene)
{
    int32_t lowest = start, r = start;
    do {
        lowest = r < lowest ? r : lowest;
        r = room[r].next;
    } while (r != start);
    scene->at = EPX_ROOT_CYCLE;
    scene->root = lowest;
    scene->one_group = 1;
    scene->op = room[lowest].op;
    scene->age_ns = INT64_MAX;
    r = lowest;
    do {
        const epx_rank_facts_t *f = &room[r];
        if (scene->cycle_count < EPX_VERDICT_CYCLE)
            scene->cycle[scene->cycle_count++] = r;
        scene->age_ns = earlier(scene->age_ns, job->now_ns - f->since_ns);
        scene->budget_ns = later(scene->budget_ns, f->budget_ns);
        scene->one_group &= f->op.group_key == room[lowest].op.group_key;
        r = f->next;
    } while (r != lowest);
    scene->one_strays = find_stray(scene, job->ranks);
}

void epx_scene_walk(const epx_job_evidence_t *job, epx_rank_facts_t *room, int32_t from, int32_t id,
                    epx_scene_t *scene)
{
    *scene = (epx_scene_t){.job = job,
                           .room = room,
                           .root = from,
                           .victim = -1,
                           .at = EPX_ROOT_PLACE,
                           .op = room[from].op,
                           .one_strays = -1};
    int32_t at = from;
    while (room[at].place == EPX_PLACE_WAITS) {
        const epx_rank_facts_t *f = &room[at];
        room[at].step = id;
        scene->victim = at;
        scene->age_ns = job->now_ns - f->since_ns;
        scene->budget_ns = f->budget_ns;
        int32_t p = f->next;
        if (p < 0 || p >= job->ranks || p == at) {
            scene->at = EPX_ROOT_NOBODY;
            scene->root = at;
            return;
        }
        if (!follow(f, p, &room[p], scene)) {
            scene->budget_ns = later(scene->budget_ns, room[p].budget_ns);
            break;
        }
        if (room[p].step == id) {
            close_cycle(job, room, p, scene);
            return;
        }
        at = p;
    }
    const epx_rank_facts_t *root = &room[scene->root];
    if (scene->victim < 0) {
        scene->age_ns = job->now_ns - root->since_ns;
        scene->budget_ns = root->budget_ns;
    } else if (scene->at == EPX_ROOT_PLACE && root->record != NULL && root->place != EPX_PLACE_CLOSED &&
               root->life < EPX_LIFE_STOPPED) {
        /* What has moved a moment ago is not stuck, however long others wait for what was before. */
        scene->age_ns = earlier(scene->age_ns, job->now_ns - root->since_ns);
    }
}
