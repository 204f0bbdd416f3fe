/* The two gates of pooled_wave, spilling and extra waves, by hand and assignment by assignment.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "unit/accept_case.h"

#define UNTOUCHED (-77)
#define CELLS (CASE_TOKENS * CASE_COLUMNS)

static accept_case_t c;
static int32_t wave[CELLS + 1], slot[CELLS + 1];
static int64_t scratch[CASE_RANKS + 1];
static epx_pooled_counts_t counts;

static void gate1(int32_t s)
{
    for (int32_t i = 0; i <= CELLS; i++)
        wave[i] = slot[i] = UNTOUCHED;
    scratch[c.rule.ranks] = UNTOUCHED;
    counts = (epx_pooled_counts_t){0};
    epx_pooled_gate1(&c.rule, c.ids[s], c.tokens[s], c.rule.top_k + c.spill, wave, slot, scratch, &counts);
    int32_t n = c.tokens[s] * (c.rule.top_k + c.spill);
    cr_assert_eq(wave[n], UNTOUCHED);
    cr_assert_eq(slot[n], UNTOUCHED);
    cr_assert_eq(scratch[c.rule.ranks], UNTOUCHED);
}

/* Two ranks own one expert each; T_max = T = 6, K = 1, W = 2, cs = 1: P = ceil(6 / 4) = 2 slots in each of
 * two waves. */
static void small(const int32_t *ids, int32_t tokens, int32_t spill)
{
    case_shape(&c, 2, 2, 1, 6, 2);
    c.rule.cs = 1;
    c.spill = spill;
    c.tokens[0] = tokens;
    memcpy(c.ids[0], ids, (size_t)(tokens * (1 + spill)) * sizeof(*ids));
    case_count(&c);
    gate1(0);
}

static void expect(const int32_t *waves, const int32_t *slots, int32_t n)
{
    for (int32_t a = 0; a < n; a++) {
        cr_assert_eq(wave[a], waves[a], "assignment %d: wave %d, not %d", a, wave[a], waves[a]);
        cr_assert_eq(slot[a], slots[a], "assignment %d: slot %d, not %d", a, slot[a], slots[a]);
    }
}

Test(accept_gate1, stripes_over_waves_and_drops_the_tail)
{
    /* Five to rank 0, of which four have room (ordinals 0..3 are waves 0 1 0 1, slots 0 0 1 1), one to
     * rank 1. */
    small((int32_t[]){0, 0, 1, 0, 0, 0}, 6, 0);
    expect((int32_t[]){0, 1, 0, 0, 1, -1}, (int32_t[]){0, 0, 0, 1, 1, -1}, 6);
    cr_assert_eq(counts.routed, 6);
    cr_assert_eq(counts.dropped, 1);
    cr_assert_eq(counts.skipped, 0);
    cr_assert_eq(counts.spilled, 0);
}

Test(accept_gate1, the_logical_limit_follows_valid_assignments)
{
    /* V(s) = 3: ceil(3 / 4) = 1 slot per wave, so that the third to rank 0 is refused. */
    small((int32_t[]){0, -1, 0, -1, -1, 0}, 6, 0);
    expect((int32_t[]){0, -1, 1, -1, -1, -1}, (int32_t[]){0, -1, 0, -1, -1, -1}, 6);
    cr_assert_eq(counts.routed, 3);
    cr_assert_eq(counts.skipped, 3);
    cr_assert_eq(counts.dropped, 1);
}

Test(accept_gate1, nothing_to_send)
{
    small((int32_t[]){-1, -1}, 2, 0);
    expect((int32_t[]){-1, -1}, (int32_t[]){-1, -1}, 2);
    small((int32_t[]){0}, 0, 0);
    cr_assert_eq(counts.routed + counts.skipped + counts.dropped, 0);
    epx_pooled_gate1(&c.rule, c.ids[0], 0, 1, wave, slot, scratch, NULL);
}

