/* What both ways to measure the constants share. SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf/calibration.h"

#include <stdio.h>

#include "tools/common/numbers.h"
#include "tools/common/program.h"
#include "tools/common/terminal.h"

epx_calibration_t epx_calibration_begin(const epx_perf_settings_t *settings)
{
    return (epx_calibration_t){.ranks = settings->ranks,
                               .row_bytes = settings->width * (settings->row_type == 0 ? 4 : 2)};
}

epx_group_config_t epx_calibration_group(const epx_perf_settings_t *settings, int32_t ranks)
{
    epx_perf_settings_t small = *settings;
    small.ranks = ranks;
    epx_group_config_t config = epx_perf_group_config(&small, "ragged", 1);
    config.waves = 1;
    config.backward = EPX_BACKWARD_NONE;
    return config;
}

double epx_calibration_mean(epx_rank_t *self, double value)
{
    if (self->code != EPX_EXIT_OK)
        return 0;
    epx_status_t status = epx_comm_allreduce(self->comm, &value, 1, EPX_NUMBER_DOUBLE, EPX_SUM);
    return epx_rank_check(self, status, "all-reduce") == EPX_EXIT_OK ? value / self->ranks : 0;
}

double epx_calibration_barrier(epx_rank_t *self)
{
    double seconds[EPX_CALIBRATION_CALLS] = {0};
    for (int i = 0; i < EPX_CALIBRATION_CALLS && self->code == EPX_EXIT_OK; i++) {
        int64_t begun = epx_now_ns();
        epx_rank_check(self, epx_comm_barrier(self->comm), "barrier");
        seconds[i] = (double)(epx_now_ns() - begun) * 1e-9;
    }
    epx_sort_reals(seconds, EPX_CALIBRATION_CALLS);
    return epx_calibration_mean(self, seconds[EPX_CALIBRATION_CALLS / 2]);
}

void epx_calibration_keep(epx_rank_t *self, epx_calibration_t *calibration, epx_constant_t constant,
                          double value)
{
    if (self->rank != 0)
        return;
    calibration->value[constant] = value;
    epx_progress("%s: %.4g %s", epx_constant_row(constant)->name, value, epx_constant_row(constant)->unit);
}

void epx_calibration_split_calls(epx_calibration_t *calibration)
{
    double few = calibration->value[EPX_OPERATION_S], more = calibration->many_call_s - few;
    double peer = more > 0 ? more / (double)((EPX_CALIBRATION_MANY - 1) * calibration->ranks) : 0;
    double rest = few - peer * (double)(calibration->ranks - 1);
    calibration->value[EPX_PEER_S] = peer;
    calibration->value[EPX_OPERATION_S] = rest > 0 ? rest : 0;
}

void epx_calibration_describe(const epx_calibration_t *calibration, const char *const sources[EPX_CONSTANTS],
                              epx_machine_t *machine)
{
    snprintf(machine->source[EPX_LINK_SHARE], sizeof machine->source[0],
             "measured: the same bytes as rows of %lld, scattered where they are read",
             (long long)calibration->row_bytes);
    snprintf(machine->source[EPX_PEER_S], sizeof machine->source[0],
             "measured: the same calls with %lld ranks, per further rank",
             (long long)(EPX_CALIBRATION_MANY * calibration->ranks));
    for (int i = 0; i < EPX_CONSTANTS; i++) {
        machine->value[i] = calibration->value[i];
        if (sources[i] != NULL)
            snprintf(machine->source[i], sizeof machine->source[i], "%s", sources[i]);
    }
}
