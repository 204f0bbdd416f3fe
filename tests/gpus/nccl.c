/*
 * The library over NCCL's windows, with as many ranks as there are GPUs: threads and processes, graphs that
 * are replayed with other routing, waits that end on the device. SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fabric/nccl/nccl.h"
#include "kernels/cuda/graph.h"
#include "support/drive.h"

extern char **environ;

enum { TOKENS = 33, EXPERTS = 7, TOP_K = 3, WIDTH = 24, REPLAYS = 12 };

static void over_nccl(void)
{
    setenv("TEST_DEVICE", "cuda", 1);
    setenv("TEST_FABRIC", "nccl", 1);
}

TestSuite(nccl, .init = over_nccl);

/* The same without windows. */
static void over_nccl_by_sends(void)
{
    over_nccl();
    setenv("TEST_NCCL_PATH", "sendrecv", 1);
    setenv("EPX_NCCL_PATH", "sendrecv", 1);
}

TestSuite(sends, .init = over_nccl_by_sends);

/* As many ranks as GPUs; the tests below run with one too. */
static int gpus(void)
{
    test_device();
    return ranks_most();
}

static const char *const arm_names[] = {"ragged_rank", "ragged_dropless", "pooled_wave_dropless", "ring"};
enum { ARMS = sizeof(arm_names) / sizeof(arm_names[0]) };

static problem_t *problem_for(int arm, int ranks)
{
    problem_t *p = problem_new(arm_named(arm_names[arm]), ranks, EXPERTS, TOP_K, WIDTH, TOKENS);
    p->timeout_ms = 20000;
    p->arm.fabric = "nccl";
    int *tokens = calloc((size_t)ranks, sizeof(*tokens));
    cr_assert(tokens != NULL);
    for (int r = 0; r < ranks; r++)
        tokens[r] = TOKENS - 3 * (r % 4);
    problem_inputs(p, DISTINCT, tokens, 11);
    free(tokens);
    return p;
}

/* ---- set-up --------------------------------------------------------------------------------------------------- */

static void *allocate(void *context, size_t bytes, size_t alignment, int device_memory)
{
    (void)context;
    return device_memory ? test_device()->allocate(bytes, alignment)
                         : aligned_alloc(256, (bytes + 255) / 256 * 256);
}

static void release(void *context, void *memory, size_t bytes, int device_memory)
{
    (void)context;
    if (device_memory)
        test_device()->release(memory, bytes);
    else
        free(memory);
}

static int alone(void *context, const void *send, void *receive, size_t bytes)
{
    (void)context;
    memcpy(receive, send, bytes);
    return 0;
}

Test(nccl, one_rank_registers_once)
{
    static const epx_allocator_t allocator = {.allocate = allocate, .release = release};
    epx_fabric_config_t config = {
        .name = "alone",
        .bootstrap = {.size_of_struct = sizeof(epx_bootstrap_t), .size = 1, .allgather = alone},
        .device = test_device(),
        .channels = 4,
        .failure_channels = 2,
        .exchange_channels = 1,
        .exchange_bytes = 64,
        .segments_max = 2,
        .caps = epx_fabric_nccl.caps,
        .allocator = &allocator};
    epx_fabric_t *fabric = NULL;
    epx_segment_t segment, again;
    const size_t bytes = (size_t)3 << 20;
    void *peer = NULL;
    expect_came(NULL, "open", epx_fabric_nccl.open(&config, &fabric), EPX_OK);
    if (fabric == NULL) {
        settle();
        return;
    }
    void *memory = epx_fabric_nccl.segment_allocate(fabric, bytes);
    expect(NULL, memory != NULL, "no memory of NCCL's");
    expect_came(NULL, "segment_open", epx_fabric_nccl.segment_open(fabric, memory, bytes, &segment), EPX_OK);
    unsigned char *here = malloc(bytes);
    fetch(&peer, segment.peer_ptr, sizeof(peer));
    expect(NULL, segment.base == memory && peer == memory, "the table has %p for %p", peer, memory);
    fetch(here, memory, bytes);
    size_t zeros = 0;
    while (zeros < bytes && here[zeros] == 0)
        zeros++;
    expect(NULL, zeros == bytes, "a new segment has %d at %zu", here[zeros < bytes ? zeros : 0], zeros);
    free(here);
    /* The last page of what is registered already. */
    epx_status_t status = epx_fabric_nccl.segment_open(fabric, (char *)memory + bytes - 4096, 4096, &again);
    expect_came(NULL, "registering twice", status, EPX_ERR_ARG);
    expect_text(NULL, "registering twice", "alone's segment 1", "alone's segment 0", "registered already",
                NULL);
    epx_fabric_nccl.close(&fabric);
    expect(NULL, fabric == NULL, "close left the handle");
    settle();
}

