/* What the transports share. SPDX-License-Identifier: Apache-2.0 */
#include "transport/common.h"

#include "record/recorder.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* How long a rank waits for its own device before it names the rank that refused a pass. */
#define PATIENCE_NS 1000000000

static const char *const move_names[EPX_MOVES] = {"dispatch", "combine", "combine_backward",
                                                  "dispatch_backward"};

const char *epx_move_name(epx_move_t move) { return move_names[move]; }

int32_t epx_move_channels(const epx_shape_t *shape) { return shape->lanes * shape->depth * EPX_MOVES; }

int32_t epx_move_channel(const epx_shape_t *shape, int32_t lane, int32_t wave, epx_move_t move)
{
    return (lane * shape->depth + wave % shape->depth) * EPX_MOVES + (int32_t)move;
}

static int64_t owners_bytes(const epx_owners_t *owners)
{
    return (3 * (int64_t)owners->experts + owners->ranks + 1) * (int64_t)sizeof(int32_t);
}

int64_t epx_shape_tables_bytes(const epx_shape_t *shape)
{
    return owners_bytes(&shape->real) + owners_bytes(&shape->virt);
}

/* Appends one table at *end. */
static epx_status_t copy_table(const epx_device_ops_t *device, const int32_t **table, int64_t count,
                               int32_t **end)
{
    epx_status_t status = device->copy(*end, *table, (size_t)count * sizeof(int32_t), NULL);
    *table = *end;
    *end += count;
    return status;
}

static epx_status_t copy_owners(const epx_device_ops_t *device, epx_owners_t *owners, int32_t **end)
{
    epx_status_t status = copy_table(device, &owners->owner, owners->experts, end);
    if (status == EPX_OK)
        status = copy_table(device, &owners->local, owners->experts, end);
    if (status == EPX_OK)
        status = copy_table(device, &owners->expert, owners->experts, end);
    return status == EPX_OK ? copy_table(device, &owners->first, (int64_t)owners->ranks + 1, end) : status;
}

epx_status_t epx_shape_tables_copy(const epx_transport_env_t *env, void *area, epx_shape_t *copy_p)
{
    int32_t *end = area;
    *copy_p = *env->shape;
    epx_status_t status = copy_owners(env->device, &copy_p->real, &end);
    if (status == EPX_OK)
        status = copy_owners(env->device, &copy_p->virt, &end);
    /* Later streams know nothing of this one. */
    return status == EPX_OK ? env->device->synchronize(NULL) : status;
}

int64_t epx_round_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) & ~(unit - 1); }

int64_t epx_take_area(int64_t *end, int64_t bytes)
{
    int64_t offset = *end;
    *end = epx_round_up(offset + bytes, EPX_AREA_ALIGN);
    return offset;
}

enum { ROUTE_SHIFT = 14, ROUTE_BITS = 10, PASS_SHIFT = 24, PASS_BITS = 24, GENERATION_SHIFT = 48 };

void epx_lane_begin(epx_lane_t *lane, uint64_t route)
{
    uint64_t generation = lane->epoch >> GENERATION_SHIFT;
    lane->epoch = generation << GENERATION_SHIFT |
                  (lane->passes & (((uint64_t)1 << PASS_BITS) - 1)) << PASS_SHIFT |
                  (route & (((uint64_t)1 << ROUTE_BITS) - 1)) << ROUTE_SHIFT;
    lane->base = lane->epoch;
}

uint64_t epx_lane_advance(epx_lane_t *lane) { return ++lane->epoch; }

epx_epoch_t epx_lane_epoch(const epx_lane_t *lane, uint64_t epoch)
{
    if (lane->words == NULL)
        return (epx_epoch_t){.add = epoch};
    return (epx_epoch_t){.base = &lane->words->base, .add = epoch - lane->base};
}

void epx_lane_begins(epx_lane_t *lane)
{
    memset(lane->acknowledged, 0, sizeof(lane->acknowledged));
    lane->begins = lane->words != NULL;
    lane->ended = 0;
}

