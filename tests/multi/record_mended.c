/* What a program says of its own pools and kernels is mended in place: RESOURCE and NOT_RESIDENT of a live
 * job end its group's waits, all recover with the transport of EPX_ON_HANG, and the step is done again.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include <epx/record.h>

#include "support/folder.h"
#include "support/world.h"

enum { RANKS = 3, STUCK = 1, EXPERTS = 6, TOKENS = 4, WIDTH = 8, LIMIT_MS = 20000 };

static char folder[FOLDER_BYTES];

static void begin(void)
{
    clean_environment();
    folder_make(folder, "/dev/shm");
    setenv("EPX_RECORD", folder, 1);
    setenv("EPX_HANG_MS", "400", 1);
    setenv("EPX_TRANSPORT", "ragged", 1);
    setenv("EPX_ON_HANG", "failover:ring", 1);
}

static void end(void) { cr_assert_eq(folder_remove(folder), 0, "%s stays", folder); }

TestSuite(record_mended, .init = begin, .fini = end, .timeout = 90);

/* A step: every token goes to two experts that give back what they get, with weights of one half. */
static epx_status_t step(epx_group_h group, int32_t rank, float *out)
{
    int32_t ids[TOKENS * 2];
    float weights[TOKENS * 2], x[TOKENS * WIDTH], *y;
    epx_group_info_t info = EPX_GROUP_INFO_INIT;
    epx_plan_h plan = NULL;
    for (int32_t i = 0; i < TOKENS * 2; i++) {
        ids[i] = (i + rank) % EXPERTS;
        weights[i] = 0.5f;
    }
    for (int32_t i = 0; i < TOKENS * WIDTH; i++)
        x[i] = (float)(rank * 100 + i);
    epx_routing_t routing = EPX_ROUTING_INIT;
    routing.tokens = TOKENS, routing.ids = ids, routing.weights = weights;
    epx_status_t status = epx_group_info(group, &info);
    y = calloc((size_t)info.batch_rows_max * WIDTH, sizeof(*y));
    if (status == EPX_OK)
        status = y != NULL ? epx_plan_create(group, 0, NULL, &plan) : EPX_ERR_NO_MEMORY;
    if (status == EPX_OK)
        status = epx_plan_route(plan, &routing, NULL);
    for (int32_t w = 0; status == EPX_OK && w < epx_plan_waves(plan); w++) {
        epx_batch_t batch = EPX_BATCH_INIT;
        status = epx_dispatch(plan, w, x, &batch, NULL);
        for (int32_t e = 0; status == EPX_OK && e < batch.local_experts; e++)
            memcpy(y + batch.expert_start[e] * WIDTH,
                   (const float *)batch.rows + batch.expert_start[e] * WIDTH,
                   (size_t)batch.expert_count[e] * WIDTH * sizeof(*y));
        if (status == EPX_OK)
            status = epx_combine(plan, w, y, out, NULL);
    }
    epx_plan_destroy(&plan);
    free(y);
    return status;
}

static int is_step_right(int32_t rank, const float *out)
{
    for (int32_t i = 0; i < TOKENS * WIDTH; i++)
        if (out[i] != (float)(rank * 100 + i))
            return 0;
    return 1;
}

/* ---- what holds one rank up, until somebody has said so ----------------------------------------------------------- */

static epx_verdict_t hear(epx_recorder_h recorder)
{
    epx_verdict_t verdict = EPX_VERDICT_INIT;
    for (int64_t until = now_ms() + LIMIT_MS;
         now_ms() < until && (verdict.kind == EPX_VERDICT_NONE || verdict.kind == EPX_VERDICT_SLOW);
         sleep_ms(20))
        epx_record_verdict(recorder, &verdict);
    return verdict;
}

/* A pool of the program's own that is empty: it asks again and again. */
static epx_verdict_t wait_for_a_pool(epx_recorder_h recorder)
{
    int32_t pool = epx_record_text(recorder, "activations");
    epx_record_evidence(recorder, EPX_EVIDENCE_RESOURCE_EMPTY, pool, 0, 0);
    epx_verdict_t verdict = hear(recorder);
    epx_record_evidence(recorder, EPX_EVIDENCE_RESOURCE_BACK, pool, 0, 0);
    return verdict;
}

