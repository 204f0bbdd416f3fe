/* What counters mean, who meets whom in a probe, and whose faults they are. SPDX-License-Identifier:
 * Apache-2.0 */
#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

#include <epx/health.h>

#include "tools/health/ledger.h"
#include "tools/health/pairs.h"

enum { MOST = 8, GONE = -1 };

/* Values an hour apart unless times_s says otherwise; GONE is a value that was not known. */
typedef struct course {
    const char *name;
    int32_t count;
    int64_t value[MOST];
    epx_health_verdict_t verdict;
    const char *word; /* in the reason; NULL: there is none */
    double step_s;    /* between points; 0: an hour */
    int32_t unjudged;
} course_t;

enum { TO_BE_COMPARED = -1 }; /* unjudged: it means nothing alone */

static const course_t courses[] = {
    /* states: 4 is active for a port, 1 for an NVLink */
    {"state", 1, {4}, EPX_HEALTH_OK, NULL, 0, 0},
    {"state", 3, {4, 4, 1}, EPX_HEALTH_CORDON, "not active", 0, 0},
    {"state", 3, {4, 1, 4}, EPX_HEALTH_WATCH, "flap", 0, 0},
    {"state", 7, {4, 1, 4, 1, 4, 1, 4}, EPX_HEALTH_CORDON, "3 times", 0, 0},
    {"state", 2, {1, 1}, EPX_HEALTH_WATCH, "never active", 0, 0},
    {"state", 3, {1, 2, 4}, EPX_HEALTH_OK, NULL, 0, 0}, /* coming up is no flap */
    {"state", 1, {GONE}, EPX_HEALTH_CANNOT_TELL, NULL, 0, 1},
    {"nvlink_state", 2, {1, 1}, EPX_HEALTH_OK, NULL, 0, 0},
    {"nvlink_state", 2, {1, 0}, EPX_HEALTH_CORDON, "not active", 0, 0},
    /* one flap, several flaps */
    {"link_downed", 3, {7, 7, 7}, EPX_HEALTH_OK, NULL, 0, 0},
    {"link_downed", 3, {7, 8, 8}, EPX_HEALTH_WATCH, "once", 0, 0},
    {"link_downed", 3, {7, 8, 9}, EPX_HEALTH_WATCH, "2 times", 0, 0},
    {"link_downed", 3, {7, 8, 10}, EPX_HEALTH_CORDON, "3 times", 0, 0},
    {"async_port_err", 2, {0, 1}, EPX_HEALTH_WATCH, "once", 1, 0},
    /* recoveries: over, only just, and going on */
    {"link_error_recovery", 4, {5, 5, 5, 5}, EPX_HEALTH_OK, NULL, 0, 0},
    {"link_error_recovery", 4, {5, 6, 6, 6}, EPX_HEALTH_WATCH, "none since", 0, 0},
    {"link_error_recovery", 4, {5, 5, 5, 6}, EPX_HEALTH_WATCH, "since the last look", 0, 0},
    {"link_error_recovery", 4, {5, 6, 6, 7}, EPX_HEALTH_CORDON, "goes on", 0, 0},
    {"nvlink_recoveries", 3, {0, 3, 9}, EPX_HEALTH_CORDON, "9 times", 0, 0},
    /* rates: 10 and 1,000 an hour are the bounds of symbol errors */
    {"symbol_error", 3, {0, 9, 18}, EPX_HEALTH_OK, NULL, 0, 0},
    {"symbol_error", 3, {0, 10, 20}, EPX_HEALTH_WATCH, "10 an hour", 0, 0},
    {"symbol_error", 3, {0, 1000, 2000}, EPX_HEALTH_CORDON, "1e+03 an hour", 0, 0},
    {"symbol_error", 2, {3, 3}, EPX_HEALTH_OK, NULL, 0, 0},
    /* one error between two samples a second apart is at most ten an hour, two are twenty */
    {"port_rcv_errors", 2, {0, 1}, EPX_HEALTH_WATCH, "10 an hour", 1, 0},
    {"port_rcv_errors", 2, {0, 2}, EPX_HEALTH_WATCH, "20 an hour", 1, 0},
    /* a reset or a wrap is no alarm, and what was counted before still counts */
    {"link_downed", 4, {7, 0, 0, 0}, EPX_HEALTH_OK, NULL, 0, 0},
    {"link_downed", 4, {7, 8, 0, 0}, EPX_HEALTH_WATCH, "once", 0, 0},
    {"symbol_error", 3, {60000, 3, 3}, EPX_HEALTH_OK, NULL, 0, 0},
    /* a counter that stands at its end can say no more */
    {"symbol_error", 3, {65535, 65535, 65535}, EPX_HEALTH_CANNOT_TELL, "stops", 0, 0},
    {"link_downed", 2, {255, 255}, EPX_HEALTH_CANNOT_TELL, "stops", 0, 0},
    {"nvlink_replays", 2, {65535, 65535}, EPX_HEALTH_OK, NULL, 0, 0},
    /* absent is not zero: 5 after nothing is no rise by five */
    {"link_downed", 3, {GONE, GONE, 5}, EPX_HEALTH_CANNOT_TELL, NULL, 0, 1},
    {"link_downed", 4, {GONE, 5, GONE, 5}, EPX_HEALTH_OK, NULL, 0, 0},
    {"link_downed", 1, {0}, EPX_HEALTH_CANNOT_TELL, NULL, 0, 1},
    {"xid_hardware", 2, {0, 1}, EPX_HEALTH_CORDON, "xid_hardware", 0, 0},
    {"xid_other", 2, {0, 1}, EPX_HEALTH_WATCH, "xid_other", 0, 0},
    /* CRC errors are a fault from 100 a second on: 6,000 in a minute count as if in six */
    {"nvlink_crc_flit_errors", 3, {0, 180000, 360000}, EPX_HEALTH_WATCH, "from 100 on", 0, 0},
    {"nvlink_crc_flit_errors", 3, {0, 400000, 720000}, EPX_HEALTH_CORDON, "3.6e+05 on", 0, 0},
    {"nvlink_crc_data_errors", 2, {0, 35999}, EPX_HEALTH_WATCH, "counted as if it were 6 min", 60, 0},
    {"nvlink_crc_data_errors", 2, {0, 36000}, EPX_HEALTH_CORDON, "counted as if it were 6 min", 60, 0},
    {"nvlink_crc_data_errors", 2, {0, 36000}, EPX_HEALTH_WATCH, "in 361 s, 3.59", 361, 0},
    /* what a link has corrected is no fault, however much it is */
    {"nvlink_ecc_errors", 3, {0, 1000000, 2000000000}, EPX_HEALTH_OK, NULL, 1, TO_BE_COMPARED},
    {"nvlink_crc_lane_errors", 3, {285, 414, 507}, EPX_HEALTH_OK, NULL, 1, TO_BE_COMPARED},
    {"nvlink_ecc_errors", 1, {4264}, EPX_HEALTH_CANNOT_TELL, NULL, 0, 1},
    {"nvlink_mbytes_per_s", 1, {26562}, EPX_HEALTH_OK, NULL, 0, TO_BE_COMPARED},
    /* what the driver wants done counts at once */
    {"gpu_recovery_action", 1, {0}, EPX_HEALTH_OK, NULL, 0, 0},
    {"gpu_recovery_action", 1, {2}, EPX_HEALTH_CORDON, "reboot", 0, 0},
    {"gpu_recovery_action", 2, {4, 0}, EPX_HEALTH_OK, NULL, 0, 0},
    {"gpu_recovery_action", 2, {0, 5}, EPX_HEALTH_WATCH, "number 5", 0, 0},
    /* traffic is nobody's fault */
    {"port_xmit_data", 3, {0, 1000000, 2}, EPX_HEALTH_CANNOT_TELL, NULL, 0, 1},
};

