/* The two gates of pooled_wave. SPDX-License-Identifier: Apache-2.0 */
#include "transport/accept.h"
#include "transport/accept_common.h"

#include <string.h>

int64_t epx_pooled_slots(const epx_rule_t *rule, int32_t local_experts)
{
    if (local_experts == 0)
        return 0;
    if (rule->dropless)
        return (rule->assignments_max + rule->waves - 1) / rule->waves;
    return epx_max64(1, epx_accept_ceil(rule->assignments_max * local_experts, rule->cs,
                                        (int64_t)rule->experts * rule->waves));
}

int64_t epx_pooled_rows(const epx_rule_t *rule)
{
    if (rule->dropless)
        return rule->ranks * epx_pooled_slots(rule, 1);
    return epx_max64(1, epx_accept_ceil(rule->ranks * rule->assignments_max, rule->cf,
                                        (int64_t)rule->experts * rule->waves));
}

int64_t epx_pooled_sender_limit(const epx_rule_t *rule, int32_t local_experts, int64_t valid)
{
    int64_t physical = epx_pooled_slots(rule, local_experts);
    if (rule->dropless)
        return physical;
    return epx_min64(physical,
                     epx_accept_ceil(valid * local_experts, rule->cs, (int64_t)rule->experts * rule->waves));
}

int64_t epx_pooled_receiver_limit(const epx_rule_t *rule, int64_t valid_all)
{
    int64_t physical = epx_pooled_rows(rule);
    if (rule->dropless)
        return physical;
    return epx_min64(physical, epx_accept_ceil(valid_all, rule->cf, (int64_t)rule->experts * rule->waves));
}

/*
 * Gate 1 keeps the first `room` = limit * W ordinals of a destination, since slot < limit means ordinal <
 * limit * W. Both numbers of a destination live in one scratch entry: room in the upper half, the next
 * ordinal in the lower half. The next ordinal stops at room, so that what is left is exactly what spilled
 * proposals may still take.
 */
static inline int64_t gate_take(int64_t *entry)
{
    int64_t room = *entry >> 32, next = *entry & UINT32_MAX;
    if (next >= room)
        return -1;
    ++*entry;
    return next;
}

/* Valid assignments of this sender; -1 are counted too. */
static int64_t count_valid(const epx_rule_t *rule, const int32_t *expert, int64_t tokens, int32_t columns,
                           int64_t *skipped)
{
    int64_t valid = 0;
    for (int64_t t = 0; t < tokens; t++)
        for (int32_t k = 0; k < rule->top_k; k++)
            valid += expert[t * columns + k] >= 0;
    *skipped = tokens * rule->top_k - valid;
    return valid;
}

static void gate_open(const epx_rule_t *rule, int64_t valid, int64_t *gate)
{
    for (int32_t d = 0; d < rule->ranks; d++) {
        int32_t local_experts = rule->owners->first[d + 1] - rule->owners->first[d];
        int64_t room = epx_pooled_sender_limit(rule, local_experts, valid) * rule->waves;
        gate[d] = epx_min64(room, INT32_MAX) << 32;
    }
}

/* One round of spilling: column K + x of every token that still has a refused assignment. Returns how many
 * were kept. */
static int64_t spill_round(const epx_rule_t *rule, const int32_t *expert, int64_t tokens, int32_t columns,
                           int32_t x, int32_t *wave, int32_t *slot, int64_t *gate)
{
    int64_t kept = 0;
    for (int64_t t = 0; t < tokens; t++) {
        int64_t row = t * columns;
        int32_t e = expert[row + rule->top_k + x];
        int32_t refused = 0;
        for (int32_t k = 0; k < rule->top_k; k++)
            refused += expert[row + k] >= 0 && wave[row + k] < 0;
        /* Every earlier choice that travels stands for one refused assignment, the lowest k of its round. */
        for (int32_t k = rule->top_k; k < rule->top_k + x; k++)
            refused -= wave[row + k] >= 0;
        if (e < 0 || refused <= 0)
            continue;
        int64_t ordinal = gate_take(&gate[rule->owners->owner[e]]);
        if (ordinal < 0)
            continue;
        wave[row + rule->top_k + x] = (int32_t)(ordinal % rule->waves);
        slot[row + rule->top_k + x] = (int32_t)(ordinal / rule->waves);
        kept++;
    }
    return kept;
}

void epx_pooled_gate1(const epx_rule_t *rule, const int32_t *expert, int64_t tokens, int32_t columns,
                      int32_t *wave, int32_t *slot, int64_t *scratch, epx_pooled_counts_t *counts)
{
    const int32_t *owner = rule->owners->owner;
    int32_t top_k = rule->top_k, waves = rule->waves;
    int64_t skipped, refused = 0, spilled = 0;
    int64_t valid = count_valid(rule, expert, tokens, columns, &skipped);
    gate_open(rule, valid, scratch);

    for (int64_t t = 0; t < tokens; t++) {
        for (int32_t k = 0; k < columns; k++) {
            int64_t a = t * columns + k;
            int32_t e = expert[a];
            int64_t ordinal = -1;
            if (k < top_k && e >= 0) {
                ordinal = gate_take(&scratch[owner[e]]);
                refused += ordinal < 0;
            }
            wave[a] = ordinal < 0 ? -1 : (int32_t)((uint32_t)ordinal % (uint32_t)waves);
            slot[a] = ordinal < 0 ? -1 : (int32_t)((uint32_t)ordinal / (uint32_t)waves);
        }
    }
    for (int32_t x = 0; x < columns - top_k && spilled < refused; x++)
        spilled += spill_round(rule, expert, tokens, columns, x, wave, slot, scratch);

    if (counts == NULL)
        return;
    counts->routed += valid;
    counts->skipped += skipped;
    counts->dropped += refused - spilled;
    counts->spilled += spilled;
}

int64_t epx_pooled_gate2(const epx_rule_t *rule, int32_t d, int64_t limit, const int32_t *const *tag,
                         int32_t *const *row, int64_t *count)
{
    int32_t local_experts = rule->owners->first[d + 1] - rule->owners->first[d];
    int64_t slots = epx_pooled_slots(rule, local_experts), refused = 0;
    memset(count, 0, (size_t)local_experts * sizeof(*count));

    for (int64_t i = 0; i < slots; i++) {
        for (int32_t s = 0; s < rule->ranks; s++) {
            uint32_t e =
                (uint32_t)tag[s][i] - 1; /* 0 wraps and is out of range, like anything that is no tag */
            int64_t j = -1;
            if (e < (uint32_t)local_experts) {
                j = count[e]++;
                if (j >= limit) {
                    count[e] = limit;
                    refused++;
                    j = -1;
                }
            }
            row[s][i] = (int32_t)j;
        }
    }
    return refused;
}
