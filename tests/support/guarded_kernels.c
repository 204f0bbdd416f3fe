/*
 * The host's kernels on the guarded device: each call copies its arguments, host structs included, into the
 * stream; there their pointers are translated. SPDX-License-Identifier: Apache-2.0
 */
#include "support/guarded_kernels.h"

#include <stdlib.h>
#include <string.h>

#include <epx/kernels_words.h>

#include "kernels/host/table.h"
#include "support/guarded_open.h"

/* ---- common kernels ----------------------------------------------------------------------------------------- */

static void run_read_ids(void *payload)
{
    epx_k_read_ids_t *a = payload;
    a->ids = at(a->ids);
    a->tokens_device = at(a->tokens_device);
    a->weights = at(a->weights);
    a->weights_copy = at(a->weights_copy);
    a->expert = at(a->expert);
    a->ordinal = at(a->ordinal);
    a->counts = at(a->counts);
    a->skipped = at(a->skipped);
    a->notice = at(a->notice);
    must(epx_host_read_ids(a, NULL));
}

static epx_status_t lane(const struct epx_k_lane *args, epx_stream_t stream);

static epx_status_t read_ids(const epx_k_read_ids_t *args, epx_stream_t stream)
{
    epx_k_read_ids_t alone = *args;
    epx_status_t status = args->lane != NULL ? lane(args->lane, stream) : EPX_OK;
    alone.lane = NULL;
    return status == EPX_OK ? guarded_enqueue(stream, run_read_ids, &alone, sizeof(alone)) : status;
}

/* Pushes made together. */
enum { PUSHES_MAX = 8 };
typedef struct pushes {
    epx_k_push_t one[PUSHES_MAX];
    int32_t count;
} pushes_t;

static void run_push(void *payload)
{
    pushes_t *set = payload;
    for (int32_t i = 0; i < set->count; i++) {
        epx_k_push_t *a = &set->one[i];
        a->gate = at(a->gate);
        a->begun.lane = at(a->begun.lane);
        a->begun.head = at(a->begun.head);
        a->runs = at(a->runs);
        a->index = at(a->index);
        for (int32_t p = 0; p < a->parts; p++)
            a->part[p].src = at(a->part[p].src);
        a->turns = at(a->turns);
        open_places(&a->own);
        a->dst = open_table(a->dst, a->runs, a->run_count);
        a->more = i + 1 < set->count ? a + 1 : NULL;
    }
    must(epx_host_push(set->one, NULL));
    for (int32_t i = 0; i < set->count; i++)
        free((void *)(size_t)set->one[i].dst);
}

static epx_status_t push(const epx_k_push_t *args, epx_stream_t stream)
{
    pushes_t set = {.count = 0};
    for (; args != NULL; args = args->more) {
        if (set.count == PUSHES_MAX)
            abort();
        set.one[set.count++] = *args;
    }
    return guarded_enqueue(stream, run_push, &set, sizeof(set));
}

static void run_gather(void *payload)
{
    epx_k_gather_t *a = payload;
    open_rows(&a->rows);
    a->index = at(a->index);
    a->src = at(a->src);
    a->dst = at(a->dst);
    a->own = at(a->own);
    a->own_src = at(a->own_src);
    must(epx_host_gather(a, NULL));
}

static epx_status_t gather(const epx_k_gather_t *args, epx_stream_t stream)
{
    return guarded_enqueue(stream, run_gather, args, sizeof(*args));
}

static void run_scatter(void *payload)
{
    epx_k_scatter_t *a = payload;
    open_rows(&a->rows);
    a->first = at(a->first);
    a->count = at(a->count);
    a->list = at(a->list);
    a->src = at(a->src);
    a->dst = at(a->dst);
    must(epx_host_scatter(a, NULL));
}

static epx_status_t scatter(const epx_k_scatter_t *args, epx_stream_t stream)
{
    return guarded_enqueue(stream, run_scatter, args, sizeof(*args));
}

static void open_sums(epx_k_own_sums_t *sums)
{
    sums->y = at(sums->y);
    sums->first = at(sums->first);
    sums->count = at(sums->count);
    sums->list = at(sums->list);
    sums->weights = at(sums->weights);
    sums->home_start = at(sums->home_start);
    sums->wire_start = at(sums->wire_start);
}

