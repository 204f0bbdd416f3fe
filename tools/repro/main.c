/* epx-repro: hangs on purpose. SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <epx/info.h>

#include "tools/common/json.h"
#include "tools/common/command_line.h"
#include "tools/common/program.h"
#include "tools/repro/repro.h"

typedef struct request {
    settings_t settings;
    int32_t json, list, keep;
    int64_t ranks, domains, hang_ms, seed;
    const char *run, *replay, *against;
} request_t;

static const char notes[] =
    "Every scenario is played without its fault, which must be silent, and with it. What is compared is the\n"
    "verdict of the library's watchdog, its culprit and its operation. EPX_HANG_MS shortens detection.\n"
    "EPX_FAULT without --run plays the steps under that specification and says what came of it.\n"
    "\n"
    "examples:\n"
    "  epx-repro --list\n"
    "  epx-repro --run one-short --ranks 8 --transport pooled_wave\n"
    "  epx-repro --run all --json\n"
    "  EPX_FAULT='rank=1 op=combine at=signal.pre do=delay:200' epx-repro --minutes 5\n"
    "\n"
    "exit code: 0 all that was played came out right, 1 something did not, 2 bad usage, 3 nothing could be "
    "played";

static int parse(request_t *r, int argc, char **argv)
{
    settings_t *s = &r->settings;
    const epx_option_t options[] = {
        epx_option_section("what to do"),
        epx_option_flag('l', "list", "print every scenario: name, fault, verdict", &r->list),
        epx_option_text('r', "run", "NAME", "play one scenario, or all", &r->run),
        epx_option_text(0, "replay", "DIR", "play the calls of recorded ranks again, in their order and skew",
                        &r->replay),
        epx_option_flag(0, "perturb", "with --replay: delays, hogs and reordering by --seed", &s->perturb),
        epx_option_text(0, "against", "DIR", "what this reproduction lacks, compared with recorded ranks",
                        &r->against),
        epx_option_flag(0, "json", "print JSON", &r->json),
        epx_option_section("with what"),
        epx_option_int('n', "ranks", "ranks of the job, all domains together", &r->ranks, 0, REPRO_RANKS_MAX),
        epx_option_int('d', "domains", "expert-parallel domains", &r->domains, 0, 64),
        epx_option_text('t', "transport", "NAME", "pooled_wave, ragged or ring", &s->transport),
        epx_option_text(0, "fabric", "NAME", "local (ranks are threads), ucx or nccl (processes)",
                        &s->fabric),
        epx_option_text(0, "device", "NAME", "host or cuda", &s->device),
        epx_option_text(0, "kernel", "LIB.so",
                        "a computation between dispatch and combine: " REPRO_KERNEL_SYMBOL, &s->kernel_path),
        epx_option_real(0, "minutes", "how long to go on; the machines are free when it is over", &s->minutes,
                        0, 100000),
        epx_option_int(0, "operations", "clean-soak: how many, over all ranks; 0: 20000", &s->operations, 0,
                       1e12),
        epx_option_int(0, "seed", "of routing and skew", &r->seed, 0, 9e15),
        epx_option_flag(0, "backward", "every step has a backward pass, too", &s->backward),
        epx_option_flag(
            0, "recover",
            "recover the group after a verdict that can be mended in place, go on, and judge what comes then",
            &s->recover),
        epx_option_flag(0, "keep", "keep the records of every play", &r->keep),
        epx_option_end(),
    };
    const epx_program_t program = {
        "epx-repro", "Plays hangs and faults on real groups, and checks what the library says of them.", NULL,
        options, notes};
    return epx_command_line(&program, argc, argv, NULL);
}

/* ---- one scenario ----------------------------------------------------------------------------------------------- */

typedef struct line {
    const scenario_t *scenario;
    play_t play;
    outcome_t clean, faulty;
    int32_t lines, ok;
    const char *cannot;
    char reason[800]; /* why not */
} line_t;

static void judge_clean(line_t *line)
{
    const outcome_t *o = &line->clean;
    if (o->wrong || o->kind != EPX_VERDICT_NONE || o->completed < line->play.ranks)
        snprintf(
            line->reason, sizeof(line->reason), "without its fault: %s, %d of %d ranks came to the end: %s",
            o->kind != EPX_VERDICT_NONE ? o->verdict : "no verdict", o->completed, line->play.ranks, o->text);
}

