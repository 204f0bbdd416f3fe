/* ragged_home: a combine whose last sums are made while the rest travels; H1 to H5 are in
 * include/epx/kernels_ragged.h. One thread does all of a call. SPDX-License-Identifier: Apache-2.0 */
#include <epx/kernels_ragged.h>

#include <string.h>

#include "kernels/host/lane.h"
#include "kernels/host/progress.h"
#include "kernels/host/rows.h"
#include "kernels/host/table.h"

typedef epx_k_ragged_home_t args_t;

static uint64_t *word_at(const args_t *args, int32_t rank, int32_t stream)
{
    return (uint64_t *)(void *)((char *)args->dst[rank] + args->words) +
           (int64_t)args->rank * EPX_HOME_STREAMS + stream;
}

static int64_t pieces_of(const args_t *args) { return (args->row_bytes - 1) / EPX_HOME_PIECE + 1; }

/* Bytes of a piece, but for the last one. */
static int64_t piece_bytes(const args_t *args)
{
    int64_t grains = (args->row_bytes - 1) / 128 + 1;
    return ((grains - 1) / pieces_of(args) + 1) * 128;
}

/* H2. */
static uint64_t word_of(uint64_t epoch, int64_t rounds) { return epoch << 16 | (uint64_t)rounds; }
static int64_t rounds_of(uint64_t epoch, uint64_t word)
{
    return word >> 16 == (word_of(epoch, 0) >> 16) ? (int64_t)(word & (EPX_HOME_ROUNDS_MAX - 1)) : 0;
}

static uint64_t epoch_of(const epx_k_begun_t *call)
{
    epx_lane_begin_of_t of = {.words = (epx_lane_words_t *)(uintptr_t)call->lane,
                              .head = call->head,
                              .generation = call->generation};
    return (call->lane != NULL ? epx_host_lane_base(&of) : 0) + call->add;
}

/* Rows of the run to a rank. */
static int64_t rows_to(const args_t *args, int32_t rank)
{
    int64_t most = args->runs[rank].rows, rows = args->rows[rank] < most ? args->rows[rank] : most;
    return rank != args->rank && rows > 0 ? rows : 0;
}

/* H2. */
static epx_status_t send_all(const args_t *args, uint64_t epoch)
{
    int64_t most = 0;
    for (int32_t q = 0; q < args->ranks; q++) {
        int64_t rows = rows_to(args, q);
        const epx_run_t *run = &args->runs[q];
        epx_k_reduce_t reduce = {.first = args->first + run->first,
                                 .count = args->count + run->first,
                                 .n = (int32_t)rows,
                                 .list = args->list,
                                 .weights = args->weights,
                                 .width = args->width,
                                 .row_type = args->row_type,
                                 .rows = args->y,
                                 .row_stride = args->row_bytes,
                                 .out = (char *)args->dst[q] + args->returns + run->row * args->row_bytes,
                                 .out_stride = args->row_bytes};
        epx_status_t status = rows > 0 ? epx_host_reduce(&reduce, NULL) : EPX_OK;
        if (status != EPX_OK)
            return status;
        most = rows > most ? rows : most;
    }
    int64_t rounds = (most * pieces_of(args) + args->streams - 1) / args->streams;
    for (int32_t q = 0; q < args->ranks && rounds > 0; q++)
        for (int32_t w = 0; w < args->streams; w++)
            __atomic_store_n(word_at(args, q, w), word_of(epoch, rounds), __ATOMIC_RELEASE);
    return EPX_OK;
}

/* H3. Whether piece p of a return row is here. */
static int has_come(const args_t *args, int64_t row, int64_t p, uint64_t epoch)
{
    for (int32_t s = 0; s < args->ranks; s++) {
        int64_t i = row - args->home_start[s];
        if (s == args->rank || i < 0 || i >= args->home_count[s])
            continue;
        int64_t unit = i * pieces_of(args) + p;
        const uint64_t *words =
            (const uint64_t *)(const void *)((const char *)args->dst[args->rank] + args->words);
        uint64_t word =
            __atomic_load_n(words + (int64_t)s * EPX_HOME_STREAMS + unit % args->streams, __ATOMIC_ACQUIRE);
        return rounds_of(epoch, word) > unit / args->streams;
    }
    return 1;
}

