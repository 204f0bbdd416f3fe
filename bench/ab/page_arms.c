/* The upper part of the page: verdicts, arms, why they drop. SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "bench/ab/page.h"
#include "bench/ab/plots.h"
#include "bench/ab/report.h"
#include "bench/ab/svg.h"
#include "bench/ab/verdict_text.h"
#include "tools/common/numbers.h"

/* ---- pieces ---------------------------------------------------------------------------------------------------------- */

void epx_ab_put(FILE *out, const char *html) { fputs(html, out); }

/* Formatted text, escaped. */
void epx_ab_put_text(FILE *out, const char *format, ...)
{
    char text[4 * EPX_AB_TEXT];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    epx_svg_escape(out, text);
}

void epx_ab_put_word(FILE *out, const char *word, const char *more)
{
    fprintf(out, "<span class=\"word %s%s\">%s</span>", word, more, word);
}

/* ---- verdicts -------------------------------------------------------------------------------------------------------- */

static void put_tile(const epx_ab_result_t *result, const epx_ab_verdict_t *v, FILE *out)
{
    char value[96], range[96], needed[96];
    epx_ab_say_value(result, v, value, sizeof value);
    epx_ab_say_range(result, v, range, sizeof range);
    epx_ab_say_needed(v, needed, sizeof needed);
    epx_ab_put(out, "<div class=\"tile\" title=\"");
    epx_ab_put_text(out, "%s", v->text);
    epx_ab_put(out, "\"><span class=\"small soft\">");
    epx_ab_put_text(out, "%s", epx_ab_quantity_name(v->quantity));
    epx_ab_put(out, "</span><div>");
    if (!v->given) {
        epx_ab_put(out, "<b>-</b><span class=\"word none\">no verdict</span></div><p>");
        epx_ab_put_text(out, "%s", v->text);
        epx_ab_put(out, "</p></div>\n");
        return;
    }
    epx_ab_put(out, "<b>");
    epx_ab_put_text(out, "%s", value);
    epx_ab_put(out, "</b>");
    epx_ab_put_word(out, epx_ab_word_name(v->word), "");
    epx_ab_put(out, "</div>");
    if (v->pair != NULL)
        epx_ab_plot_strip(v, out);
    epx_ab_put(out, "<p>");
    epx_ab_put_text(out, "%s", range);
    if (needed[0] != '\0') {
        epx_ab_put(out, range[0] ? "; " : "");
        epx_ab_put_text(out, "%s", needed);
    }
    epx_ab_put(out, "</p></div>\n");
}

void epx_ab_put_verdicts(const epx_ab_result_t *result, FILE *out)
{
    for (int32_t i = 0; i < result->verdicts; i++) {
        const epx_ab_verdict_t *v = &result->verdict[i];
        char remark[EPX_AB_TEXT];
        if (v->quantity == 0) {
            fprintf(out, "<section class=\"card\"><h3><span class=\"key a%d\"></span>", v->a);
            epx_ab_put_text(out, "%s", result->arm[v->a].name);
            fprintf(out, " <span class=\"soft\">against</span> <span class=\"key a%d\"></span>", v->b);
            epx_ab_put_text(out, "%s", result->arm[v->b].name);
            epx_ab_put(out, "</h3><div class=\"tiles\">\n");
        }
        if (epx_ab_is_shown(result, v))
            put_tile(result, v, out);
        if (v->quantity != EPX_AB_QUANTITIES - 1)
            continue;
        epx_ab_put(out, "</div>");
        epx_ab_sign_remark(result, v->a, v->b, remark, sizeof remark);
        if (remark[0] != '\0') {
            epx_ab_put(out, "<p class=\"strong\">");
            epx_ab_put_text(out, "%s", remark);
            epx_ab_put(out, "</p>");
        }
        epx_ab_put(out, "</section>\n");
    }
    epx_ab_put(
        out, "<p class=\"small soft\">In each strip: the dot is the mean difference, the bar its 90% "
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
    epx_ab_put(out, "<td>");
    epx_ab_put_text(out, "%s", isnan(value) ? "-" : text);
    epx_ab_put(out, "</td>");
}

static double percent(int64_t part, const epx_ab_counts_t *count)
{
    return count->valid > 0 ? 100 * (double)part / (double)count->valid : count->valid == 0 ? 0 : NAN;
}

/* The cell with an arm's name and colour. */
static void put_name(const epx_ab_result_t *result, int32_t a, FILE *out)
{
    fprintf(out, "<td class=\"strong\"><span class=\"key a%d\"></span>", a);
    epx_ab_put_text(out, "%s", result->arm[a].name);
    if (result->arm[a].is_void)
        epx_ab_put(out, " <span class=\"word VOID\">VOID</span>");
    epx_ab_put(out, "</td>");
}

static void put_arm(const epx_ab_result_t *result, int32_t a, FILE *out)
{
    const epx_ab_arm_t *arm = &result->arm[a];
    const double bystander[] = {arm->experts_ms, arm->attention_ms, arm->gradients_ms};
    char memory[32];
    epx_ab_put(out, "<tr>");
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
    epx_ab_put(out, "</tr>\n");
}

void epx_ab_put_arms(const epx_ab_result_t *result, FILE *out)
{
    int flagged = 0;
    epx_ab_put(
        out,
        "<h2>Arms</h2><div class=\"card "
        "scroll\"><table><tr><th>arm</th><th>executed<br>MFU</th><th>MFU</th><th>step<br>ms"
        "</th><th>dropped</th><th>at<br>sender</th><th>at<br>receiver</th><th>loss</th><th>exposed<br>ms</th>"
        "<th>experts / attention /<br>gradients ms</th><th>peak<br>memory</th></tr>\n");
    for (int32_t a = 0; a < result->arms; a++) {
        put_arm(result, a, out);
        for (int i = 0; i < 3; i++)
            flagged |= result->arm[a].bystander_flag[i];
    }
    epx_ab_put(out,
               "</table></div><p class=\"small soft\">Executed MFU counts only assignments that were kept. "
               "Exposed: time inside "
               "the exchange that nothing hides. Experts, attention, gradients are bystanders: the transport "
               "should not change "
               "their time.");
    if (flagged)
        epx_ab_put(
            out, " A ! marks one that differs from the first arm's by more than 1% and by more than runs of "
                 "one arm do.");
    epx_ab_put(out, "</p>\n");
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
        epx_ab_put(out, "<li><b>");
        epx_ab_put_text(out, "%s", result->arm[a].name);
        epx_ab_put(out, "</b>: ");
        epx_ab_put_text(out, "%s.", reason[0] ? reason : result->arm[a].ruled[0].why);
        epx_ab_put(out, "</li>");
    }
}

