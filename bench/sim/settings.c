/* The command line of epx-sim. SPDX-License-Identifier: Apache-2.0 */
#include "bench/sim/settings.h"

#include <stdio.h>
#include <string.h>

#include <epx/info.h>

#include "bench/common/parallel.h"
#include "tools/common/command_line.h"
#include "tools/common/program.h"
#include "train/fail.h"

static const char *const overflows[] = {"default", "drop", "spill", "extra_wave", NULL};
static const char *const wires[] = {"default", "auto", "assignment", "rank", NULL};

/* ---- lists -------------------------------------------------------------------------------------------------------- */

/* "a,b" of `words` into `list` [3]; a word given twice counts once. */
static int read_list(const char *text, const char *const *words, int32_t *list, int32_t *count_p)
{
    *count_p = 0;
    for (const char *at = text; *at != '\0'; at += *at == ',') {
        size_t length = strcspn(at, ",");
        int32_t i = 0;
        while (words[i] != NULL && (strlen(words[i]) != length || memcmp(words[i], at, length) != 0))
            i++;
        if (words[i] == NULL || (at[length] == ',' && at[length + 1] == '\0'))
            return -1;
        int32_t seen = 0;
        while (seen < *count_p && list[seen] != i)
            seen++;
        if (seen == *count_p)
            list[(*count_p)++] = i;
        at += length;
    }
    return *count_p > 0 ? 0 : -1;
}

static int set_transports(void *target, const char *value, char *problem, size_t problem_bytes)
{
    epx_sim_settings_t *s = target;
    const char *list = strcmp(value, "all") == 0 ? "pooled_wave,ragged,ring" : value;
    s->transports_given = 1;
    if (read_list(list, epx_sim_transports, s->transport, &s->transport_count) == 0)
        return 0;
    snprintf(problem, problem_bytes,
             "'%s' is no list of transports: write all, or pooled_wave, ragged, ring between commas", value);
    return -1;
}

static int set_accepts(void *target, const char *value, char *problem, size_t problem_bytes)
{
    epx_sim_settings_t *s = target;
    if (read_list(value, epx_sim_accepts, s->accept, &s->accept_count) == 0)
        return 0;
    snprintf(problem, problem_bytes, "'%s' is no list of rules: write prefix, waterfill, fair between commas",
             value);
    return -1;
}

static int set_capacity(void *target, const char *value, char *problem, size_t problem_bytes)
{
    epx_sim_settings_t *s = target;
    s->capacity_text = value;
    if (strcmp(value, "dropless") == 0) {
        s->capacity_factor = EPX_DROPLESS;
        return 0;
    }
    if (epx_read_real(value, &s->capacity_factor) == 0 && s->capacity_factor > 0)
        return 0;
    snprintf(problem, problem_bytes, "'%s' is no capacity: give a number above 0, or dropless", value);
    return -1;
}

static int set_shape(void *target, const char *value, char *problem, size_t problem_bytes)
{
    epx_sim_settings_t *s = target;
    if (epx_sim_shape_preset(value, &s->shape) == 0)
        return 0;
    snprintf(problem, problem_bytes, "'%s' is unknown: choose from tiny, d512, d768, d1024, hero", value);
    return -1;
}

static int add_set(void *target, const char *value, char *problem, size_t problem_bytes)
{
    epx_sim_settings_t *s = target;
    if (s->set_count < EPX_SIM_SETS) {
        s->set[s->set_count++] = value;
        return 0;
    }
    snprintf(problem, problem_bytes, "more than %d constants: write a machine file", EPX_SIM_SETS);
    return -1;
}

/* ---- the command line --------------------------------------------------------------------------------------------- */

static const char notes[] =
    "Drops come from the library's own accept rules over every assignment; times come from a\n"
    "model whose constants, equations and errors are in docs/simulation.md. A sample is one\n"
    "layer of one step: a seed of a generator, or each layer, step and group of a file.\n"
    "\n"
    "examples:\n"
    "  epx-sim --seeds 16\n"
    "  epx-sim --transports ragged --accept prefix,waterfill,fair --capacity-factor 1.05\n"
    "  epx-sim --ranks 16 --sequence 262144 --context-parallel 4\n"
    "  epx-sim --sweep capacity=1.0:1.5:0.05 --html curve.html\n"
    "  epx-sim --answer drops=0.1% --seeds 16\n"
    "  epx-sim --shape tiny --routing file:recorded.epxr --ranks 64\n"
    "\n"
    "exit code: 0 done, 1 something could not be done, 2 bad usage";

