/* Sentences that all reports share: the scope, reasons. SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include <epx/epx.h>

#include "bench/ab/arms.h"
#include "bench/ab/report.h"
#include "bench/ab/verdict.h"
#include "tools/common/numbers.h"

typedef struct lines {
    epx_ab_line_fn line;
    void *context;
} lines_t;

static void say(const lines_t *to, const char *label, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void say(const lines_t *to, const char *label, const char *format, ...)
{
    char text[2 * EPX_AB_TEXT];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    to->line(to->context, label, text);
}

/* ---- what it is ----------------------------------------------------------------------------------------------------- */

static void say_job(const epx_ab_result_t *result, const lines_t *to)
{
    const epx_ab_scope_t *s = &result->scope;
    char rules[128] = "";
    if (s->virtual_ep > 0)
        snprintf(rules, sizeof rules, "; accept rules decide as if %d ranks shared the experts",
                 s->virtual_ep);
    say(to, "ranks", "%d %s: %d share the experts, %d replica%s%s", s->ranks,
        s->processes > 1 ? "processes" : "threads of one process", s->ep, s->replicas,
        s->replicas == 1 ? "" : "s", rules);
    say(to, "model",
        "%s: %" PRId64 " layers, %" PRId64 " experts, top %" PRId64 ", sequences of %" PRId64
        " tokens, %" PRId64 " tokens per rank and step",
        s->preset, s->layers, s->experts, s->top_k, s->sequence, s->tokens_per_rank);
    say(to, "regime", "%s: %s", s->regime, s->regime_why);
    say(to, "checkpoint", "%016" PRIx64 ", %s, the same for all runs; data %s, seed %" PRIu64,
        s->checkpoint_hash, s->checkpoint, s->data, s->seed);
}

/* The most that others used of the machine in the window of a run. */
static double most_of_others(const epx_ab_result_t *result)
{
    double most = NAN;
    for (int32_t i = 0; i < result->runs; i++)
        if (result->run[i].part != EPX_AB_REFERENCE && result->run[i].others_cpu >= 0 &&
            !(most > result->run[i].others_cpu))
            most = result->run[i].others_cpu;
    return most;
}

static void say_machine(const epx_ab_result_t *result, const lines_t *to)
{
    const epx_ab_machine_t *m = &result->scope.machine;
    char memory[32], peak[64] = "";
    if (m->peak_flops > 0)
        snprintf(peak, sizeof peak, "; MFU is a share of %.1f GFLOP/s", 1e-9 * m->peak_flops);
    say(to, "machine", "%s, %d core%s, %s, %s%s", m->cpu, m->cores, m->cores == 1 ? "" : "s",
        epx_text_of_bytes(memory, sizeof memory, (double)m->memory_bytes), m->kernel, peak);
    say(to, "build", "epx %s, build id %.16s%s%s, %d libraries loaded (JSON lists paths and build ids)",
        epx_version(), m->library[0].build_id[0] ? m->library[0].build_id : "none",
        m->blas[0] ? ", matrix products by " : "", m->blas, m->libraries);
    say(to, "clocks", "%s; throttling: %s", m->clock_source, m->throttle_source);
}

static int32_t again_pairs(const epx_ab_result_t *result)
{
    int32_t count = 0;
    for (int32_t i = 0; i < result->runs; i++)
        count += result->run[i].part == EPX_AB_AGAIN && result->run[i].void_why[0] == '\0';
    return count;
}

static void say_runs(const epx_ab_result_t *result, const lines_t *to)
{
    const epx_ab_scope_t *s = &result->scope;
    if (result->external)
        say(to, "runs", "%d rounds, the first %d steps of a run discarded, spikes kept; %d A/A pairs",
            epx_ab_rounds(result), s->discard, again_pairs(result));
    else
        say(to, "runs",
            "%d pairs in turns (A B, B A), in each %d step%s discarded and %d counted, spikes kept; %d A/A "
            "pairs "
            "among them; %d runs in %.0f s",
            s->pairs, s->discard, s->discard == 1 ? "" : "s", s->steps, again_pairs(result), result->runs,
            s->seconds);
    say(to, "statistics",
        "the unit is the run; 90%% intervals of the mean difference of pairs (Student's t); A/A spread: root "
        "mean square of the differences of runs of one arm; margins: %.3g points of MFU, %.3g nats, 1%% of "
        "memory and of "
        "step time",
        s->margin, EPX_AB_LOSS_MARGIN);
}

