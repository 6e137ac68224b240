/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/plot.h"

#include <math.h>

#include "client/calibrate/plot_scale.h"
#include "client/calibrate/plot_svg.h"

#define WIDTH  760.0
#define HEIGHT 440.0
#define LEFT   84.0
#define RIGHT  120.0 /* room for the key */
#define TOP    76.0
#define BOTTOM 62.0
#define TEXT   12.0

/* Dark blue to yellow, straight lines through three colours of "cividis" (Nunez and others,
 * 2018): lightness rises all the way. */
static void cell_colour(double share, char text[16])
{
	static const double stops[3][3] = {{0, 34, 78}, {124, 123, 120}, {254, 232, 56}};
	double at = 2 * fmin(fmax(share, 0), 1), part;
	int i = at < 1 ? 0 : 1, rgb[3];

	part = at - i;
	for (int k = 0; k < 3; k++)
		rgb[k] = (int)lround(stops[i][k] + part * (stops[i + 1][k] - stops[i][k]));
	snprintf(text, 16, "#%02x%02x%02x", (unsigned)rgb[0] & 255, (unsigned)rgb[1] & 255,
		 (unsigned)rgb[2] & 255);
}

/* The colours' meaning: a bar at the right. */
static void draw_key(FILE *out, const struct qmw_plot_cells *cells, double top, double height)
{
	struct qmw_svg_text style = {.x = WIDTH - 54, .size = TEXT};
	char colour[16], text[32];

	for (int i = 0; i < 40; i++) {
		char fill[32];

		cell_colour(1 - (i + .5) / 40, colour);
		snprintf(fill, sizeof(fill), "fill:%s", colour);
		qmw_svg_box(out, WIDTH - 76, top + height * i / 40, 16, height / 40 + .5, fill);
	}
	for (int i = 0; i <= 4; i++) {
		qmw_scale_label(cells->high + (cells->low - cells->high) * i / 4, text);
		style.y = top + height * i / 4 + 4;
		qmw_svg_text(out, &style, text);
	}
	style = (struct qmw_svg_text){.x = WIDTH - 84,
				      .y = top + height / 2,
				      .size = TEXT,
				      .anchor = QMW_SVG_MIDDLE,
				      .upright = true};
	qmw_svg_text(out, &style, cells->scale_label);
}

static void draw_cells(FILE *out, const struct qmw_plot_cells *cells, double top, double width,
		       double height)
{
	double w = width / cells->columns, h = height / cells->rows;

	for (uint32_t r = 0; r < cells->rows; r++) {
		for (uint32_t i = 0; i < cells->columns; i++) {
			double value = cells->values[(size_t)r * cells->columns + i];
			char colour[16], fill[32];

			cell_colour((value - cells->low) / (cells->high - cells->low), colour);
			snprintf(fill, sizeof(fill), "fill:%s", colour);
			/* A little wide, so that no seam shows. */
			qmw_svg_box(out, LEFT + i * w, top + r * h, w + .3, h + .3, fill);
		}
	}
}

static void label_cells(FILE *out, const struct qmw_plot_cells *cells, double top, double width,
			double height)
{
	struct qmw_svg_text style = {
		.size = TEXT, .anchor = QMW_SVG_MIDDLE, .y = top + height + 18};
	uint32_t every = (cells->rows + 15) / 16, across = (cells->columns + 15) / 16;
	char text[32];

	for (uint32_t i = 0; i < cells->columns; i += across) {
		snprintf(text, sizeof(text), "%u", i);
		style.x = LEFT + (i + .5) * width / cells->columns;
		qmw_svg_text(out, &style, text);
	}
	style.x = LEFT - 10;
	style.anchor = QMW_SVG_END;
	for (uint32_t r = 0; r < cells->rows; r += every) {
		snprintf(text, sizeof(text), "%u", r);
		style.y = top + (r + .5) * height / cells->rows + 4;
		qmw_svg_text(out, &style, text);
	}
	style = (struct qmw_svg_text){.x = LEFT + width / 2,
				      .y = HEIGHT - 16,
				      .size = TEXT + 1,
				      .anchor = QMW_SVG_MIDDLE};
	qmw_svg_text(out, &style, cells->x_label);
	style.x = 30;
	style.y = top + height / 2;
	style.upright = true;
	qmw_svg_text(out, &style, cells->y_label);
}

qmla_status_t qmw_plot_write_cells(const struct qmw_plot_cells *cells, const char *path)
{
	double top = TOP, width = WIDTH - LEFT - RIGHT, height = HEIGHT - BOTTOM - top;
	FILE *out;
	qmla_status_t status;

	if (cells->rows == 0 || cells->columns == 0)
		return QMLA_ERR_INVALID_ARGUMENT;
	status = qmw_svg_open(path, &out);
	if (status != QMLA_OK)
		return status;
	qmw_svg_begin(out, WIDTH, HEIGHT, cells->title, cells->subtitle);
	qmw_svg_titles(out, cells->title, cells->subtitle);
	draw_cells(out, cells, top, width, height);
	label_cells(out, cells, top, width, height);
	draw_key(out, cells, top, height);
	qmw_svg_end(out);
	return qmw_svg_close(path, out);
}
