/* Fabric `local` over a device whose memory the host cannot reach. The protocol is in local.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

#include "base/fail.h"
#include "fabric/local/local.h"

/* Offsets of the parts of a rank's device block. */
typedef struct device_layout {
    int64_t base, runs, segment, box, bytes;
} device_layout_t;

static device_layout_t layout_of(const epx_fabric_config_t *config, int32_t ranks)
{
    device_layout_t l;
    int64_t s = ranks, end = 0, pointer = (int64_t)sizeof(void *);
    l.base = epx_local_take(&end, s * pointer);
    l.runs = epx_local_take(&end, s * (int64_t)sizeof(epx_run_t));
    l.segment = epx_local_take(&end, config->segments_max * s * pointer);
    l.box = epx_local_take(&end, config->exchange_channels * 2 * s * epx_local_box_bytes(config));
    l.bytes = end;
    return l;
}

int64_t epx_local_device_bytes(const epx_fabric_config_t *config, int32_t ranks)
{
    return config->device->host_access ? 0 : layout_of(config, ranks).bytes;
}

static char *part(const local_fabric_t *fabric, int64_t offset)
{
    return (char *)fabric->device_block + offset;
}

/* From so many ranks on it pays. */
enum { JOIN_FROM = 4 };

int64_t epx_local_joins(const epx_fabric_config_t *config, int32_t ranks)
{
    return config->device->host_access || ranks < JOIN_FROM ? 0
                                                            : config->channels + config->exchange_channels;
}

static int open_joins(local_fabric_t *fabric)
{
    const epx_device_ops_t *device = fabric->config.device;
    int64_t joins = epx_local_joins(&fabric->config, fabric->base.ranks);
    if (joins > 0 && device->stream_create(&fabric->side) != EPX_OK)
        return 0;
    for (int64_t c = 0; c < joins; c++)
        if (device->event_create(0, &fabric->all_event[c]) != EPX_OK)
            return 0;
    return 1;
}

static void close_joins(local_fabric_t *fabric)
{
    const epx_device_ops_t *device = fabric->config.device;
    int64_t joins = epx_local_joins(&fabric->config, fabric->base.ranks);
    for (int64_t c = 0; c < joins; c++)
        if (fabric->all_event[c] != NULL)
            device->event_destroy(fabric->all_event[c]);
    if (fabric->side != NULL)
        device->stream_destroy(fabric->side);
}

int epx_local_device_open(local_fabric_t *fabric)
{
    const epx_device_ops_t *device = fabric->config.device;
    fabric->device_bytes = epx_local_device_bytes(&fabric->config, fabric->base.ranks);
    fabric->device_block =
        fabric->allocator.allocate(fabric->allocator.context, (size_t)fabric->device_bytes, 256, 1);
    if (fabric->device_block == NULL)
        return 0;
    for (int32_t c = 0; c < fabric->config.channels; c++)
        if (device->event_create(0, &fabric->event[c]) != EPX_OK)
            return 0;
    for (int32_t c = 0; c < fabric->config.exchange_channels; c++)
        if (device->event_create(0, &fabric->channel[c].event) != EPX_OK)
            return 0;
    return open_joins(fabric);
}

void epx_local_device_close(local_fabric_t *fabric)
{
    const epx_device_ops_t *device = fabric->config.device;
    for (int32_t c = 0; c < fabric->config.channels; c++)
        if (fabric->event[c] != NULL)
            device->event_destroy(fabric->event[c]);
    for (int32_t c = 0; c < fabric->config.exchange_channels; c++)
        if (fabric->channel[c].event != NULL)
            device->event_destroy(fabric->channel[c].event);
    close_joins(fabric);
    if (fabric->device_block != NULL)
        fabric->allocator.release(fabric->allocator.context, fabric->device_block,
                                  (size_t)fabric->device_bytes, 1);
}

/* Copies a small table of the host to the device and sees it there. */
static epx_status_t place(const local_fabric_t *fabric, int64_t offset, const void *table, size_t bytes)
{
    const epx_device_ops_t *device = fabric->config.device;
    epx_status_t status = device->copy(part(fabric, offset), table, bytes, NULL);
    return status == EPX_OK ? device->synchronize(NULL) : status;
}

