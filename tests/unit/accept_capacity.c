/* Blocks and capacities of the accept rules. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include "unit/accept_case.h"

static accept_case_t c;

Test(accept_capacity, blocks_give_the_first_parts_one_more)
{
    int32_t seven[] = {0, 3, 5, 7}, two[] = {0, 1, 2, 2, 2};
    for (int32_t i = 0; i <= 3; i++)
        cr_assert_eq(epx_block_first(i, 7, 3), seven[i]);
    for (int32_t i = 0; i <= 4; i++)
        cr_assert_eq(epx_block_first(i, 2, 4), two[i]);
    int32_t part[] = {0, 0, 0, 1, 1, 2, 2};
    for (int32_t i = 0; i < 7; i++)
        cr_assert_eq(epx_block_of(i, 7, 3), part[i]);
    cr_assert_eq(epx_block_of(0, 2, 4), 0);
    cr_assert_eq(epx_block_of(1, 2, 4), 1);
}

Test(accept_capacity, virtual_senders_are_blocks_of_tokens)
{
    for (int64_t tokens = 0; tokens <= 30; tokens++) {
        for (int32_t m = 1; m <= 9; m++) {
            int64_t at = 0; /* count the blocks' tokens one by one */
            for (int32_t v = 0; v < m; v++) {
                cr_assert_eq(epx_virtual_first(v, tokens, m), at, "T=%d m=%d v=%d", (int)tokens, m, v);
                int64_t size = 0;
                for (int64_t i = v; i < tokens; i += m)
                    size++;
                for (int64_t i = 0; i < size; i++, at++)
                    cr_assert_eq(epx_virtual_sender(at, tokens, m), v, "T=%d m=%d t=%d", (int)tokens, m,
                                 (int)at);
            }
            cr_assert_eq(epx_virtual_first(m, tokens, m), tokens);
        }
    }
}

/* In exact arithmetic 14 * 5 * 1.1 / 7 is 11. (70 * 1.1) / 7 gives 11 in doubles too, while 14 * 1.1 * 5 / 7
 * and 70 * (1.1 / 7) lie just above 11 and would give 12; with 10, 5, 11 it is the other way round. */
Test(accept_capacity, integer_products_come_first)
{
    case_shape(&c, 2, 7, 1, 14, 1);
    c.rule.cs = 1.1;
    cr_assert_eq(epx_pooled_slots(&c.rule, 5), 11);
    case_shape(&c, 2, 11, 1, 10, 1);
    c.rule.cs = 1.1;
    cr_assert_eq(epx_pooled_slots(&c.rule, 5), 6);
    case_shape(&c, 5, 6, 1, 48, 2);
    c.rule.cf = 1.05;
    cr_assert_eq(epx_pooled_rows(&c.rule), 21);
}

Test(accept_capacity, hand_values)
{
    /* A_max = 20 * 2 = 40, S = 3, E = 7, W = 3, factors 1.15:
     * P(El=3) = ceil(120 * 1.15 / 21) = ceil(6.571) = 7, P(2) = ceil(92 / 21) = 5, R = ceil(120 * 1.15 / 21)
     * = 7. */
    case_shape(&c, 3, 7, 2, 20, 3);
    cr_assert_eq(epx_pooled_slots(&c.rule, 3), 7);
    cr_assert_eq(epx_pooled_slots(&c.rule, 2), 5);
    cr_assert_eq(epx_pooled_slots(&c.rule, 0), 0);
    cr_assert_eq(epx_pooled_rows(&c.rule), 7);
    /* 13 valid of this sender: ceil(39 * 1.15 / 21) = ceil(2.136) = 3; none: 0; 100 in all: ceil(115 / 21)
     * = 6. */
    cr_assert_eq(epx_pooled_sender_limit(&c.rule, 3, 13), 3);
    cr_assert_eq(epx_pooled_sender_limit(&c.rule, 3, 0), 0);
    cr_assert_eq(epx_pooled_sender_limit(&c.rule, 0, 13), 0);
    cr_assert_eq(epx_pooled_receiver_limit(&c.rule, 100), 6);
    cr_assert_eq(epx_pooled_receiver_limit(&c.rule, 0), 0);
    /* phys(2) = 2 * ceil(120 * 1.15 / 7) = 2 * 20; cap(2) at V = 10: ceil(20 * 1.15 / 7) = 4, at V = 0: 2, at
     * V = 120: ceil(240 * 1.15 / 7) = ceil(39.43) = 40. */
    cr_assert_eq(epx_ragged_physical(&c.rule, 2), 40);
    cr_assert_eq(epx_ragged_capacity(&c.rule, 2, 10), 4);
    cr_assert_eq(epx_ragged_capacity(&c.rule, 2, 0), 2);
    cr_assert_eq(epx_ragged_capacity(&c.rule, 2, 120), 40);
    cr_assert_eq(epx_ragged_physical(&c.rule, 0), 0);
    cr_assert_eq(epx_ragged_capacity(&c.rule, 0, 120), 0);
}

Test(accept_capacity, small_factors_leave_one_row)
{
    case_shape(&c, 3, 7, 1, 1, 3);
    c.rule.cf = c.rule.cs = 0.001;
    cr_assert_eq(epx_pooled_slots(&c.rule, 1), 1);
    cr_assert_eq(epx_pooled_rows(&c.rule), 1);
    cr_assert_eq(epx_ragged_physical(&c.rule, 3), 3);
    cr_assert_eq(epx_ragged_capacity(&c.rule, 3, 3), 3);
}

