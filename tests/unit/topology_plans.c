/*
 * Where ranks sit: golden plans of three machines, worked out by hand from what stands in machines/make.py,
 * and properties of plans of machines that are made up. SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <epx/info.h>
#include <epx/topology.h>

#include "topology/machine.h"

enum { RANKS = 16 };

static int has_hwloc(void)
{
    epx_build_part_t part;
    for (int32_t i = 0; epx_build_part(i, &part) == EPX_OK; i++)
        if (strcmp(part.name, "hwloc") == 0)
            return part.compiled;
    return 0;
}

static epx_topology_h open_machine(const char *name)
{
    char path[256];
    epx_topology_h topology = NULL;
    if (!has_hwloc())
        cr_skip_test("this build has no hwloc");
    snprintf(path, sizeof(path), "tests/unit/machines/%s.xml", name);
    cr_assert_eq(epx_topology_open(path, &topology), EPX_OK, "%s", epx_last_error());
    return topology;
}

/* ---- golden plans ----------------------------------------------------------------------------------------------- */

typedef struct seat {
    int32_t node, cores;
    const char *processors;
    int32_t gpu;
    const char *nic;
    epx_near_t near;
} seat_t;

static void check_plan(const char *machine, int32_t ranks, int32_t with_gpus, const seat_t *seats)
{
    epx_topology_h topology = open_machine(machine);
    epx_place_t places[RANKS];
    cr_assert_eq(epx_topology_plan(topology, ranks, with_gpus, places), EPX_OK, "%s", epx_last_error());
    for (int32_t r = 0; r < ranks; r++) {
        const epx_place_t *place = &places[r];
        cr_expect(place->rank == r && place->ranks == ranks);
        cr_expect_eq(place->node, seats[r].node, "rank %d: node %d", r, place->node);
        cr_expect_eq(place->cores, seats[r].cores, "rank %d: %d cores", r, place->cores);
        cr_expect_str_eq(place->processors, seats[r].processors, "rank %d: processors %s", r,
                         place->processors);
        cr_expect_eq(place->gpu, seats[r].gpu, "rank %d: GPU %d", r, place->gpu);
        cr_expect_str_eq(place->nic, seats[r].nic, "rank %d: NIC %s", r, place->nic);
        cr_expect_eq(place->nic_near, (int32_t)seats[r].near, "rank %d: NIC by %s", r,
                     epx_near_name(place->nic_near));
    }
    epx_topology_close(&topology);
}

/* 56 cores for four ranks: 14 each, and their second threads 112 higher; the NIC behind the GPU's own switch.
 */
static const seat_t dgx_8[] = {
    {0, 14, "0-13,112-125", 0, "mlx5_0", EPX_NEAR_SWITCH},
    {0, 14, "14-27,126-139", 1, "mlx5_3", EPX_NEAR_SWITCH},
    {0, 14, "28-41,140-153", 2, "mlx5_4", EPX_NEAR_SWITCH},
    {0, 14, "42-55,154-167", 3, "mlx5_5", EPX_NEAR_SWITCH},
    {1, 14, "56-69,168-181", 4, "mlx5_6", EPX_NEAR_SWITCH},
    {1, 14, "70-83,182-195", 5, "mlx5_9", EPX_NEAR_SWITCH},
    {1, 14, "84-97,196-209", 6, "mlx5_10", EPX_NEAR_SWITCH},
    {1, 14, "98-111,210-223", 7, "mlx5_11", EPX_NEAR_SWITCH},
};
Test(topology, dgx_h100_with_a_rank_for_each_gpu) { check_plan("dgx-h100", 8, 1, dgx_8); }

/* Ranks r and r + 8 share a GPU and its NIC; node 0 has ranks 0..3 and 8..11, seven cores each, in this
 * order. */