static int is_expected_kind(const line_t *line)
{
    const scenario_t *s = line->scenario;
    if (s->alone != NULL)
        return line->faulty.refused;
    if (s->verdicts == 0)
        return line->faulty.kind == EPX_VERDICT_NONE && line->faulty.completed == line->play.ranks;
    return (s->verdicts >> line->faulty.kind & 1) != 0 && line->faulty.kind != EPX_VERDICT_NONE;
}

static int is_expected_culprit(const line_t *line)
{
    const outcome_t *o = &line->faulty;
    int32_t culprit = line->play.culprit, other = culprit ^ 1;
    if (line->scenario->by_most && line->play.per_domain == 2)
        return (o->culprit == culprit && o->peer == other) || (o->culprit == other && o->peer == culprit);
    return o->culprit == culprit;
}

static void judge_faulty(line_t *line)
{
    const scenario_t *s = line->scenario;
    const outcome_t *o = &line->faulty;
    const char *what = NULL;
    if (o->wrong)
        what = "it was not played as it should be";
    else if (!is_expected_kind(line))
        what = "another verdict";
    else if (s->verdicts != 0 && !s->nobody && !is_expected_culprit(line))
        what = "another culprit";
    else if (s->names_peer && o->peer != line->play.peer)
        what = "another peer";
    else if (s->op != NULL && strcmp(s->op, o->op) != 0)
        what = "another operation";
    else if (s->right != NULL && !s->right(&line->play, o))
        what = "something else is not as it should be";
    if (what != NULL)
        snprintf(line->reason, sizeof(line->reason), "%s: %s", what, o->text);
}

static int run_one(line_t *line, const request_t *request)
{
    const scenario_t *s = line->scenario;
    int32_t nothing;
    int code = EPX_EXIT_OK;
    line->cannot = scenario_cannot(s, &request->settings);
    if (line->cannot != NULL) {
        play_set_up(&line->play, s, &request->settings, 1);
        snprintf(line->reason, sizeof(line->reason), "%s", line->cannot);
        return EPX_EXIT_OK;
    }
    if (!s->is_clean) {
        code = play_apart(s, &request->settings, 0, &line->clean, &nothing, &line->play);
        judge_clean(line);
    }
    if (code == EPX_EXIT_OK && line->reason[0] == '\0') {
        code = play_apart(s, &request->settings, 1, &line->faulty, &line->lines, &line->play);
        judge_faulty(line);
    }
    if (s->is_clean)
        line->clean = line->faulty;
    line->ok = line->reason[0] == '\0' && code == EPX_EXIT_OK;
    return code;
}

/* ---- what is printed -------------------------------------------------------------------------------------------- */

static const char *verdict_of(const line_t *line)
{
    if (line->cannot != NULL)
        return "not played";
    if (line->faulty.verdict[0] != '\0')
        return line->faulty.verdict;
    return line->faulty.slow ? "none, then SLOW" : "none";
}

static void print_json_line(epx_json_t *json, const line_t *line)
{
    const outcome_t *o = &line->faulty;
    char trace[32];
    snprintf(trace, sizeof(trace), "%016llx", (unsigned long long)o->trace);
    epx_json_object(json, NULL);
    epx_json_text(json, "name", line->scenario->name);
    epx_json_int(json, "ranks", line->play.ranks);
    epx_json_int(json, "domains", line->play.domains);
    epx_json_text(json, "transport", line->play.settings->transport);
    epx_json_text(json, "expected", line->scenario->expected);
    epx_json_text(json, "verdict", verdict_of(line));
    if (o->culprit >= 0)
        epx_json_int(json, "culprit", o->culprit);
    else
        epx_json_null(json, "culprit");
    epx_json_text(json, "op", o->op[0] != '\0' ? o->op : NULL);
    if (o->peer >= 0)
        epx_json_int(json, "peer", o->peer);
    else
        epx_json_null(json, "peer");
    epx_json_text(json, "group", o->group[0] != '\0' ? o->group : NULL);
    epx_json_int(json, "wave", o->wave);
    epx_json_int(json, "recovered", o->recovered);
    if (o->detect_ms >= 0)
        epx_json_real(json, "detect_ms", round(o->detect_ms * 10) / 10);
    else
        epx_json_null(json, "detect_ms");
    epx_json_int(json, "report_lines", line->lines);
    if (line->cannot != NULL)
        epx_json_null(json, "ok");
    else
        epx_json_bool(json, "ok", line->ok);
    epx_json_text(json, "trace", trace);
    epx_json_text(json, "text", line->reason[0] != '\0' ? line->reason : o->text);
    epx_json_close(json);
}

