/* One page that needs nothing else. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include <epx/epx.h>

#include "bench/ab/page_style.h"
#include "bench/ab/plots.h"
#include "bench/ab/report.h"
#include "bench/ab/svg.h"
#include "bench/ab/verdict.h"
#include "tools/common/numbers.h"
#include "tools/common/program.h"

/* ---- pieces ---------------------------------------------------------------------------------------------------------- */

static void put(FILE *out, const char *html) { fputs(html, out); }

static void put_text(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Formatted text, escaped. */
static void put_text(FILE *out, const char *format, ...)
{
    char text[4 * EPX_AB_TEXT];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    epx_svg_escape(out, text);
}

static void put_word(FILE *out, const char *word, const char *more)
{
    fprintf(out, "<span class=\"word %s%s\">%s</span>", word, more, word);
}

static void put_legend(const epx_ab_result_t *result, FILE *out, int receivers)
{
    put(out, "<div class=\"legend\">");
    for (int32_t a = 0; a < result->arms; a++) {
        fprintf(out, "<span><span class=\"key a%d\"></span>", a);
        put_text(out, "%s", result->arm[a].name);
        put(out, "</span>");
    }
    put(out,
        receivers ? "<span class=\"soft\">solid: by senders, pale: by receivers</span></div>\n" : "</div>\n");
}

/* ---- verdicts -------------------------------------------------------------------------------------------------------- */

static void put_tile(const epx_ab_result_t *result, const epx_ab_verdict_t *v, FILE *out)
{
    char value[96], range[96], needed[96];
    epx_ab_say_value(result, v, value, sizeof value);
    epx_ab_say_range(v, range, sizeof range);
    epx_ab_say_needed(v, needed, sizeof needed);
    put(out, "<div class=\"tile\" title=\"");
    put_text(out, "%s", v->text);
    put(out, "\"><span class=\"small soft\">");
    put_text(out, "%s", epx_ab_quantity_name(v->quantity));
    put(out, "</span><div>");
    if (!v->given) {
        put(out, "<b>-</b><span class=\"word none\">no verdict</span></div><p>");
        put_text(out, "%s", v->text);
        put(out, "</p></div>\n");
        return;
    }
    put(out, "<b>");
    put_text(out, "%s", value);
    put(out, "</b>");
    put_word(out, epx_ab_word_name(v->word), "");
    put(out, "</div>");
    if (v->pair != NULL)
        epx_ab_plot_strip(v, out);
    put(out, "<p>");
    put_text(out, "%s",
             v->exact
                 ? v->word == EPX_AB_EQUIVALENT && v->quantity == EPX_AB_DROPS ? "exactly equal" : "exact"
                 : range);
    if (needed[0] != '\0') {
        put(out, range[0] ? "; " : "");
        put_text(out, "%s", needed);
    }
    put(out, "</p></div>\n");
}

static void put_verdicts(const epx_ab_result_t *result, FILE *out)
{
    for (int32_t i = 0; i < result->verdicts; i++) {
        const epx_ab_verdict_t *v = &result->verdict[i];
        char remark[EPX_AB_TEXT];
        if (v->quantity == 0) {
            fprintf(out, "<section class=\"card\"><h3><span class=\"key a%d\"></span>", v->a);
            put_text(out, "%s", result->arm[v->a].name);
            fprintf(out, " <span class=\"soft\">against</span> <span class=\"key a%d\"></span>", v->b);
            put_text(out, "%s", result->arm[v->b].name);
            put(out, "</h3><div class=\"tiles\">\n");
        }
        if (epx_ab_is_shown(result, v))
            put_tile(result, v, out);
        if (v->quantity != EPX_AB_QUANTITIES - 1)
            continue;
        put(out, "</div>");
        epx_ab_sign_remark(result, v->a, v->b, remark, sizeof remark);
        if (remark[0] != '\0') {
            put(out, "<p class=\"strong\">");
            put_text(out, "%s", remark);
            put(out, "</p>");
        }
        put(out, "</section>\n");
    }
    put(out, "<p class=\"small soft\">In each strip: the dot is the mean difference, the bar its 90% "
             "interval, the grey band "
             "what runs of one and the same arm differ by (A/A), the dashed lines the margin of equivalence, "
             "the thin line "
             "zero.</p>\n");
}

/* ---- arms ------------------------------------------------------------------------------------------------------------ */

static void cell(FILE *out, double value, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A table cell; a dash where `value` is not known. */
static void cell(FILE *out, double value, const char *format, ...)
{
    char text[128];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    put(out, "<td>");
    put_text(out, "%s", isnan(value) ? "-" : text);
    put(out, "</td>");
}

static double percent(int64_t part, const epx_ab_counts_t *count)
{
    return count->valid > 0 ? 100 * (double)part / (double)count->valid : count->valid == 0 ? 0 : NAN;
}

static void put_name(const epx_ab_result_t *result, int32_t a, FILE *out)
{
    fprintf(out, "<td class=\"strong\"><span class=\"key a%d\"></span>", a);
    put_text(out, "%s", result->arm[a].name);
    if (result->arm[a].is_void)
        put(out, " <span class=\"word VOID\">VOID</span>");
    put(out, "</td>");
}

static void put_arm(const epx_ab_result_t *result, int32_t a, FILE *out)
{
    const epx_ab_arm_t *arm = &result->arm[a];
    const double bystander[] = {arm->experts_ms, arm->attention_ms, arm->gradients_ms};
    char memory[32];
    put(out, "<tr>");
    put_name(result, a, out);
    cell(out, arm->mfu_executed.mean, "%.2f%%", 100 * arm->mfu_executed.mean);
    cell(out, arm->mfu.mean, "%.2f%%", 100 * arm->mfu.mean);
    cell(out, arm->step_ms.mean, "%.1f", arm->step_ms.mean);
    cell(out, percent(0, &arm->count), "%.3f%%", 100 * epx_ab_drop_fraction(&arm->count));
    cell(out, percent(0, &arm->count), "%.3f%%", percent(arm->count.dropped_sender, &arm->count));
    cell(out, percent(0, &arm->count), "%.3f%%", percent(arm->count.dropped_receiver, &arm->count));
    cell(out, arm->loss.mean, "%.4f", arm->loss.mean);
    cell(out, arm->exposed_ms.mean, "%.1f", arm->exposed_ms.mean);
    cell(out, bystander[0] + bystander[1] + bystander[2], "%.1f%s / %.1f%s / %.1f%s", bystander[0],
         arm->bystander_flag[0] ? "!" : "", bystander[1], arm->bystander_flag[1] ? "!" : "", bystander[2],
         arm->bystander_flag[2] ? "!" : "");
    cell(out, arm->peak_bytes < 0 ? NAN : 0, "%s",
         epx_text_of_bytes(memory, sizeof memory, (double)arm->peak_bytes));
    put(out, "</tr>\n");
}

static void put_arms(const epx_ab_result_t *result, FILE *out)
{
    int flagged = 0;
    put(out,
        "<h2>Arms</h2><div class=\"card "
        "scroll\"><table><tr><th>arm</th><th>executed<br>MFU</th><th>MFU</th><th>step<br>ms"
        "</th><th>dropped</th><th>at<br>sender</th><th>at<br>receiver</th><th>loss</th><th>exposed<br>ms</th>"
        "<th>experts / attention /<br>gradients ms</th><th>peak<br>memory</th></tr>\n");
    for (int32_t a = 0; a < result->arms; a++) {
        put_arm(result, a, out);
        for (int i = 0; i < 3; i++)
            flagged |= result->arm[a].bystander_flag[i];
    }
    put(out, "</table></div><p class=\"small soft\">Executed MFU counts only assignments that were kept. "
             "Exposed: time inside "
             "the exchange that nothing hides. Experts, attention, gradients are bystanders: the transport "
             "should not change "
             "their time.");
    if (flagged)
        put(out, " A ! marks one that differs from the first arm's by more than 1% and by more than runs of "
                 "one arm do.");
    put(out, "</p>\n");
}

/* ---- drops by the rules, adjusted capacities ------------------------------------------------------------------------- */

static int32_t ruled_ranks(const epx_ab_result_t *result, int i)
{
    for (int32_t a = 0; a < result->arms; a++)
        if (result->arm[a].ruled[i].ranks > 0)
            return result->arm[a].ruled[i].ranks;
    return 0;
}

static void put_reasons(const epx_ab_result_t *result, FILE *out)
{
    for (int32_t a = 0; a < result->arms; a++) {
        char reason[EPX_AB_TEXT];
        epx_ab_drop_reason(result, a, reason, sizeof reason);
        put(out, "<li><b>");
        put_text(out, "%s", result->arm[a].name);
        put(out, "</b>: ");
        put_text(out, "%s.", reason[0] ? reason : result->arm[a].ruled[0].why);
        put(out, "</li>");
    }
}

static void put_rules(const epx_ab_result_t *result, FILE *out)
{
    if (ruled_ranks(result, 0) == 0)
        return;
    put(out, "<h2>Why they drop</h2><div class=\"card\"><div "
             "class=\"scroll\"><table><tr><th>arm</th><th>measured</th>");
    for (int i = 0; i < EPX_AB_RULED; i++)
        if (ruled_ranks(result, i) > 0)
            fprintf(out, "<th>by the rules<br>at %d ranks</th>", ruled_ranks(result, i));
    put(out, "</tr>\n");
    for (int32_t a = 0; a < result->arms; a++) {
        const epx_ab_arm_t *arm = &result->arm[a];
        put(out, "<tr>");
        put_name(result, a, out);
        cell(out, percent(0, &arm->count), "%.3f%%", 100 * epx_ab_drop_fraction(&arm->count));
        for (int i = 0; i < EPX_AB_RULED; i++)
            if (ruled_ranks(result, i) > 0)
                cell(out, arm->ruled[i].ranks > 0 ? 0 : NAN, "%.3f%%",
                     100 * epx_ab_drop_fraction(&arm->ruled[i].count));
        put(out, "</tr>\n");
    }
    put(out, "</table></div><ul>");
    put_reasons(result, out);
    put(out, "</ul></div><p class=\"small soft\">By the rules: the library's accept rules, computed for the "
             "routing of "
             "the first step (recorded from the checkpoint without drops), on every assignment, at so many "
             "ranks.</p>\n");
}

static void put_adjusted(const epx_ab_result_t *result, FILE *out)
{
    static const char *const titles[] = {"equal drops", "equal memory"};
    int any = 0;
    for (int32_t a = 0; a < result->arms; a++)
        any |= result->arm[a].equal_drops.made | result->arm[a].equal_memory.made;
    if (!any)
        return;
    put(out, "<details><summary>Capacities at equal drops and at equal memory</summary><div "
             "class=\"scroll\"><table><tr>"
             "<th>arm</th><th class=\"l\">for</th><th class=\"l\">capacity</th></tr>\n");
    for (int32_t a = 0; a < result->arms; a++) {
        for (int i = 0; i < 2; i++) {
            const epx_ab_adjusted_t *to = i == 0 ? &result->arm[a].equal_drops : &result->arm[a].equal_memory;
            put(out, "<tr>");
            put_name(result, a, out);
            fprintf(out, "<td class=\"l\">%s</td><td class=\"l wrap\">", titles[i]);
            if (to->made && to->sender_factor > 0)
                put_text(out, "%.2f times its own: capacity factor %.3f, sender factor %.3f", to->scale,
                         to->capacity_factor, to->sender_factor);
            else if (to->made)
                put_text(out, "%.2f times its own: capacity factor %.3f", to->scale, to->capacity_factor);
            else
                put_text(out, "as it is: %s", to->why);
            put(out, "</td></tr>\n");
        }
    }
    put(out, "</table></div></details>\n");
}

/* ---- guards ---------------------------------------------------------------------------------------------------------- */

static void put_guard(const epx_ab_result_t *result, epx_ab_guard_t guard, FILE *out)
{
    static const char *const words[] = {"<span class=\"word none\">-</span>",
                                        "<span class=\"word ok\">ok</span>",
                                        "<span class=\"word VOID\">VOID</span>"};
    put(out, "<tr><td class=\"wrap\"><b class=\"guard\">");
    put_text(out, "%s", epx_ab_guard_name(guard));
    put(out, "</b> <span class=\"small soft\">");
    put_text(out, "%s", epx_ab_guard_checks(guard));
    put(out, "</span></td>");
    for (int32_t a = 0; a < result->arms; a++) {
        put(out, "<td class=\"l\" title=\"");
        put_text(out, "%s", result->arm[a].guard[guard].text);
        fprintf(out, "\">%s</td>", words[result->arm[a].guard[guard].state]);
    }
    put(out, "</tr>\n");
}

static void put_findings(const epx_ab_result_t *result, FILE *out, int voids)
{
    for (int g = 0; g < EPX_AB_GUARDS; g++) {
        for (int32_t a = 0; a < result->arms; a++) {
            const epx_ab_finding_t *finding = &result->arm[a].guard[g];
            if ((finding->state == EPX_AB_VOID) != voids || finding->text[0] == '\0')
                continue;
            put(out, "<li>");
            put_text(out, "%s, %s: %s", epx_ab_guard_name((epx_ab_guard_t)g), result->arm[a].name,
                     finding->text);
            put(out, "</li>\n");
        }
    }
}

static void put_guards(const epx_ab_result_t *result, FILE *out)
{
    put(out, "<h2>Guards</h2><div class=\"card\"><div class=\"scroll\"><table><tr><th>what must hold</th>");
    for (int32_t a = 0; a < result->arms; a++) {
        fprintf(out, "<th class=\"l\"><span class=\"key a%d\"></span>", a);
        put_text(out, "%s", result->arm[a].name);
        put(out, "</th>");
    }
    put(out, "</tr>\n");
    for (int g = 0; g < EPX_AB_GUARDS; g++)
        put_guard(result, (epx_ab_guard_t)g, out);
    put(out, "</table></div><ul>");
    put_findings(result, out, 1);
    put(out, "</ul><details><summary>What each guard saw</summary><ul class=\"small\">");
    put_findings(result, out, 0);
    put(out, "</ul></details>");
    for (int32_t i = 0; i < result->runs; i++) {
        const epx_ab_run_t *run = &result->run[i];
        if (run->arm < 0 || run->void_why[0] == '\0')
            continue;
        put(out, "<p class=\"small\">");
        put_text(out, "Run %d (%s, %s) does not count: %s", run->order + 1, result->arm[run->arm].name,
                 epx_ab_part_name(run->part), run->void_why);
        put(out, "</p>");
    }
    put(out, "</div>\n");
}

/* ---- scope ----------------------------------------------------------------------------------------------------------- */

typedef struct scope_lines {
    FILE *out;
    int limits;
} scope_lines_t;

static void put_scope_line(void *context, const char *label, const char *text)
{
    const scope_lines_t *lines = context;
    if ((strcmp(label, "does not show") == 0) != lines->limits)
        return;
    put(lines->out, lines->limits ? "<li>" : "<dt>");
    if (!lines->limits) {
        put_text(lines->out, "%s", label);
        put(lines->out, "</dt><dd>");
    }
    put_text(lines->out, "%s", text);
    put(lines->out, lines->limits ? "</li>\n" : "</dd>\n");
}

static void put_libraries(const epx_ab_machine_t *m, FILE *out)
{
    put(out, "<details><summary>Loaded libraries and their build ids</summary><ul class=\"small\">");
    for (int32_t i = 0; i < m->libraries; i++) {
        put(out, "<li><code>");
        put_text(out, "%s  %s", m->library[i].path[0] ? m->library[i].path : "(kernel)",
                 m->library[i].build_id[0] ? m->library[i].build_id : "no build id");
        put(out, "</code></li>\n");
    }
    put(out, "</ul></details>");
}

static void put_scope(const epx_ab_result_t *result, FILE *out)
{
    scope_lines_t lines = {out, 0};
    put(out, "<h2>Scope</h2><div class=\"card\"><dl>");
    epx_ab_scope_lines(result, put_scope_line, &lines);
    put(out, "</dl><h3 style=\"margin-top:14px\">What it does not show</h3><ul>");
    lines.limits = 1;
    epx_ab_scope_lines(result, put_scope_line, &lines);
    put(out, "</ul>");
    put_adjusted(result, out);
    put_libraries(&result->scope.machine, out);
    put(out, "</div>\n");
}

/* ---- plots ----------------------------------------------------------------------------------------------------------- */

static void open_plot(const epx_ab_result_t *result, FILE *out, const char *title, const char *text,
                      int legend)
{
    put(out, "<div class=\"card\"><h3>");
    put_text(out, "%s", title);
    put(out, "</h3><p>");
    put_text(out, "%s", text);
    put(out, "</p>");
    if (legend > 0)
        put_legend(result, out, legend > 1);
}

static epx_ab_quantity_t speed_quantity(const epx_ab_result_t *result)
{
    static const epx_ab_quantity_t order[] = {EPX_AB_MFU_EXECUTED, EPX_AB_MFU, EPX_AB_STEP_TIME};
    for (int i = 0; i < 3; i++)
        for (int32_t v = 0; v < result->verdicts; v++)
            if (result->verdict[v].quantity == order[i] && result->verdict[v].given)
                return order[i];
    return EPX_AB_QUANTITIES;
}

static void put_plots(const epx_ab_result_t *result, FILE *out)
{
    epx_ab_quantity_t speed = speed_quantity(result);
    put(out, "<h2>Plots</h2><div class=\"plots\">\n");
    if (speed != EPX_AB_QUANTITIES) {
        char title[96];
        snprintf(title, sizeof title, "%s, pair by pair", epx_ab_quantity_name(speed));
        open_plot(result, out, title,
                  "A ring is one pair of runs, the dot their mean with its 90% interval, the grey band the "
                  "A/A spread, the "
                  "dashed lines the margin.",
                  0);
        epx_ab_plot_pairs(result, speed, out);
        put(out, "</div>\n");
    }
    if (epx_ab_has_times(result)) {
        open_plot(result, out, "Step times",
                  "Every step in order of time, spikes kept; pale ones were discarded. A stripe is a "
                  "run.",
                  1);
        epx_ab_plot_steps(result, out);
        put(out, "</div>\n");
    }
    if (epx_ab_has_layers(result)) {
        open_plot(result, out, "Drops by layer", "Share of a layer's assignments over all counted steps.", 2);
        epx_ab_plot_drops(result, out);
        put(out, "</div>\n");
    }
    if (epx_ab_has_loss(result)) {
        open_plot(result, out, "Loss", "Training loss by step in the first round, nats per token.", 1);
        epx_ab_plot_loss(result, out);
        put(out, "</div>\n");
    }
    if (epx_ab_has_loss(result) && epx_ab_find_run(result, -1, EPX_AB_REFERENCE, 0, 1) != NULL) {
        open_plot(result, out, "What drops cost",
                  "Loss above that of the reference, which drops nothing, on the same text.", 1);
        epx_ab_plot_gap(result, out);
        put(out, "</div>\n");
    }
    put(out, "</div>\n");
}

/* ---- page ------------------------------------------------------------------------------------------------------------ */

static void put_head(const epx_ab_result_t *result, FILE *out)
{
    const epx_ab_scope_t *s = &result->scope;
    char headline[2 * EPX_AB_TEXT], subtitle[EPX_AB_TEXT], word[32];
    epx_ab_headline(result, headline, sizeof headline);
    epx_ab_subtitle(result, subtitle, sizeof subtitle);
    size_t end = strcspn(headline, ":");
    snprintf(word, sizeof word, "%.*s", (int)(end < sizeof word ? end : sizeof word - 1), headline);
    put(out, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
             "content=\"width=device-width,initial-scale=1\"><title>epx-ab: ");
    for (int32_t a = 0; a < result->arms; a++)
        put_text(out, "%s%s", a ? ", " : "", result->arm[a].name);
    put(out, "</title>\n<style>");
    put(out, epx_ab_page_style);
    put(out, "</style></head><body><main>\n<p class=\"small soft\">");
    put_text(out, "epx-ab %s, %s", epx_version(), s->started);
    put(out, "</p><div style=\"margin-top:8px\">");
    put_word(out, word, " big");
    put(out, "</div><h1>");
    put_text(out, "%s", headline + end + (headline[end] == ':' ? 2 : 0));
    put(out, "</h1><p class=\"soft\">");
    put_text(out, "%s.", subtitle);
    if (!result->external)
        put_text(out,
                 " Checkpoint %016" PRIx64 " after %" PRId64
                 " steps, %s; %d ranks on %d cores, rules as of %d ranks.",
                 s->checkpoint_hash, s->checkpoint_step, s->regime, s->ranks, s->machine.cores,
                 s->virtual_ep > 0 ? s->virtual_ep : s->ep);
    put(out, "</p>\n");
}

int epx_ab_write_html(const epx_ab_result_t *result, const char *path)
{
    FILE *out = fopen(path, "w");
    if (out == NULL)
        return epx_tool_fail(EPX_EXIT_FAILED, "%s cannot be written (%s): give another --html file", path,
                             strerror(errno));
    put_head(result, out);
    put_verdicts(result, out);
    put_arms(result, out);
    put_rules(result, out);
    put_guards(result, out);
    put_scope(result, out);
    put_plots(result, out);
    put(out, "</main></body></html>\n");
    int failed = ferror(out);
    if (fclose(out) != 0 || failed)
        return epx_tool_fail(EPX_EXIT_FAILED, "%s could not be written whole: look for space on the disk",
                             path);
    return EPX_EXIT_OK;
}
