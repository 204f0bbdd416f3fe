/* What counters mean: a table and a pure function. SPDX-License-Identifier: Apache-2.0 */
#include "health/health.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct rule {
    const char *name;
    epx_health_kind_t kind;
    uint64_t good;                          /* EPX_HEALTH_STATE */
    uint64_t end;                           /* where the counter stops for good; 0: nowhere that matters */
    double watch_per_hour, cordon_per_hour; /* EPX_HEALTH_ERRORS: from this rate on */
} rule_t;

enum { MANY_FLAPS = 3, END_8 = 0xff, END_16 = 0xffff };

/* NVIDIA's DCGM calls CRC errors of NVLinks a failure from 100 a second on. */
enum { CRC_FAILURE = 100 * 3600 };

/* Beside its neighbours: how many, how often, and how slow a link is that stands out. */
enum { NEIGHBOURS_LEAST = 3, CORRECTED_LEAST = 1000, CORRECTED_TIMES = 100 };
static const double slow_share = 0.9;

/* Rates: 10 symbol errors an hour are about what a link at its specified bit-error rate shows. */
static const rule_t rules[] = {
    {"state", EPX_HEALTH_STATE, 4, 0, 0, 0},
    {"nvlink_state", EPX_HEALTH_STATE, 1, 0, 0, 0},
    {"fabric_state", EPX_HEALTH_STATE, 3, 0, 0, 0},
    {"link_downed", EPX_HEALTH_FLAP, 0, END_8, 0, 0},
    {"async_port_err", EPX_HEALTH_FLAP, 0, 0, 0, 0},
    {"nvlink_recoveries_failed", EPX_HEALTH_FLAP, 0, 0, 0, 0},
    {"gpu_recovery_action", EPX_HEALTH_DEMAND, 0, 0, 0, 0},
    {"async_device_fatal", EPX_HEALTH_FATAL, 0, 0, 0, 0},
    {"xid_hardware", EPX_HEALTH_FATAL, 0, 0, 0, 0},
    {"link_error_recovery", EPX_HEALTH_RECOVERY, 0, END_8, 0, 0},
    {"nvlink_recoveries", EPX_HEALTH_RECOVERY, 0, 0, 0, 0},
    {"xid_other", EPX_HEALTH_ERRORS, 0, 0, 1, 1e9},
    {"symbol_error", EPX_HEALTH_ERRORS, 0, END_16, 10, 1000},
    {"port_rcv_errors", EPX_HEALTH_ERRORS, 0, END_16, 10, 1000},
    {"port_rcv_remote_physical_errors", EPX_HEALTH_ERRORS, 0, END_16, 10, 1000},
    {"local_link_integrity_errors", EPX_HEALTH_ERRORS, 0, 0, 1, 100},
    {"excessive_buffer_overrun_errors", EPX_HEALTH_ERRORS, 0, 0, 1, 100},
    {"port_xmit_discards", EPX_HEALTH_ERRORS, 0, END_16, 100, 1e5},
    {"rx_icrc_encapsulated", EPX_HEALTH_ERRORS, 0, 0, 10, 1000},
    {"packet_seq_err", EPX_HEALTH_ERRORS, 0, 0, 100, 1e5},
    {"out_of_sequence", EPX_HEALTH_ERRORS, 0, 0, 100, 1e5},
    {"local_ack_timeout_err", EPX_HEALTH_ERRORS, 0, 0, 10, 1e4},
    {"retry_exceeded_err", EPX_HEALTH_ERRORS, 0, 0, 1, 100},
    {"retry_rnr_exceeded_err", EPX_HEALTH_ERRORS, 0, 0, 1, 100},
    {"nvlink_replays", EPX_HEALTH_ERRORS, 0, 0, 10, 1000},
    {"nvlink_crc_flit_errors", EPX_HEALTH_ERRORS, 0, 0, 100, CRC_FAILURE},
    {"nvlink_crc_data_errors", EPX_HEALTH_ERRORS, 0, 0, 100, CRC_FAILURE},
    {"nvlink_crc_lane_errors", EPX_HEALTH_CORRECTED, 0, 0, 0, 0},
    {"nvlink_ecc_errors", EPX_HEALTH_CORRECTED, 0, 0, 0, 0},
    {"nvlink_mbytes_per_s", EPX_HEALTH_SPEED, 0, 0, 0, 0},
    {"nvlink_rcv_errors", EPX_HEALTH_ERRORS, 0, 0, 10, 1000},
    {"nvlink_integrity_errors", EPX_HEALTH_ERRORS, 0, 0, 1, 100},
    {"nvlink_effective_errors", EPX_HEALTH_ERRORS, 0, 0, 10, 1000},
};

const char *epx_health_verdict_name(int32_t verdict)
{
    static const char *const names[] = {"OK", "CANNOT TELL", "WATCH", "CORDON"};
    return verdict >= 0 && verdict <= EPX_HEALTH_CORDON ? names[verdict] : "CANNOT TELL";
}

