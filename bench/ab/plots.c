/* Plots. SPDX-License-Identifier: Apache-2.0 */
#include "bench/ab/plots.h"

#include <math.h>
#include <stdlib.h>

#include "bench/ab/svg.h"
#include "bench/ab/result.h"
#include "tools/common/program.h"

enum { WIDE = 480, HIGH = 260 };

/* ---- pairs ----------------------------------------------------------------------------------------------------------- */

/* Half the width of a verdict's picture: everything that is drawn fits, and 0 is in the middle. */
static double reach_of(const epx_ab_verdict_t *verdict)
{
    double reach = 0;
    const double seen[] = {verdict->interval.low, verdict->interval.high, verdict->interval.mean,
                           verdict->spread, verdict->margin};
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++)
        if (isfinite(seen[i]))
            reach = fmax(reach, fabs(seen[i]));
    for (int32_t i = 0; verdict->pair != NULL && i < verdict->interval.count; i++)
        reach = fmax(reach, fabs(verdict->pair[i]));
    return reach > 0 ? 1.08 * reach : 1;
}

static void draw_row(const epx_svg_t *svg, const epx_ab_result_t *result, const epx_ab_verdict_t *v, double y)
{
    char text[2 * EPX_AB_NAME + 8];
    if (isfinite(v->spread))
        epx_svg_rect(svg, -v->spread, y - 0.36, v->spread, y + 0.36, "band", NULL);
    if (isfinite(v->margin)) {
        epx_svg_line(svg, -v->margin, y - 0.36, -v->margin, y + 0.36, "margin");
        epx_svg_line(svg, v->margin, y - 0.36, v->margin, y + 0.36, "margin");
    }
    if (isfinite(v->interval.low))
        epx_svg_line(svg, v->interval.low, y, v->interval.high, y, "interval");
    epx_svg_dot(svg, v->interval.mean, y, 4.5, "mean", NULL);
    for (int32_t i = 0; i < v->interval.count; i++) {
        double off = v->interval.count > 1 ? 0.5 * ((double)i / (v->interval.count - 1) - 0.5) : 0;
        snprintf(text, sizeof text, "pair %d: %+.3f", v->pair_round[i] + 1, v->pair[i]);
        epx_svg_dot(svg, v->pair[i], y + off, 3, "pair", text);
    }
    snprintf(text, sizeof text, "%s - %s", result->arm[v->a].name, result->arm[v->b].name);
    epx_svg_text(svg, svg->left, epx_svg_y(svg, y + 0.42) - 2, "start", "label", text);
}

void epx_ab_plot_pairs(const epx_ab_result_t *result, epx_ab_quantity_t quantity, FILE *out)
{
    int32_t rows = 0, most = result->arms * (result->arms - 1) / 2;
    double reach = 0;
    for (int32_t i = 0; i < result->verdicts; i++)
        if (result->verdict[i].quantity == quantity && result->verdict[i].given)
            reach = fmax(reach, reach_of(&result->verdict[i]));
    epx_svg_t svg = epx_svg_open(out, WIDE, 52 + 62 * most, "difference of each pair of runs");
    svg.left = 12;
    svg.right = WIDE - 36;
    epx_svg_ranges(&svg, -reach, reach, 0, most, 0);
    epx_svg_x_axis(&svg, 6, quantity == EPX_AB_EXPOSED || quantity == EPX_AB_STEP_TIME ? " ms" : " points");
    for (int32_t i = 0; i < result->verdicts; i++) {
        const epx_ab_verdict_t *verdict = &result->verdict[i];
        if (verdict->quantity == quantity && verdict->given)
            draw_row(&svg, result, verdict, most - 0.56 - rows++);
    }
    epx_svg_text(&svg, WIDE - 10, svg.bottom + 28, "end", "tick", "right: the first arm has more");
    epx_svg_close(&svg);
}

void epx_ab_plot_strip(const epx_ab_verdict_t *v, FILE *out)
{
    double reach = reach_of(v);
    epx_svg_t svg = epx_svg_open(out, 180, 22, "interval");
    svg.left = 2;
    svg.right = 178;
    svg.top = 2;
    svg.bottom = 20;
    epx_svg_ranges(&svg, -reach, reach, 0, 1, 0);
    if (isfinite(v->spread))
        epx_svg_rect(&svg, -v->spread, 0.1, v->spread, 0.9, "band", NULL);
    epx_svg_line(&svg, 0, 0, 0, 1, "zero");
    if (isfinite(v->margin)) {
        epx_svg_line(&svg, -v->margin, 0.1, -v->margin, 0.9, "margin");
        epx_svg_line(&svg, v->margin, 0.1, v->margin, 0.9, "margin");
    }
    if (isfinite(v->interval.low))
        epx_svg_line(&svg, v->interval.low, 0.5, v->interval.high, 0.5, "interval");
    epx_svg_dot(&svg, v->interval.mean, 0.5, 4, "mean", NULL);
    epx_svg_close(&svg);
}

