/* A plug-in that was built against headers of another time. SPDX-License-Identifier: Apache-2.0 */
#include <epx/transport.h>

const epx_transport_ops_t *epx_transport_plugin(void);
const epx_transport_ops_t *epx_transport_plugin(void)
{
    static const epx_transport_ops_t ops = {.abi = EPX_ABI + 41,
                                            .ops_bytes = sizeof(epx_transport_ops_t),
                                            .name = "other_abi",
                                            .summary = "of another time"};
    return &ops;
}
