/*
 * A machine as the plan sees it: flat arrays, no hwloc. SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_TOPOLOGY_MACHINE_H
#define EPX_TOPOLOGY_MACHINE_H

#include <epx/topology.h>

enum { EPX_PROCESSORS_MAX = 4096, EPX_PROCESSOR_WORDS = EPX_PROCESSORS_MAX / 64 };

/* A set of logical processors, by the system's numbers. */
typedef struct epx_processors {
    uint64_t word[EPX_PROCESSOR_WORDS];
} epx_processors_t;

void epx_processors_join(epx_processors_t *into, const epx_processors_t *from);

/* "0-13,112-125"; what does not fit is cut at a comma and ends with "...". */
void epx_processors_text(const epx_processors_t *set, char *text, size_t bytes);

typedef struct epx_topology_core {
    int32_t node; /* index of its node in items, -1: in none */
    epx_processors_t processors;
} epx_topology_core_t;

/* Nodes ascend by number, GPUs and NICs by PCI address, cores in hwloc's order (neighbours share caches). */
struct epx_topology {
    int32_t nodes, gpus, nics, cores;
    epx_topology_item_t *node, *gpu, *nic;
    epx_topology_core_t *core;
    uint8_t *near;      /* [gpus, nics] epx_near_t */
    int32_t has_rdma;   /* 1: the NICs are RDMA devices, 0: Ethernet */
    int32_t is_here;    /* 1: it describes the machine that this process runs on */
    int32_t processors; /* logical, online */
};

/* Fills *machine_p (zeroed by the caller) by hwloc; on errors epx_topology_clear frees what is there. */
epx_status_t epx_topology_read(const char *xml, struct epx_topology *machine_p);
void epx_topology_clear(struct epx_topology *machine);

/* 1: this process may see the GPU at a PCI address, as far as the driver tells. */
int32_t epx_topology_sees_gpu(const char *address);

/* epx_topology_plan, with each rank's set of processors beside it (sets may be NULL). */
epx_status_t epx_topology_deal(const struct epx_topology *machine, int32_t ranks, int32_t with_gpus,
                               epx_place_t *places, epx_processors_t *sets);

/* The NIC of a place, where there is something to choose from: RDMA devices of which several may be up. NULL:
 * any will do. Ethernet devices are not dealt out to networks: two of them may lead to two networks. */
const epx_topology_item_t *epx_topology_rail(const struct epx_topology *machine, const epx_place_t *place);

/*
 * Binds the calling thread to `set`, unless its mask is smaller than the machine's `processors` already, or
 * the set is the whole machine. Returns 1 when it bound it; note says what was done or why not.
 */
int32_t epx_topology_bind(const epx_processors_t *set, int32_t processors, char *note, size_t bytes);

#endif
