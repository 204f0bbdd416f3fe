/*
 * A transport from outside: the simplest one that is correct. SPDX-License-Identifier: Apache-2.0
 *
 *     cc -std=c11 -O2 -fPIC -shared -I/path/to/epx/include -o libworst_case.so worst_case.c
 *     EPX_TRANSPORT=$PWD/libworst_case.so EPX_CAPACITY_FACTOR=dropless my-program
 *
 * It includes epx's headers and links against nothing of it: everything arrives in tables.
 *
 * - route: every rank gathers every rank's experts and weights, so that all of them know where
 *   every row goes;
 * - dispatch: each rank stores its rows right into their places in the owners' batches; there is one wave;
 * - combine: owners store y rows at the sender's end, by assignment, and the sender adds them up;
 * - backward: the same with dout, and then with dx rows and one dot per assignment.
 *
 * Every buffer has the size of the worst case (all assignments of all ranks to one rank), so nothing is ever
 * dropped, and nothing scales. Rows are stored by this rank's processor: host memory and a fabric with loads
 * and stores only.
 *
 * Why nobody overwrites what is still needed: a rank stores into its peers' batches when it dispatches, which
 * it may do again only after its own combine has ended; that has waited for every peer's combine, made after
 * the peer's batch was used. The return rows are safe likewise: owners store the next ones only after this
 * rank has dispatched again.
 */
#include <stdio.h>
#include <string.h>

#include <epx/transport.h>

enum { DISPATCH, COMBINE, COMBINE_BACKWARD, DISPATCH_BACKWARD, MOVES };

/* One rank's routing as it is gathered: tokens, then experts [A] and weights [A]. */
typedef struct block {
    int64_t tokens;
    int32_t *expert;
    float *weight;
} block_t;

/* Where everything is. Pure functions of the shape, so equal on all ranks. Offsets in bytes. */
typedef struct layout {
    int64_t assignments, rows, experts, block_bytes;
    int64_t blocks, place, weight, origin, home, start, count, plan_bytes; /* in a plan */
    int64_t x, aux, dout, y, dx, dots, segment_bytes;                      /* of one lane, in the segment */
    int64_t acc, row_dots, send, counts, scratch_bytes;                    /* of one lane, in the scratch */
} layout_t;

typedef struct worst_case {
    epx_transport_t base; /* first */
    layout_t layout;
} worst_case_t;

static int64_t take(int64_t *end, int64_t bytes)
{
    int64_t offset = *end;
    *end = (offset + bytes + 255) / 256 * 256;
    return offset;
}

static layout_t lay_out(const epx_shape_t *s)
{
    layout_t l = {.assignments = (int64_t)s->tokens_max * s->columns};
    for (int32_t r = 0; r < s->ranks; r++) {
        int64_t owned = s->real.first[r + 1] - s->real.first[r];
        l.experts = owned > l.experts ? owned : l.experts;
    }
    l.rows = s->ranks * l.assignments + l.experts * (s->row_align - 1);
    l.block_bytes = 8 + 8 * l.assignments;
    take(&l.plan_bytes, (int64_t)sizeof(epx_plan_head_t));
    l.blocks = take(&l.plan_bytes, s->ranks * l.block_bytes);
    l.place = take(&l.plan_bytes, s->ranks * l.assignments * 4);
    l.weight = take(&l.plan_bytes, l.rows * 4);
    l.origin = take(&l.plan_bytes, l.rows * (int64_t)sizeof(epx_origin_t));
    l.home = take(&l.plan_bytes, l.assignments * 4);
    l.start = take(&l.plan_bytes, l.experts * 8);
    l.count = take(&l.plan_bytes, l.experts * 8);
    l.x = take(&l.segment_bytes, l.rows * s->row_bytes);
    l.aux = take(&l.segment_bytes, l.rows * s->aux_bytes);
    l.dout = take(&l.segment_bytes, l.rows * s->row_bytes);
    l.y = take(&l.segment_bytes, l.assignments * s->row_bytes);
    l.dx = take(&l.segment_bytes, l.assignments * s->row_bytes);
    l.dots = take(&l.segment_bytes, l.assignments * 4);
    l.acc = take(&l.scratch_bytes, (int64_t)s->tokens_max * s->width * 4);
    l.row_dots = take(&l.scratch_bytes, l.rows * 4);
    l.send = take(&l.scratch_bytes, l.block_bytes);
    l.counts = take(&l.scratch_bytes, (int64_t)s->experts * 4 + 32);
    return l;
}

