/* epx-perf: how fast rows go to their experts and back. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include <epx/comm.h>

#include "bench/perf/calibrate.h"
#include "bench/perf/case.h"
#include "bench/perf/recorder.h"
#include "bench/perf/report.h"
#include "bench/perf/rules.h"
#include "tools/common/program.h"

static int run_case(const epx_perf_settings_t *settings, const char *transport, int64_t tokens,
                    int32_t sm_budget, epx_json_t *json)
{
    epx_perf_case_t *shared = epx_tool_alloc(1, sizeof *shared);
    int rc = epx_perf_case_run(shared, settings, transport, tokens, sm_budget);
    if (rc == EPX_EXIT_OK && settings->rank == 0)
        epx_perf_report_case(shared, json);
    epx_perf_case_free(shared);
    free(shared);
    return rc;
}

/* A failed case spoils the run but not what has been measured: the others are still run and shown. */
static int run_cases(const epx_perf_settings_t *settings, epx_json_t *json)
{
    int worst = EPX_EXIT_OK;
    epx_comm_h job = NULL; /* of processes: keeps them joined from one case to the next */
    epx_status_t status = settings->processes > 1 ? epx_comm_world(&job) : EPX_OK;
    if (status != EPX_OK)
        return epx_tool_fail_status(status, "cannot join the job");
    if (settings->rank == 0)
        epx_perf_report_begin(settings, json);
    for (int32_t t = 0; t < settings->transport_count; t++) {
        for (int32_t i = 0; i < settings->size_count * settings->budget_count; i++) {
            int rc = run_case(settings, settings->transport[t], settings->size[i / settings->budget_count],
                              settings->budget[i % settings->budget_count], json);
            worst = rc > worst ? rc : worst;
        }
    }
    if (settings->rank == 0 && epx_perf_report_end(json) != 0 && worst == EPX_EXIT_OK)
        worst = EPX_EXIT_FAILED;
    epx_comm_destroy(&job);
    return worst;
}

/* No rank takes part in them: of several processes one is enough. */
static int accept_rules(const epx_perf_settings_t *settings, epx_json_t *json)
{
    return settings->rank == 0 ? epx_perf_rules(settings, json) : EPX_EXIT_OK;
}

int main(int argc, char **argv)
{
    epx_perf_settings_t settings;
    int rc = epx_perf_settings_read(&settings, argc, argv);
    if (rc == EPX_GO_ON) {
        epx_json_t json = epx_json_begin(stdout, 2), *out = settings.json ? &json : NULL;
        if (settings.calibrate != NULL)
            rc = epx_perf_calibrate(&settings, out);
        else if (settings.recorder)
            rc = epx_perf_recorder(&settings, out);
        else
            rc = settings.accept_rules ? accept_rules(&settings, out) : run_cases(&settings, out);
        rc = epx_tool_end(rc);
    }
    epx_perf_settings_free(&settings);
    return rc;
}
