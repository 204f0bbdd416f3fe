/* Reads a machine by hwloc. SPDX-License-Identifier: Apache-2.0 */
#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "topology/machine.h"

enum { VENDOR_NVIDIA = 0x10de, CLASS_DISPLAY = 0x03, PORT_ACTIVE = 4 };

/* ---- nodes and cores -------------------------------------------------------------------------------------------- */

static int32_t package_of(hwloc_topology_t from, hwloc_obj_t object)
{
    hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(from, HWLOC_OBJ_PACKAGE, object);
    if (package == NULL && object->type == HWLOC_OBJ_PACKAGE)
        package = object;
    return package != NULL ? (int32_t)package->os_index : -1;
}

/* hwloc keeps nodes by number of their own; ours ascend by the system's. */
static int by_number(const void *a, const void *b)
{
    const epx_topology_item_t *x = a, *y = b;
    return (x->number > y->number) - (x->number < y->number);
}

static void read_nodes(hwloc_topology_t from, struct epx_topology *machine)
{
    for (hwloc_obj_t node = NULL;
         (node = hwloc_get_next_obj_by_type(from, HWLOC_OBJ_NUMANODE, node)) != NULL;) {
        epx_topology_item_t *item = &machine->node[machine->nodes++];
        *item = (epx_topology_item_t){.number = (int32_t)node->os_index,
                                      .node = (int32_t)node->os_index,
                                      .package = package_of(from, node),
                                      .active = -1,
                                      .memory_bytes = (int64_t)node->attr->numanode.local_memory};
        snprintf(item->name, sizeof(item->name), "node %d", item->number);
        snprintf(item->model, sizeof(item->model), "%s", node->subtype != NULL ? node->subtype : "");
    }
    if (machine->nodes > 1)
        qsort(machine->node, (size_t)machine->nodes, sizeof(*machine->node), by_number);
}

/* Index of the first node of a set. GPUs' memory comes after the processors' own, so the first one is theirs.
 */
static int32_t first_node(const struct epx_topology *machine, hwloc_const_nodeset_t set)
{
    for (int32_t i = 0; set != NULL && i < machine->nodes; i++)
        if (hwloc_bitmap_isset(set, (unsigned)machine->node[i].number))
            return i;
    return -1;
}

static void read_processors(hwloc_const_cpuset_t from, epx_processors_t *to)
{
    for (int p = hwloc_bitmap_first(from); p >= 0 && p < EPX_PROCESSORS_MAX; p = hwloc_bitmap_next(from, p))
        to->word[p / 64] |= UINT64_C(1) << (p % 64);
}

