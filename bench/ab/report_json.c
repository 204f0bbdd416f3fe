/* Everything as JSON. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <epx/epx.h>

#include "bench/ab/report.h"
#include "bench/ab/verdict_text.h"
#include "tools/common/json.h"
#include "tools/common/program.h"

static void write_known(epx_json_t *json, const char *key, int64_t value)
{
    if (value < 0)
        epx_json_null(json, key);
    else
        epx_json_int(json, key, value);
}

static void write_hex(epx_json_t *json, const char *key, uint64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%016" PRIx64, value);
    epx_json_text(json, key, value != 0 ? text : NULL);
}

static void write_interval(epx_json_t *json, const char *key, const epx_ab_interval_t *interval)
{
    epx_json_object(json, key);
    epx_json_int(json, "count", interval->count);
    epx_json_real(json, "mean", interval->mean);
    epx_json_real(json, "deviation", interval->deviation);
    epx_json_real(json, "low", interval->low);
    epx_json_real(json, "high", interval->high);
    epx_json_close(json);
}

static void write_counts(epx_json_t *json, const char *key, const epx_ab_counts_t *count)
{
    if (count->valid < 0) {
        epx_json_null(json, key);
        return;
    }
    epx_json_object(json, key);
    epx_json_int(json, "valid", count->valid);
    epx_json_int(json, "kept", count->kept);
    epx_json_int(json, "spilled", count->spilled);
    epx_json_int(json, "dropped_sender", count->dropped_sender);
    epx_json_int(json, "dropped_receiver", count->dropped_receiver);
    epx_json_close(json);
}

/* ---- arms ------------------------------------------------------------------------------------------------------------ */

static double fraction(int64_t part, const epx_ab_counts_t *count)
{
    return count->valid > 0 ? (double)part / (double)count->valid : count->valid == 0 ? 0 : NAN;
}

static void write_ruled(epx_json_t *json, const epx_ab_arm_t *arm)
{
    epx_json_array(json, "drops_by_rules");
    for (int i = 0; i < EPX_AB_RULED; i++) {
        const epx_ab_ruled_t *ruled = &arm->ruled[i];
        if (ruled->ranks == 0)
            continue;
        epx_json_object(json, NULL);
        epx_json_int(json, "ranks", ruled->ranks);
        epx_json_real(json, "drop_fraction", epx_ab_drop_fraction(&ruled->count));
        epx_json_real(json, "sender_drop_fraction", fraction(ruled->count.dropped_sender, &ruled->count));
        epx_json_real(json, "receiver_drop_fraction", fraction(ruled->count.dropped_receiver, &ruled->count));
        write_counts(json, "assignments", &ruled->count);
        epx_json_array(json, "receiver_by_wave");
        for (int w = 0; w < EPX_AB_WAVES; w++)
            epx_json_int(json, NULL, ruled->by_wave[w]);
        epx_json_close(json);
        epx_json_close(json);
    }
    epx_json_close(json);
}

static void write_adjusted(epx_json_t *json, const char *key, const epx_ab_result_t *result, int32_t a,
                           epx_ab_part_t part, const epx_ab_adjusted_t *adjusted)
{
    epx_json_object(json, key);
    epx_json_bool(json, "run", adjusted->made);
    if (!adjusted->made) {
        epx_json_text(json, "why_not", adjusted->why);
        epx_json_close(json);
        return;
    }
    int64_t peak;
    epx_ab_counts_t count = epx_ab_part_counts(result, a, part, &peak);
    epx_json_real(json, "scale", adjusted->scale);
    epx_json_real(json, "capacity_factor", adjusted->capacity_factor);
    epx_json_real(json, "sender_factor", adjusted->sender_factor > 0 ? adjusted->sender_factor : NAN);
    epx_json_real(json, "drop_fraction", epx_ab_drop_fraction(&count));
    write_known(json, "peak_bytes", peak);
    epx_json_close(json);
}

static void write_bystander(epx_json_t *json, const char *key, const epx_ab_arm_t *arm, int which, double ms)
{
    epx_json_object(json, key);
    epx_json_real(json, "ms", ms);
    epx_json_real(json, "share_over_first_arm", arm->bystander_share[which]);
    epx_json_bool(json, "flagged", arm->bystander_flag[which]);
    epx_json_close(json);
}