/* A kernel of the program's own that needs all its blocks at once, and has some of them. */
static epx_verdict_t wait_for_blocks(epx_recorder_h recorder)
{
    epx_record_group_t group = EPX_RECORD_GROUP_INIT;
    epx_record_op_t op = EPX_RECORD_OP_INIT;
    group.name = "own", group.rank = STUCK;
    op.group_id = epx_record_group(recorder, &group);
    op.text_id = epx_record_text(recorder, "fused kernel");
    uint64_t handle = epx_record_enqueue(recorder, &op);
    epx_record_begin(recorder, handle);
    epx_record_blocks(recorder, handle, 132, 92);
    epx_verdict_t verdict = hear(recorder);
    epx_record_blocks(recorder, handle, 132, 132);
    epx_record_end(recorder, handle, EPX_OK);
    return verdict;
}

typedef struct stall {
    epx_verdict_t (*wait)(epx_recorder_h recorder);
    epx_verdict_kind_t kind;
    const char *field;
} stall_t;

static void go_on_with_another(rank_t *self)
{
    const stall_t *stall = self->arg;
    epx_recorder_h recorder = epx_comm_recorder(self->comm);
    epx_group_config_t config = EPX_GROUP_CONFIG_INIT, next;
    epx_group_info_t info = EPX_GROUP_INFO_INIT;
    epx_group_h group = NULL;
    float out[TOKENS * WIDTH];
    config.name = "experts", config.experts = EXPERTS, config.top_k = 2, config.width = WIDTH;
    config.tokens_max = TOKENS, config.row_type = EPX_FP32;
    if (!expect_status(self, "epx_group_open", epx_group_open(self->comm, &config, &group), EPX_OK))
        return;
    expect_status(self, "step", step(group, self->rank, out), EPX_OK);
    expect(self, is_step_right(self->rank, out), "the first step's sums are others");
    epx_step(group);
    world_meet(self);
    if (self->rank == STUCK)
        stall->wait(recorder);
    epx_status_t status = step(group, self->rank, out);
    expect(self, status == EPX_ERR_ABORTED || status == EPX_ERR_PEER, "the stalled step: %s",
           epx_status_name(status));
    epx_verdict_t verdict = hear(recorder);
    expect(self,
           verdict.kind == stall->kind && verdict.rank == STUCK && strcmp(verdict.field, stall->field) == 0,
           "%s of rank %d, %s: %s", epx_verdict_name(verdict.kind), verdict.rank, verdict.field,
           verdict.text);
    expect(self, verdict.action == EPX_ACTION_RECOVER && verdict.exit_code == 0, "action %d, exit code %d",
           (int)verdict.action, verdict.exit_code);
    next = config;
    next.transport = "failover:ring";
    expect(self, strcmp(verdict.failover, "ring") == 0, "failover to \"%s\"", verdict.failover);
    expect_status(self, "epx_group_recover", epx_group_recover(group, &next), EPX_OK);
    epx_group_info(group, &info);
    expect(self, info.ranks == RANKS && strcmp(info.transport, "ring") == 0, "%d ranks, %s", info.ranks,
           info.transport);
    expect_status(self, "the step again", step(group, self->rank, out), EPX_OK);
    expect(self, is_step_right(self->rank, out), "the sums of the step that was done again are others");
    epx_group_close(&group);
}

Test(record_mended, a_pool_that_is_empty)
{
    stall_t stall = {.wait = wait_for_a_pool, .kind = EPX_VERDICT_RESOURCE, .field = "activations"};
    world_may_warn();
    world_run(RANKS, go_on_with_another, &stall);
    settle();
}

Test(record_mended, a_kernel_that_does_not_fit)
{
    stall_t stall = {.wait = wait_for_blocks, .kind = EPX_VERDICT_NOT_RESIDENT, .field = "92 of 132"};
    world_may_warn();
    world_run(RANKS, go_on_with_another, &stall);
    settle();
}