static void run_combine(void *payload)
{
    epx_k_combine_t *a = payload;
    a->tokens_device = at(a->tokens_device);
    a->weights = at(a->weights);
    a->place = at(a->place);
    a->rows = at(a->rows);
    a->kept = at(a->kept);
    a->acc = at(a->acc);
    a->out = at(a->out);
    a->own = at(a->own);
    a->own_rows = at(a->own_rows);
    open_sums(&a->sums);
    must(epx_host_combine(a, NULL));
    /* Behind the last wave the sums are nobody's. */
    int64_t tokens = a->tokens_device != NULL ? *a->tokens_device : a->tokens;
    if (a->last && a->acc != NULL && (void *)a->acc != a->out)
        memset(a->acc, 0xff, (size_t)(tokens * a->width) * sizeof(float));
}

static epx_status_t combine(const epx_k_combine_t *args, epx_stream_t stream)
{
    return guarded_enqueue(stream, run_combine, args, sizeof(*args));
}

static void run_reduce(void *payload)
{
    epx_k_reduce_t *a = payload;
    a->first = at(a->first);
    a->count = at(a->count);
    a->n_device = at(a->n_device);
    a->list = at(a->list);
    a->weights = at(a->weights);
    a->rows = at(a->rows);
    a->out = at(a->out);
    must(epx_host_reduce(a, NULL));
}

static epx_status_t reduce(const epx_k_reduce_t *args, epx_stream_t stream)
{
    return guarded_enqueue(stream, run_reduce, args, sizeof(*args));
}

static void run_take_dots(void *payload)
{
    epx_k_take_dots_t *a = payload;
    a->tokens_device = at(a->tokens_device);
    a->place = at(a->place);
    a->dots = at(a->dots);
    a->kept = at(a->kept);
    a->dweight = at(a->dweight);
    must(epx_host_take_dots(a, NULL));
}

static epx_status_t take_dots(const epx_k_take_dots_t *args, epx_stream_t stream)
{
    return guarded_enqueue(stream, run_take_dots, args, sizeof(*args));
}

static void run_scale_dot(void *payload)
{
    epx_k_scale_dot_t *a = payload;
    open_rows(&a->rows);
    a->index = at(a->index);
    a->weight = at(a->weight);
    a->dout = at(a->dout);
    a->y = at(a->y);
    a->dy = at(a->dy);
    a->dot = at(a->dot);
    must(epx_host_scale_dot(a, NULL));
}

static epx_status_t scale_dot(const epx_k_scale_dot_t *args, epx_stream_t stream)
{
    return guarded_enqueue(stream, run_scale_dot, args, sizeof(*args));
}

static void run_poison(void *payload)
{
    epx_k_poison_t *a = payload;
    a->rows = at(a->rows);
    must(epx_host_poison(a, NULL));
}

static epx_status_t poison_rows(const epx_k_poison_t *args, epx_stream_t stream)
{
    return guarded_enqueue(stream, run_poison, args, sizeof(*args));
}

static void run_find_poison(void *payload)
{
    epx_k_find_poison_t *a = payload;
    open_rows(&a->rows);
    a->index = at(a->index);
    a->src = at(a->src);
    a->bad = at(a->bad);
    must(epx_host_find_poison(a, NULL));
}

static epx_status_t find_poison(const epx_k_find_poison_t *args, epx_stream_t stream)
{
    return guarded_enqueue(stream, run_find_poison, args, sizeof(*args));
}

static void run_checksum(void *payload)
{
    epx_k_checksum_t *a = payload;
    a->src = at(a->src);
    a->sum = at(a->sum);
    must(epx_host_checksum(a, NULL));
}

static epx_status_t checksum(const epx_k_checksum_t *args, epx_stream_t stream)
{
    return guarded_enqueue(stream, run_checksum, args, sizeof(*args));
}

static void run_verify(void *payload)
{
    epx_k_verify_t *a = payload;
    open_rows(&a->rows);
    a->index = at(a->index);
    a->src = at(a->src);
    a->sum = at(a->sum);
    a->bad = at(a->bad);
    must(epx_host_verify(a, NULL));
}

static epx_status_t verify(const epx_k_verify_t *args, epx_stream_t stream)
{
    return guarded_enqueue(stream, run_verify, args, sizeof(*args));
}

/* ---- words -------------------------------------------------------------------------------------------------- */

