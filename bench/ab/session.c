/* From a checkpoint to all runs. SPDX-License-Identifier: Apache-2.0 */
#include "bench/ab/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <epx/info.h>

#include "bench/ab/arms.h"
#include "bench/ab/capacity.h"
#include "bench/ab/rank.h"
#include "bench/ab/schedule.h"
#include "tools/common/program.h"
#include "tools/common/terminal.h"
#include "train/fail.h"
#include "train/need.h"

/* ---- the library's memory, counted --------------------------------------------------------------------------------- */

static void *counted_allocate(void *context, size_t bytes, size_t alignment, int device_memory)
{
    epx_ab_session_t *session = context;
    (void)device_memory; /* the host device has one kind */
    size_t unit = alignment < sizeof(void *) ? sizeof(void *) : alignment;
    atomic_fetch_add(&session->allocations, 1);
    return bytes > SIZE_MAX - unit ? NULL : aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
}

static void counted_release(void *context, void *memory, size_t bytes, int device_memory)
{
    (void)context;
    (void)bytes;
    (void)device_memory;
    free(memory);
}

/* ---- the checkpoint ------------------------------------------------------------------------------------------------ */

/* The schedules end where the comparison begins, whether the checkpoint is trained here or restored: so a
 * checkpoint that was kept gives the same runs again. Written once, between barriers. */
static int end_schedule(epx_ab_rank_t *self, epx_ab_settings_t *settings)
{
    int code = epx_train_status(epx_comm_barrier(self->world));
    if (self->rank == 0 && code == EPX_TRAIN_OK && epx_trainer_steps_done(self->trainer) > 0)
        settings->train.steps = epx_trainer_steps_done(self->trainer);
    return code == EPX_TRAIN_OK ? epx_train_status(epx_comm_barrier(self->world)) : code;
}

static int train_checkpoint(epx_ab_rank_t *self)
{
    const epx_ab_session_t *session = self->session;
    int64_t steps = session->settings->train_steps;
    epx_metrics_t metrics = {.loss = 0};
    int code = epx_trainer_open_group(self->trainer, &session->reference);
    for (int64_t s = 0; code == EPX_TRAIN_OK && s < steps; s++) {
        code = epx_trainer_step(self->trainer, &metrics);
        if (self->rank == 0 && code == EPX_TRAIN_OK)
            epx_progress(
                "training the checkpoint, without drops: step %lld/%lld  loss %.3f  load %.2f times the mean",
                (long long)s + 1, (long long)steps, metrics.loss, metrics.load_max_over_mean);
    }
    epx_trainer_close_group(self->trainer);
    return code;
}

/* Where the trained checkpoint is written: kept if asked for, else for as long as its hash takes. */
static int save_checkpoint(epx_ab_rank_t *self, uint64_t *hash_p)
{
    const epx_ab_settings_t *settings = self->session->settings;
    char path[] = "/tmp/epx-ab-XXXXXX";
    int mine = settings->checkpoint == NULL && self->rank == 0, file = -1;
    if (mine) {
        file = mkstemp(path);
        if (file >= 0)
            close(file);
    }
    char *all = epx_tool_alloc((size_t)self->ranks, sizeof path);
    int code = epx_train_status(epx_comm_allgather(self->world, path, all, sizeof path));
    if (code == EPX_TRAIN_OK)
        code = epx_trainer_save(self->trainer, settings->checkpoint != NULL ? settings->checkpoint : all,
                                hash_p);
    if (file >= 0)
        unlink(path);
    free(all);
    return code;
}

static int prepare_checkpoint(epx_ab_rank_t *self, epx_ab_settings_t *settings)
{
    uint64_t hash = 0;
    int code;
    if (settings->restore != NULL) {
        code = epx_trainer_restore(self->trainer, settings->restore, &hash);
    } else {
        code = train_checkpoint(self);
        if (code == EPX_TRAIN_OK)
            code = save_checkpoint(self, &hash);
    }
    if (code == EPX_TRAIN_OK)
        code = end_schedule(self, settings);
    if (code == EPX_TRAIN_OK)
        code = epx_trainer_snapshot(self->trainer, &self->snapshot);
    if (self->rank != 0 || code != EPX_TRAIN_OK)
        return code;
    epx_ab_scope_t *scope = &self->session->result->scope;
    scope->checkpoint_hash = hash;
    scope->checkpoint_step = epx_trainer_steps_done(self->trainer);
    if (settings->restore != NULL)
        snprintf(scope->checkpoint, sizeof scope->checkpoint, "restored from %.300s", settings->restore);
    else
        snprintf(scope->checkpoint, sizeof scope->checkpoint, "trained here without drops%s%.300s",
                 settings->checkpoint != NULL ? ", kept in " : "",
                 settings->checkpoint != NULL ? settings->checkpoint : "");
    scope->machine.peak_flops = epx_trainer_peak(self->trainer);
    snprintf(scope->machine.blas, sizeof scope->machine.blas, "%s", epx_math_gemm_name());
    epx_progress_clear();
    fprintf(stderr, "%s: checkpoint %016" PRIx64 " after %lld steps (%s)\n", epx_tool_name(), hash,
            (long long)scope->checkpoint_step, scope->checkpoint);
    return EPX_TRAIN_OK;
}

