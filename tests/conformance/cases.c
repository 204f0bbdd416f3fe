/*
 * Inputs that broke others: public bug reports about dispatch, combine and all-to-all, each line's whole
 * kind. The number is the line's in the list of cases. Those that need more than a step are elsewhere, under
 * the same names:
 *
 *   case07 failed_route.c   case08 batches.c   case14 case15 values.c   case16 arguments.c, plans.c
 *   case17 plans.c          case18 by_hand.c   case25 failed_route.c
 *
 * Case 24, a process that is killed, needs processes. SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "support/drive.h"

TestSuite(cases, .init = clean_environment);

static void step(const arm_t *arm, int ranks, int experts, int top_k, int tokens_max, pattern_t pattern,
                 const int *tokens)
{
    static uint64_t seed = 4000;
    problem_t *p = problem_new(arm, ranks, experts, top_k, 4, tokens_max);
    p->row_type = seed % 2 ? EPX_BF16 : EPX_FP32;
    problem_inputs(p, pattern, tokens, seed++);
    problem_check(p, (schedule_t)(seed % SCHEDULES));
}

ParameterizedTestParameters(cases, case01_no_tokens_on_one_rank) { return every_arm(); }
ParameterizedTest(int *arm, cases, case01_no_tokens_on_one_rank)
{
    static const int tokens[][2] = {{0, 7}, {7, 0}, {0, 0}, {0, 1}};
    for (int i = 0; i < 4; i++)
        step(&arms[*arm], 2, 4, 2, 7, DISTINCT, tokens[i]);
}

ParameterizedTestParameters(cases, case02_a_rank_receives_nothing) { return every_arm(); }
ParameterizedTest(int *arm, cases, case02_a_rank_receives_nothing)
{
    step(&arms[*arm], 2, 4, 2, 7, ONE_RANK, (int[]){7, 7}); /* rank 1 gets nothing */
    step(&arms[*arm], 3, 6, 2, 7, ONE_EXPERT, (int[]){7, 7, 7});
    step(&arms[*arm], 3, 2, 1, 7, UNIFORM, (int[]){7, 7, 7}); /* rank 2 owns nothing */
    step(&arms[*arm], 3, 6, 2, 7, NOTHING, (int[]){7, 7, 7});
}

/* The backward pass too: problem_check runs one. Several passes, so that a rank that hurries ahead is
 * noticed. */
ParameterizedTestParameters(cases, case03_no_tokens_and_then_backward) { return every_arm(); }
ParameterizedTest(int *arm, cases, case03_no_tokens_and_then_backward)
{
    problem_t *p = problem_new(&arms[*arm], 3, 5, 2, 4, 6);
    problem_inputs(p, DISTINCT, (int[]){0, 6, 0}, 9);
    oracle_t *o = oracle_of(p);
    trial_run(&(trial_t){.problem = p, .oracle = o, .backward = 1, .passes = 4});
    oracle_free(o);
    problem_free(p);
}

ParameterizedTestParameters(cases, case04_all_tokens_to_one) { return every_arm(); }
ParameterizedTest(int *arm, cases, case04_all_tokens_to_one)
{
    static const pattern_t patterns[] = {ONE_EXPERT, OWN_RANK, NEXT_RANK, ONE_RANK};
    for (int i = 0; i < 4; i++) {
        step(&arms[*arm], 2, 4, 2, 16, patterns[i], (int[]){16, 16});
        step(&arms[*arm], 4, 8, 2, 5, patterns[i], (int[]){5, 5, 1, 5});
    }
}

/* One valid id among K, at each place. */
ParameterizedTestParameters(cases, case05_one_valid_id_and_minus_ones) { return every_arm(); }
ParameterizedTest(int *arm, cases, case05_one_valid_id_and_minus_ones)
{
    step(&arms[*arm], 2, 4, 4, 8, NOTHING, (int[]){8, 8});
    problem_t *p = problem_new(&arms[*arm], 2, 8, 4, 4, 8);
    problem_inputs(p, NOTHING, (int[]){8, 8}, 9);
    for (int r = 0; r < 2; r++) {
        for (int t = 0; t < 8; t++)
            p->ids[r][t * p->columns + t % 4] = (t + r) % 8;
    }
    problem_check(p, SERIAL);
}

