/* Who sits where: a pure function of a machine. SPDX-License-Identifier: Apache-2.0 */
#include "topology/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"

/* A rank with fewer cores than this shares its node's with the others: it has helper threads. */
enum { CORES_LEAST = 2 };

/* ---- sets of processors ----------------------------------------------------------------------------------------- */

void epx_processors_join(epx_processors_t *into, const epx_processors_t *from)
{
    for (int32_t w = 0; w < EPX_PROCESSOR_WORDS; w++)
        into->word[w] |= from->word[w];
}

static int32_t holds(const epx_processors_t *set, int32_t p)
{
    return p < EPX_PROCESSORS_MAX && (set->word[p / 64] >> (p % 64) & 1) != 0;
}

void epx_processors_text(const epx_processors_t *set, char *text, size_t bytes)
{
    size_t at = 0;
    text[0] = '\0';
    for (int32_t first = 0; first < EPX_PROCESSORS_MAX; first++) {
        char piece[32];
        int32_t last = first;
        if (!holds(set, first))
            continue;
        while (holds(set, last + 1))
            last++;
        int n =
            snprintf(piece, sizeof(piece), last > first ? "%s%d-%d" : "%s%d", at > 0 ? "," : "", first, last);
        if (at + (size_t)n + sizeof("...") > bytes) {
            snprintf(text + at, bytes - at, "...");
            return;
        }
        memcpy(text + at, piece, (size_t)n + 1);
        at += (size_t)n;
        first = last;
    }
}

/* ---- nodes and cores -------------------------------------------------------------------------------------------- */

/* Index of the n-th node that has cores. */
static int32_t node_with_cores(const struct epx_topology *machine, int32_t n)
{
    for (int32_t i = 0; i < machine->nodes; i++)
        if (machine->node[i].cores > 0 && n-- == 0)
            return i;
    return -1;
}

static int32_t count_nodes_with_cores(const struct epx_topology *machine)
{
    int32_t count = 0;
    for (int32_t i = 0; i < machine->nodes; i++)
        count += machine->node[i].cores > 0;
    return count;
}

static int32_t index_of_node(const struct epx_topology *machine, int32_t number)
{
    for (int32_t i = 0; i < machine->nodes; i++)
        if (machine->node[i].number == number && machine->node[i].cores > 0)
            return i;
    return -1;
}

/* The node beside the GPU of a rank, as an index; -1: no GPU, or nobody knows. */
static int32_t node_of_gpu(const struct epx_topology *machine, const epx_place_t *place)
{
    return place->gpu >= 0 ? index_of_node(machine, machine->gpu[place->gpu].node) : -1;
}

/* Adds the cores first..last-1 of node `index` (counted within it) to the place. */
static void take_cores(const struct epx_topology *machine, int32_t index, int32_t first, int32_t last,
                       epx_place_t *place, epx_processors_t *set)
{
    int32_t at = 0;
    for (int32_t c = 0; c < machine->cores; c++) {
        if (machine->core[c].node != index)
            continue;
        if (at >= first && at < last) {
            epx_processors_join(set, &machine->core[c].processors);
            place->cores++;
        }
        at++;
    }
}

/* A rank alone on whole nodes: first..last-1 of those with cores. */
static void take_nodes(const struct epx_topology *machine, int32_t first, int32_t last, epx_place_t *place,
                       epx_processors_t *set)
{
    for (int32_t n = first; n < last; n++) {
        int32_t index = node_with_cores(machine, n);
        take_cores(machine, index, 0, machine->node[index].cores, place, set);
        place->node = last - first == 1 ? machine->node[index].number : -1;
    }
}

/* The i-th of `sharers` ranks of a node: its block of the cores, or all of them. */
static void share_node(const struct epx_topology *machine, int32_t index, int32_t i, int32_t sharers,
                       epx_place_t *place, epx_processors_t *set)
{
    int64_t cores = machine->node[index].cores;
    place->node = machine->node[index].number;
    if (cores / sharers < CORES_LEAST)
        take_cores(machine, index, 0, (int32_t)cores, place, set);
    else
        take_cores(machine, index, (int32_t)(cores * i / sharers), (int32_t)(cores * (i + 1) / sharers),
                   place, set);
}

/* home [ranks]: index of the node of each rank, or -1 for a rank that has one or more nodes alone. */
static void choose_homes(const struct epx_topology *machine, int32_t ranks, const epx_place_t *places,
                         int32_t *home)
{
    int64_t nodes = count_nodes_with_cores(machine);
    for (int32_t r = 0; r < ranks; r++) {
        home[r] = node_of_gpu(machine, &places[r]);
        if (home[r] < 0)
            home[r] = ranks >= nodes ? node_with_cores(machine, (int32_t)(r * nodes / ranks)) : -1;
    }
}

