/* Memory of one owner: handed out in pieces, counted, freed all at once. SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_TRAIN_ARENA_H
#define EPX_TRAIN_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "real.h"

typedef struct epx_arena {
    struct epx_arena_piece *last;
    int64_t bytes; /* handed out so far */
    int failed;    /* 1: a piece could not be had; all later ones are refused too */
    int counts;    /* 1: bytes are counted, and every piece is NULL */
} epx_arena_t;

/* `count` pieces of `size` bytes, 64-byte aligned, zeroed, owned by the arena. NULL when there is no memory,
 * with a sentence; callers may ask for many pieces and look at arena->failed once. count = 0 gives a valid
 * pointer. */
void *epx_arena_take(epx_arena_t *arena, int64_t count, size_t size);

epx_real_t *epx_arena_reals(epx_arena_t *arena, int64_t count);

/* Frees all pieces; the arena is as new. */
void epx_arena_free(epx_arena_t *arena);

#endif
