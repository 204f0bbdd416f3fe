/* The records of a job as one process finds them in its folder. SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "record/view.h"

enum { READY_LOOKS = 3 };

/* So long at least: a thread that wakes for a moment, and waits for a processor then, is not at work. */
#define READY_NS ((int64_t)500000000)

/* An earlier look tells nothing of what a thread does now. */
#define OLD_NS ((int64_t)1000000000)

/* What a rank elsewhere has told of itself holds for so long; it tells so several times, while it is asked.
 */
#define HEARD_NS ((int64_t)600000000)

/* A process whose watchdog has not written for so long is no more, where the system cannot be asked about it.
 */
#define SILENT_NS ((int64_t)1500000000)

epx_job_view_t *epx_view_open(const char *folder, const char *job, int32_t ranks)
{
    epx_job_view_t *view = calloc(1, sizeof(*view));
    if (view == NULL)
        return NULL;
    snprintf(view->folder, sizeof(view->folder), "%s", folder);
    snprintf(view->job, sizeof(view->job), "%s", job);
    view->ranks = ranks;
    view->rank = calloc((size_t)ranks, sizeof(*view->rank));
    view->evidence = calloc((size_t)ranks, sizeof(*view->evidence));
    view->facts = calloc((size_t)ranks, sizeof(*view->facts));
    if (view->rank == NULL || view->evidence == NULL || view->facts == NULL)
        epx_view_close(&view);
    return view;
}

static void let_go(epx_looked_at_t *rank)
{
    if (rank->is_mapped)
        munmap((void *)(uintptr_t)rank->record, rank->bytes);
    if (rank->is_summary)
        free((void *)(uintptr_t)rank->record);
    *rank = (epx_looked_at_t){0};
}

void epx_view_close(epx_job_view_t **view_p)
{
    epx_job_view_t *view = *view_p;
    *view_p = NULL;
    if (view == NULL)
        return;
    for (int32_t r = 0; view->rank != NULL && r < view->ranks; r++)
        let_go(&view->rank[r]);
    free(view->rank);
    free(view->evidence);
    free(view->facts);
    free(view);
}

/* One rank's file, if it is there, of this job, and another than is mapped already. */
static void map_rank(epx_job_view_t *view, const char *folder, int32_t r)
{
    char path[EPX_RECORDER_PATH_BYTES + 32];
    struct stat info;
    const char *why;
    epx_looked_at_t *rank = &view->rank[r];
    snprintf(path, sizeof(path), "%s/rank%05d" EPX_RECORD_SUFFIX, folder, r);
    if (stat(path, &info) != 0 ||
        (rank->record != NULL && !rank->is_summary && rank->inode == (uint64_t)info.st_ino))
        return;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    if (fstat(file, &info) == 0 && info.st_size >= EPX_RECORD_HEAD_BYTES) {
        size_t bytes = (size_t)info.st_size;
        void *record = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0);
        const epx_record_head_t *head = record;
        if (record == MAP_FAILED)
            record = NULL;
        else if (!epx_record_is_one(record, bytes, &why) || head->rank != r || head->ranks != view->ranks ||
                 strncmp(head->job, view->job, sizeof(head->job)) != 0)
            munmap(record, bytes);
        else {
            let_go(rank);
            *rank = (epx_looked_at_t){
                .record = record, .bytes = bytes, .is_mapped = 1, .inode = (uint64_t)info.st_ino};
        }
    }
    close(file);
}

void epx_view_map(epx_job_view_t *view)
{
    for (int32_t r = 0; r < view->ranks; r++)
        map_rank(view, view->folder, r);
    for (int32_t f = 0; f < view->folders; f++)
        for (int32_t r = 0; r < view->ranks; r++)
            if (view->rank[r].record == NULL)
                map_rank(view, view->more[f], r);
}

void epx_view_take(epx_job_view_t *view, int32_t r, const void *record, size_t bytes)
{
    epx_looked_at_t *rank = &view->rank[r];
    if (rank->record != NULL && !rank->is_summary)
        return;
    let_go(rank);
    rank->record = record;
    rank->bytes = bytes;
}

void epx_view_drop(epx_job_view_t *view, int32_t r, const void *record)
{
    if (r < view->ranks && view->rank[r].record == record)
        let_go(&view->rank[r]);
}

