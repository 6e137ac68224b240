/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Plots as SVG files of their own: no script, no font, no library needed to look at them.
 * Colours are Okabe and Ito's, which stay apart for colour-blind eyes; marks and dashes
 * tell the series apart without any colour. The same plot gives the same bytes.
 */
#ifndef QMW_PLOT_H
#define QMW_PLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

enum qmw_plot_colour {
	QMW_PLOT_BLUE,
	QMW_PLOT_VERMILION,
	QMW_PLOT_GREEN,
	QMW_PLOT_PURPLE,
	QMW_PLOT_ORANGE,
	QMW_PLOT_SKY,
	QMW_PLOT_GREY,
	QMW_PLOT_COLOURS
};

enum qmw_plot_mark {
	QMW_PLOT_NO_MARK,
	QMW_PLOT_CIRCLE,
	QMW_PLOT_SQUARE,
	QMW_PLOT_DIAMOND,
	QMW_PLOT_TRIANGLE
};

enum qmw_plot_side { QMW_PLOT_RIGHT, QMW_PLOT_LEFT, QMW_PLOT_BELOW };

/** Points that are not finite, or not positive on a logarithmic axis, are left out. */
struct qmw_plot_series {
	const char *name;           /**< in the legend; NULL: not there */
	const double *x, *y;        /**< [count], borrowed */
	const char *const *caption; /**< [count], beside the marks; NULL: none */
	enum qmw_plot_side side;    /**< of the captions */
	size_t count;
	enum qmw_plot_colour colour;
	enum qmw_plot_mark mark;
	bool line, dashed, faint, hollow;
	bool bar; /**< from zero, beside other series' bars of the same x; a linear axis */
};

struct qmw_plot_axis {
	const char *label;
	bool logarithmic;
	bool whole; /**< ticks at whole numbers only */
};

struct qmw_plot {
	const char *title, *subtitle; /**< what one sees, how it was measured */
	struct qmw_plot_axis x, y;
	const struct qmw_plot_series *series;
	size_t count;
	bool diagonal; /**< both axes alike, and the line y = x */
};

/** Values in cells, dark is low; rows from the top. */
struct qmw_plot_cells {
	const char *title, *subtitle;
	const char *x_label, *y_label, *scale_label;
	const double *values; /**< [rows][columns], clipped to [low, high] */
	uint32_t rows, columns;
	double low, high;
};

/** Writes @p plot to @p path, over what is there. Logs QMLA_ERR_IO; QMLA_ERR_NO_MEMORY,
 * QMLA_ERR_INVALID_ARGUMENT (no point to show). */
qmla_status_t qmw_plot_write(const struct qmw_plot *plot, const char *path);

/** The same for cells. */
qmla_status_t qmw_plot_write_cells(const struct qmw_plot_cells *cells, const char *path);

#endif /* QMW_PLOT_H */
