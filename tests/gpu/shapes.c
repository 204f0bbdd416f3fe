/* Random shapes and routings for the routing kernels. SPDX-License-Identifier: Apache-2.0 */
#include "gpu/shapes.h"

#include <stdlib.h>
#include <string.h>

enum { OWNER, LOCAL, EXPERT, FIRST, TABLES };

static int32_t *ints(const twin_t *twin) { return (int32_t *)(void *)twin->host; }

/* Tables of `ranks` owners from owner[E], experts ascending. */
static epx_owners_t make_owners(twin_t *twins, const int32_t *owner, int32_t experts, int32_t ranks)
{
    twins[OWNER] = twin_make((size_t)experts * 4), twins[LOCAL] = twin_make((size_t)experts * 4);
    twins[EXPERT] = twin_make((size_t)experts * 4), twins[FIRST] = twin_make((size_t)(ranks + 1) * 4);
    int32_t at = 0;
    memcpy(twins[OWNER].host, owner, (size_t)experts * 4);
    for (int32_t r = 0; r < ranks; r++) {
        ints(&twins[FIRST])[r] = at;
        for (int32_t e = 0; e < experts; e++) {
            if (owner[e] != r)
                continue;
            ints(&twins[LOCAL])[e] = at - ints(&twins[FIRST])[r];
            ints(&twins[EXPERT])[at++] = e;
        }
    }
    ints(&twins[FIRST])[ranks] = at;
    for (int i = 0; i < TABLES; i++)
        twin_send(&twins[i]);
    return (epx_owners_t){.ranks = ranks,
                          .experts = experts,
                          .owner = ints(&twins[OWNER]),
                          .local = ints(&twins[LOCAL]),
                          .first = ints(&twins[FIRST]),
                          .expert = ints(&twins[EXPERT])};
}

/* Block that item i of n is in when they are split in parts, the first n mod parts one more. */
static int32_t block_of(int32_t i, int32_t n, int32_t parts)
{
    for (int32_t p = 0, end = 0; p < parts; p++) {
        end += n / parts + (p < n % parts);
        if (i < end)
            return p;
    }
    return -1;
}

shaped_t shaped_make(dice_t *dice, const shape_limits_t *limits)
{
    shaped_t s = {.wide_ids = dice_range(dice, 0, 1) != 0};
    epx_shape_t *shape = &s.shape;
    int small = dice_range(dice, 0, 1) != 0;
    shape->experts = (int32_t)dice_range(dice, 1, small ? 20 : limits->experts);
    shape->ranks =
        (int32_t)dice_range(dice, 1, small ? (limits->ranks < 5 ? limits->ranks : 5) : limits->ranks);
    shape->splits = dice_range(dice, 0, 2) == 0 ? (int32_t)dice_range(dice, 1, limits->splits) : 1;
    shape->rank = (int32_t)dice_range(dice, 0, shape->ranks - 1);
    shape->virtual_ranks = shape->ranks * shape->splits;
    int32_t most_k = limits->top_k < shape->experts ? limits->top_k : shape->experts;
    shape->top_k = shape->columns =
        (int32_t)dice_range(dice, 1, dice_range(dice, 0, 3) && most_k > 8 ? 8 : most_k);
    shape->tokens_max = (int32_t)dice_range(dice, 1, small ? 50 : limits->tokens);
    shape->virtual_tokens_max = (shape->tokens_max + shape->splits - 1) / shape->splits;
    shape->row_align = (int32_t)(dice_range(dice, 0, 1) ? 1 : dice_range(dice, 2, 130));
    static const double factors[] = {0.3, 0.7, 1.0, 1.15, 2.5};
    shape->capacity_factor = factors[dice_range(dice, 0, 4)];
    shape->sender_factor = factors[dice_range(dice, 0, 4)];
    shape->dropless = dice_range(dice, 0, 6) == 0;
    shape->accept = (epx_accept_t)dice_range(dice, EPX_ACCEPT_DEFAULT, EPX_ACCEPT_FAIR);
    shape->waves = (int32_t)dice_range(dice, 1, 4);

    int32_t *owner = malloc((size_t)shape->experts * 4), *virtual_owner = malloc((size_t)shape->experts * 4);
    int contiguous = dice_range(dice, 0, 2) != 0;
    for (int32_t e = 0; e < shape->experts; e++)
        owner[e] = contiguous ? block_of(e, shape->experts, shape->ranks)
                              : (int32_t)dice_range(dice, 0, shape->ranks - 1);
    shape->real = make_owners(s.owners, owner, shape->experts, shape->ranks);
    for (int32_t e = 0; e < shape->experts; e++) {
        int32_t r = owner[e], n = shape->real.first[r + 1] - shape->real.first[r];
        virtual_owner[e] = r * shape->splits + block_of(shape->real.local[e], n, shape->splits);
    }
    shape->virt = make_owners(s.owners + TABLES, virtual_owner, shape->experts, shape->virtual_ranks);
    free(owner), free(virtual_owner);
    return s;
}

static void move_tables(epx_owners_t *owners, const twin_t *twins, int device)
{
    owners->owner = side_of(&twins[OWNER], device);
    owners->local = side_of(&twins[LOCAL], device);
    owners->expert = side_of(&twins[EXPERT], device);
    owners->first = side_of(&twins[FIRST], device);
}

epx_shape_t shaped_on(const shaped_t *shaped, int device)
{
    epx_shape_t shape = shaped->shape;
    move_tables(&shape.real, shaped->owners, device);
    move_tables(&shape.virt, shaped->owners + TABLES, device);
    return shape;
}

void draw_ids(int64_t *ids, int64_t n, int32_t experts, dice_t *dice)
{
    int64_t kind = dice_range(dice, 0, 3), favourite = dice_range(dice, 0, experts - 1),
            holes = dice_range(dice, 0, 2);
    for (int64_t a = 0; a < n; a++) {
        int64_t id = dice_range(dice, 0, experts - 1);
        if (kind == 0)
            id = favourite;
        else if (kind == 1)
            id = (int64_t)(dice_unit(dice) * dice_unit(dice) * dice_unit(dice) * experts);
        ids[a] = holes > 0 && dice_range(dice, 0, 9) < holes ? -1 : id;
    }
}

twin_t room_make(dice_t *dice, int64_t n, int64_t keys)
{
    int64_t kind = dice_range(dice, 0, 3), all = epx_route_room(n, keys);
    int64_t words = kind == 0 ? 0 : kind == 1 ? dice_range(dice, 1, all) : all;
    twin_t room = twin_make((size_t)words * 8);
    memset(room.host, 0, room.bytes);
    twin_send(&room);
    return room;
}
