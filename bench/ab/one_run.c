/* One run of one arm: open, restore, check, step, check, close. SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/ab/inject.h"
#include "bench/ab/machine.h"
#include "bench/ab/rank.h"
#include "tools/common/program.h"
#include "tools/common/terminal.h"
#include "train/fail.h"
#include "train/hash.h"

/* What a run collects on its way; meters are read on rank 0 only. */
typedef struct progress {
    epx_ab_run_t *run; /* NULL on other ranks */
    const epx_ab_order_t *order;
    double *clock; /* [steps] */
    int32_t clocks;
    epx_ab_cpu_time_t cpu;
    int64_t throttles, allocations;
    int64_t group_bytes; /* this rank's group counter when the window began */
    int64_t window_sent; /* of the plans, all ranks, in the window */
} progress_t;

/* ---- digests ------------------------------------------------------------------------------------------------------- */

static int join_hashes(epx_ab_rank_t *self, uint64_t mine, uint64_t *all_p)
{
    uint64_t *all = epx_tool_alloc((size_t)self->ranks, sizeof *all);
    int code = epx_train_status(epx_comm_allgather(self->world, &mine, all, sizeof mine));
    *all_p = epx_hash(EPX_HASH_INIT, all, (size_t)self->ranks * sizeof *all);
    free(all);
    return code;
}

/* Parameters and the routers' biases of all ranks. */
static int hash_weights(epx_ab_rank_t *self, uint64_t *hash_p)
{
    const epx_model_t *model = epx_trainer_model(self->trainer);
    size_t biases = (size_t)(model->config.layers * model->config.experts);
    uint64_t mine =
        epx_hash(EPX_HASH_INIT, model->parameter, (size_t)model->params.count * sizeof *model->parameter);
    mine = epx_hash(mine, model->bias, biases * sizeof *model->bias);
    return join_hashes(self, mine, hash_p);
}

/* The first step's choices: a digest of layer 0 token by token, and how many chose each expert in each layer.
 */
static int look_at_choices(epx_ab_rank_t *self, progress_t *progress)
{
    const epx_model_t *model = epx_trainer_model(self->trainer);
    int64_t layers = model->config.layers, experts = model->config.experts;
    size_t mine_bytes = (size_t)(layers * experts) * sizeof(int64_t);
    int64_t *mine = epx_tool_alloc(1, mine_bytes), *all = epx_tool_alloc((size_t)self->ranks, mine_bytes);
    uint64_t hash = 0;
    for (int64_t i = 0; i < layers; i++)
        memcpy(mine + i * experts, model->layer[i].load, (size_t)experts * sizeof *mine);
    int code = epx_train_status(epx_comm_allgather(self->world, mine, all, mine_bytes));
    if (code == EPX_TRAIN_OK)
        code = join_hashes(self,
                           epx_hash(EPX_HASH_INIT, model->layer[0].chosen,
                                    (size_t)(model->tokens * model->config.top_k) * sizeof(int32_t)),
                           &hash);
    if (code == EPX_TRAIN_OK && progress->run != NULL) {
        progress->run->first_choices = hash;
        progress->run->places = (int32_t)(self->ranks * layers * experts);
        progress->run->loads = all;
        all = NULL;
    }
    free(all);
    free(mine);
    return code;
}

enum { CHOICE_BYTES_MOST = 1 << 30 };

/* Keeps who chose what, on rank 0, as [layers][ranks, tokens, top_k]; as many layers as fit in a GiB. */
static int keep_choices(epx_ab_rank_t *self)
{
    const epx_model_t *model = epx_trainer_model(self->trainer);
    int64_t each = model->tokens * model->config.top_k, layers = model->config.layers;
    int64_t layer_bytes = self->ranks * each * (int64_t)sizeof(int32_t);
    layers = layers * layer_bytes > CHOICE_BYTES_MOST ? CHOICE_BYTES_MOST / layer_bytes : layers;
    layers = layers < 1 ? 1 : layers;
    int32_t *all = epx_tool_alloc((size_t)layers, (size_t)layer_bytes);
    int code = EPX_TRAIN_OK;
    for (int64_t i = 0; code == EPX_TRAIN_OK && i < layers; i++)
        code = epx_train_status(epx_comm_allgather(self->world, model->layer[i].chosen,
                                                   all + i * self->ranks * each, (size_t)each * sizeof *all));
    free(self->choices);
    self->choices = NULL;
    self->choice_layers = layers;
    if (self->rank == 0)
        self->choices = all;
    else
        free(all);
    return code;
}

