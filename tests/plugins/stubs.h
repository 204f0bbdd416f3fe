/* Functions for plug-ins that never get as far as moving rows. SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_STUBS_H
#define TESTS_STUBS_H

#include <stdio.h>

#include <epx/transport.h>

static int stub_probe(const epx_shape_t *shape, uint32_t caps, char *reason, size_t bytes)
{
    (void)shape, (void)caps;
    snprintf(reason, bytes, "the stub never runs");
    return 0;
}

static epx_status_t stub_query(const epx_shape_t *shape, uint32_t caps, const epx_services_t *services,
                               epx_sizes_t *sizes_p)
{
    (void)shape, (void)caps;
    *sizes_p =
        (epx_sizes_t){.state_bytes = 4096, .plan_bytes = 256, .waves = 1, .channels = 1, .batch_rows_max = 1};
    (void)services;
    return EPX_OK;
}

static epx_status_t stub_open(const epx_transport_env_t *env, void *memory, epx_transport_t **transport_p)
{
    (void)memory, (void)transport_p;
    return env->services->fail(EPX_ERR_FABRIC, "the stub of rank %d does not open", env->shape->rank);
}

static void stub_close(epx_transport_t *transport) { (void)transport; }

static epx_status_t stub_route(epx_transport_t *t, epx_plan_base_t *p, const epx_routing_t *r,
                               epx_status_t publish, epx_stream_t s)
{
    (void)t, (void)p, (void)r, (void)publish, (void)s;
    return EPX_ERR_UNSUPPORTED;
}

static epx_status_t stub_x(epx_transport_t *t, epx_plan_base_t *p, int32_t w, const void *x,
                           const epx_batch_t *b, epx_stream_t s)
{
    (void)t, (void)p, (void)w, (void)x, (void)b, (void)s;
    return EPX_ERR_UNSUPPORTED;
}

static epx_status_t stub_batch(epx_transport_t *t, epx_plan_base_t *p, int32_t w, epx_batch_t *b,
                               epx_stream_t s)
{
    (void)t, (void)p, (void)w, (void)b, (void)s;
    return EPX_ERR_UNSUPPORTED;
}

static epx_status_t stub_in(epx_transport_t *t, epx_plan_base_t *p, int32_t w, const void *y, epx_stream_t s)
{
    (void)t, (void)p, (void)w, (void)y, (void)s;
    return EPX_ERR_UNSUPPORTED;
}

static epx_status_t stub_out(epx_transport_t *t, epx_plan_base_t *p, int32_t w, void *out, epx_stream_t s)
{
    (void)t, (void)p, (void)w, (void)out, (void)s;
    return EPX_ERR_UNSUPPORTED;
}

static epx_status_t stub_dy(epx_transport_t *t, epx_plan_base_t *p, int32_t w, const void *y, epx_batch_t *dy,
                            epx_stream_t s)
{
    (void)t, (void)p, (void)w, (void)y, (void)dy, (void)s;
    return EPX_ERR_UNSUPPORTED;
}

static epx_status_t stub_dx(epx_transport_t *t, epx_plan_base_t *p, int32_t w, void *dx, float *dweight,
                            epx_stream_t s)
{
    (void)t, (void)p, (void)w, (void)dx, (void)dweight, (void)s;
    return EPX_ERR_UNSUPPORTED;
}

static void stub_account(epx_transport_t *t, epx_plan_base_t *p) { (void)t, (void)p; }

static void stub_dump(epx_transport_t *t, void (*line)(void *, const char *), void *context)
{
    (void)t, (void)line, (void)context;
}

static inline epx_transport_ops_t stub_table(const char *name)
{
    return (epx_transport_ops_t){
        .abi = EPX_ABI,
        .ops_bytes = sizeof(epx_transport_ops_t),
        .name = name,
        .summary = "a stub",
        .probe = stub_probe,
        .query = stub_query,
        .open = stub_open,
        .close = stub_close,
        .route = stub_route,
        .dispatch_start = stub_x,
        .dispatch_finish = stub_batch,
        .combine_start = stub_in,
        .combine_finish = stub_out,
        .combine_backward_start = stub_in,
        .combine_backward_finish = stub_dy,
        .dispatch_backward_start = stub_in,
        .dispatch_backward_finish = stub_dx,
        .account = stub_account,
        .dump = stub_dump,
    };
}

#endif
