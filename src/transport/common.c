/* What the transports share: numbers, tables, areas, heads. SPDX-License-Identifier: Apache-2.0 */
#include "transport/common.h"

#include <stddef.h>

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

epx_status_t epx_canary_fill(epx_transport_t *transport, void *area, int64_t bytes, epx_stream_t stream)
{
    if (transport->env.shape->check != EPX_CHECK_CANARY && transport->env.shape->check != EPX_CHECK_FULL)
        return EPX_OK;
    epx_k_poison_t args = {.rows = area, .bytes = bytes};
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
