/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/plot.h"

#include <math.h>
#include <string.h>

#include "client/calibrate/plot_scale.h"
#include "client/calibrate/plot_svg.h"

#define WIDTH       760.0
#define HEIGHT      440.0
#define LEFT        84.0
#define RIGHT       28.0
#define BOTTOM      62.0
#define LEGEND_TOP  76.0
#define LEGEND_STEP 20.0
#define TEXT        12.0

#define GRID  "stroke:#e4e4e4;stroke-width:1"
#define FRAME "stroke:#8a8a8a;stroke-width:1"

struct canvas {
	FILE *out;
	const struct qmw_plot *plot;
	struct qmw_scale x, y;
	double top; /* of the plot's area, under the legend */
};

static bool shown(const struct qmw_plot *plot, const struct qmw_plot_series *series, size_t i)
{
	double x = series->x[i], y = series->y[i];

	return isfinite(x) && isfinite(y) && !(plot->x.logarithmic && x <= 0) &&
	       !(plot->y.logarithmic && y <= 0);
}

static void widen(double value, double range[2])
{
	range[0] = fmin(range[0], value);
	range[1] = fmax(range[1], value);
}

/* Smallest and largest of both axes; false: there is no point. */
static bool find_ranges(const struct qmw_plot *plot, double x[2], double y[2])
{
	bool any = false;

	x[0] = y[0] = INFINITY;
	x[1] = y[1] = -INFINITY;
	for (size_t s = 0; s < plot->count; s++) {
		const struct qmw_plot_series *series = &plot->series[s];

		for (size_t i = 0; i < series->count; i++) {
			if (!shown(plot, series, i))
				continue;
			any = true;
			widen(series->x[i] - (series->bar ? .5 : 0), x);
			widen(series->x[i] + (series->bar ? .5 : 0), x);
			widen(series->y[i], y);
			if (series->bar)
				widen(0, y);
		}
	}
	if (plot->diagonal && any) {
		widen(x[0], y);
		widen(x[1], y);
		memcpy(x, y, 2 * sizeof(*x));
	}
	return any;
}

static double sample_width(const struct qmw_plot_series *series)
{
	return 34 + qmw_svg_text_width(series->name, TEXT) + 18;
}

static void draw_sample(FILE *out, const struct qmw_plot_series *series, double x, double y)
{
	char style[96];

	if (series->bar) {
		snprintf(style, sizeof(style), "fill:%s", qmw_svg_colour(series->colour));
		qmw_svg_box(out, x + 8, y - 10, 12, 12, style);
	}
	if (series->line) {
		snprintf(style, sizeof(style), "stroke:%s;stroke-width:2%s",
			 qmw_svg_colour(series->colour),
			 series->dashed ? ";stroke-dasharray:5 4" : "");
		qmw_svg_line(out, x, y - 4, x + 28, y - 4, style);
	}
	qmw_svg_mark(out, series, x + 14, y - 4);
	qmw_svg_text(out, &(struct qmw_svg_text){.x = x + 34, .y = y, .size = TEXT}, series->name);
}

/* Lays the legend out in rows; draws it when @p out is not NULL. Returns where it ends. */
static double place_legend(const struct qmw_plot *plot, FILE *out)
{
	double x = LEFT, y = LEGEND_TOP;

	for (size_t s = 0; s < plot->count; s++) {
		const struct qmw_plot_series *series = &plot->series[s];

		if (!series->name)
			continue;
		if (x > LEFT && x + sample_width(series) > WIDTH - RIGHT + 18) {
			x = LEFT;
			y += LEGEND_STEP;
		}
		if (out)
			draw_sample(out, series, x, y);
		x += sample_width(series);
	}
	return y + 14;
}

static void draw_x_axis(const struct canvas *c)
{
	double ticks[QMW_SCALE_TICKS], bottom = HEIGHT - BOTTOM;
	size_t count = qmw_scale_ticks(&c->x, 8, c->plot->x.whole, ticks);
	struct qmw_svg_text style = {.y = bottom + 19, .size = TEXT, .anchor = QMW_SVG_MIDDLE};
	char label[32];

	for (size_t i = 0; i < count; i++) {
		style.x = qmw_scale_pixel(&c->x, ticks[i]);
		qmw_scale_label(ticks[i], label);
		qmw_svg_line(c->out, style.x, c->top, style.x, bottom, GRID);
		qmw_svg_line(c->out, style.x, bottom, style.x, bottom + 5, FRAME);
		qmw_svg_text(c->out, &style, label);
	}
	qmw_svg_line(c->out, LEFT, bottom, WIDTH - RIGHT, bottom, FRAME);
	style.x = (LEFT + WIDTH - RIGHT) / 2;
	style.y = HEIGHT - 16;
	style.size = TEXT + 1;
	qmw_svg_text(c->out, &style, c->plot->x.label);
}

static void draw_y_axis(const struct canvas *c)
{
	double ticks[QMW_SCALE_TICKS], bottom = HEIGHT - BOTTOM;
	size_t count = qmw_scale_ticks(&c->y, 6, c->plot->y.whole, ticks);
	struct qmw_svg_text style = {.x = LEFT - 9, .size = TEXT, .anchor = QMW_SVG_END};
	char label[32];

	for (size_t i = 0; i < count; i++) {
		double y = qmw_scale_pixel(&c->y, ticks[i]);

		qmw_scale_label(ticks[i], label);
		qmw_svg_line(c->out, LEFT, y, WIDTH - RIGHT, y, GRID);
		qmw_svg_line(c->out, LEFT - 5, y, LEFT, y, FRAME);
		style.y = y + 4;
		qmw_svg_text(c->out, &style, label);
	}
	qmw_svg_line(c->out, LEFT, c->top, LEFT, bottom, FRAME);
	style = (struct qmw_svg_text){.x = 22,
				      .y = (c->top + bottom) / 2,
				      .size = TEXT + 1,
				      .anchor = QMW_SVG_MIDDLE,
				      .upright = true};
	qmw_svg_text(c->out, &style, c->plot->y.label);
}

