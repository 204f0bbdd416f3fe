/* Faults that are a program's own: what an actor does before a step. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "tools/common/numbers.h"
#include "tools/common/program.h"
#include "tools/repro/repro.h"

static int is_now(const actor_t *actor)
{
    return actor->play->faulty && actor->step == REPRO_FAULT_STEP && actor_is_culprit(actor);
}

/* Without the mutant the rank has no tokens and takes part; with it, it returns early. */
way_t act_zero_tokens(actor_t *actor)
{
    if (actor_is_culprit(actor))
        actor->tokens = 0;
    if (!is_now(actor))
        return WAY_STEP;
    actor_acts(actor);
    return WAY_LEAVE;
}

/* Long work with signs of life. */
static void load_data(actor_t *actor, int64_t ms)
{
    int32_t mark = epx_record_text(actor->recorder, "loading data");
    for (int64_t at = 0; at < ms; at += 20) {
        epx_mark(actor->recorder, mark, NULL);
        actor_sleep(actor, 20);
    }
}

/* Late by more than the steady budget in warm-up (none), and again in steady state (SLOW). */
way_t act_slow_host(actor_t *actor)
{
    int64_t late_ms = actor->play->settings->hang_ms * 8 / 5;
    if (!actor->play->faulty || !actor_is_culprit(actor) ||
        (actor->step != 0 && actor->step != REPRO_FAULT_STEP))
        return WAY_STEP;
    load_data(actor, late_ms);
    return WAY_STEP;
}

/* A backward pass where the others go forward. */
way_t act_desync(actor_t *actor)
{
    epx_batch_t batch = EPX_BATCH_INIT;
    if (!is_now(actor))
        return WAY_STEP;
    actor->step = REPRO_FAULT_STEP;
    if (!actor_route(actor, 0))
        return WAY_LEAVE;
    actor_acts(actor);
    actor_check(actor, epx_combine_backward(actor->plan[0], 0, actor->x, actor->y, &batch, actor->stream));
    return WAY_LEAVE;
}

/* Two programs alternate: in turn, and waves overlapped; one rank plays the other one. */
way_t act_two_graphs(actor_t *actor)
{
    int32_t waves = epx_plan_waves(actor->plan[0]);
    int overlapped = (actor->step & 1) != 0;
    if (waves < 2)
        return WAY_STEP;
    if (is_now(actor)) {
        overlapped = !overlapped;
        actor_acts(actor);
    }
    if (!overlapped)
        return WAY_STEP;
    epx_batch_t batch[2] = {EPX_BATCH_INIT, EPX_BATCH_INIT};
    epx_plan_h plan = actor->plan[0];
    if (!actor_route(actor, 0) ||
        !actor_check(actor, epx_dispatch(plan, 0, actor->x, &batch[0], actor->stream)) ||
        !actor_check(actor, epx_dispatch(plan, 1, actor->x, &batch[1], actor->stream)) ||
        !actor_check(actor, epx_combine(plan, 0, actor->y, actor->out, actor->stream)) ||
        !actor_check(actor, epx_combine(plan, 1, actor->y, actor->out, actor->stream)))
        return WAY_LEAVE;
    for (int32_t wave = 2; wave < waves; wave++)
        if (!actor_wave(actor, 0, wave))
            return WAY_LEAVE;
    return WAY_DONE;
}

/* As a compiler does: much memory, all of a processor, no call and no marker. */
static void recompile(actor_t *actor, int64_t ms)
{
    int64_t end = epx_now_ns() + ms * 1000000;
    while (epx_now_ns() < end && !atomic_load(&actor->play->stop)) {
        size_t bytes = (size_t)8 << 20;
        char *memory = malloc(bytes);
        if (memory == NULL)
            return;
        memset(memory, (int)(end & 0xff), bytes);
        __atomic_signal_fence(__ATOMIC_SEQ_CST); /* or the compiler leaves it all out */
        free(memory);
    }
}

