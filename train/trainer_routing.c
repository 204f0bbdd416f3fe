/* Forced routing, recorded routing, and the digest of a step's choices. SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "hash.h"
#include "trainer.h"

static int mismatch(const char *path, const char *what, int64_t theirs, int64_t ours)
{
    return epx_train_fail(EPX_TRAIN_USAGE,
                          "the routing %s is of %lld %s and this run has %lld: make them agree", path,
                          (long long)theirs, what, (long long)ours);
}

/* A file of one layer serves every layer; a file with fewer tokens leaves the others without experts. */
static int check_routing(const epx_trainer_t *trainer)
{
    const epx_routing_shape_t *shape = &trainer->routing.shape;
    const epx_model_config_t *model = &trainer->config->model;
    const char *path = trainer->config->routing;
    if (shape->kind != EPX_ROUTING_IDS)
        return epx_train_fail(EPX_TRAIN_USAGE,
                              "the routing %s has only counts: give one that was recorded with ids", path);
    if (shape->ranks != trainer->ranks.size)
        return mismatch(path, "ranks", shape->ranks, trainer->ranks.size);
    if (shape->experts != model->experts)
        return mismatch(path, "experts", shape->experts, model->experts);
    if (shape->top_k != model->top_k)
        return mismatch(path, "choices per token", shape->top_k, model->top_k);
    if (shape->layers != model->layers && shape->layers != 1)
        return mismatch(path, "layers", shape->layers, model->layers);
    if (shape->tokens > trainer->model->tokens)
        return mismatch(path, "tokens per rank", shape->tokens, trainer->model->tokens);
    return EPX_TRAIN_OK;
}

static epx_routing_shape_t record_shape(const epx_trainer_t *trainer)
{
    const epx_model_config_t *model = &trainer->config->model;
    int counts = trainer->config->record_counts != 0;
    return (epx_routing_shape_t){.kind = counts ? EPX_ROUTING_COUNTS : EPX_ROUTING_IDS,
                                 .ranks = (int32_t)trainer->ranks.size,
                                 .group = (int32_t)trainer->config->ep,
                                 .experts = (int32_t)model->experts,
                                 .top_k = (int32_t)model->top_k,
                                 .layers = (int32_t)model->layers,
                                 .tokens = counts ? 0 : (int32_t)trainer->model->tokens};
}

/* What one layer of one rank takes in the file: ids, or counts. */
static size_t record_bytes(const epx_trainer_t *trainer)
{
    const epx_model_config_t *model = &trainer->config->model;
    if (trainer->config->record_counts)
        return (size_t)model->experts * sizeof(int64_t);
    return (size_t)(trainer->model->tokens * model->top_k) * sizeof(int32_t);
}

int epx_trainer_open_routing(epx_trainer_t *trainer)
{
    const epx_train_config_t *config = trainer->config;
    int64_t places = config->model.layers * trainer->model->tokens * config->model.top_k;
    int code = EPX_TRAIN_OK;
    if (config->routing) {
        code = epx_routing_read(config->routing, &trainer->routing);
        if (code == EPX_TRAIN_OK)
            code = check_routing(trainer);
        trainer->forced = epx_arena_take(&trainer->arena, places, sizeof *trainer->forced);
    }
    if (config->record_routing) {
        epx_routing_shape_t shape = record_shape(trainer);
        size_t each = record_bytes(trainer);
        trainer->record = epx_arena_take(&trainer->arena, config->model.layers, each);
        trainer->all_records =
            epx_arena_take(&trainer->arena, 2 * config->model.layers * trainer->ranks.size, each);
        if (trainer->ranks.rank == 0)
            code = epx_routing_writer_open(config->record_routing, &shape, &trainer->recording);
    }
    if (code == EPX_TRAIN_OK && trainer->arena.failed)
        code = EPX_TRAIN_FAILED;
    return code;
}

int epx_trainer_close_routing(epx_trainer_t *trainer)
{
    epx_routing_free(&trainer->routing);
    return epx_routing_writer_close(&trainer->recording);
}

void epx_trainer_force(epx_trainer_t *trainer, int64_t step)
{
    if (!trainer->forced)
        return;
    const epx_routing_file_t *file = &trainer->routing;
    const epx_routing_shape_t *shape = &file->shape;
    int64_t layers = trainer->config->model.layers, each = trainer->model->tokens * shape->top_k;
    int64_t theirs = (int64_t)shape->tokens * shape->top_k;
    memset(trainer->forced, 0xff, (size_t)(layers * each) * sizeof *trainer->forced); /* -1 */
    for (int64_t i = 0; i < layers; i++) {
        int64_t row =
            (step % file->steps * shape->layers + i % shape->layers) * shape->ranks + trainer->ranks.rank;
        memcpy(trainer->forced + i * each, file->ids + row * theirs,
               (size_t)theirs * sizeof *trainer->forced);
    }
}

/* From [ranks][layers, ...] to [layers][ranks, ...]. */
static void order_records(const epx_trainer_t *trainer, size_t each, char *to)
{
    size_t layers = (size_t)trainer->config->model.layers, ranks = (size_t)trainer->ranks.size;
    for (size_t r = 0; r < ranks; r++)
        for (size_t i = 0; i < layers; i++)
            memcpy(to + (i * ranks + r) * each, trainer->all_records + (r * layers + i) * each, each);
}

/* The first step that is not recorded any more. */
static int64_t record_end(const epx_train_config_t *config)
{
    return config->record_to > 0 ? config->record_to : config->steps;
}

int epx_trainer_record(epx_trainer_t *trainer, int64_t step)
{
    const epx_train_config_t *config = trainer->config;
    size_t layers = (size_t)config->model.layers, each = record_bytes(trainer);
    if (!trainer->record || step < config->record_from || step >= record_end(config))
        return EPX_TRAIN_OK;
    for (size_t i = 0; i < layers; i++) {
        const epx_layer_t *layer = &trainer->model->layer[i];
        memcpy(trainer->record + i * each,
               config->record_counts ? (const void *)layer->load : (const void *)layer->chosen, each);
    }
    int code = epx_train_status(
        epx_comm_allgather(trainer->ranks.world, trainer->record, trainer->all_records, layers * each));
    if (code != EPX_TRAIN_OK || !trainer->recording)
        return code;
    char *ordered = trainer->all_records + layers * each * (size_t)trainer->ranks.size;
    order_records(trainer, each, ordered);
    code = epx_routing_writer_add(trainer->recording, ordered);
    if (code == EPX_TRAIN_OK && step + 1 == record_end(config))
        code = epx_routing_writer_close(&trainer->recording);
    return code;
}

int epx_trainer_routing_digest(epx_trainer_t *trainer, uint64_t *digest_p)
{
    int64_t layers = trainer->config->model.layers, experts = trainer->config->model.experts;
    size_t bytes = (size_t)(layers * experts) * sizeof(int64_t), all = bytes * (size_t)trainer->ranks.size;
    int64_t *loads = malloc(bytes + all);
    if (!loads)
        return epx_train_fail(EPX_TRAIN_FAILED, "no memory for a digest");
    for (int64_t i = 0; i < layers; i++)
        memcpy(loads + i * experts, trainer->model->layer[i].load, (size_t)experts * sizeof *loads);
    int code =
        epx_train_status(epx_comm_allgather(trainer->ranks.world, loads, loads + layers * experts, bytes));
    if (code == EPX_TRAIN_OK)
        *digest_p = epx_hash(EPX_HASH_INIT, loads + layers * experts, all);
    free(loads);
    return code;
}
