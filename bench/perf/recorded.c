/* Recorded routing. SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf/recorded.h"

#include <string.h>

#include "tools/common/program.h"
#include "train/fail.h"

static int check_place(const epx_perf_recorded_t *recorded)
{
    if (recorded->file.shape.kind != EPX_ROUTING_IDS)
        return epx_tool_fail(EPX_EXIT_USAGE,
                             "--routing: %s has only counts: give one that was recorded with ids",
                             recorded->routing);
    if (recorded->step >= recorded->file.steps || recorded->layer >= recorded->file.shape.layers)
        return epx_tool_fail(EPX_EXIT_USAGE, "--routing: %s has %d steps of %d layers: choose among them",
                             recorded->routing, recorded->file.steps, recorded->file.shape.layers);
    return EPX_GO_ON;
}

int epx_perf_recorded_read(epx_perf_recorded_t *recorded)
{
    if (strncmp(recorded->routing, "file:", 5) != 0 || recorded->routing[5] == '\0')
        return epx_tool_fail(EPX_EXIT_USAGE,
                             "--routing: '%s' is no recorded routing: write file:PATH, or --skew for "
                             "a pattern",
                             recorded->routing);
    if (epx_routing_read(recorded->routing + 5, &recorded->file) != EPX_TRAIN_OK)
        return epx_tool_fail(EPX_EXIT_USAGE, "--routing: %s", epx_train_error());
    return check_place(recorded);
}

int64_t epx_perf_recorded_tokens(const epx_perf_recorded_t *recorded, int32_t rank)
{
    return recorded->file.rank_tokens[rank];
}

const int32_t *epx_perf_recorded_ids(const epx_perf_recorded_t *recorded, int32_t rank)
{
    const epx_routing_shape_t *shape = &recorded->file.shape;
    int64_t row = (recorded->step * shape->layers + recorded->layer) * shape->ranks + rank;
    return recorded->file.ids + row * shape->tokens * shape->top_k;
}

int epx_perf_recorded_repeats(const epx_perf_recorded_t *recorded)
{
    int32_t top_k = recorded->file.shape.top_k;
    for (int32_t r = 0; r < recorded->file.shape.group; r++) {
        const int32_t *ids = epx_perf_recorded_ids(recorded, r);
        for (int64_t t = 0; t < epx_perf_recorded_tokens(recorded, r); t++, ids += top_k)
            for (int32_t a = 0; a < top_k; a++)
                for (int32_t b = 0; b < a; b++)
                    if (ids[a] >= 0 && ids[a] == ids[b])
                        return 1;
    }
    return 0;
}