/* A wait that is the first of its pass cannot begin it as a post does: a kernel of its own does. */
static epx_status_t begin_before(epx_transport_t *transport, const epx_plan_base_t *plan, epx_stream_t stream)
{
    epx_lane_t *lane = plan->lane;
    epx_k_lane_t args = {.step = EPX_LANE_BEGIN,
                         .words = lane->words,
                         .head = epx_plan_head(plan),
                         .generation = lane->epoch >> GENERATION_SHIFT};
    if (!lane->begins)
        return EPX_OK;
    lane->begins = 0;
    return transport->env.kernels->lane(&args, stream);
}

static epx_k_lane_t route_step(const epx_plan_base_t *plan)
{
    return (epx_k_lane_t){
        .step = EPX_LANE_ROUTE, .words = plan->lane->words, .head = epx_plan_head(plan), .value = plan->head};
}

epx_status_t epx_lane_route(epx_transport_t *transport, const epx_plan_base_t *plan, epx_stream_t stream)
{
    epx_k_lane_t args = route_step(plan);
    return args.words != NULL ? transport->env.kernels->lane(&args, stream) : EPX_OK;
}

void epx_lane_routes(const epx_plan_base_t *plan) { plan->lane->routes = plan->lane->words != NULL; }

epx_status_t epx_lane_end(epx_transport_t *transport, const epx_plan_base_t *plan, epx_stream_t stream)
{
    epx_k_lane_t args = {.step = EPX_LANE_END, .words = plan->lane->words, .head = epx_plan_head(plan)};
    epx_status_t status = begin_before(transport, plan, stream); /* a rank alone may have posted nothing */
    int32_t ended = plan->lane->ended;
    plan->lane->ended = 0;
    if (status != EPX_OK || args.words == NULL || ended)
        return status;
    memcpy(args.acknowledged, plan->lane->acknowledged, sizeof(args.acknowledged));
    return transport->env.kernels->lane(&args, stream);
}

const int32_t *epx_resident_gate(const epx_plan_base_t *plan)
{
    return plan->lane->words != NULL ? &epx_plan_head(plan)->valid : NULL;
}

/* ---- heads and reports ------------------------------------------------------------------------------------------ */

epx_status_t epx_fetch(epx_transport_t *transport, void *to, const void *from, size_t bytes,
                       epx_stream_t stream)
{
    const epx_device_ops_t *device = transport->env.device;
    if (!device->host_access && device->is_capturing(stream))
        return transport->env.services->fail(EPX_ERR_UNSUPPORTED,
                                             "%s: this call needs the host to look at device memory, which a "
                                             "CUDA graph cannot; make it outside of the "
                                             "capture",
                                             transport->env.group_name);
    epx_status_t status = device->copy(to, from, bytes, stream);
    return status == EPX_OK ? device->synchronize(stream) : status;
}

epx_status_t epx_head_write(epx_transport_t *transport, epx_plan_base_t *plan, int with_counts,
                            epx_stream_t stream)
{
    size_t bytes = with_counts ? sizeof(epx_plan_head_t) : offsetof(epx_plan_head_t, routed);
    return transport->env.device->put(plan->bytes, &plan->head, bytes, stream);
}

epx_status_t epx_head_mark(epx_transport_t *transport, epx_plan_base_t *plan, int32_t *flag,
                           epx_stream_t stream)
{
    ptrdiff_t offset = (char *)flag - (char *)&plan->head;
    if (*flag)
        return EPX_OK;
    *flag = 1;
    return transport->env.device->fill((char *)plan->bytes + offset, 1, sizeof(*flag), stream);
}

epx_k_verdict_t epx_route_for_kernels(const epx_plan_base_t *plan)
{
    return (epx_k_verdict_t){.head = epx_plan_head(plan), .report = plan->report, .route = plan->head.route};
}