Test(accept_gate1, counts_are_added_to)
{
    small((int32_t[]){0, 0, 0, 0, 0, -1}, 6, 0);
    epx_pooled_gate1(&c.rule, c.ids[0], 6, 1, wave, slot, scratch, &counts);
    cr_assert_eq(counts.routed, 10);
    cr_assert_eq(counts.skipped, 2);
    cr_assert_eq(counts.dropped, 2 * 1);
}

Test(accept_gate1, spilled_tokens_take_their_next_choice)
{
    /* Six tokens for rank 0: four have room, tokens 4 and 5 do not. Token 4's next choice is rank 1, which is
     * empty: ordinal 0. Token 5's next choice is -1, so it stays refused. Choices of tokens that were kept
     * are not used. */
    small((int32_t[]){0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, -1}, 6, 1);
    expect((int32_t[]){0, -1, 1, -1, 0, -1, 1, -1, -1, 0, -1, -1},
           (int32_t[]){0, -1, 0, -1, 1, -1, 1, -1, -1, 0, -1, -1}, 12);
    cr_assert_eq(counts.routed, 6);
    cr_assert_eq(counts.spilled, 1);
    cr_assert_eq(counts.dropped, 1);
}

Test(accept_gate1, a_second_round_goes_on_where_the_first_failed)
{
    /* Token 4 proposes rank 0 again (full) and then rank 1; token 5 rank 1 at once. So token 5 comes first
     * there. */
    small((int32_t[]){0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 0, 1, 0, 1, 1}, 6, 2);
    cr_assert_eq(wave[5 * 3 + 1], 0);
    cr_assert_eq(slot[5 * 3 + 1], 0);
    cr_assert_eq(wave[4 * 3 + 2], 1);
    cr_assert_eq(slot[4 * 3 + 2], 0);
    cr_assert_eq(wave[4 * 3 + 1], -1);
    cr_assert_eq(wave[5 * 3 + 2], -1); /* nothing of it is refused any more */
    cr_assert_eq(counts.spilled, 2);
    cr_assert_eq(counts.dropped, 0);
}

/* ---- gate 1, assignment by assignment ---------------------------------------------------------------------------- */

static int64_t ceil_of(int64_t product, double factor, int64_t divisor)
{
    double value = (double)product * factor / (double)divisor;
    int64_t whole = (int64_t)value;
    return (double)whole < value ? whole + 1 : whole;
}

/* How many slots of (sender s, destination d) may be used in a wave. */
static int64_t limit_of(int32_t s, int32_t d)
{
    int64_t owned = 0, waves = c.rule.waves, parts = waves * c.rule.experts;
    for (int32_t e = 0; e < c.rule.experts; e++)
        owned += c.owner[e] == d;
    if (owned == 0)
        return 0;
    if (c.rule.dropless)
        return ceil_of(c.rule.assignments_max, 1, waves);
    int64_t physical = ceil_of(c.rule.assignments_max * owned, c.rule.cs, parts);
    int64_t logical = ceil_of(c.valid[s] * owned, c.rule.cs, parts);
    physical = physical < 1 ? 1 : physical;
    return logical < physical ? logical : physical;
}

