/* Verdicts, exit codes and reports on results made by hand. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ab_made.h"
#include "bench/ab/guards.h"
#include "bench/ab/report.h"
#include "bench/ab/verdict.h"
#include "bench/ab/verdict_text.h"
#include "tools/common/json_read.h"

static epx_ab_result_t result;

static void make(void) { result = made_result(3, 3); }

static void unmake(void) { epx_ab_free(&result); }

TestSuite(ab_verdicts, .init = make, .fini = unmake);

static void judge(void)
{
    epx_ab_check_guards(&result);
    epx_ab_give_verdicts(&result);
}

static const epx_ab_verdict_t *verdict(int32_t a, int32_t b, epx_ab_quantity_t quantity)
{
    const epx_ab_verdict_t *found = epx_ab_verdict_of(&result, a, b, quantity);
    cr_assert_not_null(found);
    return found;
}

static void set_mfu(int32_t arm, epx_ab_part_t part, int32_t round, double mfu)
{
    epx_ab_run_t *run = made_run(&result, arm, part, round);
    for (int32_t s = 0; s < MADE_STEPS; s++)
        run->step[s].mfu = mfu;
}

/* Arm 1 is 0.01, that is 1 point, above arm 0 in every pair. */
Test(ab_verdicts, an_equal_difference_in_every_pair)
{
    judge();
    const epx_ab_verdict_t *mfu = verdict(0, 1, EPX_AB_MFU);
    cr_assert_eq(mfu->word, EPX_AB_DIFFERENT);
    cr_assert_float_eq(mfu->interval.mean, -1, 1e-9);
    cr_assert_eq(mfu->interval.count, 3);
    cr_assert_eq(epx_ab_exit_code(&result), 0);
}

/* Differences -1, -2, -3 points: mean -2, 90% interval -2 -+ 1.685854. */
Test(ab_verdicts, an_interval_by_hand)
{
    for (int32_t r = 0; r < 3; r++) {
        set_mfu(0, EPX_AB_PLAIN, r, 0.20);
        set_mfu(1, EPX_AB_PLAIN, r, 0.21 + 0.01 * r);
    }
    set_mfu(0, EPX_AB_AGAIN, 0, 0.20);
    set_mfu(1, EPX_AB_AGAIN, 1, 0.22);
    judge();
    const epx_ab_verdict_t *mfu = verdict(0, 1, EPX_AB_MFU);
    cr_assert_float_eq(mfu->interval.low, -3.685854, 1e-5);
    cr_assert_float_eq(mfu->interval.high, -0.314146, 1e-5);
    cr_assert_eq(mfu->word, EPX_AB_DIFFERENT);
}

/* The same, but runs of one arm differ by 3 points: root of (9 + 9 + 0) / 3 = 2.449, above 2. */
Test(ab_verdicts, nothing_below_the_spread_of_one_arm_is_claimed)
{
    for (int32_t r = 0; r < 3; r++) {
        set_mfu(0, EPX_AB_PLAIN, r, 0.20);
        set_mfu(1, EPX_AB_PLAIN, r, 0.21 + 0.01 * r);
    }
    set_mfu(0, EPX_AB_AGAIN, 0, 0.23);
    set_mfu(1, EPX_AB_AGAIN, 1, 0.19);
    judge();
    const epx_ab_verdict_t *mfu = verdict(0, 1, EPX_AB_MFU);
    cr_assert_float_eq(mfu->spread, sqrt(6), 1e-9);
    cr_assert_eq(mfu->spread_pairs, 3);
    cr_assert_eq(mfu->word, EPX_AB_INCONCLUSIVE);
    cr_assert_eq(mfu->pairs_needed, 0, "more pairs do not help");
}

/* Differences 0, +1, -1 points: mean 0, half-width 1.686; the margin of 0.25 needs 1.645^2 / 0.25^2 = 43.3,
 * and so a few more: t(0.95, 45) = 1.679, 1.679^2 * 16 = 45.1. */
