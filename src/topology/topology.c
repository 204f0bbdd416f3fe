/* The public view of a machine. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "topology/machine.h"

const char *epx_near_name(int32_t distance)
{
    static const char *const names[] = {"switch", "root", "node", "package", "machine"};
    return distance >= 0 && distance <= EPX_NEAR_MACHINE ? names[distance] : "machine";
}

epx_status_t epx_topology_open(const char *xml, epx_topology_h *topology_p)
{
    if (topology_p == NULL)
        return epx_fail(EPX_ERR_ARG, "epx_topology_open: topology_p is NULL");
    struct epx_topology *machine = calloc(1, sizeof(*machine));
    if (machine == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "epx_topology_open: no memory");
    epx_status_t status = epx_topology_read(xml, machine);
    if (status == EPX_OK)
        *topology_p = machine;
    else
        epx_topology_close(&machine);
    return status;
}

void epx_topology_clear(struct epx_topology *machine)
{
    free(machine->node);
    free(machine->core);
    free(machine->gpu);
    free(machine->nic);
    free(machine->near);
    *machine = (struct epx_topology){0};
}

void epx_topology_close(epx_topology_h *topology_p)
{
    if (topology_p == NULL || *topology_p == NULL)
        return;
    epx_topology_clear(*topology_p);
    free(*topology_p);
    *topology_p = NULL;
}

epx_status_t epx_topology_item(epx_topology_h topology, epx_topology_kind_t kind, int32_t index,
                               epx_topology_item_t *item_p)
{
    if (topology == NULL || item_p == NULL || (int)kind < 0 || kind > EPX_TOPOLOGY_NIC)
        return epx_fail(EPX_ERR_ARG, "epx_topology_item: give a topology, a known kind and item_p");
    const struct {
        const epx_topology_item_t *item;
        int32_t count;
    } lists[] = {
        {topology->node, topology->nodes}, {topology->gpu, topology->gpus}, {topology->nic, topology->nics}};
    if (index < 0 || index >= lists[kind].count)
        return epx_fail(EPX_ERR_ARG, "epx_topology_item: there is no item %d, only %d of this kind", index,
                        lists[kind].count);
    *item_p = lists[kind].item[index];
    return EPX_OK;
}

int32_t epx_topology_near(epx_topology_h topology, int32_t gpu, int32_t nic)
{
    if (topology == NULL || gpu < 0 || gpu >= topology->gpus || nic < 0 || nic >= topology->nics)
        return EPX_NEAR_MACHINE;
    return topology->near[gpu * topology->nics + nic];
}

epx_status_t epx_topology_plan(epx_topology_h topology, int32_t ranks, int32_t with_gpus, epx_place_t *places)
{
    if (topology == NULL || places == NULL)
        return epx_fail(EPX_ERR_ARG, "epx_topology_plan: give a topology and places [ranks]");
    return epx_topology_deal(topology, ranks, with_gpus, places, NULL);
}

const epx_topology_item_t *epx_topology_rail(const struct epx_topology *machine, const epx_place_t *place)
{
    const epx_topology_item_t *mine = NULL;
    int32_t usable = 0;
    for (int32_t n = 0; n < machine->nics; n++) {
        usable += machine->nic[n].active != 0;
        if (strcmp(machine->nic[n].name, place->nic) == 0)
            mine = &machine->nic[n];
    }
    return machine->has_rdma && usable > 1 ? mine : NULL;
}