static void set_defaults(epx_sim_settings_t *s)
{
    *s = (epx_sim_settings_t){.given = {.context_parallel = 1, .row_type = 1},
                              .routing = {.alpha = 104, .sigma = 0.09, .seed = -1},
                              .seed = 1,
                              .seeds = 1,
                              .threads = epx_processors(),
                              .transport = {0, 1, 2},
                              .transport_count = 3,
                              .machine_name = "gb200-nvl72",
                              .depth = 2};
    epx_sim_shape_preset("hero", &s->shape);
}

static int parse(epx_sim_settings_t *s, int argc, char **argv)
{
    epx_sim_given_t *given = &s->given;
    const epx_option_t options[] = {
        epx_option_section("shape (0: as the preset or the recorded routing has it)"),
        epx_option_call('s', "shape", "PRESET", "tiny, d512, d768, d1024 or hero (hero)", s, set_shape),
        epx_option_int('n', "ranks", "ranks of one expert-parallel group", &given->ranks, 0,
                       EPX_SIM_RANKS_MAX),
        epx_option_int(0, "tokens", "tokens of each rank", &given->tokens, 0, INT32_MAX),
        epx_option_int('e', "experts", "experts of a layer", &given->experts, 0, 1 << 20),
        epx_option_int('k', "top-k", "experts chosen by a token", &given->top_k, 0, 4096),
        epx_option_int(0, "width", "elements of a row that travels", &given->width, 0, 1 << 20),
        epx_option_int(0, "model-width", "width of the model", &given->model_width, 0, 1 << 20),
        epx_option_int(0, "expert-width", "width inside an expert", &given->expert_width, 0, 1 << 20),
        epx_option_int(0, "layers", "layers", &given->layers, 0, 1 << 16),
        epx_option_int(0, "sequence", "tokens of a sequence", &given->sequence, 0, INT32_MAX),
        epx_option_int(0, "context-parallel", "ranks that share each sequence", &given->context_parallel, 1,
                       EPX_SIM_RANKS_MAX),
        epx_option_choice(0, "row-type", "TYPE", "fp32, bf16 or fp16", &given->row_type, epx_sim_row_types),
        epx_option_section("routing"),
        epx_option_call('r', "routing", "SPEC",
                        "dirichlet:alpha=A,sigma=S,seed=N, uniform, zipf:s=1, hot:fraction=0.5,experts=4, "
                        "one-expert, self, peer, empty-rank, or file:PATH (dirichlet:alpha=104,sigma=0.09)",
                        &s->routing, epx_sim_routing_read),
        epx_option_int(0, "seed", "first seed", &s->seed, 0, 9e15),
        epx_option_int(0, "seeds", "samples of a generator", &s->seeds, 1, 1 << 20),
        epx_option_section("rules (where not given: EPX_ variables, then the library's defaults)"),
        epx_option_call('t', "transports", "LIST",
                        "pooled_wave, ragged, ring between commas, or all (EPX_TRANSPORT, or all)", s,
                        set_transports),
        epx_option_call(0, "accept", "LIST", "prefix, waterfill, fair between commas (ragged, ring)", s,
                        set_accepts),
        epx_option_call(0, "capacity-factor", "X", "receiver capacity, or dropless", s, set_capacity),
        epx_option_real(0, "sender-factor", "sender capacity (pooled_wave); 0: default", &s->sender_factor, 0,
                        1e6),
        epx_option_int(0, "waves", "waves or chunks; 0: default", &s->waves, 0, 65536),
        epx_option_choice(0, "overflow", "RULE", "drop, spill or extra_wave (pooled_wave)", &s->overflow,
                          overflows),
        epx_option_int(0, "spill-choices", "further choices of a token, for spill", &s->spill_choices, 0, 64),
        epx_option_choice(0, "wire", "WIRE", "auto, assignment or rank (ragged)", &s->wire, wires),
        epx_option_section("cost"),
        epx_option_text('m', "machine", "NAME", "gb200-nvl72, h200x2, or a file of epx-perf --calibrate",
                        &s->machine_name),
        epx_option_call(0, "set", "NAME=VALUE", "another value for a constant of the machine; many times", s,
                        add_set),
        epx_option_int(0, "depth", "waves in flight", &s->depth, 1, 1024),
        epx_option_flag(0, "recompute", "forward products are made again in the backward pass",
                        &s->recompute),
        epx_option_section("what to print"),
        epx_option_flag(0, "json", "print JSON", &s->json),
        epx_option_call(
            0, "sweep", "NAME=FROM:TO:STEP",
            "every value of capacity_factor, sender_factor, capacity (both), waves, ranks, tokens, "
            "sequence, alpha, sigma, depth or a constant of the machine; twice for two dimensions",
            s, epx_sim_add_sweep),
        epx_option_text(0, "html", "FILE", "write a sweep as a page with its curves", &s->html),
        epx_option_call(0, "answer", "drops=X%",
                        "the smallest capacity that keeps drops below X in 99% of the samples", s,
                        epx_sim_set_answer),
        epx_option_flag(0, "published", "figures published for the hero shape, beside predictions of them",
                        &s->published),
        epx_option_text(0, "dump", "FILE", "write what became of every assignment", &s->dump),
        epx_option_text(0, "record-routing", "FILE", "write the routing, a step for each sample", &s->record),
        epx_option_flag(0, "record-counts", "counts instead of ids", &s->counts),
        epx_option_int(0, "threads", "threads; results do not depend on them", &s->threads, 1, 1024),
        epx_option_end(),
    };
    const epx_program_t program = {
        "epx-sim",
        "Computes what the accept rules drop at any number of ranks, exactly, and predicts what the exchange "
        "costs.",
        NULL, options, notes};
    return epx_command_line(&program, argc, argv, NULL);
}

