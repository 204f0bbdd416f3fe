/* Words: posting, waiting, the exchange, and the sentences of their errors. SPDX-License-Identifier:
 * Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "record/recorder.h"
#include "transport/inside.h"

/* How long a rank waits for its own device before it names the rank that refused a pass. */
#define PATIENCE_NS 1000000000

/* Where kernels post and wait, they say so. */
static epx_progress_words_t *told_by_kernels(const epx_transport_t *transport, const epx_lane_t *lane,
                                             uint32_t asked)
{
    if (lane->progress == NULL || !epx_errors_come_late(transport))
        return NULL;
    epx_recorder_asked(transport->env.recorder, asked, 0);
    return lane->progress;
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
        post.begin = epx_lane_begin_of(plan);
    plan->lane->begins = 0;
    return post;
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
        return epx_route_error(env, result->peer, what);
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
    if (request.behind_post)
        request.begin = epx_lane_begin_of(plan);
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
        .behind_post = wait->behind_post,
        .next_begins = wait->next_begins,
        .tag = tag_of(wait->move, wait->wave, wait->lane, wait->wave % transport->env.shape->depth)};
    if (epx_errors_come_late(transport)) {
        request.verdict = epx_route_for_kernels(plan);
        request.progress = told_by_kernels(transport, plan->lane, EPX_RECORD_ASKED_SEEN);
        request.name = plan->lane->name;
        request.last_word = wait->mode == EPX_WAIT_EQUAL;
    }
    if (plan->lane->words != NULL)
        return resident_request(plan, wait, request);
    if (wait->watch)
        request.watch[request.watches++] = (epx_watch_t){.channel = epx_failure_channel(transport, plan),
                                                         .epoch = {.add = plan->head.route}};
    if (!transport->env.device->host_access)
        request.watch[request.watches++] = (epx_watch_t){.channel = epx_refusal_channel(transport, plan),
                                                         .epoch = {.add = plan->lane->base}};
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
    epx_status_t status = epx_lane_begin_first(transport, plan, stream);
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
