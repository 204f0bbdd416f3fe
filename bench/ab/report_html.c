/* One page that needs nothing else. SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include <epx/epx.h>

#include "bench/ab/page.h"
#include "bench/ab/page_style.h"
#include "bench/ab/plots.h"
#include "bench/ab/report.h"
#include "bench/ab/svg.h"
#include "bench/ab/verdict_text.h"
#include "tools/common/numbers.h"
#include "tools/common/program.h"

static void put_legend(const epx_ab_result_t *result, FILE *out, int receivers)
{
    epx_ab_put(out, "<div class=\"legend\">");
    for (int32_t a = 0; a < result->arms; a++) {
        fprintf(out, "<span><span class=\"key a%d\"></span>", a);
        epx_ab_put_text(out, "%s", result->arm[a].name);
        epx_ab_put(out, "</span>");
    }
    epx_ab_put(out, receivers ? "<span class=\"soft\">solid: by senders, pale: by receivers</span></div>\n"
                              : "</div>\n");
}

/* ---- guards ---------------------------------------------------------------------------------------------------------- */

static void put_guard(const epx_ab_result_t *result, epx_ab_guard_t guard, FILE *out)
{
    static const char *const words[] = {"<span class=\"word none\">-</span>",
                                        "<span class=\"word ok\">ok</span>",
                                        "<span class=\"word VOID\">VOID</span>"};
    epx_ab_put(out, "<tr><td class=\"wrap\"><b class=\"guard\">");
    epx_ab_put_text(out, "%s", epx_ab_guard_name(guard));
    epx_ab_put(out, "</b> <span class=\"small soft\">");
    epx_ab_put_text(out, "%s", epx_ab_guard_checks(guard));
    epx_ab_put(out, "</span></td>");
    for (int32_t a = 0; a < result->arms; a++) {
        epx_ab_put(out, "<td class=\"l\" title=\"");
        epx_ab_put_text(out, "%s", result->arm[a].guard[guard].text);
        fprintf(out, "\">%s</td>", words[result->arm[a].guard[guard].state]);
    }
    epx_ab_put(out, "</tr>\n");
}

static void put_findings(const epx_ab_result_t *result, FILE *out, int voids)
{
    for (int g = 0; g < EPX_AB_GUARDS; g++) {
        for (int32_t a = 0; a < result->arms; a++) {
            const epx_ab_finding_t *finding = &result->arm[a].guard[g];
            if ((finding->state == EPX_AB_VOID) != voids || finding->text[0] == '\0')
                continue;
            epx_ab_put(out, "<li>");
            epx_ab_put_text(out, "%s, %s: %s", epx_ab_guard_name((epx_ab_guard_t)g), result->arm[a].name,
                            finding->text);
            epx_ab_put(out, "</li>\n");
        }
    }
}

static void put_guards(const epx_ab_result_t *result, FILE *out)
{
    epx_ab_put(out,
               "<h2>Guards</h2><div class=\"card\"><div class=\"scroll\"><table><tr><th>what must hold</th>");
    for (int32_t a = 0; a < result->arms; a++) {
        fprintf(out, "<th class=\"l\"><span class=\"key a%d\"></span>", a);
        epx_ab_put_text(out, "%s", result->arm[a].name);
        epx_ab_put(out, "</th>");
    }
    epx_ab_put(out, "</tr>\n");
    for (int g = 0; g < EPX_AB_GUARDS; g++)
        put_guard(result, (epx_ab_guard_t)g, out);
    epx_ab_put(out, "</table></div><ul>");
    put_findings(result, out, 1);
    epx_ab_put(out, "</ul><details><summary>What each guard saw</summary><ul class=\"small\">");
    put_findings(result, out, 0);
    epx_ab_put(out, "</ul></details>");
    for (int32_t i = 0; i < result->runs; i++) {
        const epx_ab_run_t *run = &result->run[i];
        if (run->arm < 0 || run->void_why[0] == '\0')
            continue;
        epx_ab_put(out, "<p class=\"small\">");
        epx_ab_put_text(out, "Run %d (%s, %s) does not count: %s", run->order + 1, result->arm[run->arm].name,
                        epx_ab_part_name(run->part), run->void_why);
        epx_ab_put(out, "</p>");
    }
    epx_ab_put(out, "</div>\n");
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
    epx_ab_put(lines->out, lines->limits ? "<li>" : "<dt>");
    if (!lines->limits) {
        epx_ab_put_text(lines->out, "%s", label);
        epx_ab_put(lines->out, "</dt><dd>");
    }
    epx_ab_put_text(lines->out, "%s", text);
    epx_ab_put(lines->out, lines->limits ? "</li>\n" : "</dd>\n");
}

