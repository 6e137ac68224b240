/* SPDX-License-Identifier: Apache-2.0 */
/** @file The SVG elements that plots are made of, as text on a stream. One thread. */
#ifndef QMW_PLOT_SVG_H
#define QMW_PLOT_SVG_H

#include <stdio.h>

#include "client/calibrate/plot.h"

enum qmw_svg_anchor { QMW_SVG_START, QMW_SVG_MIDDLE, QMW_SVG_END };

struct qmw_svg_text {
	double x, y;
	double size; /**< pixels */
	enum qmw_svg_anchor anchor;
	const char *colour;
	bool bold, upright; /**< upright: turned to read from below */
};

/** Opens @p path anew, or logs why not: QMLA_ERR_IO. */
qmla_status_t qmw_svg_open(const char *path, FILE **out);
/** Closes it; QMLA_ERR_IO when something of it was not written. */
qmla_status_t qmw_svg_close(const char *path, FILE *out);

const char *qmw_svg_colour(enum qmw_plot_colour colour); /**< "#rrggbb" */

/** Root element, white ground, accessible title. */
void qmw_svg_begin(FILE *out, double width, double height, const char *title,
		   const char *description);
void qmw_svg_end(FILE *out);

/** Text with &, < and > escaped. */
void qmw_svg_text(FILE *out, const struct qmw_svg_text *style, const char *text);
void qmw_svg_titles(FILE *out, const char *title, const char *subtitle); /**< at the top left */
void qmw_svg_line(FILE *out, double x0, double y0, double x1, double y1, const char *style);
void qmw_svg_box(FILE *out, double x, double y, double width, double height, const char *style);

/** A mark of about 8 pixels around a point. */
void qmw_svg_mark(FILE *out, const struct qmw_plot_series *series, double x, double y);

/** Width of a text in pixels, by a mean width of letters: to lay out a legend. */
double qmw_svg_text_width(const char *text, double size);

#endif /* QMW_PLOT_SVG_H */