/* The ordinal that each assignment of sender s gets, or -1; `spilled_p` of them through another choice. */
static void expect_gate1(int32_t s, int32_t *ordinal, int64_t *spilled_p)
{
    int32_t columns = c.rule.top_k + c.spill, n = c.tokens[s] * columns;
    static int32_t refused[CELLS];
    for (int32_t a = 0; a < n; a++) {
        int32_t before = 0;
        ordinal[a] = -1;
        refused[a] = 0;
        if (a % columns >= c.rule.top_k || c.ids[s][a] < 0)
            continue;
        int32_t d = c.owner[c.ids[s][a]];
        for (int32_t b = 0; b < a; b++)
            before += b % columns < c.rule.top_k && c.ids[s][b] >= 0 && c.owner[c.ids[s][b]] == d;
        if (before / c.rule.waves < limit_of(s, d))
            ordinal[a] = before;
        else
            refused[a] = 1;
    }
    *spilled_p = 0;
    for (int32_t x = 0; x < c.spill; x++) {
        for (int32_t t = 0; t < c.tokens[s]; t++) {
            int32_t lowest = -1, a = t * columns + c.rule.top_k + x, taken = 0;
            for (int32_t k = c.rule.top_k - 1; k >= 0; k--)
                if (refused[t * columns + k])
                    lowest = t * columns + k;
            if (lowest < 0 || c.ids[s][a] < 0)
                continue;
            int32_t d = c.owner[c.ids[s][a]];
            for (int32_t b = 0; b < n; b++)
                taken += ordinal[b] >= 0 && c.owner[c.ids[s][b]] == d;
            if (taken / c.rule.waves >= limit_of(s, d))
                continue;
            ordinal[a] = taken;
            refused[lowest] = 0;
            ++*spilled_p;
        }
    }
}

static void check_gate1(int32_t s, int64_t *dropped)
{
    static int32_t ordinal[CELLS];
    int32_t columns = c.rule.top_k + c.spill, n = c.tokens[s] * columns;
    int64_t spilled, kept = 0;
    expect_gate1(s, ordinal, &spilled);
    gate1(s);
    for (int32_t a = 0; a < n; a++) {
        int32_t w = ordinal[a] < 0 ? -1 : ordinal[a] % c.rule.waves;
        int32_t i = ordinal[a] < 0 ? -1 : ordinal[a] / c.rule.waves;
        kept += ordinal[a] >= 0;
        cr_assert(wave[a] == w && slot[a] == i, "sender %d, token %d, k %d: wave %d slot %d, not %d %d; %s",
                  s, a / columns, a % columns, wave[a], slot[a], w, i, case_text(&c));
    }
    cr_assert_eq(counts.routed, c.valid[s], "%s", case_text(&c));
    cr_assert_eq(counts.skipped, (int64_t)c.tokens[s] * c.rule.top_k - c.valid[s], "%s", case_text(&c));
    cr_assert_eq(counts.spilled, spilled, "%s", case_text(&c));
    cr_assert_eq(counts.dropped, c.valid[s] - kept, "%s", case_text(&c));
    *dropped += counts.dropped;
}

Test(accept_gate1, agrees_with_assignment_by_assignment)
{
    int64_t dropped[4] = {0}, spilled = 0;
    for (int32_t i = 0; i < 200; i++) {
        for (int32_t x = 0; x <= 3; x++) {
            case_of_series(&c, i);
            c.spill = x;
            case_routing(&c, c.seed);
            for (int32_t s = 0; s < c.rule.ranks; s++) {
                check_gate1(s, &dropped[x]);
                spilled += counts.spilled;
            }
        }
    }
    cr_assert(dropped[0] > 1000 && spilled > 1000, "the series must drop and spill: %lld, %lld",
              (long long)dropped[0], (long long)spilled);
}

/* ---- gate 2 ------------------------------------------------------------------------------------------------------ */

#define SLOTS 2000

static int32_t tags[CASE_RANKS][SLOTS], rows[CASE_RANKS][SLOTS];
static int64_t kept_of[CASE_EXPERTS + 1];

static int64_t gate2(int32_t d, int64_t limit)
{
    const int32_t *tag[CASE_RANKS];
    int32_t *row[CASE_RANKS];
    for (int32_t s = 0; s < c.rule.ranks; s++) {
        tag[s] = tags[s];
        row[s] = rows[s];
        for (int32_t i = 0; i < SLOTS; i++)
            rows[s][i] = UNTOUCHED;
    }
    for (int32_t e = 0; e <= CASE_EXPERTS; e++)
        kept_of[e] = UNTOUCHED;
    return epx_pooled_gate2(&c.rule, d, limit, tag, row, kept_of);
}