/* ---- a step -------------------------------------------------------------------------------------------------------- */

/* Bytes of all ranks in this step, sent and received. */
static int count_bytes(epx_ab_rank_t *self, int64_t *bytes)
{
    epx_exchange_t *exchange = epx_trainer_model(self->trainer)->exchange;
    int code = EPX_TRAIN_OK;
    bytes[0] = bytes[1] = 0;
    for (int64_t i = 0; code == EPX_TRAIN_OK && i < exchange->layers; i++) {
        epx_plan_stats_t stats;
        code = exchange->ops->stats(exchange, i, &stats);
        bytes[0] += stats.sent_bytes;
        bytes[1] += stats.received_bytes;
    }
    return code == EPX_TRAIN_OK ? exchange->ops->sum(exchange, bytes, 2) : code;
}

static epx_ab_counts_t counts_of(const epx_layer_counts_t *layer)
{
    return (epx_ab_counts_t){.valid = layer->valid,
                             .chance = layer->chance,
                             .kept = layer->kept,
                             .spilled = layer->spilled,
                             .dropped_sender = layer->dropped_sender,
                             .dropped_receiver = layer->dropped_receiver};
}

/* What the library kept and dropped must be what the routers chose. */
static void add_up(epx_ab_run_t *run, const epx_metrics_t *metrics)
{
    if (strcmp(run->accounting, "-") == 0)
        run->accounting[0] = '\0';
    for (int32_t i = 0; i < run->layers && run->accounting[0] == '\0'; i++) {
        const epx_layer_counts_t *l = &metrics->layer[i];
        int64_t sum = l->kept + l->dropped_sender + l->dropped_receiver;
        if (l->valid - l->chance != sum || l->skipped != 0)
            snprintf(run->accounting, sizeof run->accounting,
                     "step %" PRId64 ", layer %d: %" PRId64 " routed, but %" PRId64 " kept + %" PRId64
                     " + %" PRId64 " dropped%s",
                     metrics->step, i, l->valid - l->chance, l->kept, l->dropped_sender, l->dropped_receiver,
                     l->skipped != 0 ? ", and some skipped" : "");
    }
}

static void name_path(char *name, const char *now)
{
    if (name[0] == '\0')
        snprintf(name, EPX_AB_NAME, "%s", now);
    else if (strcmp(name, now) != 0)
        snprintf(name, EPX_AB_NAME, "mixed");
}

static void record_step(progress_t *progress, const epx_metrics_t *m, const int64_t *bytes, int discarded)
{
    epx_ab_run_t *run = progress->run;
    epx_ab_step_t *step = &run->step[run->steps++];
    *step = (epx_ab_step_t){.step = m->step,
                            .discarded = discarded,
                            .loss = m->loss,
                            .tokens = (double)m->tokens,
                            .step_ms = m->step_ms,
                            .mfu = m->mfu,
                            .mfu_executed = m->mfu_executed,
                            .exposed_ms = m->exchange_ms,
                            .experts_ms = m->experts_ms,
                            .attention_ms = m->attention_ms,
                            .gradients_ms = m->gradients_ms,
                            .wait_ms_max = m->wait_ms_max,
                            .peak_bytes = m->peak_bytes,
                            .sent_bytes = bytes[0],
                            .received_bytes = bytes[1],
                            .load_max_over_mean = m->load_max_over_mean,
                            .count = counts_of(&m->total)};
    name_path(run->transport, m->transport);
    name_path(run->fabric, m->fabric);
    add_up(run, m);
    if (run->steps == 1)
        run->first_layer = counts_of(&m->layer[0]);
    for (int32_t i = 0; i < run->layers && !discarded; i++) {
        epx_ab_counts_t layer = counts_of(&m->layer[i]);
        epx_ab_add_counts(&run->layer[i], &layer);
    }
}

/* Fewer readings have no median worth comparing. */
enum { CLOCKS_LEAST = 5 };

/* ---- the window ---------------------------------------------------------------------------------------------------- */