Test(ab_verdicts, inconclusive_with_the_number_of_pairs)
{
    set_mfu(0, EPX_AB_PLAIN, 0, 0.21);
    set_mfu(0, EPX_AB_PLAIN, 1, 0.2201 + 1e-12);
    set_mfu(0, EPX_AB_PLAIN, 2, 0.2002);
    judge();
    const epx_ab_verdict_t *mfu = verdict(0, 1, EPX_AB_MFU);
    cr_assert_eq(mfu->word, EPX_AB_INCONCLUSIVE);
    cr_assert(mfu->pairs_needed >= 45 && mfu->pairs_needed <= 46, "%d", mfu->pairs_needed);
}

Test(ab_verdicts, speed_that_is_not_decided_is_exit_code_3)
{
    for (int32_t s = 0; s < MADE_STEPS; s++)
        made_run(&result, 0, EPX_AB_PLAIN, 0)->step[s].mfu_executed = 0.5;
    judge();
    cr_assert_eq(verdict(0, 1, EPX_AB_MFU_EXECUTED)->word, EPX_AB_INCONCLUSIVE);
    cr_assert_eq(epx_ab_exit_code(&result), 3);
}

/* 3 counted steps x 3 runs x 1000 assignments; 50 dropped in each step of arm 0. */
Test(ab_verdicts, drops_are_compared_as_integers)
{
    judge();
    const epx_ab_verdict_t *drops = verdict(0, 1, EPX_AB_DROPS);
    cr_assert_eq(drops->word, EPX_AB_DIFFERENT);
    cr_assert(drops->exact);
    cr_assert_float_eq(drops->interval.mean, 5, 1e-12, "5%% of 1000 against none");
    cr_assert_eq(result.arm[0].count.valid, 9000);
    cr_assert_eq(result.arm[0].count.dropped_sender, 270);
    cr_assert_eq(result.arm[0].count.dropped_receiver, 180);
    cr_assert_eq(verdict(1, 2, EPX_AB_DROPS)->word, EPX_AB_EQUIVALENT);
}

Test(ab_verdicts, one_drop_more_is_a_difference)
{
    epx_ab_step_t *step = &made_run(&result, 2, EPX_AB_PLAIN, 1)->step[2];
    step->count.kept--, step->count.dropped_sender++;
    judge();
    cr_assert_eq(verdict(1, 2, EPX_AB_DROPS)->word, EPX_AB_DIFFERENT);
}

/* 1.0 and 1.2 MB differ by more than 1%; 1.2 and 1.4 MB too. */
Test(ab_verdicts, memory)
{
    judge();
    cr_assert_eq(verdict(0, 1, EPX_AB_MEMORY)->word, EPX_AB_DIFFERENT);
    cr_assert_eq(result.arm[2].peak_bytes, 1400000);
}

Test(ab_verdicts, memory_within_one_percent)
{
    for (int32_t i = 0; i < result.runs; i++)
        for (int32_t s = 0; s < MADE_STEPS; s++)
            result.run[i].step[s].peak_bytes = 1000000 + 9000 * (result.run[i].arm == 1);
    judge();
    cr_assert_eq(verdict(0, 1, EPX_AB_MEMORY)->word, EPX_AB_EQUIVALENT);
}

Test(ab_verdicts, a_void_arm_gets_no_verdict)
{
    result.arm[1].gradients.worst = 1;
    judge();
    cr_assert_not(verdict(0, 1, EPX_AB_MFU)->given);
    cr_assert_not(verdict(1, 2, EPX_AB_DROPS)->given);
    cr_assert(verdict(0, 2, EPX_AB_MFU)->given);
    cr_assert_eq(epx_ab_exit_code(&result), 1);
}

/* Work over time: steps of 100, 100 and 200 ms at 30%, 30%, 15% do as much work each; 3 / (100 + 100 + 200)
 * against 1 / 100 at 30% is 22.5%. */