static int is_own(const args_t *args, int64_t row)
{
    int64_t start = args->home_start[args->rank];
    return row >= start && row < start + args->home_count[args->rank];
}

/* H4. Columns h .. h + n - 1 of the sum of own rows, which return row `row` stands for. */
static void own_sum(const args_t *args, const epx_row_ops_t *ops, int64_t row, int64_t h, int64_t n,
                    void *own)
{
    float sum[EPX_ROW_BLOCK] = {0};
    int64_t shift = args->home_start[args->rank] - *args->own_base, first = args->own_first[row] + shift;
    for (int64_t x = first; x < first + args->own_count[row]; x++)
        ops->add(sum,
                 (const char *)args->y + args->own_list[x] * args->row_bytes +
                     h * epx_row_element(args->row_type),
                 args->own_weights[x], n, args->row_type, 0);
    ops->store(own, sum, n, args->row_type);
}

/* Columns h .. h + n - 1 of a token. */
static void add_token(const args_t *args, const epx_row_ops_t *ops, int64_t t, int64_t h, int64_t n)
{
    float sum[EPX_ROW_BLOCK] = {0}, own[EPX_ROW_BLOCK];
    int64_t from = h * epx_row_element(args->row_type);
    const char *returns = (const char *)args->dst[args->rank] + args->returns;
    for (int32_t k = 0; k < args->columns && args->home[t * args->columns + k] >= 0; k++) {
        int64_t row = args->home[t * args->columns + k];
        int mine = is_own(args, row);
        if (mine)
            own_sum(args, ops, row, h, n, own);
        ops->add(sum, mine ? (const char *)own : returns + row * args->row_bytes + from, 1.0f, n,
                 args->row_type, 0);
    }
    ops->store((char *)args->out + t * args->row_bytes + from, sum, n, args->row_type);
}

/* A unit of tokens; 0: something that it needs is not here. */
static int use_unit(const args_t *args, int64_t unit, uint64_t epoch)
{
    const epx_row_ops_t *ops = epx_row_ops();
    int64_t t = unit / pieces_of(args), p = unit % pieces_of(args),
            each = piece_bytes(args) / epx_row_element(args->row_type),
            end = (p + 1) * each < args->width ? (p + 1) * each : args->width;
    for (int32_t k = 0; k < args->columns && !args->here; k++) {
        int64_t row = args->home[t * args->columns + k];
        if (row >= 0 && !is_own(args, row) && !has_come(args, row, p, epoch))
            return 0;
    }
    for (int64_t h = p * each; h < end; h += EPX_ROW_BLOCK)
        add_token(args, ops, t, h, end - h < EPX_ROW_BLOCK ? end - h : EPX_ROW_BLOCK);
    return 1;
}

epx_status_t epx_host_ragged_home(const epx_k_ragged_home_t *args, epx_stream_t stream)
{
    (void)stream;
    epx_host_begun(&args->call);
    if (args->gate != NULL && __atomic_load_n(args->gate, __ATOMIC_ACQUIRE) != 1)
        return EPX_OK;
    uint64_t epoch = epoch_of(&args->call);
    epx_status_t status = args->here ? EPX_OK : send_all(args, epoch);
    int64_t units = *args->tokens * pieces_of(args), n = args->user_streams;
    for (int32_t v = 0; v < n && status == EPX_OK; v++) {
        int64_t k = args->here ? args->used[v] : 0;
        while (k * n + v < units && use_unit(args, k * n + v, epoch))
            k++;
        args->used[v] = (int32_t)k;
    }
    return status;
}
