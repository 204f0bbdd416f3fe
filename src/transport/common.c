/* What the transports share. SPDX-License-Identifier: Apache-2.0 */
#include "transport/common.h"

#include <inttypes.h>
#include <stdio.h>

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
static epx_status_t copy_table(const epx_device_ops_t *device, const int32_t **table, int64_t count, int32_t **end)
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

uint64_t epx_lane_advance(epx_lane_t *lane) { return ++lane->epoch; }

void epx_lane_resume(epx_plan_base_t *plan)
{
    if (plan->jump_epoch == 0)
        return;
    uint64_t next = plan->lane->epoch + 1;
    plan->lane->epoch = next > plan->jump_epoch ? next : plan->jump_epoch;
    plan->jump_epoch = 0;
}

epx_status_t epx_move_post(epx_transport_t *transport, int32_t channel, uint64_t epoch, int32_t peer,
                           epx_stream_t stream)
{
    epx_fabric_t *fabric = transport->env.fabric;
    epx_post_t post = {.channel = channel, .epoch = {.base = NULL, .add = epoch}, .peer = peer};
    return fabric->ops->post(fabric, &post, stream);
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
        return env->services->fail(
            status, "%s: the route of rank %d failed (seen by rank %d in %s); mend it there and route again",
            env->group_name, result->peer, rank, what);
    if (status == EPX_ERR_PEER) {
        env->fabric->ops->aborted(env->fabric, &culprit);
        if (culprit >= 0)
            return env->services->fail(status,
                                       "%s: rank %d ended the group, blaming rank %d (seen by rank %d in %s)",
                                       env->group_name, result->peer, culprit, rank, what);
        return env->services->fail(status, "%s: rank %d ended the group or is gone (seen by rank %d in %s)",
                                   env->group_name, result->peer, rank, what);
    }
    return env->services->fail(status, "%s: %s of rank %d ended: %s", env->group_name, what, rank,
                               status == EPX_ERR_ABORTED
                                   ? "the group was aborted here; epx_group_recover makes it usable"
                                   : "the fabric failed");
}

epx_status_t epx_move_wait(epx_transport_t *transport, epx_plan_base_t *plan, const epx_move_wait_t *wait,
                           epx_stream_t stream)
{
    epx_fabric_t *fabric = transport->env.fabric;
    epx_wait_t request = {.channel = wait->channel,
                          .epoch = {.base = NULL, .add = wait->epoch},
                          .peer = wait->peer,
                          .mode = wait->mode,
                          .failure_channel = wait->failure_channel,
                          .failure_epoch = {.base = NULL, .add = wait->failure_epoch},
                          .timeout_ms = transport->env.shape->timeout_ms};
    epx_wait_result_t result = {.peer = -1};
    epx_status_t status = fabric->ops->wait(fabric, &request, &result, stream);
    account_wait(plan, &result);
    if (status == EPX_ERR_PEER && result.failure > wait->failure_epoch &&
        result.failure < wait->failure_epoch + wait->failure_span) {
        request.failure_epoch.add = wait->failure_epoch + wait->failure_span;
        status = fabric->ops->wait(fabric, &request, &result, stream);
        account_wait(plan, &result);
    }
    if (status == EPX_OK)
        return EPX_OK;

    char what[96];
    snprintf(what, sizeof(what), "%s, wave %d, lane %d, slot %d", epx_move_name(wait->move), wait->wave,
             wait->lane, wait->wave % transport->env.shape->depth);
    return wait_error(transport, status, &result, what);
}

epx_status_t epx_route_exchange(epx_transport_t *transport, epx_plan_base_t *plan, const void *send,
                                void *receive, size_t bytes, epx_stream_t stream)
{
    epx_fabric_t *fabric = transport->env.fabric;
    epx_exchange_t exchange = {.channel = plan->lane->index,
                               .send = send,
                               .receive = receive,
                               .bytes = bytes,
                               .timeout_ms = transport->env.shape->timeout_ms};
    epx_wait_result_t result = {.peer = -1};
    epx_status_t status = fabric->ops->exchange(fabric, &exchange, &result, stream);
    account_wait(plan, &result);
    if (status == EPX_OK)
        return EPX_OK;

    char what[64];
    snprintf(what, sizeof(what), "route, lane %d", plan->lane->index);
    return wait_error(transport, status, &result, what);
}

epx_status_t epx_route_read_ids(epx_transport_t *transport, const epx_k_read_ids_t *args, epx_stream_t stream)
{
    const epx_transport_env_t *env = &transport->env;
    epx_status_t status = env->kernels->read_ids(args, stream);
    if (status != EPX_OK || args->bad[0] < 0)
        return status;
    return env->services->fail(EPX_ERR_ROUTING,
                               "%s: rank %d, token %" PRId64 ", k %" PRId64 ": expert id %" PRId64
                               " is outside -1..%d; mend the router's output and route again",
                               env->group_name, env->shape->rank, args->bad[0] / args->columns,
                               args->bad[0] % args->columns, args->bad[1], args->experts - 1);
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
