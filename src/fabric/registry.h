/* The fabrics of this build. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_FABRIC_REGISTRY_H
#define EPX_FABRIC_REGISTRY_H

#include <epx/fabric.h>
#include <epx/info.h>

/* A name that the configuration knows, and its table; NULL where this build lacks it. */
typedef struct epx_fabric_entry {
    const char *name;
    const epx_fabric_ops_t *ops;
} epx_fabric_entry_t;

int32_t epx_fabric_count(void);
const epx_fabric_entry_t *epx_fabric_at(int32_t index);

/* Another table stands in for the fabric of that name, as with devices. Before any group opens. */
void epx_fabric_stand_in(const char *name, const epx_fabric_ops_t *ops);

/* The n fabrics of n ranks that are threads of this process, at once and without a bootstrap. All or none. */
epx_status_t epx_fabric_threads(const epx_fabric_config_t *config, int32_t n, epx_fabric_t **fabrics);

/* What epx_nccl_describe tells. */
void epx_fabric_tell_nccl(epx_nccl_info_t *info);

/* The fabric that carries ranks of one process. */
const epx_fabric_ops_t *epx_fabric_of_threads(void);

#endif
