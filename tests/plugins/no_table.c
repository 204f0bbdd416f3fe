/* A plug-in that has nothing to offer. SPDX-License-Identifier: Apache-2.0 */
#include <epx/transport.h>

const epx_transport_ops_t *epx_transport_plugin(void);
const epx_transport_ops_t *epx_transport_plugin(void) { return 0; }
