/*
 * The parts of epx-info. Each shows what the library says about one configuration, as text or as JSON.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_TOOLS_INFO_INFO_H
#define EPX_TOOLS_INFO_INFO_H

#include <epx/epx.h>
#include <epx/info.h>

#include "tools/common/json.h"

/* What all parts need. */
typedef struct epx_info {
    epx_group_config_t config;
    epx_json_t *json;       /* NULL: text */
    epx_group_info_t would; /* what opening would give, when `usable` */
    int32_t usable;
    char failure[1024];        /* else the library's reason */
    const char *topology_file; /* NULL: this machine */
    int32_t host_ranks;        /* ranks on it; 0: one for each GPU, or else for each node */
    const char *stats_folder;  /* of EPX_STATS */
} epx_info_t;

/* Each returns an exit code and, with JSON, adds one member to the open object. */
int epx_info_use(const epx_info_t *info);        /* what will be used, and why */
int epx_info_settings(const epx_info_t *info);   /* -c */
int epx_info_transports(const epx_info_t *info); /* -t */
int epx_info_fabrics(const epx_info_t *info);    /* -f */
int epx_info_devices(const epx_info_t *info);    /* -d */
int epx_info_memory(const epx_info_t *info);     /* -m */
int epx_info_build(const epx_info_t *info);      /* -b */
int epx_info_topology(const epx_info_t *info);   /* -T */
int epx_info_ran(const epx_info_t *info);        /* --stats */

#endif
