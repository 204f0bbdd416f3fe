/* Moving rows: push to peers, gather into a batch. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/host/progress.h"
#include "kernels/host/checksum.h"
#include "kernels/host/table.h"

#include <string.h>

/* Rows of a few bytes (weights, counts) are not worth a call. */
static inline void copy_row(char *to, const char *from, int64_t bytes)
{
    if (bytes == 4)
        memcpy(to, from, 4);
    else
        memcpy(to, from, (size_t)bytes);
}

static void push_copy(const epx_k_push_t *args, const epx_run_t *run, const epx_part_t *part, char *to)
{
    const char *src = part->src;
    int packed = args->index == NULL && part->divide == 1 && part->src_stride == part->bytes &&
                 part->dst_stride == part->bytes;
    if (packed) {
        memcpy(to, src + run->first * part->src_stride, (size_t)(run->rows * part->bytes));
        return;
    }
    for (int32_t j = 0; j < run->rows; j++, to += part->dst_stride) {
        int64_t s = args->index != NULL ? args->index[run->first + j] : run->first + j;
        if (s >= 0)
            copy_row(to, src + s / part->divide * part->src_stride, part->bytes);
    }
}

/* What this rank keeps, to all of its places. */
static void push_own(const epx_k_push_t *args, const epx_run_t *run, const epx_part_t *part)
{
    const epx_k_places_t *own = &args->own;
    int64_t shift = *own->start - *own->base;
    for (int64_t i = run->first; i < run->first + run->rows; i++) {
        int64_t s = args->index != NULL ? args->index[i] : i;
        for (int64_t x = own->first[i] + shift; s >= 0 && x < own->first[i] + shift + own->count[i]; x++)
            copy_row((char *)own->dst + own->list[x] * own->stride,
                     (const char *)part->src + s / part->divide * part->src_stride, part->bytes);
    }
}

static void push_checksum(const epx_k_push_t *args, const epx_run_t *run, const epx_part_t *part, char *to)
{
    for (int32_t j = 0; j < run->rows; j++, to += part->dst_stride) {
        int64_t s = args->index != NULL ? args->index[run->first + j] : run->first + j;
        if (s < 0)
            continue;
        uint32_t sum =
            epx_row_checksum((const char *)part->src + s / part->divide * part->src_stride, part->bytes);
        memcpy(to, &sum, sizeof(sum));
    }
}

static void push_origin(const epx_k_push_t *args, const epx_run_t *run, const epx_part_t *part, char *to)
{
    for (int32_t j = 0; j < run->rows; j++, to += part->dst_stride) {
        int64_t s = args->index != NULL ? args->index[run->first + j] : run->first + j;
        if (s < 0)
            continue;
        epx_origin_t origin = {
            .rank = args->rank, .token = (int32_t)(s / args->columns), .k = (int32_t)(s % args->columns)};
        memcpy(to, &origin, sizeof(origin));
    }
}

static void push_one(const epx_k_push_t *args)
{
    if (args->gate != NULL && *args->gate != 1)
        return;
    for (int32_t r = 0; r < args->run_count; r++) {
        const epx_run_t *run = &args->runs[r];
        if (run->rows <= 0)
            continue;
        for (int32_t p = 0; p < args->parts; p++) {
            const epx_part_t *part = &args->part[p];
            if (part->placed && run->peer == args->rank) {
                push_own(args, run, part);
                continue;
            }
            char *to = (char *)args->dst[run->peer] + part->dst_offset + run->row * part->dst_stride;
            switch (part->kind) {
            case EPX_PART_COPY: push_copy(args, run, part, to); break;
            case EPX_PART_ORIGIN: push_origin(args, run, part, to); break;
            case EPX_PART_CHECKSUM: push_checksum(args, run, part, to); break;
            }
        }
    }
}

epx_status_t epx_host_push(const epx_k_push_t *args, epx_stream_t stream)
{
    (void)stream;
    epx_host_begun(&args->begun);
    for (; args != NULL; args = args->more)
        push_one(args);
    return EPX_OK;
}

static const char *gather_from(const epx_k_gather_t *args, int64_t g)
{
    int64_t s = args->index != NULL ? args->index[g] : g, own = s - args->own_first;
    if (args->own != NULL && own >= 0 && own < args->own_count)
        return (const char *)args->own_src + args->own[own] / args->own_divide * args->src_stride;
    return (const char *)args->src + s * args->src_stride;
}

epx_status_t epx_host_gather(const epx_k_gather_t *args, epx_stream_t stream)
{
    (void)stream;
    int packed = args->index == NULL && args->src_stride == args->bytes && args->dst_stride == args->bytes;
    for (int32_t e = 0; e < args->rows.experts; e++) {
        int64_t first = args->rows.start[e], count = args->rows.count[e];
        const char *src = args->src;
        char *to = (char *)args->dst + first * args->dst_stride;
        if (packed && count > 0) {
            memcpy(to, src + first * args->bytes, (size_t)(count * args->bytes));
            continue;
        }
        for (int64_t g = first; g < first + count; g++, to += args->dst_stride)
            copy_row(to, gather_from(args, g), args->bytes);
    }
    return EPX_OK;
}

epx_status_t epx_host_scatter(const epx_k_scatter_t *args, epx_stream_t stream)
{
    (void)stream;
    for (int32_t e = 0; e < args->rows.experts; e++) {
        int64_t first = args->rows.start[e], end = first + args->rows.count[e];
        for (int64_t g = first; g < end && e != args->without - 1; g++)
            for (int64_t x = args->first[g]; x < (int64_t)args->first[g] + args->count[g]; x++)
                copy_row((char *)args->dst + args->list[x] * args->dst_stride,
                         (const char *)args->src + g * args->src_stride, args->bytes);
    }
    return EPX_OK;
}