static void print_line(const line_t *line)
{
    const outcome_t *o = &line->faulty;
    char detect[32] = "", who[96] = "";
    if (o->detect_ms >= 0)
        snprintf(detect, sizeof(detect), " after %.0f ms", o->detect_ms);
    if (o->culprit >= 0)
        snprintf(who, sizeof(who), " rank %d%s%s", o->culprit, o->op[0] != '\0' ? ", " : "", o->op);
    printf("%-8s %-18s %s%s%s",
           line->cannot != NULL ? "skipped"
           : line->ok           ? "ok"
                                : "WRONG",
           line->scenario->name, verdict_of(line), who, detect);
    if (line->lines > 0)
        printf(", %d lines", line->lines);
    if (o->trace != 0)
        printf(", trace %016llx", (unsigned long long)o->trace);
    printf("\n");
    if (line->reason[0] != '\0')
        printf("         %s\n", line->reason);
    fflush(stdout);
}

/* What so many quiet steps say about the rate of hangs: with probability 95% it is lower. */
static double excluded_rate(int64_t steps) { return steps > 0 ? 1 - pow(0.05, 1.0 / (double)steps) : 1; }

static void list_scenarios(int json)
{
    epx_json_t out = epx_json_begin(stdout, 2);
    if (json) {
        epx_json_object(&out, NULL);
        epx_json_array(&out, "scenarios");
    }
    for (int32_t i = 0; i < scenarios_count; i++) {
        const scenario_t *s = &scenarios[i];
        if (!json) {
            printf("%-18s %-16s %s\n", s->name, s->expected, s->fault);
            continue;
        }
        epx_json_object(&out, NULL);
        epx_json_text(&out, "name", s->name);
        epx_json_text(&out, "fault", s->fault);
        epx_json_text(&out, "expected", s->expected);
        epx_json_text(&out, "cannot", s->cannot);
        epx_json_close(&out);
    }
    if (json) {
        epx_json_close(&out);
        epx_json_close(&out);
        epx_json_end(&out);
    }
}

/* ---- runs ------------------------------------------------------------------------------------------------------- */

static void remove_records(const request_t *request)
{
    char command[128];
    if (request->keep) {
        epx_tool_note("records and reports are in /dev/shm/epx-repro-%d", (int)getpid());
        return;
    }
    snprintf(command, sizeof(command), "rm -rf /dev/shm/epx-repro-%d", (int)getpid());
    if (system(command) != 0)
        epx_tool_note("the records in /dev/shm/epx-repro-%d are still there", (int)getpid());
}

