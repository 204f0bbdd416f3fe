/* The command line of epx-perf. SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf/settings.h"

#include <stdio.h>
#include <string.h>

#include <epx/comm.h>

#include "bench/common/environment.h"
#include "tools/common/command_line.h"
#include "tools/common/program.h"

static const char *const op_names[EPX_PERF_OPS] = {
    "memcpy",           "device_copy",       "route",          "dispatch",      "combine",
    "combine_backward", "dispatch_backward", "whole_dispatch", "combine_start", "fabric",
    "fabric_one_way"};
const char *const epx_perf_row_types[] = {"fp32", "bf16", "fp16", NULL};
static const char *const accepts[] = {"default", "prefix", "waterfill", "fair", NULL};
static const char *const overflows[] = {"default", "drop", "spill", "extra_wave", NULL};
static const char *const wires[] = {"default", "auto", "assignment", "rank", NULL};
static const char *const batches[] = {"default", "expanded", "indexed", NULL};

const char *epx_perf_op_name(epx_perf_op_t op) { return op_names[op]; }

/* "a,b,c": the parts, cut in place. Returns how many, or -1 when there are more than `room` or an empty one.
 */
static int32_t cut(char *text, const char **part, int32_t room)
{
    int32_t count = 0;
    for (char *at = text; at != NULL;) {
        char *comma = strchr(at, ',');
        if (comma != NULL)
            *comma++ = '\0';
        if (*at == '\0' || count == room)
            return -1;
        part[count++] = at;
        at = comma;
    }
    return count;
}

static int set_transports(void *target, const char *value, char *problem, size_t problem_bytes)
{
    epx_perf_settings_t *settings = target;
    const char *list = strcmp(value, "all") == 0 ? "pooled_wave,ragged,ring" : value;
    if (strlen(list) < sizeof settings->transport_text) {
        strcpy(settings->transport_text, list);
        settings->transport_count =
            cut(settings->transport_text, settings->transport, EPX_PERF_TRANSPORTS_MAX);
        settings->transports = value;
        if (settings->transport_count > 0)
            return 0;
    }
    snprintf(problem, problem_bytes, "'%s' is no list of transports: write all, or names between commas",
             value);
    return -1;
}

static int set_ops(void *target, const char *value, char *problem, size_t problem_bytes)
{
    epx_perf_settings_t *settings = target;
    char text[256];
    const char *part[EPX_PERF_OPS + 1];
    snprintf(text, sizeof text, "%s",
             strcmp(value, "all") == 0 ? "route,dispatch,combine,combine_backward,dispatch_backward" : value);
    int32_t count = cut(text, part, EPX_PERF_OPS);
    memset(settings->shown, 0, sizeof settings->shown);
    for (int32_t i = 0; i < count; i++) {
        int op = EPX_PERF_ROUTE;
        while (op < EPX_PERF_OPS && strcmp(part[i], op_names[op]) != 0)
            op++;
        if (op == EPX_PERF_OPS)
            count = -1;
        else
            settings->shown[op] = 1;
    }
    if (count > 0)
        return 0;
    snprintf(problem, problem_bytes,
             "'%s' is no list of operations: write all, or route, dispatch, combine, combine_backward, "
             "dispatch_backward, whole_dispatch, combine_start, fabric, fabric_one_way between commas",
             value);
    return -1;
}

/* "min:max:factor" over tokens; 0 may be the first size. */
static int set_sizes(void *target, const char *value, char *problem, size_t problem_bytes)
{
    epx_perf_settings_t *settings = target;
    char word[3][32];
    int64_t low, high, factor, size;
    if (sscanf(value, "%31[^:]:%31[^:]:%31s", word[0], word[1], word[2]) != 3 ||
        epx_read_int(word[0], &low) != 0 || epx_read_int(word[1], &high) != 0 ||
        epx_read_int(word[2], &factor) != 0 || low < 0 || high < low || factor < 2 || high > INT32_MAX) {
        snprintf(problem, problem_bytes, "'%s' is no range: write min:max:factor, for example 128:16K:2",
                 value);
        return -1;
    }
    settings->size_count = 0;
    for (size = low; size <= high && settings->size_count < EPX_PERF_SIZES_MAX;
         size = size ? size * factor : 1)
        settings->size[settings->size_count++] = size;
    return 0;
}

