/* ring: combine and dispatch_backward. Partial sums go round and come home. SPDX-License-Identifier:
 * Apache-2.0 */
#include "ring/ring.h"

static int is_backward(const epx_ring_step_t *step) { return step->move == EPX_MOVE_DISPATCH_BACKWARD; }

static int64_t sum_bytes(const epx_ring_step_t *step) { return step->shape->width * (int64_t)sizeof(float); }

/* Goes on with the sums in `acc` and stores what they have become in `out`, which may be the same memory. */
static epx_status_t add_rows(epx_ring_step_t *step, float *acc, void *out, epx_type_t out_type)
{
    const epx_ring_places_t *at = &step->ring->layout.places[step->side];
    const char *places = epx_ring_places(step);
    epx_k_combine_t args = {.units = step->shape->sm_budget,
                            .tokens = step->shape->tokens_max,
                            .tokens_device = epx_ring_plan_tokens(step->ring, step->plan) + step->block,
                            .columns = step->shape->top_k,
                            .width = step->shape->width,
                            .row_type = step->shape->row_type,
                            .out_type = out_type,
                            .weights = is_backward(step) ? NULL : (const float *)(places + at->place_weight),
                            .place = (const int32_t *)(places + at->place),
                            .lo = 0,
                            .hi = step->ring->layout.rows_max,
                            .rows = step->call->data,
                            .row_stride = step->shape->row_bytes,
                            .acc = acc,
                            .out = out,
                            .first = step->wave == 0,
                            .last = 1};
    return step->ring->base.env.kernels->combine(&args, step->stream);
}

/* Puts the dots of this rank's rows beside those that came. */
static epx_status_t add_dots(epx_ring_step_t *step, float *dweight)
{
    const epx_ring_places_t *at = &step->ring->layout.places[step->side];
    const char *places = epx_ring_places(step);
    epx_k_take_dots_t args = {.units = step->shape->sm_budget,
                              .tokens = step->shape->tokens_max,
                              .tokens_device = epx_ring_plan_tokens(step->ring, step->plan) + step->block,
                              .columns = step->shape->top_k,
                              .place = (const int32_t *)(places + at->place),
                              .lo = 0,
                              .hi = step->ring->layout.rows_max,
                              .dots = (const float *)(places + at->dots),
                              .dweight = dweight,
                              .first = step->wave == 0};
    return step->ring->base.env.kernels->take_dots(&args, step->stream);
}

/* Floats of the block's tokens, `bytes` for each, to the right neighbour. */
static epx_status_t push_floats(epx_ring_step_t *step, const float *src, int64_t bytes, int64_t offset)
{
    const epx_transport_env_t *env = &step->ring->base.env;
    epx_k_push_t args = {.units = step->shape->sm_budget,
                         .dst = step->ring->destinations,
                         .runs = epx_ring_plan_runs(step->ring, step->plan) + step->block,
                         .run_count = 1,
                         .part = {{.kind = EPX_PART_COPY,
                                   .src = src,
                                   .src_stride = bytes,
                                   .divide = 1,
                                   .dst_offset = offset,
                                   .dst_stride = bytes,
                                   .bytes = bytes}},
                         .parts = 1,
                         .rank = step->shape->rank,
                         .columns = step->shape->top_k};
    return env->kernels->push(&args, step->stream);
}

/* The dots of this hop beside those that came, at the right neighbour. */
static epx_status_t pass_dots(epx_ring_step_t *step, float *mine, int64_t next)
{
    if (step->wave == 0)
        return add_dots(step, (float *)(step->ring->right_base + next));
    epx_status_t status = add_dots(step, mine);
    int64_t bytes = step->shape->top_k * (int64_t)sizeof(float);
    return status == EPX_OK ? push_floats(step, mine, bytes, next) : status;
}

/* Adds this rank's rows to the block's sums, and takes checksums of what they have become before they travel.
 */
static epx_status_t pass_checked(epx_ring_step_t *step, char *mine, char *next, int64_t at)
{
    const epx_ring_sum_slot_t *slot = &step->ring->layout.sum;
    float *sums = (float *)(mine + slot->sums);
    epx_k_checksum_t args = {.src = sums,
                             .stride = sum_bytes(step),
                             .bytes = sum_bytes(step),
                             .n = step->shape->tokens_max, /* behind T nobody looks */
                             .sum = (uint32_t *)(next + slot->checksum)};
    epx_status_t status = add_rows(step, sums, sums, EPX_FP32);
    if (status == EPX_OK)
        status = step->ring->base.env.kernels->checksum(&args, step->stream);
    if (status == EPX_OK && mine != next)
        status = push_floats(step, sums, sum_bytes(step), at + slot->sums);
    return status;
}

/*
 * Adds this rank's rows to the block's sums, from the slot of this hop to the right neighbour's slot of the
 * next (in hop 0, where the sums begin, there alone), and says so.
 */
static epx_status_t pass_sums(epx_ring_step_t *step)
{
    const epx_ring_sum_slot_t *slot = &step->ring->layout.sum;
    int64_t at = epx_ring_slot_at(step, step->wave + 1);
    char *next = step->ring->right_base + at,
         *mine = step->wave == 0 ? next : epx_ring_slot(step, step->wave);
    epx_status_t status = epx_ring_await_right(step);
    if (status == EPX_OK)
        status = epx_ring_clear_staged(step);
    if (status == EPX_OK && step->shape->check == EPX_CHECK_FULL)
        status = pass_checked(step, mine, next, at);
    else if (status == EPX_OK)
        status = add_rows(step, (float *)(mine + slot->sums), next + slot->sums, EPX_FP32);
    if (status == EPX_OK && is_backward(step))
        status = pass_dots(step, (float *)(mine + slot->dweight), at + slot->dweight);
    if (status == EPX_OK)
        status = epx_ring_passed(step);
    epx_ring_count_sent(step, step->block);
    return status;
}

