/* pooled_wave: dispatch and combine. SPDX-License-Identifier: Apache-2.0 */
#include "pooled_wave/internal.h"

#include <stddef.h>

epx_status_t epx_pooled_dispatch_start(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave,
                                       const void *x, const epx_batch_t *batch, epx_stream_t stream)
{
    epx_pooled_wave_t w = epx_pooled_view(transport, plan, EPX_MOVE_DISPATCH, wave, stream);
    epx_pooled_begin(&w);
    return epx_pooled_send_out(&w, x, batch != NULL ? batch->aux : NULL);
}

/* Counts start anew with the first wave of a pass until one pass has been complete. */
static epx_status_t begin_counting(const epx_pooled_wave_t *w)
{
    const epx_device_ops_t *device = w->pooled->transport.env.device;
    epx_plan_head_t *head = epx_plan_head(w->plan);
    epx_status_t status = device->fill(&head->kept, 0, sizeof(head->kept), w->stream);
    if (status == EPX_OK)
        status = device->fill(&head->dropped_receiver, 0, sizeof(head->dropped_receiver), w->stream);
    return status;
}

/* Rows that nobody sends stay the pattern where the library owns the batch. */
static epx_status_t blank_batch(const epx_pooled_wave_t *w, const epx_batch_t *batch, void *rows)
{
    if (batch->into_rows != NULL)
        return EPX_OK;
    int64_t bytes = w->pooled->dims.batch_rows * w->pooled->transport.env.shape->row_bytes;
    return epx_canary_fill(&w->pooled->transport, rows, bytes, w->stream);
}

epx_status_t epx_pooled_dispatch_finish(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave,
                                        epx_batch_t *batch, epx_stream_t stream)
{
    epx_pooled_wave_t w = epx_pooled_view(transport, plan, EPX_MOVE_DISPATCH, wave, stream);
    int count = !plan->head.learned;
    epx_status_t status = epx_pooled_wait(&w, 1);
    if (status == EPX_OK && count && wave == 0)
        status = begin_counting(&w);
    if (status == EPX_OK)
        status = epx_pooled_receive(&w, count);
    if (status == EPX_OK)
        status = epx_pooled_check_incoming(&w);
    if (status != EPX_OK)
        return status;

    void *rows = epx_pooled_batch_rows(&w, batch);
    status = blank_batch(&w, batch, rows);
    if (status == EPX_OK)
        status = epx_pooled_bring_rows(&w, rows);
    if (status == EPX_OK)
        status = epx_pooled_check_sums(&w, rows);
    if (status == EPX_OK)
        status = epx_pooled_fill_batch(&w, rows, batch);
    if (status == EPX_OK)
        status = epx_pooled_refill(&w);
    return status;
}

epx_status_t epx_pooled_combine_start(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave,
                                      const void *y, epx_stream_t stream)
{
    epx_pooled_wave_t w = epx_pooled_view(transport, plan, EPX_MOVE_COMBINE, wave, stream);
    epx_pooled_begin(&w);
    /* A row that the caller left out is told, but the others still get theirs. */
    epx_status_t verdict = epx_pooled_check_caller(&w, y);
    epx_status_t status = epx_pooled_send_home(&w, y, NULL);
    return status != EPX_OK ? status : verdict;
}

/* Keeps what the receivers decided for all later passes. */
static epx_status_t learn(const epx_pooled_wave_t *w, const uint8_t *kept)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    const epx_pooled_map_t *map = &w->pooled->map;
    epx_plan_head_t *head = &w->plan->head;
    int32_t waves = w->pooled->dims.extra_wave ? w->plan->waves : env->shape->waves;
    epx_status_t status = EPX_OK;
    if (head->learned)
        return EPX_OK;
    if (map->plan_kept >= 0)
        status = env->device->copy((uint8_t *)epx_pooled_plan(w->plan, map->plan_kept) + w->lo, kept,
                                   (size_t)w->pooled->dims.home_rows, w->stream);
    if (status == EPX_OK && w->wave == waves - 1)
        status = epx_head_mark(&w->pooled->transport, w->plan, &head->learned, w->stream);
    return status;
}

epx_status_t epx_pooled_combine_finish(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave,
                                       void *out, epx_stream_t stream)
{
    epx_pooled_wave_t w = epx_pooled_view(transport, plan, EPX_MOVE_COMBINE, wave, stream);
    const epx_pooled_map_t *map = &w.pooled->map;
    const uint8_t *kept = epx_pooled_home(&w, map->home_kept);
    epx_status_t status = epx_pooled_wait(&w, 0);
    if (status == EPX_OK)
        status = epx_pooled_find_places(&w);
    if (status == EPX_OK)
        status = epx_pooled_check_home(&w, kept);
    if (status == EPX_OK)
        status = epx_pooled_sum(&w, epx_pooled_plan(plan, map->plan_weights), kept, out);
    if (status == EPX_OK)
        status = learn(&w, kept);
    if (status == EPX_OK)
        status = epx_pooled_refill(&w);
    return status;
}
