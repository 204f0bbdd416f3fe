/* What kernels store at peers. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include <epx/kernels_pooled_wave.h>
#include <epx/kernels_ragged.h>

#include "device/host/host.h"
#include "sim/internal.h"

/* Cuts a range into pieces, so that a row may arrive in parts. */
void sim_send_range(sim_fabric_t *fabric, int to, size_t offset, const uint8_t *from, size_t bytes)
{
    while (bytes > 0) {
        size_t now = sim_dice(3) != 0 ? bytes : 1 + (size_t)sim_dice(bytes);
        message_t *message = sim_send(fabric, to, DATA, now);
        message->offset = offset;
        memcpy(message->data, from, now);
        offset += now;
        from += now;
        bytes -= now;
    }
}

/* What any kernel has changed in the windows since the last look. */
void sim_flush(sim_fabric_t *fabric)
{
    for (int p = 0; p < fabric->base.ranks; p++) {
        uint8_t *window = fabric->window[p], *shadow = fabric->shadow[p];
        if (window == NULL || memcmp(window, shadow, fabric->segment_bytes) == 0)
            continue;
        for (size_t i = 0; i < fabric->segment_bytes;) {
            size_t n = i;
            while (n < fabric->segment_bytes && window[n] != shadow[n])
                n++;
            if (n > i)
                sim_send_range(fabric, p, i, window + i, n - i);
            i = n + 1;
        }
        memcpy(shadow, window, fabric->segment_bytes);
    }
}

/* What a load from a peer's segment would give now: the segment, and this rank's own stores that are on their
 * way. A kernel may add to what it finds there. */
static void refresh(sim_fabric_t *fabric)
{
    sim_flush(fabric);
    for (int p = 0; p < fabric->base.ranks; p++)
        if (fabric->window[p] != NULL && fabric->hub->member[p]->segment != NULL)
            memcpy(fabric->window[p], fabric->hub->member[p]->segment, fabric->segment_bytes);
    for (const message_t *m = fabric->hub->first; m != NULL; m = m->next)
        if (m->kind == DATA && m->from == fabric->base.rank)
            memcpy(fabric->window[m->to] + m->offset, m->data, m->bytes);
    for (int p = 0; p < fabric->base.ranks; p++)
        if (fabric->window[p] != NULL)
            memcpy(fabric->shadow[p], fabric->window[p], fabric->segment_bytes);
}

static sim_fabric_t *fabric_of(void *const *table)
{
    sim_fabric_t *fabric = sim_fabrics;
    while (fabric != NULL && fabric->table != table)
        fabric = fabric->next;
    return fabric;
}

/* A kernel that stores at peers, one of these. */
typedef struct store {
    const epx_k_push_t *push;
    const epx_k_ragged_return_t *back;
    const epx_k_pooled_pack_t *pack;
} store_t;

static epx_status_t run_store(const store_t *store, void *const *table)
{
    if (store->push != NULL) {
        epx_k_push_t args = *store->push;
        args.dst = table;
        return epx_device_host.kernels->push(&args, NULL);
    }
    if (store->pack != NULL) {
        epx_k_pooled_pack_t args = *store->pack;
        args.dst = table;
        return epx_device_host.kernels->pooled_pack(&args, NULL);
    }
    epx_k_ragged_return_t args = *store->back;
    args.dst = table;
    return epx_device_host.kernels->ragged_return(&args, NULL);
}

/*
 * Which bytes it writes: it runs over zeros and over ones, and what is the same behind both has been written.
 * (A place may be written by several senders in turn, so a comparison with what this rank wrote there last
 * would not do.)
 */