/* ---- the runs ------------------------------------------------------------------------------------------------------ */

/* A dense copy of the model on every rank must fit into half of the machine's memory. */
static int oracle_fits(const epx_ab_rank_t *self)
{
    const epx_model_t *model = epx_trainer_model(self->trainer);
    double params = (double)model->params.dense +
                    (double)(model->params.count - model->params.dense) * (double)self->session->settings->ep;
    double machine = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    return params * 2 * sizeof(epx_real_t) * (double)self->ranks < machine / 2;
}

static int do_item(epx_ab_rank_t *self, const epx_ab_item_t *item, const epx_ab_capacities_t *capacities)
{
    const epx_ab_session_t *session = self->session;
    const epx_ab_settings_t *settings = session->settings;
    epx_ab_order_t order = {.arm = item->arm,
                            .part = item->part,
                            .round = item->round,
                            .discard = settings->discard,
                            .steps = settings->steps,
                            .config = item->arm < 0 ? session->reference : settings->arm[item->arm].config,
                            .check_payload = item->arm >= 0 && item->part != EPX_AB_TWIN};
    switch (item->part) {
    case EPX_AB_TWIN:
        order.config = epx_ab_dropless(&order.config);
        order.check_gradients = oracle_fits(self);
        break;
    case EPX_AB_EQUAL_DROPS:
        order.config = epx_ab_scaled(&order.config, capacities->drops_scale[item->arm]);
        break;
    case EPX_AB_EQUAL_MEMORY:
        order.config = epx_ab_scaled(&order.config, capacities->memory_scale[item->arm]);
        break;
    case EPX_AB_REFERENCE:
        order.keep_choices = item->round == 0;
        if (item->round > 0) { /* its first choices are all that later rounds need */
            order.discard = 0;
            order.steps = 1;
        }
        break;
    default: break;
    }
    return epx_ab_do_run(self, &order);
}

static int do_all(epx_ab_rank_t *self)
{
    const epx_ab_settings_t *settings = self->session->settings;
    int32_t arms = settings->arms, pairs = (int32_t)settings->pairs;
    epx_ab_item_t *items = epx_tool_alloc((size_t)(pairs * (3 * arms + 2) + arms + 1), sizeof *items);
    epx_ab_capacities_t capacities;
    int code = EPX_TRAIN_OK;
    int32_t count = epx_ab_schedule_twins(arms, items);
    for (int32_t i = 0; code == EPX_TRAIN_OK && i < count; i++)
        code = do_item(self, &items[i], &capacities);
    if (code == EPX_TRAIN_OK) {
        epx_ab_rule_drops(self);
        code = epx_ab_find_capacities(self, &capacities);
    }
    if (code == EPX_TRAIN_OK)
        count = epx_ab_schedule_rounds(arms, pairs, capacities.drops, capacities.memory, items);
    for (int32_t i = 0; code == EPX_TRAIN_OK && i < count; i++)
        code = do_item(self, &items[i], &capacities);
    free(items);
    return code;
}

static int play(epx_comm_h world, int64_t rank, void *context)
{
    epx_ab_session_t *session = context;
    epx_ab_settings_t *settings = (epx_ab_settings_t *)(uintptr_t)session->settings; /* see end_schedule */
    epx_ab_rank_t self = {.session = session,
                          .world = world,
                          .rank = rank,
                          .ranks = epx_comm_size(world),
                          .group = rank % settings->ep,
                          .replica = rank / settings->ep};
    epx_comm_set_timeout(world, 600000); /* rank 0 computes drops for minutes where models are large */
    int code = epx_trainer_create(&settings->train, world, &self.trainer);
    if (code == EPX_TRAIN_OK)
        code = prepare_checkpoint(&self, settings);
    if (code == EPX_TRAIN_OK)
        code = do_all(&self);
    free(self.choices);
    epx_snapshot_destroy(&self.snapshot);
    epx_trainer_destroy(&self.trainer);
    if (rank == 0)
        epx_progress_clear();
    return code;
}

