/* ring: dispatch and combine_backward. Token blocks go round. SPDX-License-Identifier: Apache-2.0 */
#include "ring/ring.h"

#include <inttypes.h>

/* Where this hop's block lies: at its owner in hop 0, in a slot afterwards. */
typedef struct source {
    const char *rows, *kept, *weights, *aux;
    const char *checksum; /* NULL: it is made on the way */
    int64_t aux_stride;
} source_t;

static source_t source_of(const epx_ring_step_t *step)
{
    const epx_ring_layout_t *layout = &step->ring->layout;
    if (step->wave == 0) {
        const char *bytes = step->plan->bytes;
        /* No aux is zeros: the same zeros for every token. */
        int has_aux = step->call->aux != NULL;
        return (source_t){.rows = step->call->data,
                          .kept = bytes + layout->plan_kept,
                          .weights = bytes + layout->plan_weights,
                          .aux = has_aux ? step->call->aux : epx_ring_zeros(step->ring),
                          .aux_stride = has_aux ? step->shape->aux_bytes : 0};
    }
    const char *slot = epx_ring_slot(step, step->wave);
    return (source_t){.rows = slot + layout->block.rows,
                      .kept = slot + layout->block.kept,
                      .weights = slot + layout->block.weights,
                      .aux = slot + layout->block.aux,
                      .checksum = slot + layout->block.checksum,
                      .aux_stride = step->shape->aux_bytes};
}

static int carries_aux(const epx_ring_step_t *step)
{
    return step->move == EPX_MOVE_DISPATCH && step->shape->aux_bytes > 0;
}

static void add_part(epx_k_push_t *args, const char *src, int64_t src_stride, int64_t offset, int64_t bytes)
{
    args->part[args->parts++] = (epx_part_t){.kind = EPX_PART_COPY,
                                             .src = src,
                                             .src_stride = src_stride,
                                             .divide = 1,
                                             .dst_offset = offset,
                                             .dst_stride = bytes,
                                             .bytes = bytes};
}

/* The checksums of a row travel with it unchanged, so that whoever finds a difference knows the last link to
 * be at fault. */
static void add_checksums(epx_k_push_t *args, const source_t *source, int64_t offset, int64_t row_bytes)
{
    add_part(args, source->checksum, (int64_t)sizeof(uint32_t), offset, (int64_t)sizeof(uint32_t));
    if (source->checksum != NULL)
        return;
    epx_part_t *part = &args->part[args->parts - 1];
    part->kind = EPX_PART_CHECKSUM;
    part->src = source->rows;
    part->src_stride = part->bytes = row_bytes;
}

/* Hands the block to the right neighbour for the next hop. */
static epx_status_t pass_block(epx_ring_step_t *step, const source_t *source)
{
    const epx_transport_env_t *env = &step->ring->base.env;
    const epx_ring_block_slot_t *slot = &step->ring->layout.block;
    int64_t at = epx_ring_slot_at(step, step->wave + 1),
            k_bytes = step->shape->top_k * (int64_t)sizeof(int32_t);
    epx_k_push_t args = {.units = step->shape->sm_budget,
                         .dst = step->ring->destinations,
                         .runs = epx_ring_plan_runs(step->ring, step->plan) + step->block,
                         .run_count = 1,
                         .rank = step->shape->rank,
                         .columns = step->shape->top_k};
    add_part(&args, source->rows, step->shape->row_bytes, at + slot->rows, step->shape->row_bytes);
    add_part(&args, source->kept, k_bytes, at + slot->kept, k_bytes);
    add_part(&args, source->weights, k_bytes, at + slot->weights, k_bytes);
    if (carries_aux(step))
        add_part(&args, source->aux, source->aux_stride, at + slot->aux, step->shape->aux_bytes);
    if (step->shape->check == EPX_CHECK_FULL)
        add_checksums(&args, source, at + slot->checksum, step->shape->row_bytes);

    epx_status_t status = epx_ring_await_right(step);
    if (status == EPX_OK)
        status = epx_ring_clear_staged(step);
    args.begun = epx_move_begun(&step->ring->base, step->plan);
    if (status == EPX_OK)
        status = env->kernels->push(&args, step->stream);
    if (status == EPX_OK)
        status = epx_ring_passed(step);
    return status;
}

static epx_status_t start_block(epx_ring_step_t *step, const void *rows, const void *aux)
{
    step->call->data = rows;
    step->call->aux = aux;
    if (!step->opens || step->shape->ranks == 1)
        return EPX_OK;
    epx_ring_turn_to(step, 0);
    source_t source = source_of(step);
    epx_ring_count_sent(step, step->block);
    return pass_block(step, &source);
}