static int refuse(char *reason, size_t bytes, const char *why)
{
    snprintf(reason, bytes, "%s", why);
    return 0;
}

static int probe(const epx_shape_t *s, uint32_t caps, char *reason, size_t bytes)
{
    if (!(caps & EPX_FABRIC_LOADSTORE))
        return refuse(reason, bytes, "needs a fabric with loads and stores");
    if (!(caps & EPX_FABRIC_HOST_ACCESS))
        return refuse(reason, bytes, "needs rows in the host's memory");
    if (!s->dropless)
        return refuse(reason, bytes, "drops nothing: set EPX_CAPACITY_FACTOR=dropless");
    if (s->waves > 1)
        return refuse(reason, bytes, "has one wave: EPX_WAVES has no meaning");
    if (s->overflow != EPX_OVERFLOW_DEFAULT || s->accept != EPX_ACCEPT_DEFAULT || s->columns > s->top_k)
        return refuse(reason, bytes, "drops nothing: EPX_OVERFLOW and EPX_ACCEPT have no meaning");
    if (s->wire == EPX_WIRE_RANK || s->batch == EPX_BATCH_INDEXED)
        return refuse(reason, bytes, "sends one row per assignment only");
    return 1;
}

static epx_status_t query(const epx_shape_t *s, uint32_t caps, const epx_services_t *services,
                          epx_sizes_t *sizes_p)
{
    layout_t l = lay_out(s);
    (void)caps;
    if (l.rows > INT32_MAX)
        return services->fail(EPX_ERR_NO_MEMORY, "worst_case: %lld rows are beyond 2^31; use fewer tokens",
                              (long long)l.rows);
    *sizes_p =
        (epx_sizes_t){.segment_bytes = s->lanes * l.segment_bytes,
                      .scratch_bytes = s->lanes * l.scratch_bytes,
                      .state_bytes = (int64_t)sizeof(worst_case_t),
                      .plan_bytes = l.plan_bytes,
                      .plan_state_bytes = MOVES * (int64_t)sizeof(uint64_t), /* epoch of each start call */
                      .exchange_bytes = l.block_bytes,
                      .channels = s->lanes * MOVES,
                      .waves = 1,
                      .batch_rows_max = l.rows,
                      .wire = EPX_WIRE_ASSIGNMENT};
    return EPX_OK;
}

extern const epx_transport_ops_t *epx_transport_plugin(void);

static epx_status_t open_(const epx_transport_env_t *env, void *memory, epx_transport_t **transport_p)
{
    worst_case_t *t = memory;
    if (strcmp(env->device->name, "host") != 0)
        return env->services->fail(EPX_ERR_UNSUPPORTED,
                                   "worst_case: stores rows by itself, on the host device only");
    t->base = (epx_transport_t){.ops = epx_transport_plugin(), .env = *env};
    t->layout = lay_out(env->shape);
    *transport_p = &t->base;
    return EPX_OK;
}

static void close_(epx_transport_t *transport) { (void)transport; }

/* ---- addresses ----------------------------------------------------------------------------------------- */

static const layout_t *layout_of(const epx_transport_t *transport)
{
    return &((const worst_case_t *)transport)->layout;
}

static void *in_plan(const epx_plan_base_t *plan, int64_t offset) { return (char *)plan->bytes + offset; }

static void *in_scratch(const epx_transport_t *transport, const epx_plan_base_t *plan, int64_t offset)
{
    return (char *)transport->env.scratch + plan->lane->index * layout_of(transport)->scratch_bytes + offset;
}

