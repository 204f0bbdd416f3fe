/* What devices have written: where streams stand. SPDX-License-Identifier: Apache-2.0 */
#include "record/lanes.h"

#include "record/find.h"

/*
 * The host makes calls and goes on; streams make them later, or a graph makes them without any host. Stores
 * of a lane come in the order of its stream, and all ranks make the same calls on it, so the last epoch that
 * was stored is a place in one order:
 *
 * - L1  A wait that lasts says for whom (`waiting`): fabrics whose kernels wait.
 *
 * - L2  Where hosts meet and streams wait for events, nothing on the device says for whom. But a call's first
 *   kernel waits for nobody: a stream that has begun what another's has not may wait for that one, and the
 * one that is furthest behind waits for none of the others.
 *
 * - L3  What the host has called and its device not begun is known where both count alike (`drifted` 0).
 */

enum { GENERATION_SHIFT = 48, PASS_SHIFT = 24 };

enum { CALLS = EPX_RECORD_ASKED_BEGUN | EPX_RECORD_ASKED_POSTED | EPX_RECORD_ASKED_SEEN };

static uint64_t get64(const uint64_t *from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }

static uint64_t higher(uint64_t a, uint64_t b) { return a > b ? a : b; }

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

static const epx_record_lane_row_t *rows_of(const void *record)
{
    const epx_record_head_t *head = record;
    return (const epx_record_lane_row_t *)(const void *)((const uint8_t *)record + head->device_at +
                                                         sizeof(epx_record_device_t));
}

static int has_lanes(const void *record)
{
    return record != NULL &&
           __atomic_load_n(&((const epx_record_head_t *)record)->maps_device, __ATOMIC_ACQUIRE);
}

const epx_record_lane_row_t *epx_lanes_find(const void *record, const epx_record_lane_row_t *like)
{
    if (!has_lanes(record))
        return NULL;
    const epx_record_lane_row_t *rows = rows_of(record);
    for (uint32_t i = 0; i < ((const epx_record_head_t *)record)->lanes_max; i++)
        if (get64(&rows[i].use) != 0 && rows[i].group_key == like->group_key && rows[i].lane == like->lane)
            return &rows[i];
    return NULL;
}

int64_t epx_lanes_time(const void *record, uint64_t word)
{
    const epx_record_head_t *head = record;
    int64_t realtime = (int64_t)(word >> EPX_PROGRESS_NAME_BITS << EPX_PROGRESS_TIME_SHIFT);
    return realtime - head->opened_realtime_ns + head->opened_ns;
}

/* How far the stream has come: the last call of which anything was said. */
static uint64_t calls_of(const epx_record_lane_row_t *row)
{
    const epx_progress_words_t *w = &row->words;
    return epx_record_call_of(higher(get64(&w->begun[0]), higher(get64(&w->posted[0]), get64(&w->seen[0]))));
}

static uint64_t steps_of(const epx_record_lane_row_t *row)
{
    return higher(get64(&row->words.step_sent[0]), get64(&row->words.step_seen[0]));
}

/* When anything was last said, in the record's clock; 0: never. */
static int64_t last_said(const void *record, const epx_record_lane_row_t *row)
{
    const epx_progress_words_t *w = &row->words;
    uint64_t last =
        higher(higher(get64(&w->begun[1]), get64(&w->posted[1])),
               higher(get64(&w->seen[1]), higher(get64(&w->step_sent[1]), get64(&w->step_seen[1]))));
    return last != 0 ? epx_lanes_time(record, last) : 0;
}

int64_t epx_lanes_last_said(const void *record)
{
    const epx_record_head_t *head = record;
    int64_t last = 0;
    if (!has_lanes(record))
        return 0;
    const epx_record_lane_row_t *rows = rows_of(record);
    for (uint32_t i = 0; i < head->lanes_max; i++)
        if (get64(&rows[i].use) != 0)
            last = later(last, last_said(record, &rows[i]));
    return last;
}

static int is_pending(const epx_record_lane_row_t *row)
{
    return __atomic_load_n(&row->drifted, __ATOMIC_ACQUIRE) == 0 &&
           (get64(&row->asked_call) > calls_of(row) || get64(&row->asked_step) > steps_of(row));
}