/* ---- steps ----------------------------------------------------------------------------------------------------------- */

static int is_timed(const epx_ab_run_t *run)
{
    return run->arm >= 0 && (run->part == EPX_AB_PLAIN || run->part == EPX_AB_AGAIN);
}

int epx_ab_has_times(const epx_ab_result_t *result)
{
    for (int32_t i = 0; i < result->runs; i++)
        if (is_timed(&result->run[i]) && result->run[i].steps > 0 && isfinite(result->run[i].step[0].step_ms))
            return 1;
    return 0;
}

static void plot_run(const epx_svg_t *svg, const epx_ab_result_t *result, const epx_ab_run_t *run, double at)
{
    for (int32_t s = 0; s < run->steps; s++) {
        char style[32], tip[EPX_AB_NAME + 96];
        snprintf(style, sizeof style, "a%d%s", run->arm, run->step[s].discarded ? " discarded" : "");
        snprintf(tip, sizeof tip, "%s, run %d, step %lld: %.1f ms%s", result->arm[run->arm].name,
                 run->order + 1, (long long)run->step[s].step, run->step[s].step_ms,
                 run->step[s].discarded ? " (discarded)" : "");
        epx_svg_dot(svg, at + s, run->step[s].step_ms, 2.2, style, tip);
    }
}

void epx_ab_plot_steps(const epx_ab_result_t *result, FILE *out)
{
    double steps = 0, most = 0;
    for (int32_t i = 0; i < result->runs; i++) {
        const epx_ab_run_t *run = &result->run[i];
        if (!is_timed(run))
            continue;
        steps += run->steps + 1;
        for (int32_t s = 0; s < run->steps; s++)
            most = run->step[s].step_ms > most ? run->step[s].step_ms : most;
    }
    epx_svg_t svg = epx_svg_open(out, WIDE, HIGH, "time of every step");
    epx_svg_ranges(&svg, -1, steps, 0, 1.04 * most, 1);
    epx_svg_y_axis(&svg, 6, " ms");
    double at = 0;
    for (int32_t i = 0, shade = 0; i < result->runs; i++) {
        const epx_ab_run_t *run = &result->run[i];
        if (!is_timed(run))
            continue;
        if (shade++ % 2 == 0)
            epx_svg_rect(&svg, at - 0.8, svg.y_low, at + run->steps - 0.2, svg.y_high, "shade", NULL);
        plot_run(&svg, result, run, at);
        at += run->steps + 1;
    }
    epx_svg_text(&svg, (svg.left + svg.right) / 2, svg.bottom + 18, "middle", "tick",
                 "runs in order of time");
    epx_svg_close(&svg);
}

/* ---- drops by layer -------------------------------------------------------------------------------------------------- */

/* Counts of a layer over the plain runs of an arm. */
static epx_ab_counts_t layer_of(const epx_ab_result_t *result, int32_t arm, int32_t layer)
{
    epx_ab_counts_t sum = {0};
    for (int32_t i = 0; i < result->runs; i++) {
        const epx_ab_run_t *run = &result->run[i];
        if (run->arm == arm && run->part == EPX_AB_PLAIN && run->void_why[0] == '\0' && run->layer != NULL &&
            layer < run->layers)
            epx_ab_add_counts(&sum, &run->layer[layer]);
    }
    return sum;
}

static int32_t layers_of(const epx_ab_result_t *result)
{
    int32_t layers = 0;
    for (int32_t i = 0; i < result->runs; i++)
        if (result->run[i].layer != NULL && result->run[i].layers > layers)
            layers = result->run[i].layers;
    return layers;
}

int epx_ab_has_layers(const epx_ab_result_t *result) { return layers_of(result) > 0; }

static void plot_bar(const epx_svg_t *svg, const epx_ab_result_t *result, int32_t arm, int32_t layer,
                     double x, double width)
{
    epx_ab_counts_t count = layer_of(result, arm, layer);
    char style[32], tip[EPX_AB_NAME + 96];
    double sender, receiver;
    if (count.valid <= 0)
        return;
    sender = 100 * (double)count.dropped_sender / (double)count.valid;
    receiver = 100 * (double)count.dropped_receiver / (double)count.valid;
    snprintf(tip, sizeof tip, "%s, layer %d: %.2f%% by senders, %.2f%% by receivers", result->arm[arm].name,
             layer, sender, receiver);
    snprintf(style, sizeof style, "a%d", arm);
    epx_svg_rect(svg, x, 0, x + width, sender, style, tip);
    snprintf(style, sizeof style, "a%d receiver", arm);
    epx_svg_rect(svg, x, sender, x + width, sender + receiver, style, tip);
}

