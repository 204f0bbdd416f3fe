/* The fields of a model's shape by name: for options, checkpoints and messages. SPDX-License-Identifier:
 * Apache-2.0 */
#ifndef EPX_TRAIN_MODEL_FIELDS_H
#define EPX_TRAIN_MODEL_FIELDS_H

#include <stddef.h>

#include "config.h"

typedef struct epx_model_field {
    const char *name; /* as an option: "--" before it */
    const char *help;
    size_t offset; /* of an int64_t in epx_model_config_t */
    int shapes;    /* 1: parameters depend on it, so that a checkpoint must agree */
} epx_model_field_t;

/* In the order of declaration; the last one has name NULL. */
extern const epx_model_field_t epx_model_fields[];

int64_t epx_model_field_value(const epx_model_config_t *model, const epx_model_field_t *field);

#endif