int32_t epx_view_missing(const epx_job_view_t *view)
{
    int32_t missing = 0;
    for (int32_t r = 0; r < view->ranks; r++)
        missing += view->rank[r].record == NULL || view->rank[r].is_summary;
    return missing;
}

void epx_view_hear(epx_job_view_t *view, int32_t r, int dead, const void *summary, size_t bytes)
{
    const char *why;
    if (r < 0 || r >= view->ranks || (view->rank[r].record != NULL && !view->rank[r].is_summary))
        return;
    epx_looked_at_t *rank = &view->rank[r];
    rank->is_dead = dead;
    if (summary == NULL || bytes < EPX_RECORD_HEAD_BYTES)
        return;
    void *copy = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    if (copy == NULL)
        return;
    memcpy(copy, summary, bytes);
    const epx_record_head_t *head = copy;
    if (!epx_record_is_one(copy, bytes, &why) || head->rank != r || head->ranks != view->ranks ||
        strncmp(head->job, view->job, sizeof(head->job)) != 0) {
        free(copy);
        return;
    }
    const epx_record_head_t *before = rank->record;
    if (before == NULL || before->watched != head->watched)
        rank->heard_ns = epx_clock_ns();
    if (rank->is_summary)
        free((void *)(uintptr_t)rank->record);
    rank->record = copy;
    rank->bytes = bytes;
    rank->is_summary = 1;
}

/* ---- what the system says --------------------------------------------------------------------------------------- */

static epx_rank_life_t life_of(const epx_system_thread_info_t *before, const epx_system_thread_info_t *now,
                               int process_is_there)
{
    if (now->state == 0)
        return process_is_there ? EPX_LIFE_THREAD_GONE : EPX_LIFE_GONE;
    if (now->state == 'Z' || now->state == 'X')
        return EPX_LIFE_GONE;
    if (now->state == 'T' || now->state == 't')
        return EPX_LIFE_STOPPED;
    if (before->state == 0 || now->state == 'R' || now->state == 'D')
        return EPX_LIFE_UNKNOWN;
    return EPX_LIFE_SLEEPS;
}

static uint64_t own_space, own_boot; /* under once */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find_place(void)
{
    own_space = epx_system_pid_space();
    own_boot = epx_system_boot();
}

/* Whether a record's pid means something here. */
static int can_ask(const epx_record_head_t *head)
{
    pthread_once(&once, find_place);
    return head->pid_space == own_space && head->boot == own_boot && own_space != 0;
}

static int is_there(int32_t pid)
{
    char path[64];
    struct stat info;
    snprintf(path, sizeof(path), "/proc/%d", pid);
    return stat(path, &info) == 0;
}

void epx_view_look_at(epx_looked_at_t *rank, int64_t now_ns)
{
    const epx_record_head_t *head = rank->record;
    epx_system_thread_info_t now;
    if (rank->is_summary) { /* its own host has looked, and said so a moment ago */
        int is_new = now_ns - rank->heard_ns < HEARD_NS;
        rank->life = rank->is_dead ? EPX_LIFE_GONE
                     : is_new      ? (epx_rank_life_t)head->life_seen
                                   : EPX_LIFE_UNKNOWN;
        rank->works = rank->starves = 0;
        return;
    }
    if (!can_ask(head)) {
        /* Another host's pages come when they come, and its clock says nothing here: its process may live. */
        if (head->boot != own_boot) {
            rank->life = EPX_LIFE_UNKNOWN;
            return;
        }
        int64_t watched = __atomic_load_n(&head->watched_ns, __ATOMIC_RELAXED);
        rank->life = watched != 0 && now_ns - watched > SILENT_NS ? EPX_LIFE_GONE : EPX_LIFE_UNKNOWN;
        return;
    }
    epx_system_look(head->pid, head->thread, &now);
    int64_t passed = now_ns - rank->before_ns;
    rank->life = life_of(&rank->before, &now, is_there(head->pid));
    /* It has used a twentieth of a processor; or it was ready to run at every one of several looks, and
     * others had the processor. A loop with naps does neither, but may be seen when it has just been woken:
     * then it is late, and what it does is not known yet. */
    int is_ready = now.state == 'R' || now.state == 'D',
        is_known = rank->before.state != 0 && passed < OLD_NS;
    rank->ready = is_ready && now.naps == rank->before.naps ? rank->ready + 1 : is_ready;
    if (rank->ready <= 1)
        rank->ready_ns = now_ns;
    int runs = (int64_t)(now.cpu_ns - rank->before.cpu_ns) > passed / 20 ||
               (rank->ready >= READY_LOOKS && now_ns - rank->ready_ns >= READY_NS);
    if (is_known && runs && rank->life < EPX_LIFE_STOPPED)
        rank->life = EPX_LIFE_RUNS;
    if (!is_known && rank->life == EPX_LIFE_SLEEPS)
        rank->life = EPX_LIFE_UNKNOWN;
    rank->works = (is_known && (now.works > rank->before.works + 16 || now.children)) ||
                  (is_ready && rank->life == EPX_LIFE_UNKNOWN);
    rank->starves = is_known && is_ready && now.naps == rank->before.naps &&
                    (int64_t)(now.cpu_ns - rank->before.cpu_ns) < passed / 10 * 6;
    rank->before = now;
    rank->before_ns = now_ns;
}

