/* Sums over rows: combine, pre-reduction, and the two kinds of gradient. SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/host/rows.h"
#include "kernels/host/table.h"

#include <string.h>

static inline int64_t tokens_of(int64_t tokens, const int64_t *tokens_device)
{
    return tokens_device != NULL ? *tokens_device : tokens;
}

/* The row of this wave that an assignment's place names, or -1. */
static inline int64_t row_of(int32_t place, int64_t lo, int64_t hi, const uint8_t *kept)
{
    if (place < lo || place >= hi || (kept != NULL && kept[place - lo] == 0))
        return -1;
    return place - lo;
}

static inline const char *row_at(const epx_k_combine_t *args, int64_t row)
{
    int64_t own = row - args->own_first;
    if (args->own != NULL && own >= 0 && own < args->own_count)
        return (const char *)args->own_rows + args->own[own] * args->row_stride;
    return (const char *)args->rows + row * args->row_stride;
}

/* Columns h .. h + n - 1 of a row that is a sum of own rows, in the row type. */
static void make_own_sum(const epx_k_combine_t *args, const epx_row_ops_t *ops, int64_t row, int64_t h,
                         int64_t n, void *to)
{
    const epx_k_own_sums_t *sums = &args->sums;
    int64_t at = h * epx_row_element(args->row_type),
            x = sums->first[row] + *sums->home_start - *sums->wire_start;
    float sum[EPX_ROW_BLOCK] = {0};
    for (int64_t end = x + sums->count[row]; x < end; x++)
        ops->add(sum, (const char *)sums->y + sums->list[x] * args->row_stride + at,
                 sums->weights != NULL ? sums->weights[x] : 1.0f, n, args->row_type, 0);
    ops->store(to, sum, n, args->row_type);
}

/* The same columns of any row; made: where a sum is put. */
static const char *columns_of(const epx_k_combine_t *args, const epx_row_ops_t *ops, int64_t row, int64_t h,
                              int64_t n, void *made)
{
    if (args->sums.y == NULL)
        return row_at(args, row) + h * epx_row_element(args->row_type);
    make_own_sum(args, ops, row, h, n, made);
    return made;
}

/* Columns h .. h + n - 1 of one token: a block at a time, so that the sum stays in the nearest cache over all
 * its rows. */
static void combine_block(const epx_k_combine_t *args, const epx_row_ops_t *ops, int64_t t, int64_t h,
                          int64_t n)
{
    const int32_t *place = args->place + t * args->columns;
    float made[EPX_ROW_BLOCK], own[EPX_ROW_BLOCK],
        *acc = args->acc != NULL ? args->acc + t * args->width + h : own;
    int64_t waves = args->waves > 1 ? args->waves : 1, wave = (args->hi - args->lo) / waves;
    int32_t from_zero = args->first;

    for (int64_t lo = 0; lo < waves * wave; lo += wave) {
        for (int32_t k = 0; k < args->columns; k++) {
            int64_t row = row_of(place[k], args->lo, args->hi, args->kept);
            if (row < lo || row >= lo + wave)
                continue;
            ops->add(acc, columns_of(args, ops, row, h, n, made),
                     args->weights ? args->weights[t * args->columns + k] : 1.0f, n, args->row_type,
                     from_zero);
            from_zero = 0;
        }
    }
    if (from_zero)
        memset(acc, 0, (size_t)n * sizeof(*acc));
    if (args->last && args->out != (void *)args->acc)
        ops->store((char *)args->out + (t * args->width + h) * epx_row_element(args->out_type), acc, n,
                   args->out_type);
}

epx_status_t epx_host_combine(const epx_k_combine_t *args, epx_stream_t stream)
{
    (void)stream;
    const epx_row_ops_t *ops = epx_row_ops();
    int64_t tokens = tokens_of(args->tokens, args->tokens_device);
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < args->width; h += EPX_ROW_BLOCK)
            combine_block(args, ops, t, h, args->width - h < EPX_ROW_BLOCK ? args->width - h : EPX_ROW_BLOCK);
    return EPX_OK;
}

/* A row that is made in a cache need not go to memory. */
int epx_host_sums_soon(int64_t tokens, int32_t width, epx_type_t row_type)
{
    (void)tokens, (void)width, (void)row_type;
    return 1;
}

static void reduce_row(const epx_k_reduce_t *args, const epx_row_ops_t *ops, int32_t j)
{
    int64_t element = epx_row_element(args->row_type);
    for (int64_t h = 0; h < args->width; h += EPX_ROW_BLOCK) {
        int64_t n = args->width - h < EPX_ROW_BLOCK ? args->width - h : EPX_ROW_BLOCK;
        float sum[EPX_ROW_BLOCK] = {0};
        for (int64_t i = args->first[j]; i < (int64_t)args->first[j] + args->count[j]; i++)
            ops->add(sum, (const char *)args->rows + args->list[i] * args->row_stride + h * element,
                     args->weights ? args->weights[i] : 1.0f, n, args->row_type, 0);
        ops->store((char *)args->out + j * args->out_stride + h * element, sum, n, args->row_type);
    }
}

epx_status_t epx_host_reduce(const epx_k_reduce_t *args, epx_stream_t stream)
{
    (void)stream;
    const epx_row_ops_t *ops = epx_row_ops();
    int32_t n = args->n_device != NULL ? *args->n_device : args->n;
    for (int32_t j = 0; j < n; j++)
        reduce_row(args, ops, j);
    return EPX_OK;
}

epx_status_t epx_host_take_dots(const epx_k_take_dots_t *args, epx_stream_t stream)
{
    (void)stream;
    int64_t n = tokens_of(args->tokens, args->tokens_device) * args->columns;
    for (int64_t a = 0; a < n; a++) {
        int64_t row = row_of(args->place[a], args->lo, args->hi, args->kept);
        if (row >= 0)
            args->dweight[a] = args->dots[row];
        else if (args->first)
            args->dweight[a] = 0.0f;
    }
    return EPX_OK;
}

epx_status_t epx_host_scale_dot(const epx_k_scale_dot_t *args, epx_stream_t stream)
{
    (void)stream;
    const epx_row_ops_t *ops = epx_row_ops();
    int64_t row_bytes = args->width * epx_row_element(args->row_type);
    for (int32_t e = 0; e < args->rows.experts; e++) {
        int64_t first = args->rows.start[e], end = first + args->rows.count[e];
        for (int64_t g = first; g < end; g++) {
            const char *dout =
                (const char *)args->dout + (args->index != NULL ? args->index[g] : g) * row_bytes;
            /* The dot comes first: dy may lie where dout does. */
            args->dot[g] = ops->dot(dout, (const char *)args->y + g * row_bytes, args->width, args->row_type);
            ops->scale((char *)args->dy + g * row_bytes, dout, args->weight[g], args->width, args->row_type);
        }
    }
    return EPX_OK;
}
