/* A plug-in that says that it can run, and then fails to open on rank 1. SPDX-License-Identifier: Apache-2.0
 */
#include "stubs.h"

const epx_transport_ops_t *epx_transport_plugin(void);

static int willing(const epx_shape_t *shape, uint32_t caps, char *reason, size_t bytes)
{
    (void)shape, (void)caps, (void)reason, (void)bytes;
    return 1;
}

static epx_status_t open_but_on_rank_1(const epx_transport_env_t *env, void *memory,
                                       epx_transport_t **transport_p)
{
    if (env->shape->rank == 1)
        return stub_open(env, memory, transport_p);
    *(epx_transport_t *)memory = (epx_transport_t){.ops = epx_transport_plugin(), .env = *env};
    *transport_p = memory;
    return EPX_OK;
}

const epx_transport_ops_t *epx_transport_plugin(void)
{
    static epx_transport_ops_t ops;
    ops = stub_table("fails_to_open");
    ops.probe = willing;
    ops.open = open_but_on_rank_1;
    return &ops;
}
