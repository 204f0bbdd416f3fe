/* Summaries of arms, differences of pairs, words. SPDX-License-Identifier: Apache-2.0 */
#include "bench/ab/verdict.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/ab/verdict_text.h"
#include "tools/common/numbers.h"
#include "tools/common/program.h"

/* ---- arms --------------------------------------------------------------------------------------------------------- */

static epx_ab_interval_t summary_of(const epx_ab_result_t *result, int32_t arm, epx_ab_number_t number)
{
    double *values = epx_tool_alloc((size_t)result->runs + 1, sizeof *values);
    int32_t count = 0;
    for (int32_t i = 0; i < result->runs; i++) {
        const epx_ab_run_t *run = &result->run[i];
        if (run->arm == arm && run->part == EPX_AB_PLAIN && run->void_why[0] == '\0')
            values[count++] = epx_ab_run_number(run, number);
    }
    epx_ab_interval_t interval = epx_ab_interval(values, count, EPX_AB_CONFIDENCE);
    free(values);
    return interval;
}

/* Pairs of an arm's bystander with the first arm's; flagged when beyond the limit and beyond the A/A spread.
 */
static void compare_bystander(epx_ab_result_t *result, int32_t a, int32_t which)
{
    static const epx_ab_number_t numbers[] = {EPX_AB_RUN_EXPERTS, EPX_AB_RUN_ATTENTION, EPX_AB_RUN_GRADIENTS};
    double *share = epx_tool_alloc((size_t)result->runs + 1, sizeof *share);
    double *again = epx_tool_alloc((size_t)result->runs + 1, sizeof *again);
    int32_t pairs = 0, twice = 0;
    for (int32_t i = 0; i < result->runs; i++) {
        const epx_ab_run_t *run = &result->run[i];
        if (run->void_why[0] != '\0' || (run->part != EPX_AB_PLAIN && run->part != EPX_AB_AGAIN))
            continue;
        int32_t other = run->part == EPX_AB_AGAIN ? run->arm : 0;
        const epx_ab_run_t *plain = epx_ab_find_run(result, other, EPX_AB_PLAIN, run->round, 0);
        if (plain == NULL || (run->part == EPX_AB_PLAIN && run->arm != a))
            continue;
        double d = epx_ab_run_number(run, numbers[which]) / epx_ab_run_number(plain, numbers[which]) - 1;
        if (run->part == EPX_AB_AGAIN)
            again[twice++] = d;
        else
            share[pairs++] = d;
    }
    epx_ab_interval_t interval = epx_ab_interval(share, pairs, EPX_AB_CONFIDENCE);
    double spread = epx_ab_spread(again, twice);
    result->arm[a].bystander_share[which] = interval.mean;
    result->arm[a].bystander_flag[which] = a > 0 && fabs(interval.mean) > EPX_AB_BYSTANDER_LIMIT &&
                                           fabs(interval.mean) > spread &&
                                           (interval.low > 0 || interval.high < 0);
    free(again);
    free(share);
}

static void summarise(epx_ab_result_t *result)
{
    for (int32_t a = 0; a < result->arms; a++) {
        epx_ab_arm_t *arm = &result->arm[a];
        arm->count = epx_ab_part_counts(result, a, EPX_AB_PLAIN, &arm->peak_bytes);
        for (int32_t i = 0; i < result->runs; i++)
            arm->runs += result->run[i].arm == a && result->run[i].part == EPX_AB_PLAIN &&
                         result->run[i].void_why[0] == '\0';
        arm->mfu = summary_of(result, a, EPX_AB_RUN_MFU);
        arm->mfu_executed = summary_of(result, a, EPX_AB_RUN_MFU_EXECUTED);
        arm->loss = summary_of(result, a, EPX_AB_RUN_LOSS);
        arm->exposed_ms = summary_of(result, a, EPX_AB_RUN_EXPOSED);
        arm->step_ms = summary_of(result, a, EPX_AB_RUN_STEP);
        arm->experts_ms = summary_of(result, a, EPX_AB_RUN_EXPERTS).mean;
        arm->attention_ms = summary_of(result, a, EPX_AB_RUN_ATTENTION).mean;
        arm->gradients_ms = summary_of(result, a, EPX_AB_RUN_GRADIENTS).mean;
        for (int32_t i = 0; i < 3; i++)
            compare_bystander(result, a, i);
    }
}

