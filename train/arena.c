/* SPDX-License-Identifier: Apache-2.0 */
#include "arena.h"

#include <stdlib.h>
#include <string.h>

#include "fail.h"

#define ALIGNMENT 64

/* Stands before each piece and fills one alignment. */
struct epx_arena_piece {
    struct epx_arena_piece *before;
};

void *epx_arena_take(epx_arena_t *arena, int64_t count, size_t size)
{
    size_t bytes = 0;
    struct epx_arena_piece *piece = NULL;
    if (arena->counts) {
        int64_t padded;
        if (__builtin_mul_overflow((size_t)count, size, &bytes) || bytes > INT64_MAX - ALIGNMENT ||
            (padded = (int64_t)((bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT)) > INT64_MAX - arena->bytes)
            arena->bytes = INT64_MAX;
        else
            arena->bytes += padded;
        return NULL;
    }
    if (!arena->failed && !__builtin_mul_overflow((size_t)count, size, &bytes) &&
        bytes < SIZE_MAX - 2 * ALIGNMENT) {
        bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        piece = aligned_alloc(ALIGNMENT, bytes + ALIGNMENT);
    }
    if (!piece) {
        if (!arena->failed)
            epx_train_fail(EPX_TRAIN_FAILED,
                           "no memory for %lld more pieces of %zu bytes beside %lld bytes: take a "
                           "smaller --batch, --sequence or model",
                           (long long)count, size, (long long)arena->bytes);
        arena->failed = 1;
        return NULL;
    }
    memset(piece, 0, bytes + ALIGNMENT);
    piece->before = arena->last;
    arena->last = piece;
    arena->bytes += (int64_t)bytes;
    return (char *)piece + ALIGNMENT;
}

epx_real_t *epx_arena_reals(epx_arena_t *arena, int64_t count)
{
    return epx_arena_take(arena, count, sizeof(epx_real_t));
}

void epx_arena_free(epx_arena_t *arena)
{
    while (arena->last) {
        struct epx_arena_piece *before = arena->last->before;
        free(arena->last);
        arena->last = before;
    }
    *arena = (epx_arena_t){0};
}
