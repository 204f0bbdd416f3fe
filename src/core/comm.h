/* What core needs of a comm beyond its public calls. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_CORE_COMM_H
#define EPX_CORE_COMM_H

#include <epx/comm.h>

/* The comm's all-gather as a way to meet; valid as long as the comm. */
epx_bootstrap_t epx_comm_bootstrap(epx_comm_h comm);

#endif