/* Waits for the sums of `hop` (S: the own ones, home again). */
static epx_status_t receive_sums(epx_ring_step_t *step, int32_t hop)
{
    const epx_ring_sum_slot_t *slot = &step->ring->layout.sum;
    epx_status_t status = epx_ring_await_left(step, hop);
    if (status == EPX_OK)
        status = epx_ring_check_slot(step, hop, slot->sums, sum_bytes(step), slot->checksum);
    epx_ring_count_received(step, epx_ring_block_of(step->shape, hop));
    return status;
}

/* Writes the own sums, which lie in the slot of hop S, as the caller wants them. */
static epx_status_t write_out(epx_ring_step_t *step, void *out, float *dweight)
{
    const epx_transport_env_t *env = &step->ring->base.env;
    const epx_ring_layout_t *layout = &step->ring->layout;
    char *home = epx_ring_slot(step, step->shape->ranks);
    /* No place is in lo .. hi - 1: nothing is added, the sums are only converted. */
    epx_k_combine_t args = {.units = step->shape->sm_budget,
                            .tokens = step->shape->tokens_max,
                            .tokens_device = epx_ring_plan_tokens(step->ring, step->plan) + step->shape->rank,
                            .columns = step->shape->top_k,
                            .width = step->shape->width,
                            .row_type = step->shape->row_type,
                            .out_type = step->shape->out_type,
                            .place = (const int32_t *)((const char *)step->plan->bytes + layout->plan_kept),
                            .lo = 0,
                            .hi = 0,
                            .acc = (float *)(home + layout->sum.sums),
                            .out = out,
                            .first = 0,
                            .last = 1};
    epx_status_t status = env->kernels->combine(&args, step->stream);
    if (status != EPX_OK || dweight == NULL)
        return status;
    int64_t bytes = step->shape->top_k * (int64_t)sizeof(float);
    epx_k_gather_t home_dots = {.units = step->shape->sm_budget,
                                .rows = epx_ring_block_rows(step, step->shape->rank),
                                .src = home + layout->sum.dweight,
                                .dst = dweight,
                                .src_stride = bytes,
                                .dst_stride = bytes,
                                .bytes = bytes};
    return env->kernels->gather(&home_dots, step->stream);
}

/* A group of one rank: the only hop begins and ends here. */
static epx_status_t sum_alone(epx_ring_step_t *step, void *out, float *dweight)
{
    char *slot = epx_ring_slot(step, 0);
    epx_status_t status =
        add_rows(step, (float *)(slot + step->ring->layout.sum.sums), out, step->shape->out_type);
    if (status == EPX_OK && dweight != NULL)
        status = add_dots(step, dweight);
    return status;
}

static epx_status_t start_sums(epx_ring_step_t *step, const void *rows)
{
    step->call->data = rows;
    epx_status_t status = epx_ring_check_caller(step, rows);
    if (status != EPX_OK || step->wave > 0 || step->shape->ranks == 1)
        return status;
    return pass_sums(step);
}

/* The last hop: the own sums come home, and the pass ends. */
static epx_status_t come_home(epx_ring_step_t *step, void *out, float *dweight)
{
    int32_t ranks = step->shape->ranks;
    epx_status_t status = receive_sums(step, ranks);
    if (status == EPX_OK)
        status = write_out(step, out, dweight);
    return status == EPX_OK ? epx_ring_clear_slot(step, ranks) : status;
}

static epx_status_t finish_sums(epx_ring_step_t *step, void *out, float *dweight)
{
    int32_t ranks = step->shape->ranks;
    epx_status_t status = EPX_OK;
    if (ranks == 1)
        status = sum_alone(step, out, dweight);
    if (step->wave > 0)
        status = receive_sums(step, step->wave);
    if (step->wave > 0 && status == EPX_OK)
        status = pass_sums(step);
    if (step->wave > 0 && status == EPX_OK)
        status = epx_ring_clear_slot(step, step->wave);
    if (status == EPX_OK && ranks > 1 && step->wave == ranks - 1)
        status = come_home(step, out, dweight);
    if (status == EPX_OK)
        status = epx_ring_done(step);
    if (status == EPX_OK && step->wave == ranks - 1)
        epx_ring_end_pass(step->plan);
    return status;
}

epx_status_t epx_ring_combine_start(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave,
                                    const void *y, epx_stream_t stream)
{
    epx_ring_step_t step;
    epx_status_t status = epx_ring_start(&step, transport, plan, EPX_MOVE_COMBINE, wave, stream);
    return status == EPX_OK ? start_sums(&step, y) : status;
}

epx_status_t epx_ring_combine_finish(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave,
                                     void *out, epx_stream_t stream)
{
    epx_ring_step_t step;
    epx_ring_resume(&step, transport, plan, EPX_MOVE_COMBINE, wave, stream);
    return finish_sums(&step, out, NULL);
}

epx_status_t epx_ring_dispatch_backward_start(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave,
                                              const void *dx_rows, epx_stream_t stream)
{
    epx_ring_step_t step;
    epx_status_t status = epx_ring_start(&step, transport, plan, EPX_MOVE_DISPATCH_BACKWARD, wave, stream);
    return status == EPX_OK ? start_sums(&step, dx_rows) : status;
}

epx_status_t epx_ring_dispatch_backward_finish(epx_transport_t *transport, epx_plan_base_t *plan,
                                               int32_t wave, void *dx, float *dweight, epx_stream_t stream)
{
    epx_ring_step_t step;
    epx_ring_resume(&step, transport, plan, EPX_MOVE_DISPATCH_BACKWARD, wave, stream);
    return finish_sums(&step, dx, dweight);
}