/* ---- differences -------------------------------------------------------------------------------------------------- */

static const epx_ab_adjusted_t *adjusted_of(const epx_ab_arm_t *arm, epx_ab_part_t part)
{
    return part == EPX_AB_EQUAL_DROPS ? &arm->equal_drops : &arm->equal_memory;
}

/* The runs that stand for an arm: the adjusted ones where they were made, else the plain ones. */
static epx_ab_part_t part_for(const epx_ab_arm_t *arm, epx_ab_part_t part)
{
    return part != EPX_AB_PLAIN && adjusted_of(arm, part)->made ? part : EPX_AB_PLAIN;
}

static double margin_of(const epx_ab_result_t *result, const epx_ab_verdict_t *verdict)
{
    switch (verdict->quantity) {
    case EPX_AB_LOSS: return EPX_AB_LOSS_MARGIN;
    case EPX_AB_EXPOSED:
    case EPX_AB_STEP_TIME:
        return EPX_AB_TIME_MARGIN *
               fmax(result->arm[verdict->a].step_ms.mean, result->arm[verdict->b].step_ms.mean);
    default: return result->scope.margin;
    }
}

/* Fills pair[], pair_round[]; returns their number. A pair with an unknown number is left out. */
static int32_t take_pairs(const epx_ab_result_t *result, const epx_ab_measure_t *measure,
                          epx_ab_verdict_t *verdict)
{
    int32_t rounds = epx_ab_rounds(result), count = 0;
    epx_ab_part_t part_a = part_for(&result->arm[verdict->a], measure->part);
    epx_ab_part_t part_b = part_for(&result->arm[verdict->b], measure->part);
    verdict->pair = epx_tool_alloc((size_t)rounds + 1, sizeof *verdict->pair);
    verdict->pair_round = epx_tool_alloc((size_t)rounds + 1, sizeof *verdict->pair_round);
    for (int32_t r = 0; r < rounds; r++) {
        const epx_ab_run_t *a = epx_ab_find_run(result, verdict->a, part_a, r, 0);
        const epx_ab_run_t *b = epx_ab_find_run(result, verdict->b, part_b, r, 0);
        if (a == NULL || b == NULL)
            continue;
        double d =
            measure->scale * (epx_ab_run_number(a, measure->number) - epx_ab_run_number(b, measure->number));
        if (!isfinite(d))
            continue;
        verdict->pair[count] = d;
        verdict->pair_round[count++] = r;
    }
    return count;
}

/* The A/A spread of a number, over all arms that are not void. */
static double spread_of(const epx_ab_result_t *result, const epx_ab_measure_t *measure, int32_t *pairs_p)
{
    double *difference = epx_tool_alloc((size_t)result->runs + 1, sizeof *difference);
    int32_t count = 0;
    for (int32_t i = 0; i < result->runs; i++) {
        const epx_ab_run_t *again = &result->run[i];
        if (again->part != EPX_AB_AGAIN || again->void_why[0] != '\0' || result->arm[again->arm].is_void)
            continue;
        const epx_ab_run_t *plain = epx_ab_find_run(result, again->arm, EPX_AB_PLAIN, again->round, 0);
        double d = NAN;
        if (plain != NULL)
            d = measure->scale *
                (epx_ab_run_number(again, measure->number) - epx_ab_run_number(plain, measure->number));
        if (isfinite(d))
            difference[count++] = d;
    }
    double spread = epx_ab_spread(difference, count);
    free(difference);
    *pairs_p = count;
    return spread;
}