/* Words of a report may be written by a device while the host looks. */
static uint64_t look(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

int epx_route_is_told(const epx_plan_base_t *plan) { return look(&plan->report->done) == plan->head.route; }

/* The sentence about a rank's own bad notice. */
static epx_status_t slip_error(const epx_transport_env_t *env, int64_t bad_at, int64_t bad_id)
{
    const epx_shape_t *shape = env->shape;
    if (bad_at == EPX_NOTICE_TOKENS)
        return env->services->fail(
            EPX_ERR_ARG, "epx_plan_route: rank %d has %" PRId64 " tokens; the group was opened for 0 to %d",
            shape->rank, bad_id, shape->tokens_max);
    return env->services->fail(EPX_ERR_ROUTING,
                               "%s: rank %d, token %" PRId64 ", k %" PRId64 ": expert id %" PRId64
                               " is outside -1..%d; mend the router's output and route again",
                               env->group_name, shape->rank, bad_at / shape->columns, bad_at % shape->columns,
                               bad_id, shape->experts - 1);
}

static epx_status_t peer_route_error(const epx_transport_env_t *env, int32_t peer, const char *what)
{
    return env->services->fail(
        EPX_ERR_PEER,
        "%s: the route of rank %d failed (seen by rank %d in %s); mend it there and route again",
        env->group_name, peer, env->shape->rank, what);
}

epx_status_t epx_route_peer_failed(const epx_transport_t *transport, const epx_plan_base_t *plan,
                                   int32_t peer)
{
    char what[64];
    snprintf(what, sizeof(what), "route, lane %d", plan->lane->index);
    return peer_route_error(&transport->env, peer, what);
}

epx_status_t epx_route_verdict(epx_transport_t *transport, const epx_plan_base_t *plan)
{
    const epx_route_report_t *report = plan->report;
    char what[64];
    if (look(&report->dead) != plan->head.route)
        return EPX_OK;
    if (report->status != EPX_ERR_PEER)
        return slip_error(&transport->env, report->bad_at, report->bad_id);
    snprintf(what, sizeof(what), "route, lane %d", plan->lane->index);
    return peer_route_error(&transport->env, report->rank, what);
}

int32_t epx_failure_channels(const epx_shape_t *shape) { return shape->lanes * EPX_FAILURE_ROWS; }

int32_t epx_refusal_channels(const epx_shape_t *shape) { return epx_failure_channels(shape); }

static int32_t failure_channel(const epx_transport_t *transport, const epx_plan_base_t *plan)
{
    return (int32_t)(plan->head.route % (uint64_t)epx_failure_channels(transport->env.shape));
}

static int32_t refusal_channel(const epx_transport_t *transport, const epx_plan_base_t *plan)
{
    return transport->env.sizes->failure_channels + failure_channel(transport, plan);
}

epx_status_t epx_pass_refuse(epx_transport_t *transport, const epx_plan_base_t *plan, epx_stream_t stream)
{
    epx_fabric_t *fabric = transport->env.fabric;
    return fabric->ops->post_failure(fabric, refusal_channel(transport, plan),
                                     (epx_epoch_t){.add = plan->lane->base}, stream);
}

/* The number of the route, in a row of the lane's own that follows from it. */
static epx_status_t post_resident_failure(epx_transport_t *transport, const epx_plan_base_t *plan,
                                          int32_t only_failed, epx_stream_t stream)
{
    epx_fabric_t *fabric = transport->env.fabric;
    epx_post_t post = {.channel = plan->lane->index * EPX_FAILURE_ROWS,
                       .epoch = {.base = &epx_plan_head(plan)->number},
                       .peer = EPX_ALL_PEERS,
                       .gate = only_failed ? &epx_plan_head(plan)->valid : NULL,
                       .only_failed = only_failed,
                       .failure_rows = EPX_FAILURE_ROWS};
    return fabric->ops->post(fabric, &post, stream);
}

epx_status_t epx_route_post_failure(epx_transport_t *transport, const epx_plan_base_t *plan,
                                    epx_stream_t stream)
{
    epx_fabric_t *fabric = transport->env.fabric;
    if (plan->lane->words != NULL)
        return post_resident_failure(transport, plan, 0, stream);
    return fabric->ops->post_failure(fabric, failure_channel(transport, plan),
                                     (epx_epoch_t){.add = plan->head.route}, stream);
}

epx_status_t epx_route_post_if_failed(epx_transport_t *transport, const epx_plan_base_t *plan,
                                      epx_stream_t stream)
{
    return plan->lane->words != NULL ? post_resident_failure(transport, plan, 1, stream) : EPX_OK;
}

epx_k_begun_t epx_move_begun(epx_transport_t *transport, const epx_plan_base_t *plan)
{
    epx_lane_t *lane = plan->lane;
    if (!lane->unsaid)
        return (epx_k_begun_t){0};
    lane->unsaid = 0;
    epx_recorder_asked(transport->env.recorder, EPX_RECORD_ASKED_BEGUN, 0);
    return (epx_k_begun_t){.word = lane->progress->begun,
                           .add = lane->words != NULL ? lane->epoch - lane->base : lane->epoch,
                           .lane = lane->words,
                           .head = lane->words != NULL ? epx_plan_head(plan) : NULL,
                           .generation = lane->epoch >> GENERATION_SHIFT,
                           .name = lane->name};
}

/* Where kernels post and wait, they say so. */
static epx_progress_words_t *told_by_kernels(const epx_transport_t *transport, const epx_lane_t *lane,
                                             uint32_t asked)
{
    if (lane->progress == NULL || !epx_errors_come_late(transport))
        return NULL;
    epx_recorder_asked(transport->env.recorder, asked, 0);
    return lane->progress;
}

/* ---- words ------------------------------------------------------------------------------------------------------ */

static epx_lane_begin_of_t begin_of(const epx_plan_base_t *plan)
{
    return (epx_lane_begin_of_t){.words = plan->lane->words,
                                 .head = epx_plan_head(plan),
                                 .generation = plan->lane->epoch >> GENERATION_SHIFT};
}

/* The first post of a pass begins it. */
static epx_post_t new_post(const epx_transport_t *transport, const epx_plan_base_t *plan, int32_t channel,
                           uint64_t epoch, int32_t peer)
{
    epx_post_t post = {.channel = channel,
                       .epoch = epx_lane_epoch(plan->lane, epoch),
                       .peer = peer,
                       .gate = epx_resident_gate(plan),
                       .progress = told_by_kernels(transport, plan->lane, EPX_RECORD_ASKED_POSTED),
                       .name = plan->lane->name};
    if (plan->lane->begins)
        post.begin = begin_of(plan);
    plan->lane->begins = 0;
    return post;
}

epx_status_t epx_move_signal(epx_transport_t *transport, const epx_plan_base_t *plan, int32_t channel,
                             uint64_t epoch, epx_post_parts_t parts, epx_k_signal_t *signal_p)
{
    epx_fabric_t *fabric = transport->env.fabric;
    epx_post_t post = new_post(transport, plan, channel, epoch, EPX_ALL_PEERS);
    return fabric->ops->signal(fabric, &post, parts, signal_p);
}

void epx_move_signalled(epx_transport_t *transport, uint64_t epoch)
{
    epx_recorder_sent(transport->env.recorder, EPX_ALL_PEERS, epoch);
}

epx_status_t epx_move_post(epx_transport_t *transport, const epx_plan_base_t *plan, int32_t channel,
                           uint64_t epoch, int32_t peer, const epx_pieces_t *pieces, epx_stream_t stream)
{
    epx_fabric_t *fabric = transport->env.fabric;
    epx_post_t post = new_post(transport, plan, channel, epoch, peer);
    if (pieces != NULL)
        epx_pieces_into(pieces, &transport->env.segment, &post);
    for (int32_t i = 0; i < post.send_count; i++)
        fabric->message_bytes += post.sends[i].bytes;
    epx_status_t status = fabric->ops->post(fabric, &post, stream);
    /* Behind the post: who says that it has sent has sent, however long its thread stood still in between. */
    if (status == EPX_OK)
        epx_recorder_sent(transport->env.recorder, peer, epoch);
    return status;
}

/* Adds a wait to the plan's account: the peer of the longest single wait is the one waited for most. */
static void account_wait(epx_plan_base_t *plan, const epx_wait_result_t *result)
{
    plan->wait_ns += result->waited_ns;
    if (result->peer >= 0 && result->waited_ns > plan->wait_longest_ns) {
        plan->wait_longest_ns = result->waited_ns;
        plan->wait_peer = result->peer;
    }
}

/* An epoch as a person reads it: the upper 16 bits hold the group's generation. */
static uint64_t without_generation(uint64_t epoch) { return epoch & (((uint64_t)1 << 48) - 1); }

/* The sentence for a wait that did not end well; `what` says which wait. */
static epx_status_t wait_error(epx_transport_t *transport, epx_status_t status,
                               const epx_wait_result_t *result, const char *what)
{
    const epx_transport_env_t *env = &transport->env;
    int32_t rank = env->shape->rank, culprit = -1;
    if (status == EPX_ERR_TIMEOUT) {
        /* The session of this group is over: epochs are out of step. Tell the peers, and whom to look at. */
        env->fabric->ops->abort(env->fabric, result->peer);
        return env->services->fail(
            status,
            "%s: rank %d waited %" PRId64 " ms for rank %d in %s: expected epoch %" PRIu64 ", seen %" PRIu64
            "; find out why rank %d did not make this call, then "
            "epx_group_recover",
            env->group_name, rank, env->shape->timeout_ms, result->peer, what,
            without_generation(result->expected), without_generation(result->seen), result->peer);
    }
    if (status == EPX_ERR_PEER && result->failure != 0)
        return peer_route_error(env, result->peer, what);
    if (status == EPX_ERR_PEER) {
        env->fabric->ops->aborted(env->fabric, &culprit);
        if (culprit >= 0)
            return env->services->fail(status,
                                       "%s: rank %d ended the group, blaming rank %d (seen by rank %d in %s)",
                                       env->group_name, result->peer, culprit, rank, what);
        return env->services->fail(status, "%s: rank %d ended the group or is gone (seen by rank %d in %s)",
                                   env->group_name, result->peer, rank, what);
    }
    if (status == EPX_ERR_UNSUPPORTED) /* the fabric has said why */
        return status;
    return env->services->fail(status, "%s: %s of rank %d ended: %s", env->group_name, what, rank,
                               status == EPX_ERR_ABORTED
                                   ? "the group was aborted here; epx_group_recover makes it usable"
                                   : "the fabric failed");
}

static int64_t more_patience(void *recorder, int64_t timeout_ms, int64_t waited_ns)
{
    return epx_recorder_patience(recorder, timeout_ms, waited_ns);
}

/* What this rank's own device says of a pass that another rank refused. It finds the same sooner or later,
 * unless nothing has been sent by which it could. */
static epx_status_t verdict_behind_refusal(epx_transport_t *transport, const epx_plan_base_t *plan)
{
    const epx_transport_env_t *env = &transport->env;
    int comes = !env->device->host_access && (!env->sizes->learns || plan->head.confirmed);
    int64_t deadline = env->services->clock_ns() + PATIENCE_NS;
    while (comes && !epx_route_is_told(plan) && env->services->clock_ns() < deadline)
        env->services->nap_ns(20000);
    return epx_route_verdict(transport, plan);
}

/* What `late` hands back: the move + 1 (0: a route's exchange), the wave, the lane, the slot. */
static uint64_t tag_of(int32_t move, int32_t wave, int32_t lane, int32_t slot)
{
    return (uint64_t)(uint32_t)(move + 1) | (uint64_t)((uint32_t)wave & 0xffffffu) << 8 |
           (uint64_t)((uint32_t)lane & 0xffffu) << 32 | (uint64_t)((uint32_t)slot & 0xffffu) << 48;
}

static void name_tag(uint64_t tag, char *what, size_t bytes)
{
    int32_t move = (int32_t)(tag & 0xff) - 1, lane = (int32_t)(tag >> 32 & 0xffff);
    if (move < 0 || move >= EPX_MOVES)
        snprintf(what, bytes, "route, lane %d", lane);
    else
        snprintf(what, bytes, "%s, wave %d, lane %d, slot %d", epx_move_name((epx_move_t)move),
                 (int32_t)(tag >> 8 & 0xffffff), lane, (int32_t)(tag >> 48));
}

epx_status_t epx_late_error(epx_transport_t *transport)
{
    const epx_fabric_ops_t *ops = transport->env.fabric->ops;
    epx_wait_result_t result = {.peer = -1};
    uint64_t tag = 0;
    epx_status_t status = ops->late != NULL ? ops->late(transport->env.fabric, &result, &tag) : EPX_OK;
    char what[96];
    if (status == EPX_OK)
        return EPX_OK;
    name_tag(tag, what, sizeof(what));
    return wait_error(transport, status, &result, what);
}

/* Nobody refuses a pass there (D3). */
static epx_wait_t resident_request(const epx_plan_base_t *plan, const epx_move_wait_t *wait,
                                   epx_wait_t request)
{
    request.gate = epx_resident_gate(plan);
    request.beside = (epx_word_beside_t){
        .tell_from = wait->tell_from, .tell_to = wait->tell_to, .tell_bytes = (int64_t)wait->tell_bytes};
    if (wait->last) {
        request.beside.words = plan->lane->words;
        request.beside.head = epx_plan_head(plan);
        memcpy(request.beside.acknowledged, plan->lane->acknowledged, sizeof(plan->lane->acknowledged));
        plan->lane->ended = 1;
    }
    if (wait->credit > 0)
        request.epoch = (epx_epoch_t){.base = &plan->lane->words->credit[wait->credit - 1]};
    if (wait->watch)
        request.watch[request.watches++] = (epx_watch_t){.channel = plan->lane->index * EPX_FAILURE_ROWS,
                                                         .rows = EPX_FAILURE_ROWS,
                                                         .epoch = {.base = &epx_plan_head(plan)->number}};
    return request;
}

/* Ends also by this route's failure word, and where errors come late, by a rank that refuses this pass. */
static epx_wait_t wait_request(const epx_transport_t *transport, const epx_plan_base_t *plan,
                               const epx_move_wait_t *wait)
{
    epx_wait_t request = {
        .channel = wait->channel,
        .epoch = epx_lane_epoch(plan->lane, wait->epoch),
        .peer = wait->peer,
        .mode = wait->mode,
        .timeout_ms = transport->env.shape->timeout_ms,
        .tag = tag_of(wait->move, wait->wave, wait->lane, wait->wave % transport->env.shape->depth)};
    if (wait->part > 0) {
        request.channel = wait->part - 1;
        request.either = wait->channel + 1;
    }
    request.early = wait->early;
    if (wait->early && plan->lane->words != NULL)
        request.begin = begin_of(plan); /* that of this pass, which may be written this moment */
    if (epx_errors_come_late(transport)) {
        request.verdict = epx_route_for_kernels(plan);
        request.progress = told_by_kernels(transport, plan->lane, EPX_RECORD_ASKED_SEEN);
        request.name = plan->lane->name;
        request.last_word = wait->mode == EPX_WAIT_EQUAL && wait->part == 0;
    }
    if (plan->lane->words != NULL)
        return resident_request(plan, wait, request);
    if (wait->watch)
        request.watch[request.watches++] =
            (epx_watch_t){.channel = failure_channel(transport, plan), .epoch = {.add = plan->head.route}};
    if (!transport->env.device->host_access)
        request.watch[request.watches++] =
            (epx_watch_t){.channel = refusal_channel(transport, plan), .epoch = {.add = plan->lane->base}};
    return request;
}

epx_status_t epx_move_wait(epx_transport_t *transport, epx_plan_base_t *plan, const epx_move_wait_t *wait,
                           epx_stream_t stream)
{
    epx_fabric_t *fabric = transport->env.fabric;
    epx_recorder_h recorder = transport->env.recorder;
    epx_patience_t patience = {.context = recorder, .more_ms = more_patience};
    epx_wait_t request = wait_request(transport, plan, wait);
    epx_wait_result_t unseen = {.peer = -1};
    request.patience = &patience;
    epx_status_t status = begin_before(transport, plan, stream);
    if (status != EPX_OK)
        return status;
    epx_wait_result_t *result = epx_recorder_wait_begin(recorder, wait->channel, wait->peer, wait->epoch,
                                                        (int32_t)wait->mode, &unseen);
    status = fabric->ops->wait(fabric, &request, result, stream);
    epx_recorder_wait_end(recorder, wait->channel, status == EPX_OK);
    account_wait(plan, result);
    if (status == EPX_OK && wait->tell_bytes > 0 && plan->lane->words == NULL)
        status = transport->env.device->copy(wait->tell_to, wait->tell_from, wait->tell_bytes, stream);
    if (status == EPX_OK)
        return EPX_OK;
    if (status == EPX_ERR_PEER && result->failure != 0) {
        /* This rank's own device knows best whose fault it was, where it has found out. */
        epx_status_t own = verdict_behind_refusal(transport, plan);
        plan->head.valid = own != EPX_OK ? own : status;
        if (own != EPX_OK)
            return own;
    }
    char what[96];
    snprintf(what, sizeof(what), "%s, wave %d, lane %d, slot %d", epx_move_name(wait->move), wait->wave,
             wait->lane, wait->wave % transport->env.shape->depth);
    return wait_error(transport, status, result, what);
}

static epx_status_t exchange_blocks(epx_transport_t *transport, epx_plan_base_t *plan,
                                    epx_exchange_t *exchange, epx_stream_t stream)
{
    epx_fabric_t *fabric = transport->env.fabric;
    epx_recorder_h recorder = transport->env.recorder;
    epx_patience_t patience = {.context = recorder, .more_ms = more_patience};
    epx_wait_result_t own = {.peer = -1}, *result = &own;
    exchange->channel = plan->lane->index;
    exchange->timeout_ms = transport->env.shape->timeout_ms;
    exchange->tag = tag_of(-1, 0, plan->lane->index, 0);
    exchange->patience = &patience;
    if (plan->lane->progress != NULL && epx_errors_come_late(transport)) {
        epx_recorder_asked(recorder, EPX_RECORD_ASKED_STEP, epx_recorder_next_step(recorder));
        exchange->progress = plan->lane->progress;
        exchange->name = plan->lane->name;
    }
    if (exchange->send != NULL) {
        epx_recorder_sent(recorder, EPX_ALL_PEERS, plan->head.route);
        result =
            epx_recorder_wait_begin(recorder, -1, EPX_ALL_PEERS, plan->head.route, EPX_RECORD_EXCHANGE, &own);
    }
    epx_status_t status = fabric->ops->exchange(fabric, exchange, result, stream);
    if (exchange->send != NULL)
        epx_recorder_wait_end(recorder, -1, status == EPX_OK);
    account_wait(plan, result);
    if (status == EPX_OK)
        return EPX_OK;

    char what[64];
    snprintf(what, sizeof(what), "route, lane %d", plan->lane->index);
    return wait_error(transport, status, result, what);
}

epx_status_t epx_route_exchange(epx_transport_t *transport, epx_plan_base_t *plan, const void *send,
                                void *receive, size_t bytes, epx_stream_t stream)
{
    epx_exchange_t exchange = {.send = send, .receive = receive, .bytes = bytes};
    return exchange_blocks(transport, plan, &exchange, stream);
}

epx_status_t epx_route_exchange_on_host(epx_transport_t *transport, epx_plan_base_t *plan, const void *send,
                                        void *receive, size_t bytes, epx_stream_t stream)
{
    epx_exchange_t exchange = {.on_host = 1, .send = send, .receive = receive, .bytes = bytes};
    return exchange_blocks(transport, plan, &exchange, stream);
}

epx_status_t epx_route_read_ids(epx_transport_t *transport, const epx_plan_base_t *plan,
                                epx_k_read_ids_t *args, int look_now, epx_stream_t stream)
{
    const epx_transport_env_t *env = &transport->env;
    epx_route_notice_t notice = {.bad_at = EPX_NOTICE_GOOD};
    epx_k_lane_t lane = route_step(plan);
    args->lane = plan->lane->routes ? &lane : NULL;
    plan->lane->routes = 0;
    epx_status_t status = env->kernels->read_ids(args, stream);
    if (status == EPX_OK && (look_now || env->device->host_access))
        status = epx_fetch(transport, &notice, args->notice, sizeof(notice), stream);
    if (status != EPX_OK || notice.bad_at == EPX_NOTICE_GOOD)
        return status;
    return slip_error(env, notice.bad_at, notice.bad_id);
}

epx_status_t epx_canary_fill(epx_transport_t *transport, void *area, int64_t bytes, epx_stream_t stream)
{
    if (transport->env.shape->check != EPX_CHECK_CANARY && transport->env.shape->check != EPX_CHECK_FULL)
        return EPX_OK;
    epx_k_poison_t args = {.rows = area, .bytes = bytes & ~(int64_t)1};
    return transport->env.kernels->poison(&args, stream);
}

int32_t epx_type_bytes(epx_type_t type)
{
    switch (type) {
    case EPX_FP32:
    case EPX_INT32: return 4;
    case EPX_BF16:
    case EPX_FP16: return 2;
    case EPX_INT64: return 8;
    case EPX_TYPE_DEFAULT: break;
    }
    return 0;
}