/* "a,b,c": multiprocessors; 0 stands for all of them. */
static int set_budgets(void *target, const char *value, char *problem, size_t problem_bytes)
{
    epx_perf_settings_t *settings = target;
    char text[256];
    const char *part[EPX_PERF_BUDGETS_MAX];
    snprintf(text, sizeof text, "%s", value);
    int32_t count = cut(text, part, EPX_PERF_BUDGETS_MAX);
    for (int32_t i = 0; i < count; i++) {
        int64_t units = -1;
        if (epx_read_int(part[i], &units) != 0 || units < 0 || units > 65536)
            count = -1;
        else
            settings->budget[i] = (int32_t)units;
    }
    settings->budgets = value;
    settings->budget_count = count;
    if (count > 0)
        return 0;
    snprintf(problem, problem_bytes,
             "'%s' is no list of budgets: write numbers of multiprocessors between commas, 0 for all", value);
    return -1;
}

static int set_skew(void *target, const char *value, char *problem, size_t problem_bytes)
{
    epx_perf_settings_t *settings = target;
    settings->skew_given = 1;
    return epx_skew_read(&settings->skew, value, problem, problem_bytes);
}

static int set_capacity(void *target, const char *value, char *problem, size_t problem_bytes)
{
    epx_perf_settings_t *settings = target;
    settings->capacity_text = value;
    if (strcmp(value, "dropless") == 0) {
        settings->capacity_factor = EPX_DROPLESS;
        return 0;
    }
    if (epx_read_real(value, &settings->capacity_factor) == 0 && settings->capacity_factor > 0)
        return 0;
    snprintf(problem, problem_bytes, "'%s' is no capacity: give a number above 0, or dropless", value);
    return -1;
}

static void set_defaults(epx_perf_settings_t *settings)
{
    *settings = (epx_perf_settings_t){.check = 1,
                                      .ranks = 2,
                                      .experts = 64,
                                      .top_k = 8,
                                      .width = 1024,
                                      .tokens = 4096,
                                      .iterations = 20,
                                      .warmup = 3,
                                      .seed = 1,
                                      .threads = 2,
                                      .row_type = 1,
                                      .transport_count = 1,
                                      .timeout_ms = 0};
    settings->shown[EPX_PERF_ROUTE] = settings->shown[EPX_PERF_DISPATCH] = settings->shown[EPX_PERF_COMBINE] =
        1;
}

static const char notes[] =
    "A time is that of the slowest rank, from the moment when all have arrived. Payload counts\n"
    "every row that reached an expert, own rank's included; remote is what the library sent to\n"
    "other ranks, all of them together and by one ('a rank', what others call bus bandwidth).\n"
    "'of memcpy' is the time in which as many threads copy the same rows one by\n"
    "one in the same order, measured in turn with the operation, over the operation's time.\n"
    "\n"
    "fabric and fabric_one_way are the fabric alone: bytes that lie ready go from segment to segment, as "
    "many\n"
    "from a rank as the busiest one sends in a dispatch, and are waited for. fabric: an equal share to each\n"
    "other rank, all at once; fabric_one_way: from each rank of the lower half to one of the upper.\n"
    "\n"
    "On a GPU times are those of events in the ranks' streams, and what is beside an operation is\n"
    "row_copy, the same rows fetched one by one by a kernel, and device_copy, as many bytes in one\n"
    "piece by the device's own copy. Over fabric local ranks share the GPU; over nccl each has its\n"
    "own, and what the link does alone of the same bytes is shown beside.\n"
    "\n"
    "--recorder times the flight recorder: host events, and the step of epx-train's preset tiny with and\n"
    "without a record in turns, -i pairs of steps in each of eight rounds.\n"
    "\n"
    "examples:\n"
    "  epx-perf --transport all --op all\n"
    "  epx-perf --transport ragged --wire assignment --sizes 128:16K:2 --json\n"
    "  epx-perf --skew hot:fraction=0.5,experts=4 --capacity-factor dropless\n"
    "  epx-perf --latency --tokens 128 --ranks 8\n"
    "  epx-perf --accept-rules\n"
    "  epx-perf --recorder --ranks 2 -i 100\n"
    "  epx-perf --routing file:recorded.epxr --transport all\n"
    "  epx-perf --calibrate machine.json\n"
    "  epx-perf --device cuda --transport ragged --tokens 8192 --width 7168 --experts 256\n"
    "  epx-perf --device cuda --fabric nccl --graph --latency --tokens 128 --width 7168\n"
    "  epx-perf --device cuda --fabric nccl --width 7168 --op route,dispatch,whole_dispatch,combine\n"
    "  mpirun -n 2 epx-perf --transport all --op all\n"
    "  mpirun -n 2 -x UCX_TLS=tcp epx-perf --fabric ucx --op dispatch,combine,fabric,fabric_one_way\n"
    "  epx-perf --device cuda --width 7168 --sm-budget 8,16,24,32,64,0 --beside\n"
    "\n"
    "exit code: 0 measured (and checked), 1 a check or a call failed, 2 bad usage";