void epx_ab_put_rules(const epx_ab_result_t *result, FILE *out)
{
    if (ruled_ranks(result, 0) == 0)
        return;
    epx_ab_put(out, "<h2>Why they drop</h2><div class=\"card\"><div "
                    "class=\"scroll\"><table><tr><th>arm</th><th>measured</th>");
    for (int i = 0; i < EPX_AB_RULED; i++)
        if (ruled_ranks(result, i) > 0)
            fprintf(out, "<th>by the rules<br>at %d ranks</th>", ruled_ranks(result, i));
    epx_ab_put(out, "</tr>\n");
    for (int32_t a = 0; a < result->arms; a++) {
        const epx_ab_arm_t *arm = &result->arm[a];
        epx_ab_put(out, "<tr>");
        put_name(result, a, out);
        cell(out, percent(0, &arm->count), "%.3f%%", 100 * epx_ab_drop_fraction(&arm->count));
        for (int i = 0; i < EPX_AB_RULED; i++)
            if (ruled_ranks(result, i) > 0)
                cell(out, arm->ruled[i].ranks > 0 ? 0 : NAN, "%.3f%%",
                     100 * epx_ab_drop_fraction(&arm->ruled[i].count));
        epx_ab_put(out, "</tr>\n");
    }
    epx_ab_put(out, "</table></div><ul>");
    put_reasons(result, out);
    epx_ab_put(
        out, "</ul></div><p class=\"small soft\">By the rules: the library's accept rules, computed for the "
             "routing of "
             "the first step (recorded from the checkpoint without drops), on every assignment, at so many "
             "ranks.</p>\n");
}

void epx_ab_put_adjusted(const epx_ab_result_t *result, FILE *out)
{
    static const char *const titles[] = {"equal drops", "equal memory"};
    int any = 0;
    for (int32_t a = 0; a < result->arms; a++)
        any |= result->arm[a].equal_drops.made | result->arm[a].equal_memory.made;
    if (!any)
        return;
    epx_ab_put(out, "<details><summary>Capacities at equal drops and at equal memory</summary><div "
                    "class=\"scroll\"><table><tr>"
                    "<th>arm</th><th class=\"l\">for</th><th class=\"l\">capacity</th></tr>\n");
    for (int32_t a = 0; a < result->arms; a++) {
        for (int i = 0; i < 2; i++) {
            char text[EPX_AB_TEXT];
            epx_ab_say_adjusted(result, a, i == 0 ? EPX_AB_EQUAL_DROPS : EPX_AB_EQUAL_MEMORY, text,
                                sizeof text);
            epx_ab_put(out, "<tr>");
            put_name(result, a, out);
            fprintf(out, "<td class=\"l\">%s</td><td class=\"l wrap\">", titles[i]);
            epx_ab_put_text(out, "%s", text);
            epx_ab_put(out, "</td></tr>\n");
        }
    }
    epx_ab_put(out, "</table></div></details>\n");
}
