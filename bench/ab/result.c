/* Runs, and the numbers of one run. SPDX-License-Identifier: Apache-2.0 */
#include "bench/ab/result.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/program.h"

static const struct {
    const char *name, *checks;
} guards[EPX_AB_GUARDS] = {
    [EPX_AB_GUARD_WEIGHTS] = {"weights", "every run starts from the same weights"},
    [EPX_AB_GUARD_ROUTING] = {"routing", "all arms choose the same experts at the first step"},
    [EPX_AB_GUARD_TWINS] = {"twins", "without drops every arm has the dense model's loss at the first step"},
    [EPX_AB_GUARD_GAP] = {"gap", "what an arm drops explains its loss: without drops all arms have one loss"},
    [EPX_AB_GUARD_GRADIENTS] = {"gradients", "every tensor's gradient is a dense single-rank model's"},
    [EPX_AB_GUARD_PAYLOAD] = {"payload", "rows and sums come back bit by bit, before and after each run"},
    [EPX_AB_GUARD_ACCOUNTING] = {"accounting",
                                 "routed = kept + dropped by senders + by receivers, and as the rules say"},
    [EPX_AB_GUARD_BYTES] = {"bytes", "what ranks sent is what ranks received"},
    [EPX_AB_GUARD_FALLBACK] = {"fallback", "the path asked for carried the bytes, all but 1%"},
    [EPX_AB_GUARD_CLOCKS] = {"clocks", "median clocks within 1% of the other arms', nothing throttled"},
    [EPX_AB_GUARD_REGISTRATION] = {"registration",
                                   "the library allocates and registers nothing in the window"},
    [EPX_AB_GUARD_WINDOW] = {"window", "every step of the window is there, with a finite loss"},
};

const char *epx_ab_guard_name(epx_ab_guard_t guard) { return guards[guard].name; }

const char *epx_ab_guard_checks(epx_ab_guard_t guard) { return guards[guard].checks; }

const char *epx_ab_part_name(epx_ab_part_t part)
{
    static const char *const names[EPX_AB_PARTS] = {"plain",       "again",        "twin",
                                                    "equal_drops", "equal_memory", "reference"};
    return names[part];
}

const char *epx_ab_word_name(epx_ab_word_t word)
{
    static const char *const names[] = {"DIFFERENT", "EQUIVALENT", "INCONCLUSIVE"};
    return names[word];
}

static const struct {
    const char *name, *key;
} quantities[EPX_AB_QUANTITIES] = {
    [EPX_AB_MFU_EXECUTED] = {"executed MFU", "mfu_executed"},
    [EPX_AB_MFU] = {"MFU", "mfu"},
    [EPX_AB_DROPS] = {"drops", "drops"},
    [EPX_AB_LOSS] = {"loss", "loss"},
    [EPX_AB_MEMORY] = {"memory", "memory"},
    [EPX_AB_EXPOSED] = {"exposed time", "exposed_ms"},
    [EPX_AB_STEP_TIME] = {"step time", "step_ms"},
    [EPX_AB_SPEED_EQUAL_DROPS] = {"MFU at equal drops", "mfu_equal_drops"},
    [EPX_AB_SPEED_EQUAL_MEMORY] = {"MFU at equal memory", "mfu_equal_memory"},
};

const char *epx_ab_quantity_name(epx_ab_quantity_t quantity) { return quantities[quantity].name; }

const char *epx_ab_quantity_key(epx_ab_quantity_t quantity) { return quantities[quantity].key; }

/* ---- the list of runs --------------------------------------------------------------------------------------------- */

epx_ab_step_t epx_ab_unknown_step(void)
{
    return (epx_ab_step_t){.step = -1,
                           .loss = NAN,
                           .tokens = NAN,
                           .step_ms = NAN,
                           .mfu = NAN,
                           .mfu_executed = NAN,
                           .exposed_ms = NAN,
                           .experts_ms = NAN,
                           .attention_ms = NAN,
                           .gradients_ms = NAN,
                           .wait_ms_max = NAN,
                           .load_max_over_mean = NAN,
                           .peak_bytes = -1,
                           .sent_bytes = -1,
                           .received_bytes = -1,
                           .count = {.valid = -1}};
}

epx_ab_run_t *epx_ab_add_run(epx_ab_result_t *result, int32_t arm, epx_ab_part_t part, int32_t round,
                             int32_t steps)
{
    if (result->runs == result->runs_room) {
        int32_t room = result->runs_room > 0 ? 2 * result->runs_room : 32;
        epx_ab_run_t *more = epx_tool_alloc((size_t)room, sizeof *more);
        if (result->runs > 0)
            memcpy(more, result->run, (size_t)result->runs * sizeof *more);
        free(result->run);
        result->run = more;
        result->runs_room = room;
    }
    epx_ab_run_t *run = &result->run[result->runs];
    *run = (epx_ab_run_t){.arm = arm,
                          .part = part,
                          .round = round,
                          .order = result->runs,
                          .step = epx_tool_alloc((size_t)(steps > 0 ? steps : 1), sizeof *run->step),
                          .first_layer = {.valid = -1},
                          .group_bytes = -1,
                          .plan_bytes = -1,
                          .allocations = -1,
                          .throttles = -1,
                          .clock_mhz = NAN,
                          .others_cpu = NAN,
                          .payload = "-",
                          .accounting = "-"};
    result->runs++;
    return run;
}

