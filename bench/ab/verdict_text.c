/* What verdicts come to in words: sentences, the headline, the exit code. SPDX-License-Identifier: Apache-2.0
 */
#include "bench/ab/verdict_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tools/common/numbers.h"
#include "tools/common/program.h"

/* ---- sentences ---------------------------------------------------------------------------------------------------- */

void epx_ab_say_needed(const epx_ab_verdict_t *verdict, char *text, size_t bytes)
{
    text[0] = '\0';
    if (!verdict->given || verdict->word != EPX_AB_INCONCLUSIVE)
        return;
    if (verdict->interval.count < 2)
        snprintf(text, bytes, "one pair decides nothing");
    else if (isnan(verdict->spread))
        snprintf(text, bytes, "no A/A pair counts");
    else if (verdict->pairs_needed == 0)
        snprintf(text, bytes, "below the A/A spread: more --steps");
    else if (verdict->pairs_needed >= EPX_AB_PAIRS_MOST)
        snprintf(text, bytes, "%d pairs or more would decide", EPX_AB_PAIRS_MOST);
    else
        snprintf(text, bytes, "about %d pairs would decide", verdict->pairs_needed);
}

/* A number with its sign; what rounds to nothing has none. */
static const char *with_sign(char *text, size_t bytes, double value, int digits)
{
    double unit = pow(10, -digits);
    if (fabs(value) < 0.5 * unit)
        snprintf(text, bytes, "%.*f", digits, 0.0);
    else
        snprintf(text, bytes, "%+.*f", digits, value);
    return text;
}

void epx_ab_say_interval(const epx_ab_measure_t *measure, epx_ab_verdict_t *verdict)
{
    char needed[96], text[3][48];
    const epx_ab_interval_t *d = &verdict->interval;
    int n = measure->digits;
    epx_ab_say_needed(verdict, needed, sizeof needed);
    with_sign(text[0], sizeof text[0], d->mean, n);
    with_sign(text[1], sizeof text[1], d->low, n);
    with_sign(text[2], sizeof text[2], d->high, n);
    if (d->count < 2)
        snprintf(verdict->text, sizeof verdict->text, "%s %s; %s", text[0], measure->unit, needed);
    else if (verdict->word == EPX_AB_EQUIVALENT)
        snprintf(verdict->text, sizeof verdict->text, "%s %s (90%%: %s to %s), inside %.*f", text[0],
                 measure->unit, text[1], text[2], n, verdict->margin);
    else
        snprintf(verdict->text, sizeof verdict->text, "%s %s (90%%: %s to %s; A/A %.*f)%s%s", text[0],
                 measure->unit, text[1], text[2], n, verdict->spread, needed[0] ? "; " : "", needed);
}

void epx_ab_say_range(const epx_ab_result_t *result, const epx_ab_verdict_t *verdict, char *text,
                      size_t bytes)
{
    const epx_ab_arm_t *a = &result->arm[verdict->a], *b = &result->arm[verdict->b];
    char low[48], high[48];
    int n = epx_ab_measure_of(verdict->quantity).digits;
    text[0] = '\0';
    if (verdict->given && verdict->exact && verdict->quantity == EPX_AB_DROPS)
        snprintf(text, bytes, "%" PRId64 " and %" PRId64 " of %" PRId64,
                 a->count.dropped_sender + a->count.dropped_receiver,
                 b->count.dropped_sender + b->count.dropped_receiver, a->count.valid);
    else if (verdict->given && verdict->exact)
        snprintf(text, bytes, "%+.1f%%",
                 100 * verdict->interval.mean / (double)(b->peak_bytes > 0 ? b->peak_bytes : 1));
    else if (verdict->given && verdict->pair != NULL && verdict->interval.count > 1)
        snprintf(text, bytes, "90%%: %s to %s", with_sign(low, sizeof low, verdict->interval.low, n),
                 with_sign(high, sizeof high, verdict->interval.high, n));
}

void epx_ab_say_value(const epx_ab_result_t *result, const epx_ab_verdict_t *verdict, char *text,
                      size_t bytes)
{
    const epx_ab_arm_t *a = &result->arm[verdict->a], *b = &result->arm[verdict->b];
    char number[48], other[48];
    double mean = verdict->interval.mean;
    switch (verdict->quantity) {
    case EPX_AB_DROPS:
        snprintf(text, bytes, "%.2f%% : %.2f%%", 100 * epx_ab_drop_fraction(&a->count),
                 100 * epx_ab_drop_fraction(&b->count));
        break;
    case EPX_AB_MEMORY: {
        const char *unit = strchr(epx_text_of_bytes(other, sizeof other, (double)b->peak_bytes), ' ');
        epx_text_of_bytes(number, sizeof number, (double)a->peak_bytes);
        char *end = strchr(number, ' ');
        if (end != NULL && unit != NULL && strcmp(end, unit) == 0)
            *end = '\0'; /* one unit for both */
        snprintf(text, bytes, "%s : %s", number, other);
        break;
    }
    case EPX_AB_LOSS: snprintf(text, bytes, "%s", with_sign(number, sizeof number, mean, 4)); break;
    case EPX_AB_EXPOSED:
    case EPX_AB_STEP_TIME: snprintf(text, bytes, "%s ms", with_sign(number, sizeof number, mean, 1)); break;
    default: snprintf(text, bytes, "%s points", with_sign(number, sizeof number, mean, 2));
    }
}