static const seat_t dgx_16[] = {
    {0, 7, "0-6,112-118", 0, "mlx5_0", EPX_NEAR_SWITCH},
    {0, 7, "7-13,119-125", 1, "mlx5_3", EPX_NEAR_SWITCH},
    {0, 7, "14-20,126-132", 2, "mlx5_4", EPX_NEAR_SWITCH},
    {0, 7, "21-27,133-139", 3, "mlx5_5", EPX_NEAR_SWITCH},
    {1, 7, "56-62,168-174", 4, "mlx5_6", EPX_NEAR_SWITCH},
    {1, 7, "63-69,175-181", 5, "mlx5_9", EPX_NEAR_SWITCH},
    {1, 7, "70-76,182-188", 6, "mlx5_10", EPX_NEAR_SWITCH},
    {1, 7, "77-83,189-195", 7, "mlx5_11", EPX_NEAR_SWITCH},
    {0, 7, "28-34,140-146", 0, "mlx5_0", EPX_NEAR_SWITCH},
    {0, 7, "35-41,147-153", 1, "mlx5_3", EPX_NEAR_SWITCH},
    {0, 7, "42-48,154-160", 2, "mlx5_4", EPX_NEAR_SWITCH},
    {0, 7, "49-55,161-167", 3, "mlx5_5", EPX_NEAR_SWITCH},
    {1, 7, "84-90,196-202", 4, "mlx5_6", EPX_NEAR_SWITCH},
    {1, 7, "91-97,203-209", 5, "mlx5_9", EPX_NEAR_SWITCH},
    {1, 7, "98-104,210-216", 6, "mlx5_10", EPX_NEAR_SWITCH},
    {1, 7, "105-111,217-223", 7, "mlx5_11", EPX_NEAR_SWITCH},
};
Test(topology, dgx_h100_with_two_ranks_for_each_gpu) { check_plan("dgx-h100", 16, 1, dgx_16); }

/* Without GPUs neighbours share a package; NICs by node, the ones that fewest use, by address. */
static const seat_t dgx_host_4[] = {
    {0, 28, "0-27,112-139", -1, "mlx5_0", EPX_NEAR_NODE},
    {0, 28, "28-55,140-167", -1, "mlx5_1", EPX_NEAR_NODE},
    {1, 28, "56-83,168-195", -1, "mlx5_6", EPX_NEAR_NODE},
    {1, 28, "84-111,196-223", -1, "mlx5_7", EPX_NEAR_NODE},
};
Test(topology, dgx_h100_on_its_processors) { check_plan("dgx-h100", 4, 0, dgx_host_4); }

/* A core each, and the device of its own package. */
static const seat_t rails_2[] = {
    {0, 1, "0", -1, "rail0", EPX_NEAR_NODE},
    {1, 1, "1", -1, "rail1", EPX_NEAR_NODE},
};
Test(topology, two_rails_for_two_ranks) { check_plan("two-rails", 2, 0, rails_2); }

/* What a network is told: the RDMA device of the place with its interface, where there are several; never an
 * Ethernet device. */
static void check_rail(const char *name, int32_t ranks, int32_t with_gpus, int32_t rank, const char *device,
                       const char *interface)
{
    epx_topology_h machine = open_machine(name);
    epx_place_t places[RANKS];
    cr_assert_eq(epx_topology_plan(machine, ranks, with_gpus, places), EPX_OK, "%s", epx_last_error());
    const epx_topology_item_t *rail = epx_topology_rail(machine, &places[rank]);
    if (device == NULL)
        cr_expect_null(rail, "%s: rank %d is told %s", name, rank, rail != NULL ? rail->name : "");
    else
        cr_expect(rail != NULL && strcmp(rail->name, device) == 0 && strcmp(rail->netdev, interface) == 0,
                  "%s: rank %d is told %s", name, rank, rail != NULL ? rail->name : "nothing");
    epx_topology_close(&machine);
}
Test(topology, what_a_network_is_told)
{
    check_rail("dgx-h100", 8, 1, 5, "mlx5_9", "ibp192s0");
    check_rail("gb200-tray", 4, 1, 3, "mlx5_4", "ibP18p3s0");
    check_rail("two-rails", 2, 0, 1, "rail1", "eth1");
    check_rail("laptop", 4, 0, 0, NULL, NULL);
}

/* One rank without a GPU has both packages, so no NIC is nearer to it than another. */
static const seat_t dgx_host_1[] = {{-1, 112, "0-223", -1, "mlx5_0", EPX_NEAR_MACHINE}};
Test(topology, dgx_h100_for_one_rank) { check_plan("dgx-h100", 1, 0, dgx_host_1); }

/* 72 cores for two ranks; no switches, so NICs go by node, one each, and the nodes' DPUs stay free. */
static const seat_t tray_4[] = {
    {0, 36, "0-35", 0, "mlx5_0", EPX_NEAR_NODE},
    {0, 36, "36-71", 1, "mlx5_1", EPX_NEAR_NODE},
    {1, 36, "72-107", 2, "mlx5_3", EPX_NEAR_NODE},
    {1, 36, "108-143", 3, "mlx5_4", EPX_NEAR_NODE},
};
Test(topology, gb200_tray_with_a_rank_for_each_gpu) { check_plan("gb200-tray", 4, 1, tray_4); }