/* A place in the segment of rank `peer`. */
static char *at_peer(const epx_transport_t *transport, const epx_plan_base_t *plan, int32_t peer,
                     int64_t offset)
{
    return (char *)transport->env.segment.peer_ptr[peer] +
           plan->lane->index * layout_of(transport)->segment_bytes + offset;
}

static block_t block_at(const layout_t *l, void *bytes)
{
    block_t block = {.expert = (int32_t *)(void *)((char *)bytes + 8)};
    block.weight = (float *)(void *)(block.expert + l->assignments);
    memcpy(&block.tokens, bytes, sizeof(block.tokens));
    return block;
}

static block_t block_of(const layout_t *l, const epx_plan_base_t *plan, int32_t rank)
{
    return block_at(l, in_plan(plan, l->blocks + rank * l->block_bytes));
}

static int64_t in_use(const epx_shape_t *s, const block_t *block) { return block->tokens * s->columns; }

/* ---- route --------------------------------------------------------------------------------------------- */

/* Every rank computes the places of all rows alike: by owner, expert, sender, token, k. */
static void place_rows(const epx_transport_t *transport, const epx_plan_base_t *plan)
{
    const layout_t *l = layout_of(transport);
    const epx_shape_t *s = transport->env.shape;
    int64_t *start = in_plan(plan, l->start), *count = in_plan(plan, l->count);
    int32_t *place = in_plan(plan, l->place);
    float *weight = in_plan(plan, l->weight);
    epx_origin_t *origin = in_plan(plan, l->origin);
    for (int32_t owner = 0; owner < s->ranks; owner++) {
        int64_t row = 0;
        for (int32_t i = s->real.first[owner]; i < s->real.first[owner + 1]; i++) {
            int64_t first = row = (row + s->row_align - 1) / s->row_align * s->row_align;
            for (int32_t from = 0; from < s->ranks; from++) {
                block_t block = block_of(l, plan, from);
                for (int64_t a = 0; a < in_use(s, &block); a++) {
                    if (block.expert[a] != s->real.expert[i])
                        continue;
                    if (owner == s->rank) {
                        weight[row] = block.weight[a];
                        origin[row] =
                            (epx_origin_t){from, (int32_t)(a / s->columns), (int32_t)(a % s->columns)};
                    }
                    place[from * l->assignments + a] = (int32_t)row++;
                }
            }
            if (owner == s->rank) {
                start[i - s->real.first[owner]] = first;
                count[i - s->real.first[owner]] = row - first;
            }
        }
    }
}

/* Reads ids into the block that will be sent, and counts. */
static epx_status_t read_ids(epx_transport_t *transport, epx_plan_base_t *plan, const epx_routing_t *routing,
                             void *send)
{
    const layout_t *l = layout_of(transport);
    const epx_shape_t *s = transport->env.shape;
    int64_t *numbers = in_scratch(transport, plan, l->counts);
    block_t block = block_at(l, send);
    epx_route_notice_t notice;
    epx_k_read_ids_t args = {.ids = routing->ids,
                             .id_type = routing->id_type,
                             .tokens = routing->tokens,
                             .tokens_max = s->tokens_max,
                             .weights = routing->weights,
                             .weights_copy = block.weight,
                             .columns = s->columns,
                             .top_k = s->top_k,
                             .experts = s->experts,
                             .splits = 1,
                             .expert = block.expert,
                             .counts = (int32_t *)(void *)(numbers + 1),
                             .skipped = numbers,
                             .notice = &notice};
    epx_status_t status = transport->env.kernels->read_ids(&args, NULL);
    if (status != EPX_OK)
        return status;
    if (notice.bad_at != EPX_NOTICE_GOOD)
        return transport->env.services->fail(
            EPX_ERR_ROUTING, "%s: rank %d, token %lld, k %lld: expert id %lld is outside -1..%d",
            transport->env.group_name, s->rank, (long long)(notice.bad_at / s->columns),
            (long long)(notice.bad_at % s->columns), (long long)notice.bad_id, s->experts - 1);
    memcpy(send, &routing->tokens, sizeof(routing->tokens));
    return EPX_OK;
}