/* Waits for the block and hands it on. */
static epx_status_t receive_block(epx_ring_step_t *step, const source_t *source)
{
    if (step->wave == 0)
        return EPX_OK;
    const epx_ring_block_slot_t *slot = &step->ring->layout.block;
    epx_status_t status = epx_ring_await_left(step, step->wave);
    if (status == EPX_OK)
        status = epx_ring_check_slot(step, step->wave, slot->rows, step->shape->row_bytes, slot->checksum);
    if (status != EPX_OK)
        return status;
    epx_ring_count_received(step, step->block);
    if (step->wave == step->shape->ranks - 1)
        return EPX_OK;
    epx_ring_count_sent(step, step->block);
    return pass_block(step, source);
}

/* Finds the places of the block's rows in the batch. */
static epx_status_t place_rows(epx_ring_step_t *step, const source_t *source)
{
    const epx_transport_env_t *env = &step->ring->base.env;
    const epx_ring_layout_t *layout = &step->ring->layout;
    const epx_shape_t *shape = step->shape;
    char *places = epx_ring_places(step), *landing = epx_ring_landing(step);
    const epx_ring_places_t *at = &layout->places[step->side];
    int backward = step->move == EPX_MOVE_COMBINE_BACKWARD;
    epx_k_ring_block_t args = {
        .tokens = epx_ring_plan_tokens(step->ring, step->plan) + step->block,
        .experts = shape->experts,
        .top_k = shape->top_k,
        .local_experts = epx_ring_batch_rows(step).experts,
        .row_align = shape->row_align,
        .rows_max = layout->rows_max,
        .rank = step->block,
        .local = (const int32_t *)((const char *)env->scratch + layout->local),
        .kept = (const int32_t *)source->kept,
        .weights = (const float *)source->weights,
        .start = (int64_t *)(landing + layout->landing.start),
        .count = (int64_t *)(landing + layout->landing.count),
        .place = (int32_t *)(places + at->place),
        .token = (int32_t *)(places + at->token),
        .place_weight = backward ? NULL : (float *)(places + at->place_weight),
        .row_weight = backward ? (float *)(places + at->row_weight) : NULL,
        .origin = shape->origin ? (epx_origin_t *)(landing + layout->landing.origin) : NULL,
        .excess = (int64_t *)(epx_ring_desk(step->ring, step->lane) + layout->desk.found)};
    int64_t found[2] = {0, 0};
    epx_status_t status = env->kernels->ring_block(&args, step->stream);
    /* Looking costs a synchronisation elsewhere; the kernel writes nothing beyond its arrays whatever the
     * block holds. */
    if (status == EPX_OK && (env->device->host_access || epx_ring_is_checked(step)))
        status = epx_ring_found(step, found);
    if (status != EPX_OK || found[0] == 0)
        return status;
    return env->services->fail(
        EPX_ERR_CORRUPT,
        "%s: rank %d, %s, wave %d: the block of rank %d has %" PRId64 " rows more than its routing "
        "allows; the ranks' plans are not of one route",
        env->group_name, shape->rank, epx_move_name(step->move), step->wave, step->block, found[0]);
}

/* Fills the batch's fields, and the caller's arrays where he gave some. */
static epx_status_t hand_over(epx_ring_step_t *step, epx_batch_t *batch)
{
    const epx_device_ops_t *device = step->ring->base.env.device;
    const epx_ring_layout_t *layout = &step->ring->layout;
    epx_k_rows_t rows = epx_ring_batch_rows(step);
    char *landing = epx_ring_landing(step);
    size_t bytes = (size_t)rows.experts * sizeof(int64_t);
    epx_status_t status = EPX_OK;
    if (batch->into_start != NULL && bytes > 0)
        status = device->copy(batch->into_start, rows.start, bytes, step->stream);
    if (status == EPX_OK && batch->into_count != NULL && bytes > 0)
        status = device->copy(batch->into_count, rows.count, bytes, step->stream);
    batch->rows = batch->into_rows != NULL ? batch->into_rows : landing + layout->landing.rows;
    batch->expert_start = batch->into_start != NULL ? batch->into_start : rows.start;
    batch->expert_count = batch->into_count != NULL ? batch->into_count : rows.count;
    batch->local_experts = rows.experts;
    batch->rows_max = layout->rows_max;
    batch->row_index = NULL;
    batch->origin = step->shape->origin ? (const epx_origin_t *)(landing + layout->landing.origin) : NULL;
    batch->row_aux = carries_aux(step) ? landing + layout->landing.aux : NULL;
    return status;
}

static epx_status_t gather(epx_ring_step_t *step, const char *src, int64_t src_stride, void *dst,
                           int64_t bytes)
{
    epx_k_gather_t args = {
        .units = step->shape->sm_budget,
        .rows = epx_ring_batch_rows(step),
        .index = (const int32_t *)(epx_ring_places(step) + step->ring->layout.places[step->side].token),
        .src = src,
        .dst = dst,
        .src_stride = src_stride,
        .dst_stride = bytes,
        .bytes = bytes};
    return step->ring->base.env.kernels->gather(&args, step->stream);
}

