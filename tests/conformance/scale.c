/*
 * Many ranks, and offsets that need 64 bits. SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "support/drive.h"
#include "support/pieces.h"

TestSuite(scale, .init = clean_environment);

static const int rank_counts[] = {1, 2, 3, 6, 8, 12, 16, 18, 36, 64, 130};
enum { COUNTS = sizeof(rank_counts) / sizeof(rank_counts[0]) };

ParameterizedTestParameters(scale, case13_many_ranks) { return every_arm(); }

/* Two tokens a rank; experts as many as ranks, fewer, more. The largest two for the plain arms only. */
ParameterizedTest(int *arm, scale, case13_many_ranks)
{
    world_limit_s(200);
    for (int i = 0; i < COUNTS; i++) {
        int ranks = rank_counts[i], experts[] = {ranks, ranks / 2 + 1, 2 * ranks + 1};
        if ((ranks > 36 && *arm >= arms_basic) || (ranks > 18 && ranks_are_processes()))
            continue;
        problem_t *p = problem_new(&arms[*arm], ranks, experts[i % 3], 2, 3, 2);
        p->lanes = p->depth = ranks > 36 ? 1 : 2;
        problem_inputs(p, i % 2 ? UNIFORM : SKEWED, NULL, 40 + (uint64_t)i);
        problem_check(p, (schedule_t)(i % SCHEDULES));
    }
}

/* ---- offsets past 2^31 -------------------------------------------------------------------------------------------------- */

/* Address space without memory behind it: only what is touched becomes real. */
static void *reserve(void *context, size_t bytes, size_t alignment, int device_memory)
{
    (void)context, (void)alignment, (void)device_memory;
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void unreserve(void *context, void *memory, size_t bytes, int device_memory)
{
    (void)context, (void)device_memory;
    munmap(memory, bytes);
}

static const epx_allocator_t reserving = {.allocate = reserve, .release = unreserve};

typedef struct far {
    problem_t *problem;
    oracle_t *oracle;
} far_t;

/* The row of each seat of mine is compared, and y is the row itself. */
static void far_batch(session_t *session, const oracle_t *o, int wave, const epx_batch_t *batch,
                      unsigned char *y)
{
    const problem_t *p = session->p;
    size_t bytes = problem_row_bytes(p);
    for (int s = 0; s < p->ranks; s++) {
        for (int64_t a = 0; a < p->tokens[s] * p->columns; a++) {
            const seat_t *seat = &o->seat[s][a];
            if (seat->fate != KEPT || seat->wave != wave || seat->owner != session->self->rank)
                continue;
            const unsigned char *row = (const unsigned char *)batch->rows + (size_t)seat->place * bytes;
            expect(session->self, memcmp(row, p->x[s] + (size_t)seat->token * bytes, bytes) == 0,
                   "wave %d place %lld is not of rank %d token %d", wave, (long long)seat->place, s,
                   seat->token);
            memcpy(y + (size_t)seat->place * bytes, row, bytes);
        }
    }
}

static void far_rank(rank_t *self)
{
    far_t *f = self->arg;
    const problem_t *p = f->problem;
    epx_group_config_t config = problem_config(p);
    epx_plan_h plan = NULL;
    session_t session;
    config.allocator = &reserving;
    if (!session_open(&session, self, p, &config))
        return;
    size_t bytes = (size_t)session.info.batch_rows_max * problem_row_bytes(p);
    unsigned char *y = reserve(NULL, bytes, 0, 1);
    buffer_t out;
    buffer_new(&out, (size_t)p->tokens[self->rank] * problem_row_bytes(p), 4);
    epx_plan_create(session.group, p->lanes - 1, NULL, &plan);
    int ok = expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
    for (int w = 0; ok && w < epx_plan_waves(plan); w++) {
        epx_batch_t batch = EPX_BATCH_INIT;
        ok = expect_status(self, "epx_dispatch",
                           epx_dispatch(plan, w, p->x[self->rank], &batch, rank_stream()), EPX_OK);
        if (ok)
            far_batch(&session, f->oracle, w, &batch, y);
        ok = ok &&
             expect_status(self, "epx_combine", epx_combine(plan, w, y, out.data, rank_stream()), EPX_OK);
    }
    for (int64_t t = 0; ok && t < p->tokens[self->rank]; t++) {
        float weight = 0;
        for (int k = 0; k < p->top_k; k++) /* whole numbers: any order of adding gives the same */
            weight += oracle_seat(f->oracle, self->rank, t, k)->fate == KEPT
                          ? p->weights[self->rank][t * p->columns + k]
                          : 0;
        for (size_t h = 0; h < (size_t)p->width; h += 1023) {
            size_t at = (size_t)t * (size_t)p->width + h;
            float want = weight * row_get(p->x[self->rank], p->row_type, at),
                  got = row_get(out.data, p->row_type, at);
            expect(self, got == want, "out[%d, %d] is %g, not %g", (int)t, (int)h, (double)got, (double)want);
        }
    }
    if (!ok)
        epx_group_abort(session.group, "test failed");
    munmap(y, bytes);
    buffer_free(&out, self, "out");
    epx_plan_destroy(&plan);
    session_close(&session);
}

ParameterizedTestParameters(scale, offsets_beyond_2_to_31) { return basic_arms(); }

/* Rows of 2 MiB: the slots of the last lane and the last experts' rows lie many GiB behind the beginning. */
ParameterizedTest(int *arm, scale, offsets_beyond_2_to_31)
{
    only_on_host("address space without memory behind it");
    if (arms[*arm].kind == POOLED_WAVE)
        only_with_stores("empty slots travel too, which takes memory behind all of them");
    if (ranks_are_processes())
        only_with_stores("UCX hands out no more memory than there is");
    far_t f = {.problem = problem_new(&arms[*arm], 2, 4, 2, 1 << 20, 1200)};
    f.problem->row_type = EPX_BF16;
    f.problem->values = WHOLE;
    f.problem->backward = EPX_BACKWARD_NONE;
    f.problem->origin = 0;
    /* Three tokens a rank of 1200 that might come: inputs are made for those only. */
    f.problem->tokens_max = 3;
    problem_inputs(f.problem, DISTINCT, (int[]){3, 2}, 8);
    f.problem->tokens_max = 1200;
    f.oracle = oracle_new(f.problem, f.problem->arm.wire);
    epx_memory_t memory = EPX_MEMORY_INIT;
    epx_group_config_t config = problem_config(f.problem);
    cr_assert_eq(epx_group_memory(&config, &memory), EPX_OK, "%s", epx_last_error());
    cr_assert(memory.device_bytes > (int64_t)1 << 33, "only %lld bytes", (long long)memory.device_bytes);
    world_note("%s, rows of 2 MiB", arms[*arm].name);
    world_run(2, far_rank, &f);
    oracle_free(f.oracle);
    problem_free(f.problem);
}