epx_status_t epx_local_device_link(local_fabric_t *fabric)
{
    device_layout_t l = layout_of(&fabric->config, fabric->base.ranks);
    epx_status_t status = EPX_OK;
    for (int32_t r = 0; r < fabric->base.ranks && status == EPX_OK; r++) {
        epx_run_t run = {.first = 0, .row = fabric->base.rank, .peer = r, .rows = 1};
        status = place(fabric, l.base + r * (int64_t)sizeof(void *), &fabric->peer[r]->device_block,
                       sizeof(void *));
        if (status == EPX_OK)
            status = place(fabric, l.runs + r * (int64_t)sizeof(run), &run, sizeof(run));
    }
    return status;
}

epx_status_t epx_local_device_segment(local_fabric_t *fabric, const local_segment_t *segment,
                                      void *const **table_p)
{
    device_layout_t l = layout_of(&fabric->config, fabric->base.ranks);
    int64_t row = (segment - fabric->segment) * fabric->base.ranks * (int64_t)sizeof(void *);
    *table_p = (void *const *)(void *)part(fabric, l.segment + row);
    return place(fabric, l.segment + row, segment->peer_ptr, (size_t)fabric->base.ranks * sizeof(void *));
}

/* ---- many ranks ------------------------------------------------------------------------------------------------- */

/* One more rank has posted the epoch; 1: it was the last. */
static int is_last(local_fabric_t *fabric, local_join_t *join, uint64_t epoch)
{
    local_hub_t *hub = fabric->hub;
    while (atomic_flag_test_and_set_explicit(&hub->lock, memory_order_acquire))
        epx_spin_pause();
    if (join->epoch != epoch) {
        join->epoch = epoch;
        join->count = 0;
    }
    int last = ++join->count == fabric->base.ranks;
    atomic_flag_clear_explicit(&hub->lock, memory_order_release);
    return last;
}

static epx_event_t event_of(const local_fabric_t *fabric, int32_t channel)
{
    return channel < fabric->config.channels ? fabric->event[channel]
                                             : fabric->channel[channel - fabric->config.channels].event;
}

epx_status_t epx_local_join(local_fabric_t *fabric, int32_t channel, uint64_t epoch,
                            const local_join_t **join_p)
{
    const epx_device_ops_t *device = fabric->config.device;
    epx_status_t status = EPX_OK;
    *join_p = NULL;
    if (fabric->all_event == NULL)
        return EPX_OK;
    local_join_t *join = &fabric->hub->join[channel];
    if (!is_last(fabric, join, epoch))
        return EPX_OK;
    for (int32_t p = 0; p < fabric->base.ranks && status == EPX_OK; p++)
        status = device->stream_wait(fabric->side, event_of(fabric->peer[p], channel));
    if (status == EPX_OK)
        status = device->event_record(fabric->all_event[channel], fabric->side);
    if (status != EPX_OK)
        return status;
    atomic_store_explicit(&join->who, fabric->base.rank, memory_order_relaxed);
    atomic_exchange_explicit(&join->joined, epoch, memory_order_seq_cst); /* B1 */
    *join_p = join;
    return EPX_OK;
}

epx_status_t epx_local_follow_all(local_fabric_t *fabric, int32_t channel, uint64_t epoch,
                                  epx_stream_t stream, int *done_p)
{
    *done_p = 0;
    if (fabric->all_event == NULL)
        return EPX_OK;
    local_join_t *join = &fabric->hub->join[channel];
    if (atomic_load_explicit(&join->joined, memory_order_acquire) != epoch)
        return EPX_OK;
    int32_t who = atomic_load_explicit(&join->who, memory_order_relaxed);
    *done_p = 1;
    return fabric->config.device->stream_wait(stream, fabric->peer[who]->all_event[channel]);
}

/* ---- exchange --------------------------------------------------------------------------------------------------- */

/* One step in the making. */
typedef struct step {
    epx_gather_t *gather;
    local_fabric_t *fabric;
    local_channel_t *channel;
    const epx_exchange_t *exchange;
    epx_stream_t stream;
    uint64_t number;
    int64_t box; /* offset of this step's box */
} step_t;

/* Lets the stream wait for what peer p had done when it posted step `number`, or later. */
static epx_status_t follow(const step_t *step, int32_t p, uint64_t number)
{
    uint64_t *followed = &step->channel->followed[p];
    if (*followed >= number)
        return EPX_OK;
    *followed = number;
    local_channel_t *theirs = &step->fabric->peer[p]->channel[step->exchange->channel];
    return step->fabric->config.device->stream_wait(step->stream, theirs->event);
}

