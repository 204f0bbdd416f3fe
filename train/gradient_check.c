/* The gradients of the open group against a dense model on one rank. SPDX-License-Identifier: Apache-2.0
 *
 * Every rank builds the whole model, takes all ranks' sequences and the experts that the routers chose (so
 * that a choice which rounding has turned does not count as an error), and compares the tensors that it
 * holds. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

typedef struct oracle {
    epx_model_t *model;
    epx_exchange_t *exchange;
    epx_arena_t arena;
    int32_t *inputs, *targets; /* [ranks * batch, sequence] */
    int32_t *chosen;           /* [layers, ranks * tokens, top_k] */
} oracle_t;

static void destroy_oracle(oracle_t *oracle)
{
    epx_model_destroy(&oracle->model);
    if (oracle->exchange)
        oracle->exchange->ops->destroy(oracle->exchange);
    epx_arena_free(&oracle->arena);
}

static int create_oracle(const epx_trainer_t *trainer, oracle_t *oracle)
{
    const epx_model_config_t *config = &trainer->config->model;
    int64_t ranks = trainer->ranks.size, tokens = ranks * trainer->model->tokens;
    epx_exchange_shape_t shape = {.layers = config->layers,
                                  .experts = config->experts,
                                  .top_k = config->top_k,
                                  .width = epx_config_row_width(config),
                                  .tokens_max = tokens};
    oracle->inputs = epx_arena_take(&oracle->arena, tokens, sizeof *oracle->inputs);
    oracle->targets = epx_arena_take(&oracle->arena, tokens, sizeof *oracle->targets);
    oracle->chosen =
        epx_arena_take(&oracle->arena, config->layers * tokens * config->top_k, sizeof *oracle->chosen);
    int code = oracle->arena.failed ? EPX_TRAIN_FAILED : EPX_TRAIN_OK;
    if (code == EPX_TRAIN_OK)
        code = epx_model_create(config, ranks * trainer->config->batch, 0, config->experts, &oracle->model);
    if (code == EPX_TRAIN_OK)
        code = epx_exchange_dense(&shape, &oracle->exchange);
    if (code == EPX_TRAIN_OK)
        code = epx_model_attach(oracle->model, oracle->exchange, 0);
    if (code == EPX_TRAIN_OK) {
        oracle->model->aux_loss = trainer->model->aux_loss;
        oracle->model->z_loss = trainer->model->z_loss;
    }
    return code;
}

/* Collects one expert tensor from the ranks of the group, expert after expert. */
static int gather_experts(epx_trainer_t *trainer, const epx_tensor_t *tensor, epx_real_t *to)
{
    int64_t experts = trainer->config->model.experts, ranks = trainer->config->ep, first;
    int64_t each = tensor->rows * tensor->cols,
            most = epx_config_local_experts(experts, ranks, 0, &first) * each;
    epx_real_t *send = calloc((size_t)(most * (ranks + 1)), sizeof *send);
    if (!send)
        return epx_train_fail(EPX_TRAIN_FAILED, "no memory for all experts on one rank");
    memcpy(send, trainer->model->parameter + tensor->offset, (size_t)tensor->count * sizeof *send);
    int code = epx_train_status(
        epx_comm_allgather(trainer->group_comm, send, send + most, (size_t)most * sizeof *send));
    for (int64_t r = 0; code == EPX_TRAIN_OK && r < ranks; r++) {
        int64_t local = epx_config_local_experts(experts, ranks, r, &first);
        memcpy(to + first * each, send + (r + 1) * most, (size_t)(local * each) * sizeof *send);
    }
    free(send);
    return code;
}

/* Parameters: what all ranks hold has the same places in both models, experts are collected. */
static int fill_parameters(epx_trainer_t *trainer, oracle_t *oracle)
{
    const epx_params_t *params = &trainer->model->params;
    epx_model_t *model = oracle->model;
    const epx_model_config_t *config = &trainer->config->model;
    memcpy(model->parameter, trainer->model->parameter, (size_t)params->dense * sizeof *model->parameter);
    memcpy(model->bias, trainer->model->bias,
           (size_t)(config->layers * config->experts) * sizeof *model->bias);
    for (int64_t i = 0; i < params->tensors; i++) {
        const epx_tensor_t *tensor = &params->tensor[i];
        if (tensor->tensor_class != EPX_CLASS_EXPERT)
            continue;
        epx_real_t *to = epx_params_at(&model->params, model->parameter, tensor->layer, tensor->slot);
        int code = gather_experts(trainer, tensor, to);
        if (code != EPX_TRAIN_OK)
            return code;
    }
    return EPX_TRAIN_OK;
}

/* The batches of all ranks in rank order, and what their routers chose. */
static int fill_batch(epx_trainer_t *trainer, oracle_t *oracle)
{
    epx_comm_h world = trainer->ranks.world;
    int64_t tokens = trainer->model->tokens, layers = trainer->config->model.layers;
    size_t bytes = (size_t)tokens * sizeof(int32_t);
    int code = epx_train_status(epx_comm_allgather(world, trainer->inputs, oracle->inputs, bytes));
    if (code == EPX_TRAIN_OK)
        code = epx_train_status(epx_comm_allgather(world, trainer->targets, oracle->targets, bytes));
    bytes *= (size_t)trainer->config->model.top_k;
    for (int64_t i = 0; code == EPX_TRAIN_OK && i < layers; i++) {
        int32_t *to = oracle->chosen + i * trainer->ranks.size * tokens * trainer->config->model.top_k;
        code = epx_train_status(epx_comm_allgather(world, trainer->model->layer[i].chosen, to, bytes));
    }
    return code;
}

