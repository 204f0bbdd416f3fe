/* prefix, waterfill and fair, by hand and row by row. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <string.h>

#include "unit/accept_case.h"

#define UNTOUCHED (-77)

static accept_case_t c;
static int32_t acc[CASE_RANKS * CASE_EXPERTS];
static int64_t scratch[CASE_RANKS + 1];

static void accept(int32_t d, int32_t chunk)
{
    for (int32_t i = 0; i < CASE_RANKS * CASE_EXPERTS; i++)
        acc[i] = UNTOUCHED;
    scratch[c.rule.ranks] = UNTOUCHED;
    epx_ragged_accept(&c.rule, d, chunk, c.valid_all, c.n, acc, scratch);
    cr_assert_eq(scratch[c.rule.ranks], UNTOUCHED);
}

/* One rank owns all of two or three experts; n is [S, E]. cf is chosen so that cap comes out as wanted. */
static void by_hand(int32_t ranks, int32_t experts, const int32_t *n, double cf, epx_accept_t rule)
{
    int32_t owner[CASE_EXPERTS] = {0};
    case_shape(&c, ranks, experts, 1, 1000, 1);
    case_owners(&c, owner);
    memcpy(c.n, n, (size_t)(ranks * experts) * sizeof(*n));
    for (int32_t i = 0; i < ranks * experts; i++)
        c.valid_all += n[i];
    c.rule.cf = cf;
    c.rule.accept = rule;
    accept(0, 0);
}

static void expect(const int32_t *wanted)
{
    for (int32_t i = 0; i < c.rule.ranks * c.rule.experts; i++)
        cr_assert_eq(acc[i], wanted[i], "sender %d, expert %d: %d, not %d", i / c.rule.experts,
                     i % c.rule.experts, acc[i], wanted[i]);
}

/* V = 40, cf = 0.5: cap = 20. Expert 0 takes 18 of 18, expert 1 gets 2 of sender 0. */
Test(accept_ragged, prefix_by_hand)
{
    by_hand(3, 3, (int32_t[]){4, 6, 1, 4, 5, 2, 10, 5, 3}, 0.5, EPX_ACCEPT_PREFIX);
    expect((int32_t[]){4, 2, 0, 4, 0, 0, 10, 0, 0});
}

/* c = ceil(40 * 0.5 / 3) = 7. N = 18, 16, 6: floors 7, 7, 6, slack 1 for expert 0. Senders ascending. */
Test(accept_ragged, waterfill_by_hand)
{
    by_hand(3, 3, (int32_t[]){4, 6, 1, 4, 5, 2, 10, 5, 3}, 0.5, EPX_ACCEPT_WATERFILL);
    expect((int32_t[]){4, 6, 1, 4, 1, 2, 0, 0, 3});
}

/* V = 30, cf = 0.75: c = ceil(7.5) = 8. N = 1, 12, 17: floors 1, 8, 8, slack 7: expert 1 takes 4 (all of its
 * 12), expert 2 the last 3. */
Test(accept_ragged, waterfill_hands_slack_on)
{
    by_hand(2, 3, (int32_t[]){1, 7, 5, 0, 5, 12}, 0.75, EPX_ACCEPT_WATERFILL);
    expect((int32_t[]){1, 7, 5, 0, 5, 6});
}

/* V = 10, cf = 1.1, E = 3: c = ceil(3.67) = 4, so 12, but 10 rows are all there are. */
Test(accept_ragged, waterfill_keeps_all_that_fits)
{
    by_hand(2, 3, (int32_t[]){3, 3, 0, 3, 0, 1}, 1.1, EPX_ACCEPT_WATERFILL);
    expect((int32_t[]){3, 3, 0, 3, 0, 1});
}

/* The floors' sum can exceed prefix's cap by rounding: V = 10, cf = 0.5, E = 4: c = ceil(1.25) = 2, cap = 5,
 * all N_g >= 2: floors 2, 2, 2, 2. */
Test(accept_ragged, waterfill_knows_no_cap)
{
    by_hand(1, 4, (int32_t[]){3, 2, 2, 3}, 0.5, EPX_ACCEPT_WATERFILL);
    expect((int32_t[]){2, 2, 2, 2});
}

/* In doubles 10 * 1.1 / 11 is 1 and 50 * 1.1 / 11 is a little more than 5: cap = 6 for 5 experts whose even
 * share is 1. prefix takes 6 rows, waterfill 5 * 1. */
Test(accept_ragged, waterfill_stops_at_the_shares)
{
    for (int32_t rule = EPX_ACCEPT_PREFIX; rule <= EPX_ACCEPT_WATERFILL; rule++) {
        int32_t owner[11] = {0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1}, taken = 0;
        case_shape(&c, 2, 11, 1, 100, 1);
        case_owners(&c, owner);
        c.n[0] = 10;
        c.valid_all = 10;
        c.rule.cf = 1.1;
        c.rule.accept = (epx_accept_t)rule;
        accept(0, 0);
        for (int32_t e = 0; e < 5; e++)
            taken += acc[e] + acc[11 + e];
        cr_assert_eq(taken, rule == EPX_ACCEPT_PREFIX ? 6 : 5);
    }
}

