/*
 * What a program has beside epx and stands still in: a pool that is empty, a grid whose blocks are not all
 * there. SPDX-License-Identifier: Apache-2.0
 *
 * Both are real, of threads and semaphores, and tell the recorder what they see, as a program of one's own
 * would (epx_record_evidence, epx_record_blocks): without its fault a play takes a buffer and runs the grid
 * to its end.
 */
#include <semaphore.h>
#include <stdio.h>
#include <string.h>

#include "tools/common/program.h"
#include "tools/repro/repro.h"

static int is_now(const actor_t *actor) { return actor->step == REPRO_FAULT_STEP && actor_is_culprit(actor); }

/* Somebody has said what holds the job up, or the play is over. */
static int is_over(const actor_t *actor)
{
    epx_verdict_t verdict = EPX_VERDICT_INIT;
    if (atomic_load(&actor->play->stop))
        return 1;
    return actor->play->settings->recover && epx_record_verdict(actor->recorder, &verdict) == EPX_OK &&
           verdict.kind != EPX_VERDICT_NONE && verdict.kind != EPX_VERDICT_SLOW;
}

/* ---- a pool ----------------------------------------------------------------------------------------------------- */

enum { BUFFERS = 2 };

way_t act_pool_empty(actor_t *actor)
{
    sem_t pool;
    if (!is_now(actor))
        return WAY_STEP;
    int32_t name = epx_record_text(actor->recorder, "activations");
    int is_empty = 0;
    sem_init(&pool, 0, BUFFERS);
    for (int taken = 0; taken < BUFFERS && actor->play->faulty; taken++)
        sem_wait(&pool); /* by somebody who never gives them back */
    while (sem_trywait(&pool) != 0 && !is_over(actor)) {
        if (!is_empty) {
            epx_record_evidence(actor->recorder, EPX_EVIDENCE_RESOURCE_EMPTY, name, 0, 0);
            actor_acts(actor);
        }
        is_empty = 1;
        repro_nap_ms(2);
    }
    if (is_empty)
        epx_record_evidence(actor->recorder, EPX_EVIDENCE_RESOURCE_BACK, name, 0, 0);
    sem_destroy(&pool);
    return WAY_STEP;
}

int is_of_the_pool(const play_t *play, const outcome_t *outcome)
{
    (void)play;
    return strcmp(outcome->field, "activations") == 0;
}

/* ---- a grid ----------------------------------------------------------------------------------------------------- */

/* Blocks that wait for each other, each on a processor of its own: there are just as many. */
enum { BLOCKS = 4 };

typedef struct grid {
    sem_t processors;
    atomic_int arrived, given_up;
} grid_t;

static void *run_block(void *argument)
{
    grid_t *grid = argument;
    while (sem_trywait(&grid->processors) != 0) {
        if (atomic_load(&grid->given_up))
            return NULL;
        repro_nap_ms(1);
    }
    atomic_fetch_add(&grid->arrived, 1);
    while (atomic_load(&grid->arrived) < BLOCKS && !atomic_load(&grid->given_up))
        repro_nap_ms(1);
    sem_post(&grid->processors);
    return NULL;
}

static void run_grid(actor_t *actor, grid_t *grid, uint64_t op)
{
    pthread_t block[BLOCKS];
    int32_t begun = 0;
    while (begun < BLOCKS && pthread_create(&block[begun], NULL, run_block, grid) == 0)
        begun++;
    for (int32_t arrived = 0; arrived < begun && !is_over(actor); repro_nap_ms(2)) {
        arrived = atomic_load(&grid->arrived);
        epx_record_blocks(actor->recorder, op, BLOCKS, (uint64_t)arrived);
    }
    atomic_store(&grid->given_up, 1);
    for (int32_t i = 0; i < begun; i++)
        pthread_join(block[i], NULL);
    if (begun < BLOCKS) {
        snprintf(actor->error, sizeof(actor->error), "no thread for block %d", begun);
        actor->failed = 1;
    }
}

way_t act_not_resident(actor_t *actor)
{
    grid_t grid = {.arrived = 0};
    if (!is_now(actor))
        return WAY_STEP;
    epx_record_group_t group = EPX_RECORD_GROUP_INIT;
    epx_record_op_t call = EPX_RECORD_OP_INIT;
    group.name = "the program's own";
    group.rank = actor->rank;
    call.group_id = epx_record_group(actor->recorder, &group);
    call.text_id = epx_record_text(actor->recorder, "grid");
    sem_init(&grid.processors, 0, BLOCKS);
    if (actor->play->faulty) {
        sem_wait(&grid.processors); /* the hog */
        actor_acts(actor);
    }
    uint64_t op = epx_record_enqueue(actor->recorder, &call);
    epx_record_begin(actor->recorder, op);
    run_grid(actor, &grid, op);
    epx_record_end(actor->recorder, op, EPX_OK);
    sem_destroy(&grid.processors);
    return WAY_STEP;
}

int is_one_short(const play_t *play, const outcome_t *outcome)
{
    char field[16];
    (void)play;
    snprintf(field, sizeof(field), "%d of %d", BLOCKS - 1, BLOCKS);
    return strcmp(outcome->field, field) == 0;
}
