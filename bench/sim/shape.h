/* The shape that is looked at: a model, ranks, tokens. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_SIM_SHAPE_H
#define EPX_SIM_SHAPE_H

#include <epx/epx.h>

#include "train/config.h"

typedef struct epx_sim_shape {
    char name[32]; /* of the preset that it began with */
    epx_model_config_t model;
    int64_t ranks;            /* of one expert-parallel group */
    int64_t tokens;           /* of each rank, at most */
    int64_t context_parallel; /* ranks that share each sequence */
    int32_t row_type;         /* index of epx_sim_row_types */
} epx_sim_shape_t;

extern const char *const epx_sim_row_types[]; /* "fp32", "bf16", "fp16" */
enum { EPX_SIM_RANKS_MAX = 1024 };

/* The presets of the training loop; 64 ranks, bf16 rows, the preset's batch on each rank. 0, or -1 for
 * another name. */
int epx_sim_shape_preset(const char *name, epx_sim_shape_t *shape_p);

/* Finds what cannot be; 0, or -1 with "what is wrong: what to do". */
int epx_sim_shape_check(const epx_sim_shape_t *shape, char *problem, size_t problem_bytes);

/* Bytes of a row as it travels, and of its element. */
int64_t epx_sim_row_bytes(const epx_sim_shape_t *shape);

/* Tokens of one sequence that one rank has. */
int64_t epx_sim_piece(const epx_sim_shape_t *shape);

/* A configuration of that shape, for what the library says about memory and settings. */
epx_group_config_t epx_sim_group_config(const epx_sim_shape_t *shape);

#endif
