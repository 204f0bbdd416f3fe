/* The transports' own kernels on the guarded device. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include <epx/kernels_pooled_wave.h>
#include <epx/kernels_ragged.h>
#include <epx/kernels_ring.h>

#include "kernels/host/table.h"
#include "support/guarded_open.h"

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

epx_status_t guarded_pooled_gate1(const struct epx_k_pooled_gate1 *args, epx_stream_t stream)
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

epx_status_t guarded_pooled_gate2(const struct epx_k_pooled_gate2 *args, epx_stream_t stream)
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

epx_status_t guarded_pooled_extra(const struct epx_k_pooled_extra *args, epx_stream_t stream)
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

epx_status_t guarded_pooled_pack(const struct epx_k_pooled_pack *args, epx_stream_t stream)
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

epx_status_t guarded_ragged_layout(const struct epx_k_ragged_layout *args, epx_stream_t stream)
{
    ragged_t call = {.a = *args, .shape = *args->shape, .order = *args->order};
    return guarded_enqueue(stream, run_ragged_layout, &call, sizeof(call));
}

static void run_ragged_return(void *payload)
{
    epx_k_ragged_return_t *a = payload;
    a->begun.lane = at(a->begun.lane);
    a->begun.head = at(a->begun.head);
    a->runs = at(a->runs);
    a->rows = at(a->rows);
    a->first = at(a->first);
    a->count = at(a->count);
    a->list = at(a->list);
    a->weights = at(a->weights);
    a->home_start = at(a->home_start);
    a->wire_start = at(a->wire_start);
    a->src = at(a->src);
    a->dst = open_table(a->dst, a->runs, a->run_count);
    must(epx_host_ragged_return(a, NULL));
    free((void *)(size_t)a->dst);
}

epx_status_t guarded_ragged_return(const struct epx_k_ragged_return *args, epx_stream_t stream)
{
    return guarded_enqueue(stream, run_ragged_return, args, sizeof(*args));
}

static void run_ragged_flow(void *payload)
{
    epx_k_ragged_flow_t *a = payload;
    a->runs = at(a->runs);
    a->index = at(a->index);
    a->x = at(a->x);
    open_places(&a->own);
    a->start = at(a->start);
    a->count = at(a->count);
    a->first = at(a->first);
    a->places = at(a->places);
    a->list = at(a->list);
    a->src = at(a->src);
    a->counters = at(a->counters);
    a->gate = at(a->gate);
    a->call.lane = at(a->call.lane);
    a->call.head = at(a->call.head);
    a->dst = open_peers(a->dst, a->ranks);
    must(epx_host_ragged_flow(a, NULL));
    free((void *)(size_t)a->dst);
}

epx_status_t guarded_ragged_flow(const struct epx_k_ragged_flow *args, epx_stream_t stream)
{
    return guarded_enqueue(stream, run_ragged_flow, args, sizeof(*args));
}

static void run_ragged_home(void *payload)
{
    epx_k_ragged_home_t *a = payload;
    a->y = at(a->y);
    a->out = at(a->out);
    a->runs = at(a->runs);
    a->rows = at(a->rows);
    a->first = at(a->first);
    a->count = at(a->count);
    a->list = at(a->list);
    a->weights = at(a->weights);
    a->home_start = at(a->home_start);
    a->home_count = at(a->home_count);
    a->own_base = at(a->own_base);
    a->own_first = at(a->own_first);
    a->own_count = at(a->own_count);
    a->own_list = at(a->own_list);
    a->own_weights = at(a->own_weights);
    a->home = at(a->home);
    a->tokens = at(a->tokens);
    a->used = at(a->used);
    a->gate = at(a->gate);
    a->call.lane = at(a->call.lane);
    a->call.head = at(a->call.head);
    a->dst = open_peers(a->dst, a->ranks);
    must(epx_host_ragged_home(a, NULL));
    free((void *)(size_t)a->dst);
}

epx_status_t guarded_ragged_home(const struct epx_k_ragged_home *args, epx_stream_t stream)
{
    return guarded_enqueue(stream, run_ragged_home, args, sizeof(*args));
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

epx_status_t guarded_ring_layout(const struct epx_k_ring_layout *args, epx_stream_t stream)
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

epx_status_t guarded_ring_block(const struct epx_k_ring_block *args, epx_stream_t stream)
{
    return guarded_enqueue(stream, run_ring_block, args, sizeof(*args));
}
