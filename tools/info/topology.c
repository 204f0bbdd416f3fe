/* A machine, drawn, and where its ranks would sit. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <epx/topology.h>

#include "tools/common/numbers.h"
#include "tools/common/program.h"
#include "tools/common/table.h"
#include "tools/info/info.h"

typedef struct drawing {
    epx_topology_h topology;
    epx_json_t *json;
    int32_t count[EPX_TOPOLOGY_NIC + 1];
} drawing_t;

static int32_t count_of(epx_topology_h topology, epx_topology_kind_t kind)
{
    epx_topology_item_t item;
    int32_t count = 0;
    while (epx_topology_item(topology, kind, count, &item) == EPX_OK)
        count++;
    return count;
}

/* ---- items ---- */

static const char *state_of(const epx_topology_item_t *nic)
{
    return nic->active > 0 ? "up" : nic->active == 0 ? "down" : "";
}

static void draw_device(const epx_topology_item_t *item, epx_topology_kind_t kind, int indent)
{
    char name[EPX_PLACE_NAME];
    snprintf(name, sizeof name, kind == EPX_TOPOLOGY_GPU ? "GPU %d" : "NIC %d", item->number);
    printf("%*s%-7s %-12s  %s", indent, "", name, item->address,
           kind == EPX_TOPOLOGY_NIC ? item->name : item->model);
    if (kind == EPX_TOPOLOGY_NIC && item->netdev[0] != '\0' && strcmp(item->netdev, item->name) != 0)
        printf("  %s", item->netdev);
    if (kind == EPX_TOPOLOGY_NIC && state_of(item)[0] != '\0')
        printf("  %s", state_of(item));
    putchar('\n');
}

/* GPUs and NICs beside node `number`; -1: those of no known node. */
static void draw_devices(const drawing_t *d, int32_t number, int indent)
{
    epx_topology_item_t item;
    for (int kind = EPX_TOPOLOGY_GPU; kind <= EPX_TOPOLOGY_NIC; kind++)
        for (int32_t i = 0; epx_topology_item(d->topology, (epx_topology_kind_t)kind, i, &item) == EPX_OK;
             i++)
            if (item.node == number)
                draw_device(&item, (epx_topology_kind_t)kind, indent);
}

static void draw_node(const drawing_t *d, const epx_topology_item_t *node)
{
    char memory[32];
    epx_text_of_bytes(memory, sizeof memory, (double)node->memory_bytes);
    if (node->cores > 0)
        printf("    %s: %d cores (processors %s), %s\n", node->name, node->cores, node->processors, memory);
    else
        printf("    %s: memory without cores, %s%s%s\n", node->name, memory, node->model[0] ? ", " : "",
               node->model);
    draw_devices(d, node->number, 6);
}

/* Package by package, in the order in which nodes name them; those of no known package last. */
static void draw_nodes(const drawing_t *d)
{
    epx_topology_item_t node;
    int32_t last = -1;
    for (int32_t i = 0; epx_topology_item(d->topology, EPX_TOPOLOGY_NODE, i, &node) == EPX_OK; i++)
        last = node.package > last ? node.package : last;
    for (int32_t package = 0; package <= last + 1; package++) {
        int32_t wanted = package <= last ? package : -1, titled = wanted < 0;
        for (int32_t i = 0; epx_topology_item(d->topology, EPX_TOPOLOGY_NODE, i, &node) == EPX_OK; i++) {
            if (node.package != wanted)
                continue;
            if (!titled)
                printf("  package %d\n", wanted);
            titled = 1;
            draw_node(d, &node);
        }
    }
    draw_devices(d, -1, 4);
}

