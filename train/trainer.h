/* Inside of a trainer, shared by the files that make it up. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TRAIN_TRAINER_H
#define EPX_TRAIN_TRAINER_H

#include "arena.h"
#include "balance.h"
#include "checkpoint.h"
#include "data.h"
#include "flops.h"
#include "model.h"
#include "optimizer.h"
#include "routing_file.h"
#include "status.h"
#include "train.h"

struct epx_trainer {
    const epx_train_config_t *config;
    epx_ranks_t ranks;
    epx_comm_h group_comm;   /* of the expert-parallel group */
    epx_comm_h replica_comm; /* of the ranks with the same experts */
    epx_comm_h step_comm; /* EPX_ON_HANG=failover: all ranks meet on it when the exchange of a step is done */
    int32_t failovers;    /* so far */
    epx_data_t data;
    epx_model_t *model;
    epx_exchange_t *exchange; /* NULL: no group is open */
    epx_arena_t arena;        /* of all below */
    epx_optimizer_t optimizer;
    epx_balancer_t balancer;
    int32_t *inputs, *targets; /* [batch, sequence] */
    epx_layer_counts_t *layer; /* [layers] */
    int32_t *forced;           /* [layers, tokens, top_k] of the step, or NULL */
    epx_progress_t progress;
    epx_flops_t flops;
    double peak_flops;
    epx_routing_file_t routing;      /* forced routing */
    epx_routing_writer_t *recording; /* on rank 0 */
    char *record;                    /* [layers] ids or counts of this rank, or NULL */
    char *all_records;               /* [ranks] of these, then in the file's order; on every rank */
};

/* Writes the sequences of this rank's share of step `step_ahead` from now, inputs and targets. */
void epx_trainer_read_batch(epx_trainer_t *trainer);

/* The pass of the next training step. (trainer.c) */
epx_pass_t epx_trainer_pass(epx_trainer_t *trainer);

/* Forced and recorded routing. (trainer_routing.c) open: after the model is there. */
int epx_trainer_open_routing(epx_trainer_t *trainer);
int epx_trainer_record(epx_trainer_t *trainer, int64_t step);
int epx_trainer_close_routing(epx_trainer_t *trainer);
void epx_trainer_force(epx_trainer_t *trainer, int64_t step);

/* A step that survives a stall. (trainer_failover.c) begin: where EPX_ON_HANG asks for it; collective. done:
 * after the exchange of a step, or of some sequences of an evaluation (`what`), with its code; *again_p = 1:
 * the group has been recovered with another transport, and that is to be done again from its inputs.
 * Collective. */
int epx_trainer_failover_begin(epx_trainer_t *trainer);
int epx_trainer_failover_done(epx_trainer_t *trainer, const char *what, int code, int *again_p);

/* Fills in what all ranks know of the step together. Collective. (trainer_report.c) */
typedef struct epx_step_times {
    int64_t step_ns, gradients_ns;
    double loss_sum;
} epx_step_times_t;
int epx_trainer_report(epx_trainer_t *trainer, const epx_step_times_t *times, epx_metrics_t *metrics);

#endif