static void check_course(const course_t *course)
{
    epx_health_point_t points[MOST];
    epx_health_finding_t finding;
    char text[128] = "";
    for (int32_t i = 0; i < course->count; i++) {
        double step = course->step_s > 0 ? course->step_s : 3600;
        points[i] = (epx_health_point_t){1e9 + i * step, course->value[i] != GONE,
                                         course->value[i] != GONE ? (uint64_t)course->value[i] : 12345};
        snprintf(text + strlen(text), sizeof(text) - strlen(text), " %d", (int)course->value[i]);
    }
    epx_health_judge(course->name, points, course->count, 86400, &finding);
    int32_t judged = course->unjudged == TO_BE_COMPARED ? EPX_HEALTH_BESIDE : !course->unjudged;
    cr_expect_eq(finding.judged, judged, "%s:%s is judged: %d", course->name, text, finding.judged);
    cr_expect_eq(finding.verdict, course->verdict, "%s:%s: %s", course->name, text,
                 epx_health_verdict_name(finding.verdict));
    if (course->word == NULL)
        cr_expect_str_eq(finding.reason, "", "%s:%s: %s", course->name, text, finding.reason);
    else
        cr_expect(strstr(finding.reason, course->word) != NULL, "%s:%s: %s", course->name, text,
                  finding.reason);
}