/* The oldest call of a lane that was asked to tell and has told nothing; 0: none is in the ring. */
static int find_pending(const void *record, const epx_record_lane_row_t *row, epx_record_operation_t *op_p)
{
    const epx_record_head_t *head = record;
    uint64_t newest = get64(&head->operations), calls = calls_of(row),
             routes = get64(&row->asked_step) - steps_of(row);
    int found = 0;
    if (get64(&row->asked_step) <= steps_of(row))
        routes = 0;
    for (uint64_t n = newest; n > 0 && n + head->ops_max > newest; n--) {
        epx_record_operation_t op;
        if (!epx_record_operation(record, n, &op) || op.group_key != row->group_key || op.lane != row->lane)
            continue;
        int is_step = (op.device & EPX_RECORD_ASKED_STEP) != 0 && routes > 0;
        if (!is_step && ((op.device & CALLS) == 0 || op.sequence <= calls))
            continue;
        routes -= (uint64_t)is_step;
        *op_p = op;
        found = 1;
    }
    return found;
}

/* ---- one rank ---- */

/* Epoch of the last call before `op` that used the same word, by the host's rows; 0: none is known (the
 * host makes calls and waits for none: it cannot say which words were good). A pass that was refused moved no
 * word, and has the number of the one that follows it. */
static uint64_t epoch_before(const void *record, const epx_record_operation_t *op)
{
    const epx_record_head_t *head = record;
    for (uint64_t n = op->number - 1; n > 0 && n + head->ops_max > get64(&head->operations); n--) {
        epx_record_operation_t before;
        if (epx_record_operation(record, n, &before) && before.group_key == op->group_key &&
            before.lane == op->lane && before.kind == op->kind && before.wave == op->wave &&
            before.epoch >> GENERATION_SHIFT == op->epoch >> GENERATION_SHIFT &&
            before.epoch >> PASS_SHIFT < op->epoch >> PASS_SHIFT)
            return before.epoch;
    }
    return 0;
}

/* The call that a word names: its row where the host has made one, else what the word says. */
static void name_call(epx_rank_facts_t *f, const epx_record_lane_row_t *row, uint64_t epoch, uint64_t named)
{
    uint32_t name = (uint32_t)named & ((1u << EPX_PROGRESS_NAME_BITS) - 1);
    uint32_t kind = name >> 10;
    epx_record_operation_t like = {.group_key = row->group_key,
                                   .group = row->group,
                                   .lane = (uint16_t)row->lane,
                                   .stream = 2 * row->lane + (kind == EPX_RECORD_ROUTE),
                                   .kind = (uint16_t)kind,
                                   .wave = (int32_t)(name & 1023u),
                                   .epoch = epoch,
                                   .number = 1,
                                   .state = EPX_RECORD_BEGUN,
                                   .sequence = kind == EPX_RECORD_ROUTE ? epoch : epx_record_call_of(epoch)};
    epx_record_operation_t found;
    f->op = like;
    f->progress = (epx_record_progress_t){.number = 1};
    if (row->drifted || kind == EPX_RECORD_ROUTE || epx_facts_find(f->record, &like, &found) != EPX_OP_HAS ||
        found.kind != kind)
        return;
    f->op = found;
    f->progress.number = found.number;
    f->progress.previous = found.epoch == epoch ? epoch_before(f->record, &found) : 0;
}

static void stands_waiting(epx_rank_facts_t *f, const epx_record_lane_row_t *row, const uint64_t waiting[4])
{
    int is_route = ((uint32_t)waiting[3] & ((1u << EPX_PROGRESS_NAME_BITS) - 1)) >> 10 == EPX_RECORD_ROUTE;
    int32_t peer = (int32_t)(uint32_t)waiting[2] - 1;
    name_call(f, row, waiting[0], waiting[3]);
    f->place = EPX_PLACE_WAITS;
    f->stands = EPX_STANDS_WAITING;
    f->lane = row;
    f->progress.waits_for = peer;
    f->progress.wait_mode = is_route ? EPX_RECORD_EXCHANGE : (waiting[2] & EPX_PROGRESS_AT_LEAST) != 0;
    f->progress.wait = (epx_record_wait_t){.peer = peer, .expected = waiting[0], .seen = waiting[1]};
    f->progress.wait_begun_ns = epx_lanes_time(f->record, waiting[3]);
}