/* ---- rows are exact ------------------------------------------------------------------------------------------- */

/* Forward and backward passes, checked against the oracle, by one rank. */
static void passes(rank_t *self, problem_t *problem, const oracle_t *oracle)
{
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, problem, NULL))
        return;
    expect(self, strcmp(session.info.fabric, "nccl") == 0, "the fabric is %s", session.info.fabric);
    expect_status(self, "epx_plan_create", epx_plan_create(session.group, 0, NULL, &plan), EPX_OK);
    for (int round = 0; round < 3 && !failures(); round++) {
        pass_t pass = {
            .session = &session, .plan = plan, .o = oracle, .schedule = (schedule_t)(round % SCHEDULES)};
        expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
        if (pass_forward(&pass) && pass_backward(&pass) && pass_forward(&pass))
            pass_stats(&pass);
        pass_free(&pass);
    }
    epx_plan_destroy(&plan);
    session_close(&session);
}

typedef struct trials {
    problem_t *problem[ARMS];
    oracle_t *oracle[ARMS];
} trials_t;

static void trials_rank(rank_t *self)
{
    const trials_t *t = self->arg;
    for (int a = 0; a < ARMS && !failures(); a++)
        passes(self, t->problem[a], t->oracle[a]);
}

static trials_t trials_new(int ranks)
{
    trials_t t;
    for (int a = 0; a < ARMS; a++) {
        t.problem[a] = problem_for(a, ranks);
        t.oracle[a] = oracle_of(t.problem[a]);
    }
    return t;
}

static void trials_free(trials_t *t)
{
    for (int a = 0; a < ARMS; a++) {
        oracle_free(t->oracle[a]);
        problem_free(t->problem[a]);
    }
}

static void play_as_threads(void)
{
    trials_t t = trials_new(gpus());
    world_run(gpus(), trials_rank, &t);
    trials_free(&t);
}

Test(nccl, threads_with_a_gpu_each) { play_as_threads(); }
Test(sends, threads_with_a_gpu_each) { play_as_threads(); }

static void play_one_rank(void)
{
    rank_t self = {.at = "start"};
    int32_t rank = 0, size = 0;
    cr_assert_eq(epx_comm_launched(&rank, &size), EPX_OK, "%s", epx_last_error());
    if (size < 2)
        cr_skip_test("no launcher has started this process");
    self.rank = rank;
    self.ranks = size;
    rank_device(rank % gpus());
    cr_assert_eq(epx_comm_world(&self.comm), EPX_OK, "%s", epx_last_error());
    trials_t t = trials_new(size);
    self.arg = &t;
    trials_rank(&self);
    trials_free(&t);
    epx_comm_destroy(&self.comm);
    rank_stream_end();
    settle();
}

/* Started once for each rank by the tests below, by mpirun or torchrun: EPX_ or their variables say which. */
Test(nccl, one_rank_of_a_job) { play_one_rank(); }
Test(sends, one_rank_of_a_job) { play_one_rank(); }