Test(health, courses)
{
    for (size_t i = 0; i < sizeof(courses) / sizeof(courses[0]); i++)
        check_course(&courses[i]);
}

/* `level` of a link beside `others`, the rest of them being 0. */
static epx_health_verdict_t beside(const char *name, double level, const double *others, int32_t count)
{
    epx_health_finding_t finding = {
        .judged = EPX_HEALTH_BESIDE, .verdict = EPX_HEALTH_OK, .increments = (uint64_t)level, .level = level};
    epx_health_judge_beside(name, others, count, &finding);
    cr_expect_eq(finding.reason[0] != '\0', finding.verdict != EPX_HEALTH_OK, "%s: %s", name, finding.reason);
    return finding.verdict;
}

Test(health, errors_that_are_corrected_are_compared)
{
    /* What 17 links of an H200 corrected within a second of traffic. */
    const double busy[17] = {4, 5, 16, 2, 9, 2, 0, 8, 8, 6, 2, 8, 0, 3, 6, 8, 8};
    const double idle[17] = {0}, pair[11] = {2000, 1900, 2100};
    const char *name = "nvlink_ecc_errors";
    cr_expect_eq(beside(name, 10, busy, 17), EPX_HEALTH_OK);
    cr_expect_eq(beside(name, 999, busy, 17), EPX_HEALTH_OK, "too few to tell");
    cr_expect_eq(beside(name, 1000, busy, 17), EPX_HEALTH_WATCH, "a quarter has 8 or more");
    cr_expect_eq(beside(name, 1e12, busy, 17), EPX_HEALTH_WATCH, "never more than that");
    cr_expect_eq(beside(name, 999, idle, 17), EPX_HEALTH_OK);
    cr_expect_eq(beside(name, 1000, idle, 17), EPX_HEALTH_WATCH);
    cr_expect_eq(beside(name, 2050, pair, 11), EPX_HEALTH_OK,
                 "four of twelve links lead to the GPU that works");
    cr_expect_eq(beside(name, 1e6, busy, 2), EPX_HEALTH_OK, "two others are nothing to compare with");
    cr_expect_eq(beside("nvlink_crc_lane_errors", 1000, busy, 17), EPX_HEALTH_WATCH);
    cr_expect_eq(beside("nvlink_replays", 1e6, busy, 17), EPX_HEALTH_OK, "judged by its rate");
}

Test(health, a_slow_link_stands_out)
{
    const double same[5] = {26562, 26562, 26562, 26562, 26562}, down[5] = {0};
    const char *name = "nvlink_mbytes_per_s";
    cr_expect_eq(beside(name, 26562, same, 5), EPX_HEALTH_OK);
    cr_expect_eq(beside(name, 13281, same, 5), EPX_HEALTH_WATCH);
    cr_expect_eq(beside(name, 0, same, 5), EPX_HEALTH_OK, "it is down, which its state says");
    cr_expect_eq(beside(name, 13281, down, 5), EPX_HEALTH_OK);
}

