/* Ranks that make steps, and what is made of their end. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/registry.h"
#include "fabric/fault/fault.h"
#include "tools/common/numbers.h"
#include "tools/common/program.h"
#include "tools/repro/repro.h"

enum { WIDTH = 32, TOKENS = 16, TOP_K = 2, EXPERTS_EACH = 2, STACK_BYTES = 1 << 20 };

epx_group_config_t play_config(const play_t *play, const char *name)
{
    epx_group_config_t config = EPX_GROUP_CONFIG_INIT;
    config.name = name;
    config.experts = play->per_domain * EXPERTS_EACH;
    config.top_k = TOP_K;
    config.width = WIDTH;
    config.tokens_max = TOKENS;
    config.row_type = EPX_FP32;
    config.lanes = 2;
    config.depth = 2;
    config.backward = EPX_BACKWARD_KEPT;
    config.transport = play->settings->transport;
    config.fabric = play->settings->fabric;
    config.device = play->settings->device;
    if (strcmp(play->settings->transport, "ring") != 0)
        config.waves = REPRO_WAVES;
    return config;
}

/* ---- one rank --------------------------------------------------------------------------------------------------- */

/* The device of that name, NULL: this build lacks it, or it cannot be used here (*reason_p says why). */
static const epx_device_ops_t *device_of(const settings_t *settings, char *reason, size_t bytes)
{
    for (int32_t i = 0; i < epx_device_count(); i++) {
        const epx_device_ops_t *ops = epx_device_at(i)->ops;
        if (strcmp(epx_device_at(i)->name, settings->device) == 0)
            return ops != NULL && ops->probe(reason, bytes) > 0 ? ops : NULL;
    }
    snprintf(reason, bytes, "no such device");
    return NULL;
}

int play_on_device(const settings_t *settings) { return strcmp(settings->device, "host") != 0; }

int actor_synchronize(actor_t *actor)
{
    return actor->device->host_access || actor_check(actor, actor->device->synchronize(actor->stream));
}

/* Ranks share a GPU on fabric local; on fabric nccl they have one each, where there are as many. */
epx_status_t play_select(const play_t *play, int32_t rank)
{
    char reason[200];
    const epx_device_ops_t *device = device_of(play->settings, reason, sizeof(reason));
    int32_t gpus = device != NULL && !device->host_access ? device->count() : 0,
            each = strcmp(play->settings->fabric, "nccl") == 0;
    return gpus > 0 ? device->select(each ? rank % gpus : 0) : EPX_OK;
}

static int open_device(actor_t *actor)
{
    char reason[200];
    actor->device = device_of(actor->play->settings, reason, sizeof(reason));
    if (actor->device == NULL) {
        snprintf(actor->error, sizeof(actor->error), "device %s: %s", actor->play->settings->device, reason);
        actor->failed = 1;
        return 0;
    }
    if (actor->device->host_access)
        return 1;
    return actor_check(actor, play_select(actor->play, actor->rank)) &&
           actor_check(actor, actor->device->stream_create(&actor->stream));
}

static int open_comms(actor_t *actor)
{
    play_t *play = actor->play;
    actor->part = actor->world;
    if (play->domains > 1) {
        if (!actor_check(actor, epx_comm_split(actor->world, actor->domain, actor->place, &actor->part)) ||
            !actor_check(actor, epx_comm_split(actor->world, actor->place, actor->domain, &actor->across)))
            return 0;
        epx_comm_set_timeout(actor->across, play->settings->timeout_ms);
    }
    epx_comm_set_timeout(actor->world, play->settings->timeout_ms);
    __atomic_store_n(&actor->recorder, epx_comm_recorder(actor->world),
                     __ATOMIC_RELEASE); /* look() reads it */
    actor->mark_attention = epx_record_text(actor->recorder, "attention");
    actor->mark_gemm = epx_record_text(actor->recorder, "expert gemm");
    return 1;
}

