/* Which host this is. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_BASE_HOST_H
#define EPX_BASE_HOST_H

#include <stdint.h>

/* Equal for processes that can share memory and see each other's ids: of one boot, and of the same IPC,
 * process and network name spaces. */
uint64_t epx_host_identity(void);

#endif
