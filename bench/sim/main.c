/* epx-sim: drops at any number of ranks, exactly, and what the exchange costs. SPDX-License-Identifier:
 * Apache-2.0 */
#include <stdlib.h>

#include "bench/sim/report.h"
#include "tools/common/program.h"

static int run_one(const epx_sim_settings_t *settings, epx_json_t *json)
{
    epx_sim_point_t *point = epx_tool_alloc(1, sizeof *point);
    point->settings = *settings;
    int64_t begun = epx_now_ns();
    int rc = epx_sim_points_run(point, 1);
    if (rc == EPX_EXIT_OK) {
        epx_sim_report_begin(settings, point->result[0].samples, json);
        epx_sim_report_point(point, json);
        if (json != NULL)
            epx_json_real(json, "elapsed_s", (double)(epx_now_ns() - begun) * 1e-9);
    }
    epx_sim_points_free(point, 1);
    free(point);
    return rc;
}

static int run(const epx_sim_settings_t *settings, epx_json_t *json)
{
    if (settings->record != NULL)
        return epx_sim_record(settings);
    if (settings->dump != NULL)
        return epx_sim_dump(settings);
    if (settings->sweep_count > 0)
        return epx_sim_sweep_run(settings, json);
    if (settings->answer > 0)
        return epx_sim_answer_run(settings, json);
    if (settings->published)
        return epx_sim_published_run(settings, json);
    return run_one(settings, json);
}

int main(int argc, char **argv)
{
    epx_sim_settings_t *settings = epx_tool_alloc(1, sizeof *settings);
    int rc = epx_sim_settings_read(settings, argc, argv);
    if (rc == EPX_GO_ON) {
        epx_json_t json = epx_json_begin(stdout, 2);
        int quiet = settings->dump != NULL || settings->record != NULL;
        if (settings->json && !quiet)
            epx_json_object(&json, NULL);
        rc = run(settings, settings->json && !quiet ? &json : NULL);
        if (rc == EPX_EXIT_OK && settings->json && !quiet) {
            epx_json_close(&json);
            rc = epx_json_end(&json) == 0 ? EPX_EXIT_OK : EPX_EXIT_FAILED;
        }
        rc = epx_tool_end(rc);
    }
    epx_sim_settings_free(settings);
    free(settings);
    return rc;
}
