/* Memory that is left. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TOOLS_ROOM_H
#define EPX_TOOLS_ROOM_H

#include <stdint.h>

/* How many bytes this process may still take, by what is free on the machine (swap included) and by the
 * limits of its control groups, versions 1 and 2, whose caches count as free; INT64_MAX where neither can be
 * read. *whose_p: "this machine", "this control group". */
int64_t epx_room_bytes(const char **whose_p);

/* The same of a system whose files stand below `root`: "" is this one. */
int64_t epx_room_below(const char *root, const char **whose_p);

#endif
