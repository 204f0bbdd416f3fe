/* From a caller's configuration to the static shape of a group. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_CORE_SHAPE_H
#define EPX_CORE_SHAPE_H

#include <epx/transport.h>

#include "core/config.h"

/*
 * Copies a caller's configuration of any known size into *config_p and checks what can be checked without
 * settings: sizes, counts, types, owners. ranks >= 1. EPX_ERR_ARG with the field, the value and what is
 * allowed.
 */
epx_status_t epx_shape_check(const epx_group_config_t *config, int32_t ranks, epx_group_config_t *config_p);

/* Bytes of the ownership tables of E experts over S real and N virtual ranks. */
int64_t epx_shape_table_bytes(const epx_group_config_t *config, int32_t ranks);

/* Fills *shape_p from a checked configuration and resolved settings; its tables point into `tables`. */
epx_status_t epx_shape_make(const epx_group_config_t *config, const epx_settings_t *settings, int32_t rank,
                            int32_t ranks, void *tables, epx_shape_t *shape_p);

/* A number that differs between shapes that lay plans out differently. */
uint64_t epx_shape_signature(const epx_shape_t *shape, const char *transport);

#endif