Test(accept_capacity, dropless_takes_everything)
{
    /* A_max = 25, W = 3: P = ceil(25 / 3) = 9, R = 4 * 9. */
    case_shape(&c, 4, 2, 5, 5, 3);
    c.rule.dropless = 1;
    cr_assert_eq(epx_pooled_slots(&c.rule, 1), 9);
    cr_assert_eq(epx_pooled_slots(&c.rule, 0), 0);
    cr_assert_eq(epx_pooled_rows(&c.rule), 36);
    cr_assert_eq(epx_pooled_sender_limit(&c.rule, 1, 1), 9);
    cr_assert_eq(epx_pooled_receiver_limit(&c.rule, 1), 36);
    cr_assert_eq(epx_ragged_physical(&c.rule, 1), 100);
    cr_assert_eq(epx_ragged_physical(&c.rule, 0), 0);
    cr_assert_eq(epx_ragged_capacity(&c.rule, 1, 77), 77);
    cr_assert_eq(epx_ragged_capacity(&c.rule, 0, 77), 0);
}

Test(accept_capacity, absurd_factors_saturate)
{
    case_shape(&c, 20, 40, 8, 40, 1);
    c.rule.cf = c.rule.cs = 1e300;
    c.rule.assignments_max = (int64_t)1 << 31;
    cr_assert_eq(epx_pooled_slots(&c.rule, 2), (int64_t)1 << 40);
    cr_assert_eq(epx_pooled_rows(&c.rule), (int64_t)1 << 40);
    cr_assert_eq(epx_ragged_physical(&c.rule, 2), (int64_t)1 << 41);
}

/* Quarters are exact in doubles, so that doubles and whole numbers must agree. */
Test(accept_capacity, agrees_with_whole_numbers)
{
    dice_t dice = {0xca9};
    for (int32_t i = 0; i < 20000; i++) {
        int32_t ranks = (int32_t)dice_range(&dice, 1, 128), experts = (int32_t)dice_range(&dice, 1, 512);
        int64_t cf = 25 * dice_range(&dice, 1, 16), cs = 25 * dice_range(&dice, 1, 16), all;
        int32_t local = (int32_t)dice_range(&dice, 1, experts);
        epx_rule_t rule = {.ranks = ranks,
                           .experts = experts,
                           .top_k = 1,
                           .assignments_max = dice_range(&dice, 1, 600000),
                           .cf = (double)cf / 100,
                           .cs = (double)cs / 100,
                           .waves = (int32_t)dice_range(&dice, 1, 7)};
        int64_t parts = (int64_t)experts * rule.waves, slots, rows, phys, cap;
        all = rule.assignments_max * ranks;
        int64_t valid = dice_range(&dice, 0, rule.assignments_max), valid_all = dice_range(&dice, 0, all);

        slots = exact_ceil(rule.assignments_max * local, cs, parts);
        rows = exact_ceil(all, cf, parts);
        phys = local * exact_ceil(all, cf, experts);
        cr_assert_eq(epx_pooled_slots(&rule, local), slots, "round %d", i);
        cr_assert_eq(epx_pooled_rows(&rule), rows, "round %d", i);
        cr_assert_eq(epx_ragged_physical(&rule, local), phys, "round %d", i);
        int64_t limit = exact_ceil(valid * local, cs, parts);
        cr_assert_eq(epx_pooled_sender_limit(&rule, local, valid), limit < slots ? limit : slots, "round %d",
                     i);
        limit = exact_ceil(valid_all, cf, parts);
        cr_assert_eq(epx_pooled_receiver_limit(&rule, valid_all), limit < rows ? limit : rows, "round %d", i);
        cap = exact_ceil(valid_all * local, cf, experts);
        cap = cap < local ? local : cap > phys ? phys : cap;
        cr_assert_eq(epx_ragged_capacity(&rule, local, valid_all), cap, "round %d", i);
    }
}

Test(accept_capacity, rule_of_a_shape_uses_virtual_ranks)
{
    epx_shape_t shape = {.ranks = 2,
                         .virtual_ranks = 6,
                         .splits = 3,
                         .experts = 12,
                         .top_k = 2,
                         .columns = 3,
                         .tokens_max = 10,
                         .virtual_tokens_max = 4,
                         .capacity_factor = 1.5,
                         .sender_factor = 2,
                         .waves = 9,
                         .accept = EPX_ACCEPT_FAIR};
    epx_rule_t rule = epx_rule_of(&shape, 5);
    cr_assert_eq(rule.ranks, 6);
    cr_assert_eq(rule.experts, 12);
    cr_assert_eq(rule.top_k, 2);
    cr_assert_eq(rule.assignments_max, 8);
    cr_assert_float_eq(rule.cf, 1.5, 0);
    cr_assert_float_eq(rule.cs, 2, 0);
    cr_assert_eq(rule.dropless, 0);
    cr_assert_eq(rule.waves, 5);
    cr_assert_eq(rule.accept, EPX_ACCEPT_FAIR);
    cr_assert_eq(rule.owners, &shape.virt);
}