Test(ab_verdicts, spikes_count_by_their_time)
{
    epx_ab_run_t *run = made_run(&result, 0, EPX_AB_PLAIN, 0);
    for (int32_t s = 1; s < 4; s++)
        run->step[s].mfu = 0.30;
    run->step[0].mfu = 0.9; /* discarded */
    run->step[3].step_ms = 200;
    run->step[3].mfu = 0.15;
    cr_assert_float_eq(epx_ab_run_number(run, EPX_AB_RUN_MFU), 0.225, 1e-12);
}

/* ---- at other capacities --------------------------------------------------------------------------------------------- */

static void add_adjusted(int32_t arm, double mfu)
{
    result.arm[arm].equal_drops.made = 1;
    for (int32_t r = 0; r < 3; r++) {
        epx_ab_run_t *run = epx_ab_add_run(&result, arm, EPX_AB_EQUAL_DROPS, r, 1);
        run->steps = 1;
        run->step[0] = (epx_ab_step_t){.step = 1, .loss = 2, .step_ms = 100, .mfu = mfu + 1e-4 * r};
    }
}

Test(ab_verdicts, a_sign_that_turns_at_equal_drops)
{
    char remark[EPX_AB_TEXT];
    add_adjusted(0, 0.23); /* 2 points above arm 1, where it was 1 point below */
    judge();
    cr_assert_eq(verdict(0, 1, EPX_AB_SPEED_EQUAL_DROPS)->word, EPX_AB_DIFFERENT);
    cr_assert_float_eq(verdict(0, 1, EPX_AB_SPEED_EQUAL_DROPS)->interval.mean, 2, 1e-9);
    epx_ab_sign_remark(&result, 0, 1, remark, sizeof remark);
    cr_assert_not_null(strstr(remark, "depends on capacity"), "%s", remark);
    epx_ab_sign_remark(&result, 1, 2, remark, sizeof remark);
    cr_assert_str_eq(remark, "");
}

Test(ab_verdicts, no_sign_turns_while_nothing_is_decided)
{
    char remark[EPX_AB_TEXT];
    add_adjusted(0, 0.2101); /* equal: no sign at all */
    judge();
    epx_ab_sign_remark(&result, 0, 1, remark, sizeof remark);
    cr_assert_str_eq(remark, "");
}

/* ---- bystanders ------------------------------------------------------------------------------------------------------ */

Test(ab_verdicts, bystanders_over_one_percent_are_flagged)
{
    for (int32_t i = 0; i < result.runs; i++) {
        for (int32_t s = 0; s < MADE_STEPS; s++) {
            result.run[i].step[s].experts_ms = result.run[i].arm == 1 ? 20.3 : 20;    /* 1.5% */
            result.run[i].step[s].attention_ms = result.run[i].arm == 1 ? 10.05 : 10; /* 0.5% */
        }
    }
    judge();
    cr_assert(result.arm[1].bystander_flag[0]);
    cr_assert_not(result.arm[1].bystander_flag[1]);
    cr_assert_float_eq(result.arm[1].bystander_share[0], 0.015, 1e-9);
}

/* ---- reports --------------------------------------------------------------------------------------------------------- */

static char *read_file(const char *path, size_t *bytes_p)
{
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file);
    char *text = calloc(1, 1 << 20);
    *bytes_p = fread(text, 1, (1 << 20) - 1, file);
    fclose(file);
    return text;
}