/* Quota 8 of 18: 4 * 8 / 18 = 1.78, 1.78, 4.44: whole 1, 1, 4, two seats left for the remainders 14/18,
 * 14/18. */
Test(accept_ragged, fair_by_hand)
{
    by_hand(3, 1, (int32_t[]){4, 4, 10}, 8.0 / 18.0, EPX_ACCEPT_FAIR);
    expect((int32_t[]){2, 2, 4});
}

/* Quota 5 of 9 over 3, 3, 3: 1.67 each; two seats go to the lower senders. */
Test(accept_ragged, fair_ties_go_to_the_lower_sender)
{
    by_hand(3, 1, (int32_t[]){3, 3, 3}, 0.5, EPX_ACCEPT_FAIR);
    cr_assert_eq(epx_ragged_capacity(&c.rule, 1, 9), 5);
    expect((int32_t[]){2, 2, 1});
}

/* Quota 2 of 4 over 1, 0, 1, 1, 1: 0.5 each; a sender of nothing gets nothing. Quota 1 of 1000 over 999 and
 * 1: the seat goes to the larger remainder, 999/1000. */
Test(accept_ragged, fair_small_quotas)
{
    by_hand(5, 1, (int32_t[]){1, 0, 1, 1, 1}, 0.5, EPX_ACCEPT_FAIR);
    expect((int32_t[]){1, 0, 1, 0, 0});
    by_hand(2, 1, (int32_t[]){1, 999}, 0.001, EPX_ACCEPT_FAIR);
    expect((int32_t[]){0, 1});
}

/* CASES 22: the last sender must not pay for all. prefix makes it pay, fair does not. */
Test(accept_ragged, fair_spares_the_last_sender)
{
    by_hand(4, 1, (int32_t[]){10, 10, 10, 10}, 0.75, EPX_ACCEPT_PREFIX);
    expect((int32_t[]){10, 10, 10, 0});
    by_hand(4, 1, (int32_t[]){10, 10, 10, 10}, 0.75, EPX_ACCEPT_FAIR);
    expect((int32_t[]){8, 8, 7, 7});
}

/* Nearly 3 * 2^30 rows are wanted: sums pass 2^31 and products 2^60. */
Test(accept_ragged, large_counts_stay_exact)
{
    static const int32_t counts[] = {1 << 30, (1 << 30) - 1, 1 << 30};
    by_hand(3, 1, counts, 0.5, EPX_ACCEPT_PREFIX);
    /* A_max is 1000 here, so that phys = ceil(3000 * 0.5) binds prefix. */
    cr_assert_eq(acc[0] + acc[1] + acc[2], 1500);
    by_hand(3, 1, counts, 0.5, EPX_ACCEPT_FAIR);
    c.rule.assignments_max = INT32_MAX;
    accept(0, 0);
    /* c = ceil((3 * 2^30 - 1) / 2) = 1610612736 = 3 * 2^29; shares 2^29 + 1/6, 2^29 - 1/3, 2^29 + 1/6
     * (about): whole parts 2^29, 2^29 - 1, 2^29, one seat, largest remainder 2/3: sender 1. */
    cr_assert_eq(acc[0], 1 << 29);
    cr_assert_eq(acc[1], 1 << 29);
    cr_assert_eq(acc[2], 1 << 29);
}

Test(accept_ragged, an_empty_chunk_touches_nothing)
{
    case_shape(&c, 3, 7, 2, 20, 5); /* rank 1 owns 2 experts, so that chunks 2, 3, 4 are empty */
    case_routing(&c, 1);
    for (int32_t rule = EPX_ACCEPT_PREFIX; rule <= EPX_ACCEPT_FAIR; rule++) {
        c.rule.accept = (epx_accept_t)rule;
        for (int32_t chunk = 2; chunk < 5; chunk++) {
            accept(1, chunk);
            for (int32_t i = 0; i < CASE_RANKS * CASE_EXPERTS; i++)
                cr_assert_eq(acc[i], UNTOUCHED);
        }
    }
}

/* ---- row by row --------------------------------------------------------------------------------------------------- */

static int64_t ceil_of(int64_t product, double factor, int64_t divisor)
{
    double value = (double)product * factor / (double)divisor;
    int64_t whole = (int64_t)value;
    return (double)whole < value ? whole + 1 : whole;
}