/* Gives the block's slot back and ends the call. */
static epx_status_t end_block(epx_ring_step_t *step)
{
    epx_status_t status = step->wave > 0 ? epx_ring_clear_slot(step, step->wave) : EPX_OK;
    return status == EPX_OK ? epx_ring_done(step) : status;
}

/* Hops of waves that a re-dispatch left out: their blocks only pass through. */
static epx_status_t catch_up(epx_ring_step_t *step)
{
    int32_t wave = step->wave;
    epx_status_t status = EPX_OK;
    for (int32_t hop = epx_ring_unfinished(step); hop < wave && status == EPX_OK; hop++) {
        epx_ring_turn_to(step, hop);
        source_t source = source_of(step);
        status = receive_block(step, &source);
        if (status == EPX_OK)
            status = end_block(step);
    }
    epx_ring_turn_to(step, wave);
    return status;
}

/* Up to the point where the batch can be filled. */
static epx_status_t land_block(epx_ring_step_t *step, const source_t *source, epx_batch_t *batch)
{
    epx_status_t status = catch_up(step);
    if (status == EPX_OK)
        status = receive_block(step, source);
    if (status == EPX_OK)
        status = place_rows(step, source);
    if (status == EPX_OK && step->wave > 0)
        status = epx_ring_check_rows(step, source->rows);
    if (status == EPX_OK)
        status = hand_over(step, batch);
    return status;
}

epx_status_t epx_ring_dispatch_start(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave,
                                     const void *x, const epx_batch_t *batch, epx_stream_t stream)
{
    epx_ring_step_t step;
    epx_status_t status = epx_ring_start(&step, transport, plan, EPX_MOVE_DISPATCH, wave, stream);
    return status == EPX_OK ? start_block(&step, x, batch != NULL ? batch->aux : NULL) : status;
}

epx_status_t epx_ring_dispatch_finish(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave,
                                      epx_batch_t *batch, epx_stream_t stream)
{
    epx_ring_step_t step;
    epx_ring_resume(&step, transport, plan, EPX_MOVE_DISPATCH, wave, stream);
    source_t source = source_of(&step);
    epx_batch_t got = *batch;
    epx_status_t status = land_block(&step, &source, &got);
    if (status == EPX_OK)
        status = gather(&step, source.rows, step.shape->row_bytes, got.rows, step.shape->row_bytes);
    if (status == EPX_OK && carries_aux(&step))
        status = gather(&step, source.aux, source.aux_stride,
                        epx_ring_landing(&step) + step.ring->layout.landing.aux, step.shape->aux_bytes);
    if (status == EPX_OK)
        status = end_block(&step);
    if (status == EPX_OK)
        *batch = got;
    return status;
}

epx_status_t epx_ring_combine_backward_start(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave,
                                             const void *dout, epx_stream_t stream)
{
    epx_ring_step_t step;
    epx_status_t status = epx_ring_start(&step, transport, plan, EPX_MOVE_COMBINE_BACKWARD, wave, stream);
    return status == EPX_OK ? start_block(&step, dout, NULL) : status;
}

/* dy and the dots that dispatch_backward takes home. */
static epx_status_t scale(epx_ring_step_t *step, const source_t *source, const void *y, void *dy)
{
    const epx_ring_places_t *at = &step->ring->layout.places[step->side];
    char *places = epx_ring_places(step);
    epx_k_scale_dot_t args = {.units = step->shape->sm_budget,
                              .rows = epx_ring_batch_rows(step),
                              .index = (const int32_t *)(places + at->token),
                              .weight = (const float *)(places + at->row_weight),
                              .width = step->shape->width,
                              .row_type = step->shape->row_type,
                              .dout = source->rows,
                              .y = y,
                              .dy = dy,
                              .dot = (float *)(places + at->dots)};
    return step->ring->base.env.kernels->scale_dot(&args, step->stream);
}

epx_status_t epx_ring_combine_backward_finish(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave,
                                              const void *y, epx_batch_t *dy, epx_stream_t stream)
{
    epx_ring_step_t step;
    epx_ring_resume(&step, transport, plan, EPX_MOVE_COMBINE_BACKWARD, wave, stream);
    source_t source = source_of(&step);
    epx_batch_t got = *dy;
    epx_status_t status = land_block(&step, &source, &got);
    if (status == EPX_OK)
        status = epx_ring_check_caller(&step, y);
    if (status == EPX_OK)
        status = scale(&step, &source, y, got.rows);
    if (status == EPX_OK)
        status = end_block(&step);
    if (status == EPX_OK)
        *dy = got;
    return status;
}