static int run_scenarios(const request_t *request)
{
    int all = strcmp(request->run, "all") == 0, code = EPX_EXIT_OK;
    int32_t right = 0, wrong = 0, skipped = 0;
    int64_t quiet_steps = 0;
    epx_json_t json = epx_json_begin(stdout, 2);
    if (request->json) {
        epx_json_object(&json, NULL);
        epx_json_array(&json, "scenarios");
    }
    for (int32_t i = 0; i < scenarios_count && code == EPX_EXIT_OK; i++) {
        if (!all && strcmp(scenarios[i].name, request->run) != 0)
            continue;
        const outcome_t nothing = {.culprit = -1, .peer = -1, .detect_ms = -1};
        line_t line = {.scenario = &scenarios[i], .clean = nothing, .faulty = nothing};
        code = run_one(&line, request);
        right += line.ok;
        skipped += line.cannot != NULL;
        wrong += !line.ok && line.cannot == NULL;
        quiet_steps += line.clean.steps;
        if (request->json)
            print_json_line(&json, &line);
        else
            print_line(&line);
    }
    if (request->json) {
        epx_json_close(&json);
        epx_json_object(&json, "summary");
        epx_json_int(&json, "right", right);
        epx_json_int(&json, "wrong", wrong);
        epx_json_int(&json, "not_played", skipped);
        epx_json_close(&json);
        epx_json_close(&json);
        epx_json_end(&json);
    } else {
        printf("%d right, %d wrong, %d not played; 0 hangs in %lld steps without a fault: rates above %.2g%% "
               "per "
               "step are excluded at 95%%\n",
               right, wrong, skipped, (long long)quiet_steps, 100 * excluded_rate(quiet_steps));
    }
    if (code != EPX_EXIT_OK)
        return code;
    return wrong > 0 ? EPX_EXIT_FAILED : right > 0 ? EPX_EXIT_OK : EPX_EXIT_NO_VERDICT;
}

/* The caller's own EPX_FAULT, or none: steps until something happens. */
static int run_given(const request_t *request)
{
    static const scenario_t given = {.name = "given", .fault = "EPX_FAULT", .expected = "any"};
    line_t line = {.scenario = &given};
    int code = play_apart(&given, &request->settings, 1, &line.faulty, &line.lines, &line.play);
    line.ok = !line.faulty.wrong;
    epx_json_t json = epx_json_begin(stdout, 2);
    if (request->json) {
        print_json_line(&json, &line);
        epx_json_end(&json);
        return code == EPX_EXIT_OK && !line.ok ? EPX_EXIT_FAILED : code;
    }
    print_line(&line);
    if (line.faulty.text[0] != '\0')
        printf("         %s\n", line.faulty.text);
    if (line.faulty.kind == EPX_VERDICT_NONE && line.faulty.completed == line.play.ranks)
        printf("0 hangs in %lld steps: rates above %.2g%% per step are excluded at 95%%\n",
               (long long)line.faulty.steps, 100 * excluded_rate(line.faulty.steps));
    return code == EPX_EXIT_OK && !line.ok ? EPX_EXIT_FAILED : code;
}

static int load_kernel(settings_t *settings)
{
    if (settings->kernel_path == NULL)
        return EPX_EXIT_OK;
    void *library = dlopen(settings->kernel_path, RTLD_NOW | RTLD_LOCAL);
    void *symbol = library != NULL ? dlsym(library, REPRO_KERNEL_SYMBOL) : NULL;
    if (symbol == NULL)
        return epx_tool_fail(EPX_EXIT_USAGE, "--kernel %s: %s: export %s", settings->kernel_path, dlerror(),
                             REPRO_KERNEL_SYMBOL);
    memcpy(&settings->kernel, &symbol, sizeof(symbol));
    return EPX_EXIT_OK;
}

/* What of the environment steers a play. */
typedef struct heard {
    int64_t hang_ms, timeout_ms; /* 0: nothing was said */
    char transport[64], device[32];
    char problem[512]; /* the first value that cannot be; "": none */
} heard_t;

static void hear_setting(void *context, const epx_setting_t *setting)
{
    heard_t *heard = context;
    if (setting->source != EPX_SOURCE_ENVIRONMENT)
        return;
    if (setting->help != NULL && setting->problem != NULL && heard->problem[0] == '\0')
        snprintf(heard->problem, sizeof(heard->problem), "%s", setting->problem);
    if (strcmp(setting->variable, "EPX_HANG_MS") == 0)
        heard->hang_ms = strtoll(setting->value, NULL, 10);
    if (strcmp(setting->variable, "EPX_TIMEOUT_MS") == 0)
        heard->timeout_ms = strtoll(setting->value, NULL, 10);
    if (strcmp(setting->variable, "EPX_DEVICE") == 0 && strcmp(setting->value, "auto") != 0)
        snprintf(heard->device, sizeof(heard->device), "%s", setting->value);
    if (strcmp(setting->variable, "EPX_TRANSPORT") == 0)
        snprintf(heard->transport, sizeof(heard->transport), "%s", setting->value);
}