/* Bars of one series stand beside those of the others, @p place of @p places. */
static void draw_bars(const struct canvas *c, const struct qmw_plot_series *series, size_t place,
		      size_t places)
{
	double unit = qmw_scale_pixel(&c->x, 1) - qmw_scale_pixel(&c->x, 0);
	double width = .72 * unit / (double)places, zero = qmw_scale_pixel(&c->y, 0);
	char style[64];

	snprintf(style, sizeof(style), "fill:%s", qmw_svg_colour(series->colour));
	for (size_t i = 0; i < series->count; i++) {
		double x, y;

		if (!shown(c->plot, series, i))
			continue;
		x = qmw_scale_pixel(&c->x, series->x[i]) - .36 * unit + width * (double)place;
		y = qmw_scale_pixel(&c->y, series->y[i]);
		qmw_svg_box(c->out, x + .5, fmin(y, zero), fmax(width - 1, .5), fabs(y - zero),
			    style);
	}
}

static void draw_line(const struct canvas *c, const struct qmw_plot_series *series)
{
	bool pen = false;

	fputs("<path d=\"", c->out);
	for (size_t i = 0; i < series->count; i++) {
		if (shown(c->plot, series, i))
			fprintf(c->out, "%c%.1f %.1f", pen ? 'L' : 'M',
				qmw_scale_pixel(&c->x, series->x[i]),
				qmw_scale_pixel(&c->y, series->y[i]));
		pen = shown(c->plot, series, i);
	}
	fprintf(c->out,
		"\" style=\"fill:none;stroke:%s;stroke-width:%s;stroke-linejoin:round%s%s\"/>\n",
		qmw_svg_colour(series->colour), series->faint ? "1" : "2",
		series->dashed ? ";stroke-dasharray:5 4" : "", series->faint ? ";opacity:.45" : "");
}

static void draw_caption(const struct canvas *c, enum qmw_plot_side side, const char *text,
			 double x, double y)
{
	struct qmw_svg_text style = {.x = x + 8, .y = y + 4, .size = TEXT - 1, .colour = "#555555"};

	if (side == QMW_PLOT_LEFT) {
		style.x = x - 8;
		style.anchor = QMW_SVG_END;
	}
	if (side == QMW_PLOT_BELOW) {
		style.x = x;
		style.y = y + 17;
		style.anchor = QMW_SVG_MIDDLE;
	}
	qmw_svg_text(c->out, &style, text);
}

static void draw_marks(const struct canvas *c, const struct qmw_plot_series *series)
{
	for (size_t i = 0; i < series->count; i++) {
		double x, y;

		if (!shown(c->plot, series, i))
			continue;
		x = qmw_scale_pixel(&c->x, series->x[i]);
		y = qmw_scale_pixel(&c->y, series->y[i]);
		qmw_svg_mark(c->out, series, x, y);
		if (series->caption)
			draw_caption(c, series->side, series->caption[i], x, y);
	}
}

static void draw_series(const struct canvas *c)
{
	size_t places = 0, place = 0;

	for (size_t s = 0; s < c->plot->count; s++)
		places += c->plot->series[s].bar;
	for (size_t s = 0; s < c->plot->count; s++) {
		if (c->plot->series[s].bar)
			draw_bars(c, &c->plot->series[s], place++, places);
		if (c->plot->series[s].line)
			draw_line(c, &c->plot->series[s]);
	}
	/* Marks over every line. */
	for (size_t s = 0; s < c->plot->count; s++)
		draw_marks(c, &c->plot->series[s]);
}

static void draw_reference_lines(const struct canvas *c)
{
	if (c->plot->diagonal)
		qmw_svg_line(c->out, qmw_scale_pixel(&c->x, c->x.low),
			     qmw_scale_pixel(&c->y, c->x.low), qmw_scale_pixel(&c->x, c->x.high),
			     qmw_scale_pixel(&c->y, c->x.high),
			     "stroke:#8a8a8a;stroke-width:1.2;stroke-dasharray:2 3");
	if (!c->y.logarithmic && c->y.low < 0 && c->y.high > 0)
		qmw_svg_line(c->out, LEFT, qmw_scale_pixel(&c->y, 0), WIDTH - RIGHT,
			     qmw_scale_pixel(&c->y, 0), FRAME);
}

qmla_status_t qmw_plot_write(const struct qmw_plot *plot, const char *path)
{
	struct canvas c = {.plot = plot};
	double x[2], y[2];
	qmla_status_t status;

	if (!find_ranges(plot, x, y))
		return QMLA_ERR_INVALID_ARGUMENT;
	status = qmw_svg_open(path, &c.out);
	if (status != QMLA_OK)
		return status;
	c.top = place_legend(plot, NULL);
	qmw_scale_fit(&c.x, x[0], x[1], plot->x.logarithmic);
	qmw_scale_fit(&c.y, y[0], y[1], plot->y.logarithmic);
	c.x.start = LEFT;
	c.x.stop = WIDTH - RIGHT;
	c.y.start = HEIGHT - BOTTOM;
	c.y.stop = c.top;
	qmw_svg_begin(c.out, WIDTH, HEIGHT, plot->title, plot->subtitle);
	qmw_svg_titles(c.out, plot->title, plot->subtitle);
	place_legend(plot, c.out);
	draw_x_axis(&c);
	draw_y_axis(&c);
	draw_reference_lines(&c);
	draw_series(&c);
	qmw_svg_end(c.out);
	return qmw_svg_close(path, c.out);
}
