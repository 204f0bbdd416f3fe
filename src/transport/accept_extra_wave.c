/* extra_wave: as many waves as it takes, nothing dropped. SPDX-License-Identifier: Apache-2.0 */
#include "transport/accept.h"
#include "transport/accept_common.h"

#include <string.h>

/* One destination. `left` [El, N] is what has not moved, `room` [N] what each sender's slab still holds in
 * this wave. */
typedef struct schedule {
    int32_t ranks, experts, local_experts;
    const int32_t *expert, *n;
    int32_t *left, *room;
    int64_t slots, rows; /* P and R */
    epx_extra_wave_move_fn move;
    void *context;
} schedule_t;

static int64_t schedule_start(const schedule_t *schedule)
{
    int64_t total = 0;
    for (int32_t i = 0; i < schedule->local_experts; i++) {
        for (int32_t s = 0; s < schedule->ranks; s++) {
            int32_t n = schedule->n[(int64_t)s * schedule->experts + schedule->expert[i]];
            schedule->left[(int64_t)i * schedule->ranks + s] = n;
            total += n;
        }
    }
    return total;
}

/* Moves what one wave takes and returns how much that was: at least one while something is left. */
static int64_t schedule_wave(const schedule_t *schedule, int32_t wave)
{
    int64_t moved = 0;
    for (int32_t s = 0; s < schedule->ranks; s++)
        schedule->room[s] = (int32_t)epx_min64(schedule->slots, INT32_MAX);

    for (int32_t i = 0; i < schedule->local_experts; i++) {
        int32_t e = schedule->expert[i];
        int64_t rows_left = schedule->rows;
        for (int32_t s = 0; s < schedule->ranks; s++) {
            int32_t *left = &schedule->left[(int64_t)i * schedule->ranks + s];
            int32_t rows = (int32_t)epx_min64(epx_min64(*left, schedule->room[s]), rows_left);
            if (rows == 0)
                continue;
            if (schedule->move != NULL)
                schedule->move(schedule->context, wave, s, e,
                               schedule->n[(int64_t)s * schedule->experts + e] - *left, rows);
            *left -= rows;
            schedule->room[s] -= rows;
            rows_left -= rows;
            moved += rows;
        }
    }
    return moved;
}

int32_t epx_pooled_extra_waves(const epx_rule_t *rule, int32_t d, const int32_t *n, int32_t *remaining,
                               epx_extra_wave_move_fn move, void *context)
{
    int32_t first = rule->owners->first[d], local_experts = rule->owners->first[d + 1] - first, wave = 0;
    schedule_t schedule = {.ranks = rule->ranks,
                           .experts = rule->experts,
                           .local_experts = local_experts,
                           .expert = rule->owners->expert + first,
                           .n = n,
                           .left = remaining,
                           .room = remaining + (int64_t)rule->ranks * local_experts,
                           .slots = epx_pooled_slots(rule, local_experts),
                           .rows = epx_pooled_rows(rule),
                           .move = move,
                           .context = context};
    for (int64_t left = schedule_start(&schedule); left > 0; wave++)
        left -= schedule_wave(&schedule, wave);
    return wave;
}