void epx_ab_free(epx_ab_result_t *result)
{
    for (int32_t i = 0; i < result->runs; i++) {
        free(result->run[i].step);
        free(result->run[i].layer);
        free(result->run[i].loads);
    }
    for (int32_t i = 0; i < result->verdicts; i++) {
        free(result->verdict[i].pair);
        free(result->verdict[i].pair_round);
    }
    free(result->run);
    free(result->verdict);
    *result = (epx_ab_result_t){0};
}

const epx_ab_run_t *epx_ab_find_run(const epx_ab_result_t *result, int32_t arm, epx_ab_part_t part,
                                    int32_t round, int32_t void_too)
{
    for (int32_t i = 0; i < result->runs; i++) {
        const epx_ab_run_t *run = &result->run[i];
        if (run->arm == arm && run->part == part && run->round == round &&
            (void_too || run->void_why[0] == '\0'))
            return run;
    }
    return NULL;
}

int32_t epx_ab_rounds(const epx_ab_result_t *result)
{
    int32_t rounds = 0;
    for (int32_t i = 0; i < result->runs; i++)
        rounds = result->run[i].round >= rounds ? result->run[i].round + 1 : rounds;
    return rounds;
}

/* ---- one run ------------------------------------------------------------------------------------------------------ */

static double number_of(const epx_ab_step_t *step, epx_ab_number_t number)
{
    switch (number) {
    case EPX_AB_RUN_MFU: return step->mfu;
    case EPX_AB_RUN_MFU_EXECUTED: return step->mfu_executed;
    case EPX_AB_RUN_LOSS: return step->loss;
    case EPX_AB_RUN_EXPOSED: return step->exposed_ms;
    case EPX_AB_RUN_STEP: return step->step_ms;
    case EPX_AB_RUN_EXPERTS: return step->experts_ms;
    case EPX_AB_RUN_ATTENTION: return step->attention_ms;
    case EPX_AB_RUN_GRADIENTS: return step->gradients_ms;
    }
    return NAN;
}

double epx_ab_run_number(const epx_ab_run_t *run, epx_ab_number_t number)
{
    /* MFU is work over time: weighed by its step's time, the mean is all work over all time. */
    int by_time = number == EPX_AB_RUN_MFU || number == EPX_AB_RUN_MFU_EXECUTED;
    double sum = 0, weight = 0;
    for (int32_t i = 0; i < run->steps; i++) {
        const epx_ab_step_t *step = &run->step[i];
        if (step->discarded)
            continue;
        double each = by_time ? step->step_ms : 1;
        sum += each * number_of(step, number);
        weight += each;
    }
    return weight > 0 ? sum / weight : NAN;
}

/* largest; -1 */
static int64_t run_peak(const epx_ab_run_t *run)
{
    int64_t peak = -1;
    for (int32_t i = 0; i < run->steps; i++)
        if (!run->step[i].discarded && run->step[i].peak_bytes > peak)
            peak = run->step[i].peak_bytes;
    return peak;
}

void epx_ab_add_counts(epx_ab_counts_t *sum, const epx_ab_counts_t *more)
{
    if (sum->valid < 0 || more->valid < 0) {
        sum->valid = -1;
        return;
    }
    sum->valid += more->valid;
    sum->chance += more->chance;
    sum->kept += more->kept;
    sum->spilled += more->spilled;
    sum->dropped_sender += more->dropped_sender;
    sum->dropped_receiver += more->dropped_receiver;
}

epx_ab_counts_t epx_ab_run_counts(const epx_ab_run_t *run)
{
    epx_ab_counts_t sum = {0};
    int32_t counted = 0;
    for (int32_t i = 0; i < run->steps; i++) {
        if (run->step[i].discarded)
            continue;
        epx_ab_add_counts(&sum, &run->step[i].count);
        counted++;
    }
    if (counted == 0)
        sum.valid = -1;
    return sum;
}

epx_ab_counts_t epx_ab_part_counts(const epx_ab_result_t *result, int32_t arm, epx_ab_part_t part,
                                   int64_t *peak_p)
{
    epx_ab_counts_t sum = {0};
    int32_t runs = 0;
    *peak_p = -1;
    for (int32_t i = 0; i < result->runs; i++) {
        const epx_ab_run_t *run = &result->run[i];
        if (run->arm != arm || run->part != part || run->void_why[0] != '\0')
            continue;
        epx_ab_counts_t counts = epx_ab_run_counts(run);
        int64_t peak = run_peak(run);
        epx_ab_add_counts(&sum, &counts);
        *peak_p = peak > *peak_p ? peak : *peak_p;
        runs++;
    }
    if (runs == 0)
        sum.valid = -1;
    return sum;
}

const char *epx_ab_transport_of(const epx_ab_result_t *result, int32_t arm)
{
    for (int32_t i = 0; i < result->runs; i++)
        if (result->run[i].arm == arm && result->run[i].transport[0] != '\0')
            return result->run[i].transport;
    return result->arm[arm].transport[0] != '\0' ? result->arm[arm].transport : NULL;
}

double epx_ab_drop_fraction(const epx_ab_counts_t *count)
{
    if (count->valid < 0)
        return NAN;
    return count->valid > 0 ? (double)(count->dropped_sender + count->dropped_receiver) / (double)count->valid
                            : 0;
}

const epx_ab_verdict_t *epx_ab_verdict_of(const epx_ab_result_t *result, int32_t a, int32_t b,
                                          epx_ab_quantity_t quantity)
{
    for (int32_t i = 0; i < result->verdicts; i++)
        if (result->verdict[i].a == a && result->verdict[i].b == b && result->verdict[i].quantity == quantity)
            return &result->verdict[i];
    return NULL;
}
