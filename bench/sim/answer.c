/*
 * The smallest capacity that keeps drops below a share. SPDX-License-Identifier: Apache-2.0
 *
 * In hundredths, by doubling and then halving the interval: what is kept grows with capacity. (With
 * pooled_wave more that passes its first gate can cost others their place behind the second, but both
 * capacities grow together, and what is shown has been counted at the capacity that is shown.)
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/sim/report.h"
#include "tools/common/program.h"
#include "tools/common/table.h"

enum { FIRST = 100, LAST = 6400 }; /* hundredths */

/* A case's interval: too much is dropped at `below`, not at `at` once that is known. */
typedef struct search {
    int32_t below, at, next; /* at 0: not known; next 0: nothing left to try */
    epx_sim_result_t result; /* at `at`; without its samples */
} search_t;

static void choose(search_t *search)
{
    if (search->at == 0)
        search->next = search->below == 0 ? FIRST : search->below < LAST ? 2 * search->below : 0;
    else
        search->next = search->at - search->below > 1 ? search->below + (search->at - search->below) / 2 : 0;
}

/* The settings with one case alone, at a capacity. */
static int set_case(const epx_sim_settings_t *s, const epx_sim_case_t *one, int32_t hundredths,
                    epx_sim_point_t *point)
{
    point->settings = *s;
    epx_sim_settings_t *own = &point->settings;
    char problem[512];
    own->transport_count = 1;
    while (strcmp(epx_sim_transports[own->transport[0]], one->transport) != 0)
        own->transport[0] = (own->transport[0] + 1) % 3;
    if (one->accept != NULL && s->accept_count > 0) {
        own->accept_count = 1;
        while (strcmp(epx_sim_accepts[own->accept[0]], one->accept) != 0)
            own->accept[0] = (own->accept[0] + 1) % 3;
    }
    epx_sim_settings_set(own, "capacity", hundredths / 100.0, problem, sizeof problem);
    int rc = epx_sim_cases_make(own);
    return rc == EPX_GO_ON ? EPX_EXIT_OK : rc;
}

/* One step of every search that goes on, over the same samples. */
static int step(const epx_sim_settings_t *s, search_t *searches, epx_sim_point_t *points, int32_t *left_p)
{
    int32_t count = 0, which[EPX_SIM_CASES];
    int rc = EPX_EXIT_OK;
    for (int32_t i = 0; i < s->case_count && rc == EPX_EXIT_OK; i++) {
        choose(&searches[i]);
        if (searches[i].next == 0)
            continue;
        rc = set_case(s, &s->cases[i], searches[i].next, &points[count]);
        which[count++] = i;
    }
    *left_p = count;
    if (rc != EPX_EXIT_OK || count == 0)
        return rc;
    rc = epx_sim_points_run(points, count);
    for (int32_t p = 0; p < count && rc == EPX_EXIT_OK; p++) {
        search_t *search = &searches[which[p]];
        if (points[p].result[0].drop_spread.p99 < s->answer) {
            search->at = search->next;
            search->result = points[p].result[0];
            search->result.drops = NULL;
        } else {
            search->below = search->next;
        }
    }
    epx_sim_points_free(points, count);
    return rc;
}

static void json_answers(const epx_sim_settings_t *s, const search_t *searches, epx_json_t *json)
{
    epx_json_real(json, "wanted_drops", s->answer);
    epx_json_array(json, "answers");
    for (int32_t i = 0; i < s->case_count; i++) {
        double memory = searches[i].at > 0 ? epx_sim_memory_bytes(&searches[i].result) : NAN;
        epx_json_object(json, NULL);
        epx_json_text(json, "transport", s->cases[i].transport);
        epx_json_text(json, "accept", s->cases[i].accept);
        epx_json_real(json, "capacity", searches[i].at > 0 ? searches[i].at / 100.0 : NAN);
        epx_json_real(json, "p99", searches[i].at > 0 ? searches[i].result.drop_spread.p99 : NAN);
        epx_json_real(json, "mean", searches[i].at > 0 ? searches[i].result.drop_spread.mean : NAN);
        epx_json_real(json, "memory_bytes", memory);
        epx_json_real(json, "memory_gib", memory / (1 << 30));
        epx_json_bool(json, "estimate", searches[i].result.estimate);
        epx_json_close(json);
    }
    epx_json_close(json);
}

static void print_answers(const epx_sim_settings_t *s, const search_t *searches)
{
    static const epx_column_t columns[] = {{"transport", 0}, {"capacity", 1},     {"drops, p99", 1},
                                           {"mean", 1},      {"GiB per rank", 1}, {"", 0}};
    epx_table_t *table = epx_table_new(columns, sizeof columns / sizeof *columns);
    char text[64];
    printf("smallest capacity (pooled_wave: of senders and receivers alike) with drops below %g%% in 99%% of "
           "the "
           "samples\n\n",
           100 * s->answer);
    for (int32_t i = 0; i < s->case_count; i++) {
        const search_t *search = &searches[i];
        double memory = epx_sim_memory_bytes(&search->result);
        epx_table_cell(table, "%s", epx_sim_case_name(s, &s->cases[i], text, sizeof text));
        if (search->at == 0) {
            epx_table_cell(table, "above %d", LAST / 100);
            for (int c = 0; c < 4; c++)
                epx_table_cell(table, c < 3 ? "-" : "%s", "");
            continue;
        }
        epx_table_cell(table, "%.2f", search->at / 100.0);
        epx_table_cell(table, "%.4f%%", 100 * search->result.drop_spread.p99);
        epx_table_cell(table, "%.4f%%", 100 * search->result.drop_spread.mean);
        if (isnan(memory))
            epx_table_cell(table, "-");
        else
            epx_table_cell(table, "%.2f", memory / (1 << 30));
        epx_table_cell(table, "%s",
                       search->result.estimate ? "estimate: counts only, and gate 2 needs order" : "");
    }
    epx_table_print(table, stdout, 2);
    epx_table_free(table);
}

int epx_sim_answer_run(const epx_sim_settings_t *s, epx_json_t *json)
{
    search_t *searches = epx_tool_alloc(EPX_SIM_CASES, sizeof *searches);
    epx_sim_point_t *points = epx_tool_alloc(EPX_SIM_CASES, sizeof *points);
    epx_sim_input_t input;
    int32_t left = 1;
    int rc = s->capacity_text != NULL || s->sender_factor > 0
                 ? epx_tool_fail(EPX_EXIT_USAGE, "--answer looks for the capacity itself: leave out "
                                                 "--capacity-factor and --sender-factor")
                 : epx_sim_open_input(s, &input);
    while (rc == EPX_EXIT_OK && left > 0)
        rc = step(s, searches, points, &left);
    if (rc == EPX_EXIT_OK) {
        epx_sim_report_begin(s, input.samples, json);
        if (json != NULL)
            json_answers(s, searches, json);
        else
            print_answers(s, searches);
    }
    free(points);
    free(searches);
    return rc;
}
