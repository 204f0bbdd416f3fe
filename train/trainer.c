/* A trainer's life and its step. SPDX-License-Identifier: Apache-2.0 */
#include "trainer.h"

#include <stdlib.h>
#include <string.h>

#include "bigram.h"
#include "clock.h"
#include "peak.h"

/* ---- life ------------------------------------------------------------------------------------------------------------ */

static int split_ranks(epx_trainer_t *trainer, epx_comm_h world)
{
    const epx_train_config_t *config = trainer->config;
    epx_ranks_t *ranks = &trainer->ranks;
    ranks->world = world;
    ranks->rank = epx_comm_rank(world);
    ranks->size = epx_comm_size(world);
    if (ranks->size != config->ep * config->replicas)
        return epx_train_fail(EPX_TRAIN_USAGE,
                              "--ep %lld times --replicas %lld is not the %lld ranks of this run: make "
                              "them agree",
                              (long long)config->ep, (long long)config->replicas, (long long)ranks->size);
    ranks->replica = ranks->rank / config->ep;
    ranks->group = ranks->rank % config->ep;
    int code = epx_train_status(
        epx_comm_split(world, (int32_t)ranks->replica, (int32_t)ranks->group, &trainer->group_comm));
    if (code == EPX_TRAIN_OK)
        code = epx_train_status(
            epx_comm_split(world, (int32_t)ranks->group, (int32_t)ranks->replica, &trainer->replica_comm));
    return code == EPX_TRAIN_OK ? epx_trainer_failover_begin(trainer) : code;
}

static int open_data(epx_trainer_t *trainer)
{
    const epx_train_config_t *config = trainer->config;
    char path[4096];
    if (!config->data && epx_data_default_path(path, sizeof path) != EPX_TRAIN_OK)
        return EPX_TRAIN_USAGE;
    const char *name = config->data ? config->data : path;
    int code = epx_data_open(name, config->model.sequence, config->validation, &trainer->data);
    if (code == EPX_TRAIN_OK && trainer->data.vocabulary > config->model.vocabulary)
        code = epx_train_fail(EPX_TRAIN_USAGE,
                              "%s has tokens up to %lld and the model knows %lld: give --vocabulary %lld",
                              name, (long long)trainer->data.vocabulary - 1,
                              (long long)config->model.vocabulary, (long long)trainer->data.vocabulary);
    trainer->progress.data_hash = trainer->data.hash;
    return code;
}

static int create_model(epx_trainer_t *trainer)
{
    const epx_train_config_t *config = trainer->config;
    const epx_model_config_t *model = &config->model;
    int64_t first, local = epx_config_local_experts(model->experts, config->ep, trainer->ranks.group, &first);
    int code = epx_model_create(model, config->batch, first, local, &trainer->model);
    if (code != EPX_TRAIN_OK)
        return code;
    trainer->model->aux_loss = config->balance == EPX_BALANCE_AUX ? config->aux_loss : 0;
    trainer->model->z_loss = config->z_loss;
    epx_params_init(&trainer->model->params, config->seed, trainer->model->parameter);
    epx_arena_t *arena = &trainer->arena;
    trainer->optimizer = epx_optimizer_create(trainer->model, arena);
    trainer->balancer = epx_balancer_create(trainer->model, arena);
    trainer->inputs = epx_arena_take(arena, trainer->model->tokens, sizeof *trainer->inputs);
    trainer->targets = epx_arena_take(arena, trainer->model->tokens, sizeof *trainer->targets);
    trainer->layer = epx_arena_take(arena, model->layers, sizeof *trainer->layer);
    return arena->failed ? EPX_TRAIN_FAILED : EPX_TRAIN_OK;
}

int epx_trainer_create(const epx_train_config_t *config, epx_comm_h world, epx_trainer_t **trainer_p)
{
    int code = epx_config_check(config);
    epx_trainer_t *trainer = code == EPX_TRAIN_OK ? calloc(1, sizeof *trainer) : NULL;
    if (!trainer)
        return code != EPX_TRAIN_OK ? code : epx_train_fail(EPX_TRAIN_FAILED, "no memory for a trainer");
    trainer->config = config;
    trainer->progress.seed = config->seed;
    trainer->flops = epx_flops_per_token(&config->model);
    trainer->peak_flops = config->peak_flops;
    code = split_ranks(trainer, world);
    if (code == EPX_TRAIN_OK) {
        code = open_data(trainer);
        if (code == EPX_TRAIN_OK)
            code = create_model(trainer);
        if (code == EPX_TRAIN_OK)
            code = epx_trainer_open_routing(trainer);
        code = epx_train_agree(world, code);
    }
    if (code == EPX_TRAIN_OK && trainer->peak_flops <= 0)
        code = epx_peak_measure(world, &trainer->peak_flops);
    if (code != EPX_TRAIN_OK)
        epx_trainer_destroy(&trainer);
    else
        *trainer_p = trainer;
    return code;
}