ParameterizedTestParameters(cases, case06_the_same_expert_several_times_in_a_token) { return every_arm(); }
ParameterizedTest(int *arm, cases, case06_the_same_expert_several_times_in_a_token)
{
    step(&arms[*arm], 2, 4, 4, 8, SAME_IN_TOKEN, (int[]){8, 8});
    step(&arms[*arm], 1, 1, 1, 8, SAME_IN_TOKEN, (int[]){8});
    step(&arms[*arm], 3, 6, 6, 4, SAME_IN_TOKEN, (int[]){4, 4, 4});
}

ParameterizedTestParameters(cases, case09_any_number_of_choices) { return every_arm(); }
ParameterizedTest(int *arm, cases, case09_any_number_of_choices)
{
    static const int top_k[] = {1, 9, 10, 16, 24, 32, 33};
    for (int i = 0; i < 7; i++)
        step(&arms[*arm], 2, 36, top_k[i], 5, i % 2 ? UNIFORM : DISTINCT, (int[]){5, 4});
    step(&arms[*arm], 2, 7, 7, 5, DISTINCT, (int[]){5, 4}); /* K = E */
}

ParameterizedTestParameters(cases, case10_any_number_of_experts_and_ranks) { return every_arm(); }
ParameterizedTest(int *arm, cases, case10_any_number_of_experts_and_ranks)
{
    static const int experts[] = {1, 2, 6, 7, 10, 40, 256}, ranks[] = {1, 2, 3, 4, 6, 12, 18};
    for (int i = 0; i < 7; i++) {
        step(&arms[*arm], ranks[i], experts[(i + 2) % 7], 2, 3, UNIFORM, NULL);
        step(&arms[*arm], ranks[i], experts[(i + 5) % 7], 2, 3, UNIFORM, NULL);
    }
    step(&arms[*arm], 3, 7, 2, 8, UNIFORM, NULL);
    step(&arms[*arm], 4, 2, 2, 8, UNIFORM, NULL); /* E < S */
    step(&arms[*arm], 4, 12, 2, 8, UNIFORM, NULL);
}

ParameterizedTestParameters(cases, case11_any_number_of_tokens) { return every_arm(); }
ParameterizedTest(int *arm, cases, case11_any_number_of_tokens)
{
    static const int tokens[] = {1, 2, 3, 5, 127, 128, 129, 255, 256, 257};
    for (int i = 0; i < 10; i++) {
        step(&arms[*arm], 2, 4, 2, tokens[i], UNIFORM, (int[]){tokens[i], tokens[i]});
        step(&arms[*arm], 2, 4, 2, 257, UNIFORM, (int[]){tokens[i], tokens[9 - i]});
    }
    step(&arms[*arm], 3, 4, 2, 1, UNIFORM, (int[]){1, 1, 1}); /* T_max = 1 */
}

ParameterizedTestParameters(cases, case12_unequal_numbers_of_tokens) { return every_arm(); }
ParameterizedTest(int *arm, cases, case12_unequal_numbers_of_tokens)
{
    step(&arms[*arm], 2, 4, 2, 64, DISTINCT, (int[]){1, 64});
    step(&arms[*arm], 2, 4, 2, 64, DISTINCT, (int[]){64, 1});
    step(&arms[*arm], 4, 4, 2, 64, DISTINCT, (int[]){64, 1, 0, 33});
}

/* A row whose width is no multiple of 32 lanes, 4, 8 or 16 elements keeps every edge. */
ParameterizedTestParameters(cases, case20_widths_beside_a_multiple) { return every_arm(); }
ParameterizedTest(int *arm, cases, case20_widths_beside_a_multiple)
{
    static const int widths[] = {15, 17, 31, 33, 63, 65, 191, 192, 193, 255, 257};
    for (int i = 0; i < 11; i++) {
        problem_t *p = problem_new(&arms[*arm], 2, 4, 2, widths[i], 4);
        p->row_type = (epx_type_t)(EPX_FP32 + i % 3);
        problem_inputs(p, UNIFORM, NULL, 70 + (uint64_t)i);
        problem_check(p, SERIAL);
    }
}