/* Asked in a process of its own: looking for devices leaves a GPU's driver behind that no child may use, and
 * plays are children of this process. */
static int hear_environment(settings_t *s, const char **problem_p)
{
    heard_t *heard = mmap(NULL, sizeof(*heard), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (heard == MAP_FAILED)
        return epx_tool_fail(EPX_EXIT_FAILED, "no memory to read the environment");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        epx_config_list(NULL, hear_setting, heard);
        _exit(0);
    }
    if (child < 0 || waitpid(child, NULL, 0) != child)
        return epx_tool_fail(EPX_EXIT_FAILED, "no process to read the environment in");
    s->hang_ms = heard->hang_ms;
    s->timeout_ms = heard->timeout_ms;
    if (heard->transport[0] != '\0' && s->transport == NULL)
        s->transport = heard->transport;
    if (heard->device[0] != '\0')
        s->device = heard->device;
    *problem_p = heard->problem;
    return EPX_EXIT_OK; /* the texts stay there */
}

/* Options, then the environment's word, then defaults. */
static int settle(request_t *r)
{
    settings_t *s = &r->settings;
    const char *problem = "";
    int code = hear_environment(s, &problem);
    if (code != EPX_EXIT_OK)
        return code;
    s->ranks_given = r->ranks > 0;
    s->domains_given = r->domains > 0;
    s->domains = s->domains_given ? (int32_t)r->domains : 1;
    s->ranks = s->ranks_given ? (int32_t)r->ranks : 4 * s->domains;
    s->seed = (uint64_t)r->seed;
    if (s->hang_ms <= 0)
        s->hang_ms = 1500;
    if (s->timeout_ms <= 0)
        s->timeout_ms = 8 * s->hang_ms;
    if (s->transport == NULL || strcmp(s->transport, "auto") == 0)
        s->transport = "ragged";
    if (s->fabric == NULL)
        s->fabric = "local";
    if (strcmp(s->transport, "pooled_wave") != 0 && strcmp(s->transport, "ragged") != 0 &&
        strcmp(s->transport, "ring") != 0)
        return epx_tool_fail(EPX_EXIT_USAGE, "--transport %s: use pooled_wave, ragged or ring", s->transport);
    if (s->device == NULL)
        s->device = "host";
    if (strcmp(s->device, "host") != 0 && strcmp(s->device, "cuda") != 0)
        return epx_tool_fail(EPX_EXIT_USAGE, "--device %s: use host or cuda", s->device);
    if (strcmp(s->fabric, "local") != 0 && strcmp(s->fabric, "ucx") != 0 && strcmp(s->fabric, "nccl") != 0)
        return epx_tool_fail(EPX_EXIT_USAGE, "--fabric %s: use local (threads), ucx or nccl (processes)",
                             s->fabric);
    if (problem[0] != '\0')
        return epx_tool_fail(EPX_EXIT_USAGE, "%s", problem);
    if (s->ranks % s->domains != 0 || s->ranks / s->domains < 2)
        return epx_tool_fail(EPX_EXIT_USAGE,
                             "%d ranks in %d domains: give each domain the same number, at least 2", s->ranks,
                             s->domains);
    return load_kernel(s);
}

int main(int argc, char **argv)
{
    request_t request = {.seed = 1};
    int code = parse(&request, argc, argv);
    if (code == EPX_GO_ON)
        code = settle(&request);
    else
        return epx_tool_end(code);
    if (code != EPX_EXIT_OK)
        return epx_tool_end(code);
    if (request.list) {
        list_scenarios(request.json);
        return epx_tool_end(EPX_EXIT_OK);
    }
    if (request.run != NULL && strcmp(request.run, "all") != 0 && scenario_named(request.run) == NULL)
        return epx_tool_end(
            epx_tool_fail(EPX_EXIT_USAGE, "--run %s: no such scenario: --list names them", request.run));
    if (request.against != NULL)
        code = repro_against(request.against, &request.settings);
    else if (request.replay != NULL)
        code = repro_replay(request.replay, &request.settings);
    else if (request.run != NULL)
        code = run_scenarios(&request);
    else
        code = run_given(&request);
    remove_records(&request);
    return epx_tool_end(code);
}
