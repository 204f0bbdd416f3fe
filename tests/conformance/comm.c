/*
 * Ranks and their small collectives; groups on parts of a job and on the caller's own all-gather.
 * SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support/drive.h"

TestSuite(comm, .init = clean_environment);

static void collectives_rank(rank_t *self)
{
    int n = self->ranks;
    expect(self, epx_comm_rank(self->comm) == self->rank && epx_comm_size(self->comm) == n, "rank %d of %d",
           epx_comm_rank(self->comm), epx_comm_size(self->comm));
    int64_t whole[3] = {self->rank, -self->rank, 7}, least[1] = {10 - self->rank}, most[1] = {self->rank};
    expect_status(self, "sum", epx_comm_allreduce(self->comm, whole, 3, EPX_NUMBER_INT64, EPX_SUM), EPX_OK);
    expect(self, whole[0] == n * (n - 1) / 2 && whole[1] == -whole[0] && whole[2] == 7 * n, "sum of int64");
    expect_status(self, "min", epx_comm_allreduce(self->comm, least, 1, EPX_NUMBER_INT64, EPX_MIN), EPX_OK);
    expect_status(self, "max", epx_comm_allreduce(self->comm, most, 1, EPX_NUMBER_INT64, EPX_MAX), EPX_OK);
    expect(self, least[0] == 11 - n && most[0] == n - 1, "min or max of int64");
    char mine[5], *all = calloc((size_t)n, 5);
    memset(mine, 'a' + self->rank % 26, 5);
    expect_status(self, "allgather", epx_comm_allgather(self->comm, mine, all, 5), EPX_OK);
    for (int r = 0; r < n; r++)
        expect(self, all[5 * r] == 'a' + r % 26 && all[5 * r + 4] == 'a' + r % 26,
               "allgather: block of rank %d", r);
    expect_status(self, "allgather of nothing", epx_comm_allgather(self->comm, mine, all, 0), EPX_OK);
    expect_status(self, "barrier", epx_comm_barrier(self->comm), EPX_OK);
    free(all);
}

Test(comm, collectives)
{
    static const int ranks[] = {1, 2, 3, 7, 64, 130};
    for (int i = 0; i < 6; i++)
        world_run(ranks[i], collectives_rank, NULL);
}

/* In rank order, 0 + 1 + ..., so that every rank and every run has the same bits. */
static void order_rank(rank_t *self)
{
    enum { N = 1000 };
    static float sums[8][N];
    float *values = calloc(N, sizeof(float));
    double real[1] = {1.0 / (self->rank + 3)}, want_real = 0;
    for (int i = 0; i < N; i++)
        values[i] = sinf((float)(i * 31 + self->rank * 17)) * powf(10, (float)((i + self->rank * 5) % 9));
    expect_status(self, "sum", epx_comm_allreduce(self->comm, values, N, EPX_NUMBER_FLOAT, EPX_SUM), EPX_OK);
    expect_status(self, "sum", epx_comm_allreduce(self->comm, real, 1, EPX_NUMBER_DOUBLE, EPX_SUM), EPX_OK);
    for (int i = 0; i < N; i++) {
        float want = sinf((float)(i * 31)) * powf(10, (float)(i % 9));
        for (int r = 1; r < self->ranks; r++)
            want += sinf((float)(i * 31 + r * 17)) * powf(10, (float)((i + r * 5) % 9));
        if (!expect(self, values[i] == want, "value %d is %.9g, not %.9g", i, (double)values[i],
                    (double)want))
            break;
    }
    for (int r = 0; r < self->ranks; r++)
        want_real += 1.0 / (r + 3);
    expect(self, real[0] == want_real, "the double is %.17g, not %.17g", real[0], want_real);
    memcpy(sums[self->rank], values, N * sizeof(float));
    free(values);
}

Test(comm, sums_are_made_in_rank_order) { world_run(8, order_rank, NULL); }