void epx_trainer_destroy(epx_trainer_t **trainer_p)
{
    epx_trainer_t *trainer = *trainer_p;
    *trainer_p = NULL;
    if (!trainer)
        return;
    epx_trainer_close_group(trainer);
    epx_trainer_close_routing(trainer);
    epx_arena_free(&trainer->arena);
    epx_model_destroy(&trainer->model);
    epx_data_close(&trainer->data);
    epx_comm_destroy(&trainer->step_comm);
    epx_comm_destroy(&trainer->replica_comm);
    epx_comm_destroy(&trainer->group_comm);
    free(trainer);
}

/* ---- group ----------------------------------------------------------------------------------------------------------- */

/* The rank cannot go on: peers that wait for it are told, so that they do not wait until their time is up. */
static int give_up(epx_trainer_t *trainer, int code)
{
    if (code != EPX_TRAIN_OK && trainer->exchange)
        trainer->exchange->ops->abort(trainer->exchange, epx_train_error());
    return code;
}

int epx_trainer_open_group(epx_trainer_t *trainer, const epx_group_config_t *settings)
{
    const epx_model_config_t *model = &trainer->config->model;
    epx_exchange_shape_t shape = {.layers = model->layers,
                                  .experts = model->experts,
                                  .top_k = model->top_k,
                                  .width = epx_config_row_width(model),
                                  .tokens_max = trainer->model->tokens};
    epx_group_config_t config = *settings;
    if (config.virtual_ranks == 0)
        config.virtual_ranks = (int32_t)trainer->config->virtual_ep;
    epx_trainer_close_group(trainer);
    int recompute = (int)trainer->config->recompute;
    int code = epx_exchange_epx(&shape, &config, recompute, trainer->group_comm, trainer->ranks.world,
                                &trainer->exchange);
    if (code != EPX_TRAIN_OK)
        return code;
    const epx_params_t *params = &trainer->model->params;
    if (trainer->exchange->local_experts != params->local_experts ||
        (params->local_experts > 0 && trainer->exchange->first_expert != params->first_expert))
        code = epx_train_fail(EPX_TRAIN_FAILED, "the group gives this rank other experts than the model has");
    if (code == EPX_TRAIN_OK)
        code = epx_model_attach(trainer->model, trainer->exchange, recompute);
    return give_up(trainer, code);
}

void epx_trainer_close_group(epx_trainer_t *trainer)
{
    if (!trainer->exchange)
        return;
    epx_model_attach(trainer->model, NULL, 0);
    trainer->exchange->ops->destroy(trainer->exchange);
    trainer->exchange = NULL;
}

static int need_group(const epx_trainer_t *trainer)
{
    return trainer->exchange
               ? EPX_TRAIN_OK
               : epx_train_fail(EPX_TRAIN_FAILED, "no group is open: call epx_trainer_open_group first");
}

/* ---- step ------------------------------------------------------------------------------------------------------------ */

/* Number of this rank's first sequence of the next step, counted over the whole run. */
static int64_t first_sequence(const epx_trainer_t *trainer)
{
    int64_t done = trainer->progress.position / trainer->config->model.sequence;
    return done + trainer->ranks.rank * trainer->config->batch;
}

void epx_trainer_read_batch(epx_trainer_t *trainer)
{
    int64_t sequence = trainer->config->model.sequence;
    for (int64_t i = 0; i < trainer->config->batch; i++)
        epx_data_train(&trainer->data, sequence, trainer->progress.seed, first_sequence(trainer) + i,
                       trainer->inputs + i * sequence, trainer->targets + i * sequence);
}

epx_pass_t epx_trainer_pass(epx_trainer_t *trainer)
{
    const epx_train_config_t *config = trainer->config;
    epx_trainer_force(trainer, trainer->progress.step);
    return (epx_pass_t){.sequences = config->batch,
                        .scale = 1 / (epx_real_t)(trainer->ranks.size * trainer->model->tokens),
                        .forced = trainer->forced,
                        .drop = config->drop,
                        .drop_seed = trainer->progress.seed,
                        .first_token = first_sequence(trainer) * config->model.sequence};
}

/* Forward, backward, sum, move. */
static int train_once(epx_trainer_t *trainer, epx_step_times_t *times, epx_metrics_t *metrics)
{
    epx_model_t *model = trainer->model;
    epx_pass_t pass = epx_trainer_pass(trainer);
    int again = 0, code;
    model->exchange_ns = model->experts_ns = model->attention_ns = 0;
    epx_trainer_read_batch(trainer);
    do {
        code = epx_model_forward(model, &pass, trainer->inputs, trainer->targets, &times->loss_sum);
        if (code == EPX_TRAIN_OK)
            code = epx_model_backward(model);
        code = epx_trainer_failover_done(trainer, "step", code, &again);
    } while (again);
    int64_t since = epx_train_clock_ns();
    if (code == EPX_TRAIN_OK)
        code = epx_gradients_sum(model, trainer->ranks.world, trainer->replica_comm);
    if (code == EPX_TRAIN_OK)
        code = epx_gradients_norm(model, trainer->group_comm, &metrics->grad_norm);
    times->gradients_ns = epx_train_clock_ns() - since;
    if (code == EPX_TRAIN_OK)
        code = epx_trainer_record(trainer, trainer->progress.step);
    if (code != EPX_TRAIN_OK)
        return code;
    metrics->rate = epx_optimizer_rate(trainer->config, trainer->progress.step);
    epx_optimizer_step(trainer->config, trainer->progress.step, metrics->grad_norm, &trainer->optimizer,
                       model);
    return epx_balance_update(model, &trainer->balancer, trainer->config->balance,
                              trainer->config->balance_rate, trainer->ranks.world);
}

