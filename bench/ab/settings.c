/* The command line of epx-ab. SPDX-License-Identifier: Apache-2.0 */
#include "bench/ab/settings.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <epx/comm.h>

#include "bench/ab/arms.h"
#include "tools/common/command_line.h"
#include "tools/common/program.h"
#include "train/fail.h"
#include "train/model_fields.h"

static const char notes[] =
    "An arm is a transport with its settings between colons, named as the EPX_ variables in small\n"
    "letters: waves, capacity_factor, sender_factor, accept, overflow, wire, batch. All arms start\n"
    "from one checkpoint, read the same text, and alternate in one process; each round also runs one\n"
    "arm twice. A verdict is DIFFERENT, EQUIVALENT (its 90% interval is inside the margin) or\n"
    "INCONCLUSIVE; nothing below the spread of runs of the same arm is claimed. Guards that fail void\n"
    "an arm, and say why.\n"
    "\n"
    "--arm runs another program's job: NAME='command', twice or more. EPX_STATS names a folder that\n"
    "the library writes to; the command's JSON lines (those of epx-train --json) are read too. The\n"
    "command sets its own transport. --compare judges runs that were made before: each folder is an\n"
    "arm, each .jsonl file in it (or each folder in it) a run.\n"
    "\n"
    "For tests: --inject GUARD really perturbs, in the last arm, what the guard watches (weights,\n"
    "routing, twins, gap, gradients, payload, accounting, bytes, fallback, clocks, registration,\n"
    "window), so that the guard is seen to fire.\n"
    "\n"
    "examples:\n"
    "  epx-ab --arms pooled_wave,ragged,ring --virtual-ep 64 --html ab.html\n"
    "  epx-ab --arms ragged,ragged:accept=fair --restore step6000.ckpt --pairs 8\n"
    "  epx-ab --arm a='EPX_TRANSPORT=ragged ./job' --arm b='EPX_TRANSPORT=ring ./job'\n"
    "  epx-ab --compare runs/ragged runs/ring --json ab.json\n"
    "\n"
    "exit code: 0 valid, 1 void (or failed), 2 bad usage, 3 inconclusive";

static int set_arms(void *target, const char *value, char *problem, size_t problem_bytes)
{
    epx_ab_settings_t *s = target;
    if (s->internal > 0) {
        s->arms -= s->internal; /* a later option wins */
        s->internal = 0;
    }
    int32_t before = s->arms;
    if (epx_ab_read_arms(value, s->arm, &s->arms, problem, problem_bytes) != 0)
        return -1;
    s->internal = s->arms - before;
    return 0;
}

static int set_arm(void *target, const char *value, char *problem, size_t problem_bytes)
{
    epx_ab_settings_t *s = target;
    if (epx_ab_read_command(value, s->arm, &s->arms, problem, problem_bytes) != 0)
        return -1;
    s->external++;
    return 0;
}

static int set_inject(void *target, const char *value, char *problem, size_t problem_bytes)
{
    for (int g = 0; g < EPX_AB_GUARDS; g++) {
        if (strcmp(value, epx_ab_guard_name((epx_ab_guard_t)g)) == 0) {
            *(int32_t *)target = g;
            return 0;
        }
    }
    snprintf(problem, problem_bytes, "'%s' is no guard: the help lists them", value);
    return -1;
}

static int set_preset(void *target, const char *value, char *problem, size_t problem_bytes)
{
    epx_train_config_t ignored;
    *(const char **)target = value;
    if (epx_config_preset(value, &ignored) == EPX_TRAIN_OK)
        return 0;
    snprintf(problem, problem_bytes, "%s", epx_train_error());
    return -1;
}

/* The preset comes first, wherever it stands: all else is said over it. */
static const char *find_preset(int argc, char **argv)
{
    const char *name = "tiny";
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--preset") == 0 && i + 1 < argc)
            name = argv[i + 1];
        else if (strncmp(argv[i], "--preset=", 9) == 0)
            name = argv[i] + 9;
    }
    return name;
}

static void set_defaults(epx_ab_settings_t *s, const char *preset)
{
    *s = (epx_ab_settings_t){.pairs = 5,
                             .steps = 10,
                             .discard = 2,
                             .train_steps = 300,
                             .margin = 0.25,
                             .inject = -1,
                             .timeout_s = 3600};
    if (epx_config_preset(preset, &s->train) != EPX_TRAIN_OK)
        epx_config_preset("tiny", &s->train); /* the option's own check says what is wrong */
    s->preset = s->train.preset;
    s->seed = (int64_t)s->train.seed;
    s->train.data = NULL;
}

enum { FIELDS_MOST = 32 };

