/* Guards of single draws: window, weights, memory, clocks. SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "bench/ab/finding.h"
#include "bench/ab/guards.h"

/* ---- findings ---- */

void epx_ab_find(epx_ab_arm_t *arm, epx_ab_guard_t guard, epx_ab_state_t state, const char *format, ...)
{
    epx_ab_finding_t *finding = &arm->guard[guard];
    va_list values;
    if (finding->state == EPX_AB_VOID)
        return;
    finding->state = state;
    va_start(values, format);
    vsnprintf(finding->text, sizeof finding->text, format, values);
    va_end(values);
}

/* This run does not count; the first reason stays. */
__attribute__((format(printf, 3, 4))) static void void_draw(epx_ab_run_t *run, epx_ab_guard_t guard,
                                                            const char *format, ...)
{
    va_list values;
    if (run->void_why[0] != '\0')
        return;
    int at = snprintf(run->void_why, sizeof run->void_why, "%s: ", epx_ab_guard_name(guard));
    va_start(values, format);
    vsnprintf(run->void_why + at, sizeof run->void_why - (size_t)at, format, values);
    va_end(values);
}

/* ---- draws -------------------------------------------------------------------------------------------------------- */

/* The step numbers must follow each other, all must be there, and no number may be missing from some steps
 * only. */
static int window_hole(const epx_ab_run_t *run, char *why, size_t bytes)
{
    int32_t counted = 0;
    if (run->failed[0] != '\0') {
        snprintf(why, bytes, "%s", run->failed);
        return 1;
    }
    for (int32_t i = 0; i < run->steps; i++) {
        const epx_ab_step_t *step = &run->step[i], *before = i > 0 ? step - 1 : NULL;
        counted += !step->discarded;
        if (before != NULL && step->step != before->step + 1) {
            snprintf(why, bytes, "a hole: step %" PRId64 " follows step %" PRId64, step->step, before->step);
            return 1;
        }
        if (!step->discarded && !isfinite(step->loss) && !isnan(run->step[0].loss)) {
            snprintf(why, bytes, "the loss of step %" PRId64 " is not finite", step->step);
            return 1;
        }
        if (!step->discarded && !(step->step_ms > 0) && !isnan(run->step[0].step_ms)) {
            snprintf(why, bytes, "step %" PRId64 " has no time", step->step);
            return 1;
        }
    }
    if (run->steps_expected > 0 && run->steps != run->steps_expected) {
        snprintf(why, bytes, "%d of %d steps are there", run->steps, run->steps_expected);
        return 1;
    }
    if (counted == 0)
        snprintf(why, bytes, "no step is left after the discarded ones");
    return counted == 0;
}

void epx_ab_check_windows(epx_ab_result_t *result)
{
    for (int32_t i = 0; i < result->runs; i++) {
        epx_ab_run_t *run = &result->run[i];
        char why[EPX_AB_TEXT];
        if (run->arm < 0)
            continue;
        epx_ab_arm_t *arm = &result->arm[run->arm];
        if (window_hole(run, why, sizeof why)) {
            void_draw(run, EPX_AB_GUARD_WINDOW, "%s", why);
            epx_ab_find(arm, EPX_AB_GUARD_WINDOW, EPX_AB_VOID, "run %d: %s", run->order + 1, why);
        } else {
            epx_ab_find(arm, EPX_AB_GUARD_WINDOW, EPX_AB_PASSED, "no hole in any window");
        }
    }
}

void epx_ab_check_weights(epx_ab_result_t *result)
{
    const epx_ab_run_t *reference = epx_ab_find_run(result, -1, EPX_AB_REFERENCE, 0, 1);
    for (int32_t i = 0; i < result->runs; i++) {
        epx_ab_run_t *run = &result->run[i];
        if (run->arm < 0 || run->weights == 0 || reference == NULL)
            continue;
        epx_ab_arm_t *arm = &result->arm[run->arm];
        if (run->weights != reference->weights) {
            void_draw(run, EPX_AB_GUARD_WEIGHTS, "it started from other weights");
            epx_ab_find(arm, EPX_AB_GUARD_WEIGHTS, EPX_AB_VOID,
                        "run %d started from weights %016" PRIx64 ", not %016" PRIx64, run->order + 1,
                        run->weights, reference->weights);
        } else {
            epx_ab_find(arm, EPX_AB_GUARD_WEIGHTS, EPX_AB_PASSED, "all runs from %016" PRIx64, run->weights);
        }
    }
}

