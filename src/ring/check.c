/* ring: what EPX_CHECK looks at. SPDX-License-Identifier: Apache-2.0 */
#include "ring/ring.h"

#include <inttypes.h>

static const epx_transport_env_t *env_of(const epx_ring_step_t *step) { return &step->ring->base.env; }

int epx_ring_is_checked(const epx_ring_step_t *step)
{
    return step->shape->check == EPX_CHECK_CANARY || step->shape->check == EPX_CHECK_FULL;
}

static int64_t *found_at(const epx_ring_step_t *step)
{
    return (int64_t *)(epx_ring_desk(step->ring, step->lane) + step->ring->layout.desk.found);
}

epx_status_t epx_ring_found(epx_ring_step_t *step, int64_t found[2])
{
    return epx_fetch(&step->ring->base, found, found_at(step), 2 * sizeof(*found), step->stream);
}

/* The rows of a block or of its sums in the slot of `hop`, one stride apart. */
static epx_status_t verify(epx_ring_step_t *step, int32_t hop, int64_t rows, int64_t stride, int64_t checksum)
{
    const char *slot = epx_ring_slot(step, hop);
    epx_k_verify_t args = {.rows = epx_ring_block_rows(step, epx_ring_block_of(step->shape, hop)),
                           .src = slot + rows,
                           .stride = stride,
                           .bytes = stride,
                           .sum = (const uint32_t *)(slot + checksum),
                           .bad = found_at(step)};
    return env_of(step)->kernels->verify(&args, step->stream);
}

static epx_status_t find_poison_in_slot(epx_ring_step_t *step, int32_t hop, int64_t rows, int64_t stride)
{
    epx_k_find_poison_t args = {.rows = epx_ring_block_rows(step, epx_ring_block_of(step->shape, hop)),
                                .src = epx_ring_slot(step, hop) + rows,
                                .stride = stride,
                                .bytes = stride,
                                .bad = found_at(step)};
    return env_of(step)->kernels->find_poison(&args, step->stream);
}

/* What a check has found about a row of a slot, in words. */
static epx_status_t slot_error(epx_ring_step_t *step, int32_t hop, const char *what)
{
    const epx_transport_env_t *env = env_of(step);
    int64_t found[2];
    epx_status_t status = epx_ring_found(step, found);
    if (status != EPX_OK || found[0] < 0)
        return status;
    return env->services->fail(EPX_ERR_CORRUPT,
                               "%s: rank %d, %s, wave %d: the %s of token %" PRId64
                               " of rank %d, which rank %d passed on, %s",
                               env->group_name, step->shape->rank, epx_move_name(step->move), step->wave,
                               step->chain == EPX_RING_SUMS ? "partial sum" : "row", found[0],
                               epx_ring_block_of(step->shape, hop), step->ring->left, what);
}

epx_status_t epx_ring_check_slot(epx_ring_step_t *step, int32_t hop, int64_t rows, int64_t stride,
                                 int64_t checksum)
{
    epx_status_t status = EPX_OK;
    if (step->shape->check == EPX_CHECK_FULL) {
        status = verify(step, hop, rows, stride, checksum);
        if (status == EPX_OK)
            status = slot_error(
                step, hop,
                "has a wrong checksum: the exchange corrupted it; epx_group_recover makes the group usable");
    }
    if (status == EPX_OK && epx_ring_is_checked(step) && step->chain == EPX_RING_SUMS) {
        status = find_poison_in_slot(step, hop, rows, stride);
        if (status == EPX_OK)
            status = slot_error(
                step, hop,
                "was not written: the exchange left it out; epx_group_recover makes the group usable");
    }
    return status;
}

/* What a check has found about a row of the batch, in words. */
static epx_status_t row_error(epx_ring_step_t *step, const char *culprit)
{
    const epx_transport_env_t *env = env_of(step);
    const epx_owners_t *owners = &step->shape->real;
    int64_t found[2];
    epx_status_t status = epx_ring_found(step, found);
    if (status != EPX_OK || found[0] < 0)
        return status;
    return env->services->fail(
        EPX_ERR_CORRUPT,
        "%s: rank %d, %s, wave %d: row %" PRId64 " (expert %d), a token of rank %d, was not written: "
        "%s left it out; mend it, then epx_group_recover",
        env->group_name, step->shape->rank, epx_move_name(step->move), step->wave, found[0],
        owners->expert[owners->first[step->shape->rank] + found[1]], step->block, culprit);
}

/* index: place in the batch -> row of `rows`, or NULL. */
static epx_status_t check_batch(epx_ring_step_t *step, const void *rows, const int32_t *index,
                                const char *culprit)
{
    if (!epx_ring_is_checked(step))
        return EPX_OK;
    epx_k_find_poison_t args = {.rows = epx_ring_batch_rows(step),
                                .index = index,
                                .src = rows,
                                .stride = step->shape->row_bytes,
                                .bytes = step->shape->row_bytes,
                                .bad = found_at(step)};
    epx_status_t status = env_of(step)->kernels->find_poison(&args, step->stream);
    return status == EPX_OK ? row_error(step, culprit) : status;
}

epx_status_t epx_ring_check_rows(epx_ring_step_t *step, const void *rows)
{
    int64_t token = step->ring->layout.places[step->side].token;
    return check_batch(step, rows, (const int32_t *)(epx_ring_places(step) + token), "the exchange");
}

epx_status_t epx_ring_check_caller(epx_ring_step_t *step, const void *y)
{
    return check_batch(step, y, NULL, "the caller's computation");
}

epx_status_t epx_ring_clear_slot(epx_ring_step_t *step, int32_t hop)
{
    const epx_ring_layout_t *layout = &step->ring->layout;
    int64_t bytes = step->chain == EPX_RING_SUMS ? layout->sum.bytes : layout->block.bytes;
    return epx_canary_fill(&step->ring->base, epx_ring_slot(step, hop), bytes, step->stream);
}
