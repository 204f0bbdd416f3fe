/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/accept_case.h"

#include <stdio.h>
#include <string.h>

void case_owners(accept_case_t *c, const int32_t *owner)
{
    int32_t ranks = c->rule.ranks, experts = c->rule.experts, at = 0;
    for (int32_t r = 0; r < ranks; r++) {
        c->first[r] = at;
        for (int32_t e = 0; e < experts; e++) {
            if (owner[e] != r)
                continue;
            c->owner[e] = r;
            c->local[e] = at - c->first[r];
            c->expert[at++] = e;
        }
    }
    c->first[ranks] = at;
    c->owners = (epx_owners_t){.ranks = ranks,
                               .experts = experts,
                               .owner = c->owner,
                               .local = c->local,
                               .first = c->first,
                               .expert = c->expert};
    c->rule.owners = &c->owners;
}

void case_shape(accept_case_t *c, int32_t ranks, int32_t experts, int32_t top_k, int32_t tokens_max,
                int32_t waves)
{
    memset(c, 0, sizeof(*c));
    c->tokens_max = tokens_max;
    c->rule = (epx_rule_t){.ranks = ranks,
                           .experts = experts,
                           .top_k = top_k,
                           .assignments_max = (int64_t)tokens_max * top_k,
                           .cf = 1.15,
                           .cs = 1.15,
                           .waves = waves,
                           .accept = EPX_ACCEPT_PREFIX};
    /* Deal the experts out by size first: the ranks that get one more come first. */
    int32_t owner[CASE_EXPERTS], size[CASE_RANKS] = {0}, e = 0;
    for (int32_t i = 0; i < experts; i++)
        size[i % ranks]++;
    for (int32_t r = 0; r < ranks; r++)
        for (int32_t i = 0; i < size[r]; i++)
            owner[e++] = r;
    case_owners(c, owner);
}

void case_count(accept_case_t *c)
{
    memset(c->n, 0, sizeof(c->n));
    c->valid_all = 0;
    for (int32_t s = 0; s < c->rule.ranks; s++) {
        c->valid[s] = 0;
        for (int32_t a = 0; a < c->tokens[s] * (c->rule.top_k + c->spill); a++) {
            if (c->ids[s][a] < 0 || a % (c->rule.top_k + c->spill) >= c->rule.top_k)
                continue;
            c->n[s * c->rule.experts + c->ids[s][a]]++;
            c->valid[s]++;
            c->valid_all++;
        }
    }
}

void case_routing(accept_case_t *c, uint64_t seed)
{
    dice_t dice = {seed};
    c->seed = seed;
    int64_t skew = dice_range(&dice, 0, 2), holes = dice_range(&dice, 0, 2) * 20;
    for (int32_t s = 0; s < c->rule.ranks; s++) {
        c->tokens[s] =
            (int32_t)(dice_range(&dice, 0, 3) ? dice_range(&dice, 0, c->tokens_max) : c->tokens_max);
        for (int32_t a = 0; a < c->tokens[s] * (c->rule.top_k + c->spill); a++) {
            int64_t e = dice_range(&dice, 0, c->rule.experts - 1);
            for (int64_t i = 0; i < skew; i++)
                e = dice_range(&dice, 0, e);
            c->ids[s][a] = dice_range(&dice, 0, 99) < holes ? -1 : (int32_t)e;
        }
    }
    case_count(c);
}

void case_of_series(accept_case_t *c, int32_t i)
{
    uint64_t seed = 0x5eed0000u + (uint64_t)i;
    dice_t dice = {seed * 77};
    int32_t owner[CASE_EXPERTS];
    switch (i) {
    case 0: case_shape(c, 3, 7, 2, 20, 3); break;
    case 1: case_shape(c, 4, 2, 2, 15, 2); break;
    case 2: case_shape(c, 4, 12, 3, 25, 2); break;
    case 3: case_shape(c, 3, 7, 3, 1, 2); break;
    case 4: case_shape(c, 1, 1, 1, 1, 1); break;
    case 5: case_shape(c, 18, 5, 4, 9, 3); break;
    default:
        case_shape(c, (int32_t)dice_range(&dice, 1, CASE_RANKS), (int32_t)dice_range(&dice, 1, CASE_EXPERTS),
                   (int32_t)dice_range(&dice, 1, 8), (int32_t)dice_range(&dice, 1, CASE_TOKENS),
                   (int32_t)dice_range(&dice, 1, 5));
        c->rule.cf = 0.25 * (double)dice_range(&dice, 1, 8);
        c->rule.cs = 0.25 * (double)dice_range(&dice, 1, 8);
        if (dice_range(&dice, 0, 1)) {
            for (int32_t e = 0; e < c->rule.experts; e++)
                owner[e] = (int32_t)dice_range(&dice, 0, c->rule.ranks - 1);
            case_owners(c, owner);
        }
        c->rule.dropless = dice_range(&dice, 0, 7) == 0;
    }
    case_routing(c, seed);
}

const char *case_text(const accept_case_t *c)
{
    static char text[160];
    snprintf(text, sizeof(text), "S=%d E=%d K=%d X=%d T_max=%d waves=%d cf=%g cs=%g dropless=%d seed=%#llx",
             c->rule.ranks, c->rule.experts, c->rule.top_k, c->spill, c->tokens_max, c->rule.waves,
             c->rule.cf, c->rule.cs, c->rule.dropless, (unsigned long long)c->seed);
    return text;
}

int64_t exact_ceil(int64_t product, int64_t hundredths, int64_t divisor)
{
    int64_t over = product * hundredths, under = 100 * divisor;
    return over / under + (over % under != 0);
}
