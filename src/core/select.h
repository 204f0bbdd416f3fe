/* Which device, fabric and transport a configuration comes to, and why. SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_CORE_SELECT_H
#define EPX_CORE_SELECT_H

#include "core/reach.h"
#include "core/shape.h"

enum { EPX_WHY_BYTES = 160 };

typedef struct epx_selection {
    const epx_device_ops_t *device;
    const epx_fabric_ops_t *fabric;
    const epx_transport_ops_t *transport;
    uint32_t caps; /* of fabric and device, as transports are told */
    char why_device[EPX_WHY_BYTES], why_fabric[EPX_WHY_BYTES], why_transport[EPX_WHY_BYTES];
    epx_settings_t settings;
    epx_shape_t shape;
    epx_sizes_t sizes;
} epx_selection_t;

/* One candidate as it was judged; what info.h lists. */
typedef struct epx_judged {
    const char *kind; /* "device", "fabric", "transport" */
    const char *name, *summary;
    int32_t score;
    char reason[320];
} epx_judged_t;

typedef void (*epx_judged_fn)(void *context, const epx_judged_t *judged);

/*
 * Chooses. `config` has been checked by epx_shape_check, tables [epx_shape_table_bytes]. Every candidate
 * judged is told to fn (may be NULL), also when the choice fails. ARG for names that nobody knows,
 * UNSUPPORTED with everybody's reason. reach: of the ranks, for the fabric.
 */
epx_status_t epx_select_among(const epx_group_config_t *config, int32_t rank, int32_t ranks,
                              epx_reach_t reach, void *tables, epx_judged_fn fn, void *context,
                              epx_selection_t *selection_p);

/* The same for ranks that are not there yet: as far apart as this process's launcher lets expect. */
epx_status_t epx_select(const epx_group_config_t *config, int32_t rank, int32_t ranks, void *tables,
                        epx_judged_fn fn, void *context, epx_selection_t *selection_p);

#endif
