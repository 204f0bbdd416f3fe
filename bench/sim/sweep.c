/* Every value of one or two parameters. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/sim/report.h"
#include "tools/common/numbers.h"
#include "tools/common/program.h"
#include "tools/common/table.h"

enum { POINTS_MAX = 4096 };

static int32_t points_of(const epx_sim_settings_t *s)
{
    return s->sweep[0].count * (s->sweep_count > 1 ? s->sweep[1].count : 1);
}

/* Value of dimension d at a point; the second dimension runs faster. */
static double value_of(const epx_sim_settings_t *s, int32_t point, int32_t d)
{
    int32_t inner = s->sweep_count > 1 ? s->sweep[1].count : 1;
    return s->sweep[d].value[d == 0 ? point / inner : point % inner];
}

static int set_point(const epx_sim_settings_t *s, int32_t index, epx_sim_point_t *point)
{
    char problem[512];
    point->settings = *s;
    for (int32_t d = 0; d < s->sweep_count; d++)
        if (epx_sim_settings_set(&point->settings, s->sweep[d].name, value_of(s, index, d), problem,
                                 sizeof problem) != 0)
            return epx_tool_fail(EPX_EXIT_USAGE, "--sweep: %s", problem);
    int rc = epx_sim_cases_make(&point->settings);
    return rc == EPX_GO_ON ? EPX_EXIT_OK : rc;
}

/* Points that share their routing are counted together, all others on their own. */
static int run_points(const epx_sim_settings_t *s, epx_sim_point_t *points, int32_t count)
{
    int apart = 0, rc = EPX_EXIT_OK;
    for (int32_t d = 0; d < s->sweep_count; d++)
        apart |= epx_sim_settings_change(s->sweep[d].name) == EPX_SIM_ROUTING;
    int32_t together = apart ? 1 : count;
    for (int32_t p = 0; p < count && rc == EPX_EXIT_OK; p += together)
        rc = epx_sim_points_run(points + p, together);
    return rc;
}

static void json_points(const epx_sim_settings_t *s, const epx_sim_point_t *points, int32_t count,
                        epx_json_t *json)
{
    epx_json_array(json, "points");
    for (int32_t p = 0; p < count; p++) {
        epx_json_object(json, NULL);
        epx_json_object(json, "parameters");
        for (int32_t d = 0; d < s->sweep_count; d++)
            epx_json_real(json, s->sweep[d].name, value_of(s, p, d));
        epx_json_close(json);
        epx_sim_report_point(&points[p], json);
        epx_json_close(json);
    }
    epx_json_close(json);
}

static void print_points(const epx_sim_settings_t *s, const epx_sim_point_t *points, int32_t count)
{
    epx_column_t columns[EPX_SIM_SWEEPS + 9];
    int32_t n = 0;
    char text[64];
    for (int32_t d = 0; d < s->sweep_count; d++)
        columns[n++] = (epx_column_t){s->sweep[d].name, 1};
    static const epx_column_t others[] = {{"transport", 0}, {"drops", 1},   {"p99", 1},  {"transfer", 1},
                                          {"memory", 1},    {"exposed", 1}, {"step", 1}, {"executed MFU", 1}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        columns[n++] = others[i];
    epx_table_t *table = epx_table_new(columns, n);
    for (int32_t p = 0; p < count; p++) {
        for (int32_t i = 0; i < points[p].settings.case_count; i++) {
            const epx_sim_result_t *result = &points[p].result[i];
            double memory = epx_sim_memory_bytes(result);
            for (int32_t d = 0; d < s->sweep_count; d++)
                epx_table_cell(table, "%g", value_of(s, p, d));
            epx_table_cell(
                table, "%s",
                epx_sim_case_name(&points[p].settings, &points[p].settings.cases[i], text, sizeof text));
            epx_table_cell(table, "%.4f%%", 100 * result->drop_spread.mean);
            epx_table_cell(table, "%.4f%%", 100 * result->drop_spread.p99);
            epx_table_cell(table, "%s", epx_text_of_bytes(text, sizeof text, result->cost.transfer_bytes));
            epx_table_cell(table, "%s", isnan(memory) ? "-" : epx_text_of_bytes(text, sizeof text, memory));
            epx_table_cell(table, "%s", epx_text_of_seconds(text, sizeof text, result->cost.exposed_s));
            epx_table_cell(table, "%s", epx_text_of_seconds(text, sizeof text, result->cost.step_s));
            epx_table_cell(table, "%.2f%%", 100 * result->cost.mfu_executed);
        }
    }
    epx_table_print(table, stdout, 2);
    epx_table_free(table);
}

int epx_sim_sweep_run(const epx_sim_settings_t *s, epx_json_t *json)
{
    int32_t count = points_of(s);
    if (count > POINTS_MAX)
        return epx_tool_fail(EPX_EXIT_USAGE, "--sweep: %d points are more than %d: take larger steps", count,
                             POINTS_MAX);
    epx_sim_point_t *points = epx_tool_alloc((size_t)count, sizeof *points);
    int rc = EPX_EXIT_OK;
    for (int32_t p = 0; p < count && rc == EPX_EXIT_OK; p++)
        rc = set_point(s, p, &points[p]);
    if (rc == EPX_EXIT_OK)
        rc = run_points(s, points, count);
    if (rc == EPX_EXIT_OK) {
        epx_sim_report_begin(s, points[0].result[0].samples, json);
        if (json != NULL)
            json_points(s, points, count, json);
        else
            print_points(s, points, count);
        if (s->html != NULL)
            rc = epx_sim_html(s->html, points, count);
    }
    epx_sim_points_free(points, count);
    free(points);
    return rc;
}