static void json_nodes(const drawing_t *d)
{
    epx_topology_item_t node;
    epx_json_array(d->json, "nodes");
    for (int32_t i = 0; epx_topology_item(d->topology, EPX_TOPOLOGY_NODE, i, &node) == EPX_OK; i++) {
        epx_json_object(d->json, NULL);
        epx_json_int(d->json, "number", node.number);
        epx_json_int(d->json, "package", node.package);
        epx_json_int(d->json, "cores", node.cores);
        epx_json_text(d->json, "processors", node.processors);
        epx_json_int(d->json, "memory_bytes", node.memory_bytes);
        epx_json_close(d->json);
    }
    epx_json_close(d->json);
}

static void json_devices(const drawing_t *d, epx_topology_kind_t kind, const char *key)
{
    epx_topology_item_t item;
    epx_json_array(d->json, key);
    for (int32_t i = 0; epx_topology_item(d->topology, kind, i, &item) == EPX_OK; i++) {
        epx_json_object(d->json, NULL);
        epx_json_int(d->json, "number", item.number);
        epx_json_text(d->json, "name", item.name);
        epx_json_text(d->json, "address", item.address);
        epx_json_text(d->json, "model", item.model);
        epx_json_int(d->json, "node", item.node);
        epx_json_int(d->json, "package", item.package);
        if (kind == EPX_TOPOLOGY_NIC) {
            epx_json_text(d->json, "netdev", item.netdev);
            if (item.active >= 0)
                epx_json_bool(d->json, "up", item.active);
            else
                epx_json_null(d->json, "up");
        }
        epx_json_close(d->json);
    }
    epx_json_close(d->json);
}

/* ---- distances ---- */

static void draw_distances(const drawing_t *d)
{
    int32_t gpus = d->count[EPX_TOPOLOGY_GPU], nics = d->count[EPX_TOPOLOGY_NIC];
    epx_topology_item_t nic;
    if (gpus == 0 || nics == 0)
        return;
    printf("\n  what a GPU and a NIC have in common (switch is nearest)\n    %-7s", "");
    for (int32_t n = 0; epx_topology_item(d->topology, EPX_TOPOLOGY_NIC, n, &nic) == EPX_OK; n++)
        printf(" %8s", nic.name);
    putchar('\n');
    for (int32_t g = 0; g < gpus; g++) {
        printf("    GPU %-3d", g);
        for (int32_t n = 0; n < nics; n++)
            printf(" %8s", epx_near_name(epx_topology_near(d->topology, g, n)));
        putchar('\n');
    }
}

static void json_distances(const drawing_t *d)
{
    epx_json_array(d->json, "near");
    for (int32_t g = 0; g < d->count[EPX_TOPOLOGY_GPU]; g++) {
        epx_json_array(d->json, NULL);
        for (int32_t n = 0; n < d->count[EPX_TOPOLOGY_NIC]; n++)
            epx_json_text(d->json, NULL, epx_near_name(epx_topology_near(d->topology, g, n)));
        epx_json_close(d->json);
    }
    epx_json_close(d->json);
}

/* ---- the plan ---- */

static void json_place(epx_json_t *json, const epx_place_t *place)
{
    epx_json_object(json, NULL);
    epx_json_int(json, "rank", place->rank);
    epx_json_int(json, "node", place->node);
    epx_json_int(json, "cores", place->cores);
    epx_json_text(json, "processors", place->processors);
    epx_json_int(json, "gpu", place->gpu);
    epx_json_text(json, "gpu_address", place->gpu >= 0 ? place->gpu_address : NULL);
    epx_json_text(json, "nic", place->nic[0] != '\0' ? place->nic : NULL);
    epx_json_text(json, "nic_near", place->nic[0] != '\0' ? epx_near_name(place->nic_near) : NULL);
    epx_json_close(json);
}

static void row_place(epx_table_t *table, const epx_place_t *place)
{
    epx_table_cell(table, "%d", place->rank);
    if (place->node >= 0)
        epx_table_cell(table, "%d", place->node);
    else
        epx_table_cell(table, "-");
    epx_table_cell(table, "%d", place->cores);
    epx_table_cell(table, "%s", place->processors);
    if (place->gpu >= 0)
        epx_table_cell(table, "%d", place->gpu);
    else
        epx_table_cell(table, "-");
    epx_table_cell(table, "%s", place->nic[0] != '\0' ? place->nic : "-");
    epx_table_cell(table, "%s", place->nic[0] != '\0' ? epx_near_name(place->nic_near) : "");
}