static void write_arm(epx_json_t *json, const epx_ab_result_t *result, int32_t a)
{
    const epx_ab_arm_t *arm = &result->arm[a];
    char reason[EPX_AB_TEXT];
    epx_json_object(json, NULL);
    epx_json_text(json, "name", arm->name);
    epx_json_text(json, "transport", epx_ab_transport_of(result, a));
    epx_json_text(json, "command", arm->command);
    epx_json_text(json, "folder", arm->folder);
    epx_json_real(json, "mfu", arm->mfu.mean);
    epx_json_real(json, "mfu_executed", arm->mfu_executed.mean);
    epx_json_real(json, "drop_fraction", epx_ab_drop_fraction(&arm->count));
    epx_json_real(json, "sender_drop_fraction", fraction(arm->count.dropped_sender, &arm->count));
    epx_json_real(json, "receiver_drop_fraction", fraction(arm->count.dropped_receiver, &arm->count));
    epx_json_real(json, "loss", arm->loss.mean);
    write_known(json, "peak_bytes", arm->peak_bytes);
    epx_json_real(json, "exposed_ms", arm->exposed_ms.mean);
    epx_json_bool(json, "void", arm->is_void);
    epx_json_array(json, "void_reasons");
    for (int g = 0; g < EPX_AB_GUARDS; g++)
        if (arm->guard[g].state == EPX_AB_VOID)
            epx_json_text(json, NULL, arm->guard[g].text);
    epx_json_close(json);
    epx_json_real(json, "step_ms", arm->step_ms.mean);
    epx_json_int(json, "runs", arm->runs);
    epx_json_real(json, "loss_gap_to_dropless_twin", arm->loss_gap);
    write_counts(json, "assignments", &arm->count);
    epx_json_object(json, "intervals");
    write_interval(json, "mfu", &arm->mfu);
    write_interval(json, "mfu_executed", &arm->mfu_executed);
    write_interval(json, "loss", &arm->loss);
    write_interval(json, "exposed_ms", &arm->exposed_ms);
    write_interval(json, "step_ms", &arm->step_ms);
    epx_json_close(json);
    epx_json_object(json, "bystanders");
    write_bystander(json, "experts", arm, 0, arm->experts_ms);
    write_bystander(json, "attention", arm, 1, arm->attention_ms);
    write_bystander(json, "gradients", arm, 2, arm->gradients_ms);
    epx_json_close(json);
    write_ruled(json, arm);
    epx_ab_drop_reason(result, a, reason, sizeof reason);
    epx_json_text(json, "drop_reason", reason[0] ? reason : NULL);
    write_adjusted(json, "equal_drops", result, a, EPX_AB_EQUAL_DROPS, &arm->equal_drops);
    write_adjusted(json, "equal_memory", result, a, EPX_AB_EQUAL_MEMORY, &arm->equal_memory);
    epx_json_close(json);
}

/* ---- verdicts, guards ------------------------------------------------------------------------------------------------ */

static void write_verdict(epx_json_t *json, const epx_ab_result_t *result, const epx_ab_verdict_t *verdict)
{
    epx_json_object(json, NULL);
    epx_json_text(json, "a", result->arm[verdict->a].name);
    epx_json_text(json, "b", result->arm[verdict->b].name);
    epx_json_text(json, "quantity", epx_ab_quantity_key(verdict->quantity));
    epx_json_text(json, "verdict", verdict->given ? epx_ab_word_name(verdict->word) : NULL);
    epx_json_text(json, "text", verdict->text);
    epx_json_bool(json, "exact", verdict->exact);
    epx_json_real(json, "difference", verdict->interval.mean);
    epx_json_real(json, "low", verdict->interval.low);
    epx_json_real(json, "high", verdict->interval.high);
    epx_json_real(json, "aa_spread", verdict->spread);
    epx_json_int(json, "aa_pairs", verdict->spread_pairs);
    epx_json_real(json, "margin", verdict->margin);
    epx_json_int(json, "pairs", verdict->interval.count);
    if (verdict->given && verdict->word == EPX_AB_INCONCLUSIVE && verdict->pairs_needed > 0)
        epx_json_int(json, "pairs_that_would_decide", verdict->pairs_needed);
    else
        epx_json_null(json, "pairs_that_would_decide");
    epx_json_array(json, "differences");
    for (int32_t i = 0; verdict->pair != NULL && i < verdict->interval.count; i++)
        epx_json_real(json, NULL, verdict->pair[i]);
    epx_json_close(json);
    epx_json_close(json);
}

