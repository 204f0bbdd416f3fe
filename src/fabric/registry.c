/* The fabrics of this build. SPDX-License-Identifier: Apache-2.0 */
#include "fabric/registry.h"

#include <string.h>

#include "fabric/local/local.h"
#include "fabric/ucx/ucx.h"
#include "fabric/nccl/library.h"
#include "fabric/nccl/nccl.h"

static epx_fabric_entry_t fabrics_known[] = {
    {"local", &epx_fabric_local}, {"ucx", &epx_fabric_ucx}, {"nccl", &epx_fabric_nccl}};

enum { FABRICS = sizeof(fabrics_known) / sizeof(fabrics_known[0]) };

int32_t epx_fabric_count(void) { return FABRICS; }

const epx_fabric_entry_t *epx_fabric_at(int32_t index) { return &fabrics_known[index]; }

void epx_fabric_stand_in(const char *name, const epx_fabric_ops_t *ops)
{
    for (int32_t i = 0; i < FABRICS; i++)
        if (strcmp(fabrics_known[i].name, name) == 0)
            fabrics_known[i].ops = ops;
}

epx_status_t epx_fabric_threads(const epx_fabric_config_t *config, int32_t n, epx_fabric_t **fabrics)
{
    return epx_fabric_local_create(config, n, fabrics);
}

void epx_fabric_tell_nccl(epx_nccl_info_t *info) { epx_nccl_tell(info); }

const epx_fabric_ops_t *epx_fabric_of_threads(void) { return &epx_fabric_local; }
