/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "hash.h"
#include "model_fields.h"

const char epx_checkpoint_magic[8] = {'E', 'P', 'X', 'C', 'K', 'P', 'T', '\n'};

#define SHAPE_BYTES 1024

static int64_t sections_of(const epx_model_t *model, const epx_tensor_t *tensor)
{
    return tensor->tensor_class == EPX_CLASS_EXPERT ? model->config.experts : 1;
}

/* The tensor that section i belongs to and the expert, or NULL: the biases, or past the end (*i_p counts on).
 */
static const epx_tensor_t *tensor_of(const epx_model_t *model, int64_t *i_p)
{
    for (int64_t t = 0; t < model->params.tensors; t++) {
        int64_t sections = sections_of(model, &model->params.tensor[t]);
        if (*i_p < sections)
            return &model->params.tensor[t];
        *i_p -= sections;
    }
    return NULL;
}

int epx_checkpoint_place(const epx_model_t *model, int64_t i, epx_checkpoint_place_t *place_p)
{
    const epx_tensor_t *tensor = tensor_of(model, &i);
    if (!tensor) {
        *place_p =
            (epx_checkpoint_place_t){.count = model->config.layers * model->config.experts, .arrays = 1};
        return i == 0;
    }
    *place_p =
        (epx_checkpoint_place_t){.count = tensor->rows * tensor->cols, .arrays = 3, .offset = tensor->offset};
    if (tensor->tensor_class == EPX_CLASS_EXPERT) {
        int64_t local = i - model->params.first_expert;
        int here = local >= 0 && local < model->params.local_experts;
        place_p->offset = here ? tensor->offset + local * place_p->count : -1;
        place_p->expert = 1;
    }
    return 1;
}

static void name_section(const epx_model_t *model, int64_t i, char *name, size_t size)
{
    const epx_tensor_t *tensor = tensor_of(model, &i);
    if (!tensor)
        snprintf(name, size, "router.bias");
    else if (tensor->tensor_class == EPX_CLASS_EXPERT)
        snprintf(name, size, "%.*s.%lld", (int)sizeof tensor->name - 1, tensor->name, (long long)i);
    else
        snprintf(name, size, "%s", tensor->name);
}

static void write_shape(const epx_model_config_t *model, char *text)
{
    size_t at = 0;
    for (const epx_model_field_t *field = epx_model_fields; field->name; field++)
        at += (size_t)snprintf(text + at, SHAPE_BYTES - at, "%s=%lld\n", field->name,
                               (long long)epx_model_field_value(model, field));
}

static int64_t count_sections(const epx_model_t *model)
{
    int64_t sections = 1;
    for (int64_t t = 0; t < model->params.tensors; t++)
        sections += sections_of(model, &model->params.tensor[t]);
    return sections;
}

int epx_checkpoint_front(const epx_model_t *model, const epx_progress_t *progress,
                         epx_checkpoint_front_t *front_p)
{
    int64_t sections = count_sections(model);
    size_t bytes =
        sizeof(epx_checkpoint_header_t) + SHAPE_BYTES + (size_t)sections * sizeof(epx_checkpoint_section_t);
    epx_checkpoint_front_t front = {.memory = calloc(1, bytes), .bytes = bytes};
    if (!front.memory)
        return epx_train_fail(EPX_TRAIN_FAILED, "no memory for the table of a checkpoint with %lld sections",
                              (long long)sections);
    front.header = (epx_checkpoint_header_t *)(void *)front.memory;
    front.shape = front.memory + sizeof *front.header;
    front.section = (epx_checkpoint_section_t *)(void *)(front.shape + SHAPE_BYTES);
    write_shape(&model->config, front.shape);
    uint64_t offset = bytes;
    for (int64_t i = 0; i < sections; i++) {
        epx_checkpoint_place_t place;
        epx_checkpoint_place(model, i, &place);
        name_section(model, i, front.section[i].name, sizeof front.section[i].name);
        front.section[i].offset = offset;
        front.section[i].bytes = (uint64_t)(place.count * place.arrays) * sizeof(epx_real_t);
        offset += front.section[i].bytes;
    }
    memcpy(front.header->magic, epx_checkpoint_magic, sizeof epx_checkpoint_magic);
    front.header->version = EPX_CHECKPOINT_VERSION;
    front.header->byte_order = EPX_CHECKPOINT_ORDER;
    front.header->file_bytes = offset;
    front.header->shape_bytes = SHAPE_BYTES;
    front.header->sections = (uint64_t)sections;
    front.header->step = progress->step;
    front.header->position = progress->position;
    front.header->seed = progress->seed;
    front.header->data_hash = progress->data_hash;
    *front_p = front;
    return EPX_TRAIN_OK;
}

uint64_t epx_checkpoint_front_checksum(const epx_checkpoint_front_t *front)
{
    epx_checkpoint_header_t header = *front->header;
    header.checksum = 0;
    uint64_t hash = epx_hash(EPX_HASH_INIT, &header, sizeof header);
    return epx_hash(hash, front->memory + sizeof header, front->bytes - sizeof header);
}
