/* Inline SVG. SPDX-License-Identifier: Apache-2.0 */
#include "bench/ab/svg.h"

#include <math.h>

void epx_svg_escape(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '&': fputs("&amp;", out); break;
        case '"': fputs("&quot;", out); break;
        default: fputc(*text, out);
        }
    }
}

epx_svg_t epx_svg_open(FILE *out, int width, int height, const char *title)
{
    fprintf(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", width, height);
    epx_svg_escape(out, title);
    fputs("\">\n", out);
    return (epx_svg_t){.out = out,
                       .left = 54,
                       .right = width - 10,
                       .top = 10,
                       .bottom = height - 30,
                       .x_high = 1,
                       .y_high = 1};
}

void epx_svg_close(const epx_svg_t *svg) { fputs("</svg>\n", svg->out); }

void epx_svg_ranges(epx_svg_t *svg, double x_low, double x_high, double y_low, double y_high, int zero)
{
    svg->x_low = x_low;
    svg->x_high = x_high > x_low ? x_high : x_low + 1;
    if (zero) {
        y_low = y_low > 0 ? 0 : y_low;
        y_high = y_high < 0 ? 0 : y_high;
    }
    if (!(y_high > y_low)) { /* one value, or none: some room around it */
        double room = isfinite(y_low) && y_low != 0 ? fabs(y_low) / 10 : 1;
        y_low = isfinite(y_low) ? y_low - room : 0;
        y_high = y_low + 2 * room;
    }
    svg->y_low = y_low;
    svg->y_high = y_high;
}

double epx_svg_x(const epx_svg_t *svg, double x)
{
    return svg->left + (x - svg->x_low) / (svg->x_high - svg->x_low) * (svg->right - svg->left);
}

double epx_svg_y(const epx_svg_t *svg, double y)
{
    return svg->bottom - (y - svg->y_low) / (svg->y_high - svg->y_low) * (svg->bottom - svg->top);
}

/* The step between round numbers (1, 2, 5 times a power of ten) that gives at most `most` over `range`. */
static double round_step(double range, int most)
{
    double least = range / most, ten = pow(10, floor(log10(least)));
    static const double steps[] = {1, 2, 5, 10};
    for (int i = 0; i < 4; i++)
        if (steps[i] * ten >= least * 0.999999)
            return steps[i] * ten;
    return 10 * ten;
}

/* Digits behind the point that tell neighbours apart. */
static int digits_of(double step) { return step >= 1 ? 0 : (int)ceil(-log10(step) - 1e-9); }

void epx_svg_y_axis(const epx_svg_t *svg, int most, const char *unit)
{
    double step = round_step(svg->y_high - svg->y_low, most);
    int digits = digits_of(step);
    double last = floor(svg->y_high / step + 1e-9);
    for (double i = ceil(svg->y_low / step - 1e-9); i <= last; i++) {
        char text[64];
        double y = epx_svg_y(svg, i * step);
        snprintf(text, sizeof text, "%.*f%s", digits, i == 0 ? 0.0 : i * step, i == last ? unit : "");
        fprintf(svg->out, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
                i == 0 ? "zero" : "grid", svg->left, y, svg->right, y);
        epx_svg_text(svg, svg->left - 6, y + 4, "end", "tick", text);
    }
}

void epx_svg_x_axis(const epx_svg_t *svg, int most, const char *unit)
{
    double step = round_step(svg->x_high - svg->x_low, most);
    int digits = digits_of(step);
    double last = floor(svg->x_high / step + 1e-9);
    for (double i = ceil(svg->x_low / step - 1e-9); i <= last; i++) {
        char text[64];
        double x = epx_svg_x(svg, i * step);
        snprintf(text, sizeof text, "%.*f%s", digits, i == 0 ? 0.0 : i * step, i == last ? unit : "");
        fprintf(svg->out, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
                i == 0 ? "zero" : "grid", x, svg->top, x, svg->bottom);
        epx_svg_text(svg, x, svg->bottom + 15, "middle", "tick", text);
    }
}

static void put_tip(const epx_svg_t *svg, const char *tip)
{
    if (tip == NULL) {
        fputs("/>\n", svg->out);
        return;
    }
    fputs("><title>", svg->out);
    epx_svg_escape(svg->out, tip);
    fputs("</title>", svg->out);
}

void epx_svg_dot(const epx_svg_t *svg, double x, double y, double radius, const char *style, const char *tip)
{
    if (!isfinite(x) || !isfinite(y))
        return;
    fprintf(svg->out, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"", style, epx_svg_x(svg, x),
            epx_svg_y(svg, y), radius);
    put_tip(svg, tip);
    fputs(tip != NULL ? "</circle>\n" : "", svg->out);
}

void epx_svg_line(const epx_svg_t *svg, double x1, double y1, double x2, double y2, const char *style)
{
    fprintf(svg->out, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", style,
            epx_svg_x(svg, x1), epx_svg_y(svg, y1), epx_svg_x(svg, x2), epx_svg_y(svg, y2));
}

void epx_svg_rect(const epx_svg_t *svg, double x1, double y1, double x2, double y2, const char *style,
                  const char *tip)
{
    double left = epx_svg_x(svg, x1), right = epx_svg_x(svg, x2), top = epx_svg_y(svg, y2),
           bottom = epx_svg_y(svg, y1);
    fprintf(svg->out, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"", style, left,
            top, fmax(right - left, 0), fmax(bottom - top, 0));
    put_tip(svg, tip);
    fputs(tip != NULL ? "</rect>\n" : "", svg->out);
}

void epx_svg_curve(const epx_svg_t *svg, double first, const double *y, int32_t count, const char *style)
{
    int open = 0;
    for (int32_t i = 0; i < count; i++) {
        if (!isfinite(y[i])) {
            fputs(open ? "\"/>\n" : "", svg->out);
            open = 0;
            continue;
        }
        if (!open)
            fprintf(svg->out, "<polyline class=\"%s\" points=\"", style);
        fprintf(svg->out, "%s%.1f,%.1f", open ? " " : "", epx_svg_x(svg, first + i), epx_svg_y(svg, y[i]));
        open = 1;
    }
    fputs(open ? "\"/>\n" : "", svg->out);
}

void epx_svg_text(const epx_svg_t *svg, double x, double y, const char *anchor, const char *style,
                  const char *text)
{
    fprintf(svg->out, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", style, x, y, anchor);
    epx_svg_escape(svg->out, text);
    fputs("</text>\n", svg->out);
}