static void stands_before(epx_rank_facts_t *f, const epx_record_lane_row_t *row,
                          const epx_record_operation_t *op)
{
    f->place = EPX_PLACE_ENQUEUED;
    f->stands = EPX_STANDS_BEFORE;
    f->lane = row;
    f->op = *op;
    f->progress = (epx_record_progress_t){0};
}

/* Number of the host's call that a wait is of; 0: not known, or a graph's. */
static uint64_t number_of_wait(const void *record, const epx_record_lane_row_t *row,
                               const uint64_t waiting[4])
{
    const epx_record_head_t *head = record;
    uint32_t kind = ((uint32_t)waiting[3] & ((1u << EPX_PROGRESS_NAME_BITS) - 1)) >> 10;
    uint64_t newest = get64(&head->operations), asked = get64(&row->asked_step),
             later_steps = asked > waiting[0] ? asked - waiting[0] : 0;
    if (__atomic_load_n(&row->drifted, __ATOMIC_ACQUIRE))
        return 0;
    for (uint64_t n = newest; n > 0 && n + head->ops_max > newest; n--) {
        epx_record_operation_t op;
        if (!epx_record_operation(record, n, &op) || op.group_key != row->group_key || op.lane != row->lane)
            continue;
        if (kind != EPX_RECORD_ROUTE ? op.kind == kind && op.sequence == epx_record_call_of(waiting[0])
                                     : (op.device & EPX_RECORD_ASKED_STEP) != 0 && later_steps-- == 0)
            return n;
    }
    return 0;
}

/* Where a rank's streams stand is the first of its calls that has not come to its end: in the order in which
 * its host has made them, where both are known, else by time. A host's clock says when a call was made, the
 * device's when a wait began, which may be after calls that stand behind it were made. */
typedef struct standing {
    int64_t since;
    uint64_t number; /* 0: not known */
} standing_t;

static int is_before(const standing_t *a, const standing_t *b)
{
    return a->number != 0 && b->number != 0 ? a->number < b->number : a->since < b->since;
}

void epx_lanes_place(epx_rank_facts_t *f)
{
    const epx_record_head_t *head = f->record;
    standing_t first = {.since = INT64_MAX};
    f->use = -1;
    f->mark = head->mark;
    if (!has_lanes(f->record))
        return;
    const epx_record_lane_row_t *rows = rows_of(f->record);
    for (uint32_t i = 0; i < head->lanes_max; i++) {
        const epx_record_lane_row_t *row = &rows[i];
        epx_record_operation_t op;
        if (get64(&row->use) == 0)
            continue;
        uint64_t waiting[4] = {get64(&row->words.waiting[0]), get64(&row->words.waiting[1]),
                               get64(&row->words.waiting[2]), get64(&row->words.waiting[3])};
        int waits = waiting[3] != 0 && waiting[2] != 0;
        /* A host that waits itself is in a call that its stream does not hold up. */
        if (!waits && (f->place == EPX_PLACE_WAITS || !is_pending(row) || !find_pending(f->record, row, &op)))
            continue;
        standing_t at = {
            .since = waits ? epx_lanes_time(f->record, waiting[3])
                           : later(op.enqueued_ns, last_said(f->record, row)),
            .number = waits ? number_of_wait(f->record, row, waiting) : op.number,
        };
        if (!is_before(&at, &first))
            continue;
        first = at;
        if (waits)
            stands_waiting(f, row, waiting);
        else
            stands_before(f, row, &op);
        f->told_ns = at.since;
    }
}

/* ---- who stands behind whom (L2) ---- */