static pid_t start_rank(const char *test, int rank, int ranks)
{
    char variables[3][64],
        *arguments[] = {(char *)"alone-gpus", (char *)"--filter", (char *)(size_t)test, NULL};
    char *names[1024];
    size_t n = 0;
    pid_t process = -1;
    snprintf(variables[0], sizeof(variables[0]), "EPX_RANK=%d", rank);
    snprintf(variables[1], sizeof(variables[1]), "EPX_WORLD_SIZE=%d", ranks);
    snprintf(variables[2], sizeof(variables[2]), "EPX_ROOT=127.0.0.1:%d", 20000 + (int)getpid() % 20000);
    for (; environ[n] != NULL && n < 1000; n++)
        names[n] = environ[n];
    for (int i = 0; i < 3; i++)
        names[n++] = variables[i];
    names[n] = NULL;
    return posix_spawn(&process, "/proc/self/exe", NULL, NULL, arguments, names) == 0 ? process : -1;
}

static void play_as_processes(const char *test)
{
    int ranks = gpus(), left = ranks;
    int64_t end = now_ms() + 90000;
    if (ranks < 2)
        cr_skip_test("needs two GPUs");
    pid_t *process = calloc((size_t)ranks, sizeof(*process));
    cr_assert(process != NULL);
    for (int r = 0; r < ranks; r++)
        cr_assert_gt(process[r] = start_rank(test, r, ranks), 0);
    while (left > 0 && now_ms() < end) {
        int status = 0;
        pid_t ended = waitpid(-1, &status, WNOHANG);
        if (ended > 0) {
            left--;
            expect(NULL, WIFEXITED(status) && WEXITSTATUS(status) == 0, "a rank ended with %x",
                   (unsigned)status);
        } else {
            sleep_ms(20);
        }
    }
    for (int r = 0; r < ranks && left > 0; r++)
        kill(process[r], SIGKILL);
    expect(NULL, left == 0, "%d of %d ranks did not end", left, ranks);
    free(process);
    settle();
}

Test(nccl, processes_with_a_gpu_each) { play_as_processes("nccl/one_rank_of_a_job"); }
Test(sends, processes_with_a_gpu_each) { play_as_processes("sends/one_rank_of_a_job"); }

/* ---- graphs --------------------------------------------------------------------------------------------------- */

/* One step with experts that give back what they get; all buffers stay where they are. */
typedef struct step {
    session_t session;
    epx_plan_h plan;
    int64_t *tokens;
    int32_t *ids;
    float *weights, *x, *dout, *out, *dx, *dweight;
    float *rows[16]; /* by wave: what the experts got, for the backward pass */
    float *dy[16];
    int64_t *start[16], *count[16];
} step_t;

static void step_new(step_t *s, int waves)
{
    size_t sum = (size_t)TOKENS * WIDTH * sizeof(float),
           rows = (size_t)s->session.info.batch_rows_max * WIDTH * 4;
    s->tokens = both_new(sizeof(*s->tokens));
    s->ids = both_new((size_t)TOKENS * TOP_K * sizeof(*s->ids));
    s->weights = both_new((size_t)TOKENS * TOP_K * sizeof(*s->weights));
    s->dweight = both_new((size_t)TOKENS * TOP_K * sizeof(*s->dweight));
    s->x = both_new(sum);
    s->dout = both_new(sum);
    s->out = both_new(sum);
    s->dx = both_new(sum);
    for (int w = 0; w < waves; w++) {
        s->rows[w] = device_new(rows);
        s->dy[w] = device_new(rows);
        s->start[w] = both_new(EXPERTS * sizeof(int64_t));
        s->count[w] = both_new(EXPERTS * sizeof(int64_t));
    }
}

static void step_free(step_t *s, int waves)
{
    size_t rows = (size_t)s->session.info.batch_rows_max * WIDTH * 4;
    both_free(s->tokens);
    both_free(s->ids);
    both_free(s->weights);
    both_free(s->dweight);
    both_free(s->x);
    both_free(s->dout);
    both_free(s->out);
    both_free(s->dx);
    for (int w = 0; w < waves; w++) {
        device_free(s->rows[w], rows);
        device_free(s->dy[w], rows);
        both_free(s->start[w]);
        both_free(s->count[w]);
    }
}