/* A rank's memory: the host's ids and weights, and everything that calls take on the device. */
static int allocate(actor_t *actor)
{
    const epx_device_ops_t *device = actor->device;
    size_t ids = TOKENS * TOP_K, row_floats = (size_t)TOKENS * WIDTH, bytes = row_floats * sizeof(float),
           rows = (size_t)actor->info.batch_rows_max;
    float *x = epx_tool_alloc(row_floats, sizeof(float));
    actor->ids = epx_tool_alloc(ids, sizeof(int32_t));
    actor->weights = epx_tool_alloc(ids, sizeof(float));
    actor->ids_there = device->allocate(ids * sizeof(int32_t), 256);
    actor->weights_there = device->allocate(ids * sizeof(float), 256);
    actor->x = device->allocate(bytes, 256);
    actor->out = device->allocate(bytes, 256);
    actor->y = device->allocate((rows * WIDTH + 1) * sizeof(float), 256);
    if (actor->ids_there == NULL || actor->weights_there == NULL || actor->x == NULL || actor->out == NULL ||
        actor->y == NULL) {
        snprintf(actor->error, sizeof(actor->error), "no memory on device %s", device->name);
        actor->failed = 1;
        return 0;
    }
    actor->tokens = TOKENS;
    for (size_t i = 0; i < row_floats; i++)
        x[i] = (float)(actor->rank * 1000 + (int)i % 997);
    int good =
        actor_check(actor, device->copy(actor->x, x, bytes, actor->stream)) &&
        actor_check(actor, device->fill(actor->y, 0, (rows * WIDTH + 1) * sizeof(float), actor->stream)) &&
        actor_synchronize(actor);
    free(x);
    return good;
}

int actor_open(actor_t *actor)
{
    const play_t *play = actor->play;
    char name[2][32];
    if (!open_device(actor) || !open_comms(actor) || (play->scenario->links && !links_open(actor)))
        return 0;
    for (int32_t i = 0; i <= play->scenario->two_groups; i++) {
        snprintf(name[i], sizeof(name[i]), i == 0 ? "rack%d" : "rack%d, second", actor->domain);
        epx_group_config_t config = play_config(play, name[i]);
        if (!actor_check(actor, epx_group_open(actor->part, &config, &actor->group[i])) ||
            !actor_check(actor, epx_plan_create(actor->group[i], 0, NULL, &actor->plan[i])))
            return 0;
    }
    actor->info = (epx_group_info_t)EPX_GROUP_INFO_INIT;
    if (!actor_check(actor, epx_group_info(actor->group[0], &actor->info)))
        return 0;
    return allocate(actor);
}

/* Routing of this step, by seed, step and rank alone. */
static void choose_experts(actor_t *actor)
{
    const play_t *play = actor->play;
    epx_random_t random = epx_random_at(play->settings->seed, (uint64_t)(actor->step * 4096 + actor->rank));
    int32_t experts = play->per_domain * EXPERTS_EACH, avoided = -1;
    if (play->scenario->idle_peer && actor_is_culprit(actor))
        avoided = play->peer % play->per_domain;
    for (int32_t i = 0; i < TOKENS * TOP_K; i++) {
        do
            actor->ids[i] = (int32_t)epx_random_below(&random, (uint32_t)experts);
        while (actor->ids[i] / EXPERTS_EACH == avoided);
        actor->weights[i] = 0.5f;
    }
}

int actor_route(actor_t *actor, int32_t which)
{
    epx_routing_t routing = EPX_ROUTING_INIT;
    routing.tokens = actor->tokens;
    routing.ids = actor->ids_there;
    routing.weights = actor->weights_there;
    const epx_device_ops_t *device = actor->device;
    size_t count = TOKENS * TOP_K;
    return actor_check(actor,
                       device->copy(actor->ids_there, actor->ids, count * sizeof(int32_t), actor->stream)) &&
           actor_check(actor, device->copy(actor->weights_there, actor->weights, count * sizeof(float),
                                           actor->stream)) &&
           actor_check(actor, epx_plan_route(actor->plan[which], &routing, actor->stream));
}

