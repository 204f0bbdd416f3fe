/* A plug-in that calls itself like a transport of the library. SPDX-License-Identifier: Apache-2.0 */
#include "stubs.h"

const epx_transport_ops_t *epx_transport_plugin(void);
const epx_transport_ops_t *epx_transport_plugin(void)
{
    static epx_transport_ops_t ops;
    ops = stub_table("ragged");
    return &ops;
}
