/* What all parts of a count ask of a case. SPDX-License-Identifier: Apache-2.0 */
#include "bench/common/drops_job.h"

#include "tools/common/program.h"

int epx_drops_gated(const epx_drops_job_t *job)
{
    return job->how->transport == EPX_DROPS_POOLED_WAVE && job->how->overflow != EPX_OVERFLOW_EXTRA_WAVE;
}

void epx_drops_arrays(epx_drops_job_t *job, int32_t waves)
{
    epx_drops_t *out = job->out;
    size_t ranks = (size_t)job->rule.ranks, places = ranks * (size_t)waves;
    out->ranks = job->rule.ranks;
    out->waves = waves;
    out->tokens = epx_tool_alloc(ranks, sizeof *out->tokens);
    out->asked = epx_tool_alloc(ranks, sizeof *out->asked);
    out->rows = epx_tool_alloc(5 * places, sizeof *out->rows);
    out->refused = out->rows + places;
    out->sent = out->refused + places;
    out->received = out->sent + places;
    out->own = out->received + places;
}