/* ---- verdicts ----------------------------------------------------------------------------------------------------- */

static void refuse(epx_ab_verdict_t *verdict, const char *why)
{
    verdict->given = 0;
    snprintf(verdict->text, sizeof verdict->text, "%s", why);
}

static void judge_numbers(const epx_ab_result_t *result, epx_ab_verdict_t *verdict)
{
    epx_ab_measure_t measure = epx_ab_measure_of(verdict->quantity);
    int32_t count = take_pairs(result, &measure, verdict);
    if (count == 0) {
        refuse(verdict, "not measured by these runs");
        return;
    }
    verdict->margin = margin_of(result, verdict);
    verdict->spread = spread_of(result, &measure, &verdict->spread_pairs);
    verdict->interval = epx_ab_interval(verdict->pair, count, EPX_AB_CONFIDENCE);
    verdict->word = epx_ab_judge(&verdict->interval, verdict->margin, verdict->spread);
    if (verdict->word == EPX_AB_INCONCLUSIVE)
        verdict->pairs_needed =
            epx_ab_pairs_needed(&verdict->interval, verdict->margin, verdict->spread, EPX_AB_CONFIDENCE);
    epx_ab_say_interval(&measure, verdict);
}

/* Drops of the rounds in which both arms count. */
static void judge_drops(const epx_ab_result_t *result, epx_ab_verdict_t *verdict)
{
    epx_ab_counts_t a = {0}, b = {0};
    int32_t rounds = 0, apart = 0, fractions = 0;
    for (int32_t r = 0; r < epx_ab_rounds(result); r++) {
        const epx_ab_run_t *run_a = epx_ab_find_run(result, verdict->a, EPX_AB_PLAIN, r, 0);
        const epx_ab_run_t *run_b = epx_ab_find_run(result, verdict->b, EPX_AB_PLAIN, r, 0);
        if (run_a == NULL || run_b == NULL)
            continue;
        epx_ab_counts_t more_a = epx_ab_run_counts(run_a), more_b = epx_ab_run_counts(run_b);
        apart += more_a.dropped_sender + more_a.dropped_receiver !=
                 more_b.dropped_sender + more_b.dropped_receiver;
        fractions |= run_a->fractions | run_b->fractions;
        epx_ab_add_counts(&a, &more_a);
        epx_ab_add_counts(&b, &more_b);
        rounds++;
    }
    verdict->exact = 1;
    if (rounds == 0 || a.valid < 0 || b.valid < 0) {
        refuse(verdict, "not counted by these runs");
        return;
    }
    int64_t drops_a = a.dropped_sender + a.dropped_receiver, drops_b = b.dropped_sender + b.dropped_receiver;
    double mean = 100 * (epx_ab_drop_fraction(&a) - epx_ab_drop_fraction(&b));
    verdict->interval = (epx_ab_interval_t){rounds, mean, 0, mean, mean};
    verdict->word = apart > 0 ? EPX_AB_DIFFERENT : EPX_AB_EQUIVALENT;
    if (fractions) {
        verdict->exact = 0; /* rounded when they were written */
        snprintf(verdict->text, sizeof verdict->text,
                 "%.3f%% against %.3f%% of assignments, as the runs wrote them",
                 100 * epx_ab_drop_fraction(&a), 100 * epx_ab_drop_fraction(&b));
    } else if (apart == 0)
        snprintf(verdict->text, sizeof verdict->text,
                 "exactly %" PRId64 " of %" PRId64 " assignments (%.3f%%) in both", drops_a, a.valid,
                 100 * epx_ab_drop_fraction(&a));
    else
        snprintf(verdict->text, sizeof verdict->text,
                 "%.3f%% against %.3f%%: %" PRId64 " and %" PRId64 " of %" PRId64 " assignments",
                 100 * epx_ab_drop_fraction(&a), 100 * epx_ab_drop_fraction(&b), drops_a, drops_b, a.valid);
}

