/*
 * Checks that catch what a good library never does: rows that do not arrive, or arrive changed.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Between the start of a move, when rows have been stored at the receiver, and its finish, the test spoils a
 * row in the receiver's memory, which it knows as the group's allocator. Or the sender's kernel leaves a row
 * out, wherever it stores: what an earlier pass has left there must not go for it.
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "device/registry.h"
#include "support/drive.h"
#include "support/pieces.h"

TestSuite(corrupt, .init = clean_environment);

enum { RANKS = 2, AREAS = 64, VICTIM = 1, WIDTH = 24, ROW_BYTES = 4 * WIDTH };

/* What befalls a row of rank 0 on its way to the victim. */
typedef enum how {
    CHANGED,       /* one bit */
    POISONED,      /* the pattern stands where it should be */
    NEVER_WRITTEN, /* what stood there before the start stands there still: a row of an earlier pass, or the
                      pattern */
    LEFT_OUT,      /* the sender's kernel does not store it */
} how_t;

/* A host device whose push leaves out one row of rank 0 for another rank, once, when it is asked to. */
static struct {
    atomic_int asked;
    epx_kernels_t kernels;
    epx_device_ops_t device;
} leaky;

/* Where the first row for another rank goes; NULL: there is none. */
static void *first_row_away(const epx_k_push_t *args)
{
    for (int32_t i = 0; i < args->run_count; i++) {
        const epx_run_t *run = &args->runs[i];
        for (int32_t j = 0; j < run->rows && run->peer != args->rank; j++)
            if (args->index == NULL || args->index[run->first + j] >= 0)
                return (char *)args->dst[run->peer] + args->part[0].dst_offset +
                       (run->row + j) * args->part[0].dst_stride;
    }
    return NULL;
}

static epx_status_t leaky_push(const epx_k_push_t *args, epx_stream_t stream)
{
    unsigned char before[ROW_BYTES];
    void *row = NULL;
    if (args->rank == 0 && args->part[0].bytes == ROW_BYTES && atomic_load(&leaky.asked))
        row = first_row_away(args);
    if (row != NULL)
        memcpy(before, row, sizeof(before));
    epx_status_t status = epx_device_of_host()->kernels->push(args, stream);
    if (row != NULL) {
        memcpy(row, before, sizeof(before));
        atomic_store(&leaky.asked, 0);
    }
    return status;
}

static void leaky_device_begin(void)
{
    leaky.kernels = *epx_device_of_host()->kernels;
    leaky.kernels.push = leaky_push;
    leaky.device = *epx_device_of_host();
    leaky.device.kernels = &leaky.kernels;
    epx_device_stand_in("host", &leaky.device);
}

static void leaky_device_end(void) { epx_device_stand_in("host", epx_device_of_host()); }

/* An allocator that can be searched. */
typedef struct area {
    unsigned char *memory;
    size_t bytes;
} area_t;

typedef struct stage {
    problem_t *problem;
    oracle_t *oracle;
    area_t areas[AREAS];
    unsigned char *before[AREAS]; /* copies from before the start */
    int count, found;
    how_t how;
} stage_t;

static void *allocate(void *context, size_t bytes, size_t alignment, int device_memory)
{
    stage_t *stage = context;
    size_t whole = (bytes + alignment - 1) / alignment * alignment;
    void *memory = on_host() || !device_memory ? aligned_alloc(alignment, whole) : both_new(whole);
    memset(memory, 0, bytes); /* a pattern that is found later is the library's */
    if (device_memory && stage->count < AREAS)
        stage->areas[stage->count++] = (area_t){memory, bytes};
    return memory;
}

static void release(void *context, void *memory, size_t bytes, int device_memory)
{
    (void)context, (void)bytes;
    if (device_memory)
        both_free(memory);
    else
        free(memory);
}

static void remember(stage_t *stage)
{
    for (int i = 0; i < stage->count; i++) {
        free(stage->before[i]);
        stage->before[i] = malloc(stage->areas[i].bytes);
        memcpy(stage->before[i], stage->areas[i].memory, stage->areas[i].bytes);
    }
}

/* The first copy of this row in the victim's device memory, and what stood there before. */
static unsigned char *find(stage_t *stage, const unsigned char *row, size_t bytes,
                           const unsigned char **before)
{
    for (int i = 0; i < stage->count; i++) {
        unsigned char *at = memmem(stage->areas[i].memory, stage->areas[i].bytes, row, bytes);
        if (at) {
            *before = stage->before[i] + (at - stage->areas[i].memory);
            return at;
        }
    }
    return NULL;
}

/* Spoils a row of rank 0 that lies at the victim, if one has arrived by now. */
static void spoil(stage_t *stage, const unsigned char *rows)
{
    const problem_t *p = stage->problem;
    size_t bytes = problem_row_bytes(p);
    for (int64_t t = 0; t < p->tokens[0] && !stage->found; t++) {
        const unsigned char *before;
        unsigned char *at = find(stage, rows + (size_t)t * bytes, bytes, &before);
        if (!at)
            continue;
        stage->found = 1;
        if (stage->how == CHANGED)
            at[bytes / 2] ^= 0x10;
        else if (stage->how == POISONED)
            poison(at, bytes);
        else
            memcpy(at, before, bytes);
    }
}