void epx_view_look(epx_job_view_t *view, int64_t now_ns)
{
    for (int32_t r = 0; r < view->ranks; r++)
        if (view->rank[r].record != NULL)
            epx_view_look_at(&view->rank[r], now_ns);
}

/* ---- the verdict ------------------------------------------------------------------------------------------------ */

/* Files alone: a rank whose watchdog stopped writing well before the others' was gone before them. */
static int64_t last_moment(epx_job_view_t *view)
{
    int64_t last = 0;
    for (int32_t r = 0; r < view->ranks; r++) {
        const epx_record_head_t *head = view->rank[r].record;
        if (head == NULL)
            continue;
        int64_t at = (head->watched_ns > head->moved_ns ? head->watched_ns : head->moved_ns) -
                     view->evidence[r].ahead_ns;
        last = at > last ? at : last;
    }
    for (int32_t r = 0; r < view->ranks; r++) {
        const epx_record_head_t *head = view->rank[r].record;
        if (head != NULL && head->watched_ns != 0 &&
            last - (head->watched_ns - view->evidence[r].ahead_ns) > SILENT_NS &&
            head->life == EPX_RECORD_OPENED)
            view->evidence[r].life = EPX_LIFE_GONE;
    }
    return last;
}

/* Whose clock times are compared in: of a rank of this host, where `now` is this host's; else anybody's. */
static const epx_record_head_t *judge_of(const epx_job_view_t *view, int is_here)
{
    const epx_record_head_t *judge = NULL;
    pthread_once(&once, find_place);
    for (int32_t r = view->ranks - 1; r >= 0; r--) {
        const epx_record_head_t *head = view->rank[r].record;
        if (head != NULL && (judge == NULL || !is_here || head->boot == own_boot || judge->boot != own_boot))
            judge = head;
    }
    return judge;
}

void epx_view_classify(epx_job_view_t *view, int64_t now_ns, epx_verdict_t *verdict_p)
{
    const epx_record_head_t *judge = judge_of(view, now_ns != 0);
    for (int32_t r = 0; r < view->ranks; r++) {
        const epx_looked_at_t *rank = &view->rank[r];
        const epx_record_head_t *head = rank->record;
        view->evidence[r] = (epx_rank_evidence_t){
            .record = head, .life = rank->life, .works = rank->works, .starves = rank->starves};
        if (rank->is_dead)
            view->evidence[r].life = EPX_LIFE_GONE;
        if (head != NULL && judge != NULL && head->boot != judge->boot)
            view->evidence[r].ahead_ns =
                (head->opened_ns - head->opened_realtime_ns) - (judge->opened_ns - judge->opened_realtime_ns);
    }
    epx_job_evidence_t job = {.rank = view->evidence,
                              .ranks = view->ranks,
                              .now_ns = now_ns,
                              .after_ns = view->after_ns,
                              .early_ns = view->early_ns};
    if (now_ns == 0)
        job.now_ns = last_moment(view);
    epx_classify(&job, view->facts, verdict_p);
}