/* ---- together ----------------------------------------------------------------------------------------------------- */

static void take(int64_t *target, int64_t given)
{
    if (given > 0)
        *target = given;
}

static int32_t most_recorded(const epx_routing_file_t *file)
{
    int64_t most = 1, rows = (int64_t)file->steps * file->shape.layers * file->shape.ranks;
    if (file->shape.kind == EPX_ROUTING_IDS)
        return file->shape.tokens;
    for (int64_t r = 0; r < rows; r++) {
        int64_t all = 0;
        for (int32_t e = 0; e < file->shape.experts; e++)
            all += file->counts[r * file->shape.experts + e];
        most = all > most ? all : most;
    }
    return (int32_t)((most + file->shape.top_k - 1) / file->shape.top_k);
}

/* What a recorded routing says about the shape, unless options contradict it. */
static int take_file(epx_sim_settings_t *s)
{
    if (epx_routing_read(s->routing.path, &s->file) != EPX_TRAIN_OK)
        return epx_tool_fail(EPX_EXIT_USAGE, "--routing: %s", epx_train_error());
    const epx_routing_shape_t *recorded = &s->file.shape;
    if ((s->given.experts > 0 && s->given.experts != recorded->experts) ||
        (s->given.top_k > 0 && s->given.top_k != recorded->top_k))
        return epx_tool_fail(EPX_EXIT_USAGE,
                             "%s is of %d experts and top-%d: leave out --experts and --top-k",
                             s->routing.path, recorded->experts, recorded->top_k);
    s->shape.model.experts = recorded->experts;
    s->shape.model.top_k = recorded->top_k;
    s->shape.ranks = s->given.ranks > 0 ? s->given.ranks : recorded->group;
    int64_t splits = s->shape.ranks / recorded->group;
    int64_t least = splits > 0 ? (most_recorded(&s->file) + splits - 1) / splits : 1;
    s->shape.tokens = s->given.tokens > 0 ? s->given.tokens : least > 0 ? least : 1;
    if (s->shape.tokens < least)
        return epx_tool_fail(EPX_EXIT_USAGE, "%s has ranks with %lld tokens: give more than --tokens %lld",
                             s->routing.path, (long long)least, (long long)s->given.tokens);
    return EPX_GO_ON;
}

