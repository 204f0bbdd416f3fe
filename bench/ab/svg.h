/* Plots as inline SVG: a frame with axes, and marks in the plot's own coordinates. SPDX-License-Identifier:
 * Apache-2.0 */
#ifndef EPX_AB_SVG_H
#define EPX_AB_SVG_H

#include <stdint.h>
#include <stdio.h>

/* Where values go: x from `left` to `right` pixels for x_low .. x_high, y from `bottom` up to `top` for y_low
 * .. y_high. */
typedef struct epx_svg {
    FILE *out;
    double left, right, top, bottom;
    double x_low, x_high, y_low, y_high;
} epx_svg_t;

/* Text with the characters that HTML minds replaced. */
void epx_svg_escape(FILE *out, const char *text);

/* Opens a picture of width x height pixels; `title` is what a screen reader says. Ranges are widened to be
 * not empty. */
epx_svg_t epx_svg_open(FILE *out, int width, int height, const char *title);
void epx_svg_close(const epx_svg_t *svg);

/* Sets the ranges; `zero` != 0 brings 0 into y. */
void epx_svg_ranges(epx_svg_t *svg, double x_low, double x_high, double y_low, double y_high, int zero);

double epx_svg_x(const epx_svg_t *svg, double x);
double epx_svg_y(const epx_svg_t *svg, double y);

/* Grid lines with round numbers, at most about `most`; `unit` follows the highest number. */
void epx_svg_y_axis(const epx_svg_t *svg, int most, const char *unit);
void epx_svg_x_axis(const epx_svg_t *svg, int most, const char *unit);

/* All in the coordinates of values. `style` is a class of the page's style sheet, a<i> among them for the
 * colour of arm i. */
void epx_svg_dot(const epx_svg_t *svg, double x, double y, double radius, const char *style, const char *tip);
void epx_svg_line(const epx_svg_t *svg, double x1, double y1, double x2, double y2, const char *style);
void epx_svg_rect(const epx_svg_t *svg, double x1, double y1, double x2, double y2, const char *style,
                  const char *tip);
/* Through values [count]; NaN interrupts it. x: first, first + 1, ... */
void epx_svg_curve(const epx_svg_t *svg, double first, const double *y, int32_t count, const char *style);

/* In pixels; anchor: "start", "middle", "end". */
void epx_svg_text(const epx_svg_t *svg, double x, double y, const char *anchor, const char *style,
                  const char *text);

#endif