int epx_trainer_step(epx_trainer_t *trainer, epx_metrics_t *metrics_p)
{
    epx_metrics_t metrics = {.step = trainer->progress.step};
    epx_step_times_t times = {0};
    int code = need_group(trainer);
    if (code != EPX_TRAIN_OK)
        return code;
    int64_t since = epx_train_clock_ns();
    code = train_once(trainer, &times, &metrics);
    times.step_ns = epx_train_clock_ns() - since;
    if (code == EPX_TRAIN_OK)
        code = epx_trainer_report(trainer, &times, &metrics);
    if (code == EPX_TRAIN_OK)
        code = trainer->exchange->ops->step(trainer->exchange);
    if (code != EPX_TRAIN_OK)
        return give_up(trainer, code);
    trainer->progress.step++;
    trainer->progress.position += trainer->ranks.size * trainer->model->tokens;
    *metrics_p = metrics;
    return EPX_TRAIN_OK;
}

/* ---- evaluation ------------------------------------------------------------------------------------------------------ */

/* Sequences to evaluate: as many as asked for, or as there are. */
static int64_t eval_count(const epx_trainer_t *trainer)
{
    int64_t there = epx_data_validation_count(&trainer->data, trainer->config->model.sequence);
    return trainer->config->eval_sequences < there ? trainer->config->eval_sequences : there;
}

int epx_trainer_evaluate(epx_trainer_t *trainer, double *loss_p)
{
    int64_t sequence = trainer->config->model.sequence, batch = trainer->config->batch,
            count = eval_count(trainer);
    int64_t there = epx_data_validation_count(&trainer->data, sequence), round = trainer->ranks.size * batch;
    double sum = 0;
    int code = need_group(trainer);
    for (int64_t from = 0; code == EPX_TRAIN_OK && from < count; from += round) {
        epx_pass_t pass = {0};
        double loss = 0;
        for (int64_t s = from + trainer->ranks.rank * batch; s < count && pass.sequences < batch; s++) {
            int64_t place = pass.sequences++ * sequence;
            epx_data_validation(&trainer->data, sequence, s * there / count, trainer->inputs + place,
                                trainer->targets + place);
        }
        int again = 0;
        do {
            code = epx_model_forward(trainer->model, &pass, trainer->inputs, trainer->targets, &loss);
            code = epx_trainer_failover_done(trainer, "evaluation", code, &again);
        } while (again);
        sum += loss;
    }
    if (code == EPX_TRAIN_OK)
        code =
            epx_train_status(epx_comm_allreduce(trainer->ranks.world, &sum, 1, EPX_NUMBER_DOUBLE, EPX_SUM));
    if (code == EPX_TRAIN_OK)
        *loss_p = sum / (double)(count * sequence);
    if (code == EPX_TRAIN_OK)
        code = trainer->exchange->ops->discard(trainer->exchange);
    return give_up(trainer, code);
}

int epx_trainer_bigram(const epx_trainer_t *trainer, double *loss_p)
{
    return epx_bigram_loss(&trainer->data, trainer->config->model.sequence, eval_count(trainer), loss_p);
}

/* ---- small ones ------------------------------------------------------------------------------------------------------ */

int epx_trainer_group_info(const epx_trainer_t *trainer, epx_group_info_t *info_p)
{
    int code = need_group(trainer);
    return code == EPX_TRAIN_OK ? trainer->exchange->ops->info(trainer->exchange, info_p) : code;
}

void epx_trainer_skip(epx_trainer_t *trainer, int64_t steps)
{
    trainer->progress.position += steps * trainer->ranks.size * trainer->model->tokens;
}

int64_t epx_trainer_steps_done(const epx_trainer_t *trainer) { return trainer->progress.step; }

double epx_trainer_peak(const epx_trainer_t *trainer) { return trainer->peak_flops; }

epx_model_t *epx_trainer_model(epx_trainer_t *trainer) { return trainer->model; }

int epx_trainer_agree(epx_trainer_t *trainer, int64_t *value)
{
    return epx_train_status(epx_comm_allreduce(trainer->ranks.world, value, 1, EPX_NUMBER_INT64, EPX_MAX));
}

int epx_trainer_save(epx_trainer_t *trainer, const char *path, uint64_t *hash_p)
{
    return epx_checkpoint_save(path, &trainer->ranks, trainer->model, &trainer->optimizer, &trainer->progress,
                               hash_p);
}

int epx_trainer_restore(epx_trainer_t *trainer, const char *path, uint64_t *hash_p)
{
    return epx_checkpoint_restore(path, &trainer->ranks, trainer->model, &trainer->optimizer,
                                  &trainer->progress, hash_p);
}
