/*
 * The host's kernels on the guarded device: each call copies its arguments, host structs included, into the
 * stream; there their pointers are translated. SPDX-License-Identifier: Apache-2.0
 */
#include "support/guarded_kernels.h"

#include <stdlib.h>
#include <string.h>

#include <epx/kernels_pooled_wave.h>
#include <epx/kernels_ragged.h>
#include <epx/kernels_ring.h>
#include <epx/kernels_words.h>

#include "kernels/host/table.h"

static void *at(const void *p) { return guarded_open(p); }

/* A kernel that fails has no way to say so: none of the host's does. */
static void must(epx_status_t status)
{
    if (status != EPX_OK)
        abort();
}

static void open_rows(epx_k_rows_t *rows)
{
    rows->start = at(rows->start);
    rows->count = at(rows->count);
}

static void open_owners(epx_owners_t *owners)
{
    owners->owner = at(owners->owner);
    owners->local = at(owners->local);
    owners->first = at(owners->first);
    owners->expert = at(owners->expert);
}

static void open_verdict(epx_k_verdict_t *verdict) { verdict->head = at(verdict->head); }

/* A table of peers' addresses as kernels may use them. The caller's to free. */
static void **open_peers(void *const *table, int32_t peers)
{
    void *const *closed = at(table);
    void **open = calloc((size_t)peers + 1, sizeof(*open));
    if (open == NULL)
        abort();
    for (int32_t p = 0; p < peers; p++)
        open[p] = at(closed[p]);
    return open;
}

/* The same, as long as the runs need it. */
static void *const *open_table(void *const *table, const epx_run_t *runs, int32_t run_count)
{
    int32_t peers = 0;
    for (int32_t i = 0; i < run_count; i++)
        if (runs[i].rows > 0 && runs[i].peer >= peers)
            peers = runs[i].peer + 1;
    return open_peers(table, peers);
}

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

/* The blocks as kernels may use them; the table is the caller's to free. */
static void open_words(epx_words_t *words)
{
    void *const *closed = at(words->peer);
    void **open = calloc((size_t)words->ranks, sizeof(*open));
    if (open == NULL)
        abort();
    for (int32_t p = 0; p < words->ranks; p++)
        open[p] = at(closed[p]);
    words->peer = open;
}

static void close_words(epx_words_t *words) { free((void *)(size_t)words->peer); }

static void open_post(epx_k_word_post_t *post)
{
    post->begin.words = at(post->begin.words);
    post->begin.head = at(post->begin.head);
    post->epoch.base = at(post->epoch.base);
    post->gate = at(post->gate);
    open_words(&post->words);
}

/* Pushes made together, and what they post. */
enum { PUSHES_MAX = 8 };
typedef struct pushes {
    epx_k_push_t one[PUSHES_MAX];
    int32_t count;
    int32_t posts;
    epx_k_signal_t signal;
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
        a->dst = open_table(a->dst, a->runs, a->run_count);
        a->more = i + 1 < set->count ? a + 1 : NULL;
        a->signal = i == 0 && set->posts ? &set->signal : NULL;
    }
    if (set->posts)
        open_post(&set->signal.post);
    must(epx_host_push(set->one, NULL));
    if (set->posts)
        close_words(&set->signal.post.words);
    for (int32_t i = 0; i < set->count; i++)
        free((void *)(size_t)set->one[i].dst);
}