/* ---- what it is not -------------------------------------------------------------------------------------------------- */

static int runs_on(const epx_ab_result_t *result, const char *fabric)
{
    for (int32_t i = 0; i < result->runs; i++)
        if (strcmp(result->run[i].fabric, fabric) == 0)
            return 1;
    return 0;
}

static void say_unchecked(const epx_ab_result_t *result, const lines_t *to)
{
    char names[EPX_AB_TEXT] = "";
    size_t at = 0;
    for (int g = 0; g < EPX_AB_GUARDS; g++)
        if (epx_ab_guard_state(result, (epx_ab_guard_t)g) == EPX_AB_UNCHECKED && at < sizeof names - 32)
            at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", at ? ", " : "",
                                   epx_ab_guard_name((epx_ab_guard_t)g));
    if (at > 0)
        say(to, "does not show", "Whether these guards would hold, because they could not be checked: %s.",
            names);
}

static void say_limits(const epx_ab_result_t *result, const lines_t *to)
{
    const epx_ab_scope_t *s = &result->scope;
    const char *label = "does not show";
    double others = most_of_others(result);
    if (!result->external && runs_on(result, "local"))
        say(to, label,
            "A network: ranks are threads that share memory, so that bytes cost a copy. On the host nothing "
            "overlaps: all time inside the exchange is exposed, waiting for slower ranks included.");
    if (!result->external && s->ranks > s->machine.cores)
        say(to, label,
            "Ranks with a processor each: %d ranks share %d cores, so that a rank's time has other ranks' "
            "work in "
            "it.",
            s->ranks, s->machine.cores);
    int32_t deciding = s->virtual_ep > 0 ? s->virtual_ep : s->ep;
    if (!result->external && deciding > 0 && s->ep > 0 && s->tokens_per_rank * s->ep / deciding < 1024)
        say(to, label,
            "Drops at a real shape: a rank of the rules has %" PRId64
            " tokens here; per-destination slots are "
            "rounded up from few rows, which raises pooled_wave's capacity at the sender and its crowding in "
            "wave 0.",
            s->tokens_per_rank * s->ep / deciding);
    if (!result->external)
        say(to, label,
            "Other regimes, other checkpoints, longer runs: drops spike while a router is learning, and the "
            "loss is "
            "that of a few steps.");
    if (others > 0.05)
        say(to, label, "A quiet machine: other programs used up to %.0f%% of it while runs were timed.",
            100 * others);
    if (result->external)
        say(to, label,
            "That the jobs differ in nothing but the transport: weights, data and libraries are theirs.");
    say_unchecked(result, to);
}

void epx_ab_scope_lines(const epx_ab_result_t *result, epx_ab_line_fn line, void *context)
{
    const lines_t to = {line, context};
    if (!result->external)
        say_job(result, &to);
    else
        say(&to, "jobs", "other programs' jobs, as they wrote them down");
    say_runs(result, &to);
    say_machine(result, &to);
    say_limits(result, &to);
}

/* ---- reasons --------------------------------------------------------------------------------------------------------- */

static double percent(int64_t part, int64_t whole)
{
    return whole > 0 ? 100 * (double)part / (double)whole : 0;
}