Test(accept_gate2, walks_slots_round_robin)
{
    /* S = 3, E = 6 (two each), T_max * K = 6, W = 1, cs = 1: P = ceil(6 * 2 / 6) = 2. The walk is s0 s1 s2 of
     * slot 0, then of slot 1: expert 0 sees s0, s2, s1, s2; expert 1 sees s1. Limit 3: the last of expert 0
     * is refused. */
    case_shape(&c, 3, 6, 1, 6, 1);
    c.rule.cs = 1;
    memcpy(tags[0], (int32_t[]){1, 0}, 8);
    memcpy(tags[1], (int32_t[]){2, 1}, 8);
    memcpy(tags[2], (int32_t[]){1, 1}, 8);
    cr_assert_eq(gate2(1, 3), 1);
    int32_t expected[3][3] = {{0, -1, UNTOUCHED}, {0, 2, UNTOUCHED}, {1, -1, UNTOUCHED}};
    for (int32_t s = 0; s < 3; s++)
        for (int32_t i = 0; i < 3; i++)
            cr_assert_eq(rows[s][i], expected[s][i], "sender %d, slot %d: %d", s, i, rows[s][i]);
    cr_assert_eq(kept_of[0], 3);
    cr_assert_eq(kept_of[1], 1);
    cr_assert_eq(kept_of[2], UNTOUCHED);
}

Test(accept_gate2, what_is_no_tag_is_empty)
{
    case_shape(&c, 1, 2, 2, 3, 1);
    c.rule.cs = 1; /* P = 6 */
    memcpy(tags[0], (int32_t[]){3, -1, INT32_MIN, INT32_MAX, 2, 0}, 24);
    cr_assert_eq(gate2(0, 100), 0);
    int32_t expected[] = {-1, -1, -1, -1, 0, -1};
    for (int32_t i = 0; i < 6; i++)
        cr_assert_eq(rows[0][i], expected[i]);
    cr_assert_eq(kept_of[0], 0);
    cr_assert_eq(kept_of[1], 1);
}

Test(accept_gate2, a_rank_without_experts_gets_nothing)
{
    case_shape(&c, 4, 2, 1, 6, 2);
    cr_assert_eq(gate2(3, 5), 0);
    cr_assert_eq(rows[0][0], UNTOUCHED);
    cr_assert_eq(kept_of[0], UNTOUCHED);
}

static void check_gate2(int32_t d, int64_t limit, int64_t slots, int64_t *refused_all)
{
    int64_t refused = 0;
    int64_t got = gate2(d, limit);
    for (int32_t s = 0; s < c.rule.ranks; s++) {
        for (int64_t i = 0; i < slots; i++) {
            int32_t tag = tags[s][i], before = 0, expected = -1;
            /* What the walk has met before (slot i, source s). */
            for (int32_t o = 0; o < c.rule.ranks && tag > 0; o++)
                for (int64_t j = 0; j <= i; j++)
                    before += tags[o][j] == tag && (j < i || o < s);
            if (tag > 0 && before < limit)
                expected = before;
            refused += tag > 0 && expected < 0;
            cr_assert_eq(rows[s][i], expected, "receiver %d, sender %d, slot %lld: %d, not %d; %s", d, s,
                         (long long)i, rows[s][i], expected, case_text(&c));
        }
        cr_assert_eq(rows[s][slots], UNTOUCHED);
    }
    cr_assert_eq(got, refused);
    *refused_all += refused;
    for (int32_t e = 0; e < c.first[d + 1] - c.first[d]; e++) {
        int64_t wanted = 0;
        for (int32_t s = 0; s < c.rule.ranks; s++)
            for (int64_t i = 0; i < slots; i++)
                wanted += tags[s][i] == e + 1;
        cr_assert_eq(kept_of[e], wanted < limit ? wanted : limit);
    }
    cr_assert_eq(kept_of[c.first[d + 1] - c.first[d]], UNTOUCHED);
}