static const char about[] =
    "Measures dispatch and combine and their backward calls over ranks that are threads of this process, or "
    "processes that a launcher started; checks every row, and compares with the machine's own memcpy.";

static int parse(epx_perf_settings_t *s, int argc, char **argv)
{
    int32_t no_check = 0;
    const epx_option_t options[] = {
        epx_option_section("what to measure"),
        epx_option_call('t', "transport", "LIST",
                        "transports between commas, or all (as the environment or auto says)", s,
                        set_transports),
        epx_option_call(
            'o', "op", "LIST",
            "route, dispatch, combine, combine_backward, dispatch_backward, or all of these; whole_dispatch "
            "(route and dispatch as one), combine_start, fabric and fabric_one_way (as many bytes by the "
            "fabric "
            "alone) (route,dispatch,combine)",
            s, set_ops),
        epx_option_flag(0, "latency", "time single calls, without meeting before each: median and tail",
                        &s->latency),
        epx_option_flag(0, "accept-rules", "time the accept rules: 64 ranks x 524,288 assignments",
                        &s->accept_rules),
        epx_option_flag(0, "recorder", "time the flight recorder, with training steps", &s->recorder),
        epx_option_text(0, "calibrate", "FILE",
                        "measure the constants of epx-sim's cost model on this machine and write them",
                        &s->calibrate),
        epx_option_section("shape"),
        epx_option_int('n', "ranks", "ranks as threads; under a launcher its processes are the ranks",
                       &s->ranks, 1, 65536),
        epx_option_int(0, "tokens", "tokens of each rank", &s->tokens, 0, INT32_MAX),
        epx_option_call(0, "sizes", "MIN:MAX:FACTOR", "one measurement for each number of tokens", s,
                        set_sizes),
        epx_option_int(0, "width", "elements of a row", &s->width, 1, 1 << 20),
        epx_option_int('k', "top-k", "experts chosen by a token", &s->top_k, 1, 4096),
        epx_option_int('e', "experts", "experts of the layer", &s->experts, 1, 1 << 20),
        epx_option_choice(0, "row-type", "TYPE", "fp32, bf16 or fp16", &s->row_type, epx_perf_row_types),
        epx_option_call(
            0, "skew", "PATTERN",
            "uniform, zipf:s=1, hot:fraction=0.5,experts=4, one-expert, self, peer, empty-rank (uniform)", s,
            set_skew),
        epx_option_text(0, "routing", "file:PATH",
                        "recorded routing in place of a pattern: its ranks, experts, choices and tokens",
                        &s->recorded.routing),
        epx_option_int(0, "routing-step", "recorded step", &s->recorded.step, 0, INT32_MAX),
        epx_option_int(0, "routing-layer", "recorded layer", &s->recorded.layer, 0, INT32_MAX),
        epx_option_int(0, "seed", "of routing and payload", &s->seed, 0, 9e15),
        epx_option_section("how the library does it (where not given: EPX_ variables, then its defaults)"),
        epx_option_text(0, "fabric", "NAME", "local, ucx or nccl", &s->fabric),
        epx_option_text(0, "device", "NAME", "host or cuda", &s->device),
        epx_option_call(0, "capacity-factor", "X", "receiver capacity, or dropless", s, set_capacity),
        epx_option_real(0, "sender-factor", "sender capacity (pooled_wave); 0: default", &s->sender_factor, 0,
                        1e6),
        epx_option_int(0, "waves", "waves or chunks; 0: default", &s->waves, 0, 65536),
        epx_option_choice(0, "accept", "RULE", "prefix, waterfill or fair (ragged, ring)", &s->accept,
                          accepts),
        epx_option_choice(0, "overflow", "RULE", "drop or extra_wave (pooled_wave)", &s->overflow, overflows),
        epx_option_choice(0, "wire", "WIRE", "auto, assignment or rank (ragged)", &s->wire, wires),
        epx_option_choice(0, "batch", "FORM", "expanded or indexed (rank wire)", &s->batch, batches),
        epx_option_call(0, "sm-budget", "LIST",
                        "multiprocessors that rows may use (cuda), one measurement for each; 0: all", s,
                        set_budgets),
        epx_option_section("measuring"),
        epx_option_flag(0, "graph", "record every call once and time its replays (fabric nccl)", &s->graph),
        epx_option_flag(0, "beside", "then once more beside a large matrix product (cuda): who slows whom",
                        &s->beside),
        epx_option_int('i', "iterations", "timed passes", &s->iterations, 1, 1e6),
        epx_option_int('w', "warmup", "passes before them", &s->warmup, 0, 1e6),
        epx_option_flag(0, "cold", "push everything out of the caches before each timed part", &s->cold),
        epx_option_flag(0, "check", "compare every row and sum bit by bit, before and after (on)", &s->check),
        epx_option_flag(0, "no-check", "compare nothing", &no_check),
        epx_option_int(0, "timeout-ms", "when a wait gives up; 0: default", &s->timeout_ms, 0, 1e9),
        epx_option_int(0, "threads", "threads of --accept-rules", &s->threads, 1, 1024),
        epx_option_flag(0, "json", "print JSON", &s->json),
        epx_option_end(),
    };
    const epx_program_t program = {"epx-perf", about, NULL, options, notes};
    int rc = epx_command_line(&program, argc, argv, NULL);
    s->check &= !no_check;
    return rc;
}