static void pooled_reason(const epx_ab_arm_t *arm, char *text, size_t bytes)
{
    const epx_ab_ruled_t *ruled = &arm->ruled[0];
    char waves[128] = "";
    size_t at = 0;
    int32_t last = arm->config.waves > 0 ? arm->config.waves - 1 : 2;
    last = last < EPX_AB_WAVES ? last : EPX_AB_WAVES - 1;
    for (int32_t w = 0; w <= last && at < sizeof waves - 16; w++)
        at += (size_t)snprintf(waves + at, sizeof waves - at, "%s%.2f%%", w ? ", " : "",
                               percent(ruled->by_wave[w], ruled->count.valid));
    /* Wave 0 has half more than its share. */
    int crowded = 2 * (last + 1) * ruled->by_wave[0] > 3 * ruled->count.dropped_receiver;
    snprintf(text, bytes,
             "slots are fixed and nothing is exchanged first: %.2f%% find no slot towards their destination "
             "(sender "
             "gate), %.2f%% find their expert full in their wave (receiver gate; wave by wave %s%s)",
             percent(ruled->count.dropped_sender, ruled->count.valid),
             percent(ruled->count.dropped_receiver, ruled->count.valid), waves,
             crowded ? ", because a sender's first row to each destination goes into wave 0" : "");
}

void epx_ab_drop_reason(const epx_ab_result_t *result, int32_t a, char *text, size_t bytes)
{
    const epx_ab_arm_t *arm = &result->arm[a];
    const epx_ab_ruled_t *ruled = &arm->ruled[0];
    text[0] = '\0';
    if (ruled->ranks == 0 || ruled->count.valid <= 0)
        return;
    if (arm->config.capacity_factor < 0)
        snprintf(text, bytes, "dropless: everything has room");
    else if (strcmp(arm->transport, "pooled_wave") == 0)
        pooled_reason(arm, text, bytes);
    else
        snprintf(text, bytes,
                 "counts are exchanged first and rows are dropped before anything moves: %.2f%% are more "
                 "than %s of a rank "
                 "has room for, and only those",
                 percent(ruled->count.dropped_sender, ruled->count.valid),
                 strcmp(arm->transport, "ring") == 0 ? "the pool" : "a chunk");
}

int epx_ab_say_adjusted(const epx_ab_result_t *result, int32_t a, epx_ab_part_t part, char *text,
                        size_t bytes)
{
    const epx_ab_arm_t *arm = &result->arm[a];
    const epx_ab_adjusted_t *to = part == EPX_AB_EQUAL_DROPS ? &arm->equal_drops : &arm->equal_memory;
    char sender[48] = "", memory[32];
    int64_t peak;
    epx_ab_counts_t count = epx_ab_part_counts(result, a, part, &peak);
    if (!to->made || count.valid < 0) {
        snprintf(text, bytes, "as it is: %s", to->why[0] ? to->why : "no run of it counts");
        return 0;
    }
    if (to->sender_factor > 0)
        snprintf(sender, sizeof sender, ", sender factor %.3f", to->sender_factor);
    snprintf(text, bytes, "%.2f times its own (capacity factor %.3f%s): %.3f%% dropped, %s", to->scale,
             to->capacity_factor, sender, 100 * epx_ab_drop_fraction(&count),
             epx_text_of_bytes(memory, sizeof memory, (double)peak));
    return 1;
}

epx_ab_state_t epx_ab_guard_state(const epx_ab_result_t *result, epx_ab_guard_t guard)
{
    epx_ab_state_t worst = EPX_AB_UNCHECKED;
    for (int32_t a = 0; a < result->arms; a++)
        worst = result->arm[a].guard[guard].state > worst ? result->arm[a].guard[guard].state : worst;
    return worst;
}

int epx_ab_is_shown(const epx_ab_result_t *result, const epx_ab_verdict_t *verdict)
{
    switch (verdict->quantity) {
    case EPX_AB_STEP_TIME: return result->external;
    case EPX_AB_SPEED_EQUAL_DROPS:
    case EPX_AB_SPEED_EQUAL_MEMORY: return !result->external && verdict->given;
    default: return 1;
    }
}

int epx_ab_say_caution(const epx_ab_result_t *result, char *text, size_t bytes)
{
    double others = most_of_others(result);
    if (!(others > 0.2))
        return 0;
    snprintf(text, bytes,
             "Other programs used up to %.0f%% of this machine while runs were timed: do not trust speeds.",
             100 * others);
    return 1;
}

void epx_ab_subtitle(const epx_ab_result_t *result, char *text, size_t bytes)
{
    snprintf(text, bytes, "%d arms, %d pairs of runs; a difference is the first arm minus the second",
             result->arms, result->external ? epx_ab_rounds(result) : result->scope.pairs);
}