/* ---- before and after ---------------------------------------------------------------------------------------------- */

/* What opening would say, before minutes of training. */
static int check_arms(const epx_ab_settings_t *settings)
{
    for (int32_t a = 0; a < settings->arms; a++) {
        const epx_model_config_t *model = &settings->train.model;
        epx_group_config_t config = settings->arm[a].config;
        epx_memory_t memory = EPX_MEMORY_INIT;
        config.ranks = (int32_t)settings->ep;
        config.experts = (int32_t)model->experts;
        config.top_k = (int32_t)model->top_k;
        config.width = (int32_t)epx_config_row_width(model);
        config.tokens_max = (int32_t)(settings->train.batch * model->sequence);
        config.virtual_ranks = (int32_t)settings->virtual_ep;
        config.lanes = 1;
        config.batch_in_caller = 1;
        if (epx_group_memory(&config, &memory) != EPX_OK)
            return epx_tool_fail(EPX_EXIT_USAGE, "the arm %s cannot run: %s", settings->arm[a].name,
                                 epx_last_error());
    }
    return EPX_EXIT_OK;
}

/* Fresh, spike, settled or long-sequence, by what the reference saw; result->scope.regime. */
static void name_regime(const epx_ab_settings_t *settings, epx_ab_result_t *result)
{
    epx_ab_scope_t *scope = &result->scope;
    epx_train_config_t preset;
    const epx_ab_run_t *reference = epx_ab_find_run(result, -1, EPX_AB_REFERENCE, 0, 1);
    double load = reference != NULL && reference->steps > 0 ? reference->step[0].load_max_over_mean : 0;
    int64_t fresh = settings->train.warmup > 10 ? settings->train.warmup : 10; /* the rate still rises */
    const char *name = scope->checkpoint_step < fresh ? "fresh" : load >= 3 ? "spike" : "settled";
    int longer = epx_config_preset(settings->preset, &preset) == EPX_TRAIN_OK &&
                 settings->train.model.sequence > preset.model.sequence;
    snprintf(scope->regime, sizeof scope->regime, "%s%s", settings->regime != NULL ? settings->regime : name,
             settings->regime == NULL && longer ? ", long-sequence" : "");
    snprintf(scope->regime_why, sizeof scope->regime_why,
             "%safter %lld steps the busiest expert of any layer has %.1f times the mean load",
             settings->regime != NULL ? "as said by --regime; " : "", (long long)scope->checkpoint_step,
             load);
}

/* Each arm holds the model once; the first stands for all. */
static int check_room(const epx_ab_settings_t *settings)
{
    epx_train_config_t train = settings->train;
    int32_t rank, launched = 1;
    train.group = settings->arm[0].config;
    (void)epx_comm_launched(&rank, &launched);
    int code = epx_need_check(&train, launched);
    return code == EPX_TRAIN_OK ? EPX_EXIT_OK : epx_tool_fail(code, "%s", epx_train_error());
}

int epx_ab_run_session(epx_ab_settings_t *settings, epx_ab_result_t *result, int *is_first_p)
{
    epx_ab_session_t session = {.settings = settings, .result = result, .started_ns = epx_now_ns()};
    epx_group_config_t reference = EPX_GROUP_CONFIG_INIT;
    *is_first_p = 0;
    int code = check_arms(settings);
    if (code != EPX_EXIT_OK)
        return code;
    reference.transport = "ragged";
    reference.capacity_factor = EPX_DROPLESS;
    session.reference = reference;
    session.allocator =
        (epx_allocator_t){.context = &session, .allocate = counted_allocate, .release = counted_release};
    result->arms = settings->arms;
    memcpy(result->arm, settings->arm, sizeof result->arm);
    if (settings->restore == NULL && settings->train_steps > 0)
        settings->train.steps = settings->train_steps;
    code = check_room(settings);
    if (code != EPX_EXIT_OK)
        return code;
    code = epx_ranks_run(settings->ranks, play, &session);
    if (code != EPX_TRAIN_OK)
        return epx_tool_fail(code, "%s", epx_train_error());
    *is_first_p = result->runs > 0;
    if (*is_first_p)
        name_regime(settings, result);
    return EPX_EXIT_OK;
}