static void run_word_post(void *payload)
{
    epx_k_word_post_t *a = payload;
    open_post(a);
    must(epx_host_word_post(a, NULL));
    close_words(&a->words);
}

static epx_status_t word_post(const struct epx_k_word_post *args, epx_stream_t stream)
{
    return guarded_enqueue(stream, run_word_post, args, sizeof(*args));
}

static void run_word_wait(void *payload)
{
    epx_k_word_wait_t *a = payload;
    a->beside.tell_from = at(a->beside.tell_from);
    a->beside.words = at(a->beside.words);
    a->beside.head = at(a->beside.head);
    a->epoch.base = at(a->epoch.base);
    a->gate = at(a->gate);
    for (int32_t w = 0; w < a->watches; w++)
        a->watch[w].epoch.base = at(a->watch[w].epoch.base);
    open_verdict(&a->verdict);
    open_words(&a->words);
    must(epx_host_word_wait(a, NULL));
    close_words(&a->words);
}

static epx_status_t word_wait(const struct epx_k_word_wait *args, epx_stream_t stream)
{
    return guarded_enqueue(stream, run_word_wait, args, sizeof(*args));
}

static void run_word_exchange(void *payload)
{
    epx_k_word_exchange_t *a = payload;
    a->step = at(a->step);
    a->done = at(a->done);
    a->send = at(a->send);
    a->receive = at(a->receive);
    open_words(&a->words);
    must(epx_host_word_exchange(a, NULL));
    close_words(&a->words);
}

static epx_status_t word_exchange(const struct epx_k_word_exchange *args, epx_stream_t stream)
{
    return guarded_enqueue(stream, run_word_exchange, args, sizeof(*args));
}

static void run_word_abort(void *payload)
{
    epx_k_word_abort_t *a = payload;
    open_words(&a->words);
    must(epx_host_word_abort(a, NULL));
    close_words(&a->words);
}

static void run_lane(void *payload)
{
    epx_k_lane_t *a = payload;
    a->words = at(a->words);
    a->head = at(a->head);
    must(epx_host_lane(a, NULL));
}

static epx_status_t lane(const struct epx_k_lane *args, epx_stream_t stream)
{
    return guarded_enqueue(stream, run_lane, args, sizeof(*args));
}

static epx_status_t word_abort(const struct epx_k_word_abort *args, epx_stream_t stream)
{
    return guarded_enqueue(stream, run_word_abort, args, sizeof(*args));
}

static void run_stamp(void *payload)
{
    epx_k_stamp_t *a = payload;
    a->value.base = at(a->value.base);
    a->count = at(a->count);
    must(epx_host_stamp(a, NULL));
}

static void run_spin(void *payload) { must(epx_host_spin(payload, NULL)); }

static epx_status_t spin(const struct epx_k_spin *args, epx_stream_t stream)
{
    return guarded_enqueue(stream, run_spin, args, sizeof(*args));
}

static epx_status_t stamp(const struct epx_k_stamp *args, epx_stream_t stream)
{
    return guarded_enqueue(stream, run_stamp, args, sizeof(*args));
}

static const epx_flow_limits_t flow_limits = {
    .bytes = 0, .align = 1, .home_bytes = 0}; /* wherever they may */

const epx_kernels_t guarded_kernels = {
    .read_ids = read_ids,
    .push = push,
    .gather = gather,
    .scatter = scatter,
    .combine = combine,
    .reduce = reduce,
    .take_dots = take_dots,
    .scale_dot = scale_dot,
    .poison = poison_rows,
    .find_poison = find_poison,
    .checksum = checksum,
    .verify = verify,
    .pooled_gate1 = guarded_pooled_gate1,
    .pooled_gate2 = guarded_pooled_gate2,
    .pooled_extra = guarded_pooled_extra,
    .pooled_pack = guarded_pooled_pack,
    .ragged_layout = guarded_ragged_layout,
    .ragged_return = guarded_ragged_return,
    .ring_layout = guarded_ring_layout,
    .ring_block = guarded_ring_block,
    .word_post = word_post,
    .word_wait = word_wait,
    .word_exchange = word_exchange,
    .word_abort = word_abort,
    .stamp = stamp,
    .spin = spin,
    .lane = lane,
    .ragged_flow = guarded_ragged_flow,
    .flow_limits = &flow_limits,
    .ragged_home = guarded_ragged_home,
    .sums_soon = epx_host_sums_soon,
};