static int parse(epx_ab_settings_t *s, int argc, char **argv, int *operands_p)
{
    const epx_option_t head[] = {
        epx_option_section("what to compare"),
        epx_option_call('a', "arms", "LIST", "transports between commas, with settings between colons", s,
                        set_arms),
        epx_option_call(0, "arm", "NAME=COMMAND", "an arm that is another program's job; may be given again",
                        s, set_arm),
        epx_option_flag(0, "compare", "judge runs already made: the operands are folders, one an arm",
                        &s->compare),
        epx_option_section("how often"),
        epx_option_int('p', "pairs", "rounds, each with a run of every arm", &s->pairs, 1, 1000),
        epx_option_int(0, "steps", "steps of a run that count", &s->steps, 1, 1e6),
        epx_option_int(0, "discard", "steps of a run before them", &s->discard, 0, 1e6),
        epx_option_real(0, "margin", "points of MFU within which speeds are equivalent", &s->margin, 0, 100),
        epx_option_int(0, "seed", "of weights and the order of the text", &s->seed, 0, 9e15),
        epx_option_flag(0, "no-adjust", "leave out the runs at equal drops and equal memory", &s->no_adjust),
        epx_option_int(0, "timeout-s", "seconds that an external command may take", &s->timeout_s, 1, 1e7),
        epx_option_section("where from"),
        epx_option_text(0, "restore", "FILE", "the checkpoint that all arms start from", &s->restore),
        epx_option_int(0, "train-steps", "without one: steps of dropless training before", &s->train_steps, 0,
                       1e7),
        epx_option_text(0, "checkpoint", "FILE", "keep the checkpoint that was trained", &s->checkpoint),
        epx_option_text(0, "regime", "NAME",
                        "fresh, spike, settled or long-sequence, where the router's load misleads",
                        &s->regime),
        epx_option_text(0, "data", "FILE", "text read as bytes, or an llm.c token shard", &s->train.data),
        epx_option_section("ranks"),
        epx_option_int('n', "ranks", "short for --ep N --replicas 1", &s->ranks, 0, 65536),
        epx_option_int(0, "ep", "ranks that share the experts", &s->ep, 0, 65536),
        epx_option_int(0, "replicas", "such groups, data parallel", &s->replicas, 0, 65536),
        epx_option_int(0, "virtual-ep", "accept rules decide as if a group had N ranks", &s->virtual_ep, 0,
                       1 << 20),
        epx_option_int(0, "target-ranks",
                       "ranks that drops are computed for beside the measured ones; 0: --virtual-ep, "
                       "or 64 or the next multiple of --ep",
                       &s->target_ranks, 0, 1 << 20),
        epx_option_section("reports"),
        epx_option_text(0, "json", "FILE",
                        "write everything as JSON; - for standard output, in place of the table", &s->json),
        epx_option_text(0, "html", "FILE", "write a page with plots", &s->html),
        epx_option_section("model, over the preset's"),
        epx_option_call(0, "preset", "NAME", "tiny, d512, d768, d1024 or hero", &s->preset, set_preset),
        epx_option_int(0, "batch", "sequences per rank and step", &s->train.batch, 1, 1e6),
        epx_option_real(0, "peak-flops", "peak of all devices together for MFU; 0: measure",
                        &s->train.peak_flops, 0, 0),
    };
    enum { HEAD = sizeof head / sizeof *head };
    epx_option_t options[HEAD + FIELDS_MOST + 2];
    int count = HEAD;
    memcpy(options, head, sizeof head);
    for (const epx_model_field_t *field = epx_model_fields; field->name != NULL && count < HEAD + FIELDS_MOST;
         field++)
        options[count++] =
            epx_option_int(0, field->name, field->help,
                           (int64_t *)(void *)((char *)&s->train.model + field->offset), 0, 1e9);
    options[count++] = epx_option_call(0, "inject", "GUARD", "for tests, see below", &s->inject, set_inject);
    options[count] = epx_option_end();
    const epx_program_t program = {
        "epx-ab",
        "Compares transports on a real model: same weights, same text, alternating runs, "
        "guards, and a verdict with its scope.",
        "[DIR DIR...]", options, notes};
    return epx_command_line(&program, argc, argv, operands_p);
}

static int usage(const char *text) { return epx_tool_fail(EPX_EXIT_USAGE, "%s", text); }