/* Parts by colour, ordered by key, then by rank; a group on each. */
static void split_rank(rank_t *self)
{
    problem_t *p = self->arg;
    epx_comm_h part = NULL, none = (epx_comm_h)1;
    int colour = self->rank % 2;
    expect_status(self, "split", epx_comm_split(self->comm, colour, -self->rank, &part), EPX_OK);
    expect(self, epx_comm_size(part) == 3 && epx_comm_rank(part) == 2 - self->rank / 2,
           "rank %d became %d of %d", self->rank, epx_comm_rank(part), epx_comm_size(part));
    expect_status(self, "split into none", epx_comm_split(self->comm, self->rank == 4 ? 0 : -1, 0, &none),
                  EPX_OK);
    expect(self, (none != NULL) == (self->rank == 4), "a negative colour gave a comm");
    epx_comm_destroy(&none);
    rank_t as = *self;
    as.rank = epx_comm_rank(part);
    as.ranks = 3;
    as.comm = part;
    session_t session;
    epx_plan_h plan = NULL;
    oracle_t *o = oracle_new(p, p->arm.wire);
    oracle_sums(o);
    if (session_open(&session, &as, p, NULL)) {
        epx_plan_create(session.group, 0, NULL, &plan);
        pass_t pass = {.session = &session, .plan = plan, .o = o};
        if (expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK) &&
            pass_forward(&pass))
            pass_backward(&pass);
        pass_free(&pass);
        epx_plan_destroy(&plan);
        session_close(&session);
    }
    int64_t sum = as.rank;
    expect_status(self, "sum of a part", epx_comm_allreduce(part, &sum, 1, EPX_NUMBER_INT64, EPX_SUM),
                  EPX_OK);
    expect(self, sum == 3, "sum of a part is %d", (int)sum);
    expect_status(self, "barrier of all", epx_comm_barrier(self->comm), EPX_OK);
    oracle_free(o);
    epx_comm_destroy(&part);
    expect(self, part == NULL, "epx_comm_destroy left the handle");
}

Test(comm, split_and_a_group_on_each_part)
{
    for (int arm = 0; arm < arms_basic; arm++) {
        problem_t *p = problem_new(&arms[arm], 3, 7, 2, 5, 8);
        problem_inputs(p, UNIFORM, NULL, 4);
        world_run(6, split_rank, p);
        problem_free(p);
    }
}

/* Two groups on one comm, of two transports, used in turn. */
static void two_groups_rank(rank_t *self)
{
    problem_t **p = self->arg;
    session_t session[2] = {{0}};
    epx_plan_h plan[2] = {0};
    int ok = 1;
    for (int i = 0; i < 2; i++) {
        ok = ok && session_open(&session[i], self, p[i], NULL);
        ok = ok && expect_status(self, "epx_plan_create",
                                 epx_plan_create(session[i].group, 0, NULL, &plan[i]), EPX_OK);
    }
    for (int step = 0; ok && step < 4; step++) {
        int i = step % 2;
        oracle_t *o = oracle_new(p[i], p[i]->arm.wire);
        oracle_sums(o);
        pass_t pass = {.session = &session[i], .plan = plan[i], .o = o};
        ok = expect_status(self, "epx_plan_route", session_route(&session[i], plan[i]), EPX_OK);
        ok = ok && pass_forward(&pass) && pass_backward(&pass);
        pass_free(&pass);
        oracle_free(o);
    }
    for (int i = 0; i < 2; i++) {
        epx_plan_destroy(&plan[i]);
        session_close(&session[i]);
    }
}

Test(comm, two_groups_at_once)
{
    problem_t *p[2] = {problem_new(arm_named("pooled_wave"), 3, 7, 2, 5, 8),
                       problem_new(arm_named("ring"), 3, 4, 1, 3, 5)};
    problem_inputs(p[0], UNIFORM, NULL, 4);
    problem_inputs(p[1], UNIFORM, NULL, 5);
    world_run(3, two_groups_rank, p);
    problem_free(p[0]);
    problem_free(p[1]);
}

/* ---- the caller's own all-gather ------------------------------------------------------------------------------------------ */

typedef struct room {
    pthread_barrier_t barrier;
    char blocks[4][1 << 16];
    problem_t *problem;
    int broken; /* fails from now on */
} room_t;

typedef struct seat_of {
    room_t *room;
    int rank, size;
} seat_of_t;