static int is_behind(const epx_record_lane_row_t *a, const epx_record_lane_row_t *b)
{
    uint64_t calls = calls_of(a), steps = steps_of(a), other_calls = calls_of(b), other_steps = steps_of(b);
    return (calls < other_calls && steps <= other_steps) || (steps < other_steps && calls <= other_calls);
}

/* The member of the lane's group that is furthest behind this rank; -1: none. */
static int32_t find_behind(const epx_job_evidence_t *job, const epx_rank_facts_t *room,
                           const epx_rank_facts_t *f, int32_t *place_p)
{
    const epx_record_group_row_t *group = epx_record_group_row(f->record, f->lane->group);
    const epx_record_lane_row_t *lowest = f->lane;
    int32_t found = -1;
    for (int32_t i = 0; group != NULL && i < group->ranks; i++) {
        int32_t r = epx_record_member(f->record, f->lane->group, i);
        if (r < 0 || r >= job->ranks || room[r].record == NULL)
            continue;
        const epx_record_lane_row_t *theirs = epx_lanes_find(room[r].record, f->lane);
        if (theirs == NULL || !is_behind(theirs, lowest))
            continue;
        lowest = theirs;
        found = r;
        *place_p = i;
    }
    return found;
}

/* Whether anybody of the group is further than this rank, or waits for it in a call of its own. */
static int is_missed(const epx_job_evidence_t *job, const epx_rank_facts_t *room, const epx_rank_facts_t *f)
{
    for (int32_t r = 0; r < job->ranks; r++) {
        const epx_record_lane_row_t *theirs =
            room[r].record != NULL ? epx_lanes_find(room[r].record, f->lane) : NULL;
        if (theirs != NULL && is_behind(f->lane, theirs))
            return 1;
    }
    return 0;
}

void epx_lanes_compare(const epx_job_evidence_t *job, epx_rank_facts_t *room)
{
    for (int32_t r = 0; r < job->ranks; r++) {
        epx_rank_facts_t *f = &room[r];
        int32_t place = -1, next;
        if (f->stands != EPX_STANDS_BEFORE || f->lane->resident)
            continue;
        next = find_behind(job, room, f, &place);
        if (next >= 0) {
            f->place = EPX_PLACE_WAITS;
            f->stands = EPX_STANDS_BEHIND;
            f->next = next;
            f->next_place = place;
            f->progress = (epx_record_progress_t){.waits_for = place, .wait = {.peer = -1}};
        } else if (!is_missed(job, room, f)) {
            /* All are at the same place: nobody waits for anybody. */
            f->place = EPX_PLACE_OUTSIDE;
        }
    }
}

/* ---- for the watchdog ---- */

int64_t epx_lanes_oldest(const void *record)
{
    const epx_record_head_t *head = record;
    int64_t oldest = 0;
    if (!has_lanes(record))
        return 0;
    const epx_record_lane_row_t *rows = rows_of(record);
    for (uint32_t i = 0; i < head->lanes_max; i++) {
        int64_t since = 0;
        if (get64(&rows[i].use) == 0)
            continue;
        uint64_t waiting = get64(&rows[i].words.waiting[3]);
        if (waiting != 0)
            since = epx_lanes_time(record, waiting);
        else if (!rows[i].resident && is_pending(&rows[i]))
            since = later(last_said(record, &rows[i]), __atomic_load_n(&head->opened_ns, __ATOMIC_RELAXED));
        if (since != 0 && (oldest == 0 || since < oldest))
            oldest = since;
    }
    return oldest;
}

int epx_lanes_stand_still(const void *record, int64_t now_ns)
{
    enum { QUIET_MS = 400 };
    const epx_record_head_t *head = record;
    if (!has_lanes(record))
        return 0;
    const epx_record_lane_row_t *rows = rows_of(record);
    for (uint32_t i = 0; i < head->lanes_max; i++) {
        int64_t said = get64(&rows[i].use) != 0 ? last_said(record, &rows[i]) : 0;
        int graph = __atomic_load_n(&rows[i].drifted, __ATOMIC_ACQUIRE) != 0;
        if (said != 0 && now_ns - said > (int64_t)QUIET_MS * 1000000 && (graph || is_pending(&rows[i])))
            return 1;
    }
    return 0;
}