static epx_batch_t step_batch(const step_t *s, int wave, int backward)
{
    epx_batch_t batch = EPX_BATCH_INIT;
    batch.into_rows = backward ? s->dy[wave] : s->rows[wave];
    batch.into_start = s->start[wave];
    batch.into_count = s->count[wave];
    return batch;
}

static void step_route(step_t *s)
{
    rank_t *self = s->session.self;
    epx_stream_t stream = rank_stream();
    epx_routing_t routing = EPX_ROUTING_INIT;
    routing.ids = s->ids;
    routing.id_type = EPX_INT32;
    routing.weights = s->weights;
    routing.tokens_device = s->tokens;
    expect_came(self, "epx_plan_route", epx_plan_route(s->plan, &routing, stream), EPX_OK);
}

static void step_forward(step_t *s)
{
    rank_t *self = s->session.self;
    epx_stream_t stream = rank_stream();
    for (int w = 0; w < epx_plan_waves(s->plan); w++) {
        epx_batch_t batch = step_batch(s, w, 0);
        expect_came(self, "epx_dispatch", epx_dispatch(s->plan, w, s->x, &batch, stream), EPX_OK);
        expect_came(self, "epx_combine", epx_combine(s->plan, w, batch.rows, s->out, stream), EPX_OK);
    }
}

static void step_make(step_t *s)
{
    rank_t *self = s->session.self;
    epx_stream_t stream = rank_stream();
    step_route(s);
    step_forward(s);
    for (int w = 0; w < epx_plan_waves(s->plan); w++) {
        epx_batch_t dy = step_batch(s, w, 1);
        expect_came(self, "epx_combine_backward",
                    epx_combine_backward(s->plan, w, s->dout, s->rows[w], &dy, stream), EPX_OK);
        expect_came(self, "epx_dispatch_backward",
                    epx_dispatch_backward(s->plan, w, dy.rows, s->dx, s->dweight, stream), EPX_OK);
    }
}

/* Whole numbers, so that sums are exact in any order. */
static void step_draw(step_t *s, dice_t *dice)
{
    *s->tokens = (int64_t)(dice_bits(dice) % (TOKENS + 1));
    for (int a = 0; a < TOKENS * TOP_K; a++) {
        s->ids[a] = (int32_t)(dice_bits(dice) % EXPERTS);
        s->weights[a] = (float)(dice_bits(dice) % 5);
    }
    for (int i = 0; i < TOKENS * WIDTH; i++) {
        s->x[i] = (float)(dice_bits(dice) % 17) - 8;
        s->dout[i] = (float)(dice_bits(dice) % 9) - 4;
        s->out[i] = s->dx[i] = -1e9f;
    }
}

static void step_check(const step_t *s, int replay)
{
    rank_t *self = s->session.self;
    for (int64_t t = 0; t < *s->tokens; t++) {
        float sum = 0;
        for (int k = 0; k < TOP_K; k++)
            sum += s->weights[t * TOP_K + k];
        for (int h = 0; h < WIDTH; h++) {
            int64_t i = t * WIDTH + h;
            if (!expect(self, s->out[i] == sum * s->x[i] && s->dx[i] == sum * s->dout[i],
                        "replay %d: token %d, h %d: out %g, dx %g, not %g, %g", replay, (int)t, h, s->out[i],
                        s->dx[i], sum * s->x[i], sum * s->dout[i]))
                return;
        }
        float dot = 0;
        for (int h = 0; h < WIDTH; h++)
            dot += s->x[t * WIDTH + h] * s->dout[t * WIDTH + h];
        for (int k = 0; k < TOP_K; k++)
            expect(self, s->dweight[t * TOP_K + k] == dot, "replay %d: token %d: dweight %g, not %g", replay,
                   (int)t, s->dweight[t * TOP_K + k], dot);
    }
}

