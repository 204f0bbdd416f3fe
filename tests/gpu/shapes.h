/* Random shapes and routings for the routing kernels. SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GPU_SHAPES_H
#define TESTS_GPU_SHAPES_H

#include <epx/transport.h>

#include "gpu/check.h"

/* A shape whose tables are on both sides, and what routers chose. */
typedef struct shaped {
    epx_shape_t shape; /* host tables */
    twin_t owners[8];  /* owner, local, expert, first of real, then of virt */
    twin_t ids;        /* [T, columns] int32 or int64, of one rank; see shaped_ids */
    int wide_ids;
} shaped_t;

/* experts_max, ranks_max, splits_max, tokens_max bound what is drawn. */
typedef struct shape_limits {
    int32_t experts, ranks, splits, tokens, top_k;
} shape_limits_t;

shaped_t shaped_make(dice_t *dice, const shape_limits_t *limits);
/* The shape with its tables on a side. */
epx_shape_t shaped_on(const shaped_t *shaped, int device);
/* Room for kernels that hand counts on, zeroed: enough for n items of so many keys, or little, or none. */
twin_t room_make(dice_t *dice, int64_t n, int64_t keys);
/* Fills ids [tokens, columns] with choices from -1 to E - 1, skewed more or less. */
void draw_ids(int64_t *ids, int64_t n, int32_t experts, dice_t *dice);

#endif