void epx_ab_plot_drops(const epx_ab_result_t *result, FILE *out)
{
    int32_t layers = layers_of(result);
    double most = 0, width = 0.8 / result->arms;
    for (int32_t layer = 0; layer < layers; layer++) {
        for (int32_t a = 0; a < result->arms; a++) {
            epx_ab_counts_t count = layer_of(result, a, layer);
            most = count.valid > 0 ? fmax(most, 100 * epx_ab_drop_fraction(&count)) : most;
        }
    }
    epx_svg_t svg = epx_svg_open(out, WIDE, HIGH, "drops by layer");
    epx_svg_ranges(&svg, -0.5, layers - 0.5, 0, most > 0 ? 1.06 * most : 1, 1);
    epx_svg_y_axis(&svg, 6, "%");
    int32_t each = layers > 16 ? layers / 8 : 1;
    for (int32_t layer = 0; layer < layers; layer++) {
        char text[32];
        for (int32_t a = 0; a < result->arms; a++)
            plot_bar(&svg, result, a, layer, layer - 0.4 + a * width, 0.92 * width);
        snprintf(text, sizeof text, layer == 0 ? "layer %d" : "%d", layer);
        if (layer % each == 0)
            epx_svg_text(&svg, epx_svg_x(&svg, layer), svg.bottom + 16, "middle", "tick", text);
    }
    epx_svg_close(&svg);
}

/* ---- loss ------------------------------------------------------------------------------------------------------------ */

int epx_ab_has_loss(const epx_ab_result_t *result)
{
    for (int32_t a = 0; a < result->arms; a++) {
        const epx_ab_run_t *run = epx_ab_find_run(result, a, EPX_AB_PLAIN, 0, 0);
        if (run != NULL && run->steps > 1 && isfinite(run->step[0].loss))
            return 1;
    }
    return 0;
}

/* Losses of a run, less those of `base` where it is given. */
static double *losses_of(const epx_ab_run_t *run, const epx_ab_run_t *base)
{
    double *loss = epx_tool_alloc((size_t)run->steps + 1, sizeof *loss);
    for (int32_t s = 0; s < run->steps; s++)
        loss[s] = base == NULL      ? run->step[s].loss
                  : s < base->steps ? run->step[s].loss - base->step[s].loss
                                    : NAN;
    return loss;
}

static void plot_curves(const epx_ab_result_t *result, const epx_ab_run_t *base, const char *title, FILE *out)
{
    double low = INFINITY, high = -INFINITY, last = 0;
    double *curve[EPX_AB_ARMS] = {NULL};
    int32_t count[EPX_AB_ARMS] = {0};
    for (int32_t a = 0; a < result->arms; a++) {
        const epx_ab_run_t *run = epx_ab_find_run(result, a, EPX_AB_PLAIN, 0, 0);
        if (run == NULL)
            continue;
        curve[a] = losses_of(run, base);
        count[a] = run->steps;
        last = run->steps - 1 > last ? run->steps - 1 : last;
        for (int32_t s = 0; s < run->steps; s++) {
            low = curve[a][s] < low ? curve[a][s] : low;
            high = curve[a][s] > high ? curve[a][s] : high;
        }
    }
    epx_svg_t svg = epx_svg_open(out, WIDE, HIGH, title);
    double room = 0.06 * (high - low);
    epx_svg_ranges(&svg, 0, last, low - room, high + room, base != NULL);
    epx_svg_y_axis(&svg, 6, "");
    for (int32_t a = 0; a < result->arms; a++) {
        char style[32];
        snprintf(style, sizeof style, "curve a%d", a);
        if (curve[a] != NULL)
            epx_svg_curve(&svg, 0, curve[a], count[a], style);
        free(curve[a]);
    }
    epx_svg_text(&svg, (svg.left + svg.right) / 2, svg.bottom + 18, "middle", "tick", "step of the run");
    epx_svg_close(&svg);
}

void epx_ab_plot_loss(const epx_ab_result_t *result, FILE *out) { plot_curves(result, NULL, "loss", out); }

void epx_ab_plot_gap(const epx_ab_result_t *result, FILE *out)
{
    const epx_ab_run_t *base = epx_ab_find_run(result, -1, EPX_AB_REFERENCE, 0, 1);
    if (base != NULL)
        plot_curves(result, base, "loss above the reference without drops", out);
}