/* Two ranks on the processors alone: the nodes of GPU memory have no cores and get nobody. */
static const seat_t tray_host_2[] = {
    {0, 72, "0-71", -1, "mlx5_0", EPX_NEAR_NODE},
    {1, 72, "72-143", -1, "mlx5_3", EPX_NEAR_NODE},
};
Test(topology, gb200_tray_on_its_processors) { check_plan("gb200-tray", 2, 0, tray_host_2); }

/* 14 cores for four: 3, 4, 3, 4, of which the first six have two threads. Its graphics are no GPU of ours. */
static const seat_t laptop_4[] = {
    {0, 3, "0-5", -1, "wlp0s20f3", EPX_NEAR_NODE},
    {0, 4, "6-12", -1, "wlp0s20f3", EPX_NEAR_NODE},
    {0, 3, "13-15", -1, "wlp0s20f3", EPX_NEAR_NODE},
    {0, 4, "16-19", -1, "wlp0s20f3", EPX_NEAR_NODE},
};
Test(topology, laptop_for_four_ranks) { check_plan("laptop", 4, 1, laptop_4); }

/* 14 cores for eight would leave one or two: all share all. */
Test(topology, laptop_for_more_ranks_than_it_has_room_for)
{
    seat_t seats[8];
    for (int32_t r = 0; r < 8; r++)
        seats[r] = (seat_t){0, 14, "0-19", -1, "wlp0s20f3", EPX_NEAR_NODE};
    check_plan("laptop", 8, 1, seats);
}

Test(topology, distances_between_gpus_and_nics)
{
    epx_topology_h topology = open_machine("dgx-h100");
    /* GPU 1 (43) is behind one switch with mlx5_3 (fourth by address), on one package with mlx5_1. */
    cr_expect_eq(epx_topology_near(topology, 1, 3), EPX_NEAR_SWITCH);
    cr_expect_eq(epx_topology_near(topology, 1, 1), EPX_NEAR_NODE);
    cr_expect_eq(epx_topology_near(topology, 1, 11), EPX_NEAR_MACHINE);
    cr_expect_eq(epx_topology_near(topology, 8, 0), EPX_NEAR_MACHINE);
    epx_topology_close(&topology);
    cr_expect_null(topology);
}

/* The port of GPU 1's own NIC is down: it takes the first free NIC of its package, and nobody else moves. */
Test(topology, a_nic_that_is_down_is_not_taken)
{
    epx_topology_h topology = open_machine("dgx-h100");
    epx_place_t places[8];
    epx_topology_item_t nic;
    cr_assert_eq(epx_topology_item(topology, EPX_TOPOLOGY_NIC, 3, &nic), EPX_OK);
    cr_assert_str_eq(nic.name, "mlx5_3");
    cr_expect_eq(nic.active, 1);
    cr_expect_str_eq(nic.netdev, "ibp64s0");
    topology->nic[3].active = 0;
    cr_assert_eq(epx_topology_plan(topology, 8, 1, places), EPX_OK);
    for (int32_t r = 0; r < 8; r++) {
        cr_expect_str_eq(places[r].nic, r == 1 ? "mlx5_1" : dgx_8[r].nic, "rank %d: %s", r, places[r].nic);
        cr_expect_eq(places[r].nic_near, r == 1 ? EPX_NEAR_NODE : EPX_NEAR_SWITCH);
    }
    for (int32_t n = 0; n < topology->nics; n++)
        topology->nic[n].active = 0;
    cr_assert_eq(epx_topology_plan(topology, 8, 1, places), EPX_OK);
    cr_expect_str_eq(places[1].nic, "mlx5_3", "where all are down all count");
    epx_topology_close(&topology);
}

Test(topology, files_that_are_no_machine_are_refused)
{
    epx_topology_h topology = NULL;
    if (!has_hwloc())
        cr_skip_test("this build has no hwloc");
    cr_expect_eq(epx_topology_open("tests/unit/machines/make.py", &topology), EPX_ERR_ARG);
    cr_expect(strstr(epx_last_error(), "make.py") != NULL, "%s", epx_last_error());
    cr_expect_eq(epx_topology_open("tests/unit/machines/none.xml", &topology), EPX_ERR_ARG);
    cr_expect_null(topology);
}

/* ---- machines made up, which need no hwloc ----------------------------------------------------------------------- */

enum { NODES = 3, NICS = 4, CORES = 20 };