static int gather(void *context, const void *send, void *receive, size_t bytes)
{
    seat_of_t *seat = context;
    if (seat->room->broken || bytes > sizeof(seat->room->blocks[0]))
        return 1;
    memcpy(seat->room->blocks[seat->rank], send, bytes);
    pthread_barrier_wait(&seat->room->barrier);
    for (int r = 0; r < seat->size; r++)
        memcpy((char *)receive + (size_t)r * bytes, seat->room->blocks[r], bytes);
    pthread_barrier_wait(&seat->room->barrier);
    return 0;
}

static void bootstrap_rank(rank_t *self)
{
    room_t *room = self->arg;
    seat_of_t seat = {room, self->rank, self->ranks};
    epx_bootstrap_t bootstrap = EPX_BOOTSTRAP_INIT;
    epx_comm_h comm = NULL;
    bootstrap.context = &seat;
    bootstrap.rank = self->rank;
    bootstrap.size = self->ranks;
    bootstrap.allgather = gather;
    if (!expect_status(self, "epx_comm_from_bootstrap", epx_comm_from_bootstrap(&bootstrap, &comm), EPX_OK))
        return;
    expect(self, epx_comm_rank(comm) == self->rank && epx_comm_size(comm) == self->ranks, "rank or size");
    rank_t as = *self;
    as.comm = comm;
    session_t session;
    epx_plan_h plan = NULL;
    oracle_t *o = oracle_new(room->problem, room->problem->arm.wire);
    oracle_sums(o);
    if (session_open(&session, &as, room->problem, NULL)) {
        epx_plan_create(session.group, 0, NULL, &plan);
        pass_t pass = {.session = &session, .plan = plan, .o = o};
        if (expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK) &&
            pass_forward(&pass))
            pass_backward(&pass);
        pass_free(&pass);
        epx_plan_destroy(&plan);
        session_close(&session);
    }
    int64_t sum = 1;
    expect_status(self, "sum", epx_comm_allreduce(comm, &sum, 1, EPX_NUMBER_INT64, EPX_SUM), EPX_OK);
    expect(self, sum == self->ranks, "the sum is %d", (int)sum);
    oracle_free(o);
    epx_comm_destroy(&comm);
}

Test(comm, a_group_on_the_callers_all_gather)
{
    for (int arm = 0; arm < arms_basic; arm++) {
        room_t *room = calloc(1, sizeof(*room)); /* of the heap: ranks may be processes */
        pthread_barrierattr_t attributes;
        room->problem = problem_new(&arms[arm], 4, 7, 2, 5, 8);
        problem_inputs(room->problem, UNIFORM, NULL, 4);
        pthread_barrierattr_init(&attributes);
        pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        pthread_barrier_init(&room->barrier, &attributes, 4);
        world_may_warn();
        world_run(4, bootstrap_rank, room);
        pthread_barrier_destroy(&room->barrier);
        problem_free(room->problem);
        free(room);
    }
}

static void broken_rank(rank_t *self)
{
    seat_of_t seat = {self->arg, self->rank, self->ranks};
    epx_bootstrap_t bootstrap = EPX_BOOTSTRAP_INIT;
    epx_comm_h comm = NULL;
    epx_group_h group = NULL;
    problem_t *p = problem_new(arm_named("ragged"), 2, 4, 1, 2, 2);
    epx_group_config_t config = problem_config(p);
    bootstrap.context = &seat;
    bootstrap.rank = self->rank;
    bootstrap.size = self->ranks;
    bootstrap.allgather = gather;
    /* The comm may meet at once or later; over an all-gather that fails there is no group. */
    epx_status_t status = epx_comm_from_bootstrap(&bootstrap, &comm);
    expect(self, status != EPX_OK || epx_group_open(comm, &config, &group) != EPX_OK,
           "opened over a broken all-gather");
    epx_comm_destroy(&comm);
    problem_free(p);
}

Test(comm, an_all_gather_that_fails)
{
    static room_t room;
    room.broken = 1;
    world_may_warn();
    world_run(2, broken_rank, &room);
}

/* ---- errors ----------------------------------------------------------------------------------------------------------------- */

