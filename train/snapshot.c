/* Copies of a trainer in memory. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

struct epx_snapshot {
    epx_progress_t progress;
    epx_real_t *parameter, *mean, *square, *bias;
    epx_arena_t arena;
};

static size_t parameter_bytes(const epx_trainer_t *trainer)
{
    return (size_t)trainer->model->params.count * sizeof(epx_real_t);
}

static size_t bias_bytes(const epx_trainer_t *trainer)
{
    return (size_t)(trainer->config->model.layers * trainer->config->model.experts) * sizeof(epx_real_t);
}

int epx_trainer_snapshot(const epx_trainer_t *trainer, epx_snapshot_t **snapshot_p)
{
    epx_snapshot_t *snapshot = calloc(1, sizeof *snapshot);
    if (!snapshot)
        return epx_train_fail(EPX_TRAIN_FAILED, "no memory for a copy of the model");
    const epx_model_t *model = trainer->model;
    snapshot->parameter = epx_arena_reals(&snapshot->arena, model->params.count);
    snapshot->mean = epx_arena_reals(&snapshot->arena, model->params.count);
    snapshot->square = epx_arena_reals(&snapshot->arena, model->params.count);
    snapshot->bias = epx_arena_reals(&snapshot->arena, model->config.layers * model->config.experts);
    if (snapshot->arena.failed) {
        epx_snapshot_destroy(&snapshot);
        return EPX_TRAIN_FAILED;
    }
    snapshot->progress = trainer->progress;
    memcpy(snapshot->parameter, model->parameter, parameter_bytes(trainer));
    memcpy(snapshot->mean, trainer->optimizer.mean, parameter_bytes(trainer));
    memcpy(snapshot->square, trainer->optimizer.square, parameter_bytes(trainer));
    memcpy(snapshot->bias, model->bias, bias_bytes(trainer));
    *snapshot_p = snapshot;
    return EPX_TRAIN_OK;
}

void epx_trainer_rewind(epx_trainer_t *trainer, const epx_snapshot_t *snapshot)
{
    epx_model_t *model = trainer->model;
    trainer->progress = snapshot->progress;
    memcpy(model->parameter, snapshot->parameter, parameter_bytes(trainer));
    memcpy(trainer->optimizer.mean, snapshot->mean, parameter_bytes(trainer));
    memcpy(trainer->optimizer.square, snapshot->square, parameter_bytes(trainer));
    memcpy(model->bias, snapshot->bias, bias_bytes(trainer));
    memset(model->gradient, 0, parameter_bytes(trainer));
}

void epx_snapshot_destroy(epx_snapshot_t **snapshot_p)
{
    epx_snapshot_t *snapshot = *snapshot_p;
    *snapshot_p = NULL;
    if (!snapshot)
        return;
    epx_arena_free(&snapshot->arena);
    free(snapshot);
}