static void read_cores(hwloc_topology_t from, struct epx_topology *machine)
{
    hwloc_obj_type_t type =
        hwloc_get_nbobjs_by_type(from, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    for (hwloc_obj_t core = NULL; (core = hwloc_get_next_obj_by_type(from, type, core)) != NULL;) {
        epx_topology_core_t *to = &machine->core[machine->cores++];
        to->node = first_node(machine, core->nodeset);
        read_processors(core->cpuset, &to->processors);
        if (to->node >= 0)
            machine->node[to->node].cores++;
    }
    for (int32_t n = 0; n < machine->nodes; n++) {
        epx_processors_t all = {{0}};
        for (int32_t c = 0; c < machine->cores; c++)
            if (machine->core[c].node == n)
                epx_processors_join(&all, &machine->core[c].processors);
        epx_processors_text(&all, machine->node[n].processors, sizeof(machine->node[n].processors));
    }
}

/* ---- GPUs and NICs ---------------------------------------------------------------------------------------------- */

static void describe_pci(hwloc_topology_t from, struct epx_topology *machine, hwloc_obj_t pci,
                         epx_topology_item_t *item)
{
    const struct hwloc_pcidev_attr_s *at = &pci->attr->pcidev;
    hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(from, pci);
    const char *name = hwloc_obj_get_info_by_name(pci, "PCIDevice");
    *item = (epx_topology_item_t){.node = -1, .package = -1, .active = -1};
    snprintf(item->address, sizeof(item->address), "%04x:%02x:%02x.%x", at->domain, at->bus, at->dev,
             at->func);
    snprintf(item->model, sizeof(item->model), "PCI %04x:%04x", at->vendor_id, at->device_id);
    if (name != NULL)
        snprintf(item->model, sizeof(item->model), "%s", name);
    int32_t with_cores = 0, node = -1;
    for (int32_t n = 0; near != NULL && near->nodeset != NULL && n < machine->nodes; n++) {
        if (machine->node[n].cores == 0 ||
            !hwloc_bitmap_isset(near->nodeset, (unsigned)machine->node[n].number))
            continue;
        node = n;
        with_cores++;
    }
    if (with_cores == 1) { /* of a device beside several nodes none is nearer than the others */
        item->node = machine->node[node].number;
        item->package = machine->node[node].package;
    } else if (near != NULL) {
        item->package = package_of(from, near);
    }
}

static hwloc_obj_t child_of_kind(hwloc_obj_t pci, hwloc_obj_osdev_type_t kind)
{
    for (hwloc_obj_t child = pci->io_first_child; child != NULL; child = child->next_sibling)
        if (child->type == HWLOC_OBJ_OS_DEVICE && child->attr->osdev.type == kind)
            return child;
    return NULL;
}

/* Of an RDMA device: 1 a port is active, 0 none is, -1 hwloc does not say. */
static int32_t port_state(hwloc_obj_t device)
{
    int32_t active = -1;
    for (int32_t port = 1; port <= 2; port++) {
        char key[32];
        snprintf(key, sizeof(key), "Port%dState", port);
        const char *state = hwloc_obj_get_info_by_name(device, key);
        if (state != NULL && active < 1)
            active = atoi(state) == PORT_ACTIVE;
    }
    return active;
}

/* The PCI devices of one kind in hwloc's order of addresses: kept in a list, so that distances can be asked.
 */
typedef struct finds {
    hwloc_obj_t *object;
    int32_t count;
} finds_t;

static int by_address(const void *a, const void *b)
{
    const struct hwloc_pcidev_attr_s *x = &(*(const hwloc_obj_t *)a)->attr->pcidev;
    const struct hwloc_pcidev_attr_s *y = &(*(const hwloc_obj_t *)b)->attr->pcidev;
    int64_t left = ((int64_t)x->domain << 16) + (x->bus << 8) + (x->dev << 3) + x->func;
    int64_t right = ((int64_t)y->domain << 16) + (y->bus << 8) + (y->dev << 3) + y->func;
    return (left > right) - (left < right);
}

static int32_t is_gpu(hwloc_obj_t pci)
{
    return pci->attr->pcidev.vendor_id == VENDOR_NVIDIA && pci->attr->pcidev.class_id >> 8 == CLASS_DISPLAY;
}

/* kind: an OS device that the PCI device must have; negative: GPUs. object has room for all PCI devices. */
static void find_devices(hwloc_topology_t from, int kind, finds_t *finds)
{
    finds->count = 0;
    for (hwloc_obj_t pci = NULL; (pci = hwloc_get_next_pcidev(from, pci)) != NULL;)
        if (kind < 0 ? is_gpu(pci) : child_of_kind(pci, (hwloc_obj_osdev_type_t)kind) != NULL)
            finds->object[finds->count++] = pci;
    if (finds->count > 1)
        qsort(finds->object, (size_t)finds->count, sizeof(hwloc_obj_t), by_address);
}

static void read_gpus(hwloc_topology_t from, struct epx_topology *machine, finds_t *finds)
{
    int32_t kept = 0;
    find_devices(from, -1, finds);
    for (int32_t i = 0; i < finds->count; i++) {
        epx_topology_item_t *item = &machine->gpu[kept];
        describe_pci(from, machine, finds->object[i], item);
        if (machine->is_here && !epx_topology_sees_gpu(item->address))
            continue;
        item->number = kept;
        snprintf(item->name, sizeof(item->name), "%s", item->address);
        finds->object[kept++] = finds->object[i];
    }
    machine->gpus = finds->count = kept;
}

static void read_nics(hwloc_topology_t from, struct epx_topology *machine, finds_t *finds)
{
    hwloc_obj_osdev_type_t kind = HWLOC_OBJ_OSDEV_OPENFABRICS;
    find_devices(from, (int)kind, finds);
    machine->has_rdma = finds->count > 0;
    if (finds->count == 0) {
        kind = HWLOC_OBJ_OSDEV_NETWORK;
        find_devices(from, (int)kind, finds);
    }
    for (int32_t i = 0; i < finds->count; i++) {
        epx_topology_item_t *item = &machine->nic[machine->nics];
        hwloc_obj_t device = child_of_kind(finds->object[i], kind);
        hwloc_obj_t netdev = child_of_kind(finds->object[i], HWLOC_OBJ_OSDEV_NETWORK);
        describe_pci(from, machine, finds->object[i], item);
        item->number = machine->nics++;
        item->active = port_state(device);
        snprintf(item->name, sizeof(item->name), "%s", device->name != NULL ? device->name : item->address);
        snprintf(item->netdev, sizeof(item->netdev), "%s",
                 netdev != NULL && netdev->name != NULL ? netdev->name : "");
    }
}

/* hwloc's own function counts depths, which I/O objects do not have. */
static hwloc_obj_t common_ancestor(hwloc_obj_t a, hwloc_obj_t b)
{
    for (hwloc_obj_t up = a; up != NULL; up = up->parent)
        for (hwloc_obj_t other = b; other != NULL; other = other->parent)
            if (up == other)
                return up;
    return NULL;
}

static epx_near_t near_of(hwloc_obj_t a, hwloc_obj_t b, const epx_topology_item_t *x,
                          const epx_topology_item_t *y)
{
    hwloc_obj_t common = common_ancestor(a, b);
    if (common != NULL && common->type == HWLOC_OBJ_BRIDGE)
        return common->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI ? EPX_NEAR_SWITCH : EPX_NEAR_ROOT;
    if (x->node >= 0 && x->node == y->node)
        return EPX_NEAR_NODE;
    return x->package >= 0 && x->package == y->package ? EPX_NEAR_PACKAGE : EPX_NEAR_MACHINE;
}

static void read_devices(hwloc_topology_t from, struct epx_topology *machine, hwloc_obj_t *room, int32_t most)
{
    finds_t gpus = {.object = room}, nics = {.object = room + most};
    read_gpus(from, machine, &gpus);
    read_nics(from, machine, &nics);
    for (int32_t g = 0; g < gpus.count; g++)
        for (int32_t n = 0; n < nics.count; n++)
            machine->near[g * nics.count + n] =
                (uint8_t)near_of(gpus.object[g], nics.object[n], &machine->gpu[g], &machine->nic[n]);
}

/* ---- all of it -------------------------------------------------------------------------------------------------- */

static epx_status_t load(const char *xml, hwloc_topology_t *from_p)
{
    hwloc_topology_t from;
    if (hwloc_topology_init(&from) != 0)
        return epx_fail(EPX_ERR_NO_MEMORY, "hwloc has no memory for a topology");
    hwloc_topology_set_io_types_filter(from, HWLOC_TYPE_FILTER_KEEP_ALL);
    hwloc_topology_set_icache_types_filter(from, HWLOC_TYPE_FILTER_KEEP_NONE);
    /* These would start drivers in the caller's process, to tell what the system's own tables tell as well;
     * the last one leaks. */
    static const char *const without[] = {"cuda", "nvml", "opencl", "gl", "rsmi", "levelzero", "pci"};
    for (size_t i = 0; i < sizeof(without) / sizeof(without[0]); i++)
        hwloc_topology_set_components(from, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, without[i]);
    if (xml != NULL && hwloc_topology_set_xml(from, xml) != 0) {
        hwloc_topology_destroy(from);
        return epx_fail(EPX_ERR_ARG, "hwloc cannot read %s: give a file that lstopo wrote as XML", xml);
    }
    if (hwloc_topology_load(from) != 0) {
        hwloc_topology_destroy(from);
        return xml != NULL
                   ? epx_fail(EPX_ERR_ARG, "hwloc cannot make a machine of %s", xml)
                   : epx_fail(EPX_ERR_UNSUPPORTED, "hwloc cannot read this machine; see what lstopo says");
    }
    *from_p = from;
    return EPX_OK;
}

epx_status_t epx_topology_read(const char *xml, struct epx_topology *machine_p)
{
    hwloc_topology_t from = NULL;
    epx_status_t status = load(xml, &from);
    if (status != EPX_OK)
        return status;
    size_t nodes = (size_t)hwloc_get_nbobjs_by_type(from, HWLOC_OBJ_NUMANODE);
    size_t processors = (size_t)hwloc_get_nbobjs_by_type(from, HWLOC_OBJ_PU);
    size_t devices = (size_t)hwloc_get_nbobjs_by_type(from, HWLOC_OBJ_PCI_DEVICE);
    hwloc_obj_t *room = calloc(2 * devices + 1, sizeof(hwloc_obj_t));
    machine_p->node = calloc(nodes + 1, sizeof(*machine_p->node));
    machine_p->core = calloc(processors + 1, sizeof(*machine_p->core));
    machine_p->gpu = calloc(devices + 1, sizeof(*machine_p->gpu));
    machine_p->nic = calloc(devices + 1, sizeof(*machine_p->nic));
    machine_p->near = calloc(devices * devices + 1, 1);
    if (room == NULL || machine_p->node == NULL || machine_p->core == NULL || machine_p->gpu == NULL ||
        machine_p->nic == NULL || machine_p->near == NULL) {
        status = epx_fail(EPX_ERR_NO_MEMORY, "no memory for a machine of %zu processors", processors);
    } else {
        machine_p->is_here = hwloc_topology_is_thissystem(from);
        machine_p->processors = (int32_t)processors;
        read_nodes(from, machine_p);
        read_cores(from, machine_p);
        read_devices(from, machine_p, room, (int32_t)devices);
    }
    free(room);
    hwloc_topology_destroy(from);
    return status;
}
