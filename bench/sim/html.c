/* A page with the curves of a sweep: drops against what they cost. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/sim/report.h"
#include "tools/common/program.h"

enum { WIDTH = 460, HEIGHT = 320, LEFT = 64, RIGHT = 28, TOP = 16, BOTTOM = 44, TICKS = 5 };

/* Drops of nothing would be infinitely low on a logarithmic axis. */
#define DROPS_LEAST 1e-5

static const char *const colours[] = {"#1b6ca8", "#c8501e", "#3a8a3f", "#8a4fa3", "#b08c1a",
                                      "#5b5b5b", "#c23b6b", "#2aa198", "#7b4b27"};

typedef struct axis {
    const char *title, *unit;
    double scale; /* from the value to the unit */
    double (*value)(const epx_sim_result_t *result);
} axis_t;

static double transfer_of(const epx_sim_result_t *result) { return result->cost.transfer_bytes; }
static double memory_of(const epx_sim_result_t *result) { return epx_sim_memory_bytes(result); }
static double step_of(const epx_sim_result_t *result) { return result->cost.step_s; }

static const axis_t axes[] = {{"bytes of a transfer, per rank", "GB", 1e-9, transfer_of},
                              {"memory of a group, per rank", "GiB", 1.0 / (1 << 30), memory_of},
                              {"predicted step", "s", 1, step_of}};

/* Text into HTML. */
static void put(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '&': fputs("&amp;", out); break;
        case '"': fputs("&quot;", out); break;
        default: fputc(*text, out); break;
        }
    }
}

typedef struct chart {
    FILE *out;
    const axis_t *axis;
    int wide;         /* values so far apart that the axis is logarithmic too */
    double from, to;  /* of the axis, in its unit; logarithms where it is wide */
    double low, high; /* of drops, log10 */
} chart_t;

static double drops_of(const epx_sim_result_t *result)
{
    return log10(fmax(result->drop_spread.mean, DROPS_LEAST));
}

/* place: a value, or its logarithm where the axis is wide. */
static double x_at(const chart_t *chart, double place)
{
    return LEFT + (place - chart->from) / (chart->to - chart->from) * (WIDTH - LEFT - RIGHT);
}

static double x_of(const chart_t *chart, double value)
{
    return x_at(chart, chart->wide ? log10(value) : value);
}

static double y_of(const chart_t *chart, double log_drops)
{
    return TOP + (chart->high - log_drops) / (chart->high - chart->low) * (HEIGHT - TOP - BOTTOM);
}

/* The range of all points, with some room. */
static void measure(chart_t *chart, const epx_sim_point_t *points, int32_t count)
{
    chart->from = INFINITY;
    chart->to = -INFINITY;
    chart->low = 0;
    chart->high = log10(DROPS_LEAST);
    for (int32_t p = 0; p < count; p++) {
        for (int32_t i = 0; i < points[p].settings.case_count; i++) {
            double x = chart->axis->value(&points[p].result[i]) * chart->axis->scale;
            if (isnan(x))
                continue;
            chart->from = fmin(chart->from, x);
            chart->to = fmax(chart->to, x);
            chart->low = fmin(chart->low, drops_of(&points[p].result[i]));
            chart->high = fmax(chart->high, drops_of(&points[p].result[i]));
        }
    }
    if (isinf(chart->from))
        chart->from = chart->to = 1;
    chart->wide = chart->from > 0 && chart->to > 4 * chart->from;
    if (chart->wide) {
        chart->from = log10(chart->from);
        chart->to = log10(chart->to);
    }
    double room = chart->to > chart->from ? 0.04 * (chart->to - chart->from) : 0.5 * fabs(chart->to) + 1e-9;
    chart->from -= room;
    chart->to += room;
    chart->low = floor(chart->low);
    chart->high = fmax(ceil(chart->high), chart->low + 1);
}

static void draw_frame(const chart_t *chart)
{
    FILE *out = chart->out;
    fprintf(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"drops against %s\">\n", WIDTH, HEIGHT,
            chart->axis->title);
    for (int y = (int)chart->low; y <= (int)chart->high; y++) {
        double at = y_of(chart, y);
        fprintf(out, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" class=\"grid\"/>", LEFT,
                WIDTH - RIGHT, at, at);
        fprintf(out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s%g%%</text>\n", LEFT - 6, at + 4,
                y <= log10(DROPS_LEAST) ? "&le; " : "", 100 * pow(10, y));
    }
    for (int i = 0; i < TICKS; i++) {
        double place = chart->from + (chart->to - chart->from) * i / (TICKS - 1);
        fprintf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.3g</text>\n", x_at(chart, place),
                HEIGHT - BOTTOM + 18, chart->wide ? pow(10, place) : place);
    }
    fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s, %s</text>\n", (LEFT + WIDTH - RIGHT) / 2,
            HEIGHT - 6, chart->axis->title, chart->axis->unit);
}

