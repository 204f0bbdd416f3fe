/* ragged_flow: a dispatch in parts; F1 to F5 are in include/epx/kernels_ragged.h. One thread does all of a
 * call, and keeps its place in the counters. SPDX-License-Identifier: Apache-2.0 */
#include <epx/kernels_ragged.h>

#include <string.h>

#include "kernels/host/lane.h"
#include "kernels/host/progress.h"
#include "kernels/host/table.h"

/* Never: one thread has nothing that it could do meanwhile. */
const epx_flow_limits_t epx_host_flow_limits = {.bytes = INT64_MAX, .align = 1, .home_bytes = INT64_MAX};

static int64_t part_first(int64_t n, int32_t p) { return n * p / EPX_FLOW_PARTS; }

static uint64_t *word_at(const epx_k_ragged_flow_t *args, int32_t rank, int32_t part, int32_t sender)
{
    return (uint64_t *)(void *)((char *)args->dst[rank] + args->words) + (int64_t)part * args->ranks + sender;
}

static uint64_t epoch_of(const epx_k_begun_t *call)
{
    epx_lane_begin_of_t of = {.words = (epx_lane_words_t *)(uintptr_t)call->lane,
                              .head = call->head,
                              .generation = call->generation};
    return (call->lane != NULL ? epx_host_lane_base(&of) : 0) + call->add;
}

static const char *row_of_x(const epx_k_ragged_flow_t *args, int64_t entry)
{
    return (const char *)args->x + args->index[entry] * args->row_bytes;
}

/* F2. */
static void send_part(const epx_k_ragged_flow_t *args, int32_t part, uint64_t epoch)
{
    uint32_t *units = &args->counters->sent[part];
    for (int32_t q = 0; q < args->ranks; q++) {
        const epx_run_t *run = &args->runs[q];
        for (int64_t i = part_first(run->rows, part); q != args->rank && i < part_first(run->rows, part + 1);
             i++, ++*units)
            memcpy((char *)args->dst[q] + args->rows + (run->row + i) * args->row_bytes,
                   row_of_x(args, run->first + i), (size_t)args->row_bytes);
    }
    args->counters->done[part] += *units;
    for (int32_t q = 0; q<args->ranks && * units> 0; q++)
        if (q != args->rank)
            __atomic_store_n(word_at(args, q, part, args->rank), epoch, __ATOMIC_RELEASE);
}

static void put_row(const epx_k_places_t *to, const int32_t *list, int64_t first, int32_t count,
                    const char *from)
{
    for (int64_t x = first; x < first + count; x++)
        memcpy((char *)to->dst + list[x] * to->stride, from, (size_t)to->stride);
}

static void place_own(const epx_k_ragged_flow_t *args)
{
    const epx_run_t *run = &args->runs[args->rank];
    int64_t shift = *args->own.start - *args->own.base;
    for (int64_t i = run->first; i < run->first + run->rows; i++, args->counters->own[0]++)
        put_row(&args->own, args->own.list, args->own.first[i] + shift, args->own.count[i],
                row_of_x(args, i));
}

/* F3. */
static int has_come(const epx_k_ragged_flow_t *args, int32_t part, uint64_t epoch)
{
    int here = 1;
    for (int32_t s = 0; s < args->ranks; s++)
        here = here && (s == args->rank ||
                        __atomic_load_n(word_at(args, args->rank, part, s), __ATOMIC_ACQUIRE) == epoch);
    return here;
}

/* used[part]: 1: it has been. */
static void use_part(const epx_k_ragged_flow_t *args, int32_t part)
{
    for (int32_t s = 0; s < args->ranks && args->counters->used[part] == 0; s++) {
        int64_t n = s != args->rank ? args->count[s] : 0;
        for (int64_t g = args->start[s] + part_first(n, part); g < args->start[s] + part_first(n, part + 1);
             g++)
            put_row(&args->own, args->list, args->first[g], args->places[g],
                    (const char *)args->src + g * args->row_bytes);
    }
    args->counters->used[part] = 1;
}

epx_status_t epx_host_ragged_flow(const epx_k_ragged_flow_t *args, epx_stream_t stream)
{
    (void)stream;
    epx_host_begun(&args->call);
    if (args->gate != NULL && __atomic_load_n(args->gate, __ATOMIC_ACQUIRE) != 1)
        return EPX_OK;
    uint64_t epoch = epoch_of(&args->call);
    for (int32_t p = 0; p < EPX_FLOW_PARTS && !args->here; p++)
        send_part(args, p, epoch);
    if (!args->here)
        place_own(args);
    for (int32_t p = 0; p < EPX_FLOW_PARTS && (args->here || has_come(args, p, epoch)); p++)
        use_part(args, p);
    return EPX_OK;
}
