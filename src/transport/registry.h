/* The transports that this library has, and plug-ins. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TRANSPORT_REGISTRY_H
#define EPX_TRANSPORT_REGISTRY_H

#include <epx/transport.h>

int32_t epx_registry_count(void);
const epx_transport_ops_t *epx_registry_at(int32_t index);

/* By name; NULL when there is none. */
const epx_transport_ops_t *epx_registry_find(const char *name);

/* Names joined by ", " into text. */
void epx_registry_names(char *text, size_t bytes);

/* Whether a value of EPX_TRANSPORT is a path to a plug-in (holds a '/' or ends in .so). */
int epx_registry_is_path(const char *value);

/* Loads a plug-in and checks its table. It stays loaded until the process ends (kernels and tables may be in
 * use). Errors say the path and what is wrong: ARG (no such file, no symbol), MISMATCH (another ABI). */
epx_status_t epx_registry_load(const char *path, const epx_transport_ops_t **ops_p);

#endif