/* Gathers the blocks, or tells the peers that this rank has none. */
static epx_status_t exchange(epx_transport_t *transport, epx_plan_base_t *plan, const void *send)
{
    const layout_t *l = layout_of(transport);
    epx_fabric_t *fabric = transport->env.fabric;
    epx_wait_result_t result = {.peer = -1};
    epx_exchange_t exchange = {.channel = plan->lane->index,
                               .send = send,
                               .receive = in_plan(plan, l->blocks),
                               .bytes = (size_t)l->block_bytes,
                               .timeout_ms = transport->env.shape->timeout_ms};
    epx_status_t status = fabric->ops->exchange(fabric, &exchange, &result, NULL);
    plan->wait_ns += result.waited_ns;
    if (status == EPX_OK || !send)
        return status;
    return transport->env.services->fail(
        status, "%s: rank %d's route waited for rank %d, which failed or did not come",
        transport->env.group_name, transport->env.shape->rank, result.peer);
}

static epx_status_t route(epx_transport_t *transport, epx_plan_base_t *plan, const epx_routing_t *routing,
                          epx_status_t publish, epx_stream_t stream)
{
    const layout_t *l = layout_of(transport);
    const epx_shape_t *s = transport->env.shape;
    epx_plan_head_t *head = plan->bytes;
    void *send = in_scratch(transport, plan, l->send);
    (void)stream;
    epx_status_t status = publish != EPX_OK ? publish : read_ids(transport, plan, routing, send);
    if (status != EPX_OK)
        exchange(transport, plan, NULL);
    else
        status = exchange(transport, plan, send);
    if (status != EPX_OK)
        return status;
    place_rows(transport, plan);
    block_t mine = block_of(l, plan, s->rank);
    int32_t *home = in_plan(plan, l->home);
    const int64_t *skipped = in_scratch(transport, plan, l->counts), *count = in_plan(plan, l->count);
    for (int64_t a = 0; a < in_use(s, &mine); a++)
        home[a] = mine.expert[a] < 0 ? -1 : (int32_t)a;
    /* The library writes the rest of the head. */
    head->skipped = *skipped;
    head->routed = in_use(s, &mine) - *skipped;
    head->kept = head->spilled = head->dropped_sender = head->dropped_receiver = 0;
    for (int32_t i = 0; i < s->real.first[s->rank + 1] - s->real.first[s->rank]; i++)
        head->kept += count[i];
    return EPX_OK;
}

/* ---- moves --------------------------------------------------------------------------------------------- */

static int32_t channel_of(const epx_plan_base_t *plan, int32_t move)
{
    return plan->lane->index * MOVES + move;
}

/* Says that my rows are stored; each start call takes one epoch, which its finish waits for. */
static epx_status_t post(epx_transport_t *transport, epx_plan_base_t *plan, int32_t move)
{
    epx_fabric_t *fabric = transport->env.fabric;
    uint64_t *epoch = (uint64_t *)plan->state + move;
    *epoch = ++plan->lane->epoch;
    epx_post_t post = {.channel = channel_of(plan, move), .epoch = {.add = *epoch}, .peer = EPX_ALL_PEERS};
    return fabric->ops->post(fabric, &post, NULL);
}

