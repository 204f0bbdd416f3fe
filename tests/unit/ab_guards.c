/* Each guard, seen to hold and seen to fire, on results made by hand. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>

#include "ab_made.h"
#include "bench/ab/guards.h"

static epx_ab_result_t result;

static void make(void) { result = made_result(3, 3); }

static void unmake(void) { epx_ab_free(&result); }

TestSuite(ab_guards, .init = make, .fini = unmake);

/* Arm 1 is void because of this guard, the others are not. */
static void expect_void(epx_ab_guard_t guard)
{
    epx_ab_check_guards(&result);
    cr_assert_eq(result.arm[1].guard[guard].state, EPX_AB_VOID, "%s: %s", epx_ab_guard_name(guard),
                 result.arm[1].guard[guard].text);
    cr_assert_neq(result.arm[1].guard[guard].text[0], '\0');
    cr_assert(result.arm[1].is_void);
    cr_assert(!result.arm[0].is_void && !result.arm[2].is_void);
    for (int g = 0; g < EPX_AB_GUARDS; g++)
        cr_assert(g == (int)guard || result.arm[1].guard[g].state != EPX_AB_VOID, "%s fired too: %s",
                  epx_ab_guard_name((epx_ab_guard_t)g), result.arm[1].guard[g].text);
}

Test(ab_guards, all_hold)
{
    epx_ab_check_guards(&result);
    for (int32_t a = 0; a < 3; a++) {
        cr_assert(!result.arm[a].is_void);
        for (int g = 0; g < EPX_AB_GUARDS; g++)
            cr_assert_eq(result.arm[a].guard[g].state, EPX_AB_PASSED, "%s of arm %d: %s",
                         epx_ab_guard_name((epx_ab_guard_t)g), a, result.arm[a].guard[g].text);
    }
}

static void for_all_draws(void (*spoil)(epx_ab_run_t *run))
{
    for (int32_t i = 0; i < result.runs; i++)
        if (result.run[i].arm == 1 && result.run[i].part != EPX_AB_TWIN)
            spoil(&result.run[i]);
}

static void other_weights(epx_ab_run_t *run) { run->weights ^= 1; }
static void slow_clock(epx_ab_run_t *run) { run->clock_mhz = 2960; }       /* 1.3% */
static void nearly_the_clock(epx_ab_run_t *run) { run->clock_mhz = 2980; } /* 0.7% */
static void throttled(epx_ab_run_t *run) { run->throttles = 1; }
static void allocated(epx_ab_run_t *run) { run->allocations = 1; }
static void hole(epx_ab_run_t *run) { run->step[2].step++; }
static void short_run(epx_ab_run_t *run) { run->steps--; }
static void no_loss(epx_ab_run_t *run) { run->step[2].loss = INFINITY; }
static void failed(epx_ab_run_t *run) { snprintf(run->failed, sizeof run->failed, "ended with status 3"); }

Test(ab_guards, weights)
{
    for_all_draws(other_weights);
    expect_void(EPX_AB_GUARD_WEIGHTS);
}
Test(ab_guards, clocks)
{
    for_all_draws(slow_clock);
    expect_void(EPX_AB_GUARD_CLOCKS);
}
Test(ab_guards, throttling)
{
    for_all_draws(throttled);
    expect_void(EPX_AB_GUARD_CLOCKS);
}
Test(ab_guards, registration)
{
    for_all_draws(allocated);
    expect_void(EPX_AB_GUARD_REGISTRATION);
}
Test(ab_guards, window_with_a_hole)
{
    for_all_draws(hole);
    expect_void(EPX_AB_GUARD_WINDOW);
}
Test(ab_guards, window_too_short)
{
    for_all_draws(short_run);
    expect_void(EPX_AB_GUARD_WINDOW);
}
Test(ab_guards, window_without_a_loss)
{
    for_all_draws(no_loss);
    expect_void(EPX_AB_GUARD_WINDOW);
}
Test(ab_guards, a_command_that_failed)
{
    for_all_draws(failed);
    expect_void(EPX_AB_GUARD_WINDOW);
}

Test(ab_guards, clocks_within_one_percent_pass)
{
    for_all_draws(nearly_the_clock);
    epx_ab_check_guards(&result);
    cr_assert_eq(result.arm[1].guard[EPX_AB_GUARD_CLOCKS].state, EPX_AB_PASSED);
}

Test(ab_guards, one_bad_draw_of_three_is_left_out)
{
    made_run(&result, 1, EPX_AB_PLAIN, 2)->allocations = 7;
    epx_ab_check_guards(&result);
    cr_assert(!result.arm[1].is_void);
    cr_assert_null(epx_ab_find_run(&result, 1, EPX_AB_PLAIN, 2, 0));
    cr_assert_not_null(epx_ab_find_run(&result, 1, EPX_AB_PLAIN, 1, 0));
    cr_assert_eq(result.arm[1].guard[EPX_AB_GUARD_REGISTRATION].state, EPX_AB_PASSED);
}

Test(ab_guards, two_bad_draws_of_three_void_the_arm)
{
    made_run(&result, 1, EPX_AB_PLAIN, 1)->allocations = 7;
    made_run(&result, 1, EPX_AB_PLAIN, 2)->allocations = 7;
    expect_void(EPX_AB_GUARD_REGISTRATION);
}

Test(ab_guards, routing)
{
    made_run(&result, 1, EPX_AB_PLAIN, 1)->first_choices ^= 1;
    expect_void(EPX_AB_GUARD_ROUTING);
}

