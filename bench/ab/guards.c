/* Guards of whole arms. SPDX-License-Identifier: Apache-2.0 */
#include "bench/ab/guards.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/ab/finding.h"
#include "tools/common/program.h"

/* ---- arms --------------------------------------------------------------------------------------------------------- */

static void check_first_choices(epx_ab_result_t *result)
{
    for (int32_t i = 0; i < result->runs; i++) {
        const epx_ab_run_t *run = &result->run[i];
        const epx_ab_run_t *reference = epx_ab_find_run(result, -1, EPX_AB_REFERENCE, run->round, 1);
        if (run->arm < 0 || run->first_choices == 0 || reference == NULL)
            continue;
        epx_ab_arm_t *arm = &result->arm[run->arm];
        if (run->first_choices != reference->first_choices)
            epx_ab_find(arm, EPX_AB_GUARD_ROUTING, EPX_AB_VOID,
                        "run %d: the digest of the first layer's choices is %016" PRIx64 ", not %016" PRIx64,
                        run->order + 1, run->first_choices, reference->first_choices);
        else
            epx_ab_find(arm, EPX_AB_GUARD_ROUTING, EPX_AB_PASSED, "digest %016" PRIx64, run->first_choices);
    }
}

/* Layers after the first see rows that went through the exchange, in another order of summation: a choice
 * between two experts of nearly equal score may turn. Twins drop nothing, so that no more than that may
 * differ. */
static void check_twin_choices(epx_ab_result_t *result)
{
    for (int32_t a = 0; a < result->arms; a++) {
        const epx_ab_run_t *twin = epx_ab_find_run(result, a, EPX_AB_TWIN, 0, 1);
        const epx_ab_run_t *reference = epx_ab_find_run(result, -1, EPX_AB_REFERENCE, 0, 1);
        if (twin == NULL || reference == NULL || twin->loads == NULL || reference->loads == NULL ||
            twin->places != reference->places)
            continue;
        int64_t moved = 0, all = 0;
        for (int32_t i = 0; i < twin->places; i++) {
            moved += llabs(twin->loads[i] - reference->loads[i]);
            all += reference->loads[i];
        }
        moved /= 2;
        if ((double)moved > EPX_AB_CHOICE_LIMIT * (double)all)
            epx_ab_find(&result->arm[a], EPX_AB_GUARD_ROUTING, EPX_AB_VOID,
                        "without drops %" PRId64 " of %" PRId64 " choices of the first step differ", moved,
                        all);
        else
            epx_ab_find(&result->arm[a], EPX_AB_GUARD_ROUTING, EPX_AB_PASSED,
                        "digest %016" PRIx64 "; without drops %" PRId64 " of %" PRId64
                        " choices of all layers differ",
                        twin->first_choices, moved, all);
    }
}

static void check_twins(epx_ab_result_t *result)
{
    const epx_ab_run_t *reference = epx_ab_find_run(result, -1, EPX_AB_REFERENCE, 0, 1);
    for (int32_t a = 0; a < result->arms; a++) {
        epx_ab_arm_t *arm = &result->arm[a];
        const epx_ab_run_t *twin = epx_ab_find_run(result, a, EPX_AB_TWIN, 0, 1);
        if (twin == NULL || twin->steps == 0)
            continue;
        double dense = arm->gradients.checked                  ? arm->gradients.oracle_loss
                       : reference != NULL && reference->steps ? reference->step[0].loss
                                                               : NAN;
        double apart = fabs(twin->step[0].loss - dense) / fabs(dense);
        if (isnan(dense))
            continue;
        epx_ab_find(arm, EPX_AB_GUARD_TWINS, apart <= EPX_AB_TWIN_LIMIT ? EPX_AB_PASSED : EPX_AB_VOID,
                    "first loss without drops %.7f, dense model %.7f: %.1e apart (limit %.0e)",
                    twin->step[0].loss, dense, apart, EPX_AB_TWIN_LIMIT);
    }
}