typedef struct made {
    struct epx_topology machine;
    epx_topology_item_t node[NODES], gpu[2], nic[NICS];
    epx_topology_core_t core[CORES];
    uint8_t near[2 * NICS];
} made_t;

/* Nodes of 11, 0 and 9 cores in two packages; processor c is core c. */
static void make(made_t *made)
{
    memset(made, 0, sizeof(*made));
    made->machine = (struct epx_topology){.nodes = NODES,
                                          .cores = CORES,
                                          .processors = CORES,
                                          .node = made->node,
                                          .gpu = made->gpu,
                                          .nic = made->nic,
                                          .core = made->core,
                                          .near = made->near};
    for (int32_t n = 0; n < NODES; n++)
        made->node[n] = (epx_topology_item_t){.number = 10 * n,
                                              .node = 10 * n,
                                              .package = n / 2,
                                              .cores = n == 0   ? 11
                                                       : n == 1 ? 0
                                                                : 9};
    for (int32_t c = 0; c < CORES; c++) {
        made->core[c].node = c < 11 ? 0 : 2;
        made->core[c].processors.word[0] = UINT64_C(1) << c;
    }
    for (int32_t n = 0; n < NICS; n++) {
        made->nic[n] =
            (epx_topology_item_t){.number = n, .node = n < 2 ? 0 : 20, .package = n / 2, .active = -1};
        snprintf(made->nic[n].name, sizeof(made->nic[n].name), "nic%d", n);
    }
}

/* Every core has a rank, cores are dealt to one rank each or to all ranks of their node, blocks differ by
 * one. */
Test(topology, cores_are_dealt_out_completely)
{
    made_t made;
    make(&made);
    for (int32_t ranks = 1; ranks <= 40; ranks++) {
        epx_place_t *places = calloc((size_t)ranks, sizeof(*places));
        epx_processors_t *sets = calloc((size_t)ranks, sizeof(*sets)), all = {{0}};
        int32_t least = CORES, most = 0, sum = 0;
        cr_assert_eq(epx_topology_deal(&made.machine, ranks, 0, places, sets), EPX_OK);
        for (int32_t r = 0; r < ranks; r++) {
            epx_processors_join(&all, &sets[r]);
            cr_assert_eq(places[r].cores, __builtin_popcountll(sets[r].word[0]));
            cr_assert(places[r].cores >= 2, "%d ranks: rank %d has %d cores", ranks, r, places[r].cores);
            cr_assert_eq(places[r].node,
                         ranks == 1      ? -1
                         : 2 * r < ranks ? 0
                                         : 20,
                         "%d ranks: rank %d on node %d", ranks, r, places[r].node);
            if (places[r].node != 0)
                continue;
            least = places[r].cores < least ? places[r].cores : least;
            most = places[r].cores > most ? places[r].cores : most;
            sum += places[r].cores;
        }
        cr_assert_eq(all.word[0], (UINT64_C(1) << CORES) - 1, "%d ranks: some core has nobody", ranks);
        /* node 0 has half of the ranks, rounded up: up to five of them get two cores or more each */
        int32_t here = (ranks + 1) / 2;
        if (ranks > 1)
            cr_assert(here <= 5 ? most - least <= 1 && sum == 11 : least == 11,
                      "%d ranks: %d to %d cores, %d in all", ranks, least, most, sum);
        free(places);
        free(sets);
    }
}

/* Who has one near NIC is served before who has several, whatever the order of the ranks. */
Test(topology, a_rank_with_one_near_nic_gets_it)
{
    made_t made;
    epx_place_t places[2];
    make(&made);
    made.machine.gpus = 2;
    made.machine.nics = 2;
    /* GPU 0 shares a host bridge with both, GPU 1 a switch with nic0. */
    const uint8_t near[] = {EPX_NEAR_ROOT, EPX_NEAR_ROOT, EPX_NEAR_SWITCH, EPX_NEAR_ROOT};
    memcpy(made.near, near, sizeof(near));
    cr_assert_eq(epx_topology_deal(&made.machine, 2, 1, places, NULL), EPX_OK);
    cr_expect_str_eq(places[0].nic, "nic1");
    cr_expect_str_eq(places[1].nic, "nic0");
}

/* A GPU whose node nobody knows: its rank is spread as one without a GPU. */
Test(topology, a_gpu_beside_no_known_node)
{
    made_t made;
    epx_place_t places[2];
    make(&made);
    made.machine.gpus = 2;
    made.gpu[0].node = made.gpu[1].node = -1;
    cr_assert_eq(epx_topology_deal(&made.machine, 2, 1, places, NULL), EPX_OK);
    cr_expect_eq(places[0].node, 0);
    cr_expect_eq(places[1].node, 20);
    cr_expect_eq(places[1].gpu, 1);
}