static epx_status_t wait(epx_transport_t *transport, epx_plan_base_t *plan, int32_t move)
{
    static const char *const names[MOVES] = {"dispatch", "combine", "combine_backward", "dispatch_backward"};
    epx_fabric_t *fabric = transport->env.fabric;
    epx_wait_result_t result = {.peer = -1};
    epx_wait_t wait = {.channel = channel_of(plan, move),
                       .epoch = {.add = ((uint64_t *)plan->state)[move]},
                       .peer = EPX_ALL_PEERS,
                       .mode = EPX_WAIT_EQUAL,
                       .timeout_ms = transport->env.shape->timeout_ms};
    epx_status_t status = fabric->ops->wait(fabric, &wait, &result, NULL);
    plan->wait_ns += result.waited_ns;
    if (result.waited_ns > plan->wait_longest_ns && result.peer >= 0) {
        plan->wait_longest_ns = result.waited_ns;
        plan->wait_peer = result.peer;
    }
    if (status == EPX_OK)
        return EPX_OK;
    if (status == EPX_ERR_TIMEOUT)
        fabric->ops->abort(fabric, result.peer);
    return transport->env.services->fail(status, "%s: rank %d in %s waited for rank %d",
                                         transport->env.group_name, transport->env.shape->rank, names[move],
                                         result.peer);
}

/* Stores rows [T, H], and aux, into the owners' batches. */
static void push(epx_transport_t *transport, epx_plan_base_t *plan, const char *rows, const char *aux,
                 int64_t area)
{
    const layout_t *l = layout_of(transport);
    const epx_shape_t *s = transport->env.shape;
    const int32_t *place = (int32_t *)in_plan(plan, l->place) + s->rank * l->assignments;
    block_t mine = block_of(l, plan, s->rank);
    size_t row = (size_t)s->row_bytes, beside = (size_t)s->aux_bytes;
    for (int64_t a = 0; a < in_use(s, &mine); a++) {
        int64_t token = a / s->columns;
        if (mine.expert[a] < 0)
            continue;
        int32_t owner = s->real.owner[mine.expert[a]];
        memcpy(at_peer(transport, plan, owner, area) + (size_t)place[a] * row, rows + (size_t)token * row,
               row);
        plan->sent_bytes += owner != s->rank ? s->row_bytes : 0;
        if (beside && area == l->x) {
            char *to = at_peer(transport, plan, owner, l->aux) + (size_t)place[a] * beside;
            if (aux)
                memcpy(to, aux + (size_t)token * beside, beside);
            else
                memset(to, 0, beside);
        }
    }
}

/* Stores the rows of my batch, and their dots, at their senders' ends. */
static void give_back(epx_transport_t *transport, epx_plan_base_t *plan, const char *rows, const float *dots,
                      int64_t area)
{
    const layout_t *l = layout_of(transport);
    const epx_shape_t *s = transport->env.shape;
    const int64_t *start = in_plan(plan, l->start), *count = in_plan(plan, l->count);
    const epx_origin_t *origin = in_plan(plan, l->origin);
    size_t row = (size_t)s->row_bytes;
    for (int32_t i = 0; i < s->real.first[s->rank + 1] - s->real.first[s->rank]; i++) {
        for (int64_t g = start[i]; g < start[i] + count[i]; g++) {
            size_t a = (size_t)origin[g].token * (size_t)s->columns + (size_t)origin[g].k;
            memcpy(at_peer(transport, plan, origin[g].rank, area) + a * row, rows + (size_t)g * row, row);
            if (dots)
                memcpy(at_peer(transport, plan, origin[g].rank, l->dots) + a * sizeof(float), &dots[g],
                       sizeof(float));
            plan->sent_bytes += origin[g].rank != s->rank ? s->row_bytes : 0;
        }
    }
}

static void received(epx_transport_t *transport, epx_plan_base_t *plan, int at_owner)
{
    const layout_t *l = layout_of(transport);
    const epx_shape_t *s = transport->env.shape;
    for (int32_t from = 0; from < s->ranks; from++) {
        block_t block = block_of(l, plan, from);
        for (int64_t a = 0; a < in_use(s, &block); a++) {
            int mine = block.expert[a] >= 0 && s->real.owner[block.expert[a]] == s->rank;
            int counts =
                at_owner ? from != s->rank && mine : from == s->rank && block.expert[a] >= 0 && !mine;
            plan->received_bytes += counts ? s->row_bytes : 0;
        }
    }
}