static int64_t allocations_now(const epx_ab_rank_t *self) { return atomic_load(&self->session->allocations); }

static int group_bytes_now(epx_ab_rank_t *self, int64_t *bytes)
{
    epx_group_info_t info = EPX_GROUP_INFO_INIT;
    int code = epx_trainer_group_info(self->trainer, &info);
    *bytes = info.exchange_bytes_remote;
    return code;
}

static int open_window(epx_ab_rank_t *self, progress_t *progress)
{
    int code = group_bytes_now(self, &progress->group_bytes);
    if (code == EPX_TRAIN_OK)
        code = epx_train_status(epx_comm_barrier(self->world));
    if (progress->run == NULL)
        return code;
    progress->allocations = allocations_now(self);
    progress->throttles = epx_ab_throttles_now();
    progress->cpu = epx_ab_cpu_time_now();
    return code;
}

static int close_window(epx_ab_rank_t *self, progress_t *progress)
{
    int64_t bytes = 0;
    epx_ab_run_t *run = progress->run;
    int code = group_bytes_now(self, &bytes);
    bytes -= progress->group_bytes;
    if (code == EPX_TRAIN_OK)
        code = epx_train_status(epx_comm_allreduce(self->world, &bytes, 1, EPX_NUMBER_INT64, EPX_SUM));
    if (run == NULL || code != EPX_TRAIN_OK)
        return code;
    epx_ab_cpu_time_t cpu = epx_ab_cpu_time_now();
    int64_t throttles = epx_ab_throttles_now();
    run->allocations = allocations_now(self) - progress->allocations;
    run->throttles = throttles < 0 ? -1 : throttles - progress->throttles;
    run->others_cpu = epx_ab_others_share(&progress->cpu, &cpu);
    if (progress->clocks >= CLOCKS_LEAST ||
        run->arm < 0) /* the reference's later runs are short, and only a measure */
        run->clock_mhz =
            epx_ab_inject_clock(progress->order, epx_ab_median(progress->clock, progress->clocks));
    run->group_bytes = bytes;
    run->plan_bytes = progress->window_sent;
    return EPX_TRAIN_OK;
}

static void show(const epx_ab_rank_t *self, const epx_ab_order_t *order, int64_t step, const epx_metrics_t *m)
{
    const epx_ab_settings_t *settings = self->session->settings;
    if (self->rank == 0)
        epx_progress(
            "round %d/%lld  %s (%s)  step %lld/%lld  loss %.3f  %.0f ms  %.0f s so far", order->round + 1,
            (long long)settings->pairs, order->arm < 0 ? "reference" : settings->arm[order->arm].name,
            epx_ab_part_name(order->part), (long long)step + 1, (long long)(order->discard + order->steps),
            m->loss, m->step_ms, 1e-9 * (double)(epx_now_ns() - self->session->started_ns));
}

static int step_once(epx_ab_rank_t *self, progress_t *progress, int64_t s)
{
    const epx_ab_order_t *order = progress->order;
    epx_metrics_t metrics;
    int64_t bytes[2];
    int discarded = s < order->discard;
    epx_ab_inject_moment(self, order, s == 0 ? EPX_AB_FIRST_STEP : EPX_AB_LATER_STEP);
    int code = epx_trainer_step(self->trainer, &metrics);
    if (code == EPX_TRAIN_OK)
        code = count_bytes(self, bytes);
    if (code != EPX_TRAIN_OK)
        return code;
    if (!discarded)
        progress->window_sent += bytes[0];
    if (progress->run != NULL && !epx_ab_inject_loses(order, s))
        record_step(progress, &metrics, bytes, discarded);
    if (progress->run != NULL && !discarded) {
        double clock = epx_ab_clock_now((int32_t)self->ranks);
        if (!isnan(clock))
            progress->clock[progress->clocks++] = clock;
    }
    show(self, order, s, &metrics);
    if (s == 0)
        code = look_at_choices(self, progress);
    if (s == 0 && code == EPX_TRAIN_OK && order->keep_choices)
        code = keep_choices(self);
    return code;
}

/* ---- the run ------------------------------------------------------------------------------------------------------- */