/* What happened before the window is over: three flaps, the last two hours clean. */
Test(health, a_window_ends_what_was)
{
    epx_health_point_t points[6];
    const uint64_t values[6] = {0, 1, 2, 3, 3, 3};
    epx_health_finding_t finding;
    for (int32_t i = 0; i < 6; i++)
        points[i] = (epx_health_point_t){3600.0 * i, 1, values[i]};
    epx_health_judge("link_downed", points, 6, 6 * 3600.0, &finding);
    cr_expect_eq(finding.verdict, EPX_HEALTH_CORDON);
    cr_expect_eq(finding.increments, 3);
    epx_health_judge("link_downed", points, 6, 3 * 3600.0, &finding);
    cr_expect_eq(finding.verdict, EPX_HEALTH_WATCH, "one flap in the last three hours");
    cr_expect_eq(finding.increments, 1);
    epx_health_judge("link_downed", points, 6, 2 * 3600.0, &finding);
    cr_expect_eq(finding.verdict, EPX_HEALTH_OK);
}

/* ---- pairs ------------------------------------------------------------------------------------------------------ */

Test(health, every_pair_meets_once)
{
    for (int32_t ranks = 2; ranks <= 33; ranks++) {
        static int32_t met[33][33];
        memset(met, 0, sizeof(met));
        for (int32_t round = 0; round < health_rounds(ranks); round++)
            for (int32_t r = 0; r < ranks; r++) {
                int32_t other = health_partner(ranks, round, r);
                if (other < 0)
                    continue;
                cr_assert(other != r && other < ranks, "%d ranks, round %d: %d meets %d", ranks, round, r,
                          other);
                cr_assert_eq(health_partner(ranks, round, other), r, "%d ranks, round %d: %d and %d", ranks,
                             round, r, other);
                met[r][other]++;
            }
        for (int32_t a = 0; a < ranks; a++)
            for (int32_t b = 0; b < ranks; b++)
                cr_assert_eq(met[a][b], a != b, "%d ranks: %d and %d meet %d times", ranks, a, b, met[a][b]);
    }
}

Test(health, slow_pairs_stand_out)
{
    double rate[16];
    int32_t slow[4];
    for (int32_t i = 0; i < 16; i++)
        rate[i] = 100;
    for (int32_t r = 0; r < 4; r++) /* rank 2 is slow with everyone but rank 3 */
        rate[2 * 4 + r] = rate[r * 4 + 2] = r == 3 ? 90 : 50;
    cr_expect_float_eq(health_slow_pairs(rate, 4, 0.6, slow), 95, 1e-9); /* of 100 100 100 90 50 50 */
    const int32_t expected[] = {1, 1, 2, 0};
    cr_expect_arr_eq(slow, expected, sizeof(expected));
}

/* ---- ledger ----------------------------------------------------------------------------------------------------- */

static health_blame_t blame(const health_run_t *runs, int32_t count, const char *who)
{
    const char *found;
    health_blame_t verdict = health_blame(runs, count, &found);
    cr_expect_str_eq(found, who, "%s is blamed", found);
    return verdict;
}

Test(health, a_fault_stays_with_a_rack_or_follows_a_job)
{
    const health_run_t of_rack[] = {
        {"a", "r1", 1}, {"b", "r1", 1}, {"a", "r2", 0}, {"b", "r3", 0}, {"c", "r2", 0}};
    cr_expect_eq(blame(of_rack, 5, "r1"), HEALTH_RACK);
    const health_run_t of_job[] = {{"a", "r1", 1}, {"a", "r2", 1}, {"b", "r1", 0}, {"c", "r2", 0}};
    cr_expect_eq(blame(of_job, 4, "a"), HEALTH_JOB);
    const health_run_t once[] = {{"a", "r1", 1}, {"b", "r1", 0}, {"a", "r2", 0}};
    cr_expect_eq(blame(once, 3, ""), HEALTH_UNCLEAR);
    const health_run_t never_elsewhere[] = {{"a", "r1", 1}, {"b", "r1", 1}};
    cr_expect_eq(blame(never_elsewhere, 2, ""), HEALTH_UNCLEAR);
    const health_run_t everywhere[] = {{"a", "r1", 1}, {"b", "r1", 1}, {"a", "r2", 1}, {"b", "r2", 1}};
    cr_expect_eq(blame(everywhere, 4, ""), HEALTH_UNCLEAR);
    const health_run_t clean[] = {{"a", "r1", 0}, {"b", "r2", 0}};
    cr_expect_eq(blame(clean, 2, ""), HEALTH_NOBODY);
}