static epx_k_rows_t rows_of(epx_transport_t *transport, epx_plan_base_t *plan)
{
    const layout_t *l = layout_of(transport);
    const epx_shape_t *s = transport->env.shape;
    return (epx_k_rows_t){.start = in_plan(plan, l->start),
                          .count = in_plan(plan, l->count),
                          .experts = s->real.first[s->rank + 1] - s->real.first[s->rank]};
}

static void fill_batch(epx_transport_t *transport, epx_plan_base_t *plan, void *rows, epx_batch_t *batch)
{
    const layout_t *l = layout_of(transport);
    const epx_shape_t *s = transport->env.shape;
    epx_k_rows_t counted = rows_of(transport, plan);
    size_t experts = (size_t)counted.experts * sizeof(int64_t);
    if (batch->into_start)
        memcpy(batch->into_start, counted.start, experts);
    if (batch->into_count)
        memcpy(batch->into_count, counted.count, experts);
    batch->rows = rows;
    batch->expert_start = batch->into_start ? batch->into_start : counted.start;
    batch->expert_count = batch->into_count ? batch->into_count : counted.count;
    batch->local_experts = counted.experts;
    batch->rows_max = l->rows;
    batch->row_index = NULL;
    batch->origin = s->origin ? in_plan(plan, l->origin) : NULL;
    batch->row_aux = s->aux_bytes ? at_peer(transport, plan, s->rank, l->aux) : NULL;
}

static epx_status_t dispatch_start(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave,
                                   const void *x, const epx_batch_t *batch, epx_stream_t stream)
{
    (void)wave, (void)stream;
    push(transport, plan, x, batch->aux, layout_of(transport)->x);
    return post(transport, plan, DISPATCH);
}

static epx_status_t dispatch_finish(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave,
                                    epx_batch_t *batch, epx_stream_t stream)
{
    const epx_shape_t *s = transport->env.shape;
    epx_status_t status = wait(transport, plan, DISPATCH);
    (void)wave;
    if (status != EPX_OK)
        return status;
    char *rows = at_peer(transport, plan, s->rank, layout_of(transport)->x);
    epx_k_gather_t args = {.rows = rows_of(transport, plan),
                           .src = rows,
                           .dst = batch->into_rows,
                           .src_stride = s->row_bytes,
                           .dst_stride = s->row_bytes,
                           .bytes = s->row_bytes};
    if (batch->into_rows)
        status = transport->env.kernels->gather(&args, stream);
    received(transport, plan, 1);
    fill_batch(transport, plan, batch->into_rows ? batch->into_rows : rows, batch);
    return status;
}

static epx_status_t combine_start(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave,
                                  const void *y, epx_stream_t stream)
{
    (void)wave, (void)stream;
    give_back(transport, plan, y, NULL, layout_of(transport)->y);
    return post(transport, plan, COMBINE);
}

/* out[t] = sum over k of weight (NULL: 1) times the returned row. */
static epx_status_t add_up(epx_transport_t *transport, epx_plan_base_t *plan, int64_t area,
                           const float *weights, void *out, epx_stream_t stream)
{
    const layout_t *l = layout_of(transport);
    const epx_shape_t *s = transport->env.shape;
    epx_k_combine_t args = {.tokens = block_of(l, plan, s->rank).tokens,
                            .columns = s->columns,
                            .width = s->width,
                            .row_type = s->row_type,
                            .out_type = s->out_type,
                            .weights = weights,
                            .place = in_plan(plan, l->home),
                            .lo = 0,
                            .hi = l->assignments,
                            .rows = at_peer(transport, plan, s->rank, area),
                            .row_stride = s->row_bytes,
                            .acc = in_scratch(transport, plan, l->acc),
                            .out = out,
                            .first = 1,
                            .last = 1};
    received(transport, plan, 0);
    return transport->env.kernels->combine(&args, stream);
}

static epx_status_t combine_finish(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave, void *out,
                                   epx_stream_t stream)
{
    const layout_t *l = layout_of(transport);
    epx_status_t status = wait(transport, plan, COMBINE);
    (void)wave;
    if (status != EPX_OK)
        return status;
    return add_up(transport, plan, l->y, block_of(l, plan, transport->env.shape->rank).weight, out, stream);
}

