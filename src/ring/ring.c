/* ring: the table, opening, the dump. SPDX-License-Identifier: Apache-2.0 */
#include "ring/ring.h"

#include <inttypes.h>
#include <stdio.h>

/* Which expert is which of this rank's, on the device. */
static epx_status_t place_local(epx_ring_t *ring)
{
    const epx_transport_env_t *env = &ring->base.env;
    const epx_owners_t *owners = &env->shape->real;
    for (int32_t e = 0; e < env->shape->experts; e++)
        ring->local[e] = owners->owner[e] == env->shape->rank ? owners->local[e] : -1;
    return env->device->copy((char *)env->scratch + ring->layout.local, ring->local,
                             (size_t)env->shape->experts * sizeof(*ring->local), NULL);
}

/* Where kernels store for the right neighbour. */
static epx_status_t set_destinations(epx_ring_t *ring)
{
    const epx_transport_env_t *env = &ring->base.env;
    char *table = (char *)env->scratch + ring->layout.destinations;
    ring->mirror = epx_ring_staging(env->shape, &ring->layout, env->fabric->caps);
    ring->destinations = env->segment.peer_ptr;
    if (!epx_is_staged(env->fabric->caps))
        return env->device->copy(&ring->right_base, &env->segment.peer_ptr[ring->right],
                                 sizeof(ring->right_base), NULL);
    ring->destinations = (void *const *)table;
    ring->right_base = (char *)env->segment.base + ring->mirror;
    return epx_staged_table(env, table, env->segment.base, ring->right_base);
}

static epx_status_t ring_open(const epx_transport_env_t *env, void *memory, epx_transport_t **transport_p)
{
    epx_ring_t *ring = memory;
    const epx_shape_t *shape = env->shape;
    ring->base = (epx_transport_t){.ops = &epx_transport_ring, .env = *env};
    ring->left = (shape->rank - 1 + shape->ranks) % shape->ranks;
    ring->right = (shape->rank + 1) % shape->ranks;
    ring->lane = (epx_ring_lane_t *)(ring + 1);
    ring->local = (int32_t *)(ring->lane + shape->lanes);
    if (!epx_ring_lay_out(shape, &ring->layout))
        return env->services->fail(EPX_ERR_NO_MEMORY, "%s: ring: the shape is too large", env->group_name);

    epx_status_t status = place_local(ring);
    if (status == EPX_OK)
        status = epx_shape_tables_copy(env, (char *)env->scratch + ring->layout.tables, &ring->device_shape);
    if (status == EPX_OK)
        status = env->device->fill(epx_ring_zeros(ring), 0,
                                   (size_t)(ring->layout.lanes_scratch - ring->layout.zeros), NULL);
    /* Peers fill slots only after the whole group has opened, so that this may overwrite anything. */
    if (status == EPX_OK)
        status = set_destinations(ring);
    if (status == EPX_OK)
        status =
            epx_canary_fill(&ring->base, env->segment.base, ring->layout.segment_bytes + ring->mirror, NULL);
    if (status == EPX_OK)
        status = env->device->synchronize(NULL);
    if (status == EPX_OK)
        *transport_p = &ring->base;
    return status;
}

/* Everything that a ring has belongs to the group. */
static void ring_close(epx_transport_t *transport) { (void)transport; }

static void ring_dump(epx_transport_t *transport, void (*line)(void *context, const char *text),
                      void *context)
{
    static const char *const names[EPX_RING_CHAINS] = {"blocks", "sums", "gradients"};
    const epx_ring_t *ring = (const epx_ring_t *)transport;
    char text[160];
    for (int32_t lane = 0; lane < transport->env.shape->lanes; lane++) {
        for (int32_t c = 0; c < EPX_RING_CHAINS; c++) {
            const epx_ring_chain_t *chain = &ring->lane[lane].chain[c];
            if (chain->finished == 0)
                continue;
            snprintf(text, sizeof(text),
                     "ring lane %d %s: %d of %d hops finished, the last with epoch %" PRIu64
                     "; receives from rank %d, passes on to rank %d",
                     lane, names[c], chain->finished, transport->env.shape->ranks, chain->last, ring->left,
                     ring->right);
            line(context, text);
        }
    }
}

const epx_transport_ops_t epx_transport_ring = {
    .abi = EPX_ABI,
    .ops_bytes = sizeof(epx_transport_ops_t),
    .name = "ring",
    .summary =
        "token blocks and partial sums go from neighbour to neighbour; regular and simple, a reference",
    .probe = epx_ring_probe,
    .query = epx_ring_query,
    .open = ring_open,
    .close = ring_close,
    .route = epx_ring_route,
    .dispatch_start = epx_ring_dispatch_start,
    .dispatch_finish = epx_ring_dispatch_finish,
    .combine_start = epx_ring_combine_start,
    .combine_finish = epx_ring_combine_finish,
    .combine_backward_start = epx_ring_combine_backward_start,
    .combine_backward_finish = epx_ring_combine_backward_finish,
    .dispatch_backward_start = epx_ring_dispatch_backward_start,
    .dispatch_backward_finish = epx_ring_dispatch_backward_finish,
    .account = epx_ring_account,
    .dump = ring_dump,
};