static int show_plan(const drawing_t *d, int32_t ranks)
{
    static const epx_column_t columns[] = {{"rank", 1}, {"node", 1}, {"cores", 1}, {"processors", 0},
                                           {"GPU", 1},  {"NIC", 0},  {"near", 0}};
    if (ranks == 0)
        ranks = d->count[EPX_TOPOLOGY_GPU] > 0 ? d->count[EPX_TOPOLOGY_GPU] : d->count[EPX_TOPOLOGY_NODE];
    ranks = ranks > 0 ? ranks : 1;
    epx_place_t *places = epx_tool_alloc((size_t)ranks, sizeof *places);
    epx_status_t status = epx_topology_plan(d->topology, ranks, 1, places);
    if (status != EPX_OK) {
        free(places);
        return epx_tool_fail_status(status, "cannot make a plan");
    }
    epx_table_t *table = epx_table_new(columns, 7);
    if (d->json != NULL)
        epx_json_array(d->json, "plan");
    for (int32_t r = 0; r < ranks; r++) {
        if (d->json != NULL)
            json_place(d->json, &places[r]);
        else
            row_place(table, &places[r]);
    }
    if (d->json != NULL) {
        epx_json_close(d->json);
    } else {
        printf("\n  where %d rank%s would sit\n", ranks, ranks > 1 ? "s" : "");
        epx_table_print(table, stdout, 4);
    }
    epx_table_free(table);
    free(places);
    return EPX_EXIT_OK;
}

/* ---- all of it ---- */

/* No topology: an answer where this build lacks hwloc, an error where a file is no topology. */
static int show_nothing(const epx_info_t *info, epx_status_t status)
{
    if (info->json != NULL) {
        epx_json_text(info->json, "failure", epx_last_error());
        epx_json_close(info->json);
    } else {
        printf("topology: nothing is known: %s\n", epx_last_error());
    }
    return status == EPX_ERR_UNSUPPORTED ? EPX_EXIT_OK : epx_tool_fail_status(status, "no topology");
}

int epx_info_topology(const epx_info_t *info)
{
    drawing_t d = {.json = info->json};
    const char *source = info->topology_file != NULL ? info->topology_file : "this machine";
    if (d.json != NULL) {
        epx_json_object(d.json, "topology");
        epx_json_text(d.json, "source", source);
    }
    epx_status_t status = epx_topology_open(info->topology_file, &d.topology);
    if (status != EPX_OK)
        return show_nothing(info, status);
    for (int kind = 0; kind <= EPX_TOPOLOGY_NIC; kind++)
        d.count[kind] = count_of(d.topology, (epx_topology_kind_t)kind);
    if (d.json != NULL) {
        json_nodes(&d);
        json_devices(&d, EPX_TOPOLOGY_GPU, "gpus");
        json_devices(&d, EPX_TOPOLOGY_NIC, "nics");
        json_distances(&d);
    } else {
        printf("topology of %s: %d NUMA node%s, %d NVIDIA GPU%s, %d NIC%s\n", source,
               d.count[EPX_TOPOLOGY_NODE], d.count[EPX_TOPOLOGY_NODE] == 1 ? "" : "s",
               d.count[EPX_TOPOLOGY_GPU], d.count[EPX_TOPOLOGY_GPU] == 1 ? "" : "s",
               d.count[EPX_TOPOLOGY_NIC], d.count[EPX_TOPOLOGY_NIC] == 1 ? "" : "s");
        draw_nodes(&d);
        draw_distances(&d);
    }
    int rc = show_plan(&d, info->host_ranks);
    if (d.json != NULL)
        epx_json_close(d.json);
    epx_topology_close(&d.topology);
    return rc;
}