static epx_status_t run_into_windows(void *const *table, const store_t *store)
{
    sim_fabric_t *fabric = fabric_of(table);
    sim_turn();
    if (fabric == NULL)
        return run_store(store, table);
    int ranks = fabric->base.ranks, me = fabric->base.rank;
    size_t bytes = fabric->segment_bytes;
    uint8_t *room = sim_take((size_t)ranks * 2, bytes);
    void **into = sim_take((size_t)ranks, sizeof(*into));
    epx_status_t status = EPX_OK;
    for (int i = 0; i < 2; i++) {
        memset(room + (size_t)(i * ranks) * bytes, i ? 0xff : 0, (size_t)ranks * bytes);
        for (int p = 0; p < ranks; p++)
            into[p] = p == me ? fabric->segment : room + (size_t)(i * ranks + p) * bytes;
        status = run_store(store, into);
    }
    for (int p = 0; p < ranks; p++) {
        const uint8_t *zero = room + (size_t)p * bytes, *one = room + (size_t)(ranks + p) * bytes;
        for (size_t i = 0; p != me && i < bytes;) {
            size_t n = i;
            while (n < bytes && zero[n] == one[n])
                n++;
            if (n > i) {
                sim_send_range(fabric, p, i, zero + i, n - i);
                memcpy(fabric->window[p] + i, zero + i, n - i);
                memcpy(fabric->shadow[p] + i, zero + i, n - i);
            }
            i = n + 1;
        }
    }
    free(into);
    free(room);
    return status;
}

static epx_status_t sim_push(const epx_k_push_t *args, epx_stream_t stream)
{
    epx_status_t status = EPX_OK;
    (void)stream;
    for (; args != NULL && status == EPX_OK; args = args->more) {
        epx_k_push_t one = *args;
        one.more = NULL;
        status = run_into_windows(one.dst, &(store_t){.push = &one});
    }
    return status;
}

static epx_status_t sim_return(const epx_k_ragged_return_t *args, epx_stream_t stream)
{
    (void)stream;
    return run_into_windows(args->dst, &(store_t){.back = args});
}

/* Its headers go to peers. */
static epx_status_t sim_pack(const epx_k_pooled_pack_t *args, epx_stream_t stream)
{
    if (args->dst == NULL)
        return epx_device_host.kernels->pooled_pack(args, stream);
    return run_into_windows(args->dst, &(store_t){.pack = args});
}

/* Whose window is at this address; NULL: nobody's. */
static sim_fabric_t *window_at(const void *at)
{
    for (sim_fabric_t *f = sim_fabrics; f != NULL; f = f->next)
        for (int p = 0; p < f->base.ranks; p++)
            if (f->window[p] != NULL && (const uint8_t *)at >= f->window[p] &&
                (const uint8_t *)at < f->window[p] + f->segment_bytes)
                return f;
    return NULL;
}

/* A kernel that writes to `to` and may add to what is there: run in between. */
static sim_fabric_t *open_window(const void *to)
{
    sim_fabric_t *fabric = window_at(to);
    sim_turn();
    if (fabric != NULL)
        refresh(fabric);
    return fabric;
}

static void close_window(sim_fabric_t *fabric)
{
    if (fabric != NULL)
        sim_flush(fabric);
}

static epx_status_t sim_combine(const epx_k_combine_t *args, epx_stream_t stream)
{
    sim_fabric_t *fabric = open_window(args->out);
    epx_status_t status = epx_device_host.kernels->combine(args, stream);
    close_window(fabric);
    return status;
}

static epx_status_t sim_take_dots(const epx_k_take_dots_t *args, epx_stream_t stream)
{
    sim_fabric_t *fabric = open_window(args->dweight);
    epx_status_t status = epx_device_host.kernels->take_dots(args, stream);
    close_window(fabric);
    return status;
}

static epx_status_t sim_checksum(const epx_k_checksum_t *args, epx_stream_t stream)
{
    sim_fabric_t *fabric = open_window(args->sum);
    epx_status_t status = epx_device_host.kernels->checksum(args, stream);
    close_window(fabric);
    return status;
}

/* What is in new memory must not matter; where it did, a seed would still be one run. */
static void *sim_allocate(size_t bytes, size_t alignment)
{
    void *memory = epx_device_host.allocate(bytes, alignment);
    if (memory != NULL)
        memset(memory, 0xa5, bytes);
    return memory;
}

const epx_device_ops_t *sim_device(void)
{
    static epx_device_ops_t device;
    static epx_kernels_t kernels;
    kernels = *epx_device_host.kernels;
    kernels.push = sim_push;
    kernels.ragged_return = sim_return;
    kernels.pooled_pack = sim_pack;
    kernels.combine = sim_combine;
    kernels.take_dots = sim_take_dots;
    kernels.checksum = sim_checksum;
    device = epx_device_host;
    device.kernels = &kernels;
    device.allocate = sim_allocate;
    return &device;
}