static void replay_rank(rank_t *self)
{
    const problem_t *problem = self->arg;
    step_t s = {.plan = NULL};
    void *graph = NULL;
    dice_t dice = {.state = 77 + (uint64_t)self->rank};
    if (!session_open(&s.session, self, problem, NULL))
        return;
    expect_status(self, "epx_plan_create", epx_plan_create(s.session.group, 0, NULL, &s.plan), EPX_OK);
    int waves = epx_plan_waves(s.plan);
    step_new(&s, waves);
    step_draw(&s, &dice);
    step_make(&s); /* once without a graph: what is asked of the driver once is asked */
    drained();
    step_check(&s, -1);
    expect_came(self, "recording", epx_cuda_record_begin(rank_stream()), EPX_OK);
    step_make(&s);
    expect_came(self, "recording", epx_cuda_record_end(rank_stream(), &graph), EPX_OK);
    for (int replay = 0; replay < REPLAYS && !failures() && graph != NULL; replay++) {
        int bad = replay % 4 == 2;
        drained();
        step_draw(&s, &dice);
        if (bad && self->rank == 0) {
            *s.tokens = TOKENS;
            s.ids[TOP_K + 1] = EXPERTS;
        }
        expect_came(self, "a graph", epx_cuda_replay(graph, rank_stream()), EPX_OK);
        drained();
        epx_status_t wanted = !bad ? EPX_OK : self->rank == 0 ? EPX_ERR_ROUTING : EPX_ERR_PEER;
        if (bad) {
            expect_came(self, "epx_group_check", epx_group_check(s.session.group), wanted);
            expect_text(self, "a bad id in a replay", "rank 0", NULL);
        } else {
            step_check(&s, replay);
        }
    }
    step_draw(&s, &dice);
    step_make(&s); /* and once more without */
    drained();
    step_check(&s, REPLAYS);
    epx_cuda_record_destroy(graph);
    if (failures())
        epx_group_abort(s.session.group, "test failed");
    epx_plan_destroy(&s.plan);
    step_free(&s, waves);
    session_close(&s.session);
}

static void replay(int arm)
{
    problem_t *problem = problem_for(arm, gpus());
    problem->arm.dropless = 1;
    world_may_warn(); /* of the bad routes that nobody has asked for */
    world_note("%s", arm_names[arm]);
    world_run(gpus(), replay_rank, problem);
    problem_free(problem);
}

Test(nccl, graph_of_ragged_on_the_rank_wire) { replay(0); }
Test(nccl, graph_of_ragged) { replay(1); }
Test(nccl, graph_of_pooled_wave) { replay(2); }
Test(nccl, graph_of_ring) { replay(3); }

/* ---- time is up ----------------------------------------------------------------------------------------------- */

static void late_rank(rank_t *self)
{
    const problem_t *problem = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, problem, NULL))
        return;
    expect_status(self, "epx_plan_create", epx_plan_create(session.group, 0, NULL, &plan), EPX_OK);
    expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
    epx_batch_t batch = EPX_BATCH_INIT;
    world_meet(self);
    if (self->rank == 1) { /* does not come */
        sleep_ms(1500);
    } else {
        int64_t begin = now_ms();
        epx_status_t status = epx_dispatch(plan, 0, problem->x[self->rank], &batch, rank_stream());
        expect_came(self, "epx_dispatch, which nobody waits for", status, EPX_OK);
        drained();
        int64_t waited = now_ms() - begin;
        expect(self, waited >= 400 && waited < 5000, "the device waited %d ms, not 500", (int)waited);
        /* Several may have been waiting: one of them names rank 1, the others it. */
        status = epx_group_check(session.group);
        expect(self, status == EPX_ERR_TIMEOUT || status == EPX_ERR_PEER, "epx_group_check gave %s (%s)",
               epx_status_name(status), epx_last_error());
        expect_text(self, "a wait that ended", "dispatch, wave 0, lane 0, slot 0", "rank 1", NULL);
        status = epx_combine(plan, 0, batch.rows, NULL, rank_stream());
        expect(self, status < 0, "a call behind the end gave EPX_OK");
    }
    world_meet(self);
    if (self->rank == 1) { /* comes after all, and is told who gave up */
        epx_status_t status = epx_dispatch(plan, 0, problem->x[self->rank], &batch, rank_stream());
        drained();
        status = status == EPX_OK ? epx_group_check(session.group) : status;
        expect(self, status == EPX_ERR_PEER, "who comes too late got %s (%s)", epx_status_name(status),
               epx_last_error());
    }
    epx_plan_destroy(&plan);
    session_close(&session);
}

