/* The services table that fabrics, transports and plug-ins get. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_CORE_SERVICES_H
#define EPX_CORE_SERVICES_H

#include <epx/fabric.h>

const epx_services_t *epx_services(void);

#endif