void epx_ab_check_allocations(epx_ab_result_t *result)
{
    for (int32_t i = 0; i < result->runs; i++) {
        epx_ab_run_t *run = &result->run[i];
        if (run->arm < 0 || run->allocations < 0)
            continue;
        epx_ab_arm_t *arm = &result->arm[run->arm];
        if (run->allocations > 0) {
            void_draw(run, EPX_AB_GUARD_REGISTRATION, "%" PRId64 " allocations in the window",
                      run->allocations);
            epx_ab_find(arm, EPX_AB_GUARD_REGISTRATION, EPX_AB_VOID,
                        "run %d: the library asked for memory %" PRId64 " times in the window",
                        run->order + 1, run->allocations);
        } else {
            epx_ab_find(arm, EPX_AB_GUARD_REGISTRATION, EPX_AB_PASSED, "nothing allocated in any window");
        }
    }
}

/* Mean clock of an arm's draws (-1: the reference's run) in a round; NaN where it has none. */
static double clock_of(const epx_ab_result_t *result, int32_t arm, int32_t round)
{
    double sum = 0;
    int32_t count = 0;
    for (int32_t i = 0; i < result->runs; i++) {
        const epx_ab_run_t *run = &result->run[i];
        if (run->arm == arm && run->round == round && run->part != EPX_AB_TWIN && run->clock_mhz > 0) {
            sum += run->clock_mhz;
            count++;
        }
    }
    return count > 0 ? sum / count : NAN;
}

/* The round's clock: the median of all arms' and the reference's, so that the one that deviates is the one
 * that is blamed. */
static double median_clock(const epx_ab_result_t *result, int32_t round)
{
    double clock[EPX_AB_ARMS + 1];
    int32_t count = 0;
    for (int32_t a = -1; a < result->arms; a++) {
        double one = clock_of(result, a, round);
        if (!isnan(one))
            clock[count++] = one;
    }
    return epx_ab_median(clock, count);
}

void epx_ab_check_clocks(epx_ab_result_t *result)
{
    for (int32_t i = 0; i < result->runs; i++) {
        epx_ab_run_t *run = &result->run[i];
        if (run->arm < 0 || run->part == EPX_AB_TWIN)
            continue;
        epx_ab_arm_t *arm = &result->arm[run->arm];
        double others = median_clock(result, run->round);
        if (run->throttles > 0) {
            void_draw(run, EPX_AB_GUARD_CLOCKS, "throttled");
            epx_ab_find(arm, EPX_AB_GUARD_CLOCKS, EPX_AB_VOID,
                        "run %d: the processor throttled %" PRId64 " times", run->order + 1, run->throttles);
        }
        if (isnan(run->clock_mhz) || isnan(others))
            continue;
        if (fabs(run->clock_mhz / others - 1) > EPX_AB_CLOCK_LIMIT) {
            void_draw(run, EPX_AB_GUARD_CLOCKS, "a median clock of %.0f MHz, the others' is %.0f",
                      run->clock_mhz, others);
            epx_ab_find(arm, EPX_AB_GUARD_CLOCKS, EPX_AB_VOID,
                        "run %d: a median clock of %.0f MHz, the round's is %.0f", run->order + 1,
                        run->clock_mhz, others);
        } else {
            epx_ab_find(arm, EPX_AB_GUARD_CLOCKS, EPX_AB_PASSED, "median clock %.0f MHz%s", run->clock_mhz,
                        run->throttles < 0 ? ", throttling not visible here" : ", nothing throttled");
        }
    }
}
