/* Recorded routing. SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf/recorded.h"

#include <string.h>

#include "tools/common/program.h"
#include "train/fail.h"

static int check_place(const epx_perf_settings_t *s)
{
    if (s->file.shape.kind != EPX_ROUTING_IDS)
        return epx_tool_fail(
            EPX_EXIT_USAGE, "--routing: %s has only counts: give one that was recorded with ids", s->routing);
    if (s->routing_step >= s->file.steps || s->routing_layer >= s->file.shape.layers)
        return epx_tool_fail(EPX_EXIT_USAGE, "--routing: %s has %d steps of %d layers: choose among them",
                             s->routing, s->file.steps, s->file.shape.layers);
    return EPX_GO_ON;
}

int epx_perf_recorded_read(epx_perf_settings_t *s)
{
    if (strncmp(s->routing, "file:", 5) != 0 || s->routing[5] == '\0')
        return epx_tool_fail(EPX_EXIT_USAGE,
                             "--routing: '%s' is no recorded routing: write file:PATH, or --skew for "
                             "a pattern",
                             s->routing);
    if (s->skew_given || s->size_count > 0)
        return epx_tool_fail(EPX_EXIT_USAGE, "--routing says who chose what: leave out --skew and --sizes");
    if (epx_routing_read(s->routing + 5, &s->file) != EPX_TRAIN_OK)
        return epx_tool_fail(EPX_EXIT_USAGE, "--routing: %s", epx_train_error());
    s->ranks = s->file.shape.group;
    s->experts = s->file.shape.experts;
    s->top_k = s->file.shape.top_k;
    s->tokens = s->file.shape.tokens;
    return check_place(s);
}

int64_t epx_perf_recorded_tokens(const epx_perf_settings_t *s, int32_t rank)
{
    return s->file.rank_tokens[rank];
}

const int32_t *epx_perf_recorded_ids(const epx_perf_settings_t *s, int32_t rank)
{
    const epx_routing_shape_t *shape = &s->file.shape;
    int64_t row = (s->routing_step * shape->layers + s->routing_layer) * shape->ranks + rank;
    return s->file.ids + row * shape->tokens * shape->top_k;
}

int epx_perf_recorded_repeats(const epx_perf_settings_t *s)
{
    int32_t top_k = s->file.shape.top_k;
    for (int32_t r = 0; r < s->file.shape.group; r++) {
        const int32_t *ids = epx_perf_recorded_ids(s, r);
        for (int64_t t = 0; t < epx_perf_recorded_tokens(s, r); t++, ids += top_k)
            for (int32_t a = 0; a < top_k; a++)
                for (int32_t b = 0; b < a; b++)
                    if (ids[a] >= 0 && ids[a] == ids[b])
                        return 1;
    }
    return 0;
}
