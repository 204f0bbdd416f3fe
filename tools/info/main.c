/* epx-info: what the library would use, and why. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include <epx/transport.h>

#include "tools/common/command_line.h"
#include "tools/common/program.h"
#include "tools/info/info.h"

static const char *const row_types[] = {"fp32", "bf16", "fp16", NULL};
static const char *const backwards[] = {"none", "kept", "recompute", NULL};

typedef struct request {
    int32_t json, settings, transports, fabrics, devices, memory, build, topology, all;
    int64_t ranks, experts, top_k, tokens, width, lanes, depth, virtual_ranks, aux_bytes, row_align;
    int32_t row_type, backward, origin, batch_in_caller;
    const char *transport, *fabric, *device, *topology_file, *stats;
    int64_t host_ranks;
} request_t;

static const char notes[] =
    "Settings are read from the environment as a program would that passes this shape; options\n"
    "stand for what the program passes, and the environment wins over it.\n"
    "\n"
    "examples:\n"
    "  epx-info\n"
    "  EPX_WAVES=4 epx-info -c\n"
    "  epx-info --stats /tmp/run1     what ran there, and which way its bytes went\n"
    "  epx-info -t -m --ranks 64 --experts 384 --tokens 64K --width 3072\n"
    "\n"
    "exit code: 0 a group could be opened, 1 it could not (the reasons are shown), 2 bad usage";

static int parse(request_t *r, int argc, char **argv)
{
    const epx_option_t options[] = {
        epx_option_section("what to show (always first: what will be used, and why)"),
        epx_option_flag('c', "configuration", "every setting: value, where it comes from, what it means",
                        &r->settings),
        epx_option_flag('t', "transports", "every transport: its score, or why it cannot run this shape",
                        &r->transports),
        epx_option_flag('f', "fabrics", "every fabric, likewise", &r->fabrics),
        epx_option_flag('d', "devices", "devices and what they can do; peak rates of known GPUs",
                        &r->devices),
        epx_option_flag('m', "memory", "bytes of a group, by item and transport", &r->memory),
        epx_option_flag('b', "build", "optional parts of this build, and why one is missing", &r->build),
        epx_option_flag('T', "topology", "cores, GPUs and NICs of this machine, and where ranks would sit",
                        &r->topology),
        epx_option_text(0, "topology-file", "XML", "-T of a machine that lstopo saved, instead of this one",
                        &r->topology_file),
        epx_option_int(0, "host-ranks", "-T: ranks on the machine; 0: one per GPU, or else per node",
                       &r->host_ranks, 0, 65536),
        epx_option_text(0, "stats", "FOLDER",
                        "what has run there with EPX_STATS=FOLDER: transports, bytes by path", &r->stats),
        epx_option_flag('a', "all", "all of these", &r->all),
        epx_option_flag(0, "json", "print JSON", &r->json),
        epx_option_section("the shape that is asked about"),
        epx_option_int('n', "ranks", "ranks of the group", &r->ranks, 1, INT32_MAX),
        epx_option_int('e', "experts", "experts of the layer", &r->experts, 1, INT32_MAX),
        epx_option_int('k', "top-k", "experts chosen by a token", &r->top_k, 1, INT32_MAX),
        epx_option_int(0, "tokens", "tokens of a rank, at most", &r->tokens, 1, INT32_MAX),
        epx_option_int(0, "width", "elements of a row", &r->width, 1, INT32_MAX),
        epx_option_choice(0, "row-type", "TYPE", "fp32, bf16 or fp16", &r->row_type, row_types),
        epx_option_choice(0, "backward", "MODE", "none, kept or recompute", &r->backward, backwards),
        epx_option_int(0, "lanes", "passes at a time; 0: default", &r->lanes, 0, INT32_MAX),
        epx_option_int(0, "depth", "waves in flight; 0: default", &r->depth, 0, INT32_MAX),
        epx_option_int(0, "virtual-ranks", "ranks that the accept rules see; 0: as many as there are",
                       &r->virtual_ranks, 0, INT32_MAX),
        epx_option_int(0, "aux-bytes", "bytes that travel beside each row", &r->aux_bytes, 0, 64),
        epx_option_int(0, "row-align", "rows of an expert start at a multiple of it; 0: 1", &r->row_align, 0,
                       INT32_MAX),
        epx_option_flag(0, "origin", "batches tell whose each row is", &r->origin),
        epx_option_flag(0, "batch-in-caller", "batches land in the caller's memory", &r->batch_in_caller),
        epx_option_text(0, "transport", "NAME", "what the program would ask for", &r->transport),
        epx_option_text(0, "fabric", "NAME", "likewise", &r->fabric),
        epx_option_text(0, "device", "NAME", "likewise", &r->device),
        epx_option_end(),
    };
    const epx_program_t program = {"epx-info",
                                   "Says what the library would use for a group of this shape, and why.",
                                   NULL, options, notes};
    return epx_command_line(&program, argc, argv, NULL);
}

static epx_group_config_t config_of(const request_t *r)
{
    static const epx_type_t types[] = {EPX_FP32, EPX_BF16, EPX_FP16};
    static const epx_backward_t modes[] = {EPX_BACKWARD_NONE, EPX_BACKWARD_KEPT, EPX_BACKWARD_RECOMPUTE};
    epx_group_config_t config = EPX_GROUP_CONFIG_INIT;
    config.ranks = (int32_t)r->ranks;
    config.experts = (int32_t)r->experts;
    config.top_k = (int32_t)r->top_k;
    config.width = (int32_t)r->width;
    config.tokens_max = (int32_t)r->tokens;
    config.row_type = types[r->row_type];
    config.backward = modes[r->backward];
    config.lanes = (int32_t)r->lanes;
    config.depth = (int32_t)r->depth;
    config.virtual_ranks = (int32_t)r->virtual_ranks;
    config.aux_bytes = (int32_t)r->aux_bytes;
    config.row_align = (int32_t)r->row_align;
    config.origin = r->origin;
    config.batch_in_caller = r->batch_in_caller;
    config.transport = r->transport;
    config.fabric = r->fabric;
    config.device = r->device;
    return config;
}

static int show_parts(const request_t *r, const epx_info_t *info)
{
    const struct {
        int32_t wanted;
        int (*show)(const epx_info_t *info);
    } parts[] = {
        {r->settings, epx_info_settings},
        {r->transports, epx_info_transports},
        {r->fabrics, epx_info_fabrics},
        {r->devices, epx_info_devices},
        {r->memory, epx_info_memory},
        {r->build, epx_info_build},
        {r->topology || r->topology_file != NULL, epx_info_topology},
        {r->stats != NULL, epx_info_ran},
    };
    int worst = epx_info_use(info);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!parts[i].wanted && (!r->all || parts[i].show == epx_info_ran))
            continue;
        if (info->json == NULL)
            putchar('\n');
        int rc = parts[i].show(info);
        worst = rc > worst ? rc : worst;
    }
    return worst;
}

static void json_head(epx_json_t *json, const request_t *r)
{
    epx_json_object(json, NULL);
    epx_json_text(json, "program", "epx-info");
    epx_json_text(json, "version", epx_version());
    epx_json_int(json, "abi", epx_abi());
    epx_json_object(json, "shape");
    epx_json_int(json, "ranks", r->ranks);
    epx_json_int(json, "experts", r->experts);
    epx_json_int(json, "top_k", r->top_k);
    epx_json_int(json, "tokens", r->tokens);
    epx_json_int(json, "width", r->width);
    epx_json_text(json, "row_type", row_types[r->row_type]);
    epx_json_text(json, "backward", backwards[r->backward]);
    epx_json_close(json);
}

int main(int argc, char **argv)
{
    request_t r = {
        .ranks = 2, .experts = 64, .top_k = 8, .tokens = 4096, .width = 1024, .row_type = 1, .backward = 1};
    int rc = parse(&r, argc, argv);
    if (rc != EPX_GO_ON)
        return rc;
    epx_json_t json = epx_json_begin(stdout, 2);
    epx_info_t info = {.config = config_of(&r), .json = r.json ? &json : NULL, .would = EPX_GROUP_INFO_INIT};
    info.topology_file = r.topology_file;
    info.host_ranks = (int32_t)r.host_ranks;
    info.stats_folder = r.stats;
    info.usable = epx_group_preview(&info.config, &info.would) == EPX_OK;
    snprintf(info.failure, sizeof info.failure, "%s", info.usable ? "" : epx_last_error());
    if (r.json)
        json_head(&json, &r);
    else
        printf("epx %s, ABI %d; asked about %d ranks, %d experts, top-%d, %d tokens, rows of %d %s\n\n",
               epx_version(), epx_abi(), info.config.ranks, info.config.experts, info.config.top_k,
               info.config.tokens_max, info.config.width, row_types[r.row_type]);
    rc = show_parts(&r, &info);
    if (r.json) {
        epx_json_close(&json);
        if (epx_json_end(&json) != 0)
            rc = EPX_EXIT_FAILED;
    }
    return epx_tool_end(rc);
}