/* ---- the whole ---------------------------------------------------------------------------------------------------- */

const epx_ab_verdict_t *epx_ab_speed_verdict(const epx_ab_result_t *result, int32_t a, int32_t b)
{
    static const epx_ab_quantity_t ours[] = {EPX_AB_MFU_EXECUTED, EPX_AB_MFU, EPX_AB_STEP_TIME};
    static const epx_ab_quantity_t theirs[] = {EPX_AB_STEP_TIME, EPX_AB_MFU_EXECUTED, EPX_AB_MFU};
    for (int i = 0; i < 3; i++) {
        const epx_ab_verdict_t *verdict =
            epx_ab_verdict_of(result, a, b, result->external ? theirs[i] : ours[i]);
        if (verdict != NULL && verdict->given)
            return verdict;
    }
    return NULL;
}

static int32_t void_arms(const epx_ab_result_t *result)
{
    int32_t count = 0;
    for (int32_t a = 0; a < result->arms; a++)
        count += result->arm[a].is_void;
    return count;
}

static int32_t open_pairs(const epx_ab_result_t *result)
{
    int32_t count = 0;
    for (int32_t a = 0; a < result->arms; a++) {
        for (int32_t b = a + 1; b < result->arms; b++) {
            const epx_ab_verdict_t *speed = epx_ab_speed_verdict(result, a, b);
            count += speed == NULL || speed->word == EPX_AB_INCONCLUSIVE;
        }
    }
    return count;
}

int epx_ab_exit_code(const epx_ab_result_t *result)
{
    if (result->void_why[0] != '\0' || void_arms(result) > 0)
        return EPX_EXIT_FAILED;
    return open_pairs(result) > 0 ? EPX_EXIT_NO_VERDICT : EPX_EXIT_OK;
}

void epx_ab_headline(const epx_ab_result_t *result, char *text, size_t bytes)
{
    int32_t bad = void_arms(result), open = open_pairs(result), pairs = result->arms * (result->arms - 1) / 2;
    if (result->void_why[0] != '\0')
        snprintf(text, bytes, "VOID: %s", result->void_why);
    else if (bad > 0)
        snprintf(text, bytes, "VOID: %d of %d arms failed a guard; nothing is claimed about %s", bad,
                 result->arms, bad == 1 ? "it" : "them");
    else if (open > 0)
        snprintf(text, bytes,
                 "INCONCLUSIVE: All guards hold, but the speed of %d of %d pairs of arms is not decided",
                 open, pairs);
    else
        snprintf(text, bytes, "VALID: All guards hold, and the speed of %s decided",
                 pairs == 1 ? "the pair of arms is" : "every pair of arms is");
}

int epx_ab_say_void(const epx_ab_result_t *result, int32_t a, char *text, size_t bytes)
{
    const epx_ab_arm_t *arm = &result->arm[a];
    if (!arm->is_void)
        return 0;
    snprintf(text, bytes, "too few of its runs count");
    for (int g = EPX_AB_GUARDS - 1; g >= 0; g--) /* the first failed guard is the one that is named */
        if (arm->guard[g].state == EPX_AB_VOID)
            snprintf(text, bytes, "%s: %s", epx_ab_guard_name((epx_ab_guard_t)g), arm->guard[g].text);
    return 1;
}

static int sign_of(const epx_ab_verdict_t *verdict)
{
    if (verdict == NULL || !verdict->given || verdict->word != EPX_AB_DIFFERENT)
        return 0;
    return verdict->interval.mean > 0 ? 1 : -1;
}

void epx_ab_sign_remark(const epx_ab_result_t *result, int32_t a, int32_t b, char *text, size_t bytes)
{
    int plain = sign_of(epx_ab_verdict_of(result, a, b, EPX_AB_MFU));
    int drops = sign_of(epx_ab_verdict_of(result, a, b, EPX_AB_SPEED_EQUAL_DROPS));
    int memory = sign_of(epx_ab_verdict_of(result, a, b, EPX_AB_SPEED_EQUAL_MEMORY));
    text[0] = '\0';
    if (plain * drops < 0 || plain * memory < 0)
        snprintf(text, bytes, "which of %s and %s is faster depends on capacity: at equal %s the sign turns",
                 result->arm[a].name, result->arm[b].name,
                 plain * drops < 0 ? plain * memory < 0 ? "drops and at equal memory" : "drops" : "memory");
}