static const rule_t *rule_of(const char *name)
{
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
        if (strcmp(rules[i].name, name) == 0)
            return &rules[i];
    return NULL;
}

epx_health_kind_t epx_health_kind_of(const char *name, uint64_t *good_p)
{
    const rule_t *rule = rule_of(name);
    *good_p = rule != NULL ? rule->good : 0;
    return rule != NULL ? rule->kind : EPX_HEALTH_NOBODY_JUDGES;
}

/* What the known points of the window say, however they are judged. */
typedef struct course {
    int32_t known; /* points */
    double first_s, last_s;
    uint64_t last;
    uint64_t increments; /* in all; a fall is a reset or a wrap and counts nothing */
    int32_t rises;       /* intervals with increments */
    int32_t rose_last;   /* the last interval is one of them */
    int32_t was_good;    /* EPX_HEALTH_STATE: at any point */
    int32_t leaves;      /* EPX_HEALTH_STATE: from good to something else */
} course_t;

static course_t follow(const rule_t *rule, const epx_health_point_t *points, int32_t count, double window_s)
{
    course_t c = {0};
    double from = count > 0 ? points[count - 1].time_s - window_s : 0;
    for (int32_t i = 0; i < count; i++) {
        if (!points[i].known || points[i].time_s < from)
            continue;
        uint64_t step = c.known > 0 && points[i].value > c.last ? points[i].value - c.last : 0;
        c.increments += step;
        c.rises += step > 0;
        c.rose_last = step > 0;
        c.was_good |= points[i].value == rule->good;
        c.leaves += c.known > 0 && c.last == rule->good && points[i].value != rule->good;
        if (c.known++ == 0)
            c.first_s = points[i].time_s;
        c.last_s = points[i].time_s;
        c.last = points[i].value;
    }
    return c;
}

/* "in 2.5 h", "in 40 s" */
static void say_time(double seconds, char *text, size_t bytes)
{
    if (seconds >= 5400)
        snprintf(text, bytes, "in %.3g h", seconds / 3600);
    else
        snprintf(text, bytes, "in %.3g s", seconds);
}

static epx_health_verdict_t judge_flaps(uint64_t times, const char *span, char *reason, size_t bytes)
{
    if (times == 0)
        return EPX_HEALTH_OK;
    if (times == 1)
        snprintf(reason, bytes, "flap: went down and came back once %s", span);
    else
        snprintf(reason, bytes, "flaps: went down %" PRIu64 " times %s", times, span);
    return times >= MANY_FLAPS ? EPX_HEALTH_CORDON : EPX_HEALTH_WATCH;
}

static epx_health_verdict_t judge_state(const rule_t *rule, const course_t *c, const char *span, char *reason,
                                        size_t bytes)
{
    if (c->last != rule->good && !c->was_good) {
        snprintf(reason, bytes,
                 "was never active while it was watched (%s is %" PRIu64 ", not %" PRIu64
                 "): not connected, or down for long",
                 rule->name, c->last, rule->good);
        return EPX_HEALTH_WATCH;
    }
    if (c->last != rule->good) {
        snprintf(reason, bytes, "is not active: %s is %" PRIu64 ", not %" PRIu64, rule->name, c->last,
                 rule->good);
        return EPX_HEALTH_CORDON;
    }
    return judge_flaps((uint64_t)c->leaves, span, reason, bytes);
}

static epx_health_verdict_t judge_recoveries(const course_t *c, const char *span, char *reason, size_t bytes)
{
    if (c->increments == 0)
        return EPX_HEALTH_OK;
    int32_t still = c->rose_last && c->rises > 1;
    snprintf(reason, bytes, "recovered %" PRIu64 " times %s%s", c->increments, span,
             still          ? ", and it goes on"
             : c->rose_last ? ", all since the last look"
                            : ", none since the last look");
    return still ? EPX_HEALTH_CORDON : EPX_HEALTH_WATCH;
}

static epx_health_verdict_t judge_rate(const rule_t *rule, const epx_health_finding_t *f, const char *span,
                                       int32_t is_short, char *reason, size_t bytes)
{
    if (f->increments == 0 || f->per_hour < rule->watch_per_hour)
        return EPX_HEALTH_OK;
    int32_t much = f->per_hour >= rule->cordon_per_hour;
    snprintf(reason, bytes, "%s: %" PRIu64 " more %s, %s%.3g an hour (from %.3g on: %s)", rule->name,
             f->increments, span, is_short ? "counted as if it were 6 min: " : "", f->per_hour,
             much ? rule->cordon_per_hour : rule->watch_per_hour, much ? "CORDON" : "WATCH");
    return much ? EPX_HEALTH_CORDON : EPX_HEALTH_WATCH;
}
_Static_assert(EPX_HEALTH_LEAST_S == 6 * 60, "the reason says so");