static void wrong_rank(rank_t *self)
{
    char memory[64] = {0};
    epx_comm_h comm = NULL;
    epx_bootstrap_t nothing = {0}, lacking = EPX_BOOTSTRAP_INIT;
    lacking.size = 1;
    const struct {
        const char *call;
        epx_status_t status;
    } row[] = {
        {"threads(0)", epx_comm_threads(0, &comm)},
        {"threads(-1)", epx_comm_threads(-1, &comm)},
        {"threads(1, NULL)", epx_comm_threads(1, NULL)},
        {"world(NULL)", epx_comm_world(NULL)},
        {"bootstrap(NULL)", epx_comm_from_bootstrap(NULL, &comm)},
        {"bootstrap without a size", epx_comm_from_bootstrap(&nothing, &comm)},
        {"bootstrap without a function", epx_comm_from_bootstrap(&lacking, &comm)},
        {"split of no comm", epx_comm_split(NULL, 0, 0, &comm)},
        {"split without a place", epx_comm_split(self->comm, 0, 0, NULL)},
        {"allreduce of no comm", epx_comm_allreduce(NULL, memory, 1, EPX_NUMBER_INT64, EPX_SUM)},
        {"allreduce of nothing", epx_comm_allreduce(self->comm, NULL, 1, EPX_NUMBER_INT64, EPX_SUM)},
        {"allreduce of -1 values", epx_comm_allreduce(self->comm, memory, -1, EPX_NUMBER_INT64, EPX_SUM)},
        {"allreduce of a strange type", epx_comm_allreduce(self->comm, memory, 1, (epx_number_t)9, EPX_SUM)},
        {"allreduce by a strange rule",
         epx_comm_allreduce(self->comm, memory, 1, EPX_NUMBER_INT64, (epx_reduce_t)9)},
        {"allgather of no comm", epx_comm_allgather(NULL, memory, memory, 4)},
        {"allgather of nothing", epx_comm_allgather(self->comm, NULL, memory, 4)},
        {"allgather into nothing", epx_comm_allgather(self->comm, memory, NULL, 4)},
        {"barrier of no comm", epx_comm_barrier(NULL)},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
        expect_status(self, row[i].call, row[i].status, EPX_ERR_ARG);
    epx_comm_abort(NULL);
    epx_comm_set_timeout(NULL, 5);
    expect_status(self, "barrier", epx_comm_barrier(self->comm), EPX_OK);
    int32_t alone = epx_comm_world(&comm) == EPX_OK ? epx_comm_size(comm) : -1;
    expect(self, alone == 1, "without a launcher the world has %d ranks", alone);
    epx_comm_destroy(&comm);
}

Test(comm, wrong_arguments) { world_run(1, wrong_rank, NULL); }

static void absent_rank(rank_t *self)
{
    epx_comm_set_timeout(self->comm, 300);
    int64_t began = now_ms();
    if (self->rank != 1) {
        epx_status_t status = epx_comm_barrier(self->comm);
        expect(self, status == EPX_ERR_TIMEOUT || status == EPX_ERR_PEER, "a barrier without rank 1: %s",
               epx_status_name(status));
        expect_text(self, "a barrier without rank 1", "rank 1", NULL);
        expect(self, now_ms() - began < 8000, "it took %d ms", (int)(now_ms() - began));
    }
    world_meet(self);
}

Test(comm, a_rank_that_does_not_come) { world_run(3, absent_rank, NULL); }

static void abort_rank(rank_t *self)
{
    if (self->rank == 2) {
        sleep_ms(30);
        epx_comm_abort(self->comm);
    } else {
        char all[12];
        expect_status(self, "allgather beside an abort", epx_comm_allgather(self->comm, "abcd", all, 4),
                      EPX_ERR_PEER);
        expect_text(self, "allgather beside an abort", "rank 2", NULL);
    }
    world_meet(self);
    /* All of them together might still meet: what has come before the end counts. One alone never waits
     * again. */
    if (self->rank == 0)
        expect_status(self, "a barrier of an aborted comm", epx_comm_barrier(self->comm), EPX_ERR_PEER);
}

Test(comm, aborted) { world_run(3, abort_rank, NULL); }
