/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/calibrate/plot.h"
#include "client/calibrate/plot_scale.h"

static char directory[256], path[300];

static int make_directory(void **state)
{
	const char *base = getenv("TMPDIR");

	(void)state;
	snprintf(directory, sizeof(directory), "%s/qmla-plot-XXXXXX", base ? base : "/tmp");
	if (!mkdtemp(directory))
		return -1;
	snprintf(path, sizeof(path), "%s/plot.svg", directory);
	return 0;
}

static int remove_directory(void **state)
{
	(void)state;
	unlink(path);
	return rmdir(directory);
}

static char *read_plot(void)
{
	FILE *file = fopen(path, "re");
	char *text = calloc(1, 1 << 20);

	assert_non_null(file);
	assert_true(fread(text, 1, (1 << 20) - 1, file) > 0);
	fclose(file);
	return text;
}

static size_t occurrences(const char *text, const char *what)
{
	size_t count = 0;

	for (const char *at = strstr(text, what); at; at = strstr(at + 1, what))
		count++;
	return count;
}

static void test_ticks_are_round_and_within(void **state)
{
	const double linear[] = {-.2, 0, .2, .4, .6}, logs[] = {.001, .01, .1, 1};
	double ticks[QMW_SCALE_TICKS];
	struct qmw_scale scale = {.low = -.25, .high = .7};

	(void)state;
	assert_int_equal(qmw_scale_ticks(&scale, 5, false, ticks), 5);
	for (size_t i = 0; i < 5; i++)
		assert_true(fabs(ticks[i] - linear[i]) < 1e-12);
	scale = (struct qmw_scale){.low = .0004, .high = 3, .logarithmic = true};
	assert_int_equal(qmw_scale_ticks(&scale, 4, false, ticks), 4);
	for (size_t i = 0; i < 4; i++)
		assert_true(fabs(ticks[i] / logs[i] - 1) < 1e-12);
	/* Little is shown: 2 and 5 as well. */
	scale = (struct qmw_scale){.low = .018, .high = .11, .logarithmic = true};
	assert_int_equal(qmw_scale_ticks(&scale, 6, false, ticks), 3);
	assert_true(fabs(ticks[0] - .02) < 1e-12 && fabs(ticks[2] - .1) < 1e-12);
	/* Layers have no halves. */
	scale = (struct qmw_scale){.low = -.1, .high = 2.1};
	assert_int_equal(qmw_scale_ticks(&scale, 8, true, ticks), 3);
}

static void test_scale_holds_every_value(void **state)
{
	const double ranges[][2] = {{0, 1}, {5, 5}, {-3e-9, 2e9}, {1e-12, 1e-12}, {.1 + .2, .3}};

	(void)state;
	for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
		for (int logarithmic = 0; logarithmic < (ranges[i][0] > 0 ? 2 : 1); logarithmic++) {
			struct qmw_scale scale = {.start = 10, .stop = 110};
			double ticks[QMW_SCALE_TICKS];
			size_t count;

			qmw_scale_fit(&scale, ranges[i][0], ranges[i][1], logarithmic);
			assert_true(qmw_scale_pixel(&scale, ranges[i][0]) > 10);
			assert_true(qmw_scale_pixel(&scale, ranges[i][1]) < 110);
			count = qmw_scale_ticks(&scale, 6, false, ticks);
			assert_true(count >= 1 && count <= QMW_SCALE_TICKS);
		}
	}
}

static void test_labels(void **state)
{
	const struct {
		double value;
		const char *text;
	} cases[] = {{0, "0"},       {.01, "0.01"},    {-.5, "-0.5"}, {20, "20"},
		     {1e-6, "10⁻⁶"}, {2e-7, "2×10⁻⁷"}, {5e9, "5×10⁹"}};
	char text[32];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		qmw_scale_label(cases[i].value, text);
		assert_string_equal(text, cases[i].text);
	}
}