/* Seats are dealt one at a time, each to the sender whose remainder is the largest so far. */
static void deal_fair(int32_t e, int64_t quota, int64_t all, int32_t *expected)
{
    int64_t left[CASE_RANKS], given = 0;
    for (int32_t s = 0; s < c.rule.ranks; s++) {
        int64_t product = quota * c.n[s * c.rule.experts + e];
        left[s] = product % all;
        expected[s * c.rule.experts + e] = (int32_t)(product / all);
        given += product / all;
    }
    for (; given < quota; given++) {
        int32_t best = 0;
        for (int32_t s = 1; s < c.rule.ranks; s++)
            if (left[s] > left[best])
                best = s;
        expected[best * c.rule.experts + e]++;
        left[best] = -1;
    }
}

/* The experts of rank d's chunk, found by dealing its experts out. */
static int32_t chunk_of(int32_t d, int32_t chunk, int32_t *experts)
{
    int32_t owned = 0, size = 0, before = 0, seen = 0, count = 0;
    for (int32_t e = 0; e < c.rule.experts; e++)
        owned += c.owner[e] == d;
    for (int32_t i = 0; i < owned; i++) {
        size += i % c.rule.waves == chunk;
        before += i % c.rule.waves < chunk;
    }
    for (int32_t e = 0; e < c.rule.experts; e++) {
        if (c.owner[e] != d)
            continue;
        if (seen >= before && seen < before + size)
            experts[count++] = e;
        seen++;
    }
    return count;
}

static void expect_rows(const int32_t *experts, int32_t count, int32_t *expected)
{
    int64_t slots = (int64_t)c.rule.ranks * c.rule.assignments_max, share, cap, quota[CASE_EXPERTS] = {0},
            total = 0;
    int64_t wanted[CASE_EXPERTS] = {0};
    share = c.rule.dropless ? c.valid_all : ceil_of(c.valid_all, c.rule.cf, c.rule.experts);
    cap = c.rule.dropless ? c.valid_all : ceil_of(c.valid_all * count, c.rule.cf, c.rule.experts);
    int64_t phys = ceil_of(slots, c.rule.cf, c.rule.experts);
    if (!c.rule.dropless) {
        cap = cap > count * (phys < 1 ? 1 : phys) ? count * (phys < 1 ? 1 : phys) : cap;
        cap = cap < count ? count : cap;
    }
    for (int32_t i = 0; i < count; i++)
        for (int32_t s = 0; s < c.rule.ranks; s++)
            wanted[i] += c.n[s * c.rule.experts + experts[i]];

    if (c.rule.accept == EPX_ACCEPT_PREFIX) {
        for (int32_t i = 0; i < count; i++)
            for (; quota[i] < wanted[i] && total < cap; total++)
                quota[i]++;
    } else {
        for (int32_t i = 0; i < count; i++)
            for (; quota[i] < wanted[i] && quota[i] < share; total++)
                quota[i]++;
        for (int32_t i = 0; i < count; i++)
            for (; quota[i] < wanted[i] && total < count * share; total++)
                quota[i]++;
    }
    for (int32_t i = 0; i < count; i++) {
        int32_t e = experts[i];
        if (c.rule.accept == EPX_ACCEPT_FAIR && wanted[i] > 0) {
            deal_fair(e, quota[i], wanted[i], expected);
            continue;
        }
        for (int32_t s = 0; s < c.rule.ranks; s++) {
            int32_t *cell = &expected[s * c.rule.experts + e];
            for (*cell = 0; *cell < c.n[s * c.rule.experts + e] && quota[i] > 0; quota[i]--)
                ++*cell;
        }
    }
}

Test(accept_ragged, agrees_with_row_by_row)
{
    static int32_t expected[CASE_RANKS * CASE_EXPERTS];
    int64_t kept = 0, wanted = 0;
    for (int32_t i = 0; i < 400; i++) {
        case_of_series(&c, i);
        for (int32_t rule = EPX_ACCEPT_PREFIX; rule <= EPX_ACCEPT_FAIR; rule++) {
            c.rule.accept = (epx_accept_t)rule;
            for (int32_t d = 0; d < c.rule.ranks; d++) {
                for (int32_t chunk = 0; chunk < c.rule.waves; chunk++) {
                    int32_t experts[CASE_EXPERTS], count = chunk_of(d, chunk, experts);
                    for (int32_t j = 0; j < CASE_RANKS * CASE_EXPERTS; j++)
                        expected[j] = UNTOUCHED;
                    expect_rows(experts, count, expected);
                    accept(d, chunk);
                    for (int32_t j = 0; j < CASE_RANKS * CASE_EXPERTS; j++) {
                        cr_assert_eq(acc[j], expected[j],
                                     "rule %d, rank %d, chunk %d, entry %d: %d, not %d; %s", rule, d, chunk,
                                     j, acc[j], expected[j], case_text(&c));
                        kept += acc[j] > 0 ? acc[j] : 0;
                    }
                }
            }
            wanted += c.valid_all;
        }
    }
    cr_assert(kept > wanted / 2 && kept < wanted, "the series must drop some and keep most: %lld of %lld",
              (long long)kept, (long long)wanted);
}
