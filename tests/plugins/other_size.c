/* A plug-in whose table is shorter than the library's. SPDX-License-Identifier: Apache-2.0 */
#include <epx/transport.h>

const epx_transport_ops_t *epx_transport_plugin(void);
const epx_transport_ops_t *epx_transport_plugin(void)
{
    static const epx_transport_ops_t ops = {.abi = EPX_ABI,
                                            .ops_bytes = sizeof(epx_transport_ops_t) - 8,
                                            .name = "other_size",
                                            .summary = "too short"};
    return &ops;
}