/* Three budgets long, announced; two budgets, unannounced. */
way_t act_pause(actor_t *actor)
{
    int64_t hang_ms = actor->play->settings->hang_ms;
    if (!actor->play->faulty || !actor_is_culprit(actor))
        return WAY_STEP;
    if (actor->step == REPRO_FAULT_STEP) {
        epx_phase(actor->recorder, "checkpoint", 20 * hang_ms);
        actor_sleep(actor, 3 * hang_ms);
        epx_phase(actor->recorder, "steady", 0);
    }
    if (actor->step == REPRO_FAULT_STEP + 4)
        recompile(actor, 2 * hang_ms);
    return WAY_STEP;
}

/* Two groups of the same ranks; half of the ranks take them the other way round. */
way_t act_mixed_order(actor_t *actor)
{
    int turned =
        actor->play->faulty && actor->step == REPRO_FAULT_STEP && actor->place >= actor->play->per_domain / 2;
    if (turned && !actor_route(actor, 1))
        return WAY_LEAVE;
    if (turned && !actor_wave(actor, 1, 0))
        return WAY_LEAVE;
    if (!actor_step(actor))
        return WAY_LEAVE;
    if (actor->step != REPRO_FAULT_STEP)
        return WAY_DONE;
    actor_acts(actor);
    if (!turned && (!actor_route(actor, 1) || !actor_wave(actor, 1, 0)))
        return WAY_LEAVE;
    for (int32_t wave = 1; wave < epx_plan_waves(actor->plan[1]); wave++)
        if (!actor_wave(actor, 1, wave))
            return WAY_LEAVE;
    return WAY_DONE;
}

/* How a route and what follows it end, wherever the error comes out: the calls, or behind the stream. */
static epx_status_t try_route(actor_t *actor)
{
    epx_batch_t batch = EPX_BATCH_INIT;
    int failed = actor->failed;
    epx_status_t status = actor_route(actor, 0) ? EPX_OK : actor->status;
    actor->failed = failed;
    if (status == EPX_OK)
        status = epx_dispatch(actor->plan[0], 0, actor->x, &batch, actor->stream);
    if (status == EPX_OK && !actor->device->host_access) {
        actor_synchronize(actor);
        /* The device has told by now: the pass goes no further. */
        status = epx_combine(actor->plan[0], 0, actor->y, actor->out, actor->stream);
        for (int32_t wave = 1; status == EPX_OK && wave < epx_plan_waves(actor->plan[0]); wave++) {
            epx_batch_t next = EPX_BATCH_INIT;
            status = epx_dispatch(actor->plan[0], wave, actor->x, &next, actor->stream);
            if (status == EPX_OK)
                status = epx_combine(actor->plan[0], wave, actor->y, actor->out, actor->stream);
        }
        actor_synchronize(actor);
        if (status == EPX_OK) {
            failed = actor->failed;
            status = actor_route(actor, 0) ? EPX_OK : actor->status;
            actor->failed = failed;
        }
    }
    return status;
}

/* An id that no expert has: ROUTING there, PEER elsewhere, and the next step is fine. */
way_t act_failed_route(actor_t *actor)
{
    if (!actor->play->faulty || actor->step != REPRO_FAULT_STEP)
        return WAY_STEP;
    int32_t good = actor->tokens;
    memset(actor->ids, 0, 2 * sizeof(*actor->ids));
    if (actor_is_culprit(actor))
        actor->ids[1] = 1000000;
    actor->tokens = 1;
    epx_status_t status = try_route(actor), wanted = actor_is_culprit(actor) ? EPX_ERR_ROUTING : EPX_ERR_PEER;
    actor->tokens = good;
    actor->failed = status != wanted;
    return actor->failed ? WAY_LEAVE : WAY_STEP;
}

/* Random skew, and now and then an announced pause. */
way_t act_soak(actor_t *actor)
{
    epx_random_t random =
        epx_random_at(actor->play->settings->seed + 5, (uint64_t)(actor->step * 512 + actor->rank));
    uint32_t draw = epx_random_below(&random, 2000);
    if (draw < 40)
        actor_sleep(actor, 1 + draw / 4);
    if (draw == 40) {
        epx_phase(actor->recorder, "evaluation", 60000);
        actor_sleep(actor, actor->play->settings->hang_ms * 3 / 2);
        epx_phase(actor->recorder, "steady", 0);
    }
    return WAY_STEP;
}