/* The same where the calls come from graphs: of a route, which all replay, and of a pass, which rank 1 leaves
 * out. */
static void *recorded(rank_t *self, step_t *s, void (*made)(step_t *s))
{
    void *graph = NULL;
    expect_came(self, "recording", epx_cuda_record_begin(rank_stream()), EPX_OK);
    made(s);
    expect_came(self, "recording", epx_cuda_record_end(rank_stream(), &graph), EPX_OK);
    return graph;
}

/* Milliseconds until it had run. */
static int replayed(rank_t *self, void *graph)
{
    int64_t begin = now_ms();
    expect_came(self, "a graph", epx_cuda_replay(graph, rank_stream()), EPX_OK);
    drained();
    return (int)(now_ms() - begin);
}

static void late_replays(step_t *s, void *route, void *pass)
{
    rank_t *self = s->session.self;
    replayed(self, route);
    replayed(self, pass);
    expect_came(self, "epx_group_check", epx_group_check(s->session.group), EPX_OK);
    replayed(self, route);
    world_meet(self);
    if (self->rank == 1) {
        sleep_ms(1500);
    } else {
        int waited = replayed(self, pass);
        expect(self, waited >= 400 && waited < 5000, "the device waited %d ms, not 500", waited);
        epx_status_t status = epx_group_check(s->session.group);
        expect(self, status == EPX_ERR_TIMEOUT || status == EPX_ERR_PEER, "epx_group_check gave %s (%s)",
               epx_status_name(status), epx_last_error());
        expect_text(self, "a wait that ended", "dispatch, wave 0, lane 0, slot", "rank 1", NULL);
    }
    world_meet(self);
    if (self->rank == 1) {
        replayed(self, pass);
        epx_status_t status = epx_group_check(s->session.group);
        expect(self, status == EPX_ERR_PEER, "who comes too late got %s (%s)", epx_status_name(status),
               epx_last_error());
    }
}

static void late_replay_rank(rank_t *self)
{
    step_t s = {.plan = NULL};
    dice_t dice = {.state = 5 + (uint64_t)self->rank};
    if (!session_open(&s.session, self, self->arg, NULL))
        return;
    expect_status(self, "epx_plan_create", epx_plan_create(s.session.group, 0, NULL, &s.plan), EPX_OK);
    int waves = epx_plan_waves(s.plan);
    step_new(&s, waves);
    step_draw(&s, &dice);
    step_make(&s); /* once without a graph: what is asked of the driver once is asked */
    drained();
    void *route = recorded(self, &s, step_route), *pass = recorded(self, &s, step_forward);
    if (route != NULL && pass != NULL)
        late_replays(&s, route, pass);
    epx_cuda_record_destroy(route);
    epx_cuda_record_destroy(pass);
    epx_plan_destroy(&s.plan);
    step_free(&s, waves);
    session_close(&s.session);
}

Test(nccl, a_wait_in_a_replayed_graph_ends_and_names_who_did_not_come)
{
    if (gpus() < 2)
        cr_skip_test("needs two GPUs");
    problem_t *problem = problem_for(0, gpus());
    problem->arm.dropless = 1;
    problem->timeout_ms = 500;
    world_may_warn();
    world_run(gpus(), late_replay_rank, problem);
    problem_free(problem);
}