/* Tags as gate 1 would fill them: slab by slab from the front, by the brute-force ordinals. */
Test(accept_gate2, agrees_with_counting_what_came_before)
{
    int64_t refused = 0;
    static int32_t ordinal[CELLS];
    for (int32_t i = 0; i < 60; i++) {
        case_of_series(&c, i);
        for (int32_t d = 0; d < c.rule.ranks; d++) {
            int64_t limit = epx_pooled_receiver_limit(&c.rule, c.valid_all);
            int64_t slots = epx_pooled_slots(&c.rule, c.first[d + 1] - c.first[d]);
            cr_assert(slots < SLOTS);
            for (int32_t w = 0; w < c.rule.waves; w++) {
                memset(tags, 0, sizeof(tags));
                for (int32_t s = 0; s < c.rule.ranks; s++) {
                    int64_t spilled;
                    expect_gate1(s, ordinal, &spilled);
                    for (int32_t a = 0; a < c.tokens[s] * c.rule.top_k; a++)
                        if (ordinal[a] >= 0 && c.owner[c.ids[s][a]] == d && ordinal[a] % c.rule.waves == w)
                            tags[s][ordinal[a] / c.rule.waves] = c.local[c.ids[s][a]] + 1;
                }
                check_gate2(d, limit, slots, &refused);
            }
        }
    }
    cr_assert_gt(refused, 100);
}

/* ---- extra waves ------------------------------------------------------------------------------------------------- */

#define MOVES 20000

typedef struct move {
    int32_t wave, s, e, first, rows;
} move_t;

static move_t moves[MOVES];
static int32_t move_count;

static void record(void *context, int32_t w, int32_t s, int32_t e, int32_t first, int32_t taken)
{
    cr_assert_eq(context, (void *)moves);
    cr_assert_lt(move_count, MOVES);
    moves[move_count++] = (move_t){w, s, e, first, taken};
}

static int32_t extra_waves(int32_t d)
{
    static int32_t remaining[CASE_RANKS * CASE_EXPERTS + CASE_RANKS + 1];
    int32_t end = c.rule.ranks * (c.first[d + 1] - c.first[d]) + c.rule.ranks;
    remaining[end] = UNTOUCHED;
    move_count = 0;
    int32_t waves = epx_pooled_extra_waves(&c.rule, d, c.n, remaining, record, moves);
    cr_assert_eq(remaining[end], UNTOUCHED);
    cr_assert_eq(epx_pooled_extra_waves(&c.rule, d, c.n, remaining, NULL, NULL), waves);
    return waves;
}

Test(accept_extra_wave, by_hand)
{
    /* S = 2, E = 2 (rank 0 owns both), A_max = 6, W = 1, cs = 0.5: P = ceil(6 * 2 * 0.5 / 2) = 3, cf = 2/3: R
     * = ceil(12 * 2/3 / 2) = 4. n = [[3, 2], [4, 1]]. wave 0: e0: s0 3 (slab full), s1 1 (expert full); e1:
     * s0 none, s1 1, its slab has 1 left of 3. wave 1: e0: s1 3 (slab full); e1: s0 2. */
    case_shape(&c, 2, 2, 1, 6, 1);
    case_owners(&c, (int32_t[]){0, 0});
    c.rule.cs = 0.5;
    c.rule.cf = 2.0 / 3.0;
    memcpy(c.n, (int32_t[]){3, 2, 4, 1}, 16);
    cr_assert_eq(epx_pooled_slots(&c.rule, 2), 3);
    cr_assert_eq(epx_pooled_rows(&c.rule), 4);
    cr_assert_eq(extra_waves(0), 2);
    move_t expected[] = {{0, 0, 0, 0, 3}, {0, 1, 0, 0, 1}, {0, 1, 1, 0, 1}, {1, 1, 0, 1, 3}, {1, 0, 1, 0, 2}};
    cr_assert_eq(move_count, 5);
    for (int32_t i = 0; i < 5; i++)
        cr_assert_eq(memcmp(&moves[i], &expected[i], sizeof(move_t)), 0,
                     "move %d: wave %d s %d e %d first %d rows %d", i, moves[i].wave, moves[i].s, moves[i].e,
                     moves[i].first, moves[i].rows);
    cr_assert_eq(extra_waves(1), 0);
}

