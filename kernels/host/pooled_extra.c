/* pooled_wave's extra_wave: the schedule that follows from everybody's counts. SPDX-License-Identifier:
 * Apache-2.0 */
#include "kernels/host/pooled_layout.h"
#include "kernels/host/table.h"

#include <string.h>

/* What one (virtual sender of mine, expert) moves in the wave; at most one move each, as the schedule takes
 * it. */
typedef struct move {
    int32_t first, rows; /* ordinals of the expert */
    int32_t home;        /* home row of the first */
} move_t;

typedef struct collect {
    const epx_k_pooled_layout_t *layout;
    move_t *move; /* [m, E] */
    int32_t wave;
} collect_t;

static void collect_move(void *context, int32_t wave, int32_t s, int32_t e, int32_t first, int32_t rows)
{
    collect_t *collect = context;
    const epx_k_pooled_layout_t *layout = collect->layout;
    if (wave != collect->wave || s / layout->splits != layout->rank)
        return;
    int32_t i = s % layout->splits;
    collect->move[(int64_t)i * layout->experts + e] = (move_t){.first = first, .rows = rows, .home = -1};
}

/* Hands out slots: within a wave every sender's slab fills experts ascending. */
static void give_slots(const epx_k_pooled_layout_t *layout, move_t *move)
{
    for (int32_t i = 0; i < layout->splits; i++) {
        for (int32_t v = 0; v < layout->virtual_ranks; v++) {
            int32_t home = epx_pooled_block(layout, i, v);
            for (int32_t x = layout->first[v]; x < layout->first[v + 1]; x++) {
                move_t *one = &move[(int64_t)i * layout->experts + layout->expert[x]];
                one->home = home;
                home += one->rows;
            }
        }
    }
}

static void place_wave(const epx_k_pooled_extra_t *args, const move_t *move)
{
    const epx_k_pooled_layout_t *layout = args->layout;
    int64_t tokens = epx_pooled_tokens(args->tokens, args->tokens_device);
    for (int32_t i = 0; i < layout->splits; i++) {
        int64_t end = epx_virtual_first(i + 1, tokens, layout->splits) * layout->columns;
        for (int64_t a = epx_virtual_first(i, tokens, layout->splits) * layout->columns; a < end; a++) {
            args->place[a] = -1;
            if (args->ordinal[a] < 0)
                continue;
            const move_t *one = &move[(int64_t)i * layout->experts + args->expert[a]];
            int32_t j = args->ordinal[a] - one->first;
            if (j >= 0 && j < one->rows)
                args->place[a] = one->home + j;
        }
    }
}

/* The number of waves is the largest over destinations; one at least, since a pass must end with out written.
 */
static void count_waves(const epx_k_pooled_extra_t *args, const epx_rule_t *rule)
{
    const epx_k_pooled_layout_t *layout = args->layout;
    int32_t waves = 1;
    for (int32_t v = 0; v < layout->virtual_ranks; v++) {
        int32_t n = epx_pooled_extra_waves(rule, v, args->counts, args->remaining, NULL, NULL);
        waves = n > waves ? n : waves;
    }
    *args->waves = waves;
    *args->routed = 0;
    for (int32_t i = 0; i < layout->splits; i++) {
        const int32_t *n = args->counts + ((int64_t)layout->rank * layout->splits + i) * layout->experts;
        args->valid[i] = 0;
        for (int32_t e = 0; e < layout->experts; e++)
            args->valid[i] += n[e];
        *args->routed += args->valid[i];
    }
}

epx_status_t epx_host_pooled_extra(const epx_k_pooled_extra_t *args, epx_stream_t stream)
{
    (void)stream;
    const epx_k_pooled_layout_t *layout = args->layout;
    epx_owners_t owners;
    epx_rule_t rule = epx_pooled_rule(layout, &owners);
    if (args->waves != NULL) {
        count_waves(args, &rule);
        return EPX_OK;
    }
    move_t *move = (move_t *)args->move;
    collect_t collect = {.layout = layout, .move = move, .wave = args->wave};
    memset(move, 0, (size_t)layout->splits * (size_t)layout->experts * sizeof(*move));
    for (int32_t v = 0; v < layout->virtual_ranks; v++)
        epx_pooled_extra_waves(&rule, v, args->counts, args->remaining, collect_move, &collect);
    give_slots(layout, move);
    place_wave(args, move);
    return EPX_OK;
}
