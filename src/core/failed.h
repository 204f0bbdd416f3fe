/* What ends a group, and whether it has ended. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_CORE_FAILED_H
#define EPX_CORE_FAILED_H

#include "core/group_state.h"

/* EPX_OK while the group is usable, whatever its plans are. */
epx_status_t epx_group_alive(epx_group_t *group);

/* Notes an error of a transport or fabric: what ends the group makes it sticky and tells the peers. Returns
 * status. */
epx_status_t epx_group_note(epx_group_t *group, epx_status_t status);

#endif