static void test_plot_shows_what_it_was_given(void **state)
{
	const double x[] = {0, 1, 2, 3}, y[] = {.1, NAN, -1, 10};
	const struct qmw_plot_series series[] = {
		{.name = "A & B",
		 .x = x,
		 .y = y,
		 .count = 4,
		 .mark = QMW_PLOT_CIRCLE,
		 .line = true},
	};
	const struct qmw_plot plot = {.title = "T < U",
				      .subtitle = "how",
				      .x = {.label = "layer", .whole = true},
				      .y = {.label = "error", .logarithmic = true},
				      .series = series,
				      .count = 1};
	char *text, *again;

	(void)state;
	assert_int_equal(qmw_plot_write(&plot, path), QMLA_OK);
	text = read_plot();
	/* The two points that a logarithmic axis has, and the sample in the legend. */
	assert_int_equal(occurrences(text, "<circle"), 3);
	assert_non_null(strstr(text, "T &lt; U"));
	assert_non_null(strstr(text, "A &amp; B"));
	assert_null(strstr(text, "nan"));
	assert_null(strstr(text, "inf"));
	assert_int_equal(qmw_plot_write(&plot, path), QMLA_OK);
	again = read_plot();
	assert_string_equal(text, again);
	free(text);
	free(again);
}

static void test_bars_stand_on_zero(void **state)
{
	const double x[] = {0, 1}, up[] = {1, 2}, down[] = {-1, -.5};
	const struct qmw_plot_series series[] = {
		{.name = "up", .x = x, .y = up, .count = 2, .bar = true},
		{.name = "down", .x = x, .y = down, .count = 2, .bar = true},
	};
	const struct qmw_plot plot = {.title = "bars",
				      .subtitle = "",
				      .x = {.label = "x", .whole = true},
				      .y = {.label = "y"},
				      .series = series,
				      .count = 2};
	char *text;

	(void)state;
	assert_int_equal(qmw_plot_write(&plot, path), QMLA_OK);
	text = read_plot();
	assert_int_equal(occurrences(text, "<rect"), 1 + 2 + 4); /* ground, legend, bars */
	free(text);
}

static void test_cells(void **state)
{
	const double values[] = {0, .25, .5, .75, 1, 2};
	const struct qmw_plot_cells cells = {.title = "cells",
					     .subtitle = "s",
					     .x_label = "x",
					     .y_label = "y",
					     .scale_label = "share",
					     .values = values,
					     .rows = 2,
					     .columns = 3,
					     .high = 1};
	char *text;

	(void)state;
	assert_int_equal(qmw_plot_write_cells(&cells, path), QMLA_OK);
	text = read_plot();
	assert_int_equal(occurrences(text, "<rect"), 1 + 6 + 40);
	assert_true(occurrences(text, "fill:#00224e") == 1); /* the lowest */
	assert_true(occurrences(text, "fill:#fee838") == 2); /* the highest, and what is clipped */
	free(text);
}

static void test_nothing_to_show_and_nowhere_to_write(void **state)
{
	const double bad[] = {NAN};
	const struct qmw_plot_series series = {.x = bad, .y = bad, .count = 1};
	struct qmw_plot plot = {.title = "", .subtitle = "", .series = &series, .count = 1};
	const double one[] = {1};
	const struct qmw_plot_series point = {.x = one, .y = one, .count = 1};

	(void)state;
	plot.x.label = plot.y.label = "";
	assert_int_equal(qmw_plot_write(&plot, path), QMLA_ERR_INVALID_ARGUMENT);
	plot.series = &point;
	assert_int_equal(qmw_plot_write(&plot, "/nonexistent/plot.svg"), QMLA_ERR_IO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ticks_are_round_and_within),
		cmocka_unit_test(test_scale_holds_every_value),
		cmocka_unit_test(test_labels),
		cmocka_unit_test(test_plot_shows_what_it_was_given),
		cmocka_unit_test(test_bars_stand_on_zero),
		cmocka_unit_test(test_cells),
		cmocka_unit_test(test_nothing_to_show_and_nowhere_to_write),
	};

	return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