/* The same for all peers. */
static epx_status_t follow_all(const step_t *step, uint64_t number)
{
    local_fabric_t *fabric = step->fabric;
    int32_t ranks = fabric->base.ranks, me = fabric->base.rank, done = 0, behind = 0;
    epx_status_t status = EPX_OK;
    for (int32_t p = 0; p < ranks; p++)
        behind += step->channel->followed[p] < number;
    if (behind > 1)
        status = epx_local_follow_all(fabric, epx_local_join_of_exchange(fabric, step->exchange->channel),
                                      number, step->stream, &done);
    for (int32_t i = 0; i < ranks && status == EPX_OK; i++) {
        int32_t p = (me + i) % ranks;
        if (done && step->channel->followed[p] < number)
            step->channel->followed[p] = number;
        status = follow(step, p, number);
    }
    return status;
}

/* Every peer has got so far, on its host and, for what this stream does next, on the device. */
static epx_status_t meet(const step_t *step, int credit)
{
    int32_t ranks = step->fabric->base.ranks, me = step->fabric->base.rank;
    for (int32_t i = 0; i < ranks; i++) {
        int32_t p = (me + i) % ranks;
        epx_status_t status = epx_gather_await(step->gather, p, step->number, credit);
        if (status != EPX_OK)
            return status;
    }
    return follow_all(step, credit ? step->number - 1 : step->number);
}

/* This rank's block into its row of every peer's box. */
static epx_status_t push(const step_t *step, size_t done, size_t now)
{
    device_layout_t l = layout_of(&step->fabric->config, step->fabric->base.ranks);
    epx_k_push_t args = {.dst = (void *const *)(void *)part(step->fabric, l.base),
                         .runs = (const epx_run_t *)(void *)part(step->fabric, l.runs),
                         .run_count = step->fabric->base.ranks,
                         .part = {{.kind = EPX_PART_COPY,
                                   .src = (const char *)step->exchange->send + done,
                                   .src_stride = (int64_t)now,
                                   .divide = 1,
                                   .dst_offset = step->box,
                                   .dst_stride = (int64_t)now,
                                   .bytes = (int64_t)now}},
                         .parts = 1,
                         .rank = step->fabric->base.rank,
                         .columns = 1};
    return step->fabric->config.device->kernels->push(&args, step->stream);
}

/* What the box holds to where it is wanted: blocks one behind the other, in one copy where there is one piece
 * only. */
static epx_status_t take(const step_t *step, size_t done, size_t now)
{
    const epx_device_ops_t *device = step->fabric->config.device;
    const epx_exchange_t *exchange = step->exchange;
    char *box = part(step->fabric, step->box), *to = (char *)exchange->receive + done;
    if (now == exchange->bytes)
        return device->copy(to, box, now * (size_t)step->fabric->base.ranks, step->stream);
    epx_status_t status = EPX_OK;
    for (size_t r = 0; r < (size_t)step->fabric->base.ranks && status == EPX_OK; r++)
        status = device->copy(to + r * exchange->bytes, box + r * now, now, step->stream);
    return status;
}

static epx_status_t exchange_piece(step_t *step, size_t done, size_t now)
{
    device_layout_t l = layout_of(&step->fabric->config, step->fabric->base.ranks);
    int64_t boxes = step->exchange->channel * 2 + (int64_t)(++step->channel->side.sequence & 1);
    step->number = step->channel->side.sequence;
    step->box = l.box + boxes * step->fabric->base.ranks * epx_local_box_bytes(&step->fabric->config);
    epx_status_t status = meet(step, 1);
    if (status == EPX_OK)
        status = push(step, done, now);
    if (status == EPX_OK)
        status = epx_gather_post(step->gather, step->number, 0);
    if (status == EPX_OK)
        status = meet(step, 0);
    return status == EPX_OK ? take(step, done, now) : status;
}

epx_status_t epx_local_device_exchange(epx_gather_t *gather, const epx_exchange_t *exchange,
                                       epx_stream_t stream)
{
    local_fabric_t *fabric = gather->fabric;
    step_t step = {.gather = gather,
                   .fabric = fabric,
                   .channel = &fabric->channel[exchange->channel],
                   .exchange = exchange,
                   .stream = stream};
    size_t piece = (size_t)epx_local_box_bytes(&fabric->config);
    epx_status_t status = EPX_OK;
    for (size_t done = 0; status == EPX_OK && (done < exchange->bytes || done == 0); done += piece) {
        size_t now = exchange->bytes - done < piece ? exchange->bytes - done : piece;
        status = exchange_piece(&step, done, now);
    }
    return status;
}