Test(topology, a_machine_of_nothing)
{
    struct epx_topology machine = {0};
    epx_place_t places[3];
    cr_assert_eq(epx_topology_deal(&machine, 3, 1, places, NULL), EPX_OK);
    cr_expect(places[2].node == -1 && places[2].gpu == -1 && places[2].nic[0] == '\0' &&
              places[2].cores == 0);
    cr_expect_eq(epx_topology_deal(&machine, 0, 1, places, NULL), EPX_ERR_ARG);
}

Test(topology, lists_of_processors)
{
    epx_processors_t set = {{0}};
    char text[24];
    epx_processors_text(&set, text, sizeof(text));
    cr_expect_str_eq(text, "");
    set.word[0] = UINT64_C(0x800000000000000b); /* 0, 1, 3, 63 */
    set.word[1] = 1;
    epx_processors_text(&set, text, sizeof(text));
    cr_expect_str_eq(text, "0-1,3,63-64");
    set.word[EPX_PROCESSOR_WORDS - 1] = UINT64_C(1) << 63;
    epx_processors_text(&set, text, sizeof(text));
    cr_expect_str_eq(text, "0-1,3,63-64,4095");
    memset(&set, 0x55, sizeof(set)); /* every second one, which does not fit */
    epx_processors_text(&set, text, sizeof(text));
    cr_expect_str_eq(text, "0,2,4,6,8,10,12,14...");
}

/* ---- masks ------------------------------------------------------------------------------------------------------- */

static int32_t own_mask(epx_processors_t *set)
{
    int32_t count = 0;
    memset(set, 0, sizeof(*set));
    cr_assert_eq(sched_getaffinity(0, sizeof(*set), (cpu_set_t *)(void *)set), 0);
    for (int32_t w = 0; w < EPX_PROCESSOR_WORDS; w++)
        count += __builtin_popcountll(set->word[w]);
    return count;
}

/* The lowest processor of a set alone. */
static epx_processors_t lowest(const epx_processors_t *set)
{
    epx_processors_t one = {{0}};
    int32_t w = 0;
    while (set->word[w] == 0)
        w++;
    one.word[w] = set->word[w] & -set->word[w];
    return one;
}

/* Runs in a process of its own, as every test: the mask dies with it. */
Test(topology, a_mask_that_was_set_before_stays)
{
    char note[EPX_PLACE_NOTE];
    epx_processors_t before, after;
    int32_t count = own_mask(&before);
    if (count < 2)
        cr_skip_test("this process has one processor");
    epx_processors_t one = lowest(&before);
    /* as if the machine had one more than the mask allows */
    cr_expect_eq(epx_topology_bind(&one, count + 1, note, sizeof(note)), 0);
    cr_expect(strstr(note, "stays") != NULL, "%s", note);
    own_mask(&after);
    cr_expect_eq(memcmp(&before, &after, sizeof(after)), 0, "the mask has changed");
    /* its cores are the whole machine: nothing to do */
    cr_expect_eq(epx_topology_bind(&before, count, note, sizeof(note)), 0);
    /* the mask is the whole machine: bound */
    cr_expect_eq(epx_topology_bind(&one, count, note, sizeof(note)), 1, "%s", note);
    own_mask(&after);
    cr_expect_eq(memcmp(&one, &after, sizeof(after)), 0, "the mask is not the asked one");
}

Test(topology, pinning_says_what_it_did)
{
    epx_comm_h comm;
    epx_place_t place;
    cr_assert_eq(epx_comm_threads(1, &comm), EPX_OK);
    setenv("EPX_PIN", "off", 1);
    cr_assert_eq(epx_pin_rank(comm, &place), EPX_OK);
    cr_expect(place.rank == 0 && place.ranks == 1 && place.pinned == 0);
    cr_expect(strstr(place.note, "EPX_PIN=off") != NULL, "%s", place.note);
    setenv("EPX_PIN", "yes", 1);
    cr_expect_eq(epx_pin_rank(comm, &place), EPX_ERR_ARG);
    unsetenv("EPX_PIN");
    cr_assert_eq(epx_pin_rank(comm, &place), EPX_OK);
    cr_expect(has_hwloc() ? place.cores > 0 : strstr(place.note, "hwloc") != NULL, "%s", place.note);
    epx_comm_destroy(&comm);
}