/* The points of one case, in the order of the sweep. */
static void draw_case(const chart_t *chart, const epx_sim_point_t *points, int32_t count, int32_t one)
{
    const char *colour = colours[one % (int32_t)(sizeof colours / sizeof *colours)];
    fprintf(chart->out, "<polyline fill=\"none\" stroke=\"%s\" points=\"", colour);
    for (int32_t p = 0; p < count; p++) {
        double x = chart->axis->value(&points[p].result[one]) * chart->axis->scale;
        if (!isnan(x))
            fprintf(chart->out, "%.1f,%.1f ", x_of(chart, x), y_of(chart, drops_of(&points[p].result[one])));
    }
    fputs("\"/>\n", chart->out);
    for (int32_t p = 0; p < count; p++) {
        const epx_sim_result_t *result = &points[p].result[one];
        double x = chart->axis->value(result) * chart->axis->scale;
        if (isnan(x))
            continue;
        fprintf(chart->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"><title>", x_of(chart, x),
                y_of(chart, drops_of(result)), colour);
        const epx_sim_settings_t *s = &points[p].settings;
        fprintf(chart->out, "capacity %g", s->cases[one].rules.capacity_factor);
        fprintf(chart->out, ", waves %d, %.4g %s, drops %.4f%%</title></circle>\n", result->waves, x,
                chart->axis->unit, 100 * result->drop_spread.mean);
    }
}

static void draw(FILE *out, const axis_t *axis, const epx_sim_point_t *points, int32_t count)
{
    chart_t chart = {.out = out, .axis = axis};
    measure(&chart, points, count);
    draw_frame(&chart);
    for (int32_t i = 0; i < points->settings.case_count; i++)
        draw_case(&chart, points, count, i);
    fputs("</svg>\n", out);
}

static void write_legend(FILE *out, const epx_sim_settings_t *s)
{
    char name[64];
    fputs("<p class=\"legend\">", out);
    for (int32_t i = 0; i < s->case_count; i++) {
        fprintf(out, "<span style=\"color:%s\">&#9679;</span> ",
                colours[i % (int32_t)(sizeof colours / sizeof *colours)]);
        put(out, epx_sim_case_name(s, &s->cases[i], name, sizeof name));
        fputs(" &nbsp; ", out);
    }
    fputs("</p>\n", out);
}

static void write_row(FILE *out, const epx_sim_point_t *point, int32_t i)
{
    const epx_sim_result_t *result = &point->result[i];
    const epx_drops_case_t *rules = &point->settings.cases[i].rules;
    char name[64];
    fputs("<tr><td>", out);
    put(out, epx_sim_case_name(&point->settings, &point->settings.cases[i], name, sizeof name));
    fprintf(out, "</td><td>%.4g</td><td>", rules->capacity_factor);
    if (rules->transport == EPX_DROPS_POOLED_WAVE)
        fprintf(out, "%.4g", rules->sender_factor);
    fprintf(out, "</td><td>%d</td><td>%.4f%%</td><td>%.4f%%</td>", result->waves,
            100 * result->drop_spread.mean, 100 * result->drop_spread.p99);
    for (size_t a = 0; a < sizeof axes / sizeof *axes; a++) {
        double value = axes[a].value(result) * axes[a].scale;
        fprintf(out, isnan(value) ? "<td>-</td>" : "<td>%.4g</td>", value);
    }
    fputs("</tr>\n", out);
}

static void write_page(FILE *out, const epx_sim_point_t *points, int32_t count)
{
    const epx_sim_settings_t *s = &points->settings;
    char routing[512];
    epx_sim_routing_text(&s->routing, routing, sizeof routing);
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>epx-sim: a "
          "sweep</title>\n<style>"
          "body{font:15px/1.4 system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em;color:#222}"
          "svg{width:31%;min-width:20em;font-size:12px}.grid{stroke:#ddd}table{border-collapse:collapse}"
          "td,th{padding:.15em .8em;text-align:right;border-bottom:1px solid #eee}"
          "td:first-child,th:first-child{text-align:left}</style></head><body>\n<h1>Drops against what they "
          "cost</h1>\n<p>",
          out);
    put(out, s->shape.name);
    fprintf(out, ": %lld ranks of %lld tokens, %lld experts, top-%lld; routing ", (long long)s->shape.ranks,
            (long long)s->shape.tokens, (long long)s->shape.model.experts, (long long)s->shape.model.top_k);
    put(out, routing);
    fprintf(out, ", %d sample(s); machine ", points->result[0].samples);
    put(out, s->machine.name);
    fputs(". Drops are counted by the library's own rules; times are predicted by a model "
          "(docs/simulation.md).</p>\n",
          out);
    write_legend(out, s);
    for (size_t a = 0; a < sizeof axes / sizeof *axes; a++)
        draw(out, &axes[a], points, count);
    fputs("<table><tr><th>transport</th><th>capacity</th><th>of "
          "senders</th><th>waves</th><th>drops</th><th>p99</th>",
          out);
    for (size_t a = 0; a < sizeof axes / sizeof *axes; a++)
        fprintf(out, "<th>%s, %s</th>", axes[a].title, axes[a].unit);
    fputs("</tr>\n", out);
    for (int32_t p = 0; p < count; p++)
        for (int32_t i = 0; i < points[p].settings.case_count; i++)
            write_row(out, &points[p], i);
    fputs("</table></body></html>\n", out);
}

int epx_sim_html(const char *path, const epx_sim_point_t *points, int32_t count)
{
    FILE *out = fopen(path, "w");
    if (out != NULL)
        write_page(out, points, count);
    if (out == NULL || ferror(out) || fclose(out) != 0)
        return epx_tool_fail(EPX_EXIT_FAILED, "cannot write %s (%s): check the path and space", path,
                             strerror(errno));
    return EPX_EXIT_OK;
}