static void judge_memory(const epx_ab_result_t *result, epx_ab_verdict_t *verdict)
{
    int64_t a = result->arm[verdict->a].peak_bytes, b = result->arm[verdict->b].peak_bytes;
    char text[2][32];
    verdict->exact = 1;
    if (a < 0 || b < 0) {
        refuse(verdict, "not measured by these runs");
        return;
    }
    double mean = (double)(a - b), larger = (double)(a > b ? a : b);
    verdict->interval = (epx_ab_interval_t){1, mean, 0, mean, mean};
    verdict->margin = EPX_AB_MEMORY_MARGIN * larger;
    verdict->word = fabs(mean) <= verdict->margin ? EPX_AB_EQUIVALENT : EPX_AB_DIFFERENT;
    snprintf(verdict->text, sizeof verdict->text, "%s against %s at the largest rank's peak (%+.1f%%)",
             epx_text_of_bytes(text[0], sizeof text[0], (double)a),
             epx_text_of_bytes(text[1], sizeof text[1], (double)b), 100 * mean / (double)(b > 0 ? b : 1));
}

/* A comparison at adjusted capacity has a meaning where one of the two was adjusted. */
static void judge_adjusted(const epx_ab_result_t *result, epx_ab_verdict_t *verdict)
{
    epx_ab_part_t part =
        verdict->quantity == EPX_AB_SPEED_EQUAL_DROPS ? EPX_AB_EQUAL_DROPS : EPX_AB_EQUAL_MEMORY;
    const epx_ab_adjusted_t *a = adjusted_of(&result->arm[verdict->a], part);
    const epx_ab_adjusted_t *b = adjusted_of(&result->arm[verdict->b], part);
    if (a->made || b->made)
        judge_numbers(result, verdict);
    else
        refuse(verdict, a->why[0] ? a->why : b->why[0] ? b->why : "capacities were not adjusted");
}

static void judge(const epx_ab_result_t *result, epx_ab_verdict_t *verdict)
{
    const epx_ab_arm_t *a = &result->arm[verdict->a], *b = &result->arm[verdict->b];
    verdict->given = 1;
    verdict->spread = verdict->margin = NAN;
    verdict->interval = (epx_ab_interval_t){0, NAN, NAN, NAN, NAN};
    if (a->is_void || b->is_void) {
        char text[EPX_AB_TEXT];
        if (a->is_void && b->is_void)
            snprintf(text, sizeof text, "%s and %s are void", a->name, b->name);
        else
            snprintf(text, sizeof text, "%s is void", a->is_void ? a->name : b->name);
        refuse(verdict, text);
        return;
    }
    switch (verdict->quantity) {
    case EPX_AB_DROPS: judge_drops(result, verdict); break;
    case EPX_AB_MEMORY: judge_memory(result, verdict); break;
    case EPX_AB_SPEED_EQUAL_DROPS:
    case EPX_AB_SPEED_EQUAL_MEMORY: judge_adjusted(result, verdict); break;
    default: judge_numbers(result, verdict);
    }
}

void epx_ab_give_verdicts(epx_ab_result_t *result)
{
    summarise(result);
    int32_t pairs = result->arms * (result->arms - 1) / 2, at = 0;
    result->verdicts = pairs * EPX_AB_QUANTITIES;
    result->verdict = epx_tool_alloc((size_t)result->verdicts + 1, sizeof *result->verdict);
    for (int32_t a = 0; a < result->arms; a++) {
        for (int32_t b = a + 1; b < result->arms; b++) {
            for (int q = 0; q < EPX_AB_QUANTITIES; q++) {
                epx_ab_verdict_t *verdict = &result->verdict[at++];
                *verdict = (epx_ab_verdict_t){.a = a, .b = b, .quantity = (epx_ab_quantity_t)q};
                judge(result, verdict);
            }
        }
    }
}