static void put_libraries(const epx_ab_machine_t *m, FILE *out)
{
    epx_ab_put(out, "<details><summary>Loaded libraries and their build ids</summary><ul class=\"small\">");
    for (int32_t i = 0; i < m->libraries; i++) {
        epx_ab_put(out, "<li><code>");
        epx_ab_put_text(out, "%s  %s", m->library[i].path[0] ? m->library[i].path : "(kernel)",
                        m->library[i].build_id[0] ? m->library[i].build_id : "no build id");
        epx_ab_put(out, "</code></li>\n");
    }
    epx_ab_put(out, "</ul></details>");
}

static void put_scope(const epx_ab_result_t *result, FILE *out)
{
    scope_lines_t lines = {out, 0};
    epx_ab_put(out, "<h2>Scope</h2><div class=\"card\"><dl>");
    epx_ab_scope_lines(result, put_scope_line, &lines);
    epx_ab_put(out, "</dl><h3 style=\"margin-top:14px\">What it does not show</h3><ul>");
    lines.limits = 1;
    epx_ab_scope_lines(result, put_scope_line, &lines);
    epx_ab_put(out, "</ul>");
    epx_ab_put_adjusted(result, out);
    put_libraries(&result->scope.machine, out);
    epx_ab_put(out, "</div>\n");
}

/* ---- plots ----------------------------------------------------------------------------------------------------------- */

static void open_plot(const epx_ab_result_t *result, FILE *out, const char *title, const char *text,
                      int legend)
{
    epx_ab_put(out, "<div class=\"card\"><h3>");
    epx_ab_put_text(out, "%s", title);
    epx_ab_put(out, "</h3><p>");
    epx_ab_put_text(out, "%s", text);
    epx_ab_put(out, "</p>");
    if (legend > 0)
        put_legend(result, out, legend > 1);
}

static epx_ab_quantity_t speed_quantity(const epx_ab_result_t *result)
{
    for (int32_t i = 0; i < result->verdicts; i += EPX_AB_QUANTITIES) {
        const epx_ab_verdict_t *speed =
            epx_ab_speed_verdict(result, result->verdict[i].a, result->verdict[i].b);
        if (speed != NULL)
            return speed->quantity;
    }
    return EPX_AB_MFU_EXECUTED;
}

static void put_pairs(const epx_ab_result_t *result, epx_ab_quantity_t quantity, FILE *out)
{
    char title[96];
    int given = 0;
    for (int32_t v = 0; v < result->verdicts; v++)
        given |= result->verdict[v].quantity == quantity && result->verdict[v].given;
    if (!given)
        return;
    snprintf(title, sizeof title, "%s, pair by pair", epx_ab_quantity_name(quantity));
    title[0] = (char)toupper((unsigned char)title[0]);
    open_plot(
        result, out, title,
        "A ring is one pair of runs, the dot their mean with its 90% interval, the grey band the A/A spread, "
        "the dashed lines the margin.",
        0);
    epx_ab_plot_pairs(result, quantity, out);
    epx_ab_put(out, "</div>\n");
}

static void put_plots(const epx_ab_result_t *result, FILE *out)
{
    epx_ab_put(out, "<h2>Plots</h2><div class=\"plots\">\n");
    put_pairs(result, speed_quantity(result), out);
    put_pairs(result, EPX_AB_EXPOSED, out);
    if (epx_ab_has_times(result)) {
        open_plot(result, out, "Step times",
                  "Every step in order of time, spikes kept; pale ones were discarded. A stripe is a "
                  "run.",
                  1);
        epx_ab_plot_steps(result, out);
        epx_ab_put(out, "</div>\n");
    }
    if (epx_ab_has_layers(result)) {
        open_plot(result, out, "Drops by layer", "Share of a layer's assignments over all counted steps.", 2);
        epx_ab_plot_drops(result, out);
        epx_ab_put(out, "</div>\n");
    }
    if (epx_ab_has_loss(result)) {
        open_plot(result, out, "Loss", "Training loss by step in the first round, nats per token.", 1);
        epx_ab_plot_loss(result, out);
        epx_ab_put(out, "</div>\n");
    }
    if (epx_ab_has_loss(result) && epx_ab_find_run(result, -1, EPX_AB_REFERENCE, 0, 1) != NULL) {
        open_plot(result, out, "What drops cost",
                  "Loss above that of the reference, which drops nothing, on the same text.", 1);
        epx_ab_plot_gap(result, out);
        epx_ab_put(out, "</div>\n");
    }
    epx_ab_put(out, "</div>\n");
}