/* Which of the three ways, and whether there is something to compare. */
static int check_ways(epx_ab_settings_t *s)
{
    if (s->compare && (s->internal || s->external))
        return usage("--compare judges runs already made: leave --arms and --arm out");
    if (s->internal && s->external)
        return usage("--arms train epx's own model and --arm runs another job, which cannot be compared: "
                     "give one kind");
    if (s->compare && (s->folders < 2 || s->folders > EPX_AB_ARMS))
        return epx_tool_fail(
            EPX_EXIT_USAGE, "--compare needs 2 to %d folders, and there are %d: give one folder for each arm",
            EPX_AB_ARMS, (int)s->folders);
    if (!s->compare && s->folders > 0)
        return epx_tool_fail(EPX_EXIT_USAGE, "'%s' is not expected here: folders go with --compare",
                             s->folder[0]);
    if (!s->compare && s->arms == 0)
        return usage(
            "nothing to compare: give --arms pooled_wave,ragged, or --arm twice, or --compare DIR DIR");
    if (!s->compare && s->arms < 2)
        return usage(
            "one arm has nothing to be compared with: give two or more (the same twice is an A/A test)");
    if (s->inject >= 0 && !s->internal)
        return usage("--inject perturbs arms of this process: use it with --arms");
    for (int32_t i = 0; i < s->internal; i++)
        if (strcmp(s->arm[i].transport, "auto") == 0)
            return usage("'auto' is no arm, because it may become any transport: name the transport");
    return EPX_GO_ON;
}

static int check_ranks(epx_ab_settings_t *s)
{
    s->processes = 1;
    if (epx_comm_launched(NULL, &s->processes) != EPX_OK)
        return usage(epx_last_error());
    if (s->processes > 1 && s->internal > 0 && s->ranks == 0 && s->ep == 0 && s->replicas == 0)
        s->ranks = s->processes;
    if (s->ranks > 0 && s->ep > 0)
        return usage("--ranks N is short for --ep N --replicas 1: give one of --ranks and --ep");
    if (s->ranks > 0 && s->replicas > 1)
        return usage("--ranks N is short for --ep N --replicas 1: with --replicas give --ep");
    s->ep = s->ep > 0 ? s->ep : s->ranks > 0 ? s->ranks : 2;
    s->replicas = s->replicas > 0 ? s->replicas : 1;
    s->ranks = s->ep * s->replicas;
    s->train.ep = s->ep;
    s->train.replicas = s->replicas;
    s->train.virtual_ep = s->virtual_ep;
    if (s->target_ranks == 0)
        s->target_ranks = s->virtual_ep > 0 ? s->virtual_ep : (64 + s->ep - 1) / s->ep * s->ep;
    if (s->target_ranks % s->ep != 0 &&
        s->target_ranks != s->virtual_ep) /* of that one the model's check complains */
        return epx_tool_fail(EPX_EXIT_USAGE, "--target-ranks %lld is no multiple of --ep %lld: make it one",
                             (long long)s->target_ranks, (long long)s->ep);
    return EPX_GO_ON;
}

static int check_regime(const epx_ab_settings_t *s)
{
    static const char *const regimes[] = {"fresh", "spike", "settled", "long-sequence"};
    for (int i = 0; s->regime != NULL && i < 4; i++)
        if (strcmp(s->regime, regimes[i]) == 0)
            return EPX_GO_ON;
    return s->regime == NULL
               ? EPX_GO_ON
               : epx_tool_fail(EPX_EXIT_USAGE,
                               "--regime '%s' is unknown: choose from fresh, spike, settled, long-sequence",
                               s->regime);
}

/* Found out before minutes of work; a file that is not there yet is not left behind. */
static int check_writable(const char *option, const char *path)
{
    if (path == NULL || strcmp(path, "-") == 0)
        return EPX_GO_ON;
    int there = access(path, F_OK) == 0;
    FILE *file = fopen(path, "a");
    if (file == NULL)
        return epx_tool_fail(EPX_EXIT_USAGE, "--%s %s cannot be written (%s): give another file", option,
                             path, strerror(errno));
    fclose(file);
    if (!there)
        unlink(path);
    return EPX_GO_ON;
}

int epx_ab_settings_read(epx_ab_settings_t *s, int argc, char **argv)
{
    int first = argc;
    set_defaults(s, find_preset(argc, argv));
    int rc = parse(s, argc, argv, &first);
    s->folder = argv + first;
    s->folders = argc - first;
    if (rc == EPX_GO_ON)
        rc = check_ways(s);
    if (rc == EPX_GO_ON && s->internal)
        rc = check_ranks(s);
    if (rc == EPX_GO_ON)
        rc = check_regime(s);
    if (rc == EPX_GO_ON)
        rc = check_writable("json", s->json);
    if (rc == EPX_GO_ON)
        rc = check_writable("html", s->html);
    if (rc == EPX_GO_ON)
        rc = check_writable("checkpoint", s->checkpoint);
    if (rc == EPX_GO_ON && s->internal) {
        s->train.seed = (uint64_t)s->seed;
        for (int32_t i = 0; i < s->arms; i++)
            s->arm[i].config.transport = s->arm[i].transport;
        if (epx_config_check(&s->train) != EPX_TRAIN_OK)
            rc = usage(epx_train_error());
    }
    if (rc == EPX_GO_ON && s->internal)
        rc = epx_ab_check_environment(s->arm, s->arms);
    return rc;
}