static int take_shape(epx_sim_settings_t *s)
{
    epx_model_config_t *model = &s->shape.model;
    char problem[512];
    take(&s->shape.ranks, s->given.ranks);
    take(&s->shape.tokens, s->given.tokens);
    s->shape.context_parallel = s->given.context_parallel;
    s->shape.row_type = s->given.row_type;
    take(&model->experts, s->given.experts);
    take(&model->top_k, s->given.top_k);
    take(&model->width, s->given.model_width);
    take(&model->expert_width, s->given.expert_width);
    take(&model->layers, s->given.layers);
    take(&model->sequence, s->given.sequence);
    if (s->given.width > 0)
        model->latent = s->given.width == model->width ? 0 : s->given.width;
    int rc = s->routing.kind == EPX_SIM_BY_FILE ? take_file(s) : EPX_GO_ON;
    if (rc == EPX_GO_ON && epx_sim_shape_check(&s->shape, problem, sizeof problem) != 0)
        rc = epx_tool_fail(EPX_EXIT_USAGE, "%s", problem);
    return rc;
}

static int take_machine(epx_sim_settings_t *s)
{
    char problem[1024];
    if (epx_machine_read(s->machine_name, &s->machine, problem, sizeof problem) != 0)
        return epx_tool_fail(EPX_EXIT_USAGE, "--machine: %s", problem);
    for (int32_t i = 0; i < s->set_count; i++)
        if (epx_machine_set(&s->machine, s->set[i], problem, sizeof problem) != 0)
            return epx_tool_fail(EPX_EXIT_USAGE, "--set: %s", problem);
    return EPX_GO_ON;
}

/* What no single option can see. */
static int check_together(const epx_sim_settings_t *s)
{
    int modes =
        (s->sweep_count > 0) + (s->answer > 0) + s->published + (s->dump != NULL) + (s->record != NULL);
    if (modes > 1)
        return epx_tool_fail(
            EPX_EXIT_USAGE, "--sweep, --answer, --published, --dump and --record-routing do not go together: "
                            "choose one");
    if (s->html != NULL && s->sweep_count == 0)
        return epx_tool_fail(EPX_EXIT_USAGE, "--html shows a sweep: give --sweep too");
    if (s->dump != NULL && s->case_count != 1)
        return epx_tool_fail(EPX_EXIT_USAGE,
                             "--dump is about one transport and one rule: give --transports and "
                             "--accept with one each");
    for (int32_t i = 0; i < s->sweep_count; i++)
        if (s->routing.kind == EPX_SIM_BY_FILE &&
            epx_sim_settings_change(s->sweep[i].name) == EPX_SIM_ROUTING &&
            strcmp(s->sweep[i].name, "ranks") != 0)
            return epx_tool_fail(EPX_EXIT_USAGE, "a recorded routing has no %s: sweep something else",
                                 s->sweep[i].name);
    return EPX_GO_ON;
}

typedef struct choice {
    epx_sim_settings_t *settings;
    int code;
} choice_t;

/* Where no option says which transports, EPX_TRANSPORT does. */
static void take_transport(void *context, const epx_setting_t *setting)
{
    choice_t *choice = context;
    int32_t list[3], count;
    if (strcmp(setting->variable, "EPX_TRANSPORT") != 0 || setting->set_by == NULL)
        return;
    if (strchr(setting->value, ',') != NULL ||
        read_list(setting->value, epx_sim_transports, list, &count) != 0) {
        choice->code = epx_tool_fail(
            EPX_EXIT_USAGE, "%s=%s is set and none of pooled_wave, ragged, ring: unset it, or name one",
            setting->set_by, setting->value);
        return;
    }
    choice->settings->transport[0] = list[0];
    choice->settings->transport_count = 1;
}

int epx_sim_settings_read(epx_sim_settings_t *s, int argc, char **argv)
{
    set_defaults(s);
    int rc = parse(s, argc, argv);
    if (rc == EPX_GO_ON)
        rc = take_shape(s);
    if (rc == EPX_GO_ON)
        rc = take_machine(s);
    choice_t choice = {s, rc};
    if (rc == EPX_GO_ON && !s->transports_given)
        epx_config_list(NULL, take_transport, &choice);
    rc = choice.code;
    if (rc == EPX_GO_ON)
        rc = epx_sim_cases_make(s);
    return rc == EPX_GO_ON ? check_together(s) : rc;
}

void epx_sim_settings_free(epx_sim_settings_t *s) { epx_routing_free(&s->file); }