/* ---- page ------------------------------------------------------------------------------------------------------------ */

/* Why arms are void, and what else must be known before anything is read. */
static void put_cautions(const epx_ab_result_t *result, FILE *out)
{
    char caution[EPX_AB_TEXT];
    if (epx_ab_say_caution(result, caution, sizeof caution)) {
        epx_ab_put(out, "<p class=\"strong\">");
        epx_ab_put_text(out, "%s", caution);
        epx_ab_put(out, "</p>\n");
    }
    for (int32_t a = 0; a < result->arms; a++) {
        char text[EPX_AB_TEXT + 64];
        if (!epx_ab_say_void(result, a, text, sizeof text))
            continue;
        epx_ab_put(out, "<p><b>");
        epx_ab_put_text(out, "%s", result->arm[a].name);
        epx_ab_put(out, "</b> is void: ");
        epx_ab_put_text(out, "%s", text);
        epx_ab_put(out, "</p>\n");
    }
}

static void put_head(const epx_ab_result_t *result, FILE *out)
{
    const epx_ab_scope_t *s = &result->scope;
    char headline[2 * EPX_AB_TEXT], subtitle[EPX_AB_TEXT], word[32];
    epx_ab_headline(result, headline, sizeof headline);
    epx_ab_subtitle(result, subtitle, sizeof subtitle);
    size_t end = strcspn(headline, ":");
    snprintf(word, sizeof word, "%.*s", (int)(end < sizeof word ? end : sizeof word - 1), headline);
    epx_ab_put(out,
               "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
               "content=\"width=device-width,initial-scale=1\"><title>epx-ab: ");
    for (int32_t a = 0; a < result->arms; a++)
        epx_ab_put_text(out, "%s%s", a ? ", " : "", result->arm[a].name);
    epx_ab_put(out, "</title>\n<style>");
    epx_ab_put(out, epx_ab_page_style);
    epx_ab_put(out, "</style></head><body><main>\n<p class=\"small soft\">");
    epx_ab_put_text(out, "epx-ab %s, %s", epx_version(), s->started);
    epx_ab_put(out, "</p><div style=\"margin-top:8px\">");
    epx_ab_put_word(out, word, " big");
    epx_ab_put(out, "</div><h1>");
    epx_ab_put_text(out, "%s", headline + end + (headline[end] == ':' ? 2 : 0));
    epx_ab_put(out, "</h1><p class=\"soft\">");
    epx_ab_put_text(out, "%s.", subtitle);
    if (!result->external)
        epx_ab_put_text(out,
                        " Checkpoint %016" PRIx64 " after %" PRId64
                        " steps, %s; %d ranks on %d cores, rules as of %d ranks.",
                        s->checkpoint_hash, s->checkpoint_step, s->regime, s->ranks, s->machine.cores,
                        s->virtual_ep > 0 ? s->virtual_ep : s->ep);
    epx_ab_put(out, "</p>\n");
    put_cautions(result, out);
}

int epx_ab_write_html(const epx_ab_result_t *result, const char *path)
{
    FILE *out = fopen(path, "w");
    if (out == NULL)
        return epx_tool_fail(EPX_EXIT_FAILED, "%s cannot be written (%s): give another --html file", path,
                             strerror(errno));
    put_head(result, out);
    epx_ab_put_verdicts(result, out);
    epx_ab_put_arms(result, out);
    epx_ab_put_rules(result, out);
    put_guards(result, out);
    put_scope(result, out);
    put_plots(result, out);
    epx_ab_put(out, "</main></body></html>\n");
    int failed = ferror(out);
    if (fclose(out) != 0 || failed)
        return epx_tool_fail(EPX_EXIT_FAILED, "%s could not be written whole: look for space on the disk",
                             path);
    return EPX_EXIT_OK;
}