Test(ab_verdicts, json_has_what_was_promised)
{
    static const char *const keys[] = {"transport",
                                       "mfu",
                                       "mfu_executed",
                                       "drop_fraction",
                                       "sender_drop_fraction",
                                       "receiver_drop_fraction",
                                       "loss",
                                       "peak_bytes",
                                       "exposed_ms",
                                       "void"};
    char path[] = "/tmp/ab-json-XXXXXX", problem[200] = "";
    close(mkstemp(path));
    judge();
    cr_assert_eq(epx_ab_write_json(&result, path), 0);
    size_t bytes;
    char *text = read_file(path, &bytes);
    epx_json_document_t document;
    cr_assert_eq(epx_json_read(text, bytes, &document, problem, sizeof problem), 0, "%s", problem);
    const epx_json_value_t *arms = epx_json_member(document.value, "arms"), *arm = epx_json_first(arms);
    for (int32_t a = 0; a < 3; a++, arm = epx_json_next(arms, arm))
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            cr_assert_not_null(epx_json_member(arm, keys[k]), "%s", keys[k]);
    cr_assert_not_null(epx_json_member(document.value, "verdicts"));
    cr_assert_not_null(epx_json_member(document.value, "scope"));
    cr_assert_not_null(epx_json_member(document.value, "guards"));
    cr_assert_float_eq(epx_json_number_of(epx_json_first(arms), "drop_fraction", -1), 0.05, 1e-12);
    cr_assert_str_eq(epx_json_text_of(document.value, "outcome", ""), "valid");
    epx_json_document_free(&document);
    free(text);
    unlink(path);
}

Test(ab_verdicts, the_page_needs_nothing_from_outside)
{
    char path[] = "/tmp/ab-html-XXXXXX";
    close(mkstemp(path));
    snprintf(result.arm[1].name, EPX_AB_NAME, "<b>&\"ragged\"");
    judge();
    cr_assert_eq(epx_ab_write_html(&result, path), 0);
    size_t bytes;
    char *text = read_file(path, &bytes);
    static const char *const outside[] = {"http:", "https:", "src=", "<link", "@import", "url(", "<script"};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
        cr_assert_null(strstr(text, outside[i]), "%s", outside[i]);
    cr_assert_null(strstr(text, "<b>&\"ragged"), "names are escaped");
    cr_assert_null(strstr(text, "nan"), "no number is lost on the way");
    cr_assert_not_null(strstr(text, "</html>"));
    free(text);
    unlink(path);
}

Test(ab_verdicts, the_table_begins_with_the_verdict)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    judge();
    epx_ab_print(&result, out, 0);
    fclose(out);
    cr_assert_eq(strncmp(text, "VALID: ", 7), 0, "%.60s", text);
    const char *arms = strstr(text, "\narms\n"), *guards = strstr(text, "\nguards\n"),
               *scope = strstr(text, "\nscope\n");
    cr_assert(arms != NULL && guards > arms && scope > guards);
    free(text);
}

/* Nothing but drops is known of jobs that wrote EPX_STATS alone. */
Test(ab_verdicts, reports_bear_what_is_not_known)
{
    char path[] = "/tmp/ab-none-XXXXXX", *text = NULL;
    size_t bytes;
    close(mkstemp(path));
    unmake();
    result = (epx_ab_result_t){.arms = 2, .external = 1, .arm = {{.name = "a"}, {.name = "b"}}};
    for (int32_t r = 0; r < 3; r++) {
        for (int32_t i = 0; i < 3; i++) {
            epx_ab_run_t *run =
                epx_ab_add_run(&result, i % 2, i < 2 ? EPX_AB_PLAIN : EPX_AB_AGAIN, r, MADE_STEPS);
            run->steps = MADE_STEPS;
            for (int32_t s = 0; s < MADE_STEPS; s++) {
                run->step[s] = epx_ab_unknown_step();
                run->step[s].step = s;
                run->step[s].count =
                    (epx_ab_counts_t){.valid = 100, .kept = 100 - i % 2, .dropped_sender = i % 2};
            }
        }
    }
    judge();
    cr_assert_eq(verdict(0, 1, EPX_AB_DROPS)->word, EPX_AB_DIFFERENT);
    cr_assert_not(verdict(0, 1, EPX_AB_MFU)->given);
    cr_assert_eq(epx_ab_exit_code(&result), 3);
    cr_assert_eq(epx_ab_write_html(&result, path), 0);
    cr_assert_eq(epx_ab_write_json(&result, path), 0);
    FILE *out = open_memstream(&text, &bytes);
    epx_ab_print(&result, out, 1);
    fclose(out);
    cr_assert_null(strstr(text, "nan"));
    free(text);
    unlink(path);
}
