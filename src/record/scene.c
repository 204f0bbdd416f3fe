/* The walk along the waits. SPDX-License-Identifier: Apache-2.0 */
#include "record/scene.h"

#include <string.h>

#include "record/find.h"
#include "record/lanes.h"

enum { PASS_SHIFT = 24, NUMBER_BITS = 14, LOOK_BACK = 8, PATIENT = 3, STARVED = 3 };

static uint64_t get64(const uint64_t *from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

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
    if (q->life == EPX_LIFE_THREAD_GONE && f->progress.wait.peer < 0 && f->progress.waits_for < 0)
        return 0; /* of all who are waited for it is the one that does nothing any more */
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

/* ---- what rules ask ---- */

const epx_rank_facts_t *epx_scene_root(const epx_scene_t *s) { return &s->room[s->root]; }

int epx_scene_is_late(const epx_scene_t *s) { return s->age_ns >= s->budget_ns; }

int epx_scene_is_excused(const epx_scene_t *s)
{
    const epx_rank_facts_t *f = epx_scene_root(s);
    return f->paused || f->moves;
}

int64_t epx_scene_patience_ns(const epx_scene_t *s)
{
    return PATIENT * (epx_scene_root(s)->starves ? STARVED : 1) * s->budget_ns;
}

int epx_scene_is_silent(const epx_scene_t *s)
{
    enum { SILENT_MS = 1000 };
    const epx_rank_facts_t *f = &s->room[s->victim];
    const epx_record_head_t *head = f->record;
    int64_t watched_ns = __atomic_load_n(&head->watched_ns, __ATOMIC_ACQUIRE);
    int64_t quiet_ns = s->job->now_ns - (watched_ns - s->job->rank[s->victim].ahead_ns);
    int64_t half_ns = s->budget_ns / 2, most_ns = SILENT_MS * (int64_t)1000000;
    return !f->asked && watched_ns != 0 && quiet_ns > (half_ns < most_ns ? half_ns : most_ns);
}

int epx_scene_has_given_up(const epx_scene_t *s)
{
    const epx_rank_facts_t *f = epx_scene_root(s);
    int32_t status = f->op.status;
    return s->at == EPX_ROOT_PLACE && f->record != NULL && f->op.number != 0 &&
           f->op.state == EPX_RECORD_ENDED &&
           (status == EPX_ERR_TIMEOUT || status == EPX_ERR_PEER || status == EPX_ERR_ABORTED ||
            status == EPX_ERR_FABRIC);
}

int epx_scene_first_missed(const epx_scene_t *s, epx_record_operation_t *op_p)
{
    const epx_rank_facts_t *root = epx_scene_root(s);
    epx_record_operation_t op;
    uint64_t last = 0, first = UINT64_MAX;
    if (s->victim < 0 || !epx_scene_stands(s, EPX_PLACE_OUTSIDE) || root->record == NULL ||
        s->room[s->victim].stands != EPX_STANDS_NOT)
        return 0;
    const epx_record_head_t *theirs = root->record, *mine = s->room[s->victim].record;
    uint64_t newest = get64(&theirs->operations);
    for (uint64_t n = newest; n > 0 && n + theirs->ops_max > newest; n--)
        if (epx_record_operation(theirs, n, &op) && op.group_key == s->op.group_key &&
            op.stream == s->op.stream && op.sequence > last)
            last = op.sequence;
    newest = get64(&mine->operations);
    for (uint64_t n = newest; last != 0 && n > 0 && n + mine->ops_max > newest; n--) {
        if (!epx_record_operation(mine, n, &op) || op.group_key != s->op.group_key ||
            op.stream != s->op.stream || op.sequence <= last || op.sequence >= first)
            continue;
        first = op.sequence;
        *op_p = op;
    }
    return first != UINT64_MAX;
}

int epx_scene_stands(const epx_scene_t *s, epx_rank_place_t place)
{
    return s->at == EPX_ROOT_PLACE && epx_scene_root(s)->place == place;
}