/* The experts' computation: the caller's, or rows as they are. */
static int compute(actor_t *actor, const epx_batch_t *batch)
{
    const play_t *play = actor->play;
    size_t row_bytes = WIDTH * sizeof(float);
    epx_mark(actor->recorder, actor->mark_gemm, actor->stream);
    if (!actor->device->host_access && play->settings->kernel == NULL)
        return actor_check(actor, actor->device->copy(actor->y, batch->rows,
                                                      (size_t)actor->info.batch_rows_max * row_bytes,
                                                      actor->stream));
    if (play->settings->kernel != NULL)
        return play->settings->kernel(batch->rows, actor->y, batch->expert_start, batch->expert_count,
                                      batch->local_experts, (int64_t)row_bytes, actor->stream) == 0;
    for (int32_t e = 0; e < batch->local_experts; e++)
        memcpy((char *)actor->y + (size_t)batch->expert_start[e] * row_bytes,
               (const char *)batch->rows + (size_t)batch->expert_start[e] * row_bytes,
               (size_t)batch->expert_count[e] * row_bytes);
    return 1;
}

int actor_wave(actor_t *actor, int32_t which, int32_t wave)
{
    epx_batch_t batch = EPX_BATCH_INIT;
    epx_plan_h plan = actor->plan[which];
    if (!actor_check(actor, epx_dispatch(plan, wave, actor->x, &batch, actor->stream)))
        return 0;
    if (batch.rows == NULL && batch.expert_count == NULL) {
        /* The call was left out: a program that has gone on to something else. */
        actor->idle = 1;
        return 0;
    }
    if (!compute(actor, &batch)) {
        snprintf(actor->error, sizeof(actor->error), "the kernel of %s failed",
                 actor->play->settings->kernel_path);
        actor->failed = 1;
        return 0;
    }
    return actor_check(actor, epx_combine(plan, wave, actor->y, actor->out, actor->stream));
}

