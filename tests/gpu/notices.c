/* What all ranks say and want. SPDX-License-Identifier: Apache-2.0 */
#include "gpu/notices.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/host/table.h"

noticed_t noticed_make(const shaped_t *shaped, dice_t *dice)
{
    const epx_shape_t *shape = &shaped->shape;
    int64_t most = (int64_t)shape->tokens_max * shape->top_k;
    noticed_t n = {.stride = (int64_t)sizeof(epx_route_notice_t) +
                             ((int64_t)shape->splits * shape->experts * 4 + 7) / 8 * 8};
    n.notices = twin_make((size_t)(n.stride * shape->ranks));
    n.expert = twin_make((size_t)most * 4), n.ordinal = twin_make((size_t)most * 4);
    int32_t *expert = malloc((size_t)most * 4), *ordinal = malloc((size_t)most * 4);
    int64_t *ids = malloc((size_t)most * 8), skipped;
    int32_t bad = dice_range(dice, 0, 9) == 0 ? (int32_t)dice_range(dice, 0, shape->ranks - 1) : -1;
    for (int32_t r = 0; r < shape->ranks; r++) {
        epx_route_notice_t *notice = (epx_route_notice_t *)(void *)(n.notices.host + r * n.stride);
        int64_t tokens = dice_range(dice, 0, 5) == 0 ? dice_range(dice, 0, 1) * shape->tokens_max
                                                     : dice_range(dice, 0, shape->tokens_max);
        draw_ids(ids, tokens * shape->top_k, shape->experts, dice);
        if (r == bad && tokens > 0)
            ids[dice_range(dice, 0, tokens * shape->top_k - 1)] = shape->experts;
        n.dead |= r == bad && tokens > 0;
        epx_k_read_ids_t args = {.ids = ids,
                                 .id_type = EPX_INT64,
                                 .tokens = tokens,
                                 .tokens_max = shape->tokens_max,
                                 .columns = shape->top_k,
                                 .top_k = shape->top_k,
                                 .experts = shape->experts,
                                 .splits = shape->splits,
                                 .expert = r == shape->rank ? side_of(&n.expert, 0) : expert,
                                 .ordinal = r == shape->rank ? side_of(&n.ordinal, 0) : ordinal,
                                 .counts = (int32_t *)(void *)(notice + 1),
                                 .skipped = &skipped,
                                 .notice = notice};
        epx_host_read_ids(&args, NULL);
        if (r == shape->rank)
            n.tokens = tokens;
    }
    free(expert), free(ordinal), free(ids);
    twin_send(&n.notices), twin_send(&n.expert), twin_send(&n.ordinal);
    return n;
}

verdict_twin_t verdict_make(void)
{
    verdict_twin_t v = {.head = twin_make(sizeof(epx_plan_head_t)),
                        .report = twin_make(sizeof(epx_route_report_t))};
    memset(v.head.host, 0, v.head.bytes);
    memset(v.report.host, 0, v.report.bytes);
    twin_send(&v.head), twin_send(&v.report);
    return v;
}

epx_k_verdict_t verdict_on(const verdict_twin_t *verdict, int device)
{
    return (epx_k_verdict_t){
        .head = side_of(&verdict->head, device), .report = side_of(&verdict->report, device), .route = 77};
}

void verdict_same(const verdict_twin_t *verdict)
{
    twin_same(&verdict->head, "head");
    twin_same(&verdict->report, "report");
}
