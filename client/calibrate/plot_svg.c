/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/plot_svg.h"

#include <errno.h>
#include <string.h>

#include "common/log.h"

qmla_status_t qmw_svg_open(const char *path, FILE **out)
{
	*out = fopen(path, "we");
	if (*out)
		return QMLA_OK;
	qmc_error("plot", "%s cannot be written: %s", path, strerror(errno));
	return QMLA_ERR_IO;
}

qmla_status_t qmw_svg_close(const char *path, FILE *out)
{
	bool bad = ferror(out) != 0;

	bad = fclose(out) != 0 || bad;
	if (!bad)
		return QMLA_OK;
	qmc_error("plot", "%s cannot be written: %s", path, strerror(errno));
	return QMLA_ERR_IO;
}

const char *qmw_svg_colour(enum qmw_plot_colour colour)
{
	/* Okabe and Ito, "Color Universal Design", 2008; the grey is ours. */
	static const char *const colours[QMW_PLOT_COLOURS] = {
		"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#777777",
	};

	return colours[colour];
}

static void escape(FILE *out, const char *text)
{
	for (; *text; text++) {
		switch (*text) {
		case '&':
			fputs("&amp;", out);
			break;
		case '<':
			fputs("&lt;", out);
			break;
		case '>':
			fputs("&gt;", out);
			break;
		default:
			fputc(*text, out);
		}
	}
}

void qmw_svg_begin(FILE *out, double width, double height, const char *title,
		   const char *description)
{
	fprintf(out,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" "
		"viewBox=\"0 0 %g %g\" role=\"img\" "
		"font-family=\"Helvetica Neue, Helvetica, Arial, DejaVu Sans, sans-serif\">\n",
		width, height, width, height);
	fputs("<title>", out);
	escape(out, title);
	fputs("</title>\n<desc>", out);
	escape(out, description);
	fputs("</desc>\n", out);
	qmw_svg_box(out, 0, 0, width, height, "fill:#ffffff");
}

void qmw_svg_end(FILE *out)
{
	fputs("</svg>\n", out);
}

void qmw_svg_text(FILE *out, const struct qmw_svg_text *style, const char *text)
{
	static const char *const anchors[] = {"start", "middle", "end"};

	fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%g\" text-anchor=\"%s\" fill=\"%s\"",
		style->x, style->y, style->size, anchors[style->anchor],
		style->colour ? style->colour : "#333333");
	if (style->bold)
		fputs(" font-weight=\"600\"", out);
	if (style->upright)
		fprintf(out, " transform=\"rotate(-90 %.1f %.1f)\"", style->x, style->y);
	fputc('>', out);
	escape(out, text);
	fputs("</text>\n", out);
}

void qmw_svg_titles(FILE *out, const char *title, const char *subtitle)
{
	struct qmw_svg_text style = {
		.x = 22, .y = 30, .size = 17, .bold = true, .colour = "#111111"};

	qmw_svg_text(out, &style, title);
	style = (struct qmw_svg_text){.x = 22, .y = 51, .size = 12, .colour = "#555555"};
	qmw_svg_text(out, &style, subtitle);
}

void qmw_svg_line(FILE *out, double x0, double y0, double x1, double y1, const char *style)
{
	fprintf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" style=\"%s\"/>\n", x0,
		y0, x1, y1, style);
}

void qmw_svg_box(FILE *out, double x, double y, double width, double height, const char *style)
{
	fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" style=\"%s\"/>\n",
		x, y, width, height, style);
}

void qmw_svg_mark(FILE *out, const struct qmw_plot_series *series, double x, double y)
{
	const char *colour = qmw_svg_colour(series->colour);
	const char *fill = series->hollow ? "#ffffff" : colour;
	char style[96];

	snprintf(style, sizeof(style), "fill:%s;stroke:%s;stroke-width:1.6", fill, colour);
	switch (series->mark) {
	case QMW_PLOT_CIRCLE:
		fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4.2\" style=\"%s\"/>\n", x, y,
			style);
		break;
	case QMW_PLOT_SQUARE:
		qmw_svg_box(out, x - 3.8, y - 3.8, 7.6, 7.6, style);
		break;
	case QMW_PLOT_DIAMOND:
		fprintf(out, "<path d=\"M%.1f %.1fl5 5l-5 5l-5 -5z\" style=\"%s\"/>\n", x, y - 5,
			style);
		break;
	case QMW_PLOT_TRIANGLE:
		fprintf(out, "<path d=\"M%.1f %.1fl5 8.6h-10z\" style=\"%s\"/>\n", x, y - 5, style);
		break;
	case QMW_PLOT_NO_MARK:
		break;
	}
}

double qmw_svg_text_width(const char *text, double size)
{
	size_t letters = 0;

	for (; *text; text++)
		letters += ((unsigned char)*text & 0xc0) != 0x80; /* UTF-8: not a continuation */
	return .54 * size * (double)letters;
}