/* sharers, served [nodes], zeroed: ranks of a node, and how many of them have their cores already. */
static void deal_cores(const struct epx_topology *machine, int32_t ranks, const int32_t *home,
                       int32_t *sharers, int32_t *served, epx_place_t *places, epx_processors_t *sets)
{
    int64_t nodes = count_nodes_with_cores(machine);
    for (int32_t r = 0; r < ranks; r++)
        if (home[r] >= 0)
            sharers[home[r]]++;
    for (int32_t r = 0; r < ranks; r++) {
        epx_processors_t own = {{0}}, *set = sets != NULL ? &sets[r] : &own;
        *set = own;
        if (home[r] >= 0)
            share_node(machine, home[r], served[home[r]]++, sharers[home[r]], &places[r], set);
        else
            take_nodes(machine, (int32_t)(r * nodes / ranks), (int32_t)((r + 1) * nodes / ranks), &places[r],
                       set);
        epx_processors_text(set, places[r].processors, sizeof(places[r].processors));
    }
}

/* ---- NICs ------------------------------------------------------------------------------------------------------- */

static int32_t package_of_node(const struct epx_topology *machine, int32_t number)
{
    int32_t index = index_of_node(machine, number);
    return index >= 0 ? machine->node[index].package : -1;
}

/* How near a rank is to a NIC: its GPU, or else its node. */
static int32_t near_of(const struct epx_topology *machine, const epx_place_t *place, int32_t nic)
{
    const epx_topology_item_t *item = &machine->nic[nic];
    if (place->gpu >= 0)
        return machine->near[(int64_t)place->gpu * machine->nics + nic];
    if (place->node >= 0 && place->node == item->node)
        return EPX_NEAR_NODE;
    int32_t package = package_of_node(machine, place->node);
    return package >= 0 && package == item->package ? EPX_NEAR_PACKAGE : EPX_NEAR_MACHINE;
}

/* NICs that are known to be down count only where all are. */
static int32_t nic_counts(const struct epx_topology *machine, int32_t nic)
{
    int32_t up = 0;
    for (int32_t i = 0; i < machine->nics; i++)
        up += machine->nic[i].active != 0;
    return up == 0 || machine->nic[nic].active != 0;
}

static int32_t nearest_distance(const struct epx_topology *machine, const epx_place_t *place)
{
    int32_t nearest = EPX_NEAR_MACHINE;
    for (int32_t n = 0; n < machine->nics; n++) {
        int32_t near = near_of(machine, place, n);
        if (nic_counts(machine, n) && near < nearest)
            nearest = near;
    }
    return nearest;
}

/*
 * Ranks whose nearest NIC is nearer choose first. Distances come from a tree, so of two ranks' sets of
 * nearest NICs one holds the other or they share nothing: who has less to choose from is served before.
 */
static void deal_nics(const struct epx_topology *machine, int32_t ranks, epx_place_t *places, int32_t *users)
{
    for (int32_t distance = EPX_NEAR_SWITCH; distance <= EPX_NEAR_MACHINE; distance++)
        for (int32_t r = 0; r < ranks; r++) {
            int32_t best = -1;
            if (nearest_distance(machine, &places[r]) != distance)
                continue;
            for (int32_t n = 0; n < machine->nics; n++)
                if (nic_counts(machine, n) && near_of(machine, &places[r], n) == distance &&
                    (best < 0 || users[n] < users[best]))
                    best = n;
            if (best < 0)
                continue;
            users[best]++;
            places[r].nic_near = distance;
            snprintf(places[r].nic, sizeof(places[r].nic), "%s", machine->nic[best].name);
        }
}

/* ---- all of it -------------------------------------------------------------------------------------------------- */

epx_status_t epx_topology_deal(const struct epx_topology *machine, int32_t ranks, int32_t with_gpus,
                               epx_place_t *places, epx_processors_t *sets)
{
    if (ranks < 1)
        return epx_fail(EPX_ERR_ARG, "epx_topology_plan: %d ranks on a host cannot be; give 1 or more",
                        ranks);
    int32_t *home = calloc((size_t)ranks + 2 * (size_t)machine->nodes + (size_t)machine->nics, sizeof(*home));
    if (home == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "epx_topology_plan: no memory for %d ranks", ranks);
    int32_t *sharers = home + ranks, *served = sharers + machine->nodes, *users = served + machine->nodes;
    for (int32_t r = 0; r < ranks; r++) {
        epx_place_t *place = &places[r];
        *place =
            (epx_place_t){.rank = r, .ranks = ranks, .node = -1, .gpu = -1, .nic_near = EPX_NEAR_MACHINE};
        if (!with_gpus || machine->gpus == 0)
            continue;
        place->gpu = r % machine->gpus;
        snprintf(place->gpu_address, sizeof(place->gpu_address), "%s", machine->gpu[place->gpu].address);
    }
    if (count_nodes_with_cores(machine) > 0) {
        choose_homes(machine, ranks, places, home);
        deal_cores(machine, ranks, home, sharers, served, places, sets);
    }
    deal_nics(machine, ranks, places, users);
    free(home);
    return EPX_OK;
}