/* The A/A spread of the loss of all arms together. */
static double loss_spread(const epx_ab_result_t *result)
{
    double *difference = epx_tool_alloc((size_t)result->runs + 1, sizeof *difference);
    int32_t count = 0;
    for (int32_t i = 0; i < result->runs; i++) {
        const epx_ab_run_t *again = &result->run[i];
        const epx_ab_run_t *plain = epx_ab_find_run(result, again->arm, EPX_AB_PLAIN, again->round, 0);
        if (again->part == EPX_AB_AGAIN && again->void_why[0] == '\0' && plain != NULL)
            difference[count++] =
                epx_ab_run_number(again, EPX_AB_RUN_LOSS) - epx_ab_run_number(plain, EPX_AB_RUN_LOSS);
    }
    double spread = epx_ab_spread(difference, count);
    free(difference);
    return isnan(spread) ? 0 : spread;
}

/* loss[a] - loss[b] = (gap[a] - gap[b]) + (twin[a] - twin[b]), and only the first bracket comes from drops.
 * So drops explain the difference of two arms as far as their twins agree; and an arm that dropped nothing is
 * its own twin. */
static void check_gap(epx_ab_result_t *result)
{
    const epx_ab_run_t *reference = epx_ab_find_run(result, -1, EPX_AB_REFERENCE, 0, 1);
    if (reference == NULL)
        return;
    double base = epx_ab_run_number(reference, EPX_AB_RUN_LOSS);
    if (isnan(base))
        return;
    double limit = EPX_AB_SPREADS * fmax(loss_spread(result), EPX_AB_LOSS_FLOOR * fabs(base));
    for (int32_t a = 0; a < result->arms; a++) {
        epx_ab_arm_t *arm = &result->arm[a];
        const epx_ab_run_t *twin = epx_ab_find_run(result, a, EPX_AB_TWIN, 0, 1);
        const epx_ab_run_t *plain = epx_ab_find_run(result, a, EPX_AB_PLAIN, 0, 0);
        if (twin == NULL)
            continue;
        double apart = epx_ab_run_number(twin, EPX_AB_RUN_LOSS) - base, gap = NAN;
        if (plain != NULL)
            gap = epx_ab_run_number(plain, EPX_AB_RUN_LOSS) - epx_ab_run_number(twin, EPX_AB_RUN_LOSS);
        arm->loss_gap = gap;
        epx_ab_counts_t count = {.valid = -1};
        if (plain != NULL)
            count = epx_ab_run_counts(plain);
        int dropless = count.valid > 0 && count.dropped_sender + count.dropped_receiver == 0;
        if (!(fabs(apart) <= limit))
            epx_ab_find(
                arm, EPX_AB_GUARD_GAP, EPX_AB_VOID,
                "without drops its loss is %+.6f from the reference's (limit %.6f): not drops alone set it "
                "apart",
                apart, limit);
        else if (dropless && !(fabs(gap) <= limit))
            epx_ab_find(arm, EPX_AB_GUARD_GAP, EPX_AB_VOID,
                        "it dropped nothing, yet its loss is %+.6f from its twin's", gap);
        else
            epx_ab_find(arm, EPX_AB_GUARD_GAP, EPX_AB_PASSED,
                        "%+.5f from its twin, which is %.1e from the reference (limit %.1e)", gap,
                        fabs(apart), limit);
    }
}

static void check_gradients(epx_ab_result_t *result)
{
    for (int32_t a = 0; a < result->arms; a++) {
        epx_ab_arm_t *arm = &result->arm[a];
        const epx_ab_gradients_t *seen = &arm->gradients;
        if (!seen->checked)
            continue;
        if (seen->dropped != 0)
            epx_ab_find(arm, EPX_AB_GUARD_GRADIENTS, EPX_AB_VOID,
                        "%" PRId64 " assignments were dropped where nothing may be", seen->dropped);
        else
            epx_ab_find(arm, EPX_AB_GUARD_GRADIENTS,
                        seen->worst <= EPX_AB_GRADIENT_LIMIT ? EPX_AB_PASSED : EPX_AB_VOID,
                        "worst tensor %s: %.1e apart, relative (limit %.0e)", seen->tensor, seen->worst,
                        EPX_AB_GRADIENT_LIMIT);
    }
}

