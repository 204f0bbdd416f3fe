/* What all ranks together know of a step. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "trainer.h"

/* What one rank tells the others. */
typedef struct told {
    double loss_sum;
    int64_t step_ns, exchange_ns, experts_ns, attention_ns, gradients_ns;
    int64_t wait_ns, wait_peer, peak_bytes;
} told_t;

#define COUNTS ((int64_t)(sizeof(epx_layer_counts_t) / sizeof(int64_t)))

int64_t epx_trainer_bytes(const epx_trainer_t *trainer)
{
    int64_t exchange = trainer->exchange ? trainer->exchange->peak_bytes : 0;
    return trainer->arena.bytes + trainer->model->arena.bytes + trainer->model->wave_arena.bytes + exchange;
}

static void count_chosen(const epx_trainer_t *trainer, int64_t layer, epx_layer_counts_t *counts)
{
    const epx_layer_t *kept = &trainer->model->layer[layer];
    for (int64_t a = 0; a < trainer->model->tokens * trainer->config->model.top_k; a++) {
        counts->valid += kept->chosen[a] >= 0;
        counts->chance += kept->chosen[a] >= 0 && kept->sent[a] < 0;
    }
}

/* This rank's counts of all layers, and how long it waited for whom. */
static int collect_stats(epx_trainer_t *trainer, told_t *told)
{
    epx_exchange_t *exchange = trainer->exchange;
    int64_t longest = 0;
    told->wait_peer = -1;
    for (int64_t i = 0; i < exchange->layers; i++) {
        epx_plan_stats_t stats;
        epx_layer_counts_t counts = {0};
        int code = exchange->ops->stats(exchange, i, &stats);
        if (code != EPX_TRAIN_OK)
            return code;
        count_chosen(trainer, i, &counts);
        counts.kept = stats.kept;
        counts.spilled = stats.spilled;
        counts.dropped_sender = stats.dropped_sender;
        counts.dropped_receiver = stats.dropped_receiver;
        counts.skipped = stats.skipped - counts.chance;
        counts.sent_bytes = stats.sent_bytes;
        counts.sent_meta_bytes = stats.sent_meta_bytes;
        trainer->layer[i] = counts;
        told->wait_ns += stats.wait_ns;
        if (stats.wait_ns > longest && stats.wait_peer >= 0) {
            longest = stats.wait_ns;
            told->wait_peer = trainer->ranks.replica * trainer->config->ep + stats.wait_peer;
        }
    }
    return EPX_TRAIN_OK;
}

static void add_layers(const epx_trainer_t *trainer, epx_layer_counts_t *total)
{
    *total = (epx_layer_counts_t){0};
    int64_t *sum = (int64_t *)(void *)total;
    for (int64_t i = 0; i < trainer->config->model.layers; i++) {
        const int64_t *layer = (const int64_t *)(const void *)&trainer->layer[i];
        for (int64_t j = 0; j < COUNTS; j++)
            sum[j] += layer[j];
    }
}

static void add_told(const epx_trainer_t *trainer, const told_t *told, epx_metrics_t *metrics)
{
    int64_t size = trainer->ranks.size, longest = 0, step_ns = 0;
    double each = 1e-6 / (double)size, loss = 0;
    metrics->wait_peer = -1;
    for (int64_t r = 0; r < size; r++) {
        loss += told[r].loss_sum;
        step_ns = told[r].step_ns > step_ns ? told[r].step_ns : step_ns;
        metrics->peak_bytes =
            told[r].peak_bytes > metrics->peak_bytes ? told[r].peak_bytes : metrics->peak_bytes;
        metrics->exchange_ms += each * (double)told[r].exchange_ns;
        metrics->experts_ms += each * (double)told[r].experts_ns;
        metrics->attention_ms += each * (double)told[r].attention_ns;
        metrics->gradients_ms += each * (double)told[r].gradients_ns;
        if (told[r].wait_ns > longest) {
            longest = told[r].wait_ns;
            metrics->wait_peer = told[r].wait_peer;
        }
    }
    metrics->tokens = size * trainer->model->tokens;
    metrics->loss = loss / (double)metrics->tokens;
    metrics->wait_ms_max = 1e-6 * (double)longest;
    metrics->step_ms = 1e-6 * (double)step_ns;
    metrics->tokens_per_s = 1e9 * (double)metrics->tokens / (double)step_ns;
}

static void derive(const epx_trainer_t *trainer, epx_metrics_t *metrics)
{
    const epx_layer_counts_t *total = &metrics->total;
    const epx_flops_t *flops = &trainer->flops;
    double valid = total->valid > 0 ? (double)total->valid : 1, peak = trainer->peak_flops;
    metrics->sender_drop_fraction = (double)total->dropped_sender / valid;
    metrics->receiver_drop_fraction = (double)total->dropped_receiver / valid;
    metrics->drop_fraction =
        (double)(total->dropped_sender + total->dropped_receiver + total->chance) / valid;
    metrics->mfu = epx_flops_mfu(flops, metrics->tokens_per_s, peak);
    metrics->mfu_executed =
        epx_flops_mfu_executed(flops, metrics->tokens_per_s, peak, total->kept, total->valid);
    metrics->mfu_causal = epx_flops_mfu_causal(flops, metrics->tokens_per_s, peak);
    metrics->gate_norm = epx_parameters_norm(trainer->model, EPX_CLASS_GATE);
    metrics->router_norm = epx_parameters_norm(trainer->model, EPX_CLASS_ROUTER);
    metrics->host_rss_bytes = epx_host_rss_bytes();
    metrics->transport = trainer->exchange->transport;
    metrics->fabric = trainer->exchange->fabric;
    metrics->load_max_over_mean = epx_balance_load_max_over_mean(trainer->model, &trainer->balancer);
    metrics->layer = trainer->layer;
}

int epx_trainer_report(epx_trainer_t *trainer, const epx_step_times_t *times, epx_metrics_t *metrics)
{
    const epx_model_t *model = trainer->model;
    epx_comm_h world = trainer->ranks.world;
    told_t mine = {.loss_sum = times->loss_sum,
                   .step_ns = times->step_ns,
                   .gradients_ns = times->gradients_ns,
                   .exchange_ns = model->exchange_ns,
                   .experts_ns = model->experts_ns,
                   .attention_ns = model->attention_ns,
                   .peak_bytes = epx_trainer_bytes(trainer)};
    told_t *told = malloc((size_t)trainer->ranks.size * sizeof *told);
    int code =
        told ? collect_stats(trainer, &mine) : epx_train_fail(EPX_TRAIN_FAILED, "no memory for a report");
    if (code == EPX_TRAIN_OK)
        code = epx_train_status(epx_comm_allreduce(world, trainer->layer, model->config.layers * COUNTS,
                                                   EPX_NUMBER_INT64, EPX_SUM));
    if (code == EPX_TRAIN_OK)
        code = epx_train_status(epx_comm_allgather(world, &mine, told, sizeof mine));
    if (code == EPX_TRAIN_OK) {
        add_layers(trainer, &metrics->total);
        add_told(trainer, told, metrics);
        derive(trainer, metrics);
    }
    free(told);
    return code;
}
