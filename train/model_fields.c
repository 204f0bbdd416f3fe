/* SPDX-License-Identifier: Apache-2.0 */
#include "model_fields.h"

#define FIELD(member) offsetof(epx_model_config_t, member)

const epx_model_field_t epx_model_fields[] = {
    {"layers", "layers of the model", FIELD(layers), 1},
    {"width", "width of the model", FIELD(width), 1},
    {"vocabulary", "different tokens", FIELD(vocabulary), 1},
    {"sequence", "tokens of a sequence", FIELD(sequence), 0},
    {"heads", "attention heads", FIELD(heads), 1},
    {"head-width", "width of a head", FIELD(head_width), 1},
    {"kv-heads", "key and value heads of layers with a window", FIELD(kv_heads), 1},
    {"full-kv-heads", "key and value heads of layers that see everything", FIELD(full_kv_heads), 1},
    {"window", "tokens that attention looks back; 0: all, in every layer", FIELD(window), 0},
    {"full-every", "every n-th layer and the last one see everything", FIELD(full_every), 1},
    {"gate", "1: a sigmoid gate per attention head", FIELD(gate), 1},
    {"experts", "experts of a layer", FIELD(experts), 1},
    {"top-k", "experts chosen per token", FIELD(top_k), 1},
    {"expert-width", "inner width of an expert", FIELD(expert_width), 1},
    {"latent", "width of the rows sent to experts; 0: the model's width", FIELD(latent), 1},
    {"shared", "shared experts of a layer", FIELD(shared), 1},
    {"shared-width", "inner width of a shared expert", FIELD(shared_width), 1},
    {NULL, NULL, 0, 0},
};

int64_t epx_model_field_value(const epx_model_config_t *model, const epx_model_field_t *field)
{
    return *(const int64_t *)(const void *)((const char *)model + field->offset);
}
