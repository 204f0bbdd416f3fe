/* A trainer: one rank's part of a training run. What epx-train and epx-ab are made of.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Calls marked collective are made by all ranks of the world comm in the same order. They return an EPX_TRAIN
 * code; the sentence is in epx_train_error() of the calling thread. After a failed collective call only
 * destroy is left to do: the trainer has told its peers to give up. */
#ifndef EPX_TRAIN_TRAIN_H
#define EPX_TRAIN_TRAIN_H

#include <epx/comm.h>

#include "config.h"
#include "fail.h"
#include "metrics.h"

typedef struct epx_trainer epx_trainer_t;

/* A rank of config->ep * config->replicas, which must be the size of `world`. Consecutive ranks form an
 * expert-parallel group. config and its strings must outlive the trainer; world too. Initial parameters are
 * set, config->restore is not looked at, no group is open. Collective. */
int epx_trainer_create(const epx_train_config_t *config, epx_comm_h world, epx_trainer_t **trainer_p);

/* Closes the group too. Clears the handle; NULL is fine. Not collective. */
void epx_trainer_destroy(epx_trainer_t **trainer_p);

/* Opens the expert-parallel group with these settings (transport and what belongs to it; the shape comes from
 * the model, virtual_ranks from config->virtual_ep where it is 0), after closing the one before. Parameters,
 * optimizer, position and biases stay. Collective. */
int epx_trainer_open_group(epx_trainer_t *trainer, const epx_group_config_t *settings);

/* Closes the group and frees what depends on it. Not collective. */
void epx_trainer_close_group(epx_trainer_t *trainer);

/* What the open group became. Not collective. */
int epx_trainer_group_info(const epx_trainer_t *trainer, epx_group_info_t *info_p);

/* Bytes of this rank: model, optimizer, activations, and the open group. Not collective. */
int64_t epx_trainer_bytes(const epx_trainer_t *trainer);

/* Moves on in the text by as much as `steps` steps of all ranks read, without training. Not collective. */
void epx_trainer_skip(epx_trainer_t *trainer, int64_t steps);

/* One training step. metrics_p, on every rank the same except times: filled, evaluated = 0. Collective. */
int epx_trainer_step(epx_trainer_t *trainer, epx_metrics_t *metrics_p);

/* Mean loss over config->eval_sequences validation sequences. Collective. */
int epx_trainer_evaluate(epx_trainer_t *trainer, double *loss_p);

/* Loss of a bigram model on the same sequences (bigram.h). Not collective. */
int epx_trainer_bigram(const epx_trainer_t *trainer, double *loss_p);

/* Steps done, those before a restored checkpoint included. */
int64_t epx_trainer_steps_done(const epx_trainer_t *trainer);

/* The peak that MFU is measured against, of all devices together: the configuration's, or measured at
 * creation. */
double epx_trainer_peak(const epx_trainer_t *trainer);

/* Digest of the routers' choices of the last step, over layer, rank and expert; equal on all ranks, and equal
 * between runs that chose alike. Collective. */
int epx_trainer_routing_digest(epx_trainer_t *trainer, uint64_t *digest_p);

/* The largest of all ranks' values; for agreeing on signals. Collective. */
int epx_trainer_agree(epx_trainer_t *trainer, int64_t *value);

/* Checkpoints, see checkpoint.h. hash_p: 64 bits over the whole file. After a failed save, and only that, the
 * trainer can go on. Collective. */
int epx_trainer_save(epx_trainer_t *trainer, const char *path, uint64_t *hash_p);
int epx_trainer_restore(epx_trainer_t *trainer, const char *path, uint64_t *hash_p);

/* A copy in memory of all that a checkpoint holds of this rank. Not collective. Free with
 * epx_snapshot_destroy. */
typedef struct epx_snapshot epx_snapshot_t;
int epx_trainer_snapshot(const epx_trainer_t *trainer, epx_snapshot_t **snapshot_p);
void epx_trainer_rewind(epx_trainer_t *trainer, const epx_snapshot_t *snapshot);
void epx_snapshot_destroy(epx_snapshot_t **snapshot_p);

/* The open group's gradients against those of a dense fp32 model on one rank, on the batch of the next step:
 * the worst relative error over tensors, each expert's on its own, and that tensor's name. Parameters and
 * position stay as they are. dropped_p: assignments dropped, which the oracle does not drop, so that only 0
 * makes the error meaningful. Takes memory for all experts on every rank. Collective. */
typedef struct epx_gradient_check {
    double worst;
    char tensor[64];
    int64_t dropped;
    double loss, oracle_loss;
} epx_gradient_check_t;
int epx_trainer_check_gradients(epx_trainer_t *trainer, epx_gradient_check_t *check_p);

/* The parts of a trainer, for tests. */
struct epx_model *epx_trainer_model(epx_trainer_t *trainer);

/* ---- ranks.c ------------------------------------------------------------------------------------------------------- */

/* Runs `run(comm, rank, context)` for each of `ranks` ranks, as threads of this process, or, where a launcher
 * has started several processes, once here for this process. A rank that fails makes the others give up.
 * Returns the code of the rank that failed by itself, its sentence in epx_train_error(). */
int epx_ranks_run(int64_t ranks, int (*run)(epx_comm_h comm, int64_t rank, void *context), void *context);

#endif