/* More capacity than there are assignments. */
ParameterizedTestParameters(cases, case21_more_capacity_than_rows) { return every_arm(); }
ParameterizedTest(int *arm, cases, case21_more_capacity_than_rows)
{
    for (int i = 0; i < 4; i++) {
        problem_t *p = problem_new(&arms[*arm], 1 + i, 4, 2, 4, 1 + i);
        p->cf = i == 3 ? 1000 : 4;
        p->cs = i == 2 ? 1000 : 4;
        problem_inputs(p, i % 2 ? ONE_EXPERT : UNIFORM, NULL, 70 + (uint64_t)i);
        problem_check(p, SERIAL);
    }
}

/* A full receiver: prefix and waterfill let the last sender pay, fair shares it out, pooled_wave goes round.
 */
static void who_pays(const char *name, int64_t most_apart)
{
    problem_t *p = problem_new(arm_named(name), 4, 4, 1, 4, 16);
    p->cf = 1;
    p->cs = 8;
    problem_inputs(p, ONE_EXPERT, (int[]){16, 16, 16, 16}, 3);
    oracle_t *o = oracle_new(p, p->arm.wire);
    int64_t kept[4] = {0}, least = 16, most = 0, all = 0;
    for (int s = 0; s < 4; s++) {
        for (int a = 0; a < 16; a++)
            kept[s] += o->seat[s][a].fate == KEPT;
        least = kept[s] < least ? kept[s] : least;
        most = kept[s] > most ? kept[s] : most;
        all += kept[s];
    }
    cr_assert_eq(all, 16, "%s keeps %lld of 64, not V * cf / E", name, (long long)all);
    cr_assert_eq(most - least, most_apart, "%s keeps %lld, %lld, %lld, %lld", name, (long long)kept[0],
                 (long long)kept[1], (long long)kept[2], (long long)kept[3]);
    oracle_free(o);
    problem_check(p, SERIAL);
}

Test(cases, case22_who_pays_when_a_receiver_is_full)
{
    who_pays("ragged_1", 16);
    who_pays("ring", 16);
    who_pays("ragged_fair", 0);
    who_pays("ring_fair", 0);
    who_pays("pooled_wave_1", 0);
}

/* Gradients are compared bit by bit, and each expert's are there: none may hide behind a tolerance. */
ParameterizedTestParameters(cases, case23_gradients_of_every_expert) { return every_arm(); }
ParameterizedTest(int *arm, cases, case23_gradients_of_every_expert)
{
    problem_t *p = problem_new(&arms[*arm], 2, 8, 2, 4, 64);
    problem_inputs(p, DISTINCT, (int[]){64, 64}, 5);
    oracle_t *o = oracle_of(p);
    for (int e = 0; e < 8; e++) {
        int with_gradient = 0;
        for (int s = 0; s < 2; s++) {
            for (int64_t a = 0; a < 64 * p->columns; a++)
                with_gradient +=
                    o->seat[s][a].fate == KEPT && o->seat[s][a].expert == e && o->dweight[s][a] < 0;
        }
        cr_assert(with_gradient > 0, "expert %d has no gradient to compare", e);
    }
    oracle_free(o);
    problem_check(p, PIPELINED);
}

/* Uneven counts, offsets of the sender against the receiver's layout: every (sender, expert) count is
 * different. */
ParameterizedTestParameters(cases, case19_uneven_counts) { return every_arm(); }
ParameterizedTest(int *arm, cases, case19_uneven_counts)
{
    problem_t *p = problem_new(&arms[*arm], 3, 5, 1, 4, 100);
    p->cf = 3;
    p->cs = 3;
    problem_inputs(p, NOTHING, (int[]){100, 100, 100}, 5);
    for (int s = 0; s < 3; s++) {
        int64_t t = 0;
        for (int e = 0; e < 5; e++) {
            for (int n = 0; n < 1 + 5 * s + e; n++)
                p->ids[s][(t++ * 37 % 100) * p->columns] = e;
        }
    }
    problem_check(p, SPLIT);
}