/* What racks have in common: a sum over the ranks of equal place. */
static int reduce_across(actor_t *actor)
{
    float values[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    if (actor->across == NULL)
        return 1;
    return actor_check(actor, epx_comm_allreduce(actor->across, values, 8, EPX_NUMBER_FLOAT, EPX_SUM));
}

int actor_backward(actor_t *actor)
{
    for (int32_t wave = 0; wave < epx_plan_waves(actor->plan[0]); wave++) {
        epx_batch_t batch = EPX_BATCH_INIT;
        if (!actor_check(actor, epx_combine_backward(actor->plan[0], wave, actor->x, actor->y, &batch,
                                                     actor->stream)) ||
            !actor_check(actor, epx_dispatch_backward(actor->plan[0], wave, actor->y, actor->out, NULL,
                                                      actor->stream)))
            return 0;
    }
    return 1;
}

int actor_step(actor_t *actor)
{
    choose_experts(actor);
    epx_mark(actor->recorder, actor->mark_attention, actor->stream);
    if (!actor_route(actor, 0))
        return 0;
    int32_t waves = epx_plan_waves(actor->plan[0]);
    for (int32_t wave = 0; wave < waves; wave++)
        if (!actor_wave(actor, 0, wave))
            return 0;
    if (actor->play->settings->backward && !actor_backward(actor))
        return 0;
    return actor_synchronize(actor) && reduce_across(actor);
}

/* ---- going on --------------------------------------------------------------------------------------------------- */

int play_mends(play_t *play, const epx_verdict_t *verdict)
{
    int64_t none = 0;
    if (!play->settings->recover)
        return 0;
    if (verdict->action == EPX_ACTION_RECOVER)
        atomic_compare_exchange_strong(&play->mended_ns, &none, verdict->found_ns);
    return atomic_load(&play->mended_ns) == verdict->found_ns;
}

/* The watchdog has ended the groups' waits, and may be about to say why. 1: the step can be made again. */
static int mend(actor_t *actor)
{
    play_t *play = actor->play;
    epx_verdict_t verdict = EPX_VERDICT_INIT;
    int64_t end_ns = epx_now_ns() + play->settings->hang_ms * 4000000;
    if (!play->settings->recover || !actor->failed || actor->recovered || play->scenario->two_groups)
        return 0;
    while (verdict.kind == EPX_VERDICT_NONE && epx_now_ns() < end_ns && !atomic_load(&play->stop)) {
        epx_record_verdict(actor->recorder, &verdict);
        repro_nap_ms(2);
    }
    if (verdict.kind == EPX_VERDICT_NONE || !play_mends(play, &verdict))
        return 0;
    actor->failed = 0;
    actor->recovered = 1;
    epx_plan_destroy(&actor->plan[0]);
    if (!actor_check(actor, epx_group_recover(actor->group[0], NULL)) ||
        !actor_check(actor, epx_plan_create(actor->group[0], 0, NULL, &actor->plan[0])))
        return 0;
    atomic_fetch_add(&play->recovered, 1);
    return 1;
}

/* One step, made again where it could be mended. */
static int make_step(actor_t *actor)
{
    if (actor_step(actor) || (mend(actor) && actor_step(actor)))
        return 1;
    return 0;
}

int actor_steps(actor_t *actor)
{
    play_t *play = actor->play;
    int64_t end_ns = epx_now_ns() + (int64_t)(play->settings->minutes * 60e9);
    for (actor->step = 0;; actor->step++) {
        /* All ranks end at the same step: with a time they ask rank 0. */
        int64_t over = actor->step >= play->steps && epx_now_ns() >= end_ns;
        if (play->settings->minutes > 0 && actor->step >= play->steps &&
            !actor_check(actor, epx_comm_allreduce(actor->world, &over, 1, EPX_NUMBER_INT64, EPX_MAX)))
            return 0;
        if (over || atomic_load(&play->stop))
            break;
        way_t way = play->scenario->act != NULL ? play->scenario->act(actor) : WAY_STEP;
        if (way == WAY_LEAVE || actor->failed)
            return 0;
        if (way == WAY_STEP && !make_step(actor))
            return 0;
        if (!actor_check(actor, epx_step(actor->group[0])))
            return 0;
        repro_nap_ms(1);
    }
    return 1;
}

void actor_close(actor_t *actor)
{
    epx_health_unfollow(&actor->links);
    for (int32_t i = 0; i < 2; i++) {
        epx_plan_destroy(&actor->plan[i]);
        epx_group_close(&actor->group[i]);
    }
    epx_comm_destroy(&actor->across);
    if (actor->part != actor->world)
        epx_comm_destroy(&actor->part);
    epx_comm_destroy(&actor->world);
}

static void *actor_thread(void *argument)
{
    actor_t *actor = argument;
    play_t *play = actor->play;
    int open = actor_open(actor);
    atomic_fetch_add(&play->opened, open);
    if (open && actor_steps(actor))
        atomic_fetch_add(&play->completed, 1);
    atomic_fetch_sub(&play->running, 1);
    /* Who is through, has failed or has left stays as it is until the play has been judged. */
    while (!atomic_load(&play->stop))
        repro_nap_ms(2);
    actor_close(actor);
    return NULL;
}

/* ---- the play --------------------------------------------------------------------------------------------------- */

static void keep_verdict(const play_t *play, const epx_verdict_t *verdict, outcome_t *outcome)
{
    int64_t acted = atomic_load(&play->acted_ns), faulted = epx_fault_first_ns_of_process();
    if (acted == 0 || (faulted != 0 && faulted < acted))
        acted = faulted;
    outcome->kind = verdict->kind;
    outcome->culprit = verdict->rank;
    outcome->peer = verdict->peer;
    outcome->wave = verdict->wave;
    outcome->detect_ms = acted != 0 ? (double)(epx_now_ns() - acted) * 1e-6 : -1;
    snprintf(outcome->verdict, sizeof(outcome->verdict), "%s", epx_verdict_name(verdict->kind));
    snprintf(outcome->op, sizeof(outcome->op), "%s", verdict->op);
    snprintf(outcome->marker, sizeof(outcome->marker), "%s", verdict->marker);
    snprintf(outcome->field, sizeof(outcome->field), "%s", verdict->field);
    snprintf(outcome->group, sizeof(outcome->group), "%s", verdict->group);
    snprintf(outcome->text, sizeof(outcome->text), "%s", verdict->text);
}

/* The job's verdict as any rank knows it; 1: it is there. */
static int look(play_t *play, outcome_t *outcome)
{
    for (int32_t r = 0; r < play->ranks; r++) {
        epx_verdict_t verdict = EPX_VERDICT_INIT;
        epx_recorder_h recorder = __atomic_load_n(&play->actor[r].recorder, __ATOMIC_ACQUIRE);
        if (recorder == NULL || epx_record_verdict(recorder, &verdict) != EPX_OK)
            continue;
        if (verdict.kind == EPX_VERDICT_SLOW)
            outcome->slow = 1;
        if (verdict.kind == EPX_VERDICT_NONE || verdict.kind == EPX_VERDICT_SLOW ||
            play_mends(play, &verdict))
            continue;
        keep_verdict(play, &verdict, outcome);
        return 1;
    }
    return 0;
}

/* No group has opened, and no fault had a hand in it: the settings are wrong, and there is nothing to wait
 * for. */
static int cannot_open(play_t *play)
{
    return atomic_load(&play->running) == 0 && atomic_load(&play->opened) == 0 &&
           epx_fault_first_ns_of_process() == 0;
}

/* Until the watchdog has spoken, all are through, or nothing can come any more. */
static void watch(play_t *play, outcome_t *outcome)
{
    int64_t patience_ns = (play->settings->hang_ms * 12 + 4000) * 1000000, quiet_ns = 0;
    int64_t limit_ns =
        epx_now_ns() + 600000000000 + play->steps * 100000000 + (int64_t)(play->settings->minutes * 60e9);
    while (!look(play, outcome) && atomic_load(&play->completed) < play->ranks && !cannot_open(play) &&
           epx_now_ns() < limit_ns) {
        repro_nap_ms(5);
        /* Some have stopped: whoever is still waiting for them is stuck by now. */
        int64_t acted = atomic_load(&play->acted_ns) != 0 || epx_fault_first_ns_of_process() != 0 ||
                        atomic_load(&play->running) < play->ranks;
        if (acted && quiet_ns == 0)
            quiet_ns = epx_now_ns();
        if (quiet_ns != 0 && epx_now_ns() - quiet_ns > patience_ns && play->settings->minutes <= 0)
            break;
    }
    /* The report goes out behind the verdict. */
    if (outcome->kind != EPX_VERDICT_NONE)
        repro_nap_ms(300);
}

/* A play that went well ends as a program does; one that is stuck goes with its process, and its records
 * stay. */
static void end_play(play_t *play)
{
    if (atomic_load(&play->completed) < play->ranks)
        return;
    atomic_store(&play->stop, 1);
    for (int32_t r = 0; r < play->ranks; r++)
        pthread_join(play->actor[r].thread, NULL);
}

static void sum_up(const play_t *play, outcome_t *outcome)
{
    outcome->completed = atomic_load(&play->completed);
    outcome->recovered = atomic_load(&play->recovered);
    outcome->trace = epx_fault_trace_of_process();
    for (int32_t r = 0; r < play->ranks; r++) {
        const actor_t *actor = &play->actor[r];
        outcome->recoveries += links_recoveries(actor);
        if (actor->step > outcome->steps)
            outcome->steps = actor->step;
        if (outcome->text[0] == '\0' && actor->failed)
            snprintf(outcome->text, sizeof(outcome->text), "rank %d: %.480s", r, actor->error);
    }
}

void play_here(play_t *play, outcome_t *outcome)
{
    pthread_attr_t attributes;
    epx_comm_h comm[REPRO_RANKS_MAX];
    *outcome = (outcome_t){.culprit = -1, .peer = -1, .detect_ms = -1, .ended = 1};
    if (play->scenario->alone != NULL) {
        play->scenario->alone(play, outcome);
        return;
    }
    play->actor = epx_tool_alloc((size_t)play->ranks, sizeof(*play->actor));
    if (epx_comm_threads(play->ranks, comm) != EPX_OK) {
        outcome->wrong = 1;
        snprintf(outcome->text, sizeof(outcome->text), "%s", epx_last_error());
        return;
    }
    atomic_store(&play->running, play->ranks);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    for (int32_t r = 0; r < play->ranks; r++) {
        actor_t *actor = &play->actor[r];
        *actor = (actor_t){.play = play,
                           .rank = r,
                           .domain = r / play->per_domain,
                           .place = r % play->per_domain,
                           .world = comm[r]};
        if (pthread_create(&actor->thread, &attributes, actor_thread, actor) != 0) {
            outcome->wrong = 1;
            snprintf(outcome->text, sizeof(outcome->text), "no thread for rank %d", r);
            return;
        }
    }
    watch(play, outcome);
    if (outcome->kind == EPX_VERDICT_NONE && cannot_open(play))
        outcome->wrong = 1;
    sum_up(play, outcome);
    end_play(play);
}