static void write_guard(epx_json_t *json, const epx_ab_result_t *result, epx_ab_guard_t guard)
{
    static const char *const states[] = {"not checked", "passed", "void"};
    epx_ab_state_t worst = epx_ab_guard_state(result, guard);
    epx_json_object(json, NULL);
    epx_json_text(json, "name", epx_ab_guard_name(guard));
    epx_json_text(json, "checks", epx_ab_guard_checks(guard));
    epx_json_text(json, "state", states[worst]);
    epx_json_array(json, "arms");
    for (int32_t a = 0; a < result->arms; a++) {
        epx_json_object(json, NULL);
        epx_json_text(json, "arm", result->arm[a].name);
        epx_json_text(json, "state", states[result->arm[a].guard[guard].state]);
        epx_json_text(json, "text", result->arm[a].guard[guard].text);
        epx_json_close(json);
    }
    epx_json_close(json);
    epx_json_close(json);
}

/* ---- scope ----------------------------------------------------------------------------------------------------------- */

typedef struct shortfalls {
    epx_json_t *json;
    int wanted; /* 1: the lines that say what is not shown, 0: the others */
} shortfalls_t;

static void write_line(void *context, const char *label, const char *text)
{
    const shortfalls_t *lines = context;
    if ((strcmp(label, "does not show") == 0) != lines->wanted)
        return;
    if (lines->wanted) {
        epx_json_text(lines->json, NULL, text);
        return;
    }
    epx_json_object(lines->json, NULL);
    epx_json_text(lines->json, "about", label);
    epx_json_text(lines->json, "text", text);
    epx_json_close(lines->json);
}

static void write_machine(epx_json_t *json, const epx_ab_machine_t *m)
{
    epx_json_object(json, "machine");
    epx_json_text(json, "host", m->host);
    epx_json_text(json, "cpu", m->cpu);
    epx_json_int(json, "cores", m->cores);
    epx_json_int(json, "memory_bytes", m->memory_bytes);
    epx_json_text(json, "kernel", m->kernel);
    epx_json_text(json, "matrix_products", m->blas);
    epx_json_real(json, "peak_flops", m->peak_flops > 0 ? m->peak_flops : NAN);
    epx_json_text(json, "clocks", m->clock_source);
    epx_json_text(json, "throttling", m->throttle_source);
    epx_json_close(json);
    epx_json_text(json, "build_id",
                  m->libraries > 0 && m->library[0].build_id[0] ? m->library[0].build_id : NULL);
    epx_json_array(json, "libraries");
    for (int32_t i = 0; i < m->libraries; i++) {
        epx_json_object(json, NULL);
        epx_json_text(json, "path", m->library[i].path);
        epx_json_text(json, "build_id", m->library[i].build_id[0] ? m->library[i].build_id : NULL);
        epx_json_close(json);
    }
    epx_json_close(json);
}

static void write_scope(epx_json_t *json, const epx_ab_result_t *result)
{
    const epx_ab_scope_t *s = &result->scope;
    epx_json_object(json, "scope");
    epx_json_text(json, "preset", result->external ? NULL : s->preset);
    epx_json_int(json, "ranks", s->ranks);
    epx_json_int(json, "ep", s->ep);
    epx_json_int(json, "replicas", s->replicas);
    epx_json_int(json, "virtual_ep", s->virtual_ep);
    epx_json_int(json, "target_ranks", s->target_ranks);
    epx_json_int(json, "layers", s->layers);
    epx_json_int(json, "experts", s->experts);
    epx_json_int(json, "top_k", s->top_k);
    epx_json_int(json, "sequence", s->sequence);
    epx_json_int(json, "tokens_per_rank", s->tokens_per_rank);
    epx_json_text(json, "regime", s->regime);
    epx_json_text(json, "regime_why", s->regime_why);
    epx_json_text(json, "checkpoint", s->checkpoint);
    write_hex(json, "checkpoint_hash", s->checkpoint_hash);
    epx_json_int(json, "checkpoint_step", s->checkpoint_step);
    epx_json_text(json, "data", s->data);
    epx_json_uint(json, "seed", s->seed);
    epx_json_int(json, "pairs", s->pairs);
    epx_json_int(json, "steps", s->steps);
    epx_json_int(json, "discard", s->discard);
    epx_json_real(json, "margin_points_of_mfu", s->margin);
    epx_json_text(json, "started", s->started);
    epx_json_real(json, "seconds", s->seconds);
    epx_json_text(json, "version", epx_version());
    write_machine(json, &s->machine);
    shortfalls_t lines = {json, 0};
    epx_json_array(json, "lines");
    epx_ab_scope_lines(result, write_line, &lines);
    epx_json_close(json);
    lines.wanted = 1;
    epx_json_array(json, "does_not_show");
    epx_ab_scope_lines(result, write_line, &lines);
    epx_json_close(json);
    epx_json_close(json);
}

