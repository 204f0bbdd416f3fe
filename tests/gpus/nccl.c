/*
 * The library over NCCL's windows, and over its sends, with as many ranks as there are GPUs: threads and
 * processes. SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fabric/nccl/nccl.h"
#include "gpus/step.h"

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
