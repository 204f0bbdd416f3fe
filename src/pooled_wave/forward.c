/* pooled_wave: dispatch and combine. SPDX-License-Identifier: Apache-2.0 */
#include "pooled_wave/internal.h"

#include <stddef.h>

epx_status_t epx_pooled_dispatch_start(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave,
                                       const void *x, const epx_batch_t *batch, epx_stream_t stream)
{
    epx_pooled_wave_t w = epx_pooled_view(transport, plan, EPX_MOVE_DISPATCH, wave, stream);
    epx_pooled_begin(&w);
    *epx_pooled_given(&w) = x;
    return epx_pooled_send_out(&w, x, batch != NULL ? batch->aux : NULL);
}

/* Rows that nobody sends stay the pattern where the library owns the batch. */
static epx_status_t blank_batch(const epx_pooled_wave_t *w, const epx_batch_t *batch, void *rows)
{
    if (batch->into_rows != NULL)
        return EPX_OK;
    int64_t bytes = w->pooled->dims.batch_rows * w->pooled->transport.env.shape->row_bytes;
    return epx_canary_fill(&w->pooled->transport, rows, bytes, w->stream);
}

/* Indexed: the slabs are the batch; a caller's rows get a copy of them, padding and all. */
static epx_status_t hand_over_slabs(const epx_pooled_wave_t *w, epx_batch_t *batch)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    void *rows = epx_pooled_incoming(w, w->pooled->map.side[w->side].rows);
    const int32_t *from = epx_pooled_side(w, w->pooled->map.from);
    epx_status_t status = epx_pooled_check_sums(w, rows, from);
    if (status == EPX_OK && batch->into_rows != NULL) {
        size_t bytes = (size_t)(w->pooled->dims.slab_rows * env->shape->ranks * env->shape->row_bytes);
        status = env->device->copy(batch->into_rows, rows, bytes, w->stream);
        rows = batch->into_rows;
    }
    if (status == EPX_OK)
        status = epx_pooled_fill_batch(w, rows, batch);
    if (status == EPX_OK)
        batch->row_index = from;
    return status;
}

epx_status_t epx_pooled_dispatch_finish(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave,
                                        epx_batch_t *batch, epx_stream_t stream)
{
    epx_pooled_wave_t w = epx_pooled_view(transport, plan, EPX_MOVE_DISPATCH, wave, stream);
    /* Counts start anew with the first wave of a pass until one pass has been complete. */
    int count = plan->head.learned ? 0 : wave == 0 ? 2 : 1;
    epx_status_t status = epx_pooled_wait(&w, 1);
    if (status == EPX_OK)
        status = epx_pooled_receive(&w, count);
    if (status == EPX_OK)
        status = epx_pooled_check_incoming(&w);
    if (status != EPX_OK)
        return status;

    if (w.pooled->dims.indexed)
        return hand_over_slabs(&w, batch);
    void *rows = epx_pooled_batch_rows(&w, batch);
    status = blank_batch(&w, batch, rows);
    if (status == EPX_OK)
        status = epx_pooled_bring_rows(&w, rows);
    if (status == EPX_OK)
        status = epx_pooled_check_sums(&w, rows, NULL);
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
    epx_status_t status = epx_pooled_refill_batch(&w);
    if (status == EPX_OK)
        status = epx_pooled_send_home(&w, y, NULL);
    return status != EPX_OK ? status : verdict;
}

/* Keeps what the receivers decided for all later passes. */
static epx_status_t learn(const epx_pooled_wave_t *w, const uint8_t *kept)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    const epx_pooled_map_t *map = &w->pooled->map;
    epx_plan_head_t *head = &w->plan->head;
    int32_t waves = epx_pooled_waves(w), by_wave = w->pooled->dims.by_wave, last = w->wave == waves - 1;
    epx_status_t status = EPX_OK;
    if (head->learned)
        return EPX_OK;
    if (map->plan_kept >= 0 && (by_wave || last))
        status =
            env->device->copy((uint8_t *)epx_pooled_plan(w->plan, map->plan_kept) + (by_wave ? w->lo : 0),
                              kept, (size_t)((by_wave ? 1 : waves) * w->pooled->dims.home_rows), w->stream);
    if (status == EPX_OK && last)
        status = epx_head_mark(&w->pooled->transport, w->plan, &head->learned, w->stream);
    return status;
}

epx_status_t epx_pooled_combine_finish(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave,
                                       void *out, epx_stream_t stream)
{
    epx_pooled_wave_t w = epx_pooled_view(transport, plan, EPX_MOVE_COMBINE, wave, stream);
    const epx_pooled_map_t *map = &w.pooled->map;
    const uint8_t *kept = epx_pooled_home(&w, map->home_kept, 1);
    epx_status_t status = epx_pooled_wait(&w, 0);
    if (status == EPX_OK)
        status = epx_pooled_find_places(&w);
    if (status == EPX_OK)
        status = epx_pooled_check_home(&w, kept);
    if (!w.pooled->dims.by_wave)
        kept = epx_pooled_homes(&w, map->home_kept);
    if (status == EPX_OK)
        status = epx_pooled_sum(&w, epx_pooled_plan(plan, map->plan_weights), kept, out);
    if (status == EPX_OK)
        status = learn(&w, kept);
    if (status == EPX_OK)
        status = epx_pooled_refill(&w);
    return status;
}