/* ---- runs ------------------------------------------------------------------------------------------------------------ */

static void write_run(epx_json_t *json, const epx_ab_result_t *result, const epx_ab_run_t *run)
{
    epx_ab_counts_t count = epx_ab_run_counts(run);
    epx_json_object(json, NULL);
    epx_json_int(json, "run", run->order + 1);
    epx_json_text(json, "arm", run->arm >= 0 ? result->arm[run->arm].name : NULL);
    epx_json_text(json, "part", epx_ab_part_name(run->part));
    epx_json_int(json, "round", run->round + 1);
    epx_json_text(json, "void", run->void_why[0] ? run->void_why : NULL);
    epx_json_real(json, "mfu", epx_ab_run_number(run, EPX_AB_RUN_MFU));
    epx_json_real(json, "mfu_executed", epx_ab_run_number(run, EPX_AB_RUN_MFU_EXECUTED));
    epx_json_real(json, "loss", epx_ab_run_number(run, EPX_AB_RUN_LOSS));
    epx_json_real(json, "exposed_ms", epx_ab_run_number(run, EPX_AB_RUN_EXPOSED));
    write_counts(json, "assignments", &count);
    write_hex(json, "weights", run->weights);
    write_hex(json, "first_choices", run->first_choices);
    epx_json_real(json, "clock_mhz", run->clock_mhz);
    epx_json_real(json, "others_cpu", run->others_cpu);
    write_known(json, "allocations_in_window", run->allocations);
    epx_json_array(json, "step_ms");
    for (int32_t i = 0; i < run->steps; i++)
        if (!run->step[i].discarded)
            epx_json_real(json, NULL, run->step[i].step_ms);
    epx_json_close(json);
    epx_json_close(json);
}

static void write_all(epx_json_t *json, const epx_ab_result_t *result)
{
    char headline[2 * EPX_AB_TEXT];
    static const char *const outcomes[] = {"valid", "void", "", "inconclusive"};
    epx_ab_headline(result, headline, sizeof headline);
    epx_json_object(json, NULL);
    epx_json_text(json, "program", "epx-ab");
    epx_json_text(json, "outcome", outcomes[epx_ab_exit_code(result)]);
    epx_json_text(json, "headline", headline);
    epx_json_array(json, "arms");
    for (int32_t a = 0; a < result->arms; a++)
        write_arm(json, result, a);
    epx_json_close(json);
    epx_json_array(json, "verdicts");
    for (int32_t i = 0; i < result->verdicts; i++)
        write_verdict(json, result, &result->verdict[i]);
    epx_json_close(json);
    epx_json_array(json, "remarks");
    if (epx_ab_say_caution(result, headline, sizeof headline))
        epx_json_text(json, NULL, headline);
    for (int32_t i = 0; i < result->verdicts; i += EPX_AB_QUANTITIES) {
        char remark[EPX_AB_TEXT];
        epx_ab_sign_remark(result, result->verdict[i].a, result->verdict[i].b, remark, sizeof remark);
        if (remark[0] != '\0')
            epx_json_text(json, NULL, remark);
    }
    epx_json_close(json);
    write_scope(json, result);
    epx_json_array(json, "guards");
    for (int g = 0; g < EPX_AB_GUARDS; g++)
        write_guard(json, result, (epx_ab_guard_t)g);
    epx_json_close(json);
    epx_json_array(json, "runs");
    for (int32_t i = 0; i < result->runs; i++)
        write_run(json, result, &result->run[i]);
    epx_json_close(json);
    epx_json_close(json);
}

int epx_ab_write_json(const epx_ab_result_t *result, const char *path)
{
    int to_stdout = strcmp(path, "-") == 0;
    FILE *file = to_stdout ? stdout : fopen(path, "w");
    if (file == NULL)
        return epx_tool_fail(EPX_EXIT_FAILED, "%s cannot be written (%s): give another --json file", path,
                             strerror(errno));
    epx_json_t json = epx_json_begin(file, 2);
    write_all(&json, result);
    int rc = epx_json_end(&json);
    if (!to_stdout && fclose(file) != 0)
        rc = -1;
    if (rc != 0)
        return epx_tool_fail(EPX_EXIT_FAILED, "%s could not be written whole: look for space on the disk",
                             path);
    return EPX_EXIT_OK;
}