/* Where a launcher started this process among others, each plays one rank. */
static int find_processes(epx_perf_settings_t *s)
{
    s->processes = 1;
    epx_status_t status = epx_comm_launched(&s->rank, &s->processes);
    if (status != EPX_OK)
        return epx_tool_fail(EPX_EXIT_USAGE, "%s", epx_last_error());
    if (s->processes == 1)
        return EPX_GO_ON;
    if (s->calibrate != NULL || s->recorder)
        return epx_tool_fail(EPX_EXIT_USAGE,
                             "%s plays its ranks as threads of one process, and a launcher started %d: "
                             "start it without the launcher",
                             s->recorder ? "--recorder" : "--calibrate", s->processes);
    if (s->recorded.routing != NULL && s->ranks != s->processes)
        return epx_tool_fail(EPX_EXIT_USAGE,
                             "--routing: %s has %d ranks, and a launcher started %d processes: start as many",
                             s->recorded.routing, (int)s->ranks, s->processes);
    s->ranks = s->processes;
    return EPX_GO_ON;
}

/* What no single option can see. */
static int check_together(epx_perf_settings_t *s)
{
    if (s->top_k > s->experts)
        return epx_tool_fail(EPX_EXIT_USAGE, "--top-k %d is more than --experts %d: choose fewer",
                             (int)s->top_k, (int)s->experts);
    if (s->overflow == EPX_OVERFLOW_SPILL)
        return epx_tool_fail(EPX_EXIT_USAGE,
                             "--overflow spill needs ranked choices, which the patterns here do not have: "
                             "choose drop or extra_wave");
    if (s->graph && s->shown[EPX_PERF_COMBINE_START])
        return epx_tool_fail(
            EPX_EXIT_USAGE,
            "--op combine_start is half a call, which is not recorded alone: leave out --graph");
    if (s->size_count == 0)
        s->size[s->size_count++] = s->tokens;
    if (s->budget_count == 0)
        s->budget[s->budget_count++] = 0;
    s->backward = s->shown[EPX_PERF_COMBINE_BACKWARD] || s->shown[EPX_PERF_DISPATCH_BACKWARD];
    return EPX_GO_ON;
}