static epx_status_t push(const epx_k_push_t *args, epx_stream_t stream)
{
    pushes_t set = {.posts = args->signal != NULL};
    if (set.posts)
        set.signal = *args->signal;
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
    a->only.token = at(a->only.token);
    a->only.start = at(a->only.start);
    a->only.count = at(a->only.count);
    must(epx_host_combine(a, NULL));
    /* Behind the last wave the sums are nobody's. */
    int64_t tokens = a->tokens_device != NULL ? *a->tokens_device : a->tokens;
    if (a->last && a->acc != NULL && (void *)a->acc != a->out && a->only.part + 1 >= a->only.parts)
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

/* ---- pooled_wave -------------------------------------------------------------------------------------------- */

static void open_layout(epx_k_pooled_layout_t *layout)
{
    layout->owner = at(layout->owner);
    layout->local = at(layout->local);
    layout->first = at(layout->first);
    layout->expert = at(layout->expert);
    layout->base = at(layout->base);
    layout->before = at(layout->before);
}

typedef struct gate1 {
    epx_k_pooled_gate1_t a;
    epx_k_pooled_layout_t layout;
} gate1_t;

static void run_gate1(void *payload)
{
    gate1_t *call = payload;
    epx_k_pooled_gate1_t *a = &call->a;
    open_layout(&call->layout);
    a->layout = &call->layout;
    a->notice = at(a->notice);
    a->expert = at(a->expert);
    a->place = at(a->place);
    a->slot = at(a->slot);
    a->gate = at(a->gate);
    a->valid = at(a->valid);
    open_verdict(&a->verdict);
    must(epx_host_pooled_gate1(a, NULL));
}

static epx_status_t pooled_gate1(const struct epx_k_pooled_gate1 *args, epx_stream_t stream)
{
    gate1_t call = {.a = *args, .layout = *args->layout};
    return guarded_enqueue(stream, run_gate1, &call, sizeof(call));
}

typedef struct gate2 {
    epx_k_pooled_gate2_t a;
    epx_k_pooled_layout_t layout;
} gate2_t;

static void run_gate2(void *payload)
{
    gate2_t *call = payload;
    epx_k_pooled_gate2_t *a = &call->a;
    open_layout(&call->layout);
    a->layout = &call->layout;
    a->headers = at(a->headers);
    a->tag = at(a->tag);
    a->pointer = at(a->pointer);
    a->to = at(a->to);
    a->from = at(a->from);
    a->kept = at(a->kept);
    a->start = at(a->start);
    a->count = at(a->count);
    a->confirmed = at(a->confirmed);
    a->bad = at(a->bad);
    open_verdict(&a->verdict);
    must(epx_host_pooled_gate2(a, NULL));
}

static epx_status_t pooled_gate2(const struct epx_k_pooled_gate2 *args, epx_stream_t stream)
{
    gate2_t call = {.a = *args, .layout = *args->layout};
    return guarded_enqueue(stream, run_gate2, &call, sizeof(call));
}

typedef struct extra {
    epx_k_pooled_extra_t a;
    epx_k_pooled_layout_t layout;
} extra_t;

static void run_extra(void *payload)
{
    extra_t *call = payload;
    epx_k_pooled_extra_t *a = &call->a;
    open_layout(&call->layout);
    a->layout = &call->layout;
    a->counts = at(a->counts);
    a->remaining = at(a->remaining);
    a->waves = at(a->waves);
    a->valid = at(a->valid);
    a->routed = at(a->routed);
    a->tokens_device = at(a->tokens_device);
    a->expert = at(a->expert);
    a->ordinal = at(a->ordinal);
    a->move = at(a->move);
    a->place = at(a->place);
    must(epx_host_pooled_extra(a, NULL));
}

static epx_status_t pooled_extra(const struct epx_k_pooled_extra *args, epx_stream_t stream)
{
    extra_t call = {.a = *args, .layout = *args->layout};
    return guarded_enqueue(stream, run_extra, &call, sizeof(call));
}

typedef struct pack {
    epx_k_pooled_pack_t a;
    epx_k_pooled_layout_t layout;
} pack_t;

static void run_pack(void *payload)
{
    pack_t *call = payload;
    epx_k_pooled_pack_t *a = &call->a;
    open_layout(&call->layout);
    a->layout = &call->layout;
    a->tokens_device = at(a->tokens_device);
    a->expert = at(a->expert);
    a->place = at(a->place);
    a->kept = at(a->kept);
    a->list = at(a->list);
    a->valid = at(a->valid);
    a->status = at(a->status);
    a->start = at(a->start);
    a->count = at(a->count);
    void **dst = NULL;
    if (a->dst != NULL)
        a->dst = dst = open_peers(a->dst, call->layout.ranks);
    must(epx_host_pooled_pack(a, NULL));
    free(dst);
}

static epx_status_t pooled_pack(const struct epx_k_pooled_pack *args, epx_stream_t stream)
{
    pack_t call = {.a = *args, .layout = *args->layout};
    return guarded_enqueue(stream, run_pack, &call, sizeof(call));
}

/* ---- ragged, ring ------------------------------------------------------------------------------------------- */

typedef struct ragged {
    epx_k_ragged_layout_t a;
    epx_shape_t shape;
    epx_ragged_order_t order;
} ragged_t;

static void open_ragged(ragged_t *call)
{
    epx_ragged_order_t *order = &call->order;
    open_owners(&call->shape.real);
    open_owners(&call->shape.virt);
    order->expert = at(order->expert);
    order->first = at(order->first);
    order->wave = at(order->wave);
    order->at = at(order->at);
    call->a.shape = &call->shape;
    call->a.order = order;
}

static void run_ragged_layout(void *payload)
{
    ragged_t *call = payload;
    epx_k_ragged_layout_t *a = &call->a;
    open_ragged(call);
    a->notices = at(a->notices);
    a->expert = at(a->expert);
    a->ordinal = at(a->ordinal);
    a->weights = at(a->weights);
    a->counts = at(a->counts);
    a->accepted = at(a->accepted);
    a->scratch = at(a->scratch);
    a->first_row = at(a->first_row);
    a->last_token = at(a->last_token);
    a->list_end = at(a->list_end);
    a->base = at(a->base);
    open_verdict(&a->verdict);
    a->wave = at(a->wave);
    a->place = at(a->place);
    a->send = at(a->send);
    a->send_runs = at(a->send_runs);
    a->return_runs = at(a->return_runs);
    a->start = at(a->start);
    a->count = at(a->count);
    a->home_start = at(a->home_start);
    a->home_count = at(a->home_count);
    a->wire_token = at(a->wire_token);
    a->wire_first = at(a->wire_first);
    a->wire_count = at(a->wire_count);
    a->list_place = at(a->list_place);
    a->list_weight = at(a->list_weight);
    a->wire_row = at(a->wire_row);
    a->home = at(a->home);
    a->wire_runs = at(a->wire_runs);
    a->list_runs = at(a->list_runs);
    a->head_runs = at(a->head_runs);
    a->back_runs = at(a->back_runs);
    a->wire_start = at(a->wire_start);
    a->wire_room = at(a->wire_room);
    must(epx_host_ragged_layout(a, NULL));
}

static epx_status_t ragged_layout(const struct epx_k_ragged_layout *args, epx_stream_t stream)
{
    ragged_t call = {.a = *args, .shape = *args->shape, .order = *args->order};
    return guarded_enqueue(stream, run_ragged_layout, &call, sizeof(call));
}

typedef struct returned {
    epx_k_ragged_return_t a;
    epx_k_signal_t signal;
} returned_t;

static void run_ragged_return(void *payload)
{
    returned_t *call = payload;
    epx_k_ragged_return_t *a = &call->a;
    a->runs = at(a->runs);
    a->rows = at(a->rows);
    a->first = at(a->first);
    a->count = at(a->count);
    a->list = at(a->list);
    a->weights = at(a->weights);
    a->src = at(a->src);
    a->dst = open_table(a->dst, a->runs, a->run_count);
    if (a->signal != NULL) {
        a->signal = &call->signal;
        open_post(&call->signal.post);
    }
    must(epx_host_ragged_return(a, NULL));
    if (a->signal != NULL)
        close_words(&call->signal.post.words);
    free((void *)(size_t)a->dst);
}

static epx_status_t ragged_return(const struct epx_k_ragged_return *args, epx_stream_t stream)
{
    returned_t call = {.a = *args};
    if (args->signal != NULL)
        call.signal = *args->signal;
    return guarded_enqueue(stream, run_ragged_return, &call, sizeof(call));
}

typedef struct ring {
    epx_k_ring_layout_t a;
    epx_shape_t shape;
} ring_t;

static void run_ring_layout(void *payload)
{
    ring_t *call = payload;
    epx_k_ring_layout_t *a = &call->a;
    open_owners(&call->shape.real);
    open_owners(&call->shape.virt);
    a->shape = &call->shape;
    a->notices = at(a->notices);
    a->counts = at(a->counts);
    a->accepted = at(a->accepted);
    a->seats = at(a->seats);
    a->ordinal = at(a->ordinal);
    a->kept = at(a->kept);
    a->block_tokens = at(a->block_tokens);
    a->block_runs = at(a->block_runs);
    open_verdict(&a->verdict);
    must(epx_host_ring_layout(a, NULL));
}

static epx_status_t ring_layout(const struct epx_k_ring_layout *args, epx_stream_t stream)
{
    ring_t call = {.a = *args, .shape = *args->shape};
    return guarded_enqueue(stream, run_ring_layout, &call, sizeof(call));
}

static void run_ring_block(void *payload)
{
    epx_k_ring_block_t *a = payload;
    a->tokens = at(a->tokens);
    a->local = at(a->local);
    a->kept = at(a->kept);
    a->weights = at(a->weights);
    a->start = at(a->start);
    a->count = at(a->count);
    a->place = at(a->place);
    a->token = at(a->token);
    a->place_weight = at(a->place_weight);
    a->row_weight = at(a->row_weight);
    a->origin = at(a->origin);
    a->excess = at(a->excess);
    must(epx_host_ring_block(a, NULL));
}

static epx_status_t ring_block(const struct epx_k_ring_block *args, epx_stream_t stream)
{
    return guarded_enqueue(stream, run_ring_block, args, sizeof(*args));
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
    a->begin.words = at(a->begin.words);
    a->begin.head = at(a->begin.head);
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
    .pooled_gate1 = pooled_gate1,
    .pooled_gate2 = pooled_gate2,
    .pooled_extra = pooled_extra,
    .pooled_pack = pooled_pack,
    .ragged_layout = ragged_layout,
    .ragged_return = ragged_return,
    .ring_layout = ring_layout,
    .ring_block = ring_block,
    .word_post = word_post,
    .word_wait = word_wait,
    .word_exchange = word_exchange,
    .word_abort = word_abort,
    .stamp = stamp,
    .spin = spin,
    .lane = lane,
};