static epx_status_t combine_backward_start(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave,
                                           const void *dout, epx_stream_t stream)
{
    (void)wave, (void)stream;
    push(transport, plan, dout, NULL, layout_of(transport)->dout);
    return post(transport, plan, COMBINE_BACKWARD);
}

static epx_status_t combine_backward_finish(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave,
                                            const void *y, epx_batch_t *dy, epx_stream_t stream)
{
    const layout_t *l = layout_of(transport);
    const epx_shape_t *s = transport->env.shape;
    epx_status_t status = wait(transport, plan, COMBINE_BACKWARD);
    (void)wave;
    if (status != EPX_OK)
        return status;
    char *dout = at_peer(transport, plan, s->rank, l->dout);
    void *rows = dy->into_rows ? dy->into_rows : dout; /* in place where the caller has no memory for it */
    epx_k_scale_dot_t args = {.rows = rows_of(transport, plan),
                              .weight = in_plan(plan, l->weight),
                              .width = s->width,
                              .row_type = s->row_type,
                              .dout = dout,
                              .y = y,
                              .dy = rows,
                              .dot = in_scratch(transport, plan, l->row_dots)};
    status = transport->env.kernels->scale_dot(&args, stream);
    received(transport, plan, 1);
    fill_batch(transport, plan, rows, dy);
    return status;
}

static epx_status_t dispatch_backward_start(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave,
                                            const void *dx_rows, epx_stream_t stream)
{
    const layout_t *l = layout_of(transport);
    (void)wave, (void)stream;
    give_back(transport, plan, dx_rows, in_scratch(transport, plan, l->row_dots), l->dx);
    return post(transport, plan, DISPATCH_BACKWARD);
}

static epx_status_t dispatch_backward_finish(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave,
                                             void *dx, float *dweight, epx_stream_t stream)
{
    const layout_t *l = layout_of(transport);
    const epx_shape_t *s = transport->env.shape;
    epx_status_t status = wait(transport, plan, DISPATCH_BACKWARD);
    (void)wave;
    if (status == EPX_OK)
        status = add_up(transport, plan, l->dx, NULL, dx, stream);
    if (status != EPX_OK || !dweight)
        return status;
    epx_k_take_dots_t args = {.tokens = block_of(l, plan, s->rank).tokens,
                              .columns = s->columns,
                              .place = in_plan(plan, l->home),
                              .lo = 0,
                              .hi = l->assignments,
                              .dots = (float *)(void *)at_peer(transport, plan, s->rank, l->dots),
                              .dweight = dweight,
                              .first = 1};
    return transport->env.kernels->take_dots(&args, stream);
}

/* Every call has counted its bytes at once. */
static void account(epx_transport_t *transport, epx_plan_base_t *plan) { (void)transport, (void)plan; }

static void dump(epx_transport_t *transport, void (*line)(void *context, const char *text), void *context)
{
    char text[80];
    snprintf(text, sizeof(text), "worst_case: %lld rows", (long long)layout_of(transport)->rows);
    line(context, text);
}

const epx_transport_ops_t *epx_transport_plugin(void)
{
    static const epx_transport_ops_t ops = {
        .abi = EPX_ABI,
        .ops_bytes = sizeof(epx_transport_ops_t),
        .name = "worst_case",
        .summary = "example plug-in: one-sided copies into buffers of the worst case",
        .probe = probe,
        .query = query,
        .open = open_,
        .close = close_,
        .route = route,
        .dispatch_start = dispatch_start,
        .dispatch_finish = dispatch_finish,
        .combine_start = combine_start,
        .combine_finish = combine_finish,
        .combine_backward_start = combine_backward_start,
        .combine_backward_finish = combine_backward_finish,
        .dispatch_backward_start = dispatch_backward_start,
        .dispatch_backward_finish = dispatch_backward_finish,
        .account = account,
        .dump = dump,
    };
    return &ops;
}
