/* Hangs of ranks with a GPU each, over NCCL's windows: a process that is killed, a rank that stops replaying
 * its graph, and what is in the records. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <epx/record.h>

#include "gpus/step.h"
#include "kernels/cuda/graph.h"
#include "record/classify.h"

enum { STEPS_BEFORE = 5, REPLAYS = 6, HANG_MS = 1000, NAMED_MS = 2000 };

static char folder[64];

static void over_nccl_recorded(void)
{
    setenv("TEST_DEVICE", "cuda", 1);
    setenv("TEST_FABRIC", "nccl", 1);
}

TestSuite(hangs, .init = over_nccl_recorded);

/* Device words need pages of a tmpfs. */
static void make_folder(void)
{
    strcpy(folder, "/dev/shm/epx-test-hangs-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    setenv("EPX_RECORD", folder, 1);
    setenv("EPX_HANG_MS", "1000", 1);
}

static void remove_folder(void)
{
    char command[96];
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    cr_expect_eq(system(command), 0);
    unsetenv("EPX_RECORD");
    unsetenv("EPX_HANG_MS");
}

/* Polls until the watchdog has named somebody; `until` of now_ms(). */
static epx_verdict_t verdict_by(epx_recorder_h recorder, int64_t until)
{
    epx_verdict_t verdict = EPX_VERDICT_INIT;
    do {
        epx_record_verdict(recorder, &verdict);
        sleep_ms(2);
    } while ((verdict.kind == EPX_VERDICT_NONE || verdict.kind == EPX_VERDICT_SLOW) && now_ms() < until);
    return verdict;
}

/* ---- a process that is killed ----------------------------------------------------------------------------------- */

/* In a file that all processes map. */
typedef struct notes {
    volatile int64_t died; /* now_ms() just before */
} notes_t;

static notes_t *map_notes(void)
{
    char path[96];
    snprintf(path, sizeof(path), "%s/notes", getenv("EPX_RECORD"));
    int file = open(path, O_RDWR | O_CREAT, 0600);
    cr_assert(file >= 0 && ftruncate(file, sizeof(notes_t)) == 0);
    notes_t *notes = mmap(NULL, sizeof(notes_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    cr_assert_neq((void *)notes, MAP_FAILED);
    close(file);
    return notes;
}

static void dies(rank_t *self, session_t *session, epx_plan_h plan, notes_t *notes)
{
    const problem_t *problem = self->arg;
    epx_batch_t batch = EPX_BATCH_INIT;
    expect_came(self, "epx_plan_route", session_route(session, plan), EPX_OK);
    epx_dispatch(plan, 0, problem->x[1], &batch, rank_stream());
    notes->died = now_ms();
    raise(SIGKILL);
}

/* A new communicator among those that are left, and a whole step over it. */
static void goes_on(rank_t *self, session_t *session)
{
    dice_t dice = {.state = 3 + (uint64_t)self->rank};
    int64_t begin = now_ms();
    step_t s;
    self->at = "epx_group_recover";
    if (!expect_came(self, self->at, epx_group_recover(session->group, NULL), EPX_OK))
        return;
    expect(self, now_ms() - begin < 20000, "recovery took %d ms", (int)(now_ms() - begin));
    session->info = (epx_group_info_t)EPX_GROUP_INFO_INIT;
    expect_came(self, "epx_group_info", epx_group_info(session->group, &session->info), EPX_OK);
    expect(self, session->info.ranks == self->ranks - 1, "%d ranks after the loss of one of %d",
           session->info.ranks, self->ranks);
    s = (step_t){.session = *session};
    expect_came(self, "epx_plan_create", epx_plan_create(session->group, 0, NULL, &s.plan), EPX_OK);
    int waves = epx_plan_waves(s.plan);
    step_new(&s, waves);
    for (int i = 0; i < 3 && !failures(); i++) {
        step_draw(&s, &dice);
        step_make(&s);
        drained();
        step_check(&s, i);
    }
    epx_plan_destroy(&s.plan);
    step_free(&s, waves);
}

static void outlives(rank_t *self, session_t *session, epx_plan_h plan, const notes_t *notes)
{
    const problem_t *problem = self->arg;
    size_t bytes = (size_t)TOKENS * WIDTH * sizeof(float);
    void *out = device_new(bytes);
    epx_batch_t batch = EPX_BATCH_INIT;
    epx_recorder_h recorder = epx_comm_recorder(self->comm);
    expect_came(self, "epx_plan_route", session_route(session, plan), EPX_OK);
    /* Calls return at once, the first of their kind too: it is kernels that wait, and the watchdog that
     * looks. Rank 1's dispatch may have gone out before its end; its combine has not. */
    int64_t begin = now_ms();
    expect_came(self, "epx_dispatch", epx_dispatch(plan, 0, problem->x[self->rank], &batch, rank_stream()),
                EPX_OK);
    expect_came(self, "epx_combine", epx_combine(plan, 0, batch.rows, out, rank_stream()), EPX_OK);
    int64_t called = now_ms() - begin;
    expect(self, called < HANG_MS / 2, "the calls took %d ms", (int)called);
    epx_verdict_t verdict = verdict_by(recorder, now_ms() + 20000);
    int64_t took = now_ms() - notes->died;
    expect(self, verdict.kind == EPX_VERDICT_HOST_ABSENT && verdict.rank == 1, "%s of rank %d: %s",
           epx_verdict_name(verdict.kind), verdict.rank, verdict.text);
    expect(self, took <= NAMED_MS, "rank 1 was named %d ms after its end", (int)took);
    epx_group_abort(session->group, "rank 1 is gone");
    drained();
    device_free(out, bytes);
    goes_on(self, session);
}

/* Started by the test below for each rank. */
Test(hangs, one_rank_of_a_job_that_loses_one)
{
    rank_t self = {.at = "start"};
    int32_t rank = 0, size = 0;
    session_t session;
    epx_plan_h plan = NULL;
    cr_assert_eq(epx_comm_launched(&rank, &size), EPX_OK, "%s", epx_last_error());
    if (size < 2 || getenv("EPX_RECORD") == NULL)
        cr_skip_test("the test below starts it");
    self.rank = rank, self.ranks = size;
    rank_device(rank % gpus());
    cr_assert_eq(epx_comm_world(&self.comm), EPX_OK, "%s", epx_last_error());
    problem_t *problem = problem_for(0, size);
    problem->arm.dropless = 1;
    self.arg = problem;
    notes_t *notes = map_notes();
    if (session_open(&session, &self, problem, NULL)) {
        expect_status(&self, "epx_plan_create", epx_plan_create(session.group, 0, NULL, &plan), EPX_OK);
        epx_record_step(epx_comm_recorder(self.comm)); /* budgets as in steady state */
        for (int i = 0; i < STEPS_BEFORE && !failures(); i++)
            expect_status(&self, "epx_plan_route", session_route(&session, plan), EPX_OK);
        if (rank == 1)
            dies(&self, &session, plan, notes);
        outlives(&self, &session, plan, notes);
        epx_plan_destroy(&plan);
        session_close(&session);
    }
    problem_free(problem);
    epx_comm_destroy(&self.comm);
    rank_stream_end();
    settle();
}

/* What the watchdog found stands in the folder; by the records of ranks that have gone on nobody waits now.
 */
static void read_verdict(void)
{
    char path[96], text[4096];
    snprintf(path, sizeof(path), "%s/verdict.json", folder);
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file, "there is no %s", path);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    cr_expect(strstr(text, "HOST_ABSENT(rank 1)") != NULL, "the verdict was %s", text);
}

/* The record of the killed one, as epx-doctor would read it: whole, and its last row is the dispatch. */
static void read_record(void)
{
    epx_records_h records = NULL;
    epx_rank_now_t now = EPX_RANK_NOW_INIT;
    cr_assert_eq(epx_records_open(folder, &records), EPX_OK, "%s", epx_last_error());
    cr_assert_eq(epx_records_rank(records, 1, &now), EPX_OK);
    cr_expect(now.has_record && !now.closed);
    /* Its last call was a dispatch; one operation before it is the route of the same step. */
    int is_last = strcmp(now.op, "dispatch") == 0 && now.wave == 0;
    int is_before = strcmp(now.op, "route") == 0 && now.sequence == STEPS_BEFORE + 1;
    cr_expect(is_last || is_before, "its last operation is %s, number %u", now.op, (unsigned)now.sequence);
    epx_records_close(&records);
}

Test(hangs, a_killed_process_is_named_in_time_its_record_can_be_read_and_the_others_go_on)
{
    int ranks = gpus(), left = ranks;
    int64_t end = now_ms() + 90000;
    if (ranks < 2)
        cr_skip_test("needs two GPUs");
    make_folder();
    pid_t *process = calloc((size_t)ranks, sizeof(*process));
    cr_assert(process != NULL);
    for (int r = 0; r < ranks; r++)
        cr_assert_gt(process[r] = start_rank("hangs/one_rank_of_a_job_that_loses_one", r, ranks), 0);
    while (left > 0 && now_ms() < end) {
        int status = 0;
        pid_t ended = waitpid(-1, &status, WNOHANG);
        if (ended <= 0) {
            sleep_ms(20);
            continue;
        }
        left--;
        /* A test has a process of its own below its runner, which says with 1 that it has ended badly. */
        int is_victim = ended == process[1];
        expect(NULL, WIFEXITED(status) && WEXITSTATUS(status) == is_victim, "%s ended with %x",
               is_victim ? "rank 1" : "another rank", (unsigned)status);
    }
    for (int r = 0; r < ranks && left > 0; r++)
        kill(process[r], SIGKILL);
    expect(NULL, left == 0, "%d of %d ranks did not end", left, ranks);
    if (left == 0) {
        read_record();
        read_verdict();
    }
    free(process);
    remove_folder();
    settle();
}

/* ---- a rank that stops replaying -------------------------------------------------------------------------------- */

/* The first lane of a rank's record. */
static epx_record_lane_row_t lane_of(int rank)
{
    char path[96];
    epx_record_head_t head;
    epx_record_lane_row_t row = {0};
    snprintf(path, sizeof(path), "%s/rank%05d.epxr", folder, rank);
    FILE *file = fopen(path, "rb");
    if (file == NULL || fread(&head, sizeof(head), 1, file) != 1 ||
        fseek(file, (long)(head.device_at + sizeof(epx_record_device_t)), SEEK_SET) != 0 ||
        fread(&row, sizeof(row), 1, file) != 1)
        row.use = 0;
    if (file != NULL)
        fclose(file);
    return row;
}

static void replay_recorded(rank_t *self, step_t *s, void *graph)
{
    uint64_t before = lane_of(self->rank).words.begun[0];
    for (int i = 0; i < REPLAYS && !failures(); i++) {
        expect_came(self, "a graph", epx_cuda_replay(graph, rank_stream()), EPX_OK);
        drained();
        epx_record_lane_row_t row = lane_of(self->rank);
        expect(self, row.use != 0 && row.drifted != 0, "rank %d has no lane that replays", self->rank);
        expect(self, row.words.begun[0] > before, "replay %d left no word: begun %llx before and after", i,
               (unsigned long long)before);
        expect(self, row.words.posted[0] == row.words.begun[0] && row.words.seen[0] == row.words.begun[0],
               "replay %d: begun %llx, posted %llx, seen %llx", i, (unsigned long long)row.words.begun[0],
               (unsigned long long)row.words.posted[0], (unsigned long long)row.words.seen[0]);
        before = row.words.begun[0];
    }
    world_meet(self);
    (void)s;
}

static void stops_replaying(rank_t *self)
{
    step_t s = {.plan = NULL};
    void *graph = NULL;
    dice_t dice = {.state = 9 + (uint64_t)self->rank};
    if (!session_open(&s.session, self, self->arg, NULL))
        return;
    expect_status(self, "epx_plan_create", epx_plan_create(s.session.group, 0, NULL, &s.plan), EPX_OK);
    int waves = epx_plan_waves(s.plan);
    epx_recorder_h recorder = epx_comm_recorder(self->comm);
    step_new(&s, waves);
    step_draw(&s, &dice);
    step_make(&s);
    drained();
    epx_record_step(recorder);
    expect_came(self, "recording", epx_cuda_record_begin(rank_stream()), EPX_OK);
    step_forward(&s);
    expect_came(self, "recording", epx_cuda_record_end(rank_stream(), &graph), EPX_OK);
    if (graph != NULL)
        replay_recorded(self, &s, graph);
    if (self->rank != 1 && graph != NULL) {
        int64_t begin = now_ms();
        expect_came(self, "a graph", epx_cuda_replay(graph, rank_stream()), EPX_OK);
        epx_verdict_t verdict = verdict_by(recorder, now_ms() + 20000);
        expect(self, verdict.rank == 1, "%s of rank %d: %s", epx_verdict_name(verdict.kind), verdict.rank,
               verdict.text);
        drained();
        int64_t waited = now_ms() - begin;
        expect(self, waited < 10000, "the device waited %d ms, not 3000", (int)waited);
        epx_status_t status = epx_group_check(s.session.group);
        expect(self, status == EPX_ERR_TIMEOUT || status == EPX_ERR_PEER, "epx_group_check gave %s (%s)",
               epx_status_name(status), epx_last_error());
        expect_text(self, "a wait that ended", "wave 0, lane 0, slot", "rank 1", NULL);
    }
    world_meet(self);
    epx_group_abort(s.session.group, "the test is over");
    drained();
    epx_cuda_record_destroy(graph);
    epx_plan_destroy(&s.plan);
    step_free(&s, waves);
    session_close(&s.session);
}

Test(hangs, a_rank_that_stops_replaying_is_named_and_replays_are_in_the_record)
{
    if (gpus() < 2)
        cr_skip_test("needs two GPUs");
    make_folder();
    problem_t *problem = problem_for(0, gpus());
    problem->arm.dropless = 1;
    problem->timeout_ms = 3000;
    world_may_warn();
    world_run(gpus(), stops_replaying, problem);
    problem_free(problem);
    remove_folder();
}