/* One row at a time: in each wave experts ascending, senders ascending, a row moves while slab and expert
 * have room. */
static int32_t expect_extra_waves(int32_t d, int32_t moved[][CASE_RANKS][CASE_EXPERTS])
{
    static int32_t left[CASE_RANKS][CASE_EXPERTS];
    int64_t owned = 0, parts = (int64_t)c.rule.experts * c.rule.waves, slots, room, todo = 0;
    for (int32_t e = 0; e < c.rule.experts; e++) {
        owned += c.owner[e] == d;
        for (int32_t s = 0; s < c.rule.ranks; s++) {
            left[s][e] = c.owner[e] == d ? c.n[s * c.rule.experts + e] : 0;
            todo += left[s][e];
        }
    }
    slots = ceil_of(c.rule.assignments_max * owned, c.rule.cs, parts);
    room = ceil_of(c.rule.ranks * c.rule.assignments_max, c.rule.cf, parts);
    slots = c.rule.dropless ? ceil_of(c.rule.assignments_max, 1, c.rule.waves) : slots < 1 ? 1 : slots;
    room = c.rule.dropless ? slots * c.rule.ranks : room < 1 ? 1 : room;
    int32_t w = 0;
    for (; todo > 0; w++) {
        int64_t slab[CASE_RANKS] = {0};
        cr_assert_lt(w, 1000);
        memset(moved[w], 0, sizeof(moved[w]));
        for (int32_t e = 0; e < c.rule.experts; e++) {
            int64_t taken = 0;
            for (int32_t s = 0; s < c.rule.ranks; s++)
                for (; left[s][e] > 0 && slab[s] < slots && taken < room;
                     taken++, slab[s]++, todo--, left[s][e]--)
                    moved[w][s][e]++;
        }
    }
    return w;
}

Test(accept_extra_wave, agrees_with_row_by_row)
{
    static int32_t moved[1000][CASE_RANKS][CASE_EXPERTS];
    int32_t most = 0;
    for (int32_t i = 0; i < 200; i++) {
        case_of_series(&c, i);
        for (int32_t d = 0; d < c.rule.ranks; d++) {
            int32_t next[CASE_RANKS][CASE_EXPERTS] = {{0}}, at = 0, waves = expect_extra_waves(d, moved);
            cr_assert_eq(extra_waves(d), waves, "%s", case_text(&c));
            most = waves > most ? waves : most;
            for (int32_t w = 0; w < waves; w++)
                for (int32_t e = 0; e < c.rule.experts; e++)
                    for (int32_t s = 0; s < c.rule.ranks; s++) {
                        if (moved[w][s][e] == 0)
                            continue;
                        move_t expected = {w, s, e, next[s][e], moved[w][s][e]};
                        cr_assert_lt(at, move_count);
                        cr_assert_eq(memcmp(&moves[at++], &expected, sizeof(move_t)), 0,
                                     "wave %d s %d e %d; %s", w, s, e, case_text(&c));
                        next[s][e] += moved[w][s][e];
                    }
            cr_assert_eq(at, move_count);
            for (int32_t e = 0; e < c.rule.experts; e++)
                for (int32_t s = 0; s < c.rule.ranks && c.owner[e] == d; s++)
                    cr_assert_eq(next[s][e], c.n[s * c.rule.experts + e], "nothing may be left; %s",
                                 case_text(&c));
        }
    }
    cr_assert_gt(most, 5);
}