static void check_texts(epx_ab_result_t *result)
{
    for (int32_t i = 0; i < result->runs; i++) {
        const epx_ab_run_t *run = &result->run[i];
        if (run->arm < 0)
            continue;
        epx_ab_arm_t *arm = &result->arm[run->arm];
        if (strcmp(run->payload, "-") != 0)
            epx_ab_find(arm, EPX_AB_GUARD_PAYLOAD, run->payload[0] ? EPX_AB_VOID : EPX_AB_PASSED, "%s",
                        run->payload[0] ? run->payload : "every row and sum right, before and after");
        if (strcmp(run->accounting, "-") != 0)
            epx_ab_find(arm, EPX_AB_GUARD_ACCOUNTING, run->accounting[0] ? EPX_AB_VOID : EPX_AB_PASSED, "%s",
                        run->accounting[0] ? run->accounting : "every layer of every step adds up");
    }
}

/* The first layer's choices are the reference's, so that the rules say exactly what is dropped of them. */
static void check_rules(epx_ab_result_t *result)
{
    for (int32_t i = 0; i < result->runs; i++) {
        const epx_ab_run_t *run = &result->run[i];
        if (run->arm < 0 || run->round != 0 || run->first_layer.valid < 0 ||
            (run->part != EPX_AB_PLAIN && run->part != EPX_AB_AGAIN))
            continue;
        epx_ab_arm_t *arm = &result->arm[run->arm];
        const epx_ab_counts_t *seen = &run->first_layer, *ruled = &arm->ruled_first.count;
        if (arm->ruled_first.ranks == 0 || arm->guard[EPX_AB_GUARD_ROUTING].state == EPX_AB_VOID)
            continue;
        if (seen->dropped_sender != ruled->dropped_sender ||
            seen->dropped_receiver != ruled->dropped_receiver)
            epx_ab_find(arm, EPX_AB_GUARD_ACCOUNTING, EPX_AB_VOID,
                        "run %d: in the first layer of the first step the rules drop %" PRId64 " + %" PRId64
                        " (sender, receiver), the library dropped %" PRId64 " + %" PRId64,
                        run->order + 1, ruled->dropped_sender, ruled->dropped_receiver, seen->dropped_sender,
                        seen->dropped_receiver);
        else
            epx_ab_find(arm, EPX_AB_GUARD_ACCOUNTING, EPX_AB_PASSED,
                        "every layer of every step adds up; the first layer's %" PRId64 " + %" PRId64
                        " drops (sender, receiver) are exactly what the rules give",
                        seen->dropped_sender, seen->dropped_receiver);
    }
}

static void check_bytes(epx_ab_result_t *result)
{
    for (int32_t i = 0; i < result->runs; i++) {
        const epx_ab_run_t *run = &result->run[i];
        int64_t sent = 0, received = 0;
        if (run->arm < 0 || run->failed[0] != '\0')
            continue;
        epx_ab_arm_t *arm = &result->arm[run->arm];
        for (int32_t s = 0; s < run->steps && sent >= 0; s++) {
            const epx_ab_step_t *step = &run->step[s];
            sent = step->sent_bytes < 0 || step->received_bytes < 0 ? -1 : sent + step->sent_bytes;
            received += step->received_bytes;
        }
        if (sent < 0 || run->steps == 0)
            continue;
        if (sent != received)
            epx_ab_find(arm, EPX_AB_GUARD_BYTES, EPX_AB_VOID,
                        "run %d: %" PRId64 " bytes were sent to other ranks and %" PRId64 " received",
                        run->order + 1, sent, received);
        else if (run->part == EPX_AB_PLAIN)
            epx_ab_find(arm, EPX_AB_GUARD_BYTES, EPX_AB_PASSED, "%.3g MB sent and received per step",
                        1e-6 * (double)sent / run->steps);
    }
}