/* Ranks, experts, K and tokens are those of the recorded routing. */
static int take_recorded(epx_perf_settings_t *s)
{
    if (s->skew_given || s->size_count > 0)
        return epx_tool_fail(EPX_EXIT_USAGE, "--routing says who chose what: leave out --skew and --sizes");
    int rc = epx_perf_recorded_read(&s->recorded);
    const epx_routing_shape_t *shape = &s->recorded.file.shape;
    if (rc == EPX_GO_ON) {
        s->ranks = shape->group;
        s->experts = shape->experts;
        s->top_k = shape->top_k;
        s->tokens = shape->tokens;
    }
    return rc;
}

int epx_perf_settings_read(epx_perf_settings_t *s, int argc, char **argv)
{
    set_defaults(s);
    int rc = parse(s, argc, argv);
    if (rc == EPX_GO_ON && s->recorded.routing != NULL)
        rc = take_recorded(s);
    if (rc == EPX_GO_ON)
        rc = find_processes(s);
    if (rc == EPX_GO_ON)
        rc = check_together(s);
    if (rc != EPX_GO_ON || s->accept_rules || s->recorder || s->calibrate != NULL)
        return rc;
    char sender[32], waves[32];
    snprintf(sender, sizeof sender, "%.15g", s->sender_factor);
    snprintf(waves, sizeof waves, "%d", (int)s->waves);
    const epx_given_t given[] = {
        {"EPX_TRANSPORT", "--transport", s->transports},
        {"EPX_FABRIC", "--fabric", s->fabric},
        {"EPX_DEVICE", "--device", s->device},
        {"EPX_CAPACITY_FACTOR", "--capacity-factor", s->capacity_text},
        {"EPX_SENDER_FACTOR", "--sender-factor", s->sender_factor > 0 ? sender : NULL},
        {"EPX_WAVES", "--waves", s->waves ? waves : NULL},
        {"EPX_ACCEPT", "--accept", s->accept ? accepts[s->accept] : NULL},
        {"EPX_OVERFLOW", "--overflow", s->overflow ? overflows[s->overflow] : NULL},
        {"EPX_WIRE", "--wire", s->wire ? wires[s->wire] : NULL},
        {"EPX_BATCH", "--batch", s->batch ? batches[s->batch] : NULL},
        {"EPX_SM_BUDGET", "--sm-budget", s->budgets},
    };
    epx_group_config_t config = epx_perf_group_config(s, s->transport[0], s->size[s->size_count - 1]);
    return epx_check_environment(&config, given, sizeof given / sizeof *given);
}

void epx_perf_settings_free(epx_perf_settings_t *s) { epx_routing_free(&s->recorded.file); }

epx_group_config_t epx_perf_group_config(const epx_perf_settings_t *s, const char *transport, int64_t tokens)
{
    static const epx_type_t types[] = {EPX_FP32, EPX_BF16, EPX_FP16};
    epx_group_config_t config = EPX_GROUP_CONFIG_INIT;
    config.name = "epx-perf";
    config.ranks = (int32_t)s->ranks;
    config.experts = (int32_t)s->experts;
    config.top_k = (int32_t)s->top_k;
    config.width = (int32_t)s->width;
    config.tokens_max = tokens > 0 ? (int32_t)tokens : 1;
    config.row_type = types[s->row_type];
    config.lanes = 1;
    config.backward = s->backward ? EPX_BACKWARD_KEPT : EPX_BACKWARD_NONE;
    config.transport = transport;
    config.fabric = s->fabric;
    config.device = s->device;
    config.capacity_factor = s->capacity_factor;
    config.sender_factor = s->sender_factor;
    config.waves = (int32_t)s->waves;
    config.accept = (epx_accept_t)s->accept;
    config.overflow = (epx_overflow_t)s->overflow;
    config.wire = (epx_wire_t)s->wire;
    config.batch = (epx_batch_form_t)s->batch;
    config.timeout_ms = s->timeout_ms;
    return config;
}
