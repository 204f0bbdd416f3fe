/* Pieces of posts. SPDX-License-Identifier: Apache-2.0 */
#include "transport/pieces.h"

#include <inttypes.h>
#include <string.h>

#include "base/fail.h"

void epx_pieces_send(epx_pieces_t *pieces, int32_t peer, int64_t local, int64_t remote, int64_t bytes)
{
    epx_piece_t *last = pieces->send + pieces->sends - 1;
    if (bytes <= 0)
        return;
    if (pieces->sends > pieces->first_send && last->peer == peer && last->remote + last->bytes == remote) {
        last->bytes += bytes;
        return;
    }
    pieces->send[pieces->sends++] =
        (epx_piece_t){.peer = peer, .local = local, .remote = remote, .bytes = bytes};
}

void epx_pieces_receive(epx_pieces_t *pieces, int32_t peer, int64_t local, int64_t bytes)
{
    epx_piece_t *last = pieces->receive + pieces->receives - 1;
    if (bytes <= 0)
        return;
    if (pieces->receives > pieces->first_receive && last->peer == peer &&
        last->local + last->bytes == local) {
        last->bytes += bytes;
        return;
    }
    pieces->receive[pieces->receives++] = (epx_piece_t){.peer = peer, .local = local, .bytes = bytes};
}

void epx_pieces_into(const epx_pieces_t *pieces, const epx_segment_t *segment, epx_post_t *post)
{
    post->segment = segment;
    post->sends = pieces->send;
    post->receives = pieces->receive;
    post->send_count = pieces->sends;
    post->receive_count = pieces->receives;
    post->source = pieces->source;
}

/* ---- rows in the caller's memory ------------------------------------------------------------------------------ */

/* The run with this row, from the last one on; NULL: there is none. */
static const epx_run_t *find_run(epx_rows_source_t *source, int64_t row)
{
    for (int32_t i = 0; i < source->run_count; i++) {
        const epx_run_t *run = &source->runs[source->at];
        if (row >= run->row && row < (int64_t)run->row + run->rows)
            return run;
        source->at = source->at + 1 < source->run_count ? source->at + 1 : 0;
    }
    return NULL;
}

static char *read_run(const epx_rows_source_t *source, int64_t first, int64_t count, char *to)
{
    int64_t unit = source->base.unit;
    if (source->index == NULL && source->divide == 1 && source->stride == unit) {
        memcpy(to, source->rows + first * unit, (size_t)(count * unit));
        return to + count * unit;
    }
    for (int64_t i = first; i < first + count; i++, to += unit) {
        int64_t s = source->index != NULL ? source->index[i] : i;
        if (s >= 0)
            memcpy(to, source->rows + s / source->divide * source->stride, (size_t)unit);
    }
    return to;
}

static epx_status_t read_rows(epx_piece_source_t *base, int64_t local, int64_t bytes, void *to)
{
    epx_rows_source_t *source = (epx_rows_source_t *)base;
    int64_t row = (local - base->local) / base->unit, end = row + bytes / base->unit;
    char *at = to;
    while (row < end) {
        const epx_run_t *run = find_run(source, row);
        if (run == NULL)
            return epx_fail(EPX_ERR_FATAL,
                            "a post sends row %" PRId64 " of a source, which none of its runs has", row);
        int64_t last = (int64_t)run->row + run->rows, count = (last < end ? last : end) - row;
        at = read_run(source, run->first + (row - run->row), count, at);
        row += count;
    }
    return EPX_OK;
}

void epx_rows_source_begin(epx_rows_source_t *source) { source->base.read = read_rows; }

epx_status_t epx_staged_table(const epx_transport_env_t *env, void *table, void *base, void *other)
{
    epx_status_t status = EPX_OK;
    for (int32_t r = 0; r < env->shape->ranks && status == EPX_OK; r++) {
        void *const *entry = r == env->shape->rank ? &base : &other;
        status = env->device->copy((void **)table + r, entry, sizeof(*entry), NULL);
    }
    return status;
}