static int check_payload(epx_ab_rank_t *self, const progress_t *progress, const char *when)
{
    char wrong[EPX_AB_TEXT];
    epx_ab_run_t *run = progress->run;
    if (!progress->order->check_payload)
        return EPX_TRAIN_OK;
    epx_ab_inject_moment(self, progress->order, EPX_AB_IN_CHECK);
    int code = epx_ab_check_payload(self, wrong);
    if (run == NULL || code != EPX_TRAIN_OK)
        return code;
    if (strcmp(run->payload, "-") == 0)
        run->payload[0] = '\0';
    if (wrong[0] != '\0' && run->payload[0] == '\0')
        snprintf(run->payload, sizeof run->payload, "run %d, %s: %.340s", run->order + 1, when, wrong);
    return EPX_TRAIN_OK;
}

static int check_gradients(epx_ab_rank_t *self, const progress_t *progress)
{
    const epx_ab_order_t *order = progress->order;
    epx_gradient_check_t seen;
    if (!order->check_gradients)
        return EPX_TRAIN_OK;
    epx_ab_inject_moment(self, order, EPX_AB_IN_GRADIENTS);
    int code = epx_trainer_check_gradients(self->trainer, &seen);
    if (code == EPX_TRAIN_OK && progress->run != NULL) {
        epx_ab_gradients_t *to = &self->session->result->arm[order->arm].gradients;
        *to = (epx_ab_gradients_t){.checked = 1,
                                   .worst = seen.worst,
                                   .dropped = seen.dropped,
                                   .loss = seen.loss,
                                   .oracle_loss = seen.oracle_loss};
        snprintf(to->tensor, sizeof to->tensor, "%s", seen.tensor);
    }
    return code;
}

static int steps_of(epx_ab_rank_t *self, progress_t *progress)
{
    const epx_ab_order_t *order = progress->order;
    int code = check_payload(self, progress, "before timing");
    if (code == EPX_TRAIN_OK)
        code = check_gradients(self, progress);
    for (int64_t s = 0; code == EPX_TRAIN_OK && s < order->discard + order->steps; s++) {
        if (s == order->discard)
            code = open_window(self, progress);
        if (code == EPX_TRAIN_OK)
            code = step_once(self, progress, s);
    }
    if (code == EPX_TRAIN_OK)
        code = close_window(self, progress);
    if (code == EPX_TRAIN_OK)
        code = check_payload(self, progress, "after timing");
    return code;
}

static epx_ab_run_t *begin_run(epx_ab_rank_t *self, const epx_ab_order_t *order)
{
    if (self->rank != 0)
        return NULL;
    int32_t steps = (int32_t)(order->discard + order->steps);
    epx_ab_run_t *run = epx_ab_add_run(self->session->result, order->arm, order->part, order->round, steps);
    run->steps_expected = steps;
    run->layers = (int32_t)self->session->settings->train.model.layers;
    run->layer = epx_tool_alloc((size_t)run->layers, sizeof *run->layer);
    return run;
}

int epx_ab_do_run(epx_ab_rank_t *self, const epx_ab_order_t *wanted)
{
    epx_ab_session_t *session = self->session;
    epx_ab_order_t order = *wanted;
    epx_ab_inject_order(session, &order);
    order.config.allocator = &session->allocator;
    progress_t progress = {.run = begin_run(self, &order), .order = &order};
    progress.clock = epx_tool_alloc((size_t)(order.steps + 1), sizeof *progress.clock);
    uint64_t weights = 0;

    epx_trainer_rewind(self->trainer, self->snapshot);
    epx_trainer_skip(self->trainer, order.round * (session->settings->discard + session->settings->steps));
    epx_ab_inject_weights(self, &order);
    int code = hash_weights(self, &weights);
    if (progress.run != NULL)
        progress.run->weights = weights;
    epx_ab_inject_routing(self, &order);
    if (code == EPX_TRAIN_OK)
        code = epx_trainer_open_group(self->trainer, &order.config);
    if (code == EPX_TRAIN_OK)
        code = epx_ab_inject_hooks(self, &order);
    if (code == EPX_TRAIN_OK)
        code = steps_of(self, &progress);
    epx_exchange_t *exchange = epx_trainer_model(self->trainer)->exchange;
    if (code != EPX_TRAIN_OK && exchange != NULL)
        exchange->ops->abort(exchange, epx_train_error());
    else
        epx_trainer_close_group(self->trainer);
    free(progress.clock);
    return code;
}