static void stage_rank(rank_t *self)
{
    stage_t *stage = self->arg;
    const problem_t *p = stage->problem;
    epx_allocator_t allocator = {.context = stage, .allocate = allocate, .release = release};
    epx_group_config_t config = problem_config(p);
    session_t session;
    epx_plan_h plan = NULL;
    wave_buffers_t wave;
    buffer_t out;
    if (self->rank == VICTIM)
        config.allocator = &allocator;
    if (!session_open(&session, self, p, &config))
        return;
    wave_new(&wave, &session);
    buffer_new(&out, 8 * problem_row_bytes(p), 4);
    memset(wave.y.data, 0, wave.y.bytes);
    epx_plan_create(session.group, 0, NULL, &plan);
    expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
    /* The first pass is good and fills all slots; the second sends other rows. */
    pass_t good = {.session = &session, .plan = plan, .o = stage->oracle};
    pass_forward(&good);
    pass_free(&good);
    /* A ring passes blocks on a wave ahead: what is spoilt in one wave may be looked at in the next. */
    int on = 1, caught = 0;
    if (self->rank == VICTIM)
        atomic_store(&leaky.asked, stage->how == LEFT_OUT);
    for (int w = 0; w < epx_plan_waves(plan); w++) {
        epx_batch_t batch = EPX_BATCH_INIT;
        world_meet(self); /* nobody stores anything now */
        if (self->rank == VICTIM && stage->how != LEFT_OUT)
            remember(stage);
        world_meet(self);
        epx_status_t status =
            on ? epx_dispatch_start(plan, w, p->dout[self->rank], &batch, rank_stream()) : EPX_OK;
        drained();
        world_meet(self);
        if (self->rank == VICTIM && stage->how != LEFT_OUT)
            spoil(stage, p->dout[0]);
        else if (self->rank == VICTIM)
            stage->found = !atomic_load(&leaky.asked);
        world_meet(self);
        if (on && status == EPX_OK)
            status = epx_dispatch_finish(plan, w, &batch, rank_stream());
        if (self->rank == VICTIM && status == EPX_ERR_CORRUPT) {
            caught = 1;
            expect_text(self, "epx_dispatch_finish over a spoilt row", "rank 1", "rank 0", "row", NULL);
        }
        if (on && status == EPX_OK)
            status = epx_combine(plan, w, wave.y.data, out.data, rank_stream());
        on = on && status == EPX_OK;
    }
    expect(self, self->rank != VICTIM || caught, "the spoilt row was not noticed: %s", epx_last_error());
    world_meet(self);
    expect(self, stage->found, "no row of rank 0 was found at rank 1");
    wave_free(&wave, self);
    buffer_free(&out, self, "out");
    epx_plan_destroy(&plan);
    session_close(&session);
    world_meet(self);
}

static void run_stage(const arm_t *arm, epx_check_t check, how_t how)
{
    if (ranks_are_processes())
        cr_skip_test("rows are spoilt in a segment from the test's allocator, and UCX brings its own");
    if (!rows_land_at_start() && how != LEFT_OUT)
        cr_skip_test("a row that is fetched in the receiver's finish lies nowhere between the two");
    stage_t stage = {.problem = problem_new(arm, RANKS, 4, 2, WIDTH, 8), .how = how};
    stage.problem->check = check;
    stage.problem->timeout_ms = 3000;
    stage.problem->cf = stage.problem->cs = 4;
    problem_inputs(stage.problem, NEXT_RANK, (int[]){8, 8}, 4);
    stage.oracle = oracle_of(stage.problem);
    world_may_warn();
    static const char *const names[] = {"a row that came changed", "a poisoned row",
                                        "a row that did not come", "a row that a kernel left out"};
    world_note("%s, %s", arm->name, names[how]);
    world_run(RANKS, stage_rank, &stage);
    for (int i = 0; i < stage.count; i++)
        free(stage.before[i]);
    oracle_free(stage.oracle);
    problem_free(stage.problem);
}

ParameterizedTestParameters(corrupt, canary_finds_a_row_that_did_not_come) { return every_arm(); }

ParameterizedTest(int *arm, corrupt, canary_finds_a_row_that_did_not_come)
{
    for (int how = POISONED; how <= NEVER_WRITTEN; how++) {
        run_stage(&arms[*arm], EPX_CHECK_CANARY, (how_t)how);
        run_stage(&arms[*arm], EPX_CHECK_FULL, (how_t)how);
    }
}

ParameterizedTestParameters(corrupt, full_finds_a_row_that_came_changed) { return every_arm(); }

ParameterizedTest(int *arm, corrupt, full_finds_a_row_that_came_changed)
{
    run_stage(&arms[*arm], EPX_CHECK_FULL, CHANGED);
}

ParameterizedTestParameters(corrupt, canary_finds_a_row_that_a_kernel_left_out) { return every_arm(); }

ParameterizedTest(int *arm, corrupt, canary_finds_a_row_that_a_kernel_left_out)
{
    only_on_host("it stands in for the host device");
    leaky_device_begin();
    run_stage(&arms[*arm], EPX_CHECK_CANARY, LEFT_OUT);
    run_stage(&arms[*arm], EPX_CHECK_FULL, LEFT_OUT);
    leaky_device_end();
}