static void run_impatient(void (*play)(rank_t *))
{
    problem_t *problem = problem_for(0, gpus());
    problem->timeout_ms = 500;
    world_may_warn();
    world_run(gpus(), play, problem);
    problem_free(problem);
}

Test(nccl, a_wait_ends_on_the_device_and_names_who_did_not_come)
{
    if (gpus() < 2)
        cr_skip_test("needs two GPUs");
    run_impatient(late_rank);
}

/* ---- by sends and receives ------------------------------------------------------------------------------------ */

/* There the host waits, so the call that waits returns the error. */
static void late_sender(rank_t *self)
{
    const problem_t *problem = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, problem, NULL))
        return;
    expect_status(self, "epx_plan_create", epx_plan_create(session.group, 0, NULL, &plan), EPX_OK);
    expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
    epx_batch_t batch = EPX_BATCH_INIT;
    world_meet(self);
    if (self->rank != 1) { /* who does not come */
        int64_t begin = now_ms();
        epx_status_t status = epx_dispatch(plan, 0, problem->x[self->rank], &batch, rank_stream());
        int64_t waited = now_ms() - begin;
        expect(self, status == EPX_ERR_TIMEOUT || status == EPX_ERR_PEER, "epx_dispatch gave %s (%s)",
               epx_status_name(status), epx_last_error());
        expect(self, waited >= 400 && waited < 3000, "the call waited %d ms, not 500", (int)waited);
        expect_text(self, "a wait that ended", "dispatch, wave 0, lane 0, slot 0", "rank 1", NULL);
    }
    world_meet(self);
    sleep_ms(100); /* the news travels */
    if (self->rank == 1) {
        epx_status_t status = epx_dispatch(plan, 0, problem->x[self->rank], &batch, rank_stream());
        expect_came(self, "who comes too late", status, EPX_ERR_PEER);
    }
    world_meet(self);
    epx_plan_destroy(&plan);
    session_close(&session);
}

Test(sends, a_wait_ends_and_names_who_did_not_come)
{
    if (gpus() < 2)
        cr_skip_test("needs two GPUs");
    run_impatient(late_sender);
}

static void capture_rank(rank_t *self)
{
    const problem_t *problem = self->arg;
    step_t s = {.plan = NULL};
    void *graph = NULL;
    dice_t dice = {.state = 5 + (uint64_t)self->rank};
    epx_routing_t routing = EPX_ROUTING_INIT;
    if (!session_open(&s.session, self, problem, NULL))
        return;
    expect_status(self, "epx_plan_create", epx_plan_create(s.session.group, 0, NULL, &s.plan), EPX_OK);
    int waves = epx_plan_waves(s.plan);
    step_new(&s, waves);
    step_draw(&s, &dice);
    routing.ids = s.ids;
    routing.id_type = EPX_INT32;
    routing.weights = s.weights;
    routing.tokens_device = s.tokens;
    world_meet(self);
    expect_came(self, "recording", epx_cuda_record_begin(rank_stream()), EPX_OK);
    epx_status_t status = epx_plan_route(s.plan, &routing, rank_stream());
    expect(self, status == EPX_ERR_UNSUPPORTED, "a captured route gave %s (%s)", epx_status_name(status),
           epx_last_error());
    expect_text(self, "a route that is captured", "graph", NULL);
    (void)epx_cuda_record_end(rank_stream(), &graph);
    epx_cuda_record_destroy(graph);
    world_meet(self);
    epx_group_abort(s.session.group, "the test is over");
    epx_plan_destroy(&s.plan);
    step_free(&s, waves);
    session_close(&s.session);
}

Test(sends, a_graph_is_refused)
{
    problem_t *problem = problem_for(0, gpus());
    world_may_warn();
    world_run(gpus(), capture_rank, problem);
    problem_free(problem);
}