static void check_fallback(epx_ab_result_t *result)
{
    for (int32_t i = 0; i < result->runs; i++) {
        const epx_ab_run_t *run = &result->run[i];
        if (run->arm < 0 || run->transport[0] == '\0')
            continue;
        epx_ab_arm_t *arm = &result->arm[run->arm];
        double share = 0;
        if (run->group_bytes >= 0 && run->plan_bytes > 0)
            share = fabs(1 - (double)run->group_bytes / (double)run->plan_bytes);
        if (arm->transport[0] != '\0' && strchr(arm->transport, '/') == NULL &&
            strcmp(arm->transport, run->transport) != 0)
            epx_ab_find(arm, EPX_AB_GUARD_FALLBACK, EPX_AB_VOID, "run %d: %s was asked for, %s ran",
                        run->order + 1, arm->transport, run->transport);
        else if (strcmp(run->transport, "mixed") == 0 || strcmp(run->fabric, "mixed") == 0)
            epx_ab_find(arm, EPX_AB_GUARD_FALLBACK, EPX_AB_VOID, "run %d: the path changed in the middle",
                        run->order + 1);
        else if (share > EPX_AB_FALLBACK_LIMIT)
            epx_ab_find(arm, EPX_AB_GUARD_FALLBACK, EPX_AB_VOID,
                        "run %d: %.1f%% of the bytes did not take the path of the group (%" PRId64
                        " of its counter, %" PRId64 " of its plans)",
                        run->order + 1, 100 * share, run->group_bytes, run->plan_bytes);
        else
            epx_ab_find(arm, EPX_AB_GUARD_FALLBACK, EPX_AB_PASSED, "%s on fabric %s, in every step",
                        run->transport, run->fabric);
    }
}

/* ---- together ----------------------------------------------------------------------------------------------------- */

/* Guards whose failure costs a draw, not at once the arm. */
static int costs_a_draw(epx_ab_guard_t guard)
{
    return guard == EPX_AB_GUARD_WEIGHTS || guard == EPX_AB_GUARD_CLOCKS ||
           guard == EPX_AB_GUARD_REGISTRATION || guard == EPX_AB_GUARD_WINDOW;
}

static void judge_arm(const epx_ab_result_t *result, int32_t a, epx_ab_arm_t *arm)
{
    int32_t draws = 0, left = 0;
    for (int32_t i = 0; i < result->runs; i++) {
        const epx_ab_run_t *run = &result->run[i];
        if (run->arm != a || run->part != EPX_AB_PLAIN)
            continue;
        draws++;
        left += run->void_why[0] == '\0';
    }
    int too_few = left == 0 || 2 * left < draws || (left < 2 && draws >= 2);
    for (int g = 0; g < EPX_AB_GUARDS; g++) {
        epx_ab_finding_t *finding = &arm->guard[g];
        if (finding->state != EPX_AB_VOID)
            continue;
        if (!costs_a_draw((epx_ab_guard_t)g) || too_few) {
            arm->is_void = 1;
            continue;
        }
        char text[EPX_AB_TEXT];
        snprintf(text, sizeof text, "%.300s (left out; %d of %d runs count)", finding->text, left, draws);
        snprintf(finding->text, sizeof finding->text, "%s", text);
        finding->state = EPX_AB_PASSED;
    }
    if (too_few)
        arm->is_void = 1;
}

/* Why a guard could not look. */
static const char *why_unchecked(const epx_ab_result_t *result, epx_ab_guard_t guard)
{
    if (guard == EPX_AB_GUARD_CLOCKS)
        return result->external
                   ? "another program's runs: its clocks were not recorded"
                   : "this machine does not show its clocks, or runs were shorter than five steps";
    if (!result->external)
        return "it was not part of this comparison";
    switch (guard) {
    case EPX_AB_GUARD_ACCOUNTING:
    case EPX_AB_GUARD_BYTES: return "the runs left no counts (set EPX_STATS and call epx_step)";
    case EPX_AB_GUARD_FALLBACK: return "the runs do not say which transport ran";
    default: return "another program's runs: only that program could check this";
    }
}

void epx_ab_check_guards(epx_ab_result_t *result)
{
    epx_ab_check_windows(result);
    epx_ab_check_weights(result);
    epx_ab_check_allocations(result);
    epx_ab_check_clocks(result);
    check_first_choices(result);
    check_twin_choices(result);
    check_twins(result);
    check_gap(result);
    check_gradients(result);
    check_texts(result);
    check_rules(result);
    check_bytes(result);
    check_fallback(result);
    for (int32_t a = 0; a < result->arms; a++) {
        judge_arm(result, a, &result->arm[a]);
        for (int g = 0; g < EPX_AB_GUARDS; g++)
            if (result->arm[a].guard[g].state == EPX_AB_UNCHECKED)
                snprintf(result->arm[a].guard[g].text, EPX_AB_TEXT, "%s",
                         why_unchecked(result, (epx_ab_guard_t)g));
    }
}
