/*
 * Where ranks sit: cores, NUMA nodes, GPUs and NICs of a machine, how near they are to each other, and which
 * of them each rank of a host should use. SPDX-License-Identifier: Apache-2.0
 *
 * Needs hwloc in the build (epx-info -b). Without it epx_topology_open ends in EPX_ERR_UNSUPPORTED with the
 * reason, and epx_pin_rank leaves threads where they are and says so.
 */
#ifndef EPX_TOPOLOGY_H
#define EPX_TOPOLOGY_H

#include <epx/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How near two things are; less is nearer. */
typedef enum epx_near {
    EPX_NEAR_SWITCH = 0, /* below one PCIe switch */
    EPX_NEAR_ROOT,       /* below one host bridge */
    EPX_NEAR_NODE,       /* one NUMA node */
    EPX_NEAR_PACKAGE,    /* one package (socket) */
    EPX_NEAR_MACHINE     /* farther, or not known */
} epx_near_t;

/* "switch", "root", "node", "package", "machine"; static, any value allowed. */
const char *epx_near_name(int32_t distance);

typedef enum epx_topology_kind {
    EPX_TOPOLOGY_NODE = 0,
    EPX_TOPOLOGY_GPU,
    EPX_TOPOLOGY_NIC
} epx_topology_kind_t;

/* Sorted lists of logical processors look like "0-13,112-125". */
enum { EPX_PLACE_CORES = 256, EPX_PLACE_NAME = 64, EPX_PLACE_NOTE = 256 };

/* A NUMA node, a GPU or a NIC. Nodes come by number, GPUs and NICs by PCI address. */
typedef struct epx_topology_item {
    char name[EPX_PLACE_NAME];        /* "node 0", "0000:1b:00.0", "mlx5_0" */
    char model[EPX_PLACE_NAME];       /* GPU, NIC: as hwloc names it; may be "" */
    char address[EPX_PLACE_NAME];     /* GPU, NIC: PCI address */
    char netdev[EPX_PLACE_NAME];      /* NIC: its network interface; may be "" */
    char processors[EPX_PLACE_CORES]; /* NODE: its logical processors; ends with "..." where it is cut */
    int32_t number;                   /* NODE: the system's number; else counted from 0 */
    int32_t node;                     /* GPU, NIC: number of the node beside it, -1: not known */
    int32_t package;                  /* -1: not known */
    int32_t cores;                    /* NODE: physical cores; 0 for memory without any, such as a GPU's */
    int32_t active;                   /* NIC: 1 a port is up, 0 none is, -1 not known */
    int64_t memory_bytes;             /* NODE */
} epx_topology_item_t;

typedef struct epx_topology *epx_topology_h;

/*
 * Reads this machine (xml NULL), or a file that lstopo wrote. Blocks for some ten milliseconds; any thread.
 * GPUs are NVIDIA's; those that a container hides from this process are left out. NICs are RDMA devices, or
 * where there is none, Ethernet devices on a PCI bus. EPX_ERR_UNSUPPORTED: no hwloc in this build;
 * EPX_ERR_SYSTEM: hwloc cannot read it; EPX_ERR_NO_MEMORY.
 */
epx_status_t epx_topology_open(const char *xml, epx_topology_h *topology_p);

/* Frees; clears the handle. */
void epx_topology_close(epx_topology_h *topology_p);

/* Item `index` (from 0) of a kind; EPX_ERR_ARG behind the last. */
epx_status_t epx_topology_item(epx_topology_h topology, epx_topology_kind_t kind, int32_t index,
                               epx_topology_item_t *item_p);

/* How near GPU `gpu` and NIC `nic` (indices of their kinds) are; EPX_NEAR_MACHINE for others. */
int32_t epx_topology_near(epx_topology_h topology, int32_t gpu, int32_t nic);

/* What one rank should use. */
typedef struct epx_place {
    int32_t rank, ranks;              /* on this host, from 0 */
    int32_t node;                     /* number of the NUMA node of its cores; -1: several, or not known */
    int32_t cores;                    /* how many physical cores; 0: not known */
    char processors[EPX_PLACE_CORES]; /* their logical processors */
    int32_t gpu;                      /* index among the GPUs by PCI address; -1: none */
    char gpu_address[EPX_PLACE_NAME];
    char nic[EPX_PLACE_NAME];  /* "mlx5_0"; "": none */
    int32_t nic_near;          /* epx_near_t between the GPU, or else the cores, and the NIC */
    int32_t pinned;            /* epx_pin_rank: 1, the thread was bound to the processors */
    char note[EPX_PLACE_NOTE]; /* epx_pin_rank: what was done, or why nothing was */
} epx_place_t;

/*
 * Deals out cores, GPUs and NICs to `ranks` ranks of a host, places [ranks]. A pure function of the topology.
 * - GPU (with_gpus != 0): rank r gets GPU r modulo their number, as programs number their devices.
 * - Node: the one beside the GPU; without GPUs the nodes are dealt out in blocks of neighbouring ranks.
 * - Cores: the ranks of a node divide its cores in blocks of neighbours. Where that leaves less than two for
 * a rank, they share all of them, because a rank has helper threads.
 * - NIC: the nearest that is up; of several equally near the one with the fewest ranks, then the first.
 * EPX_ERR_ARG: ranks < 1; EPX_ERR_NO_MEMORY.
 */
epx_status_t epx_topology_plan(epx_topology_h topology, int32_t ranks, int32_t with_gpus,
                               epx_place_t *places);

/*
 * Binds the calling thread to the cores of its place, for a plan over the ranks of `comm` that are on this
 * host. Threads that it starts later inherit that. Collective. GPUs count where the device that epx would
 * choose is `cuda`. A mask that is smaller than the machine, from a launcher or a batch system, stays as it
 * is; so does everything with EPX_PIN=off. Neither is an error: place_p (may be NULL) says what was done.
 * Errors are those of epx_comm_allgather, EPX_ERR_NO_MEMORY, and those of a wrong EPX_PIN.
 */
epx_status_t epx_pin_rank(epx_comm_h comm, epx_place_t *place_p);

#ifdef __cplusplus
}
#endif
#endif