static epx_health_verdict_t judge_demand(uint64_t action, char *reason, size_t bytes)
{
    static const char *const demands[] = {"", "a reset of the GPU", "a reboot of the host",
                                          "an end of all traffic between GPUs",
                                          "no new work, and a reset of the GPU"};
    if (action == 0)
        return EPX_HEALTH_OK;
    if (action >= sizeof(demands) / sizeof(demands[0])) {
        snprintf(reason, bytes, "the driver wants an action that is not known here: its number %" PRIu64,
                 action);
        return EPX_HEALTH_WATCH;
    }
    snprintf(reason, bytes, "the driver wants %s", demands[action]);
    return EPX_HEALTH_CORDON;
}

static int32_t is_of_now(epx_health_kind_t kind)
{
    return kind == EPX_HEALTH_STATE || kind == EPX_HEALTH_SPEED || kind == EPX_HEALTH_DEMAND;
}

void epx_health_judge(const char *name, const epx_health_point_t *points, int32_t count, double window_s,
                      epx_health_finding_t *finding_p)
{
    epx_health_finding_t f = {.verdict = EPX_HEALTH_CANNOT_TELL};
    const rule_t *rule = rule_of(name);
    char span[32];
    *finding_p = f;
    if (rule == NULL)
        return;
    course_t c = follow(rule, points, count, window_s);
    double seconds = c.last_s - c.first_s;
    if (c.known < (is_of_now(rule->kind) ? 1 : 2))
        return; /* one number of a counter says nothing about now */
    f.judged = 1;
    f.increments = is_of_now(rule->kind) ? 0 : c.increments;
    f.per_hour =
        (double)f.increments / ((seconds > EPX_HEALTH_LEAST_S ? seconds : EPX_HEALTH_LEAST_S) / 3600);
    say_time(seconds, span, sizeof(span));
    switch (rule->kind) {
    case EPX_HEALTH_NOBODY_JUDGES: break;
    case EPX_HEALTH_STATE: f.verdict = judge_state(rule, &c, span, f.reason, sizeof(f.reason)); break;
    case EPX_HEALTH_FLAP: f.verdict = judge_flaps(c.increments, span, f.reason, sizeof(f.reason)); break;
    case EPX_HEALTH_RECOVERY: f.verdict = judge_recoveries(&c, span, f.reason, sizeof(f.reason)); break;
    case EPX_HEALTH_ERRORS:
        f.verdict = judge_rate(rule, &f, span, seconds < EPX_HEALTH_LEAST_S, f.reason, sizeof(f.reason));
        break;
    case EPX_HEALTH_DEMAND: f.verdict = judge_demand(c.last, f.reason, sizeof(f.reason)); break;
    case EPX_HEALTH_CORRECTED:
    case EPX_HEALTH_SPEED:
        f.verdict = EPX_HEALTH_OK;
        f.judged = EPX_HEALTH_BESIDE;
        f.level = (double)(rule->kind == EPX_HEALTH_SPEED ? c.last : c.increments);
        break;
    case EPX_HEALTH_FATAL:
        f.verdict = c.increments > 0 ? EPX_HEALTH_CORDON : EPX_HEALTH_OK;
        if (c.increments > 0)
            snprintf(f.reason, sizeof(f.reason), "%s: %" PRIu64 " %s", name, c.increments, span);
        break;
    }
    if (f.verdict == EPX_HEALTH_OK && rule->end != 0 && c.last == rule->end) {
        f.verdict = EPX_HEALTH_CANNOT_TELL;
        snprintf(f.reason, sizeof(f.reason), "%s stands at %" PRIu64 ", where it stops: reset it", name,
                 c.last);
    }
    *finding_p = f;
}

/* What at least a quarter of the values reach: neighbours of which many idle do not hide those that work. */
static double upper_quarter(const double *values, int32_t count)
{
    double found = 0;
    for (int32_t i = 0; i < count; i++) {
        int32_t reach = 0;
        for (int32_t j = 0; j < count; j++)
            reach += values[j] >= values[i];
        if (4 * reach >= count && values[i] > found)
            found = values[i];
    }
    return found;
}

void epx_health_judge_beside(const char *name, const double *others, int32_t count,
                             epx_health_finding_t *finding_p)
{
    const rule_t *rule = rule_of(name);
    if (rule == NULL || finding_p->judged != EPX_HEALTH_BESIDE || count < NEIGHBOURS_LEAST)
        return;
    double usual = upper_quarter(others, count);
    if (rule->kind == EPX_HEALTH_CORRECTED && finding_p->level >= CORRECTED_LEAST &&
        finding_p->level >= CORRECTED_TIMES * usual) {
        finding_p->verdict = EPX_HEALTH_WATCH;
        snprintf(finding_p->reason, sizeof(finding_p->reason),
                 "%s: %" PRIu64 " more, over %d times those of the other links (a quarter of which has %.0f "
                 "or more)",
                 name, finding_p->increments, CORRECTED_TIMES, usual);
    }
    if (rule->kind == EPX_HEALTH_SPEED && finding_p->level > 0 && finding_p->level < slow_share * usual) {
        finding_p->verdict = EPX_HEALTH_WATCH;
        snprintf(finding_p->reason, sizeof(finding_p->reason),
                 "is slower than the other links: %.0f MB/s, they have %.0f", finding_p->level, usual);
    }
}