/* Rounding may turn a few choices of later layers, 10 of 10,000 at most. */
Test(ab_guards, routing_of_later_layers)
{
    epx_ab_run_t *twin = made_run(&result, 1, EPX_AB_TWIN, 0);
    twin->loads[0] -= 10, twin->loads[1] += 10;
    epx_ab_check_guards(&result);
    cr_assert_eq(result.arm[1].guard[EPX_AB_GUARD_ROUTING].state, EPX_AB_PASSED);
}

Test(ab_guards, routing_of_later_layers_beyond_rounding)
{
    epx_ab_run_t *twin = made_run(&result, 1, EPX_AB_TWIN, 0);
    twin->loads[0] -= 11, twin->loads[1] += 11;
    expect_void(EPX_AB_GUARD_ROUTING);
}

/* 2 * 1e-5 is the limit of a loss of 2. */
Test(ab_guards, twins)
{
    made_run(&result, 1, EPX_AB_TWIN, 0)->step[0].loss = 2 + 2.2e-5; /* discarded: the mean stays */
    expect_void(EPX_AB_GUARD_TWINS);
}

Test(ab_guards, twins_within_the_limit)
{
    made_run(&result, 1, EPX_AB_TWIN, 0)->step[0].loss = 2 + 1.8e-5;
    epx_ab_check_guards(&result);
    cr_assert_eq(result.arm[1].guard[EPX_AB_GUARD_TWINS].state, EPX_AB_PASSED);
}

/* The A/A spread is 0 here, so that the limit is 3 * 1e-5 of the loss 2.0, 6e-5. One counted step of three.
 */
Test(ab_guards, gap)
{
    made_run(&result, 0, EPX_AB_TWIN, 0)->step[3].loss += 3 * 7e-5;
    epx_ab_check_guards(&result);
    cr_assert_eq(result.arm[0].guard[EPX_AB_GUARD_GAP].state, EPX_AB_VOID);
    cr_assert(result.arm[0].is_void && !result.arm[1].is_void);
}

Test(ab_guards, gap_within_three_spreads)
{
    made_run(&result, 0, EPX_AB_TWIN, 0)->step[3].loss += 3 * 5e-5;
    epx_ab_check_guards(&result);
    cr_assert_eq(result.arm[0].guard[EPX_AB_GUARD_GAP].state, EPX_AB_PASSED);
}

Test(ab_guards, gap_of_an_arm_that_drops_nothing)
{
    for (int32_t s = 0; s < MADE_STEPS; s++)
        made_run(&result, 1, EPX_AB_PLAIN, 0)->step[s].loss += 0.01;
    made_run(&result, 1, EPX_AB_AGAIN, 1)->void_why[0] = 'x'; /* leaves the A/A spread alone */
    expect_void(EPX_AB_GUARD_GAP);
}

Test(ab_guards, gradients)
{
    result.arm[1].gradients.worst = 1.1e-3;
    expect_void(EPX_AB_GUARD_GRADIENTS);
}

Test(ab_guards, gradients_that_are_no_number)
{
    result.arm[1].gradients.worst = NAN;
    expect_void(EPX_AB_GUARD_GRADIENTS);
}

Test(ab_guards, gradients_with_drops)
{
    result.arm[1].gradients.dropped = 1;
    expect_void(EPX_AB_GUARD_GRADIENTS);
}

Test(ab_guards, payload)
{
    snprintf(made_run(&result, 1, EPX_AB_PLAIN, 2)->payload, EPX_AB_TEXT, "a row is wrong");
    expect_void(EPX_AB_GUARD_PAYLOAD);
}

Test(ab_guards, accounting)
{
    snprintf(made_run(&result, 1, EPX_AB_PLAIN, 2)->accounting, EPX_AB_TEXT, "one is missing");
    expect_void(EPX_AB_GUARD_ACCOUNTING);
}

/* The first layer of the first step, against the rules. */
Test(ab_guards, accounting_against_the_rules)
{
    result.arm[1].ruled_first =
        (epx_ab_ruled_t){.ranks = 64, .count = {.valid = 500, .kept = 490, .dropped_sender = 10}};
    made_run(&result, 1, EPX_AB_PLAIN, 0)->first_layer =
        (epx_ab_counts_t){.valid = 500, .kept = 490, .dropped_sender = 9, .dropped_receiver = 1};
    expect_void(EPX_AB_GUARD_ACCOUNTING);
}

Test(ab_guards, bytes)
{
    made_run(&result, 1, EPX_AB_PLAIN, 2)->step[3].received_bytes -= 64;
    expect_void(EPX_AB_GUARD_BYTES);
}

Test(ab_guards, another_transport)
{
    snprintf(made_run(&result, 1, EPX_AB_PLAIN, 2)->transport, EPX_AB_NAME, "ring");
    expect_void(EPX_AB_GUARD_FALLBACK);
}

Test(ab_guards, a_path_that_changes)
{
    snprintf(made_run(&result, 1, EPX_AB_PLAIN, 2)->fabric, EPX_AB_NAME, "mixed");
    expect_void(EPX_AB_GUARD_FALLBACK);
}

/* 12288 bytes by the plans, of which 124 (1.01%) did not pass the group's counter. */
Test(ab_guards, bytes_by_another_path)
{
    made_run(&result, 1, EPX_AB_PLAIN, 2)->group_bytes = 12288 - 124;
    expect_void(EPX_AB_GUARD_FALLBACK);
}

Test(ab_guards, few_bytes_by_another_path)
{
    made_run(&result, 1, EPX_AB_PLAIN, 2)->group_bytes = 12288 - 122;
    epx_ab_check_guards(&result);
    cr_assert_eq(result.arm[1].guard[EPX_AB_GUARD_FALLBACK].state, EPX_AB_PASSED);
}