static int run_oracle(epx_trainer_t *trainer, const epx_pass_t *pass, oracle_t *oracle, double *loss)
{
    epx_pass_t all = *pass;
    all.sequences *= trainer->ranks.size;
    all.first_token -= trainer->ranks.rank * trainer->model->tokens;
    all.forced = oracle->chosen;
    int code = epx_model_forward(oracle->model, &all, oracle->inputs, oracle->targets, loss);
    return code == EPX_TRAIN_OK ? epx_model_backward(oracle->model) : code;
}

/* |a - b| / |b| over count values; 1 where b is nothing and a is not. */
static double relative(int64_t count, const epx_real_t *a, const epx_real_t *b)
{
    double apart = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        double difference = (double)a[i] - (double)b[i];
        apart += difference * difference;
        size += (double)b[i] * (double)b[i];
    }
    if (size == 0)
        return apart == 0 ? 0 : 1;
    return sqrt(apart / size);
}

static void compare(const epx_trainer_t *trainer, const oracle_t *oracle, epx_gradient_check_t *check)
{
    const epx_params_t *params = &trainer->model->params;
    for (int64_t i = 0; i < params->tensors; i++) {
        const epx_tensor_t *tensor = &params->tensor[i];
        int64_t each = tensor->rows * tensor->cols;
        int expert = tensor->tensor_class == EPX_CLASS_EXPERT;
        const epx_real_t *ours = trainer->model->gradient + tensor->offset;
        const epx_real_t *theirs =
            epx_params_at(&oracle->model->params, oracle->model->gradient, tensor->layer, tensor->slot);
        theirs += expert ? params->first_expert * each : 0;
        for (int64_t m = 0; m < tensor->matrices; m++, ours += each, theirs += each) {
            double apart = relative(each, ours, theirs);
            if (!(apart <= check->worst)) { /* NaN counts as worst */
                check->worst = apart;
                snprintf(check->tensor, sizeof check->tensor, expert ? "%s.%lld" : "%s", tensor->name,
                         (long long)(params->first_expert + m));
            }
        }
    }
}

/* The worst of all ranks, and their drops together. */
static int join(epx_trainer_t *trainer, epx_gradient_check_t *check)
{
    epx_gradient_check_t *all = calloc((size_t)trainer->ranks.size, sizeof *all);
    if (!all)
        return epx_train_fail(EPX_TRAIN_FAILED, "no memory for comparing ranks");
    int code = epx_train_status(epx_comm_allgather(trainer->ranks.world, check, all, sizeof *check));
    for (int64_t r = 0; code == EPX_TRAIN_OK && r < trainer->ranks.size; r++) {
        int64_t dropped = (r == 0 ? 0 : check->dropped) + all[r].dropped;
        double loss = (r == 0 ? 0 : check->loss) + all[r].loss, oracle_loss = all[r].oracle_loss;
        if (r == 0 || !(all[r].worst <= check->worst))
            *check = all[r];
        check->dropped = dropped;
        check->loss = loss;
        check->oracle_loss = oracle_loss;
    }
    free(all);
    return code;
}

static int own_gradients(epx_trainer_t *trainer, const epx_pass_t *pass, epx_gradient_check_t *check)
{
    epx_model_t *model = trainer->model;
    epx_trainer_read_batch(trainer);
    int code = epx_model_forward(model, pass, trainer->inputs, trainer->targets, &check->loss);
    if (code == EPX_TRAIN_OK)
        code = epx_model_backward(model);
    if (code == EPX_TRAIN_OK)
        code = epx_gradients_sum(model, trainer->ranks.world, trainer->replica_comm);
    for (int64_t i = 0; code == EPX_TRAIN_OK && i < model->config.layers; i++) {
        epx_plan_stats_t stats;
        code = trainer->exchange->ops->stats(trainer->exchange, i, &stats);
        check->dropped += stats.dropped_sender + stats.dropped_receiver;
    }
    return code;
}

int epx_trainer_check_gradients(epx_trainer_t *trainer, epx_gradient_check_t *check_p)
{
    epx_gradient_check_t check = {0};
    oracle_t oracle = {0};
    int code = trainer->exchange ? create_oracle(trainer, &oracle)
                                 : epx_train_fail(EPX_TRAIN_FAILED, "no group is open: open one first");
    epx_pass_t pass = epx_trainer_pass(trainer);
    if (code == EPX_TRAIN_OK)
        code = fill_parameters(trainer, &oracle);
    if (code == EPX_TRAIN_OK)
        code = own_gradients(trainer, &pass, &check);
    if (code == EPX_TRAIN_OK)
        code = fill_batch(trainer, &oracle);
    if (code == EPX_TRAIN_OK)
        code = run_oracle(trainer, &pass, &oracle, &check.oracle_loss);
    if (code == EPX_TRAIN_OK) {
        compare(trainer, &oracle, &check);
        code = join(trainer, &check);
    }
    if (code == EPX_TRAIN_OK)
        code = trainer->exchange->ops->discard(trainer->exchange);
    destroy_oracle(&oracle);
    memset(trainer->model->gradient, 0,
           (size_t)trainer->model->params.count * sizeof *trainer->model->gradient);
    if (code == EPX_TRAIN_OK) {
        check.loss /= (double)(trainer->ranks.size * trainer->model->tokens);
        check.oracle_loss /= (double)(trainer->ranks.size * trainer->model->tokens);
        *check_p = check;
    } else if (trainer->exchange) {
        trainer->exchange->ops->abort(trainer->exchange, epx_train_error());
    }
    return code;
}
