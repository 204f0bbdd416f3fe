/* SPDX-License-Identifier: Apache-2.0 */
#include "train_runs.h"
#include "support/folder.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char folder[FOLDER_BYTES];

static void remove_folder(void)
{
    if (folder_remove(folder) != 0)
        fprintf(stderr, "%s stays\n", folder);
}

const char *run_path(const char *name)
{
    static char path[4][128];
    static int next;
    char *to = path[next++ % 4];
    if (!folder[0]) {
        folder_make(folder, "/tmp");
        atexit(remove_folder);
    }
    snprintf(to, sizeof path[0], "%s/%s", folder, name);
    return to;
}

epx_model_config_t small_model(int64_t top_k, int64_t latent)
{
    return (epx_model_config_t){.layers = 2,
                                .width = 24,
                                .vocabulary = 256,
                                .sequence = 20,
                                .heads = 4,
                                .head_width = 6,
                                .kv_heads = 2,
                                .full_kv_heads = 1,
                                .window = 7,
                                .full_every = 2,
                                .gate = 1,
                                .experts = 7,
                                .top_k = top_k,
                                .expert_width = 10,
                                .latent = latent,
                                .shared = 2,
                                .shared_width = 6};
}

run_t run_small(const char *transport, int64_t ep, int64_t replicas, int64_t batch)
{
    run_t run = {.steps = 6};
    cr_assert_eq(epx_config_preset("tiny", &run.config), 0);
    run.config.model = small_model(3, 9);
    run.config.batch = batch;
    run.config.steps = 10;
    run.config.warmup = 1;
    run.config.ep = ep;
    run.config.replicas = replicas;
    run.config.peak_flops = 1e9;
    run.config.eval_sequences = 5;
    run.config.group.transport = transport;
    return run;
}

static int run_rank(epx_comm_h comm, int64_t rank, void *context)
{
    run_t *run = context;
    const epx_train_config_t *config = &run->config;
    epx_trainer_t *trainer = NULL;
    uint64_t hash = 0, digest = 0;
    double validation = 0;
    int code = epx_trainer_create(config, comm, &trainer);
    if (code == EPX_TRAIN_OK)
        code = epx_trainer_open_group(trainer, &config->group);
    if (code == EPX_TRAIN_OK && config->restore)
        code = epx_trainer_restore(trainer, config->restore, &hash);
    for (int64_t i = 0; code == EPX_TRAIN_OK && i < run->steps; i++) {
        epx_metrics_t metrics;
        code = epx_trainer_step(trainer, &metrics);
        if (code == EPX_TRAIN_OK && rank == 0)
            run->step[i] = metrics;
    }
    if (code == EPX_TRAIN_OK && run->steps > 0)
        code = epx_trainer_routing_digest(trainer, &digest);
    if (code == EPX_TRAIN_OK)
        code = epx_trainer_evaluate(trainer, &validation);
    if (code == EPX_TRAIN_OK && config->checkpoint)
        code = epx_trainer_save(trainer, config->checkpoint, &hash);
    if (rank == 0) {
        run->digest = digest;
        run->validation = validation;
        run->hash = hash;
    }
    epx_trainer_destroy(&trainer);
    return code;
}

int run_go(run_t *run) { return epx_ranks_run(run->config.ep * run->config.replicas, run_rank, run); }

void run_well(run_t *run) { cr_assert_eq(run_go(run), EPX_TRAIN_OK, "%s", epx_train_error()); }
